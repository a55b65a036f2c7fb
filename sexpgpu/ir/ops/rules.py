"""Pieces that the rules of several families share: attributes, checks of operands, gradients of floats, batch axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Cost, GradientRule, bytes_moved
from sexpgpu.ir.types import TensorType, TypeFault

Local = Callable[[Builder, Node, Value], Sequence[Value | None]]
"""A gradient rule of one output whose cotangent is there."""


def attr_ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """A tuple attribute of integers."""
    value = attrs[name]
    assert isinstance(value, tuple), (name, value)
    return cast("tuple[int, ...]", value)


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


def float_gradient(local: Local) -> GradientRule:
    """A gradient rule of one output: `local` where a cotangent reaches a float result, else nothing."""

    def rule(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
        (g,) = cotangents
        if g is None or not node.types[0].is_float:
            return (None,) * len(node.inputs)
        return local(b, node, g)

    return rule


def check_operands(name: str, types: Sequence[TensorType], count: int) -> None:
    """Raises TypeFault E-CALL-002 unless there are `count` operands."""
    if len(types) != count:
        raise TypeFault(f"`{name}` takes {count} operand{'s' * (count != 1)}, not {len(types)}", "E-CALL-002")


def check_dtype(name: str, type: TensorType, dtypes: Sequence[str]) -> None:
    """Raises TypeFault E-TYPE-001 unless `type` has one of `dtypes`."""
    if type.dtype not in dtypes:
        help = "cast it to f32 first" if type.dtype == "bf16" else ""
        raise TypeFault(f"`{name}` takes {' or '.join(dtypes)}, not {type.dtype}", "E-TYPE-001", help)


def check_axis(name: str, type: TensorType, axis: int) -> None:
    """Raises TypeFault unless `type` has axis `axis`, counted from 0."""
    if not 0 <= axis < type.rank:
        raise TypeFault(f"`{name}` along axis {axis} of {type}, which has {type.rank} axes")


def check_per_axis(name: str, type: TensorType, attrs: Attrs, *names: str) -> None:
    """Raises TypeFault unless each named attribute has one number for each axis of `type`."""
    for attr in names:
        numbers = attr_ints(attrs, attr)
        if len(numbers) != type.rank:
            raise TypeFault(f"`{name}` of {type} needs {type.rank} {attr}, not {len(numbers)}")


def types_by_body(name: str, types: Sequence[TensorType], bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    """What an operation gives that is its one body, applied to the inputs. Raises TypeFault."""
    (body,) = bodies
    wanted = [v.type for v in body.inputs]
    if list(types) != wanted:
        given = ", ".join(map(str, types))
        raise TypeFault(f"`{name}` of {given}: its body takes {', '.join(map(str, wanted))}")
    return tuple(v.type for v in body.output_values)


def without(numbers: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """`numbers` without the positions `axes`."""
    return tuple(n for i, n in enumerate(numbers) if i not in set(axes))


def front(value: int, numbers: Sequence[int]) -> tuple[int, ...]:
    """An attribute with one number per axis, of the same operation with a leading axis."""
    return (value, *numbers)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(sorted(range(len(perm)), key=lambda i: perm[i]))


def body_flops(node: Node) -> int:
    """Operations of the one body of a node."""
    return sum(OPS[inner.op].cost(inner).flops for inner in node.bodies[0].nodes)


def body_cost(node: Node) -> Cost:
    """The work of a body that runs once, and the bytes of its edge."""
    return Cost(body_flops(node), bytes_moved(node))
