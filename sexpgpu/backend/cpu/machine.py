"""What the operating system says of this machine's memory and of this process's share of it."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path

MEMINFO, CPUINFO = Path("/proc/meminfo"), Path("/proc/cpuinfo")
STATUS, STATM = Path("/proc/self/status"), Path("/proc/self/statm")

UNPLANNED_BYTES = 64 << 20
"""How far the growth of a process may lie from its plan and mean nothing. Above it: modules loaded late, stacks of
threads, buffers of the BLAS, batches read ahead; below it: pages that were planned and never touched, and memory that
the interpreter had taken before and uses again. Eight small examples lay between 24 MiB below and 6 MiB above."""


def free_bytes() -> int:
    """Memory that a new process could take without swapping."""
    available = _kib_field(MEMINFO, "MemAvailable")
    if available is not None:
        return available
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process holds in memory now; where only its maximum is known, that."""
    try:
        pages = int(_whole(STATM).split()[1])
    except OSError:
        return resident_peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident_peak_bytes() -> int:
    """The most that this process ever held in memory."""
    try:
        _, found, rest = _whole(STATUS).partition(b"VmHWM:")
    except OSError:
        found = rest = b""
    if found:
        return int(rest.split(maxsplit=1)[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    if CPUINFO.is_file():
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


class ResidentGrowth:
    """The most by which the process has grown since this was made.

    The system keeps one high-water mark for a process. Where it has risen since, the growth is known
    exactly; until then only what `sample` saw counts. Everything in the process counts: data that a loader
    reads meanwhile does too, and memory that was asked for and never touched does not.
    """

    def __init__(
        self, resident: Callable[[], int] = resident_bytes, peak: Callable[[], int] = resident_peak_bytes
    ) -> None:
        self._resident, self._peak = resident, peak
        self._base = resident()
        self._peak_before = peak()
        self._sampled = 0
        self._last = 0

    @property
    def last_bytes(self) -> int:
        """The growth that the last sample saw; 0 where the process has shrunk."""
        return self._last

    def sample(self) -> None:
        """Look now."""
        self._last = max(0, self._resident() - self._base)
        self._sampled = max(self._sampled, self._last)

    def most_bytes(self) -> int:
        """The growth so far."""
        self.sample()
        peak = self._peak()
        return max(self._sampled, peak - self._base if peak > self._peak_before else 0)


def _whole(path: Path) -> bytes:
    """A small file of the system; read at every step, so without what `Path` does around it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 14)
    finally:
        os.close(descriptor)


def _kib_field(path: Path, name: str) -> int | None:
    if not path.is_file():
        return None
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None
