"""An opened plan on the cpu: buffers, prepared phases, and calls of them.

A call runs all steps of its phase, sets aside what `saves` names, copies the results out, and only then
decides about the commits. An interrupt (Ctrl-C) may come anywhere in the steps: a guarded phase has written
no slot by then, an unguarded one may have written some. The commits themselves, or the pass that makes
them, are not
interrupted: see `uninterrupted`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from sexpgpu.backend.cpu.cut import Cut, Timer, cut
from sexpgpu.backend.cpu.machine import UNPLANNED_BYTES, ResidentGrowth
from sexpgpu.backend.cpu.memory import LOOPS, Memory, constant_bytes
from sexpgpu.backend.cpu.native.lowering import Native
from sexpgpu.backend.cpu.rates import measured_rates
from sexpgpu.backend.cpu.sentinel import Sentinel
from sexpgpu.backend.cpu.steps import prepare
from sexpgpu.backend.cpu.workers import SingleThreadedBlas, Workers
from sexpgpu.backend.pieces import SECOND_PASS, Piece, Profile, Rates
from sexpgpu.backend.protocol import Call, Fault, Outputs
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array, Context
from sexpgpu.ir.program import FEED, SLOT
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.arena import ALIGNMENT_BYTES
from sexpgpu.plan.layout import ARENA, Layout, contiguous
from sexpgpu.plan.memory import ProgramPlan, shown_size
from sexpgpu.plan.phase import Copy, PhasePlan

COPIED_AT_ONCE = 1 << 20
"""Elements of a slot that one thread copies at a time."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One phase, ready to be called."""

    plan: PhasePlan
    calls: Sequence[Callable[[], None]]
    feeds: Mapping[str, tuple[TensorType, Array]]
    saves: Sequence[tuple[Array, Array]]
    results: Mapping[str, Array]
    commits: Sequence[Callable[[], object]]
    order: Mapping[int, int]
    apply: _Prepared | None

    def save(self) -> None:
        """Set aside what the commits overwrite."""
        for source, target in self.saves:
            np.copyto(target, source)

    def copy_out(self) -> None:
        """Make the commits."""
        for commit in self.commits:
            commit()


class CpuSession:
    """The slots of a program in this process's memory, and its phases as calls.

    growth: measures the process, from before anything was allocated. poison: a slow mode for tests: see `Sentinel`.
    fused: steps are put together in it as well; else each is a call of its own, so that all values lie where the plan
    has them.
    native: makes C kernels of the steps that can be some; None: all are interpreted. warnings: what whoever opened the
    plan should tell.
    Raises: E-MEM-004 where the machine refuses memory; CompileError where kernels cannot be compiled.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        dtypes: Mapping[str, np.dtype[Any]],
        num_threads: int,
        growth: ResidentGrowth,
        poison: bool = False,
        fused: bool = True,
        native: Native | None = None,
    ) -> None:
        self.plan = plan
        self.warnings: tuple[Diagnostic, ...] = ()
        self._growth = growth
        sizes = {name: dtype.itemsize for name, dtype in dtypes.items()}
        self.sentinel = Sentinel(sizes) if poison else None
        self._together = fused or not poison
        self._faults: dict[tuple[int, str], tuple[Node, str]] = {}
        self._ctx = Context(dict(dtypes), self._flag)
        self._slots = {slot.name: slot for slot in plan.program.slots}
        try:
            self._memory = self._allocate(dtypes)
        except MemoryError as error:
            raise DiagnosticError(_refused(plan, "opening the plan")) from error
        self._blas = SingleThreadedBlas()
        self._workers = Workers(num_threads)
        self._native = native
        self._profile: Profile | None = None
        self._cuts: dict[int, Cut] = {}
        self._called: set[str] = set()
        self._phases = {name: self._prepare(phase) for name, phase in plan.phases.items()}
        self._copies = self._make_copies() if plan.snapshot_bytes else {}
        if native is not None:
            try:
                native.link()
            except MemoryError as error:
                self.close()
                raise DiagnosticError(_refused(plan, "opening the plan")) from error
            except BaseException:
                self.close()
                raise

    # Memory.

    def _allocate(self, dtypes: Mapping[str, np.dtype[Any]]) -> Memory:
        buffers: dict[str, Array] = {}
        for slot in self.plan.program.slots:
            buffers[SLOT + slot.name] = np.zeros(slot.type.size * dtypes[slot.type.dtype].itemsize, np.uint8)
        for phase in self.plan.program.phases:
            for name, type in phase.feeds.items():
                num_bytes = type.size * dtypes[type.dtype].itemsize
                if FEED + name not in buffers or buffers[FEED + name].size < num_bytes:
                    buffers[FEED + name] = np.zeros(num_bytes, np.uint8)
        for index, node in enumerate(self.plan.constants):
            buffers[f"constant:{index}"] = constant_bytes(node, self._ctx)
        buffers[LOOPS] = np.empty(self.plan.loop_bytes, np.uint8)
        raw = np.empty(self.plan.arena_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        buffers[ARENA] = raw[start : start + self.plan.arena_bytes]
        if self.sentinel is not None:
            buffers = {name: self.sentinel.fenced(name, buffer) for name, buffer in buffers.items()}
        return Memory(buffers, dtypes)

    def _prepare(self, plan: PhasePlan) -> _Prepared:
        view = self._memory.view

        def pairs(copies: Sequence[Copy]) -> list[tuple[Array, Array]]:
            return [(view(copy.source, copy.type), view(copy.target, copy.type)) for copy in copies]

        order: dict[int, int] = {}
        for position, step in enumerate(plan.steps):
            for node in (step.node, *(inner for body in step.node.bodies for inner in body.walk())):
                order.setdefault(id(node), position)
        return _Prepared(
            plan=plan,
            calls=prepare(plan.steps, self._memory, self._ctx, self._workers, self._native, together=self._together),
            feeds={
                name: (type, view(Layout(FEED + name, 0, contiguous(type.shape)), type))
                for name, type in plan.phase.feeds.items()
            },
            saves=pairs(plan.saves),
            results={name: view(layout, type) for name, (type, layout) in plan.results.items()},
            commits=self._copying(pairs(plan.commits)),
            order=order,
            apply=None if plan.apply is None else self._prepare(plan.apply),
        )

    def _copying(self, pairs: Sequence[tuple[Array, Array]]) -> list[Callable[[], object]]:
        """Calls that copy each first array to the second."""
        calls: list[Callable[[], object]] = []
        if self._native is not None:
            stretch, pairs = self._native.copies(pairs)
            calls = [stretch] if len(stretch) else []
        return [*calls, *[partial(np.copyto, target, source) for source, target in pairs]]

    def _slot(self, name: str) -> Array:
        type = self._slots[name].type
        return self._memory.view(Layout(SLOT + name, 0, contiguous(type.shape)), type)

    def _make_copies(self) -> dict[str, Array]:
        """Memory for snapshots. Filled at once, so that no snapshot waits for the system to find pages."""
        slots = self.plan.program.saved
        try:
            return {slot.name: np.full(slot.type.shape, 0, NUMPY_DTYPES[slot.type.dtype]) for slot in slots}
        except MemoryError as error:
            raise DiagnosticError(_refused(self.plan, "opening the plan")) from error

    # The protocol.

    def write(self, slot: str, value: Array) -> None:
        """Set a slot's contents. Raises ValueError where shape or dtype differ."""
        _put(self._slot(slot), value, self._slots[slot].type, f"slot `{slot}`")

    def read(self, slot: str) -> Future[Array]:
        """A slot's contents, there at once: a view that may not be written and holds until the next call."""
        contents = self._slot(slot).view()
        contents.flags.writeable = False
        return _resolved(contents)

    def snapshot(self) -> Mapping[str, Array]:
        """Copies of the saved slots, made by all threads; they hold until the next snapshot."""
        if not self._copies:
            self._copies = self._make_copies()
        pieces: list[tuple[Array, Array]] = []
        for name, copy in self._copies.items():
            source, target = self._slot(name).reshape(-1), copy.reshape(-1)
            for start in range(0, source.size, COPIED_AT_ONCE):
                pieces.append((source[start : start + COPIED_AT_ONCE], target[start : start + COPIED_AT_ONCE]))

        def copy_pieces(lane: int, numbers: Iterator[int]) -> None:
            for number in numbers:
                source, target = pieces[number]
                np.copyto(target, source)

        self._workers.settle()
        self._workers.run(copy_pieces, len(pieces))
        return self._copies

    def run(self, calls: Sequence[Call]) -> Future[tuple[Outputs, ...]]:
        """Run `calls` in order, up to the first that reports faults; the future holds what they gave.

        Raises: KeyError for a phase that is not there; ValueError where feeds differ from what a phase takes;
        E-MEM-004 where memory for temporaries is refused.
        """
        outputs: list[Outputs] = []
        for call in calls:
            try:
                outputs.append(self._run(self._phases[call.phase], call.feeds))
            except MemoryError as error:
                raise DiagnosticError(_refused(self.plan, f"phase `{call.phase}`")) from error
            if outputs[-1].faults:
                break
        self._growth.sample()
        return _resolved(tuple(outputs))

    def peak_bytes(self) -> int:
        """The most by which the process has grown since before the plan was opened: see `ResidentGrowth`.

        NumPy's BLAS keeps some tens of MiB for itself, which are in no plan.
        """
        return self._growth.most_bytes()

    def held_bytes(self) -> int:
        """The growth at the end of the last call."""
        return self._growth.last_bytes

    def unplanned_bytes(self) -> int:
        """What the interpreter takes for itself while a run goes on: see `UNPLANNED_BYTES`."""
        return UNPLANNED_BYTES

    def profile(self, profile: Profile) -> None:
        """Time every piece from now on, but for the first call of a phase, which touches memory for the first time."""
        self._profile = profile

    def pieces(self) -> Mapping[str, Sequence[Piece]]:
        """The pieces of each phase, in order."""
        return {name: self._cut_of(phase).pieces for name, phase in self._parts()}

    def rates(self) -> Rates:
        """What this machine does at best: measured now, which takes a tenth of a second."""
        return measured_rates(self._workers.num_threads)

    def kernels(self) -> Mapping[str, str]:
        """The text of each kernel by name."""
        return {} if self._native is None else self._native.kernels

    def _parts(self) -> list[tuple[str, _Prepared]]:
        """All phases by name, second passes among them."""
        found: list[tuple[str, _Prepared]] = []
        for name, phase in self._phases.items():
            found.append((name, phase))
            if phase.apply is not None:
                found.append((name + SECOND_PASS, phase.apply))
        return found

    def _cut_of(self, phase: _Prepared) -> Cut:
        known = self._cuts.get(id(phase))
        if known is None:
            known = cut(phase.plan, phase.calls, self.plan.profile.item_bytes, self._native is not None)
            self._cuts[id(phase)] = known
        return known

    def close(self) -> None:
        """Let go of all memory and end the threads."""
        self._workers.close()
        if self._native is not None:
            self._native.close()
        self._blas.release()
        self._phases.clear()
        self._memory.buffers.clear()
        self._copies = {}
        self.sentinel = None

    # A call.

    def _flag(self, node: Node, message: str) -> None:
        self._faults.setdefault((id(node), message), (node, message))

    def _run(self, phase: _Prepared, feeds: Mapping[str, Array]) -> Outputs:
        if feeds.keys() != phase.feeds.keys():
            raise ValueError(f"phase `{phase.plan.phase.name}` takes {sorted(phase.feeds)}, not {sorted(feeds)}")
        self._workers.settle()
        for name, (type, staging) in phase.feeds.items():
            _put(staging, feeds[name], type, f"feed `{name}`")
        self._faults.clear()
        name = phase.plan.phase.name
        timers = self._timers(name, phase)
        self._execute(phase, timers[0])
        results = {name: array.copy() for name, array in phase.results.items()}
        faults = self._sorted_faults(phase)
        guard = phase.plan.phase.guard
        committed = guard is None or (not faults and bool(results[guard]))
        if committed and (phase.apply or phase.commits):
            with uninterrupted():
                if phase.apply is not None:
                    self._execute(phase.apply, timers[1])
                last = phase.apply or phase
                timer = timers[phase.apply is not None]
                if timer is None:
                    last.copy_out()
                else:
                    timer.copies(last.copy_out)
        if self._profile is not None:
            for suffix, timer in zip(("", SECOND_PASS), timers, strict=True):
                if timer is not None:
                    self._profile.add(name + suffix, timer.times)
        return Outputs(results, faults, committed)

    def _timers(self, name: str, phase: _Prepared) -> tuple[Timer | None, Timer | None]:
        """What times a call of a phase, and of its second pass; None: nothing does."""
        is_first = name not in self._called
        self._called.add(name)
        if self._profile is None or is_first:
            return None, None
        return Timer(self._cut_of(phase)), None if phase.apply is None else Timer(self._cut_of(phase.apply))

    def _execute(self, phase: _Prepared, timer: Timer | None) -> None:
        """All steps, and then the saves."""
        with np.errstate(all="ignore"):
            if self.sentinel is not None:
                self.sentinel.run(phase.plan, phase.calls)
            elif timer is not None:
                timer.run(phase.calls)
            else:
                for call in phase.calls:
                    call()
        if self._native is not None:
            self._native.report(self._flag)
        if self.sentinel is not None:
            self.sentinel.copy(phase.plan, phase.save)
        else:
            phase.save()

    def _sorted_faults(self, phase: _Prepared) -> tuple[Fault, ...]:
        if not self._faults:
            return ()
        # Threads report in any order; steps have one.
        met = sorted(self._faults.values(), key=lambda fault: phase.order.get(id(fault[0]), len(phase.order)))
        return tuple([Fault(message, node.origin) for node, message in met])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back the handlers of Ctrl-C and of termination until the block is done.

    Only the main thread runs Python's signal handlers, so elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append((number, frame)))
        yield
    finally:
        for restored, handler in before.items():
            signal.signal(restored, handler)
    for caught, frame in came:
        before[caught](caught, frame)


def _put(target: Array, value: Array, type: TensorType, what: str) -> None:
    """Copy `value` to where a value of `type` is kept; in the f64 mode that is wider than the type says."""
    value = np.asarray(value)
    if value.shape != type.shape or value.dtype not in (NUMPY_DTYPES[type.dtype], target.dtype):
        raise ValueError(f"{what} is {type}, not {value.dtype} {list(value.shape)}")
    np.copyto(target, value)


def _resolved(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _refused(plan: ProgramPlan, where: str) -> Diagnostic:
    parts = ", ".join(f"{name} {shown_size(num_bytes)}" for name, num_bytes in plan.parts().items())
    return Diagnostic(
        "E-MEM-004",
        f"the machine refused memory while {where}; the run holds {shown_size(plan.peak_bytes)} at its peak: {parts}",
        help=("use a smaller batch or `--variant smoke`, or end what else uses this machine's memory",),
    )
