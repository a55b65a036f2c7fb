"""From the plan of a phase to launches on an Apple GPU: the common lowering, with copies that are kernels too.

A copy by a command of its own would end the encoder that the launches before it are in. Pure; no address yet.

Flow: `session` binds the launches to memory, `report` counts them.
"""

from __future__ import annotations

from sexpgpu.backend.kernels.lowering import Lowered, Lowering, Operand, Tools, inbox_of
from sexpgpu.plan.phase import PhasePlan


def lower(plan: PhasePlan, tools: Tools) -> Lowered:
    """The launches of a phase, its results gathered in the outbox, its commits decided and made."""
    feeds, inbox_bytes = inbox_of(plan, tools.printers.dialect)
    return _Lowering(plan, tools, feeds, inbox_bytes).lower()


class _Lowering(Lowering):
    """The tables of one phase."""

    def move(self, kind: str, source: Operand, target: Operand) -> None:
        """A dense copy is one like any other."""
        self.convert(kind, source, target)
