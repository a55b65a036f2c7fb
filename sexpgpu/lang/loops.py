"""Loops at run time: `scan` and `table-scan`. A table of special forms, like `special`.

Their protocol is that of `repeat`: the body ends in `(next :carry V … :emit V)`. The body is traced once, as a
graph of its own; tensors around it are captured. Parameters and draws inside it belong to the path around the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sexpgpu.diagnostics import Label
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Origin, Value
from sexpgpu.ir.ops.scan import scan
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.leaves import leaves_of, rebuilt, types_of
from sexpgpu.lang.parts import options, pairs, test
from sexpgpu.lang.patterns import bind_pattern, pattern_names
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.special import advance, loop_value
from sexpgpu.lang.trace import TRIP, BodyTrace
from sexpgpu.lang.values import Next
from sexpgpu.source import Span
from sexpgpu.syntax import Form, List, Symbol

Names = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Walked:
    """A sequence: its pattern, its value as written, its tensors with the axis that is walked in front."""

    pattern: Form
    value: Any
    leaves: Sequence[Value]
    span: Span


@dataclass(frozen=True, slots=True)
class _Loop:
    """What a loop's form says, before its body is traced."""

    form: List
    what: str
    carries: Names
    sequences: Sequence[_Walked]
    body: Sequence[Form]
    axis: int
    length: int
    reverse: bool
    save: int


def _read(
    el: Elaborator, form: List, scope: Scope, what: str, shape: str, keywords: Sequence[str]
) -> tuple[_Loop, dict[str, Form]]:
    """The parts of a loop's form, evaluated, and its keywords."""
    plain, keyed = options(el, form.items[1:], ("axis", "reverse", "save", "order", *keywords), what)
    if len(plain) < 3:
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    carries: Names = {}
    for pattern, value_form in pairs(el, plain[0], "a carry list"):
        start = Scope()
        bind_pattern(el, pattern, el.eval(value_form, scope), start)
        carries.update(start.names)
    axis = el.integer(el.eval(keyed["axis"], scope), "an axis") if "axis" in keyed else 0
    if "order" in keyed and not (isinstance(keyed["order"], Symbol) and keyed["order"].span.text == "any"):
        el.fail("E-FORM-003", "`:order` is any", keyed["order"].span, help="without it the places follow one another")
    sequences = [_walked(el, pattern, f, axis, scope) for pattern, f in pairs(el, plain[1], "a sequence list")]
    if not sequences:
        el.fail("E-FORM-001", f"`{what}` needs a sequence or a count to walk: [x XS]", plain[1].span)
    length = sequences[0].leaves[0].shape[0]
    for other in sequences:
        for differs in [leaf.shape[0] for leaf in other.leaves if leaf.shape[0] != length]:
            labels = [Label(s.span, f"{s.leaves[0].shape[0]} places") for s in sequences]
            el.fail("E-TYPE-005", f"`{what}` walks {length} and {differs} places at once", other.span, labels=labels)
    save = el.size(el.eval(keyed["save"], scope), keyed["save"].span) if "save" in keyed else 1
    if save < 1 or (length % save and save < length):
        el.fail("E-TYPE-005", f"`:save {save}` does not divide the {length} places of this loop",
                keyed["save"].span,
                help="every k-th carry is kept for the gradient, those between are computed again")  # fmt: skip
    reverse = "reverse" in keyed and test(el, keyed["reverse"], scope, f"{what} :reverse")
    return _Loop(form, what, carries, sequences, plain[2:], axis, length, reverse, max(1, min(save, length))), keyed


def _walked(el: Elaborator, pattern: Form, form: Form, axis: int, scope: Scope) -> _Walked:
    b = el.require_trace().builder
    value = el.eval(form, scope)
    if isinstance(value, int) and not isinstance(value, bool):
        return _Walked(pattern, value, [b.iota("i32", (el.size(value, form.span),))], form.span)
    if isinstance(value, tuple) and value and not _holds_tensors(value):
        value = el.tensor(value)
    leaves = []
    for leaf in leaves_of(el, value):
        if not -leaf.rank <= axis < leaf.rank:
            el.fail("E-TYPE-005", f"a loop walks axis {axis} of {leaf.type}, which has {leaf.rank} axes", form.span)
        a = axis % leaf.rank
        leaves.append(b.transpose(leaf, (a, *(i for i in range(leaf.rank) if i != a))))
    if not leaves:
        el.fail("E-TYPE-006", "an empty vector has nothing to walk", form.span)
    return _Walked(pattern, value, leaves, form.span)


def _holds_tensors(value: Any) -> bool:
    return any(map(_holds_tensors, value)) if isinstance(value, tuple) else isinstance(value, Value)


def _run(
    el: Elaborator,
    loop: _Loop,
    scope: Scope,
    enter: Callable[[Names, Scope], Names],
    leave: Callable[[Names, Names, Names], Names],
) -> Any:
    """Trace the body and make the loop.

    enter: from the carries, and a scope with what is walked, to what the body sees of the carries. leave: from
    the carries, what the body saw of them and what it made of that, to the new carries.
    """
    outer = el.require_trace()
    starts = {name: leaves_of(el, value) for name, value in loop.carries.items()}
    walked = [leaf for s in loop.sequences for leaf in s.leaves]
    body = BodyTrace(outer, f"a `{loop.what}`")
    inner, around = body.builder, outer.builder.origin
    here = Origin(loop.form.span, "called from" if around.span else "", around if around.span else None)
    inner.origin = here
    counted: list[Value] = []

    def count() -> Value:
        if not counted:
            counted.append(outer.builder.iota(TRIP.dtype, (loop.length,)))
        return inner.input(f"x{len(walked)}", TRIP)

    body.count, body.length = count, loop.length
    flat = [v for values in starts.values() for v in values]
    inputs = [inner.input(f"c{i}", v.type) for i, v in enumerate(flat)]
    inputs += [inner.input(f"x{i}", v.type.with_shape(v.shape[1:])) for i, v in enumerate(walked)]
    given = iter(inputs)
    el.trace = body
    try:
        carries = {name: rebuilt(value, given) for name, value in loop.carries.items()}
        local = Scope(scope)
        for sequence in loop.sequences:
            bind_pattern(el, sequence.pattern, rebuilt(sequence.value, given), local)
        seen = enter(carries, local)
        local.names.update(seen)
        result = el.eval_body(loop.body, local)
        after, emitted = advance(el, result, seen, loop.form.span)
        span = result.span if isinstance(result, Next) else loop.body[-1].span
        made = {name: _kept(el, name, seen[name], value, span) for name, value in after.items()}
        nexts = [v for value in leave(carries, seen, made).values() for v in leaves_of(el, value)]
        emits = [leaves_of(el, value) for value in emitted]
    finally:
        el.trace = outer
    if counted:
        inputs.append(count())
    inputs += body.captured.values()
    with outer.builder.at(here):
        made_by = _node(outer.builder, loop, flat, [*walked, *counted], list(body.captured), inner, inputs, nexts,
                        [v for leaves in emits for v in leaves])  # fmt: skip
    finals = iter(made_by[: len(flat)])
    stacked = iter([_placed(el, outer.builder, v, loop.axis) for v in made_by[len(flat) :]])
    return loop_value(
        [rebuilt(value, finals) for value in loop.carries.values()],
        [rebuilt(value, stacked) for value in emitted],
    )


def _kept(el: Elaborator, name: str, before: Any, after: Any, span: Span) -> Any:
    """A new carry as tensors of the types that it had."""
    old = leaves_of(el, before)
    new = leaves_of(el, after, old)
    if [v.type for v in new] != [v.type for v in old]:
        el.fail("E-TYPE-003", f"the carry `{name}` begins as {types_of(old)} and becomes {types_of(new)}", span,
                help="a carry keeps its shape and dtype from place to place")  # fmt: skip
    return rebuilt(before, iter(new))


def _node(
    b: Builder, loop: _Loop, starts: Sequence[Value], walked: Sequence[Value], captured: Sequence[Value],
    inner: Builder, inputs: Sequence[Value], nexts: Sequence[Value], emits: Sequence[Value],
) -> list[Value]:  # fmt: skip
    """Final carries and what was emitted, along axis 0.

    With `:save k` a loop over k places stands in one over stretches: only the carries between stretches are
    kept, and the gradient computes a stretch again.
    """
    num_outputs = len(nexts) + len(emits)
    if loop.save == 1:
        node = scan(b, starts, walked, captured, inner, inputs, nexts, emits,
                    length=loop.length, reverse=loop.reverse)  # fmt: skip
        return list(node.outputs[:num_outputs])
    stretches = loop.length // loop.save
    cut = [b.reshape(v, (stretches, loop.save, *v.shape[1:])) for v in walked]
    middle = Builder()
    middle.origin = b.origin
    c = [middle.input(f"c{i}", v.type) for i, v in enumerate(starts)]
    x = [middle.input(f"x{i}", v.type.with_shape(v.shape[1:])) for i, v in enumerate(cut)]
    k = [middle.input(f"k{i}", v.type) for i, v in enumerate(captured)]
    made = scan(middle, c, x, k, inner, inputs, nexts, emits, length=loop.save, reverse=loop.reverse).outputs
    node = scan(b, starts, cut, captured, middle, [*c, *x, *k], made[: len(nexts)], made[len(nexts) : num_outputs],
                length=stretches, reverse=loop.reverse)  # fmt: skip
    emitted = [b.reshape(v, (loop.length, *v.shape[2:])) for v in node.outputs[len(nexts) : num_outputs]]
    return [*node.outputs[: len(nexts)], *emitted]


def _placed(el: Elaborator, b: Builder, value: Value, axis: int) -> Value:
    """What was emitted, with its first axis moved to where the loop walks."""
    if not -value.rank <= axis < value.rank:
        one = value.type.with_shape(value.shape[1:])
        el.fail("E-TYPE-005", f"{one} is emitted, which cannot be stacked along axis {axis}",
                help="emit what has the axes before that one")  # fmt: skip
    a = axis % value.rank
    return b.transpose(value, (*range(1, a + 1), 0, *range(a + 1, value.rank)))


def _scan(el: Elaborator, form: List, scope: Scope) -> Any:
    loop, _ = _read(el, form, scope, "scan", "(scan [carry V …] [x XS …] :axis a BODY)", ())
    return _run(el, loop, scope, lambda carries, local: carries, lambda carries, seen, made: made)


def _table_scan(el: Elaborator, form: List, scope: Scope) -> Any:
    shape = "(table-scan [row T …] [i IDS x XS …] :axis a :index i BODY)"
    loop, keyed = _read(el, form, scope, "table-scan", shape, ("index",))
    names = [name for s in loop.sequences for name in pattern_names(s.pattern)]
    index = keyed.get("index")
    if index is None:
        el.fail("E-FORM-004", "`table-scan` needs `:index`, the name of the sequence that picks rows", form.span)
    if not isinstance(index, Symbol) or index.name not in names:
        el.fail("E-FORM-003", f"`:index` names a sequence of this loop: {' '.join(names)}", index.span)
    name = index.name

    def rows(carries: Names, local: Scope) -> Names:
        at = el.tensor(local.names[name])
        if not at.type.is_integer:
            el.fail("E-TYPE-001", f"`:index` picks rows by integers, not {at.type}", index.span)
        return {n: _each(el, v, lambda table: _row(el, table, at)) for n, v in carries.items()}

    def write(carries: Names, seen: Names, made: Names) -> Names:
        return {n: _written(el, carries[n], seen[n], made[n]) for n in carries}

    return _run(el, loop, scope, rows, write)


def _each(el: Elaborator, value: Any, change: Callable[[Value], Value]) -> Any:
    return rebuilt(value, iter([change(leaf) for leaf in leaves_of(el, value)]))


def _row(el: Elaborator, table: Value, at: Value) -> Value:
    """`table[b, at[b]]`."""
    return el.require_trace().builder.op("gather", table, at, axis=at.rank, batch=at.rank)


def _written(el: Elaborator, table: Any, seen: Any, made: Any) -> Any:
    """The tables with new rows where the old ones were read; an index out of range clamps as it did then."""
    b = el.require_trace().builder
    new = []
    for whole, before, after in zip(*(leaves_of(el, v) for v in (table, seen, made)), strict=True):
        at, axis = before.node.inputs[1], before.node.inputs[1].rank
        clamped = b.op("minimum", b.op("maximum", at, b.like(0, at)), b.like(whole.shape[axis] - 1, at))
        written = b.op("scatter", whole, clamped, after, axis=axis, batch=axis, fold="set")
        new.append(whole if after is before else written)
    return rebuilt(table, iter(new))


LOOPS: Mapping[str, Any] = {"scan": _scan, "table-scan": _table_scan}
"""Special forms by name."""
