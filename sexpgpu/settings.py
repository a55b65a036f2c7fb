"""Settings: arguments and environment together, frozen. The only reader of the environment.

Flow: `cli` makes it once; everything below takes what it needs as arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sexpgpu.diagnostics import Diagnostic, DiagnosticError

UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


@dataclass(frozen=True, slots=True)
class Settings:
    """device: kind of device. memory_bytes: plan against this much memory; None: what is free."""

    device: str = "cpu"
    memory_bytes: int | None = None


def from_environment(device: str | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """`--device` wins over `SEXPGPU_DEVICE`, which wins over cpu. Raises E-DEV-001 for an unreadable SEXPGPU_MEMORY."""
    env = os.environ if environment is None else environment
    memory = env.get("SEXPGPU_MEMORY")
    return Settings(device or env.get("SEXPGPU_DEVICE") or "cpu", parse_bytes(memory) if memory else None)


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
