"""Source text and places in it: the first thing the flow makes, and what every later stage points back to.

A `Source` is a name and its text. The reader gives every datum a `Span` of character offsets; diagnostics and
IR nodes keep those spans, so that any later fault can name a line of the user's file. This module knows no
other module of the package.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

LIBRARY = "std/"
"""Sources of the library are named `std/…`."""


@dataclass(frozen=True)
class Source:
    """A text and the name under which the user knows it, usually a path."""

    name: str
    text: str

    @cached_property
    def is_library(self) -> bool:
        """Whether this is a file of the library: a user's path is shown as given and never begins so."""
        return self.name.startswith(LIBRARY)

    @cached_property
    def line_starts(self) -> tuple[int, ...]:
        """The offset of the first character of every line."""
        starts = [0]
        at = self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        return tuple(starts)

    @property
    def num_lines(self) -> int:
        """The number of lines; a text that ends in a line break has an empty last line."""
        return len(self.line_starts)

    def line_column(self, offset: int) -> tuple[int, int]:
        """The line and column of a character offset, both from 1; the end of the text is a place too."""
        assert 0 <= offset <= len(self.text), (self.name, offset, len(self.text))
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of a line, counted from 1, without its line break."""
        assert 1 <= line <= self.num_lines, (self.name, line, self.num_lines)
        start = self.line_starts[line - 1]
        end = self.line_starts[line] - 1 if line < self.num_lines else len(self.text)
        return self.text[start:end].removesuffix("\r")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a source, from `start` up to but not including `end`, in characters."""

    source: Source
    start: int
    end: int

    @property
    def line(self) -> int:
        """The line of the first character, from 1."""
        return self.source.line_column(self.start)[0]

    @property
    def column(self) -> int:
        """The column of the first character, from 1."""
        return self.source.line_column(self.start)[1]

    @property
    def text(self) -> str:
        """The characters of the span."""
        return self.source.text[self.start : self.end]

    def __str__(self) -> str:
        """The place as users read it: `file:line:column`."""
        line, column = self.source.line_column(self.start)
        return f"{self.source.name}:{line}:{column}"


def cover(a: Span, b: Span) -> Span:
    """The smallest span that holds both spans, which lie in one source."""
    assert a.source is b.source or a.source == b.source, (a.source.name, b.source.name)
    return Span(a.source, min(a.start, b.start), max(a.end, b.end))


def contains(outer: Span, inner: Span) -> bool:
    """Whether `inner` lies inside `outer`, or is it."""
    return outer.source is inner.source and outer.start <= inner.start and inner.end <= outer.end


NOWHERE = Span(Source("<nowhere>", ""), 0, 0)
"""The span of a datum that no text holds, such as one a tool or a test makes."""
