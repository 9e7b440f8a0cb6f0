/* SPDX-License-Identifier: Apache-2.0 */
/* push_store.h: the statements about devices and tokens to wake. */
#ifndef SERVICES_DELIVERY_PUSH_PUSH_STORE_H
#define SERVICES_DELIVERY_PUSH_PUSH_STORE_H

#include "sql/sql.h"

SQL_STATEMENT(push_find_devices,
    "SELECT t.did, t.device FROM members m JOIN push_tokens t ON t.did = m.did"
    " WHERE m.convo = $1 AND m.leave_seq IS NULL AND m.did <> COALESCE($2, '')"
    " AND (t.did, t.device) > ($4, $5) ORDER BY t.did, t.device LIMIT $3");
SQL_STATEMENT(
    push_find_token, "SELECT platform, token FROM push_tokens WHERE did = $1 AND device = $2");
SQL_STATEMENT(
    push_forget_token, "DELETE FROM push_tokens WHERE did = $1 AND device = $2 AND token = $3");

#endif
