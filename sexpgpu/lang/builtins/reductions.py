"""Reductions: `sum mean max …` with `:axis :keep :where`, and running folds.

Stacked: microbatches get a leading axis, which is never reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.arithmetic import broadcast_to
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import kind_of


def _keep(el: Elaborator, result: Value, x: Value, axes: Sequence[int], keep: Any) -> Value:
    if not keep:
        return result
    return el.require_trace().builder.reshape(result, [1 if i in axes else n for i, n in enumerate(x.shape)])


def _mask(el: Elaborator, x: Value, where: Any) -> Value | None:
    if where is None:
        return None
    mask = el.tensor(where)
    if mask.dtype != "bool":
        el.fail("E-TYPE-001", f"`:where` is {kind_of(mask)}, not bool")
    offset = x.rank - mask.rank
    if offset < 0 or any(n not in (1, x.shape[i + offset]) for i, n in enumerate(mask.shape)):
        el.fail("E-TYPE-002", f"the mask {mask.type} does not stretch to {x.type}")
    return broadcast_to(el, mask, x.shape)


def _up(el: Elaborator, x: Value) -> Value:
    return el.require_trace().builder.cast(x, "f32") if x.dtype == "bf16" else x


def _down(el: Elaborator, result: Value, x: Value) -> Value:
    return el.require_trace().builder.cast(result, "bf16") if x.dtype == "bf16" else result


_EMPTY = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
_EMPTY_INTEGER = {"sum": 0, "prod": 1, "max": -(2**31), "min": 2**31 - 1}


REDUCTIONS = {
    "sum": ("The sum of the elements of axes.", "dx = g, repeated along the axes; 0 where the mask leaves out.",
            "Of nothing it is 0. Integers wrap around."),
    "prod": ("The product of the elements of axes.",
             "dx = g times the product of the other elements, exact where elements are 0.",
             "Of nothing it is 1. Integers wrap around."),
    "max": ("The largest element of axes; `maximum` is elementwise.", "g goes to the largest element, 0 to the others.",
            "Of a tie the first in row-major order gets the gradient. NaN if any is. Of nothing it is −∞."),
    "min": ("The smallest element of axes; `minimum` is elementwise.",
            "g goes to the smallest element, 0 to the others.",
            "Of a tie the first in row-major order gets the gradient. NaN if any is. Of nothing it is ∞."),
}  # fmt: skip

PAGE = """{0}

Takes: x; `:axis`, one or a vector, all of them if left out; `:keep true` leaves sizes of 1; `:where` is a mask that
    stretches to x, and what it leaves out does not count.
Shape: the axes vanish, or are 1 under `:keep true`.
Types: any but bool; bf16 is summed in f32 and rounded once.
Gradient: {1}
Edges: {2}
Example:
    ({name} x)  ; is (f32)
    ({name} x :axis 1)  ; is (f32 8)
    ({name} x :axis 1 :where mask)  ; is (f32 8)
    ({name} x :axis [0 1] :keep true)  ; is (f32 1 1)
"""

LOGICAL = """Whether {word} of the elements of axes hold{s}.

Takes: x; `:axis`, one or a vector, all of them if left out; `:keep true` leaves sizes of 1.
Shape: the axes vanish, or are 1 under `:keep true`.
Types: bool alone; a vector of booleans gives one while the file is elaborated.
Gradient: none: bool carries no gradient.
Edges: of nothing it is {empty}.
Example:
    ({name} mask :axis 1)  ; is (bool 8)
    ({name} mask)  ; is (bool)
    ({name} [true false])  ; => {both}
"""

POSITION = """The place of the {word} element along one axis.

Takes: x; the `:axis`, the last if left out; `:keep true` leaves a size of 1.
Shape: the axis vanishes, or is 1 under `:keep true`.
Types: any but bool; the result is i32.
Gradient: none: the result is an integer.
Edges: of a tie the lowest place. NaN counts as largest.
Example:
    ({name} x)  ; is (i32 8)
    ({name} x :axis 0 :keep true)  ; is (i32 1 16)
"""

RUNNING = """The running {word} along one axis: place i holds that of places 0 to i.

Shape: that of x; `:axis` says where it runs, the first axis if left out.
Types: any but bool; bf16 is computed in f32 and rounded once.
Gradient: {gradient}
Edges: in the order of the axis. {ties}
Example:
    ({name} x :axis 1)  ; is (f32 8 16)
    ({name} row)  ; is (f32 16)
"""


def _reduction(name: str) -> None:
    @builtin(name, doc=PAGE.format(*REDUCTIONS[name], name=name))
    def reduce(el: Elaborator, x: Any, *, axis: Any = None, keep: Any = False, where: Any = None) -> Value:
        x = el.tensor(x)
        b = el.require_trace().builder
        if x.dtype == "bool":
            el.fail("E-TYPE-001", f"`{name}` of {x.type}", help="(count x) counts what holds; (cast x f32) first")
        wide = _up(el, x)
        mask = _mask(el, x, where)
        if mask is not None:
            wide = b.where(mask, wide, b.like((_EMPTY if wide.type.is_float else _EMPTY_INTEGER)[name], wide))
        axes = el.axes(axis, x.rank)
        result = b.op(name, wide, axes=axes) if axes else wide
        return _down(el, _keep(el, result, x, axes, keep), x)


for _name in _EMPTY:
    _reduction(_name)


@builtin("mean")
def mean(el: Elaborator, x: Any, *, axis: Any = None, keep: Any = False, where: Any = None) -> Value:
    """`(mean x :axis :keep :where)`: the mean of the elements of axes.

    Takes: x; `:axis`, one or a vector, all of them if left out; `:keep true` leaves sizes of 1; `:where` is a mask that
        stretches to x, and what it leaves out does not count.
    Shape: the axes vanish, or are 1 under `:keep true`.
    Types: f32 and bf16; bf16 is summed in f32 and rounded once.
    Gradient: dx = g / n, repeated along the axes of n elements; with a mask n is how many hold, and the others get 0.
    Edges: the mean of no elements under a mask is 0, so is its gradient.
    Example:
        (mean x)  ; is (f32)
        (mean x :axis 1 :where mask)  ; is (f32 8)
        (mean x :axis -1 :keep true)  ; is (f32 8 1)
    """
    x = el.tensor(x)
    b = el.require_trace().builder
    if not x.type.is_float:
        el.fail("E-TYPE-001", f"`mean` of {x.type}", help="(cast x f32) first")
    wide = _up(el, x)
    axes = el.axes(axis, x.rank)
    count = 1
    for a in axes:
        count *= x.shape[a]
    mask = _mask(el, x, where)
    if mask is None:
        if count == 0:
            el.fail("E-TYPE-005", f"`mean` over no elements of {x.type}")
        result = b.scale(b.sum(wide, axes), 1.0 / count)
    else:
        total = b.sum(b.where(mask, wide, b.like(0.0, wide)), axes)
        seen = b.sum(b.cast(mask, "f32"), axes)
        result = b.div(total, b.op("maximum", seen, b.like(1.0, seen)))
    return _down(el, _keep(el, result, x, axes, keep), x)


def _logical(name: str, word: str, s: str, empty: str) -> None:
    both = "true" if name == "any" else "false"

    @builtin(name, doc=LOGICAL.format(name=name, word=word, s=s, empty=empty, both=both))
    def reduce(el: Elaborator, x: Any, *, axis: Any = None, keep: Any = False) -> Any:
        if isinstance(x, tuple) and all(isinstance(v, bool) for v in x):
            return all(x) if name == "all" else any(x)
        x = el.tensor(x)
        axes = el.axes(axis, x.rank)
        result = el.require_trace().builder.op(name, x, axes=axes) if axes else x
        return _keep(el, result, x, axes, keep)


_logical("any", "any", "s", "false")
_logical("all", "all", "", "true")


def _position(name: str, word: str) -> None:
    @builtin(name, doc=POSITION.format(name=name, word=word))
    def reduce(el: Elaborator, x: Any, *, axis: Any = -1, keep: Any = False) -> Value:
        x = el.tensor(x)
        a = el.axis(axis, x.rank)
        return _keep(el, el.require_trace().builder.op(name, _up(el, x), axis=a), x, (a,), keep)


_position("argmax", "largest")
_position("argmin", "smallest")


@builtin("count")
def count(el: Elaborator, x: Any, *, axis: Any = None) -> Value:
    """`(count mask :axis a)`: how many hold, as f32.

    Shape: the axes of `:axis` vanish, all of them if left out.
    Types: bool; the result is f32.
    Gradient: none: bool carries no gradient.
    Example:
        (count mask)  ; is (f32)
        (count mask :axis 1)  ; is (f32 8)
    """
    x = el.tensor(x)
    if x.dtype != "bool":
        el.fail("E-TYPE-001", f"`count` counts what holds in a bool tensor, not {x.type}")
    b = el.require_trace().builder
    return b.sum(b.cast(x, "f32"), el.axes(axis, x.rank))


@builtin("logsumexp")
def logsumexp(el: Elaborator, x: Any, *, axis: Any = -1, keep: Any = False) -> Value:
    """`(logsumexp x :axis -1)`: the logarithm of the sum of exponentials, without overflow.

    Takes: x; `:axis`, the last if left out; `:keep true` leaves a size of 1.
    Shape: the axis vanishes, or is 1 under `:keep true`.
    Types: f32 and bf16; computed in f32.
    Gradient: dx = g·softmax(x) along the axis.
    Edges: of elements that are all −∞ it is −∞.
    Example:
        (logsumexp x)  ; is (f32 8)
        (logsumexp x :axis 0 :keep true)  ; is (f32 1 16)
    """
    x = el.tensor(x)
    b = el.require_trace().builder
    wide = _up(el, x)
    axes = el.axes(axis, x.rank)
    top = b.op("stop-gradient", b.op("max", wide, axes=axes))
    finite = b.where(b.op("is-finite", top), top, b.like(0.0, top))
    shifted = b.sub(wide, b.expand_like(finite, x.shape, axes))
    result = b.add(finite, b.op("log", b.sum(b.op("exp", shifted), axes)))
    return _down(el, _keep(el, result, x, axes, keep), x)


def _running(name: str, word: str, gradient: str, ties: str) -> None:
    @builtin(name, doc=RUNNING.format(name=name, word=word, gradient=gradient, ties=ties))
    def run(el: Elaborator, x: Any, *, axis: Any = 0) -> Value:
        x = el.tensor(x)
        return _down(el, el.require_trace().builder.op(name, _up(el, x), axis=el.axis(axis, x.rank)), x)


_running("cumsum", "sum", "dx = the running sum of g from the other end.", "Integers wrap around.")
_running("cumprod", "product", "dx[j] = the sum over i ≥ j of g[i]·y[i] / x[j], exact where elements are 0.",
         "Integers wrap around.")  # fmt: skip
_running("cummax", "maximum", "g goes to the place whose element is the maximum.",
         "Of a tie the first place. NaN from the first NaN on.")  # fmt: skip
