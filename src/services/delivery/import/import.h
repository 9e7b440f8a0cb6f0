/* SPDX-License-Identifier: Apache-2.0 */
/* import.h: the conversations of a Catbird server, from its PostgreSQL into this one's tables. What
 * is read is one moment of the source, which is not changed. Every row that is read is imported or
 * skipped for a reason, and counted.
 *
 * A conversation is written in bounded units, its members last, so nobody reaches one that is not
 * whole. A row of the audit log says of each that it was begun, then that it was imported: a run
 * that was cut is continued by the next, which begins the conversations again that are not whole
 * and leaves alone those that are. One that is there and was not imported ends the run before
 * anything is written. */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_H

#include "sql/sql.h"

struct delivery_import {
    const char *from; /* postgresql://… */
    struct sql *sql;  /* into this; NULL in a dry run that has none to compare with */
    bool is_dry;      /* decide everything, write nothing */
    int64_t now_ms;
    void *data;
    /* Conversations that were looked at, of how many. */
    void (*on_progress)(void *data, uint64_t done, uint64_t total);
    /* Something to know: about a conversation, or, with an empty subject, about the source. */
    void (*on_finding)(void *data, struct span subject, const char *text);
    /* At the end: what became of so many rows of a table; `reason` is NULL for those imported.
     * The fates of a table follow each other. */
    void (*on_fate)(void *data, const char *table, const char *reason, uint64_t rows);
};

/* Blocks; from no worker. 0, or an error with a sentence in `why` that says what to do. */
int delivery_import_catbird(const struct delivery_import *import, char *why, size_t why_size);

#endif
