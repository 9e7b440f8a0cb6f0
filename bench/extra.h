/* SPDX-License-Identifier: Apache-2.0 */
/* extra.h: the workloads of troupe-bench that the peers do not have. */
#ifndef BENCH_EXTRA_H
#define BENCH_EXTRA_H

#include <stdbool.h>
#include <string.h>

#include <troupe/troupe.h>

/* False if there is none of this name. */
bool bench_extra(struct tr_system *system, const char *name);

#endif
