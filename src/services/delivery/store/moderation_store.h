/* SPDX-License-Identifier: Apache-2.0 */
/* moderation_store.h: reports of members, warnings and invites as statements. The unit that stores an
 * external commit counts the use of its invite (convo_store.c). */
#ifndef SERVICES_DELIVERY_STORE_MODERATION_STORE_H
#define SERVICES_DELIVERY_STORE_MODERATION_STORE_H

#include "sql/sql.h"

/* Find a row if $2 ever was in the conversation $1, or is in it now. */
SQL_STATEMENT(report_was_member, "SELECT 1 FROM members WHERE convo = $1 AND did = $2 LIMIT 1");
/* Create one unless the reporter has $8 pending reports in the conversation. */
SQL_STATEMENT(report_put,
    "INSERT INTO reports (id, convo, reporter, target, category, content, state, created_ms)"
    " SELECT $1, $2, $3, $4, $5, $6, 0, $7 WHERE (SELECT COUNT(*) FROM reports WHERE convo = $2"
    " AND reporter = $3 AND state = 0) < $8");
/* Reports that are not about $2, of state $3 or (-1) of any, after ($4, $5). Columns: id, reporter,
 * target, category, content, state, action, created_ms, resolved_by, resolved_ms, cursor. */
SQL_STATEMENT(report_list,
    "SELECT id, reporter, target, category, content, state, action, created_ms, resolved_by,"
    " resolved_ms, created_ms || '.' || id FROM reports WHERE convo = $1 AND target <> $2"
    " AND (CAST($3 AS BIGINT) < 0 OR state = $3) AND (created_ms > $4 OR (created_ms = $4"
    " AND id > $5)) ORDER BY created_ms, id LIMIT $6");
/* Find the report $1 if it is not about $2; if it is pending; if its target is still a member. */
SQL_STATEMENT(report_is_not_about, "SELECT 1 FROM reports WHERE id = $1 AND target <> $2");
SQL_STATEMENT(report_is_pending, "SELECT 1 FROM reports WHERE id = $1 AND state = 0");
SQL_STATEMENT(report_is_still_in,
    "SELECT 1 FROM reports r JOIN members m ON m.convo = r.convo AND m.did = r.target"
    " AND m.leave_seq IS NULL WHERE r.id = $1");
SQL_STATEMENT(report_resolve,
    "UPDATE reports SET state = CASE WHEN $3 = 'dismissed' THEN 2"
    " ELSE 1 END, action = $3, resolved_by = $2, resolved_ms = $4 WHERE id = $1 AND state = 0");

/* Create one unless the member has $8 warnings that have not expired. */
SQL_STATEMENT(warning_put,
    "INSERT INTO warnings (id, convo, target, warned_by, reason, created_ms, expires_ms)"
    " SELECT $1, $2, $3, $4, $5, $6, $7 WHERE (SELECT COUNT(*) FROM warnings WHERE convo = $2"
    " AND target = $3 AND expires_ms > $6) < $8");
/* List the warnings that $2 may see: its own, or all of them as an admin or moderator. Columns: id, target,
 * warned_by, reason, created_ms, expires_ms. */
SQL_STATEMENT(warning_list,
    "SELECT w.id, w.target, w.warned_by, w.reason, w.created_ms, w.expires_ms"
    " FROM warnings w WHERE w.convo = $1 AND w.expires_ms > $3 AND (w.target = $2"
    " OR EXISTS (SELECT 1 FROM members m WHERE m.convo = $1 AND m.did = $2 AND m.leave_seq IS NULL"
    " AND m.is_admin + m.is_moderator > 0)) ORDER BY w.created_ms DESC, w.id LIMIT 1000");

/* Figures of a conversation. Columns: members, admins, moderators, removals, warnings; reports in all,
 * pending, resolved, dismissed, average hours until resolved (NULL: none is); category, count. */
SQL_STATEMENT(report_count_members,
    "SELECT COUNT(*), CAST(COALESCE(SUM(is_admin), 0) AS BIGINT), CAST(COALESCE(SUM(is_moderator),"
    " 0) AS BIGINT), (SELECT COUNT(*) FROM members r WHERE r.convo = $1 AND r.was_removed = 1),"
    " (SELECT COUNT(*) FROM warnings w WHERE w.convo = $1) FROM members WHERE convo = $1"
    " AND leave_seq IS NULL");
SQL_STATEMENT(report_count,
    "SELECT COUNT(*), COUNT(CASE WHEN state = 0 THEN 1 END), COUNT(CASE WHEN state = 1 THEN 1 END),"
    " COUNT(CASE WHEN state = 2 THEN 1 END), CAST(COALESCE(SUM(resolved_ms - created_ms),"
    " 0) AS BIGINT) / NULLIF(COUNT(CASE WHEN state > 0 THEN 1 END), 0) / 3600000 FROM reports"
    " WHERE convo = $1");
SQL_STATEMENT(report_count_categories,
    "SELECT category, COUNT(*) FROM reports WHERE convo = $1 GROUP BY category ORDER BY category");

/* ---- invites --------------------------------------------------------------------------------- */

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
