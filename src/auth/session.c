/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: the sessions actor.
 *
 * A request becomes a sign-in: in the list until it is answered. It waits for its provider's keys,
 * is on the pool (is_working: nobody else touches it), or waits for its unit, whose tag carries its
 * number. Everything that lasts is in the database; the actor can be restarted at any time. */
#include "auth/session.h"

#include <stdio.h>
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "http/client.h"
#include "json/json_write.h"

enum {
    SIGN_INS_MAX = 1024,
    KEYS_LIFE_S = 3600,
    KEYS_AGAIN_S = 60,
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
    "UPDATE auth_sessions SET used_hash = refresh_hash, refresh_hash = $3, expires_s = $4"
    " WHERE id = $1 AND refresh_hash = $2 AND revoked_s IS NULL AND expires_s > $5");
SQL_STATEMENT(session_user,
    "SELECT u.id, u.email, u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1");
SQL_STATEMENT(end_stolen,
    "UPDATE auth_sessions SET revoked_s = $3"
    " WHERE id = $1 AND used_hash = $2 AND revoked_s IS NULL RETURNING user_id");
SQL_STATEMENT(end_session,
    "UPDATE auth_sessions SET revoked_s = $3"
    " WHERE id = $1 AND refresh_hash = $2 AND revoked_s IS NULL RETURNING user_id");
SQL_STATEMENT(get_user, "SELECT id, email, role FROM auth_users WHERE id = $1");

static int64_t wall_s(const struct sessions_actor *actor)
{
    const struct tr_env *env = actor->sessions->env;

    return (int64_t)(env->wall_ns(env->data) / 1000000000);
}

/* ---- answers
 * ---------------------------------------------------------------------------------------- */

static void forget(struct sessions_actor *actor, struct sign_in *sign_in)
{
    struct sign_in **link = &actor->sign_ins;

    while (*link != sign_in)
        link = &(*link)->next;
    *link = sign_in->next;
    actor->count--;
    sign_in_free(sign_in);
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
    struct sessions_actor *actor, struct sign_in *sign_in, struct tr_buffer *answer)
{
    struct session_answer head = { .status = 200 };

    if (answer->failed != 0) {
        answer_error(actor, sign_in, 503, "Overloaded", "out of memory: try again");
        tr_buffer_free(answer);
        return;
    }
    head.json_size = (uint32_t)(answer->size - sizeof head);
    memcpy(answer->bytes, &head, sizeof head);
    tr_reply_send(&sign_in->reply, 0, answer->bytes, answer->size);
    tr_buffer_free(answer);
    forget(actor, sign_in);
}

static struct tr_buffer answer_room(void)
{
    struct tr_buffer answer = { .size_max = 32768 };

    tr_buffer_append(&answer, &(struct session_answer){ 0 }, sizeof(struct session_answer));
    return answer;
}

static void put_user_members(struct json_writer *writer, const struct sql_unit *unit, uint32_t step)
{
    json_put_string(writer, "id", sql_row_bytes(unit, step, 0, 0));
    if (!sql_row_is_null(unit, step, 0, 1))
        json_put_string(writer, "email", sql_row_bytes(unit, step, 0, 1));
    json_put_string(writer, "role", sql_row_bytes(unit, step, 0, 2));
}

/* ---- our tokens
 * ------------------------------------------------------------------------------------- */

/* A new secret half; the database has its hash alone. */
static void new_refresh(struct sign_in *sign_in)
{
    unsigned char secret[32];
    size_t size;

    crypto_random_fill(secret, sizeof secret);
    size = crypto_base64url_encode(secret, sizeof secret, sign_in->refresh);
    tr_assert(size < sizeof sign_in->refresh);
    sign_in->refresh[size] = '\0';
    crypto_sha256(sign_in->refresh, size, sign_in->refresh_hash);
    crypto_wipe(secret, sizeof secret);
}

static void new_session_id(struct sign_in *sign_in)
{
    unsigned char id[16];

    crypto_random_fill(id, sizeof id);
    sign_in->session_id[crypto_hex_encode(id, sizeof id, sign_in->session_id)] = '\0';
}

/* "session.secret": its id, and the hash of its secret. */
static bool read_refresh(struct sign_in *sign_in, unsigned char hash[32])
{
    const char *text = sign_in->message.text;
    size_t size = sign_in->message.text_size;
    const char *dot = memchr(text, '.', size);
    size_t id_size = dot == NULL ? 0 : (size_t)(dot - text);

    if (id_size != 32 || size - id_size - 1 != 43)
        return false;
    memcpy(sign_in->session_id, text, id_size);
    sign_in->session_id[id_size] = '\0';
    crypto_sha256(dot + 1, 43, hash);
    return true;
}

static void put_tokens(struct sessions_actor *actor, struct sign_in *sign_in,
    struct json_writer *writer, struct tr_span user)
{
    const struct session_options *options = &actor->sessions->options;
    struct tr_span us = tr_span_of(options->service_did);
    struct tr_buffer token = { 0 };
    int64_t now_s = wall_s(actor);
    const struct jwt_claims claims = {
        .iss = us,
        .aud = us,
        .sub = user,
        .jti = tr_span_of(sign_in->session_id),
        .iat_s = now_s,
        .exp_s = now_s + AUTH_SESSION_TOKEN_S,
        .nbf_s = -1,
    };

    if (jwt_sign_claims(options->key, (struct tr_span){ NULL, 0 }, &claims, &token) < 0)
        writer->out->failed = TR_ENOMEM;
    json_put_string(writer, "accessToken", (struct tr_span){ token.bytes, token.size });
    tr_buffer_clear(&token);
    tr_buffer_format(&token, "%s.%s", sign_in->session_id, sign_in->refresh);
    json_put_string(writer, "refreshToken", (struct tr_span){ token.bytes, token.size });
    json_put_int(writer, "expiresIn", AUTH_SESSION_TOKEN_S);
    if (token.failed != 0)
        writer->out->failed = token.failed;
    tr_buffer_free(&token);
}

static void answer_pair(struct sessions_actor *actor, struct sign_in *sign_in,
    const struct sql_unit *unit, uint32_t user_step)
{
    struct tr_buffer answer = answer_room();
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    put_tokens(actor, sign_in, &writer, sql_row_bytes(unit, user_step, 0, 0));
    json_put_object(&writer, "user");
    put_user_members(&writer, unit, user_step);
    json_put_end(&writer);
    json_put_end(&writer);
    answer_json(actor, sign_in, &answer);
}

/* ---- units
 * ------------------------------------------------------------------------------------------- */

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
    sql_unit_free(unit);
    answer_error(actor, sign_in, 503, "Overloaded", "the database is busy: try again");
}

static const char *role_of(const struct sessions_actor *actor, struct tr_span email)
{
    const char *const *admins = actor->sessions->options.admins;

    for (size_t i = 0; email.at != NULL && admins != NULL && admins[i] != NULL; i++)
        if (tr_span_is_nocase(email, admins[i]))
            return "admin";
    return "user";
}

static void add_user(struct sessions_actor *actor, struct sign_in *sign_in, struct sql_unit *unit)
{
    unsigned char random[16];
    char id[33];

    crypto_random_fill(random, sizeof random);
    id[crypto_hex_encode(random, sizeof random, id)] = '\0';
    sql_unit_step(unit, &put_user, 1);
    sql_unit_text(unit, tr_span_of(id));
    sql_unit_text(unit, sign_in->jwt.claims.iss);
    sql_unit_text(unit, sign_in->jwt.claims.sub);
    if (sign_in->email.at != NULL)
        sql_unit_text(unit, sign_in->email);
    else
        sql_unit_null(unit);
    sql_unit_text(unit, tr_span_of(role_of(actor, sign_in->email)));
    sql_unit_int(unit, wall_s(actor));
}

/* The ID token is good for one session: whoever sees it later gets none. */
static void store_sign_in(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct sql_unit *unit = sql_unit_new(0);
    unsigned char hash[32];
    char hex[64];

    if (unit != NULL) {
        crypto_sha256(sign_in->message.text, sign_in->message.text_size, hash);
        new_session_id(sign_in);
        new_refresh(sign_in);
        sql_unit_step(unit, &remember_token, 1);
        sql_unit_text(unit, sign_in->jwt.claims.iss);
        sql_unit_text(unit, (struct tr_span){ hex, crypto_hex_encode(hash, sizeof hash, hex) });
        sql_unit_int(unit, sign_in->jwt.claims.exp_s);
        add_user(actor, sign_in, unit);
        sql_unit_step(unit, &put_session, 1);
        sql_unit_text(unit, tr_span_of(sign_in->session_id));
        sql_unit_text(unit, sign_in->jwt.claims.iss);
        sql_unit_text(unit, sign_in->jwt.claims.sub);
        sql_unit_blob(unit, sign_in->refresh_hash, sizeof sign_in->refresh_hash);
        sql_unit_int(unit, wall_s(actor));
        sql_unit_int(unit, wall_s(actor) + AUTH_SESSION_LIFE_S);
    }
    submit(actor, ctx, sign_in, unit, false);
}

static void begin_refresh(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct sql_unit *unit;
    unsigned char hash[32];

    if (!read_refresh(sign_in, hash)) {
        answer_ended(actor, sign_in);
        return;
    }
    unit = sql_unit_new(0);
    if (unit != NULL) {
        new_refresh(sign_in);
        sql_unit_step(unit, &turn_session, 1);
        sql_unit_text(unit, tr_span_of(sign_in->session_id));
        sql_unit_blob(unit, hash, sizeof hash);
        sql_unit_blob(unit, sign_in->refresh_hash, sizeof sign_in->refresh_hash);
        sql_unit_int(unit, wall_s(actor) + AUTH_SESSION_LIFE_S);
        sql_unit_int(unit, wall_s(actor));
        sql_unit_step(unit, &session_user, 1);
        sql_unit_text(unit, tr_span_of(sign_in->session_id));
    }
    submit(actor, ctx, sign_in, unit, false);
}

static void begin_end(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in,
    const struct sql_statement *statement)
{
    struct sql_unit *unit;
    unsigned char hash[32];

    if (!read_refresh(sign_in, hash)) {
        answer_ended(actor, sign_in);
        return;
    }
    unit = sql_unit_new(0);
    if (unit != NULL) {
        sql_unit_step(unit, statement, SQL_ROWS_ANY);
        sql_unit_text(unit, tr_span_of(sign_in->session_id));
        sql_unit_blob(unit, hash, sizeof hash);
        sql_unit_int(unit, wall_s(actor));
    }
    submit(actor, ctx, sign_in, unit, false);
}

static void begin_me(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct sql_unit *unit = sql_unit_new(0);

    if (unit != NULL) {
        sql_unit_step(unit, &get_user, SQL_ROWS_ANY);
        sql_unit_text(unit, (struct tr_span){ sign_in->message.text, sign_in->message.text_size });
    }
    submit(actor, ctx, sign_in, unit, true);
}

/* ---- units that came back
 * ------------------------------------------------------------------------------ */

static void ended(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    struct tr_buffer answer;
    bool was_stolen = sign_in->is_second_look;

    if (sql_unit_rows(unit, 0) == 1) {
        auth_forget(actor->sessions->options.auth, sql_row_bytes(unit, 0, 0, 0));
        if (was_stolen)
            LOG(LOG_WARN, "auth", "a refresh token came twice: its session is ended",
                LOG_SPAN("user", sql_row_bytes(unit, 0, 0, 0)));
    }
    if (was_stolen) {
        answer_ended(actor, sign_in);
        return;
    }
    answer = answer_room();
    tr_buffer_text(&answer, "{}");
    answer_json(actor, sign_in, &answer);
}

static void me(struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    struct tr_buffer answer = answer_room();
    struct json_writer writer = json_writer(&answer);

    if (sql_unit_rows(unit, 0) != 1) {
        tr_buffer_free(&answer);
        answer_ended(actor, sign_in);
        return;
    }
    json_put_object(&writer, NULL);
    put_user_members(&writer, unit, 0);
    json_put_end(&writer);
    answer_json(actor, sign_in, &answer);
}

static void unit_failed(struct sessions_actor *actor, struct tr_context *ctx,
    struct sign_in *sign_in, const struct sql_unit *unit)
{
    bool missed = sql_unit_status(unit) == SQL_EROWS && sql_unit_failed_step(unit) == 0;

    if (missed && sign_in->message.kind == SESSION_EXCHANGE) {
        answer_error(actor, sign_in, 401, "TokenReplayed", "this ID token was used before");
    } else if (missed && sign_in->message.kind == SESSION_REFRESH) {
        sign_in->is_second_look = true;
        begin_end(actor, ctx, sign_in, &end_stolen);
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
        sql_unit_free(unit);
        return;
    }
    if (sql_unit_status(unit) != 0)
        unit_failed(actor, ctx, sign_in, unit);
    else if (sign_in->is_second_look || sign_in->message.kind == SESSION_LOGOUT)
        ended(actor, sign_in, unit);
    else if (sign_in->message.kind == SESSION_ME)
        me(actor, sign_in, unit);
    else
        answer_pair(actor, sign_in, unit, 1);
    sql_unit_free(unit);
}

/* ---- providers' keys
 * -------------------------------------------------------------------------------------- */

static void fetch_keys(struct sessions_actor *actor, struct tr_context *ctx, uint32_t provider)
{
    const struct session_options *options = &actor->sessions->options;
    int rc = TR_EUNSUPPORTED;

    if (actor->providers[provider].is_fetching)
        return;
    actor->providers[provider].tried_s = (uint64_t)wall_s(actor);
    if (options->client != NULL)
        rc = http_client_ask(ctx, options->client,
            &(struct http_client_request){
                .url = options->providers[provider].keys_url, .timeout_ns = TR_SECONDS(5) },
            TAG_KEYS + provider);
    actor->providers[provider].is_fetching = rc == 0;
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
    if (answer != NULL && answer->status == 200)
        (void)key_set_parse((struct tr_span){ answer->body, answer->body_size },
            &(struct key_set_options){ .skip_unknown = true }, &keys, why);
    if (keys != NULL) {
        key_set_destroy(actor->providers[provider].keys);
        actor->providers[provider].keys = keys;
        actor->providers[provider].fetched_s = (uint64_t)wall_s(actor);
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

static bool wait_for_keys(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    uint32_t provider = sign_in->message.provider;

    fetch_keys(actor, ctx, provider);
    sign_in->is_waiting = actor->providers[provider].is_fetching;
    return sign_in->is_waiting;
}

/* The key the token names; NULL if it waits for newer keys or was answered. */
static struct crypto_key *find_key(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    uint32_t provider = sign_in->message.provider;
    uint64_t now_s = (uint64_t)wall_s(actor);
    struct key_set *keys = actor->providers[provider].keys;
    struct crypto_key *key = keys == NULL ? NULL : key_set_find(keys, sign_in->jwt.kid);
    bool is_old = keys == NULL || now_s >= actor->providers[provider].fetched_s + KEYS_LIFE_S;
    bool may_fetch = keys == NULL || now_s >= actor->providers[provider].tried_s + KEYS_AGAIN_S;

    if (!sign_in->keys_were_new && (is_old || (key == NULL && may_fetch)) &&
        wait_for_keys(actor, ctx, sign_in))
        return NULL;
    if (key != NULL)
        return key;
    if (keys == NULL)
        answer_error(actor, sign_in, 503, "ProviderUnavailable",
            "the provider's keys could not be fetched: try again");
    else
        answer_refusal(actor, sign_in, JWT_KID);
    return NULL;
}

/* ---- ID tokens
 * -------------------------------------------------------------------------------------------- */

static void continue_sign_in(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct crypto_key *key = find_key(actor, ctx, sign_in);

    if (key == NULL)
        return;
    sign_in->key = crypto_key_ref(key);
    sign_in->is_working = true;
    if (tr_offload(ctx, sign_in_verify_work, sign_in, sign_in_free, TAG_VERIFY) == 0)
        return;
    sign_in->is_working = false;
    answer_error(actor, sign_in, 503, "Overloaded", "too many tokens to verify at once");
}

static void begin_exchange(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct tr_span token = { sign_in->message.text, sign_in->message.text_size };
    enum jwt_refusal refusal = jwt_parse(&sign_in->jwt, token);

    if (refusal == JWT_OK)
        refusal = sign_in_check(
            sign_in, &actor->sessions->options.providers[sign_in->message.provider], wall_s(actor));
    if (refusal == JWT_OK)
        continue_sign_in(actor, ctx, sign_in);
    else
        answer_refusal(actor, sign_in, refusal);
}

static void verified(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    sign_in->is_working = false;
    if (sign_in->refusal == JWT_OK)
        store_sign_in(actor, ctx, sign_in);
    else
        answer_refusal(actor, sign_in, sign_in->refusal);
}

/* ---- the actor
 * ---------------------------------------------------------------------------------------------- */

static enum tr_next actor_handle(void *self, struct tr_context *ctx, void *memory)
{
    static void (*const begin[])(struct sessions_actor *, struct tr_context *, struct sign_in *) = {
        [SESSION_EXCHANGE] = begin_exchange,
        [SESSION_REFRESH] = begin_refresh,
        [SESSION_ME] = begin_me,
    };
    struct session_message *message = memory;
    struct sessions_actor *actor = self;
    struct sign_in *sign_in = actor->count < SIGN_INS_MAX ? tr__calloc(sizeof *sign_in) : NULL;

    if (sign_in != NULL)
        sign_in->reply = tr_reply_take(ctx);
    if (sign_in == NULL || sign_in->reply.reply == NULL) {
        struct session_answer busy = { .status = 503, .label = "Overloaded", .text = "try again" };

        tr_reply(ctx, 0, &busy, sizeof busy);
        tr__free(sign_in);
        tr__free(message->text);
        tr__free(message->nonce);
        return TR_GO;
    }
    sign_in->message = *message;
    sign_in->number = actor->number_next++ & 0xffffff;
    sign_in->next = actor->sign_ins;
    actor->sign_ins = sign_in;
    actor->count++;
    if (message->kind == SESSION_LOGOUT)
        begin_end(actor, ctx, sign_in, &end_session);
    else
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

    (void)ctx;
    sql_client_begin(&actor->sql, actor->sessions->options.sql);
    return 0;
}

static void actor_finish(void *self)
{
    struct sessions_actor *actor = self;

    for (struct sign_in *at = actor->sign_ins, *next; at != NULL; at = next) {
        next = at->next;
        if (!at->is_working) /* the pool frees what it has */
            sign_in_free(at);
    }
    for (size_t i = 0; i < AUTH_PROVIDERS_MAX; i++)
        key_set_destroy(actor->providers[i].keys);
    if (actor->sql.sql != NULL)
        sql_client_end(&actor->sql);
    *actor = (struct sessions_actor){ .sessions = actor->sessions };
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

    tr__free(message->text);
    tr__free(message->nonce);
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

int sessions_start(
    struct tr_system *system, const struct session_options *options, struct sessions **ret_sessions)
{
    struct sessions *sessions;
    struct sessions_actor actor = { 0 };
    int rc;

    if (options->provider_count > AUTH_PROVIDERS_MAX || options->key == NULL)
        return TR_EINVAL;
    sessions = tr__calloc(sizeof *sessions);
    if (sessions == NULL)
        return TR_ENOMEM;
    sessions->options = *options;
    sessions->system = system;
    sessions->env = tr_system_env(system);
    sessions->me = (struct auth_demand){ .auth = options->auth, .session = true };
    sessions->anyone =
        (struct auth_demand){ .auth = options->auth, .session = true, .anonymous = true };
    actor.sessions = sessions;
    rc = tr_spawn(system, &sessions_type, &actor,
        &(struct tr_spawn_options){ .name = "sessions",
            .owner = "auth",
            .ret_done = &sessions->done,
            .box = { .capacity = 1024, .full = TR_FULL_FAIL } },
        &sessions->actor);
    if (rc < 0) {
        tr__free(sessions);
        return rc;
    }
    *ret_sessions = sessions;
    return 0;
}

void sessions_stop(struct sessions **sessions)
{
    if (*sessions == NULL)
        return;
    tr_sender_drop(&(*sessions)->actor);
    (void)tr_done_wait(&(*sessions)->done, NULL, NULL, 0);
    tr__free(*sessions);
    *sessions = NULL;
}
