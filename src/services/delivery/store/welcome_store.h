/* SPDX-License-Identifier: Apache-2.0 */
/* welcome_store.h: Welcomes as statements. A Welcome is stored once with its commit and waits for
 * each device it is for (welcome_targets):
 *
 *   waiting ──getWelcome──▶ fetched ──confirmWelcome──▶ confirmed
 *      └──────────────┴──confirm with success false, invalidate, reissue──▶ invalid (with why)
 *
 * Only the DID it is for sees a Welcome, and only while that DID has been in the conversation since
 * before the Welcome's commit: one from before a removal opens nothing any more.
 *
 * The values $1 to $3 are the conversation, the caller, and its device ("": any). */
#ifndef SERVICES_DELIVERY_STORE_WELCOME_STORE_H
#define SERVICES_DELIVERY_STORE_WELCOME_STORE_H

#include "sql/sql.h"

#define WELCOME_IS_MINE                                                                            \
    "t.convo = $1 AND t.did = $2 AND ($3 = '' OR t.device = $3 OR t.device = '')"
#define WELCOME_IS_OPEN                                                                            \
    "t.state <= 1 AND EXISTS (SELECT 1 FROM members m WHERE m.convo = t.convo AND m.did = t.did"   \
    " AND m.leave_seq IS NULL AND m.join_seq <= t.seq)"
#define WELCOME_NEWEST(order)                                                                      \
    "(SELECT t.seq, t.ref FROM welcome_targets t WHERE " WELCOME_IS_MINE " AND " WELCOME_IS_OPEN   \
    " ORDER BY " order "t.seq DESC, t.ref LIMIT 1)"
#define WELCOME_OF_TARGET                                                                          \
    " FROM welcome_targets t JOIN welcomes w ON w.convo = t.convo AND w.seq = t.seq"               \
    " AND w.part = t.part WHERE "
SQL_STATEMENT(welcome_mark_fetched,
    "UPDATE welcome_targets AS t SET state = 1, changed_ms = $4 WHERE " WELCOME_IS_MINE
    " AND t.state = 0 AND (t.seq, t.ref) = " WELCOME_NEWEST(""));
/* Columns: bytes, created_ms, seq, device, ref. */
SQL_STATEMENT(welcome_get_newest,
    "SELECT w.bytes, w.created_ms, t.seq, t.device, t.ref" WELCOME_OF_TARGET
    "t.convo = $1 AND t.did = $2 AND (t.seq, t.ref) = " WELCOME_NEWEST(""));
/* How many might have been good: not from before the caller was added again, and none after. */
SQL_STATEMENT(welcome_count_unconfirmed,
    "SELECT COUNT(*) FROM welcome_targets t WHERE " WELCOME_IS_MINE " AND t.state <> 2"
    " AND NOT EXISTS (SELECT 1 FROM members m WHERE m.convo = t.convo AND m.did = t.did"
    " AND m.leave_seq IS NULL AND m.join_seq > t.seq) AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets n WHERE n.convo = t.convo AND n.did = t.did AND n.device = t.device"
    " AND n.state = 2 AND n.seq > t.seq)");
/* Those of $1 and its device $2, without their bytes, which may be megabytes each. Columns: convo,
 * seq, ref, device, state, created_ms, bytes. */
SQL_STATEMENT(welcome_list_pending,
    "SELECT t.convo, t.seq, t.ref, t.device, t.state, w.created_ms, "
    "LENGTH(w.bytes)" WELCOME_OF_TARGET
    "t.did = $1 AND ($2 = '' OR t.device = $2 OR t.device = '') AND " WELCOME_IS_OPEN
    " ORDER BY w.created_ms, t.convo, t.ref LIMIT $3");
/* The first 20 of at most 64 KiB each that wait for the device $2 of $1. Columns: convo, bytes. */
SQL_STATEMENT(welcome_list_waiting,
    "SELECT t.convo, w.bytes" WELCOME_OF_TARGET "t.did = $1 AND t.device = $2"
    " AND LENGTH(w.bytes) <= 65536 AND " WELCOME_IS_OPEN
    " ORDER BY w.created_ms, t.convo, t.ref LIMIT 20");
/* Set the state of the fetched one, or else of the newest. */
SQL_STATEMENT(welcome_settle,
    "UPDATE welcome_targets AS t SET state = $4, why = $5, changed_ms = $6 WHERE " WELCOME_IS_MINE
    " AND t.state <= 1 AND (t.seq, t.ref) = " WELCOME_NEWEST("t.state DESC, "));
SQL_STATEMENT(welcome_get_state, "SELECT t.state FROM welcome_targets t WHERE " WELCOME_IS_MINE
                                 " ORDER BY t.changed_ms DESC, t.seq DESC LIMIT 1");
/* A device that is in the group needs nobody to add it. */
SQL_STATEMENT(welcome_complete_additions,
    "UPDATE device_additions SET state = 2, changed_ms = $4 WHERE convo = $1 AND did = $2"
    " AND state <> 2 AND device IN (SELECT t.device FROM welcome_targets t WHERE " WELCOME_IS_MINE
    " AND t.state = 2 AND t.changed_ms = $4)");
SQL_STATEMENT(welcome_invalidate,
    "UPDATE welcome_targets AS t SET state = 3, why = $4, changed_ms = $5 WHERE " WELCOME_IS_MINE
    " AND t.state <= 1");
SQL_STATEMENT(welcome_count_others,
    "SELECT COUNT(*) FROM members WHERE convo = $1 AND did <> $2 AND leave_seq IS NULL");

#endif
