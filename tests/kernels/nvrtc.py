"""Kernels compiled to machine code by NVRTC, which needs no driver."""

from __future__ import annotations

import re
from typing import Any

from sexpgpu.backend.kernels.cuda import NVRTC_OPTIONS


def compile_unit(source: str, arch: str) -> str:
    """The assembler's log of a unit, with the registers and spills of each kernel."""
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...], log: str = "") -> Any:
        assert result[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, (result[0], log)
        return result[1] if len(result) == 2 else None

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"unit.cu", 0, [], []))
    options = [option.encode() for option in (*NVRTC_OPTIONS, f"--gpu-architecture={arch}", "--ptxas-options=-v")]
    result = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
    check(nvrtc.nvrtcGetProgramLog(program, log))
    text = log.decode(errors="replace")
    check(result, text)
    assert check(nvrtc.nvrtcGetCUBINSize(program)) > 0
    check(nvrtc.nvrtcDestroyProgram(program))
    return text


def spills(log: str, may_have_frame: set[str]) -> list[str]:
    """Kernels that spill registers, or keep arrays in local memory though they have no reason to."""
    found, name = [], ""
    for line in log.splitlines():
        started = re.search(r"(?:Compiling entry function '|Function properties for )(\w+)", line)
        if started:
            name = started[1]
        bytes_ = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if bytes_ is None:
            continue
        frame, *spilt = (int(n) for n in bytes_.groups())
        if any(spilt) or (frame and name not in may_have_frame):
            found.append(f"{name}: {line.strip()}")
    return found
