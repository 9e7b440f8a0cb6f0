/* SPDX-License-Identifier: Apache-2.0 */
/* mx_home.h: mx_server.h over real HTTP, and engines with their real transport and database. A long
 * poll waits for news. A judge sees every request and may break the connection instead of an answer. */
#ifndef TEST_LIB_MX_HOME_H
#define TEST_LIB_MX_HOME_H

#include <pthread.h>

#include "../unit/sql/place.h"
#include "fake_server.h"
#include "matrix/client/body.h"
#include "matrix/client/engine_http.h"
#include "mx_client.h"
#include "mx_server.h"

#define MX_HOME_ROOM SPAN(MX_SERVER_ROOM)

/* ---- the homeserver --------------------------------------------------------------------------- */

enum mx_home_fate {
    MX_HOME_ANSWER,
    MX_HOME_SILENT, /* nothing happens and no byte comes, until mx_home_hurry ends the connection */
    MX_HOME_RESET,  /* nothing happens; the connection is reset */
    MX_HOME_ACT_RESET, /* the request acts, and its answer is lost */
    MX_HOME_CUT,       /* it acts, and half of the answer comes before the end */
    MX_HOME_SLOW,      /* it acts; the second half of the answer comes after mx_home_hurry */
    MX_HOME_FATES,
};

struct mx_home;
/* Called with the lock held. `device` is the asker's, or -1. */
typedef enum mx_home_fate (*mx_home_judge)(
    struct mx_home *home, const struct mx_server_request *request, int device);

struct mx_home {
    struct mx_server server;
    struct fake_server *http;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* after each request */
    bool is_ending;
    bool is_hurried; /* no request waits any more */
    uint64_t fates[MX_HOME_FATES];
    mx_home_judge judge; /* NULL: every request is answered */
    void *judge_data;
};

/* Return whether a path fits the pattern of a call; each {} is one part. */
static inline bool mx_home_path_fits(const char *path, const char *pattern)
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

static inline enum mxclient_call mx_home_call(const struct fake_request *request)
{
    for (int i = 0; i < MXCLIENT_CALL_COUNT; i++)
        if (strcmp(request->method, mxclient_call_rules[i].method) == 0 &&
            mx_home_path_fits(request->path, mxclient_call_rules[i].path))
            return (enum mxclient_call)i;
    CHECK_MSG(false, "%s %s is no call", request->method, request->path);
    return MXCLIENT_CALL_COUNT;
}

static inline bool mx_home_is_poll(const struct mx_server_request *request)
{
    return request->call == MXCLIENT_SYNC &&
           memmem(request->target.at, request->target.size, "timeout=30000", 13) != NULL;
}

/* Hold a long poll until there is news. */
static inline void mx_home_hold(struct mx_home *home, const struct mx_server_request *request)
{
    while (mx_home_is_poll(request) && !home->is_ending) {
        int device = mx_server_device_of(&home->server, request->token);

        if (device < 0 ||
            mx_server_has_news(&home->server, device, mx_server_since(request->target)))
            return;
        pthread_cond_wait(&home->changed, &home->lock);
    }
}

/* Act on a request; returns its fate. The answer is whole, also if only a part of it is sent. */
static inline enum mx_home_fate mx_home_act(
    struct mx_home *home, const struct mx_server_request *request, struct buffer *answer)
{
    enum mx_home_fate fate = MX_HOME_ANSWER;
    struct buffer body = { 0 };
    uint32_t status;

    pthread_mutex_lock(&home->lock);
    if (home->judge != NULL)
        fate = home->judge(home, request, mx_server_device_of(&home->server, request->token));
    if (fate != MX_HOME_SILENT && fate != MX_HOME_RESET) {
        mx_home_hold(home, request);
        status = mx_server_answer(&home->server, request, &body);
        (void)buffer_format(
            answer, "HTTP/1.1 %u x\r\nContent-Length: %zu\r\n\r\n", status, body.size);
        (void)buffer_span(answer, mx_server_text(&body));
    }
    home->fates[fate]++;
    pthread_cond_broadcast(&home->changed);
    pthread_mutex_unlock(&home->lock);
    buffer_free(&body);
    return fate;
}

/* Wait for mx_home_hurry. */
static inline void mx_home_linger(struct mx_home *home)
{
    pthread_mutex_lock(&home->lock);
    while (!home->is_hurried && !home->is_ending)
        pthread_cond_wait(&home->changed, &home->lock);
    pthread_mutex_unlock(&home->lock);
}

/* Send an answer, or the part of it that its fate leaves; false at the end of the connection. */
static inline bool mx_home_send(struct mx_home *home, struct fake_connection *connection,
    enum mx_home_fate fate, const struct buffer *answer)
{
    size_t half = answer->size / 2;

    if (fate == MX_HOME_SILENT)
        mx_home_linger(home);
    else if (fate == MX_HOME_RESET || fate == MX_HOME_ACT_RESET)
        fake_reset(connection);
    else if (fate == MX_HOME_CUT)
        (void)fake_send_bytes(connection, answer->bytes, half);
    else if (fate == MX_HOME_SLOW) {
        if (!fake_send_bytes(connection, answer->bytes, half))
            return false;
        mx_home_linger(home);
        return fake_send_bytes(connection, answer->bytes + half, answer->size - half);
    } else
        return fake_send_bytes(connection, answer->bytes, answer->size);
    return false;
}

static inline void mx_home_script(struct fake_connection *connection, void *data)
{
    struct fake_request *read = malloc(sizeof *read);
    bool is_open = true;

    CHECK(read != NULL);
    while (is_open && fake_read(connection, read)) {
        struct mx_server_request request = { .call = mx_home_call(read),
            .target = span_of(read->path),
            .body = { read->body, read->body_size } };
        struct buffer answer = { 0 };
        char token[100] = "";
        enum mx_home_fate fate;

        if (fake_header(read, "Authorization", token, sizeof token))
            request.token = span_of(token + strlen("Bearer "));
        CHECK_EQ_INT(request.token.at != NULL, mxclient_call_rules[request.call].has_token);
        fate = mx_home_act(data, &request, &answer);
        is_open = mx_home_send(data, connection, fate, &answer);
        buffer_free(&answer);
    }
    free(read);
}

static inline uint64_t mx_home_random(void *data)
{
    uint64_t bits;

    (void)data;
    mx_stage_random()->fill(mx_stage_random()->data, &bits, sizeof bits);
    return bits;
}

static inline void mx_home_start(struct mx_home *home)
{
    *home = (struct mx_home){ .server = {
                                  .random = mx_home_random, .faults = { .timeline_max = 1000 } } };
    pthread_mutex_init(&home->lock, NULL);
    pthread_cond_init(&home->changed, NULL);
    home->http = fake_server_start(mx_home_script, home, NULL);
}

/* End all waits of slow and silent requests, also of those that come. */
static inline void mx_home_hurry(struct mx_home *home)
{
    pthread_mutex_lock(&home->lock);
    home->is_hurried = true;
    pthread_cond_broadcast(&home->changed);
    pthread_mutex_unlock(&home->lock);
}

/* Wait until this many requests have met a fate. */
static inline void mx_home_wait_fate(struct mx_home *home, enum mx_home_fate fate, uint64_t count)
{
    pthread_mutex_lock(&home->lock);
    while (home->fates[fate] < count)
        pthread_cond_wait(&home->changed, &home->lock);
    pthread_mutex_unlock(&home->lock);
}

static inline void mx_home_stop(struct mx_home *home)
{
    pthread_mutex_lock(&home->lock);
    home->is_ending = true;
    pthread_cond_broadcast(&home->changed);
    pthread_mutex_unlock(&home->lock);
    fake_server_stop(&home->http);
    mx_server_fini(&home->server);
}

/* ---- a device --------------------------------------------------------------------------------- */

enum { MX_DEVICE_JOB_S = 60 };

/* An engine, its database and its transport. The caller may replace `backend` before the database is
 * opened, and `wrap` the transport before the engine starts. */
struct mx_device {
    struct place place;
    const struct sql_backend *backend;
    struct http_client *client;
    struct mxengine_http *http;
    struct mxengine_options options;
    struct mxengine_transport (*wrap)(struct mxengine_transport transport);
    tr_sender engine;
    struct tr_done *done;
};

/* Start the engine on the open database. */
static inline void mx_device_spawn(struct mx_device *device)
{
    struct mxengine_transport transport;

    CHECK_EQ_INT(mxengine_http_create(device->client, &device->http), 0);
    transport = mxengine_http_transport(device->http);
    device->options = (struct mxengine_options){ .sql = device->place.sql,
        .key = &mx_client_key,
        .transport = device->wrap != NULL ? device->wrap(transport) : transport,
        .policy = MXCLIENT_SHARE_ALL };
    CHECK_EQ_INT(mxengine_spawn(device->place.system, &device->options,
                     &(struct tr_spawn_options){ .ret_done = &device->done }, &device->engine),
        0);
}

/* Open the database of the place and start the engine. */
static inline void mx_device_start(struct mx_device *device)
{
    struct sql_options options;

    place_system(&device->place);
    options = (struct sql_options){ .url = device->place.url,
        .migrations = mxstore_migrations,
        .migration_count = MXSTORE_MIGRATIONS,
        .readers = 1,
        .backend = device->backend };
    CHECK_EQ_INT(place_try_open(&device->place, &options), 0);
    CHECK_EQ_INT(http_client_start(device->place.system,
                     &(struct http_client_options){ .allow_private = true }, &device->client),
        0);
    mx_device_spawn(device);
}

/* End the engine by tr_kill: a long poll under way must not delay it. */
static inline void mx_device_end_engine(struct mx_device *device)
{
    enum tr_why why;

    CHECK_EQ_INT(tr_kill(tr_sender_weaken(device->engine)), 0);
    tr_sender_drop(&device->engine);
    CHECK_EQ_INT(tr_done_wait(&device->done, NULL, &why, TR_SECONDS(10)), 0);
    mxengine_http_destroy(&device->http);
}

/* End all but the database's files. */
static inline void mx_device_close(struct mx_device *device)
{
    mx_device_end_engine(device);
    http_client_stop(&device->client);
    sql_close(&device->place.sql);
    tr_system_destroy(&device->place.system);
}

static inline int mx_device_do(struct mx_device *device, struct mxengine_job *job)
{
    return mxengine_wait(device->engine, job, TR_SECONDS(MX_DEVICE_JOB_S));
}

static inline int mx_device_login(struct mx_device *device, const char *url, const char *user)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGIN);
    int rc;

    mxengine_job_set(job, MXENGINE_URL, span_of(url));
    mxengine_job_set(job, MXENGINE_USER, span_of(user));
    mxengine_job_set(job, MXENGINE_PASSWORD, SPAN("secret"));
    rc = mx_device_do(device, job);
    mxengine_job_unref(job);
    return rc;
}

/* Do something with the room; `user` may be NULL. */
static inline int mx_device_room(
    struct mx_device *device, enum mxengine_verb verb, const char *user)
{
    struct mxengine_job *job = mxengine_job_create(verb);
    int rc;

    if (user != NULL)
        mxengine_job_set(job, MXENGINE_USER, span_of(user));
    mxengine_job_set(job, MXENGINE_ROOM, MX_HOME_ROOM);
    rc = mx_device_do(device, job);
    mxengine_job_unref(job);
    return rc;
}

static inline int mx_device_send(struct mx_device *device, const char *text)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_SEND);
    char content[100];
    int rc;

    snprintf(content, sizeof content, "{\"body\":\"%s\"}", text);
    mxengine_job_set(job, MXENGINE_ROOM, MX_HOME_ROOM);
    mxengine_job_set(job, MXENGINE_TYPE, SPAN("m.room.message"));
    mxengine_job_set(job, MXENGINE_CONTENT, span_of(content));
    rc = mx_device_do(device, job);
    mxengine_job_unref(job);
    return rc;
}

static inline struct mxengine_status mx_device_status(struct mx_device *device)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_STATUS);
    struct mxengine_status status;

    CHECK_EQ_INT(mx_device_do(device, job), 0);
    status = job->status;
    mxengine_job_unref(job);
    return status;
}

/* Return whether the room is known as joined and encrypted. */
static inline bool mx_device_is_joined(struct mx_device *device)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_ROOMS);
    struct mxstore_room row;
    bool is_joined = false;

    CHECK_EQ_INT(mx_device_do(device, job), 0);
    for (uint32_t i = 0; i < sql_unit_rows(job->rows, 0); i++) {
        mxstore_row(job->rows, 0, i, MXSTORE_IS_room, &row);
        is_joined = span_is(row.membership, "join") && row.is_encrypted != 0;
    }
    mxengine_job_unref(job);
    return is_joined;
}

/* Wait for the next event after *cursor and copy its body; returns the job's status. */
static inline int mx_device_next(
    struct mx_device *device, int64_t *cursor, char *text, size_t text_size)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_EVENTS);
    struct buffer body = { 0 };
    struct mxstore_event row;
    int rc;

    job->after_seq = *cursor;
    job->count_max = 1;
    job->waits = true;
    rc = mx_device_do(device, job);
    if (rc == 0) {
        CHECK_EQ_U64(sql_unit_rows(job->rows, 0), 1);
        mxstore_row(job->rows, 0, 0, MXSTORE_IS_event, &row);
        CHECK_EQ_INT(mxclient_body_open(&mx_client_key, row.event_id, row.body, &body), 0);
        snprintf(text, text_size, "%.*s", (int)body.size, body.bytes);
        CHECK_MSG(
            row.seq > *cursor, "cursor: %lld after %lld", (long long)row.seq, (long long)*cursor);
        *cursor = row.seq;
    }
    buffer_free(&body);
    mxengine_job_unref(job);
    return rc;
}

#endif
