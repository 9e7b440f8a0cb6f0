/* SPDX-License-Identifier: Apache-2.0 */
/* sim_matrix.c: devices of several users talk in an encrypted room, over a homeserver that fails,
 * limits, delays, repeats and loses answers after it acted. Each device has an engine, a real SQLite
 * and a disk that loses power; engines are killed, clocks jump, tokens end. Checked, by name:
 *   once       an accepted event is in the room once, and once, decrypted, in every device
 *   author     an event is of the device that sent it, and of no other one
 *   cursor     a reader by seq sees each event once, and seq grows
 *   published  a key that counts as published is on the server
 *   token      next_batch never goes back
 *   spin       no request is repeated within a millisecond
 *   sticky     the room stays encrypted in every database
 *   answered   every job ends
 *   sas        both sides see one code; a device is verified if and only if both users say so
 *   leave      a session ends with a member's leave, and that member reads no event of its absence
 *   keys       a verified device of the same user gives old keys; another neither asks nor gets any
 *   fallback   a used fallback key is replaced
 *   stalled    a server that takes events and delivers none is noticed, and one that does is not
 * and what mx_server.h checks. */
#include <fcntl.h>

#include "base/alloc.h"
#include "matrix/client/body.h"
#include "matrix/client/engine.h"
#include "matrix/crypto/mxcrypto.h"
#include "mx_server.h"
#include "scenario.h"
#include "sql/backend.h"
#include "sql/runner.h"
#include "sql/unit.h"
#include "support/log.h"

enum {
    ROTATION = 3, /* messages of a session, in some seeds */
    DEVICES_MAX = 4,
    LATE_MAX = 2, /* devices that log in at the end */
    SENDS_MAX = 64,
    EXCHANGES_MAX = 64,
    TAG_EXCHANGE = 100,
};

/* Of each request, in percent. */
struct faults {
    uint32_t drop, refuse, limit, act_and_drop, act_and_fail, cut, slow;
};

enum send_fate { SEND_OPEN, SEND_ACCEPTED, SEND_REFUSED, SEND_UNKNOWN };

struct send {
    uint32_t device;
    enum send_fate fate;
    struct tr_future *future;
    struct mxengine_job *job;
};

struct device {
    int user;
    struct sql *sql;
    struct mxengine_options options;
    tr_sender engine;
    struct tr_done *done;
    bool is_up;
    uint32_t life; /* counts its engines */
    struct tr_future *reader;
    struct mxengine_job *reader_job;
    int64_t cursor;
    uint8_t seen[SENDS_MAX];
    struct tr_future *asked; /* any other job */
    struct mxengine_job *asked_job;
    uint64_t failed_hash, failed_ns; /* of the last request that failed */
    uint32_t syncs;                  /* asked for so far */
    struct mx_server_place since;    /* of the last /sync */
    bool has_synced;                 /* it has asked with a token */
};

static struct {
    struct scenario s;
    struct mx_server server;
    tr_sender server_sender;
    struct faults faults;
    struct device devices[DEVICES_MAX + LATE_MAX];
    bool matched[DEVICES_MAX + LATE_MAX][DEVICES_MAX + LATE_MAX]; /* a user compared the codes */
    uint32_t device_count, user_count;
    struct send sends[SENDS_MAX];
    uint32_t send_count;
    uint32_t lose_percent;
    bool is_opening;
    bool is_dark; /* the power is cut */
    struct tr_env env;
    uint64_t wall_offset_ns;
} now;

static struct {
    uint64_t accepted, refused, unknown, received, kills, cuts, fatal, lost, dropped, refusals,
        limits, acted, truncated, slow, soft, jumps, limited, late, duplicated, reloads, replays,
        verified, unverified, leaves, keys, fallbacks;
} seen;

static const struct mx_pickle_key pickle_key = { { 7 } };

/* ---- the clock -------------------------------------------------------------------------------- */

static uint64_t env_now(void *data)
{
    const struct tr_env *env = tr_system_env(now.s.system);

    (void)data;
    return env->now_ns(env->data);
}

static uint64_t env_wall(void *data)
{
    (void)data;
    return env_now(NULL) + now.wall_offset_ns;
}

static uint64_t env_random(void *data)
{
    const struct tr_env *env = tr_system_env(now.s.system);

    (void)data;
    return env->random(env->data);
}

/* ---- the homeserver's actor ------------------------------------------------------------------- */

struct exchange {
    uint32_t device; /* of the engine that asks */
    uint32_t life;
    enum mxclient_call call;
    uint32_t sync; /* its number, of a /sync */
    struct buffer target, token, body;
    tr_reply_handle reply;
    bool is_held;    /* a long poll without news */
    uint64_t due_ns; /* timers before it are of an exchange that had its place */
};

struct server_message {
    struct exchange *exchange;
};

struct server_actor {
    struct exchange *exchanges[EXCHANGES_MAX];
};

struct reply_head {
    uint32_t status;
    uint32_t retry_s;
};

static void exchange_free(struct exchange *exchange)
{
    buffer_free(&exchange->target);
    buffer_free(&exchange->token);
    buffer_free(&exchange->body);
    base_free(exchange);
}

static void exchange_reply(
    struct exchange *exchange, uint32_t status, uint32_t retry_s, const char *body, size_t size)
{
    static char value[TR_VALUE_SIZE_MAX];
    struct reply_head head = { status, retry_s };

    CHECK(sizeof head + size <= sizeof value);
    memcpy(value, &head, sizeof head);
    if (size > 0)
        memcpy(value + sizeof head, body, size);
    (void)tr_reply_send(&exchange->reply, 0, value, sizeof head + size);
}

static uint64_t exchange_hash(const struct exchange *exchange)
{
    const struct buffer *parts[] = { &exchange->target, &exchange->token, &exchange->body };
    uint64_t hash = 14695981039346656037u;

    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < parts[i]->size; k++)
            hash = (hash ^ (uint8_t)parts[i]->bytes[k]) * 1099511628211u;
    return hash;
}

/* Note a request that fails now, before its reply. An engine that was killed does not repeat it, and one
 * that has asked for another /sync since then has forgotten it: it reloaded. One that has waited too
 * long hears nothing of it, and may ask the same for another reason. */
static void exchange_note_failure(const struct exchange *exchange)
{
    if (tr_reply_is_cancelled(exchange->reply) ||
        exchange->life != now.devices[exchange->device].life ||
        (exchange->call == MXCLIENT_SYNC && exchange->sync != now.devices[exchange->device].syncs))
        return;
    now.devices[exchange->device].failed_hash = exchange_hash(exchange);
    now.devices[exchange->device].failed_ns = tr_sim_now_ns(now.s.sim);
}

static bool is_verbose(void)
{
    return getenv("TROUPE_VERBOSE") != NULL;
}

static void check_asked(const struct exchange *exchange);

/* Act and answer, unless the answer gets lost. */
static void exchange_act(struct exchange *exchange)
{
    struct buffer body = { 0 };
    struct mx_server_request request = { .call = exchange->call,
        .target = mx_server_text(&exchange->target),
        .token = mx_server_text(&exchange->token),
        .body = mx_server_text(&exchange->body) };
    uint32_t status = mx_server_answer(&now.server, &request, &body);
    uint32_t dice = below(&now.s, 100);

    check_asked(exchange);
    CHECK_EQ_INT(body.failed, 0);
    if (is_verbose())
        fprintf(stderr, "%llu ms: device %u call %d: %u %.*s\n    %.*s -> %.*s\n",
            (unsigned long long)(tr_sim_now_ns(now.s.sim) / MS), exchange->device, exchange->call,
            status, (int)exchange->target.size, exchange->target.bytes, (int)exchange->body.size,
            exchange->body.bytes, (int)body.size, body.bytes);
    if (dice < now.faults.act_and_drop + now.faults.act_and_fail + now.faults.cut)
        exchange_note_failure(exchange);
    if (dice < now.faults.act_and_drop) {
        seen.acted++;
        tr_reply_drop(&exchange->reply);
    } else if ((dice -= now.faults.act_and_drop) < now.faults.act_and_fail) {
        seen.acted++;
        exchange_reply(exchange, 504, 0, "<html>", 6);
    } else if ((dice -= now.faults.act_and_fail) < now.faults.cut && body.size > 1) {
        seen.truncated++;
        exchange_reply(exchange, status, 0, body.bytes, 1 + below(&now.s, (uint32_t)body.size - 1));
    } else
        exchange_reply(exchange, status, 0, body.bytes, body.size);
    buffer_free(&body);
}

/* Fail before anything happened; false if there is no fault. */
static bool exchange_fail(struct exchange *exchange)
{
    static const char limited[] = "{\"errcode\":\"M_LIMIT_EXCEEDED\",\"retry_after_ms\":700}";
    uint32_t dice = below(&now.s, 100);

    if (dice >= now.faults.drop + now.faults.refuse + now.faults.limit)
        return false;
    exchange_note_failure(exchange);
    if (dice < now.faults.drop) {
        seen.dropped++;
        tr_reply_drop(&exchange->reply);
    } else if ((dice -= now.faults.drop) < now.faults.refuse) {
        seen.refusals++;
        exchange_reply(exchange, 502, 0, "<html>", 6);
    } else {
        seen.limits++;
        exchange_reply(exchange, 429, below(&now.s, 3), limited, sizeof limited - 1);
    }
    return true;
}

static bool exchange_must_wait(const struct exchange *exchange)
{
    int device;

    if (exchange->call != MXCLIENT_SYNC ||
        memmem(exchange->target.bytes, exchange->target.size, "timeout=30000", 13) == NULL)
        return false;
    device = mx_server_device_of(&now.server, mx_server_text(&exchange->token));
    return device >= 0 && !mx_server_has_news(&now.server, device,
                              mx_server_since(mx_server_text(&exchange->target)));
}

static void server_end(struct server_actor *actor, uint32_t index)
{
    exchange_free(actor->exchanges[index]);
    actor->exchanges[index] = NULL;
}

/* Long polls that have news are answered. */
static void server_wake(struct server_actor *actor)
{
    for (uint32_t i = 0; i < EXCHANGES_MAX; i++)
        if (actor->exchanges[i] != NULL && actor->exchanges[i]->is_held &&
            !exchange_must_wait(actor->exchanges[i])) {
            exchange_act(actor->exchanges[i]);
            server_end(actor, i);
        }
}

static enum tr_next server_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct server_actor *actor = self;
    uint32_t index = event->tag - TAG_EXCHANGE;
    struct exchange *exchange = actor->exchanges[index];

    if (exchange == NULL || event->kind != TR_EVENT_TIMER ||
        tr_sim_now_ns(now.s.sim) < exchange->due_ns)
        return TR_GO;
    if (!exchange->is_held && exchange_fail(exchange)) {
        server_end(actor, index);
        return TR_GO;
    }
    if (!exchange->is_held && exchange_must_wait(exchange)) {
        exchange->is_held = true;
        exchange->due_ns = tr_sim_now_ns(now.s.sim) + 30000 * MS;
        CHECK_EQ_INT(tr_after(ctx, 30000 * MS, event->tag, NULL), 0);
        return TR_GO;
    }
    exchange_act(exchange);
    server_end(actor, index);
    server_wake(actor);
    return TR_GO;
}

static void check_spin(const struct exchange *exchange)
{
    const struct device *device = &now.devices[exchange->device];

    CHECK_MSG(exchange_hash(exchange) != device->failed_hash ||
                  tr_sim_now_ns(now.s.sim) >= device->failed_ns + MS,
        "spin: call %d of device %u was repeated at once", exchange->call, exchange->device);
}

static void check_token(const struct exchange *exchange)
{
    struct device *device = &now.devices[exchange->device];
    struct mx_server_place since;

    if (exchange->call != MXCLIENT_SYNC)
        return;
    since = mx_server_since(mx_server_text(&exchange->target));
    CHECK_MSG(since.events >= device->since.events && since.messages >= device->since.messages &&
                  since.changes >= device->since.changes,
        "token: device %u goes back", exchange->device);
    device->since = since;
    device->has_synced |=
        memmem(exchange->target.bytes, exchange->target.size, "since=", 6) != NULL;
}

static enum tr_next server_handle(void *self, struct tr_context *ctx, void *message)
{
    struct exchange *exchange = ((struct server_message *)message)->exchange;
    struct server_actor *actor = self;
    uint64_t delay = MS + tr_random(ctx) % (30 * MS);
    uint32_t index;

    check_spin(exchange);
    check_token(exchange);
    if (exchange->call == MXCLIENT_SYNC)
        exchange->sync = ++now.devices[exchange->device].syncs;
    exchange->reply = tr_reply_take(ctx);
    for (index = 0; index < EXCHANGES_MAX && actor->exchanges[index] != NULL; index++)
        ;
    CHECK(index < EXCHANGES_MAX);
    actor->exchanges[index] = exchange;
    if (tr_random(ctx) % 100 < now.faults.slow) {
        seen.slow++;
        delay = tr_random(ctx) % (60000 * MS); /* some time out */
    }
    exchange->due_ns = tr_sim_now_ns(now.s.sim) + delay;
    CHECK_EQ_INT(tr_after(ctx, delay, TAG_EXCHANGE + index, NULL), 0);
    return TR_GO;
}

static void server_finish(void *self)
{
    struct server_actor *actor = self;

    for (uint32_t i = 0; i < EXCHANGES_MAX; i++)
        if (actor->exchanges[i] != NULL)
            exchange_free(actor->exchanges[i]);
}

static void server_drop(void *message)
{
    exchange_free(((struct server_message *)message)->exchange);
}

static const struct tr_type server_type = {
    .name = "homeserver",
    .message_size = sizeof(struct server_message),
    .state_size = sizeof(struct server_actor),
    .handle = server_handle,
    .event = server_event,
    .finish = server_finish,
    .message_drop = server_drop,
};

/* ---- the transport ---------------------------------------------------------------------------- */

static int transport_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    struct exchange *exchange = base_calloc(sizeof *exchange);
    struct server_message message = { exchange };
    struct tr_ask_options options = { .tag = tag,
        .timeout_ns = mxclient_call_rules[call->request->call].timeout_ms * MS };
    int rc;

    CHECK(exchange != NULL);
    exchange->device = (uint32_t)((struct device *)data - now.devices);
    exchange->life = now.devices[exchange->device].life;
    exchange->call = call->request->call;
    (void)buffer_span(&exchange->target, mxclient_span(&call->request->target));
    (void)buffer_span(&exchange->body, mxclient_span(&call->request->body));
    if (call->token.at != NULL)
        (void)buffer_span(&exchange->token, call->token);
    rc = tr_ask(ctx, now.server_sender, &message, sizeof message, &options);
    if (rc != 0)
        exchange_free(exchange);
    return rc;
}

static void transport_take(
    void *data, const struct tr_event *event, struct mxengine_answer *ret_answer)
{
    struct reply_head head;
    char *copy;

    (void)data;
    *ret_answer = (struct mxengine_answer){ .failed = event->status };
    if (event->status != 0)
        return;
    memcpy(&head, event->value, sizeof head);
    ret_answer->status = head.status;
    if (head.retry_s > 0)
        snprintf(ret_answer->retry_after, sizeof ret_answer->retry_after, "%u", head.retry_s);
    copy = base_alloc(event->size);
    CHECK(copy != NULL);
    memcpy(copy, event->value, event->size);
    ret_answer->memory = copy;
    ret_answer->body = (struct span){ copy + sizeof head, event->size - sizeof head };
}

static void transport_drop(void *data, struct mxengine_answer *answer)
{
    (void)data;
    base_free(answer->memory);
    answer->memory = NULL;
}

/* ---- databases and engines -------------------------------------------------------------------- */

static bool is_lost(void)
{
    return now.lose_percent > 0 && !now.is_opening && percent(&now.s, now.lose_percent);
}

static void fail_units(struct sql_unit *const *units, size_t count, int status)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0) {
            sql_unit_reset_results(units[i]);
            sql_unit_fail(units[i], -1, status, "simulated");
            seen.lost++;
        }
}

/* The connection is lost before or after the COMMIT, or the disk is full. */
static int flaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc;

    if (is_lost()) {
        seen.lost++;
        return TR_ECLOSED;
    }
    if (is_lost()) {
        fail_units(units, count, SQL_EDISK);
        return 0;
    }
    rc = sql_sqlite.commit(connection, units, count);
    if (rc != 0 || !is_lost())
        return rc;
    fail_units(units, count, SQL_EUNKNOWN); /* it happened, and nobody knows */
    return SQL_EUNKNOWN;
}

/* A unit of a killed engine commits on a disk without power. A program would end here; the scenario
 * closes the database next. */
static void on_fatal(void *data, const char *line)
{
    (void)data;
    CHECK_MSG(now.is_dark, "open: %s", line);
    seen.fatal++;
}

static void device_open(struct device *device)
{
    static struct sql_backend flaky;
    char url[40], why[300];
    int rc;

    flaky = sql_sqlite;
    flaky.commit = flaky_commit;
    snprintf(url, sizeof url, "sqlite:data/%d.db", (int)(device - now.devices));
    now.is_opening = true;
    rc = sql_open(now.s.system,
        &(struct sql_options){ .url = url,
            .migrations = mxstore_migrations,
            .migration_count = MXSTORE_MIGRATIONS,
            .readers = 1,
            .queue_max = 64,
            .backend = &flaky,
            .in_simulation = true,
            .fatal = on_fatal },
        why, sizeof why, &device->sql);
    now.is_opening = false;
    CHECK_MSG(rc == 0, "open: %s: %s", sql_error_text(rc), why);
}

static void device_start(struct device *device)
{
    CHECK(!device->is_up);
    device->options = (struct mxengine_options){ .sql = device->sql,
        .key = &pickle_key,
        .policy = MXCLIENT_SHARE_ALL,
        .env = &now.env,
        .transport = { transport_ask, transport_take, transport_drop, NULL, device } };
    CHECK_EQ_INT(
        mxengine_spawn(now.s.system, &device->options,
            &(struct tr_spawn_options){ .owner = "the scenario", .ret_done = &device->done },
            &device->engine),
        0);
    device->is_up = true;
    device->life++;
    device->failed_hash = 0;
}

/* Kill the engine between two turns. */
static void device_kill(struct device *device)
{
    enum tr_why why;

    if (!device->is_up)
        return;
    (void)tr_kill(tr_sender_weaken(device->engine));
    tr_sender_drop(&device->engine);
    CHECK_EQ_INT(tr_done_wait(&device->done, NULL, &why, 0), 0);
    device->is_up = false;
    seen.kills++;
}

/* ---- jobs ------------------------------------------------------------------------------------- */

static struct tr_future *ask(struct device *device, struct mxengine_job *job)
{
    struct mxengine_message message = { job };
    struct tr_future *future = NULL;

    atomic_fetch_add(&job->holders, 1);
    if (tr_ask_future(device->engine, &message, sizeof message, 0, &future) != 0)
        mxengine_job_unref(job);
    return future;
}

/* Take the end of a job; false if it has not ended. */
static bool take(struct tr_future **future, int *ret_status)
{
    if (*future == NULL || !tr_future_is_ended(*future))
        return false;
    *ret_status = tr_future_wait(*future, NULL, 0, NULL, 1);
    tr_future_drop(future);
    return true;
}

static void send_next(uint32_t device)
{
    struct send *send = &now.sends[now.send_count];
    char content[40];

    if (!now.devices[device].is_up || now.send_count == SENDS_MAX)
        return;
    snprintf(content, sizeof content, "{\"body\":\"<%u>\"}", now.send_count++);
    *send = (struct send){ .device = device, .job = mxengine_job_create(MXENGINE_SEND) };
    mxengine_job_set(send->job, MXENGINE_ROOM, SPAN(MX_SERVER_ROOM));
    mxengine_job_set(send->job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(send->job, MXENGINE_CONTENT, span_of(content));
    send->future = ask(&now.devices[device], send->job);
}

static void poll_send(struct send *send)
{
    int status = TR_ECLOSED;

    if (send->fate != SEND_OPEN || (send->future != NULL && !take(&send->future, &status)))
        return;
    if (status == 0) {
        send->fate = SEND_ACCEPTED;
        seen.accepted++;
    } else if (status == SQL_EROWS || status == TR_EACCES || status == TR_ENOENT) {
        send->fate = SEND_REFUSED;
        seen.refused++;
    } else {
        send->fate = SEND_UNKNOWN;
        seen.unknown++;
    }
    mxengine_job_unref(send->job);
    send->job = NULL;
}

static uint32_t number_in(const struct mxstore_readable *row)
{
    struct buffer body = { 0 };
    const char *at;
    uint32_t number;

    CHECK_EQ_INT(mxclient_body_open(&pickle_key, row->event_id, row->body, &body), 0);
    at = memmem(body.bytes, body.size, "\"<", 2);
    CHECK(at != NULL);
    number = (uint32_t)strtoul(at + 2, NULL, 10);
    CHECK(number < now.send_count);
    buffer_free(&body);
    return number;
}

static void check_author(
    const struct device *device, uint32_t number, const struct mxstore_readable *row)
{
    bool is_own = &now.devices[now.sends[number].device] == device;

    CHECK_MSG((row->is_own != 0) == is_own, "author: event %u is %s of device %d", number,
        is_own ? "not" : "one", (int)(device - now.devices));
    CHECK_MSG((row->proof == MXSTORE_BY_US) == is_own, "author: event %u is by %s", number,
        mxstore_proof_text(row->proof));
    CHECK_MSG(row->proof > MXSTORE_BY_SERVER && row->device_id.size > 0,
        "author: event %u has none", number);
}

static void on_page(struct device *device, const struct sql_unit *rows)
{
    struct mxstore_readable row;

    for (uint32_t i = 0; i < sql_unit_rows(rows, 0); i++) {
        uint32_t number;

        mxstore_row(rows, 0, i, MXSTORE_IS_readable, &row);
        number = number_in(&row);
        check_author(device, number, &row);
        CHECK_MSG(row.seq > device->cursor, "cursor: %lld after %lld", (long long)row.seq,
            (long long)device->cursor);
        device->cursor = row.seq;
        CHECK_MSG(device->seen[number] == 0, "cursor: device %d reads event %u twice",
            (int)(device - now.devices), number);
        device->seen[number] = 1;
        seen.received++;
    }
}

/* Each device always has a reader that waits for news. */
static void poll_reader(struct device *device)
{
    int status;

    if (take(&device->reader, &status)) {
        if (status == 0)
            on_page(device, device->reader_job->rows);
        mxengine_job_unref(device->reader_job);
        device->reader_job = NULL;
    }
    if (device->reader != NULL || !device->is_up)
        return;
    mxengine_job_unref(device->reader_job);
    device->reader_job = mxengine_job_create(MXENGINE_EVENTS);
    device->reader_job->after_seq = device->cursor;
    device->reader_job->waits = true;
    device->reader_job->own = true;
    device->reader_job->count_max = between(&now.s, 1, 5);
    device->reader = ask(device, device->reader_job);
}

static void run_steps(uint32_t steps)
{
    for (uint32_t i = 0; i < steps && tr_sim_step(now.s.sim); i++)
        now.s.steps++;
    for (uint32_t i = 0; i < now.send_count; i++)
        poll_send(&now.sends[i]);
    for (uint32_t i = 0; i < now.device_count; i++)
        poll_reader(&now.devices[i]);
}

/* Run one job to its end; returns its status. */
static int do_job(struct device *device, struct mxengine_job *job)
{
    struct tr_future *future = ask(device, job);
    int status = TR_ECLOSED;

    for (uint32_t i = 0; future != NULL && !take(&future, &status); i++) {
        CHECK_MSG(i < STEPS_MAX, "answered: a job of verb %d does not end", job->verb);
        run_steps(1);
    }
    return status;
}

static int do_login(struct device *device)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGIN);
    char user[16];
    int status;

    mx_server_user_name(device->user, user);
    mxengine_job_set(job, MXENGINE_URL, SPAN("https://x"));
    mxengine_job_set(job, MXENGINE_USER, span_of(user));
    mxengine_job_set(job, MXENGINE_PASSWORD, SPAN("secret"));
    device->failed_hash = 0; /* a user may log in as soon as the engine's own login has failed */
    status = do_job(device, job);
    mxengine_job_unref(job);
    return status;
}

static void do_room(struct device *device, enum mxengine_verb verb, int user)
{
    struct mxengine_job *job = mxengine_job_create(verb);
    char name[16];

    mx_server_user_name(user, name);
    if (user > 0)
        mxengine_job_set(job, MXENGINE_USER, span_of(name));
    mxengine_job_set(job, MXENGINE_ROOM, SPAN(MX_SERVER_ROOM));
    CHECK_EQ_INT(do_job(device, job), 0);
    mxengine_job_unref(job);
}

static struct mxengine_status status_of(struct device *device)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_STATUS);
    struct mxengine_status status;

    CHECK_EQ_INT(do_job(device, job), 0);
    status = job->status;
    mxengine_job_unref(job);
    return status;
}

static void run_ms(uint64_t ms)
{
    uint64_t until = tr_sim_now_ns(now.s.sim) + ms * MS;

    for (uint64_t last = 0; tr_sim_now_ns(now.s.sim) < until && last != now.s.steps;) {
        last = now.s.steps;
        run_steps(20);
    }
}

/* ---- the end ---------------------------------------------------------------------------------- */

static bool is_complete(void)
{
    for (uint32_t i = 0; i < now.device_count; i++)
        if (now.devices[i].since.events != now.server.event_count)
            return false;
    for (uint32_t n = 0; n < now.send_count; n++) {
        if (now.sends[n].fate == SEND_OPEN)
            return false;
        for (uint32_t i = 0; i < now.device_count; i++)
            if (now.sends[n].fate == SEND_ACCEPTED && now.devices[i].seen[n] == 0)
                return false;
    }
    return true;
}

SQL_STATEMENT(unread, "SELECT event_id, status, reason FROM mx_event WHERE status <> 1");
SQL_STATEMENT(unsent, "SELECT txn_id, sending, reason FROM mx_outbox WHERE sending <> 2");

/* Say what a device has that is not read or not sent. */
static void say_rows(uint32_t index, const struct sql_statement *statement, const char *what)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(now.devices[index].sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++)
        fprintf(stderr, "device %u: %s %.*s has status %d, reason %d\n", index, what,
            (int)sql_row_bytes(unit, 0, i, 0).size, sql_row_bytes(unit, 0, i, 0).at,
            (int)sql_row_int(unit, 0, i, 1),
            statement == &unread ? (int)sql_row_int(unit, 0, i, 2) : 0);
    sql_unit_destroy(unit);
}

static void say_missing(void)
{
    for (uint32_t i = 0; i < now.device_count; i++) {
        say_rows(i, &unread, "event");
        say_rows(i, &unsent, "transaction");
    }
    for (uint32_t n = 0; n < now.send_count; n++)
        for (uint32_t i = 0; i < now.device_count; i++)
            if (now.sends[n].fate == SEND_OPEN ||
                (now.sends[n].fate == SEND_ACCEPTED && now.devices[i].seen[n] == 0))
                fprintf(stderr, "event %u of device %u (fate %d) is not on device %u\n", n,
                    now.sends[n].device, now.sends[n].fate, i);
}

SQL_STATEMENT(count_sent, "SELECT COUNT(*) FROM mx_outbox WHERE sending = 2");
SQL_STATEMENT(count_unsent, "SELECT COUNT(*) FROM mx_outbox WHERE sending <> 2");
SQL_STATEMENT(count_status, "SELECT status, COUNT(*) FROM mx_event GROUP BY status");
SQL_STATEMENT(count_gaps, "SELECT COUNT(*) FROM mx_gap");
SQL_STATEMENT(plain_rooms, "SELECT COUNT(*) FROM mx_room WHERE is_encrypted = 0");

static bool has_gap(void)
{
    int64_t count = 0;

    for (uint32_t i = 0; i < now.device_count; i++) {
        struct sql_unit *unit = sql_unit_create(0);

        sql_unit_step(unit, &count_gaps, 1);
        CHECK_EQ_INT(sql_read_wait(now.devices[i].sql, unit), 0);
        count += sql_row_int(unit, 0, 0, 0);
        sql_unit_destroy(unit);
    }
    return count > 0;
}

/* Check the keys that count as published against the server's. */
static void check_published(struct device *device, const struct mxclient *client)
{
    const struct mx_account *account = client->session.account;
    const struct mx_server_device *there = NULL;
    struct mx_one_time_key key;
    char id[MX_KEY_ID_CHARS + 1], name[64];

    for (int i = 0; i < now.server.device_count; i++)
        if (span_is(mxclient_span(&client->session.device_id), now.server.devices[i].id))
            there = &now.server.devices[i];
    CHECK(there != NULL);
    for (size_t i = 0; mx_account_one_time_key_at(account, i, &key); i++) {
        bool is_there = false;

        mx_key_id_text(key.id, id);
        snprintf(name, sizeof name, "signed_curve25519:%s", id);
        for (int k = 0; k < there->key_count; k++)
            is_there = is_there || span_is(mx_server_text(&there->keys[k].name), name);
        CHECK_MSG(!key.is_published || is_there, "published: key %s of device %d is not there",
            name, (int)(device - now.devices));
    }
}

/* A replay is abandoned, whoever sent the event. */
static int64_t count_replays(void)
{
    int64_t count = 0;

    for (int i = 0; i < now.server.event_count; i++)
        count += now.server.events[i].replay_of > 0 ? 1 : 0;
    return count;
}

static int64_t check_database(struct device *device)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mx_random random = { NULL, NULL };
    struct mxclient client = { 0 };
    int64_t sent, counts[MXSTORE_ABANDONED + 1] = { 0 };
    int64_t abandoned = count_replays();
    int expected = 0;

    mxclient_load_read(unit);
    CHECK_EQ_INT(sql_read_wait(device->sql, unit), 0);
    mxclient_session_init(&client.session, &random, &pickle_key);
    CHECK_EQ_INT(mxclient_load(&client, unit, 0), 0);
    check_published(device, &client);
    mxclient_fini(&client);
    sql_unit_destroy(unit);
    unit = sql_unit_create(0);
    sql_unit_step(unit, &count_sent, 1);
    sql_unit_step(unit, &count_unsent, 1);
    sql_unit_step(unit, &count_status, SQL_ROWS_ANY);
    sql_unit_step(unit, &plain_rooms, 1);
    sql_unit_step(unit, &count_gaps, 1);
    CHECK_EQ_INT(sql_read_wait(device->sql, unit), 0);
    sent = sql_row_int(unit, 0, 0, 0);
    CHECK_MSG(sql_row_int(unit, 1, 0, 0) == 0, "once: an outbox has unsent rows");
    for (uint32_t i = 0; i < sql_unit_rows(unit, 2); i++)
        counts[sql_row_int(unit, 2, i, 0)] = sql_row_int(unit, 2, i, 1);
    for (uint32_t i = 0; i < SENDS_MAX; i++)
        expected += device->seen[i];
    CHECK_MSG(counts[MXSTORE_ENQUEUED] == expected, "once: %d are stored, %d were read",
        (int)counts[MXSTORE_ENQUEUED], expected);
    CHECK_MSG(counts[MXSTORE_HELD] == 0, "once: device %d holds %d events",
        (int)(device - now.devices), (int)counts[MXSTORE_HELD]);
    CHECK_MSG(counts[MXSTORE_ABANDONED] == abandoned, "once: %d are abandoned, %d are replays",
        (int)counts[MXSTORE_ABANDONED], (int)abandoned);
    CHECK_MSG(sql_row_int(unit, 3, 0, 0) == 0, "sticky: a room is not encrypted");
    CHECK_MSG(sql_row_int(unit, 4, 0, 0) == 0, "once: a timeline has a gap");
    sql_unit_destroy(unit);
    return sent;
}

static void check_end(void)
{
    int64_t sent = 0, events = 0;

    for (uint32_t i = 0; i < now.device_count; i++)
        sent += check_database(&now.devices[i]);
    for (int i = 0; i < now.server.event_count; i++)
        events += now.server.events[i].device >= 0 ? 1 : 0;
    CHECK_MSG(sent == events, "once: %d were sent, %d are in the room", (int)sent, (int)events);
    for (uint32_t n = 0; n < now.send_count; n++)
        for (uint32_t i = 0; i < now.device_count; i++)
            CHECK_MSG(now.sends[n].fate != SEND_REFUSED || now.devices[i].seen[n] == 0,
                "once: event %u was refused and is on device %u", n, i);
}

/* ---- the run ---------------------------------------------------------------------------------- */

static void begin(uint64_t seed)
{
    memset(&now, 0, sizeof now);
    scenario_begin(&now.s, seed, NULL);
    now.wall_offset_ns = (uint64_t)1700000000 * 1000 * MS;
    now.env = *tr_system_env(now.s.system);
    now.env.now_ns = env_now;
    now.env.wall_ns = env_wall;
    now.env.random = env_random;
    now.server.random = env_random;
    now.server.faults =
        (struct mx_server_faults){ .timeline_max = 1000, .has_refresh = percent(&now.s, 50) };
    now.user_count = between(&now.s, 2, MX_SERVER_USERS);
    now.device_count = between(&now.s, now.user_count, DEVICES_MAX);
    CHECK_EQ_INT(tr_spawn(now.s.system, &server_type, &(struct server_actor){ 0 },
                     &(struct tr_spawn_options){ .owner = "the scenario" }, &now.server_sender),
        0);
    for (uint32_t i = 0; i < now.device_count; i++) {
        now.devices[i].user = (int)(i % now.user_count);
        device_open(&now.devices[i]);
        device_start(&now.devices[i]);
    }
    now.server.faults.no_one_time = seed % 4 == 1;
    now.server.faults.rotation = seed % 3 == 0 ? ROTATION : 0;
}

static void draw_faults(void)
{
    struct scenario *s = &now.s;

    /* One after the other: the compiler may choose the order within an initializer. */
    now.faults.drop = below(s, 8);
    now.faults.refuse = below(s, 8);
    now.faults.limit = below(s, 8);
    now.faults.act_and_drop = below(s, 8);
    now.faults.act_and_fail = below(s, 8);
    now.faults.cut = below(s, 8);
    now.faults.slow = below(s, 5);
    now.lose_percent = percent(s, 30) ? below(s, 10) : 0;
    now.server.faults.timeline_max = percent(s, 50) ? (int)between(s, 1, 3) : 1000;
    now.server.faults.late_percent = percent(s, 50) ? (int)below(s, 60) : 0;
    now.server.faults.duplicate_percent = percent(s, 30) ? (int)below(s, 30) : 0;
}

static void end_faults(void)
{
    now.faults = (struct faults){ 0 };
    now.lose_percent = 0;
    now.server.faults.late_percent = now.server.faults.duplicate_percent = 0;
}

/* Engines are killed while they log in, upload their keys and start to sync. */
static void storm_early(void)
{
    uint32_t rounds = between(&now.s, 2, 8);

    draw_faults();
    for (uint32_t i = 0; i < rounds; i++) {
        struct device *device = &now.devices[below(&now.s, now.device_count)];

        run_steps(below(&now.s, 60));
        device_kill(device);
        device_start(device);
    }
    end_faults();
}

/* A device has its place in the timeline: events before its first /sync may be history to it. A request
 * of the early storm may still be slow. */
static void wait_ready(uint32_t index)
{
    for (int k = 0; k < 100 && (mx_server_unclaimed(&now.server.devices[index]) == 0 ||
                                   !now.devices[index].has_synced);
         k++)
        run_ms(1000);
    CHECK_MSG(mx_server_unclaimed(&now.server.devices[index]) > 0, "a device has no keys");
    CHECK_MSG(now.devices[index].has_synced, "a device does not sync");
}

/* Everybody logs in, uploads keys and meets in the room. */
static void settle(void)
{
    for (uint32_t i = 0; i < now.device_count; i++)
        CHECK_EQ_INT(do_login(&now.devices[i]), 0);
    if (percent(&now.s, 50))
        storm_early();
    run_ms(3000);
    do_room(&now.devices[0], MXENGINE_CREATE, 0);
    if (now.server.faults.rotation > 0)
        mx_server_post(&now.server, 0, "m.room.encryption", "",
            SPAN("{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"rotation_period_msgs\":3}"));
    for (uint32_t user = 1; user < now.user_count; user++) {
        do_room(&now.devices[0], MXENGINE_INVITE, (int)user);
        do_room(&now.devices[user], MXENGINE_JOIN, 0);
    }
    run_ms(3000);
    for (uint32_t i = 0; i < now.device_count; i++)
        wait_ready(i);
}

/* The machine of all devices loses power; unsynced writes may be gone. */
static void cut_power(void)
{
    for (uint32_t i = 0; i < now.device_count; i++)
        device_kill(&now.devices[i]);
    now.is_dark = true;
    tr_sim_disk_crash(now.s.sim);
    for (uint32_t i = 0; i < now.device_count; i++)
        sql_close(&now.devices[i].sql);
    tr_sim_disk_crash(now.s.sim);
    now.is_dark = false;
    for (uint32_t i = 0; i < now.device_count; i++)
        device_open(&now.devices[i]);
    seen.cuts++;
}

/* The server ends a login; it knows the refresh token, or nothing. */
static void end_login(void)
{
    struct mx_server_device *device = &now.server.devices[below(&now.s, now.device_count)];

    device->token = 0;
    if (percent(&now.s, 50))
        device->refresh = device->refresh_former = 0;
    seen.soft++;
}

static void storm(void)
{
    struct scenario *s = &now.s;
    uint32_t rounds = between(s, 4, 16);

    draw_faults();
    for (uint32_t i = 0; i < rounds; i++) {
        send_next(below(s, now.device_count));
        run_steps(below(s, percent(s, 30) ? 1000 : 100));
        if (percent(s, 20))
            device_kill(&now.devices[below(s, now.device_count)]);
        if (percent(s, 6))
            cut_power();
        if (percent(s, 8))
            end_login();
        if (percent(s, 5)) {
            mx_server_replay(&now.server);
            seen.replays++;
        }
        /* A used fallback key is dropped by the clock: messages of yesterday would be lost. */
        if (percent(s, 8) && !now.server.faults.no_one_time) {
            now.wall_offset_ns += ((uint64_t)below(s, 3) - 1) * 86400000 * MS + below(s, 1000) * MS;
            seen.jumps++;
        }
        for (uint32_t k = 0; k < now.device_count; k++)
            if (!now.devices[k].is_up && percent(s, 60))
                device_start(&now.devices[k]);
    }
}

/* Users log in again where the server has ended the login. */
static void log_in_again(void)
{
    for (uint32_t k = 0; k < now.device_count; k++)
        if (status_of(&now.devices[k]).state == MXCLIENT_SOFT_OUT)
            (void)do_login(&now.devices[k]);
}

static void finish(void)
{
    for (uint32_t i = 0; i < now.device_count; i++)
        if (!now.devices[i].is_up)
            device_start(&now.devices[i]);
    for (uint32_t i = 0; i < 200 && !is_complete(); i++) {
        log_in_again();
        run_ms(60000);
    }
    if (!is_complete())
        say_missing();
    CHECK_MSG(is_complete(), "once: events are missing after hours without a fault");
    /* A walk whose round took too long goes on after a pause. */
    for (uint32_t i = 0; i < 5 && has_gap(); i++) {
        log_in_again();
        run_ms(60000);
    }
    run_ms(60000);
    log_in_again(); /* a login may have ended before the last answer */
    run_ms(60000);  /* also the answers are stored */
    for (uint32_t i = 0; i < now.device_count; i++)
        seen.reloads += status_of(&now.devices[i]).reloads;
    check_end();
}

/* ---- verifications ---------------------------------------------------------------------------- */

struct side {
    struct device *device;
    uint32_t life;
    int64_t seq;
    enum mxclient_verify_step step; /* the last one */
    struct mx_sas_code code;
    bool says_match;
};

static int do_act(struct device *device, const char *id, enum mxclient_verify_act act)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_ACT);
    int rc;

    mxengine_job_set(job, MXENGINE_TEXT, span_of(id));
    job->act = act;
    rc = do_job(device, job);
    mxengine_job_unref(job);
    return rc;
}

static uint32_t index_of(const struct device *device)
{
    return (uint32_t)(device - now.devices);
}

/* A user reads the next step and answers. */
static void side_read(struct side *side, const struct side *peer)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_NEWS);
    struct mxclient_verify_news news;

    job->after_seq = side->seq;
    CHECK_EQ_INT(do_job(side->device, job), 0);
    side->seq = job->seq;
    news = job->news;
    mxengine_job_unref(job);
    side->step = news.step;
    if (news.step == MXCLIENT_VERIFY_ASKED)
        (void)do_act(side->device, news.transaction_id, MXCLIENT_VERIFY_ACCEPT);
    if (news.step != MXCLIENT_VERIFY_COMPARE)
        return;
    side->code = news.code;
    now.matched[index_of(side->device)][index_of(peer->device)] |= side->says_match;
    (void)do_act(side->device, news.transaction_id,
        side->says_match ? MXCLIENT_VERIFY_MATCH : MXCLIENT_VERIFY_MISMATCH);
}

static void side_poll(struct side *side, const struct side *peer)
{
    if (side->life != side->device->life) { /* the steps of an engine end with it */
        side->life = side->device->life;
        side->seq = 0;
    }
    while (status_of(side->device).is_loaded && status_of(side->device).news_seq > side->seq)
        side_read(side, peer);
}

SQL_STATEMENT(get_trust, "SELECT trust FROM mx_device WHERE user_id = $1 AND device_id = $2");

static bool is_verified(const struct device *device, const struct device *peer)
{
    struct sql_unit *unit = sql_unit_create(0);
    char user[16];
    bool is;

    mx_server_user_name(peer->user, user);
    sql_unit_step(unit, &get_trust, SQL_ROWS_ANY);
    sql_unit_text(unit, span_of(user));
    sql_unit_text(unit, span_of(now.server.devices[index_of(peer)].id));
    CHECK_EQ_INT(sql_read_wait(device->sql, unit), 0);
    is = sql_unit_rows(unit, 0) == 1 && sql_row_int(unit, 0, 0, 0) == MXSTORE_VERIFIED;
    sql_unit_destroy(unit);
    return is;
}

static bool is_ended(const struct side *side)
{
    return side->step == MXCLIENT_VERIFY_DONE || side->step == MXCLIENT_VERIFY_CANCELLED;
}

/* Ask, and let both users compare; `kill` is a side whose engine is killed meanwhile, or 2. */
static void sas_run(struct side sides[2], uint32_t kill)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_VERIFY);
    uint32_t when = below(&now.s, 40);
    char user[16];

    for (int i = 0; i < 2; i++) {
        sides[i].life = sides[i].device->life;
        sides[i].seq = status_of(sides[i].device).news_seq;
    }
    mx_server_user_name(sides[1].device->user, user);
    mxengine_job_set(job, MXENGINE_USER, span_of(user));
    mxengine_job_set(
        job, MXENGINE_DEVICE, span_of(now.server.devices[index_of(sides[1].device)].id));
    CHECK_EQ_INT(do_job(sides[0].device, job), 0);
    mxengine_job_unref(job);
    for (uint32_t i = 0; i < 1000 && !(is_ended(&sides[0]) && is_ended(&sides[1])); i++) {
        run_ms(i < 60 ? 20 : 10000);
        if (i == when && kill < 2) {
            device_kill(sides[kill].device);
            device_start(sides[kill].device);
            run_ms(100);
        }
        side_poll(&sides[0], &sides[1]);
        side_poll(&sides[1], &sides[0]);
        if (i > 100 && kill < 2)
            break; /* the side that was killed may have nothing to say */
    }
    while (status_of(sides[0].device).is_posting || status_of(sides[1].device).is_posting)
        run_ms(1000);
    run_ms(1000);
}

/* Two devices verify each other; they succeed if both users say so and nobody is killed. */
static bool sas(struct device *first, struct device *second, bool is_smooth)
{
    bool is_match = is_smooth || percent(&now.s, 70);
    uint32_t kill = is_smooth || percent(&now.s, 60) ? 2 : below(&now.s, 2);
    uint32_t doubter = below(&now.s, 2);
    struct side sides[2] = { { .device = first, .says_match = is_match || doubter != 0 },
        { .device = second, .says_match = is_match || doubter != 1 } };
    static const struct mx_sas_code none;
    bool verified[2];

    sas_run(sides, kill);
    for (int i = 0; i < 2; i++) {
        verified[i] = is_verified(sides[i].device, sides[1 - i].device);
        seen.verified += verified[i];
        seen.unverified += !verified[i];
        CHECK_MSG(!verified[i] || (now.matched[index_of(first)][index_of(second)] &&
                                      now.matched[index_of(second)][index_of(first)]),
            "sas: device %u is verified, and not both users said so",
            index_of(sides[1 - i].device));
        CHECK_MSG(kill < 2 || verified[i] == is_match || !is_match,
            "sas: device %u is not verified after both users said match (step %d and %d)",
            index_of(sides[1 - i].device), sides[0].step, sides[1].step);
    }
    CHECK_MSG(memcmp(&sides[0].code, &none, sizeof none) == 0 ||
                  memcmp(&sides[1].code, &none, sizeof none) == 0 ||
                  memcmp(&sides[0].code, &sides[1].code, sizeof none) == 0,
        "sas: two codes");
    return verified[0] && verified[1];
}

/* ---- leaving ---------------------------------------------------------------------------------- */

/* Run until every device of a user in the room has all events. */
static void run_until_seen(void)
{
    for (uint32_t i = 0; i < now.device_count; i++)
        for (int k = 0; k < 100 && now.server.members[now.devices[i].user] == MX_SERVER_IN &&
                        now.devices[i].since.events != now.server.event_count;
             k++)
            run_ms(1000);
}

/* Send an event of device 0 and run until it is in the room; returns its number. */
static uint32_t send_and_wait(void)
{
    uint32_t number = now.send_count;
    int count = now.server.event_count;

    send_next(0);
    for (int i = 0; i < 500 && now.server.event_count == count; i++)
        run_ms(1000);
    CHECK_MSG(now.server.event_count > count, "once: event %u does not leave", number);
    run_until_seen();
    run_ms(30000); /* a device may have to be tried again */
    return number;
}

static void do_leave(struct device *device)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LEAVE);

    mxengine_job_set(job, MXENGINE_ROOM, SPAN(MX_SERVER_ROOM));
    CHECK_EQ_INT(do_job(device, job), 0);
    mxengine_job_unref(job);
}

/* Check that the session of the last event has no event before it. */
static void check_new_session(void)
{
    const char *last = now.server.events[now.server.event_count - 1].index;
    size_t size = strcspn(last, " ");

    for (int i = 0; i + 1 < now.server.event_count; i++)
        CHECK_MSG(strncmp(now.server.events[i].index, last, size + 1) != 0,
            "leave: session %s goes on after a member left", last);
}

/* A user leaves, misses an event, and comes back. */
static void leave_and_return(void)
{
    struct device *leaver = &now.devices[1];
    uint32_t missed, next;

    if (now.send_count + 2 > SENDS_MAX)
        return;
    do_leave(leaver);
    run_ms(5000);
    run_until_seen();
    missed = send_and_wait();
    check_new_session();
    do_room(&now.devices[0], MXENGINE_INVITE, leaver->user);
    do_room(leaver, MXENGINE_JOIN, 0);
    run_ms(5000);
    run_until_seen();
    next = send_and_wait();
    for (uint32_t i = 1; i < now.device_count; i++) {
        bool was_there = now.devices[i].user != leaver->user;

        CHECK_MSG(now.devices[i].seen[missed] == was_there,
            "leave: device %u %s event %u of its absence", i, was_there ? "misses" : "reads",
            missed);
        CHECK_MSG(now.devices[i].seen[next] == 1, "leave: device %u misses event %u", i, next);
    }
    seen.leaves++;
}

/* ---- keys of the past ------------------------------------------------------------------------- */

SQL_STATEMENT(count_held, "SELECT COUNT(*) FROM mx_event WHERE status = 0");

static int64_t held_of(const struct device *device)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t count;

    sql_unit_step(unit, &count_held, 1);
    CHECK_EQ_INT(sql_read_wait(device->sql, unit), 0);
    count = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return count;
}

/* Log in a further device of user 0. */
static struct device *add_device(void)
{
    struct device *device = &now.devices[now.device_count++];

    device->user = 0;
    device_open(device);
    device_start(device);
    CHECK_EQ_INT(do_login(device), 0);
    for (int i = 0; i < 100 && !status_of(device).is_settled; i++)
        run_ms(1000);
    run_ms(3000);
    return device;
}

/* Ask device 0 for the keys of all events in the name of another one, as a server could. */
static void forge_requests(const struct device *asker)
{
    for (int i = 0; i < now.server.event_count; i++) {
        const struct mx_server_event *event = &now.server.events[i];
        struct mx_server_message *message = &now.server.messages[now.server.message_count];

        if (event->device < 0)
            continue;
        CHECK(now.server.message_count++ < MX_SERVER_MESSAGES);
        message->to = 0;
        (void)buffer_format(&message->json,
            "{\"type\":\"m.room_key_request\",\"sender\":\"@u0:x\",\"content\":{"
            "\"action\":\"request\",\"request_id\":\"f%d\",\"requesting_device_id\":\"%s\","
            "\"body\":{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"" MX_SERVER_ROOM
            "\",\"session_id\":\"%.*s\"}}}",
            i, now.server.devices[index_of(asker)].id, (int)strcspn(event->index, " "),
            event->index);
    }
}

static int count_messages_to(uint32_t index)
{
    int count = 0;

    for (int i = 0; i < now.server.message_count; i++)
        count += now.server.messages[i].to == (int)index ? 1 : 0;
    return count;
}

/* A key request goes to devices alone that the asker's user has compared codes with. */
static void check_asked(const struct exchange *exchange)
{
    struct json_doc doc = { 0 };
    const struct json *devices;

    if (exchange->call != MXCLIENT_TO_DEVICE ||
        memmem(exchange->target.bytes, exchange->target.size, "m.room_key_request", 18) == NULL)
        return;
    CHECK_EQ_INT(json_parse_copy(&doc, mx_server_text(&exchange->body), 0), 0);
    devices = json_get(json_get(json_root(&doc), "messages"), "@u0:x");
    for (uint32_t i = 0; i < now.device_count; i++)
        CHECK_MSG(
            json_get(devices, now.server.devices[i].id) == NULL || now.matched[exchange->device][i],
            "keys: device %u asks device %u, which is not verified", exchange->device, i);
    json_doc_free(&doc);
}

/* Two further devices of user 0 find old events: one is verified and reads them, one is not. */
static void ask_for_keys(void)
{
    struct device *friend, *stranger;
    int before;

    now.server.faults.timeline_max = 20; /* the answer has to fit a message of the simulation */
    friend = add_device();
    stranger = add_device();
    if (!sas(friend, &now.devices[0], true))
        return;
    for (int i = 0; i < 60 && held_of(friend) > 0; i++)
        run_ms(30000);
    if (held_of(friend) > 0)
        say_rows(index_of(friend), &unread, "event");
    CHECK_MSG(
        held_of(friend) == 0, "keys: a verified device holds %d events", (int)held_of(friend));
    before = count_messages_to(index_of(stranger));
    forge_requests(stranger);
    run_ms(300000);
    CHECK_MSG(count_messages_to(index_of(stranger)) == before,
        "keys: a device that is not verified got an answer");
    seen.keys++;
}

static void wait_fallbacks(void)
{
    now.server.faults.no_one_time = false;
    for (uint32_t i = 0; i < now.device_count; i++) {
        seen.fallbacks += now.server.devices[i].is_fallback_used ? 1 : 0;
        for (int k = 0; k < 90 && now.server.devices[i].is_fallback_used; k++)
            run_ms(60000);
        CHECK_MSG(!now.server.devices[i].is_fallback_used,
            "fallback: device %u keeps a key that was used", i);
    }
}

/* The server takes an event and its /sync stands still, for a while. */
static void stall(void)
{
    int count = now.server.event_count;

    if (now.send_count == SENDS_MAX)
        return;
    run_ms(600000);
    CHECK_MSG(!status_of(&now.devices[0]).is_stalled, "stalled: a quiet room is not");
    now.server.faults.is_stuck = true;
    send_next(0);
    for (int i = 0; i < 100 && now.server.event_count == count; i++)
        run_ms(1000);
    run_ms(600000);
    CHECK_MSG(status_of(&now.devices[0]).is_stalled == (now.server.event_count > count),
        "stalled: nobody noticed");
    now.server.faults.is_stuck = false;
    run_ms(120000);
    CHECK_MSG(!status_of(&now.devices[0]).is_stalled, "stalled: it is over");
}

/* After the storm, without faults. */
static void epilogue(uint64_t seed)
{
    log_in_again(); /* a login may have ended last of all */
    run_ms(10000);
    if (seed % 4 == 1)
        wait_fallbacks();
    if (seed % 2 == 0)
        (void)sas(&now.devices[0], &now.devices[1 + below(&now.s, now.device_count - 1)], false);
    if (seed % 3 != 1)
        leave_and_return();
    if (seed % 3 == 1)
        ask_for_keys();
    if (seed % 8 == 5)
        stall();
}

static void end(void)
{
    for (uint32_t i = 0; i < now.device_count; i++) {
        device_kill(&now.devices[i]);
        tr_future_drop(&now.devices[i].reader);
        mxengine_job_unref(now.devices[i].reader_job);
        sql_close(&now.devices[i].sql);
    }
    tr_sender_drop(&now.server_sender);
    seen.limited += now.server.limited;
    seen.late += now.server.late;
    seen.duplicated += now.server.duplicated;
    mx_server_fini(&now.server);
}

static uint64_t run(uint64_t seed)
{
    static int nowhere = -1;

    if (!is_verbose() && nowhere < 0) {
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        log_setup(nowhere, LOG_LOGFMT, LOG_ERROR);
    }
    begin(seed);
    settle();
    storm();
    end_faults();
    finish();
    epilogue(seed);
    end();
    return scenario_end(&now.s);
}

TEST_LONG(matrix, loses_nothing_and_repeats_nothing, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 50);)
        run(seed);
    scenario_report();
    printf(
        "%llu events accepted, %llu refused, %llu unknown, %llu received; %llu kills, %llu power "
        "cuts, %llu commits in the dark, %llu lost commits, %llu reloads; %llu requests dropped, "
        "%llu 502, %llu 429, %llu "
        "lost after they acted, %llu cut, %llu slow; %llu logins ended, %llu clock jumps, %llu "
        "limited, %llu late, %llu duplicated, %llu replays; %llu devices verified, %llu not, %llu "
        "leaves, %llu key requests, %llu fallback keys used\n",
        (unsigned long long)seen.accepted, (unsigned long long)seen.refused,
        (unsigned long long)seen.unknown, (unsigned long long)seen.received,
        (unsigned long long)seen.kills, (unsigned long long)seen.cuts,
        (unsigned long long)seen.fatal, (unsigned long long)seen.lost,
        (unsigned long long)seen.reloads, (unsigned long long)seen.dropped,
        (unsigned long long)seen.refusals, (unsigned long long)seen.limits,
        (unsigned long long)seen.acted, (unsigned long long)seen.truncated,
        (unsigned long long)seen.slow, (unsigned long long)seen.soft,
        (unsigned long long)seen.jumps, (unsigned long long)seen.limited,
        (unsigned long long)seen.late, (unsigned long long)seen.duplicated,
        (unsigned long long)seen.replays, (unsigned long long)seen.verified,
        (unsigned long long)seen.unverified, (unsigned long long)seen.leaves,
        (unsigned long long)seen.keys, (unsigned long long)seen.fallbacks);
    CHECK_COVERED(seen.accepted, 5000);
    CHECK_COVERED(seen.unknown, 100);
    CHECK_COVERED(seen.received, 10000);
    CHECK_COVERED(seen.kills, 5000);
    CHECK_COVERED(seen.cuts, 200);
    CHECK_COVERED(seen.lost, 2000);
    CHECK_COVERED(seen.reloads, 500);
    CHECK_COVERED(seen.acted, 5000);
    CHECK_COVERED(seen.soft, 300);
    CHECK_COVERED(seen.jumps, 200);
    CHECK_COVERED(seen.limited, 300);
    CHECK_COVERED(seen.late, 1000);
    CHECK_COVERED(seen.replays, 100);
    CHECK_COVERED(seen.verified, 500);
    CHECK_COVERED(seen.unverified, 100);
    CHECK_COVERED(seen.leaves, 200);
    CHECK_COVERED(seen.keys, 100);
    CHECK_COVERED(seen.fallbacks, 80);
}

TEST_LONG(matrix, is_replayed_from_its_seed, 60)
{
    check_traces(run, 3);
}
