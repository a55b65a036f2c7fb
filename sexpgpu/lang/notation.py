"""Axis notations: `rearrange "b t (n h d) -> n b h t d"` and `product "b t w, w o -> b t o"`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sexpgpu.ir.types import TypeFault

MAX_NAMES = 52
"""Axes on one side of a notation: more than a tensor may have."""

_TOKEN = re.compile(r"\(|\)|\.\.\.|[^\s()]+")
_NAME = re.compile(r"\.\.\.|[A-Za-z_][\w-]*")
DOTS = ("...",)


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """A rearrangement as three movements: split axes, permute them, join them."""

    split: tuple[int, ...]
    perm: tuple[int, ...]
    joined: tuple[int, ...]


Groups = tuple[tuple[str, ...], ...]


@lru_cache(4096)
def _groups(text: str, notation: str) -> Groups:
    """`b (n h) 1 ...` as (('b',), ('n', 'h'), (), ('...',))."""
    groups: list[tuple[str, ...]] = []
    inside: list[str] | None = None
    for token in _TOKEN.findall(text):
        if token == "(":
            if inside is not None:
                raise TypeFault(f"brackets inside brackets in `{notation}`", "E-FORM-001")
            inside = []
        elif token == ")":
            if inside is None:
                raise TypeFault(f"a closing bracket too many in `{notation}`", "E-FORM-001")
            groups.append(tuple(inside))
            inside = None
        elif token == "1":
            if inside is None:
                groups.append(())
        elif not _NAME.fullmatch(token):
            raise TypeFault(f"`{token}` is no axis name in `{notation}`", "E-FORM-001")
        elif inside is not None:
            if token == "...":
                raise TypeFault(f"`...` stands inside brackets in `{notation}`", "E-FORM-001")
            inside.append(token)
        else:
            groups.append((token,))
    if inside is not None:
        raise TypeFault(f"a bracket is left open in `{notation}`", "E-FORM-001")
    names = [name for group in groups for name in group]
    if len(names) > MAX_NAMES:
        raise TypeFault(f"{len(names)} axes stand on one side of a notation; at most {MAX_NAMES} may", "E-FORM-001")
    for name in names:
        if names.count(name) > 1:
            raise TypeFault(f"the axis `{name}` stands twice on one side of `{notation}`", "E-FORM-001")
    return tuple(groups)


def _dots(groups: Groups, extra: int, first: int = 0) -> Groups:
    """`...` written out as `extra` axes of its own names, counted from `first`."""
    if DOTS not in groups:
        return groups
    found: list[tuple[str, ...]] = []
    for group in groups:
        if group == DOTS:
            found += [(f"...{first + i}",) for i in range(extra)]
        else:
            found.append(group)
    return tuple(found)


def parse_rearrange(notation: str, shape: Sequence[int], sizes: Mapping[str, int]) -> Rearrangement:
    """The movements of `notation` for a tensor of `shape`. Raises TypeFault."""
    if notation.count("->") != 1:
        raise TypeFault(f'`{notation}` is no rearrangement: "axes -> axes"', "E-FORM-001")
    left, right = (_groups(side, notation) for side in notation.split("->"))
    extra = len(shape) - (len(left) - left.count(DOTS))
    if extra < 0 or (extra > 0 and DOTS not in left):
        raise TypeFault(f"`{notation}` names {len(left)} axes, but the shape {_shown(shape)} has {len(shape)}")
    left, right = _dots(left, extra), _dots(right, extra)
    known = dict(sizes)
    for group, size in zip(left, shape, strict=True):
        unknown = [name for name in group if name not in known]
        product = math.prod(known[name] for name in group if name in known)
        if len(unknown) > 1:
            raise TypeFault(f"the sizes of {' and '.join(unknown)} in `{notation}` are open: give `:{unknown[0]} n`")
        if unknown:
            if product == 0 or size % product:
                raise TypeFault(f"an axis of {size} does not split by {product} in `{notation}`")
            known[unknown[0]] = size // product
        elif product != size:
            named = f"({' '.join(group)})" if len(group) != 1 else f"`{group[0]}`"
            raise TypeFault(
                f"the axis {named if group else '1'} of `{notation}` is {product}, but the tensor's is {size}"
            )
    names = [name for group in left for name in group]
    wanted = [name for group in right for name in group]
    for name in sizes:
        if name not in names:
            raise TypeFault(f"`:{name}` is no axis of `{notation}`", "E-FORM-003")
    if sorted(names) != sorted(wanted):
        odd = sorted(set(names) ^ set(wanted))[0]
        shown = "..." if odd.startswith("...") else odd
        raise TypeFault(f"the axis `{shown}` stands on one side only of `{notation}`", "E-FORM-001",
                        "(broadcast x …) repeats an axis, (sum x :axis a) removes one")  # fmt: skip
    return Rearrangement(
        tuple(known[name] for name in names),
        tuple(names.index(name) for name in wanted),
        tuple(math.prod(known[name] for name in group) for group in right),
    )


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product's operands and result as tuples of axis names, `...` written out."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


def parse_product(notation: str, shapes: Sequence[Sequence[int]]) -> Contraction:
    """The axes of `notation` for operands of `shapes`; sizes checked. Raises TypeFault E-TYPE-004."""
    if notation.count("->") != 1:
        raise TypeFault(f'`{notation}` is no product: "axes, axes -> axes"', "E-FORM-001")
    left, right = notation.split("->")
    parts = left.split(",")
    if len(parts) != len(shapes):
        raise TypeFault(f"`{notation}` names {len(parts)} operands, but {len(shapes)} are given", "E-CALL-002")
    open_operands: list[tuple[Groups, int]] = []
    sides = [_groups(part, notation) for part in (*parts, right)]
    if any(len(group) != 1 for groups in sides for group in groups):
        raise TypeFault(f"a product has plain axis names only: `{notation}`", "E-FORM-001", "(rearrange …) first")
    for part, groups, shape in zip(parts, sides, shapes, strict=False):
        extra = len(shape) - (len(groups) - groups.count(DOTS))
        if extra < 0 or (extra > 0 and DOTS not in groups):
            raise TypeFault(
                f"`{part.strip()}` names {len(groups)} axes, but the operand {_shown(shape)} has {len(shape)}",
                "E-TYPE-004",
            )
        open_operands.append((groups, extra))
    # The axes of `...` are counted from the end, so that a shorter shape meets the tail of a longer one.
    num_dots = max(extra for _, extra in open_operands)
    operands = [tuple(g[0] for g in _dots(groups, extra, num_dots - extra)) for groups, extra in open_operands]
    result = tuple(g[0] for g in _dots(sides[-1], num_dots))
    sizes: dict[str, tuple[int, int]] = {}
    for index, (names, shape) in enumerate(zip(operands, shapes, strict=True)):
        for name, size in zip(names, shape, strict=True):
            before = sizes.setdefault(name, (size, index))
            if before[0] != size:
                raise TypeFault(
                    f"`product` joins `{name}`, which is {before[0]} in {_shown(shapes[before[1]])} and {size} in "
                    f"{_shown(shape)}",
                    "E-TYPE-004",
                    f"the notation is `{left.strip()}`: transpose it, or the operand",
                )
    for name in result:
        if name not in sizes:
            raise TypeFault(f"the axis `{name}` of the result is in no operand of `{notation}`", "E-TYPE-004")
    return Contraction(tuple(operands), result)


def _shown(shape: Sequence[int]) -> str:
    return "(" + " ".join(map(str, shape)) + ")"
