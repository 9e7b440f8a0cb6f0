/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/consent_store.h"

#define CONSENT_TIMES                                                                              \
    "CASE WHEN opted_in = 1 THEN changed_ms END, CASE WHEN opted_in = 0 THEN changed_ms END"
const struct sql_statement consent_put = {
    .text = "INSERT INTO consents (did, opted_in, changed_ms) VALUES ($1, $2, $3)"
            " ON CONFLICT (did) DO UPDATE SET opted_in = excluded.opted_in,"
            " changed_ms = CASE WHEN consents.opted_in = excluded.opted_in THEN consents.changed_ms"
            " ELSE excluded.changed_ms END RETURNING opted_in, " CONSENT_TIMES,
};
const struct sql_statement consent_get = {
    .text = "SELECT COUNT(CASE WHEN opted_in = 1 THEN 1 END),"
            " COUNT(CASE WHEN opted_in = 0 THEN 1 END),"
            " MAX(CASE WHEN opted_in = 1 THEN changed_ms END),"
            " MAX(CASE WHEN opted_in = 0 THEN changed_ms END) FROM consents WHERE did = $1",
};
const struct sql_statement consent_find_block = {
    .text = "SELECT 1 FROM blocks WHERE (blocker = $1 AND blocked = $2)"
            " OR (blocker = $2 AND blocked = $1) LIMIT 1",
};
const struct sql_statement consent_find_opt_out = {
    .text = "SELECT 1 FROM consents WHERE did = $1 AND opted_in = 0",
};
const struct sql_statement consent_put_block = {
    .text = "INSERT INTO blocks (blocker, blocked, uri, created_ms) SELECT $1, $2, $3, $4"
            " WHERE (SELECT COUNT(*) FROM blocks WHERE blocker = $1) < $5"
            " ON CONFLICT (blocker, blocked) DO UPDATE SET uri = excluded.uri",
};
const struct sql_statement consent_delete_block = {
    .text = "DELETE FROM blocks WHERE blocker = $1 AND blocked = $2",
};
const struct sql_statement consent_close_requests = {
    .text = "UPDATE chat_requests SET state = 2, changed_ms = $3"
            " WHERE sender = $2 AND recipient = $1 AND state < 2",
};
const struct sql_statement consent_list_shared = {
    .text =
        "SELECT a.convo, CASE WHEN CAST($3 AS BIGINT) = 1 THEN 0 WHEN a.is_admin = 1 THEN 1 ELSE 2"
        " END FROM members a JOIN members b ON b.convo = a.convo"
        " AND b.did = $2 AND b.leave_seq IS NULL WHERE a.did = $1 AND a.leave_seq IS NULL"
        " ORDER BY a.convo LIMIT 1000",
};
const struct sql_statement consent_find_blocks = {
    .text = "SELECT blocker, blocked, uri, created_ms FROM blocks WHERE blocker = $1"
            " AND blocked IN ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,"
            " $17, $18, $19, $20, $21)",
};
const struct sql_statement consent_list_conflicts = {
    .text = "SELECT b.blocker, b.blocked, b.uri, b.created_ms FROM members x JOIN blocks b"
            " ON b.blocker = x.did JOIN members y ON y.convo = x.convo AND y.did = b.blocked"
            " AND y.leave_seq IS NULL WHERE x.convo = $1 AND x.leave_seq IS NULL"
            " ORDER BY b.blocker, b.blocked LIMIT 1000",
};
