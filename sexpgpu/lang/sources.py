"""The sources of `defdata`: from a form such as `(table "points.csv" :columns [x y])` to a description of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sexpgpu.data import ArraysSpec, DataSpec, ImagesSpec, LinesSpec, TableSpec, TextSpec, TokensSpec
from sexpgpu.diagnostics import nearest
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.parts import options, pairs, test
from sexpgpu.lang.scope import Scope
from sexpgpu.syntax import Form, List, String, Symbol, Vector

KINDS: Mapping[str, tuple[str, ...]] = {
    "text": ("by",),
    "tokens": ("vocabulary",),
    "arrays": (),
    "table": ("categories", "columns"),
    "lines": ("length", "by"),
    "images": ("size", "channels"),
}
"""The keywords of each kind of source."""


def data_spec(el: Elaborator, source: List, scope: Scope) -> DataSpec:
    """What a source says. Raises DiagnosticError."""
    head = source.items[0]
    kind = head.name if isinstance(head, Symbol) else ""
    if kind == "if":
        return data_spec(el, _chosen(el, source, scope), scope)
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        el.fail("E-FORM-001", f"`{head.span.text}` is no kind of data", head.span,
                help=f"`{near}` is a near name" if near else f"the kinds: {', '.join(KINDS)}")  # fmt: skip
    plain, keyed = options(el, source.items[1:], KINDS[kind], kind)
    if len(plain) != 1:
        el.fail("E-FORM-001", f'data is named by one path: ({kind} "PATH" …)', source.span)
    path = el.eval(plain[0], scope)
    if not isinstance(path, str):
        el.fail("E-TYPE-006", "a path is a string", plain[0].span)

    def size(key: str, what: str) -> int:
        if key not in keyed:
            el.fail("E-FORM-004", f"`{kind}` needs `:{key}`, {what}", source.span)
        return el.size(el.eval(keyed[key], scope), keyed[key].span)

    match kind:
        case "arrays":
            return ArraysSpec(path)
        case "tokens":
            return TokensSpec(path, size("vocabulary", "the number of distinct ids"))
        case "table":
            columns = tuple(_name(el, item) for item in _items(el, keyed["columns"])) if "columns" in keyed else None
            return TableSpec(path, _categories(el, keyed.get("categories"), scope), columns)
        case "lines":
            length = size("length", "the number of tokens of a row")
            if length < 1:
                el.fail("E-TYPE-005", "a line holds at least one token", keyed["length"].span)
            return LinesSpec(path, length, _by(el, keyed.get("by")))
        case "images":
            channels = size("channels", "") if "channels" in keyed else 3
            if channels not in (1, 3):
                el.fail("E-TYPE-005", "`:channels` is 3, or 1 for grey", keyed["channels"].span)
            return ImagesSpec(path, _picture_size(el, keyed.get("size"), scope), channels)
    return TextSpec(path, _by(el, keyed.get("by")))


def _by(el: Elaborator, form: Form | None) -> Literal["characters", "bytes"]:
    match form:
        case None | Symbol(name="characters"):
            return "characters"
        case Symbol(name="bytes"):
            return "bytes"
    el.fail("E-FORM-003", "`:by` is characters or bytes", form.span)


def _items(el: Elaborator, form: Form) -> tuple[Form, ...]:
    if not isinstance(form, Vector):
        el.fail("E-FORM-001", "columns stand in square brackets: [x y]", form.span)
    return form.items


def _name(el: Elaborator, form: Form) -> str:
    if isinstance(form, Symbol):
        return form.name
    if isinstance(form, String):
        return form.value
    el.fail("E-FORM-001", "a column is a name or a string", form.span)


def _categories(el: Elaborator, form: Form | None, scope: Scope) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, tuple[str, ...]] = {}
    for name_form, words_form in pairs(el, form, "`:categories`") if form is not None else ():
        name, words = _name(el, name_form), el.eval(words_form, scope)
        if not isinstance(words, tuple) or not words or not all(isinstance(word, str) for word in words):
            el.fail("E-TYPE-006", f"the categories of `{name}` are a vector of strings", words_form.span)
        twice = next((word for word in words if words.count(word) > 1), None)
        twice = name if name in found else twice
        if twice is not None:
            el.fail("E-NAME-002", f"`{twice}` stands twice in `:categories`", words_form.span)
        found[name] = words
    return tuple(found.items())


def _picture_size(el: Elaborator, form: Form | None, scope: Scope) -> tuple[int, int] | None:
    if form is None:
        return None
    size = el.eval(form, scope)
    sides = tuple([el.size(side, form.span) for side in size]) if isinstance(size, tuple) else ()
    if len(sides) != 2 or not all(sides):
        el.fail("E-TYPE-005", "`:size` is [height width]", form.span)
    return sides[0], sides[1]


def _chosen(el: Elaborator, form: List, scope: Scope) -> List:
    """The source that `(if TEST SOURCE … SOURCE)` chooses; the others are not opened."""
    parts = form.items[1:]
    if len(parts) < 3 or len(parts) % 2 == 0:
        el.fail("E-FORM-001", "a choice of data is (if TEST SOURCE TEST SOURCE … SOURCE)", form.span)
    chosen = parts[-1]
    for index in range(0, len(parts) - 1, 2):
        if test(el, parts[index], scope, "if"):
            chosen = parts[index + 1]
            break
    if not isinstance(chosen, List) or not chosen.items:
        el.fail("E-FORM-001", f'`if` chooses between sources of data: ({"|".join(KINDS)} "PATH" …)', chosen.span)
    return chosen
