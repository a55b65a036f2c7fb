"""Large elementwise work in blocks: several operations on a block while it is in cache, blocks on all cores.

Flow: `steps` finds runs of elementwise steps of one shape; this executes such a run. Where blocks begin
depends on shapes alone, so results have the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from sexpgpu.ir.opdef import Array

BLOCK_ELEMENTS = 1 << 16
MIN_ELEMENTS = 1 << 16
"""Below this an operation runs whole: blocks would cost more than they save."""

Kernel = Callable[[Sequence[Array], Sequence[Array]], None]


@dataclass(frozen=True, slots=True)
class Elementwise:
    """One operation on whole arrays; `kernel` takes (inputs, outputs) and accepts the same slice of each."""

    kernel: Kernel
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


class Workers:
    """Threads that share blocks with the thread that calls."""

    def __init__(self, num_threads: int) -> None:
        self.num_helpers = num_threads - 1
        self._pool = ThreadPoolExecutor(num_threads - 1, "sexpgpu-cpu") if num_threads > 1 else None
        self._running: list[Future[None]] = []

    def run(self, work: Callable[[Iterator[int]], None], num_blocks: int) -> None:
        """Call `work` in every thread, all taking block numbers from one iterator, and wait for all."""
        self.settle()
        blocks = iter(range(num_blocks))
        if self._pool is None or num_blocks < 2:
            work(blocks)
            return
        self._running = []
        try:
            for _ in range(min(self.num_helpers, num_blocks - 1)):
                self._running.append(self._pool.submit(work, blocks))
            work(blocks)
        finally:
            wait(self._running)
        for future in self._running:
            future.result()
        self._running = []

    def settle(self) -> None:
        """Wait until nothing writes any more; an interrupted call may have left threads at work."""
        if self._running:
            wait(self._running)
            self._running = []

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def in_blocks(operations: Sequence[Elementwise], workers: Workers) -> Callable[[], None]:
    """A call that executes `operations`, all of one shape, block by block."""
    arrays = [a for operation in operations for a in (*operation.inputs, *operation.outputs)]
    merged = iter(_with_rows(arrays))
    plan = [
        (op.kernel, [next(merged) for _ in op.inputs], [next(merged) for _ in op.outputs])
        for op in operations
    ]
    num_rows, row_elements = len(plan[0][2][0]), math.prod(plan[0][2][0].shape[1:])
    rows = max(1, BLOCK_ELEMENTS // max(1, row_elements))
    num_blocks = -(-num_rows // rows)

    def work(blocks: Iterator[int]) -> None:
        with np.errstate(all="ignore"):
            for block in blocks:
                part = slice(block * rows, (block + 1) * rows)
                for kernel, inputs, outputs in plan:
                    kernel([x[part] for x in inputs], [y[part] for y in outputs])

    return lambda: workers.run(work, num_blocks)


def _with_rows(arrays: Sequence[Array]) -> list[Array]:
    """Views of `arrays`, all of one shape, with as many leading axes made one as all their strides allow."""
    shape = arrays[0].shape
    for kept in range(len(shape), 0, -1):
        merged = (math.prod(shape[:kept]), *shape[kept:])
        try:
            return [a.reshape(merged, copy=False) for a in arrays]
        except ValueError:
            continue
    raise AssertionError(shape)
