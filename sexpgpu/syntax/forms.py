"""Forms: what the reader makes of the text, and what the elaborator walks.

A closed union of eight kinds of datum, each with the span it was read from. Spans do not take part in
equality, so two forms are equal when they say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sexpgpu.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name, such as `width`, `?t`, `->` or `m.tokens`."""

    name: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Keyword:
    """The name of an option, kept without its colon: `:rate` is `Keyword("rate")`."""

    name: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number, such as `-3` or `1_000`."""

    value: int
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Float:
    """A finite number with a point or an exponent, such as `.5` or `6e-4`."""

    value: float
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Boolean:
    """`true` or `false`."""

    value: bool
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class String:
    """A string; `value` is its text with the escapes resolved."""

    value: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class List:
    """What stands in round brackets: a form with a head, or an empty pair."""

    items: tuple[Form, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Vector:
    """What stands in square brackets: a binding list, a pattern, or a vector of values."""

    items: tuple[Form, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Form = Symbol | Keyword | Integer | Float | Boolean | String | List | Vector
"""Any datum."""
