/* SPDX-License-Identifier: Apache-2.0 */
/* import_source.h: somebody else's PostgreSQL, read only. All of it is one moment: one transaction
 * (REPEATABLE READ, READ ONLY) from open to close. Rows come one at a time and are gone after their
 * callback, so memory does not depend on how many there are. Blocks; one thread. */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_SOURCE_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_SOURCE_H

#include "support/buffer.h"

struct source;

enum source_type {
    SOURCE_TEXT,
    SOURCE_INT,
    SOURCE_FLAG,  /* 0 or 1 */
    SOURCE_TIME,  /* milliseconds since 1970 */
    SOURCE_BYTES, /* bytea, nothing else */
    SOURCE_HEX,   /* bytea, or text: as text */
};

struct source_column {
    const char *name;
    enum source_type type;
    bool is_needed; /* without it the table cannot be read; others are NULL where they are missing
                     */
};

/* A table as this program knows it. A row has its columns in this order. */
struct source_table {
    const char *name;
    const struct source_column *columns;
    uint32_t column_count;
    const char *ignored; /* names of columns that are known and not needed, each between spaces */
    bool is_needed;
};

/* `why` gets a sentence; never what the URL holds. */
int source_open(const char *url, char *why, size_t why_size, struct source **ret_source);
void source_close(struct source **source); /* nulls it; NULL is fine */

typedef void (*source_note_fn)(void *data, const char *text);
/* Look at information_schema: what is needed and missing fails with a sentence, what is there and
 * not known is told. Once, before the first select. At most 16 tables. */
int source_learn(struct source *source, const struct source_table *tables, size_t count,
    source_note_fn on_note, void *data, char *why, size_t why_size);
bool source_has(const struct source *source, const struct source_table *table);

struct source_row;
bool source_is_null(const struct source_row *row, uint32_t column);
int64_t source_int(const struct source_row *row, uint32_t column);       /* 0 if it is NULL */
struct span source_bytes(const struct source_row *row, uint32_t column); /* {NULL, 0} if NULL */

/* 0 goes on, a negative code ends the select with it. It may not select. */
typedef int (*source_row_fn)(void *data, const struct source_row *row);
/* `rest` follows FROM table: conditions on needed columns ($1 …) and ORDER BY numbers of columns.
 */
struct source_select {
    const struct source_table *table;
    const char *rest;
    const char *values[3]; /* up to the first NULL */
    source_row_fn on_row;
    void *data;
};
int source_run(struct source *source, const struct source_select *select);
/* The same with a text of its own; its columns are bigint, text or bytea. */
int source_ask(
    struct source *source, const char *text, const char *value, source_row_fn on_row, void *data);
/* Why the last one failed. */
const char *source_why(const struct source *source);

#endif
