"""Scan: running folds along one axis, in the order of the axis, one thread to a row.

Where a row's elements lie side by side, a warp takes 32 rows and moves tiles of 32 x 32 through shared memory.
"""

from __future__ import annotations

from math import prod

from sexpgpu.backend.kernels.launch import Launch, kernel
from sexpgpu.backend.kernels.nest import collapse, is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int

WARP = 32
NARROW_BLOCK = 64
"""Rows that walk side by side: few, because there are seldom many rows."""


def print_scan(node: Node, x: Argument, out: Argument) -> tuple[Launch, ...]:
    """The kernel of a running fold."""
    if out.size == 0:
        return ()
    axis = attr_int(node.attrs, "axis")
    d = out.dialect
    fold = d.fold(node.op, x.dtype)
    others = [a for a in range(len(x.shape)) if a != axis]
    strides = [tuple(s[a] for a in others) for s in (x.strides, out.strides)]
    shape, (x_rows, y_rows) = collapse([x.shape[a] for a in others], strides)
    rows, length = prod(shape), x.shape[axis]
    x_step, y_step = x.strides[axis], out.strides[axis]
    wide = is_wide(rows + NARROW_BLOCK, (x.shape, x.strides), (out.shape, out.strides))
    number, signed, state = unsigned(wide), "i64" if wide else "int", fold.state
    pointers = [x.pointer("x"), out.pointer("y")]
    near = min([abs(s) for s in y_rows if s], default=2**62)
    if abs(y_step) < near and length > 1:
        lines, names = split("row", shape, "k", wide)
        text = f"""{d.shared(x.register, f"tile[{WARP}][{WARP + 1}]")}
const u32 lane = {d.thread}.x;
{state} acc = {fold.identity};
for ({signed} start = 0; start < {length}; start += {WARP}) {{
#pragma unroll
for (u32 k = 0; k < {WARP}; ++k) {{
const {number} row = ({number}){d.block}.x * {WARP}u + k;
if (row < {rows}u && start + (int)lane < {length}) {{
{lines}
tile[k][lane] = {x.load(f"x[{offset([*names, '(start + (int)lane)'], (*x_rows, x_step), wide)}]")};
}}
}}
{d.barrier()}
for (int c = 0; c < {WARP}; ++c) {{
if (start + c < {length}) {{
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
    text = f"""const {number} row = ({number}){d.block}.x * {NARROW_BLOCK}u + {d.thread}.x;
if (row >= {rows}u) return;
{lines}
{state} acc = {fold.identity};
#pragma unroll 16
for ({signed} c = 0; c < {length}; ++c) {{
const {state} next = {fold.lift(x.load(f"x[{offset([*names, 'c'], (*x_rows, x_step), wide)}]"), "c")};
acc = c == 0 ? next : ({state})({fold.combine("acc", "next")});
y[{offset([*names, "c"], (*y_rows, y_step), wide)}] = {out.store(fold.result("acc"))};
}}"""
    return (kernel(d, "scan", pointers, text, (-(-rows // NARROW_BLOCK), 1, 1), (NARROW_BLOCK, 1, 1)),)
