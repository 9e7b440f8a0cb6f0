/* SPDX-License-Identifier: Apache-2.0 */
/* mx_verify.h: engines that verify each other, for tests of matrix/client/verify: a post office with
 * one queue, which a case may stop, change and add to, and users who say yes. */
#ifndef TEST_LIB_MX_VERIFY_H
#define TEST_LIB_MX_VERIFY_H

#include <stdio.h>

#include "json/json_write.h"
#include "matrix/client/olm.h"
#include "mx_client.h"

enum { MX_VERIFY_ENGINES = 3, MX_VERIFY_LETTERS = 200 };
#define MX_VERIFY_PREFIX "m.key.verification."

struct mx_verify_engine {
    struct mxclient client;
    struct sql *sql; /* NULL: units are not run */
    bool is_slow;    /* its user answers only when no message is under way */
    bool is_silent;  /* its user does not answer */
    bool compares;
    struct mxclient_verify_news news; /* the last one */
    struct mx_sas_code seen;
};

struct mx_verify_letter {
    int from;
    char type[64];
    char user[64];
    char device[64];
    struct buffer content;
};

struct mx_verify {
    struct mx_verify_engine engines[MX_VERIFY_ENGINES];
    int engine_count;
    struct mx_verify_letter letters[MX_VERIFY_LETTERS];
    int first;
    int count; /* letters so far, delivered ones included */
    int64_t now_ms;
    char transaction[MXCLIENT_VERIFY_ID_CHARS + 1];
};

/* ---- engines ---------------------------------------------------------------------------------- */

static inline struct mxclient_place mx_verify_place(struct mx_verify *stage, int of)
{
    const struct mxclient_session *session = &stage->engines[of].client.session;

    return (struct mxclient_place){ mxclient_span(&session->user_id),
        mxclient_span(&session->device_id) };
}

static inline void mx_verify_commit(struct mx_verify_engine *engine, struct sql_unit *unit)
{
    int rc = 0;

    if (engine->client.is_account_changed) /* as the sync does */
        CHECK_EQ_INT(mxclient_session_put(&engine->client.session, unit), 0);
    engine->client.is_account_changed = false;
    if (engine->sql != NULL)
        rc = sql_write_wait(engine->sql, unit);
    CHECK_MSG(rc == 0 || rc == TR_EINVAL, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    sql_unit_destroy(unit);
}

/* Tell an engine the devices of a user, as the server would. `more` are further members of the
 * answer, each with a comma before it. */
static inline void mx_verify_query(
    struct mx_verify *stage, int of, const char *user, const char *devices, const char *more)
{
    struct mxclient *client = &stage->engines[of].client;
    struct mxclient_outcome done = { .verdict = MXCLIENT_DONE };
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    struct buffer text = { 0 };
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(mxclient_devices_track(&client->devices, span_of(user), unit), 0);
    (void)buffer_format(&text, "{\"changed\":[\"%s\"]}", user);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), 0), 0);
    mxclient_devices_changed(&client->devices, json_root(&doc), unit);
    CHECK(mxclient_devices_query(&client->devices, stage->now_ms, &request));
    mxclient_request_fini(&request);
    buffer_clear(&text);
    (void)buffer_format(&text, "{\"device_keys\":{\"%s\":{%s}}%s}", user, devices, more);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), 0), 0);
    CHECK_EQ_INT(
        mxclient_devices_answered(&client->devices, &done, json_root(&doc), stage->now_ms, unit),
        0);
    mx_verify_commit(&stage->engines[of], unit);
    buffer_free(&text);
    json_doc_free(&doc);
}

/* Append the devices of a user, as members. */
static inline void mx_verify_put_devices(
    struct mx_verify *stage, const char *user, struct buffer *out)
{
    for (int i = 0; i < stage->engine_count; i++) {
        struct mxclient_session *session = &stage->engines[i].client.session;

        if (!span_is(mxclient_span(&session->user_id), user))
            continue;
        (void)buffer_format(out, "%s\"%.*s\":", out->size == 0 ? "" : ",",
            (int)session->device_id.size, session->device_id.bytes);
        CHECK_EQ_INT(mxclient_keys_device(session, out), 0);
    }
    (void)buffer_append(out, "", 1);
}

/* Everybody learns the devices of everybody. */
static inline void mx_verify_meet(struct mx_verify *stage)
{
    for (int i = 0; i < stage->engine_count; i++)
        for (int k = 0; k < stage->engine_count; k++) {
            const struct buffer *id = &stage->engines[k].client.session.user_id;
            struct buffer devices = { 0 };
            char user[64];

            snprintf(user, sizeof user, "%.*s", (int)id->size, id->bytes);
            mx_verify_put_devices(stage, user, &devices);
            mx_verify_query(stage, i, user, devices.bytes, "");
            buffer_free(&devices);
        }
}

static inline void mx_verify_add(struct mx_verify *stage, const char *user)
{
    struct mx_verify_engine *engine = &stage->engines[stage->engine_count++];

    CHECK(stage->engine_count <= MX_VERIFY_ENGINES);
    mx_client_discover(&engine->client.session);
    CHECK_EQ_INT(mx_client_login(&engine->client.session, user, "", 0), 0);
    mxclient_start(&engine->client);
}

static inline void mx_verify_init(struct mx_verify *stage, const char *first, const char *second)
{
    *stage = (struct mx_verify){ .now_ms = 1800000000000 };
    mx_verify_add(stage, first);
    mx_verify_add(stage, second);
    mx_verify_meet(stage);
}

static inline void mx_verify_fini(struct mx_verify *stage)
{
    for (int i = 0; i < stage->engine_count; i++)
        mxclient_fini(&stage->engines[i].client);
    for (int i = 0; i < stage->count; i++)
        buffer_free(&stage->letters[i].content);
}

/* Return the device of one engine as another knows it. */
static inline struct mxclient_device *mx_verify_device(struct mx_verify *stage, int of, int other)
{
    return mxclient_devices_find(&stage->engines[of].client.devices, mx_verify_place(stage, other));
}

static inline bool mx_verify_trusts(struct mx_verify *stage, int of, int other)
{
    return mx_verify_device(stage, of, other)->trust == MXSTORE_VERIFIED;
}

/* ---- letters ---------------------------------------------------------------------------------- */

/* Add a letter to the end of the queue; the caller writes its content. */
static inline struct mx_verify_letter *mx_verify_letter(
    struct mx_verify *stage, int from, const char *kind, struct mxclient_place to)
{
    struct mx_verify_letter *letter = &stage->letters[stage->count++];

    CHECK(stage->count <= MX_VERIFY_LETTERS);
    letter->from = from;
    snprintf(letter->type, sizeof letter->type, MX_VERIFY_PREFIX "%s", kind);
    snprintf(letter->user, sizeof letter->user, "%.*s", (int)to.user_id.size, to.user_id.at);
    snprintf(
        letter->device, sizeof letter->device, "%.*s", (int)to.device_id.size, to.device_id.at);
    return letter;
}

/* Take the messages that an engine wants to send; the server answers each. */
static inline void mx_verify_collect(struct mx_verify *stage, int from)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;

    while (mxclient_verify_next(&stage->engines[from].client, unit, &request)) {
        struct json_doc doc = { 0 };
        struct span rest = mxclient_span(&request.target), piece, type = { 0 };

        CHECK_EQ_INT(request.call, MXCLIENT_TO_DEVICE);
        for (int i = 0; i < 6; i++)
            CHECK(span_cut(&rest, '/', i == 5 ? &type : &piece));
        CHECK(span_starts(type, MX_VERIFY_PREFIX));
        type.at += strlen(MX_VERIFY_PREFIX);
        type.size -= strlen(MX_VERIFY_PREFIX);
        CHECK_EQ_INT(json_parse_copy(&doc, mxclient_span(&request.body), JSON_UNIQUE_KEYS), 0);
        for (struct json_iter user = json_iterate(json_get(json_root(&doc), "messages"));
             json_next(&user);)
            for (struct json_iter device = json_iterate(user.value); json_next(&device);) {
                char kind[32];
                struct mx_verify_letter *letter;
                struct json_writer writer;

                snprintf(kind, sizeof kind, "%.*s", (int)type.size, type.at);
                letter = mx_verify_letter(
                    stage, from, kind, (struct mxclient_place){ user.key, device.key });
                writer = json_writer(&letter->content);
                json_put_value(&writer, NULL, device.value);
            }
        json_doc_free(&doc);
        mxclient_request_fini(&request);
    }
    mx_verify_commit(&stage->engines[from], unit);
}

static inline void mx_verify_give(
    struct mx_verify *stage, const struct mx_verify_letter *letter, int to)
{
    const struct mxclient_place from = mx_verify_place(stage, letter->from);
    struct sql_unit *unit = sql_unit_create(0);
    struct buffer event = { 0 };
    struct json_doc doc = { 0 };

    (void)buffer_format(&event, "{\"type\":\"%s\",\"sender\":\"%.*s\",\"content\":%.*s}",
        letter->type, (int)from.user_id.size, from.user_id.at, (int)letter->content.size,
        letter->content.bytes);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&event), 0), 0);
    CHECK_EQ_INT(
        mxclient_to_device_take(&stage->engines[to].client, json_root(&doc), stage->now_ms, unit),
        0);
    mx_verify_commit(&stage->engines[to], unit);
    mx_verify_collect(stage, to);
    json_doc_free(&doc);
    buffer_free(&event);
}

/* Give an engine a message that its peer did not write. */
static inline void mx_verify_forge(
    struct mx_verify *stage, int from, int to, const char *kind, struct span content)
{
    struct mx_verify_letter letter = { .from = from };

    snprintf(letter.type, sizeof letter.type, MX_VERIFY_PREFIX "%s", kind);
    (void)buffer_span(&letter.content, content);
    mx_verify_give(stage, &letter, to);
    buffer_free(&letter.content);
}

/* Return the next letter, or NULL. */
static inline struct mx_verify_letter *mx_verify_peek(struct mx_verify *stage)
{
    return stage->first == stage->count ? NULL : &stage->letters[stage->first];
}

/* Return the engine that a letter is for; -1: none. */
static inline int mx_verify_receiver(struct mx_verify *stage, const struct mx_verify_letter *letter)
{
    for (int i = 0; i < stage->engine_count; i++) {
        struct mxclient_place place = mx_verify_place(stage, i);

        if (span_is(place.user_id, letter->user) && span_is(place.device_id, letter->device))
            return i;
    }
    return -1;
}

/* Deliver the next letter. */
static inline void mx_verify_deliver(struct mx_verify *stage)
{
    struct mx_verify_letter *letter = &stage->letters[stage->first++];

    for (int i = 0; i < stage->engine_count; i++) {
        struct mxclient_place place = mx_verify_place(stage, i);

        if (span_is(place.user_id, letter->user) &&
            (span_is(place.device_id, letter->device) || strcmp(letter->device, "*") == 0))
            mx_verify_give(stage, letter, i);
    }
}

/* ---- users ------------------------------------------------------------------------------------ */

static inline int mx_verify_act_on(
    struct mx_verify *stage, int of, const char *transaction, enum mxclient_verify_act act)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_verify_act(
        &stage->engines[of].client, span_of(transaction), act, stage->now_ms, unit);

    mx_verify_commit(&stage->engines[of], unit);
    mx_verify_collect(stage, of);
    return rc;
}

static inline int mx_verify_act(struct mx_verify *stage, int of, enum mxclient_verify_act act)
{
    return mx_verify_act_on(stage, of, stage->transaction, act);
}

static inline void mx_verify_request(struct mx_verify *stage, int of, struct mxclient_place place)
{
    struct sql_unit *unit = sql_unit_create(0);

    CHECK_EQ_INT(mxclient_verify_request(
                     &stage->engines[of].client, place, stage->now_ms, unit, stage->transaction),
        0);
    mx_verify_commit(&stage->engines[of], unit);
    mx_verify_collect(stage, of);
}

static inline void mx_verify_tick(struct mx_verify *stage, int of)
{
    struct sql_unit *unit = sql_unit_create(0);

    CHECK_EQ_INT(mxclient_verify_tick(&stage->engines[of].client, stage->now_ms, unit), 0);
    mx_verify_commit(&stage->engines[of], unit);
    mx_verify_collect(stage, of);
}

/* The user sees the news and accepts a request. */
static inline void mx_verify_look(struct mx_verify *stage, int of)
{
    struct mx_verify_engine *engine = &stage->engines[of];

    while (mxclient_verify_news(&engine->client, &engine->news)) {
        if (engine->news.step == MXCLIENT_VERIFY_COMPARE) {
            engine->seen = engine->news.code;
            engine->compares = true;
        }
        if (engine->news.step == MXCLIENT_VERIFY_ASKED && !engine->is_silent)
            CHECK_EQ_INT(
                mx_verify_act_on(stage, of, engine->news.transaction_id, MXCLIENT_VERIFY_ACCEPT),
                0);
    }
}

static inline bool mx_verify_same(const struct mx_sas_code *a, const struct mx_sas_code *b)
{
    return memcmp(a->emoji, b->emoji, sizeof a->emoji) == 0 &&
           memcmp(a->decimals, b->decimals, sizeof a->decimals) == 0;
}

/* The user reads the strings to the user of the other device and says whether they are the same. */
static inline void mx_verify_compare(struct mx_verify *stage, int of)
{
    struct mx_verify_engine *engine = &stage->engines[of];

    for (int i = 0; i < stage->engine_count; i++) {
        struct mx_verify_engine *other = &stage->engines[i];

        if (i == of || other->seen.decimals[0] == 0 || !engine->compares || engine->is_silent)
            continue;
        engine->compares = false;
        (void)mx_verify_act_on(stage, of, engine->news.transaction_id,
            mx_verify_same(&engine->seen, &other->seen) ? MXCLIENT_VERIFY_MATCH
                                                        : MXCLIENT_VERIFY_MISMATCH);
        mx_verify_look(stage, of);
    }
}

static inline void mx_verify_answer_all(struct mx_verify *stage)
{
    for (int i = 0; i < stage->engine_count; i++)
        mx_verify_look(stage, i);
    for (int i = 0; i < stage->engine_count; i++)
        if (!stage->engines[i].is_slow || stage->first == stage->count)
            mx_verify_compare(stage, i);
}

/* Deliver letters and let users answer until `letters` were delivered in all, or none is left. */
static inline void mx_verify_run(struct mx_verify *stage, int letters)
{
    mx_verify_answer_all(stage);
    while (stage->first < stage->count && stage->first < letters) {
        mx_verify_deliver(stage);
        mx_verify_answer_all(stage);
    }
}

static inline void mx_verify_check_failed(
    struct mx_verify *stage, int of, const char *code, bool is_by_peer, const char *what)
{
    const struct mxclient_verify_news *news = &stage->engines[of].news;

    CHECK_MSG(news->step == MXCLIENT_VERIFY_CANCELLED, "%s: engine %d is at %s", what, of,
        mxclient_verify_step_text(news->step));
    CHECK_MSG(strcmp(news->failure, code) == 0, "%s: engine %d failed with %s, not %s: %s", what,
        of, news->failure, code, news->reason);
    CHECK_MSG(news->is_by_peer == is_by_peer, "%s: engine %d", what, of);
}

#endif
