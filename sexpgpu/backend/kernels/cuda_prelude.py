"""What every CUDA unit begins with: types, exact conversions, shuffles of any type, Philox, flags.

Flow: `cuda.module_source` puts it before the kernels.
"""

from sexpgpu.backend.kernels.philox import TEXT as PHILOX

PRELUDE = (
    r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define HELPER static __device__ __forceinline__

// Neighbours that move together, at most 16 bytes at a time.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
template <class T, int N> HELPER Pack<T, N> read_pack(const T* p) { return *(const Pack<T, N>*)p; }
template <class T, int N> HELPER void write_pack(T* p, const Pack<T, N>& v) { *(Pack<T, N>*)p = v; }

// Rounds to nearest even; a NaN keeps its sign and becomes quiet, as in NumPy's bfloat16.
HELPER float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }
HELPER u16 to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  u16 quiet = (u16)(((bits >> 16) & 0x8000u) | 0x7fc0u);
#ifdef __CUDA_ARCH__
  u16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
#else
  u16 rounded = (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
  return x != x ? quiet : rounded;
}

// Towards zero; what does not fit, NaN too, becomes the lowest integer, as on the interpreter's processor.
template <class F> HELPER int truncate_i32(F x) {
  return x > (F)-2147483649.0 && x < (F)2147483648.0 ? (int)x : -2147483647 - 1;
}
template <class F> HELPER i64 truncate_i64(F x) {
  return x >= (F)-9223372036854775808.0 && x < (F)9223372036854775808.0 ? (i64)x : -9223372036854775807ll - 1;
}

template <class T> HELPER T mul_or_zero(T x, T y) {
  T product = x * y;
  return product != product && x == 0 ? (T)0 : product;
}

// 0 where y is 0; x / -1 wraps.
template <class T> HELPER T floor_remainder(T x, T y) {
  if (y == 0 || y == -1) return 0;
  T rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
HELPER int negated(int x) { return (int)(0u - (u32)x); }
HELPER i64 negated(i64 x) { return (i64)(0ull - (u64)x); }
template <class T> HELPER T floor_quotient(T x, T y) {
  if (y == 0) return 0;
  if (y == -1) return negated(x);
  T whole = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? whole - 1 : whole;
}

// An extremum and its place; place -1 is none. NaN counts as largest, of a tie the lower place wins.
template <class T> struct Best { T value; int place; };
template <class T> HELPER bool above(T x, T y) { return x > y || (x != x && y == y); }
template <class T> HELPER Best<T> largest(Best<T> p, Best<T> q) {
  if (p.place < 0) return q;
  if (q.place < 0) return p;
  return above(p.value, q.value) || (!above(q.value, p.value) && p.place < q.place) ? p : q;
}
template <class T> HELPER Best<T> smallest(Best<T> p, Best<T> q) {
  if (p.place < 0) return q;
  if (q.place < 0) return p;
  return above(q.value, p.value) || (!above(p.value, q.value) && p.place < q.place) ? p : q;
}

template <class T> HELPER T shuffle_xor(T value, int mask) {
  static_assert(sizeof(T) % 4 == 0, "whole words");
  union { T whole; int words[sizeof(T) / 4]; } u;
  u.whole = value;
#pragma unroll
  for (int w = 0; w < (int)(sizeof(T) / 4); ++w) u.words[w] = __shfl_xor_sync(0xffffffffu, u.words[w], mask);
  return u.whole;
}

// An index of a scatter: its position among all, and the row of the chunk that it names.
struct alignas(8) Entry { int position, row; };

// A flag record: how many, and the first with its value. Zero means none. See `FLAG_WORDS`.
HELPER void raise_flag(u32* flag, u64 place, i64 value) {
  i64 low = -2147483647ll - 1, high = 2147483647ll;
  u32 shown = (u32)(int)(value < low ? low : value > high ? high : value);
  atomicAdd(flag, 1u);
  atomicMax((u64*)(flag + 2), (u64)(0xffffffffu - (u32)place) << 32 | shown);
}
"""
    + PHILOX
    + r"""
HELPER Pack<float, 4> uniform(Words w) {
  Pack<float, 4> out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.at[i] = (float)(w.at[i] >> 8) * 5.9604644775390625e-8f;
  return out;
}
HELPER Pack<float, 4> normal(Words w) {
  Pack<float, 4> out;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    float radius = sqrtf(-2.0f * logf((float)((w.at[i] >> 8) + 1u) * 5.9604644775390625e-8f));
    float half_turns = (float)(w.at[i + 1] >> 8) * 1.1920928955078125e-7f;
    out.at[i] = radius * cospif(half_turns);
    out.at[i + 1] = radius * sinpif(half_turns);
  }
  return out;
}
"""
)
