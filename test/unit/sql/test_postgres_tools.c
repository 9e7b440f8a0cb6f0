/* SPDX-License-Identifier: Apache-2.0 */
/* Backup, restore and verify of the PostgreSQL backend, with the real programs. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test_postgres_fixture.h"

static void need_programs(void)
{
    if (access("/usr/bin/pg_dump", X_OK) != 0 || access("/usr/bin/psql", X_OK) != 0)
        SKIP("pg_dump and psql are not installed");
}

static void fill(struct fixture *fixture)
{
    fixture_run(fixture,
        "CREATE TABLE item (id BIGINT PRIMARY KEY, name TEXT, body BYTEA);"
        "CREATE UNIQUE INDEX item_name ON item (name);"
        "INSERT INTO item SELECT g, 'name\\ ' || g || E'\\t\\n', decode(md5(g::text), 'hex')"
        "  FROM generate_series(1, 5000) g");
}

static int64_t fingerprint(struct fixture *fixture)
{
    return fixture_number(fixture,
        "SELECT ('x' || substr(md5(string_agg(i::text, ',' ORDER BY id)), 1, 12))::bit(48)::bigint"
        " FROM item i");
}

static void disconnect(struct fixture *fixture)
{
    sql_postgres.disconnect(fixture->writer);
    sql_postgres.disconnect(fixture->reader);
    fixture->writer = NULL;
    fixture->reader = NULL;
    /* Wait until the server has noticed. */
    while (fixture_number(fixture,
               "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'troupe-%'") != 0)
        fixture_run(fixture, "SELECT pg_sleep(0.002)");
}

static void note_progress(void *data, uint64_t done, uint64_t total)
{
    uint64_t *last = data;

    CHECK(total == 0 || done == total);
    last[0] = done;
    last[1] = total;
}

TEST_LONG(postgres_tools, restore_brings_back_what_was_backed_up_and_nothing_else, 40)
{
    struct fixture fixture;
    char path[256];
    char part[280];
    char why[160] = "";
    uint64_t progress[2] = { 0, 0 };
    struct stat about;
    int64_t before;
    int rc;

    need_programs();
    fixture_open(&fixture, NULL);
    fill(&fixture);
    before = fingerprint(&fixture);
    snprintf(path, sizeof(path), "%s/backup", fixture.postgres.directory);
    snprintf(part, sizeof(part), "%s.part", path);
    rc = sql_postgres.backup(fixture.postgres.url, path, note_progress, progress, why, sizeof(why));
    CHECK_MSG(rc == 0, "%d: %s", rc, why);
    CHECK(stat(path, &about) == 0);
    CHECK_EQ_INT(about.st_mode & 0777, 0600); /* the backup is complete */
    CHECK_EQ_U64(progress[0], about.st_size);
    CHECK_EQ_U64(progress[1], about.st_size);
    CHECK(access(part, F_OK) != 0);

    fixture_run(&fixture,
        "DELETE FROM item WHERE id > 10; UPDATE item SET name = 'changed ' || id;"
        "CREATE TABLE newer (id BIGINT REFERENCES item); CREATE VIEW seen AS SELECT * FROM newer");
    CHECK_EQ_INT(sql_postgres.restore(fixture.postgres.url, path, why, sizeof(why)), SQL_ELOCKED);
    CHECK_MSG(strstr(why, "stop it") != NULL, "%s", why);
    disconnect(&fixture);
    rc = sql_postgres.restore(fixture.postgres.url, path, why, sizeof(why));
    CHECK_MSG(rc == 0, "%d: %s", rc, why);
    CHECK_EQ_INT(fingerprint(&fixture), before);
    CHECK_EQ_INT(
        fixture_number(&fixture, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), 1);
    /* The constraints too. */
    CHECK_EQ_INT(
        fixture_number(&fixture, "SELECT count(*) FROM pg_indexes WHERE tablename='item'"), 2);
    fixture_close(&fixture);
}

TEST_LONG(postgres_tools, torn_backup_changes_nothing, 40)
{
    struct fixture fixture;
    char path[256];
    char why[160] = "";
    struct stat about;
    int64_t before;

    need_programs();
    fixture_open(&fixture, NULL);
    fill(&fixture);
    snprintf(path, sizeof(path), "%s/backup", fixture.postgres.directory);
    CHECK_EQ_INT(sql_postgres.backup(fixture.postgres.url, path, NULL, NULL, why, sizeof(why)), 0);
    fixture_run(&fixture, "UPDATE item SET name = 'changed ' || id");
    before = fingerprint(&fixture);
    disconnect(&fixture);
    CHECK(stat(path, &about) == 0);
    for (int eighths = 7; eighths >= 0; eighths--) {
        CHECK(truncate(path, about.st_size * eighths / 8) == 0);
        why[0] = '\0';
        CHECK_EQ_INT(
            sql_postgres.restore(fixture.postgres.url, path, why, sizeof(why)), SQL_EFAILED);
        CHECK(why[0] != '\0');
        CHECK_EQ_INT(fingerprint(&fixture), before);
    }
    CHECK(unlink(path) == 0);
    CHECK_EQ_INT(sql_postgres.restore(fixture.postgres.url, path, why, sizeof(why)), TR_ENOENT);
    fixture_close(&fixture);
}

static void write_program(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK(fchmod(fileno(file), 0700) == 0);
    CHECK(fclose(file) == 0);
}

TEST(postgres_tools, secrets_of_the_url_are_in_no_argument)
{
    char directory[] = "/tmp/troupe-pg-XXXXXX";
    char program[64];
    char path[64];
    char text[512] = "";
    char why[160] = "";
    FILE *file;

    CHECK(mkdtemp(directory) != NULL);
    snprintf(program, sizeof(program), "%s/pg_dump", directory);
    snprintf(path, sizeof(path), "%s/backup", directory);
    write_program(program,
        "#!/bin/sh\necho \"args: $*\"\n"
        "echo \"env: $PGHOST $PGPORT $PGUSER $PGPASSWORD $PGDATABASE $PGAPPNAME\"\n");
    CHECK(setenv("PATH", directory, 1) == 0);
    CHECK(setenv("PGAPPNAME", "inherited", 1) == 0);
    CHECK_EQ_INT(sql_postgres.backup("postgresql://me:s3cret@example.test:77/base", path, NULL,
                     NULL, why, sizeof(why)),
        0);
    file = fopen(path, "re");
    CHECK(file != NULL);
    CHECK(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    CHECK_EQ_STR(text, "args: --format=custom --no-password\n"
                       "env: example.test 77 me s3cret base inherited\n");

    /* The message of a failed program is passed on, and no file remains. */
    write_program(program, "#!/bin/sh\necho half\necho 'first line' >&2\nexit 3\n");
    CHECK(unlink(path) == 0);
    CHECK_EQ_INT(sql_postgres.backup("postgresql://h/base", path, NULL, NULL, why, sizeof(why)),
        SQL_EFAILED);
    CHECK_EQ_STR(why, "pg_dump: first line");
    CHECK(access(path, F_OK) != 0);
    CHECK(unlink(program) == 0);
    CHECK_EQ_INT(
        sql_postgres.backup("postgresql://h/base", path, NULL, NULL, why, sizeof(why)), TR_ENOENT);
    CHECK_EQ_STR(why, "pg_dump: the program is not installed");
    CHECK(rmdir(directory) == 0);
}

TEST_LONG(postgres_tools, damaged_table_is_found, 40)
{
    struct fixture fixture;
    char name[128];
    char path[320];
    char why[160] = "";
    char garbage[64];
    PGresult *result;
    int fd;

    fixture_open(&fixture, NULL);
    fill(&fixture);
    CHECK_EQ_INT(sql_postgres.verify(fixture.writer, why, sizeof(why)), 0);
    fixture_run(&fixture, "CHECKPOINT");
    result = PQexec(fixture.admin, "SELECT pg_relation_filepath('item')");
    snprintf(name, sizeof(name), "%s", PQgetvalue(result, 0, 0));
    PQclear(result);
    snprintf(path, sizeof(path), "%s/data/%s", fixture.postgres.directory, name);
    test_postgres_stop(&fixture.postgres);
    memset(garbage, 0xA5, sizeof(garbage));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, garbage, sizeof(garbage), 8192 * 3) == (ssize_t)sizeof(garbage));
    close(fd);
    CHECK(test_postgres_start(&fixture.postgres));
    fixture_reconnect_writer(&fixture);
    fixture_reconnect_admin(&fixture);
    CHECK_EQ_INT(sql_postgres.verify(fixture.writer, why, sizeof(why)), SQL_EDISK);
    CHECK_MSG(strstr(why, "public.item") != NULL, "%s", why);
    fixture_close(&fixture);
}
