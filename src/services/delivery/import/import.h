/* SPDX-License-Identifier: Apache-2.0 */
/* import.h: imports the conversations of a Catbird server from its PostgreSQL. The import reads one
 * moment of the source and does not change it. It counts every row it reads as imported or as
 * skipped for a reason.
 *
 * It writes a conversation in bounded units, its members last, so no account reaches a conversation
 * that is not whole. A row of the audit log marks each conversation as begun, then as imported. The
 * next run continues an interrupted one: it restarts the conversations that are not whole and
 * leaves the others alone. A conversation that exists without being imported ends the run before it
 * writes anything. */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_H

#include "sql/sql.h"

struct delivery_import {
    const char *from; /* postgresql://… */
    struct sql *sql;  /* the target; NULL in a dry run without one */
    bool is_dry;      /* decides everything, writes nothing */
    int64_t now_ms;
    void *data;
    /* Reports the conversations done so far, and their number. */
    void (*on_progress)(void *data, uint64_t done, uint64_t total);
    /* Reports a finding about a conversation or, with an empty subject, about the source. */
    void (*on_finding)(void *data, struct span subject, const char *text);
    /* Reports at the end how many rows of a table had this fate; `reason` is NULL for imported
     * rows. The fates of a table follow each other. */
    void (*on_fate)(void *data, const char *table, const char *reason, uint64_t rows);
};

/* Runs the import. Blocks; not on a worker. Returns 0, or an error with a sentence in `why` that
 * says what to do. */
int delivery_import_catbird(const struct delivery_import *import, char *why, size_t why_size);

#endif
