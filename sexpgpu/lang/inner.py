"""A generator that a metric calls, as a loss or in an evaluation: it runs before the metric's graph, which reads what
came out as constants.

The arguments are computed by the metric; the slice of its graph that feeds them runs in the earlier phase too, with the
same keys and hence the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.averages import weights_name
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.experiment import InnerGenerator
from sexpgpu.lang.leaves import leaves_of, rebuilt
from sexpgpu.lang.parts import pairs
from sexpgpu.lang.patterns import bind_pattern, parse_parameters, pattern_names
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.special import advance, loop_value
from sexpgpu.lang.toplevel import Declared, Module
from sexpgpu.lang.trace import TRIP, Ambient, Trace
from sexpgpu.lang.values import Parameter
from sexpgpu.source import Span
from sexpgpu.syntax import List, Vector


def call_generator(
    el: Elaborator, module: Module, declared: Declared, positional: tuple[Any, ...], keywords: dict[str, Any],
    span: Span, bound: str | None,
) -> Any:  # fmt: skip
    """The value of a generator in the metric that is being recorded. Raises DiagnosticError."""
    outer = el.require_trace()
    if outer.effects_refused or not outer.calls_generators:
        place = outer.effects_refused or "`recompute`"
        el.fail("E-CALL-001", f"the generator `{declared.name}` is called in {place}; only a loss or a metric of an "
                "evaluation may call one", span, help="call it outside, and use its value here")  # fmt: skip
    return _Call(el, module, declared, outer, span, bound).value(positional, keywords)


def generator_parameters(el: Elaborator, declared: Declared) -> tuple[Parameter, ...]:
    """The parameters of a generator. Raises E-FORM-001 where its form is malformed."""
    head = declared.plain[0] if len(declared.plain) > 1 else None
    if not isinstance(head, List):
        el.fail("E-FORM-001", "this form is (defgenerator NAME (ARGS, :key DEFAULT) … BODY)", declared.span)
    for item in declared.plain[1:-1]:
        if isinstance(item, Vector):
            el.fail("E-FORM-001", "this list stands after no keyword", item.span,
                    help="it is `:trips [t n]`, or `:carry [x X0 …]`")  # fmt: skip
    return parse_parameters(el, head.items)


class _Call:
    def __init__(
        self, el: Elaborator, module: Module, declared: Declared, outer: Trace, span: Span, bound: str | None
    ) -> None:
        self.el = el
        self.declared = declared
        self.outer = outer
        self.span = span
        self.scope = module.scopes[id(declared.span.source)]
        self.name = f"{declared.name}.{len(outer.generators)}"
        self.label = f"{declared.name}={bound}" if bound else declared.name
        form = declared.keyed.get("weights")
        weights = outer.ambient.weights if form is None else weights_name(el, el.eval(form, self.scope), form)
        self.ambient = Ambient(training=False, weights=weights)

    def slot(self, what: str, index: int) -> str:
        return f"generate.{self.outer.name}.{self.name}/{what}.{index}"

    def value(self, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        el, declared = self.el, self.declared
        parameters = generator_parameters(el, declared)
        given: list[Value] = []

        def bind(trace: Trace) -> Scope:
            counter = count()

            def stand_in(value: Any) -> Any:
                if isinstance(value, tuple):
                    return tuple(map(stand_in, value))
                if not isinstance(value, Value):
                    return value
                index = next(counter)
                if index == len(given):
                    given.append(value)
                return trace.slot(self.slot("argument", index), value.type)

            own = [stand_in(v) for v in positional], {k: stand_in(v) for k, v in keywords.items()}
            return el.bind(declared.name, parameters, *own, self.scope, self.span, declared.span)

        before = el.trace
        try:
            start = self._trace("start", (self.label, "start"))
            local = bind(start)
            keyed, body = declared.keyed, declared.plain[1:]
            named: dict[str, Any] = {}
            num_trips = 0
            if "trips" in keyed:
                trips = pairs(el, keyed["trips"], "`:trips`")
                if len(trips) != 1:
                    el.fail("E-FORM-001", "`:trips` is one counter: [t n]", keyed["trips"].span)
                num_trips = el.size(el.eval(trips[0][1], local), trips[0][1].span)
                for pattern, form in pairs(el, keyed["carry"], "`:carry`") if "carry" in keyed else []:
                    holder = Scope()
                    bind_pattern(el, pattern, el.eval(form, Scope(local, dict(named))), holder)
                    named.update(holder.names)
            else:
                named["value"] = el.eval_body(body, local)
            leaves = {n: leaves_of(el, v) for n, v in named.items()}
            flat = [v for values in leaves.values() for v in values]
            carries = tuple((self.slot("carry", i), v.type) for i, v in enumerate(flat))
            start_graph = start.builder.graph(
                start.name, [(slot, v) for (slot, _), v in zip(carries, flat, strict=True)]
            )
            trip_graph: Graph | None = None
            emits: tuple[tuple[str, TensorType], ...] = ()
            axis = 0
            if "trips" in keyed:
                trip = self._trace("trip", (self.label,))
                trip.trip = trip.feed("trip", TRIP)
                inner = bind(trip)
                restored = iter([trip.slot(slot, type) for slot, type in carries])
                names = {n: rebuilt(v, restored) for n, v in named.items()}
                names.update({n: trip.trip for n in pattern_names(trips[0][0])})
                result = el.eval_body(body, Scope(inner, names))
                el.stack.append(body[-1].span)
                after, emitted = advance(el, result, {n: names[n] for n in named}, body[-1].span)
                carried = [leaf for n, v in after.items() for leaf in leaves_of(el, v, leaves[n])]
                if [v.type for v in carried] != [v.type for v in flat]:
                    el.fail("E-TYPE-003", f"the carries of `{declared.name}` change their types from trip to trip",
                            help="a carry keeps its shape and dtype")  # fmt: skip
                el.stack.pop()
                shown = [leaf for e in emitted for leaf in leaves_of(el, e)]
                emits = tuple((self.slot("emit", i), v.type) for i, v in enumerate(shown))
                outputs = [(slot, v) for (slot, _), v in zip((*carries, *emits), (*carried, *shown), strict=True)]
                trip_graph = trip.builder.graph(trip.name, outputs)
                axis = el.integer(el.eval(keyed["axis"], local)) if "axis" in keyed else 0
        finally:
            el.trace = before
        arguments = [(self.slot("argument", i), v) for i, v in enumerate(given)]
        graph = self.outer.builder.graph(f"{self.name}.arguments", arguments)
        self.outer.generators.append(
            InnerGenerator(
                self.name, graph, start_graph, trip_graph, num_trips,
                tuple((slot, v.type) for slot, v in arguments), carries, emits,
            )
        )  # fmt: skip
        return self._result(named, carries, emits, num_trips, axis)

    def _trace(self, part: str, draws: tuple[str, ...]) -> Trace:
        trace = Trace(self.el.world, self.ambient, f"{self.outer.name}.{self.name}.{part}")
        trace.scope, trace.draws = self.outer.scope, (*self.outer.draws, *draws)
        trace.effects_refused = "a generator"
        self.el.trace = trace
        return trace

    def _result(
        self,
        named: Mapping[str, Any],
        carries: tuple[tuple[str, TensorType], ...],
        emits: tuple[tuple[str, TensorType], ...],
        num_trips: int,
        axis: int,
    ) -> Any:
        b = self.outer.builder
        read: Callable[[str, TensorType], Value] = self.outer.slot
        leaves: Iterator[Value] = iter([read(slot, type) for slot, type in carries])
        values = [rebuilt(v, leaves) for v in named.values()]
        stacked = []
        for slot, type in emits:
            whole = read(slot, type.with_shape((num_trips, *type.shape)))
            place = self.el.axis(axis, whole.rank)
            perm = [*range(1, whole.rank)]
            perm.insert(place, 0)
            stacked.append(b.transpose(whole, perm))
        return loop_value(values, stacked)
