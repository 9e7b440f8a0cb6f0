/* SPDX-License-Identifier: Apache-2.0 */
/* report_api.c: reports of members, warnings, and what admins see of both. The content of a report
 * is encrypted for those who read it. Nobody sees or resolves a report about themselves. */
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/store/moderation_store.h"

enum {
    REPORT_CONTENT_MAX = 50 << 10,
    REPORTS_PENDING_MAX = 20, /* of one reporter in one conversation */
    WARNINGS_MAX = 100,       /* that have not expired, of one member in one conversation */
    REPORTS_RETRY_S = 3600,   /* of a client that meets one of these limits */
    WARNING_DAYS = 30,
    WARNING_DAYS_MAX = 365,
};

/* ---- report --------------------------------------------------------------------------------- */

enum { REPORT_CONVO, REPORT_TARGET, REPORT_CATEGORY, REPORT_CONTENT };

static bool is_category(struct span category)
{
    static const char *const categories[] = { "harassment", "spam", "hate_speech", "violence",
        "sexual_content", "impersonation", "privacy_violation", "other" };

    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++)
        if (span_is(category, categories[i]))
            return true;
    return false;
}

static bool check_report(struct call_run *run)
{
    static const struct refusal invalid = REFUSE(400, "InvalidCategory",
        "category must be harassment, spam, hate_speech, violence, sexual_content, impersonation, "
        "privacy_violation or other.");
    static const struct refusal self =
        REFUSE(400, "CannotReportSelf", "reportedDid is your own; report another account.");

    if (!is_category(call_text(run, REPORT_CATEGORY)))
        return call_refuse(run, &invalid);
    if (span_equal(call_text(run, REPORT_TARGET), run->caller))
        return call_refuse(run, &self);
    return true;
}

const struct call call_report_member = {
    .params = PARAMS([REPORT_CONVO] = PARAM_CONVO, [REPORT_TARGET] = PARAM_DID("reportedDid"),
        [REPORT_CATEGORY] = PARAM_NEED_TEXT("category", 1, 64),
        [REPORT_CONTENT] = { "encryptedContent", PARAM_BYTES, PARAM_REQUIRED,
            .max = REPORT_CONTENT_MAX }),
    .role_of = &role_in_convo,
    .role = ROLE_MEMBER,
    .check = check_report,
    .steps = CALL_STEPS(
        { STEP(report_was_member, 1, ARG_PARAM(REPORT_CONVO), ARG_PARAM(REPORT_TARGET)),
            .refusal = REFUSE(404, "TargetNotMember",
                "The reported account was never a member of this conversation.") },
        { STEP(report_put, 1, ARG_ID, ARG_PARAM(REPORT_CONVO), ARG_CALLER, ARG_PARAM(REPORT_TARGET),
              ARG_PARAM(REPORT_CATEGORY), ARG_PARAM(REPORT_CONTENT), ARG_NOW_MS(0),
              ARG_INT(REPORTS_PENDING_MAX)),
            .refusal = REFUSE_MANY(REPORTS_RETRY_S, "TooManyReports",
                "20 of your reports in this conversation wait for an admin, which is the most.") },
        AUDIT("reportMember", ARG_PARAM(REPORT_CONVO), ARG_PARAM(REPORT_TARGET))),
    .fields = FIELDS(
        { "reportId", FIELD_TEXT, FIELD_ID }, { "submittedAt", FIELD_TIME_MS, FIELD_NOW(0) }),
};

/* ---- list ----------------------------------------------------------------------------------- */

static const char *const report_states[] = { "pending", "resolved", "dismissed", NULL };
enum { LIST_CONVO, LIST_STATUS, LIST_LIMIT, LIST_CURSOR };

/* A cursor is MILLISECONDS.ID of the last report seen. The check leaves the milliseconds in the
 * value's number and the id in its text. */
static bool check_cursor(struct call_run *run)
{
    struct param_value *cursor = &run->values[LIST_CURSOR];

    if (cursor->is_given && !text_get_cursor(cursor->text, '.', &cursor->number, &cursor->text))
        json_expect_fail(run->expect, "cursor", "must be the cursor of an earlier answer");
    return true;
}

const struct call call_get_reports = {
    .params = PARAMS([LIST_CONVO] = PARAM_CONVO,
        [LIST_STATUS] = { "status", PARAM_CHOICE, .fallback = -1, .choices = report_states },
        [LIST_LIMIT] = PARAM_LIMIT(100, 50), [LIST_CURSOR] = PARAM_CURSOR),
    .role_of = &role_in_convo,
    .role = ROLE_MODERATOR,
    .check = check_cursor,
    .steps = CALL_STEPS(
        { STEP(report_list, SQL_ROWS_ANY, ARG_PARAM(LIST_CONVO), ARG_CALLER, ARG_PARAM(LIST_STATUS),
            ARG_VALUE(LIST_CURSOR), ARG_PARAM(LIST_CURSOR), ARG_PARAM(LIST_LIMIT)) }),
    .fields =
        FIELDS({ "reports", FIELD_LIST,
                   ROWS(0, { "id", FIELD_TEXT, .at = 0 }, { "reporterDid", FIELD_TEXT, .at = 1 },
                       { "reportedDid", FIELD_TEXT, .at = 2 }, { "category", FIELD_TEXT, .at = 3 },
                       { "encryptedContent", FIELD_BYTES, .at = 4 },
                       { "status", FIELD_CHOICE, .at = 5, .choices = report_states },
                       { "createdAt", FIELD_TIME_MS, .at = 7 },
                       { "action", FIELD_TEXT, .at = 6, OPTIONAL },
                       { "resolvedBy", FIELD_TEXT, .at = 8, OPTIONAL },
                       { "resolvedAt", FIELD_TIME_MS, .at = 9, OPTIONAL }) },
            { "cursor", FIELD_TEXT, LAST_ROW(0, 10), OPTIONAL }),
};

/* ---- resolve -------------------------------------------------------------------------------- */

static const char *const report_actions[] = { "removed_member", "warned", "dismissed", "no_action",
    NULL };
enum { RESOLVE_REPORT, RESOLVE_ACTION };

/* Only a commit removes a member: it must be stored before a report says so. */
static bool says_removed(const struct call_run *run)
{
    return run->values[RESOLVE_ACTION].number == 0;
}

const struct call call_resolve_report = {
    .params =
        PARAMS([RESOLVE_REPORT] = PARAM_NEED_TEXT("reportId", 1, 64), [RESOLVE_ACTION] = { "action",
                                                                          PARAM_CHOICE,
                                                                          PARAM_REQUIRED,
                                                                          .choices =
                                                                              report_actions }),
    .role_of = &role_of_report,
    .role = ROLE_MODERATOR,
    .steps = CALL_STEPS({ STEP(report_is_not_about, 1, ARG_PARAM(RESOLVE_REPORT), ARG_CALLER),
                            .refusal = REFUSE(403, "CannotResolveSelf",
                                "This report is about you; another moderator resolves it.") },
        { STEP(report_is_pending, 1, ARG_PARAM(RESOLVE_REPORT)),
            .refusal = REFUSE(409, "AlreadyResolved", "This report is resolved.") },
        { STEP(report_is_still_in, 0, ARG_PARAM(RESOLVE_REPORT)), .when = says_removed,
            .refusal = REFUSE(409, "TargetStillMember",
                "The reported account is still a member; call removeMember with a commit first.") },
        { STEP(report_resolve, 1, ARG_PARAM(RESOLVE_REPORT), ARG_CALLER, ARG_WORD(RESOLVE_ACTION),
              ARG_NOW_MS(0)),
            .refusal = REFUSE(409, "AlreadyResolved", "This report is resolved.") },
        { STEP(audit_put_report, 1, ARG_RANDOM_ID, ARG_CALLER, ARG_TEXT("resolveReport"),
            ARG_PARAM(RESOLVE_REPORT), ARG_NOW_MS(0)) }),
    .fields = FIELDS({ "ok", FIELD_BOOL, FIELD_NUMBER(1) }),
};

/* ---- warn ----------------------------------------------------------------------------------- */

enum { WARN_CONVO, WARN_MEMBER, WARN_REASON, WARN_END };

static bool check_warning(struct call_run *run)
{
    static const struct refusal self =
        REFUSE(400, "CannotWarnSelf", "memberDid is your own; warn another member.");

    return !span_equal(call_text(run, WARN_MEMBER), run->caller) || call_refuse(run, &self);
}

const struct call call_warn_member = {
    .params = PARAMS([WARN_CONVO] = PARAM_CONVO, [WARN_MEMBER] = PARAM_DID("memberDid"),
        [WARN_REASON] = PARAM_NEED_TEXT("reason", 1, 500),
        [WARN_END] = { "expiresAt", PARAM_TIME, .max = WARNING_DAYS_MAX,
            .fallback = WARNING_DAYS }),
    .role_of = &role_in_convo,
    .role = ROLE_MODERATOR,
    .check = check_warning,
    .steps = CALL_STEPS({ STEP(role_find_member, 1, ARG_PARAM(WARN_CONVO), ARG_PARAM(WARN_MEMBER)),
                            .refusal = REFUSE(404, "TargetNotMember",
                                "The warned account is not a member of this conversation.") },
        { STEP(warning_put, 1, ARG_ID, ARG_PARAM(WARN_CONVO), ARG_PARAM(WARN_MEMBER), ARG_CALLER,
              ARG_PARAM(WARN_REASON), ARG_NOW_MS(0), ARG_PARAM(WARN_END), ARG_INT(WARNINGS_MAX)),
            .refusal = REFUSE_MANY(REPORTS_RETRY_S, "TooManyWarnings",
                "This member has 100 warnings, which is the most; wait until one expires.") },
        AUDIT("warnMember", ARG_PARAM(WARN_CONVO), ARG_PARAM(WARN_MEMBER))),
    .fields = FIELDS(
        { "warningId", FIELD_TEXT, FIELD_ID }, { "deliveredAt", FIELD_TIME_MS, FIELD_NOW(0) }),
};

const struct call call_list_warnings = {
    .params = PARAMS(PARAM_CONVO),
    .role_of = &role_in_convo,
    .role = ROLE_MEMBER,
    .steps =
        CALL_STEPS({ STEP(warning_list, SQL_ROWS_ANY, ARG_PARAM(0), ARG_CALLER, ARG_NOW_MS(0)) }),
    .fields = FIELDS({ "warnings", FIELD_LIST,
        ROWS(0, { "warningId", FIELD_TEXT, .at = 0 }, { "memberDid", FIELD_TEXT, .at = 1 },
            { "warnedBy", FIELD_TEXT, .at = 2 }, { "reason", FIELD_TEXT, .at = 3 },
            { "createdAt", FIELD_TIME_MS, .at = 4 }, { "expiresAt", FIELD_TIME_MS, .at = 5 }) }),
};

/* ---- figures -------------------------------------------------------------------------------- */

const struct call call_get_admin_stats = {
    .params = PARAMS(PARAM_CONVO),
    .role_of = &role_in_convo,
    .role = ROLE_ADMIN,
    .steps = CALL_STEPS({ STEP(report_count_members, 1, ARG_PARAM(0)) },
        { STEP(report_count_removed, 1, ARG_PARAM(0)) }, { STEP(warning_count, 1, ARG_PARAM(0)) },
        { STEP(report_count, 1, ARG_PARAM(0)) },
        { STEP(report_count_categories, SQL_ROWS_ANY, ARG_PARAM(0)) }),
    .fields = FIELDS({ "convoId", FIELD_TEXT, FIELD_PARAM(0) },
        { "generatedAt", FIELD_TIME_MS, FIELD_NOW(0) },
        { "stats", FIELD_OBJECT,
            .fields = FIELDS({ "members", FIELD_INT, COLUMN(0, 0) },
                { "admins", FIELD_INT, COLUMN(0, 1) }, { "moderators", FIELD_INT, COLUMN(0, 2) },
                { "totalRemovals", FIELD_INT, COLUMN(1, 0) },
                { "totalWarnings", FIELD_INT, COLUMN(2, 0) },
                { "totalReports", FIELD_INT, COLUMN(3, 0) },
                { "pendingReports", FIELD_INT, COLUMN(3, 1) },
                { "resolvedReports", FIELD_INT, COLUMN(3, 2) },
                { "dismissedReports", FIELD_INT, COLUMN(3, 3) },
                { "reportsByCategory", FIELD_MAP, MAP_ROWS(4) },
                { "averageResolutionTimeHours", FIELD_INT, COLUMN(3, 4), OPTIONAL }) }),
};
