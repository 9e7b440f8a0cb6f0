/* SPDX-License-Identifier: Apache-2.0 */
/* Engines over real HTTP, against a homeserver in memory. The simulation (sim_matrix) has the faults;
 * here are the requests of users, logins and the transport. */
#include <pthread.h>

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
        home_hold(home, &request);
        status = mx_server_answer(&home->server, &request, &body);
        pthread_cond_broadcast(&home->changed);
        pthread_mutex_unlock(&home->lock);
        (void)buffer_format(
            &answer, "HTTP/1.1 %u x\r\nContent-Length: %zu\r\n\r\n", status, body.size);
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

/* ---- a device --------------------------------------------------------------------------------- */

struct device {
    struct home *home;
    struct place place;
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
        .policy = MXCLIENT_SHARE_ALL };
    CHECK_EQ_INT(mxengine_spawn(device->place.system, &device->options,
                     &(struct tr_spawn_options){ .ret_done = &device->done }, &device->engine),
        0);
}

static void device_start(struct device *device, struct home *home)
{
    struct sql_options options;

    *device = (struct device){ .home = home };
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

static void device_end_engine(struct device *device)
{
    enum tr_why why;

    CHECK_EQ_INT(tr_stop(tr_sender_weaken(device->engine)), 0);
    tr_sender_drop(&device->engine);
    CHECK_EQ_INT(tr_done_wait(&device->done, NULL, &why, TR_SECONDS(10)), 0);
    mxengine_http_destroy(&device->http);
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
