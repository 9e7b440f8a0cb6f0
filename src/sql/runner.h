/* SPDX-License-Identifier: Apache-2.0 */
/* runner.h: an actor with one connection that runs units: a writer or a reader. Inside the layer
 * only. */
#ifndef SQL_RUNNER_H
#define SQL_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "sql/backend.h"

struct sql_runner;

enum {
    SQL_QUEUE_MAX = 15000,          /* below TR_CAPACITY_MAX: the box also holds the runner's own */
    SQL_BATCH_MAX = 4096,           /* units in a COMMIT */
    SQL_BATCH_BYTES_MAX = 16 << 20, /* of values in a COMMIT; one unit may be larger */
    SQL_CONNECTIONS_MAX = 64,
};

struct sql {
    struct tr_system *system;
    const struct sql_backend *backend;
    void *database;
    char *url;
    struct sql_options options; /* with the defaults filled in, and our own copy of the URL */
    struct sql_runner *writers[SQL_CONNECTIONS_MAX];
    struct sql_runner *readers[SQL_CONNECTIONS_MAX];
    uint32_t writer_count;
    uint32_t reader_count;
    _Atomic uint64_t commits;
    _Atomic uint32_t reader_turn;
    _Atomic uint32_t holders; /* who opened it, every runner, and the watch */
    _Atomic bool is_given_up; /* set once: nothing is run any more */
    tr_sender watch;          /* watch.c: gives up when the time has come */

    pthread_mutex_t health_lock;
    uint32_t down_count; /* runners without a connection */
    uint32_t away_count; /* those of them that wait no longer */
    char down_why[160];
};

/* What is sent to a runner; unit NULL is its own word to itself. */
struct sql_message {
    struct sql_unit *unit;
    struct sql_runner *runner;
};

void sql_unref(struct sql *sql);

/* Connects and starts the actor. */
int sql_runner_create(struct sql *sql, bool is_writer, uint32_t index,
    struct sql_connection *connection, struct sql_runner **ret_runner);
/* Lets go of its sender and waits until it has run all it was given. Nulls *runner. */
void sql_runner_destroy(struct sql_runner **runner);

/* A place in the queue, or TR_EFULL, or SQL_EAWAY. Given back by the runner when the unit begins or
 * is dropped, or by sql_runner_leave when it could not be sent. */
int sql_runner_enter(struct sql_runner *runner);
void sql_runner_leave(struct sql_runner *runner);
uint32_t sql_runner_depth(const struct sql_runner *runner);
/* It has been without a connection for too long and takes no units. */
bool sql_runner_is_away(const struct sql_runner *runner);
tr_sender sql_runner_sender(const struct sql_runner *runner);

#endif
