"""From the plan of a phase to what the device is asked for: kernels, library calls, copies. Pure; no address yet.

Flow: `session` binds these actions to memory; `report` counts them. Buffers are those of the plan, and three of the
device's own: `workspace` (of one step at a time), `outbox` (flags and results of one call), `halt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Protocol

from sexpgpu.backend.cuda import gemm
from sexpgpu.backend.cuda.attention import Attention, attention_of, attention_within, is_attention, workspace_estimate
from sexpgpu.backend.cuda.blas import DATA_TYPES, WORKSPACE_BYTES, alignment
from sexpgpu.backend.cuda.gemm import Gemm
from sexpgpu.backend.kernels import copies, leaves
from sexpgpu.backend.kernels.cuda import CUDA
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.fusion import Group, group_of
from sexpgpu.backend.kernels.launch import Launch, Operand
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.rows import Program, program_of, workspace_bytes
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.contract import flop_sizes
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.program import FEED
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import ARENA, Layout, Strides, contiguous, is_contiguous
from sexpgpu.plan.phase import Copy, PhasePlan, Step
from sexpgpu.plan.regions import ATTENTION, LEAVES, MAPS, PRODUCT, ROWS, SCAN, SUM

WORKSPACE, OUTBOX, HALT = "workspace", "outbox", "halt"
_SLACK = 2
"""Workspaces are aligned more widely here than their printers count."""
DECISION_BYTES = 64
"""At the start of an outbox: whether the call's commits were made."""


class Printers(Protocol):
    """`backend.kernels.cuda`, or what stands in for it in a test."""

    def print_step(self, step: Step) -> tuple[Launch, ...]:
        """The kernels of a step."""
        ...

    def print_copy(self, copy: Copy) -> tuple[Launch, ...]:
        """The kernels of a copy: operand `input` 0 to `output` 0."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a buffer."""

    buffer: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Numbers of 64 bits in the card's memory, written when the plan is opened: addresses of places, and counts."""

    rows: tuple[tuple[Place | int, ...], ...]

    @property
    def num_bytes(self) -> int:
        return 8 * sum([len(row) for row in self.rows])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch, and what each of its operands points at; None is a null pointer."""

    launch: Launch
    operands: tuple[Place | Table | None, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A product by cuBLASLt. x, y, out: where the operands of the notation begin. library: its workspace.

    alignment_bytes: of A, B and C.
    """

    gemm: Gemm
    alignment_bytes: tuple[int, int, int]
    x: Place
    y: Place
    out: Place
    library: Place


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention by cuDNN. operands: in the order of the graph's own tensors."""

    attention: Attention
    operands: tuple[Place, ...]
    library: Place


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes from one place to another."""

    source: Place
    target: Place
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Bytes set to one value."""

    target: Place
    byte: int
    num_bytes: int


Action = Kernel | Product | Attend | Move | Fill


class Tools(Protocol):
    """What a phase is lowered with; `session.Toolbox` is one."""

    @property
    def printers(self) -> Printers:
        """Kernels of steps and copies."""
        ...

    @property
    def print_group(self) -> Callable[[Group], Launch]:
        """The kernel of a region of elementwise work."""
        ...

    @property
    def print_rows(self) -> Callable[[Program, Sequence[Argument], Sequence[Argument]], tuple[Launch, ...]]:
        """The kernels of a row program."""
        ...

    @property
    def print_leaves(self) -> Callable[[Node, bool], tuple[Launch, ...]]:
        """The kernels of leaves; whether they begin at multiples of 16 bytes."""
        ...

    def attend(self, attention: Attention) -> int | None:
        """The workspace that cuDNN takes for a graph; None: it refuses it."""
        ...

    def multiplies(self, gemm: Gemm, alignment_bytes: tuple[int, int, int]) -> bool:
        """Whether cuBLASLt has an algorithm for a product whose A, B and C are aligned so."""
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
    of, None at the edges of a call. flags: the node behind each
    fault record. results: where they lie in the outbox. feeds: where each lies in the inbox. apply: what to run where
    the decision holds.
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
    def may_fault(self) -> bool:
        """Whether a call can report a fault."""
        return bool(self.flags)


def node_workspace(node: Node, printers: Printers) -> int:
    """What a step will need at most, as far as that can be told before its layouts are known."""
    kind = _kind(node)
    if kind == ATTENTION:
        return workspace_estimate(attention_within(_as_placed(node)).node)
    program = program_of(node.bodies[0]) if kind == ROWS else None
    if program is not None:
        return sum(workspace_bytes(CUDA, program))
    if kind == LEAVES:
        return sum(leaves.partial_bytes(CUDA, node))
    inner = _leader(node) if kind in (PRODUCT, SUM) else node
    bound = 0 if kind == MAPS else _SLACK * aligned(printers.workspace_bound(inner))
    return WORKSPACE_BYTES + bound if _is_library_product(inner) else bound


def _kind(node: Node) -> str:
    """What kind of region a node is, or would be; empty where it is none."""
    if node.op == "region":
        return str(node.attrs["kind"])
    if is_attention(node):
        return ATTENTION
    return ROWS if node.op == "composite" else ""


def is_library_call(node: Node) -> bool:
    """Whether a step is a call of a library."""
    return _kind(node) in (ATTENTION, PRODUCT) or _is_library_product(node)


def _leader(node: Node) -> Node:
    """The node of a region that is no elementwise work."""
    (found,) = [member for member in node.bodies[0].nodes if OPS[member.op].work not in (Work.INPUT, Work.MAP)]
    return found


def _as_placed(node: Node) -> Step:
    """A node as a step whose operands are dense."""
    layouts = [[Layout(ARENA, 0, contiguous(v.shape)) for v in side] for side in (node.inputs, node.outputs)]
    return Step(node, tuple(layouts[0]), tuple(layouts[1]))


def lower(plan: PhasePlan, tools: Tools) -> Lowered:
    """The actions of a phase, its results gathered in the outbox, its commits decided and made."""
    feeds, inbox_bytes = _inbox(plan)
    return _Lowering(plan, tools, feeds, inbox_bytes).lower()


def _is_library_product(node: Node) -> bool:
    return OPS[node.op].work is Work.CONTRACT and node.inputs[0].dtype in DATA_TYPES


@dataclass(slots=True)
class _Workspace:
    """Ranges of the workspace that one step takes."""

    used: int = 0

    def take(self, num_bytes: int) -> Place:
        place = Place(WORKSPACE, self.used)
        self.used += aligned(num_bytes)
        return place


@dataclass(slots=True)
class _Operand:
    """Where a value is, or is copied to."""

    type: TensorType
    place: Place
    strides: Strides

    @property
    def layout(self) -> Layout:
        return Layout(self.place.buffer, self.place.offset_bytes, self.strides)


@dataclass
class _Lowering:
    """The tables of one phase while it is lowered."""

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
            apply = _Lowering(plan.apply, self.tools, self.feeds, self.inbox_bytes).lower()
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

    def _add(self, kind: str, action: Action) -> None:
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
        workspace = _Workspace()
        kind = _kind(node)
        if kind == ATTENTION:
            self._attention(attention_within(step), workspace)
        elif kind == ROWS and (program := program_of(node.bodies[0])) is not None:
            self._rows(step, program, workspace)
        elif kind == MAPS:
            group = group_of(step)
            self._add("maps", Kernel(self.tools.print_group(group), tuple([_place(layout) for layout in group.places])))
        elif kind == LEAVES:
            self._leaves(step, workspace)
        elif kind == SUM:
            self._sum(step, workspace)
        elif node.op == "concat" and all(value.type.size == 1 for value in node.inputs):
            self._join(step)
        elif kind == PRODUCT or _is_library_product(node):
            self._product(_narrow_product(step) if kind == PRODUCT else step, workspace)
        else:
            self._single(step, workspace, SCAN if kind == SCAN else "")
        self.workspace_bytes = max(self.workspace_bytes, workspace.used)

    def _single(self, step: Step, workspace: _Workspace, kind: str = "") -> None:
        """A step by its own kernels."""
        for kernel in self._kernels(step, workspace):
            self._add(kind or OPS[step.node.op].work.value, kernel)

    def _leaves(self, step: Step, workspace: _Workspace) -> None:
        """Elementwise work on many tensors; they are told of in a table."""
        rows: list[tuple[Place | int, ...]] = []
        starts = leaves.first_blocks(CUDA, step.node)
        for number, (body, read, made) in enumerate(shares(step.node)):
            places = [_place(layout) for layout in (*step.inputs[read], *step.outputs[made])]
            rows.append((starts[number], leaves.num_elements(body), *places))
        values = zip((*step.node.inputs, *step.node.outputs), (*step.inputs, *step.outputs), strict=True)
        packs = all(self._offset(_place(layout)) % 16 == 0 for value, layout in values if value.rank)
        known: dict[Operand, Place | Table] = {("input", 0): Table(tuple(rows))}
        for r, num_bytes in enumerate(leaves.partial_bytes(CUDA, step.node)):
            known["workspace", r] = workspace.take(num_bytes)
        for launch in self.tools.print_leaves(step.node, packs):
            self._add("leaves", Kernel(launch, tuple([known[operand] for operand in launch.operands])))

    def _join(self, step: Step) -> None:
        """Single elements side by side."""
        places = [(_place(layout),) for layout in step.inputs]
        launch = copies.join(CUDA, len(places), step.node.types[0].dtype)
        self._add("move", Kernel(launch, (Table(tuple(places)), _place(step.outputs[0]))))

    def _sum(self, step: Step, workspace: _Workspace) -> None:
        """A sum of what is widened reads bf16 as it lies; its workspaces are those of the sum of f32."""
        wide = Step(_leader(step.node), step.inputs, step.outputs)
        for kernel in self._kernels(narrow_sum(step), workspace, wide):
            self._add("reduce", kernel)

    def _kernels(self, step: Step, workspace: _Workspace, sized: Step | None = None) -> list[Kernel]:
        """The kernels of a step. sized: the step whose workspaces they take, if that is another."""
        places = {("input", i): _place(layout) for i, layout in enumerate(step.inputs)}
        places |= {("output", i): _place(layout) for i, layout in enumerate(step.outputs)}
        for i, num_bytes in enumerate(self.tools.printers.workspace_bytes(sized or step)):
            places["workspace", i] = workspace.take(num_bytes)
        launches = self.tools.printers.print_step(step)
        flag_numbers = sorted({number for launch in launches for kind, number in launch.operands if kind == "flag"})
        for number in flag_numbers:
            places["flag", number] = self._flag(step.node)
        return [Kernel(launch, tuple([places[operand] for operand in launch.operands])) for launch in launches]

    # Row programs.

    def _rows(self, step: Step, program: Program, workspace: _Workspace) -> None:
        places = [workspace.take(num_bytes) for num_bytes in workspace_bytes(CUDA, program)]
        inputs = zip(step.node.inputs, step.inputs, strict=True)
        outputs = zip(step.node.types, step.outputs, strict=True)
        taken = [Argument(CUDA, ("input", i), value.type, layout) for i, (value, layout) in enumerate(inputs)]
        made = [Argument(CUDA, ("output", i), type, layout) for i, (type, layout) in enumerate(outputs)]
        launches = self.tools.print_rows(program, taken, made)
        known: dict[Operand, Place] = {x.operand: _place(x.layout) for x in (*taken, *made)}
        known |= {("workspace", i): place for i, place in enumerate(places)}
        if program.picks:
            known["flag", 0] = self._flag(program.picks[0])
        for launch in launches:
            self._add("rows", Kernel(launch, tuple([known[operand] for operand in launch.operands])))

    def _flag(self, node: Node) -> Place:
        """The next fault record, which is that of `node`."""
        self.flags.append(node)
        return Place(OUTBOX, DECISION_BYTES + (len(self.flags) - 1) * FLAG_BYTES)

    # Products.

    def _product(self, step: Step, workspace: _Workspace) -> None:
        if not self._multiply(step, workspace):
            self._single(step, workspace, "product kernel")

    def _multiply(self, step: Step, workspace: _Workspace) -> bool:
        """Add a product by the library; False where it has none."""
        x, y = (_operand(v.type, layout) for v, layout in zip(step.node.inputs, step.inputs, strict=True))
        out = _operand(step.node.types[0], step.outputs[0])
        sides = _cheapest_sides(str(step.node.attrs["spec"]), flop_sizes(step.node), x, y, out)
        if sides is None:
            return False
        found, (packed_x, packed_y, packed_out) = sides
        used = workspace.used
        library = workspace.take(WORKSPACE_BYTES)
        packs: list[tuple[_Operand, _Operand]] = []
        operands = []
        for operand, strides in ((x, packed_x), (y, packed_y), (out, packed_out)):
            if strides != operand.strides:
                copied = _Operand(operand.type, workspace.take(_num_bytes(operand.type)), strides)
                packs.append((operand, copied))
                operands.append(copied)
            else:
                operands.append(operand)
        first, second, target = operands
        sizes = self._alignment(found, (first.place, second.place, target.place))
        if not self.tools.multiplies(found, sizes):
            workspace.used = used
            return False
        for source, copied in packs:
            if source is not out:
                self._convert("pack", source, copied)
        self._add("product", Product(found, sizes, first.place, second.place, target.place, library))
        self._convert("pack", target, out)
        return True

    def _alignment(self, found: Gemm, places: tuple[Place, Place, Place]) -> tuple[int, int, int]:
        """What A, B and C are aligned to in every launch; buffers begin at multiples of the most that counts."""
        dtypes = (found.dtype, found.dtype, found.out_dtype)
        x, y, out = (
            min([alignment(self._offset(place) + ITEM_BYTES[dtype] * each[side]) for each in found.offsets])
            for side, (place, dtype) in enumerate(zip(places, dtypes, strict=True))
        )
        return (y, x, out) if found.swapped else (x, y, out)

    def _offset(self, place: Place) -> int:
        if place.buffer.startswith(FEED):
            return place.offset_bytes + self.feeds[place.buffer.removeprefix(FEED)][1]
        return place.offset_bytes

    def _convert(self, kind: str, source: _Operand, target: _Operand) -> None:
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
            self._add(kind, Kernel(launch, tuple([places[operand] for operand in launch.operands])))

    # Attention.

    def _attention(self, step: Step, workspace: _Workspace) -> None:
        """Operands that cuDNN cannot take as they lie, or not in their dtype, go through the workspace."""
        attention = attention_of(step)
        num_bytes = self.tools.attend(attention)
        if num_bytes is None:
            attention = attention_of(step, packed=True)
            num_bytes = self.tools.attend(attention)
        assert num_bytes is not None, (self.plan.phase.name, step.node)
        library = workspace.take(num_bytes)
        values = zip((*step.node.inputs, *step.node.outputs), (*step.inputs, *step.outputs), strict=True)
        own = [_operand(v.type, layout) for v, layout in values]
        taken = []
        for operand, wanted in zip(own, attention.tensors, strict=True):
            same = wanted.dtype == operand.type.dtype and wanted.strides == operand.strides
            taken.append(
                operand
                if same
                else _Operand(
                    operand.type.with_dtype(wanted.dtype),
                    workspace.take(operand.type.size * ITEM_BYTES[wanted.dtype]),
                    wanted.strides,
                )
            )
        num_inputs = len(step.inputs)
        for source, target in zip(own[:num_inputs], taken[:num_inputs], strict=True):
            self._convert("cast", source, target)
        self._add("attention", Attend(attention, tuple([operand.place for operand in taken]), library))
        for target, source in zip(own[num_inputs:], taken[num_inputs:], strict=True):
            self._convert("cast", source, target)

    # The end of a call.

    def _copy(self, each: Copy, kind: str) -> None:
        if not each.type.size:
            return
        source, target = _operand(each.type, each.source), _operand(each.type, each.target)
        if is_contiguous(each.type.shape, source.strides) and is_contiguous(each.type.shape, target.strides):
            self._add(kind, Move(source.place, target.place, _num_bytes(each.type)))
        else:
            self._convert(kind, source, target)

    def _gather(self) -> tuple[dict[str, Result], int]:
        offset = DECISION_BYTES + aligned(len(self.flags) * FLAG_BYTES) * bool(self.flags)
        results = {}
        for name, (type, layout) in self.plan.results.items():
            results[name] = Result(type, offset)
            self._copy(Copy(type, layout, Layout(OUTBOX, offset, contiguous(type.shape))), "result")
            offset += aligned(_num_bytes(type))
        return results, offset

    def _finish(self, results: Mapping[str, Result]) -> None:
        """The decision, and the commits that hang on it."""
        guard = self.plan.phase.guard
        decision = None
        if guard is not None or self.flags:
            held = Place(OUTBOX, results[guard].offset_bytes) if guard is not None else None
            decision = Place(OUTBOX, 0)
            told = (held, Place(OUTBOX, DECISION_BYTES), decision, Place(HALT))
            self._add("decide", Kernel(copies.decide(CUDA, len(self.flags), guard is not None), told))
        dense: list[tuple[Place, Place, int]] = []
        for each in self.plan.commits:
            source = _place(each.source)
            if not each.type.size:
                continue
            if is_contiguous(each.type.shape, each.source.strides) and source.offset_bytes % 16 == 0:
                dense.append((source, _place(each.target), _num_bytes(each.type)))
            else:
                self._commit_window(each, decision if guard is not None else None)
        if dense:
            operands = (Table(tuple(dense)), decision if guard is not None else None)
            self._add("commit", Kernel(copies.commit(CUDA, len(dense), guard is not None), operands))

    def _commit_window(self, each: Copy, decision: Place | None) -> None:
        """A proposal that is a window of something."""
        strides = each.source.strides, each.target.strides
        launch = copies.commit_window(CUDA, each.type, *strides, decision is not None)
        self._add("commit", Kernel(launch, (_place(each.source), _place(each.target), decision)))


def _label(node: Node) -> str:
    """A node's operation and types, for timings."""
    name = node.attrs["spec"] if node.op == "product" else node.attrs.get("name", node.op)
    return f"{name} {' '.join([str(v.type) for v in node.inputs])} -> {node.types[0]}"


def _place(layout: Layout) -> Place:
    return Place(layout.buffer, layout.offset_bytes)


def _operand(type: TensorType, layout: Layout) -> _Operand:
    return _Operand(type, _place(layout), layout.strides)


@lru_cache(maxsize=4096)
def _cast(source: TensorType, target: TensorType) -> Node:
    """A node that stands for a cast which no graph has."""
    b = Builder()
    return b.cast(b.input("x", source), target.dtype).node


def narrow_sum(step: Step) -> Step:
    """The sum of a region as a step that reads bf16: states and the result are f32, as they are of the cast."""
    leader = _leader(step.node)
    node = Node(leader.id, leader.op, step.node.inputs, leader.attrs, leader.types, (), step.node.origin)
    return Step(node, step.inputs, step.outputs)


def _narrow_product(step: Step) -> Step:
    """The product of a region as a step that writes bf16."""
    body, leader = step.node.bodies[0], _leader(step.node)
    layouts = dict(zip(body.inputs, step.inputs, strict=True))
    node = Node(leader.id, leader.op, leader.inputs, leader.attrs, step.node.types, (), step.node.origin)
    return Step(node, tuple([layouts[value] for value in leader.inputs]), step.outputs)


def _num_bytes(type: TensorType) -> int:
    return type.size * ITEM_BYTES[type.dtype]


def _inbox(plan: PhasePlan) -> tuple[dict[str, tuple[TensorType, int]], int]:
    feeds, offset = {}, 0
    for name, type in plan.phase.feeds.items():
        feeds[name] = (type, offset)
        offset += aligned(_num_bytes(type))
    return feeds, offset


def _cheapest_sides(
    spec: str, sizes: dict[str, int], x: _Operand, y: _Operand, out: _Operand
) -> tuple[Gemm, tuple[Strides, Strides, Strides]] | None:
    """The product with as few bytes packed first as its layouts allow; None if it is none that cuBLASLt has."""
    if not sizes or 0 in sizes.values():
        return None
    try:
        dense = gemm.packed(spec, sizes)
    except KeyError:
        return None
    own = (x, y, out)
    subsets = [chosen for count in range(4) for chosen in combinations(range(3), count)]
    subsets.sort(key=lambda chosen: sum([_num_bytes(own[i].type) for i in chosen]))
    for chosen in subsets:
        strides = [dense[i] if i in chosen else own[i].strides for i in range(3)]
        found = gemm.find(spec, sizes, strides[0], strides[1], strides[2], x.type.dtype, out.type.dtype)
        if found is not None:
            return found, (strides[0], strides[1], strides[2])
    return None
