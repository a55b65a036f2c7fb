"""What an action of C is made of, for reports: nothing is decided by it.

Flow: `lowering` notes it beside each action, `backend.cpu.report` makes pieces of it.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from sexpgpu.backend.cpu.native.groups import Group
from sexpgpu.backend.cpu.native.operations import COLUMN, ROW, Place
from sexpgpu.backend.pieces import step_bytes
from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import ITEM_BYTES
from sexpgpu.plan.phase import Step

MAPS, ROWS, COLUMNS = "maps", "rows", "columns"
"""What a kernel walks over: elements, rows that it folds, columns that it folds."""


class MadeOf(NamedTuple):
    """The nodes behind an action, in order, the bytes that it must move, what it walks over if it is a kernel, and the
    C function that does it."""

    nodes: tuple[Node, ...]
    num_bytes: int
    walk: str = ""
    function: str = ""


FOLD = MadeOf((), 0)
"""Of what belongs to the action before it: a fold of its partial results."""


def step_made_of(step: Step) -> MadeOf:
    """Of an action that is a step."""
    return MadeOf((step.node,), step_bytes(step, ITEM_BYTES))


def group_made_of(group: Group) -> MadeOf:
    """Of a kernel: it moves what it loads and what others may read."""
    written = [value.place for value in group.values if not value.private]
    num_bytes = sum([_place_bytes(place) for place in (*group.loaded, *written)])
    kinds = {operation.kind for operation in group.operations}
    walk = ROWS if ROW in kinds else COLUMNS if COLUMN in kinds else MAPS
    nodes = tuple([operation.node for operation in (*group.operations, *group.repeats)])
    return MadeOf(nodes, num_bytes, walk)


def _place_bytes(place: Place) -> int:
    axes = zip(place.lead_shape + place.row_shape, place.lead + place.row, strict=True)
    return prod([size for size, stride in axes if stride]) * place.item_bytes
