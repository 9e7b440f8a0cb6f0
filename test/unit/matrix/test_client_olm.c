/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to a device: each check of their plaintext, and room keys that are not worth keeping. */
#include "../sql/place.h"
#include "base/alloc.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/sync.h"
#include "mx_client.h"

/* Bob's client, and ada's device as bare crypto. */
struct olm_stage {
    struct mxclient bob;
    struct mxclient_session ada;
    struct mx_olm *to_bob;
    struct mx_outbound *outbound;
    struct sql_unit *unit; /* the steps are not run */
    struct buffer own_keys;
    char session_id[MX_SESSION_ID_CHARS + 1];
};

static void olm_stage_init(struct olm_stage *stage, bool knows_ada)
{
    struct mxclient_outcome done = { .verdict = MXCLIENT_DONE };
    struct mxclient_request request;
    struct mx_one_time_key key;
    struct buffer answer = { 0 };
    struct json_doc doc = { 0 };

    *stage = (struct olm_stage){ .unit = sql_unit_create(0) };
    mx_client_discover(&stage->bob.session);
    CHECK_EQ_INT(mx_client_login(&stage->bob.session, "@bob:y", "", 0), 0);
    mxclient_start(&stage->bob);
    mx_client_discover(&stage->ada);
    CHECK_EQ_INT(mx_client_login(&stage->ada, "@ada:x", "", 0), 0);
    CHECK_EQ_INT(mxclient_keys_device(&stage->ada, &stage->own_keys), 0);
    CHECK_EQ_INT(mx_account_add_one_time_keys(stage->bob.session.account, 1, mx_stage_random()), 0);
    CHECK(mx_account_one_time_key_at(stage->bob.session.account, 0, &key));
    CHECK_EQ_INT(mx_olm_create_outbound(stage->ada.account,
                     mx_account_identity_key(stage->bob.session.account), &key.key,
                     mx_stage_random(), &stage->to_bob),
        0);
    CHECK_EQ_INT(mx_outbound_create(mx_stage_random(), &stage->outbound), 0);
    mx_outbound_id(stage->outbound, stage->session_id);
    if (!knows_ada)
        return;
    CHECK_EQ_INT(mxclient_devices_track(&stage->bob.devices, SPAN("@ada:x"), stage->unit), 0);
    CHECK(mxclient_devices_query(&stage->bob.devices, 0, &request));
    mxclient_request_fini(&request);
    (void)buffer_format(&answer, "{\"device_keys\":{\"@ada:x\":{\"%.*s\":%.*s}}}",
        (int)stage->ada.device_id.size, stage->ada.device_id.bytes, (int)stage->own_keys.size,
        stage->own_keys.bytes);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&answer), 0), 0);
    CHECK_EQ_INT(
        mxclient_devices_answered(&stage->bob.devices, &done, json_root(&doc), 0, stage->unit), 0);
    json_doc_free(&doc);
    buffer_free(&answer);
}

static void olm_stage_fini(struct olm_stage *stage)
{
    mxclient_fini(&stage->bob);
    mxclient_session_fini(&stage->ada);
    mx_olm_destroy(stage->to_bob);
    mx_outbound_destroy(stage->outbound);
    sql_unit_destroy(stage->unit);
    buffer_free(&stage->own_keys);
}

/* What a message says; NULL members are what an honest ada says. */
struct claim {
    const char *type;
    const char *sender;       /* of the event */
    const char *inner_sender; /* of the plaintext */
    const char *recipient;
    const char *recipient_key; /* instead of bob's */
    const char *signing_key;   /* instead of ada's */
    const char *device_keys;   /* JSON; "" leaves them out */
    const char *content;       /* JSON; the key of the room by default */
    const char *sender_key;    /* of the event */
};

/* Write the content of a room key with this session id. */
static void put_room_key(struct olm_stage *stage, const char *session_id, struct buffer *out)
{
    struct buffer key = { 0 };

    CHECK_EQ_INT(mx_outbound_key(stage->outbound, &key), 0);
    (void)buffer_format(out,
        "{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"!r:x\",\"session_id\":\"%s\","
        "\"session_key\":\"%.*s\"}",
        session_id, (int)key.size, key.bytes);
    buffer_free(&key);
}

static void put_plaintext(struct olm_stage *stage, const struct claim *claim, struct buffer *out)
{
    char ours[MX_KEY_CHARS + 1], theirs[MX_KEY_CHARS + 1];
    struct buffer content = { 0 };

    mx_key_text(mx_account_signing_key(stage->ada.account), ours);
    mx_key_text(mx_account_signing_key(stage->bob.session.account), theirs);
    if (claim->content == NULL)
        put_room_key(stage, stage->session_id, &content);
    else
        (void)buffer_text(&content, claim->content);
    (void)buffer_format(out,
        "{\"type\":\"%s\",\"sender\":\"%s\",\"recipient\":\"%s\",\"recipient_keys\":{\"ed25519\":"
        "\"%s\"},\"keys\":{\"ed25519\":\"%s\"},\"content\":%.*s",
        claim->type == NULL ? "m.room_key" : claim->type,
        claim->inner_sender == NULL ? "@ada:x" : claim->inner_sender,
        claim->recipient == NULL ? "@bob:y" : claim->recipient,
        claim->recipient_key == NULL ? theirs : claim->recipient_key,
        claim->signing_key == NULL ? ours : claim->signing_key, (int)content.size, content.bytes);
    if (claim->device_keys == NULL)
        (void)buffer_format(
            out, ",\"sender_device_keys\":%.*s", (int)stage->own_keys.size, stage->own_keys.bytes);
    else if (claim->device_keys[0] != '\0')
        (void)buffer_format(out, ",\"sender_device_keys\":%s", claim->device_keys);
    (void)buffer_text(out, "}");
    buffer_free(&content);
}

static uint64_t fault_at; /* 0, or the allocation that fails while bob takes a message */
static uint64_t fault_count;

/* Deliver the claim; returns what bob's client says. */
static int deliver(struct olm_stage *stage, const struct claim *claim)
{
    char ours[MX_KEY_CHARS + 1], theirs[MX_KEY_CHARS + 1];
    struct buffer plaintext = { 0 }, body = { 0 }, event = { 0 };
    struct json_doc doc = { 0 };
    enum mx_olm_type type;
    int rc;

    put_plaintext(stage, claim, &plaintext);
    CHECK_EQ_INT(
        mx_olm_encrypt(stage->to_bob, mx_stage_span(&plaintext), mx_stage_random(), &type, &body),
        0);
    mx_key_text(mx_account_identity_key(stage->ada.account), ours);
    mx_key_text(mx_account_identity_key(stage->bob.session.account), theirs);
    (void)buffer_format(&event,
        "{\"type\":\"m.room.encrypted\",\"sender\":\"%s\",\"content\":{\"algorithm\":"
        "\"m.olm.v1.curve25519-aes-sha2\",\"sender_key\":\"%s\",\"ciphertext\":{\"%s\":{\"type\":"
        "%d,\"body\":\"%.*s\"}}}}",
        claim->sender == NULL ? "@ada:x" : claim->sender,
        claim->sender_key == NULL ? ours : claim->sender_key, theirs, (int)type, (int)body.size,
        body.bytes);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&event), 0), 0);
    (void)base_fault_countdown(fault_at, 1);
    rc = mxclient_to_device_take(&stage->bob, json_root(&doc), 1000, stage->unit);
    fault_count = base_fault_countdown(0, 0);
    json_doc_free(&doc);
    buffer_free(&plaintext);
    buffer_free(&body);
    buffer_free(&event);
    return rc;
}

TEST(olm, an_honest_room_key_is_taken_from_a_known_and_an_unknown_device)
{
    for (int i = 0; i < 2; i++) {
        struct olm_stage stage;

        olm_stage_init(&stage, i == 1);
        CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
        CHECK_EQ_U64(stage.bob.inbounds.count, 1);
        CHECK(stage.bob.is_account_changed); /* the one-time key is used up */
        CHECK_EQ_INT(deliver(&stage, &(struct claim){ .device_keys = "" }), 0);
        CHECK_EQ_U64(stage.bob.skipped, 1); /* an equal copy brings nothing */
        CHECK_EQ_U64(stage.bob.undecrypted, 0);
        olm_stage_fini(&stage);
    }
}

#define OTHER_KEY "TA6kvVVdxFK91P81rCFqyp1iqS/jSI8a3cjzFTXnuBM"

TEST(olm, a_message_that_fails_one_check_brings_nothing)
{
    static const struct claim claims[] = {
        { .sender = "@eve:z" },
        { .inner_sender = "@eve:z" },
        { .sender = "@eve:z", .inner_sender = "@eve:z" }, /* ada's device keys, another user */
        { .recipient = "@eve:z" },
        { .recipient_key = OTHER_KEY },
        { .recipient_key = "" },
        { .signing_key = OTHER_KEY },
        { .signing_key = OTHER_KEY, .device_keys = "" },
        { .device_keys = "{}" },
        { .device_keys = "null" },
        { .device_keys = "{\"user_id\":\"@ada:x\",\"device_id\":\"D\",\"keys\":{}}" },
        { .type = "m.forwarded_room_key" }, /* nobody asked, and it is no device of ours */
        { .type = "m.unknown" },
        { .content = "{}" },
        { .content = "[]" },
        { .content = "{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"!r:x\",\"session_id\":"
                     "\"x\",\"session_key\":\"AgAAAA\"}" },
    };

    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        struct olm_stage stage;

        olm_stage_init(&stage, true);
        CHECK_EQ_INT(deliver(&stage, &claims[i]), 0);
        CHECK_MSG(stage.bob.inbounds.count == 0, "claim %zu brought a key", i);
        CHECK_MSG(stage.bob.skipped == 1, "claim %zu was not counted", i);
        /* The session has moved on and works. */
        CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
        CHECK_EQ_U64(stage.bob.inbounds.count, 1);
        olm_stage_fini(&stage);
    }
}

TEST(olm, device_keys_with_another_identity_key_are_refused)
{
    struct olm_stage stage;
    struct buffer text = { 0 }, keys = { 0 };
    struct json_doc doc = { 0 };
    char *at;

    /* Ada's own signature, over another identity key than the one that sends. */
    olm_stage_init(&stage, false);
    (void)buffer_span(&text, mx_stage_span(&stage.own_keys));
    at = memmem(text.bytes, text.size, "\"curve25519:", 12);
    CHECK(at != NULL);
    memcpy(strchr(at + 12, ':') + 2, OTHER_KEY, MX_KEY_CHARS);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), 0), 0);
    CHECK_EQ_INT(mx_account_sign_json(stage.ada.account, json_root(&doc), SPAN("@ada:x"),
                     mxclient_span(&stage.ada.device_id), &keys),
        0);
    (void)buffer_append(&keys, "", 1);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ .device_keys = keys.bytes }), 0);
    CHECK_EQ_U64(stage.bob.inbounds.count, 0);
    CHECK_EQ_U64(stage.bob.skipped, 1);
    json_doc_free(&doc);
    buffer_free(&text);
    buffer_free(&keys);
    olm_stage_fini(&stage);
}

TEST(olm, a_session_under_another_id_or_from_another_device_is_refused)
{
    struct olm_stage stage;
    struct buffer content = { 0 };
    struct mxclient_inbound *known;

    olm_stage_init(&stage, true);
    put_room_key(&stage, "another", &content);
    (void)buffer_append(&content, "", 1);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ .content = content.bytes }), 0);
    CHECK_EQ_U64(stage.bob.inbounds.count, 0);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    known = (struct mxclient_inbound *)stage.bob.inbounds.entries[0];
    CHECK(mx_key_equal(&known->sender_key, mx_account_identity_key(stage.ada.account)));
    buffer_free(&content);
    olm_stage_fini(&stage);
}

/* ---- messages that we send -------------------------------------------------------------------- */

/* Let bob's client encrypt a message to ada's device, and let ada decrypt it. */
static void send_to_ada(struct olm_stage *stage, struct buffer *plaintext)
{
    struct mxclient_place ada = { SPAN("@ada:x"), mxclient_span(&stage->ada.device_id) };
    const struct mxclient_device *device = mxclient_devices_find(&stage->bob.devices, ada);
    struct buffer content = { 0 };
    struct json_doc doc = { 0 };
    struct mx_one_time_key key;
    struct mx_olm *olm = NULL;
    struct json_iter it;
    struct span body;

    CHECK_EQ_INT(mx_account_add_one_time_keys(stage->ada.account, 1, mx_stage_random()), 0);
    CHECK(mx_account_one_time_key_at(stage->ada.account, 0, &key));
    CHECK_EQ_INT(mxclient_olm_start(&stage->bob, device, &key.key, 0), 0);
    CHECK_EQ_INT(mxclient_olm_encrypt(
                     &stage->bob, ada, device, SPAN("m.dummy"), SPAN("{}"), stage->unit, &content),
        0);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&content), JSON_UNIQUE_KEYS), 0);
    it = json_iterate(json_get(json_root(&doc), "ciphertext"));
    CHECK(json_next(&it) && json_string(json_get(it.value, "body"), &body));
    CHECK_EQ_INT(mx_olm_create_inbound(stage->ada.account,
                     mx_account_identity_key(stage->bob.session.account), body, &olm, plaintext),
        0);
    mx_olm_destroy(olm);
    json_doc_free(&doc);
    buffer_free(&content);
}

TEST(olm, a_message_that_we_send_carries_our_signed_device_keys)
{
    struct buffer plaintext = { 0 }, key_id = { 0 };
    const struct json *keys;
    struct json_doc doc = { 0 };
    struct olm_stage stage;
    struct span device_id;

    olm_stage_init(&stage, true);
    send_to_ada(&stage, &plaintext);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&plaintext), JSON_UNIQUE_KEYS), 0);
    keys = json_get(json_root(&doc), "sender_device_keys");
    CHECK(json_string(json_get(keys, "device_id"), &device_id));
    CHECK(span_equal(device_id, mxclient_span(&stage.bob.session.device_id)));
    (void)buffer_format(&key_id, "ed25519:%.*s", (int)device_id.size, device_id.at);
    CHECK_EQ_INT(mx_verify_json(keys, SPAN("@bob:y"), mx_stage_span(&key_id),
                     mx_account_signing_key(stage.bob.session.account)),
        0);
    json_doc_free(&doc);
    buffer_free(&plaintext);
    buffer_free(&key_id);
    olm_stage_fini(&stage);
}

/* ---- room sessions ---------------------------------------------------------------------------- */

TEST(megolm, a_better_copy_counts_from_the_same_device_alone)
{
    struct mxclient_room_key eve = { .source = MXSTORE_FROM_OWNER }, ada = eve;
    struct mxclient_inbound *known;
    struct buffer early = { 0 }, body = { 0 };
    struct json_doc doc = { 0 };
    struct olm_stage stage;

    olm_stage_init(&stage, true);
    put_room_key(&stage, stage.session_id, &early);
    CHECK_EQ_INT(mx_outbound_encrypt(stage.outbound, SPAN("x"), &body), 0);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    known = (struct mxclient_inbound *)stage.bob.inbounds.entries[0];
    CHECK_EQ_U64(mx_inbound_first_index(known->inbound), 1);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&early), 0), 0);
    CHECK_EQ_INT(mx_key_parse(SPAN(OTHER_KEY), &eve.sender_key), 0);
    ada.sender_key = *mx_account_identity_key(stage.ada.account);
    ada.signing_key = eve.signing_key = *mx_account_signing_key(stage.ada.account);
    CHECK_EQ_INT(mxclient_megolm_take_key(&stage.bob, &eve, json_root(&doc), stage.unit), 0);
    CHECK_EQ_U64(mx_inbound_first_index(known->inbound), 1);
    CHECK_EQ_U64(stage.bob.inbounds.count, 2); /* hers is beside it */
    CHECK_EQ_INT(mxclient_megolm_take_key(&stage.bob, &ada, json_root(&doc), stage.unit), 0);
    CHECK_EQ_U64(mx_inbound_first_index(known->inbound), 0);
    json_doc_free(&doc);
    buffer_free(&early);
    buffer_free(&body);
    olm_stage_fini(&stage);
}

static int decrypt(struct olm_stage *stage, const char *plaintext);

/* Add copies without a ratchet, the first ones never used. */
static void fill_inbounds(struct mxclient *client, uint32_t count, uint32_t unused)
{
    char id[40];

    for (uint32_t i = 0; i < count; i++) {
        struct mxclient_inbound *inbound;

        snprintf(id, sizeof id, "s%08u\nkey", i);
        inbound =
            mxclient_index_add_pair(&client->inbounds, SPAN("!a:x"), span_of(id), sizeof *inbound);
        CHECK(inbound != NULL);
        inbound->received = ++client->inbound_clock;
        if (i >= unused)
            inbound->used = client->inbound_clock;
    }
}

static bool has_inbound(const struct mxclient *client, uint32_t number)
{
    char id[40];

    snprintf(id, sizeof id, "s%08u\nkey", number);
    return mxclient_index_find_pair(&client->inbounds, SPAN("!a:x"), span_of(id)) != NULL;
}

TEST(megolm, over_the_limit_an_idle_session_goes_before_one_in_use)
{
    struct olm_stage stage;

    olm_stage_init(&stage, true);
    fill_inbounds(&stage.bob, MXCLIENT_INBOUND_MAX, 0);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    CHECK_EQ_U64(stage.bob.inbounds.count, MXCLIENT_INBOUND_MAX);
    CHECK(!has_inbound(&stage.bob, 0)); /* it decrypted longest ago */
    CHECK(has_inbound(&stage.bob, 1));
    CHECK_EQ_U64(stage.bob.dropped_sessions, 1);
    CHECK_EQ_INT(decrypt(&stage, "{\"room_id\":\"!r:x\",\"type\":\"m.x\",\"content\":{}}"), 0);
    olm_stage_fini(&stage);

    olm_stage_init(&stage, true);
    fill_inbounds(&stage.bob, MXCLIENT_INBOUND_MAX, 0);
    ((struct mxclient_inbound *)stage.bob.inbounds.entries[7])->used = 0;
    ((struct mxclient_inbound *)stage.bob.inbounds.entries[9])->used = 0;
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    CHECK(has_inbound(&stage.bob, 0) && !has_inbound(&stage.bob, 7));
    CHECK(has_inbound(&stage.bob, 9)); /* it came later */
    olm_stage_fini(&stage);
}

/* A use is noted once in a while: a busy session costs no step for each event. */
TEST(megolm, a_session_that_decrypts_counts_as_used)
{
    struct mxclient_cleartext text = { 0 };
    struct olm_stage stage;
    int64_t used;

    olm_stage_init(&stage, true);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    text.session = (struct mxclient_inbound *)stage.bob.inbounds.entries[0];
    CHECK_EQ_INT(text.session->used, 0);
    mxclient_megolm_guard(&stage.bob, &text, SPAN("$1"), stage.unit);
    used = text.session->used;
    CHECK(used > 0);
    mxclient_megolm_guard(&stage.bob, &text, SPAN("$2"), stage.unit);
    CHECK_EQ_INT(text.session->used, used);
    stage.bob.inbound_clock += MXCLIENT_INBOUND_PAUSE;
    mxclient_megolm_guard(&stage.bob, &text, SPAN("$3"), stage.unit);
    CHECK(text.session->used > used);
    olm_stage_fini(&stage);
}

/* Add peers without a session. */
static void fill_peers(struct olm_stage *stage, uint32_t count)
{
    char id[MX_KEY_CHARS + 1];

    for (uint32_t i = 0; i < count; i++) {
        snprintf(id, sizeof id, "%043u", i);
        CHECK(mxclient_index_add(&stage->bob.peers, span_of(id), sizeof(struct mxclient_peer)) !=
              NULL);
    }
}

TEST(olm, strangers_over_the_limit_push_each_other_out_and_no_known_device)
{
    for (int is_known = 0; is_known < 2; is_known++) {
        struct olm_stage stage;

        olm_stage_init(&stage, is_known == 1);
        fill_peers(&stage, MXCLIENT_STRANGERS_MAX);
        CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
        /* Ada's device, if it is in a list, takes no stranger's place. */
        CHECK_EQ_U64(stage.bob.peers.count, MXCLIENT_STRANGERS_MAX + (is_known == 1 ? 1 : 0));
        CHECK_EQ_U64(stage.bob.dropped_sessions, is_known == 1 ? 0 : 1);
        CHECK_EQ_INT(deliver(&stage, &(struct claim){ .device_keys = "" }), 0);
        CHECK_EQ_U64(stage.bob.undecrypted, 0); /* its own session stayed */
        olm_stage_fini(&stage);
    }
}

/* Give ada, or who stands for her, a new session with bob. */
static void start_session(struct olm_stage *stage)
{
    struct mx_account *bob = stage->bob.session.account;
    struct mx_one_time_key one_time;
    size_t count = 0;

    CHECK_EQ_INT(mx_account_add_one_time_keys(bob, 1, mx_stage_random()), 0);
    while (mx_account_one_time_key_at(bob, count, &one_time))
        count++;
    CHECK(count > 0 && mx_account_one_time_key_at(bob, count - 1, &one_time));
    mx_olm_destroy(stage->to_bob);
    stage->to_bob = NULL;
    CHECK_EQ_INT(mx_olm_create_outbound(stage->ada.account, mx_account_identity_key(bob),
                     &one_time.key, mx_stage_random(), &stage->to_bob),
        0);
}

TEST(olm, a_known_device_goes_after_all_strangers)
{
    struct claim from_eve = { .sender = "@eve:z", .inner_sender = "@eve:z", .device_keys = "" };
    struct mxclient_peer *ada;
    struct olm_stage stage;
    char id[MX_KEY_CHARS + 1];

    olm_stage_init(&stage, true);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    mx_key_text(mx_account_identity_key(stage.ada.account), id);
    ada = mxclient_index_find(&stage.bob.peers, span_of(id));
    CHECK(ada != NULL && ada->is_known);
    ada->is_known = false; /* as after a load */
    stage.bob.peers_marked = 0;
    ada->sessions[0].received_ms = -1; /* before all others */
    fill_peers(&stage, MXCLIENT_STRANGERS_MAX);
    mxclient_session_fini(&stage.ada);
    mx_client_discover(&stage.ada);
    CHECK_EQ_INT(mx_client_login(&stage.ada, "@eve:z", "", 0), 0);
    start_session(&stage);
    CHECK_EQ_INT(deliver(&stage, &from_eve), 0);
    CHECK_EQ_U64(stage.bob.dropped_sessions, 1);
    CHECK(mxclient_index_find(&stage.bob.peers, span_of(id)) == ada);
    olm_stage_fini(&stage);
}

TEST(olm, a_session_that_was_replaced_leaves_the_store_too)
{
    struct olm_stage stage;
    struct place place;
    struct sql_unit *unit;
    char id[MX_KEY_CHARS + 1];

    place_init_in_memory(&place);
    place_system(&place);
    CHECK_EQ_INT(place_try_open(&place, &(struct sql_options){ .url = place.url,
                                            .migrations = mxstore_migrations,
                                            .migration_count = MXSTORE_MIGRATIONS }),
        0);
    olm_stage_init(&stage, true);
    for (int i = 0; i < MXCLIENT_OLM_PER_DEVICE + 3; i++) {
        start_session(&stage);
        CHECK_EQ_INT(deliver(&stage, &(struct claim){ .type = "m.dummy", .content = "{}" }), 0);
    }
    CHECK_EQ_INT(sql_write_wait(place.sql, stage.unit), 0);
    unit = sql_unit_create(0);
    mx_key_text(mx_account_identity_key(stage.ada.account), id);
    mxstore_get(unit, MXSTORE_IS_olm, span_of(id));
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), MXCLIENT_OLM_PER_DEVICE);
    sql_unit_destroy(unit);
    olm_stage_fini(&stage);
    place_finish(&place);
}

/* Encrypt a plaintext for the room and let bob decrypt it. */
static int decrypt(struct olm_stage *stage, const char *plaintext)
{
    struct mxclient_room *room = mxclient_rooms_add(&stage->bob.rooms, SPAN("!r:x"));
    struct mxclient_cleartext text = { 0 };
    struct buffer body = { 0 }, event = { 0 };
    struct json_doc doc = { 0 }, inner = { 0 };
    struct mxclient_event read;
    int rc;

    CHECK_EQ_INT(mx_outbound_encrypt(stage->outbound, span_of(plaintext), &body), 0);
    (void)buffer_format(&event,
        "{\"event_id\":\"$1\",\"type\":\"m.room.encrypted\",\"sender\":\"@ada:x\",\"content\":{"
        "\"algorithm\":\"m.megolm.v1.aes-sha2\",\"session_id\":\"%s\",\"ciphertext\":\"%.*s\"}}",
        stage->session_id, (int)body.size, body.bytes);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&event), 0), 0);
    CHECK(mxclient_event_read(json_root(&doc), &read));
    rc = mxclient_megolm_decrypt(&stage->bob, room, &read, &inner, &text);
    mx_wipe_buffer(&text.text);
    json_doc_free(&doc);
    json_doc_free(&inner);
    buffer_free(&body);
    buffer_free(&event);
    return rc;
}

TEST(megolm, a_plaintext_names_its_room_type_and_content)
{
    static const char *const wrong[] = { "", "{}", "7", "{\"room_id\":\"!r:x\",",
        "{\"room_id\":\"!other:x\",\"type\":\"m.x\",\"content\":{}}",
        "{\"type\":\"m.x\",\"content\":{}}", "{\"room_id\":\"!r:x\",\"content\":{}}",
        "{\"room_id\":\"!r:x\",\"type\":\"m.x\"}",
        "{\"room_id\":\"!r:x\",\"type\":\"m.x\",\"content\":[]}",
        "{\"room_id\":\"!r:x\",\"type\":\"m.x\",\"type\":\"m.y\",\"content\":{}}",
        "{\"room_id\":\"!r:x\",\"type\":\"\xff\",\"content\":{}}" };
    struct olm_stage stage;

    olm_stage_init(&stage, true);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_EQ_INT(decrypt(&stage, wrong[i]), MX_EFORMAT);
    CHECK_EQ_INT(decrypt(&stage, "{\"room_id\":\"!r:x\",\"type\":\"m.x\",\"content\":{}}"), 0);
    olm_stage_fini(&stage);
}

/* ---- hostile events and no memory ------------------------------------------------------------- */

TEST(olm, hostile_events_are_skipped)
{
    static const char *const events[] = { "null", "7", "{}", "{\"type\":7}",
        "{\"type\":\"m.room.encrypted\"}",
        "{\"type\":\"m.room.encrypted\",\"sender\":\"@a:x\",\"content\":{\"algorithm\":"
        "\"m.olm.v1.curve25519-aes-sha2\",\"sender_key\":\"AA\",\"ciphertext\":[]}}",
        "{\"type\":\"m.room_key\",\"sender\":\"@a:x\",\"content\":{\"algorithm\":"
        "\"m.megolm.v1.aes-sha2\"}}" };
    struct olm_stage stage;

    olm_stage_init(&stage, true);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        struct json_doc doc = { 0 };

        CHECK_EQ_INT(json_parse_copy(&doc, span_of(events[i]), 0), 0);
        CHECK_EQ_INT(mxclient_to_device_take(&stage.bob, json_root(&doc), 1000, stage.unit), 0);
        CHECK_EQ_U64(stage.bob.skipped, i + 1);
        json_doc_free(&doc);
    }
    olm_stage_fini(&stage);
}

TEST(olm, another_sender_key_than_the_sessions_does_not_decrypt)
{
    struct olm_stage stage;

    olm_stage_init(&stage, true);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ .sender_key = OTHER_KEY }), 0);
    CHECK_EQ_U64(stage.bob.undecrypted, 1);
    CHECK_EQ_U64(stage.bob.inbounds.count, 0);
    CHECK(!stage.bob.is_account_changed);
    CHECK_EQ_INT(deliver(&stage, &(struct claim){ 0 }), 0);
    CHECK_EQ_U64(stage.bob.inbounds.count, 1);
    olm_stage_fini(&stage);
}

TEST(olm, without_memory_a_message_is_taken_or_the_call_fails)
{
    for (fault_at = 1; fault_at == 1 || fault_count >= fault_at - 1; fault_at++) {
        struct olm_stage stage;
        int rc;

        olm_stage_init(&stage, true);
        rc = deliver(&stage, &(struct claim){ 0 });
        CHECK_MSG(rc == 0 || rc == TR_ENOMEM, "fault %llu: %d", (unsigned long long)fault_at, rc);
        olm_stage_fini(&stage);
        CHECK(fault_at < 10000);
    }
}

TEST(olm, without_memory_an_answer_is_taken_or_the_call_fails)
{
    bool is_done = false;

    for (uint64_t n = 1; !is_done; n++) {
        struct olm_stage stage;
        struct json_doc doc = { 0 };
        struct buffer event = { 0 };
        struct mxclient_sync_news news;
        struct sql_unit *unit;
        int rc;

        olm_stage_init(&stage, true);
        (void)buffer_text(&event,
            "{\"next_batch\":\"s1\",\"device_lists\":{\"changed\":[\"@ada:x\"]},"
            "\"rooms\":{\"join\":{\"!r:x\":{\"state\":{\"events\":[{\"type\":\"m.room.member\","
            "\"state_key\":\"@ada:x\",\"sender\":\"@ada:x\",\"content\":{\"membership\":\"join\"}}]"
            "},"
            "\"timeline\":{\"events\":[{\"event_id\":\"$1\",\"type\":\"m.x\",\"sender\":\"@ada:x\","
            "\"content\":{}}]}}}}}");
        CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&event), 0), 0);
        unit = sql_unit_create(0);
        base_fault_countdown(n, 1);
        rc = mxclient_sync_take(&stage.bob, json_root(&doc), 1, 5000, unit, &news);
        is_done = base_fault_countdown(0, 0) < n;
        CHECK_MSG(rc == 0 || rc == TR_ENOMEM, "fault %llu: %d", (unsigned long long)n, rc);
        sql_unit_destroy(unit);
        json_doc_free(&doc);
        buffer_free(&event);
        olm_stage_fini(&stage);
        CHECK(n < 10000);
    }
}
