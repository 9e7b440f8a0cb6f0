/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_import.c: `troupe import`: copy the data of another server into this one's database, while no
 * server runs on it. The command applies missing migrations, as a start does. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <troupe/env.h>

#include "cli/import.h"
#include "cli/options.h"
#include "server/server.h"
#include "server/store.h"

enum { FATES_MAX = 96, PROGRESS_STEP = 50 };

struct report {
    bool is_terminal;
    bool has_line; /* the terminal shows a line of progress without its end */
    uint64_t findings;
    struct {
        const char *table;
        const char *reason;
        uint64_t rows;
    } fates[FATES_MAX];
    size_t fate_count;
};

/* ---- progress and report ----------------------------------------------------------------- */

static void end_progress(struct report *report)
{
    if (report->has_line)
        fputc('\n', stderr);
    report->has_line = false;
}

static void on_import_progress(void *data, uint64_t done, uint64_t total)
{
    struct report *report = data;

    if (!report->is_terminal || (done % PROGRESS_STEP != 0 && done != total))
        return;
    fprintf(stderr, "\r%llu of %llu conversations", (unsigned long long)done,
        (unsigned long long)total);
    report->has_line = true;
}

static void on_finding(void *data, struct span subject, const char *text)
{
    struct report *report = data;

    end_progress(report);
    report->findings++;
    if (subject.size == 0)
        printf("note: %s\n", text);
    else
        printf("%.*s: %s\n", (int)subject.size, subject.at, text);
}

static void on_fate(void *data, const char *table, const char *reason, uint64_t rows)
{
    struct report *report = data;

    if (report->fate_count == FATES_MAX)
        return;
    report->fates[report->fate_count].table = table;
    report->fates[report->fate_count].reason = reason;
    report->fates[report->fate_count++].rows = rows;
}

/* The counts of one table stand together. */
static void print_fates(const struct report *report)
{
    printf("\n%-22s %10s %10s %10s\n", "table", "rows", "imported", "skipped");
    for (size_t i = 0; i < report->fate_count;) {
        const char *table = report->fates[i].table;
        unsigned long long imported = 0, skipped = 0;

        for (; i < report->fate_count && report->fates[i].table == table; i++) {
            if (report->fates[i].reason == NULL)
                imported += report->fates[i].rows;
            else
                skipped += report->fates[i].rows;
        }
        printf("%-22s %10llu %10llu %10llu\n", table, imported + skipped, imported, skipped);
    }
    printf("\n");
    for (size_t i = 0; i < report->fate_count; i++)
        if (report->fates[i].reason != NULL)
            printf("skipped: %llu of %s: %s\n", (unsigned long long)report->fates[i].rows,
                report->fates[i].table, report->fates[i].reason);
}

/* ---- the database --------------------------------------------------------------------------- */

static int open_to_import(struct tr_system *system, const struct store *store, bool is_dry,
    char *why, size_t why_size, struct sql **ret_sql)
{
    struct sql_options options = store_options(store, !is_dry);

    options.no_migrate = is_dry;
    options.writers = options.readers = 1;
    return sql_open(system, &options, why, why_size, ret_sql);
}

/* ---- the command ---------------------------------------------------------------------------- */

static int import_run_task(const struct cli_import *import, struct cli_import_task *task,
    const struct store *store, char *why, size_t why_size)
{
    const struct tr_env *env = tr_env_real();
    struct tr_system *system = NULL;
    int rc;

    task->now_ms = (int64_t)(env->wall_ns(env->data) / 1000000);
    rc = tr_system_create(
        &(struct tr_system_options){ .workers = 1, .blocking_threads = 3, .quiet = true }, &system);
    if (rc == 0 && (!task->is_dry || store_must_be_there(store, why, why_size) == 0))
        rc = open_to_import(system, store, task->is_dry, why, why_size, &task->sql);
    if (rc == SQL_ESCHEMA && task->is_dry) { /* an empty or old database: a real run migrates it */
        task->on_finding(task->data, SPAN(""),
            "The target database lacks tables of this version; the dry run did not compare with "
            "it.");
        why[0] = '\0';
        rc = 0;
    }
    if (rc == 0)
        rc = import->run(task, why, why_size);
    if (rc < 0 && why[0] == '\0')
        (void)snprintf(why, why_size, "%s", sql_error_text(rc));
    if (task->sql != NULL)
        sql_close(&task->sql);
    if (system != NULL) {
        (void)tr_system_join(system, TR_SECONDS(10));
        tr_system_destroy(&system);
    }
    return rc;
}

static int run_import(const struct cli_command *command, const struct cli_import *import,
    const struct config *config, const char *from, bool is_dry)
{
    struct report report = { .is_terminal = isatty(STDERR_FILENO) == 1 };
    struct store store;
    struct cli_import_task task = { .from = from,
        .is_dry = is_dry,
        .data = &report,
        .on_progress = on_import_progress,
        .on_finding = on_finding,
        .on_fate = on_fate };
    char why[SERVER_WHY_SIZE] = "";
    int rc = store_find(&store, config, why, sizeof why);

    if (rc == 0 && strcmp(store.url, from) == 0) {
        (void)snprintf(why, sizeof why, "--from and --db name the same database.");
        rc = TR_EINVAL;
    }
    if (rc == 0 && !is_dry)
        rc = store_make_place(&store, why, sizeof why);
    if (rc == 0)
        rc = import_run_task(import, &task, &store, why, sizeof why);
    store_close(&store);
    end_progress(&report);
    if (rc < 0) {
        (void)fflush(stdout);
        fprintf(stderr, "troupe %s: %s\n", command->name, why);
        return CLI_FAILED;
    }
    print_fates(&report);
    printf(is_dry ? "\nThis was a dry run: the command wrote nothing.\n"
                  : "\nThe import is complete. Check the result: troupe check delivery\n");
    return fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}

static const struct cli_import *import_find(const char *name)
{
    for (const struct cli_import *import = cli_imports; import != NULL && import->name != NULL;
         import++)
        if (strcmp(import->name, name) == 0)
            return import;
    return NULL;
}

static bool is_postgresql_url(const char *url)
{
    return strncmp(url, "postgresql://", 13) == 0 || strncmp(url, "postgres://", 11) == 0;
}

static int import_run(const struct cli_command *command, int argc, char **argv)
{
    bool is_dry = false;
    const struct options_switch table[] = { { "--dry-run", &is_dry }, { NULL, NULL } };
    const char *from = options_take("--from", &argc, argv);
    const struct cli_import *import;
    struct options options;
    struct config config;
    int rc;

    rc = options_parse(command, argc, argv, table, 1, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    import = options.word_count == 0 ? NULL : import_find(options.words[0]);
    if (options.word_count == 0) {
        rc = cli_wrong(
            command, "Name the kind of server to import from, as in `troupe import catbird`", NULL);
    } else if (import == NULL) {
        rc = cli_wrong(command, "There is no import from", options.words[0]);
    } else if (from == NULL || !is_postgresql_url(from)) {
        rc = cli_wrong(command, "Name the database to import with --from postgresql://...", NULL);
    } else if (options_load(command, &options, &config) != 0) {
        rc = CLI_FAILED;
    } else {
        rc = run_import(command, import, &config, from, is_dry);
        config_fini(&config);
    }
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_import = {
    .name = "import",
    .arguments = "catbird --from URL [--dry-run] [OPTION...]",
    .summary = "import the conversations of another server",
    .help =
        "  catbird        a Catbird MLS server: conversations, members, messages, commits,\n"
        "                 key packages, Welcomes, cursors and group infos\n"
        "\n"
        "  --from URL     its PostgreSQL: postgresql://USER@HOST/NAME. The import reads one\n"
        "                 snapshot. Pass a password by PGPASSFILE or PGPASSWORD\n"
        "  --dry-run      read and check every row, write nothing\n" OPTIONS_STORE_TEXT "\n"
        "No server may run on the target database. Run an interrupted import again: it goes on\n"
        "and skips rows that are imported already. The report at the end counts every row as\n"
        "imported, or as skipped with the reason. Exit status: 0 success, 1 failure. The steps\n"
        "around an import, and the way back, are in docs/guide/migration.md.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe import catbird --from postgresql://catbird@localhost/catbird --dry-run\n"
        "  troupe import catbird --from postgresql://catbird@localhost/catbird --data data\n",
    .run = import_run,
};
