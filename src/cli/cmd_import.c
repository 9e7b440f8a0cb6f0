/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_import.c: `troupe import`: what another server has stored, into this one's database, while no
 * server runs on it. Applies missing migrations, as a start would. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/env.h>

#include "base/alloc.h"
#include "cli/import.h"
#include "cli/options.h"
#include "server/server.h"
#include "server/store.h"

enum { FATES_MAX = 96, ARGUMENTS_MAX = 128, PROGRESS_STEP = 50 };

struct report {
    bool is_terminal;
    bool has_line; /* an unfinished one of progress */
    uint64_t findings;
    struct {
        const char *table;
        const char *reason;
        uint64_t rows;
    } fates[FATES_MAX];
    size_t fate_count;
};

/* ---- what happens meanwhile ----------------------------------------------------------------- */

static void end_line(struct report *report)
{
    if (report->has_line)
        fputc('\n', stderr);
    report->has_line = false;
}

static void on_progress(void *data, uint64_t done, uint64_t total)
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

    end_line(report);
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

/* The fates of a table follow each other. */
static void print_table(const struct report *report)
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

static int open_database(struct tr_system *system, const char *url, bool is_dry, char *why,
    size_t why_size, struct sql **ret_sql)
{
    struct sql_migration *migrations = NULL;
    size_t count;
    int rc = store_merge(why, why_size, &migrations, &count);

    if (rc == 0)
        rc = sql_open(system,
            &(struct sql_options){ .url = url,
                .migrations = migrations,
                .migration_count = count,
                .no_migrate = is_dry,
                .exclusive = !is_dry,
                .writers = 1,
                .readers = 1 },
            why, why_size, ret_sql);
    base_free(migrations);
    return rc;
}

/* Where to write. False: `why` says what is wrong. */
static bool find_url(const struct config *config, bool is_dry, char *url, size_t url_size,
    char *why, size_t why_size)
{
    const char *given = config_text(config, CONFIG_SQL_URL);
    const char *data = config_text(config, CONFIG_SERVER_DATA);

    if (given[0] != '\0') {
        (void)snprintf(url, url_size, "%s", given);
        return true;
    }
    if (!is_dry && mkdir(data, 0700) < 0 && errno != EEXIST) {
        (void)snprintf(why, why_size, "%s cannot be made: %s", data, strerror(errno));
        return false;
    }
    (void)snprintf(url, url_size, "sqlite:%s/troupe.db", data);
    return true;
}

static bool is_there(const char *url)
{
    return strncmp(url, "sqlite:", 7) != 0 || access(url + 7, F_OK) == 0;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int run_task(const struct cli_import *import, struct cli_import_task *task, const char *url,
    char *why, size_t why_size)
{
    const struct tr_env *env = tr_env_real();
    struct tr_system *system = NULL;
    int rc;

    task->now_ms = (int64_t)(env->wall_ns(env->data) / 1000000);
    rc = tr_system_create(
        &(struct tr_system_options){ .workers = 1, .blocking_threads = 3, .quiet = true }, &system);
    if (rc == 0 && (!task->is_dry || is_there(url)))
        rc = open_database(system, url, task->is_dry, why, why_size, &task->sql);
    if (rc == SQL_ESCHEMA && task->is_dry) { /* empty, or to be migrated: it can wait */
        task->on_finding(task->data, SPAN(""),
            "the database to write to has not the tables of this version: not compared with it");
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
    struct cli_import_task task = { .from = from,
        .is_dry = is_dry,
        .data = &report,
        .on_progress = on_progress,
        .on_finding = on_finding,
        .on_fate = on_fate };
    char url[PATH_MAX + 32], why[SERVER_WHY_SIZE] = "";
    int rc = find_url(config, is_dry, url, sizeof url, why, sizeof why) ? 0 : TR_EIO;

    if (rc == 0 && strcmp(url, from) == 0) {
        (void)snprintf(why, sizeof why, "--from and --db name the same database");
        rc = TR_EINVAL;
    }
    if (rc == 0)
        rc = run_task(import, &task, url, why, sizeof why);
    end_line(&report);
    if (rc < 0) {
        (void)fflush(stdout);
        fprintf(stderr, "troupe %s: %s\n", command->name, why);
        return CLI_FAILED;
    }
    print_table(&report);
    printf(is_dry ? "\nA dry run: nothing was written.\n"
                  : "\nImported. Now look through it: troupe check delivery\n");
    return fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}

/* Takes --from out of the arguments: the others know no such option. NULL: there is none. */
static const char *take_from(int argc, char **argv, char **ret_argv, int *ret_argc)
{
    const char *from = NULL;
    int count = 0;

    for (int i = 0; i < argc && count < ARGUMENTS_MAX; i++) {
        if (strcmp(argv[i], "--from") == 0 && i + 1 < argc)
            from = argv[++i];
        else if (strncmp(argv[i], "--from=", 7) == 0)
            from = argv[i] + 7;
        else
            ret_argv[count++] = argv[i];
    }
    *ret_argc = count;
    return from;
}

static const struct cli_import *find(const char *name)
{
    for (const struct cli_import *import = cli_imports; import != NULL && import->name != NULL;
         import++)
        if (strcmp(import->name, name) == 0)
            return import;
    return NULL;
}

static bool is_postgresql(const char *url)
{
    return strncmp(url, "postgresql://", 13) == 0 || strncmp(url, "postgres://", 11) == 0;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    char *rest[ARGUMENTS_MAX];
    int rest_count;
    bool is_dry = false;
    const struct options_switch table[] = { { "--dry-run", &is_dry }, { NULL, NULL } };
    const char *from = take_from(argc, argv, rest, &rest_count);
    const struct cli_import *import;
    struct options options;
    struct config config;
    int rc;

    rc = options_parse(command, rest_count, rest, table, 1, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    import = options.word_count == 0 ? NULL : find(options.words[0]);
    if (options.word_count == 0) {
        rc = cli_wrong(command, "say what to import, as in `troupe import catbird`", NULL);
    } else if (import == NULL) {
        rc = cli_wrong(command, "cannot import from", options.words[0]);
    } else if (from == NULL || !is_postgresql(from)) {
        rc = cli_wrong(command, "say from where: --from postgresql://...", NULL);
    } else if (options_load(command, &options, &config) != 0) {
        rc = CLI_FAILED;
    } else {
        rc = run_import(command, import, &config, from, is_dry);
        config_fini(&config);
    }
    options_free(&options);
    return rc;
}

const struct cli_command cmd_import = {
    .name = "import",
    .arguments = "catbird --from URL [--dry-run] [OPTION...]",
    .summary = "take over the conversations of another server",
    .help = "  catbird        a Catbird MLS server: conversations, members, messages, commits,\n"
            "                 key packages, Welcomes, cursors and group infos\n"
            "\n"
            "  --from URL     its PostgreSQL: postgresql://USER@HOST/NAME. It is only read, as it\n"
            "                 is at one moment. A password is better in PGPASSFILE or PGPASSWORD\n"
            "  --dry-run      read and judge everything, write nothing\n" OPTIONS_STORE_TEXT "\n"
            "No server may run on the database that is written. A run that was cut is continued\n"
            "by the next; what is there already is not imported again. Every row that was read\n"
            "is counted at the end, as imported or as skipped and why. Exit status: 0 done, 1 it\n"
            "failed. docs/guide/migration.md has the steps around it, and the way back.\n"
            "\n"
            "Examples:\n"
            "\n"
            "  troupe import catbird --from postgresql://catbird@localhost/catbird --dry-run\n"
            "  troupe import catbird --from postgresql://catbird@localhost/catbird --data data\n",
    .run = run,
};
