/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_restore.c: `troupe restore`: what `troupe backup` wrote, in the place of what is there. */
#include <stdio.h>

#include "cli/store_command.h"

static int check(const struct cli_command *command, const struct options *options)
{
    return options->word_count == 1
               ? CLI_OK
               : cli_wrong(command, "say from which file, as in `troupe restore copy.db`", NULL);
}

/* The file is looked at before anything is made or locked for it, and once more is what it became:
 * a dump says its schema only there. */
static int restore(struct store *store, const struct options *options, char *why, size_t why_size)
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

static int run(const struct cli_command *command, int argc, char **argv)
{
    static const struct store_work work = { .words_max = 1, .check = check, .run = restore };

    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_restore = {
    .name = "restore",
    .arguments = "FILE [OPTION...]",
    .summary = "put a backup in the place of the database",
    .help =
        "  FILE              what `troupe backup` wrote. It is verified first\n" OPTIONS_STORE_TEXT
        "\n"
        "Everything that is in the database now is replaced, in one transaction: a restore that\n"
        "fails or is cut leaves what was there. Refused while a server runs. A data directory\n"
        "that is not there is made. Of PostgreSQL, psql and pg_restore must be installed. Exit\n"
        "status: 0 done, 1 it failed.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe restore copy.db --data /var/lib/troupe\n"
        "  troupe restore troupe.dump --db postgresql://troupe@localhost/troupe\n",
    .run = run,
};
