"""Every node of a file's program on a device, beside the interpreter on what the device itself gave the node.

Flow: `cli.verify` calls `verify_experiment`; a session between the training loop and the device notes the first call of
every phase. Each such call is compared as a whole, and its graph is opened again with the inner values as results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sexpgpu.backend.protocol import Budget, Call, Device, Outputs, Session
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Node, Value, reachable
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.program import FEED, RESULT, SLOT, Phase, Program, Slot
from sexpgpu.ir.types import ORACLE_DTYPES, TensorType
from sexpgpu.lang.experiment import Experiment
from sexpgpu.source import Span
from sexpgpu.train.differences import Difference, of_elements, of_norms
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.generation import run_generator
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import Assembly
from sexpgpu.transform.recompute import without_recompute

SLICE_BYTES = 256 << 20
"""Inner values that a call gives back at once; a phase with more of them is called several times."""
NO_SCHEDULE = Builder().graph("schedule", [])


@dataclass(frozen=True, slots=True)
class Finding:
    """One value: of a node, or of a whole phase, where `operation` is the name of an output.

    place: what made the node, in the user's own file where it goes back to one.
    """

    phase: str
    operation: str
    type: TensorType
    place: Span | None
    difference: Difference


@dataclass(slots=True)
class Verification:
    """What was compared. missed: phases that were not, and stopped: the first mistake, which may tell why."""

    nodes: list[Finding] = field(default_factory=list)
    outputs: list[Finding] = field(default_factory=list)
    stopped: DiagnosticError | None = None
    missed: tuple[str, ...] = ()

    @property
    def broken(self) -> list[Finding]:
        """What breaks its bound."""
        return [each for each in (*self.nodes, *self.outputs) if each.difference.broken]


def verify_experiment(experiment: Experiment, assembly: Assembly, device: Device, budget: Budget) -> Verification:
    """The first values of a file, one or two of its steps, a batch of every evaluation and a trip of every generator.

    Raises DiagnosticError as a device does: E-MEM-…, E-DEV-….
    """
    found = Verification()
    program = assembly.program

    def compare(record: _Record) -> None:
        found.outputs.extend(_whole(record))
        found.nodes.extend(_nodes(record, program, device, budget))
        missed.remove(record.phase.name)

    missed = [phase.name for phase in program.phases]

    session = device.open(device.plan(program, budget))
    noting = _Noting(session, program, compare)
    stepper = Stepper(experiment, assembly, noting, last_step=3)
    try:
        stepper.initialise()
        for part in _parts(experiment, program, noting, stepper):
            try:
                part()
            except DiagnosticError as error:  # the others may still be compared
                found.stopped = found.stopped or error
    finally:
        stepper.close()
        session.close()
    found.missed = tuple(missed)
    return found


def _parts(
    experiment: Experiment, program: Program, session: _Noting, stepper: Stepper
) -> Iterator[Callable[[], object]]:
    """What calls the phases of a file, each without need of the others."""
    if experiment.run.updates:
        yield partial(stepper.step, 1)
        if any(name.startswith("update.") for name in session.unseen):  # the commit that diagnoses nothing
            yield partial(stepper.step, 2)
    schedule = stepper.schedule
    for evaluation in experiment.evaluations.values():
        yield partial(run_evaluation, experiment, program, session, schedule, replace(evaluation, batches=1), 1)
    for generator in experiment.generators.values():
        one = replace(generator, num_trips=min(1, generator.num_trips))
        yield partial(run_generator, experiment, program, session, schedule, one, 1)


@dataclass(frozen=True, slots=True)
class _Record:
    """The first call of a phase: what it was given, and what it left, by the names of its graph."""

    phase: Phase
    feeds: Mapping[str, Array]
    given: Mapping[str, Array]
    left: Mapping[str, Array]


class _Noting:
    """A session that hands on the first call of every phase before it goes on."""

    def __init__(self, session: Session, program: Program, note: Callable[[_Record], None]) -> None:
        self.session = session
        self.unseen = {phase.name: phase for phase in program.phases}
        self.note = note

    def run(self, calls: Sequence[Call]) -> Future[tuple[Outputs, ...]]:
        """The calls one by one, as a session runs them."""
        made: list[Outputs] = []
        for call in calls:
            phase = self.unseen.pop(call.phase, None)
            made.append(self._one(call) if phase is None else self._noted(call, phase))
            if made[-1].faults:
                break
        future: Future[tuple[Outputs, ...]] = Future()
        future.set_result(tuple(made))
        return future

    def _one(self, call: Call) -> Outputs:
        (outputs,) = self.session.run([call]).result()
        return outputs

    def _noted(self, call: Call, phase: Phase) -> Outputs:
        given = {SLOT + name: self._copied(name) for name in phase.reads}
        given |= {FEED + name: np.array(array) for name, array in call.feeds.items()}
        outputs = self._one(call)
        left = {RESULT + name: np.array(array) for name, array in outputs.results.items()}
        if outputs.committed:
            left |= {SLOT + name: self._copied(name) for name in phase.writes}
        if not outputs.faults:
            self.note(_Record(phase, call.feeds, given, left))
        return outputs

    def _copied(self, slot: str) -> Array:
        return self.session.read(slot).result().copy()

    def write(self, slot: str, value: Array) -> None:
        """As the session's."""
        self.session.write(slot, value)

    def read(self, slot: str) -> Future[Array]:
        """As the session's."""
        return self.session.read(slot)

    def snapshot(self) -> Mapping[str, Array]:
        """As the session's."""
        return self.session.snapshot()

    def peak_bytes(self) -> int:
        """As the session's."""
        return self.session.peak_bytes()

    def held_bytes(self) -> int:
        """As the session's."""
        return self.session.held_bytes()

    def unplanned_bytes(self) -> int:
        """As the session's."""
        return self.session.unplanned_bytes()

    def close(self) -> None:
        """As the session's."""
        self.session.close()


def _whole(record: _Record) -> Iterator[Finding]:
    """What a call left, beside the interpreter from its beginning to its end."""
    graph = record.phase.graph
    narrow = any(type.dtype == "bf16" for node in graph.walk() for type in node.types)
    exact: dict[str, Array] = {}

    def in_double(name: str) -> Array:
        if not exact:
            with np.errstate(all="ignore"):
                exact.update(evaluate(graph, record.given, double=True))
        return exact[name]

    with np.errstate(all="ignore"):
        wanted = evaluate(graph, record.given)
    for name, value in graph.outputs:
        if name in record.left:
            found, judged_as = record.left[name], "bf16" if narrow else "f32"
            difference = of_norms(found, wanted[name], value.dtype, partial(in_double, name), judged_as)
            yield Finding(record.phase.name, name, value.type, value.node.origin.place, difference)


def _nodes(record: _Record, program: Program, device: Device, budget: Budget) -> Iterator[Finding]:
    """Every node of a phase, those inside `recompute` too, given what the device gave it in the same call."""
    slots = [slot for slot in program.slots if slot.name in record.phase.reads]
    whole = without_recompute(record.phase.graph)
    for stretch in _stretches(whole):
        graph = _opened(whole, stretch)
        known = _called(graph, record, slots, device, budget)
        for node in stretch:
            yield from _compared(node, known, record.phase.name)


def _stretches(graph: Graph) -> Iterator[list[Node]]:
    """The nodes in order, cut where what they read and make would be more than SLICE_BYTES."""
    stretch: list[Node] = []
    shown: set[Value] = set()
    for node in graph.nodes:
        if node.op == "input":
            continue
        wanted = shown.union(_shown(node))
        if stretch and sum(value.type.num_bytes for value in wanted) > SLICE_BYTES:
            yield stretch
            stretch, wanted = [], set(_shown(node))
        stretch.append(node)
        shown = wanted
    if stretch:
        yield stretch


def _shown(node: Node) -> Iterator[Value]:
    """What must be known of a node to compare it: its outputs, and its inputs that a call is not given."""
    yield from node.outputs
    yield from (value for value in node.inputs if value.node.op != "input")


def _opened(graph: Graph, stretch: Sequence[Node]) -> Graph:
    """A graph that gives what its nodes `stretch` read and make."""
    shown = dict.fromkeys(value for node in stretch for value in _shown(node))
    nodes = reachable(tuple(shown))
    used = {node.id for node in nodes}
    inputs = tuple([value for value in graph.inputs if value.node.id in used])
    outputs = tuple([(f"{RESULT}{value.node.id}.{value.index}", value) for value in shown])
    return Graph(graph.name, inputs, outputs, nodes)


def _called(graph: Graph, record: _Record, slots: Sequence[Slot], device: Device, budget: Budget) -> dict[Value, Array]:
    """Values by what the device gives for them, in one call; the inputs of the graph as they were given."""
    phase = Phase(record.phase.name, graph)
    read = tuple([slot for slot in slots if slot.name in phase.reads])
    session = device.open(device.plan(Program(read, (phase,), NO_SCHEDULE), budget))
    try:
        for slot in read:
            session.write(slot.name, record.given[SLOT + slot.name])
        (outputs,) = session.run([Call(phase.name, {name: record.feeds[name] for name in phase.feeds})]).result()
        known = {value: np.array(outputs.results[name.removeprefix(RESULT)]) for name, value in graph.outputs}
    finally:
        session.close()
    return known | {value: record.given[name] for name, value in zip(graph.input_names, graph.inputs, strict=True)}


def _compared(node: Node, known: Mapping[Value, Array], phase: str) -> Iterator[Finding]:
    """The values of one node beside its meaning."""
    inputs = [known[value] for value in node.inputs]
    wanted = meaning(Context(), node, inputs)
    exact: list[tuple[Array, ...]] = []

    def in_double(index: int) -> Array:
        if not exact:
            exact.append(meaning(Context(ORACLE_DTYPES), node, inputs))
        return exact[0][index]

    for index, value in enumerate(node.outputs):
        difference = of_elements(known[value], wanted[index], value.dtype, partial(in_double, index))
        yield Finding(phase, operation(node), value.type, node.origin.place, difference)


def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """What the interpreter makes of a node, from arrays of any float precision."""
    held = [x.astype(ctx.dtype(value.type), copy=False) for x, value in zip(inputs, node.inputs, strict=True)]
    with np.errstate(all="ignore"):
        made = OPS[node.op].meaning(ctx, node, held)
    return tuple([np.asarray(x) for x in made]) if isinstance(made, tuple) else (np.asarray(made),)


def operation(node: Node) -> str:
    """What a node is called in tables: its operation, or the name of its composite."""
    return str(node.attrs["name"]) if node.op == "composite" else node.op
