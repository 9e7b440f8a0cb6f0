/* SPDX-License-Identifier: Apache-2.0 */
/* import_source.h: reads a foreign PostgreSQL. One transaction (REPEATABLE READ, READ ONLY) from
 * open to close sees one moment. Rows come one at a time and are gone after their callback, so
 * memory does not depend on their number. Blocks; one thread. */
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
    bool is_needed; /* the table cannot be read without it; other missing columns are NULL */
};

/* A table as this program knows it. A row has its columns in this order. */
struct source_table {
    const char *name;
    const struct source_column *columns;
    uint32_t column_count;
    const char *ignored; /* known columns that are not needed, each between spaces */
    bool is_needed;
};

/* Opens the source. `why` gets a sentence without any part of the URL. */
int source_open(const char *url, char *why, size_t why_size, struct source **ret_source);
void source_close(struct source **source); /* nulls it; NULL is fine */

typedef void (*source_note_fn)(void *data, const char *text);
/* Reads information_schema, once, before the first select: a missing needed column fails with a
 * sentence, an unknown one is reported. At most 16 tables. */
int source_learn(struct source *source, const struct source_table *tables, size_t count,
    source_note_fn on_note, void *data, char *why, size_t why_size);
bool source_has(const struct source *source, const struct source_table *table);

struct source_row;
bool source_is_null(const struct source_row *row, uint32_t column);
int64_t source_int(const struct source_row *row, uint32_t column);       /* 0 if it is NULL */
struct span source_bytes(const struct source_row *row, uint32_t column); /* {NULL, 0} if NULL */

/* Returns 0 to continue, or a negative code that ends the select. It must not select. */
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
/* Does the same with a given statement; its columns are bigint, text or bytea. */
int source_ask(
    struct source *source, const char *text, const char *value, source_row_fn on_row, void *data);
/* Returns why the last call failed. */
const char *source_why(const struct source *source);

#endif
