"""The manual's page of every operation and form, read from where each is defined.

An operation has its page in the doc string of its Python function, a library function in its doc string in `std`, a
form of the language in `texts/*.txt`. All are written alike: a sentence or two, then sections that begin with their
name and a colon, in the order of `SECTIONS`:

    `(gather x i)`: what it does.

    Shape: x (A… n C…), i (I…) → (A… I… C…).
    Gradient: …
    Example:
        (gather x ids)    ; is (f32 8 16)

A section that an operation lacks is taken from the doc string of its family, the module. What each kind of page must
have is in `REQUIRED`; `faults` says what is missing.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.load import library_forms
from sexpgpu.lang.scope import Scope
from sexpgpu.lang.toplevel import Module, declare
from sexpgpu.lang.values import Builtin, Function, OptimizerDefinition

SECTIONS = (
    "Form", "Takes", "Meaning", "Value", "Rule", "Fields", "Shape", "Types", "Owns", "Gradient", "Stacked",
    "Edges", "Source", "See", "Example",
)  # fmt: skip
"""Names of sections, in the order of a page. `Form` replaces the signature that is made from the definition."""

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "operation": ("Shape", "Types", "Gradient", "Stacked", "Example"),
    "question": ("Value", "Example"),
    "view": ("Fields", "Example"),
    "source": ("Fields", "Example"),
    "top-level form": ("Form", "Meaning", "Example"),
    "special form": ("Form", "Meaning", "Example"),
    "loop": ("Form", "Meaning", "Example"),
    "name": ("Meaning", "Example"),
    "function": ("Shape", "Gradient", "Example"),
    "initialiser": ("Rule", "Example"),
    "optimizer": ("Rule", "Example"),
    "schedule": ("Rule", "Example"),
}
"""What a page of each kind has at least, beside its first sentence."""

FAMILIES: Mapping[str, tuple[str, str]] = {
    "sources": ("view", "Views of data"),
    "elementwise": ("operation", "Elementwise"),
    "movement": ("operation", "Shape"),
    "reductions": ("operation", "Reductions"),
    "contraction": ("operation", "Contraction and windows"),
    "pooling": ("operation", "Contraction and windows"),
    "indexing": ("operation", "Indexing and order"),
    "draws": ("operation", "Random"),
    "queries": ("question", "Questions"),
}
"""Kind and group of the operations of each module of `sexpgpu.lang.builtins`, in the order of the index; another
module has its own name."""

LIBRARY: Mapping[str, tuple[str, str]] = {
    "functions": ("function", "Library: functions"),
    "layers": ("function", "Library: layers"),
    "recurrent": ("function", "Library: recurrent layers"),
    "losses": ("function", "Library: losses"),
    "sampling": ("function", "Library: sampling"),
    "initialisers": ("initialiser", "Library: initialisers"),
    "optimizers": ("optimizer", "Library: optimizers"),
    "schedules": ("schedule", "Library: schedules"),
}
"""Kind and group of the files of the library, in the order of the index; another file has its own name."""

SLUGS: Mapping[str, str] = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "=": "equal", "!=": "not-equal", "<": "less",
    "<=": "less-or-equal", ">": "greater", ">=": "greater-or-equal",
}  # fmt: skip
"""File names of what has no letters; a question mark becomes `is-`."""

_HEADING = re.compile(rf"^({'|'.join(SECTIONS)}):(?: |$)", re.MULTILINE)
_ENTRY = re.compile(r"^(==|#) (.+)\n", re.MULTILINE)
_OPENING = re.compile(r"^`\([^`]*\)`(?: or `\([^`]*\)`)*: ")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the reference.

    form: how it is written, a line each. keywords: those that the definition takes. sections: texts by name.
    """

    name: str
    kind: str
    group: str
    form: str
    summary: str
    keywords: tuple[str, ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The page's file name without its ending."""
        return SLUGS.get(self.name) or (f"is-{self.name[:-1]}" if self.name.endswith("?") else self.name)


def sections_of(text: str) -> tuple[str, dict[str, str]]:
    """The opening text of a doc string, and its sections by name."""
    parts = _HEADING.split(inspect.cleandoc(text))
    named = {parts[i]: parts[i + 1] for i in range(1, len(parts), 2)}
    return parts[0].strip(), {name: _section(named[name]) for name in SECTIONS if name in named}


def _section(text: str) -> str:
    return inspect.cleandoc("\n" + text if text.startswith("\n") else text).strip()


def pages() -> list[Page]:
    """Every page, grouped, in the order of the index."""
    return [*form_pages(), *_operations(), *_library()]


def faults(page: Page) -> list[str]:
    """What a page lacks, in words."""
    found = [] if page.summary else ["a first sentence"]
    found += [f"a section `{name}`" for name in REQUIRED[page.kind] if not page.sections.get(name)]
    text = " ".join([page.form, page.summary, *(v for k, v in page.sections.items() if k != "Example")])
    told = set(re.findall(r":([a-z][\w-]*)", text.partition(page.form)[2] if page.form else text))
    return found + [f"a word on `:{name}`" for name in page.keywords if name not in told]


def _operations() -> Iterator[Page]:
    for op in sorted(BUILTINS.values(), key=lambda op: _place(FAMILIES, op.call.__module__.rpartition(".")[2])):
        module = op.call.__module__
        kind, group = FAMILIES.get(module.rpartition(".")[2], ("operation", module.rpartition(".")[2].capitalize()))
        summary, sections = sections_of(op.doc)
        _, shared = sections_of(sys.modules[module].__doc__ or "")
        sections = {name: text for name in SECTIONS if (text := sections.get(name) or shared.get(name))}
        form = sections.get("Form") or _signature(op)
        yield Page(op.name, kind, group, form, _OPENING.sub("", summary), tuple(sorted(op.keywords)), sections)


def _place(order: Mapping[str, object], name: str) -> int:
    """Where a module stands in the index: those that are not listed come last."""
    return list(order).index(name) if name in order else len(order)


def _signature(op: Builtin) -> str:
    parameters = list(inspect.signature(op.call).parameters.values())[1:]
    parts = [op.name]
    for p in parameters:
        name = p.name.replace("_", "-")
        if p.kind is p.KEYWORD_ONLY:
            parts.append(f":{name} {_shown(p.default)}")
        elif p.kind is p.VAR_POSITIONAL:
            parts.append("…")
        elif p.kind is p.VAR_KEYWORD:
            parts.append(":AXIS size …")
        else:
            parts.append(name if p.default is p.empty else f"[{name}]")
    return "(" + " ".join(parts) + ")"


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None else str(default)


def _library() -> Iterator[Page]:
    ordered = sorted(library_forms().items(), key=lambda item: _place(LIBRARY, Path(item[0].name).stem))
    for source, forms in ordered:
        module = Module(Scope(), Path())
        wrong = declare(Elaborator({}), module, source, forms)
        assert not wrong, wrong
        stem = Path(source.name).stem
        kind, group = LIBRARY.get(stem, ("function", f"Library: {stem}"))
        for name, value in module.scope.names.items():
            assert isinstance(value, Function | OptimizerDefinition), name
            summary, sections = sections_of(value.doc)
            given = [p for p in value.parameters if not (isinstance(value, OptimizerDefinition) and not p.keyword)]
            shown = [_parameter(p.name, p.keyword, p.default.span.text if p.default else "_") for p in given]
            form = sections.get("Form") or "(" + " ".join([name, *shown]) + ")"
            own = "function" if kind == "optimizer" and isinstance(value, Function) else kind
            keywords = tuple(p.name for p in given if p.keyword)
            yield Page(name, own, group, form, summary, keywords, sections)


def _parameter(name: str, keyword: bool, default: str) -> str:
    return f":{name} {default}" if keyword else name


def form_pages() -> Iterator[Page]:
    """The pages of forms, sources, views and names, in the order of the index."""
    folder = resources.files("sexpgpu.lang") / "texts"
    for name in ("toplevel.txt", "expressions.txt"):
        parts = _ENTRY.split((folder / name).read_text("utf-8"))
        kind = group = ""
        for mark, title, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            if mark == "#":
                kind, _, group = title.partition(": ")
                continue
            summary, sections = sections_of(text)
            form = sections.get("Form", "")
            keywords = tuple(dict.fromkeys(re.findall(r"(?<=[ (\n]):(?!key DEFAULT)([a-z][\w-]*)", _outermost(form))))
            yield Page(title, kind, group, form, summary, keywords, sections)


def _outermost(form: str) -> str:
    """What stands in no brackets but those of the form itself."""
    depth, kept = 0, ""
    for character in form:
        depth += (character in "([") - (character in ")]")
        kept += character if depth <= 1 else ""
    return kept
