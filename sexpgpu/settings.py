"""Settings: arguments and environment together, frozen. The only reader of the environment.

Flow: `cli` makes it once; everything below takes what it needs as arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sexpgpu.diagnostics import Diagnostic, DiagnosticError

KERNELS, INTERPRETER = "kernels", "interpreter"
UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


@dataclass(frozen=True, slots=True)
class Settings:
    """device: kind of device. memory_bytes: plan against this much memory; None: what is free.

    interpret: the cpu compiles nothing. compiler: the C compiler that it uses; None: the system's.
    devices: which devices of the kind, as written; empty: not said.
    """

    device: str = "cpu"
    memory_bytes: int | None = None
    interpret: bool = False
    compiler: str | None = None
    devices: str = ""


def from_environment(device: str | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """`--device` wins over `SEXPGPU_DEVICE`, which wins over cpu.

    Raises: E-DEV-003 for an unreadable SEXPGPU_MEMORY or SEXPGPU_CPU.
    """
    env = os.environ if environment is None else environment
    memory = env.get("SEXPGPU_MEMORY")
    return Settings(
        device=device or env.get("SEXPGPU_DEVICE") or "cpu",
        memory_bytes=parse_bytes(memory) if memory else None,
        interpret=_is_interpreter(env.get("SEXPGPU_CPU") or KERNELS),
        compiler=env.get("SEXPGPU_CC") or None,
        devices=env.get("SEXPGPU_DEVICES", "").strip(),
    )


def _is_interpreter(text: str) -> bool:
    if text not in (KERNELS, INTERPRETER):
        message = f"SEXPGPU_CPU is {text!r}, neither `{KERNELS}` nor `{INTERPRETER}`"
        raise DiagnosticError(Diagnostic("E-DEV-003", message))
    return text == INTERPRETER


def parse_bytes(text: str) -> int:
    """`24GiB` or a count of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in UNITS:
        raise DiagnosticError(
            Diagnostic(
                "E-DEV-003",
                f"SEXPGPU_MEMORY is {text!r}, not a number of bytes",
                help=("write bytes, or a number and a unit: SEXPGPU_MEMORY=24GiB",),
            )
        )
    return int(float(match[1]) * UNITS[match[2].lower()])
