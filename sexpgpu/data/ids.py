"""One long sequence of token ids over many shards, of which only what is asked for is read.

Shape suffixes: B windows, L ids of a window, N ids of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sexpgpu.data.faults import OUTSIDE_VOCABULARY, fail
from sexpgpu.data.files import RESIDENT_BYTES, DataFile, sampled_offsets

SAMPLED_IDS = 4096
FOUND_AT_ONCE = 1 << 24
MAX_SAMPLES = 64


@dataclass(frozen=True, eq=False)
class HeldShard:
    """Ids in memory, `[n]`."""

    name: str
    ids: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the ids."""
        return self.ids.dtype

    def read(self, begin: int, stop: int) -> NDArray[np.integer]:
        """The ids from `begin` up to `stop`."""
        return self.ids[begin:stop]


@dataclass(frozen=True, eq=False)
class FileShard:
    """`num_ids` ids of one file, after `header_bytes` of it."""

    name: str
    file: DataFile
    dtype: np.dtype[Any]
    header_bytes: int
    num_ids: int

    def __len__(self) -> int:
        return self.num_ids

    def offset(self, position: int) -> int:
        """The byte of the file at which an id stands."""
        return self.header_bytes + position * self.dtype.itemsize

    def offsets(self, positions_B: NDArray[np.int64]) -> list[int]:
        """The bytes at which several ids stand."""
        return (positions_B * self.dtype.itemsize + self.header_bytes).tolist()

    def read(self, begin: int, stop: int) -> NDArray[np.integer]:
        """The ids from `begin` up to `stop`, a new array. Raises: E-DATA-002, E-DATA-007 (the file was cut)."""
        ids = np.empty(stop - begin, self.dtype)
        self.file.read_into(ids.view(np.uint8), self.offset(begin))
        return ids


Shard = HeldShard | FileShard


class ShardedIds:
    """The shards' ids one after another, read like a one-dimensional array.

    Up to `RESIDENT_BYTES` they are read once and held as one array, beyond that read where they are asked for.

    Shapes: `[N]`, N the sum of the shards' lengths. Indexing with an integer gives an `int`, with a slice or an array
    of integers an array of `dtype`.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shard for shard in shards if len(shard))
        ends = np.cumsum([0, *(len(shard) for shard in self.shards)], dtype=np.int64)
        self._begins, self._ends = ends[:-1], ends[1:]
        self._num_ids = int(ends[-1])
        dtypes = [shard.dtype.newbyteorder("=") for shard in self.shards]
        self.dtype: np.dtype[Any] = np.result_type(*dtypes, np.uint8)
        self._sliding: tuple[int, NDArray[np.integer]] | None = None

    def __len__(self) -> int:
        return self._num_ids

    @property
    def shard_ends(self) -> NDArray[np.int64]:
        """The positions after each shard, `[shards]`."""
        return self._ends

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
                return self.run(begin, max(begin, end)).copy()
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
        return self._read(0, self._num_ids).astype(dtype or self.dtype, copy=False)

    @cached_property
    def _held(self) -> NDArray[np.integer] | None:
        """All ids, where they are few; None where they are many."""
        if len(self.shards) == 1 and isinstance(self.shards[0], HeldShard):
            return self.shards[0].ids
        if self._num_ids * self.dtype.itemsize > RESIDENT_BYTES:
            return None
        return self._read(0, self._num_ids)

    def windows(self, begins_B: NDArray[np.int64], length: int) -> NDArray[np.integer]:
        """The `length` ids from each begin on; a window may cross shards.

        Shapes: begins_B `[B]`, all in 0 .. N - length → a new `[B, length]` of `dtype`.
        Raises: E-DATA-007 (a shard changed or is gone).
        """
        if not begins_B.size:
            return np.empty((0, length), self.dtype)
        first_B, last_B = self._check(begins_B, begins_B + (length - 1))
        if self._held is not None:
            return self._slide(self._held, length)[begins_B]
        first, end = int(begins_B.min()), int(begins_B.max()) + length
        if end - first <= 2 * begins_B.size * length:
            return sliding_window_view(self._read(first, end), length)[begins_B - first]
        windows_BL = np.empty((len(begins_B), length), dtype=self.dtype)
        inside_B = first_B == last_B
        for at in sorted(set(first_B[inside_B].tolist())):
            shard = self.shards[at]
            rows = np.flatnonzero(inside_B & (first_B == at))
            if isinstance(shard, FileShard):
                part_BL = np.empty((len(rows), length), shard.dtype)
                shard.file.read_rows(part_BL.view(np.uint8), shard.offsets(begins_B[rows] - self._begins[at]))
                windows_BL[rows] = part_BL
            else:
                inside_B[rows] = False
        for row in np.flatnonzero(~inside_B):
            windows_BL[row] = self._read(int(begins_B[row]), int(begins_B[row]) + length)
        return windows_BL

    def run(self, begin: int, end: int) -> NDArray[np.integer]:
        """The ids from `begin` up to `end`. Raises: E-DATA-007 (a shard changed or is gone)."""
        if begin >= end:
            return np.empty(0, self.dtype)
        self._check(np.array([begin]), np.array([end - 1]))
        return self._read(begin, end) if self._held is None else self._held[begin:end]

    def rows(
        self, begins_B: NDArray[np.int64], lengths_B: NDArray[np.integer], width: int, fill: int
    ) -> NDArray[np.integer]:
        """So many ids from each begin on, filled up with `fill`.

        Shapes: begins_B `[B]`, lengths_B `[B]`, from 0 to `width` → a new `[B, width]` of `dtype`.
        Raises: E-DATA-007 (a shard changed or is gone).
        """
        self._check(begins_B, np.maximum(begins_B, begins_B + lengths_B - 1))
        if self._held is not None:
            places_BL = np.arange(width)
            inside_BL = places_BL < lengths_B[:, None]
            at_BL = np.where(inside_BL, begins_B[:, None] + places_BL, 0)
            return np.where(inside_BL, self._held[at_BL], self.dtype.type(fill))
        rows_BL = np.full((len(begins_B), width), fill, self.dtype)
        for row_L, begin, length in zip(rows_BL, begins_B.tolist(), lengths_B.tolist(), strict=True):
            row_L[:length] = self._read(begin, begin + length)
        return rows_BL

    def find(self, sought: Sequence[int]) -> NDArray[np.int64]:
        """The positions after each place where the ids `sought` stand, from left to right without overlap.

        Shapes: sought not empty → `[places]`.
        """
        length, found = len(sought), []
        for begin in range(0, self._num_ids - length + 1, FOUND_AT_ONCE):
            block = self.run(begin, min(self._num_ids, begin + FOUND_AT_ONCE + length - 1))
            at = np.flatnonzero(block[: len(block) - length + 1] == sought[0])
            for i, id in enumerate(sought[1:], 1):
                at = at[block[at + i] == id]
            found.append(at + begin + length)
        ends = np.concatenate([np.empty(0, np.int64), *found])
        if length == 1 or (np.diff(ends) >= length).all():
            return ends
        apart: list[int] = []
        for end in ends.tolist():
            if not apart or end - apart[-1] >= length:
                apart.append(end)
        return np.array(apart, np.int64)

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

    def _check(
        self, first_B: NDArray[np.int64], last_B: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards of the first and the last positions; those from one to the other are as they were opened.

        Raises: E-DATA-007.
        """
        first_B = np.searchsorted(self._begins, first_B, side="right") - 1
        last_B = np.searchsorted(self._begins, last_B, side="right") - 1
        for first, last in set(zip(first_B.tolist(), last_B.tolist(), strict=True)):
            for shard in self.shards[first : last + 1]:
                if isinstance(shard, FileShard):
                    shard.file.check()
        return first_B, last_B

    def _slide(self, held: NDArray[np.integer], length: int) -> NDArray[np.integer]:
        if self._sliding is None or self._sliding[0] != length:
            self._sliding = length, sliding_window_view(held, length)
        return self._sliding[1]

    def _read(self, begin: int, end: int) -> NDArray[np.integer]:
        pieces: list[NDArray[np.integer]] = [np.empty(0, dtype=self.dtype)]
        at = begin
        while at < end:
            shard, inside = self.place(at)
            pieces.append(shard.read(inside, min(len(shard), inside + end - at)))
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
    byte = f" (byte {shard.offset(at)})" if isinstance(shard, FileShard) else ""
    fail(
        OUTSIDE_VOCABULARY,
        f"`{shard.name}` holds id {int(block_BL[row, column])} at offset {at}{byte}, outside the "
        f"vocabulary of {vocabulary}",
        help=(
            f"give `:vocabulary` the size of the tokenizer that wrote the file, or write the file again with "
            f"ids from 0 to {vocabulary - 1}",
        ),
    )
