"""What stands beside a fault: where an operand was made, and the name that an unknown one was meant to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from sexpgpu.diagnostics import Label, nearest
from sexpgpu.diagnostics.nearest import edit_distance
from sexpgpu.ir.graph import Value
from sexpgpu.ir.program import SLOT
from sexpgpu.lang.bindings import enclosing, meant
from sexpgpu.lang.scope import Scope
from sexpgpu.source import Span, contains
from sexpgpu.syntax import Form, Keyword, Symbol

if TYPE_CHECKING:
    from sexpgpu.lang.elaborator import Elaborator

MOVES = frozenset({"reshape", "transpose", "broadcast", "slice", "reverse", "cast", "pad", "gather"})
"""Operations whose result is the elements of their first operand in another place."""


def operand_labels(el: Elaborator, operands: Sequence[Form], values: Sequence[Any], span: Span) -> tuple[Label, ...]:
    """What each operand of a call is and where it comes from, where several tensors of the user's own files meet."""
    plain = [form for form in operands if not isinstance(form, Keyword)]
    tensors = [(f, v) for f, v in zip(plain, values, strict=False) if isinstance(v, Value)]
    if len(tensors) < 2 or any(f.span.source.is_library for f, _ in tensors):
        return ()
    labels: dict[Span, str] = {}
    for form, value in tensors:
        named = isinstance(form, Symbol)
        labels[form.span] = f"{form.span.text} is {value.type}" if named else f"{value.type}"
        source = _source_of(el.trace.original(value) if el.trace is not None else value, form.span)
        made = None if source is None else _made_at(el, source)
        if source is not None and made is not None and not contains(made, span) and not contains(span, made):
            labels.setdefault(made, f"{form.span.text} comes from here" if named else f"{source.type} is made here")
    return tuple(Label(place, text) for place, text in labels.items())


def _source_of(value: Value, within: Span) -> Value | None:
    """The value whose shape `value` has or is cut from, made outside of `within`; None if it is not one alone."""
    while value.node.op != "input" and (place := value.node.origin.place) is not None and contains(within, place):
        if value.node.op not in MOVES:
            return None
        value = value.node.inputs[0]
    return value


def _made_at(el: Elaborator, value: Value) -> Span | None:
    """Where the user's own files make a tensor: for the contents of a slot, the form that owns it."""
    place = value.node.origin.place
    if value.node.op == "input":
        name = str(value.node.attrs["name"]).removeprefix(SLOT)
        owned = el.world.parameters.get(name) or el.world.states.get(name)
        place = place if owned is None else owned.span
    return None if place is None or place.source.is_library else place


def unknown(el: Elaborator, symbol: Symbol, scope: Scope) -> NoReturn:
    """Report a name that nothing defines (E-NAME-001), beside the one that was likely meant."""
    name = symbol.name
    labels: list[Label] = []
    bindings = enclosing(el.forms, symbol.span)
    binding = meant(name, bindings) if bindings is not None else None
    if binding is not None:
        near: str | None = binding.name
        labels.append(Label(binding.span, f"`{near}` is bound here, and nothing uses it"))
    else:
        own = nearest(name, el.defined)
        near = nearest(name, [*scope.visible(), *el.specials])
        if own and near and edit_distance(name, own) <= edit_distance(name, near):
            near = own
        if near in el.defined:
            labels.append(Label(el.defined[near], f"`{near}` is defined here"))
    if near is None and bindings is not None and bindings.parameters is not None:
        if any(contains(part, symbol.span) for part in bindings.body):
            labels.append(Label(bindings.parameters, f"no parameter is called `{name}`"))
    el.fail("E-NAME-001", f"nothing is called `{name}`", symbol.span,
            help=f"`{near}` is a near name" if near else "", labels=labels)  # fmt: skip
