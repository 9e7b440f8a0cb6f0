/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_lookup.c: a lookup finds out whether one token is valid, for all requests that carry it.
 *
 *             ┌───────── document fetched ───────────┐
 *             ▼                                      │
 *   start ─▶ QUEUED ──all waiters gave up─▶ ended    │
 *             │  ▲                                   │
 *             ▼  │ key from the cache                │
 *            WORKING ──no key, or a changed one─▶ FETCHING ──fetch failed─▶ answered
 *             │  └───── session token ──────────▶ READING ───────────────▶ answered
 *             └───────── verdict ───────────────▶ answered
 *
 * 1. A lookup is in the hash table from the first request with the token until it is answered.
 *    Requests with the same token join it as waiters. Before a request joins, the verifier has
 *    counted it against the rate of its address and has not found the token in the cache.
 * 2. While a lookup is WORKING, the pool owns the work's part of struct auth_lookup, and the
 *    verifier uses only the verifier's part (verifier.h).
 * 3. If the cache has another key of the issuer when the pool is done, the token is verified again
 *    with that key; if the cache has a refusal instead, the token is refused. If auth_forget came
 *    while the session was read, the session is read again. So a replaced key or an ended session
 *    lets no request pass, and leaves no token in the cache. */
#include <stdio.h>
#include <string.h>

#include "auth/session_store.h"
#include "auth/verifier.h"
#include "base/alloc.h"
#include "base/assert.h"

enum { LOOKUPS_MAX = 4096, BUCKETS = 1024, WAITERS_MAX = 1024, ROLE_BYTES_MAX = 64 };

static const struct auth_lookup_failure overloaded = { .verdict = VERDICT_FAILED,
    .label = "Overloaded",
    .text = "The server verifies too many tokens now; try again." };
static const struct auth_lookup_failure database_busy = {
    .verdict = VERDICT_FAILED, .label = "Overloaded", .text = "The database is busy; try again."
};
static const struct auth_lookup_failure out_of_memory = { .verdict = VERDICT_FAILED,
    .label = "Overloaded",
    .text = "The server is out of memory; try again." };
static const struct auth_lookup_failure session_ended = {
    .verdict = VERDICT_REFUSED, .label = "SessionEnded", .text = "The session ended; sign in again."
};
static const struct auth_lookup_failure bad_role = { .verdict = VERDICT_FAILED,
    .label = "Role",
    .text = "The database holds a role for this user that is too long; tell the operator." };

/* ---- the table ------------------------------------------------------------------------------ */

int auth_lookups_init(struct auth_verifier *verifier, struct tr_context *ctx)
{
    auth_queue_init(verifier, ctx);
    verifier->bucket_key = (struct base_siphash_key){ tr_random(ctx), tr_random(ctx) };
    verifier->buckets = base_calloc(BUCKETS * sizeof(struct auth_lookup *));
    return verifier->buckets == NULL ? TR_ENOMEM : 0;
}

void auth_lookups_fini(struct auth_verifier *verifier)
{
    for (size_t i = 0; verifier->buckets != NULL && i < BUCKETS; i++) {
        for (struct auth_lookup *at = verifier->buckets[i], *next; at != NULL; at = next) {
            next = at->next;
            auth_lookup_unref(at); /* the pool may hold another reference */
        }
    }
    auth_queue_fini(verifier);
    base_free(verifier->buckets);
    verifier->buckets = NULL;
    verifier->lookup_count = 0;
    verifier->waiting_count = 0;
}

static struct auth_lookup **bucket_of(struct auth_verifier *verifier, const unsigned char *hash)
{
    return &verifier->buckets[base_siphash(verifier->bucket_key, hash, TOKEN_HASH_SIZE) % BUCKETS];
}

static struct auth_lookup *find_lookup(struct auth_verifier *verifier, const unsigned char *hash)
{
    struct auth_lookup *at = *bucket_of(verifier, hash);

    while (at != NULL && memcmp(at->hash, hash, TOKEN_HASH_SIZE) != 0)
        at = at->next;
    return at;
}

static void unlink_lookup(struct auth_verifier *verifier, struct auth_lookup *lookup)
{
    struct auth_lookup **link = bucket_of(verifier, lookup->hash);

    while (*link != lookup)
        link = &(*link)->next;
    *link = lookup->next;
    verifier->lookup_count--;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void lookup_answer(struct auth_verifier *verifier, struct tr_context *ctx,
    const struct auth_lookup *lookup, tr_reply_handle *waiter)
{
    size_t size;

    if (lookup->verdict == VERDICT_OK)
        size = auth_answer_fill(verifier, ctx, lookup->claims);
    else
        size = auth_answer_fill_failure(verifier,
            &(struct auth_lookup_failure){ lookup->verdict, lookup->label, lookup->text });
    tr_reply_send(waiter, 0, verifier->room, size);
}

void auth_lookup_end(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    tr_assert(lookup->place != LOOKUP_WORKING);
    tr_assert(lookup->place != LOOKUP_QUEUED);
    unlink_lookup(verifier, lookup);
    auth_observe_verify(tr_now_ns(ctx) - lookup->began_ns);
    if (lookup->verdict == VERDICT_OK)
        token_cache_put(&verifier->tokens, lookup->hash, lookup->claims, (uint64_t)lookup->now_s);
    else if (lookup->verdict == VERDICT_REFUSED)
        auth_count(AUTH_METRIC_REFUSALS);
    for (uint32_t i = 0; i < lookup->waiter_count; i++)
        lookup_answer(verifier, ctx, lookup, &lookup->waiters[i]);
    auth_lookup_unref(lookup);
}

void auth_lookup_fail(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, const struct auth_lookup_failure *failure)
{
    tr_assert(failure->label != NULL);
    lookup->verdict = failure->verdict;
    lookup->label = failure->label;
    (void)snprintf(lookup->text, sizeof lookup->text, "%s", failure->text);
    auth_lookup_end(verifier, ctx, lookup);
}

/* ---- the start ------------------------------------------------------------------------------ */

static bool make_room(struct auth_lookup *lookup)
{
    uint32_t capacity = lookup->waiter_capacity * 2;
    tr_reply_handle *waiters;

    if (lookup->waiter_count < lookup->waiter_capacity)
        return true;
    if (lookup->waiter_count >= WAITERS_MAX)
        return false;
    waiters = base_calloc(capacity * sizeof *waiters);
    if (waiters == NULL)
        return false;
    memcpy(waiters, lookup->waiters, lookup->waiter_count * sizeof *waiters);
    if (lookup->waiters != lookup->first_waiters)
        base_free(lookup->waiters);
    lookup->waiters = waiters;
    lookup->waiter_capacity = capacity;
    return true;
}

/* Add the request that is being handled to the waiters. On failure the caller must answer it. */
static bool lookup_join(struct tr_context *ctx, struct auth_lookup *lookup)
{
    tr_reply_handle handle;

    if (!make_room(lookup))
        return false;
    handle = tr_reply_take(ctx);
    if (handle.reply == NULL)
        return false;
    lookup->waiters[lookup->waiter_count++] = handle;
    return true;
}

static struct auth_lookup *create_lookup(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_verifier_message *message)
{
    struct auth_lookup *lookup =
        verifier->lookup_count < LOOKUPS_MAX ? base_calloc(sizeof *lookup) : NULL;
    struct auth_lookup **bucket = bucket_of(verifier, message->hash);

    if (lookup == NULL)
        return NULL;
    atomic_init(&lookup->holders, 1);
    lookup->waiters = lookup->first_waiters;
    lookup->waiter_capacity = sizeof lookup->first_waiters / sizeof lookup->first_waiters[0];
    if (!lookup_join(ctx, lookup)) {
        auth_lookup_unref(lookup);
        return NULL;
    }
    auth_ref(verifier->auth);
    lookup->auth = verifier->auth;
    lookup->began_ns = tr_now_ns(ctx);
    memcpy(lookup->hash, message->hash, TOKEN_HASH_SIZE);
    lookup->token = message->token;
    lookup->token_size = message->token_size;
    lookup->traceparent = message->is_traced ? message->token + message->token_size : NULL;
    message->token = NULL;
    lookup->next = *bucket;
    *bucket = lookup;
    verifier->lookup_count++;
    return lookup;
}

static void refuse_request(struct auth_verifier *verifier, struct tr_context *ctx)
{
    tr_reply(ctx, 0, verifier->room, auth_answer_fill_failure(verifier, &overloaded));
}

void auth_lookup_start(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_verifier_message *message)
{
    struct auth_lookup *lookup = find_lookup(verifier, message->hash);

    tr_assert(message->token != NULL);
    if (lookup != NULL) {
        if (!lookup_join(ctx, lookup))
            refuse_request(verifier, ctx);
        return;
    }
    lookup = auth_queue_is_full(verifier) ? NULL : create_lookup(verifier, ctx, message);
    if (lookup == NULL) {
        refuse_request(verifier, ctx);
        return;
    }
    auth_count(AUTH_METRIC_MISSES);
    auth_queue_put(verifier, lookup);
}

/* ---- sessions ------------------------------------------------------------------------------- */

static void read_session(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    struct sql_unit *unit = verifier->auth->sql == NULL ? NULL : sql_unit_create(0);
    int rc = TR_ENOMEM;

    lookup->place = LOOKUP_READING;
    lookup->session_in_doubt = false;
    lookup->number = verifier->number_next++ & VERIFIER_NUMBER_MASK;
    lookup->now_s = (int64_t)auth_verifier_wall_s(verifier);
    if (unit != NULL) {
        session_store_find(unit, lookup->claims->jti, lookup->claims->issuer, lookup->now_s);
        rc = sql_read(ctx, &verifier->sql, unit,
            &(struct sql_submit_options){ .tag = VERIFIER_TAG_READ + lookup->number });
    }
    if (rc == 0)
        return;
    sql_unit_destroy(unit);
    auth_lookup_fail(verifier, ctx, lookup, &database_busy);
}

void auth_lookups_doubt_sessions(struct auth_verifier *verifier, struct span issuer)
{
    for (size_t i = 0; verifier->lookup_count > 0 && i < BUCKETS; i++)
        for (struct auth_lookup *at = verifier->buckets[i]; at != NULL; at = at->next)
            if (at->place == LOOKUP_READING &&
                (issuer.at == NULL || span_equal(at->claims->issuer, issuer)))
                at->session_in_doubt = true;
}

static void session_found(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, const struct sql_unit *unit)
{
    struct auth_claims claims = *lookup->claims;
    const struct auth_claims *with_role;

    if (sql_unit_status(unit) != 0) {
        auth_lookup_fail(verifier, ctx, lookup, &database_busy);
        return;
    }
    if (sql_unit_rows(unit, 0) != 1) {
        auth_lookup_fail(verifier, ctx, lookup, &session_ended);
        return;
    }
    claims.role = sql_row_bytes(unit, 0, 0, 0);
    if (claims.role.size > ROLE_BYTES_MAX) {
        auth_lookup_fail(verifier, ctx, lookup, &bad_role);
        return;
    }
    with_role = auth_claims_create(&claims);
    if (with_role == NULL) {
        auth_lookup_fail(verifier, ctx, lookup, &out_of_memory);
        return;
    }
    auth_claims_unref(lookup->claims);
    lookup->claims = with_role;
    lookup->verdict = VERDICT_OK;
    auth_lookup_end(verifier, ctx, lookup);
}

static struct auth_lookup *find_reading(struct auth_verifier *verifier, uint32_t tag)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct auth_lookup *at = verifier->buckets[i]; at != NULL; at = at->next)
            if (at->place == LOOKUP_READING && at->number + VERIFIER_TAG_READ == tag)
                return at;
    return NULL;
}

void auth_lookup_session_read(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&verifier->sql, event);
    struct auth_lookup *lookup = unit == NULL ? NULL : find_reading(verifier, event->tag);

    if (lookup != NULL && lookup->session_in_doubt)
        read_session(verifier, ctx, lookup);
    else if (lookup != NULL)
        session_found(verifier, ctx, lookup, unit);
    sql_unit_destroy(unit);
}

/* ---- after the pool ------------------------------------------------------------------------- */

void auth_lookup_worked(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    tr_assert(lookup->place == LOOKUP_IDLE);
    if (lookup->finding == FINDING_NEEDS_SESSION)
        read_session(verifier, ctx, lookup);
    else if (lookup->finding == FINDING_NEEDS_KEY)
        auth_lookup_find_key(verifier, ctx, lookup);
    else if (!auth_lookup_retries(verifier, ctx, lookup))
        auth_lookup_end(verifier, ctx, lookup);
}
