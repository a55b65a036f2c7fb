"""How ONNX's elementwise operations, reductions, products and optimizers are written in our language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracles.cases import Skip, number, vector
from tests.oracles.onnx_nodes import OnnxWriter
from tests.oracles.torch_products import matmul

W = OnnxWriter
Adapter = Callable[..., str]
TRUNC = "(* (sign q) (floor (abs q)))"


def unary(form: str, **defaults: float) -> Adapter:
    """An expression of `x`, with attributes that have defaults as names."""

    def adapter(w: W, x: Any, **given: Any) -> str:
        if set(given) - set(defaults):
            raise Skip(f"an option without a spelling: {sorted(set(given) - set(defaults))}")
        names = " ".join(f"{k} {number(float(v))}" for k, v in {**defaults, **given}.items())
        return f"(let [x {w(x)} {names}] {form})"

    return adapter


def binary(form: str, whole: str = "") -> Adapter:
    """An expression of `x` and `y`; `whole` is that for integers."""

    def adapter(w: W, x: Any, y: Any) -> str:
        a, b = w.stretched(x, y)
        made = f"(let [x {a} y {b}] {whole if whole and x.dtype.kind in 'iu' else form})"
        return wrapped(made, w.outputs[0])

    return adapter


def wrapped(text: str, wanted: Any) -> str:
    """Integers that wrap around at 8 or 16 bits, or are unsigned, in ours that do not."""
    dtype = wanted.dtype
    if dtype.kind not in "iu" or dtype in (np.int32, np.int64):
        return text
    bits = dtype.itemsize * 8
    if bits > 32:
        return text
    if dtype.kind == "u":
        return f"(rem {text} {2**bits})"
    return f"(- (rem (+ {text} {2 ** (bits - 1)}) {2**bits}) {2 ** (bits - 1)})"


def chain(op: str) -> Adapter:
    def adapter(w: W, *xs: Any) -> str:
        parts = w.stretched(*xs)
        return f"({op} {' '.join(parts)})" if len(parts) > 1 else parts[0]

    return adapter


def mean(w: W, *xs: Any) -> str:
    return f"(/ {chain('+')(w, *xs)} {float(len(xs))!r})"


def division(w: W, x: Any, y: Any) -> str:
    """Integers are divided towards zero."""
    a, b = w.stretched(x, y)
    if x.dtype.kind in "iu":
        return f"(let [x {a} y {b}] (* (* (sign x) (sign y)) (quotient (abs x) (abs y))))"
    return f"(/ {a} {b})"


def mod(w: W, x: Any, y: Any, fmod: int = 0) -> str:
    a, b = w.stretched(x, y)
    if x.dtype.kind in "iu":
        if fmod:
            return f"(let [x {a} y {b}] (* (sign x) (rem (abs x) (abs y))))"
        return f"(rem {a} {b})"
    if not np.isfinite(x / y).all():
        raise Skip("the remainder of infinities")
    return f"(let [x {a} y {b} q (/ x y)] (- x (* y {TRUNC if fmod else '(floor q)'})))"


def power(w: W, x: Any, y: Any) -> str:
    a, b = w.stretched(x, y)
    if x.dtype.kind in "iu":
        return f"(cast (round (pow (cast {a} f32) (cast {b} f32))) {'i64' if x.dtype.itemsize == 8 else 'i32'})"
    return f"(pow {a} (cast {b} {'bf16' if x.dtype.name == 'bfloat16' else 'f32'}))"


def clip(w: W, x: Any, low: Any = None, high: Any = None, min: Any = None, max: Any = None) -> str:
    low, high = low if low is not None else min, high if high is not None else max
    text = w(x)
    if low is not None:
        text = f"(maximum {text} {w(low)})"
    return f"(minimum {text} {w(high)})" if high is not None else text


def gelu(w: W, x: Any, approximate: str = "none") -> str:
    exact = "(* (* 0.5 x) (+ 1.0 (erf (* x 0.7071067811865476))))"
    return f"(gelu {w(x)})" if approximate == "tanh" else f"(let [x {w(x)}] {exact})"


def prelu(w: W, x: Any, slope: Any) -> str:
    a, b = w.stretched(x, slope)
    return f"(let [x {a} a {b}] (where (< x 0) (* a x) x))"


def is_inf(w: W, x: Any, detect_negative: int = 1, detect_positive: int = 1) -> str:
    parts = [t for t, wanted in (("(= x inf)", detect_positive), ("(= x (- inf))", detect_negative)) if wanted]
    return f"(let [x {w(x)}] {parts[0] if len(parts) == 1 else '(or ' + ' '.join(parts) + ')'})" if parts else "(< 1 0)"


def swiglu(w: W, x: Any, gate: Any, alpha: float = 1.0) -> str:
    return f"(let [x {w(x)} g {w(gate)}] (* (* x (sigmoid (* {alpha!r} x))) g))"


def where(w: W, test: Any, x: Any, y: Any) -> str:
    return f"(where {' '.join(w.stretched(test, x, y))})"


def same(name: str) -> Adapter:
    return unary(f"({name} x)")


ELEMENTWISE: dict[str, Adapter] = {
    **{n.capitalize(): same(n) for n in ("abs", "ceil", "cos", "erf", "exp", "floor", "log", "sigmoid", "sign", "sin",
                                         "sqrt", "tanh", "round", "not", "relu", "softplus", "mish", "selu")},
    "Neg": unary("(- x)"), "Reciprocal": unary("(/ 1.0 x)"), "IsNaN": unary("(!= x x)"), "IsInf": is_inf,
    "Identity": unary("x"),
    "Sinh": unary("(/ (- (exp x) (exp (- x))) 2.0)"), "Cosh": unary("(/ (+ (exp x) (exp (- x))) 2.0)"),
    "Tan": unary("(/ (sin x) (cos x))"), "Atanh": unary("(* 0.5 (- (log1p x) (log1p (- x))))"),
    "Asinh": unary("(* (sign x) (let [y (abs x)] (log1p (+ y (/ (* y y) (+ 1.0 (sqrt (+ 1.0 (* y y)))))))))"),
    "Acosh": unary("(log (+ x (sqrt (- (* x x) 1.0))))"), "Softsign": unary("(/ x (+ 1.0 (abs x)))"),
    "Elu": unary("(elu x :alpha alpha)", alpha=1.0), "LeakyRelu": unary("(leaky-relu x :slope alpha)", alpha=0.01),
    "Selu": unary("(where (> x 0) (* gamma x) (* gamma (* alpha (expm1 (minimum x 0)))))",
                  alpha=1.6732632423543772, gamma=1.0507009873554805),
    "Celu": unary("(where (> x 0) x (* alpha (expm1 (/ (minimum x 0) alpha))))", alpha=1.0),
    "HardSigmoid": unary("(clamp (+ (* alpha x) beta) 0.0 1.0)", alpha=0.2, beta=0.5),
    "HardSwish": unary("(hard-swish x)"), "Swish": unary("(* x (sigmoid (* alpha x)))", alpha=1.0),
    "ThresholdedRelu": unary("(where (> x alpha) x 0.0)", alpha=1.0),
    "Shrink": unary("(where (< x (- lambd)) (+ x bias) (where (> x lambd) (- x bias) 0.0))", bias=0.0, lambd=0.5),
    "Gelu": gelu, "PRelu": prelu, "SwiGLU": swiglu, "Clip": clip, "Where": where, "Pow": power, "Mod": mod,
    "Div": division, "Add": binary("(+ x y)"), "Sub": binary("(- x y)"), "Mul": binary("(* x y)"),
    "Equal": binary("(= x y)"), "Greater": binary("(> x y)"), "GreaterOrEqual": binary("(>= x y)"),
    "Less": binary("(< x y)"), "LessOrEqual": binary("(<= x y)"), "And": binary("(and x y)"),
    "Or": binary("(or x y)"), "Xor": binary("(!= x y)"), "Max": chain("maximum"), "Min": chain("minimum"),
    "Sum": chain("+"), "Mean": mean,
}  # fmt: skip


def reduction(form: str, *, of_nothing: bool = True) -> Adapter:
    """`form` of `x` with `{opts}`; axes are an attribute or, in newer versions, an input."""

    def adapter(w: W, x: Any, given: Any = None, axes: Any = None, keepdims: int = 1,
                noop_with_empty_axes: int = 0) -> str:  # fmt: skip
        which = [int(a) for a in (given if given is not None else axes if axes is not None else [])]
        if not which:
            if noop_with_empty_axes:
                return f"(let [x {w(x)}] {form.format(opts=':axis []')})"
            which = list(range(x.ndim))
        which = sorted(a % x.ndim for a in which) if x.ndim else []
        if not of_nothing and any(x.shape[a] == 0 for a in which):
            raise Skip("an extreme of nothing, which we refuse")
        opts = f":axis {vector(which)}{' :keep true' if keepdims and x.ndim else ''}"
        if x.dtype.kind == "b":
            return f"(let [x (cast {w(x)} i32)] (!= {form.format(opts=opts)} 0))"
        return f"(let [x {w(x)}] {form.format(opts=opts)})"

    return adapter


def place(name: str) -> Adapter:
    def adapter(w: W, x: Any, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> str:
        keep = " :keep true" if keepdims else ""
        if select_last_index:
            return f"(- {x.shape[axis] - 1} ({name} (reverse {w(x)} :axis {axis}) :axis {axis}{keep}))"
        return f"({name} {w(x)} :axis {axis}{keep})"

    return adapter


def logsumexp(w: W, x: Any, given: Any = None, axes: Any = None, keepdims: int = 1,
              noop_with_empty_axes: int = 0) -> str:  # fmt: skip
    return reduction("(logsumexp x {opts})", of_nothing=False)(w, x, given, axes, keepdims, noop_with_empty_axes)


REDUCTIONS: dict[str, Adapter] = {
    "ReduceSum": reduction("(sum x {opts})"), "ReduceMean": reduction("(mean x {opts})", of_nothing=False),
    "ReduceProd": reduction("(prod x {opts})"), "ReduceMax": reduction("(max x {opts})", of_nothing=False),
    "ReduceMin": reduction("(min x {opts})", of_nothing=False), "ReduceL1": reduction("(sum (abs x) {opts})"),
    "ReduceL2": reduction("(sqrt (sum (* x x) {opts}))"), "ReduceLogSum": reduction("(log (sum x {opts}))"),
    "ReduceSumSquare": reduction("(sum (* x x) {opts})"), "ReduceLogSumExp": logsumexp, "ArgMax": place("argmax"),
    "ArgMin": place("argmin"),
}  # fmt: skip


def gemm(w: W, a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
         transB: int = 0) -> str:  # fmt: skip
    spec = f"{'k i' if transA else 'i k'}, {'j k' if transB else 'k j'} -> i j"
    text = f'(* {alpha!r} (product "{spec}" {w(a)} {w(b)}))'
    shape = (a.shape[1] if transA else a.shape[0], b.shape[0] if transB else b.shape[1])
    if c is None:
        return text
    return f"(+ {text} (* {beta!r} {f'(broadcast {w(c)} {vector(shape)})' if c.ndim else w(c)}))"


def product(w: W, x: Any, y: Any) -> str:
    return matmul(w, x, y)  # type: ignore[arg-type]


def einsum(w: W, *xs: Any, equation: str) -> str:
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if any(len(set(t.replace("...", ""))) < len(t.replace("...", "")) for t in terms):
        raise Skip("a diagonal in einsum")
    if "->" not in equation:
        right = "".join(sorted({c for c in left if c.isalpha() and left.count(c) == 1}))
    spaced = lambda t: " ".join(t.replace("...", ".")).replace(".", "...")  # noqa: E731
    return f'(product "{", ".join(map(spaced, terms))} -> {spaced(right)}" {" ".join(map(w, xs))})'


PRODUCTS: dict[str, Adapter] = {"Gemm": gemm, "MatMul": product, "Einsum": einsum}


def _groups(count: int, xs: tuple[Any, ...]) -> list[list[Any]]:
    """What the optimizers get: all parameters, then all gradients, and so on."""
    each = len(xs) // count
    return [list(xs[i * each : (i + 1) * each]) for i in range(count)]


def adam(w: W, r: Any, t: Any, *xs: Any, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-6,
         norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0) -> str:  # fmt: skip
    ps, gs, vs, hs = _groups(4, xs)
    news: list[list[str]] = [[], [], []]
    for p, g, v, h in zip(ps, gs, vs, hs, strict=True):
        grad = f"(+ {w(g)} (* {norm_coefficient!r} {w(p)}))"
        first = f"(+ (* {alpha!r} {w(v)}) (* {1 - alpha!r} {grad}))"
        second = f"(+ (* {beta!r} {w(h)}) (* {1 - beta!r} (square {grad})))"
        rate = w(r)
        if int(t) > 0:
            rate = f"(* {rate} {np.sqrt(1 - beta ** int(t)) / (1 - alpha ** int(t))!r})"
        moved = f"(- {w(p)} (* {rate} (/ {first} (+ (sqrt {second}) {epsilon!r}))))"
        news[0].append(f"(* {1 - norm_coefficient_post!r} {moved})")
        news[1].append(first)
        news[2].append(second)
    return vector([text for part in news for text in part])


def adagrad(w: W, r: Any, t: Any, *xs: Any, decay_factor: float = 0.0, epsilon: float = 1e-6,
            norm_coefficient: float = 0.0) -> str:  # fmt: skip
    ps, gs, hs = _groups(3, xs)
    news: list[list[str]] = [[], []]
    for p, g, h in zip(ps, gs, hs, strict=True):
        grad = f"(+ {w(g)} (* {norm_coefficient!r} {w(p)}))"
        seen = f"(+ {w(h)} (square {grad}))"
        rate = f"(/ {w(r)} {1 + int(t) * decay_factor!r})"
        news[0].append(f"(- {w(p)} (* {rate} (/ {grad} (+ (sqrt {seen}) {epsilon!r}))))")
        news[1].append(seen)
    return vector([text for part in news for text in part])


def momentum(w: W, r: Any, t: Any, *xs: Any, alpha: float, beta: float, mode: str,
             norm_coefficient: float = 0.0) -> str:  # fmt: skip
    ps, gs, vs = _groups(3, xs)
    news: list[list[str]] = [[], []]
    for p, g, v in zip(ps, gs, vs, strict=True):
        grad = f"(+ {w(g)} (* {norm_coefficient!r} {w(p)}))"
        share = beta if int(t) > 0 else 1.0
        speed = f"(+ (* {alpha!r} {w(v)}) (* {share!r} {grad}))"
        way = speed if mode == "standard" else f"(+ {grad} (* {alpha!r} {speed}))"
        news[0].append(f"(- {w(p)} (* {w(r)} {way}))")
        news[1].append(speed)
    return vector([text for part in news for text in part])


OPTIMIZERS: dict[str, Adapter] = {"Adam": adam, "Adagrad": adagrad, "Momentum": momentum}

MATH: dict[str, dict[str, Adapter]] = {
    "elementwise": ELEMENTWISE, "reductions": REDUCTIONS, "products": PRODUCTS, "optimizers": OPTIMIZERS,
}  # fmt: skip
