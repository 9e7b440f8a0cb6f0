/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_lookup.c: tokens on their way to a verdict.
 *
 *             ┌───────── the document came ─────────┐
 *             ▼                                      │
 *   begin ─▶ QUEUED ──nobody waits any more─▶ ended  │
 *             │  ▲                                   │
 *             ▼  │ with a key from the cache         │
 *            WORKING ──no key, or a changed one─▶ FETCHING ──cannot be had─▶ answered
 *             │  └───── one of our own ─────────▶ READING ────────────────▶ answered
 *             └───────── verdict ───────────────▶ answered
 *
 * 1. A lookup is in its bucket from the first request that brought the token until it is
 *    answered; requests with the same token join it. A request brings it with its first question or
 *    when it is asked for it (verifier.c): either way it was counted and looked for in the cache in
 *    this turn or an earlier one, and a token that is not taken goes with its message.
 * 2. While it is WORKING the verifier reads and writes only what verifier.h calls the verifier's.
 * 3. A verdict stands only if it was reached under the key the cache has now, and a session only if
 *    nobody was told to forget it since it was read: so a key that was replaced or a session that
 *    was ended meanwhile lets nobody in, and leaves nothing in the token cache. */
#include <string.h>

#include "auth/verifier.h"
#include "base/alloc.h"
#include "base/assert.h"

enum { LOOKUPS_MAX = 4096, BUCKETS = 1024, WAITERS_MAX = 1024, ROLE_BYTES_MAX = 64 };

static const struct auth_answer overloaded = {
    .verdict = VERDICT_FAILED, .label = "Overloaded", .text = "too many tokens to verify at once"
};

SQL_STATEMENT(find_session,
    "SELECT u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1 AND u.id = $2 AND s.revoked_s IS NULL AND s.expires_s > $3");

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
            auth_lookup_unref(at); /* the pool may have one of its own */
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

static void answer(struct auth_verifier *verifier, struct tr_context *ctx,
    const struct auth_lookup *lookup, tr_reply_handle *waiter)
{
    const struct auth_answer bad = {
        .verdict = lookup->verdict, .label = lookup->label, .text = lookup->text
    };

    if (lookup->verdict == VERDICT_OK)
        tr_reply_send(waiter, 0, verifier->room, auth_answer_fill(verifier, ctx, lookup->claims));
    else
        tr_reply_send(waiter, 0, &bad, sizeof bad);
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
        answer(verifier, ctx, lookup, &lookup->waiters[i]);
    auth_lookup_unref(lookup);
}

void auth_lookup_fail(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, enum auth_verdict verdict, const char *label, const char *text)
{
    lookup->verdict = verdict;
    lookup->label = label;
    lookup->text = text;
    auth_lookup_end(verifier, ctx, lookup);
}

/* ---- the beginning -------------------------------------------------------------------------- */

static bool has_room(struct auth_lookup *lookup)
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

/* Take the duty to answer over. If it fails the ask is still open. */
static bool join(struct tr_context *ctx, struct auth_lookup *lookup)
{
    tr_reply_handle handle;

    if (!has_room(lookup))
        return false;
    handle = tr_reply_take(ctx);
    if (handle.reply == NULL)
        return false;
    lookup->waiters[lookup->waiter_count++] = handle;
    return true;
}

static struct auth_lookup *new_lookup(
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
    if (!join(ctx, lookup)) {
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

void auth_lookup_start(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_verifier_message *message)
{
    struct auth_lookup *lookup = find_lookup(verifier, message->hash);

    if (lookup != NULL) {
        if (!join(ctx, lookup))
            auth_answer_send(ctx, &overloaded);
        return;
    }
    lookup = auth_queue_is_full(verifier) ? NULL : new_lookup(verifier, ctx, message);
    if (lookup == NULL) {
        auth_answer_send(ctx, &overloaded);
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
    lookup->was_forgotten = false;
    lookup->number = verifier->number_next++ & VERIFIER_NUMBER_MASK;
    lookup->now_s = (int64_t)auth_verifier_wall_s(verifier);
    if (unit != NULL) {
        sql_unit_step(unit, &find_session, SQL_ROWS_ANY);
        sql_unit_text(unit, lookup->claims->jti);
        sql_unit_text(unit, lookup->claims->issuer);
        sql_unit_int(unit, lookup->now_s);
        rc = sql_read(ctx, &verifier->sql, unit,
            &(struct sql_submit_options){ .tag = VERIFIER_TAG_READ + lookup->number });
    }
    if (rc == 0)
        return;
    sql_unit_destroy(unit);
    auth_lookup_fail(
        verifier, ctx, lookup, VERDICT_FAILED, "Overloaded", "the database is busy: try again");
}

void auth_lookups_doubt_sessions(struct auth_verifier *verifier, struct span issuer)
{
    for (size_t i = 0; verifier->lookup_count > 0 && i < BUCKETS; i++)
        for (struct auth_lookup *at = verifier->buckets[i]; at != NULL; at = at->next)
            if (at->place == LOOKUP_READING &&
                (issuer.at == NULL || span_equal(at->claims->issuer, issuer)))
                at->was_forgotten = true;
}

static void session_found(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, const struct sql_unit *unit)
{
    struct auth_claims claims = *lookup->claims;
    const struct auth_claims *with_role;

    if (sql_unit_status(unit) != 0) {
        auth_lookup_fail(
            verifier, ctx, lookup, VERDICT_FAILED, "Overloaded", "the database is busy");
        return;
    }
    if (sql_unit_rows(unit, 0) != 1) {
        auth_lookup_fail(verifier, ctx, lookup, VERDICT_REFUSED, "SessionEnded",
            "this session has ended: sign in again");
        return;
    }
    claims.role = sql_row_bytes(unit, 0, 0, 0);
    if (claims.role.size > ROLE_BYTES_MAX) {
        auth_lookup_fail(
            verifier, ctx, lookup, VERDICT_FAILED, "Role", "the user's role is not one");
        return;
    }
    with_role = auth_claims_create(&claims);
    if (with_role == NULL) {
        auth_lookup_fail(
            verifier, ctx, lookup, VERDICT_FAILED, "Overloaded", "out of memory: try again");
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

    if (lookup != NULL && lookup->was_forgotten)
        read_session(verifier, ctx, lookup);
    else if (lookup != NULL)
        session_found(verifier, ctx, lookup, unit);
    sql_unit_destroy(unit);
}

/* ---- the pool is done with it --------------------------------------------------------------- */

void auth_lookup_verified(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    if (lookup->needs_session)
        read_session(verifier, ctx, lookup);
    else if (lookup->needs_key)
        auth_lookup_find_key(verifier, ctx, lookup);
    else if (!auth_lookup_retries(verifier, ctx, lookup))
        auth_lookup_end(verifier, ctx, lookup);
}
