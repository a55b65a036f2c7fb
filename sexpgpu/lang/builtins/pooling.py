"""`pool`: the largest, or the mean, of windows, one spatial axis after the other.

Types: f32 and bf16; bf16 is computed in f32 and rounded once.
Stacked: microbatches are one more factor of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.builtins.contraction import pads, per_axis
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import kind_of


@builtin("pool", words=("kind",))
def pool(
    el: Elaborator,
    x: Any,
    *,
    window: Any = None,
    kind: Any = "max",
    stride: Any = None,
    pad: Any = 0,
    dilation: Any = 1,
    ceil: Any = False,
) -> Value:
    """`(pool x :kind max :window 2 :stride 2 :pad 0)`: the largest element or the mean of windows.

    The stride is the window's size where nothing else is said. A window that does not fit is left out, and places
    that `pad` adds never count. The gradient of `max` goes to the first maximum of a window, in row-major order.

    Takes: x; `:window`, which must be given, `:stride`, `:pad` and `:dilation`, the distance of a window's elements,
        each a number or one for every spatial axis, `:pad` also pairs; `:kind max` or `:kind mean`; `:ceil true` keeps
        a last window that hangs over the end, if it begins before the padding there.
    Shape: (b s… c) → (b p… c), with p = ⌊(s + 2·pad − dilation·(window − 1) − 1) / stride⌋ + 1, rounded up with
        `:ceil true`.
    Gradient: `max`: g goes to the largest element of its window; `mean`: g over the elements that count, to each of
        them.
    Edges: of a tie the first in row-major order gets the gradient. NaN if any is.
    Form: (pool x :window n :kind max :stride n :pad 0)
    Example:
        (pool image :window 2)  ; is (f32 4 4 4 3)
        (pool image :kind mean :window 3 :stride 2 :pad 1)  ; is (f32 4 4 4 3)
        (pool image :window 3 :ceil true)  ; is (f32 4 3 3 3)
    """
    x = el.tensor(x)
    rank = x.rank - 2
    if not 1 <= rank <= 3:
        el.fail("E-TYPE-002", f"`pool` takes x (batch spatial… channels) with one to three spatial axes, not {x.type}")
    if kind not in ("max", "mean"):
        el.fail("E-FORM-003", f"`:kind` is max or mean, not `{kind}`")
    if window is None:
        el.fail("E-CALL-002", "`pool` needs `:window`, its size along the spatial axes", help="(pool x :window 2)")
    if not x.type.is_float:
        el.fail("E-TYPE-001", f"`pool` of {x.type}", help="(cast x f32) first")
    if not isinstance(ceil, bool):
        el.fail("E-TYPE-006", f"`:ceil` is true or false, not {kind_of(ceil)}")
    sizes = per_axis(el, window, rank)
    steps = sizes if stride is None else per_axis(el, stride, rank)
    gaps = per_axis(el, dilation, rank)
    lows, highs = pads(el, pad, rank)
    b = el.require_trace().builder
    result = b.cast(x, "f32") if x.dtype == "bf16" else x
    # The last axis first: then the first maximum of a row, and of those the first, is the first of the window.
    for i in reversed(range(rank)):
        size, step, gap, low, high = sizes[i], steps[i], gaps[i], lows[i], highs[i]
        if size < 1 or step < 1 or gap < 1:
            el.fail("E-TYPE-005", "the window, the stride and the dilation of `pool` are at least 1")
        reach = gap * (size - 1) + 1
        if max(low, high) >= reach:
            el.fail("E-TYPE-005", f"`pool` adds {max(low, high)} places to spatial axis {i}, whose window has {reach}",
                    help="a window of added places alone would hold nothing")  # fmt: skip
        if low + x.shape[i + 1] + high < reach or not x.shape[i + 1]:
            el.fail("E-TYPE-002", f"the window of {reach} is wider than the padded spatial axis {i} of {x.type}")
        taps = _taps(x.shape[i + 1], size, step, gap, low, high, ceil)
        if not all(any(0 <= at < x.shape[i + 1] for at in places) for places in taps):
            el.fail("E-TYPE-005", f"a window along spatial axis {i} holds added places alone")
        result = _along(el, result, i + 1, kind == "max", taps)
    return b.cast(result, x.dtype)


def _taps(size: int, window: int, step: int, gap: int, low: int, high: int, ceil: bool) -> list[list[int]]:
    """For each window the places that it looks at, counted from the first element; others than 0 … size − 1 are added.

    Of windows that hang over the end those count that begin before the padding there.
    """
    slack = low + size + high - (gap * (window - 1) + 1)
    count = slack // step + 1
    if ceil and slack % step and count * step < low + size:
        count += 1
    return [[place * step - low + tap * gap for tap in range(window)] for place in range(count)]


def _along(el: Elaborator, x: Value, axis: int, largest: bool, taps: Sequence[Sequence[int]]) -> Value:
    """Windows along one axis: element j of every window is a strided slice, and these are folded."""
    b = el.require_trace().builder
    size, step = x.shape[axis], taps[1][0] - taps[0][0] if len(taps) > 1 else 1
    low, high = max(0, -taps[0][0]), max(0, taps[-1][-1] - size + 1)
    if low or high:
        ends = []
        for count in (low, high):
            shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
            ends.append([b.constant(float("-inf") if largest else 0.0, x.type.with_shape(shape))] if count else [])
        x = b.op("concat", *ends[0], x, *ends[1], axis=axis)
    result = None
    for first in taps[0]:
        taken = _strided(el, x, axis, first + low, step, len(taps))
        result = taken if result is None else b.op("maximum" if largest else "add", result, taken)
    assert result is not None
    if largest:
        return result
    inside = [sum(0 <= at < size for at in places) for places in taps]
    if len(set(inside)) == 1:
        return b.scale(result, 1.0 / inside[0])
    shares = el.tensor(tuple([1.0 / n for n in inside]), x.dtype)
    return b.mul(result, b.broadcast(shares, result.shape, (axis,)))


def _strided(el: Elaborator, x: Value, axis: int, first: int, step: int, count: int) -> Value:
    starts: Sequence[int] = [first if a == axis else 0 for a in range(x.rank)]
    stops = [first + (count - 1) * step + 1 if a == axis else n for a, n in enumerate(x.shape)]
    steps = [step if a == axis else 1 for a in range(x.rank)]
    return el.require_trace().builder.op("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
