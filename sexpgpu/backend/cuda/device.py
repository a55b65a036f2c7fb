"""The cuda device: what it needs of the machine, what the planner must know of it, and sessions on it.

Flow: `backend.registry` opens it; the training loop sees only the protocol.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sexpgpu.backend.cuda.attention import (
    MIN_VERSION,
    Built,
    Cudnn,
    attention_of,
    is_attention,
    reason_against,
    rounded_edges,
)
from sexpgpu.backend.cuda.blas import Blas, load_library
from sexpgpu.backend.cuda.driver import Driver, DriverError
from sexpgpu.backend.cuda.lowering import lower, node_workspace
from sexpgpu.backend.cuda.nvrtc import Compiler, default_cache
from sexpgpu.backend.cuda.report import Report, report_lines
from sexpgpu.backend.cuda.session import CudaSession, Toolbox
from sexpgpu.backend.kernels.cuda import PRINTER
from sexpgpu.backend.kernels.report import kernel_texts
from sexpgpu.backend.kernels.rows import program_of
from sexpgpu.backend.kernels.scans import absorbs
from sexpgpu.backend.protocol import Budget
from sexpgpu.backend.trips import write_out
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.program import Program
from sexpgpu.ir.types import DTYPES
from sexpgpu.plan.layout import Layout, contiguous
from sexpgpu.plan.memory import GIB, MemoryProfile, ProgramPlan, admit, plan_memory
from sexpgpu.plan.narrow import narrow_program
from sexpgpu.plan.phase import Step
from sexpgpu.plan.regions import Rules

MIN_CUDA_VERSION = 13000
MIN_CAPABILITY = (8, 0)
RESERVED_BYTES = GIB
"""Left free for the libraries' own memory."""
PIP_LINE = "pip install 'sexpgpu[cuda]'"


class Missing(Exception):
    """What this machine lacks for the device, and the remedy."""

    def __init__(self, what: str, help: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.help = help


@dataclass(frozen=True)
class CudaDevice:
    """One NVIDIA card. without_cudnn: why there is no cuDNN; empty where there is."""

    tools: Toolbox
    without_cudnn: str = ""
    capture: bool = True

    @property
    def name(self) -> str:
        """`cuda`."""
        return "cuda"

    @property
    def dtypes(self) -> Collection[str]:
        """All that there are."""
        return DTYPES

    def describe(self) -> str:
        """The architecture, the card, and that patterns are looked for."""
        major, minor = self.tools.driver.capability()
        return f"compute_{major}{minor} {self.tools.driver.name()}, patterns on"

    def details(self) -> Sequence[str]:
        """Lines for `doctor`: versions, memory, and what would be better."""
        driver = self.tools.driver
        driver.use()
        free, total = driver.memory()
        version = driver.version()
        libraries = [f"NVRTC {self.tools.compiler.version()}", f"cuBLASLt {self.tools.blas.version()}"]
        if self.tools.cudnn is not None:
            libraries.append(f"cuDNN {_dotted(self.tools.cudnn.version())}")
        lines = [
            f"driver for CUDA {version // 1000}.{version % 1000 // 10}, {driver.num_devices} visible, "
            f"{free / GIB:.1f} of {total / GIB:.1f} GiB free",
            ", ".join(libraries),
        ]
        if self.without_cudnn:
            lines.append(f"attention runs as generated kernels: {self.without_cudnn}; {PIP_LINE}")
        return lines

    @cached_property
    def profile(self) -> MemoryProfile:
        """What the planner knows of this device."""
        rules = Rules(lambda body: program_of(body) is not None, _narrows, self._attends, absorbs)
        return MemoryProfile("cuda", workspace_bytes=self._workspace_bytes, by_body=self.runs_by_body, rules=rules)

    def _workspace_bytes(self, node: Node) -> int:
        return node_workspace(node, self.tools.printers)

    def _attends(self, node: Node) -> bool:
        """Whether a library takes a node whole, as attention."""
        return is_attention(node) and self.missed(node) is None

    def _edges(self, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return rounded_edges(node) if self._attends(node) else ((), ())

    def runs_by_body(self, node: Node) -> bool:
        """Whether a node runs as the steps of its body."""
        return OPS[node.op].work is Work.EXPAND and self.missed(node) is not None

    def missed(self, node: Node) -> str | None:
        """Why a composite runs by its body; None where a library or a row program takes it whole."""
        if not is_attention(node):
            if program_of(node.bodies[0]) is not None:
                return None
            works = {OPS[member.op].work for member in node.bodies[0].nodes}
            folds = works - {Work.INPUT, Work.FILL, Work.MAP, Work.MOVE}
            return "its body is no row program" if folds else "elementwise, fused with its neighbours"
        against = reason_against(node)
        if against is not None or self.tools.cudnn is None:
            return against or self.without_cudnn
        inputs = tuple([Layout("arena", 0, contiguous(v.shape)) for v in node.inputs])
        outputs = tuple([Layout("arena", 0, contiguous(t.shape)) for t in node.types])
        built = self.tools.cudnn.build(attention_of(Step(node, inputs, outputs), packed=True))
        return None if isinstance(built, Built) else f"cuDNN refuses it: {built}"

    def free_bytes(self) -> int:
        """Memory of the card that a plan may use now: what is free, less what is left to libraries."""
        self.tools.driver.use()
        return max(0, self.tools.driver.memory()[0] - RESERVED_BYTES)

    def plan(self, program: Program, budget: Budget) -> ProgramPlan:
        """Order, layouts and memory.

        Raises: E-MEM-001 if it does not fit; E-DEV-004 for loops that are too long to be written out.

        budget: the size of a smaller card to plan for; what others hold of the real one is held of that one too.
        """
        program = narrow_program(write_out(program, "cuda"), self._edges)
        self.tools.driver.use()
        free, total = self.tools.driver.memory()
        if budget.bytes is not None:
            free = min(free, budget.bytes - (total - free))
        return admit(plan_memory(program, self.profile, budget.snapshot), max(0, free - RESERVED_BYTES))

    def open(self, plan: ProgramPlan) -> CudaSession:
        """Allocate, compile, and prepare. Raises DiagnosticError E-MEM-003 if the card refuses memory."""
        return CudaSession(plan, self.tools, self.capture)

    def lowering(self, plan: ProgramPlan) -> list[str]:
        """The body of the lowering report: what each phase became, and which patterns were taken or missed."""
        phases = [lower(phase, self.tools) for phase in plan.phases.values()]
        return report_lines(Report(plan, phases, self.missed))

    def kernels(self, plan: ProgramPlan) -> Mapping[str, str]:
        """The text of each kernel by name, in the order in which they first run."""
        return kernel_texts([lower(phase, self.tools) for phase in plan.phases.values()])


def _narrows(node: Node) -> bool:
    """Whether the library writes a product as bf16."""
    return node.inputs[0].dtype == "bf16"


def open_cuda(others: str, bindings: Any = None) -> CudaDevice:
    """The device, after the floor is checked. Raises DiagnosticError E-DEV-002.

    others: what else can be opened here. bindings: stands in for the driver in a test.
    """
    try:
        return _open(bindings)
    except Missing as missing:
        message = f"`cuda` cannot be opened: {missing.what}"
        help = (missing.help,) if missing.help else ("use `--device cpu`",)
        raise DiagnosticError(Diagnostic("E-DEV-002", message, help=help, notes=(others,))) from missing


def _open(bindings: Any) -> CudaDevice:
    driver = check_driver(bindings)
    driver.use()
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise Missing(f"NVRTC cannot be loaded ({_first_line(error)})", PIP_LINE) from error
    try:
        blas = Blas(load_library())
    except (ImportError, OSError, RuntimeError, DriverError) as error:
        raise Missing(f"cuBLASLt cannot be loaded ({_first_line(error)})", PIP_LINE) from error
    cudnn, without = _open_cudnn()
    major, minor = driver.capability()
    compiler = Compiler(f"sm_{major}{minor}", default_cache(), nvrtc)
    return CudaDevice(Toolbox(driver, compiler, PRINTER, blas, cudnn), without)


def check_driver(bindings: Any = None) -> Driver:
    """The driver, new enough, with a card that is new enough. Raises Missing."""
    if bindings is None and sys.platform != "linux":
        raise Missing(f"it needs Linux, and this is {platform.system()}")
    try:
        driver = Driver(bindings)
    except ImportError as error:
        raise Missing("the package `cuda-bindings` is not installed", PIP_LINE) from error
    except RuntimeError as error:
        raise Missing(f"there is no NVIDIA driver ({_first_line(error)})", "install driver 580 or newer") from error
    except DriverError as error:
        raise Missing(f"no NVIDIA GPU can be used ({error})") from error
    version = driver.version()
    if version < MIN_CUDA_VERSION:
        spoken = f"{version // 1000}.{version % 1000 // 10}"
        raise Missing(f"the NVIDIA driver is for CUDA {spoken}, and 13.0 is needed", "install driver 580 or newer")
    capability = driver.capability()
    if capability < MIN_CAPABILITY:
        major, minor = capability
        what = f"the {driver.name()} has compute capability {major}.{minor}, and 8.0 is needed"
        raise Missing(what, "use an A100, L4, H100 or newer, or `--device cpu`")
    return driver


def _open_cudnn() -> tuple[Cudnn | None, str]:
    """cuDNN, or why there is none."""
    try:
        module = importlib.import_module("cudnn")
        cudnn = Cudnn(module)
    except (ImportError, OSError, RuntimeError) as error:
        return None, f"cuDNN cannot be loaded ({_first_line(error)})"
    if cudnn.version() < MIN_VERSION:
        return None, f"cuDNN is {_dotted(cudnn.version())}, and {_dotted(MIN_VERSION)} is needed"
    return cudnn, ""


def _dotted(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
