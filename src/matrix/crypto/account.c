/* SPDX-License-Identifier: Apache-2.0 */
/* account.c: the keys of one device: identity, signing, one-time and fallback keys.
 *
 * 1. A key id is used once, also after mx_account_skip_key_ids.
 * 2. One-time keys are in the order of their ids, so the oldest is dropped first.
 * 3. The account has at most two fallback keys, the current one first. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

struct account_key {
    uint64_t id;
    struct mx__key_pair pair;
    bool is_published;
};

struct mx_account {
    struct mx__key_pair identity;
    struct mx__signing_pair signing;
    uint64_t id_next;
    struct account_key *keys; /* owned */
    uint32_t key_count;
    uint32_t key_capacity;
    uint32_t fallback_count;
    struct account_key fallbacks[2];
};

int mx_account_create(const struct mx_random *random, struct mx_account **ret_account)
{
    struct mx_account *account = base_calloc(sizeof *account);

    if (account == NULL)
        return TR_ENOMEM;
    mx__signing_pair_generate(random, &account->signing);
    mx__key_pair_generate(random, &account->identity);
    *ret_account = account;
    return 0;
}

static void account_free_keys(struct mx_account *account)
{
    if (account->keys != NULL)
        crypto_wipe(account->keys, account->key_capacity * sizeof *account->keys);
    base_free(account->keys);
}

void mx_account_destroy(struct mx_account *account)
{
    if (account == NULL)
        return;
    account_free_keys(account);
    crypto_wipe(account, sizeof *account);
    base_free(account);
}

const struct mx_key *mx_account_identity_key(const struct mx_account *account)
{
    return &account->identity.public_key;
}

const struct mx_key *mx_account_signing_key(const struct mx_account *account)
{
    return &account->signing.public_key;
}

const struct mx__key_pair *mx__account_identity(const struct mx_account *account)
{
    return &account->identity;
}

void mx_account_sign(const struct mx_account *account, const void *bytes, size_t size,
    uint8_t ret_signature[MX_SIGNATURE_BYTES])
{
    mx__sign(&account->signing, bytes, size, ret_signature);
}

/* ---- one-time keys --------------------------------------------------------------------------- */

/* Make room for `count` keys in all. Realloc would leave a copy of the secrets behind. */
static int account_reserve(struct mx_account *account, size_t count)
{
    size_t capacity = account->key_capacity;
    struct account_key *keys;

    tr_assert(count <= MX_ONE_TIME_KEYS_MAX);
    tr_assert(account->key_count <= capacity);
    if (count <= capacity)
        return 0;
    while (capacity < count)
        capacity = capacity == 0 ? 64 : capacity * 2;
    keys = base_calloc(capacity * sizeof *keys);
    if (keys == NULL)
        return TR_ENOMEM;
    if (account->key_count > 0)
        memcpy(keys, account->keys, account->key_count * sizeof *keys);
    account_free_keys(account);
    account->keys = keys;
    account->key_capacity = (uint32_t)capacity;
    return 0;
}

static void account_remove_keys(struct mx_account *account, size_t first, size_t count)
{
    size_t after = account->key_count - first - count;

    tr_assert(first + count <= account->key_count);
    if (count == 0)
        return;
    memmove(&account->keys[first], &account->keys[first + count], after * sizeof *account->keys);
    account->key_count -= (uint32_t)count;
    crypto_wipe(&account->keys[account->key_count], count * sizeof *account->keys);
}

static void account_key_generate(
    struct mx_account *account, const struct mx_random *random, struct account_key *ret_key)
{
    ret_key->id = account->id_next++;
    ret_key->is_published = false;
    mx__key_pair_generate(random, &ret_key->pair);
}

int mx_account_add_one_time_keys(
    struct mx_account *account, size_t count, const struct mx_random *random)
{
    size_t total = account->key_count + count;
    int rc;

    tr_assert(count <= MX_ONE_TIME_KEYS_MAX);
    rc = account_reserve(account, total < MX_ONE_TIME_KEYS_MAX ? total : MX_ONE_TIME_KEYS_MAX);
    if (rc != 0)
        return rc;
    if (total > MX_ONE_TIME_KEYS_MAX) {
        account_remove_keys(account, 0, total - MX_ONE_TIME_KEYS_MAX);
        total = MX_ONE_TIME_KEYS_MAX;
    }
    while (account->key_count < total)
        account_key_generate(account, random, &account->keys[account->key_count++]);
    return 0;
}

size_t mx_account_one_time_key_count(const struct mx_account *account)
{
    return account->key_count;
}

static void account_key_show(const struct account_key *key, struct mx_one_time_key *ret_key)
{
    *ret_key = (struct mx_one_time_key){
        .id = key->id,
        .key = key->pair.public_key,
        .is_published = key->is_published,
    };
}

bool mx_account_one_time_key_at(
    const struct mx_account *account, size_t index, struct mx_one_time_key *ret_key)
{
    if (index >= account->key_count)
        return false;
    account_key_show(&account->keys[index], ret_key);
    return true;
}

void mx_account_mark_published(struct mx_account *account, uint64_t id_last)
{
    for (uint32_t i = 0; i < account->key_count; i++)
        account->keys[i].is_published |= account->keys[i].id <= id_last;
    for (uint32_t i = 0; i < account->fallback_count; i++)
        account->fallbacks[i].is_published |= account->fallbacks[i].id <= id_last;
}

void mx_account_skip_key_ids(struct mx_account *account, uint64_t count)
{
    for (uint32_t i = account->key_count; i > 0; i--)
        if (!account->keys[i - 1].is_published)
            account_remove_keys(account, i - 1, 1);
    account->id_next += count;
}

static const struct account_key *account_find_one_time(
    const struct mx_account *account, const struct mx_key *key)
{
    for (uint32_t i = 0; i < account->key_count; i++)
        if (mx_key_equal(&account->keys[i].pair.public_key, key))
            return &account->keys[i];
    return NULL;
}

const struct mx__key_pair *mx__account_find(
    const struct mx_account *account, const struct mx_key *key)
{
    const struct account_key *found = account_find_one_time(account, key);

    for (uint32_t i = 0; found == NULL && i < account->fallback_count; i++)
        if (mx_key_equal(&account->fallbacks[i].pair.public_key, key))
            found = &account->fallbacks[i];
    return found == NULL ? NULL : &found->pair;
}

void mx__account_remove(struct mx_account *account, const struct mx_key *key)
{
    const struct account_key *found = account_find_one_time(account, key);

    if (found != NULL)
        account_remove_keys(account, (size_t)(found - account->keys), 1);
}

/* ---- fallback keys --------------------------------------------------------------------------- */

void mx_account_rotate_fallback(struct mx_account *account, const struct mx_random *random)
{
    tr_assert(account->fallback_count <= 2);
    account->fallbacks[1] = account->fallbacks[0];
    account_key_generate(account, random, &account->fallbacks[0]);
    if (account->fallback_count < 2)
        account->fallback_count++;
}

bool mx_account_fallback_key(const struct mx_account *account, struct mx_one_time_key *ret_key)
{
    if (account->fallback_count == 0)
        return false;
    account_key_show(&account->fallbacks[0], ret_key);
    return true;
}

void mx_account_forget_fallback(struct mx_account *account)
{
    crypto_wipe(&account->fallbacks[1], sizeof account->fallbacks[1]);
    if (account->fallback_count == 2)
        account->fallback_count = 1;
}

/* ---- pickling -------------------------------------------------------------------------------- */

static void account_pack_keys(struct mx__pack *pack, struct account_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mx__pack_u64(pack, &keys[i].id);
        mx__pack_key_pair(pack, &keys[i].pair);
        mx__pack_bool(pack, &keys[i].is_published);
    }
}

static void account_pack(struct mx__pack *pack, void *object)
{
    struct mx_account *account = object;
    uint32_t count = account->key_count;

    mx__pack_key_pair(pack, &account->identity);
    mx__pack_signing_pair(pack, &account->signing);
    mx__pack_u64(pack, &account->id_next);
    mx__pack_u32(pack, &account->fallback_count, 2);
    account_pack_keys(pack, account->fallbacks, account->fallback_count);
    mx__pack_u32(pack, &count, MX_ONE_TIME_KEYS_MAX);
    if (pack->rc == 0)
        pack->rc = account_reserve(account, count); /* there is room already, unless it reads */
    if (pack->rc != 0)
        return;
    account->key_count = count;
    account_pack_keys(pack, account->keys, count);
}

static void account_release(void *object)
{
    account_free_keys(object);
}

static const struct mx__pickle_kind account_kind = {
    .id = 1,
    .size = sizeof(struct mx_account),
    .pack = account_pack,
    .release = account_release,
};
MX__PICKLE(account, account_kind)
