"""Saving while a run goes on: a step waits for one copy in memory, a thread of low priority does the rest.

At most one write is under way. A write that fails is told by the next call; what was saved before it stays.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from sexpgpu.train import checkpoint as checkpoints
from sexpgpu.train.checkpoint import Best
from sexpgpu.train.store import Store

NICENESS = 15
"""Of the writing thread, on Linux: it lives on what the run leaves idle, and on some percent of a core beside it."""
REST_BYTES = 8 << 20
"""What the thread writes before it rests for as long as that took: the run has all cores to itself then."""


class CheckpointWriter:
    """Writes checkpoints to `store`, and removes those that are no longer kept after each.

    keep, best: see `checkpoint.prune`.
    """

    def __init__(self, store: Store, keep: int, best: Best | None = None) -> None:
        self.store = store
        self.keep = keep
        self.best = best
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._hurry = threading.Event()
        self._saved: str | None = None

    def begin(self, step: int, snapshot: Callable[[], Mapping[str, np.ndarray]], meta: Mapping[str, Any]) -> None:
        """Write the checkpoint of `step` on a thread; wait for the write before it, and for the copy.

        snapshot: copies the tensors, to where they stay as they are until it is called again.
        Raises: what the write before it failed with.
        """
        self.wait()
        self._hurry.clear()
        tensors = snapshot()
        # A daemon: who asks a second time to stop at once is not kept waiting by a disk.
        self._thread = threading.Thread(target=self._work, args=(step, tensors, meta), name="checkpoint", daemon=True)
        self._thread.start()

    def save(self, step: int, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write the checkpoint of `step` from where its tensors are, on this thread.

        Raises: E-IO-001, E-IO-003
        """
        self.wait()
        self._hurry.set()
        self._write(step, tensors, meta)

    def wait(self) -> None:
        """Until no write is under way. Raises: what it failed with."""
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def saved(self) -> str | None:
        """The newest checkpoint that was published since the last call, by name; None where there is none.

        Raises: what a write failed with.
        """
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        saved, self._saved = self._saved, None
        return saved

    def prune(self) -> None:
        """Remove what is no longer kept. Raises: E-IO-001"""
        checkpoints.prune(self.store, self.keep, self.best)

    def _work(self, step: int, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        if sys.platform == "linux":  # elsewhere a priority is of a whole process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            self._write(step, tensors, meta)
        except BaseException as error:
            self._failure = error

    def _write(self, step: int, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        name = checkpoints.save(self.store, step, tensors, meta, self._paced)
        self._saved = name
        self.prune()

    def _paced(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        """The same bytes with rests between them, until somebody waits."""
        began = time.monotonic()
        for piece in pieces:
            for start in range(0, len(piece), REST_BYTES):
                yield piece[start : start + REST_BYTES]
                self._hurry.wait(time.monotonic() - began)
                began = time.monotonic()
