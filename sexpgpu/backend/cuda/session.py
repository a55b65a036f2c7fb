"""An opened plan on a card: one allocation, one stream, a CUDA graph for each phase.

A call of a phase is: feeds to the inbox, its graph, the outbox (decision, flags, results) to pinned memory. Nothing is
waited for until somebody asks for the outputs, but in three cases: a call that writes slots unguarded follows one
that may have reported a fault; a phase in two passes must know its decision; the ring of pinned buffers is full.
The first call of a phase runs its actions one by one, so that libraries load what they need; the second records them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sexpgpu.backend.cuda.attention import Attention, Built, Cudnn
from sexpgpu.backend.cuda.blas import Blas
from sexpgpu.backend.cuda.cut import cut, rates_of
from sexpgpu.backend.cuda.driver import Arguments, Driver, OutOfMemory
from sexpgpu.backend.cuda.gemm import Gemm
from sexpgpu.backend.cuda.lowering import Attend, Product, lower
from sexpgpu.backend.cuda.memory import HALT_BYTES, INBOX, TABLES, regions, tables
from sexpgpu.backend.cuda.nvrtc import Compiler
from sexpgpu.backend.kernels.calls import checked, constant, decided, faults
from sexpgpu.backend.kernels.cut import Cut
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.lowering import (
    HALT,
    OUTBOX,
    Action,
    Fill,
    Kernel,
    Lowered,
    Move,
    Place,
    Printers,
    Table,
)
from sexpgpu.backend.pieces import SECOND_PASS, Piece, Profile, Rates
from sexpgpu.backend.protocol import Call, Outputs
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import FEED, SLOT
from sexpgpu.ir.types import ITEM_BYTES, NUMPY_DTYPES, TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.memory import GIB, ProgramPlan

RING = 8
"""Calls whose outputs may wait in pinned memory."""
KERNELS_A_MODULE = 12
"""Kernels compiled together: enough to hide the fixed cost of a compilation, few enough to share the cores."""

Enqueue = Callable[[], None]
Feeds = Mapping[str, tuple[TensorType, int]]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What a session works with: the driver, the compiler, the printers, and the libraries."""

    driver: Driver
    compiler: Compiler
    printers: Printers
    blas: Blas
    cudnn: Cudnn | None

    @property
    def num_buffers(self) -> int:
        """All of the card's memory is one."""
        return 1

    def attend(self, attention: Attention) -> int | None:
        """The workspace that cuDNN takes for a graph; None: it refuses it."""
        built = self.cudnn.build(attention) if self.cudnn is not None else None
        return built.workspace_bytes if isinstance(built, Built) else None

    def multiplies(self, gemm: Gemm, alignment_bytes: tuple[int, int, int]) -> bool:
        """Whether cuBLASLt has an algorithm for a product whose A, B and C are aligned so."""
        return self.blas.prepare(gemm, alignment_bytes) is not None


@dataclass(slots=True)
class _Phase:
    """A phase, bound to memory. kinds: kind and label of each action; numbers: the piece of `cut` that it belongs to.
    graph: its recording, once there is one."""

    lowered: Lowered
    actions: list[Enqueue]
    kinds: list[tuple[str, str]]
    cut: Cut
    numbers: list[int]
    apply: _Phase | None = None
    num_runs: int = 0
    graph: Any = None


@dataclass(slots=True)
class _Flight:
    """A call that was enqueued; `outputs` once they were read."""

    phase: _Phase
    event: Any
    outbox: int
    outputs: Outputs | None = None


@dataclass(slots=True)
class _Pinned:
    """One place of the ring: pinned memory for feeds and outputs, an event, and the call that has it now."""

    inbox: int
    outbox: int
    event: Any
    flight: _Flight | None = field(default=None)


class _Chunk(Future[tuple[Outputs, ...]]):
    """Outputs of a chunk: read when asked for."""

    def __init__(self, read: Callable[[], tuple[Outputs, ...]]) -> None:
        super().__init__()
        self._read: Callable[[], tuple[Outputs, ...]] | None = read

    def result(self, timeout: float | None = None) -> tuple[Outputs, ...]:
        read, self._read = self._read, None
        if read is not None:
            try:
                self.set_result(read())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)


class CudaSession:
    """The slots of a program in a card's memory, and its phases as CUDA graphs.

    capture: False runs every call action by action. Raises: E-MEM-003 where the card or the host refuses memory.
    """

    def __init__(self, plan: ProgramPlan, tools: Toolbox, capture: bool = True) -> None:
        self.plan = plan
        self._tools = tools
        self._driver = tools.driver
        self._capture = capture
        self._slots = {slot.name: slot for slot in plan.program.slots}
        self._driver.use()
        self._free_before, _ = self._driver.memory()
        self.lowered = {name: lower(phase, tools) for name, phase in plan.phases.items()}
        # Both passes of a phase find its feeds where the first has them.
        self._parts = [
            (part, phase.feeds) for phase in self.lowered.values() for part in phase.passes
        ]
        parts = [part for part, _ in self._parts]
        constants = [constant(node) for node in plan.constants]
        self._regions = regions(plan, parts, constants)
        self._modules: list[Any] = []
        self._profile: Profile | None = None
        self._began: Any = None
        try:
            self._base = self._driver.allocate(self._regions.num_bytes)
            self._stream = self._driver.stream()
            self._ring = self._make_ring(parts)
            self._copies = self._make_copies() if plan.snapshot_bytes else {}
        except OutOfMemory as error:
            raise DiagnosticError(self._refused("opening the plan")) from error
        self._fill_constants(constants)
        self._fill_tables()
        self._phases = self._bind()
        self._next = 0
        self._driver.synchronize(self._stream)

    # Memory.

    def _make_ring(self, parts: Sequence[Lowered]) -> list[_Pinned]:
        inbox = max([part.inbox_bytes for part in parts], default=0)
        outbox = max([part.outbox_bytes for part in parts], default=0)
        each = max(64, -(-(inbox + outbox) // 64) * 64 + 64)
        self._pinned = self._driver.allocate_host(RING * each)
        inbox_bytes = -(-inbox // 64) * 64
        starts = [self._pinned + i * each for i in range(RING)]
        return [_Pinned(start, start + inbox_bytes, self._driver.event()) for start in starts]

    def _make_copies(self) -> dict[str, Array]:
        """Pinned memory for snapshots, an array a saved slot; given back when the last array is gone.

        A thread that writes a checkpoint may outlive the session, where a run is stopped at once.
        """
        slots = self.plan.program.saved
        dtypes = [NUMPY_DTYPES[slot.type.dtype] for slot in slots]
        sizes = [aligned(slot.type.size * dtype.itemsize) for slot, dtype in zip(slots, dtypes, strict=True)]
        starts = list(accumulate(sizes, initial=0))
        address = self._driver.allocate_host(max(1, starts[-1]))
        memory = (ctypes.c_uint8 * starts[-1]).from_address(address)
        weakref.finalize(memory, _give_back, self._driver, address).atexit = False
        raw = np.ctypeslib.as_array(memory)
        return {
            slot.name: raw[start : start + slot.type.size * dtype.itemsize].view(dtype).reshape(slot.type.shape)
            for slot, dtype, start in zip(slots, dtypes, starts[:-1], strict=True)
        }

    def _address(self, place: Place, feeds: Feeds) -> int:
        buffer, offset = place.buffer, place.offset_bytes
        if buffer.startswith(FEED):
            offset += feeds[buffer.removeprefix(FEED)][1]
            buffer = INBOX
        return self._base + self._regions.starts[buffer] + offset

    def _write_bytes(self, address: int, data: Array) -> None:
        if data.nbytes:
            self._driver.copy_in(address, data.ctypes.data, data.nbytes, self._stream)
            self._driver.synchronize(self._stream)

    def _fill_constants(self, constants: Sequence[Array]) -> None:
        for i, array in enumerate(constants):
            self._write_bytes(self._base + self._regions.starts[f"constant:{i}"], array)

    def _fill_tables(self) -> None:
        self._tables: dict[int, int] = {}
        start = self._base + self._regions.starts[TABLES]
        for part, feeds in self._parts:
            for table in tables([part]):
                numbers = [
                    each if isinstance(each, int) else self._address(each, feeds) for row in table.rows for each in row
                ]
                self._write_bytes(start, np.array(numbers, np.uint64))
                self._tables[id(table)] = start
                start += table.num_bytes

    def _refused(self, where: str) -> Diagnostic:
        free, total = self._driver.memory()
        parts = ", ".join(f"{name} {num_bytes}" for name, num_bytes in self.plan.parts().items())
        return Diagnostic(
            "E-MEM-003",
            f"the card refused memory while {where}; the run holds {self._regions.num_bytes} bytes "
            f"({self._regions.num_bytes / GIB:.2f} GiB) and {free} of the card's {total} are free; "
            f"planned, in bytes: {parts}",
            help=("find what else uses the card, or plan for less with `SEXPGPU_MEMORY`",),
        )

    # Actions, bound to addresses.

    def _bind(self) -> dict[str, _Phase]:
        launches: dict[str, Launch] = {}
        for part, _ in self._parts:
            for action in part.actions:
                if isinstance(action, Kernel):
                    known = launches.setdefault(action.launch.name, action.launch)
                    assert known.source == action.launch.source, action.launch.name
        functions = self._compile(list(launches.values()))

        def bound(lowered: Lowered, feeds: Feeds) -> _Phase:
            actions: list[Enqueue] = []
            kinds: list[tuple[str, str]] = []
            numbers: list[int] = []
            pieces = cut(lowered)
            told = zip(lowered.kinds, lowered.labels, pieces.numbers, strict=True)
            for action, (kind, label, number) in zip(lowered.actions, told, strict=True):
                made = self._enqueuers(action, feeds, functions)
                actions += made
                kinds += [(kind, label)] * len(made)
                numbers += [number] * len(made)
            apply = None if lowered.apply is None else bound(lowered.apply, feeds)
            return _Phase(lowered, actions, kinds, pieces, numbers, apply)

        return {name: bound(lowered, lowered.feeds) for name, lowered in self.lowered.items()}

    def _compile(self, launches: Sequence[Launch]) -> dict[str, Any]:
        ordered = sorted(launches, key=lambda launch: launch.name)
        groups = [ordered[i : i + KERNELS_A_MODULE] for i in range(0, len(ordered), KERNELS_A_MODULE)]
        images = self._tools.compiler.compile([self._tools.printers.module_source(group) for group in groups])
        functions = {}
        for group, image in zip(groups, images, strict=True):
            module = self._driver.load(image)
            self._modules.append(module)
            for launch in group:
                functions[launch.name] = self._driver.function(module, launch.name, launch.shared_bytes)
        return functions

    def _enqueuers(
        self,
        action: Action,
        feeds: Feeds,
        functions: Mapping[str, Any],
    ) -> list[Enqueue]:
        driver, stream = self._driver, self._stream

        def at(place: Place | Table | None) -> int:
            if isinstance(place, Table):
                return self._tables[id(place)]
            return 0 if place is None else self._address(place, feeds)

        def launched(launch: Launch, addresses: Sequence[int]) -> Enqueue:
            function, arguments = functions[launch.name], Arguments(addresses)
            return partial(driver.launch, function, launch.grid, launch.block, launch.shared_bytes, arguments, stream)

        match action:
            case Kernel(launch, operands):
                return [launched(launch, [at(place) for place in operands])]
            case Move(source, target, num_bytes):
                return [partial(driver.copy, at(target), at(source), num_bytes, stream)]
            case Fill(target, byte, num_bytes):
                return [partial(driver.fill, at(target), byte, num_bytes, stream)]
            case Product():
                return self._product(action, at)
            case Attend(attention, places, library):
                cudnn = self._tools.cudnn
                assert cudnn is not None
                built = cudnn.build(attention)
                assert isinstance(built, Built), built
                return [partial(cudnn.enqueue, built, [at(place) for place in places], at(library))]
        raise AssertionError(action)

    def _product(self, product: Product, at: Callable[[Place | None], int]) -> list[Enqueue]:
        prepared = self._tools.blas.prepare(product.gemm, product.alignment_bytes)
        assert prepared is not None, product
        gemm = product.gemm
        item, out_item = ITEM_BYTES[gemm.dtype], ITEM_BYTES[gemm.out_dtype]
        found: list[Enqueue] = []
        for x, y, out in gemm.offsets:
            first, second = at(product.x) + item * x, at(product.y) + item * y
            a, b = (second, first) if gemm.swapped else (first, second)
            c = at(product.out) + out_item * out
            found.append(partial(self._tools.blas.enqueue, prepared, a, b, c, at(product.library), self._stream))
        return found

    # The protocol.

    def write(self, slot: str, value: Array) -> None:
        """Set a slot's contents. Raises ValueError where shape or dtype differ."""
        type = self._slots[slot].type
        data = checked(value, type, f"slot `{slot}`")
        self._driver.use()
        self._write_bytes(self._address(Place(SLOT + slot), _NO_FEEDS), data)

    def read(self, slot: str) -> Future[Array]:
        """A copy of a slot's contents, there at once."""
        type = self._slots[slot].type
        found = np.empty(type.shape, NUMPY_DTYPES[type.dtype])
        self._driver.use()
        if found.nbytes:
            source = self._address(Place(SLOT + slot), _NO_FEEDS)
            self._driver.copy_out(found.ctypes.data, source, found.nbytes, self._stream)
            self._driver.synchronize(self._stream)
        future: Future[Array] = Future()
        future.set_result(found)
        return future

    def snapshot(self) -> Mapping[str, Array]:
        """Copies of the saved slots in pinned memory; they hold until the next snapshot.

        Raises: E-MEM-003 where the host refuses memory, which it has given already if the plan is of a run that saves.
        """
        self._driver.use()
        if not self._copies:
            try:
                self._copies = self._make_copies()
            except OutOfMemory as error:
                raise DiagnosticError(self._refused("copying what is saved")) from error
        for name, copy in self._copies.items():
            if copy.nbytes:
                source = self._address(Place(SLOT + name), _NO_FEEDS)
                self._driver.copy_out(copy.ctypes.data, source, copy.nbytes, self._stream)
        self._driver.synchronize(self._stream)
        return self._copies

    def run(self, calls: Sequence[Call]) -> Future[tuple[Outputs, ...]]:
        """Enqueue `calls` in order; the future reads their outputs when asked.

        Raises: KeyError for a phase that is not there; ValueError where feeds differ from what a phase takes;
        E-MEM-003 where memory is refused.
        """
        self._driver.use()
        flights: list[_Flight] = []
        if any(self._needs_halt(self._phases[call.phase]) for call in calls):
            self._driver.fill(self._base + self._regions.starts[HALT], 0, HALT_BYTES, self._stream)
        for call in calls:
            phase = self._phases[call.phase]
            if not self._may_follow(phase, flights):
                break
            try:
                flights.append(self._enqueue(phase, call.feeds))
            except OutOfMemory as error:
                raise DiagnosticError(self._refused(f"phase `{call.phase}`")) from error
        return _Chunk(partial(self._read_all, flights))

    def peak_bytes(self) -> int:
        """What this session allocated on the card: all of it at once, when it was opened."""
        return self._regions.num_bytes

    def held_bytes(self) -> int:
        """The same: nothing is allocated later, and nothing is given back before the end."""
        return self._regions.num_bytes

    def unplanned_bytes(self) -> int:
        """0: what is measured is our own allocation."""
        return 0

    def device_bytes(self) -> int:
        """By how much the card's free memory has shrunk since before the plan was opened: libraries and others too."""
        return self._free_before - self._driver.memory()[0]

    def close(self) -> None:
        """Give everything back."""
        self._driver.use()
        self._driver.synchronize(self._stream)
        for phase in self._phases.values():
            for part in (phase, phase.apply):
                if part is not None and part.graph is not None:
                    self._driver.end_graph(part.graph)
        self._phases.clear()
        for pinned in self._ring:
            if pinned.flight is not None:
                self._finish(pinned.flight)
            self._driver.end_event(pinned.event)
        for module in self._modules:
            self._driver.unload(module)
        if self._began is not None:
            self._driver.end_event(self._began)
        self._driver.free_host(self._pinned)
        self._copies = {}
        self._driver.free(self._base)
        self._driver.end_stream(self._stream)

    # A call.

    def _needs_halt(self, phase: _Phase) -> bool:
        return phase.lowered.may_fault or phase.lowered.guard is not None

    def _may_follow(self, phase: _Phase, flights: Sequence[_Flight]) -> bool:
        """Whether the next call may run: a guarded one sees faults on the card, another must know of none."""
        if phase.lowered.guard is not None and phase.apply is None:
            return True
        return not any(self._finish(flight).faults for flight in flights if flight.phase.lowered.may_fault)

    def _enqueue(self, phase: _Phase, feeds: Mapping[str, Array]) -> _Flight:
        wanted = phase.lowered.feeds
        if feeds.keys() != wanted.keys():
            raise ValueError(f"phase `{phase.lowered.name}` takes {sorted(wanted)}, not {sorted(feeds)}")
        arrays = {name: checked(feeds[name], type, f"feed `{name}`") for name, (type, _) in wanted.items()}
        pinned = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        if pinned.flight is not None:
            self._finish(pinned.flight)
        for name, (_, offset) in wanted.items():
            ctypes.memmove(pinned.inbox + offset, arrays[name].ctypes.data, arrays[name].nbytes)
        driver, stream, lowered = self._driver, self._stream, phase.lowered
        if wanted:
            driver.copy_in(self._base + self._regions.starts[INBOX], pinned.inbox, lowered.inbox_bytes, stream)
        self._play(phase)
        driver.copy_out(pinned.outbox, self._base + self._regions.starts[OUTBOX], lowered.outbox_bytes, stream)
        driver.record(pinned.event, stream)
        flight = pinned.flight = _Flight(phase, pinned.event, pinned.outbox)
        if phase.apply is not None and self._finish(flight).committed:
            self._play(phase.apply, SECOND_PASS)
            driver.record(pinned.event, stream)
        return flight

    def _play(self, phase: _Phase, suffix: str = "") -> None:
        phase.num_runs += 1
        if self._tools.cudnn is not None:
            self._tools.cudnn.use(self._stream)
        if self._profile is not None and phase.num_runs > 1:
            self._profile.add(phase.lowered.name + suffix, self._piece_times(phase))
            return
        if phase.graph is None and self._capture and phase.num_runs > 1 and phase.actions:
            self._driver.begin_capture(self._stream)
            try:
                for enqueue in phase.actions:
                    enqueue()
            finally:
                phase.graph = self._driver.end_capture(self._stream)
        if phase.graph is not None:
            self._driver.replay(phase.graph, self._stream)
            return
        for enqueue in phase.actions:
            enqueue()

    # What came back.

    def _read_all(self, flights: Sequence[_Flight]) -> tuple[Outputs, ...]:
        found: list[Outputs] = []
        for flight in flights:
            found.append(self._finish(flight))
            if found[-1].faults:
                break
        return tuple(found)

    def _finish(self, flight: _Flight) -> Outputs:
        if flight.outputs is not None:
            return flight.outputs
        self._driver.wait(flight.event)
        lowered = flight.phase.lowered
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * lowered.outbox_bytes).from_address(flight.outbox))
        results = {}
        for name, result in lowered.results.items():
            dtype = NUMPY_DTYPES[result.type.dtype]
            stop = result.offset_bytes + result.type.size * dtype.itemsize
            results[name] = raw[result.offset_bytes : stop].copy().view(dtype).reshape(result.type.shape)
        found = faults(lowered, raw)
        flight.outputs = Outputs(results, found, lowered.guard is None or (decided(raw) and not found))
        return flight.outputs

    # For reports.

    def pieces(self) -> Mapping[str, Sequence[Piece]]:
        """The pieces of each phase, in order."""
        found: dict[str, Sequence[Piece]] = {}
        for name, phase in self._phases.items():
            found[name] = phase.cut.pieces
            if phase.apply is not None:
                found[name + SECOND_PASS] = phase.apply.cut.pieces
        return found

    def rates(self) -> Rates:
        """What the card does at best."""
        return rates_of(self._driver)

    def profile(self, profile: Profile) -> None:
        """Time each action between two events from now on, but for the first call of a phase; nothing is replayed."""
        self._profile = profile
        self._began = self._driver.event(timed=True)
        self._driver.record(self._began, self._stream)

    def time_by_action(self, call: Call) -> list[tuple[str, str, float]]:
        """Run a call action by action; the kind and label of each action, and its milliseconds between two events."""
        phase = self._phases[call.phase]
        self.run([call]).result()
        times = self._action_times(phase, None)
        return [(kind, label, last - first) for (kind, label), (first, last) in zip(phase.kinds, times, strict=True)]

    def _action_times(self, phase: _Phase, began: Any) -> list[tuple[float, float]]:
        """Run a phase action by action: when each began and ended, in milliseconds since `began`; None: since now."""
        driver, stream = self._driver, self._stream
        marks = [driver.event(timed=True) for _ in range(len(phase.actions) + 1)]
        driver.record(marks[0], stream)
        for enqueue, mark in zip(phase.actions, marks[1:], strict=True):
            enqueue()
            driver.record(mark, stream)
        driver.synchronize(stream)
        times = [driver.elapsed_ms(began or marks[0], mark) for mark in marks]
        for mark in marks:
            driver.end_event(mark)
        return list(pairwise(times))

    def _piece_times(self, phase: _Phase) -> list[tuple[float, float]]:
        """Run a phase: when each of its pieces began, and how long it took, in seconds."""
        found = [(0.0, 0.0)] * len(phase.cut.pieces)
        for number, (first, last) in zip(phase.numbers, self._action_times(phase, self._began), strict=True):
            start, seconds = found[number]
            found[number] = (start or 1e-3 * first, seconds + 1e-3 * (last - first))
        return found


_NO_FEEDS: Feeds = {}


def _give_back(driver: Driver, address: int) -> None:
    """Free pinned memory, from whichever thread let go of it last."""
    driver.use()
    driver.free_host(address)
