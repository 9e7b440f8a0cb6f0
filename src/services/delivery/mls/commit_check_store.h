/* SPDX-License-Identifier: Apache-2.0 */
/* commit_check_store.h: the statements that read the stored epoch of a commit or proposal. */
#ifndef SERVICES_DELIVERY_MLS_COMMIT_CHECK_STORE_H
#define SERVICES_DELIVERY_MLS_COMMIT_CHECK_STORE_H

#include "sql/sql.h"

/* Reads the group info of the epoch a commit or proposal was made in, which its signature covers,
 * and whether the caller is a member. */
extern const struct sql_statement commit_check_find_context;
/* Reads the proposals of that epoch, which follow the commit that led to it. */
extern const struct sql_statement commit_check_find_proposals;

#endif
