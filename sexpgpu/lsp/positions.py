"""Between offsets in characters, which spans count, and the positions of editors: a line and units of an encoding."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_BREAK = re.compile(r"\r\n|\n|\r")


def _units(text: str, encoding: str) -> int:
    match encoding:
        case "utf-8":
            return len(text.encode("utf-8", "surrogatepass"))
        case "utf-16":
            return len(text) + sum(character > "\uffff" for character in text)
    return len(text)


@dataclass(frozen=True)
class Lines:
    """A text and where its lines begin. encoding: what a column counts, `utf-8`, `utf-16` or `utf-32`."""

    text: str
    encoding: str = "utf-16"

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in _BREAK.finditer(self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 0."""
        line = bisect_right(self._starts, offset) - 1
        start = self._starts[line]
        return line, _units(self.text[start:offset], self.encoding)

    def offset(self, line: int, column: int) -> int:
        """The offset of a line and column; what lies beyond a line or the text is its end."""
        if line >= len(self._starts):
            return len(self.text)
        start = self._starts[max(0, line)]
        found = _BREAK.search(self.text, start)
        end = found.start() if found is not None else len(self.text)
        at = start
        while at < end and column > 0:
            column -= _units(self.text[at], self.encoding)
            at += 1
        return at
