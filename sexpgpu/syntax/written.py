"""A text as it is written: the tree of its brackets with comments, line breaks and blanks kept, for the formatter.

The reader's forms say what a text means; this says how it looks. Both come from one lexer, `reader.tokens`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from sexpgpu.source import Source
from sexpgpu.syntax.reader import tokens

Kind = Literal["atom", "string", "list", "vector", "block", "comment"]
_GAP = re.compile(r";[^\n]*|\n|[^;\n]+")
_CLOSERS = {"list": ")", "vector": "]"}


@dataclass(slots=True)
class Piece:
    """An atom, a string, a bracket with what it holds, a block comment, or a comment to the end of its line."""

    kind: Kind
    text: str
    """What is written; of a bracket, the opening one."""
    num_breaks: int
    """Line breaks before it; 2 stands for blank lines, however many."""
    num_blanks: int
    """Columns between it and what stands before it on its line."""
    column: int
    """Where it is written, from 0."""
    prefix: str = ""
    """`#;`, once for each that stands right before it."""
    children: list[Piece] = field(default_factory=list)
    flat: str | None = None
    """Its text on one line, strings as they are; None where the author broke it, or a comment does."""
    narrowest: int = 0
    """Columns that it takes when it is broken wherever it can be."""

    @property
    def is_datum(self) -> bool:
        """Whether the reader makes something of it."""
        return self.kind not in ("block", "comment") and not self.prefix

    @property
    def is_keyword(self) -> bool:
        """Whether it is an option's name."""
        return self.kind == "atom" and self.text.startswith(":")

    @property
    def closer(self) -> str:
        """The bracket that ends it."""
        return _CLOSERS[self.kind]

    @property
    def head(self) -> str:
        """The name that leads a list; empty where none does."""
        first = self.children[0] if self.kind == "list" and self.children else None
        if first is None or first.kind != "atom" or first.prefix or first.is_keyword:
            return ""
        return first.text


def pieces(source: Source) -> list[Piece]:
    """The top level of a text that reads without a diagnostic."""
    builder = _Builder(source)
    for kind, start, end in tokens(source):
        builder.token(kind, start, end)
    builder.let_go_of_skips()
    return builder.open[0].children


class _Builder:
    """The open brackets, and what lies between the last piece and the next."""

    def __init__(self, source: Source) -> None:
        self.text = source.text
        self.open = [Piece("list", "", 0, 0, 0)]
        self.num_breaks = 0
        self.num_blanks = 0
        self.line_start = 0
        self.skips: Piece | None = None  # `#;` that wait for the datum after them

    def token(self, kind: str, start: int, end: int) -> None:
        """Take the next token."""
        text = self.text[start:end]
        match kind:
            case "gap":
                self.gap(start, end)
            case "skip":
                if self.skips is None:
                    self.skips = self.piece("block", "", start)
                self.skips.text += "#;"
            case "comment":
                self.let_go_of_skips()
                self.add(self.piece("block", text, start))
            case "open":
                self.open.append(self.datum("list" if text == "(" else "vector", text, start))
            case "close":
                self.let_go_of_skips()
                self.num_breaks = self.num_blanks = 0
                piece = self.open.pop()
                _measure(piece)
                self.add(piece)
            case "atom" | "string":
                piece = self.datum("atom" if kind == "atom" else "string", text, start)
                piece.flat = piece.prefix + text
                piece.narrowest = len(piece.flat.partition("\n")[0])
                self.add(piece)
        if kind in ("string", "comment") and "\n" in text:
            self.line_start = start + text.rindex("\n") + 1

    def gap(self, start: int, end: int) -> None:
        """Count what a gap holds, and keep its comments."""
        for found in _GAP.finditer(self.text, start, end):
            part = found[0]
            if part == "\n":
                self.num_breaks, self.num_blanks, self.line_start = min(self.num_breaks + 1, 2), 0, found.end()
            elif part[0] == ";":
                self.let_go_of_skips()
                self.add(self.piece("comment", part.rstrip(), found.start()))
            else:
                self.num_blanks += len(part)

    def piece(self, kind: Kind, text: str, start: int) -> Piece:
        """A piece at `start`, with what lies before it."""
        made = Piece(kind, text, self.num_breaks, self.num_blanks, start - self.line_start)
        if not self.open[-1].children and len(self.open) > 1:
            made.num_breaks = 0  # what an opening bracket holds begins beside it
        self.num_breaks = self.num_blanks = 0
        return made

    def datum(self, kind: Kind, text: str, start: int) -> Piece:
        """A piece that takes the `#;` before it."""
        made = self.piece(kind, text, start)
        if self.skips is not None:
            made.prefix, made.num_breaks, made.num_blanks = (
                self.skips.text,
                self.skips.num_breaks,
                self.skips.num_blanks,
            )
            self.skips = None
        return made

    def let_go_of_skips(self) -> None:
        """A comment stands between `#;` and its datum: they stay apart."""
        if self.skips is not None:
            made, self.skips = self.skips, None
            self.add(made)

    def add(self, piece: Piece) -> None:
        """Give a finished piece to the innermost open bracket."""
        if piece.kind == "block":
            piece.flat = piece.text
            piece.narrowest = len(piece.text.partition("\n")[0])
        self.open[-1].children.append(piece)


def _measure(bracket: Piece) -> None:
    """Its flat text and its least width, from those of its children."""
    children, head = bracket.children, bracket.head
    opener = bracket.prefix + bracket.text
    if all(child.flat is not None and not child.num_breaks for child in children):
        bracket.flat = f"{opener}{' '.join(child.flat or '' for child in children)}{bracket.closer}"
    widths = [len(opener) + len(head) + 1]
    indent = len(bracket.prefix) + (2 if head else 1)
    for index, child in enumerate(children[bool(head) :], start=bool(head)):
        before = children[index - 1] if index else None
        beside = before is not None and (before.is_keyword or (bracket.kind == "vector" and index % 2 == 1))
        widths.append(indent + 2 * beside + child.narrowest + (index == len(children) - 1))
    bracket.narrowest = max(widths)
