/* SPDX-License-Identifier: Apache-2.0 */
/* Key packages: admission to the pool, leases, last resorts, and the owner's queries. */
#include "services/common/text.h"
#include "services/delivery/api/package.h"
#include "site.h"

struct play {
    struct site site;
    struct caller alice, bob, carol;
    struct signer signer;
};

static void play_begin(struct play *play)
{
    site_begin(&play->site);
    caller_begin(&play->alice);
    caller_begin(&play->bob);
    caller_begin(&play->carol);
    signer_begin(&play->signer);
}

static void play_end(struct play *play)
{
    caller_end(&play->alice);
    caller_end(&play->bob);
    caller_end(&play->carol);
    signer_end(&play->signer);
    site_end(&play->site);
}

static void publish(struct play *play, char *ret_hash)
{
    site_publish(
        &play->site, &play->bob, (struct package_options){ .signer = &play->signer }, ret_hash);
}

static int64_t stat_of(struct play *play, const struct caller *caller, const char *name)
{
    struct reading reading = site_read(&play->site, caller, "getKeyPackageStats", "");
    int64_t value = int_of(reading.root, name);

    reading_end(&reading);
    return value;
}

/* ---- leases --------------------------------------------------------------------------------- */

TEST(package, a_claim_leases_it_and_nobody_else_gets_it)
{
    char published[65], claimed[65] = "";
    struct play play;

    play_begin(&play);
    publish(&play, published);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, claimed), 1);
    CHECK_EQ_STR(claimed, published);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 0);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 0);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 0);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "leased"), 1);
    play_end(&play);
}

TEST(package, a_lease_that_passed_returns_it_to_the_pool)
{
    char first[65], second[65];
    struct play play;

    play_begin(&play);
    publish(&play, NULL);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, first), 1);
    site_advance_s(590);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 0);
    site_advance_s(20);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, second), 1);
    CHECK_EQ_STR(first, second);
    play_end(&play);
}

TEST_LONG(package, a_hundred_claims_at_once_give_one_package_to_one, 60)
{
    enum { MANY = 100 };
    struct play play;
    int fds[MANY], winners = 0;

    play_begin(&play);
    publish(&play, NULL);
    for (int i = 0; i < MANY; i++)
        fds[i] = web_connect(http_server_address(play.site.server));
    for (int i = 0; i < MANY; i++) {
        char text[2048];
        char *header = caller_header(i % 2 == 0 ? &play.alice : &play.carol, "getKeyPackages");
        int size = snprintf(text, sizeof text,
            "GET /xrpc/" XRPC_PREFIX "getKeyPackages?dids=%s HTTP/1.1\r\nHost: localhost\r\n"
            "Connection: close\r\n%s\r\n",
            play.bob.did, header);

        web_send(fds[i], text, (size_t)size);
        free(header);
    }
    for (int i = 0; i < MANY; i++) {
        struct web_answer answer;

        web_receive(fds[i], &answer);
        CHECK_MSG(answer.status == 200, "%s", answer.text);
        winners += strstr(answer.body, "keyPackageHash") != NULL;
        web_answer_free(&answer);
        close(fds[i]);
    }
    CHECK_EQ_INT(winners, 1);
    play_end(&play);
}

TEST(package, a_peek_claims_nothing_and_a_claim_uses_its_token_up)
{
    struct play play;
    struct web_answer answer;
    char call[256], *header;

    play_begin(&play);
    publish(&play, NULL);
    (void)snprintf(call, sizeof call, "getKeyPackages?dids=%s&peek=true", play.bob.did);
    header = caller_header(&play.alice, "getKeyPackages");
    for (int i = 0; i < 3; i++) {
        struct reading reading = read_answer(site_ask_with(&play.site, header, call, ""), 200);

        CHECK_EQ_INT(json_count(json_get(reading.root, "keyPackages")), 1);
        reading_end(&reading);
    }
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    (void)snprintf(call, sizeof call, "getKeyPackages?dids=%s", play.bob.did);
    answer = site_ask_with(&play.site, header, call, "");
    CHECK_EQ_INT(answer.status, 200);
    web_answer_free(&answer);
    answer = site_ask_with(&play.site, header, call, "");
    CHECK_MSG(
        answer.status == 401 && strstr(answer.text, "TokenReplayed") != NULL, "%s", answer.text);
    web_answer_free(&answer);
    free(header);
    play_end(&play);
}

TEST(package, each_device_gives_one)
{
    struct play play;

    play_begin(&play);
    for (int i = 0; i < 2; i++) {
        site_publish(&play.site, &play.bob,
            (struct package_options){ .signer = &play.signer, .device = "phone" }, NULL);
        site_publish(&play.site, &play.bob,
            (struct package_options){ .signer = &play.signer, .device = "desk" }, NULL);
    }
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 2);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 2);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 2);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 0);
    play_end(&play);
}

TEST(package, the_last_resort_serves_everybody_when_nothing_else_is_left)
{
    char free_one[65], last[65], got[65];
    struct play play;

    play_begin(&play);
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .is_last_resort = true }, last);
    publish(&play, free_one);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "lastResorts"), 1);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, got), 1);
    CHECK_EQ_STR(got, free_one);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(
            site_claim(&play.site, i == 1 ? &play.carol : &play.alice, play.bob.did, got), 1);
        CHECK_EQ_STR(got, last);
    }
    play_end(&play);
}

TEST(package, a_new_last_resort_takes_over)
{
    char first[65], second[65], got[65];
    struct play play;

    play_begin(&play);
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .is_last_resort = true }, first);
    site_advance_s(5);
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .is_last_resort = true }, second);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, got), 1);
    CHECK_EQ_STR(got, second);
    site_advance_s(700); /* the claimant of the first one has had time to use it */
    CHECK_EQ_INT(stat_of(&play, &play.bob, "lastResorts"), 1);
    play_end(&play);
}

/* Fill the pool by batches of `count`. Answers how many were taken. */
static int64_t publish_many(struct play *play, unsigned count)
{
    struct buffer body = { 0 };
    struct reading reading;
    int64_t succeeded;

    buffer_text(&body, "{\"keyPackages\":[");
    for (unsigned i = 0; i < count; i++) {
        char *package = package_make(
            &(struct package_options){ .did = play->bob.did, .signer = &play->signer }, NULL);

        buffer_format(&body, "%s{\"keyPackage\":\"%s\"}", i == 0 ? "" : ",", package);
        free(package);
    }
    buffer_append(&body, "]}", 3);
    CHECK_EQ_INT(body.failed, 0);
    reading = site_read(&play->site, &play->bob, "publishKeyPackages", body.bytes);
    succeeded = int_of(reading.root, "succeeded");
    CHECK_EQ_INT(succeeded + int_of(reading.root, "failed"), count);
    CHECK_EQ_INT(json_count(json_get(reading.root, "errors")), count - succeeded);
    if (succeeded < count) {
        char *label = text_of(json_at(json_get(reading.root, "errors"), 0), "error");

        CHECK_EQ_STR(label, "TooManyKeyPackages");
        free(label);
    }
    reading_end(&reading);
    buffer_free(&body);
    return succeeded;
}

TEST_LONG(package, one_claimer_cannot_drain_a_pool, 60)
{
    struct play play;
    int got = 0;

    play_begin(&play);
    CHECK_EQ_INT(publish_many(&play, 30), 30);
    for (int i = 0; i < 25; i++)
        got += (int)site_claim(&play.site, &play.alice, play.bob.did, NULL);
    CHECK_EQ_INT(got, 20);
    CHECK_EQ_INT(site_claim(&play.site, &play.carol, play.bob.did, NULL), 1);
    play_end(&play);
}

/* ---- limits --------------------------------------------------------------------------------- */

TEST_LONG(package, a_pool_has_a_hundred_and_then_is_full, 60)
{
    struct play play;
    char *package, body[4096], hash[65];

    play_begin(&play);
    publish(&play, hash);
    CHECK_EQ_INT(publish_many(&play, 60), 60);
    CHECK_EQ_INT(publish_many(&play, 60), 39);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 100);
    package = package_make(
        &(struct package_options){ .did = play.bob.did, .signer = &play.signer }, NULL);
    (void)snprintf(body, sizeof body, "{\"keyPackage\":\"%s\"}", package);
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 429, "Retry-After: 3600");
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 429, "TooManyKeyPackages");
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 1);
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 200, "keyPackageHash");
    /* The same again is no more. */
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 200, "keyPackageHash");
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 100);
    free(package);
    play_end(&play);
}

TEST_LONG(package, a_device_has_two_hundred_at_most, 60)
{
    struct caller claimers[10];
    struct play play;
    int leased = 0;

    play_begin(&play);
    CHECK_EQ_INT(publish_many(&play, 100), 100);
    for (int i = 0; i < 10; i++)
        caller_begin(&claimers[i]);
    for (int i = 0; i < 100; i++)
        leased += (int)site_claim(&play.site, &claimers[i % 10], play.bob.did, NULL);
    CHECK_EQ_INT(leased, 100);
    CHECK_EQ_INT(publish_many(&play, 100), 100);
    CHECK_EQ_INT(site_claim(&play.site, &claimers[0], play.bob.did, NULL), 1);
    CHECK_EQ_INT(publish_many(&play, 1), 0); /* 99 are free, 101 leased */
    for (int i = 0; i < 10; i++)
        caller_end(&claimers[i]);
    play_end(&play);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void refused(
    struct play *play, struct package_options with, const char *more, const char *label)
{
    char *package, body[4096];

    if (with.did == NULL)
        with.did = play->bob.did;
    with.signer = &play->signer;
    package = package_make(&with, NULL);
    (void)snprintf(body, sizeof body, "{\"keyPackage\":\"%s\"%s}", package, more);
    site_expect(&play->site, &play->bob, "publishKeyPackage", body, 400, label);
    free(package);
}

TEST(package, what_is_wrong_with_it_is_said)
{
    const int64_t day_s = 86400;
    struct play play;
    int64_t now_s;
    char expires[64], prefix[128];

    play_begin(&play);
    now_s = site_now_s();
    refused(&play, (struct package_options){ .has_bad_signature = true }, "", "InvalidKeyPackage");
    refused(
        &play, (struct package_options){ .has_bad_leaf_signature = true }, "", "InvalidKeyPackage");
    refused(&play, (struct package_options){ .did = play.alice.did }, "", "InvalidKeyPackage");
    (void)snprintf(prefix, sizeof prefix, "%sxyz", play.bob.did);
    refused(&play, (struct package_options){ .did = prefix }, "", "InvalidKeyPackage");
    refused(&play, (struct package_options){ .device = "a/b" }, "", "InvalidKeyPackage");
    refused(&play, (struct package_options){ .device = "phone" }, ",\"deviceId\":\"desk\"",
        "InvalidKeyPackage");
    refused(&play,
        (struct package_options){ .not_before_s = now_s - day_s, .not_after_s = now_s - 1 }, "",
        "has expired");
    refused(&play,
        (struct package_options){ .not_before_s = now_s + 7200, .not_after_s = now_s + day_s }, "",
        "not valid yet");
    refused(&play, (struct package_options){ .not_before_s = 1, .not_after_s = INT64_MAX }, "",
        "ExpirationTooFar");
    refused(&play,
        (struct package_options){
            .not_before_s = now_s - 3601, .not_after_s = now_s + 90 * day_s + 1 },
        "", "ExpirationTooFar");
    (void)snprintf(expires, sizeof expires, ",\"expires\":\"2999-01-01T00:00:00.000Z\"");
    refused(&play, (struct package_options){ 0 }, expires, "ExpirationTooFar");
    refused(&play, (struct package_options){ 0 }, ",\"expires\":\"tomorrow, at noon, UTC\"",
        "InvalidRequest");
    refused(&play, (struct package_options){ 0 },
        ",\"cipherSuite\":\"MLS_128_DHKEMP256_AES128GCM_SHA256_P256\"", "InvalidCipherSuite");
    refused(&play, (struct package_options){ 0 }, ",\"cipherSuite\":\"nonsense\"",
        "InvalidCipherSuite");
    refused(&play, (struct package_options){ .suite = 0x0b0b }, "", "InvalidCipherSuite");
    refused(&play, (struct package_options){ 0 }, ",\"deviceId\":\"\"", "InvalidRequest");
    site_expect(&play.site, &play.bob, "publishKeyPackage", "{\"keyPackage\":\"AAEAAQ\"}", 400,
        "InvalidKeyPackage");
    site_expect(
        &play.site, &play.bob, "publishKeyPackage", "{\"keyPackage\":\"\"}", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "publishKeyPackage", "{}", 400, "InvalidRequest");
    site_expect(
        &play.site, &play.bob, "publishKeyPackages", "{\"keyPackages\":[]}", 400, "InvalidRequest");
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 0);
    play_end(&play);
}

TEST(package, a_longest_lifetime_is_taken)
{
    struct play play;
    int64_t now_s;

    play_begin(&play);
    now_s = site_now_s();
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer,
            .not_before_s = now_s - 3600,
            .not_after_s = now_s + 90 * 86400 },
        NULL);
    play_end(&play);
}

TEST(package, one_of_many_fails_alone)
{
    char *good, *bad, *body = malloc(8192);
    struct reading reading;
    struct play play;

    play_begin(&play);
    CHECK(body != NULL);
    good = package_make(
        &(struct package_options){ .did = play.bob.did, .signer = &play.signer }, NULL);
    bad = package_make(
        &(struct package_options){
            .did = play.bob.did, .signer = &play.signer, .has_bad_signature = true },
        NULL);
    (void)snprintf(body, 8192,
        "{\"keyPackages\":[{\"keyPackage\":\"%s\"},{\"keyPackage\":\"%s\"},{\"keyPackage\":7},"
        "\"nonsense\"]}",
        bad, good);
    reading = site_read(&play.site, &play.bob, "publishKeyPackages", body);
    CHECK_EQ_INT(int_of(reading.root, "succeeded"), 1);
    CHECK_EQ_INT(int_of(reading.root, "failed"), 3);
    CHECK_EQ_INT(int_of(json_at(json_get(reading.root, "errors"), 0), "index"), 0);
    CHECK_EQ_INT(int_of(json_at(json_get(reading.root, "errors"), 2), "index"), 3);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    reading_end(&reading);
    free(good);
    free(bad);
    free(body);
    play_end(&play);
}

TEST(package, its_own_end_can_be_said_earlier)
{
    struct play play;
    struct reading reading;
    char *package, body[4096], expires[32];
    time_t soon;
    struct tm tm;

    play_begin(&play);
    soon = (time_t)site_now_s() + 1000;
    gmtime_r(&soon, &tm);
    CHECK(strftime(expires, sizeof expires, "%Y-%m-%dT%H:%M:%SZ", &tm) > 0);
    package = package_make(
        &(struct package_options){ .did = play.bob.did, .signer = &play.signer }, NULL);
    (void)snprintf(
        body, sizeof body, "{\"keyPackage\":\"%s\",\"expires\":\"%s\"}", package, expires);
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 200, "keyPackageHash");
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    site_advance_s(1100);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 0);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 0);
    reading = site_read(&play.site, &play.bob, "getKeyPackageStatus", "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "keyPackages")), 1);
    reading_end(&reading);
    site_expect(&play.site, &play.bob, "getKeyPackageStatus", "", 200, "\"expired\"");
    free(package);
    play_end(&play);
}

TEST(package, times_have_one_form)
{
    static const struct {
        const char *text;
        int64_t unix_s; /* -1: none */
    } rows[] = {
        { "1970-01-01T00:00:00Z", 0 },
        { "2000-02-29T23:59:59Z", 951868799 },
        { "2026-11-15T12:00:00.123456Z", 1794744000 },
        { "2024-03-01T00:00:00+00:00", 1709251200 },
        { "9999-12-31T23:59:59Z", 253402300799 },
        { "2026-11-15T12:00:00", -1 },
        { "2026-11-15T12:00:00+01:00", -1 },
        { "2026-11-15T12:00:00.Z", -1 },
        { "2026-11-15 12:00:00Z", -1 },
        { "2026-02-29T12:00:00Z", -1 },
        { "2100-02-29T12:00:00Z", -1 },
        { "2026-13-01T12:00:00Z", -1 },
        { "2026-11-31T12:00:00Z", -1 },
        { "2026-11-15T24:00:00Z", -1 },
        { "1969-12-31T23:59:59Z", -1 },
        { "2026-11-1", -1 },
        { "", -1 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t unix_s = -1;

        CHECK_MSG(text_get_time(span_of(rows[i].text), &unix_s) == (rows[i].unix_s >= 0), "%s",
            rows[i].text);
        CHECK_MSG(unix_s == rows[i].unix_s, "%s: %lld", rows[i].text, (long long)unix_s);
    }
}

/* ---- the DIDs of a claim -------------------------------------------------------------------- */

TEST(package, claims_name_dids_in_any_form_and_each_once)
{
    struct reading reading;
    struct play play;
    char *call = malloc(65536);
    size_t at;

    play_begin(&play);
    CHECK(call != NULL);
    publish(&play, NULL);
    (void)snprintf(
        call, 65536, "getKeyPackages?peek=true&dids=%s&dids=%s", play.bob.did, play.carol.did);
    reading = site_read(&play.site, &play.alice, call, "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "keyPackages")), 1);
    CHECK_EQ_INT(json_count(json_get(reading.root, "missing")), 1);
    reading_end(&reading);
    (void)snprintf(
        call, 65536, "getKeyPackages?peek=true&dids=%s,%s", play.carol.did, play.bob.did);
    reading = site_read(&play.site, &play.alice, call, "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "keyPackages")), 1);
    reading_end(&reading);
    (void)snprintf(call, 65536, "getKeyPackages?peek=true&dids=did%%3Akey%%3A%s",
        play.bob.did + strlen("did:key:"));
    reading = site_read(&play.site, &play.alice, call, "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "keyPackages")), 1);
    reading_end(&reading);
    (void)snprintf(call, 65536, "getKeyPackages?dids=%s&dids=%s", play.bob.did, play.bob.did);
    site_expect(&play.site, &play.alice, call, "", 400, "different");
    site_expect(&play.site, &play.alice, "getKeyPackages", "", 400, "InvalidRequest");
    site_expect(&play.site, &play.alice, "getKeyPackages?dids=", "", 400, "InvalidRequest");
    site_expect(
        &play.site, &play.alice, "getKeyPackages?dids=did:web:a%2", "", 400, "InvalidRequest");
    site_expect(
        &play.site, &play.alice, "getKeyPackages?dids=did:web:a%00b", "", 400, "InvalidRequest");
    (void)snprintf(call, 65536, "getKeyPackages?dids=%s&peek=true&peek=true", play.bob.did);
    site_expect(&play.site, &play.alice, call, "", 400, "InvalidRequest");
    (void)snprintf(call, 65536, "getKeyPackages?dids=%s&peek=yes", play.bob.did);
    site_expect(&play.site, &play.alice, call, "", 400, "InvalidRequest");
    (void)snprintf(call, 65536, "getKeyPackages?dids=%s&cipherSuite=nonsense", play.bob.did);
    site_expect(&play.site, &play.alice, call, "", 400, "InvalidCipherSuite");
    (void)snprintf(call, 65536,
        "getKeyPackages?peek=true&dids=%s&cipherSuite=MLS_128_DHKEMP256_AES128GCM_SHA256_P256",
        play.bob.did);
    reading = site_read(&play.site, &play.alice, call, "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "missing")), 1);
    reading_end(&reading);
    at = (size_t)snprintf(call, 65536, "getKeyPackages?peek=true");
    for (int i = 0; i <= 100; i++)
        at += (size_t)snprintf(call + at, 65536 - at, "&dids=did:web:user%d", i);
    site_expect(&play.site, &play.alice, call, "", 400, "the most is 100");
    free(call);
    play_end(&play);
}

/* ---- the owner's queries -------------------------------------------------------------------- */

TEST(package, a_commit_consumes_what_its_welcome_names_and_the_forecast_knows)
{
    const char *hashes[1];
    struct reading reading;
    struct web_answer answer;
    struct play play;
    char hash[65];
    double days = 0;

    play_begin(&play);
    CHECK_EQ_INT(publish_many(&play, 3), 3);
    site_create(&play.site, &play.alice, "group");
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, hash), 1);
    hashes[0] = hash;
    answer = site_add(&play.site, &play.alice, "group", 0, hashes, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    reading = site_read(&play.site, &play.bob, "getKeyPackageStats", "");
    CHECK_EQ_INT(int_of(reading.root, "available"), 2);
    CHECK_EQ_INT(int_of(reading.root, "threshold"), 20);
    CHECK(bool_of(reading.root, "needsReplenish"));
    CHECK_EQ_INT(int_of(reading.root, "consumedLast24h"), 1);
    CHECK_EQ_INT(int_of(reading.root, "consumedLast7d"), 1);
    CHECK(json_double(json_get(reading.root, "predictedDepletionDays"), &days));
    CHECK_EQ_INT((int)days, 14);
    CHECK_EQ_INT(json_count(json_get(reading.root, "byCipherSuite")), 1);
    reading_end(&reading);
    site_advance_s(2 * 86400);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "consumedLast24h"), 0);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "consumedLast7d"), 1);
    /* Consumed is consumed: no lease brings it back. */
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 2);
    play_end(&play);
}

TEST(package, each_one_can_be_looked_at_by_its_owner_alone)
{
    struct play play;
    char hash[65], call[256];

    play_begin(&play);
    publish(&play, hash);
    (void)snprintf(call, sizeof call, "getKeyPackageStatus?keyPackageHash=%s", hash);
    site_expect(&play.site, &play.bob, call, "", 200, "\"available\"");
    site_expect(&play.site, &play.alice, call, "", 404, "KeyPackageNotFound");
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 1);
    site_expect(&play.site, &play.bob, call, "", 200, "\"leased\"");
    site_expect(
        &play.site, &play.bob, "getKeyPackageStatus?keyPackageHash=zz", "", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "getKeyPackageStatus?limit=0", "", 400, "InvalidRequest");
    (void)snprintf(call, sizeof call, "getKeyPackageStatus?cursor=%s", hash);
    site_expect(&play.site, &play.bob, call, "", 200, "\"keyPackages\":[]");
    play_end(&play);
}

TEST(package, owners_delete_their_own_and_nobody_elses)
{
    struct play play;
    char hash[65], body[256];

    play_begin(&play);
    publish(&play, hash);
    (void)snprintf(body, sizeof body, "{\"keyPackageHashes\":[\"%s\"]}", hash);
    site_expect(&play.site, &play.alice, "deleteKeyPackages", body, 404, "KeyPackageNotFound");
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 1);
    site_expect(&play.site, &play.bob, "deleteKeyPackages", body, 200, "\"deleted\":1");
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 0);
    site_expect(&play.site, &play.bob, "deleteKeyPackages", body, 404, "KeyPackageNotFound");
    site_expect(&play.site, &play.bob, "deleteKeyPackages", "{\"keyPackageHashes\":[\"xy\"]}", 400,
        "InvalidRequest");
    site_expect(&play.site, &play.bob, "deleteKeyPackages", "{}", 400, "InvalidRequest");
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .device = "phone" }, NULL);
    site_expect(&play.site, &play.alice, "deleteKeyPackages", "{\"deviceId\":\"phone\"}", 200,
        "\"deleted\":0");
    site_expect(&play.site, &play.bob, "deleteKeyPackages", "{\"deviceId\":\"phone\"}", 200,
        "\"deleted\":1");
    play_end(&play);
}

TEST(package, a_sync_deletes_what_the_device_cannot_open)
{
    struct reading reading;
    struct play play;
    char known[65], orphan[65], other[65], body[256];

    play_begin(&play);
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .device = "phone" }, known);
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .device = "phone" }, orphan);
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .device = "desk" }, other);
    (void)snprintf(body, sizeof body, "{\"localHashes\":[\"%s\"],\"deviceId\":\"phone\"}", known);
    site_expect(&play.site, &play.alice, "syncKeyPackages", body, 200, "\"deletedCount\":0");
    reading = site_read(&play.site, &play.bob, "syncKeyPackages", body);
    CHECK_EQ_INT(int_of(reading.root, "orphanedCount"), 1);
    CHECK_EQ_INT(int_of(reading.root, "deletedCount"), 1);
    CHECK_EQ_INT(int_of(reading.root, "remainingAvailable"), 1);
    reading_end(&reading);
    CHECK_EQ_INT(stat_of(&play, &play.bob, "available"), 2);
    site_expect(
        &play.site, &play.bob, "syncKeyPackages", "{\"localHashes\":[]}", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "syncKeyPackages", "{\"deviceId\":\"phone\"}", 400,
        "InvalidRequest");
    play_end(&play);
}

TEST(package, what_has_ended_is_tidied_up)
{
    struct cleanup_done done;
    struct play play;
    char call[256], hash[65];

    play_begin(&play);
    publish(&play, hash);
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 1);
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.leases, 0);
    CHECK_EQ_INT(done.packages, 0);
    site_advance_s(601);
    done = site_tidy(&play.site);
    CHECK_EQ_INT(done.leases, 1);
    site_advance_s(30 * 86400 + 10);
    CHECK_EQ_INT(site_tidy(&play.site).packages, 0); /* for a day it is still there */
    site_advance_s(86400);
    CHECK_EQ_INT(site_tidy(&play.site).packages, 1);
    (void)snprintf(call, sizeof call, "getKeyPackageStatus?keyPackageHash=%s", hash);
    site_expect(&play.site, &play.bob, call, "", 404, "KeyPackageNotFound");
    play_end(&play);
}

TEST(package, every_call_here_wants_a_token_for_it)
{
    struct play play;

    play_begin(&play);
    for (size_t i = 0; i < play.site.route_count; i++) {
        const struct http_route *route = &play.site.routes[i];
        const char *body = route->method == HTTP_GET ? "" : "{}";
        struct web_answer answer;
        char *header;

        if (((const struct auth_demand *)route->demand)->anonymous) /* a stream takes a ticket */
            continue;
        header = caller_header(&play.alice, "somethingElse");
        answer = site_ask_with(&play.site, "", route->label, body);
        CHECK_MSG(answer.status == 401 && strstr(answer.text, "TokenMissing") != NULL, "%s:\n%s",
            route->label, answer.text);
        web_answer_free(&answer);
        answer = site_ask_with(&play.site, header, route->label, body);
        CHECK_MSG(answer.status == 401 && strstr(answer.text, "MethodMismatch") != NULL, "%s:\n%s",
            route->label, answer.text);
        web_answer_free(&answer);
        free(header);
    }
    play_end(&play);
}
