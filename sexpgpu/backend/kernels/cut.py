"""The pieces of a lowered phase: a step's launches are one, and so is what happens at the edges of a call.

Flow: a device's `report` counts them, and a session that is profiled times them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sexpgpu.backend.kernels.lowering import Kernel, Lowered
from sexpgpu.backend.pieces import Piece, flops_of, step_bytes, title_of

REASONS = {
    "maps": "elementwise work that reads or feeds one another",
    "rows": "a row program with the elementwise work beside it",
    "leaves": "the same work on many tensors, in one launch",
    "reduce": "a fold of axes that are no rows",
    "gather": "it reads where indices say",
    "scatter": "it writes where indices say",
    "select": "it sorts",
    "random": "it draws numbers",
    "move": "it moves what no window can show",
    "flags": "records of faults are cleared",
    "save": "slots that are read and overwritten are set aside",
    "result": "results are gathered for the host",
    "decide": "whether the call's commits are made",
    "commit": "proposals go into slots",
}
"""Why something runs as it does, by the kind of its launches. Others are work of one operation alone; a
device adds those of its own."""
ALONE = "one operation, alone"
HELPERS = ("pack", "cast")
"""Launches that prepare operands for a library."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A phase in pieces; numbers: of each action, the piece that it belongs to."""

    pieces: tuple[Piece, ...]
    numbers: tuple[int, ...]


def cut(lowered: Lowered, reasons: Mapping[str, str], item_bytes: Mapping[str, int]) -> Cut:
    """The pieces of a phase, in order; of its first pass, where it has two.

    reasons: by kind. item_bytes: by dtype, as stored.
    """
    pieces: list[Piece] = []
    numbers: list[int] = []
    group: list[int] = []
    for position in range(len(lowered.actions)):
        if group and not _belong_together(lowered, group[-1], position):
            pieces.append(_piece(lowered, group, reasons, item_bytes))
            group = []
        group.append(position)
        numbers.append(len(pieces))
    if group:
        pieces.append(_piece(lowered, group, reasons, item_bytes))
    return Cut(tuple(pieces), tuple(numbers))


def _belong_together(lowered: Lowered, one: int, other: int) -> bool:
    step = lowered.steps[one]
    if step is None:
        return lowered.steps[other] is None and lowered.kinds[one] == lowered.kinds[other]
    return step is lowered.steps[other]


def _piece(
    lowered: Lowered, group: Sequence[int], reasons: Mapping[str, str], item_bytes: Mapping[str, int]
) -> Piece:
    kinds = [lowered.kinds[i] for i in group]
    kind = next((kind for kind in kinds if kind not in HELPERS), kinds[0])
    texts = [action.launch.name for action in [lowered.actions[i] for i in group] if isinstance(action, Kernel)]
    text = texts[0] if len(texts) == len(group) else ""
    reason = reasons.get(kind, ALONE)
    step = lowered.steps[group[0]]
    if step is None:
        return Piece(kind, f"{kind} × {len(group)}", reason=reason, text=text)
    node = step.node
    dtype = node.inputs[0].dtype if node.inputs else node.types[0].dtype
    return Piece(
        kind, title_of([node]), node.origin, flops_of([node]), step_bytes(step, item_bytes), dtype, reason, text
    )
