"""Counting: handled, skipped with a reason, wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What became of the cases of one suite, by group."""

    handled: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def right(self, group: str) -> None:
        self.handled[group] += 1

    def skip(self, group: str, reason: str) -> None:
        self.skipped[group][reason] += 1

    def fault(self, group: str, name: str, what: str) -> None:
        self.wrong[group].append(f"{name}: {what}")

    @property
    def groups(self) -> list[str]:
        """The groups in the order in which they were met."""
        return list(dict.fromkeys([*self.handled, *self.skipped, *self.wrong]))

    def row(self, group: str) -> tuple[int, int, int]:
        """Handled, skipped and wrong cases of a group."""
        return self.handled[group], sum(self.skipped[group].values()), len(self.wrong[group])

    def total(self) -> tuple[int, int, int]:
        """Handled, skipped and wrong cases of all groups."""
        rows = [self.row(group) for group in self.groups]
        return tuple(map(sum, zip(*rows, strict=True))) if rows else (0, 0, 0)  # type: ignore[return-value]
