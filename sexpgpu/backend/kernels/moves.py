"""Move: copies of elements as they are, into all of the output or a part of it.

What a view could show is one copy between two layouts; a large one whose two sides run along different axes goes
through a shared tile. `concat` is a copy for each part; `pad` one kernel that asks of each place what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sexpgpu.backend.kernels.dialects import BITS
from sexpgpu.backend.kernels.launch import BLOCK, Launch, kernel
from sexpgpu.backend.kernels.maps import print_copy
from sexpgpu.backend.kernels.nest import Nest, is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int, attr_ints
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import VIEWS, Layout, Strides, contiguous, is_contiguous

TILE = 32
ROWS = 8
MIN_TILED = 16
"""Sizes of both axes from which a tile pays."""


def print_move(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernels of a movement."""
    if out.size == 0:
        return ()
    if "interior" in node.attrs:
        return _print_pad(node, inputs[0], out)
    view = VIEWS.get(node.op)
    if view is None:
        return _print_parts(node, inputs, out)
    (x,) = inputs
    found = view(node, node.inputs[0], x.strides)
    if found is not None:
        first, strides = found
        return copy(_window(x, out.shape, first, strides), out)
    # A reshape that is no view: the side that lies in row-major order takes the other's shape.
    if is_contiguous(out.shape, out.strides):
        return copy(x, _window(out, x.shape, 0, contiguous(x.shape)))
    back = VIEWS[node.op](_Backwards(node, x.type), node.outputs[0], out.strides)  # type: ignore[arg-type]
    assert back is not None, (node, out.layout)
    return copy(x, _window(out, x.shape, *back))


class _Backwards:
    """Stands in for the node that would undo a reshape."""

    def __init__(self, node: Node, type: TensorType) -> None:
        self.op, self.attrs, self.types = node.op, {"shape": type.shape}, (type,)


def _window(x: Argument, shape: tuple[int, ...], first: int, strides: Strides) -> Argument:
    """Part of an argument. Its offset counts in the text, not in the pointer: see `copy`."""
    moved = Layout(x.layout.buffer, x.layout.offset_bytes + first * x.item_bytes, strides)
    return replace(x, type=x.type.with_shape(shape), layout=moved, first=x.first + first)


def copy(source: Argument, target: Argument) -> tuple[Launch, ...]:
    """Elements of one shape from layout to layout."""
    if target.size == 0:
        return ()
    nest = Nest(target.shape, {"x": source.strides, "y": target.strides})
    tiled = _tile_axes(nest)
    return print_copy(source, target) if tiled is None else (_print_tiled(source, target, nest, *tiled),)


def _tile_axes(nest: Nest) -> tuple[int, int] | None:
    """Axes along which the input and the output run, if they differ and both are long."""
    by_x = [a for a, s in enumerate(nest.strides["x"]) if abs(s) == 1]
    by_y = [a for a, s in enumerate(nest.strides["y"]) if abs(s) == 1]
    if len(by_x) != 1 or len(by_y) != 1 or by_x == by_y:
        return None
    return (by_x[0], by_y[0]) if min(nest.shape[by_x[0]], nest.shape[by_y[0]]) >= MIN_TILED else None


def _print_tiled(source: Argument, target: Argument, nest: Nest, by_x: int, by_y: int) -> Launch:
    """Tiles of 32 x 32 elements, read along one axis and written along the other."""
    d = source.dialect
    others = [a for a in range(len(nest.shape)) if a not in (by_x, by_y)]
    shape = [nest.shape[a] for a in others]
    width, height = nest.shape[by_x], nest.shape[by_y]
    across, down = -(-width // TILE), -(-height // TILE)
    lines, coordinates = split(f"{d.block}.x / {across * down}u", shape, "b", nest.wide)
    spelt, number = BITS[source.item_bytes], "i64" if nest.wide else "int"

    def at(name: str, x: str, y: str) -> str:
        strides = nest.strides[name]
        order = (*(strides[a] for a in others), strides[by_x], strides[by_y])
        return offset([*coordinates, x, y], order, nest.wide, source.first if name == "x" else target.first)

    text = f"""{d.shared(spelt, f"tile[{TILE}][{TILE + 1}]")}
{lines}
const {number} left = ({d.block}.x % {across}u) * {TILE}u, top = ({d.block}.x / {across}u % {down}u) * {TILE}u;
#pragma unroll
for (int k = 0; k < {TILE}; k += {ROWS}) {{
{number} h = left + {d.thread}.x, v = top + {d.thread}.y + k;
if (h < {width} && v < {height}) tile[{d.thread}.y + k][{d.thread}.x] = x[{at("x", "h", "v")}];
}}
{d.barrier()}
#pragma unroll
for (int k = 0; k < {TILE}; k += {ROWS}) {{
{number} h = left + {d.thread}.y + k, v = top + {d.thread}.x;
if (h < {width} && v < {height}) y[{at("y", "h", "v")}] = tile[{d.thread}.x][{d.thread}.y + k];
}}"""
    batch = nest.count // (width * height)
    pointers = [source.pointer("x", bits=True), target.pointer("y", bits=True)]
    return kernel(d, "transpose", pointers, text, (batch * across * down, 1, 1), (TILE, ROWS, 1))


def _print_parts(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    axis, start = attr_int(node.attrs, "axis"), 0
    launches: list[Launch] = []
    for x in inputs:
        launches += copy(x, _window(out, x.shape, start * out.strides[axis], out.strides))
        start += x.shape[axis]
    return tuple(launches)


def _print_pad(node: Node, x: Argument, out: Argument) -> tuple[Launch, ...]:
    d = out.dialect
    low, interior = attr_ints(node.attrs, "low"), attr_ints(node.attrs, "interior")
    high = attr_ints(node.attrs, "high")
    # Axes that stay as they are run along inside the others, in packs where both sides allow it.
    kept = len(out.shape)
    while kept and (low[kept - 1], high[kept - 1], interior[kept - 1]) == (0, 0, 0):
        kept -= 1
    spelt = BITS[out.item_bytes]
    inner = Nest(out.shape[kept:], {"x": x.strides[kept:], "y": out.strides[kept:]})
    outer_fits = all(s * out.item_bytes % 16 == 0 for s in (*x.strides[:kept], *out.strides[:kept]))
    pack = 1
    if outer_fits and x.aligned and out.aligned and inner.shape:
        items = {"x": x.item_bytes, "y": out.item_bytes}
        pack = inner.packs(items, {"x": True, "y": True}, ["x", "y"])
        if len(inner.shape) == 1 and inner.shape[0] % pack:
            pack = 1
    inner = inner.widen(pack)
    shape = (*out.shape[:kept], *inner.shape)
    wide = is_wide(out.size, (out.shape, out.strides), (x.shape, x.strides))
    lines, names = split("i", shape, "c", wide)
    tests, sources = [], []
    number = "i64" if wide else "int"
    checks = []
    for axis in range(kept):
        gap = interior[axis] + 1
        checks.append(f"const {number} t{axis} = ({number}){names[axis]} - {low[axis]};")
        tests.append(f"t{axis} >= 0 && t{axis} < {(x.shape[axis] - 1) * gap + 1 if x.shape[axis] else 0}")
        if gap > 1:
            tests.append(f"t{axis} % {gap} == 0")
        sources.append(f"(t{axis} / {gap})")
    at_x = offset([*sources, *names[kept:]], (*x.strides[:kept], *inner.strides["x"]), wide)
    at_y = offset(names, (*out.strides[:kept], *inner.strides["y"]), wide)
    inside = " && ".join(tests) or "true"
    if pack > 1:
        write = f"""Pack<{spelt}, {pack}> made = {{}};
if ({inside}) made = read_pack<{spelt}, {pack}>(x + ({at_x}));
write_pack(y + ({at_y}), made);"""
    else:
        write = f"y[{at_y}] = {inside} ? x[{at_x}] : ({spelt})0;"
    count = out.size // pack
    text = f"""const {unsigned(wide)} i = ({unsigned(wide)}){d.block}.x * {BLOCK}u + {d.thread}.x;
if (i >= {count}u) return;
{lines}
{chr(10).join(checks)}
{write}"""
    pointers = [x.pointer("x", bits=True), out.pointer("y", bits=True)]
    return (kernel(d, "pad", pointers, text, (-(-count // BLOCK), 1, 1)),)
