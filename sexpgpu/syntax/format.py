"""The one layout of a text: the author's line breaks, and everything between them by rule.

`docs/format.md` says the rules. The pieces of the text (`written`) are laid out on lines, bracket by bracket; a line
that would be too long is broken, siblings that ask for it are set in columns, and the comments at the ends of lines
are lined up last. A break that one pass adds can make more lines take part in a column, so passes follow one
another until nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.source import Source
from sexpgpu.syntax.reader import read
from sexpgpu.syntax.written import Piece, pieces

WIDTH = 120
"""The longest line, where atoms and comments allow it."""

MAX_PASSES = 8

BODIES = frozenset({"let", "fn", "for", "repeat", "scan", "table-scan", "with", "when", "recompute"})
"""Heads whose further lines begin two columns in, as those of all `def…` do; other lists line up with what follows
the head."""
_NUM_BINDING_LISTS = {"let": 1, "for": 1, "repeat": 2, "scan": 2, "table-scan": 2}
_PAIRED_OPTIONS = frozenset({":state", ":carry", ":trips"})
_PAIRED_FIRST = frozenset({"mix", "zip"})
_WITH_PARAMETERS = frozenset({"defn", "defmodel", "defmetric", "defoptimizer", "defgenerator", "defdiagnostic"})

_MOST_BY_PATTERN = 4

Role = Literal["form", "parameters", "pairs", "rows", "broken rows", "file"]
"""What a bracket is to the one around it: `rows` are pairs, each on a line of its own once they take several, as they
must where the `let` around them is broken."""


def format_source(source: Source) -> str:
    """The text of `source` in the one layout; it reads as before, and formatting it again changes nothing.

    Raises: E-READ-003 to E-READ-008, for a text that does not read.
    """
    before = read(source)
    if before.diagnostics:
        raise DiagnosticError(before.diagnostics)
    made = source
    for _ in range(MAX_PASSES):
        text = _one_pass(made)
        if text == made.text:
            break
        made = Source(source.name, text)
    after = read(made)
    assert after.forms == before.forms and not after.diagnostics, source.name
    return made.text


def format_text(text: str) -> str:
    """`format_source` of a text without a file."""
    return format_source(Source("text", text))


def _one_pass(source: Source) -> str:
    layout = _Layout()
    layout.lay_out(_plan(pieces(source), "", "file", -1, 0), 0, file=True)
    _line_up_comments(layout.lines)
    return "".join(f"{line.text}\n" for line in layout.lines) if layout.lines[-1].text else ""


# --- lines ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    """A line: its code, the comment at its end with the author's column for it; `full` where nothing may follow."""

    text: str
    comment: str = ""
    column: int = 0
    full: bool = False


def _line_up_comments(lines: list[_Line]) -> None:
    """Join the comments at the ends of lines to their code, those of neighbouring lines in one column.

    The column is the author's, or further right where code is in the way, or further left where a comment would
    pass the width.
    """
    for commented, group in groupby(lines, key=lambda line: bool(line.comment)):
        if not commented:
            continue
        run = list(group)
        limit = WIDTH - max(len(line.comment) for line in run)
        column = min(min(line.column for line in run), limit)
        least = max(len(line.text) for line in run) + 1
        if least <= limit:
            column = max(column, least)
        for line in run:
            line.text = f"{line.text.ljust(max(column, len(line.text) + 1))}{line.comment}"


# --- what a bracket's lines look like -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Unit:
    """What stands together: a piece, or a name with its value."""

    pieces: list[Piece]
    column: int = 0
    """Where it stands if it begins a line."""
    stays: bool = False
    """Whether it stays beside the head."""
    begins_line: bool = False
    """Whether it must begin a line."""
    roles: tuple[Role, Role] = ("form", "form")
    """Of its pieces."""
    hang: int = 2
    """How far in its value stands where name and value take a line each."""
    name_width: int = 0
    """Columns for its name, where values are in a column."""
    text: str | None = None
    """What it is on one line, set in columns with its siblings; None where it has no such text."""

    @property
    def first(self) -> Piece:
        """The piece that leads it."""
        return self.pieces[0]

    @property
    def narrowest(self) -> int:
        """Columns that it takes when it is broken wherever it can be."""
        return max(piece.narrowest + 2 * (index > 0) for index, piece in enumerate(self.pieces))

    def flat_text(self) -> str | None:
        """It on one line, with its value in its column."""
        if self.roles[0] == "broken rows":
            return None
        if self.text is not None or len(self.pieces) == 1:
            return self.text or self.first.flat
        name, value = self.pieces
        if name.flat is None or value.flat is None or value.num_breaks:
            return None
        return f"{name.flat.ljust(self.name_width)} {value.flat}"


def _plan(children: list[Piece], head: str, role: Role, start: int, tail: int) -> list[_Unit]:
    """The units of a bracket that begins at column `start` and is followed by `tail` closing brackets."""
    head = head if role == "form" else ""
    units = _units(children, head, role)
    _give_roles(units, head, role)
    _give_columns(units, head, start, tail)
    ends = [_ends_line(units, index) for index in range(len(units))]
    starts = [unit.first.num_breaks > 0 or (index == 0 and not head) for index, unit in enumerate(units)]
    alone = [a and b for a, b in zip(starts, ends, strict=True)]
    _set_values(units, alone)
    _set_siblings(units, alone, tail)
    if role in ("rows", "broken rows"):
        for unit in units[1:]:
            unit.begins_line = unit.first.kind != "comment"
    return units


def _units(children: list[Piece], head: str, role: Role) -> list[_Unit]:
    units: list[_Unit] = []
    lone_value = False
    index = 0
    while index < len(children):
        piece = children[index]
        following = children[index + 1] if index + 1 < len(children) else None
        branch = head == "if" and index > 0
        paired = branch or role in ("pairs", "rows", "broken rows")
        together = False
        if piece.is_datum and lone_value:
            lone_value = False
        elif piece.is_datum and (paired or (piece.is_keyword and (index > 0 or not head))):
            together = following is not None and following.is_datum and (paired or not following.is_keyword)
            together = together and not (branch and following is not None and following.num_breaks)
            lone_value = paired and not together
        units.append(_Unit(children[index : index + 1 + together], hang=0 if branch else 2))
        index += 1 + together
    return units


def _give_roles(units: list[_Unit], head: str, role: Role) -> None:
    """Say which brackets are lists of bindings and which of parameters."""
    for index, unit in enumerate(units):
        first, last = unit.first, unit.pieces[-1]
        if first.is_keyword and first.text in _PAIRED_OPTIONS and head.startswith("def"):
            unit.roles = ("form", "pairs" if last.kind == "vector" else "form")
        elif first.kind == "vector" and 0 < index <= _NUM_BINDING_LISTS.get(head, 0):
            unit.roles = ("rows" if head == "let" else "pairs", "form")
        elif first.kind == "vector" and index == 1 and head in _PAIRED_FIRST:
            unit.roles = ("pairs", "form")
        elif first.kind == "list" and ((head in _WITH_PARAMETERS and index == 2) or (head == "fn" and index == 1)):
            unit.roles = ("parameters", "form")


def _give_columns(units: list[_Unit], head: str, start: int, tail: int) -> None:
    """Say where units stand that begin a line: below the first argument, or two columns in."""
    if not head or len(units) == 1:
        for unit in units:
            unit.column = start + 1
        return
    second = start + len(head) + 2
    has_body = head in BODIES or head.startswith("def")
    beside = units[1:2] if has_body else units[1:]
    stays = units[1].first.kind != "comment" and not units[1].first.num_breaks
    room = WIDTH - second
    if any(unit.narrowest + (tail if unit is units[-1] else 0) > room for unit in beside):
        stays, units[1].begins_line = False, units[1].first.kind != "comment"
    units[0].column = start + 1
    units[1].stays = stays
    for index, unit in enumerate(units[1:], start=1):
        bindings = unit.first.kind == "vector" and index <= _NUM_BINDING_LISTS.get(head, 0)
        unit.column = second if stays and (not has_body or bindings) else start + 2


def _ends_line(units: list[_Unit], index: int) -> bool:
    following = units[index + 1 :]
    if following and following[0].first.kind == "comment" and not following[0].first.num_breaks:
        return True
    return not following or following[0].first.num_breaks > 0


def _break_pairs(units: list[_Unit]) -> None:
    """Give the pairs of a `let` that does not fit on a line, and its body, lines of their own."""
    if len(units) > 2 and units[1].roles[0] == "rows" and len(units[1].first.children) > 2:
        units[1].roles = ("broken rows", "form")
        units[2].begins_line = True


def _set_values(units: list[_Unit], alone: list[bool]) -> None:
    """Set the values of pairs that have lines of their own in a column, if the author spaced one of them so.

    A pattern that is wider than every plain name sets the column of four pairs at most; in a longer list it stands
    out.
    """
    pairs = []
    for unit, has_line in zip(units, alone, strict=True):
        name = unit.first.flat
        if not has_line or len(unit.pieces) == 1 or name is None or "\n" in name or unit.pieces[1].num_breaks:
            continue
        pairs.append((unit, len(name)))
    if not any(unit.pieces[1].num_blanks > 1 for unit, _ in pairs):
        return
    plain = [width for unit, width in pairs if unit.first.kind == "atom"]
    widest = max(plain) if plain and len(pairs) > _MOST_BY_PATTERN else max(width for _, width in pairs)
    for unit, _ in pairs:
        unit.name_width = widest


def _set_siblings(units: list[_Unit], alone: list[bool], tail: int) -> None:
    """Set the parts of neighbouring lines in columns: lists of one head, a line each, one of them spaced so."""
    run: list[_Unit] = []
    for unit, has_line in zip(units, alone, strict=True):
        first = unit.first
        if first.kind == "comment" and not first.num_breaks:
            continue
        joins = has_line and len(unit.pieces) == 1 and first.head and first.flat is not None and "\n" not in first.flat
        if run and not (joins and first.num_breaks == 1 and first.head == run[-1].first.head):
            _set_run(run, 0)
            run = []
        if joins:
            run.append(unit)
    _set_run(run, tail)


def _set_run(run: list[_Unit], tail: int) -> None:
    rows = [unit.first.children for unit in run]
    texts = [f"{unit.first.prefix}({unit.first.head}" for unit in run]
    for index in range(1, max((len(row) for row in rows), default=0)):
        here = [number for number, row in enumerate(rows) if len(row) > index]
        spaced = any(rows[number][index].num_blanks > 1 for number in here)
        column = max(len(texts[number]) for number in here) if spaced else 0
        for number in here:
            texts[number] = f"{texts[number].ljust(column)} {rows[number][index].flat}"
    if all(unit.column + len(text) + 1 + tail <= WIDTH for unit, text in zip(run, texts, strict=True)):
        for unit, text in zip(run, texts, strict=True):
            unit.text = f"{text})"


# --- laying out -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Layout:
    """The lines so far."""

    lines: list[_Line] = field(default_factory=lambda: [_Line("")])

    @property
    def column(self) -> int:
        """Where the next character goes."""
        return len(self.lines[-1].text)

    @property
    def ended(self) -> bool:
        """Whether a comment ends the current line, so that a datum needs another."""
        return bool(self.lines[-1].comment) or self.lines[-1].full

    def put(self, text: str) -> None:
        """Go on on the current line; a string or block comment may hold line breaks of its own."""
        first, *rest = text.split("\n")
        self.lines[-1].text += first
        self.lines.extend(_Line(line) for line in rest)

    def begin_line(self, column: int, num_breaks: int = 1) -> None:
        """Go on on a new line, after a blank one where the author left one."""
        if self.lines == [_Line("")]:
            return
        if num_breaks > 1:
            self.lines.append(_Line(""))
        self.lines.append(_Line(" " * column))

    def fits(self, text: str, tail: int) -> bool:
        """Whether a text fits here, with brackets after it."""
        first, _, rest = text.partition("\n")
        if not rest:
            return self.column + len(first) + tail <= WIDTH
        return self.column + len(first) <= WIDTH and len(rest.rpartition("\n")[2]) + tail <= WIDTH

    def lay_out(self, units: list[_Unit], tail: int, file: bool = False) -> None:
        """Lay out what a bracket holds; `tail` closing brackets follow."""
        was_broken = False
        code = [index for index, unit in enumerate(units) if unit.first.kind != "comment"]
        for index, unit in enumerate(units):
            if unit.first.kind == "comment":
                self.comment(unit)
                continue
            own_tail = tail if index == code[-1] and all(not u.first.num_breaks for u in units[index + 1 :]) else 0
            text = unit.flat_text()
            if self.ended or (index > 0 and (unit.first.num_breaks or unit.begins_line or was_broken)):
                self.begin_line(unit.column, unit.first.num_breaks)
            elif index > 0 and not unit.stays and not self.has_room(unit, text, own_tail):
                self.begin_line(unit.column)
            elif index > 0:
                self.put(" ")
            num_lines = len(self.lines)
            if text is not None and self.fits(text, own_tail):
                self.put(text)
                was_broken = False
            else:
                self.unit(unit, own_tail)
                was_broken = text is not None and len(self.lines) > num_lines
            was_broken = was_broken or (file and len(self.lines) > num_lines)

    def has_room(self, unit: _Unit, text: str | None, tail: int) -> bool:
        """Whether a unit may stand after a blank on the current line, rather than on one of its own."""
        if self.column + 1 <= unit.column:
            return True
        if text is not None:
            return self.fits(f" {text}", tail)
        return self.column + 1 + unit.narrowest + tail <= WIDTH

    def comment(self, unit: _Unit) -> None:
        """Put a comment at the end of the line where it stood at the end of one, else on its own."""
        line, piece = self.lines[-1], unit.first
        if not piece.num_breaks and line.text and not self.ended:
            line.comment, line.column = piece.text, piece.column
            return
        self.begin_line(unit.column, piece.num_breaks)
        self.put(piece.text)
        self.lines[-1].full = True

    def unit(self, unit: _Unit, tail: int) -> None:
        """Lay out a piece, or a name and its value."""
        column = self.column
        if len(unit.pieces) == 1:
            self.piece(unit.first, tail, unit.roles[0])
            return
        name, value = unit.pieces
        self.piece(name, 0, unit.roles[0])
        blanks = 1
        if name.flat is not None and unit.name_width > len(name.flat):
            blanks += unit.name_width - len(name.flat)
        if self.ended or value.num_breaks or self.column + blanks + value.narrowest + tail > WIDTH:
            self.begin_line(column + unit.hang)
        else:
            self.put(" " * blanks)
        self.piece(value, tail, unit.roles[1])

    def piece(self, piece: Piece, tail: int, role: Role) -> None:
        """Lay out one piece."""
        is_bracket = piece.kind in ("list", "vector")
        if piece.flat is not None and role != "broken rows" and (not is_bracket or self.fits(piece.flat, tail)):
            self.put(piece.flat)
            return
        start = self.column + len(piece.prefix)
        self.put(piece.prefix + piece.text)
        units = _plan(piece.children, piece.head, role, start, tail + 1)
        if piece.flat is not None:
            _break_pairs(units)
        self.lay_out(units, tail + 1)
        if self.lines[-1].full:
            self.begin_line(start)
        self.lines[-1].text += piece.closer
