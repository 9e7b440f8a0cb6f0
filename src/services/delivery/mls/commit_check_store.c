/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/commit_check_store.h"

#include "services/delivery/store/schema.h"

const struct sql_statement commit_check_find_context = {
    .text = "SELECT group_info, (SELECT COUNT(*) FROM members m WHERE m.convo = $1 AND m.did = $3"
            " AND m.leave_seq IS NULL) FROM convos WHERE id = $1 AND group_info_epoch = $2"
            " AND group_info IS NOT NULL",
};
const struct sql_statement commit_check_find_proposals = {
    .text = LOG_CUT("l.bytes",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind <> 1"
        " AND l.kind = 2 AND l.base_epoch = $2"
        " AND l.seq > COALESCE((SELECT c.seq FROM log c WHERE c.convo = $1 AND c.kind = 3"
        " AND c.base_epoch < $2 ORDER BY c.base_epoch DESC LIMIT 1), 0)"
        " ORDER BY l.seq LIMIT 1000",
        "$1", "$3"),
};
