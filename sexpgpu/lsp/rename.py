"""Renaming: every place of one binding, and the proof that nothing else changes its meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sexpgpu.lang.elaborator import PATH_PART
from sexpgpu.lsp.analysis import Project, path_of
from sexpgpu.lsp.catalogue import CLASSES, special_forms
from sexpgpu.lsp.names import Binding, Names, Occurrence
from sexpgpu.source import Source, Span
from sexpgpu.syntax import Symbol, read


class Refused(Exception):
    """Why a name cannot be changed."""


@dataclass(frozen=True)
class Edit:
    """New text for a stretch of a file."""

    path: Path
    span: Span
    text: str


def renamable(project: Project, path: Path, offset: int) -> Occurrence:
    """The name at an offset. Raises Refused with the reason why it cannot be changed."""
    occurrence = project.names(path).at(offset)
    if occurrence is None:
        raise Refused("no name of this file stands here")
    binding = occurrence.binding
    if binding.span is None:
        raise Refused(f"`{binding.name}` is built into the language")
    if not binding.is_own:
        raise Refused(f"`{binding.name}` belongs to the library, {binding.span.source.name}")
    if binding.kind == "field":
        raise Refused(f"`{binding.name}` is a field of a loader, whose data names it")
    return occurrence


def rename(project: Project, path: Path, offset: int, new: str) -> list[Edit]:
    """The edits that give the binding at an offset another name. Raises Refused."""
    binding = renamable(project, path, offset).binding
    _check_name(binding, new)
    roots = project.including(path)
    files = {path_of(n.source): n for root in roots for n in root.files()}
    edits = [Edit(path_of(span.source), span, new) for span in project.references(path, offset)]
    changed = {file: _edited(names.source.text, [e for e in edits if e.path == file]) for file, names in files.items()}
    after = Project()
    after.texts.update(project.texts)
    for file, text in changed.items():
        after.set_text(file, text)
    for root in roots:
        root_path = path_of(root.source)
        _check_meaning(root, after.names(root_path), new)
    return edits


def _check_name(binding: Binding, new: str) -> None:
    result = read(Source("", new))
    symbol = result.forms[0] if len(result.forms) == 1 and not result.diagnostics else None
    if not isinstance(symbol, Symbol) or symbol.name != new:
        raise Refused(f"`{new}` is no name")
    if binding.kind == "dimension" and not re.fullmatch(r"\?\S+", new):
        raise Refused(f"a size that a type binds begins with `?`: `?{new}`")
    if binding.kind != "dimension" and new.startswith("?"):
        raise Refused("only a size that a type binds begins with `?`")
    if new in special_forms() or new in CLASSES or new in ("_", "..."):
        raise Refused(f"`{new}` is a word of the language")
    if binding.kind in ("model", "keyword", "carry") and not PATH_PART.fullmatch(new):
        raise Refused(f"`{new}` is no part of a path")


def _edited(text: str, edits: list[Edit]) -> str:
    for edit in sorted(edits, key=lambda e: -e.span.start):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def _check_meaning(before: Names, after: Names, new: str) -> None:
    """Every name must mean what it meant: the occurrences, in order, refer to the same definitions."""
    if _meaning(before) != _meaning(after):
        raise Refused(f"`{new}` means something else already where this name is used")


def _meaning(names: Names) -> list[list[tuple[str, int]]]:
    """For each file, what each occurrence refers to: the number of its definition, or the name of what is built in."""
    files = list(names.files())
    ordered = [sorted(n.occurrences, key=lambda o: (o.span.start, not o.defines)) for n in files]
    places = {id(o.binding): (str(i), j) for i, os in enumerate(ordered) for j, o in enumerate(os) if o.defines}
    return [[places.get(id(o.binding), (_outside(o.binding), -1)) for o in os] for os in ordered]


def _outside(binding: Binding) -> str:
    return f"{binding.span.source.name if binding.span else ''}:{binding.name}"

