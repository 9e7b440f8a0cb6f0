/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h: the subcommands of `troupe`, and what they print with. A new one is a file cmd_<name>.c, a
 * line here and a row in the table of main.c. */
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
extern const struct cli_command cmd_dev_token;
extern const struct cli_command cmd_tour;

/* Usage, summary and help of one command, to stdout. */
void cli_help(const struct cli_command *command);

/* "troupe NAME: what is wrong" and what to do, to stderr. Returns CLI_USAGE. `what` may be NULL. */
int cli_wrong(const struct cli_command *command, const char *problem, const char *what);

bool cli_is_help(const char *argument); /* -h or --help */

/* Colours are for terminals, and for those who did not set NO_COLOR. */
bool cli_has_color(void);
const char *cli_bold(void);
const char *cli_dim(void);
const char *cli_plain(void);

#endif
