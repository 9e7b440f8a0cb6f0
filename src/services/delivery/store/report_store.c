/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/report_store.h"

const struct sql_statement report_was_member = {
    .text = "SELECT 1 FROM members WHERE convo = $1 AND did = $2 LIMIT 1",
};
const struct sql_statement report_is_member = {
    .text = "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL",
};
const struct sql_statement report_put = {
    .text =
        "INSERT INTO reports (id, convo, reporter, target, category, content, state, created_ms)"
        " SELECT $1, $2, $3, $4, $5, $6, 0, $7 WHERE (SELECT COUNT(*) FROM reports WHERE convo = $2"
        " AND reporter = $3 AND state = 0) < $8",
};
const struct sql_statement report_list = {
    .text = "SELECT id, reporter, target, category, content, state, action, created_ms,"
            " resolved_by, resolved_ms, created_ms || '.' || id FROM reports WHERE convo = $1"
            " AND target <> $2 AND (CAST($3 AS BIGINT) < 0 OR state = $3)"
            " AND (created_ms > $4 OR (created_ms = $4 AND id > $5))"
            " ORDER BY created_ms, id LIMIT $6",
};
const struct sql_statement report_is_not_about = {
    .text = "SELECT 1 FROM reports WHERE id = $1 AND target <> $2",
};
const struct sql_statement report_is_pending = {
    .text = "SELECT 1 FROM reports WHERE id = $1 AND state = 0",
};
const struct sql_statement report_is_still_in = {
    .text = "SELECT 1 FROM reports r JOIN members m ON m.convo = r.convo"
            " AND m.did = r.target AND m.leave_seq IS NULL WHERE r.id = $1",
};
const struct sql_statement report_resolve = {
    .text = "UPDATE reports SET state = CASE WHEN $3 = 'dismissed' THEN 2 ELSE 1 END, action = $3,"
            " resolved_by = $2, resolved_ms = $4 WHERE id = $1 AND state = 0",
};
const struct sql_statement warning_put = {
    .text =
        "INSERT INTO warnings (id, convo, target, warned_by, reason, created_ms, expires_ms)"
        " SELECT $1, $2, $3, $4, $5, $6, $7 WHERE (SELECT COUNT(*) FROM warnings WHERE convo = $2"
        " AND target = $3 AND expires_ms > $6) < $8",
};
const struct sql_statement warning_list = {
    .text =
        "SELECT w.id, w.target, w.warned_by, w.reason, w.created_ms, w.expires_ms FROM warnings w"
        " WHERE w.convo = $1 AND w.expires_ms > $3 AND (w.target = $2 OR EXISTS (SELECT 1"
        " FROM members m WHERE m.convo = $1 AND m.did = $2 AND m.leave_seq IS NULL"
        " AND m.is_admin + m.is_moderator > 0)) ORDER BY w.created_ms DESC, w.id LIMIT 1000",
};
const struct sql_statement report_count_members = {
    .text = "SELECT COUNT(*), CAST(COALESCE(SUM(is_admin), 0) AS BIGINT),"
            " CAST(COALESCE(SUM(is_moderator), 0) AS BIGINT) FROM members"
            " WHERE convo = $1 AND leave_seq IS NULL",
};
const struct sql_statement report_count_removed = {
    .text = "SELECT COUNT(*) FROM members WHERE convo = $1 AND was_removed = 1",
};
const struct sql_statement warning_count = {
    .text = "SELECT COUNT(*) FROM warnings WHERE convo = $1",
};
const struct sql_statement report_count = {
    .text = "SELECT COUNT(*), COUNT(CASE WHEN state = 0 THEN 1 END),"
            " COUNT(CASE WHEN state = 1 THEN 1 END), COUNT(CASE WHEN state = 2 THEN 1 END),"
            " CAST(COALESCE(SUM(resolved_ms - created_ms), 0) AS BIGINT)"
            " / NULLIF(COUNT(CASE WHEN state > 0 THEN 1 END), 0) / 3600000"
            " FROM reports WHERE convo = $1",
};
const struct sql_statement report_count_categories = {
    .text = "SELECT category, COUNT(*) FROM reports WHERE convo = $1 GROUP BY category"
            " ORDER BY category",
};
