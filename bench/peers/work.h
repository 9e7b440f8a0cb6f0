/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: the computing in the work-* workloads, for C and C++. The Go and Rust programs do the same
 * arithmetic with the same constants; change them together. */
#pragma once
#include <stdint.h>
#include <stdlib.h>

enum {
  WORK_ROUNDS = 600, /* about 1 us: 3600 dependent one-cycle operations (977 ns at 3.7 GHz) */
  WORK_SHARE = 20,   /* work-* handles 1/20 of the messages of the plain workload */
};

/* xorshift64 from an odd seed. It never reaches 0, which no compiler knows, so the chain stays. */
static inline void work(uint64_t seed) {
  uint64_t x = seed | 1;
  for (int i = 0; i < WORK_ROUNDS; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
  if (!x) abort();
}
