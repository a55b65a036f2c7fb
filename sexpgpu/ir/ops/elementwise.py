"""Elementwise operations: the work shape Map. All inputs have one shape; broadcasting is a node of its own.

bf16 never reaches arithmetic: the elaborator writes casts, so each rounding is a node that one can see.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, Into, OpDef, Sample, Template, TypeRule, Work, no_gradient, register
from sexpgpu.ir.ops.rules import Local, float_gradient, map_stacking
from sexpgpu.ir.types import DTYPES, TensorType, TypeFault

ARITHMETIC = ("f32", "f64", "i32", "i64")
FLOAT = ("f32", "f64")
INTEGER = ("i32", "i64")
TWO_OVER_ROOT_PI = 1.1283791670955126
INTEGER_BITS = 64
"""An integer that a file computes with is one that an i64 tensor could hold."""

FLOATS_34 = TensorType("f32", (3, 4))
INTS_34 = TensorType("i32", (3, 4))
BOOLS_34 = TensorType("bool", (3, 4))

Ufunc = Callable[..., Any]


def _same_type(name: str, arity: int, dtypes: Sequence[str], result: str | None) -> TypeRule:
    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        if len(types) != arity:
            raise TypeFault(f"`{name}` takes {arity} operands, not {len(types)}", "E-CALL-002")
        first = types[0]
        if first.dtype not in dtypes:
            raise TypeFault(f"`{name}` takes {' or '.join(dtypes)}, not {first.dtype}", "E-TYPE-001")
        for other in types[1:]:
            if other.dtype != first.dtype:
                raise TypeFault(f"`{name}` of {first} and {other}: dtypes differ", "E-TYPE-001")
            if other.shape != first.shape:
                raise TypeFault(f"`{name}` of {first} and {other}: shapes differ")
        return (first if result is None else first.with_dtype(result),)

    return rule


def _meaning(ufunc: Ufunc) -> Callable[[Context, Node, Sequence[Array]], Array]:
    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(ufunc(*inputs)).astype(ctx.dtype(node.types[0]), copy=False)

    return meaning


def _into(ufunc: Ufunc) -> Into:
    def into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            ufunc(*inputs, out=outs[0])

    return into


def _define(
    name: str,
    doc: str,
    ufunc: Ufunc,
    arity: int,
    dtypes: Sequence[str],
    local: Local | None,
    *,
    result: str | None = None,
    ranges: Sequence[tuple[float, float]] = (),
    samples: Sequence[Sample] = (),
    into: Into | None = None,
    scalar: Template = "",
    word: str = "",
    number: Callable[..., Any] | None = None,
) -> None:
    """An operation of `arity` operands of one type; `scalar`, `word` and `number` as in `OpDef`."""
    defaults = [Sample((t,) * arity, ranges=tuple(ranges)) for t in (FLOATS_34, INTS_34, BOOLS_34) if t.dtype in dtypes]
    register(
        OpDef(
            name=name,
            doc=doc,
            work=Work.MAP,
            type_rule=_same_type(name, arity, dtypes, result),
            meaning=_meaning(ufunc),
            into=into or (_into(ufunc) if isinstance(ufunc, np.ufunc) else None),
            ufunc=ufunc if isinstance(ufunc, np.ufunc) else None,
            stacking=map_stacking,
            gradient=no_gradient if local is None else float_gradient(local),
            samples=tuple(samples) or tuple(defaults),
            scalar=scalar,
            word=word,
            number=number,
        )
    )


def _call(name: str) -> Template:
    """A function of the C library, by its name there."""
    return {"float": name + "{F}({a})"}


_WRAPPED = "({{T}})(({{U}}){{a}} {} ({{U}}){{b}})"
_NEGATED = "({T})(0 - ({U}){a})"


def _arithmetic(sign: str) -> Template:
    """An operator; integers in unsigned arithmetic, which wraps."""
    return {"float": f"{{a}} {sign} {{b}}", "int": _WRAPPED.format(sign)}


def _x(node: Node) -> Value:
    return node.inputs[0]


def _guarded(b: Builder, g: Value, slope: Value) -> Value:
    """The cotangent times a slope, 0 where the cotangent is 0 even if the slope is infinite."""
    return b.op("mul-or-zero", g, slope)


# Arithmetic.

_define(
    "add", "x + y, elementwise; integers wrap.", np.add, 2, ARITHMETIC, lambda b, n, g: (g, g),
    scalar=_arithmetic("+"), word="+", number=operator.add,
)  # fmt: skip
_define(
    "sub", "x − y, elementwise; integers wrap.", np.subtract, 2, ARITHMETIC, lambda b, n, g: (g, b.neg(g)),
    scalar=_arithmetic("-"), word="-", number=operator.sub,
)  # fmt: skip
_define(
    "mul", "x · y, elementwise; integers wrap.", np.multiply, 2, ARITHMETIC,
    lambda b, n, g: (b.mul(g, n.inputs[1]), b.mul(g, n.inputs[0])),
    scalar=_arithmetic("*"), word="*", number=operator.mul,
)  # fmt: skip
_define(
    "neg", "−x, elementwise.", np.negative, 1, ARITHMETIC, lambda b, n, g: (b.neg(g),),
    scalar={"float": "-{a}", "int": _NEGATED}, word="-", number=operator.neg,
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


_define(
    "mul-or-zero",
    "x · y, and 0 wherever x is 0 whatever y is: how a cotangent meets a slope that may be infinite.",
    _mul_or_zero, 2, FLOAT,
    lambda b, n, g: (b.op("mul-or-zero", g, n.inputs[1]), b.op("mul-or-zero", g, n.inputs[0])),
    into=_mul_or_zero_into, scalar="mul_or_zero({a}, {b})",
)  # fmt: skip


def _div_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.inputs[1]
    by_y = _guarded(b, g, b.div(b.like(1.0, y), y))
    return by_y, b.neg(_guarded(b, g, b.div(n.outputs[0], y)))


def _exact_division(x: float | int, y: float | int) -> float | int:
    if y == 0:
        raise TypeFault("division by zero", "E-TYPE-008")
    if isinstance(x, int) and isinstance(y, int):
        if x % y:
            raise TypeFault(f"{x} / {y} is not a whole number", "E-TYPE-008",
                            f"(quotient {x} {y}) rounds down; (/ {x}.0 {y}) is a float")  # fmt: skip
        return x // y
    return x / y


_define(
    "div", "x / y, elementwise, of floats.", np.divide, 2, FLOAT, _div_gradient, ranges=((-2, 2), (0.5, 2)),
    scalar="{a} / {b}", word="/", number=_exact_division,
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
            reports=True,
            scalar=_scalar,
            fault="{b} == 0",
            word=_name,
            number=_whole(_number),
            type_rule=_same_type(_name, 2, INTEGER, None),
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
    return _guarded(b, g, slope_x), _guarded(b, g, b.mul(n.outputs[0], log_x))


def _power(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int) and y > 0 and x.bit_length() * y > 4 * INTEGER_BITS:
        raise TypeFault(f"{x} to the power {y} is no integer of {INTEGER_BITS} bits", "E-TYPE-005", f"(pow {x}.0 {y})")
    result = x**y
    if isinstance(result, complex):
        raise TypeFault(f"{x} to the power {y} is no real number", "E-TYPE-008")
    return result


_define(
    "pow", "x to the power y, of floats.", np.power, 2, FLOAT, _pow_gradient, ranges=((0.5, 2), (-2, 2)),
    scalar="pow{F}({a}, {b})", word="pow", number=_power,
)  # fmt: skip


def _pick_side(op: str) -> Local:
    def local(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
        first = b.op("eq", n.inputs[0], n.outputs[0])
        zero = b.like(0.0, g)
        return b.where(first, g, zero), b.where(first, zero, g)

    return local


LARGER: Template = {"float": "({a} >= {b} || {a} != {a}) ? {a} : {b}", "int": "{a} > {b} ? {a} : {b}"}
SMALLER: Template = {"float": "({a} <= {b} || {a} != {a}) ? {a} : {b}", "int": "{a} < {b} ? {a} : {b}"}

_define("minimum", "The smaller of x and y, NaN if either is. The gradient goes to x where they tie.",
        np.minimum, 2, ARITHMETIC, _pick_side("minimum"), scalar=SMALLER, word="minimum", number=min)  # fmt: skip
_define("maximum", "The larger of x and y, NaN if either is. The gradient goes to x where they tie.",
        np.maximum, 2, ARITHMETIC, _pick_side("maximum"), scalar=LARGER, word="maximum", number=max)  # fmt: skip
_define(
    "abs", "|x|.", np.abs, 1, ARITHMETIC, lambda b, n, g: (b.mul(g, b.op("sign", _x(n))),), ranges=((0.2, 2),),
    scalar={"float": "fabs{F}({a})", "int": "{a} < 0 ? " + _NEGATED + " : {a}"}, word="abs", number=abs,
)  # fmt: skip
_define(
    "sign", "−1, 0 or 1.", np.sign, 1, ARITHMETIC, None, word="sign", number=lambda x: (x > 0) - (x < 0),
    scalar={"float": "{a} != {a} ? {a} : ({T})(({a} > 0) - ({a} < 0))", "int": "({T})(({a} > 0) - ({a} < 0))"},
)  # fmt: skip

# Functions of one float.

_define(
    "exp", "e to the x.", np.exp, 1, FLOAT, lambda b, n, g: (_guarded(b, g, n.outputs[0]),),
    scalar=_call("exp"), word="exp", number=math.exp,
)  # fmt: skip
_define(
    "expm1", "e to the x, less 1, exact near 0.", np.expm1, 1, FLOAT,
    lambda b, n, g: (_guarded(b, g, b.add(n.outputs[0], b.like(1.0, g))),),
    scalar=_call("expm1"), word="expm1", number=math.expm1,
)  # fmt: skip
_define(
    "log", "Natural logarithm.", np.log, 1, FLOAT,
    lambda b, n, g: (_guarded(b, g, b.div(b.like(1.0, g), _x(n))),), ranges=((0.3, 3),),
    scalar=_call("log"), word="log", number=math.log,
)  # fmt: skip
_define(
    "log1p", "Natural logarithm of 1 + x, exact near 0.", np.log1p, 1, FLOAT,
    lambda b, n, g: (_guarded(b, g, b.div(b.like(1.0, g), b.add(b.like(1.0, g), _x(n)))),), ranges=((-0.5, 3),),
    scalar=_call("log1p"), word="log1p", number=math.log1p,
)  # fmt: skip
_define(
    "sqrt", "Square root.", np.sqrt, 1, FLOAT,
    lambda b, n, g: (_guarded(b, g, b.div(b.like(0.5, g), n.outputs[0])),), ranges=((0.3, 3),),
    scalar=_call("sqrt"), word="sqrt", number=math.sqrt,
)  # fmt: skip


def _rsqrt(x: Array, out: Array | None = None) -> Array:
    root = np.sqrt(x, out=out)
    return np.divide(x.dtype.type(1), root, out=out)


def _rsqrt_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.outputs[0]
    return (_guarded(b, g, b.scale(b.mul(y, b.mul(y, y)), -0.5)),)


def _rsqrt_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    with np.errstate(all="ignore"):
        _rsqrt(inputs[0], outs[0])


_define(
    "rsqrt", "1 / √x.", _rsqrt, 1, FLOAT, _rsqrt_gradient, ranges=((0.3, 3),), into=_rsqrt_into,
    scalar="({T})1 / sqrt{F}({a})", word="rsqrt", number=lambda x: 1 / math.sqrt(x),
)  # fmt: skip


def _tanh_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.outputs[0]
    return (b.mul(g, b.sub(b.like(1.0, g), b.mul(y, y))),)


_define("tanh", "Hyperbolic tangent.", np.tanh, 1, FLOAT, _tanh_gradient,
        scalar=_call("tanh"), word="tanh", number=math.tanh)  # fmt: skip


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _sigmoid_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    (x,), (out,) = inputs, outs
    half = out.dtype.type(0.5)
    with np.errstate(all="ignore"):
        np.multiply(x, half, out=out)
        np.tanh(out, out=out)
        np.add(out, out.dtype.type(1), out=out)
        np.multiply(out, half, out=out)


def _sigmoid_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.outputs[0]
    return (b.mul(g, b.mul(y, b.sub(b.like(1.0, g), y))),)


_define(
    "sigmoid", "1 / (1 + e to the −x).", _sigmoid, 1, FLOAT, _sigmoid_gradient, into=_sigmoid_into,
    scalar="({T})0.5 * (({T})1 + tanh{F}(({T})0.5 * {a}))", word="sigmoid",
    number=lambda x: 0.5 * (1 + math.tanh(0.5 * x)),
)  # fmt: skip


def erf(x: Array) -> Array:
    """The error function in double precision: series below 3, continued fraction above.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.6 and 7.1.14.
    """
    z = np.abs(np.asarray(x, np.float64))
    small = np.minimum(z, 3.0)
    term = small.copy()
    total = small.copy()
    for n in range(1, 60):
        term = term * 2 * small * small / (2 * n + 1)
        total = total + term
    series = TWO_OVER_ROOT_PI * np.exp(-small * small) * total
    large = np.maximum(z, 3.0)
    fraction = large.copy()
    for n in range(60, 0, -1):
        fraction = large + n / 2 / fraction
    tail = 1 - np.exp(-large * large) / (fraction * np.sqrt(np.pi))
    return np.sign(x) * np.where(z < 3, series, tail)


def _erf_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    bell = b.op("exp", b.neg(b.mul(_x(n), _x(n))))
    return (b.mul(g, b.scale(bell, TWO_OVER_ROOT_PI)),)


_define("erf", "Error function.", erf, 1, FLOAT, _erf_gradient, scalar=_call("erf"), word="erf", number=math.erf)
_define("sin", "Sine.", np.sin, 1, FLOAT, lambda b, n, g: (b.mul(g, b.op("cos", _x(n))),),
        scalar=_call("sin"), word="sin", number=math.sin)  # fmt: skip
_define("cos", "Cosine.", np.cos, 1, FLOAT, lambda b, n, g: (b.neg(b.mul(g, b.op("sin", _x(n)))),),
        scalar=_call("cos"), word="cos", number=math.cos)  # fmt: skip
_define("floor", "Largest whole number at most x.", np.floor, 1, FLOAT, None, ranges=((0.1, 0.9),),
        scalar=_call("floor"), word="floor", number=math.floor)  # fmt: skip
_define("ceil", "Smallest whole number at least x.", np.ceil, 1, FLOAT, None, ranges=((0.1, 0.9),),
        scalar=_call("ceil"), word="ceil", number=math.ceil)  # fmt: skip
_define("round", "Nearest whole number, halves to even.", np.round, 1, FLOAT, None, ranges=((0.6, 1.4),),
        scalar=_call("rint"), word="round", number=round)  # fmt: skip
_define(
    "stop-gradient", "x, with a gradient of zero.", np.positive, 1, ARITHMETIC, None,
    samples=(Sample((FLOATS_34,), differentiable=False),), scalar="{a}",
)  # fmt: skip

# Comparisons and logic.

for _name, _ufunc, _sign, _word, _number, _doc in (
    ("eq", np.equal, "==", "=", operator.eq, "x = y."),
    ("ne", np.not_equal, "!=", "!=", operator.ne, "x ≠ y."),
    ("lt", np.less, "<", "<", operator.lt, "x < y."),
    ("le", np.less_equal, "<=", "<=", operator.le, "x ≤ y."),
    ("gt", np.greater, ">", ">", operator.gt, "x > y."),
    ("ge", np.greater_equal, ">=", ">=", operator.ge, "x ≥ y."),
):
    _define(_name, f"Whether {_doc}", _ufunc, 2, (*ARITHMETIC, "bool"), None, result="bool",
            scalar=f"{{a}} {_sign} {{b}}", word=_word, number=_number)  # fmt: skip
_define("and", "Both.", np.logical_and, 2, ("bool",), None, scalar="{a} && {b}", word="and")
_define("or", "Either.", np.logical_or, 2, ("bool",), None, scalar="{a} || {b}", word="or")
_define("not", "The opposite.", np.logical_not, 1, ("bool",), None, scalar="!{a}", word="not")
_define("is-finite", "Whether x is neither infinite nor NaN.", np.isfinite, 1, FLOAT, None, result="bool",
        scalar="fabs{F}({a}) < {highest}", word="is-finite", number=math.isfinite)  # fmt: skip


def _where_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    if len(types) != 3:
        raise TypeFault(f"`where` takes a test and two values, not {len(types)} operands", "E-CALL-002")
    test, x, y = types
    if test.dtype != "bool":
        raise TypeFault(f"the test of `where` is {test}, not bool", "E-TYPE-001")
    if x.dtype != y.dtype:
        raise TypeFault(f"`where` chooses between {x} and {y}: dtypes differ", "E-TYPE-001")
    if not test.shape == x.shape == y.shape:
        raise TypeFault(f"`where` of {test}, {x} and {y}: shapes differ")
    return (x,)


def _where_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    test, zero = n.inputs[0], b.like(0.0, g)
    return None, b.where(test, g, zero), b.where(test, zero, g)


BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
"""Signed integers by their bytes."""


def _where_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    """Bit by bit: y ^ ((x ^ y) & mask), exact for every value; NumPy's own choice takes each element by itself."""
    test, x, y = inputs
    (out,) = outs
    bits = BITS[out.itemsize]
    if np.may_share_memory(out, test) or x.dtype != y.dtype or out.dtype != x.dtype:
        out[...] = np.where(test, x, y)
        return
    # −1 has all bits set.
    mask = np.negative(test.view(np.int8), dtype=bits)
    if np.may_share_memory(out, y):
        mask = np.invert(mask)
        x, y = y, x
        if np.may_share_memory(out, y):
            out[...] = np.where(test, y, x)
            return
    a, b, result = x.view(bits), y.view(bits), out.view(bits)
    np.bitwise_xor(a, b, out=result)
    np.bitwise_and(result, mask, out=result)
    np.bitwise_xor(result, b, out=result)


register(
    OpDef(
        name="where",
        doc="x where the test holds, else y, elementwise.",
        work=Work.MAP,
        type_rule=_where_type,
        meaning=lambda ctx, node, inputs: np.where(*inputs),
        into=_where_into,
        stacking=map_stacking,
        gradient=float_gradient(_where_gradient),
        samples=(Sample((BOOLS_34, FLOATS_34, FLOATS_34)), Sample((BOOLS_34, INTS_34, INTS_34))),
        scalar="{a} ? {b} : {c}",
    )
)


def _cast_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    dtype = str(attrs["dtype"])
    if dtype not in DTYPES:
        raise TypeFault(f"there is no dtype {dtype}", "E-TYPE-001")
    return (types[0].with_dtype(dtype),)


def _cast(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    (out,) = node.types
    with np.errstate(all="ignore"):
        return inputs[0].astype(ctx.dtype(out))


def _cast_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    with np.errstate(all="ignore"):
        np.copyto(outs[0], inputs[0], casting="unsafe")


register(
    OpDef(
        name="cast",
        doc="x in another dtype: floats round to nearest even, floats to integers truncate towards zero.",
        work=Work.MAP,
        params={"dtype": "the dtype of the result"},
        type_rule=_cast_type,
        meaning=_cast,
        into=_cast_into,
        stacking=map_stacking,
        gradient=float_gradient(lambda b, n, g: (b.cast(g, n.inputs[0].dtype) if n.inputs[0].type.is_float else None,)),
        samples=(
            Sample((FLOATS_34,), {"dtype": "i32"}),
            Sample((FLOATS_34,), {"dtype": "bf16"}, differentiable=False),
            Sample((INTS_34,), {"dtype": "f32"}),
            Sample((BOOLS_34,), {"dtype": "f32"}),
            Sample((TensorType("bf16", (5,)),), {"dtype": "f32"}, differentiable=False),
        ),
        scalar="{as}",
    )
)
