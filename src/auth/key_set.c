/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/key_set.h"

#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "auth/jwk.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "json/json.h"

struct key_set {
    size_t count;
    struct {
        char *kid; /* owned; NULL if the key has none */
        size_t kid_size;
        struct crypto_key *key;
    } keys[KEY_SET_KEYS_MAX];
};

static int key_set_fail(int code, char *why, const char *text)
{
    if (why != NULL)
        snprintf(why, KEY_SET_WHY_CHARS, "%s", text);
    return code;
}

static int key_set_fail_key(int code, char *why, size_t index, const char *text)
{
    if (why != NULL)
        snprintf(why, KEY_SET_WHY_CHARS, "Key %zu of the set: %s", index + 1, text);
    return code;
}

void key_set_destroy(struct key_set *set)
{
    if (set == NULL)
        return;
    for (size_t i = 0; i < set->count; i++) {
        base_free(set->keys[i].kid);
        crypto_key_unref(&set->keys[i].key);
    }
    base_free(set);
}

size_t key_set_count(const struct key_set *set)
{
    return set->count;
}

struct crypto_key *key_set_find(const struct key_set *set, struct span kid)
{
    if (kid.at == NULL)
        return set->count == 1 ? set->keys[0].key : NULL;
    for (size_t i = 0; i < set->count; i++)
        if (set->keys[i].kid != NULL &&
            span_equal(kid, (struct span){ set->keys[i].kid, set->keys[i].kid_size }))
            return set->keys[i].key;
    return NULL;
}

static int key_set_add(struct key_set *set, struct span kid, struct crypto_key **key)
{
    char *copy = NULL;

    tr_assert(set->count < KEY_SET_KEYS_MAX);
    if (kid.at != NULL) {
        copy = base_alloc(kid.size + 1);
        if (copy == NULL)
            return TR_ENOMEM;
        memcpy(copy, kid.at, kid.size);
        copy[kid.size] = '\0';
    }
    set->keys[set->count].kid = copy;
    set->keys[set->count].kid_size = kid.size;
    set->keys[set->count].key = *key;
    set->count++;
    *key = NULL;
    return 0;
}

static int key_set_add_json(struct key_set *set, const struct json *json, size_t index,
    const struct key_set_options *options, char *why)
{
    const char *text = "";
    struct crypto_key *key = NULL;
    struct span kid = { NULL, 0 };
    bool is_secret;
    int rc;

    if (json_get(json, "kid") != NULL &&
        (!json_string(json_get(json, "kid"), &kid) || kid.size == 0))
        return key_set_fail_key(
            TR_EPROTO, why, index, "kid must be a text of at least one character.");
    rc = jwk_parse(json, options->allow_secrets ? JWK_EITHER : JWK_PUBLIC, &key, &text);
    if (rc == TR_EUNSUPPORTED && options->skip_unknown)
        return 0;
    if (rc != 0)
        return key_set_fail_key(rc, why, index, text);
    is_secret = crypto_key_algorithm(key) == CRYPTO_HS256;
    /* A set with both kinds could use a public key as a shared secret. */
    if (set->count > 0 && is_secret != (crypto_key_algorithm(set->keys[0].key) == CRYPTO_HS256))
        rc = key_set_fail_key(TR_EPROTO, why, index, "A set must not mix secrets and public keys.");
    else if (set->count > 0 && (kid.at == NULL || set->keys[0].kid == NULL))
        rc = key_set_fail_key(
            TR_EPROTO, why, index, "kid is missing; in a set of several keys each needs one.");
    else if (kid.at != NULL && key_set_find(set, kid) != NULL)
        rc = key_set_fail_key(TR_EPROTO, why, index, "Another key of the set has the same kid.");
    else if (set->count == KEY_SET_KEYS_MAX)
        rc = key_set_fail(TR_ETOOBIG, why, "The key set has more than 64 keys.");
    else
        rc = key_set_add(set, kid, &key);
    crypto_key_unref(&key);
    return rc;
}

static int key_set_fill(
    struct key_set *set, const struct json *root, const struct key_set_options *options, char *why)
{
    const struct json *keys = json_get(root, "keys");
    size_t index = 0;
    int rc;

    if (json_kind(root) != JSON_OBJECT)
        return key_set_fail(TR_EPROTO, why, "The key set must be a JSON object.");
    if (keys == NULL) {
        rc = key_set_add_json(set, root, 0, options, why);
        if (rc != 0)
            return rc;
    } else if (json_kind(keys) != JSON_ARRAY)
        return key_set_fail(TR_EPROTO, why, "keys must be an array.");
    for (struct json_iter it = json_iterate(keys); json_next(&it); index++) {
        rc = key_set_add_json(set, it.value, index, options, why);
        if (rc != 0)
            return rc;
    }
    return set->count > 0
               ? 0
               : key_set_fail(TR_EPROTO, why, "The key set has no key that can be used.");
}

int key_set_parse(struct span text, const struct key_set_options *options, struct key_set **ret_set,
    char why[KEY_SET_WHY_CHARS])
{
    struct json_doc doc = { .depth_max = 8 };
    struct key_set *set;
    int rc;

    if (text.size > KEY_SET_BYTES_MAX)
        return key_set_fail(TR_ETOOBIG, why, "The key set is larger than 262,144 bytes.");
    set = base_calloc(sizeof *set);
    if (set == NULL)
        return key_set_fail(TR_ENOMEM, why, "The server is out of memory.");
    rc = json_parse_copy(&doc, text, JSON_UNIQUE_KEYS);
    if (rc == 0)
        rc = key_set_fill(set, json_root(&doc), options, why);
    else {
        if (why != NULL)
            snprintf(why, KEY_SET_WHY_CHARS, "The key set is not JSON at byte %zu: %s.",
                doc.error.offset, doc.error.text == NULL ? tr_error_text(rc) : doc.error.text);
        rc = rc == TR_ENOMEM ? rc : TR_EPROTO;
    }
    if (doc.copy.bytes != NULL)
        crypto_wipe(doc.copy.bytes, doc.copy.capacity); /* it may hold secrets */
    json_doc_free(&doc);
    if (rc != 0) {
        key_set_destroy(set);
        return rc;
    }
    *ret_set = set;
    return 0;
}

/* ---- file ------------------------------------------------------------------------------------ */

static int key_set_read_file(
    const struct tr_env *env, const char *path, char **ret_text, size_t *ret_size)
{
    const struct tr_disk *disk = env->disk;
    struct tr_file *file;
    char *text = NULL;
    uint64_t size;
    int rc;

    rc = disk->open(env->disk_data, path, TR_OPEN_READ, &file);
    if (rc != 0)
        return rc;
    rc = disk->size(file, &size);
    if (rc == 0 && size > KEY_SET_BYTES_MAX)
        rc = TR_ETOOBIG;
    if (rc == 0) {
        text = base_alloc((size_t)size);
        rc = text == NULL ? TR_ENOMEM : disk->read(file, 0, text, (size_t)size, ret_size);
    }
    disk->close(file);
    if (rc != 0) {
        base_free(text);
        return rc;
    }
    *ret_text = text;
    return 0;
}

int key_set_load(const struct tr_env *env, const char *path, const struct key_set_options *options,
    struct key_set **ret_set, char why[KEY_SET_WHY_CHARS])
{
    char *text;
    size_t size;
    int rc;

    tr_assert(path != NULL);
    rc = key_set_read_file(env, path, &text, &size);
    if (rc != 0)
        return key_set_fail(rc, why, tr_error_text(rc));
    rc = key_set_parse((struct span){ text, size }, options, ret_set, why);
    crypto_wipe(text, size);
    base_free(text);
    return rc;
}
