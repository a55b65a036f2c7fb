"""The composites: what each is called, its body, and the composite that is its gradient.

Flow: `transform.raising` finds them in plain operations and calls `make`; `ir.ops.composite` is their one
operation.

A body is the whole meaning of a composite, polymorphic in its leading axes (any number, or none). Bodies read
and write the large arrays in few passes, because the interpreter executes them node by node.

Shapes: `…` leading axes, `n` the row, `t` queries, `s` keys, `d` width of a key, `e` width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attr, Graph, Node, Value
from sexpgpu.ir.types import TensorType

LOWEST = -3.4028234663852886e38
"""The least finite f32: a row maximum of −∞ is raised to it, so that a row of −∞ has no NaN."""
GELU_SLOPE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
LEADING_LETTERS = "abcfghijklmnopqruvwxyz"

Params = Mapping[str, Attr]
Body = Callable[[Builder, Sequence[Value], Params], tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Gradient:
    """The composite that differentiates another.

    takes: its inputs, by name: `x` all inputs of the forward node, `x1` one of them, `y0` an output, `g0` the
        cotangent of an output. A cotangent that is not named must be zero.
    gives: for each of its outputs, the input of the forward node that it is the cotangent of.
    """

    name: str
    takes: tuple[str, ...]
    gives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Composite:
    """One composite.

    parameters: names of its static parameters.
    body: inputs and parameters to outputs, in a builder.
    gradient: None: it is differentiated through its body.
    shared: inputs without leading axes, such as the scale of a norm.
    rowwise: whether leading axes only repeat the work, so that microbatches stack as one more of them.
    """

    name: str
    doc: str
    body: Body
    parameters: tuple[str, ...] = ()
    gradient: Gradient | None = None
    shared: tuple[int, ...] = ()
    rowwise: bool = True


def make(b: Builder, name: str, inputs: Sequence[Value], **params: Attr) -> Node:
    """The node of composite `name`; equal composites in one builder are one node.

    Raises: TypeFault as an operation of its body does.
    """
    return apply(b, name, inputs, params)


def apply(b: Builder, name: str, inputs: Sequence[Value], params: Params) -> Node:
    """`make` with the parameters as a mapping, of which the composite takes those that it knows."""
    kept = tuple((key, params[key]) for key in COMPOSITES[name].parameters)
    body = _body(name, tuple(v.type for v in inputs), kept, repr(kept))
    return b.node("composite", inputs, {"name": name, **dict(kept)}, (body,))


@lru_cache(maxsize=4096)
def _body(name: str, types: tuple[TensorType, ...], params: tuple[tuple[str, Attr], ...], text: str) -> Graph:
    """The body for input types; the same object each time, so that a builder interns equal composites.

    `text` spells the parameters: 1, 1.0 and true are one key otherwise.
    """
    b = Builder()
    inputs = [b.input(f"x{i}", t) for i, t in enumerate(types)]
    outputs = COMPOSITES[name].body(b, inputs, dict(params))
    return b.graph(name, [(f"y{i}", v) for i, v in enumerate(outputs)], inputs)


# Pieces.


def _row_max(b: Builder, x: Value) -> Value:
    """The row maximum, finite where the row is all −∞."""
    top = b.op("max", x, axes=(x.rank - 1,))
    return b.op("maximum", top, b.like(LOWEST, top))


def _row_sum(b: Builder, x: Value) -> Value:
    return b.sum(x, (x.rank - 1,))


def _row(b: Builder, r: Value, x: Value) -> Value:
    """One number a row, repeated along the row of `x`."""
    return b.broadcast(r, x.shape, range(x.rank - 1))


def _vector(b: Builder, w: Value, x: Value) -> Value:
    """One number a column, repeated down the rows of `x`."""
    return b.broadcast(w, x.shape, (x.rank - 1,))


def _columns(b: Builder, x: Value) -> Value:
    return b.sum(x, range(x.rank - 1))


def _add_number(b: Builder, x: Value, number: float) -> Value:
    return b.add(x, b.like(number, x))


def _number(params: Params, name: str) -> float:
    value = params[name]
    assert isinstance(value, (int, float)), (name, value)
    return float(value)


# Softmax family.


def _softmax(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    (x,) = inputs
    e = b.op("exp", b.sub(x, _row(b, b.op("max", x, axes=(x.rank - 1,)), x)))
    return (b.div(e, _row(b, _row_sum(b, e), x)),)


def _softmax_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    y, g = inputs
    return (b.mul(y, b.sub(g, _row(b, _row_sum(b, b.mul(y, g)), y))),)


def _max_and_total(b: Builder, x: Value) -> tuple[Value, Value]:
    """The row maximum, and the row sum of e to what is above or below it."""
    m = _row_max(b, x)
    return m, _row_sum(b, b.op("exp", b.sub(x, _row(b, m, x))))


def _log_sum(b: Builder, x: Value) -> Value:
    m, total = _max_and_total(b, x)
    return b.add(m, b.op("log", total))


def _logsumexp(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    return (_log_sum(b, inputs[0]),)


def _from_log_sum(b: Builder, x: Value, log_sum: Value) -> Value:
    """Probabilities from logits and their row log-sum; a row of −∞ has probabilities 0."""
    return b.op("exp", b.sub(x, _row(b, b.op("maximum", log_sum, b.like(LOWEST, log_sum)), x)))


def _logsumexp_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, y, g = inputs
    return (b.mul(_from_log_sum(b, x, y), _row(b, g, x)),)


def _cross_entropy(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    logits, targets = inputs
    # The maximum meets what was picked first: both may be large, and their difference is exact.
    m, total = _max_and_total(b, b.cast(logits, "f32"))
    picked = b.op("pick", logits, targets, axis=logits.rank - 1)
    return b.add(b.sub(m, b.cast(picked, "f32")), b.op("log", total)), m, total


def _cross_entropy_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    logits, targets, m, total, g = inputs
    x = b.cast(logits, "f32")
    # The total is 1 at least, but for a row of −∞, whose probabilities are 0.
    per_total = b.div(b.like(1.0, total), b.op("maximum", total, b.like(1.0, total)))
    p = b.mul(b.op("exp", b.sub(x, _row(b, m, x))), _row(b, per_total, x))
    last = b.like(x.shape[-1] - 1, targets)
    clamped = b.op("minimum", b.op("maximum", targets, b.like(0, targets)), last)
    column = _vector(b, b.iota(targets.dtype, (x.shape[-1],)), x)
    chosen = b.op("eq", column, _row(b, clamped, x))
    d = b.mul(b.sub(p, b.cast(chosen, "f32")), _row(b, g, x))
    return (b.cast(d, logits.dtype),)


# Norms.


def _layer_norm(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, scale, bias = inputs
    per_element = 1 / x.shape[-1]
    mean = b.scale(_row_sum(b, x), per_element)
    centred = b.sub(x, _row(b, mean, x))
    variance = b.scale(_row_sum(b, b.mul(centred, centred)), per_element)
    rstd = b.op("rsqrt", _add_number(b, variance, _number(params, "eps")))
    y = b.mul(b.mul(centred, _row(b, rstd, x)), _vector(b, scale, x))
    return b.add(y, _vector(b, bias, x)), mean, rstd


def _layer_norm_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, scale, mean, rstd, g = inputs
    per_element = 1 / x.shape[-1]
    unit = b.mul(b.sub(x, _row(b, mean, x)), _row(b, rstd, x))
    g_unit = b.mul(g, unit)
    h = b.mul(g, _vector(b, scale, x))
    along = b.scale(_row_sum(b, b.mul(h, unit)), per_element)
    level = b.scale(_row_sum(b, h), per_element)
    dx = b.sub(b.sub(h, _row(b, level, x)), b.mul(unit, _row(b, along, x)))
    return b.mul(dx, _row(b, rstd, x)), _columns(b, g_unit), _columns(b, g)


def _rms_norm(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, scale = inputs
    power = b.scale(_row_sum(b, b.mul(x, x)), 1 / x.shape[-1])
    rstd = b.op("rsqrt", _add_number(b, power, _number(params, "eps")))
    return b.mul(b.mul(x, _row(b, rstd, x)), _vector(b, scale, x)), rstd


def _rms_norm_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, scale, rstd, g = inputs
    unit = b.mul(x, _row(b, rstd, x))
    h = b.mul(g, _vector(b, scale, x))
    along = b.scale(_row_sum(b, b.mul(h, unit)), 1 / x.shape[-1])
    dx = b.mul(b.sub(h, b.mul(unit, _row(b, along, x))), _row(b, rstd, x))
    return dx, _columns(b, b.mul(g, unit))


# Activations.


def _gelu_gate(b: Builder, x: Value, square: Value) -> Value:
    """tanh(√(2/π)·(x + 0.044715·x³))."""
    slope = _add_number(b, b.scale(square, GELU_SLOPE * GELU_CUBIC), GELU_SLOPE)
    return b.op("tanh", b.mul(slope, x))


def _gelu(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    (x,) = inputs
    gate = _gelu_gate(b, x, b.mul(x, x))
    return (b.mul(b.scale(_add_number(b, gate, 1.0), 0.5), x),)


def _gelu_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, g = inputs
    square = b.mul(x, x)
    gate = _gelu_gate(b, x, square)
    # d/dx ½x(1 + tanh u) = ½(1 + tanh u)·(1 + x·u′·(1 − tanh u)), of which no factor cancels.
    slope = _add_number(b, b.scale(square, 3 * GELU_SLOPE * GELU_CUBIC), GELU_SLOPE)
    inner = b.mul(b.mul(slope, x), b.sub(b.like(1.0, x), gate))
    half = b.scale(_add_number(b, gate, 1.0), 0.5)
    return (b.mul(b.mul(half, _add_number(b, inner, 1.0)), g),)


def _silu(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    (x,) = inputs
    return (b.mul(x, b.op("sigmoid", x)),)


def _silu_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    x, g = inputs
    gate = b.op("sigmoid", x)
    slope = b.mul(x, b.sub(b.like(1.0, x), gate))
    return (b.mul(b.mul(gate, _add_number(b, slope, 1.0)), g),)


# Attention. Scores, probabilities and sums are f32; operands of products have the dtype of q, k and v.


def _product(b: Builder, spec: str, x: Value, y: Value) -> Value:
    """A batched product: `spec` names the last two axes, every axis before them is shared."""
    leading = LEADING_LETTERS[: x.rank - 2]
    operands, result = spec.split("->")
    first, second = operands.split(",")
    return b.product(f"{leading}{first},{leading}{second}->{leading}{result}", x, y)


def _hidden(b: Builder, scores: Value, mask: Value | None, causal: bool) -> Value:
    """Scores with −∞ where a query may not see a key."""
    nothing = b.like(-math.inf, scores)
    if mask is not None:
        scores = b.where(mask, scores, nothing)
    if causal:
        num_queries, num_keys = shape = scores.shape[-2:]
        last_seen = _add_integer(b, b.iota("i32", shape, 0), num_keys - num_queries)
        seen = b.op("le", b.iota("i32", shape, 1), last_seen)
        scores = b.where(b.broadcast(seen, scores.shape, (scores.rank - 2, scores.rank - 1)), scores, nothing)
    return scores


def _add_integer(b: Builder, x: Value, number: int) -> Value:
    return b.add(x, b.like(number, x)) if number else x


def _scores(b: Builder, q: Value, k: Value, mask: Value | None, params: Params) -> tuple[Value, Value, float]:
    """Masked scores, the q that they are the product of, and what of the scale is not in that q.

    An f32 q takes the scale: a pass over t·d instead of t·s. A bf16 q would be rounded once more.
    """
    scale = _number(params, "scale")
    if q.dtype != "bf16" and scale != 1.0:
        q, scale = b.scale(q, scale), 1.0
    scores = _product(b, "td,sd->ts", q, k)
    if scale != 1.0:
        scores = b.scale(scores, scale)
    return _hidden(b, scores, mask, bool(params["causal"])), q, scale


def _attention(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    q, k, v, *rest = inputs
    scores, _, _ = _scores(b, q, k, rest[0] if rest else None, params)
    m = _row_max(b, scores)
    e = b.op("exp", b.sub(scores, _row(b, m, scores)))
    total = _row_sum(b, e)
    out = _product(b, "ts,se->te", b.cast(e, v.dtype), v)
    # A row that sees a key has a total of at least 1.
    divisor = b.op("maximum", total, b.like(1.0e-30, total))
    return b.div(out, _row(b, divisor, out)), b.add(m, b.op("log", total))


def _attention_gradient(b: Builder, inputs: Sequence[Value], params: Params) -> tuple[Value, ...]:
    q, k, v, *rest, out, row_lse, d_out = inputs
    scores, scaled_q, left = _scores(b, q, k, rest[0] if rest else None, params)
    p = _from_log_sum(b, scores, row_lse)
    d = b.cast(d_out, v.dtype)
    dv = _product(b, "ts,te->se", b.cast(p, v.dtype), d)
    dp = _product(b, "te,se->ts", d, v)
    ds = b.mul(b.sub(dp, _row(b, _row_sum(b, b.mul(out, d_out)), dp)), p)
    ds = b.cast(ds, q.dtype)
    dq = b.scale(_product(b, "ts,sd->td", ds, k), _number(params, "scale"))
    dk = _product(b, "ts,td->sd", ds, scaled_q)
    if left != 1.0:
        dk = b.scale(dk, left)
    return b.cast(dq, q.dtype), b.cast(dk, k.dtype), b.cast(dv, v.dtype)


COMPOSITES: dict[str, Composite] = {
    c.name: c
    for c in (
        Composite(
            "softmax", "exp(x − max x) / Σ exp(x − max x) along the last axis: x […, n] -> […, n].", _softmax,
            gradient=Gradient("softmax-gradient", ("y0", "g0"), (0,)),
        ),
        Composite("softmax-gradient", "y·(g − Σ y·g): y, g […, n] -> […, n].", _softmax_gradient),
        Composite(
            "logsumexp", "log Σ exp x along the last axis, −∞ of a row of −∞: x […, n] -> […].", _logsumexp,
            gradient=Gradient("logsumexp-gradient", ("x0", "y0", "g0"), (0,)),
        ),
        Composite("logsumexp-gradient", "exp(x − y)·g: x […, n], y, g […] -> […, n].", _logsumexp_gradient),
        Composite(
            "cross-entropy",
            "m + log s − logits[target], with m = max logits and s = Σ exp(logits − m), then m and s: "
            "logits […, v] f32 or bf16, targets […] -> […], […], […] f32.",
            _cross_entropy,
            gradient=Gradient("cross-entropy-gradient", ("x0", "x1", "y1", "y2", "g0"), (0,)),
        ),
        Composite(
            "cross-entropy-gradient",
            "(exp(logits − m)/s − onehot(target))·g, in the logits' dtype: "
            "logits […, v], targets, m, s, g […] -> […, v].",
            _cross_entropy_gradient,
        ),
        Composite(
            "layer-norm",
            "(x − mean)·rstd·scale + bias, mean, rstd: x […, w], scale, bias [w] -> […, w], […], […].",
            _layer_norm, ("eps",),
            Gradient("layer-norm-gradient", ("x0", "x1", "y1", "y2", "g0"), (0, 1, 2)), (1, 2),
        ),
        Composite(
            "layer-norm-gradient",
            "x […, w], scale [w], mean, rstd […], g […, w] -> dx […, w], dscale, dbias [w].",
            _layer_norm_gradient, shared=(1,), rowwise=False,
        ),
        Composite(
            "rms-norm", "x·rstd·scale, rstd = 1/√(mean x² + eps): x […, w], scale [w] -> […, w], […].",
            _rms_norm, ("eps",), Gradient("rms-norm-gradient", ("x0", "x1", "y1", "g0"), (0, 1)), (1,),
        ),
        Composite(
            "rms-norm-gradient", "x […, w], scale [w], rstd […], g […, w] -> dx […, w], dscale [w].",
            _rms_norm_gradient, shared=(1,), rowwise=False,
        ),
        Composite(
            "gelu", "½x(1 + tanh(√(2/π)(x + 0.044715x³))), elementwise.", _gelu,
            gradient=Gradient("gelu-gradient", ("x0", "g0"), (0,)),
        ),
        Composite("gelu-gradient", "The slope of gelu at x, times g.", _gelu_gradient),
        Composite(
            "silu", "x·sigmoid(x), elementwise.", _silu,
            gradient=Gradient("silu-gradient", ("x0", "g0"), (0,)),
        ),
        Composite("silu-gradient", "The slope of silu at x, times g.", _silu_gradient),
        Composite(
            "attention",
            "softmax(scale·q·kᵀ, hidden keys −∞)·v, and the row log-sum-exp: q […, t, d], k […, s, d], "
            "v […, s, e], optional mask […, t, s] -> […, t, e] f32, […, t] f32. "
            "Causal: key ≤ query + (s − t). A query that sees no key gives 0, and −∞.",
            _attention, ("causal", "scale"),
            Gradient("attention-gradient", ("x", "y0", "y1", "g0"), (0, 1, 2)),
        ),
        Composite(
            "attention-gradient",
            "q, k, v, optional mask, out, row_lse, d_out -> dq, dk, dv in the operands' dtype. Probabilities "
            "are rebuilt from row_lse; Σ out·d_out stands for Σ p·dp.",
            _attention_gradient, ("causal", "scale"),
        ),
    )
}  # fmt: skip
"""The registry, by name."""
