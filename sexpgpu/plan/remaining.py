"""Copies that a plan still makes: values that no window of what is there already could stand for.

Flow: `cli.lower` reports them; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import NOWHERE, Node, Origin
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.memory import ProgramPlan
from sexpgpu.plan.phase import PhasePlan

INTO_SLOTS, SET_ASIDE = "into slots", "set aside"


@dataclass(frozen=True, slots=True)
class Remaining:
    """Copies of one kind in a phase. what: the operation, or what happens at the end of a call. num_bytes: written."""

    phase: str
    what: str
    origin: Origin
    num_bytes: int


def remaining_copies(plan: ProgramPlan) -> list[Remaining]:
    """All of a program, phase by phase, in the order in which they run."""
    found: list[Remaining] = []
    for name, phase in plan.phases.items():
        found += _of_phase(name, phase, plan.profile.item_bytes)
        if phase.apply is not None:
            found += _of_phase(name, phase.apply, plan.profile.item_bytes)
    return found


def _of_phase(name: str, phase: PhasePlan, item_bytes: Mapping[str, int]) -> list[Remaining]:
    def num_bytes(types: Sequence[TensorType]) -> int:
        return sum([type.size * item_bytes[type.dtype] for type in types])

    moves = [step.node for step in phase.steps if _only_moves(step.node)]
    found = [Remaining(name, _name(node), node.origin, num_bytes(node.types)) for node in moves]
    for what, copies in ((SET_ASIDE, phase.saves), (INTO_SLOTS, phase.commits)):
        found += [Remaining(name, what, NOWHERE, num_bytes([copy.type for copy in copies]))] if copies else []
    return found


def _only_moves(node: Node) -> bool:
    """Whether a step moves values and computes nothing."""
    members = [member for body in node.bodies for member in body.nodes] if node.op == "region" else [node]
    works = {OPS[member.op].work for member in members} - {Work.INPUT}
    return works == {Work.MOVE}


def _name(node: Node) -> str:
    return node.bodies[0].nodes[-1].op if node.op == "region" else node.op
