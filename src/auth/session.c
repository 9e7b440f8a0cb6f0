/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: the sessions actor.
 *
 * A request becomes a sign-in: in the list until it is answered. It waits for its provider's keys,
 * is on the pool, or waits for its unit, whose tag carries its number. Everything that lasts is in
 * the database; the actor can be restarted at any time.
 *
 * 1. An ID token makes one session: its hash is stored in the unit that makes the session.
 * 2. A session has one refresh token that is good. Any other that we ever made for it has been
 * used: whoever brings it ends the session.
 * 3. When a session ends the verifier forgets its user's tokens before the answer goes out. */
#include "auth/session.h"

#include <stdio.h>
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "http/client.h"
#include "json/json_write.h"
#include "support/log.h"

enum {
    SIGN_INS_MAX = 1024,
    KEYS_LIFE_S = 3600,
    KEYS_STALE_S = 86400, /* how much longer, when they cannot be fetched */
    KEYS_AGAIN_S = 60,    /* between two fetches, though a token names an unknown key */
    KEYS_RETRY_S = 10,    /* after one that failed */
    ADDRESSES_MAX = 16384,
};
enum { TAG_VERIFY = 1, TAG_KEYS = 16, TAG_UNIT = 1 << 24 };

SQL_STATEMENT(remember_token,
    "INSERT INTO auth_jti (issuer, jti, expires_s) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING");
SQL_STATEMENT(put_user,
    "INSERT INTO auth_users (id, issuer, subject, email, role, created_s, seen_s)"
    " VALUES ($1, $2, $3, $4, $5, $6, $6)"
    " ON CONFLICT (issuer, subject) DO UPDATE"
    " SET email = excluded.email, role = excluded.role, seen_s = excluded.seen_s"
    " RETURNING id, email, role");
SQL_STATEMENT(put_session,
    "INSERT INTO auth_sessions (id, user_id, refresh_hash, created_s, expires_s)"
    " SELECT $1, id, $4, $5, $6 FROM auth_users WHERE issuer = $2 AND subject = $3");
SQL_STATEMENT(turn_session,
    "UPDATE auth_sessions SET refresh_hash = $3, expires_s = $4"
    " WHERE id = $1 AND refresh_hash = $2 AND revoked_s IS NULL AND expires_s > $5");
SQL_STATEMENT(session_user,
    "SELECT u.id, u.email, u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1");
SQL_STATEMENT(end_session, "UPDATE auth_sessions SET revoked_s = $2"
                           " WHERE id = $1 AND revoked_s IS NULL RETURNING user_id");
SQL_STATEMENT(drop_admins, "UPDATE auth_users SET role = 'user' WHERE role = 'admin'");
SQL_STATEMENT(raise_admin, "UPDATE auth_users SET role = 'admin' WHERE lower(email) = lower($1)");
SQL_STATEMENT(get_user, "SELECT id, email, role FROM auth_users WHERE id = $1");

static int64_t wall_s(const struct sessions_actor *actor)
{
    const struct tr_env *env = actor->sessions->env;

    return (int64_t)(env->wall_ns(env->data) / 1000000000);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void forget(struct sessions_actor *actor, struct sign_in *sign_in)
{
    struct sign_in **link = &actor->sign_ins;

    while (*link != sign_in)
        link = &(*link)->next;
    *link = sign_in->next;
    actor->count--;
    sign_in_unref(sign_in);
}

static void answer_error(struct sessions_actor *actor, struct sign_in *sign_in, unsigned status,
    const char *label, const char *text)
{
    struct session_answer answer = { .status = status, .label = label, .text = text };

    tr_reply_send(&sign_in->reply, 0, &answer, sizeof answer);
    forget(actor, sign_in);
}

static void answer_refusal(
    struct sessions_actor *actor, struct sign_in *sign_in, enum jwt_refusal refusal)
{
    if (refusal == JWT_NO_MEMORY)
        answer_error(actor, sign_in, 503, "Overloaded", "out of memory: try again");
    else
        answer_error(actor, sign_in, 401, jwt_refusal_label(refusal), jwt_refusal_text(refusal));
}

static void answer_ended(struct sessions_actor *actor, struct sign_in *sign_in)
{
    answer_error(actor, sign_in, 401, "SessionEnded", "this session has ended: sign in again");
}

static void answer_json(
    struct sessions_actor *actor, struct sign_in *sign_in, struct buffer *answer)
{
    struct session_answer head = { .status = 200 };
    const size_t head_size = offsetof(struct session_answer, json);

    if (answer->failed != 0) {
        answer_error(actor, sign_in, 503, "Overloaded", "out of memory: try again");
        buffer_free(answer);
        return;
    }
    head.json_size = (uint32_t)(answer->size - head_size);
    memcpy(answer->bytes, &head, head_size);
    tr_reply_send(&sign_in->reply, 0, answer->bytes, answer->size);
    buffer_free(answer);
    forget(actor, sign_in);
}

static struct buffer answer_room(void)
{
    struct buffer answer = { .size_max = 32768 };

    buffer_append(&answer, &(struct session_answer){ 0 }, offsetof(struct session_answer, json));
    return answer;
}

static void put_user_members(struct json_writer *writer, const struct sql_unit *unit, uint32_t step)
{
    json_put_string(writer, "id", sql_row_bytes(unit, step, 0, 0));
    if (!sql_row_is_null(unit, step, 0, 1))
        json_put_string(writer, "email", sql_row_bytes(unit, step, 0, 1));
    json_put_string(writer, "role", sql_row_bytes(unit, step, 0, 2));
}

/* ---- our tokens ----------------------------------------------------------------------------- */

static void put_tokens(struct sessions_actor *actor, struct sign_in *sign_in,
    struct json_writer *writer, struct span user)
{
    const struct session_options *options = &actor->sessions->options;
    struct span us = span_of(options->service_did);
    struct buffer token = { 0 };
    int64_t now_s = wall_s(actor);
    const struct jwt_claims claims = {
        .iss = us,
        .aud = us,
        .sub = user,
        .jti = refresh_token_session(&sign_in->refresh),
        .iat_s = now_s,
        .exp_s = now_s + AUTH_SESSION_TOKEN_S,
        .nbf_s = -1,
    };

    if (jwt_sign_claims(options->key, (struct span){ NULL, 0 }, &claims, &token) < 0)
        writer->out->failed = TR_ENOMEM;
    json_put_string(writer, "accessToken", (struct span){ token.bytes, token.size });
    json_put_string(writer, "refreshToken", span_of(sign_in->refresh.text));
    json_put_int(writer, "expiresIn", AUTH_SESSION_TOKEN_S);
    buffer_free(&token);
}

static void answer_pair(struct sessions_actor *actor, struct sign_in *sign_in,
    const struct sql_unit *unit, uint32_t user_step)
{
    struct buffer answer = answer_room();
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    put_tokens(actor, sign_in, &writer, sql_row_bytes(unit, user_step, 0, 0));
    json_put_object(&writer, "user");
    put_user_members(&writer, unit, user_step);
    json_put_end(&writer);
    json_put_end(&writer);
    answer_json(actor, sign_in, &answer);
}

/* ---- units ---------------------------------------------------------------------------------- */

static void submit(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in,
    struct sql_unit *unit, bool is_read)
{
    struct sql_submit_options options = { .tag = TAG_UNIT + sign_in->number };
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = is_read ? sql_read(ctx, &actor->sql, unit, &options)
                     : sql_write(ctx, &actor->sql, unit, &options);
    if (rc == 0)
        return;
    sql_unit_destroy(unit);
    answer_error(actor, sign_in, 503, "Overloaded", "the database is busy: try again");
}

static const char *role_of(const struct sessions_actor *actor, struct span email)
{
    const char *const *admins = actor->sessions->options.admins;

    for (size_t i = 0; email.at != NULL && admins != NULL && admins[i] != NULL; i++)
        if (span_is_nocase(email, admins[i]))
            return "admin";
    return "user";
}

static void new_id(char id[REFRESH_ID_CHARS + 1])
{
    unsigned char random[REFRESH_ID_CHARS / 2];

    crypto_random_fill(random, sizeof random);
    id[crypto_hex_encode(random, sizeof random, id)] = '\0';
}

static void add_user(struct sessions_actor *actor, struct sign_in *sign_in, struct sql_unit *unit)
{
    char id[REFRESH_ID_CHARS + 1];

    new_id(id);
    sql_unit_step(unit, &put_user, 1);
    sql_unit_text(unit, span_of(id));
    sql_unit_text(unit, sign_in->jwt.claims.iss);
    sql_unit_text(unit, sign_in->jwt.claims.sub);
    if (sign_in->email.at != NULL)
        sql_unit_text(unit, sign_in->email);
    else
        sql_unit_null(unit);
    sql_unit_text(unit, span_of(role_of(actor, sign_in->email)));
    sql_unit_int(unit, wall_s(actor));
}

/* The ID token is good for one session: whoever sees it later gets none. */
static void store_sign_in(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct sql_unit *unit = sql_unit_create(0);
    char id[REFRESH_ID_CHARS + 1], hex[64];
    unsigned char hash[32];

    new_id(id);
    if (unit == NULL ||
        refresh_token_init(&sign_in->refresh, actor->sessions->options.key, id) < 0) {
        sql_unit_destroy(unit);
        submit(actor, ctx, sign_in, NULL, false);
        return;
    }
    crypto_sha256(sign_in->message.text, sign_in->message.text_size, hash);
    sql_unit_step(unit, &remember_token, 1);
    sql_unit_text(unit, sign_in->jwt.claims.iss);
    sql_unit_text(unit, (struct span){ hex, crypto_hex_encode(hash, sizeof hash, hex) });
    sql_unit_int(unit, sign_in->jwt.claims.exp_s);
    add_user(actor, sign_in, unit);
    sql_unit_step(unit, &put_session, 1);
    sql_unit_text(unit, span_of(id));
    sql_unit_text(unit, sign_in->jwt.claims.iss);
    sql_unit_text(unit, sign_in->jwt.claims.sub);
    sql_unit_blob(unit, sign_in->refresh.hash, sizeof sign_in->refresh.hash);
    sql_unit_int(unit, wall_s(actor));
    sql_unit_int(unit, wall_s(actor) + AUTH_SESSION_LIFE_S);
    submit(actor, ctx, sign_in, unit, false);
}

/* The refresh token of the message; false if it is none of ours and was answered. */
static bool read_refresh(
    struct sessions_actor *actor, struct sign_in *sign_in, struct refresh_token *token)
{
    struct span text = { sign_in->message.text, sign_in->message.text_size };

    if (refresh_token_parse(token, actor->sessions->options.key, text))
        return true;
    answer_ended(actor, sign_in);
    return false;
}

static void begin_refresh(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    char id[REFRESH_ID_CHARS + 1];
    struct refresh_token old;
    struct sql_unit *unit;

    if (!read_refresh(actor, sign_in, &old))
        return;
    memcpy(id, old.text, REFRESH_ID_CHARS);
    id[REFRESH_ID_CHARS] = '\0';
    unit = sql_unit_create(0);
    if (unit == NULL ||
        refresh_token_init(&sign_in->refresh, actor->sessions->options.key, id) < 0) {
        sql_unit_destroy(unit);
        submit(actor, ctx, sign_in, NULL, false);
        return;
    }
    sql_unit_step(unit, &turn_session, 1);
    sql_unit_text(unit, span_of(id));
    sql_unit_blob(unit, old.hash, sizeof old.hash);
    sql_unit_blob(unit, sign_in->refresh.hash, sizeof sign_in->refresh.hash);
    sql_unit_int(unit, wall_s(actor) + AUTH_SESSION_LIFE_S);
    sql_unit_int(unit, wall_s(actor));
    sql_unit_step(unit, &session_user, 1);
    sql_unit_text(unit, span_of(id));
    submit(actor, ctx, sign_in, unit, false);
}

static void begin_end(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct refresh_token token;
    struct sql_unit *unit;

    if (!read_refresh(actor, sign_in, &token))
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &end_session, SQL_ROWS_ANY);
        sql_unit_text(unit, refresh_token_session(&token));
        sql_unit_int(unit, wall_s(actor));
    }
    submit(actor, ctx, sign_in, unit, false);
}

static void begin_me(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        sql_unit_step(unit, &get_user, SQL_ROWS_ANY);
        sql_unit_text(unit, (struct span){ sign_in->message.text, sign_in->message.text_size });
    }
    submit(actor, ctx, sign_in, unit, true);
}

/* ---- units that came back ------------------------------------------------------------------- */

static void ended(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    struct buffer answer;

    if (sql_unit_rows(unit, 0) == 1) {
        auth_forget(actor->sessions->options.auth, sql_row_bytes(unit, 0, 0, 0));
        if (sign_in->was_stolen)
            LOG(LOG_WARN, "auth", "a refresh token came twice: its session is ended",
                LOG_SPAN("user", sql_row_bytes(unit, 0, 0, 0)));
    }
    if (sign_in->was_stolen) {
        answer_ended(actor, sign_in);
        return;
    }
    answer = answer_room();
    buffer_text(&answer, "{}");
    answer_json(actor, sign_in, &answer);
}

static void me(struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    struct buffer answer = answer_room();
    struct json_writer writer = json_writer(&answer);

    if (sql_unit_rows(unit, 0) != 1) {
        buffer_free(&answer);
        answer_ended(actor, sign_in);
        return;
    }
    json_put_object(&writer, NULL);
    put_user_members(&writer, unit, 0);
    json_put_end(&writer);
    answer_json(actor, sign_in, &answer);
}

static void signed_in(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    enum { USER_STEP = 1 };

    if (sign_in->message.kind == SESSION_EXCHANGE) /* the role may be another now */
        auth_forget(actor->sessions->options.auth, sql_row_bytes(unit, USER_STEP, 0, 0));
    answer_pair(actor, sign_in, unit, USER_STEP);
}

static void unit_failed(struct sessions_actor *actor, struct tr_context *ctx,
    struct sign_in *sign_in, const struct sql_unit *unit)
{
    bool missed = sql_unit_status(unit) == SQL_EROWS && sql_unit_failed_step(unit) == 0;

    if (missed && sign_in->message.kind == SESSION_EXCHANGE) {
        answer_error(actor, sign_in, 401, "TokenReplayed", "this ID token was used before");
    } else if (missed && sign_in->message.kind == SESSION_REFRESH) {
        /* Ours, but not the one that is good: it was used, or its session is over. */
        sign_in->was_stolen = true;
        begin_end(actor, ctx, sign_in);
    } else if (sql_unit_status(unit) == SQL_EUNKNOWN && sign_in->message.kind != SESSION_ME) {
        answer_error(actor, sign_in, 504, NULL, NULL); /* it may have taken it */
    } else {
        answer_error(actor, sign_in, 503, "Overloaded", "the database did not take it: try again");
    }
}

static void unit_back(
    struct sessions_actor *actor, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&actor->sql, event);
    struct sign_in *sign_in = actor->sign_ins;

    while (sign_in != NULL && sign_in->number + TAG_UNIT != event->tag)
        sign_in = sign_in->next;
    if (unit == NULL || sign_in == NULL) {
        sql_unit_destroy(unit);
        return;
    }
    if (sql_unit_status(unit) != 0)
        unit_failed(actor, ctx, sign_in, unit);
    else if (sign_in->was_stolen || sign_in->message.kind == SESSION_LOGOUT)
        ended(actor, sign_in, unit);
    else if (sign_in->message.kind == SESSION_ME)
        me(actor, sign_in, unit);
    else
        signed_in(actor, sign_in, unit);
    sql_unit_destroy(unit);
}

/* ---- providers' keys ------------------------------------------------------------------------ */

/* In the trace of the sign-in that caused it; others may wait for the same keys. */
static void fetch_keys(
    struct sessions_actor *actor, struct tr_context *ctx, const struct session_message *message)
{
    const struct session_options *options = &actor->sessions->options;
    uint32_t provider = message->provider;
    int rc = TR_EUNSUPPORTED;

    if (actor->providers[provider].is_fetching)
        return;
    actor->providers[provider].tried_s = (uint64_t)wall_s(actor);
    if (options->client != NULL)
        rc = http_client_ask(ctx, options->client,
            &(struct http_client_request){ .url = options->providers[provider].keys_url,
                .traceparent = message->traceparent,
                .timeout_ns = TR_SECONDS(5) },
            TAG_KEYS + provider);
    actor->providers[provider].is_fetching = rc == 0;
    actor->providers[provider].has_failed = rc != 0;
}

static void continue_sign_in(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in);

static void keys_came(
    struct sessions_actor *actor, struct tr_context *ctx, const struct tr_event *event)
{
    const struct http_client_answer *answer = event->status == 0 ? event->value : NULL;
    uint32_t provider = event->tag - TAG_KEYS;
    struct key_set *keys = NULL;
    char why[KEY_SET_WHY_CHARS] = "it could not be fetched";

    actor->providers[provider].is_fetching = false;
    actor->providers[provider].has_failed = true;
    if (answer != NULL && answer->status == 200)
        (void)key_set_parse((struct span){ answer->body, answer->body_size },
            &(struct key_set_options){ .skip_unknown = true }, &keys, why);
    if (keys != NULL) {
        key_set_destroy(actor->providers[provider].keys);
        actor->providers[provider].keys = keys;
        actor->providers[provider].fetched_s = (uint64_t)wall_s(actor);
        actor->providers[provider].has_failed = false;
    } else {
        LOG(LOG_WARN, "auth", "a provider's key set is not usable",
            LOG_TEXT("provider", actor->sessions->options.providers[provider].name),
            LOG_TEXT("why", why));
    }
    for (struct sign_in *at = actor->sign_ins, *next; at != NULL; at = next) {
        next = at->next; /* continuing one may free it, never another */
        if (at->is_waiting && at->message.provider == provider) {
            at->is_waiting = false;
            at->keys_were_new = true;
            continue_sign_in(actor, ctx, at);
        }
    }
}

/* A clock that was set back makes keys old, never young. */
static bool is_within(const struct sessions_actor *actor, uint64_t since_s, uint64_t limit_s)
{
    return (uint64_t)wall_s(actor) - since_s < limit_s;
}

static bool may_fetch(const struct sessions_actor *actor, uint32_t provider)
{
    return actor->providers[provider].is_fetching || actor->providers[provider].tried_s == 0 ||
           !is_within(actor, actor->providers[provider].tried_s,
               actor->providers[provider].has_failed ? KEYS_RETRY_S : KEYS_AGAIN_S);
}

static bool wait_for_keys(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    uint32_t provider = sign_in->message.provider;

    if (sign_in->keys_were_new || !may_fetch(actor, provider))
        return false;
    fetch_keys(actor, ctx, &sign_in->message);
    sign_in->is_waiting = actor->providers[provider].is_fetching;
    return sign_in->is_waiting;
}

/* A file is what it is: nothing newer comes of waiting. */
static struct crypto_key *find_key_in_file(struct sessions_actor *actor, struct sign_in *sign_in)
{
    struct sessions *sessions = actor->sessions;
    struct crypto_key *key = NULL;
    bool has_keys;

    pthread_mutex_lock(&sessions->lock);
    has_keys = sessions->file_keys[sign_in->message.provider] != NULL;
    if (has_keys)
        key = key_set_find(sessions->file_keys[sign_in->message.provider], sign_in->jwt.kid);
    if (key != NULL)
        key = crypto_key_ref(key);
    pthread_mutex_unlock(&sessions->lock);
    if (key == NULL && has_keys)
        answer_refusal(actor, sign_in, JWT_KID);
    else if (key == NULL)
        answer_error(actor, sign_in, 503, "ProviderUnavailable",
            "the provider's keys could not be read: try again");
    return key;
}

/* The key the token names, a reference; NULL if it waits for newer keys or was answered. */
static struct crypto_key *find_key(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    uint32_t provider = sign_in->message.provider;
    uint64_t fetched_s = actor->providers[provider].fetched_s;
    struct key_set *keys = actor->providers[provider].keys;
    struct crypto_key *key;

    if (actor->sessions->options.providers[provider].keys_file != NULL)
        return find_key_in_file(actor, sign_in);
    if (keys != NULL && !is_within(actor, fetched_s, KEYS_LIFE_S + KEYS_STALE_S))
        keys = NULL;
    key = keys == NULL ? NULL : key_set_find(keys, sign_in->jwt.kid);
    if ((key == NULL || !is_within(actor, fetched_s, KEYS_LIFE_S)) &&
        wait_for_keys(actor, ctx, sign_in))
        return NULL;
    if (key != NULL)
        return crypto_key_ref(key);
    if (keys == NULL)
        answer_error(actor, sign_in, 503, "ProviderUnavailable",
            "the provider's keys could not be fetched: try again");
    else
        answer_refusal(actor, sign_in, JWT_KID);
    return NULL;
}

/* ---- ID tokens ------------------------------------------------------------------------------ */

static void continue_sign_in(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct crypto_key *key = find_key(actor, ctx, sign_in);

    if (key == NULL)
        return;
    tr_assert(sign_in->key == NULL);
    sign_in->key = key;
    atomic_fetch_add_explicit(&sign_in->holders, 1, memory_order_relaxed);
    if (tr_offload(ctx, sign_in_verify_work, sign_in, sign_in_unref, TAG_VERIFY) == 0)
        return;
    sign_in_unref(sign_in);
    answer_error(actor, sign_in, 503, "Overloaded", "too many tokens to verify at once");
}

static void begin_exchange(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct span token = { sign_in->message.text, sign_in->message.text_size };
    const struct session_provider *provider =
        &actor->sessions->options.providers[sign_in->message.provider];
    enum jwt_refusal refusal = jwt_parse(&sign_in->jwt, token);
    struct sign_in_refusal why;

    if (refusal != JWT_OK)
        answer_refusal(actor, sign_in, refusal);
    else if (!sign_in_is_right(sign_in, provider, wall_s(actor), &why))
        answer_error(actor, sign_in, 401, why.label, why.text);
    else
        continue_sign_in(actor, ctx, sign_in);
}

static void verified(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    sign_in_unref(sign_in); /* the pool's; the list has one */
    if (sign_in->refusal == JWT_OK)
        store_sign_in(actor, ctx, sign_in);
    else
        answer_refusal(actor, sign_in, sign_in->refusal);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static void refuse(
    struct tr_context *ctx, struct session_message *message, const struct session_answer *answer)
{
    tr_reply(ctx, 0, answer, sizeof *answer);
    base_free(message->text);
    base_free(message->nonce);
}

/* Who tries ID tokens costs signatures and a place in the database each time: fewer than of other
 * requests are let in. */
static bool may_sign_in(
    struct sessions_actor *actor, struct tr_context *ctx, struct session_message *message)
{
    struct span address = { (const char *)message->address, message->address_size };
    struct session_answer answer = { .status = 429 };
    uint64_t retry_ns;

    if (message->kind != SESSION_EXCHANGE || actor->sign_in_limit.places == NULL ||
        rate_limit_take(&actor->sign_in_limit, address, tr_now_ns(ctx), &retry_ns) == 0)
        return true;
    answer.retry_s = (uint32_t)((retry_ns + TR_SECONDS(1) - 1) / TR_SECONDS(1));
    refuse(ctx, message, &answer);
    return false;
}

static enum tr_next actor_handle(void *self, struct tr_context *ctx, void *memory)
{
    static void (*const begin[])(struct sessions_actor *, struct tr_context *, struct sign_in *) = {
        [SESSION_EXCHANGE] = begin_exchange,
        [SESSION_REFRESH] = begin_refresh,
        [SESSION_LOGOUT] = begin_end,
        [SESSION_ME] = begin_me,
    };
    struct session_message *message = memory;
    struct sessions_actor *actor = self;
    struct sign_in *sign_in;

    if (!may_sign_in(actor, ctx, message))
        return TR_GO;
    sign_in = actor->count < SIGN_INS_MAX ? base_calloc(sizeof *sign_in) : NULL;
    if (sign_in != NULL)
        sign_in->reply = tr_reply_take(ctx);
    if (sign_in == NULL || sign_in->reply.reply == NULL) {
        struct session_answer busy = { .status = 503, .label = "Overloaded", .text = "try again" };

        refuse(ctx, message, &busy);
        base_free(sign_in);
        return TR_GO;
    }
    atomic_init(&sign_in->holders, 1);
    sign_in->message = *message;
    sign_in->number = actor->number_next++ & 0xffffff;
    sign_in->next = actor->sign_ins;
    actor->sign_ins = sign_in;
    actor->count++;
    begin[message->kind](actor, ctx, sign_in);
    return TR_GO;
}

static enum tr_next actor_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct sessions_actor *actor = self;

    if (event->kind == TR_EVENT_WORK)
        verified(actor, ctx, (struct sign_in *)(uintptr_t)event->value);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= TAG_UNIT)
        unit_back(actor, ctx, event);
    else if (event->kind == TR_EVENT_REPLY && event->tag >= TAG_KEYS)
        keys_came(actor, ctx, event);
    return TR_GO;
}

static int actor_start(void *self, struct tr_context *ctx)
{
    struct sessions_actor *actor = self;
    const struct tr_rate *rate = &actor->sessions->options.sign_ins;
    struct base_siphash_key key = { tr_random(ctx), tr_random(ctx) };

    sql_client_init(&actor->sql, actor->sessions->options.sql);
    return rate->count == 0 ? 0 : rate_limit_init(&actor->sign_in_limit, rate, ADDRESSES_MAX, key);
}

static void actor_finish(void *self)
{
    struct sessions_actor *actor = self;

    for (struct sign_in *at = actor->sign_ins, *next; at != NULL; at = next) {
        next = at->next;
        sign_in_unref(at); /* the pool may have one of its own */
    }
    for (size_t i = 0; i < AUTH_PROVIDERS_MAX; i++)
        key_set_destroy(actor->providers[i].keys);
    if (actor->sql.sql != NULL)
        sql_client_fini(&actor->sql);
    rate_limit_fini(&actor->sign_in_limit);
    *actor =
        (struct sessions_actor){ .sessions = actor->sessions, .number_next = actor->number_next };
}

static int actor_reset(void *self, enum tr_why why)
{
    (void)why;
    actor_finish(self);
    return 0;
}

static void message_drop(void *memory)
{
    struct session_message *message = memory;

    base_free(message->text);
    base_free(message->nonce);
}

const struct tr_type sessions_type = {
    .name = "sessions",
    .message_size = sizeof(struct session_message),
    .state_size = sizeof(struct sessions_actor),
    .start = actor_start,
    .handle = actor_handle,
    .event = actor_event,
    .finish = actor_finish,
    .reset = actor_reset,
    .message_drop = message_drop,
};

/* Who is an administrator is what the settings say now, not what they said when he signed in. */
static int settle_roles(const struct session_options *options)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    if (unit == NULL)
        return TR_ENOMEM;
    sql_unit_step(unit, &drop_admins, SQL_ROWS_ANY);
    for (size_t i = 0; options->admins != NULL && options->admins[i] != NULL; i++) {
        sql_unit_step(unit, &raise_admin, SQL_ROWS_ANY);
        sql_unit_text(unit, span_of(options->admins[i]));
    }
    rc = sql_write_wait(options->sql, unit);
    sql_unit_destroy(unit);
    return rc;
}

static void free_sessions(struct sessions *sessions)
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
    rc = settle_roles(options);
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
            .box = { .capacity = 1024, .full = TR_FULL_FAIL } },
        &sessions->actor);
    if (rc < 0) {
        free_sessions(sessions);
        return rc;
    }
    *ret_sessions = sessions;
    return 0;
}

static int load_keys_of(struct sessions *sessions, size_t provider, char *why, size_t why_size)
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

    for (size_t i = 0; i < sessions->options.provider_count; i++) {
        if (sessions->options.providers[i].keys_file == NULL)
            continue;
        if (first == 0)
            first = load_keys_of(sessions, i, why, why_size);
        else
            (void)load_keys_of(sessions, i, (char[1]){ 0 }, 1);
    }
    return first;
}

void sessions_stop(struct sessions **sessions)
{
    if (*sessions == NULL)
        return;
    tr_sender_drop(&(*sessions)->actor);
    (void)tr_done_wait(&(*sessions)->done, NULL, NULL, 0);
    free_sessions(*sessions);
    *sessions = NULL;
}
