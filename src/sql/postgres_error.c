/* SPDX-License-Identifier: Apache-2.0 */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "sql/postgres.h"

/* Verdicts by prefix of the SQLSTATE; the longest prefix decides. A class is two characters. */
static const struct {
    const char *prefix;
    enum postgres_verdict verdict;
    int code;
} verdicts[] = {
    /* Class 08 is missing on purpose: a lost connection has no SQLSTATE, and 08P01 is the error of
     * a statement with too few values, which would fail again on every new connection. */
    { "0A000", POSTGRES_STALE, 0 }, /* cached plan must not change result type */
    { "23", POSTGRES_UNIT, SQL_ECONSTRAINT },
    { "26", POSTGRES_STALE, 0 }, /* unknown prepared statement: it was deallocated */
    { "40", POSTGRES_AGAIN, 0 },
    { "40002", POSTGRES_UNIT, SQL_ECONSTRAINT },
    { "53100", POSTGRES_UNIT, SQL_EDISK },
    { "53200", POSTGRES_UNIT, TR_ENOMEM },
    { "53300", POSTGRES_LOST, 0 },
    { "57P0", POSTGRES_LOST, 0 }, /* shutting down, crashed, starting up, dropped */
    { "57P05", POSTGRES_LOST, 0 },
    { "58", POSTGRES_UNIT, SQL_EDISK },
    { "XX001", POSTGRES_UNIT, SQL_EDISK },
    { "XX002", POSTGRES_UNIT, SQL_EDISK },
};

enum postgres_verdict postgres_judge(
    const char *state, bool is_fatal, bool is_writer, int *ret_code)
{
    enum postgres_verdict verdict = POSTGRES_UNIT;
    size_t longest = 0;

    *ret_code = SQL_EFAILED;
    if (is_fatal)
        return POSTGRES_LOST;
    /* read_only_sql_transaction: the server has become a standby. */
    if (is_writer && strcmp(state, "25006") == 0)
        return POSTGRES_LOST;
    for (size_t i = 0; i < sizeof verdicts / sizeof verdicts[0]; i++) {
        size_t size = strlen(verdicts[i].prefix);

        if (size <= longest || strncmp(state, verdicts[i].prefix, size) != 0)
            continue;
        longest = size;
        verdict = verdicts[i].verdict;
        *ret_code = verdict == POSTGRES_UNIT ? verdicts[i].code : SQL_EFAILED;
    }
    return verdict;
}

/* The primary message names tables and constraints. DETAIL contains values and is left out. */
void postgres_error_read(const PGresult *result, bool is_writer, struct postgres_error *ret_error)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    *ret_error = (struct postgres_error){ .code = SQL_EFAILED };
    ret_error->is_fatal =
        severity != NULL && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
    if (state == NULL && PQresultStatus(result) != PGRES_FATAL_ERROR) {
        ret_error->verdict = POSTGRES_UNIT;
        snprintf(ret_error->why, sizeof(ret_error->why), "the statement has no result: %s",
            PQresStatus(PQresultStatus(result)));
        return;
    }
    if (state == NULL) {
        /* A message of libpq itself: the server sent none, so the connection is lost. */
        ret_error->verdict = POSTGRES_LOST;
        postgres_say(ret_error->why, sizeof(ret_error->why), "", PQresultErrorMessage(result));
        return;
    }
    snprintf(ret_error->state, sizeof(ret_error->state), "%s", state);
    ret_error->verdict =
        postgres_judge(ret_error->state, ret_error->is_fatal, is_writer, &ret_error->code);
    snprintf(ret_error->why, sizeof(ret_error->why), "%s: %s", state,
        primary != NULL ? primary : "no message");
}

/* An ERROR at COMMIT aborts the transaction: a failure after the commit record is a PANIC. In doubt
 * are only errors that may interrupt the server between the record and its answer, and internal
 * errors. */
bool postgres_commit_surely_failed(const struct postgres_error *error)
{
    static const char *const in_doubt[] = { "08", "40003", "57", "58", "XX", "" };

    if (error->is_fatal || error->verdict == POSTGRES_LOST)
        return false;
    for (size_t i = 0; in_doubt[i][0] != '\0'; i++)
        if (strncmp(error->state, in_doubt[i], strlen(in_doubt[i])) == 0)
            return false;
    return error->state[0] != '\0';
}

void postgres_say(char *why, size_t why_size, const char *before, const char *text)
{
    int written;

    tr_assert(why_size > 0);
    written = snprintf(why, why_size, "%s%s", before, text != NULL ? text : "");
    if (written < 0)
        why[0] = '\0';
    for (char *at = why; *at != '\0'; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    for (size_t size = strlen(why); size > 0 && why[size - 1] == ' '; size--)
        why[size - 1] = '\0';
}
