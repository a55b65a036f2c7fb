"""What every unit of Metal begins with: types, packs, functions that Metal lacks, shuffles of any type, Philox, flags.

Functions of the C library end in an underscore here. The ones that Metal has are its precise ones; `erf_`, `expm1_` and
`log1p_` are ours, within 2, 4 and 4 units in the last place where Metal's `exp` and `log` are within 1.

Flow: `Printer.module_source` puts it before the kernels.
"""

from sexpgpu.backend.kernels.philox import TEXT as PHILOX

PRELUDE = (
    r"""
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef long i64;
#define HELPER static inline

// Neighbours that one thread takes, at most 16 bytes and 4 numbers at once.
template <class T, int N> struct Pack { T at[N]; };
template <class T, int N> struct Piece { enum { size = sizeof(T) == 8 ? 2 : N < 4 ? N : 4 }; };
template <class T, int N> HELPER Pack<T, N> read_pack(const device T* p) {
  typedef vec<T, Piece<T, N>::size> Some;
  Pack<T, N> v;
#pragma unroll
  for (int i = 0; i < N; i += Piece<T, N>::size) {
    Some some = *(const device Some*)(p + i);
#pragma unroll
    for (int e = 0; e < Piece<T, N>::size; ++e) v.at[i + e] = some[e];
  }
  return v;
}
template <class T, int N> HELPER void write_pack(device T* p, Pack<T, N> v) {
  typedef vec<T, Piece<T, N>::size> Some;
#pragma unroll
  for (int i = 0; i < N; i += Piece<T, N>::size) {
    Some some;
#pragma unroll
    for (int e = 0; e < Piece<T, N>::size; ++e) some[e] = v.at[i + e];
    *(device Some*)(p + i) = some;
  }
}

// Rounds to nearest even; a NaN keeps its sign and becomes quiet, as in NumPy's bfloat16.
HELPER float round_bf16(float x) {
  u32 bits = as_type<u32>(x);
  u32 quiet = (bits & 0x80000000u) | 0x7fc00000u;
  u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return as_type<float>(x != x ? quiet : rounded);
}

// Towards zero; what does not fit, NaN too, becomes the lowest integer, as on the interpreter's processor.
HELPER int truncate_i32(float x) { return x > -2147483648.0f && x < 2147483648.0f ? (int)x : -2147483647 - 1; }
HELPER i64 truncate_i64(float x) {
  return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? (i64)x : -9223372036854775807l - 1;
}

HELPER float mul_or_zero(float x, float y) {
  float product = x * y;
  return product != product && x == 0 ? 0.0f : product;
}

// 0 where y is 0; x / -1 wraps.
template <class T> HELPER T floor_remainder(T x, T y) {
  if (y == 0 || y == -1) return 0;
  T rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
HELPER int negated(int x) { return (int)(0u - (u32)x); }
HELPER i64 negated(i64 x) { return (i64)(0ul - (u64)x); }
template <class T> HELPER T floor_quotient(T x, T y) {
  if (y == 0) return 0;
  if (y == -1) return negated(x);
  T whole = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? whole - 1 : whole;
}

HELPER float fabs_(float x) { return fabs(x); }
HELPER float floor_(float x) { return floor(x); }
HELPER float ceil_(float x) { return ceil(x); }
HELPER float rint_(float x) { return rint(x); }
HELPER float sqrt_(float x) { return precise::sqrt(x); }
HELPER float exp_(float x) { return precise::exp(x); }
HELPER float log_(float x) { return precise::log(x); }
HELPER float sin_(float x) { return precise::sin(x); }
HELPER float cos_(float x) { return precise::cos(x); }
HELPER float atan_(float x) { return precise::atan(x); }
HELPER float tanh_(float x) { return precise::tanh(x); }
HELPER float pow_(float x, float y) { return precise::pow(x, y); }
// The error of 1 + x, or of exp(x), cancels in a quotient of two numbers that both have it.
HELPER float log1p_(float x) {
  float sum = 1.0f + x, above = sum - 1.0f;
  return above == 0.0f || sum == as_type<float>(0x7f800000u) ? x : log_(sum) * (x / above);
}
HELPER float expm1_(float x) {
  float power = exp_(x), less = power - 1.0f;
  if (less == 0.0f || fabs(x) < 1e-5f) return x + 0.5f * x * x;
  if (fabs(x) > 1.0f) return less;
  return less * (x / log_(power));
}
// Minimax fits of the relative error: of erf near 0, of -log(1 - erf) further out.
HELPER float erf_(float x) {
  float a = fabs(x), z = x * x, c = a > 4.0f ? 4.0f : a;
  float p = 8.34522478e-05f;
  p = p * z + -0.000813743740f;
  p = p * z + 0.00520063424f;
  p = p * z + -0.0268592704f;
  p = p * z + 0.112836942f;
  p = p * z + -0.376126349f;
  p = p * z + 0.128379166f;
  float q = 1.04331143e-05f;
  q = q * c + -0.000314858102f;
  q = q * c + 0.00361034204f;
  q = q * c + -0.0236945655f;
  q = q * c + 0.106159046f;
  q = q * c + 0.635198057f;
  q = q * c + 1.12863708f;
  float far = 1.0f - exp_(-(q * c));
  return a < 0.925f ? p * x + x : x != x ? x : x < 0.0f ? -far : far;
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
// An index of a scatter: its position among all, and the row of the chunk that it names.
struct Entry { int position, row; };

// Records from one address space to another, field by field.
template <class T> HELPER T get(const device T* p) { return *p; }
template <class T> HELPER Best<T> get(const device Best<T>* p) { return Best<T>{p->value, p->place}; }
HELPER Entry get(const device Entry* p) { return Entry{p->position, p->row}; }
template <class T> HELPER void put(device T* p, T v) { *p = v; }
template <class T> HELPER void put(device Best<T>* p, Best<T> v) { p->value = v.value; p->place = v.place; }
HELPER void put(device Entry* p, Entry v) { p->position = v.position; p->row = v.row; }
template <class T> HELPER T get_shared(const threadgroup T* p) { return *p; }
template <class T> HELPER Best<T> get_shared(const threadgroup Best<T>* p) { return Best<T>{p->value, p->place}; }
template <class T> HELPER void put_shared(threadgroup T* p, T v) { *p = v; }
template <class T> HELPER void put_shared(threadgroup Best<T>* p, Best<T> v) { p->value = v.value; p->place = v.place; }

// Shuffles move 32 bits.
HELPER float exchanged(float v, int mask) { return simd_shuffle_xor(v, (u16)mask); }
HELPER int exchanged(int v, int mask) { return simd_shuffle_xor(v, (u16)mask); }
HELPER u32 exchanged(u32 v, int mask) { return simd_shuffle_xor(v, (u16)mask); }
HELPER bool exchanged(bool v, int mask) { return simd_shuffle_xor((int)v, (u16)mask) != 0; }
HELPER u64 exchanged(u64 v, int mask) {
  u32 low = simd_shuffle_xor((u32)v, (u16)mask), high = simd_shuffle_xor((u32)(v >> 32), (u16)mask);
  return (u64)high << 32 | low;
}
HELPER i64 exchanged(i64 v, int mask) {
  u32 low = simd_shuffle_xor((u32)v, (u16)mask), high = simd_shuffle_xor((u32)((u64)v >> 32), (u16)mask);
  return (i64)((u64)high << 32 | low);
}
template <class T> HELPER T shuffle_xor(T v, int mask) { return exchanged(v, mask); }
template <class T> HELPER Best<T> shuffle_xor(Best<T> v, int mask) {
  T value = exchanged(v.value, mask);
  return Best<T>{value, exchanged(v.place, mask)};
}
HELPER u32 ballot(bool test) { return (u32)(simd_vote::vote_t)simd_ballot(test); }
HELPER u32 match(int value) {
  u32 equal = 0;
  for (u16 lane = 0; lane < 32; ++lane) equal |= (u32)(simd_shuffle(value, lane) == value) << lane;
  return equal;
}
HELPER int any_of(int number) {
  for (int mask = 16; mask > 0; mask /= 2) number |= shuffle_xor(number, mask);
  return number;
}

// A flag record: how many, and the first. A last kernel takes its value from what was noted. See `flags`.
HELPER void raise_flag(device u32* flag, u64 place) {
  atomic_fetch_add_explicit((device atomic_uint*)flag, 1u, memory_order_relaxed);
  atomic_fetch_max_explicit((device atomic_uint*)(flag + 3), 0xffffffffu - (u32)place, memory_order_relaxed);
}
HELPER void raise_noted(device u32* flag, device int* noted, u64 place, i64 value) {
  noted[place] = (int)(value < -2147483648l ? -2147483648l : value > 2147483647l ? 2147483647l : value);
  raise_flag(flag, place);
}
"""
    + PHILOX
    + r"""
HELPER Pack<float, 4> uniform_of(Words w) {
  Pack<float, 4> out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.at[i] = (float)(w.at[i] >> 8) * 5.9604644775390625e-8f;
  return out;
}
HELPER Pack<float, 4> normal_of(Words w) {
  Pack<float, 4> out;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    float radius = sqrt_(-2.0f * log_((float)((w.at[i] >> 8) + 1u) * 5.9604644775390625e-8f));
    float half_turns = (float)(w.at[i + 1] >> 8) * 1.1920928955078125e-7f;
    out.at[i] = radius * precise::cospi(half_turns);
    out.at[i + 1] = radius * precise::sinpi(half_turns);
  }
  return out;
}
"""
)
