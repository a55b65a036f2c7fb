"""From forms back to text: one line for messages and the wire, several for people.

Reading what is printed here gives an equal form. Comments are not part of a form and so are not printed.
"""

from __future__ import annotations

from collections.abc import Iterator

from sexpgpu.syntax.forms import Boolean, Float, Form, Integer, Keyword, List, String, Symbol, Vector

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def to_text(form: Form) -> str:
    """The form on one line."""
    parts: list[str] = []
    pending: list[Form | str] = [form]
    while pending:
        match pending.pop():
            case List(items):
                parts.append("(")
                pending.append(")")
                pending.extend(_spaced_backwards(items))
            case Vector(items):
                parts.append("[")
                pending.append("]")
                pending.extend(_spaced_backwards(items))
            case str(text):
                parts.append(text)
            case atom:
                parts.append(_atom_text(atom))
    return "".join(parts)


def pretty(form: Form, width: int = 100) -> str:
    """The form over as many lines as keep it within `width` columns, where its atoms allow that.

    A form that does not fit keeps its head, the name after it and a parameter list or binding list on its
    first line; every further part begins a line two columns in. A vector that leads a form is laid out in
    pairs, and an option stays beside its value.
    """
    return _pretty(form, width, 0, 0)


def _spaced_backwards(items: tuple[Form, ...]) -> Iterator[Form | str]:
    for index in range(len(items) - 1, -1, -1):
        yield items[index]
        if index:
            yield " "


def _atom_text(atom: Symbol | Keyword | Integer | Float | Boolean | String) -> str:
    match atom:
        case Symbol(name):
            return name
        case Keyword(name):
            return f":{name}"
        case Integer(value):
            return str(value)
        case Float(value):
            return repr(value)
        case Boolean(value):
            return "true" if value else "false"
        case String(value):
            return f'"{value.translate(_ESCAPES)}"'


def _pretty(form: Form, width: int, column: int, num_closers: int, num_together: int = 1) -> str:
    """The form from `column` on, with room for the closing brackets that will follow it."""
    text = to_text(form)
    if column + len(text) + num_closers <= width:
        return text
    match form:
        case List(items) if items:
            num_first, first = _first_line(items, width, column + 1)
            rest = _lines(items[num_first:], width, column + 2, num_closers + 1)
            return f"({first}{_line_break(column + 2) if rest and first else ''}{rest})"
        case Vector(items) if items:
            return f"[{_lines(items, width, column + 1, num_closers + 1, num_together)}]"
        case _:
            return text


def _first_line(items: tuple[Form, ...], width: int, column: int) -> tuple[int, str]:
    """How many leading items share the line of the bracket, and their text."""
    num_symbols = 0
    while num_symbols < min(2, len(items)) and isinstance(items[num_symbols], Symbol):
        num_symbols += 1
    text = " ".join(to_text(item) for item in items[:num_symbols])
    column += len(text) + 1
    match items[num_symbols : num_symbols + 1]:
        case (Vector() as bindings,) if num_symbols == 1:
            return 2, f"{text} {_pretty(bindings, width, column, 1, num_together=2)}"
        case (List() as parameters,) if num_symbols == 2 and column + len(to_text(parameters)) <= width:
            return 3, f"{text} {to_text(parameters)}"
    return num_symbols, text


def _lines(items: tuple[Form, ...], width: int, column: int, num_closers: int, num_together: int = 1) -> str:
    """The items over lines that begin at `column`: keyword beside value, others `num_together` a line."""
    lines: list[str] = []
    index = 0
    while index < len(items):
        num_items = 2 if isinstance(items[index], Keyword) else num_together
        row = items[index : index + num_items]
        index += num_items
        lines.append(_line(row, width, column, num_closers if index >= len(items) else 0))
    return _line_break(column).join(lines)


def _line(row: tuple[Form, ...], width: int, column: int, num_closers: int) -> str:
    """Items side by side, each beginning where the last line of the one before it ends."""
    text = ""
    for index, item in enumerate(row):
        lead = f"{text} " if text else ""
        last_break = lead.rfind("\n")
        at = column + len(lead) if last_break < 0 else len(lead) - last_break - 1
        text = lead + _pretty(item, width, at, num_closers if index == len(row) - 1 else 0)
    return text


def _line_break(column: int) -> str:
    return f"\n{' ' * column}"
