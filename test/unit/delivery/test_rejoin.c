/* SPDX-License-Identifier: Apache-2.0 */
/* A device that lost its place brings a key package, and is added with that one. */
#include "site.h"

/* Alice's group has bob, by his phone, and an older package of the phone waits in the pool. */
struct play {
    struct site site;
    struct caller alice, bob, carol;
    struct signer signer;
    char joined[65], older[65];
    char addition[512]; /* of the phone, as a body */
};

static struct package_options phone_of(const struct play *play)
{
    return (struct package_options){ .signer = &play->signer, .device = "phone" };
}

static void play_begin(struct play *play)
{
    const char *hashes[] = { play->joined };
    struct web_answer answer;

    site_begin(&play->site);
    caller_begin(&play->alice);
    caller_begin(&play->bob);
    caller_begin(&play->carol);
    signer_begin(&play->signer);
    site_create(&play->site, &play->alice, "group");
    site_publish(&play->site, &play->bob, phone_of(play), play->joined);
    CHECK_EQ_INT(site_claim(&play->site, &play->alice, play->bob.did, NULL), 1);
    answer = site_add(&play->site, &play->alice, "group", 0, hashes, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    site_publish(&play->site, &play->bob, phone_of(play), play->older);
    (void)snprintf(play->addition, sizeof play->addition,
        "{\"pendingAdditionId\":\"%s#phone/group\"}", play->bob.did);
}

static void play_end(struct play *play)
{
    caller_end(&play->alice);
    caller_end(&play->bob);
    caller_end(&play->carol);
    signer_end(&play->signer);
    site_end(&play->site);
}

/* A body of rejoin with a package of the caller's; the caller's to free. */
static char *rejoin_body(
    const struct caller *caller, struct package_options with, char *ret_hash, const char *more)
{
    struct buffer body = { 0 };
    char *package, *text;

    with.did = caller->did;
    package = package_make(&with, ret_hash);
    buffer_format(&body, "{\"convoId\":\"group\",\"keyPackage\":\"%s\"%s}", package, more);
    CHECK_EQ_INT(body.failed, 0);
    text = strndup(body.bytes, body.size);
    buffer_free(&body);
    free(package);
    return text;
}

/* Alice claims the addition, and adds the phone with what she is given. */
static void expect_claim(struct play *play, const char *hash)
{
    struct reading reading =
        site_read(&play->site, &play->alice, "claimPendingDeviceAddition", play->addition);
    char *given = text_of(json_get(reading.root, "keyPackage"), "keyPackageHash");

    CHECK(bool_of(reading.root, "claimed"));
    CHECK_EQ_STR(given, hash);
    free(given);
    reading_end(&reading);
}

static void add(struct play *play, uint64_t epoch, const char *hash)
{
    const char *hashes[] = { hash };
    struct web_answer answer = site_add(&play->site, &play->alice, "group", epoch, hashes, 1);

    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
}

/* Carol adds the phone to a group of hers, which bob is not in. */
static void expect_elsewhere(struct play *play, const char *hash, unsigned status, const char *part)
{
    const char *hashes[] = { hash };
    struct web_answer answer = site_add(&play->site, &play->carol, "other", 0, hashes, 1);

    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL, "%s", answer.text);
    web_answer_free(&answer);
}

/* A package that is in the pool already, as a body of rejoin. */
static char *publish_for_rejoin(struct play *play, char hash[65])
{
    char *body = rejoin_body(&play->bob, phone_of(play), hash, "");

    /* The call ignores unknown members: here the conversation. */
    site_expect(&play->site, &play->bob, "publishKeyPackage", body, 200, hash);
    return body;
}

TEST(rejoin, the_device_is_added_with_the_very_package_it_brought)
{
    struct play play;
    char *body, hash[65];

    play_begin(&play);
    body = rejoin_body(&play.bob, phone_of(&play), hash, ",\"reason\":\"my secret reason\"");
    site_expect(
        &play.site, &play.bob, "getWelcome?convoId=group&deviceId=phone", "", 200, play.joined);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "#phone/group\",\"pending\":true}");
    /* A Welcome for the lost keys is useless now. */
    site_expect(
        &play.site, &play.bob, "getWelcome?convoId=group&deviceId=phone", "", 410, "WelcomeStale");
    site_expect(&play.site, &play.alice, "getPendingDeviceAdditions", "", 200, "\"reason\":\"\"");
    /* The answer was lost: the same again, also while alice is at it. */
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    expect_claim(&play, hash);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    site_expect(&play.site, &play.alice, "getPendingDeviceAdditions", "", 200, "\"in_progress\"");
    add(&play, 1, hash);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":false,\"approvedAt\":\"2");
    site_expect(
        &play.site, &play.alice, "completePendingDeviceAddition", play.addition, 200, "true");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group&deviceId=phone", "", 200, hash);
    site_expect(&play.site, &play.bob, "confirmWelcome",
        "{\"convoId\":\"group\",\"deviceId\":\"phone\",\"success\":true}", 200, "true");
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":false,\"approvedAt\":\"2");
    site_expect(
        &play.site, &play.alice, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    free(body);
    play_end(&play);
}

TEST(rejoin, a_newer_package_takes_the_place_of_the_one_before)
{
    struct play play;
    char *first, *second, hash[65];

    play_begin(&play);
    first = rejoin_body(&play.bob, phone_of(&play), NULL, "");
    second = rejoin_body(&play.bob, phone_of(&play), hash, "");
    site_expect(&play.site, &play.bob, "rejoin", first, 200, "\"pending\":true}");
    site_expect(&play.site, &play.bob, "rejoin", second, 200, "\"pending\":true}");
    expect_claim(&play, hash);
    free(first);
    free(second);
    play_end(&play);
}

TEST(rejoin, what_is_refused_leaves_neither_package_nor_wish)
{
    struct package_options with;
    struct play play;
    char *body;

    play_begin(&play);
    with = phone_of(&play);
    body = rejoin_body(&play.carol, with, NULL, "");
    site_expect(&play.site, &play.carol, "rejoin", body, 403, "NotMember");
    site_expect(&play.site, &play.carol, "getKeyPackageStats", "", 200, "\"available\":0");
    site_expect(&play.site, &play.bob, "rejoin", body, 400, "InvalidKeyPackage"); /* of carol */
    free(body);
    body = rejoin_body(&play.bob, with, NULL, ",\"deviceId\":\"tablet\"");
    site_expect(&play.site, &play.bob, "rejoin", body, 400, "InvalidKeyPackage");
    free(body);
    with.suite = 3;
    body = rejoin_body(&play.bob, with, NULL, "");
    site_expect(&play.site, &play.bob, "rejoin", body, 400, "InvalidCipherSuite");
    free(body);
    site_expect(&play.site, &play.bob, "rejoin", "{\"convoId\":\"group\"}", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "getKeyPackageStats", "", 200, "\"available\":1");
    site_expect(
        &play.site, &play.alice, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    play_end(&play);
}

TEST(rejoin, a_package_that_was_used_elsewhere_cannot_be_added_with)
{
    struct play play;
    char *body, hash[65];

    play_begin(&play);
    site_create(&play.site, &play.carol, "other");
    body = publish_for_rejoin(&play, hash);
    expect_elsewhere(&play, hash, 200, "newEpoch");
    site_expect(&play.site, &play.bob, "rejoin", body, 409, "KeyPackageUnavailable");
    free(body);
    play_end(&play);
}

/* ---- the package is reserved for the member who adds the device ----------------------------- */

static void expect_stock(struct play *play, const char *available, const char *leased)
{
    site_expect(&play->site, &play->bob, "getKeyPackageStats", "", 200, available);
    site_expect(&play->site, &play->bob, "getKeyPackageStats", "", 200, leased);
}

static void expect_status(struct play *play, const char *hash, const char *status)
{
    char call[128];

    (void)snprintf(call, sizeof call, "getKeyPackageStatus?keyPackageHash=%s", hash);
    site_expect(&play->site, &play->bob, call, "", 200, status);
}

/* Carol is given what is in the pool: nothing, or this one. */
static void expect_given(struct play *play, const char *hash)
{
    char given[65] = "";

    CHECK_EQ_INT(site_claim(&play->site, &play->carol, play->bob.did, given), hash == NULL ? 0 : 1);
    if (hash != NULL)
        CHECK_EQ_STR(given, hash);
}

/* A Welcome that names it, before the commit. */
static void validate(struct play *play, const struct caller *caller, const char *hash,
    unsigned status, const char *part)
{
    char *welcome = welcome_make(&hash, 1), body[8192];

    (void)snprintf(body, sizeof body, "{\"welcomeMessage\":\"%s\"}", welcome);
    site_expect(&play->site, caller, "validateWelcome", body, status, part);
    free(welcome);
}

TEST(rejoin, a_stranger_is_neither_given_nor_may_use_what_was_brought)
{
    struct play play;
    char *body, hash[65], call[512];

    play_begin(&play);
    site_create(&play.site, &play.carol, "other");
    body = rejoin_body(&play.bob, phone_of(&play), hash, "");
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    expect_stock(&play, "\"available\":1", "\"leased\":1");
    expect_status(&play, hash, "\"leased\"");
    expect_status(&play, play.older, "\"available\"");
    expect_given(&play, play.older);
    expect_given(&play, NULL);
    (void)snprintf(call, sizeof call, "getKeyPackages?dids=%s&peek=true", play.bob.did);
    site_expect(&play.site, &play.carol, call, "", 200, "\"keyPackages\":[]");
    expect_elsewhere(&play, hash, 409, "KeyPackageNotFound");
    validate(&play, &play.carol, hash, 409, "KeyPackageUnavailable");
    validate(&play, &play.alice, hash, 409, "KeyPackageUnavailable"); /* not claimed yet */
    expect_claim(&play, hash);
    validate(&play, &play.alice, hash, 200, "\"valid\":true");
    add(&play, 1, hash);
    free(body);
    play_end(&play);
}

/* She claimed it before it was brought: that is of no use to her any more, and no hindrance. */
TEST(rejoin, what_a_stranger_had_claimed_before_is_taken_from_her)
{
    struct play play;
    char *body, hash[65];

    play_begin(&play);
    site_create(&play.site, &play.carol, "other");
    body = publish_for_rejoin(&play, hash);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 1);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 1);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    expect_elsewhere(&play, hash, 409, "KeyPackageNotFound");
    expect_claim(&play, hash);
    add(&play, 1, hash);
    free(body);
    play_end(&play);
}

/* Alice's claim of the addition lasts a minute, her lease ten. */
TEST(rejoin, who_takes_the_addition_over_is_given_the_same_package)
{
    struct web_answer answer;
    const char *hashes[1];
    struct play play;
    char *body, hash[65];

    play_begin(&play);
    body = rejoin_body(&play.bob, phone_of(&play), hash, "");
    hashes[0] = hash;
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    expect_claim(&play, hash);
    site_advance_s(61);
    site_expect(&play.site, &play.bob, "claimPendingDeviceAddition", play.addition, 200, hash);
    answer = site_add(&play.site, &play.alice, "group", 1, hashes, 1);
    CHECK_EQ_INT(answer.status, 409);
    web_answer_free(&answer);
    answer = site_add(&play.site, &play.bob, "group", 1, hashes, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    free(body);
    play_end(&play);
}

/* The phone is in another group of alice's too, by the older package. */
static void make_second(struct play *play, char addition[512])
{
    const char *hashes[] = { play->older };
    struct web_answer answer;

    site_create(&play->site, &play->alice, "second");
    answer = site_add(&play->site, &play->alice, "second", 0, hashes, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    (void)snprintf(addition, 512, "{\"pendingAdditionId\":\"%s#phone/second\"}", play->bob.did);
}

TEST(rejoin, another_wish_of_the_device_is_not_served_with_it)
{
    static const char readdition[] = "{\"convoId\":\"second\",\"deviceId\":\"phone\"}";
    struct play play;
    char *body, hash[65], addition[512];

    play_begin(&play);
    make_second(&play, addition);
    body = rejoin_body(&play.bob, phone_of(&play), hash, "");
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    site_expect(&play.site, &play.bob, "readdition", readdition, 200, "");
    site_expect(
        &play.site, &play.alice, "claimPendingDeviceAddition", addition, 404, "KeyPackageNotFound");
    expect_claim(&play, hash);
    free(body);
    play_end(&play);
}

TEST(rejoin, what_was_brought_to_two_conversations_is_for_the_first_that_uses_it)
{
    struct play play;
    char *body, *second = NULL, hash[65], addition[512];

    play_begin(&play);
    make_second(&play, addition);
    body = rejoin_body(&play.bob, phone_of(&play), hash, "");
    CHECK(asprintf(&second, "{\"convoId\":\"second\"%s", strchr(body, ',')) > 0);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    site_expect(&play.site, &play.bob, "rejoin", second, 200, "\"pending\":true}");
    expect_claim(&play, hash);
    add(&play, 1, hash);
    site_expect(
        &play.site, &play.alice, "claimPendingDeviceAddition", addition, 404, "KeyPackageNotFound");
    free(second);
    free(body);
    play_end(&play);
}

/* ---- and then for everybody ----------------------------------------------------------------- */

/* The older one is out of the way. */
static char *wish(struct play *play, char hash[65])
{
    char *body;

    expect_given(play, play->older);
    body = rejoin_body(&play->bob, phone_of(play), hash, "");
    site_expect(&play->site, &play->bob, "rejoin", body, 200, "\"pending\":true}");
    expect_given(play, NULL);
    return body;
}

TEST(rejoin, what_was_brought_returns_when_the_wish_is_done)
{
    struct play play;
    char *body, hash[65];

    play_begin(&play);
    body = wish(&play, hash);
    site_expect(&play.site, &play.bob, "completePendingDeviceAddition", play.addition, 200, "true");
    expect_status(&play, hash, "\"available\"");
    expect_given(&play, hash);
    free(body);
    play_end(&play);
}

TEST(rejoin, what_was_brought_returns_when_its_owner_is_removed)
{
    struct play play;
    char *body, *commit, hash[65], removal[4096];

    play_begin(&play);
    body = wish(&play, hash);
    commit = commit_make("group", 1);
    (void)snprintf(removal, sizeof removal,
        "{\"convoId\":\"group\",\"commit\":\"%s\",\"removes\":[\"%s\"]}", commit, play.bob.did);
    site_expect(&play.site, &play.alice, "submitCommit", removal, 200, "newEpoch");
    expect_given(&play, hash);
    free(commit);
    free(body);
    play_end(&play);
}

TEST(rejoin, what_was_brought_returns_when_a_newer_one_is)
{
    struct play play;
    char *body, *newer, hash[65], newest[65];

    play_begin(&play);
    body = wish(&play, hash);
    newer = rejoin_body(&play.bob, phone_of(&play), newest, "");
    site_expect(&play.site, &play.bob, "rejoin", newer, 200, "\"pending\":true}");
    expect_given(&play, hash);
    expect_given(&play, NULL);
    expect_claim(&play, newest);
    free(newer);
    free(body);
    play_end(&play);
}

TEST(rejoin, a_last_resort_serves_again)
{
    struct package_options with;
    struct play play;
    char *body, hash[65];

    play_begin(&play);
    with = phone_of(&play);
    body = rejoin_body(&play.bob, with, hash, ",\"lastResort\":true");
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    expect_given(&play, play.older);
    expect_given(&play, hash); /* it serves others meanwhile */
    expect_claim(&play, hash);
    add(&play, 1, hash);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":false");
    site_expect(&play.site, &play.bob, "confirmWelcome",
        "{\"convoId\":\"group\",\"deviceId\":\"phone\",\"success\":true}", 200, "true");
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    expect_claim(&play, hash);
    free(body);
    play_end(&play);
}

TEST(rejoin, ten_an_hour_are_enough)
{
    struct play play;
    char *body;

    play_begin(&play);
    body = rejoin_body(&play.bob, phone_of(&play), NULL, "");
    for (int i = 0; i < 10; i++)
        site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    site_expect(&play.site, &play.bob, "rejoin", body, 429, "RateLimitExceeded");
    site_advance_s(3500);
    site_expect(&play.site, &play.bob, "rejoin", body, 429, "RateLimitExceeded");
    site_advance_s(101);
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    site_advance_s(3601);
    CHECK_EQ_INT(site_tidy(&play.site).rejoins, 1);
    free(body);
    play_end(&play);
}

TEST(rejoin, who_listens_hears_of_it)
{
    struct web_answer heard = { 0 };
    char *body, *header, request[2048];
    struct play play;
    int fd;

    play_begin(&play);
    body = rejoin_body(&play.bob, phone_of(&play), NULL, "");
    header = caller_header(&play.alice, "subscribeConvoEvents");
    fd = web_connect(http_server_address(play.site.server));
    (void)snprintf(request, sizeof request,
        "GET /xrpc/" XRPC_PREFIX "subscribeConvoEvents?convoId=group&cursor=1 HTTP/1.1\r\n"
        "Host: x\r\n%s\r\n",
        header);
    web_send(fd, request, strlen(request));
    CHECK(web_receive_until(fd, &heard, "id: 2"));
    site_expect(&play.site, &play.bob, "rejoin", body, 200, "\"pending\":true}");
    CHECK(web_receive_until(fd, &heard, "#readditionRequestedEvent"));
    CHECK(web_receive_until(fd, &heard, "\"deviceId\":\"phone\""));
    close(fd);
    web_answer_free(&heard);
    free(header);
    free(body);
    play_end(&play);
}
