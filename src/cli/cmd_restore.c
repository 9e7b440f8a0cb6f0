/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_restore.c: `troupe restore`: replace the database by a backup. */
#include <stdio.h>

#include "cli/store_command.h"

static int restore_check(const struct cli_command *command, const struct options *options)
{
    return options->word_count == 1
               ? CLI_OK
               : cli_wrong(
                     command, "Name the backup to restore, as in `troupe restore copy.db`", NULL);
}

/* Verify the file before creating or locking anything, and the database after the restore: the schema
 * of a dump can only be verified there. */
static int restore_work(
    struct store *store, const struct options *options, char *why, size_t why_size)
{
    const struct sql_options sql = store_options(store, false);
    uint32_t version = 0, newest = 0;
    int rc = sql_verify_backup(&sql, options->words[0], why, why_size);

    if (rc == 0)
        rc = store_lock(store, why, why_size);
    if (rc == 0)
        rc = sql_restore(store->url, options->words[0], why, why_size);
    if (rc == 0)
        rc = sql_migration_status(&sql, &version, &newest, why, why_size);
    if (rc == 0)
        rc = sql_verify(&sql, why, why_size);
    if (rc < 0)
        return rc;
    printf("restored from %s: schema version %u of %u\n", options->words[0], version, newest);
    return 0;
}

static int restore_run(const struct cli_command *command, int argc, char **argv)
{
    static const struct store_work work = {
        .words_max = 1, .check = restore_check, .run = restore_work
    };

    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_restore = {
    .name = "restore",
    .arguments = "FILE [OPTION...]",
    .summary = "replace the database by a backup",
    .help =
        "  FILE              a file of `troupe backup`. The command verifies it "
        "first\n" OPTIONS_STORE_TEXT "\n"
        "The restore replaces all data in the database in one transaction. If it fails or is\n"
        "interrupted, the old data stays. It fails while a server runs. It creates a missing data\n"
        "directory. PostgreSQL needs psql and pg_restore. Exit status: 0 success, 1 failure.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe restore copy.db --data /var/lib/troupe\n"
        "  troupe restore troupe.dump --db postgresql://troupe@localhost/troupe\n",
    .run = restore_run,
};
