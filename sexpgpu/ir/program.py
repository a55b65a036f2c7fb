"""A program: named memory and named phases over it. Data only; a device plans it and opens the plan.

Flow: `train.phases` assembles it from an elaborated experiment; `plan` and devices read it; `ir` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.types import TensorType

SLOT, FEED, RESULT = "slot:", "feed:", "result:"
"""Prefixes of graph input and output names: memory that outlives a call, arguments, and what a call gives back."""

ROLES = ("parameter", "optimizer", "state", "average", "gradient", "fold", "carry")
SAVED_ROLES = ("parameter", "optimizer", "state", "average")
"""Roles that a checkpoint holds; the others live for one step or one generation."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory that keeps its address for a session.

    role: one of ROLES. initialised: phase `initialise` writes it; otherwise the first phase that uses it does.
    """

    name: str
    type: TensorType
    role: str
    initialised: bool = True


@dataclass(frozen=True, eq=False)
class Phase:
    """One call: `graph` reads slots and feeds, gives results and new contents of slots.

    guard: the bool result that decides whether slots are written at all; None: always. All reads of a call come
    before its writes.
    """

    name: str
    graph: Graph
    guard: str | None = None

    @property
    def feeds(self) -> dict[str, TensorType]:
        """Arguments of the call by name, without the prefix."""
        return {name: v.type for name, v in self._inputs(FEED)}

    @property
    def reads(self) -> dict[str, TensorType]:
        """Slots that the graph reads."""
        return {name: v.type for name, v in self._inputs(SLOT)}

    @property
    def writes(self) -> tuple[str, ...]:
        """Slots that the graph writes."""
        return tuple(name.removeprefix(SLOT) for name, _ in self.graph.outputs if name.startswith(SLOT))

    @property
    def results(self) -> tuple[str, ...]:
        """Names of what the call gives back."""
        return tuple(name.removeprefix(RESULT) for name, _ in self.graph.outputs if name.startswith(RESULT))

    def _inputs(self, prefix: str) -> Iterator[tuple[str, Value]]:
        for name, value in zip(self.graph.input_names, self.graph.inputs, strict=True):
            if name.startswith(prefix):
                yield name.removeprefix(prefix), value


@dataclass(frozen=True, eq=False)
class Program:
    """Slots, phases, and the schedule: a graph of f64 scalars from `step` to the host scalars that phases are fed."""

    slots: tuple[Slot, ...]
    phases: tuple[Phase, ...]
    schedule: Graph

    def phase(self, name: str) -> Phase:
        """The phase called `name`; KeyError if there is none."""
        return {phase.name: phase for phase in self.phases}[name]

    def slot(self, name: str) -> Slot:
        """The slot called `name`; KeyError if there is none."""
        return {slot.name: slot for slot in self.slots}[name]

    @property
    def saved(self) -> tuple[Slot, ...]:
        """The slots that a checkpoint holds."""
        return tuple(slot for slot in self.slots if slot.role in SAVED_ROLES)
