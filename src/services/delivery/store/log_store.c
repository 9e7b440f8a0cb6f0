/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/log_store.h"

#include "services/delivery/store/schema.h"

#define LIST_LOG(of_kind)                                                                          \
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
const struct sql_statement log_list = { .text = LIST_LOG("l.kind <= $4") };
/* By the index log_kinds. */
const struct sql_statement log_list_rare = { .text = LIST_LOG("l.kind <> 1 AND l.kind = $4") };
const struct sql_statement log_find_convo = {
    .text = "SELECT c.epoch, c.seq, c.kept_from, c.group_info_epoch, (SELECT MIN(l.base_epoch) + 1"
            " FROM log l WHERE l.convo = c.id AND l.kind = 3) FROM convos c WHERE c.id = $1",
};
const struct sql_statement log_find_member = {
    .text = "SELECT MIN(CASE WHEN leave_seq IS NULL OR leave_seq > $3 THEN join_seq END),"
            " MAX(CASE WHEN leave_seq IS NULL THEN 1 ELSE 0 END), MAX(leave_seq)"
            " FROM members WHERE convo = $1 AND did = $2 HAVING COUNT(*) > 0",
};
const struct sql_statement log_list_commits = {
    .text = LOG_CUT("l.seq, l.kind, l.base_epoch, l.epoch, " LOG_MESSAGE_ID
                    ", l.bytes, l.created_ms, l.sender, (SELECT COUNT(*) FROM page)",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind = 3"
        " AND l.base_epoch >= $3 AND l.base_epoch < $4" LOG_SEEN_BY(
            "$1", "$2") " ORDER BY l.base_epoch LIMIT $5",
        "$1", "$6"),
};

/* A message is found by its op, which has the sender's own id (api_set_op); with an idempotency key
 * beside it the id stands alone. One of two indexes finds it: with an OR SQLite uses neither. */
const struct sql_statement log_find_status = {
    .text = "SELECT l.seq, l.epoch, l.created_ms, COUNT(m.did),"
            " COUNT(CASE WHEN m.read_seq >= l.seq THEN 1 END) FROM log l LEFT JOIN members m"
            " ON m.convo = l.convo AND m.did <> l.sender AND m.join_seq < l.seq"
            " AND (m.leave_seq IS NULL OR m.leave_seq > l.seq)"
            " WHERE l.convo = $1 AND l.seq = COALESCE((SELECT o.seq FROM log o WHERE o.convo = $1"
            " AND o.op = 'msg:' || CAST($3 AS TEXT) || ':' || CAST($2 AS TEXT)),"
            " (SELECT n.seq FROM log n WHERE n.convo = $1 AND n.message_id = $2 AND n.sender = $3"
            " LIMIT 1)) GROUP BY l.convo, l.seq",
};

#define UNREAD                                                                                     \
    "COALESCE(NULLIF((SELECT COUNT(*) FROM log l WHERE l.convo = m.convo AND l.seq > m.read_seq"   \
    " AND l.kind = 1 AND l.sender <> m.did), 0), m.unread_extra)"
const struct sql_statement log_count_unread = {
    .text = "SELECT m.convo, " UNREAD " FROM members m WHERE m.did = $1 AND m.leave_seq IS NULL"
            " ORDER BY m.convo",
};
const struct sql_statement log_count_unread_in = {
    .text = "SELECT " UNREAD " FROM members m WHERE m.convo = $1 AND m.did = $2"
            " AND m.leave_seq IS NULL",
};

const struct sql_statement receipt_find_head = {
    .text = "SELECT seq, chain, kept_chain, kept_from FROM convos WHERE id = $1",
};
const struct sql_statement receipt_find_member = {
    .text = "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL",
};
const struct sql_statement receipt_find_newest = {
    .text = "SELECT seq FROM log WHERE convo = $1 AND receipt IS NOT NULL"
            " ORDER BY seq DESC LIMIT 1",
};
const struct sql_statement receipt_find_previous = {
    .text = "SELECT receipt FROM log WHERE convo = $1 AND seq < $2 AND receipt IS NOT NULL"
            " ORDER BY seq DESC LIMIT 1",
};
const struct sql_statement receipt_list = {
    .text = "SELECT seq, kind, base_epoch, sha256, receipt FROM log WHERE convo = $1 AND seq >= $2"
            " AND receipt IS NOT NULL ORDER BY seq LIMIT $3",
};
