/* SPDX-License-Identifier: Apache-2.0 */
/* naive.c: the kind of server that the actors replace. It reads the epoch, adds one and writes it back,
 * each request on a thread and a connection of its own.
 *
 *     delivery-naive URL adds|adds-retry|unread COUNT
 *
 * adds        nothing stops two requests from reading the same epoch
 * adds-retry  a UNIQUE(convo, epoch) does; a loser waits and tries again, up to 20 times
 * unread      COUNT senders of four messages each (unread = last value + 1) and COUNT readers
 * once (unread = 0), at once
 *
 * URL is sqlite:PATH or postgresql://...; the tables are its own. Prints `name value` lines. */
#include <libpq-fe.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/env.h>

enum { THREADS_MAX = 400, TRIES_MAX = 20, ROUNDS = 4 };

/* ---- either database ------------------------------------------------------------------------ */

struct database {
    sqlite3 *sqlite;
    PGconn *postgres;
};

static const char *url;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "delivery-naive: %s: %s\n", what, why);
    exit(1);
}

static struct database open_database(void)
{
    struct database database = { NULL, NULL };

    if (strncmp(url, "sqlite:", 7) == 0) {
        if (sqlite3_open(url + 7, &database.sqlite) != SQLITE_OK)
            die(url, sqlite3_errmsg(database.sqlite));
        sqlite3_busy_timeout(database.sqlite, 30000);
        sqlite3_exec(database.sqlite, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
        return database;
    }
    database.postgres = PQconnectdb(url);
    if (PQstatus(database.postgres) != CONNECTION_OK)
        die(url, PQerrorMessage(database.postgres));
    return database;
}

static void close_database(struct database *database)
{
    if (database->sqlite != NULL)
        sqlite3_close(database->sqlite);
    else
        PQfinish(database->postgres);
}

static int keep_number(void *data, int count, char **values, char **names)
{
    (void)count;
    (void)names;
    *(long long *)data = values[0] == NULL ? 0 : strtoll(values[0], NULL, 10);
    return 0;
}

/* The first cell as a number in *ret (may be NULL). False: a UNIQUE said no. */
static bool run(struct database *database, const char *sql, long long *ret)
{
    PGresult *result;
    bool is_done;

    if (database->sqlite != NULL) {
        int rc = sqlite3_exec(database->sqlite, sql, ret == NULL ? NULL : keep_number, ret, NULL);

        if (rc != SQLITE_OK && rc != SQLITE_CONSTRAINT)
            die(sql, sqlite3_errmsg(database->sqlite));
        return rc == SQLITE_OK;
    }
    result = PQexec(database->postgres, sql);
    is_done =
        PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK;
    if (!is_done && strcmp(PQresultErrorField(result, PG_DIAG_SQLSTATE), "23505") != 0)
        die(sql, PQresultErrorMessage(result));
    if (is_done && ret != NULL && PQntuples(result) > 0)
        *ret = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return is_done;
}

/* ---- requests ------------------------------------------------------------------------------- */

static struct {
    pthread_barrier_t barrier;
    bool is_unique;
    _Atomic unsigned retries, failed;
} race;

struct request {
    pthread_t thread;
    unsigned number;
    long long epoch; /* 0: it failed */
};

static uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

static void *add(void *argument)
{
    struct request *request = argument;
    struct database database = open_database();
    unsigned seed = request->number, moment_us;
    char sql[256];

    run(&database, "SELECT epoch FROM naive_convo", NULL);
    pthread_barrier_wait(&race.barrier);
    for (unsigned try = 0; try < TRIES_MAX && request->epoch == 0; try++) {
        long long epoch = 0;

        run(&database, "SELECT epoch FROM naive_convo", &epoch);
        snprintf(sql, sizeof sql,
            "INSERT INTO naive_commit (epoch, did) VALUES (%lld, 'did:plc:member%u')", epoch + 1,
            request->number);
        if (run(&database, sql, NULL)) {
            snprintf(sql, sizeof sql, "UPDATE naive_convo SET epoch = %lld", epoch + 1);
            run(&database, sql, NULL);
            request->epoch = epoch + 1;
        } else {
            race.retries++;
            moment_us = (1000u << (try < 6 ? try : 6)) / 2 + (unsigned)rand_r(&seed) % 1000;
            usleep(moment_us); /* tidy: allow usleep, it is what such a client does */
        }
    }
    if (request->epoch == 0)
        race.failed++;
    close_database(&database);
    return NULL;
}

static void *talk(void *argument)
{
    struct request *request = argument;
    struct database database = open_database();
    char sql[256];

    run(&database, "SELECT unread FROM naive_member", NULL);
    pthread_barrier_wait(&race.barrier);
    for (unsigned i = 0; i < (request->number % 2 == 0 ? ROUNDS : 1); i++) {
        long long number = 0;

        if (request->number % 2 == 0) {
            run(&database, "INSERT INTO naive_message (body) VALUES ('x')", NULL);
            run(&database, "SELECT unread FROM naive_member", &number);
            snprintf(sql, sizeof sql, "UPDATE naive_member SET unread = %lld", number + 1);
        } else {
            run(&database, "SELECT max(seq) FROM naive_message", &number);
            snprintf(sql, sizeof sql,
                "UPDATE naive_member SET unread = 0, read_seq = CASE WHEN read_seq < %lld THEN %lld"
                " ELSE read_seq END",
                number, number);
        }
        run(&database, sql, NULL);
    }
    close_database(&database);
    return NULL;
}

static double start_all(struct request *requests, unsigned count, void *(*body)(void *))
{
    uint64_t began;

    pthread_barrier_init(&race.barrier, NULL, count + 1);
    for (unsigned i = 0; i < count; i++) {
        requests[i] = (struct request){ .number = i };
        if (pthread_create(&requests[i].thread, NULL, body, &requests[i]) != 0)
            die("thread", "cannot be made");
    }
    pthread_barrier_wait(&race.barrier);
    began = now_ns();
    for (unsigned i = 0; i < count; i++)
        pthread_join(requests[i].thread, NULL);
    return (double)(now_ns() - began) / 1e9;
}

static void adds(struct request *requests, unsigned count)
{
    double seconds = start_all(requests, count, add);
    unsigned distinct = 0;

    for (unsigned i = 0; i < count; i++) {
        bool is_first = true;

        for (unsigned k = 0; k < i; k++)
            is_first = is_first && requests[k].epoch != requests[i].epoch;
        distinct += requests[i].epoch != 0 && is_first;
    }
    printf("count %u\nok %u\nduplicate_epochs %u\nretries %u\nfailed %u\nseconds %.6f\n", count,
        distinct, count - race.failed - distinct, race.retries, race.failed, seconds);
}

static void unread(struct database *database, struct request *requests, unsigned count)
{
    double seconds = start_all(requests, count * 2, talk);
    long long expected = 0, counted = 0;

    run(database,
        "SELECT count(*) FROM naive_message WHERE seq > (SELECT read_seq FROM naive_member)",
        &expected);
    run(database, "SELECT unread FROM naive_member", &counted);
    printf("messages %u\nunread_expected %lld\nunread_counted %lld\nlost_updates %lld\nseconds "
           "%.6f\n",
        count * ROUNDS, expected, counted, llabs(expected - counted), seconds);
}

int main(int argc, char **argv)
{
    static struct request requests[THREADS_MAX];
    unsigned count = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    struct database database;
    bool is_sqlite;

    if (count == 0 || count * 2 > THREADS_MAX) {
        fprintf(stderr, "usage: delivery-naive URL adds|adds-retry|unread COUNT\n");
        return 2;
    }
    url = argv[1];
    is_sqlite = strncmp(url, "sqlite:", 7) == 0;
    race.is_unique = strcmp(argv[2], "adds-retry") == 0;
    database = open_database();
    if (is_sqlite)
        run(&database, "PRAGMA journal_mode = WAL", NULL);
    run(&database, "DROP TABLE IF EXISTS naive_convo", NULL);
    run(&database, "DROP TABLE IF EXISTS naive_commit", NULL);
    run(&database, "DROP TABLE IF EXISTS naive_message", NULL);
    run(&database, "DROP TABLE IF EXISTS naive_member", NULL);
    run(&database, "CREATE TABLE naive_convo (epoch BIGINT NOT NULL)", NULL);
    run(&database,
        race.is_unique ? "CREATE TABLE naive_commit (epoch BIGINT NOT NULL UNIQUE, did TEXT)"
                       : "CREATE TABLE naive_commit (epoch BIGINT NOT NULL, did TEXT)",
        NULL);
    run(&database,
        is_sqlite ? "CREATE TABLE naive_message (seq INTEGER PRIMARY KEY, body TEXT)"
                  : "CREATE TABLE naive_message (seq BIGSERIAL PRIMARY KEY, body TEXT)",
        NULL);
    run(&database, "CREATE TABLE naive_member (unread BIGINT NOT NULL, read_seq BIGINT NOT NULL)",
        NULL);
    run(&database, "INSERT INTO naive_convo VALUES (5)", NULL);
    run(&database, "INSERT INTO naive_member VALUES (0, 0)", NULL);
    if (strcmp(argv[2], "unread") == 0)
        unread(&database, requests, count);
    else
        adds(requests, count);
    close_database(&database);
    return 0;
}
