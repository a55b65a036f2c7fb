"""The lowering report: what the device makes of each phase, counted, and which patterns were taken or missed.

Flow: `device.lowering` makes it for `sexpgpu lower` and for the head of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sexpgpu.backend.cuda.attention import BACKWARD, FORWARD
from sexpgpu.backend.cuda.lowering import Attend, Product, is_library_call
from sexpgpu.backend.cuda.traffic import copied_bytes, fewest_bytes, moved_bytes
from sexpgpu.backend.kernels.lowering import Fill, Kernel, Lowered, Move
from sexpgpu.ir.graph import Node
from sexpgpu.plan.memory import ProgramPlan

COLUMN = 24
GB = 10**9


@dataclass(frozen=True)
class Report:
    """What is reported. missed: why no library takes a composite, None where one does."""

    plan: ProgramPlan
    phases: Sequence[Lowered]
    missed: Callable[[Node], str | None]


def row(title: str, text: str) -> str:
    """A row of the report."""
    return f"  {title:<{COLUMN - 1}} {text}"


def report_lines(report: Report) -> list[str]:
    """One row per phase, then the patterns."""
    lines = []
    for phase in report.phases:
        lines.append(row(phase.name, _counted(phase)))
        if phase.apply is not None:
            lines.append(row("  then, if it holds", _counted(phase.apply)))
    return [*lines, *_traffic(report), *_patterns(report)]


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
    kinds = Counter([_kind(action) for action in phase.actions])
    distinct = len({action.launch.name for action in phase.actions if isinstance(action, Kernel)})
    words = [f"{kinds['kernel']} kernels ({distinct} texts)"]
    words += [f"{kinds[name]} {name}" for name in ("products", "attention", "copies", "fills") if kinds[name]]
    fused = sum([isinstance(a, Product) and a.gemm.out_dtype == "bf16" for a in phase.actions])
    if fused:
        words.append(f"{fused} products write bf16")
    return ", ".join(words)


def _kind(action: object) -> str:
    match action:
        case Kernel():
            return "kernel"
        case Product():
            return "products"
        case Attend():
            return "attention"
        case Move():
            return "copies"
        case Fill():
            return "fills"
    raise AssertionError(action)


def _patterns(report: Report) -> list[str]:
    taken: Counter[str] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    for phase in report.plan.program.phases:
        for node in phase.graph.walk():
            if node.op != "composite":
                continue
            reason = report.missed(node)
            name = str(node.attrs["name"])
            if reason is None:
                taken[name] += 1
            else:
                missed[name, reason] += 1
    lines = [
        row("taken", f"{name} × {count}: {'cuDNN' if name in (FORWARD, BACKWARD) else 'row program'}")
        for name, count in taken.items()
    ]
    return lines + [row("missed", f"{name} × {count}: {reason}") for (name, reason), count in missed.items()]
