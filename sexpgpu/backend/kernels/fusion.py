"""The kernel of a region of elementwise work: what one line makes and the next reads stays in registers.

Flow: the lowering of a device asks for the group of a step, and prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.launch import BLOCK, MULTIPROCESSORS, Launch, kernel
from sexpgpu.backend.kernels.nest import Nest, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.graph import Value as IrValue
from sexpgpu.ir.ops.rules import attr_ints
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout
from sexpgpu.plan.phase import Step

MAX_HELD_BYTES = 96
"""What one thread reads before it computes; more threads in flight beat more bytes in one."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in memory: where it lies, and its type."""

    layout: Layout
    type: TensorType


@dataclass(slots=True)
class Group:
    """Elementwise work as one kernel.

    reads, writes: values as the kernel walks over them, and the names of their registers. lines: node, names of its
    operands, name of its value.
    """

    shape: tuple[int, ...]
    reads: dict[Value, str] = field(default_factory=dict)
    lines: list[tuple[Node, tuple[str, ...], str]] = field(default_factory=list)
    writes: dict[Value, str] = field(default_factory=dict)

    @property
    def places(self) -> tuple[Layout, ...]:
        """What the operands of the kernel are: all that is read, then all that is written."""
        return tuple([value.layout for value in (*self.reads, *self.writes)])


def group_of(step: Step) -> Group:
    """The kernel of a region of elementwise work."""
    body = step.node.bodies[0]
    return group_for(step, dict(zip(step.outputs, body.output_values, strict=True)))


def group_for(step: Step, wanted: Mapping[Layout, IrValue]) -> Group:
    """The elementwise work of a region that makes some values, by where these go.

    A value of fewer axes is read, or made, at each element; what it is repeated along has a stride of 0.
    """
    layouts = dict(zip(step.node.bodies[0].inputs, step.inputs, strict=True))
    group = Group(step.node.types[0].shape)
    known: dict[tuple[IrValue, tuple[int, ...]], str] = {}

    def named(value: IrValue, axes: tuple[int, ...]) -> str:
        """The register of a value whose axes are these of the walk."""
        key = (value, axes)
        if key not in known:
            node = value.node
            if value in layouts:
                strides = [0] * len(group.shape)
                for axis, stride in zip(axes, layouts[value].strides, strict=True):
                    strides[axis] = stride
                read = Value(replace(layouts[value], strides=tuple(strides)), value.type.with_shape(group.shape))
                known[key] = group.reads.setdefault(read, f"r{len(group.reads)}")
            elif node.op == "broadcast":
                known[key] = named(node.inputs[0], tuple([axes[axis] for axis in attr_ints(node.attrs, "axes")]))
            else:
                operands = tuple([named(x, axes) for x in node.inputs])
                known[key] = f"v{len(group.lines)}"
                group.lines.append((node, operands, known[key]))
        return known[key]

    whole = tuple(range(len(group.shape)))
    for layout, value in wanted.items():
        group.writes[Value(layout, value.type)] = named(value, whole)
    return group


def print_group(dialect: Dialect, group: Group) -> Launch:
    """The kernel of a group; its operands are `input` 0, 1, … for the reads, `output` 0, 1, … for the writes."""
    d = dialect
    inputs = {f"x{i}": Argument(d, ("input", i), v.type, v.layout) for i, v in enumerate(group.reads)}
    outputs = {f"y{i}": Argument(d, ("output", i), v.type, v.layout) for i, v in enumerate(group.writes)}
    operands = inputs | outputs
    whole = Nest(group.shape, {name: x.strides for name, x in operands.items()})
    items = {name: x.item_bytes for name, x in operands.items()}
    pack = whole.packs(items, {name: x.aligned for name, x in operands.items()}, list(outputs))
    nest = whole.widen(pack)
    rest = whole.count - nest.count * pack
    held = sum([pack * x.item_bytes for name, x in inputs.items() if whole.inner(name) == 1])
    busy = nest.count >= MULTIPROCESSORS * BLOCK * 16
    runs = max(1, min(4, MAX_HELD_BYTES // max(1, held))) if busy else 1
    number, types = unsigned(nest.wide), {name: x.stored for name, x in operands.items()}
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
    body = _element(d, group, inputs, memory, targets)
    if pack > 1:
        made = " ".join([f"Pack<{types[n]}, {pack}> made_{n};" for n in outputs])
        stores = "\n".join([f"write_pack({at(n)}, made_{n});" for n in outputs])
        body = f"{made}\n#pragma unroll\nfor (int e = 0; e < {pack}; ++e) {{\n{body}\n}}\n{stores}"
    index = f"const {number} i = (({number}){d.block}.x * {runs}u + k) * {BLOCK}u + {d.thread}.x;"
    loop = f"#pragma unroll\nfor (int k = 0; k < {runs}; ++k) {{\n{index}\nif (i < {nest.count}u) {{\n{start}\n"
    newline = "\n"
    text = f"{newline.join(declared)}\n{loop}{newline.join(reads)}\n}}\n}}\n{loop}{body}\n}}\n"
    if rest:
        # The walk has one axis here, so every operand moves by its only stride.
        each = {n: f"{n}[{whole.at(n, ['j'])}]" for n in operands}
        tail = _element(d, group, inputs, each, {n: each[n] for n in outputs})
        text += f"else if (i < {nest.count + rest}u) {{ const {number} j = i - {nest.count}u + {nest.count * pack}u;\n"
        text += f"{tail}\n}}\n"
    grid = (-(-(nest.count + rest) // (BLOCK * runs)), 1, 1)
    return kernel(d, "maps", [x.pointer(n, alone=False) for n, x in operands.items()], text + "}", grid)


def _type(spelt: str, pack: int, packed: bool) -> str:
    return f"Pack<{spelt}, {pack}>" if packed else spelt


def computed(d: Dialect, group: Group, inputs: Mapping[str, Argument], memory: Mapping[str, str]) -> list[str]:
    """The statements that make one element. A bf16 value is rounded where it is made, as it would be in memory."""
    lines = [
        f"const {x.register} {register} = {x.load(memory[name])};"
        for (name, x), register in zip(inputs.items(), group.reads.values(), strict=True)
    ]
    for node, names, made in group.lines:
        dtype = node.types[0].dtype
        value = d.literal(node) if node.op == "constant" else d.expression(node, names)
        if dtype == "bf16":
            value = d.load(dtype, d.store(dtype, value))
        lines.append(f"const {d.registers[dtype]} {made} = {value};")
    return lines


def _element(
    d: Dialect, group: Group, inputs: Mapping[str, Argument], memory: Mapping[str, str], targets: Mapping[str, str]
) -> str:
    lines = computed(d, group, inputs, memory)
    for (value_at, made), target in zip(group.writes.items(), targets.values(), strict=True):
        lines.append(f"{target} = {d.store(value_at.type.dtype, made)};")
    return "\n".join(lines)
