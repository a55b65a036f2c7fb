"""Reverse-mode differentiation: one sweep over a builder's nodes, by the gradient rule of each operation.

Flow: after raising and stacking; also under `grad` while a file is elaborated, where the sweep's own nodes can be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node, Origin, Value, reachable
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.sweep import widened
from sexpgpu.ir.types import TypeFault


def depends_on(outputs: Sequence[Value], wrt: Sequence[Value]) -> set[int]:
    """Ids of the nodes on a path from `wrt` to `outputs`, the nodes of `wrt` included."""
    active = {v.node.id for v in wrt}
    for node in reachable(tuple(outputs)):
        if node.id not in active and any(v.node.id in active for v in node.inputs):
            active.add(node.id)
    return active


def differentiate(
    b: Builder, cotangents: Mapping[Value, Value], wrt: Sequence[Value]
) -> tuple[Value | None, ...]:
    """Gradients of Σ ⟨cotangent, output⟩ with respect to `wrt`.

    Args: cotangents: for each output its cotangent, a value of the output's type.
    Returns: one value per entry of `wrt`, of its type; None where nothing depends on it.
    Raises: TypeFault E-TYPE-009 where an operation on the way has no gradient rule.
    Contributions to one value are added in the order in which its readers were made, last reader first.
    Through a cast from f32 to bf16 the gradient of a weight stays f32: it is not rounded on the way back.
    """
    active = depends_on(tuple(cotangents), wrt)
    found: dict[Value, Value] = {}

    def add(value: Value, contribution: Value) -> None:
        before = found.get(value)
        found[value] = contribution if before is None else _sum(b, before, contribution)

    for output, cotangent in cotangents.items():
        add(output, cotangent)
    stops = {v.node.id for v in wrt}
    for node in sorted(reachable(tuple(cotangents)), key=_by_id, reverse=True):
        if node.id not in active or (node.id in stops and not any(v.node.id in active for v in node.inputs)):
            continue
        received = [found.get(v) for v in node.outputs]
        if all(g is None for g in received):
            continue
        rule = OPS[node.op].gradient
        if rule is None:
            raise TypeFault(f"`{node.op}` has no gradient", "E-TYPE-009")
        with b.at(Origin(node.origin.span, "gradient of", node.origin)):
            if node.op == "cast" and node.types[0].dtype == "bf16" and node.inputs[0].dtype == "f32":
                assert received[0] is not None
                add(node.inputs[0], widened(b, received[0]))
                continue
            for value, contribution in zip(node.inputs, rule(b, node, received), strict=True):
                if contribution is not None and value.node.id in active:
                    assert contribution.type == value.type, (node, value.type, contribution.type)
                    add(value, contribution)
    return tuple(found.get(v) for v in wrt)


def _sum(b: Builder, x: Value, y: Value) -> Value:
    """x + y; contributions in bf16 are added in f32, unrounded where that can be seen, and the sum is rounded once."""
    if x.dtype != "bf16":
        return b.add(x, y)
    return b.cast(b.add(widened(b, x), widened(b, y)), "bf16")


def _by_id(node: Node) -> int:
    return node.id
