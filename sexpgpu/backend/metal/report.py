"""The lowering report: what the device makes of each phase, counted, and which patterns were taken or missed.

Flow: `device.lowering` makes it for `sexpgpu lower`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sexpgpu.backend.kernels.attention import BACKWARD, FORWARD
from sexpgpu.backend.kernels.cut import REASONS, Cut, cut
from sexpgpu.backend.kernels.lowering import Lowered
from sexpgpu.backend.kernels.report import counted, decisions, patterns
from sexpgpu.backend.metal.storage import ITEM_BYTES
from sexpgpu.backend.report import row
from sexpgpu.ir.graph import Node
from sexpgpu.plan.memory import ProgramPlan


def report_lines(plan: ProgramPlan, phases: Sequence[Lowered], missed: Callable[[Node], str | None]) -> list[str]:
    """One row per phase, then what runs as what and why, then the patterns.

    missed: why a composite runs by its body; None where it does not.
    """
    lines = []
    for phase in phases:
        lines.append(row(phase.name, counted(phase, {})))
        if phase.apply is not None:
            lines.append(row("  then, if it holds", counted(phase.apply, {})))
    return [*lines, *decisions(phases, _cut), *patterns(plan.program, missed, _taker)]


def _cut(lowered: Lowered) -> Cut:
    return cut(lowered, REASONS | {"attention": "attention, in kernels of its own"}, ITEM_BYTES)


def _taker(name: str) -> str:
    return "generated kernel" if name in (FORWARD, BACKWARD) else "row program"
