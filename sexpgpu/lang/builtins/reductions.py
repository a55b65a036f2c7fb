"""Reductions: `sum mean max …` with `:axis :keep :where`, and running folds."""

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


def _reduction(name: str) -> None:
    @builtin(name)
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
    """`(mean x :axis :keep :where)`: of none it is 0."""
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


def _logical(name: str) -> None:
    @builtin(name)
    def reduce(el: Elaborator, x: Any, *, axis: Any = None, keep: Any = False) -> Any:
        if isinstance(x, tuple) and all(isinstance(v, bool) for v in x):
            return all(x) if name == "all" else any(x)
        x = el.tensor(x)
        axes = el.axes(axis, x.rank)
        result = el.require_trace().builder.op(name, x, axes=axes) if axes else x
        return _keep(el, result, x, axes, keep)


_logical("any")
_logical("all")


def _position(name: str) -> None:
    @builtin(name)
    def reduce(el: Elaborator, x: Any, *, axis: Any = -1, keep: Any = False) -> Value:
        x = el.tensor(x)
        a = el.axis(axis, x.rank)
        return _keep(el, el.require_trace().builder.op(name, _up(el, x), axis=a), x, (a,), keep)


_position("argmax")
_position("argmin")


@builtin("count")
def count(el: Elaborator, x: Any, *, axis: Any = None) -> Value:
    """`(count mask :axis a)`: how many hold, as f32."""
    x = el.tensor(x)
    if x.dtype != "bool":
        el.fail("E-TYPE-001", f"`count` counts what holds in a bool tensor, not {x.type}")
    b = el.require_trace().builder
    return b.sum(b.cast(x, "f32"), el.axes(axis, x.rank))


@builtin("logsumexp")
def logsumexp(el: Elaborator, x: Any, *, axis: Any = -1, keep: Any = False) -> Value:
    """`(logsumexp x :axis -1)`: the logarithm of the sum of exponentials, without overflow."""
    x = el.tensor(x)
    b = el.require_trace().builder
    wide = _up(el, x)
    axes = el.axes(axis, x.rank)
    top = b.op("stop-gradient", b.op("max", wide, axes=axes))
    finite = b.where(b.op("is-finite", top), top, b.like(0.0, top))
    shifted = b.sub(wide, b.expand_like(finite, x.shape, axes))
    result = b.add(finite, b.op("log", b.sum(b.op("exp", shifted), axes)))
    return _down(el, _keep(el, result, x, axes, keep), x)


def _running(name: str) -> None:
    @builtin(name)
    def run(el: Elaborator, x: Any, *, axis: Any = 0) -> Value:
        x = el.tensor(x)
        return _down(el, el.require_trace().builder.op(name, _up(el, x), axis=el.axis(axis, x.rank)), x)


for _name in ("cumsum", "cumprod", "cummax"):
    _running(_name)
