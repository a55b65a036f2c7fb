"""Nodes, values and graphs: a pure, typed, single-assignment program with static shapes.

Flow: a `Builder` makes nodes; `Builder.graph` freezes them; passes read one graph and build the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sexpgpu.ir.types import TensorType
from sexpgpu.source import Span

Attr = int | float | str | bool | None | tuple["Attr", ...]
Attrs = Mapping[str, Attr]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from: the form that made it, and through what.

    `note` says how (`gradient of`, `called from`), `parent` is the origin that the note speaks of.
    """

    span: Span | None = None
    note: str = ""
    parent: Origin | None = None

    @property
    def place(self) -> Span | None:
        """The innermost place in the user's own files that this goes back to; in the library where there is none."""
        at: Origin | None = self
        while at is not None:
            if at.span is not None and not at.span.source.is_library:
                return at.span
            at = at.parent
        return self.span


NOWHERE = Origin()


class Node:
    """One operation: `op` of `inputs`, with static `attrs` and, for loops and composites, body graphs.

    Immutable after construction; only a `Builder` makes one. `id` orders nodes topologically in their builder; `key`
    is equal for equal attributes.
    """

    __slots__ = ("attrs", "bodies", "id", "inputs", "key", "op", "origin", "outputs", "types")

    def __init__(
        self,
        id: int,
        op: str,
        inputs: tuple[Value, ...],
        attrs: Attrs,
        types: tuple[TensorType, ...],
        bodies: tuple[Graph, ...],
        origin: Origin,
        key: object = None,
    ) -> None:
        self.id = id
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.types = types
        self.bodies = bodies
        self.origin = origin
        self.key = key
        self.outputs = (Value(self, 0, types[0]),) if len(types) == 1 else tuple(
            [Value(self, i, t) for i, t in enumerate(types)]
        )

    def __repr__(self) -> str:
        return f"%{self.id} = {self.op}({', '.join(map(repr, self.inputs))}) {' '.join(map(str, self.types))}"


class Value:
    """One output of a node. Compared by identity: a builder interns its nodes, so equal work is one value."""

    __slots__ = ("index", "node", "type")

    def __init__(self, node: Node, index: int, type: TensorType) -> None:
        self.node = node
        self.index = index
        self.type = type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __repr__(self) -> str:
        return f"%{self.node.id}" if len(self.node.types) == 1 else f"%{self.node.id}.{self.index}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A frozen graph.

    `inputs` are values of `input` nodes, in order; `outputs` are named. `nodes` holds just what the outputs
    need, in an order that a device may execute as it stands. Input and output names carry their role:
    `slot:net.w` is memory that outlives the call, `feed:tokens` arrives with the call, `result:loss` leaves it.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    nodes: tuple[Node, ...] = field(repr=False)

    @property
    def output_values(self) -> tuple[Value, ...]:
        return tuple(value for _, value in self.outputs)

    def output(self, name: str) -> Value:
        """The value of output `name`; KeyError if there is none."""
        return dict(self.outputs)[name]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(str(value.node.attrs["name"]) for value in self.inputs)

    def walk(self) -> Iterator[Node]:
        """Every node, bodies included, in order."""
        for node in self.nodes:
            for body in node.bodies:
                yield from body.walk()
            yield node


def reachable(outputs: tuple[Value, ...]) -> tuple[Node, ...]:
    """The nodes that `outputs` need, inputs before users, depth first in the order of the outputs.

    Depth first keeps a value close to its reader, which is what keeps few values alive.
    """
    order: list[Node] = []
    seen: set[int] = set()
    for output in outputs:
        if output.node.id in seen:
            continue
        seen.add(output.node.id)
        stack = [(output.node, iter(output.node.inputs))]
        while stack:
            node, rest = stack[-1]
            for value in rest:
                child = value.node
                if child.id not in seen:
                    seen.add(child.id)
                    stack.append((child, iter(child.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return tuple(order)
