"""Rows of the lowering report: a title, and a text that is broken to fit a terminal of 80 columns.

Flow: devices and `cli.lower` make their rows with it.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from sexpgpu.backend.pieces import Piece
from sexpgpu.ir.graph import Origin

COLUMN = 24
"""Where the text of a row begins, behind its indent."""
WIDTH = 80


def row(title: str, text: str) -> str:
    """A row of the report, with line breaks where it is long."""
    head = f"  {title:<{COLUMN - 1}} "
    rest = " " * (COLUMN + 2)
    first = textwrap.wrap(text, max(20, WIDTH - len(head)), break_long_words=False) or [""]
    lines = [head + first[0]]
    if len(first) > 1:
        behind = text[len(first[0]) :].strip()
        lines += textwrap.wrap(behind, WIDTH, initial_indent=rest, subsequent_indent=rest, break_long_words=False)
    return "\n".join(lines).rstrip()


def place_text(origin: Origin) -> str:
    """`file.sx:12`, where the innermost form of the user's own file stands; empty where there is none."""
    span = origin.place
    return "" if span is None else f"{span.source.name.rsplit('/', 1)[-1]}:{span.line}"


def counted(pieces: Sequence[Piece]) -> str:
    """How many pieces of each kind, and of how many texts those with one are."""
    kinds = Counter([piece.kind for piece in pieces])
    texts = {kind: len({p.text for p in pieces if p.kind == kind and p.text}) for kind in kinds}
    words = [f"{n} {kind}" + (f" ({texts[kind]} texts)" if texts[kind] else "") for kind, n in kinds.most_common()]
    return ", ".join(words) or "nothing"


def decision_rows(phases: Mapping[str, Sequence[Piece]]) -> list[str]:
    """A row for each kind of piece and each reason: how many in all phases, why, and where the largest is."""
    found: dict[tuple[str, str], list[Piece]] = {}
    for pieces in phases.values():
        for piece in pieces:
            found.setdefault((piece.kind, piece.reason), []).append(piece)
    rows = []
    for (kind, reason), alike in sorted(found.items(), key=lambda item: -sum([p.num_bytes for p in item[1]])):
        largest = max(alike, key=lambda piece: piece.num_bytes)
        at = place_text(largest.origin)
        what = f"; the largest: {largest.title} at {at}" if at else ""
        rows.append(row(f"{kind} × {len(alike)}", f"{reason}{what}"))
    return rows
