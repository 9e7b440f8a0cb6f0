/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h: the subcommands of `troupe` and their output helpers. A new command is a file cmd_<name>.c,
 * a line here and a row in the table of main.c. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>

/* Exit statuses. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

struct cli_command {
    const char *name;
    const char *arguments; /* for the usage line */
    const char *summary;   /* one line, no full stop */
    const char *help;      /* whole lines, with examples */
    /* argv[0] is the command's name. Returns an exit status. */
    int (*run)(const struct cli_command *command, int argc, char **argv);
};

extern const struct cli_command cmd_serve;
extern const struct cli_command cmd_status;
extern const struct cli_command cmd_actors;
extern const struct cli_command cmd_config;
extern const struct cli_command cmd_flags;
extern const struct cli_command cmd_drain;
extern const struct cli_command cmd_backup;
extern const struct cli_command cmd_restore;
extern const struct cli_command cmd_verify;
extern const struct cli_command cmd_migrate;
extern const struct cli_command cmd_convo;
extern const struct cli_command cmd_import;
extern const struct cli_command cmd_packs;
extern const struct cli_command cmd_sync;
extern const struct cli_command cmd_dev_token;
extern const struct cli_command cmd_tour;

/* Print usage, summary and help of a command to stdout. */
void cli_help(const struct cli_command *command);

/* Print "troupe NAME: PROBLEM 'WHAT'." and a pointer to the help to stderr. `problem` has a capital and
 * no full stop; `what` may be NULL. Returns CLI_USAGE. */
int cli_wrong(const struct cli_command *command, const char *problem, const char *what);

/* True for -h and --help. */
bool cli_is_help(const char *argument);

/* True if stdout is a terminal and NO_COLOR is not set. */
bool cli_has_color(void);
/* The escape sequences, or "" without colours. */
const char *cli_bold(void);
const char *cli_dim(void);
const char *cli_plain(void);

#endif
