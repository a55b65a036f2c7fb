"""Offsets in one arena for cells with known lifetimes.

Flow: the last step of `plan.memory` for a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT_BYTES = 64
"""Of every offset: a cache line, and the widest vector load."""

GOOD_ENOUGH = 1.005
"""Length of the arena over what is live at once, below which no other order is tried."""


@dataclass(slots=True)
class Cell:
    """A range of the arena from step `start` to step `end`, both included."""

    start: int
    end: int
    num_bytes: int


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment; no cell is empty."""
    return max(1, -(-num_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def place(cells: Sequence[Cell]) -> tuple[list[int], int]:
    """Offsets of `cells` and the length of the arena.

    A few orders are tried until one needs hardly more than is live at once; the shortest arena wins.
    """
    start = np.array([cell.start for cell in cells], np.int64)
    end = np.array([cell.end for cell in cells], np.int64)
    size = np.array([aligned(cell.num_bytes) for cell in cells], np.int64)
    least = live_peak(cells, int(end.max(initial=0)))[0]
    largest_first = np.lexsort((start, -size))
    longest_first = np.lexsort((-size, start - end))
    heaviest_first = np.lexsort((start, -size * (end - start + 1)))
    first_first = np.lexsort((-size, start))
    best = np.zeros(len(cells), np.int64)
    best_bytes = -1
    for order in (largest_first, heaviest_first, longest_first, first_first):
        offsets = _in_order(start, end, size, order)
        num_bytes = int((offsets + size).max(initial=0))
        if best_bytes < 0 or num_bytes < best_bytes:
            best, best_bytes = offsets, num_bytes
        if best_bytes <= GOOD_ENOUGH * least:
            break
    return best.tolist(), best_bytes


def _in_order(start: np.ndarray, end: np.ndarray, size: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Offsets when cells are placed in `order`, each into the tightest gap between those it lives with."""
    start, end, size = start[order], end[order], size[order]
    low = np.zeros(len(order), np.int64)
    high = np.zeros(len(order), np.int64)
    for i in range(len(order)):
        rivals = np.flatnonzero((start[:i] <= end[i]) & (end[:i] >= start[i]))
        low[i] = _fit(low[rivals], high[rivals], int(size[i])) if rivals.size else 0
        high[i] = low[i] + size[i]
    offsets = np.empty_like(low)
    offsets[order] = low
    return offsets


def _fit(low: np.ndarray, high: np.ndarray, size: int) -> int:
    """The start of the tightest gap between occupied ranges that holds `size`, or the end of them all."""
    order = np.argsort(low, kind="stable")
    starts = low[order]
    ends = np.maximum.accumulate(high[order])
    gaps = starts.copy()
    gaps[1:] -= ends[:-1]
    fits = np.flatnonzero(gaps >= size)
    if not fits.size:
        return int(ends[-1])
    tightest = fits[np.argmin(gaps[fits])]
    return int(starts[tightest] - gaps[tightest])


def live_peak(cells: Sequence[Cell], num_steps: int) -> tuple[int, int]:
    """The most bytes that are live at once, and at which step: what no placement can go below."""
    change = np.zeros(num_steps + 2, np.int64)
    for cell in cells:
        change[cell.start] += aligned(cell.num_bytes)
        change[cell.end + 1] -= aligned(cell.num_bytes)
    live = np.cumsum(change)
    step = int(np.argmax(live))
    return int(live[step]), step
