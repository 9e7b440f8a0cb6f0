/* SPDX-License-Identifier: Apache-2.0 */
/* import_run.h: the common parts of an import: the run, its unit and the fate of every row
 * (import.c), the source (import_source.c), one conversation (import_convo.c: its row, policy and
 * members; import_log.c: its messages), key packages, devices and Welcomes (import_package.c). */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_RUN_H

#include "services/common/step.h"
#include "services/delivery/convo/act.h"
#include "services/delivery/convo/roster.h"
#include "services/delivery/import/import.h"
#include "services/delivery/mls/mls_message.h"

/* The tables of a Catbird server. Those from the policies to the Welcomes belong to conversations. */
enum import_table {
    CATBIRD_CONVERSATIONS,
    CATBIRD_POLICIES,
    CATBIRD_MEMBERS,
    CATBIRD_CURSORS,
    CATBIRD_MESSAGES,
    CATBIRD_WELCOMES,
    CATBIRD_PACKAGES,
    CATBIRD_DEVICES,
    CATBIRD_TABLES,
    IMPORT_NO_TABLE = CATBIRD_TABLES,
};
enum { IMPORT_COLUMNS_MAX = 10 };

typedef struct pg_conn PGconn; /* libpq's */
typedef struct pg_result PGresult;

enum { IMPORT_FATES_MAX = 16 }; /* of a table */
/* Bounds of a unit. Small conversations share one, so that not each costs a COMMIT. */
enum { IMPORT_STEPS_MAX = 1000, IMPORT_BYTES_MAX = 1 << 20 };

struct import_run {
    const struct delivery_import *import;
    char *why;
    size_t why_size;
    /* the source, and the tables and columns it has */
    PGconn *pg;
    bool has_table[CATBIRD_TABLES];
    bool has_column[CATBIRD_TABLES][IMPORT_COLUMNS_MAX + 1]; /* the last: unknown ones */
    /* the unit that is being filled; NULL: none */
    struct sql_unit *unit;
    uint32_t unit_steps;
    size_t unit_bytes;
    enum import_table tables[IMPORT_STEPS_MAX]; /* each step imports a row of this table */
    int64_t last_changed; /* rows that the last step of the last unit changed */
    struct import_fate {
        const char *reason; /* NULL: imported; always the first */
        uint64_t rows;
    } fates[CATBIRD_TABLES][IMPORT_FATES_MAX];
    /* conversations */
    uint64_t imported; /* by an earlier run */
    uint64_t done, total;
};

/* Counts rows of a table as imported (reason NULL) or skipped. Reasons are literals. Returns 0. */
int import_fate(struct import_run *run, enum import_table table, const char *reason, uint64_t rows);
/* Reports a finding; an empty subject is the source. */
void import_finding(struct import_run *run, struct span subject, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Writes the sentence about the failure that ends the run, on one line. Returns `rc`. */
int import_fail(struct import_run *run, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a step that must change `rows` rows to the unit, and writes the unit if it has become large.
 * A step that imports a row of `table` counts it: as imported, or, if an INSERT found its row, as
 * existing. */
int import_step(struct import_run *run, enum import_table table,
    const struct sql_statement *statement, int64_t rows, const struct step_value *values,
    size_t count);
#define VALUES(...)                                                                                \
    (const struct step_value[]){ __VA_ARGS__ },                                                    \
        sizeof((const struct step_value[]){ __VA_ARGS__ }) / sizeof(struct step_value)
#define VALUE_INT_IF(is_there, number_)                                                            \
    {                                                                                              \
        .kind = (is_there) ? STEP_INT : STEP_TEXT, .number = (int64_t)(number_)                    \
    }
int import_flush(struct import_run *run); /* writes the unit */

/* ---- the source ------------------------------------------------------------------------------ */

/* One transaction (REPEATABLE READ, READ ONLY) from the opening to PQfinish sees one moment of a
 * foreign PostgreSQL. Opening examines its tables: a missing needed column fails, an unknown one is
 * a finding. All calls block; one thread. They set `why`. */
int source_open(struct import_run *run);

/* Returns a value; {NULL, 0} if it is NULL or there is no such row. A zero follows the bytes. */
struct span source_bytes_at(const PGresult *rows, int row, int column);
/* Return a value of the first row by the name of its column. */
struct span source_bytes(const PGresult *row, const char *column);
int64_t source_int_or(const PGresult *row, const char *column, int64_t fallback); /* of NULL */
const char *source_name(enum import_table table);

/* Asks for few rows, of bigint, text or bytea. A NULL value: the statement has none. */
int source_ask(struct import_run *run, const char *text, const char *value, PGresult **ret_rows);
int source_number(struct import_run *run, const char *text, const char *value, int64_t *ret_number);
/* Counts the rows of a table that are of this conversation; NULL: all rows. */
int source_count(
    struct import_run *run, enum import_table table, const char *convo, int64_t *ret_rows);
/* Selects rows of a table, of one conversation or (NULL) all. They come one at a time and are gone
 * after their callback, so memory does not depend on their number. The callback returns 0, or a
 * negative code that ends the run; it must not select. A table that the source does not have has no
 * rows. */
enum { SOURCE_KEPT = 1 }; /* the callback has taken the row */
typedef int (*source_row_fn)(void *data, PGresult *row);
int source_each(struct import_run *run, enum import_table index, const char *convo,
    const char *order, source_row_fn on_row, void *data);
int source_keep(void *data, PGresult *row); /* a callback: keeps the last row in a PGresult * */

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

enum { IMPORT_RECENT_MAX = 1024, IMPORT_BASES_MAX = 1 << 24 };

struct import_convo {
    struct import_run *run;
    struct span id; /* a zero follows */
    PGresult *row;  /* in the source */
    int64_t created_ms;
    int64_t source_epoch;
    struct span suite, group_info; /* either may be absent */
    uint64_t group_info_epoch;
    struct buffer group_id; /* of the group of its messages; empty: not known */
    /* its members */
    struct roster roster;
    struct buffer persons;            /* of import_person; the nth is the roster's nth */
    struct buffer points;             /* of import_point, sorted */
    struct import_point *point, *end; /* those that the log has not reached */
    /* its log */
    uint64_t epoch_max; /* the server never reached a higher one */
    uint64_t epoch;     /* the highest that a member is known to have reached */
    bool has_epoch;
    uint64_t rows;
    uint64_t first_seq, last_seq;
    int64_t newest_ms;
    unsigned char chain[32];
    struct buffer bases;                /* uint64_t: base epochs of winning commits, sorted */
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
static inline struct import_person *import_person(const struct import_convo *convo, size_t n)
{
    return (struct import_person *)(void *)convo->persons.bytes + n;
}
/* Finds a member by DID. NULL: there is none. */
struct import_person *import_person_find(const struct import_convo *convo, struct span did);

int import_packages(struct import_run *run); /* and devices */

#endif
