/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the program `troupe`: the tables of its commands, services, checks and imports, and the
 * messages for a wrong command line. */
#include <stdio.h>
#include <string.h>

#include "cli/check.h"
#include "cli/cli.h"
#include "cli/import.h"
#include "ops/config.h"
#include "server/server.h"
#include "services/delivery/convo/direct.h"
#include "services/delivery/delivery.h"
#include "services/delivery/import/import.h"
#include "services/delivery/store/check.h"
#include "services/packs/check.h"
#include "services/packs/packs.h"
#include "services/users/users.h"

#ifndef TROUPE_VERSION
#define TROUPE_VERSION "unknown"
#endif

/* The services that `troupe serve` runs. */
const struct service *const server_services[] = {
    &delivery_service,
    &packs_service,
    &users_service,
    NULL,
};

/* The checks of `troupe check`. */
const struct cli_check cli_checks[] = {
    { .name = "delivery", .run = delivery_check },
    { .name = "packs", .run_in = packs_check },
    { .name = NULL },
};

static int import_catbird(const struct cli_import_task *task, char *why, size_t why_size)
{
    return delivery_import_catbird(&(struct delivery_import){ .from = task->from,
                                       .sql = task->sql,
                                       .is_dry = task->is_dry,
                                       .now_ms = task->now_ms,
                                       .data = task->data,
                                       .on_progress = task->on_progress,
                                       .on_finding = task->on_finding,
                                       .on_fate = task->on_fate },
        why, why_size);
}

/* The sources of `troupe import`. */
const struct cli_import cli_imports[] = {
    { "catbird", import_catbird },
    { NULL, NULL },
};

static const struct cli_command *const commands[] = {
    &cmd_serve,
    &cmd_status,
    &cmd_actors,
    &cmd_config,
    &cmd_flags,
    &cmd_drain,
    &cmd_check,
    &cmd_backup,
    &cmd_restore,
    &cmd_verify,
    &cmd_migrate,
    &cmd_convo,
    &cmd_packs,
    &cmd_import,
    &cmd_sync,
    &cmd_dev_token,
    &cmd_tour,
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void main_usage(FILE *out)
{
    fprintf(out, "usage: troupe COMMAND [ARGUMENT...]\n\nActors for C, and a server built on them. "
                 "The commands:\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "  %-10s %s\n", "help", "show this text, or the help of a command");
    fputs("\n"
          "  -h, --help     show this text\n"
          "  --version      show the version\n"
          "\n"
          "Examples:\n"
          "\n"
          "  troupe serve --dev     start a server on this machine; it prints a first request to "
          "copy\n"
          "  troupe packs push core.zip --name core --version 1.0.0\n"
          "                         sign a file and publish it on that server\n"
          "  troupe sync tail       print encrypted Matrix messages as they come, after a login\n"
          "  troupe tour            walk through running actors, in a few seconds\n"
          "  troupe tour --step     wait for Enter after each step\n"
          "  troupe help tour       show the options of the tour\n",
        out);
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int main_wrong(const char *problem, const char *what)
{
    fprintf(stderr, "troupe: %s '%s'.\nRun `troupe --help` for the commands.\n", problem, what);
    return CLI_USAGE;
}

/* Print that there is no such command, and the most similar one. Returns CLI_USAGE. */
static int main_no_command(const char *name)
{
    const char *nearest = NULL;
    unsigned best = 3;

    for (size_t i = 0; i < COMMANDS; i++) {
        unsigned edits = config_edit_distance(name, commands[i]->name);

        if (edits < best && edits <= strlen(name) / 2) {
            best = edits;
            nearest = commands[i]->name;
        }
    }
    if (nearest == NULL)
        return main_wrong("There is no command", name);
    fprintf(stderr, "troupe: There is no command '%s'; did you mean '%s'?\n", name, nearest);
    return CLI_USAGE;
}

static int main_help(int argc, char **argv)
{
    const struct cli_command *command;

    if (argc == 0) {
        main_usage(stdout);
        return CLI_OK;
    }
    command = find_command(argv[0]);
    if (command == NULL)
        return main_no_command(argv[0]);
    cli_help(command);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    const struct cli_command *command;

    direct_register(); /* before flags_open reads the stored values */
    if (argc < 2) {
        main_usage(stderr);
        return CLI_USAGE;
    }
    if (cli_is_help(argv[1]) || strcmp(argv[1], "help") == 0)
        return main_help(argc - 2, argv + 2);
    if (strcmp(argv[1], "--version") == 0) {
        printf("troupe %s\n", TROUPE_VERSION);
        return CLI_OK;
    }
    if (argv[1][0] == '-')
        return main_wrong("There is no option", argv[1]);
    command = find_command(argv[1]);
    if (command == NULL)
        return main_no_command(argv[1]);
    return command->run(command, argc - 1, argv + 1);
}
