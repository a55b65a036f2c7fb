"""Arithmetic, element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node, Value
from sexpgpu.ir.opdef import Array, Context, Manual, OpDef, Sample, Template, Work, no_gradient, register
from sexpgpu.ir.ops.maps import (
    ARITHMETIC,
    FLAT,
    FLOAT,
    FLOATS,
    INTEGER,
    INTS_34,
    NEGATED,
    WHOLE,
    c_operator,
    define_map,
    guarded,
    same_type,
)
from sexpgpu.ir.ops.rules import Local, map_stacking
from sexpgpu.ir.types import TypeFault

INTEGER_BITS = 64
"""An integer that a file computes with is one that an i64 tensor could hold."""

define_map(
    "add", "x + y, elementwise; integers wrap.", np.add, 2, ARITHMETIC, lambda b, n, g: (g, g),
    scalar=c_operator("+"), word="+", number=operator.add, manual=Manual(
        "x + y, and further operands from the left.",
        gradient="dx = g, dy = g, summed over what was stretched.",
        edges="Integers wrap around.",
        example="(+ x row)  ; is (f32 8 16)\n(+ 1 2 3)  ; => 6",
    ),
)  # fmt: skip
define_map(
    "sub", "x − y, elementwise; integers wrap.", np.subtract, 2, ARITHMETIC, lambda b, n, g: (g, b.neg(g)),
    scalar=c_operator("-"), word="-", number=operator.sub, manual=Manual(
        "−x of one operand; x − y, and further ones from the left, of more.",
        gradient="dx = g and dy = −g; of one operand dx = −g.",
        edges="Integers wrap around.",
        example="(- x y)  ; is (f32 8 16)\n(- 5)  ; => -5\n(- 10 1 2)  ; => 7",
    ),
)  # fmt: skip
define_map(
    "mul", "x · y, elementwise; integers wrap.", np.multiply, 2, ARITHMETIC,
    lambda b, n, g: (b.mul(g, n.inputs[1]), b.mul(g, n.inputs[0])),
    scalar=c_operator("*"), word="*", number=operator.mul, manual=Manual(
        "x · y, and further operands from the left.",
        gradient="dx = g·y, dy = g·x.",
        edges="Integers wrap around.",
        example="(* x 0.5)  ; is (f32 8 16)\n(* 4 16)  ; => 64",
    ),
)  # fmt: skip
define_map(
    "neg", "−x, elementwise.", np.negative, 1, ARITHMETIC, lambda b, n, g: (b.neg(g),),
    scalar={"float": "-{a}", "int": NEGATED}, word="-", number=operator.neg,
)  # fmt: skip


def _mul_or_zero(x: Array, y: Array) -> Array:
    product = np.asarray(x * y)
    wrong = np.isnan(product)
    if wrong.any():
        product[wrong & (x == 0)] = 0
    return product


def _mul_or_zero_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    x, y = inputs
    (out,) = outs
    if np.may_share_memory(out, x):
        np.copyto(out, _mul_or_zero(x, y))
        return
    with np.errstate(all="ignore"):
        np.multiply(x, y, out=out)
        # A sum is NaN if any of its terms is; an overflow of it may look so, and then only costs a second look.
        if not np.isfinite(np.add.reduce(out, None)):
            np.copyto(out, 0, where=np.isnan(out) & (x == 0))


define_map(
    "mul-or-zero",
    "x · y, and 0 wherever x is 0 whatever y is: how a cotangent meets a slope that may be infinite.",
    _mul_or_zero, 2, FLOAT,
    lambda b, n, g: (b.op("mul-or-zero", g, n.inputs[1]), b.op("mul-or-zero", g, n.inputs[0])),
    into=_mul_or_zero_into, scalar="mul_or_zero({a}, {b})",
)  # fmt: skip


def _div_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.inputs[1]
    by_y = guarded(b, g, b.div(b.like(1.0, y), y))
    return by_y, b.neg(guarded(b, g, b.div(n.outputs[0], y)))


def _exact_division(x: float | int, y: float | int) -> float | int:
    if y == 0:
        raise TypeFault("division by zero", "E-TYPE-008")
    if isinstance(x, int) and isinstance(y, int):
        if x % y:
            raise TypeFault(f"{x} / {y} is not a whole number", "E-TYPE-008",
                            f"(quotient {x} {y}) rounds down; (/ {x}.0 {y}) is a float")  # fmt: skip
        return x // y
    return x / y


define_map(
    "div", "x / y, elementwise, of floats.", np.divide, 2, FLOAT, _div_gradient, ranges=((-2, 2), (0.5, 2)),
    scalar="{a} / {b}", word="/", number=_exact_division, manual=Manual(
        "x / y.",
        gradient="dx = g / y, dy = −g·x / y². Both are 0 where g is 0, whatever y is.",
        types="f32 and bf16. Two integers of the file divide exactly or not at all (`E-TYPE-008`); integer "
        "tensors are divided by `quotient`.",
        edges="x / 0 is ∞ or NaN at run time, an error (`E-TYPE-008`) between numbers.",
        example="(/ x 2)  ; is (f32 8 16)\n(/ 7.0 2)  ; => 3.5\n(/ 8 2)  ; => 4",
    ),
)  # fmt: skip


def _floor_division(ufunc: np.ufunc) -> Callable[[Context, Node, Sequence[Array]], Array]:
    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        x, y = inputs
        zero = y == 0
        if ctx.flag is not None and np.any(zero):
            place = [int(p) for p in np.unravel_index(int(np.argmax(zero)), zero.shape)]
            ctx.flag(node, f"division of an integer by zero{f' at {place}' if place else ''}")
        with np.errstate(all="ignore"):
            return np.where(zero, 0, ufunc(x, np.where(zero, 1, y))).astype(ctx.dtype(node.types[0]), copy=False)

    return meaning


def _whole(function: Callable[[int, int], int]) -> Callable[[Any, Any], int]:
    def apply(x: Any, y: Any) -> int:
        if not isinstance(x, int) or not isinstance(y, int):
            raise TypeFault("`quotient` and `rem` take integers", "E-TYPE-001", "(floor (/ x y)) for floats")
        if y == 0:
            raise TypeFault("division by zero", "E-TYPE-008")
        return function(x, y)

    return apply


_MANUALS = {
    "quotient": Manual(
        "⌊x / y⌋ of integers.",
        gradient=FLAT,
        types=WHOLE,
        edges="A divisor 0 gives 0 and stops the step before anything is committed (`E-RUN-003`).",
        example="(quotient 7 2)  ; => 3\n(quotient -7 2)  ; => -4\n(quotient ids 2)  ; is (i32 8)",
    ),
    "rem": Manual(
        "x − y·⌊x / y⌋ of integers: what `quotient` leaves; its sign is that of y.",
        gradient=FLAT,
        types=WHOLE,
        edges="A divisor 0 gives 0 and stops the step before anything is committed (`E-RUN-003`).",
        example="(rem -7 2)  ; => 1\n(rem ids 2)  ; is (i32 8)",
    ),
}
_ufunc: np.ufunc
for _name, _ufunc, _number, _scalar, _doc in (
    ("quotient", np.floor_divide, operator.floordiv, "floor_quotient({a}, {b})",
     "⌊x / y⌋, elementwise, of integers; 0 and a flag where y is 0."),
    ("rem", np.remainder, operator.mod, "floor_remainder({a}, {b})",
     "x − y·⌊x / y⌋, elementwise, of integers: the sign is y's; 0 and a flag where y is 0."),
):  # fmt: skip
    register(
        OpDef(
            name=_name,
            doc=_doc,
            work=Work.MAP,
            scalar=_scalar,
            fault="{b} == 0",
            word=_name,
            number=_whole(_number),
            manual=_MANUALS[_name],
            type_rule=same_type(_name, 2, INTEGER, None),
            meaning=_floor_division(_ufunc),
            stacking=map_stacking,
            gradient=no_gradient,
            samples=(
                Sample((INTS_34, INTS_34), ranges=((-9, 9), (1, 5))),
                Sample((INTS_34, INTS_34), ranges=((-9, 9), (-5, 0))),
            ),
        )
    )


def _pow_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    x, y = n.inputs
    slope_x = b.mul(y, b.op("pow", x, b.sub(y, b.like(1.0, y))))
    positive = b.op("gt", x, b.like(0.0, x))
    log_x = b.where(positive, b.op("log", b.where(positive, x, b.like(1.0, x))), b.like(0.0, x))
    return guarded(b, g, slope_x), guarded(b, g, b.mul(n.outputs[0], log_x))


def _power(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int) and y > 0 and x.bit_length() * y > 4 * INTEGER_BITS:
        raise TypeFault(f"{x} to the power {y} is no integer of {INTEGER_BITS} bits", "E-TYPE-005", f"(pow {x}.0 {y})")
    result = x**y
    if isinstance(result, complex):
        raise TypeFault(f"{x} to the power {y} is no real number", "E-TYPE-008")
    return result


define_map(
    "pow", "x to the power y, of floats.", np.power, 2, FLOAT, _pow_gradient, ranges=((0.5, 2), (-2, 2)),
    scalar="pow{F}({a}, {b})", word="pow", number=_power, manual=Manual(
        "x to the power y.",
        gradient="dx = g·y·x^(y−1), dy = g·log(x)·x^y; dy is 0 where x ≤ 0. Both are 0 where g is 0.",
        types=FLOATS + " Numbers may be integers.",
        edges="A negative x to a power that is not whole is NaN.",
        example="(pow x 2.0)  ; is (f32 8 16)\n(pow 2 10)  ; => 1024",
    ),
)  # fmt: skip


def _pick_side(op: str) -> Local:
    def local(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
        first = b.op("eq", n.inputs[0], n.outputs[0])
        zero = b.like(0.0, g)
        return b.where(first, g, zero), b.where(first, zero, g)

    return local


LARGER: Template = {"float": "({a} >= {b} || {a} != {a}) ? {a} : {b}", "int": "{a} > {b} ? {a} : {b}"}
SMALLER: Template = {"float": "({a} <= {b} || {a} != {a}) ? {a} : {b}", "int": "{a} < {b} ? {a} : {b}"}

define_map("minimum", "The smaller of x and y, NaN if either is. The gradient goes to x where they tie.",
        np.minimum, 2, ARITHMETIC, _pick_side("minimum"), scalar=SMALLER, word="minimum", number=min, manual=Manual(
        "The smaller of its operands, elementwise; `min` reduces.",
        gradient="g goes to the operand that was taken.",
        edges="Where they tie the first operand gets the gradient. NaN if either is.",
        example="(minimum x 1.0)  ; is (f32 8 16)\n(minimum 3 1 2)  ; => 1",
    ))  # fmt: skip
define_map("maximum", "The larger of x and y, NaN if either is. The gradient goes to x where they tie.",
        np.maximum, 2, ARITHMETIC, _pick_side("maximum"), scalar=LARGER, word="maximum", number=max, manual=Manual(
        "The larger of its operands, elementwise; `max` reduces.",
        gradient="g goes to the operand that was taken.",
        edges="Where they tie the first operand gets the gradient. NaN if either is.",
        example="(maximum x row)  ; is (f32 8 16)\n(maximum 3 1 2)  ; => 3",
    ))  # fmt: skip
define_map(
    "abs", "|x|.", np.abs, 1, ARITHMETIC, lambda b, n, g: (b.mul(g, b.op("sign", n.inputs[0])),), ranges=((0.2, 2),),
    scalar={"float": "fabs{F}({a})", "int": "{a} < 0 ? " + NEGATED + " : {a}"}, word="abs", number=abs, manual=Manual(
        "|x|.",
        gradient="dx = g·sign(x), so 0 at 0.",
        edges="|−2³¹| of an i32 wraps to itself.",
        example="(abs x)  ; is (f32 8 16)\n(abs -3)  ; => 3",
    ),
)  # fmt: skip
define_map(
    "sign", "−1, 0 or 1.", np.sign, 1, ARITHMETIC, None, word="sign", number=lambda x: (x > 0) - (x < 0),
    scalar={"float": "{a} != {a} ? {a} : ({T})(({a} > 0) - ({a} < 0))", "int": "({T})(({a} > 0) - ({a} < 0))"},
    manual=Manual(
        "−1, 0 or 1.",
        gradient=FLAT,
        edges="NaN stays NaN.",
        example="(sign x)  ; is (f32 8 16)\n(sign -2.5)  ; => -1.0",
    ),
)  # fmt: skip

