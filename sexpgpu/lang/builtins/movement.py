"""Shape operations: what moves elements and computes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TypeFault
from sexpgpu.lang.arithmetic import broadcast_to, common_dtype
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.notation import parse_rearrange
from sexpgpu.lang.patterns import type_value
from sexpgpu.lang.values import WILD, HostScalar, kind_of


def _sizes(el: Elaborator, value: Any) -> list[Any]:
    if not isinstance(value, tuple):
        el.fail("E-TYPE-006", f"{kind_of(value)} stands where a shape is expected, such as [2 3]")
    return [v if v is WILD else el.size(v) for v in value]


def _shown(sizes: Sequence[Any]) -> str:
    return "[" + " ".join(map(str, sizes)) + "]"


@builtin("reshape")
def reshape(el: Elaborator, x: Any, shape: Any) -> Value:
    """`(reshape x [2 _])`: the same elements in row-major order; one size may be open."""
    x = el.tensor(x)
    sizes = _sizes(el, shape)
    known = math.prod(n for n in sizes if n is not WILD)
    if sizes.count(WILD) > 1:
        el.fail("E-TYPE-005", "a shape leaves at most one size open with `_`")
    if WILD in sizes:
        if known == 0 or x.type.size % known:
            el.fail(
                "E-TYPE-002", f"{x.type.size} elements of {x.type} do not fill a shape whose other sizes make {known}"
            )
        sizes = [x.type.size // known if n is WILD else n for n in sizes]
    elif known != x.type.size:
        el.fail("E-TYPE-002", f"{x.type} has {x.type.size} elements, the shape {_shown(sizes)} has {known}")
    return el.require_trace().builder.reshape(x, sizes)


@builtin("rearrange")
def rearrange(el: Elaborator, notation: Any, x: Any, /, **sizes: Any) -> Value:
    """`(rearrange "b (h d) -> b h d" x :h n)`: axes split, moved and joined."""
    if not isinstance(notation, str):
        el.fail(
            "E-TYPE-006", f'`rearrange` takes its notation first: (rearrange "b t -> t b" x), not {kind_of(notation)}'
        )
    x = el.tensor(x)
    plan = parse_rearrange(notation, x.shape, {k: el.size(v) for k, v in sizes.items()})
    b = el.require_trace().builder
    return b.reshape(b.transpose(b.reshape(x, plan.split), plan.perm), plan.joined)


@builtin("broadcast")
def broadcast(el: Elaborator, x: Any, shape: Any) -> Value:
    """`(broadcast x [sizes])`: x repeated along sizes of 1 and along new leading axes."""
    x = el.tensor(x)
    sizes = tuple(_sizes(el, shape)) if isinstance(shape, tuple) else type_value(el, shape).shape
    offset = len(sizes) - x.rank
    if offset < 0 or any(n not in (1, sizes[i + offset]) for i, n in enumerate(x.shape)):
        el.fail("E-TYPE-002", f"{x.type} does not stretch to {_shown(sizes)}")
    return broadcast_to(el, x, sizes)


def _bound(el: Elaborator, value: Any, size: int, axis: int) -> int:
    index = el.integer(value, "an index")
    if not -size <= index <= size:
        el.fail("E-TYPE-005", f"index {index} is outside axis {axis}, whose size is {size}")
    return index + size if index < 0 else index


@builtin("slice")
def slice_(el: Elaborator, x: Any, start: Any, stop: Any = None, *, axis: Any = 0, step: Any = 1) -> Any:
    """`(slice x a b :axis :step)`: elements from a up to b, negative from the end."""
    if isinstance(x, tuple) and not all(isinstance(v, int | float) for v in x):
        bounds = [None if v is None else el.integer(v, "an index") for v in (start, stop, step)]
        if bounds[2] == 0:
            el.fail("E-TYPE-005", "`:step` is at least 1")
        return x[slice(*bounds)]
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    size = x.shape[a]
    first = _bound(el, start, size, a)
    last = size if stop is None else _bound(el, stop, size, a)
    if last < first:
        el.fail("E-TYPE-005", f"the slice from {first} to {last} of axis {a} runs backwards")
    stride = el.size(step)
    if stride < 1:
        el.fail("E-TYPE-005", "`:step` is at least 1")
    b = el.require_trace().builder
    if stride == 1:
        return b.slice(x, a, first, last)
    starts, stops, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[a], stops[a], steps[a] = first, last, stride
    return b.op("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


@builtin("pad")
def pad(el: Elaborator, x: Any, low: Any, high: Any, *, axis: Any = 0) -> Value:
    """`(pad x low high :axis a)`: zeros before and after, along one axis."""
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    lows, highs = [0] * x.rank, [0] * x.rank
    lows[a], highs[a] = el.size(low), el.size(high)
    return el.require_trace().builder.op("pad", x, low=tuple(lows), high=tuple(highs), interior=(0,) * x.rank)


def _tensors(el: Elaborator, parts: Any, op: str) -> list[Value]:
    if not isinstance(parts, tuple) or not parts:
        el.fail("E-TYPE-006", f"`{op}` takes a vector of tensors: ({op} [a b]), not {kind_of(parts)}")
    tensors = [p for p in parts if isinstance(p, Value)]
    floats = any(isinstance(p, float | HostScalar) for p in parts)
    dtype = common_dtype(el, op, tensors) if tensors else "f32" if floats else None
    return [el.tensor(p, dtype) for p in parts]


@builtin("concat")
def concat(el: Elaborator, parts: Any, *, axis: Any = 0) -> Value:
    """`(concat [x y] :axis a)`: one after the other along an axis."""
    values = _tensors(el, parts, "concat")
    a = el.axis(axis, values[0].rank)
    return el.require_trace().builder.op("concat", *values, axis=a)


@builtin("stack")
def stack(el: Elaborator, parts: Any, *, axis: Any = 0) -> Value:
    """`(stack [x y] :axis a)`: side by side along a new axis."""
    values = _tensors(el, parts, "stack")
    first = values[0]
    for other in values:
        if other.shape != first.shape:
            raise TypeFault(f"`stack` of {first.type} and {other.type}: shapes differ")
    a = el.axis(axis, first.rank + 1)
    b = el.require_trace().builder
    widened = [b.reshape(v, (*v.shape[:a], 1, *v.shape[a:])) for v in values]
    return b.op("concat", *widened, axis=a)


@builtin("unstack")
def unstack(el: Elaborator, x: Any, *, axis: Any = 0) -> tuple[Value, ...]:
    """`(unstack x :axis a)`: the vector of slices along an axis."""
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    b = el.require_trace().builder
    el.spend(x.shape[a])
    rest = x.shape[:a] + x.shape[a + 1 :]
    return tuple(b.reshape(b.slice(x, a, i, i + 1), rest) for i in range(x.shape[a]))


@builtin("split")
def split(el: Elaborator, x: Any, parts: Any, *, axis: Any = 0) -> tuple[Value, ...]:
    """`(split x n)` or `(split x [sizes])`: the vector of parts along an axis."""
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    size = x.shape[a]
    if isinstance(parts, tuple):
        sizes = [el.size(p) for p in parts]
        if sum(sizes) != size:
            el.fail("E-TYPE-002", f"the parts {_shown(sizes)} of axis {a} make {sum(sizes)}, but its size is {size}")
    else:
        count = el.size(parts)
        if count == 0 or size % count:
            el.fail("E-TYPE-002", f"axis {a} of {x.type} does not split into {count} equal parts")
        el.spend(count)
        sizes = [size // count] * count
    b = el.require_trace().builder
    found, at = [], 0
    for n in sizes:
        found.append(b.slice(x, a, at, at + n))
        at += n
    return tuple(found)


@builtin("reverse")
def reverse(el: Elaborator, x: Any, *, axis: Any = 0) -> Any:
    """`(reverse x :axis a)`: x backwards along axes, or a vector backwards."""
    if isinstance(x, tuple):
        return tuple(reversed(x))
    x = el.tensor(x)
    return el.require_trace().builder.op("reverse", x, axes=el.axes(axis, x.rank))


@builtin("iota")
def iota(el: Elaborator, type: Any, *, axis: Any = 0) -> Value:
    """`(iota TYPE :axis a)`: each element its place along an axis, from 0."""
    wanted = type_value(el, type)
    if wanted.rank == 0:
        el.fail("E-TYPE-005", "`iota` counts along an axis, but a scalar has none")
    b = el.require_trace().builder
    made = "f32" if wanted.dtype == "bf16" else wanted.dtype
    if made == "bool":
        el.fail("E-TYPE-001", "`iota` counts; it makes no bool")
    return b.cast(b.iota(made, wanted.shape, el.axis(axis, wanted.rank)), wanted.dtype)


def _filled(name: str, value: float) -> None:
    @builtin(name)
    def fill(el: Elaborator, type: Any) -> Value:
        wanted = type_value(el, type)
        return el.require_trace().builder.constant(bool(value) if wanted.dtype == "bool" else value, wanted)

    @builtin(f"{name}-like")
    def fill_like(el: Elaborator, x: Any) -> Value:
        return fill(el, el.tensor(x))


_filled("zeros", 0)
_filled("ones", 1)


@builtin("full")
def full(el: Elaborator, type: Any, value: Any) -> Value:
    """`(full TYPE v)`: one number everywhere."""
    wanted = type_value(el, type)
    scalar = el.tensor(value, wanted.dtype)
    if scalar.type != wanted.with_shape(()):
        el.fail("E-TYPE-002", f"`full` repeats one {wanted.dtype}, not {kind_of(value)}")
    return broadcast_to(el, scalar, wanted.shape)
