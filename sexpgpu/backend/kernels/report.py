"""Rows of the lowering report that every device with generated kernels has: launches counted, patterns taken or missed.

Flow: a device's `report` puts its own rows beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sexpgpu.backend.kernels.cut import Cut
from sexpgpu.backend.kernels.lowering import Action, Kernel, Lowered
from sexpgpu.backend.pieces import SECOND_PASS, Piece
from sexpgpu.backend.report import decision_rows, row
from sexpgpu.ir.graph import Node
from sexpgpu.ir.program import Program


def counted(phase: Lowered, others: Mapping[type[Action], str]) -> str:
    """The actions of a phase by kind. others: what those that are no kernels are called; the rest is left out."""
    kernels = [action.launch.name for action in phase.actions if isinstance(action, Kernel)]
    kinds = Counter([type(action) for action in phase.actions])
    words = [f"{kinds[kind]} {name}" for kind, name in others.items() if kinds[kind]]
    return ", ".join([f"{len(kernels)} kernels ({len(set(kernels))} texts)", *words])


def decisions(phases: Sequence[Lowered], cut: Callable[[Lowered], Cut]) -> list[str]:
    """What runs as what, and why, over all phases."""
    pieces: dict[str, Sequence[Piece]] = {}
    for phase in phases:
        for part, suffix in zip(phase.passes, ("", SECOND_PASS), strict=False):
            pieces[phase.name + suffix] = cut(part).pieces
    return decision_rows(pieces)


def kernel_texts(phases: Sequence[Lowered]) -> dict[str, str]:
    """The text of each kernel by name, in the order in which they first run."""
    parts = [part for phase in phases for part in phase.passes]
    return {a.launch.name: a.launch.source for part in parts for a in part.actions if isinstance(a, Kernel)}


def patterns(program: Program, missed: Callable[[Node], str | None], taker: Callable[[str], str]) -> list[str]:
    """Composites that are taken whole and those that are not. missed: why; taker: what takes one of a name."""
    taken: Counter[str] = Counter()
    passed: Counter[tuple[str, str]] = Counter()
    for phase in program.phases:
        for node in phase.graph.walk():
            if node.op != "composite":
                continue
            reason = missed(node)
            name = str(node.attrs["name"])
            if reason is None:
                taken[name] += 1
            else:
                passed[name, reason] += 1
    lines = [row("taken", f"{name} × {count}: {taker(name)}") for name, count in taken.items()]
    return lines + [row("missed", f"{name} × {count}: {reason}") for (name, reason), count in passed.items()]
