/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c: the actor: units, answers, timers. Each event ends in engine_run, which takes one step
 * after the other until a unit is under way or nothing is due. */
#include "matrix/client/engine.h"

#include "base/assert.h"
#include "matrix/client/engine_private.h"
#include "matrix/client/megolm.h"
#include "support/log.h"

enum { TAG_UNIT = 1, TAG_RUN, TAG_LOOP = 16 };
enum { FALL_MS_MIN = 1000, FALL_MS_MAX = 60 * 1000 };

/* ---- memory follows disk ---------------------------------------------------------------------- */

static void engine_fill(void *data, void *bytes, size_t size)
{
    const struct tr_env *env = data;
    uint64_t bits;

    for (size_t i = 0; i < size; i += sizeof bits) {
        bits = env->random(env->data);
        memcpy((char *)bytes + i, &bits, size - i < sizeof bits ? size - i : sizeof bits);
    }
}

static void engine_drop_answer(struct engine *engine, struct engine_loop *loop)
{
    const struct mxengine_transport *transport = &engine->options->transport;

    transport->drop(transport->data, &loop->answer);
    loop->answer = (struct mxengine_answer){ 0 };
}

void engine_drop_loop(struct engine *engine, enum engine_loop_kind kind)
{
    struct engine_loop *loop = &engine->loops[kind];

    engine_drop_answer(engine, loop);
    mxclient_request_fini(&loop->request);
    *loop = (struct engine_loop){ .serial = loop->serial };
}

static void engine_drop_loops(struct engine *engine)
{
    for (int i = 0; i < LOOPS; i++)
        engine_drop_loop(engine, (enum engine_loop_kind)i);
    engine_outbox_fini(engine);
}

/* Give back the text of rooms that are read, in large pieces. */
static void engine_forget(void *data, struct span text)
{
    struct engine *engine = data;
    const struct mxengine_transport *transport = &engine->options->transport;
    struct mxengine_answer *answer = &engine->loops[LOOP_SYNC].answer;
    struct span *whole = &engine->forgotten;

    if (transport->forget == NULL || answer->text == NULL)
        return;
    tr_assert(text.at >= answer->text && text.at + text.size <= answer->text + answer->body.size);
    if (whole->at + whole->size == text.at)
        whole->size += text.size;
    else
        *whole = text;
    if (whole->size >= ENGINE_FORGET_BYTES) {
        transport->forget(transport->data, answer, *whole);
        *whole = (struct span){ text.at + text.size, 0 };
    }
}

static void engine_drop_client(struct engine *engine)
{
    engine_drop_loops(engine);
    mxclient_fini(&engine->client);
    engine->client =
        (struct mxclient){ .policy = engine->options->policy, .forget = { engine_forget, engine } };
    mxclient_session_init(&engine->client.session, &engine->random, engine->options->key);
    engine->phase = ENGINE_EMPTY;
    engine->is_filter_refused = engine->is_upload_planned = false;
    engine->is_unit_news = engine->is_halted = false;
    engine->pruned_ms = 0;
    engine->unechoed_ns = 0;
}

void engine_fall(struct engine *engine, int rc)
{
    uint64_t pause = (uint64_t)FALL_MS_MIN << (engine->falls < 6 ? engine->falls : 6);

    log_write(LOG_WARN, "matrix", "reload",
        (const struct log_field[]){ LOG_TEXT("error", sql_error_text(rc)) }, 1);
    engine_drop_client(engine);
    engine->falls++;
    engine->load_due_ns = engine_in_ns(engine, pause > FALL_MS_MAX ? FALL_MS_MAX : pause);
    engine->status.error = rc;
    engine->status.reloads++;
    engine_job_end(&engine->unit_job, rc);
    engine_job_end(&engine->room_job, rc);
    engine_job_end(&engine->media_job, rc);
    engine_job_end(&engine->login, rc);
    engine_job_end(&engine->logout, rc);
}

void engine_want_now(struct engine *engine, enum engine_loop_kind kind)
{
    struct engine_loop *loop = &engine->loops[kind];

    loop->is_wanted = true;
    if (loop->state == LOOP_IDLE)
        loop->due_ns = 0;
}

void engine_want_key_request(struct engine *engine)
{
    engine_want_now(engine, LOOP_KEY_REQUEST);
}

void engine_want_all(struct engine *engine)
{
    for (int i = 0; i < LOOPS; i++)
        engine->loops[i].is_wanted = true;
    engine_want_key_request(engine);
    engine->release.is_wanted = true;
}

/* Submit a unit. The load is a write too: it must run after a unit of this database's former
 * actor, which may still be running. */
static void engine_submit(
    struct engine *engine, struct tr_context *ctx, enum engine_unit purpose, struct sql_unit *unit)
{
    const struct sql_submit_options options = { .tag = TAG_UNIT };
    bool is_write = purpose == UNIT_LOAD || purpose == UNIT_STORE;
    int rc;

    tr_assert(engine->unit == UNIT_NONE);
    rc = is_write ? sql_write(ctx, &engine->sql, unit, &options)
                  : sql_read(ctx, &engine->sql, unit, &options);
    if (rc < 0) {
        sql_unit_destroy(unit);
        engine_fall(engine, rc);
        return;
    }
    engine->unit = purpose;
}

void engine_read(
    struct engine *engine, struct tr_context *ctx, enum engine_unit purpose, struct sql_unit *unit)
{
    tr_assert(purpose > UNIT_STORE);
    engine_submit(engine, ctx, purpose, unit);
}

static void engine_load(struct engine *engine, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxclient_load_read(unit);
    engine_submit(engine, ctx, UNIT_LOAD, unit);
}

void engine_wake_readers(struct engine *engine)
{
    while (engine->readers.count > 0)
        engine_queue_add(&engine->jobs, engine_queue_take(&engine->readers));
}

static void engine_on_loaded(struct engine *engine, const struct sql_unit *unit)
{
    int rc;

    tr_assert(engine->phase == ENGINE_EMPTY);
    /* Within a life the client's clock does not jump with the machine's: pauses and time limits are
     * as long as they say. engine_read_wall follows the machine's. */
    engine->clock_ms = (int64_t)(engine->env->wall_ns(engine->env->data) / 1000000) -
                       (int64_t)(engine->now_ns / 1000000);
    rc = mxclient_load(&engine->client, unit, engine_now_ms(engine));
    if (rc != 0 && rc != TR_ENOENT) {
        engine_fall(engine, rc);
        engine_jobs_end(&engine->jobs, rc);
        return;
    }
    engine->phase = ENGINE_LOADED;
    if (engine->status.reloads == 0)
        engine->status.first_seq = engine_last_seq(engine);
    engine->has_unsent = true;
    engine_want_all(engine);
    engine_wake_readers(engine); /* the unit before the load may have been stored after all */
}

bool engine_is_over(const struct engine *engine)
{
    enum mxclient_state state = engine->client.session.state;

    return state == MXCLIENT_ENDED ||
           (state == MXCLIENT_SOFT_OUT && engine->password.size == 0 && engine->login == NULL);
}

/* The login has ended: jobs that need it do not wait for it. Events of the outbox do. */
static void engine_on_over(struct engine *engine)
{
    if (engine->client.session.state == MXCLIENT_ENDED)
        engine_drop_loops(engine);
    engine_drop_loop(engine, LOOP_ROOM);
    engine_drop_loop(engine, LOOP_MEDIA);
    if (engine->room_job != NULL)
        engine_queue_add(&engine->rooms, engine->room_job);
    if (engine->media_job != NULL)
        engine_queue_add(&engine->media, engine->media_job);
    engine->room_job = engine->media_job = NULL;
    while (engine->rooms.count > 0)
        engine_job_refuse(engine, engine_queue_take(&engine->rooms));
    while (engine->media.count > 0)
        engine_job_refuse(engine, engine_queue_take(&engine->media));
    for (uint32_t i = engine->readers.count; i > 0; i--)
        engine_job_wait(engine, engine_queue_take(&engine->readers));
}

static void engine_on_stored(struct engine *engine)
{
    engine->falls = 0;
    engine_job_end(&engine->unit_job, 0);
    engine_take_news(engine);
    if (engine->is_unit_news)
        engine_wake_readers(engine);
    engine->is_unit_news = false;
    if (engine_is_over(engine))
        engine_on_over(engine);
}

void engine_store(struct engine *engine, struct tr_context *ctx, struct sql_unit *unit)
{
    if (!sql_unit_is_empty(unit)) {
        engine_submit(engine, ctx, UNIT_STORE, unit);
        return;
    }
    sql_unit_destroy(unit);
    engine_on_stored(engine);
}

/* Store what a step added, or fall if it failed. */
static void engine_end_step(
    struct engine *engine, struct tr_context *ctx, int rc, struct sql_unit *unit)
{
    if (rc == 0) {
        engine_store(engine, ctx, unit);
        return;
    }
    sql_unit_destroy(unit);
    engine_fall(engine, rc);
}

/* ---- held events ------------------------------------------------------------------------------ */

/* Read the held events of rooms that may be able to decrypt them now. */
static bool engine_start_release(struct engine *engine, struct tr_context *ctx)
{
    const struct mxclient_index *rooms = &engine->client.rooms.rooms;
    struct sql_unit *unit = sql_unit_create(0);

    engine->release.count = 0;
    for (uint32_t i = 0; i < rooms->count && engine->release.count < ENGINE_RELEASE_ROOMS; i++) {
        struct mxclient_room *room = (struct mxclient_room *)rooms->entries[i];

        if (room->encryption == MXCLIENT_PLAIN || !mxclient_megolm_is_due(&engine->client, room))
            continue;
        mxclient_megolm_read_held(room, unit);
        engine->release.rooms[engine->release.count++] = room;
    }
    engine->release.is_wanted = false;
    if (engine->release.count == 0) {
        sql_unit_destroy(unit);
        return false;
    }
    engine_read(engine, ctx, UNIT_HELD, unit);
    return true;
}

static void engine_on_held(struct engine *engine, struct tr_context *ctx, struct sql_unit *held)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = 0;

    for (uint32_t i = 0; rc >= 0 && i < engine->release.count; i++) {
        rc = mxclient_megolm_release(&engine->client, engine->release.rooms[i], held, i, unit);
        engine->is_unit_news = engine->is_unit_news || rc > 0;
    }
    engine->release.is_wanted = true; /* there may be more pages, and more rooms */
    engine_end_step(engine, ctx, rc < 0 ? rc : 0, unit);
}

/* ---- requests --------------------------------------------------------------------------------- */

uint32_t engine_tag(const struct engine *engine, enum engine_loop_kind kind)
{
    return TAG_LOOP + (uint32_t)kind + LOOPS * engine->loops[kind].serial;
}

static void engine_ask(struct engine *engine, struct tr_context *ctx, enum engine_loop_kind kind)
{
    const struct mxclient_session *session = &engine->client.session;
    struct engine_loop *loop = &engine->loops[kind];
    const struct mxengine_transport *transport = &engine->options->transport;
    bool has_token = mxclient_call_rules[loop->request.call].has_token;
    struct mxengine_call call = { .homeserver = mxclient_span(&session->homeserver),
        .token = has_token ? mxclient_span(&session->access_token) : (struct span){ NULL, 0 },
        .request = &loop->request,
        .file = loop->request.call == MXCLIENT_UPLOAD || loop->request.call == MXCLIENT_DOWNLOAD
                    ? &engine->media_job->file
                    : NULL };
    int rc;

    if (has_token && kind != LOOP_SESSION)
        mxclient_session_stamp(session, &loop->request);
    loop->serial = (loop->serial + 1) & 0xffffff;
    loop->asked_ns = engine->now_ns;
    loop->state = LOOP_ASKED;
    rc = transport->ask(transport->data, ctx, &call, engine_tag(engine, kind));
    if (rc != 0) {
        loop->answer = (struct mxengine_answer){ .failed = rc };
        loop->state = LOOP_ANSWERED;
    }
}

/* Keep the answer of the last ask; an answer to an ask before it is nobody's. */
static void engine_on_reply(struct engine *engine, const struct tr_event *event)
{
    const struct mxengine_transport *transport = &engine->options->transport;
    uint32_t number = event->tag - TAG_LOOP;
    struct engine_loop *loop = &engine->loops[number % LOOPS];
    struct mxengine_answer answer = { 0 };

    transport->take(transport->data, event, &answer);
    if (loop->state != LOOP_ASKED || loop->serial != number / LOOPS) {
        transport->drop(transport->data, &answer);
        return;
    }
    loop->answer = answer;
    loop->state = LOOP_ANSWERED;
}

static void engine_pause(struct engine *engine, struct engine_loop *loop, uint64_t wait_ms)
{
    loop->state = LOOP_PAUSED;
    loop->due_ns = engine_in_ns(engine, wait_ms == 0 ? 1 : wait_ms);
}

/* The request of another loop than the session's had a token that is refused. */
static int engine_on_token_refused(struct engine *engine, struct engine_loop *loop,
    const struct mxclient_outcome *outcome, struct sql_unit *unit)
{
    struct mxclient_session *session = &engine->client.session;
    enum mxclient_state former = session->state;

    /* It waits until the session is ACTIVE again; if that never comes, it is dropped. */
    (void)mxclient_session_refused(session, &loop->request, outcome);
    engine_pause(engine, loop, 1);
    engine->loops[LOOP_SESSION].is_wanted = true;
    return session->state != former ? mxclient_session_put(session, unit) : 0;
}

/* Free an answer and the document whose texts may point into it. */
static void engine_drop_document(
    struct engine *engine, enum engine_loop_kind kind, struct json_doc *doc)
{
    if (kind == LOOP_SESSION)
        mx_wipe_buffer(&doc->copy);
    json_doc_free(doc);
    engine_drop_answer(engine, &engine->loops[kind]);
    engine->forgotten = (struct span){ NULL, 0 };
}

static void engine_report_repair(
    struct engine *engine, const struct engine_loop *loop, uint64_t repaired)
{
    log_write(LOG_WARN, "matrix", "answer-repaired",
        (const struct log_field[]){ LOG_TEXT("path", mxclient_call_rules[loop->request.call].path),
            LOG_INT("characters", (int64_t)repaired) },
        2);
    engine->client.skipped += repaired;
}

static void engine_take(struct engine *engine, struct tr_context *ctx, enum engine_loop_kind kind)
{
    struct engine_loop *loop = &engine->loops[kind];
    struct span retry = span_of(loop->answer.retry_after);
    struct mxclient_answer answer = { .failed = loop->answer.failed,
        .status = loop->answer.status,
        .retry_after = retry.size > 0 ? retry : (struct span){ NULL, 0 },
        .body = loop->answer.body,
        .text = loop->answer.text };
    struct mxclient_outcome outcome;
    struct json_doc doc = { 0 };
    struct sql_unit *unit;
    int rc;

    /* The bytes of a download are in its file. */
    if (loop->request.call == MXCLIENT_DOWNLOAD && answer.failed == 0 &&
        (answer.status == 200 || answer.status == 206)) {
        answer.status = 200;
        answer.body = SPAN("{}");
        answer.text = NULL;
    }
    mxclient_request_judge(&loop->request, &answer, &engine->random, &doc, &outcome);
    loop->answer_bytes = loop->answer.body.size;
    if (outcome.repaired > 0)
        engine_report_repair(engine, loop, outcome.repaired);
    if (outcome.verdict != MXCLIENT_DONE)
        engine->status.error = outcome.error != 0 ? outcome.error : TR_EACCES;
    if (outcome.verdict == MXCLIENT_LATER && kind == LOOP_SYNC)
        engine->status.sync_error = outcome.error != 0 ? outcome.error : TR_EAGAIN;
    if (kind == LOOP_SESSION)
        engine->status.wait_status = outcome.status;
    unit = sql_unit_create(0);
    if (outcome.verdict == MXCLIENT_LATER &&
        (kind != LOOP_OUTBOX || !engine_outbox_park(engine, &outcome, unit))) {
        engine_pause(engine, loop, outcome.wait_ms);
        engine_drop_document(engine, kind, &doc);
        sql_unit_destroy(unit);
        return;
    }
    if (outcome.verdict == MXCLIENT_LATER)
        rc = 0; /* it is parked */
    else if (outcome.verdict == MXCLIENT_TOKEN && kind != LOOP_SESSION)
        rc = engine_on_token_refused(engine, loop, &outcome, unit);
    else
        rc = engine_loop_take(engine, kind, &outcome, json_root(&doc), unit);
    /* A large answer goes before its unit runs. */
    engine_drop_document(engine, kind, &doc);
    engine_end_step(engine, ctx, rc, unit);
}

/* ---- steps ------------------------------------------------------------------------------------ */

static bool engine_is_active(const struct engine *engine)
{
    return engine->client.session.state == MXCLIENT_ACTIVE;
}

static bool engine_is_askable(const struct engine *engine, enum engine_loop_kind kind)
{
    const struct engine_loop *loop = &engine->loops[kind];

    return (loop->state == LOOP_READY ||
               (loop->state == LOOP_PAUSED && loop->due_ns <= engine->now_ns)) &&
           (kind == LOOP_SESSION || engine_is_active(engine));
}

static bool engine_is_startable(const struct engine *engine, enum engine_loop_kind kind)
{
    const struct engine_loop *loop = &engine->loops[kind];

    return loop->state == LOOP_IDLE && loop->is_wanted && loop->due_ns <= engine->now_ns &&
           (kind == LOOP_SESSION || engine_is_active(engine)) &&
           (kind != LOOP_OUTBOX || engine->has_unsent);
}

static void engine_start_loop(
    struct engine *engine, struct tr_context *ctx, enum engine_loop_kind kind)
{
    struct sql_unit *unit = sql_unit_create(0);

    engine->loops[kind].is_wanted = false;
    if (kind == LOOP_OUTBOX) {
        mxstore_get_unsent(unit, ENGINE_OUTBOX_HEADS);
        engine_read(engine, ctx, UNIT_OUTBOX, unit);
    } else
        engine_end_step(engine, ctx, engine_loop_start(engine, kind, unit), unit);
}

/* Start the first loop from `first` to `last` that is startable; false if there is none. */
static bool engine_start_due(struct engine *engine, struct tr_context *ctx,
    enum engine_loop_kind first, enum engine_loop_kind last)
{
    for (int i = (int)first; i <= (int)last; i++)
        if (engine_is_startable(engine, (enum engine_loop_kind)i)) {
            engine_start_loop(engine, ctx, (enum engine_loop_kind)i);
            return true;
        }
    return false;
}

/* Start a refresh if the token is about to expire. */
static void engine_tick(struct engine *engine)
{
    bool was_active = engine_is_active(engine);

    mxclient_session_tick(&engine->client.session, engine_token_ms(engine));
    if (was_active && !engine_is_active(engine))
        engine->loops[LOOP_SESSION].is_wanted = true;
}

/* Do one thing that is due; false if there is none. */
static bool engine_step(struct engine *engine, struct tr_context *ctx)
{
    if (engine->phase == ENGINE_EMPTY) {
        if (engine->load_due_ns > engine->now_ns)
            return false;
        engine_load(engine, ctx);
        return true;
    }
    for (int i = 0; i < LOOPS; i++)
        if (engine->loops[i].state == LOOP_ANSWERED) {
            engine_take(engine, ctx, (enum engine_loop_kind)i);
            return true;
        }
    engine_tick(engine);
    for (int i = 0; i < LOOPS; i++)
        if (engine_is_askable(engine, (enum engine_loop_kind)i)) {
            engine_ask(engine, ctx, (enum engine_loop_kind)i);
            return true;
        }
    if (engine->jobs.count > 0) {
        engine_job_start(engine, ctx);
        return true;
    }
    if (engine_outbox_due_ns(engine) <= engine->now_ns)
        engine->loops[LOOP_OUTBOX].is_wanted = true;
    /* The homeserver answers /sync while held events are tried again. The other loops come after
     * the held events: these may want keys, which LOOP_KEY_REQUEST asks for. */
    if (engine_start_due(engine, ctx, LOOP_SESSION, LOOP_SYNC))
        return true;
    if (engine->release.is_wanted && engine_start_release(engine, ctx))
        return true;
    return engine_start_due(engine, ctx, LOOP_SYNC + 1, LOOPS - 1);
}

/* Return when to look at the token again; UINT64_MAX: it does not end, or has no successor. */
static uint64_t engine_token_due_ns(const struct engine *engine)
{
    int64_t due_ms = mxclient_session_due_ms(&engine->client.session);
    int64_t now_ms = engine_token_ms(engine);

    if (due_ms == INT64_MAX)
        return UINT64_MAX;
    if (due_ms <= now_ms)
        return engine_in_ns(engine, 1);
    return engine_in_ns(
        engine, due_ms - now_ms > ENGINE_LOOK_MS ? ENGINE_LOOK_MS : (uint64_t)(due_ms - now_ms));
}

/* Return when the next thing becomes due without an event; UINT64_MAX: never. */
static uint64_t engine_due_ns(const struct engine *engine)
{
    uint64_t due = UINT64_MAX;

    if (engine->unit != UNIT_NONE)
        return due;
    if (engine->phase == ENGINE_EMPTY)
        return engine->load_due_ns;
    due = engine_token_due_ns(engine);
    if (engine_outbox_due_ns(engine) > engine->now_ns && engine_outbox_due_ns(engine) < due)
        due = engine_outbox_due_ns(engine);
    for (int i = 0; i < LOOPS; i++) {
        const struct engine_loop *loop = &engine->loops[i];
        bool is_due = loop->state == LOOP_PAUSED || (loop->state == LOOP_IDLE && loop->is_wanted);

        if (is_due && loop->due_ns > engine->now_ns && loop->due_ns < due)
            due = loop->due_ns;
    }
    return due;
}

static void engine_set_timer(struct engine *engine, struct tr_context *ctx, uint64_t due_ns)
{
    if (due_ns == UINT64_MAX || (engine->timer_ns != 0 && engine->timer_ns <= due_ns))
        return;
    if (engine->timer_ns != 0)
        (void)tr_timer_stop(ctx, engine->timer_id);
    engine->timer_ns = due_ns;
    if (tr_after(ctx, due_ns > engine->now_ns ? due_ns - engine->now_ns : 1, TAG_RUN,
            &engine->timer_id) < 0)
        engine->timer_ns = 0; /* out of memory: the next event tries again */
}

/* Follow a wall clock that was set, or that went on while the machine slept. */
static void engine_read_wall(struct engine *engine)
{
    int64_t wall_ms = (int64_t)(engine->env->wall_ns(engine->env->data) / 1000000);

    engine->client.wall_ahead_ms =
        engine->phase == ENGINE_EMPTY ? 0 : wall_ms - engine_now_ms(engine);
}

static void engine_run(struct engine *engine, struct tr_context *ctx)
{
    engine->now_ns = tr_now_ns(ctx);
    engine_read_wall(engine);
    while (engine->unit == UNIT_NONE && engine_step(engine, ctx))
        ;
    engine_set_timer(engine, ctx, engine_due_ns(engine));
}

/* ---- the actor -------------------------------------------------------------------------------- */

/* Answer readers whose askers are gone: they would wait for news that may never come. */
static void engine_drop_cancelled(struct engine *engine)
{
    for (uint32_t i = engine->readers.count; i > 0; i--) {
        struct mxengine_job *job = engine_queue_take(&engine->readers);

        if (tr_reply_is_cancelled(job->reply))
            engine_job_answer(job, TR_ECANCELLED);
        else
            engine_queue_add(&engine->readers, job);
    }
}

/* A job waits for a timer: requests of the engine must not inherit the deadline of its message. */
static enum tr_next engine_handle(void *self, struct tr_context *ctx, void *message)
{
    struct mxengine_job *job = ((struct mxengine_message *)message)->job;
    struct engine *engine = self;

    job->reply = tr_reply_take(ctx);
    if (job->verb == MXENGINE_STATUS) {
        engine_status(engine, &job->status);
        engine_job_answer(job, 0);
        return TR_GO;
    }
    engine_drop_cancelled(engine);
    if (engine->jobs.count + engine->rooms.count + engine->media.count + engine->readers.count >=
        MXENGINE_JOBS_MAX) {
        engine_job_answer(job, TR_EFULL);
        return TR_GO;
    }
    engine_queue_add(&engine->jobs, job);
    engine->now_ns = tr_now_ns(ctx);
    engine_set_timer(engine, ctx, engine->now_ns + 1);
    return TR_GO;
}

static void engine_on_unit(struct engine *engine, struct tr_context *ctx, struct sql_unit *unit)
{
    enum engine_unit purpose = engine->unit;
    int rc = sql_unit_status(unit);
    struct sql_unit *next;

    engine->unit = UNIT_NONE;
    engine->now_ns = tr_now_ns(ctx);
    if (rc != 0 && purpose == UNIT_JOB)
        engine_job_end(&engine->unit_job, rc);
    else if (rc != 0) {
        engine_fall(engine, rc);
        if (purpose == UNIT_LOAD)
            engine_jobs_end(&engine->jobs, rc);
    } else if (purpose == UNIT_LOAD)
        engine_on_loaded(engine, unit);
    else if (purpose == UNIT_STORE)
        engine_on_stored(engine);
    else if (purpose == UNIT_HELD)
        engine_on_held(engine, ctx, unit);
    else if (purpose == UNIT_OUTBOX) {
        next = sql_unit_create(0);
        engine_end_step(engine, ctx, engine_outbox_choose(engine, unit, next), next);
    } else {
        engine_job_rows(engine, ctx, unit);
        return; /* the job owns the unit */
    }
    sql_unit_destroy(unit);
}

static enum tr_next engine_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct engine *engine = self;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_TIMER && event->id == engine->timer_id)
        engine->timer_ns = 0;
    else if (event->kind == TR_EVENT_REPLY && event->tag >= TAG_LOOP)
        engine_on_reply(engine, event);
    else if (event->kind == TR_EVENT_REPLY) {
        unit = sql_take(&engine->sql, event);
        if (unit != NULL)
            engine_on_unit(engine, ctx, unit);
    }
    engine_run(engine, ctx);
    return TR_GO;
}

static int engine_start(void *self, struct tr_context *ctx)
{
    struct engine *engine = self;

    engine->env = engine->options->env;
    if (engine->env == NULL)
        engine->env = tr_system_env(tr_system_of(ctx));
    engine->random =
        (struct mx_random){ .fill = engine_fill, .data = (void *)(uintptr_t)engine->env };
    engine->jobs.end = &engine->jobs.first;
    engine->rooms.end = &engine->rooms.first;
    engine->readers.end = &engine->readers.first;
    engine->media.end = &engine->media.first;
    sql_client_init(&engine->sql, engine->options->sql);
    engine_drop_client(engine);
    engine_run(engine, ctx);
    return 0;
}

static void engine_finish(void *self)
{
    struct engine *engine = self;

    if (engine->sql.sql == NULL)
        return; /* it never started */
    engine_jobs_end(&engine->jobs, TR_EDROPPED);
    engine_jobs_end(&engine->rooms, TR_EDROPPED);
    engine_jobs_end(&engine->readers, TR_EDROPPED);
    engine_jobs_end(&engine->media, TR_EDROPPED);
    engine_job_end(&engine->unit_job, TR_EDROPPED);
    engine_job_end(&engine->room_job, TR_EDROPPED);
    engine_job_end(&engine->media_job, TR_EDROPPED);
    engine_job_end(&engine->login, TR_EDROPPED);
    engine_job_end(&engine->logout, TR_EDROPPED);
    engine_drop_loops(engine);
    if (engine->options->transport.end != NULL)
        engine->options->transport.end(engine->options->transport.data);
    mxclient_fini(&engine->client);
    mx_wipe_buffer(&engine->user);
    mx_wipe_buffer(&engine->password);
    sql_client_fini(&engine->sql);
}

static int engine_reset(void *self, enum tr_why why)
{
    struct engine *engine = self, fresh = { .options = engine->options };

    (void)why;
    engine_finish(engine);
    *engine = fresh;
    return 0;
}

static void engine_drop_message(void *message)
{
    mxengine_job_unref(((struct mxengine_message *)message)->job);
}

static const struct tr_type engine_type = {
    .name = "matrix-engine",
    .message_size = sizeof(struct mxengine_message),
    .state_size = sizeof(struct engine),
    .start = engine_start,
    .handle = engine_handle,
    .event = engine_event,
    .finish = engine_finish,
    .reset = engine_reset,
    .message_drop = engine_drop_message,
};

int mxengine_spawn(struct tr_system *system, const struct mxengine_options *options,
    const struct tr_spawn_options *spawn, tr_sender *ret_sender)
{
    struct engine engine = { .options = options };

    return tr_spawn(system, &engine_type, &engine, spawn, ret_sender);
}
