"""Raising: attention, softmax, norms, losses and activations found in plain operations, made composites.

Flow: the first pass on a forward graph, before stacking and differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import GELU_CUBIC, GELU_SLOPE, make
from sexpgpu.ir.graph import Graph, Node, Origin, Value
from sexpgpu.transform.patterns import (
    RELATIVE_ERROR,
    Along,
    Anything,
    As,
    Bindings,
    Either,
    Op,
    Pattern,
    Plus,
    Reduce,
    Row,
    Times,
    Vector,
    ints,
    match,
    number_of,
    only_unit_axes,
    sizes_of,
)

BIG = -1e9
"""Scores at or below this hide a key; likewise a row maximum may be raised to this or less."""
SMALL = 1e-6
"""A sum of exponentials may be raised to this or less; a row that sees a key has at least 1."""


# The spellings.


def _either(*options: Pattern) -> Pattern:
    return Either(options)


def _stopped(inner: Pattern) -> Pattern:
    return _either(inner, Op("stop-gradient", (inner,)))


def _raised_to(inner: Pattern, least: str) -> Pattern:
    """`inner`, or the maximum of it and a number bound to `least`."""
    number = Times((), least)
    return _either(inner, Op("maximum", (inner, number)), Op("maximum", (number, inner)))


ONE = Times((), 1.0)
X = Anything("x")
E = Anything("e")
MAX = _stopped(Reduce("max", X))
SHIFTED = Op("sub", (X, _stopped(Row(MAX))))
EXP = _either(Op("exp", (SHIFTED,)), Op("exp", (X,)))


def _normalised(exponentials: Pattern, total: Pattern) -> Pattern:
    """Exponentials, bound to `e`, divided by their row total or times its reciprocal."""
    e = As("e", exponentials)
    return _either(Op("div", (e, Row(total))), Times((e, Row(Op("div", (ONE, total))))))


SOFTMAX = _normalised(EXP, Reduce("sum", E))
GUARDED_MAX = _stopped(_raised_to(MAX, "least_max"))
PROBABILITIES = _normalised(
    _either(Op("exp", (Op("sub", (X, _stopped(Row(GUARDED_MAX)))),)), Op("exp", (X,))),
    _raised_to(Reduce("sum", E), "least_sum"),
)

FINITE_MAX = _either(MAX, Op("where", (Op("is-finite", (MAX,)), MAX, Times((), 0.0))))
SHIFTED_FINITE = Op("sub", (X, _stopped(Row(FINITE_MAX))))
LOG_TOTAL = Op("log", (Reduce("sum", Op("exp", (SHIFTED_FINITE,))),))
LOGSUMEXP = _either(Plus((FINITE_MAX, LOG_TOTAL)), Op("log", (Reduce("sum", Op("exp", (X,))),)))
LOG_SOFTMAX = _either(
    Op("sub", (SHIFTED_FINITE, Row(LOG_TOTAL))),
    Op("sub", (X, Row(LOGSUMEXP))),
    Op("sub", (Op("sub", (X, Row(LOG_TOTAL))), _stopped(Row(FINITE_MAX)))),
)
TARGETS = Anything("targets")
PICKED = _either(Along("pick", (X, TARGETS)), Op("cast", (Along("pick", (Anything("narrow"), TARGETS)),)))
LIKELIHOOD = _either(Op("sub", (PICKED, LOGSUMEXP)), Along("pick", (LOG_SOFTMAX, TARGETS)))
LOSS = _either(Op("sub", (LOGSUMEXP, PICKED)), Times((LIKELIHOOD,), -1.0))


def _mean(x: Pattern) -> Pattern:
    return Times((Reduce("sum", x),), "per_element")


CENTRED = Anything("centred")
SCALE = Vector(Anything("scale"))


def _over_root(numerator: Pattern, square: Pattern, *others: Pattern) -> Pattern:
    """numerator / √(square + eps) · others, by a root, a reciprocal root or a power."""
    guarded = Plus((square,), "eps")
    root = _either(Op("sqrt", (guarded,)), Op("pow", (guarded, Times((), 0.5))))
    power = Op("pow", (guarded, Times((), -0.5)))
    reciprocal = _either(Op("rsqrt", (guarded,)), Op("div", (ONE, root)), power)
    return _either(
        Times((numerator, Row(reciprocal), *others)),
        Times((Op("div", (numerator, Row(root))), *others)),
    )


SCALED_LAYER_NORM = _over_root(
    As("centred", Op("sub", (X, Row(_mean(X))))), _mean(Times((CENTRED, CENTRED))), SCALE
)
LAYER_NORM = Plus((SCALED_LAYER_NORM, Vector(Anything("bias"))))
RMS_NORM = _over_root(X, _mean(Times((X, X))), SCALE)

CUBE = Times((X, X, X), GELU_CUBIC)
GELU_ARGUMENT = _either(
    Times((Plus((X, CUBE)),), GELU_SLOPE),
    Times((X, Plus((Times((X, X), GELU_CUBIC),), 1.0)), GELU_SLOPE),
    Times((X, Plus((Times((X, X), GELU_CUBIC * GELU_SLOPE),), GELU_SLOPE))),
    Plus((Times((X,), GELU_SLOPE), Times((X, X, X), GELU_CUBIC * GELU_SLOPE))),
)
GELU = Times((X, Plus((Op("tanh", (GELU_ARGUMENT,)),), 1.0)), 0.5)
SILU = _either(
    Times((X, Op("sigmoid", (X,)))),
    Op("div", (X, Plus((Op("exp", (Times((X,), -1.0),)),), 1.0))),
)


# What is made of them.


@dataclass(frozen=True, slots=True)
class Found:
    """A composite found: the values of the graph that it reads, and how to make it of their copies."""

    name: str
    values: tuple[Value, ...]
    emit: Callable[[Builder, Sequence[Value]], Value]


Recognise = Callable[[Value], Found | None]


def _value(found: Bindings, name: str) -> Value:
    value = found[name]
    assert isinstance(value, Value), (name, value)
    return value


def _number(found: Bindings, name: str, default: float = 0.0) -> float:
    number = found.get(name, default)
    assert isinstance(number, (int, float)), (name, number)
    return number


def _axis(found: Bindings) -> int:
    axis = found["axis"]
    assert isinstance(axis, int), axis
    return axis


def _axis_last(b: Builder, x: Value, axis: int) -> Value:
    return b.transpose(x, [i for i in range(x.rank) if i != axis] + [axis])


def _axis_back(b: Builder, y: Value, axis: int) -> Value:
    order = list(range(y.rank - 1))
    order.insert(axis, y.rank - 1)
    return b.transpose(y, order)


def _pointwise(name: str, pattern: Pattern) -> Recognise:
    def recognise(root: Value) -> Found | None:
        for found in match(pattern, root, {}):
            x = _value(found, "x")
            if x.type == root.type:
                return Found(name, (x,), lambda b, values: make(b, name, values).outputs[0])
        return None

    return recognise


def _emit_softmax(axis: int, b: Builder, values: Sequence[Value]) -> Value:
    return _axis_back(b, make(b, "softmax", [_axis_last(b, values[0], axis)]).outputs[0], axis)


def _softmax(root: Value) -> Found | None:
    for found in match(SOFTMAX, root, {}):
        x, axis = _value(found, "x"), _axis(found)
        if x.type == root.type:
            return Found("softmax", (x,), partial(_emit_softmax, axis))
    return None


def _emit_logsumexp(axis: int, shape: tuple[int, ...], b: Builder, values: Sequence[Value]) -> Value:
    return b.reshape(make(b, "logsumexp", [_axis_last(b, values[0], axis)]).outputs[0], shape)


def _logsumexp(root: Value) -> Found | None:
    for found in match(LOGSUMEXP, root, {}):
        return Found("logsumexp", (_value(found, "x"),), partial(_emit_logsumexp, _axis(found), root.shape))
    return None


def _emit_cross_entropy(
    axis: int, sign: int, shape: tuple[int, ...], b: Builder, values: Sequence[Value]
) -> Value:
    loss = make(b, "cross-entropy", [_axis_last(b, values[0], axis), values[1]]).outputs[0]
    return b.reshape(loss if sign > 0 else b.neg(loss), shape)


def _cross_entropy(pattern: Pattern, sign: int) -> Recognise:
    def recognise(root: Value) -> Found | None:
        for found in match(pattern, root, {}):
            logits = _value(found, "x")
            if logits.node.op == "cast" and logits.node.inputs[0].dtype == "bf16":
                logits = logits.node.inputs[0]
            if found.get("narrow", logits) is logits:
                emit = partial(_emit_cross_entropy, _axis(found), sign, root.shape)
                return Found("cross-entropy", (logits, _value(found, "targets")), emit)
        return None

    return recognise


def _emit_norm(name: str, axis: int, eps: float, b: Builder, values: Sequence[Value]) -> Value:
    rows = _axis_last(b, values[0], axis)
    columns = [b.reshape(w, rows.shape[-1:]) for w in values[1:]]
    if name == "layer-norm" and len(columns) == 1:
        columns.append(b.like(0.0, columns[0]))
    return _axis_back(b, make(b, name, [rows, *columns], eps=eps).outputs[0], axis)


def _norm(name: str, pattern: Pattern) -> Recognise:
    def recognise(root: Value) -> Found | None:
        for found in match(pattern, root, {}):
            x, axis, per_element = _value(found, "x"), _axis(found), _number(found, "per_element")
            if x.type == root.type and math.isclose(per_element * x.shape[axis], 1, rel_tol=RELATIVE_ERROR):
                vectors = [_value(found, key) for key in ("scale", "bias") if key in found]
                return Found(name, (x, *vectors), partial(_emit_norm, name, axis, _number(found, "eps")))
        return None

    return recognise


# Attention.


@dataclass(frozen=True, slots=True)
class Mask:
    """A bool value that must hold (or, negated, must not); its axes as axes of the scores."""

    value: Value
    axes: tuple[int, ...]
    negated: bool


Affine = tuple[dict[int, float], float]


def _inner_axes(node: Node, axes: Sequence[int]) -> tuple[int, ...] | None:
    """For a node that only repeats or reshapes by unit axes: its operand's axes as axes of the scores."""
    if node.op == "broadcast":
        return tuple(axes[i] for i in ints(node, "axes"))
    inner, outer = node.inputs[0].shape, node.types[0].shape
    if only_unit_axes(node) and inner == tuple(sizes_of(inner)):
        return tuple(axis for axis, n in zip(axes, outer, strict=True) if n != 1)
    return None


def _affine(value: Value, axes: Sequence[int]) -> Affine | None:
    """`value` as Σ coefficient · index along an axis of the scores + number."""
    node = value.node
    number = number_of(value)
    if number is not None:
        return {}, number
    match node.op:
        case "iota":
            return {axes[ints(node, "axis")[0]]: 1.0}, 0.0
        case "broadcast" | "reshape":
            inner = _inner_axes(node, axes)
            return None if inner is None else _affine(node.inputs[0], inner)
        case "cast":
            return _affine(node.inputs[0], axes)
        case "neg":
            return _combined(({}, 0.0), _affine(node.inputs[0], axes), -1.0)
        case "add" | "sub":
            x, y = (_affine(v, axes) for v in node.inputs)
            return _combined(x, y, 1.0 if node.op == "add" else -1.0)
        case _:
            return None


def _combined(x: Affine | None, y: Affine | None, factor: float) -> Affine | None:
    """x + factor · y."""
    if x is None or y is None:
        return None
    coefficients = {axis: x[0].get(axis, 0.0) + factor * y[0].get(axis, 0.0) for axis in x[0] | y[0]}
    return coefficients, x[1] + factor * y[1]


def _is_causal(mask: Mask, query_axis: int, key_axis: int, late_keys: int) -> bool:
    """Whether the mask says key ≤ query + late_keys."""
    op = mask.value.node.op
    if op not in ("ge", "gt", "le", "lt"):
        return False
    x, y = (_affine(v, mask.axes) for v in mask.value.node.inputs)
    difference = _combined(x, y, -1.0)
    if difference is None:
        return False
    # As difference ≥ 0 over integers: x > y is x − y − 1 ≥ 0; `le`, `lt` and negations turn it round.
    turned = (op in ("le", "lt")) != mask.negated
    strict = (op in ("gt", "lt")) != mask.negated
    coefficients, number = difference
    sign = -1.0 if turned else 1.0
    slopes = {axis: sign * c for axis, c in coefficients.items() if c}
    return slopes == {query_axis: 1.0, key_axis: -1.0} and sign * number - strict == late_keys


def _conjuncts(mask: Mask) -> list[Mask]:
    """Masks that must all hold for `mask` to hold."""
    node = mask.value.node
    if node.op in ("broadcast", "reshape"):
        inner = _inner_axes(node, mask.axes)
        return [mask] if inner is None else _conjuncts(Mask(node.inputs[0], inner, mask.negated))
    if node.op == "not":
        return _conjuncts(Mask(node.inputs[0], mask.axes, not mask.negated))
    if node.op == ("or" if mask.negated else "and"):
        return [part for v in node.inputs for part in _conjuncts(Mask(v, mask.axes, mask.negated))]
    return [mask]


def _without_factor(value: Value) -> tuple[Value, float]:
    """`value` as a value times a number."""
    factor = 1.0
    while value.node.op in ("mul", "div"):
        x, y = value.node.inputs
        number = number_of(y)
        if number is None and value.node.op == "mul":
            x, number = y, number_of(x)
        if not number:
            break
        value, factor = x, factor * number if value.node.op == "mul" else factor / number
    return value, factor


def _uncovered(scores: Value) -> tuple[Value, float, list[Mask]] | None:
    """Scores without their masks and factors: a product, the factor, the masks."""
    every = tuple(range(scores.rank))
    scale, masks = 1.0, []
    while True:
        scores, factor = _without_factor(scores)
        scale *= factor
        if scores.node.op != "where":
            break
        test, kept, other = scores.node.inputs
        negated = number_of(kept) is not None
        if negated:
            kept, other = other, kept
        fill = number_of(other)
        if fill is None or scale * fill > BIG:
            return None
        masks.append(Mask(test, every, negated))
        scores = kept
    return (scores, scale, masks) if scores.node.op == "product" and scale > 0 else None


def _spec(node: Node) -> tuple[str, str, str]:
    operands, _, out = str(node.attrs["spec"]).partition("->")
    x, _, y = operands.partition(",")
    return x, y, out


def _arranged(b: Builder, x: Value, letters: str, wanted: str, sizes: dict[str, int]) -> Value:
    """`x` with its axes, named by `letters`, in the order of `wanted`, repeated along those it lacks."""
    present = [c for c in wanted if c in letters]
    x = b.transpose(x, [letters.index(c) for c in present])
    return b.broadcast(x, [sizes[c] for c in wanted], [wanted.index(c) for c in present])


def _attention(root: Value) -> Found | None:
    if root.node.op != "product":
        return None
    (x, y), (left, right, out) = root.node.inputs, _spec(root.node)
    for p, v, p_letters, v_letters in ((x, y, left, right), (y, x, right, left)):
        core = p.node.inputs[0] if p.node.op == "cast" else p
        for found in match(PROBABILITIES, core, {}):
            if _number(found, "least_max", BIG) > BIG or not 0 < _number(found, "least_sum", SMALL) <= SMALL:
                continue
            attention = _from_scores(_value(found, "x"), _axis(found), v, p_letters, v_letters, out)
            if attention is not None:
                return attention
    return None


def _from_scores(
    scores: Value, key_axis: int, v: Value, p_letters: str, v_letters: str, out: str
) -> Found | None:
    """The attention whose probabilities, the softmax of `scores`, meet `v` in a product "p, v -> out"."""
    uncovered = _uncovered(scores)
    if uncovered is None:
        return None
    product, scale, masks = uncovered
    q, k = product.node.inputs
    q_letters, k_letters, names = _spec(product.node)
    # One alphabet: an axis of the probabilities is that of the scores; v's own letters become capitals.
    rename = {mine: theirs for mine, theirs in zip(p_letters, names, strict=True)}
    rename |= {c: c.upper() for c in v_letters if c not in rename}
    v_letters, out = ("".join(rename.get(c, c) for c in text) for text in (v_letters, out))
    key = names[key_axis]
    if key in q_letters:
        q, k, q_letters, k_letters = k, q, k_letters, q_letters
    queries = [c for c in names if c in q_letters and c in out and c not in k_letters and c not in v_letters]
    inner = [c for c in q_letters if c not in names]
    own = [c for c in v_letters if c not in names]
    if key in q_letters or not queries or len(inner) != 1 or len(own) != 1 or key not in v_letters:
        return None
    query = queries[-1]
    batch = "".join(c for c in names if c not in (query, key))
    fits = (
        set(k_letters) <= {*batch, key, *inner}
        and inner[0] in k_letters
        and sorted(out) == sorted([*batch, query, *own])
        and q.dtype == v.dtype
        and q.dtype in ("f32", "bf16")
    )
    if not fits:
        return None
    if q.dtype == "f32":
        q, q_factor = _without_factor(q)
        k, k_factor = _without_factor(k)
        scale *= q_factor * k_factor
    sizes: dict[str, int] = {}
    for letters, value in ((names, product), (q_letters, q), (k_letters, k), (v_letters, v)):
        sizes.update(zip(letters, value.shape, strict=True))
    query_axis, late_keys = names.index(query), sizes[key] - sizes[query]
    parts = [part for mask in masks for part in _conjuncts(mask)]
    others = [part for part in parts if not _is_causal(part, query_axis, key_axis, late_keys)]
    causal = len(others) < len(parts)
    if not causal:
        others = masks

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        new_q, new_k, new_v, *tests = values
        inputs = [
            _arranged(b, new_q, q_letters, f"{batch}{query}{inner[0]}", sizes),
            _arranged(b, new_k, k_letters, f"{batch}{key}{inner[0]}", sizes),
            _arranged(b, new_v, v_letters, f"{batch}{key}{own[0]}", sizes),
        ]
        together: Value | None = None
        for mask, test in zip(others, tests, strict=True):
            test = b.op("not", test) if mask.negated else test
            test = b.broadcast(test, [sizes[c] for c in names], mask.axes)
            together = test if together is None else b.op("and", together, test)
        if together is not None:
            inputs.append(_arranged(b, together, names, f"{batch}{query}{key}", sizes))
        result = make(b, "attention", inputs, causal=causal, scale=scale).outputs[0]
        return _arranged(b, result, f"{batch}{query}{own[0]}", out, sizes)

    return Found("attention", (q, k, v, *(mask.value for mask in others)), emit)


# The pass.

FIELD = 16
MARKS = ("sum", "exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "pow", "pick")
"""What a spelling cannot be without. Bit d of an operation's field: it occurs d steps before the node."""
OWN_BIT = {op: 1 << FIELD * i for i, op in enumerate(MARKS)}
FIELD_STARTS = sum(OWN_BIT.values())


def _within(steps: int, *ops: str) -> int:
    return sum(((1 << steps + 1) - 1) * OWN_BIT[op] for op in ops)


@dataclass(frozen=True, slots=True)
class Rule:
    """A recogniser of values.

    roots: the operations that make such a value. near: sets of operations; one of each occurs just before.
    """

    roots: tuple[str, ...]
    near: tuple[int, ...]
    recognise: Recognise


ROOTS = _within(9, "rsqrt", "sqrt", "pow")
RULES = (
    Rule(("product",), (_within(7, "exp"), _within(8, "sum")), _attention),
    Rule(("sub", "neg", "mul"), (_within(4, "pick"),), _cross_entropy(LOSS, 1)),
    Rule(("sub", "pick"), (_within(3, "pick"), _within(9, "log")), _cross_entropy(LIKELIHOOD, -1)),
    Rule(("add", "log"), (_within(4, "log"), _within(6, "sum")), _logsumexp),
    Rule(("div", "mul"), (_within(3, "exp"), _within(6, "sum")), _softmax),
    Rule(("add",), (ROOTS, _within(12, "sum")), _norm("layer-norm", LAYER_NORM)),
    Rule(("mul",), (ROOTS, _within(11, "sum")), _norm("layer-norm", SCALED_LAYER_NORM)),
    Rule(("mul",), (ROOTS, _within(11, "sum")), _norm("rms-norm", RMS_NORM)),
    Rule(("mul", "div"), (_within(6, "tanh"),), _pointwise("gelu", GELU)),
    Rule(("mul", "div"), (_within(5, "sigmoid", "exp"),), _pointwise("silu", SILU)),
)
"""Larger composites before the smaller ones that they contain."""

RULES_OF = {op: tuple(rule for rule in RULES if op in rule.roots) for rule in RULES for op in rule.roots}


def _recognise(node: Node, near: int) -> Found | None:
    root = node.outputs[0]
    if root.dtype != "f32":
        return None
    for rule in RULES_OF[node.op]:
        if all(near & needed for needed in rule.near):
            found = rule.recognise(root)
            if found is not None:
                return found
    return None


def raise_composites(graph: Graph) -> Graph:
    """`graph` with every composite that its operations spell; the same graph if they spell none.

    Values inside a spelling that something else reads stay as they are. Bodies of loops are raised too.
    """
    near: dict[int, int] = {}
    for node in graph.nodes:
        seen = 0
        for value in node.inputs:
            seen |= near[value.node.id]
        near[node.id] = seen << 1 & ~FIELD_STARTS | OWN_BIT.get(node.op, 0)
    needed = {value.node.id for value in graph.output_values}
    found: dict[int, Found] = {}
    bodies: dict[int, tuple[Graph, ...]] = {}
    for node in reversed(graph.nodes):
        if node.id not in needed:
            continue
        hit = _recognise(node, near[node.id]) if node.op in RULES_OF and near[node.id] else None
        if hit is not None:
            found[node.id] = hit
        elif node.bodies and node.op != "composite":
            raised = tuple(raise_composites(body) for body in node.bodies)
            if raised != node.bodies:
                bodies[node.id] = raised
        needed.update(value.node.id for value in (node.inputs if hit is None else hit.values))
    if not found and not bodies:
        return graph
    return _rebuilt(graph, needed, found, bodies)


def _rebuilt(
    graph: Graph, needed: set[int], found: dict[int, Found], bodies: dict[int, tuple[Graph, ...]]
) -> Graph:
    """The needed part of `graph` with what was found in place of its roots."""
    b = Builder()
    made = {value: b.input(str(value.node.attrs["name"]), value.type) for value in graph.inputs}
    for node in graph.nodes:
        if node.id not in needed or node.op == "input":
            continue
        with b.at(node.origin):
            hit = found.get(node.id)
            if hit is None:
                inputs = [made[v] for v in node.inputs]
                copy = b.node(node.op, inputs, node.attrs, bodies.get(node.id, node.bodies))
                made.update(zip(node.outputs, copy.outputs, strict=True))
            else:
                raised = hit.emit(b, [made[v] for v in hit.values])
                assert raised.type == node.types[0], (hit.name, node, raised.type)
                made[node.outputs[0]] = raised
    outputs = [(name, made[v]) for name, v in graph.outputs]
    return b.graph(graph.name, outputs, [made[v] for v in graph.inputs])


def describe(graph: Graph) -> list[tuple[str, Origin]]:
    """The composites of `graph` and where each comes from, in order."""
    return [(str(node.attrs["name"]), node.origin) for node in graph.walk() if node.op == "composite"]
