/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: registration, what it demands of key packages, and how a new device gets into the
 * conversations of its account. */
#include "site.h"

struct play {
    struct site site;
    struct caller alice, bob, carol;
    struct signer signer, other;
};

static void play_begin(struct play *play)
{
    site_begin(&play->site);
    caller_begin(&play->alice);
    caller_begin(&play->bob);
    caller_begin(&play->carol);
    signer_begin(&play->signer);
    signer_begin(&play->other);
}

static void play_end(struct play *play)
{
    caller_end(&play->alice);
    caller_end(&play->bob);
    caller_end(&play->carol);
    signer_end(&play->signer);
    signer_end(&play->other);
    site_end(&play->site);
}

/* A device of bob with `count` packages of its own. */
static char *registration(
    struct play *play, const char *device, const struct signer *signer, unsigned count)
{
    struct buffer body = { 0 }, key = { 0 };
    char *text;

    buffer_append(&key, signer->public_key, 32);
    text = base64_of(&key);
    buffer_format(&body,
        "{\"deviceName\":\"%s\",\"deviceUUID\":\"%s\",\"signaturePublicKey\":\"%s\","
        "\"keyPackages\":[",
        signer == &play->other ? "another key's" : "Bob's", device, text);
    free(text);
    for (unsigned i = 0; i < count; i++) {
        text = package_make(
            &(struct package_options){ .did = play->bob.did, .device = device, .signer = signer },
            NULL);
        buffer_format(&body, "%s{\"keyPackage\":\"%s\",\"cipherSuite\":\"" SITE_SUITE "\"}",
            i == 0 ? "" : ",", text);
        free(text);
    }
    buffer_text(&body, "]}");
    CHECK_EQ_INT(body.failed, 0);
    text = strndup(body.bytes, body.size);
    buffer_free(&body);
    buffer_free(&key);
    return text;
}

static void register_device(struct play *play, const char *device, const struct signer *signer,
    unsigned count, unsigned status, const char *part)
{
    char *body = registration(play, device, signer, count);

    site_expect(&play->site, &play->bob, "registerDevice", body, status, part);
    free(body);
}

TEST(device, it_is_registered_with_its_packages_and_listed_to_its_owner_alone)
{
    struct reading reading;
    struct play play;
    char *did, wanted[256];

    play_begin(&play);
    (void)snprintf(wanted, sizeof wanted, "\"mlsDid\":\"%s#phone\"", play.bob.did);
    register_device(&play, "phone", &play.signer, 3, 200, wanted);
    reading = site_read(&play.site, &play.bob, "listDevices", "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "devices")), 1);
    CHECK_EQ_INT(int_of(json_at(json_get(reading.root, "devices"), 0), "keyPackageCount"), 3);
    did = text_of(json_at(json_get(reading.root, "devices"), 0), "mlsDid");
    CHECK(strncmp(did, play.bob.did, strlen(play.bob.did)) == 0);
    free(did);
    reading_end(&reading);
    site_expect(&play.site, &play.alice, "listDevices", "", 200, "\"devices\":[]");
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 1);
    play_end(&play);
}

TEST(device, it_is_given_a_name_if_it_has_none)
{
    struct reading reading;
    struct play play;
    struct buffer key = { 0 };
    char *text, *id, body[512];

    play_begin(&play);
    buffer_append(&key, play.signer.public_key, 32);
    text = base64_of(&key);
    (void)snprintf(body, sizeof body,
        "{\"deviceName\":\"x\",\"signaturePublicKey\":\"%s\",\"keyPackages\":[]}", text);
    reading = site_read(&play.site, &play.bob, "registerDevice", body);
    id = text_of(reading.root, "deviceId");
    CHECK_EQ_INT(strlen(id), 32);
    reading_end(&reading);
    site_expect(&play.site, &play.bob, "listDevices", "", 200, id);
    free(id);
    free(text);
    buffer_free(&key);
    play_end(&play);
}

TEST(device, what_is_missing_is_said)
{
    struct play play;

    play_begin(&play);
    site_expect(&play.site, &play.bob, "registerDevice", "{}", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "registerDevice",
        "{\"deviceName\":\"x\",\"deviceUUID\":\"a b\",\"signaturePublicKey\":\"AAAA\","
        "\"keyPackages\":[]}",
        400, "deviceUUID");
    site_expect(&play.site, &play.bob, "deleteDevice", "{}", 400, "InvalidRequest");
    site_expect(&play.site, &play.bob, "validateDeviceState", "", 400, "InvalidRequest");
    play_end(&play);
}

TEST(device, its_key_is_the_one_it_was_registered_with)
{
    char *package, body[4096];
    struct play play;

    play_begin(&play);
    register_device(&play, "phone", &play.signer, 1, 200, "\"errors\":[]");
    register_device(&play, "phone", &play.signer, 1, 200, "\"errors\":[]");
    register_device(&play, "phone", &play.other, 1, 409, "DeviceKeyMismatch");
    site_expect(&play.site, &play.bob, "listDevices", "", 200, "\"deviceName\":\"Bob's\"");
    site_expect(
        &play.site, &play.bob, "getKeyPackageStats?deviceId=phone", "", 200, "\"available\":2");
    /* Nor can a package with another key come in by another way. */
    package = package_make(
        &(struct package_options){ .did = play.bob.did, .device = "phone", .signer = &play.other },
        NULL);
    (void)snprintf(body, sizeof body, "{\"keyPackage\":\"%s\"}", package);
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 400, "InvalidKeyPackage");
    free(package);
    package =
        package_make(&(struct package_options){ .did = play.bob.did, .signer = &play.other }, NULL);
    (void)snprintf(body, sizeof body, "{\"keyPackage\":\"%s\",\"deviceId\":\"phone\"}", package);
    site_expect(&play.site, &play.bob, "publishKeyPackage", body, 400, "InvalidKeyPackage");
    free(package);
    site_expect(
        &play.site, &play.bob, "getKeyPackageStats?deviceId=phone", "", 200, "\"available\":2");
    play_end(&play);
}

TEST(device, a_package_that_is_not_its_own_fails_alone)
{
    struct buffer body = { 0 }, key = { 0 };
    struct reading reading;
    struct play play;
    char *own, *foreign, *text;

    play_begin(&play);
    own = package_make(
        &(struct package_options){ .did = play.bob.did, .device = "phone", .signer = &play.signer },
        NULL);
    foreign = package_make(
        &(struct package_options){ .did = play.bob.did, .device = "phone", .signer = &play.other },
        NULL);
    buffer_append(&key, play.signer.public_key, 32);
    text = base64_of(&key);
    buffer_format(&body,
        "{\"deviceName\":\"x\",\"deviceUUID\":\"phone\",\"signaturePublicKey\":{\"$bytes\":\"%s\"},"
        "\"keyPackages\":[{\"keyPackage\":\"%s\"},{\"keyPackage\":\"%s\"},{}]}",
        text, foreign, own);
    buffer_append(&body, "", 1);
    reading = site_read(&play.site, &play.bob, "registerDevice", body.bytes);
    CHECK_EQ_INT(json_count(json_get(reading.root, "errors")), 2);
    CHECK_EQ_INT(int_of(json_at(json_get(reading.root, "errors"), 0), "index"), 0);
    reading_end(&reading);
    site_expect(&play.site, &play.bob, "getKeyPackageStats", "", 200, "\"available\":1");
    free(own);
    free(foreign);
    free(text);
    buffer_free(&body);
    buffer_free(&key);
    play_end(&play);
}

TEST_LONG(device, an_account_has_twenty_at_most, 60)
{
    struct play play;

    play_begin(&play);
    for (int i = 0; i < 20; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "d%d", i);
        register_device(&play, name, &play.signer, 0, 200, name);
    }
    register_device(&play, "d20", &play.signer, 1, 400, "TooManyDevices");
    site_expect(&play.site, &play.bob, "getKeyPackageStats", "", 200, "\"available\":0");
    register_device(&play, "d7", &play.signer, 0, 200, "d7");
    play_end(&play);
}

TEST(device, deleting_it_takes_its_packages_along)
{
    struct play play;

    play_begin(&play);
    register_device(&play, "phone", &play.signer, 2, 200, "phone");
    register_device(&play, "desk", &play.signer, 1, 200, "desk");
    site_expect(
        &play.site, &play.alice, "deleteDevice", "{\"deviceId\":\"phone\"}", 404, "DeviceNotFound");
    site_expect(&play.site, &play.bob, "deleteDevice", "{\"deviceId\":\"phone\"}", 200,
        "\"keyPackagesDeleted\":2");
    site_expect(
        &play.site, &play.bob, "deleteDevice", "{\"deviceId\":\"phone\"}", 404, "DeviceNotFound");
    site_expect(&play.site, &play.bob, "getKeyPackageStats", "", 200, "\"available\":1");
    CHECK_EQ_INT(site_claim(&play.site, &play.alice, play.bob.did, NULL), 1);
    play_end(&play);
}

/* ---- a new device in old conversations ------------------------------------------------------ */

/* Alice's group has bob (by a package without a device) and carol; then bob gets a phone. The id of
 * the phone's addition is the caller's to free. */
static char *bob_gets_a_phone(struct play *play, unsigned packages)
{
    char first[65], second[65], *id;
    const char *hashes[] = { first, second };
    struct web_answer answer;
    struct reading reading;

    site_create(&play->site, &play->alice, "group");
    site_publish(
        &play->site, &play->bob, (struct package_options){ .signer = &play->other }, first);
    site_publish(
        &play->site, &play->carol, (struct package_options){ .signer = &play->other }, second);
    CHECK_EQ_INT(site_claim(&play->site, &play->alice, play->bob.did, NULL), 1);
    CHECK_EQ_INT(site_claim(&play->site, &play->alice, play->carol.did, NULL), 1);
    answer = site_add(&play->site, &play->alice, "group", 0, hashes, 2);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    register_device(play, "phone", &play->signer, packages, 200, "\"pendingConvos\":[\"group\"]");
    reading = site_read(&play->site, &play->alice, "getPendingDeviceAdditions", "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "pendingAdditions")), 1);
    id = text_of(json_at(json_get(reading.root, "pendingAdditions"), 0), "id");
    reading_end(&reading);
    return id;
}

TEST(device, a_member_claims_its_addition_and_makes_it)
{
    struct play play;
    struct reading reading;
    struct caller stranger;
    char *id, *hash, body[512];
    const char *hashes[1];
    struct web_answer answer;

    play_begin(&play);
    caller_begin(&stranger);
    id = bob_gets_a_phone(&play, 2);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    site_expect(
        &play.site, &stranger, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    site_expect(
        &play.site, &stranger, "claimPendingDeviceAddition", body, 404, "PendingAdditionNotFound");
    site_expect(&play.site, &stranger, "completePendingDeviceAddition", body, 404,
        "PendingAdditionNotFound");
    site_expect(&play.site, &play.alice, "claimPendingDeviceAddition", "{}", 400, "InvalidRequest");
    site_expect(
        &play.site, &play.alice, "completePendingDeviceAddition", body, 409, "ClaimExpired");
    reading = site_read(&play.site, &play.alice, "claimPendingDeviceAddition", body);
    CHECK(bool_of(reading.root, "claimed"));
    hash = text_of(json_get(reading.root, "keyPackage"), "keyPackageHash");
    reading_end(&reading);
    site_expect(
        &play.site, &play.carol, "claimPendingDeviceAddition", body, 200, "\"claimed\":false");
    site_expect(
        &play.site, &play.carol, "completePendingDeviceAddition", body, 409, "ClaimExpired");
    hashes[0] = hash;
    answer = site_add(&play.site, &play.alice, "group", 1, hashes, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    site_expect(&play.site, &play.alice, "completePendingDeviceAddition", body, 200, "true");
    site_expect(&play.site, &play.alice, "completePendingDeviceAddition", body, 200, "true");
    site_expect(
        &play.site, &play.carol, "claimPendingDeviceAddition", body, 409, "AlreadyCompleted");
    site_expect(
        &play.site, &play.alice, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    site_expect(&play.site, &play.bob, "getWelcome?convoId=group&deviceId=phone", "", 200, hash);
    site_advance_s(8 * 86400);
    CHECK_EQ_INT(site_tidy(&play.site).additions, 1);
    free(hash);
    free(id);
    caller_end(&stranger);
    play_end(&play);
}

TEST(device, one_that_registers_again_hears_of_the_welcomes_that_wait)
{
    struct play play;
    struct reading reading;
    char *id, *hash, body[512];
    const char *hashes[1];
    struct web_answer answer;

    play_begin(&play);
    id = bob_gets_a_phone(&play, 1);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    register_device(&play, "phone", &play.signer, 0, 200, "\"welcomeMessages\":[]");
    reading = site_read(&play.site, &play.alice, "claimPendingDeviceAddition", body);
    hash = text_of(json_get(reading.root, "keyPackage"), "keyPackageHash");
    reading_end(&reading);
    hashes[0] = hash;
    answer = site_add(&play.site, &play.alice, "group", 1, hashes, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    register_device(&play, "phone", &play.signer, 0, 200,
        "\"welcomeMessages\":[{\"convoId\":\"group\",\"welcome\":\"AAE");
    register_device(&play, "tablet", &play.signer, 0, 200, "\"welcomeMessages\":[]");
    site_expect(&play.site, &play.bob, "confirmWelcome",
        "{\"convoId\":\"group\",\"deviceId\":\"phone\",\"success\":true}", 200, "true");
    register_device(&play, "phone", &play.signer, 0, 200, "\"welcomeMessages\":[]");
    free(hash);
    free(id);
    play_end(&play);
}

TEST(device, a_claim_lasts_a_minute)
{
    struct play play;
    char *id, body[512];

    play_begin(&play);
    id = bob_gets_a_phone(&play, 2);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    site_expect(
        &play.site, &play.alice, "claimPendingDeviceAddition", body, 200, "\"claimed\":true");
    site_expect(&play.site, &play.bob, "getPendingDeviceAdditions?convoId=group", "", 200,
        "\"in_progress\"");
    site_advance_s(55);
    site_expect(
        &play.site, &play.carol, "claimPendingDeviceAddition", body, 200, "\"claimed\":false");
    site_advance_s(6);
    site_expect(
        &play.site, &play.alice, "completePendingDeviceAddition", body, 409, "ClaimExpired");
    site_expect(
        &play.site, &play.carol, "claimPendingDeviceAddition", body, 200, "\"claimed\":true");
    site_expect(
        &play.site, &play.alice, "completePendingDeviceAddition", body, 409, "ClaimExpired");
    free(id);
    play_end(&play);
}

TEST(device, without_a_package_it_cannot_be_claimed_and_nobody_is_kept_away)
{
    struct play play;
    char *id, body[512];

    play_begin(&play);
    id = bob_gets_a_phone(&play, 0);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    site_expect(
        &play.site, &play.alice, "claimPendingDeviceAddition", body, 404, "KeyPackageNotFound");
    site_publish(&play.site, &play.bob,
        (struct package_options){ .signer = &play.signer, .device = "phone" }, NULL);
    site_expect(
        &play.site, &play.carol, "claimPendingDeviceAddition", body, 200, "\"claimed\":true");
    free(id);
    play_end(&play);
}

TEST(device, one_that_joined_by_itself_says_so)
{
    struct play play;
    char *id, body[512];

    play_begin(&play);
    id = bob_gets_a_phone(&play, 1);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    site_expect(&play.site, &play.bob, "completePendingDeviceAddition", body, 200, "true");
    site_expect(
        &play.site, &play.alice, "getPendingDeviceAdditions", "", 200, "\"pendingAdditions\":[]");
    free(id);
    play_end(&play);
}

TEST_LONG(device, twenty_claims_of_an_addition_at_once_have_one_winner, 60)
{
    enum { MANY = 20 };
    struct caller members[MANY];
    struct play play;
    int fds[MANY], winners = 0;
    char *id, body[512], *text = malloc(8192);

    play_begin(&play);
    CHECK(text != NULL);
    id = bob_gets_a_phone(&play, 2);
    (void)snprintf(body, sizeof body, "{\"pendingAdditionId\":\"%s\"}", id);
    for (uint64_t i = 0; i < MANY; i++) {
        char hash[65];
        const char *hashes[] = { hash };
        struct web_answer answer;

        caller_begin(&members[i]);
        site_publish(
            &play.site, &members[i], (struct package_options){ .signer = &play.other }, hash);
        CHECK_EQ_INT(site_claim(&play.site, &play.alice, members[i].did, NULL), 1);
        answer = site_add(&play.site, &play.alice, "group", i + 1, hashes, 1);
        CHECK_MSG(answer.status == 200, "%s", answer.text);
        web_answer_free(&answer);
    }
    for (int i = 0; i < MANY; i++)
        fds[i] = web_connect(http_server_address(play.site.server));
    for (int i = 0; i < MANY; i++) {
        char *header = caller_header(&members[i], "claimPendingDeviceAddition");
        int size = snprintf(text, 8192,
            "POST /xrpc/" XRPC_PREFIX "claimPendingDeviceAddition HTTP/1.1\r\nHost: localhost\r\n"
            "Connection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
            strlen(body), header, body);

        web_send(fds[i], text, (size_t)size);
        free(header);
    }
    for (int i = 0; i < MANY; i++) {
        struct web_answer answer;

        web_receive(fds[i], &answer);
        CHECK_MSG(answer.status == 200, "%s", answer.text);
        winners += strstr(answer.body, "\"claimed\":true") != NULL;
        web_answer_free(&answer);
        close(fds[i]);
        caller_end(&members[i]);
    }
    CHECK_EQ_INT(winners, 1);
    free(id);
    free(text);
    play_end(&play);
}

/* ---- is everything as it should be? --------------------------------------------------------- */

TEST(device, it_is_told_what_is_wrong_with_it)
{
    struct reading reading;
    struct play play;
    char *id;

    play_begin(&play);
    id = bob_gets_a_phone(&play, 2);
    reading = site_read(&play.site, &play.bob, "validateDeviceState?deviceId=phone", "");
    CHECK(!bool_of(reading.root, "isValid"));
    CHECK_EQ_INT(int_of(reading.root, "expectedConvoCount"), 1);
    CHECK_EQ_INT(int_of(reading.root, "actualConvoCount"), 0);
    CHECK_EQ_INT(int_of(json_get(reading.root, "keyPackageInventory"), "available"), 2);
    reading_end(&reading);
    site_expect(
        &play.site, &play.bob, "validateDeviceState?deviceId=tablet", "", 404, "DeviceNotFound");
    site_expect(
        &play.site, &play.alice, "validateDeviceState?deviceId=phone", "", 404, "DeviceNotFound");
    reading = site_read(&play.site, &play.bob, "getExpectedConversations?deviceId=phone", "");
    CHECK_EQ_INT(json_count(json_get(reading.root, "conversations")), 1);
    CHECK(!bool_of(json_at(json_get(reading.root, "conversations"), 0), "deviceInGroup"));
    CHECK_EQ_INT(int_of(json_at(json_get(reading.root, "conversations"), 0), "memberCount"), 3);
    reading_end(&reading);
    free(id);
    play_end(&play);
}

/* ---- the tables ----------------------------------------------------------------------------- */

TEST(device, its_tables_can_be_taken_back_and_made_again)
{
    struct sql_options options = { 0 };
    struct sql_migration *migrations = delivery_tables(&options.migration_count);
    struct site site = { 0 };
    char url[256], why[256] = "";
    uint32_t newest;

    web_place_make(site.place);
    if (SITE_ON_POSTGRES)
        test_postgres_open(&site.postgres, NULL);
    (void)snprintf(url, sizeof url, "sqlite:%s/delivery.db", site.place);
    options.url = SITE_ON_POSTGRES ? site.postgres.url : url;
    options.migrations = migrations;
    newest = (uint32_t)options.migration_count;
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_MSG(sql_migrate(&options, newest, why, sizeof why) == 0, "%s", why);
        CHECK_MSG(sql_migrate(&options, 4, why, sizeof why) == 0, "%s", why);
    }
    CHECK_MSG(sql_migrate(&options, newest, why, sizeof why) == 0, "%s", why);
    free(migrations);
    if (SITE_ON_POSTGRES)
        test_postgres_close(&site.postgres);
    web_place_remove(site.place);
}
