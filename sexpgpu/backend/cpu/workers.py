"""Threads that share independent calls, and the limit that keeps BLAS on the thread that calls it.

Flow: `steps` and `blocks` cut work into pieces that depend on shapes alone and hand them over. Which thread
takes which piece is chance and changes no result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Work = Callable[[int, Iterator[int]], None]
"""Work(lane, numbers): do the pieces whose numbers come, on the thread that is `lane`."""


class _Task:
    """Pieces that several threads take from one iterator."""

    def __init__(self, work: Work, num_pieces: int) -> None:
        self.work = work
        self.numbers = iter(range(num_pieces))
        self.joined: list[int] = []
        self.left: SimpleQueue[BaseException | None] = SimpleQueue()
        self.num_left = 0

    def help(self, lane: int) -> None:
        # Whoever is not in `joined` when the numbers have run out finds none.
        self.joined.append(lane)
        error: BaseException | None = None
        try:
            self.work(lane, self.numbers)
        except BaseException as caught:
            error = caught
        self.left.put(error)

    def settle(self) -> BaseException | None:
        """Wait until no thread is at work any more; an error of one of them."""
        for _ in self.numbers:
            pass
        found = None
        while self.num_left < len(self.joined):
            error = self.left.get()
            self.num_left += 1
            found = found or error
        return found


class Workers:
    """`num_threads` threads, of which the one that calls is the first: lane 0."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._task: _Task | None = None
        self._scratch_bytes = 0
        self._scratch: list[np.ndarray] = [np.empty(0, np.uint8)] * num_threads
        self._threads = [
            threading.Thread(target=self._help, args=(lane,), name=f"sexpgpu-cpu-{lane}", daemon=True)
            for lane in range(1, num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Work, num_pieces: int) -> None:
        """Have all of `num_pieces` done, and wait."""
        if num_pieces < 2 or not self._threads:
            work(0, iter(range(num_pieces)))
            return
        task = self._task = _Task(work, num_pieces)
        for _ in range(min(len(self._threads), num_pieces - 1)):
            self._tasks.put(task)
        try:
            work(0, task.numbers)
        finally:
            error = task.settle()
        self._task = None
        if error is not None:
            raise error

    def settle(self) -> None:
        """Wait until nothing writes any more; an interrupted call may have left threads at work."""
        if self._task is not None:
            self._task.settle()
            self._task = None

    def reserve(self, num_bytes: int) -> None:
        """Have at least `num_bytes` of scratch for each lane."""
        self._scratch_bytes = max(self._scratch_bytes, num_bytes)

    def scratch(self, lane: int) -> np.ndarray:
        """The scratch memory of a lane, as bytes. What it holds is lost between calls."""
        if self._scratch[lane].size < self._scratch_bytes:
            self._scratch[lane] = np.empty(self._scratch_bytes, np.uint8)
        return self._scratch[lane]

    def close(self) -> None:
        """End the threads."""
        self.settle()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._scratch = [np.empty(0, np.uint8)] * self.num_threads

    def _help(self, lane: int) -> None:
        with np.errstate(all="ignore"):
            while (task := self._tasks.get()) is not None:
                task.help(lane)
                del task


class SingleThreadedBlas:
    """BLAS calls stay on the thread that makes them for as long as any one of these is held.

    Its own threads wait by spinning, which on a busy machine costs more than they save; and how it cuts a
    product would depend on their number.
    """

    _lock = threading.Lock()
    _holders = 0
    _limits: threadpool_limits | None = None

    def __init__(self) -> None:
        cls = SingleThreadedBlas
        self._held = True
        with cls._lock:
            cls._holders += 1
            if cls._holders == 1:
                cls._limits = threadpool_limits(1, user_api="blas")

    def release(self) -> None:
        """Let go; the last one restores what was before. Releasing twice is releasing once."""
        cls = SingleThreadedBlas
        with cls._lock:
            if not self._held:
                return
            self._held = False
            cls._holders -= 1
            if cls._holders == 0 and cls._limits is not None:
                cls._limits.restore_original_limits()
                cls._limits = None
