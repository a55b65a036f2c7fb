"""One allocation for all that an opened plan holds, and where each buffer lies in it.

Flow: `session` asks for the layout, allocates its length once, and turns places into addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sexpgpu.backend.kernels.lowering import HALT, OUTBOX, WORKSPACE, Kernel, Lowered, Table
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import SLOT
from sexpgpu.plan.layout import ARENA
from sexpgpu.plan.memory import ProgramPlan

INBOX, TABLES = "inbox", "tables"
REGION_BYTES = 256
"""Of every buffer's start: what libraries and wide accesses may count on."""
HALT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Regions:
    """Offsets of buffers from the start of the allocation, and its length."""

    starts: Mapping[str, int]
    num_bytes: int


def regions(plan: ProgramPlan, phases: Sequence[Lowered], constants: Sequence[Array]) -> Regions:
    """Every buffer of a plan, one after the other."""
    sizes = {SLOT + slot.name: slot.type.size * plan.profile.item_bytes[slot.type.dtype] for slot in plan.program.slots}
    sizes |= {f"constant:{i}": array.nbytes for i, array in enumerate(constants)}
    sizes[TABLES] = sum([table.num_bytes for table in tables(phases)])
    sizes[INBOX] = max([phase.inbox_bytes for phase in phases], default=0)
    sizes[OUTBOX] = max([phase.outbox_bytes for phase in phases], default=0)
    sizes[HALT] = HALT_BYTES
    sizes[ARENA] = plan.arena_bytes
    sizes[WORKSPACE] = max([plan.workspace_bytes, *[phase.workspace_bytes for phase in phases]])
    starts, offset = {}, 0
    for name, num_bytes in sizes.items():
        starts[name] = offset
        offset += -(-num_bytes // REGION_BYTES) * REGION_BYTES
    return Regions(starts, max(offset, REGION_BYTES))


def tables(phases: Iterable[Lowered]) -> list[Table]:
    """The tables of all phases, in order."""
    kernels = [action for phase in phases for action in phase.actions if isinstance(action, Kernel)]
    return [operand for kernel in kernels for operand in kernel.operands if isinstance(operand, Table)]
