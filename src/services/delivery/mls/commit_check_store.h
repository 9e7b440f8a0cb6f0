/* SPDX-License-Identifier: Apache-2.0 */
/* commit_check_store.h: the statements that read the stored epoch of a commit or proposal. */
#ifndef SERVICES_DELIVERY_MLS_COMMIT_CHECK_STORE_H
#define SERVICES_DELIVERY_MLS_COMMIT_CHECK_STORE_H

#include "services/delivery/store/schema.h"

/* Reads the group info of the epoch a commit or proposal was made in, which its signature covers,
 * and whether the caller is a member. */
SQL_STATEMENT(commit_check_find_context,
    "SELECT group_info, (SELECT COUNT(*) FROM members m WHERE m.convo = $1 AND m.did = $3"
    " AND m.leave_seq IS NULL) FROM convos WHERE id = $1 AND group_info_epoch = $2"
    " AND group_info IS NOT NULL");
/* Reads the proposals of that epoch, which follow the commit that led to it. */
SQL_STATEMENT(commit_check_find_proposals,
    LOG_CUT("l.bytes",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind <> 1"
        " AND l.kind = 2 AND l.base_epoch = $2"
        " AND l.seq > COALESCE((SELECT c.seq FROM log c WHERE c.convo = $1 AND c.kind = 3"
        " AND c.base_epoch < $2 ORDER BY c.base_epoch DESC LIMIT 1), 0)"
        " ORDER BY l.seq LIMIT 1000",
        "$1", "$3"));

#endif
