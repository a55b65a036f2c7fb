"""Reading the parts of a form: pairs, options, names, how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from sexpgpu.diagnostics import Label, nearest
from sexpgpu.ir.graph import Value
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.values import HostScalar, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form, Keyword, List, Symbol, Vector

MAX_BINDINGS = 1000
"""Names of one binding list; each is looked up through those after it."""
SHORT = 40
"""Characters of a form that a message repeats."""

def pairs(el: Elaborator, form: Form, what: str) -> list[tuple[Form, Form]]:
    """The pairs of a binding list `[pattern V …]`."""
    if not isinstance(form, Vector):
        el.fail("E-FORM-001", f"{what} stands in square brackets: [name V …]", form.span)
    if len(form.items) % 2:
        _odd(el, form, what)
    if len(form.items) > 2 * MAX_BINDINGS:
        el.fail("E-FORM-001", f"{what} binds {len(form.items) // 2:,} names; at most {MAX_BINDINGS:,} are", form.span)
    return [(form.items[i], form.items[i + 1]) for i in range(0, len(form.items), 2)]


def _odd(el: Elaborator, form: Vector, what: str) -> NoReturn:
    """Report a binding list of an odd number of parts, at the part that first falls out of step."""
    items = form.items
    for index, item in enumerate(items):
        is_pattern = isinstance(item, Symbol | Vector)
        begins_line = index > 0 and item.span.line > items[index - 1].span.line
        if index % 2 == 0 and not is_pattern:
            el.fail("E-FORM-001", f"{what} has a value without a name: `{_short(item)}`", item.span,
                    help="it is [name V name V …]")  # fmt: skip
        if index % 2 and is_pattern and begins_line:
            name = items[index - 1]
            el.fail("E-FORM-001", f"{what} needs a value for every name; `{_short(name)}` has none", name.span)
    el.fail("E-FORM-001", f"{what} needs a value for every name; `{_short(items[-1])}` has none", items[-1].span)


def _short(form: Form) -> str:
    """The text of a form, cut where it is long."""
    text = " ".join(form.span.text.split())
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def options(
    el: Elaborator, items: Sequence[Form], allowed: Sequence[str], what: str
) -> tuple[list[Form], dict[str, Form]]:
    """Plain parts and keyword parts of a form's items."""
    plain: list[Form] = []
    keyed: dict[str, Form] = {}
    index = 0
    while index < len(items):
        item = items[index]
        if not isinstance(item, Keyword):
            plain.append(item)
            index += 1
            continue
        if item.name not in allowed:
            near = nearest(item.name, allowed)
            listed = ", ".join(f":{k}" for k in allowed) or "none"
            el.fail("E-FORM-003", f"`{what}` has no keyword `:{item.name}`", item.span,
                    help=f"`:{near}` is a near name" if near else f"its keywords: {listed}")  # fmt: skip
        if item.name in keyed:
            el.fail("E-FORM-003", f"`:{item.name}` is given twice", item.span)
        if index + 1 == len(items) or isinstance(items[index + 1], Keyword):
            el.fail("E-FORM-001", f"`:{item.name}` has no value after it", item.span)
        keyed[item.name] = items[index + 1]
        index += 2
    return plain, keyed


def name_of(el: Elaborator, form: Form, what: str) -> str:
    """A name written as a symbol."""
    if not isinstance(form, Symbol):
        el.fail("E-FORM-001", f"{what} is a name", form.span)
    return form.name


def need(el: Elaborator, form: List, low: int, high: int | None, shape: str) -> None:
    """Report a form that has fewer than `low` or more than `high` parts (E-FORM-001)."""
    count = len(form.items) - 1
    if count < low or (high is not None and count > high):
        end = Span(form.span.source, form.span.end - 1, form.span.end)
        labels = [Label(end, "it ends here")] if end.line > form.span.line and not end.source.is_library else []
        el.fail("E-FORM-001", f"this form is {shape}", form.span, labels=labels)


def test(el: Elaborator, form: Form, scope: Scope, what: str) -> bool:
    """An elaboration boolean."""
    value = el.eval(form, scope)
    if isinstance(value, bool):
        return value
    if isinstance(value, Value | HostScalar):
        el.fail("E-TYPE-007", f"the test of `{what}` is {kind_of(value)}, known only at run time", form.span,
                help="(where TEST A B) chooses at run time")  # fmt: skip
    el.fail("E-TYPE-006", f"the test of `{what}` is {kind_of(value)}, not a boolean", form.span)


def due_every(el: Elaborator, form: Form, scope: Scope) -> int:
    """The n of `(every n …)`: an integer from 1 on."""
    n = el.size(el.eval(form, scope), form.span)
    if n < 1:
        el.fail("E-TYPE-005", "`every` counts from 1", form.span)
    return n
