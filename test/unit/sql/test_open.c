/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "place.h"

static void check_refused(
    struct place *place, const struct sql_options *options, int expected, const char *words)
{
    int rc = place_try_open(place, options);

    CHECK_MSG(rc == expected, "%d (%s): %s", rc, sql_error_text(rc), place->why);
    CHECK_MSG(strstr(place->why, words) != NULL, "'%s' does not say '%s'", place->why, words);
    CHECK(place->sql == NULL);
}

TEST(open, refuses_urls_that_could_lose_work)
{
    static const struct {
        const char *tail;
        int expected;
        const char *words;
    } cases[] = {
        { "sqlite:%s?synchronous=off", SQL_EUNSAFE, "synchronous=off" },
        { "sqlite:%s?synchronous=normal", SQL_EUNSAFE, "synchronous=normal" },
        { "sqlite:%s?journal_mode=delete", SQL_EUNSAFE, "journal_mode=delete" },
        { "sqlite:%s?synchronous=full&mode=memory", SQL_EUNSAFE, "mode=memory" },
        { "sqlite:%s?vfs=unix-none", SQL_EUNSAFE, "vfs=unix-none" },
        { "sqlite::memory:", SQL_EUNSAFE, "not durable" },
        { "sqlite:", SQL_EUNSAFE, "name a file" },
        { "sqlite:file:x?mode=memory", SQL_EUNSAFE, "name a file" },
        { "mysql://x", TR_EINVAL, "must start with" },
        { "sqlite:%s/no/such/directory/x.db", TR_ENOENT, "does not exist" },
    };
    struct place place;
    char url[600];

    place_init(&place);
    place_system(&place);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sql_options options = place_options(&place);
        const char *at = strstr(cases[i].tail, "%s");

        if (at != NULL)
            snprintf(url, sizeof url, "%.*s%s%s", (int)(at - cases[i].tail), cases[i].tail,
                place.path, at + 2);
        options.url = at != NULL ? url : cases[i].tail;
        check_refused(&place, &options, cases[i].expected, cases[i].words);
    }
    place_finish(&place);
}

TEST(open, takes_an_url_that_says_what_is_so_anyway)
{
    struct place place;

    place_init(&place);
    strncat(
        place.url, "?journal_mode=wal&synchronous=FULL", sizeof place.url - strlen(place.url) - 1);
    place_open(&place);
    CHECK(sql_is_healthy(place.sql, place.why, sizeof place.why));
    CHECK_EQ_STR(sql_backend(place.sql), "sqlite");
    place_finish(&place);
}

SQL_STATEMENT(read_cache, "PRAGMA cache_size");

/* Return the cache of the writer, or of a reader, in KB. */
static int64_t cache_kb(struct place *place, bool is_reader)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t pages;

    sql_unit_step(unit, &read_cache, 1);
    CHECK_EQ_INT(is_reader ? sql_read_wait(place->sql, unit) : sql_write_wait(place->sql, unit), 0);
    pages = sql_row_int(unit, 0, 0, 0); /* negative: in KB */
    sql_unit_destroy(unit);
    return -pages;
}

TEST(open, a_cache_is_as_large_as_the_host_says)
{
    struct sql_options options;
    struct place place;

    place_init(&place);
    place_open(&place);
    CHECK_EQ_INT(cache_kb(&place, false), 64000);
    CHECK_EQ_INT(cache_kb(&place, true), 16000);
    sql_close(&place.sql);
    options = place_options(&place);
    options.cache_kb = 8000;
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    CHECK_EQ_INT(cache_kb(&place, false), 8000);
    CHECK_EQ_INT(cache_kb(&place, true), 8000);
    place_finish(&place);
}

TEST(open, refuses_a_database_that_is_not_one)
{
    struct place place;
    struct sql_options options;
    FILE *file;

    place_init(&place);
    place_system(&place);
    file = fopen(place.path, "w");
    CHECK(file != NULL);
    for (int i = 0; i < 1000; i++)
        fputs("this is no database\n", file);
    fclose(file);
    options = place_options(&place);
    check_refused(&place, &options, SQL_EFAILED,
        "is damaged or is not a database (file is not a database); restore");
    place_finish(&place);
}

TEST(open, refuses_a_second_time_in_one_process)
{
    struct place place;
    struct sql_options options;
    struct sql *second = NULL;
    struct sql_unit *unit = unit_step_counter(1, 0);

    place_init(&place);
    place_open(&place);
    options = place_options(&place);
    CHECK_EQ_INT(
        sql_open(place.system, &options, place.why, sizeof place.why, &second), SQL_ELOCKED);
    /* The refused open did not drop a lock of the first one. */
    CHECK_EQ_INT(
        sql_open(place.system, &options, place.why, sizeof place.why, &second), SQL_ELOCKED);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    sql_unit_destroy(unit);
    place_finish(&place);
}

/* A process that keeps the database open until it is killed. */
static pid_t hold_open(const struct place *place)
{
    int ready[2];
    char byte;
    pid_t pid;

    CHECK_EQ_INT(pipe(ready), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct place theirs = *place;

        theirs.system = NULL;
        place_open(&theirs);
        CHECK_EQ_INT(write(ready[1], "r", 1), 1);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK_EQ_INT(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

TEST(open, refuses_what_another_process_has_and_takes_it_after_kill_9)
{
    struct place place;
    struct sql_options options;
    char link_url[600], link_path[300], expected[64];
    pid_t pid;

    place_init(&place);
    pid = hold_open(&place);
    place_system(&place);
    options = place_options(&place);
    snprintf(expected, sizeof expected, "pid %ld", (long)pid);
    check_refused(&place, &options, SQL_ELOCKED, expected);
    /* Another name of the same file is the same file. */
    snprintf(link_path, sizeof link_path, "%s/link.db", place.dir);
    CHECK_EQ_INT(symlink(place.path, link_path), 0);
    snprintf(link_url, sizeof link_url, "sqlite:%s", link_path);
    options.url = link_url;
    check_refused(&place, &options, SQL_ELOCKED, expected);
    CHECK_EQ_INT(sql_verify(&options, place.why, sizeof place.why), SQL_ELOCKED);
    CHECK_EQ_INT(sql_restore(link_url, place.path, place.why, sizeof place.why), SQL_ELOCKED);
    CHECK_EQ_INT(kill(pid, SIGKILL), 0);
    CHECK_EQ_INT(waitpid(pid, NULL, 0), pid);
    place_open(&place);
    place_finish(&place);
}

/* ---- schema ---------------------------------------------------------------------------------- */

TEST(open, refuses_a_newer_schema)
{
    struct place place;
    struct sql_options options;

    place_init(&place);
    place_open(&place);
    sql_close(&place.sql);
    options = place_options(&place);
    options.migration_count = 1;
    check_refused(&place, &options, SQL_ESCHEMA, "newer program");
    place_finish(&place);
}

TEST(open, refuses_an_edited_migration)
{
    struct sql_migration edited[2];
    struct place place;
    struct sql_options options;

    place_init(&place);
    place_open(&place);
    sql_close(&place.sql);
    memcpy(edited, place_migrations, sizeof edited);
    edited[0].up = "CREATE TABLE counter (id BIGINT PRIMARY KEY, value BIGINT);\n";
    options = place_options(&place);
    options.migrations = edited;
    check_refused(&place, &options, SQL_ESCHEMA, "edited");
    CHECK_EQ_INT(sql_verify(&options, place.why, sizeof place.why), SQL_ESCHEMA);
    place_finish(&place);
}

TEST(open, does_not_migrate_when_told_so)
{
    struct place place;
    struct sql_options options;

    place_init(&place);
    place_system(&place);
    options = place_options(&place);
    options.no_migrate = true;
    check_refused(&place, &options, SQL_ESCHEMA, "migrate it first");
    CHECK_EQ_INT(sql_migrate(&options, 2, place.why, sizeof place.why), 0);
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    place_finish(&place);
}

TEST(open, refuses_migrations_out_of_order)
{
    struct sql_migration wrong[2] = { place_migrations[1], place_migrations[0] };
    struct place place;
    struct sql_options options;

    place_init(&place);
    place_system(&place);
    options = place_options(&place);
    options.migrations = wrong;
    check_refused(&place, &options, TR_EINVAL, "1, 2, 3");
    place_finish(&place);
}

TEST(migrate, goes_up_and_down_and_up)
{
    struct place place;
    struct sql_options options;
    uint32_t version, newest;
    static const uint32_t walk[] = { 1, 2, 0, 2, 1, 1, 2 };

    place_init(&place);
    options = place_options(&place);
    for (size_t i = 0; i < sizeof walk / sizeof walk[0]; i++) {
        CHECK_EQ_INT(sql_migrate(&options, walk[i], place.why, sizeof place.why), 0);
        CHECK_EQ_INT(
            sql_migration_status(&options, &version, &newest, place.why, sizeof place.why), 0);
        CHECK_EQ_INT(version, walk[i]);
        CHECK_EQ_INT(newest, 2);
    }
    CHECK_EQ_INT(sql_migrate(&options, 3, place.why, sizeof place.why), SQL_ESCHEMA);
    place_open(&place);
    CHECK_EQ_INT(place_notes(&place), 0);
    place_finish(&place);
}

TEST(migrate, that_fails_changes_nothing)
{
    struct sql_migration wrong[3];
    struct place place;
    struct sql_options options;
    uint32_t version, newest;

    place_init(&place);
    memcpy(wrong, place_migrations, sizeof place_migrations);
    wrong[2] = (struct sql_migration){ 3, "it's wrong",
        "CREATE TABLE half (id BIGINT);\nINSERT INTO nowhere VALUES (1);\n", NULL };
    options = place_options(&place);
    options.migrations = wrong;
    options.migration_count = 3;
    CHECK_EQ_INT(sql_migrate(&options, 3, place.why, sizeof place.why), SQL_EFAILED);
    CHECK(strstr(place.why, "nowhere") != NULL);
    CHECK_EQ_INT(sql_migration_status(&options, &version, &newest, place.why, sizeof place.why), 0);
    CHECK_EQ_INT(version, 2);
    wrong[2].up = "CREATE TABLE half (id BIGINT);\n"; /* would fail if it existed */
    CHECK_EQ_INT(sql_migrate(&options, 3, place.why, sizeof place.why), 0);
    CHECK_EQ_INT(sql_migrate(&options, 2, place.why, sizeof place.why), SQL_ESCHEMA);
    CHECK(strstr(place.why, "cannot be undone") != NULL);
    place_finish(&place);
}

/* ---- backup, restore, verify ----------------------------------------------------------------- */

static uint64_t progress_last, progress_total;

static void on_progress(void *data, uint64_t done, uint64_t total)
{
    (void)data;
    CHECK(done >= progress_last);
    CHECK(done <= total);
    progress_last = done;
    progress_total = total;
}

static void write_steps(struct place *place, int64_t from, int64_t upto)
{
    for (int64_t i = from; i < upto; i++) {
        struct sql_unit *unit = unit_step_counter(1, i);

        unit_add_note(unit, i, 1);
        CHECK_EQ_INT(sql_write_wait(place->sql, unit), 0);
        sql_unit_destroy(unit);
    }
}

struct writing {
    struct place *place;
    _Atomic bool stop;
    int64_t upto;
};

static void *write_on(void *argument)
{
    struct writing *writing = argument;

    while (!writing->stop) {
        write_steps(writing->place, writing->upto, writing->upto + 1);
        writing->upto++;
    }
    return NULL;
}

TEST(backup, of_a_live_database_is_one_consistent_moment_of_it)
{
    struct place place, copy;
    struct writing writing = { .place = &place, .upto = 50 };
    char to[300];
    pthread_t thread;
    int64_t before;

    place_init(&place);
    place_open(&place);
    write_steps(&place, 0, 50);
    before = place_counter(&place, 1);
    CHECK_EQ_INT(pthread_create(&thread, NULL, write_on, &writing), 0);
    snprintf(to, sizeof to, "%s/backup.db", place.dir);
    CHECK_EQ_INT(sql_backup(place.url, to, on_progress, NULL, place.why, sizeof place.why), 0);
    writing.stop = true;
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    CHECK_EQ_U64(progress_last, progress_total);
    CHECK(progress_total > 0);
    CHECK_EQ_INT(place_counter(&place, 1), writing.upto);
    /* A backup does not replace one. */
    CHECK_EQ_INT(sql_backup(place.url, to, NULL, NULL, place.why, sizeof place.why), TR_EEXIST);

    place_init(&copy);
    place_open(&copy);
    write_steps(&copy, 0, 3);
    sql_close(&copy.sql);
    CHECK_EQ_INT(sql_restore(copy.url, to, copy.why, sizeof copy.why), 0);
    place_open(&copy);
    CHECK(place_counter(&copy, 1) >= before);
    CHECK(place_counter(&copy, 1) <= writing.upto);
    CHECK_EQ_INT(place_notes(&copy), place_counter(&copy, 1));
    write_steps(&copy, place_counter(&copy, 1), place_counter(&copy, 1) + 5);
    place_finish(&copy);
    place_finish(&place);
}

TEST(restore, of_damage_is_refused_and_leaves_the_old_one)
{
    struct place place;
    char to[300];
    int fd;

    place_init(&place);
    place_open(&place);
    write_steps(&place, 0, 200);
    snprintf(to, sizeof to, "%s/backup.db", place.dir);
    CHECK_EQ_INT(sql_backup(place.url, to, NULL, NULL, place.why, sizeof place.why), 0);
    sql_close(&place.sql);
    fd = open(to, O_WRONLY);
    CHECK(fd >= 0);
    for (off_t at = 4096; at < 20480; at += 512)
        CHECK_EQ_INT(pwrite(fd, "damage damage damage", 20, at), 20);
    close(fd);
    CHECK(sql_restore(place.url, to, place.why, sizeof place.why) < 0);
    place_open(&place);
    CHECK_EQ_INT(place_counter(&place, 1), 200);
    place_finish(&place);
}

TEST(verify, of_a_backup_only_reads_and_knows_its_schema)
{
    struct place place;
    struct sql_options options;
    struct sql_migration edited[2];
    struct stat before, after;
    char to[300], beside[320];

    place_init(&place);
    place_open(&place);
    write_steps(&place, 0, 20);
    snprintf(to, sizeof to, "%s/backup.db", place.dir);
    CHECK_EQ_INT(sql_backup(place.url, to, NULL, NULL, place.why, sizeof place.why), 0);
    CHECK_EQ_INT(stat(to, &before), 0);
    options = place_options(&place);
    CHECK_EQ_INT(sql_verify_backup(&options, to, place.why, sizeof place.why), 0);
    CHECK_EQ_INT(stat(to, &after), 0);
    CHECK_EQ_INT(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    snprintf(beside, sizeof beside, "%s.lock", to);
    CHECK(access(beside, F_OK) != 0);
    /* Newer than the program, and edited. */
    options.migration_count = 1;
    CHECK_EQ_INT(sql_verify_backup(&options, to, place.why, sizeof place.why), SQL_ESCHEMA);
    memcpy(edited, place_migrations, sizeof edited);
    edited[1].up = "CREATE TABLE other (id BIGINT);\n";
    options.migration_count = 2;
    options.migrations = edited;
    CHECK_EQ_INT(sql_verify_backup(&options, to, place.why, sizeof place.why), SQL_ESCHEMA);
    CHECK_EQ_INT(truncate(to, before.st_size / 2), 0);
    options = place_options(&place);
    CHECK(sql_verify_backup(&options, to, place.why, sizeof place.why) < 0);
    CHECK_EQ_INT(truncate(to, 0), 0);
    CHECK_EQ_INT(sql_verify_backup(&options, to, place.why, sizeof place.why), SQL_EFAILED);
    CHECK_EQ_INT(unlink(to), 0);
    CHECK_EQ_INT(sql_verify_backup(&options, to, place.why, sizeof place.why), TR_ENOENT);
    place_finish(&place);
}

TEST(verify, notices_damage)
{
    struct place place;
    struct sql_options options;
    int fd;

    place_init(&place);
    place_open(&place);
    write_steps(&place, 0, 500);
    sql_close(&place.sql);
    options = place_options(&place);
    CHECK_EQ_INT(sql_verify(&options, place.why, sizeof place.why), 0);
    fd = open(place.path, O_WRONLY);
    CHECK(fd >= 0);
    for (off_t at = 12288; at < 28672; at += 256)
        CHECK_EQ_INT(pwrite(fd, "damage damage damage", 20, at), 20);
    close(fd);
    CHECK(sql_verify(&options, place.why, sizeof place.why) < 0);
    CHECK(place.why[0] != '\0');
    place_finish(&place);
}
