/* SPDX-License-Identifier: Apache-2.0 */
/* invite_store.h: invites as statements. The unit that stores an external commit counts the use of
 * its invite (convo_store.c). */
#ifndef SERVICES_DELIVERY_STORE_INVITE_STORE_H
#define SERVICES_DELIVERY_STORE_INVITE_STORE_H

#include "sql/sql.h"

/* Create one unless the conversation has $9 open invites. */
extern const struct sql_statement invite_put;
/* Columns: id, psk_hash, target, max_uses (NULL: no limit), uses, created_by, created_ms,
 * expires_ms, revoked_ms. */
extern const struct sql_statement invite_list;
extern const struct sql_statement invite_revoke;

#endif
