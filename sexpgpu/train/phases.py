"""From an experiment to a `Program`: raise, stack, differentiate, simplify, and lay the pieces out as phases.

Flow: `cli` asks for it once per run; the device plans what comes out. Phases of a run:

    initialise                  parameters, optimizer states and model states get their first values
    update.U.generate.G.start / .trip   a generator that the loss calls, before each of the following
    update.U.first / .next      forward and backward of k microbatches; gradients are written / added to
    update.U.commit             clip, propose, average, guard; written only if every proposal is finite
    update.U.commit.diagnosed   the same with the run's diagnostics
    eval.E.I.generate.G.start / .trip   a generator that the metric calls, before the following
    eval.E.I                    metric I of evaluation E on one batch
    generate.G.start / .trip    the carries of a generator before its first trip / one trip
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.program import FEED, RESULT, SLOT, Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.averages import Average, averages_of
from sexpgpu.lang.experiment import DiagnosticRule, Experiment, LeafRule, Objective, Update
from sexpgpu.lang.trace import SCALAR_F32
from sexpgpu.train.inner import batched_inputs, generator_phases, read_generated
from sexpgpu.train.lanes import (
    first_contents,
    initial_lanes,
    lanes_of,
    proposal_type,
    read_lanes,
    slot_type,
    write_lane,
)
from sexpgpu.transform.autodiff import differentiate
from sexpgpu.transform.passes import FINAL_PASSES, forward_passes, run_passes

WEIGHTS = "weights."
"""Prefix of the feeds of `initialise` that bring published weights."""
GRADIENT_NORM = "gradient-norm"
"""What stands for the norm that `:clip` bounds among the leaves of an update."""
CLIP_EPSILON = 1e-6
"""Added to the gradient norm that `:clip` divides by."""


@dataclass(frozen=True, slots=True)
class UpdateNames:
    """What the loop must know of an update's phases.

    leaves: the norm that `:clip` bounds, parameters and states, in the order of the result `finite`. diagnostics:
    (rule, group) in the order of the results `diagnostic:RULE:GROUP`.
    """

    leaves: tuple[str, ...]
    diagnostics: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Assembly:
    """A program and the names that the loop reads its results by. stacking: microbatches in one call."""

    program: Program
    updates: Mapping[str, UpdateNames]
    stacking: int


def assemble(experiment: Experiment, *, stacking: int = 1) -> Assembly:
    """The program of `experiment`'s run, with `stacking` microbatches in one call of a training graph.

    Raises TypeFault E-TYPE-009 where a loss cannot be differentiated.
    """
    assert experiment.run.microbatches % stacking == 0, (experiment.run.microbatches, stacking)
    slots: dict[str, Slot] = {}
    phases: list[Phase] = []
    names: dict[str, UpdateNames] = {}
    for parameter in experiment.parameters.values():
        slots[parameter.name] = Slot(parameter.name, parameter.type, "parameter")
    for state in experiment.states.values():
        slots[state.name] = Slot(state.name, slot_type(experiment, state), "state")
    for average in experiment.averages.values():
        for name in average.parameters:
            slot = average.slot(name)
            slots[slot] = Slot(slot, experiment.parameters[name].type, "average")
    phases.append(_initialise(experiment, slots))
    for update in experiment.run.updates:
        phases += generator_phases(
            experiment,
            f"update.{update.name}",
            update.objective.generators,
            stacking,
            lambda b, graph: read_lanes(b, experiment, lanes_of(experiment, graph), stacking),
            slots,
        )
        parts = _UpdateParts(experiment, update, stacking, slots)
        phases.append(parts.microbatches(first=True))
        if experiment.run.microbatches > stacking:
            phases.append(parts.microbatches(first=False))
        phases.append(parts.commit(()))
        rules = [r for r in experiment.run.diagnose if any(name in update.rules for name in r.graphs)]
        if rules:
            phases.append(parts.commit(rules))
        names[update.name] = UpdateNames(tuple(parts.leaves), tuple(parts.diagnostics))
    for evaluation in experiment.evaluations.values():
        for index, objective in enumerate(evaluation.objectives):
            phases += _evaluation(experiment, f"eval.{evaluation.name}.{index}", objective, slots)
    phases += _generators(experiment, slots)
    program = Program(tuple(slots.values()), tuple(phases), run_passes(experiment.schedule.graph(), FINAL_PASSES))
    return Assembly(program, names, stacking)


def optimizer_slot(experiment: Experiment, update: Update, parameter: str, state: str) -> str:
    """The slot of an optimizer's state; it carries the update's name only where several updates move the parameter."""
    several = sum(parameter in other.rules for other in experiment.run.updates) > 1
    return f"{parameter}/{state}@{update.name}" if several else f"{parameter}/{state}"


def _finish(name: str, b: Builder, outputs: Sequence[tuple[str, Value]], guard: str | None = None) -> Phase:
    return Phase(name, run_passes(b.graph(name, outputs), FINAL_PASSES), guard)


def _initialise(experiment: Experiment, slots: dict[str, Slot]) -> Phase:
    b = Builder()
    outputs: list[tuple[str, Value]] = []
    values: dict[str, Value] = {}
    for owned in (*experiment.parameters.values(), *experiment.states.values()):
        if owned.name in experiment.weights:
            values[owned.name] = b.input(FEED + WEIGHTS + owned.name, owned.type)
        else:
            (values[owned.name],) = b.copy(owned.initial)
        outputs.append((SLOT + owned.name, first_contents(b, experiment, owned, values[owned.name])))
    for average in experiment.averages.values():
        outputs += [(SLOT + average.slot(name), values[name]) for name in average.parameters]
    for update in experiment.run.updates:
        for parameter, rule in update.rules.items():
            for state, type, graph in rule.initial:
                name = optimizer_slot(experiment, update, parameter, state)
                slots[name] = Slot(name, type, "optimizer")
                outputs.append((SLOT + name, b.copy(graph, {"p": values[parameter]})[0]))
    return _finish("initialise", b, outputs)


class _UpdateParts:
    """The phases of one update."""

    def __init__(self, experiment: Experiment, update: Update, stacking: int, slots: dict[str, Slot]) -> None:
        self.experiment = experiment
        self.update = update
        self.k = stacking
        self.slots = slots
        self.lanes = lanes_of(experiment, update.objective.graph)
        own = batched_inputs(experiment, update.objective.generators, update.objective.graph)
        self.forward = _forward(update.objective.graph, stacking, own)
        weight = update.objective.graph.output("weight").node
        self.unit_weight = weight.op == "constant" and weight.attrs["value"] == 1.0
        self.leaves: list[str] = []
        self.diagnostics: list[tuple[str, str]] = []

    def _slot(self, kind: str, name: str, type: TensorType) -> str:
        full = f"{kind}.{self.update.name}/{name}" if name else f"{kind}.{self.update.name}"
        self.slots[full] = Slot(full, type, "fold" if kind == "fold" else "gradient", initialised=False)
        return full

    # Forward and backward.

    def microbatches(self, first: bool) -> Phase:
        """k microbatches: results per microbatch, gradients and folds into their slots."""
        b = Builder()
        emitted = read_generated(b, self.update.objective.generators, self.k)
        found = _named(b, self.forward, read_lanes(b, self.experiment, self.lanes, self.k) | emitted)
        value, weight = found["value"], found["weight"]
        outputs = [(RESULT + name, v) for name, v in found.items() if not name.startswith("state:")]
        cotangent = b.op("stop-gradient", weight)
        parameters = list(self.update.rules)
        wrt = [b.input(SLOT + name, self.experiment.parameters[name].type) for name in parameters]
        gradients = differentiate(b, {value: cotangent}, wrt)
        add = _adder(b, first)
        for name, leaf, gradient in zip(parameters, wrt, gradients, strict=True):
            slot = self._slot("gradient", name, leaf.type)
            outputs.append((SLOT + slot, add(slot, b.like(0.0, leaf) if gradient is None else gradient)))
        if not self.unit_weight:
            slot = self._slot("weight", "", SCALAR_F32)
            outputs.append((SLOT + slot, add(slot, _sum_of(b, weight))))
        for rule in self.update.objective.states:
            state = self.experiment.states[rule.name]
            slot = self._slot("fold", rule.name, proposal_type(self.experiment, state))
            if state.lane:
                proposed = found[f"state:{rule.name}"]
                entered = write_lane(b, self.experiment, state, slot, proposed, self.k, first=first)
                outputs.append((SLOT + slot, entered))
                continue
            seen = _fold_stacked(b, found[f"state:{rule.name}"], rule.reduce, self.k)
            op = {"mean": "add", "sum": "add", "max": "maximum", "min": "minimum"}.get(rule.reduce)
            outputs.append(
                (
                    SLOT + slot,
                    seen if first or op is None else b.op(op, b.input(SLOT + slot, seen.type), seen),
                )
            )
        return _finish(f"update.{self.update.name}.{'first' if first else 'next'}", b, outputs)

    # Clip, propose, guard.

    def commit(self, rules: Sequence[DiagnosticRule]) -> Phase:
        """New parameters and states, guarded; with the diagnostics of `rules`."""
        b = Builder()
        outputs: list[tuple[str, Value]] = []
        finite: list[Value] = []
        self.leaves = []
        raw = {
            name: b.input(
                SLOT + self._slot("gradient", name, self.experiment.parameters[name].type),
                self.experiment.parameters[name].type,
            )
            for name in self.update.rules
        }
        factor = self._factor(b, raw, outputs, finite)
        trios: dict[str, tuple[Value, Value, Value]] = {}
        for name, rule in self.update.rules.items():
            trios[name] = self._propose(b, name, rule, _scaled(b, raw[name], factor), outputs, finite)
        for name, (_, _, new) in trios.items():
            for average in averages_of(self.experiment.averages, name):
                outputs.append((SLOT + average.slot(name), self._averaged(b, average, name, new)))
        for state in self.update.objective.states:
            owned = self.experiment.states[state.name]
            type = proposal_type(self.experiment, owned)
            seen = b.input(SLOT + self._slot("fold", state.name, type), type)
            if owned.lane:
                entered = b.cast(seen, owned.type.dtype)
                outputs.append((SLOT + state.name, entered))
                self._guard(b, state.name, (entered,), finite)
                continue
            if state.reduce == "mean":
                seen = b.scale(seen, 1.0 / self.experiment.run.microbatches)
            old = b.input(SLOT + state.name, type)
            new = b.copy(state.using, {"old": old, "seen": seen})[0] if state.using is not None else seen
            outputs.append((SLOT + state.name, new))
            self._guard(b, state.name, (new,), finite)
        if finite:
            flags = [b.reshape(flag, (1,)) for flag in finite]
            together = b.op("concat", *flags, axis=0) if len(flags) > 1 else flags[0]
            outputs.append((RESULT + "finite", together))
            outputs.append((RESULT + "ok", b.op("all", together, axes=(0,))))
        self.diagnostics = []
        for diagnostic in rules:
            self._diagnose(b, diagnostic, trios, outputs)
        suffix = ".diagnosed" if rules else ""
        return _finish(f"update.{self.update.name}.commit{suffix}", b, outputs, "ok" if finite else None)

    def _factor(
        self, b: Builder, raw: Mapping[str, Value], outputs: list[tuple[str, Value]], finite: list[Value]
    ) -> Value | None:
        """What gradients are multiplied by: one over the weight, and the clip. None is 1.

        A norm that is infinite would make nothing of every gradient, so it is guarded like a proposal.
        """
        microbatches = self.experiment.run.microbatches
        factor: Value | None = None
        if not self.unit_weight:
            weight = b.input(SLOT + self._slot("weight", "", SCALAR_F32), SCALAR_F32)
            outputs.append((RESULT + "weight", weight))
            factor = b.div(b.constant(1.0, SCALAR_F32), weight)
        elif microbatches > 1:
            factor = b.constant(1.0 / microbatches, SCALAR_F32)
        if self.update.clip is None or not raw:
            return factor
        squares = [b.sum(b.mul(g, g), range(g.rank)) for g in raw.values()]
        total = squares[0]
        for square in squares[1:]:
            total = b.add(total, square)
        norm = b.op("sqrt", total)
        if factor is not None:
            norm = b.mul(norm, factor)
        outputs.append((RESULT + "gradient-norm", norm))
        self._guard(b, GRADIENT_NORM, (norm,), finite)
        clip = self.update.clip
        bound = b.constant(float(clip), SCALAR_F32) if not isinstance(clip, Value) else self._host(b, clip)
        ratio = b.div(bound, b.add(norm, b.constant(CLIP_EPSILON, SCALAR_F32)))
        clipped = b.op("minimum", b.constant(1.0, SCALAR_F32), ratio)
        return clipped if factor is None else b.mul(factor, clipped)

    def _host(self, b: Builder, value: Value) -> Value:
        return b.input(FEED + self.experiment.schedule.feed_name(value), SCALAR_F32)

    def _propose(
        self,
        b: Builder,
        name: str,
        rule: LeafRule,
        g: Value,
        outputs: list[tuple[str, Value]],
        finite: list[Value],
    ) -> tuple[Value, Value, Value]:
        p = b.input(SLOT + name, self.experiment.parameters[name].type)
        inputs = {"p": p, "g": g}
        slots = {"p": name}
        for state, type, _ in rule.initial:
            slots[f"state:{state}"] = optimizer_slot(self.experiment, self.update, name, state)
            inputs[f"state:{state}"] = b.input(SLOT + slots[f"state:{state}"], type)
        new = dict(zip([n for n, _ in rule.graph.outputs], b.copy(rule.graph, inputs), strict=True))
        outputs += [(SLOT + slots[key], value) for key, value in new.items()]
        self._guard(b, name, tuple(new.values()), finite)
        return p, g, new["p"]

    def _guard(self, b: Builder, name: str, proposals: Sequence[Value], finite: list[Value]) -> None:
        """One flag for a leaf: whether all that is proposed for it is finite, found in one pass over it."""
        self.leaves.append(name)
        found: dict[tuple[int, ...], Value] = {}
        for value in proposals:
            if value.type.is_float:
                flags = b.op("is-finite", b.cast(value, "f32"))
                before = found.get(value.shape)
                found[value.shape] = flags if before is None else b.op("and", before, flags)
        whole = b.constant(True, TensorType("bool", ()))
        for flags in found.values():
            flag = b.op("all", flags, axes=tuple(range(flags.rank))) if flags.rank else flags
            whole = b.op("and", whole, flag)
        finite.append(whole)

    def _averaged(self, b: Builder, average: Average, parameter: str, new: Value) -> Value:
        """The average after `new` was committed; where the two are equal it stays what it is."""
        rate = average.rate
        factor = b.constant(rate, SCALAR_F32) if isinstance(rate, float) else self._host(b, rate)
        old = b.cast(b.input(SLOT + average.slot(parameter), new.type), "f32")
        way = b.sub(b.cast(new, "f32"), old)
        return b.cast(b.add(old, b.mul(b.broadcast(factor, way.shape, ()), way)), new.dtype)

    def _diagnose(
        self,
        b: Builder,
        rule: DiagnosticRule,
        trios: Mapping[str, tuple[Value, Value, Value]],
        outputs: list[tuple[str, Value]],
    ) -> None:
        groups: dict[str, list[Value]] = {}
        for name, graph in rule.graphs.items():
            if name in trios:
                p, g, new = trios[name]
                groups.setdefault(rule.groups[name], []).append(b.copy(graph, {"p": p, "g": g, "new": new})[0])
        for group, values in groups.items():
            folded = b.op("concat", *[b.reshape(v, (1,)) for v in values], axis=0) if len(values) > 1 else None
            value = values[0] if folded is None else _fold_stacked(b, folded, rule.reduce, len(values), mean=True)
            outputs.append((RESULT + f"diagnostic:{rule.name}:{group}", value))
            self.diagnostics.append((rule.name, group))


def _forward(graph: Graph, k: int = 1, lanes: Sequence[str] = ()) -> Graph:
    """A traced graph ready to be differentiated; for k > 1 microbatches every output leads with an axis of k.

    lanes: inputs, beside those of the batch, that each microbatch has its own of.
    """
    own = [n for n in graph.input_names if n.startswith(FEED + "batch.") or n == FEED + "stream"]
    return run_passes(graph, forward_passes(k, [*own, *lanes]))


def _named(b: Builder, graph: Graph, inputs: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """The outputs of `graph`, copied into `b`, by name; `inputs` replaces inputs of it."""
    return dict(zip([name for name, _ in graph.outputs], b.copy(graph, inputs), strict=True))


def _sum_of(b: Builder, value: Value) -> Value:
    return b.sum(value, range(value.rank))


def _adder(b: Builder, first: bool) -> Callable[[str, Value], Value]:
    def add(slot: str, value: Value) -> Value:
        return value if first else b.add(b.input(SLOT + slot, value.type), value)

    return add


def _fold_stacked(b: Builder, value: Value, reduce: str, k: int, mean: bool = False) -> Value:
    """Fold a leading axis of k; a mean is left as a sum unless `mean` says so."""
    if k == 1:
        return value
    if reduce == "last":
        return b.reshape(b.slice(value, 0, k - 1, k), value.shape[1:])
    op = {"mean": "sum", "sum": "sum", "max": "max", "min": "min"}[reduce]
    folded = b.op(op, value, axes=(0,))
    return b.scale(folded, 1.0 / k) if mean and reduce == "mean" else folded


def _scaled(b: Builder, g: Value, factor: Value | None) -> Value:
    return g if factor is None else b.mul(g, b.broadcast(factor, g.shape, ()))


# Evaluations and generators.


def _evaluation(
    experiment: Experiment, name: str, objective: Objective, slots: dict[str, Slot]
) -> Iterator[Phase]:
    def lanes(b: Builder, graph: Graph) -> dict[str, Value]:
        return initial_lanes(b, experiment, graph)

    yield from generator_phases(experiment, name, objective.generators, 1, lanes, slots)
    b = Builder()
    emitted = read_generated(b, objective.generators, 1)
    found = _named(b, _forward(objective.graph), lanes(b, objective.graph) | emitted)
    outputs = [(RESULT + n, v) for n, v in found.items() if not n.startswith("state:")]
    yield _finish(name, b, outputs)


def _generators(experiment: Experiment, slots: dict[str, Slot]) -> list[Phase]:
    phases = []
    for generator in experiment.generators.values():
        has_trips = generator.trip is not None
        for slot, type in generator.carries:
            if has_trips:
                slots[slot] = Slot(slot, type, "carry", initialised=False)
        b = Builder()
        outputs: list[tuple[str, Value]] = []
        lanes = initial_lanes(b, experiment, generator.start)
        for (slot, _), value in zip(generator.carries, b.copy(_forward(generator.start), lanes), strict=True):
            outputs.append((SLOT + slot if has_trips else RESULT + slot, value))
        phases.append(_finish(f"generate.{generator.name}.start", b, outputs))
        if generator.trip is None:
            continue
        b = Builder()
        values = b.copy(_forward(generator.trip), initial_lanes(b, experiment, generator.trip))
        outputs = [(SLOT + slot, v) for (slot, _), v in zip(generator.carries, values, strict=False)]
        emitted = values[len(generator.carries) :]
        outputs += [(RESULT + f"emit:{i}", v) for i, v in enumerate(emitted)]
        phases.append(_finish(f"generate.{generator.name}.trip", b, outputs))
    return phases
