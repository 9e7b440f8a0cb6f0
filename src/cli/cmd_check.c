/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check.c: `troupe check`: is what a service has stored consistent? Opens the database by
 * itself, applies no migration and only reads. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/check.h"
#include "cli/options.h"
#include "json/json_write.h"
#include "server/server.h"
#include "server/store.h"

enum { CHECK_SOUND = 0, CHECK_DAMAGED = 1, CHECK_IMPOSSIBLE = 2, SHOWN_MAX = 20 };

struct report {
    struct json_writer writer;
    struct buffer json;
    bool is_json;
    uint64_t told;
};

static void on_violation(void *data, const char *check, struct span subject, const char *text)
{
    struct report *report = data;

    report->told++;
    if (report->is_json) {
        json_put_object(&report->writer, NULL);
        json_put_text(&report->writer, "check", check);
        json_put_string(&report->writer, "subject", subject);
        json_put_text(&report->writer, "text", text);
        json_put_end(&report->writer);
    } else if (report->told <= SHOWN_MAX) {
        printf("%-9s %.*s: %s\n", check, (int)subject.size, subject.at, text);
    }
}

/* ---- the database --------------------------------------------------------------------------- */

/* SQLite would make a file that is not there, and then find it in order. */
static bool is_there(const char *url, char *why, size_t why_size)
{
    const char *path = strncmp(url, "sqlite:", 7) == 0 ? url + 7 : NULL;

    if (path == NULL || access(path, R_OK) == 0)
        return true;
    (void)snprintf(why, why_size, "there is no database at %s: name it with --db or --data", path);
    return false;
}

static int open_database(struct tr_system *system, const struct config *config, char *why,
    size_t why_size, struct sql **ret_sql)
{
    const char *given = config_text(config, CONFIG_SQL_URL);
    struct sql_migration *migrations = NULL;
    char url[PATH_MAX + 32];
    size_t count;
    int rc;

    (void)snprintf(url, sizeof url, "sqlite:%s/troupe.db", config_text(config, CONFIG_SERVER_DATA));
    if (given[0] == '\0')
        given = url;
    if (!is_there(given, why, why_size))
        return TR_ENOENT;
    rc = store_merge(why, why_size, &migrations, &count);
    if (rc == 0)
        rc = sql_open(system,
            &(struct sql_options){ .url = given,
                .migrations = migrations,
                .migration_count = count,
                .no_migrate = true,
                .writers = 1,
                .readers = 1 },
            why, why_size, ret_sql);
    base_free(migrations);
    return rc;
}

/* How to look at it although a server runs. Only SQLite has one owner here: PostgreSQL is read. */
static void say_backup(const struct cli_check *check, const struct config *config)
{
    const char *given = config_text(config, CONFIG_SQL_URL);
    const char *data_path = config_text(config, CONFIG_SERVER_DATA);
    bool is_ours = given[0] == '\0';

    fprintf(stderr,
        "To leave the server running, check a backup: troupe backup copy.db %s %s; troupe check %s "
        "--db sqlite:copy.db%s%s\n",
        is_ours ? "--data" : "--db", is_ours ? data_path : given, check->name,
        check->run_in == NULL ? "" : " --data ", check->run_in == NULL ? "" : data_path);
}

/* ---- the command ---------------------------------------------------------------------------- */

static void print_json(struct report *report, const char *name, uint64_t count)
{
    json_put_end(&report->writer);
    json_put_text(&report->writer, "checked", name);
    json_put_int(&report->writer, "count", (int64_t)count);
    json_put_bool(&report->writer, "sound", count == 0);
    json_put_end(&report->writer);
    if (report->json.failed == 0)
        printf("%.*s\n", (int)report->json.size, report->json.bytes);
}

static void print_text(const struct report *report, const char *name, uint64_t count)
{
    if (report->told > SHOWN_MAX)
        printf(
            "and %llu more; --json lists them\n", (unsigned long long)(report->told - SHOWN_MAX));
    if (count == 0)
        printf("%s: sound\n", name);
    else
        printf("%s: %llu violation%s\n", name, (unsigned long long)count, count == 1 ? "" : "s");
}

static int run_check(const struct cli_check *check, const struct config *config, bool is_json)
{
    struct report report = { .is_json = is_json };
    struct tr_system *system = NULL;
    struct sql *sql = NULL;
    char why[SERVER_WHY_SIZE] = "";
    uint64_t count = 0;
    int rc;

    rc = tr_system_create(
        &(struct tr_system_options){ .workers = 1, .blocking_threads = 3, .quiet = true }, &system);
    if (rc == 0)
        rc = open_database(system, config, why, sizeof why, &sql);
    if (rc == 0) {
        report.writer = json_writer(&report.json);
        json_put_object(&report.writer, NULL);
        json_put_array(&report.writer, "violations");
        rc = check->run != NULL ? check->run(sql, on_violation, &report, &count)
                                : check->run_in(sql, config_text(config, CONFIG_SERVER_DATA),
                                      on_violation, &report, &count);
    }
    /* The database has codes of its own: these are of the files. */
    if (check->run_in != NULL && why[0] == '\0' && (rc == TR_EACCES || rc == TR_EIO))
        (void)snprintf(why, sizeof why, "a folder of %s in %s cannot be read", check->name,
            config_text(config, CONFIG_SERVER_DATA));
    if (rc < 0) {
        fprintf(stderr, "troupe check: %s\n", why[0] != '\0' ? why : sql_error_text(rc));
        if (rc == SQL_ELOCKED)
            say_backup(check, config);
    } else if (is_json)
        print_json(&report, check->name, count);
    else
        print_text(&report, check->name, count);
    if (rc == 0 && report.json.failed != 0)
        rc = report.json.failed;
    buffer_free(&report.json);
    if (sql != NULL)
        sql_close(&sql);
    if (system != NULL) {
        (void)tr_system_join(system, TR_SECONDS(10));
        tr_system_destroy(&system);
    }
    if (rc < 0 || fflush(stdout) != 0)
        return CHECK_IMPOSSIBLE;
    return count == 0 ? CHECK_SOUND : CHECK_DAMAGED;
}

static const struct cli_check *find(const char *name)
{
    for (const struct cli_check *check = cli_checks; check != NULL && check->name != NULL; check++)
        if (strcmp(check->name, name) == 0)
            return check;
    return NULL;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    bool is_json = false;
    const struct options_switch table[] = { { "--json", &is_json }, { NULL, NULL } };
    const struct cli_check *check;
    struct options options;
    struct config config;
    int rc;

    rc = options_parse(command, argc, argv, table, 1, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    check = options.word_count == 0 ? NULL : find(options.words[0]);
    if (options.word_count == 0) {
        rc = cli_wrong(command, "say what to check, as in `troupe check delivery`", NULL);
    } else if (check == NULL) {
        rc = cli_wrong(command, "cannot check", options.words[0]);
    } else if (options_load(command, &options, &config) != 0) {
        rc = CHECK_IMPOSSIBLE;
    } else {
        rc = run_check(check, &config, is_json);
        config_fini(&config);
    }
    options_free(&options);
    return rc;
}

const struct cli_command cmd_check = {
    .name = "check",
    .arguments = "delivery|packs [OPTION...]",
    .summary = "check that what a service has stored is consistent",
    .help =
        "  delivery       epoch: each conversation is at the epoch its newest commit leads to\n"
        "                 commits: there is one commit per epoch, and none is missing\n"
        "                 seq: sequence numbers have no hole\n"
        "                 unread: who left has nothing unread, others a mark or none\n"
        "                 receipts: the hash chain of the commits is unbroken\n"
        "  packs          active: a published pack has one active version, any other none\n"
        "                 rows: each version has its object in the data directory\n"
        "                 content: of its size, with its digest (reads every byte)\n"
        "                 objects: each object is some version's or upload's\n"
        "                 incoming: each file there is some upload's, each upload has one\n"
        "                 releases: what is published is pinned to what its versions are\n"
        "\n"
        "  --json         as JSON, with everything that was found\n" OPTIONS_STORE_TEXT "\n"
        "Exit status: 0 sound, 1 damaged, 2 it could not be checked. Only reads, and applies no\n"
        "migration. A SQLite file belongs to one process: stop the server first, or check a\n"
        "backup. PostgreSQL can be checked while it is in use.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe check delivery --data /var/lib/troupe\n"
        "  troupe check delivery --db postgresql://troupe@localhost/troupe --json\n"
        "  troupe check packs --data /var/lib/troupe\n",
    .run = run,
};
