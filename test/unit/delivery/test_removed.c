/* SPDX-License-Identifier: Apache-2.0 */
/* A removed member keeps the messages from the time of its membership, and nothing else. */
#include "authz_site.h"

static void removal_begin(struct cast *cast)
{
    *cast = (struct cast){ .id = "none" };
    site_begin(&cast->site);
    people_begin(cast);
    group_begin(cast);
}

static void removal_end(struct cast *cast)
{
    people_end(cast);
    site_end(&cast->site);
}

static void say(struct cast *cast, enum authz_who who, const char *id)
{
    char body[160];

    (void)snprintf(body, sizeof body,
        "{'convoId':'$g','msgId':'%s','ciphertext':{'$bytes':'$message'},'epoch':%llu}", id,
        (unsigned long long)cast->epoch);
    expect_as(cast, who, "sendMessage", body, 200, id);
}

/* Not in the answer, whoever it is about. */
static void expect_not(struct cast *cast, enum authz_who who, const char *call, const char *part)
{
    struct web_answer answer = ask_as(cast, who, call, NULL);
    const struct speaker speaker = { cast, &cast->callers[who], "phone" };
    char *full_part = fill_in(&speaker, part);

    CHECK_MSG(answer.status == 200 && strstr(answer.body, full_part) == NULL,
        "%s by %s: wanted no %s, got:\n%s", call, who_names[who], full_part, answer.text);
    free(full_part);
    web_answer_free(&answer);
}

TEST(removed_member, is_refused_from_its_next_request_on)
{
    static const char *const calls[][2] = {
        { "submitCommit", "{'convoId':'$g','commit':'$commit'}" },
        { "addMembers", "{'convoId':'$g','didList':['did:plc:friend'],'commit':'$commit'}" },
        { "sendMessage",
            "{'convoId':'$g','msgId':'x','ciphertext':{'$bytes':'$message'},'epoch':2}" },
        { "sendProposal", "{'convoId':'$g','msgId':'y','proposal':'$proposal'}" },
        { "updateGroupInfo", "{'convoId':'$g','groupInfo':'$info','epoch':2}" },
        { "processExternalCommit", "{'convoId':'$g','externalCommit':'$external'}" },
        { "updateCursor", "{'convoId':'$g','seq':3}" },
        { "getSubscriptionTicket", "{'convoId':'$g'}" },
        { "confirmEpoch", "{'convoId':'$g','epoch':1,'epochAuthenticatorHash':'$last'}" },
        { "reportInvalidCommit", "{'convoId':'$g','baseEpoch':1,'sha256':'$last'}" },
        { "reissueWelcome", "{'convoId':'$g','deviceId':'phone'}" },
        { "getEpoch?convoId=$g", NULL },
        { "getConvo?convoId=$g", NULL },
        { "getGroupInfo?convoId=$g", NULL },
        { "getReceipts?convoId=$g", NULL },
        { "subscribeConvoEvents?convoId=$g", NULL },
    };
    struct cast cast;

    removal_begin(&cast);
    expect_as(&cast, REM, "getEpoch?convoId=$g", NULL, 200, "'currentEpoch':1");
    remove_rem(&cast);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        expect_as(&cast, REM, calls[i][0], calls[i][1], 403, "'error':'NotMember'");
    expect_as(&cast, ADA, "getEpoch?convoId=$g", NULL, 200, "'currentEpoch':2");
    removal_end(&cast);
}

TEST(removed_member, cannot_go_on_from_the_epoch_it_knows)
{
    struct cast cast;

    removal_begin(&cast);
    remove_rem(&cast);
    expect_as(&cast, REM, "submitCommit", "{'convoId':'$g','commit':'$old'}", 403, "NotMember");
    expect_as(&cast, REM, "leaveConvo", "{'convoId':'$g','commit':'$old'}", 403, "NotMember");
    expect_as(&cast, REM, "sendMessage",
        "{'convoId':'$g','msgId':'late','ciphertext':{'$bytes':'$older'},'epoch':1}", 403,
        "NotMember");
    /* The refusal tells nothing of what came after: a member who lost hears of the winner. */
    {
        struct web_answer answer =
            ask_as(&cast, REM, "submitCommit", "{'convoId':'$g','commit':'$old'}");

        CHECK(
            strstr(answer.body, "commits") == NULL && strstr(answer.body, "currentEpoch") == NULL);
        web_answer_free(&answer);
    }
    expect_as(&cast, BOB, "submitCommit", "{'convoId':'$g','commit':'$old'}", 409, "commitData");
    expect_as(&cast, ADA, "getEpoch?convoId=$g", NULL, 200, "'currentEpoch':2");
    removal_end(&cast);
}

TEST(removed_member, reads_what_was_said_while_it_was_in_and_its_removal_but_nothing_later)
{
    struct cast cast;

    removal_begin(&cast);
    say(&cast, ADA, "before");
    remove_rem(&cast); /* seq 4, the commit to epoch 2 */
    say(&cast, ADA, "after");
    expect_as(&cast, ADA, "submitCommit", "{'convoId':'$g','commit':'$commit'}", 200, "epoch");
    cast.epoch++;
    say(&cast, BOB, "later");
    expect_as(&cast, REM, "getMessages?convoId=$g", NULL, 200, "'id':'before'");
    expect_as(&cast, REM, "getMessages?convoId=$g", NULL, 200, "'lastSeq':4");
    expect_not(&cast, REM, "getMessages?convoId=$g", "'id':'after'");
    expect_not(&cast, REM, "getMessages?convoId=$g&sinceSeq=4", "ciphertext");
    expect_not(&cast, REM, "getMessages?convoId=$g&type=app&sinceSeq=3", "ciphertext");
    expect_as(&cast, REM, "getCommits?convoId=$g&fromEpoch=0", NULL, 200, "'epoch':2");
    expect_not(&cast, REM, "getCommits?convoId=$g&fromEpoch=0", "'epoch':3");
    expect_not(&cast, REM, "getCommits?convoId=$g&fromEpoch=3", "commitData");
    expect_not(&cast, REM, "getConvos", "$g");
    expect_not(&cast, REM, "getUnread", "$g");
    expect_as(&cast, BOB, "getMessages?convoId=$g", NULL, 200, "'id':'later'");
    expect_as(&cast, BOB, "getCommits?convoId=$g&fromEpoch=3", NULL, 200, "commitData");
    removal_end(&cast);
}

/* A member who is added again reads later messages, but none from the time in between. */
TEST(removed_member, who_is_added_again_has_a_gap)
{
    struct cast cast;

    removal_begin(&cast);
    say(&cast, ADA, "before");
    remove_rem(&cast);
    say(&cast, ADA, "between");
    expect_as(&cast, ADA, "addMembers", "{'convoId':'$g','didList':['$rem'],'commit':'$commit'}",
        200, "'newEpoch':3");
    cast.epoch++;
    say(&cast, ADA, "again");
    expect_as(&cast, REM, "getMessages?convoId=$g", NULL, 200, "'id':'before'");
    expect_as(&cast, REM, "getMessages?convoId=$g", NULL, 200, "'id':'again'");
    expect_not(&cast, REM, "getMessages?convoId=$g", "'id':'between'");
    removal_end(&cast);
}

TEST(removed_member, cannot_use_what_it_was_given_before)
{
    struct cast cast;
    char *header, call[1024];
    struct web_answer answer;

    removal_begin(&cast);
    answer = ask_as(&cast, REM, "getSubscriptionTicket", "{'convoId':'$g'}");
    CHECK_EQ_INT(answer.status, 200);
    {
        struct json_doc doc = { 0 };
        struct span ticket;

        CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
        CHECK(json_string(json_get(json_root(&doc), "ticket"), &ticket));
        (void)snprintf(call, sizeof call, "subscribeConvoEvents?convoId=%s&ticket=%.*s", cast.group,
            (int)ticket.size, ticket.at);
        json_doc_free(&doc);
    }
    web_answer_free(&answer);
    /* Also a token that was verified before and is still good. */
    header = header_of(&cast.callers[REM], &(struct token){ "did:web:localhost", "getConvo", 0 });
    {
        char get_convo[64];

        (void)snprintf(get_convo, sizeof get_convo, "getConvo?convoId=%s", cast.group);
        answer = ask_with(&cast, header, get_convo, NULL);
        CHECK_EQ_INT(answer.status, 200);
        web_answer_free(&answer);
        remove_rem(&cast);
        answer = ask_with(&cast, header, get_convo, NULL);
        CHECK_MSG(
            answer.status == 403 && strstr(answer.text, "NotMember") != NULL, "%s", answer.text);
        web_answer_free(&answer);
    }
    answer = ask_with(&cast, "", call, NULL);
    CHECK_MSG(answer.status == 403 && strstr(answer.text, "NotMember") != NULL, "%s", answer.text);
    web_answer_free(&answer);
    free(header);
    removal_end(&cast);
}

/* A Welcome from before a removal opens nothing any more. */
TEST(removed_member, gets_no_welcome_of_the_time_before)
{
    static const struct authz_step given[] = {
        { REM, "registerDevice",
            "{'deviceName':'mine','deviceUUID':'phone','signaturePublicKey':'$key','keyPackages':["
            "{'keyPackage':'$phone','cipherSuite':'" SITE_SUITE "'}]}",
            NULL },
        { ADA, "getKeyPackages?dids=$rem", NULL, NULL },
        { ADA, "submitCommit", "{'convoId':'$g','commit':'$commit','welcomes':['$welcome']}",
            NULL },
        { EVE, NULL, NULL, NULL },
    };
    struct cast cast;

    removal_begin(&cast);
    take_steps(&cast, given);
    expect_as(&cast, REM, "getPendingWelcomes?deviceId=phone", NULL, 200, "$g");
    remove_rem(&cast);
    expect_not(&cast, REM, "getPendingWelcomes?deviceId=phone", "$g");
    expect_as(&cast, REM, "getWelcome?convoId=$g&deviceId=phone", NULL, 410, "WelcomeStale");
    expect_not(&cast, BOB, "getPendingDeviceAdditions", "#phone");
    expect_as(&cast, BOB, "claimPendingDeviceAddition", "{'pendingAdditionId':'$rem#phone/$g'}",
        404, "PendingAdditionNotFound");
    removal_end(&cast);
}
