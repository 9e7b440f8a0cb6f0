/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers and MACs of `vector` were computed by a second program, from the keys of RFC 7748
 * section 6.1. */
#include <stdlib.h>

#include "matrix/crypto/mx_private.h"
#include "mx_stage.h"
#include "shared.h"

static void fill_from(void *data, void *bytes, size_t size)
{
    mx_stage_hex(data, bytes, size);
}

static struct mx_sas *sas_of(const char *secret)
{
    struct mx_random random = { .fill = fill_from };
    char hex[65];
    struct mx_sas *sas = NULL;

    memcpy(hex, secret, sizeof hex);
    random.data = hex;
    CHECK_EQ_INT(mx_sas_create(&random, &sas), 0);
    return sas;
}

struct vector {
    struct mx_sas *alice;
    struct mx_sas *bob;
    struct mx_sas_flow of_alice;
    struct mx_sas_flow of_bob;
};

static void vector_init(struct vector *vector)
{
    const struct mx_sas_party alice = { SPAN("@alice:x"), SPAN("ADEV") };
    const struct mx_sas_party bob = { SPAN("@bob:x"), SPAN("BDEV") };

    vector->alice = sas_of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    vector->bob = sas_of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
    vector->of_alice = (struct mx_sas_flow){
        .us = alice, .them = bob, .transaction = SPAN("txn"), .we_started = true
    };
    vector->of_bob = (struct mx_sas_flow){ .us = bob, .them = alice, .transaction = SPAN("txn") };
    CHECK_EQ_INT(mx_sas_set_their_key(vector->alice, mx_sas_key(vector->bob)), 0);
    CHECK_EQ_INT(mx_sas_set_their_key(vector->bob, mx_sas_key(vector->alice)), 0);
}

static void vector_fini(struct vector *vector)
{
    mx_sas_destroy(vector->alice);
    mx_sas_destroy(vector->bob);
}

/* "SAS generate bytes" of libolm's test_sas: the same keys. Its strings have other infos. */
TEST(sas, keys_and_strings_of_libolms_test_sas)
{
    char alice[MX_KEY_CHARS + 1], bob[MX_KEY_CHARS + 1];
    struct mx_sas_code of_alice = { 0 }, of_bob = { 0 };
    struct vector vector;

    vector_init(&vector);
    mx_key_text(mx_sas_key(vector.alice), alice);
    mx_key_text(mx_sas_key(vector.bob), bob);
    CHECK_EQ_STR(alice, "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo");
    CHECK_EQ_STR(bob, "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08");
    CHECK_EQ_INT(mx_sas_show(vector.alice, &vector.of_alice, &of_alice), 0);
    CHECK_EQ_INT(mx_sas_show(vector.bob, &vector.of_bob, &of_bob), 0);
    CHECK(memcmp(&of_alice, &of_bob, sizeof of_bob) == 0);
    vector_fini(&vector);
}

/* "SAS calculate MAC" of libolm's test_sas. */
TEST(sas, macs_of_libolms_test_sas)
{
    struct mx_sas_input input = { .key_id = SPAN("MAC"), .text = SPAN("Hello world!") };
    char of_alice[MX_SAS_MAC_CHARS + 1], of_bob[MX_SAS_MAC_CHARS + 1];
    struct vector vector;

    vector_init(&vector);
    for (int i = 0; i < 2; i++) {
        input.method = i == 0 ? MX_SAS_LEGACY : MX_SAS_V2;
        input.is_theirs = false;
        CHECK_EQ_INT(mx_sas_mac(vector.alice, &vector.of_alice, &input, of_alice), 0);
        input.is_theirs = true;
        CHECK_EQ_INT(mx_sas_mac(vector.bob, &vector.of_bob, &input, of_bob), 0);
        CHECK_EQ_STR(of_alice, of_bob);
        CHECK_EQ_INT(mx_sas_check_mac(vector.bob, &vector.of_bob, &input, span_of(of_alice)), 0);
        of_alice[0] ^= 1;
        CHECK_EQ_INT(
            mx_sas_check_mac(vector.bob, &vector.of_bob, &input, span_of(of_alice)), MX_EMAC);
    }
    vector_fini(&vector);
}

/* The bounds of vodozemac's emoji_generation and decimal_generation, and each bit between them. */
TEST(sas, strings_at_their_bounds)
{
    uint8_t bytes[MX__SAS_BYTES];
    struct mx_sas_code code;

    for (int all = 0; all <= 0xff; all += 0xff) {
        memset(bytes, all, sizeof bytes);
        mx__sas_code(bytes, &code);
        for (int i = 0; i < 3; i++)
            CHECK_EQ_INT(code.decimals[i], all == 0 ? 1000 : 9191);
        for (int i = 0; i < 7; i++)
            CHECK_EQ_INT(code.emoji[i], all == 0 ? 0 : 63);
    }
    for (int bit = 0; bit < 48; bit++) {
        memset(bytes, 0, sizeof bytes);
        bytes[bit / 8] = (uint8_t)(0x80 >> bit % 8);
        mx__sas_code(bytes, &code);
        for (int i = 0; i < 3; i++)
            CHECK_EQ_INT(code.decimals[i] - 1000, bit / 13 == i ? 0x1000 >> bit % 13 : 0);
        for (int i = 0; i < 7; i++)
            CHECK_EQ_INT(code.emoji[i], bit / 6 == i ? 0x20 >> bit % 6 : 0);
    }
}

TEST(sas, both_sides_show_the_same)
{
    static const uint8_t emoji[] = { 6, 39, 29, 15, 9, 12, 11 };
    struct mx_sas_code alice, bob;
    struct vector vector;

    vector_init(&vector);
    CHECK_EQ_INT(mx_sas_show(vector.alice, &vector.of_alice, &alice), 0);
    CHECK_EQ_INT(mx_sas_show(vector.bob, &vector.of_bob, &bob), 0);
    CHECK(memcmp(alice.emoji, emoji, sizeof emoji) == 0);
    CHECK(memcmp(bob.emoji, emoji, sizeof emoji) == 0);
    CHECK_EQ_INT(alice.decimals[0], 1846);
    CHECK_EQ_INT(alice.decimals[1], 8484);
    CHECK_EQ_INT(alice.decimals[2], 5705);
    CHECK(memcmp(alice.decimals, bob.decimals, sizeof bob.decimals) == 0);
    vector.of_bob.transaction = SPAN("other");
    CHECK_EQ_INT(mx_sas_show(vector.bob, &vector.of_bob, &bob), 0);
    CHECK(memcmp(alice.decimals, bob.decimals, sizeof bob.decimals) != 0);
    vector_fini(&vector);
}

TEST(sas, macs_of_both_methods)
{
    struct mx_sas_input input = { .key_id = SPAN("ed25519:ADEV"), .text = SPAN("key+text") };
    char mac[MX_SAS_MAC_CHARS + 1];
    struct vector vector;

    vector_init(&vector);
    CHECK_EQ_INT(mx_sas_mac(vector.alice, &vector.of_alice, &input, mac), 0);
    CHECK_EQ_STR(mac, "6iV0mvKn1YHEgfCw3Y/9oYW0gLKoprz1Bi6HKp47Jkw");
    input.is_theirs = true;
    CHECK_EQ_INT(mx_sas_check_mac(vector.bob, &vector.of_bob, &input, span_of(mac)), 0);
    CHECK_EQ_INT(mx_sas_check_mac(vector.bob, &vector.of_bob, &input,
                     SPAN("6iV0mvKn1YHEgfCw3Y/9oYW0gLKoprz1Bi6HKp47Jkw=")),
        0);
    input.method = MX_SAS_LEGACY;
    CHECK_EQ_INT(mx_sas_check_mac(vector.bob, &vector.of_bob, &input, span_of(mac)), MX_EMAC);
    CHECK_EQ_INT(mx_sas_check_mac(vector.bob, &vector.of_bob, &input,
                     SPAN("6iV0MPKnS27EMjdFTWpkRlRXcGtSbFJYY0d0U2JGSlk")),
        0);
    input = (struct mx_sas_input){
        .is_theirs = true, .key_id = SPAN("KEY_IDS"), .text = SPAN("ed25519:BDEV")
    };
    CHECK_EQ_INT(mx_sas_check_mac(vector.alice, &vector.of_alice, &input,
                     SPAN("Xsma07ScAbZE4imaGRNnecL4e5OZzm/4UfujDPpn1zk")),
        0);
    CHECK_EQ_INT(mx_sas_check_mac(vector.alice, &vector.of_alice, &input, SPAN("")), MX_EMAC);
    CHECK_EQ_INT(mx_sas_check_mac(vector.alice, &vector.of_alice, &input,
                     SPAN("Xsma07ScAbZE4imaGRNnecL4e5OZzm/4UfujDPpn1zK")),
        MX_EMAC);
    vector_fini(&vector);
}

TEST(sas, methods_have_three_names)
{
    enum mx_sas_method method;

    CHECK(mx_sas_method_parse(SPAN("hkdf-hmac-sha256"), &method) && method == MX_SAS_LEGACY);
    CHECK(mx_sas_method_parse(SPAN("hkdf-hmac-sha256.v2"), &method) && method == MX_SAS_V2);
    CHECK(mx_sas_method_parse(SPAN("org.matrix.msc3783.hkdf-hmac-sha256"), &method) &&
          method == MX_SAS_V2);
    CHECK(!mx_sas_method_parse(SPAN("hmac-sha256"), &method));
}

TEST(sas, weak_and_reflected_keys_are_refused)
{
    struct mx_sas *sas = NULL;
    struct mx_key zero = { { 0 } }, own;

    CHECK_EQ_INT(mx_sas_create(mx_stage_random(), &sas), 0);
    own = *mx_sas_key(sas);
    CHECK_EQ_INT(mx_sas_set_their_key(sas, &zero), MX_EKEY);
    CHECK_EQ_INT(mx_sas_set_their_key(sas, &own), MX_EKEY);
    mx_sas_destroy(sas);
}

TEST(sas, events_in_the_wrong_order_are_refused)
{
    struct mx_sas_input input = { .key_id = SPAN("KEY_IDS"), .text = SPAN("x") };
    char mac[MX_SAS_MAC_CHARS + 1];
    struct mx_sas_code code;
    struct mx_sas *early = NULL;
    struct vector vector;

    vector_init(&vector);
    CHECK_EQ_INT(mx_sas_create(mx_stage_random(), &early), 0);
    CHECK_EQ_INT(mx_sas_show(early, &vector.of_alice, &code), MX_EKEY);
    CHECK_EQ_INT(mx_sas_mac(early, &vector.of_alice, &input, mac), MX_EKEY);
    CHECK_EQ_INT(mx_sas_set_their_key(vector.alice, mx_sas_key(early)), MX_EKEY);
    mx_sas_destroy(early);
    vector_fini(&vector);
}

TEST(sas, names_over_the_limit_are_refused)
{
    struct mx_sas_code code;
    struct vector vector;
    char *name = calloc(1, 2048);

    CHECK(name != NULL);
    vector_init(&vector);
    vector.of_alice.transaction = (struct span){ name, 2048 };
    CHECK_EQ_INT(mx_sas_show(vector.alice, &vector.of_alice, &code), MX_ETOOBIG);
    vector_fini(&vector);
    free(name);
}

/* ---- the vectors of others ------------------------------------------------------------------- */

/* The content that a client sent to one device: {"messages":{USER:{DEVICE:content}}}. */
static const struct json *sent_content(struct json_doc *doc, const char *wire, const char *event)
{
    const char *line = strstr(wire, event);
    const struct json *value;

    CHECK(line != NULL);
    line = strchr(line, '{');
    CHECK_EQ_INT(
        json_parse_copy(doc, (struct span){ line, strcspn(line, "\n") }, JSON_UNIQUE_KEYS), 0);
    value = json_get(json_root(doc), "messages");
    for (int level = 0; level < 2; level++) {
        struct json_iter it = json_iterate(value);

        CHECK(json_next(&it));
        value = it.value;
    }
    return value;
}

TEST(sas, the_commitment_of_real_clients)
{
    struct json_doc start = { 0 }, accept = { 0 }, key = { 0 };
    char ours[MX_SAS_COMMITMENT_CHARS + 1];
    struct span theirs, text;
    struct mx_key accepter;
    size_t size;
    char *wire = shared_read("vectors/matrix/sas-and-megolm-wire.txt", &size);
    const struct json *content =
        sent_content(&start, wire, "DEVA PUT /sendToDevice/m.key.verification.start");

    CHECK(json_string(
        json_get(sent_content(&accept, wire, "m.key.verification.accept"), "commitment"), &theirs));
    CHECK(json_string(
        json_get(sent_content(&key, wire, "DEVB PUT /sendToDevice/m.key.verification.key"), "key"),
        &text));
    CHECK_EQ_INT(mx_key_parse(text, &accepter), 0);
    CHECK_EQ_INT(mx_sas_commitment(&accepter, content, ours), 0);
    CHECK(span_is(theirs, ours));
    accepter.bytes[0] ^= 1;
    CHECK_EQ_INT(mx_sas_commitment(&accepter, content, ours), 0);
    CHECK(!span_is(theirs, ours));
    json_doc_free(&start);
    json_doc_free(&accept);
    json_doc_free(&key);
    free(wire);
}

TEST(sas, the_emoji_of_the_specification)
{
    struct json_doc doc = { 0 };
    size_t size, index = 0;
    char *text = shared_read("vectors/matrix/sas-emoji.json", &size);
    struct span emoji, name;

    CHECK_EQ_INT(json_parse(&doc, text, size, 0), 0);
    for (struct json_iter it = json_iterate(json_root(&doc)); json_next(&it); index++) {
        CHECK(index < MX_SAS_EMOJIS);
        CHECK(json_string(json_get(it.value, "emoji"), &emoji));
        CHECK(json_string(json_get(it.value, "name"), &name));
        CHECK(span_is(emoji, mx_sas_emojis[index].emoji));
        CHECK(span_is(name, mx_sas_emojis[index].name));
    }
    CHECK_EQ_U64(index, MX_SAS_EMOJIS);
    json_doc_free(&doc);
    free(text);
}
