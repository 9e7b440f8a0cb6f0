/* SPDX-License-Identifier: Apache-2.0 */
/* consent_store.h: opt-ins, opt-outs, blocks and chat requests as statements. Opt-outs and blocks take
 * effect in the unit that adds a member (convo_store.c): an account that opted out is not added, and
 * neither are two accounts of which one has blocked the other. */
#ifndef SERVICES_DELIVERY_STORE_CONSENT_STORE_H
#define SERVICES_DELIVERY_STORE_CONSENT_STORE_H

#include "sql/sql.h"

/* Blocks of one blocker; accounts in one consent_find_blocks. */
enum { BLOCKS_MAX = 10000, BLOCKS_CHUNK = 20 };

#define CONSENT_TIMES                                                                              \
    "CASE WHEN opted_in = 1 THEN changed_ms END, CASE WHEN opted_in = 0 THEN changed_ms END"
/* Columns: opted_in, when it opted in, when it opted out (one of the two is NULL). */
SQL_STATEMENT(consent_put,
    "INSERT INTO consents (did, opted_in, changed_ms) VALUES ($1, $2, $3)"
    " ON CONFLICT (did) DO UPDATE SET opted_in = excluded.opted_in, changed_ms ="
    " CASE WHEN consents.opted_in = excluded.opted_in THEN consents.changed_ms"
    " ELSE excluded.changed_ms END RETURNING opted_in, " CONSENT_TIMES);
/* Of one account, known or not. Columns: is in, is out, and the two times. */
SQL_STATEMENT(consent_get,
    "SELECT COUNT(CASE WHEN opted_in = 1 THEN 1 END), COUNT(CASE"
    " WHEN opted_in = 0 THEN 1 END), MAX(CASE WHEN opted_in = 1 THEN changed_ms END), MAX(CASE"
    " WHEN opted_in = 0 THEN changed_ms END) FROM consents WHERE did = $1");

/* Find a row if either of $1 and $2 has blocked the other, or if $1 has opted out. */
SQL_STATEMENT(consent_find_block,
    "SELECT 1 FROM blocks WHERE (blocker = $1 AND blocked = $2) OR (blocker = $2 AND blocked = $1)"
    " LIMIT 1");
SQL_STATEMENT(consent_find_opt_out, "SELECT 1 FROM consents WHERE did = $1 AND opted_in = 0");

SQL_STATEMENT(consent_put_block,
    "INSERT INTO blocks (blocker, blocked, uri, created_ms)"
    " SELECT $1, $2, $3, $4 WHERE (SELECT COUNT(*) FROM blocks WHERE blocker = $1) < $5"
    " ON CONFLICT (blocker, blocked) DO UPDATE SET uri = excluded.uri");
SQL_STATEMENT(consent_delete_block, "DELETE FROM blocks WHERE blocker = $1 AND blocked = $2");
/* Decline the requests from $2 that $1 accepted or has not answered. */
SQL_STATEMENT(consent_close_requests,
    "UPDATE chat_requests SET state = 2, changed_ms = $3 WHERE sender = $2 AND recipient = $1"
    " AND state < 2");
/* The conversations that $1 and $2 share; $3 is 1 for an unblock. Columns: convo, what $1 can do:
 * 0 nothing, 1 remove $2, 2 leave. */
SQL_STATEMENT(consent_list_shared,
    "SELECT a.convo, CASE WHEN CAST($3 AS BIGINT) = 1 THEN 0 WHEN a.is_admin = 1 THEN 1 ELSE 2 END"
    " FROM members a JOIN members b ON b.convo = a.convo AND b.did = $2 AND b.leave_seq IS NULL"
    " WHERE a.did = $1 AND a.leave_seq IS NULL ORDER BY a.convo LIMIT 1000");
/* Blocks by $1 of any of BLOCKS_CHUNK accounts, and blocks between members of a conversation.
 * Columns: blocker, blocked, uri, created_ms. */
SQL_STATEMENT(consent_find_blocks,
    "SELECT blocker, blocked, uri, created_ms FROM blocks WHERE blocker = $1 AND blocked IN ($2,"
    " $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)");
SQL_STATEMENT(consent_list_conflicts,
    "SELECT b.blocker, b.blocked, b.uri, b.created_ms FROM members x JOIN blocks b ON b.blocker ="
    " x.did JOIN members y ON y.convo = x.convo AND y.did = b.blocked AND y.leave_seq IS NULL"
    " WHERE x.convo = $1 AND x.leave_seq IS NULL ORDER BY b.blocker, b.blocked LIMIT 1000");

/* ---- chat requests: state is an enum of schema.h --------------------------------------------- */

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
