"""Special forms: what binds, branches, loops, owns storage or has effects. A table of functions.

Each takes the elaborator, the whole form and the scope; parts are evaluated as the form's meaning says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from sexpgpu.diagnostics import Label, nearest
from sexpgpu.ir.graph import Graph, Value, reachable
from sexpgpu.ir.program import SLOT
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.arithmetic import arithmetic, broadcast_to, where
from sexpgpu.lang.averages import weights_name
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.patterns import bind_pattern, parse_parameters, pattern_names, type_value
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.trace import SCALAR_F32, SCALAR_F64, Ambient, Initialised, Measured, StateSet, Trace
from sexpgpu.lang.values import Builtin, Due, Function, HostScalar, Next, Proposal, Weighted, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form, Keyword, List, Symbol, Vector
from sexpgpu.transform.autodiff import differentiate

MAX_ROUNDS = 1_000_000
"""Rounds of a loop that is written out while a file is elaborated."""

MAX_BINDINGS = 1000
"""Names of one binding list; each is looked up through those after it."""

SHORT = 40
"""Characters of a form that a message repeats."""

REDUCERS = ("mean", "sum", "max", "min", "last")


# Reading the parts of a form.


def pairs(el: Elaborator, form: Form, what: str) -> list[tuple[Form, Form]]:
    """The pairs of a binding list `[pattern V …]`."""
    if not isinstance(form, Vector):
        el.fail("E-FORM-001", f"{what} stands in square brackets: [name V …]", form.span)
    if len(form.items) % 2:
        _odd(el, form, what)
    if len(form.items) > 2 * MAX_BINDINGS:
        el.fail("E-FORM-001", f"{what} binds {len(form.items) // 2:,} names; at most {MAX_BINDINGS:,} are", form.span)
    return [(form.items[i], form.items[i + 1]) for i in range(0, len(form.items), 2)]


def _odd(el: Elaborator, form: Vector, what: str) -> NoReturn:
    """Report a binding list of an odd number of parts, at the part that first falls out of step."""
    items = form.items
    for index, item in enumerate(items):
        is_pattern = isinstance(item, Symbol | Vector)
        begins_line = index > 0 and item.span.line > items[index - 1].span.line
        if index % 2 == 0 and not is_pattern:
            el.fail("E-FORM-001", f"{what} has a value without a name: `{_short(item)}`", item.span,
                    help="it is [name V name V …]")  # fmt: skip
        if index % 2 and is_pattern and begins_line:
            name = items[index - 1]
            el.fail("E-FORM-001", f"{what} needs a value for every name; `{_short(name)}` has none", name.span)
    el.fail("E-FORM-001", f"{what} needs a value for every name; `{_short(items[-1])}` has none", items[-1].span)


def _short(form: Form) -> str:
    """The text of a form, cut where it is long."""
    text = " ".join(form.span.text.split())
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def options(
    el: Elaborator, items: Sequence[Form], allowed: Sequence[str], what: str
) -> tuple[list[Form], dict[str, Form]]:
    """Plain parts and keyword parts of a form's items."""
    plain: list[Form] = []
    keyed: dict[str, Form] = {}
    index = 0
    while index < len(items):
        item = items[index]
        if not isinstance(item, Keyword):
            plain.append(item)
            index += 1
            continue
        if item.name in LATER_KEYWORDS and item.name not in allowed:
            el.fail("E-FORM-003", later(f"`:{item.name}`"), item.span)
        if item.name not in allowed:
            near = nearest(item.name, allowed)
            listed = ", ".join(f":{k}" for k in allowed) or "none"
            el.fail("E-FORM-003", f"`{what}` has no keyword `:{item.name}`", item.span,
                    help=f"`:{near}` is a near name" if near else f"its keywords: {listed}")  # fmt: skip
        if item.name in keyed:
            el.fail("E-FORM-003", f"`:{item.name}` is given twice", item.span)
        if index + 1 == len(items) or isinstance(items[index + 1], Keyword):
            el.fail("E-FORM-001", f"`:{item.name}` has no value after it", item.span)
        keyed[item.name] = items[index + 1]
        index += 2
    return plain, keyed


def name_of(el: Elaborator, form: Form, what: str) -> str:
    """A name written as a symbol."""
    if not isinstance(form, Symbol):
        el.fail("E-FORM-001", f"{what} is a name", form.span)
    return form.name


LATER_KEYWORDS = ("keep-best",)


def later(what: str) -> str:
    """The message for a part of the language that this version does not have."""
    return f"{what} belongs to a later version of the language"


def _need(el: Elaborator, form: List, low: int, high: int | None, shape: str) -> None:
    count = len(form.items) - 1
    if count < low or (high is not None and count > high):
        end = Span(form.span.source, form.span.end - 1, form.span.end)
        labels = [Label(end, "it ends here")] if end.line > form.span.line and not end.source.is_library else []
        el.fail("E-FORM-001", f"this form is {shape}", form.span, labels=labels)


# Binding and choice.


def _let(el: Elaborator, form: List, scope: Scope) -> Any:
    _need(el, form, 2, None, "(let [name V …] BODY)")
    local = Scope(scope)
    for pattern, value_form in pairs(el, form.items[1], "a binding list"):
        el.bound = pattern.name if isinstance(pattern, Symbol) else "-".join(pattern_names(pattern))
        value = el.eval(value_form, local)
        el.bound = None
        local = Scope(local)
        bind_pattern(el, pattern, value, local)
    return el.eval_body(form.items[2:], local)


def _fn(el: Elaborator, form: List, scope: Scope) -> Function:
    _need(el, form, 2, None, "(fn (x …) BODY)")
    if not isinstance(form.items[1], List):
        el.fail("E-FORM-001", "the parameters of `fn` stand in round brackets", form.items[1].span)
    parameters = parse_parameters(el, form.items[1].items)
    return Function("fn", parameters, form.items[2:], scope, form.span)


def test(el: Elaborator, form: Form, scope: Scope, what: str) -> bool:
    """An elaboration boolean."""
    value = el.eval(form, scope)
    if isinstance(value, bool):
        return value
    if isinstance(value, Value | HostScalar):
        el.fail("E-TYPE-007", f"the test of `{what}` is {kind_of(value)}, known only at run time", form.span,
                help="(where TEST A B) chooses at run time")  # fmt: skip
    el.fail("E-TYPE-006", f"the test of `{what}` is {kind_of(value)}, not a boolean", form.span)


def _if(el: Elaborator, form: List, scope: Scope) -> Any:
    _need(el, form, 2, None, "(if TEST V TEST V … V)")
    parts = form.items[1:]
    if len(parts) % 2 == 0:
        labels = [] if form.span.source.is_library else [Label(parts[-1].span, "no value follows this test")]
        el.fail("E-FORM-001", "`if` has no last value, for when no test holds", form.span, labels=labels,
                help="(if TEST V TEST V … V); effects stand in (when TEST EFFECT …)")  # fmt: skip
    for index in range(0, len(parts) - 1, 2):
        if test(el, parts[index], scope, "if"):
            return el.eval(parts[index + 1], scope)
    return el.eval(parts[-1], scope)


def _when(el: Elaborator, form: List, scope: Scope) -> None:
    _need(el, form, 2, None, "(when TEST EFFECT …)")
    if test(el, form.items[1], scope, "when"):
        for effect in form.items[2:]:
            if el.eval(effect, scope) is not None:
                el.fail("E-FORM-001", "`when` holds effects; the value of this form is dropped", effect.span)


def _logic(word: str, stop: bool) -> Any:
    def special(el: Elaborator, form: List, scope: Scope) -> Any:
        _need(el, form, 1, None, f"({word} A B …)")
        result: Any = None
        for item in form.items[1:]:
            value = el.eval(item, scope)
            if isinstance(value, bool):
                if value is stop:
                    return stop
                result = value if result is None else result
            elif not isinstance(value, Value | HostScalar):
                el.fail("E-TYPE-006", f"`{word}` takes booleans, not {kind_of(value)}", item.span)
            else:
                result = value if result is None or isinstance(result, bool) else arithmetic(el, word, [result, value])
        return result

    return special


def _with(el: Elaborator, form: List, scope: Scope) -> Any:
    plain, keyed = options(el, form.items[1:], ("scope", "compute", "training", "weights"), "with")
    if not plain:
        el.fail("E-FORM-001", "`with` needs a body: (with :training false BODY)", form.span)
    trace = el.require_trace()
    settings: dict[str, Any] = {}
    if "compute" in keyed:
        compute = el.eval(keyed["compute"], scope)
        name = getattr(compute, "name", None)
        if name not in ("bf16", "f32"):
            el.fail("E-TYPE-006", "`:compute` is bf16 or f32", keyed["compute"].span)
        settings["compute"] = None if name == "f32" else name
    if "training" in keyed:
        settings["training"] = test(el, keyed["training"], scope, "with :training")
    if "weights" in keyed:
        settings["weights"] = weights_name(el, el.eval(keyed["weights"], scope), keyed["weights"])
    parts = el.path_name(keyed["scope"], scope) if "scope" in keyed else ()
    label = (".".join(parts),) if parts else ()
    with trace.changed(**settings), trace.inside(trace.scope + parts, trace.draws + label):
        return el.eval_body(plain, scope)


# Loops.


def _next(el: Elaborator, form: List, scope: Scope) -> Next:
    carries: dict[str, Any] = {}
    emitted: list[Any] = []
    items = form.items[1:]
    for index in range(0, len(items), 2):
        key = items[index]
        if not isinstance(key, Keyword) or index + 1 == len(items):
            el.fail("E-FORM-001", "this form is (next :carry V … :emit V)", key.span)
        value = el.eval(items[index + 1], scope)
        if key.name == "emit":
            emitted.append(value)
        elif key.name in carries:
            el.fail("E-FORM-003", f"`:{key.name}` is given twice", key.span)
        else:
            carries[key.name] = value
    return Next(carries, tuple(emitted), form.span)


def _propose(el: Elaborator, form: List, scope: Scope) -> Proposal:
    plain, keyed = [], {}
    items = form.items[1:]
    for index in range(0, len(items), 2):
        key = items[index]
        if not isinstance(key, Keyword) or index + 1 == len(items):
            plain.append(key)
            break
        keyed[key.name] = el.eval(items[index + 1], scope)
    if plain:
        el.fail("E-FORM-001", "this form is (propose :p P :state S …)", form.span)
    return Proposal(keyed)


def advance(el: Elaborator, result: Any, carries: dict[str, Any], span: Span) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """New carries and what was emitted, from the value of a loop's body."""
    if not isinstance(result, Next):
        if len(carries) != 1:
            el.fail("E-FORM-001", f"the body of a loop with {len(carries)} carries ends in (next :carry V …)", span)
        return {name: result for name in carries}, ()
    for name in result.carries:
        if name not in carries:
            known = ", ".join(f":{c}" for c in carries) or "none"
            el.fail("E-FORM-003", f"`next` names `:{name}`, which is no carry of this loop", result.span,
                    help=f"its carries: {known}")  # fmt: skip
    return {**carries, **result.carries}, result.emitted


def loop_value(carries: Sequence[Any], emitted: Sequence[Any]) -> Any:
    """The value of a loop: final carries, then what was emitted; one alone stands for itself."""
    values = (*carries, *emitted)
    return values[0] if len(values) == 1 else values


def sequences(el: Elaborator, form: Form, scope: Scope) -> Iterator[Scope]:
    """A scope per round of `[i n x V …]`: a number counts from 0, a vector is walked."""
    bound: list[tuple[Form, Sequence[Any], Form]] = []
    walked: Sequence[Any]
    for pattern, value_form in pairs(el, form, "a loop's list"):
        value = el.eval(value_form, scope)
        if isinstance(value, Value):
            el.fail("E-TYPE-006", f"a loop at elaboration walks numbers and vectors, not a tensor {value.type}",
                    value_form.span, help="(scan …) walks a tensor's axis at run time")  # fmt: skip
        walked = value if isinstance(value, tuple) else range(el.size(value, value_form.span))
        if len(walked) > MAX_ROUNDS:
            el.fail(
                "E-TYPE-005",
                f"a loop of {len(walked):,} rounds is written out one by one; at most {MAX_ROUNDS:,} are",
                value_form.span,
            )
        bound.append((pattern, walked, value_form))
    if not bound:
        el.fail("E-FORM-001", "a loop needs a counter or a vector: [i n]", form.span)
    length = len(bound[0][1])
    for _, walked, value_form in bound:
        if len(walked) != length:
            labels = [Label(f.span, f"{len(w)} rounds") for _, w, f in bound]
            el.fail(
                "E-TYPE-005", f"a loop walks {length} and {len(walked)} values at once", value_form.span, labels=labels
            )
    for index in range(length):
        el.spend()
        local = Scope(scope)
        for pattern, walked, _ in bound:
            bind_pattern(el, pattern, walked[index], local)
        yield local


def _in_round(el: Elaborator, index: int, body: Sequence[Form], local: Scope) -> Any:
    trace = el.trace
    if trace is None:
        return el.eval_body(body, local)
    with trace.inside(trace.scope, (*trace.draws, f"[{index}]")):
        return el.eval_body(body, local)


def _repeat(el: Elaborator, form: List, scope: Scope) -> Any:
    _need(el, form, 3, None, "(repeat [i n] [carry V …] BODY)")
    carries: dict[str, Any] = {}
    for pattern, value_form in pairs(el, form.items[2], "a carry list"):
        start = Scope()
        bind_pattern(el, pattern, el.eval(value_form, scope), start)
        carries.update(start.names)
    emitted: list[tuple[Any, ...]] = []
    for index, local in enumerate(sequences(el, form.items[1], scope)):
        local.names.update(carries)
        result = _in_round(el, index, form.items[3:], local)
        carries, out = advance(el, result, carries, form.span)
        emitted.append(out)
    return loop_value(list(carries.values()), [el.vector(e) for e in zip(*emitted, strict=True)])


def _for(el: Elaborator, form: List, scope: Scope) -> tuple[Any, ...]:
    _need(el, form, 2, None, "(for [i n] V)")
    rounds = enumerate(sequences(el, form.items[1], scope))
    return el.vector([_in_round(el, i, form.items[2:], local) for i, local in rounds])


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
    path = trace.path(name_of(el, plain[0], f"the first part of `{word}`"))
    el.path_name(plain[0], scope)
    type = type_value(el, el.eval(plain[1], scope))
    mine, other = (el.world.parameters, el.world.states) if word == "param" else (el.world.states, el.world.parameters)
    if path in other:
        el.fail("E-PARAM-001", f"`{path}` is a parameter and a state", form.span,
                labels=[Label(other[path].span, "here the other")])  # fmt: skip
    if word == "param" and path in trace.created:
        el.fail("E-PARAM-001", f"the parameter `{path}` is made twice in one model call", form.span,
                labels=[Label(trace.created[path], "made here first")],
                help="give each call its own `:name`, or bind the value once and use it twice")  # fmt: skip
    trace.created[path] = el.place(form.span)
    found = mine.get(path)
    lane = "lane" in keyed and test(el, keyed["lane"], scope, "state :lane")
    if found is None:
        outer = [p for p in _prefixes(path) if p in mine or p in other]
        inner = [p for p in (*mine, *other) if p.startswith(path + ".")] if path in el.world.roots else []
        for clash in (*outer, *inner):
            there = (mine.get(clash) or other[clash]).span
            el.fail(
                "E-PARAM-001",
                f"`{min(path, clash)}` has contents of its own, and is the root of `{max(path, clash)}`",
                form.span,
                labels=[Label(there, f"`{clash}` is made here")],
                help="give one of the two another name or `:name`",
            )
        found = Initialised(path, type, _initial_graph(el, path, type, plain[2], scope), el.place(form.span), lane)
        mine[path] = found
        el.world.roots.update(_prefixes(path))
    elif found.type != type:
        el.fail("E-PARAM-001", f"`{path}` is {type} here and {found.type} elsewhere", form.span,
                labels=[Label(found.span, f"{found.type} here")])  # fmt: skip
    elif found.lane != lane:
        el.fail("E-PARAM-001", f"the state `{path}` has `:lane true` in one place and not in another", form.span,
                labels=[Label(found.span, "the other")])  # fmt: skip
    weights = trace.ambient.weights if word == "param" else None
    average = None if weights is None else el.world.averages.get(weights)
    return trace.slot(average.slot(path) if average is not None and average.covers(path) else path, type)


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
    every = _due_every(el, keyed["every"], scope) if "every" in keyed else 1
    after = host_function(el, el.eval(keyed["after"], scope), form.span) if "after" in keyed else None
    before = trace.measures.get(path)
    if before is not None:
        if (before.reduce, before.every, before.value.type) != (reduce, every, tensor.type):
            el.fail("E-STATE-001", f"the measure `{path}` is made twice, differently", form.span,
                    labels=[Label(before.span, "the other")])  # fmt: skip
        tensor, weight = _together(trace, before, tensor, weight)
    trace.measures[path] = Measured(path, tensor, weight, reduce, every, after, el.place(form.span))


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
    slot = str(target.node.attrs["name"]) if isinstance(target, Value) and target.node.op == "input" else ""
    name = slot.removeprefix(SLOT)
    if name not in el.world.states:
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
        if name in trace.state_sets:
            el.fail("E-STATE-001", f"the lane `{name}` is set twice in one call", form.span,
                    labels=[Label(trace.state_sets[name].span, "set here first")])  # fmt: skip
        trace.state_sets[name] = StateSet(name, tensor, "last", None, el.place(form.span))
        return
    reduce = _reducer(el, keyed, state.type)
    using = _using_graph(el, state.type, el.eval(keyed["using"], scope), form.span) if "using" in keyed else None
    count = 1
    before = trace.state_sets.get(name)
    if before is not None:
        if before.reduce != reduce or (before.using is None) != (using is None):
            el.fail("E-STATE-001", f"the state `{name}` is set twice, differently", form.span,
                    labels=[Label(before.span, "the other")])  # fmt: skip
        count = before.count + 1
        if reduce == "mean":
            earlier = trace.builder.scale(before.value, before.count) if before.count > 1 else before.value
            tensor = trace.builder.scale(trace.builder.add(earlier, tensor), 1.0 / count)
        elif reduce != "last":
            op = {"sum": "add", "max": "maximum", "min": "minimum"}[reduce]
            tensor = trace.builder.op(op, before.value, tensor)
    trace.state_sets[name] = StateSet(name, tensor, reduce, using, el.place(form.span), count)


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


# Gradients and phases.


def _grad(el: Elaborator, form: List, scope: Scope) -> Any:
    _need(el, form, 2, None, "(grad FUNCTION X …)")
    trace = el.require_trace()
    function = el.eval(form.items[1], scope)
    points = [el.tensor(el.eval(item, scope)) for item in form.items[2:]]
    b = trace.builder
    for point, item in zip(points, form.items[2:], strict=True):
        if not point.type.is_float:
            el.fail("E-TYPE-009", f"`grad` with respect to {point.type}, which is no float", item.span)
    # Each `grad` has copies of its own, so that a nested one does not mistake its argument for another's.
    trace.num_gradients += 1
    copies = [b.op("cast", p, dtype=p.dtype, copy=trace.num_gradients) for p in points]
    with trace.refusing(effects="`grad`"):
        result = el.tensor(el.apply(function, copies, {}, form.span, bound="grad"))
    if result.shape != () or not result.type.is_float:
        el.fail("E-TYPE-006", f"`grad` needs a function whose value is a scalar, not {result.type}", form.span,
                help="(sum …) or (mean …) makes a scalar")  # fmt: skip
    el.spend(len(b.nodes))
    num_nodes = len(b.nodes)
    found = differentiate(b, {result: b.constant(1.0, result.type)}, copies)
    el.spend(len(b.nodes) - num_nodes)
    values = tuple(b.like(0.0, p) if g is None else g for p, g in zip(points, found, strict=True))
    return values[0] if len(values) == 1 else values


def _every(el: Elaborator, form: List, scope: Scope) -> Any:
    _need(el, form, 1, None, "(every n X) or (every n NEW OLD)")
    n = _due_every(el, form.items[1], scope)
    rest = form.items[2:]
    if len(rest) == 2 and not isinstance(rest[0], Keyword):
        new, old = el.eval(rest[0], scope), el.eval(rest[1], scope)
        return where(el, _due(el, n), new, old)
    plain, keyed = options(el, rest, ("keep",), "every")
    if len(plain) > 1:
        el.fail("E-FORM-001", "this form is (every n X) or (every n NEW OLD)", form.span)
    return Due(n, el.eval(plain[0], scope) if plain else None, {k: el.eval(v, scope) for k, v in keyed.items()})


def _due_every(el: Elaborator, form: Form, scope: Scope) -> int:
    n = el.size(el.eval(form, scope), form.span)
    if n < 1:
        el.fail("E-TYPE-005", "`every` counts from 1", form.span)
    return n


def _due(el: Elaborator, n: int) -> HostScalar:
    """Whether step is 1 or a multiple of n, as a host boolean."""
    step = HostScalar(el.schedule.step)
    whole = arithmetic(el, "floor", [arithmetic(el, "/", [step, float(n)])])
    multiple = arithmetic(el, "=", [arithmetic(el, "*", [whole, n]), step])
    first = arithmetic(el, "=", [step, 1])
    return HostScalar(el.schedule.builder.op("or", multiple.value, first.value))


def _error(el: Elaborator, form: List, scope: Scope) -> Any:
    _need(el, form, 1, 1, '(error "…")')
    el.fail("E-CALL-003", str(el.eval(form.items[1], scope)), form.span)


def _warning(el: Elaborator, form: List, scope: Scope) -> None:
    _need(el, form, 1, 1, '(warning "…")')
    el.warnings.append(el.diagnostic("W-CALL-001", str(el.eval(form.items[1], scope)), form.span))


SPECIALS: dict[str, Any] = {
    "let": _let,
    "fn": _fn,
    "if": _if,
    "when": _when,
    "and": _logic("and", False),
    "or": _logic("or", True),
    "with": _with,
    "repeat": _repeat,
    "for": _for,
    "next": _next,
    "propose": _propose,
    "param": _param,
    "state": _state,
    "measure": _measure,
    "set-state": _set_state,
    "grad": _grad,
    "every": _every,
    "error": _error,
    "warning": _warning,
}
