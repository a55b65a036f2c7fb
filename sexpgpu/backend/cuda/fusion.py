"""Elementwise steps that follow one another as one kernel: what one makes and the next reads stays in registers.

Flow: `lowering` asks for the longest group that begins at a step. A value is written only if it outlives the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sexpgpu.backend.kernels.dialects import CUDA
from sexpgpu.backend.kernels.flags import flagged
from sexpgpu.backend.kernels.launch import BLOCK, MULTIPROCESSORS, Launch, kernel
from sexpgpu.backend.kernels.nest import Nest, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.layout import ARENA, Layout, extent
from sexpgpu.plan.phase import Step

MAX_STEPS = 48
MAX_HOISTED = 4
"""Steps of other shapes that a group may reach over: a bias that is cast, a mean that is scaled."""
MAX_OPERANDS = 20
"""Of a group, read or written: enough for an optimizer's rule, few enough for the registers of a thread."""
MAX_HELD_BYTES = 96
"""What one thread reads before it computes; more threads in flight beat more bytes in one."""

Span = tuple[str, int, int]


def overlap(one: Span, other: Span) -> bool:
    """Whether two ranges share a byte."""
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


@dataclass(frozen=True, slots=True)
class Value:
    """A value in memory: where it lies, its type, and the bytes between which that is."""

    layout: Layout
    type: TensorType
    span: Span = field(init=False, compare=False)

    def __post_init__(self) -> None:
        low, high = extent(self.type.shape, self.layout.strides)
        item, start = ITEM_BYTES[self.type.dtype], self.layout.offset_bytes
        object.__setattr__(self, "span", (self.layout.buffer, start + low * item, start + (high + 1) * item))


def reads_of(step: Step) -> list[Value]:
    """What a step reads."""
    return [Value(layout, v.type) for layout, v in zip(step.inputs, step.node.inputs, strict=True)]


def value_of(step: Step) -> Value:
    """What a step of one output makes."""
    return Value(step.outputs[0], step.node.types[0])


@dataclass(slots=True)
class Group:
    """Steps as one kernel.

    hoisted: steps between them, to run before. reads, writes: values and the names of their registers. lines: node,
    names of its operands, name of its value. dies: ranges of the arena that hold nothing once all of it has run.
    num_steps: how many steps it stands for, the hoisted ones among them.
    """

    shape: tuple[int, ...]
    hoisted: tuple[Step, ...] = ()
    reads: dict[Value, str] = field(default_factory=dict)
    lines: list[tuple[Node, tuple[str, ...], str]] = field(default_factory=list)
    writes: dict[Value, str] = field(default_factory=dict)
    dies: tuple[tuple[int, int], ...] = ()
    num_steps: int = 0

    @property
    def places(self) -> tuple[Layout, ...]:
        """What the operands of the kernel are: all that is read, then all that is written."""
        return tuple([value.layout for value in (*self.reads, *self.writes)])


def fusible(step: Step) -> bool:
    """Whether a step may be part of a group."""
    node = step.node
    if OPS[node.op].work is not Work.MAP or flagged(node) or not node.types[0].size:
        return False
    return all(value.shape == node.types[0].shape for value in node.inputs)


def longest_group(steps: Sequence[Step], position: int, at_least: int = 2) -> Group | None:
    """The longest group that begins at `position`; None if it has fewer steps than `at_least`."""
    shape = steps[position].node.types[0].shape
    members: list[Step] = []
    hoisted: list[Step] = []
    ends: list[tuple[int, int]] = []
    for step in steps[position : position + MAX_STEPS]:
        if not fusible(step):
            break
        if step.node.types[0].shape == shape:
            members.append(step)
            ends.append((len(members), len(hoisted)))
        elif len(hoisted) < MAX_HOISTED and _may_hoist(step, members):
            hoisted.append(step)
        else:
            break
    for num_members, num_hoisted in reversed(ends[at_least - 1 :]):
        group = _group(members[:num_members], shape, tuple(hoisted[:num_hoisted]))
        if group is not None:
            return group
    return None


def _may_hoist(step: Step, over: Sequence[Step]) -> bool:
    """Whether `step` may run before the steps `over`: it reads nothing of theirs, and writes where they do nothing."""
    own, made = reads_of(step), value_of(step)
    for other in over:
        written, read = value_of(other), reads_of(other)
        if any(overlap(made.span, each.span) for each in (written, *read)):
            return False
        if any(overlap(each.span, written.span) for each in own):
            return False
    return True


def _group(steps: Sequence[Step], shape: tuple[int, ...], hoisted: tuple[Step, ...]) -> Group | None:
    """These steps as a group, if no thread then reads what another has written."""
    group = Group(shape, hoisted, num_steps=len(steps) + len(hoisted))
    known: dict[Value, str] = {}
    written: list[Span] = []
    for step in steps:
        names = []
        for value in reads_of(step):
            if value not in known:
                if any(overlap(value.span, other) for other in written):
                    return None
                known[value] = group.reads[value] = f"r{len(group.reads)}"
            names.append(known[value])
        made = value_of(step)
        for table in (known, group.writes):
            for other in [other for other in table if overlap(other.span, made.span)]:
                del table[other]
        known[made] = group.writes[made] = f"v{len(group.lines)}"
        written.append(made.span)
        group.lines.append((step.node, tuple(names), known[made]))
        group.dies += step.dies
        for start, num_bytes in step.dies:
            dead = (ARENA, start, start + num_bytes)
            for value in [value for value in group.writes if _within(value.span, dead)]:
                del group.writes[value]
    return group if _is_safe(group) else None


def _is_safe(group: Group) -> bool:
    """Whether the kernel has few enough operands, and no thread overwrites what another is still to read."""
    if len(group.reads) + len(group.writes) > MAX_OPERANDS:
        return False
    return all(_in_step(read, write) for read in group.reads for write in group.writes)


def narrowed(group: Group, made: Value, layout: Layout) -> Group | None:
    """The group as if `made`, an f32 that it reads, lay at `layout` as bf16 already.

    None unless all that the group does with it is to cast it to bf16, and nothing reads it later.
    """
    name = group.reads.get(made)
    users = [line for line in group.lines if name in line[1]]
    casts = {line[2] for line in users if line[0].op == "cast" and line[0].types[0].dtype == "bf16"}
    dies = any(_within(made.span, (ARENA, start, start + num_bytes)) for start, num_bytes in group.dies)
    if name is None or len(casts) != len(users) or not dies:
        return None
    renamed = {cast: name for cast in casts}
    narrow = Value(layout, made.type.with_dtype("bf16"))
    changed = replace(
        group,
        reads={narrow if value == made else value: register for value, register in group.reads.items()},
        lines=[
            (node, tuple([renamed.get(each, each) for each in names]), result)
            for node, names, result in group.lines
            if result not in casts
        ],
        writes={value: renamed.get(register, register) for value, register in group.writes.items()},
    )
    return changed if _is_safe(changed) else None


def _within(one: Span, other: Span) -> bool:
    return one[0] == other[0] and other[1] <= one[1] and one[2] <= other[2]


def _in_step(read: Value, write: Value) -> bool:
    """Whether a thread that writes an element overwrites no other element that is still to be read."""
    same = read.layout == write.layout and ITEM_BYTES[read.type.dtype] == ITEM_BYTES[write.type.dtype]
    return same or not overlap(read.span, write.span)


def print_group(group: Group) -> Launch:
    """The kernel of a group; its operands are `input` 0, 1, … for the reads, `output` 0, 1, … for the writes."""
    inputs = {f"x{i}": Argument(("input", i), v.type, v.layout) for i, v in enumerate(group.reads)}
    outputs = {f"y{i}": Argument(("output", i), v.type, v.layout) for i, v in enumerate(group.writes)}
    operands = inputs | outputs
    whole = Nest(group.shape, {name: x.strides for name, x in operands.items()})
    items = {name: x.item_bytes for name, x in operands.items()}
    pack = whole.packs(items, {name: x.aligned for name, x in operands.items()}, list(outputs))
    nest = whole.widen(pack)
    rest = whole.count - nest.count * pack
    held = sum([pack * x.item_bytes for name, x in inputs.items() if whole.inner(name) == 1])
    busy = nest.count >= MULTIPROCESSORS * BLOCK * 16
    runs = max(1, min(4, MAX_HELD_BYTES // max(1, held))) if busy else 1
    number, types = unsigned(nest.wide), {name: CUDA.storage[x.dtype] for name, x in operands.items()}
    packed = {name for name in operands if pack > 1 and whole.inner(name) == 1}
    start, coordinates = nest.start("i")

    def at(name: str) -> str:
        return f"{name} + ({nest.at(name, coordinates)})"

    declared = [f"{_type(types[n], pack, n in packed)} p_{n}[{runs}];" for n in inputs]
    reads = [
        f"p_{n}[k] = read_pack<{types[n]}, {pack}>({at(n)});" if n in packed else f"p_{n}[k] = *({at(n)});"
        for n in inputs
    ]
    memory = {n: f"p_{n}[k].at[e]" if n in packed else f"p_{n}[k]" for n in inputs}
    targets = {n: f"made_{n}.at[e]" if n in packed else f"*({at(n)})" for n in outputs}
    body = _element(group, inputs, memory, targets)
    if pack > 1:
        made = " ".join([f"Pack<{types[n]}, {pack}> made_{n};" for n in outputs])
        stores = "\n".join([f"write_pack({at(n)}, made_{n});" for n in outputs])
        body = f"{made}\n#pragma unroll\nfor (int e = 0; e < {pack}; ++e) {{\n{body}\n}}\n{stores}"
    index = f"const {number} i = (({number})blockIdx.x * {runs}u + k) * {BLOCK}u + threadIdx.x;"
    loop = f"#pragma unroll\nfor (int k = 0; k < {runs}; ++k) {{\n{index}\nif (i < {nest.count}u) {{\n{start}\n"
    newline = "\n"
    text = f"{newline.join(declared)}\n{loop}{newline.join(reads)}\n}}\n}}\n{loop}{body}\n}}\n"
    if rest:
        # The walk has one axis here, so every operand moves by its only stride.
        each = {n: f"{n}[{whole.at(n, ['j'])}]" for n in operands}
        tail = _element(group, inputs, each, {n: each[n] for n in outputs})
        text += f"else if (i < {nest.count + rest}u) {{ const {number} j = i - {nest.count}u + {nest.count * pack}u;\n"
        text += f"{tail}\n}}\n"
    grid = (-(-(nest.count + rest) // (BLOCK * runs)), 1, 1)
    return kernel("maps", [x.pointer(n, alone=False) for n, x in operands.items()], text + "}", grid)


def _type(spelt: str, pack: int, packed: bool) -> str:
    return f"Pack<{spelt}, {pack}>" if packed else spelt


def _element(group: Group, inputs: dict[str, Argument], memory: dict[str, str], targets: dict[str, str]) -> str:
    """The statements for one element. A bf16 value is rounded where it is made, as it would be in memory."""
    lines = [
        f"const {CUDA.registers[x.dtype]} {register} = {CUDA.load(x.dtype, memory[name])};"
        for (name, x), register in zip(inputs.items(), group.reads.values(), strict=True)
    ]
    for node, names, made in group.lines:
        dtype = node.types[0].dtype
        value = CUDA.expression(node, names)
        if dtype == "bf16":
            value = CUDA.load(dtype, CUDA.store(dtype, value))
        lines.append(f"const {CUDA.registers[dtype]} {made} = {value};")
    for (value_at, made), target in zip(group.writes.items(), targets.values(), strict=True):
        lines.append(f"{target} = {CUDA.store(value_at.type.dtype, made)};")
    return "\n".join(lines)
