/* SPDX-License-Identifier: Apache-2.0 */
/* flags.h: features that are on for a part of the keys, changed while the program runs.
 *
 * A flag is a static struct of the code that asks it. Asking is one atomic load and one hash, no
 * message and no lock. A key that is in at 10 % is in at every larger part: its place is a hash of
 * the flag's name and the key, so it is the same after a restart and on every node, and flags do
 * not all pick the same keys.
 *
 * Changes are kept in a file (temporary file, sync, rename) and not in the database: a flag must
 * also switch off the path that hurts the database. */
#ifndef OPS_FLAGS_H
#define OPS_FLAGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/env.h>

#include "support/buffer.h"

enum { FLAG_ALL = 10000 }; /* hundredths of a percent */

struct flag {
    const char *name; /* lower case, digits, - and . */
    const char *help;
    uint32_t initial; /* what it is until somebody changes it */
    /* Private from here. */
    _Atomic uint32_t parts;
    uint32_t previous; /* for rollback; under the lock of flags.c */
    bool is_listed;
    struct flag *next;
};

/* Make flags known; again is harmless. Before flags_open, which gives them their stored values. */
void flags_register(struct flag *flags, size_t count);
struct flag *flags_first(void);
struct flag *flags_find(const char *name);

bool flag_is_on(const struct flag *flag, const void *key, size_t size);
/* The place of a key, 0 to FLAG_ALL - 1: on when it is below the flag's parts. */
uint32_t flag_place(const struct flag *flag, const void *key, size_t size);

/* Read what was stored at `path` (nothing there is fine) and store later changes there. Flags that
 * the program no longer has are left out of the file when it is written next. `why` says what is
 * wrong with the file. The environment must outlive the store; `path` is copied. */
int flags_open(const struct tr_env *env, const char *path, char *why, size_t why_size);
void flags_close(void);

/* In force when these return, also when they fail with TR_EIO or the like: then the change is not
 * stored and a restart forgets it. TR_ENOENT: no such flag. They sync a file: not on a worker. */
int flags_set(const char *name, uint32_t parts);
/* To what it was before the last set; once more: to its initial value. */
int flags_rollback(const char *name);

/* "10%", "0.25%" and back. */
int flags_parse_parts(const char *text, uint32_t *ret_parts);
void flags_put_parts(struct buffer *out, uint32_t parts);

#endif
