/* SPDX-License-Identifier: Apache-2.0 */
/* session_keys.c: the key sets of OpenID providers, from a URL or a file.
 *
 * 1. One fetch at a time for a provider; all sign-ins that need its keys wait for that fetch.
 * 2. A fetched set serves for KEYS_LIFE_S, and for KEYS_STALE_S more while fetches fail.
 * 3. A token that names an unknown key causes a fetch, at most one in KEYS_AGAIN_S.
 * 4. A sign-in waits for one fetch at most. */
#include "auth/session_private.h"
#include "base/assert.h"
#include "http/client.h"
#include "support/log.h"

enum {
    KEYS_LIFE_S = 3600,
    KEYS_STALE_S = 86400,
    KEYS_AGAIN_S = 60,
    KEYS_RETRY_S = 10, /* after a failed fetch */
};

static struct session_keys *keys_of(struct sessions_actor *actor, const struct sign_in *sign_in)
{
    tr_assert(sign_in->message.provider < actor->sessions->options.provider_count);
    return &actor->providers[sign_in->message.provider];
}

/* The difference is unsigned: a clock that was set back makes keys old, never young. */
static bool is_younger(const struct sessions_actor *actor, uint64_t since_s, uint64_t limit_s)
{
    return (uint64_t)sessions_wall_s(actor) - since_s < limit_s;
}

/* ---- fetching ------------------------------------------------------------------------------- */

/* The fetch carries the trace of the sign-in that caused it. */
static void fetch_provider_keys(
    struct sessions_actor *actor, struct tr_context *ctx, const struct sign_in *sign_in)
{
    const struct session_options *options = &actor->sessions->options;
    struct session_keys *keys = keys_of(actor, sign_in);
    uint32_t provider = sign_in->message.provider;
    int rc = TR_EUNSUPPORTED;

    keys->tried_s = (uint64_t)sessions_wall_s(actor);
    if (options->client != NULL)
        rc = http_client_ask(ctx, options->client,
            &(struct http_client_request){ .url = options->providers[provider].keys_url,
                .traceparent = sign_in->message.traceparent,
                .timeout_ns = TR_SECONDS(5) },
            SESSION_TAG_KEYS + provider);
    keys->state = rc == 0 ? SESSION_KEYS_FETCHING : SESSION_KEYS_FAILED;
}

static bool may_fetch(const struct sessions_actor *actor, const struct session_keys *keys)
{
    switch (keys->state) {
    case SESSION_KEYS_NONE:
    case SESSION_KEYS_FETCHING:
        return true;
    case SESSION_KEYS_FETCHED:
        return !is_younger(actor, keys->tried_s, KEYS_AGAIN_S);
    case SESSION_KEYS_FAILED:
        break;
    }
    return !is_younger(actor, keys->tried_s, KEYS_RETRY_S);
}

/* Make the sign-in wait for a fetch, if it has not waited before and a fetch may start or runs. */
static bool wait_for_fetch(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct session_keys *keys = keys_of(actor, sign_in);

    if (sign_in->has_fetched || !may_fetch(actor, keys))
        return false;
    if (keys->state != SESSION_KEYS_FETCHING)
        fetch_provider_keys(actor, ctx, sign_in);
    sign_in->is_waiting = keys->state == SESSION_KEYS_FETCHING;
    return sign_in->is_waiting;
}

static void take_keys(struct sessions_actor *actor, uint32_t provider, const struct tr_event *event)
{
    const struct http_client_answer *answer = event->status == 0 ? event->value : NULL;
    struct session_keys *keys = &actor->providers[provider];
    char why[KEY_SET_WHY_CHARS] = "The key set could not be fetched.";
    struct key_set *fresh = NULL;

    if (answer != NULL && answer->status == 200)
        (void)key_set_parse((struct span){ answer->body, answer->body_size },
            &(struct key_set_options){ .skip_unknown = true }, &fresh, why);
    if (fresh == NULL) {
        keys->state = SESSION_KEYS_FAILED;
        LOG(LOG_WARN, "auth", "A provider's key set is not usable.",
            LOG_TEXT("provider", actor->sessions->options.providers[provider].name),
            LOG_TEXT("why", why));
        return;
    }
    key_set_destroy(keys->keys);
    keys->keys = fresh;
    keys->fetched_s = (uint64_t)sessions_wall_s(actor);
    keys->state = SESSION_KEYS_FETCHED;
}

void sessions_keys_fetched(
    struct sessions_actor *actor, struct tr_context *ctx, const struct tr_event *event)
{
    uint32_t provider = event->tag - SESSION_TAG_KEYS;

    tr_assert(provider < AUTH_PROVIDERS_MAX);
    take_keys(actor, provider, event);
    for (struct sign_in *at = actor->sign_ins, *next; at != NULL; at = next) {
        next = at->next; /* sign_in_resume may free `at`, never another one */
        if (!at->is_waiting || at->message.provider != provider)
            continue;
        at->is_waiting = false;
        at->has_fetched = true;
        sign_in_resume(actor, ctx, at);
    }
}

/* ---- finding -------------------------------------------------------------------------------- */

static void refuse_key(struct sessions_actor *actor, struct sign_in *sign_in)
{
    sign_in_answer_error(
        actor, sign_in, 401, jwt_refusal_label(JWT_KID), jwt_refusal_text(JWT_KID));
}

static struct crypto_key *find_key_in_file(struct sessions_actor *actor, struct sign_in *sign_in)
{
    struct sessions *sessions = actor->sessions;
    struct crypto_key *key = NULL;
    struct key_set *keys;

    tr_assert(sign_in->key == NULL);
    pthread_mutex_lock(&sessions->lock);
    keys = sessions->file_keys[sign_in->message.provider];
    if (keys != NULL)
        key = key_set_find(keys, sign_in->jwt.kid);
    if (key != NULL)
        key = crypto_key_ref(key);
    pthread_mutex_unlock(&sessions->lock);
    if (key == NULL && keys != NULL)
        refuse_key(actor, sign_in);
    else if (key == NULL)
        sign_in_answer_error(actor, sign_in, 503, "ProviderUnavailable",
            "The provider's keys could not be read; try again.");
    return key;
}

struct crypto_key *sign_in_find_key(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    const struct session_keys *provider = keys_of(actor, sign_in);
    struct key_set *keys = provider->keys;
    struct crypto_key *key;

    if (actor->sessions->options.providers[sign_in->message.provider].keys_file != NULL)
        return find_key_in_file(actor, sign_in);
    if (keys != NULL && !is_younger(actor, provider->fetched_s, KEYS_LIFE_S + KEYS_STALE_S))
        keys = NULL;
    key = keys == NULL ? NULL : key_set_find(keys, sign_in->jwt.kid);
    if ((key == NULL || !is_younger(actor, provider->fetched_s, KEYS_LIFE_S)) &&
        wait_for_fetch(actor, ctx, sign_in))
        return NULL;
    if (key != NULL)
        return crypto_key_ref(key);
    if (keys == NULL)
        sign_in_answer_error(actor, sign_in, 503, "ProviderUnavailable",
            "The provider's keys could not be fetched; try again.");
    else
        refuse_key(actor, sign_in);
    return NULL;
}
