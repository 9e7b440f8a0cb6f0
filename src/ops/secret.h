/* SPDX-License-Identifier: Apache-2.0 */
/* secret.h: a secret of one line in a file that only its owner can read: the admin token, the session
 * key. */
#ifndef OPS_SECRET_H
#define OPS_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include "support/buffer.h"

enum { SECRET_SIZE_MIN = 32, SECRET_SIZE_MAX = 128 };

struct secret {
    char text[SECRET_SIZE_MAX + 1];
};

/* Read a secret. With `create`, write a random one (mode 0600, synced) if the file does not exist.
 * TR_ENOENT, TR_EACCES if other users can read the file, TR_EINVAL if it holds no secret, TR_EIO. On
 * failure `why` gets a sentence. */
int secret_load(
    struct secret *ret_secret, const char *path, bool create, char *why, size_t why_size);
/* Compare a secret with a given text, in constant time. */
bool secret_matches(const struct secret *secret, struct span given);

#endif
