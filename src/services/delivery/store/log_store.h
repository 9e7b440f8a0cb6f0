/* SPDX-License-Identifier: Apache-2.0 */
/* log_store.h: statements that read the conversations of a caller and their log. */
#ifndef SERVICES_DELIVERY_STORE_LOG_STORE_H
#define SERVICES_DELIVERY_STORE_LOG_STORE_H

#include "services/delivery/store/schema.h"

enum { COMMITS_MAX = 1000 };

#define LOG_PAGE_OF(of_kind)                                                                       \
    "SELECT MAX(c.epoch), MAX(c.seq), MAX(c.kept_from),"                                           \
    " MIN(CASE WHEN m.leave_seq IS NULL OR m.leave_seq > $3 THEN m.join_seq END),"                 \
    " NULL, NULL, NULL, NULL,"                                                                     \
    " MAX(CASE WHEN m.did IS NULL THEN NULL WHEN m.leave_seq IS NULL THEN 1 ELSE 0 END)"           \
    " FROM convos c LEFT JOIN members m ON m.convo = c.id AND m.did = $2 WHERE c.id = $1"          \
    " UNION ALL SELECT * FROM (SELECT l.seq, l.kind, l.base_epoch, l.epoch, l.message_id, l.op,"   \
    " l.sender, CASE WHEN LENGTH(l.bytes) <= $6 OR l.seq = $7 THEN l.bytes END, l.created_ms"      \
    " FROM log l WHERE l.convo = $1 AND l.seq > $3 AND " of_kind                                   \
    " AND l.kind <> 4 AND l.kind <> 6 AND l.epoch >= $8" LOG_SEEN_BY(                              \
        "$1", "$2") " ORDER BY l.seq LIMIT $5) AS page"
/* A page of the log of $1 for $2, after seq $3, from epoch $8 on, of kinds up to $4 or of the one
 * kind $4: $5 rows. It has what was said while the caller was in, with the commit that removed it,
 * and no commit that is revoked or of a former group. No call is more frequent, so it is one
 * statement: the first row describes the conversation and the caller (enum head_column), the others
 * are of the log (enum log_column). A row has its bytes if they are at most $6, or its seq is $7. */
SQL_STATEMENT(log_list, LOG_PAGE_OF("l.kind <= $4"));
/* By the index log_kinds. */
SQL_STATEMENT(log_list_rare, LOG_PAGE_OF("l.kind <> 1 AND l.kind = $4"));
enum head_column { HEAD_EPOCH, HEAD_SEQ, HEAD_KEPT_FROM, HEAD_JOIN_SEQ, HEAD_IS_IN = 8 };
enum log_column {
    LOG_SEQ,
    LOG_KIND,
    LOG_BASE_EPOCH,
    LOG_EPOCH,
    LOG_NAME,
    LOG_OP,
    LOG_SENDER,
    LOG_BYTES,
    LOG_CREATED_MS,
};
/* Columns: epoch, seq, kept_from, group_info_epoch, epoch of the oldest commit that is kept. */
SQL_STATEMENT(log_find_convo,
    "SELECT c.epoch, c.seq, c.kept_from, c.group_info_epoch, (SELECT MIN(l.base_epoch) + 1"
    " FROM log l WHERE l.convo = c.id AND l.kind = 3) FROM convos c WHERE c.id = $1");
/* Of $2 as far as seq $3 is concerned. Columns: since when it was in, is it in now, when it left. */
SQL_STATEMENT(log_find_member,
    "SELECT MIN(CASE WHEN leave_seq IS NULL OR leave_seq > $3 THEN join_seq END), MAX(CASE"
    " WHEN leave_seq IS NULL THEN 1 ELSE 0 END), MAX(leave_seq) FROM members WHERE convo = $1"
    " AND did = $2 HAVING COUNT(*) > 0");
/* Commits that led to epochs from $3 + 1 to $4. Columns: seq, kind, base_epoch, epoch, id that the
 * sender gave, bytes, created_ms, sender, rows before the cut to $6 bytes. */
SQL_STATEMENT(log_list_commits,
    LOG_CUT("l.seq, l.kind, l.base_epoch, l.epoch, " LOG_MESSAGE_ID
            ", l.bytes, l.created_ms, l.sender, (SELECT COUNT(*) FROM page)",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind = 3"
        " AND l.base_epoch >= $3 AND l.base_epoch < $4" LOG_SEEN_BY(
            "$1", "$2") " ORDER BY l.base_epoch LIMIT $5",
        "$1", "$6"));

/* How far the message that $3 sent as $2 came. Columns: seq, epoch, created_ms, members at that
 * time without the sender, those of them that have read it.
 * A message is found by its op, which has the sender's own id (api_set_op); with an idempotency key
 * beside it the id stands alone. One of two indexes finds it: with an OR SQLite uses neither. */
SQL_STATEMENT(log_find_status,
    "SELECT l.seq, l.epoch, l.created_ms, COUNT(m.did), COUNT(CASE WHEN m.read_seq >="
    " l.seq THEN 1 END) FROM log l LEFT JOIN members m ON m.convo = l.convo AND m.did <> l.sender"
    " AND m.join_seq < l.seq AND (m.leave_seq IS NULL OR m.leave_seq > l.seq) WHERE l.convo = $1"
    " AND l.seq = COALESCE((SELECT o.seq FROM log o WHERE o.convo = $1 AND o.op = 'msg:'"
    " || CAST($3 AS TEXT) || ':' || CAST($2 AS TEXT)), (SELECT n.seq FROM log n WHERE n.convo = $1"
    " AND n.message_id = $2 AND n.sender = $3 LIMIT 1)) GROUP BY l.convo, l.seq");

#define LOG_UNREAD                                                                                 \
    "COALESCE(NULLIF((SELECT COUNT(*) FROM log l WHERE l.convo = m.convo AND l.seq > m.read_seq"   \
    " AND l.kind = 1 AND l.sender <> m.did), 0), m.unread_extra)"
/* Count the unread messages of $1: those of others behind its cursor, or 1 for a conversation that it
 * has marked. Columns: convo, count; of one conversation of $2: count. */
SQL_STATEMENT(log_count_unread,
    "SELECT m.convo, " LOG_UNREAD " FROM members m WHERE m.did = $1 AND m.leave_seq IS NULL"
    " ORDER BY m.convo");
SQL_STATEMENT(log_count_unread_in,
    "SELECT " LOG_UNREAD " FROM members m WHERE m.convo = $1 AND m.did = $2"
    " AND m.leave_seq IS NULL");

/* Receipts of a conversation. Columns: the newest receipt; its seq, also if its row is no longer kept
 * (NULL: there is none yet); kept_from; the receipt before seq $2. */
SQL_STATEMENT(receipt_find_head,
    "SELECT c.chain, COALESCE((SELECT l.seq FROM log l WHERE l.convo = c.id"
    " AND l.receipt IS NOT NULL ORDER BY l.seq DESC LIMIT 1), CASE WHEN c.kept_chain IS NOT NULL"
    " THEN c.kept_from - 1 END), c.kept_from, COALESCE((SELECT l.receipt FROM log l"
    " WHERE l.convo = c.id AND l.seq < $2 AND l.receipt IS NOT NULL ORDER BY l.seq DESC LIMIT 1),"
    " c.kept_chain) FROM convos c WHERE c.id = $1");
/* From seq $2 on. Columns: seq, kind, base_epoch, sha256, receipt. */
SQL_STATEMENT(receipt_list,
    "SELECT seq, kind, base_epoch, sha256, receipt FROM log WHERE convo = $1 AND seq >= $2"
    " AND receipt IS NOT NULL ORDER BY seq LIMIT $3");

/* ---- the conversations of an account --------------------------------------------------------- */

/* The first $3 conversations of $1 after $2. Columns: id, creator, epoch, suite, created_ms,
 * active_ms, name, description, group name. */
SQL_STATEMENT(convo_list,
    "SELECT c.id, c.creator, c.epoch, c.suite, c.created_ms, c.active_ms, c.name, c.description,"
    " COALESCE(c.group_name, c.id) FROM members m JOIN convos c ON c.id = m.convo WHERE m.did = $1"
    " AND m.leave_seq IS NULL AND c.id > $2 ORDER BY c.id LIMIT $3");
/* The first $4 members of each of them, in the same order: the caller, then by age. Columns: convo,
 * did, joined_ms, is_admin, is_moderator, members of the conversation. */
SQL_STATEMENT(convo_list_members,
    "SELECT convo, did, joined_ms, is_admin, is_moderator, total FROM (SELECT m.convo, m.did,"
    " m.joined_ms, m.is_admin, m.is_moderator, COUNT(*) OVER (PARTITION BY m.convo) AS total,"
    " ROW_NUMBER() OVER (PARTITION BY m.convo ORDER BY CASE WHEN m.did = $1 THEN 0 ELSE 1 END,"
    " m.join_seq, m.did) AS place FROM members m WHERE m.leave_seq IS NULL AND m.convo IN"
    " (SELECT s.convo FROM members s WHERE s.did = $1 AND s.leave_seq IS NULL AND s.convo > $2"
    " ORDER BY s.convo LIMIT $3)) AS ranked WHERE place <= $4 ORDER BY convo, place");

#endif
