/* SPDX-License-Identifier: Apache-2.0 */
/* report_store.h: reports of members, and warnings, as statements. */
#ifndef SERVICES_DELIVERY_STORE_REPORT_STORE_H
#define SERVICES_DELIVERY_STORE_REPORT_STORE_H

#include "sql/sql.h"

/* Find a row if $2 ever was in the conversation $1, or is in it now. */
extern const struct sql_statement report_was_member;
extern const struct sql_statement report_is_member;
/* Create one unless the reporter has $8 pending reports in the conversation. */
extern const struct sql_statement report_put;
/* Reports that are not about $2, of state $3 or (-1) of any, after ($4, $5). Columns: id, reporter,
 * target, category, content, state, action, created_ms, resolved_by, resolved_ms, cursor. */
extern const struct sql_statement report_list;
/* Find the report $1 if it is not about $2; if it is pending; if its target is still a member. */
extern const struct sql_statement report_is_not_about;
extern const struct sql_statement report_is_pending;
extern const struct sql_statement report_is_still_in;
extern const struct sql_statement report_resolve;

/* Create one unless the member has $8 warnings that have not expired. */
extern const struct sql_statement warning_put;
/* List the warnings that $2 may see: its own, or all of them as an admin or moderator. Columns: id, target,
 * warned_by, reason, created_ms, expires_ms. */
extern const struct sql_statement warning_list;

/* Figures of a conversation. Columns: members, admins, moderators; removals; warnings; reports in
 * all, pending, resolved, dismissed, average hours until resolved (NULL: none is); category, count. */
extern const struct sql_statement report_count_members;
extern const struct sql_statement report_count_removed;
extern const struct sql_statement warning_count;
extern const struct sql_statement report_count;
extern const struct sql_statement report_count_categories;

#endif
