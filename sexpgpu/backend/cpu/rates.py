"""What this machine's processor and memory do at best, measured in a moment: the roofline of predicted times.

Flow: a session measures it when a run with `--profile` is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from sexpgpu.backend.cpu.workers import Workers
from sexpgpu.backend.pieces import Rates

SIDE = 512
"""Of the matrices that are multiplied."""
COPY_BYTES = 1 << 25
"""Copied by each thread: more than a cache holds."""
TIMES = 5
LAUNCH_S = 1e-6


def measured_rates(num_threads: int) -> Rates:
    """Products of f32, and copies, by all threads at once; the best of a few turns."""
    x = np.ones((SIDE, SIDE), np.float32)
    products = [np.empty((SIDE, SIDE), np.float32) for _ in range(num_threads)]
    sources = [np.zeros(COPY_BYTES, np.uint8) for _ in range(num_threads)]
    targets = [np.zeros(COPY_BYTES, np.uint8) for _ in range(num_threads)]
    workers = Workers(num_threads)

    def multiply(number: int) -> None:
        np.matmul(x, x, out=products[number])

    def copy(number: int) -> None:
        np.copyto(targets[number], sources[number])

    def best(work: Callable[[int], None]) -> float:
        def share(lane: int, numbers: Iterator[int]) -> None:
            for number in numbers:
                work(number)

        found = []
        for _ in range(TIMES):
            began = time.perf_counter()
            workers.run(share, num_threads)
            found.append(time.perf_counter() - began)
        return min(found)

    try:
        flops_per_s = num_threads * 2 * SIDE**3 / best(multiply)
        bytes_per_s = num_threads * 2 * COPY_BYTES / best(copy)
    finally:
        workers.close()
    return Rates({"f32": flops_per_s}, bytes_per_s, LAUNCH_S)
