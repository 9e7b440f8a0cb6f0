/* SPDX-License-Identifier: Apache-2.0 */
/* One engine on the virtual clock, against a homeserver whose answers each case scripts: what happens
 * after minutes and hours of answers that a well-behaved server never gives. */
#include <unistd.h>

#include "base/alloc.h"
#include "check.h"
#include "matrix/client/body.h"
#include "matrix/client/engine.h"
#include "matrix/client/sync.h"
#include "matrix/client/timeline.h"
#include "support/log.h"

enum { EXCHANGES_MAX = 32, BODY_MAX = 60000 };
#define MS UINT64_C(1000000)
#define ROOM_A "!a:x"
#define ROOM_B "!b:x"
static const struct mx_pickle_key key = { { 7 } };

/* ---- the homeserver --------------------------------------------------------------------------- */

struct exchange {
    enum mxclient_call call;
    struct buffer target, body;
    uint64_t file_bytes; /* of an upload */
    tr_reply_handle reply;
};

struct script_reply {
    uint32_t status;
    uint64_t delay_ms;
    bool is_silent; /* no answer ever: the peer has vanished */
    char body[BODY_MAX];
};

static struct {
    struct tr_sim *sim;
    struct tr_env env;
    struct sql *sql;
    struct mxengine_options options;
    tr_sender home, engine;
    struct tr_done *done;
    uint64_t asked[MXCLIENT_CALL_COUNT];
    uint64_t sync_number;
    const char *first_sync;    /* members of the first answer of /sync, after next_batch */
    char news[BODY_MAX - 100]; /* the same of the next one; "": none */
    /* The case's own answers; false: the usual one. */
    bool (*answer)(const struct exchange *exchange, struct script_reply *reply);
} stage;

static bool exchange_has(const struct exchange *exchange, const char *text)
{
    return memmem(exchange->target.bytes, exchange->target.size, text, strlen(text)) != NULL;
}

static void answer_sync(const struct exchange *exchange, struct script_reply *reply)
{
    bool is_first = !exchange_has(exchange, "since=");

    if (!exchange_has(exchange, "timeout=0"))
        reply->delay_ms = 1000; /* no pause follows */
    snprintf(reply->body, sizeof reply->body, "{\"next_batch\":\"s%llu\"%s}",
        (unsigned long long)++stage.sync_number, is_first ? stage.first_sync : stage.news);
    if (!is_first)
        stage.news[0] = 0;
}

/* The engine has chosen the id of its device. */
static void answer_login(const struct exchange *exchange, struct script_reply *reply)
{
    struct json_doc doc = { 0 };
    struct span device;

    CHECK_EQ_INT(json_parse_copy(&doc, mxclient_span(&exchange->body), 0), 0);
    CHECK(json_string(json_get(json_root(&doc), "device_id"), &device));
    snprintf(reply->body, sizeof reply->body,
        "{\"user_id\":\"@ada:x\",\"device_id\":\"%.*s\",\"access_token\":\"t\"}", (int)device.size,
        device.at);
    json_doc_free(&doc);
}

/* Answer as a server does whose rooms are quiet. */
static void answer_usual(const struct exchange *exchange, struct script_reply *reply)
{
    static const char *const bodies[MXCLIENT_CALL_COUNT] = {
        [MXCLIENT_VERSIONS] = "{\"versions\":[\"v1.11\"]}",
        [MXCLIENT_FILTER] = "{\"filter_id\":\"1\"}",
        [MXCLIENT_SEND] = "{\"event_id\":\"$e\"}",
        [MXCLIENT_MESSAGES] = "{\"chunk\":[]}",
        [MXCLIENT_KEYS_UPLOAD] = "{\"one_time_key_counts\":{\"signed_curve25519\":50}}",
        [MXCLIENT_KEYS_QUERY] = "{\"device_keys\":{}}",
        [MXCLIENT_UPLOAD] = "{\"content_uri\":\"mxc://x/file\"}",
    };

    if (exchange->call == MXCLIENT_WELL_KNOWN)
        reply->status = 404;
    if (exchange->call == MXCLIENT_SYNC)
        answer_sync(exchange, reply);
    else if (exchange->call == MXCLIENT_LOGIN)
        answer_login(exchange, reply);
    else
        snprintf(reply->body, sizeof reply->body, "%s",
            bodies[exchange->call] == NULL ? "{}" : bodies[exchange->call]);
}

struct home_message {
    struct exchange *exchange;
};

struct home_place {
    struct exchange *exchange;
    struct script_reply *reply;
};

struct home {
    struct home_place places[EXCHANGES_MAX];
};

static void home_free(struct home_place *place)
{
    if (place->exchange == NULL)
        return;
    tr_reply_drop(&place->exchange->reply);
    buffer_free(&place->exchange->target);
    buffer_free(&place->exchange->body);
    base_free(place->exchange);
    base_free(place->reply);
    *place = (struct home_place){ NULL, NULL };
}

static enum tr_next home_handle(void *self, struct tr_context *ctx, void *message)
{
    struct home_place place = { ((struct home_message *)message)->exchange,
        base_calloc(sizeof(struct script_reply)) };
    struct home *home = self;
    uint32_t index = 0;

    CHECK(place.reply != NULL);
    place.exchange->reply = tr_reply_take(ctx);
    place.reply->status = 200;
    place.reply->delay_ms = 1;
    stage.asked[place.exchange->call]++;
    if (stage.answer == NULL || !stage.answer(place.exchange, place.reply))
        answer_usual(place.exchange, place.reply);
    while (home->places[index].exchange != NULL)
        CHECK(++index < EXCHANGES_MAX);
    home->places[index] = place;
    CHECK_EQ_INT(
        tr_after(ctx, (place.reply->is_silent ? 600000 : place.reply->delay_ms) * MS, index, NULL),
        0);
    return TR_GO;
}

static enum tr_next home_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct home_place *place = &((struct home *)self)->places[event->tag];
    static char value[sizeof(uint32_t) + BODY_MAX];
    size_t size = strlen(place->reply->body);

    (void)ctx;
    memcpy(value, &place->reply->status, sizeof(uint32_t));
    memcpy(value + sizeof(uint32_t), place->reply->body, size);
    if (!place->reply->is_silent)
        (void)tr_reply_send(&place->exchange->reply, 0, value, sizeof(uint32_t) + size);
    home_free(place);
    return TR_GO;
}

static void home_finish(void *self)
{
    for (int i = 0; i < EXCHANGES_MAX; i++)
        home_free(&((struct home *)self)->places[i]);
}

static const struct tr_type home_type = {
    .name = "homeserver",
    .message_size = sizeof(struct home_message),
    .state_size = sizeof(struct home),
    .handle = home_handle,
    .event = home_event,
    .finish = home_finish,
};

/* ---- the transport ---------------------------------------------------------------------------- */

static int script_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    struct exchange *exchange = base_calloc(sizeof *exchange);
    struct home_message message = { exchange };

    (void)data;
    CHECK(exchange != NULL);
    exchange->call = call->request->call;
    exchange->file_bytes = call->file == NULL ? 0 : call->file->size;
    (void)buffer_span(&exchange->target, mxclient_span(&call->request->target));
    (void)buffer_span(&exchange->body, mxclient_span(&call->request->body));
    return tr_ask(ctx, stage.home, &message, sizeof message,
        &(struct tr_ask_options){
            .tag = tag, .timeout_ns = mxclient_call_rules[call->request->call].timeout_ms * MS });
}

static void script_take(
    void *data, const struct tr_event *event, struct mxengine_answer *ret_answer)
{
    char *copy;

    (void)data;
    *ret_answer = (struct mxengine_answer){ .failed = event->status };
    if (event->status != 0)
        return;
    copy = base_alloc(event->size);
    CHECK(copy != NULL);
    memcpy(copy, event->value, event->size);
    memcpy(&ret_answer->status, copy, sizeof(uint32_t));
    ret_answer->memory = copy;
    ret_answer->body = (struct span){ copy + sizeof(uint32_t), event->size - sizeof(uint32_t) };
}

static void script_drop(void *data, struct mxengine_answer *answer)
{
    (void)data;
    base_free(answer->memory);
    answer->memory = NULL;
}

/* ---- the engine ------------------------------------------------------------------------------- */

static void run_ms(uint64_t ms)
{
    tr_sim_run_until(stage.sim, tr_sim_now_ns(stage.sim) + ms * MS);
}

static void engine_spawn(void)
{
    stage.options = (struct mxengine_options){ .sql = stage.sql,
        .key = &key,
        .policy = MXCLIENT_SHARE_ALL,
        .transport = { .ask = script_ask, .take = script_take, .drop = script_drop } };
    CHECK_EQ_INT(mxengine_spawn(tr_sim_system(stage.sim), &stage.options,
                     &(struct tr_spawn_options){ .owner = "a case", .ret_done = &stage.done },
                     &stage.engine),
        0);
}

static void engine_kill(void)
{
    enum tr_why why;

    (void)tr_kill(tr_sender_weaken(stage.engine));
    tr_sender_drop(&stage.engine);
    CHECK_EQ_INT(tr_done_wait(&stage.done, NULL, &why, 0), 0);
}

/* Ask and run until the job has ended, an hour at most. */
static int do_job(struct mxengine_job *job)
{
    struct mxengine_message message = { job };
    struct tr_future *future = NULL;
    int rc;

    atomic_fetch_add(&job->holders, 1);
    CHECK_EQ_INT(tr_ask_future(stage.engine, &message, sizeof message, 0, &future), 0);
    for (int i = 0; i < 360000 && !tr_future_is_ended(future); i++)
        run_ms(10);
    CHECK(tr_future_is_ended(future));
    rc = tr_future_wait(future, NULL, 0, NULL, 1);
    tr_future_drop(&future);
    return rc;
}

static struct mxengine_status status_now(void)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_STATUS);
    struct mxengine_status status;

    CHECK_EQ_INT(do_job(job), 0);
    status = job->status;
    mxengine_job_unref(job);
    return status;
}

static void check_problem(const char *expected)
{
    struct mxengine_status status = status_now();
    struct buffer text = { 0 };

    mxengine_explain(&status, &text);
    CHECK_EQ_INT(buffer_append(&text, "", 1), 0);
    CHECK_EQ_STR(text.bytes, expected);
    buffer_free(&text);
}

/* Start a homeserver and an engine that logs in. `first_sync` has members of the first answer. */
static void stage_start(const char *first_sync)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGIN);
    char why[300];

    memset(&stage, 0, sizeof stage);
    stage.first_sync = first_sync;
    log_setup(-1, LOG_LOGFMT, LOG_ERROR);
    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = 1 }, &stage.sim), 0);
    CHECK_EQ_INT(tr_spawn(tr_sim_system(stage.sim), &home_type, &(struct home){ 0 },
                     &(struct tr_spawn_options){ .owner = "a case" }, &stage.home),
        0);
    CHECK_EQ_INT(sql_open(tr_sim_system(stage.sim),
                     &(struct sql_options){ .url = "sqlite:data/engine.db",
                         .migrations = mxstore_migrations,
                         .migration_count = MXSTORE_MIGRATIONS,
                         .readers = 1,
                         .in_simulation = true },
                     why, sizeof why, &stage.sql),
        0);
    engine_spawn();
    mxengine_job_set(job, MXENGINE_URL, SPAN("https://x"));
    mxengine_job_set(job, MXENGINE_USER, SPAN("@ada:x"));
    mxengine_job_set(job, MXENGINE_PASSWORD, SPAN("secret"));
    CHECK_EQ_INT(do_job(job), 0);
    mxengine_job_unref(job);
    while (!status_now().is_settled)
        run_ms(10);
}

static void stage_end(void)
{
    engine_kill();
    tr_sender_drop(&stage.home);
    sql_close(&stage.sql);
    tr_sim_destroy(&stage.sim);
}

/* Two rooms without encryption. */
static const char plain_rooms[] =
    ",\"rooms\":{\"join\":{\"" ROOM_A "\":{\"state\":{\"events\":[]}},\"" ROOM_B
    "\":{\"state\":{\"events\":[]}}}}";

/* ---- the outbox ------------------------------------------------------------------------------- */

/* Accept an event; `txn` is its id. */
static void do_send(const char *room, const char *content, char txn[32])
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_SEND);

    mxengine_job_set(job, MXENGINE_ROOM, span_of(room));
    mxengine_job_set(job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(job, MXENGINE_CONTENT, span_of(content));
    CHECK_EQ_INT(do_job(job), 0);
    snprintf(txn, 32, "%.*s", (int)job->id.size, job->id.bytes);
    mxengine_job_unref(job);
}

static int do_with_id(enum mxengine_verb verb, const char *txn, char *id, size_t size)
{
    struct mxengine_job *job = mxengine_job_create(verb);
    int rc;

    mxengine_job_set(job, MXENGINE_TEXT, span_of(txn));
    rc = do_job(job);
    snprintf(id, size, "%.*s", (int)job->id.size, job->id.size > 0 ? job->id.bytes : "");
    mxengine_job_unref(job);
    return rc;
}

static int wait_sent(const char *txn, char *id, size_t size)
{
    return do_with_id(MXENGINE_SENT, txn, id, size);
}

/* Check the unsent events: "id room state attempts reason;" of each. */
static void check_outbox(const char *expected)
{
    static const char *const states[] = { "pending", "sending", "sent", "failed" };
    struct mxengine_job *job = mxengine_job_create(MXENGINE_OUTBOX);
    struct buffer text = { 0 };
    struct mxstore_outbox row;

    CHECK_EQ_INT(do_job(job), 0);
    for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
        mxstore_row(job->rows, 0, i, MXSTORE_IS_outbox, &row);
        (void)buffer_format(&text, "%.*s %.*s %s %d %.*s;", (int)row.txn_id.size, row.txn_id.at,
            (int)row.room_id.size, row.room_id.at, states[row.sending], (int)row.attempts,
            (int)row.reason.size, row.reason.size > 0 ? row.reason.at : "");
    }
    CHECK_EQ_INT(buffer_append(&text, "", 1), 0);
    CHECK_EQ_STR(text.bytes, expected);
    buffer_free(&text);
    mxengine_job_unref(job);
}

/* The event with "bad" in it always gets 500; all others arrive. */
static char arrived[400];
static int bad_asks;

static bool answer_bad_event(const struct exchange *exchange, struct script_reply *reply)
{
    if (exchange->call != MXCLIENT_SEND)
        return false;
    if (memmem(exchange->body.bytes, exchange->body.size, "bad", 3) != NULL) {
        reply->status = 500;
        bad_asks++;
        snprintf(reply->body, sizeof reply->body, "{\"errcode\":\"M_UNKNOWN\",\"error\":\"no\"}");
        return true;
    }
    snprintf(arrived + strlen(arrived), sizeof arrived - strlen(arrived), "%.*s",
        (int)exchange->body.size, exchange->body.bytes);
    return false;
}

static void start_with_bad_events(void)
{
    arrived[0] = 0;
    bad_asks = 0;
    stage_start(plain_rooms);
    stage.answer = answer_bad_event;
}

TEST(outbox, an_event_that_always_gets_500_is_given_up_and_stops_no_other_room)
{
    char bad[32], next[32], other[32], id[100], expected[200];

    start_with_bad_events();
    do_send(ROOM_A, "{\"n\":\"bad\"}", bad);
    do_send(ROOM_A, "{\"n\":1}", next);
    do_send(ROOM_B, "{\"n\":2}", other);
    CHECK_EQ_INT(wait_sent(other, id, sizeof id), 0);
    CHECK_EQ_STR(arrived, "{\"n\":2}"); /* not the one after the bad one */
    CHECK(bad_asks < 4);
    CHECK_EQ_U64(status_now().unsent, 2);
    CHECK_EQ_INT(wait_sent(bad, id, sizeof id), TR_EACCES);
    CHECK_EQ_STR(id, "M_UNKNOWN (HTTP 500) in 10 tries");
    CHECK_EQ_INT(bad_asks, 10);
    CHECK_EQ_INT(wait_sent(next, id, sizeof id), 0);
    CHECK_EQ_STR(arrived, "{\"n\":2}{\"n\":1}");
    snprintf(expected, sizeof expected, "%s " ROOM_A " failed 10 M_UNKNOWN (HTTP 500) in 10 tries;",
        bad);
    check_outbox(expected);
    CHECK_EQ_U64(status_now().failed, 1);
    check_problem("1 message could not be sent and is kept: retry or drop it.");
    stage_end();
}

TEST(outbox, tries_are_counted_over_a_restart)
{
    char bad[32], id[100], expected[200];

    start_with_bad_events();
    do_send(ROOM_A, "{\"n\":\"bad\"}", bad);
    while (bad_asks < 4)
        run_ms(10);
    run_ms(10);
    snprintf(expected, sizeof expected, "%s " ROOM_A " pending 4 M_UNKNOWN (HTTP 500);", bad);
    check_outbox(expected);
    engine_kill();
    engine_spawn();
    CHECK_EQ_INT(wait_sent(bad, id, sizeof id), TR_EACCES);
    CHECK_EQ_INT(bad_asks, 10);
    engine_kill();
    engine_spawn();
    while (!status_now().is_loaded)
        run_ms(10);
    CHECK_EQ_U64(status_now().failed, 1);
    stage_end();
}

TEST(outbox, an_event_that_was_given_up_is_retried_or_dropped)
{
    char bad[32], worse[32], id[100], expected[200];

    start_with_bad_events();
    do_send(ROOM_A, "{\"n\":\"bad\"}", bad);
    do_send(ROOM_B, "{\"n\":\"bad too\"}", worse);
    CHECK_EQ_INT(wait_sent(bad, id, sizeof id), TR_EACCES);
    CHECK_EQ_INT(wait_sent(worse, id, sizeof id), TR_EACCES);
    CHECK_EQ_INT(do_with_id(MXENGINE_DROP, worse, id, sizeof id), 0);
    CHECK_EQ_INT(do_with_id(MXENGINE_DROP, worse, id, sizeof id), TR_ENOENT);
    CHECK_EQ_INT(do_with_id(MXENGINE_RETRY, worse, id, sizeof id), TR_ENOENT);
    stage.answer = NULL;
    CHECK_EQ_INT(do_with_id(MXENGINE_RETRY, bad, id, sizeof id), 0);
    CHECK_EQ_INT(wait_sent(bad, id, sizeof id), 0);
    check_outbox("");
    CHECK_EQ_INT(do_with_id(MXENGINE_DROP, bad, id, sizeof id), TR_ENOENT); /* it has left */
    CHECK_EQ_U64(status_now().failed, 0);
    CHECK_EQ_U64(status_now().unsent, 0);
    /* One that waits for its next try. */
    stage.answer = answer_bad_event;
    do_send(ROOM_A, "{\"n\":\"bad\"}", bad);
    run_ms(20000);
    stage.answer = NULL;
    CHECK_EQ_INT(do_with_id(MXENGINE_RETRY, bad, id, sizeof id), 0);
    run_ms(100);
    check_outbox("");
    stage.answer = answer_bad_event;
    do_send(ROOM_A, "{\"n\":\"bad\"}", bad);
    do_send(ROOM_A, "{\"n\":9}", worse);
    run_ms(20000);
    snprintf(expected, sizeof expected,
        "%s " ROOM_A " pending 6 M_UNKNOWN (HTTP 500);%s " ROOM_A " pending 0 ;", bad, worse);
    check_outbox(expected);
    CHECK_EQ_INT(do_with_id(MXENGINE_DROP, bad, id, sizeof id), 0);
    CHECK_EQ_INT(wait_sent(worse, id, sizeof id), 0);
    CHECK_EQ_INT(wait_sent(bad, id, sizeof id), TR_ENOENT);
    CHECK_EQ_U64(status_now().unsent, 0);
    stage_end();
}

static bool answer_down(const struct exchange *exchange, struct script_reply *reply)
{
    (void)exchange;
    reply->status = 502;
    snprintf(reply->body, sizeof reply->body, "<html>");
    return true;
}

/* A proxy answers 502 to everything while the homeserver is updated. */
TEST(outbox, a_server_that_is_down_uses_up_no_tries)
{
    char txn[32], id[100];

    stage_start(plain_rooms);
    stage.answer = answer_down;
    run_ms(2000);
    do_send(ROOM_A, "{\"n\":1}", txn);
    run_ms(60 * 60 * 1000);
    CHECK_EQ_U64(status_now().unsent, 1);
    stage.answer = NULL;
    CHECK_EQ_INT(wait_sent(txn, id, sizeof id), 0);
    stage_end();
}

static bool answer_without_id(const struct exchange *exchange, struct script_reply *reply)
{
    if (exchange->call != MXCLIENT_SEND || !exchange_has(exchange, "%21a"))
        return false;
    snprintf(reply->body, sizeof reply->body, "{\"event_id\":17}");
    return true;
}

TEST(outbox, an_answer_without_an_id_stops_no_other_room)
{
    char bad[32], other[32], id[100];

    stage_start(plain_rooms);
    stage.answer = answer_without_id;
    do_send(ROOM_A, "{\"n\":1}", bad);
    do_send(ROOM_B, "{\"n\":2}", other);
    CHECK_EQ_INT(wait_sent(other, id, sizeof id), 0);
    CHECK(stage.asked[MXCLIENT_SEND] < 4);
    CHECK_EQ_INT(wait_sent(bad, id, sizeof id), TR_EACCES);
    CHECK_EQ_STR(id, "HTTP 200 in 10 tries");
    stage_end();
}

/* ---- requests that cannot be written ---------------------------------------------------------- */

/* Write a token of this many bytes, each of which takes three in a target. */
static void put_token(char *out, size_t size)
{
    memset(out, '%', size);
    out[size] = 0;
}

static char long_token[3000];
static uint64_t pages, pages_without_end;

/* Each /sync leaves a gap in room a; the older end of the second one is such a token too. */
static bool answer_long_tokens(const struct exchange *exchange, struct script_reply *reply)
{
    if (exchange->call == MXCLIENT_MESSAGES) {
        pages++;
        pages_without_end += exchange_has(exchange, "&to=") ? 0 : 1;
        return false;
    }
    if (exchange->call != MXCLIENT_SYNC || pages > 1)
        return false;
    reply->delay_ms = 1000;
    snprintf(reply->body, sizeof reply->body,
        "{\"next_batch\":\"%s\",\"rooms\":{\"join\":{\"" ROOM_A
        "\":{\"timeline\":{\"limited\":true,"
        "\"prev_batch\":\"%s\",\"events\":[]}}}}}",
        long_token, long_token);
    return true;
}

TEST(engine, a_gap_between_the_longest_tokens_is_walked)
{
    pages = pages_without_end = 0;
    put_token(long_token, MXCLIENT_SYNC_TOKEN_BYTES_MAX);
    stage_start(plain_rooms);
    stage.answer = answer_long_tokens;
    for (int i = 0; i < 1000 && (pages < 2 || status_now().gaps > 0); i++)
        run_ms(100);
    CHECK_EQ_U64(status_now().gaps, 0);
    CHECK(pages > 1);
    CHECK_EQ_U64(pages_without_end, 0);
    CHECK_EQ_U64(status_now().reloads, 0);
    stage_end();
}

TEST(engine, a_token_over_the_limit_is_no_token_and_no_fall)
{
    char txn[32], id[100];

    pages = 0;
    put_token(long_token, MXCLIENT_SYNC_TOKEN_BYTES_MAX + 1);
    stage_start(plain_rooms);
    stage.answer = answer_long_tokens;
    run_ms(60000);
    CHECK_EQ_INT(status_now().sync_error, TR_EPROTO);
    CHECK_EQ_U64(status_now().gaps, 0);
    do_send(ROOM_A, "{\"n\":1}", txn);
    CHECK_EQ_INT(wait_sent(txn, id, sizeof id), 0);
    CHECK_EQ_U64(status_now().reloads, 0);
    stage_end();
}

/* Former versions stored gaps whose two tokens do not fit into one request. */
TEST(engine, a_stored_gap_that_is_too_long_for_a_request_is_walked_without_its_end)
{
    struct sql_unit *unit = sql_unit_create(0);
    char from[2049], until[2049];

    pages = pages_without_end = 0;
    stage_start(plain_rooms);
    engine_kill();
    put_token(from, 2048);
    put_token(until, 2048);
    until[0] = 'u';
    mxstore_put(unit, MXSTORE_IS_gap,
        &(struct mxstore_gap){ .room_id = SPAN(ROOM_A),
            .from_token = span_of(from),
            .until_token = span_of(until),
            .created_ms = 1 });
    CHECK_EQ_INT(sql_write_wait(stage.sql, unit), 0);
    sql_unit_destroy(unit);
    pages_without_end = 0;
    stage.answer = answer_long_tokens;
    put_token(long_token, 1);
    engine_spawn();
    for (int i = 0; i < 1000 && (pages == 0 || status_now().gaps > 0); i++)
        run_ms(100);
    CHECK(pages_without_end > 0);
    CHECK_EQ_U64(status_now().gaps, 0);
    CHECK_EQ_U64(status_now().reloads, 0);
    stage_end();
}

TEST(engine, a_request_that_is_too_long_ends_its_job_alone)
{
    struct mxengine_job *job;
    struct buffer name = { 0 };

    stage_start(plain_rooms);
    for (int i = 0; i <= MXCLIENT_BODY_BYTES_MAX; i++)
        (void)buffer_text(&name, "n");
    job = mxengine_job_create(MXENGINE_CREATE);
    mxengine_job_set(job, MXENGINE_NAME, mxclient_span(&name));
    CHECK_EQ_INT(do_job(job), TR_ETOOBIG);
    mxengine_job_unref(job);
    job = mxengine_job_create(MXENGINE_INVITE);
    mxengine_job_set(job, MXENGINE_ROOM, SPAN(ROOM_A));
    mxengine_job_set(job, MXENGINE_USER, SPAN("@bob:y"));
    CHECK_EQ_INT(do_job(job), 0);
    mxengine_job_unref(job);
    CHECK_EQ_U64(status_now().reloads, 0);
    buffer_free(&name);
    stage_end();
}

/* ---- uploads ---------------------------------------------------------------------------------- */

static const char *upload_config; /* the answer about the limit; NULL: 404 */
static bool upload_is_refused;

static bool answer_upload(const struct exchange *exchange, struct script_reply *reply)
{
    if (exchange->call == MXCLIENT_MEDIA_CONFIG && upload_config == NULL)
        reply->status = 404;
    else if (exchange->call == MXCLIENT_MEDIA_CONFIG)
        snprintf(reply->body, sizeof reply->body, "%s", upload_config);
    else if (exchange->call == MXCLIENT_UPLOAD && upload_is_refused) {
        reply->status = 413;
        snprintf(reply->body, sizeof reply->body, "<html>413 Request Entity Too Large</html>");
    } else
        return false;
    return true;
}

/* Upload a file of this size; `id` is its address or the reason. */
static int do_upload(uint64_t size, char *id, size_t id_size)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_UPLOAD);
    int rc;

    job->file = (struct mxengine_file){ .fd = dup(STDIN_FILENO), .size = size };
    rc = do_job(job);
    snprintf(id, id_size, "%.*s", (int)job->id.size, job->id.size > 0 ? job->id.bytes : "");
    mxengine_job_unref(job);
    return rc;
}

TEST(media, a_file_over_the_limit_of_the_homeserver_is_refused_before_its_upload)
{
    char id[200];

    stage_start(plain_rooms);
    stage.answer = answer_upload;
    upload_config = "{\"m.upload.size\":1000}";
    upload_is_refused = false;
    CHECK_EQ_INT(do_upload(1001, id, sizeof id), TR_ETOOBIG);
    CHECK_EQ_STR(id, "The file has 1001 bytes; the homeserver takes 1000 at most.");
    CHECK_EQ_U64(stage.asked[MXCLIENT_UPLOAD], 0);
    CHECK_EQ_INT(do_upload(1000, id, sizeof id), 0);
    CHECK_EQ_STR(id, "mxc://x/file");
    CHECK_EQ_U64(stage.asked[MXCLIENT_MEDIA_CONFIG], 1); /* the answer counts for an hour */
    run_ms(60 * 60 * 1000);
    upload_config = "{\"m.upload.size\":2000}";
    CHECK_EQ_INT(do_upload(1001, id, sizeof id), 0);
    CHECK_EQ_U64(stage.asked[MXCLIENT_MEDIA_CONFIG], 2);
    stage_end();
}

TEST(media, a_homeserver_that_names_no_limit_is_asked_to_take_the_file)
{
    static const char *const configs[] = { NULL, "{}", "{\"m.upload.size\":\"much\"}",
        "{\"m.upload.size\":-1}", "<html>" };
    char id[200];

    stage_start(plain_rooms);
    stage.answer = answer_upload;
    upload_is_refused = false;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        upload_config = configs[i];
        CHECK_EQ_INT(do_upload(UINT64_C(1) << 39, id, sizeof id), 0);
        run_ms(60 * 60 * 1000);
    }
    CHECK_EQ_U64(stage.asked[MXCLIENT_MEDIA_CONFIG], 5);
    stage_end();
}

TEST(media, a_413_is_final)
{
    char id[200];

    stage_start(plain_rooms);
    stage.answer = answer_upload;
    upload_config = NULL;
    upload_is_refused = true;
    CHECK_EQ_INT(do_upload(1001, id, sizeof id), TR_ETOOBIG);
    CHECK_EQ_STR(id, "The homeserver refuses a file of 1001 bytes as too large.");
    CHECK_EQ_U64(stage.asked[MXCLIENT_UPLOAD], 1);
    stage_end();
}

/* ---- keys ------------------------------------------------------------------------------------- */

static int refusals_left;

static bool answer_keys(const struct exchange *exchange, struct script_reply *reply)
{
    if (exchange->call != MXCLIENT_KEYS_UPLOAD || refusals_left == 0)
        return false;
    refusals_left--;
    reply->status = 400;
    snprintf(reply->body, sizeof reply->body,
        "{\"errcode\":\"M_UNKNOWN\",\"error\":\"One time key already exists\"}");
    return true;
}

TEST(keys, a_refused_upload_is_counted_and_said)
{
    stage_start(plain_rooms);
    engine_kill();
    stage.answer = answer_keys;
    refusals_left = 2;
    engine_spawn();
    while (refusals_left > 1)
        run_ms(10);
    run_ms(100);
    CHECK(!status_now().is_settled);
    CHECK(status_now().is_keys_refused);
    CHECK_EQ_U64(status_now().key_conflicts, 1);
    check_problem(
        "The homeserver refuses the keys of this device (M_UNKNOWN, HTTP 400); the engine "
        "tries others later.");
    while (!status_now().is_settled)
        run_ms(1000);
    CHECK_EQ_U64(status_now().key_conflicts, 2);
    CHECK(!status_now().is_keys_refused);
    check_problem("");
    stage_end();
}

/* ---- silence ---------------------------------------------------------------------------------- */

static int silences_left;

static bool answer_silence(const struct exchange *exchange, struct script_reply *reply)
{
    if (exchange->call != MXCLIENT_SYNC || silences_left == 0)
        return false;
    silences_left--;
    reply->is_silent = true;
    return true;
}

/* The peer has vanished and no byte says so: the poll ends by its own time limit, other requests go on
 * meanwhile, and the events that came are in the next answer. */
TEST(sync, a_half_open_poll_is_given_up_after_its_time_limit)
{
    uint64_t limit_ms = mxclient_call_rules[MXCLIENT_SYNC].timeout_ms, asked;
    struct mxengine_job *job = mxengine_job_create(MXENGINE_EVENTS);
    char txn[32], id[100];

    stage_start(plain_rooms);
    stage.answer = answer_silence;
    silences_left = 1;
    while (silences_left > 0)
        run_ms(10);
    asked = stage.asked[MXCLIENT_SYNC];
    snprintf(stage.news, sizeof stage.news,
        ",\"rooms\":{\"join\":{\"" ROOM_A "\":{\"timeline\":{\"events\":[{\"event_id\":\"$1\","
        "\"type\":\"m.room.message\",\"sender\":\"@bob:y\",\"content\":{}}]}}}}");
    do_send(ROOM_A, "{\"n\":1}", txn);
    CHECK_EQ_INT(wait_sent(txn, id, sizeof id), 0);
    run_ms(limit_ms - 5000);
    CHECK_EQ_U64(stage.asked[MXCLIENT_SYNC], asked);
    CHECK_EQ_INT(status_now().sync_error, 0);
    run_ms(6000); /* the limit and the back-off */
    CHECK_EQ_U64(stage.asked[MXCLIENT_SYNC], asked + 1);
    job->waits = true;
    CHECK_EQ_INT(do_job(job), 0);
    CHECK_EQ_U64(sql_unit_rows(job->rows, 0), 1);
    CHECK_EQ_INT(status_now().sync_error, 0);
    CHECK_EQ_U64(status_now().reloads, 0);
    mxengine_job_unref(job);
    stage_end();
}
