/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check.c: `troupe check`: check that the stored data of a service is consistent. The command
 * opens the database itself, applies no migration and only reads. */
#include <stdio.h>
#include <string.h>

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
    bool has_notes; /* the array of violations has ended, and that of notes begun */
};

static void begin_notes(struct report *report)
{
    if (report->has_notes)
        return;
    json_put_end(&report->writer);
    json_put_array(&report->writer, "notes");
    report->has_notes = true;
}

static void on_check_violation(void *data, const char *check, struct span subject, const char *text)
{
    struct report *report = data;

    report->told++;
    if (report->is_json) {
        if (strcmp(check, CLI_CHECK_NOTE) == 0)
            begin_notes(report);
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

static int open_to_check(struct tr_system *system, const struct store *store, char *why,
    size_t why_size, struct sql **ret_sql)
{
    struct sql_options options = store_options(store, false);
    int rc = store_must_be_there(store, why, why_size);

    options.no_migrate = true;
    options.writers = options.readers = 1;
    return rc < 0 ? rc : sql_open(system, &options, why, why_size, ret_sql);
}

/* Explain how to check the data while the server runs. Only SQLite needs it: a file has one owner. */
static void print_backup_hint(const struct cli_check *check, const struct config *config)
{
    const char *given = config_text(config, CONFIG_SQL_URL);
    const char *data_path = config_text(config, CONFIG_SERVER_DATA);
    bool is_ours = given[0] == '\0';

    fprintf(stderr,
        "To keep the server running, check a backup: troupe backup copy.db %s %s; troupe check %s "
        "--db sqlite:copy.db%s%s\n",
        is_ours ? "--data" : "--db", is_ours ? data_path : given, check->name,
        check->run_in == NULL ? "" : " --data ", check->run_in == NULL ? "" : data_path);
}

/* ---- the command ---------------------------------------------------------------------------- */

static void check_print_json(struct report *report, const char *name, uint64_t count)
{
    begin_notes(report);
    json_put_end(&report->writer);
    json_put_text(&report->writer, "checked", name);
    json_put_int(&report->writer, "count", (int64_t)count);
    json_put_bool(&report->writer, "sound", count == 0);
    json_put_end(&report->writer);
    if (report->json.failed == 0)
        printf("%.*s\n", (int)report->json.size, report->json.bytes);
}

static void check_print_text(const struct report *report, const char *name, uint64_t count)
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
    struct store store;
    char why[SERVER_WHY_SIZE] = "";
    uint64_t count = 0;
    int rc = store_find(&store, config, why, sizeof why);

    if (rc == 0)
        rc = tr_system_create(
            &(struct tr_system_options){ .workers = 1, .blocking_threads = 3, .quiet = true },
            &system);
    if (rc == 0)
        rc = open_to_check(system, &store, why, sizeof why, &sql);
    if (rc == 0) {
        report.writer = json_writer(&report.json);
        json_put_object(&report.writer, NULL);
        json_put_array(&report.writer, "violations");
        rc = check->run != NULL ? check->run(sql, on_check_violation, &report, &count)
                                : check->run_in(sql, config_text(config, CONFIG_SERVER_DATA),
                                      on_check_violation, &report, &count);
    }
    /* TR_EACCES and TR_EIO come from files: the database has its own codes. */
    if (check->run_in != NULL && why[0] == '\0' && (rc == TR_EACCES || rc == TR_EIO))
        (void)snprintf(why, sizeof why, "The directory of %s in %s cannot be read.", check->name,
            config_text(config, CONFIG_SERVER_DATA));
    if (rc < 0) {
        fprintf(stderr, "troupe check: %s\n", why[0] != '\0' ? why : sql_error_text(rc));
        if (rc == SQL_ELOCKED)
            print_backup_hint(check, config);
    } else if (is_json)
        check_print_json(&report, check->name, count);
    else
        check_print_text(&report, check->name, count);
    if (rc == 0 && report.json.failed != 0)
        rc = report.json.failed;
    buffer_free(&report.json);
    if (sql != NULL)
        sql_close(&sql);
    if (system != NULL) {
        (void)tr_system_join(system, TR_SECONDS(10));
        tr_system_destroy(&system);
    }
    store_close(&store);
    if (rc < 0 || fflush(stdout) != 0)
        return CHECK_IMPOSSIBLE;
    return count == 0 ? CHECK_SOUND : CHECK_DAMAGED;
}

static const struct cli_check *check_find(const char *name)
{
    for (const struct cli_check *check = cli_checks; check != NULL && check->name != NULL; check++)
        if (strcmp(check->name, name) == 0)
            return check;
    return NULL;
}

static int check_run(const struct cli_command *command, int argc, char **argv)
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
    check = options.word_count == 0 ? NULL : check_find(options.words[0]);
    if (options.word_count == 0) {
        rc = cli_wrong(command, "Name the service to check, as in `troupe check delivery`", NULL);
    } else if (check == NULL) {
        rc = cli_wrong(command, "There is no check of", options.words[0]);
    } else if (options_load(command, &options, &config) != 0) {
        rc = CHECK_IMPOSSIBLE;
    } else {
        rc = run_check(check, &config, is_json);
        config_fini(&config);
    }
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_check = {
    .name = "check",
    .arguments = "delivery|packs [OPTION...]",
    .summary = "check that the stored data of a service is consistent",
    .help =
        "  delivery       epoch: each conversation is at the epoch its newest commit leads to\n"
        "                 commits: there is one commit per epoch, and none is missing\n"
        "                 seq: sequence numbers have no hole\n"
        "                 unread: a member has at most one mark, a former member none\n"
        "                 receipts: the hash chain of the commits is unbroken\n"
        "  packs          active: a published pack has one active version, any other none\n"
        "                 rows: each version has its object in the data directory\n"
        "                 content: each object has its size and digest (reads every byte)\n"
        "                 releases: each release names the bytes that its versions have\n"
        "                 note: an object or a file of an upload that nobody needs; the data is\n"
        "                 sound all the same\n"
        "\n"
        "  --json         print every violation and note, as JSON\n" OPTIONS_STORE_TEXT "\n"
        "Exit status: 0 sound, 1 damaged, 2 the check could not run. The command only reads and\n"
        "applies no migration. A SQLite file belongs to one process: stop the server first, or\n"
        "check a backup. PostgreSQL can be checked while it is in use.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe check delivery --data /var/lib/troupe\n"
        "  troupe check delivery --db postgresql://troupe@localhost/troupe --json\n"
        "  troupe check packs --data /var/lib/troupe\n",
    .run = check_run,
};
