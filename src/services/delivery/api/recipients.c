/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/recipients.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"
#include "services/common/step.h"
#include "services/delivery/store/package_store.h"

/* ---- the listed hashes ------------------------------------------------------------------------- */

static int compare_hashes(const void *a, const void *b)
{
    const struct act_hash *x = a, *y = b;

    return span_compare((struct span){ (const char *)x->bytes, x->size },
        (struct span){ (const char *)y->bytes, y->size });
}

void recipients_read_hashes(struct api_body *body)
{
    static const char name[] = "keyPackageHashes";
    const struct json *list = api_value(body, name)->json;
    struct act_members *members = body->act->members;
    size_t index = 0;

    tr_assert(members->hashes == NULL);
    members->hashes = api_alloc(body, json_count(list), sizeof *members->hashes);
    if (members->hashes == NULL)
        return;
    for (struct json_iter it = json_iterate(list); json_next(&it); index++) {
        struct json_expect item = json_expect_item(&body->reader.expect, name, index, it.value);
        struct act_hash *hash = &members->hashes[members->hash_count++];
        struct span text;

        hash->did = json_need_string(&item, "did", DID_SIZE_MIN, DID_SIZE_MAX);
        text = json_need_string(&item, "hash", 2, 2 * sizeof hash->bytes);
        if (text.size > 0 &&
            crypto_hex_decode(text, hash->bytes, sizeof hash->bytes, &hash->size) < 0)
            json_expect_fail(&item, "hash", "must be hex");
    }
    qsort(members->hashes, members->hash_count, sizeof *members->hashes, compare_hashes);
}

static const struct act_hash *find_hash(const struct act_members *members, struct span reference)
{
    struct act_hash key = { .size = reference.size };

    if (reference.size > sizeof key.bytes)
        return NULL;
    memcpy(key.bytes, reference.at, reference.size);
    return bsearch(&key, members->hashes, members->hash_count, sizeof key, compare_hashes);
}

/* References are unique: if all are listed and the counts agree, the lists are the same. */
bool recipients_are_hashed(const struct act_members *members)
{
    uint32_t count = 0;

    if (members->hash_count == 0)
        return true;
    for (uint32_t i = 0; i < members->add_count; i++) {
        if (members->adds[i].reference.at == NULL)
            continue;
        count++;
        if (find_hash(members, members->adds[i].reference) == NULL)
            return false;
    }
    return count == members->hash_count;
}

/* ---- the Welcomes --------------------------------------------------------------------------- */

static int compare_references(const void *a, const void *b)
{
    return span_compare(*(const struct span *)a, *(const struct span *)b);
}

static const char *check_references(const struct act_members *members)
{
    struct span *all = base_calloc((members->add_count + 1) * sizeof *all);
    const char *why = NULL;

    if (all == NULL)
        return "The server is out of memory; try again.";
    for (uint32_t i = 0; i < members->add_count; i++)
        all[i] = members->adds[i].reference;
    qsort(all, members->add_count, sizeof *all, compare_references);
    for (uint32_t i = 1; why == NULL && i < members->add_count; i++)
        if (span_equal(all[i - 1], all[i]))
            why = "The Welcomes name a key package twice.";
    base_free(all);
    return why;
}

/* Counts the references of all Welcomes. NULL, or what is wrong. */
static const char *count_references(struct act_members *members, uint32_t *ret_count)
{
    struct mls_message welcome;

    *ret_count = 0;
    for (uint32_t i = 0; i < members->welcome_count; i++) {
        const char *why = mls_message_read(members->welcomes[i], &welcome);

        if (why != NULL)
            return why;
        if (welcome.wire != MLS_WELCOME)
            return "A Welcome of the request is not a Welcome message.";
        if (i > 0 && welcome.suite != members->welcome_suite)
            return "The Welcomes have different cipher suites.";
        members->welcome_suite = welcome.suite;
        *ret_count += welcome.secret_count;
    }
    return *ret_count > ACT_MEMBERS_MAX ? "The Welcomes have more than 1,000 recipients." : NULL;
}

const char *recipients_read(struct act_members *members)
{
    uint32_t count, at = 0;
    const char *why = count_references(members, &count);
    struct mls_message welcome;

    if (why != NULL || count == 0)
        return why;
    tr_assert(members->named == NULL);
    members->named = members->adds;
    members->named_count = members->add_count;
    members->add_count = 0;
    members->adds = base_calloc(count * sizeof *members->adds);
    if (members->adds == NULL)
        return "The server is out of memory; try again.";
    for (uint32_t i = 0; i < members->welcome_count; i++) {
        struct mls_reader list;
        struct span reference;

        (void)mls_message_read(members->welcomes[i], &welcome);
        list = mls_reader_of(welcome.secrets);
        while (mls_welcome_next(&list, &reference) && at < count)
            members->adds[at++] = (struct act_add){ .reference = reference, .welcome = i };
    }
    members->add_count = at;
    return check_references(members);
}

/* ---- the owners ------------------------------------------------------------------------- */

static bool has_account(const struct act_add *adds, uint32_t count, struct span did)
{
    for (uint32_t i = 0; i < count; i++)
        if (span_equal(adds[i].did, did))
            return true;
    return false;
}

/* A listed account may name a device behind a #. */
static bool is_owner(struct span listed, struct span did)
{
    return listed.size >= did.size && memcmp(listed.at, did.at, did.size) == 0 &&
           (listed.size == did.size || listed.at[did.size] == '#');
}

static bool are_named(const struct act_members *members)
{
    for (uint32_t i = 0; i < members->add_count && members->hash_count > 0; i++) {
        const struct act_hash *hash = find_hash(members, members->adds[i].reference);

        if (hash == NULL || !is_owner(hash->did, members->adds[i].did))
            return false;
    }
    if (members->named == NULL)
        return true;
    for (uint32_t i = 0; i < members->add_count; i++)
        if (!has_account(members->named, members->named_count, members->adds[i].did))
            return false;
    for (uint32_t i = 0; i < members->named_count; i++)
        if (!has_account(members->adds, members->add_count, members->named[i].did))
            return false;
    return true;
}

uint32_t recipients_owner_count(const struct act *act)
{
    return act->members == NULL || act->members->welcome_count == 0 ? 0 : act->members->add_count;
}

void recipients_ask_owners(const struct act *act, struct sql_unit *unit)
{
    for (uint32_t i = 0; unit != NULL && i < recipients_owner_count(act); i++)
        UNIT_STEP(unit, &package_find, SQL_ROWS_ANY, VALUE_BYTES(act->members->adds[i].reference));
}

/* Copies the owners into the act's memory. False: a key package is unknown. */
static bool copy_owners(struct act *act, const struct sql_unit *unit, uint32_t first)
{
    for (uint32_t i = 0; i < act->members->add_count; i++) {
        struct act_add *add = &act->members->adds[i];
        struct span did, device;

        if (sql_unit_rows(unit, first + i) != 1)
            return false;
        did = sql_row_bytes(unit, first + i, 0, 0);
        device = sql_row_bytes(unit, first + i, 0, 1);
        buffer_span(&act->decoded, did);
        buffer_span(&act->decoded, device);
        add->did.size = did.size;
        add->device.size = device.size;
    }
    return true;
}

/* The buffer may have moved while it grew: the spans point into it at the end. */
static void point_owners(struct act *act, size_t from, size_t op_from)
{
    const char *at = act->decoded.bytes + from;

    for (uint32_t i = 0; i < act->members->add_count; i++) {
        struct act_add *add = &act->members->adds[i];

        add->did.at = at;
        at += add->did.size;
        add->device.at = at;
        at += add->device.size;
    }
    if (act->op.at != NULL)
        act->op.at = act->decoded.bytes + op_from;
}

struct refusal recipients_take_owners(struct act *act, const struct sql_unit *unit, uint32_t first)
{
    size_t op_from = act->op.at == NULL ? 0 : (size_t)(act->op.at - act->decoded.bytes);
    size_t from = act->decoded.size;

    tr_assert(act->members != NULL);
    if (!copy_owners(act, unit, first))
        return (struct refusal)REFUSE(404, "KeyPackageNotFound",
            "A Welcome names a key package that this server did not hand out.");
    if (act->decoded.failed != 0)
        return (struct refusal){ 0 }; /* api_send() answers that */
    point_owners(act, from, op_from);
    if (!are_named(act->members))
        return (struct refusal)REFUSE(400, "WelcomeMismatch",
            "The request must name the accounts that the Welcomes are for.");
    return (struct refusal){ 0 };
}
