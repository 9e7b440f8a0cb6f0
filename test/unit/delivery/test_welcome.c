/* SPDX-License-Identifier: Apache-2.0 */
/* Welcomes: their recipients, their states, and requests for a new one. */
#include "site.h"

/* Alice has a group; bob's package is claimed by her. */
struct play {
    struct site site;
    struct caller alice, bob, carol;
    struct signer signer;
    char hash[65];
};

static void play_begin(struct play *play)
{
    site_begin(&play->site);
    caller_begin(&play->alice);
    caller_begin(&play->bob);
    caller_begin(&play->carol);
    signer_begin(&play->signer);
    site_create(&play->site, &play->alice, "group");
    site_publish(
        &play->site, &play->bob, (struct package_options){ .signer = &play->signer }, play->hash);
    CHECK_EQ_INT(site_claim(&play->site, &play->alice, play->bob.did, NULL), 1);
}

static void play_end(struct play *play)
{
    caller_end(&play->alice);
    caller_end(&play->bob);
    caller_end(&play->carol);
    signer_end(&play->signer);
    site_end(&play->site);
}

static void add(struct play *play, uint64_t epoch, const char *first, const char *second)
{
    const char *hashes[] = { first, second };
    struct web_answer answer =
        site_add(&play->site, &play->alice, "group", epoch, hashes, second == NULL ? 1 : 2);

    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
}

static size_t pending(struct play *play, const struct caller *caller, const char *more)
{
    struct reading reading;
    char call[128];
    size_t count;

    (void)snprintf(call, sizeof call, "getPendingWelcomes%s", more);
    reading = site_read(&play->site, caller, call, "");
    count = json_count(json_get(reading.root, "welcomes"));
    reading_end(&reading);
    return count;
}

static const char good[] = "{\"convoId\":\"group\",\"success\":true}";
static const char bad[] =
    "{\"convoId\":\"group\",\"success\":false,\"errorDetails\":\"cannot be opened\"}";
static const char group[] = "{\"convoId\":\"group\"}";

TEST(welcome, it_reaches_whom_it_is_for_and_nobody_else)
{
    struct reading reading;
    struct play play;
    char *welcome, *got, *hash;
    const char *hashes[1];

    play_begin(&play);
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 404, "WelcomeNotFound");
    add(&play, 0, play.hash, NULL);
    hashes[0] = play.hash;
    welcome = welcome_make(hashes, 1);
    CHECK_EQ_INT(pending(&play, &play.bob, ""), 1);
    CHECK_EQ_INT(pending(&play, &play.alice, ""), 0);
    CHECK_EQ_INT(pending(&play, &play.carol, ""), 0);
    reading = site_read(&play.site, &play.bob, "getWelcome?convoId=group", "");
    got = text_of(reading.root, "welcome");
    hash = text_of(reading.root, "keyPackageHash");
    CHECK_EQ_STR(got, welcome);
    CHECK_EQ_STR(hash, play.hash);
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group", "", 404, "WelcomeNotFound");
    site_expect(&play.site, &play.alice, "getWelcome?convoId=group", "", 404, "WelcomeNotFound");
    site_expect(&play.site, &play.carol, "confirmWelcome", good, 404, "WelcomeNotFound");
    site_expect(&play.site, &play.carol, "invalidateWelcome", group, 404, "WelcomeNotFound");
    site_expect(&play.site, &play.carol, "reissueWelcome", group, 403, "NotMember");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=other", "", 404, "WelcomeNotFound");
    site_expect(&play.site, &play.bob, "getWelcome", "", 400, "InvalidRequest");
    reading_end(&reading);
    free(got);
    free(hash);
    free(welcome);
    play_end(&play);
}

TEST(welcome, it_is_fetched_and_confirmed)
{
    struct web_answer answer;
    struct play play;
    char *header;

    play_begin(&play);
    add(&play, 0, play.hash, NULL);
    site_expect(&play.site, &play.bob, "getPendingWelcomes", "", 200, "\"waiting\"");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 200, "\"welcome\"");
    site_expect(&play.site, &play.bob, "getPendingWelcomes", "", 200, "\"fetched\"");
    /* A client that lost the answer asks again. */
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 200, "\"welcome\"");
    site_expect(
        &play.site, &play.bob, "confirmWelcome", "{\"convoId\":\"group\"}", 400, "InvalidRequest");
    header = caller_header(&play.bob, "confirmWelcome");
    answer = site_ask_with(&play.site, header, "confirmWelcome", good);
    CHECK_EQ_INT(answer.status, 200);
    web_answer_free(&answer);
    answer = site_ask_with(&play.site, header, "confirmWelcome", good);
    CHECK_MSG(
        answer.status == 401 && strstr(answer.text, "TokenReplayed") != NULL, "%s", answer.text);
    web_answer_free(&answer);
    free(header);
    site_expect(&play.site, &play.bob, "confirmWelcome", good, 200, "\"confirmed\":true");
    site_expect(&play.site, &play.bob, "confirmWelcome", bad, 409, "WelcomeConfirmed");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 404, "WelcomeNotFound");
    CHECK_EQ_INT(pending(&play, &play.bob, ""), 0);
    play_end(&play);
}

TEST(welcome, one_that_failed_is_stale_and_another_can_be_asked_for)
{
    struct reading reading;
    struct play play;
    const struct json *row;
    char *kind, *id, body[512], next[65];

    play_begin(&play);
    add(&play, 0, play.hash, NULL);
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 200, "\"welcome\"");
    site_expect(&play.site, &play.bob, "confirmWelcome", bad, 200, "\"confirmed\":true");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 410, "WelcomeStale");
    site_expect(&play.site, &play.bob, "confirmWelcome", good, 410, "WelcomeStale");
    site_expect(&play.site, &play.bob, "getExpectedConversations", "", 200, "\"needsRejoin\":true");
    /* The wish reaches a member, who adds the device with another package. */
    site_expect(&play.site, &play.bob, "reissueWelcome",
        "{\"convoId\":\"group\",\"reason\":\"lost my keys\"}", 200, "\"activeMembers\":1");
    reading = site_read(&play.site, &play.alice, "getPendingDeviceAdditions", "");
    row = json_at(json_get(reading.root, "pendingAdditions"), 0);
    kind = text_of(row, "kind");
    id = text_of(row, "id");
    CHECK_EQ_STR(kind, "reissueWelcome");
    site_expect(
        &play.site, &play.carol, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    site_publish(&play.site, &play.bob, (struct package_options){ .signer = &play.signer }, next);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    site_expect(&play.site, &play.alice, "claimPendingDeviceAddition", body, 200, next);
    add(&play, 1, next, NULL);
    site_expect(&play.site, &play.alice, "completePendingDeviceAddition", body, 200, "true");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 200, next);
    site_expect(&play.site, &play.bob, "confirmWelcome", good, 200, "\"confirmed\":true");
    site_expect(
        &play.site, &play.bob, "getExpectedConversations", "", 200, "\"deviceInGroup\":true");
    reading_end(&reading);
    free(kind);
    free(id);
    play_end(&play);
}

TEST(welcome, it_is_stored_once_and_delivered_to_each_device)
{
    char phone[65], desk[65];
    struct play play;

    play_begin(&play);
    site_publish(&play.site, &play.carol,
        (struct package_options){ .signer = &play.signer, .device = "phone" }, phone);
    site_publish(&play.site, &play.carol,
        (struct package_options){ .signer = &play.signer, .device = "desk" }, desk);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.carol.did, NULL), 2);
    add(&play, 0, phone, desk);
    CHECK_EQ_INT(pending(&play, &play.carol, ""), 2);
    CHECK_EQ_INT(pending(&play, &play.carol, "?deviceId=phone"), 1);
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group&deviceId=phone", "", 200, phone);
    site_expect(&play.site, &play.carol, "confirmWelcome",
        "{\"convoId\":\"group\",\"success\":true,\"deviceId\":\"phone\"}", 200, "true");
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group&deviceId=phone", "", 404,
        "WelcomeNotFound");
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group&deviceId=other", "", 404,
        "WelcomeNotFound");
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group&deviceId=desk", "", 200, desk);
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group&deviceId=a%2Fb", "", 400,
        "InvalidRequest");
    CHECK_EQ_INT(pending(&play, &play.carol, ""), 1);
    play_end(&play);
}

TEST(welcome, one_that_was_invalidated_is_stale)
{
    struct play play;

    play_begin(&play);
    add(&play, 0, play.hash, NULL);
    site_expect(&play.site, &play.bob, "invalidateWelcome",
        "{\"convoId\":\"group\",\"reason\":\"no such key\"}", 200, "\"count\":1");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 410, "WelcomeStale");
    site_expect(&play.site, &play.bob, "invalidateWelcome", group, 200, "\"count\":0");
    site_expect(&play.site, &play.bob, "invalidateWelcome", "{}", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "reissueWelcome", "[]", 400, "InvalidRequest");
    play_end(&play);
}

static void remove_bob(struct play *play, uint64_t epoch)
{
    char *commit = commit_make("group", epoch), body[1024];

    (void)snprintf(body, sizeof body,
        "{\"convoId\":\"group\",\"targetDid\":\"%s\",\"idempotencyKey\":\"1\",\"commit\":\"%s\"}",
        play->bob.did, commit);
    site_expect(&play->site, &play->alice, "removeMember", body, 200, "\"ok\":true");
    free(commit);
}

TEST(welcome, a_removed_member_gets_none_from_before)
{
    struct play play;

    play_begin(&play);
    add(&play, 0, play.hash, NULL);
    remove_bob(&play, 1);
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 410, "WelcomeStale");
    CHECK_EQ_INT(pending(&play, &play.bob, ""), 0);
    site_expect(&play.site, &play.bob, "reissueWelcome", group, 403, "NotMember");
    site_expect(
        &play.site, &play.bob, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    play_end(&play);
}

TEST(welcome, who_was_added_again_gets_the_new_one_alone)
{
    struct play play;
    char second[65];

    play_begin(&play);
    add(&play, 0, play.hash, NULL);
    remove_bob(&play, 1);
    site_publish(&play.site, &play.bob, (struct package_options){ .signer = &play.signer }, second);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 1);
    add(&play, 2, second, NULL);
    CHECK_EQ_INT(pending(&play, &play.bob, ""), 1);
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 200, second);
    site_expect(&play.site, &play.bob, "confirmWelcome", good, 200, "true");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group", "", 404, "WelcomeNotFound");
    play_end(&play);
}

TEST(welcome, a_used_package_makes_no_second_welcome)
{
    const char *hashes[1];
    struct web_answer answer;
    struct play play;

    play_begin(&play);
    add(&play, 0, play.hash, NULL);
    hashes[0] = play.hash;
    site_create(&play.site, &play.carol, "another");
    answer = site_add(&play.site, &play.carol, "another", 0, hashes, 1);
    CHECK_MSG(
        answer.status >= 400 && answer.status < 500 && strstr(answer.text, "KeyPackage") != NULL,
        "%s", answer.text);
    web_answer_free(&answer);
    site_expect(&play.site, &play.bob, "getWelcome?convoId=another", "", 404, "WelcomeNotFound");
    play_end(&play);
}

/* ---- before the commit ---------------------------------------------------------------------- */

static void validate(struct play *play, const struct caller *caller, const char *hash,
    const char *more, unsigned status, const char *part)
{
    const char *hashes[] = { hash };
    char *welcome = welcome_make(hashes, 1), body[1024];

    (void)snprintf(
        body, sizeof body, "{\"convoId\":\"group\",\"welcomeMessage\":\"%s\"%s}", welcome, more);
    site_expect(&play->site, caller, "validateWelcome", body, status, part);
    free(welcome);
}

TEST(welcome, a_committer_makes_sure_of_its_packages)
{
    struct play play;
    char more[256], *key_package, body[4096];

    play_begin(&play);
    validate(&play, &play.alice, play.hash, "", 200, play.bob.did);
    (void)snprintf(more, sizeof more, ",\"recipientDid\":\"%s\"", play.bob.did);
    validate(&play, &play.alice, play.hash, more, 200, "\"valid\":true");
    (void)snprintf(more, sizeof more, ",\"recipientDid\":\"%s\"", play.carol.did);
    validate(&play, &play.alice, play.hash, more, 400, "WelcomeMismatch");
    /* A caller who has not claimed it does not even learn its owner. */
    validate(&play, &play.carol, play.hash, "", 409, "KeyPackageUnavailable");
    validate(&play, &play.alice, "00000000000000000000000000000000000000000000000000000000000000ff",
        "", 404, "KeyPackageNotFound");
    site_expect(&play.site, &play.alice, "validateWelcome", "{\"welcomeMessage\":\"AAEAAw\"}", 400,
        "InvalidWelcome");
    site_expect(&play.site, &play.alice, "validateWelcome", "{}", 400, "InvalidRequest");
    key_package = package_make(
        &(struct package_options){ .did = play.bob.did, .signer = &play.signer }, NULL);
    (void)snprintf(body, sizeof body, "{\"welcomeMessage\":\"%s\"}", key_package);
    site_expect(&play.site, &play.alice, "validateWelcome", body, 400, "InvalidWelcome");
    free(key_package);
    play_end(&play);
}

TEST(welcome, a_reservation_keeps_the_lease_for_five_minutes_more)
{
    struct play play;

    play_begin(&play);
    site_advance_s(590);
    validate(&play, &play.alice, play.hash, "", 200, "\"valid\":true");
    site_advance_s(290);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 0);
    site_advance_s(20);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 1);
    play_end(&play);
}

/* ---- tidying up ----------------------------------------------------------------------------- */

TEST(welcome, confirmed_ones_go_after_a_day_and_others_wait)
{
    struct cleanup_done done;
    struct play play;
    char other[65];

    play_begin(&play);
    site_publish(
        &play.site, &play.carol, (struct package_options){ .signer = &play.signer }, other);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.carol.did, NULL), 1);
    add(&play, 0, play.hash, NULL);
    add(&play, 1, other, NULL);
    site_expect(&play.site, &play.bob, "confirmWelcome", good, 200, "true");
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.targets + done.welcomes, 0);
    site_advance_s(86400 + 10);
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.targets, 1);
    CHECK_EQ_INT(done.welcomes, 1);
    site_advance_s(20 * 86400);
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.targets + done.welcomes, 0);
    site_expect(&play.site, &play.carol, "getWelcome?convoId=group", "", 200, other);
    play_end(&play);
}
