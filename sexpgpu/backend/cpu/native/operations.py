"""What of a plan's steps can share a kernel: elementwise work, reductions of leading or trailing axes, copies.

Flow: `groups` puts operations together that walk over the same rows; `printer` prints a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Final, Literal

from sexpgpu.backend.kernels.nest import collapse
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.rules import attr_int, attr_ints
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.layout import Layout, Strides, contiguous, extent
from sexpgpu.plan.phase import Step

DTYPES = frozenset({"f32", "bf16", "i32", "bool"})
"""What kernels hold in registers; steps with other dtypes are interpreted."""

Kind = Literal["row", "column", "map", "pick"]
ROW: Final = "row"
COLUMN: Final = "column"
MAP: Final = "map"
PICK: Final = "pick"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in memory, seen over the axes of the operation that reads or writes it."""

    layout: Layout
    dtype: str
    shape: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """Bytes of the buffer between which all of it lies."""
        item = ITEM_BYTES[self.dtype]
        low, high = extent(self.shape, self.layout.strides)
        return self.layout.offset_bytes + low * item, self.layout.offset_bytes + (high + 1) * item


@dataclass(frozen=True, slots=True)
class Operation:
    """A step, or a part of one.

    node: names the function. kind: `map`, or which axes a reduction folds: `row` the trailing ones, `column` the
    leading ones or all; `pick`: an element of each row, by its index. shape: of what is walked over. dies: ranges of
    the arena that hold nothing afterwards.
    """

    node: Node
    kind: Kind
    shape: Shape
    inputs: tuple[Operand, ...]
    output: Operand
    dies: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Elements that are walked over."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand lies when it is cut into rows: axes from row to row and within a row, merged where they can.

    A row of elements that are all the same one has no axes. Equal places are the same elements in the same order.
    """

    buffer: str
    offset_bytes: int
    dtype: str
    lead_shape: Shape
    lead: Strides
    row_shape: Shape
    row: Strides

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def is_even(self) -> bool:
        """Whether rows follow one another at one distance."""
        return len(self.lead) <= 1

    @property
    def span(self) -> tuple[int, int]:
        """Bytes of the buffer between which all of it lies."""
        return self._reach(self.lead_shape + self.row_shape, self.lead + self.row)

    @property
    def first_row(self) -> tuple[int, int]:
        """The same of its first row."""
        return self._reach(self.row_shape, self.row)

    @property
    def row_bytes(self) -> int:
        """From row to row; 0 where there is one row, or every row is the same."""
        return self.lead[0] * self.item_bytes if len(self.lead) == 1 else 0

    def _reach(self, shape: Shape, strides: Strides) -> tuple[int, int]:
        low, high = extent(shape, strides)
        return self.offset_bytes + low * self.item_bytes, self.offset_bytes + (high + 1) * self.item_bytes


def place_of(operand: Operand, num_rows: int) -> Place | None:
    """`operand` cut into rows; None where no axis ends there."""
    found = _cut(operand.shape, operand.layout.strides, num_rows)
    return None if found is None else Place(operand.layout.buffer, operand.layout.offset_bytes, operand.dtype, *found)


@lru_cache(maxsize=1 << 14)
def _cut(shape: Shape, strides: Strides, num_rows: int) -> tuple[Shape, Strides, Shape, Strides] | None:
    kept = kept_axes(shape, num_rows)
    if kept is None:
        return None
    lead_shape, (lead,) = collapse(shape[:kept], [strides[:kept]])
    row_shape, (row,) = collapse(shape[kept:], [strides[kept:]])
    if not any(row):
        row_shape, row = (), ()
    return lead_shape, lead, row_shape, row


def kept_axes(shape: Shape, num_rows: int) -> int | None:
    """How many leading axes make up `num_rows`; None where no axis ends there."""
    count = 1
    for kept, size in enumerate((*shape, 0)):
        if count == num_rows:
            return kept
        count *= size
    return None


def operations_of(step: Step) -> list[Operation]:
    """A step as operations, to run in order; empty where it cannot be part of a kernel."""
    node = step.node
    types = (*[v.type for v in node.inputs], *node.types)
    if not node.inputs or any(t.dtype not in DTYPES or not t.size for t in types) or node.bodies:
        return []
    inputs = tuple([_operand(layout, v.type) for layout, v in zip(step.inputs, node.inputs, strict=True)])
    found: list[Operation] = []
    match OPS[node.op].work:
        case Work.MAP if not OPS[node.op].reports:
            output = _operand(step.outputs[0], node.types[0])
            found = [Operation(node, MAP, node.types[0].shape, inputs, output)]
        case Work.REDUCE if OPS[node.op].ufunc is not None:
            found = _reduction(node, inputs[0], _operand(step.outputs[0], node.types[0]))
        case Work.GATHER if node.op == "pick" and attr_int(node.attrs, "axis") == node.inputs[0].rank - 1:
            output = _operand(step.outputs[0], node.types[0])
            found = [Operation(node, PICK, node.types[0].shape, inputs, output)] if node.types[0].rank else []
        case Work.MOVE if node.op == "reshape":
            shape = node.inputs[0].shape
            layout = replace(step.outputs[0], strides=contiguous(shape))
            found = [Operation(node, MAP, shape, inputs, Operand(layout, node.types[0].dtype, shape))]
        case Work.MOVE if node.op == "concat":
            found = _concatenation(node, inputs, step.outputs[0])
    if found:
        found[-1] = replace(found[-1], dies=step.dies)
    return found


def _operand(layout: Layout, type: TensorType) -> Operand:
    return Operand(layout, type.dtype, type.shape)


def _reduction(node: Node, x: Operand, out: Operand) -> list[Operation]:
    axes, rank = attr_ints(node.attrs, "axes"), len(x.shape)
    if not axes:
        return [Operation(node, MAP, x.shape, (x,), out)]
    if axes == tuple(range(len(axes))):
        return [Operation(node, COLUMN, x.shape, (x,), out)]
    if axes == tuple(range(rank - len(axes), rank)):
        return [Operation(node, ROW, x.shape, (x,), out)]
    return []


def _concatenation(node: Node, inputs: tuple[Operand, ...], out: Layout) -> list[Operation]:
    """A copy for each part."""
    axis, item = attr_int(node.attrs, "axis"), ITEM_BYTES[node.types[0].dtype]
    found, start = [], 0
    for x in inputs:
        layout = replace(out, offset_bytes=out.offset_bytes + start * out.strides[axis] * item)
        found.append(Operation(node, MAP, x.shape, (x,), Operand(layout, x.dtype, x.shape)))
        start += x.shape[axis]
    return found
