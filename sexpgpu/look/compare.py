"""Two runs compared: their configurations, the first number whose bits differ, their last common checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.look.record import RunRecord, Saved
from sexpgpu.look.series import Series
from sexpgpu.train import files
from sexpgpu.train.checkpoint import state_digest

MACHINE = "runtime/"
"""Series of the machine and not of the experiment: they always differ."""


@dataclass(frozen=True)
class Difference:
    """The first point that differs: a series, its step, and the two values."""

    series: str
    step: int
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """What two streams have in common. num_equal: points with equal bits before the first difference.
    only_first, only_second: series with points up to `last_common`, the last step of both, that the other lacks."""

    num_equal: int
    difference: Difference | None
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    last_steps: tuple[int, int]

    @property
    def equal(self) -> bool:
        """Whether nothing differs, the lengths included."""
        return (
            self.difference is None
            and not self.only_first
            and not self.only_second
            and self.last_steps[0] == self.last_steps[1]
        )


def compare(first: Mapping[str, Series], second: Mapping[str, Series]) -> Comparison:
    """Two runs' series, but for those of the machine; a point counts as equal where all bits are, NaN and zeros too."""
    ours, theirs = ({n: s for n, s in each.items() if not n.startswith(MACHINE)} for each in (first, second))
    found: list[Difference] = []
    only: tuple[list[str], list[str]] = ([], [])
    last = tuple(max((int(s.steps[-1]) for s in each.values()), default=0) for each in (ours, theirs))
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            only[name in theirs].append(name)
            continue
        a, b = ours[name], theirs[name]
        steps, i, j = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
        differ = np.flatnonzero(a.values[i].view(np.int64) != b.values[j].view(np.int64))
        if len(differ):
            at = differ[0]
            found.append(Difference(name, int(steps[at]), float(a.values[i][at]), float(b.values[j][at])))
    order = {name: index for index, name in enumerate(dict.fromkeys([*ours, *theirs]))}
    difference = min(found, key=lambda d: (d.step, order[d.series]), default=None)
    end = min(last) + 1 if difference is None else difference.step
    num_equal = sum(
        len(np.intersect1d(ours[n].steps[ours[n].steps < end], theirs[n].steps, assume_unique=True))
        for n in ours
        if n in theirs
    )
    return Comparison(num_equal, difference, tuple(only[0]), tuple(only[1]), (last[0], last[1]))


def configuration(first: RunRecord, second: RunRecord) -> Iterator[str]:
    """Lines that say how two runs were set up otherwise: facts one by one, then the files as a unified diff."""
    for key in ("run", "overrides", "seed", "microbatches", "steps", "device", "version", "stacking"):
        a, b = first.facts.get(key), second.facts.get(key)
        if key == "overrides":
            yield from _overrides(dict(a or {}), dict(b or {}))
        elif a != b:
            yield f"{key}: {_told(a)} | {_told(b)}"
    yield from _texts(first, second)


def _overrides(a: dict[str, str], b: dict[str, str]) -> Iterator[str]:
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            told = name if name == "variant" else f"--set {name}"
            yield f"{told}: {_told(a.get(name))} | {_told(b.get(name))}"


def _texts(first: RunRecord, second: RunRecord) -> Iterator[str]:
    ours, theirs = first.folder.text, second.folder.text
    yield from difflib.unified_diff(_lines(ours), _lines(theirs), str(ours), str(theirs), lineterm="", n=1)
    a, b = (dict(run.facts.get("included") or {}) for run in (first, second))
    for name in dict.fromkeys([*a, *b]):
        old, new = (str(texts.get(name, "")).splitlines() for texts in (a, b))
        yield from difflib.unified_diff(old, new, name, name, lineterm="", n=1)


def _lines(path: Path) -> list[str]:
    with files.explaining("read", path):
        return path.read_text("utf-8", "replace").splitlines() if path.exists() else []


def _told(value: Any) -> str:
    return "none" if value in (None, "") else str(value)


def common_checkpoint(first: Sequence[Saved], second: Sequence[Saved]) -> tuple[int, bool] | None:
    """The last step that both have saved, and whether the states are the same bytes, by their records."""
    ours, theirs = ({s.step: s for s in each if not s.superseded and not s.damage} for each in (first, second))
    steps = ours.keys() & theirs.keys()
    if not steps:
        return None
    step = max(steps)
    return step, _digest(ours[step]) == _digest(theirs[step])


def equal_checkpoint(first: Sequence[Saved], second: Sequence[Saved], before: int) -> tuple[int, Saved | None]:
    """The last step before `before` that both have saved with the same bytes, and the first's; 0 if there is none."""
    ours, theirs = ({s.step: s for s in each if not s.superseded and not s.damage} for each in (first, second))
    for step in sorted(ours.keys() & theirs.keys(), reverse=True):
        if step < before and _digest(ours[step]) == _digest(theirs[step]):
            return step, ours[step]
    return 0, None


def _digest(saved: Saved) -> str:
    return state_digest(saved.store, saved.name)
