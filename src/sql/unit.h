/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h: a unit of work from the inside, for the backends: what to run, and where its results go.
 *
 * Two hold a unit: the actor's client list (or the blocking caller) and the runner that has it.
 * `holders` counts them; the last one frees. Who may touch it follows from `state`:
 *
 *   BUILT ──submit──▶ QUEUED ──it begins──▶ RUNNING ──results are there──▶ DONE
 *                       │  ▲────connection lost────┘
 *                       └──the client gave up──▶ ABANDONED (never runs)
 *
 * While it is QUEUED or RUNNING only the runner writes to it, beside `answer` and `is_back`, which
 * are the client's. A client that is told of an end before DONE may not look at the results, nor at
 * the data of its decision: only the thread that makes the decision may. */
#ifndef SQL_UNIT_H
#define SQL_UNIT_H

#include <stdatomic.h>

#include "sql/sql.h"

enum sql_state { SQL_BUILT, SQL_QUEUED, SQL_RUNNING, SQL_DONE, SQL_ABANDONED };

enum { SQL_UNIT_BYTES_MAX = 64 << 20 }; /* of its values, and of its results */

enum sql_kind { SQL_NULL, SQL_INT, SQL_TEXT, SQL_BLOB };

struct sql_value {
    enum sql_kind kind;
    int64_t number;
    size_t offset; /* of text and bytes, in the unit's `bytes`; text is also ended by a zero */
    size_t size;
};

struct sql_step {
    const struct sql_statement *statement;
    int64_t rows_expected; /* or SQL_ROWS_ANY */
    uint32_t value_first;  /* in values */
    uint32_t value_count;
    /* results */
    int64_t changed;
    uint32_t row_count;
    uint32_t column_count;
    uint32_t cell_first; /* in cells: row_count * column_count of them */
};

/* What a unit decides inside its transaction, and where it stood before that. */
struct sql_decision {
    sql_decide_fn decide; /* NULL: nothing */
    void *data;
    void (*drop)(void *data);
    uint32_t step_count;
    uint32_t value_count;
    size_t bytes_size;
};

struct sql_unit {
    uint64_t key;
    struct sql_step *steps;
    uint32_t step_count;
    struct sql_value *values; /* what goes in */
    uint32_t value_count;
    struct sql_value *cells; /* what comes back */
    uint32_t cell_count;
    struct buffer bytes;   /* of values */
    struct buffer results; /* of cells */
    int failed;            /* out of memory while it was built or filled */
    struct sql_decision decision;

    int status;
    int64_t failed_step;
    uint64_t commit;
    char why[160];

    _Atomic uint32_t holders;
    _Atomic uint32_t state;   /* enum sql_state */
    _Atomic bool is_given_up; /* its client was told of an end while it ran: not to be run again */
    uint32_t loss_count;      /* the runner's: how often the connection was lost while it ran */
    uint64_t expires_ns;      /* 0 is never */
    bool is_read;
    uint32_t step_capacity;
    uint32_t value_capacity;
    uint32_t cell_capacity;

    /* The client's. */
    struct sql_unit *next; /* in its list of units it waits for, oldest first */
    struct sql_unit *previous;
    uint64_t serial;
    uint32_t tag;
    bool is_back; /* `answer` is its status */
    int answer;
};

/* For runners and clients. */
void sql_unit_hold(struct sql_unit *unit);
bool sql_unit_move(struct sql_unit *unit, enum sql_state from, enum sql_state to);
/* The client's side of an end: `status` is what the ask ended with. Sets `answer` to what is true
 * of the unit now: its own status if it is DONE, `status` if it will never run, else SQL_EUNKNOWN.
 */
void sql_unit_settle(struct sql_unit *unit, int status);

/* For backends: the results of one try, and what was decided in it. Reset before the unit is tried
 * again. */
void sql_unit_reset_results(struct sql_unit *unit);
/* When all steps have run and passed, if the unit has a decision: more steps may be there after it.
 * 0, or the unit has failed. */
bool sql_unit_has_decision(const struct sql_unit *unit);
int sql_unit_make_decision(struct sql_unit *unit);
/* Is there anything of it to COMMIT? Not of one that failed, or that decided to store nothing. */
bool sql_unit_stores(const struct sql_unit *unit);
void sql_unit_begin_rows(struct sql_unit *unit, uint32_t step, uint32_t column_count);
void sql_unit_cell_null(struct sql_unit *unit);
void sql_unit_cell_int(struct sql_unit *unit, int64_t value);
void sql_unit_cell_bytes(struct sql_unit *unit, enum sql_kind kind, const void *bytes, size_t size);
void sql_unit_end_row(struct sql_unit *unit, uint32_t step);
/* Set status, step and the database's words; returns the status. */
int sql_unit_fail(struct sql_unit *unit, int64_t step, int status, const char *why);
/* Did the step do what it was to do? 0 or SQL_EROWS with its sentence. A step that returned rows
 * counts those, any other the rows it changed. */
int sql_unit_check_rows(struct sql_unit *unit, uint32_t step);

#endif
