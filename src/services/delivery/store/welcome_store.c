/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/welcome_store.h"

#define MINE                                                                                       \
    "welcome_targets.convo = $1 AND welcome_targets.did = $2"                                      \
    " AND ($3 = '' OR welcome_targets.device = $3 OR welcome_targets.device = '')"
#define IS_OPEN                                                                                    \
    "welcome_targets.state <= 1 AND EXISTS (SELECT 1 FROM members m"                               \
    " WHERE m.convo = welcome_targets.convo AND m.did = welcome_targets.did"                       \
    " AND m.leave_seq IS NULL AND m.join_seq <= welcome_targets.seq)"
#define NEWEST_OPEN(order)                                                                         \
    "(SELECT seq, ref FROM welcome_targets WHERE " MINE " AND " IS_OPEN " ORDER BY " order         \
    "seq DESC, ref LIMIT 1)"

const struct sql_statement welcome_mark_fetched = {
    .text = "UPDATE welcome_targets SET state = 1, changed_ms = $4 WHERE " MINE
            " AND state = 0 AND (seq, ref) = " NEWEST_OPEN(""),
};
const struct sql_statement welcome_get_newest = {
    .text = "SELECT w.bytes, w.created_ms, t.seq, t.device, t.ref FROM welcome_targets t"
            " JOIN welcomes w ON w.convo = t.convo AND w.seq = t.seq AND w.part = t.part"
            " WHERE t.convo = $1 AND t.did = $2 AND (t.seq, t.ref) = " NEWEST_OPEN(""),
};
const struct sql_statement welcome_count_unconfirmed = {
    .text = "SELECT COUNT(*) FROM welcome_targets WHERE " MINE " AND welcome_targets.state <> 2"
            " AND NOT EXISTS (SELECT 1 FROM members m WHERE m.convo = welcome_targets.convo"
            " AND m.did = welcome_targets.did AND m.leave_seq IS NULL AND m.join_seq > "
            "welcome_targets.seq)"
            " AND NOT EXISTS (SELECT 1 FROM welcome_targets n WHERE n.convo = welcome_targets.convo"
            " AND n.did = welcome_targets.did AND n.device = welcome_targets.device AND n.state = 2"
            " AND n.seq > welcome_targets.seq)",
};
const struct sql_statement welcome_list_pending = {
    .text = "SELECT welcome_targets.convo, welcome_targets.seq, welcome_targets.ref,"
            " welcome_targets.device, welcome_targets.state, w.created_ms, LENGTH(w.bytes)"
            " FROM welcome_targets JOIN welcomes w ON w.convo = welcome_targets.convo"
            " AND w.seq = welcome_targets.seq AND w.part = welcome_targets.part"
            " WHERE welcome_targets.did = $1 AND ($2 = '' OR welcome_targets.device = $2"
            " OR welcome_targets.device = '') AND " IS_OPEN
            " ORDER BY w.created_ms, welcome_targets.convo, welcome_targets.ref LIMIT $3",
};
const struct sql_statement welcome_list_waiting = {
    .text = "SELECT welcome_targets.convo, w.bytes FROM welcome_targets JOIN welcomes w"
            " ON w.convo = welcome_targets.convo AND w.seq = welcome_targets.seq"
            " AND w.part = welcome_targets.part WHERE welcome_targets.did = $1"
            " AND welcome_targets.device = $2 AND LENGTH(w.bytes) <= 65536 AND " IS_OPEN
            " ORDER BY w.created_ms, welcome_targets.convo, welcome_targets.ref LIMIT 20",
};
const struct sql_statement welcome_settle = {
    .text = "UPDATE welcome_targets SET state = $4, why = $5, changed_ms = $6 WHERE " MINE
            " AND state <= 1 AND (seq, ref) = " NEWEST_OPEN("state DESC, "),
};
const struct sql_statement welcome_get_state = {
    .text = "SELECT state FROM welcome_targets WHERE " MINE
            " ORDER BY changed_ms DESC, seq DESC LIMIT 1",
};
const struct sql_statement welcome_complete_additions = {
    .text = "UPDATE device_additions SET state = 2, changed_ms = $4 WHERE convo = $1 AND did = $2"
            " AND state <> 2 AND device IN (SELECT device FROM welcome_targets WHERE " MINE
            " AND welcome_targets.state = 2 AND welcome_targets.changed_ms = $4)",
};
const struct sql_statement welcome_invalidate = {
    .text = "UPDATE welcome_targets SET state = 3, why = $4, changed_ms = $5 WHERE " MINE
            " AND state <= 1",
};
const struct sql_statement welcome_count_others = {
    .text = "SELECT COUNT(*) FROM members WHERE convo = $1 AND did <> $2 AND leave_seq IS NULL",
};
