"""Patterns: what binds names to values, and types that parameters declare.

`[q k v]` takes a vector apart, `_` takes anything; `(f32 _ ?t)` checks a tensor and binds its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sexpgpu.diagnostics import Label
from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import DTYPES, FLOATS, INTEGERS, TensorType
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.values import Parameter, kind_of
from sexpgpu.source import Span
from sexpgpu.syntax import Form, Keyword, List, Symbol, Vector

if TYPE_CHECKING:
    from sexpgpu.lang.elaborator import Elaborator

CLASSES: dict[str, Sequence[str]] = {"float": FLOATS, "int": INTEGERS, "any": DTYPES}


def bind_pattern(el: Elaborator, pattern: Form, value: Any, scope: Scope) -> None:
    """Bind the names of `pattern` to the parts of `value`."""
    match pattern:
        case Symbol(name="_"):
            return
        case Symbol():
            scope.names[pattern.name] = value
        case Vector():
            if isinstance(value, Value):
                el.fail(
                    "E-TYPE-006",
                    f"a pattern of {len(pattern.items)} takes a vector apart, not a tensor {value.type}",
                    pattern.span,
                    help="(unstack x) or (split x n) makes a vector of a tensor",
                )
            if not isinstance(value, tuple):
                el.fail("E-TYPE-006", f"a pattern of {len(pattern.items)} takes a vector apart, not {kind_of(value)}",
                        pattern.span)  # fmt: skip
            if len(value) != len(pattern.items):
                el.fail("E-CALL-002", f"a pattern of {len(pattern.items)} meets a vector of {len(value)}", pattern.span)
            for part, item in zip(pattern.items, value, strict=True):
                bind_pattern(el, part, item, scope)
        case _:
            el.fail("E-FORM-001", "a pattern is a name, `_` or [patterns]", pattern.span)


def pattern_names(pattern: Form) -> list[str]:
    """The names that a pattern binds."""
    match pattern:
        case Symbol(name="_"):
            return []
        case Symbol():
            return [pattern.name]
        case Vector():
            return [name for item in pattern.items for name in pattern_names(item)]
    return []


def parse_parameters(el: Elaborator, items: Sequence[Form]) -> tuple[Parameter, ...]:
    """A parameter list: names, `(name TYPE)`, `[patterns]`, then `:key DEFAULT`."""
    found: list[Parameter] = []
    names: set[str] = set()
    index = 0
    while index < len(items):
        item = items[index]
        match item:
            case Symbol() | Vector():
                shown = item.name if isinstance(item, Symbol) else "[…]"
                parameter = Parameter(item, shown, span=item.span)
            case List(items=(Symbol() as symbol, type)):
                parameter = Parameter(symbol, symbol.name, type, span=item.span)
            case Keyword():
                if index + 1 == len(items):
                    el.fail(
                        "E-FORM-001",
                        f"`:{item.name}` has no default after it; `_` says that it must be given",
                        item.span,
                    )
                default = items[index + 1]
                index += 1
                required = isinstance(default, Symbol) and default.name == "_"
                parameter = Parameter(
                    Symbol(item.name, item.span), item.name, None, True, None if required else default, item.span
                )
            case _:
                el.fail("E-FORM-001", "a parameter is a name, (name TYPE), [names] or :key DEFAULT", item.span)
        for name in pattern_names(parameter.pattern):
            if name in names:
                el.fail("E-NAME-002", f"the parameter `{name}` stands twice", item.span)
            names.add(name)
        found.append(parameter)
        index += 1
    return tuple(found)


def match_type(el: Elaborator, name: str, form: Form, value: Any, scope: Scope, span: Span, label: Label | None) -> Any:
    """`value` as a tensor that the declared type `form` admits; binds `?t` in `scope`."""
    labels = (label,) if label is not None else ()
    if not isinstance(form, List) or not form.items or not isinstance(form.items[0], Symbol):
        el.fail("E-FORM-001", "a type is (DTYPE SIZE …), such as (f32 _ ?t)", form.span)
    head = form.items[0].name
    allowed = CLASSES.get(head, (head,))
    if head not in CLASSES and head not in DTYPES[:5]:
        el.fail("E-TYPE-003", f"`{head}` is no dtype", form.items[0].span, help="f32 bf16 i32 i64 bool float int any")
    tensor = value if isinstance(value, Value) else el.tensor(value, head if head in DTYPES else None)
    declared = form.span.text
    if tensor.dtype not in allowed:
        el.fail("E-TYPE-003", f"`{name}` is {tensor.type}, but is declared {declared}", span, labels=labels,
                help=f"(cast {name} {head})" if head in DTYPES else "")  # fmt: skip
    dims = list(form.items[1:])
    if any(isinstance(dim, Symbol) and dim.name == "..." for dim in dims[1:]):
        el.fail("E-FORM-001", "`...` stands first among the sizes of a type: (f32 ... w)", form.span)
    shape = tensor.shape
    if dims and isinstance(dims[0], Symbol) and dims[0].name == "...":
        dims = dims[1:]
        if len(shape) < len(dims):
            el.fail("E-TYPE-003", f"`{name}` is {tensor.type}, but is declared {declared}", span, labels=labels)
        shape = shape[len(shape) - len(dims) :]
    if len(dims) != len(shape):
        el.fail("E-TYPE-003", f"`{name}` is {tensor.type}, of rank {len(shape)}, but is declared {declared}", span,
                labels=labels)  # fmt: skip
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, Symbol) and dim.name == "_":
            continue
        if isinstance(dim, Symbol) and dim.name.startswith("?"):
            known = scope.names.get(dim.name)
            if known is None:
                scope.names[dim.name] = size
                continue
            wanted = known
        else:
            wanted = el.size(el.eval(dim, scope), dim.span)
        if wanted != size:
            shown = dim.span.text
            equal = shown if shown == str(wanted) else f"{shown} = {wanted}"
            el.fail(
                "E-TYPE-003",
                f"`{name}` is {tensor.type}, but is declared {declared}: axis {axis} is {size}, not {equal}",
                span,
                labels=labels,
            )
    return tensor


def type_value(el: Elaborator, value: Any) -> TensorType:
    """A type, from a type value or a tensor."""
    if isinstance(value, TensorType):
        return value
    if isinstance(value, Value):
        return value.type
    el.fail("E-TYPE-006", f"{kind_of(value)} stands where a type is expected, such as (f32 8 16)")
