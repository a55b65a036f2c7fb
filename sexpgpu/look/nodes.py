"""Where two runs first computed something else: their steps made again side by side, then one call node by node.

Flow: `sexpgpu diff --graph` opens both experiments as they were recorded and hands them over as sides. Both begin from
equal states; the first call whose feeds, results or slots differ is run to, and its two graphs are evaluated together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

from sexpgpu.backend.protocol import Call, Outputs, Session
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.program import FEED, SLOT, Program
from sexpgpu.lang.experiment import Experiment
from sexpgpu.train.blame import last_uses
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.initial import initialise
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import Assembly

_SHOWN = 60


@dataclass(frozen=True)
class Parting:
    """Where two runs part: the step (0: first values), the phase, and the rest in words."""

    step: int
    phase: str
    lines: tuple[str, ...]


class Side:
    """One of two runs, opened again. name: what it is called in what is said."""

    def __init__(self, name: str, experiment: Experiment, assembly: Assembly, session: Session, last_step: int) -> None:
        self.name = name
        self.experiment = experiment
        self.assembly = assembly
        self.watched = _Watched(session, assembly.program)
        self.last_step = last_step
        self.stepper = Stepper(experiment, assembly, self.watched, last_step)

    def begin(self, tensors: Mapping[str, Array]) -> None:
        """Set slots; steps begin anew after it."""
        self.stepper.close()
        self.stepper = Stepper(self.experiment, self.assembly, self.watched, self.last_step)
        for name, value in tensors.items():
            self.watched.write(name, value)

    def states(self) -> dict[str, Array]:
        """What a checkpoint would hold."""
        return {slot.name: self.watched.read(slot.name).result().copy() for slot in self.assembly.program.saved}

    def close(self) -> None:
        """Give everything back."""
        self.stepper.close()
        self.watched.close()


def _step(side: Side, step: int) -> None:
    side.stepper.step(step)


def first_parting(a: Side, b: Side, start_step: int, last_step: int, evaluation: str | None) -> Parting | None:
    """Both runs from equal states after `start_step` (0: before first values are made) to `last_step`, and there an
    evaluation: where they first differ. None where they do not."""
    acts: list[tuple[int, Callable[[Side], object]]] = []
    if start_step == 0:
        acts.append((0, lambda side: initialise(side.experiment, side.assembly.program, side.watched)))
    acts += [(step, partial(_step, step=step)) for step in range(start_step + 1, last_step + 1)]
    if evaluation is not None:
        acts.append((last_step, lambda side: _evaluate(side, evaluation, last_step)))
    for step, act in acts:
        befores = []
        for side in (a, b):
            befores.append(side.states() if step else {})
            side.watched.restart(None)
            act(side)
        if a.watched.made != b.watched.made:
            return _part(step, act, (a, b), befores)
    return None


def _evaluate(side: Side, name: str, step: int) -> None:
    evaluation = side.experiment.evaluations[name]
    run_evaluation(side.experiment, side.assembly.program, side.watched, side.stepper.schedule, evaluation, step)


def _part(
    step: int, act: Callable[[Side], object], sides: tuple[Side, Side], befores: Sequence[Mapping[str, Array]]
) -> Parting:
    made = [side.watched.made for side in sides]
    index = next((i for i, (x, y) in enumerate(zip(*made, strict=False)) if x != y), min(map(len, made)))
    phases = [each[index][0] if index < len(each) else "nothing more" for each in made]
    if phases[0] != phases[1]:
        lines = [f"call {index + 1} of the step is {p} in {s.name}" for p, s in zip(phases, sides, strict=True)]
        return Parting(step, phases[0], tuple(lines))
    calls = []
    for side, before in zip(sides, befores, strict=True):
        side.begin(before)
        side.watched.restart(index)
        try:
            act(side)
        except _Reached as reached:
            calls.append(reached.call)
    graphs = [side.assembly.program.phase(phases[0]).graph for side in sides]
    given = [_given(s.watched, g, c) for s, g, c in zip(sides, graphs, calls, strict=True)]
    names = (sides[0].name, sides[1].name)
    told = _first_input(sides, step, graphs, given, names) or _first_node(graphs, given, names)
    return Parting(step, phases[0], tuple(told))


class _Reached(Exception):
    """The call that a side was to stop before."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.phase)
        self.call = call


class _Watched:
    """A session that notes a digest of all that each call took and gave, and may stop before one of them."""

    def __init__(self, session: Session, program: Program) -> None:
        self._session = session
        self._program = program
        self._stop_at: int | None = None
        self.made: list[tuple[str, bytes]] = []
        self.write = session.write
        self.read = session.read
        self.snapshot = session.snapshot
        self.peak_bytes = session.peak_bytes
        self.held_bytes = session.held_bytes
        self.unplanned_bytes = session.unplanned_bytes
        self.close = session.close

    def restart(self, stop_at: int | None) -> None:
        """Forget the calls that were made; stop before the one of this number, from 0."""
        self.made, self._stop_at = [], stop_at

    def run(self, calls: Sequence[Call]) -> Future[tuple[Outputs, ...]]:
        outputs: list[Outputs] = []
        for call in calls:
            if len(self.made) == self._stop_at:
                raise _Reached(call)
            outputs += self._session.run([call]).result()
            self.made.append((call.phase, self._digest(call, outputs[-1])))
            if outputs[-1].faults:
                break
        found: Future[tuple[Outputs, ...]] = Future()
        found.set_result(tuple(outputs))
        return found

    def _digest(self, call: Call, outputs: Outputs) -> bytes:
        hashed = blake2b(digest_size=16)
        written = {name: self.read(name).result() for name in self._program.phase(call.phase).writes}
        for part in (call.feeds, outputs.results, written):
            for name in sorted(part):
                hashed.update(name.encode() + repr((part[name].dtype, part[name].shape)).encode())
                hashed.update(np.ascontiguousarray(part[name]).tobytes())
        return hashed.digest()


def _given(session: Session, graph: Graph, call: Call) -> list[Array]:
    """The inputs of a call, by the order of its graph."""
    return [
        session.read(name.removeprefix(SLOT)).result().copy()
        if name.startswith(SLOT)
        else np.asarray(call.feeds[name.removeprefix(FEED)])
        for name in graph.input_names
    ]


# --- inputs -------------------------------------------------------------------------------------------------


def _first_input(
    sides: tuple[Side, Side],
    step: int,
    graphs: Sequence[Graph],
    given: Sequence[Sequence[Array]],
    names: tuple[str, str],
) -> list[str] | None:
    """What is said of the first input that differs; None where all that both have are equal."""
    a, b = (dict(zip(g.input_names, arrays, strict=True)) for g, arrays in zip(graphs, given, strict=True))
    for name in a:
        if name not in b or _same(a[name], b[name]):
            continue
        if name.startswith(FEED + "host."):
            schedules = [side.assembly.program.schedule for side in sides]
            at = [[np.asarray(max(step, 1), np.float64)] for _ in sides]
            return ["a number that depends on `step` differs", *_first_node(schedules, at, names)]
        bare = name.removeprefix(FEED).removeprefix(SLOT)
        what = {"stream": "the key of its draws, made of the seed and the update,"}.get(bare)
        if bare.startswith("batch."):
            what = f"the field `{bare.removeprefix('batch.')}` of its batch"
        where, values = _element(a[name], b[name], names)
        return [f"{what or f'the input `{bare}`'} differs{where}", *values]
    return None


# --- nodes --------------------------------------------------------------------------------------------------


def _first_node(graphs: Sequence[Graph], given: Sequence[Sequence[Array]], names: tuple[str, str]) -> list[str]:
    """What is said of the first node that computes something else in the second graph, or other bits."""
    walks = [_walk(graph, inputs) for graph, inputs in zip(graphs, given, strict=True)]
    for (x, key_x, made_x), (y, key_y, made_y) in zip(*walks, strict=False):
        equal = len(made_x) == len(made_y) and all(map(_same, made_x, made_y))
        if key_x == key_y and equal:
            continue
        alike = x.op == y.op and key_x[2:] == key_y[2:] and len(made_x) == len(made_y)
        head = "the first node whose bits differ" if alike and not equal else "the graphs part at this node"
        places = [f"  {name}: {_shown(node)}" for name, node in zip(names, (x, y), strict=True)]
        if equal:
            return [head, *places, "its bits are equal, those of later nodes differ"]
        where, values = _element(made_x[0], made_y[0], names)
        return [head, *places, f"its value{where}", *values]
    longer, name = max(((len(g.nodes), name) for g, name in zip(graphs, names, strict=True)), key=lambda pair: pair[0])
    return [f"all nodes that both graphs have are equal, bit for bit; {name} has more, {longer} in all"]


def _walk(graph: Graph, inputs: Sequence[Array]) -> Iterator[tuple[Node, tuple[Any, ...], tuple[Array, ...]]]:
    """Every node but inputs: what it computes of which nodes, as a key that equal nodes share, and its values."""
    ctx, last = Context(), last_uses(graph)
    known: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    position = {value.node.id: name for value, name in zip(graph.inputs, graph.input_names, strict=True)}
    for index, node in enumerate(graph.nodes):
        if node.op == "input":
            continue
        with np.errstate(all="ignore"):
            made = OPS[node.op].meaning(ctx, node, [known[v] for v in node.inputs])
        results = made if isinstance(made, tuple) else (made,)
        known.update(zip(node.outputs, results, strict=True))
        position[node.id] = str(len(position))
        of = tuple((position[v.node.id], v.index) for v in node.inputs)
        bodies = tuple(str([repr(n) for n in body.walk()]) for body in node.bodies)
        yield node, (node.op, tuple(sorted(node.attrs.items(), key=str)), bodies, node.types, of), results
        for value in last.get(index, ()):
            del known[value]


def _shown(node: Node) -> str:
    """An operation with what tells it from others, and its place in the file."""
    value = f" {node.attrs['value']}" if node.op == "constant" else ""
    place = node.origin.place
    if place is None:
        return f"`{node.op}`{value}, which no form of the file made"
    words = " ".join(place.text.split())
    cut = words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
    inside = " (in its gradient)" if node.origin.note.startswith("gradient") else ""
    return f"`{node.op}`{value} at {place}{inside}: {cut}"


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _element(a: Array, b: Array, names: tuple[str, str]) -> tuple[str, list[str]]:
    """Where the first element is that differs, in words; and both values, or both shapes, in a line each."""
    if a.dtype != b.dtype or a.shape != b.shape:
        shapes = (f"({' '.join(map(str, (x.dtype, *x.shape)))})" for x in (a, b))
        return "", [f"  {name}: {shape}" for name, shape in zip(names, shapes, strict=True)]
    raw = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(max(x.size, 1), -1) for x in (a, b)]
    flat = np.flatnonzero((raw[0] != raw[1]).any(axis=1))
    at = np.unravel_index(int(flat[0]), a.shape) if a.ndim else ()
    values = [f"  {name}: {_number(x[at])}" for name, x in zip(names, (a, b), strict=True)]
    if not a.ndim:
        return "", values
    count = f", and {len(flat) - 1:,} more of {a.size:,}" if len(flat) > 1 else ""
    return f" at [{' '.join(str(int(i)) for i in at)}]{count}", values


def _number(value: Any) -> str:
    if np.asarray(value).dtype.kind in "biu":
        return str(value)
    return f"{float(value)!r} {float(value).hex()}"
