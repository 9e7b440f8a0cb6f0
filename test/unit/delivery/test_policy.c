/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation's policy over HTTP, and who may join by it. */
#include <pthread.h>

#include "moderation_site.h"

#define SECRET "the secret of an invite"

/* {"convoId": group, "pskHash": hash of the secret, more}. Sets $id. */
static void invite(struct cast *cast, const char *group, const char *secret, const char *more)
{
    unsigned char hash[32];
    char hex[65], body[512];

    crypto_sha256(secret, strlen(secret), hash);
    hex[crypto_hex_encode(hash, sizeof hash, hex)] = '\0';
    (void)snprintf(body, sizeof body, "{'convoId':'%s','pskHash':'%s'%s}", group, hex, more);
    make(cast, ADA, "createInvite", body, "inviteId");
}

static void set_policy(const struct cast *cast, const char *fields)
{
    char body[256];

    (void)snprintf(body, sizeof body, "{'convoId':'g1',%s}", fields);
    want(cast, ADA, "updatePolicy", body, 200, fields);
}

TEST(policy, is_strict_until_an_admin_changes_it_and_outlives_the_actor)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, BOB, "getPolicy?convoId=g1", NULL, 200,
        "'allowExternalCommits':false,'requireInviteForJoin':false,'allowRejoin':true,"
        "'rejoinWindowDays':30,'maxMembers':0,'appMessageWindow':-1,"
        "'preventRemovingLastAdmin':true,'requireOptIn':false");
    want(&cast, ADA, "updatePolicy",
        "{'convoId':'g1','allowExternalCommits':true,'rejoinWindowDays':7}", 200,
        "'allowExternalCommits':true,'requireInviteForJoin':false,'allowRejoin':true,"
        "'rejoinWindowDays':7");
    site_close(&cast.site);
    site_open(&cast.site);
    want(&cast, BOB, "getPolicy?convoId=g1", NULL, 200,
        "'allowExternalCommits':true,'requireInviteForJoin':false,'allowRejoin':true,"
        "'rejoinWindowDays':7");
    CHECK_EQ_INT(audit_count(&cast, "updatePolicy"), 1);
    cast_end(&cast);
}

TEST(policy, refuses_what_is_out_of_range)
{
    struct cast cast;

    cast_begin(&cast);
    want(&cast, ADA, "updatePolicy", "{'convoId':'g1'}", 400, "names no field");
    want(&cast, ADA, "updatePolicy", "{'convoId':'g1','allowRejoin':1}", 400, "allowRejoin must");
    want(&cast, ADA, "updatePolicy", "{'convoId':'g1','maxMembers':-1}", 400,
        "maxMembers is -1; the least is");
    want(&cast, ADA, "updatePolicy", "{'convoId':'g1','maxMembers':100000}", 400, "InvalidPolicy");
    want(&cast, ADA, "updatePolicy", "{'convoId':'g1','appMessageWindow':2000}", 400,
        "appMessageWindow is 2000; the most is");
    CHECK_EQ_INT(audit_count(&cast, "updatePolicy"), 0);
    cast_end(&cast);
}

TEST(policy, bounds_the_members)
{
    struct cast cast;

    cast_begin(&cast);
    set_policy(&cast, "'maxMembers':3");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 400, "TooManyMembers");
    want(&cast, ADA, "removeMember",
        "{'convoId':'g1','targetDid':'$max','idempotencyKey':'remove max'}", 200, "ok");
    want(&cast, ADA, "addMembers", "{'convoId':'g1','didList':['$eve']}", 200, "newEpoch");
    cast_end(&cast);
}

static void say(const struct cast *cast, const char *id, uint64_t epoch, unsigned status)
{
    char *message = private_message("m1", epoch, 1, id);
    struct buffer body = { 0 };

    buffer_format(&body, "{'convoId':'m1','msgId':'%s','ciphertext':{'$bytes':'%s'},'epoch':%llu}",
        id, message, (unsigned long long)epoch);
    buffer_append(&body, "", 1);
    want(cast, ADA, "sendMessage", body.bytes, status, status == 200 ? "seq" : "EpochMismatch");
    buffer_free(&body);
    free(message);
}

TEST(policy, says_how_far_a_message_may_lag)
{
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','allowExternalCommits':true}", 200, "true");
    want_join(&cast, EVE, "m1", 0, NULL, 200, "\"epoch\":1");
    want_join(&cast, EVE, "m1", 1, NULL, 200, "\"epoch\":2");
    say(&cast, "one", 1, 200);
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','appMessageWindow':0}", 200, "Window");
    say(&cast, "two", 1, 409);
    say(&cast, "three", 2, 200);
    cast_end(&cast);
}

/* ---- joining -------------------------------------------------------------------------------- */

TEST(join, is_for_members_unless_the_policy_says_otherwise)
{
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    want_join(&cast, EVE, "m1", 0, NULL, 403, "NotMember");
    want(&cast, EVE, "getGroupInfo?convoId=m1", NULL, 403, "NotMember");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','requireInviteForJoin':true}", 200, "true");
    want_join(&cast, EVE, "m1", 0, NULL, 403, "InviteRequired");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','allowExternalCommits':true}", 200, "true");
    want_join(&cast, EVE, "m1", 0, NULL, 403, "InviteRequired");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','requireInviteForJoin':false}", 200, "alse");
    want_join(&cast, EVE, "m1", 0, NULL, 200, "\"epoch\":1");
    want_join(&cast, EVE, "m1", 1, NULL, 200, "\"epoch\":2"); /* again, with a new leaf */
    want(&cast, EVE, "getConvo?convoId=m1", NULL, 200, "$eve");
    cast_end(&cast);
}

static void leave(const struct cast *cast, enum who caller, uint64_t epoch)
{
    char *commit = private_message("m1", epoch, 3, "leave");
    char body[512];

    (void)snprintf(body, sizeof body, "{'convoId':'m1','commit':'%s'}", commit);
    want(cast, caller, "leaveConvo", body, 200, "newEpoch");
    free(commit);
}

TEST(join, is_open_for_a_while_to_who_left_but_not_to_who_was_removed)
{
    struct cast cast;
    char *commit, body[512];

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", SECRET, "");
    want_join(&cast, EVE, "m1", 0, SECRET, 200, "\"epoch\":1");
    leave(&cast, EVE, 1);
    want_join(&cast, EVE, "m1", 2, NULL, 200, "\"epoch\":3");
    leave(&cast, EVE, 3);
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','allowRejoin':false}", 200, "false");
    want_join(&cast, EVE, "m1", 4, NULL, 403, "NotMember");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','allowRejoin':true}", 200, "true");
    want_join(&cast, EVE, "m1", 4, NULL, 200, "\"epoch\":5");
    commit = private_message("m1", 5, 3, "remove eve");
    (void)snprintf(body, sizeof body,
        "{'convoId':'m1','targetDid':'$eve','idempotencyKey':'k','commit':'%s'}", commit);
    want(&cast, ADA, "removeMember", body, 200, "ok");
    free(commit);
    want_join(&cast, EVE, "m1", 6, NULL, 403, "NotMember");
    want_join(&cast, EVE, "m1", 6, SECRET, 403, "InvalidInvite");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','allowExternalCommits':true}", 200, "true");
    want_join(&cast, EVE, "m1", 6, NULL, 403, "NotMember");
    site_close(&cast.site);
    site_open(&cast.site);
    want_join(&cast, EVE, "m1", 6, NULL, 403, "NotMember");
    want(&cast, ADA, "getEpoch?convoId=m1", NULL, 200, "'currentEpoch':6");
    invite(&cast, "m1", "for eve again", ",'targetDid':'$eve'");
    want_join(&cast, BOB, "m1", 6, "for eve again", 200, "\"epoch\":7"); /* it is open */
    want_join(&cast, EVE, "m1", 7, "for eve again", 200, "\"epoch\":8");
    want(&cast, ADA, "listInvites?convoId=m1", NULL, 200, "'targetDid':'$eve','usesCount':1");
    cast_end(&cast);
}

/* ---- invites -------------------------------------------------------------------------------- */

TEST(invite, lets_join_as_often_as_it_says)
{
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", SECRET, ",'maxUses':2");
    want_join(&cast, EVE, "m1", 0, "another secret", 403, "InvalidInvite");
    want_join(&cast, EVE, "m1", 0, SECRET, 200, "\"epoch\":1");
    want_join(&cast, EVE, "m1", 1, SECRET, 200, "\"epoch\":2"); /* a member: not a use */
    want(&cast, ADA, "listInvites?convoId=m1", NULL, 200, "'maxUses':2,'usesCount':1");
    want_join(&cast, BOB, "m1", 9, SECRET, 409, "EpochConflict"); /* not a use */
    want_join(&cast, BOB, "m1", 2, SECRET, 200, "\"epoch\":3");
    want_join(&cast, BOB, "m1", 2, SECRET, 200, "\"epoch\":3"); /* the answer was lost */
    want_join(&cast, MAX, "m1", 3, SECRET, 403, "InvalidInvite");
    want(&cast, ADA, "getEpoch?convoId=m1", NULL, 200, "'currentEpoch':3");
    want(&cast, ADA, "listInvites?convoId=m1", NULL, 200, "'usesCount':2");
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

TEST(invite, ends_when_it_says)
{
    static const struct sql_statement age = { .text = "UPDATE invites SET expires_ms = 1" };
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", SECRET, "");
    run_sql(&cast, &age);
    want_join(&cast, EVE, "m1", 0, SECRET, 403, "InvalidInvite");
    want(&cast, ADA, "getEpoch?convoId=m1", NULL, 200, "'currentEpoch':0");
    cast_end(&cast);
}

TEST(join, of_who_left_too_long_ago_is_refused)
{
    static const struct sql_statement age = {
        .text = "UPDATE members SET left_ms = left_ms - 31 * CAST(86400000 AS BIGINT)"
                " WHERE left_ms IS NOT NULL"
    };
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", SECRET, ",'maxUses':1");
    want_join(&cast, EVE, "m1", 0, SECRET, 200, "\"epoch\":1");
    leave(&cast, EVE, 1);
    run_sql(&cast, &age);
    site_close(&cast.site);
    site_open(&cast.site);
    want_join(&cast, EVE, "m1", 2, NULL, 403, "NotMember");
    want(&cast, ADA, "updatePolicy", "{'convoId':'m1','rejoinWindowDays':32}", 200, "32");
    want_join(&cast, EVE, "m1", 2, NULL, 200, "\"epoch\":3");
    cast_end(&cast);
}

TEST(invite, may_be_for_one_alone_and_its_secret_may_be_base64)
{
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", "secret", ",'targetDid':'$bob'");
    want_join(&cast, EVE, "m1", 0, "c2VjcmV0", 403, "InvalidInvite");
    want_join(&cast, BOB, "m1", 0, "c2VjcmV0", 200, "\"epoch\":1");
    cast_end(&cast);
}

TEST(invite, is_listed_and_revoked)
{
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", SECRET, "");
    want(&cast, ADA, "listInvites?convoId=m1", NULL, 200, "'inviteId':'$id'");
    want(&cast, EVE, "revokeInvite", "{'inviteId':'$id'}", 403, "NotMember");
    want(&cast, ADA, "revokeInvite", "{'inviteId':'$id'}", 200, "true");
    want(&cast, ADA, "revokeInvite", "{'inviteId':'$id'}", 409, "AlreadyRevoked");
    want(&cast, ADA, "revokeInvite", "{'inviteId':'nothing'}", 404, "InviteNotFound");
    want_join(&cast, EVE, "m1", 0, SECRET, 403, "InvalidInvite");
    want(&cast, ADA, "listInvites?convoId=m1", NULL, 200, "'invites':[]");
    want(&cast, ADA, "listInvites?convoId=m1&includeRevoked=true", NULL, 200, "revokedAt");
    CHECK_EQ_INT(audit_count(&cast, "createInvite"), 1);
    CHECK_EQ_INT(audit_count(&cast, "revokeInvite"), 1);
    cast_end(&cast);
}

TEST(invite, that_makes_no_sense_is_refused)
{
    struct cast cast;
    char body[256], hash[65];

    cast_begin(&cast);
    (void)snprintf(hash, sizeof hash, "%064x", 7);
    (void)snprintf(body, sizeof body, "{'convoId':'g1','pskHash':'%s'}", hash);
    want(&cast, ADA, "createInvite", body, 200, "inviteId");
    want(&cast, ADA, "createInvite", body, 409, "InviteExists");
    want(&cast, ADA, "createInvite", "{'convoId':'g1','pskHash':'abc'}", 400, "pskHash must");
    hash[0] = '1';
    (void)snprintf(body, sizeof body, "{'convoId':'g1','pskHash':'%s','maxUses':0}", hash);
    want(&cast, ADA, "createInvite", body, 400, "maxUses is 0; the least is");
    (void)snprintf(body, sizeof body,
        "{'convoId':'g1','pskHash':'%s','expiresAt':'2001-01-01T00:00:00Z'}", hash);
    want(&cast, ADA, "createInvite", body, 400, "expiresAt must");
    for (int i = 0; i < 99; i++) {
        (void)snprintf(body, sizeof body, "{'convoId':'g1','pskHash':'%064x'}", 100 + i);
        want(&cast, ADA, "createInvite", body, 200, "inviteId");
    }
    (void)snprintf(body, sizeof body, "{'convoId':'g1','pskHash':'%064x'}", 99);
    want(&cast, ADA, "createInvite", body, 429, "TooManyInvites");
    cast_end(&cast);
}

TEST(invite, shows_the_group_info_to_who_has_its_hash)
{
    struct cast cast;
    unsigned char hash[32];
    char hex[65], call[160];

    cast_begin(&cast);
    create(&cast, "m1");
    crypto_sha256(SECRET, strlen(SECRET), hash);
    hex[crypto_hex_encode(hash, sizeof hash, hex)] = '\0';
    (void)snprintf(call, sizeof call, "getGroupInfo?convoId=m1&pskHash=%s", hex);
    want(&cast, EVE, call, NULL, 403, "InvalidInvite");
    invite(&cast, "m1", SECRET, "");
    want(&cast, EVE, call, NULL, 404, "GroupInfoUnavailable"); /* there is none, and it says so */
    want(&cast, EVE, "getGroupInfo?convoId=m1&pskHash=00", NULL, 400, "pskHash must");
    want(&cast, EVE, "getGroupInfo?convoId=m1", NULL, 403, "NotMember");
    want(&cast, ADA, "revokeInvite", "{'inviteId':'$id'}", 200, "true");
    want(&cast, EVE, call, NULL, 403, "InvalidInvite");
    cast_end(&cast);
}

struct joiner {
    const struct cast *cast;
    enum who caller;
    unsigned status;
    pthread_t thread;
};

static void *join_one(void *argument)
{
    struct joiner *joiner = argument;
    struct web_answer answer = join(joiner->cast, joiner->caller, "m1", 0, SECRET);

    joiner->status = answer.status;
    web_answer_free(&answer);
    return NULL;
}

TEST(invite, for_one_use_lets_one_of_many_in)
{
    static const enum who callers[] = { EVE, REM, BOB, MAX };
    struct joiner joiners[4];
    unsigned let_in = 0;
    struct cast cast;

    cast_begin(&cast);
    create(&cast, "m1");
    invite(&cast, "m1", SECRET, ",'maxUses':1");
    for (int i = 0; i < 4; i++) {
        joiners[i] = (struct joiner){ .cast = &cast, .caller = callers[i] };
        CHECK_EQ_INT(pthread_create(&joiners[i].thread, NULL, join_one, &joiners[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(pthread_join(joiners[i].thread, NULL), 0);
        let_in += joiners[i].status == 200;
    }
    CHECK_EQ_INT(let_in, 1);
    want(&cast, ADA, "listInvites?convoId=m1", NULL, 200, "'usesCount':1");
    want(&cast, ADA, "getEpoch?convoId=m1", NULL, 200, "'currentEpoch':1");
    cast_end(&cast);
}
