/* SPDX-License-Identifier: Apache-2.0 */
/* desk.c: the desk.
 *
 * A token that is not in the cache becomes an inquiry. It is in the list from the first request
 * that brought the token until it is answered; requests with the same token join it, so a token is
 * verified once however many bring it at the same time. An inquiry is at one of three places: on
 * the pool (is_working), waiting for the document of its issuer (is_fetching), or being
 * answered. The desk reads and writes it only when it is not on the pool. */
#include "auth/desk.h"

#include <stdio.h>
#include <string.h>

#include "auth/did.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/client.h"

enum {
    INQUIRIES_MAX = 4096,
    REFRESH_S_MIN = 30, /* between two forced looks at one issuer's document */
    PURGE_S = 60,
    JTI_KEPT_S = 60,         /* longer than exp: clocks differ */
    SESSIONS_KEPT_S = 86400, /* for whoever asks what happened */
};
/* Fetches and reads carry the number of their inquiry behind the tag. */
enum { TAG_WORK = 1, TAG_PURGE, TAG_PURGED, TAG_FETCH = 1 << 24, TAG_READ = 2 << 24 };

static struct metric_histogram verify_histogram;
static struct metric metrics[] = {
    { "troupe_auth_cache_hits_total", NULL, "Tokens found verified in the cache.", METRIC_COUNTER,
        0, NULL, NULL },
    { "troupe_auth_cache_misses_total", NULL, "Tokens that had to be verified.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_auth_refused_total", NULL, "Tokens refused.", METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_auth_limited_total", "by=\"address\"", "Requests over a rate.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_auth_limited_total", "by=\"did\"", "Requests over a rate.", METRIC_COUNTER, 0, NULL,
        NULL },
    { "troupe_auth_fetches_total", NULL, "DID documents asked for.", METRIC_COUNTER, 0, NULL,
        NULL },
    { "troupe_auth_fetch_failures_total", NULL, "DID documents that could not be had.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_auth_verify_seconds", NULL, "From a token that is not cached to its verdict.",
        METRIC_HISTOGRAM, 0, &verify_histogram, NULL },
};
enum { HITS, MISSES, REFUSED, LIMITED_ADDRESS, LIMITED_DID, FETCHES, FETCH_FAILURES, VERIFY_TIME };

SQL_STATEMENT(purge, "DELETE FROM auth_jti WHERE expires_s < $1");
SQL_STATEMENT(purge_sessions, "DELETE FROM auth_sessions WHERE expires_s < $1");
SQL_STATEMENT(find_session,
    "SELECT u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1 AND u.id = $2 AND s.revoked_s IS NULL AND s.expires_s > $3");

static int64_t wall_s(const struct desk *desk)
{
    return (int64_t)(desk->auth->env->wall_ns(desk->auth->env->data) / 1000000000);
}

/* ---- answers -----------------------------------------------------------------------------------
 */

static size_t put_text(char *at, struct tr_span text, uint16_t *ret_size)
{
    *ret_size = (uint16_t)text.size;
    if (text.size > 0)
        memcpy(at, text.at, text.size);
    return text.size;
}

/* Claims fit: jwt.h bounds each of them, and a token is at most 8 KiB. */
static size_t answer_of(const struct auth_claims *claims, struct desk_answer *answer)
{
    char *at = answer->texts;

    answer->verdict = DESK_OK;
    answer->kind = claims->kind;
    answer->issued_s = claims->issued_s;
    answer->expires_s = claims->expires_s;
    at += put_text(at, claims->issuer, &answer->issuer_size);
    at += put_text(at, claims->audience, &answer->audience_size);
    at += put_text(at, claims->lxm, &answer->lxm_size);
    at += put_text(at, claims->jti, &answer->jti_size);
    at += put_text(at, claims->role, &answer->role_size);
    return (size_t)(at - (char *)answer);
}

union answer_room {
    struct desk_answer answer;
    char bytes[sizeof(struct desk_answer) + JWT_BYTES_MAX];
};

/* The issuer's own rate, then the claims. */
static size_t answer_for(struct desk *desk, struct tr_context *ctx,
    const struct auth_claims *claims, struct desk_answer *answer)
{
    *answer = (struct desk_answer){ 0 };
    if (rate_limit_take(&desk->per_did, claims->issuer, tr_now_ns(ctx), &answer->retry_ns) < 0) {
        metric_add(&metrics[LIMITED_DID], 1);
        answer->verdict = DESK_LIMITED;
        answer->label = "did";
        return sizeof *answer;
    }
    return answer_of(claims, answer);
}

static void reply_simple(struct tr_context *ctx, struct desk_answer answer)
{
    tr_reply(ctx, 0, &answer, sizeof answer);
}

/* ---- inquiries
 * ----------------------------------------------------------------------------------- */

static struct inquiry *find_inquiry(struct desk *desk, const unsigned char *hash)
{
    struct inquiry *at = desk->inquiries;

    while (at != NULL && memcmp(at->hash, hash, TOKEN_HASH_SIZE) != 0)
        at = at->next;
    return at;
}

static void unlink_inquiry(struct desk *desk, struct inquiry *inquiry)
{
    struct inquiry **link = &desk->inquiries;

    while (*link != inquiry)
        link = &(*link)->next;
    *link = inquiry->next;
    desk->inquiry_count--;
}

static void finish_inquiry(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    union answer_room room;
    size_t size;

    unlink_inquiry(desk, inquiry);
    if (inquiry->verdict == DESK_OK)
        token_cache_put(&desk->tokens, inquiry->hash, inquiry->claims, (uint64_t)inquiry->now_s);
    else
        metric_add(&metrics[REFUSED], 1);
    for (uint32_t i = 0; i < inquiry->waiter_count; i++) {
        if (inquiry->verdict == DESK_OK) {
            size = answer_for(desk, ctx, inquiry->claims, &room.answer);
        } else {
            room.answer = (struct desk_answer){
                .verdict = inquiry->verdict, .label = inquiry->label, .text = inquiry->text
            };
            size = sizeof room.answer;
        }
        tr_reply_send(&inquiry->waiters[i], 0, &room, size);
    }
    inquiry_free(inquiry);
}

static void fail_inquiry(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry,
    enum desk_verdict verdict, const char *label, const char *text)
{
    inquiry->verdict = verdict;
    inquiry->label = label;
    inquiry->text = text;
    finish_inquiry(desk, ctx, inquiry);
}

static void work_on(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    inquiry->is_working = true;
    inquiry->now_s = wall_s(desk);
    if (tr_offload(ctx, auth_verify_work, inquiry, inquiry_free, TAG_WORK) == 0)
        return;
    inquiry->is_working = false;
    fail_inquiry(
        desk, ctx, inquiry, DESK_FAILED, "Overloaded", "too many tokens to verify at once");
}

static bool join(struct tr_context *ctx, struct inquiry *inquiry)
{
    enum { WAITERS_MAX = sizeof inquiry->waiters / sizeof inquiry->waiters[0] };

    if (inquiry->waiter_count == WAITERS_MAX)
        return false;
    inquiry->waiters[inquiry->waiter_count] = tr_reply_take(ctx);
    if (inquiry->waiters[inquiry->waiter_count].reply == NULL)
        return false;
    inquiry->waiter_count++;
    return true;
}

static void begin_inquiry(struct desk *desk, struct tr_context *ctx, struct desk_message *message)
{
    struct inquiry *inquiry = find_inquiry(desk, message->hash);
    const struct desk_answer overloaded = {
        .verdict = DESK_FAILED, .label = "Overloaded", .text = "too many tokens to verify at once"
    };

    if (inquiry != NULL) {
        if (!join(ctx, inquiry))
            reply_simple(ctx, overloaded);
        return;
    }
    inquiry = desk->inquiry_count < INQUIRIES_MAX ? tr__calloc(sizeof *inquiry) : NULL;
    if (inquiry == NULL || !join(ctx, inquiry)) {
        tr__free(inquiry);
        reply_simple(ctx, overloaded);
        return;
    }
    inquiry->auth = desk->auth;
    memcpy(inquiry->hash, message->hash, TOKEN_HASH_SIZE);
    inquiry->token = message->token;
    inquiry->token_size = message->token_size;
    message->token = NULL;
    inquiry->next = desk->inquiries;
    desk->inquiries = inquiry;
    desk->inquiry_count++;
    metric_add(&metrics[MISSES], 1);
    work_on(desk, ctx, inquiry);
}

/* ---- issuers' documents -------------------------------------------------------------------------
 */

static bool is_fetching(const struct desk *desk, const struct inquiry *me, const char *issuer)
{
    for (const struct inquiry *at = desk->inquiries; at != NULL; at = at->next)
        if (at != me && at->is_fetching && strcmp(at->issuer, issuer) == 0)
            return true;
    return false;
}

static int fetch(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct tr_span issuer = tr_span_of(inquiry->issuer);
    struct auth *auth = desk->auth;
    struct tr_buffer url = { .size_max = 4096 };
    enum did_refusal refusal;
    struct did did;
    int rc = TR_EUNSUPPORTED;

    if (auth->client == NULL)
        return rc;
    refusal = did_parse(issuer, &did);
    if (refusal == DID_OK)
        refusal = did.method == DID_METHOD_WEB
                      ? did_web_url(issuer, auth->allow_private, &url)
                      : did_plc_url(issuer, tr_span_of(auth->plc_directory), &url);
    if (refusal == DID_OK)
        rc = tr_buffer_append(&url, "", 1);
    if (refusal == DID_OK && rc == 0) {
        metric_add(&metrics[FETCHES], 1);
        rc = http_client_ask(ctx, auth->client,
            &(struct http_client_request){ .url = url.bytes,
                .timeout_ns = TR_SECONDS(5),
                .size_max = HTTP_CLIENT_ANSWER_MAX,
                .redirects_max = did.method == DID_METHOD_WEB ? 0 : 2 },
            TAG_FETCH + inquiry->number);
    }
    tr_buffer_free(&url);
    return refusal == DID_OK ? rc : TR_EINVAL;
}

/* The document could not be had: the old key serves for a while, a removed one never. */
static void without_document(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct tr_span issuer = tr_span_of(inquiry->issuer);
    struct key_cache_entry *entry = key_cache_find(&desk->keys, issuer);
    uint64_t now_s = (uint64_t)wall_s(desk);

    metric_add(&metrics[FETCH_FAILURES], 1);
    if (entry != NULL && inquiry->key == NULL &&
        now_s < entry->fetched_s + desk->auth->key_life_s + desk->auth->key_stale_s) {
        inquiry->key = crypto_key_ref(entry->key);
        inquiry->was_refreshed = true;
        entry->tried_s = now_s;
        work_on(desk, ctx, inquiry);
        return;
    }
    if (inquiry->bad_signature) /* it was a forced look: the first verdict stands */
        finish_inquiry(desk, ctx, inquiry);
    else
        fail_inquiry(desk, ctx, inquiry, DESK_FAILED, "IssuerUnavailable",
            "the issuer's DID document could not be fetched: try again");
}

static void begin_fetch(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    /* One at a time for an issuer: the others are served by the same answer. */
    bool is_first = !is_fetching(desk, inquiry, inquiry->issuer);

    inquiry->is_fetching = true;
    inquiry->number = desk->number_next++ & 0xffffff;
    if (is_first && fetch(desk, ctx, inquiry) < 0) {
        inquiry->is_fetching = false;
        without_document(desk, ctx, inquiry);
    }
}

static void need_key(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct key_cache_entry *entry = key_cache_find(&desk->keys, tr_span_of(inquiry->issuer));

    if (entry != NULL && (uint64_t)wall_s(desk) < entry->fetched_s + desk->auth->key_life_s) {
        inquiry->key = crypto_key_ref(entry->key);
        inquiry->key_is_old = true;
        work_on(desk, ctx, inquiry);
        return;
    }
    begin_fetch(desk, ctx, inquiry);
}

/* A bad signature under a key from the cache: perhaps the issuer has a new one. */
static bool may_look_again(struct desk *desk, const struct inquiry *inquiry)
{
    struct key_cache_entry *entry;

    if (!inquiry->bad_signature || !inquiry->key_is_old || inquiry->was_refreshed)
        return false;
    entry = key_cache_find(&desk->keys, tr_span_of(inquiry->issuer));
    return entry == NULL || (uint64_t)wall_s(desk) >= entry->tried_s + REFRESH_S_MIN;
}

/* ---- sessions
 * -------------------------------------------------------------------------------------- */

static void read_session(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct sql_unit *unit = desk->auth->sql == NULL ? NULL : sql_unit_new(0);
    int rc = TR_ENOMEM;

    inquiry->number = desk->number_next++ & 0xffffff;
    if (unit != NULL) {
        sql_unit_step(unit, &find_session, SQL_ROWS_ANY);
        sql_unit_text(unit, inquiry->claims->jti);
        sql_unit_text(unit, inquiry->claims->issuer);
        sql_unit_int(unit, inquiry->now_s);
        rc = sql_read(ctx, &desk->sql, unit,
            &(struct sql_submit_options){ .tag = TAG_READ + inquiry->number });
    }
    if (rc == 0) {
        inquiry->is_reading = true;
        return;
    }
    sql_unit_free(unit);
    fail_inquiry(desk, ctx, inquiry, DESK_FAILED, "Overloaded", "the database is busy: try again");
}

static void session_found(
    struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry, const struct sql_unit *unit)
{
    struct auth_claims claims = *inquiry->claims;
    const struct auth_claims *with_role;

    if (sql_unit_status(unit) != 0) {
        fail_inquiry(desk, ctx, inquiry, DESK_FAILED, "Overloaded", "the database is busy");
        return;
    }
    if (sql_unit_rows(unit, 0) != 1) {
        fail_inquiry(desk, ctx, inquiry, DESK_REFUSED, "SessionEnded",
            "this session has ended: sign in again");
        return;
    }
    claims.role = sql_row_bytes(unit, 0, 0, 0);
    with_role = auth_claims_new(&claims);
    if (with_role == NULL) {
        fail_inquiry(desk, ctx, inquiry, DESK_FAILED, "Overloaded", "out of memory: try again");
        return;
    }
    auth_claims_unref(inquiry->claims);
    inquiry->claims = with_role;
    inquiry->verdict = DESK_OK;
    finish_inquiry(desk, ctx, inquiry);
}

static void session_read(struct desk *desk, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&desk->sql, event);
    struct inquiry *inquiry = desk->inquiries;

    while (inquiry != NULL && (!inquiry->is_reading || inquiry->number + TAG_READ != event->tag))
        inquiry = inquiry->next;
    if (inquiry != NULL && unit != NULL) {
        inquiry->is_reading = false;
        session_found(desk, ctx, inquiry, unit);
    }
    sql_unit_free(unit);
}

/* ---- the pool is done with it
 * ---------------------------------------------------------------------- */

static void worked(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    inquiry->is_working = false;
    if (inquiry->needs_session) {
        read_session(desk, ctx, inquiry);
    } else if (inquiry->needs_key) {
        need_key(desk, ctx, inquiry);
    } else if (may_look_again(desk, inquiry)) {
        inquiry->was_refreshed = true;
        begin_fetch(desk, ctx, inquiry);
    } else {
        finish_inquiry(desk, ctx, inquiry);
    }
}

/* What the document says now, for everyone who waits for this issuer. */
static void serve_waiting(struct desk *desk, struct tr_context *ctx, const char *issuer,
    struct crypto_key *key, enum did_refusal refusal, bool is_there)
{
    struct inquiry *at = desk->inquiries;

    while (at != NULL) {
        struct inquiry *inquiry = at;

        at = at->next;
        if (!inquiry->is_fetching || strcmp(inquiry->issuer, issuer) != 0)
            continue;
        inquiry->is_fetching = false;
        if (!is_there) {
            without_document(desk, ctx, inquiry);
        } else if (key == NULL) {
            fail_inquiry(desk, ctx, inquiry, DESK_REFUSED, did_refusal_label(refusal),
                did_refusal_text(refusal));
        } else {
            crypto_key_unref(&inquiry->key);
            inquiry->key = crypto_key_ref(key);
            inquiry->key_is_old = false;
            work_on(desk, ctx, inquiry);
        }
        at = desk->inquiries; /* the list may have changed; those served are not fetching now */
    }
}

static void learn(struct desk *desk, struct tr_span issuer, struct crypto_key *key)
{
    struct key_cache_entry *entry = key_cache_find(&desk->keys, issuer);
    uint8_t old[CRYPTO_PUBLIC_BYTES_MAX] = { 0 }, new[CRYPTO_PUBLIC_BYTES_MAX] = { 0 };

    if (entry != NULL) {
        crypto_key_public_bytes(entry->key, old);
        crypto_key_public_bytes(key, new);
        if (memcmp(old, new, sizeof old) != 0 ||
            crypto_key_algorithm(entry->key) != crypto_key_algorithm(key)) {
            token_cache_forget(&desk->tokens, issuer);
            LOG(LOG_INFO, "auth", "an issuer has a new key", LOG_SPAN("issuer", issuer));
        }
    }
    (void)key_cache_put(&desk->keys, issuer, key, (uint64_t)wall_s(desk)); /* a cache may forget */
}

static void fetched(struct desk *desk, struct tr_context *ctx, const struct tr_event *event)
{
    const struct http_client_answer *answer = event->status == 0 ? event->value : NULL;
    struct inquiry *inquiry = desk->inquiries;
    struct crypto_key *key = NULL;
    enum did_refusal refusal = DID_OK;
    bool is_there = answer != NULL && answer->status == 200;
    bool is_gone = answer != NULL && (answer->status == 404 || answer->status == 410);
    char *issuer;

    while (inquiry != NULL && (!inquiry->is_fetching || inquiry->number + TAG_FETCH != event->tag))
        inquiry = inquiry->next;
    if (inquiry == NULL)
        return;
    issuer = tr__strdup(inquiry->issuer); /* the inquiry may be freed before the last is served */
    if (issuer == NULL) {
        inquiry->is_fetching = false;
        without_document(desk, ctx, inquiry);
        return;
    }
    if (is_there)
        refusal = did_document_key((struct tr_span){ answer->body, answer->body_size },
            tr_span_of(issuer), TR_SPAN("#atproto"), &key);
    else if (is_gone)
        refusal = DID_DEACTIVATED;
    if (key != NULL) {
        learn(desk, tr_span_of(issuer), key);
    } else if (is_there || is_gone) {
        key_cache_remove(&desk->keys, tr_span_of(issuer));
        token_cache_forget(&desk->tokens, tr_span_of(issuer));
    }
    serve_waiting(desk, ctx, issuer, key, refusal, is_there || is_gone);
    crypto_key_unref(&key);
    tr__free(issuer);
}

/* ---- the actor
 * ------------------------------------------------------------------------------------ */

static bool is_over_address(struct desk *desk, struct tr_context *ctx, const struct desk_message *m)
{
    struct desk_answer answer = { .verdict = DESK_LIMITED, .label = "address" };
    struct tr_span key = { (const char *)m->address, m->address_size };

    if (rate_limit_take(&desk->per_address, key, tr_now_ns(ctx), &answer.retry_ns) == 0)
        return false;
    metric_add(&metrics[LIMITED_ADDRESS], 1);
    reply_simple(ctx, answer);
    return true;
}

static void look(struct desk *desk, struct tr_context *ctx, const struct desk_message *message)
{
    const struct auth_claims *claims;
    union answer_room room;

    if (is_over_address(desk, ctx, message))
        return;
    claims = token_cache_get(&desk->tokens, message->hash, (uint64_t)wall_s(desk));
    if (claims == NULL) {
        reply_simple(ctx, (struct desk_answer){ .verdict = DESK_UNKNOWN });
        return;
    }
    metric_add(&metrics[HITS], 1);
    tr_reply(ctx, 0, &room, answer_for(desk, ctx, claims, &room.answer));
    auth_claims_unref(claims);
}

static enum tr_next desk_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct desk_message *message = memory;
    struct desk *desk = self;

    switch (message->kind) {
    case DESK_LOOK:
        look(desk, ctx, message);
        break;
    case DESK_VERIFY:
        begin_inquiry(desk, ctx, message);
        break;
    case DESK_ADDRESS:
        if (!is_over_address(desk, ctx, message))
            reply_simple(ctx, (struct desk_answer){ .verdict = DESK_OK });
        break;
    case DESK_RATES:
        (void)rate_limit_change(&desk->per_did, &message->per_did); /* checked by the sender */
        (void)rate_limit_change(&desk->per_address, &message->per_address);
        tr_reply(ctx, 0, NULL, 0);
        break;
    case DESK_FORGET:
        token_cache_forget(&desk->tokens, (struct tr_span){ message->token, message->token_size });
        break;
    }
    tr__free(message->token);
    return TR_GO;
}

static void purge_old(struct desk *desk, struct tr_context *ctx)
{
    struct sql_unit *unit;

    if (desk->auth->sql == NULL)
        return;
    unit = sql_unit_new(0);
    if (unit == NULL)
        return;
    sql_unit_step(unit, &purge, SQL_ROWS_ANY);
    sql_unit_int(unit, wall_s(desk) - JTI_KEPT_S);
    sql_unit_step(unit, &purge_sessions, SQL_ROWS_ANY);
    sql_unit_int(unit, wall_s(desk) - SESSIONS_KEPT_S);
    if (sql_write(ctx, &desk->sql, unit, &(struct sql_submit_options){ .tag = TAG_PURGED }) < 0)
        sql_unit_free(unit); /* next minute */
}

static void purged(struct desk *desk, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&desk->sql, event);

    if (unit != NULL && sql_unit_status(unit) != 0)
        LOG(LOG_WARN, "auth", "old token ids could not be deleted",
            LOG_TEXT("why", sql_error_text(sql_unit_status(unit))));
    sql_unit_free(unit);
}

static enum tr_next desk_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct desk *desk = self;

    if (event->kind == TR_EVENT_WORK)
        worked(desk, ctx, (struct inquiry *)(uintptr_t)event->value);
    else if (event->kind == TR_EVENT_TIMER)
        purge_old(desk, ctx);
    else if (event->kind == TR_EVENT_REPLY && event->tag == TAG_PURGED)
        purged(desk, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= TAG_READ)
        session_read(desk, ctx, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= TAG_FETCH)
        fetched(desk, ctx, event);
    return TR_GO;
}

static struct tr_siphash_key fresh_key(struct tr_context *ctx)
{
    return (struct tr_siphash_key){ tr_random(ctx), tr_random(ctx) };
}

static void desk_clear(struct desk *desk)
{
    struct inquiry *at = desk->inquiries;

    while (at != NULL) {
        struct inquiry *inquiry = at;

        at = at->next;
        if (!inquiry->is_working) /* the pool frees what it has */
            inquiry_free(inquiry);
    }
    desk->inquiries = NULL;
    desk->inquiry_count = 0;
    token_cache_end(&desk->tokens);
    key_cache_end(&desk->keys);
    rate_limit_end(&desk->per_did);
    rate_limit_end(&desk->per_address);
    if (desk->sql.sql != NULL)
        sql_client_end(&desk->sql);
}

static int desk_start(void *self, struct tr_context *ctx)
{
    enum { KEYS_MAX = 10000, CALLERS_MAX = 65536 };
    struct desk *desk = self;
    struct auth *auth = desk->auth;
    int rc;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    rc = token_cache_begin(&desk->tokens, auth->tokens_max);
    if (rc == 0)
        rc = key_cache_begin(&desk->keys, KEYS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = rate_limit_begin(&desk->per_did, &auth->per_did, CALLERS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = rate_limit_begin(&desk->per_address, &auth->per_address, CALLERS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = tr_every(ctx, TR_SECONDS(PURGE_S), TAG_PURGE, NULL);
    if (rc == 0 && auth->sql != NULL)
        sql_client_begin(&desk->sql, auth->sql);
    return rc;
}

static void desk_finish(void *self)
{
    desk_clear(self);
}

static int desk_reset(void *self, enum tr_why why)
{
    (void)why;
    desk_clear(self);
    return 0;
}

static void message_drop(void *memory)
{
    tr__free(((struct desk_message *)memory)->token);
}

static const char *message_name(const void *memory)
{
    static const char *const names[] = { "look", "verify", "address", "rates", "forget" };

    return names[((const struct desk_message *)memory)->kind];
}

static void desk_show(const void *self, char *text, size_t size)
{
    const struct desk *desk = self;

    snprintf(text, size, "%u tokens, %u keys, %u inquiries", desk->tokens.count, desk->keys.count,
        desk->inquiry_count);
}

const struct tr_type auth_desk_type = {
    .name = "auth_desk",
    .message_size = sizeof(struct desk_message),
    .state_size = sizeof(struct desk),
    .start = desk_start,
    .handle = desk_handle,
    .event = desk_event,
    .finish = desk_finish,
    .reset = desk_reset,
    .message_drop = message_drop,
    .message_name = message_name,
    .show = desk_show,
};
