"""Raising: every spelling is found and means the same afterwards; near misses are left alone."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Origin, Value
from sexpgpu.ir.types import TensorType
from sexpgpu.source import Source, Span
from sexpgpu.transform.autodiff import differentiate
from sexpgpu.transform.raising import describe, raise_composites
from tests.effort import calls

SHAPE = (2, 3, 8)


def f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


# Ways to write the pieces.


def row(b: Builder, r: Value, x: Value, axis: int = -1) -> Value:
    return b.expand_like(r, x.shape, [axis % x.rank])


def kept_row(b: Builder, r: Value, x: Value, axis: int = -1) -> Value:
    """As a reduction that keeps its axis, then stretches."""
    axis %= x.rank
    kept = b.reshape(r, [1 if i == axis else n for i, n in enumerate(x.shape)])
    return row(b, b.reshape(kept, r.shape), x, axis)


def vector(b: Builder, w: Value, x: Value, axis: int = -1) -> Value:
    return b.broadcast(w, x.shape, [axis % x.rank])


def total(b: Builder, x: Value, axis: int = -1) -> Value:
    return b.sum(x, [axis % x.rank])


def peak(b: Builder, x: Value, axis: int = -1, stopped: bool = False) -> Value:
    m = b.op("max", x, axes=(axis % x.rank,))
    return b.op("stop-gradient", m) if stopped else m


def mean(b: Builder, x: Value, axis: int = -1, divide: bool = False) -> Value:
    s = total(b, x, axis)
    n = x.shape[axis]
    return b.div(s, b.like(float(n), s)) if divide else b.scale(s, 1 / n)


def exponentials(b: Builder, x: Value, axis: int = -1, stopped: bool = False) -> Value:
    return b.op("exp", b.sub(x, row(b, peak(b, x, axis, stopped), x, axis)))


def softmax(b: Builder, x: Value, axis: int = -1, stopped: bool = False) -> Value:
    e = exponentials(b, x, axis, stopped)
    return b.div(e, row(b, total(b, e, axis), x, axis))


def logsumexp(b: Builder, x: Value, axis: int = -1, stopped: bool = False) -> Value:
    m = peak(b, x, axis, stopped)
    return b.add(m, b.op("log", total(b, b.op("exp", b.sub(x, row(b, m, x, axis))), axis)))


def finite_lse(b: Builder, x: Value) -> Value:
    """With a maximum of 0 in its place where it is not finite, as the language spells it."""
    m = peak(b, x, -1, True)
    m = b.where(b.op("is-finite", m), m, b.like(0.0, m))
    return b.add(m, b.op("log", total(b, b.op("exp", b.sub(x, row(b, m, x))), -1)))


def log_softmax(b: Builder, x: Value, stopped: bool = False) -> Value:
    shifted = b.sub(x, row(b, peak(b, x, stopped=stopped), x))
    return b.sub(shifted, row(b, b.op("log", total(b, b.op("exp", shifted))), x))


def pick(b: Builder, x: Value, t: Value) -> Value:
    return b.op("pick", x, t, axis=x.rank - 1)


def norm(b: Builder, x: Value, how: str = "rsqrt", divide: bool = False, axis: int = -1, centre: bool = True) -> Value:
    centred = b.sub(x, row(b, mean(b, x, axis, divide), x, axis)) if centre else x
    variance = mean(b, b.mul(centred, centred), axis, divide)
    guarded = b.add(variance, b.like(1e-5, variance))
    match how:
        case "rsqrt":
            return b.mul(centred, row(b, b.op("rsqrt", guarded), x, axis))
        case "sqrt":
            return b.div(centred, row(b, b.op("sqrt", guarded), x, axis))
        case "reciprocal":
            root = b.op("sqrt", guarded)
            return b.mul(row(b, b.div(b.like(1.0, root), root), x, axis), centred)
        case _:
            centred_power = b.op("pow", centred, b.like(2.0, x))
            power = b.add(b.like(1e-5, variance), mean(b, centred_power, axis, divide))
            return b.mul(centred, row(b, b.op("pow", power, b.like(-0.5, power)), x, axis))


def gelu(b: Builder, x: Value, cube: Value, slope: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Value:
    inner = b.scale(b.add(x, b.scale(cube, cubic)), slope)
    return b.mul(b.scale(x, 0.5), b.add(b.like(1.0, x), b.op("tanh", inner)))


def causal(b: Builder, t: int, s: int, shape: Sequence[int], axes: tuple[int, int] = (-2, -1)) -> Value:
    places = [a % len(shape) for a in axes]
    i = b.broadcast(b.iota("i32", (t,)), shape, places[:1])
    j = b.broadcast(b.iota("i32", (s,)), shape, places[1:])
    return b.op("ge", b.add(i, b.like(s - t, i)) if s != t else i, j)


def attention(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    *,
    specs: tuple[str, str] = ("bhtd,bhsd->bhts", "bhts,bhse->bhte"),
    scale: float = 0.5,
    scale_q: bool = False,
    masked: Callable[[Builder, Value], Value] | None = None,
    fill: float = -math.inf,
    guards: bool = False,
    reciprocal: bool = False,
    axis: int = -1,
) -> Value:
    scores = b.product(specs[0], b.scale(q, scale) if scale_q else q, k)
    scores = scores if scale_q or scale == 1.0 else b.scale(scores, scale)
    if masked is not None:
        scores = b.where(masked(b, scores), scores, b.like(fill, scores))
    m = peak(b, scores, axis, stopped=True)
    m = b.op("maximum", m, b.like(-1e30, m)) if guards else m
    e = b.op("exp", b.sub(scores, row(b, m, scores, axis)))
    s = total(b, e, axis)
    s = b.op("maximum", s, b.like(1e-30, s)) if guards else s
    if reciprocal:
        p = b.mul(e, row(b, b.div(b.like(1.0, s), s), scores, axis))
    else:
        p = b.div(e, row(b, s, scores, axis))
    return b.product(specs[1], b.cast(p, v.dtype), v)


def heads(b: Builder, dtype: str = "f32", t: int = 4, s: int = 4) -> tuple[Value, Value, Value]:
    q, k, v = (b.input(n, TensorType("f32", (2, 3, *c))) for n, c in (("q", (t, 6)), ("k", (s, 6)), ("v", (s, 5))))
    return b.cast(q, dtype), b.cast(k, dtype), b.cast(v, dtype)


def some_mask(b: Builder, scores: Value) -> Value:
    m = b.input("mask", TensorType("bool", (scores.shape[0], *scores.shape[-2:])))
    return b.broadcast(m, scores.shape, (0, 2, 3))


def x_input(b: Builder, shape: Sequence[int] = SHAPE) -> Value:
    return b.input("x", f32(*shape))


def in_other_order(b: Builder) -> Value:
    q, k, v = (b.input(n, f32(*c)) for n, c in (("q", (2, 4, 3, 6)), ("k", (2, 7, 3, 6)), ("v", (3, 2, 5, 7))))
    scores = b.scale(b.product("bshd,bthd->hbst", k, q), 0.3)
    return b.product("hbes,hbst->bthe", v, softmax(b, scores, -2))


def grouped(b: Builder) -> Value:
    q, k, v = (b.input(n, f32(*c)) for n, c in (("q", (2, 3, 2, 4, 6)), ("k", (2, 3, 4, 6)), ("v", (2, 3, 4, 5))))
    return attention(
        b, q, k, v, specs=("bghtd,bgsd->bghts", "bghts,bgse->bghte"), guards=True,
        masked=lambda b, x: causal(b, 4, 4, x.shape),
    )  # fmt: skip


def turned_and_scaled_after(b: Builder) -> Value:
    """Hidden keys first in `where`, the scale divided out of what it gives; the lower triangle by `le`."""
    q, k, v = heads(b)
    scores = b.product("bhtd,bhsd->bhts", q, k)
    hidden = b.op("gt", b.iota("i32", scores.shape, 3), b.iota("i32", scores.shape, 2))
    scores = b.where(hidden, b.like(-1e30, scores), scores)
    return b.product("bhts,bhse->bthe", softmax(b, b.div(scores, b.like(3.0, scores))), v)


def two_masks(b: Builder, scores: Value) -> Value:
    return b.op("and", some_mask(b, scores), causal(b, 4, 4, scores.shape))


def strict_and_negated(b: Builder, scores: Value) -> Value:
    shape = scores.shape
    return b.op("not", b.op("lt", b.iota("i32", shape, 2), b.iota("i32", shape, 3)))


def triangle(b: Builder, scores: Value) -> Value:
    """The t × s triangle once, by a difference, then repeated over the heads."""
    t, s = scores.shape[-2:]
    difference = b.sub(b.iota("i32", (t, s), 1), b.iota("i32", (t, s), 0))
    return b.broadcast(b.op("lt", difference, b.like(s - t + 1, difference)), scores.shape, (2, 3))


def logits(b: Builder) -> tuple[Value, Value]:
    return b.input("x", f32(2, 3, 9)), b.input("targets", TensorType("i32", (2, 3)))


def bf16_loss(b: Builder, pick_first: bool) -> Value:
    x, t = logits(b)
    narrow = b.cast(x, "bf16")
    x = b.cast(narrow, "f32")
    return b.sub(logsumexp(b, x), b.cast(pick(b, narrow, t), "f32") if pick_first else pick(b, x, t))


def weights(b: Builder) -> tuple[Value, Value]:
    return b.input("w", f32(8)), b.input("c", f32(8))


def affine(b: Builder, y: Value, axis: int = -1) -> Value:
    w, c = weights(b)
    return b.add(b.mul(y, vector(b, w, y, axis)), vector(b, c, y, axis))


def scaled(b: Builder, y: Value, axis: int = -1) -> Value:
    return b.mul(vector(b, weights(b)[0], y, axis), y)


def norm_in_kept_axes(b: Builder) -> Value:
    """Statistics of shape […, 1], scale and bias of shape [1, 1, w]."""
    x = x_input(b)
    s = b.scale(b.reshape(total(b, x), (2, 3, 1)), 1 / 8)
    centred = b.sub(x, row(b, b.reshape(s, (2, 3)), x))
    variance = b.scale(b.reshape(total(b, b.mul(centred, centred)), (2, 3, 1)), 1 / 8)
    rstd = b.op("rsqrt", b.add(variance, b.like(1e-5, variance)))
    w, c = b.input("w", f32(1, 1, 8)), b.input("c", f32(1, 1, 8))
    y = b.mul(b.mul(centred, row(b, b.reshape(rstd, (2, 3)), x)), vector(b, b.reshape(w, (8,)), x))
    return b.add(vector(b, b.reshape(c, (8,)), x), y)


def scale_first(b: Builder) -> Value:
    x = x_input(b)
    centred = b.sub(x, row(b, mean(b, x), x))
    variance = mean(b, b.mul(centred, centred))
    rstd = b.op("rsqrt", b.add(variance, b.like(1e-5, variance)))
    w, c = weights(b)
    return b.add(vector(b, c, x), b.mul(b.mul(row(b, rstd, x), vector(b, w, x)), centred))


def times(b: Builder, *values: Value) -> Value:
    product = values[0]
    for value in values[1:]:
        product = b.mul(product, value)
    return product


def gelu_factored(b: Builder) -> Value:
    """x · ½ · (1 + tanh(x · c · (1 + 0.044715 x²)))."""
    x = x_input(b)
    inner = b.add(b.like(1.0, x), b.scale(b.mul(x, x), 0.044715))
    t = b.op("tanh", b.scale(b.mul(x, inner), math.sqrt(2 / math.pi)))
    return b.div(b.mul(x, b.add(t, b.like(1.0, x))), b.like(2.0, x))


def silu_divided(b: Builder) -> Value:
    x = x_input(b)
    return b.div(x, b.add(b.like(1.0, x), b.op("exp", b.neg(x))))


def x_of(spelling: Callable[[Builder, Value], Value]) -> Callable[[Builder], Value]:
    return lambda b: spelling(b, x_input(b))


def loss_of(spelling: Callable[[Builder, Value, Value], Value]) -> Callable[[Builder], Value]:
    return lambda b: spelling(b, *logits(b))


def attend(dtype: str = "f32", t: int = 4, s: int = 4, **options: object) -> Callable[[Builder], Value]:
    return lambda b: attention(b, *heads(b, dtype, t, s), **options)  # type: ignore[arg-type]


def softmax_by_reciprocal(b: Builder, x: Value) -> Value:
    e = exponentials(b, x)
    s = total(b, e)
    return b.mul(row(b, b.div(b.like(1.0, s), s), x), e)


def bare_softmax(b: Builder, x: Value) -> Value:
    e = b.op("exp", x)
    return b.div(e, row(b, total(b, e), x))


def softmax_stopped_late(b: Builder, x: Value) -> Value:
    e = b.op("exp", b.sub(x, b.op("stop-gradient", kept_row(b, peak(b, x), x))))
    return b.div(e, kept_row(b, total(b, e), x))


def causal_of(b: Builder, x: Value) -> Value:
    return causal(b, x.shape[-2], x.shape[-1], x.shape)


SPELLINGS: dict[str, tuple[str, Callable[[Builder], Value]]] = {
    "softmax": ("softmax", x_of(softmax)),
    "softmax, max stopped": ("softmax", x_of(lambda b, x: softmax(b, x, stopped=True))),
    "softmax, max stopped late": ("softmax", x_of(softmax_stopped_late)),
    "softmax, no max": ("softmax", x_of(bare_softmax)),
    "softmax, reciprocal": ("softmax", x_of(softmax_by_reciprocal)),
    "softmax, another axis": ("softmax", x_of(lambda b, x: softmax(b, x, 1))),
    "softmax, one row": ("softmax", lambda b: softmax(b, x_input(b, (8,)))),
    "softmax, batch of one": ("softmax", lambda b: softmax(b, x_input(b, (1, 3, 8)))),
    "softmax of bf16": (
        "softmax",
        lambda b: b.cast(b.cast(softmax(b, b.cast(b.cast(x_input(b), "bf16"), "f32")), "bf16"), "f32"),
    ),
    "logsumexp": ("logsumexp", x_of(logsumexp)),
    "logsumexp, max stopped": ("logsumexp", x_of(lambda b, x: logsumexp(b, x, stopped=True))),
    "logsumexp, finite max": ("logsumexp", x_of(lambda b, x: finite_lse(b, x))),
    "logsumexp, no max": ("logsumexp", x_of(lambda b, x: b.op("log", total(b, b.op("exp", x))))),
    "logsumexp, another axis": ("logsumexp", x_of(lambda b, x: logsumexp(b, x, 0))),
    "log softmax": ("logsumexp", x_of(lambda b, x: b.sub(x, row(b, logsumexp(b, x), x)))),
    "loss by lse, finite max": ("cross-entropy", loss_of(lambda b, x, t: b.sub(finite_lse(b, x), pick(b, x, t)))),
    "loss by lse": ("cross-entropy", loss_of(lambda b, x, t: b.sub(logsumexp(b, x), pick(b, x, t)))),
    "loss by log softmax": ("cross-entropy", loss_of(lambda b, x, t: b.neg(pick(b, log_softmax(b, x), t)))),
    "loss by log softmax, times -1": (
        "cross-entropy", loss_of(lambda b, x, t: b.scale(pick(b, log_softmax(b, x, True), t), -1.0))
    ),
    "loss by lse log softmax": (
        "cross-entropy", loss_of(lambda b, x, t: b.neg(pick(b, b.sub(x, row(b, logsumexp(b, x), x)), t)))
    ),
    "log likelihood": ("cross-entropy", loss_of(lambda b, x, t: pick(b, log_softmax(b, x), t))),
    "log likelihood by lse": (
        "cross-entropy", loss_of(lambda b, x, t: b.sub(pick(b, x, t), logsumexp(b, x)))
    ),
    "mean loss, negated last": (
        "cross-entropy", loss_of(lambda b, x, t: b.neg(mean(b, mean(b, pick(b, log_softmax(b, x), t)))))
    ),
    "loss of bf16": ("cross-entropy", lambda b: bf16_loss(b, False)),
    "layer norm": ("layer-norm", x_of(lambda b, x: affine(b, norm(b, x)))),
    "layer norm, sqrt": ("layer-norm", x_of(lambda b, x: affine(b, norm(b, x, "sqrt", True)))),
    "layer norm, reciprocal": ("layer-norm", x_of(lambda b, x: affine(b, norm(b, x, "reciprocal")))),
    "layer norm, powers": ("layer-norm", x_of(lambda b, x: affine(b, norm(b, x, "pow", True)))),
    "layer norm, no bias": ("layer-norm", x_of(lambda b, x: scaled(b, norm(b, x)))),
    "layer norm, kept axes": ("layer-norm", norm_in_kept_axes),
    "layer norm, scale first": ("layer-norm", scale_first),
    "layer norm, another axis": (
        "layer-norm", lambda b: affine(b, norm(b, x_input(b, (2, 8, 3)), axis=1), 1)
    ),
    "layer norm, one row": ("layer-norm", lambda b: affine(b, norm(b, x_input(b, (8,))))),
    "rms norm": ("rms-norm", x_of(lambda b, x: scaled(b, norm(b, x, centre=False)))),
    "rms norm, sqrt": ("rms-norm", x_of(lambda b, x: scaled(b, norm(b, x, "sqrt", True, centre=False)))),
    "rms norm, powers": ("rms-norm", x_of(lambda b, x: scaled(b, norm(b, x, "pow", centre=False)))),
    "gelu": ("gelu", x_of(lambda b, x: gelu(b, x, times(b, x, x, x)))),
    "gelu, x (x x)": ("gelu", x_of(lambda b, x: gelu(b, x, b.mul(x, b.mul(x, x))))),
    "gelu, pow": ("gelu", x_of(lambda b, x: gelu(b, x, b.op("pow", x, b.like(3.0, x))))),
    "gelu, f32 constant": ("gelu", x_of(lambda b, x: gelu(b, x, times(b, x, x, x), 0.7978845608))),
    "gelu, factored": ("gelu", gelu_factored),
    "gelu of a product": (
        "gelu", x_of(lambda b, x: gelu(b, y := b.mul(x, b.like(0.7, x)), times(b, y, y, y)))
    ),
    "silu": ("silu", x_of(lambda b, x: b.mul(x, b.op("sigmoid", x)))),
    "silu, turned": ("silu", x_of(lambda b, x: b.mul(b.op("sigmoid", x), x))),
    "silu, divided": ("silu", silu_divided),
    "swiglu": ("silu", x_of(lambda b, x: times(b, x, b.op("sigmoid", x), b.like(3.0, x)))),
    "attention": ("attention", attend()),
    "attention, no scale": ("attention", attend(scale=1.0)),
    "attention, q scaled": ("attention", attend(scale_q=True)),
    "attention, library": ("attention", attend(guards=True, masked=causal_of)),
    "attention, reciprocal": ("attention", attend(guards=True, masked=causal_of, reciprocal=True)),
    "attention, bf16": ("attention", attend("bf16", guards=True, masked=causal_of)),
    "attention, mask": ("attention", attend(guards=True, masked=some_mask)),
    "attention, -1e9": ("attention", attend(masked=causal_of, fill=-1e9)),
    "attention, both masks": ("attention", attend(guards=True, masked=two_masks)),
    "attention, not lt": ("attention", attend(masked=strict_and_negated)),
    "attention, triangle": ("attention", attend(t=3, s=5, masked=triangle)),
    "attention, late queries": ("attention", attend(t=3, s=5, masked=causal_of)),
    "attention, another order": ("attention", in_other_order),
    "attention, grouped": ("attention", grouped),
    "attention, turned and scaled after": ("attention", turned_and_scaled_after),
}  # fmt: skip
CAUSAL = {
    "attention, library", "attention, reciprocal", "attention, bf16", "attention, -1e9",
    "attention, both masks", "attention, turned and scaled after",
    "attention, not lt", "attention, triangle", "attention, late queries", "attention, grouped",
}  # fmt: skip


NEAR_MISSES: dict[str, Callable[[Builder], Value]] = {
    "sum of something else": x_of(lambda b, x: b.div(exponentials(b, x), row(b, total(b, b.op("exp", b.neg(x))), x))),
    "sum over two axes": x_of(
        lambda b, x: b.div(e := b.op("exp", x), b.expand_like(b.sum(e, (1, 2)), x.shape, (1, 2)))
    ),
    "guarded softmax": x_of(
        lambda b, x: b.div(e := b.op("exp", x), row(b, b.op("maximum", s := total(b, e), b.like(1e-30, s)), x))
    ),
    "pick of other logits": loss_of(lambda b, x, t: b.neg(pick(b, b.sub(b.neg(x), row(b, total(b, x), x)), t))),
    "variance of something else": x_of(
        lambda b, x: affine(
            b, b.mul(b.sub(x, row(b, mean(b, x), x)), row(b, b.op("rsqrt", mean(b, b.op("exp", x))), x))
        )
    ),
    "unbiased variance": x_of(
        lambda b, x: scaled(b, b.div(x, row(b, b.op("sqrt", b.scale(total(b, b.mul(x, x)), 1 / 7)), x)))
    ),
    "norm without scale": x_of(norm),
    "mean over another axis": lambda b: affine(
        b, b.mul(x := x_input(b), row(b, b.op("rsqrt", mean(b, b.mul(x, x), 1)), x, 1))
    ),
    "gelu of another slope": x_of(lambda b, x: gelu(b, x, times(b, x, x, x), 0.8)),
    "gelu of another cubic": x_of(lambda b, x: gelu(b, x, times(b, x, x, x), cubic=0.0447)),
    "gelu of another cube": x_of(lambda b, x: gelu(b, x, times(b, x, x, b.neg(x)))),
    "gelu of a square": x_of(lambda b, x: gelu(b, x, times(b, x, x))),
    "gate of another": x_of(lambda b, x: b.mul(x, b.op("sigmoid", b.neg(x)))),
    "quick gelu": x_of(lambda b, x: b.mul(x, b.op("sigmoid", b.scale(x, 1.702)))),
}
PARTS: dict[str, tuple[str, Callable[[Builder], Value]]] = {
    "max of something else": (
        "logsumexp", x_of(lambda b, x: b.add(peak(b, b.neg(x)), b.op("log", total(b, exponentials(b, x)))))
    ),
    "max over another axis": (
        "softmax", x_of(lambda b, x: b.div(e := exponentials(b, x), row(b, total(b, e, 1), x, 1)))
    ),
    "pick along another axis": (
        "logsumexp",
        lambda b: b.sub(
            logsumexp(b, x := b.input("x", f32(3, 3))),
            b.op("pick", x, b.input("targets", TensorType("i32", (3,))), axis=0),
        ),
    ),
}  # fmt: skip
"""Near misses of which a part is a composite for itself."""
NOT_ATTENTION: dict[str, Callable[[Builder], Value]] = {
    "softmax over queries": attend(axis=-2),
    "weak mask": attend(masked=some_mask, fill=-1.0),
    "batch summed": attend(specs=("bhtd,bhsd->bhts", "bhts,bhse->bte")),
    "two inner axes": lambda b: attention(
        b, *(b.input(n, f32(2, 4, 3, 6)) for n in "qkv"), specs=("btdf,bsdf->bts", "bts,bsde->btde")
    ),
}  # fmt: skip


def graph_of(spelling: Callable[[Builder], Value]) -> Graph:
    b = Builder()
    return b.graph("g", [("y", spelling(b))])


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for name, value in zip(graph.input_names, graph.inputs, strict=True):
        if name == "targets":
            made[name] = rng.integers(0, 3 if value.rank == 1 else 9, value.shape).astype(np.int32)
        elif name == "mask":
            made[name] = rng.random(value.shape) < 0.6
            made[name][:, 2] = False
        else:
            made[name] = rng.normal(size=value.shape).astype(np.float32)
    return made


def names_of(graph: Graph) -> list[str]:
    return [name for name, _ in describe(graph)]


def with_gradient(graph: Graph) -> Graph:
    b = Builder()
    inputs = {name: b.input(name, v.type) for name, v in zip(graph.input_names, graph.inputs, strict=True)}
    (y,) = b.copy(graph)
    seed = b.input("seed", y.type)
    wrt = [v for v in inputs.values() if v.type.is_float]
    found = differentiate(b, {y: seed}, wrt)
    gradients = [(f"d{i}", v) for i, v in enumerate(found) if v is not None]
    return b.graph("with gradient", [("y", y), *gradients])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_found_and_the_same(spelling: str) -> None:
    name, write = SPELLINGS[spelling]
    graph = graph_of(write)
    raised = raise_composites(graph)
    assert names_of(raised) == [name]
    assert raised.input_names == graph.input_names
    assert raise_composites(raised) is raised
    before, after = with_gradient(graph), with_gradient(raised)
    given = inputs_of(graph) | {"seed": np.random.default_rng(1).normal(size=graph.output("y").shape)}
    tolerance = 3e-2 if "bf16" in spelling else 1e-5
    wanted, found = evaluate(before, given), evaluate(after, given)
    assert wanted.keys() == found.keys()
    for key in wanted:
        np.testing.assert_allclose(found[key], wanted[key], rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_spelling_is_gone(spelling: str) -> None:
    """Nothing of it is left but moves, casts and numbers around the composite."""
    raised = raise_composites(graph_of(SPELLINGS[spelling][1]))
    outside = {"composite", "input", "constant", "broadcast", "reshape", "transpose", "cast", "neg", "mul"}
    if spelling in ("log softmax", "mean loss, negated last"):
        outside |= {"sub", "sum"}
    assert {node.op for node in raised.nodes} <= outside


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if name.startswith("attention")])
def test_masks_of_attention(spelling: str) -> None:
    raised = raise_composites(graph_of(SPELLINGS[spelling][1]))
    (node,) = (n for n in raised.nodes if n.op == "composite")
    assert node.attrs["causal"] is (spelling in CAUSAL)
    assert len(node.inputs) == 3 + (spelling in ("attention, mask", "attention, both masks"))
    assert node.inputs[0].dtype == ("bf16" if "bf16" in spelling else "f32")


@pytest.mark.parametrize("spelling", PARTS)
def test_a_part_is_found_with_its_own_meaning(spelling: str) -> None:
    name, write = PARTS[spelling]
    graph = graph_of(write)
    raised = raise_composites(graph)
    assert names_of(raised) == [name]
    given = inputs_of(graph)
    np.testing.assert_allclose(evaluate(raised, given)["y"], evaluate(graph, given)["y"], rtol=1e-5, atol=1e-5)


def test_a_loss_of_bf16_reads_the_narrow_logits() -> None:
    for pick_first in (False, True):
        graph = graph_of(lambda b: bf16_loss(b, pick_first))  # noqa: B023
        (node,) = (n for n in raise_composites(graph).nodes if n.op == "composite")
        assert [v.dtype for v in node.inputs] == ["bf16", "i32"]
        given = inputs_of(graph)
        wanted, found = evaluate(graph, given), evaluate(raise_composites(graph), given)
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-6)


@pytest.mark.parametrize("spelling", NEAR_MISSES)
def test_a_near_miss_stays(spelling: str) -> None:
    graph = graph_of(NEAR_MISSES[spelling])
    assert raise_composites(graph) is graph


@pytest.mark.parametrize("spelling", NOT_ATTENTION)
def test_not_attention(spelling: str) -> None:
    assert "attention" not in names_of(raise_composites(graph_of(NOT_ATTENTION[spelling])))


def test_a_mask_of_another_offset_is_a_mask() -> None:
    def earlier(b: Builder, scores: Value) -> Value:
        return b.op("gt", b.iota("i32", scores.shape, 2), b.iota("i32", scores.shape, 3))

    raised = raise_composites(graph_of(attend(guards=True, masked=earlier)))
    (node,) = (n for n in raised.nodes if n.op == "composite")
    assert node.attrs["causal"] is False and len(node.inputs) == 4


def test_masked_rows_give_zero_whatever_hides_them() -> None:
    for fill, guards in ((-math.inf, True), (-math.inf, False), (-1e9, False)):
        graph = raise_composites(graph_of(attend(masked=some_mask, fill=fill, guards=guards)))
        assert names_of(graph) == ["attention"]
        both = with_gradient(graph)
        given = inputs_of(graph) | {"seed": np.ones(graph.output("y").shape, np.float32)}
        result = evaluate(both, given)
        assert np.all(result["y"][:, :, 2] == 0)
        assert all(np.all(np.isfinite(v)) for v in result.values())


def test_what_else_is_read_stays() -> None:
    b = Builder()
    x = x_input(b)
    e = exponentials(b, x)
    s = total(b, e)
    graph = b.graph("g", [("y", b.div(e, row(b, s, x))), ("s", s)])
    raised = raise_composites(graph)
    assert names_of(raised) == ["softmax"]
    given = inputs_of(graph)
    wanted, found = evaluate(graph, given), evaluate(raised, given)
    np.testing.assert_array_equal(wanted["s"], found["s"])
    np.testing.assert_allclose(wanted["y"], found["y"], rtol=1e-6)


def test_probabilities_that_are_read_are_a_softmax_beside_the_attention() -> None:
    b = Builder()
    q, k, v = heads(b)
    p = softmax(b, b.scale(b.product("bhtd,bhsd->bhts", q, k), 0.5))
    graph = b.graph("g", [("y", b.product("bhts,bhse->bhte", p, v)), ("p", p)])
    assert sorted(names_of(raise_composites(graph))) == ["attention", "softmax"]


def test_origins_are_those_of_the_roots() -> None:
    b = Builder()
    span = Span(Source("model.sx", "(softmax x)"), 0, 11)
    with b.at(Origin(span)):
        y = softmax(b, x_input(b))
    assert describe(raise_composites(b.graph("g", [("y", y)]))) == [("softmax", Origin(span))]


def test_a_block_of_a_transformer() -> None:
    b = Builder()
    x = x_input(b, (2, 4, 8))
    y = x
    for layer in range(2):
        w = b.input(f"w{layer}", f32(8, 8))
        h = affine(b, norm(b, y))
        q, k, v = (b.reshape(b.product("btw,wo->bto", h, w), (2, 4, 2, 4)) for _ in range(3))
        a = attention(
            b, q, k, v, specs=("bthd,bshd->bhts", "bhts,bshe->bthe"), guards=True,
            masked=lambda b, x: causal(b, 4, 4, x.shape),
        )  # fmt: skip
        y = b.add(y, b.reshape(a, (2, 4, 8)))
        u = b.product("btw,wo->bto", affine(b, norm(b, y)), w)
        y = b.add(y, gelu(b, u, times(b, u, u, u)))
    targets = b.input("targets", TensorType("i32", (2, 4)))
    graph = b.graph("g", [("y", b.sub(logsumexp(b, y), pick(b, y, targets)))])
    raised = raise_composites(graph)
    layer = ["layer-norm", "attention", "layer-norm", "gelu"]
    assert names_of(raised) == [*layer, *layer, "cross-entropy"]
    given = inputs_of(graph)
    np.testing.assert_allclose(evaluate(raised, given)["y"], evaluate(graph, given)["y"], rtol=1e-5, atol=1e-5)
    bodies = [n.bodies[0] for n in raised.nodes if n.op == "composite"]
    assert bodies[0] is bodies[2] is bodies[4] and bodies[1] is bodies[5]


def test_a_graph_without_spellings_costs_little() -> None:
    b = Builder()
    values = [x_input(b)]
    for i in range(400):
        y = values[-1]
        r = b.op("rsqrt", b.add(b.mul(y, y), b.like(1.0, y)))
        y = b.add(b.mul(b.sub(b.op("tanh", y), b.scale(y, 0.1 + i)), r), b.op("exp", b.neg(y)))
        values.append(b.div(y, b.op("sqrt", b.add(b.mul(y, y), b.like(1.0, y)))))
    graph = b.graph("g", [("y", values[-1])])
    assert len(graph.nodes) > 4000
    assert raise_composites(graph) is graph
    per_node = calls(lambda: raise_composites(graph)) / len(graph.nodes)
    assert per_node < 100


def test_stages_are_ordered() -> None:
    """Composites of a raised graph keep the order of their readers."""
    b = Builder()
    y = x_input(b)
    for _ in range(3):
        y = softmax(b, y)
    raised = raise_composites(b.graph("g", [("y", y)]))
    composites = [n for n in raised.nodes if n.op == "composite"]
    assert all(late.inputs[0].node is early for early, late in pairwise(composites))
