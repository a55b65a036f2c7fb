"""Kernels of a text, read from the text itself: their parameters, and the shared arrays that they declare.

Flow: `unit` makes the call of a kernel of its signature, and moves its shared arrays into the arena of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Dialect = Literal["cuda", "msl"]

HEADS = {
    "cuda": re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\('),
    "msl": re.compile(
        r"(?:\[\[[^\]]*\]\]\s*)?\bkernel\s+(?:\[\[[^\]]*\]\]\s*)?void\s+(?:\[\[[^\]]*\]\]\s*)?(\w+)\s*(?:\[\[[^\]]*\]\]\s*)?\("
    ),
}
SHARED = {"cuda": "__shared__", "msl": "threadgroup"}
_TYPE = r"(?:const\s+)?[A-Za-z_]\w*(?:\s*<[^;{}()]*?>)?"
_NAMES = r"\w+\s*(?:\[[^\]]*\]\s*)*(?:,\s*\w+\s*(?:\[[^\]]*\]\s*)*)*"
_ATTRIBUTE = re.compile(r"\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]")

POSITIONS = {
    "thread_position_in_grid": "lanes_position_in_grid()",
    "thread_position_in_threadgroup": "lanes_state.current->in_group",
    "threadgroup_position_in_grid": "lanes_state.group",
    "threads_per_threadgroup": "lanes_state.group_size",
    "threadgroups_per_grid": "lanes_state.num_groups",
}
NUMBERS = {
    "thread_index_in_threadgroup": "lanes_state.current->index",
    "thread_index_in_simdgroup": "lanes_state.current->lane",
    "simdgroup_index_in_threadgroup": "lanes_state.current->warp",
    "threads_per_simdgroup": "32u",
    "simdgroups_per_threadgroup": "((lanes::num_lanes() + 31u) / 32u)",
}


class Refused(Exception):
    """A text that is no kernel: by its signature, by a text rule, or by a compiler."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """type: as spelt, without the name. attribute: of MSL, with its number; "" in CUDA, where the order counts."""

    type: str
    name: str
    attribute: str
    number: int

    @property
    def is_buffer(self) -> bool:
        return self.attribute in ("", "buffer")


@dataclass(frozen=True, slots=True)
class SharedArray:
    """One declarator of shared memory; `start` and `stop` of its statement in the text."""

    type: str
    name: str
    sizes: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """start: where the text of its head begins; body, stop: its braces."""

    name: str
    parameters: tuple[Parameter, ...]
    arrays: tuple[SharedArray, ...]
    start: int
    body: int
    stop: int


def without_comments(text: str) -> str:
    """The text with blanks in place of comments, so that places stay."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def closing(text: str, place: int) -> int:
    """The place of the bracket that closes the one at `place`."""
    depth, pairs = 0, {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}
    for i in range(place, len(text)):
        depth += pairs.get(text[i], 0)
        if depth == 0:
            return i
    raise Refused("brackets do not match")


def split(text: str) -> list[str]:
    """Parts between commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "(<[{") - (c in ")>]}")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def kernels_of(text: str, dialect: Dialect) -> list[Kernel]:
    """The kernels of a text in their order; Refused for a signature that no host can call."""
    plain = without_comments(text)
    found = []
    for head in HEADS[dialect].finditer(plain):
        stop = closing(plain, head.end() - 1)
        body = plain.find("{", stop)
        if body < 0 or plain[stop + 1 : body].strip():
            raise Refused(f"{head[1]}: a kernel without a body")
        end = closing(plain, body)
        parameters = [_parameter(head[1], part, i, dialect) for i, part in enumerate(split(plain[head.end() : stop]))]
        _check(head[1], parameters, dialect)
        found.append(Kernel(head[1], tuple(parameters), _arrays(plain, body, end, dialect), head.start(), body, end))
    return found


def _parameter(kernel: str, text: str, place: int, dialect: Dialect) -> Parameter:
    attribute = _ATTRIBUTE.search(text)
    declared = text[: attribute.start()].strip() if attribute else text
    named = re.fullmatch(r"(.*[\s*&])(\w+)", declared, re.S)
    if named is None:
        raise Refused(f"{kernel}: a parameter without a name: {text}")
    type, name = " ".join(named[1].split()), named[2]
    if dialect == "cuda":
        return Parameter(type, name, "", place)
    if attribute is None:
        raise Refused(f"{kernel}: a parameter without an attribute: {text}")
    return Parameter(type, name, attribute[1], int(attribute[2] or 0))


def _check(kernel: str, parameters: Sequence[Parameter], dialect: Dialect) -> None:
    if dialect == "cuda":
        return
    numbers: set[int] = set()
    for p in parameters:
        if p.attribute in POSITIONS or p.attribute in NUMBERS:
            if not re.fullmatch(r"(uint|ushort)[23]?", p.type) or (p.attribute in NUMBERS and p.type[-1].isdigit()):
                raise Refused(f"{kernel}: {p.attribute} as {p.type}")
            continue
        if p.attribute != "buffer":
            raise Refused(f"{kernel}: unknown attribute {p.attribute}")
        if p.number in numbers or p.number > 30:
            raise Refused(f"{kernel}: buffer number {p.number} is taken or above 30")
        numbers.add(p.number)
        if not p.type.endswith(("*", "&")):
            raise Refused(f"{kernel}: {p.name} is passed by value")
        if not re.match(r"(const\s+)?(volatile\s+)?(device|constant)\b", p.type):
            raise Refused(f"{kernel}: {p.name} points into no address space")


def _arrays(text: str, start: int, stop: int, dialect: Dialect) -> tuple[SharedArray, ...]:
    found = []
    for m in re.finditer(rf"\b{SHARED[dialect]}\s+({_TYPE})\s+({_NAMES});", text[start:stop]):
        for part in split(m[2]):
            name, _, sizes = part.partition("[")
            spelt = f"[{sizes.strip()}" if sizes else ""
            found.append(SharedArray(m[1], name.strip(), spelt, start + m.start(), start + m.end()))
    return tuple(found)
