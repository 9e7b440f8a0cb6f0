/* SPDX-License-Identifier: Apache-2.0 */
/* bodies.h: the two texts that are measured, the same in every run. */
#ifndef BENCH_JSON_BODIES_H
#define BENCH_JSON_BODIES_H

#include "support/buffer.h"

/* A request of about 1 KB: add members to a conversation, with a commit in base64. */
void body_add_members(struct buffer *out);
/* An answer to Matrix /sync of about 1 MB: plain and encrypted messages, member events, receipts;
 * one message in six has emoji or another script, one in five has escapes. */
void body_sync(struct buffer *out);

#endif
