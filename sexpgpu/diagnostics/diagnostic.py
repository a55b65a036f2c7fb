"""The diagnostic as data: what the stages of the flow build, and what the renderers read.

A rule that finds a fault fills in a `Diagnostic`; it never formats text for a terminal. The renderers in turn
know no rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sexpgpu.diagnostics.codes import CODES
from sexpgpu.source import Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Label:
    """A message at a place of the source."""

    span: Span
    message: str


@dataclass(frozen=True)
class Diagnostic:
    """One fault: the headline says what is wrong, `help` says what to do, `notes` say what else bears on it.

    `span` is the place to blame. A label whose span equals it carries the message printed there; all other
    labels are secondary. The letter of the code decides the severity.
    """

    code: str
    message: str
    span: Span | None = None
    labels: tuple[Label, ...] = ()
    help: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    severity: Severity = "error"

    def __post_init__(self) -> None:
        """Hold the diagnostic to the table of codes."""
        assert self.code in CODES, f"unlisted code {self.code}: {self.message}"
        parts = (self.labels, self.help, self.notes)
        assert all(type(part) is tuple for part in parts), parts
        if self.code.startswith("W-"):
            object.__setattr__(self, "severity", "warning")
        assert (self.severity == "warning") == self.code.startswith("W-"), (self.code, self.severity)


class DiagnosticError(Exception):
    """What a stage raises when it cannot go on; it carries every diagnostic of the stage."""

    diagnostics: tuple[Diagnostic, ...]

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        """Take one diagnostic or many."""
        many = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        assert many, "a DiagnosticError without a diagnostic"
        super().__init__(many)
        self.diagnostics = many

    def __str__(self) -> str:
        """One line a diagnostic, for logs and tracebacks."""
        return "\n".join(_one_line(diagnostic) for diagnostic in self.diagnostics)


def _one_line(diagnostic: Diagnostic) -> str:
    place = f"{diagnostic.span}: " if diagnostic.span is not None else ""
    return f"{place}{diagnostic.code}: {diagnostic.message}"
