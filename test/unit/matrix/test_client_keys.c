/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix/client/keys.h"
#include "mx_client.h"

#define HOUR_MS ((int64_t)60 * 60 * 1000)

struct keys_stage {
    struct mxclient_session session;
    struct mxclient_keys keys;
    struct sql_unit *unit; /* the steps are not run */
    struct json_doc doc;
};

static void keys_stage_init(struct keys_stage *stage)
{
    *stage = (struct keys_stage){ 0 };
    mx_client_discover(&stage->session);
    CHECK_EQ_INT(mx_client_login(&stage->session, "@ada:x", "", 0), 0);
    mxclient_keys_init(&stage->keys, &stage->session);
    stage->unit = sql_unit_create(0);
}

static void keys_stage_fini(struct keys_stage *stage)
{
    sql_unit_destroy(stage->unit);
    mxclient_session_fini(&stage->session);
    json_doc_free(&stage->doc);
}

static bool is_due(struct keys_stage *stage, int64_t now_ms)
{
    bool is_due = false;

    CHECK_EQ_INT(mxclient_keys_plan(&stage->keys, now_ms, stage->unit, &is_due), 0);
    return is_due;
}

/* Upload and return the number of one-time keys in the request. */
static size_t upload(struct keys_stage *stage, uint32_t status, const char *answer, int64_t now_ms)
{
    struct mxclient_request request;
    struct mxclient_outcome outcome;
    size_t count;

    CHECK_EQ_INT(mxclient_keys_request(&stage->keys, &request), 0);
    CHECK_EQ_INT(json_parse_copy(&stage->doc, mx_stage_span(&request.body), JSON_UNIQUE_KEYS), 0);
    count = json_count(json_get(json_root(&stage->doc), "one_time_keys"));
    outcome = mx_client_judge(&request, status, answer, &stage->doc);
    CHECK_EQ_INT(
        mxclient_keys_uploaded(&stage->keys, &outcome, json_root(&stage->doc), now_ms, stage->unit),
        0);
    mxclient_request_fini(&request);
    return count;
}

static void sync_counts(struct keys_stage *stage, const char *sync)
{
    CHECK_EQ_INT(json_parse_copy(&stage->doc, span_of(sync), 0), 0);
    mxclient_keys_counts(&stage->keys, json_root(&stage->doc));
}

TEST(keys, first_device_keys_then_as_many_one_time_keys_as_the_server_lacks)
{
    struct keys_stage stage;

    keys_stage_init(&stage);
    CHECK(is_due(&stage, 1));
    CHECK_EQ_U64(upload(&stage, 200, "{\"one_time_key_counts\":{}}", 1), 0);
    CHECK(is_due(&stage, 2));
    CHECK_EQ_U64(
        upload(&stage, 200, "{\"one_time_key_counts\":{\"signed_curve25519\":50}}", 2), 50);
    CHECK(!is_due(&stage, 3));
    sync_counts(&stage, "{\"device_one_time_keys_count\":{\"signed_curve25519\":24}}");
    CHECK(!is_due(&stage, 4)); /* a minute has not passed */
    CHECK(is_due(&stage, 60002));
    CHECK_EQ_U64(
        upload(&stage, 200, "{\"one_time_key_counts\":{\"signed_curve25519\":50}}", 60002), 26);
    keys_stage_fini(&stage);
}

TEST(keys, what_is_uploaded_is_signed)
{
    struct span user = SPAN("@ada:x");
    struct keys_stage stage;
    struct mxclient_request request;
    struct buffer key_id = { 0 };
    const struct json *body;

    keys_stage_init(&stage);
    sync_counts(&stage, "{\"device_one_time_keys_count\":{}}");
    CHECK(is_due(&stage, 1));
    CHECK_EQ_INT(mxclient_keys_request(&stage.keys, &request), 0);
    CHECK_EQ_INT(json_parse_copy(&stage.doc, mx_stage_span(&request.body), JSON_UNIQUE_KEYS), 0);
    body = json_root(&stage.doc);
    (void)buffer_text(&key_id, "ed25519:");
    (void)buffer_span(&key_id, mxclient_span(&stage.session.device_id));
    CHECK_EQ_INT(mx_verify_json(json_get(body, "device_keys"), user, mx_stage_span(&key_id),
                     mx_account_signing_key(stage.session.account)),
        0);
    CHECK_EQ_U64(json_count(json_get(body, "one_time_keys")), 50);
    CHECK_EQ_U64(json_count(json_get(body, "fallback_keys")), 1);
    for (struct json_iter it = json_iterate(json_get(body, "fallback_keys")); json_next(&it);) {
        bool is_fallback = false;

        CHECK(json_bool(json_get(it.value, "fallback"), &is_fallback) && is_fallback);
        CHECK_EQ_INT(mx_verify_json(it.value, user, mx_stage_span(&key_id),
                         mx_account_signing_key(stage.session.account)),
            0);
    }
    buffer_free(&key_id);
    mxclient_request_fini(&request);
    keys_stage_fini(&stage);
}

TEST(keys, keys_that_were_stored_and_not_uploaded_are_uploaded_first)
{
    struct keys_stage stage;

    keys_stage_init(&stage);
    CHECK_EQ_INT(mx_account_add_one_time_keys(stage.session.account, 7, mx_stage_random()), 0);
    sync_counts(&stage, "{\"device_one_time_keys_count\":{}}");
    CHECK(is_due(&stage, 1));
    CHECK_EQ_U64(upload(&stage, 200, "{\"one_time_key_counts\":{\"signed_curve25519\":7}}", 1), 7);
    keys_stage_fini(&stage);
}

TEST(keys, an_upload_that_exists_already_does_not_loop)
{
    struct mx_one_time_key key;
    struct keys_stage stage;
    int64_t now = 1;
    int uploads = 0;

    keys_stage_init(&stage);
    sync_counts(&stage, "{\"device_one_time_keys_count\":{}}");
    /* A day of a sync every second. */
    for (; now < 24 * 60 * 60 * 1000; now += 1000)
        if (is_due(&stage, now)) {
            (void)upload(&stage, 400,
                "{\"errcode\":\"M_UNKNOWN\",\"error\":\"One time key already exists\"}", now);
            uploads++;
        }
    CHECK_MSG(uploads <= 12, "%d uploads", uploads);
    /* Once the server accepts, keys go up with ids that it has not seen. */
    now += MXCLIENT_KEYS_PAUSE_MAX_MS;
    CHECK(is_due(&stage, now));
    CHECK_EQ_U64(
        upload(&stage, 200, "{\"one_time_key_counts\":{\"signed_curve25519\":50}}", now), 50);
    CHECK(mx_account_one_time_key_at(stage.session.account, 0, &key));
    CHECK(key.id > MXCLIENT_KEYS_SKIPPED && key.is_published);
    CHECK_EQ_U64(stage.keys.conflicts, 0);
    keys_stage_fini(&stage);
}

TEST(keys, lying_counts_cost_little)
{
    struct keys_stage stage;
    int uploads = 0;

    keys_stage_init(&stage);
    for (int64_t now = 1; now < 60 * 60 * 1000; now += 1000) {
        sync_counts(&stage, "{\"device_one_time_keys_count\":{},"
                            "\"device_unused_fallback_key_types\":[]}");
        if (is_due(&stage, now)) {
            (void)upload(&stage, 200, "{\"one_time_key_counts\":{}}", now);
            uploads++;
        }
    }
    CHECK_MSG(uploads <= 61, "%d uploads in an hour", uploads);
    CHECK(mx_account_one_time_key_count(stage.session.account) <= MX_ONE_TIME_KEYS_MAX);
    keys_stage_fini(&stage);
}

TEST(keys, senseless_counts_change_nothing)
{
    static const char *const answers[] = { "{}", "{\"device_one_time_keys_count\":[]}",
        "{\"device_one_time_keys_count\":{\"signed_curve25519\":-1}}",
        "{\"device_one_time_keys_count\":{\"signed_curve25519\":1.5}}",
        "{\"device_one_time_keys_count\":{\"signed_curve25519\":99999999999999999999}}",
        "{\"device_one_time_keys_count\":{\"signed_curve25519\":\"0\"}}" };
    struct keys_stage stage;

    keys_stage_init(&stage);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        sync_counts(&stage, answers[i]);
        CHECK_EQ_INT(stage.keys.count, -1);
        CHECK(!stage.keys.fallback_is_used);
    }
    sync_counts(
        &stage, "{\"device_one_time_keys_count\":{\"signed_curve25519\":9223372036854775807}}");
    CHECK_EQ_INT(stage.keys.count, INT64_MAX);
    keys_stage_fini(&stage);
}

TEST(keys, a_used_fallback_key_is_replaced_after_an_hour_and_any_after_a_week)
{
    struct keys_stage stage;
    int64_t hour = 60 * 60 * 1000;

    keys_stage_init(&stage);
    sync_counts(&stage, "{\"device_one_time_keys_count\":{\"signed_curve25519\":50}}");
    CHECK(is_due(&stage, hour));
    (void)upload(&stage, 200, "{}", hour);
    sync_counts(&stage, "{\"device_unused_fallback_key_types\":[]}");
    CHECK(!is_due(&stage, hour + 1));
    CHECK(is_due(&stage, 2 * hour));
    (void)upload(&stage, 200, "{}", 2 * hour);
    sync_counts(&stage, "{\"device_unused_fallback_key_types\":[\"signed_curve25519\"]}");
    CHECK(!is_due(&stage, 100 * hour));
    CHECK(is_due(&stage, 170 * hour));
    keys_stage_fini(&stage);
}

/* Return whether the account still takes a first message made with this key. */
static bool is_usable(struct keys_stage *stage, const struct mx_key *key)
{
    struct mx_olm *outbound = NULL, *inbound = NULL;
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_account *peer = NULL;
    enum mx_olm_type type;
    int rc;

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &peer), 0);
    CHECK_EQ_INT(mx_olm_create_outbound(peer, mx_account_identity_key(stage->session.account), key,
                     mx_stage_random(), &outbound),
        0);
    CHECK_EQ_INT(mx_olm_encrypt(outbound, SPAN("x"), mx_stage_random(), &type, &body), 0);
    rc = mx_olm_create_inbound(stage->session.account, mx_account_identity_key(peer),
        mx_stage_span(&body), &inbound, &plaintext);
    mx_olm_destroy(outbound);
    mx_olm_destroy(inbound);
    mx_account_destroy(peer);
    buffer_free(&body);
    buffer_free(&plaintext);
    return rc == 0;
}

/* Publish a fallback key at hour 1, and make its successor at hour 2. */
static void replace_fallback(struct keys_stage *stage, struct mx_key *ret_former)
{
    struct mx_one_time_key key;

    keys_stage_init(stage);
    sync_counts(stage, "{\"device_one_time_keys_count\":{\"signed_curve25519\":50}}");
    CHECK(is_due(stage, HOUR_MS));
    (void)upload(stage, 200, "{}", HOUR_MS);
    CHECK(mx_account_fallback_key(stage->session.account, &key));
    *ret_former = key.key;
    CHECK(!is_due(stage, 2 * HOUR_MS)); /* nor is there a former one to drop */
    sync_counts(stage, "{\"device_unused_fallback_key_types\":[]}");
    CHECK(is_due(stage, 2 * HOUR_MS));
    sync_counts(stage, "{\"device_unused_fallback_key_types\":[\"signed_curve25519\"]}");
}

TEST(keys, a_former_fallback_key_is_dropped_an_hour_after_the_server_has_its_successor)
{
    struct keys_stage stage;
    struct mx_key former;
    struct sql_unit *unit;
    bool has_upload;

    replace_fallback(&stage, &former);
    CHECK(is_due(&stage, 4 * HOUR_MS));
    CHECK(is_usable(&stage, &former)); /* the server still gives it away */
    (void)upload(&stage, 200, "{}", 4 * HOUR_MS);
    CHECK(!is_due(&stage, 5 * HOUR_MS - 1));
    CHECK(is_usable(&stage, &former));
    unit = sql_unit_create(0);
    CHECK_EQ_INT(mxclient_keys_plan(&stage.keys, 5 * HOUR_MS, unit, &has_upload), 0);
    CHECK(!has_upload); /* no upload is needed for it */
    CHECK(!is_usable(&stage, &former));
    CHECK(!sql_unit_is_empty(unit)); /* the stored account loses it too */
    sql_unit_destroy(unit);
    /* It is dropped once: the next plan has no step. */
    unit = sql_unit_create(0);
    CHECK_EQ_INT(mxclient_keys_plan(&stage.keys, 6 * HOUR_MS, unit, &has_upload), 0);
    CHECK(sql_unit_is_empty(unit));
    sql_unit_destroy(unit);
    keys_stage_fini(&stage);
}

TEST(keys, a_former_fallback_key_is_dropped_after_a_restart_too)
{
    struct keys_stage stage;
    struct mx_key former;

    replace_fallback(&stage, &former);
    (void)upload(&stage, 200, "{}", 2 * HOUR_MS);
    mxclient_keys_init(&stage.keys, &stage.session);
    CHECK(is_due(&stage, 3 * HOUR_MS)); /* for the device keys */
    CHECK(!is_usable(&stage, &former));
    keys_stage_fini(&stage);
}

/* ---- claims ----------------------------------------------------------------------------------- */

TEST(keys, a_claim_names_users_once)
{
    struct mxclient_place places[] = { { SPAN("@a:x"), SPAN("A1") }, { SPAN("@a:x"), SPAN("A2") },
        { SPAN("@b:x"), SPAN("B") } };
    struct mxclient_request request;

    mxclient_claim_request(&request, places, 3);
    mx_stage_check_text(&request.body,
        "{\"timeout\":10000,\"one_time_keys\":{\"@a:x\":{\"A1\":\"signed_curve25519\",\"A2\":"
        "\"signed_curve25519\"},\"@b:x\":{\"B\":\"signed_curve25519\"}}}");
    mxclient_request_fini(&request);
}

TEST(keys, a_claimed_key_needs_the_signature_of_its_device)
{
    struct keys_stage stage;
    struct mxclient_request request;
    struct mxclient_place place = { SPAN("@ada:x"), { NULL, 0 } };
    struct buffer answer = { 0 };
    struct json_iter it;
    struct json_writer writer;
    struct mx_key key, other;

    keys_stage_init(&stage);
    place.device_id = mxclient_span(&stage.session.device_id);
    sync_counts(&stage, "{\"device_one_time_keys_count\":{}}");
    CHECK(is_due(&stage, 1));
    CHECK_EQ_INT(mxclient_keys_request(&stage.keys, &request), 0);
    CHECK_EQ_INT(json_parse_copy(&stage.doc, mx_stage_span(&request.body), 0), 0);
    it = json_iterate(json_get(json_root(&stage.doc), "one_time_keys"));
    CHECK(json_next(&it));
    writer = json_writer(&answer);
    json_put_object(&writer, NULL);
    json_put_object(&writer, "one_time_keys");
    json_put_object(&writer, "@ada:x");
    json_put_key(&writer, place.device_id);
    json_put_object(&writer, NULL);
    json_put_key(&writer, it.key);
    json_put_value(&writer, NULL, it.value);
    for (int i = 0; i < 4; i++)
        json_put_end(&writer);
    CHECK_EQ_INT(json_parse_copy(&stage.doc, mx_stage_span(&answer), 0), 0);
    CHECK_EQ_INT(mxclient_claim_read(json_root(&stage.doc), place,
                     mx_account_signing_key(stage.session.account), &key),
        0);
    /* The key of another device did not sign it. */
    other = *mx_account_identity_key(stage.session.account);
    CHECK_EQ_INT(mxclient_claim_read(json_root(&stage.doc), place, &other, &key), MX_ESIGNATURE);
    place.device_id = SPAN("OTHER");
    CHECK_EQ_INT(mxclient_claim_read(json_root(&stage.doc), place, &other, &key), TR_ENOENT);
    CHECK_EQ_INT(mxclient_claim_read(NULL, place, &other, &key), TR_ENOENT);
    buffer_free(&answer);
    mxclient_request_fini(&request);
    keys_stage_fini(&stage);
}
