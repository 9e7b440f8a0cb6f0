/* SPDX-License-Identifier: Apache-2.0 */
/* runner.h: the actor that runs units on one connection, a writer or a reader. Private to this
 * folder. */
#ifndef SQL_RUNNER_H
#define SQL_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "sql/backend.h"

struct sql_runner;

enum {
    SQL_QUEUE_MAX = 15000, /* below TR_CAPACITY_MAX: the box also holds the runner's own messages */
    SQL_BATCH_MAX = 4096,  /* units in a COMMIT */
    SQL_BATCH_BYTES_MAX = 16 << 20, /* of values in a COMMIT; one unit may be larger */
    SQL_CONNECTIONS_MAX = 64,
};

struct sql {
    struct tr_system *system;
    const struct sql_backend *backend;
    void *database;
    char *url;
    struct sql_options options; /* with defaults filled in; `url` points to the copy above */
    struct sql_runner *writers[SQL_CONNECTIONS_MAX];
    struct sql_runner *readers[SQL_CONNECTIONS_MAX];
    uint32_t writer_count;
    uint32_t reader_count;
    _Atomic uint64_t commits;
    _Atomic uint32_t reader_turn;
    _Atomic uint32_t holders; /* the opener, every runner, and the watch */
    _Atomic bool is_given_up; /* set once: no unit runs any more */
    tr_sender watch;          /* watch.c: gives up at its deadline */

    pthread_mutex_t health_lock;
    uint32_t down_count; /* runners whose connect failed */
    uint32_t away_count; /* runners that refuse units for want of a connection */
    char down_why[160];
};

void sql_unref(struct sql *sql);

/* Start the actor with an open connection, which it owns on success. */
int sql_runner_create(struct sql *sql, bool is_writer, uint32_t index,
    struct sql_connection *connection, struct sql_runner **ret_runner);
/* Drop the sender and wait until the actor has run all its units. Sets *runner to NULL. */
void sql_runner_destroy(struct sql_runner **runner);

/* Take a place in the queue; TR_EFULL or SQL_EAWAY. The runner frees the place when the unit starts
 * or is dropped; the caller frees it with sql_runner_leave if it could not send the unit. */
int sql_runner_enter(struct sql_runner *runner);
void sql_runner_leave(struct sql_runner *runner);
uint32_t sql_runner_depth(const struct sql_runner *runner);
/* True if the runner has been without a connection for too long and refuses units. */
bool sql_runner_is_away(const struct sql_runner *runner);
tr_sender sql_runner_sender(const struct sql_runner *runner);

#endif
