"""Rows of the lowering report that every device with generated kernels has: launches counted, patterns taken or missed.

Flow: a device's `report` puts its own rows beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from sexpgpu.backend.kernels.lowering import Action, Kernel, Lowered
from sexpgpu.ir.graph import Node
from sexpgpu.ir.program import Program

COLUMN = 24


def row(title: str, text: str) -> str:
    """A row of the report."""
    return f"  {title:<{COLUMN - 1}} {text}"


def counted(phase: Lowered, others: Mapping[type[Action], str]) -> str:
    """The actions of a phase by kind. others: what those that are no kernels are called; the rest is left out."""
    kernels = [action.launch.name for action in phase.actions if isinstance(action, Kernel)]
    kinds = Counter([type(action) for action in phase.actions])
    words = [f"{kinds[kind]} {name}" for kind, name in others.items() if kinds[kind]]
    return ", ".join([f"{len(kernels)} kernels ({len(set(kernels))} texts)", *words])


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
