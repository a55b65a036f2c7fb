"""CUDA C++ for a step: which printer its kind of work has, and one unit of text for many kernels.

Flow: the cuda device asks for the launches of each step of a plan, compiles `module_source` of them all with
NVRTC (with `NVRTC_OPTIONS`, no fast math), and enqueues them in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from sexpgpu.backend.kernels import moves
from sexpgpu.backend.kernels.contractions import print_conv, print_product
from sexpgpu.backend.kernels.draws import print_draws
from sexpgpu.backend.kernels.flags import FLAG_BYTES, FLAG_WORDS, Flag, flag_message, flagged, read_flag
from sexpgpu.backend.kernels.indexed import print_gather
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.maps import print_fill, print_map, table_fits
from sexpgpu.backend.kernels.operands import BASE_BYTES, Argument, arguments
from sexpgpu.backend.kernels.prelude import PRELUDE
from sexpgpu.backend.kernels.reductions import print_reduce, reduce_bound, reduce_workspace
from sexpgpu.backend.kernels.scans import print_scan
from sexpgpu.backend.kernels.scatter import print_scatter, scatter_workspace
from sexpgpu.backend.kernels.selects import print_select, select_workspace
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Strides
from sexpgpu.plan.phase import Copy, Step

__all__ = [
    "FLAG_BYTES",
    "FLAG_WORDS",
    "NVRTC_OPTIONS",
    "Flag",
    "flag_message",
    "flagged",
    "module_source",
    "print_copy",
    "print_step",
    "read_flag",
    "supported",
    "workspace_bound",
    "workspace_bytes",
]

NVRTC_OPTIONS = ("--std=c++17", "--fmad=false", "--diag-suppress=177")
"""What the texts are written for, beside the architecture. 177 tells of names that a text does not use."""

KINDS = frozenset(
    {
        Work.FILL, Work.MAP, Work.MOVE, Work.REDUCE, Work.SCAN, Work.GATHER, Work.SCATTER, Work.RANDOM,
        Work.CONTRACT, Work.CONV, Work.SELECT,
    }
)  # fmt: skip


def supported(node: Node) -> bool:
    """Whether `print_step` has kernels for a node: every kind of work but loops and composites.

    Products and convolutions are here for what no library takes. A large constant table is data to upload.
    """
    work = OPS[node.op].work
    return work in KINDS and not node.bodies and (work is not Work.FILL or table_fits(node))


def print_step(step: Step) -> tuple[Launch, ...]:
    """The launches of a step, to run one after the other; none where there is nothing to write."""
    node = step.node
    layouts = tuple([(x.strides, x.offset_bytes % BASE_BYTES) for x in (*step.inputs, *step.outputs)])
    types = (*(v.type for v in node.inputs), *node.types)
    return _print(_Work(node.op, repr(sorted(node.attrs.items())), types, layouts, step))


@dataclass(frozen=True, slots=True)
class _Work:
    """All of a step that its kernels depend on, so that equal layers are printed once."""

    op: str
    attrs: str
    types: tuple[TensorType, ...]
    layouts: tuple[tuple[Strides, int], ...]
    step: Step = field(compare=False)


@lru_cache(maxsize=4096)
def _print(work: _Work) -> tuple[Launch, ...]:
    step = work.step
    inputs, outputs = arguments(step)
    node, out = step.node, outputs[0]
    match OPS[node.op].work:
        case Work.FILL:
            return print_fill(node, out)
        case Work.MAP:
            return print_map(node, inputs, out)
        case Work.MOVE:
            return moves.print_move(node, inputs, out)
        case Work.REDUCE:
            return print_reduce(node, inputs[0], out)
        case Work.SCAN:
            return print_scan(node, inputs[0], out)
        case Work.GATHER:
            return print_gather(node, inputs, out)
        case Work.SCATTER:
            return print_scatter(node, inputs, out)
        case Work.RANDOM:
            return print_draws(node, inputs, out)
        case Work.CONTRACT:
            return print_product(node, inputs, out)
        case Work.CONV:
            return print_conv(node, inputs, out)
        case Work.SELECT:
            return print_select(node, inputs, outputs)
        case other:
            raise AssertionError(f"no kernel for {other} of {node}")


def print_copy(copy: Copy) -> tuple[Launch, ...]:
    """The launches of a copy that a plan names (`saves`, `commits`): operand `input` 0 to `output` 0."""
    return moves.copy(Argument(("input", 0), copy.type, copy.source), Argument(("output", 0), copy.type, copy.target))


def workspace_bytes(step: Step) -> tuple[int, ...]:
    """Bytes of each workspace that the launches of a step share; what they hold does not matter before or after."""
    inputs, (out, *_) = arguments(step)
    match OPS[step.node.op].work:
        case Work.REDUCE:
            return reduce_workspace(step.node, inputs[0], out)
        case Work.SCATTER:
            return scatter_workspace(step.node)
        case Work.SELECT:
            return select_workspace(step.node)
        case _:
            return ()


def workspace_bound(node: Node) -> int:
    """The most that the workspaces of a node take together, each rounded up to 16 bytes, whatever its layouts."""
    match OPS[node.op].work:
        case Work.REDUCE:
            return reduce_bound(node)
        case Work.SCATTER:
            return sum(-(-size // 16) * 16 for size in scatter_workspace(node))
        case Work.SELECT:
            return sum(-(-size // 16) * 16 for size in select_workspace(node))
        case _:
            return 0


def module_source(launches: Iterable[Launch]) -> str:
    """One translation unit of the prelude and each distinct kernel once, in the order of their names."""
    distinct = {launch.name: launch.source for launch in launches}
    return "\n".join([PRELUDE, *(distinct[name] for name in sorted(distinct))])
