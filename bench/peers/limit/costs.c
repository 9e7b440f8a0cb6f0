/* SPDX-License-Identifier: Apache-2.0 */
/* What the primitives of a message cost on this machine, in nanoseconds: the numbers that decide a
 * design. Prints one line per primitive: name value. */
#define _GNU_SOURCE
#include "bench.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define TIME(name, n, body)                                                        \
  do {                                                                             \
    uint64_t t0 = now();                                                           \
    for (long i = 0; i < (n); i++) { body; __asm__ volatile("" ::: "memory"); }    \
    printf("%-28s %8.1f\n", name, (double)(now() - t0) / (n));                     \
  } while (0)

static _Alignas(128) _Atomic uint64_t word;
static _Alignas(128) _Atomic uint64_t ping;
static _Alignas(128) _Atomic uint64_t pong;
static _Alignas(128) _Atomic uint32_t sleeping;
static volatile int stop;

static void *mirror(void *arg) {        /* answers each value of ping on pong */
  (void)arg;
  for (uint64_t v, last = 0; !stop;)
    if ((v = atomic_load_explicit(&ping, memory_order_acquire)) != last)
      atomic_store_explicit(&pong, last = v, memory_order_release);
  return NULL;
}

static void *hammer(void *arg) {        /* contends for word */
  (void)arg;
  while (!stop) atomic_fetch_add_explicit(&word, 1, memory_order_acq_rel);
  return NULL;
}

static void *sleeper(void *arg) {
  (void)arg;
  while (!stop) {
    syscall(SYS_futex, &sleeping, FUTEX_WAIT_PRIVATE, 1, 0, 0, 0);
    atomic_store(&pong, 1);
    while (!stop && atomic_load(&sleeping) == 0) relax();
  }
  return NULL;
}

static __attribute__((noinline)) void callee(uint64_t *x) { ++*x; }
static void (*volatile pointer)(uint64_t *) = callee;

int main(void) {
  enum { N = 20000000 };
  uint64_t x = 0;
  pthread_t t;
  TIME("clock_gettime", N / 10, now());
  TIME("indirect call", N, pointer(&x));
  TIME("plain store", N, *(volatile uint64_t *)&word = i);
  TIME("seq_cst store", N, atomic_store(&word, i));
  TIME("exchange, own line", N, atomic_exchange_explicit(&word, i, memory_order_acq_rel));
  TIME("compare-exchange, own line", N, ({ uint64_t e = atomic_load(&word); atomic_compare_exchange_strong(&word, &e, i); }));
  TIME("malloc + free, 32 bytes", N, ({ void *volatile p = malloc(32); free(p); }));

  pthread_create(&t, NULL, hammer, NULL);
  TIME("exchange, contended line", N / 20, atomic_fetch_add_explicit(&word, 1, memory_order_acq_rel));
  stop = 1;
  pthread_join(t, NULL);

  stop = 0;
  pthread_create(&t, NULL, mirror, NULL);
  TIME("core to core and back", N / 20,
       ({ atomic_store_explicit(&ping, i + 1, memory_order_release);
          while (atomic_load_explicit(&pong, memory_order_acquire) != (uint64_t)i + 1); }));
  stop = 1;
  pthread_join(t, NULL);

  stop = 0;
  atomic_store(&sleeping, 1);
  pthread_create(&t, NULL, sleeper, NULL);
  uint64_t wake = 0, call = 0;
  enum { WAKES = 2000 };
  for (int i = 0; i < WAKES; i++) {
    usleep(100);                        /* it is asleep by now */
    atomic_store(&pong, 0);
    uint64_t t0 = now();
    atomic_store(&sleeping, 0);
    syscall(SYS_futex, &sleeping, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    call += now() - t0;
    while (!atomic_load(&pong)) relax();
    wake += now() - t0;
    atomic_store(&sleeping, 1);
  }
  printf("%-28s %8.1f\n%-28s %8.1f\n", "futex wake, caller's cost", (double)call / WAKES, "futex wake, until it runs", (double)wake / WAKES);
  stop = 1;
  atomic_store(&sleeping, 0);
  syscall(SYS_futex, &sleeping, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
  pthread_join(t, NULL);

  TIME("sched_yield", N / 100, sched_yield());
  enum { PAGES = 50000 };
  char *m = mmap(NULL, (size_t)PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TIME("first touch of a 4K page", PAGES, m[i * 4096] = 1);
  size_t huge = 64u << 20;
  char *h = mmap(NULL, huge * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  h = (char *)(((uintptr_t)h + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
  madvise(h, huge, MADV_HUGEPAGE);
  TIME("same, in a 2M page", (long)(huge / 4096), h[i * 4096] = 1);
  return x == 0;
}
