/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_pipeline.c: one pipeline on one connection.
 *
 *     start ─► send… ─► sync ─► receive… ─► (send… sync receive…)* ─► end
 *
 * Sending only queues. Receiving flushes the queue and reads at the same time, so that the two
 * sides cannot block each other with full socket buffers. Every wait ends: if no byte moves for
 * POSTGRES_SILENCE_MAX_MS, the connection is given up.
 *
 * Invariants:
 *  1. sent[] has one entry for each expected result, in order; received <= sent_count.
 *  2. A statement is PREPARED_READY only after the server has confirmed it. A statement that the
 *     server skipped after an error is PREPARED_NOT again, and its next use prepares it again.
 *  3. A lost connection stays lost: every call on it returns TR_ECLOSED.
 *
 * A statement is prepared with the types of its first values: the server would guess int4 for
 * `$1 + 1`. NULL fits any type; for a NULL in the first use the server chooses the type, and a
 * later value of another kind is prepared as a second variant. */
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/postgres.h"

int postgres_lose(struct sql_connection *connection, const char *why)
{
    if (!connection->is_lost)
        postgres_say(connection->why, sizeof(connection->why), "connection lost: ", why);
    connection->is_lost = true;
    postgres_session_leave(connection);
    return TR_ECLOSED;
}

static int lose_by_libpq(struct sql_connection *connection)
{
    return postgres_lose(connection, PQerrorMessage(connection->pg));
}

int postgres_pipeline_start(struct sql_connection *connection)
{
    if (connection->is_lost)
        return TR_ECLOSED;
    tr_assert(connection->received == connection->sent_count);
    connection->sent_count = 0;
    connection->received = 0;
    if (PQenterPipelineMode(connection->pg) != 1)
        return lose_by_libpq(connection);
    return 0;
}

int postgres_pipeline_end(struct sql_connection *connection)
{
    if (connection->is_lost)
        return TR_ECLOSED;
    tr_assert(connection->received == connection->sent_count);
    if (PQexitPipelineMode(connection->pg) != 1)
        return lose_by_libpq(connection);
    return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Make room for `count` more entries before sending. */
static int reserve_sent(struct sql_connection *connection, uint32_t count)
{
    uint32_t needed = connection->sent_count + count;
    uint32_t capacity = connection->sent_capacity == 0 ? 256 : connection->sent_capacity;
    struct postgres_sent *sent;

    while (capacity < needed)
        capacity *= 2;
    if (capacity == connection->sent_capacity)
        return 0;
    sent = base_realloc(connection->sent, capacity * sizeof(*sent));
    if (sent == NULL)
        return TR_ENOMEM;
    connection->sent = sent;
    connection->sent_capacity = capacity;
    return 0;
}

static void note_sent(struct sql_connection *connection, struct postgres_sent sent)
{
    tr_assert(connection->sent_count < connection->sent_capacity);
    connection->sent[connection->sent_count++] = sent;
}

int postgres_send_control(struct sql_connection *connection, const char *text)
{
    int rc;

    if (connection->is_lost)
        return TR_ECLOSED;
    rc = reserve_sent(connection, 1);
    if (rc != 0)
        return rc;
    if (PQsendQueryParams(connection->pg, text, 0, NULL, NULL, NULL, NULL, 1) != 1)
        return lose_by_libpq(connection);
    note_sent(connection, (struct postgres_sent){ .kind = SENT_CONTROL });
    return 0;
}

int postgres_send_sync(struct sql_connection *connection)
{
    int rc;

    if (connection->is_lost)
        return TR_ECLOSED;
    rc = reserve_sent(connection, 1);
    if (rc != 0)
        return rc;
    if (PQpipelineSync(connection->pg) != 1)
        return lose_by_libpq(connection);
    note_sent(connection, (struct postgres_sent){ .kind = SENT_SYNC });
    return 0;
}

/* ---- prepared statements --------------------------------------------------------------------- */

static struct postgres_prepared **bucket_of(
    struct sql_connection *connection, const struct sql_statement *statement)
{
    uint64_t mixed = (uint64_t)(uintptr_t)statement * UINT64_C(0x9E3779B97F4A7C15);

    return &connection->buckets[mixed >> 57];
}
_Static_assert(POSTGRES_BUCKETS == 1 << (64 - 57), "bucket_of takes the top bits");

static bool prepared_fits(const struct postgres_prepared *prepared,
    const struct sql_statement *statement, const struct sql_value *values, uint32_t value_count)
{
    if (prepared->statement != statement || prepared->value_count != value_count)
        return false;
    for (uint32_t i = 0; i < value_count; i++)
        if (values[i].kind != SQL_NULL && (uint8_t)values[i].kind != prepared->kinds[i])
            return false;
    return true;
}

/* Only plain statements report all changed rows. */
static bool hides_changes(const char *text)
{
    static const char *const plain[] = { "SELECT", "INSERT", "UPDATE", "DELETE" };

    text += strspn(text, " \t\r\n");
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strncasecmp(text, plain[i], strlen(plain[i])) == 0)
            return false;
    return true;
}

static int find_prepared(struct sql_connection *connection, const struct sql_unit *unit,
    const struct sql_step *step, struct postgres_prepared **ret_prepared)
{
    struct postgres_prepared **bucket = bucket_of(connection, step->statement);
    const struct sql_value *values = unit->values + step->value_first;
    struct postgres_prepared *prepared;

    for (prepared = *bucket; prepared != NULL; prepared = prepared->next)
        if (prepared_fits(prepared, step->statement, values, step->value_count)) {
            *ret_prepared = prepared;
            return 0;
        }
    prepared = base_calloc(sizeof(*prepared) + step->value_count);
    if (prepared == NULL)
        return TR_ENOMEM;
    prepared->statement = step->statement;
    prepared->number = connection->prepared_number++;
    prepared->hides_changes = hides_changes(step->statement->text);
    prepared->value_count = step->value_count;
    for (uint32_t i = 0; i < step->value_count; i++)
        prepared->kinds[i] = (uint8_t)values[i].kind;
    prepared->next = *bucket;
    *bucket = prepared;
    connection->prepared_count++;
    *ret_prepared = prepared;
    return 0;
}

static void drop_prepared(struct sql_connection *connection)
{
    for (size_t i = 0; i < POSTGRES_BUCKETS; i++) {
        struct postgres_prepared *next;

        for (struct postgres_prepared *at = connection->buckets[i]; at != NULL; at = next) {
            next = at->next;
            base_free(at);
        }
        connection->buckets[i] = NULL;
    }
    connection->prepared_count = 0;
}

int postgres_forget_prepared(struct sql_connection *connection)
{
    PGresult *result;
    bool is_done;

    if (connection->is_lost)
        return TR_ECLOSED;
    tr_assert(connection->received == connection->sent_count);
    drop_prepared(connection);
    result = postgres_exec(connection->pg, "DEALLOCATE ALL");
    is_done = PQresultStatus(result) == PGRES_COMMAND_OK;
    PQclear(result);
    return is_done ? 0 : lose_by_libpq(connection);
}

/* ---- the statements of a unit ---------------------------------------------------------------- */

static const char *text_of(const struct sql_statement *statement)
{
    return statement->locking != NULL ? statement->locking : statement->text;
}

static int send_step(struct sql_connection *connection, const struct sql_unit *unit, uint32_t index,
    uint32_t step_index, struct postgres_prepared *prepared)
{
    const struct sql_step *step = &unit->steps[step_index];
    struct postgres_values *values = &connection->values;
    char name[16];

    snprintf(name, sizeof(name), "t%u", prepared->number);
    if (prepared->state == PREPARED_NOT) {
        if (PQsendPrepare(connection->pg, name, text_of(step->statement), (int)step->value_count,
                values->types) != 1)
            return lose_by_libpq(connection);
        prepared->state = PREPARED_SENT;
        note_sent(connection,
            (struct postgres_sent){
                .kind = SENT_PREPARE, .unit = index, .step = step_index, .prepared = prepared });
    }
    if (PQsendQueryPrepared(connection->pg, name, (int)step->value_count, values->at, values->sizes,
            values->formats, 1) != 1)
        return lose_by_libpq(connection);
    note_sent(connection,
        (struct postgres_sent){
            .kind = SENT_STEP, .unit = index, .step = step_index, .prepared = prepared });
    return 0;
}

int postgres_send_unit(
    struct sql_connection *connection, const struct sql_unit *unit, uint32_t index, uint32_t first)
{
    struct postgres_prepared *prepared;
    int rc;

    if (connection->is_lost)
        return TR_ECLOSED;
    /* Allocate first: a unit is sent whole or not at all. */
    rc = reserve_sent(connection, (unit->step_count - first) * 2);
    if (rc != 0)
        return rc;
    for (uint32_t step = first; step < unit->step_count; step++) {
        rc = find_prepared(connection, unit, &unit->steps[step], &prepared);
        if (rc != 0)
            return rc;
        rc = postgres_values_fill(&connection->values, unit, &unit->steps[step]);
        if (rc != 0)
            return rc;
    }
    for (uint32_t step = first; step < unit->step_count; step++) {
        rc = find_prepared(connection, unit, &unit->steps[step], &prepared);
        tr_assert(rc == 0);
        rc = postgres_values_fill(&connection->values, unit, &unit->steps[step]);
        tr_assert(rc == 0);
        rc = send_step(connection, unit, index, step, prepared);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Wait until the socket is ready, at most POSTGRES_SILENCE_MAX_MS. */
static int wait_for_socket(struct sql_connection *connection, short events)
{
    struct pollfd wait = { .fd = PQsocket(connection->pg), .events = events };
    int count;

    do
        count = poll(&wait, 1, POSTGRES_SILENCE_MAX_MS);
    while (count < 0);
    if (count == 0)
        return postgres_lose(connection, "the server does not answer");
    if ((wait.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && PQconsumeInput(connection->pg) != 1)
        return lose_by_libpq(connection);
    return 0;
}

static int flush_and_fill(struct sql_connection *connection)
{
    int rc;

    for (;;) {
        int left = PQflush(connection->pg);

        /* After a failed write, the server's reason may still be readable. */
        if (left < 0 && PQconsumeInput(connection->pg) != 1)
            return lose_by_libpq(connection);
        if (PQisBusy(connection->pg) == 0)
            return 0;
        rc = wait_for_socket(connection, left > 0 ? POLLIN | POLLOUT : POLLIN);
        if (rc != 0)
            return rc;
    }
}

static void note_prepared(const struct postgres_sent *sent, const PGresult *result)
{
    if (sent->kind != SENT_PREPARE)
        return;
    tr_assert(sent->prepared->state == PREPARED_SENT);
    sent->prepared->state =
        PQresultStatus(result) == PGRES_COMMAND_OK ? PREPARED_READY : PREPARED_NOT;
}

int postgres_receive(
    struct sql_connection *connection, struct postgres_sent *ret_sent, PGresult **ret_result)
{
    struct postgres_sent *sent;
    PGresult *result;
    PGresult *end;
    int rc;

    if (connection->received == connection->sent_count)
        return TR_ENOENT;
    if (connection->is_lost)
        return TR_ECLOSED;
    sent = &connection->sent[connection->received];
    rc = flush_and_fill(connection);
    if (rc != 0)
        return rc;
    result = PQgetResult(connection->pg);
    if (result == NULL)
        return lose_by_libpq(connection);
    if ((sent->kind == SENT_SYNC) != (PQresultStatus(result) == PGRES_PIPELINE_SYNC)) {
        PQclear(result);
        return PQstatus(connection->pg) == CONNECTION_BAD
                   ? lose_by_libpq(connection)
                   : postgres_lose(connection, "results are out of step");
    }
    if (sent->kind != SENT_SYNC) {
        /* libpq returns NULL after each result; it may have to wait for it. */
        if (PQstatus(connection->pg) != CONNECTION_BAD) {
            rc = flush_and_fill(connection);
            end = rc == 0 ? PQgetResult(connection->pg) : NULL;
            PQclear(end);
        }
    }
    note_prepared(sent, result);
    connection->received++;
    *ret_sent = *sent;
    *ret_result = result;
    return 0;
}

void postgres_pipeline_free(struct sql_connection *connection)
{
    drop_prepared(connection);
    postgres_values_free(&connection->values);
    base_free(connection->sent);
    connection->sent = NULL;
}
