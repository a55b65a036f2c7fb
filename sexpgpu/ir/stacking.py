"""Copying a graph for k microbatches at once: each node by the stacking rule of its operation.

Flow: `transform.stacking` stacks whole graphs with it, rules of operations with bodies stack their bodies.
Nodes that see no batched value are copied as they are, so parameters and what is made of them exist once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.opdef import OPS


def stack_into(
    b: Builder, graph: Graph, inputs: Mapping[str, Value], batched: Collection[str], k: int
) -> dict[str, tuple[Value, bool]]:
    """Copy `graph` into `b` for k microbatches; per output its value, and whether that has a leading axis k.

    Args: inputs: values of `b` that stand for graph inputs, by input name; an input that is not given becomes
        an input of `b`. batched: names of the graph inputs that have a leading axis of k.
    """
    made: dict[Value, tuple[Value, bool]] = {}
    for value in graph.inputs:
        name = str(value.node.attrs["name"])
        flag = name in batched
        type = value.type.with_shape((k, *value.shape)) if flag else value.type
        given = inputs.get(name)
        stacked = b.input(name, type) if given is None else given
        assert stacked.type == type, (graph.name, name, stacked.type, type)
        made[value] = stacked, flag
    for node in graph.nodes:
        if node.op == "input":
            continue
        values = [made[v][0] for v in node.inputs]
        flags = [made[v][1] for v in node.inputs]
        with b.at(node.origin):
            if any(flags):
                outputs = OPS[node.op].stacking(b, node, values, flags, k)
            else:
                outputs = b.node(node.op, values, node.attrs, node.bodies).outputs
        for value, output in zip(node.outputs, outputs, strict=True):
            expected = value.type.with_shape((k, *value.shape)) if any(flags) else value.type
            assert output.type == expected, (node, output.type, expected)
            made[value] = output, any(flags)
    return {name: made[value] for name, value in graph.outputs}
