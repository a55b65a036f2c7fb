"""The run folder: where a run's checkpoints, metrics, samples and status live, and which one a resume continues.

runs/FILE/               or FILE-2, FILE-3, …: the folder of one run
  checkpoints/  samples/  metrics.jsonl  status.json  run.json  experiment.sx
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.train.checkpoint import Checkpoint, clean, find_latest, load
from sexpgpu.train.files import explaining

_ASKING_S = 0.1
"""Longer than `is_held` keeps the lock for its question."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        """The folder of generated samples."""
        return self.path / "samples"

    @property
    def metrics(self) -> Path:
        """The metrics stream."""
        return self.path / "metrics.jsonl"

    @property
    def status(self) -> Path:
        """The status file."""
        return self.path / "status.json"

    @property
    def facts(self) -> Path:
        """What was known before the first step."""
        return self.path / "run.json"

    @property
    def text(self) -> Path:
        """The experiment's text."""
        return self.path / "experiment.sx"

    @property
    def lock(self) -> Path:
        """An empty file that the process that trains here keeps locked."""
        return self.path / ".lock"

    @property
    def exists(self) -> bool:
        """Whether a run was here before."""
        return self.metrics.exists() or self.checkpoints.exists()


def sample_name(generator: str, step: int) -> str:
    """What the file of a sample is called, without its ending: one name, wherever a generator's own would lead."""
    name = generator.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return f"{name}-{step:08d}"


@contextlib.contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """Keep a run's folder to this process; the system lets go of it with the process, however that ends.

    Raises E-IO-003 where another process trains in it.
    """
    with explaining("open", folder.lock):
        # To be written: some network file systems lock nothing else.
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _locked(descriptor, fcntl.LOCK_EX):
            time.sleep(_ASKING_S)
        if not _locked(descriptor, fcntl.LOCK_EX):
            raise DiagnosticError(
                Diagnostic(
                    "E-IO-003",
                    f"another process is training in {folder.path}",
                    help=(f"`sexpgpu watch {folder.path}` follows it; end that process before resuming its run",),
                )
            )
        yield
    finally:
        os.close(descriptor)


def is_held(folder: RunFolder) -> bool:
    """Whether a process is training in a run's folder now."""
    try:
        descriptor = os.open(folder.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    """Take a lock, without waiting; a file system that has none never refuses one."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def new_folder(stem: str, out: Path | None, root: Path) -> RunFolder:
    """A fresh folder: `out`, or the first of `root`/STEM, STEM-2, … that is free. Raises E-IO-001."""
    if out is not None:
        folder = RunFolder(out)
        if folder.exists:
            raise DiagnosticError(
                Diagnostic(
                    "E-IO-002",
                    f"{out} holds a run already",
                    help=(
                        "--resume latest continues it; another --out begins anew"
                        if next(folder.checkpoints.glob("step-*"), None) is not None
                        else "it has no checkpoint to continue: remove the folder, or give another --out",
                    ),
                )
            )
    else:
        folder = next(f for n in range(1, 100_000) if not (f := RunFolder(root / _numbered(stem, n))).path.exists())
    with explaining("make the run folder", folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def resumed(
    which: str, stem: str, out: Path | None, root: Path, option: str = "--resume"
) -> tuple[RunFolder, Checkpoint, list[str]]:
    """The folder and checkpoint that `--resume latest` or `--resume PATH` means, and what was skipped as damaged.

    option: what the user gave `which` by.

    Raises: E-CKPT-001 where there is none, E-CKPT-002 where PATH is damaged.
    """
    if which != "latest":
        path = Path(which)
        if path.name == "checkpoints":
            path = path.parent
        if path.parent.name == "checkpoints":
            return RunFolder(path.parent.parent), load(path), []
        candidates = [RunFolder(path)]
    elif out is not None:
        candidates = [RunFolder(out)]
    else:
        named = [root / _numbered(stem, n) for n in range(1, 10_000)]
        existing = [p for p in named if p.exists()]
        candidates = [RunFolder(p) for p in sorted(existing, key=lambda p: p.stat().st_mtime_ns, reverse=True)]
    for folder in candidates:
        if not folder.checkpoints.exists():
            continue
        clean(folder.checkpoints)
        found, skipped = find_latest(folder.checkpoints)
        notes = [f"{path.name} is damaged and was skipped: {reason}" for path, reason in skipped]
        if found is not None:
            return folder, load(found), notes
        if notes:
            raise DiagnosticError(
                Diagnostic(
                    "E-CKPT-002",
                    f"every checkpoint in {folder.checkpoints} is damaged",
                    help=(_anew(option),),
                    notes=tuple(notes),
                )
            )
    where = str(candidates[0].path) if candidates else str(root / stem)
    raise DiagnosticError(
        Diagnostic(
            "E-CKPT-001",
            f"there is no checkpoint in {where}",
            help=(f"{_anew(option)}, or name a run folder or a checkpoint: {option} PATH",),
        )
    )


def _anew(option: str) -> str:
    return "run without --resume" if option == "--resume" else "train first, with `sexpgpu run`"


def _numbered(stem: str, n: int) -> str:
    return stem if n == 1 else f"{stem}-{n}"
