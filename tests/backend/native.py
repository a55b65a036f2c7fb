"""For tests of C kernels: the kernels of many programs compiled at once, as a compiler takes longest to start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.native.compiler import CompileError, Compiler, find_compiler
from sexpgpu.backend.cpu.native.prelude import PRELUDE
from sexpgpu.backend.protocol import Budget
from sexpgpu.ir.program import Program


class Gathered(Exception):
    """Ends the opening of a plan once its kernels are known."""


@dataclass(frozen=True)
class _Gathering(Compiler):
    """Takes texts, and compiles none."""

    texts: dict[str, str] = field(default_factory=dict)

    def functions(self, head: str, texts: Mapping[str, str], num_units: int = 1) -> dict[str, int]:
        if head != PRELUDE:
            return super().functions(head, texts, num_units)
        self.texts.update(texts)
        raise Gathered


def compiler() -> Compiler:
    """The system's, without a cache."""
    found = find_compiler(None)
    if found is None:
        raise CompileError("the tests of C kernels need a compiler")
    return found


def compile_together(programs: Iterable[Program], devices: Sequence[Callable[[Compiler], CpuDevice]]) -> None:
    """Compile the kernels that `programs` take on `devices`, so that opening them finds all of them loaded."""
    gathering = _Gathering(compiler().path, None)
    for program in programs:
        for make in devices:
            device = make(gathering)
            plan = device.plan(program, Budget())
            with suppress(Gathered):
                device.open(plan).close()
    compiler().functions(PRELUDE, gathering.texts, 2)
