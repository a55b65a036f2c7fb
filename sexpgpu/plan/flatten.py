"""One flat list of nodes for a graph: composites that a device runs by their body are replaced by it.

Flow: first thing that `plan.memory` does. Values become numbers here, since one body may stand at several
places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sexpgpu.ir.graph import NOWHERE, Graph, Node, Origin, Value, reachable
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Item:
    """A node at one place of the flat list, and the numbers of the values that it reads and makes there."""

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Flat:
    """A graph without bodies to run: items in order, the type of each value, named inputs and outputs.

    `groups` holds, for each node of the graph by id, the items that it became; `numbers` the graph's own
    values.
    """

    items: list[Item] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: tuple[tuple[str, int], ...] = ()
    groups: dict[int, range] = field(default_factory=dict)
    numbers: dict[Value, int] = field(default_factory=dict)

    def value(self, type: TensorType) -> int:
        """The number of a new value."""
        self.types.append(type)
        return len(self.types) - 1


def flatten(graph: Graph, by_body: Callable[[Node], bool]) -> Flat:
    """`graph` with every node that `by_body` picks replaced by its bodies, at any depth."""
    flat = Flat()
    for value, name in zip(graph.inputs, graph.input_names, strict=True):
        flat.inputs[name] = flat.numbers[value] = flat.value(value.type)
    for node in graph.nodes:
        if node.op != "input":
            start = len(flat.items)
            _append(flat, node, flat.numbers, by_body)
            flat.groups[node.id] = range(start, len(flat.items))
    flat.outputs = tuple((name, flat.numbers[value]) for name, value in graph.outputs)
    return flat


def _append(
    flat: Flat, node: Node, numbers: dict[Value, int], by_body: Callable[[Node], bool], within: Origin = NOWHERE
) -> None:
    inputs = tuple([numbers[v] for v in node.inputs])
    origin = within if node.origin == NOWHERE else node.origin
    if not by_body(node):
        outputs = tuple([flat.value(t) for t in node.types])
        flat.items.append(Item(_placed(node, origin), inputs, outputs))
        numbers.update(zip(node.outputs, outputs, strict=True))
        return
    for body, read, made in shares(node):
        inner: dict[Value, int] = dict(zip(body.inputs, inputs[read], strict=True))
        for member in body.nodes:
            if member.op != "input":
                _append(flat, member, inner, by_body, origin)
        numbers.update(zip(node.outputs[made], [inner[v] for v in body.output_values], strict=True))


def _placed(node: Node, origin: Origin) -> Node:
    """`node` with the origin of this place: bodies are shared and come from nowhere, but a fault must name a line."""
    if node.origin == origin:
        return node
    return Node(node.id, node.op, node.inputs, node.attrs, node.types, node.bodies, origin)


def orders(graph: Graph, flat: Flat) -> list[list[Item]]:
    """Orders that a device may execute: as the graph stands, as its nodes were made, and last output first.

    The last two keep what a reverse sweep makes near where it made it, when outputs are listed first layer
    first.
    """
    as_made = sorted(graph.nodes, key=_by_id)
    last_first = reachable(tuple(reversed(graph.output_values)))
    found = []
    for nodes in (graph.nodes, as_made, last_first):
        found.append([flat.items[i] for node in nodes if node.op != "input" for i in flat.groups[node.id]])
    return found


def _by_id(node: Node) -> int:
    return node.id
