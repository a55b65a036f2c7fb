"""Names that a file binds and never reads: bindings of `let`, and parameters of its own functions.

A look at the forms alone. `load` turns what is found here into warnings; a name that is not needed is written `_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sexpgpu.syntax import Form, Keyword, List, Symbol, Vector

PARAMETER_LISTS = {"defn": 2, "defmodel": 2, "defmetric": 2}
"""Forms whose parameters should be read, and where their parameter list stands.

Rules, diagnostics, generators and `fn` have the parameters that their caller gives, needed or not.
"""


@dataclass(frozen=True, slots=True)
class Unread:
    """A name that nothing in its reach mentions. value: what a `let` binds it to; None for a parameter."""

    symbol: Symbol
    value: Form | None


def mentions(forms: Sequence[Form]) -> set[str]:
    """Every name that stands in `forms`."""
    found: set[str] = set()
    for form in forms:
        match form:
            case Symbol():
                found.add(form.name)
            case List() | Vector():
                found |= mentions(form.items)
    return found


def unread(form: Form) -> Iterator[Unread]:
    """Names bound within `form` that nothing in their reach mentions."""
    if not isinstance(form, List | Vector):
        return
    head = form.items[0] if form.items and isinstance(form, List) else None
    if isinstance(head, Symbol):
        if head.name == "let" and len(form.items) > 2 and isinstance(form.items[1], Vector):
            yield from _of_let(form.items[1].items, form.items[2:])
        at = PARAMETER_LISTS.get(head.name)
        parameters = form.items[at] if at is not None and len(form.items) > at + 1 else None
        if at is not None and isinstance(parameters, List):
            yield from _of_parameters(parameters, form.items[at + 1 :])
    for item in form.items:
        yield from unread(item)


def _of_let(bindings: Sequence[Form], body: Sequence[Form]) -> Iterator[Unread]:
    """A name reaches up to the value of its next binding, or to the end of the body.

    The parts of a pattern are left alone: they name what a vector holds, needed or not.
    """
    for index in range(0, len(bindings) - 1, 2):
        for symbol in _bound(bindings[index]) if isinstance(bindings[index], Symbol) else ():
            reach: list[Form] = []
            for later in range(index + 2, len(bindings) - 1, 2):
                reach.append(bindings[later + 1])
                if any(other.name == symbol.name for other in _bound(bindings[later])):
                    break
            else:
                reach += body
            if symbol.name not in mentions(reach):
                yield Unread(symbol, bindings[index + 1])


def _of_parameters(parameters: List, body: Sequence[Form]) -> Iterator[Unread]:
    """Plain parameters and keywords; a default, or a declared type, may read a parameter as well."""
    keyed = False
    for index, item in enumerate(parameters.items):
        if keyed:
            keyed = False
            continue
        keyed = isinstance(item, Keyword)
        named = Symbol(item.name, item.span) if isinstance(item, Keyword) else item
        reach = [*parameters.items[index + 1 :], *body]
        for symbol in _bound(named.items[0] if isinstance(named, List) and named.items else named):
            if symbol.name not in mentions(reach):
                yield Unread(symbol, None)


def _bound(pattern: Form) -> Iterator[Symbol]:
    match pattern:
        case Symbol() if pattern.name != "_":
            yield pattern
        case Vector():
            for item in pattern.items:
                yield from _bound(item)
