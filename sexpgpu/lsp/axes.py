"""What the axes of tensors are called: names that the file uses for sizes, spread along the operations.

An axis of a value and an axis of what is computed from it are one where no operation changes it. Each such class takes
the first name that the file gives it: a size in a declared type, `?t`, or a letter of a notation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sexpgpu.ir.graph import Node, Value
from sexpgpu.lsp.names import Names
from sexpgpu.syntax import Form, List, String, Symbol

Axis = tuple[Value, int]
Seen = Mapping[tuple[int, int], Sequence[Any]]
"""Values of forms by their offsets."""

REDUCTIONS = frozenset(("sum", "max", "min", "prod"))


class AxisNames:
    """The names of axes of every value that `values` are computed from."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._parent: dict[Axis, Axis] = {}
        self._named: dict[Axis, str] = {}
        for node in _nodes(values):
            for a, b in _joined(node):
                self._join(a, b)

    def _root(self, axis: Axis) -> Axis:
        path = []
        while axis in self._parent:
            path.append(axis)
            axis = self._parent[axis]
        for passed in path:
            self._parent[passed] = axis
        return axis

    def _join(self, a: Axis, b: Axis) -> None:
        first, second = self._root(a), self._root(b)
        if first != second and a[0].shape[a[1]] == b[0].shape[b[1]]:
            self._parent[second] = first

    def call(self, value: Any, names: Sequence[str | None]) -> None:
        """Name the axes of a value, as far as they have no names yet."""
        if isinstance(value, Value) and len(names) == value.rank:
            for index, name in enumerate(names):
                if name is not None and value.shape[index] != 1:
                    self._named.setdefault(self._root((value, index)), name)

    def shown(self, value: Value) -> str:
        """The type with names for sizes where they are known: `(f32 b t 128)`."""
        sizes = [self._named.get(self._root((value, i)), str(n)) for i, n in enumerate(value.shape)]
        return f"({' '.join([value.dtype, *sizes])})"


def named_axes(names: Names, seen: Seen) -> AxisNames:
    """The axes of what was seen, named as the file names them."""
    values = [value for entry in seen.values() for value in entry if isinstance(value, Value)]
    axes = AxisNames(values)
    forms = [form for top in names.result.forms for form in _lists(top)]
    for form in forms:
        _from_types(axes, form, seen)
    for occurrence in names.occurrences:
        binding = occurrence.binding
        if binding.type is not None and not occurrence.defines:
            for value in seen.get((occurrence.span.start, occurrence.span.end), ()):
                axes.call(value, _sizes(binding.type))
    for form in forms:
        _from_notation(axes, form, seen)
    return axes


def _lists(form: Form) -> Iterator[List]:
    if isinstance(form, List):
        yield form
    for item in getattr(form, "items", ()):
        yield from _lists(item)


def _values(seen: Seen, form: Form) -> Sequence[Any]:
    return seen.get((form.span.start, form.span.end), ())


def _sizes(form: Form) -> list[str | None]:
    """Names of sizes in a type: `(f32 _ ?t width)`."""
    items = form.items[1:] if isinstance(form, List) else ()
    return [i.name.lstrip("?") if isinstance(i, Symbol) and i.name not in ("_", "...") else None for i in items]


def _from_types(axes: AxisNames, form: List, seen: Seen) -> None:
    match form.items:
        case (Symbol(name="param" | "state"), _, type, *_):
            for value in _values(seen, form):
                axes.call(value, _sizes(type))


def _from_notation(axes: AxisNames, form: List, seen: Seen) -> None:
    match form.items:
        case (Symbol(name="product" | "rearrange"), String(value=notation), *operands) if notation.count("->") == 1:
            left, right = notation.split("->")
            for value in _values(seen, form):
                axes.call(value, _letters(right))
            for part, operand in zip(left.split(","), operands, strict=False):
                for value in _values(seen, operand):
                    axes.call(value, _letters(part))


def _letters(text: str) -> list[str | None]:
    """`b t (n h d)` as names of axes; a group of several has none."""
    found: list[str | None] = []
    depth = 0
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            depth += 1
            found.append(None)
        elif token == ")":
            depth -= 1
        elif depth == 0:
            found.append(token if token.isidentifier() else None)
    return found


def _nodes(values: Iterable[Value]) -> Iterator[Node]:
    waiting = [value.node for value in values]
    known: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) not in known:
            known.add(id(node))
            yield node
            waiting += [value.node for value in node.inputs]


def _joined(node: Node) -> Iterator[tuple[Axis, Axis]]:
    """Axes of operands that are axes of the result."""
    out = node.outputs[0]
    attrs: Mapping[str, Any] = node.attrs
    match node.op:
        case "product":
            operands, result = str(attrs["spec"]).split("->")
            places: dict[str, Axis] = {letter: (out, i) for i, letter in enumerate(result)}
            for letters, value in zip(operands.split(","), node.inputs, strict=True):
                for i, letter in enumerate(letters):
                    yield places.setdefault(letter, (value, i)), (value, i)
        case "transpose":
            yield from (((out, i), (node.inputs[0], axis)) for i, axis in enumerate(attrs["perm"]))
        case "broadcast":
            yield from (((out, axis), (node.inputs[0], i)) for i, axis in enumerate(attrs["axes"]))
        case "reshape":
            yield from _ends(out, node.inputs[0])
        case op if op in REDUCTIONS and "axes" in attrs:
            kept = [i for i in range(node.inputs[0].rank) if i not in attrs["axes"]]
            yield from (((out, i), (node.inputs[0], axis)) for i, axis in enumerate(kept))
        case "gather" if not attrs.get("batch"):
            table, index = node.inputs[:2]
            axis = int(attrs["axis"])
            yield from (((out, i), (table, i)) for i in range(axis))
            yield from (((out, axis + i), (index, i)) for i in range(index.rank))
            yield from (((out, index.rank + i - 1), (table, i)) for i in range(axis + 1, table.rank))
        case _:
            for value in node.inputs:
                if value.rank == out.rank:
                    yield from (((out, i), (value, i)) for i in range(out.rank))


def _ends(out: Value, value: Value) -> Iterator[tuple[Axis, Axis]]:
    """Axes before and after those that a reshape changes."""
    shortest = min(out.rank, value.rank)
    first = 0
    while first < shortest and out.shape[first] == value.shape[first]:
        yield (out, first), (value, first)
        first += 1
    last = 1
    while last <= shortest - first and out.shape[-last] == value.shape[-last]:
        yield (out, out.rank - last), (value, value.rank - last)
        last += 1
