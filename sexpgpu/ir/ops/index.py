"""Reading and writing at indices that are data. Work shapes Gather and Scatter.

An axis of x splits its shape into batch axes B (shared with the indices), middle axes P, the indexed axis of
n places, and rest axes S; the indices have shape B + I, what is read or written B + P + I + S.
Reads clamp an index out of range and flag it; writes drop it and flag it, except −1, which means nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, Cost, OpDef, Sample, Work, bytes_moved, register
from sexpgpu.ir.ops.rules import (
    attr_int,
    batch,
    batch_all,
    check_axis,
    check_dtype,
    check_operands,
    float_gradient,
    without,
)
from sexpgpu.ir.types import INTEGERS, TensorType, TypeFault

FOLDS = ("set", "add", "max", "min")
ARITHMETIC = ("f32", "f64", "i32", "i64")
SCATTERED = {"set": (*ARITHMETIC, "bool"), "add": ARITHMETIC, "max": ARITHMETIC, "min": ARITHMETIC}
ELEMENTS_AT_A_TIME = 1 << 18
"""How many elements a scatter addresses at a time: their indices stay in the cache."""

NEVER = 2**31 - 1

F = TensorType("f32", (5, 4))
F4 = TensorType("f32", (2, 3, 5, 2))
IDS = TensorType("i32", (2, 3))


def _axis(node: Node) -> int:
    return attr_int(node.attrs, "axis")


def _batch(node: Node) -> int:
    return attr_int(node.attrs, "batch")


def _read_shape(x: Sequence[int], i: Sequence[int], axis: int, num_batch: int) -> tuple[int, ...]:
    return (*x[:axis], *i[num_batch:], *x[axis + 1 :])


def _check_indexing(name: str, x: TensorType, i: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """The shape of what is read from or written to x at i."""
    axis, num_batch = attr_int(attrs, "axis"), attr_int(attrs, "batch")
    check_axis(name, x, axis)
    check_dtype(f"the index of {name}", i, INTEGERS)
    if not 0 <= num_batch <= min(axis, i.rank) or x.shape[:num_batch] != i.shape[:num_batch]:
        raise TypeFault(f"`{name}` of {x} at {i} along axis {axis}: they do not share their first {num_batch} axes")
    return _read_shape(x.shape, i.shape, axis, num_batch)


def _flag_outside(ctx: Context, node: Node, i: Array, size: int, outside: Array) -> None:
    """Report the first index out of range and where it is."""
    if ctx.flag is None or not outside.any():
        return
    first = int(np.argmax(outside))
    ctx.flag(node, outside_message(outside.shape, first, int(i.reshape(-1)[first]), size))


def outside_message(shape: Sequence[int], place: int, index: int, size: int) -> str:
    """What is said of the index at `place`, in row-major order, of indices of `shape` into `size` places."""
    at = [int(p) for p in np.unravel_index(place, shape)]
    return f"index {index}{f' at {at}' if at else ''} is outside 0 to {size - 1}"


def _clamped(ctx: Context, node: Node, i: Array, size: int) -> Array:
    _flag_outside(ctx, node, i, size, (i < 0) | (i >= size))
    return np.clip(i, 0, size - 1).astype(np.intp, copy=False)


# Reading.


def _gather_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("gather", types, 2)
    x, i = types
    shape = _check_indexing("gather", x, i, attrs)
    if x.shape[attr_int(attrs, "axis")] == 0:
        raise TypeFault(f"`gather` from an empty axis of {x}")
    return (x.with_shape(shape),)


def _gather(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    x, i = inputs
    axis, num_batch = _axis(node), _batch(node)
    i = _clamped(ctx, node, i, x.shape[axis])
    if not num_batch and x.flags.c_contiguous:
        return np.asarray(np.take(x, i, axis))
    # Batch and indexed axes are addressed together, so they come first: B + I + P + S.
    grids = np.ogrid[tuple(slice(n) for n in x.shape[:num_batch])] if num_batch else ()
    own = i.ndim - num_batch
    read = np.moveaxis(x, axis, num_batch)[(*(g.reshape(g.shape + (1,) * own) for g in grids), i)]
    return np.moveaxis(np.asarray(read), range(num_batch, i.ndim), range(axis, axis + own))


def _gather_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    x, i = inputs
    (out,) = outs
    if not _batch(node) and x.flags.c_contiguous and out.flags.c_contiguous:
        axis = _axis(node)
        # The mode spares a buffer for `out`; nothing is left to clip.
        np.take(x, _clamped(ctx, node, i, x.shape[axis]), axis, out, "clip")
    else:
        np.copyto(out, _gather(ctx, node, inputs))


def _gather_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    # An index out of range clamps above and is dropped here; it is flagged, so no one sees the difference.
    x, i = n.inputs
    wide = b.cast(g, "f32") if g.dtype == "bf16" else g
    zeros = b.constant(0.0, x.type.with_dtype(wide.dtype))
    added = b.op("scatter", zeros, i, wide, axis=_axis(n), batch=_batch(n), fold="add")
    return b.cast(added, x.dtype), None


def _gather_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    x, i = inputs
    axis, num_batch = _axis(node), _batch(node)
    if batched[0] and (batched[1] or num_batch):
        return (b.op("gather", x, batch(b, i, batched[1], k), axis=axis + 1, batch=num_batch + 1),)
    if batched[0]:
        return (b.op("gather", x, i, axis=axis + 1, batch=0),)
    # One table: k joins the axes of the indices, and then comes to the front.
    beside = b.transpose(i, (*range(1, num_batch + 1), 0, *range(num_batch + 1, i.rank)))
    read = b.op("gather", x, beside, axis=axis, batch=num_batch)
    return (b.transpose(read, (axis, *without(range(read.rank), [axis]))),)


def _gather_cost(node: Node) -> Cost:
    """Reads only what it is asked for."""
    (out,) = node.types
    return Cost(0, 2 * out.num_bytes + node.inputs[1].type.num_bytes)


register(
    OpDef(
        name="gather",
        doc="x at indices i along `axis`: x.shape[:axis] + i.shape[batch:] + x.shape[axis + 1:]; "
        "i clamps, with a flag.",
        work=Work.GATHER,
        params={"axis": "the axis of x that is indexed", "batch": "how many leading axes x and i share"},
        type_rule=_gather_type,
        meaning=_gather,
        into=_gather_into,
        stacking=_gather_stacking,
        gradient=float_gradient(_gather_gradient),
        samples=(
            Sample((F, IDS), {"axis": 0, "batch": 0}, (None, (0, 5))),
            Sample((F, IDS), {"axis": 1, "batch": 0}, (None, (0, 4))),
            Sample((F4, IDS), {"axis": 2, "batch": 0}, (None, (0, 5))),
            Sample((F4, IDS), {"axis": 2, "batch": 1}, (None, (0, 5))),
            Sample((F4, IDS), {"axis": 2, "batch": 2}, (None, (0, 5))),
            Sample((F4, TensorType("i64", (2, 3, 4))), {"axis": 3, "batch": 2}, (None, (0, 2))),
            Sample((F, TensorType("i64", ())), {"axis": 1, "batch": 0}, (None, (0, 4))),
            Sample((TensorType("bf16", (5, 4)), IDS), {"axis": 0, "batch": 0}, (None, (0, 5))),
            Sample((TensorType("bool", (5, 4)), IDS), {"axis": 0, "batch": 0}, (None, (0, 5))),
            Sample((TensorType("i64", (2, 4)), IDS), {"axis": 1, "batch": 1}, (None, (0, 4))),
        ),
        cost=_gather_cost,
    )
)


def _pick_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("pick", types, 2)
    x, i = types
    axis = attr_int(attrs, "axis")
    check_axis("pick", x, axis)
    check_dtype("the index of pick", i, INTEGERS)
    if i.shape != without(x.shape, [axis]):
        raise TypeFault(f"`pick` of {x} along axis {axis} at {i}: the index has the shape of x without that axis")
    if x.shape[axis] == 0:
        raise TypeFault(f"`pick` from an empty axis of {x}")
    return (x.with_shape(i.shape),)


def _pick(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    x, i = inputs
    axis = _axis(node)
    at = np.expand_dims(_clamped(ctx, node, i, x.shape[axis]), axis)
    return np.take_along_axis(x, at, axis).squeeze(axis)


def _pick_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    x, i = n.inputs
    axis = _axis(n)
    last = b.like(x.shape[axis] - 1, i)
    clamped = b.op("minimum", b.op("maximum", i, b.like(0, i)), last)
    hit = b.op("eq", b.iota(i.dtype, x.shape, axis), b.expand_like(clamped, x.shape, [axis]))
    return b.where(hit, b.expand_like(g, x.shape, [axis]), b.like(0.0, x)), None


def _pick_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    return (b.op("pick", *batch_all(b, inputs, batched, k), axis=_axis(node) + 1),)


register(
    OpDef(
        name="pick",
        doc="One element of each row of x along `axis`, at index i: i has x's shape without `axis`; "
        "i clamps, with a flag.",
        work=Work.GATHER,
        params={"axis": "the axis of x that is indexed"},
        type_rule=_pick_type,
        meaning=_pick,
        stacking=_pick_stacking,
        gradient=float_gradient(_pick_gradient),
        samples=(
            Sample((F, TensorType("i32", (5,))), {"axis": 1}, (None, (0, 4))),
            Sample((F, TensorType("i64", (4,))), {"axis": 0}, (None, (0, 5))),
            Sample((TensorType("f32", (2, 3, 4)), TensorType("i32", (2, 4))), {"axis": 1}, (None, (0, 3))),
            Sample((TensorType("bf16", (3,)), TensorType("i32", ())), {"axis": 0}, (None, (0, 3))),
            Sample((TensorType("i32", (2, 3)), TensorType("i32", (2,))), {"axis": 1}, (None, (0, 3))),
        ),
        cost=_gather_cost,
    )
)

# Writing.


def _scatter_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("scatter", types, 3)
    x, i, v = types
    fold = str(attrs["fold"])
    if fold not in FOLDS:
        raise TypeFault(f"`scatter` folds by {', '.join(FOLDS)}, not {fold}")
    check_dtype(f"scatter by {fold}", x, SCATTERED[fold])
    shape = _check_indexing("scatter", x, i, attrs)
    if v.dtype != x.dtype:
        raise TypeFault(f"`scatter` of {v} into {x}: dtypes differ", "E-TYPE-001")
    if v.shape != shape:
        raise TypeFault(f"`scatter` of {v} into {x} at {i}: the values need shape {x.with_shape(shape)}")
    return (x,)


_FOLD = {"add": np.add, "max": np.maximum, "min": np.minimum}


def _write(ctx: Context, node: Node, i: Array, v: Array, out: Array) -> None:
    """Fold v into `out`, which is contiguous, in the row-major order of i."""
    axis, num_batch = _axis(node), _batch(node)
    size, shape = out.shape[axis], out.shape
    inside = (i >= 0) & (i < size)
    _flag_outside(ctx, node, i, size, ~inside & (i != -1))
    num_tables, num_middle = math.prod(shape[:num_batch]), math.prod(shape[num_batch:axis])
    width = math.prod(shape[axis + 1 :])
    per_table = i.size // max(1, num_tables)
    table = np.arange(num_tables * num_middle).reshape(num_tables, num_middle, 1)
    rows = (table * size + i.reshape(num_tables, 1, per_table)).reshape(-1)
    values = v.reshape(rows.size, width)
    if not inside.all():
        kept = np.broadcast_to(inside.reshape(num_tables, 1, per_table), (num_tables, num_middle, per_table)).reshape(
            -1
        )
        rows, values = rows[kept], values[kept]
    fold = node.attrs["fold"]
    if fold == "set":
        # Of several assignments to one place NumPy leaves the last.
        out.reshape(num_tables * num_middle * size, width)[rows] = values
        return
    # `ufunc.at` folds one after the other; of flat arrays it does so without a slow general iterator.
    flat, within = out.reshape(-1), np.arange(width)
    at_a_time = max(1, ELEMENTS_AT_A_TIME // max(1, width))
    with np.errstate(all="ignore"):
        for start in range(0, rows.size, at_a_time):
            part = slice(start, start + at_a_time)
            places = (rows[part, None] * width + within).reshape(-1)
            _FOLD[str(fold)].at(flat, places, np.ascontiguousarray(values[part]).reshape(-1))


def _is_zero(x: Array) -> bool:
    """Whether x is one zero, repeated."""
    return x.size > 0 and not any(x.strides) and not x.reshape(-1)[:1].any()


def _scatter(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    x, i, v = inputs
    # Fresh zeros are mapped on demand: the part of a table that no index names is never touched.
    out = np.zeros(x.shape, x.dtype) if _is_zero(x) else np.array(x, order="C")
    _write(ctx, node, i, v, out)
    return out


def _scatter_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    x, i, v = inputs
    (out,) = outs
    if not out.flags.c_contiguous or np.may_share_memory(out, v) or np.may_share_memory(out, i):
        np.copyto(out, _scatter(ctx, node, inputs))
        return
    np.copyto(out, x)
    _write(ctx, node, i, v, out)


def _order(b: Builder, n: Node) -> Value:
    """The place of each index among those of its table, as i32 of i's shape."""
    i = n.inputs[1]
    own = i.shape[_batch(n) :]
    counted = b.reshape(b.iota("i32", (math.prod(own),)), own)
    return b.broadcast(counted, i.shape, range(_batch(n), i.rank))


def _to_values(b: Builder, n: Node, per_index: Value) -> Value:
    """What is known of each index, repeated to v's shape."""
    axis, num_batch, v = _axis(n), _batch(n), n.inputs[2]
    own = per_index.rank - num_batch
    return b.broadcast(per_index, v.shape, (*range(num_batch), *range(axis, axis + own)))


def _scatter_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    x, i, v = n.inputs
    fold, axis, num_batch = n.attrs["fold"], _axis(n), _batch(n)
    if x.shape[axis] == 0 or v.type.size == 0:
        return g, None, b.like(0.0, v)
    size = b.like(x.shape[axis], i)
    inside = b.op("and", b.op("ge", i, b.like(0, i)), b.op("lt", i, size))
    # What was dropped must not be flagged again by a read.
    safe = b.where(inside, i, b.like(0, i))

    def read(table: Value, axis: int = axis) -> Value:
        return b.op("gather", table, safe, axis=axis, batch=num_batch)

    zeros = b.like(0.0, v)
    if fold == "add":
        return g, None, b.where(_to_values(b, n, inside), read(g), zeros)
    order = _order(b, n)
    if fold == "set":
        fresh = b.constant(-1, TensorType("i32", (*x.shape[:num_batch], x.shape[axis])))
        writers = b.op("scatter", fresh, i, order, axis=num_batch, batch=num_batch, fold="set")
        won = b.op("and", inside, b.op("eq", read(writers, num_batch), order))
        rest = b.op("scatter", g, i, zeros, axis=axis, batch=num_batch, fold="set")
        return rest, None, b.where(_to_values(b, n, won), read(g), zeros)

    def attains(candidate: Value, folded: Value) -> Value:
        both_nan = b.op("and", b.op("ne", candidate, candidate), b.op("ne", folded, folded))
        return b.op("or", b.op("eq", candidate, folded), both_nan)

    y = n.outputs[0]
    kept = attains(x, y)
    # x comes first in the order, then v in the order of i: the first that attains the result takes all.
    lost = b.op("eq", read(b.cast(kept, "i32")), b.constant(0, TensorType("i32", v.shape)))
    candidate = b.op("and", b.op("and", _to_values(b, n, inside), lost), attains(v, read(y)))
    orders = _to_values(b, n, order)
    never = b.constant(NEVER, orders.type)
    entries = b.where(candidate, orders, never)
    fresh = b.constant(NEVER, TensorType("i32", x.shape))
    first = b.op("scatter", fresh, safe, entries, axis=axis, batch=num_batch, fold="min")
    won = b.op("and", candidate, b.op("eq", read(first), orders))
    return b.where(kept, g, b.like(0.0, g)), None, b.where(won, read(g), zeros)


def _scatter_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    x, i, v = inputs
    axis, num_batch, fold = _axis(node) + 1, _batch(node), node.attrs["fold"]
    x, v = batch(b, x, batched[0], k), batch(b, v, batched[2], k)
    if not batched[1] and num_batch == 0:
        return (b.op("scatter", x, i, v, axis=axis, batch=0, fold=fold),)
    return (b.op("scatter", x, batch(b, i, batched[1], k), v, axis=axis, batch=num_batch + 1, fold=fold),)


def _scatter_cost(node: Node) -> Cost:
    v = node.inputs[2].type
    return Cost(v.size if node.attrs["fold"] != "set" else 0, bytes_moved(node))


def _scatter_samples() -> tuple[Sample, ...]:
    def sample(dtype: str, x: tuple[int, ...], i: tuple[int, ...], axis: int, num_batch: int, fold: str) -> Sample:
        v = _read_shape(x, i, axis, num_batch)
        types = (TensorType(dtype, x), TensorType("i32", i), TensorType(dtype, v))
        return Sample(types, {"axis": axis, "batch": num_batch, "fold": fold}, (None, (-1, x[axis]), None))

    made = []
    for fold in FOLDS:
        made += [
            sample("f32", (5, 4), (2, 3), 0, 0, fold),
            sample("f32", (3, 2), (7,), 1, 0, fold),
            sample("f32", (2, 3, 4, 2), (2, 5), 2, 1, fold),
            sample("f32", (2, 3, 2), (2, 3, 4), 2, 2, fold),
            sample("f32", (4,), (), 0, 0, fold),
            sample("i32", (3, 4), (5,), 0, 0, fold),
        ]
    return (*made, sample("bool", (3, 4), (5,), 0, 0, "set"), sample("i64", (3, 4), (3, 2), 1, 1, "add"))


register(
    OpDef(
        name="scatter",
        doc="x with v folded in along `axis` at indices i, in the order of i; v is shaped as `gather` reads. "
        "−1 means nowhere, other indices out of range are dropped, with a flag.",
        work=Work.SCATTER,
        params={
            "axis": "the axis of x that is indexed",
            "batch": "how many leading axes x and i share",
            "fold": "set (the last wins), add, max or min",
        },
        type_rule=_scatter_type,
        meaning=_scatter,
        into=_scatter_into,
        stacking=_scatter_stacking,
        gradient=float_gradient(_scatter_gradient),
        samples=_scatter_samples(),
        cost=_scatter_cost,
    )
)
