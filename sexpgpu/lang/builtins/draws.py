"""Random draws. Bits depend on the seed, the phase, the microbatch, and the path of the call.

Gradient: none: what is drawn does not depend on what is trained.
Stacked: microbatch j of a stack draws what it would have drawn alone.
"""

from __future__ import annotations

from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.arithmetic import broadcast_together, is_number
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.patterns import type_value


def _draw(el: Elaborator, op: str, callee: str, shape: tuple[int, ...]) -> Value:
    bound = el.bound
    return el.require_trace().draw(op, f"{callee}={bound}" if bound else callee, shape)


def _float_type(el: Elaborator, type: Any) -> TensorType:
    wanted = type_value(el, type)
    if wanted.dtype not in ("f32", "bf16"):
        el.fail("E-TYPE-001", f"a draw of floats has no type {wanted}", help="(f32 …)")
    return wanted


@builtin("random-normal")
def random_normal(el: Elaborator, type: Any) -> Value:
    """`(random-normal TYPE)`: draws of mean 0 and variance 1.

    Takes: a type, or a tensor whose type is meant.
    Shape: that of the type.
    Types: f32 and bf16.
    Example:
        (random-normal (f32 3))  ; is (f32 3)
        (+ x (* 0.1 (random-normal x)))  ; is (f32 8 16)
    """
    wanted = _float_type(el, type)
    return el.require_trace().builder.cast(_draw(el, "random-normal", "random-normal", wanted.shape), wanted.dtype)


@builtin("random-uniform")
def random_uniform(el: Elaborator, type: Any) -> Value:
    """`(random-uniform TYPE)`: draws from 0 up to, but without, 1.

    Takes: a type, or a tensor whose type is meant.
    Shape: that of the type.
    Types: f32 and bf16.
    Example:
        (random-uniform (f32 3))  ; is (f32 3)
        (- (* 2.0 (random-uniform (f32 4 4))) 1.0)  ; is (f32 4 4)
    """
    wanted = _float_type(el, type)
    return el.require_trace().builder.cast(_draw(el, "random-uniform", "random-uniform", wanted.shape), wanted.dtype)


@builtin("bernoulli")
def bernoulli(el: Elaborator, p: Any, type: Any) -> Value:
    """`(bernoulli p TYPE)`: true with probability p.

    Takes: a probability, a number or a tensor that stretches to the type; a type, or a tensor.
    Shape: that of the type.
    Types: the result is bool.
    Example:
        (bernoulli 0.1 (f32 3))  ; is (bool 3)
        (bernoulli (sigmoid x) x)  ; is (bool 8 16)
    """
    shape = type_value(el, type).shape
    if is_number(p) and not 0 <= p <= 1:
        el.fail("E-TYPE-005", f"{p:g} is no probability", help="a probability lies between 0 and 1")
    b = el.require_trace().builder
    draw = _draw(el, "random-uniform", "bernoulli", shape)
    given = el.tensor(p) if isinstance(p, Value) else el.tensor(p, "f32")
    chance, _ = broadcast_together(el, "bernoulli", [b.cast(given, "f32"), draw])
    if chance.shape != shape:
        el.fail("E-TYPE-002", f"the probability {given.type} does not stretch to {type_value(el, type)}")
    return b.op("lt", draw, chance)


@builtin("categorical")
def categorical(el: Elaborator, logits: Any) -> Value:
    """`(categorical logits)`: one index a row, drawn with probabilities softmax(logits), by the Gumbel maximum.

    Shape: (… n) → (…): the last axis holds the logits.
    Types: f32 and bf16; the result is i32.
    Gradient: none: the result is an integer.
    Edges: −∞ is never drawn beside anything finite.
    Example:
        (categorical x)  ; is (i32 8)
        (categorical (/ x 0.7))  ; is (i32 8)
    """
    logits = el.tensor(logits)
    if logits.rank < 1 or not logits.type.is_float:
        el.fail("E-TYPE-006", f"`categorical` takes rows of float logits, not {logits.type}")
    b = el.require_trace().builder
    wide = b.cast(logits, "f32")
    draw = b.op("maximum", _draw(el, "random-uniform", "categorical", logits.shape), b.like(2.0**-25, wide))
    gumbel = b.neg(b.op("log", b.neg(b.op("log", draw))))
    return b.op("argmax", b.add(wide, gumbel), axis=logits.rank - 1)


@builtin("permutation")
def permutation(el: Elaborator, type: Any) -> Value:
    """`(permutation n)` or `(permutation (i32 … n))`: the numbers below n in random order,
    along the last axis.

    The order of as many keys of 48 random bits; of equal keys the lower place comes first.

    Shape: (n), or that of the type.
    Types: i32 and i64.
    Example:
        (permutation 10)  ; is (i32 10)
        (gather x (permutation 8))  ; is (f32 8 16)
    """
    wanted = TensorType("i32", (el.size(type),)) if isinstance(type, int | float) else type_value(el, type)
    if not wanted.is_integer or not wanted.rank:
        el.fail("E-TYPE-001", f"a permutation has no type {wanted}", help="(permutation n) or (permutation (i32 n))")
    b = el.require_trace().builder
    draw = _draw(el, "random-uniform", "permutation", (2, *wanted.shape))
    words = b.cast(b.scale(draw, 2.0**24), "i64")
    high, low = (b.reshape(b.slice(words, 0, i, i + 1), wanted.shape) for i in (0, 1))
    keys = b.add(b.mul(high, b.like(1 << 24, high)), low)
    _, places = b.node("sort", (keys,), {"axis": wanted.rank - 1, "descending": False}).outputs
    return b.cast(places, wanted.dtype)
