/* SPDX-License-Identifier: Apache-2.0 */
/* flags.h: features that are on for a part of the keys and change while the program runs.
 *
 * A flag is a static struct of the code that reads it. A read costs one atomic load and one hash, and no
 * message or lock. The place of a key is a hash of the flag's name and the key. So a key that is in at
 * 10 % is in at every larger part, also after a restart and on every node, and two flags choose
 * different keys.
 *
 * Changes are stored in a file (temporary file, sync, rename), not in the database: a flag must be able
 * to switch off code that overloads the database. */
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
    uint32_t initial; /* the value until an operator changes it */
    /* Private from here. */
    _Atomic uint32_t parts;
    uint32_t previous; /* for rollback; under the lock of flags.c */
    bool is_listed;
    struct flag *next;
};

/* Register flags; a second call is harmless. Call it before flags_open, which sets the stored values. */
void flags_register(struct flag *flags, size_t count);
struct flag *flags_first(void);
struct flag *flags_find(const char *name);

/* Tell whether a flag is on for a key. */
bool flag_is_on(const struct flag *flag, const void *key, size_t size);
/* Return the place of a key, 0 to FLAG_ALL - 1. The flag is on for places below its parts. */
uint32_t flag_place(const struct flag *flag, const void *key, size_t size);

/* Read the stored values at `path`, if the file exists, and store later changes there. The next write
 * drops flags that the program no longer has. On failure `why` gets a sentence. `env` must outlive the
 * store; `path` is copied. */
int flags_open(const struct tr_env *env, const char *path, char *why, size_t why_size);
void flags_close(void);

/* Change a flag and store the change. TR_ENOENT for an unknown flag, TR_EINVAL past FLAG_ALL. After other
 * errors the change is in force but not stored, so a restart undoes it. Blocks: not on a worker. */
int flags_set(const char *name, uint32_t parts);
/* Undo the last flags_set; a second call sets the initial value. Errors like flags_set. */
int flags_rollback(const char *name);

/* Parse and write "10%" or "0.25%". */
int flags_parse_parts(const char *text, uint32_t *ret_parts);
void flags_put_parts(struct buffer *out, uint32_t parts);

#endif
