/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives against Wycheproof, as this folder uses them. */
#include <stdlib.h>

#include "matrix/crypto/mx_private.h"
#include "mx_stage.h"
#include "shared.h"

enum { BYTES_MAX = 16384 };

/* The bytes of a hex member. */
struct vector_bytes {
    uint8_t at[BYTES_MAX];
    size_t size;
};

static struct span hex_member(
    const struct json *test, const char *key, struct vector_bytes *ret_bytes)
{
    struct span text;

    CHECK(json_string(json_get(test, key), &text));
    CHECK_EQ_INT(crypto_hex_decode(text, ret_bytes->at, BYTES_MAX, &ret_bytes->size), 0);
    return (struct span){ (char *)ret_bytes->at, ret_bytes->size };
}

static bool is_result(const struct json *test, const char *result)
{
    struct span text;

    return json_string(json_get(test, "result"), &text) && span_is(text, result);
}

/* Run a check on every test of a file and return their number. */
static unsigned each_vector(
    const char *name, void (*check)(const struct json *group, const struct json *test))
{
    struct json_doc doc = { 0 };
    unsigned count = 0;
    size_t size;
    char *text = shared_read(name, &size);

    CHECK_EQ_INT(json_parse(&doc, text, size, 0), 0);
    for (struct json_iter g = json_iterate(json_get(json_root(&doc), "testGroups")); json_next(&g);)
        for (struct json_iter t = json_iterate(json_get(g.value, "tests")); json_next(&t); count++)
            check(g.value, t.value);
    json_doc_free(&doc);
    free(text);
    return count;
}

static void check_x25519(const struct json *group, const struct json *test)
{
    static const uint8_t zero[MX_KEY_BYTES];
    struct vector_bytes secret, public_key, shared;
    struct mx__key_pair pair;
    uint8_t ours[MX_KEY_BYTES];
    struct mx_key key;
    int rc;

    (void)group;
    hex_member(test, "private", &secret);
    hex_member(test, "public", &public_key);
    hex_member(test, "shared", &shared);
    CHECK(secret.size == 32 && public_key.size == 32 && shared.size == 32);
    memcpy(pair.secret, secret.at, 32);
    memcpy(key.bytes, public_key.at, 32);
    rc = mx__agree(&pair, &key, ours);
    CHECK_EQ_INT(rc, memcmp(shared.at, zero, 32) == 0 ? MX_EKEY : 0);
    CHECK(rc != 0 || memcmp(ours, shared.at, 32) == 0);
}

TEST(primitive, x25519_of_wycheproof)
{
    CHECK_EQ_U64(each_vector("vectors/wycheproof/x25519_test.json", check_x25519), 518);
}

static void check_ed25519(const struct json *group, const struct json *test)
{
    struct vector_bytes public_key, message, signature;
    struct mx_key key;
    struct span bytes;
    int rc = MX_ESIGNATURE;

    hex_member(json_get(group, "publicKey"), "pk", &public_key);
    bytes = hex_member(test, "msg", &message);
    hex_member(test, "sig", &signature);
    CHECK_EQ_U64(public_key.size, sizeof key.bytes);
    memcpy(key.bytes, public_key.at, sizeof key.bytes);
    if (signature.size == MX_SIGNATURE_BYTES)
        rc = mx_verify(&key, bytes.at, bytes.size, signature.at);
    CHECK_EQ_INT(rc, is_result(test, "valid") ? 0 : MX_ESIGNATURE);
}

TEST(primitive, ed25519_of_wycheproof)
{
    CHECK_EQ_U64(each_vector("vectors/wycheproof/ed25519_test.json", check_ed25519), 151);
}

static void check_hkdf(const struct json *group, const struct json *test)
{
    struct vector_bytes secret, salt, info, expected;
    static uint8_t ours[255 * 32];
    int64_t size = 0;

    (void)group;
    if (!is_result(test, "valid")) /* more bytes than HKDF has: our callers never ask */
        return;
    CHECK(json_int(json_get(test, "size"), &size) && size <= (int64_t)sizeof ours);
    hex_member(test, "okm", &expected);
    mx__hkdf(hex_member(test, "salt", &salt), hex_member(test, "ikm", &secret),
        hex_member(test, "info", &info), ours, (size_t)size);
    CHECK(memcmp(ours, expected.at, (size_t)size) == 0);
}

TEST(primitive, hkdf_of_wycheproof)
{
    CHECK_EQ_U64(each_vector("vectors/wycheproof/hkdf_sha256_test.json", check_hkdf), 86);
}

static void check_hmac(const struct json *group, const struct json *test)
{
    struct vector_bytes key, message, tag;
    uint8_t ours[CRYPTO_SHA256_BYTES];
    bool is_equal;

    (void)group;
    hex_member(test, "key", &key);
    hex_member(test, "msg", &message);
    hex_member(test, "tag", &tag);
    crypto_hmac_sha256(key.at, key.size, message.at, message.size, ours);
    is_equal = tag.size <= sizeof ours && crypto_equal(ours, tag.at, tag.size);
    CHECK_EQ_INT(is_equal, is_result(test, "valid"));
}

TEST(primitive, hmac_of_wycheproof)
{
    CHECK_EQ_U64(each_vector("vectors/wycheproof/hmac_sha256_test.json", check_hmac), 174);
}

/* Open a ciphertext with a right MAC: then padding alone decides. */
static void check_cbc(const struct json *group, const struct json *test)
{
    struct mx__message_keys keys = { 0 };
    struct vector_bytes key, iv, message, ciphertext;
    struct buffer plaintext = { 0 };
    struct span body;
    uint8_t mac[CRYPTO_SHA256_BYTES];
    int rc;

    (void)group;
    hex_member(test, "key", &key);
    hex_member(test, "iv", &iv);
    hex_member(test, "msg", &message);
    body = hex_member(test, "ct", &ciphertext);
    if (key.size != sizeof keys.aes)
        return;
    memcpy(keys.aes, key.at, sizeof keys.aes);
    memcpy(keys.iv, iv.at, sizeof keys.iv);
    crypto_hmac_sha256(keys.mac, sizeof keys.mac, body.at, body.size, mac);
    memcpy(ciphertext.at + ciphertext.size, mac, MX__MAC_BYTES);
    rc = mx__open(&keys, body, body, &plaintext);
    CHECK_EQ_INT(rc, is_result(test, "valid") ? 0 : MX_EFORMAT);
    if (rc == 0)
        CHECK(plaintext.size == message.size &&
              memcmp(plaintext.bytes, message.at, message.size) == 0);
    mx_wipe_buffer(&plaintext);
}

TEST(primitive, aes_cbc_of_wycheproof)
{
    CHECK_EQ_U64(each_vector("vectors/wycheproof/aes_cbc_pkcs5_test.json", check_cbc), 216);
}

/* ---- RFCs ------------------------------------------------------------------------------------ */

TEST(primitive, x25519_of_rfc_7748)
{
    struct mx__key_pair alice;
    uint8_t secret[32], expected[32];
    struct mx_key bob;

    mx_stage_hex(
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a", alice.secret, 32);
    mx_stage_hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f", bob.bytes, 32);
    mx_stage_hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742", expected, 32);
    CHECK_EQ_INT(mx__agree(&alice, &bob, secret), 0);
    CHECK(memcmp(secret, expected, sizeof secret) == 0);
}

TEST(primitive, ed25519_of_rfc_8032)
{
    static const struct {
        const char *seed, *public_key, *signature;
        struct {
            const char *at;
            size_t size;
        } message;
    } cases[] = {
        { "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39"
            "701cf9b46bd25bf5f0595bbe24655141438e7a100b",
            { "", 0 } },
        { "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f36"
            "13d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
            { "\x72", 1 } },
        { "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f7"
            "60984dc6594a7c15e9716ed28dc027beceea1ec40a",
            { "\xaf\x82", 2 } },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t signature[MX_SIGNATURE_BYTES], expected[MX_SIGNATURE_BYTES];
        struct mx__signing_pair pair;
        struct mx_key key;

        mx_stage_hex(cases[i].seed, pair.secret, 32);
        mx_stage_hex(cases[i].public_key, key.bytes, 32);
        mx_stage_hex(cases[i].signature, expected, sizeof expected);
        mx__signing_pair_derive(&pair);
        CHECK(mx_key_equal(&pair.public_key, &key));
        mx__sign(&pair, cases[i].message.at, cases[i].message.size, signature);
        CHECK(memcmp(signature, expected, sizeof expected) == 0);
        CHECK_EQ_INT(mx_verify(&key, cases[i].message.at, cases[i].message.size, expected), 0);
    }
}

TEST(primitive, hkdf_of_rfc_5869)
{
    uint8_t secret[22], salt[13], info[10], ours[42], expected[42];

    memset(secret, 0x0b, sizeof secret);
    for (uint8_t i = 0; i < 13; i++)
        salt[i] = i;
    for (uint8_t i = 0; i < 10; i++)
        info[i] = (uint8_t)(0xf0 + i);
    mx__hkdf(MX__BYTES(salt), MX__BYTES(secret), MX__BYTES(info), ours, sizeof ours);
    mx_stage_hex(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        expected, sizeof expected);
    CHECK(memcmp(ours, expected, sizeof ours) == 0);
    mx__hkdf(SPAN(""), MX__BYTES(secret), SPAN(""), ours, sizeof ours);
    mx_stage_hex(
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        expected, sizeof expected);
    CHECK(memcmp(ours, expected, sizeof ours) == 0);
}

/* ---- libolm's test_crypto ---------------------------------------------------------------------- */

/* Its case of X25519 is that of RFC 7748, and its case of HKDF the first of RFC 5869: above. */
TEST(primitive, aes_of_libolms_test_crypto)
{
    static const uint8_t zeros[32];
    struct mx__message_keys keys = { 0 };
    struct buffer message = { 0 }, plaintext = { 0 };
    uint8_t expected[32];

    mx_stage_hex("dc95c078a2408989ad48a21492842087f3c003ddc4a7b8a94baedffc3d214c38", expected, 32);
    CHECK_EQ_INT(mx__seal(&keys, 0x22, (struct span){ (const char *)zeros, 16 }, &message), 0);
    CHECK_EQ_U64(message.size, 2 + sizeof expected + MX__MAC_BYTES); /* tag, size, blocks, MAC */
    CHECK(memcmp(message.bytes + 2, expected, sizeof expected) == 0);
    CHECK_EQ_INT(mx__open(&keys, (struct span){ message.bytes, 2 + sizeof expected },
                     (struct span){ message.bytes + 2, sizeof expected }, &plaintext),
        0);
    CHECK_EQ_U64(plaintext.size, 16);
    CHECK(memcmp(plaintext.bytes, zeros, 16) == 0);
    buffer_free(&message);
    buffer_free(&plaintext);
}

TEST(primitive, digests_of_libolms_test_crypto)
{
    uint8_t ours[32], expected[32], secret[22], salt[13];

    mx_stage_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", expected, 32);
    crypto_sha256("", 0, ours);
    CHECK(memcmp(ours, expected, 32) == 0);
    mx_stage_hex("b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad", expected, 32);
    crypto_hmac_sha256("", 0, "", 0, ours);
    CHECK(memcmp(ours, expected, 32) == 0);
    memset(secret, 0x0b, sizeof secret);
    for (uint8_t i = 0; i < 13; i++)
        salt[i] = i;
    mx_stage_hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5", expected, 32);
    crypto_hmac_sha256(salt, sizeof salt, secret, sizeof secret, ours);
    CHECK(memcmp(ours, expected, 32) == 0);
}

TEST(primitive, a_signature_of_libolms_test_crypto)
{
    static const char message[] = "Hello, World";
    uint8_t signature[MX_SIGNATURE_BYTES];
    struct mx__signing_pair pair = { 0 };

    memcpy(pair.secret, "This key is a string of 32 bytes", 32);
    mx__signing_pair_derive(&pair);
    mx__sign(&pair, message, sizeof message - 1, signature);
    CHECK_EQ_INT(mx_verify(&pair.public_key, message, sizeof message - 1, signature), 0);
    CHECK_EQ_INT(mx_verify(&pair.public_key, "n0t the message", sizeof message - 1, signature),
        MX_ESIGNATURE);
}

/* ---- texts and fields ------------------------------------------------------------------------ */

/* libolm's test_message and test_base64. */
TEST(primitive, fields_are_written_as_libolm_does)
{
    static const char expected[] = "\x03\x0a\x0aratchetkey\x10\x01\"\x0a"
                                   "ciphertext";
    static const char group[] = "\x03\x08\xc8\x01\x12\x0a"
                                "ciphertext";
    struct mx__field fields[] = { { .tag = 0x08 }, { .tag = 0x12 } };
    struct buffer out = { 0 };

    buffer_append(&out, "\x03", 1);
    mx__put_bytes(&out, 0x0a, SPAN("ratchetkey"));
    mx__put_number(&out, 0x10, 1);
    mx__put_bytes(&out, 0x22, SPAN("ciphertext"));
    mx_stage_check_text(&out, expected);
    CHECK_EQ_INT(mx__read_fields(SPAN(group), fields, 2), 0);
    CHECK_EQ_U64(fields[0].number, 200);
    CHECK(span_is(fields[1].bytes, "ciphertext"));
    buffer_clear(&out);
    CHECK_EQ_INT(mx_base64_encode("Hello World", 11, &out), 0);
    mx_stage_check_text(&out, "SGVsbG8gV29ybGQ");
    buffer_free(&out);
}

TEST(primitive, base64_is_read_with_and_without_padding)
{
    uint8_t bytes[8];
    size_t size;

    CHECK_EQ_INT(mx_base64_decode(SPAN("AQID"), bytes, sizeof bytes, &size), 0);
    CHECK_EQ_INT(mx_base64_decode(SPAN("AQI"), bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 2);
    CHECK_EQ_INT(mx_base64_decode(SPAN("AQI="), bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 2);
    CHECK_EQ_INT(mx_base64_decode(SPAN("AQJ"), bytes, sizeof bytes, &size), 0);
    CHECK_EQ_INT(mx_base64_decode(SPAN("AQ-_"), bytes, sizeof bytes, &size), MX_EBASE64);
    CHECK_EQ_INT(mx_base64_decode(SPAN("A"), bytes, sizeof bytes, &size), MX_EBASE64);
    CHECK_EQ_INT(mx_base64_decode(SPAN("AQIDBAUGBwgJ"), bytes, sizeof bytes, &size), MX_ETOOBIG);
}

TEST(primitive, fields_are_read_in_any_order)
{
    /* An unknown number and unknown bytes stand between; the second ciphertext counts. */
    static const char message[] = "\x03\x12\x01x\x18\x96\x01\x2a\x02zz\x08\x07\x12\x02yy";
    struct mx__field fields[] = { { .tag = 0x08 }, { .tag = 0x12 } };

    CHECK_EQ_INT(mx__read_fields(SPAN(message), fields, 2), 0);
    CHECK_EQ_U64(fields[0].number, 7);
    CHECK(span_is(fields[1].bytes, "yy"));
}

TEST(primitive, malformed_fields_are_refused)
{
    const struct {
        struct span message;
        int rc;
    } cases[] = {
        { SPAN(""), MX_EFORMAT }, { SPAN("\x02\x08\x01\x12\x01x"), MX_EVERSION },
        { SPAN("\x03\x08\x01"), MX_EFORMAT },          /* no ciphertext */
        { SPAN("\x03\x08\x01\x12"), MX_EFORMAT },      /* no length */
        { SPAN("\x03\x08\x01\x12\x02x"), MX_EFORMAT }, /* cut */
        { SPAN("\x03\x08\x01\x12\x00"), MX_EFORMAT },  /* empty */
        { SPAN("\x03\x08\x81\x12\x01x"), MX_EFORMAT }, /* the index swallows the rest */
        { SPAN("\x03\x08\x80\x80\x80\x80\x10\x12\x01x"), MX_EFORMAT }, /* index 2^32 */
        { SPAN("\x03\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x12\x01x"), MX_EFORMAT },
        { SPAN("\x03\x08\x01\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x"), MX_EFORMAT },
        { SPAN("\x03\x08\x01\x12\x01x\x0d\x01\x01\x01\x01"), MX_EFORMAT }, /* a fixed32 */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx__field fields[] = { { .tag = 0x08 }, { .tag = 0x12 } };

        CHECK_MSG(mx__read_fields(cases[i].message, fields, 2) == cases[i].rc, "case %zu", i);
    }
}
