"""Early stop: the best value of a series so far, and how many values in a row have not bettered it.

Flow: the loop shows it the points of every step; a checkpoint holds what it knows, so that a resumed run stops where
one that was not interrupted does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sexpgpu.lang.experiment import StopRule


class EarlyStop:
    """Follows the series of a rule. Without a rule it never has enough."""

    def __init__(self, rule: StopRule | None, known: Mapping[str, Any] | None = None) -> None:
        """known: what `record` gave when a checkpoint was made; that of another series counts for nothing."""
        self.rule = rule
        same = rule is not None and known is not None and known["series"] == rule.series
        self._best: float | None = known["best"] if same and known is not None else None
        self._best_step: int = known["best_step"] if same and known is not None else 0
        self._num_since: int = known["since"] if same and known is not None else 0

    def see(self, step: int, points: Mapping[str, Any]) -> None:
        """Take a value from the points of a step, if one is there and due: what is written at the last step alone does
        not count, since another run may go on there."""
        rule = self.rule
        if rule is None or rule.series not in points or not (step == 1 or step % rule.every == 0):
            return
        value = float(points[rule.series])
        if math.isfinite(value) and (self._best is None or self._is_better(value, self._best, rule)):
            self._best, self._best_step, self._num_since = value, step, 0
        else:
            self._num_since += 1

    @staticmethod
    def _is_better(value: float, best: float, rule: StopRule) -> bool:
        return value > best + rule.by if rule.rising else value < best - rule.by

    @property
    def reason(self) -> str | None:
        """Why to stop, where the patience is at its end."""
        rule = self.rule
        if rule is None or self._num_since < rule.patience:
            return None
        times = "1 value" if rule.patience == 1 else f"{rule.patience} values in a row"
        if self._best is None:
            return f"{rule.series} was no number in {times}"
        better = "rise above" if rule.rising else "fall below"
        by = f" by more than {rule.by:g}" if rule.by else ""
        return f"{rule.series} did not {better} {self._best:.6g}, its value at step {self._best_step},{by} in {times}"

    def record(self) -> dict[str, Any] | None:
        """What is known, for a checkpoint."""
        if self.rule is None:
            return None
        return {
            "series": self.rule.series, "best": self._best, "best_step": self._best_step, "since": self._num_since,
        }  # fmt: skip
