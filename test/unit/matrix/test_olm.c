/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "mx_stage.h"

/* libolm has one reason for a message whose key it does not have. */
static int olm_reason(int reason)
{
    return mx_backend == MX_BACKEND_LIBOLM ? MX_EMAC : reason;
}

TEST(olm, messages_go_both_ways)
{
    struct mx_stage stage;
    struct buffer body = { 0 };
    char alice[MX_OLM_ID_CHARS + 1], bob[MX_OLM_ID_CHARS + 1], text[32];
    enum mx_olm_type type;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    mx_olm_id(stage.to_bob, alice);
    mx_olm_id(stage.to_alice, bob);
    CHECK_EQ_STR(alice, bob);
    CHECK(mx_olm_has_received(stage.to_alice) && !mx_olm_has_received(stage.to_bob));
    CHECK(
        mx_key_equal(mx_olm_their_identity(stage.to_alice), mx_account_identity_key(stage.alice)));
    for (int i = 0; i < 60; i++) {
        bool from_bob = i % 3 != 1;

        (void)snprintf(text, sizeof text, "message %d", i);
        type = mx_stage_send(from_bob ? stage.to_alice : stage.to_bob, text, &body);
        CHECK_EQ_INT(type, MX_OLM_NORMAL);
        mx_stage_receive(from_bob ? stage.to_bob : stage.to_alice, type, &body, text);
    }
    buffer_free(&body);
    mx_stage_fini(&stage);
}

/* ---- the three cases of libolm's test_ratchet, on whole sessions ------------------------------ */

TEST(olm, send_and_receive_of_libolms_test_ratchet)
{
    struct mx_stage stage;
    struct buffer body = { 0 };
    enum mx_olm_type type;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    type = mx_stage_send(stage.to_bob, "Message", &body);
    mx_stage_receive(stage.to_alice, type, &body, "Message");
    type = mx_stage_send(stage.to_alice, "Message", &body);
    mx_stage_receive(stage.to_bob, type, &body, "Message");
    buffer_free(&body);
    mx_stage_fini(&stage);
}

TEST(olm, out_of_order_of_libolms_test_ratchet)
{
    static const char first_text[] = "First Message";
    static const char second_text[] = "Second Messsage. A bit longer than the first.";
    struct buffer first = { 0 }, second = { 0 }, plaintext = { 0 };
    enum mx_olm_type first_type, second_type;
    struct mx_stage stage;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    first_type = mx_stage_send(stage.to_bob, first_text, &first);
    second_type = mx_stage_send(stage.to_bob, second_text, &second);
    mx_stage_receive(stage.to_alice, second_type, &second, second_text);
    mx_stage_receive(stage.to_alice, first_type, &first, first_text);
    CHECK_EQ_INT(mx_olm_decrypt(stage.to_alice, first_type, mx_stage_span(&first), &plaintext),
        olm_reason(MX_EINDEX));
    CHECK_EQ_U64(plaintext.size, 0);
    buffer_free(&plaintext);
    buffer_free(&first);
    buffer_free(&second);
    mx_stage_fini(&stage);
}

TEST(olm, more_messages_of_libolms_test_ratchet)
{
    struct mx_stage stage;
    struct buffer body = { 0 };
    enum mx_olm_type type;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    for (unsigned i = 0; i < 8; i++) { /* each turn is a new chain */
        type = mx_stage_send(stage.to_bob, "These 15 bytes", &body);
        mx_stage_receive(stage.to_alice, type, &body, "These 15 bytes");
        type = mx_stage_send(stage.to_alice, "These 15 bytes", &body);
        mx_stage_receive(stage.to_bob, type, &body, "These 15 bytes");
    }
    buffer_free(&body);
    mx_stage_fini(&stage);
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* libolm wrote these texts from the random bytes 0, 1, 2 and so on. */
TEST(olm, a_session_from_fixed_bytes_is_that_of_libolm)
{
    struct mx_random random = MX_STAGE_COUNTING;
    struct mx_account *alice = NULL, *bob = NULL;
    struct buffer body = { 0 };
    char text[MX_OLM_ID_CHARS + 1];
    struct mx_one_time_key key;
    struct mx_olm *olm = NULL;
    enum mx_olm_type type;

    CHECK_EQ_INT(mx_account_create(&random, &alice), 0);
    CHECK_EQ_INT(mx_account_create(&random, &bob), 0);
    CHECK_EQ_INT(mx_account_add_one_time_keys(bob, 1, &random), 0);
    CHECK(mx_account_one_time_key_at(bob, 0, &key));
    mx_key_text(&key.key, text);
    CHECK_EQ_STR(text, "ST6C/HRGSlkmiBdiPSBTxeuOLMSpiLT+4XnsawENUx0");
    CHECK_EQ_INT(
        mx_olm_create_outbound(alice, mx_account_identity_key(bob), &key.key, &random, &olm), 0);
    CHECK_EQ_INT(mx_olm_encrypt(olm, SPAN("hello"), &random, &type, &body), 0);
    CHECK_EQ_INT(type, MX_OLM_PRE_KEY);
    mx_stage_check_text(&body,
        "AwogST6C/HRGSlkmiBdiPSBTxeuOLMSpiLT+4XnsawENUx0SIGBacl0qSt/usaKeF+3WIcG3WT7ozbxErGxKtuL4"
        "BdI8GiA1gHLWNliA0a7qMprfkSE4OFHtIaKOO3XpZdDSzRZiVCI/Awog3CzKMejkO72R3/fkdcyjNH60eBB9W9dl"
        "q6SuSjDDXUQQACIQd49ShKK8+u4VBeikuPZwuD26oFwrkaWM");
    mx_olm_id(olm, text);
    CHECK_EQ_STR(text, "5YJ2sIpPkHgSxneh4xbU5XxwG7ZNd6y4ZQasWHyiAoc");
    buffer_free(&body);
    mx_olm_destroy(olm);
    mx_account_destroy(alice);
    mx_account_destroy(bob);
}

TEST(olm, a_repeated_pre_key_message_finds_its_session)
{
    struct mx_stage stage;
    struct buffer second = { 0 }, plaintext = { 0 };
    struct mx_olm *other = NULL;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    CHECK_EQ_INT(mx_stage_send(stage.to_bob, "again", &second), MX_OLM_PRE_KEY);
    CHECK(mx_olm_matches(stage.to_alice, mx_stage_span(&second)));
    CHECK(!mx_olm_matches(stage.to_alice, SPAN("AwgA")));
    CHECK_EQ_INT(mx_olm_create_inbound(stage.bob, mx_account_identity_key(stage.alice),
                     mx_stage_span(&second), &other, &plaintext),
        MX_EONETIME);
    mx_stage_receive(stage.to_alice, MX_OLM_PRE_KEY, &second, "again");
    CHECK_EQ_INT(mx_olm_decrypt(stage.to_alice, MX_OLM_PRE_KEY, mx_stage_span(&second), &plaintext),
        olm_reason(MX_EINDEX));
    CHECK_EQ_U64(plaintext.size, 0);
    buffer_free(&plaintext);
    buffer_free(&second);
    mx_stage_fini(&stage);
}

/* A fallback key serves several sessions of one device: only their base keys differ. */
TEST(olm, sessions_of_one_fallback_key_are_told_apart)
{
    struct buffer first = { 0 }, second = { 0 }, plaintext = { 0 };
    struct mx_olm *to_bob[2] = { NULL, NULL }, *to_alice = NULL;
    struct mx_one_time_key fallback;
    struct mx_stage stage;

    mx_stage_init(&stage);
    mx_account_rotate_fallback(stage.bob, mx_stage_random());
    CHECK(mx_account_fallback_key(stage.bob, &fallback));
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(mx_olm_create_outbound(stage.alice, mx_account_identity_key(stage.bob),
                         &fallback.key, mx_stage_random(), &to_bob[i]),
            0);
    mx_stage_send(to_bob[0], "first", &first);
    mx_stage_send(to_bob[1], "second", &second);
    CHECK_EQ_INT(mx_olm_create_inbound(stage.bob, mx_account_identity_key(stage.alice),
                     mx_stage_span(&first), &to_alice, &plaintext),
        0);
    CHECK(mx_olm_matches(to_alice, mx_stage_span(&first)));
    CHECK(!mx_olm_matches(to_alice, mx_stage_span(&second)));
    CHECK_EQ_INT(
        mx_olm_decrypt(to_alice, MX_OLM_PRE_KEY, mx_stage_span(&second), &plaintext), MX_ESESSION);
    mx_olm_destroy(to_bob[0]);
    mx_olm_destroy(to_bob[1]);
    mx_olm_destroy(to_alice);
    buffer_free(&first);
    buffer_free(&second);
    mx_wipe_buffer(&plaintext);
    mx_stage_fini(&stage);
}

TEST(olm, a_pre_key_message_of_another_device_is_refused)
{
    struct mx_stage stage, other;
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_olm *olm = NULL;

    mx_stage_init(&stage);
    mx_stage_init(&other);
    mx_stage_meet(&other);
    mx_stage_send(stage.to_bob, "hello", &body);
    CHECK_EQ_INT(mx_olm_create_inbound(stage.bob, mx_account_identity_key(other.alice),
                     mx_stage_span(&body), &olm, &plaintext),
        MX_ESESSION);
    CHECK_EQ_INT(mx_olm_decrypt(other.to_alice, MX_OLM_PRE_KEY, mx_stage_span(&body), &plaintext),
        MX_ESESSION);
    CHECK_EQ_U64(mx_account_one_time_key_count(stage.bob), 3);
    buffer_free(&body);
    mx_stage_fini(&other);
    mx_stage_fini(&stage);
}

/* A message from alice, kept for later. */
static struct buffer message_of(struct mx_stage *stage, const char *text)
{
    struct buffer body = { 0 };

    mx_stage_send(stage->to_bob, text, &body);
    return body;
}

TEST(olm, skipped_keys_have_a_bound)
{
    enum { COUNT = MX_OLM_SKIPPED_MAX + 3 };
    struct buffer bodies[COUNT], plaintext = { 0 };
    struct mx_stage stage;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    for (int i = 0; i < COUNT; i++)
        bodies[i] = message_of(&stage, "text");
    mx_stage_receive(stage.to_alice, MX_OLM_PRE_KEY, &bodies[COUNT - 1], "text");
    for (int i = COUNT - 2; i >= 0; i--) {
        int rc =
            mx_olm_decrypt(stage.to_alice, MX_OLM_PRE_KEY, mx_stage_span(&bodies[i]), &plaintext);

        CHECK_EQ_INT(rc, i < COUNT - 1 - MX_OLM_SKIPPED_MAX ? olm_reason(MX_EINDEX) : 0);
    }
    for (int i = 0; i < COUNT; i++)
        buffer_free(&bodies[i]);
    mx_wipe_buffer(&plaintext);
    mx_stage_fini(&stage);
}

TEST(olm, a_gap_has_a_bound)
{
    struct buffer near = { 0 }, far = { 0 }, plaintext = { 0 };
    struct mx_stage stage;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    for (int i = 0; i <= MX_OLM_GAP_MAX; i++)
        mx_stage_send(stage.to_bob, "", &near);
    mx_stage_send(stage.to_bob, "", &far);
    CHECK_EQ_INT(mx_olm_decrypt(stage.to_alice, MX_OLM_PRE_KEY, mx_stage_span(&far), &plaintext),
        olm_reason(MX_EGAP));
    mx_stage_receive(stage.to_alice, MX_OLM_PRE_KEY, &near, "");
    mx_stage_receive(stage.to_alice, MX_OLM_PRE_KEY, &far, "");
    buffer_free(&near);
    buffer_free(&far);
    buffer_free(&plaintext);
    mx_stage_fini(&stage);
}

/* Change one bit of every byte of a message: none may be accepted, none may change the session. */
TEST(olm, a_changed_bit_is_refused_and_changes_nothing)
{
    struct buffer body = { 0 }, changed = { 0 }, plaintext = { 0 };
    struct mx_stage stage;
    uint8_t bytes[512];
    size_t size;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    mx_stage_send(stage.to_alice, "first", &body);
    mx_stage_receive(stage.to_bob, MX_OLM_NORMAL, &body, "first");
    mx_stage_send(stage.to_bob, "text", &body);
    CHECK_EQ_INT(mx_base64_decode(mx_stage_span(&body), bytes, sizeof bytes, &size), 0);
    for (size_t i = 0; i < size; i++) {
        int rc;

        bytes[i] ^= 1;
        buffer_clear(&changed);
        mx_base64_encode(bytes, size, &changed);
        rc = mx_olm_decrypt(stage.to_alice, MX_OLM_NORMAL, mx_stage_span(&changed), &plaintext);
        CHECK(rc == MX_EMAC || rc == MX_EFORMAT || rc == MX_EVERSION || rc == MX_EGAP);
        CHECK_EQ_U64(plaintext.size, 0);
        bytes[i] ^= 1;
    }
    mx_stage_receive(stage.to_alice, MX_OLM_NORMAL, &body, "text");
    buffer_free(&changed);
    buffer_free(&body);
    mx_wipe_buffer(&plaintext);
    mx_stage_fini(&stage);
}

TEST(olm, a_cut_message_is_refused)
{
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_olm *olm = NULL;
    struct mx_stage stage;

    mx_stage_init(&stage);
    mx_stage_send(stage.to_bob, "text", &body);
    for (size_t size = 0; size < body.size; size++) {
        int rc = mx_olm_create_inbound(stage.bob, mx_account_identity_key(stage.alice),
            (struct span){ body.bytes, size }, &olm, &plaintext);

        CHECK(rc == MX_EMAC || rc == MX_EFORMAT || rc == MX_EBASE64);
    }
    CHECK_EQ_U64(mx_account_one_time_key_count(stage.bob), 3);
    buffer_free(&body);
    mx_wipe_buffer(&plaintext);
    mx_stage_fini(&stage);
}

TEST(olm, keys_of_small_order_are_refused)
{
    /* The points of order 1, 2, 4 and 8 (RFC 7748 section 6.1 asks for the check of zero). */
    static const char *const weak[] = {
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    };
    struct mx_stage stage;
    struct mx_olm *olm = NULL;
    struct mx_key key;

    mx_stage_init(&stage);
    for (size_t i = 0; i < sizeof weak / sizeof weak[0]; i++) {
        mx_stage_hex(weak[i], key.bytes, sizeof key.bytes);
        CHECK_EQ_INT(mx_olm_create_outbound(stage.alice, &key, mx_account_identity_key(stage.bob),
                         mx_stage_random(), &olm),
            MX_EKEY);
        CHECK_EQ_INT(mx_olm_create_outbound(stage.alice, mx_account_identity_key(stage.bob), &key,
                         mx_stage_random(), &olm),
            MX_EKEY);
    }
    mx_stage_fini(&stage);
}

/* Offsets: in a pre-key message, after a version and two keys with tag and size, and in a normal one. */
enum { BASE_AT = 37, IDENTITY_TAG_AT = 69, RATCHET_AT = 3 };

/* Let bob take a pre-key message of alice. */
static int take_bytes(struct mx_stage *stage, const uint8_t *bytes, size_t size)
{
    struct buffer body = { 0 }, plaintext = { 0 };
    int rc;

    mx_base64_encode(bytes, size, &body);
    rc = mx_olm_create_inbound(stage->bob, mx_account_identity_key(stage->alice),
        mx_stage_span(&body), &stage->to_alice, &plaintext);
    CHECK_EQ_U64(plaintext.size, rc == 0 ? strlen("text") : 0);
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
    return rc;
}

TEST(olm, a_message_with_a_key_of_small_order_is_refused)
{
    static const uint8_t zeros[MX_KEY_BYTES];
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_stage stage;
    uint8_t bytes[512];
    size_t size;

    mx_stage_init(&stage);
    mx_stage_send(stage.to_bob, "text", &body);
    CHECK_EQ_INT(mx_base64_decode(mx_stage_span(&body), bytes, sizeof bytes, &size), 0);
    memcpy(bytes + BASE_AT, zeros, sizeof zeros);
    CHECK_EQ_INT(take_bytes(&stage, bytes, size), MX_EKEY);
    CHECK_EQ_U64(mx_account_one_time_key_count(stage.bob), 3);
    mx_stage_meet(&stage);
    mx_stage_send(stage.to_alice, "text", &body);
    CHECK_EQ_INT(mx_base64_decode(mx_stage_span(&body), bytes, sizeof bytes, &size), 0);
    memcpy(bytes + RATCHET_AT, zeros, sizeof zeros);
    buffer_clear(&body);
    mx_base64_encode(bytes, size, &body);
    CHECK_EQ_INT(
        mx_olm_decrypt(stage.to_bob, MX_OLM_NORMAL, mx_stage_span(&body), &plaintext), MX_EKEY);
    CHECK_EQ_U64(plaintext.size, 0);
    buffer_free(&body);
    buffer_free(&plaintext);
    mx_stage_fini(&stage);
}

/* libolm by itself reads through NULL if it does not see the identity key. */
TEST(olm, an_identity_key_is_needed_and_its_tag_may_be_long)
{
    struct buffer body = { 0 };
    struct mx_stage stage;
    uint8_t bytes[512];
    size_t size;

    mx_stage_init(&stage);
    mx_stage_send(stage.to_bob, "text", &body);
    CHECK_EQ_INT(mx_base64_decode(mx_stage_span(&body), bytes, sizeof bytes, &size), 0);
    CHECK_EQ_INT(bytes[IDENTITY_TAG_AT], 0x1a);
    bytes[IDENTITY_TAG_AT] = 0x2a; /* a field that is not known, so it is skipped */
    CHECK_EQ_INT(take_bytes(&stage, bytes, size), MX_EFORMAT);
    memmove(bytes + IDENTITY_TAG_AT + 1, bytes + IDENTITY_TAG_AT, size - IDENTITY_TAG_AT);
    bytes[IDENTITY_TAG_AT] = 0x9a; /* 0x1a in two bytes */
    bytes[IDENTITY_TAG_AT + 1] = 0x00;
    CHECK_EQ_INT(take_bytes(&stage, bytes, size + 1), 0);
    buffer_free(&body);
    mx_stage_fini(&stage);
}

/* The messages of libolm's test_olm_decrypt, which once crashed it. */
TEST(olm, messages_that_crashed_libolm_are_refused)
{
    static const char *const messages[] = { "41776f", "7fff6f0101346d671201",
        "ee776f41496f674177804177778041776f6716670a677d6f670a67c2677d",
        "e9e9c9c1e9e9c9e9c9c1e9e9c9c1" };
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_stage stage;
    uint8_t bytes[64];
    size_t size;

    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        CHECK_EQ_INT(crypto_hex_decode(span_of(messages[i]), bytes, sizeof bytes, &size), 0);
        for (int version = 0; version < 2; version++) {
            bytes[0] = version == 0 ? bytes[0] : 3;
            buffer_clear(&body);
            mx_base64_encode(bytes, size, &body);
            for (int type = 0; type < 2; type++)
                CHECK_EQ_INT(mx_olm_decrypt(stage.to_alice, (enum mx_olm_type)type,
                                 mx_stage_span(&body), &plaintext),
                    version == 1            ? MX_EFORMAT
                    : size < 8 && type == 1 ? MX_EFORMAT
                                            : MX_EVERSION);
        }
    }
    buffer_free(&body);
    mx_stage_fini(&stage);
}

TEST(olm, a_text_over_the_limit_is_refused)
{
    struct buffer body = { 0 }, plaintext = { 0 };
    char *text = calloc(1, MX_MESSAGE_CHARS_MAX + 1);
    enum mx_olm_type type;
    struct mx_stage stage;

    CHECK(text != NULL);
    memset(text, 'A', MX_MESSAGE_CHARS_MAX + 1);
    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    CHECK_EQ_INT(mx_olm_encrypt(stage.to_alice, (struct span){ text, MX_PLAINTEXT_BYTES_MAX + 1 },
                     mx_stage_random(), &type, &body),
        MX_ETOOBIG);
    CHECK_EQ_INT(mx_olm_decrypt(stage.to_alice, MX_OLM_NORMAL,
                     (struct span){ text, MX_MESSAGE_CHARS_MAX + 1 }, &plaintext),
        MX_ETOOBIG);
    CHECK_EQ_INT(mx_olm_encrypt(stage.to_alice, (struct span){ text, MX_PLAINTEXT_BYTES_MAX },
                     mx_stage_random(), &type, &body),
        0);
    CHECK(body.size <= MX_MESSAGE_CHARS_MAX);
    CHECK_EQ_INT(mx_olm_decrypt(stage.to_bob, type, mx_stage_span(&body), &plaintext), 0);
    CHECK_EQ_U64(plaintext.size, MX_PLAINTEXT_BYTES_MAX);
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
    free(text);
    mx_stage_fini(&stage);
}

/* Fail every fallible call in turn: the message then works at the next try. */
TEST(olm, out_of_memory_loses_no_message)
{
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_stage stage;
    enum mx_olm_type type;
    uint64_t faults = 0;
    int rc;

    mx_stage_init(&stage);
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_olm_encrypt(stage.to_bob, SPAN("text"), mx_stage_random(), &type, &body);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        body.failed = 0;
    } while (rc != 0);
    CHECK(faults > (mx_backend == MX_BACKEND_LIBOLM ? 1 : 2)); /* libolm fills our memory */
    faults = 0;
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_olm_create_inbound(stage.bob, mx_account_identity_key(stage.alice),
            mx_stage_span(&body), &stage.to_alice, &plaintext);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        plaintext.failed = 0;
    } while (rc != 0);
    CHECK(faults > 3);
    mx_stage_check_text(&plaintext, "text");
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
    mx_stage_fini(&stage);
}
