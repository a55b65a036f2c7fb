"""Small kernels of both dialects that are right, and bugs to plant in them, each with the layer that catches it first.

Flow: `test_planted_bugs` runs a kernel on its `Case`, then each bug, layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.lanes.signatures import Dialect

HEAD = {"msl": "#include <metal_stdlib>\nusing namespace metal;\n", "cuda": "typedef unsigned int u32;\n"}


@dataclass(frozen=True)
class Case:
    """A kernel with what it is run on. make: arrays in the order of its buffers, and what the outputs become.

    outputs: the numbers of buffers that it writes, all of which hold nothing before but those in `kept`.
    """

    dialect: Dialect
    text: str
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    make: Callable[[], tuple[list[np.ndarray], list[np.ndarray]]]
    outputs: tuple[int, ...]
    kept: tuple[int, ...] = ()
    tolerance: float = 1e-4


RNG_SEED = 5


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(RNG_SEED).normal(size=shape).astype(np.float32)


def _bend() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x, bias = _normal(1000), _normal(64)[::-1].copy()
    n = np.array([1000], np.uint32)
    return [x, bias, np.empty(1000, np.float32), n], [np.tanh(x + bias[np.arange(1000) % 64])]


def _norm() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x = _normal(6, 700) * 3 + 1
    y = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    return [x, np.empty_like(x), np.array([700], np.uint32)], [y]


def _product() -> tuple[list[np.ndarray], list[np.ndarray]]:
    a, b = _normal(21, 30), _normal(30, 19)
    return [a, b, np.empty((21, 19), np.float32)], [a @ b]


def _running() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x = _normal(3, 500)
    return [x, np.empty_like(x)], [np.cumsum(x, 1)]


def _count() -> tuple[list[np.ndarray], list[np.ndarray]]:
    places = np.random.default_rng(RNG_SEED).integers(0, 9, 900).astype(np.int32)
    return [places, np.zeros(9, np.uint32)], [np.bincount(places, minlength=9).astype(np.uint32)]


def _spread() -> tuple[list[np.ndarray], list[np.ndarray]]:
    places = np.random.default_rng(RNG_SEED).integers(0, 40, 300).astype(np.int32)
    values, out = _normal(300), np.zeros(64, np.float32)
    np.add.at(out, places, values)
    return [places, values, np.empty(64, np.float32)], [out]


def _turn() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x = _normal(40, 50)
    return [x, np.empty((50, 40), np.float32)], [x.T.copy()]


def _neighbours() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x = _normal(128)
    return [x, np.empty(128, np.float32)], [x.reshape(-1, 2)[:, ::-1].reshape(-1).copy()]


def _halves() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x = _normal(128)
    return [x, np.empty(128, np.float32)], [np.repeat(x.reshape(-1, 16).sum(1), 16)]


def _pairs() -> tuple[list[np.ndarray], list[np.ndarray]]:
    x = _normal(128)
    return [x, np.empty(128, np.float32)], [x.reshape(2, 2, 32)[:, ::-1].reshape(-1).copy()]


BEND = """kernel void bend(device const float* x [[buffer(0)]], device const float* bias [[buffer(1)]],
                 device float* y [[buffer(2)]], constant uint& n [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  if (i >= n) return;
  float a = x[i] + bias[i % 64u];
  y[i] = precise::tanh(1.0f * a);
}
"""
NORM = """kernel void norm(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 constant uint& count [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_position_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[8];
  device const float* from = x + row * count;
  float sum = 0.0f;
  for (uint c = tid; c < count; c += 256u) sum += from[c];
  sum = simd_sum(sum);
  if (lane == 0) parts[warp] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float mean = simd_sum(lane < 8u ? parts[lane] : 0.0f) / float(count);
  float square = 0.0f;
  for (uint c = tid; c < count; c += 256u) square += (from[c] - mean) * (from[c] - mean);
  square = simd_sum(square);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) parts[warp] = square;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float scale = rsqrt(simd_sum(lane < 8u ? parts[lane] : 0.0f) / float(count));
  for (uint c = tid; c < count; c += 256u) y[row * count + c] = (from[c] - mean) * scale;
}
"""
PRODUCT = """kernel void product(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                    device float* c [[buffer(2)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
                    uint warp [[simdgroup_index_in_threadgroup]]) {
  threadgroup float left[16][10];
  threadgroup float right[8][18];
  threadgroup float made[16][18];
  uint row = group.y * 16u, column = group.x * 16u, y = (warp >> 1) * 8u, x = (warp & 1u) * 8u;
  simdgroup_float8x8 total = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < 30u; k += 8u) {
    uint r = tid >> 3, d = tid & 7u;
    left[r][d] = row + r < 21u && k + d < 30u ? a[(row + r) * 30u + k + d] : 0.0f;
    uint s = tid >> 4, e = tid & 15u;
    right[s][e] = k + s < 30u && column + e < 19u ? b[(k + s) * 19u + column + e] : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 p, q;
    simdgroup_load(p, &left[y][0], 10);
    simdgroup_load(q, &right[0][x], 18);
    simdgroup_multiply_accumulate(total, p, q, total);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(total, &made[y][x], 18);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = tid; e < 256u; e += 128u) {
    uint r = e >> 4, d = e & 15u;
    if (row + r < 21u && column + d < 19u) c[(row + r) * 19u + column + d] = made[r][d];
  }
}
"""
RUNNING = """kernel void running(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                    uint row [[threadgroup_position_in_grid]], uint tid [[thread_position_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[4];
  threadgroup float carry;
  if (tid == 0) carry = 0.0f;
  for (uint start = 0; start < 500u; start += 128u) {
    uint c = start + tid;
    float sum = simd_prefix_inclusive_sum(c < 500u ? x[row * 500u + c] : 0.0f);
    if (lane == 31u) parts[warp] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float before = carry;
    for (uint w = 0; w < warp; ++w) before += parts[w];
    sum += before;
    if (c < 500u) y[row * 500u + c] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 127u) carry = sum;
  }
}
"""
COUNT = """kernel void count(device const int* places [[buffer(0)]], device atomic_uint* counts [[buffer(1)]],
                  uint i [[thread_position_in_grid]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint own[9];
  if (tid < 9u) atomic_store_explicit(&own[tid], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < 900u) atomic_fetch_add_explicit(&own[places[i]], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid >= 9u) return;
  uint sum = atomic_load_explicit(&own[tid], memory_order_relaxed);
  atomic_fetch_add_explicit(&counts[tid], sum, memory_order_relaxed);
}
"""
SPREAD = """kernel void spread(device const int* places [[buffer(0)]], device const float* values [[buffer(1)]],
                   device float* y [[buffer(2)]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup int tile[64];
  float sum = 0.0f;
  for (uint start = 0; start < 300u; start += 64u) {
    if (start + tid < 300u) tile[tid] = places[start + tid];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < min(64u, 300u - start); ++k)
      if (tile[k] == int(tid)) sum += values[start + k];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  y[tid] = sum;
}
"""
PAIRS = """kernel void pairs(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
  threadgroup_barrier(mem_flags::mem_device);
  float other = y[i ^ 32u];
  threadgroup_barrier(mem_flags::mem_device);
  y[i] = other;
}
"""
NEIGHBOURS = """kernel void neighbours(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                       uint i [[thread_position_in_grid]], uint tid [[thread_position_in_threadgroup]]) {
  threadgroup float held[64];
  held[tid] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = held[tid ^ 1u];
}
"""
CUDA_HALVES = """extern "C" __global__ void __launch_bounds__(64) halves(const float* x, float* y) {
  const u32 i = blockIdx.x * 64u + threadIdx.x, half = threadIdx.x / 16u % 2u;
  float sum = x[i];
  for (int mask = 8; mask > 0; mask /= 2) sum += __shfl_xor_sync(half ? 0xffff0000u : 0x0000ffffu, sum, mask);
  y[i] = sum;
}
"""
CUDA_NORM = """extern "C" __global__ void __launch_bounds__(256) norm(const float* x, float* y, const u32* count) {
  __shared__ float parts[8];
  const u32 tid = threadIdx.x, n = count[0];
  const float* from = x + blockIdx.x * n;
  float sum = 0, square = 0;
  for (u32 c = tid; c < n; c += 256u) sum += from[c];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (tid % 32u == 0) parts[tid / 32u] = sum;
  __syncthreads();
  float mean = 0;
  for (int w = 0; w < 8; ++w) mean += parts[w];
  mean /= (float)n;
  for (u32 c = tid; c < n; c += 256u) square += (from[c] - mean) * (from[c] - mean);
  for (int mask = 16; mask > 0; mask /= 2) square += __shfl_xor_sync(0xffffffffu, square, mask);
  __syncthreads();
  if (tid % 32u == 0) parts[tid / 32u] = square;
  __syncthreads();
  float whole = 0;
  for (int w = 0; w < 8; ++w) whole += parts[w];
  for (u32 c = tid; c < n; c += 256u) y[blockIdx.x * n + c] = (from[c] - mean) * (1.0f / sqrtf(whole / (float)n));
}
"""
CUDA_TURN = """extern "C" __global__ void __launch_bounds__(256) turn(const float* __restrict__ x, float* y) {
  __shared__ float tile[32][33];
  for (u32 k = 0; k < 32u; k += 8u) {
    const u32 r = blockIdx.y * 32u + threadIdx.y + k, c = blockIdx.x * 32u + threadIdx.x;
    if (r < 40u && c < 50u) tile[threadIdx.y + k][threadIdx.x] = x[r * 50u + c];
  }
  __syncthreads();
  for (u32 k = 0; k < 32u; k += 8u) {
    const u32 r = blockIdx.x * 32u + threadIdx.y + k, c = blockIdx.y * 32u + threadIdx.x;
    if (r < 50u && c < 40u) y[r * 40u + c] = tile[threadIdx.x][threadIdx.y + k];
  }
}
"""
CUDA_RUNNING = """extern "C" __global__ void __launch_bounds__(128) running(const float* __restrict__ x, float* y) {
  __shared__ float parts[4];
  const u32 tid = threadIdx.x, lane = tid % 32u, warp = tid / 32u, row = blockIdx.x;
  float carry = 0;
  for (u32 start = 0; start < 500u; start += 128u) {
    const u32 c = start + tid;
    float sum = c < 500u ? x[row * 500u + c] : 0.0f;
    for (u32 away = 1; away < 32u; away *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, away);
      if (lane >= away) sum += other;
    }
    if (lane == 31u) parts[warp] = sum;
    __syncthreads();
    float before = carry;
    for (u32 w = 0; w < 4u; ++w) {
      if (w < warp) before += parts[w];
      carry += parts[w];
    }
    __syncthreads();
    if (c < 500u) y[row * 500u + c] = sum + before;
  }
}
"""
CUDA_COUNT = """extern "C" __global__ void __launch_bounds__(256) count(const int* __restrict__ places, u32* counts) {
  __shared__ u32 own[9];
  const u32 i = blockIdx.x * 256u + threadIdx.x;
  if (threadIdx.x < 9u) own[threadIdx.x] = 0u;
  __syncthreads();
  if (i < 900u) atomicAdd(own + places[i], 1u);
  __syncthreads();
  if (threadIdx.x < 9u) atomicAdd(counts + threadIdx.x, own[threadIdx.x]);
}
"""
CUDA_BEND = """extern "C" __global__ void __launch_bounds__(256)
bend(const float* x, const float* bias, float* y, const u32* n) {
  const u32 i = blockIdx.x * 256u + threadIdx.x;
  if (i >= n[0]) return;
  const float a = x[i] + bias[i % 64u];
  y[i] = tanhf(a);
}
"""

CASES = {
    "bend": Case("msl", BEND, (4, 1, 1), (256, 1, 1), _bend, (2,)),
    "norm": Case("msl", NORM, (6, 1, 1), (256, 1, 1), _norm, (1,)),
    "product": Case("msl", PRODUCT, (2, 2, 1), (128, 1, 1), _product, (2,)),
    "running": Case("msl", RUNNING, (3, 1, 1), (128, 1, 1), _running, (1,)),
    "count": Case("msl", COUNT, (4, 1, 1), (256, 1, 1), _count, (1,), (1,)),
    "spread": Case("msl", SPREAD, (1, 1, 1), (64, 1, 1), _spread, (2,)),
    "pairs": Case("msl", PAIRS, (2, 1, 1), (64, 1, 1), _pairs, (1,)),
    "neighbours": Case("msl", NEIGHBOURS, (2, 1, 1), (64, 1, 1), _neighbours, (1,)),
    "cuda halves": Case("cuda", CUDA_HALVES, (2, 1, 1), (64, 1, 1), _halves, (1,)),
    "cuda norm": Case("cuda", CUDA_NORM, (6, 1, 1), (256, 1, 1), _norm, (1,)),
    "cuda turn": Case("cuda", CUDA_TURN, (2, 2, 1), (32, 8, 1), _turn, (1,)),
    "cuda running": Case("cuda", CUDA_RUNNING, (3, 1, 1), (128, 1, 1), _running, (1,)),
    "cuda count": Case("cuda", CUDA_COUNT, (4, 1, 1), (256, 1, 1), _count, (1,), (1,)),
    "cuda bend": Case("cuda", CUDA_BEND, (4, 1, 1), (256, 1, 1), _bend, (2,)),
}


@dataclass(frozen=True)
class Bug:
    """What is wrong in a kernel: `old` becomes `new`, at its `nth` place. layer: what catches it first."""

    case: str
    name: str
    old: str
    new: str
    layer: str
    nth: int = 0

    def plant(self) -> str:
        text, place = CASES[self.case].text, -1
        for _ in range(self.nth + 1):
            place = text.index(self.old, place + 1)
        return text[:place] + self.new + text[place + len(self.old) :]


BARRIER = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
SYNC = "  __syncthreads();\n"
TEXT, CLANG, FORWARD, ORDERS, CHECKER, NOBODY = "text rules", "clang", "forward", "orders", "checker", "nobody"

KNOWN = [
    Bug("norm", "no barrier before parts are read", BARRIER, "", FORWARD),
    Bug("norm", "no barrier before parts are used again", BARRIER, "", CHECKER, 1),
    Bug("norm", "a barrier that orders no memory", "mem_threadgroup)", "mem_none)", CHECKER),
    Bug("norm", "a barrier that orders other memory", "mem_threadgroup)", "mem_device)", CHECKER),
    Bug("norm", "a barrier that some lanes skip", BARRIER, "  if (tid < 100u) " + BARRIER.strip() + "\n", FORWARD),
    Bug("norm", "a sum of lanes that some skip", "  sum = simd_sum(sum);",
        "  if (lane < 20u) sum = simd_sum(sum);", FORWARD),
    Bug("norm", "a return before a barrier", "  float sum", "  if (tid > 250u) return;\n  float sum", FORWARD),
    Bug("norm", "parts that nothing was written to", "lane < 8u ?", "lane < 9u ?", FORWARD),
    Bug("norm", "a pointer into no space", "  device const float* from", "  const float* from", CLANG),
    Bug("norm", "a pointer into the wrong space", "  float sum",
        "  device float* p = parts; p[0] = 0.0f;\n  float sum", CLANG),
    Bug("norm", "a helper that takes a plain pointer", "kernel void",
        "inline float first(const float* p) { return p[0]; }\n"
        "inline float second(device const float* p) { return first(p + 1); }\nkernel void", CLANG),
    Bug("product", "no barrier after tiles are filled", "  " + BARRIER, "", CHECKER),
    Bug("product", "no barrier before tiles are filled again", "  " + BARRIER, "", CHECKER, 1),
    Bug("product", "a row of a tile that is too short", "left[16][10]", "left[16][7]", FORWARD),
    Bug("product", "a column of a tile that is one off", "right[s][e] =", "right[s][e + 1u] =", FORWARD),
    Bug("running", "no barrier before the carry is written", "  " + BARRIER, "", ORDERS, 1),
    Bug("spread", "no barrier before the tile is filled again", "  " + BARRIER, "", FORWARD, 1),
    Bug("bend", "no guard at the end", "  if (i >= n) return;\n", "", FORWARD),
    Bug("bend", "a write to an input", "  y[i] =", "  ((volatile device float*)x)[i] = x[i];\n  y[i] =", CHECKER),
    Bug("count", "a count without an atomic", "atomic_fetch_add_explicit(&counts[tid], sum, memory_order_relaxed)",
        "((device uint*)counts)[tid] += sum", CHECKER),
    Bug("bend", "a literal in double", "1.0f *", "1.0 *", TEXT),
    Bug("bend", "a variable in double", "float a =", "double a =", TEXT),
    Bug("bend", "erf", "precise::tanh", "erf", CLANG),
    Bug("bend", "a name of the C++ library", "precise::tanh", "std::tanh", CLANG),
    Bug("bend", "a name of the C library", "precise::tanh", "tanhf", CLANG),
    Bug("bend", "a name of CUDA", "precise::tanh", "__expf", CLANG),
    Bug("bend", "a buffer number twice", "buffer(2)", "buffer(1)", TEXT),
    Bug("bend", "a scalar by value", "constant uint& n", "uint n", TEXT),
    Bug("bend", "an index that loses bits", "  float a", "  int k = ulong(i) * 3ul; (void)k;\n  float a", CLANG),
    Bug("bend", "an array of a length known at run time", "  float a", "  float t[n]; t[0] = 0.0f;\n  float a", CLANG),
    Bug("bend", "a function that calls itself", "kernel void",
        "inline float f(float x) { return x > 1.0f ? f(x - 1.0f) : x; }\nkernel void", TEXT),
    Bug("bend", "a global that changes", "kernel void", "float total = 0.0f;\nkernel void", TEXT),
    Bug("bend", "40 KB of threadgroup memory", "  float a",
        "  threadgroup float big[10240]; big[0] = 0.0f;\n  float a", CLANG),
]  # fmt: skip
"""The kinds of bugs that a first trial of these checks was measured with."""

NEW = [
    Bug("cuda norm", "a mask without the upper lanes", "0xffffffffu", "0xffffu", FORWARD),
    Bug("cuda norm", "a mask that differs between lanes", "0xffffffffu",
        "tid % 2u ? 0xffffffffu : 0x55555555u", FORWARD),
    Bug("cuda norm", "a reduction that begins too low", "mask = 16", "mask = 8", FORWARD),
    Bug("cuda norm", "a shuffle beyond the warp", "sum, mask)", "sum, mask * 2)", FORWARD),
    Bug("cuda norm", "a barrier of the warp for one of the block", "__syncthreads()", "__syncwarp()", CHECKER),
    Bug("cuda norm", "no barrier before parts are used again", SYNC, "", CHECKER, 1),
    Bug("cuda norm", "a barrier inside a loop of each lane's own length", "sum += from[c];",
        "{ sum += from[c]; __syncthreads(); }", FORWARD),
    Bug("cuda norm", "every lane writes the part of its warp", "if (tid % 32u == 0) parts", "parts", CHECKER),
    Bug("cuda norm", "a read behind the input whose value is not used", "sum += from[c];",
        "sum += from[c] + (from[c + 1u] > 1e30f ? 1.0f : 0.0f);", CHECKER),
    Bug("cuda norm", "blocks that overlap and agree", "blockIdx.x * n;", "blockIdx.x / 2u * 2u * n;", FORWARD),
    Bug("cuda turn", "no barrier between writing and reading a tile", SYNC, "", FORWARD),
    Bug("cuda turn", "rows and columns exchanged in an index", "y[r * 40u + c]", "y[c * 50u + r]", FORWARD),
    Bug("cuda turn", "the last row of another tile", "c < 40u) y", "c <= 40u) y", FORWARD),
    Bug("cuda turn", "a tile that ends inside the arena", "tile[32][33]", "tile[31][33]", CHECKER),
    Bug("cuda running", "a carry that stays what it was", "carry += parts[w]", "carry = parts[w]", FORWARD),
    Bug("cuda running", "a carry that is added before it is known", "float before = carry;",
        "float before = start ? carry + parts[3] : 0.0f;", FORWARD),
    Bug("cuda running", "no barrier before parts are written again", "  " + SYNC, "", CHECKER, 1),
    Bug("cuda count", "a count in shared memory without an atomic", "atomicAdd(own + places[i], 1u)",
        "own[places[i]] += 1u", CHECKER),
    Bug("cuda count", "counts that nobody sets to 0", "own[threadIdx.x] = 0u", "own[threadIdx.x] += 0u", FORWARD),
    Bug("cuda count", "a total without an atomic", "atomicAdd(counts + threadIdx.x, own[threadIdx.x])",
        "counts[threadIdx.x] += own[threadIdx.x]", CHECKER),
    Bug("cuda bend", "one lane too many", "i >= n[0]", "i > n[0]", FORWARD),
    Bug("cuda bend", "an output that is added to", "y[i] = tanhf(a)", "y[i] = 0.0f * y[i] + tanhf(a)", CHECKER),
    Bug("cuda bend", "a remainder by zero", "i % 64u", "i % (n[0] - 1000u)", FORWARD),
    Bug("cuda bend", "a wrong unit of an index", "bias[i % 64u]", "bias[i % 64u * 4u]", FORWARD),
    Bug("cuda bend", "a static variable", "  const float a", "  static float kept;\n  const float a", TEXT),
    Bug("product", "a row length that is not the tile's", "&right[0][x], 18", "&right[0][x], 16", FORWARD),
    Bug("product", "a factor that is not turned", "simdgroup_load(p, &left[y][0], 10)",
        "simdgroup_load(p, &left[y][0], 10, ulong2(0, 0), true)", FORWARD),
    Bug("product", "a matrix that some lanes store", "  simdgroup_store(",
        "  if (tid % 32u < 30u) simdgroup_store(", FORWARD),
    Bug("neighbours", "a barrier of the simdgroup that orders no memory", "mem_threadgroup", "mem_none", CHECKER),
    Bug("neighbours", "a partner in another simdgroup", "tid ^ 1u", "tid ^ 33u", FORWARD),
    Bug("cuda halves", "the mask of the other half", "half ?", "!half ?", FORWARD),
    Bug("cuda halves", "a mask that is right for one half", "half ? 0xffff0000u : 0x0000ffffu", "0x0000ffffu", FORWARD),
    Bug("pairs", "device memory behind a barrier of the other kind", "mem_device", "mem_threadgroup", CHECKER),
    Bug("pairs", "a shuffle of 64 bits", "float other = y[i ^ 32u];",
        "float other = y[i ^ 32u] + float(simd_shuffle_xor(ulong(i), 1));", CLANG),
    Bug("cuda bend", "fewer threads declared than launched", "__launch_bounds__(256)",
        "__launch_bounds__(128)", NOBODY),
    Bug("bend", "a result below the normal numbers, which Metal may flush", "precise::tanh(1.0f * a)",
        "precise::tanh(a) + 1e-40f", NOBODY),
]  # fmt: skip
"""Bugs of our own."""
