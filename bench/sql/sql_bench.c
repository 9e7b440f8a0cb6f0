/* SPDX-License-Identifier: Apache-2.0 */
/* sql_bench.c: durable units a second against syncs a second of the same disk, in one run.
 *
 *     sql-bench URL [-a ACTORS] [-s SECONDS] [-r ROUNDS] [-p PROBE_DIRECTORY]
 *
 * A unit is what adding two members to a conversation stores: a compare-and-set of the epoch with a
 * fence, a message, two members. Every actor has a conversation and one unit under way. The disk is
 * probed by 8 KB writes, each followed by fdatasync, on one thread, before and after every round;
 * rounds are reported one by one and by their median ratio. Then one actor alone, a unit at a time,
 * shows the wait of a lone request. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sql/sql.h"

enum { ACTORS_MAX = 100000, ROUNDS_MAX = 20, LONE_UNITS = 300, PROBE_BYTES = 8192 };

static struct {
    const char *url;
    const char *probe_directory;
    unsigned actors, seconds, rounds;
    struct tr_system *system;
    struct sql *sql;
    _Atomic uint64_t units, failed, commit_last;
    _Atomic unsigned under_way;
    _Atomic bool stops;
} bench = { .actors = 600, .seconds = 3, .rounds = 3 };

static const struct sql_migration migrations[] = { { 1, "conversations",
    "CREATE TABLE convo (id BIGINT PRIMARY KEY, epoch BIGINT NOT NULL, fence BIGINT NOT NULL);\n"
    "CREATE TABLE message (convo BIGINT NOT NULL, epoch BIGINT NOT NULL, body {blob} NOT NULL, "
    "PRIMARY KEY (convo, epoch));\n"
    "CREATE TABLE member (convo BIGINT NOT NULL, did TEXT NOT NULL, epoch BIGINT NOT NULL, "
    "PRIMARY KEY (convo, did));\n",
    "DROP TABLE member;\nDROP TABLE message;\nDROP TABLE convo;\n" } };

SQL_STATEMENT(add_convo, "INSERT INTO convo VALUES ($1, 0, 1)");
SQL_STATEMENT(
    step_convo, "UPDATE convo SET epoch = epoch + 1 WHERE id = $1 AND epoch = $2 AND fence = $3");
SQL_STATEMENT(add_message, "INSERT INTO message VALUES ($1, $2, $3)");
SQL_STATEMENT(add_member, "INSERT INTO member VALUES ($1, $2, $3)");
SQL_STATEMENT(count_messages, "SELECT count(*) FROM message");
SQL_STATEMENT(sum_epochs, "SELECT sum(epoch) FROM convo");

static uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

static void die(const char *what, int rc, const char *why)
{
    fprintf(stderr, "sql-bench: %s: %s: %s\n", what, sql_error_text(rc), why);
    exit(1);
}

static struct sql_unit *unit_add_members(uint64_t convo, int64_t epoch)
{
    static const char body[350] = "commit";
    struct sql_unit *unit = sql_unit_create(convo);
    char did[64];

    sql_unit_step(unit, &step_convo, 1);
    sql_unit_int(unit, (int64_t)convo);
    sql_unit_int(unit, epoch);
    sql_unit_int(unit, 1);
    sql_unit_step(unit, &add_message, 1);
    sql_unit_int(unit, (int64_t)convo);
    sql_unit_int(unit, epoch + 1);
    sql_unit_blob(unit, body, sizeof body);
    for (int i = 0; i < 2; i++) {
        snprintf(did, sizeof did, "did:plc:%08llx%08llx%d", (unsigned long long)convo,
            (unsigned long long)epoch, i);
        sql_unit_step(unit, &add_member, 1);
        sql_unit_int(unit, (int64_t)convo);
        sql_unit_text(unit, span_of(did));
        sql_unit_int(unit, epoch + 1);
    }
    return unit;
}

/* ---- the disk -------------------------------------------------------------------------------- */

static double probe(double seconds)
{
    char path[4096], bytes[PROBE_BYTES];
    uint64_t began = now_ns(), ended, count = 0;
    int fd;

    snprintf(path, sizeof path, "%s/probe.%ld", bench.probe_directory, (long)getpid());
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path, TR_EIO, "cannot be opened");
    memset(bytes, 'p', sizeof bytes);
    do {
        bytes[0] = (char)count;
        if (pwrite(fd, bytes, sizeof bytes, (off_t)(count % 512) * PROBE_BYTES) != PROBE_BYTES ||
            fdatasync(fd) < 0)
            die(path, TR_EIO, "cannot be written");
        count++;
        ended = now_ns();
    } while ((double)(ended - began) < seconds * 1e9);
    close(fd);
    unlink(path);
    return (double)count / ((double)(ended - began) / 1e9);
}

/* ---- one conversation ------------------------------------------------------------------------ */

struct convo {
    uint64_t id;
    int64_t epoch;
    struct sql_client client;
};

static enum tr_next submit(struct convo *self, struct tr_context *ctx)
{
    struct sql_unit *unit;
    int rc;

    if (bench.stops) {
        bench.under_way--;
        return TR_GO;
    }
    unit = unit_add_members(self->id, self->epoch);
    rc = sql_write(ctx, &self->client, unit, NULL);
    if (rc < 0)
        die("submit", rc, "");
    return TR_GO;
}

static enum tr_next convo_handle(void *state, struct tr_context *ctx, void *message)
{
    struct convo *self = state;

    (void)message;
    return submit(self, ctx);
}

static enum tr_next convo_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct convo *self = state;
    struct sql_unit *unit = sql_take(&self->client, event);

    if (sql_unit_status(unit) < 0)
        die("unit", sql_unit_status(unit), sql_unit_why(unit));
    self->epoch++;
    bench.units++;
    if (sql_unit_commit(unit) > bench.commit_last)
        bench.commit_last = sql_unit_commit(unit);
    sql_unit_destroy(unit);
    return submit(self, ctx);
}

static void convo_finish(void *state)
{
    sql_client_fini(&((struct convo *)state)->client);
}

static const struct tr_type convo_type = {
    .name = "convo",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct convo),
    .handle = convo_handle,
    .event = convo_event,
    .finish = convo_finish,
};

/* ---- rounds ---------------------------------------------------------------------------------- */

static void add_convos(unsigned count)
{
    for (unsigned i = 0; i < count;) {
        struct sql_unit *unit = sql_unit_create(1);
        int rc;

        for (unsigned end = i + 500; i < end && i < count; i++) {
            sql_unit_step(unit, &add_convo, 1);
            sql_unit_int(unit, i);
        }
        rc = sql_write_wait(bench.sql, unit);
        if (rc < 0)
            die("setting up", rc, sql_unit_why(unit));
        sql_unit_destroy(unit);
    }
}

struct round {
    double probes, units, commits;
};

static struct round run_round(tr_sender *senders)
{
    struct round round = { .probes = probe(0.5) };
    uint64_t units, commits, began, ended;
    uint32_t go = 1;

    bench.stops = false;
    bench.under_way = bench.actors;
    for (unsigned i = 0; i < bench.actors; i++)
        if (tr_tell(senders[i], &go, sizeof go) < 0)
            die("tell", TR_EFULL, "");
    began = now_ns();
    units = bench.units;
    commits = bench.commit_last;
    do {
        usleep(50000); /* tidy: allow usleep, a benchmark runs for a while */
        ended = now_ns();
    } while (ended - began < bench.seconds * UINT64_C(1000000000));
    round.units = (double)(bench.units - units) / ((double)(ended - began) / 1e9);
    round.commits = (double)(bench.commit_last - commits) / ((double)(ended - began) / 1e9);
    bench.stops = true;
    while (bench.under_way > 0)
        usleep(1000); /* tidy: allow usleep, as above */
    round.probes = (round.probes + probe(0.5)) / 2;
    return round;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void run_lone(unsigned convo, int64_t epoch)
{
    static double latencies_us[LONE_UNITS];

    for (int i = 0; i < LONE_UNITS; i++) {
        struct sql_unit *unit = unit_add_members(convo, epoch + i);
        uint64_t began = now_ns();
        int rc = sql_write_wait(bench.sql, unit);

        if (rc < 0)
            die("lone unit", rc, sql_unit_why(unit));
        latencies_us[i] = (double)(now_ns() - began) / 1e3;
        sql_unit_destroy(unit);
    }
    qsort(latencies_us, LONE_UNITS, sizeof latencies_us[0], compare);
    printf("lone_unit_us_p50 %.0f\nlone_unit_us_p99 %.0f\n", latencies_us[LONE_UNITS / 2],
        latencies_us[LONE_UNITS * 99 / 100]);
}

static int64_t read_one(const struct sql_statement *statement)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t value;
    int rc;

    sql_unit_step(unit, statement, 1);
    rc = sql_read_wait(bench.sql, unit);
    if (rc < 0)
        die("checking", rc, sql_unit_why(unit));
    value = sql_row_int(unit, 0, 0, 0);
    if (value == 0 && sql_row_bytes(unit, 0, 0, 0).size > 0) /* a numeric sum comes as text */
        value = strtoll(sql_row_bytes(unit, 0, 0, 0).at, NULL, 10);
    sql_unit_destroy(unit);
    return value;
}

static void run_rounds(void)
{
    tr_sender *senders = calloc(bench.actors, sizeof *senders);
    double ratios[ROUNDS_MAX];

    if (senders == NULL)
        die("senders", TR_ENOMEM, "");
    for (unsigned i = 0; i < bench.actors; i++) {
        struct convo convo = { .id = i };

        sql_client_init(&convo.client, bench.sql);
        if (tr_spawn(bench.system, &convo_type, &convo, NULL, &senders[i]) < 0)
            die("spawn", TR_ENOMEM, "");
    }
    printf("round  syncs/s  units/s  ratio  commits/s  units/commit\n");
    for (unsigned i = 0; i < bench.rounds; i++) {
        struct round round = run_round(senders);

        ratios[i] = round.units / round.probes;
        printf("%5u  %7.0f  %7.0f  %5.2f  %9.0f  %12.1f\n", i + 1, round.probes, round.units,
            ratios[i], round.commits, round.commits > 0 ? round.units / round.commits : 0);
        fflush(stdout);
    }
    qsort(ratios, bench.rounds, sizeof ratios[0], compare);
    printf("ratio_median %.2f\n", ratios[bench.rounds / 2]);
    for (unsigned i = 0; i < bench.actors; i++)
        tr_sender_drop(&senders[i]);
    free(senders);
}

static void directory_of_probe(char *memory, size_t size)
{
    const char *path = strncmp(bench.url, "sqlite:", 7) == 0 ? bench.url + 7 : NULL;
    const char *tmp = getenv("TMPDIR"), *slash = path == NULL ? NULL : strrchr(path, '/');

    if (bench.probe_directory != NULL)
        return;
    if (path == NULL)
        snprintf(memory, size, "%s", tmp != NULL ? tmp : "/tmp");
    else
        snprintf(memory, size, "%.*s", slash == NULL ? 1 : (int)(slash - path),
            slash == NULL ? "." : path);
    bench.probe_directory = memory;
}

static void usage(void)
{
    fprintf(stderr,
        "usage: sql-bench URL [-a ACTORS] [-s SECONDS] [-r ROUNDS] [-p PROBE_DIRECTORY]\n"
        "URL is sqlite:PATH or postgresql://...; the database must be new.\n");
    exit(2);
}

static unsigned number(const char *text, unsigned most)
{
    unsigned long value = strtoul(text, NULL, 10);

    if (value == 0 || value > most)
        usage();
    return (unsigned)value;
}

int main(int argc, char **argv)
{
    char why[512], directory[4096];
    struct sql_options options = { .migrations = migrations, .migration_count = 1 };
    int option, rc;

    while ((option = getopt(argc, argv, "a:s:r:p:")) != -1) {
        if (option == 'a')
            bench.actors = number(optarg, ACTORS_MAX);
        else if (option == 's')
            bench.seconds = number(optarg, 3600);
        else if (option == 'r')
            bench.rounds = number(optarg, ROUNDS_MAX);
        else if (option == 'p')
            bench.probe_directory = optarg;
        else
            usage();
    }
    if (optind + 1 != argc)
        usage();
    bench.url = options.url = argv[optind];
    directory_of_probe(directory, sizeof directory);
    rc = tr_system_create(&(struct tr_system_options){ 0 }, &bench.system);
    if (rc < 0)
        die("system", rc, "");
    rc = sql_open(bench.system, &options, why, sizeof why, &bench.sql);
    if (rc < 0)
        die("open", rc, why);
    add_convos(bench.actors + 1);
    printf("backend %s, %u actors\n", sql_backend(bench.sql), bench.actors);
    run_rounds();
    printf("syncs_after %.0f\n", probe(0.5));
    run_lone(bench.actors, 0);
    if (read_one(&count_messages) != (int64_t)bench.units + LONE_UNITS ||
        read_one(&sum_epochs) != (int64_t)bench.units + LONE_UNITS)
        die("checking", SQL_EFAILED, "what was acknowledged is not what is stored");
    printf("stored %llu of %llu acknowledged\n", (unsigned long long)bench.units + LONE_UNITS,
        (unsigned long long)bench.units + LONE_UNITS);
    sql_close(&bench.sql);
    tr_system_destroy(&bench.system);
    return 0;
}
