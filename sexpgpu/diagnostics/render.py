"""Rendering: the end of a diagnostic's way, as text for people, for editors or for programs.

Three styles: `full` draws the source lines with their labels, `concise` is one line each, `json` is one
object a line. The functions here know no code and no rule of the language.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sexpgpu.diagnostics.diagnostic import Diagnostic, Label
from sexpgpu.source import Source, Span

Style = Literal["full", "concise", "json"]

MAX_CHARACTERS = 1000
"""Of a line that is longer, only so many around the place are looked at."""
MAX_COLUMNS = 100
TAB_COLUMNS = 4
CUT = "..."
MAX_EXPLAINED = 3
"""Codes that the hint below the diagnostics names."""


def render(diagnostics: Iterable[Diagnostic], command: str = "check", style: Style = "full") -> str:
    """The diagnostics as text, in the order given, without a line break at the end."""
    match style:
        case "full":
            return "\n\n".join(_full(diagnostic, command) for diagnostic in diagnostics)
        case "concise":
            return "\n".join(_concise(diagnostic, command) for diagnostic in diagnostics)
        case "json":
            return "\n".join(_json(diagnostic, command) for diagnostic in diagnostics)


def hint(diagnostics: Iterable[Diagnostic]) -> str:
    """The line that says how to learn more of the codes of these diagnostics."""
    codes = dict.fromkeys(diagnostic.code for diagnostic in diagnostics)
    return f"for more: sexpgpu explain {' '.join(list(codes)[:MAX_EXPLAINED])}"


# --- full ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mark:
    """A label as it is drawn: the primary one with `^`, the others with `-`."""

    span: Span
    message: str
    primary: bool


@dataclass(frozen=True)
class _Excerpt:
    """A source line as printed, and the printed column of each of its characters and of its end."""

    text: str
    columns: tuple[int, ...]


def _full(diagnostic: Diagnostic, command: str) -> str:
    marks = _marks(diagnostic)
    headline = f"sexpgpu {command}: {diagnostic.code}: {diagnostic.message}"
    remedies = diagnostic.help
    if not marks and remedies:
        headline, remedies = f"{headline}; {remedies[0]}", remedies[1:]
    width = max((len(str(mark.span.line)) for mark in marks), default=1)
    lines = [visible(headline)]
    for arrow, group in zip(_arrows(), _by_source(marks), strict=False):
        lines.append(f"{' ' * width}{arrow} {visible(str(group[0].span))}")
        lines.extend(_source_lines(group, width))
    lines.extend(_remark("help", text, width) for text in remedies)
    lines.extend(_remark("note", text, width) for text in diagnostic.notes)
    return "\n".join(lines)


def _arrows() -> Iterator[str]:
    yield "-->"
    while True:
        yield ":::"


def _marks(diagnostic: Diagnostic) -> tuple[_Mark, ...]:
    """The primary mark, then the others in the order of their labels."""
    if diagnostic.span is None:
        return tuple(_Mark(label.span, label.message, False) for label in diagnostic.labels)
    own = [label for label in diagnostic.labels if label.span == diagnostic.span]
    others = [label for label in diagnostic.labels if label.span != diagnostic.span]
    message = "; ".join(label.message for label in own)
    primary = _Mark(diagnostic.span, message, True)
    return (primary, *(_Mark(label.span, label.message, False) for label in others))


def _by_source(marks: tuple[_Mark, ...]) -> list[list[_Mark]]:
    """The marks of each source together; the primary mark leads the first group."""
    groups: dict[Source, list[_Mark]] = {}
    for mark in marks:
        groups.setdefault(mark.span.source, []).append(mark)
    return list(groups.values())


def _source_lines(marks: list[_Mark], width: int) -> Iterator[str]:
    """The marked lines of one source in order, each followed by its underlines.

    One line left out shows by its number alone; several are shown by dots.
    """
    source = marks[0].span.source
    by_line: dict[int, list[_Mark]] = {}
    for mark in marks:
        by_line.setdefault(mark.span.line, []).append(mark)
    last = None
    for line in sorted(by_line):
        if last is not None and line > last + 2:
            yield CUT
        last = line
        yield from _marked_line(source, line, by_line[line], width)


def _marked_line(source: Source, line: int, marks: list[_Mark], width: int) -> Iterator[str]:
    start = source.line_starts[line - 1]
    text = source.line_text(line)
    focus = next((mark for mark in marks if mark.primary), marks[0])
    if len(text) > MAX_CHARACTERS:
        hidden = max(0, focus.span.start - start - MAX_CHARACTERS // 2)
        start, text = start + hidden, text[hidden : hidden + MAX_CHARACTERS]
    excerpt = _excerpt(text, *_within(focus.span, start, text), MAX_COLUMNS - width - len(" | "))
    yield f"{line:>{width}} | {excerpt.text}".rstrip()
    for mark in sorted(marks, key=lambda mark: (mark.span.start, mark.span.end)):
        first, end = _within(mark.span, start, text)
        left = excerpt.columns[first]
        underline = ("^" if mark.primary else "-") * max(1, excerpt.columns[end] - left)
        yield f"{' ' * width} | {' ' * left}{underline} {visible(mark.message)}".rstrip()


def _within(span: Span, line_start: int, text: str) -> tuple[int, int]:
    """The part of a span on its first line, as indices of the line's characters."""
    first = max(0, min(span.start - line_start, len(text)))
    return first, max(first, min(span.end - line_start, len(text)))


def _excerpt(text: str, first: int, end: int, num_columns: int) -> _Excerpt:
    """A line cut to `num_columns` so that the characters from `first` to `end` stay in sight."""
    cells = _cells(text)
    columns = [0]
    for _, cell_width in cells:
        columns.append(columns[-1] + cell_width)
    total = columns[-1]
    if total <= num_columns:
        return _Excerpt("".join(cell for cell, _ in cells), tuple(columns))
    room = num_columns - len(CUT)
    begin = 0 if columns[end] <= room else max(0, min(columns[first] - num_columns // 4, total - num_columns))
    low = next(i for i, column in enumerate(columns) if column >= begin + (len(CUT) if begin else 0))
    shift = columns[low] - (len(CUT) if begin else 0)
    limit = num_columns if total - shift <= num_columns else room
    high = max(i for i, column in enumerate(columns) if column - shift <= limit)
    shown = "".join(cell for cell, _ in cells[low:high])
    shown = f"{CUT if begin else ''}{shown}{CUT if high < len(cells) else ''}"
    lowest, highest = columns[low] - shift, columns[high] - shift
    return _Excerpt(shown, tuple(min(max(column - shift, lowest), highest) for column in columns))


def _cells(text: str) -> list[tuple[str, int]]:
    """Each character as printed, with the terminal columns it takes."""
    cells: list[tuple[str, int]] = []
    column = 0
    for character in text:
        if character == "\t":
            cell, width = " " * (TAB_COLUMNS - column % TAB_COLUMNS), TAB_COLUMNS - column % TAB_COLUMNS
        else:
            cell = visible(character)
            width = _width(cell)
        cells.append((cell, width))
        column += width
    return cells


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def visible(text: str, kept: str = "\n") -> str:
    """Text that cannot steer a terminal: control and direction characters but `kept` become a replacement mark."""
    if text.isprintable():
        return text
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join("\ufffd" if c not in kept and unicodedata.category(c) in hidden else c for c in text)


def _remark(kind: str, text: str, width: int) -> str:
    lead = f"{' ' * width} = {kind}: "
    return lead + visible(text).replace("\n", "\n" + " " * len(lead))


# --- concise and json ---------------------------------------------------------------------------------------


def _concise(diagnostic: Diagnostic, command: str) -> str:
    place = f"sexpgpu {command}" if diagnostic.span is None else str(diagnostic.span)
    return visible(f"{place}: {diagnostic.code}: {diagnostic.message}")


def _json(diagnostic: Diagnostic, command: str) -> str:
    record = {
        "command": command,
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "span": _json_span(diagnostic.span) if diagnostic.span is not None else None,
        "labels": [_json_label(label) for label in diagnostic.labels],
        "help": list(diagnostic.help),
        "notes": list(diagnostic.notes),
    }
    return json.dumps(record)


def _json_label(label: Label) -> dict[str, object]:
    return {"span": _json_span(label.span), "message": label.message}


def _json_span(span: Span) -> dict[str, object]:
    """A place for programs: lines and columns from 1, the end exclusive, and the character offsets."""
    line, column = span.source.line_column(span.start)
    end_line, end_column = span.source.line_column(span.end)
    return {
        "file": span.source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "start": span.start,
        "end": span.end,
    }
