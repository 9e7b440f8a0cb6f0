/* SPDX-License-Identifier: Apache-2.0 */
/* token.h: the secret that lets somebody change a running server: a line in a file that only its
 * owner can read. */
#ifndef OPS_TOKEN_H
#define OPS_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

#include "support/buffer.h"

enum { TOKEN_SIZE_MIN = 32, TOKEN_SIZE_MAX = 128 };

struct token {
    char text[TOKEN_SIZE_MAX + 1];
};

/* Read it; with `create`, make a new one (mode 0600, synced) when the file is not there. TR_EACCES
 * if others can read the file, TR_EINVAL if it holds no token. `why` says what to do. */
int token_load(struct token *ret_token, const char *path, bool create, char *why, size_t why_size);
/* Takes as long whatever is given. */
bool token_is(const struct token *token, struct span given);

#endif
