"""The metal device: what it needs of the machine, what the planner must know of it, and sessions on it.

Flow: `backend.registry` opens it; the training loop sees only the protocol.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from sexpgpu.backend.kernels.attention import is_attention, reason_against
from sexpgpu.backend.kernels.lowering import Lowered, Printing
from sexpgpu.backend.kernels.msl import PRINTER
from sexpgpu.backend.kernels.report import kernel_texts
from sexpgpu.backend.kernels.rows import program_of
from sexpgpu.backend.kernels.scans import absorbs
from sexpgpu.backend.metal.driver import Driver, MetalError
from sexpgpu.backend.metal.lowering import lower, node_workspace
from sexpgpu.backend.metal.memory import NUM_BUFFERS, largest_tensor, lasting
from sexpgpu.backend.metal.pool import PAGE_BYTES, Pool
from sexpgpu.backend.metal.report import report_lines
from sexpgpu.backend.metal.session import MetalSession, Toolbox
from sexpgpu.backend.metal.storage import ITEM_BYTES
from sexpgpu.backend.protocol import Budget
from sexpgpu.backend.trips import write_out
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.program import Program
from sexpgpu.plan.memory import GIB, MemoryProfile, ProgramPlan, admit, plan_memory
from sexpgpu.plan.regions import Rules

MIN_MACOS = (12, 0)
NO_PYOBJC = "the package `pyobjc-framework-Metal` is not installed"
PIP_LINE = "pip install 'sexpgpu[metal]'"


class Missing(Exception):
    """What this machine lacks for the device, and the remedy."""

    def __init__(self, what: str, help: str = "use `--device cpu`") -> None:
        super().__init__(what)
        self.what = what
        self.help = help


@dataclass(frozen=True)
class MetalDevice:
    """The GPU of an Apple silicon Mac. frees: whether its memory is given back, by an attempt when it was opened."""

    tools: Toolbox
    frees: bool = True

    @property
    def name(self) -> str:
        """`metal`."""
        return "metal"

    @property
    def dtypes(self) -> Collection[str]:
        """All but f64, which Apple GPUs do not compute in."""
        return ITEM_BYTES

    def describe(self) -> str:
        """The GPU, and how values lie in its memory."""
        return f"{self.tools.driver.name()}, bf16 as f32 and integers as i64 in memory"

    def details(self) -> Sequence[str]:
        """Lines for `doctor`: memory, and what is wrong with the bridge."""
        driver = self.tools.driver
        lines = [
            f"{self.free_bytes() / GIB:.1f} of {driver.working_set_bytes() / GIB:.1f} GiB may be used, "
            f"{driver.max_buffer_bytes() / GIB:.1f} GiB in one buffer"
        ]
        if not self.frees:
            lines.append(f"this PyObjC frees no buffer, so memory grows from run to run of a process; {PIP_LINE}")
        return lines

    @cached_property
    def profile(self) -> MemoryProfile:
        """What the planner knows of this device."""
        return MemoryProfile(
            "Metal",
            item_bytes=ITEM_BYTES,
            workspace_bytes=lambda node: node_workspace(node, self.tools.printers),
            # The ends of as many buffers as a session has, as far as they fit the longest one.
            runtime_bytes=lambda num_steps: NUM_BUFFERS * PAGE_BYTES,
            by_body=self.runs_by_body,
            max_tensor_bytes=self.tools.driver.max_buffer_bytes(),
            rules=Rules(_is_row_program, _never, _never, absorbs),
            is_host=True,
        )

    def runs_by_body(self, node: Node) -> bool:
        """Whether a node runs as the steps of its body."""
        return OPS[node.op].work is Work.EXPAND and self.missed(node) is not None

    def missed(self, node: Node) -> str | None:
        """Why a composite runs by its body; None where a kernel takes it whole."""
        if is_attention(node):
            return reason_against(node)
        if _is_row_program(node.bodies[0]):
            return None
        works = {OPS[member.op].work for member in node.bodies[0].nodes}
        folds = works - {Work.INPUT, Work.FILL, Work.MAP, Work.MOVE}
        return "its body is no row program" if folds else "elementwise, fused with its neighbours"

    def free_bytes(self) -> int:
        """What Metal recommends to hold at most, less what this process holds for other plans."""
        driver, pool = self.tools.driver, self.tools.pool
        return max(0, driver.working_set_bytes() - driver.allocated_bytes() + pool.idle_bytes)

    def plan(self, program: Program, budget: Budget) -> ProgramPlan:
        """Order, layouts and memory.

        Raises: E-MEM-001 if it does not fit; E-MEM-002 if one tensor, or the arena, is longer than the longest buffer;
        E-DEV-004 for loops that are too long to be written out. ValueError for f64, which no file can name.
        """
        for phase in program.phases:
            if any(type.dtype not in ITEM_BYTES for node in phase.graph.walk() for type in node.types):
                raise ValueError(f"phase `{phase.name}` has values of a dtype that metal does not")
        plan = plan_memory(write_out(program, "metal"), self.profile, budget.snapshot)
        free = self.free_bytes()
        admit(plan, free if budget.bytes is None else min(free, budget.bytes))
        self._check_arena(plan)
        return plan

    def _check_arena(self, plan: ProgramPlan) -> None:
        longest = self.tools.driver.max_buffer_bytes()
        at = plan.peak_at
        if plan.arena_bytes > longest and at is not None:
            message = (
                f"the Metal device could not allocate {plan.arena_bytes} bytes for what phase `{at.phase}` has in "
                f"memory at once, and {longest} are the most in one buffer; its largest tensor is "
                f"{largest_tensor(plan)}; the run does not fit this GPU"
            )
            help = ("use a smaller batch with more `:microbatches`, or `--variant smoke`",)
            raise DiagnosticError(Diagnostic("E-MEM-002", message, at.origin.place, help=help))

    def open(self, plan: ProgramPlan) -> MetalSession:
        """Allocate, compile, and prepare. Raises DiagnosticError E-MEM-002 if Metal refuses memory."""
        return MetalSession(plan, self.tools)

    def lowering(self, plan: ProgramPlan) -> list[str]:
        """The body of the lowering report: what each phase became, and which patterns were taken or missed."""
        return report_lines(plan, self._lowered(plan), self.missed)

    def kernels(self, plan: ProgramPlan) -> Mapping[str, str]:
        """The text of each kernel by name, in the order in which they first run."""
        return kernel_texts(self._lowered(plan))

    def _lowered(self, plan: ProgramPlan) -> list[Lowered]:
        printing = Printing(self.tools.printers, len(lasting(plan, self.tools.driver.max_buffer_bytes()).lengths))
        return [lower(phase, printing) for phase in plan.phases.values()]


def _is_row_program(body: Graph) -> bool:
    return program_of(body) is not None


def _never(node: Node) -> bool:
    return False


def open_metal(others: str, devices: str = "", metal: Any = None, objc: Any = None) -> MetalDevice:
    """The device, after the floor is checked. Raises DiagnosticError E-DEV-002, or E-DP-001 for several devices.

    others: what else can be opened here. devices: as `SEXPGPU_DEVICES` has it. metal, objc: stand in for PyObjC.
    """
    try:
        if metal is None:
            check_machine()
        driver, frees = _driver(metal, objc)
    except Missing as missing:
        message = f"`metal` cannot be opened: {missing.what}"
        raise DiagnosticError(Diagnostic("E-DEV-002", message, help=(missing.help,), notes=(others,))) from missing
    if devices not in ("", "0"):
        message = f"SEXPGPU_DEVICES is {devices!r}, and a Mac has one GPU"
        raise DiagnosticError(Diagnostic("E-DP-001", message, help=("leave it unset, or set it to 0",)))
    return MetalDevice(Toolbox(driver, Pool(driver), PRINTER), frees)


def check_machine() -> None:
    """Raises Missing where this is no Apple silicon Mac that is new enough."""
    if platform.system() != "Darwin":
        raise Missing(f"it needs a Mac, and this is {platform.system()}")
    if platform.machine() != "arm64":
        raise Missing(f"it needs Apple silicon and a Python for it, and this is {platform.machine()}")
    found = platform.mac_ver()[0]
    if tuple([int(part) for part in found.split(".")[:2]]) < MIN_MACOS:
        raise Missing(f"it needs macOS 12 or newer, and this is {found}", "update macOS, or use `--device cpu`")
    if find_spec("Metal") is None:
        raise Missing(NO_PYOBJC, PIP_LINE)


def _driver(metal: Any, objc: Any) -> tuple[Driver, bool]:
    """The driver, and whether what it allocates is freed. Raises Missing."""
    try:
        driver = Driver(metal, objc)
        frees = driver.frees()
    except ImportError as error:
        raise Missing(NO_PYOBJC, PIP_LINE) from error
    except MetalError as error:
        raise Missing(str(error)) from error
    if not driver.is_apple_gpu():
        raise Missing(f"the GPU is {driver.name()}, and that of an M1 or newer is needed")
    return driver, frees
