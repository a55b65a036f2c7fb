// Metal Shading Language 2.4 over the lane engine: what our printers use of it, and nothing that it lacks.
//
// No header is included, so that names of C and C++ libraries fail as they do in Metal. LANES_STRICT (clang) makes
// address spaces part of the types. Spaces below 256 are ordinary memory, so the same text can run.
#pragma once
#pragma GCC system_header
#include "engine.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#ifdef __FLT16_MANT_DIG__
typedef _Float16 half;
#endif

#ifdef LANES_STRICT
#define LANES_DEVICE __attribute__((address_space(1)))
#define LANES_CONSTANT const __attribute__((address_space(2)))
#define LANES_THREADGROUP __attribute__((address_space(3)))
#define LANES_EACH_SPACE(F) F(LANES_DEVICE) F(LANES_THREADGROUP)
#else
#define LANES_DEVICE
#define LANES_CONSTANT
#define LANES_THREADGROUP
#define LANES_EACH_SPACE(F) F()
#endif

// ------------------------------------------------------------------------------------------------------- vectors
#ifdef LANES_STRICT
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
#define LANES_VECTOR(T)                                                                                   \
  typedef vec<T, 2> T##2;                                                                                 \
  typedef vec<T, 3> T##3;                                                                                 \
  typedef vec<T, 4> T##4;                                                                                 \
  inline T##2 lanes_##T##2(T a, T b) { return T##2{a, b}; }                                               \
  inline T##3 lanes_##T##3(T a, T b, T c) { return T##3{a, b, c}; }                                       \
  inline T##4 lanes_##T##4(T a, T b, T c, T d) { return T##4{a, b, c, d}; }                               \
  inline T##2 lanes_##T##2(T a) { return T##2{a, a}; }                                                    \
  inline T##3 lanes_##T##3(T a) { return T##3{a, a, a}; }                                                 \
  inline T##4 lanes_##T##4(T a) { return T##4{a, a, a, a}; }
#else
template <class T, int N> struct vec;
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  vec(T a) : x(a), y(a) {}
  vec(T a, T b) : x(a), y(b) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  vec(T a) : x(a), y(a), z(a) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  vec(T a) : x(a), y(a), z(a), w(a) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
#define LANES_OPERATOR(sign)                                                              \
  template <class T, int N> inline vec<T, N> operator sign(vec<T, N> a, vec<T, N> b) {    \
    for (int i = 0; i < N; ++i) a[i] = T(a[i] sign b[i]);                                 \
    return a;                                                                             \
  }                                                                                       \
  template <class T, int N> inline vec<T, N> operator sign(vec<T, N> a, T b) {            \
    for (int i = 0; i < N; ++i) a[i] = T(a[i] sign b);                                    \
    return a;                                                                             \
  }
LANES_OPERATOR(+)
LANES_OPERATOR(-)
LANES_OPERATOR(*)
LANES_OPERATOR(/)
#define LANES_VECTOR(T)    \
  typedef vec<T, 2> T##2;  \
  typedef vec<T, 3> T##3;  \
  typedef vec<T, 4> T##4;
#endif
LANES_VECTOR(float)
LANES_VECTOR(int)
LANES_VECTOR(uint)
LANES_VECTOR(long)
LANES_VECTOR(ulong)
LANES_VECTOR(short)
LANES_VECTOR(ushort)
LANES_VECTOR(char)
LANES_VECTOR(uchar)

// The same bits as another type of the same size.
template <class To, class From> inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

namespace metal {
using ::vec;

// ------------------------------------------------------------------------------------- barriers and collectives
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags flags, LANES_HERE) { lanes_wait_group(unsigned(flags) & 3u, file, line); }
inline void simdgroup_barrier(mem_flags flags, LANES_HERE) { lanes_wait_warp(~0u, unsigned(flags) & 3u, file, line); }

// Numbers that a simdgroup can exchange: at most 32 bits each, and no bool.
template <class T> struct Exchanged { static_assert(sizeof(T) <= 4, "64 bits are two exchanges"); };
template <> struct Exchanged<bool>;
#ifndef LANES_STRICT
template <class T, int N> struct Exchanged<vec<T, N>> : Exchanged<T> {};
#else
#define LANES_EXCHANGED(T) \
  template <> struct Exchanged<T##2> : Exchanged<T> {}; \
  template <> struct Exchanged<T##4> : Exchanged<T> {};
LANES_EXCHANGED(float) LANES_EXCHANGED(int) LANES_EXCHANGED(uint)
#endif
template <class T> inline lanes::Deposits<T> lanes_exchange(T value, const char* file, int line) {
  (void)sizeof(Exchanged<T>);
  return lanes::exchange(value, ~0u, file, line);
}
inline uint lanes_lane() { return lanes_state.current->lane; }
template <class T> inline T simd_shuffle(T value, ushort from, LANES_HERE) {
  return lanes_exchange(value, file, line).of(from);
}
template <class T> inline T simd_shuffle_xor(T value, ushort mask, LANES_HERE) {
  return lanes_exchange(value, file, line).of(lanes_lane() ^ mask);
}
// What comes from outside of the simdgroup is undefined: all bits set.
template <class T> inline T simd_shuffle_up(T value, ushort delta, LANES_HERE) {
  return lanes_exchange(value, file, line).of(lanes_lane() - delta);
}
template <class T> inline T simd_shuffle_down(T value, ushort delta, LANES_HERE) {
  return lanes_exchange(value, file, line).of(lanes_lane() + delta);
}
template <class T> inline T simd_broadcast(T value, ushort from, LANES_HERE) {
  return lanes_exchange(value, file, line).of(from);
}
template <class T> inline T simd_broadcast_first(T value, LANES_HERE) {
  lanes::Deposits<T> all = lanes_exchange(value, file, line);
  return all.of((uint)__builtin_ctz(all.mask));
}
// The order of such a sum is not specified: here it is neither that of the lanes nor its reverse.
template <class T, class F> inline T lanes_fold(lanes::Deposits<T> all, F both) {
  T values[lanes::WIDTH];
  uint count = 0;
  for (uint i = 0; i < lanes::WIDTH; ++i)
    if (all.mask >> i & 1u) values[count++] = all.of(i);
  while (count > 1) {
    uint half_of = (count + 1) / 2;
    for (uint i = 0; i + half_of < count; ++i) values[i] = both(values[i], values[i + half_of]);
    count = half_of;
  }
  return values[0];
}
#define LANES_FOLD(name, expression)                                                     \
  template <class T> inline T name(T value, LANES_HERE) {                                \
    return lanes_fold(lanes_exchange(value, file, line), [](T a, T b) { return T(expression); }); \
  }
LANES_FOLD(simd_sum, a + b)
LANES_FOLD(simd_product, a * b)
LANES_FOLD(simd_max, a > b || b != b ? a : b)
LANES_FOLD(simd_min, a < b || b != b ? a : b)
LANES_FOLD(simd_and, a & b)
LANES_FOLD(simd_or, a | b)
LANES_FOLD(simd_xor, a ^ b)
template <class T> inline T simd_prefix_inclusive_sum(T value, LANES_HERE) {
  lanes::Deposits<T> all = lanes_exchange(value, file, line);
  T sum = all.of(0);
  for (uint i = 1; i <= lanes_lane(); ++i) sum = T(sum + all.of(i));
  return sum;
}
template <class T> inline T simd_prefix_exclusive_sum(T value, LANES_HERE) {
  lanes::Deposits<T> all = lanes_exchange(value, file, line);
  T sum = T(0);
  for (uint i = 0; i < lanes_lane(); ++i) sum = T(sum + all.of(i));
  return sum;
}
struct simd_vote {
  typedef ulong vote_t;
  vote_t votes, everybody;
  explicit operator vote_t() const { return votes; }
  bool all() const { return votes == everybody; }
  bool any() const { return votes != 0; }
};
inline simd_vote simd_ballot(bool vote, LANES_HERE) {
  lanes::Deposits<int> all = lanes::exchange(int(vote), ~0u, file, line);
  simd_vote result = {0, all.mask};
  for (uint i = 0; i < lanes::WIDTH; ++i)
    if ((all.mask >> i & 1u) && all.of(i)) result.votes |= 1ul << i;
  return result;
}
inline bool simd_any(bool vote, LANES_HERE) { return simd_ballot(vote, file, line).any(); }
inline bool simd_all(bool vote, LANES_HERE) { return simd_ballot(vote, file, line).all(); }

// ----------------------------------------------------------------------------------------- matrices of a simdgroup
// Where a lane keeps its two elements is not specified: here rows are dealt out backwards.
template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "8 by 8");
  T lanes_elements[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
inline uint lanes_row(uint lane) { return 7u - lane / 4u; }
inline uint lanes_column(uint lane) { return lane % 4u * 2u; }
inline uint lanes_holder(uint row, uint column) { return (7u - row) * 4u + column / 2u; }
template <class T, int R, int C> simdgroup_matrix<T, R, C>::simdgroup_matrix(T diagonal) {
  uint row = lanes_row(lanes_lane()), column = lanes_column(lanes_lane());
  for (uint k = 0; k < 2; ++k) lanes_elements[k] = row == column + k ? diagonal : T(0);
}
template <class T, int R, int C> inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> m;
  m.lanes_elements[0] = m.lanes_elements[1] = value;
  return m;
}
#define LANES_MATRIX(SPACE)                                                                                         \
  template <class T>                                                                                                \
  inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const SPACE T* from, ulong row_length = 8,               \
                             ulong2 origin = ulong2(0, 0), bool transposed = false, LANES_HERE) {                   \
    lanes_wait_warp(~0u, 0, file, line);                                                                            \
    uint row = lanes_row(lanes_lane()), column = lanes_column(lanes_lane());                                        \
    for (uint k = 0; k < 2; ++k) {                                                                                  \
      ulong y = transposed ? column + k : row, x = transposed ? row : column + k;                                   \
      m.lanes_elements[k] = from[(y + origin.y) * row_length + x + origin.x];                                       \
    }                                                                                                               \
  }                                                                                                                 \
  template <class T>                                                                                                \
  inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, SPACE T* to, ulong row_length = 8,                       \
                              ulong2 origin = ulong2(0, 0), bool transposed = false, LANES_HERE) {                  \
    lanes_wait_warp(~0u, 0, file, line);                                                                            \
    uint row = lanes_row(lanes_lane()), column = lanes_column(lanes_lane());                                        \
    for (uint k = 0; k < 2; ++k) {                                                                                  \
      ulong y = transposed ? column + k : row, x = transposed ? row : column + k;                                   \
      to[(y + origin.y) * row_length + x + origin.x] = m.lanes_elements[k];                                         \
    }                                                                                                               \
  }
#ifdef LANES_STRICT
#define ulong2(...) lanes_ulong2(__VA_ARGS__)
#endif
LANES_EACH_SPACE(LANES_MATRIX)
template <class T> inline void simdgroup_multiply_accumulate(
    simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b,
    simdgroup_matrix<T, 8, 8> c, LANES_HERE) {
  struct Both { T a[2], b[2]; } mine = {{a.lanes_elements[0], a.lanes_elements[1]},
                                        {b.lanes_elements[0], b.lanes_elements[1]}};
  lanes::Deposits<Both> all = lanes::exchange(mine, ~0u, file, line);
  uint row = lanes_row(lanes_lane()), column = lanes_column(lanes_lane());
  T sums[2] = {c.lanes_elements[0], c.lanes_elements[1]};
  for (uint n = 0; n < 8; ++n) {
    T left = all.of(lanes_holder(row, n)).a[n % 2];
    Both right = all.of(lanes_holder(n, column));
    for (uint k = 0; k < 2; ++k) sums[k] = __builtin_fmaf(left, right.b[k], sums[k]);
  }
  for (uint k = 0; k < 2; ++k) d.lanes_elements[k] = sums[k];
}
template <class T> inline void simdgroup_multiply(
    simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b, LANES_HERE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<T, 8, 8>(T(0)), file, line);
}

// ------------------------------------------------------------------------------------------------ relaxed atomics
enum memory_order { memory_order_relaxed };
template <class T> struct lanes_atomic_of { T value; };
typedef lanes_atomic_of<int> atomic_int;
typedef lanes_atomic_of<uint> atomic_uint;
#define LANES_FETCH(SPACE, name, expression)                                                                        \
  template <class T, class U>                                                                                       \
  LANES_UNSEEN T name(volatile SPACE lanes_atomic_of<T>* p, U with, memory_order) {                                 \
    lanes_atomic((const void*)p, sizeof(T), lanes::UPDATE, __builtin_return_address(0));                                           \
    T old = p->value, other = T(with);                                                                              \
    p->value = T(expression);                                                                                       \
    return old;                                                                                                     \
  }
#define LANES_ATOMICS(SPACE)                                                                                        \
  template <class T> LANES_UNSEEN T atomic_load_explicit(const volatile SPACE lanes_atomic_of<T>* p, memory_order) { \
    lanes_atomic((const void*)p, sizeof(T), lanes::LOAD, __builtin_return_address(0));                                           \
    return p->value;                                                                                                \
  }                                                                                                                 \
  template <class T, class U>                                                                                       \
  LANES_UNSEEN void atomic_store_explicit(volatile SPACE lanes_atomic_of<T>* p, U value, memory_order) {            \
    lanes_atomic((const void*)p, sizeof(T), lanes::STORE, __builtin_return_address(0));                                           \
    p->value = T(value);                                                                                            \
  }                                                                                                                 \
  template <class T, class U>                                                                                       \
  LANES_UNSEEN bool atomic_compare_exchange_weak_explicit(                                                          \
      volatile SPACE lanes_atomic_of<T>* p, T* expected, U value, memory_order, memory_order) {                     \
    lanes_atomic((const void*)p, sizeof(T), lanes::UPDATE, __builtin_return_address(0));                                           \
    T old = p->value;                                                                                               \
    if (old == *expected) {                                                                                         \
      p->value = T(value);                                                                                          \
      return true;                                                                                                  \
    }                                                                                                               \
    *expected = old;                                                                                                \
    return false;                                                                                                   \
  }                                                                                                                 \
  LANES_FETCH(SPACE, atomic_exchange_explicit, other)                                                               \
  LANES_FETCH(SPACE, atomic_fetch_add_explicit, old + other)                                                        \
  LANES_FETCH(SPACE, atomic_fetch_sub_explicit, old - other)                                                        \
  LANES_FETCH(SPACE, atomic_fetch_max_explicit, old > other ? old : other)                                          \
  LANES_FETCH(SPACE, atomic_fetch_min_explicit, old < other ? old : other)                                          \
  LANES_FETCH(SPACE, atomic_fetch_and_explicit, old & other)                                                        \
  LANES_FETCH(SPACE, atomic_fetch_or_explicit, old | other)                                                         \
  LANES_FETCH(SPACE, atomic_fetch_xor_explicit, old ^ other)
LANES_EACH_SPACE(LANES_ATOMICS)

// --------------------------------------------------------------------------------------------------------- numbers
#define LANES_ONE(name, builtin) inline float name(float x) { return builtin(x); }
inline float lanes_cospi(float x) { return (float)__builtin_cos(3.14159265358979323846 * (double)x); }
inline float lanes_sinpi(float x) { return (float)__builtin_sin(3.14159265358979323846 * (double)x); }
#define LANES_MATH                                                                                        \
  LANES_ONE(exp, __builtin_expf) LANES_ONE(exp2, __builtin_exp2f) LANES_ONE(log, __builtin_logf)          \
  LANES_ONE(log2, __builtin_log2f) LANES_ONE(log10, __builtin_log10f) LANES_ONE(sqrt, __builtin_sqrtf)    \
  LANES_ONE(sin, __builtin_sinf) LANES_ONE(cos, __builtin_cosf) LANES_ONE(tan, __builtin_tanf)            \
  LANES_ONE(asin, __builtin_asinf) LANES_ONE(acos, __builtin_acosf) LANES_ONE(atan, __builtin_atanf)      \
  LANES_ONE(sinh, __builtin_sinhf) LANES_ONE(cosh, __builtin_coshf) LANES_ONE(tanh, __builtin_tanhf)      \
  LANES_ONE(sinpi, lanes_sinpi) LANES_ONE(cospi, lanes_cospi)                                             \
  LANES_ONE(floor, __builtin_floorf) LANES_ONE(ceil, __builtin_ceilf) LANES_ONE(trunc, __builtin_truncf)  \
  LANES_ONE(rint, __builtin_rintf) LANES_ONE(round, __builtin_roundf) LANES_ONE(fabs, __builtin_fabsf)    \
  inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }                                       \
  inline float pow(float x, float y) { return __builtin_powf(x, y); }                                     \
  inline float atan2(float x, float y) { return __builtin_atan2f(x, y); }                                 \
  inline float fmod(float x, float y) { return __builtin_fmodf(x, y); }                                   \
  inline float fmin(float x, float y) { return __builtin_fminf(x, y); }                                   \
  inline float fmax(float x, float y) { return __builtin_fmaxf(x, y); }                                   \
  inline float divide(float x, float y) { return x / y; }
LANES_MATH
namespace precise { LANES_MATH }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f; }
#define LANES_ORDER(T)                                            \
  inline T min(T a, T b) { return b < a ? b : a; }                \
  inline T max(T a, T b) { return a < b ? b : a; }                \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  inline T select(T a, T b, bool second) { return second ? b : a; }
LANES_ORDER(float) LANES_ORDER(int) LANES_ORDER(uint) LANES_ORDER(long) LANES_ORDER(ulong)
LANES_ORDER(short) LANES_ORDER(ushort)
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return __builtin_signbit(x) != 0; }
inline uint popcount(uint x) { return (uint)__builtin_popcount(x); }
inline uint clz(uint x) { return x ? (uint)__builtin_clz(x) : 32u; }
inline uint ctz(uint x) { return x ? (uint)__builtin_ctz(x) : 32u; }
inline uint mulhi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
}  // namespace metal

#ifdef LANES_STRICT
#undef ulong2
#define float2(...) lanes_float2(__VA_ARGS__)
#define float3(...) lanes_float3(__VA_ARGS__)
#define float4(...) lanes_float4(__VA_ARGS__)
#define int2(...) lanes_int2(__VA_ARGS__)
#define int4(...) lanes_int4(__VA_ARGS__)
#define uint2(...) lanes_uint2(__VA_ARGS__)
#define uint3(...) lanes_uint3(__VA_ARGS__)
#define uint4(...) lanes_uint4(__VA_ARGS__)
#define long2(...) lanes_long2(__VA_ARGS__)
#define ulong2(...) lanes_ulong2(__VA_ARGS__)
#define ushort2(...) lanes_ushort2(__VA_ARGS__)
#define ushort3(...) lanes_ushort3(__VA_ARGS__)
#define ushort4(...) lanes_ushort4(__VA_ARGS__)
#define uchar4(...) lanes_uchar4(__VA_ARGS__)
#endif

#define LANES_SHARED_SPACE LANES_THREADGROUP
// Words of the language, last: nothing above is read with them.
#define kernel static
#define device LANES_DEVICE
#define constant LANES_CONSTANT
#define threadgroup LANES_THREADGROUP
#define thread
