"""What the training loop knows of a device: plan a program, open the plan, run calls, read and write slots.

Flow: `cli` picks a device and passes it down; `train` speaks only to these protocols.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from sexpgpu.ir.graph import Origin
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Program
from sexpgpu.plan.memory import ProgramPlan


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a phase, with its arguments by name."""

    phase: str
    feeds: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """A run-time check that failed inside a call: bad index, division by zero."""

    message: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one call gave back: results by name, faults in the order they were met, and whether its guard held.

    A call with faults, or whose guard did not hold, has written no slot if its phase is guarded.
    """

    results: Mapping[str, Array]
    faults: tuple[Fault, ...] = ()
    committed: bool = True


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory that a plan may hold. bytes: None is whatever the device has free.
    snapshot: the plan includes the host's copy of what is saved, for a run that saves while it goes on."""

    bytes: int | None = None
    snapshot: bool = False


class Session(Protocol):
    """An opened plan: the slots live here."""

    def write(self, slot: str, value: Array) -> None:
        """Set a slot's contents."""
        ...

    def read(self, slot: str) -> Future[Array]:
        """A slot's contents, later; they hold until the session runs or writes again."""
        ...

    def snapshot(self) -> Mapping[str, Array]:
        """Copies of all slots that a checkpoint holds, in the host's memory; they hold until the next snapshot."""
        ...

    def run(self, calls: Sequence[Call]) -> Future[tuple[Outputs, ...]]:
        """Enqueue a chunk of calls, in order, and return at once or when done; the future holds their outputs.

        A chunk stops at the first call that reports faults; the calls after it do not run.
        """
        ...

    def peak_bytes(self) -> int:
        """The most that was held so far, as measured."""
        ...

    def held_bytes(self) -> int:
        """What was held after the last call, as measured."""
        ...

    def unplanned_bytes(self) -> int:
        """How much of what is measured may belong to no plan: a smaller difference from the plan means nothing."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Device(Protocol):
    """A kind of machine to run on."""

    @property
    def name(self) -> str:
        """`cpu`, `metal` or `cuda`."""
        ...

    @property
    def dtypes(self) -> Collection[str]:
        """What values may have on it."""
        ...

    def describe(self) -> str:
        """One line for reports: the machine behind the name."""
        ...

    def free_bytes(self) -> int:
        """Memory that is free on it now."""
        ...

    def plan(self, program: Program, budget: Budget) -> ProgramPlan:
        """Regions, order, memory. Pure. Raises DiagnosticError E-MEM-001 if it does not fit."""
        ...

    def open(self, plan: ProgramPlan) -> Session:
        """Allocate and prepare. Raises DiagnosticError E-MEM-004 if the machine refuses."""
        ...
