"""Where a value lies: a buffer, an offset and strides; and which operations only look at memory differently.

Flow: `plan.memory` lays out every value of a phase with these rules; devices read the layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sexpgpu.ir.graph import Node, Value
from sexpgpu.ir.ops.rules import attr_ints

ARENA = "arena"
"""The buffer of intermediates. The others are `slot:NAME`, `feed:NAME` and `constant:INDEX`."""

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A window of a buffer. `strides` count elements; `offset_bytes` is that of the element with index 0."""

    buffer: str
    offset_bytes: int
    strides: Strides


def contiguous(shape: tuple[int, ...]) -> Strides:
    """Row-major strides of `shape`, in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether elements follow one another in row-major order; axes of one element may have any stride."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def extent(shape: tuple[int, ...], strides: Strides) -> tuple[int, int]:
    """Least and greatest element index that a window touches, relative to its element 0."""
    low = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if stride < 0)
    high = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if stride > 0)
    return low, high


View = Callable[[Node, Value, Strides], tuple[int, Strides] | None]
"""Offset in elements and strides of a node's output, given the strides of its input; None: it must copy."""


def _transpose(node: Node, x: Value, strides: Strides) -> tuple[int, Strides]:
    return 0, tuple(strides[axis] for axis in attr_ints(node.attrs, "perm"))


def _broadcast(node: Node, x: Value, strides: Strides) -> tuple[int, Strides]:
    result = [0] * node.types[0].rank
    for size, stride, axis in zip(x.shape, strides, attr_ints(node.attrs, "axes"), strict=True):
        result[axis] = stride if size != 1 else 0
    return 0, tuple(result)


def _slice(node: Node, x: Value, strides: Strides) -> tuple[int, Strides]:
    starts, steps = attr_ints(node.attrs, "starts"), attr_ints(node.attrs, "steps")
    offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    return offset, tuple(step * stride for step, stride in zip(steps, strides, strict=True))


def _reverse(node: Node, x: Value, strides: Strides) -> tuple[int, Strides]:
    axes = attr_ints(node.attrs, "axes")
    offset = sum((x.shape[axis] - 1) * strides[axis] for axis in axes)
    return offset, tuple(-stride if axis in axes else stride for axis, stride in enumerate(strides))


def _reshape(node: Node, x: Value, strides: Strides) -> tuple[int, Strides] | None:
    shape = node.types[0].shape
    if is_contiguous(x.shape, strides):
        return 0, contiguous(shape)
    # NumPy decides: one-byte elements make its strides count elements, and asking reads no memory.
    stand_in = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), x.shape, strides)
    try:
        return 0, np.reshape(stand_in, shape, copy=False).strides
    except ValueError:
        return None


def _same(node: Node, x: Value, strides: Strides) -> tuple[int, Strides]:
    return 0, strides


VIEWS: dict[str, View] = {
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "reverse": _reverse,
    "reshape": _reshape,
    "stop-gradient": _same,
}
"""Operations that move no byte where the strides of their input allow it."""


def constant_strides(node: Node) -> Strides:
    """Strides of a constant: what repeats is stored once."""
    shape = node.types[0].shape
    if node.op == "iota":
        return tuple(1 if axis == node.attrs["axis"] else 0 for axis in range(len(shape)))
    if isinstance(node.attrs.get("value"), tuple):
        return contiguous(shape)
    return (0,) * len(shape)
