/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/request_store.h"

#define IS_OLD                                                                                     \
    " sender = $1 AND recipient = $2 AND ((state = 0 AND expires_ms <= $3)"                        \
    " OR (state = 2 AND changed_ms <= $4))"
const struct sql_statement request_delete_old_held = {
    .text = "DELETE FROM held_messages WHERE request IN"
            " (SELECT id FROM chat_requests WHERE" IS_OLD ")",
};
const struct sql_statement request_delete_old = {
    .text = "DELETE FROM chat_requests WHERE" IS_OLD,
};
const struct sql_statement request_put = {
    .text =
        "INSERT INTO chat_requests (id, sender, recipient, preview, convo, state, created_ms,"
        " expires_ms, changed_ms) SELECT $1, $2, $3, $4, $5, 0, $6, $7, $6 WHERE (SELECT COUNT(*)"
        " FROM chat_requests WHERE sender = $2 AND state = 0 AND expires_ms > $6) < $8",
};
const struct sql_statement request_put_held = {
    .text = "INSERT INTO held_messages (request, part, bytes) VALUES ($1, $2, $3)",
};
const struct sql_statement request_get = {
    .text = "SELECT sender, convo FROM chat_requests WHERE id = $1 AND recipient = $2",
};
const struct sql_statement request_list_held = {
    .text = "SELECT h.bytes FROM held_messages h JOIN chat_requests r"
            " ON r.id = h.request WHERE r.id = $1 AND r.recipient = $2"
            " ORDER BY h.part",
};
const struct sql_statement request_is_open = {
    .text = "SELECT 1 FROM chat_requests WHERE id = $1 AND state < 2",
};
const struct sql_statement request_is_fresh = {
    .text = "SELECT 1 FROM chat_requests WHERE id = $1 AND (state = 1 OR expires_ms > $2)",
};
const struct sql_statement request_accept = {
    .text = "UPDATE chat_requests SET state = 1, changed_ms = CASE WHEN state = 1 THEN changed_ms"
            " ELSE $2 END WHERE id = $1 AND state < 2 RETURNING changed_ms",
};
const struct sql_statement request_decline = {
    .text = "UPDATE chat_requests SET state = 2, changed_ms = $2 WHERE id = $1 AND state < 2",
};
const struct sql_statement request_delete_held = {
    .text = "DELETE FROM held_messages WHERE request = $1",
};

#define LIST_OF(account)                                                                           \
    "SELECT r.id, r.sender, r.recipient, r.preview, r.convo, r.state, r.created_ms, r.expires_ms," \
    " (SELECT COUNT(*) FROM held_messages h WHERE h.request = r.id) FROM chat_requests r"          \
    " WHERE r." account " = $1 AND r.state = $2 AND (r.state <> 0 OR r.expires_ms > $3)"           \
    " AND r.id > $4 ORDER BY r.id LIMIT $5"
const struct sql_statement request_list_received = { .text = LIST_OF("recipient") };
const struct sql_statement request_list_sent = { .text = LIST_OF("sender") };
const struct sql_statement request_count = {
    .text = "SELECT COUNT(*), MAX(created_ms) FROM chat_requests"
            " WHERE recipient = $1 AND state = 0 AND expires_ms > $2",
};
