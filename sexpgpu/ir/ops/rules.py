"""Pieces that the rules of several families share: reading attributes, moving batch axes to the front."""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Node, Value


def attr_ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """A tuple attribute of integers."""
    value = attrs[name]
    assert isinstance(value, tuple), (name, value)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]


def attr_int(attrs: Attrs, name: str) -> int:
    """An integer attribute."""
    value = attrs[name]
    assert isinstance(value, int), (name, value)
    return value


def attr_shape(attrs: Attrs) -> tuple[int, ...]:
    """The attribute `shape`."""
    return attr_ints(attrs, "shape")


def batch(b: Builder, value: Value, batched: bool, k: int) -> Value:
    """`value` with a leading axis of k: as it is where it has one, repeated where not."""
    if batched:
        return value
    return b.broadcast(value, (k, *value.shape), range(1, value.rank + 1))


def batch_all(b: Builder, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> list[Value]:
    """Every input with a leading axis of k."""
    return [batch(b, v, flag, k) for v, flag in zip(inputs, batched, strict=True)]


def map_stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    """The stacking rule of an operation that treats elements alike: a leading axis changes nothing."""
    return b.node(node.op, batch_all(b, inputs, batched, k), node.attrs).outputs
