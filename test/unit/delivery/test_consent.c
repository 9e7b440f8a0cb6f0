/* SPDX-License-Identifier: Apache-2.0 */
/* Consent: opting in and out, blocks, requests. Each has its effect when an account is added. */
#include "moderation_site.h"

static void block(const struct cast *cast, enum who blocker, const char *blocked, bool is_block)
{
    char body[256];

    (void)snprintf(body, sizeof body, "{'blockerDid':'%s','blockedDid':'%s','action':'%s'}",
        who_names[blocker], blocked, is_block ? "created" : "removed");
    want(cast, blocker, "handleBlockChange", body, 200, "affectedConvos");
}

#define CREATE(group, members)                                                                     \
    "{'groupId':'" group "','cipherSuite':'" SUITE "','initialMembers':[" members "]}"

/* ---- opting in and out ---------------------------------------------------------------------- */

TEST(consent, of_nobody_is_assumed_and_who_opted_out_is_not_added)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, ADA, "getOptInStatus?dids=$eve", NULL, 200, "'optedIn':false,'optedOut':false");
    want(&cast, EVE, "optOut", "{}", 200, "'optedIn':false");
    want(&cast, ADA, "getOptInStatus?dids=$eve,$bob", NULL, 200,
        "'did':'$eve','optedIn':false,'optedOut':true");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "NotOptedIn");
    want(&cast, ADA, "createConvo", CREATE("g2", "'$bob','$eve'"), 403, "NotOptedIn");
    want(&cast, ADA, "getEpoch?convoId=g2", NULL, 404, "ConvoNotFound");
    want(&cast, ADA, "getEpoch?convoId=g1", NULL, 200, "'currentEpoch':2");
    want(&cast, EVE, "optIn", "{}", 200, "'optedIn':true,'optedInAt'");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 200, "'newEpoch':3");
    want(&cast, ADA, "createConvo", CREATE("g2", "'$bob','$eve'"), 200, "$eve");
    want(&cast, ADA, "getOptInStatus", NULL, 400, "dids is missing");
    want(&cast, ADA, "getOptInStatus?dids=$eve&dids=$eve", NULL, 400, "dids must");
    CHECK_EQ_INT(audit_count(&cast, "optOut"), 1);
    CHECK_EQ_INT(audit_count(&cast, "optIn"), 1);
    cast_end(&cast);
}

TEST(consent, is_wanted_where_the_policy_says_so)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, ADA, "updatePolicy", "{'convoId':'g1','requireOptIn':true}", 200, "true");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "NotOptedIn");
    make(&cast, ADA, "sendChatRequest", "{'recipientDid':'$eve','groupId':'g1'}", "requestId");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "NotOptedIn");
    want(&cast, EVE, "acceptChatRequest", "{'requestId':'$id'}", 200, "'groupId':'g1'");
    want(&cast, BOB, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "NotOptedIn");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 200, "newEpoch");
    want(&cast, REM, "optIn", "{}", 200, "true");
    want(&cast, BOB, "addMembers", "{'convoId':'g1','didList':['$rem']}", 200, "newEpoch");
    cast_end(&cast);
}

TEST(consent, is_asked_for_before_blocks_are_looked_at)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, EVE, "optOut", "{}", 200, "'optedIn':false");
    block(&cast, EVE, "$bob", true);
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "NotOptedIn");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$rem','$eve']}", 403, "NotOptedIn");
    want(&cast, EVE, "optIn", "{}", 200, "'optedIn':true");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$rem','$eve']}", 403,
        "BlockedByMember");
    want(&cast, ADA, "getEpoch?convoId=g1", NULL, 200, "'currentEpoch':2");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$rem']}", 200, "'newEpoch':3");
    cast_end(&cast);
}

/* ---- blocks --------------------------------------------------------------------------------- */

TEST(block, keeps_two_apart_whoever_blocked_whom)
{
    struct cast cast;

    cast_begin(&cast);
    block(&cast, EVE, "$bob", true);
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "BlockedByMember");
    want(&cast, ADA, "createConvo", CREATE("g2", "'$bob','$eve'"), 403, "MutualBlockDetected");
    want(&cast, BOB, "createConvo", CREATE("g2", "'$eve'"), 403, "MutualBlockDetected");
    want(&cast, EVE, "createConvo", CREATE("g2", "'$bob'"), 403, "MutualBlockDetected");
    block(&cast, EVE, "$bob", false);
    block(&cast, BOB, "$eve", true);
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "BlockedByMember");
    block(&cast, EVE, "$max", true);
    block(&cast, BOB, "$eve", false);
    block(&cast, EVE, "$max", false);
    want(&cast, ADA, "createConvo", CREATE("g2", "'$bob','$eve'"), 200, "$eve");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 200, "newEpoch");
    CHECK_EQ_INT(audit_count(&cast, "block"), 3);
    CHECK_EQ_INT(audit_count(&cast, "unblock"), 3);
    cast_end(&cast);
}

TEST(block, between_two_who_come_together_is_seen_too)
{
    struct cast cast;

    cast_begin(&cast);
    block(&cast, EVE, "$rem", true);
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve','$rem']}", 403,
        "BlockedByMember");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$rem']}", 200, "newEpoch");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "BlockedByMember");
    cast_end(&cast);
}

TEST(block, of_who_is_not_in_it_keeps_nobody_out)
{
    struct cast cast;

    cast_begin(&cast);
    block(&cast, EVE, "$rem", true);
    block(&cast, EVE, "$bob", true);
    block(&cast, BOB, "$eve", true);
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 403, "BlockedByMember");
    want(&cast, BOB, "leaveConvo", "{'convoId':'g1'}", 200, "newEpoch");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 200, "newEpoch");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$bob']}", 403, "BlockedByMember");
    cast_end(&cast);
}

TEST(block, also_keeps_out_who_would_join_by_itself)
{
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','allowExternalCommits':true}", 200, "true");
    block(&cast, ADA, "$eve", true);
    want_join(&cast, EVE, "m1", 0, NULL, 403, "BlockedByMember");
    block(&cast, ADA, "$eve", false);
    want(&cast, EVE, "optOut", "{}", 200, "false"); /* joining by itself needs no consent */
    want_join(&cast, EVE, "m1", 0, NULL, 200, "\"epoch\":1");
    cast_end(&cast);
}

TEST(block, is_seen_and_says_whom_it_concerns)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, BOB, "getBlockStatus?convoId=g1", NULL, 200, "'hasConflicts':false");
    want(&cast, BOB, "handleBlockChange",
        "{'blockerDid':'$bob','blockedDid':'$max','action':'created','blockUri':'at://a/b'}", 200,
        "{'convoId':'g1','action':'can_leave'}");
    want(&cast, ADA, "handleBlockChange",
        "{'blockerDid':'$ada','blockedDid':'$max','action':'created'}", 200,
        "{'convoId':'g1','action':'can_remove'}");
    want(&cast, ADA, "getBlockStatus?convoId=g1", NULL, 200, "'hasConflicts':true");
    want(&cast, ADA, "getBlockStatus?convoId=g1", NULL, 200,
        "'blockerDid':'$bob','blockedDid':'$max','blockUri':'at://a/b'");
    want(&cast, EVE, "checkBlocks?dids=$bob&dids=$max", NULL, 200,
        "'blockerDid':'$bob','blockedDid':'$max'");
    want(&cast, EVE, "checkBlocks?dids=$eve,$max", NULL, 200, "'blocks':[]");
    want(&cast, EVE, "checkBlocks?dids=$eve", NULL, 400, "the least is 2");
    want(&cast, EVE, "checkBlocks", NULL, 400, "dids is missing");
    want(&cast, EVE, "handleBlockChange",
        "{'blockerDid':'$bob','blockedDid':'$max','action':'removed'}", 403, "NotBlocker");
    want(&cast, BOB, "handleBlockChange",
        "{'blockerDid':'$bob','blockedDid':'$bob','action':'created'}", 400, "another account");
    want(&cast, BOB, "handleBlockChange",
        "{'blockerDid':'$bob','blockedDid':'$max','action':'maybe'}", 400, "action must");
    block(&cast, BOB, "$max", false);
    block(&cast, ADA, "$max", false);
    want(&cast, ADA, "getBlockStatus?convoId=g1", NULL, 200, "'hasConflicts':false");
    cast_end(&cast);
}

TEST(block, is_found_among_a_hundred)
{
    struct buffer call = { 0 };
    struct cast cast;

    cast_begin(&cast);
    want(&cast, EVE, "handleBlockChange",
        "{'blockerDid':'$eve','blockedDid':'did:plc:number098','action':'created'}", 200, "[]");
    buffer_text(&call, "checkBlocks?dids=$eve");
    for (int i = 0; i < 99; i++)
        buffer_format(&call, ",n%03d:abc", i);
    buffer_append(&call, "", 1);
    want(&cast, BOB, call.bytes, NULL, 200, "'blocks':[]");
    buffer_clear(&call);
    buffer_text(&call, "checkBlocks?dids=$eve");
    for (int i = 0; i < 25; i++)
        buffer_format(&call, ",did:plc:number%03d", 98 - i * 3);
    buffer_append(&call, "", 1);
    want(&cast, BOB, call.bytes, NULL, 200, "'blockedDid':'did:plc:number098'");
    buffer_free(&call);
    cast_end(&cast);
}

/* ---- requests ------------------------------------------------------------------------------- */

TEST(request, waits_for_its_recipient_with_its_messages)
{
    struct cast cast;

    cast_begin(&cast);
    make(&cast, EVE, "sendChatRequest",
        "{'recipientDid':'$bob','previewText':'hello','heldMessages':['AAAA',{'ciphertext':"
        "{'$bytes':'c2VjcmV0'}}]}",
        "requestId");
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob'}", 409, "RequestExists");
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$eve'}", 400, "another account");
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$max','heldMessages':['%']}", 400,
        "heldMessages must");
    want(&cast, EVE, "sendChatRequest",
        "{'recipientDid':'$max','heldMessages':['AA','AA','AA','AA','AA','AA']}", 400,
        "heldMessages has 6 items; the most is");
    want(&cast, BOB, "getRequestCount", NULL, 200, "'pendingCount':1,'lastRequestAt'");
    want(&cast, BOB, "listChatRequests", NULL, 200, "'previewText':'hello'");
    want(&cast, BOB, "listChatRequests", NULL, 200, "'messageCount':2");
    want(&cast, EVE, "listChatRequests", NULL, 200, "'requests':[]");
    want(&cast, EVE, "listChatRequests?direction=sent", NULL, 200, "'id':'$id'");
    want(&cast, EVE, "acceptChatRequest", "{'requestId':'$id'}", 404, "RequestNotFound");
    want(&cast, BOB, "acceptChatRequest", "{'requestId':'$id'}", 200,
        "'heldMessages':[{'ciphertext':{'$bytes':'AAAA'}},{'ciphertext':{'$bytes':'c2VjcmV0'}}]");
    want(&cast, BOB, "acceptChatRequest", "{'requestId':'$id'}", 200, "c2VjcmV0");
    want(&cast, BOB, "getRequestCount", NULL, 200, "'pendingCount':0");
    want(&cast, BOB, "listChatRequests?status=accepted", NULL, 200, "'status':'accepted'");
    want(&cast, BOB, "listChatRequests?status=odd", NULL, 400, "status must");
    CHECK_EQ_INT(audit_count(&cast, "sendChatRequest"), 1);
    cast_end(&cast);
}

TEST(request, that_was_declined_is_not_repeated)
{
    struct cast cast;

    cast_begin(&cast);
    make(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob','heldMessages':['AAAA']}",
        "requestId");
    want(&cast, BOB, "declineChatRequest", "{'requestId':'$id'}", 200, "true");
    want(&cast, BOB, "declineChatRequest", "{'requestId':'$id'}", 409, "RequestClosed");
    want(&cast, BOB, "acceptChatRequest", "{'requestId':'$id'}", 409, "RequestClosed");
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob'}", 409, "RequestExists");
    want(&cast, BOB, "listChatRequests?status=declined", NULL, 200, "'messageCount':0");
    cast_end(&cast);
}

TEST(request, does_not_reach_who_does_not_want_it)
{
    struct cast cast;

    cast_begin(&cast);
    make(&cast, EVE, "sendChatRequest", "{'recipientDid':'$max'}", "requestId");
    want(&cast, MAX, "handleBlockChange",
        "{'blockerDid':'$max','blockedDid':'$eve','action':'created'}", 200, "'requestsClosed':1");
    want(&cast, MAX, "getRequestCount", NULL, 200, "'pendingCount':0");
    block(&cast, BOB, "$eve", true);
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob'}", 403, "Blocked");
    want(&cast, BOB, "sendChatRequest", "{'recipientDid':'$eve'}", 403, "Blocked");
    want(&cast, ADA, "optOut", "{}", 200, "false");
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$ada'}", 403, "NotOptedIn");
    cast_end(&cast);
}

TEST(request, is_not_sent_to_everybody)
{
    struct cast cast;
    char body[128];

    cast_begin(&cast);
    for (int i = 0; i < 50; i++) {
        (void)snprintf(body, sizeof body, "{'recipientDid':'did:plc:number%d'}", i);
        want(&cast, EVE, "sendChatRequest", body, 200, "pending");
    }
    want(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob'}", 429, "TooManyRequests");
    cast_end(&cast);
}

static void run_sql(const struct cast *cast, const struct sql_statement *statement)
{
    struct sql_unit *unit = sql_unit_create(0);

    CHECK(unit != NULL);
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_write_wait(cast->site.sql, unit), 0);
    sql_unit_destroy(unit);
}

TEST(request, that_is_too_old_cannot_be_accepted_but_sent_again)
{
    static const struct sql_statement age = { .text = "UPDATE chat_requests SET expires_ms = 1" };
    struct cast cast;

    cast_begin(&cast);
    make(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob','heldMessages':['AAAA']}",
        "requestId");
    run_sql(&cast, &age);
    want(&cast, BOB, "acceptChatRequest", "{'requestId':'$id'}", 410, "RequestExpired");
    want(&cast, BOB, "getRequestCount", NULL, 200, "'pendingCount':0");
    make(&cast, EVE, "sendChatRequest", "{'recipientDid':'$bob'}", "requestId");
    want(&cast, BOB, "acceptChatRequest", "{'requestId':'$id'}", 200, "'heldMessages':[]");
    cast_end(&cast);
}

TEST(block, has_an_end_to_their_number)
{
    static const struct sql_statement fill = {
        .text =
            "INSERT INTO blocks (blocker, blocked, created_ms)"
            " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
            " SELECT s.sender, 'did:plc:' || n.i, 0 FROM n, (SELECT sender FROM chat_requests) s"
    };
    struct cast cast;

    cast_begin(&cast);
    want(&cast, BOB, "sendChatRequest", "{'recipientDid':'$eve'}", 200, "pending");
    run_sql(&cast, &fill);
    want(&cast, BOB, "handleBlockChange",
        "{'blockerDid':'$bob','blockedDid':'$max','action':'created'}", 400, "TooManyBlocks");
    want(&cast, ADA, "handleBlockChange",
        "{'blockerDid':'$ada','blockedDid':'$max','action':'created'}", 200, "affected");
    cast_end(&cast);
}

/* ---- how far a message came ----------------------------------------------------------------- */

TEST(status, of_a_message_counts_who_has_read_it)
{
    char *message = private_message("g1", 1, 1, "hello");
    struct buffer body = { 0 };
    struct cast cast;

    cast_begin(&cast);
    buffer_format(
        &body, "{'convoId':'g1','msgId':'first','ciphertext':{'$bytes':'%s'},'epoch':1}", message);
    buffer_append(&body, "", 1);
    want(&cast, ADA, "sendMessage", body.bytes, 200, "'seq':4");
    want(&cast, ADA, "getDeliveryStatus?convoId=g1&messageIds=first,second", NULL, 200,
        "'messageId':'first','status':'stored','seq':4");
    want(&cast, ADA, "getDeliveryStatus?convoId=g1&messageIds=first,second", NULL, 200,
        "'recipients':2,'read':0},{'messageId':'second','status':'unknown'}");
    want(&cast, BOB, "getDeliveryStatus?convoId=g1&messageIds=first", NULL, 200,
        "'status':'unknown'"); /* it is not bob's */
    want(&cast, BOB, "updateCursor", "{'convoId':'g1','seq':4}", 200, "success");
    want(&cast, ADA, "getDeliveryStatus?convoId=g1&messageIds=first", NULL, 200,
        "'recipients':2,'read':1");
    want(&cast, ADA, "getDeliveryStatus?convoId=g1", NULL, 400, "messageIds is missing");
    buffer_free(&body);
    free(message);
    cast_end(&cast);
}
