/* SPDX-License-Identifier: Apache-2.0 */
/* convo_list_store.h: the conversations of an account, as statements. */
#ifndef SERVICES_DELIVERY_STORE_CONVO_LIST_STORE_H
#define SERVICES_DELIVERY_STORE_CONVO_LIST_STORE_H

#include "sql/sql.h"

/* The first $3 conversations of $1 after $2. Columns: id, creator, epoch, suite, created_ms,
 * active_ms, name, description, group name. */
extern const struct sql_statement convo_list;
/* The first $4 members of each of them, in the same order: the caller, then by age. Columns: convo,
 * did, joined_ms, is_admin, is_moderator, members of the conversation. */
extern const struct sql_statement convo_list_members;

#endif
