"""The pieces of a prepared phase, and their times: what a report of the cpu shows and `--profile` measures.

Flow: `session` cuts a phase where somebody asks, and runs it through a `Timer` while a profile is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sexpgpu.backend.cpu.blocks import BlockCall
from sexpgpu.backend.cpu.native.attention import ATTENTION_TEXTS
from sexpgpu.backend.cpu.native.lowering import Stretch
from sexpgpu.backend.cpu.native.made_of import COLUMNS, MAPS, ROWS, MadeOf
from sexpgpu.backend.cpu.native.operations import DTYPES
from sexpgpu.backend.pieces import Piece, copy_piece, flops_of, step_bytes, title_of
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.plan.phase import PhasePlan, Step

KERNEL, INTERPRETED = "kernels", "interpreted"
LIBRARY = {"products": "products", "convolution": "convolutions", **dict.fromkeys(ATTENTION_TEXTS, "attention")}
"""Kinds of what has a text of its own."""
REASONS = {
    KERNEL: "rows are read, or added to, where indices say",
    "products": "tiles in registers, over panels that are packed first",
    "attention": "whole, so that scores never leave the cache",
    "convolutions": "what a block of results reads is laid out, then multiplied",
    MAPS: "elementwise work and copies over the same elements",
    ROWS: "folds of rows with the elementwise work beside them",
    COLUMNS: "folds of columns with the work that makes what they fold",
}
WHY_NOT = {
    Work.GATHER: "it reads where indices say",
    Work.SCATTER: "it writes where indices say",
    Work.SELECT: "it sorts",
    Work.RANDOM: "it draws numbers",
    Work.SCAN: "a loop; the work inside it is cut in the same way",
    Work.TABLE_SCAN: "a loop over a table",
    Work.FILL: "it fills memory",
}

PreparedCall = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Cut:
    """A phase in pieces. numbers: for each call the piece of each of its actions. copies: whether the last piece is
    what is copied when all is done."""

    pieces: tuple[Piece, ...]
    numbers: tuple[tuple[int, ...], ...]
    copies: bool


def cut(plan: PhasePlan, calls: Sequence[PreparedCall], item_bytes: Mapping[str, int], native: bool) -> Cut:
    """The pieces of a phase whose steps became `calls`. native: whether what could be C is."""
    pieces: list[Piece] = []
    numbers: list[tuple[int, ...]] = []
    position = 0
    for call in calls:
        if isinstance(call, Stretch):
            own: list[int] = []
            for made_of in call.made_of:
                if made_of.nodes:
                    pieces.append(_native_piece(made_of))
                own.append(len(pieces) - 1)
            numbers.append(tuple(own))
            position += len(call.nodes)
            continue
        taken = len(call.nodes) if isinstance(call, BlockCall) else 1
        own_steps = plan.steps[position : position + taken]
        numbers.append((len(pieces),))
        pieces.append(_interpreted_piece(own_steps, item_bytes, native))
        position += taken
    assert position == len(plan.steps), plan.phase.name
    copies = (*plan.saves, *plan.commits)
    if copies:
        pieces.append(copy_piece(copies, item_bytes, "into slots"))
    return Cut(tuple(pieces), tuple(numbers), bool(copies))


def _native_piece(made_of: MadeOf) -> Piece:
    nodes = list(dict.fromkeys(made_of.nodes))
    kind = LIBRARY.get(made_of.function, KERNEL)
    reason = REASONS[made_of.walk or kind]
    text = made_of.function if kind == KERNEL else ""
    return Piece(kind, title_of(nodes), nodes[-1].origin, flops_of(nodes), made_of.num_bytes, reason=reason, text=text)


def _interpreted_piece(steps: Sequence[Step], item_bytes: Mapping[str, int], native: bool) -> Piece:
    nodes = [step.node for step in steps]
    num_bytes = sum([step_bytes(step, item_bytes) for step in steps])
    reason = why_interpreted(nodes[0]) if native else "the interpreter runs everything"
    return Piece(INTERPRETED, title_of(nodes), nodes[-1].origin, flops_of(nodes), num_bytes, reason=reason)


def why_interpreted(node: Node) -> str:
    """Why a step has no C of its own."""
    work = OPS[node.op].work
    if work in WHY_NOT:
        return WHY_NOT[work]
    others = sorted({t.dtype for t in (*[v.type for v in node.inputs], *node.types)} - DTYPES)
    if others:
        return f"kernels have no {', '.join(others)}"
    if work is Work.CONTRACT and node.types[0].dtype == "f32":
        return "its operands lie so that it takes products which are added"
    if work in (Work.CONTRACT, Work.CONV):
        return "only products of f32, and convolutions in one group, have kernels"
    if OPS[node.op].reports:
        return "it checks its operands"
    if work is Work.REDUCE:
        return "it folds axes in the middle, or not by an elementwise function"
    return "there is no C for it"


class Timer:
    """Runs a phase action by action and notes when each piece began and how long it took, in seconds."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self.times: list[tuple[float, float]] = [(0.0, 0.0)] * len(cut.pieces)
        self._last = time.perf_counter()

    def run(self, calls: Sequence[PreparedCall]) -> None:
        """All calls of the phase."""
        self._last = time.perf_counter()
        for call, numbers in zip(calls, self._cut.numbers, strict=True):
            if isinstance(call, Stretch):
                call.run_each(partial(self._note_next, iter(numbers)))
            else:
                call()
                self._note(numbers[0])

    def copies(self, copy: Callable[[], None]) -> None:
        """What is copied at the end."""
        self._last = time.perf_counter()
        copy()
        if self._cut.copies:
            self._note(len(self.times) - 1)

    def _note_next(self, numbers: Iterator[int]) -> None:
        self._note(next(numbers))

    def _note(self, number: int) -> None:
        now = time.perf_counter()
        start, seconds = self.times[number]
        self.times[number] = (start or self._last, seconds + now - self._last)
        self._last = now
