// CUDA C++ on a processor: the built-ins that our kernels use, over a fiber for each thread of a block.
//
// A block runs in one of two orders of its threads. A thread runs until it waits for its warp or its block; the
// set of threads that take part is checked, so a barrier that some thread misses is an error and not a hang.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __shared__ static __attribute__((section("lanes_shared")))

namespace lanes {
enum State { FRESH, READY, AT_WARP, AT_BLOCK, DONE };
enum { MAX_THREADS = 1024, STACK = 64 * 1024 };
struct Dim { unsigned x, y, z; };
struct Thread {
  Dim index;
  int number;
  State state;
  int line;
  unsigned parity;
  void* stack_pointer;
};
struct Warp { alignas(16) unsigned char slots[2][32][8]; };

static Thread threads[MAX_THREADS];
static Warp warps[MAX_THREADS / 32];
static Thread* current;
static Dim block_index, block_size, grid_size;
static int order[MAX_THREADS], num_threads, next_fresh;
static char* stacks;
static void* scheduler;
static void (*body)(void**);
static void** arguments;
static const char* fault;

extern "C" void lanes_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.type lanes_switch,@function
lanes_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
)");
#else
#error "the switch of fibers is written for x86-64"
#endif

static Thread* fresh() {
  while (next_fresh < num_threads) {
    Thread* t = &threads[order[next_fresh++]];
    if (t->state == FRESH) return t;
  }
  return nullptr;
}
static void fiber() {
  for (;;) {
    body(arguments);
    current->state = DONE;
    Thread* next = fresh();
    if (next) {
      current = next;
      continue;
    }
    lanes_switch(&current->stack_pointer, scheduler);
  }
}
static void enter(Thread* t) {
  current = t;
  lanes_switch(&scheduler, t->stack_pointer);
}
static void start(Thread* t) {
  void** top = (void**)(stacks + (size_t)(t->number + 1) * STACK - 64);
  *--top = nullptr;
  *--top = (void*)fiber;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  t->stack_pointer = top;
  enter(t);
}
static void wait(State state, int line) {
  current->state = state;
  current->line = line;
  Thread* self = current;
  lanes_switch(&self->stack_pointer, scheduler);
}
static bool release(int first, int stop, State state) {
  int live = 0, waiting = 0, line = -1;
  for (int i = first; i < stop; ++i) {
    live += threads[i].state != DONE;
    if (threads[i].state == state) {
      ++waiting;
      if (line >= 0 && threads[i].line != line) fault = "threads wait at different lines";
      line = threads[i].line;
    }
  }
  if (!waiting || waiting != live) return false;
  if (live != stop - first) fault = "some threads had returned before the others waited";
  for (int i = first; i < stop; ++i) threads[i].state = READY;
  return true;
}
static void run_block() {
  for (int i = 0; i < num_threads; ++i) threads[i].state = FRESH;
  next_fresh = 0;
  while (!fault) {
    bool moved = false;
    while (Thread* t = fresh()) {
      start(t);
      moved = true;
    }
    for (int i = 0; i < num_threads && !fault; ++i) {
      Thread* t = &threads[order[i]];
      if (t->state == READY) {
        enter(t);
        moved = true;
      }
    }
    for (int w = 0; w < num_threads; w += 32)
      moved |= release(w, w + 32 < num_threads ? w + 32 : num_threads, AT_WARP);
    moved |= release(0, num_threads, AT_BLOCK);
    if (moved) continue;
    for (int i = 0; i < num_threads; ++i)
      if (threads[i].state != DONE) fault = "a barrier that some threads do not reach";
    return;
  }
}
template <class T> const unsigned char (*exchange(T value, int line))[8] {
  static_assert(sizeof(T) <= 8, "a slot");
  Warp* w = &warps[current->number / 32];
  unsigned p = current->parity ^= 1;
  memcpy(w->slots[p][current->number % 32], &value, sizeof(T));
  wait(AT_WARP, line);
  return w->slots[p];
}
template <class T> T from_lane(const unsigned char (*slots)[8], int lane) {
  T value;
  memcpy(&value, slots[lane & 31], sizeof(T));
  return value;
}
}  // namespace lanes

extern char __start_lanes_shared[] __attribute__((weak)), __stop_lanes_shared[] __attribute__((weak));

// Run a kernel; an error as text, or null.
extern "C" const char* lanes_run(
    void (*kernel)(void**), void** arguments, const unsigned* grid, const unsigned* block, int backwards) {
  using namespace lanes;
  if (!stacks)
    stacks = (char*)mmap(nullptr, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  body = kernel;
  lanes::arguments = arguments;
  grid_size = {grid[0], grid[1], grid[2]};
  block_size = {block[0], block[1], block[2]};
  num_threads = block[0] * block[1] * block[2];
  if (num_threads < 1 || num_threads > MAX_THREADS) return "a block of more than 1024 threads";
  fault = nullptr;
  for (int i = 0; i < num_threads; ++i) {
    order[i] = backwards ? num_threads - 1 - i : i;
    threads[i].number = i;
    threads[i].parity = 0;
    threads[i].index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
  }
  uint64_t total = (uint64_t)grid[0] * grid[1] * grid[2];
  for (uint64_t n = 0; n < total && !fault; ++n) {
    uint64_t b = backwards ? total - 1 - n : n;
    block_index = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
    if (__start_lanes_shared) memset(__start_lanes_shared, 0xff, __stop_lanes_shared - __start_lanes_shared);
    run_block();
  }
  return fault;
}

#define threadIdx (lanes::current->index)
#define blockIdx (lanes::block_index)
#define blockDim (lanes::block_size)
#define gridDim (lanes::grid_size)
#define LINE int line = __builtin_LINE()

inline void __syncthreads(LINE) { lanes::wait(lanes::AT_BLOCK, line); }
inline void __syncwarp(unsigned = 0xffffffffu, LINE) { lanes::wait(lanes::AT_WARP, line); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask, int = 32, LINE) {
  auto slots = lanes::exchange(value, line);
  return lanes::from_lane<T>(slots, (lanes::current->number % 32) ^ mask);
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned away, int = 32, LINE) {
  auto slots = lanes::exchange(value, line);
  int lane = lanes::current->number % 32;
  return lanes::from_lane<T>(slots, lane >= (int)away ? lane - (int)away : lane);
}
inline unsigned __ballot_sync(unsigned, int test, LINE) {
  auto slots = lanes::exchange(test, line);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) votes |= (unsigned)(lanes::from_lane<int>(slots, i) != 0) << i;
  return votes;
}
inline unsigned __match_any_sync(unsigned, int value, LINE) {
  auto slots = lanes::exchange(value, line);
  unsigned equal = 0;
  for (int i = 0; i < 32; ++i) equal |= (unsigned)(lanes::from_lane<int>(slots, i) == value) << i;
  return equal;
}
template <class T> T atomicAdd(T* p, T value) { T old = *p; *p = old + value; return old; }
template <class T> T atomicMax(T* p, T value) { T old = *p; *p = old > value ? old : value; return old; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
inline double __longlong_as_double(long long u) { double x; memcpy(&x, &u, 8); return x; }
inline float cospif(float x) { return (float)cos(3.14159265358979323846 * (double)x); }
inline float sinpif(float x) { return (float)sin(3.14159265358979323846 * (double)x); }
