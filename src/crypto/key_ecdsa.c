/* SPDX-License-Identifier: Apache-2.0 */
/* key_ecdsa.c: ES256 by OpenSSL, and ES256K by libsecp256k1, which is nine times as fast as
 * OpenSSL. Both hash with SHA-256 first and use r||s. OpenSSL needs DER, and it makes and accepts a
 * high S; this file converts, lowers S when it signs and refuses a high S when it verifies. */
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/key_private.h"

/* Accept the compressed and the uncompressed form of a point, and refuse the "hybrid" form. */
static bool has_point_form(const uint8_t *bytes, size_t size)
{
    return (size == 33 && (bytes[0] == 2 || bytes[0] == 3)) || (size == 65 && bytes[0] == 4);
}

/* ---- ES256 ----------------------------------------------------------------------------------- */

/* The order of P-256. */
static const uint8_t order_p256[32] = { 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9,
    0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51 };

/* Compute both forms of scalar * G or, without a scalar, of the given point. */
static int convert_point(const uint8_t *scalar, const uint8_t *given, size_t given_size,
    uint8_t compressed[33], uint8_t uncompressed[65])
{
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    EC_POINT *point = group == NULL ? NULL : EC_POINT_new(group);
    BIGNUM *number = scalar == NULL ? NULL : BN_bin2bn(scalar, 32, NULL);
    int rc = TR_ENOMEM;

    if (point == NULL || (scalar != NULL && number == NULL))
        goto done;
    rc = TR_EPROTO;
    if (scalar != NULL ? EC_POINT_mul(group, point, number, NULL, NULL, NULL) != 1
                       : EC_POINT_oct2point(group, point, given, given_size, NULL) != 1)
        goto done;
    if (EC_POINT_point2oct(group, point, POINT_CONVERSION_COMPRESSED, compressed, 33, NULL) != 33 ||
        EC_POINT_point2oct(group, point, POINT_CONVERSION_UNCOMPRESSED, uncompressed, 65, NULL) !=
            65)
        goto done;
    rc = 0;
done:
    BN_clear_free(number);
    EC_POINT_free(point);
    EC_GROUP_free(group);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

static int es256_make_pkey(struct crypto_key *key, const uint8_t *scalar, uint8_t point[65])
{
    OSSL_PARAM_BLD *build = base_fault_hit() ? NULL : OSSL_PARAM_BLD_new();
    BIGNUM *number = scalar == NULL ? NULL : BN_bin2bn(scalar, 32, BN_secure_new());
    EVP_PKEY_CTX *context = NULL;
    OSSL_PARAM *params = NULL;
    int rc = TR_ENOMEM;

    if (build == NULL || (scalar != NULL && number == NULL) ||
        OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) != 1 ||
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, 65) != 1 ||
        (number != NULL && OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, number) != 1))
        goto done;
    params = OSSL_PARAM_BLD_to_param(build);
    context = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    if (params == NULL || context == NULL || EVP_PKEY_fromdata_init(context) != 1)
        goto done;
    rc = EVP_PKEY_fromdata(context, &key->pkey,
             number == NULL ? EVP_PKEY_PUBLIC_KEY : EVP_PKEY_KEYPAIR, params) == 1
             ? 0
             : TR_EPROTO;
done:
    EVP_PKEY_CTX_free(context);
    OSSL_PARAM_free(params);
    BN_clear_free(number);
    OSSL_PARAM_BLD_free(build);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

static int es256_set_public(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    uint8_t point[65];
    int rc;

    if (!has_point_form(bytes, size))
        return TR_EPROTO;
    rc = convert_point(NULL, bytes, size, key->public_bytes, point);
    if (rc != 0)
        return rc;
    return es256_make_pkey(key, NULL, point);
}

static int es256_set_private(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    static const uint8_t zero[32];
    uint8_t point[65];
    int rc;

    /* Importing a key file: the time of these comparisons tells an attacker nothing useful. */
    if (bytes == NULL || size != 32 || memcmp(bytes, zero, 32) == 0 ||
        memcmp(bytes, order_p256, 32) >= 0)
        return TR_EPROTO;
    rc = convert_point(bytes, NULL, 0, key->public_bytes, point);
    if (rc != 0)
        return rc;
    rc = es256_make_pkey(key, bytes, point);
    if (rc != 0)
        return rc;
    memcpy(key->secret, bytes, 32);
    key->is_private = true;
    return 0;
}

static int es256_generate(struct crypto_key *key)
{
    uint8_t scalar[32];
    int rc;

    do {
        crypto_random_fill(scalar, sizeof scalar);
        rc = es256_set_private(key, scalar, sizeof scalar);
    } while (rc == TR_EPROTO); /* zero, or not below the order: about one in 2^32 */
    crypto_wipe(scalar, sizeof scalar);
    return rc;
}

static bool es256_get_point(const struct crypto_key *key, uint8_t point[65])
{
    uint8_t compressed[33];

    return convert_point(NULL, key->public_bytes, 33, compressed, point) == 0;
}

/* Compute value = order - value, big-endian. */
static void subtract_from_order(uint8_t value[32])
{
    int borrow = 0;

    for (int i = 31; i >= 0; i--) {
        int digit = order_p256[i] - value[i] - borrow;

        borrow = digit < 0;
        value[i] = (uint8_t)(digit + (borrow != 0 ? 256 : 0));
    }
}

static int es256_sign(
    const struct crypto_key *key, const void *bytes, size_t size, uint8_t *signature)
{
    uint8_t digest[CRYPTO_SHA256_BYTES], der[80];
    const uint8_t *at = der;
    size_t der_size = sizeof der;
    EVP_PKEY_CTX *context = base_fault_hit() ? NULL : EVP_PKEY_CTX_new(key->pkey, NULL);
    ECDSA_SIG *pair = NULL;
    int rc = TR_ENOMEM;

    if (context == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    crypto_sha256(bytes, size, digest);
    if (EVP_PKEY_sign_init(context) == 1 &&
        EVP_PKEY_sign(context, der, &der_size, digest, sizeof digest) == 1)
        pair = d2i_ECDSA_SIG(NULL, &at, (long)der_size);
    if (pair != NULL && BN_bn2binpad(ECDSA_SIG_get0_r(pair), signature, 32) == 32 &&
        BN_bn2binpad(ECDSA_SIG_get0_s(pair), signature + 32, 32) == 32) {
        if (!crypto_signature_is_low_s(CRYPTO_ES256, signature))
            subtract_from_order(signature + 32);
        rc = 0;
    }
    ECDSA_SIG_free(pair);
    EVP_PKEY_CTX_free(context);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

/* Write 32 bytes as one INTEGER of DER, in the shortest non-negative form. Returns its size. */
static size_t put_der_integer(const uint8_t *number, uint8_t *out)
{
    size_t skip = 0, sign;

    while (skip < 31 && number[skip] == 0)
        skip++;
    sign = number[skip] >> 7;
    out[0] = 0x02;
    out[1] = (uint8_t)(32 - skip + sign);
    out[2] = 0;
    memcpy(out + 2 + sign, number + skip, 32 - skip);
    return 2 + sign + 32 - skip;
}

static int es256_verify(
    const struct crypto_key *key, const void *bytes, size_t size, const uint8_t *signature)
{
    uint8_t digest[CRYPTO_SHA256_BYTES], der[80];
    size_t content = put_der_integer(signature, der + 2);
    EVP_PKEY_CTX *context = base_fault_hit() ? NULL : EVP_PKEY_CTX_new(key->pkey, NULL);
    int rc = TR_ENOMEM;

    if (context == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    content += put_der_integer(signature + 32, der + 2 + content);
    der[0] = 0x30;
    der[1] = (uint8_t)content;
    crypto_sha256(bytes, size, digest);
    if (EVP_PKEY_verify_init(context) == 1)
        rc = EVP_PKEY_verify(context, der, content + 2, digest, sizeof digest) == 1 ? 0 : TR_EACCES;
    EVP_PKEY_CTX_free(context);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

const struct crypto_key_kind crypto__es256 = {
    .algorithm = CRYPTO_ES256,
    .codec = { 0x80, 0x24 }, /* p256-pub, 0x1200 */
    .public_size = 33,
    .generate = es256_generate,
    .set_public = es256_set_public,
    .set_private = es256_set_private,
    .get_point = es256_get_point,
    .sign = es256_sign,
    .verify = es256_verify,
};

/* ---- ES256K ---------------------------------------------------------------------------------- */

static pthread_once_t secp_once = PTHREAD_ONCE_INIT;
static secp256k1_context *secp; /* read-only after its creation, so any thread may use it */

static void secp_create(void)
{
    uint8_t seed[32];

    secp = secp256k1_context_create(SECP256K1_CONTEXT_SIGN | SECP256K1_CONTEXT_VERIFY);
    crypto_random_fill(seed, sizeof seed);
    (void)!secp256k1_context_randomize(secp, seed);
    crypto_wipe(seed, sizeof seed);
}

static const secp256k1_context *get_secp(void)
{
    pthread_once(&secp_once, secp_create);
    return secp;
}

static void es256k_keep_public(struct crypto_key *key)
{
    size_t size = 33;
    int rc = secp256k1_ec_pubkey_serialize(
        get_secp(), key->public_bytes, &size, &key->secp_public, SECP256K1_EC_COMPRESSED);

    tr_assert(rc == 1);
}

static int es256k_set_public(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    if (!has_point_form(bytes, size) ||
        secp256k1_ec_pubkey_parse(get_secp(), &key->secp_public, bytes, size) != 1)
        return TR_EPROTO;
    es256k_keep_public(key);
    return 0;
}

static int es256k_set_private(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    if (size != 32 || secp256k1_ec_pubkey_create(get_secp(), &key->secp_public, bytes) != 1)
        return TR_EPROTO;
    es256k_keep_public(key);
    memcpy(key->secret, bytes, 32);
    key->is_private = true;
    return 0;
}

static int es256k_generate(struct crypto_key *key)
{
    uint8_t scalar[32];
    int rc;

    do {
        crypto_random_fill(scalar, sizeof scalar);
        rc = es256k_set_private(key, scalar, sizeof scalar);
    } while (rc != 0);
    crypto_wipe(scalar, sizeof scalar);
    return 0;
}

static bool es256k_get_point(const struct crypto_key *key, uint8_t point[65])
{
    size_t size = 65;

    return secp256k1_ec_pubkey_serialize(
               get_secp(), point, &size, &key->secp_public, SECP256K1_EC_UNCOMPRESSED) == 1;
}

static int es256k_sign(
    const struct crypto_key *key, const void *bytes, size_t size, uint8_t *signature)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    secp256k1_ecdsa_signature pair;

    crypto_sha256(bytes, size, digest);
    /* libsecp256k1 uses nonces of RFC 6979 and makes a low S. */
    if (secp256k1_ecdsa_sign(get_secp(), &pair, digest, key->secret, NULL, NULL) != 1)
        return TR_EACCES;
    secp256k1_ecdsa_signature_serialize_compact(get_secp(), signature, &pair);
    return 0;
}

static int es256k_verify(
    const struct crypto_key *key, const void *bytes, size_t size, const uint8_t *signature)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    secp256k1_ecdsa_signature pair;

    if (secp256k1_ecdsa_signature_parse_compact(get_secp(), &pair, signature) != 1)
        return TR_EACCES;
    crypto_sha256(bytes, size, digest);
    return secp256k1_ecdsa_verify(get_secp(), &pair, digest, &key->secp_public) == 1 ? 0
                                                                                     : TR_EACCES;
}

const struct crypto_key_kind crypto__es256k = {
    .algorithm = CRYPTO_ES256K,
    .codec = { 0xe7, 0x01 }, /* secp256k1-pub, 0xe7 */
    .public_size = 33,
    .generate = es256k_generate,
    .set_public = es256k_set_public,
    .set_private = es256k_set_private,
    .get_point = es256k_get_point,
    .sign = es256k_sign,
    .verify = es256k_verify,
};
