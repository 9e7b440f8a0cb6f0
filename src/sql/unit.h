/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h: the inside of a unit, for runners and backends: its statements and its results.
 *
 * A unit has two holders: the actor's client list (or the blocking caller) and the runner.
 * `holders` counts them; the last one frees the unit. `state` tells who may access it:
 *
 *   BUILT ──submit──▶ QUEUED ──start──▶ RUNNING ──results complete──▶ DONE
 *                       │  ▲──connection lost──┘
 *                       └──client gives up──▶ ABANDONED (never runs)
 *
 * While the unit is QUEUED or RUNNING, only the runner writes to it, except for `answer` and
 * `is_back`, which belong to the client. A client whose ask ends before DONE must not read the
 * results nor the data of the decision: only the thread that runs the decision may. */
#ifndef SQL_UNIT_H
#define SQL_UNIT_H

#include <stdatomic.h>

#include "sql/sql.h"

enum sql_state { SQL_BUILT, SQL_QUEUED, SQL_RUNNING, SQL_DONE, SQL_ABANDONED };

enum { SQL_UNIT_BYTES_MAX = 64 << 20 }; /* for its values, and for its results */

enum sql_kind { SQL_NULL, SQL_INT, SQL_TEXT, SQL_BLOB };

struct sql_value {
    enum sql_kind kind;
    int64_t number;
    size_t offset; /* of text and bytes, in `bytes` or `results` of the unit; a zero follows */
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

/* The decision of a unit, and the counts of the unit before the decision. */
struct sql_decision {
    sql_decide_fn decide; /* NULL without a decision */
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
    struct sql_value *values; /* for the statements */
    uint32_t value_count;
    struct sql_value *cells; /* of the results */
    uint32_t cell_count;
    struct buffer bytes;   /* texts and blobs of values */
    struct buffer results; /* texts and blobs of cells */
    int failed; /* TR_ENOMEM or TR_ELIMIT while it was built or filled; never runs then */
    struct sql_decision decision;

    int status; /* of the run, for the runner; the client sees it as `answer` once it is DONE */
    int64_t failed_step;
    uint64_t commit;
    char why[160];

    _Atomic uint32_t holders;
    _Atomic uint32_t state;   /* enum sql_state */
    _Atomic bool is_given_up; /* the client gave up while it ran: never run it again */
    uint32_t loss_count;      /* connections lost while it ran; written by the runner */
    uint64_t expires_ns;      /* 0 is never */
    bool is_read;
    uint32_t step_capacity;
    uint32_t value_capacity;
    uint32_t cell_capacity;

    /* Only the client uses the rest. */
    struct sql_unit *next; /* in the client's list, oldest first */
    struct sql_unit *previous;
    uint64_t serial;
    uint32_t tag;
    bool is_back; /* the ask has ended, and `answer` is valid */
    int answer;   /* the outcome for the client, which sql_unit_status returns */
};

/* For runners and clients. sql_unit_move returns false if the state is not `from`. */
void sql_unit_hold(struct sql_unit *unit); /* sql_unit_destroy gives this reference back */
bool sql_unit_move(struct sql_unit *unit, enum sql_state from, enum sql_state to);
/* End the unit for the client; `status` is the status of the ask. Sets `answer` to the unit's own
 * status if it is DONE, to `status` if it will never run, else to SQL_EUNKNOWN. */
void sql_unit_settle(struct sql_unit *unit, int status);

/* For backends: remove the results and the steps of the decision, before each try. */
void sql_unit_reset_results(struct sql_unit *unit);
bool sql_unit_has_decision(const struct sql_unit *unit);
/* Run the decision after all steps have passed; it may add steps. Returns 0, or the unit's
 * failure. */
int sql_unit_run_decision(struct sql_unit *unit);
/* True if the unit has something to COMMIT: it has not failed, and a decision has added steps. */
bool sql_unit_stores(const struct sql_unit *unit);
void sql_unit_start_rows(struct sql_unit *unit, uint32_t step, uint32_t column_count);
void sql_unit_cell_null(struct sql_unit *unit);
void sql_unit_cell_int(struct sql_unit *unit, int64_t value);
void sql_unit_cell_bytes(struct sql_unit *unit, enum sql_kind kind, const void *bytes, size_t size);
void sql_unit_end_row(struct sql_unit *unit, uint32_t step);
/* Set status, step and the database's message. Returns the status. */
int sql_unit_fail(struct sql_unit *unit, int64_t step, int status, const char *why);
/* Compare the rows with the expected number: those returned, or else those changed. Returns 0, or
 * fails the unit with SQL_EROWS. */
int sql_unit_check_rows(struct sql_unit *unit, uint32_t step);

#endif
