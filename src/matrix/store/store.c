/* SPDX-License-Identifier: Apache-2.0 */
/* store.c: rows by the lists of store.h, and the steps with a condition. */
#include "matrix/store/store.h"

#include "base/assert.h"

/* The members of a row are these types alone, so they follow each other without padding. */
enum mxstore_type { MXSTORE_INT, MXSTORE_TEXT, MXSTORE_BLOB };
_Static_assert(sizeof(struct span) % sizeof(int64_t) == 0, "no padding between members");

struct mxstore_table {
    const uint8_t *columns; /* enum mxstore_type */
    size_t count;
    size_t size;   /* of the struct */
    bool replaces; /* storing a row that is there changes it: exactly one row changes */
    struct sql_statement put;
    struct sql_statement get;
    struct sql_statement all;
};

/* ---- texts ------------------------------------------------------------------------------------ */

#define NAME_FIRST(type, name) #name
#define NAME_NEXT(type, name) ", " #name
#define SET_FIRST(type, name) #name " = excluded." #name
#define SET_NEXT(type, name) ", " #name " = excluded." #name

#define V3 "$1, $2, $3"
#define V4 V3 ", $4"
#define V5 V4 ", $5"
#define V6 V5 ", $6"
#define V7 V6 ", $7"
#define V8 V7 ", $8"
#define V9 V8 ", $9"
#define V11 V9 ", $10, $11"
#define V12 V11 ", $12"
#define V13 V12 ", $13"
#define V15 V13 ", $14, $15"

#define INSERT(list, name, values)                                                                 \
    "INSERT INTO mx_" name " (" list(NAME_FIRST, NAME_NEXT) ") VALUES (" values ")"
#define PUT(list, name, values, key)                                                               \
    INSERT(list, name, values) " ON CONFLICT (" key ") DO UPDATE SET " list(SET_FIRST, SET_NEXT)
#define SELECT(list, name) "SELECT " list(NAME_FIRST, NAME_NEXT) " FROM mx_" name

/* ---- tables ----------------------------------------------------------------------------------- */

#define TYPE(type, name) MXSTORE_##type,
#define COLUMNS(list, noun) static const uint8_t noun##_columns[] = { list(TYPE, TYPE) };
MXSTORE_ROWS(COLUMNS)
MXSTORE_VIEWS(COLUMNS)
#define VIEW(list, noun)                                                                           \
    .columns = noun##_columns, .count = sizeof noun##_columns, .size = sizeof(struct mxstore_##noun)
#define TABLE(list, noun) VIEW(list, noun), .all.text = SELECT(list, #noun) " ORDER BY 1, 2"

/* clang-format off */
static const struct mxstore_table tables[MXSTORE_KINDS] = {
    [MXSTORE_IS_session] = {
        TABLE(MXSTORE_SESSION, session),
        .replaces = true,
        .put.text = PUT(MXSTORE_SESSION, "session", V11, "id")
            " WHERE mx_session.user_id = excluded.user_id"
            " AND mx_session.device_id = excluded.device_id",
        .get.text = SELECT(MXSTORE_SESSION, "session") " WHERE CAST($1 AS TEXT) IS NOT NULL",
    },
    [MXSTORE_IS_user] = {
        TABLE(MXSTORE_USER, user),
        .replaces = true,
        .put.text = PUT(MXSTORE_USER, "user", V3, "user_id"),
        .get.text = SELECT(MXSTORE_USER, "user") " WHERE user_id = $1",
    },
    [MXSTORE_IS_device] = {
        TABLE(MXSTORE_DEVICE, device),
        .replaces = true,
        .put.text = PUT(MXSTORE_DEVICE, "device", V8, "user_id, device_id")
            " WHERE mx_device.identity_key = excluded.identity_key"
            " AND mx_device.signing_key = excluded.signing_key",
        .get.text = SELECT(MXSTORE_DEVICE, "device") " WHERE user_id = $1 ORDER BY device_id",
    },
    [MXSTORE_IS_olm] = {
        TABLE(MXSTORE_OLM, olm),
        .replaces = true,
        .put.text = PUT(MXSTORE_OLM, "olm", V5, "identity_key, session_id"),
        .get.text = SELECT(MXSTORE_OLM, "olm")
            " WHERE identity_key = $1 ORDER BY received_ms DESC, session_id",
    },
    [MXSTORE_IS_outbound] = {
        TABLE(MXSTORE_OUTBOUND, outbound),
        .replaces = true,
        .put.text = PUT(MXSTORE_OUTBOUND, "outbound", V5, "room_id")
            " WHERE mx_outbound.session_id <> excluded.session_id"
            " OR mx_outbound.message_count <= excluded.message_count",
        .get.text = SELECT(MXSTORE_OUTBOUND, "outbound") " WHERE room_id = $1",
    },
    [MXSTORE_IS_share] = {
        TABLE(MXSTORE_SHARE, share),
        .replaces = true,
        .put.text = PUT(MXSTORE_SHARE, "share", V6, "session_id, user_id, device_id"),
        .get.text = SELECT(MXSTORE_SHARE, "share")
            " WHERE session_id = $1 ORDER BY user_id, device_id",
    },
    [MXSTORE_IS_inbound] = {
        TABLE(MXSTORE_INBOUND, inbound),
        .replaces = true,
        .put.text = PUT(MXSTORE_INBOUND, "inbound", V9, "room_id, session_id, sender_key"),
        .get.text = SELECT(MXSTORE_INBOUND, "inbound")
            " WHERE room_id = $1 ORDER BY session_id, sender_key",
    },
    [MXSTORE_IS_room] = {
        TABLE(MXSTORE_ROOM, room),
        .replaces = true,
        .put.text = INSERT(MXSTORE_ROOM, "room", V12)
            " ON CONFLICT (room_id) DO UPDATE SET membership = excluded.membership,"
            " is_encrypted = CASE WHEN mx_room.is_encrypted <> 0 THEN mx_room.is_encrypted"
            " ELSE excluded.is_encrypted END, rotation_ms = excluded.rotation_ms,"
            " rotation_messages = excluded.rotation_messages,"
            " is_sync_room = excluded.is_sync_room, name = excluded.name,"
            " inviter = excluded.inviter, algorithm = excluded.algorithm,"
            " own_level = excluded.own_level, invite_level = excluded.invite_level,"
            " state_level = excluded.state_level",
        .get.text = SELECT(MXSTORE_ROOM, "room") " WHERE room_id = $1",
    },
    [MXSTORE_IS_event] = {
        TABLE(MXSTORE_EVENT, event),
        .put.text = INSERT(MXSTORE_EVENT, "event", V15) " ON CONFLICT (event_id) DO NOTHING",
        .get.text = SELECT(MXSTORE_EVENT, "event") " WHERE event_id = $1",
    },
    [MXSTORE_IS_outbox] = {
        TABLE(MXSTORE_OUTBOX, outbox),
        .replaces = true,
        .put.text = PUT(MXSTORE_OUTBOX, "outbox", V13, "txn_id"),
        .get.text = SELECT(MXSTORE_OUTBOX, "outbox") " WHERE txn_id = $1",
    },
    [MXSTORE_IS_gap] = {
        TABLE(MXSTORE_GAP, gap),
        .replaces = true,
        .put.text = PUT(MXSTORE_GAP, "gap", V4, "room_id, from_token"),
        .get.text = SELECT(MXSTORE_GAP, "gap") " WHERE room_id = $1 ORDER BY created_ms, from_token",
    },
    [MXSTORE_IS_withheld] = {
        TABLE(MXSTORE_WITHHELD, withheld),
        .replaces = true,
        .put.text = PUT(MXSTORE_WITHHELD, "withheld", V5, "room_id, session_id, sender"),
        .get.text = SELECT(MXSTORE_WITHHELD, "withheld")
            " WHERE room_id = $1 ORDER BY session_id, sender",
    },
    [MXSTORE_IS_key_request] = {
        TABLE(MXSTORE_KEY_REQUEST, key_request),
        .replaces = true,
        .put.text = PUT(MXSTORE_KEY_REQUEST, "key_request", V5, "room_id, session_id"),
        .get.text = SELECT(MXSTORE_KEY_REQUEST, "key_request")
            " WHERE room_id = $1 ORDER BY session_id",
    },
    [MXSTORE_IS_verification] = {
        TABLE(MXSTORE_VERIFICATION, verification),
        .replaces = true,
        .put.text = PUT(MXSTORE_VERIFICATION, "verification", V5, "transaction_id"),
        .get.text = SELECT(MXSTORE_VERIFICATION, "verification") " WHERE transaction_id = $1",
    },
    [MXSTORE_IS_token] = {
        VIEW(MXSTORE_TOKEN, token),
        .get.text = SELECT(MXSTORE_TOKEN, "session") " WHERE CAST($1 AS TEXT) IS NOT NULL",
    },
    [MXSTORE_IS_cursor] = {
        VIEW(MXSTORE_CURSOR, cursor),
        .get.text = SELECT(MXSTORE_CURSOR, "room") " WHERE room_id = $1",
    },
    [MXSTORE_IS_readable] = { VIEW(MXSTORE_READABLE, readable) },
    [MXSTORE_IS_unread] = { VIEW(MXSTORE_UNREAD, unread) },
    [MXSTORE_IS_unread_count] = { VIEW(MXSTORE_UNREAD_COUNT, unread_count) },
};
/* clang-format on */

/* ---- rows ------------------------------------------------------------------------------------- */

static void mxstore_add_bytes(struct sql_unit *unit, uint8_t type, struct span bytes)
{
    if (bytes.at == NULL)
        sql_unit_null(unit);
    else if (type == MXSTORE_TEXT)
        sql_unit_text(unit, bytes);
    else
        sql_unit_blob(unit, bytes.at, bytes.size);
}

void mxstore_put(struct sql_unit *unit, enum mxstore_kind kind, const void *row)
{
    const struct mxstore_table *table = &tables[kind];
    const char *member = row;

    tr_assert(kind < MXSTORE_KINDS);
    tr_assert(table->put.text != NULL); /* cursors have steps of their own */
    sql_unit_step(unit, &table->put, table->replaces ? 1 : SQL_ROWS_ANY);
    for (size_t i = 0; i < table->count; i++) {
        if (table->columns[i] == MXSTORE_INT) {
            sql_unit_int(unit, *(const int64_t *)member);
            member += sizeof(int64_t);
        } else {
            mxstore_add_bytes(unit, table->columns[i], *(const struct span *)member);
            member += sizeof(struct span);
        }
    }
    tr_assert(member == (const char *)row + table->size);
}

void mxstore_get(struct sql_unit *unit, enum mxstore_kind kind, struct span key)
{
    tr_assert(kind < MXSTORE_KINDS);
    tr_assert(tables[kind].get.text != NULL);
    sql_unit_step(unit, &tables[kind].get, SQL_ROWS_ANY);
    sql_unit_text(unit, key);
}

void mxstore_list(struct sql_unit *unit, enum mxstore_kind kind)
{
    tr_assert(kind < MXSTORE_KINDS);
    tr_assert(tables[kind].all.text != NULL);
    sql_unit_step(unit, &tables[kind].all, SQL_ROWS_ANY);
}

void mxstore_row(
    const struct sql_unit *unit, uint32_t step, uint32_t row, enum mxstore_kind kind, void *ret_row)
{
    const struct mxstore_table *table = &tables[kind];
    char *member = ret_row;

    tr_assert(kind < MXSTORE_KINDS);
    tr_assert(row < sql_unit_rows(unit, step));
    for (uint32_t i = 0; i < table->count; i++) {
        if (table->columns[i] == MXSTORE_INT) {
            *(int64_t *)member = sql_row_int(unit, step, row, i);
            member += sizeof(int64_t);
        } else {
            *(struct span *)member = sql_row_is_null(unit, step, row, i)
                                         ? (struct span){ NULL, 0 }
                                         : sql_row_bytes(unit, step, row, i);
            member += sizeof(struct span);
        }
    }
    tr_assert(member == (char *)ret_row + table->size);
}

const char *mxstore_proof_text(int64_t proof)
{
#define PROOF_TEXT(name, text) text,
    static const char *const proof_texts[] = { MXSTORE_PROOFS(PROOF_TEXT) };

    return proof_texts[proof > 0 && proof < MXSTORE_PROOF_COUNT ? proof : MXSTORE_BY_UNKNOWN];
}

/* ---- steps with a condition ------------------------------------------------------------------- */

SQL_STATEMENT(advance_token,
    "UPDATE mx_session SET next_batch = $2 WHERE COALESCE(next_batch, '') = COALESCE($1, '')");
SQL_STATEMENT(note_index,
    "INSERT INTO mx_index (session_id, message_index, event_id) VALUES ($1, $2, $3)"
    " ON CONFLICT (session_id, message_index) DO UPDATE SET event_id = excluded.event_id"
    " WHERE mx_index.event_id = excluded.event_id");
SQL_STATEMENT(claim_index,
    "INSERT INTO mx_index (session_id, message_index, event_id) VALUES ($1, $2, $3)"
    " ON CONFLICT (session_id, message_index) DO NOTHING");
SQL_STATEMENT(refuse_replay,
    "UPDATE mx_event SET status = 5, reason = $4, body = '' WHERE event_id = $3 AND status <= 1"
    " AND NOT EXISTS (SELECT 1 FROM mx_index i WHERE i.session_id = $1 AND i.message_index = $2"
    " AND i.event_id = mx_event.event_id)");
SQL_STATEMENT(release_event,
    "UPDATE mx_event SET status = 1, reason = 0, type = $2, body = $3, seq = $4"
    ", proof = $5, device_id = $6, identity_key = $7, is_own = $8"
    " WHERE event_id = $1 AND status = 0");
SQL_STATEMENT(
    judge_held, "UPDATE mx_event SET status = $2, reason = $3 WHERE event_id = $1 AND status = 0");
/* The column after those of the list is the revision. */
SQL_STATEMENT(get_held,
    "SELECT " MXSTORE_EVENT(NAME_FIRST, NAME_NEXT) ", (SELECT floor_revision FROM mx_room r"
                                                   " WHERE r.room_id = $1) FROM mx_event WHERE "
                                                   "room_id = $1 AND status = 0 AND seq > $2"
                                                   " ORDER BY seq LIMIT $3");
/* The column after those of the list is the proof as it is now. */
#define PROOF_NOW                                                                                  \
    "CASE WHEN proof BETWEEN 3 AND 6 THEN COALESCE((SELECT CASE WHEN d.is_deleted <> 0"            \
    " OR d.identity_key <> mx_event.identity_key THEN 6 ELSE 3 + d.trust END FROM mx_device d"     \
    " WHERE d.user_id = mx_event.sender AND d.device_id = mx_event.device_id), 6) ELSE proof END"
SQL_STATEMENT(get_events,
    "SELECT " MXSTORE_EVENT(NAME_FIRST, NAME_NEXT) ", " PROOF_NOW " FROM mx_event WHERE seq > $1"
                                                   " AND status BETWEEN 1 AND 4 AND is_own <= $3"
                                                   " ORDER BY seq LIMIT $2");
SQL_STATEMENT(get_unread, SELECT(MXSTORE_UNREAD, "event") " WHERE status IN (0, 5) AND seq > $1"
                                                          " ORDER BY seq LIMIT $2");
SQL_STATEMENT(count_unread, "SELECT status, reason, COUNT(*) FROM mx_event WHERE status IN (0, 5)"
                            " GROUP BY status, reason ORDER BY status, reason");
SQL_STATEMENT(get_last_seq, "SELECT COALESCE(MAX(seq), 0) FROM mx_event");
SQL_STATEMENT(count_unsent, "SELECT COUNT(CASE WHEN sending <= 1 THEN 1 END),"
                            " COUNT(CASE WHEN sending = 3 THEN 1 END) FROM mx_outbox");
SQL_STATEMENT(prune_outbox, "DELETE FROM mx_outbox WHERE sending = $1 AND created_ms < $2");
SQL_STATEMENT(close_gap, "DELETE FROM mx_gap WHERE room_id = $1 AND from_token = $2");
SQL_STATEMENT(use_inbound, "UPDATE mx_inbound SET used = $4 WHERE room_id = $1 AND session_id = $2"
                           " AND sender_key = $3");
SQL_STATEMENT(drop_inbound, "DELETE FROM mx_inbound WHERE room_id = $1 AND session_id = $2"
                            " AND sender_key = $3");
SQL_STATEMENT(drop_olm, "DELETE FROM mx_olm WHERE identity_key = $1"
                        " AND session_id = COALESCE($2, session_id)");
SQL_STATEMENT(drop_withheld, "DELETE FROM mx_withheld WHERE room_id = $1 AND session_id = $2"
                             " AND sender = $3");
SQL_STATEMENT(
    drop_key_request, "DELETE FROM mx_key_request WHERE room_id = $1 AND session_id = $2");
/* Transaction ids are "m" and a number that only grows (session.c). */
#define TXN_NUMBER "CAST(SUBSTR(txn_id, 2) AS BIGINT)"
SQL_STATEMENT(get_unsent,
    SELECT(MXSTORE_OUTBOX, "outbox") " WHERE sending <= 1 AND " TXN_NUMBER
                                     " IN (SELECT MIN(" TXN_NUMBER
                                     ") FROM mx_outbox WHERE sending <= 1"
                                     " GROUP BY room_id) ORDER BY " TXN_NUMBER " LIMIT $1");
SQL_STATEMENT(get_outbox,
    SELECT(MXSTORE_OUTBOX, "outbox") " WHERE sending <> 2 AND " TXN_NUMBER
                                     " > $1 ORDER BY " TXN_NUMBER " LIMIT $2");
SQL_STATEMENT(set_body, "UPDATE mx_outbox SET type = $2, body = $3 WHERE txn_id = $1"
                        " AND sending = 0 AND body IS NULL");
SQL_STATEMENT(fail_outbox,
    "UPDATE mx_outbox SET sending = 3, reason = $2 WHERE txn_id = $1 AND sending <= 1");
SQL_STATEMENT(delay_outbox,
    "UPDATE mx_outbox SET sending = 0, reason = $2 WHERE txn_id = $1 AND sending = 1");
SQL_STATEMENT(retry_outbox, "UPDATE mx_outbox SET sending = 0, attempts = 0, reason = NULL"
                            " WHERE txn_id = $1 AND sending <> 2");
SQL_STATEMENT(drop_outbox, "DELETE FROM mx_outbox WHERE txn_id = $1 AND sending <> 2");
SQL_STATEMENT(claim_outbox,
    "UPDATE mx_outbox SET sending = 1, lease_until_ms = $3, attempts = attempts + 1"
    " WHERE txn_id = $1 AND (sending = 0 OR (sending = 1 AND lease_until_ms <= $2))");
SQL_STATEMENT(sent_outbox,
    "UPDATE mx_outbox SET sending = 2, event_id = $2 WHERE txn_id = $1 AND sending = 1");
SQL_STATEMENT(
    clear_outdated, "UPDATE mx_user SET is_outdated = 0 WHERE user_id = $1 AND change = $2");
SQL_STATEMENT(move_marker,
    "UPDATE mx_room SET marker_event = $2, marker_ms = $3 WHERE room_id = $1 AND marker_ms <= $3"
    " AND floor_ms > $3 AND NOT EXISTS (SELECT 1 FROM mx_gap g WHERE g.room_id = $1)");
SQL_STATEMENT(lower_floor, "UPDATE mx_room SET floor_revision = floor_revision + 1,"
                           " floor_ms = CASE WHEN floor_ms > $2 THEN $2 ELSE floor_ms END"
                           " WHERE room_id = $1");
SQL_STATEMENT(raise_floor,
    "UPDATE mx_room SET floor_ms = $3 WHERE room_id = $1 AND floor_revision = $2"
    " AND floor_ms <= $3");

void mxstore_advance_token(struct sql_unit *unit, struct span from, struct span to)
{
    tr_assert(to.size > 0);
    sql_unit_step(unit, &advance_token, 1);
    mxstore_add_bytes(unit, MXSTORE_TEXT, from);
    sql_unit_text(unit, to);
}

void mxstore_note_index(
    struct sql_unit *unit, struct span session_id, int64_t message_index, struct span event_id)
{
    sql_unit_step(unit, &note_index, 1);
    sql_unit_text(unit, session_id);
    sql_unit_int(unit, message_index);
    sql_unit_text(unit, event_id);
}

void mxstore_guard_index(struct sql_unit *unit, struct span session_id, int64_t message_index,
    struct span event_id, int reason)
{
    static const struct sql_statement *const steps[] = { &claim_index, &refuse_replay };

    _Static_assert(MXSTORE_ABANDONED == 5 && MXSTORE_HELD == 0 && MXSTORE_ENQUEUED == 1, "in SQL");
    for (size_t i = 0; i < 2; i++) {
        sql_unit_step(unit, steps[i], SQL_ROWS_ANY);
        sql_unit_text(unit, session_id);
        sql_unit_int(unit, message_index);
        sql_unit_text(unit, event_id);
    }
    sql_unit_int(unit, reason);
}

void mxstore_release_event(struct sql_unit *unit, const struct mxstore_event *row)
{
    sql_unit_step(unit, &release_event, SQL_ROWS_ANY);
    sql_unit_text(unit, row->event_id);
    sql_unit_text(unit, row->type);
    sql_unit_blob(unit, row->body.at, row->body.size);
    sql_unit_int(unit, row->seq);
    sql_unit_int(unit, row->proof);
    mxstore_add_bytes(unit, MXSTORE_TEXT, row->device_id);
    mxstore_add_bytes(unit, MXSTORE_TEXT, row->identity_key);
    sql_unit_int(unit, row->is_own);
}

void mxstore_get_events(struct sql_unit *unit, int64_t after_seq, uint32_t count_max, bool own)
{
    _Static_assert(MXSTORE_APPLIED == 4, "in SQL");
    _Static_assert(MXSTORE_BY_UNVERIFIED == 3 && MXSTORE_BY_GONE == 6, "in SQL");
    _Static_assert(MXSTORE_BY_UNVERIFIED + MXSTORE_VERIFIED == MXSTORE_BY_VERIFIED &&
                       MXSTORE_BY_UNVERIFIED + MXSTORE_BLOCKED == MXSTORE_BY_BLOCKED,
        "in SQL");
    sql_unit_step(unit, &get_events, SQL_ROWS_ANY);
    sql_unit_int(unit, after_seq);
    sql_unit_int(unit, count_max);
    sql_unit_int(unit, own);
}

void mxstore_get_unread(struct sql_unit *unit, int64_t after_seq, uint32_t count_max)
{
    _Static_assert(MXSTORE_HELD == 0 && MXSTORE_ABANDONED == 5, "in SQL");
    sql_unit_step(unit, &get_unread, SQL_ROWS_ANY);
    sql_unit_int(unit, after_seq);
    sql_unit_int(unit, count_max);
}

void mxstore_count_unread(struct sql_unit *unit)
{
    sql_unit_step(unit, &count_unread, SQL_ROWS_ANY);
}

void mxstore_get_unsent(struct sql_unit *unit, uint32_t count_max)
{
    _Static_assert(MXSTORE_PENDING == 0 && MXSTORE_SENDING == 1, "in SQL");
    sql_unit_step(unit, &get_unsent, SQL_ROWS_ANY);
    sql_unit_int(unit, count_max);
}

void mxstore_get_outbox(struct sql_unit *unit, int64_t after, uint32_t count_max)
{
    _Static_assert(MXSTORE_SENT == 2 && MXSTORE_FAILED == 3, "in SQL");
    sql_unit_step(unit, &get_outbox, SQL_ROWS_ANY);
    sql_unit_int(unit, after);
    sql_unit_int(unit, count_max);
}

void mxstore_set_body(struct sql_unit *unit, struct span txn_id, struct span type, struct span body)
{
    sql_unit_step(unit, &set_body, 1);
    sql_unit_text(unit, txn_id);
    sql_unit_text(unit, type);
    sql_unit_blob(unit, body.at, body.size);
}

void mxstore_fail_outbox(struct sql_unit *unit, struct span txn_id, struct span reason)
{
    sql_unit_step(unit, &fail_outbox, 1);
    sql_unit_text(unit, txn_id);
    sql_unit_text(unit, reason);
}

void mxstore_delay_outbox(struct sql_unit *unit, struct span txn_id, struct span reason)
{
    sql_unit_step(unit, &delay_outbox, 1);
    sql_unit_text(unit, txn_id);
    sql_unit_text(unit, reason);
}

void mxstore_retry_outbox(struct sql_unit *unit, struct span txn_id)
{
    sql_unit_step(unit, &retry_outbox, 1);
    sql_unit_text(unit, txn_id);
}

void mxstore_drop_outbox(struct sql_unit *unit, struct span txn_id)
{
    sql_unit_step(unit, &drop_outbox, 1);
    sql_unit_text(unit, txn_id);
}

void mxstore_judge_held(
    struct sql_unit *unit, struct span event_id, enum mxstore_status status, int reason)
{
    tr_assert(status == MXSTORE_HELD || status == MXSTORE_ABANDONED);
    sql_unit_step(unit, &judge_held, SQL_ROWS_ANY);
    sql_unit_text(unit, event_id);
    sql_unit_int(unit, status);
    sql_unit_int(unit, reason);
}

void mxstore_get_held(
    struct sql_unit *unit, struct span room_id, int64_t after_seq, uint32_t count_max)
{
    sql_unit_step(unit, &get_held, SQL_ROWS_ANY);
    sql_unit_text(unit, room_id);
    sql_unit_int(unit, after_seq);
    sql_unit_int(unit, count_max);
}

int64_t mxstore_held_revision(const struct sql_unit *unit, uint32_t step)
{
    return sql_row_int(unit, step, 0, (uint32_t)tables[MXSTORE_IS_event].count);
}

void mxstore_get_last_seq(struct sql_unit *unit)
{
    sql_unit_step(unit, &get_last_seq, 1);
}

void mxstore_count_unsent(struct sql_unit *unit)
{
    sql_unit_step(unit, &count_unsent, 1);
}

void mxstore_prune_outbox(struct sql_unit *unit, int64_t before_ms)
{
    sql_unit_step(unit, &prune_outbox, SQL_ROWS_ANY);
    sql_unit_int(unit, MXSTORE_SENT);
    sql_unit_int(unit, before_ms);
}

/* Add a step that deletes the row with a key of two parts. */
static void mxstore_drop(struct sql_unit *unit, const struct sql_statement *statement,
    struct span first, struct span second)
{
    sql_unit_step(unit, statement, 1);
    sql_unit_text(unit, first);
    sql_unit_text(unit, second);
}

void mxstore_close_gap(struct sql_unit *unit, struct span room_id, struct span from_token)
{
    mxstore_drop(unit, &close_gap, room_id, from_token);
}

void mxstore_drop_withheld(
    struct sql_unit *unit, struct span room_id, struct span session_id, struct span sender)
{
    mxstore_drop(unit, &drop_withheld, room_id, session_id);
    sql_unit_text(unit, sender);
}

/* Add a step on the row of a received session. */
static void mxstore_on_inbound(
    struct sql_unit *unit, const struct sql_statement *statement, const struct mxstore_inbound *row)
{
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    sql_unit_text(unit, row->room_id);
    sql_unit_text(unit, row->session_id);
    sql_unit_text(unit, row->sender_key);
}

void mxstore_use_inbound(struct sql_unit *unit, const struct mxstore_inbound *row)
{
    mxstore_on_inbound(unit, &use_inbound, row);
    sql_unit_int(unit, row->used);
}

void mxstore_drop_inbound(struct sql_unit *unit, const struct mxstore_inbound *row)
{
    mxstore_on_inbound(unit, &drop_inbound, row);
}

void mxstore_drop_olm(struct sql_unit *unit, struct span identity_key, struct span session_id)
{
    sql_unit_step(unit, &drop_olm, SQL_ROWS_ANY);
    sql_unit_text(unit, identity_key);
    mxstore_add_bytes(unit, MXSTORE_TEXT, session_id);
}

void mxstore_drop_key_request(struct sql_unit *unit, struct span room_id, struct span session_id)
{
    mxstore_drop(unit, &drop_key_request, room_id, session_id);
}

void mxstore_claim_outbox(
    struct sql_unit *unit, struct span txn_id, int64_t now_ms, int64_t lease_until_ms)
{
    tr_assert(lease_until_ms > now_ms);
    sql_unit_step(unit, &claim_outbox, 1);
    sql_unit_text(unit, txn_id);
    sql_unit_int(unit, now_ms);
    sql_unit_int(unit, lease_until_ms);
}

void mxstore_sent_outbox(struct sql_unit *unit, struct span txn_id, struct span event_id)
{
    sql_unit_step(unit, &sent_outbox, 1);
    sql_unit_text(unit, txn_id);
    sql_unit_text(unit, event_id);
}

void mxstore_clear_outdated(struct sql_unit *unit, struct span user_id, int64_t change)
{
    sql_unit_step(unit, &clear_outdated, SQL_ROWS_ANY);
    sql_unit_text(unit, user_id);
    sql_unit_int(unit, change);
}

void mxstore_move_marker(
    struct sql_unit *unit, struct span room_id, struct span event_id, int64_t origin_ms)
{
    sql_unit_step(unit, &move_marker, SQL_ROWS_ANY);
    sql_unit_text(unit, room_id);
    sql_unit_text(unit, event_id);
    sql_unit_int(unit, origin_ms);
}

void mxstore_lower_floor(struct sql_unit *unit, struct span room_id, int64_t origin_ms)
{
    sql_unit_step(unit, &lower_floor, 1);
    sql_unit_text(unit, room_id);
    sql_unit_int(unit, origin_ms);
}

void mxstore_raise_floor(
    struct sql_unit *unit, struct span room_id, int64_t revision, int64_t origin_ms)
{
    sql_unit_step(unit, &raise_floor, SQL_ROWS_ANY);
    sql_unit_text(unit, room_id);
    sql_unit_int(unit, revision);
    sql_unit_int(unit, origin_ms);
}
