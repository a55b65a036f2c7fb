"""From the plan of a phase to what a device is asked for: kernels and copies. Pure; no address yet.

A device adds actions of its own, such as calls of a library. Buffers are those of the plan, and three of the device's:
`workspace` (of one step at a time), `outbox` (flags and results of one call), `halt`.

Flow: a device's `lowering` builds on this; its `session` binds actions to memory, its `report` counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from sexpgpu.backend.kernels import copies, leaves
from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.fusion import Group, group_of
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.launch import Operand as Role
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.rows import Program, program_of, workspace_bytes
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.program import FEED
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import Layout, Strides, contiguous, is_contiguous
from sexpgpu.plan.phase import Copy, PhasePlan, Step
from sexpgpu.plan.regions import LEAVES, MAPS, PRODUCT, ROWS, SCAN, SUM

WORKSPACE, OUTBOX, HALT = "workspace", "outbox", "halt"
BASE = "base:"
"""Begins the name of a whole buffer of the device, which tables tell of by its number."""
SLACK = 2
"""Workspaces are aligned more widely here than their printers count."""
DECISION_BYTES = 64
"""At the start of an outbox: whether the call's commits were made."""


class Printers(Protocol):
    """`printer.Printer`, or what stands in for it in a test."""

    @property
    def dialect(self) -> Dialect:
        """What it prints."""
        ...

    def print_step(self, step: Step) -> tuple[Launch, ...]:
        """The kernels of a step."""
        ...

    def print_copy(self, copy: Copy) -> tuple[Launch, ...]:
        """The kernels of a copy: operand `input` 0 to `output` 0."""
        ...

    def print_group(self, group: Group) -> Launch:
        """The kernel of a region of elementwise work."""
        ...

    def print_rows(
        self, program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> tuple[Launch, ...]:
        """The kernels of a row program."""
        ...

    def print_attention(self, step: Step) -> tuple[Launch, ...]:
        """The kernels of a composite of attention, where the dialect has them."""
        ...

    def print_leaves(self, node: Node, packs: bool, num_buffers: int = 1) -> tuple[Launch, ...]:
        """The kernels of leaves. packs: whether all begin at multiples of 16 bytes. num_buffers: see `Tools`."""
        ...

    def workspace_bytes(self, step: Step) -> tuple[int, ...]:
        """What the kernels of a step need beside its inputs and outputs."""
        ...

    def workspace_bound(self, node: Node) -> int:
        """The most that they need, whatever the layouts."""
        ...

    def module_source(self, launches: Iterable[Launch]) -> str:
        """One text to compile for many kernels."""
        ...


class Action:
    """Something that a device is asked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a buffer."""

    buffer: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Numbers of 64 bits in the device's memory, written when the plan is opened: places as `tables` has them, and
    counts."""

    rows: tuple[tuple[Place | int, ...], ...]

    @property
    def num_bytes(self) -> int:
        return 8 * sum([len(row) for row in self.rows])


@dataclass(frozen=True, slots=True)
class Kernel(Action):
    """A launch, and what each of its operands points at; None is a null pointer."""

    launch: Launch
    operands: tuple[Place | Table | None, ...]


@dataclass(frozen=True, slots=True)
class Move(Action):
    """Bytes from one place to another."""

    source: Place
    target: Place
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Fill(Action):
    """Bytes set to one value."""

    target: Place
    byte: int
    num_bytes: int


class Tools(Protocol):
    """What a phase is lowered with."""

    @property
    def printers(self) -> Printers:
        """Kernels of all kinds of work."""
        ...

    @property
    def num_buffers(self) -> int:
        """How many buffers of the device tables may tell of, where addresses are no numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """A result in the outbox."""

    type: TensorType
    offset_bytes: int


@dataclass(frozen=True)
class Lowered:
    """A phase as actions.

    kinds: of each action, a word for reports and timings; labels: what it is made of; steps: the step that it is a part
    of, None at the edges of a call. flags: the node behind each fault record. results: where they lie in the outbox.
    feeds: where each lies in the inbox. apply: what to run where the decision holds.
    """

    name: str
    actions: tuple[Action, ...]
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    steps: tuple[Step | None, ...]
    flags: tuple[Node, ...]
    results: Mapping[str, Result]
    feeds: Mapping[str, tuple[TensorType, int]]
    outbox_bytes: int
    inbox_bytes: int
    workspace_bytes: int
    guard: str | None
    apply: Lowered | None = None

    @property
    def passes(self) -> tuple[Lowered, ...]:
        """This, and what runs where the decision holds."""
        return (self,) if self.apply is None else (self, self.apply)

    @property
    def may_fault(self) -> bool:
        """Whether a call can report a fault."""
        return bool(self.flags)


def partial_workspace(node: Node, printers: Printers) -> int:
    """What a step will need at most, as far as that can be told before its layouts are known."""
    kind = kind_of(node)
    program = program_of(node.bodies[0]) if kind == ROWS else None
    if program is not None:
        return sum(workspace_bytes(printers.dialect, program))
    if kind == LEAVES:
        return sum(leaves.partial_bytes(printers.dialect, node))
    return 0 if kind == MAPS else SLACK * aligned(printers.workspace_bound(leader(node)))


def kind_of(node: Node) -> str:
    """What kind of region a node is, or would be; empty where it is none."""
    if node.op == "region":
        return str(node.attrs["kind"])
    return ROWS if node.op == "composite" else ""


def leader(node: Node) -> Node:
    """The node of a region that is no elementwise work; a node that is no region leads itself."""
    if kind_of(node) not in (PRODUCT, SUM):
        return node
    (found,) = [member for member in node.bodies[0].nodes if OPS[member.op].work not in (Work.INPUT, Work.MAP)]
    return found


def inbox_of(plan: PhasePlan, dialect: Dialect) -> tuple[dict[str, tuple[TensorType, int]], int]:
    """Where each argument of a phase lies in the inbox, and how long that is."""
    feeds, offset = {}, 0
    for name, type in plan.phase.feeds.items():
        feeds[name] = (type, offset)
        offset += aligned(type.size * dialect.item_bytes(type.dtype))
    return feeds, offset


@dataclass(slots=True)
class Workspace:
    """Ranges of the workspace that one step takes."""

    used: int = 0

    def take(self, num_bytes: int) -> Place:
        """The next bytes of it."""
        place = Place(WORKSPACE, self.used)
        self.used += aligned(num_bytes)
        return place


@dataclass(slots=True)
class Operand:
    """Where a value is, or is copied to."""

    type: TensorType
    place: Place
    strides: Strides

    @property
    def layout(self) -> Layout:
        """The layout that this is."""
        return Layout(self.place.buffer, self.place.offset_bytes, self.strides)


@dataclass(frozen=True, slots=True)
class Printing:
    """Tools of a device without libraries."""

    printers: Printers
    num_buffers: int = 1


@dataclass
class Lowering:
    """The tables of one phase while it is lowered; a device overrides what it does in its own way."""

    plan: PhasePlan
    tools: Tools
    feeds: Mapping[str, tuple[TensorType, int]]
    inbox_bytes: int
    actions: list[Action] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    steps: list[Step | None] = field(default_factory=list)
    label: str = ""
    step: Step | None = None
    flags: list[Node] = field(default_factory=list)
    workspace_bytes: int = 0

    def lower(self) -> Lowered:
        """The actions of the phase, its results gathered in the outbox, its commits decided and made."""
        plan = self.plan
        for step in plan.steps:
            self._step(step)
        self.label, self.step = "end of the call", None
        for each in plan.saves:
            self._copy(each, "save")
        results, outbox_bytes = self._gather()
        self._finish(results)
        apply = None
        if plan.apply is not None:
            # Both passes find the feeds where the first has them.
            apply = type(self)(plan.apply, self.tools, self.feeds, self.inbox_bytes).lower()
        records = len(self.flags) * FLAG_BYTES
        reset = [Fill(Place(OUTBOX, DECISION_BYTES), 0, records)] if records else []
        return Lowered(
            name=plan.phase.name,
            actions=(*reset, *self.actions),
            kinds=(*["flags" for _ in reset], *self.kinds),
            labels=(*["" for _ in reset], *self.labels),
            steps=(*[None for _ in reset], *self.steps),
            flags=tuple(self.flags),
            results=results,
            feeds=self.feeds,
            outbox_bytes=outbox_bytes,
            inbox_bytes=self.inbox_bytes,
            workspace_bytes=max(self.workspace_bytes, apply.workspace_bytes if apply else 0),
            guard=plan.phase.guard,
            apply=apply,
        )

    def add(self, kind: str, action: Action) -> None:
        """The next action. kind: a word for reports and timings."""
        self.actions.append(action)
        self.kinds.append(kind)
        self.labels.append(self.label)
        self.steps.append(self.step)

    # Steps.

    def _step(self, step: Step) -> None:
        node = step.node
        if not any(type.size for type in node.types):
            return
        self.label, self.step = _label(node), step
        workspace = Workspace()
        kind = kind_of(node)
        if self.own(step, workspace):
            pass
        elif kind == ROWS and (program := program_of(node.bodies[0])) is not None:
            self._rows(step, program, workspace)
        elif kind == MAPS:
            group = group_of(step)
            places = tuple([place_of(layout) for layout in group.places])
            self.add("maps", Kernel(self.tools.printers.print_group(group), places))
        elif kind == LEAVES:
            self._leaves(step, workspace)
        elif kind == SUM:
            self._sum(step, workspace)
        elif node.op == "concat" and all(value.type.size == 1 for value in node.inputs):
            self._join(step)
        else:
            self.single(step, workspace, SCAN if kind == SCAN else "")
        self.workspace_bytes = max(self.workspace_bytes, workspace.used)

    def own(self, step: Step, workspace: Workspace) -> bool:
        """Whether the device has added actions of its own for a step."""
        return False

    def single(self, step: Step, workspace: Workspace, kind: str = "") -> None:
        """A step by its own kernels."""
        for kernel in self._kernels(step, workspace):
            self.add(kind or OPS[step.node.op].work.value, kernel)

    def _bases(self) -> dict[Role, Place | Table | None]:
        """The operands that say where the buffers of a table begin."""
        return {("base", i): Place(f"{BASE}{i}") for i in range(self.tools.num_buffers)}

    def launch(self, kind: str, launch: Launch, known: Mapping[Role, Place | Table | None]) -> None:
        """A kernel as the next action. known: what its operands point at."""
        self.add(kind, Kernel(launch, tuple([known[operand] for operand in launch.operands])))

    def _leaves(self, step: Step, workspace: Workspace) -> None:
        """Elementwise work on many tensors; they are told of in a table."""
        dialect = self.tools.printers.dialect
        rows: list[tuple[Place | int, ...]] = []
        starts = leaves.first_blocks(dialect, step.node)
        for number, (body, read, made) in enumerate(shares(step.node)):
            places = [place_of(layout) for layout in (*step.inputs[read], *step.outputs[made])]
            rows.append((starts[number], leaves.num_elements(body), *places))
        values = zip((*step.node.inputs, *step.node.outputs), (*step.inputs, *step.outputs), strict=True)
        packs = all(self.offset(place_of(layout)) % 16 == 0 for value, layout in values if value.rank)
        known = {**self._bases(), ("input", 0): Table(tuple(rows))}
        for r, num_bytes in enumerate(leaves.partial_bytes(dialect, step.node)):
            known["workspace", r] = workspace.take(num_bytes)
        for launch in self.tools.printers.print_leaves(step.node, packs, self.tools.num_buffers):
            self.launch("leaves", launch, known)

    def _join(self, step: Step) -> None:
        """Single elements side by side."""
        places = [(place_of(layout),) for layout in step.inputs]
        dtype = step.node.types[0].dtype
        launch = copies.join(self.tools.printers.dialect, len(places), dtype, self.tools.num_buffers)
        known = {**self._bases(), ("input", 0): Table(tuple(places)), ("output", 0): place_of(step.outputs[0])}
        self.launch("move", launch, known)

    def _sum(self, step: Step, workspace: Workspace) -> None:
        """A sum of what is widened reads bf16 as it lies; its workspaces are those of the sum of f32."""
        wide = Step(leader(step.node), step.inputs, step.outputs)
        for kernel in self._kernels(narrow_sum(step), workspace, wide):
            self.add("reduce", kernel)

    def _kernels(self, step: Step, workspace: Workspace, sized: Step | None = None) -> list[Kernel]:
        """The kernels of a step. sized: the step whose workspaces they take, if that is another."""
        places = {("input", i): place_of(layout) for i, layout in enumerate(step.inputs)}
        places |= {("output", i): place_of(layout) for i, layout in enumerate(step.outputs)}
        for i, num_bytes in enumerate(self.tools.printers.workspace_bytes(sized or step)):
            places["workspace", i] = workspace.take(num_bytes)
        launches = self.tools.printers.print_step(step)
        flag_numbers = sorted({number for launch in launches for kind, number in launch.operands if kind == "flag"})
        for number in flag_numbers:
            places["flag", number] = self._flag(step.node)
        return [Kernel(launch, tuple([places[operand] for operand in launch.operands])) for launch in launches]

    # Row programs.

    def _rows(self, step: Step, program: Program, workspace: Workspace) -> None:
        dialect = self.tools.printers.dialect
        places = [workspace.take(num_bytes) for num_bytes in workspace_bytes(dialect, program)]
        inputs = zip(step.node.inputs, step.inputs, strict=True)
        outputs = zip(step.node.types, step.outputs, strict=True)
        taken = [Argument(dialect, ("input", i), value.type, layout) for i, (value, layout) in enumerate(inputs)]
        made = [Argument(dialect, ("output", i), type, layout) for i, (type, layout) in enumerate(outputs)]
        launches = self.tools.printers.print_rows(program, taken, made)
        known: dict[Role, Place] = {x.operand: place_of(x.layout) for x in (*taken, *made)}
        known |= {("workspace", i): place for i, place in enumerate(places)}
        if program.picks:
            known["flag", 0] = self._flag(program.picks[0])
        for launch in launches:
            self.add("rows", Kernel(launch, tuple([known[operand] for operand in launch.operands])))

    def _flag(self, node: Node) -> Place:
        """The next fault record, which is that of `node`."""
        self.flags.append(node)
        return Place(OUTBOX, DECISION_BYTES + (len(self.flags) - 1) * FLAG_BYTES)

    # Memory.

    def num_bytes(self, type: TensorType) -> int:
        """Of a tensor in memory."""
        return type.size * self.tools.printers.dialect.item_bytes(type.dtype)

    def offset(self, place: Place) -> int:
        """From where its buffer begins."""
        if place.buffer.startswith(FEED):
            return place.offset_bytes + self.feeds[place.buffer.removeprefix(FEED)][1]
        return place.offset_bytes

    def convert(self, kind: str, source: Operand, target: Operand) -> None:
        """Kernels that copy a value to another layout, or cast it on the way."""
        if source is target:
            return
        if source.type.dtype == target.type.dtype:
            launches = self.tools.printers.print_copy(Copy(source.type, source.layout, target.layout))
        else:
            cast = Step(_cast(source.type, target.type), (source.layout,), (target.layout,))
            launches = self.tools.printers.print_step(cast)
        for launch in launches:
            places = {("input", 0): source.place, ("output", 0): target.place}
            self.add(kind, Kernel(launch, tuple([places[operand] for operand in launch.operands])))

    # The end of a call.

    def _copy(self, each: Copy, kind: str) -> None:
        if not each.type.size:
            return
        source, target = operand_of(each.type, each.source), operand_of(each.type, each.target)
        if is_contiguous(each.type.shape, source.strides) and is_contiguous(each.type.shape, target.strides):
            self.move(kind, source, target)
        else:
            self.convert(kind, source, target)

    def move(self, kind: str, source: Operand, target: Operand) -> None:
        """A copy of a dense range."""
        self.add(kind, Move(source.place, target.place, self.num_bytes(source.type)))

    def _gather(self) -> tuple[dict[str, Result], int]:
        offset = DECISION_BYTES + aligned(len(self.flags) * FLAG_BYTES) * bool(self.flags)
        results = {}
        for name, (type, layout) in self.plan.results.items():
            results[name] = Result(type, offset)
            self._copy(Copy(type, layout, Layout(OUTBOX, offset, contiguous(type.shape))), "result")
            offset += aligned(self.num_bytes(type))
        return results, offset

    def _finish(self, results: Mapping[str, Result]) -> None:
        """The decision, and the commits that hang on it."""
        guard, dialect = self.plan.phase.guard, self.tools.printers.dialect
        decision: Place | None = None
        if guard is not None or self.flags:
            held = Place(OUTBOX, results[guard].offset_bytes) if guard is not None else None
            decision = Place(OUTBOX, 0)
            told: dict[Role, Place | None] = {
                ("input", 0): held,
                ("input", 1): Place(OUTBOX, DECISION_BYTES),
                ("output", 0): decision,
                ("output", 1): Place(HALT),
            }
            self.launch("decide", copies.decide(dialect, len(self.flags), guard is not None), told)
        # Unguarded commits are made whatever was met.
        decision = decision if guard is not None else None
        dense: list[tuple[Place, Place, int]] = []
        for each in self.plan.commits:
            source = place_of(each.source)
            if not each.type.size:
                continue
            if is_contiguous(each.type.shape, each.source.strides) and source.offset_bytes % 16 == 0:
                dense.append((source, place_of(each.target), self.num_bytes(each.type)))
            else:
                self._commit_window(each, decision)
        if dense:
            launch = copies.commit(dialect, len(dense), decision is not None, self.tools.num_buffers)
            known = {**self._bases(), ("input", 0): Table(tuple(dense)), ("input", 1): decision}
            self.launch("commit", launch, known)

    def _commit_window(self, each: Copy, decision: Place | None) -> None:
        """A proposal that is a window of something."""
        strides = each.source.strides, each.target.strides
        launch = copies.commit_window(self.tools.printers.dialect, each.type, *strides, decision is not None)
        known: dict[Role, Place | None] = {("input", 0): place_of(each.source), ("input", 1): decision}
        known["output", 0] = place_of(each.target)
        self.launch("commit", launch, known)


def _label(node: Node) -> str:
    """A node's operation and types, for timings."""
    name = node.attrs["spec"] if node.op == "product" else node.attrs.get("name", node.op)
    return f"{name} {' '.join([str(v.type) for v in node.inputs])} -> {node.types[0]}"


def place_of(layout: Layout) -> Place:
    """Where a layout begins."""
    return Place(layout.buffer, layout.offset_bytes)


def operand_of(type: TensorType, layout: Layout) -> Operand:
    """A value where it lies."""
    return Operand(type, place_of(layout), layout.strides)


@lru_cache(maxsize=4096)
def _cast(source: TensorType, target: TensorType) -> Node:
    """A node that stands for a cast which no graph has."""
    b = Builder()
    return b.cast(b.input("x", source), target.dtype).node


def narrow_sum(step: Step) -> Step:
    """The sum of a region as a step that reads bf16: states and the result are f32, as they are of the cast."""
    led = leader(step.node)
    node = Node(led.id, led.op, step.node.inputs, led.attrs, led.types, (), step.node.origin)
    return Step(node, step.inputs, step.outputs)
