"""Several mistakes at once: gathers the diagnostics of independent pieces, and leaves the consequences out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.lang.bindings import beside_unused
from sexpgpu.lang.scope import Poisoned
from sexpgpu.syntax import List

MAX_FAULTS = 100
"""Diagnostics of one phase that are told; whoever has so many mends the first ones and checks again."""
MAX_OTHERS = 3
"""Further places of one unknown name that are told."""


class Collector:
    """Gathers the diagnostics of a phase; `attempt` runs one piece of it. forms: those of the user's files."""

    def __init__(self, forms: Sequence[List] = ()) -> None:
        self.forms = forms
        self.found: list[Diagnostic] = []
        self.poisoned = False

    def attempt(self, work: Callable[[], Any]) -> Any:
        """What `work` gives; None where it failed, or needs what failed before, or so much failed that it is enough."""
        if len(self.found) >= MAX_FAULTS:
            return None
        try:
            return work()
        except DiagnosticError as error:
            self.found += error.diagnostics
        except Poisoned:
            self.poisoned = True
        return None

    def hand_up(self) -> None:
        """Raise what was gathered within a larger piece: diagnostics, or that it lacks what failed before."""
        if self.found:
            raise DiagnosticError(self.found)
        if self.poisoned:
            raise Poisoned

    def stop(self) -> None:
        """Raise what was gathered: sorted by place, a place once, an unknown name once."""
        if self.found:
            raise DiagnosticError([beside_unused(d, self.forms) for d in distinct(self.found)[:MAX_FAULTS]])
        assert not self.poisoned, "a poisoned use without an error"


def place(diagnostic: Diagnostic) -> tuple[str, int]:
    """Where a diagnostic stands among others."""
    span = diagnostic.span
    return (span.source.name, span.start) if span is not None else ("", 0)


def distinct(found: list[Diagnostic]) -> list[Diagnostic]:
    """One fault of a function shows once, however many calls come to it; so does a name that nothing defines."""
    by_place = {(d.code, d.span or d.message): d for d in reversed(found)}
    named: dict[str, list[Diagnostic]] = {}
    kept = []
    for diagnostic in sorted(by_place.values(), key=place):
        if diagnostic.code == "E-NAME-001":
            same = named.setdefault(diagnostic.message, [])
            same.append(diagnostic)
            if len(same) > 1:
                continue
        kept.append(diagnostic)
    return [_with_others(d, named[d.message][1:]) if d.code == "E-NAME-001" else d for d in kept]


def _with_others(first: Diagnostic, others: list[Diagnostic]) -> Diagnostic:
    if not others:
        return first
    more = f" and {len(others) - MAX_OTHERS} more" if len(others) > MAX_OTHERS else ""
    places = ", ".join(str(d.span) for d in others[:MAX_OTHERS])
    return replace(first, notes=(*first.notes, f"also at {places}{more}"))
