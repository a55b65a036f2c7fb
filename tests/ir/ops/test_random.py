"""Draws: published vectors, independence of the shape and the order, moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.ops.random import philox, words
from sexpgpu.ir.types import TensorType, TypeFault
from tests.ir.ops.calls import call

STREAM = np.array(0x299F31D0A4093822, np.int64)
TRIP = np.array(3, np.int32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    found = philox([np.full(3, word, np.uint64) for word in counter], key)
    for word, wanted in zip(found, expected, strict=True):
        assert word.tolist() == [wanted] * 3


def test_words_take_their_counter_and_key_from_stream_trip_and_site() -> None:
    found = words(int(STREAM), 0x85A308D3, 0x0370734413198A2E, 0x243F6A88, 1)
    assert found[:, 0].tolist() == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    np.testing.assert_array_equal(words(-1, -1, -1, 0, 2), words(2**64 - 1, 2**32 - 1, 2**64 - 1, 0, 2))


def bits(count: int, site: int = 5) -> Array:
    """The words in the order of the elements."""
    return words(int(STREAM), int(TRIP), site, 0, count).T.reshape(-1)


def test_uniform_is_the_upper_24_bits() -> None:
    found = call("random-uniform", STREAM, TRIP, shape=(3, 7), site=5)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.reshape(-1), ((bits(6) >> np.uint64(8)) * 2.0**-24)[:21])
    np.testing.assert_array_equal(found, call("random-uniform", STREAM, TRIP, double=True, shape=(3, 7), site=5))


def test_normal_is_the_transform_of_pairs() -> None:
    drawn = (bits(6) >> np.uint64(8)).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((drawn[:, 0] + 1) * 2.0**-24))
    angle = 2 * math.pi * drawn[:, 1] * 2.0**-24
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:21]
    single = call("random-normal", STREAM, TRIP, shape=(21,), site=5)
    double = call("random-normal", STREAM, TRIP, double=True, shape=(21,), site=5)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(double, expected, rtol=1e-12)
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=2e-6)


@given(st.integers(0, 200_000), st.sampled_from(["random-uniform", "random-normal"]))
def test_a_shorter_draw_is_the_beginning_of_a_longer_one(count: int, op: str) -> None:
    whole = call(op, STREAM, TRIP, shape=(200_000,), site=9)
    np.testing.assert_array_equal(call(op, STREAM, TRIP, shape=(count,), site=9), whole[:count])


def test_every_part_of_the_key_matters() -> None:
    base = call("random-uniform", STREAM, TRIP, shape=(8,), site=1)
    others = [
        call("random-uniform", STREAM + 1, TRIP, shape=(8,), site=1),
        call("random-uniform", STREAM + (1 << 40), TRIP, shape=(8,), site=1),
        call("random-uniform", STREAM, TRIP + np.int32(1), shape=(8,), site=1),
        call("random-uniform", STREAM, TRIP, shape=(8,), site=2),
        call("random-uniform", STREAM, TRIP, shape=(8,), site=1 + (1 << 40)),
    ]
    assert all((base != other).all() for other in others)


def test_streams_side_by_side() -> None:
    streams = np.array([[1, 2, 3], [-4, 5, 6]], np.int64)
    trips = np.arange(6, dtype=np.int32).reshape(2, 3)
    together = call("random-normal", streams, trips, shape=(5,), site=1)
    for place in np.ndindex(2, 3):
        alone = call("random-normal", np.array(streams[place]), np.array(trips[place]), shape=(5,), site=1)
        np.testing.assert_array_equal(together[place], alone)


def test_moments() -> None:
    count = 4_000_000
    z = call("random-normal", STREAM, TRIP, double=True, shape=(count,), site=7)
    error = 5 / math.sqrt(count)
    assert np.isfinite(z).all()
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(np.mean(z**power) - expected) < error * math.sqrt(spread)
    for lag in (1, 2, 4):
        assert abs(np.mean(z[lag:] * z[:-lag])) < error
    u = call("random-uniform", STREAM, TRIP, double=True, shape=(count,), site=7)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, 100, (0, 1))[0] - count / 100
    assert np.abs(counts).max() < 5 * math.sqrt(count / 100)


def test_faults() -> None:
    b = Builder()
    stream, trip = b.input("stream", TensorType("i64", (2,))), b.input("trip", TensorType("i32", (3,)))
    with pytest.raises(TypeFault):
        b.op("random-uniform", stream, trip, shape=(2,), site=0)
    with pytest.raises(TypeFault):
        b.op("random-uniform", trip, stream, shape=(2,), site=0)
