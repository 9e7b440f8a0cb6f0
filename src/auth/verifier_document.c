/* SPDX-License-Identifier: Apache-2.0 */
/* verifier_document.c: the DID documents of issuers that are not a did:key.
 *
 * 1. One fetch at a time for an issuer; all lookups that need its key wait for that fetch.
 * 2. A fetched key serves for key_life_s. If the next fetch fails, the key serves for key_stale_s
 *    more. A document without the key, or no document (404, 410), ends the key at once, with every
 *    cached token that it signed.
 * 3. A failed fetch is remembered for RETRY_S, so that a flood of tokens does not become a flood of
 *    requests to the server that they name.
 * 4. A fetch carries the trace of the request that caused it. Requests that join the fetch have their
 *    trace in their own log lines only. */
#include <string.h>

#include "auth/did.h"
#include "auth/verifier.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "http/client.h"
#include "support/log.h"

enum {
    FETCHES_MAX = 256,
    WAITING_MAX = 2048, /* lookups; the rest of the table stays free for issuers with known keys */
    FORCED_S_MIN = 30,  /* between two fetches of one issuer's document while its key is fresh */
    RETRY_S = 10,       /* after a failure */
};

static const struct key_refusal unavailable = { KEY_UNAVAILABLE, .label = "IssuerUnavailable",
    .text = "The issuer's DID document could not be fetched; try again." };
static const struct key_refusal overloaded = { KEY_UNAVAILABLE, .label = "Overloaded",
    .text = "The server fetches too many DID documents now; try again." };

static struct key_refusal refusal_of(enum key_refusal_kind kind, enum did_refusal refusal)
{
    return (struct key_refusal){ kind, did_refusal_label(refusal), did_refusal_text(refusal) };
}

/* ---- ages ----------------------------------------------------------------------------------- */

/* The difference is unsigned: a clock that was set back makes everything old, never young. */
static bool is_within(const struct auth_verifier *verifier, uint64_t since_s, uint64_t limit_s)
{
    return auth_verifier_wall_s(verifier) - since_s < limit_s;
}

static bool is_fresh(const struct auth_verifier *verifier, const struct key_cache_entry *entry)
{
    return entry->key != NULL && is_within(verifier, entry->fetched_s, verifier->auth->key_life_s);
}

static bool may_be_stale(const struct auth_verifier *verifier, const struct key_cache_entry *entry)
{
    return entry->key != NULL &&
           is_within(verifier, entry->fetched_s,
               (uint64_t)verifier->auth->key_life_s + verifier->auth->key_stale_s);
}

/* ---- with a key, or without ------------------------------------------------------------------ */

static void lookup_resume(struct auth_verifier *verifier, struct auth_lookup *lookup,
    struct crypto_key *key, bool is_cached)
{
    tr_assert(key != NULL);
    crypto_key_unref(&lookup->key);
    lookup->key = crypto_key_ref(key);
    lookup->key_is_cached = is_cached;
    auth_queue_put(verifier, lookup);
}

static void lookup_refuse(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, const struct key_refusal *refusal)
{
    auth_lookup_fail(verifier, ctx, lookup,
        &(struct auth_lookup_failure){
            refusal->kind == KEY_UNAVAILABLE ? VERDICT_FAILED : VERDICT_REFUSED, refusal->label,
            refusal->text });
}

/* Go on without a document: with the old key while it may be stale. If the fetch was for a bad
 * signature, the first verdict stands. */
static void lookup_go_without(struct auth_verifier *verifier, struct tr_context *ctx,
    struct auth_lookup *lookup, const struct key_refusal *refusal)
{
    const struct key_cache_entry *entry = key_cache_find(&verifier->keys, span_of(lookup->issuer));

    if (lookup->finding == FINDING_BAD_SIGNATURE)
        auth_lookup_end(verifier, ctx, lookup);
    else if (entry != NULL && may_be_stale(verifier, entry))
        lookup_resume(verifier, lookup, entry->key, false);
    else
        lookup_refuse(verifier, ctx, lookup, refusal);
}

/* ---- fetching ------------------------------------------------------------------------------- */

static struct auth_document_fetch *find_fetch(struct auth_verifier *verifier, const char *issuer)
{
    struct auth_document_fetch *at = verifier->fetches;

    while (at != NULL && strcmp(at->issuer, issuer) != 0)
        at = at->next;
    return at;
}

void auth_documents_fini(struct auth_verifier *verifier)
{
    for (struct auth_document_fetch *at = verifier->fetches, *next; at != NULL; at = next) {
        next = at->next;
        base_free(at);
    }
    verifier->fetches = NULL;
    verifier->fetch_count = 0;
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

static int ask_for(struct auth_verifier *verifier, struct tr_context *ctx,
    const struct auth_lookup *lookup, const char *url, bool is_web,
    struct auth_document_fetch *fetch)
{
    return http_client_ask(ctx, verifier->auth->client,
        &(struct http_client_request){ .url = url,
            .traceparent = lookup->traceparent,
            .timeout_ns = verifier->auth->fetch_timeout_ns,
            .size_max = HTTP_CLIENT_ANSWER_MAX,
            .redirects_max = is_web ? 0 : 2 },
        VERIFIER_TAG_FETCH + fetch->number);
}

/* Start a fetch of the issuer's document. NULL on failure, with the reason in *ret_refusal. */
static struct auth_document_fetch *document_start_fetch(struct auth_verifier *verifier,
    struct tr_context *ctx, const struct auth_lookup *lookup, struct key_refusal *ret_refusal)
{
    const char *issuer = lookup->issuer;
    struct buffer url = { .size_max = 4096 };
    size_t size = strlen(issuer) + 1;
    struct auth_document_fetch *fetch = NULL;
    enum did_refusal refusal;
    bool is_web = false;

    if (verifier->auth->client == NULL) {
        *ret_refusal = (struct key_refusal){ KEY_UNREACHABLE, "IssuerRefused",
            "This server accepts did:key issuers only." };
        return NULL;
    }
    *ret_refusal = overloaded;
    if (verifier->fetch_count >= FETCHES_MAX)
        return NULL;
    refusal = url_of(verifier->auth, span_of(issuer), &url, &is_web);
    if (refusal == DID_OK)
        fetch = base_alloc(sizeof *fetch + size);
    else if (refusal != DID_NO_MEMORY)
        *ret_refusal = refusal_of(KEY_UNREACHABLE, refusal);
    if (fetch != NULL) {
        *fetch = (struct auth_document_fetch){ .next = verifier->fetches,
            .number = verifier->number_next++ & VERIFIER_NUMBER_MASK };
        memcpy(fetch->issuer, issuer, size);
        if (ask_for(verifier, ctx, lookup, url.bytes, is_web, fetch) == 0) {
            verifier->fetches = fetch;
            verifier->fetch_count++;
            auth_count(AUTH_METRIC_FETCHES);
        } else {
            base_free(fetch);
            fetch = NULL;
        }
    }
    buffer_free(&url);
    return fetch;
}

static void wait_for_document(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    struct auth_document_fetch *fetch = find_fetch(verifier, lookup->issuer);
    struct key_refusal refusal = overloaded;

    lookup->has_fetched = true;
    if (verifier->waiting_count < WAITING_MAX && fetch == NULL)
        fetch = document_start_fetch(verifier, ctx, lookup, &refusal);
    if (verifier->waiting_count >= WAITING_MAX || fetch == NULL) {
        lookup_go_without(verifier, ctx, lookup, &refusal);
        return;
    }
    lookup->place = LOOKUP_FETCHING;
    auth_lookup_queue_push(&fetch->waiting, lookup);
    verifier->waiting_count++;
}

void auth_lookup_find_key(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    const struct key_cache_entry *entry = key_cache_find(&verifier->keys, span_of(lookup->issuer));
    bool is_soon = entry != NULL && is_within(verifier, entry->tried_s, RETRY_S);

    tr_assert(lookup->issuer != NULL);
    tr_assert(lookup->place == LOOKUP_IDLE);
    if (entry != NULL && is_fresh(verifier, entry))
        lookup_resume(verifier, lookup, entry->key, true);
    else if (is_soon && entry->key == NULL)
        lookup_refuse(verifier, ctx, lookup, &entry->refusal);
    else if (is_soon && entry->has_failed)
        lookup_go_without(verifier, ctx, lookup, &unavailable);
    else
        wait_for_document(verifier, ctx, lookup);
}

bool auth_lookup_retries(
    struct auth_verifier *verifier, struct tr_context *ctx, struct auth_lookup *lookup)
{
    struct key_cache_entry *entry;

    if (lookup->issuer == NULL || lookup->key == NULL ||
        (lookup->verdict != VERDICT_OK && lookup->finding != FINDING_BAD_SIGNATURE))
        return false;
    entry = key_cache_find(&verifier->keys, span_of(lookup->issuer));
    if (entry != NULL && entry->key != lookup->key) { /* the key changed meanwhile */
        if (entry->key != NULL)
            lookup_resume(verifier, lookup, entry->key, false);
        else
            lookup_refuse(verifier, ctx, lookup, &entry->refusal);
        return true;
    }
    if (lookup->verdict == VERDICT_OK || !lookup->key_is_cached || lookup->has_fetched)
        return false;
    /* A bad signature under a cached key: the issuer may have a new one. */
    if (entry != NULL && is_within(verifier, entry->forced_s, FORCED_S_MIN))
        return false;
    if (entry != NULL)
        entry->forced_s = auth_verifier_wall_s(verifier);
    wait_for_document(verifier, ctx, lookup);
    return true;
}

/* ---- a fetched document ----------------------------------------------------------------------- */

static bool is_same_key(const struct crypto_key *a, const struct crypto_key *b)
{
    uint8_t a_bytes[CRYPTO_PUBLIC_BYTES_MAX] = { 0 }, b_bytes[CRYPTO_PUBLIC_BYTES_MAX] = { 0 };

    crypto_key_public_bytes(a, a_bytes);
    crypto_key_public_bytes(b, b_bytes);
    return crypto_key_algorithm(a) == crypto_key_algorithm(b) &&
           memcmp(a_bytes, b_bytes, sizeof a_bytes) == 0;
}

/* Cache a fetched key. If it is the key that the cache has, *key becomes that object, because
 * auth_lookup_retries compares keys by address. */
static void learn_key(struct auth_verifier *verifier, struct span issuer, struct crypto_key **key)
{
    struct key_cache_entry *entry = key_cache_find(&verifier->keys, issuer);

    if (entry != NULL && entry->key != NULL) {
        if (is_same_key(entry->key, *key)) {
            crypto_key_unref(key);
            *key = crypto_key_ref(entry->key);
        } else {
            token_cache_forget(&verifier->tokens, issuer);
            LOG(LOG_INFO, "auth", "An issuer has a new key.", LOG_SPAN("issuer", issuer));
        }
    }
    (void)key_cache_put(&verifier->keys, issuer, *key,
        auth_verifier_wall_s(
            verifier)); /* best effort: without memory the next token fetches again */
}

static void learn_failure(
    struct auth_verifier *verifier, struct span issuer, const struct key_refusal *refusal)
{
    struct key_cache_entry *entry = key_cache_find(&verifier->keys, issuer);

    auth_count(AUTH_METRIC_FETCH_FAILURES);
    if (entry == NULL || entry->key == NULL) {
        key_cache_refuse(&verifier->keys, issuer, refusal, auth_verifier_wall_s(verifier));
    } else {
        entry->tried_s = auth_verifier_wall_s(verifier);
        entry->has_failed = true;
    }
}

/* Read the key from an answer. NULL on failure, with the reason in *ret_refusal. */
static struct crypto_key *read_answer(
    const struct tr_event *event, struct span issuer, struct key_refusal *ret_refusal)
{
    const struct http_client_answer *answer = event->status == 0 ? event->value : NULL;
    struct crypto_key *key = NULL;
    enum did_refusal refusal;

    *ret_refusal = unavailable;
    if (event->status == TR_ETOOBIG) {
        *ret_refusal = refusal_of(KEY_GONE, DID_DOCUMENT_LARGE);
    } else if (event->status == TR_EACCES) { /* the client refused a private address */
        *ret_refusal = refusal_of(KEY_UNREACHABLE, DID_PRIVATE);
    } else if (answer != NULL && answer->status == 200) {
        refusal = did_document_key(
            (struct span){ answer->body, answer->body_size }, issuer, SPAN("#atproto"), &key);
        if (refusal != DID_OK && refusal != DID_NO_MEMORY)
            *ret_refusal = refusal_of(KEY_GONE, refusal);
    } else if (answer != NULL && answer->status == 404) {
        *ret_refusal =
            (struct key_refusal){ KEY_GONE, "DidNotFound", "The issuer's DID has no document." };
    } else if (answer != NULL && answer->status == 410) {
        *ret_refusal = refusal_of(KEY_GONE, DID_DEACTIVATED);
    }
    return key;
}

static struct auth_document_fetch *take_fetch(struct auth_verifier *verifier, uint32_t tag)
{
    struct auth_document_fetch **link = &verifier->fetches;
    struct auth_document_fetch *fetch;

    while (*link != NULL && (*link)->number + VERIFIER_TAG_FETCH != tag)
        link = &(*link)->next;
    fetch = *link;
    if (fetch != NULL) {
        *link = fetch->next;
        verifier->fetch_count--;
    }
    return fetch;
}

void auth_document_fetched(
    struct auth_verifier *verifier, struct tr_context *ctx, const struct tr_event *event)
{
    struct auth_document_fetch *fetch = take_fetch(verifier, event->tag);
    struct key_refusal refusal;
    struct crypto_key *key;
    struct span issuer;

    if (fetch == NULL)
        return;
    issuer = span_of(fetch->issuer);
    key = read_answer(event, issuer, &refusal);
    if (key != NULL) {
        learn_key(verifier, issuer, &key);
    } else if (refusal.kind == KEY_GONE) {
        key_cache_refuse(&verifier->keys, issuer, &refusal, auth_verifier_wall_s(verifier));
        token_cache_forget(&verifier->tokens, issuer);
    } else {
        learn_failure(verifier, issuer, &refusal);
    }
    for (struct auth_lookup *at; (at = auth_lookup_queue_pop(&fetch->waiting)) != NULL;) {
        tr_assert(verifier->waiting_count > 0);
        verifier->waiting_count--;
        if (key != NULL)
            lookup_resume(verifier, at, key, false);
        else if (refusal.kind == KEY_GONE)
            lookup_refuse(verifier, ctx, at, &refusal);
        else
            lookup_go_without(verifier, ctx, at, &refusal);
    }
    crypto_key_unref(&key);
    base_free(fetch);
}
