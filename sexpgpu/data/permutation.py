"""The order of an epoch's rows, drawn from a key and without repetition.

Up to `LARGEST_STORED_ORDER` rows the order is an array. Beyond that it is a function: a keyed bijection on
0 .. size - 1 that computes each place when asked, so nothing large exists.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST_STORED_ORDER = 50_000_000
NUM_ROUNDS = 10


def epoch_generator(seed: int, name: str, epoch: int) -> np.random.Generator:
    """The generator of everything that a loader draws for one epoch.

    A 128-bit Philox key is the BLAKE2b hash of seed, name and epoch, so neighbouring seeds and epochs share
    nothing.
    """
    key = hashlib.blake2b(f"{seed}\0{epoch}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype="<u8")))


@dataclass(frozen=True, eq=False)
class StoredOrder:
    """A permutation of 0 .. size - 1 as an array."""

    order: NDArray[np.integer]

    def __call__(self, places_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these places of the order. Shapes: `[B]` → `[B]`."""
        return self.order[places_B].astype(np.int64)


@dataclass(frozen=True, eq=False)
class FeistelOrder:
    """A permutation of 0 .. size - 1 as a keyed function.

    A number is split into two digits (base `low`, base `high`), and each round adds a hash of one digit to
    the other: a bijection on 0 .. low·high - 1. What lands at or beyond `size` is sent through again, until
    it lands below.

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002 (generalised Feistel, cycle
    walking).
    """

    size: int
    keys: NDArray[np.uint64]

    def __call__(self, places_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these places of the order. Shapes: `[B]` → `[B]`."""
        rows_B = self._once(places_B.astype(np.uint64))
        outside_B = rows_B >= self.size
        while outside_B.any():
            rows_B[outside_B] = self._once(rows_B[outside_B])
            outside_B = rows_B >= self.size
        return rows_B.astype(np.int64)

    def _once(self, numbers_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low = math.isqrt(self.size - 1) + 1
        high = -(-self.size // low)
        high_B, low_B = np.divmod(numbers_B, np.uint64(low))
        for even_key, odd_key in self.keys.reshape(-1, 2):
            low_B = (low_B + mixed(high_B, even_key) % np.uint64(low)) % np.uint64(low)
            high_B = (high_B + mixed(low_B, odd_key) % np.uint64(high)) % np.uint64(high)
        return high_B * np.uint64(low) + low_B


Order = StoredOrder | FeistelOrder


def draw_order(
    size: int, generator: np.random.Generator, largest_stored: int = LARGEST_STORED_ORDER
) -> Order:
    """A uniform permutation of 0 .. size - 1 (stored), or above `largest_stored` a computed one."""
    if size > largest_stored:
        return FeistelOrder(size, generator.integers(0, 1 << 64, size=NUM_ROUNDS, dtype=np.uint64))
    order: NDArray[np.integer] = np.arange(size, dtype=np.min_scalar_type(-size))
    generator.shuffle(order)
    return StoredOrder(order)


def mixed(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """A hash of 64 bits. Source: Steele et al., the finaliser of SplitMix64."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
