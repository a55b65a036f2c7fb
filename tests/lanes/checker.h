// What the engine tells the access checker, and what both report.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine.h"

namespace lanes {
enum { MAX_FOUND = 32 };
const unsigned NOBODY = 0xffffffffu;

// A fault. Of accesses the program counter is known, of collectives the file and line.
struct Found {
  const char* what;
  const char* file;
  int line;
  void* pc;
  int argument;  // its number; shared array n is -2 - n; none is -1
  long element;
  unsigned lane, other;
  int other_line;
};

// A buffer of a kernel: `address` is what the kernel gets, [begin, begin + bytes) is what it may touch.
struct Argument {
  void* address;
  char* begin;
  size_t bytes;
  unsigned item_bytes, initialised, writable;
};

struct Request {
  void (*body)();
  Three num_groups, group_size;
  unsigned order, seed, checked, shared_bytes, num_arguments;
  const Argument* arguments;
  const SharedArray* arrays;
  char *module_begin, *module_end;  // the library of the kernel, whose constants it may read
};

void report(const Found& fault);
// Leave the lane, and end the run.
void give_up();
void begin_run(const Request& request, char* stacks, size_t stack_bytes);
void end_run();
void begin_group(uint64_t number);
// A collective was released that orders these kinds of memory, of the group or of one warp.
void ordered(bool whole_group, unsigned warp, unsigned memory);
}  // namespace lanes
