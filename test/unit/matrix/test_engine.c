/* SPDX-License-Identifier: Apache-2.0 */
/* Engines over real HTTP, against a homeserver in memory. The simulation (sim_matrix) has the faults;
 * here are the requests of users, logins and the transport. */
#include <pthread.h>
#include <sqlite3.h>
#include <unistd.h>

#include "../sql/place.h"
#include "fake_server.h"
#include "matrix/client/body.h"
#include "matrix/client/engine_http.h"
#include "mx_client.h"
#include "mx_server.h"

#define ROOM SPAN(MX_SERVER_ROOM)

/* ---- the homeserver over HTTP ----------------------------------------------------------------- */

struct home {
    struct mx_server server;
    struct fake_server *http;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_ending;
    struct buffer media; /* the one upload */
    bool is_sync_too_large;
};

/* Return whether a path fits the pattern of a call; each {} is one part. */
static bool path_fits(const char *path, const char *pattern)
{
    while (*pattern != 0 && *path != 0 && *path != '?') {
        if (pattern[0] == '{') {
            path += strcspn(path, "/?");
            pattern += 2;
        } else if (*path++ != *pattern++)
            return false;
    }
    return *pattern == 0 && (*path == 0 || *path == '?');
}

static enum mxclient_call call_of(const struct fake_request *request)
{
    for (int i = 0; i < MXCLIENT_CALL_COUNT; i++)
        if (strcmp(request->method, mxclient_call_rules[i].method) == 0 &&
            path_fits(request->path, mxclient_call_rules[i].path))
            return (enum mxclient_call)i;
    CHECK_MSG(false, "%s %s is no call", request->method, request->path);
    return MXCLIENT_CALL_COUNT;
}

/* Hold a long poll until there is news. */
static void home_hold(struct home *home, const struct mx_server_request *request)
{
    while (request->call == MXCLIENT_SYNC && !home->is_ending &&
           memmem(request->target.at, request->target.size, "timeout=30000", 13) != NULL) {
        int device = mx_server_device_of(&home->server, request->token);

        if (device < 0 ||
            mx_server_has_news(&home->server, device, mx_server_since(request->target)))
            return;
        pthread_cond_wait(&home->changed, &home->lock);
    }
}

/* Take an upload, or answer a download from where its Range starts. */
static uint32_t home_answer_media(
    struct home *home, const struct fake_request *read, enum mxclient_call call, struct buffer *out)
{
    size_t from = 0, size;
    char range[64];

    if (call == MXCLIENT_UPLOAD) {
        CHECK_EQ_INT(buffer_append(&home->media, read->body, read->body_size), 0);
        (void)buffer_text(out, "{\"content_uri\":\"mxc://x/file\"}");
        return 200;
    }
    if (fake_header(read, "Range", range, sizeof range))
        CHECK_EQ_INT(sscanf(range, "bytes=%zu-", &from), 1);
    size = home->media.size - from;
    (void)buffer_append(out, home->media.bytes + from, size);
    return from == 0 ? 200 : 206;
}

/* Note what a device has stored, also while its long poll is held. */
static void home_note_seen(struct mx_server *server, int device, struct mx_server_place since)
{
    server->devices[device].events_seen = since.events;
    if (since.messages > server->devices[device].messages_deleted)
        server->devices[device].messages_deleted = since.messages;
}

static void home_script(struct fake_connection *connection, void *data)
{
    struct fake_request *read = malloc(sizeof *read);
    struct home *home = data;
    bool is_open = true;

    CHECK(read != NULL);
    while (is_open && fake_read(connection, read)) {
        struct mx_server_request request = { .call = call_of(read),
            .target = span_of(read->path),
            .body = { read->body, read->body_size } };
        struct buffer body = { 0 }, answer = { 0 };
        char token[100] = "";
        uint32_t status;

        if (fake_header(read, "Authorization", token, sizeof token))
            request.token = span_of(token + strlen("Bearer "));
        CHECK_EQ_INT(request.token.at != NULL, mxclient_call_rules[request.call].has_token);
        pthread_mutex_lock(&home->lock);
        if (request.call == MXCLIENT_SYNC && mx_server_device_of(&home->server, request.token) >= 0)
            home_note_seen(&home->server, mx_server_device_of(&home->server, request.token),
                mx_server_since(request.target));
        pthread_cond_broadcast(&home->changed);
        home_hold(home, &request);
        status = request.call == MXCLIENT_UPLOAD || request.call == MXCLIENT_DOWNLOAD
                     ? home_answer_media(home, read, request.call, &body)
                     : mx_server_answer(&home->server, &request, &body);
        pthread_cond_broadcast(&home->changed);
        pthread_mutex_unlock(&home->lock);
        if (home->is_sync_too_large && request.call == MXCLIENT_SYNC)
            body.size = 0;
        (void)buffer_format(&answer, "HTTP/1.1 %u x\r\nContent-Length: %zu\r\n", status,
            home->is_sync_too_large && request.call == MXCLIENT_SYNC
                ? mxclient_call_rules[MXCLIENT_SYNC].answer_bytes_max + 1
                : body.size);
        if (status == 206)
            (void)buffer_format(&answer, "Content-Range: bytes %zu-%zu/%zu\r\n",
                home->media.size - body.size, home->media.size - 1, home->media.size);
        (void)buffer_text(&answer, "\r\n");
        (void)buffer_span(&answer, mx_server_text(&body));
        is_open = fake_send_bytes(connection, answer.bytes, answer.size);
        buffer_free(&body);
        buffer_free(&answer);
    }
    free(read);
}

static uint64_t home_random(void *data)
{
    uint64_t bits;

    (void)data;
    mx_stage_random()->fill(mx_stage_random()->data, &bits, sizeof bits);
    return bits;
}

static void home_start(struct home *home)
{
    *home =
        (struct home){ .server = { .random = home_random, .faults = { .timeline_max = 1000 } } };
    pthread_mutex_init(&home->lock, NULL);
    pthread_cond_init(&home->changed, NULL);
    home->http = fake_server_start(home_script, home, NULL);
}

static void home_stop(struct home *home)
{
    pthread_mutex_lock(&home->lock);
    home->is_ending = true;
    pthread_cond_broadcast(&home->changed);
    pthread_mutex_unlock(&home->lock);
    fake_server_stop(&home->http);
    mx_server_fini(&home->server);
    buffer_free(&home->media);
}

/* End the tokens of a device; a long poll notices. */
static void home_end_login(struct home *home, bool is_hard, bool keeps_refresh)
{
    struct mx_server_device *device = &home->server.devices[0];

    pthread_mutex_lock(&home->lock);
    device->token = 0;
    if (!keeps_refresh)
        device->refresh = device->refresh_former = 0;
    home->server.faults.is_hard = is_hard;
    pthread_cond_broadcast(&home->changed);
    pthread_mutex_unlock(&home->lock);
}

/* Wait until the keys of a device are on the server: until then nobody can encrypt to it. */
static void home_wait_keys(struct home *home, int device)
{
    pthread_mutex_lock(&home->lock);
    while (home->server.devices[device].device_keys.size == 0)
        pthread_cond_wait(&home->changed, &home->lock);
    pthread_mutex_unlock(&home->lock);
}

static uint64_t home_acted(struct home *home, enum mxclient_call call)
{
    uint64_t count;

    pthread_mutex_lock(&home->lock);
    count = home->server.acted[call];
    pthread_mutex_unlock(&home->lock);
    return count;
}

/* ---- clocks ----------------------------------------------------------------------------------- */

/* An environment whose wall clock is ahead of the machine's. */
static struct {
    const struct tr_env *machine;
    struct tr_env env;
    _Atomic uint64_t ahead_ns;
} clocks;

static uint64_t clocks_wall(void *data)
{
    (void)data;
    return clocks.machine->wall_ns(clocks.machine->data) + atomic_load(&clocks.ahead_ns);
}

static const struct tr_env *clocks_of(struct tr_system *system)
{
    if (clocks.machine == NULL) { /* engines read it: it is written once */
        clocks.machine = tr_system_env(system);
        clocks.env = *clocks.machine;
        clocks.env.wall_ns = clocks_wall;
    }
    return &clocks.env;
}

/* ---- the moment of the first /sync ------------------------------------------------------------ */

/* A look into the database, without the engine's connections, when an engine asks for its first
 * /sync. */
static struct {
    struct mxengine_transport transport;
    const char *path;
    _Atomic int64_t held; /* events; -1: it has not asked yet */
} probe;

static int64_t probe_count_held(void)
{
    sqlite3_stmt *statement;
    sqlite3 *handle;
    int64_t count;

    CHECK_EQ_INT(sqlite3_open_v2(probe.path, &handle, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_prepare_v2(handle, "SELECT COUNT(*) FROM mx_event WHERE status = 0", -1,
                     &statement, NULL),
        SQLITE_OK);
    CHECK_EQ_INT(sqlite3_step(statement), SQLITE_ROW);
    count = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(handle);
    return count;
}

static int probe_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    if (call->request->call == MXCLIENT_SYNC && atomic_load(&probe.held) < 0)
        atomic_store(&probe.held, probe_count_held());
    return probe.transport.ask(data, ctx, call, tag);
}

/* ---- a device --------------------------------------------------------------------------------- */

struct device {
    struct home *home;
    struct place place;
    enum mxclient_policy policy;
    bool is_probed; /* its requests pass probe_ask */
    struct http_client *client;
    struct mxengine_http *http;
    struct mxengine_options options;
    tr_sender engine;
    struct tr_done *done;
    int64_t cursor;
};

static void device_spawn(struct device *device)
{
    CHECK_EQ_INT(mxengine_http_create(device->client, &device->http), 0);
    device->options = (struct mxengine_options){ .sql = device->place.sql,
        .key = &mx_client_key,
        .transport = mxengine_http_transport(device->http),
        .policy = device->policy,
        .env = clocks_of(device->place.system) };
    if (device->is_probed) {
        probe.transport = device->options.transport;
        probe.path = device->place.path;
        atomic_store(&probe.held, -1);
        device->options.transport.ask = probe_ask;
    }
    CHECK_EQ_INT(mxengine_spawn(device->place.system, &device->options,
                     &(struct tr_spawn_options){ .ret_done = &device->done }, &device->engine),
        0);
}

static void device_start(struct device *device, struct home *home)
{
    struct sql_options options;

    *device = (struct device){ .home = home, .policy = MXCLIENT_SHARE_ALL };
    place_init_in_memory(&device->place);
    place_system(&device->place);
    options = (struct sql_options){ .url = device->place.url,
        .migrations = mxstore_migrations,
        .migration_count = MXSTORE_MIGRATIONS };
    CHECK_EQ_INT(place_try_open(&device->place, &options), 0);
    CHECK_EQ_INT(http_client_start(device->place.system,
                     &(struct http_client_options){ .allow_private = true }, &device->client),
        0);
    device_spawn(device);
}

static void device_wait_engine(struct device *device)
{
    enum tr_why why;

    tr_sender_drop(&device->engine);
    CHECK_EQ_INT(tr_done_wait(&device->done, NULL, &why, TR_SECONDS(10)), 0);
    mxengine_http_destroy(&device->http);
}

static void device_end_engine(struct device *device)
{
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(device->engine)), 0);
    device_wait_engine(device);
}

/* End the engine without the grace for its long poll. */
static void device_kill_engine(struct device *device)
{
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(device->engine)), 0);
    device_wait_engine(device);
}

static void device_stop(struct device *device)
{
    device_end_engine(device);
    http_client_stop(&device->client);
    place_finish(&device->place);
}

static int do_job(struct device *device, struct mxengine_job *job)
{
    return mxengine_wait(device->engine, job, TR_SECONDS(15));
}

static int do_login(struct device *device, const char *user, const char *password)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGIN);
    int rc;

    mxengine_job_set(job, MXENGINE_URL, span_of(fake_server_url(device->home->http, "")));
    mxengine_job_set(job, MXENGINE_USER, span_of(user));
    mxengine_job_set(job, MXENGINE_PASSWORD, span_of(password));
    rc = do_job(device, job);
    mxengine_job_unref(job);
    return rc;
}

static int do_room(struct device *device, enum mxengine_verb verb, const char *user)
{
    struct mxengine_job *job = mxengine_job_create(verb);
    int rc;

    if (user != NULL)
        mxengine_job_set(job, MXENGINE_USER, span_of(user));
    mxengine_job_set(job, MXENGINE_ROOM, ROOM);
    rc = do_job(device, job);
    mxengine_job_unref(job);
    return rc;
}

static int do_send(struct device *device, struct span room, struct span content)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_SEND);
    int rc;

    mxengine_job_set(job, MXENGINE_ROOM, room);
    mxengine_job_set(job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(job, MXENGINE_CONTENT, content);
    rc = do_job(device, job);
    CHECK_EQ_INT(job->id.size > 0, rc == 0);
    mxengine_job_unref(job);
    return rc;
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

/* Ask until the engine is in a state; the case's time limit ends it. */
static void wait_state(struct device *device, enum mxclient_state state)
{
    while (status_of(device).state != state || !status_of(device).is_loaded)
        ;
}

/* Wait until the room is known as joined. */
static void wait_joined(struct device *device)
{
    for (bool is_joined = false; !is_joined;) {
        struct mxengine_job *job = mxengine_job_create(MXENGINE_ROOMS);
        struct mxstore_room row;

        CHECK_EQ_INT(do_job(device, job), 0);
        for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
            mxstore_row(job->rows, 0, i, MXSTORE_IS_room, &row);
            is_joined = span_is(row.membership, "join") && row.is_encrypted != 0;
            CHECK(!is_joined || row.is_sync_room != 0);
        }
        mxengine_job_unref(job);
    }
}

/* Read the room; the caller destroys the job. NULL: it is not known. */
static struct mxengine_job *read_room(struct device *device, struct mxstore_room *ret_row)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_ROOMS);

    CHECK_EQ_INT(do_job(device, job), 0);
    if (sql_unit_rows(job->rows, 0) == 0) {
        mxengine_job_unref(job);
        return NULL;
    }
    mxstore_row(job->rows, 0, 0, MXSTORE_IS_room, ret_row);
    return job;
}

/* Wait until the room has this membership; the caller destroys the job. */
static struct mxengine_job *wait_room(
    struct device *device, const char *membership, struct mxstore_room *ret_row)
{
    for (;;) {
        struct mxengine_job *job = read_room(device, ret_row);

        if (job != NULL && span_is(ret_row->membership, membership))
            return job;
        mxengine_job_unref(job);
    }
}

/* Wait for the next event and check its text. */
static void wait_event(struct device *device, const char *text)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_EVENTS);
    struct buffer body = { 0 };
    struct mxstore_event row;

    job->after_seq = device->cursor;
    job->count_max = 1;
    job->waits = true;
    CHECK_EQ_INT(do_job(device, job), 0);
    CHECK_EQ_U64(sql_unit_rows(job->rows, 0), 1);
    mxstore_row(job->rows, 0, 0, MXSTORE_IS_event, &row);
    CHECK(span_is(row.type, "m.room.message"));
    CHECK_EQ_INT(mxclient_body_open(&mx_client_key, row.event_id, row.body, &body), 0);
    CHECK_MSG(memmem(body.bytes, body.size, text, strlen(text)) != NULL, "%.*s has no %s",
        (int)body.size, body.bytes, text);
    buffer_free(&body);
    device->cursor = row.seq;
    mxengine_job_unref(job);
}

/* ---- cases ------------------------------------------------------------------------------------ */

TEST(engine, two_devices_talk_over_http)
{
    struct device ada, bob;
    struct home home;
    char text[40];

    home_start(&home);
    device_start(&ada, &home);
    device_start(&bob, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_login(&bob, "@u1:x", "secret"), 0);
    home_wait_keys(&home, 0);
    home_wait_keys(&home, 1);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, "@u1:x"), 0);
    CHECK_EQ_INT(do_room(&bob, MXENGINE_JOIN, NULL), 0);
    wait_joined(&ada);
    wait_joined(&bob);
    for (int i = 0; i < 20; i++) {
        snprintf(text, sizeof text, "{\"body\":\"hello %d.\"}", i);
        CHECK_EQ_INT(do_send(i % 2 == 0 ? &ada : &bob, ROOM, span_of(text)), 0);
        snprintf(text, sizeof text, "hello %d.", i);
        wait_event(i % 2 == 0 ? &bob : &ada, text);
    }
    CHECK_EQ_U64(status_of(&ada).undecrypted + status_of(&bob).undecrypted, 0);
    CHECK_EQ_U64(status_of(&ada).reloads + status_of(&bob).reloads, 0);
    home_stop(&home);
    device_stop(&ada);
    device_stop(&bob);
}

/* Store an event that waits for its key though no key can help. */
static void put_odd_event(struct device *device)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_put(unit, MXSTORE_IS_event,
        &(struct mxstore_event){ .event_id = SPAN("$odd"),
            .seq = 1000,
            .room_id = ROOM,
            .sender = SPAN("@u1:x"),
            .type = SPAN("m.room.encrypted"),
            .status = MXSTORE_HELD,
            .reason = MX_ESESSION,
            .body = SPAN("no JSON") });
    CHECK_EQ_INT(sql_write_wait(device->place.sql, unit), 0);
    sql_unit_destroy(unit);
}

static int64_t status_of_event(struct device *device, struct span event_id)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_event row;

    mxstore_get(unit, MXSTORE_IS_event, event_id);
    CHECK_EQ_INT(sql_read_wait(device->place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    mxstore_row(unit, 0, 0, MXSTORE_IS_event, &row);
    sql_unit_destroy(unit);
    return row.status;
}

/* With many rooms the walk takes long, and the homeserver can answer meanwhile. */
TEST(engine, a_start_asks_for_sync_before_it_tries_held_events)
{
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, "@u1:x"), 0);
    wait_joined(&ada);
    device_kill_engine(&ada);
    put_odd_event(&ada);
    ada.is_probed = true;
    device_spawn(&ada);
    while (status_of_event(&ada, SPAN("$odd")) != MXSTORE_ABANDONED)
        ;
    CHECK_EQ_INT(atomic_load(&probe.held), 1);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, a_login_is_refused_then_accepted_once)
{
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", ""), TR_EINVAL);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "wrong"), TR_EACCES);
    CHECK_EQ_INT(status_of(&ada).state, MXCLIENT_SIGNED_OUT);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), TR_EBUSY);
    CHECK_EQ_INT(strcmp(status_of(&ada).user_id, "@u0:x"), 0);
    CHECK_EQ_INT(home.server.device_count, 1);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, jobs_that_cannot_be_done_say_why)
{
    static char large[MXCLIENT_BODY_BYTES_MAX];
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{}")), TR_EACCES);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_JOIN, NULL), TR_EACCES);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_send(&ada, SPAN("!other:x"), SPAN("{}")), TR_ENOENT);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_INVITE, NULL), TR_EINVAL);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0);
    wait_joined(&ada);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("[]")), TR_EINVAL);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"a\":")), TR_EINVAL);
    memset(large, ' ', sizeof large);
    CHECK_EQ_INT(do_send(&ada, ROOM, (struct span){ large, sizeof large }), MX_ETOOBIG);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{}")), 0);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, a_reader_that_waits_ends_with_the_engine)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_EVENTS);
    struct mxengine_message message = { job };
    struct tr_future *future;
    struct device ada;
    struct home home;
    int rc;

    home_start(&home);
    device_start(&ada, &home);
    job->waits = true;
    atomic_fetch_add(&job->holders, 1);
    CHECK_EQ_INT(tr_ask_future(ada.engine, &message, sizeof message, 0, &future), 0);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK(!tr_future_is_ended(future));
    device_stop(&ada);
    rc = tr_future_wait(future, NULL, 0, NULL, TR_SECONDS(10));
    CHECK_MSG(rc == TR_EDROPPED || rc == TR_ECLOSED, "%d", rc);
    tr_future_drop(&future);
    mxengine_job_unref(job);
    home_stop(&home);
}

TEST(engine, a_soft_logout_logs_in_again_as_the_same_device)
{
    struct mxengine_status before;
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    before = status_of(&ada);
    home_end_login(&home, false, false);
    while (home_acted(&home, MXCLIENT_LOGIN) < 2)
        ;
    wait_state(&ada, MXCLIENT_ACTIVE);
    CHECK_EQ_INT(strcmp(status_of(&ada).device_id, before.device_id), 0);
    CHECK_EQ_INT(home.server.device_count, 1);
    /* A new engine has no password: it says so and waits for a login. */
    device_end_engine(&ada);
    home_end_login(&home, false, false);
    device_spawn(&ada);
    wait_state(&ada, MXCLIENT_SOFT_OUT);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), TR_EACCES);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, requests_whose_token_is_refused_share_one_refresh)
{
    struct device ada;
    struct home home;

    home_start(&home);
    home.server.faults.has_refresh = true;
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    home_end_login(&home, false, true);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0); /* beside the long poll */
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_REFRESH), 1);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_LOGIN), 1);
    home_stop(&home);
    device_stop(&ada);
}

/* Wait until a call has acted so often. */
static void home_wait_acted(struct home *home, enum mxclient_call call, uint64_t count)
{
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&home->lock);
    while (rc == 0 && home->server.acted[call] < count)
        rc = pthread_cond_timedwait(&home->changed, &home->lock, &until);
    CHECK_EQ_INT(rc, 0);
    pthread_mutex_unlock(&home->lock);
}

/* The server holds the poll, no other event comes, and no token is refused. */
TEST(engine, a_token_is_replaced_before_it_ends_though_a_long_poll_is_open)
{
    struct device ada;
    struct home home;

    home_start(&home);
    home.server.faults.has_refresh = true;
    home.server.faults.life_ms = 3000;
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    home_wait_acted(&home, MXCLIENT_REFRESH, 2);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_LOGIN), 1);
    home_stop(&home);
    device_stop(&ada);
}

/* The clock that the engine's timers use stands still while the machine sleeps. */
TEST(engine, a_token_that_ended_in_suspend_is_replaced_once_before_the_next_request)
{
    struct device ada;
    struct home home;

    home_start(&home);
    home.server.faults.has_refresh = true;
    home.server.faults.life_ms = 3600 * 1000;
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_REFRESH), 0);
    atomic_store(&clocks.ahead_ns, TR_SECONDS(2 * 3600));
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_REFRESH), 1);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_CREATE_ROOM), 1);
    wait_joined(&ada);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_REFRESH), 1);
    /* A clock that is set back, too: the token is as old as it was. */
    atomic_store(&clocks.ahead_ns, 0);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"later\"}")), 0);
    while (status_of(&ada).unsent > 0)
        ;
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_REFRESH), 1);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, a_hard_logout_ends_the_session_and_keeps_the_rows)
{
    struct mxengine_job *job;
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0);
    wait_joined(&ada);
    home_end_login(&home, true, false);
    wait_state(&ada, MXCLIENT_ENDED);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{}")), TR_EACCES);
    device_end_engine(&ada);
    device_spawn(&ada);
    wait_state(&ada, MXCLIENT_ENDED);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), TR_EBUSY);
    job = mxengine_job_create(MXENGINE_ROOMS);
    CHECK_EQ_INT(do_job(&ada, job), 0);
    CHECK_EQ_U64(sql_unit_rows(job->rows, 0), 1);
    mxengine_job_unref(job);
    home_stop(&home);
    device_stop(&ada);
}

/* Start a job that waits; the caller drops both. */
static struct tr_future *start_job(struct device *device, struct mxengine_job *job)
{
    struct mxengine_message message = { job };
    struct tr_future *future;

    atomic_fetch_add(&job->holders, 1);
    CHECK_EQ_INT(tr_ask_future(device->engine, &message, sizeof message, 0, &future), 0);
    return future;
}

/* Check that a job ends because the login has, and says what is kept. */
static void check_over(struct tr_future *future, struct mxengine_job *job, const char *kept)
{
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, TR_SECONDS(10)), TR_EACCES);
    CHECK_MSG(memmem(job->id.bytes, job->id.size, kept, strlen(kept)) != NULL, "%.*s",
        (int)job->id.size, job->id.bytes);
    tr_future_drop(&future);
    mxengine_job_unref(job);
}

TEST(engine, a_login_that_ends_wakes_readers_and_keeps_the_outbox)
{
    static const char kept[] = "for good; 1 unsent message and";
    struct mxengine_job *jobs[3], *send = mxengine_job_create(MXENGINE_SEND);
    struct sql_unit *unit = sql_unit_create(0);
    struct tr_future *futures[3];
    struct mxstore_outbox row;
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0);
    wait_joined(&ada);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"this one leaves\"}")), 0);
    while (status_of(&ada).unsent > 0)
        ;
    pthread_mutex_lock(&home.lock);
    home.server.faults.no_sends = true;
    pthread_mutex_unlock(&home.lock);
    mxengine_job_set(send, MXENGINE_ROOM, ROOM);
    mxengine_job_set(send, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(send, MXENGINE_CONTENT, SPAN("{\"body\":\"this one stays\"}"));
    CHECK_EQ_INT(do_job(&ada, send), 0);
    jobs[0] = mxengine_job_create(MXENGINE_EVENTS);
    jobs[0]->waits = true;
    jobs[1] = mxengine_job_create(MXENGINE_NEWS);
    jobs[2] = mxengine_job_create(MXENGINE_SENT);
    mxengine_job_set(jobs[2], MXENGINE_TEXT, mxclient_span(&send->id));
    for (int i = 0; i < 3; i++)
        futures[i] = start_job(&ada, jobs[i]);
    home_end_login(&home, true, false);
    for (int i = 0; i < 3; i++)
        check_over(futures[i], jobs[i], kept);
    CHECK_EQ_INT(status_of(&ada).state, MXCLIENT_ENDED);
    /* The row is there, also for the next engine, and nobody waits in vain. */
    device_end_engine(&ada);
    device_spawn(&ada);
    wait_state(&ada, MXCLIENT_ENDED);
    CHECK_EQ_U64(status_of(&ada).unsent, 1);
    jobs[0] = mxengine_job_create(MXENGINE_EVENTS);
    jobs[0]->waits = true;
    check_over(start_job(&ada, jobs[0]), jobs[0], kept);
    mxstore_get(unit, MXSTORE_IS_outbox, mxclient_span(&send->id));
    CHECK_EQ_INT(sql_read_wait(ada.place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    mxstore_row(unit, 0, 0, MXSTORE_IS_outbox, &row);
    CHECK(row.sending == MXSTORE_PENDING || row.sending == MXSTORE_SENDING);
    sql_unit_destroy(unit);
    mxengine_job_unref(send);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, a_login_by_token_works_once)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGIN), *reader;
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    mxengine_job_set(job, MXENGINE_URL, span_of(fake_server_url(home.http, "")));
    mxengine_job_set(job, MXENGINE_TOKEN, SPAN("nobody"));
    CHECK_EQ_INT(do_job(&ada, job), TR_EACCES);
    mxengine_job_set(job, MXENGINE_TOKEN, SPAN("@u0:x"));
    CHECK_EQ_INT(do_job(&ada, job), 0);
    CHECK_EQ_INT(strcmp(status_of(&ada).user_id, "@u0:x"), 0);
    reader = mxengine_job_create(MXENGINE_EVENTS);
    reader->waits = true;
    /* A token is used up: the engine cannot log in again with it. */
    home_end_login(&home, false, false);
    check_over(start_job(&ada, reader), reader, "Log in again.");
    CHECK_EQ_INT(status_of(&ada).state, MXCLIENT_SOFT_OUT);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_LOGIN), 2);
    CHECK_EQ_INT(do_job(&ada, job), 0); /* another token would do */
    mxengine_job_unref(job);
    home_stop(&home);
    device_stop(&ada);
}

/* Read a text about the room, such as its members; returns the status. */
static int do_read(
    struct device *device, enum mxengine_verb verb, const char *type, struct buffer *ret_text)
{
    struct mxengine_job *job = mxengine_job_create(verb);
    int rc;

    mxengine_job_set(job, MXENGINE_ROOM, ROOM);
    mxengine_job_set(job, MXENGINE_TYPE, span_of(type));
    rc = do_job(device, job);
    buffer_clear(ret_text);
    (void)buffer_span(ret_text, mxclient_span(&job->text));
    mxengine_job_unref(job);
    return rc;
}

TEST(engine, a_room_says_its_name_its_inviter_and_its_powers)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_CREATE);
    struct buffer text = { 0 };
    struct device ada, bob;
    struct mxstore_room row;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    device_start(&bob, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_login(&bob, "@u1:x", "secret"), 0);
    CHECK_EQ_INT(do_read(&ada, MXENGINE_MEMBERS, "", &text), TR_ENOENT);
    mxengine_job_set(job, MXENGINE_NAME, SPAN("ada's sync"));
    mxengine_job_set(job, MXENGINE_USER, SPAN("@u1:x"));
    CHECK_EQ_INT(do_job(&ada, job), 0);
    mxengine_job_unref(job);
    job = wait_room(&bob, "invite", &row);
    CHECK(span_is(row.name, "ada's sync") && span_is(row.inviter, "@u0:x"));
    CHECK(row.is_sync_room != 0 && row.is_encrypted != 0);
    CHECK(span_is(row.algorithm, "m.megolm.v1.aes-sha2"));
    mxengine_job_unref(job);
    CHECK_EQ_INT(do_room(&bob, MXENGINE_JOIN, NULL), 0);
    job = wait_room(&bob, "join", &row);
    CHECK_EQ_INT(row.own_level, 0);
    CHECK_EQ_INT(row.invite_level, 10);
    CHECK_EQ_INT(row.state_level, 60);
    mxengine_job_unref(job);
    job = wait_room(&ada, "join", &row);
    CHECK_EQ_INT(row.own_level, 100);
    mxengine_job_unref(job);
    CHECK_EQ_INT(do_read(&ada, MXENGINE_MEMBERS, "", &text), 0);
    mx_stage_check_text(&text, "[{\"userId\":\"@u0:x\",\"membership\":\"join\"},"
                               "{\"userId\":\"@u1:x\",\"membership\":\"join\"}]");
    CHECK_EQ_INT(do_read(&bob, MXENGINE_STATE, "m.room.name", &text), 0);
    mx_stage_check_text(&text, "{\"name\":\"ada's sync\"}");
    CHECK_EQ_INT(do_read(&bob, MXENGINE_STATE, "m.room.topic", &text), TR_ENOENT);
    CHECK_EQ_INT(do_read(&bob, MXENGINE_STATE, "", &text), TR_EINVAL);
    buffer_free(&text);
    home_stop(&home);
    device_stop(&ada);
    device_stop(&bob);
}

TEST(engine, a_sync_over_the_limit_is_a_state_and_not_repeated_at_once)
{
    struct buffer sentence = { 0 };
    struct mxengine_status status;
    struct device ada;
    struct home home;

    home_start(&home);
    home.is_sync_too_large = true;
    device_start(&ada, &home);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    do
        status = status_of(&ada);
    while (status.sync_error == 0);
    CHECK_EQ_INT(status.sync_error, TR_ETOOBIG);
    CHECK_EQ_INT(status.state, MXCLIENT_ACTIVE);
    mxengine_explain(&status, &sentence);
    CHECK(memmem(sentence.bytes, sentence.size, "limit of 64 MiB", 15) != NULL);
    buffer_free(&sentence);
    /* The rest goes on, and brings no other /sync. */
    CHECK_EQ_INT(do_room(&ada, MXENGINE_CREATE, NULL), 0);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_SYNC), 1);
    home_stop(&home);
    device_stop(&ada);
}

TEST(engine, a_logout_deletes_the_device_on_the_server)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGOUT);
    struct device ada;
    struct home home;

    home_start(&home);
    device_start(&ada, &home);
    CHECK_EQ_INT(do_job(&ada, job), TR_EBUSY);
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_job(&ada, job), 0);
    CHECK_EQ_INT(status_of(&ada).state, MXCLIENT_ENDED);
    CHECK_EQ_U64(home_acted(&home, MXCLIENT_LOGOUT), 1);
    mxengine_job_unref(job);
    home_stop(&home);
    device_stop(&ada);
}

/* ---- people ----------------------------------------------------------------------------------- */

/* Two devices in one room, each with its engine. */
static void pair_start(struct home *home, struct device *ada, struct device *bob)
{
    home_start(home);
    device_start(ada, home);
    device_start(bob, home);
    CHECK_EQ_INT(do_login(ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_login(bob, "@u1:x", "secret"), 0);
    CHECK_EQ_INT(do_room(ada, MXENGINE_CREATE, "@u1:x"), 0);
    CHECK_EQ_INT(do_room(bob, MXENGINE_JOIN, NULL), 0);
    wait_joined(ada);
    wait_joined(bob);
    while (!status_of(ada).is_settled || !status_of(bob).is_settled)
        ;
}

static void pair_stop(struct home *home, struct device *ada, struct device *bob)
{
    home_stop(home);
    device_stop(ada);
    device_stop(bob);
}

/* Return the devices of a user as text; the caller frees it. */
static struct buffer do_devices(struct device *device, const char *user)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_DEVICES);
    struct buffer text;

    mxengine_job_set(job, MXENGINE_USER, span_of(user));
    CHECK_EQ_INT(do_job(device, job), 0);
    text = job->text;
    job->text = (struct buffer){ 0 };
    mxengine_job_unref(job);
    return text;
}

static bool has_text(const struct buffer *buffer, const char *text)
{
    return memmem(buffer->bytes, buffer->size, text, strlen(text)) != NULL;
}

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

/* Wait for a step; steps before it are read over. */
static struct mxclient_verify_news wait_step(
    struct device *device, int64_t *seq, enum mxclient_verify_step step)
{
    struct mxclient_verify_news news;

    do {
        struct mxengine_job *job = mxengine_job_create(MXENGINE_NEWS);

        job->after_seq = *seq;
        CHECK_EQ_INT(do_job(device, job), 0);
        CHECK(job->seq > *seq);
        *seq = job->seq;
        news = job->news;
        mxengine_job_unref(job);
        CHECK_MSG(news.step != MXCLIENT_VERIFY_CANCELLED || step == news.step, "%s", news.reason);
    } while (news.step != step);
    return news;
}

/* Ask from ada to bob's device until both show their code; writes the transaction id. */
static void show_codes(
    struct device *ada, struct device *bob, int64_t seqs[2], char id[MXCLIENT_VERIFY_ID_CHARS + 1])
{
    struct mxengine_status asker = status_of(ada), peer = status_of(bob);
    struct mxengine_job *job = mxengine_job_create(MXENGINE_VERIFY);
    struct mxclient_verify_news first, second;

    mxengine_job_set(job, MXENGINE_USER, span_of(peer.user_id));
    mxengine_job_set(job, MXENGINE_DEVICE, span_of(peer.device_id));
    CHECK_EQ_INT(do_job(ada, job), 0);
    snprintf(id, MXCLIENT_VERIFY_ID_CHARS + 1, "%.*s", (int)job->id.size, job->id.bytes);
    mxengine_job_unref(job);
    second = wait_step(bob, &seqs[1], MXCLIENT_VERIFY_ASKED);
    CHECK_EQ_INT(strcmp(second.user_id, asker.user_id), 0);
    CHECK_EQ_INT(strcmp(second.transaction_id, id), 0);
    CHECK_EQ_INT(do_act(bob, id, MXCLIENT_VERIFY_MATCH), TR_EBUSY);
    CHECK_EQ_INT(do_act(bob, id, MXCLIENT_VERIFY_ACCEPT), 0);
    first = wait_step(ada, &seqs[0], MXCLIENT_VERIFY_COMPARE);
    second = wait_step(bob, &seqs[1], MXCLIENT_VERIFY_COMPARE);
    CHECK_EQ_INT(memcmp(&first.code, &second.code, sizeof first.code), 0);
}

static void verify_each_other(struct device *ada, struct device *bob)
{
    int64_t seqs[2] = { status_of(ada).news_seq, status_of(bob).news_seq };
    char id[MXCLIENT_VERIFY_ID_CHARS + 1];

    show_codes(ada, bob, seqs, id);
    CHECK_EQ_INT(do_act(ada, id, MXCLIENT_VERIFY_MATCH), 0);
    CHECK_EQ_INT(do_act(bob, id, MXCLIENT_VERIFY_MATCH), 0);
    (void)wait_step(ada, &seqs[0], MXCLIENT_VERIFY_DONE);
    (void)wait_step(bob, &seqs[1], MXCLIENT_VERIFY_DONE);
    while (status_of(ada).is_posting || status_of(bob).is_posting)
        ;
}

/* Return the number of events that a device can read. */
static uint32_t count_events(struct device *device)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_EVENTS);
    uint32_t count;

    CHECK_EQ_INT(do_job(device, job), 0);
    count = sql_unit_rows(job->rows, 0);
    mxengine_job_unref(job);
    return count;
}

/* Ask for the key of an event in the name of a device, as a server could. */
static void forge_key_request(
    struct home *home, int to, const char *device_id, const struct mx_server_event *event)
{
    struct json_doc doc = { 0 };
    struct span session_id;
    struct buffer json = { 0 };

    CHECK_EQ_INT(json_parse_copy(&doc, mx_server_text(&event->body), 0), 0);
    CHECK(json_string(json_get(json_root(&doc), "session_id"), &session_id));
    (void)buffer_format(&json,
        "{\"type\":\"m.room_key_request\",\"sender\":\"@u0:x\",\"content\":{"
        "\"action\":\"request\",\"request_id\":\"forged\",\"requesting_device_id\":\"%s\","
        "\"body\":{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"" MX_SERVER_ROOM
        "\",\"session_id\":\"%.*s\"}}}",
        device_id, (int)session_id.size, session_id.at);
    json_doc_free(&doc);
    home->server.messages[home->server.message_count++] =
        (struct mx_server_message){ .to = to, .json = json };
    pthread_cond_broadcast(&home->changed);
}

/* Count the messages to a device. */
static int home_count_messages(struct home *home, int device)
{
    int count = 0;

    pthread_mutex_lock(&home->lock);
    for (int i = 0; i < home->server.message_count; i++)
        count += home->server.messages[i].to == device ? 1 : 0;
    pthread_mutex_unlock(&home->lock);
    return count;
}

/* Wait until a device has stored all messages to it. */
static void home_wait_messages(struct home *home, int device)
{
    pthread_mutex_lock(&home->lock);
    while (home->server.devices[device].messages_deleted < home->server.message_count)
        pthread_cond_wait(&home->changed, &home->lock);
    pthread_mutex_unlock(&home->lock);
}

TEST(engine, a_verified_device_of_ours_gets_old_keys_and_another_none)
{
    struct device ada, bob, second, third;
    struct mxengine_status stranger;
    struct home home;
    int answers;

    pair_start(&home, &ada, &bob);
    CHECK_EQ_INT(do_send(&bob, ROOM, SPAN("{\"body\":\"an old text\"}")), 0);
    wait_event(&ada, "an old text");
    device_start(&second, &home);
    device_start(&third, &home);
    CHECK_EQ_INT(do_login(&second, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_login(&third, "@u0:x", "secret"), 0);
    while (!status_of(&second).is_settled || !status_of(&third).is_settled)
        ;
    CHECK_EQ_U64(count_events(&second), 0);
    verify_each_other(&second, &ada);
    /* Some seconds later. */
    device_kill_engine(&second);
    device_kill_engine(&third);
    atomic_store(&clocks.ahead_ns, TR_SECONDS(11));
    device_spawn(&second);
    device_spawn(&third);
    wait_event(&second, "an old text");
    stranger = status_of(&third);
    answers = home_count_messages(&home, 3);
    pthread_mutex_lock(&home.lock);
    for (int i = 0; i < home.server.event_count; i++)
        if (home.server.events[i].body.size > 0)
            forge_key_request(&home, 0, stranger.device_id, &home.server.events[i]);
    pthread_mutex_unlock(&home.lock);
    home_wait_messages(&home, 0);
    /* A text goes through both: an answer would have left before. */
    CHECK_EQ_INT(do_send(&bob, SPAN(MX_SERVER_ROOM), SPAN("{\"body\":\"a new text\"}")), 0);
    wait_event(&ada, "a new text");
    wait_event(&third, "a new text");                         /* and not the old one */
    CHECK_EQ_INT(home_count_messages(&home, 3), answers + 1); /* bob's key */
    pair_stop(&home, &ada, &bob);
    device_stop(&second);
    device_stop(&third);
    atomic_store(&clocks.ahead_ns, 0);
}

TEST(engine, two_devices_verify_each_other)
{
    char id[MXCLIENT_VERIFY_ID_CHARS + 1];
    int64_t seqs[2] = { 0, 0 };
    struct device ada, bob;
    struct buffer text;
    struct home home;

    pair_start(&home, &ada, &bob);
    text = do_devices(&ada, "@u1:x");
    CHECK(has_text(&text, "unverified"));
    buffer_free(&text);
    show_codes(&ada, &bob, seqs, id);
    CHECK_EQ_INT(do_act(&ada, id, MXCLIENT_VERIFY_MATCH), 0);
    CHECK_EQ_INT(do_act(&bob, id, MXCLIENT_VERIFY_MATCH), 0);
    (void)wait_step(&ada, &seqs[0], MXCLIENT_VERIFY_DONE);
    (void)wait_step(&bob, &seqs[1], MXCLIENT_VERIFY_DONE);
    CHECK_EQ_INT(do_act(&bob, id, MXCLIENT_VERIFY_CANCEL), TR_ENOENT);
    text = do_devices(&ada, "@u1:x");
    CHECK(has_text(&text, "\"verified\""));
    buffer_free(&text);
    while (status_of(&ada).is_posting || status_of(&bob).is_posting)
        ;
    pair_stop(&home, &ada, &bob);
}

TEST(engine, a_clock_that_jumps_within_a_life_stops_no_verification)
{
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    /* Bob's engine goes on; the clocks of both jump ahead by hours, and back. */
    for (uint64_t hours = 2; hours <= 2; hours -= 2) {
        atomic_store(&clocks.ahead_ns, TR_SECONDS(hours * 3600));
        device_kill_engine(&ada);
        device_spawn(&ada);
        wait_state(&ada, MXCLIENT_ACTIVE);
        verify_each_other(&ada, &bob);
    }
    pair_stop(&home, &ada, &bob);
}

/* Ask another device for a verification; writes the transaction id. */
static void ask_device(
    struct device *device, struct device *other, char id[MXCLIENT_VERIFY_ID_CHARS + 1])
{
    struct mxengine_status peer = status_of(other);
    struct mxengine_job *job = mxengine_job_create(MXENGINE_VERIFY);

    mxengine_job_set(job, MXENGINE_USER, span_of(peer.user_id));
    mxengine_job_set(job, MXENGINE_DEVICE, span_of(peer.device_id));
    CHECK_EQ_INT(do_job(device, job), 0);
    snprintf(id, MXCLIENT_VERIFY_ID_CHARS + 1, "%.*s", (int)job->id.size, job->id.bytes);
    mxengine_job_unref(job);
}

/* Listen as one who has just come, and check that this request is what he hears of. */
static void check_heard(struct device *device, const char *id)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_NEWS);

    job->after_seq = -1;
    CHECK_EQ_INT(do_job(device, job), 0);
    CHECK_EQ_INT(job->news.step, MXCLIENT_VERIFY_ASKED);
    CHECK_EQ_STR(job->news.transaction_id, id);
    mxengine_job_unref(job);
}

TEST(engine, a_listener_hears_of_requests_that_came_before_it)
{
    char first[MXCLIENT_VERIFY_ID_CHARS + 1], id[MXCLIENT_VERIFY_ID_CHARS + 1];
    struct device ada, bob, carol;
    struct home home;
    int64_t seq = 0, ada_seq = 0;

    pair_start(&home, &ada, &bob);
    device_start(&carol, &home);
    CHECK_EQ_INT(do_login(&carol, "@u2:x", "secret"), 0);
    home_wait_keys(&home, 2);
    ask_device(&ada, &bob, first);
    (void)wait_step(&bob, &seq, MXCLIENT_VERIFY_ASKED);
    check_heard(&bob, first);
    check_heard(&bob, first); /* and each further one does */
    /* Steps of our own push it out of the ring. */
    for (int i = 0; i < MXENGINE_NEWS_MAX; i++) {
        ask_device(&bob, &carol, id);
        CHECK_EQ_INT(do_act(&bob, id, MXCLIENT_VERIFY_CANCEL), 0);
        (void)wait_step(&bob, &seq, MXCLIENT_VERIFY_CANCELLED);
    }
    check_heard(&bob, first);
    /* One that has ended is not given out; the next one is. */
    CHECK_EQ_INT(do_act(&bob, first, MXCLIENT_VERIFY_CANCEL), 0);
    (void)wait_step(&ada, &ada_seq, MXCLIENT_VERIFY_CANCELLED);
    ask_device(&ada, &bob, id);
    check_heard(&bob, id);
    device_end_engine(&carol);
    http_client_stop(&carol.client);
    pair_stop(&home, &ada, &bob);
    place_finish(&carol.place);
}

TEST(engine, a_mismatch_verifies_nobody)
{
    char id[MXCLIENT_VERIFY_ID_CHARS + 1];
    int64_t seqs[2] = { 0, 0 };
    struct mxclient_verify_news news;
    struct device ada, bob;
    struct buffer text;
    struct home home;

    pair_start(&home, &ada, &bob);
    show_codes(&ada, &bob, seqs, id);
    CHECK_EQ_INT(do_act(&bob, id, MXCLIENT_VERIFY_MATCH), 0);
    CHECK_EQ_INT(do_act(&ada, id, MXCLIENT_VERIFY_MISMATCH), 0);
    news = wait_step(&bob, &seqs[1], MXCLIENT_VERIFY_CANCELLED);
    CHECK(news.is_by_peer);
    CHECK_EQ_INT(strcmp(news.failure, "m.mismatched_sas"), 0);
    text = do_devices(&bob, "@u0:x");
    CHECK(has_text(&text, "unverified"));
    buffer_free(&text);
    pair_stop(&home, &ada, &bob);
}

TEST(engine, an_event_that_has_left_has_the_id_of_the_server)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_SEND), *sent;
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    mxengine_job_set(job, MXENGINE_ROOM, ROOM);
    mxengine_job_set(job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(job, MXENGINE_CONTENT, SPAN("{\"body\":\"hello\"}"));
    CHECK_EQ_INT(do_job(&ada, job), 0);
    sent = mxengine_job_create(MXENGINE_SENT);
    mxengine_job_set(sent, MXENGINE_TEXT, mxclient_span(&job->id));
    CHECK_EQ_INT(do_job(&ada, sent), 0);
    CHECK(sent->id.size > 0 && sent->id.bytes[0] == '$');
    mxengine_job_unref(sent);
    sent = mxengine_job_create(MXENGINE_SENT);
    mxengine_job_set(sent, MXENGINE_TEXT, SPAN("other"));
    CHECK_EQ_INT(do_job(&ada, sent), TR_ENOENT);
    mxengine_job_unref(sent);
    mxengine_job_unref(job);
    pair_stop(&home, &ada, &bob);
}

/* Wait until a device has stored all events of the room. */
static void home_wait_seen(struct home *home, int device)
{
    pthread_mutex_lock(&home->lock);
    while (home->server.devices[device].events_seen < home->server.event_count)
        pthread_cond_wait(&home->changed, &home->lock);
    pthread_mutex_unlock(&home->lock);
}

TEST(engine, a_user_who_left_reads_on_only_after_another_join)
{
    struct device ada, bob;
    struct mxstore_room row;
    struct home home;

    pair_start(&home, &ada, &bob);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"first\"}")), 0);
    wait_event(&bob, "first");
    CHECK_EQ_INT(do_room(&bob, MXENGINE_LEAVE, NULL), 0);
    mxengine_job_unref(wait_room(&bob, "leave", &row));
    CHECK_EQ_INT(do_send(&bob, ROOM, SPAN("{\"body\":\"from outside\"}")), TR_EACCES);
    home_wait_seen(&home, 0);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"behind his back\"}")), 0);
    while (status_of(&ada).unsent > 0)
        ;
    CHECK_EQ_INT(do_room(&ada, MXENGINE_INVITE, "@u1:x"), 0);
    CHECK_EQ_INT(do_room(&bob, MXENGINE_JOIN, NULL), 0);
    mxengine_job_unref(wait_room(&bob, "join", &row));
    home_wait_seen(&home, 0);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"welcome back\"}")), 0);
    wait_event(&bob, "welcome back"); /* and the other text is not before it */
    pair_stop(&home, &ada, &bob);
}

/* Post a state event in ada's name, and wait until her device has it. */
static void home_post(struct home *home, const char *type, const char *content)
{
    pthread_mutex_lock(&home->lock);
    mx_server_post(&home->server, 0, type, "", span_of(content));
    pthread_cond_broadcast(&home->changed);
    pthread_mutex_unlock(&home->lock);
    home_wait_seen(home, 0);
}

TEST(engine, nobody_sends_to_a_room_of_an_unknown_algorithm)
{
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    home_post(&home, "m.room.encryption", "{\"algorithm\":\"m.other.v9\"}");
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"no\"}")), MX_EALGORITHM);
    device_kill_engine(&ada);
    device_spawn(&ada);
    wait_state(&ada, MXCLIENT_ACTIVE);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"no\"}")), MX_EALGORITHM);
    home_post(&home, "m.room.encryption", "{\"algorithm\":\"m.megolm.v1.aes-sha2\"}");
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"again\"}")), 0);
    wait_event(&bob, "again");
    pair_stop(&home, &ada, &bob);
}

TEST(engine, a_byte_that_is_not_utf8_stops_no_account)
{
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    home_post(&home, "m.room.topic", "{\"topic\":\"\xff \\ud800\"}");
    CHECK_EQ_INT(do_send(&bob, ROOM, SPAN("{\"body\":\"after the odd event\"}")), 0);
    wait_event(&ada, "after the odd event");
    CHECK_MSG(status_of(&ada).skipped >= 2, "it is not reported");
    pair_stop(&home, &ada, &bob);
}

TEST(engine, an_event_that_the_policy_holds_back_is_named)
{
    struct buffer sentence = { 0 };
    struct mxengine_status status;
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    device_kill_engine(&ada);
    ada.policy = MXCLIENT_SHARE_HALT;
    device_spawn(&ada);
    wait_state(&ada, MXCLIENT_ACTIVE);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"for verified eyes\"}")), 0);
    do
        status = status_of(&ada);
    while (!status.is_halted);
    mxengine_explain(&status, &sentence);
    mx_stage_check_text(
        &sentence, "1 message waits until all devices of the members are verified.");
    buffer_free(&sentence);
    verify_each_other(&ada, &bob);
    wait_event(&bob, "for verified eyes");
    while (status_of(&ada).is_halted)
        ;
    pair_stop(&home, &ada, &bob);
}

/* An engine with a looser policy finds the event in the outbox. */
TEST(engine, a_held_event_keeps_its_policy)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_SEND);
    struct mxengine_job *list = mxengine_job_create(MXENGINE_UNVERIFIED);
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    mxengine_job_set(job, MXENGINE_ROOM, ROOM);
    mxengine_job_set(job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(job, MXENGINE_CONTENT, SPAN("{\"body\":\"for verified eyes\"}"));
    job->has_policy = true;
    job->policy = MXCLIENT_SHARE_HALT;
    CHECK_EQ_INT(do_job(&ada, job), 0);
    mxengine_job_unref(job);
    while (!status_of(&ada).is_halted)
        ;
    device_kill_engine(&ada);
    CHECK_EQ_INT(ada.policy, MXCLIENT_SHARE_ALL);
    device_spawn(&ada);
    wait_state(&ada, MXCLIENT_ACTIVE);
    while (!status_of(&ada).is_halted)
        CHECK_EQ_INT(status_of(&ada).unsent, 1);
    mxengine_job_set(list, MXENGINE_ROOM, ROOM);
    CHECK_EQ_INT(do_job(&ada, list), 0);
    CHECK(has_text(&list->text, "\"userId\":\"@u1:x\""));
    CHECK(has_text(&list->text, status_of(&bob).device_id));
    mxengine_job_unref(list);
    verify_each_other(&ada, &bob);
    wait_event(&bob, "for verified eyes");
    pair_stop(&home, &ada, &bob);
}

TEST(engine, exported_sessions_are_known_when_imported)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_EXPORT), *import;
    struct device ada, bob;
    struct home home;

    pair_start(&home, &ada, &bob);
    CHECK_EQ_INT(do_send(&ada, ROOM, SPAN("{\"body\":\"hello\"}")), 0);
    wait_event(&bob, "hello");
    CHECK_EQ_INT(do_job(&bob, job), 0);
    CHECK(has_text(&job->text, "session_key"));
    import = mxengine_job_create(MXENGINE_IMPORT);
    mxengine_job_set(import, MXENGINE_TEXT, mxclient_span(&job->text));
    CHECK_EQ_INT(do_job(&bob, import), 0);
    CHECK_EQ_U64(import->import.sessions, import->import.known);
    mxengine_job_set(import, MXENGINE_TEXT, SPAN("{}"));
    CHECK_EQ_INT(do_job(&bob, import), MX_EFORMAT);
    mxengine_job_unref(import);
    mxengine_job_unref(job);
    pair_stop(&home, &ada, &bob);
}

static int file_with(const void *bytes, size_t size)
{
    FILE *file = tmpfile();
    int fd;

    CHECK(file != NULL);
    CHECK_EQ_U64(fwrite(bytes, 1, size, file), size);
    CHECK_EQ_INT(fflush(file), 0);
    fd = dup(fileno(file));
    CHECK(fd >= 0);
    (void)fclose(file);
    return fd;
}

TEST(engine, media_goes_from_a_file_and_into_one)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_UPLOAD);
    char bytes[3000], read_back[sizeof bytes + 1];
    struct device ada;
    struct home home;
    int fd;

    home_start(&home);
    device_start(&ada, &home);
    mx_stage_random()->fill(mx_stage_random()->data, bytes, sizeof bytes);
    job->file =
        (struct mxengine_file){ .fd = file_with(bytes, sizeof bytes), .size = sizeof bytes };
    CHECK_EQ_INT(do_job(&ada, job), TR_EACCES); /* nobody has logged in */
    CHECK_EQ_INT(do_login(&ada, "@u0:x", "secret"), 0);
    CHECK_EQ_INT(do_job(&ada, job), 0);
    CHECK(span_is(mxclient_span(&job->id), "mxc://x/file"));
    CHECK_EQ_U64(home.media.size, sizeof bytes);
    CHECK_EQ_INT(memcmp(home.media.bytes, bytes, sizeof bytes), 0);
    mxengine_job_unref(job);
    /* A part that is there is not asked for again. */
    for (size_t part = 0; part < sizeof bytes; part += 1000) {
        job = mxengine_job_create(MXENGINE_DOWNLOAD);
        mxengine_job_set(job, MXENGINE_URL, SPAN("mxc://x/file"));
        fd = file_with(bytes, part);
        job->file = (struct mxengine_file){ .fd = dup(fd), .size_max = sizeof bytes };
        CHECK_EQ_INT(do_job(&ada, job), 0);
        CHECK_EQ_INT(pread(fd, read_back, sizeof read_back, 0), sizeof bytes);
        CHECK_EQ_INT(memcmp(read_back, bytes, sizeof bytes), 0);
        close(fd);
        mxengine_job_unref(job);
    }
    job = mxengine_job_create(MXENGINE_DOWNLOAD);
    mxengine_job_set(job, MXENGINE_URL, SPAN("https://x/file"));
    CHECK_EQ_INT(do_job(&ada, job), TR_EINVAL);
    mxengine_job_unref(job);
    home_stop(&home);
    device_stop(&ada);
}
