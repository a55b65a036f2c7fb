"""A small language of patterns over values, matched from the root downwards.

Flow: `transform.raising` writes its spellings in it.

`match` yields every way in which a value fits a pattern, as bindings of names to values and numbers; a name
that occurs twice must bind the same value. Products and sums match in any order and grouping, with constants
collected from wherever they stand; a reduction binds `axis`, and a broadcast of its result must undo just
that axis; reshapes that only add or drop axes of size 1 are looked through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import Node, Value

RELATIVE_ERROR = 1e-6
"""How far a constant in the user's spelling may be off: a rounding to f32."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value, bound to `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class As:
    """What `inner` matches, bound to `name` too."""

    name: str
    inner: Pattern


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of operands in this order."""

    op: str
    operands: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """A product of these factors and a constant, in any order and grouping.

    `constant`: its value, or the name that it is bound to.
    """

    factors: tuple[Pattern, ...]
    constant: str | float = 1.0


@dataclass(frozen=True, slots=True)
class Plus:
    """A sum of these terms and a constant, in any order and grouping.

    `constant`: its value, or the name that it is bound to.
    """

    terms: tuple[Pattern, ...]
    constant: str | float = 0.0


@dataclass(frozen=True, slots=True)
class Either:
    """The first option that fits; later ones are tried if the rest of the pattern then does not."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction over one axis, bound to `axis`."""

    op: str
    inner: Pattern


@dataclass(frozen=True, slots=True)
class Row:
    """One number a row: `inner` repeated along `axis`, and along no other."""

    inner: Pattern


@dataclass(frozen=True, slots=True)
class Vector:
    """One number a column: `inner`, of the size of `axis`, repeated along all the others."""

    inner: Pattern


@dataclass(frozen=True, slots=True)
class Along:
    """An operation along one axis, bound to `axis`."""

    op: str
    operands: tuple[Pattern, ...]


Pattern = Anything | As | Op | Along | Times | Plus | Either | Reduce | Row | Vector
Bindings = dict[str, Value | float]


def match(pattern: Pattern, value: Value, found: Bindings) -> Iterator[Bindings]:
    """Every way in which `value` fits `pattern`, as extensions of `found`."""
    match pattern:
        case Anything(name):
            yield from _bind(name, value, found)
        case As(name, inner):
            for more in _bind(name, value, found):
                yield from match(inner, value, more)
        case Op(op, operands):
            node = _peel(value).node
            if node.op == op:
                yield from _match_all(operands, node.inputs, found)
        case Along(op, operands):
            node = _peel(value).node
            if node.op == op:
                for more in _bind_axis(ints(node, "axis")[0], found):
                    yield from _match_all(operands, node.inputs, more)
        case Times(factors, constant):
            for more, number in _factors(factors, value, found):
                yield from _bind_number(constant, number, more)
        case Plus(terms, constant):
            for more, number in _terms(terms, value, found):
                yield from _bind_number(constant, number, more)
        case Either(options):
            for option in options:
                yield from match(option, value, found)
        case Reduce(op, inner):
            node = _peel(value).node
            if node.op == op and len(axes := ints(node, "axes")) == 1:
                for more in _bind_axis(axes[0], found):
                    yield from match(inner, node.inputs[0], more)
        case Row(inner):
            core, missing = _spread(value)
            if len(missing) == 1:
                for more in _bind_axis(missing[0], found):
                    yield from match(inner, core, more)
        case Vector(inner):
            core, missing = _spread(value)
            covered = [axis for axis, n in enumerate(value.shape) if n != 1 and axis not in missing]
            if len(covered) == 1:
                for more in _bind_axis(covered[0], found):
                    yield from match(inner, core, more)


def _match_all(patterns: Sequence[Pattern], values: Sequence[Value], found: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield found
        return
    for more in match(patterns[0], values[0], found):
        yield from _match_all(patterns[1:], values[1:], more)


def _bind(name: str, value: Value, found: Bindings) -> Iterator[Bindings]:
    before = found.get(name)
    if before is None:
        yield {**found, name: value}
    elif before is value:
        yield found


def _bind_axis(axis: int, found: Bindings) -> Iterator[Bindings]:
    before = found.get("axis")
    if before is None:
        yield {**found, "axis": axis}
    elif before == axis:
        yield found


def _bind_number(constant: str | float, number: float, found: Bindings) -> Iterator[Bindings]:
    wanted = found.get(constant) if isinstance(constant, str) else constant
    if wanted is None:
        yield {**found, str(constant): number}
    elif isinstance(wanted, (int, float)) and math.isclose(wanted, number, rel_tol=RELATIVE_ERROR):
        yield found


def number_of(value: Value) -> float | None:
    """The number that fills `value`, None if it is not one constant."""
    while value.node.op in ("broadcast", "reshape", "cast"):
        if value.node.op == "cast" and not (value.type.is_float and value.node.inputs[0].type.is_float):
            return None
        value = value.node.inputs[0]
    number = value.node.attrs.get("value") if value.node.op == "constant" else None
    return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def _splits(count: int) -> Iterator[tuple[list[int], list[int]]]:
    for bits in range(1 << count):
        yield [i for i in range(count) if bits >> i & 1], [i for i in range(count) if not bits >> i & 1]


Numbered = Iterator[tuple[Bindings, float]]


def _factors(patterns: Sequence[Pattern], value: Value, found: Bindings) -> Numbered:
    """Ways to read `value` as a product of `patterns` and a number."""
    value = _peel(value)
    number = number_of(value)
    if number is not None:
        if not patterns:
            yield found, number
        return
    if not patterns:
        return
    if len(patterns) == 1:
        for more in match(patterns[0], value, found):
            yield more, 1.0
    node = value.node
    if node.op == "mul":
        x, y = node.inputs
        for left, right in _splits(len(patterns)):
            if (not left and number_of(x) is None) or (not right and number_of(y) is None):
                continue
            for more, a in _factors([patterns[i] for i in left], x, found):
                for most, c in _factors([patterns[i] for i in right], y, more):
                    yield most, a * c
    elif node.op == "neg":
        for more, a in _factors(patterns, node.inputs[0], found):
            yield more, -a
    elif node.op == "div":
        divisor = number_of(node.inputs[1])
        if divisor:
            for more, a in _factors(patterns, node.inputs[0], found):
                yield more, a / divisor
    elif node.op == "pow" and number_of(node.inputs[1]) == len(patterns):
        for more in _match_all(patterns, [node.inputs[0]] * len(patterns), found):
            yield more, 1.0


def _terms(patterns: Sequence[Pattern], value: Value, found: Bindings) -> Numbered:
    """Ways to read `value` as a sum of `patterns` and a number."""
    value = _peel(value)
    number = number_of(value)
    if number is not None:
        if not patterns:
            yield found, number
        return
    if not patterns:
        return
    if len(patterns) == 1:
        for more in match(patterns[0], value, found):
            yield more, 0.0
    node = value.node
    if node.op == "add":
        x, y = node.inputs
        for left, right in _splits(len(patterns)):
            if (not left and number_of(x) is None) or (not right and number_of(y) is None):
                continue
            for more, a in _terms([patterns[i] for i in left], x, found):
                for most, c in _terms([patterns[i] for i in right], y, more):
                    yield most, a + c
    elif node.op == "sub":
        less = number_of(node.inputs[1])
        if less is not None:
            for more, a in _terms(patterns, node.inputs[0], found):
                yield more, a - less


def ints(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is an integer or several."""
    value = node.attrs[name]
    return tuple(int(i) for i in value) if isinstance(value, tuple) else (int(value),)  # type: ignore[arg-type]


def sizes_of(shape: Sequence[int]) -> list[int]:
    """The sizes of the axes that are not of size 1."""
    return [n for n in shape if n != 1]


def only_unit_axes(node: Node) -> bool:
    """Whether a node only adds or drops axes of size 1."""
    return node.op == "reshape" and sizes_of(node.inputs[0].shape) == sizes_of(node.types[0].shape)


def _peel(value: Value) -> Value:
    """Look through reshapes that only add or drop axes of size 1."""
    while only_unit_axes(value.node):
        value = value.node.inputs[0]
    return value


def _spread(value: Value) -> tuple[Value, list[int]]:
    """What `value` repeats, and the axes of `value` along which; no axis if the others are not in order."""
    core = value
    source: list[int | None] = list(range(value.rank))
    while True:
        node = core.node
        if node.op == "broadcast":
            inner = node.inputs[0]
            places = zip(ints(node, "axes"), inner.shape, strict=True)
            source = [source[axis] if n != 1 else None for axis, n in places]
        elif only_unit_axes(node):
            inner = node.inputs[0]
            sized = iter([axis for axis, n in zip(source, core.shape, strict=True) if n != 1])
            source = [next(sized) if n != 1 else None for n in inner.shape]
        else:
            break
        core = inner
    covered = [axis for axis in source if axis is not None]
    if covered != sorted(covered):
        return value, []
    return core, [axis for axis, n in enumerate(value.shape) if n != 1 and axis not in covered]
