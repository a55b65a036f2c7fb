"""Functions of one float, element by element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node, Value
from sexpgpu.ir.opdef import Array, Context, Manual, Sample
from sexpgpu.ir.ops.maps import ARITHMETIC, FLAT, FLOAT, FLOATS, FLOATS_34, c_function, define_map, guarded

TWO_OVER_ROOT_PI = 1.1283791670955126


define_map(
    "exp", "e to the x.", np.exp, 1, FLOAT, lambda b, n, g: (guarded(b, g, n.outputs[0]),),
    scalar=c_function("exp"), word="exp", number=math.exp, manual=Manual(
        "e to the x.",
        gradient="dx = g·exp(x), 0 where g is 0 even if exp(x) is ∞.",
        types=FLOATS,
        example="(exp x)  ; is (f32 8 16)\n(exp 0.0)  ; => 1.0",
    ),
)  # fmt: skip
define_map(
    "expm1", "e to the x, less 1, exact near 0.", np.expm1, 1, FLOAT,
    lambda b, n, g: (guarded(b, g, b.add(n.outputs[0], b.like(1.0, g))),),
    scalar=c_function("expm1"), word="expm1", number=math.expm1, manual=Manual(
        "e to the x, less 1: exact near 0, where `(- (exp x) 1)` loses its digits.",
        gradient="dx = g·exp(x), 0 where g is 0.",
        types=FLOATS,
        example="(expm1 x)  ; is (f32 8 16)\n(expm1 0.0)  ; => 0.0",
    ),
)  # fmt: skip
define_map(
    "log", "Natural logarithm.", np.log, 1, FLOAT,
    lambda b, n, g: (guarded(b, g, b.div(b.like(1.0, g), n.inputs[0])),), ranges=((0.3, 3),),
    scalar=c_function("log"), word="log", number=math.log, manual=Manual(
        "The natural logarithm.",
        gradient="dx = g / x, 0 where g is 0 even if x is 0.",
        types=FLOATS,
        edges="log 0 is −∞, of less than 0 NaN.",
        example="(log (abs x))  ; is (f32 8 16)\n(log 1.0)  ; => 0.0",
    ),
)  # fmt: skip
define_map(
    "log1p", "Natural logarithm of 1 + x, exact near 0.", np.log1p, 1, FLOAT,
    lambda b, n, g: (guarded(b, g, b.div(b.like(1.0, g), b.add(b.like(1.0, g), n.inputs[0]))),), ranges=((-0.5, 3),),
    scalar=c_function("log1p"), word="log1p", number=math.log1p, manual=Manual(
        "The natural logarithm of 1 + x, exact near 0.",
        gradient="dx = g / (1 + x), 0 where g is 0.",
        types=FLOATS,
        example="(log1p (exp x))  ; is (f32 8 16)\n(log1p 0.0)  ; => 0.0",
    ),
)  # fmt: skip
define_map(
    "sqrt", "Square root.", np.sqrt, 1, FLOAT,
    lambda b, n, g: (guarded(b, g, b.div(b.like(0.5, g), n.outputs[0])),), ranges=((0.3, 3),),
    scalar=c_function("sqrt"), word="sqrt", number=math.sqrt, manual=Manual(
        "The square root.",
        gradient="dx = g / (2·√x), 0 where g is 0 even if x is 0.",
        types=FLOATS,
        edges="Of less than 0 it is NaN.",
        example="(sqrt (abs x))  ; is (f32 8 16)\n(sqrt 9.0)  ; => 3.0\n(where (> x 0) (sqrt x) 0)  ; is (f32 8"
        " 16)",
    ),
)  # fmt: skip


def _rsqrt(x: Array, out: Array | None = None) -> Array:
    root = np.sqrt(x, out=out)
    return np.divide(x.dtype.type(1), root, out=out)


def _rsqrt_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.outputs[0]
    return (guarded(b, g, b.scale(b.mul(y, b.mul(y, y)), -0.5)),)


def _rsqrt_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    with np.errstate(all="ignore"):
        _rsqrt(inputs[0], outs[0])


define_map(
    "rsqrt", "1 / √x.", _rsqrt, 1, FLOAT, _rsqrt_gradient, ranges=((0.3, 3),), into=_rsqrt_into,
    scalar="({T})1 / sqrt{F}({a})", word="rsqrt", number=lambda x: 1 / math.sqrt(x), manual=Manual(
        "1 / √x.",
        gradient="dx = −g / (2·x·√x), 0 where g is 0.",
        types=FLOATS,
        edges="Of 0 it is ∞, of less NaN.",
        example="(rsqrt (square x))  ; is (f32 8 16)\n(rsqrt 4.0)  ; => 0.5",
    ),
)  # fmt: skip


def _tanh_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    y = n.outputs[0]
    return (b.mul(g, b.sub(b.like(1.0, g), b.mul(y, y))),)


define_map("tanh", "Hyperbolic tangent.", np.tanh, 1, FLOAT, _tanh_gradient,
        scalar=c_function("tanh"), word="tanh", number=math.tanh, manual=Manual(
        "The hyperbolic tangent.",
        gradient="dx = g·(1 − tanh²(x)).",
        types=FLOATS,
        example="(tanh x)  ; is (f32 8 16)\n(tanh 0.0)  ; => 0.0",
    ))  # fmt: skip


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


define_map(
    "sigmoid", "1 / (1 + e to the −x).", _sigmoid, 1, FLOAT, _sigmoid_gradient, into=_sigmoid_into,
    scalar="({T})0.5 * (({T})1 + tanh{F}(({T})0.5 * {a}))", word="sigmoid",
    number=lambda x: 0.5 * (1 + math.tanh(0.5 * x)), manual=Manual(
        "1 / (1 + e to the −x), without overflow.",
        gradient="dx = g·y·(1 − y), where y is the result.",
        types=FLOATS,
        example="(sigmoid x)  ; is (f32 8 16)\n(sigmoid 0.0)  ; => 0.5",
    ),
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
    bell = b.op("exp", b.neg(b.mul(n.inputs[0], n.inputs[0])))
    return (b.mul(g, b.scale(bell, TWO_OVER_ROOT_PI)),)


define_map("erf", "Error function.", erf, 1, FLOAT, _erf_gradient,
        scalar=c_function("erf"), word="erf", number=math.erf, manual=Manual(
        "The error function, 2/√π times the integral of exp(−t²) from 0 to x.",
        gradient="dx = g·2/√π·exp(−x²).",
        types=FLOATS,
        example="(erf x)  ; is (f32 8 16)\n(erf 0.0)  ; => 0.0",
    ))
define_map("sin", "Sine.", np.sin, 1, FLOAT, lambda b, n, g: (b.mul(g, b.op("cos", n.inputs[0])),),
        scalar=c_function("sin"), word="sin", number=math.sin, manual=Manual(
        "The sine of x in radians.",
        gradient="dx = g·cos(x).",
        types=FLOATS,
        example="(sin x)  ; is (f32 8 16)\n(sin 0.0)  ; => 0.0",
    ))  # fmt: skip
define_map("cos", "Cosine.", np.cos, 1, FLOAT, lambda b, n, g: (b.neg(b.mul(g, b.op("sin", n.inputs[0]))),),
        scalar=c_function("cos"), word="cos", number=math.cos, manual=Manual(
        "The cosine of x in radians.",
        gradient="dx = −g·sin(x).",
        types=FLOATS,
        example="(cos x)  ; is (f32 8 16)\n(cos 0.0)  ; => 1.0",
    ))  # fmt: skip
define_map(
    "atan", "Arc tangent.", np.arctan, 1, FLOAT,
    lambda b, n, g: (b.div(g, b.add(b.like(1.0, g), b.mul(n.inputs[0], n.inputs[0]))),),
    scalar=c_function("atan"), word="atan", number=math.atan, manual=Manual(
        "The angle in radians, from −π/2 to π/2, whose tangent is x.",
        gradient="dx = g / (1 + x²).",
        types=FLOATS,
        edges="Of ±∞ it is ±π/2.",
        example="(atan x)  ; is (f32 8 16)\n(atan 0.0)  ; => 0.0",
    ),
)  # fmt: skip
define_map("floor", "Largest whole number at most x.", np.floor, 1, FLOAT, None, ranges=((0.1, 0.9),),
        scalar=c_function("floor"), word="floor", number=math.floor, manual=Manual(
        "The largest whole number that is at most x.",
        gradient=FLAT,
        types=FLOATS,
        example="(floor x)  ; is (f32 8 16)\n(floor -1.5)  ; => -2.0",
    ))  # fmt: skip
define_map("ceil", "Smallest whole number at least x.", np.ceil, 1, FLOAT, None, ranges=((0.1, 0.9),),
        scalar=c_function("ceil"), word="ceil", number=math.ceil, manual=Manual(
        "The smallest whole number that is at least x.",
        gradient=FLAT,
        types=FLOATS,
        example="(ceil x)  ; is (f32 8 16)\n(ceil -1.5)  ; => -1.0",
    ))  # fmt: skip
define_map("round", "Nearest whole number, halves to even.", np.round, 1, FLOAT, None, ranges=((0.6, 1.4),),
        scalar=c_function("rint"), word="round", number=round, manual=Manual(
        "The nearest whole number.",
        gradient=FLAT,
        types=FLOATS,
        edges="Halves go to the even neighbour.",
        example="(round x)  ; is (f32 8 16)\n(round 2.5)  ; => 2.0",
    ))  # fmt: skip
define_map(
    "stop-gradient", "x, with a gradient of zero.", np.positive, 1, ARITHMETIC, None,
    samples=(Sample((FLOATS_34,), differentiable=False),), scalar="{a}",
)  # fmt: skip

