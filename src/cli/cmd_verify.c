/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_verify.c: `troupe verify`: is a database, or a backup of one, undamaged? What a service has
 * in it is `troupe check`'s. */
#include <stdio.h>

#include "cli/store_command.h"

static int check(const struct cli_command *command, const struct options *options)
{
    (void)command;
    (void)options;
    return CLI_OK;
}

static int verify(struct store *store, const struct options *options, char *why, size_t why_size)
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
        fprintf(stderr, "To leave the server running, make a backup and verify that.\n");
    return rc;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    static const struct store_work work = { .words_max = 1, .check = check, .run = verify };

    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_verify = {
    .name = "verify",
    .arguments = "[FILE] [OPTION...]",
    .summary = "check that a database, or a backup of one, is undamaged",
    .help =
        "  FILE              what `troupe backup` wrote; it is only read. Without it, the "
        "database\n"
        "                    of the settings\n" OPTIONS_STORE_TEXT "\n"
        "Of SQLite every page, index and foreign key is looked at, and whether the schema is one\n"
        "that this program made. Of PostgreSQL every row is read; an archive of pg_dump is read\n"
        "to its end, and its schema is looked at when it is restored. A SQLite file belongs to\n"
        "one process: stop the server first, or verify a backup. Exit status: 0 sound, 1 damaged\n"
        "or it could not be read. `troupe check` looks at what the rows mean.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe verify copy.db\n"
        "  troupe verify --data /var/lib/troupe\n"
        "  troupe verify --db postgresql://troupe@localhost/troupe\n",
    .run = run,
};
