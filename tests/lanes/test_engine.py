"""The lane engine over small kernels written by hand, in both dialects."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lanes.unit import ORDERS, Buffer, Fault, Refused, Unit, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
MSL = HEAD + """
inline float block_sum(float value, threadgroup float* parts, uint lane, uint warp, uint warps) {
  value = simd_sum(value);
  if (lane == 0) parts[warp] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < warps ? parts[lane] : 0.0f);
}
kernel void center(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   constant uint& count [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_position_in_threadgroup]],
                   uint size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                   uint warp [[simdgroup_index_in_threadgroup]], uint warps [[simdgroups_per_threadgroup]]) {
  threadgroup float parts[32];
  float sum = 0.0f;
  for (uint c = tid; c < count; c += size) sum += x[row * count + c];
  float mean = block_sum(sum, parts, lane, warp, warps) / float(count);
  for (uint c = tid; c < count; c += size) y[row * count + c] = x[row * count + c] - mean;
}
kernel void turn(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 uint2 at [[thread_position_in_threadgroup]], uint2 group [[threadgroup_position_in_grid]]) {
  threadgroup float tile[8][9];
  tile[at.y][at.x] = x[(group.y * 8u + at.y) * 16u + group.x * 8u + at.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[(group.x * 8u + at.y) * 16u + group.y * 8u + at.x] = tile[at.x][at.y];
}
kernel void matmul(device const float* x [[buffer(0)]], device const float* y [[buffer(1)]],
                   device float* z [[buffer(2)]]) {
  simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < 24u; k += 8u) {
    simdgroup_load(a, x + k, 24);
    simdgroup_load(b, y + k * 8u, 8);
    simdgroup_multiply_accumulate(c, a, b, c);
  }
  simdgroup_store(c, z, 8);
}
kernel void count(device const int* x [[buffer(0)]], device atomic_uint* counts [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&counts[x[i]], 1u, memory_order_relaxed);
}
kernel void bits(device const float* x [[buffer(0)]], device uint* y [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  float other = simd_shuffle_xor(x[i], 1);
  y[i] = as_type<uint>(precise::exp(other)) + uint(ulong(simd_ballot(x[i] > 0.0f)) & 1ul);
}
"""  # fmt: skip


@pytest.fixture(scope="module")
def msl() -> Unit:
    return Unit(MSL, "msl")


RUNS = [*((order, False) for order in ORDERS), ("forward", True)]


@pytest.mark.parametrize("order, checked", RUNS)
def test_kernels_of_msl(msl: Unit, order: str, checked: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 300)).astype(np.float32)
    y = np.empty_like(x)
    buffers = [Buffer.of(x), Buffer.of(y, True, False), Buffer.of(np.array([300], np.uint32))]
    msl.run("center", buffers, (3, 1, 1), (128, 1, 1), order, checked)
    np.testing.assert_allclose(y, x - x.mean(1, keepdims=True), 1e-5, 1e-5)
    x = rng.normal(size=(16, 16)).astype(np.float32)
    y = np.empty_like(x)
    msl.run("turn", [Buffer.of(x), Buffer.of(y, True, False)], (2, 2, 1), (8, 8, 1), order, checked)
    np.testing.assert_array_equal(y, x.T)
    a, b = rng.normal(size=(8, 24)).astype(np.float32), rng.normal(size=(24, 8)).astype(np.float32)
    c = np.empty((8, 8), np.float32)
    msl.run("matmul", [Buffer.of(a), Buffer.of(b), Buffer.of(c, True, False)], (1, 1, 1), (32, 1, 1), order, checked)
    np.testing.assert_allclose(c, a @ b, 1e-5, 1e-5)
    places, counts = rng.integers(0, 7, 512).astype(np.int32), np.zeros(7, np.uint32)
    msl.run("count", {0: Buffer.of(places), 1: Buffer.of(counts, True)}, (2, 1, 1), (256, 1, 1), order, checked)
    np.testing.assert_array_equal(counts, np.bincount(places, minlength=7))
    x, bits = rng.normal(size=64).astype(np.float32), np.empty(64, np.uint32)
    msl.run("bits", [Buffer.of(x), Buffer.of(bits, True, False)], (2, 1, 1), (32, 1, 1), order, checked)
    first = np.repeat(x[::32] > 0, 32)
    found = (bits - first.astype(np.uint32)).view(np.float32)
    np.testing.assert_allclose(found, np.exp(x.reshape(-1, 2)[:, ::-1].reshape(-1)), 1e-6)


def test_faults_name_the_kernel_and_the_line() -> None:
    text = (
        HEAD
        + """kernel void late(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  if (i > 40u) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1.0f;
}"""
    )
    unit, y = Unit(text, "msl"), np.zeros(64, np.float32)
    with pytest.raises(Fault, match="late: some lanes returned before a barrier of the others at line 5") as fault:
        unit.run("late", [Buffer.of(y, True)], (1, 1, 1), (64, 1, 1))
    assert fault.value.kernel == "late"
    with pytest.raises(Refused, match="expf"):
        Unit(text.replace("1.0f", "expf(1.0f)"), "msl").run("late", [Buffer.of(y, True)], (1, 1, 1), (8, 1, 1))


def test_a_library_is_loaded_after_a_checked_run() -> None:
    """Nothing is watched between runs: the libraries of units themselves are compiled so that the checker is asked."""
    y = np.zeros(4, np.float32)
    for number in range(3):
        body = f"kernel void k{number}(device float* y [[buffer(0)]]) {{ y[{number}] = 1.0f; }}"
        Unit(HEAD + body, "msl").run(f"k{number}", [Buffer.of(y, True)], (1, 1, 1), (1, 1, 1), checked=True)
    np.testing.assert_array_equal(y, [1, 1, 1, 0])


CHECKED = [
    ("t[i] = 1.0f; y[i] = t[63u - i];", "a race: read of what another lane writes at line 4, .*, lane .* t cell"),
    ("y[i / 2u] = 1.0f;", "a race: two lanes write at line 4, .*, lane 1 and lane 0, y cell 0"),
    ("y[i] = t[i];", "a read of memory that nothing was written to at line 4, .*, lane 0, t cell 0"),
    ("y[i + 1u] = 1.0f;", "an access outside every buffer at line 4, .*, lane 63"),
]


@pytest.mark.parametrize("body, said", CHECKED)
def test_the_checker_tells_the_line_and_the_argument(body: str, said: str) -> None:
    head = "kernel void k(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]])"
    unit = Unit(f"{HEAD}{head} {{ threadgroup float t[64];\n{body} }}", "msl")
    y = np.zeros(80, np.float32)
    with pytest.raises(Fault, match=said):
        out = Buffer(y.ctypes.data, y.ctypes.data, 64 * 4, writable=True)
        unit.run("k", [out], (1, 1, 1), (64, 1, 1), checked=True)
