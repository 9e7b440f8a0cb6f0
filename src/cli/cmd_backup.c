/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_backup.c: `troupe backup`: copy the database into a file while the server runs. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/store_command.h"

static int backup_check(const struct cli_command *command, const struct options *options)
{
    return options->word_count == 1
               ? CLI_OK
               : cli_wrong(command, "Name the file to write, as in `troupe backup copy.db`", NULL);
}

struct report {
    bool is_terminal;
    bool has_line; /* the terminal shows a line without its end */
};

/* SQLite counts pages. pg_dump counts bytes and does not know the total. */
static void on_backup_progress(void *data, uint64_t done, uint64_t total)
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

static int backup_write(
    struct store *store, const struct options *options, char *why, size_t why_size)
{
    struct report report = { .is_terminal = isatty(STDERR_FILENO) == 1 };
    const char *path = options->words[0];
    struct stat about = { 0 };
    int rc = store_must_be_there(store, why, why_size);

    if (rc == 0 && access(path, F_OK) == 0) {
        (void)snprintf(
            why, why_size, "%s exists already; name another file, a backup replaces none.", path);
        return TR_EEXIST;
    }
    if (rc == 0)
        rc = sql_backup(store->url, path, on_backup_progress, &report, why, why_size);
    if (report.has_line)
        fputc('\n', stderr);
    if (rc < 0)
        return rc;
    (void)stat(path, &about);
    printf("%s: %lld bytes, one consistent snapshot of the database\n", path,
        (long long)about.st_size);
    return 0;
}

static int backup_run(const struct cli_command *command, int argc, char **argv)
{
    static const struct store_work work = {
        .words_max = 1, .check = backup_check, .run = backup_write
    };

    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_backup = {
    .name = "backup",
    .arguments = "FILE [OPTION...]",
    .summary = "copy the database into a file, while the server runs",
    .help =
        "  FILE              the file to create; only its owner can read it. An existing file is\n"
        "                    never replaced. SQLite gives a database file, PostgreSQL an archive\n"
        "                    of pg_dump, which must be installed\n" OPTIONS_STORE_TEXT "\n"
        "FILE holds everything the server acknowledged before the command started, and gets its\n"
        "name when it is complete. It holds the database alone. Keys and packs are files in the\n"
        "data directory: copy them after the backup; docs/operations.md lists them. Exit status:\n"
        "0 success, 1 failure.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe backup copy.db --data /var/lib/troupe\n"
        "  troupe backup troupe.dump --db postgresql://troupe@localhost/troupe\n"
        "  troupe verify copy.db\n",
    .run = backup_run,
};
