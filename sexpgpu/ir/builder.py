"""The builder: the only maker of nodes. It checks types, interns equal nodes and stamps origins.

Flow: the elaborator and every pass hold one builder per graph under construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sexpgpu.ir.graph import NOWHERE, Attr, Graph, Node, Origin, Value, reachable
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.types import TensorType, TypeFault, admit

NUMERIC = frozenset({"constant", "composite"})
"""Operations with numbers of any kind among their attributes."""


def _key(op: str, attrs: Mapping[str, Attr]) -> object:
    """Equal for equal attributes. Text keeps 0.0 from -0.0 and 1 from 1.0, which compare equal in Python."""
    if not attrs:
        return None
    items = sorted(attrs.items()) if len(attrs) > 1 else list(attrs.items())
    return repr(items) if op in NUMERIC else tuple(items)


class Builder:
    """Makes nodes of one graph.

    `origin` is stamped on new nodes; set it with `at`. Methods named after operations take values and give
    values; `node` is the general form.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.origin: Origin = NOWHERE
        self._interned: dict[tuple[Any, ...], Node] = {}
        self._inputs: dict[str, Value] = {}

    @contextmanager
    def at(self, origin: Origin) -> Iterator[None]:
        """Stamp `origin` on nodes made inside the block."""
        before, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = before

    def node(
        self,
        op: str,
        inputs: Sequence[Value] = (),
        attrs: Mapping[str, Attr] | None = None,
        bodies: Sequence[Graph] = (),
    ) -> Node:
        """The interned node. Raises TypeFault where the operation's type rule refuses."""
        attrs = attrs or {}
        operands = tuple(inputs)
        attrs_key = _key(op, attrs)
        key = (op, operands, attrs_key, tuple(map(id, bodies)) if bodies else None)
        found = self._interned.get(key)
        if found is not None:
            return found
        types = OPS[op].type_rule([v.type for v in inputs], attrs, bodies)
        for type in types:
            admit(type)
        made = Node(len(self.nodes), op, operands, dict(attrs), types, tuple(bodies), self.origin, attrs_key)
        self.nodes.append(made)
        self._interned[key] = made
        return made

    def again(self, node: Node, operands: tuple[Value, ...]) -> Node:
        """What `node` gives for a node without bodies, of operands of the same types: nothing is checked again."""
        key = (node.op, operands, node.key, None)
        found = self._interned.get(key)
        if found is None:
            found = Node(len(self.nodes), node.op, operands, node.attrs, node.types, (), self.origin, node.key)
            self.nodes.append(found)
            self._interned[key] = found
        return found

    def op(self, op: str, *inputs: Value, **attrs: Attr) -> Value:
        """The single output of an operation."""
        return self.node(op, inputs, attrs).outputs[0]

    def input(self, name: str, type: TensorType) -> Value:
        """The graph input `name`; asked for again it is the same value. Raises TypeFault if the types differ."""
        found = self._inputs.get(name)
        if found is None:
            found = self.op("input", name=name, dtype=type.dtype, shape=type.shape)
            self._inputs[name] = found
        elif found.type != type:
            raise TypeFault(f"`{name}` is {found.type} and {type}")
        return found

    def graph(
        self, name: str, outputs: Sequence[tuple[str, Value]], inputs: Sequence[Value] | None = None
    ) -> Graph:
        """Freeze what `outputs` need. `inputs` fixes their order, and keeps those that nothing reads."""
        nodes = reachable(tuple(value for _, value in outputs))
        if inputs is None:
            used = {node.id for node in nodes}
            inputs = [v for v in self._inputs.values() if v.node.id in used]
        return Graph(name, tuple(inputs), tuple(outputs), nodes)

    def copy(self, graph: Graph, inputs: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
        """Copy `graph` into this builder and give its outputs; `inputs` replaces graph inputs by name."""
        mapped: dict[Value, Value] = {}
        for node in graph.nodes:
            with self.at(node.origin):
                if node.op == "input":
                    name = str(node.attrs["name"])
                    given = inputs.get(name) if inputs is not None else None
                    mapped[node.outputs[0]] = self.input(name, node.types[0]) if given is None else given
                else:
                    made = self.node(node.op, [mapped[v] for v in node.inputs], node.attrs, node.bodies)
                    mapped.update(zip(node.outputs, made.outputs, strict=True))
        return tuple(mapped[v] for v in graph.output_values)

    # Shorthands that the rules of operations read well with.

    def constant(self, value: float | int | bool, type: TensorType) -> Value:
        """A tensor filled with one value."""
        scalar = self.op("constant", value=value, dtype=type.dtype, shape=())
        return scalar if type.shape == () else self.op("broadcast", scalar, shape=type.shape, axes=())

    def like(self, value: float | int | bool, other: Value) -> Value:
        """A tensor of `other`'s type filled with one value."""
        return self.constant(value, other.type)

    def literal(self, values: Sequence[float | int | bool], type: TensorType) -> Value:
        """A small tensor of given elements, in row-major order."""
        return self.op("constant", value=tuple(values), dtype=type.dtype, shape=type.shape)

    def iota(self, dtype: str, shape: Sequence[int], axis: int = 0) -> Value:
        return self.op("iota", dtype=dtype, shape=tuple(shape), axis=axis)

    def add(self, x: Value, y: Value) -> Value:
        return self.op("add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.op("sub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.op("mul", x, y)

    def div(self, x: Value, y: Value) -> Value:
        return self.op("div", x, y)

    def neg(self, x: Value) -> Value:
        return self.op("neg", x)

    def scale(self, x: Value, factor: float | int) -> Value:
        """`x` times a number."""
        return self.op("mul", x, self.like(factor, x))

    def where(self, test: Value, x: Value, y: Value) -> Value:
        return self.op("where", test, x, y)

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.dtype == dtype else self.op("cast", x, dtype=dtype)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if x.shape == tuple(shape) else self.op("reshape", x, shape=tuple(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return x if tuple(perm) == tuple(range(x.rank)) else self.op("transpose", x, perm=tuple(perm))

    def broadcast(self, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
        """Axis i of `x` becomes axis `axes[i]` of the result; the other axes repeat it."""
        shape, axes = tuple(shape), tuple(axes)
        return (
            x
            if x.shape == shape and axes == tuple(range(len(shape)))
            else self.op("broadcast", x, shape=shape, axes=axes)
        )

    def expand_like(self, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
        """Undo a reduction over `axes`: repeat `x` along them to fill `shape`."""
        kept = [i for i in range(len(shape)) if i not in set(axes)]
        return self.broadcast(x, shape, kept)

    def sum(self, x: Value, axes: Sequence[int]) -> Value:
        axes = tuple(sorted(axes))
        return self.op("sum", x, axes=axes) if axes else x

    def slice(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """`x[start:stop]` along one axis."""
        if start == 0 and stop == x.shape[axis]:
            return x
        starts, stops = [0] * x.rank, list(x.shape)
        starts[axis], stops[axis] = start, stop
        return self.op("slice", x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.rank)

    def product(self, spec: str, x: Value, y: Value) -> Value:
        """A contraction in einsum notation, f32 out of float operands: `product("ab,bc->ac", x, y)`."""
        return self.op("product", x, y, spec=spec)
