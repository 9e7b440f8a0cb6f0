/* SPDX-License-Identifier: Apache-2.0 */
/* Roles, reports and warnings over HTTP: permissions and effects. */
#include <pthread.h>

#include "moderation_site.h"

/* ---- permissions ---------------------------------------------------------------------------- */

struct row {
    const char *call;
    const char *body;               /* NULL: GET */
    const char *answers[WHO_COUNT]; /* "200", or the label of an error; in the order of who */
};

#define STRANGERS_NO "NotMember", "NotMember"
#define EVERYBODY "200", "200", "200", "200", "200"

/* Every call of this group, tried by everybody. The calls name no real account and so
 * have no effect: the test is about the permission alone. */
static const struct row rows[] = {
    { "promoteAdmin", "{'convoId':'g1','targetDid':'did:plc:nobody'}",
        { STRANGERS_NO, "NotAdmin", "NotAdmin", "TargetNotMember" } },
    { "demoteAdmin", "{'convoId':'g1','targetDid':'did:plc:nobody'}",
        { STRANGERS_NO, "NotAdmin", "NotAdmin", "TargetNotMember" } },
    { "promoteModerator", "{'convoId':'g1','targetDid':'did:plc:nobody'}",
        { STRANGERS_NO, "NotAdmin", "NotAdmin", "TargetNotMember" } },
    { "demoteModerator", "{'convoId':'g1','targetDid':'did:plc:nobody'}",
        { STRANGERS_NO, "NotAdmin", "NotAdmin", "TargetNotMember" } },
    { "getPolicy?convoId=g1", NULL, { STRANGERS_NO, "200", "200", "200" } },
    { "updatePolicy", "{'convoId':'g1','maxMembers':500}",
        { STRANGERS_NO, "NotAdmin", "NotAdmin", "200" } },
    { "createInvite",
        "{'convoId':'g1','pskHash':"
        "'00000000000000000000000000000000000000000000000000000000000000aa'}",
        { STRANGERS_NO, "NotAdmin", "NotAdmin", "200" } },
    { "listInvites?convoId=g1", NULL, { STRANGERS_NO, "NotAdmin", "NotAdmin", "200" } },
    { "revokeInvite", "{'inviteId':'$id'}",
        { "InviteNotFound", "InviteNotFound", "InviteNotFound", "InviteNotFound",
            "InviteNotFound" } },
    { "reportMember",
        "{'convoId':'g1','reportedDid':'did:plc:nobody','category':'spam',"
        "'encryptedContent':{'$bytes':'AAAA'}}",
        { STRANGERS_NO, "TargetNotMember", "TargetNotMember", "TargetNotMember" } },
    { "getReports?convoId=g1", NULL, { STRANGERS_NO, "NotAdmin", "200", "200" } },
    { "resolveReport", "{'reportId':'$id','action':'dismissed'}",
        { "ReportNotFound", "ReportNotFound", "ReportNotFound", "ReportNotFound",
            "ReportNotFound" } },
    { "warnMember", "{'convoId':'g1','memberDid':'did:plc:nobody','reason':'manners'}",
        { STRANGERS_NO, "NotAdmin", "TargetNotMember", "TargetNotMember" } },
    { "listWarnings?convoId=g1", NULL, { STRANGERS_NO, "200", "200", "200" } },
    { "getAdminStats?convoId=g1", NULL, { STRANGERS_NO, "NotAdmin", "NotAdmin", "200" } },
    { "getBlockStatus?convoId=g1", NULL, { STRANGERS_NO, "200", "200", "200" } },
    { "getDeliveryStatus?convoId=g1&messageIds=m1", NULL, { STRANGERS_NO, "200", "200", "200" } },
    { "optOut", "{}", { EVERYBODY } },
    { "optIn", "{}", { EVERYBODY } },
    { "getOptInStatus?dids=$bob", NULL, { EVERYBODY } },
    { "checkBlocks?dids=$bob&dids=$ada", NULL, { EVERYBODY } },
    { "handleBlockChange", "{'blockerDid':'did:plc:nobody','blockedDid':'$bob','action':'created'}",
        { "NotBlocker", "NotBlocker", "NotBlocker", "NotBlocker", "NotBlocker" } },
    { "sendChatRequest", "{'recipientDid':'did:plc:nobody'}", { EVERYBODY } },
    { "acceptChatRequest", "{'requestId':'$id'}",
        { "RequestNotFound", "RequestNotFound", "RequestNotFound", "RequestNotFound",
            "RequestNotFound" } },
    { "declineChatRequest", "{'requestId':'$id'}",
        { "RequestNotFound", "RequestNotFound", "RequestNotFound", "RequestNotFound",
            "RequestNotFound" } },
    { "listChatRequests", NULL, { EVERYBODY } },
    { "getRequestCount", NULL, { EVERYBODY } },
};

TEST(moderation, is_done_by_who_may)
{
    struct cast cast;

    cast_begin(&cast);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int caller = 0; caller < WHO_COUNT; caller++) {
            const char *wanted = rows[i].answers[caller];
            struct web_answer answer = ask(&cast, (enum who)caller, rows[i].call, rows[i].body);
            char label[64];

            (void)snprintf(label, sizeof label, "\"error\":\"%s\"", wanted);
            CHECK_MSG(strcmp(wanted, "200") == 0 ? answer.status == 200
                                                 : strstr(answer.body, label) != NULL,
                "%s by %s: wanted %s, got:\n%s", rows[i].call, who_names[caller], wanted,
                answer.text);
            web_answer_free(&answer);
        }
    cast_end(&cast);
}

TEST(moderation, needs_a_token_for_this_call_that_was_not_used_before)
{
    struct cast cast;

    cast_begin(&cast);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[512], *call = fill_in(&cast, rows[i].call);
        char *body = rows[i].body == NULL ? NULL : fill_in(&cast, rows[i].body);
        const char *method = body == NULL ? "GET" : "POST";
        char *header = caller_header(who(&cast, ADA), "getEpoch");
        struct web_answer answer;

        (void)snprintf(path, sizeof path, "/xrpc/blue.catbird.mls.%s", call);
        for (int with = 0; with < 2; with++) {
            answer = web_ask(http_server_address(cast.site.server), method, path,
                with == 0 ? "" : header, body == NULL ? "" : body);
            CHECK_MSG(answer.status == 401, "%s: %s", call, answer.text);
            web_answer_free(&answer);
        }
        free(header);
        free(body);
        free(call);
    }
    cast_end(&cast);
}

TEST(moderation, uses_a_token_once_for_what_changes_something)
{
    static const char *const calls[][2] = {
        { "promoteModerator", "{'convoId':'g1','targetDid':'$bob'}" },
        { "updatePolicy", "{'convoId':'g1','maxMembers':77}" },
        { "createInvite", "{'convoId':'g1','pskHash':"
                          "'00000000000000000000000000000000000000000000000000000000000000bb'}" },
        { "reportMember",
            "{'convoId':'g1','reportedDid':'$bob','category':'spam','encryptedContent':'AAAA'}" },
        { "warnMember", "{'convoId':'g1','memberDid':'$bob','reason':'manners'}" },
        { "optOut", "{}" },
        { "handleBlockChange", "{'blockerDid':'$ada','blockedDid':'$eve','action':'created'}" },
        { "sendChatRequest", "{'recipientDid':'did:plc:nobody'}" },
    };
    struct cast cast;

    cast_begin(&cast);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        char *header = caller_header(who(&cast, ADA), calls[i][0]);
        char path[512], *body = fill_in(&cast, calls[i][1]);

        (void)snprintf(path, sizeof path, "/xrpc/blue.catbird.mls.%s", calls[i][0]);
        for (int again = 0; again < 2; again++) {
            struct web_answer answer =
                web_ask(http_server_address(cast.site.server), "POST", path, header, body);

            /* The role is there already when the same call is made again: that is said first. */
            CHECK_MSG(answer.status == (again == 0  ? 200
                                           : i == 0 ? 409
                                                    : 401),
                "%s %d: %s", calls[i][0], again, answer.text);
            web_answer_free(&answer);
        }
        free(header);
        free(body);
    }
    CHECK_EQ_INT(audit_count(&cast, "optOut"), 1);
    CHECK_EQ_INT(audit_count(&cast, "warnMember"), 1);
    cast_end(&cast);
}

TEST(moderation, of_a_conversation_that_is_not_there_says_so)
{
    static const char *const calls[][2] = {
        { "promoteAdmin", "{'convoId':'no','targetDid':'$bob'}" },
        { "getPolicy?convoId=no", NULL },
        { "updatePolicy", "{'convoId':'no','maxMembers':7}" },
        { "createInvite", "{'convoId':'no','pskHash':"
                          "'00000000000000000000000000000000000000000000000000000000000000bb'}" },
        { "listInvites?convoId=no", NULL },
        { "reportMember",
            "{'convoId':'no','reportedDid':'$bob','category':'spam','encryptedContent':'AAAA'}" },
        { "getReports?convoId=no", NULL },
        { "warnMember", "{'convoId':'no','memberDid':'$bob','reason':'manners'}" },
        { "listWarnings?convoId=no", NULL },
        { "getAdminStats?convoId=no", NULL },
        { "getBlockStatus?convoId=no", NULL },
        { "getDeliveryStatus?convoId=no&messageIds=m1", NULL },
    };
    struct cast cast;

    cast_begin(&cast);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        want(&cast, ADA, calls[i][0], calls[i][1], 404, "ConvoNotFound");
    cast_end(&cast);
}

/* ---- roles ---------------------------------------------------------------------------------- */

TEST(role, is_given_and_taken_and_outlives_the_actor)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, ADA, "promoteModerator", "{'convoId':'g1','targetDid':'$max'}", 409,
        "AlreadyModerator");
    want(&cast, ADA, "demoteModerator", "{'convoId':'g1','targetDid':'$bob'}", 409, "NotModerator");
    want(&cast, ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$ada'}", 409, "AlreadyAdmin");
    want(&cast, ADA, "demoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 409, "NotAdminTarget");
    want(&cast, ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$rem'}", 404, "TargetNotMember");
    want(&cast, ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 200, "promotedAt");
    want(&cast, ADA, "demoteModerator", "{'convoId':'g1','targetDid':'$max'}", 200, "demotedAt");
    want(&cast, MAX, "getReports?convoId=g1", NULL, 403, "NotAdmin");
    site_close(&cast.site);
    site_open(&cast.site);
    want(&cast, BOB, "demoteAdmin", "{'convoId':'g1','targetDid':'$ada'}", 200, "demotedAt");
    want(&cast, ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$max'}", 403, "NotAdmin");
    CHECK_EQ_INT(audit_count(&cast, "promoteAdmin"), 1);
    CHECK_EQ_INT(audit_count(&cast, "demoteAdmin"), 1);
    CHECK_EQ_INT(audit_count(&cast, "demoteModerator"), 1);
    cast_end(&cast);
}

TEST(role, of_the_last_admin_stays)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, ADA, "demoteAdmin", "{'convoId':'g1','targetDid':'$ada'}", 400, "LastAdmin");
    want(&cast, ADA, "leaveConvo", "{'convoId':'g1'}", 400, "LastAdmin");
    want(&cast, ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 200, "ok");
    want(&cast, ADA, "leaveConvo", "{'convoId':'g1'}", 200, "newEpoch");
    want(&cast, BOB, "leaveConvo", "{'convoId':'g1'}", 400, "LastAdmin");
    want(&cast, BOB, "updatePolicy", "{'convoId':'g1','preventRemovingLastAdmin':false}", 200,
        "'preventRemovingLastAdmin':false");
    want(&cast, BOB, "demoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 400, "LastAdmin");
    want(&cast, BOB, "leaveConvo", "{'convoId':'g1'}", 200, "newEpoch");
    cast_end(&cast);
}

TEST(leaving, is_for_oneself_whomever_the_request_names)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, BOB, "leaveConvo", "{'convoId':'g1','targetDid':'$max'}", 400, "targetDid");
    want(&cast, ADA, "leaveConvo", "{'convoId':'g1','targetDid':'$bob'}", 400, "removeMember");
    want(&cast, BOB, "getConvo?convoId=g1", NULL, 200, "'did':'$bob'"); /* nobody has left */
    want(&cast, BOB, "getConvo?convoId=g1", NULL, 200, "'did':'$max'");
    want(&cast, BOB, "leaveConvo", "{'convoId':'g1','targetDid':'$bob'}", 200, "newEpoch");
    want(&cast, BOB, "getConvo?convoId=g1", NULL, 403, "NotMember");
    want(&cast, MAX, "getConvo?convoId=g1", NULL, 200, "'did':'$max'");
    cast_end(&cast);
}

struct stepper {
    const struct cast *cast;
    enum who caller;
    const char *call;
    const char *body;
    unsigned status;
    pthread_t thread;
};

static void *step_down(void *argument)
{
    struct stepper *stepper = argument;
    struct web_answer answer = ask(stepper->cast, stepper->caller, stepper->call, stepper->body);

    stepper->status = answer.status;
    web_answer_free(&answer);
    return NULL;
}

TEST(role, of_admin_never_ends_with_two_who_step_down_at_once)
{
    struct cast cast;

    cast_begin(&cast);
    for (int round = 0; round < 10; round++) {
        struct stepper steppers[] = {
            { &cast, ADA, "demoteAdmin", "{'convoId':'g1','targetDid':'$ada'}", 0, 0 },
            { &cast, BOB, "demoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 0, 0 },
        };
        enum who admin;

        /* the remaining admin promotes the other one again */
        admin = round == 0 ? ADA : cast.id[0] == 'a' ? ADA : BOB;
        want(&cast, admin, "promoteAdmin",
            admin == ADA ? "{'convoId':'g1','targetDid':'$bob'}"
                         : "{'convoId':'g1','targetDid':'$ada'}",
            200, "ok");
        for (int i = 0; i < 2; i++)
            CHECK_EQ_INT(pthread_create(&steppers[i].thread, NULL, step_down, &steppers[i]), 0);
        for (int i = 0; i < 2; i++)
            CHECK_EQ_INT(pthread_join(steppers[i].thread, NULL), 0);
        CHECK_MSG((steppers[0].status == 200) != (steppers[1].status == 200), "%u and %u",
            steppers[0].status, steppers[1].status);
        (void)snprintf(cast.id, sizeof cast.id, "%s", steppers[0].status == 200 ? "bob" : "ada");
    }
    cast_end(&cast);
}

TEST(role, ends_with_the_membership)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, ADA, "removeMember",
        "{'convoId':'g1','targetDid':'$max','idempotencyKey':'remove max'}", 200, "ok");
    want(&cast, MAX, "getReports?convoId=g1", NULL, 403, "NotMember");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$max']}", 200, "newEpoch");
    want(&cast, MAX, "getReports?convoId=g1", NULL, 403, "NotAdmin");
    want(&cast, ADA, "promoteModerator", "{'convoId':'g1','targetDid':'$max'}", 200, "ok");
    cast_end(&cast);
}

/* ---- reports and warnings ------------------------------------------------------------------- */

TEST(report, is_seen_and_resolved_by_moderators_but_not_by_whom_it_is_about)
{
    struct cast cast;

    cast_begin(&cast);
    make(&cast, BOB, "reportMember",
        "{'convoId':'g1','reportedDid':'$max','category':'harassment',"
        "'encryptedContent':{'$bytes':'c2VjcmV0'}}",
        "reportId");
    want(
        &cast, ADA, "getReports?convoId=g1", NULL, 200, "'encryptedContent':{'$bytes':'c2VjcmV0'}");
    want(&cast, ADA, "getReports?convoId=g1&status=pending", NULL, 200, "'reporterDid':'$bob'");
    want(&cast, MAX, "getReports?convoId=g1", NULL, 200, "'reports':[]");
    want(&cast, BOB, "resolveReport", "{'reportId':'$id','action':'dismissed'}", 403, "NotAdmin");
    want(&cast, EVE, "resolveReport", "{'reportId':'$id','action':'dismissed'}", 403, "NotMember");
    want(&cast, MAX, "resolveReport", "{'reportId':'$id','action':'dismissed'}", 403,
        "CannotResolveSelf");
    want(&cast, ADA, "resolveReport", "{'reportId':'$id','action':'shrug'}", 400, "action must");
    want(&cast, ADA, "resolveReport", "{'reportId':'$id','action':'removed_member'}", 409,
        "TargetStillMember");
    want(&cast, ADA, "removeMember",
        "{'convoId':'g1','targetDid':'$max','idempotencyKey':'remove max'}", 200, "ok");
    want(&cast, ADA, "resolveReport", "{'reportId':'$id','action':'removed_member'}", 200, "ok");
    want(&cast, ADA, "resolveReport", "{'reportId':'$id','action':'dismissed'}", 409,
        "AlreadyResolved");
    want(&cast, ADA, "getReports?convoId=g1&status=resolved", NULL, 200,
        "'action':'removed_member','resolvedBy':'$ada'");
    want(&cast, ADA, "getReports?convoId=g1&status=pending", NULL, 200, "'reports':[]");
    want(&cast, ADA, "getReports?convoId=g1&status=open", NULL, 400, "status must");
    want(&cast, ADA, "getAdminStats?convoId=g1", NULL, 200, "'totalReports':1");
    want(&cast, ADA, "getAdminStats?convoId=g1", NULL, 200, "'resolvedReports':1");
    want(&cast, ADA, "getAdminStats?convoId=g1", NULL, 200, "'harassment':1");
    want(&cast, ADA, "getAdminStats?convoId=g1", NULL, 200, "'totalRemovals':2");
    CHECK_EQ_INT(audit_count(&cast, "reportMember"), 1);
    CHECK_EQ_INT(audit_count(&cast, "resolveReport"), 1);
    CHECK_EQ_INT(audit_count(&cast, "removeMember"), 2);
    cast_end(&cast);
}

TEST(report, is_refused_when_it_makes_no_sense)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, BOB, "reportMember",
        "{'convoId':'g1','reportedDid':'$bob','category':'spam','encryptedContent':'AAAA'}", 400,
        "CannotReportSelf");
    want(&cast, BOB, "reportMember",
        "{'convoId':'g1','reportedDid':'$ada','category':'bad taste','encryptedContent':'AAAA'}",
        400, "InvalidCategory");
    want(&cast, BOB, "reportMember",
        "{'convoId':'g1','reportedDid':'$eve','category':'spam','encryptedContent':'AAAA'}", 404,
        "TargetNotMember");
    want(&cast, BOB, "reportMember", "{'convoId':'g1','reportedDid':'$ada','category':'spam'}", 400,
        "encryptedContent is missing");
    want(&cast, BOB, "reportMember",
        "{'convoId':'g1','reportedDid':'$rem','category':'spam','encryptedContent':'AAAA'}", 200,
        "reportId");
    CHECK_EQ_INT(audit_count(&cast, "reportMember"), 1);
    cast_end(&cast);
}

TEST(report, cannot_be_made_without_end_and_is_listed_in_pages)
{
    struct cast cast;
    struct web_answer answer;
    struct json_doc doc = { 0 };
    struct span cursor;
    char call[160];
    unsigned seen = 0;

    cast_begin(&cast);
    for (int i = 0; i < 20; i++)
        want(&cast, BOB, "reportMember",
            "{'convoId':'g1','reportedDid':'$rem','category':'spam','encryptedContent':'AAAA'}",
            200, "reportId");
    want(&cast, BOB, "reportMember",
        "{'convoId':'g1','reportedDid':'$rem','category':'spam','encryptedContent':'AAAA'}", 429,
        "TooManyReports");
    (void)snprintf(call, sizeof call, "getReports?convoId=g1&limit=7");
    for (int page = 0; page < 4; page++) {
        answer = ask(&cast, ADA, call, NULL);
        CHECK_MSG(answer.status == 200, "%s", answer.text);
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
        seen += (unsigned)json_count(json_get(json_root(&doc), "reports"));
        if (page < 3) {
            CHECK(json_string(json_get(json_root(&doc), "cursor"), &cursor));
            (void)snprintf(call, sizeof call, "getReports?convoId=g1&limit=7&cursor=%.*s",
                (int)cursor.size, cursor.at);
        }
        web_answer_free(&answer);
    }
    CHECK_EQ_INT(seen, 20);
    want(&cast, ADA, "getReports?convoId=g1&cursor=x", NULL, 400, "cursor must");
    json_doc_free(&doc);
    cast_end(&cast);
}

TEST(warning, reaches_whom_it_is_for)
{
    struct cast cast;

    cast_begin(&cast);
    make(&cast, MAX, "warnMember",
        "{'convoId':'g1','memberDid':'$bob','reason':'mind your manners'}", "warningId");
    want(&cast, BOB, "listWarnings?convoId=g1", NULL, 200, "'reason':'mind your manners'");
    want(&cast, ADA, "listWarnings?convoId=g1", NULL, 200, "'warningId':'$id'");
    want(&cast, MAX, "warnMember", "{'convoId':'g1','memberDid':'$max','reason':'x'}", 400,
        "CannotWarnSelf");
    want(&cast, MAX, "warnMember", "{'convoId':'g1','memberDid':'$rem','reason':'x'}", 404,
        "TargetNotMember");
    want(&cast, MAX, "warnMember",
        "{'convoId':'g1','memberDid':'$bob','reason':'x','expiresAt':'2001-01-01T00:00:00Z'}", 400,
        "expiresAt must");
    make(&cast, ADA, "warnMember", "{'convoId':'g1','memberDid':'$max','reason':'you too'}",
        "warningId");
    want_not(&cast, BOB, "listWarnings?convoId=g1", "you too");
    want(&cast, ADA, "getAdminStats?convoId=g1", NULL, 200, "'totalWarnings':2");
    CHECK_EQ_INT(audit_count(&cast, "warnMember"), 2);
    cast_end(&cast);
}

TEST(warning, is_not_repeated_without_end)
{
    struct cast cast;

    cast_begin(&cast);
    for (int i = 0; i < 100; i++)
        want(&cast, MAX, "warnMember", "{'convoId':'g1','memberDid':'$bob','reason':'again'}", 200,
            "warningId");
    want(&cast, MAX, "warnMember", "{'convoId':'g1','memberDid':'$bob','reason':'again'}", 429,
        "TooManyWarnings");
    cast_end(&cast);
}
