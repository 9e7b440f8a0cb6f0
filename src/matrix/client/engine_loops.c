/* SPDX-License-Identifier: Apache-2.0 */
/* engine_loops.c: how each loop starts its request and takes the outcome. */
#include "base/assert.h"
#include "matrix/client/engine_private.h"
#include "matrix/client/key_request.h"
#include "matrix/client/olm.h"
#include "matrix/client/sync.h"
#include "matrix/client/timeline.h"
#include "support/log.h"

/* The request of a loop is written: ask after the COMMIT. One that is over a limit counts as refused:
 * it ends like any other request, and the engine goes on. */
static int loop_ready(struct engine_loop *loop)
{
    int rc = mxclient_request_error(&loop->request);

    tr_assert(loop->state == LOOP_IDLE);
    if (rc == TR_ELIMIT) {
        loop->answer = (struct mxengine_answer){ .failed = TR_ETOOBIG };
        loop->state = LOOP_ANSWERED;
        return 0;
    }
    if (rc != 0)
        mxclient_request_fini(&loop->request);
    else
        loop->state = LOOP_READY;
    return rc;
}

/* Start again after a pause that grows. */
static void loop_back_off(struct engine *engine, struct engine_loop *loop)
{
    uint64_t wait_ms = (uint64_t)1000 << (loop->failures < 6 ? loop->failures : 6);

    loop->failures++;
    loop->is_wanted = true;
    loop->due_ns = engine_in_ns(engine, wait_ms > ENGINE_PAUSE_MS ? ENGINE_PAUSE_MS : wait_ms);
}

/* ---- session ---------------------------------------------------------------------------------- */

/* Write the request of a login: of a job's, or with the password that is kept. */
static int session_write_login(struct engine *engine)
{
    struct mxclient_login login = { .device_name = SPAN("troupe") };

    login.user = mxclient_span(&engine->user);
    if (engine->password.size > 0)
        login.password = mxclient_span(&engine->password);
    else if (engine->login != NULL)
        login.token = engine_arg(engine->login, MXENGINE_TOKEN);
    return mxclient_session_login(
        &engine->client.session, &login, &engine->loops[LOOP_SESSION].request);
}

static int session_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_SESSION];
    struct mxclient_session *session = &engine->client.session;
    bool has_login = engine->login != NULL || engine->password.size > 0;
    int rc = 0;

    (void)unit;
    if (session->state == MXCLIENT_NEW && engine->login != NULL)
        rc = mxclient_session_discover(session, engine_arg(engine->login, MXENGINE_URL));
    if (rc == 0 && has_login &&
        (session->state == MXCLIENT_SIGNED_OUT || session->state == MXCLIENT_SOFT_OUT)) {
        rc = session_write_login(engine);
        if (rc == 0)
            return loop_ready(loop);
    }
    if (rc != 0) {
        engine_job_end(&engine->login, rc);
        return rc == TR_ENOMEM ? rc : 0;
    }
    return mxclient_session_next(session, &loop->request) ? loop_ready(loop) : 0;
}

/* Say which answer ended a login. */
static void session_explain(
    enum mxclient_call call, const struct mxclient_outcome *outcome, struct mxengine_job *login)
{
    if (outcome->verdict != MXCLIENT_DONE)
        mxclient_outcome_explain(outcome, &login->id);
    else
        (void)buffer_format(&login->id,
            "Its answer to %s is not as the Matrix specification has it.",
            mxclient_call_rules[call].path);
}

/* A failed login ends its job; a wrong password is not tried again. */
static void session_on_failure(
    struct engine *engine, enum mxclient_call call, const struct mxclient_outcome *outcome, int rc)
{
    struct engine_loop *loop = &engine->loops[LOOP_SESSION];

    engine->status.error = rc;
    if (engine->login != NULL)
        session_explain(call, outcome, engine->login);
    if (call == MXCLIENT_LOGIN && rc == TR_EACCES)
        mx_wipe_buffer(&engine->password);
    engine_job_end(&engine->login, rc);
    if (call == MXCLIENT_LOGOUT)
        engine_job_end(&engine->logout, rc);
    loop_back_off(engine, loop);
}

static int session_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_SESSION];
    struct mxclient_session *session = &engine->client.session;
    enum mxclient_call call = loop->request.call;
    int rc =
        mxclient_session_answered(session, &loop->request, outcome, body, engine_token_ms(engine));

    loop->is_wanted = true;
    if (rc == TR_ENOMEM)
        return rc;
    if (rc != 0)
        session_on_failure(engine, call, outcome, rc);
    else
        loop->failures = 0;
    if (session->state == MXCLIENT_ACTIVE && engine->client.keys.session == NULL)
        mxclient_start(&engine->client);
    if (session->state == MXCLIENT_ACTIVE && rc == 0) {
        engine->unit_job = engine->login;
        engine->login = NULL;
        engine_want_all(engine);
    }
    if (session->state == MXCLIENT_ENDED && engine->logout != NULL) {
        engine->unit_job = engine->logout;
        engine->logout = NULL;
    }
    return session->state == MXCLIENT_ACTIVE || session->state == MXCLIENT_SOFT_OUT ||
                   session->state == MXCLIENT_ENDED
               ? mxclient_session_put(session, unit)
               : 0;
}

/* ---- filter and sync -------------------------------------------------------------------------- */

static bool sync_has_filter(const struct engine *engine)
{
    return engine->is_filter_refused || engine->client.session.filter_id.size > 0;
}

static int filter_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_FILTER];
    struct span user_id = mxclient_span(&engine->client.session.user_id);

    (void)unit;
    if (sync_has_filter(engine))
        return 0;
    mxclient_request_init(&loop->request, MXCLIENT_FILTER, &user_id);
    (void)buffer_text(&loop->request.body,
        "{\"presence\":{\"types\":[]},\"account_data\":{\"types\":[]},\"room\":{"
        "\"ephemeral\":{\"types\":[]},\"account_data\":{\"types\":[]},"
        "\"state\":{\"lazy_load_members\":true},"
        "\"timeline\":{\"limit\":50,\"lazy_load_members\":true}}}");
    return loop_ready(loop);
}

/* Without a filter the answers are larger, and as good. */
static int filter_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct mxclient_session *session = &engine->client.session;
    struct span id;
    int rc;

    engine->loops[LOOP_SYNC].is_wanted = true;
    if (outcome->verdict != MXCLIENT_DONE || !mxclient_read_id(json_get(body, "filter_id"), &id)) {
        engine->is_filter_refused = true;
        return 0;
    }
    buffer_clear(&session->filter_id);
    rc = buffer_span(&session->filter_id, id);
    return rc != 0 ? rc : mxclient_session_put(session, unit);
}

static int sync_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_SYNC];

    (void)unit;
    if (!sync_has_filter(engine)) {
        engine->loops[LOOP_FILTER].is_wanted = true;
        return 0;
    }
    mxclient_sync_request(&engine->client, engine->phase != ENGINE_SYNCED, &loop->request);
    return loop_ready(loop);
}

/* An answer over the limit stays so until rooms are left. */
static void sync_on_too_big(struct engine *engine)
{
    struct engine_loop *loop = &engine->loops[LOOP_SYNC];

    log_write(LOG_ERROR, "matrix", "sync-too-large",
        (const struct log_field[]){
            LOG_INT("limitBytes", (int64_t)mxclient_call_rules[MXCLIENT_SYNC].answer_bytes_max) },
        1);
    loop->is_wanted = true;
    loop->due_ns = engine_in_ns(engine, ENGINE_TOO_BIG_MS);
}

/* The server may have forgotten the filter: make it again, later. */
static int sync_on_refused(struct engine *engine, const struct mxclient_outcome *outcome)
{
    engine->status.sync_error = outcome->error != 0 ? outcome->error : TR_EACCES;
    if (outcome->error == TR_ETOOBIG) {
        sync_on_too_big(engine);
        return 0;
    }
    buffer_clear(&engine->client.session.filter_id);
    loop_back_off(engine, &engine->loops[LOOP_SYNC]);
    return 0;
}

/* Watch a server whose token stands still though it took events of ours: it does not deliver them. Ask
 * it again without a long poll. */
static void sync_watch(struct engine *engine, bool is_still)
{
    if (!is_still) {
        engine->moved_ns = engine->now_ns;
        engine->unechoed_ns = 0;
        engine->status.is_stalled = false;
        return;
    }
    if (engine->unechoed_ns == 0 ||
        engine->now_ns - engine->unechoed_ns < (uint64_t)ENGINE_STALL_MS * 1000000)
        return;
    LOG_PLAIN(LOG_WARN, "matrix", "sync-stalled");
    engine->status.is_stalled = true;
    engine->unechoed_ns = engine->now_ns;
    engine->phase = ENGINE_LOADED;
}

/* Drop rows of the outbox that were sent long ago, once a day. */
static void sync_prune(struct engine *engine, struct sql_unit *unit)
{
    int64_t now_ms = engine_now_ms(engine);

    if (engine->pruned_ms != 0 && now_ms - engine->pruned_ms < ENGINE_PRUNE_MS)
        return;
    engine->pruned_ms = now_ms;
    mxstore_prune_outbox(unit, now_ms - ENGINE_SENT_LIFE_MS);
}

static int sync_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_SYNC];
    struct mxclient_sync_news news = { 0 };
    int rc;

    if (outcome->verdict != MXCLIENT_DONE)
        return sync_on_refused(engine, outcome);
    rc = mxclient_sync_take(&engine->client, body, engine_now_ms(engine),
        (engine->now_ns - loop->asked_ns) / 1000000, unit, &news);
    if (rc == TR_EPROTO) {
        engine->status.sync_error = rc;
        loop_back_off(engine, loop);
        return 0;
    }
    tr_assert(engine->phase != ENGINE_EMPTY);
    engine->phase = ENGINE_SYNCED;
    sync_watch(engine, news.is_still);
    sync_prune(engine, unit);
    engine->is_unit_news = news.events > news.held;
    engine->status.error = engine->status.sync_error = 0;
    engine->status.synced_ms = mxclient_wall_ms(&engine->client, engine_now_ms(engine));
    engine_want_all(engine);
    loop->failures = 0;
    loop->due_ns = engine_in_ns(engine, news.pause_ms);
    engine_want_now(engine, LOOP_GAP); /* there may be a new one */
    engine_want_verify(engine);
    return rc;
}

/* ---- keys and devices ------------------------------------------------------------------------- */

/* Plan first. The next start, after the COMMIT of the planned keys, writes the upload. */
static int upload_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_UPLOAD];
    struct mxclient_keys *keys = &engine->client.keys;
    bool is_due = false;
    int rc;

    if (!engine->is_upload_planned) {
        rc = mxclient_keys_plan(keys, engine_now_ms(engine), unit, &is_due);
        engine->is_upload_planned = loop->is_wanted = is_due;
        return rc;
    }
    engine->is_upload_planned = false;
    rc = mxclient_keys_request(keys, &loop->request);
    return rc != 0 ? rc : loop_ready(loop);
}

static int upload_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    engine->loops[LOOP_UPLOAD].is_wanted = true;
    if (outcome->verdict == MXCLIENT_REFUSED)
        log_write(LOG_WARN, "matrix", "keys-refused",
            (const struct log_field[]){ LOG_INT("status", outcome->status),
                LOG_TEXT("errcode", outcome->errcode),
                LOG_INT("refusals", (int64_t)engine->client.keys.refused + 1) },
            3);
    return mxclient_keys_uploaded(&engine->client.keys, outcome, body, engine_now_ms(engine), unit);
}

static int query_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_QUERY];

    (void)unit;
    return mxclient_devices_query(&engine->client.devices, engine_now_ms(engine), &loop->request)
               ? loop_ready(loop)
               : 0;
}

static int query_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    int64_t now_ms = engine_now_ms(engine);
    int rc = mxclient_devices_answered(&engine->client.devices, outcome, body, now_ms, unit);

    engine_want_all(engine);
    engine_want_verify(engine);
    engine->is_unit_news = true; /* jobs wait for devices */
    return rc != 0 ? rc : mxclient_verify_tick(&engine->client, now_ms, unit);
}

static int unwedge_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_UNWEDGE];
    enum mxclient_need need;
    int rc = mxclient_unwedge_prepare(
        &engine->client, engine_now_ms(engine), unit, &need, &loop->request);

    tr_assert(rc != 0 || need != MXCLIENT_NEED_ANSWER); /* it would be this loop's own */
    return rc != 0 || need == MXCLIENT_NEED_NOTHING ? rc : loop_ready(loop);
}

static int unwedge_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_UNWEDGE];

    (void)unit;
    loop->is_wanted = engine->loops[LOOP_OUTBOX].is_wanted = true;
    engine_want_key_request(engine);
    if (loop->request.call != MXCLIENT_KEYS_CLAIM)
        return 0;
    return mxclient_unwedge_claimed(
        &engine->client, outcome->verdict == MXCLIENT_DONE ? body : NULL, engine_now_ms(engine));
}

static int key_request_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_KEY_REQUEST];
    int64_t now_ms = engine_now_ms(engine);
    int64_t due_ms = mxclient_key_request_due_ms(&engine->client, now_ms);
    enum mxclient_need need;
    int rc;

    if (due_ms > now_ms) {
        loop->is_wanted = due_ms != INT64_MAX;
        loop->due_ns = loop->is_wanted ? engine_in_ns(engine, (uint64_t)(due_ms - now_ms)) : 0;
        return 0;
    }
    rc = mxclient_key_request_prepare(&engine->client, now_ms, unit, &need, &loop->request);
    tr_assert(rc != 0 || need != MXCLIENT_NEED_ANSWER); /* it would be this loop's own */
    if (rc == 0 && need == MXCLIENT_NEED_NOTHING)
        loop->is_wanted = true; /* one was dropped; others may be due */
    return rc != 0 || need == MXCLIENT_NEED_NOTHING ? rc : loop_ready(loop);
}

static int key_request_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    engine_want_key_request(engine);
    engine->loops[LOOP_UNWEDGE].is_wanted = engine->loops[LOOP_OUTBOX].is_wanted = true;
    return mxclient_key_request_answered(
        &engine->client, outcome->verdict, body, engine_now_ms(engine), unit);
}

/* ---- gaps ------------------------------------------------------------------------------------- */

static int gap_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_GAP];
    int64_t now_ms = engine_now_ms(engine), due_ms = mxclient_timeline_due_ms(&engine->client);

    (void)unit;
    if (due_ms > now_ms) {
        loop->is_wanted = due_ms != INT64_MAX;
        loop->due_ns = loop->is_wanted ? engine_in_ns(engine, (uint64_t)(due_ms - now_ms)) : 0;
        return 0;
    }
    return mxclient_timeline_next(&engine->client, now_ms, &loop->request) ? loop_ready(loop) : 0;
}

static int gap_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_GAP];
    struct mxclient_page page = { outcome->verdict, body, loop->answer_bytes };
    struct mxclient_walk_news news = { 0 };
    int rc = mxclient_timeline_take(&engine->client, &page, engine_now_ms(engine), unit, &news);

    loop->is_wanted = engine->release.is_wanted = true;
    engine->is_unit_news = news.events > news.held;
    return rc;
}

/* ---- the table -------------------------------------------------------------------------------- */

static int room_start(struct engine *engine, struct sql_unit *unit)
{
    (void)unit;
    return engine_room_start(engine) == 0 ? 0 : loop_ready(&engine->loops[LOOP_ROOM]);
}

static int room_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    (void)unit;
    engine->loops[LOOP_ROOM].is_wanted = true;
    return engine_room_take(engine, outcome, body);
}

static int verify_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    (void)outcome; /* a message that the server refuses is lost: the time limit ends it */
    (void)body;
    (void)unit;
    engine_want_verify(engine);
    engine_want_key_request(engine); /* it may have verified one of our own devices */
    return 0;
}

static int verify_start(struct engine *engine, struct sql_unit *unit)
{
    int rc = engine_verify_start(engine, unit);

    return rc == 1 ? loop_ready(&engine->loops[LOOP_VERIFY]) : rc;
}

static int media_start(struct engine *engine, struct sql_unit *unit)
{
    (void)unit;
    return engine_media_start(engine) == 0 ? 0 : loop_ready(&engine->loops[LOOP_MEDIA]);
}

static int media_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    (void)unit;
    engine->loops[LOOP_MEDIA].is_wanted = true;
    return engine_media_take(engine, outcome, body);
}

static const struct {
    int (*start)(struct engine *engine, struct sql_unit *unit);
    int (*take)(struct engine *engine, const struct mxclient_outcome *outcome,
        const struct json *body, struct sql_unit *unit);
} loop_rules[LOOPS] = {
    [LOOP_SESSION] = { session_start, session_take },
    [LOOP_FILTER] = { filter_start, filter_take },
    [LOOP_SYNC] = { sync_start, sync_take },
    [LOOP_UPLOAD] = { upload_start, upload_take },
    [LOOP_QUERY] = { query_start, query_take },
    [LOOP_UNWEDGE] = { unwedge_start, unwedge_take },
    [LOOP_KEY_REQUEST] = { key_request_start, key_request_take },
    [LOOP_OUTBOX] = { NULL, engine_outbox_take }, /* starts with a read: engine.c */
    [LOOP_GAP] = { gap_start, gap_take },
    [LOOP_ROOM] = { room_start, room_take },
    [LOOP_VERIFY] = { verify_start, verify_take },
    [LOOP_MEDIA] = { media_start, media_take },
};

int engine_loop_start(struct engine *engine, enum engine_loop_kind kind, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[kind];
    int rc = loop_rules[kind].start(engine, unit);

    if (rc == 0 || rc == TR_ENOMEM)
        return rc;
    log_write(LOG_WARN, "matrix", "request-not-written",
        (const struct log_field[]){ LOG_INT("loop", kind), LOG_TEXT("error", mx_error_text(rc)) },
        2);
    engine->status.error = rc;
    loop_back_off(engine, loop);
    return 0;
}

int engine_loop_take(struct engine *engine, enum engine_loop_kind kind,
    const struct mxclient_outcome *outcome, const struct json *body, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[kind];
    int rc = loop_rules[kind].take(engine, outcome, body, unit);

    mxclient_request_fini(&loop->request);
    loop->state = LOOP_IDLE;
    return rc;
}
