"""Scan: running folds along one axis, in the order of the axis, one thread to a row.

Where a row's elements lie side by side, a warp takes 32 rows and moves tiles of 32 x 32 through shared memory; what a
row came to is carried from tile to tile. A region of a fold with a few additions makes each element where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from sexpgpu.backend.kernels.fusion import computed, group_for
from sexpgpu.backend.kernels.launch import Launch, kernel
from sexpgpu.backend.kernels.nest import collapse, is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.plan.phase import Step

WARP = 32
NARROW_BLOCK = 64
"""Rows that walk side by side: few, because there are seldom many rows."""




def absorbs(node: Node) -> bool:
    """Whether the kernel of a running fold can make its input; see `docs/metal-internals.md`."""
    return node.types[0].dtype == "f32"


Element = Callable[[dict[str, str]], tuple[str, str]]
"""Given where each operand's element is in memory: statements, and the element of the input that they make."""


def print_scan(node: Node, x: Argument, out: Argument) -> tuple[Launch, ...]:
    """The kernel of a running fold."""
    return _print(node, {"x": x}, lambda memory: ("", x.load(memory["x"])), out)


def print_scan_of(step: Step, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernel of a region of a running fold and what makes its input, which no memory holds."""
    (node,) = [member for member in step.node.bodies[0].nodes if OPS[member.op].work is Work.SCAN]
    # Operands are told apart by their numbers, wherever they lie.
    apart = [replace(layout, buffer=str(i)) for i, layout in enumerate(step.inputs)]
    group = group_for(replace(step, inputs=tuple(apart)), {out.layout: node.inputs[0]})
    reads = {}
    for i, value in enumerate(group.reads):
        own = inputs[int(value.layout.buffer)]
        reads[f"x{i}"] = replace(own, type=value.type, layout=replace(own.layout, strides=value.layout.strides))
    (made,) = group.writes.values()

    def element(memory: dict[str, str]) -> tuple[str, str]:
        return "\n".join([*computed(out.dialect, group, reads, memory), ""]), made

    return _print(node, reads, element, out)


def _print(node: Node, reads: Mapping[str, Argument], made: Element, out: Argument) -> tuple[Launch, ...]:
    """The kernel of a running fold over elements that are made of what `reads`, in the shape of the result, holds."""
    if out.size == 0:
        return ()
    axis, dtype = attr_int(node.attrs, "axis"), node.types[0].dtype
    d = out.dialect
    fold, element_type = d.fold(node.op, dtype), d.registers[dtype]
    others = [a for a in range(len(out.shape)) if a != axis]
    strides = [tuple(x.strides[a] for a in others) for x in (*reads.values(), out)]
    shape, (*x_rows, y_rows) = collapse([out.shape[a] for a in others], strides)
    rows, length = prod(shape), out.shape[axis]
    y_step = out.strides[axis]
    wide = is_wide(rows + NARROW_BLOCK, *((x.shape, x.strides) for x in (*reads.values(), out)))
    number, signed, state = unsigned(wide), "i64" if wide else "int", fold.state
    pointers = [*[x.pointer(name) for name, x in reads.items()], out.pointer("y")]

    def read(names: Sequence[str], along: str) -> tuple[str, str]:
        places = {
            name: f"{name}[{offset([*names, along], (*row, x.strides[axis]), wide)}]"
            for (name, x), row in zip(reads.items(), x_rows, strict=True)
        }
        return made(places)

    near = min([abs(s) for s in y_rows if s], default=2**62)
    if abs(y_step) < near and length > 1:
        lines, names = split("row", shape, "k", wide)
        before, value = read(names, "(start + (int)lane)")
        text = f"""{d.shared(element_type, f"tile[{WARP}][{WARP + 1}]")}
const u32 lane = {d.thread}.x;
const bool used = ({number}){d.block}.x * {WARP}u + lane < {rows}u;
{state} acc = {fold.identity};
for ({signed} start = 0; start < {length}; start += {WARP}) {{
#pragma unroll
for (u32 k = 0; k < {WARP}; ++k) {{
const {number} row = ({number}){d.block}.x * {WARP}u + k;
if (row < {rows}u && start + (int)lane < {length}) {{
{lines}
{before}tile[k][lane] = {value};
}}
}}
{d.barrier()}
for (int c = 0; c < {WARP}; ++c) {{
if (used && start + c < {length}) {{
const {state} next = {fold.lift("tile[lane][c]", "c")};
acc = start + c == 0 ? next : ({state})({fold.combine("acc", "next")});
tile[lane][c] = {fold.result("acc")};
}}
}}
{d.barrier()}
#pragma unroll
for (u32 k = 0; k < {WARP}; ++k) {{
const {number} row = ({number}){d.block}.x * {WARP}u + k;
if (row < {rows}u && start + (int)lane < {length}) {{
{lines}
y[{offset([*names, "(start + (int)lane)"], (*y_rows, y_step), wide)}] = {out.store("tile[k][lane]")};
}}
}}
{d.barrier()}
}}"""
        return (kernel(d, "scan", pointers, text, (-(-rows // WARP), 1, 1), (WARP, 1, 1)),)
    lines, names = split("row", shape, "k", wide)
    before, value = read(names, "c")
    text = f"""const {number} row = ({number}){d.block}.x * {NARROW_BLOCK}u + {d.thread}.x;
if (row >= {rows}u) return;
{lines}
{state} acc = {fold.identity};
#pragma unroll 16
for ({signed} c = 0; c < {length}; ++c) {{
{before}const {state} next = {fold.lift(value, "c")};
acc = c == 0 ? next : ({state})({fold.combine("acc", "next")});
y[{offset([*names, "c"], (*y_rows, y_step), wide)}] = {out.store(fold.result("acc"))};
}}"""
    return (kernel(d, "scan", pointers, text, (-(-rows // NARROW_BLOCK), 1, 1), (NARROW_BLOCK, 1, 1)),)
