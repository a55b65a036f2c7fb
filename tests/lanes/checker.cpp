// The access checker. Kernels are compiled with -fsanitize=thread; the calls that the compiler makes of it before each
// access of memory end here, in place of its runtime.
//
// Each cell of each buffer knows its last writer, its last reader, and when they came. Two lanes of a group are ordered
// by a barrier of the group between them whose flags name that memory, or by one of their warp; lanes of two groups never.
#include "checker.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace lanes;

namespace {
enum Kind { READ, WRITE, ATOMIC_LOAD, ATOMIC_STORE, ATOMIC_UPDATE };
const unsigned MANY = 0xfffffffeu, MANY_OF_WARP = 0x80000000u;

struct Access {
  unsigned who, group, group_time, warp_time;  // who: the lane + 1; 0: none so far
};
struct Cell {
  Access writer, reader;
  bool atomic, written;
};
struct Region {
  char *begin, *end;
  unsigned cell_bytes;
  int argument;
  bool shared, initialised, writable;
  size_t num_cells;
  Cell* cells;  // from calloc: pages of cells that nobody touches cost nothing
};

std::vector<Region> regions;
size_t last;
unsigned group_time[2], warp_time[MAX_LANES / WIDTH][2];  // by kind of memory: device, shared
unsigned group;
char *stacks_begin, *stacks_end, *module_begin, *module_end;
bool running;

void add(char* begin, size_t bytes, unsigned item_bytes, int argument, bool shared, bool initialised, bool writable) {
  unsigned cell_bytes = item_bytes % 4 == 0 ? 4 : item_bytes;
  size_t num_cells = (bytes + cell_bytes - 1) / cell_bytes;
  regions.push_back({begin, begin + bytes, cell_bytes, argument, shared, initialised, writable, num_cells, nullptr});
}

bool concurrent(const Access& before, const Region& region) {
  const Lane& now = *lanes_state.current;
  if (!before.who) return false;
  if (before.group != group) return !region.shared;
  if (before.who == now.index + 1 || before.group_time != group_time[region.shared]) return false;
  unsigned warp = before.who == MANY            ? NOBODY
                  : before.who & MANY_OF_WARP   ? before.who & ~MANY_OF_WARP
                                                : (before.who - 1) / WIDTH;
  return warp != now.warp || before.warp_time == warp_time[warp][region.shared];
}

void tell(const char* what, void* pc, const Region* region, long element, unsigned other) {
  Found fault = {what, "", 0, pc, region ? region->argument : -1, element, lanes_state.current->index, other, 0};
  report(fault);
}

void remember_reader(Cell& cell, const Access& now) {
  Access& reader = cell.reader;
  bool current = reader.who && reader.group == group && reader.group_time == now.group_time;
  unsigned warp = (now.who - 1) / WIDTH;
  if (!current || reader.who == now.who) {
    reader = now;
  } else if (reader.who == (MANY_OF_WARP | warp) || (reader.who <= MAX_LANES && (reader.who - 1) / WIDTH == warp)) {
    reader = now;
    reader.who = MANY_OF_WARP | warp;
  } else {
    reader.who = MANY;
  }
}

void access(const volatile void* address, size_t bytes, Kind kind, void* pc) {
  char* p = (char*)address;
  if (!running || (p >= stacks_begin && p < stacks_end)) return;
  if ((size_t)(p - (char*)&lanes_state) < sizeof lanes_state) return;
  if (kind == READ && p >= module_begin && p < module_end) return;
  if (last >= regions.size() || p < regions[last].begin || p >= regions[last].end) {
    for (last = 0; last < regions.size() && (p < regions[last].begin || p >= regions[last].end);) ++last;
    if (last == regions.size()) {
      tell("an access outside every buffer", pc, nullptr, 0, NOBODY);
      return give_up();
    }
  }
  Region& region = regions[last];
  if (p + bytes > region.end) {
    tell("an access past the end of a buffer", pc, &region, (p - region.begin) / region.cell_bytes, NOBODY);
    return give_up();
  }
  bool reads = kind != WRITE && kind != ATOMIC_STORE, writes = kind != READ && kind != ATOMIC_LOAD;
  bool atomic = kind != READ && kind != WRITE;
  if (writes && !region.writable) tell("a write to a buffer that is only read", pc, &region, 0, NOBODY);
  const Lane& self = *lanes_state.current;
  Access now = {self.index + 1, group, group_time[region.shared], warp_time[self.warp][region.shared]};
  size_t first = (p - region.begin) / region.cell_bytes, stop = (p - region.begin + bytes - 1) / region.cell_bytes + 1;
  for (size_t i = first; i < stop; ++i) {
    Cell& cell = region.cells[i];
    if (!(atomic && cell.atomic) && concurrent(cell.writer, region))
      tell(!writes ? "a race: read of what another lane writes" : "a race: two lanes write", pc, &region, (long)i,
           cell.writer.who - 1);
    if (writes && concurrent(cell.reader, region))
      tell("a race: write of what another lane reads", pc, &region, (long)i, cell.reader.who - 1);
    if (reads && !cell.written && !region.initialised)
      tell("a read of memory that nothing was written to", pc, &region, (long)i, NOBODY);
    if (kind == READ) {
      remember_reader(cell, now);
    } else if (writes) {
      cell.writer = now;
      cell.atomic = atomic;
      cell.written = true;
    }
  }
}
}  // namespace

void lanes::begin_run(const Request& request, char* stacks, size_t stack_bytes) {
  last = 0;
  stacks_begin = stacks;
  stacks_end = stacks + stack_bytes;
  module_begin = request.module_begin;
  module_end = request.module_end;
  for (unsigned i = 0; i < request.num_arguments; ++i) {
    const Argument& x = request.arguments[i];
    if (!x.bytes) continue;
    char *begin = x.begin, *end = x.begin + x.bytes;
    unsigned item_bytes = x.item_bytes;
    bool initialised = x.initialised, writable = x.writable;
    // Arguments that share memory are one region.
    for (size_t n = 0; n < regions.size();) {
      Region& other = regions[n];
      if (begin >= other.end || other.begin >= end) {
        ++n;
        continue;
      }
      begin = std::min(begin, other.begin);
      end = std::max(end, other.end);
      item_bytes = std::min(item_bytes, other.cell_bytes);
      initialised |= other.initialised;
      writable |= other.writable;
      regions.erase(regions.begin() + (long)n);
      n = 0;
    }
    add(begin, end - begin, item_bytes, (int)i, false, initialised, writable);
  }
  for (int n = 0; request.arrays && request.arrays[n].bytes; ++n) {
    const SharedArray& array = request.arrays[n];
    add((char*)lanes_state.arena + array.offset, array.bytes, array.item_bytes, -2 - n, true, false, true);
  }
  for (Region& region : regions) region.cells = (Cell*)calloc(region.num_cells, sizeof(Cell));
  memset(group_time, 0, sizeof group_time);
  memset(warp_time, 0, sizeof warp_time);
  running = true;
}

void lanes::end_run() {
  running = false;
  for (Region& region : regions) free(region.cells);
  regions.clear();
}

void lanes::begin_group(uint64_t number) {
  group = (unsigned)number;
  ++group_time[0], ++group_time[1];
  for (Region& region : regions)
    if (region.shared) memset((void*)region.cells, 0, region.num_cells * sizeof(Cell));
}

void lanes::ordered(bool whole_group, unsigned warp, unsigned memory) {
  for (int kind = 0; kind < 2; ++kind) {
    if (!(memory & (kind ? SHARED_MEMORY : DEVICE_MEMORY))) continue;
    if (whole_group)
      ++group_time[kind];
    else
      ++warp_time[warp][kind];
  }
}

void lanes_atomic(const volatile void* address, unsigned bytes, Atomic kind, void* pc) {
  const Kind kinds[] = {ATOMIC_LOAD, ATOMIC_STORE, ATOMIC_UPDATE};
  if (lanes_state.checked) access(address, bytes, kinds[kind], pc);
}

#define PC __builtin_return_address(0)
#define SIZED(n)                                                               \
  void __tsan_read##n(void* p) { access(p, n, READ, PC); }                     \
  void __tsan_write##n(void* p) { access(p, n, WRITE, PC); }                   \
  void __tsan_unaligned_read##n(void* p) { access(p, n, READ, PC); }           \
  void __tsan_unaligned_write##n(void* p) { access(p, n, WRITE, PC); }         \
  void __tsan_volatile_read##n(void* p) { access(p, n, READ, PC); }            \
  void __tsan_volatile_write##n(void* p) { access(p, n, WRITE, PC); }
extern "C" {
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)
void __tsan_read_range(void* p, size_t n) { access(p, n, READ, PC); }
void __tsan_write_range(void* p, size_t n) { access(p, n, WRITE, PC); }
void* __tsan_memset(void* to, int value, size_t n) {
  access(to, n, WRITE, PC);
  return memset(to, value, n);
}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access(from, n, READ, PC);
  access(to, n, WRITE, PC);
  return memcpy(to, from, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
