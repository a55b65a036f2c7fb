"""Loaders made of several: streams that go on from batch to batch, mixtures of views, loaders read side by side.

All of them answer the loader's one question, which rows are batch number m, and depend on nothing else.

Shape suffixes: B rows of a batch, M microbatches of a block, S sources.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import TOO_SHORT, UNKNOWN_FIELD, count, fail
from sexpgpu.data.loader import VALID, BatchSource, Fields, Loader, View, check_fields
from sexpgpu.data.permutation import mixed
from sexpgpu.data.views import Streams, Windows, describe
from sexpgpu.diagnostics import DiagnosticError

BLOCK = 256
"""Microbatches whose choices are drawn together; what each source gave is remembered at the start of each block."""
BLOCKS_KEPT = 2


class StreamLoader:
    """Rows that go on where the same row of the microbatch before left off.

    A text is cut into `groups` · `batch` stretches. Number m belongs to group m mod `groups`, the microbatch of
    its step, and reads the next window of each of that group's stretches; after the last one all begin anew.
    `first` marks the window that begins a stretch.

    Raises: E-DATA-003 (a stretch shorter than one window).
    """

    def __init__(self, name: str, view: Streams, batch: int, groups: int) -> None:
        self.name = name
        self.view = view
        self.batch_size = batch
        self.groups = groups
        self.windows = Windows(view.source, view.length)
        num_stretches = batch * groups
        self.windows_per_stretch = self.windows.num_rows // num_stretches
        if not self.windows_per_stretch:
            fail(
                TOO_SHORT,
                f"the loader `{name}` reads {count(num_stretches, 'stream')} at once, and {describe(view.source)} "
                f"has {count(self.windows.num_rows, 'window')} of length {view.length}",
                help=("give a smaller `:batch` or `:length`, fewer `:microbatches`, or use more data",),
            )
        self.batches_per_epoch = self.windows_per_stretch * groups
        fields = {name: (dtype, (batch, *shape)) for name, (dtype, shape) in view.fields.items()}
        self.fields: Fields = {**fields, "first": ("bool", (batch,)), VALID: ("bool", (batch,))}
        self.padding: Mapping[str, str] = {}
        self.tokens_per_batch: int | None = batch * view.length

    def batch(self, m: int, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
        """Global microbatch m. Raises: as `Loader.batch`."""
        wanted = check_fields(self, only)
        turn, group = divmod(m, self.groups)
        place = turn % self.windows_per_stretch
        lanes_B = group * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        found = self.windows.take(lanes_B * self.windows_per_stretch + place, 0, wanted)
        if "first" in wanted:
            found["first"] = np.full(self.batch_size, place == 0)
        if VALID in wanted:
            found[VALID] = np.ones(self.batch_size, np.bool_)
        return found

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of this loader."""
        return ["streams", repr(sorted(self.fields.items())), self.batch_size, self.groups, self.batches_per_epoch]


class Mixture:
    """Batches whose rows are each of one of several views, chosen by weights that may depend on the step.

    The choices of number m depend on (seed, name, m) and the weights of its step alone. A source gives its rows
    in its own order without repetition: how many it gave before number m follows from the choices before m.

    weights: from a step, counted from 1, to a number per view. description: the weights, for the digest.
    per_step: numbers that belong to one step.

    Raises: E-DATA-005 (views whose fields differ), E-DATA-003 (later, at a step where no weight is positive).
    """

    def __init__(
        self,
        name: str,
        views: Sequence[View],
        weights: Callable[[int], Sequence[float]],
        description: str,
        batch: int,
        shuffle: bool = False,
        seed: int = 0,
        per_step: int = 1,
    ) -> None:
        self.name = name
        self.batch_size = batch
        self.description = description
        self.per_step = per_step
        self.sources = tuple(Loader(f"{name}/{i}", view, 1, shuffle, "drop", seed) for i, view in enumerate(views))
        for other in views[1:]:
            if other.fields != views[0].fields:
                fail(
                    UNKNOWN_FIELD,
                    f"the loader `{name}` mixes views whose fields differ: {_shown(views[0].fields)} of "
                    f"{describe(views[0].source)}, and {_shown(other.fields)} of {describe(other.source)}",
                    help=("give all views the same fields, and windows the same `:length`",),
                )
        self.batches_per_epoch = max(1, sum(source.num_rows for source in self.sources) // batch)
        fields = {name: (dtype, (batch, *shape)) for name, (dtype, shape) in views[0].fields.items()}
        self.fields: Fields = {**fields, VALID: ("bool", (batch,))}
        self.padding: Mapping[str, str] = {}
        per_row = self.sources[0].tokens_per_batch
        self.tokens_per_batch = None if per_row is None else per_row * batch
        self._weights = weights
        key = hashlib.blake2b(f"mix\0{seed}\0{name}".encode(), digest_size=8).digest()
        self._key = np.frombuffer(key, dtype="<u8")[0]
        self._lock = threading.Lock()
        # How many rows each source gave before each block; one entry more than the blocks drawn so far.
        self._given: list[NDArray[np.int64]] = [np.zeros(len(self.sources), np.int64)]
        self._blocks: dict[int, NDArray[np.int64]] = {}

    def batch(self, m: int, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
        """Global microbatch m. Raises: as `Loader.batch`, and E-DATA-003."""
        wanted = check_fields(self, only)
        given_S, choice_B = self.choices(m)
        found: dict[str, NDArray[Any]] = {}
        for s, source in enumerate(self.sources):
            rows_B = np.flatnonzero(choice_B == s)
            if not rows_B.size:
                continue
            numbers_B = given_S[s] + np.arange(rows_B.size, dtype=np.int64)
            for name, part in source.rows(numbers_B, wanted).items():
                whole = found.setdefault(name, np.empty((self.batch_size, *part.shape[1:]), part.dtype))
                whole[rows_B] = part
        if VALID in wanted:
            found[VALID] = np.ones(self.batch_size, np.bool_)
        return found

    def choices(self, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many rows each source gave before number m, `[S]`, and the source of each of its rows, `[B]`."""
        number, place = divmod(m, BLOCK)
        with self._lock:
            while len(self._given) <= number:
                block = len(self._given) - 1
                drawn_MB = self._draw(block)
                self._check(block, drawn_MB)
                self._given.append(self._given[-1] + self._counts(drawn_MB))
            if number not in self._blocks:
                self._blocks[number] = self._draw(number)
                while len(self._blocks) > BLOCKS_KEPT:
                    del self._blocks[next(iter(self._blocks))]
            block_MB = self._blocks[number]
        self._check(number, block_MB[: place + 1])
        return self._given[number] + self._counts(block_MB[:place]), block_MB[place]

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of this loader."""
        return ["mix", self.description, self.batch_size, self.per_step, [s.identity() for s in self.sources]]

    def _counts(self, choices_MB: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(choices_MB.reshape(-1), minlength=len(self.sources)).astype(np.int64)

    def _check(self, block: int, choices_MB: NDArray[np.int64]) -> None:
        """Raise E-DATA-003 at the first of these steps that has no choices; a later step may never come."""
        without = np.flatnonzero((choices_MB < 0).any(axis=1))
        if without.size:
            self._bounds((block * BLOCK + int(without[0])) // self.per_step + 1)

    def _draw(self, block: int) -> NDArray[np.int64]:
        """The sources of the rows of one block, `[M, B]`; −1 where the weights of a step do not allow a choice."""
        first = block * BLOCK
        numbers_M = np.arange(first, first + BLOCK)
        steps_M = numbers_M // self.per_step + 1
        at = np.arange(first * self.batch_size, (first + BLOCK) * self.batch_size, dtype=np.uint64)
        uniform_MB = ((mixed(at, self._key) >> np.uint64(11)) * 2.0**-53).reshape(BLOCK, self.batch_size)
        choice_MB = np.full(uniform_MB.shape, -1, np.int64)
        alike: dict[tuple[float, ...], list[int]] = {}
        for step in np.unique(steps_M).tolist():
            alike.setdefault(tuple(self._weights(step)), []).append(step)
        for steps in alike.values():
            with suppress(DiagnosticError):
                rows_M = np.isin(steps_M, steps)
                choice_MB[rows_M] = np.searchsorted(self._bounds(steps[0]), uniform_MB[rows_M], side="right")
        return choice_MB

    def _bounds(self, step: int) -> NDArray[np.float64]:
        """Where the share of each source ends, but for the last that has one."""
        weights_S = np.asarray(self._weights(step), np.float64)
        if not np.isfinite(weights_S).all() or (weights_S < 0).any() or not weights_S.sum() > 0:
            fail(
                TOO_SHORT,
                f"at step {step} the loader `{self.name}` mixes by the weights {weights_S.round(6).tolist()}",
                help=("weights are numbers from 0 up, and at every step one of them is above 0",),
            )
        ends_S = np.cumsum(weights_S / weights_S.sum())
        ends_S[np.flatnonzero(weights_S)[-1] :] = np.inf  # rounding leaves no gap below 1
        return ends_S[:-1]


class Zipped:
    """Loaders read side by side: field `x` of the loader called `a` is `a.x`; every part reads number m.

    An epoch is as long as that of its shortest part.
    """

    def __init__(self, name: str, parts: Mapping[str, BatchSource]) -> None:
        self.name = name
        self.parts = dict(parts)
        self.fields: Fields = {f"{a}.{x}": type for a, part in self.parts.items() for x, type in part.fields.items()}
        self.batches_per_epoch = min(part.batches_per_epoch for part in self.parts.values())
        self.padding: Mapping[str, str] = {
            f"{a}.{prefix}": f"{a}.{valid}" for a, part in self.parts.items() for prefix, valid in part.padding.items()
        }
        tokens = [part.tokens_per_batch for part in self.parts.values()]
        known = [n for n in tokens if n is not None]
        self.tokens_per_batch = sum(known) if len(known) == len(tokens) else None

    def batch(self, m: int, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
        """Number m of every part that `only` names a field of. Raises: as the parts do."""
        wanted = check_fields(self, only)
        found: dict[str, NDArray[Any]] = {}
        for a, part in self.parts.items():
            own = [name.removeprefix(f"{a}.") for name in wanted if name.startswith(f"{a}.")]
            if own:
                found.update({f"{a}.{x}": value for x, value in part.batch(m, own).items()})
        return found

    def identity(self) -> list[Any]:
        """What the experiment's digest knows of this loader."""
        return ["zip", {a: part.identity() for a, part in self.parts.items()}]


def _shown(fields: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    return " ".join(f"`{name}` ({' '.join(map(str, (dtype, *shape)))})" for name, (dtype, shape) in fields.items())
