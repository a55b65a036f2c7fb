"""The lowering report: what the device makes of each phase, counted, and which patterns were taken or missed.

Flow: `device.lowering` makes it for `sexpgpu lower` and for the head of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sexpgpu.backend.cuda.attention import BACKWARD, FORWARD
from sexpgpu.backend.cuda.cut import cut
from sexpgpu.backend.cuda.lowering import Attend, Product, is_library_call
from sexpgpu.backend.cuda.traffic import copied_bytes, fewest_bytes, moved_bytes
from sexpgpu.backend.kernels.lowering import Fill, Lowered, Move
from sexpgpu.backend.kernels.report import counted, decisions, patterns
from sexpgpu.backend.report import row
from sexpgpu.ir.graph import Node
from sexpgpu.plan.memory import ProgramPlan

GB = 10**9


@dataclass(frozen=True)
class Report:
    """What is reported. missed: why no library takes a composite, None where one does."""

    plan: ProgramPlan
    phases: Sequence[Lowered]
    missed: Callable[[Node], str | None]


def report_lines(report: Report) -> list[str]:
    """One row per phase, then what runs as what and why, then the patterns."""
    lines = []
    for phase in report.phases:
        lines.append(row(phase.name, _counted(phase)))
        if phase.apply is not None:
            lines.append(row("  then, if it holds", _counted(phase.apply)))
    found = decisions(report.phases, cut)
    return [*lines, *found, *_traffic(report), *patterns(report.plan.program, report.missed, _taker)]


def _traffic(report: Report) -> list[str]:
    """A row for each phase that a step runs: bytes moved, and the fewest that its library calls and slots need."""
    lines = []
    for phase in report.phases:
        if not phase.name.startswith("update."):
            continue
        plan = report.plan.phases[phase.name]
        moved = sum(moved_bytes(plan)) + copied_bytes(plan)
        fewest = fewest_bytes(plan, is_library_call)
        lines.append(row("bytes moved", f"{phase.name}: {moved / GB:.2f} GB, {fewest / GB:.2f} at least"))
    return lines


def _counted(phase: Lowered) -> str:
    line = counted(phase, {Product: "products", Attend: "attention", Move: "copies", Fill: "fills"})
    fused = sum([isinstance(a, Product) and a.gemm.out_dtype == "bf16" for a in phase.actions])
    return f"{line}, {fused} products write bf16" if fused else line


def _taker(name: str) -> str:
    return "cuDNN" if name in (FORWARD, BACKWARD) else "row program"
