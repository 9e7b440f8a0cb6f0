/* SPDX-License-Identifier: Apache-2.0 */
#include "../sql/place.h"
#include "matrix/client/devices.h"
#include "mx_client.h"

struct devices_stage {
    struct mxclient_session ada;
    struct mxclient_session bob; /* the user asked about */
    struct mxclient_devices devices;
    struct sql_unit *unit;
    struct json_doc doc;
    struct buffer answer;
    struct json_writer writer;
};

static void devices_stage_login(struct mxclient_session *session, const char *user)
{
    mx_client_discover(session);
    CHECK_EQ_INT(mx_client_login(session, user, "", 0), 0);
}

static void devices_stage_init(struct devices_stage *stage)
{
    *stage = (struct devices_stage){ 0 };
    devices_stage_login(&stage->ada, "@ada:x");
    devices_stage_login(&stage->bob, "@bob:y");
    mxclient_devices_init(&stage->devices, &stage->ada);
    stage->unit = sql_unit_create(0);
    CHECK_EQ_INT(mxclient_devices_track(&stage->devices, SPAN("@bob:y"), stage->unit), 0);
}

static void devices_stage_fini(struct devices_stage *stage)
{
    mxclient_devices_fini(&stage->devices);
    mxclient_session_fini(&stage->ada);
    mxclient_session_fini(&stage->bob);
    sql_unit_destroy(stage->unit);
    json_doc_free(&stage->doc);
    buffer_free(&stage->answer);
}

static bool query(struct devices_stage *stage, int64_t now_ms)
{
    struct mxclient_request request = { 0 };
    bool is_due = mxclient_devices_query(&stage->devices, now_ms, &request);

    CHECK_EQ_INT(mxclient_request_error(&request), 0);
    mxclient_request_fini(&request);
    return is_due;
}

static void answer_text(struct devices_stage *stage, struct span body, int64_t now_ms)
{
    struct mxclient_outcome outcome = { .verdict = MXCLIENT_DONE };

    CHECK_EQ_INT(json_parse_copy(&stage->doc, body, 0), 0);
    CHECK_EQ_INT(mxclient_devices_answered(
                     &stage->devices, &outcome, json_root(&stage->doc), now_ms, stage->unit),
        0);
}

/* Begin an answer whose device_keys of bob are written next. */
static void answer_begin(struct devices_stage *stage)
{
    buffer_clear(&stage->answer);
    stage->writer = json_writer(&stage->answer);
    json_put_object(&stage->writer, NULL);
    json_put_object(&stage->writer, "device_keys");
    json_put_object(&stage->writer, "@bob:y");
}

/* Put a session's device_keys under this id. */
static void answer_put(
    struct devices_stage *stage, const struct mxclient_session *session, struct span id)
{
    struct buffer keys = { 0 };

    CHECK_EQ_INT(mxclient_keys_device(session, &keys), 0);
    json_put_key(&stage->writer, id);
    json_put_raw(&stage->writer, NULL, mx_stage_span(&keys));
    buffer_free(&keys);
}

static void answer_end(struct devices_stage *stage, int64_t now_ms)
{
    for (int i = 0; i < 3; i++)
        json_put_end(&stage->writer);
    answer_text(stage, mx_stage_span(&stage->answer), now_ms);
}

static void answer_bob(struct devices_stage *stage, int64_t now_ms)
{
    answer_begin(stage);
    answer_put(stage, &stage->bob, mxclient_span(&stage->bob.device_id));
    answer_end(stage, now_ms);
}

static struct mxclient_device *bobs_device(struct devices_stage *stage)
{
    return mxclient_devices_find(&stage->devices,
        (struct mxclient_place){ SPAN("@bob:y"), mxclient_span(&stage->bob.device_id) });
}

static void changed(struct devices_stage *stage, const char *lists)
{
    CHECK_EQ_INT(json_parse_copy(&stage->doc, span_of(lists), 0), 0);
    mxclient_devices_changed(&stage->devices, json_root(&stage->doc), stage->unit);
}

TEST(devices, a_query_brings_checked_devices)
{
    struct devices_stage stage;
    struct mxclient_device *device;

    devices_stage_init(&stage);
    CHECK(query(&stage, 0));
    CHECK(!query(&stage, 0)); /* one at a time */
    answer_bob(&stage, 0);
    device = bobs_device(&stage);
    CHECK(device != NULL && !device->is_deleted && device->trust == MXSTORE_UNVERIFIED);
    CHECK(mx_key_equal(&device->identity_key, mx_account_identity_key(stage.bob.account)));
    CHECK(device == mxclient_devices_by_key(&stage.devices, SPAN("@bob:y"), &device->identity_key));
    CHECK(NULL == mxclient_devices_by_key(&stage.devices, SPAN("@eve:y"), &device->identity_key));
    CHECK(!query(&stage, 0));
    devices_stage_fini(&stage);
}

TEST(devices, a_change_during_a_query_asks_again)
{
    struct devices_stage stage;

    devices_stage_init(&stage);
    CHECK(query(&stage, 0));
    changed(&stage, "{\"changed\":[\"@bob:y\",\"@stranger:z\",7,\"\"],\"left\":\"no list\"}");
    answer_bob(&stage, 0);
    CHECK(mxclient_devices_user(&stage.devices, SPAN("@bob:y"))->is_outdated);
    CHECK(mxclient_devices_user(&stage.devices, SPAN("@stranger:z")) == NULL);
    CHECK(query(&stage, 0));
    answer_bob(&stage, 0);
    CHECK(!mxclient_devices_user(&stage.devices, SPAN("@bob:y"))->is_outdated);
    devices_stage_fini(&stage);
}

TEST(devices, a_user_who_left_is_asked_about_once_tracked_again)
{
    struct devices_stage stage;

    devices_stage_init(&stage);
    changed(&stage, "{\"left\":[\"@bob:y\"]}");
    CHECK(!query(&stage, 0));
    CHECK_EQ_INT(mxclient_devices_track(&stage.devices, SPAN("@bob:y"), stage.unit), 0);
    CHECK(query(&stage, 0));
    devices_stage_fini(&stage);
}

TEST(devices, a_device_that_the_answer_lacks_is_deleted_and_comes_back_with_its_trust)
{
    struct devices_stage stage;

    devices_stage_init(&stage);
    CHECK(query(&stage, 0));
    answer_bob(&stage, 0);
    bobs_device(&stage)->trust = MXSTORE_VERIFIED;
    changed(&stage, "{\"changed\":[\"@bob:y\"]}");
    CHECK(query(&stage, 0));
    answer_text(&stage, SPAN("{\"device_keys\":{\"@bob:y\":{}}}"), 0);
    CHECK(bobs_device(&stage)->is_deleted);
    changed(&stage, "{\"changed\":[\"@bob:y\"]}");
    CHECK(query(&stage, 0));
    answer_bob(&stage, 0);
    CHECK(!bobs_device(&stage)->is_deleted);
    CHECK_EQ_INT(bobs_device(&stage)->trust, MXSTORE_VERIFIED);
    devices_stage_fini(&stage);
}

TEST(devices, keys_of_a_known_device_never_change)
{
    struct devices_stage stage;
    struct mxclient_session thief;
    struct mx_key key;

    devices_stage_init(&stage);
    CHECK(query(&stage, 0));
    answer_bob(&stage, 0);
    key = bobs_device(&stage)->identity_key;
    /* The server presents other keys, well signed, under the same id. */
    devices_stage_login(&thief, "@bob:y");
    buffer_clear(&thief.device_id);
    (void)buffer_span(&thief.device_id, mxclient_span(&stage.bob.device_id));
    changed(&stage, "{\"changed\":[\"@bob:y\"]}");
    CHECK(query(&stage, 0));
    answer_begin(&stage);
    answer_put(&stage, &thief, mxclient_span(&thief.device_id));
    answer_end(&stage, 0);
    CHECK_EQ_U64(stage.devices.rejected, 1);
    CHECK(mx_key_equal(&key, &bobs_device(&stage)->identity_key));
    mxclient_session_fini(&thief);
    devices_stage_fini(&stage);
}

TEST(devices, an_object_at_another_place_or_with_a_bad_signature_is_ignored)
{
    struct devices_stage stage;
    struct buffer keys = { 0 };
    char *at;

    devices_stage_init(&stage);
    CHECK(query(&stage, 0));
    answer_begin(&stage);
    answer_put(&stage, &stage.bob, SPAN("OTHER"));
    answer_put(&stage, &stage.ada, mxclient_span(&stage.ada.device_id)); /* ada's, at bob */
    CHECK_EQ_INT(mxclient_keys_device(&stage.bob, &keys), 0);
    at = memmem(keys.bytes, keys.size, "m.olm", 5);
    CHECK(at != NULL);
    *at = 'n';
    json_put_key(&stage.writer, mxclient_span(&stage.bob.device_id));
    json_put_raw(&stage.writer, NULL, mx_stage_span(&keys));
    answer_end(&stage, 0);
    CHECK_EQ_U64(stage.devices.rejected, 3);
    CHECK(bobs_device(&stage) == NULL);
    buffer_free(&keys);
    devices_stage_fini(&stage);
}

TEST(devices, our_own_device_has_our_own_keys)
{
    struct devices_stage stage;
    struct mxclient_session thief;

    devices_stage_init(&stage);
    devices_stage_login(&thief, "@ada:x");
    buffer_clear(&thief.device_id);
    (void)buffer_span(&thief.device_id, mxclient_span(&stage.ada.device_id));
    CHECK_EQ_INT(mxclient_devices_track(&stage.devices, SPAN("@ada:x"), stage.unit), 0);
    CHECK(query(&stage, 0));
    buffer_clear(&stage.answer);
    stage.writer = json_writer(&stage.answer);
    json_put_object(&stage.writer, NULL);
    json_put_object(&stage.writer, "device_keys");
    json_put_object(&stage.writer, "@ada:x");
    answer_put(&stage, &thief, mxclient_span(&thief.device_id));
    answer_end(&stage, 0);
    CHECK_EQ_U64(stage.devices.rejected, 1);
    mxclient_session_fini(&thief);
    devices_stage_fini(&stage);
}

TEST(devices, a_user_of_an_unreached_server_waits)
{
    struct devices_stage stage;

    devices_stage_init(&stage);
    CHECK(query(&stage, 0));
    answer_text(&stage, SPAN("{\"device_keys\":{},\"failures\":{\"y\":{}}}"), 0);
    CHECK(!query(&stage, MXCLIENT_QUERY_PAUSE_MS - 1));
    CHECK(query(&stage, MXCLIENT_QUERY_PAUSE_MS));
    devices_stage_fini(&stage);
}

TEST(devices, hostile_answers_are_ignored)
{
    static const char *const answers[] = { "{}", "{\"device_keys\":[]}",
        "{\"device_keys\":{\"@bob:y\":[1,2]}}", "{\"device_keys\":{\"@bob:y\":{\"\":{}}}}",
        "{\"device_keys\":{\"@bob:y\":{\"D\":null,\"E\":{\"user_id\":\"@bob:y\",\"device_id\":"
        "\"E\",\"keys\":{\"curve25519:E\":\"AA\",\"ed25519:E\":7}}}}}",
        "{\"master_keys\":{\"@bob:y\":{\"usage\":[\"master\"],\"keys\":{\"ed25519:x\":\"y\"}}},"
        "\"self_signing_keys\":3,\"failures\":[]}" };

    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        struct devices_stage stage;

        devices_stage_init(&stage);
        CHECK(query(&stage, 0));
        answer_text(&stage, span_of(answers[i]), 0);
        CHECK_EQ_U64(mxclient_devices_user(&stage.devices, SPAN("@bob:y"))->devices.count, 0);
        CHECK(!mxclient_devices_user(&stage.devices, SPAN("@bob:y"))->cross.has_master);
        devices_stage_fini(&stage);
    }
}

TEST(devices, ten_thousand_users_are_asked_about_in_pieces)
{
    struct devices_stage stage;
    char name[20];
    int queries = 0;

    devices_stage_init(&stage);
    for (int i = 1; i < 10000; i++) {
        snprintf(name, sizeof name, "@u%d:y", i);
        CHECK_EQ_INT(mxclient_devices_track(&stage.devices, span_of(name), stage.unit), 0);
    }
    while (query(&stage, 0)) {
        answer_text(&stage, SPAN("{\"device_keys\":{}}"), 0);
        queries++;
    }
    CHECK_EQ_INT(queries, 10000 / MXCLIENT_QUERY_USERS_MAX);
    devices_stage_fini(&stage);
}

/* ---- cross-signing ---------------------------------------------------------------------------- */

/* Append a key of cross-signing: the signing key of `owner`, signed by `signer` under the name of
 * the signer's key. */
static void put_cross(struct devices_stage *stage, const char *list, const char *usage,
    const struct mx_account *owner, const struct mx_account *signer)
{
    char key[MX_KEY_CHARS + 1], name[MX_KEY_CHARS + 1];
    struct buffer text = { 0 }, out = { 0 };
    struct json_doc doc = { 0 };

    mx_key_text(mx_account_signing_key(owner), key);
    mx_key_text(mx_account_signing_key(signer), name);
    (void)buffer_format(&text,
        "{\"user_id\":\"@bob:y\",\"usage\":[\"%s\"],\"keys\":{\"ed25519:%s\":\"%s\"}}", usage, key,
        key);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), 0), 0);
    CHECK_EQ_INT(
        mx_account_sign_json(signer, json_root(&doc), SPAN("@bob:y"), span_of(name), &out), 0);
    json_put_object(&stage->writer, list);
    json_put_raw(&stage->writer, "@bob:y", mx_stage_span(&out));
    json_put_end(&stage->writer);
    json_doc_free(&doc);
    buffer_free(&text);
    buffer_free(&out);
}

static void answer_cross(struct devices_stage *stage, const struct mx_account *master,
    const struct mx_account *self, const struct mx_account *signer)
{
    struct buffer keys = { 0 }, out = { 0 };
    struct json_doc doc = { 0 };
    char name[MX_KEY_CHARS + 1];

    CHECK(query(stage, 0));
    buffer_clear(&stage->answer);
    stage->writer = json_writer(&stage->answer);
    json_put_object(&stage->writer, NULL);
    put_cross(stage, "master_keys", "master", master, master);
    put_cross(stage, "self_signing_keys", "self_signing", self, signer);
    CHECK_EQ_INT(mxclient_keys_device(&stage->bob, &keys), 0);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&keys), 0), 0);
    mx_key_text(mx_account_signing_key(self), name);
    CHECK_EQ_INT(
        mx_account_sign_json(self, json_root(&doc), SPAN("@bob:y"), span_of(name), &out), 0);
    json_put_object(&stage->writer, "device_keys");
    json_put_object(&stage->writer, "@bob:y");
    json_put_key(&stage->writer, mxclient_span(&stage->bob.device_id));
    json_put_raw(&stage->writer, NULL, mx_stage_span(&out));
    answer_end(stage, 0);
    json_doc_free(&doc);
    buffer_free(&keys);
    buffer_free(&out);
}

TEST(devices, cross_signing_counts_only_with_the_master_keys_signature)
{
    struct devices_stage stage;
    struct mx_account *master, *self, *other;
    struct mxclient_user *bob;

    devices_stage_init(&stage);
    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &master), 0);
    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &self), 0);
    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &other), 0);
    bob = mxclient_devices_user(&stage.devices, SPAN("@bob:y"));
    answer_cross(&stage, master, self, other);
    CHECK(bob->cross.has_master && !bob->cross.has_self_signing);
    CHECK(!bobs_device(&stage)->is_cross_signed);
    changed(&stage, "{\"changed\":[\"@bob:y\"]}");
    answer_cross(&stage, master, self, master);
    CHECK(bob->cross.has_self_signing && !bob->cross.is_changed);
    CHECK(bobs_device(&stage)->is_cross_signed);
    changed(&stage, "{\"changed\":[\"@bob:y\"]}");
    answer_cross(&stage, other, self, other);
    CHECK(bob->cross.is_changed);
    mx_account_destroy(master);
    mx_account_destroy(self);
    mx_account_destroy(other);
    devices_stage_fini(&stage);
}

/* Append a key of cross-signing that is signed as it should be, but for one member. */
static void put_odd_cross(struct devices_stage *stage, const char *list, const char *object,
    const struct mx_account *signer)
{
    char key[MX_KEY_CHARS + 1];
    struct buffer text = { 0 }, out = { 0 };
    struct json_doc doc = { 0 };

    mx_key_text(mx_account_signing_key(signer), key);
    for (const char *at = object; *at != 0; at++)
        (void)buffer_append(&text, *at == '@' ? key : at, *at == '@' ? strlen(key) : 1);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), 0), 0);
    CHECK_EQ_INT(
        mx_account_sign_json(signer, json_root(&doc), SPAN("@bob:y"), span_of(key), &out), 0);
    json_put_object(&stage->writer, list);
    json_put_raw(&stage->writer, "@bob:y", mx_stage_span(&out));
    json_put_end(&stage->writer);
    json_doc_free(&doc);
    buffer_free(&text);
    buffer_free(&out);
}

/* An @ is the key; the others are as they are. */
TEST(devices, a_cross_signing_key_that_is_not_its_owners_is_ignored)
{
    static const struct {
        const char *object;
        bool is_taken;
    } cases[] = {
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"master\"],\"keys\":{\"ed25519:@\":\"@\"}}",
            true },
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"x\",\"master\"],\"keys\":{\"ed25519:@\":\"@"
          "\"}}",
            true },
        { "{\"user_id\":\"\\u0040eve:y\",\"usage\":[\"master\"],\"keys\":{\"ed25519:@\":\"@\"}}",
            false },
        { "{\"usage\":[\"master\"],\"keys\":{\"ed25519:@\":\"@\"}}", false },
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"self_signing\"],\"keys\":{\"ed25519:@\":\"@"
          "\"}}",
            false },
        { "{\"user_id\":\"\\u0040bob:y\",\"keys\":{\"ed25519:@\":\"@\"}}", false },
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"master\"],\"keys\":{\"ed25519:x\":\"@\"}}",
            false },
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"master\"],\"keys\":{\"curve25519:@\":\"@\"}}",
            false },
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"master\"],"
          "\"keys\":{\"ed25519:@\":\"@\",\"ed25519:x\":\"x\"}}",
            false },
        { "{\"user_id\":\"\\u0040bob:y\",\"usage\":[\"master\"],\"keys\":{}}", false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct devices_stage stage;
        struct mx_account *master;
        const struct mxclient_user *bob;

        devices_stage_init(&stage);
        CHECK_EQ_INT(mx_account_create(mx_stage_random(), &master), 0);
        CHECK(query(&stage, 0));
        buffer_clear(&stage.answer);
        stage.writer = json_writer(&stage.answer);
        json_put_object(&stage.writer, NULL);
        put_odd_cross(&stage, "master_keys", cases[i].object, master);
        json_put_object(&stage.writer, "device_keys");
        json_put_object(&stage.writer, "@bob:y");
        answer_end(&stage, 0);
        bob = mxclient_devices_user(&stage.devices, SPAN("@bob:y"));
        CHECK_MSG(bob->cross.has_master == cases[i].is_taken, "%s", cases[i].object);
        mx_account_destroy(master);
        devices_stage_fini(&stage);
    }
}
