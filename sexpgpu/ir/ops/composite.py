"""Composites: a whole subgraph under a name. A device takes one in a single kernel, or inlines its body.

Flow: `transform.raising` makes them through `ir.composites`, which holds their bodies and says how they
differentiate.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import COMPOSITES, apply
from sexpgpu.ir.evaluate import run_graph
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, OpDef, Work, register
from sexpgpu.ir.ops.rules import batch, body_cost, types_by_body
from sexpgpu.ir.stacking import stack_into
from sexpgpu.ir.sweep import sweep
from sexpgpu.ir.types import TensorType


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    return types_by_body(str(attrs["name"]), types, bodies)


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    flag = ctx.flag
    # A fault inside the body is the composite's: only its own node has an origin in the user's file.
    inner = ctx if flag is None else Context(ctx.dtypes, lambda _, fault: flag(node, fault))
    return run_graph(inner, node.bodies[0], inputs)


def _stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    definition = COMPOSITES[str(node.attrs["name"])]
    if definition.rowwise and not any(batched[i] for i in definition.shared):
        rows = [v if i in definition.shared else batch(b, v, batched[i], k) for i, v in enumerate(inputs)]
        return apply(b, definition.name, rows, node.attrs).outputs
    body = node.bodies[0]
    names = [f"x{i}" for i, flag in enumerate(batched) if flag]
    outputs = stack_into(b, body, dict(zip(body.input_names, inputs, strict=True)), names, k)
    return tuple(batch(b, value, flag, k) for value, flag in outputs.values())


def _gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    paired = COMPOSITES[str(node.attrs["name"])].gradient
    received = {f"g{i}": g for i, g in enumerate(cotangents) if g is not None}
    # A cotangent that the paired composite has no formula for: rare, so the body's own operations answer.
    if paired is None or not received.keys() <= set(paired.takes) or not received:
        return sweep(b, node.bodies[0], node.inputs, cotangents)
    named: dict[str, tuple[Value, ...]] = {"x": node.inputs}
    named |= {f"x{i}": (v,) for i, v in enumerate(node.inputs)}
    named |= {f"y{i}": (v,) for i, v in enumerate(node.outputs)}
    named |= {name: (g,) for name, g in received.items()}
    made = apply(b, paired.name, [v for name in paired.takes for v in named[name]], node.attrs)
    found: list[Value | None] = [None] * len(node.inputs)
    for position, value in zip(paired.gives, made.outputs, strict=True):
        found[position] = value
    return found


register(
    OpDef(
        name="composite",
        doc="A named subgraph: its one body, applied to the inputs, is its whole meaning.",
        work=Work.EXPAND,
        params={"name": "which composite", "…": "its own parameters"},
        type_rule=_type,
        meaning=_meaning,
        stacking=_stacking,
        gradient=_gradient,
        cost=body_cost,
        samples=(),
    )
)
