"""Threads in C that run lists of actions: calls of kernels over ranges, with no Python between them.

An action is a function, its operands, and a count that is cut into pieces of `step`; a batch is actions that do not
touch what another of them writes. Threads take the pieces of a batch as they come; an action too small to share is one
piece. Which thread takes which changes no result. The thread that calls takes pieces too, waits only for pieces that
others have begun, and does small batches alone, so that a busy machine costs no more than its share.

Flow: `lowering` fills the actions of a phase in when a plan is opened; the session runs stretches of them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexpgpu.backend.cpu.native.compiler import Compiler

HEAD = r"""
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
typedef long long i64;
typedef unsigned long long u64;
typedef void (*kernel)(char**, i64, i64, i64, char*);
/* turns: pieces, or 1 where one thread does them all. Of the first of a batch: how many follow with it, their turns in
   all, and whether threads share them. */
typedef struct { kernel call; char** operands; i64 count, step, turns, batch, all_turns, shared; } action;
typedef struct {
    _Atomic u64 ticket; /* round << 32 | next turn */
    _Atomic(const action*) now;
    _Atomic i64 done;
    _Atomic int sleepers, stop;
    int others;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t* threads;
    char** scratch;
} pool;
typedef struct { pool* of; int lane; } start;
static void execute(const action* a, i64 turn, char* scratch) {
    for (; turn >= a->turns; ++a) turn -= a->turns;
    const i64 pieces = (a->count + a->step - 1) / a->step, last = a->turns == 1 ? pieces : turn + 1;
    for (i64 piece = turn; piece < last; ++piece) {
        const i64 begin = piece * a->step, end = begin + a->step;
        a->call(a->operands, begin, end < a->count ? end : a->count, piece, scratch);
    }
}
static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}
/* One turn of the batch of this round, if one is left. The batch cannot change while the ticket has not. */
static int take(pool* p, int lane) {
    u64 t = atomic_load(&p->ticket);
    const action* a = atomic_load(&p->now);
    if (!a || (t & 0xffffffffu) >= (u64)a->all_turns) return 0;
    if (!atomic_compare_exchange_strong(&p->ticket, &t, t + 1)) return 1;
    execute(a, t & 0xffffffffu, p->scratch[lane]);
    atomic_fetch_add(&p->done, 1);
    return 1;
}
static void* help(void* given) {
    start s = *(start*)given;
    free(given);
    pool* p = s.of;
    for (;;) {
        u64 seen = atomic_load(&p->ticket) >> 32;
        for (int idle = 0; idle < 4000; ++idle) {
            if (take(p, s.lane)) { idle = 0; seen = atomic_load(&p->ticket) >> 32; }
            else rest();
        }
        pthread_mutex_lock(&p->mutex);
        atomic_fetch_add(&p->sleepers, 1);
        while (!atomic_load(&p->stop) && atomic_load(&p->ticket) >> 32 == seen) pthread_cond_wait(&p->wake, &p->mutex);
        atomic_fetch_sub(&p->sleepers, 1);
        pthread_mutex_unlock(&p->mutex);
        if (atomic_load(&p->stop)) return 0;
    }
}
"""

TEXTS = {
    "pool_open": r"""
void* pool_open(int threads, char** scratch) {
    pool* p = calloc(1, sizeof(pool));
    if (!p) return 0;
    pthread_mutex_init(&p->mutex, 0);
    pthread_cond_init(&p->wake, 0);
    p->scratch = scratch;
    p->threads = calloc(threads, sizeof(pthread_t));
    for (int lane = 1; p->threads && lane < threads; ++lane) {
        start* s = malloc(sizeof(start));
        if (!s) break;
        s->of = p;
        s->lane = lane;
        if (pthread_create(&p->threads[p->others], 0, help, s)) { free(s); break; }
        ++p->others;
    }
    return p;
}
void pool_close(pool* p) {
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->others; ++i) pthread_join(p->threads[i], 0);
    free(p->threads);
    free(p);
}
void pool_run(pool* p, const action* actions, i64 count) {
    for (i64 i = 0; i < count; i += actions[i].batch) {
        const action* a = actions + i;
        const i64 n = a->all_turns;
        if (n < 2 || !a->shared || !p->others) {
            for (i64 turn = 0; turn < n; ++turn) execute(a, turn, p->scratch[0]);
            continue;
        }
        /* Nobody takes anything while the ticket is closed, so that no old ticket meets a new action. */
        const u64 round = (atomic_load(&p->ticket) >> 32) + 1;
        atomic_store(&p->ticket, round << 32 | 0xffffffffu);
        atomic_store(&p->done, 0);
        atomic_store(&p->now, a);
        atomic_store(&p->ticket, (round + 1) << 32);
        if (atomic_load(&p->sleepers)) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_broadcast(&p->wake);
            pthread_mutex_unlock(&p->mutex);
        }
        while (take(p, 0)) {}
        for (int waited = 0; atomic_load(&p->done) < n; ++waited) {
            if (waited < 4000) rest();
            else sched_yield();
        }
    }
}
void copy_bytes(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    memcpy(a[0] + begin, a[1] + begin, end - begin);
}
""",
}
"""Everything in one text, so that it is one library; it is asked for by its first name."""

ACTION = np.dtype(
    [("call", "u8"), ("operands", "u8")]
    + [(name, "i8") for name in ("count", "step", "turns", "batch", "all_turns", "shared")]
)


@dataclass(frozen=True, slots=True)
class Driver:
    """The functions of the driver, by name."""

    addresses: dict[str, int]

    def pool(self, num_threads: int, scratch_bytes: int) -> Pool:
        """Threads with scratch memory of so many bytes each. Raises MemoryError."""
        return Pool(self.addresses, num_threads, scratch_bytes)


NAMES = ("pool_open", "pool_close", "pool_run", "copy_bytes")


def driver(compiler: Compiler) -> Driver:
    """The driver, compiled. Raises CompileError."""
    return Driver(compiler.functions(HEAD, {name: TEXTS.get(name, "") for name in NAMES}))


class Pool:
    """Threads of the driver; the thread that calls `run` is one of them."""

    def __init__(self, addresses: dict[str, int], num_threads: int, scratch_bytes: int) -> None:
        def function(name: str, result: Any, *arguments: Any) -> Any:
            return ctypes.CFUNCTYPE(result, *arguments)(addresses[name])

        self._run = function("pool_run", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)
        self._close = function("pool_close", None, ctypes.c_void_p)
        self._scratch = [np.empty(scratch_bytes + 64, np.uint8) for _ in range(num_threads)]
        starts = [each.ctypes.data + (-each.ctypes.data % 64) for each in self._scratch]
        self._starts = np.array(starts, np.uint64)
        opened = function("pool_open", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._pool: int | None = opened(num_threads, self._starts.ctypes.data)
        if self._pool is None:
            raise MemoryError("the threads of the cpu device")

    def run(self, address: int, count: int) -> None:
        """Run `count` actions that lie at `address`, one after the other; other threads of Python go on meanwhile."""
        self._run(self._pool, address, count)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._close(self._pool)
            self._pool = None
