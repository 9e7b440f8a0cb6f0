/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_backup.c: `troupe backup`: the database into a file, while the server runs. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/store_command.h"

static int check(const struct cli_command *command, const struct options *options)
{
    return options->word_count == 1
               ? CLI_OK
               : cli_wrong(command, "say into which file, as in `troupe backup copy.db`", NULL);
}

struct report {
    bool is_terminal;
    bool has_line; /* an unfinished one */
};

/* In pages, or in bytes of an end that nobody knows yet (pg_dump). */
static void on_progress(void *data, uint64_t done, uint64_t total)
{
    struct report *report = data;

    if (!report->is_terminal)
        return;
    if (total == 0)
        fprintf(stderr, "\r%llu bytes", (unsigned long long)done);
    else
        fprintf(stderr, "\r%3llu %%", (unsigned long long)(done * 100 / total));
    report->has_line = true;
}

static int back_up(struct store *store, const struct options *options, char *why, size_t why_size)
{
    struct report report = { .is_terminal = isatty(STDERR_FILENO) == 1 };
    const char *path = options->words[0];
    struct stat about = { 0 };
    int rc = store_must_be_there(store, why, why_size);

    if (rc == 0 && access(path, F_OK) == 0) {
        (void)snprintf(why, why_size, "%s is there already: a backup does not replace one", path);
        return TR_EEXIST;
    }
    if (rc == 0)
        rc = sql_backup(store->url, path, on_progress, &report, why, why_size);
    if (report.has_line)
        fputc('\n', stderr);
    if (rc < 0)
        return rc;
    (void)stat(path, &about);
    printf("%s: %lld bytes, the database of one moment\n", path, (long long)about.st_size);
    return 0;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    static const struct store_work work = { .words_max = 1, .check = check, .run = back_up };

    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_backup = {
    .name = "backup",
    .arguments = "FILE [OPTION...]",
    .summary = "copy the database into a file, while the server runs",
    .help =
        "  FILE              is made, readable by its owner alone; one that is there is not\n"
        "                    replaced. Of SQLite it is a database file, of PostgreSQL an archive\n"
        "                    of pg_dump, which must be installed\n" OPTIONS_STORE_TEXT "\n"
        "FILE has everything that was acknowledged before the command began, and is whole when\n"
        "it has its name. It is the database alone: keys and packs are files in the data\n"
        "directory, to be copied after it; docs/operations.md has the list. Exit status: 0\n"
        "done, 1 it failed.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe backup copy.db --data /var/lib/troupe\n"
        "  troupe backup troupe.dump --db postgresql://troupe@localhost/troupe\n"
        "  troupe verify copy.db\n",
    .run = run,
};
