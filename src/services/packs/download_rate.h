/* SPDX-License-Identifier: Apache-2.0 */
/* download_rate.h: how many downloads an address may begin in a second, for those who bring no token. Who
 * brings one is counted by the desk; asking an actor for every small file would cost more than the
 * file. A table of atomic words, of fixed size: an address that finds no word in it is let in, and
 * so is nobody's excuse to fill it. */
#ifndef SERVICES_PACKS_DOWNLOAD_RATE_H
#define SERVICES_PACKS_DOWNLOAD_RATE_H

#include <stdbool.h>
#include <stdint.h>

#include "support/buffer.h"

struct download_rate;

struct download_rate *download_rate_create(
    uint32_t per_second); /* 0: no limit. NULL: out of memory */
void download_rate_destroy(struct download_rate **download_rate);
/* One more of this address; false: it has had its share of this second. Any thread. */
bool download_rate_take(struct download_rate *download_rate, struct span address, uint64_t now_ns);

#endif
