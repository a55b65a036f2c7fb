"""The cpu device: a memory profile for the planner, and sessions of the NumPy interpreter.

Flow: `backend.registry` makes it from settings; the training loop sees only the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sexpgpu.backend.cpu.machine import ResidentGrowth, free_bytes, num_cores, processor
from sexpgpu.backend.cpu.native.blas import find_blas
from sexpgpu.backend.cpu.native.compiler import Compiler
from sexpgpu.backend.cpu.native.lowering import Native
from sexpgpu.backend.cpu.session import CpuSession
from sexpgpu.backend.cpu.workspace import estimator, loop_bytes, runtime_bytes
from sexpgpu.backend.protocol import Budget
from sexpgpu.ir.program import Program
from sexpgpu.ir.types import NUMPY_DTYPES, ORACLE_DTYPES
from sexpgpu.plan.memory import GIB, MemoryProfile, ProgramPlan, admit, plan_memory


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """This machine's processor.

    double: the f64 mode: every float is held and computed in double precision. threads: that share work, None: one a
    core; results do not depend on their number. poison: see `CpuSession`.
    """

    double: bool = False
    threads: int | None = None
    poison: bool = False
    compiler: Compiler | None = None

    @property
    def name(self) -> str:
        """`cpu`."""
        return "cpu"

    @property
    def profile(self) -> MemoryProfile:
        """What the planner knows of this device."""
        dtypes = ORACLE_DTYPES if self.double else NUMPY_DTYPES
        item_bytes = {name: dtype.itemsize for name, dtype in dtypes.items()}
        workspace = estimator(item_bytes, self._num_threads)
        return MemoryProfile("cpu", item_bytes, workspace, runtime_bytes, loop_bytes=loop_bytes(item_bytes))

    @property
    def _num_threads(self) -> int:
        return self.threads or num_cores()

    def describe(self) -> str:
        """The processor, its cores, the memory that is free, and that NumPy interprets."""
        mode = ", all floats in double precision" if self.double else ""
        return (
            f"{processor()}, {num_cores()} cores, {free_bytes() / GIB:.1f} GiB free, "
            f"interpreter on NumPy {np.__version__}{mode}"
        )

    def free_bytes(self) -> int:
        """Memory of the machine that is free now."""
        return free_bytes()

    def plan(self, program: Program, budget: Budget) -> ProgramPlan:
        """Order, layouts and memory. Raises DiagnosticError E-MEM-001 if it does not fit in `budget`."""
        plan = plan_memory(program, self.profile)
        return admit(plan, free_bytes() if budget.bytes is None else budget.bytes)

    def open(self, plan: ProgramPlan) -> CpuSession:
        """Allocate and prepare. Raises DiagnosticError E-MEM-004 if the machine refuses."""
        growth = ResidentGrowth()
        dtypes = ORACLE_DTYPES if self.double else NUMPY_DTYPES
        assert all(dtypes[name].itemsize == size for name, size in plan.profile.item_bytes.items()), (
            plan.profile
        )
        native = None
        if self.compiler is not None and not self.double:
            native = Native(self.compiler, self._num_threads, find_blas())
        return CpuSession(plan, dtypes, self._num_threads, growth, self.poison, native)
