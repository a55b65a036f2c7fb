"""Printed kernels that are run in every order and checked when a device meets them for the first time.

Flow: a device over emulated hardware has `Printers` in place of its own; they note what each operand of a launch may
touch in a `Kernels`, one for each dialect and process, which the hardware asks to run what it is given. Each unit
of text passes the rules of its dialect first, and that of MSL the compiler that knows address spaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sexpgpu.backend.kernels import attention
from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.fusion import Group
from sexpgpu.backend.kernels.launch import Launch, Operand
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.backend.kernels.rows import Program, workspace_bytes
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import extent
from sexpgpu.plan.phase import Copy, Step
from tests.cuda.fake import view
from tests.lanes import rules, strict
from tests.lanes.unit import ORDERS, Buffer, Unit
from tests.lanes.unit import Dialect as Engine

Size = tuple[int, int, int]


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


def _span(dialect: Dialect, type: TensorType, strides: Sequence[int], role: str) -> Span:
    low, high = extent(type.shape, tuple(strides)) if type.size else (0, -1)
    item_bytes = dialect.item_bytes(type.dtype)
    written = role == "output"
    return Span(low * item_bytes, (high - low + 1) * item_bytes, item_bytes, written, written)


def _processor_seconds() -> float:
    """Of this process and of the compilers that it waited for."""
    return sum(os.times()[:4])


FLAG: dict[Operand, Span] = {("flag", 0): Span(0, FLAG_BYTES, 4, True, False)}


def _workspaces(sizes: Iterable[int]) -> dict[Operand, Span]:
    return {("workspace", i): Span(0, num_bytes, 4, True, True) for i, num_bytes in enumerate(sizes)}


class Kernels:
    """Every kernel of a dialect that was printed: its launch, what it may touch, and the unit that it is compiled in.

    Equal kernels of different programs are compiled and checked once. checked: their names; seconds: of the processor,
    that kernels took with their compilation.
    """

    def __init__(self, printer: Printer, engine: Engine) -> None:
        self.printer, self.engine = printer, engine
        self.launches: dict[str, Launch] = {}
        self.checked: set[str] = set()
        self.seconds = 0.0
        self._spans: dict[str, tuple[Span, ...] | None] = {}
        self._units: dict[str, Unit] = {}

    def note(self, launches: Iterable[Launch], known: Mapping[Operand, Span] | None) -> None:
        """Launches that follow each other; None: they reach memory through tables."""
        for i, launch in enumerate(launches):
            self.launches[launch.name] = launch
            if known is None:
                self._spans[launch.name] = None
                continue
            spans = [known[operand] for operand in launch.operands]
            # Only the first launch of a step finds its workspaces as they were.
            self._spans[launch.name] = tuple(replace(s, fresh=s.fresh and i == 0) for s in spans)

    def run(
        self, name: str, grid: Size, block: Size, pointers: Sequence[int], reached: Callable[[], Mapping[int, Buffer]]
    ) -> None:
        """Run a kernel. reached: buffers by number of one that reaches memory through tables."""
        start = _processor_seconds()
        unit, spans = self._unit(name), self._spans[name]
        if spans is None:
            buffers = dict(reached())
        else:
            buffers = {i: span.at(p) for i, (span, p) in enumerate(zip(spans, pointers, strict=True))}
        if name in self.checked:
            unit.run(name, buffers, grid, block)
        else:
            self.checked.add(name)
            self._run_in_every_order(unit, name, buffers, grid, block)
        self.seconds += _processor_seconds() - start

    def _unit(self, name: str) -> Unit:
        """The unit of a kernel; compiles all that were printed since, together."""
        if name not in self._units:
            new = [launch for launch in self.launches.values() if launch.name not in self._units]
            text = self.printer.module_source(new)
            rules.check(text, self.engine)
            if self.engine == strict.DIALECT and strict.clang() is not None:
                strict.check(text)
            unit = Unit(text, self.engine)
            self._units |= {launch.name: unit for launch in new}
        return self._units[name]

    def _run_in_every_order(
        self, unit: Unit, name: str, buffers: Mapping[int, Buffer], grid: Size, block: Size
    ) -> None:
        written = [b for b in buffers.values() if b.writable and b.num_bytes]
        memory = [view(b.begin, (b.num_bytes,), (1,), np.dtype(np.uint8)) for b in written]
        before = [each.copy() for each in memory]
        first: list[Array] = []
        for order, checked in (*[(order, False) for order in ORDERS], ("forward", True)):
            for each, kept in zip(memory, before, strict=True):
                each[...] = kept
            unit.run(name, buffers, grid, block, order, checked)
            first = first or [each.copy() for each in memory]
            same = all(np.array_equal(each, other) for each, other in zip(memory, first, strict=True))
            assert same, f"{name}: the order {order} shows\n{self.launches[name].source}"


class Printers:
    """The printers of a device, which note what they print."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels, self._own = kernels, kernels.printer
        self.dialect = kernels.printer.dialect
        self.workspace_bound = kernels.printer.workspace_bound
        self._workspaces: tuple[int, ...] = ()

    def workspace_bytes(self, step: Step) -> tuple[int, ...]:
        """Asked before a step is printed, sometimes for a step that takes more."""
        self._workspaces = self._own.workspace_bytes(step)
        return self._workspaces

    def _operands(self, step: Step) -> dict[Operand, Span]:
        pairs = zip((*step.node.inputs, *step.node.outputs), (*step.inputs, *step.outputs), strict=True)
        operands: list[Operand] = [("input", i) for i in range(len(step.inputs))]
        operands += [("output", i) for i in range(len(step.outputs))]
        return {
            operand: _span(self.dialect, value.type, layout.strides, operand[0])
            for operand, (value, layout) in zip(operands, pairs, strict=True)
        }

    def print_step(self, step: Step) -> tuple[Launch, ...]:
        launches = self._own.print_step(step)
        self._kernels.note(launches, FLAG | self._operands(step) | _workspaces(self._workspaces))
        return launches

    def print_copy(self, copy: Copy) -> tuple[Launch, ...]:
        launches = self._own.print_copy(copy)
        source, target = (
            _span(self.dialect, copy.type, layout.strides, role)
            for layout, role in ((copy.source, "input"), (copy.target, "output"))
        )
        self._kernels.note(launches, {("input", 0): source, ("output", 0): target})
        return launches

    def print_group(self, group: Group) -> Launch:
        launch = self._own.print_group(group)
        places = [*[(x, "input") for x in group.reads], *[(x, "output") for x in group.writes]]
        spans = [_span(self.dialect, x.type, x.layout.strides, role) for x, role in places]
        self._kernels.note([launch], dict(zip(launch.operands, spans, strict=True)))
        return launch

    def print_rows(
        self, program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> tuple[Launch, ...]:
        launches = self._own.print_rows(program, inputs, outputs)
        known = {x.operand: _span(self.dialect, x.type, x.strides, x.operand[0]) for x in (*inputs, *outputs)}
        self._kernels.note(launches, FLAG | known | _workspaces(workspace_bytes(self.dialect, program)))
        return launches

    def print_attention(self, step: Step) -> tuple[Launch, ...]:
        launches = self._own.print_attention(step)
        self._kernels.note(launches, self._operands(step) | _workspaces(attention.workspace_bytes(step.node)))
        return launches

    def print_leaves(self, node: Node, packs: bool, num_buffers: int = 1) -> tuple[Launch, ...]:
        launches = self._own.print_leaves(node, packs, num_buffers)
        self._kernels.note(launches, None)
        return launches

    def module_source(self, launches: Iterable[Launch]) -> str:
        """What a session compiles: names alone. Kernels of no printer here are noted from it."""
        found = list(launches)
        self._kernels.note([launch for launch in found if launch.name not in self._kernels.launches], None)
        return " ".join(f" {launch.name}(" for launch in found)
