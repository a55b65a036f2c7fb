"""`recompute` where there is nothing to compute again: its body takes its place.

Flow: once nothing differentiates a graph any more. Evaluations and generators lose nothing by it then: what is equal
inside and outside of a body becomes one value.
"""

from __future__ import annotations

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph


def inline_recompute(graph: Graph) -> Graph:
    """`graph` with every `recompute` dissolved, at any depth, unless it holds the gradient of one."""
    marks = [node.attrs["again"] for node in graph.walk() if node.op == "recompute"]
    return without_recompute(graph) if marks and not any(marks) else graph


def without_recompute(graph: Graph) -> Graph:
    """`graph` with every `recompute` dissolved, at any depth; what is computed twice may then be one value."""
    b = Builder()
    made = {value: b.input(str(value.node.attrs["name"]), value.type) for value in graph.inputs}
    for node in graph.nodes:
        if node.op == "input":
            continue
        inputs = [made[v] for v in node.inputs]
        bodies = [without_recompute(body) for body in node.bodies]
        with b.at(node.origin):
            if node.op == "recompute":
                results = b.copy(bodies[0], dict(zip(bodies[0].input_names, inputs, strict=True)))
            else:
                results = b.node(node.op, inputs, node.attrs, bodies).outputs
        made.update(zip(node.outputs, results, strict=True))
    outputs = [(name, made[value]) for name, value in graph.outputs]
    return b.graph(graph.name, outputs, [made[value] for value in graph.inputs])
