/* SPDX-License-Identifier: Apache-2.0 */
/* secret.h: a secret of one line in a file that only its owner can read: the admin token, the session
 * key, the key of receipts. */
#ifndef OPS_SECRET_H
#define OPS_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include "support/buffer.h"

enum { SECRET_SIZE_MIN = 32, SECRET_SIZE_MAX = 128 };

struct secret {
    char text[SECRET_SIZE_MAX + 1];
};

/* If the file does not exist: fail, or create it with 32 random bytes in this form. */
enum secret_create { SECRET_MUST_EXIST, SECRET_BASE64URL, SECRET_HEX };

/* Read a secret, or create it. The new file (mode 0600) is on the disk whole or not at all.
 * TR_ENOENT, TR_EACCES if the file cannot be opened or other users can read it, TR_EINVAL if it
 * holds no secret, TR_EIO. On failure `why` gets a sentence. */
int secret_load(struct secret *ret_secret, const char *path, enum secret_create create, char *why,
    size_t why_size);
/* Compare a secret with a given text, in constant time. */
bool secret_matches(const struct secret *secret, struct span given);

#endif
