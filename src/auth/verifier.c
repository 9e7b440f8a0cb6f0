/* SPDX-License-Identifier: Apache-2.0 */
/* verifier.c: the actor that knows callers. It counts requests, answers for cached tokens, and deletes
 * old rows. A token that is not cached becomes a lookup (verifier_lookup.c), which waits for its turn
 * on the pool (verifier_queue.c) and perhaps for its issuer's document (verifier_document.c). */
#include "auth/verifier.h"

#include <stdio.h>
#include <string.h>

#include "auth/auth_store.h"
#include "auth/session_store.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "support/log.h"
#include "support/metric.h"

enum {
    PURGE_S = 60,
    JTI_KEPT_S = 60,         /* after exp: clocks differ */
    SESSIONS_KEPT_S = 86400, /* after they end, so that an operator can look at them */
};
_Static_assert(
    (int)JTI_KEPT_S > (int)JWT_SKEW_DEFAULT_S, "a token id outlives its token everywhere");
enum { TAG_PURGE = 1, TAG_PURGED };

static struct metric_histogram verify_histogram;
static struct metric metrics[] = {
    { "troupe_auth_cache_hits_total", NULL,
        "Requests whose token was in the cache of verified tokens.", METRIC_COUNTER, 0, NULL,
        NULL },
    { "troupe_auth_cache_misses_total", NULL, "Tokens that the cache did not have.", METRIC_COUNTER,
        0, NULL, NULL },
    { "troupe_auth_refused_total", NULL, "Tokens that the verifier refused.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_auth_limited_total", "by=\"address\"", "Requests over a rate.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_auth_limited_total", "by=\"did\"", "Requests over a rate.", METRIC_COUNTER, 0, NULL,
        NULL },
    { "troupe_auth_fetches_total", NULL, "Fetches of DID documents that began.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_auth_fetch_failures_total", NULL, "Fetches of DID documents that failed.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_auth_verify_seconds", NULL, "Time from an uncached token to its verdict.",
        METRIC_HISTOGRAM, 0, &verify_histogram, NULL },
};

void auth_count(enum auth_metric metric)
{
    metric_add(&metrics[metric], 1);
}

void auth_observe_verify(uint64_t ns)
{
    metric_observe(&metrics[AUTH_METRIC_VERIFY_TIME], ns);
}

uint64_t auth_verifier_wall_s(const struct auth_verifier *verifier)
{
    return verifier->auth->env->wall_ns(verifier->auth->env->data) / 1000000000;
}

/* ---- answers -------------------------------------------------------------------------------- */

static size_t answer_put_text(char *at, struct span text, uint16_t *ret_size)
{
    *ret_size = (uint16_t)text.size;
    if (text.size > 0)
        memcpy(at, text.at, text.size);
    return text.size;
}

/* Claims fit: they come from a token of at most JWT_BYTES_MAX, and base64 adds a third. */
static size_t answer_of(const struct auth_claims *claims, union auth_answer_room *room)
{
    struct auth_answer *answer = &room->answer;
    char *at = answer->texts;

    tr_assert(claims->issuer.size + claims->audience.size + claims->lxm.size + claims->jti.size +
                  claims->role.size <=
              JWT_BYTES_MAX);
    answer->verdict = VERDICT_OK;
    answer->kind = claims->kind;
    answer->issued_s = claims->issued_s;
    answer->expires_s = claims->expires_s;
    at += answer_put_text(at, claims->issuer, &answer->issuer_size);
    at += answer_put_text(at, claims->audience, &answer->audience_size);
    at += answer_put_text(at, claims->lxm, &answer->lxm_size);
    at += answer_put_text(at, claims->jti, &answer->jti_size);
    at += answer_put_text(at, claims->role, &answer->role_size);
    return (size_t)(at - (char *)answer);
}

size_t auth_answer_fill(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct auth_claims *claims)
{
    struct auth_answer *answer = &verifier->room->answer;

    *answer = (struct auth_answer){ 0 };
    if (rate_limit_take(&verifier->per_did, claims->issuer, tr_now_ns(ctx), &answer->retry_ns) <
        0) {
        auth_count(AUTH_METRIC_LIMITED_DID);
        answer->verdict = VERDICT_LIMITED;
        answer->label = "did";
        return sizeof *answer;
    }
    return answer_of(claims, verifier->room);
}

size_t auth_answer_fill_failure(
    struct auth_verifier *verifier, const struct auth_lookup_failure *failure)
{
    struct auth_answer *answer = &verifier->room->answer;
    size_t size = strlen(failure->text) + 1;

    tr_assert(failure->verdict == VERDICT_REFUSED || failure->verdict == VERDICT_FAILED);
    tr_assert(size <= JWT_TEXT_SIZE);
    *answer = (struct auth_answer){ .verdict = failure->verdict, .label = failure->label };
    memcpy(answer->texts, failure->text, size);
    return (size_t)(answer->texts + size - (char *)answer);
}

static void reply_plain(struct tr_context *ctx, const struct auth_answer *answer)
{
    tr_reply(ctx, 0, answer, sizeof *answer);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static bool is_over_address(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct auth_verifier_message *m)
{
    struct auth_answer answer = { .verdict = VERDICT_LIMITED, .label = "address" };
    struct span key = { (const char *)m->address, m->address_size };

    if (rate_limit_take(&verifier->per_address, key, tr_now_ns(ctx), &answer.retry_ns) == 0)
        return false;
    auth_count(AUTH_METRIC_LIMITED_ADDRESS);
    reply_plain(ctx, &answer);
    return true;
}

static void reply_unknown(
    struct auth_verifier *verifier, struct tr_context *ctx, const unsigned char *hash)
{
    verifier->room->answer = (struct auth_answer){ .verdict = VERDICT_UNKNOWN };
    memcpy(verifier->room->answer.texts, hash, TOKEN_HASH_SIZE);
    tr_reply(ctx, 0, verifier->room, offsetof(struct auth_answer, texts) + TOKEN_HASH_SIZE);
}

/* Another request may have had the token verified between the gate's two messages, so VERIFIER_VERIFY
 * looks into the cache too. */
static void verifier_check(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_verifier_message *message)
{
    const struct auth_claims *claims;
    bool is_first = message->kind == VERIFIER_CHECK;

    if (is_first && is_over_address(verifier, ctx, message))
        return;
    claims = token_cache_get(&verifier->tokens, message->hash, auth_verifier_wall_s(verifier));
    if (claims != NULL) {
        if (is_first)
            auth_count(AUTH_METRIC_HITS);
        tr_reply(ctx, 0, verifier->room, auth_answer_fill(verifier, ctx, claims));
        auth_claims_unref(claims);
    } else if (message->token != NULL) {
        auth_lookup_start(verifier, ctx, message);
    } else {
        reply_unknown(verifier, ctx, message->hash);
    }
}

static void verifier_forget(struct auth_verifier *verifier, struct span issuer)
{
    token_cache_forget(&verifier->tokens, issuer);
    auth_lookups_doubt_sessions(verifier, issuer);
}

/* Obey an auth_forget whose message did not fit into the box. The acquire pairs with the release in
 * auth_forget, so a request that comes after auth_forget meets an empty cache. */
static void forget_all_if_asked(struct auth_verifier *verifier)
{
    uint32_t asked = atomic_load_explicit(&verifier->auth->forget_all, memory_order_acquire);

    if (asked == verifier->forget_seen)
        return;
    verifier->forget_seen = asked;
    token_cache_clear(&verifier->tokens);
    auth_lookups_doubt_sessions(verifier, (struct span){ NULL, 0 });
}

static enum tr_next verifier_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct auth_verifier_message *message = memory;
    struct auth_verifier *verifier = self;

    forget_all_if_asked(verifier);
    switch (message->kind) {
    case VERIFIER_CHECK:
    case VERIFIER_VERIFY:
        verifier_check(verifier, ctx, message);
        break;
    case VERIFIER_ADDRESS:
        if (!is_over_address(verifier, ctx, message))
            reply_plain(ctx, &(struct auth_answer){ .verdict = VERDICT_OK });
        break;
    case VERIFIER_RATES:
        verifier->auth->per_did = message->per_did; /* a restart starts with them */
        verifier->auth->per_address = message->per_address;
        (void)rate_limit_change(&verifier->per_did, &message->per_did); /* checked by the sender */
        (void)rate_limit_change(&verifier->per_address, &message->per_address);
        tr_reply(ctx, 0, NULL, 0);
        break;
    case VERIFIER_FORGET:
        verifier_forget(verifier, (struct span){ message->token, message->token_size });
        break;
    }
    base_free(message->token);
    auth_queue_send(verifier, ctx);
    return TR_GO;
}

static void verifier_purge(struct auth_verifier *verifier, struct tr_context *ctx)
{
    struct sql_unit *unit;

    if (verifier->auth->sql == NULL)
        return;
    unit = sql_unit_create(0);
    if (unit == NULL)
        return;
    auth_store_purge_token_ids(unit, (int64_t)auth_verifier_wall_s(verifier) - JTI_KEPT_S);
    session_store_purge(unit, (int64_t)auth_verifier_wall_s(verifier) - SESSIONS_KEPT_S);
    if (sql_write(ctx, &verifier->sql, unit, &(struct sql_submit_options){ .tag = TAG_PURGED }) < 0)
        sql_unit_destroy(unit); /* the next purge tries again */
}

static void verifier_on_purged(struct auth_verifier *verifier, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&verifier->sql, event);

    if (unit != NULL && sql_unit_status(unit) != 0)
        LOG(LOG_WARN, "auth", "The verifier could not delete old token ids.",
            LOG_TEXT("why", sql_error_text(sql_unit_status(unit))));
    sql_unit_destroy(unit);
}

static enum tr_next verifier_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct auth_verifier *verifier = self;

    forget_all_if_asked(verifier);
    if (event->kind == TR_EVENT_WORK)
        auth_queue_take(verifier, ctx, (struct auth_lookup *)(uintptr_t)event->value);
    else if (event->kind == TR_EVENT_TIMER)
        verifier_purge(verifier, ctx);
    else if (event->kind == TR_EVENT_REPLY && event->tag == TAG_PURGED)
        verifier_on_purged(verifier, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= VERIFIER_TAG_READ)
        auth_lookup_session_read(verifier, ctx, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= VERIFIER_TAG_FETCH)
        auth_document_fetched(verifier, ctx, event);
    auth_queue_send(verifier, ctx);
    return TR_GO;
}

static struct base_siphash_key fresh_key(struct tr_context *ctx)
{
    return (struct base_siphash_key){ tr_random(ctx), tr_random(ctx) };
}

static void verifier_clear(struct auth_verifier *verifier)
{
    auth_lookups_fini(verifier);
    auth_documents_fini(verifier);
    token_cache_fini(&verifier->tokens);
    key_cache_fini(&verifier->keys);
    rate_limit_fini(&verifier->per_did);
    rate_limit_fini(&verifier->per_address);
    base_free(verifier->room);
    verifier->room = NULL;
    if (verifier->sql.sql != NULL)
        sql_client_fini(&verifier->sql);
}

static int verifier_start(void *self, struct tr_context *ctx)
{
    enum { KEYS_MAX = 10000, CALLERS_MAX = 65536 };
    struct auth_verifier *verifier = self;
    struct auth *auth = verifier->auth;
    int rc;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    verifier->forget_seen = atomic_load_explicit(&auth->forget_all, memory_order_acquire);
    verifier->room = base_alloc(sizeof *verifier->room);
    rc = verifier->room == NULL ? TR_ENOMEM : 0;
    if (rc == 0)
        rc = token_cache_init(&verifier->tokens, auth->tokens_max);
    if (rc == 0)
        rc = key_cache_init(&verifier->keys, KEYS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = rate_limit_init(&verifier->per_did, &auth->per_did, CALLERS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = rate_limit_init(
            &verifier->per_address, &auth->per_address, CALLERS_MAX, fresh_key(ctx));
    if (rc == 0)
        rc = auth_lookups_init(verifier, ctx);
    if (rc == 0)
        rc = tr_every(ctx, TR_SECONDS(PURGE_S), TAG_PURGE, NULL);
    if (rc == 0 && auth->sql != NULL)
        sql_client_init(&verifier->sql, auth->sql);
    return rc;
}

static void verifier_finish(void *self)
{
    verifier_clear(self);
}

static int verifier_reset(void *self, enum tr_why why)
{
    (void)why;
    verifier_clear(self);
    return 0;
}

static void verifier_message_drop(void *memory)
{
    base_free(((struct auth_verifier_message *)memory)->token);
}

static const char *verifier_message_name(const void *memory)
{
    static const char *const names[] = { "check", "verify", "address", "rates", "forget" };

    return names[((const struct auth_verifier_message *)memory)->kind];
}

static void verifier_show(const void *self, char *text, size_t size)
{
    const struct auth_verifier *verifier = self;

    snprintf(text, size, "%u tokens, %u keys, %u lookups, %u of them queued, %u batches",
        verifier->tokens.count, verifier->keys.count, verifier->lookup_count,
        verifier->fresh.count + verifier->resumed.count, verifier->batch_count);
}

const struct tr_type auth_verifier_type = {
    .name = "auth_verifier",
    .message_size = sizeof(struct auth_verifier_message),
    .state_size = sizeof(struct auth_verifier),
    .start = verifier_start,
    .handle = verifier_handle,
    .event = verifier_event,
    .finish = verifier_finish,
    .reset = verifier_reset,
    .message_drop = verifier_message_drop,
    .message_name = verifier_message_name,
    .show = verifier_show,
};
