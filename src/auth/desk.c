/* SPDX-License-Identifier: Apache-2.0 */
/* desk.c: the desk: counts requests, answers what is cached, and purges what is old. Tokens that
 * are not cached become inquiries: desk_inquiry.c; their turns on the pool: desk_queue.c; issuers'
 * documents: desk_document.c. */
#include "auth/desk.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "support/log.h"
#include "support/metric.h"

enum {
    PURGE_S = 60,
    JTI_KEPT_S = 60,         /* longer than exp: clocks differ */
    SESSIONS_KEPT_S = 86400, /* for whoever asks what happened */
};
_Static_assert(
    (int)JTI_KEPT_S > (int)JWT_SKEW_DEFAULT_S, "a token id outlives its token everywhere");
enum { TAG_PURGE = 1, TAG_PURGED };

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

void desk_count(enum desk_metric metric)
{
    metric_add(&metrics[metric], 1);
}

void desk_observe_verify(uint64_t ns)
{
    metric_observe(&metrics[DESK_VERIFY_TIME], ns);
}

SQL_STATEMENT(purge, "DELETE FROM auth_jti WHERE expires_s < $1");
SQL_STATEMENT(purge_sessions, "DELETE FROM auth_sessions WHERE expires_s < $1");

uint64_t desk_wall_s(const struct desk *desk)
{
    return desk->auth->env->wall_ns(desk->auth->env->data) / 1000000000;
}

/* ---- answers -------------------------------------------------------------------------------- */

static size_t put_text(char *at, struct span text, uint16_t *ret_size)
{
    *ret_size = (uint16_t)text.size;
    if (text.size > 0)
        memcpy(at, text.at, text.size);
    return text.size;
}

/* Claims fit: they come out of a token of at most 8 KiB, which base64 makes larger by a third. */
static size_t answer_of(const struct auth_claims *claims, union desk_answer_room *room)
{
    struct desk_answer *answer = &room->answer;
    char *at = answer->texts;

    tr_assert(claims->issuer.size + claims->audience.size + claims->lxm.size + claims->jti.size +
                  claims->role.size <=
              JWT_BYTES_MAX);
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

size_t desk_answer_for(struct desk *desk, struct tr_context *ctx, const struct auth_claims *claims)
{
    struct desk_answer *answer = &desk->room->answer;

    *answer = (struct desk_answer){ 0 };
    if (rate_limit_take(&desk->per_did, claims->issuer, tr_now_ns(ctx), &answer->retry_ns) < 0) {
        desk_count(DESK_LIMITED_DID);
        answer->verdict = DESK_LIMITED;
        answer->label = "did";
        return sizeof *answer;
    }
    return answer_of(claims, desk->room);
}

void desk_reply(struct tr_context *ctx, const struct desk_answer *answer)
{
    tr_reply(ctx, 0, answer, sizeof *answer);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static bool is_over_address(struct desk *desk, struct tr_context *ctx, const struct desk_message *m)
{
    struct desk_answer answer = { .verdict = DESK_LIMITED, .label = "address" };
    struct span key = { (const char *)m->address, m->address_size };

    if (rate_limit_take(&desk->per_address, key, tr_now_ns(ctx), &answer.retry_ns) == 0)
        return false;
    desk_count(DESK_LIMITED_ADDRESS);
    desk_reply(ctx, &answer);
    return true;
}

static void reply_unknown(struct desk *desk, struct tr_context *ctx, const unsigned char *hash)
{
    desk->room->answer = (struct desk_answer){ .verdict = DESK_UNKNOWN };
    memcpy(desk->room->answer.texts, hash, TOKEN_HASH_SIZE);
    tr_reply(ctx, 0, desk->room, offsetof(struct desk_answer, texts) + TOKEN_HASH_SIZE);
}

/* A token that was asked for may have been verified for another request since. */
static void look(struct desk *desk, struct tr_context *ctx, struct desk_message *message)
{
    const struct auth_claims *claims;
    bool is_first = message->kind == DESK_LOOK;

    if (is_first && is_over_address(desk, ctx, message))
        return;
    claims = token_cache_get(&desk->tokens, message->hash, desk_wall_s(desk));
    if (claims != NULL) {
        if (is_first)
            desk_count(DESK_HITS);
        tr_reply(ctx, 0, desk->room, desk_answer_for(desk, ctx, claims));
        auth_claims_unref(claims);
    } else if (message->token != NULL) {
        desk_begin_inquiry(desk, ctx, message);
    } else {
        reply_unknown(desk, ctx, message->hash);
    }
}

static void forget(struct desk *desk, struct span issuer)
{
    token_cache_forget(&desk->tokens, issuer);
    desk_doubt_sessions(desk, issuer);
}

/* Somebody could not tell us whom to forget. Pairs with the release in auth_forget: who asks after
 * that has been seen to ask after it. */
static void forget_if_told(struct desk *desk)
{
    uint32_t told = atomic_load_explicit(&desk->auth->forget_all, memory_order_acquire);

    if (told == desk->forget_seen)
        return;
    desk->forget_seen = told;
    token_cache_clear(&desk->tokens);
    desk_doubt_sessions(desk, (struct span){ NULL, 0 });
}

static enum tr_next desk_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct desk_message *message = memory;
    struct desk *desk = self;

    forget_if_told(desk);
    switch (message->kind) {
    case DESK_LOOK:
    case DESK_VERIFY:
        look(desk, ctx, message);
        break;
    case DESK_ADDRESS:
        if (!is_over_address(desk, ctx, message))
            desk_reply(ctx, &(struct desk_answer){ .verdict = DESK_OK });
        break;
    case DESK_RATES:
        (void)rate_limit_change(&desk->per_did, &message->per_did); /* checked by the sender */
        (void)rate_limit_change(&desk->per_address, &message->per_address);
        tr_reply(ctx, 0, NULL, 0);
        break;
    case DESK_FORGET:
        forget(desk, (struct span){ message->token, message->token_size });
        break;
    }
    base_free(message->token);
    desk_queue_send(desk, ctx);
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
    sql_unit_int(unit, (int64_t)desk_wall_s(desk) - JTI_KEPT_S);
    sql_unit_step(unit, &purge_sessions, SQL_ROWS_ANY);
    sql_unit_int(unit, (int64_t)desk_wall_s(desk) - SESSIONS_KEPT_S);
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

    forget_if_told(desk);
    if (event->kind == TR_EVENT_WORK)
        desk_queue_take(desk, ctx, (struct inquiry *)(uintptr_t)event->value);
    else if (event->kind == TR_EVENT_TIMER)
        purge_old(desk, ctx);
    else if (event->kind == TR_EVENT_REPLY && event->tag == TAG_PURGED)
        purged(desk, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= DESK_TAG_READ)
        desk_session_read(desk, ctx, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= DESK_TAG_FETCH)
        desk_fetched(desk, ctx, event);
    desk_queue_send(desk, ctx);
    return TR_GO;
}

static struct base_siphash_key fresh_key(struct tr_context *ctx)
{
    return (struct base_siphash_key){ tr_random(ctx), tr_random(ctx) };
}

static void desk_clear(struct desk *desk)
{
    desk_inquiries_end(desk);
    desk_fetches_end(desk);
    token_cache_end(&desk->tokens);
    key_cache_end(&desk->keys);
    rate_limit_end(&desk->per_did);
    rate_limit_end(&desk->per_address);
    base_free(desk->room);
    desk->room = NULL;
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
    desk->forget_seen = atomic_load_explicit(&auth->forget_all, memory_order_acquire);
    desk->room = base_alloc(sizeof *desk->room);
    rc = desk->room == NULL ? TR_ENOMEM : 0;
    if (rc == 0)
        rc = token_cache_begin(&desk->tokens, auth->tokens_max);
    if (rc == 0)
        rc = key_cache_begin(&desk->keys, KEYS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = rate_limit_begin(&desk->per_did, &auth->per_did, CALLERS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = rate_limit_begin(&desk->per_address, &auth->per_address, CALLERS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = desk_inquiries_begin(desk, ctx);
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
    base_free(((struct desk_message *)memory)->token);
}

static const char *message_name(const void *memory)
{
    static const char *const names[] = { "look", "verify", "address", "rates", "forget" };

    return names[((const struct desk_message *)memory)->kind];
}

static void desk_show(const void *self, char *text, size_t size)
{
    const struct desk *desk = self;

    snprintf(text, size, "%u tokens, %u keys, %u inquiries, %u of them queued, %u batches",
        desk->tokens.count, desk->keys.count, desk->inquiry_count,
        desk->fresh.count + desk->begun.count, desk->batch_count);
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
