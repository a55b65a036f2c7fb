"""An opened plan on an Apple GPU: what lasts in Metal's buffers, the phases as lists of launches.

A call of a phase is: arguments into the inbox, one command buffer, a wait, flags and results out of the outbox. Host
and GPU share the memory, so both are plain reads and writes. Arena and workspace are taken from the device's pool for a
chunk of calls, before the first of them begins, and given back after the last: a chunk that is refused memory has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sexpgpu.backend.kernels.calls import checked, constant, decided, faults
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.lowering import (
    BASE,
    HALT,
    OUTBOX,
    WORKSPACE,
    Fill,
    Kernel,
    Lowered,
    Place,
    Printers,
    Printing,
    Table,
)
from sexpgpu.backend.kernels.tables import located
from sexpgpu.backend.metal.driver import Dispatch, Driver, MetalError, OutOfMemory
from sexpgpu.backend.metal.lowering import lower
from sexpgpu.backend.metal.memory import (
    ARENA_NUMBER,
    HALT_BYTES,
    INBOX,
    TABLES,
    largest_tensor,
    lasting,
    tables,
    with_calls,
)
from sexpgpu.backend.metal.pool import Buffer, Pool
from sexpgpu.backend.metal.storage import loaded, stored
from sexpgpu.backend.protocol import Call, Outputs
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import FEED, SLOT
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.memory import ProgramPlan

MAX_LOG_LINES = 20
"""Of a compiler's log in a message."""

Feeds = Mapping[str, tuple[TensorType, int]]


@dataclass
class Toolbox:
    """What sessions of a device share. pipelines: kernels that are ready, by name, for as long as the process lives."""

    driver: Driver
    pool: Pool
    printers: Printers
    pipelines: dict[str, Any] = field(default_factory=dict)

    def prepare(self, launches: Sequence[Launch]) -> None:
        """Compile what is not ready yet, as one library. Raises MetalError."""
        wanted = {launch.name: launch for launch in launches if launch.name not in self.pipelines}
        if not wanted:
            return
        library = self.driver.compile(self.printers.module_source(wanted.values()))
        for name, launch in wanted.items():
            pipeline = self.driver.pipeline(library, name)
            most, threads = self.driver.max_threads(pipeline), launch.block[0] * launch.block[1] * launch.block[2]
            if threads > most:
                raise MetalError(f"kernel `{name}` needs {threads} threads, and this GPU allows it {most}")
            self.pipelines[name] = pipeline


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch, its arguments as numbers of buffers and offsets in bytes."""

    pipeline: Any
    arguments: tuple[tuple[int, int], ...]
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase, bound to memory."""

    lowered: Lowered
    launches: tuple[_Launch, ...]
    apply: _Phase | None = None


class MetalSession:
    """The slots of a program in Metal's buffers.

    Raises: E-MEM-002 where Metal refuses memory, E-DEV-006 where it refuses a kernel.
    """

    def __init__(self, plan: ProgramPlan, tools: Toolbox) -> None:
        self.plan = plan
        self._tools = tools
        self._driver, self._pool = tools.driver, tools.pool
        self._slots = {slot.name: slot for slot in plan.program.slots}
        first = lasting(plan, self._driver.max_buffer_bytes())
        printing = Printing(tools.printers, len(first.lengths))
        self.lowered = {name: lower(phase, printing) for name, phase in plan.phases.items()}
        # Both passes of a phase find its arguments where the first has them.
        parts = [(part, phase.feeds) for phase in self.lowered.values() for part in phase.passes]
        self._regions = with_calls(first, plan, [part for part, _ in parts])
        self._scratch_numbers = (ARENA_NUMBER, self._regions.starts[WORKSPACE][0])
        self._pool.reset_peak()
        self._lasting: dict[int, Buffer] = {}
        try:
            for number, length in enumerate(self._regions.lengths):
                if number not in self._scratch_numbers:
                    self._lasting[number] = self._pool.take(length)
            with self._scratch():
                pass  # what every chunk of calls takes is there too
        except OutOfMemory as error:
            self.close()
            raise self._refused(error, "the plan") from error
        self._views = {n: self._driver.view(buffer.metal, buffer.num_bytes) for n, buffer in self._lasting.items()}
        self._copies: dict[str, Array] = self._make_copies() if plan.snapshot_bytes else {}
        for i, node in enumerate(plan.constants):
            self._put(f"constant:{i}", 0, constant(node), node.types[0].dtype)
        self._fill_tables(parts)
        kernels = [action for part, _ in parts for action in part.actions if isinstance(action, Kernel)]
        try:
            tools.prepare([action.launch for action in kernels])
        except MetalError as error:
            self.close()
            raise failed(error) from error
        self._phases = {name: self._bind(phase, phase.feeds) for name, phase in self.lowered.items()}

    # Memory.

    @contextmanager
    def _scratch(self) -> Iterator[list[Any]]:
        """All buffers of Metal's, in the order of their numbers. Raises OutOfMemory."""
        taken: dict[int, Buffer] = {}
        try:
            for number in self._scratch_numbers:
                taken[number] = self._pool.take(self._regions.lengths[number])
            found = taken | self._lasting
            yield [found[number].metal for number in range(len(found))]
        finally:
            for buffer in taken.values():
                self._pool.give(buffer)

    def _bytes(self, buffer: str) -> Array:
        """The memory from where a buffer of the plan that lasts begins."""
        number, start = self._regions.starts[buffer]
        return self._views[number][start:]

    def _fill_tables(self, parts: Sequence[tuple[Lowered, Feeds]]) -> None:
        self._tables: dict[int, Place] = {}
        end = 0
        for part, feeds in parts:
            for table in tables([part]):
                entries = [each for row in table.rows for each in row]
                numbers = [each if isinstance(each, int) else located(*self._at(each, feeds)) for each in entries]
                self._bytes(TABLES)[end : end + table.num_bytes] = np.array(numbers, np.uint64).view(np.uint8)
                self._tables[id(table)] = Place(TABLES, end)
                end += aligned(table.num_bytes)

    def _make_copies(self) -> dict[str, Array]:
        return {
            slot.name: np.empty(slot.type.shape, NUMPY_DTYPES[slot.type.dtype]) for slot in self.plan.program.saved
        }

    def _refused(self, error: OutOfMemory, where: str) -> DiagnosticError:
        """E-MEM-002. where: what the memory is for."""
        parts = ", ".join(f"{name} {num_bytes}" for name, num_bytes in self.plan.parts().items())
        message = f"the Metal device had no memory while it ran {where}: {error}"
        if error.num_bytes:
            message = (
                f"the Metal device could not allocate {error.num_bytes} bytes for {where}, whose largest tensor is "
                f"{largest_tensor(self.plan)}; the run does not fit this GPU"
            )
        help = ("end what else uses the GPU, use a smaller batch, or plan for less with `SEXPGPU_MEMORY`",)
        return DiagnosticError(Diagnostic("E-MEM-002", message, help=help, notes=(f"planned, in bytes: {parts}",)))

    # Launches, bound to buffers.

    def _bind(self, lowered: Lowered, feeds: Feeds) -> _Phase:
        launches = []
        for action in lowered.actions:
            match action:
                case Kernel(launch, operands):
                    pipeline = self._tools.pipelines[launch.name]
                    arguments = tuple([self._at(place, feeds) for place in operands])
                    launches.append(_Launch(pipeline, arguments, launch.grid, launch.block))
                case Fill():
                    assert not launches, action  # flags, which the host clears before a call
                case _:
                    raise AssertionError(action)
        apply = None if lowered.apply is None else self._bind(lowered.apply, feeds)
        return _Phase(lowered, tuple(launches), apply)

    def _at(self, place: Place | Table | None, feeds: Feeds) -> tuple[int, int]:
        """The number of one of Metal's buffers, and bytes from its start."""
        assert place is not None, "no pointer is null on this device"
        if isinstance(place, Table):
            place = self._tables[id(place)]
        buffer, offset = place.buffer, place.offset_bytes
        if buffer.startswith(BASE):
            return int(buffer.removeprefix(BASE)), offset
        if buffer.startswith(FEED):
            offset += feeds[buffer.removeprefix(FEED)][1]
            buffer = INBOX
        number, start = self._regions.starts[buffer]
        return number, start + offset

    # The protocol.

    def write(self, slot: str, value: Array) -> None:
        """Set a slot's contents. Raises ValueError where shape or dtype differ."""
        type = self._slots[slot].type
        self._put(SLOT + slot, 0, checked(value, type, f"slot `{slot}`"), type.dtype)

    def _put(self, buffer: str, offset: int, value: Array, dtype: str) -> None:
        raw = stored(value, dtype).reshape(-1).view(np.uint8)
        self._bytes(buffer)[offset : offset + raw.nbytes] = raw

    def read(self, slot: str) -> Future[Array]:
        """A copy of a slot's contents, there at once."""
        future: Future[Array] = Future()
        future.set_result(loaded(self._bytes(SLOT + slot), self._slots[slot].type))
        return future

    def snapshot(self) -> Mapping[str, Array]:
        """Copies of the saved slots; they hold until the next snapshot."""
        if not self._copies:
            self._copies = self._make_copies()
        for name, copy in self._copies.items():
            copy[...] = loaded(self._bytes(SLOT + name), self._slots[name].type)
        return self._copies

    def run(self, calls: Sequence[Call]) -> Future[tuple[Outputs, ...]]:
        """Run `calls` in order, each to its end.

        Raises: KeyError for a phase that is not there; ValueError where arguments differ from what a phase takes;
        E-MEM-002 where memory is refused; E-DEV-006 where the GPU fails.
        """
        found: list[Outputs] = []
        try:
            with self._scratch() as buffers:
                for call in calls:
                    found.append(self._call(self._phases[call.phase], call.feeds, buffers))
                    if found[-1].faults:
                        break
        except OutOfMemory as error:
            raise self._refused(error, "a call") from error
        except MetalError as error:
            raise failed(error) from error
        future: Future[tuple[Outputs, ...]] = Future()
        future.set_result(tuple(found))
        return future

    def _call(self, phase: _Phase, feeds: Mapping[str, Array], buffers: Sequence[Any]) -> Outputs:
        lowered = phase.lowered
        if feeds.keys() != lowered.feeds.keys():
            raise ValueError(f"phase `{lowered.name}` takes {sorted(lowered.feeds)}, not {sorted(feeds)}")
        arrays = {name: checked(feeds[name], type, f"feed `{name}`") for name, (type, _) in lowered.feeds.items()}
        for name, (type, offset) in lowered.feeds.items():
            self._put(INBOX, offset, arrays[name], type.dtype)
        self._play(phase, buffers)
        raw = self._bytes(OUTBOX)[: lowered.outbox_bytes]
        results = {name: loaded(raw[result.offset_bytes :], result.type) for name, result in lowered.results.items()}
        met = faults(lowered, raw)
        committed = lowered.guard is None or (decided(raw) and not met)
        if phase.apply is not None and committed:
            self._play(phase.apply, buffers)
        return Outputs(results, met, committed)

    def _play(self, phase: _Phase, buffers: Sequence[Any]) -> None:
        """One command buffer, from clear flags."""
        self._bytes(HALT)[:HALT_BYTES] = 0
        for action in phase.lowered.actions:
            if isinstance(action, Fill):
                start = action.target.offset_bytes
                self._bytes(action.target.buffer)[start : start + action.num_bytes] = action.byte
        if phase.launches:
            self._driver.run(
                Dispatch(each.pipeline, [(buffers[n], start) for n, start in each.arguments], each.groups, each.threads)
                for each in phase.launches
            )

    def peak_bytes(self) -> int:
        """The most that was taken from the pool at once, and the copies for checkpoints."""
        return self._pool.peak_bytes + self._copied_bytes()

    def held_bytes(self) -> int:
        """What is taken from the pool now, what waits in it, and the copies for checkpoints."""
        return self._pool.live_bytes + self._pool.idle_bytes + self._copied_bytes()

    def _copied_bytes(self) -> int:
        return sum([copy.nbytes for copy in self._copies.values()])

    def unplanned_bytes(self) -> int:
        """0: what is measured is our own buffers."""
        return 0

    def close(self) -> None:
        """Give everything back."""
        self._views, self._copies = {}, {}
        while self._lasting:
            self._pool.give(self._lasting.popitem()[1])


def failed(error: MetalError) -> DiagnosticError:
    """E-DEV-006, in the words of Metal."""
    text = "\n".join(str(error).splitlines()[:MAX_LOG_LINES])
    help = ("report this with the output of `sexpgpu doctor`, and use `--device cpu` meanwhile",)
    return DiagnosticError(Diagnostic("E-DEV-006", f"metal failed: {text}", help=help))
