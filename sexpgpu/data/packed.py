"""Documents packed into rows of one length, with what keeps them apart.

Shape suffixes: B rows of a batch, T places of a row, D documents, P pieces of documents.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.dataset import TokenStream
from sexpgpu.data.faults import TOO_SHORT, UNKNOWN_FIELD, fail
from sexpgpu.data.views import Source, describe, resolve

PADDING = -1
"""The number of a document where there is none."""


@dataclass(frozen=True)
class Packed:
    """Rows of `length` places, filled with whole documents in their order; a place is a token and the one after it.

    A document of d tokens takes d - 1 places, and one of a single token none. A row is closed where the next document
    does not fit, and the rest is padding; a document longer than a row is cut into rows of its own, of which the last
    may be shared. With `cut`, rows are full: a document goes on in the next row.

    Shapes: fields of `[length]` each: `tokens` and `targets` i32, 0 in padding; `document` i32, counted from 0 in each
        row, -1 in padding; `position` i32, counted from 0 where the row or the document begins, 0 in padding; `mask`
        bool, false in padding.
    Raises: E-DATA-003 (a length below 1, nothing that says where documents end, no place at all), E-DATA-005 (arrays).
    """

    source: Source
    length: int
    cut: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            fail(TOO_SHORT, f"a row of length {self.length} holds nothing", help=("give `:length` at least 1",))
        if not self._documents[2][-1]:
            fail(TOO_SHORT, f"no document of {describe(self.source)} has two tokens, and one alone has no target",
                 help=("say by `:ends` what stands after each document, or use more data",))  # fmt: skip

    @cached_property
    def _bounds(self) -> tuple[TokenStream, int, int]:
        dataset, begin, end = resolve(self.source)
        if not isinstance(dataset, TokenStream):
            fail(UNKNOWN_FIELD, f"`{dataset.name}` holds rows, which are not packed",
                 help=("read them by rows: `(rows S)`; lines are packed as `(text PATH :ends \"\\n\")`",))  # fmt: skip
        return dataset, begin, end

    @cached_property
    def _documents(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where each document of the source begins, how many places there are before it, and before its end: `[D]`."""
        stream, begin, end = self._bounds
        ends_D = stream.document_ends
        ends_D = np.append(ends_D[(ends_D > begin) & (ends_D < end)], end)
        begins_D = np.concatenate([[begin], ends_D[:-1]])
        after_D = np.cumsum(np.maximum(0, ends_D - begins_D - 1))
        return begins_D, np.concatenate([np.zeros(1, np.int64), after_D[:-1]]), after_D

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """The first place of each row, and one after the last, counted through all documents: `[rows + 1]`."""
        _, before_D, after_D = self._documents
        num_places = int(after_D[-1])
        if self.cut:
            return np.append(np.arange(0, num_places, self.length), num_places)
        pieces_P = self._pieces(before_D, after_D)
        # From each piece on, the first that a row begun there has no room for.
        next_P = np.searchsorted(pieces_P, pieces_P[:-1] + self.length, side="right") - 1
        rows, piece, follows = [0], 0, next_P.tolist()
        while piece < len(follows):
            piece = follows[piece]
            rows.append(int(pieces_P[piece]))
        return np.array(rows, np.int64)

    def _pieces(self, before_D: NDArray[np.int64], after_D: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first place of each piece of at most a row, and one after the last: `[P + 1]`."""
        num_D = -(-(after_D - before_D) // self.length)
        within_P = np.arange(num_D.sum()) - np.repeat(np.cumsum(num_D) - num_D, num_D)
        return np.append(np.repeat(before_D, num_D) + within_P * self.length, after_D[-1])

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and row shape of each field."""
        shape = (self.length,)
        return {
            "tokens": ("i32", shape), "targets": ("i32", shape), "document": ("i32", shape),
            "position": ("i32", shape), "mask": ("bool", shape),
        }  # fmt: skip

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, in the order of the documents."""
        return len(self._rows) - 1

    @property
    def num_shuffled_rows(self) -> int:
        """Rows of an epoch under shuffle: the same rows."""
        return self.num_rows

    @property
    def num_offsets(self) -> int:
        """Rows lie where they lie: 1."""
        return 1

    @property
    def filled(self) -> float:
        """The share of places that are no padding."""
        return int(self._documents[2][-1]) / (self.num_rows * self.length)

    def take(self, rows_B: NDArray[np.int64], offset: int, only: Collection[str]) -> dict[str, NDArray[Any]]:
        """The named fields of these rows.

        Shapes: rows_B `[B]` → each `[B, T]`, new and contiguous.
        Raises: E-DATA-004 (an id outside the vocabulary), E-DATA-007 (a shard changed or is gone).
        """
        assert offset == 0, offset
        begins_D, before_D, after_D = self._documents
        places_BT = self._rows[rows_B][:, None] + np.arange(self.length)
        mask_BT = places_BT < self._rows[rows_B + 1][:, None]
        places_BT = np.where(mask_BT, places_BT, self._rows[rows_B][:, None])
        document_BT = np.searchsorted(after_D, places_BT, side="right")
        first_BT = before_D[document_BT]  # the first place of the document
        found: dict[str, NDArray[Any]] = {}
        if "tokens" in only or "targets" in only:
            at_BT = begins_D[document_BT] + places_BT - first_BT
            tokens_BT, targets_BT = self._tokens(at_BT, mask_BT)
            found = {"tokens": tokens_BT, "targets": targets_BT}
        numbers_BT = np.cumsum(np.diff(document_BT, axis=1, prepend=document_BT[:, :1]) != 0, axis=1)
        found["document"] = np.where(mask_BT, numbers_BT, PADDING).astype(np.int32)
        found["position"] = (places_BT - np.maximum(first_BT, places_BT[:, :1])).astype(np.int32)
        found["mask"] = mask_BT
        return {name: found[name] for name in self.fields if name in only}

    def _tokens(self, at_BT: NDArray[np.int64], mask_BT: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
        stream = self._bounds[0]
        tokens_BT, targets_BT = (np.zeros(at_BT.shape, np.int32) for _ in range(2))
        for row, at_T, mask_T in zip(range(len(at_BT)), at_BT, mask_BT, strict=True):
            inside_N = at_T[mask_T]  # ascending, with small steps over the last token of each document
            begin = int(inside_N[0])
            run = stream.run(begin, int(inside_N[-1]) + 2)
            tokens_BT[row, mask_T] = run[inside_N - begin]
            targets_BT[row, mask_T] = run[inside_N - begin + 1]
        return tokens_BT, targets_BT
