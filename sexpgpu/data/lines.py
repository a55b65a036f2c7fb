"""Lines: a text of which every line is an example, cut out of its ids when a batch asks.

Flow: `dataset.open_dataset` makes `Lines` of these fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.codec import ByteCodec
from sexpgpu.data.ids import ShardedIds
from sexpgpu.data.text import Encoded

LINE_END, RETURN = "\n", ord("\r")


def line_fields(text: Encoded, length: int) -> dict[str, Any]:
    """The fields of the lines that are not empty: `tokens` i32 `[N, length]`, `mask` bool `[N, length]`, true where a
    token of the line stands, `length` i32 `[N]`, how many do. What a line does not fill holds line ends, which every
    vocabulary has; the 0 where a tokenizer may not know them.
    """
    if text.ends is not None:  # a tokenizer's lines, without their ends
        fill, stops = 0, text.ends
        begins = np.concatenate([np.zeros(1, np.int64), stops[:-1]])[: len(stops)]
    else:
        (fill,) = text.codec.encode(LINE_END)
        after = text.ids.find([fill])
        ends = np.union1d(after, text.ids.shard_ends)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
        stops = ends - _among(ends, after)
        if isinstance(text.codec, ByteCodec):
            stops -= _among(ends, text.ids.find([RETURN, fill]))
    whole = stops > begins
    begins, lengths = begins[whole], np.minimum(stops - begins, length)[whole].astype(np.int32)
    shape = (len(begins), length)
    tokens = LineTokens(text.ids, begins, lengths, fill, shape)
    return {"tokens": tokens, "mask": LineMask(lengths, shape), "length": lengths}


def _among(ends: NDArray[np.int64], some: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of `ends` are among `some`; both ascend."""
    at = np.searchsorted(some, ends)
    return some[np.minimum(at, len(some) - 1)] == ends if len(some) else np.zeros(len(ends), np.bool_)


@dataclass(frozen=True, eq=False)
class LineTokens:
    """Read by rows like an array `[N, length]`: the ids of lines that begin at `begins` `[N]`, filled up."""

    ids: ShardedIds
    begins: NDArray[np.int64]
    lengths: NDArray[np.int32]
    fill: int
    shape: tuple[int, int]

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the ids."""
        return self.ids.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows_B: NDArray[np.int64]) -> NDArray[Any]:
        return self.ids.rows(self.begins[rows_B], self.lengths[rows_B], self.shape[1], self.fill)


@dataclass(frozen=True, eq=False)
class LineMask:
    """Read by rows like an array `[N, length]`: true where a token of the line stands."""

    lengths: NDArray[np.int32]
    shape: tuple[int, int]

    @property
    def dtype(self) -> np.dtype[Any]:
        """bool."""
        return np.dtype(np.bool_)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows_B: NDArray[np.int64]) -> NDArray[Any]:
        return np.arange(self.shape[1]) < self.lengths[rows_B][:, None]
