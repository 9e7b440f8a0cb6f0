/* SPDX-License-Identifier: Apache-2.0 */
/* Engines over real HTTP, against a homeserver in memory. The simulation (sim_matrix) has the faults;
 * here are the requests of users, logins and the transport. */
#include <pthread.h>
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
        status = request.call == MXCLIENT_UPLOAD || request.call == MXCLIENT_DOWNLOAD
                     ? home_answer_media(home, read, request.call, &body)
                     : mx_server_answer(&home->server, &request, &body);
        pthread_cond_broadcast(&home->changed);
        pthread_mutex_unlock(&home->lock);
        (void)buffer_format(&answer, "HTTP/1.1 %u x\r\nContent-Length: %zu\r\n", status, body.size);
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

/* Ask from ada to bob until both show their code; writes the transaction id. */
static void show_codes(
    struct device *ada, struct device *bob, int64_t seqs[2], char id[MXCLIENT_VERIFY_ID_CHARS + 1])
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_VERIFY);
    struct mxclient_verify_news first, second;

    mxengine_job_set(job, MXENGINE_USER, SPAN("@u1:x"));
    CHECK_EQ_INT(do_job(ada, job), 0);
    snprintf(id, MXCLIENT_VERIFY_ID_CHARS + 1, "%.*s", (int)job->id.size, job->id.bytes);
    mxengine_job_unref(job);
    second = wait_step(bob, &seqs[1], MXCLIENT_VERIFY_ASKED);
    CHECK_EQ_INT(strcmp(second.user_id, "@u0:x"), 0);
    CHECK_EQ_INT(strcmp(second.transaction_id, id), 0);
    CHECK_EQ_INT(do_act(bob, id, MXCLIENT_VERIFY_MATCH), TR_EBUSY);
    CHECK_EQ_INT(do_act(bob, id, MXCLIENT_VERIFY_ACCEPT), 0);
    first = wait_step(ada, &seqs[0], MXCLIENT_VERIFY_COMPARE);
    second = wait_step(bob, &seqs[1], MXCLIENT_VERIFY_COMPARE);
    CHECK_EQ_INT(memcmp(&first.code, &second.code, sizeof first.code), 0);
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
