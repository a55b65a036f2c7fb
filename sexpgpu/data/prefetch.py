"""Batches prepared ahead of the loop: the host gathers while the device computes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
JOIN_TIMEOUT_S = 5.0


class _Shared(Generic[T]):
    """What the thread and its owner both hold. The thread knows nothing of the owner, so a forgotten owner is
    collected, and that stops the thread."""

    def __init__(self, ahead: int) -> None:
        self.ready: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self.room = threading.Semaphore(ahead)
        self.stopping = threading.Event()

    def stop(self) -> None:
        self.stopping.set()
        self.room.release()
        # Wakes a consumer that waits in another thread.
        self.ready.put((None, StopIteration()))


class Prefetcher(Generic[T]):
    """An endless iterator over make(first), make(first + 1), …, made in order by one daemon thread.

    At most `ahead` items are finished or in the making beyond the last one taken. An exception of `make`
    reaches the consumer in its turn, again at each later call. After `close` the iteration ends.

    Raises: whatever `make` raises.
    """

    def __init__(self, make: Callable[[int], T], first: int, ahead: int = 2) -> None:
        assert ahead >= 1, ahead
        self._shared: _Shared[T] = _Shared(ahead)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=_work, args=(self._shared, make, first), name="sexpgpu-prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, self._shared.stop)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._shared.stopping.is_set():
            raise StopIteration
        if self._failure is None:
            item, self._failure = self._shared.ready.get()
            if self._failure is None:
                self._shared.room.release()
                return item  # type: ignore[return-value]  # an entry without a failure is an item, even None
        raise self._failure

    def close(self) -> None:
        """Stop the thread and drop what it prepared; a call of `make` under way is left to finish."""
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)
        while not self._shared.ready.empty():
            self._shared.ready.get_nowait()
        # The drain may have taken the wake-up of a consumer that waits in another thread.
        self._shared.ready.put((None, StopIteration()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _work(shared: _Shared[T], make: Callable[[int], T], first: int) -> None:
    number = first
    while True:
        shared.room.acquire()
        if shared.stopping.is_set():
            return
        try:
            item = make(number)
        except BaseException as error:  # whatever it is, it belongs to the consumer
            shared.ready.put((None, error))
            return
        shared.ready.put((item, None))
        del item  # the queue alone holds it now
        number += 1
