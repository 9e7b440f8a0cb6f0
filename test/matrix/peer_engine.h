/* SPDX-License-Identifier: Apache-2.0 */
/* peer_engine.h: the engine as a program hosts it, with SQLite and HTTP, and three windows for tests:
 * the units that it has committed, the answers that it takes, and its database while it is down. */
#ifndef TEST_MATRIX_PEER_ENGINE_H
#define TEST_MATRIX_PEER_ENGINE_H

#include <pthread.h>

#include "matrix/client/engine_http.h"
#include "sql/unit.h"

/* Calls from threads of the runtime. */
struct peer_listener {
    void (*on_commit)(const struct sql_unit *unit); /* a unit is stored */
    void (*on_answer)(enum mxclient_call call, const struct mxengine_answer *answer);
};

struct peer_engine {
    struct peer_listener listener;
    struct tr_system *system;
    struct sql *sql;
    struct http_client *client;
    struct mxengine_http *http;
    struct mxengine_options options;
    struct tr_env env;     /* its wall clock is ahead of the real one */
    pthread_rwlock_t lock; /* written while the engine is down; guards what follows */
    tr_sender engine;
    struct tr_done *done;
    uint64_t life;        /* counts the engines */
    uint64_t undecrypted; /* of former engines */
};

extern const struct mx_pickle_key peer_key;
extern const struct mx_random peer_random;

/* End the program with a line on stderr. */
_Noreturn void peer_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Open the database at `path` and start the engine. */
void peer_engine_open(struct peer_engine *peer, const char *path);
void peer_engine_close(struct peer_engine *peer);
/* End the engine between two turns, as a crash would; peer_engine_up starts one again. No job runs in
 * between. */
void peer_engine_down(struct peer_engine *peer);
void peer_engine_up(struct peer_engine *peer);
/* Run a job to its end; returns its status. */
int peer_do(struct peer_engine *peer, struct mxengine_job *job);
struct mxengine_status peer_status(struct peer_engine *peer);
/* A place in the news of one engine; {0} is before the first. */
struct peer_cursor {
    uint64_t life;
    int64_t seq;
};
/* Wait for the next news of verifications; fails when the engine ends. */
int peer_next_news(
    struct peer_engine *peer, struct peer_cursor *cursor, struct mxclient_verify_news *ret_news);
/* Wait until the engine has stored something, or for a moment. */
void peer_wait_commit(struct peer_engine *peer);
/* Run a statement with one text while the engine is down, or a reading one at any time; the caller
 * destroys the unit. */
struct sql_unit *peer_sql(
    struct peer_engine *peer, const struct sql_statement *statement, struct span text);
void peer_pass_ms(int64_t ms); /* the engine's clock goes forward at its next start */

#endif
