/* SPDX-License-Identifier: Apache-2.0 */
/* moderation_api.c: reports of members, warnings, what admins see of both, and invites. The content of
 * a report is encrypted for those who read it. Nobody sees or resolves a report about themselves. */
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
    if (!is_category(call_text(run, "category")))
        return call_refuse(run, 400, "InvalidCategory",
            "category must be harassment, spam, hate_speech, violence, sexual_content, "
            "impersonation, "
            "privacy_violation or other.");
    if (span_equal(call_text(run, "reportedDid"), run->caller))
        return call_refuse(
            run, 400, "CannotReportSelf", "reportedDid is your own; report another account.");
    return true;
}

const struct call call_report_member = {
    .params = PARAMS(PARAM_CONVO, PARAM_DID("reportedDid"), PARAM_NEED_TEXT("category", 1, 64),
        { "encryptedContent", PARAM_BYTES, PARAM_REQUIRED, .max = REPORT_CONTENT_MAX }),
    IN_CONVO(ROLE_MEMBER),
    .check = check_report,
    .steps = CALL_STEPS(STEP_ROWS(1, report_was_member, "convoId reportedDid",
                            .refusal = REFUSE(404, "TargetNotMember",
                                "The reported account was never a member of this conversation.")),
        STEP_ROWS(1, report_put, "@id convoId @caller reportedDid category encryptedContent @now #",
            WITH(REPORTS_PENDING_MAX),
            .refusal = REFUSE_MANY(REPORTS_RETRY_S, "TooManyReports",
                "20 of your reports in this conversation wait for an admin, which is the most.")),
        AUDIT("reportMember", "convoId", "reportedDid")),
    .fields = FIELDS({ "reportId", FIELD_TEXT, FIELD_ID }, TIME_NOW("submittedAt", 0)),
};

/* ---- list ----------------------------------------------------------------------------------- */

static const char *const report_states[] = { "pending", "resolved", "dismissed", NULL };

/* A cursor is MILLISECONDS.ID of the last report seen. The check leaves the milliseconds in the
 * value's number and the id in its text. */
static bool check_cursor(struct call_run *run)
{
    struct param_value *cursor = call_value(run, "cursor");

    if (cursor->is_given && !text_get_cursor(cursor->text, '.', &cursor->number, &cursor->text))
        json_expect_fail(run->expect, "cursor", "must be the cursor of an earlier answer");
    return true;
}

const struct call call_get_reports = {
    .params =
        PARAMS(PARAM_CONVO, { "status", PARAM_CHOICE, .fallback = -1, .choices = report_states },
            PARAM_LIMIT(100, 50), PARAM_CURSOR),
    IN_CONVO(ROLE_MODERATOR),
    .check = check_cursor,
    .steps = CALL_STEPS(STEP(report_list, "convoId @caller status cursor.number cursor limit")),
    .fields = FIELDS(ROWS("reports", 0, TEXT_AT("id", 0), TEXT_AT("reporterDid", 1),
                         TEXT_AT("reportedDid", 2), TEXT_AT("category", 3),
                         BYTES_AT("encryptedContent", 4), CHOICE_AT("status", 5, report_states),
                         TIME_AT("createdAt", 7), TEXT_AT("action", 6, OPTIONAL),
                         TEXT_AT("resolvedBy", 8, OPTIONAL), TIME_AT("resolvedAt", 9, OPTIONAL)),
        CURSOR_OF(0, 10)),
};

/* ---- resolve -------------------------------------------------------------------------------- */

static const char *const report_actions[] = { "removed_member", "warned", "dismissed", "no_action",
    NULL };

/* Only a commit removes a member: it must be stored before a report says so. */
static bool says_removed(const struct call_run *run)
{
    return call_number(run, "action") == 0;
}

const struct call call_resolve_report = {
    .params = PARAMS(PARAM_NEED_TEXT("reportId", 1, 64),
        { "action", PARAM_CHOICE, PARAM_REQUIRED, .choices = report_actions }),
    .role_of = &role_of_report,
    .role = ROLE_MODERATOR,
    .steps = CALL_STEPS(STEP_ROWS(1, report_is_not_about, "reportId @caller",
                            .refusal = REFUSE(403, "CannotResolveSelf",
                                "This report is about you; another moderator resolves it.")),
        STEP_ROWS(1, report_is_pending, "reportId",
            .refusal = REFUSE(409, "AlreadyResolved", "This report is resolved.")),
        STEP_ROWS(0, report_is_still_in, "reportId", .when = says_removed,
            .refusal = REFUSE(409, "TargetStillMember",
                "The reported account is still a member; call removeMember with a commit first.")),
        STEP_ROWS(1, report_resolve, "reportId @caller action.text @now",
            .refusal = REFUSE(409, "AlreadyResolved", "This report is resolved.")),
        STEP_ROWS(1, audit_put_report, "@random_id @caller 'resolveReport' reportId @now")),
    .fields = FIELDS(TRUE_FIELD("ok")),
};

/* ---- warn ----------------------------------------------------------------------------------- */

static bool check_warning(struct call_run *run)
{
    return !span_equal(call_text(run, "memberDid"), run->caller) ||
           call_refuse(run, 400, "CannotWarnSelf", "memberDid is your own; warn another member.");
}

const struct call call_warn_member = {
    .params = PARAMS(PARAM_CONVO, PARAM_DID("memberDid"), PARAM_NEED_TEXT("reason", 1, 500),
        { "expiresAt", PARAM_TIME, .max = WARNING_DAYS_MAX, .fallback = WARNING_DAYS }),
    IN_CONVO(ROLE_MODERATOR),
    .check = check_warning,
    .steps = CALL_STEPS(STEP_ROWS(1, role_find_member, "convoId memberDid",
                            .refusal = REFUSE(404, "TargetNotMember",
                                "The warned account is not a member of this conversation.")),
        STEP_ROWS(1, warning_put, "@id convoId memberDid @caller reason @now expiresAt #",
            WITH(WARNINGS_MAX),
            .refusal = REFUSE_MANY(REPORTS_RETRY_S, "TooManyWarnings",
                "This member has 100 warnings, which is the most; wait until one expires.")),
        AUDIT("warnMember", "convoId", "memberDid")),
    .fields = FIELDS({ "warningId", FIELD_TEXT, FIELD_ID }, TIME_NOW("deliveredAt", 0)),
};

const struct call call_list_warnings = {
    .params = PARAMS(PARAM_CONVO),
    IN_CONVO(ROLE_MEMBER),
    .steps = CALL_STEPS(STEP(warning_list, "convoId @caller @now")),
    .fields = FIELDS(ROWS("warnings", 0, TEXT_AT("warningId", 0), TEXT_AT("memberDid", 1),
        TEXT_AT("warnedBy", 2), TEXT_AT("reason", 3), TIME_AT("createdAt", 4),
        TIME_AT("expiresAt", 5))),
};

/* ---- figures -------------------------------------------------------------------------------- */

const struct call call_get_admin_stats = {
    .params = PARAMS(PARAM_CONVO),
    IN_CONVO(ROLE_ADMIN),
    .steps = CALL_STEPS(STEP_ROWS(1, report_count_members, "convoId"),

        STEP_ROWS(1, report_count, "convoId"), STEP(report_count_categories, "convoId")),
    .fields = FIELDS(SAME_TEXT("convoId"), TIME_NOW("generatedAt", 0),
        OBJECT("stats", INT_OF("members", 0, 0), INT_OF("admins", 0, 1), INT_OF("moderators", 0, 2),
            INT_OF("totalRemovals", 0, 3), INT_OF("totalWarnings", 0, 4),
            INT_OF("totalReports", 1, 0), INT_OF("pendingReports", 1, 1),
            INT_OF("resolvedReports", 1, 2), INT_OF("dismissedReports", 1, 3),
            { "reportsByCategory", FIELD_MAP, MAP_ROWS(2) },
            INT_OF("averageResolutionTimeHours", 1, 4, OPTIONAL))),
};

/* ---- invites --------------------------------------------------------------------------------- */

/* An admin makes a secret and gives the server its SHA-256. A holder of the secret joins by an external
 * commit, as often and as long as the invite allows; the unit that stores the commit counts the use.
 * The hash alone lets its holder read the group info that such a commit needs. */
enum { INVITES_MAX = 100, INVITE_USES_MAX = 10000 }; /* open ones of a conversation; uses of one */
enum { INVITES_RETRY_S = 3600 };                     /* of a client that meets INVITES_MAX */
enum { INVITE_DAYS = 30, INVITE_DAYS_MAX = 365, HASH_SIZE = 32 };

const struct call call_create_invite = {
    .params = PARAMS(PARAM_CONVO,
        { "pskHash", PARAM_HEX, PARAM_REQUIRED, .min = HASH_SIZE, .max = HASH_SIZE },
        PARAM_MAY_TEXT("targetDid", DID_SIZE_MIN, DID_SIZE_MAX),
        { "maxUses", PARAM_INT, .min = 1, .max = INVITE_USES_MAX },
        { "expiresAt", PARAM_TIME, .max = INVITE_DAYS_MAX, .fallback = INVITE_DAYS }),
    IN_CONVO(ROLE_ADMIN),
    .steps = CALL_STEPS(
        STEP_ROWS(1, invite_put, "@id convoId pskHash targetDid maxUses @caller @now expiresAt #",
            WITH(INVITES_MAX),
            .conflict = REFUSE(
                409, "InviteExists", "There is an invite with this secret; choose another secret."),
            .refusal = REFUSE_MANY(INVITES_RETRY_S, "TooManyInvites",
                "This conversation has 100 open invites, which is the most; revoke "
                "one first.")),
        AUDIT("createInvite", "convoId", "targetDid")),
    .fields = FIELDS({ "inviteId", FIELD_TEXT, FIELD_ID }, SAME_TEXT("convoId"),
        { "pskHash", FIELD_HEX, FIELD_PARAM("pskHash") }, { "createdBy", FIELD_TEXT, FIELD_CALLER },
        { "targetDid", FIELD_TEXT, FIELD_PARAM("targetDid"), OPTIONAL },
        { "maxUses", FIELD_INT, FIELD_PARAM("maxUses"), OPTIONAL },
        { "usesCount", FIELD_INT, FIELD_NUMBER(0) }, TIME_NOW("createdAt", 0),
        { "expiresAt", FIELD_TIME_MS, FIELD_PARAM("expiresAt") }),
};

const struct call call_list_invites = {
    .params = PARAMS(PARAM_CONVO, { "includeRevoked", PARAM_BOOL, .fallback = false }),
    IN_CONVO(ROLE_ADMIN),
    .steps = CALL_STEPS(STEP(invite_list, "convoId includeRevoked")),
    .fields = FIELDS(ROWS("invites", 0, TEXT_AT("inviteId", 0), SAME_TEXT("convoId"),
        HEX_AT("pskHash", 1), TEXT_AT("createdBy", 5), TEXT_AT("targetDid", 2, OPTIONAL),
        INT_AT("maxUses", 3, OPTIONAL), INT_AT("usesCount", 4), TIME_AT("createdAt", 6),
        TIME_AT("expiresAt", 7), TIME_AT("revokedAt", 8, OPTIONAL))),
};

const struct call call_revoke_invite = {
    .params = PARAMS(PARAM_NEED_TEXT("inviteId", 1, 64)),
    .role_of = &role_of_invite,
    .role = ROLE_ADMIN,
    .steps = CALL_STEPS(STEP_ROWS(1, invite_revoke, "inviteId @now",
                            .refusal = REFUSE(409, "AlreadyRevoked", "This invite is revoked.")),
        STEP_ROWS(1, audit_put_invite, "@random_id @caller 'revokeInvite' inviteId @null @now")),
    .fields = SUCCESS,
};
