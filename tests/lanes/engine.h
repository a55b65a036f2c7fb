// The lane engine as kernels see it: who a lane is, and the one primitive of every collective: deposit, wait, read.
#pragma once
#pragma GCC system_header

namespace lanes {
enum { WIDTH = 32, MAX_LANES = 1024, SLOT_BYTES = 64, MAX_ARGUMENTS = 128 };
enum Memory { NO_MEMORY = 0, DEVICE_MEMORY = 1, SHARED_MEMORY = 2 };
enum Atomic { LOAD, STORE, UPDATE };
enum Status { FRESH, READY, AT_WARP, AT_GROUP, RETURNED };
struct Three { unsigned x, y, z; };

struct Lane {
  Three in_group;
  unsigned index, lane, warp;  // in the group; in the warp; which warp
  Status status;
  unsigned mask, memory, bytes;  // of the collective where it waits: who takes part, what it orders, its deposit
  const char* file;
  int line;
  void* stack_pointer;
};

struct State {
  Lane* current;
  Three group, group_size, num_groups;
  bool checked;
  void* arguments[MAX_ARGUMENTS];
  unsigned char* arena;  // the shared memory of the group
  Lane lanes[MAX_LANES];
  alignas(64) unsigned char deposits[MAX_LANES][SLOT_BYTES], received[MAX_LANES][SLOT_BYTES];
};

// An array of shared memory, for the checker. The last of a kernel has no bytes.
struct SharedArray { unsigned offset, bytes, item_bytes; };

template <class T> struct Element { typedef T type; };
template <class T, unsigned long N> struct Element<T[N]> { typedef typename Element<T>::type type; };
}  // namespace lanes

extern "C" {
extern lanes::State lanes_state;
// Wait for the lanes of the mask in one's warp, or for the group.
void lanes_wait_warp(unsigned mask, unsigned memory, const char* file, int line);
void lanes_wait_group(unsigned memory, const char* file, int line);
// Told by atomic operations, whose own accesses the checker does not see. pc: where they return to.
void lanes_atomic(const volatile void* address, unsigned bytes, lanes::Atomic kind, void* pc);
}

#define LANES_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
// A body whose accesses the checker is not told of.
#define LANES_UNSEEN __attribute__((no_sanitize("thread"), noinline))

namespace lanes {
// What the lanes that took part have deposited. Another lane's value is anything: all bits set.
template <class T> struct Deposits {
  const unsigned char (*slots)[SLOT_BYTES];
  unsigned mask;
  T of(unsigned lane) const {
    T value;
    if (lane < WIDTH && (mask >> lane & 1u))
      __builtin_memcpy(&value, slots[lane], sizeof(T));
    else
      __builtin_memset((void*)&value, 0xff, sizeof(T));
    return value;
  }
};

template <class T> inline Deposits<T> exchange(T value, unsigned mask, const char* file, int line) {
  static_assert(sizeof(T) <= SLOT_BYTES, "a slot holds 64 bytes");
  Lane* self = lanes_state.current;
  __builtin_memcpy(lanes_state.deposits[self->index], &value, sizeof(T));
  self->bytes = sizeof(T);
  lanes_wait_warp(mask, NO_MEMORY, file, line);
  return Deposits<T>{lanes_state.received + self->warp * WIDTH, self->mask};
}

// The values of all lanes of the group, by index.
template <class T> inline const unsigned char (*exchange_in_group(T value, unsigned memory, const char* file, int line))[SLOT_BYTES] {
  Lane* self = lanes_state.current;
  __builtin_memcpy(lanes_state.deposits[self->index], &value, sizeof(T));
  self->bytes = sizeof(T);
  lanes_wait_group(memory, file, line);
  return lanes_state.received;
}
inline unsigned num_lanes() {
  return lanes_state.group_size.x * lanes_state.group_size.y * lanes_state.group_size.z;
}
}  // namespace lanes
