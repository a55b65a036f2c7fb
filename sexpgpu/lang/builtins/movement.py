"""Shape operations: what moves elements and computes nothing.

Types: any dtype; the result has it. A vector of numbers becomes a tensor first.
Gradient: the cotangent goes back to the places that the elements came from; those that were repeated are summed.
Stacked: microbatches get a leading axis; the other axes move as before.
"""

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
    """`(reshape x [2 _])`: the same elements in row-major order; one size may be open.

    Shape: any → the sizes given, which make as many elements; `_` is whatever is left.
    Gradient: dx = g in the shape of x.
    Example:
        (reshape x [2 4 _])  ; is (f32 2 4 16)
        (reshape x [_])  ; is (f32 128)
    """
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
    """`(rearrange "b (h d) -> b h d" x :h n)`: axes split, moved and joined.

    The notation is that of einops: names of axes, round brackets round axes that are one, `...` for any number of axes,
    `1` for a new axis or one of size 1.

    Takes: the notation, x, and as keywords the sizes that x leaves open, `:h 4`.
    Shape: as the right side of the notation says. Each name stands once on each side: nothing is summed or repeated.
    Gradient: dx = g, rearranged the other way round.
    Example:
        (rearrange "b (h d) -> h b d" x :h 4)  ; is (f32 4 8 4)
        (rearrange "... d -> d ..." image)  ; is (f32 3 4 8 8)
        (rearrange "b -> b 1" ids)  ; is (i32 8 1)
    """
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
    """`(broadcast x [sizes])`: x repeated along sizes of 1 and along new leading axes.

    Shape: x, aligned at the end → the sizes given, or those of a type.
    Gradient: dx = g summed over every axis that was repeated.
    Example:
        (broadcast row [8 16])  ; is (f32 8 16)
        (broadcast row (f32 2 8 16))  ; is (f32 2 8 16)
    """
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
    """`(slice x a b :axis :step)`: elements from a up to b, negative from the end.

    Takes: x, where to begin and where to end; without an end up to the last. `:axis` is cut, `:step` takes every so
        many.
    Shape: the axis has ⌈(b − a) / step⌉ elements; the others stay. A vector gives a vector.
    Gradient: dx = g at the places that were taken, 0 elsewhere.
    Example:
        (slice x 1 -1)  ; is (f32 6 16)
        (slice x 0 16 :axis 1 :step 2)  ; is (f32 8 8)
        (slice row 4)  ; is (f32 12)
    """
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
    """`(pad x low high :axis a)`: zeros before and after, along one axis.

    Takes: x, how many zeros before and how many after, and the `:axis`.
    Shape: the axis grows by low + high.
    Gradient: dx = g without its ends.
    Example:
        (pad row 0 4)  ; is (f32 20)
        (pad (slice x 0 -1) 1 0)  ; is (f32 8 16)
    """
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
    """`(concat [x y] :axis a)`: one after the other along an axis.

    Takes: a vector of tensors, and the `:axis` along which they follow one another.
    Shape: the sizes along the axis add up; the others agree.
    Types: the parts agree in dtype; numbers beside tensors take it.
    Gradient: each part gets its stretch of g.
    Example:
        (concat [x y] :axis 1)  ; is (f32 8 32)
        (concat [x y x])  ; is (f32 24 16)
    """
    values = _tensors(el, parts, "concat")
    a = el.axis(axis, values[0].rank)
    return el.require_trace().builder.op("concat", *values, axis=a)


@builtin("stack")
def stack(el: Elaborator, parts: Any, *, axis: Any = 0) -> Value:
    """`(stack [x y] :axis a)`: side by side along a new axis.

    Takes: a vector of tensors, and where the new `:axis` stands.
    Shape: n parts of one shape → a new axis of size n.
    Types: the parts agree in dtype; numbers beside tensors take it.
    Gradient: each part gets its slice of g.
    Example:
        (stack [row row])  ; is (f32 2 16)
        (stack [x y] :axis -1)  ; is (f32 8 16 2)
    """
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
    """`(unstack x :axis a)`: the vector of slices along an axis.

    Shape: along `:axis` of size n → a vector of n tensors without that axis.
    Gradient: dx = the cotangents of the parts, stacked.
    Example:
        (length (unstack x))  ; => 8
        (nth (unstack x :axis 1) 0)  ; is (f32 8)
        (let [[a b] (unstack (stack [row row]))] (+ a b))  ; is (f32 16)
    """
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    b = el.require_trace().builder
    el.spend(x.shape[a])
    rest = x.shape[:a] + x.shape[a + 1 :]
    return tuple(b.reshape(b.slice(x, a, i, i + 1), rest) for i in range(x.shape[a]))


@builtin("split")
def split(el: Elaborator, x: Any, parts: Any, *, axis: Any = 0) -> tuple[Value, ...]:
    """`(split x n)` or `(split x [sizes])`: the vector of parts along an axis.

    Takes: x, a number of equal parts or a vector of their sizes, and the `:axis`.
    Shape: n parts, each the axis over n; or parts of the sizes given, which add up to the axis.
    Gradient: dx = the cotangents of the parts, one after the other.
    Example:
        (nth (split x 4 :axis 1) 0)  ; is (f32 8 4)
        (nth (split x [10 6] :axis -1) 1)  ; is (f32 8 6)
    """
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
    """`(reverse x :axis a)`: x backwards along axes, or a vector backwards.

    Shape: that of x. `:axis` may be a vector of axes.
    Gradient: dx = g, reversed.
    Example:
        (reverse x :axis 1)  ; is (f32 8 16)
        (reverse [1 2 3])  ; => [3 2 1]
    """
    if isinstance(x, tuple):
        return tuple(reversed(x))
    x = el.tensor(x)
    return el.require_trace().builder.op("reverse", x, axes=el.axes(axis, x.rank))


@builtin("iota")
def iota(el: Elaborator, type: Any, *, axis: Any = 0) -> Value:
    """`(iota TYPE :axis a)`: each element its place along an axis, from 0.

    Takes: a type, and the `:axis` along which it counts.
    Shape: that of the type, which has an axis at least.
    Types: `f32 bf16 i32 i64`.
    Gradient: it has no operands.
    Example:
        (iota (i32 5))  ; is (i32 5)
        (iota (f32 4 5) :axis 1)  ; is (f32 4 5)
    """
    wanted = type_value(el, type)
    if wanted.rank == 0:
        el.fail("E-TYPE-005", "`iota` counts along an axis, but a scalar has none")
    b = el.require_trace().builder
    made = "f32" if wanted.dtype == "bf16" else wanted.dtype
    if made == "bool":
        el.fail("E-TYPE-001", "`iota` counts; it makes no bool")
    return b.cast(b.iota(made, wanted.shape, el.axis(axis, wanted.rank)), wanted.dtype)


FILLED = """A tensor of {name}; of a type here, of the type of a tensor in `{name}-like`.

Shape: that of the type.
Types: that of the type; of bool it is {truth}.
Gradient: it has no operands.
Example:
    ({name} (f32 3))  ; is (f32 3)
    ({name} (type i32 [2 4]))  ; is (i32 2 4)
"""

LIKE = """A tensor of {name}, of the type of another.

Shape: that of x, whose elements are not read.
Types: that of x.
Gradient: zero: x is not read.
Example:
    ({name}-like x)  ; is (f32 8 16)
"""


def _filled(name: str, value: float) -> None:
    @builtin(name, doc=FILLED.format(name=name, truth=str(bool(value)).lower()))
    def fill(el: Elaborator, type: Any) -> Value:
        wanted = type_value(el, type)
        return el.require_trace().builder.constant(bool(value) if wanted.dtype == "bool" else value, wanted)

    @builtin(f"{name}-like", doc=LIKE.format(name=name))
    def fill_like(el: Elaborator, x: Any) -> Value:
        return fill(el, el.tensor(x))


_filled("zeros", 0)
_filled("ones", 1)


@builtin("full")
def full(el: Elaborator, type: Any, value: Any) -> Value:
    """`(full TYPE v)`: one number everywhere.

    Shape: that of the type.
    Types: that of the type; the value is a number, or a scalar of that dtype.
    Gradient: dv = the sum of g.
    Example:
        (full (f32 3) 0.5)  ; is (f32 3)
        (full (f32 2 2) (sum x))  ; is (f32 2 2)
    """
    wanted = type_value(el, type)
    scalar = el.tensor(value, wanted.dtype)
    if scalar.type != wanted.with_shape(()):
        el.fail("E-TYPE-002", f"`full` repeats one {wanted.dtype}, not {kind_of(value)}")
    return broadcast_to(el, scalar, wanted.shape)
