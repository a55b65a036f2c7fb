"""The sources of `defdata`: from a form such as `(table "points.csv" :columns [x y])` to a description of data."""

from __future__ import annotations

from collections.abc import Mapping

from sexpgpu.data import (
    ArraysSpec,
    By,
    DataSpec,
    ImagesSpec,
    LinesSpec,
    TableSpec,
    TextSpec,
    TiktokenSpec,
    Tokenizer,
    TokenizerSpec,
    TokensSpec,
)
from sexpgpu.diagnostics import nearest
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.parts import options, pairs, test
from sexpgpu.lang.scope import Scope
from sexpgpu.syntax import Form, List, String, Symbol, Vector

KINDS: Mapping[str, tuple[str, ...]] = {
    "text": ("by", "ends"),
    "tokens": ("vocabulary", "ends", "bits", "by"),
    "arrays": ("missing",),
    "table": ("categories", "columns", "missing"),
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
    path = _string(el, plain[0], scope, "a path")

    def size(key: str, what: str) -> int:
        if key not in keyed:
            el.fail("E-FORM-004", f"`{kind}` needs `:{key}`, {what}", source.span)
        return el.size(el.eval(keyed[key], scope), keyed[key].span)

    match kind:
        case "arrays":
            return ArraysSpec(path, _missing(el, keyed.get("missing"), scope))
        case "tokens":
            vocabulary = size("vocabulary", "the number of distinct ids")
            ends = size("ends", "") if "ends" in keyed else None
            if ends is not None and ends >= vocabulary:
                el.fail("E-TYPE-005", f"`:ends` is an id below {vocabulary}", keyed["ends"].span)
            bits = size("bits", "") if "bits" in keyed else 16
            if bits not in (16, 32):
                el.fail("E-TYPE-005", "`:bits` of an id are 16 or 32", keyed["bits"].span)
            tokenizer = _tokenizer(el, keyed["by"], scope) if "by" in keyed else None
            return TokensSpec(path, vocabulary, ends, bits, tokenizer)
        case "table":
            columns = tuple(_name(el, item) for item in _items(el, keyed["columns"])) if "columns" in keyed else None
            missing = _missing(el, keyed.get("missing"), scope)
            return TableSpec(path, _categories(el, keyed.get("categories"), scope), columns, missing)
        case "lines":
            length = size("length", "the number of tokens of a row")
            if length < 1:
                el.fail("E-TYPE-005", "a line holds at least one token", keyed["length"].span)
            return LinesSpec(path, length, _by(el, keyed.get("by"), scope))
        case "images":
            channels = size("channels", "") if "channels" in keyed else 3
            if channels not in (1, 3):
                el.fail("E-TYPE-005", "`:channels` is 3, or 1 for grey", keyed["channels"].span)
            return ImagesSpec(path, _picture_size(el, keyed.get("size"), scope), channels)
    return TextSpec(path, _by(el, keyed.get("by"), scope), _ends(el, keyed.get("ends"), scope))


def _by(el: Elaborator, form: Form | None, scope: Scope) -> By:
    match form:
        case None | Symbol(name="characters"):
            return "characters"
        case Symbol(name="bytes"):
            return "bytes"
    return _tokenizer(el, form, scope)


def _tokenizer(el: Elaborator, form: Form, scope: Scope) -> Tokenizer:
    """(tokenizer PATH), or (tiktoken PATH :pattern P :special [TEXT ID …])."""
    match form:
        case List(items=(Symbol(name="tokenizer" | "tiktoken" as kind), *rest)):
            keys = () if kind == "tokenizer" else ("pattern", "special")
            plain, keyed = options(el, rest, keys, kind)
            if len(plain) != 1:
                el.fail("E-FORM-001", f'a tokenizer is named by one path: ({kind} "PATH")', form.span)
            path = _string(el, plain[0], scope, "a path")
            if kind == "tokenizer":
                return TokenizerSpec(path)
            if "pattern" not in keyed:
                el.fail("E-FORM-004", "`tiktoken` needs `:pattern`, the expression that cuts text", form.span)
            pattern = _string(el, keyed["pattern"], scope, "`:pattern`")
            return TiktokenSpec(path, pattern, _special(el, keyed.get("special"), scope))
    el.fail("E-FORM-003", "`:by` is characters, bytes or a tokenizer", form.span,
            help='(tokenizer "tokenizer.json") or (tiktoken "ranks.tiktoken" :pattern "…")')  # fmt: skip


def _special(el: Elaborator, form: Form | None, scope: Scope) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for text_form, id_form in pairs(el, form, "`:special`") if form is not None else ():
        text = _string(el, text_form, scope, "a special token")
        if text in found:
            el.fail("E-NAME-002", f"`{text}` stands twice in `:special`", text_form.span)
        found[text] = el.size(el.eval(id_form, scope), id_form.span)
    return tuple(found.items())


def _string(el: Elaborator, form: Form, scope: Scope, what: str) -> str:
    value = el.eval(form, scope)
    if not isinstance(value, str):
        el.fail("E-TYPE-006", f"{what} is a string", form.span)
    return value


def _ends(el: Elaborator, form: Form | None, scope: Scope) -> str | None:
    if form is None:
        return None
    ends = _string(el, form, scope, "`:ends` of a text")
    if not ends:
        el.fail("E-TYPE-005", "`:ends` is the text that ends a document, at least one character", form.span)
    return ends


def _missing(el: Elaborator, form: Form | None, scope: Scope) -> bool:
    missing = el.eval(form, scope) if form is not None else False
    if not isinstance(missing, bool):
        el.fail("E-TYPE-006", "`:missing` is true or false", form.span if form is not None else None)
    return missing


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
