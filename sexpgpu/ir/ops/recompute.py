"""A body whose values are not kept for the backward pass: its gradient computes them again.

The one body has inputs and outputs in the order of the node's. Its gradient is a node of the same kind, whose body is
the forward body once more and a reverse sweep over it; so all that outlives the forward pass is what the body read.
Passes treat a body as a graph of its own, and a planner puts it in the node's place when nothing merges equal work any
more: values of the first time are never taken for those of the second.

Flow: `lang.recompute` makes them; `transform.recompute` dissolves those that no gradient needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import run_graph
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, OpDef, Sample, Work, register
from sexpgpu.ir.ops.rules import batch, body_cost, types_by_body
from sexpgpu.ir.ops.scan import inside
from sexpgpu.ir.stacking import stack_into
from sexpgpu.ir.sweep import sweep
from sexpgpu.ir.types import TensorType


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    return types_by_body("recompute", types, bodies)


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return run_graph(inside(ctx, node), node.bodies[0], inputs)


def _gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    # What was rounded to bf16 crosses the body's edge unrounded, as it would if there were no edge.
    received = {i: _source(g) for i, g in enumerate(cotangents) if g is not None and g.type.is_float}
    inner = Builder()
    held = [inner.input(f"x{i}", v.type) for i, v in enumerate(node.inputs)]
    arrived = [inner.input(f"x{n}", g.type) for n, g in enumerate(received.values(), len(held))]
    given = {i: inner.cast(g, node.types[i].dtype) for i, g in zip(received, arrived, strict=True)}
    found = sweep(inner, node.bodies[0], held, [given.get(i) for i in range(len(node.types))])
    gradients = {i: _source(v) for i, v in enumerate(found) if v is not None}
    result: list[Value | None] = [None] * len(held)
    if gradients:
        outputs = [(f"y{n}", v) for n, v in enumerate(gradients.values())]
        body = inner.graph("recompute", outputs, [*held, *arrived])
        made = b.node("recompute", (*node.inputs, *received.values()), {"again": True}, (body,))
        for i, value in zip(gradients, made.outputs, strict=True):
            result[i] = b.cast(value, held[i].dtype)
    return result


def _source(value: Value) -> Value:
    """What a bf16 value was rounded from, where that is an f32 value; else itself."""
    rounded = value.dtype == "bf16" and value.node.op == "cast" and value.node.inputs[0].dtype == "f32"
    return value.node.inputs[0] if rounded else value


def stack_body(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    """The stacking rule of an operation that is its one body: the body is stacked, and stays one."""
    body = node.bodies[0]
    inner = Builder()
    given = {
        name: inner.input(name, v.type.with_shape((k, *v.shape)) if flag else v.type)
        for name, v, flag in zip(body.input_names, body.inputs, batched, strict=True)
    }
    names = [name for name, flag in zip(given, batched, strict=True) if flag]
    made = stack_into(inner, body, given, names, k)
    outputs = [(name, batch(inner, value, flag, k)) for name, (value, flag) in made.items()]
    stacked = inner.graph(body.name, outputs, list(given.values()))
    return b.node(node.op, inputs, node.attrs, (stacked,)).outputs


def _samples() -> tuple[Sample, ...]:
    rows, matrix = TensorType("f32", (2, 3)), TensorType("f32", (3, 3))

    def layers() -> Graph:
        """Two outputs, one of them an integer, and an input that nothing reads."""
        b = Builder()
        x, w, unread = b.input("k0", rows), b.input("k1", matrix), b.input("k2", rows)
        h = b.op("tanh", b.product("ij,jk->ik", x, w))
        outputs = [("y0", b.mul(b.op("tanh", b.product("ij,jk->ik", h, w)), x)), ("y1", b.cast(h, "i32"))]
        return b.graph("recompute", outputs, (x, w, unread))

    return (Sample((rows, matrix, rows), {"again": False}, bodies=(layers(),)),)


register(
    OpDef(
        name="recompute",
        doc="The body applied to the inputs; its values are computed again for the gradient.",
        work=Work.EXPAND,
        params={"again": "whether this is the gradient of one"},
        type_rule=_type,
        meaning=_meaning,
        stacking=stack_body,
        gradient=_gradient,
        cost=body_cost,
        samples=_samples(),
    )
)
