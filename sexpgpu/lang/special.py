"""Special forms: what binds, branches, loops while a file is read, and differentiates. A table of functions.

Each takes the elaborator, the whole form and the scope; parts are evaluated as the form's meaning says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sexpgpu.diagnostics import Label
from sexpgpu.ir.graph import Value
from sexpgpu.lang.arithmetic import arithmetic, where
from sexpgpu.lang.averages import weights_name
from sexpgpu.lang.collector import Collector
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.parts import due_every, need, options, pairs, test
from sexpgpu.lang.patterns import bind_pattern, parse_parameters, pattern_names
from sexpgpu.lang.scope import POISON, Scope
from sexpgpu.lang.values import Due, Function, HostScalar, Next, Patience, Proposal, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form, Keyword, List, Symbol
from sexpgpu.transform.autodiff import differentiate

MAX_ROUNDS = 1_000_000
"""Rounds of a loop that is written out while a file is elaborated."""


# Binding and choice.


def _let(el: Elaborator, form: List, scope: Scope) -> Any:
    need(el, form, 2, None, "(let [name V …] BODY)")
    local = Scope(scope)
    collector = Collector()
    for pattern, value_form in pairs(el, form.items[1], "a binding list"):
        local = Scope(local, dict.fromkeys(pattern_names(pattern), POISON))
        collector.attempt(partial(_bind_value, el, pattern, value_form, local))
        if any(d.code == "E-CALL-004" for d in collector.found):
            collector.hand_up()  # a recursion without an end would be tried again by every binding on the way out
    # A body without what failed has no value, but it may hold mistakes of its own.
    value = collector.attempt(partial(el.eval_body, form.items[2:], local))
    collector.hand_up()
    return value


def _bind_value(el: Elaborator, pattern: Form, form: Form, local: Scope) -> None:
    """Bind in `local` what `form` gives in the scope around it."""
    assert local.outer is not None
    el.bound = pattern.name if isinstance(pattern, Symbol) else "-".join(pattern_names(pattern))
    try:
        value = el.eval(form, local.outer)
    finally:
        el.bound = None
    bind_pattern(el, pattern, value, local)


def _fn(el: Elaborator, form: List, scope: Scope) -> Function:
    need(el, form, 2, None, "(fn (x …) BODY)")
    if not isinstance(form.items[1], List):
        el.fail("E-FORM-001", "the parameters of `fn` stand in round brackets", form.items[1].span)
    parameters = parse_parameters(el, form.items[1].items)
    return Function("fn", parameters, form.items[2:], scope, form.span)


def _if(el: Elaborator, form: List, scope: Scope) -> Any:
    need(el, form, 2, None, "(if TEST V TEST V … V)")
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
    need(el, form, 2, None, "(when TEST EFFECT …)")
    if test(el, form.items[1], scope, "when"):
        for effect in form.items[2:]:
            if el.eval(effect, scope) is not None:
                el.fail("E-FORM-001", "`when` holds effects; the value of this form is dropped", effect.span)


def _logic(word: str, stop: bool) -> Any:
    def special(el: Elaborator, form: List, scope: Scope) -> Any:
        need(el, form, 1, None, f"({word} A B …)")
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
    need(el, form, 3, None, "(repeat [i n] [carry V …] BODY)")
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
    need(el, form, 2, None, "(for [i n] V)")
    rounds = enumerate(sequences(el, form.items[1], scope))
    return el.vector([_in_round(el, i, form.items[2:], local) for i, local in rounds])


# Gradients and phases.


def _grad(el: Elaborator, form: List, scope: Scope) -> Any:
    need(el, form, 2, None, "(grad FUNCTION X …)")
    trace = el.require_trace()
    function = el.eval(form.items[1], scope)
    points = [el.tensor(el.eval(item, scope)) for item in form.items[2:]]
    b = trace.builder
    for point, item in zip(points, form.items[2:], strict=True):
        if not point.type.is_float:
            el.fail("E-TYPE-009", f"`grad` with respect to {point.type}, which is no float", item.span,
                    help="integers and booleans have no derivative; (cast x f32) before the function does")  # fmt: skip
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


BETTER = ("lower", "higher")
"""Which value of a series makes a checkpoint the best."""


def _every(el: Elaborator, form: List, scope: Scope) -> Any:
    need(el, form, 1, None, "(every n X) or (every n NEW OLD)")
    n = due_every(el, form.items[1], scope)
    rest = form.items[2:]
    if len(rest) == 2 and not isinstance(rest[0], Keyword):
        new, old = el.eval(rest[0], scope), el.eval(rest[1], scope)
        return where(el, _due(el, n), new, old)
    plain, keyed = options(el, rest, ("keep", "keep-best", "better"), "every")
    if len(plain) > 1:
        el.fail("E-FORM-001", "this form is (every n X) or (every n NEW OLD)", form.span)
    better = keyed.pop("better", None)
    found = {k: el.eval(v, scope) for k, v in keyed.items()}
    if better is not None:
        if not isinstance(better, Symbol) or better.name not in BETTER:
            el.fail("E-FORM-003", f"`:better` is one of {' '.join(BETTER)}", better.span)
        found["better"] = better.name
    return Due(n, el.eval(plain[0], scope) if plain else None, found)


def _due(el: Elaborator, n: int) -> HostScalar:
    """Whether step is 1 or a multiple of n, as a host boolean."""
    step = HostScalar(el.schedule.step)
    whole = arithmetic(el, "floor", [arithmetic(el, "/", [step, float(n)])])
    multiple = arithmetic(el, "=", [arithmetic(el, "*", [whole, n]), step])
    first = arithmetic(el, "=", [step, 1])
    return HostScalar(el.schedule.builder.op("or", multiple.value, first.value))


def _patience(el: Elaborator, form: List, scope: Scope) -> Patience:
    shape = '(patience n "SERIES" :by 0.0 :best lowest)'
    plain, keyed = options(el, form.items[1:], ("by", "best"), "patience")
    if len(plain) != 2:
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    num, series = el.size(el.eval(plain[0], scope), plain[0].span), el.eval(plain[1], scope)
    if num < 1:
        el.fail("E-TYPE-005", "`patience` counts from 1", plain[0].span)
    if not isinstance(series, str):
        el.fail("E-TYPE-006", f"`patience` waits for a series, not for {kind_of(series)}", plain[1].span,
                help="the name of a series as `metrics.jsonl` has it, such as \"eval/validation/nll\"")  # fmt: skip
    by = el.eval(keyed["by"], scope) if "by" in keyed else 0.0
    if isinstance(by, bool) or not isinstance(by, int | float) or not 0 <= by < math.inf:
        el.fail("E-TYPE-006", f"`:by` is a number from 0 on, not {kind_of(by)}", keyed["by"].span)
    best = keyed.get("best")
    if best is not None and (not isinstance(best, Symbol) or best.name not in ("lowest", "highest")):
        el.fail("E-FORM-003", "`:best` is one of lowest highest", best.span)
    rising = isinstance(best, Symbol) and best.name == "highest"
    return Patience(num, series, float(by), rising, plain[1].span)


def _error(el: Elaborator, form: List, scope: Scope) -> Any:
    need(el, form, 1, 1, '(error "…")')
    el.fail("E-CALL-003", str(el.eval(form.items[1], scope)), form.span)


def _warning(el: Elaborator, form: List, scope: Scope) -> None:
    need(el, form, 1, 1, '(warning "…")')
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
    "grad": _grad,
    "every": _every,
    "patience": _patience,
    "error": _error,
    "warning": _warning,
}
