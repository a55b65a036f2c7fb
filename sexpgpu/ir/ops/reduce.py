"""Reductions, whose axes vanish, and running reductions along one axis. Work shapes Reduce and Scan.

Sums run in the dtype of their operand: NumPy adds pairwise where the reduced elements lie side by side,
else in order. NaN propagates through every fold of floats; for `argmax` and `argmin` it counts as largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import (
    Array,
    Context,
    Cost,
    Meaning,
    OpDef,
    Sample,
    Stages,
    TypeRule,
    Work,
    bytes_moved,
    no_gradient,
    register,
)
from sexpgpu.ir.ops.rules import (
    Local,
    attr_int,
    attr_ints,
    check_axis,
    check_dtype,
    check_operands,
    float_gradient,
    inverse,
    without,
)
from sexpgpu.ir.types import TensorType, TypeFault

ARITHMETIC = ("f32", "f64", "i32", "i64")

F = TensorType("f32", (3, 4))
F3 = TensorType("f32", (2, 3, 4))
I3 = TensorType("i32", (2, 3, 4))
B3 = TensorType("bool", (2, 3, 4))
L = TensorType("i64", (5,))


def _cost(node: Node) -> Cost:
    return Cost(node.inputs[0].type.size, bytes_moved(node))


def _axes(node: Node) -> tuple[int, ...]:
    return attr_ints(node.attrs, "axes")


def _axis(node: Node) -> int:
    return attr_int(node.attrs, "axis")


# Folds over any axes.


def _fold_type(name: str, dtypes: Sequence[str], of_nothing: bool) -> TypeRule:
    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        check_operands(name, types, 1)
        (x,) = types
        check_dtype(name, x, dtypes)
        axes = attr_ints(attrs, "axes")
        for axis in axes:
            check_axis(name, x, axis)
            if x.shape[axis] == 0 and not of_nothing:
                raise TypeFault(f"`{name}` over axis {axis} of {x}, which is empty")
        if list(axes) != sorted(set(axes)):
            raise TypeFault(f"`{name}` over axes {list(axes)}: each once and in order")
        return (x.with_shape(without(x.shape, axes)),)

    return rule


def _fold_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    return b.node(node.op, inputs, {"axes": tuple(a + 1 for a in _axes(node))}).outputs


def _define_fold(
    name: str,
    doc: str,
    ufunc: np.ufunc,
    dtypes: Sequence[str],
    local: Local | None,
    samples: Sequence[Sample],
    *,
    of_nothing: bool = True,
) -> None:
    def into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            ufunc.reduce(inputs[0], _axes(node), ctx.dtype(node.types[0]), outs[0])

    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(ufunc.reduce(inputs[0], _axes(node), ctx.dtype(node.types[0])))

    def prepare(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> Stages:
        return ((partial(ufunc.reduce, inputs[0], _axes(node), ctx.dtype(node.types[0]), outs[0]),),)

    register(
        OpDef(
            name=name,
            doc=doc,
            work=Work.REDUCE,
            params={"axes": "the axes that vanish, increasing"},
            type_rule=_fold_type(name, dtypes, of_nothing),
            meaning=meaning,
            into=into,
            ufunc=ufunc,
            prepare=prepare,
            stacking=_fold_stacking,
            gradient=no_gradient if local is None else float_gradient(local),
            samples=tuple(samples),
            cost=_cost,
        )
    )


def _samples(*types: TensorType) -> tuple[Sample, ...]:
    return tuple(
        Sample((t,), {"axes": axes})
        for t in types
        for axes in ((0,), (t.rank - 1,), tuple(range(t.rank)), tuple(range(0, t.rank, 2)), ())
    )


def _folded_last(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    """`x` with `axes` moved to the end and made one, and the order of the axes that it had before that."""
    kept = [i for i in range(x.rank) if i not in set(axes)]
    perm = (*kept, *axes)
    together = math.prod(x.shape[i] for i in axes)
    return b.reshape(b.transpose(x, perm), (*(x.shape[i] for i in kept), together)), perm


def _unfolded(b: Builder, value: Value, shape: Sequence[int], perm: Sequence[int]) -> Value:
    """Undo `_folded_last`."""
    return b.transpose(b.reshape(value, [shape[p] for p in perm]), inverse(perm))


def _extremum_gradient(sign: int) -> Local:
    """All of the cotangent goes to the first extremum in row-major order of the reduced axes."""

    def local(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
        x = n.inputs[0]
        if not _axes(n):
            return (g,)
        # Of a negated operand, since NaN has to be found first for `min` too.
        flat, perm = _folded_last(b, x if sign > 0 else b.neg(x), _axes(n))
        last = flat.rank - 1
        winner = b.expand_like(b.op("argmax", flat, axis=last), flat.shape, [last])
        hit = b.op("eq", winner, b.iota("i32", flat.shape, last))
        zeros = b.constant(0.0, g.type.with_shape(flat.shape))
        spread = b.where(hit, b.expand_like(g, flat.shape, [last]), zeros)
        return (_unfolded(b, spread, x.shape, perm),)

    return local


def _others(b: Builder, x: Value, axis: int) -> Value:
    """The running product of the elements before each one, along `axis`."""
    one = b.constant(1.0, x.type.with_shape((*x.shape[:axis], 1, *x.shape[axis + 1 :])))
    before = b.op("concat", one, b.slice(x, axis, 0, x.shape[axis] - 1), axis=axis)
    return b.op("cumprod", before, axis=axis)


def _prod_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    """The cotangent times all that lies before an element and all after it: exact where some are 0."""
    x = n.inputs[0]
    if x.type.size == 0:
        return (b.like(0.0, x),)
    if not _axes(n):
        return (g,)
    flat, perm = _folded_last(b, x, _axes(n))
    last = flat.rank - 1
    after = b.op("reverse", _others(b, b.op("reverse", flat, axes=(last,)), last), axes=(last,))
    slope = b.mul(_others(b, flat, last), after)
    return (_unfolded(b, b.mul(b.expand_like(g, flat.shape, [last]), slope), x.shape, perm),)


def _sum_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    return (b.expand_like(g, n.inputs[0].shape, _axes(n)),)


_define_fold(
    "sum", "The sum over `axes`, 0 of nothing; integers wrap.", np.add, ARITHMETIC, _sum_gradient,
    (*_samples(F3, I3, L), Sample((TensorType("f32", (3, 0)),), {"axes": (1,)})),
)  # fmt: skip
_define_fold(
    "prod", "The product over `axes`, 1 of nothing; integers wrap.", np.multiply, ARITHMETIC, _prod_gradient,
    (*_samples(F3, I3), Sample((TensorType("f32", (3, 0)),), {"axes": (1,)})),
)  # fmt: skip
_define_fold(
    "max", "The largest over `axes`, NaN if any is; the gradient goes to the first that attains it.",
    np.maximum, ARITHMETIC, _extremum_gradient(1), _samples(F3, I3), of_nothing=False,
)  # fmt: skip
_define_fold(
    "min", "The smallest over `axes`, NaN if any is; the gradient goes to the first that attains it.",
    np.minimum, ARITHMETIC, _extremum_gradient(-1), _samples(F3, I3), of_nothing=False,
)  # fmt: skip
_define_fold("any", "Whether one over `axes` is true.", np.logical_or, ("bool",), None, _samples(B3))
_define_fold("all", "Whether every one over `axes` is true.", np.logical_and, ("bool",), None, _samples(B3))


# Positions of extrema.


def _arg_type(name: str) -> TypeRule:
    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        check_operands(name, types, 1)
        (x,) = types
        check_dtype(name, x, ARITHMETIC)
        axis = attr_int(attrs, "axis")
        check_axis(name, x, axis)
        if x.shape[axis] == 0:
            raise TypeFault(f"`{name}` over axis {axis} of {x}, which is empty")
        return (TensorType("i32", without(x.shape, [axis])),)

    return rule


def _argmin(x: Array, axis: int) -> Array:
    if x.dtype.kind != "f" or not np.isnan(x).any():
        return np.argmin(x, axis)
    # NumPy's argmin takes the first NaN; here a NaN is the largest value there is.
    smallest = np.fmin.reduce(x, axis, keepdims=True)
    return np.argmax(x == smallest, axis)


def _arg_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    return b.node(node.op, inputs, {"axis": _axis(node) + 1}).outputs


def _arg_meaning(largest: bool) -> Meaning:
    position = np.argmax if largest else _argmin

    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(position(inputs[0], _axis(node)), np.int32)

    return meaning


for _name, _largest, _doc in (
    ("argmax", True, "The index along `axis` of the largest, the lowest of a tie; NaN counts as largest."),
    ("argmin", False, "The index along `axis` of the smallest, the lowest of a tie; NaN counts as largest."),
):
    register(
        OpDef(
            name=_name,
            doc=_doc,
            work=Work.REDUCE,
            params={"axis": "the axis that vanishes"},
            type_rule=_arg_type(_name),
            meaning=_arg_meaning(_largest),
            stacking=_arg_stacking,
            gradient=no_gradient,
            samples=(
                Sample((F3,), {"axis": 0}),
                Sample((F3,), {"axis": 2}),
                Sample((I3,), {"axis": 1}, ranges=((0, 3),)),
                Sample((L,), {"axis": 0}),
            ),
            cost=_cost,
        )
    )


# Running reductions.


def _running_type(name: str) -> TypeRule:
    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        check_operands(name, types, 1)
        check_dtype(name, types[0], ARITHMETIC)
        check_axis(name, types[0], attr_int(attrs, "axis"))
        return (types[0],)

    return rule


def _define_running(name: str, doc: str, ufunc: np.ufunc, local: Local) -> None:
    def into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            ufunc.accumulate(inputs[0], _axis(node), ctx.dtype(node.types[0]), outs[0])

    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return ufunc.accumulate(inputs[0], _axis(node), ctx.dtype(node.types[0]))

    register(
        OpDef(
            name=name,
            doc=doc,
            work=Work.SCAN,
            params={"axis": "the axis along which it runs, in order"},
            type_rule=_running_type(name),
            meaning=meaning,
            into=into,
            stacking=_arg_stacking,
            gradient=float_gradient(local),
            samples=(
                Sample((F3,), {"axis": 0}),
                Sample((F3,), {"axis": 1}),
                Sample((TensorType("f32", (2, 7)),), {"axis": 1}),
                Sample((TensorType("f32", (1, 3)),), {"axis": 0}),
                Sample((TensorType("f32", (0, 3)),), {"axis": 0}),
                Sample((I3,), {"axis": 2}),
                Sample((L,), {"axis": 0}),
            ),
            cost=_cost,
        )
    )


def _cumsum_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    axis = _axis(n)
    backwards = b.op("reverse", g, axes=(axis,))
    return (b.op("reverse", b.op("cumsum", backwards, axis=axis), axes=(axis,)),)


def _ahead(b: Builder, x: Value, axis: int, distance: int) -> Value:
    """`x` of `distance` places further along `axis`, zero past the end."""
    low, high = [0] * x.rank, [0] * x.rank
    high[axis] = distance
    rest = b.slice(x, axis, distance, x.shape[axis])
    return b.op("pad", rest, low=tuple(low), high=tuple(high), interior=(0,) * x.rank)


def _cumprod_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    """What lies before an element times s, with s[j] = g[j] + x[j + 1]·s[j + 1]: exact where some are 0.

    s by doubling: after round r, s[j] = total[j] + factor[j]·s[j + 2^r].
    Source: Hillis and Steele, Data parallel algorithms, CACM 29(12), 1986.
    """
    x, axis = n.inputs[0], _axis(n)
    size = x.shape[axis]
    if size <= 1:
        return (g,)
    total, factor, distance = g, _ahead(b, x, axis, 1), 1
    while distance < size:
        total = b.add(total, b.mul(factor, _ahead(b, total, axis, distance)))
        if 2 * distance < size:
            factor = b.mul(factor, _ahead(b, factor, axis, distance))
        distance *= 2
    return (b.mul(_others(b, x, axis), total),)


def _cummax_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    """Each cotangent goes to the first element that set the maximum it belongs to."""
    x, axis, y = n.inputs[0], _axis(n), n.outputs[0]
    size = x.shape[axis]
    if size <= 1:
        return (g,)
    now, before = b.slice(x, axis, 1, size), b.slice(y, axis, 0, size - 1)
    became_nan = b.op("and", b.op("ne", now, now), b.op("eq", before, before))
    sets = b.op("or", b.op("gt", now, before), became_nan)
    places = b.add(b.iota("i32", now.shape, axis), b.constant(1, TensorType("i32", now.shape)))
    zeros = b.constant(0, TensorType("i32", now.shape))
    first = b.slice(b.constant(0, TensorType("i32", x.shape)), axis, 0, 1)
    setter = b.op("cummax", b.op("concat", first, b.where(sets, places, zeros), axis=axis), axis=axis)
    perm = (*(i for i in range(x.rank) if i != axis), axis)
    g_last, setter_last = b.transpose(g, perm), b.transpose(setter, perm)
    spread = b.op("scatter", b.like(0.0, g_last), setter_last, g_last, axis=x.rank - 1, batch=x.rank - 1, fold="add")
    return (b.transpose(spread, inverse(perm)),)


_define_running(
    "cumsum",
    "Sums of x up to and with each element along `axis`, in order; integers wrap.",
    np.add,
    _cumsum_gradient,
)
_define_running(
    "cumprod",
    "Products of x up to and with each element along `axis`; integers wrap.",
    np.multiply,
    _cumprod_gradient,
)
_define_running(
    "cummax",
    "The largest of x up to and with each element along `axis`, NaN from the first NaN on.",
    np.maximum,
    _cummax_gradient,
)
