"""Bodies without what nobody reads: of loops emitted values, carries that only feed themselves, inputs; of
`recompute` outputs and inputs.

Flow: after differentiation, before simplification. A scan emits all that its gradient may want; an evaluation
wants none of it, and a gradient seldom all. The gradient of `recompute` has something for every input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attr, Graph, Node, Value
from sexpgpu.ir.ops.scan import split


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is left of a node: positions among its inputs and outputs, the body, the attributes."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    body: Graph
    attrs: Mapping[str, Attr]


def prune_loops(graph: Graph) -> Graph:
    """`graph` with the same inputs and outputs, and in its scans and recomputed bodies only what these need."""
    if not any(node.op in PRUNED for node in graph.walk()):
        return graph
    return _pruned(graph, range(len(graph.outputs)))


def _pruned(graph: Graph, wanted: Collection[int]) -> Graph:
    """`graph` for the outputs at positions `wanted`; inputs stay."""
    live = {graph.outputs[i][1] for i in wanted}
    plans: dict[int, _Kept] = {}
    for node in reversed(graph.nodes):
        outputs = {i for i, value in enumerate(node.outputs) if value in live}
        if not outputs:
            continue
        if node.op in PRUNED:
            plans[node.id] = kept = PRUNED[node.op](node, outputs)
            live.update(node.inputs[i] for i in kept.inputs)
        else:
            live.update(node.inputs)
    b = Builder()
    made = {value: b.input(str(value.node.attrs["name"]), value.type) for value in graph.inputs}
    for node in graph.nodes:
        if node.op == "input" or not any(value in live for value in node.outputs):
            continue
        with b.at(node.origin):
            plan = plans.get(node.id)
            if plan is None:
                copy = b.node(node.op, [made[v] for v in node.inputs], node.attrs, node.bodies)
                made.update(zip(node.outputs, copy.outputs, strict=True))
            else:
                copy = b.node(node.op, [made[node.inputs[i]] for i in plan.inputs], plan.attrs, (plan.body,))
                made.update(zip([node.outputs[i] for i in plan.outputs], copy.outputs, strict=True))
    outputs_left = [(name, made[v]) for i, (name, v) in enumerate(graph.outputs) if i in set(wanted)]
    return b.graph(graph.name, outputs_left, [made[v] for v in graph.inputs])


def _plan_recompute(node: Node, live: Collection[int]) -> _Kept:
    """What `recompute` needs for its outputs at positions `live`."""
    outputs = tuple(sorted(live))
    inner = _pruned(node.bodies[0], outputs)
    used = {value for member in inner.nodes for value in member.outputs if member.op == "input"}
    read = tuple([i for i, value in enumerate(inner.inputs) if value in used])
    body = Graph(inner.name, tuple([inner.inputs[i] for i in read]), inner.outputs, inner.nodes)
    return _Kept(read, outputs, body, node.attrs)


def _plan_scan(node: Node, live: Collection[int]) -> _Kept:
    """What a scan needs for its outputs at positions `live`."""
    body, (carries, first) = node.bodies[0], split(node)
    emits = [i for i in live if i >= carries]
    moving = {i for i in live if i < carries}
    while True:
        inner = _pruned(body, [*moving, *emits])
        used = {value for node in inner.nodes for value in node.outputs if node.op == "input"}
        read = {i for i, value in enumerate(inner.inputs) if value in used}
        wider = moving | {i for i in read if i < carries}
        if wider == moving:
            break
        moving = wider
    inputs = tuple(sorted(moving | {i for i in read if i >= carries}))
    outputs = tuple(sorted([*moving, *emits]))
    attrs = {
        **node.attrs,
        "num_carries": len(moving),
        "num_sequences": sum(carries <= i < first for i in inputs),
    }
    return _Kept(inputs, outputs, _renamed(inner, inputs, carries, first), attrs)


def _renamed(body: Graph, inputs: tuple[int, ...], carries: int, first: int) -> Graph:
    """The body with the inputs at `inputs` alone, counted afresh, as are its outputs."""
    b = Builder()
    given: dict[str, Value] = {}
    counts = {"c": 0, "x": 0, "k": 0}
    for i in inputs:
        letter = "c" if i < carries else "x" if i < first else "k"
        given[body.input_names[i]] = b.input(f"{letter}{counts[letter]}", body.inputs[i].type)
        counts[letter] += 1
    outputs = b.copy(body, given)
    num = counts["c"]
    names = [f"c{i}" if i < num else f"e{i - num}" for i in range(len(outputs))]
    return b.graph(body.name, list(zip(names, outputs, strict=True)), list(given.values()))


PRUNED: Mapping[str, Callable[[Node, Collection[int]], _Kept]] = {"scan": _plan_scan, "recompute": _plan_recompute}
"""What is left of a node for its outputs at some positions, by operation."""
