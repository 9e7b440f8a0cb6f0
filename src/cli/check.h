/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: what `troupe check NAME` can check. Commands know no service: main.c has the list. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "cli/cli.h"
#include "sql/sql.h"

/* Told of each violation. */
typedef void (*cli_violation_fn)(
    void *data, const char *check, struct span subject, const char *text);

struct cli_check {
    const char *name;
    /* Block, read only. 0 and how many violations there are, or the database's error. One of the
     * two; the second is for services that have files too. */
    int (*run)(struct sql *sql, cli_violation_fn on_violation, void *data, uint64_t *ret_count);
    int (*run_in)(struct sql *sql, const char *data_path, cli_violation_fn on_violation, void *data,
        uint64_t *ret_count);
};

/* Ends with a NULL name. Weak: a program without the list has nothing to check. */
extern const struct cli_check cli_checks[];
extern const struct cli_command cmd_check;

#endif
