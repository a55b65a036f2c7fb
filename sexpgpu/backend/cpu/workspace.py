"""What NumPy meanings allocate beside their outputs, by kind of work: estimates from above.

Flow: part of the cpu's memory profile; a run's measured peak is compared with the plan that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sexpgpu.backend.cpu.blocks import BLOCK_ELEMENTS
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.convolution import WINDOW_BYTES

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
                # Operands of another dtype, or not laid out as BLAS takes them, are copied; so is the result.
                wide = sum([v.type.size * max(item_bytes[v.dtype], item_bytes[node.types[0].dtype])
                            for v in node.inputs])  # fmt: skip
                return wide + outputs
            case Work.CONV:
                return 2 * inputs + outputs + 2 * WINDOW_BYTES
            case Work.REDUCE | Work.SELECT:
                return result if op.into is not None else result + 2 * inputs
            case Work.GATHER | Work.SCATTER | Work.RANDOM:
                return result + 2 * max(inputs, outputs)
            case Work.SCAN | Work.TABLE_SCAN:
                return result + outputs + sum([_live_bytes(body.nodes, item_bytes) for body in node.bodies])
            case _:
                return result

    return workspace_bytes


def _live_bytes(nodes: tuple[Node, ...], item_bytes: Mapping[str, int]) -> int:
    """All that one trip of a body makes; the plain executor keeps it until the trip ends."""
    return sum([t.size * item_bytes[t.dtype] for node in nodes if node.op != "input" for t in node.types])
