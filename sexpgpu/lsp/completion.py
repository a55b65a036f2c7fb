"""What may stand at a place of a text that is being typed: names in scope, and keywords of the form around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from sexpgpu.lang.sources import KINDS
from sexpgpu.lsp.analysis import Project
from sexpgpu.lsp.catalogue import (
    documentation,
    keywords_of,
    signature,
    special_forms,
    top_level_forms,
)
from sexpgpu.lsp.names import Environment

_TOKEN = re.compile(r';[^\n]*|#\||"(?:[^"\\]|\\.)*"|[()\[\]]|[^\s()\[\]";]+|"', re.DOTALL)
_TOP_LEVEL = re.compile(r"^[(\[]", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """A name or keyword that may stand here. order: names of nearer scopes come first."""

    label: str
    kind: str
    detail: str = ""
    doc: str = ""
    order: int = 0


@dataclass
class _Frame:
    opener: str
    start: int
    items: list[str] = field(default_factory=list)


@dataclass
class _Place:
    """Where the cursor stands: the brackets that are open there, and the word before it."""

    frames: list[_Frame]
    prefix: str
    start: int
    in_text: bool
    before: int


def complete(project: Project, path: Path, offset: int) -> tuple[int, list[Proposal]]:
    """What may stand at an offset, and where the word begins that it would replace."""
    names = project.names(path)
    place = _place(names.source.text, offset)
    if place.in_text or not place.frames:
        return offset, []
    environment = names.environment(place.before)
    frame = place.frames[-1]
    if place.prefix.startswith(":"):
        head = frame.items[0] if frame.opener == "(" and frame.items else ""
        found = [Proposal(f":{k}", "keyword", v) for k, v in _keywords(head, place, environment).items()]
        return place.start, found
    if frame.opener == "(" and not frame.items:
        if len(place.frames) == 1:
            entries = top_level_forms().items()
            return place.start, [Proposal(name, "form", entry.form, entry.summary) for name, entry in entries]
        forms = [Proposal(name, "form", e.form, e.summary, 4) for name, e in special_forms().items()]
        return place.start, [*_names(environment), *forms]
    return place.start, _names(environment)


def _names(environment: Environment) -> list[Proposal]:
    found = []
    for name, binding in environment.visible().items():
        order = 3 if binding.span is None else 2 if not binding.is_own else 1 if binding.form is not None else 0
        detail = signature(binding)
        if binding.kind == "constant" and binding.value is not None:
            detail = f"{name} = {binding.value.span.text}"
        found.append(Proposal(name, binding.kind, detail, documentation(binding), order))
    return found


def _keywords(head: str, place: _Place, environment: Environment) -> dict[str, str]:
    """The keywords that a form takes, without those that it has."""
    frame = place.frames[-1]
    given = {item[1:] for item in frame.items if item.startswith(":")}
    found: dict[str, str] = {}
    binding = environment.find(head)
    if len(place.frames) == 1 and head in top_level_forms():
        found = dict.fromkeys(top_level_forms()[head].keywords, "")
    elif binding is not None:
        found = keywords_of(binding)
    elif head in special_forms():
        if head in ("next", "propose"):
            found = {name: carry.kind for name, carry in (environment.carries or {}).items()}
        found.update(dict.fromkeys(special_forms()[head].keywords, ""))
    elif head in KINDS:
        found = dict.fromkeys(KINDS[head], "")
    repeated = {"emit"} if head == "next" else set()
    return {key: value for key, value in found.items() if key not in given or key in repeated}


def _place(text: str, offset: int) -> _Place:
    """The brackets around an offset, read from the last bracket in column 0."""
    begins = [found.start() for found in _TOP_LEVEL.finditer(text, 0, offset)]
    place = _Place([], "", offset, False, offset)
    at = begins[-1] if begins else 0
    last_end = at
    while (found := _TOKEN.search(text, at, offset)) is not None:
        token, end = found[0], found.end()
        at = end
        touches = end == offset
        if token.startswith(";") or token == "#|":
            place.in_text = touches or token == "#|"
            if token == "#|":
                close = text.find("|#", end, offset)
                if close < 0:
                    return place
                at, place.in_text = close + 2, False
            continue
        if token.startswith('"'):
            if len(token) == 1:  # a string that nothing ends before the cursor
                place.in_text = True
                return place
            _add(place, token)
        elif token in "([":
            place.frames.append(_Frame(token, found.start()))
        elif token in ")]":
            if place.frames:
                place.frames.pop()
            _add(place, "")
        elif touches:
            place.prefix, place.start = token, found.start()
            break
        else:
            _add(place, token)
        last_end = end
    place.before = last_end
    return place


def _add(place: _Place, token: str) -> None:
    if place.frames:
        place.frames[-1].items.append(token)
