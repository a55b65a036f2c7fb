"""Elementwise operations of the language.

Shape: operands stretch to one shape. Of equal ranks a size of 1 stretches; of unequal ranks the shorter shape equals
    the tail of the longer; a scalar or a number fits everything. The result has the common shape.
Types: operands agree in dtype, and the result has it; a number takes the dtype of the tensor beside it. bf16 is
    computed in f32 and rounded once. Numbers alone are computed while the file is elaborated.
Stacked: microbatches get a leading axis; every element is computed as before.
"""

from __future__ import annotations

import math
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.arithmetic import BINARY, UNARY, arithmetic, is_number, where
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import DType, HostScalar, Weighted, kind_of


def _page(word: str) -> str:
    """What the manual says of a word, from the definition of its operation."""
    manual = (BINARY.get(word) or UNARY[word]).manual
    assert manual is not None, word
    return manual.page


def _chain(op: str) -> None:
    @builtin(op, doc=_page(op))
    def apply(el: Elaborator, x: Any, *more: Any) -> Any:
        if not more and el.stack and not el.stack[-1].source.is_library:
            el.warnings.append(el.diagnostic("W-CALL-002", f"`{op}` of one value is that value", help="add another"))
        for y in more:
            x = arithmetic(el, op, [x, y])
        return x


for _op in ("+", "*", "minimum", "maximum"):
    _chain(_op)


@builtin("-", doc=_page("-"))
def subtract(el: Elaborator, x: Any, *more: Any) -> Any:
    """`(- x)` or `(- x y …)`, from the left."""
    if not more:
        return arithmetic(el, "-", [x])
    for y in more:
        x = arithmetic(el, "-", [x, y])
    return x


def _binary(op: str) -> None:
    @builtin(op, doc=_page(op))
    def apply(el: Elaborator, x: Any, y: Any) -> Any:
        return arithmetic(el, op, [x, y])


for _op in BINARY:
    if _op not in ("+", "-", "*", "minimum", "maximum", "and", "or"):
        _binary(_op)


def _unary(op: str) -> None:
    @builtin(op, doc=_page(op))
    def apply(el: Elaborator, x: Any) -> Any:
        return arithmetic(el, op, [x])


for _op in UNARY:
    if _op != "-":
        _unary(_op)


@builtin("where")
def choose(el: Elaborator, test: Any, x: Any, y: Any) -> Any:
    """`(where TEST X Y)`: X where the test holds, else Y; it chooses at run time, `if` while a file is elaborated.

    Types: the test is bool; X and Y agree in dtype, and the result has it.
    Gradient: dX = g where the test holds, else 0; dY the other way round; none for the test. A branch that was not
        taken gives no NaN: see `sqrt`.
    Example:
        (where (> x 0) x 0)  ; is (f32 8 16)
        (where mask (log (abs x)) row)  ; is (f32 8 16)
    """
    return where(el, test, x, y)


@builtin("cast")
def cast(el: Elaborator, x: Any, dtype: Any) -> Any:
    """`(cast x DTYPE)`: x in another dtype, rounded to nearest even; floats become integers towards zero.

    Shape: that of x.
    Types: from any dtype to any of `f32 bf16 i32 i64 bool`; of numbers and booleans too. What is not 0 is true.
    Gradient: dx = g, cast back, between floats; zero where either side is no float.
    Example:
        (cast ids f32)  ; is (f32 8)
        (cast (round x) i32)  ; is (i32 8 16)
        (cast 2.7 i32)  ; => 2
    """
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
    """`(stop-gradient x)`: x, whose gradient is taken as zero.

    Shape: that of x; of a vector each part.
    Gradient: dx = 0, whatever g is.
    Example:
        (stop-gradient x)  ; is (f32 8 16)
        (grad (fn (z) (sum (* z (stop-gradient z)))) x)  ; is (f32 8 16)
    """
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
    """`(weighted V W)`: a scalar and the weight with which it counts in means over microbatches and batches.

    It is the value of a metric or a measure; everything folds as ΣWV / ΣW. `mean-over` makes one from a mask.

    Shape: V and W are scalars.
    Types: both are taken as f32.
    Gradient: that of V at weight W, over the sum of all weights of the step; W itself carries none.
    Example:
        (weighted (mean x) 8.0)
        (measure seen (weighted (mean x :where mask) (count mask)))
    """
    b = el.require_trace().builder
    pair = [b.cast(el.tensor(v), "f32") for v in (value, weight)]
    for v in pair:
        if v.shape != ():
            el.fail("E-TYPE-006", f"`weighted` takes two scalars, not {v.type}", help="(mean x) or (sum x)")
    return Weighted(*pair)
