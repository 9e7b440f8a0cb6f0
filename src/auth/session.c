/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: the sessions actor.
 *
 * A message becomes a sign-in (session_sign_in.c), which is in the actor's list until its answer. It
 * waits for its provider's keys, is on the pool, or waits for its unit, whose tag has its number. All
 * lasting state is in the database, so the actor can restart at any time.
 *
 * 1. An ID token makes one session: the unit that inserts the session stores the token's hash.
 * 2. A session has one current refresh token. A request with any other that this server made for the
 *    session ends the session: that token was used before.
 * 3. When a session ends, the verifier drops the user's cached tokens before the answer goes out. */
#include "auth/session.h"

#include <stdio.h>
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "base/assert.h"

enum { SIGN_INS_MAX = 1024, ADDRESSES_MAX = 16384 };

int64_t sessions_wall_s(const struct sessions_actor *actor)
{
    const struct tr_env *env = actor->sessions->env;

    return (int64_t)(env->wall_ns(env->data) / 1000000000);
}

/* ---- messages ------------------------------------------------------------------------------- */

void session_message_fini(struct session_message *message)
{
    base_free(message->text);
    base_free(message->nonce);
    message->text = message->nonce = NULL;
}

static void reply_overloaded(struct tr_context *ctx)
{
    static const char text[] = "The server handles too many sign-ins now; try again.";
    union {
        struct session_answer answer;
        char bytes[sizeof(struct session_answer) + sizeof text];
    } room = { .answer = { .status = 503, .label = "Overloaded" } };

    memcpy(room.answer.body, text, sizeof text);
    tr_reply(ctx, 0, &room, offsetof(struct session_answer, body) + sizeof text);
}

/* Sign-ins have a rate of their own, below that of other requests, because each costs a signature check
 * and a row. */
static bool is_over_rate(
    struct sessions_actor *actor, struct tr_context *ctx, const struct session_message *message)
{
    struct span address = { (const char *)message->address, message->address_size };
    struct session_answer answer = { .status = 429 };
    uint64_t retry_ns;

    if (message->kind != SESSION_EXCHANGE || actor->sign_in_limit.places == NULL ||
        rate_limit_take(&actor->sign_in_limit, address, tr_now_ns(ctx), &retry_ns) == 0)
        return false;
    answer.retry_s = (uint32_t)((retry_ns + TR_SECONDS(1) - 1) / TR_SECONDS(1));
    tr_reply(ctx, 0, &answer, sizeof answer);
    return true;
}

/* Make a sign-in that owns the message. NULL at the limit or without memory. */
static struct sign_in *sign_in_create(
    struct sessions_actor *actor, struct tr_context *ctx, const struct session_message *message)
{
    struct sign_in *sign_in = actor->count < SIGN_INS_MAX ? base_calloc(sizeof *sign_in) : NULL;

    if (sign_in == NULL)
        return NULL;
    sign_in->reply = tr_reply_take(ctx);
    if (sign_in->reply.reply == NULL) {
        base_free(sign_in);
        return NULL;
    }
    atomic_init(&sign_in->holders, 1);
    sign_in->message = *message;
    sign_in->number = actor->number_next++ & 0xffffff;
    sign_in->next = actor->sign_ins;
    actor->sign_ins = sign_in;
    actor->count++;
    return sign_in;
}

static enum tr_next sessions_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct session_message *message = memory;
    struct sessions_actor *actor = self;
    struct sign_in *sign_in;

    if (is_over_rate(actor, ctx, message)) {
        session_message_fini(message);
        return TR_GO;
    }
    sign_in = sign_in_create(actor, ctx, message);
    if (sign_in != NULL) {
        sign_in_start(actor, ctx, sign_in);
    } else {
        reply_overloaded(ctx);
        session_message_fini(message);
    }
    return TR_GO;
}

static enum tr_next sessions_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct sessions_actor *actor = self;

    if (event->kind == TR_EVENT_WORK)
        sign_in_verified(actor, ctx, (struct sign_in *)(uintptr_t)event->value);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= SESSION_TAG_UNIT)
        sessions_unit_done(actor, ctx, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= SESSION_TAG_KEYS)
        sessions_keys_fetched(actor, ctx, event);
    return TR_GO;
}

/* ---- the actor ------------------------------------------------------------------------------ */

static int sessions_actor_start(void *self, struct tr_context *ctx)
{
    struct sessions_actor *actor = self;
    const struct tr_rate *rate = &actor->sessions->options.sign_ins;
    struct base_siphash_key key = { tr_random(ctx), tr_random(ctx) };

    sql_client_init(&actor->sql, actor->sessions->options.sql);
    return rate->count == 0 ? 0 : rate_limit_init(&actor->sign_in_limit, rate, ADDRESSES_MAX, key);
}

static void sessions_actor_finish(void *self)
{
    struct sessions_actor *actor = self;

    for (struct sign_in *at = actor->sign_ins, *next; at != NULL; at = next) {
        next = at->next;
        sign_in_unref(at); /* the pool may hold another reference */
    }
    for (size_t i = 0; i < AUTH_PROVIDERS_MAX; i++)
        key_set_destroy(actor->providers[i].keys);
    if (actor->sql.sql != NULL)
        sql_client_fini(&actor->sql);
    rate_limit_fini(&actor->sign_in_limit);
    *actor =
        (struct sessions_actor){ .sessions = actor->sessions, .number_next = actor->number_next };
}

static int sessions_actor_reset(void *self, enum tr_why why)
{
    (void)why;
    sessions_actor_finish(self);
    return 0;
}

static void sessions_message_drop(void *memory)
{
    session_message_fini(memory);
}

const struct tr_type sessions_type = {
    .name = "sessions",
    .message_size = sizeof(struct session_message),
    .state_size = sizeof(struct sessions_actor),
    .start = sessions_actor_start,
    .handle = sessions_handle,
    .event = sessions_event,
    .finish = sessions_actor_finish,
    .reset = sessions_actor_reset,
    .message_drop = sessions_message_drop,
};

/* ---- start and stop ------------------------------------------------------------------------- */

static void sessions_destroy(struct sessions *sessions)
{
    for (size_t i = 0; i < AUTH_PROVIDERS_MAX; i++)
        key_set_destroy(sessions->file_keys[i]);
    pthread_mutex_destroy(&sessions->lock);
    base_free(sessions);
}

int sessions_start(
    struct tr_system *system, const struct session_options *options, struct sessions **ret_sessions)
{
    struct sessions *sessions;
    struct sessions_actor actor = { 0 };
    int rc;

    if (options->provider_count > AUTH_PROVIDERS_MAX || options->key == NULL)
        return TR_EINVAL;
    rc = session_store_set_admins(options->sql, options->admins);
    if (rc < 0)
        return rc;
    sessions = base_calloc(sizeof *sessions);
    if (sessions == NULL)
        return TR_ENOMEM;
    sessions->options = *options;
    pthread_mutex_init(&sessions->lock, NULL);
    sessions->system = system;
    sessions->env = tr_system_env(system);
    actor.sessions = sessions;
    rc = tr_spawn(system, &sessions_type, &actor,
        &(struct tr_spawn_options){ .name = "sessions",
            .owner = "auth",
            .ret_done = &sessions->done,
            .supervisor = options->supervisor,
            .box = { .capacity = 1024, .full = TR_FULL_FAIL } },
        &sessions->actor);
    if (rc < 0) {
        sessions_destroy(sessions);
        return rc;
    }
    *ret_sessions = sessions;
    return 0;
}

static int load_keys_file(struct sessions *sessions, size_t provider, char *why, size_t why_size)
{
    const struct session_provider *about = &sessions->options.providers[provider];
    char what[KEY_SET_WHY_CHARS] = "";
    struct key_set *keys, *old;
    int rc = key_set_load(sessions->env, about->keys_file,
        &(struct key_set_options){ .skip_unknown = true }, &keys, what);

    if (rc < 0) {
        (void)snprintf(why, why_size, "%s: %s", about->keys_file, what);
        return rc;
    }
    pthread_mutex_lock(&sessions->lock);
    old = sessions->file_keys[provider];
    sessions->file_keys[provider] = keys;
    pthread_mutex_unlock(&sessions->lock);
    key_set_destroy(old);
    return 0;
}

int sessions_load_keys(struct sessions *sessions, char *why, size_t why_size)
{
    int first = 0;

    tr_assert(why_size > 0);
    for (size_t i = 0; i < sessions->options.provider_count; i++) {
        if (sessions->options.providers[i].keys_file == NULL)
            continue;
        if (first == 0)
            first = load_keys_file(sessions, i, why, why_size);
        else
            (void)load_keys_file(sessions, i, (char[1]){ 0 }, 1);
    }
    return first;
}

void sessions_stop(struct sessions **sessions)
{
    if (*sessions == NULL)
        return;
    tr_sender_drop(&(*sessions)->actor);
    (void)tr_done_wait(&(*sessions)->done, NULL, NULL, 0);
    sessions_destroy(*sessions);
    *sessions = NULL;
}
