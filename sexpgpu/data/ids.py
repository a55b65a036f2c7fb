"""One long sequence of token ids over many shards, none of them loaded whole.

Shape suffixes: B windows, L ids of a window, N ids of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sexpgpu.data.faults import OUTSIDE_VOCABULARY, fail
from sexpgpu.data.files import sampled_offsets

SAMPLED_IDS = 4096
MAX_SAMPLES = 64


@dataclass(frozen=True, eq=False)
class Shard:
    """The ids of one file, `[n]`, usually memory-mapped; `header_bytes` come before them in the file."""

    name: str
    ids: NDArray[np.integer]
    header_bytes: int = 0


class ShardedIds:
    """The shards' ids one after another, read like a one-dimensional array.

    Shapes: `[N]`, N the sum of the shards' lengths. Indexing with an integer gives an `int`, with a slice
        or an
    array of integers an array of `dtype`.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shard for shard in shards if len(shard.ids))
        ends = np.cumsum([0, *(len(shard.ids) for shard in self.shards)], dtype=np.int64)
        self._begins = ends[:-1]
        self._num_ids = int(ends[-1])
        self.dtype: np.dtype[Any] = np.result_type(*(shard.ids.dtype for shard in self.shards), np.uint8)
        self._sliding: dict[tuple[int, int], NDArray[np.integer]] = {}

    def __len__(self) -> int:
        return self._num_ids

    @property
    def shape(self) -> tuple[int]:
        """`(N,)`."""
        return (self._num_ids,)

    @overload
    def __getitem__(self, index: int | np.integer) -> int: ...
    @overload
    def __getitem__(self, index: slice | NDArray[np.integer] | Sequence[int]) -> NDArray[np.integer]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            begin, end, step = index.indices(self._num_ids)
            if step == 1:
                return self._run(begin, max(begin, end))
            index = np.arange(begin, end, step)
        at = np.asarray(index)
        flat = np.where(at < 0, at + self._num_ids, at).reshape(-1).astype(np.int64)
        if flat.size and not (flat.min() >= 0 and flat.max() < self._num_ids):
            raise IndexError(f"index outside a sequence of {self._num_ids} ids")
        values = self.windows(flat, 1).reshape(at.shape)
        return int(values) if values.ndim == 0 else values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("sharded ids cannot become one array without a copy")
        return self._run(0, self._num_ids).astype(dtype or self.dtype, copy=False)

    def windows(self, begins_B: NDArray[np.int64], length: int) -> NDArray[np.integer]:
        """The `length` ids from each begin on; a window may cross shards.

        Shapes: begins_B `[B]`, all in 0 .. N - length → a new `[B, length]` of `dtype`.
        """
        if len(self.shards) == 1:
            return self._slide(0, length)[begins_B]
        first_B = np.searchsorted(self._begins, begins_B, side="right") - 1
        last_B = np.searchsorted(self._begins, begins_B + (length - 1), side="right") - 1
        windows_BL = np.empty((len(begins_B), length), dtype=self.dtype)
        inside_B = first_B == last_B
        for shard in np.unique(first_B[inside_B]):
            rows = np.flatnonzero(inside_B & (first_B == shard))
            windows_BL[rows] = self._slide(int(shard), length)[begins_B[rows] - self._begins[shard]]
        for row in np.flatnonzero(~inside_B):
            windows_BL[row] = self._run(int(begins_B[row]), int(begins_B[row]) + length)
        return windows_BL

    def place(self, position: int) -> tuple[Shard, int]:
        """The shard that holds a position of the sequence, and the position inside the shard."""
        at = int(np.searchsorted(self._begins, position, side="right")) - 1
        return self.shards[at], position - int(self._begins[at])

    def sampled(self) -> list[int]:
        """Begins of the runs of `SAMPLED_IDS` ids that are looked at when a data set opens.

        They are each shard's first run, and evenly spaced ones over the whole sequence.
        """
        even = sampled_offsets(self._num_ids, SAMPLED_IDS, MAX_SAMPLES)
        return sorted({*self._begins.tolist(), *even})

    def _slide(self, shard: int, length: int) -> NDArray[np.integer]:
        view = self._sliding.get((shard, length))
        if view is None:
            view = sliding_window_view(self.shards[shard].ids, length)
            self._sliding[shard, length] = view
        return view

    def _run(self, begin: int, end: int) -> NDArray[np.integer]:
        pieces: list[NDArray[np.integer]] = [np.empty(0, dtype=self.dtype)]
        at = begin
        while at < end:
            shard, inside = self.place(at)
            pieces.append(shard.ids[inside : inside + end - at])
            at += len(pieces[-1])
        return np.concatenate(pieces, dtype=self.dtype)


def check_vocabulary(
    ids: ShardedIds, block_BL: NDArray[np.integer], begins_B: NDArray[np.int64], vocabulary: int
) -> None:
    """Check ids that were read from `begins_B` on.

    Shapes: block_BL `[B, L]`, begins_B `[B]`.
    Raises: E-DATA-004 (an id outside the vocabulary; names the file and the offset).
    """
    if not block_BL.size or (int(block_BL.max()) < vocabulary and int(block_BL.min()) >= 0):
        return
    row, column = np.argwhere((block_BL >= vocabulary) | (block_BL < 0))[0].tolist()
    shard, at = ids.place(int(begins_B[row]) + column)
    byte = shard.header_bytes + at * shard.ids.itemsize
    fail(
        OUTSIDE_VOCABULARY,
        f"`{shard.name}` holds id {int(block_BL[row, column])} at offset {at} (byte {byte}), outside the "
        f"vocabulary of {vocabulary}",
        help=(
            f"give `:vocabulary` the size of the tokenizer that wrote the file, or write the file again with "
            f"ids from 0 to {vocabulary - 1}",
        ),
    )
