"""Attention as one kernel, forward and backward: block by block of queries, whose scores never leave the cache.

A piece is a block of queries of one head in the forward pass, and a whole head in the backward pass, where blocks of
queries add to the gradients of the keys in order. The products of a block are calls of the BLAS library; of a causal
block only the keys that its last query sees take part.

Flow: the device keeps these composites whole when it plans; `lowering` asks for the operands of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from sexpgpu.backend.cpu.native.blas import Blas
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.ops.rules import attr_int

FORWARD, BACKWARD = "attention", "attention-gradient"
BLOCK_SCORES = 1 << 16
"""Scores of a block of queries, about: two such arrays fit the second level of a cache."""
MOST_QUERIES = 128
LEAST_QUERIES = 16

COMMON = r"""
#ifndef HEADS
#define HEADS
typedef void (*sgemm64)(int, int, int, i64, i64, i64, float, const float*, i64, const float*, i64, float, float*, i64);
typedef void (*sgemm32)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
typedef struct {
    void* blas;
    i64 wide, queries, keys, width, value_width, causal, block, blocks;
    double scale;
    i64 step_q, step_k, step_v, step_g, step_s;
    float **q, **k, **v, **out, **lse, **g, **dq, **dk, **dv;
} heads;
/* z = alpha x y + beta z, where x or y may lie column by column. */
F void multiply(const heads* h, int turn_x, int turn_y, i64 m, i64 n, i64 depth, float alpha,
                const float* x, i64 step_x, const float* y, i64 step_y, float beta, float* z, i64 step_z) {
    const int tx = turn_x ? 112 : 111, ty = turn_y ? 112 : 111;
    if (!m || !n) return;
    if (h->wide) ((sgemm64)h->blas)(101, tx, ty, m, n, depth, alpha, x, step_x, y, step_y, beta, z, step_z);
    else ((sgemm32)h->blas)(101, tx, ty, m, n, depth, alpha, x, step_x, y, step_y, beta, z, step_z);
}
F i64 seen_by(const heads* h, i64 query) {
    const i64 n = query + h->keys - h->queries + 1;
    return !h->causal || n > h->keys ? h->keys : n < 0 ? 0 : n;
}
F vf row_part(const float* p, i64 c, i64 n, float other) {
    if (c + V <= n) return raw_f32(p + c);
    vf v = SPLAT(vf, other);
    for (int e = 0; c + e < n; ++e) v[e] = p[c + e];
    return v;
}
F void put_row_part(float* p, i64 c, i64 n, vf v) {
    if (c + V <= n) put_f32(p + c, v);
    else for (int e = 0; c + e < n; ++e) p[c + e] = v[e];
}
#endif
"""
FORWARD_TEXT = r"""
void attention(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const heads* h = (const heads*)a[0];
    float* const s = (float*)scratch;
    float* const totals = s + h->block * h->step_s;
    for (i64 task = begin; task < end; ++task) {
        const i64 head = task / h->blocks, first = task % h->blocks * h->block;
        const i64 last = first + h->block < h->queries ? first + h->block : h->queries, reach = seen_by(h, last - 1);
        float* const out = h->out[head] + first * h->value_width;
        multiply(h, 0, 1, last - first, reach, h->width, (float)h->scale, h->q[head] + first * h->step_q, h->step_q,
                 h->k[head], h->step_k, 0.0f, s, h->step_s);
        for (i64 t = first; t < last; ++t) {
            float* const row = s + (t - first) * h->step_s;
            const i64 n = seen_by(h, t);
            vf most[SUMS / V], sum[SUMS / V];
            for (int e = 0; e < SUMS / V; ++e) { most[e] = SPLAT(vf, -3.40282347e38f); sum[e] = SPLAT(vf, 0.0f); }
            for (i64 c = 0; c < n; c += V) {
                const int e = (c / V) % (SUMS / V);
                most[e] = maximum_f(most[e], PICK(below(n - c), raw_f32(row + c), most[e]));
            }
            const vf m = fold_max_f(most);
            i64 c = 0;
            for (; c < n; c += V) {
                const int e = (c / V) % (SUMS / V);
                const vf p = PICK(below(n - c), exp_f(raw_f32(row + c) - m), SPLAT(vf, 0.0f));
                sum[e] = sum[e] + p;
                put_f32(row + c, p);
            }
            for (; c < reach; c += V) put_f32(row + c, SPLAT(vf, 0.0f));
            const vf total = fold_sum_f(sum);
            h->lse[head][t] = (m + log_f(total))[0];
            totals[t - first] = maximum_f(total, SPLAT(vf, 1.0e-30f))[0];
        }
        if (!reach) {
            for (i64 i = 0; i < (last - first) * h->value_width; ++i) out[i] = 0.0f;
            continue;
        }
        multiply(h, 0, 0, last - first, h->value_width, reach, 1.0f, s, h->step_s, h->v[head], h->step_v, 0.0f, out,
                 h->value_width);
        for (i64 t = first; t < last; ++t) {
            const vf by = SPLAT(vf, totals[t - first]);
            float* const row = out + (t - first) * h->value_width;
            for (i64 c = 0; c < h->value_width; c += V)
                put_row_part(row, c, h->value_width, row_part(row, c, h->value_width, 0.0f) / by);
        }
    }
}
"""
BACKWARD_TEXT = r"""
void attention_gradient(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    const heads* h = (const heads*)a[0];
    float* const s = (float*)scratch;
    float* const d = s + h->block * h->step_s;
    const float scale = (float)h->scale;
    const i64 width = h->value_width;
    for (i64 head = begin; head < end; ++head) {
        for (i64 i = 0; i < h->keys * h->width; ++i) h->dk[head][i] = 0.0f;
        for (i64 i = 0; i < h->keys * h->value_width; ++i) h->dv[head][i] = 0.0f;
        for (i64 first = 0; first < h->queries; first += h->block) {
            const i64 last = first + h->block < h->queries ? first + h->block : h->queries, count = last - first;
            const i64 reach = seen_by(h, last - 1);
            const float* const q = h->q[head] + first * h->step_q;
            const float* const g = h->g[head] + first * h->step_g;
            float* const dq = h->dq[head] + first * h->width;
            if (!reach) {
                for (i64 i = 0; i < count * h->width; ++i) dq[i] = 0.0f;
                continue;
            }
            multiply(h, 0, 1, count, reach, h->width, scale, q, h->step_q, h->k[head], h->step_k, 0.0f, s, h->step_s);
            multiply(h, 0, 1, count, reach, width, 1.0f, g, h->step_g, h->v[head], h->step_v, 0.0f, d, h->step_s);
            for (i64 t = first; t < last; ++t) {
                float* const row = s + (t - first) * h->step_s;
                float* const back = d + (t - first) * h->step_s;
                const float* const out = h->out[head] + t * h->value_width;
                const float* const cotangent = g + (t - first) * h->step_g;
                const i64 n = seen_by(h, t);
                const vf lse = maximum_f(SPLAT(vf, h->lse[head][t]), SPLAT(vf, -3.40282347e38f));
                vf sum[SUMS / V];
                for (int e = 0; e < SUMS / V; ++e) sum[e] = SPLAT(vf, 0.0f);
                for (i64 c = 0; c < width; c += V) {
                    const int e = (c / V) % (SUMS / V);
                    sum[e] = sum[e] + row_part(out, c, width, 0.0f) * row_part(cotangent, c, width, 0.0f);
                }
                const vf level = fold_sum_f(sum);
                i64 c = 0;
                for (; c < n; c += V) {
                    const vi shown = below(n - c);
                    const vf p = PICK(shown, exp_f(raw_f32(row + c) - lse), SPLAT(vf, 0.0f));
                    put_f32(row + c, p);
                    put_f32(back + c, PICK(shown, (raw_f32(back + c) - level) * p, SPLAT(vf, 0.0f)));
                }
                for (; c < reach; c += V) { put_f32(row + c, SPLAT(vf, 0.0f)); put_f32(back + c, SPLAT(vf, 0.0f)); }
            }
            multiply(h, 1, 0, reach, width, count, 1.0f, s, h->step_s, g, h->step_g, 1.0f, h->dv[head], width);
            multiply(h, 0, 0, count, h->width, reach, scale, d, h->step_s, h->k[head], h->step_k, 0.0f, dq, h->width);
            multiply(h, 1, 0, reach, h->width, count, scale, d, h->step_s, q, h->step_q, 1.0f, h->dk[head], h->width);
        }
    }
}
"""
ATTENTION_TEXTS = {"attention": COMMON + FORWARD_TEXT, "attention_gradient": COMMON + BACKWARD_TEXT}
"""By the names of the functions."""
HEADS = np.dtype(
    [("blas", "u8")]
    + [(name, "i8") for name in ("wide", "queries", "keys", "width", "value_width", "causal", "block", "blocks")]
    + [("scale", "f8")]
    + [(name, "i8") for name in ("step_q", "step_k", "step_v", "step_g", "step_s")]
    + [(name, "u8") for name in ("q", "k", "v", "out", "lse", "g", "dq", "dk", "dv")]
)


@dataclass(frozen=True, slots=True)
class Attention:
    """A call of the kernel. tables: what it points into. count: tasks. flops: of one task."""

    name: str
    tables: tuple[np.ndarray, ...]
    count: int
    flops: int


def is_attention(node: Node) -> bool:
    """Whether a composite is attention that has a kernel: f32, and no mask but the causal one."""
    name = node.attrs.get("name") if node.op == "composite" else None
    num_inputs = {FORWARD: 3, BACKWARD: 6}.get(str(name))
    if num_inputs != len(node.inputs) or any(v.dtype != "f32" or not v.type.size for v in node.inputs):
        return False
    return node.inputs[0].shape[-1] <= 1 << 12


def block_of(node: Node) -> int:
    """Queries of a block: by the number of keys alone."""
    queries, keys = node.inputs[0].shape[-2], node.inputs[1].shape[-2]
    return max(1, min(queries, MOST_QUERIES, max(LEAST_QUERIES, BLOCK_SCORES // keys)))


def scratch_bytes(node: Node) -> int:
    """What a thread needs for a block: scores, their gradients or row totals."""
    return 4 * block_of(node) * 2 * (_padded(node.inputs[1].shape[-2]) + 1)


def _padded(keys: int) -> int:
    """Scores of a query, with room for whole vectors."""
    return -(-keys // 16) * 16


def attention_of(node: Node, inputs: list[Array], outputs: list[Array], blas: Blas) -> Attention | None:
    """The call for a node; None where the elements of a query, key or value do not lie side by side."""
    backward = node.attrs["name"] == BACKWARD
    q, k, v = inputs[:3]
    if backward:
        out, lse, g = inputs[3:]
        made = outputs
    else:
        (out, lse), g, made = outputs, inputs[0], []
    ordered = [q, k, v, g, *made, out]
    if any(not _rows_lie_side_by_side(x) for x in ordered) or any(not _is_dense(x) for x in (*made, out, lse)):
        return None
    count = prod(q.shape[:-2])
    row = np.zeros(1, HEADS)
    block, queries, keys = block_of(node), q.shape[-2], k.shape[-2]
    sizes = {"queries": queries, "keys": keys, "width": q.shape[-1], "value_width": v.shape[-1], "block": block}
    sizes["step_s"] = _padded(keys)
    blocks = -(-queries // block)
    for name, number in (
        sizes | {"blocks": blocks, "causal": attr_int(node.attrs, "causal"), "wide": blas.wide}
    ).items():
        row[name] = number
    row["blas"], row["scale"] = blas.address, node.attrs["scale"]
    for name, x in (("step_q", q), ("step_k", k), ("step_v", v), ("step_g", g)):
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
        return Attention("attention_gradient", tuple(tables), count, 5 * work // 2)
    return Attention("attention", tuple(tables), count * blocks, work // blocks)


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
