/* SPDX-License-Identifier: Apache-2.0 */
/* import.h: the sources of `troupe import NAME`. cli includes no service: main.c defines the list. */
#ifndef CLI_IMPORT_H
#define CLI_IMPORT_H

#include "cli/cli.h"
#include "sql/sql.h"

struct cli_import_task {
    const char *from; /* a URL */
    struct sql *sql;  /* NULL in a dry run if the database does not exist */
    bool is_dry;
    int64_t now_ms;
    void *data; /* for the three callbacks */
    void (*on_progress)(void *data, uint64_t done, uint64_t total);
    void (*on_finding)(void *data, struct span subject, const char *text);
    void (*on_fate)(void *data, const char *table, const char *reason, uint64_t rows);
};

struct cli_import {
    const char *name;
    /* Import everything. Blocks. Returns 0, or an error code and a sentence in `why`. */
    int (*run)(const struct cli_import_task *task, char *why, size_t why_size);
};

/* Ends with a NULL name. */
extern const struct cli_import cli_imports[];

#endif
