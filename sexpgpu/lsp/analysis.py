"""Questions of an editor about a text, and their answers: functions of texts and reports, without a protocol.

A `Project` holds the texts that are open; everything else is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.values import HostScalar, kind_of
from sexpgpu.lsp.axes import AxisNames, named_axes
from sexpgpu.lsp.catalogue import documentation, signature, special_forms, top_level_forms
from sexpgpu.lsp.checking import OpenedData, Report
from sexpgpu.lsp.names import Binding, Names, Occurrence, library, resolve
from sexpgpu.source import Source, Span
from sexpgpu.syntax import Form, Keyword, List, Symbol, Vector, load_source, read

VALUED = frozenset(("constant", "parameter", "local", "carry", "field", "dimension", "keyword", "ambient"))
"""Kinds of names whose value is worth a line."""

MAX_VALUES = 3
"""How many different values of one form are shown."""


def library_folder() -> Path:
    """Where the files of the library lie."""
    return Path(__file__).parents[1] / "std"


def path_of(source: Source) -> Path:
    """The file of a source whose name is a path, or of the library."""
    if source.is_library:
        return library_folder() / source.name.removeprefix("std/")
    return Path(source.name)


class Values:
    """What a check saw, for the texts that it checked."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._axes: dict[Path, AxisNames] = {}

    @cached_property
    def _seen(self) -> dict[Path, dict[tuple[int, int], list[Any]]]:
        found: dict[Path, dict[tuple[int, int], list[Any]]] = {}
        paths = {key: path for key, (_, path) in self.report.files.paths.items()}
        for form, *values in self.report.seen.values():
            path = paths.get(id(form.span.source))
            if path is not None:
                found.setdefault(path, {}).setdefault((form.span.start, form.span.end), []).extend(values)
        return found

    def of(self, path: Path, start: int, end: int) -> Sequence[Any]:
        """The values of the form between two offsets."""
        return self._seen.get(path, {}).get((start, end), ())

    def axes(self, names: Names, path: Path) -> AxisNames:
        """The names of axes, for a file whose text is the one that was checked."""
        if path not in self._axes:
            self._axes[path] = named_axes(names, self._seen.get(path, {}))
        return self._axes[path]

    def text_of(self, path: Path) -> str | None:
        """The text of a file as it was checked."""
        found = [source.text for source, p in self.report.files.paths.values() if p == path]
        return found[0] if found else None


class Project:
    """The texts that an editor has open, and what is known of them.

    texts: by resolved path. values: of the newest check of a file, and before it those of the newest without errors.
    """

    def __init__(self) -> None:
        self.texts: dict[Path, str] = {}
        self.opened = OpenedData()
        self.values: dict[Path, list[Values]] = {}
        self._names: dict[Path, Names] = {}

    def set_text(self, path: Path, text: str) -> None:
        """A file is open, or has changed."""
        self.texts[path] = text
        self._names.clear()

    def close(self, path: Path) -> None:
        """A file is open no longer: the disk has its text."""
        self.texts.pop(path, None)
        self.values.pop(path, None)
        self._names.clear()

    def keep(self, path: Path, report: Report, good: bool) -> None:
        """Remember what a check saw. good: it found no error."""
        new = Values(report)
        self.values[path] = [new] if good else [*self.values.get(path, [])[:1], new]

    def names(self, path: Path) -> Names:
        """The names of a file. Raises DiagnosticError where it cannot be read."""
        return self._resolved(path, ())

    def _resolved(self, path: Path, chain: tuple[Path, ...]) -> Names:
        found = self._names.get(path)
        if found is None:
            if path.parent == library_folder():
                return next(n for n in library()[1] if path_of(n.source) == path)
            text = self.texts.get(path)
            source = load_source(path) if text is None else Source(str(path), text)

            def include(written: str) -> Names | None:
                inner = (path.parent / Path(written).expanduser()).resolve()
                if inner == path or inner in chain:
                    return None
                try:
                    return self._resolved(inner, (*chain, path))
                except DiagnosticError:
                    return None

            found = self._names[path] = resolve(source, read(source), library()[0], include)
        return found

    def including(self, path: Path) -> list[Names]:
        """The names of every open file whose files `path` is one of, itself first."""
        found = [self.names(path)]
        for other in self.texts:
            if other != path:
                names = self.names(other)
                if any(path_of(n.source) == path for n in names.files()):
                    found.append(names)
        return found

    # Hover.

    def hover(self, path: Path, offset: int) -> Hover | None:
        """What is known of the form at an offset."""
        names = self.names(path)
        form = form_at(names.result.forms, offset)
        occurrence = names.at(offset)
        code: list[str] = []
        text: list[str] = []
        match form:
            case Symbol():
                head = _head_of(names.result.forms, form)
                if occurrence is not None and occurrence.span == form.span:
                    binding = occurrence.binding
                    called = self._typed(path, _shown(head), head.span) if head is not None else []
                    value = called or (self._binding_value(path, occurrence) if binding.kind in VALUED else [])
                    shown = signature(binding)
                    code += value if value and shown == binding.name and not called else [shown, *value]
                    text += _remarks(binding)
                elif head is not None:
                    at_top = any(head is top for top in names.result.forms)
                    entry = (top_level_forms() if at_top else special_forms()).get(form.name)
                    if entry is not None:
                        code += [entry.form, *([] if at_top else self._typed(path, _shown(head), head.span))]
                        text.append(entry.summary)
                return Hover(form.span, tuple(code), tuple(text)) if code else None
            case Keyword() if occurrence is not None:
                binding = occurrence.binding
                if binding.kind != "keyword" or binding.value is None:
                    code += self._binding_value(path, occurrence) or [f":{binding.name}"]
                elif binding.value.span.text == "_":
                    code, text = [f":{binding.name}"], ["must be given"]
                else:
                    code.append(f":{binding.name} {binding.value.span.text}")
                return Hover(occurrence.span, tuple(code), tuple(text))
            case List() | Vector():
                code += self._typed(path, _shown(form), form.span)
                return Hover(form.span, tuple(code), ()) if code else None
        return None

    def _binding_value(self, path: Path, at: Occurrence) -> list[str]:
        """The value of a name: where it stands, else of its definition, else of another use."""
        binding = at.binding
        constant = binding.kind == "constant"
        places = [at.span]
        if binding.span is not None and binding.value is not None and (constant or binding.kind != "keyword"):
            places.append(binding.value.span)
        names = self.names(path)
        places += [o.span for o in names.occurrences if o.binding is binding and not o.defines]
        for place in places:
            if not place.source.is_library or path.parent == library_folder():
                found = self._typed(path_of(place.source), binding.name, place, "=" if constant else ":")
                if found:
                    return found
        return []

    def _typed(self, path: Path, shown: str, span: Span, sign: str = ":") -> list[str]:
        """A line for each different value of the form at `span`."""
        for values, start, end in self._checked(path, span):
            found = values.of(path, start, end)
            if not found:
                continue
            current = values.text_of(path) == span.source.text
            axes = values.axes(self.names(path), path) if current and any(map(_has_tensor, found)) else None
            lines = []
            for text in dict.fromkeys(described(value, axes) for value in found):
                equals = sign if not any(map(_has_tensor, found)) else ":"
                lines.append(f"{shown}{'' if equals == ':' else ' '}{equals} {text}")
            return lines[:MAX_VALUES] + (["…"] if len(lines) > MAX_VALUES else [])
        return []

    def _checked(self, path: Path, span: Span) -> Iterator[tuple[Values, int, int]]:
        """Checks that may know the form at `span`, the newest first, and the offsets that it had in them."""
        for root in [path, *(p for p in self.values if p != path)]:
            for values in reversed(self.values.get(root, [])):
                text = values.text_of(path)
                if text is not None:
                    place = moved(span.source.text, text, span.start, span.end)
                    if place is not None:
                        yield values, *place

    # Names.

    def definition(self, path: Path, offset: int) -> Span | None:
        """Where the name at an offset is defined."""
        occurrence = self.names(path).at(offset)
        return occurrence.binding.span if occurrence is not None else None

    def references(self, path: Path, offset: int) -> list[Span]:
        """Every place of the binding at an offset, in the open files and those that they include."""
        occurrence = self.names(path).at(offset)
        return [] if occurrence is None else [o.span for o in self._occurrences(path, occurrence.binding)]

    def _occurrences(self, path: Path, binding: Binding) -> list[Occurrence]:
        found: dict[tuple[Path, int], Occurrence] = {}
        for root in self.including(path):
            for names in root.files():
                for o in names.occurrences:
                    if _same(o.binding, binding):
                        found.setdefault((path_of(o.span.source), o.span.start), o)
        return [found[key] for key in sorted(found, key=lambda k: (str(k[0]), k[1]))]

    def outline(self, path: Path) -> list[Binding]:
        """What a file defines, in order."""
        return self.names(path).outline


@dataclass(frozen=True)
class Hover:
    """Lines of code and lines of text about a place."""

    span: Span
    code: tuple[str, ...]
    text: tuple[str, ...]


def described(value: Any, axes: AxisNames | None = None) -> str:
    """A value as people read it: a number, a type, a kind."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return f'"{value}"'
        case Value():
            plain = str(value.type)
            named = axes.shown(value) if axes is not None else plain
            return plain if named == plain else f"{named} = {plain}"
        case TensorType():
            return f"the type {value}"
        case tuple():
            parts = [described(v) for v in value[:6]] + (["…"] if len(value) > 6 else [])
            return f"[{' '.join(parts)}]"
        case HostScalar():
            return "a number that depends on step"
    return kind_of(value).replace("`", "")


def moved(new: str, old: str, start: int, end: int) -> tuple[int, int] | None:
    """Where a stretch of a text stood before its last edit; None if the edit touches it."""
    if new == old:
        return start, end
    shortest = min(len(new), len(old))
    same = next((i for i in range(shortest) if new[i] != old[i]), shortest)
    if end <= same:
        return start, end
    left = shortest - same
    tail = next((i for i in range(left) if new[-1 - i] != old[-1 - i]), left)
    if start >= len(new) - tail:
        shift = len(old) - len(new)
        return start + shift, end + shift
    return None


def form_at(forms: Sequence[Form], offset: int) -> Form | None:
    """The innermost form at an offset; of two that touch there the one that begins."""
    found: Form | None = None
    for form in forms:
        if form.span.start <= offset < form.span.end:
            found = form
            break
        if form.span.end == offset:
            found = form
    if isinstance(found, List | Vector):
        return form_at(found.items, offset) or found
    return found


def _same(a: Binding, b: Binding) -> bool:
    """Whether two bindings are one, perhaps of two readings of a text."""
    if a is b:
        return True
    return a.span is not None and b.span is not None and a.name == b.name and (
        a.span.source.name, a.span.start) == (b.span.source.name, b.span.start)  # fmt: skip


def _head_of(forms: Sequence[Form], symbol: Symbol) -> List | None:
    """The form whose head `symbol` is."""
    for form in forms:
        if form.span.start <= symbol.span.start and symbol.span.end <= form.span.end:
            if isinstance(form, List) and form.items and form.items[0] is symbol:
                return form
            return _head_of(getattr(form, "items", ()), symbol)
    return None


def _shown(form: Form) -> str:
    """A form in a few words."""
    match form:
        case List(items=(Symbol(name=head), *_)):
            return f"({head} …)"
        case List():
            return "(…)"
        case Vector():
            return "[…]"
    return form.span.text


def _remarks(binding: Binding) -> list[str]:
    source = binding.span.source if binding.span is not None else None
    where = binding.kind
    if source is not None:
        where += f" of {source.name if source.is_library else Path(source.name).name}"
    return [text for text in (documentation(binding), where) if text]


def _has_tensor(value: Any) -> bool:
    return any(map(_has_tensor, value)) if isinstance(value, tuple) else isinstance(value, Value)
