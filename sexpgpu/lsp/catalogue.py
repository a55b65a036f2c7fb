"""What is known of names that no file defines: special forms, top-level forms, operations and ambient names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.manual import Page, form_pages
from sexpgpu.lsp.names import Binding
from sexpgpu.syntax import List, String


@cache
def _pages(*kinds: str) -> Mapping[str, Page]:
    """The manual's pages of some kinds, by what they are of."""
    return {page.name: page for page in form_pages() if page.kind in kinds}


def top_level_forms() -> Mapping[str, Page]:
    """The forms that stand at the top of a file."""
    return _pages("top-level form")


def special_forms() -> Mapping[str, Page]:
    """The forms of expressions, loops among them."""
    return _pages("special form", "loop")


def ambient_names() -> Mapping[str, Page]:
    """Names that are always there, dtypes among them."""
    return _pages("name")


CLASSES = {"float": "f32 or bf16", "int": "i32 or i64", "any": "any dtype"}
"""What may stand for a dtype in a parameter's type."""


def signature(binding: Binding) -> str:
    """How a name is used: the call of a function, the kind of everything else."""
    if binding.kind == "operation":
        builtin = BUILTINS[binding.name]
        needed = builtin.num_required
        plain = [n if i < needed else f"[{n}]" for i, n in enumerate(builtin.positional)]
        keys = [f":{key} …" for key in sorted(builtin.keywords)]
        return f"({' '.join([binding.name, *plain, *(['…'] if builtin.variadic else []), *keys])})"
    if binding.form is not None and binding.kind in ("function", "model", "metric", "optimizer", "generator"):
        items = binding.form.items
        if len(items) > 2 and isinstance(items[2], List):
            listed = items[2].items[2:] if binding.kind == "optimizer" else items[2].items
            parts = [" ".join(item.span.text.split()) for item in listed]
            return f"({' '.join([binding.name, *parts])})"
    return binding.name


def documentation(binding: Binding) -> str:
    """What a name is for: its own text, else the comment above its definition."""
    match binding.kind:
        case "operation":
            return BUILTINS[binding.name].doc
        case "ambient" | "dtype":
            return ambient_names()[binding.name].summary
    if binding.form is None:
        return ""
    items = binding.form.items
    at = 4 if binding.kind == "constant" else 5
    if binding.kind in ("constant", "function", "model") and len(items) >= at:
        text = items[3]
        if isinstance(text, String):
            return text.value
    return _comment_above(binding.form)


def _comment_above(form: List) -> str:
    source = form.span.source
    line, column = source.line_column(form.span.start)
    found: list[str] = []
    while column == 1 and line > 1 and source.line_text(line - 1).startswith(";"):
        line -= 1
        found.insert(0, source.line_text(line).lstrip("; "))
    return "\n".join(found)


def keywords_of(binding: Binding) -> dict[str, str]:
    """The keywords that a call of `binding` takes, each with its default or what is known of it."""
    if binding.kind == "operation":
        return dict.fromkeys(sorted(BUILTINS[binding.name].keywords), "")
    found = {
        name: parameter.value.span.text if parameter.value is not None else ""
        for name, parameter in binding.parameters.items()
    }
    if binding.kind in ("function", "model"):
        found.setdefault("name", "a part of the path of what it owns")
    return found


