/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/convo_list_store.h"

const struct sql_statement convo_list = {
    .text = "SELECT c.id, c.creator, c.epoch, c.suite, c.created_ms, c.active_ms, c.name, "
            "c.description,"
            " COALESCE(c.group_name, c.id)"
            " FROM members m JOIN convos c ON c.id = m.convo"
            " WHERE m.did = $1 AND m.leave_seq IS NULL AND c.id > $2 ORDER BY c.id LIMIT $3",
};
const struct sql_statement convo_list_members = {
    .text =
        "SELECT convo, did, joined_ms, is_admin, is_moderator, total FROM (SELECT m.convo, m.did,"
        " m.joined_ms, m.is_admin, m.is_moderator, COUNT(*) OVER (PARTITION BY m.convo) AS total,"
        " ROW_NUMBER() OVER (PARTITION BY m.convo ORDER BY CASE WHEN m.did = $1 THEN 0 ELSE 1 END,"
        " m.join_seq, m.did) AS place FROM members m WHERE m.leave_seq IS NULL AND m.convo IN "
        "(SELECT"
        " s.convo FROM members s WHERE s.did = $1 AND s.leave_seq IS NULL AND s.convo > $2"
        " ORDER BY s.convo LIMIT $3)) AS ranked WHERE place <= $4 ORDER BY convo, place",
};
