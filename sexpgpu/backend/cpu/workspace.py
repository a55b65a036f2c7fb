"""What NumPy meanings allocate beside their outputs, by kind of work: estimates from above.

Flow: part of the cpu's memory profile; a run's measured peak is compared with the plan that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sexpgpu.backend.cpu.blocks import BLOCK_ELEMENTS
from sexpgpu.backend.cpu.bodies import is_loop, plan_body
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.convolution import WINDOW_BYTES
from sexpgpu.ir.ops.index import ELEMENTS_AT_A_TIME
from sexpgpu.ir.ops.random import BLOCKS_AT_A_TIME
from sexpgpu.ir.ops.scan import split

TEMPORARIES = 8
"""Arrays of double precision that an elementwise meaning without `into` holds at once; `erf` is the worst."""


def estimator(item_bytes: Mapping[str, int], num_threads: int) -> Callable[[Node], int]:
    """The estimate for a node, by the storage of each dtype and the threads that share elementwise work."""

    def workspace_bytes(node: Node) -> int:
        op = OPS[node.op]
        inputs = sum([v.type.size * item_bytes[v.dtype] for v in node.inputs])
        outputs = sum([t.size * item_bytes[t.dtype] for t in node.types])
        result = 0 if op.into is not None else outputs
        match op.work:
            case Work.MAP:
                # In blocks: see `blocks`.
                elements = min(node.types[0].size, BLOCK_ELEMENTS * num_threads)
                return elements * 8 * (1 if op.into is not None else TEMPORARIES)
            case Work.CONTRACT:
                # Operands of another dtype are converted; of the same one they are seldom copied.
                out = node.types[0]
                return sum([v.type.size * item_bytes[out.dtype] for v in node.inputs if v.dtype != out.dtype])
            case Work.CONV:
                return 2 * inputs + outputs + 2 * WINDOW_BYTES
            case Work.REDUCE:
                return result if op.into is not None else result + 2 * inputs
            case Work.SELECT:
                # The order in 64 bits, as NumPy gives it, turned about, and a copy of what is sorted.
                return result + 2 * inputs + 24 * node.inputs[0].type.size
            case Work.GATHER:
                return result + outputs
            case Work.SCATTER:
                values = node.inputs[2].type
                return result + 2 * values.size * item_bytes[values.dtype] + 16 * ELEMENTS_AT_A_TIME
            case Work.RANDOM:
                # In parts, each held as eight words of 64 bits a block.
                blocks = min(node.types[0].size // 4 + 1, BLOCKS_AT_A_TIME * num_threads)
                return blocks * 8 * 8
            case Work.SCAN if node.bodies:
                # What steps of the body need beside its memory, and carries that change places.
                steps = plan_body(node.bodies[0], item_bytes).plan.steps
                carries = sum([t.size * item_bytes[t.dtype] for t in node.types[: split(node)[0]]])
                return carries + max([workspace_bytes(step.node) for step in steps], default=0)
            case Work.SCAN | Work.TABLE_SCAN:
                return result + outputs
            case _:
                return result

    return workspace_bytes


def loop_bytes(item_bytes: Mapping[str, int]) -> Callable[[Node], int]:
    """The memory of a loop's body, of the bodies inside it too; 0 of any other node."""

    def bytes_of(node: Node) -> int:
        return plan_body(node.bodies[0], item_bytes).total_bytes if is_loop(node) else 0

    return bytes_of


STEP_BYTES = 3072
"""Views, calls and tables that the interpreter keeps for one step: measured over programs of many steps."""
FIXED_BYTES = 1 << 20
"""Threads, and what NumPy and BLAS allocate when first used."""


def runtime_bytes(num_steps: int) -> int:
    """What the interpreter keeps for a plan of `num_steps` steps, beside tensors."""
    return FIXED_BYTES + STEP_BYTES * num_steps
