"""Work that a device does as one: its bodies, applied to the inputs, are the whole meaning.

Most have one. Several stand side by side: the first takes the first inputs and gives the first outputs, and so on.
What a body makes and no output shows lies nowhere in memory.

Flow: `plan.regions` makes them, when nothing differentiates or stacks any more; a device prints one kernel, or calls
one library, for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import run_graph
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Array, Context, Cost, OpDef, Sample, Work, bytes_moved, register
from sexpgpu.ir.ops.recompute import stack_body
from sexpgpu.ir.ops.rules import types_by_body
from sexpgpu.ir.ops.scan import inside
from sexpgpu.ir.sweep import sweep
from sexpgpu.ir.types import TensorType


def shares(node: Node) -> list[tuple[Graph, slice, slice]]:
    """Each body of a region, with its part of the inputs and of the outputs."""
    found, read, made = [], 0, 0
    for body in node.bodies:
        found.append((body, slice(read, read + len(body.inputs)), slice(made, made + len(body.outputs))))
        read, made = read + len(body.inputs), made + len(body.outputs)
    return found


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    found: tuple[TensorType, ...] = ()
    read = 0
    for body in bodies:
        found += types_by_body("region", types[read : read + len(body.inputs)], (body,))
        read += len(body.inputs)
    return found


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    ctx = inside(ctx, node)
    return tuple([array for body, read, _ in shares(node) for array in run_graph(ctx, body, inputs[read])])


def _stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    found: tuple[Value, ...] = ()
    for body, read, _ in shares(node):
        alone = Builder().node("region", node.inputs[read], node.attrs, (body,))
        found += stack_body(b, alone, inputs[read], batched[read], k)
    return found


def _gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    found: list[Value | None] = []
    for body, read, made in shares(node):
        found += sweep(b, body, node.inputs[read], cotangents[made])
    return found


def _cost(node: Node) -> Cost:
    flops = sum([OPS[inner.op].cost(inner).flops for body in node.bodies for inner in body.nodes])
    return Cost(flops, bytes_moved(node))


def _samples() -> tuple[Sample, ...]:
    rows, columns = TensorType("f32", (2, 3)), TensorType("f32", (3,))
    b = Builder()
    x, w = b.input("x0", rows), b.input("x1", columns)
    h = b.op("tanh", b.mul(x, b.broadcast(w, rows.shape, (1,))))
    maps = b.graph("region", [("y0", h), ("y1", b.add(h, x))], (x, w))

    def leaf(type: TensorType) -> Graph:
        b = Builder()
        x, g = b.input("x0", type), b.input("x1", type)
        return b.graph("region", [("y0", b.sub(x, b.mul(g, g)))], (x, g))

    types = (rows, rows, columns, columns)
    leaves = Sample(types, {"kind": "leaves"}, bodies=(leaf(rows), leaf(columns)))
    return Sample((rows, columns), {"kind": "maps"}, bodies=(maps,)), leaves


register(
    OpDef(
        name="region",
        doc="The bodies applied to their inputs, as one piece of work of a device.",
        work=Work.EXPAND,
        params={"kind": "what the work is led by: maps, rows, leaves, product, sum or attention"},
        type_rule=_type,
        meaning=_meaning,
        stacking=_stacking,
        gradient=_gradient,
        cost=_cost,
        samples=_samples(),
    )
)
