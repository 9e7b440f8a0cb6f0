/* SPDX-License-Identifier: Apache-2.0 */
/* Make every call fail in turn: the first, the second, and so on until a run has no fault: reads,
 * writes, syncs, allocations; once, and from then on. After each run the database is opened again.
 * It must contain all acknowledged units, no refused unit, and no unit in part. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "faulty.h"
#include "place.h"
#include "support/log.h"

enum { UNITS = 6 };

static struct {
    bool is_fatal;
    int statuses[UNITS];
    uint64_t acked, refused, unknown, fatal, unopened;
} run;

static void on_fatal(void *data, const char *line)
{
    (void)data;
    CHECK(strstr(line, "recovers from the files") != NULL);
    run.is_fatal = true;
}

static void be_quiet(void)
{
    log_setup(open("/dev/null", O_WRONLY | O_CLOEXEC), LOG_LOGFMT, LOG_ERROR);
}

/* Write a note and a counter: both are stored, or none. */
static struct sql_unit *unit_of(int i)
{
    struct sql_unit *unit = sql_unit_create((uint64_t)i);

    if (unit == NULL)
        return NULL;
    sql_unit_step(unit, &add_counter, 1);
    sql_unit_int(unit, 100 + i);
    sql_unit_int(unit, i);
    unit_add_note(unit, i, 1);
    return unit;
}

static int64_t count_of(struct place *place, const struct sql_statement *statement, int64_t id)
{
    return place_value(place, statement, id);
}

static void check_database(struct place *place)
{
    SQL_STATEMENT(has_counter, "SELECT count(*) FROM counter WHERE id = $1 + 100");
    SQL_STATEMENT(has_note, "SELECT count(*) FROM note WHERE id = $1");

    for (int i = 1; i < UNITS; i++) {
        int64_t is_there = count_of(place, &has_counter, i);

        CHECK_MSG(is_there == count_of(place, &has_note, i), "unit %d is there by half", i);
        CHECK_MSG(run.statuses[i] != 0 || is_there == 1, "unit %d was acknowledged and is lost", i);
        CHECK_MSG(run.statuses[i] == 0 || run.statuses[i] == SQL_EUNKNOWN || is_there == 0,
            "unit %d ended with %s and is there", i, sql_error_text(run.statuses[i]));
        run.acked += run.statuses[i] == 0;
        run.unknown += run.statuses[i] == SQL_EUNKNOWN;
        run.refused += run.statuses[i] != 0 && run.statuses[i] != SQL_EUNKNOWN;
    }
}

/* Open, write and close with the configured faults. */
static void use_database(struct place *place)
{
    struct sql_options options = place_options(place);
    bool was_fatal;

    options.fatal = on_fatal;
    options.readers = 1;
    run.is_fatal = false;
    for (int i = 0; i < UNITS; i++)
        run.statuses[i] = TR_ECLOSED;
    if (place_try_open(place, &options) < 0) {
        CHECK(place->why[0] != '\0');
        run.unopened++;
        return;
    }
    for (int i = 1; i < UNITS; i++) {
        struct sql_unit *unit = unit_of(i);

        was_fatal = run.is_fatal;
        if (was_fatal) { /* a new process would have to recover */
            sql_unit_destroy(unit);
            break;
        }
        run.statuses[i] = sql_write_wait(place->sql, unit);
        CHECK(!was_fatal || run.statuses[i] != 0);
        sql_unit_destroy(unit);
    }
    run.fatal += run.is_fatal;
    sql_close(&place->sql);
}

static void remove_database(struct place *place)
{
    static const char *const tails[] = { "", "-wal", "-shm", "-journal" };
    char name[300];

    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        snprintf(name, sizeof name, "%s%s", place->path, tails[i]);
        (void)unlink(name);
    }
}

static void walk(enum faulty_kind kind, uint64_t repeat)
{
    struct place place;
    uint64_t first = 0, calls;

    be_quiet();
    faulty_begin();
    place_init_in_memory(&place);
    place_system(&place);
    do {
        first++;
        remove_database(&place);
        faulty_set(kind, first, repeat);
        use_database(&place);
        calls = faulty.calls;
        faulty_set(kind, 0, 0);
        if (kind == FAULTY_SPACE)
            CHECK_MSG(!run.is_fatal, "a full disk is no reason to end");
        place_open(&place);
        check_database(&place);
        sql_close(&place.sql);
    } while (calls >= first);
    printf(
        "%llu calls; %llu acknowledged, %llu refused, %llu unknown, %llu fatal, %llu not opened\n",
        (unsigned long long)first, (unsigned long long)run.acked, (unsigned long long)run.refused,
        (unsigned long long)run.unknown, (unsigned long long)run.fatal,
        (unsigned long long)run.unopened);
    CHECK(run.acked > 0);
    place_finish(&place);
}

TEST_LONG(faults, of_any_call_once_lose_nothing, 120)
{
    walk(FAULTY_ANY, 1);
    CHECK(run.fatal > 10);
    CHECK(run.unopened > 10);
}

TEST_LONG(faults, of_any_call_from_then_on_lose_nothing, 120)
{
    walk(FAULTY_ANY, UINT64_MAX);
    CHECK(run.fatal > 10);
}

TEST_LONG(faults, of_a_full_disk_once_lose_nothing, 120)
{
    walk(FAULTY_SPACE, 1);
    CHECK(run.refused > 10);
}

TEST_LONG(faults, of_a_full_disk_from_then_on_lose_nothing, 120)
{
    walk(FAULTY_SPACE, UINT64_MAX);
    CHECK(run.refused > 10);
}

TEST_LONG(faults, of_any_sync_are_the_end, 60)
{
    walk(FAULTY_SYNC, 1);
    CHECK(run.fatal >= 5);
}

TEST(faults, a_full_disk_refuses_and_works_again_when_there_is_room)
{
    struct place place;
    struct sql_unit *unit;

    be_quiet();
    faulty_begin();
    place_init(&place);
    place_open(&place);
    for (int round = 0; round < 20; round++) {
        faulty_set(FAULTY_SPACE, 1, UINT64_MAX);
        unit = unit_of(round);
        CHECK_EQ_INT(sql_write_wait(place.sql, unit), SQL_EDISK);
        sql_unit_destroy(unit);
        CHECK_EQ_INT(place_notes(&place), round); /* reads still work */
        faulty_set(FAULTY_SPACE, 0, 0);
        unit = unit_of(round);
        CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
        sql_unit_destroy(unit);
    }
    place_finish(&place);
}

TEST(faults, of_a_sync_end_the_process_with_a_clear_line)
{
    struct place place;
    int pipes[2], status;
    char text[1000] = "";
    size_t size = 0;
    ssize_t got;
    pid_t pid;

    place_init(&place);
    CHECK_EQ_INT(pipe(pipes), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct sql_unit *unit;

        dup2(pipes[1], STDERR_FILENO);
        faulty_begin();
        place_open(&place);
        unit = unit_of(1);
        CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
        faulty_set(FAULTY_SYNC, 1, 1);
        sql_unit_destroy(unit);
        unit = unit_of(2);
        (void)sql_write_wait(place.sql, unit);
        _exit(0); /* acknowledged: wrong */
    }
    close(pipes[1]);
    while ((got = read(pipes[0], text + size, sizeof text - 1 - size)) > 0)
        size += (size_t)got;
    close(pipes[0]);
    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 74);
    CHECK_MSG(strstr(text, "COMMIT of") != NULL, "it said: %s", text);
    CHECK_MSG(strstr(text, "recovers from the files") != NULL, "it said: %s", text);
    place_open(&place);
    run.statuses[1] = 0;
    run.statuses[2] = SQL_EUNKNOWN;
    for (int i = 3; i < UNITS; i++)
        run.statuses[i] = TR_ECLOSED;
    check_database(&place);
    place_finish(&place);
}

TEST(open, refuses_a_file_system_without_shared_memory)
{
    struct place place;
    struct sql_options options;

    faulty_begin();
    faulty.has_no_shared_memory = true;
    place_init(&place);
    place_system(&place);
    options = place_options(&place);
    CHECK_EQ_INT(place_try_open(&place, &options), SQL_EUNSAFE);
    CHECK(strstr(place.why, "journal_mode") != NULL);
    place_finish(&place);
}

/* Create the system before the walk: other tests cover its allocations. */
TEST_LONG(faults, of_any_allocation_lose_nothing, 300)
{
    struct place place;
    uint64_t countdown = 0, calls, walked = 0;

    be_quiet();
    faulty_memory();
    place_init_in_memory(&place);
    place_system(&place);
    do {
        /* All of them take minutes: `make test` runs the first 50 and then every 7th. */
        countdown += check_is_long() || countdown < 50 ? 1 : 7;
        walked++;
        remove_database(&place);
        base_fault_countdown(countdown, 1);
        use_database(&place);
        calls = base_fault_countdown(0, 0);
        CHECK(!run.is_fatal);
        place_open(&place);
        check_database(&place);
        sql_close(&place.sql);
    } while (calls >= countdown);
    printf("%llu of %llu allocations; %llu acknowledged, %llu refused, %llu unknown, %llu not "
           "opened\n",
        (unsigned long long)walked, (unsigned long long)calls, (unsigned long long)run.acked,
        (unsigned long long)run.refused, (unsigned long long)run.unknown,
        (unsigned long long)run.unopened);
    CHECK(run.unopened > 10);
    CHECK(run.refused > 0);
    place_finish(&place);
}

/* ---- a disk that is really full -------------------------------------------------------------- */

SQL_STATEMENT(put_body, "INSERT INTO note (id, body) VALUES ($1, $2)");

static int put(struct place *place, int64_t id)
{
    static char body[100000];
    struct sql_unit *unit = sql_unit_create(1);
    int rc;

    sql_unit_step(unit, &put_body, 1);
    sql_unit_int(unit, id);
    sql_unit_blob(unit, body, sizeof body);
    rc = sql_write_wait(place->sql, unit);
    sql_unit_destroy(unit);
    return rc;
}

TEST_LONG(full_disk, refuses_keeps_and_goes_on, 60)
{
    static char ballast[3 << 20];
    struct place place;
    char name[300];
    int64_t stored = 0, total = 0;
    int fd, rounds = check_is_long() ? 50 : 3;

    be_quiet();
    if (unshare(CLONE_NEWNS) < 0)
        SKIP("a mount of its own needs root");
    place_init(&place);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", place.dir, "tmpfs", 0, "size=16m,mode=700") < 0) {
        rmdir(place.dir);
        SKIP("mounting a small tmpfs is not allowed here");
    }
    snprintf(name, sizeof name, "%s/ballast", place.dir);
    for (int round = 0; round < rounds; round++) {
        int rc = 0;

        stored = 0;
        place_open(&place);
        fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        CHECK(fd >= 0);
        CHECK_EQ_INT(write(fd, ballast, sizeof ballast), sizeof ballast);
        close(fd);
        while (stored < 200 && (rc = put(&place, stored)) == 0)
            stored++;
        CHECK_EQ_INT(rc, SQL_EDISK);
        CHECK_EQ_INT(put(&place, stored), SQL_EDISK);
        CHECK_EQ_INT(place_notes(&place), stored);
        CHECK_EQ_INT(unlink(name), 0);
        for (int i = 0; i < 3; i++)
            CHECK_EQ_INT(put(&place, stored++), 0);
        sql_close(&place.sql);
        place_open(&place);
        CHECK_EQ_INT(place_notes(&place), stored);
        total += stored;
        sql_close(&place.sql);
        remove_database(&place);
    }
    printf("%d times full, %lld units stored, 0 lost\n", rounds, (long long)total);
    tr_system_destroy(&place.system);
    CHECK_EQ_INT(umount2(place.dir, MNT_DETACH), 0);
    place_finish(&place);
}
