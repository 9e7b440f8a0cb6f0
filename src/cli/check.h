/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: the checks of `troupe check NAME`. cli includes no service: main.c defines the list. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "cli/cli.h"
#include "sql/sql.h"

/* Called for each violation, and after them for each note: a finding that does no harm and is not
 * counted. The check of a note is CLI_CHECK_NOTE. */
#define CLI_CHECK_NOTE "note"
typedef void (*cli_violation_fn)(
    void *data, const char *check, struct span subject, const char *text);

struct cli_check {
    const char *name;
    /* Read everything and count the violations. Blocks. Returns 0, or an error of the database. A
     * check has one of the two; `run_in` is for services that also have files. */
    int (*run)(struct sql *sql, cli_violation_fn on_violation, void *data, uint64_t *ret_count);
    int (*run_in)(struct sql *sql, const char *data_path, cli_violation_fn on_violation, void *data,
        uint64_t *ret_count);
};

/* Ends with a NULL name. */
extern const struct cli_check cli_checks[];
extern const struct cli_command cmd_check;

#endif
