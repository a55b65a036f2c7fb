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

FLAT = "zero everywhere: the operation is flat, and no gradient goes through it."
COMPARED = "the operands agree in dtype: any dtype; the result is bool."
FLOATS = "f32 and bf16; bf16 is computed in f32 and rounded once."
WHOLE = "i32 and i64. Floats are refused: `(floor (/ x y))`."
NEVER = "NaN compares false with everything, itself included."

PAGES: dict[str, tuple[str, str, str, str, str]] = {
    "+": ("x + y, and further operands from the left.", "dx = g, dy = g, summed over what was stretched.",
          "", "Integers wrap around.", "(+ x row)  ; is (f32 8 16)\n(+ 1 2 3)  ; => 6"),
    "*": ("x · y, and further operands from the left.", "dx = g·y, dy = g·x.",
          "", "Integers wrap around.", "(* x 0.5)  ; is (f32 8 16)\n(* 4 16)  ; => 64"),
    "minimum": ("The smaller of its operands, elementwise; `min` reduces.", "g goes to the operand that was taken.",
                "", "Where they tie the first operand gets the gradient. NaN if either is.",
                "(minimum x 1.0)  ; is (f32 8 16)\n(minimum 3 1 2)  ; => 1"),
    "maximum": ("The larger of its operands, elementwise; `max` reduces.", "g goes to the operand that was taken.",
                "", "Where they tie the first operand gets the gradient. NaN if either is.",
                "(maximum x row)  ; is (f32 8 16)\n(maximum 3 1 2)  ; => 3"),
    "-": ("−x of one operand; x − y, and further ones from the left, of more.",
          "dx = g and dy = −g; of one operand dx = −g.", "", "Integers wrap around.",
          "(- x y)  ; is (f32 8 16)\n(- 5)  ; => -5\n(- 10 1 2)  ; => 7"),
    "/": ("x / y.", "dx = g / y, dy = −g·x / y². Both are 0 where g is 0, whatever y is.",
          "f32 and bf16. Two integers of the file divide exactly or not at all (`E-TYPE-008`); integer tensors are "
          "divided by `quotient`.", "x / 0 is ∞ or NaN at run time, an error (`E-TYPE-008`) between numbers.",
          "(/ x 2)  ; is (f32 8 16)\n(/ 7.0 2)  ; => 3.5\n(/ 8 2)  ; => 4"),
    "quotient": ("⌊x / y⌋ of integers.", FLAT, WHOLE,
                 "A divisor 0 gives 0 and stops the step before anything is committed (`E-RUN-003`).",
                 "(quotient 7 2)  ; => 3\n(quotient -7 2)  ; => -4\n(quotient ids 2)  ; is (i32 8)"),
    "rem": ("x − y·⌊x / y⌋ of integers: what `quotient` leaves; its sign is that of y.", FLAT, WHOLE,
            "A divisor 0 gives 0 and stops the step before anything is committed (`E-RUN-003`).",
            "(rem -7 2)  ; => 1\n(rem ids 2)  ; is (i32 8)"),
    "pow": ("x to the power y.", "dx = g·y·x^(y−1), dy = g·log(x)·x^y; dy is 0 where x ≤ 0. Both are 0 where g is 0.",
            FLOATS + " Numbers may be integers.", "A negative x to a power that is not whole is NaN.",
            "(pow x 2.0)  ; is (f32 8 16)\n(pow 2 10)  ; => 1024"),
    "=": ("Whether x equals y.", FLAT, COMPARED, NEVER, "(= ids 3)  ; is (bool 8)\n(= \"a\" \"a\")  ; => true"),
    "!=": ("Whether x differs from y.", FLAT, COMPARED, "NaN differs from everything, itself included.",
           "(!= ids 3)  ; is (bool 8)\n(!= 1 2)  ; => true"),
    "<": ("Whether x is below y.", FLAT, COMPARED, NEVER, "(< x 0)  ; is (bool 8 16)\n(< 1 2)  ; => true"),
    "<=": ("Whether x is at most y.", FLAT, COMPARED, NEVER, "(<= x row)  ; is (bool 8 16)\n(<= 2 2)  ; => true"),
    ">": ("Whether x is above y.", FLAT, COMPARED, NEVER, "(> x y)  ; is (bool 8 16)\n(> 3 2)  ; => true"),
    ">=": ("Whether x is at least y.", FLAT, COMPARED, NEVER, "(>= x 0)  ; is (bool 8 16)\n(>= 2 3)  ; => false"),
    "abs": ("|x|.", "dx = g·sign(x), so 0 at 0.", "", "|−2³¹| of an i32 wraps to itself.",
            "(abs x)  ; is (f32 8 16)\n(abs -3)  ; => 3"),
    "sign": ("−1, 0 or 1.", FLAT, "", "NaN stays NaN.", "(sign x)  ; is (f32 8 16)\n(sign -2.5)  ; => -1.0"),
    "exp": ("e to the x.", "dx = g·exp(x), 0 where g is 0 even if exp(x) is ∞.", FLOATS, "",
            "(exp x)  ; is (f32 8 16)\n(exp 0.0)  ; => 1.0"),
    "expm1": ("e to the x, less 1: exact near 0, where `(- (exp x) 1)` loses its digits.",
              "dx = g·exp(x), 0 where g is 0.", FLOATS, "", "(expm1 x)  ; is (f32 8 16)\n(expm1 0.0)  ; => 0.0"),
    "log": ("The natural logarithm.", "dx = g / x, 0 where g is 0 even if x is 0.", FLOATS,
            "log 0 is −∞, of less than 0 NaN.", "(log (abs x))  ; is (f32 8 16)\n(log 1.0)  ; => 0.0"),
    "log1p": ("The natural logarithm of 1 + x, exact near 0.", "dx = g / (1 + x), 0 where g is 0.", FLOATS, "",
              "(log1p (exp x))  ; is (f32 8 16)\n(log1p 0.0)  ; => 0.0"),
    "sqrt": ("The square root.", "dx = g / (2·√x), 0 where g is 0 even if x is 0.", FLOATS, "Of less than 0 it is NaN.",
             "(sqrt (abs x))  ; is (f32 8 16)\n(sqrt 9.0)  ; => 3.0\n"
             "(where (> x 0) (sqrt x) 0)  ; is (f32 8 16)"),
    "rsqrt": ("1 / √x.", "dx = −g / (2·x·√x), 0 where g is 0.", FLOATS, "Of 0 it is ∞, of less NaN.",
              "(rsqrt (square x))  ; is (f32 8 16)\n(rsqrt 4.0)  ; => 0.5"),
    "tanh": ("The hyperbolic tangent.", "dx = g·(1 − tanh²(x)).", FLOATS, "",
             "(tanh x)  ; is (f32 8 16)\n(tanh 0.0)  ; => 0.0"),
    "sigmoid": ("1 / (1 + e to the −x), without overflow.", "dx = g·y·(1 − y), where y is the result.", FLOATS, "",
                "(sigmoid x)  ; is (f32 8 16)\n(sigmoid 0.0)  ; => 0.5"),
    "erf": ("The error function, 2/√π times the integral of exp(−t²) from 0 to x.", "dx = g·2/√π·exp(−x²).", FLOATS, "",
            "(erf x)  ; is (f32 8 16)\n(erf 0.0)  ; => 0.0"),
    "sin": ("The sine of x in radians.", "dx = g·cos(x).", FLOATS, "", "(sin x)  ; is (f32 8 16)\n(sin 0.0)  ; => 0.0"),
    "cos": ("The cosine of x in radians.", "dx = −g·sin(x).", FLOATS, "",
            "(cos x)  ; is (f32 8 16)\n(cos 0.0)  ; => 1.0"),
    "floor": ("The largest whole number that is at most x.", FLAT, FLOATS, "",
              "(floor x)  ; is (f32 8 16)\n(floor -1.5)  ; => -2.0"),
    "ceil": ("The smallest whole number that is at least x.", FLAT, FLOATS, "",
             "(ceil x)  ; is (f32 8 16)\n(ceil -1.5)  ; => -1.0"),
    "round": ("The nearest whole number.", FLAT, FLOATS, "Halves go to the even neighbour.",
              "(round x)  ; is (f32 8 16)\n(round 2.5)  ; => 2.0"),
    "is-finite": ("Whether x is neither infinite nor NaN.", FLAT, "f32 and bf16; the result is bool.", "",
                  "(is-finite x)  ; is (bool 8 16)\n(is-finite inf)  ; => false"),
    "not": ("The opposite of a boolean.", FLAT, "bool alone.", "",
            "(not mask)  ; is (bool 8 16)\n(not true)  ; => false"),
}  # fmt: skip
"""What the manual says of the operations that a table makes: summary, gradient, types, ties and NaN, examples."""


def _page(op: str) -> str:
    summary, gradient, types, ties, examples = PAGES[op]
    named = {"Gradient": gradient, "Types": types, "Edges": ties}
    sections = [f"{name}: {text}" for name, text in named.items() if text]
    return "\n".join([summary, "", *sections, "Example:", *(f"    {line}" for line in examples.splitlines())])


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
