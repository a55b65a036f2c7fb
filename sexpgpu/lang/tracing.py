"""Elaborating what a run needs: objectives, optimizer rules, diagnostics, generators, each under a trace of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sexpgpu.diagnostics import Label, nearest
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.program import SLOT
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.experiment import GeneratorGraphs, LeafRule, MeasureInfo, Objective, StateRule
from sexpgpu.lang.leaves import leaves_of, rebuilt, types_of
from sexpgpu.lang.parts import pairs
from sexpgpu.lang.patterns import bind_pattern, match_type, pattern_names
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.special import advance
from sexpgpu.lang.trace import SCALAR_F32, TRIP, Ambient, Trace
from sexpgpu.lang.values import Function, Next, OptimizerRule, Parameter, Proposal, Weighted, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form

SERIES_OF_A_RUN = ("loss", "gradient-norm")
"""Series that training writes beside the measures; an evaluation writes one called like its metric."""

Fields = Mapping[str, tuple[str, tuple[int, ...]]]


def trace_objective(
    el: Elaborator, metric: Function, fields: Fields, loader: str | None, *, training: bool, name: str, span: Span,
    weights: str | None = None,
) -> Objective:  # fmt: skip
    """The metric over one batch of the loader. weights: the average that stands for the parameters.

    Raises DiagnosticError.
    """
    trace = Trace(el.world, Ambient(training=training, weights=weights), name)
    trace.draws = (metric.name,)
    trace.calls_generators = True
    el.trace = trace
    el.stack = []
    try:
        local = Scope(metric.scope)
        used: list[str] = []
        for parameter in metric.parameters:
            value = _field(el, trace, parameter, fields, loader, span)
            used.append(parameter.name)
            if parameter.type is not None:
                label = Label(parameter.span, "declared here") if parameter.span else None
                match_type(el, parameter.name, parameter.type, value, local, parameter.span or span, label)
            local.names[parameter.name] = value
        result = el.eval_body(metric.body, local)
        el.stack = [metric.body[-1].span]
        b = trace.builder
        value, weight = (result.value, result.weight) if isinstance(result, Weighted) else (result, None)
        tensor = el.tensor(value)
        if tensor.shape != () or not tensor.type.is_float:
            el.fail("E-TYPE-006", f"the metric `{metric.name}` gives {tensor.type}, not a scalar",
                    help="(mean …) or (sum …) makes a scalar")  # fmt: skip
        outputs = [("value", b.cast(tensor, "f32")), ("weight", weight or b.constant(1.0, SCALAR_F32))]
        measures = []
        for m in trace.measures.values():
            if m.path in (*SERIES_OF_A_RUN, metric.name):
                el.fail("E-NAME-002", f"`{m.path}` is the name of a series that the run itself writes", m.span,
                        help="give the measure another name")  # fmt: skip
            outputs.append((f"measure:{m.path}", m.value))
            if m.weight is not None:
                outputs.append((f"measure-weight:{m.path}", m.weight))
            measures.append(MeasureInfo(m.path, m.reduce, m.every, m.weight is not None, m.after))
        states = []
        for s in trace.state_sets.values():
            outputs.append((f"state:{s.name}", s.value))
            states.append(StateRule(s.name, s.reduce, s.using))
        return Objective(metric.name, b.graph(name, outputs), tuple(measures), tuple(states), tuple(used),
                         tuple(trace.generators))  # fmt: skip
    finally:
        el.trace = None


def _field(el: Elaborator, trace: Trace, parameter: Parameter, fields: Fields, loader: str | None, span: Span) -> Value:
    if parameter.name not in fields:
        if loader is None:
            el.fail("E-DATA-005", f"the field `{parameter.name}` needs a loader, but none is given", span,
                    help=":loader NAME")  # fmt: skip
        near = nearest(parameter.name, fields)
        el.fail("E-DATA-005", f"the loader `{loader}` has no field `{parameter.name}`", parameter.span or span,
                help=f"`{near}` is a near name" if near else f"its fields: {', '.join(fields)}")  # fmt: skip
    dtype, shape = fields[parameter.name]
    with trace.made_at(parameter.span):
        return trace.feed(f"batch.{parameter.name}", TensorType(dtype, shape))


class RuleTracer:
    """Traces optimizer rules, once for each (rule, type of leaf)."""

    def __init__(self, el: Elaborator) -> None:
        self._el = el
        self._known: dict[tuple[Any, ...], LeafRule] = {}

    def trace(self, rule: OptimizerRule, type: TensorType) -> LeafRule:
        """The rule for a leaf of `type`. Raises DiagnosticError."""
        bound = tuple((k, repr(v)) for k, v in rule.bound.items())
        key = (id(rule.definition), bound, type)
        if key not in self._known:
            self._known[key] = self._trace(rule, type)
        return self._known[key]

    def _trace(self, rule: OptimizerRule, type: TensorType) -> LeafRule:
        el, definition = self._el, rule.definition
        name_p, name_g = (p.name for p in definition.parameters if not p.keyword)
        initial: list[tuple[str, TensorType, Graph]] = []
        el.stack = [rule.span]
        try:
            for state, form in definition.state:
                el.trace = trace = Trace(el.world, Ambient(), f"initialise {state}")
                trace.effects_refused = trace.params_refused = "an optimizer's state"
                local = Scope(definition.scope, {**rule.bound, name_p: trace.builder.input("p", type)})
                value = el.tensor(el.eval(form, local))
                initial.append((state, value.type, trace.builder.graph(state, [("value", value)])))
            el.trace = trace = Trace(el.world, Ambient(), definition.name)
            trace.effects_refused = trace.params_refused = "an optimizer"
            b = trace.builder
            names = {**rule.bound, name_p: b.input("p", type), name_g: b.input("g", type)}
            names.update({state: b.input(f"state:{state}", t) for state, t, _ in initial})
            proposal = el.eval_body(definition.body, Scope(definition.scope, names))
            last = definition.body[-1].span
            if not isinstance(proposal, Proposal):
                el.fail("E-FORM-001", f"the optimizer `{definition.name}` ends in {kind_of(proposal)}", last,
                        help="its body ends in (propose :p P :state S …)")  # fmt: skip
            known = {name_p: type, **{state: t for state, t, _ in initial}}
            outputs = []
            for name, value in proposal.values.items():
                if name not in known:
                    el.fail("E-FORM-003", f"`propose` names `:{name}`, which is no state of `{definition.name}`", last,
                            help=f"it proposes: {', '.join(f':{k}' for k in known)}")  # fmt: skip
                tensor = el.tensor(value, known[name].dtype)
                if tensor.type != known[name]:
                    el.fail(
                        "E-TYPE-002",
                        f"`{definition.name}` proposes {tensor.type} for `{name}`, which is {known[name]}",
                        last,
                    )
                outputs.append(("p" if name == name_p else f"state:{name}", tensor))
            if name_p not in proposal.values:
                el.fail("E-FORM-004", f"`propose` gives no `:{name_p}`, the new parameter", last)
            return LeafRule(definition.name, b.graph(definition.name, outputs), tuple(initial))
        finally:
            el.trace = None


def trace_diagnostic(el: Elaborator, function: Function, type: TensorType) -> Graph:
    """`(p g new) BODY` for a leaf of `type`: inputs `p`, `g`, `new`; output `value`."""
    el.trace = trace = Trace(el.world, Ambient(), function.name)
    trace.effects_refused = trace.params_refused = "a diagnostic"
    el.stack = []
    try:
        given = [trace.builder.input(name, type) for name in ("p", "g", "new")][: len(function.parameters)]
        result = el.apply(function, given, {}, function.span)
        el.stack = [function.body[-1].span]
        value = el.tensor(result)
        if value.shape != () or not value.type.is_float:
            el.fail("E-TYPE-006", f"the diagnostic `{function.name}` gives {value.type}, not a scalar",
                    help="(norm …), (mean …) or (sum …) makes a scalar")  # fmt: skip
        return trace.builder.graph(function.name, [("value", value)])
    finally:
        el.trace = None


def trace_generator(
    el: Elaborator, name: str, keys: dict[str, Any], scope: Scope, forms: Mapping[str, Form], body: Sequence[Form],
    span: Span, weights: str | None = None,
) -> GeneratorGraphs:  # fmt: skip
    """A generator for given keys. Raises DiagnosticError."""
    ambient = Ambient(training=False, weights=weights)
    local = Scope(scope, dict(keys))
    prompt = keys.get("prompt")
    known_prompt = prompt if isinstance(prompt, tuple) and all(isinstance(v, int) for v in prompt) else None
    el.stack = []
    try:
        start = Trace(el.world, ambient, f"{name}.start")
        start.draws = (name, "start")
        start.effects_refused = "a generator"
        el.trace = start
        if "trips" not in forms:
            if "carry" in forms:
                el.fail("E-FORM-004", "a generator with `:carry` needs `:trips`", span)
            result = el.eval_body(body, local)
            el.stack = [body[-1].span]
            values = leaves_of(el, result)
            outputs = [(f"carry:{i}", v) for i, v in enumerate(values)]
            graph = start.builder.graph(start.name, outputs)
            carries = tuple((f"generate.{name}/{i}", v.type) for i, v in enumerate(values))
            return GeneratorGraphs(name, graph, None, 0, carries, 0, 0, None, known_prompt)
        trips = pairs(el, forms["trips"], "`:trips`")
        if len(trips) != 1:
            el.fail("E-FORM-001", "`:trips` is one counter: [t n]", forms["trips"].span)
        ((counter, count_form),) = trips
        num_trips = el.size(el.eval(count_form, local), count_form.span)
        named: dict[str, Any] = {}
        for pattern, form in pairs(el, forms["carry"], "`:carry`") if "carry" in forms else []:
            inner = Scope(local, dict(named))
            holder = Scope()
            bind_pattern(el, pattern, el.eval(form, inner), holder)
            named.update(holder.names)
        leaves = {n: leaves_of(el, v) for n, v in named.items()}
        flat = [v for values in leaves.values() for v in values]
        start_graph = start.builder.graph(start.name, [(f"carry:{i}", v) for i, v in enumerate(flat)])
        trip = Trace(el.world, ambient, f"{name}.trip")
        trip.draws = (name,)
        trip.effects_refused = "a generator"
        trip.trip = trip.feed("trip", TRIP)
        el.trace = trip
        slots = tuple((f"generate.{name}/{i}", v.type) for i, v in enumerate(flat))
        restored = iter([trip.builder.input(SLOT + slot, type) for slot, type in slots])
        names = {n: rebuilt(v, restored) for n, v in named.items()}
        names.update({n: trip.trip for n in pattern_names(counter)})
        result = el.eval_body(body, Scope(local, names))
        carried = {n: names[n] for n in named}
        if not named and not isinstance(result, Next):
            el.fail("E-FORM-001", "the body of a generator with trips ends in (next :carry V … :emit V)", span)
        el.stack = [body[-1].span]
        after, emitted = advance(el, result, carried, body[-1].span)
        carried_on: list[Value] = []
        for n, values in after.items():
            new = leaves_of(el, values, leaves[n])
            if [v.type for v in new] != [v.type for v in leaves[n]]:
                el.fail("E-TYPE-003", f"the carry `{n}` begins as {types_of(leaves[n])} and becomes {types_of(new)}",
                        help="a carry keeps its shape and dtype from trip to trip")  # fmt: skip
            carried_on += new
        flat_emits = [leaf for e in emitted for leaf in leaves_of(el, e)]
        outputs = [(f"carry:{i}", v) for i, v in enumerate(carried_on)]
        outputs += [(f"emit:{i}", v) for i, v in enumerate(flat_emits)]
        trip_graph = trip.builder.graph(trip.name, outputs)
        axis = el.integer(el.eval(forms["axis"], local)) if "axis" in forms else 0
        return GeneratorGraphs(
            name, start_graph, trip_graph, num_trips, slots, len(flat_emits), axis, None, known_prompt
        )
    finally:
        el.trace = None
