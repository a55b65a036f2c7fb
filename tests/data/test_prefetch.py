"""The prefetcher: order, bound, failure, and an end that hangs nobody."""

from __future__ import annotations

import gc
import threading
import time
from itertools import islice

import pytest

from sexpgpu.data import Prefetcher


def wait_until(condition: object, timeout_s: float = 5.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return bool(condition())


def test_in_order_from_first() -> None:
    with Prefetcher(lambda m: m * m, first=3) as items:
        assert list(islice(items, 50)) == [m * m for m in range(3, 53)]


def test_none_is_an_item() -> None:
    with Prefetcher(lambda m: None, first=0) as items:
        assert list(islice(items, 3)) == [None] * 3


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_never_further_ahead(ahead: int) -> None:
    made: list[int] = []
    with Prefetcher(lambda m: made.append(m) or m, first=0, ahead=ahead) as items:
        for taken in range(5):
            assert wait_until(lambda expected=taken + ahead: len(made) == expected)
            time.sleep(0.01)
            assert len(made) == taken + ahead
            assert next(items) == taken


def test_failure_arrives_in_its_turn() -> None:
    def make(m: int) -> int:
        if m == 2:
            raise ValueError("number two")
        return m

    with Prefetcher(make, first=0) as items:
        assert [next(items), next(items)] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="number two"):
                next(items)


def test_close_stops_the_thread() -> None:
    before = threading.active_count()
    items = Prefetcher(lambda m: m, first=0)
    assert next(items) == 0
    items.close()
    items.close()
    assert threading.active_count() == before
    assert list(items) == []


def test_close_wakes_a_waiting_consumer() -> None:
    gate = threading.Event()
    items = Prefetcher(lambda m: gate.wait(5), first=0)
    got: list[object] = []
    consumer = threading.Thread(target=lambda: got.append(next(items, "ended")))
    consumer.start()
    time.sleep(0.02)
    closer = threading.Thread(target=items.close)
    closer.start()
    consumer.join(2)
    assert not consumer.is_alive() and got == ["ended"]
    gate.set()
    closer.join(5)
    assert not closer.is_alive()


def test_forgotten_prefetcher_stops() -> None:
    before = threading.active_count()
    items = Prefetcher(lambda m: m, first=0)
    next(items)
    del items
    gc.collect()
    assert wait_until(lambda: threading.active_count() == before)
