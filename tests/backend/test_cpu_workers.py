"""Threads that share pieces of work: each piece once, errors and interrupts reach the caller, BLAS stays single."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from sexpgpu.backend.cpu.workers import SingleThreadedBlas, Workers


def blas_threads() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_piece_is_done_once(num_threads: int) -> None:
    workers = Workers(num_threads)
    for num_pieces in (0, 1, 2, 7, 300):
        done: list[int] = []
        workers.run(lambda lane, numbers, done=done: done.extend(numbers), num_pieces)
        assert sorted(done) == list(range(num_pieces))
    workers.close()


def test_both_threads_take_part() -> None:
    workers = Workers(2)
    both = threading.Barrier(2)

    def work(lane: int, numbers: Iterator[int]) -> None:
        for _ in numbers:
            both.wait(10)

    workers.run(work, 2)
    workers.close()


@pytest.mark.parametrize("lane_that_fails", [0, 1])
def test_an_error_of_any_thread_reaches_the_caller(lane_that_fails: int) -> None:
    workers = Workers(2)
    both = threading.Barrier(2)

    def work(lane: int, numbers: Iterator[int]) -> None:
        for _ in numbers:
            both.wait(10)
            if lane == lane_that_fails:
                raise MemoryError(f"lane {lane}")

    with pytest.raises(MemoryError, match=f"lane {lane_that_fails}"):
        workers.run(work, 2)
    done: list[int] = []
    workers.run(lambda lane, numbers: done.extend(numbers), 5)
    assert sorted(done) == list(range(5))
    workers.close()


def test_an_interrupted_call_leaves_no_thread_at_work() -> None:
    workers = Workers(2)
    both = threading.Barrier(2)
    finished: list[int] = []

    def work(lane: int, numbers: Iterator[int]) -> None:
        for _ in numbers:
            both.wait(10)
            if lane == 0:
                raise KeyboardInterrupt
            time.sleep(0.05)
            finished.append(lane)

    with pytest.raises(KeyboardInterrupt):
        workers.run(work, 2)
    assert finished == [1]
    workers.close()


def test_scratch_is_as_long_as_what_was_asked_for() -> None:
    workers = Workers(2)
    workers.reserve(100)
    first = workers.scratch(0)
    assert first.size == 100 and workers.scratch(1) is not first
    workers.reserve(50)
    assert workers.scratch(0) is first
    workers.close()


def test_blas_is_single_threaded_while_anyone_holds_it() -> None:
    before = blas_threads()
    first = SingleThreadedBlas()
    second = SingleThreadedBlas()
    assert blas_threads() == {1}
    first.release()
    first.release()
    assert blas_threads() == {1}
    second.release()
    assert blas_threads() == before
