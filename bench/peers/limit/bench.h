/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: shared by the limit programs: clock, RSS, percentiles, workload sizes. */
#pragma once
#include "../work.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  PINGPONG = 5000000,            /* round trips, one pair */
  PAIRS = 64, PAIR_TRIPS = 100000,
  COUNTING = 10000000,
  PRODUCERS = 64, PER_PRODUCER = 100000,
  RING = 1000, RING_HOPS = 5000000, TOKENS = 64, TOKEN_HOPS = 10000000 / 64,
  BIG = 120, BIG_PINGS = 20000,
  SPAWN = 1000000, ALIVE = 1000, IDLE = 1000000, IDLE_BATCH = 1000,
  ASK = 1000000,
  WORK_CALLS = 100000,           /* of work() alone */
};

static inline uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline long rss(void) {
  long total = 0, resident = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld %ld", &total, &resident) != 2) abort();
  fclose(f);
  return resident * sysconf(_SC_PAGESIZE);
}

static inline void check(int ok, const char *what) {
  if (!ok) { fprintf(stderr, "wrong result: %s\n", what); exit(1); }
}

/* One line per number: workload value. */
static inline void report(const char *name, double total, double n) { printf("%s %.1f\n", name, total / n); }

static inline int cmp32(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static inline void report_latency(const char *name, uint32_t *ns, size_t n) {
  qsort(ns, n, sizeof *ns, cmp32);
  printf("%s-p50 %u\n%s-p99 %u\n", name, ns[n / 2], name, ns[n * 99 / 100]);
}

/* How long work() takes by itself. */
static inline void work_alone(const char *name) {
  uint64_t t = now();
  for (uint64_t i = 0; i < WORK_CALLS; i++) work(i);
  report(name, now() - t, WORK_CALLS);
}

static inline void relax(void) {     /* in a spin loop */
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static inline uint32_t lcg(uint32_t *x) { return (*x = *x * 69069u + 1u) >> 8; }
