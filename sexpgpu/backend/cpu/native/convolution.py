"""Convolutions of f32 in one group: what each place of a block of results reads is laid out, and multiplied.

A piece is a block of rows of the result, cut by shapes alone, and one product. The kernel is packed as a matrix first
where it does not lie as one.

Flow: `lowering` asks for the call of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from sexpgpu.backend.cpu.native.products import COMMON, SCRATCH_BYTES, TILE_ROWS
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.convolution import Window, windows
from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.plan.layout import Strides

AXES = 3
BLOCK_ELEMENTS = 1 << 15
"""Elements that a block lays out, about."""
LEAST_ROWS, MOST_ELEMENTS = 48, 1 << 18
"""A block of fewer rows packs the kernel too often, unless its rows are as long as this."""
LEAST_PIECES = 4
DEEPEST = 1 << 22
"""Elements that one result may be the sum of."""

TEXT = (
    COMMON
    + r"""
typedef struct { const i64* read; u32 places, taps; } axis;
typedef struct {
    i64 batch_step, width, channel_step, outputs, depth;
    axis along[3];
} reading;
/* a[0] how x is read, a[1] x, a[2] the kernel as a matrix, a[3] the result. An axis tells for each place and tap how
   far from the start it reads, or a negative number where it reads a zero. */
void convolution(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const reading* h = (const reading*)a[0];
    const axis *u = h->along, *v = h->along + 1, *w = h->along + 2;
    const i64 width = h->width, step = h->channel_step;
    float* at = (float*)scratch;
    for (u32 row = begin; row < end; ++row) {
        const u32 above = row / w->places, k = row % w->places, j = above % v->places;
        const i64 *const us = u->read + above / v->places % u->places * u->taps, *const vs = v->read + j * v->taps;
        const i64* const ws = w->read + k * w->taps;
        const float* const x = (const float*)a[1] + above / v->places / u->places * h->batch_step;
        for (u32 p = 0; p < u->taps; ++p)
        for (u32 q = 0; q < v->taps; ++q)
        for (u32 r = 0; r < w->taps; ++r, at += width) {
            const float* const from = x + us[p] + vs[q] + ws[r];
            i64 c = 0;
            if ((us[p] | vs[q] | ws[r]) < 0) {
                for (; c + V <= width; c += V) put_f32(at + c, SPLAT(vf, 0.0f));
                for (; c < width; ++c) at[c] = 0.0f;
                continue;
            }
            if (step == 1) for (; c + V <= width; c += V) put_f32(at + c, raw_f32(from + c));
            for (; c < width; ++c) at[c] = from[c * step];
        }
    }
    float* const out = (float*)a[3] + begin * h->outputs;
    const i64 rows = end - begin, n = h->outputs, depth = h->depth;
    const float *const read = (float*)scratch, *const kernel = (float*)a[2];
    multiply(rows, n, depth, 1.0f, read, depth, 1, kernel, n, 1, 0, out, n, at);
}
"""
)
ALONG = np.dtype([("read", "u8"), ("places", "u4"), ("taps", "u4")])
READING = np.dtype(
    [(name, "i8") for name in ("batch_step", "width", "channel_step", "outputs", "depth")]
    + [("along", ALONG, AXES)]
)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A call of the kernel. tables: how x is read. rows: of the result. block: rows of a piece. depth: of the sums."""

    tables: tuple[np.ndarray, ...]
    rows: int
    block: int
    depth: int

    @property
    def scratch_bytes(self) -> int:
        """What a thread needs: a block laid out, and to multiply it."""
        return 4 * self.block * self.depth + SCRATCH_BYTES


def has_kernel(node: Node) -> bool:
    """Whether a convolution is one of those that are C."""
    x, kernel = (value.type for value in node.inputs)
    depth, rows = prod(kernel.shape[:-1]), prod(node.types[0].shape[:-1])
    if {x.dtype, kernel.dtype, node.types[0].dtype} != {"f32"} or not (x.size and kernel.size and node.types[0].size):
        return False
    return attr_int(node.attrs, "groups") == 1 and depth <= DEEPEST and rows < 1 << 31


def convolution_of(node: Node, strides: Strides) -> Convolution:
    """The call for a node that has a kernel, given the strides of x in elements, none of them negative."""
    x, kernel, out = node.inputs[0].type, node.inputs[1].type, node.types[0]
    depth = prod(kernel.shape[:-1])
    table = np.zeros(1, READING)
    table["depth"] = depth
    table["batch_step"], table["channel_step"] = strides[0], strides[-1]
    table["width"], table["outputs"] = x.shape[-1], out.shape[-1]
    spatial = windows(x.shape, kernel.shape, node.attrs)
    reads = [np.zeros((1, 1), np.int64)] * (AXES - len(spatial))
    reads += [_reads(w, stride) for w, stride in zip(spatial, strides[1:-1], strict=True)]
    for axis, read in enumerate(reads):
        table["along"][0, axis] = (read.ctypes.data, *read.shape)
    rows = out.size // out.shape[-1]
    return Convolution((table, *reads), rows, _block(depth, rows), depth)


def _block(depth: int, rows: int) -> int:
    """Rows of a piece: by the length of the sums, and a few pieces at least, of whole tiles."""
    block = max(BLOCK_ELEMENTS // depth, min(LEAST_ROWS, max(1, MOST_ELEMENTS // depth)))
    return min(block, -(-rows // (LEAST_PIECES * TILE_ROWS)) * TILE_ROWS)


def _reads(w: Window, step: int) -> np.ndarray:
    """How far from the first element each tap of each place reads; −1 beside and between the elements."""
    at = np.arange(w.places)[:, None] * w.stride + np.arange(w.taps)[None] * w.dilation - w.low
    inside = (at >= 0) & (at < w.spread) & (at % w.input_dilation == 0)
    return np.ascontiguousarray(np.where(inside, at // w.input_dilation * step, -1).astype(np.int64))
