/* SPDX-License-Identifier: Apache-2.0 */
/* How a batch of units becomes one durable transaction.
 *
 *   together   BEGIN, all statements of all units ─► check ─► COMMIT
 *                │ a unit failed and left something behind, or the server raised an error
 *                ▼
 *   careful    BEGIN, a savepoint before each unit ─► check, roll back to the
 *              savepoint of the first that failed, go on behind it ─► COMMIT
 *                │ deadlock, or COMMIT itself was refused (deferred constraints)
 *                ▼
 *   alone      a transaction for each unit, tried again on deadlock; here begins a unit with a
 *              decision: BEGIN, statements ─► decision ─► its statements ─► check ─► COMMIT
 *
 * Why COMMIT is a second round trip. In one pipeline with the statements it would run before
 * anybody has looked at the row counts, and a unit that missed its compare-and-set has by then
 * inserted the rows of its later statements. A guard that makes the transaction fail by itself
 * would have to rewrite the statements to get at their counts. The second trip also keeps the
 * window of SQL_EUNKNOWN down to COMMIT: a server that was restarted while we were idle is found by
 * BEGIN, and nothing is in doubt. It costs little: with the log in memory, where nothing hides it,
 * 4 writers with batches of 64 did 20,200 and 20,000 units/s so, and 19,400 and 20,800 with COMMIT
 * in the first trip; a lone unit took 310 to 380 us against 230 to 350 (unix socket, a busy 2-core
 * machine, 1 s each).
 *
 * Why not a savepoint for each unit at once: every batch would pay for the few in which a unit
 * fails (21,200 instead of 26,100 units/s with one writer on a quiet machine). Those few take two
 * to three times as long: they run once together and once carefully.
 *
 * Invariants:
 *  1. What was decided about a unit (its status) was decided with every unit before it either
 *     applied or rolled back in the same transaction; nothing a failed unit did is ever seen by a
 *     later unit's decision. So after the first failure that left something, all that follows in
 *     that try is thrown away.
 *  2. COMMIT is sent only when every unit has passed or has left nothing behind.
 *  3. Once COMMIT may have reached the server, units end with 0 only if the server says COMMIT, and
 *     with a failure only if it says ERROR for a reason that comes before the commit record;
 *     otherwise SQL_EUNKNOWN.
 *
 * "Left nothing" trusts the row counts of plain SELECT, INSERT, UPDATE and DELETE; any other
 * statement counts as having left something. */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/postgres.h"

/* What is known about one unit in the try under way. */
struct postgres_try {
    struct sql_unit *unit;
    bool has_failed; /* its status says why */
    bool is_out;     /* failed before it was sent, in every try: not part of the transaction */
    bool left_something;
};

#define NONE UINT32_MAX

/* One stretch of a pipeline, received. */
struct stretch {
    uint32_t first_failed;       /* unit that failed and left something, or met an error */
    struct postgres_error error; /* the error that ended the stretch, if one did */
    char tag[16];                /* of the last control statement that went well */
};

/* How a whole way of trying ended. */
enum outcome {
    OUTCOME_DONE,    /* every unit has its status */
    OUTCOME_CAREFUL, /* nothing is stored: try the next way */
    OUTCOME_ALONE,
    OUTCOME_STALE,
    OUTCOME_LOST,    /* nothing is stored */
    OUTCOME_UNKNOWN, /* COMMIT was sent */
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

/* A unit that cannot even be sent fails alone and changes nothing. */
static int send_steps(struct sql_connection *connection, uint32_t index, uint32_t first)
{
    struct postgres_try *try = &connection->tries[index];
    int rc = postgres_send_unit(connection, try->unit, index, first);

    if (rc != TR_ENOMEM)
        return rc;
    fail_try(try, -1, TR_ENOMEM, "out of memory before it was sent");
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

/* One number of a SELECT says nothing of what changed; any other plain statement's does. */
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
    if (try->has_failed) /* the first failure is the one to report */
        return;
    if (rc != 0)
        fail_try(try, sent->step, rc, why);
    else if (sql_unit_check_rows(try->unit, sent->step) != 0)
        try->has_failed = true;
}

/* The error that ended a stretch is its unit's, if one had sent the statement. */
static void take_error(struct sql_connection *connection, const struct postgres_sent *sent,
    const PGresult *result, struct stretch *stretch)
{
    postgres_error_read(result, connection->is_writer, &stretch->error);
    if (sent->kind == SENT_CONTROL) {
        /* BEGIN and SAVEPOINT fail only if the connection is of no more use (or COMMIT, which its
         * sender handles). */
        return;
    }
    if (stretch->error.verdict == POSTGRES_UNIT && !connection->tries[sent->unit].has_failed)
        fail_try(
            &connection->tries[sent->unit], sent->step, stretch->error.code, stretch->error.why);
    /* A failure before it in order, that left something, comes first. */
    if (stretch->first_failed == NONE)
        stretch->first_failed = sent->unit;
}

/* All results up to the next sync. 0 or TR_ECLOSED. */
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

/* Between the tries: what was begun is undone. */
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

/* Out of memory for a word of ours is not worth a path of its own: nothing is committed, and the
 * caller connects anew. */
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

/* `ret_error` says why the server refused, with OUTCOME_ALONE. */
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
    /* From here on it may be on its way: libpq sends when it likes. */
    if (rc == 0)
        rc = postgres_send_sync(connection);
    if (rc == 0)
        rc = receive_stretch(connection, &stretch);
    if (rc != 0) {
        postgres_lose(connection, "while COMMIT was under way");
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
    /* Should a word before COMMIT have failed, the transaction is still there. */
    return roll_back(connection) == 0 ? OUTCOME_ALONE : OUTCOME_LOST;
}

static enum outcome commit_or_roll_back(struct sql_connection *connection, size_t count)
{
    struct postgres_error error;

    if (has_anything_to_commit(connection, count))
        return send_commit(connection, &error);
    /* Nothing to lose with the connection, either: every unit has its status. */
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
    /* A unit that was alone has been heard. */
    return count == 1 && outcome == OUTCOME_CAREFUL && connection->tries[0].has_failed
               ? OUTCOME_DONE
               : outcome;
}

/* ---- careful --------------------------------------------------------------------------------- */

/* The window of units sent at once doubles while all goes well; after a failure it is as long as
 * the good run before it. So a batch with one bad unit takes few trips, and in a run of bad ones
 * nothing is run in vain. */
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

/* Undo the unit that failed (and what ran behind it), keep what was before it. */
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

/* In a window a unit that failed but left nothing may stay: there is nothing to undo. */
static enum outcome commit_carefully(
    struct sql_connection *connection, uint32_t count, uint32_t first_failed)
{
    uint32_t window = first_failed + 1; /* up to the one that failed when all ran together */
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

/* Prepared statements that no longer fit the tables. Between transactions only. */
static int refresh(struct sql_connection *connection)
{
    int rc;

    rc = postgres_pipeline_end(connection);
    if (rc == 0)
        rc = postgres_forget_prepared(connection);
    if (rc == 0)
        rc = postgres_pipeline_begin(connection);
    return rc;
}

/* ---- alone ----------------------------------------------------------------------------------- */

static int finish_stretch(struct sql_connection *connection, struct stretch *ret_stretch)
{
    int rc = postgres_send_sync(connection);

    return rc == 0 ? receive_stretch(connection, ret_stretch) : rc;
}

/* The rows of a unit are there, and locked where it asked for that: it decides, and what follows
 * from it runs behind them. */
static int run_decision(
    struct sql_connection *connection, uint32_t index, struct stretch *ret_stretch)
{
    struct postgres_try *try = &connection->tries[index];
    uint32_t first = try->unit->step_count;
    int rc;

    if (sql_unit_make_decision(try->unit) < 0)
        try->has_failed = true;
    else if (has_too_many_values(try->unit))
        fail_try(try, -1, TR_ELIMIT, "a statement has more than 65535 values");
    if (try->has_failed || !sql_unit_stores(try->unit))
        return 0;
    rc = send_steps(connection, index, first);
    return rc == 0 ? finish_stretch(connection, ret_stretch) : rc;
}

/* All of a unit but its COMMIT. */
static int run_one(struct sql_connection *connection, uint32_t index, struct stretch *ret_stretch)
{
    const struct postgres_try *try = &connection->tries[index];
    int rc = postgres_send_control(connection, "BEGIN");

    if (rc == 0)
        rc = send_try(connection, index);
    if (rc == 0)
        rc = finish_stretch(connection, ret_stretch);
    if (rc == 0 && sql_unit_has_decision(try->unit) && !try->has_failed &&
        ret_stretch->error.verdict == POSTGRES_OK)
        rc = run_decision(connection, index, ret_stretch);
    return rc;
}

/* One unit, one transaction. OUTCOME_ALONE asks to be tried again. */
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
        roll_back(connection); /* it has its answer, whatever becomes of the connection */
        return OUTCOME_DONE;
    }
    if (error.verdict == POSTGRES_OK && !try->has_failed) {
        outcome = send_commit(connection, &error);
        if (outcome != OUTCOME_ALONE)
            return outcome;
    } else {
        /* The unit has its verdict; the connection may go, that is noticed by the next. */
        roll_back(connection);
    }
    if (error.verdict == POSTGRES_AGAIN || error.verdict == POSTGRES_STALE) {
        fail_try(try, -1, SQL_EFAILED, error.why); /* stands if this was the last time */
        if (error.verdict == POSTGRES_STALE && refresh(connection) != 0)
            return OUTCOME_LOST;
        return OUTCOME_ALONE;
    }
    if (!try->has_failed)
        fail_try(try, -1, error.verdict == POSTGRES_UNIT ? error.code : SQL_EFAILED,
            error.verdict == POSTGRES_OK ? "the server rolled it back" : error.why);
    return OUTCOME_DONE;
}

/* What is left when the connection goes was not begun, and says so itself: the units before it may
 * be committed, so that TR_ECLOSED for the whole batch would be wrong. */
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
            /* The one in doubt says so itself; those before it are safe. */
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
        int failed = units[i]->failed; /* before it is reset */

        *try = (struct postgres_try){ .unit = units[i] };
        reset_try(try);
        if (failed != 0)
            fail_try(try, -1, failed, "it could not be built whole");
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

/* Of a connection that went while units ran on it. A session that ended in order, because the
 * server was told to stop, cannot be told from one that was ended because of what it did: so it
 * takes more than one loss before a unit is blamed. */
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
        outcome = refresh(connection) != 0 ? OUTCOME_LOST
                                           : commit_together(connection, count, &first_failed);
    if (outcome == OUTCOME_CAREFUL)
        outcome = commit_carefully(connection, count, first_failed);
    if (outcome == OUTCOME_UNKNOWN)
        mark_unknown(connection, count);
    if (outcome == OUTCOME_STALE)
        outcome = refresh(connection) != 0 ? OUTCOME_LOST : OUTCOME_ALONE;
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
        rc = postgres_pipeline_begin(connection);
    outcome = rc == 0 ? run_batch(connection, (uint32_t)count) : OUTCOME_LOST;
    if (outcome == OUTCOME_LOST) {
        fail_all(units, count, TR_ECLOSED, connection->why);
        return rc == 0 ? lost_status(connection) : TR_ECLOSED;
    }
    if (outcome == OUTCOME_UNKNOWN)
        return SQL_EUNKNOWN;
    postgres_pipeline_end(connection); /* if it is lost now, the next batch hears of it */
    return 0;
}

/* ---- reads ----------------------------------------------------------------------------------- */

/* One statement is a snapshot by itself; more share one. The second stretch ends the transaction
 * also when the first was cut short by an error. */
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

/* A snapshot can be refused too (a statement of a dropped table's plan, a cancelled one): once more
 * with fresh plans, then it is the unit's. */
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
            rc = postgres_pipeline_begin(connection);
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
