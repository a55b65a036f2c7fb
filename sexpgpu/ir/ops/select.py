"""Order along one axis: sorting, and the largest k. Work shape Select; values and the places they came from.

Equal elements keep their order, so that a tie goes to the lower index; NaN counts as largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, Cost, Meaning, OpDef, Sample, Work, bytes_moved, register
from sexpgpu.ir.ops.rules import attr_int, check_axis, check_dtype, check_operands, inverse
from sexpgpu.ir.types import TensorType, TypeFault

ARITHMETIC = ("f32", "f64", "i32", "i64")

F3 = TensorType("f32", (2, 3, 4))
I3 = TensorType("i32", (2, 3, 4))
L = TensorType("i64", (5,))


def is_descending(node: Node) -> bool:
    """Whether a selection begins with the largest."""
    return node.op == "top-k" or bool(node.attrs["descending"])


def _sort_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("sort", types, 1)
    (x,) = types
    check_dtype("sort", x, ARITHMETIC)
    check_axis("sort", x, attr_int(attrs, "axis"))
    return (x, TensorType("i32", x.shape))


def _top_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("top-k", types, 1)
    (x,) = types
    check_dtype("top-k", x, ARITHMETIC)
    axis, k = attr_int(attrs, "axis"), attr_int(attrs, "k")
    check_axis("top-k", x, axis)
    if not 1 <= k <= x.shape[axis]:
        raise TypeFault(f"`top-k` takes {k} of axis {axis} of {x}, whose size is {x.shape[axis]}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return (x.with_shape(shape), TensorType("i32", shape))


def _order(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort x. NumPy sorts NaN to the end, as what is largest."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return x.shape[axis] - 1 - backwards


def _selection(length: Callable[[Node], int]) -> Meaning:
    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        axis = attr_int(node.attrs, "axis")
        with np.errstate(all="ignore"):
            order = _order(x, axis, is_descending(node))
        chosen = order[(slice(None),) * axis + (slice(0, length(node)),)]
        return np.take_along_axis(x, chosen, axis), chosen.astype(ctx.dtype(node.types[1]))

    return meaning


def _gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    """Each cotangent of a value goes to the place that the value came from."""
    g, x, axis = cotangents[0], node.inputs[0], attr_int(node.attrs, "axis")
    if g is None or not x.type.is_float:
        return (None,)
    if x.type.size == 0:
        return (b.like(0.0, x),)
    last = x.rank - 1
    perm = (*(i for i in range(x.rank) if i != axis), axis)
    zeros = b.constant(0.0, x.type.with_shape(tuple(x.shape[p] for p in perm)))
    places, moved = b.transpose(node.outputs[1], perm), b.transpose(g, perm)
    spread = b.op("scatter", zeros, places, moved, axis=last, batch=last, fold="add")
    return (b.transpose(spread, inverse(perm)),)


def _stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    return b.node(node.op, inputs, {**node.attrs, "axis": attr_int(node.attrs, "axis") + 1}).outputs


def _cost(node: Node) -> Cost:
    x = node.inputs[0].type
    return Cost(x.size * max(1, math.ceil(math.log2(max(2, x.shape[attr_int(node.attrs, "axis")])))), bytes_moved(node))


register(
    OpDef(
        name="sort",
        doc="x in order along `axis`, and the i32 index along it that each came from; of a tie the lower index "
        "comes first, NaN counts as largest.",
        work=Work.SELECT,
        params={"axis": "the axis along which the order runs", "descending": "whether the largest comes first"},
        type_rule=_sort_type,
        meaning=_selection(lambda node: node.types[0].shape[attr_int(node.attrs, "axis")]),
        stacking=_stacking,
        gradient=_gradient,
        samples=(
            Sample((F3,), {"axis": 0, "descending": True}),
            Sample((F3,), {"axis": 2, "descending": False}),
            Sample((F3,), {"axis": 1, "descending": True}),
            Sample((TensorType("f32", (0, 3)),), {"axis": 0, "descending": False}),
            Sample((I3,), {"axis": 1, "descending": True}, ranges=((0, 3),)),
            Sample((I3,), {"axis": 2, "descending": False}, ranges=((0, 3),)),
            Sample((L,), {"axis": 0, "descending": False}, ranges=((-2, 2),)),
        ),
        cost=_cost,
    )
)

register(
    OpDef(
        name="top-k",
        doc="The k largest of x along `axis`, largest first, and the i32 index along it that each came from; of a "
        "tie the lower index comes first, NaN counts as largest.",
        work=Work.SELECT,
        params={"axis": "the axis along which is chosen", "k": "how many, at least 1"},
        type_rule=_top_type,
        meaning=_selection(lambda node: attr_int(node.attrs, "k")),
        stacking=_stacking,
        gradient=_gradient,
        samples=(
            Sample((F3,), {"axis": 0, "k": 1}),
            Sample((F3,), {"axis": 2, "k": 2}),
            Sample((F3,), {"axis": 1, "k": 3}),
            Sample((TensorType("f32", (0, 3)),), {"axis": 1, "k": 2}),
            Sample((I3,), {"axis": 2, "k": 3}, ranges=((0, 3),)),
            Sample((L,), {"axis": 0, "k": 2}, ranges=((-2, 2),)),
        ),
        cost=_cost,
    )
)
