"""Tracing: while an objective is elaborated, its tensors are recorded in one builder, its effects in one list.

A `World` is what all traces of an experiment share: parameters, states, the schedule. A `Trace` is one graph being
recorded, with the ambient settings and the path of the call that records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from sexpgpu.ir.graph import Graph, Origin, Value
from sexpgpu.ir.program import FEED, SLOT
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.replay import Change, Recorder, Way
from sexpgpu.source import Span

if TYPE_CHECKING:
    from sexpgpu.lang.elaborator import Elaborator

SCALAR_F32 = TensorType("f32", ())
SCALAR_F64 = TensorType("f64", ())
STREAM = TensorType("i64", ())
TRIP = TensorType("i32", ())


@dataclass(frozen=True, slots=True)
class Initialised:
    """A parameter or state: its slot name, type, and the graph that makes its first value (output `value`)."""

    name: str
    type: TensorType
    initial: Graph
    span: Span
    lane: bool = False


class Schedule:
    """The graph of host scalars: f64 nodes from `step`; what tensors use of them is fed as f32."""

    def __init__(self) -> None:
        self.builder = Recorder()
        self.step = self.builder.input("step", SCALAR_F64)
        self._names: dict[Value, str] = {}

    def feed_name(self, value: Value) -> str:
        """The feed that carries `value`: `host.0`, `host.1`, … in order of first use."""
        return self._names.setdefault(value, f"host.{len(self._names)}")

    def graph(self) -> Graph:
        """The schedule as it stands: input `step`, an output per feed."""
        return self.builder.graph("schedule", [(name, value) for value, name in self._names.items()], [self.step])


@dataclass
class World:
    """What every trace of one experiment shares.

    training_reads: how often `training` has been read. roots: the paths under which parameters and states lie.
    """

    schedule: Schedule = field(default_factory=Schedule)
    parameters: dict[str, Initialised] = field(default_factory=dict)
    states: dict[str, Initialised] = field(default_factory=dict)
    averages: dict[str, Any] = field(default_factory=dict)
    training_reads: int = 0
    roots: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Ambient:
    """Settings that `with` changes for the code inside it, and that calls inherit."""

    compute: str | None = None
    training: bool = True
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A `measure`: series path, value, weight, how it folds, when it is due, and a function for the folded value."""

    path: str
    value: Value
    weight: Value | None
    reduce: str
    every: int
    after: Graph | None
    span: Span


@dataclass(frozen=True, slots=True)
class StateSet:
    """A `set-state`: what this microbatch proposes, how proposals fold, how the new value is made of old and seen."""

    name: str
    value: Value
    reduce: str
    using: Graph | None
    span: Span
    count: int = 1


class Trace:
    """One graph under construction.

    unrepeatable: how much happened that the builder's log does not hold.
    """

    def __init__(self, world: World, ambient: Ambient, name: str) -> None:
        self.world = world
        self.builder = Recorder()
        self.ambient = ambient
        self.name = name
        self.scope: tuple[str, ...] = ()
        self.draws: tuple[str, ...] = ()
        self.created: dict[str, Span] = {}
        self.measures: dict[str, Measured] = {}
        self.state_sets: dict[str, StateSet] = {}
        self.trip: Value | None = None
        self.calls_generators = False
        self.generators: list[Any] = []
        self.num_gradients = 0
        self.effects_refused: str | None = None
        self.params_refused: str | None = None
        self.unrepeatable = 0
        self._sites: dict[str, int] = {}

    @contextmanager
    def changed(self, **settings: Any) -> Iterator[None]:
        """Ambient settings changed inside the block."""
        before, self.ambient = self.ambient, replace(self.ambient, **settings)
        try:
            yield
        finally:
            self.ambient = before

    @contextmanager
    def inside(self, scope: tuple[str, ...], draws: tuple[str, ...]) -> Iterator[None]:
        """Another parameter path and another path of draws inside the block."""
        before = self.scope, self.draws
        self.scope, self.draws = scope, draws
        try:
            yield
        finally:
            self.scope, self.draws = before

    @contextmanager
    def refusing(self, *, effects: str) -> Iterator[None]:
        """No effects inside the block; `effects` says where we are."""
        before, self.effects_refused = self.effects_refused, effects
        try:
            yield
        finally:
            self.effects_refused = before

    @property
    def what(self) -> str:
        """What this graph is, for a message."""
        return self.effects_refused or f"`{self.name}`"

    def owns(self, value: Value) -> bool:
        """Whether `value` belongs to this graph and not to another one."""
        nodes = self.builder.nodes
        return value.node.id < len(nodes) and nodes[value.node.id] is value.node

    def adopt(self, value: Value) -> Value | None:
        """The value as one of this graph; None if it belongs to another one."""
        return value if self.owns(value) else None

    def reaches(self, value: Value) -> bool:
        """Whether `adopt` gives a value, which it may capture."""
        return self.owns(value)

    def original(self, value: Value) -> Value:
        """The value as it was made, where this graph only captures it."""
        return value

    @contextmanager
    def made_at(self, span: Span | None) -> Iterator[None]:
        """Nodes of the block come from `span`, and from what is around it."""
        before = self.builder.origin
        around = before if before.span else None
        self.builder.origin = before if span is None else Origin(span, "called from" if around else "", around)
        try:
            yield
        finally:
            self.builder.origin = before

    def path(self, name: str) -> str:
        """The full path of a parameter, state or measure called `name` here."""
        return ".".join((*self.scope, name))

    def slot(self, name: str, type: TensorType) -> Value:
        """The contents of a slot."""
        return self.builder.input(SLOT + name, type)

    def feed(self, name: str, type: TensorType) -> Value:
        """An argument of the call."""
        start = len(self.builder.log)
        value = self._input(name, type)
        self.builder.instead(start, _Fed(name, type, value, self.builder.origin))
        return value

    def _input(self, name: str, type: TensorType) -> Value:
        return self.builder.input(FEED + name, type)

    def host(self, scalar: Value) -> Value:
        """A host scalar as an f32 tensor: fed once a step."""
        return self.feed(self.world.schedule.feed_name(scalar), SCALAR_F32)

    def draw(self, op: str, callee: str, shape: tuple[int, ...]) -> Value:
        """A random tensor; its bits depend on this microbatch's stream, the trip, and the path of the call."""
        return self.draw_at(self.draws, op, callee, shape)

    def draw_at(self, draws: tuple[str, ...], op: str, callee: str, shape: tuple[int, ...]) -> Value:
        """A random tensor of another path."""
        start = len(self.builder.log)
        path = "/".join((*draws, callee))
        count = self._sites.get(path, 0)
        self._sites[path] = count + 1
        name = f"{path}#{count}" if count else path
        site = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
        stream = self.feed("stream", STREAM)
        trip = self.place()
        if trip is None:
            trip = self.builder.constant(0, TRIP)
        value = self.builder.op(op, stream, trip, shape=shape, site=site)
        self.builder.instead(start, _Drawn(op, callee, shape, draws, value, self.builder.origin))
        return value

    def place(self) -> Value | None:
        """Which trip of the loops around this is running; None outside of loops."""
        return self.trip

    def slot_name(self, value: Value) -> str | None:
        """The slot whose contents `value` is; None of any other value."""
        name = str(value.node.attrs["name"]) if value.node.op == "input" else ""
        return name.removeprefix(SLOT) if name.startswith(SLOT) else None


@dataclass(slots=True, eq=False, repr=False)
class _Drawn:
    """A draw in a log."""

    op: str
    callee: str
    shape: tuple[int, ...]
    draws: tuple[str, ...]
    value: Value
    origin: Origin
    needs: tuple[Value, ...] = ()

    def possible(self, el: Elaborator, way: Way) -> bool:
        """Whether it can happen there: always."""
        return True

    def again(self, el: Elaborator, way: Way, change: Change) -> Value:
        """A draw of its own."""
        return el.require_trace().draw_at(way.draws(self.draws), self.op, self.callee, self.shape)


@dataclass(slots=True, eq=False, repr=False)
class _Fed:
    """An argument of the call that a log asks for, such as a host scalar."""

    name: str
    type: TensorType
    value: Value
    origin: Origin
    needs: tuple[Value, ...] = ()

    def possible(self, el: Elaborator, way: Way) -> bool:
        """Whether it can happen there: always."""
        return True

    def again(self, el: Elaborator, way: Way, change: Change) -> Value:
        """The argument there."""
        return el.require_trace().feed(self.name, self.type)


@dataclass(slots=True, eq=False, repr=False)
class _Captured:
    """A tensor that a body takes from around it."""

    outside: Value
    value: Value
    origin: Origin

    @property
    def needs(self) -> tuple[Value, ...]:
        """The tensor outside."""
        return (self.outside,)

    def possible(self, el: Elaborator, way: Way) -> bool:
        """Whether it can happen there: an argument from outside is one there as well."""
        return True

    def again(self, el: Elaborator, way: Way, change: Change) -> Value:
        """What stands for the tensor outside there."""
        found = el.require_trace().adopt(change(self.outside))
        assert found is not None, self.outside
        return found


class BodyTrace(Trace):
    """The body of a run-time loop or of `recompute`: a graph of its own, whose storage, feeds and draws are those
    around it.

    A tensor from outside is captured: it becomes an input `kN` of the body. captured: outer value to input.
    count: makes the number of the trip; None where the body runs once. refused: why there are no effects inside.
    """

    def __init__(self, outer: Trace, refused: str | None) -> None:
        super().__init__(outer.world, outer.ambient, outer.name)
        self.outer = outer
        self.builder.origin = outer.builder.origin
        self.scope, self.draws = outer.scope, outer.draws
        self.created = outer.created
        self.params_refused, self.effects_refused = outer.params_refused, refused
        self._sites = outer._sites
        self.captured: dict[Value, Value] = {}
        self.count: Callable[[], Value] | None = None
        self.length = 0

    def adopt(self, value: Value) -> Value | None:
        """The value here, captured if it belongs to a graph around this one; None of any other graph."""
        if self.owns(value):
            return value
        outside = self.outer.adopt(value)
        return None if outside is None else self._capture(outside, value)

    def original(self, value: Value) -> Value:
        """The value as it was made, where this graph only captures it."""
        outside = next((outer for outer, inner in self.captured.items() if inner is value), None)
        return value if outside is None else self.outer.original(outside)

    def reaches(self, value: Value) -> bool:
        """Whether `adopt` gives a value, which it may capture."""
        return self.owns(value) or self.outer.reaches(value)

    def _capture(self, value: Value, asked: Value | None = None) -> Value:
        start, found = len(self.builder.log), self.captured.get(value)
        if found is None:
            found = self.captured[value] = self.builder.input(f"k{len(self.captured)}", value.type)
        self.builder.instead(start, _Captured(asked or value, found, self.builder.origin))
        return found

    def slot(self, name: str, type: TensorType) -> Value:
        """The contents of a slot."""
        return self._capture(self.outer.slot(name, type))

    def _input(self, name: str, type: TensorType) -> Value:
        return self._capture(self.outer.feed(name, type))

    def place(self) -> Value | None:
        """The loop's own count, and what the loops around it have gone through before."""
        around = self.outer.place()
        if self.count is None:
            return None if around is None else self._capture(around)
        own = self.count()
        if around is None:
            return own
        return self.builder.add(self.builder.scale(self._capture(around), self.length), own)

    def slot_name(self, value: Value) -> str | None:
        """The slot whose contents `value` is, here or around; None of any other value."""
        if not self.owns(value):
            return self.outer.slot_name(value)
        outside = [outer for outer, inner in self.captured.items() if inner is value]
        return self.outer.slot_name(outside[0]) if outside else None
