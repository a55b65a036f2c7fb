"""A reverse sweep over a body graph: the gradient of operations that hold their meaning as a body.

Flow: `ir.ops.composite` inlines its body with it, `ir.ops.scan` makes the body of a gradient loop with it.
`transform.autodiff` does the same for whole graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.types import TypeFault


def sweep(
    b: Builder,
    body: Graph,
    inputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    known: Mapping[Value, Value] | None = None,
) -> tuple[Value | None, ...]:
    """Cotangents of the inputs of `body`, which is copied into `b` with `inputs` in their place.

    cotangents: one for each output of the body; None is zero, here and in what is given back. What reaches an
    f32 value through its cast to bf16 stays f32. known: values of the body that are at hand already.
    """
    made: dict[Value, Value] = dict(zip(body.inputs, inputs, strict=True))
    copies: list[tuple[Node, Node]] = []
    for inner in body.nodes:
        if inner.op == "input":
            continue
        with b.at(inner.origin):
            copy = b.node(inner.op, [made[v] for v in inner.inputs], inner.attrs, inner.bodies)
        for value, copied in zip(inner.outputs, copy.outputs, strict=True):
            made[value] = copied if known is None else known.get(value, copied)
        copies.append((inner, copy))
    found: dict[Value, Value] = {}

    def add(value: Value, contribution: Value | None) -> None:
        if contribution is not None:
            before = found.get(value)
            found[value] = contribution if before is None else _sum(b, before, contribution)

    for value, cotangent in zip(body.output_values, cotangents, strict=True):
        if value.type.is_float:
            add(value, cotangent)
    active = {v for v in body.inputs if v.type.is_float}
    for inner, _ in copies:
        if any(v in active for v in inner.inputs):
            active.update(inner.outputs)
    for inner, copy in reversed(copies):
        received = [found.get(v) for v in inner.outputs]
        if all(g is None for g in received) or inner.outputs[0] not in active:
            continue
        rule = OPS[inner.op].gradient
        if rule is None:
            raise TypeFault(f"`{inner.op}` has no gradient", "E-TYPE-009")
        with b.at(inner.origin):
            if inner.op == "cast" and inner.types[0].dtype == "bf16" and inner.inputs[0].dtype == "f32":
                assert received[0] is not None
                add(inner.inputs[0], widened(b, received[0]))
                continue
            for value, contribution in zip(inner.inputs, rule(b, copy, received), strict=True):
                if value in active:
                    add(value, contribution)
    return tuple(found.get(v) for v in body.inputs)


def widened(b: Builder, x: Value) -> Value:
    """A bf16 value in f32: what it was rounded from, if it is a cast of that, else itself cast up."""
    if x.node.op == "cast" and x.node.inputs[0].dtype == "f32":
        return x.node.inputs[0]
    return b.cast(x, "f32")


def _sum(b: Builder, x: Value, y: Value) -> Value:
    """x + y; of bf16 in f32, rounded once."""
    if x.dtype == "bf16":
        return b.cast(b.add(widened(b, x), widened(b, y)), "bf16")
    return b.add(x, y)
