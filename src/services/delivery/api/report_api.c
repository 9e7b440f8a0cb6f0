/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/report_api.h"

#include <stdio.h>
#include <string.h>

#include "services/delivery/api/package.h"
#include "services/delivery/api/role_api.h"
#include "services/delivery/api/text.h"
#include "services/delivery/store/schema.h"

static struct role_question asks(struct span convo, enum role least)
{
    return (struct role_question){ &role_in_convo, convo, least };
}

/* ---- report --------------------------------------------------------------------------------- */

static const char *const categories[] = { "harassment", "spam", "hate_speech", "violence",
    "sexual_content", "impersonation", "privacy_violation", "other" };

/* Who left can still be reported. */
SQL_STATEMENT(was_member, "SELECT 1 FROM members WHERE convo = $1 AND did = $2 LIMIT 1");
SQL_STATEMENT(put_report,
    "INSERT INTO reports (id, convo, reporter, target, category, content, state, created_ms)"
    " SELECT $1, $2, $3, $4, $5, $6, 0, $7 WHERE (SELECT COUNT(*) FROM reports WHERE convo = $2"
    " AND reporter = $3 AND state = 0) < $8");

static void report_stored(struct http_request *request, const struct tr_event *event)
{
    struct api_query_made *made = db_query_with(request);
    struct sql_unit *unit = role_back(request, event, &role_in_convo);

    if (unit == NULL)
        return;
    if (sql_unit_status(unit) == 0) {
        db_query_end(request);
        api_query_respond_made(request, made, "reportId", "submittedAt");
    } else if (role_failed_at(unit) == &was_member) {
        role_refuse(request, 404, "TargetNotMember", "whom you report was never a member");
    } else {
        role_refuse_many(
            request, REPORTS_RETRY_S, "TooManyReports", "your other reports wait for an admin");
    }
}

static void add_report(struct sql_unit *unit, const struct api_query_made *made, struct span convo,
    struct span reporter, struct span target)
{
    sql_unit_step(unit, &was_member, 1);
    sql_unit_text(unit, convo);
    sql_unit_text(unit, target);
    sql_unit_step(unit, &put_report, 1);
    sql_unit_text(unit, api_query_made_id(made));
    sql_unit_text(unit, convo);
    sql_unit_text(unit, reporter);
    sql_unit_text(unit, target);
}

static bool is_category(struct span category)
{
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++)
        if (span_is(category, categories[i]))
            return true;
    return false;
}

void api_report_member(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span convo, target, category, content, did = auth_claims_of(request)->issuer;
    struct api_query_made *made = api_query_make(request);
    struct role_question asked;
    struct sql_unit *unit;
    struct api_body body;

    if (made == NULL || !api_query_begin(request, &body))
        return;
    convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    target = json_need_string(&body.expect, "reportedDid", DID_SIZE_MIN, DID_SIZE_MAX);
    category = json_need_string(&body.expect, "category", 1, 64);
    content = api_need_bytes(&body, "encryptedContent", REPORT_CONTENT_MAX);
    if (!api_query_is_good(request, &body))
        return;
    if (!is_category(category)) {
        api_refuse(request, &body, 400, "InvalidCategory", "this category is not known here");
        return;
    }
    if (span_equal(target, did)) {
        api_refuse(request, &body, 400, "CannotReportSelf", "report somebody else");
        return;
    }
    asked = asks(convo, ROLE_MEMBER);
    unit = role_write(request, &asked);
    if (unit != NULL) {
        add_report(unit, made, convo, did, target);
        sql_unit_text(unit, category);
        sql_unit_blob(unit, content.at, content.size);
        sql_unit_int(unit, made->now_ms);
        sql_unit_int(unit, REPORTS_PENDING_MAX);
        audit_add(delivery, unit,
            &(struct audit_entry){ .actor = did,
                .action = "reportMember",
                .convo = convo,
                .target = target,
                .now_ms = made->now_ms });
    }
    api_query_end(&body);
    db_query_run_with(request, delivery, unit, false, report_stored, made, api_query_keep);
}

/* ---- list ----------------------------------------------------------------------------------- */

SQL_STATEMENT(list_reports,
    "SELECT id, reporter, target, category, content, state, action, created_ms, resolved_by,"
    " resolved_ms FROM reports WHERE convo = $1 AND target <> $2 AND state >= $3 AND state <= $4"
    " AND (created_ms > $5 OR (created_ms = $5 AND id > $6)) ORDER BY created_ms, id LIMIT $7");

static const char *const states[] = { "pending", "resolved", "dismissed" };

static void put_report_view(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    const uint32_t step = ROLE_STEPS;

    json_put_object(writer, NULL);
    json_put_string(writer, "id", sql_row_bytes(unit, step, row, 0));
    json_put_string(writer, "reporterDid", sql_row_bytes(unit, step, row, 1));
    json_put_string(writer, "reportedDid", sql_row_bytes(unit, step, row, 2));
    json_put_string(writer, "category", sql_row_bytes(unit, step, row, 3));
    delivery_put_bytes(writer, "encryptedContent", sql_row_bytes(unit, step, row, 4));
    json_put_text(writer, "status", states[sql_row_int(unit, step, row, 5)]);
    delivery_put_time(writer, "createdAt", sql_row_int(unit, step, row, 7));
    if (!sql_row_is_null(unit, step, row, 9)) {
        json_put_string(writer, "action", sql_row_bytes(unit, step, row, 6));
        json_put_string(writer, "resolvedBy", sql_row_bytes(unit, step, row, 8));
        delivery_put_time(writer, "resolvedAt", sql_row_int(unit, step, row, 9));
    }
    json_put_end(writer);
}

static void reports_listed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    uint32_t count;
    char cursor[64];

    if (unit == NULL)
        return;
    count = sql_unit_rows(unit, ROLE_STEPS);
    json_put_object(&writer, NULL);
    json_put_array(&writer, "reports");
    for (uint32_t row = 0; row < count; row++)
        put_report_view(&writer, unit, row);
    json_put_end(&writer);
    if (count > 0) {
        struct span id = sql_row_bytes(unit, ROLE_STEPS, count - 1, 0);

        (void)snprintf(cursor, sizeof cursor, "%lld.%.*s",
            (long long)sql_row_int(unit, ROLE_STEPS, count - 1, 7), (int)id.size, id.at);
        json_put_text(&writer, "cursor", cursor);
    }
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

/* "milliseconds.id" of the last one seen. */
static bool read_cursor(struct http_request *request, uint64_t *ret_ms, struct span *ret_id)
{
    struct span text = { 0 };
    const char *dot;
    int found = api_query_query(request, "cursor", &text);

    *ret_ms = 0;
    *ret_id = SPAN("");
    if (found <= 0)
        return found == 0;
    dot = memchr(text.at, '.', text.size);
    if (dot != NULL && span_u64((struct span){ text.at, (size_t)(dot - text.at) }, ret_ms) &&
        *ret_ms <= INT64_MAX) {
        *ret_id = (struct span){ dot + 1, text.size - (size_t)(dot + 1 - text.at) };
        return true;
    }
    http_respond_error(request, 400, "InvalidRequest", "cursor must be one that was given");
    return false;
}

void api_get_reports(struct http_request *request)
{
    struct role_question asked;
    struct span convo, id;
    struct sql_unit *unit;
    uint64_t limit = 50, from_ms;
    int64_t min = REPORT_PENDING, max = REPORT_DISMISSED;
    int found;

    if (!api_query_query_convo(request, &convo))
        return;
    found = api_query_query_choice(request, "status", states, REPORT_DISMISSED + 1, &min);
    if (found < 0 || !api_query_query_number(request, "limit", 100, &limit) ||
        !read_cursor(request, &from_ms, &id))
        return;
    if (found == 1)
        max = min;
    asked = asks(convo, ROLE_MODERATOR);
    unit = role_read(request, &asked);
    if (unit != NULL) {
        sql_unit_step(unit, &list_reports, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, min);
        sql_unit_int(unit, max);
        sql_unit_int(unit, (int64_t)from_ms);
        sql_unit_text(unit, id);
        sql_unit_int(unit, (int64_t)limit);
    }
    db_query_run(request, http_service(request), unit, true, reports_listed);
}

/* ---- resolve -------------------------------------------------------------------------------- */

SQL_STATEMENT(is_not_about, "SELECT 1 FROM reports WHERE id = $1 AND target <> $2");
SQL_STATEMENT(is_pending, "SELECT 1 FROM reports WHERE id = $1 AND state = 0");
/* Only a commit removes somebody from a group: it has to be there before anybody says so. */
SQL_STATEMENT(is_still_in, "SELECT 1 FROM reports r JOIN members m ON m.convo = r.convo"
                           " AND m.did = r.target AND m.leave_seq IS NULL WHERE r.id = $1");
SQL_STATEMENT(resolve,
    "UPDATE reports SET state = $3, action = $4, resolved_by = $2, resolved_ms = $5"
    " WHERE id = $1 AND state = 0");

static void report_resolved(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_of_report);
    const struct sql_statement *at = unit == NULL ? NULL : role_failed_at(unit);

    if (unit == NULL)
        return;
    if (at == &is_not_about) {
        role_refuse(request, 403, "CannotResolveSelf", "this report is about you");
    } else if (at == &is_still_in) {
        role_refuse(request, 409, "TargetStillMember", "call removeMember with a commit first");
    } else if (at != NULL) {
        role_refuse(request, 409, "AlreadyResolved", "this report was resolved before");
    } else {
        db_query_end(request);
        http_respond(request, 200, "application/json", SPAN("{\"ok\":true}"));
    }
}

static void add_resolve_guards(
    struct sql_unit *unit, struct span id, struct span did, struct span action)
{
    sql_unit_step(unit, &is_not_about, 1);
    sql_unit_text(unit, id);
    sql_unit_text(unit, did);
    sql_unit_step(unit, &is_pending, 1);
    sql_unit_text(unit, id);
    if (span_is(action, "removed_member")) {
        sql_unit_step(unit, &is_still_in, 0);
        sql_unit_text(unit, id);
    }
}

void api_resolve_report(struct http_request *request)
{
    struct role_question asked = { &role_of_report, { NULL, 0 }, ROLE_MODERATOR };
    struct delivery *delivery = http_service(request);
    struct span action, did = auth_claims_of(request)->issuer;
    int64_t now_ms = delivery_now_ms(delivery);
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    asked.id = json_need_string(&body.expect, "reportId", 1, 64);
    action = json_need_string(&body.expect, "action", 1, 32);
    if (!body.expect.failed && !span_is(action, "removed_member") &&
        !span_is(action, "dismissed") && !span_is(action, "no_action") &&
        !span_is(action, "warned"))
        json_expect_fail(
            &body.expect, "action", "must be removed_member, warned, dismissed or no_action");
    if (!api_query_is_good(request, &body))
        return;
    unit = role_write(request, &asked);
    if (unit != NULL) {
        add_resolve_guards(unit, asked.id, did, action);
        sql_unit_step(unit, &resolve, 1);
        sql_unit_text(unit, asked.id);
        sql_unit_text(unit, did);
        sql_unit_int(unit, span_is(action, "dismissed") ? REPORT_DISMISSED : REPORT_RESOLVED);
        sql_unit_text(unit, action);
        sql_unit_int(unit, now_ms);
        audit_add(delivery, unit,
            &(struct audit_entry){
                .actor = did, .action = "resolveReport", .report = asked.id, .now_ms = now_ms });
    }
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, report_resolved);
}

/* ---- warn ----------------------------------------------------------------------------------- */

SQL_STATEMENT(
    is_member, "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");
SQL_STATEMENT(put_warning,
    "INSERT INTO warnings (id, convo, target, warned_by, reason, created_ms, expires_ms)"
    " SELECT $1, $2, $3, $4, $5, $6, $7 WHERE (SELECT COUNT(*) FROM warnings WHERE convo = $2"
    " AND target = $3 AND expires_ms > $6) < $8");

static void warning_stored(struct http_request *request, const struct tr_event *event)
{
    struct api_query_made *made = db_query_with(request);
    struct sql_unit *unit = role_back(request, event, &role_in_convo);

    if (unit == NULL)
        return;
    if (sql_unit_status(unit) == 0) {
        db_query_end(request);
        api_query_respond_made(request, made, "warningId", "deliveredAt");
    } else if (role_failed_at(unit) == &is_member) {
        role_refuse(request, 404, "TargetNotMember", "whom you warn is not a member");
    } else {
        role_refuse_many(
            request, REPORTS_RETRY_S, "TooManyWarnings", "this member was warned often enough");
    }
}

static int64_t read_end(struct api_body *body, int64_t now_ms)
{
    struct span text = json_may_string(&body->expect, "expiresAt", 1, 40);
    int64_t end_s;

    if (text.at == NULL)
        return now_ms + (int64_t)WARNING_DAYS * 86400000;
    if (!delivery_get_time(text, &end_s) || end_s <= now_ms / 1000 ||
        end_s > now_ms / 1000 + (int64_t)WARNING_DAYS_MAX * 86400) {
        json_expect_fail(&body->expect, "expiresAt", "must be a time within the next 365 days");
        return 0;
    }
    return end_s * 1000;
}

void api_warn_member(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span convo, target, reason, did = auth_claims_of(request)->issuer;
    struct api_query_made *made = api_query_make(request);
    struct role_question asked;
    struct sql_unit *unit;
    struct api_body body;
    int64_t end_ms;

    if (made == NULL || !api_query_begin(request, &body))
        return;
    convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    target = json_need_string(&body.expect, "memberDid", DID_SIZE_MIN, DID_SIZE_MAX);
    reason = json_need_string(&body.expect, "reason", 1, 500);
    end_ms = read_end(&body, made->now_ms);
    if (!api_query_is_good(request, &body))
        return;
    if (span_equal(target, did)) {
        api_refuse(request, &body, 400, "CannotWarnSelf", "warn somebody else");
        return;
    }
    asked = asks(convo, ROLE_MODERATOR);
    unit = role_write(request, &asked);
    if (unit != NULL) {
        sql_unit_step(unit, &is_member, 1);
        sql_unit_text(unit, convo);
        sql_unit_text(unit, target);
        sql_unit_step(unit, &put_warning, 1);
        sql_unit_text(unit, api_query_made_id(made));
        sql_unit_text(unit, convo);
        sql_unit_text(unit, target);
        sql_unit_text(unit, did);
        sql_unit_text(unit, reason);
        sql_unit_int(unit, made->now_ms);
        sql_unit_int(unit, end_ms);
        sql_unit_int(unit, WARNINGS_MAX);
        audit_add(delivery, unit,
            &(struct audit_entry){ .actor = did,
                .action = "warnMember",
                .convo = convo,
                .target = target,
                .now_ms = made->now_ms });
    }
    api_query_end(&body);
    db_query_run_with(request, delivery, unit, false, warning_stored, made, api_query_keep);
}

/* Everybody sees their own warnings; who may warn sees all. */
SQL_STATEMENT(list_warnings,
    "SELECT w.id, w.target, w.warned_by, w.reason, w.created_ms, w.expires_ms FROM warnings w"
    " WHERE w.convo = $1 AND w.expires_ms > $3 AND (w.target = $2 OR EXISTS (SELECT 1"
    " FROM members m WHERE m.convo = $1 AND m.did = $2 AND m.leave_seq IS NULL"
    " AND m.is_admin + m.is_moderator > 0)) ORDER BY w.created_ms DESC, w.id LIMIT 1000");

static void warnings_listed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    const uint32_t step = ROLE_STEPS;
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "warnings");
    for (uint32_t row = 0; row < sql_unit_rows(unit, step); row++) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "warningId", sql_row_bytes(unit, step, row, 0));
        json_put_string(&writer, "memberDid", sql_row_bytes(unit, step, row, 1));
        json_put_string(&writer, "warnedBy", sql_row_bytes(unit, step, row, 2));
        json_put_string(&writer, "reason", sql_row_bytes(unit, step, row, 3));
        delivery_put_time(&writer, "createdAt", sql_row_int(unit, step, row, 4));
        delivery_put_time(&writer, "expiresAt", sql_row_int(unit, step, row, 5));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_list_warnings(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct role_question asked;
    struct sql_unit *unit;
    struct span convo;

    if (!api_query_query_convo(request, &convo))
        return;
    asked = asks(convo, ROLE_MEMBER);
    unit = role_read(request, &asked);
    if (unit != NULL) {
        sql_unit_step(unit, &list_warnings, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, delivery_now_ms(delivery));
    }
    db_query_run(request, delivery, unit, true, warnings_listed);
}

/* ---- figures -------------------------------------------------------------------------------- */

SQL_STATEMENT(count_members, "SELECT COUNT(*), CAST(COALESCE(SUM(is_admin), 0) AS BIGINT),"
                             " CAST(COALESCE(SUM(is_moderator), 0) AS BIGINT) FROM members WHERE "
                             "convo = $1 AND leave_seq IS NULL");
SQL_STATEMENT(count_removed, "SELECT COUNT(*) FROM members WHERE convo = $1 AND was_removed = 1");
SQL_STATEMENT(count_reports,
    "SELECT category, state, COUNT(*), CAST(COALESCE(SUM(resolved_ms - created_ms), 0) AS BIGINT)"
    " FROM reports WHERE convo = $1 GROUP BY category, state ORDER BY category, state");
SQL_STATEMENT(count_warnings, "SELECT COUNT(*) FROM warnings WHERE convo = $1");

enum { STEP_MEMBERS = ROLE_STEPS, STEP_REMOVED, STEP_REPORTS, STEP_WARNINGS };

static int64_t sum_reports(const struct sql_unit *unit, const char *category, int64_t state)
{
    int64_t sum = 0;

    for (uint32_t row = 0; row < sql_unit_rows(unit, STEP_REPORTS); row++)
        if ((category == NULL || span_is(sql_row_bytes(unit, STEP_REPORTS, row, 0), category)) &&
            (state < 0 || sql_row_int(unit, STEP_REPORTS, row, 1) == state))
            sum += sql_row_int(unit, STEP_REPORTS, row, 2);
    return sum;
}

static void put_report_figures(struct json_writer *writer, const struct sql_unit *unit)
{
    int64_t total = sum_reports(unit, NULL, -1);
    int64_t pending = sum_reports(unit, NULL, REPORT_PENDING), taken_ms = 0;

    json_put_int(writer, "totalReports", total);
    json_put_int(writer, "pendingReports", pending);
    json_put_int(writer, "resolvedReports", sum_reports(unit, NULL, REPORT_RESOLVED));
    json_put_int(writer, "dismissedReports", sum_reports(unit, NULL, REPORT_DISMISSED));
    json_put_object(writer, "reportsByCategory");
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++)
        if (sum_reports(unit, categories[i], -1) > 0)
            json_put_int(writer, categories[i], sum_reports(unit, categories[i], -1));
    json_put_end(writer);
    for (uint32_t row = 0; row < sql_unit_rows(unit, STEP_REPORTS); row++)
        taken_ms += sql_row_int(unit, STEP_REPORTS, row, 3);
    if (total > pending)
        json_put_int(writer, "averageResolutionTimeHours", taken_ms / (total - pending) / 3600000);
}

static void stats_counted(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    struct delivery *delivery = http_service(request);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo;

    if (unit == NULL)
        return;
    (void)http_parameter(request, "convoId", &convo);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "convoId", convo);
    delivery_put_time(&writer, "generatedAt", delivery_now_ms(delivery));
    json_put_object(&writer, "stats");
    json_put_int(&writer, "members", sql_row_int(unit, STEP_MEMBERS, 0, 0));
    json_put_int(&writer, "admins", sql_row_int(unit, STEP_MEMBERS, 0, 1));
    json_put_int(&writer, "moderators", sql_row_int(unit, STEP_MEMBERS, 0, 2));
    json_put_int(&writer, "totalRemovals", sql_row_int(unit, STEP_REMOVED, 0, 0));
    json_put_int(&writer, "totalWarnings", sql_row_int(unit, STEP_WARNINGS, 0, 0));
    put_report_figures(&writer, unit);
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_admin_stats(struct http_request *request)
{
    static const struct sql_statement *const steps[] = { &count_members, &count_removed,
        &count_reports, &count_warnings };
    struct role_question asked;
    struct sql_unit *unit;
    struct span convo;

    if (!api_query_query_convo(request, &convo))
        return;
    asked = asks(convo, ROLE_ADMIN);
    unit = role_read(request, &asked);
    for (size_t i = 0; unit != NULL && i < sizeof steps / sizeof steps[0]; i++) {
        sql_unit_step(unit, steps[i], SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
    }
    db_query_run(request, http_service(request), unit, true, stats_counted);
}
