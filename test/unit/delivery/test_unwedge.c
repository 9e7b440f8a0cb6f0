/* SPDX-License-Identifier: Apache-2.0 */
/* Out of an epoch that nobody can enter: reports, confirmations, resets. */
#include "convo_acts.h"

/* ada removes dan and changes the group in a way nobody can follow: epoch 2, seq 3. */
static void commit_badly(struct cast *cast)
{
    char more[128];

    (void)snprintf(more, sizeof more, ",\"removes\":[\"%s\"]", cast->dan.did);
    do_commit(&cast->site, &cast->ada, "g1", 1, "bad", more, 200, "\"epoch\":2");
}

TEST(report, of_a_quorum_takes_the_commit_back_and_all_it_did)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    commit_badly(&cast);
    expect(site, &cast.dan, "getEpoch?convoId=g1", NULL, 403, "NotMember");
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false,\"reports\":1,\"needed\":2");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    expect(site, &cast.bob, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    expect(site, &cast.dan, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    CHECK_EQ_INT(stored(site, "SELECT join_seq FROM members WHERE convo = 'g1' AND leave_seq IS "
                              "NULL ORDER BY join_seq DESC LIMIT 1"),
        2);
    CHECK_EQ_INT(stored(site, "SELECT seq FROM convos"), 4);
    CHECK_EQ_INT(stored(site, "SELECT kind FROM log WHERE seq = 3"), 4);
    expect(site, &cast.dan, "getMessages?convoId=g1", NULL, 200, "\"commitRevoked\"");
    expect(site, &cast.dan, "getMessages?convoId=g1", NULL, 200,
        "\"gapInfo\":{\"missingSeqs\":[3],\"hasGaps\":true,\"totalMessages\":3}");
    expect_check(site, NULL);
    cast_end(&cast);
}

/* A member came back in its own commit, which was revoked first. Its later, ended interval is part of
 * the one that continues. */
TEST(report, gives_back_who_had_returned_in_the_meantime)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    commit_badly(&cast);
    plant(site,
        "INSERT INTO members (convo, did, join_seq, joined_ms, is_admin, is_moderator,"
        " unread_extra, read_seq, leave_seq, left_ms, was_removed) SELECT convo, did, 4, 1, 0, 0,"
        " 0, 3, 5, 1, 1 FROM members WHERE leave_seq IS NOT NULL");
    plant(site, "UPDATE members SET has_later = 1 WHERE leave_seq = 3");
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM members"), 4);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM members WHERE has_later = 1"), 0);
    site_close(site);
    site_open(site);
    expect(site, &cast.dan, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    do_say(site, &cast.dan, "g1", "back", 1, "persistent", 200, "messageId");
    cast_end(&cast);
}

/* Else the conversation would have no admin when the commit is taken back. */
TEST(report, may_still_take_who_joined_so_the_last_admin_stays)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    do_add(site, &cast.ada, "g1", 1, (const char *const[3]){ cast.eve.did, NULL, NULL });
    act(site, &cast.ada, "promoteAdmin", 200, "", "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}",
        cast.eve.did);
    act(site, &cast.ada, "demoteAdmin", 400, "LastAdmin",
        "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}", cast.ada.did);
    do_say(site, &cast.bob, "g1", "m1", 2, "persistent", 200, "messageId");
    act(site, &cast.ada, "demoteAdmin", 200, "", "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}",
        cast.ada.did);
    cast_end(&cast);
}

/* The other members cannot keep it. */
TEST(report, does_not_give_back_who_left)
{
    struct cast cast;
    struct site *site = &cast.site;
    char *leave = private_message("g1", 1, 3, "bye"), *again = private_message("g1", 1, 3, "b");

    cast_begin(&cast);
    act(site, &cast.dan, "leaveConvo", 200, "", "{\"convoId\":\"g1\",\"commit\":\"%s\"}", leave);
    do_report(site, &cast.bob, "g1", 1, "bye", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bye", 200, "\"revoked\":true");
    expect(site, &cast.bob, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    expect(site, &cast.dan, "getEpoch?convoId=g1", NULL, 403, "NotMember");
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM quarantines"), 0);
    expect_check(site, NULL);
    /* Nor who has to wait because of another commit. */
    do_commit(site, &cast.cyd, "g1", 1, "bad", "", 200, "\"epoch\":2");
    do_report(site, &cast.ada, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":true");
    do_commit(site, &cast.cyd, "g1", 1, "other", "", 403, "CommitterQuarantined");
    act(site, &cast.cyd, "leaveConvo", 200, "", "{\"convoId\":\"g1\",\"commit\":\"%s\"}", again);
    free(leave);
    free(again);
    cast_end(&cast);
}

TEST(report, leaves_whom_the_commit_added_as_it_was_before)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    do_add(site, &cast.ada, "g1", 1, (const char *const[3]){ cast.eve.did, NULL, NULL });
    do_report(site, &cast.bob, "g1", 1, "an add", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "an add", 200, "\"revoked\":true");
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM members WHERE leave_seq = 4 AND was_removed = 0"
                              " AND left_ms = 0"),
        1);
    cast_end(&cast);
}

TEST(report, counts_people_not_how_often_and_not_those_the_commit_concerns)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    do_add(site, &cast.ada, "g1", 1, (const char *const[3]){ cast.eve.did, NULL, NULL });
    for (int i = 0; i < 3; i++)
        do_report(site, &cast.bob, "g1", 1, "an add", 200,
            "\"revoked\":false,\"reports\":1,\"needed\":2");
    do_report(site, &cast.ada, "g1", 1, "an add", 403, "NotEligible");
    do_report(site, &cast.eve, "g1", 1, "an add", 403, "NotEligible");
    site_close(site); /* reports survive a restart */
    site_open(site);
    do_report(site, &cast.bob, "g1", 1, "an add", 200, "\"reports\":1,\"needed\":2");
    do_report(site, &cast.dan, "g1", 1, "an add", 200, "\"revoked\":true");
    expect(site, &cast.eve, "getEpoch?convoId=g1", NULL, 403, "NotMember");
    do_report(site, &cast.cyd, "g1", 1, "an add", 200, "\"revoked\":true");
    expect_check(site, NULL);
    cast_end(&cast);
}

TEST(report, lets_the_next_commit_in_but_neither_the_same_bytes_nor_the_committer)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    commit_badly(&cast);
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    for (int i = 0; i < 2; i++) { /* also when all was read anew */
        do_commit(site, &cast.bob, "g1", 1, "bad", "", 409, "CommitRevoked");
        do_commit(site, &cast.ada, "g1", 1, "better", "", 403, "CommitterQuarantined");
        site_close(site);
        site_open(site);
    }
    do_commit(site, &cast.bob, "g1", 1, "good", "", 200, "\"epoch\":2");
    do_commit(site, &cast.cyd, "g1", 1, "late", "", 409, "EpochConflict");
    plant(site, "UPDATE quarantines SET until_ms = 1");
    site_close(site);
    site_open(site);
    do_commit(site, &cast.ada, "g1", 2, "forgiven", "", 200, "\"epoch\":3");
    expect(site, &cast.dan, "getCommits?convoId=g1&fromEpoch=2", NULL, 200, "\"epoch\":3");
    expect_check(site, NULL);
    cast_end(&cast);
}

/* A second commit at the same epoch, whose hash comes before that of the first: in this order the
 * database finds the reports of the two. */
static const char *worse_than_bad(void)
{
    static const char *const secrets[] = { "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8" };
    char bad[65], worse[65];

    hash_of("g1", 1, "bad", bad);
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++) {
        hash_of("g1", 1, secrets[i], worse);
        if (strcmp(worse, bad) < 0)
            return secrets[i];
    }
    CHECK_MSG(false, "no hash comes before %s", bad);
    return NULL;
}

TEST(report, of_two_commits_at_one_epoch_is_remembered_of_both)
{
    const char *worse = worse_than_bad();
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    commit_badly(&cast);
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    do_commit(site, &cast.dan, "g1", 1, worse, "", 200, "\"epoch\":2");
    do_report(site, &cast.bob, "g1", 1, worse, 200, "\"revoked\":false,\"reports\":1");
    site_close(site);
    site_open(site);
    do_report(site, &cast.cyd, "g1", 1, worse, 200, "\"revoked\":true");
    expect_check(site, NULL);
    cast_end(&cast);
}

TEST(report, never_takes_back_an_epoch_a_member_was_heard_at)
{
    static const char *const how[] = { "message", "ephemeral", "confirm", "commit" };

    for (int i = 0; i < 4; i++) {
        struct cast cast;
        struct site *site = &cast.site;

        cast_begin(&cast);
        commit_badly(&cast);
        do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
        if (i == 0)
            do_say(site, &cast.ada, "g1", "m", 2, "persistent", 200, "seq");
        else if (i == 1)
            do_say(site, &cast.ada, "g1", "m", 2, "ephemeral", 200, "seq");
        else if (i == 2)
            act(site, &cast.ada, "confirmEpoch", 200, "\"confirmed\":true",
                "{\"convoId\":\"g1\",\"epoch\":2,\"epochAuthenticatorHash\":\"%064d\"}", 7);
        else
            do_commit(site, &cast.bob, "g1", 2, "more", "", 200, "\"epoch\":3");
        printf("heard by a %s\n", how[i]);
        site_close(site); /* and that is kept */
        site_open(site);
        do_report(site, &cast.cyd, "g1", 1, "bad", 409, "EpochConfirmed");
        expect(site, &cast.dan, "getEpoch?convoId=g1", NULL, 403, "NotMember");
        cast_end(&cast);
    }
}

TEST(report, of_a_message_at_the_epoch_before_does_not_count_as_heard)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    commit_badly(&cast);
    do_say(site, &cast.bob, "g1", "m", 1, "persistent", 200, "\"seq\":4");
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    expect(site, &cast.dan, "getMessages?convoId=g1", NULL, 200, "\"id\":\"m\"");
    expect_check(site, NULL);
    cast_end(&cast);
}

static const char plant_welcome[] =
    "INSERT INTO welcomes (convo, seq, part, bytes, created_ms) VALUES ('g1', 3, 0, 'w', 1)";

TEST(report, makes_its_welcomes_invalid_unless_one_was_joined_by)
{
    struct cast cast;
    struct site *site = &cast.site;

    for (int state = 1; state <= 2; state++) {
        char target[256];

        cast_begin(&cast);
        commit_badly(&cast);
        plant(site, plant_welcome);
        (void)snprintf(target, sizeof target,
            "INSERT INTO welcome_targets (convo, seq, part, ref, did, device, state, changed_ms)"
            " VALUES ('g1', 3, 0, 'r', 'did:plc:x', '', %d, 1)",
            state);
        plant(site, target);
        plant(site, "UPDATE convos SET group_info = 'i', group_info_epoch = 2");
        do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
        if (state == 1) {
            do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
            CHECK_EQ_INT(stored(site, "SELECT state FROM welcome_targets"), 3);
            expect(site, &cast.bob, "getGroupInfo?convoId=g1", NULL, 404, "GroupInfoUnavailable");
        } else {
            do_report(site, &cast.cyd, "g1", 1, "bad", 409, "EpochConfirmed");
            CHECK_EQ_INT(stored(site, "SELECT state FROM welcome_targets"), 2);
            CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM quarantines"), 0);
            expect(site, &cast.bob, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":2");
        }
        expect_check(site, NULL);
        cast_end(&cast);
    }
}

TEST(report, keeps_a_group_info_of_before_the_commit)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    plant(site, "UPDATE convos SET group_info = 'i', group_info_epoch = 1");
    commit_badly(&cast);
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    expect(site, &cast.bob, "getGroupInfo?convoId=g1", NULL, 200, "\"epoch\":1");
    cast_end(&cast);
}

TEST(report, of_what_is_not_there_is_refused_by_name)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    do_create(site, &cast.ada, "counted");
    act(site, &cast.ada, "addMembers", 200, "newEpoch",
        "{\"convoId\":\"counted\",\"didList\":[\"%s\"]}", cast.bob.did);
    do_report(site, &cast.bob, "g1", 0, "no such", 404, "CommitNotFound");
    do_report(site, &cast.bob, "g1", 1, "an add", 404, "CommitNotFound");
    do_report(site, &cast.eve, "g1", 0, "an add", 403, "NotMember");
    do_report(site, &cast.bob, "nowhere", 0, "an add", 404, "ConvoNotFound");
    do_report(site, &cast.bob, "counted", 0, "an add", 400, "NumberedConversation");
    act(site, &cast.bob, "reportInvalidCommit", 400, "InvalidRequest",
        "{\"convoId\":\"g1\",\"baseEpoch\":0,\"sha256\":\"%s\"}", "short");
    act(site, &cast.bob, "reportInvalidCommit", 400, "baseEpoch",
        "{\"convoId\":\"g1\",\"sha256\":"
        "\"%064d\"}",
        0);
    cast_end(&cast);
}

TEST(report, is_heard_by_who_listens_and_by_who_comes_later)
{
    struct web_answer live = { 0 }, later = { 0 }, gone = { 0 };
    struct cast cast;
    struct site *site = &cast.site;
    int live_fd, later_fd, gone_fd;

    cast_begin(&cast);
    do_add(site, &cast.ada, "g1", 1, (const char *const[3]){ cast.eve.did, NULL, NULL });
    live_fd = do_listen(site, &cast.bob, "convoId=g1&cursor=0");
    gone_fd = do_listen(site, &cast.eve, "convoId=g1&cursor=3");
    CHECK(web_receive_until(live_fd, &live, "id: 3\n"));
    CHECK(web_receive_until(gone_fd, &gone, "text/event-stream"));
    do_report(site, &cast.bob, "g1", 1, "an add", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "an add", 200, "\"revoked\":true");
    CHECK(web_receive_until(live_fd, &live, "id: 4\n"));
    CHECK(web_receive_until(live_fd, &live, "#commitRevokedEvent"));
    CHECK(web_receive_until(gone_fd, &gone, "removed"));
    later_fd = do_listen(site, &cast.dan, "convoId=g1&cursor=2");
    CHECK(web_receive_until(later_fd, &later, "id: 4\n"));
    CHECK(strstr(later.text, "id: 3\n") == NULL);
    close(live_fd);
    close(later_fd);
    close(gone_fd);
    web_answer_free(&live);
    web_answer_free(&later);
    web_answer_free(&gone);
    cast_end(&cast);
}

/* ---- confirmEpoch --------------------------------------------------------------------------- */

#define CONFIRM "{\"convoId\":\"%s\",\"epoch\":%d,\"epochAuthenticatorHash\":\"%064d\"}"

TEST(confirm, of_different_states_of_an_epoch_is_an_alarm)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    struct site *site = &cast.site;
    int fd;

    cast_begin(&cast);
    fd = do_listen(site, &cast.dan, "convoId=g1&cursor=0");
    act(site, &cast.ada, "confirmEpoch", 200, "\"forkSuspected\":false", CONFIRM, "g1", 1, 7);
    act(site, &cast.bob, "confirmEpoch", 200, "\"forkSuspected\":false", CONFIRM, "g1", 1, 7);
    act(site, &cast.bob, "confirmEpoch", 200, "\"forkSuspected\":false", CONFIRM, "g1", 0, 8);
    do_say(site, &cast.ada, "g1", "m", 1, "persistent", 200, "\"seq\":3");
    CHECK(web_receive_until(fd, &heard, "id: 3\n"));
    CHECK(strstr(heard.text, "forkSuspected") == NULL);
    act(site, &cast.cyd, "confirmEpoch", 200, "\"forkSuspected\":true", CONFIRM, "g1", 1, 8);
    CHECK(web_receive_until(fd, &heard, "#forkSuspectedEvent"));
    /* A second device of bob in another state is one too. */
    act(site, &cast.bob, "confirmEpoch", 200, "\"forkSuspected\":true", CONFIRM, "g1", 0, 9);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM epoch_confirms"), 4);
    close(fd);
    web_answer_free(&heard);
    cast_end(&cast);
}

TEST(confirm, refuses_what_cannot_be_confirmed_by_name)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    do_create(site, &cast.ada, "counted");
    act(site, &cast.ada, "addMembers", 200, "newEpoch",
        "{\"convoId\":\"counted\",\"didList\":[\"%s\"]}", cast.bob.did);
    act(site, &cast.ada, "confirmEpoch", 409, "EpochMismatch", CONFIRM, "g1", 2, 7);
    act(site, &cast.eve, "confirmEpoch", 403, "NotMember", CONFIRM, "g1", 1, 7);
    act(site, &cast.ada, "confirmEpoch", 404, "ConvoNotFound", CONFIRM, "g9", 1, 7);
    act(site, &cast.ada, "confirmEpoch", 400, "NumberedConversation", CONFIRM, "counted", 1, 7);
    act(site, &cast.ada, "confirmEpoch", 400, "epochAuthenticatorHash",
        "{\"convoId\":\"g1\",\"epoch\":%d}", 1);
    cast_end(&cast);
}

/* ---- resetGroup ----------------------------------------------------------------------------- */

TEST(reset, begins_another_group_with_the_same_members)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    struct site *site = &cast.site;
    char *commit, *old;
    int fd;

    cast_begin(&cast);
    fd = do_listen(site, &cast.cyd, "convoId=g1&cursor=0");
    act(site, &cast.bob, "resetGroup", 403, "NotAdmin",
        "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}", "g1b");
    act(site, &cast.eve, "resetGroup", 403, "NotMember",
        "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}", "g1b");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse",
        "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}", "g1");
    act(site, &cast.ada, "resetGroup", 400, "newGroupId", "{\"convoId\":\"%s\"}", "g1");
    act(site, &cast.ada, "resetGroup", 404, "ConvoNotFound",
        "{\"convoId\":\"g9\",\"newGroupId\":\"%s\"}", "g1b");
    act(site, &cast.ada, "resetGroup", 200, "\"epoch\":0,\"seq\":3",
        "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}", "g1b");
    CHECK(web_receive_until(fd, &heard, "#groupResetEvent"));
    expect(site, &cast.dan, "getConvo?convoId=g1", NULL, 200, "\"groupId\":\"g1b\"");
    expect(site, &cast.dan, "getConvos", NULL, 200, "\"groupId\":\"g1b\"");
    expect(site, &cast.dan, "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":0");
    commit = private_message("g1b", 0, 3, "begin");
    old = private_message("g1", 1, 3, "of the old one");
    act(site, &cast.bob, "submitCommit", 400, "InvalidCommit",
        "{\"convoId\":\"g1\",\"commit\":\"%s\"}", old);
    act(site, &cast.bob, "submitCommit", 200, "\"epoch\":1",
        "{\"convoId\":\"g1\",\"commit\":\"%s\"}", commit);
    site_close(site);
    site_open(site);
    expect(site, &cast.dan, "getCommits?convoId=g1&fromEpoch=0", NULL, 200, commit);
    act(site, &cast.ada, "submitCommit", 400, "InvalidCommit",
        "{\"convoId\":\"g1\",\"commit\":\"%s\"}", old);
    expect(site, &cast.dan, "getMessages?convoId=g1", NULL, 200, "\"groupReset\"");
    expect_check(site, NULL);
    free(commit);
    free(old);
    close(fd);
    web_answer_free(&heard);
    cast_end(&cast);
}

TEST(reset, takes_no_id_that_an_earlier_group_had)
{
    static const char body[] = "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}";
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast); /* seq 2 */
    act(site, &cast.ada, "resetGroup", 200, "\"seq\":3", body, "g2");
    act(site, &cast.ada, "resetGroup", 200, "\"seq\":4", body, "g3");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "g2");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "g3");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "g1");
    expect(site, &cast.dan, "getConvo?convoId=g1", NULL, 200, "\"groupId\":\"g3\"");
    act(site, &cast.ada, "resetGroup", 200, "\"seq\":5", body, "g4");
    expect_check(site, NULL);
    cast_end(&cast);
}

/* An id is named as it is or in hex: a commit of the one would count in the other. */
TEST(reset, takes_no_id_that_an_earlier_group_had_in_another_form)
{
    static const char body[] = "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}";
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast); /* seq 2 */
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "6731");
    act(site, &cast.ada, "resetGroup", 200, "\"seq\":3", body, "jk");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "6a6b");
    act(site, &cast.ada, "resetGroup", 400, "newGroupId must have its hex digits", body, "6A6B");
    act(site, &cast.ada, "resetGroup", 200, "\"seq\":4", body, "6c6d");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "lm");
    act(site, &cast.ada, "resetGroup", 200, "\"seq\":5", body, "G5");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "6731");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "6a6b");
    act(site, &cast.ada, "resetGroup", 409, "GroupIdInUse", body, "lm");
    expect_check(site, NULL);
    cast_end(&cast);
}
