"""From the plan of a phase to launches on an Apple GPU: the common lowering, with kernels for attention and for copies.

A copy by a command of its own would end the encoder that the launches before it are in. Pure; no address yet.

Flow: `session` binds the launches to memory, `report` counts them.
"""

from __future__ import annotations

from sexpgpu.backend.kernels import attention
from sexpgpu.backend.kernels.launch import Operand as Role
from sexpgpu.backend.kernels.lowering import (
    Lowered,
    Lowering,
    Operand,
    Place,
    Printers,
    Tools,
    Workspace,
    inbox_of,
    partial_workspace,
    place_of,
)
from sexpgpu.ir.graph import Node
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.phase import PhasePlan, Step


def lower(plan: PhasePlan, tools: Tools) -> Lowered:
    """The launches of a phase, its results gathered in the outbox, its commits decided and made."""
    feeds, inbox_bytes = inbox_of(plan, tools.printers.dialect)
    return _Lowering(plan, tools, feeds, inbox_bytes).lower()


def node_workspace(node: Node, printers: Printers) -> int:
    """What a step will need at most, as far as that can be told before its layouts are known."""
    if attends(node):
        return sum([aligned(num_bytes) for num_bytes in attention.workspace_bytes(node)])
    return partial_workspace(node, printers)


def attends(node: Node) -> bool:
    """Whether a node is attention that a kernel takes whole."""
    return attention.is_attention(node) and attention.reason_against(node) is None


class _Lowering(Lowering):
    """The tables of one phase."""

    def own(self, step: Step, workspace: Workspace) -> bool:
        """Attention."""
        if not attends(step.node):
            return False
        known: dict[Role, Place] = {("input", i): place_of(layout) for i, layout in enumerate(step.inputs)}
        known |= {("output", i): place_of(layout) for i, layout in enumerate(step.outputs)}
        for i, num_bytes in enumerate(attention.workspace_bytes(step.node)):
            known["workspace", i] = workspace.take(num_bytes)
        for launch in self.tools.printers.print_attention(step):
            self.launch("attention", launch, known)
        return True

    def move(self, kind: str, source: Operand, target: Operand) -> None:
        """A dense copy is one like any other."""
        self.convert(kind, source, target)
