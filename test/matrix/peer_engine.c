/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "crypto/digest.h"
#include "sql/backend.h"
#include "support/log.h"

enum { ASKS_MAX = 64, STOP_S = 10, MOMENT_MS = 100 };

const struct mx_pickle_key peer_key = { { 7 } }; /* the secrets of a test */

static void random_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    crypto_random_fill(bytes, size);
}
const struct mx_random peer_random = { .fill = random_fill };

/* There is one engine in a program. */
static struct {
    struct peer_engine *peer;
    struct mxengine_transport inner;
    struct {
        uint32_t tag; /* 0: the place is free */
        enum mxclient_call call;
    } asks[ASKS_MAX];
    pthread_mutex_t lock; /* of `commits` */
    pthread_cond_t committed;
    uint64_t commits;
    _Atomic int64_t ahead_ms;
} hook = { .lock = PTHREAD_MUTEX_INITIALIZER, .committed = PTHREAD_COND_INITIALIZER };

void peer_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(1);
}

static void peer_check(int rc, const char *what)
{
    if (rc != 0)
        peer_fail("%s: %s", what, mx_error_text(rc));
}

/* ---- windows ---------------------------------------------------------------------------------- */

static uint64_t hook_wall(void *data)
{
    return tr_env_real()->wall_ns(data) + (uint64_t)hook.ahead_ms * 1000000;
}

void peer_pass_ms(int64_t ms)
{
    hook.ahead_ms += ms;
}

static int hook_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = sql_sqlite.commit(connection, units, count);

    for (size_t i = 0; rc == 0 && i < count; i++)
        if (units[i]->status == 0)
            hook.peer->listener.on_commit(units[i]);
    pthread_mutex_lock(&hook.lock);
    hook.commits++;
    pthread_cond_broadcast(&hook.committed);
    pthread_mutex_unlock(&hook.lock);
    return rc;
}

static int hook_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    int place = 0;

    while (place < ASKS_MAX && hook.asks[place].tag != 0)
        place++;
    if (place == ASKS_MAX)
        return TR_EFULL;
    hook.asks[place].tag = tag;
    hook.asks[place].call = call->request->call;
    return hook.inner.ask(data, ctx, call, tag);
}

static void hook_take(void *data, const struct tr_event *event, struct mxengine_answer *ret_answer)
{
    hook.inner.take(data, event, ret_answer);
    for (int i = 0; i < ASKS_MAX; i++)
        if (hook.asks[i].tag == event->tag) {
            hook.asks[i].tag = 0;
            hook.peer->listener.on_answer(hook.asks[i].call, ret_answer);
        }
}

static void hook_end(void *data)
{
    memset(hook.asks, 0, sizeof hook.asks);
    hook.inner.end(data);
}

static uint64_t hook_commits(void)
{
    uint64_t commits;

    pthread_mutex_lock(&hook.lock);
    commits = hook.commits;
    pthread_mutex_unlock(&hook.lock);
    return commits;
}

/* Steps without a commit, like an answer that changes nothing, end the moment. */
void peer_wait_commit(struct peer_engine *peer)
{
    struct timespec until;
    uint64_t commits = hook_commits();
    int rc = 0;

    (void)peer;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += MOMENT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&hook.lock);
    while (rc == 0 && hook.commits == commits)
        rc = pthread_cond_timedwait(&hook.committed, &hook.lock, &until);
    pthread_mutex_unlock(&hook.lock);
}

/* ---- life ------------------------------------------------------------------------------------- */

static void engine_spawn(struct peer_engine *peer)
{
    peer_check(mxengine_http_create(peer->client, &peer->http), "starting the transport");
    hook.inner = mxengine_http_transport(peer->http);
    peer->options.transport = hook.inner;
    peer->options.transport.ask = hook_ask;
    peer->options.transport.take = hook_take;
    peer->options.transport.end = hook_end;
    peer_check(mxengine_spawn(peer->system, &peer->options,
                   &(struct tr_spawn_options){ .ret_done = &peer->done }, &peer->engine),
        "starting the engine");
    peer->life++;
}

static void engine_kill(struct peer_engine *peer)
{
    enum tr_why why;

    (void)tr_kill(tr_sender_weaken(peer->engine));
    tr_sender_drop(&peer->engine);
    peer_check(tr_done_wait(&peer->done, NULL, &why, TR_SECONDS(STOP_S)), "ending the engine");
    mxengine_http_destroy(&peer->http);
}

/* The thread that wants the engine down comes before those that use it. */
static void engine_init_lock(struct peer_engine *peer)
{
    pthread_rwlockattr_t kind;

    (void)pthread_rwlockattr_init(&kind);
    (void)pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    (void)pthread_rwlock_init(&peer->lock, &kind);
    (void)pthread_rwlockattr_destroy(&kind);
}

void peer_engine_open(struct peer_engine *peer, const char *path)
{
    static struct sql_backend backend;
    char url[4096], why[512];

    hook.peer = peer;
    backend = sql_sqlite;
    backend.commit = hook_commit;
    (void)snprintf(url, sizeof url, "sqlite:%s", path);
    log_setup(2, LOG_LOGFMT, LOG_WARN);
    peer_check(
        tr_system_create(
            &(struct tr_system_options){ .workers = 1, .blocking_threads = 2, .quiet = true },
            &peer->system),
        "starting actors");
    if (sql_open(peer->system,
            &(struct sql_options){ .url = url,
                .migrations = mxstore_migrations,
                .migration_count = MXSTORE_MIGRATIONS,
                .readers = 1,
                .backend = &backend },
            why, sizeof why, &peer->sql) != 0)
        peer_fail("%s", why);
    peer_check(http_client_start(peer->system,
                   &(struct http_client_options){ .allow_private = true }, &peer->client),
        "starting the HTTP client");
    peer->env = *tr_env_real();
    peer->env.wall_ns = hook_wall;
    peer->options = (struct mxengine_options){
        .sql = peer->sql, .key = &peer_key, .policy = MXCLIENT_SHARE_ALL, .env = &peer->env
    };
    engine_init_lock(peer);
    engine_spawn(peer);
}

/* The counters of an engine end with it. */
void peer_engine_down(struct peer_engine *peer)
{
    uint64_t undecrypted = peer_status(peer).undecrypted;

    /* Jobs that wait for news hold the lock; the end of the engine ends them. */
    (void)tr_kill(tr_sender_weaken(peer->engine));
    (void)pthread_rwlock_wrlock(&peer->lock);
    engine_kill(peer);
    peer->undecrypted += undecrypted;
}

void peer_engine_up(struct peer_engine *peer)
{
    engine_spawn(peer);
    (void)pthread_rwlock_unlock(&peer->lock);
}

void peer_engine_close(struct peer_engine *peer)
{
    peer_engine_down(peer);
    http_client_stop(&peer->client);
    sql_close(&peer->sql);
    tr_system_destroy(&peer->system);
    /* The lock stays: no thread may use the engine again. */
}

/* ---- jobs ------------------------------------------------------------------------------------- */

int peer_do(struct peer_engine *peer, struct mxengine_job *job)
{
    int rc;

    (void)pthread_rwlock_rdlock(&peer->lock);
    rc = mxengine_wait(peer->engine, job, 0);
    (void)pthread_rwlock_unlock(&peer->lock);
    return rc;
}

int peer_next_news(
    struct peer_engine *peer, struct peer_cursor *cursor, struct mxclient_verify_news *ret_news)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_NEWS);
    int rc;

    (void)pthread_rwlock_rdlock(&peer->lock);
    if (cursor->life != peer->life)
        *cursor = (struct peer_cursor){ .life = peer->life };
    job->after_seq = cursor->seq;
    rc = mxengine_wait(peer->engine, job, 0);
    (void)pthread_rwlock_unlock(&peer->lock);
    if (rc == 0) {
        cursor->seq = job->seq;
        *ret_news = job->news;
    }
    mxengine_job_unref(job);
    return rc;
}

struct mxengine_status peer_status(struct peer_engine *peer)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_STATUS);
    struct mxengine_status status;

    peer_check(job == NULL ? TR_ENOMEM : peer_do(peer, job), "asking for the status");
    status = job->status;
    mxengine_job_unref(job);
    return status;
}

struct sql_unit *peer_sql(
    struct peer_engine *peer, const struct sql_statement *statement, struct span text)
{
    struct sql_unit *unit = sql_unit_create(0);
    bool is_read = strncmp(statement->text, "SELECT", 6) == 0;

    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    if (text.at != NULL)
        sql_unit_text(unit, text);
    peer_check(is_read ? sql_read_wait(peer->sql, unit) : sql_write_wait(peer->sql, unit),
        statement->text);
    return unit;
}
