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
    """Raise E-RUN-003 for run-time checks that failed, each once: a loss and its gradient look at the same index."""
    if faults:
        told = dict.fromkeys((fault.message, fault.origin.place) for fault in faults)
        raise DiagnosticError(
            [
                Diagnostic(
                    "E-RUN-003",
                    f"{when}: {message}",
                    place,
                    help=("check the data or the index arithmetic; nothing of this step was kept",),
                )
                for message, place in list(told)[:5]
            ]
        )


def zero_weight(update: Update, step: int) -> DiagnosticError:
    """E-RUN-002: the weights of a step add up to 0. Its place is where the weight is made."""
    place = update.objective.graph.output("weight").node.origin.place or update.span
    return DiagnosticError(
        Diagnostic(
            "E-RUN-002",
            f"step {step}: the weights of the loss `{update.objective.name}` add up to 0, so it has no mean",
            place,
            (Label(place, "nothing counts here, in any microbatch of the step"),),
            help=("look at the mask and the data; at least one element of a step must count",),
        )
    )


def non_finite(
    update: Update, step: int, loss: float, bad: Sequence[str], first: Finding | None
) -> DiagnosticError:
    """E-RUN-001: a proposal is not finite, and where the step first met such a value, if that was found."""
    place = first.span if first is not None and first.span is not None and not first.span.source.is_library else None
    return DiagnosticError(
        Diagnostic(
            "E-RUN-001",
            f"step {step}: `{update.name}` proposes values that are not finite for {_some(bad)}; "
            f"its loss is {_shown(loss)}",
            place or update.span,
            labels=(Label(place, first.text),) if first is not None and place is not None else (),
            help=(
                "lower the rate, or bound the gradient with `:clip 1.0`; `:on-nonfinite skip` leaves such updates out",
            ),
            notes=(
                *((first.text,) if first is not None and place is None else ()),
                "nothing of this step was kept; `--resume latest` goes on from the last checkpoint",
            ),
        )
    )


def skipped_line(step: int, update: str, bad: Sequence[str], cause: Finding | None) -> str:
    """What is said of an update that `:on-nonfinite skip` left out. cause: of the first such update alone."""
    text = f"step {step}: the update `{update}` was skipped, its proposals for {_some(bad)} were not finite"
    if cause is None:
        return text
    place = "" if cause.span is None else f"{cause.span}: "
    return f"{text}\n  {place}{cause.text}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shown(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else str(value)
