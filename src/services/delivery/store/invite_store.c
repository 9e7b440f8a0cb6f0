/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/invite_store.h"

const struct sql_statement invite_put = {
    .text =
        "INSERT INTO invites (id, convo, psk_hash, target, max_uses, uses, created_by, created_ms,"
        " expires_ms) SELECT $1, $2, $3, $4, $5, 0, $6, $7, $8 WHERE (SELECT COUNT(*) FROM invites"
        " WHERE convo = $2 AND revoked_ms IS NULL AND expires_ms > $7) < $9",
};
const struct sql_statement invite_list = {
    .text = "SELECT id, psk_hash, target, NULLIF(max_uses, 0), uses, created_by, created_ms,"
            " expires_ms, revoked_ms FROM invites WHERE convo = $1"
            " AND (revoked_ms IS NULL OR CAST($2 AS BIGINT) = 1)"
            " ORDER BY created_ms DESC, id LIMIT 1000",
};
const struct sql_statement invite_revoke = {
    .text = "UPDATE invites SET revoked_ms = $2 WHERE id = $1 AND revoked_ms IS NULL",
};
