"""A plan as text: S-expressions that the project's own reader reads.

Flow: `sexpgpu lower --print plan` prints it. A value is where it lies: its buffer, the offset of its first element in
bytes, its strides in elements, and its type.

    (plan "cpu" :arena 128 :workspace 0 :peak 4096
      (phase "p" :arena 128 :live 128 :peak-step 1
        (step 0 (sum :axes [0]) :at "file.sx:3:5"
          (reads ("slot:w" 0 [4 1] (f32 3 4)))
          (writes ("arena" 0 [1] (f32 4)))
          (frees))))
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.text import operation_text, quoted
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout
from sexpgpu.plan.memory import ProgramPlan
from sexpgpu.plan.phase import Copy, PhasePlan, Step

Places = Sequence[tuple[Layout, TensorType]]


def plan_text(plan: ProgramPlan) -> str:
    """The plan of a program: every step of every phase with its layouts, then what is copied and given."""
    head = f"(plan {quoted(plan.profile.title)} :arena {plan.arena_bytes} :workspace {plan.workspace_bytes}"
    lines = [f"{head} :peak {plan.peak_bytes}"]
    for name, phase in plan.phases.items():
        lines += _phase("phase", name, phase)
    return "\n".join(lines) + ")"


def _phase(head: str, name: str, phase: PhasePlan) -> list[str]:
    sizes = f":arena {phase.arena_bytes} :live {phase.live_bytes} :peak-step {phase.peak_step}"
    lines = [f"  ({head} {quoted(name)} {sizes}"]
    for number, step in enumerate(phase.steps):
        lines += _step(number, step)
    lines += [_copy("save", copy) for copy in phase.saves]
    lines += [f"    (result {quoted(key)} {_place(place, type)})" for key, (type, place) in phase.results.items()]
    lines += [_copy("commit", copy) for copy in phase.commits]
    if phase.apply is not None:
        lines += _phase("second-pass", name, phase.apply)
    lines[-1] += ")"
    return lines


def _step(number: int, step: Step) -> list[str]:
    node, span = step.node, step.node.origin.place
    at = "" if span is None else f" :at {quoted(str(span))}"
    reads = list(zip(step.inputs, [v.type for v in node.inputs], strict=True))
    frees = " ".join([f"[{start} {num_bytes}]" for start, num_bytes in step.dies])
    return [
        f"    (step {number} {operation_text(node, '      ')}{at}",
        _places("reads", reads),
        _places("writes", list(zip(step.outputs, node.types, strict=True))),
        f"      (frees{' ' if frees else ''}{frees}))",
    ]


def _places(head: str, places: Places) -> str:
    return "      (" + " ".join([head, *[_place(layout, type) for layout, type in places]]) + ")"


def _place(layout: Layout, type: TensorType) -> str:
    strides = " ".join(map(str, layout.strides))
    return f"({quoted(layout.buffer)} {layout.offset_bytes} [{strides}] {type})"


def _copy(head: str, copy: Copy) -> str:
    return f"    ({head} {_place(copy.source, copy.type)} {_place(copy.target, copy.type)})"
