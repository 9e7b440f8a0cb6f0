/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/push/push_store.h"

const struct sql_statement push_find_devices = {
    .text = "SELECT t.did, t.device FROM members m JOIN push_tokens t ON t.did = m.did"
            " WHERE m.convo = $1 AND m.leave_seq IS NULL AND m.did <> $2 AND (t.did, t.device) > "
            "($4, $5)"
            " ORDER BY t.did, t.device LIMIT $3",
};
const struct sql_statement push_find_token = {
    .text = "SELECT platform, token FROM push_tokens WHERE did = $1 AND device = $2",
};
