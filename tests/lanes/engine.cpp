// Lanes, warps and groups of a GPU on one processor: a fiber for each lane, switched where a lane waits.
//
// A group runs in one of three orders of its lanes, and groups do so too. A lane runs until it waits for lanes of its
// warp or for its group. Who takes part is checked: lanes that wait at different places, and collectives that some
// lane never reaches, are faults and not hangs. So are wild addresses, and a run that does not end.
#include "engine.h"

#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <sys/time.h>

#include "checker.h"

using namespace lanes;
lanes::State lanes_state;

namespace {
enum { STACK_BYTES = 128 * 1024, ARENA_BYTES = 128 * 1024, PAGE = 64 * 1024, SIGNAL_STACK_BYTES = 64 * 1024 };
enum Order { FORWARD, REVERSE, SHUFFLED };
enum { SECONDS_AT_MOST = 120 };

unsigned order[MAX_LANES], count, next_fresh;
char* stacks;
void* scheduler;
void (*body)();
bool stopped;
sigjmp_buf escape;
uint32_t random_state;
Found found[MAX_FOUND];
int num_found;
const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGPROF};

uint32_t draw() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  return random_state ^= random_state << 5;
}
}  // namespace

extern "C" void lanes_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl lanes_switch
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
static void* first_frame(char* top, void (*entry)()) {
  void** p = (void**)(top - 64);
  *--p = nullptr;
  *--p = (void*)entry;
  for (int i = 0; i < 6; ++i) *--p = nullptr;
  return p;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl lanes_switch
.type lanes_switch,%function
lanes_switch:
 sub sp, sp, #160
 stp x19, x20, [sp, #0]
 stp x21, x22, [sp, #16]
 stp x23, x24, [sp, #32]
 stp x25, x26, [sp, #48]
 stp x27, x28, [sp, #64]
 stp x29, x30, [sp, #80]
 stp d8, d9, [sp, #96]
 stp d10, d11, [sp, #112]
 stp d12, d13, [sp, #128]
 stp d14, d15, [sp, #144]
 mov x9, sp
 str x9, [x0]
 mov sp, x1
 ldp x19, x20, [sp, #0]
 ldp x21, x22, [sp, #16]
 ldp x23, x24, [sp, #32]
 ldp x25, x26, [sp, #48]
 ldp x27, x28, [sp, #64]
 ldp x29, x30, [sp, #80]
 ldp d8, d9, [sp, #96]
 ldp d10, d11, [sp, #112]
 ldp d12, d13, [sp, #128]
 ldp d14, d15, [sp, #144]
 add sp, sp, #160
 ret
)");
static void* first_frame(char* top, void (*entry)()) {
  char* p = top - 224;
  memset(p, 0, 160);
  ((void**)p)[11] = (void*)entry;  // what the switch returns to
  return p;
}
#else
#error "the switch of fibers is written for x86-64 and arm64"
#endif

void lanes::report(const Found& fault) {
  for (int i = 0; i < num_found; ++i)
    if (!strcmp(found[i].what, fault.what) && found[i].pc == fault.pc && found[i].line == fault.line) return;
  if (num_found < MAX_FOUND) found[num_found++] = fault;
}

void lanes::give_up() {
  stopped = true;
  void* ignored;
  lanes_switch(&ignored, scheduler);
}

namespace {
void fail(const char* what, const Lane& lane, const Lane* other = nullptr) {
  Found fault = {what, lane.file, lane.line, nullptr, -1, 0, lane.index, NOBODY, 0};
  if (other) fault.other = other->index, fault.other_line = other->line;
  report(fault);
  stopped = true;
}

Lane* fresh() {
  while (next_fresh < count) {
    Lane* lane = &lanes_state.lanes[order[next_fresh++]];
    if (lane->status == FRESH) return lane;
  }
  return nullptr;
}

// Lanes that never wait share a stack, without a switch.
void fiber() {
  for (;;) {
    body();
    lanes_state.current->status = RETURNED;
    if (Lane* next = fresh()) {
      next->status = READY;
      lanes_state.current = next;
    } else {
      lanes_switch(&lanes_state.current->stack_pointer, scheduler);
    }
  }
}

void enter(Lane* lane) {
  lanes_state.current = lane;
  lane->status = READY;
  lanes_switch(&scheduler, lane->stack_pointer);
}

void wait(Status status, unsigned memory, const char* file, int line) {
  Lane* self = lanes_state.current;
  self->status = status;
  self->memory = memory;
  self->file = file;
  self->line = line;
  lanes_switch(&self->stack_pointer, scheduler);
}

bool same_place(const Lane& a, const Lane& b) { return a.line == b.line && !strcmp(a.file, b.file); }

// Let the lanes [first, stop) of the mask go on, with what they deposited.
void release(unsigned first, unsigned stop, unsigned mask, bool whole_group) {
  unsigned memory = ~0u;
  for (unsigned i = first; i < stop; ++i) {
    Lane& lane = lanes_state.lanes[i];
    if (!whole_group && !(mask >> lane.lane & 1u)) continue;
    memcpy(lanes_state.received[i], lanes_state.deposits[i], lane.bytes);
    memory &= lane.memory;
    lane.status = READY;
  }
  if (lanes_state.checked) ordered(whole_group, first / WIDTH, memory);
}

bool release_warp(unsigned first, unsigned stop) {
  unsigned waiting = 0, existing = 0;
  for (unsigned i = first; i < stop; ++i) {
    existing |= 1u << (i - first);
    if (lanes_state.lanes[i].status == AT_WARP) waiting |= 1u << (i - first);
  }
  bool moved = false;
  for (unsigned i = first; i < stop && !stopped; ++i) {
    Lane& lane = lanes_state.lanes[i];
    if (lane.status != AT_WARP) continue;
    unsigned mask = lane.mask &= existing;
    if (!(mask >> lane.lane & 1u)) {
      fail("a lane takes part with a mask that leaves it out", lane);
    } else if ((mask & waiting) == mask) {
      for (unsigned j = first; j < stop && !stopped; ++j) {
        Lane& other = lanes_state.lanes[j];
        if (!(mask >> other.lane & 1u)) continue;
        if (!same_place(lane, other)) fail("lanes of a warp wait at different places", lane, &other);
        else if ((other.mask & existing) != mask) fail("lanes of a warp take part with different masks", lane, &other);
      }
      if (stopped) break;
      release(first, stop, mask, false);
      waiting &= ~mask;
      moved = true;
    }
  }
  return moved;
}

bool release_group() {
  for (unsigned i = 0; i < count; ++i)
    if (lanes_state.lanes[i].status != AT_GROUP) return false;
  for (unsigned i = 1; i < count; ++i)
    if (!same_place(lanes_state.lanes[0], lanes_state.lanes[i])) {
      fail("lanes wait at different barriers", lanes_state.lanes[0], &lanes_state.lanes[i]);
      return false;
    }
  release(0, count, 0, true);
  return true;
}

// Nothing moves any more: all have returned, or some wait for lanes that never come.
void finish() {
  const Lane* waiting = nullptr;
  const Lane* other = nullptr;
  for (unsigned i = 0; i < count; ++i)
    if (lanes_state.lanes[i].status == AT_WARP) waiting = &lanes_state.lanes[i];
  for (unsigned i = 0; i < count && !waiting; ++i)
    if (lanes_state.lanes[i].status == AT_GROUP) waiting = &lanes_state.lanes[i];
  if (!waiting) return;
  for (unsigned i = 0; i < count && !other; ++i)
    if (lanes_state.lanes[i].status != waiting->status) other = &lanes_state.lanes[i];
  bool in_warp = waiting->status == AT_WARP;
  if (other && other->status == RETURNED)
    fail(in_warp ? "some lanes returned before a warp operation of the others"
                 : "some lanes returned before a barrier of the others", *waiting);
  else
    fail(in_warp ? "a warp operation that some lanes do not reach" : "a barrier that some lanes do not reach",
         *waiting, other);
}

void run_group() {
  next_fresh = 0;
  for (unsigned i = 0; i < count; ++i) lanes_state.lanes[i].status = FRESH;
  while (!stopped) {
    bool moved = false;
    while (Lane* lane = fresh()) {
      lane->stack_pointer = first_frame(stacks + (size_t)(lane->index + 1) * STACK_BYTES, fiber);
      enter(lane);
      if (stopped) return;
      moved = true;
    }
    // Every lane that may go on does so before the next release: it has read what it received.
    for (unsigned i = 0; i < count; ++i) {
      Lane* lane = &lanes_state.lanes[order[i]];
      if (lane->status != READY) continue;
      enter(lane);
      if (stopped) return;
      moved = true;
    }
    for (unsigned w = 0; w < count; w += WIDTH) moved |= release_warp(w, w + WIDTH < count ? w + WIDTH : count);
    moved |= !stopped && release_group();
    if (!moved && !stopped) return finish();
  }
}

void on_signal(int number, siginfo_t* info, void*) {
  const char* what = number == SIGFPE    ? "a division that the processor refuses"
                     : number == SIGPROF ? "the run does not end"
                                         : "an address outside all memory";
  Found fault = {what, "", 0, nullptr, -1, 0, lanes_state.current->index, NOBODY, 0};
  (void)info;
  report(fault);
  siglongjmp(escape, 1);
}

char* reserve(size_t bytes) {
  return (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void prepare() {
  if (stacks) return;
  stacks = reserve((size_t)MAX_LANES * STACK_BYTES);
  for (int i = 0; i < MAX_LANES; ++i) mprotect(stacks + (size_t)i * STACK_BYTES, 4096, PROT_NONE);
  lanes_state.arena = (unsigned char*)reserve(ARENA_BYTES + 2 * PAGE) + PAGE;
  mprotect(lanes_state.arena - PAGE, PAGE, PROT_NONE);
  mprotect(lanes_state.arena + ARENA_BYTES, PAGE, PROT_NONE);
}

void run_all(const Request& request) {
  const Three& grid = lanes_state.num_groups;
  const Three& size = lanes_state.group_size;
  uint64_t total = (uint64_t)grid.x * grid.y * grid.z;
  uint64_t step = 1, start = 0;
  if (request.order == SHUFFLED) {
    // Multiples of a number without common divisors reach all groups, in a scattered order.
    for (step = total * 5 / 8 + 1;; ++step) {
      uint64_t a = step, b = total;
      while (b) { uint64_t rest = a % b; a = b; b = rest; }
      if (a == 1) break;
    }
    start = draw() % total;
  }
  for (uint64_t n = 0; n < total && !stopped; ++n) {
    uint64_t g = request.order == REVERSE ? total - 1 - n : (start + n * step) % total;
    lanes_state.group = {(unsigned)(g % grid.x), (unsigned)(g / grid.x % grid.y), (unsigned)(g / grid.x / grid.y)};
    for (unsigned i = count - 1; request.order == SHUFFLED && i; --i) {
      unsigned j = draw() % (i + 1), kept = order[i];
      order[i] = order[j];
      order[j] = kept;
    }
    // As numbers these bits are NaN, and as indices out of every range.
    if (request.shared_bytes) memset(lanes_state.arena, 0xff, request.shared_bytes);
    if (lanes_state.checked) begin_group(g);
    (void)size;
    run_group();
  }
}
}  // namespace

void lanes_wait_warp(unsigned mask, unsigned memory, const char* file, int line) {
  lanes_state.current->mask = mask;
  wait(AT_WARP, memory, file, line);
}

void lanes_wait_group(unsigned memory, const char* file, int line) { wait(AT_GROUP, memory, file, line); }

extern "C" int lanes_run(const Request* request, Found** result) {
  num_found = 0;
  stopped = false;
  *result = found;
  count = request->group_size.x * request->group_size.y * request->group_size.z;
  if (count < 1 || count > MAX_LANES) {
    report(Found{"a group has 1 to 1024 lanes", "", 0, nullptr, -1, 0, 0, NOBODY, 0});
    return num_found;
  }
  if (request->shared_bytes > ARENA_BYTES) {
    report(Found{"more shared memory than there is", "", 0, nullptr, -1, 0, 0, NOBODY, 0});
    return num_found;
  }
  prepare();
  body = request->body;
  random_state = request->seed * 2654435761u | 1u;
  lanes_state.num_groups = request->num_groups;
  lanes_state.group_size = request->group_size;
  lanes_state.checked = request->checked;
  for (unsigned i = 0; i < request->num_arguments && i < MAX_ARGUMENTS; ++i)
    lanes_state.arguments[i] = request->arguments[i].address;
  const Three& size = request->group_size;
  for (unsigned i = 0; i < count; ++i) {
    order[i] = request->order == REVERSE ? count - 1 - i : i;
    Lane& lane = lanes_state.lanes[i];
    lane = Lane();
    lane.in_group = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    lane.index = i;
    lane.lane = i % WIDTH;
    lane.warp = i / WIDTH;
  }
  if (request->checked) begin_run(*request, stacks, (size_t)MAX_LANES * STACK_BYTES);

  static char signal_stack[SIGNAL_STACK_BYTES];
  stack_t alternative = {}, before_stack;
  alternative.ss_sp = signal_stack;
  alternative.ss_size = sizeof signal_stack;
  sigaltstack(&alternative, &before_stack);
  struct sigaction action = {}, before[4];
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &action, &before[i]);
  itimerval limit = {}, none = {};
  limit.it_value.tv_sec = SECONDS_AT_MOST;
  setitimer(ITIMER_PROF, &limit, nullptr);
  if (!sigsetjmp(escape, 1)) run_all(*request);
  setitimer(ITIMER_PROF, &none, nullptr);
  end_run();
  for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
  sigaltstack(&before_stack, nullptr);
  return num_found;
}
