/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_migrate.c: `troupe migrate`: show the schema's version, or move it up or down while no server
 * runs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/store_command.h"

/* The options of `down`. */
static struct {
    const char *to; /* NULL: not given */
    bool may_drop_data;
} down;

static bool is_word(const struct options *options, const char *word)
{
    return options->word_count > 0 && strcmp(options->words[0], word) == 0;
}

static bool parse_version(const char *text, uint32_t *ret_version)
{
    unsigned long value;
    char *end;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
        return false;
    *ret_version = (uint32_t)value;
    return true;
}

static int migrate_check_down(const struct cli_command *command, const struct options *options)
{
    uint32_t version;

    if (options->word_count == 2)
        return cli_wrong(command,
            "Write the version to go down to as --to N, as in `troupe migrate down --to 3`, not as",
            options->words[1]);
    if (down.to == NULL)
        return cli_wrong(
            command, "Name the version to go down to, as in `troupe migrate down --to 3`", NULL);
    if (!parse_version(down.to, &version))
        return cli_wrong(command, "--to takes the number of a version, not", down.to);
    return CLI_OK;
}

static int migrate_check(const struct cli_command *command, const struct options *options)
{
    uint32_t version;

    if (options->word_count == 0)
        return cli_wrong(command, "Name the action: status, up or down --to N", NULL);
    if (!is_word(options, "status") && !is_word(options, "up") && !is_word(options, "down"))
        return cli_wrong(
            command, "`troupe migrate` takes status, up or down --to N, not", options->words[0]);
    if (is_word(options, "status") && options->word_count == 2)
        return cli_wrong(
            command, "`troupe migrate status` takes no version, not", options->words[1]);
    if (is_word(options, "down"))
        return migrate_check_down(command, options);
    if (down.to != NULL || down.may_drop_data)
        return cli_wrong(command, "--to and --drop-data belong to `troupe migrate down`", NULL);
    if (options->word_count == 2 && !parse_version(options->words[1], &version))
        return cli_wrong(command, "A version is a number, not", options->words[1]);
    return CLI_OK;
}

static int migrate_show(struct store *store, char *why, size_t why_size)
{
    const struct sql_options sql = store_options(store, false);
    uint32_t version = 0, newest = 0;
    int rc = store_must_be_there(store, why, why_size);

    if (rc == 0)
        rc = sql_migration_status(&sql, &version, &newest, why, why_size);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < store->migration_count; i++)
        printf("%4u  %-8s %s\n", store->migrations[i].version,
            store->migrations[i].version <= version ? "applied" : "missing",
            store->migrations[i].name);
    printf("schema version %u of %u\n", version, newest);
    return 0;
}

/* True if undoing the migration deletes data. */
static bool drops_data(const struct sql_migration *migration)
{
    return migration->down != NULL && (strstr(migration->down, "DROP TABLE") != NULL ||
                                          strstr(migration->down, "DROP COLUMN") != NULL);
}

/* List the migrations above `to`, the newest first. TR_EACCES if that would delete data and
 * --drop-data is missing. */
static int migrate_list_down(
    const struct store *store, uint32_t version, uint32_t to, char *why, size_t why_size)
{
    bool is_dropping = false;

    for (uint32_t i = version; i > to; i--) {
        const struct sql_migration *migration = &store->migrations[i - 1];

        is_dropping |= drops_data(migration);
        printf("%4u  %-11s %s\n", i, drops_data(migration) ? "drops data" : "keeps data",
            migration->name);
    }
    if (!is_dropping || down.may_drop_data)
        return 0;
    (void)snprintf(why, why_size,
        "Going down from version %u to %u deletes the tables and columns of the migrations listed "
        "above, with all data in them. Make a backup with `troupe backup FILE`, then add "
        "--drop-data.",
        version, to);
    return TR_EACCES;
}

static int migrate_move(struct store *store, bool is_up, uint32_t to, char *why, size_t why_size)
{
    const struct sql_options sql = store_options(store, true);
    uint32_t version = 0, newest = 0;
    int rc = is_up ? 0 : store_must_be_there(store, why, why_size);

    if (rc == 0)
        rc = store_lock(store, why, why_size);
    if (rc == 0)
        rc = sql_migration_status(&sql, &version, &newest, why, why_size);
    if (rc == 0 && (is_up ? to < version : to > version)) {
        (void)snprintf(why, why_size,
            "The schema is at version %u; version %u is not %s from there.", version, to,
            is_up ? "up" : "down");
        rc = TR_EINVAL;
    }
    if (rc == 0 && !is_up)
        rc = migrate_list_down(store, version, to, why, why_size);
    if (rc == 0)
        rc = sql_migrate(&sql, to, why, why_size);
    if (rc < 0)
        return rc;
    printf("schema version %u of %u (was %u)\n", to, newest, version);
    return 0;
}

static int migrate_work(
    struct store *store, const struct options *options, char *why, size_t why_size)
{
    uint32_t to = (uint32_t)store->migration_count;

    if (is_word(options, "status"))
        return migrate_show(store, why, why_size);
    if (is_word(options, "down") || options->word_count == 2)
        (void)parse_version(is_word(options, "down") ? down.to : options->words[1],
            &to); /* migrate_check has validated it */
    return migrate_move(store, is_word(options, "up"), to, why, why_size);
}

static int migrate_run(const struct cli_command *command, int argc, char **argv)
{
    static const struct options_switch switches[] = { { "--drop-data", &down.may_drop_data },
        { NULL, NULL } };
    static const struct store_work work = {
        .words_max = 2, .switches = switches, .check = migrate_check, .run = migrate_work
    };

    down.to = options_take("--to", &argc, argv);
    return store_command(command, argc, argv, &work);
}

const struct cli_command cmd_migrate = {
    .name = "migrate",
    .arguments = "status|up [N]|down --to N [--drop-data] [OPTION...]",
    .summary = "show or change the version of the database's schema",
    .help =
        "  status            list the migrations that are applied and those that are missing\n"
        "  up [N]            apply the missing migrations, up to version N; a server does this\n"
        "                    when it starts, unless sql.migrate is off\n"
        "  down --to N       undo the migrations above version N, for an older program, and list\n"
        "                    them. --to 0 leaves an empty database\n"
        "    --drop-data     delete the tables and columns that they created, with all data in\n"
        "                    them: make a backup first\n" OPTIONS_STORE_TEXT "\n"
        "Each step is one transaction. The command fails while a server runs. It also fails if "
        "the\n"
        "checksum of an applied step differs from the one in this program: go down with the\n"
        "program that went up. Exit status: 0 success, 1 failure.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe migrate status --data /var/lib/troupe\n"
        "  troupe migrate up --db postgresql://troupe@localhost/troupe\n"
        "  troupe migrate down --to 3 --data /var/lib/troupe\n",
    .run = migrate_run,
};
