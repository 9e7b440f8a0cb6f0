/* SPDX-License-Identifier: Apache-2.0 */
/* request_store.h: chat requests as statements. state is an enum of schema.h. */
#ifndef SERVICES_DELIVERY_STORE_REQUEST_STORE_H
#define SERVICES_DELIVERY_STORE_REQUEST_STORE_H

#include "sql/sql.h"

/* Delete what $1 asked $2 before, if it expired before $3 or was declined before $4: first its
 * messages, then the request. */
extern const struct sql_statement request_delete_old_held;
extern const struct sql_statement request_delete_old;
/* Create one unless the sender has $8 pending requests. A pair has one at a time. */
extern const struct sql_statement request_put;
extern const struct sql_statement request_put_held;

/* Of the recipient $2. Columns: sender, convo; bytes. */
extern const struct sql_statement request_get;
extern const struct sql_statement request_list_held;
extern const struct sql_statement request_is_open;
extern const struct sql_statement request_is_fresh;
/* Accept. A repeated call returns the same, since the first answer may have been lost. Column: when
 * it was accepted. */
extern const struct sql_statement request_accept;
/* Decline, also what was accepted before. */
extern const struct sql_statement request_decline;
extern const struct sql_statement request_delete_held;

/* Columns: id, sender, recipient, preview, convo, state, created_ms, expires_ms, held messages. */
extern const struct sql_statement request_list_received;
extern const struct sql_statement request_list_sent;
/* Columns: pending requests, when the newest came (NULL: none). */
extern const struct sql_statement request_count;

#endif
