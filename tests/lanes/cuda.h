// CUDA C++ over the lane engine: the built-ins that our kernels use, as NVRTC has them without headers.
#pragma once
#include "engine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define LANES_SHARED_SPACE

#define threadIdx (lanes_state.current->in_group)
#define blockIdx (lanes_state.group)
#define blockDim (lanes_state.group_size)
#define gridDim (lanes_state.num_groups)

typedef unsigned long size_t;
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

namespace lanes {
enum { ALL_MEMORY = DEVICE_MEMORY | SHARED_MEMORY };
}
inline void __syncthreads(LANES_HERE) { lanes_wait_group(lanes::ALL_MEMORY, file, line); }
inline int __syncthreads_or(int test, LANES_HERE) {
  const unsigned char(*all)[lanes::SLOT_BYTES] = lanes::exchange_in_group(test, lanes::ALL_MEMORY, file, line);
  int any = 0, one;
  for (unsigned i = 0; i < lanes::num_lanes(); ++i) {
    __builtin_memcpy(&one, all[i], sizeof one);
    any |= one != 0;
  }
  return any;
}
inline void __syncwarp(unsigned mask = ~0u, LANES_HERE) { lanes_wait_warp(mask, lanes::ALL_MEMORY, file, line); }

template <class T> inline T __shfl_sync(unsigned mask, T value, int from, int = 32, LANES_HERE) {
  return lanes::exchange(value, mask, file, line).of((unsigned)from % 32);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int with, int = 32, LANES_HERE) {
  return lanes::exchange(value, mask, file, line).of(lanes_state.current->lane ^ (unsigned)with);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned away, int = 32, LANES_HERE) {
  unsigned lane = lanes_state.current->lane;
  return lanes::exchange(value, mask, file, line).of(lane >= away ? lane - away : lane);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned away, int = 32, LANES_HERE) {
  unsigned lane = lanes_state.current->lane;
  return lanes::exchange(value, mask, file, line).of(lane + away < 32 ? lane + away : lane);
}
template <class F> inline unsigned lanes_votes(int value, unsigned mask, const char* file, int line, F counts) {
  lanes::Deposits<int> all = lanes::exchange(value, mask, file, line);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i)
    if ((all.mask >> i & 1u) && counts(all.of(i))) votes |= 1u << i;
  return votes;
}
inline unsigned __ballot_sync(unsigned mask, int test, LANES_HERE) {
  return lanes_votes(test, mask, file, line, [](int other) { return other != 0; });
}
inline unsigned __match_any_sync(unsigned mask, int value, LANES_HERE) {
  return lanes_votes(value, mask, file, line, [value](int other) { return other == value; });
}

template <class T> LANES_UNSEEN T atomicAdd(T* p, T value) {
  lanes_atomic(p, sizeof(T), lanes::UPDATE, __builtin_return_address(0));
  T old = *p;
  *p = old + value;
  return old;
}
template <class T> LANES_UNSEEN T atomicMax(T* p, T value) {
  lanes_atomic(p, sizeof(T), lanes::UPDATE, __builtin_return_address(0));
  T old = *p;
  *p = old > value ? old : value;
  return old;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class To, class From> inline To lanes_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return lanes_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return lanes_bits<float>(x); }
inline double __longlong_as_double(long long x) { return lanes_bits<double>(x); }

// Functions of one float and of one double, under their names in C.
#define LANES_FUNCTION(name)                                              \
  inline float name##f(float x) { return __builtin_##name##f(x); }        \
  inline double name(double x) { return __builtin_##name(x); }
LANES_FUNCTION(exp) LANES_FUNCTION(expm1) LANES_FUNCTION(log) LANES_FUNCTION(log1p) LANES_FUNCTION(sqrt)
LANES_FUNCTION(tanh) LANES_FUNCTION(erf) LANES_FUNCTION(sin) LANES_FUNCTION(cos) LANES_FUNCTION(atan)
LANES_FUNCTION(floor) LANES_FUNCTION(ceil) LANES_FUNCTION(rint) LANES_FUNCTION(fabs)
inline float powf(float x, float y) { return __builtin_powf(x, y); }
inline double pow(double x, double y) { return __builtin_pow(x, y); }
inline float cospif(float x) { return (float)__builtin_cos(3.14159265358979323846 * (double)x); }
inline float sinpif(float x) { return (float)__builtin_sin(3.14159265358979323846 * (double)x); }
