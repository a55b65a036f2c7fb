"""What a region does as a graph: its members in order, with what they make again, and without what nobody needs.

Flow: `plan.regions` builds a body for each region, and asks a device whether it can do that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.types import TensorType

WHOLE = frozenset({"attention", "attention-gradient"})
"""Composites that stay one node in the body of a region."""


@dataclass(slots=True)
class Body:
    """The body of a region before it is a graph.

    reads: values that it takes from outside. lines: per member, its node and its operands: a read (index, -1), or a
    line and its output. known: where each value is among them. pulled: whether work that others repeat is among them.
    """

    reads: list[int] = field(default_factory=list)
    lines: list[tuple[Node, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    pulled: bool = False


def is_map(node: Node) -> bool:
    """Whether a node is elementwise work that any region may do."""
    op = OPS[node.op]
    if op.work is not Work.MAP or op.reports or not node.types[0].size:
        return False
    return all(value.shape == node.types[0].shape for value in node.inputs)


def widens(node: Node) -> bool:
    """Whether a node makes f32 of bf16."""
    return node.op == "cast" and node.inputs[0].dtype == "bf16" and node.types[0].dtype == "f32"


def pruned(body: Body, writes: Sequence[tuple[int, int]]) -> Body:
    """A body without what none of its results needs."""
    needed = {at[0] for at in writes if at[1] >= 0}
    read = {at[0] for at in writes if at[1] < 0}
    for line in reversed(range(len(body.lines))):
        if line in needed:
            for index, output in body.lines[line][1]:
                (read if output < 0 else needed).add(index)
    if len(needed) == len(body.lines) and len(read) == len(body.reads):
        return body
    lines = {old: new for new, old in enumerate(sorted(needed))}
    reads = {old: new for new, old in enumerate(sorted(read))}

    def moved(at: tuple[int, int]) -> tuple[int, int]:
        return (reads[at[0]], -1) if at[1] < 0 else (lines[at[0]], at[1])

    return Body(
        [body.reads[i] for i in sorted(read)],
        [(body.lines[i][0], tuple([moved(at) for at in body.lines[i][1]])) for i in sorted(needed)],
        {value: moved(at) for value, at in body.known.items() if at[0] in (reads if at[1] < 0 else lines)},
        body.pulled,
    )


class Likeness:
    """A node that equals those of the same operation, attributes, bodies and types."""

    __slots__ = ("key", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.key = (node.op, repr(sorted(node.attrs.items())), node.types, tuple([id(body) for body in node.bodies]))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Likeness) and self.key == other.key


@lru_cache(maxsize=4096)
def graph_of(
    types: tuple[TensorType, ...],
    lines: tuple[tuple[Likeness, tuple[tuple[int, int], ...]], ...],
    writes: tuple[tuple[int, int], ...],
) -> Graph:
    """A body as a graph; composites are replaced by their own bodies, so that all of it is plain work."""
    b = Builder()
    inputs = [b.input(f"x{i}", type) for i, type in enumerate(types)]
    made: list[tuple[Value, ...]] = []

    def value(at: tuple[int, int]) -> Value:
        line, output = at
        return inputs[line] if output < 0 else made[line][output]

    for likeness, operands in lines:
        node, given = likeness.node, [value(at) for at in operands]
        if node.op == "composite" and node.attrs["name"] not in WHOLE:
            body = node.bodies[0]
            made.append(b.copy(body, dict(zip(body.input_names, given, strict=True))))
        else:
            made.append(b.node(node.op, given, node.attrs, node.bodies).outputs)
    return b.graph("region", [(f"y{i}", value(at)) for i, at in enumerate(writes)], inputs)
