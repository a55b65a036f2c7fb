"""Contract and Conv: right for every layout and dtype; on a card, what a library takes never comes here.

A product is a tile of 64 x 64 results a block, summed 16 deep through shared memory in the order of the axes; where
warps multiply matrices, each of four warps has a quarter of the tile as 8 x 8 matrices, if the sums are of f32.
Small results, or short sums, take one thread or one warp a result instead. A convolution is one thread a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.launch import BLOCK, Launch, kernel
from sexpgpu.backend.kernels.nest import collapse, is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.contract import letter_sizes, letters
from sexpgpu.ir.ops.convolution import windows
from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.plan.layout import Strides

TILE = 64
DEPTH = 16
EACH = 4
WARP = 32
SHORT_SUM = 32
SIDE = 8
"""Rows and columns of a matrix that a warp multiplies."""
HALF = TILE // 2
MATRIX_BLOCK = 128
PAD = 4
NARROW = 16
"""Rows or columns of a result below which a tile would be mostly empty."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Letters of one kind as collapsed axes, with the strides of x, y and the result over them."""

    shape: tuple[int, ...]
    x: Strides
    y: Strides
    out: Strides

    @property
    def size(self) -> int:
        return prod(self.shape)


def _sum_types(out: Argument) -> tuple[str, str]:
    """Type of a running sum (integers wrap) and of the result."""
    return out.dialect.unsigned[out.dtype], out.register


def print_product(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernel of a contraction."""
    if out.size == 0:
        return ()
    x, y = inputs
    spec = str(node.attrs["spec"])
    groups = letters(spec)
    sizes = letter_sizes(spec, x.shape, y.shape)

    def group(names: str) -> _Group:
        def strides(argument: Argument, side: str) -> Strides:
            return tuple(argument.strides[side.index(c)] if c in side else 0 for c in names)

        every = [strides(x, groups.x), strides(y, groups.y), strides(out, groups.out)]
        shape, merged = collapse([sizes[c] for c in names], every)
        return _Group(shape, *merged)

    batch, rows, columns = group(groups.batch), group(groups.m), group(groups.n)
    summed = group(groups.k + groups.lone_x + groups.lone_y)
    wide = is_wide(out.size + TILE, (x.shape, x.strides), (y.shape, y.strides), (out.shape, out.strides))
    wide = wide or is_wide(summed.size + TILE)
    pointers = [x.pointer("x"), y.pointer("y"), out.pointer("z")]
    block = BLOCK
    if min(rows.size, columns.size) < NARROW or summed.size < NARROW:
        text, grid = _narrow(x, y, out, batch, rows, columns, summed, wide)
    elif out.dialect.has_matrices and _sum_types(out)[0] == "float":
        text, grid = _tiled(x, y, out, batch, rows, columns, summed, wide, by_matrices=True)
        block = MATRIX_BLOCK
    else:
        text, grid = _tiled(x, y, out, batch, rows, columns, summed, wide, by_matrices=False)
    return (kernel(out.dialect, "product", pointers, text, grid, (block, 1, 1)),)


def _narrow(
    x: Argument, y: Argument, out: Argument,
    batch: _Group, rows: _Group, columns: _Group, summed: _Group, wide: bool,
) -> tuple[str, tuple[int, int, int]]:  # fmt: skip
    """One thread a result, or one warp where sums are long and the results few."""
    d, number = out.dialect, unsigned(wide)
    total, result = _sum_types(out)
    every = [batch, rows, columns]
    shape = [size for g in every for size in g.shape]
    lines, names = split("result", shape, "c", wide)
    inner, places = split("k", summed.shape, "k", wide)

    def at(side: str) -> str:
        strides = [s for g in (*every, summed) for s in getattr(g, side)]
        return offset([*names, *places], tuple(strides), wide)

    threads = WARP if summed.size > SHORT_SUM and out.size < 1 << 16 else 1
    fold = ""
    if threads > 1:
        fold = "for (int mask = 16; mask > 0; mask /= 2) sum = sum + shuffle_xor(sum, mask);\nif (lane != 0) return;"
    where = offset(names, tuple(s for g in every for s in g.out), wide)
    text = f"""const {number} t = ({number}){d.block}.x * {BLOCK}u + {d.thread}.x;
const {number} result = t / {threads}u, lane = t % {threads}u;
if (result >= {out.size}u) return;
{lines}
{total} sum = 0;
#pragma unroll 4
for ({number} k = lane; k < {summed.size}u; k += {threads}u) {{
{inner}
sum = sum + ({total}){x.load(f"x[{at('x')}]")} * ({total}){y.load(f"y[{at('y')}]")};
}}
{fold}
z[{where}] = {out.store(f"({result})sum")};"""
    return text, (-(-out.size * threads // BLOCK), 1, 1)


def _tiled(
    x: Argument, y: Argument, out: Argument,
    batch: _Group, rows: _Group, columns: _Group, summed: _Group, wide: bool, by_matrices: bool,
) -> tuple[str, tuple[int, int, int]]:  # fmt: skip
    d, number = out.dialect, unsigned(wide)
    total, _ = _sum_types(out)
    down, across = -(-rows.size // TILE), -(-columns.size // TILE)
    tiles = down * across
    block = MATRIX_BLOCK if by_matrices else BLOCK
    first, places = split(f"({d.block}.x / {tiles}u)", batch.shape, "b", wide)

    def loading(name: str, argument: Argument, side: str, group: _Group, corner: str) -> str:
        """Statements that load a tile of one operand, threads side by side along its nearer axis."""
        strides_sum, strides_own = getattr(summed, side), getattr(group, side)
        near_sum = min([abs(s) for s in strides_sum if s], default=2**62)
        near_own = min([abs(s) for s in strides_own if s], default=2**62)
        by_sum = near_sum < near_own
        spread = f"e % {DEPTH}u, o = e / {DEPTH}u" if by_sum else f"e / {TILE}u, o = e % {TILE}u"
        own_lines, own = split("own", group.shape, "m", wide)
        sum_lines, sums = split("deep", summed.shape, "k", wide)
        at = offset([*own, *sums], (*strides_own, *strides_sum), wide)
        place = "[o][d]" if by_matrices and side == "x" else "[d][o]"
        return f"""#pragma unroll
for (int s = 0; s < {TILE * DEPTH // block}; ++s) {{
const u32 e = {d.thread}.x + s * {block}u, d = {spread};
const {number} deep = start + d, own = {corner} + o;
{total} value = 0;
if (deep < {summed.size}u && own < {group.size}u) {{
{own_lines}
{sum_lines}
value = {argument.load(f"{name}[{at}]")};
}}
tile_{name}{place} = value;
}}"""

    loads = f"""{loading("x", x, "x", rows, "top")}
{loading("y", y, "y", columns, "left")}"""
    text = f"""{first}
x += {offset(places, batch.x, wide)};
y += {offset(places, batch.y, wide)};
z += {offset(places, batch.out, wide)};
const {number} top = ({d.block}.x % {tiles}u / {across}u) * {TILE}u, left = ({d.block}.x % {across}u) * {TILE}u;
"""
    form = _by_matrices if by_matrices else _by_threads
    arrays, rest = form(out, rows, columns, summed, loads, wide)
    return f"{arrays}\n{text}{rest}", (batch.size * tiles, 1, 1)


def _stored(out: Argument, rows: _Group, columns: _Group, value: str, wide: bool) -> str:
    """Statements that write a result at `row` and `column`, if there is such a place."""
    row_lines, row_names = split("row", rows.shape, "m", wide)
    column_lines, column_names = split("column", columns.shape, "n", wide)
    where = offset([*row_names, *column_names], (*rows.out, *columns.out), wide)
    return f"""if (row < {rows.size}u && column < {columns.size}u) {{
{row_lines}
{column_lines}
z[{where}] = {out.store(value)};
}}"""


def _by_threads(
    out: Argument, rows: _Group, columns: _Group, summed: _Group, loads: str, wide: bool
) -> tuple[str, str]:
    """Shared arrays, and the sums of a tile, 4 x 4 of them in each thread."""
    d, number = out.dialect, unsigned(wide)
    total, result = _sum_types(out)
    arrays = d.shared(total, f"tile_x[{DEPTH}][{TILE + 1}]", f"tile_y[{DEPTH}][{TILE + 1}]")
    a_row = TILE // EACH
    return arrays, f"""const u32 v = {d.thread}.x / {a_row}u * {EACH}u, h = {d.thread}.x % {a_row}u * {EACH}u;
{total} sum[{EACH}][{EACH}] = {{}};
for ({number} start = 0; start < {summed.size}u; start += {DEPTH}u) {{
{loads}
{d.barrier()}
#pragma unroll
for (int d = 0; d < {DEPTH}; ++d) {{
{total} a[{EACH}], b[{EACH}];
#pragma unroll
for (int q = 0; q < {EACH}; ++q) {{ a[q] = tile_x[d][v + q]; b[q] = tile_y[d][h + q]; }}
#pragma unroll
for (int p = 0; p < {EACH}; ++p)
#pragma unroll
for (int q = 0; q < {EACH}; ++q) sum[p][q] = sum[p][q] + a[p] * b[q];
}}
{d.barrier()}
}}
#pragma unroll
for (int p = 0; p < {EACH}; ++p)
#pragma unroll
for (int q = 0; q < {EACH}; ++q) {{
const {number} row = top + v + p, column = left + h + q;
{_stored(out, rows, columns, f"({result})sum[p][q]", wide)}
}}"""


def _by_matrices(
    out: Argument, rows: _Group, columns: _Group, summed: _Group, loads: str, wide: bool
) -> tuple[str, str]:
    """Shared arrays, and the sums of a tile, a quarter of it in each warp. Whole matrices that lie in rows are stored
    as they are; others go through a matrix of shared memory, place by place."""
    d, number = out.dialect, unsigned(wide)
    count, warps = HALF // SIDE, MATRIX_BLOCK // WARP
    arrays = d.shared(
        "float", f"tile_x[{TILE}][{DEPTH + PAD}]", f"tile_y[{DEPTH}][{TILE + PAD}]", f"whole[{warps}][{SIDE * SIDE}]"
    )
    lies_in_rows = out.dtype == "f32" and columns.out == (1,) and len(rows.out) == 1 and rows.out[0] > 0
    through = f"""{d.warp_barrier()}
simdgroup_store(sum[p][q], &whole[warp][0], {SIDE});
{d.warp_barrier()}
#pragma unroll
for (int e = 0; e < {SIDE * SIDE // WARP}; ++e) {{
const u32 n = lane + e * {WARP}u;
const {number} row = top + v + p * {SIDE} + n / {SIDE}u, column = left + h + q * {SIDE} + n % {SIDE}u;
{_stored(out, rows, columns, "whole[warp][n]", wide)}
}}"""
    if lies_in_rows:
        place = f"({number})(top + v + p * {SIDE}) * {rows.out[0]}u + left + h + q * {SIDE}"
        through = f"""if (top + {TILE}u <= {rows.size}u && left + {TILE}u <= {columns.size}u) {{
simdgroup_store(sum[p][q], z + {place}, {rows.out[0]});
}} else {{
{through}
}}"""
    return arrays, f"""const u32 lane = {d.thread}.x % {WARP}u, warp = {d.thread}.x / {WARP}u;
const u32 v = warp / 2u * {HALF}u, h = warp % 2u * {HALF}u;
simdgroup_float8x8 sum[{count}][{count}];
#pragma unroll
for (int p = 0; p < {count}; ++p)
#pragma unroll
for (int q = 0; q < {count}; ++q) sum[p][q] = make_filled_simdgroup_matrix<float, {SIDE}, {SIDE}>(0.0f);
for ({number} start = 0; start < {summed.size}u; start += {DEPTH}u) {{
{loads}
{d.barrier()}
#pragma unroll
for (int d = 0; d < {DEPTH}; d += {SIDE}) {{
simdgroup_float8x8 a[{count}], b[{count}];
#pragma unroll
for (int q = 0; q < {count}; ++q) {{
simdgroup_load(a[q], &tile_x[v + q * {SIDE}][d], {DEPTH + PAD});
simdgroup_load(b[q], &tile_y[d][h + q * {SIDE}], {TILE + PAD});
}}
#pragma unroll
for (int p = 0; p < {count}; ++p)
#pragma unroll
for (int q = 0; q < {count}; ++q) simdgroup_multiply_accumulate(sum[p][q], a[p], b[q], sum[p][q]);
}}
{d.barrier()}
}}
#pragma unroll
for (int p = 0; p < {count}; ++p)
#pragma unroll
for (int q = 0; q < {count}; ++q) {{
{through}
}}"""


def print_conv(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernel of a convolution: each result walks over its taps and channels."""
    if out.size == 0:
        return ()
    x, taps = inputs
    d = out.dialect
    groups = attr_int(node.attrs, "groups")
    width, per_group = x.shape[-1] // groups, taps.shape[-1] // groups
    wide = is_wide(out.size, (x.shape, x.strides), (taps.shape, taps.strides), (out.shape, out.strides))
    number, signed = unsigned(wide), "i64" if wide else "int"
    total, result = _sum_types(out)
    lines, names = split("t", out.shape, "c", wide)
    if len(names) == 1:
        names = ["t"]
    batch, channel = names[0], names[-1]
    opened, sources = [], []
    for axis, w in enumerate(windows(x.shape, taps.shape, node.attrs)):
        at = f"at{axis}"
        opened.append(f"for ({signed} tap{axis} = 0; tap{axis} < {w.taps}; ++tap{axis}) {{")
        opened.append(
            f"const {signed} {at} = ({signed}){names[axis + 1]} * {w.stride} + tap{axis} * {w.dilation} - {w.low};"
        )
        test = f"{at} < 0 || {at} >= {w.spread}"
        if w.input_dilation > 1:
            test += f" || {at} % {w.input_dilation} != 0"
        # What crops cut away is never read; what lies past the padding has no place.
        opened.append(f"if ({test}) continue;")
        sources.append(f"({at} / {w.input_dilation})")
    tap_names = [f"tap{axis}" for axis in range(len(sources))]
    at_x = offset([batch, *sources, "(group + w)"], x.strides, wide)
    at_k = offset([*tap_names, "w", channel], taps.strides, wide)
    text = f"""const {number} t = ({number}){d.block}.x * {BLOCK}u + {d.thread}.x;
if (t >= {out.size}u) return;
{lines}
const {signed} group = ({signed})({channel} / {per_group}u) * {width};
{total} sum = 0;
{chr(10).join(opened)}
#pragma unroll 4
for ({signed} w = 0; w < {width}; ++w)
sum = sum + ({total}){x.load(f"x[{at_x}]")} * ({total}){taps.load(f"kernel_[{at_k}]")};
{"}" * len(sources)}
z[{offset(names, out.strides, wide)}] = {out.store(f"({result})sum")};"""
    pointers = [x.pointer("x"), taps.pointer("kernel_"), out.pointer("z")]
    return (kernel(d, "conv", pointers, text, (-(-out.size // BLOCK), 1, 1)),)
