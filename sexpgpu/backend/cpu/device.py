"""The cpu device: a memory profile for the planner, and sessions of C kernels and of the NumPy interpreter.

Flow: `backend.registry` makes it from settings; the training loop sees only the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sexpgpu.backend.cpu.machine import ResidentGrowth, free_bytes, num_cores, processor
from sexpgpu.backend.cpu.native.attention import FORWARD, is_attention
from sexpgpu.backend.cpu.native.compiler import CompileError, Compiler
from sexpgpu.backend.cpu.native.lowering import Native
from sexpgpu.backend.cpu.session import CpuSession
from sexpgpu.backend.cpu.workspace import estimator, loop_bytes, runtime_bytes
from sexpgpu.backend.protocol import Budget
from sexpgpu.backend.report import counted, decision_rows, row
from sexpgpu.diagnostics import Diagnostic
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.program import Program
from sexpgpu.ir.types import DTYPES, NUMPY_DTYPES, ORACLE_DTYPES
from sexpgpu.plan.memory import GIB, MemoryProfile, ProgramPlan, admit, plan_memory


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """This machine's processor.

    double: the f64 mode: every float is held and computed in double precision. threads: that share work, None: one a
    core; results do not depend on their number. poison, fused: see `CpuSession`. compiler: makes C kernels of
    what can be one; None: the interpreter runs everything, as it does in the f64 mode.
    """

    double: bool = False
    threads: int | None = None
    poison: bool = False
    fused: bool = False
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
        by_body = _is_composite if self._compiler is None else _has_no_kernel
        return MemoryProfile(
            "cpu", item_bytes, workspace, runtime_bytes, by_body=by_body, loop_bytes=loop_bytes(item_bytes),
            writes_any_strides=_leaves_any_strides, is_host=True,
        )  # fmt: skip

    @property
    def _num_threads(self) -> int:
        return self.threads or num_cores()

    @property
    def dtypes(self) -> Collection[str]:
        """All that there are."""
        return DTYPES

    def describe(self) -> str:
        """The processor, its cores, the memory that is free, and what runs programs."""
        mode = ", all floats in double precision" if self.double else ""
        means = f"interpreter on NumPy {np.__version__}{mode}"
        if self._compiler is not None:
            means = f"C kernels by {self._compiler.path}, NumPy {np.__version__}"
        return f"{processor()}, {num_cores()} cores, {free_bytes() / GIB:.1f} GiB free, {means}"

    @property
    def _compiler(self) -> Compiler | None:
        return None if self.double else self.compiler

    def free_bytes(self) -> int:
        """Memory of the machine that is free now."""
        return free_bytes()

    def plan(self, program: Program, budget: Budget) -> ProgramPlan:
        """Order, layouts and memory. Raises DiagnosticError E-MEM-001 if it does not fit in `budget`."""
        plan = plan_memory(program, self.profile, budget.snapshot)
        return admit(plan, free_bytes() if budget.bytes is None else budget.bytes)

    def open(self, plan: ProgramPlan) -> CpuSession:
        """Allocate, compile and prepare. Raises DiagnosticError E-MEM-004 if the machine refuses.

        A compiler that fails costs speed alone: the interpreter runs the plan, and the session warns of it.
        """
        growth = ResidentGrowth()
        dtypes = ORACLE_DTYPES if self.double else NUMPY_DTYPES
        assert all(dtypes[name].itemsize == size for name, size in plan.profile.item_bytes.items()), plan.profile
        if self._compiler is None:
            return CpuSession(plan, dtypes, self._num_threads, growth, self.poison, self.fused)
        native = Native(self._compiler, self._num_threads)
        try:
            return CpuSession(plan, dtypes, self._num_threads, growth, self.poison, self.fused, native)
        except CompileError as error:
            interpreter = replace(self, compiler=None)
            plan = plan_memory(plan.program, interpreter.profile)
            session = CpuSession(plan, dtypes, self._num_threads, growth, self.poison, self.fused)
            session.warnings = (_without_kernels(error),)
            return session

    def lowering(self, plan: ProgramPlan) -> list[str]:
        """Rows of the lowering report: for each phase what runs as what, and why."""
        session = self.open(plan)
        try:
            warnings = [row("", warning.message) for warning in session.warnings]
            pieces = session.pieces()
            return [*warnings, *[row(name, counted(own)) for name, own in pieces.items()], *decision_rows(pieces)]
        finally:
            session.close()

    def kernels(self, plan: ProgramPlan) -> Mapping[str, str]:
        """The text of each kernel by name; empty where the interpreter runs everything."""
        session = self.open(plan)
        try:
            return dict(session.kernels())
        finally:
            session.close()


def _is_composite(node: Node) -> bool:
    return OPS[node.op].work is Work.EXPAND


def _leaves_any_strides(node: Node) -> bool:
    """What is copied part by part, and results of attention: rows of them may lie anywhere."""
    return node.op == "concat" or (_is_composite(node) and node.attrs["name"] == FORWARD and is_attention(node))


def _has_no_kernel(node: Node) -> bool:
    """Whether a composite runs as the steps of its body."""
    return _is_composite(node) and not is_attention(node)


def _without_kernels(error: CompileError) -> Diagnostic:
    message = f"the C compiler made no kernels: {error}; the interpreter runs the program, several times slower"
    help = "name another compiler with SEXPGPU_CC, or say SEXPGPU_CPU=interpreter"
    return Diagnostic("W-DEV-001", message, help=(help,))
