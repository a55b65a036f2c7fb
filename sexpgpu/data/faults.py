"""The one place where this package turns a fault of the user's data into a coded error."""

from __future__ import annotations

from typing import Never

from sexpgpu.diagnostics import Diagnostic, DiagnosticError

MISSING = "E-DATA-001"
DAMAGED = "E-DATA-002"
TOO_SHORT = "E-DATA-003"
OUTSIDE_VOCABULARY = "E-DATA-004"
UNKNOWN_FIELD = "E-DATA-005"
ROWS_DISAGREE = "E-DATA-006"
CHANGED = "E-DATA-007"
NOT_INSTALLED = "E-DATA-008"
NOT_A_NUMBER = "E-DATA-009"


def fail(code: str, message: str, *, help: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> Never:
    """Raise the coded error; the caller that knows the form adds its span.

    Raises: `DiagnosticError` with `code`.
    """
    raise DiagnosticError(Diagnostic(code, message, help=help, notes=notes))


def count(number: int, noun: str) -> str:
    """`number` and `noun` as a reader expects them: `1 row`, `1,500 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
