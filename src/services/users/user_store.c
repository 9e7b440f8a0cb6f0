/* SPDX-License-Identifier: Apache-2.0 */
/* user_store.c: the units of a user's actor. The statement that stores a write decides which of two
 * writes stays, so a push reads nothing before it writes. */
#include <string.h>

#include "base/assert.h"
#include "base/siphash.h"
#include "services/common/step.h"
#include "services/users/user_job.h"
#include "sql/unit.h"

#define CONFLICT_KEPT_MS (INT64_C(90) * 86400 * 1000)

/* A statement of the calls, too. */
#define USER_STATEMENT(name, sql) const struct sql_statement name = { .text = (sql) }

USER_STATEMENT(user_seq, "SELECT seq FROM user_sync WHERE user_id = $1");
SQL_STATEMENT(count_items, "SELECT COUNT(*) FROM user_items WHERE user_id = $1");
SQL_STATEMENT(advance,
    "INSERT INTO user_sync (user_id, seq) VALUES ($1, $2)"
    " ON CONFLICT (user_id) DO UPDATE SET seq = excluded.seq WHERE user_sync.seq = $3");
/* A device past the limit may push, but is not listed. */
SQL_STATEMENT(note_device,
    "INSERT INTO user_devices (user_id, device, os, model, app_version, pushed_ms)"
    " SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS TEXT),"
    " CAST($5 AS TEXT), CAST($6 AS BIGINT)"
    " WHERE (SELECT COUNT(*) FROM user_devices WHERE user_id = $1 AND device <> $2) <"
    " CAST($7 AS BIGINT)"
    " ON CONFLICT (user_id, device) DO UPDATE SET os = excluded.os, model = excluded.model,"
    " app_version = excluded.app_version, pushed_ms = excluded.pushed_ms");
SQL_STATEMENT(
    forget_conflicts, "DELETE FROM user_conflicts WHERE user_id = $1 AND created_ms < $2");
SQL_STATEMENT(find_session,
    "SELECT 1 FROM user_items WHERE user_id = $1 AND kind = 2 AND item = $2 AND is_deleted = 0");

/* $10 is NULL, or names a session of the user. */
#define HAS_SESSION                                                                                \
    "(CAST($10 AS TEXT) IS NULL OR EXISTS (SELECT 1 FROM user_items AS parent"                     \
    " WHERE parent.user_id = $1 AND parent.kind = 2 AND parent.item = CAST($10 AS TEXT)"           \
    " AND parent.is_deleted = 0))"
/* The incoming write is later. Of equal times, a device's own next write is. */
#define IS_LATER                                                                                   \
    "($5 > user_items.updated_ms OR ($5 = user_items.updated_ms AND $6 = user_items.device))"
#define IS_ANOTHER "($8 <> user_items.body OR $7 <> user_items.is_deleted)"
/* $1 user, $2 kind, $3 item, $4 seq, $5 updated_ms, $6 device, $7 is_deleted, $8 body, $9 now,
 * $10 a session item's session (NULL for the others), $11 the last number that the device has
 * pulled. Notes the losing write of two devices that did not know of each other's. */
SQL_STATEMENT(note_conflict,
    "INSERT INTO user_conflicts (user_id, seq, kind, item, is_incoming_kept, device, updated_ms,"
    " is_deleted, body, created_ms)"
    " SELECT user_id, CAST($4 AS BIGINT), kind, item, CASE WHEN " IS_LATER " THEN 1 ELSE 0 END,"
    " CASE WHEN " IS_LATER " THEN device ELSE CAST($6 AS TEXT) END,"
    " CASE WHEN " IS_LATER " THEN updated_ms ELSE CAST($5 AS BIGINT) END,"
    " CASE WHEN " IS_LATER " THEN is_deleted ELSE CAST($7 AS BIGINT) END,"
    " CASE WHEN " IS_LATER " THEN body ELSE CAST($8 AS TEXT) END, CAST($9 AS BIGINT)"
    " FROM user_items WHERE user_id = $1 AND kind = $2 AND item = $3 AND device <> $6"
    " AND " IS_ANOTHER " AND (NOT " IS_LATER
    " OR (CAST($11 AS BIGINT) >= 0 AND seq > CAST($11 AS BIGINT)))"
    " AND " HAS_SESSION);
SQL_STATEMENT(store,
    "INSERT INTO user_items (user_id, kind, item, seq, updated_ms, device, is_deleted, body,"
    " stored_ms) SELECT CAST($1 AS TEXT), CAST($2 AS BIGINT), CAST($3 AS TEXT), CAST($4 AS BIGINT),"
    " CAST($5 AS BIGINT), CAST($6 AS TEXT), CAST($7 AS BIGINT), CAST($8 AS TEXT),"
    " CAST($9 AS BIGINT) WHERE " HAS_SESSION
    " ON CONFLICT (user_id, kind, item) DO UPDATE SET seq = excluded.seq,"
    " updated_ms = excluded.updated_ms, device = excluded.device,"
    " is_deleted = excluded.is_deleted, body = excluded.body, stored_ms = excluded.stored_ms"
    " WHERE " IS_ANOTHER " AND " IS_LATER);

/* Rows after the number $2: at most $3 rows and $4 bytes, but always the first row. */
USER_STATEMENT(user_pull,
    "SELECT kind, item, seq, updated_ms, stored_ms, is_deleted, body FROM ("
    " SELECT kind, item, seq, updated_ms, stored_ms, is_deleted, body,"
    " CAST(SUM(LENGTH(body) + LENGTH(item) + 200) OVER (ORDER BY seq) AS BIGINT) AS bytes,"
    " ROW_NUMBER() OVER (ORDER BY seq) AS place FROM ("
    "  SELECT kind, item, seq, updated_ms, stored_ms, is_deleted, body FROM user_items"
    "  WHERE user_id = $1 AND seq > $2 ORDER BY seq LIMIT $3) AS page) AS counted"
    " WHERE bytes <= CAST($4 AS BIGINT) OR place = 1 ORDER BY seq");
USER_STATEMENT(user_last_row, "SELECT MAX(seq) FROM user_items WHERE user_id = $1");
USER_STATEMENT(user_conflicts,
    "SELECT seq, kind, item, is_incoming_kept, device, updated_ms, is_deleted, body, created_ms"
    " FROM user_conflicts WHERE user_id = $1 ORDER BY seq DESC LIMIT $2");
USER_STATEMENT(user_count_kinds,
    "SELECT kind, COUNT(*), CAST(SUM(is_deleted) AS BIGINT), MAX(stored_ms) FROM user_items"
    " WHERE user_id = $1 GROUP BY kind ORDER BY kind");
USER_STATEMENT(user_devices,
    "SELECT device, os, model, app_version, pushed_ms FROM user_devices WHERE user_id = $1"
    " ORDER BY pushed_ms DESC, device LIMIT 64");
USER_STATEMENT(user_last_epoch,
    "SELECT epoch FROM user_epochs WHERE user_id = $1 ORDER BY after_seq DESC LIMIT 1");
/* The last number of an epoch; NULL: the epoch is the newest. */
USER_STATEMENT(user_epoch_end,
    "SELECT (SELECT MIN(later.after_seq) FROM user_epochs AS later WHERE later.user_id = $1"
    " AND later.after_seq > mine.after_seq) FROM user_epochs AS mine WHERE mine.user_id = $1"
    " AND mine.epoch = $2 ORDER BY mine.after_seq DESC LIMIT 1");
SQL_STATEMENT(
    note_epoch, "INSERT INTO user_epochs (user_id, after_seq, epoch) VALUES ($1, $2, $3)");
SQL_STATEMENT(forget_epochs,
    "DELETE FROM user_epochs WHERE user_id = $1 AND after_seq < (SELECT MIN(after_seq) FROM ("
    " SELECT after_seq FROM user_epochs WHERE user_id = $1 ORDER BY after_seq DESC LIMIT $2)"
    " AS kept)");
USER_STATEMENT(user_count_conflicts, "SELECT COUNT(*) FROM user_conflicts WHERE user_id = $1");
/* Returns the number of rows if it is at most $2, and no row otherwise. */
SQL_STATEMENT(check_rows,
    "SELECT n FROM (SELECT COUNT(*) AS n FROM user_items WHERE user_id = $1) AS counted"
    " WHERE n <= CAST($2 AS BIGINT)");

/* The key decides which writer runs the unit; no secret is needed for it. */
static struct sql_unit *create_unit(const char *user)
{
    return sql_unit_create(base_siphash((struct base_siphash_key){ 0 }, user, strlen(user)));
}

struct sql_unit *user_unit_load(const char *user)
{
    struct sql_unit *unit = create_unit(user);

    UNIT_STEP(unit, &user_seq, SQL_ROWS_ANY, VALUE_CHARS(user));
    UNIT_STEP(unit, &count_items, SQL_ROWS_ANY, VALUE_CHARS(user));
    UNIT_STEP(unit, &user_last_epoch, SQL_ROWS_ANY, VALUE_CHARS(user));
    return unit;
}

/* ---- a push ---------------------------------------------------------------------------------- */

/* Add the step that notes a conflict or the one that stores the row; both take these values. */
static void put_write(struct sql_unit *unit, const struct sql_statement *statement,
    const struct user_job *job, const struct user_change *change, int64_t seq)
{
    UNIT_STEP(unit, statement, SQL_ROWS_ANY, VALUE_CHARS(job->user), VALUE_INT(change->kind),
        VALUE_TEXT(change->item), VALUE_INT(seq), VALUE_INT(change->updated_ms),
        VALUE_TEXT(job->device), VALUE_INT(change->is_deleted), VALUE_TEXT(change->body),
        VALUE_INT(job->now_ms), VALUE_TEXT(change->session));
}

struct sql_unit *user_unit_push(struct user_job *job, int64_t seq, const char *epoch)
{
    struct sql_unit *unit = create_unit(job->user);
    uint32_t step = 0;

    tr_assert(seq >= 0);
    if (unit == NULL)
        return NULL;
    UNIT_STEP(unit, &advance, 1, VALUE_CHARS(job->user), VALUE_INT(seq + job->change_count),
        VALUE_INT(seq));
    UNIT_STEP(unit, &note_device, SQL_ROWS_ANY, VALUE_CHARS(job->user), VALUE_TEXT(job->device),
        VALUE_TEXT(job->os), VALUE_TEXT(job->model), VALUE_TEXT(job->app_version),
        VALUE_INT(job->now_ms), VALUE_INT(USER_DEVICES_MAX));
    UNIT_STEP(unit, &forget_conflicts, SQL_ROWS_ANY, VALUE_CHARS(job->user),
        VALUE_INT(job->now_ms - CONFLICT_KEPT_MS));
    step = 3;
    for (uint32_t i = 0; i < job->change_count; i++) {
        struct user_change *change = &job->changes[i];

        if (change->kind == USER_SESSION_ITEM) {
            UNIT_STEP(unit, &find_session, SQL_ROWS_ANY, VALUE_CHARS(job->user),
                VALUE_TEXT(change->session));
            step++;
        }
        put_write(unit, &note_conflict, job, change, seq + 1 + i);
        sql_unit_int(unit, job->known_seq);
        put_write(unit, &store, job, change, seq + 1 + i);
        change->step = step + 1;
        step += 2;
    }
    tr_assert(unit->failed != 0 || unit->step_count == step); /* the steps of the job are indexes */
    job->limit_step = 0;
    if (job->rows_max > 0) {
        UNIT_STEP(unit, &check_rows, 1, VALUE_CHARS(job->user), VALUE_INT(job->rows_max));
        job->limit_step = step;
    }
    if (epoch != NULL) {
        UNIT_STEP(unit, &note_epoch, 1, VALUE_CHARS(job->user), VALUE_INT(seq), VALUE_CHARS(epoch));
        UNIT_STEP(
            unit, &forget_epochs, SQL_ROWS_ANY, VALUE_CHARS(job->user), VALUE_INT(USER_EPOCHS_MAX));
    }
    return unit;
}
