"""Runs of large elementwise operations and reductions, row block by row block, while a block is in the cache.

Every array of a run is seen as R rows; an operation makes row i of its result of row i of its operands:

    map      elementwise
    rows     a reduction of trailing axes
    columns  a reduction of leading axes, or of all: a partial result for each block, folded at the end

What only the run itself reads lives in scratch memory and never reaches the arena. Flow: `steps` offers step
after step; a run that refuses one is built and a new one begun. Where blocks begin depends on shapes alone,
so results have the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import numpy as np

from sexpgpu.backend.cpu.kernels import Kernel, map_kernel
from sexpgpu.backend.cpu.memory import Memory
from sexpgpu.backend.cpu.workers import Workers
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context, Work
from sexpgpu.ir.ops.rules import attr_ints
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import ARENA, Layout
from sexpgpu.plan.phase import Step

BLOCK_ELEMENTS = 1 << 15
"""Elements of the widest array in a block: a handful of such arrays fit the cache of a core."""
MIN_ELEMENTS = 1 << 14
"""Below this an operation runs whole: blocks would cost more than they save."""
SHARED_ELEMENTS = 1 << 17
"""Elements that a run must touch for threads to share it: below, waking one costs more than it saves."""
MAX_RUN = 64
"""Operations of one run, at most."""
KEPT_CALLS = 512
"""Calls of one run, at most, whose views each thread keeps."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a step: where it lies, and by which numbers of rows it can be cut.

    `strides` gives for each such number the distance in bytes from row to row, and the bytes that a row
    spans, from the first to past the last. Without rows it belongs to the run as a whole. An operand that is
    only read may have rows at uneven distances: `stretches` gives how many follow one another evenly.
    """

    array: Array
    layout: Layout
    writes: bool
    strides: dict[int, tuple[int, int, int]]
    low: int
    high: int
    stretches: dict[int, int]

    @property
    def row_counts(self) -> frozenset[int]:
        """The numbers of rows that it can be cut into."""
        return frozenset(self.strides) | frozenset(self.stretches)

    @property
    def key(self) -> tuple[Layout, str, tuple[int, ...]]:
        """Equal for operands that are the same elements in the same order."""
        return self.layout, self.array.dtype.str, self.array.shape

    def overlaps(self, other: Operand) -> bool:
        """Whether they share bytes, as far as their ends tell."""
        same = self.layout.buffer == other.layout.buffer
        return same and self.low < other.high and other.low < self.high

    def parts_by(self, other: Operand, num_rows: int) -> bool:
        """Whether row i of one touches nothing of another row of the other, cut into `num_rows`."""
        if num_rows not in self.strides or num_rows not in other.strides:
            return False
        stride, low, high = self.strides[num_rows]
        other_stride, other_low, other_high = other.strides[num_rows]
        return stride == other_stride > 0 and max(high, other_high) - min(low, other_low) <= stride


@dataclass(frozen=True, slots=True)
class Operation:
    """A step as a run sees it. `kernel` takes the rows of all inputs, then those of the outputs.

    fold: for `columns`: folds the partial results of all blocks into the output.
    """

    step: Step
    kernel: Kernel
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    row_counts: frozenset[int]
    fold: Callable[[Array, Array], Any] | None = None

    @property
    def num_elements(self) -> int:
        """Of its largest operand."""
        return max(o.array.size for o in (*self.inputs, *self.outputs))


def operation(step: Step, memory: Memory, ctx: Context) -> Operation | None:
    """`step` as an operation of a run, or None where it cannot be one."""
    node = step.node
    op = OPS[node.op]
    inputs = [memory.view(layout, v.type) for layout, v in zip(step.inputs, node.inputs, strict=True)]
    outputs = [memory.view(layout, t) for layout, t in zip(step.outputs, node.types, strict=True)]
    if min(a.size for a in (*inputs, *outputs)) == 0 or not node.inputs or inputs[0].ndim == 0:
        return None
    if op.work is Work.MAP and not op.reports:  # a block knows no places outside of it
        limit = inputs[0].size
        found = [_operand(a, layout, False, limit) for a, layout in zip(inputs, step.inputs, strict=True)]
        made = [_operand(a, layout, True, limit) for a, layout in zip(outputs, step.outputs, strict=True)]
        counts = frozenset.intersection(*[o.row_counts for o in (*found, *made)])
        return Operation(step, map_kernel(ctx, node), tuple(found), tuple(made), counts)
    if op.work is Work.REDUCE and op.ufunc is not None:
        return _reduction(step, op.ufunc, inputs[0], outputs[0], ctx)
    return None


def _reduction(step: Step, ufunc: np.ufunc, x: Array, out: Array, ctx: Context) -> Operation | None:
    axes = attr_ints(step.node.attrs, "axes")
    rank, dtype = x.ndim, ctx.dtype(step.node.types[0])
    if not axes:
        return None
    if axes == tuple(range(len(axes))):
        limit = math.prod(x.shape[: len(axes)])
        source = _operand(x, step.inputs[0], False, limit)
        target = _operand(out, step.outputs[0], True, 0)
        fold = partial(_fold, ufunc, dtype)
        kernel = partial(_reduce_columns, ufunc, dtype, rank - len(axes))
        return Operation(step, kernel, (source,), (target,), source.row_counts, fold)
    if axes == tuple(range(rank - len(axes), rank)):
        source = _operand(x, step.inputs[0], False, out.size)
        target = _operand(out, step.outputs[0], True, out.size)
        counts = source.row_counts & target.row_counts
        kernel = partial(_reduce_rows, ufunc, dtype, len(axes))
        return Operation(step, kernel, (source,), (target,), counts)
    return None


def _reduce_rows(ufunc: np.ufunc, dtype: np.dtype[Any], num_axes: int, x: Array, out: Array) -> None:
    ufunc.reduce(x, tuple(range(x.ndim - num_axes, x.ndim)), dtype, out)


def _reduce_columns(ufunc: np.ufunc, dtype: np.dtype[Any], num_kept: int, x: Array, out: Array) -> None:
    ufunc.reduce(x, tuple(range(x.ndim - num_kept)), dtype, out)


def _fold(ufunc: np.ufunc, dtype: np.dtype[Any], partials: Array, out: Array) -> None:
    ufunc.reduce(partials, 0, dtype, out)


def _operand(array: Array, layout: Layout, writes: bool, limit: int) -> Operand:
    """limit: the most rows."""
    shape, strides, item, start = array.shape, array.strides, array.itemsize, layout.offset_bytes
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    found: dict[int, tuple[int, int, int]] = {}
    stretches: dict[int, int] = {}
    for kept, num_rows in enumerate(accumulate(shape, mul), 1):
        if num_rows > limit:
            break
        if _merge(shape[:kept], strides[:kept]):
            step = next(
                (t for n, t in zip(reversed(shape[:kept]), reversed(strides[:kept]), strict=True) if n > 1), 0
            )
            low, high = _span(reach[kept:], item)
            found[num_rows] = (step, start + low, start + high)
        elif not writes:
            first = next(i for i in range(kept) if _merge(shape[i:kept], strides[i:kept]))
            stretches[num_rows] = math.prod(shape[first:kept])
    low, high = _span(reach, item)
    return Operand(array, layout, writes, found, start + low, start + high, stretches)


def _span(reach: Sequence[int], item_bytes: int) -> tuple[int, int]:
    """Bytes from element 0, from the first that axes reach to past the last."""
    return sum([min(0, r) for r in reach]), sum([max(0, r) for r in reach]) + item_bytes


def _merge(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these axes can be walked as one."""
    real = [(n, t) for n, t in zip(shape, strides, strict=True) if n != 1]
    return all(outer == inner * n for (_, outer), (n, inner) in pairwise(real))


def _rows_of_a_block(row_elements: int, stretch: int) -> int:
    """stretch: of how many rows a block must be a part, without remainder; 0: of none."""
    most = max(1, BLOCK_ELEMENTS // row_elements)
    return most if not stretch else max([n for n in range(1, min(most, stretch) + 1) if stretch % n == 0])


def _worth_cutting(row_elements: int, stretch: int) -> bool:
    if row_elements > BLOCK_ELEMENTS:
        return False
    return not stretch or 16 * row_elements * _rows_of_a_block(row_elements, stretch) >= BLOCK_ELEMENTS


@dataclass(slots=True)
class Run:
    """Operations that share one walk over their rows, while it is put together.

    private: operands, as (operation, operand), of values that have ended and were the run's alone: they will lie in
    scratch memory, so that others may have their place in the arena.
    """

    operations: list[Operation] = field(default_factory=list)
    row_counts: frozenset[int] = frozenset()
    num_elements: int = 0
    largest: int = 0
    stretches: dict[int, int] = field(default_factory=dict)
    deaths: list[tuple[int, int, int]] = field(default_factory=list)
    private: set[tuple[int, int]] = field(default_factory=set)

    def add(self, operation: Operation) -> bool:
        """Take `operation` in; False, and nothing changes, where it does not fit."""
        if len(self.operations) == MAX_RUN:
            return False
        counts = operation.row_counts & self.row_counts if self.operations else operation.row_counts
        operands = (*operation.inputs, *operation.outputs)
        for position, before in enumerate(self.operations):
            if not counts:
                return False
            for place, earlier in enumerate((*before.inputs, *before.outputs)):
                if (position, place) in self.private:
                    continue
                for operand in operands:
                    if (earlier.writes or operand.writes) and earlier.overlaps(operand):
                        counts = frozenset([n for n in counts if operand.parts_by(earlier, n)])
        largest = max(self.largest, operation.num_elements)
        stretches = {n: math.gcd(self.stretches.get(n, 0), *[o.stretches.get(n, 0) for o in operands]) for n in counts}
        counts = frozenset([n for n in counts if n > 1 and _worth_cutting(largest // n, stretches[n])])
        if not counts:
            return False
        self.operations.append(operation)
        self.row_counts, self.largest, self.stretches = counts, largest, stretches
        self.num_elements += operation.num_elements
        self._note_deaths()
        return True

    def _note_deaths(self) -> None:
        """Values that ended with the last operation, and that only the run ever read, keep no place any more."""
        ended = [(start, start + size) for start, size in self.operations[-1].step.dies]
        self.deaths += [(len(self.operations) - 1, low, high) for low, high in ended]
        if not ended:
            return
        for position, op in enumerate(self.operations):
            for place, made in enumerate(op.outputs, len(op.inputs)):
                if (position, place) in self.private or not any(
                    low <= made.low and made.high <= high for low, high in ended
                ):
                    continue
                uses = _uses(self.operations, position, made, self.deaths)
                if uses is not None:
                    self.private.update(((position, place), *uses))

    def build(self, workers: Workers) -> BlockCall:
        """The call that executes the run."""
        num_rows = max(self.row_counts, key=lambda n: (self._block_elements(n), n))
        stretch = self.stretches[num_rows]
        rows = _rows_of_a_block(self.largest // num_rows, stretch)
        if not stretch:
            rows = -(-num_rows // -(-num_rows // rows))
        return BlockCall(self.operations, num_rows, rows, self.num_elements >= SHARED_ELEMENTS, workers)

    def _block_elements(self, num_rows: int) -> int:
        """How full blocks are; a little less does not matter."""
        row_elements = self.largest // num_rows
        return (8 * row_elements * _rows_of_a_block(row_elements, self.stretches[num_rows])) // BLOCK_ELEMENTS

    def steps(self) -> list[Step]:
        """What it consists of."""
        return [operation.step for operation in self.operations]


@dataclass(frozen=True, slots=True)
class _Temporary:
    """A value in scratch memory: its offset there, and the shape and dtype of one row."""

    offset: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """An operand whose rows do not lie evenly: its part in each block."""

    of_block: list[Array]


_Bound = list[tuple[Kernel, bool, list[tuple[Any, int]]]]
"""Kernel, whether its output is a partial result, and each operand with where it is to be had from."""
SLICED, SCRATCH, LISTED = range(3)


@dataclass(frozen=True, slots=True)
class _Planned:
    """An operation of a built run: arrays seen as rows, or what stands for them in scratch memory."""

    kernel: Kernel
    operands: tuple[Array | _Temporary | _Pieces, ...]


class BlockCall:
    """A run, ready to be called."""

    def __init__(
        self, operations: Sequence[Operation], num_rows: int, rows: int, shared: bool, workers: Workers
    ) -> None:
        self.nodes: list[Node] = [operation.step.node for operation in operations]
        self._workers = workers
        self._num_rows, self._rows = num_rows, rows
        self._num_blocks = -(-num_rows // rows)
        self._shared = shared
        self._folds: list[Callable[[], Any]] = []
        temporaries = _temporaries(operations, num_rows, rows)
        self._planned: list[_Planned] = []
        for position, op in enumerate(operations):
            operands: list[Array | _Temporary | _Pieces] = []
            for place, operand in enumerate(op.inputs):
                if num_rows in operand.stretches:
                    operands.append(_Pieces(_pieces(operand.array, num_rows, rows)))
                else:
                    operands.append(temporaries.get((position, place)) or _as_rows(operand.array, num_rows))
            for place, operand in enumerate(op.outputs, len(op.inputs)):
                if op.fold is None:
                    operands.append(temporaries.get((position, place)) or _as_rows(operand.array, num_rows))
                else:
                    partials = np.empty((self._num_blocks, *operand.array.shape), operand.array.dtype)
                    operands.append(partials)
                    self._folds.append(partial(op.fold, partials, operand.array))
            self._planned.append(_Planned(op.kernel, tuple(operands)))
        self._folded = [op.fold is not None for op in operations]
        used = [t.offset + aligned(rows * math.prod(t.row_shape) * t.dtype.itemsize) for t in temporaries.values()]
        workers.reserve(max(used, default=0))
        self._lanes: list[_Bound | None] = [None] * workers.num_threads
        self._calls_of: list[dict[int, list[tuple[Kernel, list[Array]]]]]
        self._calls_of = [{} for _ in range(workers.num_threads)]

    @property
    def scratch_values(self) -> int:
        """How many operands lie in scratch memory."""
        return sum(isinstance(o, _Temporary) for planned in self._planned for o in planned.operands)

    def __call__(self) -> None:
        if self._shared:
            self._workers.run(self._work, self._num_blocks)
        else:
            self._work(0, iter(range(self._num_blocks)))
        for fold in self._folds:
            fold()

    def _work(self, lane: int, blocks: Iterator[int]) -> None:
        calls_of = self._calls_of[lane]
        for block in blocks:
            for kernel, arrays in calls_of.get(block) or self._of_block(lane, block):
                kernel(*arrays)

    def _of_block(self, lane: int, block: int) -> list[tuple[Kernel, list[Array]]]:
        """The calls of one block; small runs keep theirs."""
        rows = self._rows
        start, stop = block * rows, min((block + 1) * rows, self._num_rows)
        part, count = slice(start, stop), stop - start
        whole = count == rows
        calls = []
        for kernel, folded, operands in self._lanes[lane] or self._bind(lane):
            arrays = [
                a[part] if kind == SLICED else (a if whole else a[:count]) if kind == SCRATCH else a[block]
                for a, kind in operands
            ]
            if folded:
                arrays[-1] = operands[-1][0][block, ...]
            calls.append((kernel, arrays))
        if len(self.nodes) * self._num_blocks <= KEPT_CALLS:
            self._calls_of[lane][block] = calls
        return calls

    def _bind(self, lane: int) -> _Bound:
        memory = self._workers.scratch(lane).data
        plan: _Bound = []
        for planned, folded in zip(self._planned, self._folded, strict=True):
            operands: list[tuple[Any, int]] = []
            for operand in planned.operands:
                if isinstance(operand, _Temporary):
                    shape = (self._rows, *operand.row_shape)
                    operands.append((np.ndarray(shape, operand.dtype, memory, operand.offset), SCRATCH))
                elif isinstance(operand, _Pieces):
                    operands.append((operand.of_block, LISTED))
                else:
                    operands.append((operand, SLICED))
            plan.append((planned.kernel, folded, operands))
        self._lanes[lane] = plan
        return plan


def _as_rows(array: Array, num_rows: int) -> Array:
    """A view of `array` with its leading axes made one of `num_rows`."""
    kept = next(i for i, n in enumerate(accumulate(array.shape, mul), 1) if n == num_rows)
    return array.reshape((num_rows, *array.shape[kept:]), copy=False)


def _pieces(array: Array, num_rows: int, rows: int) -> list[Array]:
    """The parts of `array`, cut into `num_rows`, of `rows` rows each, which divide an even stretch of them."""
    shape, strides = array.shape, array.strides
    kept = next(i for i, n in enumerate(accumulate(shape, mul), 1) if n == num_rows)
    first = next(i for i in range(kept) if _merge(shape[i:kept], strides[i:kept]))
    inner = math.prod(shape[first:kept])
    parts = []
    for place in np.ndindex(shape[:first]):
        even = array[place].reshape((inner, *shape[kept:]), copy=False)
        parts += [even[start : start + rows] for start in range(0, inner, rows)]
    return parts


def _temporaries(
    operations: Sequence[Operation], num_rows: int, rows: int
) -> dict[tuple[int, int], _Temporary]:
    """By (operation, operand): the values that only the run reads, with offsets in scratch memory."""
    dead_at: list[tuple[int, int, int]] = [
        (position, start, start + size)
        for position, op in enumerate(operations)
        for start, size in op.step.dies
    ]
    found: dict[tuple[int, int], _Temporary] = {}
    busy: list[tuple[int, int, int]] = []  # (last use, offset, end)
    for position, op in enumerate(operations):
        for place, made in enumerate(op.outputs, len(op.inputs)):
            uses = _uses(operations, position, made, dead_at)
            if uses is None:
                continue
            row_shape = _as_rows(made.array, num_rows).shape[1:]
            num_bytes = aligned(rows * math.prod(row_shape) * made.array.itemsize)
            last = max([p for p, _ in uses], default=position)
            busy = [b for b in busy if b[0] >= position]
            offset = 0
            for _, start, end in sorted(busy, key=lambda b: b[1]):
                if offset + num_bytes <= start:
                    break
                offset = max(offset, end)
            busy.append((last, offset, offset + num_bytes))
            value = _Temporary(offset, row_shape, made.array.dtype)
            for use in ((position, place), *uses):
                found[use] = value
    return found


def _uses(
    operations: Sequence[Operation], position: int, made: Operand, dead_at: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int]] | None:
    """The later reads of a value, as (operation, operand); None if it must be kept in its place."""
    if operations[position].fold is not None or made.layout.buffer != ARENA:
        return None
    uses: list[tuple[int, int]] = []
    for later in range(position, len(operations)):
        op = operations[later]
        if later > position:
            for place, read in enumerate(op.inputs):
                if read.overlaps(made):
                    if read.key != made.key:
                        return None
                    uses.append((later, place))
            for written in op.outputs:
                if written.overlaps(made):
                    return uses if written.key == made.key and op.fold is None else None
        if any(at == later and low <= made.low and made.high <= high for at, low, high in dead_at):
            return uses
    return None
