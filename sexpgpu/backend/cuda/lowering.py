"""What the cuda device adds to the common lowering: products by cuBLASLt, attention by cuDNN. Pure; no address yet.

Flow: `session` binds these actions to memory; `report` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from sexpgpu.backend.cuda import gemm
from sexpgpu.backend.cuda.attention import Attention, attention_of, attention_within, is_attention, workspace_estimate
from sexpgpu.backend.cuda.blas import DATA_TYPES, WORKSPACE_BYTES, alignment
from sexpgpu.backend.cuda.gemm import Gemm
from sexpgpu.backend.kernels import lowering
from sexpgpu.backend.kernels.lowering import (
    Action,
    Lowered,
    Lowering,
    Operand,
    Place,
    Printers,
    Workspace,
    inbox_of,
    kind_of,
    leader,
    operand_of,
    partial_workspace,
)
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.contract import flop_sizes
from sexpgpu.ir.types import ITEM_BYTES
from sexpgpu.plan.layout import ARENA, Layout, Strides, contiguous
from sexpgpu.plan.phase import PhasePlan, Step
from sexpgpu.plan.regions import ATTENTION, PRODUCT


@dataclass(frozen=True, slots=True)
class Product(Action):
    """A product by cuBLASLt. x, y, out: where the operands of the notation begin. library: its workspace.

    alignment_bytes: of A, B and C.
    """

    gemm: Gemm
    alignment_bytes: tuple[int, int, int]
    x: Place
    y: Place
    out: Place
    library: Place


@dataclass(frozen=True, slots=True)
class Attend(Action):
    """Attention by cuDNN. operands: in the order of the graph's own tensors."""

    attention: Attention
    operands: tuple[Place, ...]
    library: Place


class Tools(lowering.Tools, Protocol):
    """What a phase is lowered with; `session.Toolbox` is one."""

    def attend(self, attention: Attention) -> int | None:
        """The workspace that cuDNN takes for a graph; None: it refuses it."""
        ...

    def multiplies(self, gemm: Gemm, alignment_bytes: tuple[int, int, int]) -> bool:
        """Whether cuBLASLt has an algorithm for a product whose A, B and C are aligned so."""
        ...


def node_workspace(node: Node, printers: Printers) -> int:
    """What a step will need at most, as far as that can be told before its layouts are known."""
    if _attends(node):
        return workspace_estimate(attention_within(_as_placed(node)).node)
    return partial_workspace(node, printers) + (WORKSPACE_BYTES if _is_library_product(leader(node)) else 0)


def is_library_call(node: Node) -> bool:
    """Whether a step is a call of a library."""
    return _attends(node) or kind_of(node) == PRODUCT or _is_library_product(node)


def _attends(node: Node) -> bool:
    return kind_of(node) == ATTENTION or is_attention(node)


def _is_library_product(node: Node) -> bool:
    return OPS[node.op].work is Work.CONTRACT and node.inputs[0].dtype in DATA_TYPES


def _as_placed(node: Node) -> Step:
    """A node as a step whose operands are dense."""
    layouts = [[Layout(ARENA, 0, contiguous(v.shape)) for v in side] for side in (node.inputs, node.outputs)]
    return Step(node, tuple(layouts[0]), tuple(layouts[1]))


def lower(plan: PhasePlan, tools: Tools) -> Lowered:
    """The actions of a phase, its results gathered in the outbox, its commits decided and made."""
    feeds, inbox_bytes = inbox_of(plan, tools.printers.dialect)
    return _Lowering(plan, tools, feeds, inbox_bytes).lower()


@dataclass
class _Lowering(Lowering):
    """The tables of one phase, with what libraries do."""

    tools: Tools

    def own(self, step: Step, workspace: Workspace) -> bool:
        """Attention and products."""
        if _attends(step.node):
            self._attention(attention_within(step), workspace)
        elif kind_of(step.node) == PRODUCT or _is_library_product(step.node):
            self._product(_narrow_product(step) if kind_of(step.node) == PRODUCT else step, workspace)
        else:
            return False
        return True

    # Products.

    def _product(self, step: Step, workspace: Workspace) -> None:
        if not self._multiply(step, workspace):
            self.single(step, workspace, "product kernel")

    def _multiply(self, step: Step, workspace: Workspace) -> bool:
        """Add a product by the library; False where it has none."""
        x, y = (operand_of(v.type, layout) for v, layout in zip(step.node.inputs, step.inputs, strict=True))
        out = operand_of(step.node.types[0], step.outputs[0])
        sides = _cheapest_sides(str(step.node.attrs["spec"]), flop_sizes(step.node), x, y, out)
        if sides is None:
            return False
        found, (packed_x, packed_y, packed_out) = sides
        used = workspace.used
        library = workspace.take(WORKSPACE_BYTES)
        packs: list[tuple[Operand, Operand]] = []
        operands = []
        for operand, strides in ((x, packed_x), (y, packed_y), (out, packed_out)):
            if strides != operand.strides:
                copied = Operand(operand.type, workspace.take(self.num_bytes(operand.type)), strides)
                packs.append((operand, copied))
                operands.append(copied)
            else:
                operands.append(operand)
        first, second, target = operands
        sizes = self._alignment(found, (first.place, second.place, target.place))
        if not self.tools.multiplies(found, sizes):
            workspace.used = used
            return False
        for source, copied in packs:
            if source is not out:
                self.convert("pack", source, copied)
        self.add("product", Product(found, sizes, first.place, second.place, target.place, library))
        self.convert("pack", target, out)
        return True

    def _alignment(self, found: Gemm, places: tuple[Place, Place, Place]) -> tuple[int, int, int]:
        """What A, B and C are aligned to in every launch; buffers begin at multiples of the most that counts."""
        dtypes = (found.dtype, found.dtype, found.out_dtype)
        x, y, out = (
            min([alignment(self.offset(place) + ITEM_BYTES[dtype] * each[side]) for each in found.offsets])
            for side, (place, dtype) in enumerate(zip(places, dtypes, strict=True))
        )
        return (y, x, out) if found.swapped else (x, y, out)

    # Attention.

    def _attention(self, step: Step, workspace: Workspace) -> None:
        """Operands that cuDNN cannot take as they lie, or not in their dtype, go through the workspace."""
        attention = attention_of(step)
        num_bytes = self.tools.attend(attention)
        if num_bytes is None:
            attention = attention_of(step, packed=True)
            num_bytes = self.tools.attend(attention)
        assert num_bytes is not None, (self.plan.phase.name, step.node)
        library = workspace.take(num_bytes)
        values = zip((*step.node.inputs, *step.node.outputs), (*step.inputs, *step.outputs), strict=True)
        own = [operand_of(v.type, layout) for v, layout in values]
        taken = []
        for operand, wanted in zip(own, attention.tensors, strict=True):
            same = wanted.dtype == operand.type.dtype and wanted.strides == operand.strides
            taken.append(
                operand
                if same
                else Operand(
                    operand.type.with_dtype(wanted.dtype),
                    workspace.take(operand.type.size * ITEM_BYTES[wanted.dtype]),
                    wanted.strides,
                )
            )
        num_inputs = len(step.inputs)
        for source, target in zip(own[:num_inputs], taken[:num_inputs], strict=True):
            self.convert("cast", source, target)
        self.add("attention", Attend(attention, tuple([operand.place for operand in taken]), library))
        for target, source in zip(own[num_inputs:], taken[num_inputs:], strict=True):
            self.convert("cast", source, target)


def _narrow_product(step: Step) -> Step:
    """The product of a region as a step that writes bf16."""
    body, led = step.node.bodies[0], leader(step.node)
    layouts = dict(zip(body.inputs, step.inputs, strict=True))
    node = Node(led.id, led.op, led.inputs, led.attrs, step.node.types, (), step.node.origin)
    return Step(node, tuple([layouts[value] for value in led.inputs]), step.outputs)


def _cheapest_sides(
    spec: str, sizes: dict[str, int], x: Operand, y: Operand, out: Operand
) -> tuple[Gemm, tuple[Strides, Strides, Strides]] | None:
    """The product with as few bytes packed first as its layouts allow; None if it is none that cuBLASLt has."""
    if not sizes or 0 in sizes.values():
        return None
    try:
        dense = gemm.packed(spec, sizes)
    except KeyError:
        return None
    own = (x, y, out)
    subsets = [chosen for count in range(4) for chosen in combinations(range(3), count)]
    subsets.sort(key=lambda chosen: sum([own[i].type.num_bytes for i in chosen]))
    for chosen in subsets:
        strides = [dense[i] if i in chosen else own[i].strides for i in range(3)]
        found = gemm.find(spec, sizes, strides[0], strides[1], strides[2], x.type.dtype, out.type.dtype)
        if found is not None:
            return found, (strides[0], strides[1], strides[2])
    return None
