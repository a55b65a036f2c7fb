"""Simplification: the same results from fewer nodes. Every rule stands in `RULES`.

Flow: after differentiation, before planning; it drops `stop-gradient`, so nothing may differentiate it
again.

One forward sweep rebuilds the graph. Its builder interns, which removes common subexpressions; the graph
that it freezes holds what the outputs need, which removes dead code; and every node, as it is made, is
offered to the rules of its operation until none applies. Inputs of a node are simple before it is made, so
one sweep is enough.

Numbers: results keep their bits, except for the sign of a zero (x + 0 → x keeps −0, which the sum makes +0)
and the sign and payload of a NaN. Float rules therefore never reorder or merge roundings ((a·c)·d, Σ of
sums), and x·0 → 0 is for integers only: it would hide a NaN or an infinity. Constants are folded through
operations that IEEE rounds correctly, never through `exp` and its kind, whose last bit is the device's own.
In the interpreter's f64 mode a folded f32 constant stays rounded to f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attr, Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Context
from sexpgpu.ir.ops.rules import attr_int, attr_ints
from sexpgpu.ir.text import graph_text
from sexpgpu.ir.types import TensorType

Scalar = int | float | bool
Rule = Callable[[Builder, Node], Value | None]
"""A value equal to the node's one output and simpler, or None where the rule does not apply."""


def simplify(graph: Graph) -> Graph:
    """`graph` with the same inputs and outputs and less to do; bodies are simplified too."""
    return _simplify(graph, _Bodies())


class _Bodies:
    """Body graphs simplified once each, equal ones made one, so that the nodes that hold them are equal."""

    def __init__(self) -> None:
        self.done: dict[int, tuple[Graph, Graph]] = {}
        self.by_text: dict[str, Graph] = {}

    def simplified(self, body: Graph) -> Graph:
        found = self.done.get(id(body))
        if found is None:
            made = _simplify(body, self)
            made = self.by_text.setdefault(graph_text(made), made)
            # The body is kept beside its result: its identity must not pass to another graph.
            found = self.done[id(body)] = (body, made)
        return found[1]


def _simplify(graph: Graph, bodies: _Bodies) -> Graph:
    b = SimplifyingBuilder()
    made: dict[Value, Value] = {}
    for value in graph.inputs:
        b.origin = value.node.origin
        made[value] = b.input(str(value.node.attrs["name"]), value.type)
    for node in graph.nodes:
        if node.op == "input":
            continue
        b.origin = node.origin
        copy = b.node(
            node.op,
            [made[v] for v in node.inputs],
            node.attrs,
            [bodies.simplified(body) for body in node.bodies] if node.bodies else (),
        )
        if len(copy.outputs) == 1:
            made[node.outputs[0]] = b.simplest(copy)
        else:
            made.update(zip(node.outputs, copy.outputs, strict=True))
    outputs = [(name, made[value]) for name, value in graph.outputs]
    return b.graph(graph.name, outputs, [made[value] for value in graph.inputs])


class SimplifyingBuilder(Builder):
    """A builder whose single-output operations, and so its shorthands, come back as simple as rules know."""

    def __init__(self) -> None:
        super().__init__()
        self._simplest: dict[int, Value] = {}

    def op(self, op: str, *inputs: Value, **attrs: Attr) -> Value:
        """The single output of an operation, or a simpler value equal to it."""
        return self.simplest(self.node(op, inputs, attrs))

    def simplest(self, node: Node) -> Value:
        """The node's output, or the value that rules make of it."""
        value = self._simplest.get(node.id)
        if value is None:
            value = self._rewritten(node)
            self._simplest[node.id] = value
        return value

    def _rewritten(self, node: Node) -> Value:
        for rule in RULES.get(node.op, ()):
            found = rule(self, node)
            if found is not None:
                assert found.type == node.types[0], (rule, node, found.type)
                return found if found.node is node else self.simplest(found.node) if _single(found) else found
        return node.outputs[0]


def _single(value: Value) -> bool:
    return len(value.node.outputs) == 1


# --- constants ----------------------------------------------------------------------------------------------


def uniform(value: Value) -> Scalar | None:
    """The number that every element of a constant or of a broadcast scalar constant is."""
    node = value.node
    if node.op == "broadcast":
        node = node.inputs[0].node
    if node.op != "constant":
        return None
    number = node.attrs["value"]
    return number if isinstance(number, bool | int | float) else None


def _is(value: Value, number: Scalar) -> bool:
    """Whether every element is `number`; either zero is 0."""
    found = uniform(value)
    return found is not None and found == number


def constant_scalar_is_broadcast(b: Builder, node: Node) -> Value | None:
    """A constant filled with one number → the scalar, broadcast: the builder's own way to write it."""
    value = node.attrs["value"]
    if node.types[0].shape == () or isinstance(value, tuple):
        return None
    assert isinstance(value, int | float | bool)
    return b.constant(value, node.types[0])


def fold_elementwise(b: Builder, node: Node) -> Value | None:
    """f(constants) → a constant, unless the operation would report a fault."""
    numbers: list[Scalar] = []
    for value in node.inputs:
        number = uniform(value)
        if number is None:
            return None
        numbers.append(number)
    (out,) = node.types
    flags: list[str] = []
    context = Context(flag=lambda _node, what: flags.append(what))
    with np.errstate(all="ignore"):
        arrays = [np.full(1, n, context.dtype(v.type)) for n, v in zip(numbers, node.inputs, strict=True)]
        result: Any = OPS[node.op].meaning(context, node, arrays)
    if flags:
        return None
    return b.constant(_number(result[0], out), out)


def fold_cast(b: Builder, node: Node) -> Value | None:
    """A cast of a constant → a constant, where the number has one meaning in the new dtype."""
    number = uniform(node.inputs[0])
    if number is None:
        return None
    (out,) = node.types
    if out.is_integer and isinstance(number, float):
        if not math.isfinite(number) or abs(number) >= 2.0 ** (31 if out.dtype == "i32" else 63):
            return None
    return fold_elementwise(b, node)


def move_constant(b: Builder, node: Node) -> Value | None:
    """A constant moved about (reshape, transpose, slice, reverse, broadcast) → the constant of that shape."""
    source = node.inputs[0]
    if uniform(source) is None or (
        node.op == "broadcast" and source.node.op == "constant" and source.rank == 0
    ):
        return None
    scalar = source.node.inputs[0] if source.node.op == "broadcast" else source
    return b.broadcast(scalar, node.types[0].shape, ())


def sum_of_zeros(b: Builder, node: Node) -> Value | None:
    """Σ 0 → 0."""
    return b.constant(_number(0, node.types[0]), node.types[0]) if _is(node.inputs[0], 0) else None


def _number(element: Any, type: TensorType) -> Scalar:
    """An element as the attribute of a constant."""
    return float(element) if type.is_float else int(element) if type.is_integer else bool(element)


# --- arithmetic ---------------------------------------------------------------------------------------------


def add_zero(b: Builder, node: Node) -> Value | None:
    """x + 0 → x; only the sign of a zero can change."""
    x, y = node.inputs
    return x if _is(y, 0) else y if _is(x, 0) else None


def add_negated(b: Builder, node: Node) -> Value | None:
    """x + (−y) → x − y and (−x) + y → y − x."""
    x, y = node.inputs
    if y.node.op == "neg":
        return b.sub(x, y.node.inputs[0])
    return b.sub(y, x.node.inputs[0]) if x.node.op == "neg" else None


def sub_zero(b: Builder, node: Node) -> Value | None:
    """x − 0 → x and 0 − x → −x; only the sign of a zero can change."""
    x, y = node.inputs
    return x if _is(y, 0) else b.neg(y) if _is(x, 0) else None


def sub_negated(b: Builder, node: Node) -> Value | None:
    """x − (−y) → x + y."""
    x, y = node.inputs
    return b.add(x, y.node.inputs[0]) if y.node.op == "neg" else None


def sub_itself(b: Builder, node: Node) -> Value | None:
    """x − x → 0, of integers."""
    x, y = node.inputs
    return b.like(0, x) if x is y and x.type.is_integer else None


def mul_one(b: Builder, node: Node) -> Value | None:
    """x · 1 → x."""
    x, y = node.inputs
    return x if _is(y, 1) else y if _is(x, 1) else None


def mul_minus_one(b: Builder, node: Node) -> Value | None:
    """x · −1 → −x."""
    x, y = node.inputs
    return b.neg(x) if _is(y, -1) else b.neg(y) if _is(x, -1) else None


def mul_zero(b: Builder, node: Node) -> Value | None:
    """x · 0 → 0, of integers."""
    x, y = node.inputs
    if not x.type.is_integer:
        return None
    return x if _is(x, 0) else y if _is(y, 0) else None


def mul_two_negated(b: Builder, node: Node) -> Value | None:
    """(−x) · (−y) → x · y, also of `mul-or-zero`."""
    x, y = node.inputs
    if x.node.op != "neg" or y.node.op != "neg":
        return None
    return b.op(node.op, x.node.inputs[0], y.node.inputs[0])


def guarded_zero(b: Builder, node: Node) -> Value | None:
    """`mul-or-zero` of 0 and y → 0."""
    return node.inputs[0] if _is(node.inputs[0], 0) else None


def guarded_finite(b: Builder, node: Node) -> Value | None:
    """`mul-or-zero` of x and a finite constant → x · constant, which no zero turns into NaN."""
    number = uniform(node.inputs[1])
    return b.mul(*node.inputs) if number is not None and math.isfinite(number) else None


def div_one(b: Builder, node: Node) -> Value | None:
    """x / 1 → x."""
    x, y = node.inputs
    return x if _is(y, 1) else None


def quotient_one(b: Builder, node: Node) -> Value | None:
    """⌊x / 1⌋ → x, of integers."""
    return div_one(b, node)


def pow_zero_or_one(b: Builder, node: Node) -> Value | None:
    """x¹ → x and x⁰ → 1, exact for every x, NaN included."""
    x, y = node.inputs
    return x if _is(y, 1) else b.like(1.0, x) if _is(y, 0) else None


def neg_neg(b: Builder, node: Node) -> Value | None:
    """−(−x) → x."""
    x = node.inputs[0]
    return x.node.inputs[0] if x.node.op == "neg" else None


def neg_sub(b: Builder, node: Node) -> Value | None:
    """−(x − y) → y − x; only the sign of a zero can change."""
    x = node.inputs[0]
    return b.sub(x.node.inputs[1], x.node.inputs[0]) if x.node.op == "sub" else None


def even_of_negated(b: Builder, node: Node) -> Value | None:
    """|−x| → |x| and cos(−x) → cos(x)."""
    x = node.inputs[0]
    return b.op(node.op, x.node.inputs[0]) if x.node.op == "neg" else None


def idempotent(b: Builder, node: Node) -> Value | None:
    """f(f(x)) → f(x), for |x|, sign, floor, ceil and round."""
    x = node.inputs[0]
    return x if x.node.op == node.op else None


def both_sides_equal(b: Builder, node: Node) -> Value | None:
    """minimum, maximum, and, or of x and x → x."""
    x, y = node.inputs
    return x if x is y else None


def stop_gradient(b: Builder, node: Node) -> Value | None:
    """The value of `stop-gradient` is its operand; its gradient has been taken by now."""
    return node.inputs[0]


# --- logic and choice ---------------------------------------------------------------------------------------


def and_constant(b: Builder, node: Node) -> Value | None:
    """x and true → x; x and false → false."""
    x, y = node.inputs
    if _is(x, True) or _is(y, False):
        return y
    return x if _is(y, True) or _is(x, False) else None


def or_constant(b: Builder, node: Node) -> Value | None:
    """x or false → x; x or true → true."""
    x, y = node.inputs
    if _is(x, False) or _is(y, True):
        return y
    return x if _is(y, False) or _is(x, True) else None


def not_not(b: Builder, node: Node) -> Value | None:
    """not not x → x."""
    x = node.inputs[0]
    return x.node.inputs[0] if x.node.op == "not" else None


def where_constant_test(b: Builder, node: Node) -> Value | None:
    """`where` of true, x, y → x; of false → y."""
    test = uniform(node.inputs[0])
    return None if test is None else node.inputs[1] if test else node.inputs[2]


def where_equal_branches(b: Builder, node: Node) -> Value | None:
    """`where` of a test, x and x → x."""
    _, x, y = node.inputs
    return x if x is y else None


def where_negated_test(b: Builder, node: Node) -> Value | None:
    """`where` of not t, x, y → `where` of t, y, x."""
    test, x, y = node.inputs
    return b.where(test.node.inputs[0], y, x) if test.node.op == "not" else None


# --- casts --------------------------------------------------------------------------------------------------

LOSSLESS = {
    ("bool", "i32"), ("bool", "i64"), ("bool", "bf16"), ("bool", "f32"), ("bool", "f64"),
    ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64"),
    ("i32", "i64"), ("i32", "f64"),
}  # fmt: skip
"""Casts after which every element is the same number as before."""


def cast_to_same(b: Builder, node: Node) -> Value | None:
    """A cast to the dtype that x has → x."""
    x = node.inputs[0]
    return x if x.dtype == node.types[0].dtype else None


def cast_of_widened(b: Builder, node: Node) -> Value | None:
    """A cast of a lossless cast of x → the cast of x, none at all where the dtype is x's own.

    f32 → bf16 → f32 rounds, and stays. A float on its way to an integer stays too: what is out of range there
    may depend on the float's width.
    """
    inner, dtype = node.inputs[0], node.types[0].dtype
    if inner.node.op != "cast":
        return None
    x = inner.node.inputs[0]
    if (x.dtype, inner.dtype) not in LOSSLESS or (x.type.is_float and node.types[0].is_integer):
        return None
    return b.cast(x, dtype)


def cast_of_pad(b: Builder, node: Node) -> Value | None:
    """A cast of a padded value → the cast value, padded: zeros are zeros in every dtype, and less is cast."""
    pad = node.inputs[0].node
    return b.op("pad", b.cast(pad.inputs[0], node.types[0].dtype), **pad.attrs) if pad.op == "pad" else None


def cast_of_widened_parts(b: Builder, node: Node) -> Value | None:
    """A cast of a concat whose parts are lossless casts from that dtype → the concat of the parts."""
    concat, dtype = node.inputs[0].node, node.types[0].dtype
    if concat.op != "concat" or (dtype, concat.types[0].dtype) not in LOSSLESS:
        return None
    parts = [part.node for part in concat.inputs]
    if any(part.op != "cast" or part.inputs[0].dtype != dtype for part in parts):
        return None
    return b.op("concat", *[part.inputs[0] for part in parts], **concat.attrs)


# --- movement -----------------------------------------------------------------------------------------------


def same_type(b: Builder, node: Node) -> Value | None:
    """A reshape, slice or pad that gives the type of x can only give x."""
    x = node.inputs[0]
    return x if x.type == node.types[0] else None


def reshape_of_reshape(b: Builder, node: Node) -> Value | None:
    """A reshape of a reshape → one reshape."""
    x = node.inputs[0]
    return b.reshape(x.node.inputs[0], node.types[0].shape) if x.node.op == "reshape" else None


def transpose_identity(b: Builder, node: Node) -> Value | None:
    """A transpose that keeps the order of axes → x."""
    return node.inputs[0] if attr_ints(node.attrs, "perm") == tuple(range(node.inputs[0].rank)) else None


def transpose_of_transpose(b: Builder, node: Node) -> Value | None:
    """A transpose of a transpose → one transpose."""
    x = node.inputs[0]
    if x.node.op != "transpose":
        return None
    inner = attr_ints(x.node.attrs, "perm")
    return b.transpose(x.node.inputs[0], [inner[axis] for axis in attr_ints(node.attrs, "perm")])


def transpose_of_ones(b: Builder, node: Node) -> Value | None:
    """A transpose that moves only axes of size 1 → a reshape."""
    shape = node.inputs[0].shape
    kept = [axis for axis in attr_ints(node.attrs, "perm") if shape[axis] != 1]
    return b.reshape(node.inputs[0], node.types[0].shape) if kept == sorted(kept) else None


def broadcast_that_repeats_nothing(b: Builder, node: Node) -> Value | None:
    """A broadcast that only adds axes of size 1 → a reshape, or x itself."""
    x = node.inputs[0]
    axes = attr_ints(node.attrs, "axes")
    if x.type.size != node.types[0].size or list(axes) != sorted(axes) or uniform(x) is not None:
        return None
    return b.reshape(x, node.types[0].shape)


def broadcast_of_broadcast(b: Builder, node: Node) -> Value | None:
    """A broadcast of a broadcast → one broadcast."""
    x = node.inputs[0]
    if x.node.op != "broadcast":
        return None
    outer = attr_ints(node.attrs, "axes")
    axes = [outer[axis] for axis in attr_ints(x.node.attrs, "axes")]
    return b.broadcast(x.node.inputs[0], node.types[0].shape, axes)


def slice_of_slice(b: Builder, node: Node) -> Value | None:
    """A slice of a slice → one slice."""
    x = node.inputs[0]
    if x.node.op != "slice":
        return None
    starts, steps, stops = [], [], []
    for outer_start, outer_step, start, step, size in zip(
        attr_ints(node.attrs, "starts"),
        attr_ints(node.attrs, "steps"),
        attr_ints(x.node.attrs, "starts"),
        attr_ints(x.node.attrs, "steps"),
        node.types[0].shape,
        strict=True,
    ):
        if step < 1 or outer_step < 1 or size < 1:
            return None
        starts.append(start + outer_start * step)
        steps.append(step * outer_step)
        stops.append(starts[-1] + (size - 1) * steps[-1] + 1)
    return b.op("slice", x.node.inputs[0], starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def slice_of_concat(b: Builder, node: Node) -> Value | None:
    """A slice that lies within one part of a concat → a slice of the part."""
    x = node.inputs[0]
    if x.node.op != "concat":
        return None
    axis = attr_int(x.node.attrs, "axis")
    starts, stops = attr_ints(node.attrs, "starts"), attr_ints(node.attrs, "stops")
    begin = 0
    for part in x.node.inputs:
        end = begin + part.shape[axis]
        if begin <= starts[axis] < stops[axis] <= end:
            here = tuple(n - begin * (i == axis) for i, n in enumerate(starts))
            there = tuple(n - begin * (i == axis) for i, n in enumerate(stops))
            return b.op("slice", part, starts=here, stops=there, steps=node.attrs["steps"])
        begin = end
    return None


def reverse_of_reverse(b: Builder, node: Node) -> Value | None:
    """Reversed twice along the same axes → x."""
    x = node.inputs[0]
    return x.node.inputs[0] if x.node.op == "reverse" and x.node.attrs == node.attrs else None


def concat_of_one(b: Builder, node: Node) -> Value | None:
    """A concat of one part → the part."""
    return node.inputs[0] if len(node.inputs) == 1 else None


def concat_of_concats(b: Builder, node: Node) -> Value | None:
    """A concat whose parts are concats along the same axis → one concat."""
    axis = node.attrs["axis"]
    parts: list[Value] = []
    for value in node.inputs:
        inner = value.node
        parts.extend(inner.inputs if inner.op == "concat" and inner.attrs["axis"] == axis else (value,))
    return b.op("concat", *parts, axis=axis) if len(parts) > len(node.inputs) else None


def concat_of_slices(b: Builder, node: Node) -> Value | None:
    """A concat of slices that follow one another along its axis and together are x → x."""
    axis = attr_int(node.attrs, "axis")
    first = node.inputs[0].node
    if first.op != "slice" or first.inputs[0].type != node.types[0]:
        return None
    x, end = first.inputs[0], 0
    for value in node.inputs:
        part = value.node
        if part.op != "slice" or part.inputs[0] is not x or set(attr_ints(part.attrs, "steps")) != {1}:
            return None
        starts, stops = attr_ints(part.attrs, "starts"), attr_ints(part.attrs, "stops")
        # The other axes are whole, as the concat has the shape of x.
        if starts[axis] != end:
            return None
        end = stops[axis]
    return x


def concat_constants(b: Builder, node: Node) -> Value | None:
    """A concat of constants that hold the same number → the constant."""
    first = uniform(node.inputs[0])
    if first is None or any(repr(uniform(value)) != repr(first) for value in node.inputs):
        return None
    return b.constant(first, node.types[0])


def along_ones(b: Builder, node: Node) -> Value | None:
    """A reverse or a running reduction along axes of size 1 at most → x."""
    axis = node.attrs.get("axis")
    axes = (axis,) if isinstance(axis, int) else attr_ints(node.attrs, "axes")
    x = node.inputs[0]
    return x if all(x.shape[a] <= 1 for a in axes) else None


def pad_of_zeros(b: Builder, node: Node) -> Value | None:
    """Zeros around zeros → zeros."""
    x = node.inputs[0]
    return b.constant(_number(0, x.type), node.types[0]) if _is(x, 0) else None


def add_neighbouring_pads(b: Builder, node: Node) -> Value | None:
    """The sum of x and y, padded with zeros to lie side by side → their concat, padded by what remains.

    The gradients of the slices of a packed value meet in this way. Only the sign of a zero can change.
    """
    first, second = (value.node for value in node.inputs)
    if first.op != "pad" or second.op != "pad":
        return None
    if any(attr_ints(first.attrs, "interior")) or any(attr_ints(second.attrs, "interior")):
        return None
    x, y = first.inputs[0], second.inputs[0]
    low, other = attr_ints(first.attrs, "low"), attr_ints(second.attrs, "low")
    differ = [axis for axis in range(x.rank) if (low[axis], x.shape[axis]) != (other[axis], y.shape[axis])]
    if len(differ) != 1:
        return None
    (axis,) = differ
    if low[axis] > other[axis]:
        x, y, low, other = y, x, other, low
    if low[axis] + x.shape[axis] != other[axis]:
        return None
    joined = b.op("concat", x, y, axis=axis)
    sizes = zip(node.types[0].shape, low, joined.shape, strict=True)
    high = tuple(whole - start - size for whole, start, size in sizes)
    return b.op("pad", joined, low=low, high=high, interior=(0,) * x.rank)


def reduce_ones(b: Builder, node: Node) -> Value | None:
    """A fold over axes of size 1 → a reshape; only the sign of a zero can change."""
    x, (out,) = node.inputs[0], node.types
    return b.reshape(x, out.shape) if x.dtype == out.dtype and x.type.size == out.size else None


# --- the table ----------------------------------------------------------------------------------------------

FOLDED = (
    "add", "sub", "mul", "neg", "mul-or-zero", "div", "quotient", "rem", "minimum", "maximum", "abs", "sign",
    "sqrt", "floor", "ceil", "round", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "is-finite",
    "where",
)  # fmt: skip
"""Elementwise operations that give the same bits on every device, so that constants may pass through them."""

_RULES: Mapping[str, Sequence[Rule]] = {
    "constant": (constant_scalar_is_broadcast,),
    "add": (add_zero, add_negated, add_neighbouring_pads),
    "sub": (sub_zero, sub_negated, sub_itself),
    "mul": (mul_one, mul_minus_one, mul_zero, mul_two_negated),
    "mul-or-zero": (mul_one, mul_minus_one, guarded_zero, guarded_finite, mul_two_negated),
    "div": (div_one,),
    "quotient": (quotient_one,),
    "pow": (pow_zero_or_one,),
    "neg": (neg_neg, neg_sub),
    "abs": (even_of_negated, idempotent),
    "cos": (even_of_negated,),
    "sign": (idempotent,),
    "floor": (idempotent,),
    "ceil": (idempotent,),
    "round": (idempotent,),
    "minimum": (both_sides_equal,),
    "maximum": (both_sides_equal,),
    "stop-gradient": (stop_gradient,),
    "and": (and_constant, both_sides_equal),
    "or": (or_constant, both_sides_equal),
    "not": (not_not,),
    "where": (where_constant_test, where_equal_branches, where_negated_test),
    "cast": (cast_to_same, cast_of_widened, fold_cast, cast_of_pad, cast_of_widened_parts),
    "reshape": (same_type, move_constant, reshape_of_reshape),
    "transpose": (transpose_identity, move_constant, transpose_of_transpose, transpose_of_ones),
    "broadcast": (move_constant, broadcast_of_broadcast, broadcast_that_repeats_nothing),
    "slice": (same_type, move_constant, slice_of_slice, slice_of_concat),
    "reverse": (move_constant, along_ones, reverse_of_reverse),
    "pad": (same_type, pad_of_zeros),
    "concat": (concat_of_one, concat_of_concats, concat_of_slices, concat_constants),
    "sum": (sum_of_zeros, reduce_ones),
    "max": (reduce_ones,),
    "min": (reduce_ones,),
    "prod": (reduce_ones,),
    "any": (reduce_ones,),
    "all": (reduce_ones,),
    "cumsum": (along_ones,),
    "cumprod": (along_ones,),
    "cummax": (along_ones,),
}

RULES: Mapping[str, Sequence[Rule]] = {
    op: ((fold_elementwise,) if op in FOLDED else ()) + tuple(_RULES.get(op, ())) for op in (*_RULES, *FOLDED)
}
"""Operation → its rules in the order in which they are tried; the first that applies wins."""
