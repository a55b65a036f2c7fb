"""What `--profile` leaves: a table of measured times beside the least that they could be, and a trace for Perfetto.

Flow: `cli.run` has the session fill a `Profile` while it trains, then prints the table and writes the trace.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sexpgpu.backend.pieces import MAX_EVENTS, Event, Piece, Profile, Rates
from sexpgpu.backend.report import place_text

MOST_ROWS = 15
"""Rows of a phase; what else it does is one row."""
TITLE, PLACE = 33, 18
"""Columns of what a piece does and of where it stands in the file."""


@dataclass(slots=True)
class _Row:
    """Pieces that do the same at the same place: how many a call, and seconds a call, measured and predicted."""

    title: str
    place: str
    count: int = 0
    seconds: float = 0.0
    predicted: float = 0.0


def profile_lines(profile: Profile, phases: Mapping[str, Sequence[Piece]], rates: Rates) -> list[str]:
    """A table for each phase that was timed, that which took longest first."""
    if not profile.calls:
        return ["profile: nothing was timed: the first call of a phase is not, and there was no second"]
    speed, traffic = rates.flops["f32"] / 1e9, rates.bytes_per_s / 1e9
    lines = [f"profile: ms of a call; predicted from {speed:.0f} GFLOP/s of f32 and {traffic:.0f} GB/s"]
    for name in sorted(profile.calls, key=lambda name: -sum(profile.seconds[name])):
        rows = _rows(phases[name], profile.seconds[name], profile.calls[name], rates)
        lines += _table(name, profile.calls[name], rows)
    if len(profile.events) == MAX_EVENTS:
        lines.append(f"profile: the trace ends after {MAX_EVENTS:,} pieces; the table counts all")
    return lines


def _rows(pieces: Sequence[Piece], seconds: Sequence[float], num_calls: int, rates: Rates) -> list[_Row]:
    found: dict[tuple[str, str, str], _Row] = {}
    for piece, spent in zip(pieces, seconds, strict=True):
        place = place_text(piece.origin)
        row = found.setdefault((piece.kind, piece.title, place), _Row(f"{piece.kind}: {piece.title}", place))
        row.count += 1
        row.seconds += spent / num_calls
        row.predicted += rates.seconds(piece)
    return sorted(found.values(), key=lambda row: -row.seconds)


def _table(name: str, num_calls: int, rows: Sequence[_Row]) -> list[str]:
    total, predicted = sum([row.seconds for row in rows]), sum([row.predicted for row in rows])
    head = f"{name}, {num_calls} calls"
    lines = ["", f"  {head:<{TITLE + PLACE - 1}}{'ms':>9}{'predicted':>11}{'%':>5}"]
    shown, others = rows[:MOST_ROWS], rows[MOST_ROWS:]
    for row in shown:
        times = f" × {row.count}" if row.count > 1 else ""
        title = textwrap.shorten(row.title, TITLE - len(times) - 1, placeholder="…") + times
        place = row.place[1 - PLACE :]
        lines.append(_line(f"{title:<{TITLE}}{place:<{PLACE - 1}}", row.seconds, row.predicted, total))
    if others:
        rest, least = sum([row.seconds for row in others]), sum([row.predicted for row in others])
        lines.append(_line(f"{f'{len(others)} others':<{TITLE + PLACE - 1}}", rest, least, total))
    return [*lines, _line(f"{'all':<{TITLE + PLACE - 1}}", total, predicted, total)]


def _line(title: str, seconds: float, predicted: float, total: float) -> str:
    return f"  {title}{1e3 * seconds:>9.3f}{1e3 * predicted:>11.3f}{100 * seconds / total if total else 0:>5.0f}"


def trace_text(profile: Profile, phases: Mapping[str, Sequence[Piece]], device: str) -> str:
    """Events as Chrome and Perfetto read them: a track for calls of phases and one for their pieces."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"sexpgpu on {device}"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "phases"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "pieces"}},
    ]
    began = min([event.start_s for event in profile.events], default=0.0)
    call: list[Event] = []
    for event in profile.events:
        # Numbers of pieces rise within a call.
        if call and (event.phase != call[-1].phase or event.number <= call[-1].number):
            events.append(_call_event(call, began))
            call = []
        call.append(event)
        piece = phases[event.phase][event.number]
        about = {"kind": piece.kind, "at": place_text(piece.origin), "flops": piece.flops, "bytes": piece.num_bytes}
        events.append(_event(piece.title, event.start_s - began, event.seconds, 2, about))
    if call:
        events.append(_call_event(call, began))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _call_event(call: Sequence[Event], began: float) -> dict[str, Any]:
    first = min([event.start_s for event in call])
    last = max([event.start_s + event.seconds for event in call])
    return _event(call[0].phase, first - began, last - first, 1, {"pieces": len(call)})


def _event(name: str, start_s: float, seconds: float, track: int, about: Mapping[str, object]) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": 1, "tid": track, "ts": round(1e6 * start_s, 3), "dur": round(1e6 * seconds, 3),
        "args": dict(about),
    }  # fmt: skip
