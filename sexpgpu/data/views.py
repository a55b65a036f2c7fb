"""Views: how a data set becomes rows of a batch. `Part` narrows a data set, `Rows` and `Windows` cut it.

A view is numbers and a `take`; it draws nothing. The loader decides which rows, in which order, at which
offset.

Shape suffixes: B rows of a batch, T positions of a window.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.dataset import Arrays, Dataset, TokenStream
from sexpgpu.data.faults import DAMAGED, TOO_SHORT, UNKNOWN_FIELD, count, fail
from sexpgpu.data.images import Images


@dataclass(frozen=True)
class Part:
    """The rows or tokens of a source from fraction `start` to fraction `stop`.

    Of n, those from int(n·start) up to int(n·stop), so that neighbouring parts share nothing and lose
    nothing. A part of a part counts fractions of that part.

    Raises: E-DATA-003 (fractions outside 0 .. 1, or a part that holds nothing).
    """

    dataset: Dataset | Part
    start: float
    stop: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= 1:
            fail(
                TOO_SHORT,
                f"the part from {self.start} to {self.stop} of `{source_name(self.dataset)}` holds nothing",
                help=("give two fractions with 0 <= start < stop <= 1",),
            )
        if len(self) == 0:
            fail(
                TOO_SHORT,
                f"the part from {self.start} to {self.stop} of `{source_name(self.dataset)}` holds "
                f"nothing: the whole has {len(self.dataset):,}",
                help=("widen the part, or use more data",),
            )

    def __len__(self) -> int:
        begin, end = self.bounds
        return end - begin

    @property
    def bounds(self) -> tuple[int, int]:
        """Begin and end inside `dataset`."""
        size = len(self.dataset)
        return int(size * self.start), int(size * self.stop)


Source = Dataset | Part


def source_name(source: Source) -> str:
    """The path of the data set below, as it was written."""
    return source_name(source.dataset) if isinstance(source, Part) else source.name


def resolve(source: Source) -> tuple[Dataset, int, int]:
    """The data set below all parts, and begin and end inside it."""
    if not isinstance(source, Part):
        return source, 0, len(source)
    dataset, outer_begin, _ = resolve(source.dataset)
    begin, end = source.bounds
    return dataset, outer_begin + begin, outer_begin + end


def describe(source: Source) -> str:
    """What a message calls a source: its path, and the parts taken of it."""
    if not isinstance(source, Part):
        return f"`{source.name}`"
    return f"the part from {source.start} to {source.stop} of {describe(source.dataset)}"


@dataclass(frozen=True)
class Rows:
    """Every row of arrays, with the arrays' own names and types.

    Raises: E-DATA-005 (a token stream, which has no rows), E-DATA-002 (a field named `valid`).
    """

    source: Source

    def __post_init__(self) -> None:
        arrays, _, _ = self._bounds
        if "valid" in arrays.schema:
            fail(
                DAMAGED,
                f"`{arrays.name}` has a field `valid`, the name of a field that every loader adds",
                help=("store the field under another name",),
            )

    @cached_property
    def _bounds(self) -> tuple[Arrays | Images, int, int]:
        dataset, begin, end = resolve(self.source)
        if not isinstance(dataset, Arrays | Images):
            fail(
                UNKNOWN_FIELD,
                f"`{dataset.name}` is a sequence of tokens and has no rows",
                help=("cut it into windows: `(windows S :length n)`",),
            )
        return dataset, begin, end

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and row shape of each field."""
        return self._bounds[0].schema

    @property
    def num_rows(self) -> int:
        """Rows of an epoch in the order of the source."""
        _, begin, end = self._bounds
        return end - begin

    @property
    def num_shuffled_rows(self) -> int:
        """Rows of an epoch under shuffle: the same."""
        return self.num_rows

    @property
    def num_offsets(self) -> int:
        """Rows lie where they lie: 1."""
        return 1

    def take(self, rows_B: NDArray[np.int64], offset: int, only: Collection[str]) -> dict[str, NDArray[Any]]:
        """The named fields at these rows.

        Shapes: rows_B `[B]` → each `[B, …]`, new and contiguous.
        """
        assert offset == 0, offset
        arrays, begin, _ = self._bounds
        at_B = rows_B + begin
        return {name: arrays.take(name, at_B) for name in arrays.schema if name in only}


@dataclass(frozen=True)
class Windows:
    """Windows of `length` tokens that follow one another, with the targets one token ahead.

    Neighbouring windows share no token; the last target of one is the first token of the next. Of n tokens,
    whole windows that begin at offset 0 number (n - 1) // length. Under shuffle an epoch begins at an offset
    below `length` and has as many windows as fit at every offset.

    Shapes: fields `tokens` and `targets`, i32 `[length]` each.
    Raises: E-DATA-003 (shorter than one window), E-DATA-005 (arrays, which are no sequence).
    """

    source: Source
    length: int

    def __post_init__(self) -> None:
        _, begin, end = self._bounds
        if self.length < 1:
            fail(
                TOO_SHORT,
                f"a window of length {self.length} holds nothing",
                help=("give `:length` at least 1",),
            )
        num_tokens = end - begin
        if num_tokens < self.length + 1:
            shorten = f"give `:length` at most {num_tokens - 1}, or " if num_tokens > 1 else ""
            fail(
                TOO_SHORT,
                f"{describe(self.source)} has {count(num_tokens, 'token')}, "
                f"and one window of length {self.length} needs {self.length + 1:,}",
                help=(f"{shorten}use a larger part or more data",),
            )

    @cached_property
    def _bounds(self) -> tuple[TokenStream, int, int]:
        dataset, begin, end = resolve(self.source)
        if not isinstance(dataset, TokenStream):
            fail(
                UNKNOWN_FIELD,
                f"`{dataset.name}` holds rows, which have no windows",
                help=("read them by rows: `(rows S)`",),
            )
        return dataset, begin, end

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and row shape of each field."""
        return {"tokens": ("i32", (self.length,)), "targets": ("i32", (self.length,))}

    @property
    def num_rows(self) -> int:
        """Windows of an epoch at offset 0."""
        _, begin, end = self._bounds
        return (end - begin - 1) // self.length

    @property
    def num_shuffled_rows(self) -> int:
        """Windows of an epoch under shuffle: as many as fit at every offset.

        A source of less than two windows keeps its one window and moves it as far as there is room.
        """
        _, begin, end = self._bounds
        return max(1, (end - begin - self.length) // self.length)

    @property
    def num_offsets(self) -> int:
        """How many offsets leave room for `num_shuffled_rows` windows, at most `length`."""
        _, begin, end = self._bounds
        return min(self.length, end - begin - self.num_shuffled_rows * self.length)

    def take(self, rows_B: NDArray[np.int64], offset: int, only: Collection[str]) -> dict[str, NDArray[Any]]:
        """The named fields of these windows.

        Shapes: rows_B `[B]` → each i32 `[B, T]`, new and contiguous.
        Raises: E-DATA-004 (an id outside the vocabulary; names the file and the offset).
        """
        stream, begin, _ = self._bounds
        window_BU = stream.windows(rows_B * self.length + (begin + offset), self.length + 1)  # U = T + 1
        cut = {"tokens": window_BU[:, :-1], "targets": window_BU[:, 1:]}
        return {name: np.ascontiguousarray(ids_BT, dtype=np.int32) for name, ids_BT in cut.items() if name in only}


@dataclass(frozen=True)
class Streams:
    """Windows of `length` tokens, each of which goes on where the row of the batch before ended.

    Shapes: fields `tokens` and `targets`, i32 `[length]` each; the loader adds `first`.
    Raises: as `Windows`.
    """

    source: Source
    length: int

    def __post_init__(self) -> None:
        Windows(self.source, self.length)

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and row shape of each field."""
        return Windows(self.source, self.length).fields
