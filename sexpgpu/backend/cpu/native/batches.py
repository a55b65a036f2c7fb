"""Which actions of a stretch may run at the same time: those that touch nothing which another of them writes.

Flow: `lowering` says what each action reads and writes, and orders a stretch by the batches that come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a buffer, from `low` to before `high`, that an action reads or writes."""

    buffer: str
    low: int
    high: int
    writes: bool


@dataclass(slots=True)
class _Touched:
    """What was read or written of a buffer, and in which batch last."""

    spans: list[tuple[Span, int]] = field(default_factory=list)

    def earliest(self, span: Span) -> int:
        """The first batch that may touch a span."""
        return max([n + 1 for s, n in self.spans if (s.writes or span.writes) and _meet(s, span)], default=0)

    def add(self, span: Span, batch: int) -> None:
        """Note a span; what lies within one that is written now holds nobody up any longer by itself."""
        if span.writes:
            self.spans = [(s, n) for s, n in self.spans if not (span.low <= s.low and s.high <= span.high)]
        self.spans.append((span, batch))


def batches(actions: Iterable[Sequence[Span]]) -> list[list[int]]:
    """The numbers of actions, each in the first batch that comes after all that it has to wait for."""
    buffers: dict[str, _Touched] = {}
    found: list[list[int]] = []
    for number, spans in enumerate(actions):
        batch = max([buffers[s.buffer].earliest(s) for s in spans if s.buffer in buffers], default=0)
        for span in spans:
            buffers.setdefault(span.buffer, _Touched()).add(span, batch)
        if batch == len(found):
            found.append([])
        found[batch].append(number)
    return found


def _meet(one: Span, other: Span) -> bool:
    return one.low < other.high and other.low < one.high
