/* SPDX-License-Identifier: Apache-2.0 */
/* request_store.h: chat requests as statements. state is an enum of schema.h. */
#ifndef SERVICES_DELIVERY_STORE_REQUEST_STORE_H
#define SERVICES_DELIVERY_STORE_REQUEST_STORE_H

#include "sql/sql.h"

#define REQUEST_IS_OLD                                                                             \
    " sender = $1 AND recipient = $2 AND ((state = 0 AND expires_ms <= $3)"                        \
    " OR (state = 2 AND changed_ms <= $4))"
/* Delete what $1 asked $2 before, if it expired before $3 or was declined before $4: first its
 * messages, then the request. */
SQL_STATEMENT(request_delete_old_held,
    "DELETE FROM held_messages WHERE request IN (SELECT id FROM chat_requests"
    " WHERE" REQUEST_IS_OLD ")");
SQL_STATEMENT(request_delete_old, "DELETE FROM chat_requests WHERE" REQUEST_IS_OLD);
/* Create one unless the sender has $8 pending requests. A pair has one at a time. */
SQL_STATEMENT(request_put,
    "INSERT INTO chat_requests (id, sender, recipient, preview, convo, state, created_ms,"
    " expires_ms, changed_ms) SELECT $1, $2, $3, $4, $5, 0, $6, $7, $6 WHERE (SELECT COUNT(*)"
    " FROM chat_requests WHERE sender = $2 AND state = 0 AND expires_ms > $6) < $8");
SQL_STATEMENT(
    request_put_held, "INSERT INTO held_messages (request, part, bytes) VALUES ($1, $2, $3)");

/* Of the recipient $2. Columns: sender, convo; bytes. */
SQL_STATEMENT(
    request_get, "SELECT sender, convo FROM chat_requests WHERE id = $1 AND recipient = $2");
SQL_STATEMENT(request_list_held,
    "SELECT h.bytes FROM held_messages h JOIN chat_requests r ON r.id = h.request WHERE r.id = $1"
    " AND r.recipient = $2 ORDER BY h.part");
SQL_STATEMENT(request_is_open, "SELECT 1 FROM chat_requests WHERE id = $1 AND state < 2");
SQL_STATEMENT(request_is_fresh,
    "SELECT 1 FROM chat_requests WHERE id = $1 AND (state = 1 OR expires_ms > $2)");
/* Accept. A repeated call returns the same, since the first answer may have been lost. Column: when
 * it was accepted. */
SQL_STATEMENT(request_accept,
    "UPDATE chat_requests SET state = 1, changed_ms = CASE WHEN state = 1 THEN changed_ms"
    " ELSE $2 END WHERE id = $1 AND state < 2 RETURNING changed_ms");
/* Decline, also what was accepted before. */
SQL_STATEMENT(request_decline,
    "UPDATE chat_requests SET state = 2, changed_ms = $2 WHERE id = $1 AND state < 2");
SQL_STATEMENT(request_delete_held, "DELETE FROM held_messages WHERE request = $1");

#define REQUEST_LIST_OF(account)                                                                   \
    "SELECT r.id, r.sender, r.recipient, r.preview, r.convo, r.state, r.created_ms, r.expires_ms," \
    " (SELECT COUNT(*) FROM held_messages h WHERE h.request = r.id) FROM chat_requests r"          \
    " WHERE r." account " = $1 AND r.state = $2 AND (r.state <> 0 OR r.expires_ms > $3)"           \
    " AND r.id > $4 ORDER BY r.id LIMIT $5"
/* Columns: id, sender, recipient, preview, convo, state, created_ms, expires_ms, held messages. */
SQL_STATEMENT(request_list_received, REQUEST_LIST_OF("recipient"));
SQL_STATEMENT(request_list_sent, REQUEST_LIST_OF("sender"));
/* Columns: pending requests, when the newest came (NULL: none). */
SQL_STATEMENT(request_count,
    "SELECT COUNT(*), MAX(created_ms) FROM chat_requests WHERE recipient = $1 AND state = 0"
    " AND expires_ms > $2");

#endif
