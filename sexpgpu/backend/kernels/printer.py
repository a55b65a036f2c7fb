"""Kernels of a step in a dialect: which printer its kind of work has, and one unit of text for many kernels.

Flow: a device asks for the launches of each step of a plan, compiles `module_source` of them all, and enqueues them in
order. `cuda` and `msl` have a printer each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sexpgpu.backend.kernels import attention, fusion, leaves, moves, rows
from sexpgpu.backend.kernels.contractions import print_conv, print_product
from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.draws import print_draws
from sexpgpu.backend.kernels.flags import notes, print_tell
from sexpgpu.backend.kernels.fusion import Group
from sexpgpu.backend.kernels.indexed import print_gather
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.maps import print_fill, print_map, table_fits
from sexpgpu.backend.kernels.operands import BASE_BYTES, Argument, arguments
from sexpgpu.backend.kernels.reductions import print_reduce, reduce_bound, reduce_workspace
from sexpgpu.backend.kernels.rows import Program
from sexpgpu.backend.kernels.scans import print_scan, print_scan_of
from sexpgpu.backend.kernels.scatter import print_scatter, scatter_workspace
from sexpgpu.backend.kernels.selects import print_select, select_workspace
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Strides
from sexpgpu.plan.phase import Copy, Step

KINDS = frozenset(
    {
        Work.FILL, Work.MAP, Work.MOVE, Work.REDUCE, Work.SCAN, Work.GATHER, Work.SCATTER, Work.RANDOM,
        Work.CONTRACT, Work.CONV, Work.SELECT,
    }
)  # fmt: skip


def supported(node: Node) -> bool:
    """Whether a printer has kernels for a node: every kind of work but loops and composites.

    Products and convolutions are here for what no library takes. A large constant table is data to upload.
    """
    work = OPS[node.op].work
    return work in KINDS and not node.bodies and (work is not Work.FILL or table_fits(node))


@dataclass(frozen=True, slots=True)
class Printer:
    """What prints the kernels of steps and copies in a dialect."""

    dialect: Dialect

    def print_step(self, step: Step) -> tuple[Launch, ...]:
        """The launches of a step, to run one after the other; none where there is nothing to write.

        Of regions, a running fold with what makes its input is such a step.
        """
        node = step.node
        layouts = tuple([(x.strides, x.offset_bytes % BASE_BYTES) for x in (*step.inputs, *step.outputs)])
        types = (*(v.type for v in node.inputs), *node.types)
        attrs = repr(sorted(node.attrs.items()))
        return _print(self.dialect, _Work(node.op, attrs, node.bodies, types, layouts, step))

    def print_copy(self, copy: Copy) -> tuple[Launch, ...]:
        """The launches of a copy that a plan names (`saves`, `commits`): operand `input` 0 to `output` 0."""
        source = Argument(self.dialect, ("input", 0), copy.type, copy.source)
        return moves.copy(source, Argument(self.dialect, ("output", 0), copy.type, copy.target))

    def print_group(self, group: Group) -> Launch:
        """The kernel of a region of elementwise work; see `fusion.print_group`."""
        return fusion.print_group(self.dialect, group)

    def print_rows(
        self, program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> tuple[Launch, ...]:
        """The kernels of a row program; see `rows.print_rows`."""
        return rows.print_rows(program, inputs, outputs)

    def print_leaves(self, node: Node, packs: bool, num_buffers: int = 1) -> tuple[Launch, ...]:
        """The kernels of leaves; see `leaves.print_leaves`."""
        return leaves.print_leaves(self.dialect, node, packs, num_buffers)

    def print_attention(self, step: Step) -> tuple[Launch, ...]:
        """The kernels of a composite of attention; see `attention`, which tells its workspaces."""
        return attention.print_attention(step.node, *arguments(self.dialect, step))

    def workspace_bytes(self, step: Step) -> tuple[int, ...]:
        """Bytes of each workspace that a step's launches share; what they hold does not matter before or after."""
        inputs, (out, *_) = arguments(self.dialect, step)
        return (*_workspace(step.node, inputs[0] if inputs else out, out), *notes(self.dialect, step.node))

    def workspace_bound(self, node: Node) -> int:
        """The most that the workspaces of a node take together, each rounded up to 16 bytes, whatever its layouts."""
        own: tuple[int, ...] = ()
        match OPS[node.op].work:
            case Work.REDUCE:
                own = (reduce_bound(self.dialect, node),)
            case Work.SCATTER:
                own = scatter_workspace(node)
            case Work.SELECT:
                own = select_workspace(node)
        return sum(-(-size // 16) * 16 for size in (*own, *notes(self.dialect, node)))

    def module_source(self, launches: Iterable[Launch]) -> str:
        """One translation unit of the prelude and each distinct kernel once, in the order of their names."""
        distinct = {launch.name: launch.source for launch in launches}
        return "\n".join([self.dialect.prelude, *(distinct[name] for name in sorted(distinct))])


def _workspace(node: Node, x: Argument, out: Argument) -> tuple[int, ...]:
    match OPS[node.op].work:
        case Work.REDUCE:
            return reduce_workspace(node, x, out)
        case Work.SCATTER:
            return scatter_workspace(node)
        case Work.SELECT:
            return select_workspace(node)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class _Work:
    """All of a step that its kernels depend on, so that equal layers are printed once."""

    op: str
    attrs: str
    bodies: tuple[Graph, ...]
    types: tuple[TensorType, ...]
    layouts: tuple[tuple[Strides, int], ...]
    step: Step = field(compare=False)


@lru_cache(maxsize=4096)
def _print(dialect: Dialect, work: _Work) -> tuple[Launch, ...]:
    inputs, outputs = arguments(dialect, work.step)
    node = work.step.node
    if node.op == "region":
        return print_scan_of(work.step, inputs, outputs[0])
    launches = _printed(node, inputs, outputs)
    if launches and notes(dialect, node):
        number = len(_workspace(node, inputs[0], outputs[0]))
        launches = (*launches, print_tell(dialect, number))
    return launches


def _printed(node: Node, inputs: tuple[Argument, ...], outputs: tuple[Argument, ...]) -> tuple[Launch, ...]:
    out = outputs[0]
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
