"""Storage and effects: `param`, `state`, `measure`, `set-state`, and how several effects of one name fold together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sexpgpu.diagnostics import Label
from sexpgpu.ir.graph import Graph, Origin, Value, reachable
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.arithmetic import broadcast_to
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.parts import due_every, name_of, options, test
from sexpgpu.lang.patterns import type_value
from sexpgpu.lang.replay import Change, Way
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.trace import SCALAR_F32, SCALAR_F64, Ambient, Initialised, Measured, StateSet, Trace
from sexpgpu.lang.values import Builtin, Function, HostScalar, Weighted, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form, List, Symbol

REDUCERS = ("mean", "sum", "max", "min", "last")


# Storage.


def _initial_graph(el: Elaborator, path: str, type: TensorType, form: Form, scope: Scope) -> Graph:
    """The graph (output `value`) that makes the first contents of a parameter or state."""
    span = form.span
    outer, trace = el.trace, Trace(el.world, Ambient(), f"initialise {path}")
    trace.draws = (path,)
    trace.effects_refused = trace.params_refused = "an initialiser"
    el.trace = trace
    try:
        init = el.eval(form, scope)
        value = el.apply(init, [type], {}, span) if isinstance(init, Function | Builtin) else init
        if not isinstance(value, Value | int | float | tuple | HostScalar):
            el.fail("E-PARAM-002", f"the initialiser of `{path}` is {kind_of(value)}", span,
                    help="a number, or a function of a type such as (normal 0.02), lecun or zeros")  # fmt: skip
        if isinstance(value, HostScalar):
            el.fail("E-PARAM-002", f"the initialiser of `{path}` depends on `step`, but it runs before the first", span)
        tensor = el.tensor(value, type.dtype)
        if tensor.dtype != type.dtype or (tensor.rank and tensor.shape != type.shape):
            el.fail("E-PARAM-002", f"the initialiser of `{path}` gives {tensor.type}, not {type}", span)
        return trace.builder.graph("initial", [("value", broadcast_to(el, tensor, type.shape))])
    finally:
        el.trace = outer


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _storage(el: Elaborator, form: List, scope: Scope, word: str) -> Value:
    allowed = ("lane",) if word == "state" else ()
    plain, keyed = options(el, form.items[1:], allowed, word)
    if len(plain) != 3:
        el.fail("E-FORM-001", f"this form is ({word} NAME TYPE INIT)", form.span)
    trace = el.require_trace()
    if trace.params_refused:
        el.fail("E-PARAM-001", f"`{word}` stands in {trace.params_refused}, which owns no storage", form.span)
    name = name_of(el, plain[0], f"the first part of `{word}`")
    el.path_name(plain[0], scope)
    type = type_value(el, el.eval(plain[1], scope))
    lane = "lane" in keyed and test(el, keyed["lane"], scope, "state :lane")
    asked = _Asked(word, name, type, lane, plain[2], scope, form.span)
    refusal = asked.refusal(el, trace, trace.path(name))
    if refusal is not None:
        message, label, help = refusal
        el.fail("E-PARAM-001", message, form.span, labels=[label], help=help)
    return asked.contents(el, trace, trace.scope, trace.ambient.weights)


@dataclass(slots=True, eq=False, repr=False)
class _Asked:
    """What a `param` or `state` form asks for: contents of a type, and what makes the first ones."""

    word: str
    name: str
    type: TensorType
    lane: bool
    initial: Form
    scope: Scope
    span: Span

    def tables(self, el: Elaborator) -> tuple[dict[str, Initialised], dict[str, Initialised]]:
        """Those of its own kind, and of the other."""
        world = el.world
        return (world.parameters, world.states) if self.word == "param" else (world.states, world.parameters)

    def refusal(self, el: Elaborator, trace: Trace, path: str) -> tuple[str, Label, str] | None:
        """Why it cannot have this path: a message, what stands in the way, and help."""
        mine, other = self.tables(el)
        if path in other:
            return f"`{path}` is a parameter and a state", Label(other[path].span, "here the other"), ""
        if self.word == "param" and path in trace.created:
            return (
                f"the parameter `{path}` is made twice in one model call",
                Label(trace.created[path], "made here first"),
                "give each call its own `:name`, or bind the value once and use it twice",
            )
        found = mine.get(path)
        if found is None:
            outer = [p for p in _prefixes(path) if p in mine or p in other]
            inner = [p for p in (*mine, *other) if p.startswith(path + ".")] if path in el.world.roots else []
            for clash in (*outer, *inner):
                there = (mine.get(clash) or other[clash]).span
                return (
                    f"`{min(path, clash)}` has contents of its own, and is the root of `{max(path, clash)}`",
                    Label(there, f"`{clash}` is made here"),
                    "give one of the two another name or `:name`",
                )
        elif found.type != self.type:
            label = Label(found.span, f"{found.type} here")
            return f"`{path}` is {self.type} here and {found.type} elsewhere", label, ""
        elif found.lane != self.lane:
            return (
                f"the state `{path}` has `:lane true` in one place and not in another",
                Label(found.span, "the other"),
                "",
            )
        return None

    def contents(self, el: Elaborator, trace: Trace, scope: tuple[str, ...], weights: str | None) -> Value:
        """The contents of this name in `scope`, or of its average `weights`; made if they are not there yet."""
        mine, _ = self.tables(el)
        path, start, place = ".".join((*scope, self.name)), len(trace.builder.log), el.place(self.span)
        trace.created[path] = place
        is_new = path not in mine
        if is_new:
            with el.set_apart():
                graph = _initial_graph(el, path, self.type, self.initial, self.scope)
            mine[path] = Initialised(path, self.type, graph, place, self.lane)
            el.world.roots.update(_prefixes(path))
        average = None if weights is None or self.word != "param" else el.world.averages.get(weights)
        with trace.made_at(self.span):
            slot = average.slot(path) if average is not None and average.covers(path) else path
            value = trace.slot(slot, self.type)
        stored = _Stored(self, scope, tuple(el.stack), weights, is_new, value, trace.builder.origin)
        trace.builder.instead(start, stored)
        return value


@dataclass(slots=True, eq=False, repr=False)
class _Stored:
    """Storage in a log: what was asked for, where, under which forms and average, and whether it was new."""

    asked: _Asked
    scope: tuple[str, ...]
    stack: tuple[Span, ...]
    weights: str | None
    is_new: bool
    value: Value
    origin: Origin
    needs: tuple[Value, ...] = ()

    def possible(self, el: Elaborator, way: Way) -> bool:
        """Whether nothing stands in the way of it, and its first contents have been seen to be good."""
        trace, path = el.require_trace(), ".".join((*way.scope(self.scope), self.asked.name))
        known = path in self.asked.tables(el)[0]
        return (known or self.is_new) and self.asked.refusal(el, trace, path) is None

    def again(self, el: Elaborator, way: Way, change: Change) -> Value:
        """The contents at the path there."""
        stack = el.stack
        el.stack = [*stack, *way.frames(self.stack)]
        try:
            return self.asked.contents(el, el.require_trace(), way.scope(self.scope), self.weights)
        finally:
            el.stack = stack


def _param(el: Elaborator, form: List, scope: Scope) -> Value:
    return _storage(el, form, scope, "param")


def _state(el: Elaborator, form: List, scope: Scope) -> Value:
    return _storage(el, form, scope, "state")


# Effects.


def _effect_trace(el: Elaborator, form: List, word: str) -> Trace:
    trace = el.require_trace()
    if trace.effects_refused:
        el.fail("E-STATE-001", f"`{word}` stands inside {trace.effects_refused}, where there are no effects", form.span)
    return trace


def _reducer(el: Elaborator, keyed: dict[str, Form], type: TensorType) -> str:
    if "reduce" not in keyed:
        if not type.is_float:
            el.fail("E-STATE-001", f"{type} has no mean: say `:reduce last`, sum, max or min")
        return "mean"
    form = keyed["reduce"]
    if not isinstance(form, Symbol) or form.name not in REDUCERS:
        el.fail("E-FORM-003", f"`:reduce` is one of {' '.join(REDUCERS)}", form.span)
    return form.name


def host_function(el: Elaborator, function: Any, span: Span) -> Graph:
    """A function of one number as a graph of f64 scalars: input `x`, output `y`."""
    outer, trace = el.trace, Trace(el.world, Ambient(), "after")
    trace.effects_refused = trace.params_refused = "a function of a folded value"
    trace.builder = el.schedule.builder
    el.trace = trace
    try:
        x = HostScalar(el.schedule.builder.input("x", SCALAR_F64))
        y = el.apply(function, [x], {}, span)
        if isinstance(y, HostScalar) and any(
            n.op == "input" and n.outputs[0] is not x.value for n in reachable((y.value,))
        ):
            el.fail("E-TYPE-006", "`:after` is a function of the folded value alone, not of `step`", span)
        if not isinstance(y, HostScalar):
            el.fail("E-TYPE-006", f"`:after` gives {kind_of(y)}, not a number of its argument", span)
        return el.schedule.builder.graph("after", [("y", y.value)], [x.value])
    finally:
        el.trace = outer


def _measure(el: Elaborator, form: List, scope: Scope) -> None:
    plain, keyed = options(el, form.items[1:], ("reduce", "weight", "every", "after"), "measure")
    if len(plain) != 2:
        el.fail("E-FORM-001", "this form is (measure NAME V)", form.span)
    trace = _effect_trace(el, form, "measure")
    name = name_of(el, plain[0], "the first part of `measure`")
    el.path_name(plain[0], scope)
    path = "/".join(filter(None, (".".join(trace.scope), name)))
    value = el.eval(plain[1], scope)
    weight: Value | None = value.weight if isinstance(value, Weighted) else None
    tensor = el.tensor(value.value if isinstance(value, Weighted) else value)
    if tensor.rank > 1:
        el.fail("E-TYPE-006", f"`measure` takes a scalar or a small vector, not {tensor.type}", plain[1].span)
    b = trace.builder
    if tensor.dtype != "f32":
        tensor = b.cast(tensor, "f32")
    if "weight" in keyed:
        given = el.tensor(el.eval(keyed["weight"], scope))
        if given.shape != ():
            el.fail("E-TYPE-006", f"`:weight` is a scalar, not {given.type}", keyed["weight"].span)
        weight = b.cast(given, "f32")
    reduce = _reducer(el, keyed, tensor.type)
    every = due_every(el, keyed["every"], scope) if "every" in keyed else 1
    after = host_function(el, el.eval(keyed["after"], scope), form.span) if "after" in keyed else None
    record_measure(el, trace, Measured(path, tensor, weight, reduce, every, after, el.place(form.span)), form.span)


def record_measure(el: Elaborator, trace: Trace, made: Measured, span: Span) -> None:
    """Add a measure to a trace, folded with one of its path that is there."""
    before = trace.measures.get(made.path)
    if before is not None:
        if (before.reduce, before.every, before.value.type) != (made.reduce, made.every, made.value.type):
            el.fail("E-STATE-001", f"the measure `{made.path}` is made twice, differently", span,
                    labels=[Label(before.span, "the other")])  # fmt: skip
        value, weight = _together(trace, before, made.value, made.weight)
        made = replace(made, value=value, weight=weight)
    trace.measures[made.path] = made


def _together(trace: Trace, before: Measured, value: Value, weight: Value | None) -> tuple[Value, Value | None]:
    """Two measures of one path in one call, folded."""
    b = trace.builder
    match before.reduce:
        case "sum":
            return b.add(before.value, value), weight
        case "max":
            return b.op("maximum", before.value, value), weight
        case "min":
            return b.op("minimum", before.value, value), weight
        case "last":
            return value, weight
    one = b.constant(1.0, SCALAR_F32)
    w1, w2 = before.weight or one, weight or one
    total = b.add(w1, w2)

    def spread(w: Value) -> Value:
        return b.broadcast(w, value.shape, ()) if value.rank else w

    folded = b.add(b.mul(before.value, spread(w1)), b.mul(value, spread(w2)))
    positive = b.op("maximum", total, b.constant(1e-30, SCALAR_F32))
    return b.div(folded, spread(positive)), total


def _set_state(el: Elaborator, form: List, scope: Scope) -> None:
    plain, keyed = options(el, form.items[1:], ("reduce", "using"), "set-state")
    if len(plain) != 2:
        el.fail("E-FORM-001", "this form is (set-state STATE V)", form.span)
    trace = _effect_trace(el, form, "set-state")
    target = el.eval(plain[0], scope)
    name = trace.slot_name(target) if isinstance(target, Value) else None
    if name is None or name not in el.world.states:
        el.fail("E-STATE-001", f"`set-state` sets what `state` gave, not {kind_of(target)}", plain[0].span)
    state = el.world.states[name]
    tensor = el.tensor(el.eval(plain[1], scope), state.type.dtype)
    if tensor.type != state.type:
        el.fail("E-STATE-001", f"the state `{name}` is {state.type}, but is set to {tensor.type}", plain[1].span,
                labels=[Label(state.span, f"{state.type} here")])  # fmt: skip
    if state.lane:
        for key in keyed:
            el.fail("E-STATE-001", f"`:{key}` has no meaning for the lane `{name}`, which is never folded",
                    keyed[key].span, help="what `state` gave is the old value of this microbatch")  # fmt: skip
        made = StateSet(name, tensor, "last", None, el.place(form.span))
    else:
        reduce = _reducer(el, keyed, state.type)
        using = _using_graph(el, state.type, el.eval(keyed["using"], scope), form.span) if "using" in keyed else None
        made = StateSet(name, tensor, reduce, using, el.place(form.span))
    record_state(el, trace, made, form.span)


def record_state(el: Elaborator, trace: Trace, made: StateSet, span: Span) -> None:
    """Add what a state is set to, folded with what it is set to already."""
    name, before = made.name, trace.state_sets.get(made.name)
    if before is not None:
        if el.world.states[name].lane:
            el.fail("E-STATE-001", f"the lane `{name}` is set twice in one call", span,
                    labels=[Label(before.span, "set here first")])  # fmt: skip
        if before.reduce != made.reduce or (before.using is None) != (made.using is None):
            how, here = (
                f"`:reduce {s.reduce}`{' and `:using`' if s.using is not None else ''}" for s in (before, made)
            )
            el.fail("E-STATE-001", f"the state `{name}` is set twice, in two ways", span,
                    labels=[Label(before.span, f"by {how} here"), Label(span, f"and by {here} here")],
                    help="values of one state fold in one way: give both the same keywords, or make two states",
                    )  # fmt: skip
        b, value, count = trace.builder, made.value, before.count + made.count
        if made.reduce == "mean":
            parts = [b.scale(s.value, s.count) if s.count > 1 else s.value for s in (before, made)]
            value = b.scale(b.add(*parts), 1.0 / count)
        elif made.reduce != "last":
            op = {"sum": "add", "max": "maximum", "min": "minimum"}[made.reduce]
            value = b.op(op, before.value, value)
        made = replace(made, value=value, count=count)
    trace.state_sets[name] = made


def _using_graph(el: Elaborator, type: TensorType, function: Any, span: Span) -> Graph:
    """`(fn (old seen) …)` as a graph: inputs `old` and `seen`, output `new`."""
    outer, trace = el.trace, Trace(el.world, Ambient(), "using")
    trace.effects_refused = trace.params_refused = "the rule of a state"
    el.trace = trace
    try:
        old, seen = trace.builder.input("old", type), trace.builder.input("seen", type)
        new = el.tensor(el.apply(function, [old, seen], {}, span), type.dtype)
        if new.type != type:
            el.fail("E-STATE-001", f"`:using` gives {new.type}, but the state is {type}", span)
        return trace.builder.graph("using", [("new", new)])
    finally:
        el.trace = outer


STORAGE: Mapping[str, Any] = {"param": _param, "state": _state, "measure": _measure, "set-state": _set_state}
