/* SPDX-License-Identifier: Apache-2.0 */
/* store_command.h: the frame of the commands that open the database themselves: backup, restore,
 * verify and migrate. */
#ifndef CLI_STORE_COMMAND_H
#define CLI_STORE_COMMAND_H

#include "cli/options.h"
#include "server/store.h"

/* The two steps of such a command. `check` returns CLI_OK, or the result of cli_wrong for wrong words.
 * `run` returns 0, or an error code and a sentence in `why`. */
struct store_work {
    size_t words_max;
    const struct options_switch *switches; /* may be NULL */
    int (*check)(const struct cli_command *command, const struct options *options);
    int (*run)(struct store *store, const struct options *options, char *why, size_t why_size);
};
/* Parse the command line, load the settings, find the database and run `work`. Returns the exit
 * status. */
int store_command(
    const struct cli_command *command, int argc, char **argv, const struct store_work *work);

#endif
