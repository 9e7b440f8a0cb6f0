/* SPDX-License-Identifier: Apache-2.0 */
/* The Wycheproof vectors of the supported algorithms. The code must refuse every vector that is marked
 * invalid and accept every one that is marked valid, except for these classes, which the test tells by
 * the vector and not by its number:
 *
 *  - High S. The general ECDSA and JWS files mark a signature with S > n/2 valid. The
 *    server accepts the lower half only, as AT Protocol requires, so it must refuse such a vector.
 *    (The "bitcoin" file has the same rule and must agree fully.)
 *  - Unsupported algorithms (RS384, RS512, PS*, HS384, HS512, P-521): all must be refused.
 *  - Two JWS vectors marked valid have a '?' inside a part. RFC 7515 section 2 allows no
 *    characters outside the alphabet, so the server must refuse them.
 *  - Two JWS vectors about padding are marked invalid but have lost their padding: byte for byte
 *    they are the token that an earlier vector marks valid. They must be accepted like it. */
#include <openssl/ec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/error.h>

#include "auth/jwk.h"
#include "auth/jwt.h"
#include "auth/key_set.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json.h"

/* ---- files ----------------------------------------------------------------------------------- */

static FILE *open_vectors(const char *name)
{
    const char *shared = getenv("TROUPE_SHARED");
    char path[4096], self[2048];
    ssize_t size;
    FILE *file;

    snprintf(
        path, sizeof path, "%s/vectors/wycheproof/%s", shared != NULL ? shared : "../shared", name);
    file = fopen(path, "rb");
    if (file != NULL || shared != NULL)
        return file;
    /* From a build directory, two below the root of the repository. */
    size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(path, sizeof path, "%s/../../../../shared/vectors/wycheproof/%s", self, name);
    return fopen(path, "rb");
}

struct vectors {
    struct json_doc doc;
    const struct json *groups;
    int64_t count;
};

static void load(struct vectors *vectors, const char *name)
{
    struct buffer text = { 0 };
    FILE *file = open_vectors(name);
    size_t got;

    if (file == NULL)
        SKIP("%s is not there: set TROUPE_SHARED to the folder with vectors/wycheproof", name);
    do {
        char *at = buffer_reserve(&text, 65536);

        CHECK(at != NULL);
        got = fread(at, 1, 65536, file);
        buffer_grew(&text, got);
    } while (got > 0);
    fclose(file);
    *vectors = (struct vectors){ 0 };
    CHECK_EQ_INT(
        json_parse_copy(&vectors->doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS),
        0);
    buffer_free(&text);
    vectors->groups = json_get(json_root(&vectors->doc), "testGroups");
    CHECK(json_count(vectors->groups) > 0);
    CHECK(json_int(json_get(json_root(&vectors->doc), "numberOfTests"), &vectors->count));
}

static struct span text_of(const struct json *object, const char *key)
{
    struct span text = { NULL, 0 };

    CHECK_MSG(json_string(json_get(object, key), &text), "no text %s", key);
    return text;
}

static size_t bytes_of(const struct json *object, const char *key, uint8_t *bytes, size_t bytes_max)
{
    size_t size;

    CHECK_EQ_INT(crypto_hex_decode(text_of(object, key), bytes, bytes_max, &size), 0);
    return size;
}

static bool is_valid(const struct json *test)
{
    struct span result = text_of(test, "result");

    CHECK(span_is(result, "valid") || span_is(result, "invalid"));
    return span_is(result, "valid");
}

static int64_t number_of(const struct json *test)
{
    int64_t number = -1;

    CHECK(json_int(json_get(test, "tcId"), &number));
    return number;
}

/* Counts of the vectors of a file, by their result. */
struct tally {
    int64_t accepted, refused, high_s, unsupported, loose, same;
};

static void check_tally(const struct tally *tally, const struct vectors *vectors)
{
    CHECK_EQ_INT(tally->accepted + tally->refused + tally->high_s + tally->unsupported +
                     tally->loose + tally->same,
        vectors->count);
}

/* ---- signatures ------------------------------------------------------------------------------ */

/* One signature in the form of the file. `raw` is NULL if it cannot be brought to r||s. */
static void judge_signature(const struct crypto_key *key, const struct json *test,
    const uint8_t *raw, size_t raw_size, struct tally *tally)
{
    static uint8_t message[65536];
    size_t size = bytes_of(test, "msg", message, sizeof message);
    int rc = raw == NULL ? TR_EPROTO
                         : crypto_key_verify(
                               key, message, size, (struct span){ (const char *)raw, raw_size });

    if (is_valid(test) && raw != NULL && raw_size == 64 &&
        !crypto_signature_is_low_s(crypto_key_algorithm(key), raw)) {
        CHECK_MSG(rc != 0, "vector %lld has a high S and is accepted", (long long)number_of(test));
        tally->high_s++;
    } else if (is_valid(test)) {
        CHECK_MSG(rc == 0, "vector %lld is wrongly refused", (long long)number_of(test));
        tally->accepted++;
    } else {
        CHECK_MSG(rc != 0, "vector %lld is wrongly accepted", (long long)number_of(test));
        tally->refused++;
    }
}

/* The key from the raw bytes; and, where the file has it, from its JWK and PEM: all the same. */
static struct crypto_key *group_key(const struct json *group, enum crypto_algorithm algorithm)
{
    const struct json *public_key = json_get(group, "publicKey");
    struct crypto_key *key = NULL, *again = NULL;
    uint8_t bytes[128], a[CRYPTO_PUBLIC_BYTES_MAX], b[CRYPTO_PUBLIC_BYTES_MAX];
    size_t size = bytes_of(
        public_key, algorithm == CRYPTO_EDDSA ? "pk" : "uncompressed", bytes, sizeof bytes);

    CHECK_EQ_INT(crypto_key_from_public(algorithm, bytes, size, &key), 0);
    size = crypto_key_public_bytes(key, a);
    if (json_get(group, "publicKeyJwk") != NULL) {
        CHECK_EQ_INT(jwk_parse(json_get(group, "publicKeyJwk"), JWK_PUBLIC, &again, NULL), 0);
        CHECK_EQ_U64(crypto_key_public_bytes(again, b), size);
        CHECK(memcmp(a, b, size) == 0);
        crypto_key_unref(&again);
    }
    CHECK_EQ_INT(crypto_key_from_pem(text_of(group, "publicKeyPem"), &again), 0);
    CHECK_EQ_U64(crypto_key_public_bytes(again, b), size);
    CHECK(memcmp(a, b, size) == 0);
    crypto_key_unref(&again);
    return key;
}

static struct tally run_raw(const char *name, enum crypto_algorithm algorithm)
{
    struct vectors vectors;
    struct tally tally = { 0 };
    uint8_t signature[1024];

    load(&vectors, name);
    for (struct json_iter it = json_iterate(vectors.groups); json_next(&it);) {
        struct crypto_key *key = group_key(it.value, algorithm);

        for (struct json_iter test = json_iterate(json_get(it.value, "tests")); json_next(&test);)
            judge_signature(key, test.value, signature,
                bytes_of(test.value, "sig", signature, sizeof signature), &tally);
        crypto_key_unref(&key);
    }
    check_tally(&tally, &vectors);
    json_doc_free(&vectors.doc);
    return tally;
}

/* The server reads no DER. Convert strict DER of two numbers of 32 bytes to r||s; all other signatures
 * count as refused because of their form. */
static bool der_to_raw(const uint8_t *der, size_t size, uint8_t raw[64])
{
    const uint8_t *at = der;
    static uint8_t again[262144];
    uint8_t *out = again;
    ECDSA_SIG *pair = d2i_ECDSA_SIG(NULL, &at, (long)size);
    bool is_good = pair != NULL && at == der + size && i2d_ECDSA_SIG(pair, NULL) == (int)size &&
                   i2d_ECDSA_SIG(pair, &out) == (int)size && memcmp(again, der, size) == 0 &&
                   BN_bn2binpad(ECDSA_SIG_get0_r(pair), raw, 32) == 32 &&
                   BN_bn2binpad(ECDSA_SIG_get0_s(pair), raw + 32, 32) == 32 &&
                   !BN_is_negative(ECDSA_SIG_get0_r(pair)) &&
                   !BN_is_negative(ECDSA_SIG_get0_s(pair));

    ECDSA_SIG_free(pair);
    return is_good;
}

static struct tally run_der(const char *name, enum crypto_algorithm algorithm)
{
    struct vectors vectors;
    struct tally tally = { 0 };
    static uint8_t der[262144];
    uint8_t raw[64];

    load(&vectors, name);
    for (struct json_iter it = json_iterate(vectors.groups); json_next(&it);) {
        struct crypto_key *key = group_key(it.value, algorithm);

        for (struct json_iter test = json_iterate(json_get(it.value, "tests")); json_next(&test);) {
            size_t size = bytes_of(test.value, "sig", der, sizeof der);

            judge_signature(key, test.value, der_to_raw(der, size, raw) ? raw : NULL, 64, &tally);
        }
        crypto_key_unref(&key);
    }
    check_tally(&tally, &vectors);
    json_doc_free(&vectors.doc);
    return tally;
}

TEST_LONG(wycheproof, es256_raw_signatures, 60)
{
    struct tally tally = run_raw("ecdsa_secp256r1_sha256_p1363_test.json", CRYPTO_ES256);

    CHECK(tally.accepted >= 50);
    CHECK(tally.refused >= 80);
    CHECK(tally.high_s >= 1);
}

TEST_LONG(wycheproof, es256_der_signatures, 60)
{
    struct tally tally = run_der("ecdsa_secp256r1_sha256_test.json", CRYPTO_ES256);

    CHECK(tally.accepted >= 50);
    CHECK(tally.refused >= 300);
}

TEST_LONG(wycheproof, es256k_raw_signatures, 60)
{
    struct tally tally = run_raw("ecdsa_secp256k1_sha256_p1363_test.json", CRYPTO_ES256K);

    CHECK(tally.accepted >= 50);
    CHECK(tally.refused >= 80);
    CHECK(tally.high_s >= 1);
}

TEST_LONG(wycheproof, es256k_signatures_with_the_same_rule_about_s, 60)
{
    struct tally tally = run_der("ecdsa_secp256k1_sha256_bitcoin_test.json", CRYPTO_ES256K);

    CHECK(tally.accepted >= 160);
    CHECK(tally.refused >= 300);
    CHECK_EQ_INT(tally.high_s, 0);
}

TEST_LONG(wycheproof, eddsa_signatures, 60)
{
    struct tally tally = run_raw("ed25519_test.json", CRYPTO_EDDSA);

    CHECK(tally.accepted >= 80);
    CHECK(tally.refused >= 60);
}

TEST(wycheproof, hmac_tags)
{
    struct vectors vectors;
    int64_t judged = 0;

    load(&vectors, "hmac_sha256_test.json");
    for (struct json_iter it = json_iterate(vectors.groups); json_next(&it);) {
        int64_t tag_bits = 0;

        CHECK(json_int(json_get(it.value, "tagSize"), &tag_bits));
        for (struct json_iter test = json_iterate(json_get(it.value, "tests")); json_next(&test);) {
            uint8_t key[1024], message[4096], expected[64], tag[32];
            size_t key_size = bytes_of(test.value, "key", key, sizeof key);
            size_t size = bytes_of(test.value, "msg", message, sizeof message);
            size_t tag_size = bytes_of(test.value, "tag", expected, sizeof expected);

            crypto_hmac_sha256(key, key_size, message, size, tag);
            CHECK_MSG((tag_size == (size_t)tag_bits / 8 && crypto_equal(tag, expected, tag_size)) ==
                          is_valid(test.value),
                "vector %lld", (long long)number_of(test.value));
            judged++;
        }
    }
    CHECK_EQ_INT(judged, vectors.count);
    json_doc_free(&vectors.doc);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* As a server would: the set from its text, the key by the token's kid. */
static enum jwt_refusal judge_token(const struct key_set *set, struct span token)
{
    struct jwt jwt;
    struct crypto_key *key;
    enum jwt_refusal refusal = jwt_parse_jws(&jwt, token);

    if (refusal == JWT_OK) {
        key = key_set_find(set, jwt.kid);
        refusal = key == NULL ? JWT_KID : jwt_verify(&jwt, key);
    }
    jwt_fini(&jwt);
    return refusal;
}

/* Is this token among the valid ones of its group? */
static bool is_marked_valid(const struct json *tests, struct span token)
{
    struct span other;

    for (struct json_iter it = json_iterate(tests); json_next(&it);)
        if (is_valid(it.value) && json_string(json_get(it.value, "jws"), &other) &&
            span_equal(other, token))
            return true;
    return false;
}

static bool has_foreign_character(struct span token)
{
    return memchr(token.at, '?', token.size) != NULL;
}

static void judge_vector(const struct key_set *set, const struct json *tests,
    const struct json *test, struct tally *tally)
{
    struct span token = { NULL, 0 };
    enum jwt_refusal refusal;
    const char *label;

    if (!json_string(json_get(test, "jws"), &token)) { /* a JSON object, or encrypted: no token */
        CHECK(!is_valid(test) || json_get(test, "jwe") != NULL);
        tally->unsupported++;
        return;
    }
    refusal = set == NULL ? JWT_KID : judge_token(set, token);
    label = jwt_refusal_label(refusal);
    if (set == NULL)
        is_valid(test) ? tally->unsupported++ : tally->refused++;
    else if (!is_valid(test) && is_marked_valid(tests, token)) {
        CHECK_MSG(refusal == JWT_OK, "vector %lld: %s", (long long)number_of(test), label);
        tally->same++;
    } else if (!is_valid(test)) {
        CHECK_MSG(refusal != JWT_OK, "vector %lld is wrongly accepted", (long long)number_of(test));
        tally->refused++;
    } else if (refusal == JWT_SIGNATURE_HIGH_S)
        tally->high_s++; /* that S is high is checked where the label is made, in test_key */
    else if (has_foreign_character(token)) {
        CHECK_EQ_INT(refusal, JWT_ENCODING);
        tally->loose++;
    } else {
        CHECK_MSG(refusal == JWT_OK, "vector %lld is wrongly refused: %s",
            (long long)number_of(test), label);
        tally->accepted++;
    }
}

static struct tally run_tokens(const char *name)
{
    struct vectors vectors;
    struct tally tally = { 0 };

    load(&vectors, name);
    for (struct json_iter it = json_iterate(vectors.groups); json_next(&it);) {
        const struct json *tests = json_get(it.value, "tests");
        const struct json *keys = json_get(it.value, "public");
        struct buffer text = { 0 };
        struct key_set *set = NULL;
        char why[KEY_SET_WHY_CHARS];

        if (keys == NULL)
            keys = json_get(it.value, "private");
        CHECK_EQ_INT(json_canonical(keys, NULL, &text), 0);
        if (key_set_parse((struct span){ text.bytes, text.size },
                &(struct key_set_options){ .allow_secrets = true }, &set, why) != 0)
            set = NULL; /* the vectors say whether that is right */
        for (struct json_iter test = json_iterate(tests); json_next(&test);)
            judge_vector(set, tests, test.value, &tally);
        key_set_destroy(set);
        buffer_free(&text);
    }
    check_tally(&tally, &vectors);
    json_doc_free(&vectors.doc);
    return tally;
}

TEST_LONG(wycheproof, json_web_signatures, 60)
{
    struct tally tally = run_tokens("json_web_signature_test.json");

    CHECK_EQ_INT(tally.accepted, 17);
    CHECK_EQ_INT(tally.high_s, 1);
    CHECK_EQ_INT(tally.loose, 2);
    CHECK_EQ_INT(tally.same, 2);
    CHECK_EQ_INT(tally.refused, 353);
}

TEST_LONG(wycheproof, json_web_keys, 60)
{
    struct tally tally = run_tokens("json_web_key_test.json");

    CHECK_EQ_INT(tally.accepted, 3);
    CHECK_EQ_INT(tally.refused, 21);
    CHECK_EQ_INT(tally.unsupported, 2); /* HS384, HS512 */
}

TEST_LONG(wycheproof, json_web_crypto, 60)
{
    struct tally tally = run_tokens("json_web_crypto_test.json");

    CHECK_EQ_INT(tally.accepted, 3);
    CHECK_EQ_INT(tally.high_s, 1);
    CHECK(tally.refused >= 40);
}
