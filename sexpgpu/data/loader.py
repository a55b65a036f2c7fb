"""The loader: batch number m, and nothing else, decides which rows arrive.

Number m is the global microbatch: batch m mod E of epoch m div E, E batches an epoch. The order of an epoch
depends on (seed, loader name, epoch) alone, so every rank, every resume and every order of asking sees the
same rows.

Shape suffix: B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Never, Protocol

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import TOO_SHORT, UNKNOWN_FIELD, count, fail
from sexpgpu.data.packed import Packed
from sexpgpu.data.permutation import Order, draw_order, epoch_generator
from sexpgpu.data.views import Rows, Windows, describe
from sexpgpu.diagnostics import nearest

VALID = "valid"
# Training and an evaluation may read one loader in turn, each in an epoch of its own.
EPOCHS_KEPT = 2

View = Rows | Windows | Packed
"""How a data set becomes rows of a batch."""

Fields = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each field of a batch."""


class BatchSource(Protocol):
    """What every loader is: batches as a pure function of the microbatch number.

    padding: where rows may be padded, from the prefix of those fields to the field that says which are real.
    """

    @property
    def name(self) -> str:
        """What the file calls it."""

    @property
    def fields(self) -> Fields:
        """Type and shape of each field."""

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch."""

    @property
    def padding(self) -> Mapping[str, str]:
        """See above."""

    @property
    def tokens_per_batch(self) -> int | None:
        """Tokens of a batch; None where it holds no text."""

    def batch(self, m: int, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
        """Global microbatch m, from 0: the fields in `only`, or all of them."""

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of this loader."""


@dataclass(frozen=True, eq=False)
class Epoch:
    """What one epoch drew: where its windows begin, and the order of its rows (`None`: as they lie)."""

    number: int
    offset: int
    order: Order | None


class Loader:
    """Batches of a view, as a pure function of the microbatch number; safe to ask from several threads.

    Shapes: each field `[batch, …]`, and `valid` bool `[batch]`, false where `last="pad"` repeats the view's
        row 0.
    Raises: E-DATA-003 (fewer rows than a batch under `drop`; rows that do not divide under `error`; a batch
        below 1).
    """

    def __init__(
        self,
        name: str,
        view: View,
        batch: int,
        shuffle: bool = False,
        last: Literal["drop", "pad", "error"] = "drop",
        seed: int = 0,
    ) -> None:
        self.name = name
        self.view = view
        self.batch_size = batch
        self.shuffle = shuffle
        self.last = last
        self.seed = seed
        self.num_rows = view.num_shuffled_rows if shuffle else view.num_rows
        self.batches_per_epoch = _batches_per_epoch(self)
        self.padding: Mapping[str, str] = {"": VALID} if last == "pad" else {}
        self.tokens_per_batch = batch * view.length if isinstance(view, Windows | Packed) else None
        self.fields: Fields = {
            **{field: (dtype, (batch, *shape)) for field, (dtype, shape) in view.fields.items()},
            VALID: ("bool", (batch,)),
        }
        self._epochs: tuple[Epoch, ...] = ()

    def batch(self, m: int, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
        """Global microbatch m, from 0: the fields in `only`, or all of them.

        Shapes: as `fields` says; every array new, contiguous and the caller's own.
        Raises: E-DATA-004 (an id outside the vocabulary; names the file and the offset),
            E-DATA-005 (a field that the loader lacks).
        """
        assert m >= 0, m
        wanted = check_fields(self, only)
        epoch_number, place = divmod(m, self.batches_per_epoch)
        begin = place * self.batch_size
        num_valid = min(self.batch_size, self.num_rows - begin)
        epoch = self._epoch(epoch_number)
        places_B = np.arange(begin, begin + num_valid, dtype=np.int64)
        rows_B = places_B if epoch.order is None else epoch.order(places_B)
        if num_valid < self.batch_size:
            rows_B = np.concatenate([rows_B, np.zeros(self.batch_size - num_valid, dtype=np.int64)])
        fields = self.view.take(rows_B, epoch.offset, wanted)
        if VALID in wanted:
            fields[VALID] = np.arange(self.batch_size) < num_valid
        return fields

    def rows(self, numbers_B: NDArray[np.int64], only: Collection[str]) -> dict[str, NDArray[Any]]:
        """Rows by their ascending number, counted through all epochs without regard to batches.

        Shapes: numbers_B `[B]` → each `[B, …]`.
        """
        parts = []
        for number in np.unique(numbers_B // self.num_rows):
            epoch = self._epoch(int(number))
            places_B = numbers_B[numbers_B // self.num_rows == number] % self.num_rows
            rows_B = places_B if epoch.order is None else epoch.order(places_B)
            parts.append(self.view.take(rows_B, epoch.offset, only))
        return parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of this loader."""
        known = [repr(sorted(self.fields.items())), self.batch_size, self.shuffle, self.last, self.num_rows]
        return [*known, "cut"] if isinstance(self.view, Packed) and self.view.cut else known

    def _epoch(self, number: int) -> Epoch:
        # The tuple is replaced whole, so another thread sees the old one or the new one; a lost entry is
        # drawn again.
        kept = self._epochs
        for epoch in kept:
            if epoch.number == number:
                return epoch
        epoch = self._draw(number)
        self._epochs = (epoch, *kept)[:EPOCHS_KEPT]
        return epoch

    def _draw(self, number: int) -> Epoch:
        if not self.shuffle:
            return Epoch(number, 0, None)
        generator = epoch_generator(self.seed, self.name, number)
        # The offset is drawn before the order: both belong to the contract of what a seed means.
        offset = int(generator.integers(self.view.num_offsets))
        return Epoch(number, offset, draw_order(self.num_rows, generator))


def check_fields(loader: BatchSource, only: Collection[str] | None) -> Collection[str]:
    """The fields in `only`, or all of them. Raises: E-DATA-005 (a field that the loader lacks)."""
    if only is None:
        return loader.fields.keys()
    for unknown in sorted(set(only) - loader.fields.keys()):
        _fail_unknown(loader, unknown)
    return only


def _fail_unknown(loader: BatchSource, unknown: str) -> Never:
    near = nearest(unknown, loader.fields)
    listed = "its fields are " + ", ".join(f"`{name}`" for name in loader.fields)
    fail(
        UNKNOWN_FIELD,
        f"the loader `{loader.name}` has no field `{unknown}`",
        help=(listed,) if near is None else (f"there is a `{near}`", listed),
    )


def _batches_per_epoch(loader: Loader) -> int:
    num_rows, batch, what = loader.num_rows, loader.batch_size, describe(loader.view.source)
    noun = "window" if isinstance(loader.view, Windows) else "row"
    if batch < 1:
        fail(
            TOO_SHORT,
            f"the loader `{loader.name}` has a batch of {batch}",
            help=("give `:batch` at least 1",),
        )
    if loader.last == "pad":
        return -(-num_rows // batch)
    if num_rows < batch:
        shorter = f", shorten `:length` (now {loader.view.length})" if isinstance(loader.view, Windows) else ""
        fail(
            TOO_SHORT,
            f"the loader `{loader.name}` wants batches of {count(batch, noun)}, and {what} has {count(num_rows, noun)}",
            help=(f"give `:batch` at most {num_rows}{shorter}, use more data, or fill up with `:last pad`",),
        )
    if loader.last == "error" and num_rows % batch:
        fail(
            TOO_SHORT,
            f"{what} has {count(num_rows, noun)}, which batches of {batch} do not divide: "
            f"{num_rows % batch} are left over, and the loader `{loader.name}` says `:last error`",
            help=(f"give `:batch` a divisor of {num_rows}, or say `:last drop` or `:last pad`",),
        )
    return num_rows // batch
