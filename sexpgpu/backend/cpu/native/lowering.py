"""Steps of a plan as calls: stretches of C actions, and Python calls for what has none.

Flow: `steps` asks a `Native` for the calls of each phase when a plan is opened, and links them when all are there: then
the texts of all kernels are known, and are compiled together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sexpgpu.backend.cpu.memory import Memory
from sexpgpu.backend.cpu.native.attention import ATTENTION_TEXTS, attention_of, is_attention
from sexpgpu.backend.cpu.native.attention import scratch_bytes as attention_scratch
from sexpgpu.backend.cpu.native.batches import Span, batches
from sexpgpu.backend.cpu.native.compiler import Compiler, unit_count
from sexpgpu.backend.cpu.native.convolution import TEXT as CONVOLUTION_TEXT
from sexpgpu.backend.cpu.native.convolution import convolution_of, has_kernel
from sexpgpu.backend.cpu.native.driver import ACTION, Pool, driver
from sexpgpu.backend.cpu.native.groups import MAX_OPERATIONS, MAX_PASSED, Group, longest_group
from sexpgpu.backend.cpu.native.indexed import TEXTS as INDEXED_TEXTS
from sexpgpu.backend.cpu.native.indexed import indexed_of
from sexpgpu.backend.cpu.native.made_of import FOLD, MadeOf, group_made_of, step_made_of
from sexpgpu.backend.cpu.native.operations import COLUMN, MAP, Operand, Operation, Place, operations_of
from sexpgpu.backend.cpu.native.prelude import PRELUDE
from sexpgpu.backend.cpu.native.printer import Kernel, Partial, Watch, is_spelt, print_fold, print_group
from sexpgpu.backend.cpu.native.products import SCRATCH_BYTES, products_of
from sexpgpu.backend.cpu.native.products import TEXT as PRODUCTS_TEXT
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Work
from sexpgpu.ir.ops.index import outside_message
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, contiguous, is_contiguous
from sexpgpu.plan.phase import Step

PIECE_ELEMENTS = 1 << 14
"""Elements that a piece of work walks over, about: enough to be worth a turn, few enough to share."""
COLUMN_PIECES = 16
"""Pieces that leave partial results of columns, at most."""
PIECE_OPERATIONS = 2_000_000
"""Floating-point operations of a piece of products, about."""
COPY_BYTES = 1 << 18
"""Bytes of a piece of a copy."""
SHARED_OPERATIONS = 1 << 18
"""Operations on elements below which one thread does an action, or a batch, alone: about twenty microseconds."""
STRETCH_OPERATIONS = 1 << 32
"""The same after which Python gets its turn: it looks for interrupts between stretches, a few times a second."""
STEPS_AHEAD = 512
"""Steps that are cut into groups at a time."""
WINDOW = MAX_OPERATIONS + MAX_PASSED
"""Operations among which a group is looked for."""
PRODUCT_RATE = 8
"""Floating-point operations of a product that take as long as one operation on an element."""
WORK = {"exp": 8, "log": 8, "tanh": 12, "sigmoid": 14, "erf": 16, "div": 2, "sqrt": 2, "rsqrt": 3}
"""What functions cost; an addition costs 1."""

NOTHING = 2**64 - 1
"""What a cell holds where every index was in range."""
PACKED = "packed"
"""A buffer that stands for the memory which kernels share from action to action."""
ANYWHERE = "anywhere"
"""A buffer that stands for all of memory, by address."""
LENT_BYTES = 1 << 20
"""Of that memory, what partial results take in turn, so that few wait for others."""

PreparedCall = Callable[[], Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Action:
    """A call of a function: see `Stretch.add`."""

    name: str
    operands: np.ndarray
    count: int
    step: int
    work: int
    spans: tuple[Span, ...]

    @property
    def turns(self) -> int:
        """Pieces, if threads should share them."""
        return -(-self.count // self.step) if self.work >= SHARED_OPERATIONS else 1


class Stretch:
    """Actions that run without Python in between, prepared; `link` makes them callable."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.made_of: list[MadeOf] = []
        self.work = 0
        self._actions: list[_Action] = []
        self._table = self._alone = np.zeros(0, ACTION)
        self._run: Callable[[int, int], None] | None = None

    def add(
        self, name: str, operands: np.ndarray, count: int, step: int, work: int, spans: Sequence[Span],
        made_of: MadeOf = FOLD,
    ) -> None:  # fmt: skip
        """The function `name` over `count` things, in pieces of `step`.

        work: operations of all of it, about. spans: what it reads and writes.
        """
        self._actions.append(_Action(name, operands, count, step, work, tuple(spans)))
        self.made_of.append(made_of._replace(function=name))
        self.work += work

    def link(self, addresses: dict[str, int], pool: Pool) -> None:
        """Fill in where functions lie, and order actions by batches."""
        found = batches([action.spans for action in self._actions])
        self._table = _table([[self._actions[number] for number in batch] for batch in found], addresses)
        self._alone = _table([[action] for action in self._actions], addresses)
        self._run = pool.run

    def __call__(self) -> None:
        assert self._run is not None
        self._run(self._table.ctypes.data, len(self._table))

    def run_each(self, done: Callable[[], None]) -> None:
        """Run action by action, in the order in which they were added; `done` is called after each."""
        assert self._run is not None
        for number in range(len(self._alone)):
            self._run(self._alone.ctypes.data + number * ACTION.itemsize, 1)
            done()

    def __len__(self) -> int:
        return len(self._actions)


def _table(found: Sequence[Sequence[_Action]], addresses: dict[str, int]) -> np.ndarray:
    """Batches of actions as the driver takes them."""
    rows: list[tuple[int, ...]] = []
    for batch in found:
        turns, shared = sum([a.turns for a in batch]), sum([a.work for a in batch]) >= SHARED_OPERATIONS
        for a in batch:
            operands = a.operands.ctypes.data
            rows.append((addresses[a.name], operands, a.count, a.step, a.turns, len(batch), turns, shared))
    return np.array(rows, ACTION)


@dataclass(slots=True)
class Native:
    """What compiles and runs the C of one opened plan.

    kernels: texts by name. stretches: what is to be linked. partial_bytes, scratch_bytes: memory that kernels share.
    watches: nodes whose indices kernels check, and against what; watching: operands that are cells of these.
    memories, tables: what actions point into.
    """

    compiler: Compiler
    num_threads: int
    kernels: dict[str, str] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    scratch_bytes: int = 0
    partials: list[tuple[np.ndarray, int]] = field(default_factory=list)
    partial_bytes: int = 0
    watches: list[tuple[Node, int]] = field(default_factory=list)
    watching: list[tuple[np.ndarray, int]] = field(default_factory=list)
    num_launches: int = 0
    memories: list[Memory] = field(default_factory=list)
    tables: list[np.ndarray] = field(default_factory=list)
    _lent_until: int = 0
    _shared: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    _noted: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    _pool: Pool | None = None

    def calls(
        self, steps: Sequence[Step], memory: Memory, interpret: Callable[[Step], PreparedCall], *, together: bool
    ) -> list[PreparedCall]:
        """Calls that execute `steps` in order. together: several steps may become one call; otherwise each is one."""
        self.memories.append(memory)
        made: list[PreparedCall] = []
        open_stretch: Stretch | None = None
        position = 0
        while position < len(steps):
            if open_stretch is not None and (not together or open_stretch.work >= STRETCH_OPERATIONS):
                open_stretch = None
            stretch = open_stretch or Stretch()
            taken = self._take(steps, position, memory, stretch, together)
            if not taken:
                made.append(interpret(steps[position]))
                open_stretch = None
                position += 1
                continue
            stretch.nodes += [step.node for step in steps[position : position + taken]]
            if open_stretch is None:
                made.append(stretch)
                self.stretches.append(stretch)
                open_stretch = stretch
            position += taken
        return made

    def copies(self, pairs: Sequence[tuple[Array, Array]]) -> tuple[Stretch, list[tuple[Array, Array]]]:
        """Copies of each first array to the second as C, and the pairs of which one does not lie evenly."""
        stretch, others = Stretch(), []
        for source, target in pairs:
            if source.flags.c_contiguous and target.flags.c_contiguous and source.dtype == target.dtype:
                operands = np.array([target.ctypes.data, source.ctypes.data], np.uint64)
                spans = [Span(ANYWHERE, at, at + source.nbytes, i == 0) for i, at in enumerate(operands.tolist())]
                stretch.add("copy_bytes", operands, source.nbytes, COPY_BYTES, source.nbytes, spans)
            else:
                others.append((source, target))
        self.stretches.append(stretch)
        return stretch, others

    def link(self) -> None:
        """Compile what is missing, start the threads, and make all stretches callable. Raises CompileError."""
        found = driver(self.compiler)
        names = self.compiler.functions(PRELUDE, self.kernels, unit_count(list(self.kernels), self.num_threads))
        addresses = {**found.addresses, **names}
        self._shared = np.empty(self.partial_bytes, np.uint8)
        for operands, index in self.partials:
            operands[index] += self._shared.ctypes.data
        self._noted = np.full(len(self.watches), NOTHING, np.uint64)
        for operands, index in self.watching:
            operands[index] = self._noted.ctypes.data + 8 * int(operands[index])
        self._pool = found.pool(self.num_threads, self.scratch_bytes)
        for stretch in self.stretches:
            stretch.link(addresses, self._pool)

    def report(self, flag: Callable[[Node, str], None]) -> None:
        """Tell of indices that were out of range since the last time."""
        if not len(self._noted) or (self._noted == NOTHING).all():
            return
        for (node, size), noted in zip(self.watches, self._noted.tolist(), strict=True):
            if noted != NOTHING:
                index = int(np.uint32(noted & 0xFFFFFFFF).view(np.int32))
                flag(node, outside_message(node.inputs[1].shape, noted >> 32, index, size))
        self._noted[:] = NOTHING

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    # What becomes of steps.

    def _take(self, steps: Sequence[Step], position: int, memory: Memory, stretch: Stretch, together: bool) -> int:
        """Add actions for the steps from `position` on that can be one stretch; how many these are."""
        step = steps[position]
        if OPS[step.node.op].work is Work.CONTRACT and self._product(step, memory, stretch):
            return 1
        if OPS[step.node.op].work is Work.CONV and self._convolution(step, memory, stretch):
            return 1
        if is_attention(step.node) and self._attention(step, memory, stretch):
            return 1
        if step.node.op in ("gather", "scatter") and self._indexed(step, memory, stretch):
            return 1
        operations: list[Operation] = []
        taken_steps = 0
        for each in steps[position : position + STEPS_AHEAD] if together else [step]:
            found = operations_of(each)
            if not found or not all(is_spelt(o) and longest_group([o]) is not None for o in found):
                break
            operations += found
            taken_steps += 1
        while operations:
            group = longest_group(operations[:WINDOW])
            assert group is not None, operations[0].node
            self._group(group, memory, stretch)
            operations = [o for i, o in enumerate(operations) if i not in group.taken]
        return taken_steps

    def _product(self, step: Step, memory: Memory, stretch: Stretch) -> bool:
        x, y, out = *step.inputs, *step.outputs
        starts = _start(x, memory), _start(y, memory), _start(out, memory)
        table = products_of(step.node, x, y, out, starts, self.num_threads)
        if table is None:
            return False
        operands = np.array([table.ctypes.data], np.uint64)
        work = 2 * int(table["rows"][0]) * int(table["columns"][0]) * int(table["depth"][0])
        piece = max(1, PIECE_OPERATIONS // max(1, work))
        work *= len(table)
        stretch.add("products", operands, len(table), piece, work // PRODUCT_RATE, _spans(step), step_made_of(step))
        self.tables.append(table)
        self.kernels["products"] = PRODUCTS_TEXT
        self.scratch_bytes = max(self.scratch_bytes, SCRATCH_BYTES)
        self.num_launches += 1
        return True

    def _convolution(self, step: Step, memory: Memory, stretch: Stretch) -> bool:
        node = step.node
        if not has_kernel(node) or not is_contiguous(node.types[0].shape, step.outputs[0].strides):
            return False
        (x_layout, kernel_layout), (x, kernel) = step.inputs, (value.type for value in node.inputs)
        operands = np.zeros(4, np.uint64)
        strides, used = x_layout.strides, 0
        # Channels side by side are copied as vectors, a dense kernel is a matrix; else each is packed first.
        if strides[-1] == 1 and min(strides) >= 0:
            operands[1] = memory.view(x_layout, x).ctypes.data
        else:
            strides, used = contiguous(x.shape), self._pack(x, x_layout, 0, operands, 1, memory, stretch)
        if is_contiguous(kernel.shape, kernel_layout.strides):
            operands[2] = memory.view(kernel_layout, kernel).ctypes.data
        else:
            used = self._pack(kernel, kernel_layout, used, operands, 2, memory, stretch)
        operands[3] = memory.view(step.outputs[0], node.types[0]).ctypes.data
        found = convolution_of(node, strides)
        operands[0] = found.tables[0].ctypes.data
        self.tables += found.tables
        self.kernels["convolution"] = CONVOLUTION_TEXT
        self.scratch_bytes = max(self.scratch_bytes, found.scratch_bytes)
        packed = [Span(PACKED, 0, used, False)] if used else []
        work = 2 * found.depth * node.types[0].size // PRODUCT_RATE + 4 * found.rows * found.depth
        spans = [*_spans(step), *packed]
        stretch.add("convolution", operands, found.rows, found.block, work, spans, step_made_of(step))
        self.num_launches += 1
        return True

    def _pack(
        self, type: TensorType, layout: Layout, start: int, operands: np.ndarray, index: int,
        memory: Memory, stretch: Stretch,
    ) -> int:  # fmt: skip
        """Add a copy of a value to the shared memory from `start` on, where an operand reads it; where it ends."""
        packed = Layout(PACKED, start, contiguous(type.shape))
        source, target = (Operand(each, type.dtype, type.shape) for each in (layout, packed))
        self._copy(type, source, target, memory, stretch)
        operands[index] = start
        self.partials.append((operands, index))
        used = start + -(-4 * type.size // 64) * 64
        self.partial_bytes = max(self.partial_bytes, used)
        return used

    def _copy(self, type: TensorType, source: Operand, target: Operand, memory: Memory, stretch: Stretch) -> None:
        copy = longest_group([Operation(copied(type), MAP, type.shape, (source,), target)])
        assert copy is not None
        self._group(copy, memory, stretch)

    def _indexed(self, step: Step, memory: Memory, stretch: Stretch) -> bool:
        node, found = step.node, indexed_of(step)
        if found is None:
            return False
        source, target, table = step.inputs[0], step.outputs[0], node.inputs[0].type
        if node.op == "scatter" and source != target:
            before, after = (Operand(each, table.dtype, table.shape) for each in (source, target))
            if longest_group([Operation(copied(table), MAP, table.shape, (before,), after)]) is None:
                return False
            self._copy(table, before, after, memory, stretch)
        addresses = [_start(layout, memory) for layout in found.operands]
        operands = np.array([*addresses, self._watched(node, found.size), *found.numbers], np.uint64)
        self.watching.append((operands, len(addresses)))
        self.kernels[found.name] = INDEXED_TEXTS[found.name]
        spans = _spans(step)
        stretch.add(found.name, operands, found.count, found.piece, found.work, spans, step_made_of(step))
        self.num_launches += 1
        return True

    def _watched(self, node: Node, size: int) -> int:
        """The number of the cell that keeps the first index of `node` outside of so many places."""
        self.watches.append((node, size))
        return len(self.watches) - 1

    def _attention(self, step: Step, memory: Memory, stretch: Stretch) -> bool:
        node = step.node
        inputs = [memory.view(layout, v.type) for layout, v in zip(step.inputs, node.inputs, strict=True)]
        outputs = [memory.view(layout, t) for layout, t in zip(step.outputs, node.types, strict=True)]
        found = attention_of(node, inputs, outputs, self.num_threads)
        if found is None:
            return False
        self.tables += found.tables
        self.kernels |= ATTENTION_TEXTS
        self.scratch_bytes = max(self.scratch_bytes, attention_scratch(node))
        operands = np.array([found.tables[0].ctypes.data], np.uint64)
        piece = max(found.piece, PIECE_OPERATIONS // max(1, found.flops))
        work = found.count * found.flops // PRODUCT_RATE
        stretch.add(found.name, operands, found.count, piece, work, _spans(step), step_made_of(step))
        self.num_launches += 1
        return True

    def _group(self, group: Group, memory: Memory, stretch: Stretch) -> None:
        """The kernel of a group, and folds of what its pieces leave."""
        kernel = print_group(group)
        self._need(kernel)
        num_rows, row = group.num_rows, group.row_elements
        step = max(1, PIECE_ELEMENTS // row)
        if any(isinstance(o, Partial) for o in kernel.operands):
            step = max(step, -(-num_rows // COLUMN_PIECES))
        if group.is_flat:
            step = -(-step // 64) * 64
        pieces = -(-num_rows // step)
        operands = np.zeros(len(kernel.operands), np.uint64)
        folds: list[tuple[Partial, Span]] = []
        spans = [Span(place.buffer, *place.span, False) for place in group.loaded]
        spans += [
            Span(value.place.buffer, *value.place.span, True)
            for value, o in zip(group.values, group.operations, strict=True)
            if o.kind != COLUMN and not value.private
        ]
        for i, operand in enumerate(kernel.operands):
            if isinstance(operand, Partial):
                span = self._lent(pieces * operand.width * 4)
                folds.append((operand, span))
                spans.append(span)
                operands[i] = span.low
                self.partials.append((operands, i))
            elif isinstance(operand, Watch):
                node = group.operations[operand.number].node
                operands[i] = self._watched(node, node.inputs[0].shape[-1])
                self.watching.append((operands, i))
            elif operand.buffer == PACKED:
                operands[i] = operand.offset_bytes
                self.partials.append((operands, i))
            else:
                operands[i] = _address(operand, memory)
        work = sum([WORK.get(o.node.op, 1) * o.size for o in group.operations])
        stretch.add(kernel.name, operands, num_rows, step, work, spans, group_made_of(group))
        self.num_launches += 1 + len(folds)
        for partial_result, span in folds:
            operation = group.operations[partial_result.value]
            fold_kernel = print_fold(partial_result.fold, operation.output.dtype)
            self._need(fold_kernel)
            target = _start(operation.output.layout, memory)
            given = np.array([target, span.low, pieces, partial_result.width], np.uint64)
            self.partials.append((given, 1))
            work = pieces * partial_result.width
            folded = [replace(span, writes=False), _span(operation.output, True)]
            stretch.add(fold_kernel.name, given, partial_result.width, PIECE_ELEMENTS, work, folded)

    def _lent(self, num_bytes: int) -> Span:
        """Some of the memory that kernels share, to be written; other memory than the last was lent, mostly."""
        size = -(-num_bytes // 64) * 64
        start = self._lent_until if self._lent_until + size <= max(LENT_BYTES, self.partial_bytes) else 0
        self._lent_until = start + size
        self.partial_bytes = max(self.partial_bytes, self._lent_until)
        return Span(PACKED, start, start + size, True)

    def _need(self, kernel: Kernel) -> None:
        self.kernels[kernel.name] = kernel.text
        self.scratch_bytes = max(self.scratch_bytes, kernel.scratch_bytes)


@lru_cache(maxsize=256)
def copied(type: TensorType) -> Node:
    """A node that stands for a copy which no graph has."""
    b = Builder()
    return b.op("stop-gradient", b.input("x", type)).node


def _address(place: Place, memory: Memory) -> int:
    return int(memory.buffers[place.buffer].ctypes.data) + place.offset_bytes


def _spans(step: Step) -> list[Span]:
    """What a step reads and writes."""
    node = step.node
    read = [_span(Operand(x, v.dtype, v.shape), False) for x, v in zip(step.inputs, node.inputs, strict=True)]
    written = [_span(Operand(x, t.dtype, t.shape), True) for x, t in zip(step.outputs, node.types, strict=True)]
    return [*read, *written]


def _span(operand: Operand, writes: bool) -> Span:
    low, high = operand.span
    return Span(operand.layout.buffer, low, high, writes)


def _start(layout: Layout, memory: Memory) -> int:
    """Where element 0 of a value lies."""
    return int(memory.buffers[layout.buffer].ctypes.data) + layout.offset_bytes
