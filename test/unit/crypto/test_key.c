/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <pthread.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "check.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "crypto/key.h"

static const enum crypto_algorithm all[] = { CRYPTO_ES256, CRYPTO_ES256K, CRYPTO_EDDSA,
    CRYPTO_RS256, CRYPTO_HS256 };
enum { ALL = sizeof all / sizeof all[0], PUBLIC = 4 }; /* the last one is a secret */

static struct crypto_key *generate(enum crypto_algorithm algorithm)
{
    struct crypto_key *key = NULL;

    CHECK_EQ_INT(crypto_key_generate(algorithm, &key), 0);
    return key;
}

static struct span sign(const struct crypto_key *key, const char *text, uint8_t *signature)
{
    CHECK_EQ_INT(crypto_key_sign(key, text, strlen(text), signature), 0);
    return (struct span){ (char *)signature, crypto_key_signature_size(key) };
}

static int verify(const struct crypto_key *key, const char *text, struct span signature)
{
    return crypto_key_verify(key, text, strlen(text), signature);
}

/* ---- signatures ------------------------------------------------------------------------------ */

TEST(key, verifies_what_it_signed_and_nothing_else)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]), *other = generate(all[i]);

        for (int round = 0; round < 20; round++) {
            char text[32];
            struct span span;

            snprintf(text, sizeof text, "message %d", round);
            span = sign(key, text, signature);
            CHECK_EQ_INT(verify(key, text, span), 0);
            CHECK_EQ_INT(verify(key, "message", span), TR_EACCES);
            CHECK_EQ_INT(verify(key, "", span), TR_EACCES);
            CHECK_EQ_INT(verify(other, text, span), TR_EACCES);
            CHECK(crypto_signature_is_low_s(all[i], signature));
        }
        crypto_key_unref(&key);
        crypto_key_unref(&other);
        CHECK(key == NULL);
    }
}

TEST(key, refuses_a_signature_of_any_other_size)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX + 8] = { 0 };

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);
        struct span span = sign(key, "text", signature);

        for (size_t size = 0; size < span.size + 8; size++)
            if (size != span.size)
                CHECK_EQ_INT(verify(key, "text", (struct span){ span.at, size }), TR_EPROTO);
        crypto_key_unref(&key);
    }
}

TEST_LONG(key, refuses_a_signature_with_any_bit_changed, 60)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];

    for (size_t i = 0; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);
        struct span span = sign(key, "text", signature);

        for (size_t bit = 0; bit < span.size * 8; bit++) {
            signature[bit / 8] ^= (uint8_t)(1u << bit % 8);
            CHECK(verify(key, "text", span) < 0);
            signature[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        CHECK_EQ_INT(verify(key, "text", span), 0);
        crypto_key_unref(&key);
    }
}

TEST(key, the_other_s_is_refused)
{
    static const struct {
        enum crypto_algorithm algorithm;
        const char *order;
    } curves[] = {
        { CRYPTO_ES256, "FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551" },
        { CRYPTO_ES256K, "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141" },
    };
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];

    for (size_t i = 0; i < 2; i++) {
        struct crypto_key *key = generate(curves[i].algorithm);
        struct span span = sign(key, "text", signature);
        BIGNUM *order = NULL, *half = BN_new(), *s = BN_bin2bn(signature + 32, 32, NULL);

        CHECK(BN_hex2bn(&order, curves[i].order) > 0);
        CHECK_EQ_INT(BN_sub(s, order, s), 1);
        CHECK_EQ_INT(BN_bn2binpad(s, signature + 32, 32), 32);
        CHECK(!crypto_signature_is_low_s(curves[i].algorithm, signature));
        CHECK_EQ_INT(verify(key, "text", span), TR_EPROTO);

        /* exactly n/2 is low, one more is high; zero is neither */
        CHECK_EQ_INT(BN_rshift1(half, order), 1);
        CHECK_EQ_INT(BN_bn2binpad(half, signature + 32, 32), 32);
        CHECK(crypto_signature_is_low_s(curves[i].algorithm, signature));
        CHECK_EQ_INT(BN_add_word(half, 1), 1);
        CHECK_EQ_INT(BN_bn2binpad(half, signature + 32, 32), 32);
        CHECK(!crypto_signature_is_low_s(curves[i].algorithm, signature));
        memset(signature + 32, 0, 32);
        CHECK(!crypto_signature_is_low_s(curves[i].algorithm, signature));
        BN_free(order);
        BN_free(half);
        BN_free(s);
        crypto_key_unref(&key);
    }
}

TEST(key, a_public_half_verifies_but_cannot_sign)
{
    uint8_t bytes[CRYPTO_PUBLIC_BYTES_MAX], signature[CRYPTO_SIGNATURE_BYTES_MAX];

    for (size_t i = 0; i < 3; i++) {
        struct crypto_key *key = generate(all[i]), *public_key = NULL;
        size_t size = crypto_key_public_bytes(key, bytes);
        struct span span = sign(key, "text", signature);

        CHECK_EQ_INT(crypto_key_from_public(all[i], bytes, size, &public_key), 0);
        CHECK(!crypto_key_is_private(public_key));
        CHECK_EQ_INT(verify(public_key, "text", span), 0);
        CHECK_EQ_INT(crypto_key_sign(public_key, "text", 4, signature), TR_EACCES);
        CHECK(!crypto_key_private_bytes(public_key, bytes));
        crypto_key_unref(&key);
        crypto_key_unref(&public_key);
    }
}

TEST(key, private_bytes_make_the_same_key_again)
{
    uint8_t secret[32], a[33], b[33];

    for (size_t i = 0; i < 3; i++) {
        struct crypto_key *key = generate(all[i]), *again = NULL;

        CHECK(crypto_key_private_bytes(key, secret));
        CHECK_EQ_INT(crypto_key_from_private(all[i], secret, 32, &again), 0);
        CHECK_EQ_U64(crypto_key_public_bytes(key, a), crypto_key_public_bytes(again, b));
        CHECK(memcmp(a, b, crypto_key_public_bytes(key, a)) == 0);
        crypto_key_unref(&key);
        crypto_key_unref(&again);
    }
}

/* ---- the same answers as OpenSSL ------------------------------------------------------------- */

static EVP_PKEY *openssl_public(const struct crypto_key *key)
{
    struct buffer pem = { 0 };
    EVP_PKEY *pkey;
    BIO *bio;

    CHECK_EQ_INT(crypto_key_public_pem(key, &pem), 0);
    bio = BIO_new_mem_buf(pem.bytes, (int)pem.size);
    pkey = PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL);
    BIO_free(bio);
    buffer_free(&pem);
    CHECK(pkey != NULL);
    return pkey;
}

static size_t to_der(const uint8_t raw[64], uint8_t *der)
{
    ECDSA_SIG *pair = ECDSA_SIG_new();
    int size;

    CHECK_EQ_INT(ECDSA_SIG_set0(pair, BN_bin2bn(raw, 32, NULL), BN_bin2bn(raw + 32, 32, NULL)), 1);
    size = i2d_ECDSA_SIG(pair, &der);
    ECDSA_SIG_free(pair);
    CHECK(size > 0);
    return (size_t)size;
}

TEST_LONG(key, openssl_verifies_what_we_sign, 60)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX], der[80];

    for (size_t i = 0; i < PUBLIC; i++) {
        struct crypto_key *key = generate(all[i]);
        EVP_PKEY *pkey = openssl_public(key);
        bool is_pair = all[i] == CRYPTO_ES256 || all[i] == CRYPTO_ES256K;

        for (int round = 0; round < 100; round++) {
            char text[32];
            struct span span;
            size_t size;
            EVP_MD_CTX *context = EVP_MD_CTX_new();

            snprintf(text, sizeof text, "message %d", round);
            span = sign(key, text, signature);
            size = is_pair ? to_der(signature, der) : span.size;
            CHECK_EQ_INT(EVP_DigestVerifyInit(context, NULL,
                             all[i] == CRYPTO_EDDSA ? NULL : EVP_sha256(), NULL, pkey),
                1);
            CHECK_EQ_INT(EVP_DigestVerify(context, is_pair ? der : signature, size,
                             (const uint8_t *)text, strlen(text)),
                1);
            EVP_MD_CTX_free(context);
        }
        EVP_PKEY_free(pkey);
        crypto_key_unref(&key);
    }
}

/* OpenSSL makes high and low S: accept exactly the signatures with a low S. */
TEST_LONG(key, verifies_what_openssl_signs_with_a_low_s, 60)
{
    static const struct {
        const char *curve;
        enum crypto_algorithm algorithm;
    } curves[] = { { "P-256", CRYPTO_ES256 }, { "secp256k1", CRYPTO_ES256K } };
    int low = 0, high = 0;

    for (size_t i = 0; i < 2; i++) {
        EVP_PKEY *pkey = EVP_EC_gen(curves[i].curve);
        uint8_t point[65], raw[64];
        size_t size;
        struct crypto_key *key = NULL;

        CHECK_EQ_INT(EVP_PKEY_get_octet_string_param(
                         pkey, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point, &size),
            1);
        CHECK_EQ_INT(crypto_key_from_public(curves[i].algorithm, point, size, &key), 0);
        for (int round = 0; round < 100; round++) {
            uint8_t der[80];
            const uint8_t *at = der;
            char text[32];
            EVP_MD_CTX *context = EVP_MD_CTX_new();
            ECDSA_SIG *pair;

            snprintf(text, sizeof text, "message %d", round);
            size = sizeof der;
            CHECK_EQ_INT(EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, pkey), 1);
            CHECK_EQ_INT(
                EVP_DigestSign(context, der, &size, (const uint8_t *)text, strlen(text)), 1);
            EVP_MD_CTX_free(context);
            pair = d2i_ECDSA_SIG(NULL, &at, (long)size);
            CHECK_EQ_INT(BN_bn2binpad(ECDSA_SIG_get0_r(pair), raw, 32), 32);
            CHECK_EQ_INT(BN_bn2binpad(ECDSA_SIG_get0_s(pair), raw + 32, 32), 32);
            ECDSA_SIG_free(pair);
            if (crypto_signature_is_low_s(curves[i].algorithm, raw)) {
                low++;
                CHECK_EQ_INT(verify(key, text, (struct span){ (char *)raw, 64 }), 0);
            } else {
                high++;
                CHECK_EQ_INT(verify(key, text, (struct span){ (char *)raw, 64 }), TR_EPROTO);
            }
        }
        EVP_PKEY_free(pkey);
        crypto_key_unref(&key);
    }
    CHECK(low > 20);
    CHECK(high > 20);
}

/* ---- valid keys ------------------------------------------------------------------------------ */

TEST(key, points_off_the_curve_and_other_forms_are_refused)
{
    uint8_t x[32], y[32], point[65];
    struct crypto_key *bad = NULL;

    for (size_t i = 0; i < 2; i++) {
        struct crypto_key *key = generate(all[i]);

        CHECK(crypto_key_public_point(key, x, y));
        point[0] = 4;
        memcpy(point + 1, x, 32);
        memcpy(point + 33, y, 32);
        CHECK_EQ_INT(crypto_key_from_public(all[i], point, 65, &bad), 0);
        crypto_key_unref(&bad);
        point[64] ^= 1;
        CHECK_EQ_INT(crypto_key_from_public(all[i], point, 65, &bad), TR_EPROTO);
        point[64] ^= 1;
        point[0] = (uint8_t)(6 + (y[31] & 1)); /* hybrid */
        CHECK_EQ_INT(crypto_key_from_public(all[i], point, 65, &bad), TR_EPROTO);
        point[0] = 0; /* infinity */
        CHECK_EQ_INT(crypto_key_from_public(all[i], point, 1, &bad), TR_EPROTO);
        for (size_t size = 0; size < 65; size++) {
            point[0] = 4;
            CHECK_EQ_INT(crypto_key_from_public(all[i], point, size, &bad), TR_EPROTO);
        }
        memset(point, 0xff, sizeof point);
        point[0] = 2; /* x is not below the prime */
        CHECK_EQ_INT(crypto_key_from_public(all[i], point, 33, &bad), TR_EPROTO);
        crypto_key_unref(&key);
    }
    memset(point, 0, sizeof point); /* Ed25519: of small order */
    CHECK_EQ_INT(crypto_key_from_public(CRYPTO_EDDSA, point, 32, &bad), TR_EPROTO);
    point[0] = 1;
    CHECK_EQ_INT(crypto_key_from_public(CRYPTO_EDDSA, point, 32, &bad), TR_EPROTO);
    CHECK_EQ_INT(crypto_key_from_public(CRYPTO_EDDSA, point, 31, &bad), TR_EPROTO);
    CHECK_EQ_INT(crypto_key_from_public(CRYPTO_HS256, point, 32, &bad), TR_EUNSUPPORTED);
    CHECK_EQ_INT(crypto_key_from_public(CRYPTO_RS256, point, 32, &bad), TR_EUNSUPPORTED);
    CHECK(bad == NULL);
}

TEST(key, scalars_outside_the_group_are_refused)
{
    uint8_t scalar[32] = { 0 };
    struct crypto_key *bad = NULL;

    for (size_t i = 0; i < 2; i++) {
        memset(scalar, 0, sizeof scalar);
        CHECK_EQ_INT(crypto_key_from_private(all[i], scalar, 32, &bad), TR_EPROTO);
        memset(scalar, 0xff, sizeof scalar);
        CHECK_EQ_INT(crypto_key_from_private(all[i], scalar, 32, &bad), TR_EPROTO);
        CHECK_EQ_INT(crypto_key_from_private(all[i], scalar, 31, &bad), TR_EPROTO);
    }
    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_EDDSA, scalar, 33, &bad), TR_EPROTO);
    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_RS256, scalar, 32, &bad), TR_EUNSUPPORTED);
}

TEST(key, secrets_have_32_to_128_bytes)
{
    uint8_t secret[129] = { 1 };
    struct crypto_key *key = NULL;

    for (size_t size = 0; size <= 129; size++) {
        int rc = crypto_key_from_private(CRYPTO_HS256, secret, size, &key);

        CHECK_EQ_INT(rc, size >= 32 && size <= 128 ? 0 : TR_EPROTO);
        if (rc == 0)
            crypto_key_unref(&key);
    }
}

static int from_numbers(const BIGNUM *n, const BIGNUM *e)
{
    uint8_t modulus[1024], exponent[16];
    struct crypto_key *key = NULL;
    int rc = crypto_key_from_rsa(
        &(struct crypto_rsa_public){ .modulus = { (char *)modulus, (size_t)BN_bn2bin(n, modulus) },
            .exponent = { (char *)exponent, (size_t)BN_bn2bin(e, exponent) } },
        &key);

    crypto_key_unref(&key);
    return rc;
}

TEST_LONG(key, rsa_needs_2048_bits_and_a_sound_exponent, 60)
{
    static const struct {
        unsigned bits;
        int rc;
    } sizes[] = { { 1024, TR_EPROTO }, { 2040, TR_EPROTO }, { 2048, 0 }, { 3072, 0 } };
    static const unsigned long bad_exponents[] = { 0, 1, 2, 3, 17, 65535, 65536, 65538 };
    BIGNUM *n = NULL, *e = BN_new();

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        EVP_PKEY *pkey = EVP_RSA_gen(sizes[i].bits);

        n = NULL;
        CHECK_EQ_INT(EVP_PKEY_get_bn_param(pkey, OSSL_PKEY_PARAM_RSA_N, &n), 1);
        CHECK_EQ_INT(BN_set_word(e, 65537), 1);
        CHECK_EQ_INT(from_numbers(n, e), sizes[i].rc);
        for (size_t j = 0; j < sizeof bad_exponents / sizeof bad_exponents[0]; j++) {
            CHECK_EQ_INT(BN_set_word(e, bad_exponents[j]), 1);
            CHECK_EQ_INT(from_numbers(n, e), TR_EPROTO);
        }
        CHECK_EQ_INT(BN_set_word(e, 65537), 1);
        CHECK_EQ_INT(BN_add_word(n, 1), 1); /* even */
        CHECK_EQ_INT(from_numbers(n, e), TR_EPROTO);
        BN_free(n);
        EVP_PKEY_free(pkey);
    }
    n = BN_new();
    CHECK_EQ_INT(BN_set_bit(n, 4100), 1);
    CHECK_EQ_INT(BN_set_bit(n, 0), 1);
    CHECK_EQ_INT(from_numbers(n, e), TR_EPROTO);
    BN_free(n);
    BN_free(e);
}

/* ---- texts ----------------------------------------------------------------------------------- */

TEST(multikey, a_key_and_its_text_are_the_same)
{
    char text[CRYPTO_MULTIKEY_CHARS_MAX], again[CRYPTO_MULTIKEY_CHARS_MAX];

    for (size_t i = 0; i < 3; i++) {
        struct crypto_key *key = generate(all[i]), *back = NULL;
        size_t size = crypto_multikey_encode(key, text);

        CHECK_EQ_U64(size, strlen(text));
        CHECK_EQ_INT(crypto_multikey_decode(span_of(text), &back), 0);
        CHECK_EQ_INT(crypto_key_algorithm(back), all[i]);
        crypto_multikey_encode(back, again);
        CHECK_EQ_STR(text, again);
        crypto_key_unref(&key);
        crypto_key_unref(&back);
    }
    for (size_t i = 3; i < ALL; i++) {
        struct crypto_key *key = generate(all[i]);

        CHECK_EQ_U64(crypto_multikey_encode(key, text), 0);
        crypto_key_unref(&key);
    }
}

/* From the did:key specification and from documents of AT Protocol. */
TEST(multikey, knows_the_published_examples)
{
    static const struct {
        const char *text;
        enum crypto_algorithm algorithm;
    } examples[] = {
        { "zDnaembgSGUhZULN2Caob4HLJPaxBh92N7rtH21TErzqf8HQo", CRYPTO_ES256 },
        { "zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwc", CRYPTO_ES256K },
        { "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", CRYPTO_EDDSA },
    };

    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        struct crypto_key *key = NULL;
        char text[CRYPTO_MULTIKEY_CHARS_MAX];

        CHECK_EQ_INT(crypto_multikey_decode(span_of(examples[i].text), &key), 0);
        CHECK_EQ_INT(crypto_key_algorithm(key), examples[i].algorithm);
        crypto_multikey_encode(key, text);
        CHECK_EQ_STR(text, examples[i].text);
        crypto_key_unref(&key);
    }
}

TEST(multikey, refuses_everything_else)
{
    static const struct {
        const char *text;
        int rc;
    } bad[] = {
        { "", TR_EPROTO },
        { "z", TR_EPROTO },
        { "z1", TR_EUNSUPPORTED },
        { "m", TR_EPROTO },
        { "mAAAA", TR_EUNSUPPORTED },
        { "zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJw", TR_EUNSUPPORTED },
        { "zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwcc", TR_EPROTO },
        { "zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwl", TR_EPROTO }, /* no l in base58 */
        { "zz6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", TR_EPROTO },
        /* X25519, for encryption only */
        { "z6LSeu9HkTHSfLLeUs2nnzUSNedgDUevfNQgQjQC23ZCit6F", TR_EUNSUPPORTED },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct crypto_key *key = NULL;

        CHECK_MSG(
            crypto_multikey_decode(span_of(bad[i].text), &key) == bad[i].rc, "%s", bad[i].text);
    }
}

TEST_LONG(pem, public_and_private_keys_are_read_again, 60)
{
    static const char *const private_pems[] = {
        "-----BEGIN PRIVATE KEY-----\n"
        "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n"
        "-----END PRIVATE KEY-----\n", /* RFC 8410 section 10.3 */
    };
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    struct crypto_key *back = NULL;
    struct buffer pem = { 0 };

    for (size_t i = 0; i < PUBLIC; i++) {
        struct crypto_key *key = generate(all[i]);
        struct span span = sign(key, "text", signature);

        buffer_clear(&pem);
        CHECK_EQ_INT(crypto_key_public_pem(key, &pem), 0);
        CHECK_EQ_INT(crypto_key_from_pem((struct span){ pem.bytes, pem.size }, &back), 0);
        CHECK_EQ_INT(crypto_key_algorithm(back), all[i]);
        CHECK(!crypto_key_is_private(back));
        CHECK_EQ_INT(verify(back, "text", span), 0);
        crypto_key_unref(&back);
        for (size_t size = 0; size + 1 < pem.size; size += 7)
            CHECK_EQ_INT(crypto_key_from_pem((struct span){ pem.bytes, size }, &back), TR_EPROTO);
        crypto_key_unref(&key);
    }
    CHECK_EQ_INT(crypto_key_from_pem(span_of(private_pems[0]), &back), 0);
    CHECK(crypto_key_is_private(back));
    CHECK_EQ_INT(crypto_key_algorithm(back), CRYPTO_EDDSA);
    crypto_key_unref(&back);
    buffer_free(&pem);
}

/* Keys written by OpenSSL: every supported kind, and two unsupported ones. */
TEST_LONG(pem, private_keys_of_openssl_are_read, 60)
{
    static const struct {
        const char *type, *curve;
        int rc;
        enum crypto_algorithm algorithm;
    } kinds[] = {
        { "EC", "P-256", 0, CRYPTO_ES256 },
        { "EC", "secp256k1", 0, CRYPTO_ES256K },
        { "EC", "P-384", TR_EUNSUPPORTED, CRYPTO_ES256 },
        { "ED25519", NULL, 0, CRYPTO_EDDSA },
        { "X25519", NULL, TR_EUNSUPPORTED, CRYPTO_ES256 },
        { "RSA", NULL, 0, CRYPTO_RS256 },
    };
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        EVP_PKEY *pkey = kinds[i].curve != NULL ? EVP_EC_gen(kinds[i].curve)
                         : strcmp(kinds[i].type, "RSA") == 0
                             ? EVP_RSA_gen(2048)
                             : EVP_PKEY_Q_keygen(NULL, NULL, kinds[i].type);
        BIO *bio = BIO_new(BIO_s_mem());
        struct crypto_key *key = NULL;
        char *text;
        size_t size;

        CHECK(pkey != NULL);
        CHECK_EQ_INT(PEM_write_bio_PrivateKey(bio, pkey, NULL, NULL, 0, NULL, NULL), 1);
        size = (size_t)BIO_get_mem_data(bio, &text);
        CHECK_EQ_INT(crypto_key_from_pem((struct span){ text, size }, &key), kinds[i].rc);
        if (kinds[i].rc == 0) {
            CHECK_EQ_INT(crypto_key_algorithm(key), kinds[i].algorithm);
            CHECK(crypto_key_is_private(key));
            CHECK_EQ_INT(verify(key, "text", sign(key, "text", signature)), 0);
        }
        crypto_key_unref(&key);
        BIO_free(bio);
        EVP_PKEY_free(pkey);
    }
}

TEST(pem, an_encrypted_key_is_an_error_and_asks_nobody)
{
    EVP_PKEY *pkey = EVP_EC_gen("P-256");
    BIO *bio = BIO_new(BIO_s_mem());
    struct crypto_key *key = NULL;
    char *text;
    size_t size;

    CHECK_EQ_INT(PEM_write_bio_PrivateKey(
                     bio, pkey, EVP_aes_128_cbc(), (const unsigned char *)"word", 4, NULL, NULL),
        1);
    size = (size_t)BIO_get_mem_data(bio, &text);
    CHECK_EQ_INT(crypto_key_from_pem((struct span){ text, size }, &key), TR_EPROTO);
    BIO_free(bio);
    EVP_PKEY_free(pkey);
}

TEST(algorithm, names_are_exact)
{
    static const char *const bad[] = { "", "none", "es256", "ES256 ", "ES256KK", "ES384", "HS512",
        "RS512", "PS256", "eddsa", "Ed25519" };
    enum crypto_algorithm algorithm;

    for (size_t i = 0; i < ALL; i++) {
        CHECK(crypto_algorithm_parse(span_of(crypto_algorithm_name(all[i])), &algorithm));
        CHECK_EQ_INT(algorithm, all[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(!crypto_algorithm_parse(span_of(bad[i]), &algorithm));
}

/* ---- faults and threads ---------------------------------------------------------------------- */

static int use_key(enum crypto_algorithm algorithm)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX], bytes[CRYPTO_PUBLIC_BYTES_MAX];
    struct crypto_key *key = NULL, *public_key = NULL;
    struct buffer pem = { 0 };
    size_t size;
    int rc;

    rc = crypto_key_generate(algorithm, &key);
    if (rc == 0)
        rc = crypto_key_sign(key, "text", 4, signature);
    if (rc == 0)
        rc = crypto_key_verify(
            key, "text", 4, (struct span){ (char *)signature, crypto_key_signature_size(key) });
    if (rc == 0 && algorithm != CRYPTO_HS256)
        rc = crypto_key_public_pem(key, &pem);
    if (rc == 0 && algorithm != CRYPTO_HS256)
        rc = crypto_key_from_pem((struct span){ pem.bytes, pem.size }, &public_key);
    if (rc == 0 && (size = crypto_key_public_bytes(key, bytes)) > 0) {
        crypto_key_unref(&public_key);
        rc = crypto_key_from_public(algorithm, bytes, size, &public_key);
    }
    crypto_key_unref(&key);
    crypto_key_unref(&public_key);
    buffer_free(&pem);
    return rc;
}

TEST_LONG(key, every_failed_allocation_is_an_error_and_leaves_nothing, 60)
{
    for (size_t i = 0; i < ALL; i++) {
        uint64_t n = 1;
        int rc;

        for (;; n++) {
            base_fault_countdown(n, 1);
            rc = use_key(all[i]);
            if (base_fault_countdown(0, 0) < n)
                break;
            /* Lack of memory for a digest context is no error: another function takes over. */
            CHECK(rc == TR_ENOMEM || rc == 0);
        }
        CHECK_EQ_INT(rc, 0);
        CHECK(n > 1);
    }
}

static void *verify_many(void *data)
{
    struct crypto_key **keys = data;
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];

    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < ALL; i++) {
            struct crypto_key *mine = crypto_key_ref(keys[i]);

            CHECK_EQ_INT(verify(mine, "text", sign(mine, "text", signature)), 0);
            crypto_key_unref(&mine);
        }
    return NULL;
}

TEST_LONG(key, threads_share_one, 60)
{
    struct crypto_key *keys[ALL];
    pthread_t threads[4];

    for (size_t i = 0; i < ALL; i++)
        keys[i] = generate(all[i]);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, verify_many, keys), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < ALL; i++)
        crypto_key_unref(&keys[i]);
}
