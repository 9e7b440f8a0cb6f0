/* SPDX-License-Identifier: Apache-2.0 */
/* desk_document.c: the documents of issuers that are not their own key.
 *
 * One fetch at a time for an issuer, however many tokens wait for it. What came is kept for
 * key_life_s. After that, if the document cannot be had, the key serves for key_stale_s more; a
 * document that is there and does not show the key, or that is gone, ends it at once, with every
 * token that was cached under it. A failure is remembered for RETRY_S, so that somebody else's
 * server is not asked once for every token that names it. A fetch goes out in the trace of the
 * request that caused it; those that join it have theirs in their own lines alone. */
#include <string.h>

#include "auth/desk.h"
#include "auth/did.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "http/client.h"
#include "support/log.h"

enum {
    FETCHES_MAX = 256,
    WAITING_MAX = 2048, /* inquiries: the others are kept for issuers whose keys are known */
    FORCED_S_MIN = 30,  /* between two looks at one issuer's document while its key is fresh */
    RETRY_S = 10,       /* after a failure */
};

static const struct key_refusal unavailable = { KEY_UNAVAILABLE, .label = "IssuerUnavailable",
    .text = "the issuer's DID document could not be fetched: try again" };
static const struct key_refusal overloaded = { KEY_UNAVAILABLE, .label = "Overloaded",
    .text = "too many DID documents to fetch at once" };

static struct key_refusal refusal_of(enum key_refusal_kind kind, enum did_refusal refusal)
{
    return (struct key_refusal){ kind, did_refusal_label(refusal), did_refusal_text(refusal) };
}

/* ---- ages: a clock that was set back makes everything old, never young ---------------------- */

static bool is_within(const struct desk *desk, uint64_t since_s, uint64_t limit_s)
{
    return desk_wall_s(desk) - since_s < limit_s;
}

static bool is_fresh(const struct desk *desk, const struct key_cache_entry *entry)
{
    return entry->key != NULL && is_within(desk, entry->fetched_s, desk->auth->key_life_s);
}

static bool may_be_stale(const struct desk *desk, const struct key_cache_entry *entry)
{
    return entry->key != NULL && is_within(desk, entry->fetched_s,
                                     (uint64_t)desk->auth->key_life_s + desk->auth->key_stale_s);
}

/* ---- going on with a key, or without -------------------------------------------------------- */

static void work_with(
    struct desk *desk, struct inquiry *inquiry, struct crypto_key *key, bool is_old)
{
    crypto_key_unref(&inquiry->key);
    inquiry->key = crypto_key_ref(key);
    inquiry->key_is_old = is_old;
    desk_queue_put(desk, inquiry);
}

static void refuse(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry,
    const struct key_refusal *refusal)
{
    desk_fail_inquiry(desk, ctx, inquiry,
        refusal->kind == KEY_UNAVAILABLE ? DESK_FAILED : DESK_REFUSED, refusal->label,
        refusal->text);
}

/* No document: the old key serves for a while. After a forced look the first verdict stands. */
static void go_without(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry,
    const struct key_refusal *refusal)
{
    const struct key_cache_entry *entry = key_cache_find(&desk->keys, span_of(inquiry->issuer));

    if (inquiry->bad_signature)
        desk_finish_inquiry(desk, ctx, inquiry);
    else if (entry != NULL && may_be_stale(desk, entry))
        work_with(desk, inquiry, entry->key, false);
    else
        refuse(desk, ctx, inquiry, refusal);
}

/* ---- fetching ------------------------------------------------------------------------------- */

static struct document_fetch *find_fetch(struct desk *desk, const char *issuer)
{
    struct document_fetch *at = desk->fetches;

    while (at != NULL && strcmp(at->issuer, issuer) != 0)
        at = at->next;
    return at;
}

void desk_fetches_end(struct desk *desk)
{
    for (struct document_fetch *at = desk->fetches, *next; at != NULL; at = next) {
        next = at->next;
        base_free(at);
    }
    desk->fetches = NULL;
    desk->fetch_count = 0;
}

static enum did_refusal url_of(
    const struct auth *auth, struct span issuer, struct buffer *url, bool *ret_is_web)
{
    struct did did;
    enum did_refusal refusal = did_parse(issuer, &did);

    if (refusal != DID_OK)
        return refusal;
    *ret_is_web = did.method == DID_METHOD_WEB;
    refusal = *ret_is_web ? did_web_url(issuer, auth->allow_private, url)
                          : did_plc_url(issuer, span_of(auth->plc_directory), url);
    if (refusal == DID_OK && buffer_append(url, "", 1) < 0)
        refusal = DID_NO_MEMORY;
    return refusal;
}

static int ask_for(struct desk *desk, struct tr_context *ctx, const struct inquiry *inquiry,
    const char *url, bool is_web, struct document_fetch *fetch)
{
    return http_client_ask(ctx, desk->auth->client,
        &(struct http_client_request){ .url = url,
            .traceparent = inquiry->traceparent,
            .timeout_ns = desk->auth->fetch_timeout_ns,
            .size_max = HTTP_CLIENT_ANSWER_MAX,
            .redirects_max = is_web ? 0 : 2 },
        DESK_TAG_FETCH + fetch->number);
}

/* NULL and why not. */
static struct document_fetch *begin_fetch(struct desk *desk, struct tr_context *ctx,
    const struct inquiry *inquiry, struct key_refusal *ret_refusal)
{
    const char *issuer = inquiry->issuer;
    struct buffer url = { .size_max = 4096 };
    size_t size = strlen(issuer) + 1;
    struct document_fetch *fetch = NULL;
    enum did_refusal refusal;
    bool is_web = false;

    if (desk->auth->client == NULL) {
        *ret_refusal = (struct key_refusal){ KEY_UNREACHABLE, "IssuerRefused",
            "this server fetches no DID documents" };
        return NULL;
    }
    *ret_refusal = overloaded;
    if (desk->fetch_count >= FETCHES_MAX)
        return NULL;
    refusal = url_of(desk->auth, span_of(issuer), &url, &is_web);
    if (refusal == DID_OK)
        fetch = base_alloc(sizeof *fetch + size);
    else if (refusal != DID_NO_MEMORY)
        *ret_refusal = refusal_of(KEY_UNREACHABLE, refusal);
    if (fetch != NULL) {
        *fetch = (struct document_fetch){ .next = desk->fetches,
            .number = desk->number_next++ & DESK_NUMBER_MASK };
        memcpy(fetch->issuer, issuer, size);
        if (ask_for(desk, ctx, inquiry, url.bytes, is_web, fetch) == 0) {
            desk->fetches = fetch;
            desk->fetch_count++;
            desk_count(DESK_FETCHES);
        } else {
            base_free(fetch);
            fetch = NULL;
        }
    }
    buffer_free(&url);
    return fetch;
}

static void wait_for_document(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct document_fetch *fetch = find_fetch(desk, inquiry->issuer);
    struct key_refusal refusal = overloaded;

    inquiry->was_refreshed = true;
    if (desk->waiting_count < WAITING_MAX && fetch == NULL)
        fetch = begin_fetch(desk, ctx, inquiry, &refusal);
    if (desk->waiting_count >= WAITING_MAX || fetch == NULL) {
        go_without(desk, ctx, inquiry, &refusal);
        return;
    }
    inquiry->place = INQUIRY_FETCHING;
    inquiry_queue_push(&fetch->waiting, inquiry);
    desk->waiting_count++;
}

void desk_need_key(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    const struct key_cache_entry *entry = key_cache_find(&desk->keys, span_of(inquiry->issuer));
    bool is_soon = entry != NULL && is_within(desk, entry->tried_s, RETRY_S);

    if (entry != NULL && is_fresh(desk, entry))
        work_with(desk, inquiry, entry->key, true);
    else if (is_soon && entry->key == NULL)
        refuse(desk, ctx, inquiry, &entry->refusal);
    else if (is_soon && entry->has_failed)
        go_without(desk, ctx, inquiry, &unavailable);
    else
        wait_for_document(desk, ctx, inquiry);
}

bool desk_looks_again(struct desk *desk, struct tr_context *ctx, struct inquiry *inquiry)
{
    struct key_cache_entry *entry;

    if (inquiry->issuer == NULL || inquiry->key == NULL ||
        (inquiry->verdict != DESK_OK && !inquiry->bad_signature))
        return false;
    entry = key_cache_find(&desk->keys, span_of(inquiry->issuer));
    if (entry != NULL && entry->key != inquiry->key) { /* it was changed meanwhile */
        if (entry->key != NULL)
            work_with(desk, inquiry, entry->key, false);
        else
            refuse(desk, ctx, inquiry, &entry->refusal);
        return true;
    }
    if (inquiry->verdict == DESK_OK || !inquiry->key_is_old || inquiry->was_refreshed)
        return false;
    /* A bad signature under a key from the cache: perhaps the issuer has a new one. */
    if (entry != NULL && is_within(desk, entry->forced_s, FORCED_S_MIN))
        return false;
    if (entry != NULL)
        entry->forced_s = desk_wall_s(desk);
    wait_for_document(desk, ctx, inquiry);
    return true;
}

/* ---- the document came ---------------------------------------------------------------------- */

static bool is_same(const struct crypto_key *a, const struct crypto_key *b)
{
    uint8_t a_bytes[CRYPTO_PUBLIC_BYTES_MAX] = { 0 }, b_bytes[CRYPTO_PUBLIC_BYTES_MAX] = { 0 };

    crypto_key_public_bytes(a, a_bytes);
    crypto_key_public_bytes(b, b_bytes);
    return crypto_key_algorithm(a) == crypto_key_algorithm(b) &&
           memcmp(a_bytes, b_bytes, sizeof a_bytes) == 0;
}

/* Keeps the object of a key that did not change: verdicts are compared by it. */
static void learn(struct desk *desk, struct span issuer, struct crypto_key **key)
{
    struct key_cache_entry *entry = key_cache_find(&desk->keys, issuer);

    if (entry != NULL && entry->key != NULL) {
        if (is_same(entry->key, *key)) {
            crypto_key_unref(key);
            *key = crypto_key_ref(entry->key);
        } else {
            token_cache_forget(&desk->tokens, issuer);
            LOG(LOG_INFO, "auth", "an issuer has a new key", LOG_SPAN("issuer", issuer));
        }
    }
    (void)key_cache_put(&desk->keys, issuer, *key, desk_wall_s(desk)); /* a cache may forget */
}

static void learn_failure(struct desk *desk, struct span issuer, const struct key_refusal *refusal)
{
    struct key_cache_entry *entry = key_cache_find(&desk->keys, issuer);

    desk_count(DESK_FETCH_FAILURES);
    if (entry == NULL || entry->key == NULL) {
        key_cache_refuse(&desk->keys, issuer, refusal, desk_wall_s(desk));
    } else {
        entry->tried_s = desk_wall_s(desk);
        entry->has_failed = true;
    }
}

/* What the answer means: a key, or why there is none. */
static struct crypto_key *read_answer(
    const struct tr_event *event, struct span issuer, struct key_refusal *ret_refusal)
{
    const struct http_client_answer *answer = event->status == 0 ? event->value : NULL;
    struct crypto_key *key = NULL;
    enum did_refusal refusal;

    *ret_refusal = unavailable;
    if (event->status == TR_ETOOBIG) {
        *ret_refusal = refusal_of(KEY_GONE, DID_DOCUMENT_LARGE);
    } else if (event->status == TR_EACCES) { /* the client's guard */
        *ret_refusal = refusal_of(KEY_UNREACHABLE, DID_PRIVATE);
    } else if (answer != NULL && answer->status == 200) {
        refusal = did_document_key(
            (struct span){ answer->body, answer->body_size }, issuer, SPAN("#atproto"), &key);
        if (refusal != DID_OK && refusal != DID_NO_MEMORY)
            *ret_refusal = refusal_of(KEY_GONE, refusal);
    } else if (answer != NULL && answer->status == 404) {
        *ret_refusal =
            (struct key_refusal){ KEY_GONE, "DidNotFound", "there is no document of this DID" };
    } else if (answer != NULL && answer->status == 410) {
        *ret_refusal = refusal_of(KEY_GONE, DID_DEACTIVATED);
    }
    return key;
}

static struct document_fetch *take_fetch(struct desk *desk, uint32_t tag)
{
    struct document_fetch **link = &desk->fetches;
    struct document_fetch *fetch;

    while (*link != NULL && (*link)->number + DESK_TAG_FETCH != tag)
        link = &(*link)->next;
    fetch = *link;
    if (fetch != NULL) {
        *link = fetch->next;
        desk->fetch_count--;
    }
    return fetch;
}

void desk_fetched(struct desk *desk, struct tr_context *ctx, const struct tr_event *event)
{
    struct document_fetch *fetch = take_fetch(desk, event->tag);
    struct key_refusal refusal;
    struct crypto_key *key;
    struct span issuer;

    if (fetch == NULL)
        return;
    issuer = span_of(fetch->issuer);
    key = read_answer(event, issuer, &refusal);
    if (key != NULL) {
        learn(desk, issuer, &key);
    } else if (refusal.kind == KEY_GONE) {
        key_cache_refuse(&desk->keys, issuer, &refusal, desk_wall_s(desk));
        token_cache_forget(&desk->tokens, issuer);
    } else {
        learn_failure(desk, issuer, &refusal);
    }
    for (struct inquiry *at; (at = inquiry_queue_pop(&fetch->waiting)) != NULL;) {
        tr_assert(desk->waiting_count > 0);
        desk->waiting_count--;
        if (key != NULL)
            work_with(desk, at, key, false);
        else if (refusal.kind == KEY_GONE)
            refuse(desk, ctx, at, &refusal);
        else
            go_without(desk, ctx, at, &refusal);
    }
    crypto_key_unref(&key);
    base_free(fetch);
}
