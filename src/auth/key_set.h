/* SPDX-License-Identifier: Apache-2.0 */
/* key_set.h: verification keys by key id, from a JWKS text or file. Immutable, so any thread may look
 * keys up. */
#ifndef AUTH_KEY_SET_H
#define AUTH_KEY_SET_H

#include <stdbool.h>
#include <stddef.h>

#include <troupe/env.h>

#include "crypto/key.h"
#include "support/buffer.h"

enum { KEY_SET_KEYS_MAX = 64, KEY_SET_BYTES_MAX = 262144, KEY_SET_WHY_CHARS = 128 };

struct key_set;

struct key_set_options {
    /* Leave out keys of unsupported kinds and uses instead of refusing the set: for sets that others
     * publish. A malformed key of a supported kind still fails the set. */
    bool skip_unknown;
    bool allow_secrets; /* accept "oct" keys, for the server's own tickets */
};

/* Parse {"keys": [...]} or a single key; the caller owns the set. TR_EPROTO for a duplicate id, a key
 * without an id among several, secrets beside public keys, and a set without a key; also
 * TR_EUNSUPPORTED, TR_ETOOBIG, TR_ENOMEM. On failure `why` gets a sentence; it may be NULL. */
int key_set_parse(struct span text, const struct key_set_options *options, struct key_set **ret_set,
    char why[KEY_SET_WHY_CHARS]);
/* Read and parse a file. Also TR_ENOENT, TR_EIO, TR_EACCES. */
int key_set_load(const struct tr_env *env, const char *path, const struct key_set_options *options,
    struct key_set **ret_set, char why[KEY_SET_WHY_CHARS]);
/* NULL is fine. */
void key_set_destroy(struct key_set *set);

size_t key_set_count(const struct key_set *set);
/* Return the key with this id, or NULL. An absent kid finds the only key of a set of one. Borrowed
 * from the set. */
struct crypto_key *key_set_find(const struct key_set *set, struct span kid);

#endif
