"""Following a run that goes on in another process, by reading what its folder gains.

Flow: `sexpgpu watch` asks a `Follower` now and then, and shows what it gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sexpgpu.look.record import State, read_status, state_of
from sexpgpu.look.series import gather
from sexpgpu.train import files
from sexpgpu.train.folder import RunFolder
from sexpgpu.train.metrics import records

_NUM_BEFORE = 5
"""Lines of news from before the first look."""


class Tail:
    """What a growing stream has gained since it was asked last. A stream that was replaced, as a resume does, begins
    anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = 0
        self._offset = 0
        self.num_restarts = 0

    def read(self) -> list[dict[str, Any]]:
        """The records of all lines that are complete by now and were not given before. Raises E-IO-001."""
        if not self._path.exists():
            return []
        with files.explaining("read", self._path), open(self._path, "rb") as stream:
            found = os.fstat(stream.fileno())
            if found.st_ino != self._file or found.st_size < self._offset:
                self.num_restarts += self._file != 0
                self._file, self._offset = found.st_ino, 0
            stream.seek(self._offset)
            complete, newline, _ = stream.read().rpartition(b"\n")
        data = complete + newline
        self._offset += len(data)
        return records(data)


@dataclass
class View:
    """How a run stands. losses: of the first update, all so far. evaluations: the newest value of each.
    sample: the newest text, with its step. news: what came since the last look, as lines."""

    state: State
    status: Mapping[str, Any]
    losses: list[float] = field(default_factory=list)
    evaluations: dict[str, float] = field(default_factory=dict)
    sample: tuple[int, str] | None = None
    news: list[str] = field(default_factory=list)


class Follower:
    """Looks at a run's folder again and again; writes nothing there."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tail = Tail(folder.metrics)
        self._view = View(State("empty"), {})
        self._looked = False

    def look(self) -> View:
        """How the run stands now. Raises E-IO-001."""
        # The state first: what a run that has ended wrote before is then all there.
        state = state_of(self._folder, read_status(self._folder))
        restarts = self._tail.num_restarts
        new = self._tail.read()
        view = self._view
        if self._tail.num_restarts > restarts:
            view.losses.clear()
        view.state, view.status, view.news = state, read_status(self._folder), []
        series, annotations = gather(new)
        main = next((n for n in series if n.startswith("train/") and n.endswith("/loss")), "")
        if main:
            view.losses += series[main].values.tolist()
        by_step: dict[int, list[str]] = {}
        for name, each in series.items():
            if name.startswith("eval/"):
                view.evaluations[name.removeprefix("eval/")] = each.last
                for step, value in zip(each.steps.tolist(), each.values.tolist(), strict=True):
                    by_step.setdefault(step, []).append(f"{name.removeprefix('eval/')} {value:.4f}")
        for note in annotations:
            step, text = int(note["step"]), str(note["text"])
            if note["annotation"] == "sample":
                if view.sample is None or not text.startswith("saved as "):  # a text says more than a file's name
                    view.sample = (step, text)
                text = f"{note.get('generator', 'sample')}: {text}"
            by_step.setdefault(step, []).append(text.removeprefix(f"step {step}: "))
        news = [f"step {step:>6}  {text}" for step in sorted(by_step) for text in by_step[step]]
        view.news = news if self._looked else news[-_NUM_BEFORE:]
        self._looked = True
        return view
