/* SPDX-License-Identifier: Apache-2.0 */
/* key_set.h: a set of verification keys by key id, from a JWKS text or file. Does not change once
 * made; any thread may look keys up. */
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
    /* Leave out keys of kinds and uses we do not have, instead of refusing the set: for sets that
     * others publish. Malformed keys of a kind we have are refused all the same. */
    bool skip_unknown;
    bool allow_secrets; /* "oct" keys, for our own tickets; a set has only these, or none */
};

/* {"keys": [...]} or a single key. Refused: an id twice, keys without an id beside others, secrets
 * beside public keys, and a set without a key. TR_EPROTO, TR_EUNSUPPORTED, TR_ETOOBIG, TR_ENOMEM;
 * `why`, which may be NULL, then gets a sentence for the operator. */
int key_set_parse(struct span text, const struct key_set_options *options, struct key_set **ret_set,
    char why[KEY_SET_WHY_CHARS]);
/* The same from a file. Also TR_ENOENT, TR_EIO, TR_EACCES. */
int key_set_load(const struct tr_env *env, const char *path, const struct key_set_options *options,
    struct key_set **ret_set, char why[KEY_SET_WHY_CHARS]);
void key_set_destroy(struct key_set *set);

size_t key_set_count(const struct key_set *set);
/* The key with this id; NULL if there is none. With an absent kid: the only key, if there is but
 * one. Borrowed from the set. */
struct crypto_key *key_set_find(const struct key_set *set, struct span kid);

#endif
