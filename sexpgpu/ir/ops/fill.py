"""Values that come from nowhere: graph inputs, constants, counters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, OpDef, Sample, Work, no_gradient, register
from sexpgpu.ir.ops.rules import attr_shape
from sexpgpu.ir.types import TensorType


def _declared(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    return (TensorType(str(attrs["dtype"]), attr_shape(attrs)),)


def _never_stacked(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    raise AssertionError(f"{node} has no inputs to stack")


def _input(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    raise AssertionError(f"{node} is given, not computed")


def _constant(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    value = node.attrs["value"]
    dtype = ctx.dtype(node.types[0])
    if isinstance(value, tuple):
        return np.array(value, dtype).reshape(node.types[0].shape)
    return np.full(node.types[0].shape, value, dtype)


def _iota(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    (out,) = node.types
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    line = np.arange(out.shape[axis]).astype(ctx.dtype(out))
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(out.rank)]), out.shape)


register(
    OpDef(
        name="input",
        doc="A value given to the graph by name: memory (`slot:`) or an argument of the call (`feed:`).",
        work=Work.INPUT,
        params={"name": "role and name", "dtype": "its dtype", "shape": "its shape"},
        type_rule=_declared,
        meaning=_input,
        stacking=_never_stacked,
        gradient=no_gradient,
        samples=(),
    )
)
register(
    OpDef(
        name="constant",
        doc="A tensor of `shape`, filled with one `value` or holding a tuple of them in row-major order.",
        work=Work.FILL,
        params={"value": "number, or one per element", "dtype": "dtype", "shape": "shape"},
        type_rule=_declared,
        meaning=_constant,
        stacking=_never_stacked,
        gradient=no_gradient,
        samples=(
            Sample((), {"value": 1.5, "dtype": "f32", "shape": (2, 3)}),
            Sample((), {"value": (1, 2, 3), "dtype": "i32", "shape": (3,)}),
        ),
    )
)
register(
    OpDef(
        name="iota",
        doc="A tensor of `shape` whose elements are their index along `axis`.",
        work=Work.FILL,
        params={"dtype": "dtype", "shape": "shape", "axis": "the axis that counts"},
        type_rule=_declared,
        meaning=_iota,
        stacking=_never_stacked,
        gradient=no_gradient,
        samples=(
            Sample((), {"dtype": "i32", "shape": (5,), "axis": 0}),
            Sample((), {"dtype": "f32", "shape": (2, 3, 4), "axis": 1}),
        ),
    )
)
