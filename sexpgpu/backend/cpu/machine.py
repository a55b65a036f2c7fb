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


def free_bytes() -> int:
    """Memory that a new process could take without swapping."""
    available = _kib_field(MEMINFO, "MemAvailable")
    if available is not None:
        return available
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process holds in memory now; where only its maximum is known, that."""
    if not STATM.is_file():
        return resident_peak_bytes()
    return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_peak_bytes() -> int:
    """The most that this process ever held in memory."""
    peak = _kib_field(STATUS, "VmHWM")
    if peak is not None:
        return peak
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

    def sample(self) -> None:
        """Look now."""
        self._sampled = max(self._sampled, self._resident() - self._base)

    def most_bytes(self) -> int:
        """The growth so far."""
        self.sample()
        peak = self._peak()
        return max(self._sampled, peak - self._base if peak > self._peak_before else 0)


def _kib_field(path: Path, name: str) -> int | None:
    if not path.is_file():
        return None
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None
