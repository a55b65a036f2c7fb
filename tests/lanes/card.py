"""A card whose kernels run on the lane engine: the cuda device's own path, with libraries done by NumPy.

Flow: `device()` is a `CudaDevice` over it. Its printers note what each operand of a launch may touch; its driver runs a
kernel that it meets for the first time in every order and checked, and compares what it wrote bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.driver import Arguments
from sexpgpu.backend.kernels import cuda
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.fusion import Group
from sexpgpu.backend.kernels.launch import Launch, Operand
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.rows import Program, print_rows, workspace_bytes
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.layout import extent
from sexpgpu.plan.phase import Copy, Step
from tests.cuda.fake import FakeDriver, toolbox, view
from tests.lanes import rules
from tests.lanes.unit import ORDERS, Buffer, Unit


@dataclass(frozen=True, slots=True)
class Span:
    """What an operand may touch: bytes from its pointer on. written: whether the launch may write to it.

    fresh: whether it holds nothing yet.
    """

    low: int
    num_bytes: int
    item_bytes: int
    written: bool
    fresh: bool

    def at(self, pointer: int) -> Buffer:
        begin = pointer + self.low
        return Buffer(pointer, begin, self.num_bytes, self.item_bytes, not self.fresh, self.written)


def _span(type: TensorType, strides: Sequence[int], role: str) -> Span:
    low, high = extent(type.shape, tuple(strides)) if type.size else (0, -1)
    item_bytes = ITEM_BYTES[type.dtype]
    written = role == "output"
    return Span(low * item_bytes, (high - low + 1) * item_bytes, item_bytes, written, written)


class Kernels:
    """Every kernel that was printed: its launch, what it may touch, and the unit that it is compiled in."""

    def __init__(self) -> None:
        self.launches: dict[str, Launch] = {}
        self.spans: dict[str, tuple[Span, ...] | None] = {}
        self.units: dict[str, Unit] = {}
        self.checked: set[str] = set()
        self.seconds = 0.0

    def note(self, launches: Iterable[Launch], known: Mapping[Operand, Span] | None) -> None:
        """Launches that follow each other; None: they reach memory through tables."""
        for i, launch in enumerate(launches):
            self.launches[launch.name] = launch
            if known is None:
                self.spans[launch.name] = None
                continue
            spans = [known[operand] for operand in launch.operands]
            # Only the first launch of a step finds its workspaces as they were.
            self.spans[launch.name] = tuple(replace(s, fresh=s.fresh and i == 0) for s in spans)

    def unit(self, name: str) -> Unit:
        """The unit of a kernel; compiles all that were printed since, together."""
        if name not in self.units:
            new = [launch for launch in self.launches.values() if launch.name not in self.units]
            text = cuda.module_source(new)
            rules.check(text, "cuda")
            unit = Unit(text, "cuda")
            self.units |= {launch.name: unit for launch in new}
        return self.units[name]


KERNELS = Kernels()
"""Of this process: equal kernels of different programs are compiled and checked once."""


class _Printers:
    """The printers of the cuda device, which note what they print."""

    def __init__(self) -> None:
        self._workspaces: tuple[int, ...] = ()

    def workspace_bytes(self, step: Step) -> tuple[int, ...]:
        """Asked before a step is printed, sometimes for a step that takes more."""
        self._workspaces = cuda.workspace_bytes(step)
        return self._workspaces

    def print_step(self, step: Step) -> tuple[Launch, ...]:
        launches = cuda.print_step(step)
        known: dict[Operand, Span] = {("flag", 0): Span(0, FLAG_BYTES, 4, True, False)}
        pairs = zip((*step.node.inputs, *step.node.outputs), (*step.inputs, *step.outputs), strict=True)
        operands: list[Operand] = [("input", i) for i in range(len(step.inputs))]
        operands += [("output", i) for i in range(len(step.outputs))]
        for operand, (value, layout) in zip(operands, pairs, strict=True):
            known[operand] = _span(value.type, layout.strides, operand[0])
        known |= {("workspace", i): Span(0, n, 4, True, True) for i, n in enumerate(self._workspaces)}
        KERNELS.note(launches, known)
        return launches

    def print_copy(self, copy: Copy) -> tuple[Launch, ...]:
        launches = cuda.print_copy(copy)
        source, target = _span(copy.type, copy.source.strides, "input"), _span(copy.type, copy.target.strides, "output")
        KERNELS.note(launches, {("input", 0): source, ("output", 0): target})
        return launches

    def print_group(self, group: Group) -> Launch:
        launch = cuda.print_group(group)
        places = [*[(x, "input") for x in group.reads], *[(x, "output") for x in group.writes]]
        spans = [_span(x.type, x.layout.strides, role) for x, role in places]
        KERNELS.note([launch], dict(zip(launch.operands, spans, strict=True)))
        return launch

    def print_rows(
        self, program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> tuple[Launch, ...]:
        launches = print_rows(program, inputs, outputs)
        known = {x.operand: _span(x.type, x.strides, x.operand[0]) for x in (*inputs, *outputs)}
        sizes = workspace_bytes(cuda.CUDA, program)
        known |= {("workspace", i): Span(0, n, 4, True, True) for i, n in enumerate(sizes)}
        KERNELS.note(launches, known | {("flag", 0): Span(0, FLAG_BYTES, 4, True, False)})
        return launches

    def print_leaves(self, node: Node, packs: bool, num_buffers: int = 1) -> tuple[Launch, ...]:
        launches = cuda.print_leaves(node, packs)
        KERNELS.note(launches, None)
        return launches

    workspace_bound = staticmethod(cuda.workspace_bound)
    dialect = cuda.CUDA

    def module_source(self, launches: Iterable[Launch]) -> str:
        """What a session compiles; kernels of no printer here are noted from it."""
        found = list(launches)
        KERNELS.note([launch for launch in found if launch.name not in KERNELS.launches], None)
        return " ".join(f" {launch.name}(" for launch in found)


class LanesDriver(FakeDriver):
    """checks: whether kernels are run in every order and checked when they are met for the first time."""

    def __init__(self, checks: bool = True) -> None:
        super().__init__()
        self.checks = checks

    def function(self, module: str, name: str, shared_bytes: int = 0) -> Any:
        assert f" {name}(" in module
        return name

    def launch(
        self, function: Any, grid: Any, block: Any, shared_bytes: int, arguments: Arguments, stream: Any
    ) -> None:
        assert shared_bytes == 0
        pointers = tuple(arguments.pointers)
        self._do(function, lambda: self._run(function, tuple(grid), tuple(block), pointers))

    def _run(self, name: str, grid: Any, block: Any, pointers: tuple[int, ...]) -> None:
        start = time.perf_counter()
        unit, spans = KERNELS.unit(name), KERNELS.spans[name]
        everything = [Buffer(a, a, raw.nbytes - 512, 1, True, True) for a, raw in self.memory_of.items()]
        if spans is None:
            buffers = {i: Buffer(p, p, 0) for i, p in enumerate(pointers)}
            buffers |= {128 + i: each for i, each in enumerate(everything)}
            written = everything
        else:
            buffers = {i: span.at(p) for i, (span, p) in enumerate(zip(spans, pointers, strict=True))}
            written = [b for b in buffers.values() if b.writable]
        if name in KERNELS.checked or not self.checks:
            unit.run(name, buffers, grid, block)
        else:
            KERNELS.checked.add(name)
            self._run_in_every_order(unit, name, buffers, written, grid, block)
        KERNELS.seconds += time.perf_counter() - start

    def _run_in_every_order(
        self, unit: Unit, name: str, buffers: Mapping[int, Buffer], written: Sequence[Buffer], grid: Any, block: Any
    ) -> None:
        memory = [view(b.begin, (b.num_bytes,), (1,), np.dtype(np.uint8)) for b in written if b.num_bytes]
        before = [each.copy() for each in memory]
        first: list[Array] = []
        for order, checked in (*[(order, False) for order in ORDERS], ("forward", True)):
            for each, kept in zip(memory, before, strict=True):
                each[...] = kept
            unit.run(name, buffers, grid, block, order, checked)
            first = first or [each.copy() for each in memory]
            same = all(np.array_equal(each, other) for each, other in zip(memory, first, strict=True))
            assert same, f"{name}: the order {order} shows\n{KERNELS.launches[name].source}"


def device(checks: bool = True) -> CudaDevice:
    """The cuda device over such a card."""
    tools = toolbox(LanesDriver(checks))
    return CudaDevice(replace(tools, printers=_Printers()))  # type: ignore[arg-type]


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """How many kernels were checked inside, and how long kernels took, with their compilation."""
    found: dict[str, float] = {}
    kernels, seconds = len(KERNELS.checked), KERNELS.seconds
    yield found
    found |= {"kernels": len(KERNELS.checked) - kernels, "seconds": KERNELS.seconds - seconds}
