"""The run folder: where a run's checkpoints, metrics, samples and status live, and which one a resume continues.

runs/FILE/               or FILE-2, FILE-3, …: the folder of one run
  checkpoints/  samples/  metrics.jsonl  status.json  run.json  experiment.sx

Checkpoints may lie under an address of S3 instead; then `run.json` holds it. The rest is appended to, replaced and
locked, which S3 does not do, and is always on a disk.
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
from sexpgpu.s3 import is_s3
from sexpgpu.train.checkpoint import Checkpoint, latest, load
from sexpgpu.train.facts import read_facts
from sexpgpu.train.files import explaining, make_folder
from sexpgpu.train.store import FolderStore, Store, open_store

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


def store_of(folder: RunFolder) -> Store:
    """Where a run saves: the address in its `run.json`, else its own folder. Raises: E-IO-001, E-IO-005"""
    place = read_facts(folder.facts).get("checkpoints")
    return open_store(place if isinstance(place, str) and is_s3(place) else folder.checkpoints)


def new_folder(stem: str, out: Path | None, root: Path) -> RunFolder:
    """A fresh folder: `out`, or the first of `root`/STEM, STEM-2, … that is free. Raises E-IO-001, E-IO-002."""
    if out is not None:
        folder = RunFolder(out)
        if folder.exists:
            elsewhere = "checkpoints" in read_facts(folder.facts)
            raise DiagnosticError(
                Diagnostic(
                    "E-IO-002",
                    f"{out} holds a run already",
                    help=(
                        "--resume latest continues it; another --out begins anew"
                        if elsewhere or next(folder.checkpoints.glob("step-*"), None) is not None
                        else "it has no checkpoint to continue: remove the folder, or give another --out",
                    ),
                )
            )
    else:
        folder = next(f for n in range(1, 100_000) if not (f := RunFolder(root / _numbered(stem, n))).path.exists())
    with explaining("make the run folder", folder.path):
        make_folder(folder.path)
    return folder


def folder_of(place: str, stem: str, out: Path | None, root: Path) -> RunFolder:
    """The folder of the run that saves in `place`: `out`, the newest of STEM's that says so, or a new one."""
    if out is not None:
        folder = RunFolder(out)
        with explaining("make the run folder", out):
            make_folder(out)
        return folder
    for folder in _folders(stem, root):
        if read_facts(folder.facts).get("checkpoints") == place:
            return folder
    return new_folder(stem, None, root)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `--resume` means. folder: None where an address was given, which no folder belongs to.
    notes: what was skipped as damaged."""

    folder: RunFolder | None
    store: Store
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()


def resumed(
    which: str, stem: str, out: Path | None, root: Path, option: str = "--resume", place: str | None = None
) -> Resumed:
    """The checkpoint that `--resume latest` or `--resume PATH` means.

    option: what the user gave `which` by. place: where the run saves, if that is not in its folder.

    Raises: E-CKPT-001 where there is none, E-CKPT-002 where PATH is damaged, E-CKPT-004 where it is of a newer version.
    """
    if is_s3(which):
        above, _, name = which.rstrip("/").rpartition("/")
        if name.startswith(("step-", "superseded-step-")):
            store = open_store(above)
            return Resumed(None, store, load(store, name))
        place, which = which.rstrip("/"), "latest"
    if place is not None and which == "latest":
        found = _newest(None, open_store(place), option)
        if found is None:
            raise _no_checkpoint(place, option)
        return found
    if which != "latest":
        path = Path(which)
        if path.name == "checkpoints":
            path = path.parent
        if path.parent.name == "checkpoints":
            store = FolderStore(path.parent)
            return Resumed(RunFolder(path.parent.parent), store, load(store, path.name))
        candidates = [RunFolder(path)]
    elif out is not None:
        candidates = [RunFolder(out)]
    else:
        candidates = _folders(stem, root)
    for folder in candidates:
        found = _newest(folder, store_of(folder), option)
        if found is not None:
            return found
    raise _no_checkpoint(str(candidates[0].path) if candidates else str(root / stem), option)


def _folders(stem: str, root: Path) -> list[RunFolder]:
    """The folders of a file's runs, the one that changed last first."""
    named = [root / _numbered(stem, n) for n in range(1, 10_000)]
    existing = [p for p in named if p.exists()]
    return [RunFolder(p) for p in sorted(existing, key=lambda p: p.stat().st_mtime_ns, reverse=True)]


def _newest(folder: RunFolder | None, store: Store, option: str) -> Resumed | None:
    """The newest checkpoint of a store that is not damaged; None where it has none at all."""
    found, skipped = latest(store)
    notes = tuple(f"{name} is damaged and was skipped: {reason}" for name, reason in skipped)
    if found is not None:
        return Resumed(folder, store, found, notes)
    if not notes:
        return None
    message = f"every checkpoint in {store.place} is damaged"
    raise DiagnosticError(Diagnostic("E-CKPT-002", message, help=(_anew(option),), notes=notes))


def _no_checkpoint(where: str, option: str) -> DiagnosticError:
    return DiagnosticError(
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
