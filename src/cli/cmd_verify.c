/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_verify.c: `troupe verify`: check that a database or a backup is undamaged. `troupe check` looks
 * at the data of the services. */
#include <stdio.h>

#include "cli/store_command.h"

static int verify_check(const struct cli_command *command, const struct options *options)
{
    (void)command;
    (void)options;
    return CLI_OK;
}

static int verify_work(
    struct store *store, const struct options *options, char *why, size_t why_size)
{
    const struct sql_options sql = store_options(store, false);
    const char *name = options->word_count == 1 ? options->words[0] : "the database";
    int rc;

    if (options->word_count == 1) {
        rc = sql_verify_backup(&sql, name, why, why_size);
    } else {
        rc = store_must_be_there(store, why, why_size);
        if (rc == 0)
            rc = sql_verify(&sql, why, why_size);
    }
    if (rc == 0)
        printf("%s: sound\n", name);
    else if (rc == SQL_ELOCKED)
        fprintf(stderr, "To keep the server running, make a backup and verify it.\n");
    return rc;
}

static int verify_run(const struct cli_command *command, int argc, char **argv)
{
    static const struct store_work work = {
        .words_max = 1, .check = verify_check, .run = verify_work
    };

    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_verify = {
    .name = "verify",
    .arguments = "[FILE] [OPTION...]",
    .summary = "check that a database or a backup is undamaged",
    .help =
        "  FILE              a file of `troupe backup`; default: the database of the "
        "settings\n" OPTIONS_STORE_TEXT "\n"
        "For SQLite the command checks every page, index and foreign key, and the schema. For\n"
        "PostgreSQL it reads every row. It reads an archive of pg_dump to its end; `troupe\n"
        "restore` verifies its schema. A SQLite file belongs to one process: stop the server\n"
        "first, or verify a backup. Exit status: 0 sound, 1 damaged or unreadable. `troupe check`\n"
        "checks the meaning of the rows.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe verify copy.db\n"
        "  troupe verify --data /var/lib/troupe\n"
        "  troupe verify --db postgresql://troupe@localhost/troupe\n",
    .run = verify_run,
};
