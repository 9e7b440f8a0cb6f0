/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"

void cli_help(const struct cli_command *command)
{
    printf("usage: troupe %s%s%s\n\n%s.\n\n%s", command->name,
        command->arguments[0] != '\0' ? " " : "", command->arguments, command->summary,
        command->help);
}

int cli_wrong(const struct cli_command *command, const char *problem, const char *what)
{
    tr_assert(problem[0] != '\0');
    fprintf(stderr, "troupe %s: %s%s%s%s.\n", command->name, problem, what != NULL ? " '" : "",
        what != NULL ? what : "", what != NULL ? "'" : "");
    fprintf(stderr, "Run `troupe %s --help` for the options.\n", command->name);
    return CLI_USAGE;
}

bool cli_is_help(const char *argument)
{
    return strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0;
}

bool cli_has_color(void)
{
    const char *no_color = getenv("NO_COLOR"); /* https://no-color.org: set and not empty */
    const char *terminal = getenv("TERM");

    return (no_color == NULL || no_color[0] == '\0') &&
           (terminal == NULL || strcmp(terminal, "dumb") != 0) && isatty(STDOUT_FILENO);
}

const char *cli_bold(void)
{
    return cli_has_color() ? "\033[1m" : "";
}

const char *cli_dim(void)
{
    return cli_has_color() ? "\033[2m" : "";
}

const char *cli_plain(void)
{
    return cli_has_color() ? "\033[0m" : "";
}
