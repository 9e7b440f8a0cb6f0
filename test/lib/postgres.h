/* SPDX-License-Identifier: Apache-2.0 */
/* postgres.h: a real PostgreSQL for one case, in a directory of its own, reached by a socket in it.
 *
 * A keeper, a small process beside the case, owns directory and server: whichever way the case
 * ends, the keeper stops the server and removes the directory. Open it before the case has threads.
 * When root runs the tests, server and files belong to the user postgres, or nobody.
 *
 * A server that cannot run here ends the case with SKIP and its reason. Every other error
 * fails the case, with the end of the server's log. */
#ifndef TEST_LIB_POSTGRES_H
#define TEST_LIB_POSTGRES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct test_postgres {
    char directory[128];
    char url[192];
    int fd; /* to the keeper */
    pid_t keeper;
    pid_t pid; /* of the server, 0 when it does not run */
};

struct test_postgres_options {
    const char *settings;    /* lines of postgresql.conf, or NULL */
    size_t small_disk_bytes; /* a file system of this size at DIRECTORY/small, which only the server
                                sees; needs root */
};

/* Makes a database and starts the server. NULL options are fine. */
void test_postgres_open(
    struct test_postgres *postgres, const struct test_postgres_options *options);
void test_postgres_close(struct test_postgres *postgres);

/* Blocks until it takes connections. False if it ended instead. */
bool test_postgres_start(struct test_postgres *postgres);
/* Both return when every process of the server is gone. `stop` ends it in order (and under its
 * clients), `kill` is SIGKILL to the one process that holds them together. */
void test_postgres_stop(struct test_postgres *postgres);
void test_postgres_kill(struct test_postgres *postgres);
/* Replaces the lines of the last call. They count from the next start. */
void test_postgres_configure(struct test_postgres *postgres, const char *settings);

#endif
