/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store_command.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "server/server.h"

static int store_work_run(const struct cli_command *command, const struct store_work *work,
    const struct options *options, const struct config *config)
{
    char why[SERVER_WHY_SIZE] = "";
    struct store store;
    int rc = store_find(&store, config, why, sizeof why);

    /* New files hold the messages of all users: only their owner may read them. */
    (void)umask(077);
    if (rc == 0)
        rc = work->run(&store, options, why, sizeof why);
    store_close(&store);
    if (fflush(stdout) != 0 && rc == 0)
        return CLI_FAILED;
    if (rc < 0)
        fprintf(
            stderr, "troupe %s: %s\n", command->name, why[0] != '\0' ? why : sql_error_text(rc));
    return rc < 0 ? CLI_FAILED : CLI_OK;
}

int store_command(
    const struct cli_command *command, int argc, char **argv, const struct store_work *work)
{
    struct options options;
    struct config config;
    int rc = options_parse(command, argc, argv, work->switches, work->words_max, &options);

    tr_assert(work->check != NULL);
    tr_assert(work->run != NULL);
    if (rc != OPTIONS_GO_ON)
        return rc;
    rc = work->check(command, &options);
    if (rc == CLI_OK) {
        rc = options_load(command, &options, &config);
        if (rc == 0) {
            rc = store_work_run(command, work, &options, &config);
            config_fini(&config);
        } else {
            rc = CLI_FAILED;
        }
    }
    options_fini(&options);
    return rc;
}
