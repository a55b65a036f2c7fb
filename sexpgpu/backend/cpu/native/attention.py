"""Attention as one kernel, forward and backward: block by block of queries, whose scores never leave the cache.

A piece is some blocks of queries of one head in the forward pass, and a whole head in the backward pass, where blocks
of queries add to the gradients of the keys in order. Keys and values are packed once a piece, and the queries of a
block lie side by side, so that each lane of a vector has its own softmax. Of a causal block only the keys that its last
query sees take part.

Flow: the device keeps these composites whole when it plans; `lowering` asks for the operands of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from sexpgpu.backend.cpu.native.products import COMMON as PRODUCTS
from sexpgpu.backend.cpu.native.products import TILE_COLUMNS
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.ops.rules import attr_int

FORWARD, BACKWARD = "attention", "attention-gradient"
QUERIES = 32
"""Queries of a task of the forward pass: the columns of the widest tile."""
BLOCK = 64
"""Queries of a block of the backward pass: what adds to the gradients of keys at a time."""
MAX_ELEMENTS = 1 << 23
"""Of the keys and values of one head, which every thread packs."""

COMMON = (
    PRODUCTS
    + f"""
#ifndef HEADS
#define HEADS
#define QUERIES {QUERIES}
#define BLOCK {BLOCK}
"""
    r"""
typedef struct {
    i64 queries, keys, width, value_width, causal, blocks;
    double scale;
    i64 step_q, step_k, step_v, step_out, step_g;
    float **q, **k, **v, **out, **lse, **g, **dq, **dk, **dv;
} heads;
F i64 seen_by(const heads* h, i64 query) {
    const i64 n = query + h->keys - h->queries + 1;
    return !h->causal || n > h->keys ? h->keys : n < 0 ? 0 : n;
}
/* How many keys each of V queries sees. */
F vi seen_by_each(const heads* h, i64 query) {
    const vi n = LANES + (int)(query + h->keys - h->queries + 1), all = SPLAT(vi, (int)h->keys);
    return h->causal ? minimum_i(maximum_i(n, SPLAT(vi, 0)), all) : all;
}
F i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
F vf first_of(const float* p, i64 n) { return n >= V ? raw_f32(p) : some_f32(p, n < 0 ? 0 : n); }
/* Memory that begins at *at, with room for a vector behind its end. */
F float* taken(float** at, i64 size) {
    float* const p = *at;
    *at += (size + 2 * V - 1) / V * V;
    return p;
}
/* Lines as packed tiles: as many as a tile has rows side by side, element after element. */
F void tiles_of(const float* x, i64 line, i64 step, i64 lines, i64 depth, float* out) {
    for (i64 i = 0, height; i < lines; i += height) {
        height = next_height(lines - i);
        panel(x + i * line, line, step, height, depth, height, out + i * depth);
    }
}
/* z = alpha a x: tiles of `tiles_of` by TILE_COLUMNS columns: the first `wanted` lines at least, the first `depth`
   elements. */
F void times(
    const float* a, i64 lines, i64 wanted, i64 packed, i64 depth, const float* x, i64 step_x, float alpha,
    float* z, i64 step_z
) {
    for (i64 i = 0, height; i < wanted; i += height) {
        height = next_height(lines - i);
        tile(height, depth, a + i * packed, x, step_x, alpha, 0, TILE_COLUMNS, z + i * step_z, step_z);
    }
}
/* The first `count` columns of x, of `width` lines TILE_COLUMNS apart, become lines of out. */
F void columns_as_lines(const float* x, i64 count, i64 width, float* out, i64 step_out) {
    i64 c = 0;
    for (; c + V <= width; c += V)
        for (i64 q = 0; q < count; q += V) {
            vf r[V];
            EACH for (int i = 0; i < V; ++i) r[i] = raw_f32(x + (c + i) * TILE_COLUMNS + q);
            turn(r);
            EACH for (int i = 0; i < V; ++i) if (q + i < count) put_f32(out + (q + i) * step_out + c, r[i]);
        }
    for (; c < width; ++c) for (i64 q = 0; q < count; ++q) out[q * step_out + c] = x[c * TILE_COLUMNS + q];
}
#endif
"""
)
FORWARD_TEXT = r"""
/* Scores and results are held with queries side by side: a line for each key, a line for each element of a value. */
void attention(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const heads* h = (const heads*)a[0];
    const i64 keys = h->keys, width = h->width, value_width = h->value_width;
    float* at = (float*)scratch;
    float* const k = taken(&at, keys * width);
    float* const v = taken(&at, value_width * keys);
    float* const q = taken(&at, width * TILE_COLUMNS);
    float* const s = taken(&at, keys * TILE_COLUMNS);
    float* const o = taken(&at, value_width * TILE_COLUMNS);
    float* const totals = taken(&at, TILE_COLUMNS);
    i64 packed = -1;
    for (i64 task = begin; task < end; ++task) {
        const i64 head = task / h->blocks, begun = task % h->blocks * QUERIES;
        if (packed != head) {
            tiles_of(h->k[head], h->step_k, 1, keys, width, k);
            /* Values as they lie: a tile has TILE_ROWS of their elements, key after key. */
            tiles_of(h->v[head], 1, h->step_v, value_width, keys, v);
            packed = head;
        }
        for (i64 first = begun; first < smaller(begun + QUERIES, h->queries); first += TILE_COLUMNS) {
            const i64 count = smaller(h->queries - first, TILE_COLUMNS), reach = seen_by(h, first + count - 1);
            panel(h->q[head] + first * h->step_q, h->step_q, 1, count, width, TILE_COLUMNS, q);
            times(k, keys, reach, width, width, q, TILE_COLUMNS, (float)h->scale, s, TILE_COLUMNS);
            const i64 by_all = smaller(seen_by(h, first), reach);
            for (int e = 0; e < TILE_COLUMNS; e += V) {
                const vi seen = seen_by_each(h, first + e);
                vf most = SPLAT(vf, -3.40282347e38f), sums[4];
                for (int i = 0; i < 4; ++i) sums[i] = SPLAT(vf, 0.0f);
                i64 j = 0;
                for (; j < by_all; ++j) most = maximum_f(most, raw_f32(s + j * TILE_COLUMNS + e));
                for (; j < reach; ++j)
                    most = PICK(seen > (int)j, maximum_f(most, raw_f32(s + j * TILE_COLUMNS + e)), most);
                for (j = 0; j < reach; ++j) {
                    float* const to = s + j * TILE_COLUMNS + e;
                    vf p = exp_f(raw_f32(to) - most);
                    if (j >= by_all) p = PICK(seen > (int)j, p, SPLAT(vf, 0.0f));
                    sums[j % 4] = sums[j % 4] + p;
                    put_f32(to, p);
                }
                const vf total = (sums[0] + sums[1]) + (sums[2] + sums[3]), lse = most + log_f(total);
                if (e + V <= count) put_f32(h->lse[head] + first + e, lse);
                else if (e < count) put_some_f32(h->lse[head] + first + e, lse, count - e);
                put_f32(totals + e, maximum_f(total, SPLAT(vf, 1.0e-30f)));
            }
            times(v, value_width, value_width, keys, reach, s, TILE_COLUMNS, 1.0f, o, TILE_COLUMNS);
            for (i64 c = 0; c < value_width; ++c)
                for (int e = 0; e < TILE_COLUMNS; e += V) {
                    float* const to = o + c * TILE_COLUMNS + e;
                    put_f32(to, raw_f32(to) / raw_f32(totals + e));
                }
            columns_as_lines(o, count, value_width, h->out[head] + first * h->step_out, h->step_out);
        }
    }
}
"""
BACKWARD_TEXT = r"""
/* Rows that lie as lines of a block. */
TILES(lines_of_block, BLOCK, 1, 1, 1)
/* z = alpha a x, or z + alpha a x: some lines of a block by its queries or cotangents, in columns as wide as a tile. */
F void add_block(
    const float* a, i64 first, i64 end, i64 block, const float* x, i64 width, float alpha, int add, float* z
) {
    for (i64 i = first, height; i < end; i += height) {
        height = next_height(end - i);
        for (i64 c = 0; c < width; c += TILE_COLUMNS)
            lines_of_block(height, block, a + i * BLOCK, x + c * block, TILE_COLUMNS, alpha, add,
                           smaller(width - c, TILE_COLUMNS), z + i * width + c, width);
    }
}
F void in_columns(const float* x, i64 line, i64 lines, i64 width, float* out) {
    for (i64 c = 0; c < width; c += TILE_COLUMNS)
        panel(x + c, 1, line, smaller(width - c, TILE_COLUMNS), lines, TILE_COLUMNS, out + c * lines);
}
F void clear(float* p, float* end) { for (; p < end; ++p) *p = 0.0f; }
/* s and d hold the weights of a block and their gradients: a line for each key, BLOCK queries side by side. */
void attention_gradient(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const heads* h = (const heads*)a[0];
    const i64 keys = h->keys, width = h->width, value_width = h->value_width;
    const i64 widest = (width > value_width ? width : value_width) + TILE_COLUMNS;
    const float scale = (float)h->scale;
    float* at = (float*)scratch;
    float* const k = taken(&at, keys * width);
    float* const turned_k = taken(&at, keys * width);
    float* const v = taken(&at, keys * value_width);
    float* const q = taken(&at, widest * BLOCK);
    float* const g = taken(&at, widest * BLOCK);
    float* const o = taken(&at, widest * TILE_COLUMNS);
    float* const s = taken(&at, keys * BLOCK);
    float* const d = taken(&at, keys * BLOCK);
    for (i64 head = begin; head < end; ++head) {
        float *const dk = h->dk[head], *const dv = h->dv[head];
        i64 added = 0;
        tiles_of(h->k[head], h->step_k, 1, keys, width, k);
        tiles_of(h->k[head], 1, h->step_k, width, keys, turned_k);
        tiles_of(h->v[head], h->step_v, 1, keys, value_width, v);
        for (i64 begun = 0; begun < h->queries; begun += BLOCK) {
            const i64 block = smaller(h->queries - begun, BLOCK), reach = seen_by(h, begun + block - 1);
            const float* const queries = h->q[head] + begun * h->step_q;
            const float* const cotangents = h->g[head] + begun * h->step_g;
            for (i64 part = 0; part < block; part += TILE_COLUMNS) {
                const i64 first = begun + part, count = smaller(block - part, TILE_COLUMNS);
                const i64 own = seen_by(h, first + count - 1), by_all = smaller(seen_by(h, first), own);
                panel(queries + part * h->step_q, h->step_q, 1, count, width, TILE_COLUMNS, q);
                panel(cotangents + part * h->step_g, h->step_g, 1, count, value_width, TILE_COLUMNS, g);
                panel(h->out[head] + first * h->step_out, h->step_out, 1, count, value_width, TILE_COLUMNS, o);
                times(k, keys, own, width, width, q, TILE_COLUMNS, scale, s + part, BLOCK);
                times(v, keys, own, value_width, value_width, g, TILE_COLUMNS, 1.0f, d + part, BLOCK);
                for (int e = 0; e < TILE_COLUMNS; e += V) {
                    const vi seen = seen_by_each(h, first + e);
                    const vf lse = maximum_f(first_of(h->lse[head] + first + e, count - e), SPLAT(vf, -3.40282347e38f));
                    vf level = SPLAT(vf, 0.0f);
                    for (i64 c = 0; c < value_width; ++c)
                        level = level + raw_f32(o + c * TILE_COLUMNS + e) * raw_f32(g + c * TILE_COLUMNS + e);
                    i64 j = 0;
                    for (; j < own; ++j) {
                        float *const weight = s + j * BLOCK + part + e, *const back = d + j * BLOCK + part + e;
                        vf p = exp_f(raw_f32(weight) - lse), b = (raw_f32(back) - level) * p;
                        if (j >= by_all) {
                            p = PICK(seen > (int)j, p, SPLAT(vf, 0.0f));
                            b = PICK(seen > (int)j, b, SPLAT(vf, 0.0f));
                        }
                        put_f32(weight, p);
                        put_f32(back, b);
                    }
                    for (; j < reach; ++j) {
                        put_f32(s + j * BLOCK + part + e, SPLAT(vf, 0.0f));
                        put_f32(d + j * BLOCK + part + e, SPLAT(vf, 0.0f));
                    }
                }
                times(turned_k, width, width, keys, own, d + part, BLOCK, scale, o, TILE_COLUMNS);
                columns_as_lines(o, count, width, h->dq[head] + first * width, width);
            }
            in_columns(cotangents, h->step_g, block, value_width, g);
            in_columns(queries, h->step_q, block, width, q);
            /* The first block to reach a key begins its sums. */
            add_block(s, 0, added, block, g, value_width, 1.0f, 1, dv);
            add_block(s, added, reach, block, g, value_width, 1.0f, 0, dv);
            add_block(d, 0, added, block, q, width, scale, 1, dk);
            add_block(d, added, reach, block, q, width, scale, 0, dk);
            added = reach;
        }
        clear(dv + added * value_width, dv + keys * value_width);
        clear(dk + added * width, dk + keys * width);
    }
}
"""
ATTENTION_TEXTS = {"attention": COMMON + FORWARD_TEXT, "attention_gradient": COMMON + BACKWARD_TEXT}
"""By the names of the functions."""
HEADS = np.dtype(
    [(name, "i8") for name in ("queries", "keys", "width", "value_width", "causal", "blocks")]
    + [("scale", "f8")]
    + [(name, "i8") for name in ("step_q", "step_k", "step_v", "step_out", "step_g")]
    + [(name, "u8") for name in ("q", "k", "v", "out", "lse", "g", "dq", "dk", "dv")]
)


@dataclass(frozen=True, slots=True)
class Attention:
    """A call of the kernel. tables: what it points into. count: tasks, of which a piece has `piece`.
    flops: of one task."""

    name: str
    tables: tuple[np.ndarray, ...]
    count: int
    piece: int
    flops: int


def is_attention(node: Node) -> bool:
    """Whether a composite is attention that has a kernel: f32, and no mask but the causal one."""
    name = node.attrs.get("name") if node.op == "composite" else None
    num_inputs = {FORWARD: 3, BACKWARD: 6}.get(str(name))
    if num_inputs != len(node.inputs) or any(v.dtype != "f32" or not v.type.size for v in node.inputs):
        return False
    k, v = node.inputs[1].shape, node.inputs[2].shape
    return k[-2] * (k[-1] + v[-1]) <= MAX_ELEMENTS


def scratch_bytes(node: Node) -> int:
    """What a thread needs: packed keys and values, and scores of a block."""
    (keys, width), value_width = node.inputs[1].shape[-2:], node.inputs[2].shape[-1]
    blocks = 2 * keys + 3 * (max(width, value_width) + TILE_COLUMNS)
    return 4 * (keys * (2 * width + value_width) + BLOCK * blocks + 32 * TILE_COLUMNS)


def attention_of(node: Node, inputs: list[Array], outputs: list[Array], num_threads: int) -> Attention | None:
    """The call for a node; None where the elements of a query, key or value do not lie side by side."""
    backward = node.attrs["name"] == BACKWARD
    q, k, v = inputs[:3]
    if backward:
        out, lse, g = inputs[3:]
        made = outputs
    else:
        (out, lse), g, made = outputs, inputs[0], []
    ordered = [q, k, v, g, *made, out]
    if any(not _rows_lie_side_by_side(x) for x in ordered) or any(not _is_dense(x) for x in (*made, lse)):
        return None
    count = prod(q.shape[:-2])
    row = np.zeros(1, HEADS)
    queries, keys = q.shape[-2], k.shape[-2]
    blocks = -(-queries // QUERIES)
    sizes = {"queries": queries, "keys": keys, "width": q.shape[-1], "value_width": v.shape[-1]}
    for name, number in (sizes | {"blocks": blocks, "causal": attr_int(node.attrs, "causal")}).items():
        row[name] = number
    row["scale"] = node.attrs["scale"]
    for name, x in (("step_q", q), ("step_k", k), ("step_v", v), ("step_out", out), ("step_g", g)):
        row[name] = max(x.strides[-2] // 4, x.shape[-1])
    tables = [row]
    named = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "g": g}
    named |= dict(zip(("dq", "dk", "dv"), made, strict=False))
    for name, x in named.items():
        table = _starts(x, q.ndim - 2)
        tables.append(table)
        row[name] = table.ctypes.data
    work = 2 * queries * keys * (q.shape[-1] + v.shape[-1])
    if backward:
        return Attention("attention_gradient", tuple(tables), count, 1, 5 * work // 2)
    piece = max(1, min(blocks, count * blocks // (2 * num_threads)))
    return Attention("attention", tuple(tables), count * blocks, piece, work // blocks)


def _rows_lie_side_by_side(x: Array) -> bool:
    if x.shape[-1] != 1 and x.strides[-1] != 4:
        return False
    return x.shape[-2] == 1 or (x.strides[-2] % 4 == 0 and x.strides[-2] // 4 >= x.shape[-1])


def _is_dense(x: Array) -> bool:
    return bool(x.flags.c_contiguous)


def _starts(x: Array, num_batch: int) -> np.ndarray:
    """Where each head begins."""
    places = np.zeros(x.shape[:num_batch], np.int64)
    for axis, (size, stride) in enumerate(zip(x.shape[:num_batch], x.strides[:num_batch], strict=True)):
        shape = [1] * num_batch
        shape[axis] = size
        places += (np.arange(size, dtype=np.int64) * stride).reshape(shape)
    return np.ascontiguousarray(places.reshape(-1) + x.ctypes.data).astype(np.uint64)
