/* SPDX-License-Identifier: Apache-2.0 */
/* session_sign_in.c: the requests of the sessions actor, from message to answer.
 *
 *   exchange ─▶ check ─▶ find key ─▶ pool: signature ─▶ unit: create ──▶ answer
 *                          │  ▲
 *                          ▼  │
 *                       wait for a fetch
 *   refresh ───────────────────────────────────────────▶ unit: rotate ──▶ answer
 *                                                           │ used before
 *                                                           ▼
 *   logout ────────────────────────────────────────────▶ unit: end ─────▶ answer
 *   me ────────────────────────────────────────────────▶ unit: find ────▶ answer */
#include <stdio.h>
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json_write.h"
#include "support/log.h"

static const char out_of_memory[] = "The server is out of memory; try again.";

/* ---- answers -------------------------------------------------------------------------------- */

static void sign_in_release(struct sessions_actor *actor, struct sign_in *sign_in)
{
    struct sign_in **link = &actor->sign_ins;

    tr_assert(actor->count > 0);
    while (*link != sign_in)
        link = &(*link)->next;
    *link = sign_in->next;
    actor->count--;
    sign_in_unref(sign_in);
}

void sign_in_answer_error(struct sessions_actor *actor, struct sign_in *sign_in, unsigned status,
    const char *label, const char *text)
{
    union {
        struct session_answer answer;
        char bytes[sizeof(struct session_answer) + JWT_TEXT_SIZE];
    } room = { .answer = { .status = status, .label = label } };
    size_t size = strlen(text) + 1;

    tr_assert(status >= 400);
    tr_assert(size <= JWT_TEXT_SIZE);
    memcpy(room.answer.body, text, size);
    tr_reply_send(&sign_in->reply, 0, &room, offsetof(struct session_answer, body) + size);
    sign_in_release(actor, sign_in);
}

static void answer_refusal(
    struct sessions_actor *actor, struct sign_in *sign_in, enum jwt_refusal refusal)
{
    char text[JWT_TEXT_SIZE];

    if (refusal == JWT_NO_MEMORY) {
        sign_in_answer_error(actor, sign_in, 503, "Overloaded", out_of_memory);
        return;
    }
    jwt_explain(refusal, &sign_in->jwt.claims, NULL, text);
    sign_in_answer_error(actor, sign_in, 401, jwt_refusal_label(refusal), text);
}

static void answer_ended(struct sessions_actor *actor, struct sign_in *sign_in)
{
    sign_in_answer_error(actor, sign_in, 401, "SessionEnded", "The session ended; sign in again.");
}

/* Start the buffer of a 200 answer: a struct session_answer, then the JSON. */
static struct buffer answer_room(void)
{
    struct buffer answer = { .size_max = 32768 };

    buffer_append(&answer, &(struct session_answer){ 0 }, offsetof(struct session_answer, body));
    return answer;
}

static void answer_json(
    struct sessions_actor *actor, struct sign_in *sign_in, struct buffer *answer)
{
    struct session_answer head = { .status = 200 };
    const size_t head_size = offsetof(struct session_answer, body);

    if (answer->failed != 0) {
        sign_in_answer_error(actor, sign_in, 503, "Overloaded", out_of_memory);
        buffer_free(answer);
        return;
    }
    head.body_size = (uint32_t)(answer->size - head_size);
    memcpy(answer->bytes, &head, head_size);
    tr_reply_send(&sign_in->reply, 0, answer->bytes, answer->size);
    buffer_free(answer);
    sign_in_release(actor, sign_in);
}

static void put_user_members(struct json_writer *writer, const struct sql_unit *unit, uint32_t step)
{
    json_put_string(writer, "id", sql_row_bytes(unit, step, 0, 0));
    if (!sql_row_is_null(unit, step, 0, 1))
        json_put_string(writer, "email", sql_row_bytes(unit, step, 0, 1));
    json_put_string(writer, "role", sql_row_bytes(unit, step, 0, 2));
}

static void put_tokens(struct sessions_actor *actor, struct sign_in *sign_in,
    struct json_writer *writer, struct span user)
{
    const struct session_options *options = &actor->sessions->options;
    struct span us = span_of(options->service_did);
    struct buffer token = { 0 };
    int64_t now_s = sessions_wall_s(actor);
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

static void answer_tokens(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    struct buffer answer = answer_room();
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    put_tokens(actor, sign_in, &writer, sql_row_bytes(unit, SESSION_USER_STEP, 0, 0));
    json_put_object(&writer, "user");
    put_user_members(&writer, unit, SESSION_USER_STEP);
    json_put_end(&writer);
    json_put_end(&writer);
    answer_json(actor, sign_in, &answer);
}

/* ---- units ---------------------------------------------------------------------------------- */

enum unit_kind { UNIT_READ, UNIT_WRITE };

/* Submit the sign-in's unit, and own it. NULL counts as out of memory. */
static void sign_in_submit(struct sessions_actor *actor, struct tr_context *ctx,
    struct sign_in *sign_in, struct sql_unit *unit, enum unit_kind kind)
{
    struct sql_submit_options options = { .tag = SESSION_TAG_UNIT + sign_in->number };
    int rc = TR_ENOMEM;

    if (unit != NULL)
        rc = kind == UNIT_READ ? sql_read(ctx, &actor->sql, unit, &options)
                               : sql_write(ctx, &actor->sql, unit, &options);
    if (rc == 0)
        return;
    sql_unit_destroy(unit);
    sign_in_answer_error(actor, sign_in, 503, "Overloaded", "The database is busy; try again.");
}

static const char *role_of(const struct sessions_actor *actor, struct span email)
{
    const char *const *admins = actor->sessions->options.admins;

    for (size_t i = 0; email.at != NULL && admins != NULL && admins[i] != NULL; i++)
        if (span_is_nocase(email, admins[i]))
            return "admin";
    return "user";
}

static void fill_random_id(char id[REFRESH_ID_CHARS + 1])
{
    unsigned char random[REFRESH_ID_CHARS / 2];

    crypto_random_fill(random, sizeof random);
    id[crypto_hex_encode(random, sizeof random, id)] = '\0';
}

/* The ID token serves for one session: a replay of it gets none. */
static void store_session(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    char id[REFRESH_ID_CHARS + 1], user_id[REFRESH_ID_CHARS + 1], token_id[64];
    struct sql_unit *unit = sql_unit_create(0);
    unsigned char hash[32];

    fill_random_id(id);
    fill_random_id(user_id);
    if (unit == NULL ||
        refresh_token_init(&sign_in->refresh, actor->sessions->options.key, id) < 0) {
        sql_unit_destroy(unit);
        sign_in_submit(actor, ctx, sign_in, NULL, UNIT_WRITE);
        return;
    }
    crypto_sha256(sign_in->message.text, sign_in->message.text_size, hash);
    session_store_create(
        unit, &(struct session_row){ .id = id,
                  .refresh_hash = sign_in->refresh.hash,
                  .user_id = user_id,
                  .issuer = sign_in->jwt.claims.iss,
                  .subject = sign_in->jwt.claims.sub,
                  .email = sign_in->email,
                  .role = role_of(actor, sign_in->email),
                  .token_id = { token_id, crypto_hex_encode(hash, sizeof hash, token_id) },
                  .token_expires_s = sign_in->jwt.claims.exp_s,
                  .now_s = sessions_wall_s(actor),
                  .expires_s = sessions_wall_s(actor) + AUTH_SESSION_LIFE_S });
    sign_in_submit(actor, ctx, sign_in, unit, UNIT_WRITE);
}

/* Parse the message's refresh token. False: this server did not make it, and the request was answered.
 */
static bool read_refresh_token(
    struct sessions_actor *actor, struct sign_in *sign_in, struct refresh_token *token)
{
    struct span text = { sign_in->message.text, sign_in->message.text_size };

    if (refresh_token_parse(token, actor->sessions->options.key, text))
        return true;
    answer_ended(actor, sign_in);
    return false;
}

static void start_refresh(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    char id[REFRESH_ID_CHARS + 1];
    struct refresh_token old;
    struct sql_unit *unit;

    if (!read_refresh_token(actor, sign_in, &old))
        return;
    memcpy(id, old.text, REFRESH_ID_CHARS);
    id[REFRESH_ID_CHARS] = '\0';
    unit = sql_unit_create(0);
    if (unit == NULL ||
        refresh_token_init(&sign_in->refresh, actor->sessions->options.key, id) < 0) {
        sql_unit_destroy(unit);
        sign_in_submit(actor, ctx, sign_in, NULL, UNIT_WRITE);
        return;
    }
    session_store_rotate(unit, &(struct session_rotation){ .id = id,
                                   .old_hash = old.hash,
                                   .new_hash = sign_in->refresh.hash,
                                   .now_s = sessions_wall_s(actor),
                                   .expires_s = sessions_wall_s(actor) + AUTH_SESSION_LIFE_S });
    sign_in_submit(actor, ctx, sign_in, unit, UNIT_WRITE);
}

static void start_logout(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct refresh_token token;
    struct sql_unit *unit;

    if (!read_refresh_token(actor, sign_in, &token))
        return;
    unit = sql_unit_create(0);
    if (unit != NULL)
        session_store_end(unit, refresh_token_session(&token), sessions_wall_s(actor));
    sign_in_submit(actor, ctx, sign_in, unit, UNIT_WRITE);
}

static void start_me(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL)
        session_store_find_user(
            unit, (struct span){ sign_in->message.text, sign_in->message.text_size });
    sign_in_submit(actor, ctx, sign_in, unit, UNIT_READ);
}

/* ---- after the unit ------------------------------------------------------------------------- */

static void session_ended(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    struct buffer answer;

    if (sql_unit_rows(unit, 0) == 1) {
        auth_forget(actor->sessions->options.auth, sql_row_bytes(unit, 0, 0, 0));
        if (sign_in->token_was_used_twice)
            LOG(LOG_WARN, "auth", "A refresh token was used twice; its session ended.",
                LOG_SPAN("user", sql_row_bytes(unit, 0, 0, 0)));
    }
    if (sign_in->token_was_used_twice) {
        answer_ended(actor, sign_in);
        return;
    }
    answer = answer_room();
    buffer_text(&answer, "{}");
    answer_json(actor, sign_in, &answer);
}

static void answer_me(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
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

static void session_stored(
    struct sessions_actor *actor, struct sign_in *sign_in, const struct sql_unit *unit)
{
    if (sign_in->message.kind == SESSION_EXCHANGE) /* the user's role may have changed */
        auth_forget(actor->sessions->options.auth, sql_row_bytes(unit, SESSION_USER_STEP, 0, 0));
    answer_tokens(actor, sign_in, unit);
}

static void unit_failed(struct sessions_actor *actor, struct tr_context *ctx,
    struct sign_in *sign_in, const struct sql_unit *unit)
{
    bool missed = sql_unit_status(unit) == SQL_EROWS && sql_unit_failed_step(unit) == 0;

    if (missed && sign_in->message.kind == SESSION_EXCHANGE) {
        sign_in_answer_error(actor, sign_in, 401, "TokenReplayed",
            "The ID token was used before; get a new one from the provider.");
    } else if (missed && sign_in->message.kind == SESSION_REFRESH) {
        /* This server made the token, and it is not the current one: end the session. */
        sign_in->token_was_used_twice = true;
        start_logout(actor, ctx, sign_in);
    } else if (sql_unit_status(unit) == SQL_EUNKNOWN && sign_in->message.kind != SESSION_ME) {
        sign_in_answer_error(actor, sign_in, 504, NULL, "");
    } else {
        sign_in_answer_error(actor, sign_in, 503, "Overloaded", "The database is busy; try again.");
    }
}

void sessions_unit_done(
    struct sessions_actor *actor, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&actor->sql, event);
    struct sign_in *sign_in = actor->sign_ins;

    while (sign_in != NULL && sign_in->number + SESSION_TAG_UNIT != event->tag)
        sign_in = sign_in->next;
    if (unit == NULL || sign_in == NULL) {
        sql_unit_destroy(unit);
        return;
    }
    if (sql_unit_status(unit) != 0)
        unit_failed(actor, ctx, sign_in, unit);
    else if (sign_in->token_was_used_twice || sign_in->message.kind == SESSION_LOGOUT)
        session_ended(actor, sign_in, unit);
    else if (sign_in->message.kind == SESSION_ME)
        answer_me(actor, sign_in, unit);
    else
        session_stored(actor, sign_in, unit);
    sql_unit_destroy(unit);
}

/* ---- ID tokens ------------------------------------------------------------------------------ */

void sign_in_resume(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct crypto_key *key = sign_in_find_key(actor, ctx, sign_in);

    if (key == NULL)
        return;
    tr_assert(sign_in->key == NULL);
    tr_assert(!sign_in->is_waiting);
    sign_in->key = key;
    atomic_fetch_add_explicit(&sign_in->holders, 1, memory_order_relaxed);
    if (tr_offload(ctx, sign_in_verify_work, sign_in, sign_in_unref, SESSION_TAG_VERIFY) == 0)
        return;
    sign_in_unref(sign_in);
    sign_in_answer_error(
        actor, sign_in, 503, "Overloaded", "The server verifies too many tokens now; try again.");
}

static void start_exchange(
    struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    struct span token = { sign_in->message.text, sign_in->message.text_size };
    const struct session_provider *provider =
        &actor->sessions->options.providers[sign_in->message.provider];
    enum jwt_refusal refusal = jwt_parse(&sign_in->jwt, token);
    struct sign_in_refusal why;

    if (refusal != JWT_OK)
        answer_refusal(actor, sign_in, refusal);
    else if (!sign_in_check(sign_in, provider, sessions_wall_s(actor), &why))
        sign_in_answer_error(actor, sign_in, 401, why.label, why.text);
    else
        sign_in_resume(actor, ctx, sign_in);
}

void sign_in_verified(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    tr_assert(sign_in->key != NULL);
    sign_in_unref(sign_in); /* the pool's reference; the list holds another */
    if (sign_in->refusal == JWT_OK)
        store_session(actor, ctx, sign_in);
    else
        answer_refusal(actor, sign_in, sign_in->refusal);
}

void sign_in_start(struct sessions_actor *actor, struct tr_context *ctx, struct sign_in *sign_in)
{
    static void (*const start[])(struct sessions_actor *, struct tr_context *, struct sign_in *) = {
        [SESSION_EXCHANGE] = start_exchange,
        [SESSION_REFRESH] = start_refresh,
        [SESSION_LOGOUT] = start_logout,
        [SESSION_ME] = start_me,
    };

    tr_assert((size_t)sign_in->message.kind < sizeof start / sizeof start[0]);
    start[sign_in->message.kind](actor, ctx, sign_in);
}
