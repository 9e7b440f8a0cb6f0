/* SPDX-License-Identifier: Apache-2.0 */
/* engine_jobs.c: requests of the engine's users. */
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "matrix/client/engine_private.h"
#include "matrix/client/send.h"

/* ---- a job ------------------------------------------------------------------------------------ */

struct mxengine_job *mxengine_job_create(enum mxengine_verb verb)
{
    struct mxengine_job *job = base_calloc(sizeof *job);

    tr_assert(verb < MXENGINE_VERB_COUNT);
    if (job == NULL)
        return NULL;
    job->verb = verb;
    job->file.fd = -1;
    atomic_init(&job->holders, 1);
    return job;
}

void mxengine_job_set(struct mxengine_job *job, enum mxengine_arg arg, struct span text)
{
    tr_assert(arg < MXENGINE_ARGS);
    mx_wipe_buffer(&job->args[arg]);
    (void)buffer_span(&job->args[arg], text);
}

void mxengine_job_unref(struct mxengine_job *job)
{
    if (job == NULL || atomic_fetch_sub_explicit(&job->holders, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < MXENGINE_ARGS; i++)
        mx_wipe_buffer(&job->args[i]);
    if (job->file.fd >= 0)
        close(job->file.fd);
    buffer_free(&job->id);
    mx_wipe_buffer(&job->text);
    sql_unit_destroy(job->rows);
    base_free(job);
}

int mxengine_ask(struct tr_context *ctx, tr_sender engine, struct mxengine_job *job, uint32_t tag)
{
    struct mxengine_message message = { job };
    int rc;

    atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
    rc = tr_ask(ctx, engine, &message, sizeof message,
        &(struct tr_ask_options){
            .tag = tag, .timeout_ns = job->timeout_ns, .cancel = job->cancel });
    if (rc != 0)
        mxengine_job_unref(job);
    return rc;
}

/* The message is refused (and stays ours) exactly if there is no future. */
int mxengine_wait(tr_sender engine, struct mxengine_job *job, uint64_t timeout_ns)
{
    struct mxengine_message message = { job };
    struct tr_future *future = NULL;
    int rc;

    atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
    rc = tr_ask_future(engine, &message, sizeof message, timeout_ns, &future);
    if (rc != 0) {
        mxengine_job_unref(job);
        return rc;
    }
    rc = tr_future_wait(future, NULL, 0, NULL, 0);
    tr_future_drop(&future);
    return rc;
}

void engine_job_answer(struct mxengine_job *job, int status)
{
    (void)tr_reply_send(&job->reply, status, NULL, 0);
    mxengine_job_unref(job);
}

void engine_job_end(struct mxengine_job **job, int status)
{
    struct mxengine_job *ended = *job;

    *job = NULL;
    if (ended != NULL)
        engine_job_answer(ended, status);
}

/* ---- queues ----------------------------------------------------------------------------------- */

void engine_queue_add(struct engine_queue *queue, struct mxengine_job *job)
{
    job->next = NULL;
    *queue->end = job;
    queue->end = &job->next;
    queue->count++;
}

struct mxengine_job *engine_queue_take(struct engine_queue *queue)
{
    struct mxengine_job *job = queue->first;

    tr_assert(job != NULL && queue->count > 0);
    queue->first = job->next;
    if (--queue->count == 0)
        queue->end = &queue->first;
    return job;
}

void engine_jobs_end(struct engine_queue *queue, int status)
{
    while (queue->count > 0)
        engine_job_answer(engine_queue_take(queue), status);
}

void engine_job_refuse(struct engine *engine, struct mxengine_job *job)
{
    struct mxengine_status status;

    engine_status(engine, &status);
    if (engine_is_over(engine))
        mxengine_explain(&status, &job->id);
    engine_job_answer(job, TR_EACCES);
}

void engine_job_wait(struct engine *engine, struct mxengine_job *job)
{
    if (engine_is_over(engine))
        engine_job_refuse(engine, job);
    else
        engine_queue_add(&engine->readers, job);
}

/* ---- starting --------------------------------------------------------------------------------- */

static bool job_has_id(const struct mxengine_job *job, enum mxengine_arg arg)
{
    return mxclient_is_id(mxclient_span(&job->args[arg]));
}

/* Return the failure of an argument that could not be copied. */
static int job_failed(const struct mxengine_job *job)
{
    for (int i = 0; i < MXENGINE_ARGS; i++)
        if (job->args[i].failed != 0)
            return job->args[i].failed;
    return 0;
}

/* Return whether the session exists and has not ended for good. */
static bool jobs_has_session(const struct engine *engine)
{
    enum mxclient_state state = engine->client.session.state;

    return state >= MXCLIENT_ACTIVE && state != MXCLIENT_ENDED;
}

/* Return whether a job works on the nouns of a session. Reads also work after a logout. */
static bool job_needs_session(const struct mxengine_job *job)
{
    return job->verb == MXENGINE_RETRY ||
           (job->verb >= MXENGINE_DEVICES && job->verb <= MXENGINE_DOWNLOAD &&
               job->verb != MXENGINE_NEWS && job->verb != MXENGINE_EXPORT);
}

static void job_send(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct mxclient_room *room =
        mxclient_rooms_find(&engine->client.rooms, mxclient_span(&job->args[MXENGINE_ROOM]));
    struct mxclient_message message = { .type = mxclient_span(&job->args[MXENGINE_TYPE]),
        .content = mxclient_span(&job->args[MXENGINE_CONTENT]) };
    struct sql_unit *unit = sql_unit_create(0);
    char txn[MXCLIENT_TXN_BYTES];
    int rc = !jobs_has_session(engine) ? TR_EACCES : room == NULL ? TR_ENOENT : 0;

    message.policy = job->has_policy ? job->policy : engine->options->policy;
    if (rc == 0)
        rc =
            mxclient_send_accept(&engine->client, room, &message, engine_now_ms(engine), unit, txn);
    if (rc == 0)
        rc = buffer_text(&job->id, txn);
    if (rc != 0) {
        sql_unit_destroy(unit);
        engine_job_answer(job, rc);
        return;
    }
    engine->has_unsent = engine->loops[LOOP_OUTBOX].is_wanted = true;
    engine->client.unsent++;
    engine->unit_job = job;
    engine_store(engine, ctx, unit);
}

static void job_read(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct sql_unit *unit = sql_unit_create(0);
    uint32_t count = job->count_max == 0 || job->count_max > MXENGINE_EVENTS_MAX
                         ? MXENGINE_EVENTS_MAX
                         : job->count_max;

    if (job->verb == MXENGINE_ROOMS)
        mxstore_list(unit, MXSTORE_IS_room);
    else if (job->verb == MXENGINE_OUTBOX)
        mxstore_get_outbox(unit, job->after_seq, count);
    else if (job->verb == MXENGINE_EVENTS)
        mxstore_get_events(unit, job->after_seq, count, job->own);
    else /* SENT, DROP, RETRY */
        mxstore_get(unit, MXSTORE_IS_outbox, mxclient_span(&job->args[MXENGINE_TEXT]));
    engine->unit_job = job;
    engine_read(engine, ctx, UNIT_JOB, unit);
}

/* Answer a job that waits for an event to leave, or let it wait on. */
static void job_take_sent(
    struct engine *engine, struct mxengine_job *job, const struct sql_unit *rows)
{
    struct mxstore_outbox row;
    int rc = TR_ENOENT;

    if (sql_unit_rows(rows, 0) > 0) {
        mxstore_row(rows, 0, 0, MXSTORE_IS_outbox, &row);
        if (row.sending != MXSTORE_SENT && row.sending != MXSTORE_FAILED) {
            engine_job_wait(engine, job);
            return;
        }
        rc = buffer_span(&job->id, row.sending == MXSTORE_SENT ? row.event_id : row.reason);
        if (rc == 0 && row.sending == MXSTORE_FAILED)
            rc = TR_EACCES;
        job->unverified =
            engine_count_unverified(engine, row.room_id, (enum mxclient_policy)row.policy);
    }
    engine_job_answer(job, rc);
}

/* Drop or retry the event that was read. */
static void job_take_outbox(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job,
    const struct sql_unit *rows)
{
    struct mxclient *client = &engine->client;
    struct mxstore_outbox row = { .sending = MXSTORE_SENT };
    struct mxclient_room *room;
    struct sql_unit *unit;
    bool is_retry = job->verb == MXENGINE_RETRY;

    if (sql_unit_rows(rows, 0) > 0)
        mxstore_row(rows, 0, 0, MXSTORE_IS_outbox, &row);
    if (row.sending == MXSTORE_SENT) {
        engine_job_answer(job, TR_ENOENT);
        return;
    }
    unit = sql_unit_create(0);
    (is_retry ? mxstore_retry_outbox : mxstore_drop_outbox)(unit, row.txn_id);
    *(row.sending == MXSTORE_FAILED ? &client->failed : &client->unsent) -= 1;
    client->unsent += is_retry ? 1 : 0;
    room = mxclient_rooms_find(&client->rooms, row.room_id);
    if (room != NULL)
        room->next_send_ms = 0;
    engine_outbox_forget(engine, row.txn_id);
    engine->has_unsent = engine->is_unit_news = true; /* a job may wait for this event */
    engine->unit_job = job;
    engine_store(engine, ctx, unit);
}

void engine_job_rows(struct engine *engine, struct tr_context *ctx, struct sql_unit *rows)
{
    struct mxengine_job *job = engine->unit_job;

    engine->unit_job = NULL;
    if (job->verb == MXENGINE_SENT || job->verb == MXENGINE_DROP || job->verb == MXENGINE_RETRY) {
        if (job->verb == MXENGINE_SENT)
            job_take_sent(engine, job, rows);
        else
            job_take_outbox(engine, ctx, job, rows);
        sql_unit_destroy(rows);
        return;
    }
    if (job->waits && job->verb == MXENGINE_EVENTS && sql_unit_rows(rows, 0) == 0) {
        sql_unit_destroy(rows);
        engine_job_wait(engine, job);
        return;
    }
    job->rows = rows;
    engine_job_answer(job, 0);
}

static int job_keep(struct buffer *kept, const struct buffer *text)
{
    mx_wipe_buffer(kept);
    return buffer_span(kept, mxclient_span(text));
}

static int job_login(struct engine *engine, struct mxengine_job *job)
{
    enum mxclient_state state = engine->client.session.state;
    int rc;

    if (engine->login != NULL || engine->loops[LOOP_SESSION].state != LOOP_IDLE ||
        (state != MXCLIENT_NEW && state != MXCLIENT_SIGNED_OUT && state != MXCLIENT_SOFT_OUT))
        return TR_EBUSY;
    if (job->args[MXENGINE_PASSWORD].size == 0 && job->args[MXENGINE_TOKEN].size == 0)
        return TR_EINVAL;
    rc = job_keep(&engine->user, &job->args[MXENGINE_USER]);
    rc = rc != 0 ? rc : job_keep(&engine->password, &job->args[MXENGINE_PASSWORD]);
    if (rc != 0)
        return rc;
    engine->login = job;
    engine_want_now(engine, LOOP_SESSION);
    return 0;
}

static int job_logout(struct engine *engine, struct mxengine_job *job)
{
    int rc = engine->loops[LOOP_SESSION].state != LOOP_IDLE
                 ? TR_EBUSY
                 : mxclient_session_logout(&engine->client.session);

    if (rc != 0)
        return rc;
    mx_wipe_buffer(&engine->password);
    engine->logout = job;
    engine_want_now(engine, LOOP_SESSION);
    return 0;
}

static int job_room(struct engine *engine, struct mxengine_job *job)
{
    bool needs_room = job->verb != MXENGINE_CREATE;
    bool needs_user = job->verb == MXENGINE_INVITE ||
                      (job->verb == MXENGINE_CREATE && job->args[MXENGINE_USER].size > 0);

    if (!jobs_has_session(engine) || engine->client.session.state == MXCLIENT_SOFT_OUT)
        return TR_EACCES;
    if ((needs_room && !job_has_id(job, MXENGINE_ROOM)) ||
        (needs_user && !job_has_id(job, MXENGINE_USER)) ||
        (job->verb == MXENGINE_STATE && !job_has_id(job, MXENGINE_TYPE)))
        return TR_EINVAL;
    engine_queue_add(&engine->rooms, job);
    engine->loops[LOOP_ROOM].is_wanted = true;
    return 0;
}

/* Start a job whose answer comes with a request's. */
static void job_ask(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    int rc;

    (void)ctx;
    if (job->verb == MXENGINE_LOGIN)
        rc = job_login(engine, job);
    else if (job->verb == MXENGINE_LOGOUT)
        rc = job_logout(engine, job);
    else if (job->verb == MXENGINE_UPLOAD || job->verb == MXENGINE_DOWNLOAD)
        rc = engine_job_media(engine, job);
    else
        rc = job_room(engine, job);
    if (rc == TR_EACCES)
        engine_job_refuse(engine, job);
    else if (rc != 0)
        engine_job_answer(job, rc);
}

static void job_export(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    (void)ctx;
    engine_job_answer(job, mxclient_key_file_write(&engine->client, &job->text));
}

/* Each starts a job, which it answers, keeps waiting, or leaves to a unit or a loop. */
static void (*const job_starts[MXENGINE_VERB_COUNT])(
    struct engine *engine, struct tr_context *ctx, struct mxengine_job *job) = {
    [MXENGINE_LOGIN] = job_ask,
    [MXENGINE_LOGOUT] = job_ask,
    [MXENGINE_SEND] = job_send,
    [MXENGINE_CREATE] = job_ask,
    [MXENGINE_INVITE] = job_ask,
    [MXENGINE_JOIN] = job_ask,
    [MXENGINE_LEAVE] = job_ask,
    [MXENGINE_MEMBERS] = job_ask,
    [MXENGINE_STATE] = job_ask,
    [MXENGINE_ROOMS] = job_read,
    [MXENGINE_EVENTS] = job_read,
    [MXENGINE_SENT] = job_read,
    [MXENGINE_OUTBOX] = job_read,
    [MXENGINE_DROP] = job_read,
    [MXENGINE_RETRY] = job_read,
    [MXENGINE_DEVICES] = engine_job_devices,
    [MXENGINE_UNVERIFIED] = engine_job_unverified,
    [MXENGINE_EXPORT] = job_export,
    [MXENGINE_IMPORT] = engine_job_import,
    [MXENGINE_VERIFY] = engine_job_verify,
    [MXENGINE_ACT] = engine_job_act,
    [MXENGINE_NEWS] = engine_job_news,
    [MXENGINE_UPLOAD] = job_ask,
    [MXENGINE_DOWNLOAD] = job_ask,
    [MXENGINE_STATUS] = NULL, /* engine.c answers it at once */
};

void engine_job_start(struct engine *engine, struct tr_context *ctx)
{
    struct mxengine_job *job = engine_queue_take(&engine->jobs);
    int rc = job_failed(job);

    if (rc == 0 && job_needs_session(job) && !jobs_has_session(engine))
        rc = TR_EACCES;
    if (rc == 0 && tr_reply_is_cancelled(job->reply))
        rc = TR_ECANCELLED;
    if (rc != 0) {
        engine_job_answer(job, rc);
        return;
    }
    job_starts[job->verb](engine, ctx, job);
}

/* ---- rooms ------------------------------------------------------------------------------------ */

/* Returns 1 if a request was written. */
int engine_room_start(struct engine *engine)
{
    struct mxclient_request *request = &engine->loops[LOOP_ROOM].request;
    struct mxengine_job *job;

    if (engine->rooms.count == 0)
        return 0;
    job = engine_queue_take(&engine->rooms);
    if (job->verb == MXENGINE_MEMBERS &&
        mxclient_rooms_find(&engine->client.rooms, engine_arg(job, MXENGINE_ROOM)) == NULL) {
        engine->loops[LOOP_ROOM].is_wanted = true; /* for the next job */
        engine_job_answer(job, TR_ENOENT);
        return 0;
    }
    engine->room_job = job;
    if (job->verb == MXENGINE_CREATE)
        mxclient_room_create_request(
            engine_arg(job, MXENGINE_NAME), engine_arg(job, MXENGINE_USER), request);
    else if (job->verb == MXENGINE_INVITE)
        mxclient_room_invite_request(
            engine_arg(job, MXENGINE_ROOM), engine_arg(job, MXENGINE_USER), request);
    else if (job->verb == MXENGINE_JOIN)
        mxclient_room_join_request(engine_arg(job, MXENGINE_ROOM), request);
    else if (job->verb == MXENGINE_MEMBERS)
        mxclient_room_members_request(
            mxclient_rooms_find(&engine->client.rooms, engine_arg(job, MXENGINE_ROOM)),
            (struct span){ NULL, 0 }, request);
    else if (job->verb == MXENGINE_STATE)
        mxclient_room_state_request(
            engine_arg(job, MXENGINE_ROOM), engine_arg(job, MXENGINE_TYPE), request);
    else
        mxclient_room_leave_request(engine_arg(job, MXENGINE_ROOM), request);
    return 1;
}

/* Write the members of an answer; TR_EPROTO for one without a list. */
static int room_put_members(const struct json *body, struct buffer *out)
{
    const struct json *chunk = json_get(body, "chunk");
    struct json_writer writer = json_writer(out);
    struct mxclient_event event;
    struct span text;

    if (json_kind(chunk) != JSON_ARRAY)
        return TR_EPROTO;
    json_put_array(&writer, NULL);
    for (struct json_iter it = json_iterate(chunk); json_next(&it);) {
        if (!mxclient_event_read(it.value, &event) || !span_is(event.type, "m.room.member") ||
            !mxclient_is_id(event.state_key) ||
            !json_string(json_get(event.content, "membership"), &text))
            continue;
        json_put_object(&writer, NULL);
        json_put_string(&writer, "userId", event.state_key);
        json_put_string(&writer, "membership", text);
        if (json_string(json_get(event.content, "displayname"), &text))
            json_put_string(&writer, "name", text);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    return json_writer_end(&writer);
}

/* Take the answer to a job that reads. */
static int room_take_text(struct mxengine_job *job, const struct json *body)
{
    struct json_writer writer = json_writer(&job->text);

    if (job->verb == MXENGINE_MEMBERS)
        return room_put_members(body, &job->text);
    if (mxclient_is_deeper(body, MXCLIENT_EVENT_DEPTH_MAX))
        return MX_ETOOBIG;
    json_put_value(&writer, NULL, body);
    return json_writer_end(&writer);
}

int engine_room_take(
    struct engine *engine, const struct mxclient_outcome *outcome, const struct json *body)
{
    struct mxengine_job *job = engine->room_job;
    struct span room_id;
    int rc = 0;

    if (outcome->verdict != MXCLIENT_DONE && outcome->status >= 400)
        mxclient_outcome_explain(outcome, &job->id);
    if (outcome->verdict != MXCLIENT_DONE && outcome->status == 404)
        rc = TR_ENOENT;
    else if (outcome->verdict != MXCLIENT_DONE)
        rc = outcome->error != 0 && outcome->status < 400 ? outcome->error : TR_EACCES;
    else if (job->verb == MXENGINE_MEMBERS || job->verb == MXENGINE_STATE)
        rc = room_take_text(job, body);
    else if (job->verb == MXENGINE_CREATE || job->verb == MXENGINE_JOIN)
        rc = mxclient_read_id(json_get(body, "room_id"), &room_id) ? buffer_span(&job->id, room_id)
                                                                   : TR_EPROTO;
    engine_job_end(&engine->room_job, rc);
    return 0;
}

/* ---- status ----------------------------------------------------------------------------------- */

/* Copy a text of at most `size_max` bytes; the terminator comes behind. */
static void status_copy(char *text, size_t size_max, const struct buffer *from)
{
    size_t size = from->size > size_max ? size_max : from->size;

    if (size > 0)
        memcpy(text, from->bytes, size);
    text[size] = 0;
}

void mxengine_explain(const struct mxengine_status *status, struct buffer *out)
{
    const char *plural = status->unsent == 1 ? "" : "s";

    if (status->state == MXCLIENT_ENDED)
        (void)buffer_format(out,
            "The login has ended for good; %llu unsent message%s and all received events are kept.",
            (unsigned long long)status->unsent, plural);
    else if (status->state == MXCLIENT_SOFT_OUT)
        (void)buffer_format(out,
            "The server has ended the login; keys and %llu unsent message%s are kept. Log in "
            "again.",
            (unsigned long long)status->unsent, plural);
    else if (status->is_stalled)
        (void)buffer_text(out, "The homeserver takes events and does not deliver any; the engine "
                               "asks again.");
    else if (status->is_halted)
        (void)buffer_format(out,
            "%llu message%s wait%s until all devices of the members are verified.",
            (unsigned long long)status->unsent, plural, status->unsent == 1 ? "s" : "");
    else if (status->sync_error == TR_ETOOBIG)
        (void)buffer_format(out,
            "The answer of the homeserver to /sync is over the limit of %zu MiB. Leave rooms that "
            "are not needed; the engine asks again every hour.",
            mxclient_call_rules[MXCLIENT_SYNC].answer_bytes_max >> 20);
    else if (status->sync_error == TR_EPROTO)
        (void)buffer_text(out, "The answer of the homeserver to /sync is not JSON as the "
                               "specification has it; the engine asks again.");
    else if (status->sync_error != 0)
        (void)buffer_format(out, "The homeserver does not answer (%s); the engine asks again.",
            tr_error_text(status->sync_error));
    else if (status->is_keys_refused)
        (void)buffer_format(out,
            "The homeserver refuses the keys of this device (%s%sHTTP %u); the engine tries others "
            "later.",
            status->keys_errcode, status->keys_errcode[0] != 0 ? ", " : "", status->keys_status);
    else if (status->failed > 0)
        (void)buffer_format(out, "%llu message%s could not be sent and %s kept: retry or drop %s.",
            (unsigned long long)status->failed, status->failed == 1 ? "" : "s",
            status->failed == 1 ? "is" : "are", status->failed == 1 ? "it" : "them");
}

/* Return how long the session's loop pauses before it asks again. */
static uint64_t status_wait_ms(const struct engine *engine)
{
    const struct engine_loop *loop = &engine->loops[LOOP_SESSION];

    if (loop->state != LOOP_PAUSED || loop->due_ns <= engine->now_ns)
        return 0;
    return (loop->due_ns - engine->now_ns + 999999) / 1000000;
}

void engine_status(const struct engine *engine, struct mxengine_status *ret_status)
{
    const struct mxengine_transport *transport = &engine->options->transport;
    const struct mxclient *client = &engine->client;

    *ret_status = engine->status;
    ret_status->is_loaded = engine->phase != ENGINE_EMPTY;
    ret_status->state = client->session.state;
    status_copy(ret_status->homeserver, MXCLIENT_URL_BYTES_MAX, &client->session.homeserver);
    status_copy(ret_status->user_id, MXCLIENT_ID_BYTES_MAX, &client->session.user_id);
    status_copy(ret_status->device_id, MXCLIENT_ID_BYTES_MAX, &client->session.device_id);
    ret_status->wait_ms = status_wait_ms(engine);
    ret_status->last_seq = engine_last_seq(engine);
    ret_status->undecrypted = client->undecrypted;
    ret_status->skipped = client->skipped;
    ret_status->dropped_sessions = client->dropped_sessions;
    ret_status->key_conflicts = client->keys.refused;
    ret_status->is_keys_refused = client->keys.conflicts > 0;
    ret_status->keys_status = client->keys.refused_status;
    memcpy(ret_status->keys_errcode, client->keys.refused_code, sizeof ret_status->keys_errcode);
    ret_status->unsent = client->unsent;
    ret_status->failed = client->failed;
    ret_status->is_halted = engine->is_halted && client->unsent > 0;
    ret_status->gaps = client->gaps.count;
    ret_status->is_settled = engine->phase == ENGINE_SYNCED && client->keys.has_device_keys;
    ret_status->news_seq = engine->news_seq;
    ret_status->is_posting =
        client->verify.message_count > 0 || engine->loops[LOOP_VERIFY].state != LOOP_IDLE;
    ret_status->media_total = UINT64_MAX;
    if (engine->loops[LOOP_MEDIA].state == LOOP_ASKED && transport->progress != NULL)
        ret_status->media_bytes = transport->progress(
            transport->data, engine_tag(engine, LOOP_MEDIA), &ret_status->media_total);
}
