/* SPDX-License-Identifier: Apache-2.0 */
/* desk_inquiry.c: tokens on their way to a verdict.
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
 * 1. An inquiry is in its bucket from the first request that brought the token until it is
 *    answered; requests with the same token join it. A request brings it with its first question or
 *    when it is asked for it (desk.c): either way it was counted and looked for in the cache in
 *    this turn or an earlier one, and a token that is not taken goes with its message.
 * 2. While it is WORKING the desk reads and writes only what desk.h calls the desk's.
 * 3. A verdict stands only if it was reached under the key the cache has now, and a session only if
 *    nobody was told to forget it since it was read: so a key that was replaced or a session that
 *    was ended meanwhile lets nobody in, and leaves nothing in the token cache. */
#include <string.h>

#include "auth/desk.h"
#include "base/alloc.h"
#include "base/assert.h"

enum { INQUIRIES_MAX = 4096, BUCKETS = 1024, WAITERS_MAX = 1024, ROLE_BYTES_MAX = 64 };

static const struct desk_answer overloaded = {
    .verdict = DESK_FAILED, .label = "Overloaded", .text = "too many tokens to verify at once"
};

SQL_STATEMENT(find_session,
    "SELECT u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1 AND u.id = $2 AND s.revoked_s IS NULL AND s.expires_s > $3");

/* ---- the table ------------------------------------------------------------------------------ */

int desk_inquiries_begin(struct desk *desk, struct tr_context *ctx)
{
    desk_queue_begin(desk, ctx);
    desk->bucket_key = (struct base_siphash_key){ tr_random(ctx), tr_random(ctx) };
    desk->buckets = base_calloc(BUCKETS * sizeof(struct inquiry *));
    return desk->buckets == NULL ? TR_ENOMEM : 0;
}

void desk_inquiries_end(struct desk *desk)
{
    for (size_t i = 0; desk->buckets != NULL && i < BUCKETS; i++) {
        for (struct inquiry *at = desk->buckets[i], *next; at != NULL; at = next) {
            next = at->next;
            inquiry_unref(at); /* the pool may have one of its own */
        }
    }
    desk_queue_end(desk);
    base_free(desk->buckets);
    desk->buckets = NULL;
    desk->inquiry_count = 0;
    desk->waiting_count = 0;
}

static struct inquiry **bucket_of(struct desk *desk, const unsigned char *hash)
{
    return &desk->buckets[base_siphash(desk->bucket_key, hash, TOKEN_HASH_SIZE) % BUCKETS];
}

static struct inquiry *find_inquiry(struct desk *desk, const unsigned char *hash)
{
    struct inquiry *at = *bucket_of(desk, hash);

    while (at != NULL && memcmp(at->hash, hash, TOKEN_HASH_SIZE) != 0)
        at = at->next;
    return at;
}

static void unlink_inquiry(struct desk *desk, struct inquiry *inquiry)
{
    struct inquiry **link = bucket_of(desk, inquiry->hash);

    while (*link != inquiry)
        link = &(*link)->next;
    *link = inquiry->next;
    desk->inquiry_count--;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void answer(struct desk *desk, struct tr_context *ctx, const struct inquiry *inquiry,
    tr_reply_handle *waiter)
{
    const struct desk_answer bad = {
        .verdict = inquiry->verdict, .label = inquiry->label, .text = inquiry->text
    };

    if (inquiry->verdict == DESK_OK)
        tr_reply_send(waiter, 0, desk->room, desk_answer_for(desk, ctx, inquiry->claims));
    else
        tr_reply_send(waiter, 0, &bad, sizeof bad);
}

void desk_finish_inquiry(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    tr_assert(inquiry->place != INQUIRY_WORKING);
    tr_assert(inquiry->place != INQUIRY_QUEUED);
    unlink_inquiry(desk, inquiry);
    desk_observe_verify(tr_now_ns(ctx) - inquiry->began_ns);
    if (inquiry->verdict == DESK_OK)
        token_cache_put(&desk->tokens, inquiry->hash, inquiry->claims, (uint64_t)inquiry->now_s);
    else if (inquiry->verdict == DESK_REFUSED)
        desk_count(DESK_REFUSALS);
    for (uint32_t i = 0; i < inquiry->waiter_count; i++)
        answer(desk, ctx, inquiry, &inquiry->waiters[i]);
    inquiry_unref(inquiry);
}

void desk_fail_inquiry(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry,
    enum desk_verdict verdict, const char *label, const char *text)
{
    inquiry->verdict = verdict;
    inquiry->label = label;
    inquiry->text = text;
    desk_finish_inquiry(desk, ctx, inquiry);
}

/* ---- the beginning -------------------------------------------------------------------------- */

static bool has_room(struct inquiry *inquiry)
{
    uint32_t capacity = inquiry->waiter_capacity * 2;
    tr_reply_handle *waiters;

    if (inquiry->waiter_count < inquiry->waiter_capacity)
        return true;
    if (inquiry->waiter_count >= WAITERS_MAX)
        return false;
    waiters = base_calloc(capacity * sizeof *waiters);
    if (waiters == NULL)
        return false;
    memcpy(waiters, inquiry->waiters, inquiry->waiter_count * sizeof *waiters);
    if (inquiry->waiters != inquiry->first_waiters)
        base_free(inquiry->waiters);
    inquiry->waiters = waiters;
    inquiry->waiter_capacity = capacity;
    return true;
}

/* Take the duty to answer over. If it fails the ask is still open. */
static bool join(struct tr_context *ctx, struct inquiry *inquiry)
{
    tr_reply_handle handle;

    if (!has_room(inquiry))
        return false;
    handle = tr_reply_take(ctx);
    if (handle.reply == NULL)
        return false;
    inquiry->waiters[inquiry->waiter_count++] = handle;
    return true;
}

static struct inquiry *new_inquiry(
    struct desk *desk, struct tr_context *ctx, struct desk_message *message)
{
    struct inquiry *inquiry =
        desk->inquiry_count < INQUIRIES_MAX ? base_calloc(sizeof *inquiry) : NULL;
    struct inquiry **bucket = bucket_of(desk, message->hash);

    if (inquiry == NULL)
        return NULL;
    atomic_init(&inquiry->holders, 1);
    inquiry->waiters = inquiry->first_waiters;
    inquiry->waiter_capacity = sizeof inquiry->first_waiters / sizeof inquiry->first_waiters[0];
    if (!join(ctx, inquiry)) {
        inquiry_unref(inquiry);
        return NULL;
    }
    auth_ref(desk->auth);
    inquiry->auth = desk->auth;
    inquiry->began_ns = tr_now_ns(ctx);
    memcpy(inquiry->hash, message->hash, TOKEN_HASH_SIZE);
    inquiry->token = message->token;
    inquiry->token_size = message->token_size;
    inquiry->traceparent = message->is_traced ? message->token + message->token_size : NULL;
    message->token = NULL;
    inquiry->next = *bucket;
    *bucket = inquiry;
    desk->inquiry_count++;
    return inquiry;
}

void desk_begin_inquiry(struct desk *desk, struct tr_context *ctx, struct desk_message *message)
{
    struct inquiry *inquiry = find_inquiry(desk, message->hash);

    if (inquiry != NULL) {
        if (!join(ctx, inquiry))
            desk_reply(ctx, &overloaded);
        return;
    }
    inquiry = desk_queue_is_full(desk) ? NULL : new_inquiry(desk, ctx, message);
    if (inquiry == NULL) {
        desk_reply(ctx, &overloaded);
        return;
    }
    desk_count(DESK_MISSES);
    desk_queue_put(desk, inquiry);
}

/* ---- sessions ------------------------------------------------------------------------------- */

static void read_session(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct sql_unit *unit = desk->auth->sql == NULL ? NULL : sql_unit_new(0);
    int rc = TR_ENOMEM;

    inquiry->place = INQUIRY_READING;
    inquiry->was_forgotten = false;
    inquiry->number = desk->number_next++ & DESK_NUMBER_MASK;
    inquiry->now_s = (int64_t)desk_wall_s(desk);
    if (unit != NULL) {
        sql_unit_step(unit, &find_session, SQL_ROWS_ANY);
        sql_unit_text(unit, inquiry->claims->jti);
        sql_unit_text(unit, inquiry->claims->issuer);
        sql_unit_int(unit, inquiry->now_s);
        rc = sql_read(ctx, &desk->sql, unit,
            &(struct sql_submit_options){ .tag = DESK_TAG_READ + inquiry->number });
    }
    if (rc == 0)
        return;
    sql_unit_free(unit);
    desk_fail_inquiry(
        desk, ctx, inquiry, DESK_FAILED, "Overloaded", "the database is busy: try again");
}

void desk_doubt_sessions(struct desk *desk, struct span issuer)
{
    for (size_t i = 0; desk->inquiry_count > 0 && i < BUCKETS; i++)
        for (struct inquiry *at = desk->buckets[i]; at != NULL; at = at->next)
            if (at->place == INQUIRY_READING &&
                (issuer.at == NULL || span_equal(at->claims->issuer, issuer)))
                at->was_forgotten = true;
}

static void session_found(
    struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry, const struct sql_unit *unit)
{
    struct auth_claims claims = *inquiry->claims;
    const struct auth_claims *with_role;

    if (sql_unit_status(unit) != 0) {
        desk_fail_inquiry(desk, ctx, inquiry, DESK_FAILED, "Overloaded", "the database is busy");
        return;
    }
    if (sql_unit_rows(unit, 0) != 1) {
        desk_fail_inquiry(desk, ctx, inquiry, DESK_REFUSED, "SessionEnded",
            "this session has ended: sign in again");
        return;
    }
    claims.role = sql_row_bytes(unit, 0, 0, 0);
    if (claims.role.size > ROLE_BYTES_MAX) {
        desk_fail_inquiry(desk, ctx, inquiry, DESK_FAILED, "Role", "the user's role is not one");
        return;
    }
    with_role = auth_claims_new(&claims);
    if (with_role == NULL) {
        desk_fail_inquiry(
            desk, ctx, inquiry, DESK_FAILED, "Overloaded", "out of memory: try again");
        return;
    }
    auth_claims_unref(inquiry->claims);
    inquiry->claims = with_role;
    inquiry->verdict = DESK_OK;
    desk_finish_inquiry(desk, ctx, inquiry);
}

static struct inquiry *find_reading(struct desk *desk, uint32_t tag)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct inquiry *at = desk->buckets[i]; at != NULL; at = at->next)
            if (at->place == INQUIRY_READING && at->number + DESK_TAG_READ == tag)
                return at;
    return NULL;
}

void desk_session_read(struct desk *desk, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&desk->sql, event);
    struct inquiry *inquiry = unit == NULL ? NULL : find_reading(desk, event->tag);

    if (inquiry != NULL && inquiry->was_forgotten)
        read_session(desk, ctx, inquiry);
    else if (inquiry != NULL)
        session_found(desk, ctx, inquiry, unit);
    sql_unit_free(unit);
}

/* ---- the pool is done with it --------------------------------------------------------------- */

void desk_worked(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    if (inquiry->needs_session)
        read_session(desk, ctx, inquiry);
    else if (inquiry->needs_key)
        desk_need_key(desk, ctx, inquiry);
    else if (!desk_looks_again(desk, ctx, inquiry))
        desk_finish_inquiry(desk, ctx, inquiry);
}
