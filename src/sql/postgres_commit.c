/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_commit.c: run a batch of units as one durable transaction; and reads.
 *
 *   together   BEGIN, all statements of all units ─► check ─► COMMIT
 *                │ a unit failed and left changes behind, or the server raised an error
 *                ▼
 *   careful    BEGIN, a savepoint before each unit ─► check, roll back to the
 *              savepoint of the first failed unit, continue after it ─► COMMIT
 *                │ deadlock, or the server refused COMMIT (deferred constraints)
 *                ▼
 *   alone      a transaction for each unit, retried on deadlock; a unit with a decision starts
 *              here: BEGIN, statements ─► decision ─► its statements ─► check ─► COMMIT
 *
 * Why COMMIT is a second round trip. In one pipeline with the statements, COMMIT would run before
 * this code has checked the row counts, and a unit that missed its compare-and-set would have
 * inserted the rows of its later statements. A guard that makes the transaction fail by itself
 * would have to rewrite the statements to get at their counts. The second trip also limits
 * SQL_EUNKNOWN to COMMIT: if the server restarted while the connection was idle, BEGIN fails, and
 * no outcome is in doubt. The cost is small: with the log in memory, 4 writers with batches of 64
 * ran 20,200 and 20,000 units/s this way, and 19,400 and 20,800 with COMMIT in the first trip; a
 * lone unit took 310 to 380 us against 230 to 350 (unix socket, a busy 2-core machine, 1 s each).
 *
 * Why there is no savepoint for each unit in the first try: every batch would pay for the few in
 * which a unit fails (21,200 instead of 26,100 units/s with one writer on a quiet machine). Those
 * few take two to three times as long: they run once together and once carefully.
 *
 * Invariants:
 *  1. The status of a unit is set while every unit before it is either applied or rolled back in
 *     the same transaction: no unit ever sees the changes of a failed one. After the first failure
 *     that left changes behind, all later results of that try are discarded.
 *  2. COMMIT is sent only when every unit has passed or has left no changes behind.
 *  3. Once COMMIT may have reached the server, a unit ends with 0 only if the server answers
 *     COMMIT, with a failure only if it answers ERROR for a reason that comes before the commit
 *     record, and with SQL_EUNKNOWN otherwise.
 *
 * "Left no changes" relies on the row counts of plain SELECT, INSERT, UPDATE and DELETE; any other
 * statement counts as having left changes. */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/postgres.h"

/* The state of one unit in the current try. */
struct postgres_try {
    struct sql_unit *unit;
    bool has_failed; /* the unit has its status */
    bool is_out;     /* it cannot be sent: not part of any try */
    bool left_something;
};

#define NONE UINT32_MAX

/* The results of one stretch of a pipeline. */
struct stretch {
    uint32_t first_failed;       /* the unit that failed and left changes, or met an error */
    struct postgres_error error; /* the error that ended the stretch, if any */
    char tag[16];                /* of the last successful control statement */
};

/* The result of one way to run a batch. */
enum outcome {
    OUTCOME_DONE,    /* every unit has its status */
    OUTCOME_CAREFUL, /* not stored: use the next way */
    OUTCOME_ALONE,
    OUTCOME_STALE,
    OUTCOME_LOST,    /* not stored */
    OUTCOME_UNKNOWN, /* the connection was lost after COMMIT was sent */
};

/* ---- one try --------------------------------------------------------------------------------- */

static void reset_try(struct postgres_try *try)
{
    if (try->is_out)
        return;
    sql_unit_reset_results(try->unit);
    try->unit->status = 0;
    try->unit->failed_step = -1;
    try->unit->why[0] = '\0';
    try->has_failed = false;
    try->left_something = false;
}

static void fail_try(struct postgres_try *try, int64_t step, int status, const char *why)
{
    sql_unit_fail(try->unit, step, status, why);
    try->has_failed = true;
}

static bool has_too_many_values(const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < unit->step_count; i++)
        if (unit->steps[i].value_count > POSTGRES_VALUES_MAX)
            return true;
    return false;
}

/* A unit without memory for sending fails alone and changes nothing. */
static int send_steps(struct sql_connection *connection, uint32_t index, uint32_t first)
{
    struct postgres_try *try = &connection->tries[index];
    int rc = postgres_send_unit(connection, try->unit, index, first);

    if (rc != TR_ENOMEM)
        return rc;
    fail_try(try, -1, TR_ENOMEM, "out of memory before the unit was sent");
    return 0;
}

static int send_try(struct sql_connection *connection, uint32_t index)
{
    struct postgres_try *try = &connection->tries[index];

    reset_try(try);
    if (try->is_out)
        return 0;
    return send_steps(connection, index, 0);
}

/* The row count of a plain statement other than SELECT is the number of changed rows. */
static bool has_changed_rows(
    const struct postgres_sent *sent, const PGresult *result, int64_t count)
{
    const char *tag = PQcmdStatus((PGresult *)(uintptr_t)result);

    if (sent->prepared->hides_changes)
        return true;
    return strncmp(tag, "SELECT", strlen("SELECT")) != 0 && count > 0;
}

static void take_step(
    struct sql_connection *connection, const struct postgres_sent *sent, const PGresult *result)
{
    struct postgres_try *try = &connection->tries[sent->unit];
    char why[sizeof(try->unit->why)];
    int rc;

    rc = postgres_store(try->unit, sent->step, result, why, sizeof(why));
    if (has_changed_rows(sent, result, try->unit->steps[sent->step].changed))
        try->left_something = true;
    if (try->has_failed) /* report the first failure */
        return;
    if (rc != 0)
        fail_try(try, sent->step, rc, why);
    else if (sql_unit_check_rows(try->unit, sent->step) != 0)
        try->has_failed = true;
}

/* Assign the error that ended a stretch to the unit of the statement, if any. */
static void take_error(struct sql_connection *connection, const struct postgres_sent *sent,
    const PGresult *result, struct stretch *stretch)
{
    postgres_error_read(result, connection->is_writer, &stretch->error);
    if (sent->kind == SENT_CONTROL) {
        /* BEGIN and SAVEPOINT fail only on a useless connection; send_commit handles COMMIT. */
        return;
    }
    if (stretch->error.verdict == POSTGRES_UNIT && !connection->tries[sent->unit].has_failed)
        fail_try(
            &connection->tries[sent->unit], sent->step, stretch->error.code, stretch->error.why);
    /* An earlier unit may have failed and left changes. */
    if (stretch->first_failed == NONE)
        stretch->first_failed = sent->unit;
}

/* Receive all results up to the next sync. Returns 0 or TR_ECLOSED. */
static int receive_stretch(struct sql_connection *connection, struct stretch *ret_stretch)
{
    struct postgres_sent sent = { .kind = SENT_CONTROL };
    PGresult *result;
    int rc;

    *ret_stretch = (struct stretch){ .first_failed = NONE, .error = { .verdict = POSTGRES_OK } };
    do {
        ExecStatusType status;

        rc = postgres_receive(connection, &sent, &result);
        if (rc != 0)
            return rc == TR_ENOENT ? postgres_lose(connection, "no end of results") : rc;
        status = PQresultStatus(result);
        if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) {
            if (sent.kind == SENT_STEP)
                take_step(connection, &sent, result);
            else if (sent.kind == SENT_CONTROL)
                snprintf(ret_stretch->tag, sizeof(ret_stretch->tag), "%s", PQcmdStatus(result));
        } else if (status != PGRES_PIPELINE_ABORTED && status != PGRES_PIPELINE_SYNC) {
            take_error(connection, &sent, result, ret_stretch);
        }
        PQclear(result);
        if (ret_stretch->error.verdict == POSTGRES_LOST)
            return postgres_lose(connection, ret_stretch->error.why);
        if (sent.kind == SENT_STEP && connection->tries[sent.unit].has_failed &&
            connection->tries[sent.unit].left_something && ret_stretch->first_failed == NONE)
            ret_stretch->first_failed = sent.unit;
    } while (sent.kind != SENT_SYNC);
    return 0;
}

static int lose_for_memory(struct sql_connection *connection)
{
    connection->is_innocent = true;
    return postgres_lose(connection, "out of memory");
}

/* Undo the transaction between two tries. */
static int roll_back(struct sql_connection *connection)
{
    struct stretch stretch;
    int rc;

    rc = postgres_send_control(connection, "ROLLBACK");
    if (rc == 0)
        rc = postgres_send_sync(connection);
    if (rc == 0)
        rc = receive_stretch(connection, &stretch);
    if (rc == TR_ENOMEM)
        rc = lose_for_memory(connection);
    return rc;
}

static enum outcome outcome_of_verdict(enum postgres_verdict verdict)
{
    switch (verdict) {
    case POSTGRES_AGAIN:
        return OUTCOME_ALONE;
    case POSTGRES_STALE:
        return OUTCOME_STALE;
    case POSTGRES_LOST:
        return OUTCOME_LOST;
    case POSTGRES_OK:
    case POSTGRES_UNIT:
        break;
    }
    return OUTCOME_CAREFUL;
}

/* Treat lack of memory for a control statement as a lost connection: the transaction is not
 * committed, and the caller reconnects. */
static enum outcome outcome_of_failed_send(struct sql_connection *connection, int rc)
{
    if (rc == TR_ENOMEM)
        lose_for_memory(connection);
    return OUTCOME_LOST;
}

/* ---- COMMIT ---------------------------------------------------------------------------------- */

static bool has_anything_to_commit(const struct sql_connection *connection, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!connection->tries[i].has_failed)
            return true;
    return false;
}

/* With OUTCOME_ALONE, `ret_error` has the reason of the server. */
static enum outcome send_commit(struct sql_connection *connection, struct postgres_error *ret_error)
{
    struct stretch stretch;
    int rc;

    *ret_error = (struct postgres_error){ 0 };
    if (connection->is_lost || PQstatus(connection->pg) != CONNECTION_OK) {
        postgres_lose(connection, PQerrorMessage(connection->pg));
        return OUTCOME_LOST;
    }
    rc = postgres_send_control(connection, "COMMIT");
    if (rc == TR_ENOMEM)
        return outcome_of_failed_send(connection, rc);
    /* From here on COMMIT may reach the server: libpq sends at any time. */
    if (rc == 0)
        rc = postgres_send_sync(connection);
    if (rc == 0)
        rc = receive_stretch(connection, &stretch);
    if (rc != 0) {
        postgres_lose(connection, "during COMMIT");
        return OUTCOME_UNKNOWN;
    }
    if (stretch.error.verdict == POSTGRES_OK && strcmp(stretch.tag, "COMMIT") == 0)
        return OUTCOME_DONE;
    if (stretch.error.verdict == POSTGRES_OK) /* "ROLLBACK": it had failed before */
        return OUTCOME_ALONE;
    *ret_error = stretch.error;
    if (!postgres_commit_surely_failed(&stretch.error)) {
        postgres_lose(connection, stretch.error.why);
        return OUTCOME_UNKNOWN;
    }
    /* If a statement before COMMIT failed, the transaction is still open. */
    return roll_back(connection) == 0 ? OUTCOME_ALONE : OUTCOME_LOST;
}

static enum outcome commit_or_roll_back(struct sql_connection *connection, size_t count)
{
    struct postgres_error error;

    if (has_anything_to_commit(connection, count))
        return send_commit(connection, &error);
    /* Ignore a lost connection here: every unit has its status. */
    roll_back(connection);
    return OUTCOME_DONE;
}

/* ---- together -------------------------------------------------------------------------------- */

static enum outcome commit_together(
    struct sql_connection *connection, uint32_t count, uint32_t *ret_first_failed)
{
    struct stretch stretch;
    enum outcome outcome;
    int rc;

    rc = postgres_send_control(connection, "BEGIN");
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = send_try(connection, i);
    if (rc == 0)
        rc = postgres_send_sync(connection);
    if (rc == 0)
        rc = receive_stretch(connection, &stretch);
    if (rc != 0)
        return outcome_of_failed_send(connection, rc);
    if (stretch.first_failed == NONE && stretch.error.verdict == POSTGRES_OK)
        return commit_or_roll_back(connection, count);
    *ret_first_failed = stretch.first_failed == NONE ? 0 : stretch.first_failed;
    outcome = outcome_of_verdict(stretch.error.verdict);
    if (roll_back(connection) != 0)
        return OUTCOME_LOST;
    /* A lone unit has its final status. */
    return count == 1 && outcome == OUTCOME_CAREFUL && connection->tries[0].has_failed
               ? OUTCOME_DONE
               : outcome;
}

/* ---- careful --------------------------------------------------------------------------------- */

/* Send a window of units. The window doubles after each success; after a failure it is as long as
 * the run of good units before it. So a batch with one bad unit takes few trips, and in a run of
 * bad units no unit runs in vain. */
static int send_window(struct sql_connection *connection, uint32_t first, uint32_t end)
{
    char text[32];
    int rc = 0;

    for (uint32_t i = first; rc == 0 && i < end; i++) {
        snprintf(text, sizeof(text), "SAVEPOINT u%u", i);
        rc = postgres_send_control(connection, text);
        if (rc == 0)
            rc = send_try(connection, i);
    }
    return rc;
}

/* Undo the failed unit and those after it; keep the units before it. */
static int send_window_end(struct sql_connection *connection, uint32_t first, uint32_t failed)
{
    char text[40];
    int rc = 0;

    if (failed != NONE) {
        snprintf(text, sizeof(text), "ROLLBACK TO SAVEPOINT u%u", failed);
        rc = postgres_send_control(connection, text);
    }
    snprintf(text, sizeof(text), "RELEASE SAVEPOINT u%u", first);
    if (rc == 0)
        rc = postgres_send_control(connection, text);
    return rc;
}

/* A failed unit that left no changes needs no rollback. */
static enum outcome commit_carefully(
    struct sql_connection *connection, uint32_t count, uint32_t first_failed)
{
    uint32_t window = first_failed + 1; /* up to the unit that failed in commit_together */
    uint32_t next = 0;
    int rc;

    rc = postgres_send_control(connection, "BEGIN");
    while (rc == 0 && next < count) {
        uint32_t first = next;
        uint32_t end = count - first < window ? count : first + window;
        struct stretch stretch;

        rc = send_window(connection, first, end);
        if (rc == 0)
            rc = postgres_send_sync(connection);
        if (rc == 0)
            rc = receive_stretch(connection, &stretch);
        if (rc != 0)
            break;
        if (stretch.error.verdict == POSTGRES_AGAIN || stretch.error.verdict == POSTGRES_STALE ||
            (stretch.error.verdict != POSTGRES_OK && stretch.first_failed == NONE))
            return roll_back(connection) != 0                ? OUTCOME_LOST
                   : stretch.error.verdict == POSTGRES_STALE ? OUTCOME_STALE
                                                             : OUTCOME_ALONE;
        if (stretch.first_failed == NONE) {
            next = end;
            window *= 2;
        } else {
            next = stretch.first_failed + 1;
            window = stretch.first_failed > first ? stretch.first_failed - first : 1;
        }
        rc = send_window_end(connection, first, stretch.first_failed);
    }
    if (rc != 0)
        return outcome_of_failed_send(connection, rc);
    return commit_or_roll_back(connection, count);
}

/* Prepare all statements again, because the tables changed. Only between transactions. */
static int refresh_prepared(struct sql_connection *connection)
{
    int rc;

    rc = postgres_pipeline_end(connection);
    if (rc == 0)
        rc = postgres_forget_prepared(connection);
    if (rc == 0)
        rc = postgres_pipeline_start(connection);
    return rc;
}

/* ---- alone ----------------------------------------------------------------------------------- */

static int end_stretch(struct sql_connection *connection, struct stretch *ret_stretch)
{
    int rc = postgres_send_sync(connection);

    return rc == 0 ? receive_stretch(connection, ret_stretch) : rc;
}

/* Run the decision of a unit whose rows have arrived, locked as requested, and then the steps that
 * it added. */
static int run_decision(
    struct sql_connection *connection, uint32_t index, struct stretch *ret_stretch)
{
    struct postgres_try *try = &connection->tries[index];
    uint32_t first = try->unit->step_count;
    int rc;

    if (sql_unit_run_decision(try->unit) < 0)
        try->has_failed = true;
    else if (has_too_many_values(try->unit))
        fail_try(try, -1, TR_ELIMIT, "a statement has more than 65535 values");
    if (try->has_failed || !sql_unit_stores(try->unit))
        return 0;
    rc = send_steps(connection, index, first);
    return rc == 0 ? end_stretch(connection, ret_stretch) : rc;
}

/* Run a unit up to, but without, its COMMIT. */
static int run_one(struct sql_connection *connection, uint32_t index, struct stretch *ret_stretch)
{
    const struct postgres_try *try = &connection->tries[index];
    int rc = postgres_send_control(connection, "BEGIN");

    if (rc == 0)
        rc = send_try(connection, index);
    if (rc == 0)
        rc = end_stretch(connection, ret_stretch);
    if (rc == 0 && sql_unit_has_decision(try->unit) && !try->has_failed &&
        ret_stretch->error.verdict == POSTGRES_OK)
        rc = run_decision(connection, index, ret_stretch);
    return rc;
}

/* Run one unit in one transaction. OUTCOME_ALONE asks for a retry. */
static enum outcome commit_one(struct sql_connection *connection, uint32_t index)
{
    struct postgres_try *try = &connection->tries[index];
    struct postgres_error error;
    struct stretch stretch;
    enum outcome outcome;
    int rc;

    rc = run_one(connection, index, &stretch);
    if (rc != 0)
        return outcome_of_failed_send(connection, rc);
    error = stretch.error;
    if (error.verdict == POSTGRES_OK && !try->has_failed && !sql_unit_stores(try->unit)) {
        roll_back(connection); /* the unit has its status, even if the connection is lost now */
        return OUTCOME_DONE;
    }
    if (error.verdict == POSTGRES_OK && !try->has_failed) {
        outcome = send_commit(connection, &error);
        if (outcome != OUTCOME_ALONE)
            return outcome;
    } else {
        /* The unit has its status; the next unit notices a lost connection. */
        roll_back(connection);
    }
    if (error.verdict == POSTGRES_AGAIN || error.verdict == POSTGRES_STALE) {
        fail_try(try, -1, SQL_EFAILED, error.why); /* final if this was the last try */
        if (error.verdict == POSTGRES_STALE && refresh_prepared(connection) != 0)
            return OUTCOME_LOST;
        return OUTCOME_ALONE;
    }
    if (!try->has_failed)
        fail_try(try, -1, error.verdict == POSTGRES_UNIT ? error.code : SQL_EFAILED,
            error.verdict == POSTGRES_OK ? "the server rolled it back" : error.why);
    return OUTCOME_DONE;
}

/* Fail the units that did not start before the connection was lost. Each gets its own status: units
 * before them may be committed, so that TR_ECLOSED for the whole batch would be wrong. */
static void close_rest(struct sql_connection *connection, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < count; i++)
        if (!connection->tries[i].is_out)
            fail_try(&connection->tries[i], -1, TR_ECLOSED, connection->why);
}

static enum outcome commit_alone(struct sql_connection *connection, uint32_t count)
{
    bool is_any_committed = false;

    for (uint32_t i = 0; i < count; i++) {
        struct postgres_try *try = &connection->tries[i];
        enum outcome outcome = OUTCOME_ALONE;

        if (try->is_out)
            continue;
        for (uint32_t tries = 0; outcome == OUTCOME_ALONE && tries < POSTGRES_TRIES_MAX; tries++)
            outcome = commit_one(connection, i);
        if (outcome == OUTCOME_UNKNOWN) {
            fail_try(try, -1, SQL_EUNKNOWN, connection->why);
            close_rest(connection, i + 1, count);
            /* Only this unit is in doubt; those before it are committed. */
            return count == 1 ? OUTCOME_UNKNOWN : OUTCOME_DONE;
        }
        if (outcome == OUTCOME_LOST && !is_any_committed)
            return OUTCOME_LOST;
        if (outcome == OUTCOME_LOST) {
            close_rest(connection, i, count);
            return OUTCOME_DONE;
        }
        if (!try->has_failed)
            is_any_committed = true;
    }
    return OUTCOME_DONE;
}

/* ---- the batch ------------------------------------------------------------------------------- */

static int prepare_tries(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    if (count > connection->try_capacity) {
        struct postgres_try *tries =
            base_realloc(connection->tries, count * sizeof(*connection->tries));

        if (tries == NULL)
            return TR_ENOMEM;
        connection->tries = tries;
        connection->try_capacity = count;
    }
    for (size_t i = 0; i < count; i++) {
        struct postgres_try *try = &connection->tries[i];
        int failed = units[i]->failed; /* reset_try clears it */

        *try = (struct postgres_try){ .unit = units[i] };
        reset_try(try);
        if (failed != 0)
            fail_try(try, -1, failed, "the unit is incomplete: out of memory or over a limit");
        else if (has_too_many_values(units[i]))
            fail_try(try, -1, TR_ELIMIT, "a statement has more than 65535 values");
        try->is_out = try->has_failed;
    }
    return 0;
}

static void fail_all(struct sql_unit *const *units, size_t count, int status, const char *why)
{
    for (size_t i = 0; i < count; i++) {
        sql_unit_reset_results(units[i]);
        sql_unit_fail(units[i], -1, status, why);
    }
}

void postgres_tries_free(struct sql_connection *connection)
{
    base_free(connection->tries);
    connection->tries = NULL;
    connection->try_capacity = 0;
}

/* Return the status for a connection lost while units ran. A session that ended because the server
 * stops looks like one that ended because of its units: therefore the runner blames a unit only
 * after several losses. */
static int lost_status(const struct sql_connection *connection)
{
    return connection->is_innocent ? TR_ECLOSED : SQL_ELOST;
}

static void mark_unknown(struct sql_connection *connection, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!connection->tries[i].has_failed)
            fail_try(&connection->tries[i], -1, SQL_EUNKNOWN, connection->why);
}

static enum outcome run_batch(struct sql_connection *connection, uint32_t count)
{
    uint32_t first_failed = 0;
    enum outcome outcome;

    if (sql_unit_has_decision(connection->tries[0].unit))
        return commit_alone(connection, count);
    outcome = commit_together(connection, count, &first_failed);
    if (outcome == OUTCOME_STALE)
        outcome = refresh_prepared(connection) != 0
                      ? OUTCOME_LOST
                      : commit_together(connection, count, &first_failed);
    if (outcome == OUTCOME_CAREFUL)
        outcome = commit_carefully(connection, count, first_failed);
    if (outcome == OUTCOME_UNKNOWN)
        mark_unknown(connection, count);
    if (outcome == OUTCOME_STALE)
        outcome = refresh_prepared(connection) != 0 ? OUTCOME_LOST : OUTCOME_ALONE;
    if (outcome == OUTCOME_ALONE)
        outcome = commit_alone(connection, count);
    return outcome;
}

int postgres_commit(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    enum outcome outcome;
    int rc;

    tr_assert(count < NONE);
    rc = prepare_tries(connection, units, count);
    if (rc != 0) {
        fail_all(units, count, TR_ENOMEM, "out of memory");
        return 0;
    }
    rc = postgres_settle(connection);
    if (rc == 0 && connection->prepared_count > POSTGRES_PREPARED_MAX)
        rc = postgres_forget_prepared(connection);
    if (rc == 0)
        rc = postgres_pipeline_start(connection);
    outcome = rc == 0 ? run_batch(connection, (uint32_t)count) : OUTCOME_LOST;
    if (outcome == OUTCOME_LOST) {
        fail_all(units, count, TR_ECLOSED, connection->why);
        return rc == 0 ? lost_status(connection) : TR_ECLOSED;
    }
    if (outcome == OUTCOME_UNKNOWN)
        return SQL_EUNKNOWN;
    postgres_pipeline_end(connection); /* the next batch notices a connection lost now */
    return 0;
}

/* ---- reads ----------------------------------------------------------------------------------- */

/* Send a read. One statement is a snapshot by itself; several share a transaction. The second
 * stretch ends the transaction even if an error cut the first one short. */
static int send_read(struct sql_connection *connection, uint32_t index)
{
    bool is_many = connection->tries[index].unit->step_count > 1;
    int rc = 0;

    if (is_many)
        rc = postgres_send_control(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY");
    if (rc == 0)
        rc = send_try(connection, index);
    if (rc == 0)
        rc = postgres_send_sync(connection);
    if (rc == 0 && is_many) {
        rc = postgres_send_control(connection, "ROLLBACK");
        if (rc == 0)
            rc = postgres_send_sync(connection);
    }
    return rc;
}

/* Receive a read. An outdated plan or a cancelled statement fails too: the first time the read is
 * retried with new plans, the second time the unit fails. */
static int receive_read(struct sql_connection *connection, uint32_t index, bool *ret_is_stale)
{
    struct postgres_try *try = &connection->tries[index];
    struct stretch stretch;
    struct stretch ignored;
    int rc;

    rc = receive_stretch(connection, &stretch);
    if (rc == 0 && try->unit->step_count > 1)
        rc = receive_stretch(connection, &ignored);
    if (rc != 0)
        return rc;
    if (stretch.error.verdict == POSTGRES_AGAIN || stretch.error.verdict == POSTGRES_STALE) {
        *ret_is_stale = true;
        fail_try(try, -1, SQL_EFAILED, stretch.error.why);
    }
    return 0;
}

static int read_all(struct sql_connection *connection, uint32_t count, bool *ret_is_stale)
{
    int rc = 0;

    *ret_is_stale = false;
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = send_read(connection, i);
    if (rc == TR_ENOMEM)
        rc = lose_for_memory(connection);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = receive_read(connection, i, ret_is_stale);
    return rc;
}

int postgres_read(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool is_stale = false;
    int rc;

    tr_assert(count < NONE);
    if (prepare_tries(connection, units, count) != 0) {
        fail_all(units, count, TR_ENOMEM, "out of memory");
        return 0;
    }
    for (int tries = 0; tries < 2; tries++) {
        rc = postgres_settle(connection);
        if (rc == 0 && (is_stale || connection->prepared_count > POSTGRES_PREPARED_MAX))
            rc = postgres_forget_prepared(connection);
        if (rc == 0)
            rc = postgres_pipeline_start(connection);
        if (rc == 0) {
            rc = read_all(connection, (uint32_t)count, &is_stale);
            if (rc == 0)
                rc = postgres_pipeline_end(connection);
            if (rc != 0)
                rc = lost_status(connection);
        }
        if (rc != 0) {
            fail_all(units, count, TR_ECLOSED, connection->why);
            return rc;
        }
        if (!is_stale)
            break;
    }
    return 0;
}
