"""Where each buffer of a plan lies in Metal's: the arena in one, what lasts in as few as the longest one allows.

These are the buffers that tables tell of, so their numbers are known before a phase is lowered; the workspace and the
buffer of what belongs to one call come after them.

Flow: `session` asks for it, takes what lasts when it is opened, and arena and workspace for each chunk of calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.lowering import HALT, OUTBOX, WORKSPACE, Kernel, Lowered, Table, inbox_of
from sexpgpu.backend.kernels.msl import MSL
from sexpgpu.ir.program import SLOT
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import ARENA, constant_strides
from sexpgpu.plan.memory import ProgramPlan

INBOX, TABLES = "inbox", "tables"
REGION_BYTES = 256
"""Of every start: what wide accesses count on."""
HALT_BYTES = 64
NUM_BUFFERS = 4
"""Of Metal's, where what lasts fits one."""
ARENA_NUMBER = 0
"""Among Metal's buffers; what lasts comes next."""


@dataclass(frozen=True, slots=True)
class Regions:
    """For each buffer of the plan, the number of Metal's and the byte where it starts; the lengths of Metal's."""

    starts: Mapping[str, tuple[int, int]]
    lengths: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(self.lengths)


def lasting(plan: ProgramPlan, max_bytes: int) -> Regions:
    """The arena, then slots, constants and arguments, one after the other. max_bytes: of one of Metal's buffers."""
    item_bytes = plan.profile.item_bytes
    sizes = {SLOT + slot.name: slot.type.size * item_bytes[slot.type.dtype] for slot in plan.program.slots}
    for i, node in enumerate(plan.constants):
        (type,) = node.types
        kept = [n for n, stride in zip(type.shape, constant_strides(node), strict=True) if stride]
        sizes[f"constant:{i}"] = prod(kept) * item_bytes[type.dtype]
    sizes[INBOX] = max([inbox_of(phase, MSL)[1] for phase in plan.phases.values()], default=0)
    starts, lengths = {ARENA: (ARENA_NUMBER, 0)}, [max(1, plan.arena_bytes), 0]
    for name, num_bytes in sizes.items():
        length = _length(num_bytes)
        if lengths[-1] and lengths[-1] + length > max_bytes:
            lengths.append(0)
        starts[name] = (len(lengths) - 1, lengths[-1])
        lengths[-1] += length
    return Regions(starts, tuple(lengths))


def with_calls(first: Regions, plan: ProgramPlan, phases: Sequence[Lowered]) -> Regions:
    """`first`, then the workspace, then what calls give back with the tables of all phases."""
    number = len(first.lengths)
    starts = {**first.starts, WORKSPACE: (number, 0)}
    workspace = max([plan.workspace_bytes, *[phase.workspace_bytes for phase in phases]])
    sizes = {
        HALT: HALT_BYTES,
        OUTBOX: max([phase.outbox_bytes for phase in phases], default=0),
        TABLES: sum([aligned(table.num_bytes) for table in tables(phases)]),
    }
    end = 0
    for name, num_bytes in sizes.items():
        starts[name] = (number + 1, end)
        end += _length(num_bytes)
    return Regions(starts, (*first.lengths, max(1, workspace), end))


def _length(num_bytes: int) -> int:
    """Of a buffer of the plan; one of no bytes needs a start that is inside."""
    return max(1, -(-num_bytes // REGION_BYTES)) * REGION_BYTES


def tables(phases: Iterable[Lowered]) -> list[Table]:
    """The tables of all phases, in order."""
    kernels = [action for phase in phases for action in phase.actions if isinstance(action, Kernel)]
    return [operand for kernel in kernels for operand in kernel.operands if isinstance(operand, Table)]


def largest_tensor(plan: ProgramPlan) -> str:
    """Shape and dtype of the largest tensor that a program makes or keeps, for a message."""
    types = [slot.type for slot in plan.program.slots]
    types += [type for phase in plan.program.phases for node in phase.graph.nodes for type in node.types]
    largest = max(types, key=lambda type: type.size * plan.profile.item_bytes[type.dtype])
    return f"[{', '.join(map(str, largest.shape))}] {largest.dtype}"
