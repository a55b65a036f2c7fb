"""Elementwise operations of the language."""

from __future__ import annotations

import math
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.arithmetic import BINARY, UNARY, arithmetic, is_number, where
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import DType, HostScalar, Weighted, kind_of


def _chain(op: str) -> None:
    @builtin(op)
    def apply(el: Elaborator, x: Any, *more: Any) -> Any:
        if not more and el.stack and not el.stack[-1].source.is_library:
            el.warnings.append(el.diagnostic("W-CALL-002", f"`{op}` of one value is that value", help="add another"))
        for y in more:
            x = arithmetic(el, op, [x, y])
        return x


for _op in ("+", "*", "minimum", "maximum"):
    _chain(_op)


@builtin("-")
def subtract(el: Elaborator, x: Any, *more: Any) -> Any:
    """`(- x)` or `(- x y …)`, from the left."""
    if not more:
        return arithmetic(el, "neg", [x])
    for y in more:
        x = arithmetic(el, "-", [x, y])
    return x


def _binary(op: str) -> None:
    @builtin(op)
    def apply(el: Elaborator, x: Any, y: Any) -> Any:
        return arithmetic(el, op, [x, y])


for _op in BINARY:
    if _op not in ("+", "-", "*", "minimum", "maximum", "and", "or"):
        _binary(_op)


def _unary(op: str) -> None:
    @builtin(op)
    def apply(el: Elaborator, x: Any) -> Any:
        return arithmetic(el, op, [x])


for _op in UNARY:
    if _op != "neg":
        _unary(_op)


@builtin("where")
def choose(el: Elaborator, test: Any, x: Any, y: Any) -> Any:
    """`(where TEST X Y)`: X where the test holds, else Y."""
    return where(el, test, x, y)


@builtin("cast")
def cast(el: Elaborator, x: Any, dtype: Any) -> Any:
    """`(cast x DTYPE)`: x in another dtype, rounded to nearest even; floats become integers towards zero."""
    if not isinstance(dtype, DType):
        el.fail("E-TYPE-006", f"{kind_of(dtype)} stands where a dtype is expected", help="f32 bf16 i32 i64 bool")
    if isinstance(x, float) and not math.isfinite(x) and dtype.name in ("i32", "i64"):
        el.fail("E-TYPE-008", f"{x:g} is no integer")
    if is_number(x) or isinstance(x, bool):
        return int(x) if dtype.name in ("i32", "i64") else bool(x) if dtype.name == "bool" else float(x)
    if isinstance(x, HostScalar) and dtype.name == "f32":
        return HostScalar(el.schedule.builder.cast(x.value, "f64"))
    tensor = el.tensor(x)
    return el.require_trace().builder.cast(tensor, dtype.name)


@builtin("stop-gradient")
def stop_gradient(el: Elaborator, x: Any) -> Any:
    """`(stop-gradient x)`: x, whose gradient is taken as zero."""
    if isinstance(x, tuple):
        return tuple(stop_gradient(el, part) for part in x)
    if not isinstance(x, Value) or not x.type.is_float:
        return x
    x = el.tensor(x)
    b = el.require_trace().builder
    if x.dtype == "bf16":
        return b.cast(b.op("stop-gradient", b.cast(x, "f32")), "bf16")
    return b.op("stop-gradient", x)


@builtin("weighted")
def weighted(el: Elaborator, value: Any, weight: Any) -> Weighted:
    """`(weighted V W)`: a scalar and the weight with which it counts in means over microbatches and batches."""
    b = el.require_trace().builder
    pair = [b.cast(el.tensor(v), "f32") for v in (value, weight)]
    for v in pair:
        if v.shape != ():
            el.fail("E-TYPE-006", f"`weighted` takes two scalars, not {v.type}", help="(mean x) or (sum x)")
    return Weighted(*pair)
