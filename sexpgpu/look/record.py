"""A run as its folder tells it: in what state it is, what it saved, what became of it.

Flow: commands find the folder by name, `read_run` reads it; pages and tables are made of the `RunRecord`.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
from sexpgpu.look.series import Stream, read_stream
from sexpgpu.train import files
from sexpgpu.train.checkpoint import Best, Outline, outline
from sexpgpu.train.facts import read_facts
from sexpgpu.train.folder import RunFolder, is_held, store_of
from sexpgpu.train.store import Store

ROOT = Path("runs")
_ENDINGS = {2: "nd", 3: "rd"}
_CHECKPOINT = re.compile(r"(superseded-)?step-([0-9]{8,18})(-[0-9]+)?")


@dataclass(frozen=True)
class State:
    """How a run stands. kind: `done`, `running`, `interrupted`, `failed`, `killed` or `empty` (no step was made).
    code: of what it failed with."""

    kind: str
    code: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.code}" if self.code else self.kind


@dataclass(frozen=True)
class Saved:
    """A checkpoint as a table shows it. saved_s: seconds since the epoch."""

    store: Store
    name: str
    step: int
    saved_s: float
    superseded: bool
    outline: Outline

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return self.outline.num_bytes

    @property
    def damage(self) -> str | None:
        """None for one that is whole."""
        return self.outline.damage


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run's folder, read."""

    folder: RunFolder
    state: State
    status: Mapping[str, Any]
    facts: Mapping[str, Any]
    stream: Stream

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the metrics that are trained on."""
        return tuple(dict.fromkeys(self.facts.get("losses", {}).values()))

    @property
    def steps(self) -> int | None:
        """The last step to make, where that is known."""
        return self.status.get("steps") or self.facts.get("steps")

    @property
    def annotations(self) -> dict[str, list[Mapping[str, Any]]]:
        """Annotations by kind."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for each in self.stream.annotations:
            found.setdefault(str(each["annotation"]), []).append(each)
        return found


def find_run(name: str) -> RunFolder:
    """The folder that `name` means: its path, or a name under `runs`.

    Raises: E-RUN-006
    """
    for path in (Path(name), ROOT / name):
        if _is_run(path):
            return RunFolder(path)
    names = [run.path.name for run in list_runs(ROOT)]
    stem = Path(name).stem if name.endswith(".sx") else None
    of_file = [n for n in names if stem is not None and re.fullmatch(re.escape(stem) + r"(-\d+)?", n)]
    near = nearest(Path(name).name, names)
    if of_file:
        remedy = f"that is a file of an experiment; its runs: {', '.join(str(ROOT / n) for n in of_file)}"
    elif near is not None:
        remedy = f"`{ROOT / near}` is a near name"
    else:
        remedy = "give a run's folder, as `sexpgpu run` prints it; `sexpgpu runs` lists those under `runs`"
    raise DiagnosticError(Diagnostic("E-RUN-006", f"there is no run in `{name}`", help=(remedy,)))


def list_runs(root: Path) -> list[RunFolder]:
    """Every run directly under `root`, the one that moved last first. Raises E-IO-001."""
    if not root.is_dir():
        return []
    with files.explaining("read", root):
        found = [RunFolder(path) for path in root.iterdir() if _is_run(path)]
        return sorted(found, key=moved_s, reverse=True)


def moved_s(folder: RunFolder) -> float:
    """When a run last wrote of itself, in seconds since the epoch."""
    return max((p.stat().st_mtime for p in (folder.status, folder.metrics, folder.facts) if p.exists()), default=0.0)


def _is_run(path: Path) -> bool:
    folder = RunFolder(path)
    return path.is_dir() and (folder.exists or folder.facts.exists())


def read_status(folder: RunFolder) -> dict[str, Any]:
    """The status file; empty where there is none that can be read as one. Raises E-IO-001."""
    if not folder.status.exists():
        return {}
    with files.explaining("read", folder.status):
        data = folder.status.read_bytes()
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(folder: RunFolder, status: Mapping[str, Any]) -> State:
    """How a run stands, by its status file and by whether a process holds its folder."""
    if is_held(folder):
        return State("running")
    phase = status.get("phase")
    if phase == "training":
        return State("killed")
    if phase in ("done", "interrupted", "failed"):
        return State(phase, status.get("error_code") if phase == "failed" else None)
    return State("empty")


def read_run(folder: RunFolder) -> RunRecord:
    """Everything but the checkpoints. Raises E-IO-001."""
    status = read_status(folder)
    return RunRecord(folder, state_of(folder, status), status, read_facts(folder.facts), read_stream(folder.metrics))


def saved(store: Store, verify: bool = False) -> list[Saved]:
    """Every checkpoint, by step; superseded ones after those that count.

    verify: read the whole state and compare its digest; else only records and sizes.
    Raises: E-IO-001
    """
    found = []
    with files.explaining("read", store.place):
        for name in store.names():
            match = _CHECKPOINT.fullmatch(name)
            if match is None:
                continue
            with suppress(FileNotFoundError):  # the run removed it meanwhile
                saved_s = store.saved_s(name)
                outlined = outline(store, name, verify)
                found.append(Saved(store, name, int(match[2]), saved_s, match[1] is not None, outlined))
    return sorted(found, key=lambda each: (each.superseded, each.step, each.name))


def saved_by(folder: RunFolder, verify: bool = False) -> list[Saved]:
    """The checkpoints of a run, wherever it saves. Raises: E-IO-001, E-IO-005"""
    return saved(store_of(folder), verify)


def why_kept(each: Saved, found: Sequence[Saved], facts: Mapping[str, Any], last_step: int | None) -> str:
    """By which rule a checkpoint is there. found: all of the run. last_step: where the run ended."""
    if each.superseded:
        return "a resume began before it; never chosen"
    rule = facts.get("checkpoint", {})
    every, keep = rule.get("every"), rule.get("keep")
    if each.step == last_step:
        reason = "the last step"
    elif every and each.step % every == 0:
        reason = f"every {every}"
    elif each.step == 1:
        reason = "the first step"
    elif every or last_step is not None:
        reason = "where the run was stopped"
    else:
        reason = "saved"
    live = [one for one in found if not one.superseded]
    reasons = [reason]
    if rule.get("best") and each is _best(live, Best(rule["best"], bool(rule.get("higher")))):
        reasons.append(f"best {rule['best']}, {each.outline.scores[rule['best']]:.6g}")
    rank = sum(one.step >= each.step for one in live)
    if keep and rank <= keep:
        nth = "newest" if rank == 1 else f"{rank}{_ENDINGS.get(rank, 'th')} newest"
        reasons.append(f"{nth} of {keep} kept")
    return "; ".join(reasons)


def _best(live: Sequence[Saved], best: Best) -> Saved | None:
    scored = [one for one in live if best.series in one.outline.scores]
    return min(scored, key=lambda one: (best.order(one.outline.scores[best.series]), one.step), default=None)


def heartbeat_s(status: Mapping[str, Any]) -> float | None:
    """When the status file was written, in seconds since the epoch."""
    try:
        return datetime.datetime.fromisoformat(str(status.get("heartbeat"))).timestamp()
    except ValueError:
        return None


def age(then_s: float, now_s: float | None = None) -> str:
    """How long ago something was, in one unit: `12 s`, `5 min`, `3 h`, `9 d`."""
    seconds = max(0.0, (time.time() if now_s is None else now_s) - then_s)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 * size if unit == "d" else size):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
