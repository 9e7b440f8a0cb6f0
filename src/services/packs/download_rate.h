/* SPDX-License-Identifier: Apache-2.0 */
/* download_rate.h: how many downloads without a token an address may start in a second. Requests with
 * a token are counted by the verifier of src/auth. The counts are in a table of atomic words of fixed
 * size; an address that finds no free word is let in, so filling the table locks nobody out.
 *
 * tr_limiter does not fit here: it is an actor, and a message for every small file costs more than
 * sending the file. */
#ifndef SERVICES_PACKS_DOWNLOAD_RATE_H
#define SERVICES_PACKS_DOWNLOAD_RATE_H

#include <stdbool.h>
#include <stdint.h>

#include "support/buffer.h"

struct download_rate;

/* Create a table; 0 means no limit. NULL: out of memory. */
struct download_rate *download_rate_create(uint32_t per_second);
void download_rate_destroy(struct download_rate **download_rate);
/* Count one more request of the address. Returns false if it has used up this second. Any thread. */
bool download_rate_take(struct download_rate *download_rate, struct span address, uint64_t now_ns);

#endif
