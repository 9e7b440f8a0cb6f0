/* SPDX-License-Identifier: Apache-2.0 */
/* import_run.h: the common parts of an import: the source (import_source.c), the unit that is being
 * filled and the fate of every row (import_run.c), one conversation (import_convo.c: its row,
 * policy and members; import_log.c: its messages; import_welcome.c), key packages and devices
 * (import_package.c). */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H

#include "services/common/step.h"
#include "services/delivery/convo/act.h"
#include "services/delivery/convo/roster.h"
#include "services/delivery/import/import.h"
#include "services/delivery/import/import_tables.h"
#include "services/delivery/mls/mls_message.h"

enum { IMPORT_FATES_MAX = 96 };
/* Bounds of a unit. Small conversations share one, so that not each costs a COMMIT. */
enum { IMPORT_STEPS_MAX = 1000, IMPORT_BYTES_MAX = 1 << 20 };

struct import_run {
    const struct delivery_import *import;
    char *why;
    size_t why_size;
    /* the source: libpq's connection, and the tables and columns it has */
    struct pg_conn *pg;
    bool has_table[CATBIRD_TABLES];
    char types[CATBIRD_TABLES][IMPORT_COLUMNS_MAX][40]; /* empty: no such column */
    /* the unit that is being filled; NULL: none */
    struct sql_unit *unit;
    uint32_t unit_steps;
    size_t unit_bytes;
    struct { /* steps of the unit that change nothing if the row is there already */
        uint32_t step;
        enum import_table table;
    } maybe[IMPORT_STEPS_MAX];
    uint32_t maybe_count;
    /* the fate of every row */
    struct {
        enum import_table table;
        const char *reason; /* NULL: imported */
        uint64_t rows;
    } fates[IMPORT_FATES_MAX];
    uint32_t fate_count;
    /* conversations */
    uint64_t imported; /* by an earlier run */
    uint64_t done, total;
};

/* Counts rows of a table as imported (reason NULL) or skipped. Reasons are literals. */
void import_fate(
    struct import_run *run, enum import_table table, const char *reason, uint64_t rows);
/* Reports a finding; an empty subject is the source. */
void import_finding(struct import_run *run, struct span subject, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Writes the sentence about the failure that ends the run, on one line. Returns `rc`. */
int import_fail(struct import_run *run, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a step that must change `rows` rows to the unit, and writes the unit if it has become large.
 */
int import_step(struct import_run *run, const struct sql_statement *statement, int64_t rows,
    const struct step_value *values, size_t count);
/* Does the same for an INSERT that may find its row: then a row of the table that was counted as
 * imported counts as existing. */
int import_step_maybe(struct import_run *run, const struct sql_statement *statement,
    enum import_table table, const struct step_value *values, size_t count);
#define VALUES(...)                                                                                \
    (const struct step_value[]){ __VA_ARGS__ },                                                    \
        sizeof((const struct step_value[]){ __VA_ARGS__ }) / sizeof(struct step_value)
#define VALUE_INT_IF(is_there, number_)                                                            \
    {                                                                                              \
        .kind = (is_there) ? STEP_INT : STEP_TEXT, .number = (int64_t)(number_)                    \
    }
int import_flush(struct import_run *run); /* writes the unit */

/* ---- the source ------------------------------------------------------------------------------ */

/* One transaction (REPEATABLE READ, READ ONLY) from open to close sees one moment of a foreign
 * PostgreSQL. Opening examines its tables: a missing needed column fails, an unknown one is a
 * finding. All calls block; one thread. They set `why`. */
int source_open(struct import_run *run);
void source_close(struct import_run *run); /* also if it is not open */

struct pg_result;                         /* libpq's */
void source_free(struct pg_result *rows); /* NULL is fine */
uint32_t source_rows(const struct pg_result *rows);
/* Returns a value; {NULL, 0} if it is NULL. A zero follows the bytes. */
struct span source_bytes_at(const struct pg_result *rows, uint32_t row, uint32_t column);
/* Return a value of the first row. */
struct span source_bytes(const struct pg_result *row, uint32_t column);
bool source_is_null(const struct pg_result *row, uint32_t column);
int64_t source_int_or(const struct pg_result *row, uint32_t column, int64_t fallback); /* of NULL */
int64_t source_int(const struct pg_result *row, uint32_t column); /* 0 if it is NULL */

/* Asks for few rows, of bigint, text or bytea. A NULL value: the statement has none. */
int source_ask(
    struct import_run *run, const char *text, const char *value, struct pg_result **ret_rows);
int source_number(struct import_run *run, const char *text, const char *value, int64_t *ret_number);
/* Counts the rows of a table that are of this conversation; NULL: all rows. */
int source_count(
    struct import_run *run, enum import_table table, const char *convo, int64_t *ret_rows);
/* Selects the row of a conversation from a table. No row if the source has no such table. */
int source_first(
    struct import_run *run, enum import_table table, const char *convo, struct pg_result **ret_row);
/* Selects rows of a table, of one conversation or (NULL) all. They come one at a time and are gone
 * after their callback, so memory does not depend on their number. `order` are numbers of columns
 * from 1 on. The callback returns 0, or a negative code that ends the select; it must not select.
 * No rows if the source has no such table. */
typedef int (*source_row_fn)(void *data, const struct pg_result *row);
int source_each(struct import_run *run, enum import_table table, const char *convo,
    const char *order, source_row_fn on_row, void *data);

/* ---- one conversation ----------------------------------------------------------------------- */

struct import_person {
    int64_t joined_ms;
    int64_t left_ms;
    int64_t read_ms;   /* -1: not known */
    int64_t cursor_ms; /* -1: not known */
    int64_t unread;    /* -1: not known */
    uint64_t join_seq;
    uint64_t leave_seq;
    uint64_t read_seq;
    bool is_in;
    bool is_admin;
    bool is_moderator;
};

/* A moment when a member joined, left or read: becomes a place in the log. */
struct import_point {
    int64_t from_ms; /* the first row at or after this time lies behind the point */
    uint64_t *seq;   /* the place */
    bool is_leave;
};

enum { IMPORT_RECENT_MAX = 1024 };

struct import_convo {
    struct import_run *run;
    struct span id; /* a zero follows */
    /* its row and its policy in the source */
    struct pg_result *row, *policy;
    int64_t created_ms;
    int64_t source_epoch;
    struct span suite, group_info; /* either may be absent */
    uint64_t group_info_epoch;
    struct buffer group_id; /* of the group of its messages; empty: not known */
    /* its members: persons[i] is roster.members[i] */
    struct roster roster;
    struct import_person *persons;
    uint32_t person_capacity;
    struct import_point *points;
    uint32_t point_count;
    uint32_t point_next;
    /* its log */
    uint64_t epoch_max; /* the server never reached a higher one */
    uint64_t epoch;     /* the highest that a member is known to have reached */
    bool has_epoch;
    uint64_t rows;
    uint64_t first_seq, last_seq;
    int64_t newest_ms;
    unsigned char chain[32];
    uint64_t *bases; /* base epochs of winning commits, sorted */
    uint32_t base_count, base_capacity;
    uint64_t recent[IMPORT_RECENT_MAX]; /* seqs of the newest application messages: a ring */
    uint64_t recent_count;
    uint64_t moved, missing, lost, unreadable, unreached, former;
    /* its Welcomes */
    unsigned char welcome_hash[32];
    int64_t welcome_part;
    uint64_t welcome_seq;
};

/* Imports a conversation. `is_begun`: an earlier run was interrupted in it. TR_ENOENT: it is
 * skipped. */
int import_convo(struct import_run *run, struct span id, bool is_begun);
/* Imports the log, and sets join_seq, leave_seq and read_seq of all members. */
int import_log(struct import_convo *convo);
int import_welcomes(struct import_convo *convo);
/* Finds a member by DID. NULL: there is none. */
struct import_person *import_person_find(const struct import_convo *convo, struct span did);

/* ---- the rest ------------------------------------------------------------------------------- */

int import_devices(struct import_run *run);
int import_packages(struct import_run *run);
bool import_is_did(struct span did);
/* Returns the name of a conversation's mark in the audit log. */
enum { IMPORT_MARK_SIZE = ACT_CONVO_SIZE_MAX + 8 };
struct span import_mark(struct span convo, char mark[IMPORT_MARK_SIZE]);
/* An empty text, or one that is not there, as one and as the other. */
struct span import_or_empty(struct span text);
struct span import_or_absent(struct span text);

#endif
