/* SPDX-License-Identifier: Apache-2.0 */
/* raw.c: batched SQL with nothing around it: one thread, SQLite as it comes, a commit for every
 * BATCH units, no queue, no actors, nobody who waits for an answer.
 *
 *     sql-raw PATH [-c CONVERSATIONS] [-s SECONDS] [-b BATCH]
 *
 * A unit is sql_bench.c's: a compare-and-set of the epoch with a fence, a message, two members, in
 * a savepoint of its own so that it could fail alone. Write-ahead log, synchronous=FULL, SQLite's
 * own checkpoints. The rate of a service is given as a part of this one. The file must be new.
 * Prints `name value` lines. */
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct {
    unsigned convos, seconds, batch;
    sqlite3 *handle;
} raw = { .convos = 600, .seconds = 3, .batch = 256 };

static void die(const char *what)
{
    fprintf(
        stderr, "sql-raw: %s: %s\n", what, raw.handle == NULL ? "" : sqlite3_errmsg(raw.handle));
    exit(1);
}

static void run(const char *text)
{
    if (sqlite3_exec(raw.handle, text, NULL, NULL, NULL) != SQLITE_OK)
        die(text);
}

static sqlite3_stmt *prepare(const char *text)
{
    sqlite3_stmt *statement;

    if (sqlite3_prepare_v3(raw.handle, text, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL) !=
        SQLITE_OK)
        die(text);
    return statement;
}

static void step(sqlite3_stmt *statement)
{
    if (sqlite3_step(statement) != SQLITE_DONE)
        die(sqlite3_sql(statement));
    sqlite3_reset(statement);
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void make_tables(void)
{
    sqlite3_stmt *add;

    run("PRAGMA journal_mode=WAL");
    run("PRAGMA synchronous=FULL");
    run("CREATE TABLE convo (id BIGINT PRIMARY KEY, epoch BIGINT NOT NULL, fence BIGINT NOT NULL)");
    run("CREATE TABLE message (convo BIGINT NOT NULL, epoch BIGINT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (convo, epoch))");
    run("CREATE TABLE member (convo BIGINT NOT NULL, did TEXT NOT NULL, epoch BIGINT NOT NULL, "
        "PRIMARY KEY (convo, did))");
    run("BEGIN");
    add = prepare("INSERT INTO convo VALUES (?1, 0, 1)");
    for (unsigned i = 0; i < raw.convos; i++) {
        sqlite3_bind_int64(add, 1, i);
        step(add);
    }
    sqlite3_finalize(add);
    run("COMMIT");
}

static struct {
    sqlite3_stmt *begin, *commit, *save, *release, *step_convo, *add_message, *add_member;
} statements;

static void prepare_all(void)
{
    statements.begin = prepare("BEGIN IMMEDIATE");
    statements.commit = prepare("COMMIT");
    statements.save = prepare("SAVEPOINT unit");
    statements.release = prepare("RELEASE unit");
    statements.step_convo =
        prepare("UPDATE convo SET epoch = epoch + 1 WHERE id = ?1 AND epoch = ?2 AND fence = ?3");
    statements.add_message = prepare("INSERT INTO message VALUES (?1, ?2, ?3)");
    statements.add_member = prepare("INSERT INTO member VALUES (?1, ?2, ?3)");
}

static void finalize_all(void)
{
    sqlite3_stmt *all[] = { statements.begin, statements.commit, statements.save,
        statements.release, statements.step_convo, statements.add_message, statements.add_member };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sqlite3_finalize(all[i]);
}

static void store_unit(int64_t convo, int64_t epoch)
{
    static const char body[350] = "commit";
    char did[64];

    step(statements.save);
    sqlite3_bind_int64(statements.step_convo, 1, convo);
    sqlite3_bind_int64(statements.step_convo, 2, epoch);
    sqlite3_bind_int64(statements.step_convo, 3, 1);
    step(statements.step_convo);
    if (sqlite3_changes(raw.handle) != 1)
        die("the epoch is not what it was");
    sqlite3_bind_int64(statements.add_message, 1, convo);
    sqlite3_bind_int64(statements.add_message, 2, epoch + 1);
    sqlite3_bind_blob(statements.add_message, 3, body, sizeof body, SQLITE_STATIC);
    step(statements.add_message);
    for (int i = 0; i < 2; i++) {
        int size = snprintf(did, sizeof did, "did:plc:%08llx%08llx%d", (unsigned long long)convo,
            (unsigned long long)epoch, i);

        sqlite3_bind_int64(statements.add_member, 1, convo);
        sqlite3_bind_text(statements.add_member, 2, did, size, SQLITE_STATIC);
        sqlite3_bind_int64(statements.add_member, 3, epoch + 1);
        step(statements.add_member);
    }
    step(statements.release);
}

static uint64_t count_stored(void)
{
    sqlite3_stmt *count = prepare("SELECT count(*) FROM message");
    uint64_t found;

    if (sqlite3_step(count) != SQLITE_ROW)
        die("count");
    found = (uint64_t)sqlite3_column_int64(count, 0);
    sqlite3_finalize(count);
    return found;
}

static void measure(void)
{
    double began_s = seconds_of(CLOCK_MONOTONIC),
           cpu_began_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    double took_s, cpu_s;
    uint64_t units = 0;

    do {
        step(statements.begin);
        for (unsigned i = 0; i < raw.batch; i++, units++)
            store_unit((int64_t)(units % raw.convos), (int64_t)(units / raw.convos));
        step(statements.commit);
        took_s = seconds_of(CLOCK_MONOTONIC) - began_s;
    } while (took_s < raw.seconds);
    cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_began_s;
    if (count_stored() != units)
        die("what was committed is not what is stored");
    printf("units %llu\nunits_per_s %.0f\ncpu_us %.1f\n", (unsigned long long)units,
        (double)units / took_s, cpu_s * 1e6 / (double)units);
}

static unsigned number(const char *text)
{
    unsigned long value = strtoul(text, NULL, 10);

    return value > 0 && value < 1000000 ? (unsigned)value : 1;
}

int main(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "c:s:b:")) != -1) {
        if (option == 'c')
            raw.convos = number(optarg);
        else if (option == 's')
            raw.seconds = number(optarg);
        else if (option == 'b')
            raw.batch = number(optarg);
        else
            argc = 0;
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "usage: sql-raw PATH [-c CONVERSATIONS] [-s SECONDS] [-b BATCH]\n");
        return 2;
    }
    if (sqlite3_open(argv[optind], &raw.handle) != SQLITE_OK)
        die(argv[optind]);
    make_tables();
    prepare_all();
    measure();
    finalize_all();
    sqlite3_close(raw.handle);
    return 0;
}
