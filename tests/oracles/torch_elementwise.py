"""How PyTorch's elementwise operations are written in our language: from a call's arguments to an expression."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.oracles.cases import Adapter, Skip, number
from tests.oracles.opinfo import TorchWriter

W = TorchWriter


def options(adapter: Any, **settings: Any) -> Adapter:
    """An adapter with settings for the judge: bounds, `forward` alone, how many values are `compared`."""

    def marked(*args: Any, **kwargs: Any) -> str:
        return str(adapter(*args, **kwargs))

    marked.__wrapped__ = adapter  # type: ignore[attr-defined]
    marked.options = settings  # type: ignore[attr-defined]
    return marked


def unary(form: str) -> Adapter:
    """An expression of `x`; `let` keeps it one value."""
    return lambda w, x: f"(let [x {w.f(x)}] {form})"


def binary(form: str, floats: bool = True) -> Adapter:
    """An expression of `x` and `y`."""

    def adapter(w: W, x: Any, y: Any) -> str:
        a, b = w.stretched(x, y, floats=floats)
        return f"(let [x {a} y {b}] {form})"

    return adapter


def scaled(form: str) -> Adapter:
    """`x + alpha·y` and its like."""

    def adapter(w: W, x: Any, y: Any, alpha: float = 1) -> str:
        a, b = w.stretched(x, y)
        return f"(let [x {a} y (* {number(float(alpha))} {b})] {form})"

    return adapter


def div(w: W, x: Any, y: Any, rounding_mode: str | None = None) -> str:
    a, b = w.stretched(x, y)
    plain = f"(/ {a} {b})"
    if rounding_mode == "floor":
        return f"(floor {plain})"
    if rounding_mode == "trunc":
        return f"(let [q {plain}] (* (sign q) (floor (abs q))))"
    return plain


def clamp(w: W, x: Any, min: Any = None, max: Any = None) -> str:
    """PyTorch's gradient at a bound, and where both bounds are crossed, is that of nested minimum and maximum."""
    parts = [x, *[v for v in (min, max) if v is not None]]
    names = w.stretched(*parts)
    text = names[0]
    if min is not None:
        text = f"(maximum {text} {names[1]})"
    if max is not None:
        text = f"(minimum {text} {names[-1]})"
    return text


def where(w: W, x: Any, test: Any, y: Any) -> str:
    a, t, b = w.stretched(x, test, y, floats=False)
    return f"(where {t} {a} {b})"


def masked_fill(w: W, x: Any, mask: Any, value: Any) -> str:
    a, m, v = w.stretched(x, mask, value, floats=False)
    if not isinstance(value, torch.Tensor):
        v = number(float(value))
    return f"(where {m} {v} {a})"


def lerp(w: W, a: Any, b: Any, weight: Any) -> str:
    x, y, t = w.stretched(a, b, weight)
    return f"(lerp {x} {y} {t})"


def fused(operator: str) -> Adapter:
    def adapter(w: W, x: Any, a: Any, b: Any, value: float = 1) -> str:
        x, a, b = w.stretched(x, a, b)
        return f"(+ {x} (* {number(float(value))} ({operator} {a} {b})))"

    return adapter


def glu(w: W, x: Any, dim: int = -1) -> str:
    return f"(let [[a b] (split {w(x)} 2 :axis {dim})] (* a (sigmoid b)))"


def prelu(w: W, x: Any, weight: Any) -> str:
    if weight.ndim == 0 or (weight.numel() == 1 and x.ndim < 2):
        return f"(let [x {w(x)} a (reshape {w(weight)} [])] (where (> x 0) x (* a x)))"
    if x.ndim < 2:
        raise Skip("a weight per channel without channels")
    shape = " ".join(["1", "_", *["1"] * (x.ndim - 2)])
    return f"(let [x {w(x)} a (reshape {w(weight)} [{shape}])] (where (> x 0) x (* a x)))"


def gelu(w: W, x: Any, approximate: str = "none") -> str:
    if approximate == "tanh":
        return f"(gelu {w(x)})"
    return f"(let [x {w(x)}] (* (* 0.5 x) (+ 1.0 (erf (* x {1 / math.sqrt(2)!r})))))"


def softplus(w: W, x: Any, beta: float = 1, threshold: float = 20) -> str:
    """PyTorch takes x itself above a threshold."""
    bent = f"(/ (softplus (* {float(beta)!r} x)) {float(beta)!r})"
    return f"(let [x {w(x)}] (where (> (* {float(beta)!r} x) {float(threshold)!r}) x {bent}))"


def nan_to_num(w: W, x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> str:
    if posinf is None or neginf is None:
        raise Skip("the largest f32 as a default")
    return (f"(let [x {w(x)}] (where (!= x x) {number(float(nan))} (where (= x inf) {number(float(posinf))} "
            f"(where (= x (- inf)) {number(float(neginf))} x))))")  # fmt: skip


def rounded(w: W, x: Any, decimals: int = 0) -> str:
    if decimals == 0:
        return f"(round {w(x)})"
    return f"(/ (round (* {w(x)} {10.0**decimals!r})) {10.0**decimals!r})"


def logit(w: W, x: Any, eps: float | None = None) -> str:
    held = f"(clamp {w(x)} {eps!r} {1 - eps!r})" if eps is not None else w(x)
    return f"(let [x {held}] (log (/ x (- 1.0 x))))"


def power(w: W, x: Any, y: Any) -> str:
    a, b = w.stretched(x, y)
    return f"(pow {a} {b})"


def isclose(w: W, x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> str:
    a, b = w.stretched(x, y)
    same = "(or (= x y) (and (!= x x) (!= y y)))" if equal_nan else "(= x y)"
    near = f"(and (is-finite y) (<= (abs (- x y)) (+ {atol!r} (* {rtol!r} (abs y)))))"
    return f"(let [x {a} y {b}] (or {same} {near}))"


TRUNC = "(* (sign x) (floor (abs x)))"
SAFE_LOG = "(where (> x 0) (log x) (where (= x 0) (- inf) nan))"


def names(form: str, *called: str) -> dict[str, Adapter]:
    """One form for several entries."""
    return {name: unary(form) for name in called}


def _simple(*called: str) -> dict[str, Adapter]:
    return {name: unary(f"({name} x)") for name in called}


ELEMENTWISE: dict[str, Adapter] = {
    **_simple("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log1p", "log", "rsqrt", "sigmoid", "sin", "sqrt",
              "square", "tanh", "sign"),
    **names("(- x)", "neg"), **names("x", "positive", "real", "conj_physical", "resolve_conj", "resolve_neg"),
    **names("(sign x)", "sgn"), **names("(is-finite x)", "isfinite"), **names("(!= x x)", "isnan"),
    **names("(= (abs x) inf)", "isinf"), **names("(= x inf)", "isposinf"), **names("(= x (- inf))", "isneginf"),
    **names("(/ 1.0 x)", "reciprocal"), **names(TRUNC, "trunc"), **names(f"(- x {TRUNC})", "frac"),
    **names("(/ (log x) 0.6931471805599453)", "log2"), **names("(/ (log x) 2.302585092994046)", "log10"),
    **names("(exp (* x 0.6931471805599453))", "exp2"), **names("(/ (- (exp x) (exp (- x))) 2.0)", "sinh"),
    **names("(/ (+ (exp x) (exp (- x))) 2.0)", "cosh"), **names("(/ (sin x) (cos x))", "tan"),
    **names("(* (sign x) (let [y (abs x)] (log1p (+ y (/ (* y y) (+ 1.0 (sqrt (+ 1.0 (* y y)))))))))", "asinh"),
    **names("(log (+ x (sqrt (- (* x x) 1.0))))", "acosh"),
    **names("(* 0.5 (- (log1p x) (log1p (- x))))", "atanh"),
    **names("(- 1.0 (erf x))", "erfc"), **names("(* x 0.017453292519943295)", "deg2rad"),
    **names("(* x 57.29577951308232)", "rad2deg"),
    **names("(where (= x 0) 1.0 (/ (sin (* pi x)) (* pi (where (= x 0) 1.0 x))))", "sinc"),
    **names("(* 0.5 (+ 1.0 (erf (* x 0.7071067811865476))))", "special.ndtr"),
    **names("(where (= x 0) (* 0.0 x) (- (* x (log x))))", "special.entr"),
    **names("(= x 0)", "logical_not"),
    "erfinv": options(unary("(erf-inverse x)"), single=(2e-5, 2e-5), double=(5e-4, 5e-4)),
    "add": scaled("(+ x y)"), "sub": scaled("(- x y)"), "rsub": lambda w, x, y, alpha=1: scaled("(- y x)")(
        w, x, y) if alpha == 1 else _rsub(w, x, y, alpha),
    "mul": binary("(* x y)"), "__radd__": binary("(+ y x)"), "__rmul__": binary("(* y x)"),
    "__rsub__": binary("(- y x)"), "__rdiv__": binary("(/ y x)"), "__rpow__": binary("(pow y x)"),
    "div.no_rounding_mode": div, "div.trunc_rounding": div, "div.floor_rounding": div, "true_divide": div,
    "floor_divide": binary("(floor (/ x y))"),
    "maximum": binary("(maximum x y)"), "minimum": binary("(minimum x y)"), "max.binary": binary("(maximum x y)"),
    "min.binary": binary("(minimum x y)"),
    "fmax": binary("(where (!= x x) y (where (!= y y) x (maximum x y)))"),
    "fmin": binary("(where (!= x x) y (where (!= y y) x (minimum x y)))"),
    "eq": binary("(= x y)"), "ne": binary("(!= x y)"), "lt": binary("(< x y)"), "le": binary("(<= x y)"),
    "gt": binary("(> x y)"), "ge": binary("(>= x y)"), "isclose": isclose,
    "logical_and": binary("(and (!= x 0) (!= y 0))"), "logical_or": binary("(or (!= x 0) (!= y 0))"),
    "logical_xor": binary("(!= (!= x 0) (!= y 0))"),
    "pow": power, "float_power": power,
    "remainder": binary("(- x (* y (stop-gradient (floor (/ x y)))))"),
    "__rmod__": binary("(- y (* x (stop-gradient (floor (/ y x)))))"),
    "fmod": binary("(let [q (/ x y)] (- x (* y (* (sign q) (floor (abs q))))))"),
    "heaviside": binary("(where (> x 0) 1.0 (where (= x 0) y 0.0))"),
    "hypot": binary("(sqrt (+ (* x x) (* y y)))"),
    "xlogy": binary("(where (= x 0) 0.0 (* x (log y)))"),
    "special.xlog1py": binary("(where (= x 0) 0.0 (* x (log1p y)))"),
    "logaddexp": binary("(let [m (stop-gradient (maximum x y))] (+ m (log (+ (exp (- x m)) (exp (- y m))))))"),
    "logaddexp2": binary("(let [m (stop-gradient (maximum x y)) c 0.6931471805599453] "
                         "(+ m (/ (log (+ (exp (* c (- x m))) (exp (* c (- y m))))) c)))"),
    "ldexp": options(binary("(* x (exp (* 0.6931471805599453 y)))"), double=(1e-5, 1e-5)),
    "clamp": clamp, "clamp_min": lambda w, x, m: clamp(w, x, min=m), "clamp_max": lambda w, x, m: clamp(w, x, max=m),
    "where": where, "masked_fill": masked_fill, "lerp": lerp, "addcmul": fused("*"), "addcdiv": fused("/"),
    "nan_to_num": nan_to_num, "round": rounded, "round.decimals_0": rounded,
    "round.decimals_3": rounded, "round.decimals_neg_3": rounded, "logit": logit,
    "nn.functional.relu": lambda w, x, inplace=False: f"(relu {w(x)})",
    "nn.functional.relu6": lambda w, x, inplace=False: f"(hard-tanh {w(x)} :low 0.0 :high 6.0)",
    "nn.functional.leaky_relu": lambda w, x, negative_slope=0.01, inplace=False:
        f"(leaky-relu {w(x)} :slope {negative_slope!r})",
    "nn.functional.elu": lambda w, x, alpha=1.0, inplace=False: f"(elu {w(x)} :alpha {float(alpha)!r})",
    "nn.functional.celu": lambda w, x, alpha=1.0, inplace=False:
        f"(let [x {w(x)}] (where (> x 0) x (* {float(alpha)!r} (expm1 (/ (minimum x 0) {float(alpha)!r})))))",
    "nn.functional.selu": lambda w, x, inplace=False: f"(selu {w(x)})",
    "nn.functional.silu": lambda w, x, inplace=False: f"(silu {w(x)})",
    "nn.functional.mish": lambda w, x, inplace=False: f"(mish {w(x)})",
    "nn.functional.hardsigmoid": lambda w, x, inplace=False: f"(hard-sigmoid {w(x)})",
    "nn.functional.hardswish": lambda w, x, inplace=False: f"(hard-swish {w(x)})",
    "nn.functional.hardtanh": lambda w, x, min_val=-1.0, max_val=1.0, inplace=False:
        f"(hard-tanh {w(x)} :low {float(min_val)!r} :high {float(max_val)!r})",
    "nn.functional.gelu": gelu, "nn.functional.softplus": softplus,
    "nn.functional.logsigmoid": unary("(- (softplus (- x)))"),
    "nn.functional.softsign": unary("(/ x (+ 1.0 (abs x)))"), "nn.functional.tanhshrink": unary("(- x (tanh x))"),
    "nn.functional.threshold": lambda w, x, threshold, value, inplace=False:
        f"(let [x {w(x)}] (where (> x {number(float(threshold))}) x {number(float(value))}))",
    "nn.functional.softshrink": lambda w, x, lambd=0.5:
        f"(let [x {w(x)} l {lambd!r}] (where (> x l) (- x l) (where (< x (- l)) (+ x l) (* 0.0 x))))",
    "nn.functional.hardshrink": lambda w, x, lambd=0.5:
        f"(let [x {w(x)}] (where (> (abs x) {lambd!r}) x (* 0.0 x)))",
    "nn.functional.glu": glu, "nn.functional.prelu": prelu,
    "rsqrt": unary("(rsqrt x)"),
}  # fmt: skip


def _rsub(w: W, x: Any, y: Any, alpha: float) -> str:
    a, b = w.stretched(x, y)
    return f"(- {b} (* {number(float(alpha))} {a}))"
