"""`(recompute BODY)`: a value whose way is computed again by the backward pass instead of being kept.

The body is traced once, as a graph of its own that captures the tensors around it. Parameters, draws, measures and
states in it are those of the code around it; what is measured or set leaves the body as further outputs, computed by
the forward pass alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sexpgpu.ir.graph import Origin, Value
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.storage import record_measure, record_state
from sexpgpu.lang.trace import BodyTrace
from sexpgpu.lang.values import Function, Next, Proposal, Weighted, kind_of
from sexpgpu.syntax import List


def _recompute(el: Elaborator, form: List, scope: Scope) -> Any:
    if len(form.items) < 2:
        el.fail("E-FORM-001", "this form is (recompute BODY)", form.span)
    outer = el.require_trace()
    around = outer.builder.origin
    here = Origin(form.span, "called from" if around.span else "", around if around.span else None)
    body = BodyTrace(outer, outer.effects_refused)
    body.builder.origin = here
    el.trace = body
    try:
        result = el.eval_body(form.items[1:], Scope(scope))
        _no_functions(el, result, form)
    finally:
        el.trace = outer
    leaving: dict[Value, int] = {}

    def collect(value: Value) -> Value:
        if body.owns(value):
            leaving.setdefault(value, len(leaving))
        return value

    measures, states = list(body.measures.values()), list(body.state_sets.values())
    _mapped(result, collect)
    for measure in measures:
        _mapped((measure.value, measure.weight), collect)
    for state in states:
        collect(state.value)
    if not leaving:
        return result
    outputs = [(f"y{i}", value) for value, i in leaving.items()]
    graph = body.builder.graph("recompute", outputs, list(body.captured.values()))
    with outer.builder.at(here):
        node = outer.builder.node("recompute", list(body.captured), {"again": False}, (graph,))

    def outside(value: Value) -> Value:
        return node.outputs[leaving[value]] if value in leaving else value

    for measure in measures:
        moved = replace(measure, value=outside(measure.value), weight=_mapped(measure.weight, outside))
        record_measure(el, outer, moved, form.span)
    for state in states:
        record_state(el, outer, replace(state, value=outside(state.value)), form.span)
    return _mapped(result, outside)


def _no_functions(el: Elaborator, value: Any, form: List) -> None:
    """A function would take tensors of the body with it, unseen."""
    match value:
        case Function():
            el.fail("E-TYPE-006", f"`recompute` gives {kind_of(value)}", form.items[-1].span,
                    help="its value is a tensor, or a vector of tensors and numbers")  # fmt: skip
        case tuple():
            for part in value:
                _no_functions(el, part, form)


def _mapped(value: Any, change: Callable[[Value], Value]) -> Any:
    """A value of the language with every tensor in it changed."""
    match value:
        case Value():
            return change(value)
        case tuple():
            return tuple([_mapped(part, change) for part in value])
        case Weighted():
            return Weighted(_mapped(value.value, change), _mapped(value.weight, change))
        case Next():
            carries = {name: _mapped(part, change) for name, part in value.carries.items()}
            return Next(carries, _mapped(value.emitted, change), value.span)
        case Proposal():
            return Proposal({name: _mapped(part, change) for name, part in value.values.items()})
    return value


RECOMPUTE: Mapping[str, Any] = {"recompute": _recompute}
"""Special forms by name."""
