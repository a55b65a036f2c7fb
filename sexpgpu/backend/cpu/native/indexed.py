"""Rows of a table by index: read, written over, or added to in the order of the indices.

Threads share the rows that are read, and the columns of what is written, so that each element is folded in order.

Flow: `lowering` asks for the call of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.layout import Layout, is_contiguous
from sexpgpu.plan.phase import Step

COLUMNS = 16
"""Elements of a row that a piece writes, at least: a line of the cache."""

TEXTS = {
    "read_rows": r"""
#include <string.h>
/* a[0] the table, a[1] the indices, a[2] what is made, a[3] see `outside`, then the rows of the table and the bytes of
   one. */
void read_rows(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const i64 size = (i64)a[4], bytes = (i64)a[5];
    const int* const index = (const int*)a[1];
    for (i64 i = begin; i < end; ++i) {
        i64 at = index[i];
        if (at < 0 || at >= size) { outside((u64*)a[3], i, at); at = at < 0 ? 0 : size - 1; }
        memcpy(a[2] + i * bytes, a[0] + at * bytes, bytes);
    }
}
""",
    "write_rows": r"""
/* Columns begin to end of a[0], at the indices a[1], from a[2]; a[3] see `outside`, then rows of the table, elements of
   one, the number of indices, and whether values are added. */
void write_rows(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const i64 size = (i64)a[4], width = (i64)a[5], count = (i64)a[6];
    const int* const index = (const int*)a[1];
    for (i64 i = 0; i < count; ++i) {
        const i64 at = index[i];
        if (at < 0 || at >= size) {
            if (at != -1 && !begin) outside((u64*)a[3], i, at);
            continue;
        }
        float* const to = (float*)a[0] + at * width;
        const float* const from = (const float*)a[2] + i * width;
        i64 c = begin;
        if (a[7]) {
            for (; c + V <= end; c += V) put_f32(to + c, raw_f32(to + c) + raw_f32(from + c));
            for (; c < end; ++c) to[c] = to[c] + from[c];
        } else for (; c < end; ++c) to[c] = from[c];
    }
}
""",
}
"""By the names of the functions."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A call: the function, its operands in memory, numbers behind them, and what is shared in pieces of `piece`.

    size: rows of the table, which indices are checked against. work: about how many elements are moved.
    """

    name: str
    operands: tuple[Layout, ...]
    numbers: tuple[int, ...]
    size: int
    count: int
    piece: int
    work: int


def indexed_of(step: Step) -> Indexed | None:
    """The call for a gather of whole rows, or a scatter into them that sets or adds f32; else None.

    A scatter writes over its output, which has to hold the table before.
    """
    node = step.node
    table, index = node.inputs[0].type, node.inputs[1].type
    if attr_int(node.attrs, "axis") or attr_int(node.attrs, "batch") or index.dtype != "i32" or not index.size:
        return None
    size, width = table.shape[0], prod(table.shape[1:])
    if not width or not _is_dense(index, step.inputs[1]) or not _is_dense(node.types[0], step.outputs[0]):
        return None
    if node.op == "gather":
        if not _is_dense(table, step.inputs[0]):
            return None
        row_bytes = width * ITEM_BYTES[table.dtype]
        work = index.size * width
        piece = max(1, (1 << 14) // row_bytes)
        return Indexed("read_rows", (*step.inputs, step.outputs[0]), (size, row_bytes), size, index.size, piece, work)
    if table.dtype != "f32" or node.attrs["fold"] not in ("set", "add"):
        return None
    if not _is_dense(node.inputs[2].type, step.inputs[2]):
        return None
    written = step.outputs[0], node.types[0]
    if any(_meet(*written, x, v.type) for x, v in zip(step.inputs[1:], node.inputs[1:], strict=True)):
        return None
    numbers = (size, width, index.size, int(node.attrs["fold"] == "add"))
    operands = (step.outputs[0], *step.inputs[1:])
    return Indexed("write_rows", operands, numbers, size, width, max(COLUMNS, -(-width // 8)), index.size * width)


def _is_dense(type: TensorType, layout: Layout) -> bool:
    return is_contiguous(type.shape, layout.strides)


def _meet(one: Layout, one_type: TensorType, other: Layout, other_type: TensorType) -> bool:
    """Whether two dense values share bytes."""
    if one.buffer != other.buffer:
        return False
    ends = [x.offset_bytes + t.size * ITEM_BYTES[t.dtype] for x, t in ((one, one_type), (other, other_type))]
    return one.offset_bytes < ends[1] and other.offset_bytes < ends[0]
