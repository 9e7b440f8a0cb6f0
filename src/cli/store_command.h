/* SPDX-License-Identifier: Apache-2.0 */
/* store_command.h: the frame of the commands that open the database themselves: backup, restore,
 * verify and migrate. */
#ifndef CLI_STORE_COMMAND_H
#define CLI_STORE_COMMAND_H

#include "cli/options.h"
#include "server/store.h"

/* A command on the store. `check` looks at the words: CLI_OK, or what cli_wrong returned. `run`
 * returns 0, or a code and in `why` what to do. */
struct store_work {
    size_t words_max;
    int (*check)(const struct cli_command *command, const struct options *options);
    int (*run)(struct store *store, const struct options *options, char *why, size_t why_size);
};
int store_command(
    const struct cli_command *command, int argc, char **argv, const struct store_work *work);

#endif
