/* SPDX-License-Identifier: Apache-2.0 */
/* invite_store.h: invites as statements. The unit that stores an external commit counts the use of
 * its invite (convo_store.c). */
#ifndef SERVICES_DELIVERY_STORE_INVITE_STORE_H
#define SERVICES_DELIVERY_STORE_INVITE_STORE_H

#include "sql/sql.h"

/* Create one unless the conversation has $9 open invites. */
SQL_STATEMENT(invite_put,
    "INSERT INTO invites (id, convo, psk_hash, target, max_uses, uses, created_by, created_ms,"
    " expires_ms) SELECT $1, $2, $3, $4, $5, 0, $6, $7, $8 WHERE (SELECT COUNT(*) FROM invites"
    " WHERE convo = $2 AND revoked_ms IS NULL AND expires_ms > $7) < $9");
/* Columns: id, psk_hash, target, max_uses (NULL: no limit), uses, created_by, created_ms,
 * expires_ms, revoked_ms. */
SQL_STATEMENT(invite_list,
    "SELECT id, psk_hash, target, NULLIF(max_uses, 0), uses, created_by, created_ms, expires_ms,"
    " revoked_ms FROM invites WHERE convo = $1 AND (revoked_ms IS NULL OR CAST($2 AS BIGINT) = 1)"
    " ORDER BY created_ms DESC, id LIMIT 1000");
SQL_STATEMENT(
    invite_revoke, "UPDATE invites SET revoked_ms = $2 WHERE id = $1 AND revoked_ms IS NULL");

#endif
