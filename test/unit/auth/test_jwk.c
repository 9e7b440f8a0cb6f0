/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/error.h>

#include "auth/jwk.h"
#include "auth/key_set.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/encoding.h"

/* RFC 8037 appendix A, RFC 7515 appendix A.3, and a secp256k1 key. */
#define ED_X "\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\""
#define ED_D "\"d\":\"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A\""
#define ED "{\"kty\":\"OKP\",\"crv\":\"Ed25519\"," ED_X "}"
#define P256_XY                                                                                    \
    "\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\","                                       \
    "\"y\":\"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0\""
#define P256_D "\"d\":\"jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI\""
#define P256 "{\"kty\":\"EC\",\"crv\":\"P-256\"," P256_XY "}"
#define K256_XY                                                                                    \
    "\"x\":\"uDj_ROW8F3vyEYnQdmCC_J2EMiaIf8l2A3EQC37iCm8\","                                       \
    "\"y\":\"8MnXW_unsxpryhl0SW7rVt41cHGVXYPEsbraoLIYMuk\""
#define K256 "{\"kty\":\"EC\",\"crv\":\"secp256k1\"," K256_XY "}"
#define OCT(rest) "{\"kty\":\"oct\",\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\"" rest "}"
#define EC(rest) "{\"kty\":\"EC\",\"crv\":\"P-256\"," P256_XY "," rest "}"

static int parse(const char *text, enum jwk_want want, struct crypto_key **ret_key)
{
    struct json_doc doc = { 0 };
    const char *why = NULL;
    int rc;

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(text), JSON_UNIQUE_KEYS), 0);
    rc = jwk_parse(json_root(&doc), want, ret_key, &why);
    CHECK_EQ_INT(rc != 0, why != NULL);
    json_doc_free(&doc);
    return rc;
}

TEST(jwk, kinds_and_halves_are_told_apart)
{
    static const struct {
        const char *text;
        enum jwk_want want;
        int rc;
        enum crypto_algorithm algorithm;
    } cases[] = {
        { P256, JWK_PUBLIC, 0, CRYPTO_ES256 },
        { K256, JWK_PUBLIC, 0, CRYPTO_ES256K },
        { ED, JWK_PUBLIC, 0, CRYPTO_EDDSA },
        { P256, JWK_EITHER, 0, CRYPTO_ES256 },
        { P256, JWK_PRIVATE, TR_EPROTO, 0 },
        { EC(P256_D), JWK_PRIVATE, 0, CRYPTO_ES256 },
        { EC(P256_D), JWK_EITHER, 0, CRYPTO_ES256 },
        { EC(P256_D), JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"OKP\",\"crv\":\"Ed25519\"," ED_X "," ED_D "}", JWK_PRIVATE, 0, CRYPTO_EDDSA },
        { EC(ED_D), JWK_PRIVATE, TR_EPROTO, 0 }, /* another key's d */
        { EC("\"d\":1"), JWK_PRIVATE, TR_EPROTO, 0 },
        { EC("\"d\":null"), JWK_PUBLIC, TR_EPROTO, 0 },
        { OCT(""), JWK_PRIVATE, 0, CRYPTO_HS256 },
        { OCT(""), JWK_EITHER, 0, CRYPTO_HS256 },
        { OCT(""), JWK_PUBLIC, TR_EPROTO, 0 },
        /* alg, use, key_ops */
        { EC("\"alg\":\"ES256\""), JWK_PUBLIC, 0, CRYPTO_ES256 },
        { EC("\"alg\":\"ES256K\""), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"alg\":\"HS256\""), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"alg\":null"), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"use\":\"sig\""), JWK_PUBLIC, 0, CRYPTO_ES256 },
        { EC("\"use\":\"enc\""), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"use\":1"), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"key_ops\":[\"verify\"]"), JWK_PUBLIC, 0, CRYPTO_ES256 },
        { EC("\"key_ops\":[\"encrypt\"]"), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"key_ops\":[]"), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"key_ops\":\"verify\""), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { EC("\"key_ops\":{\"a\":\"verify\"}"), JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        /* malformed */
        { "1", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":1}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"ec\"}", JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { "{\"kty\":\"EC\"}", JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { "{\"kty\":\"EC\",\"crv\":\"P-384\"," P256_XY "}", JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { "{\"kty\":\"EC\",\"crv\":\"P-256\"}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"EC\",\"crv\":\"P-256\"," K256_XY "}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"EC\",\"crv\":\"P-256\"," ED_X ",\"y\":\"AA\"}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":"
          "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
            JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"OKP\",\"crv\":\"X25519\"," ED_X "}", JWK_PUBLIC, TR_EUNSUPPORTED, 0 },
        { "{\"kty\":\"RSA\"}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"RSA\",\"n\":\"AQ\",\"e\":\"AQAB\"}", JWK_PUBLIC, TR_EPROTO, 0 },
        { "{\"kty\":\"RSA\",\"n\":\"AQ\",\"e\":\"AQAB\",\"d\":\"AQ\"}", JWK_PRIVATE,
            TR_EUNSUPPORTED, 0 },
        { "{\"kty\":\"oct\",\"k\":\"AAAA\"}", JWK_PRIVATE, TR_EPROTO, 0 },
        { "{\"kty\":\"oct\"}", JWK_PRIVATE, TR_EPROTO, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crypto_key *key = NULL;
        int rc = parse(cases[i].text, cases[i].want, &key);

        CHECK_MSG(rc == cases[i].rc, "%s: %s", cases[i].text, tr_error_name(rc));
        CHECK_EQ_INT(key != NULL, rc == 0);
        if (rc == 0)
            CHECK_EQ_INT(crypto_key_algorithm(key), cases[i].algorithm);
        crypto_key_unref(&key);
    }
}

TEST(jwk, what_is_written_is_read_again)
{
    static const enum crypto_algorithm algorithms[] = { CRYPTO_ES256, CRYPTO_ES256K, CRYPTO_EDDSA };

    for (size_t i = 0; i < 6; i++) {
        struct crypto_key *key = NULL, *back = NULL;
        struct buffer text = { 0 };
        uint8_t a[CRYPTO_PUBLIC_BYTES_MAX], b[CRYPTO_PUBLIC_BYTES_MAX];

        CHECK_EQ_INT(crypto_key_generate(algorithms[i / 2], &key), 0);
        CHECK_EQ_INT(jwk_write(key, SPAN("my key"), i % 2 == 1, &text), 0);
        buffer_append(&text, "", 1);
        CHECK_EQ_INT(parse(text.bytes, i % 2 == 1 ? JWK_PRIVATE : JWK_PUBLIC, &back), 0);
        CHECK_EQ_U64(crypto_key_public_bytes(key, a), crypto_key_public_bytes(back, b));
        CHECK(memcmp(a, b, crypto_key_public_bytes(key, a)) == 0);
        CHECK_EQ_INT(crypto_key_is_private(back), i % 2 == 1);
        CHECK_EQ_INT(strstr(text.bytes, "\"d\"") != NULL, i % 2 == 1);
        CHECK(strstr(text.bytes, "\"kid\":\"my key\"") != NULL);
        CHECK_EQ_INT(jwk_write(key, SPAN("my\"key"), false, &text), TR_EINVAL);
        buffer_free(&text);
        crypto_key_unref(&key);
        crypto_key_unref(&back);
    }
}

TEST_LONG(jwk, numbers_of_rsa_have_no_leading_zero, 60)
{
    static const struct {
        size_t zeros;
        const char *e;
        int rc;
    } cases[] = { { 0, "AQAB", 0 }, { 1, "AQAB", TR_EPROTO }, { 0, "AAEAAQ", TR_EPROTO },
        { 0, "AQ", TR_EPROTO }, { 0, "", TR_EPROTO }, { 0, "AQAB=", TR_EPROTO } };
    EVP_PKEY *pkey = EVP_RSA_gen(2048);
    BIGNUM *n = NULL;
    uint8_t bytes[257] = { 0 };
    char text[400];

    CHECK_EQ_INT(EVP_PKEY_get_bn_param(pkey, OSSL_PKEY_PARAM_RSA_N, &n), 1);
    CHECK_EQ_INT(BN_bn2bin(n, bytes + 1), 256);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crypto_key *key = NULL;
        struct buffer jwk = { 0 };
        size_t size =
            crypto_base64url_encode(bytes + 1 - cases[i].zeros, 256 + cases[i].zeros, text);

        buffer_format(
            &jwk, "{\"kty\":\"RSA\",\"n\":\"%.*s\",\"e\":\"%s\"}", (int)size, text, cases[i].e);
        buffer_append(&jwk, "", 1);
        CHECK_EQ_INT(parse(jwk.bytes, JWK_PUBLIC, &key), cases[i].rc);
        crypto_key_unref(&key);
        buffer_free(&jwk);
    }
    BN_free(n);
    EVP_PKEY_free(pkey);
}

TEST(jwk, a_secret_is_not_written)
{
    struct crypto_key *key = NULL;
    struct buffer text = { 0 };

    CHECK_EQ_INT(crypto_key_generate(CRYPTO_HS256, &key), 0);
    CHECK_EQ_INT(jwk_write(key, (struct span){ NULL, 0 }, false, &text), TR_EUNSUPPORTED);
    CHECK_EQ_INT(jwk_write(key, (struct span){ NULL, 0 }, true, &text), TR_EUNSUPPORTED);
    CHECK_EQ_U64(text.size, 0);
    crypto_key_unref(&key);
}

/* ---- key sets -------------------------------------------------------------------------------- */

#define KID(kid) "\"kid\":\"" kid "\""
#define SET(keys) "{\"keys\":[" keys "]}"

static const struct set_case {
    const char *text;
    struct key_set_options options;
    int rc;
    size_t count;
    const char *why; /* part of the sentence */
} sets[] = {
    { SET(EC(KID("a"))), { 0 }, 0, 1, NULL },
    { P256, { 0 }, 0, 1, NULL },
    { SET(EC(KID("a")) "," EC(KID("b"))), { 0 }, 0, 2, NULL },
    { SET(EC(KID("a")) "," EC(KID("a"))), { 0 }, TR_EPROTO, 0, "Key 2 of the set: Another key" },
    { SET(P256 "," EC(KID("b"))), { 0 }, TR_EPROTO, 0, "each needs one" },
    { SET(EC(KID("a")) "," P256), { 0 }, TR_EPROTO, 0, "each needs one" },
    { SET(EC(KID(""))), { 0 }, TR_EPROTO, 0, "kid must be a text" },
    { SET(EC("\"kid\":1")), { 0 }, TR_EPROTO, 0, "kid must be a text" },
    { SET(""), { 0 }, TR_EPROTO, 0, "no key" },
    { "{}", { 0 }, TR_EPROTO, 0, "kty is missing" },
    { "[]", { 0 }, TR_EPROTO, 0, "JSON object" },
    { "", { 0 }, TR_EPROTO, 0, "byte 0" },
    { "{\"keys\":{}}", { 0 }, TR_EPROTO, 0, "keys must be an array" },
    { "{\"keys\":[],\"keys\":[]}", { 0 }, TR_EPROTO, 0, "byte" },
    { SET("1"), { 0 }, TR_EPROTO, 0, "JSON object" },
    { SET(OCT("," KID("a"))), { 0 }, TR_EPROTO, 0, "private" },
    { SET(OCT("," KID("a"))), { .allow_secrets = true }, 0, 1, NULL },
    { SET(OCT("," KID("a")) "," EC(KID("b"))), { .allow_secrets = true }, TR_EPROTO, 0,
        "must not mix" },
    { SET(EC(KID("b")) "," OCT("," KID("a"))), { .allow_secrets = true }, TR_EPROTO, 0,
        "must not mix" },
    { SET(EC(KID("a") "," P256_D)), { 0 }, TR_EPROTO, 0, "private" },
    { SET("{\"kty\":\"XYZ\"}," EC(KID("a"))), { 0 }, TR_EUNSUPPORTED, 0, "not supported" },
    { SET("{\"kty\":\"XYZ\"}," EC(KID("a"))), { .skip_unknown = true }, 0, 1, NULL },
    { SET(EC("\"use\":\"enc\"," KID("e")) "," EC(KID("a"))), { .skip_unknown = true }, 0, 1, NULL },
    { SET("{\"kty\":\"XYZ\"}"), { .skip_unknown = true }, TR_EPROTO, 0, "no key" },
    { SET("{\"kty\":\"RSA\",\"n\":\"AQ\",\"e\":\"AQAB\"}"), { .skip_unknown = true }, TR_EPROTO, 0,
        "2,048" },
};
enum { SETS = sizeof sets / sizeof sets[0] };

TEST(key_set, is_whole_or_refused_with_a_reason)
{
    for (size_t i = 0; i < SETS; i++) {
        struct key_set *set = NULL;
        char why[KEY_SET_WHY_CHARS] = "";
        int rc = key_set_parse(span_of(sets[i].text), &sets[i].options, &set, why);

        CHECK_MSG(rc == sets[i].rc, "%s: %s: %s", sets[i].text, tr_error_name(rc), why);
        if (rc == 0)
            CHECK_EQ_U64(key_set_count(set), sets[i].count);
        else
            CHECK_MSG(strstr(why, sets[i].why) != NULL, "%s: %s", sets[i].text, why);
        key_set_destroy(set);
        CHECK_EQ_INT(key_set_parse(span_of(sets[i].text), &sets[i].options, &set, NULL), rc);
        if (rc == 0)
            key_set_destroy(set);
    }
}

TEST(key_set, finds_by_id)
{
    struct key_set *set = NULL;

    CHECK_EQ_INT(
        key_set_parse(SPAN(SET(EC(KID("a")) ",{\"kty\":\"EC\",\"crv\":\"secp256k1\"," K256_XY
                                            "," KID("b") "}")),
            &(struct key_set_options){ 0 }, &set, NULL),
        0);
    CHECK_EQ_INT(crypto_key_algorithm(key_set_find(set, SPAN("a"))), CRYPTO_ES256);
    CHECK_EQ_INT(crypto_key_algorithm(key_set_find(set, SPAN("b"))), CRYPTO_ES256K);
    CHECK(key_set_find(set, SPAN("c")) == NULL);
    CHECK(key_set_find(set, SPAN("")) == NULL);
    CHECK(key_set_find(set, SPAN("a\0")) == NULL);
    CHECK(key_set_find(set, (struct span){ NULL, 0 }) == NULL); /* which of two? */
    key_set_destroy(set);

    CHECK_EQ_INT(key_set_parse(SPAN(P256), &(struct key_set_options){ 0 }, &set, NULL), 0);
    CHECK(key_set_find(set, (struct span){ NULL, 0 }) != NULL);
    CHECK(key_set_find(set, SPAN("a")) == NULL);
    key_set_destroy(set);
    key_set_destroy(NULL);
}

TEST(key_set, has_limits)
{
    struct buffer text = { 0 };
    struct key_set *set = NULL;

    for (int count = KEY_SET_KEYS_MAX; count <= KEY_SET_KEYS_MAX + 1; count++) {
        buffer_clear(&text);
        buffer_text(&text, "{\"keys\":[");
        for (int i = 0; i < count; i++)
            buffer_format(&text, "%s{\"kty\":\"EC\",\"crv\":\"P-256\"," P256_XY ",\"kid\":\"%d\"}",
                i == 0 ? "" : ",", i);
        buffer_text(&text, "]}");
        CHECK_EQ_INT(key_set_parse((struct span){ text.bytes, text.size },
                         &(struct key_set_options){ 0 }, &set, NULL),
            count <= KEY_SET_KEYS_MAX ? 0 : TR_ETOOBIG);
        if (count <= KEY_SET_KEYS_MAX)
            key_set_destroy(set);
    }
    while (text.size <= KEY_SET_BYTES_MAX)
        buffer_text(&text, "                ");
    CHECK_EQ_INT(key_set_parse((struct span){ text.bytes, text.size },
                     &(struct key_set_options){ 0 }, &set, NULL),
        TR_ETOOBIG);
    buffer_free(&text);
}

static int load(const char *path, struct key_set **ret_set, char *why)
{
    return key_set_load(tr_env_real(), path, &(struct key_set_options){ 0 }, ret_set, why);
}

TEST(key_set, comes_from_a_file)
{
    char folder[] = "/tmp/test_jwk_XXXXXX", path[64], why[KEY_SET_WHY_CHARS] = "";
    struct key_set *set = NULL;
    FILE *file;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/keys.json", folder);
    CHECK_EQ_INT(load(path, &set, why), TR_ENOENT);
    CHECK(why[0] != '\0');
    file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(SET(EC(KID("a"))), file);
    fclose(file);
    for (uint64_t n = 1;; n++) {
        int rc;

        base_fault_countdown(n, 1);
        rc = load(path, &set, why);
        if (base_fault_countdown(0, 0) < n) {
            CHECK_EQ_INT(rc, 0);
            break;
        }
        CHECK(rc != 0);
    }
    CHECK(key_set_find(set, SPAN("a")) != NULL);
    key_set_destroy(set);
    CHECK_EQ_INT(truncate(path, KEY_SET_BYTES_MAX + 1), 0);
    CHECK_EQ_INT(load(path, &set, why), TR_ETOOBIG);
    CHECK_EQ_INT(truncate(path, 0), 0);
    CHECK_EQ_INT(load(path, &set, why), TR_EPROTO);
    unlink(path);
    rmdir(folder);
}

TEST(key_set, every_failed_allocation_is_no_memory_and_leaves_nothing)
{
    for (size_t i = 0; i < SETS; i++) {
        for (uint64_t n = 1;; n++) {
            struct key_set *set = NULL;
            bool is_over;
            int rc;

            base_fault_countdown(n, 1);
            rc = key_set_parse(span_of(sets[i].text), &sets[i].options, &set, NULL);
            is_over = base_fault_countdown(0, 0) < n;
            CHECK(is_over ? rc == sets[i].rc : rc == TR_ENOMEM || rc == sets[i].rc);
            key_set_destroy(set);
            if (is_over)
                break;
        }
    }
}
