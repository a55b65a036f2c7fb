"""What can go wrong while a run computes, as diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, Label
from sexpgpu.lang.experiment import Update

if TYPE_CHECKING:
    from sexpgpu.backend.protocol import Fault
    from sexpgpu.train.blame import Finding


def stop_on_faults(faults: Sequence[Fault], when: str) -> None:
    """Raise E-RUN-003 for run-time checks that failed."""
    if faults:
        # A gather and the scatter of its gradient find the same index at the same place.
        told = list(dict.fromkeys((fault.message, fault.origin.place) for fault in faults))
        raise DiagnosticError(
            [
                Diagnostic(
                    "E-RUN-003",
                    f"{when}: {message}",
                    place,
                    help=("check the data or the index arithmetic; nothing of this step was kept",),
                )
                for message, place in told[:5]
            ]
        )


def zero_weight(update: Update, step: int) -> DiagnosticError:
    """E-RUN-002: the weights of a step add up to 0."""
    return DiagnosticError(
        Diagnostic(
            "E-RUN-002",
            f"step {step}: the weights of the loss `{update.objective.name}` add up to 0",
            update.span,
            help=("a whole step had nothing to average; look at the mask and the data",),
        )
    )


def non_finite(
    update: Update, step: int, loss: float, bad: Sequence[str], first: Finding | None
) -> DiagnosticError:
    """E-RUN-001: a proposal is not finite, and where the step first met such a value, if that was found."""
    place = first.span if first is not None and first.span is not None and not first.span.source.is_library else None
    shown = ", ".join(f"`{name}`" for name in bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
    return DiagnosticError(
        Diagnostic(
            "E-RUN-001",
            f"step {step}: `{update.name}` proposes values that are not finite for {shown}; its loss is {_shown(loss)}",
            place or update.span,
            labels=(Label(place, first.text),) if first is not None and place is not None else (),
            notes=(first.text,) if first is not None and place is None else (),
            help=(
                "lower the rate, add `:clip 1.0`, or `:on-nonfinite skip`; the last checkpoint is older",
            ),
        )
    )


def _shown(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else str(value)
