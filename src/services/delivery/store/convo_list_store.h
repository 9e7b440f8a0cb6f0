/* SPDX-License-Identifier: Apache-2.0 */
/* convo_list_store.h: the conversations of an account, as statements. */
#ifndef SERVICES_DELIVERY_STORE_CONVO_LIST_STORE_H
#define SERVICES_DELIVERY_STORE_CONVO_LIST_STORE_H

#include "sql/sql.h"

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
