/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h: read-mostly state, published by one actor and read by all without a message, a lock
 * or a shared counter. A published value is immutable; the one it replaces is freed when no
 * worker and no registered thread can still be reading it. */
#ifndef TROUPE_SNAPSHOT_H
#define TROUPE_SNAPSHOT_H

#include <troupe/system.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tr_snapshot;
struct tr_reader; /* a registered foreign thread */

TR_API int tr_snapshot_create(
    struct tr_system *system, void (*free_value)(void *value), struct tr_snapshot **ret_snapshot);
/* Free the snapshot, its value and the replaced values. The caller makes sure that no thread reads
 * any more. Not from inside free_value. */
TR_API void tr_snapshot_destroy(struct tr_snapshot **snapshot);

/* Replace the value; takes ownership of `value`. One publisher at a time. Any thread. */
TR_API int tr_snapshot_publish(struct tr_snapshot *snapshot, void *value);

/* In a handler of the snapshot's system (a named assert): valid until the handler returns. NULL
 * before the first publish. */
TR_API const void *tr_snapshot_read(const struct tr_snapshot *snapshot);

/* On a foreign thread: register once, then read between begin and end. */
TR_API int tr_reader_create(struct tr_system *system, struct tr_reader **ret_reader);
TR_API void tr_reader_begin(struct tr_reader *reader);
TR_API void tr_reader_end(struct tr_reader *reader);
TR_API void tr_reader_destroy(struct tr_reader **reader);

#ifdef __cplusplus
}
#endif

#endif
