"""Work that a device does as one: its one body, applied to the inputs, is the whole meaning.

What the body makes and no output shows lies nowhere in memory.

Flow: `plan.regions` makes them, when nothing differentiates or stacks any more; a device prints one kernel, or calls
one library, for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import run_graph
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, OpDef, Sample, Work, register
from sexpgpu.ir.ops.recompute import stack_body
from sexpgpu.ir.ops.rules import body_cost, types_by_body
from sexpgpu.ir.ops.scan import inside
from sexpgpu.ir.sweep import sweep
from sexpgpu.ir.types import TensorType


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    return types_by_body("region", types, bodies)


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return run_graph(inside(ctx, node), node.bodies[0], inputs)


def _gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    return sweep(b, node.bodies[0], node.inputs, cotangents)


def _samples() -> tuple[Sample, ...]:
    rows, columns = TensorType("f32", (2, 3)), TensorType("f32", (3,))
    b = Builder()
    x, w = b.input("x0", rows), b.input("x1", columns)
    h = b.op("tanh", b.mul(x, b.broadcast(w, rows.shape, (1,))))
    body = b.graph("region", [("y0", h), ("y1", b.add(h, x))], (x, w))
    return (Sample((rows, columns), {"kind": "maps"}, bodies=(body,)),)


register(
    OpDef(
        name="region",
        doc="The body applied to the inputs, as one piece of work of a device.",
        work=Work.EXPAND,
        params={"kind": "what the work is led by: maps, rows, product, sum or attention"},
        type_rule=_type,
        meaning=_meaning,
        stacking=stack_body,
        gradient=_gradient,
        cost=body_cost,
        samples=_samples(),
    )
)
