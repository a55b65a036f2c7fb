"""Buffers for reuse: what the device keeps of memory that nothing needs now.

An idle buffer waits for the next request of about its length. At first at most 256 MiB wait. A longer request says that
a large model trains here: from then on up to 8 GiB wait, or half of what Metal recommends to hold, and what becomes
idle is offered to the system, which may take it where memory is short. The limits count lengths, not what is resident.

Flow: `session` takes what a plan holds when it is opened, and what one chunk of calls needs for as long as that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sexpgpu.backend.metal.driver import Driver, OutOfMemory

MIB = 1 << 20
SMALL_LIMIT_BYTES = 256 * MIB
"""Idle bytes before a longer request was met, and later of buffers that the system cannot take."""
LARGE_LIMIT_BYTES = 8 << 30
PAGE_BYTES = 1 << 14
"""Lengths are multiples of a page."""
SLACK = 8
"""A buffer is used again for a request that leaves no more than an eighth of it idle."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of Metal's, and its length."""

    metal: Any
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Idle:
    """A buffer that waits. offered: to the system."""

    buffer: Buffer
    offered: bool


class Pool:
    """The buffers of one device."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._idle: list[_Idle] = []
        self.limit_bytes = SMALL_LIMIT_BYTES
        self._promoted = False
        self.live_bytes = 0
        self.peak_bytes = 0
        """The most that was live since `reset_peak`."""

    @property
    def idle_bytes(self) -> int:
        """What waits."""
        return sum([idle.buffer.num_bytes for idle in self._idle])

    @property
    def kept_bytes(self) -> int:
        """What waits and was not offered to the system."""
        return sum([idle.buffer.num_bytes for idle in self._idle if not idle.offered])

    def reset_peak(self) -> None:
        """Forget what was live before."""
        self.peak_bytes = self.live_bytes

    def take(self, num_bytes: int) -> Buffer:
        """A buffer of at least so many bytes, which hold anything.

        Raises: OutOfMemory where it is longer than the longest buffer, or Metal refuses it although nothing waits.
        """
        length = max(1, -(-num_bytes // PAGE_BYTES)) * PAGE_BYTES
        if num_bytes > self._driver.max_buffer_bytes():
            raise OutOfMemory(f"no buffer of {num_bytes} bytes", num_bytes)
        if num_bytes > SMALL_LIMIT_BYTES and not self._promoted:
            self._promoted = True
            self.limit_bytes = min(LARGE_LIMIT_BYTES, self._driver.working_set_bytes() // 2)
        buffer = self._reused(length) or Buffer(self._allocate(length), length)
        self.live_bytes += buffer.num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return buffer

    def _reused(self, length: int) -> Buffer | None:
        fitting = [idle for idle in self._idle if length <= idle.buffer.num_bytes <= length + length // SLACK]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda idle: idle.buffer.num_bytes)
        if chosen.offered:
            self._driver.keep(chosen.buffer.metal)
        self._idle.remove(chosen)
        return chosen.buffer

    def _allocate(self, length: int) -> Any:
        try:
            return self._driver.allocate(length)
        except OutOfMemory:
            self.clear()
            return self._driver.allocate(length)

    def give(self, buffer: Buffer) -> None:
        """Take back a buffer that nothing uses any more."""
        self.live_bytes -= buffer.num_bytes
        offered = self._promoted and self._driver.offer(buffer.metal)
        self._idle.append(_Idle(buffer, offered))
        while self.idle_bytes > self.limit_bytes:
            del self._idle[0]
        while self.kept_bytes > SMALL_LIMIT_BYTES:
            self._idle.remove(next(idle for idle in self._idle if not idle.offered))

    def clear(self) -> None:
        """Free all that waits."""
        self._idle.clear()
