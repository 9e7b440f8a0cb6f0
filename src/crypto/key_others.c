/* SPDX-License-Identifier: Apache-2.0 */
/* key_others.c: EdDSA by libsodium, RS256 by OpenSSL, HS256 by digest.c. */
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>
#include <sodium.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/key_private.h"

/* ---- EdDSA ----------------------------------------------------------------------------------- */

static int eddsa_set_public(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    if (size != crypto_sign_PUBLICKEYBYTES || sodium_init() < 0)
        return TR_EPROTO;
    /* A key of small order or off the curve would verify signatures that no one made. */
    if (crypto_core_ed25519_is_valid_point(bytes) != 1)
        return TR_EPROTO;
    memcpy(key->public_bytes, bytes, size);
    return 0;
}

static int eddsa_set_private(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    _Static_assert(crypto_sign_SECRETKEYBYTES <= CRYPTO_SECRET_BYTES_MAX, "seed and public key");

    if (size != crypto_sign_SEEDBYTES || sodium_init() < 0)
        return TR_EPROTO;
    crypto_sign_seed_keypair(key->public_bytes, key->secret, bytes);
    key->is_private = true;
    return 0;
}

static int eddsa_generate(struct crypto_key *key)
{
    uint8_t seed[crypto_sign_SEEDBYTES];
    int rc;

    crypto_random_fill(seed, sizeof seed);
    rc = eddsa_set_private(key, seed, sizeof seed);
    crypto_wipe(seed, sizeof seed);
    return rc;
}

static int eddsa_sign(
    const struct crypto_key *key, const void *bytes, size_t size, uint8_t *signature)
{
    return crypto_sign_detached(signature, NULL, bytes, size, key->secret) == 0 ? 0 : TR_EACCES;
}

static int eddsa_verify(
    const struct crypto_key *key, const void *bytes, size_t size, const uint8_t *signature)
{
    return crypto_sign_verify_detached(signature, bytes, size, key->public_bytes) == 0 ? 0
                                                                                       : TR_EACCES;
}

const struct crypto_key_kind crypto__eddsa = {
    .algorithm = CRYPTO_EDDSA,
    .codec = { 0xed, 0x01 }, /* ed25519-pub, 0xed */
    .public_size = 32,
    .generate = eddsa_generate,
    .set_public = eddsa_set_public,
    .set_private = eddsa_set_private,
    .sign = eddsa_sign,
    .verify = eddsa_verify,
};

/* ---- RS256 ----------------------------------------------------------------------------------- */

/* Detect moduli of one family of faulty chips, which can be factored (CVE-2017-15361): they are
 * powers of 65537 modulo every small prime, up to 701 at these sizes. A good modulus looks like
 * that with a probability below 2^-167. */
static bool has_weak_structure(const BIGNUM *modulus)
{
    for (unsigned prime = 3; prime <= 701; prime += 2) {
        bool is_prime = true, is_power = false;
        unsigned rest, power = 1;

        for (unsigned d = 3; d * d <= prime; d += 2)
            is_prime = is_prime && prime % d != 0;
        if (!is_prime)
            continue;
        rest = (unsigned)BN_mod_word(modulus, prime);
        do {
            is_power = is_power || power == rest;
            power = power * (65537 % prime) % prime;
        } while (power != 1);
        if (!is_power)
            return false;
    }
    return true;
}

static bool is_acceptable(const BIGNUM *modulus, const BIGNUM *exponent)
{
    int bits = BN_num_bits(modulus);

    return bits >= CRYPTO_RSA_BITS_MIN && bits <= CRYPTO_RSA_BITS_MAX && BN_is_odd(modulus) &&
           BN_is_odd(exponent) && BN_num_bits(exponent) >= 17 && BN_num_bits(exponent) <= 32 &&
           !has_weak_structure(modulus);
}

static int rsa_build(struct crypto_key *key, const BIGNUM *modulus, const BIGNUM *exponent)
{
    OSSL_PARAM_BLD *build = base_fault_hit() ? NULL : OSSL_PARAM_BLD_new();
    EVP_PKEY_CTX *context = NULL;
    OSSL_PARAM *params = NULL;
    int rc = TR_ENOMEM;

    if (build == NULL || OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_RSA_N, modulus) != 1 ||
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_RSA_E, exponent) != 1)
        goto done;
    params = OSSL_PARAM_BLD_to_param(build);
    context = EVP_PKEY_CTX_new_from_name(NULL, "RSA", NULL);
    if (params == NULL || context == NULL || EVP_PKEY_fromdata_init(context) != 1)
        goto done;
    rc = EVP_PKEY_fromdata(context, &key->pkey, EVP_PKEY_PUBLIC_KEY, params) == 1 ? 0 : TR_EPROTO;
    if (rc == 0)
        key->signature_size = (uint32_t)BN_num_bytes(modulus);
done:
    EVP_PKEY_CTX_free(context);
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(build);
    return rc;
}

int crypto__rs256_set(struct crypto_key *key, const struct crypto_rsa_public *rsa)
{
    BIGNUM *modulus, *exponent;
    int rc = TR_ENOMEM;

    if (rsa->modulus.size > CRYPTO_RSA_BITS_MAX / 8 + 1 || rsa->exponent.size > 16)
        return TR_EPROTO;
    modulus = BN_bin2bn((const uint8_t *)rsa->modulus.at, (int)rsa->modulus.size, NULL);
    exponent = BN_bin2bn((const uint8_t *)rsa->exponent.at, (int)rsa->exponent.size, NULL);
    if (modulus != NULL && exponent != NULL)
        rc = is_acceptable(modulus, exponent) ? rsa_build(key, modulus, exponent) : TR_EPROTO;
    BN_free(exponent);
    BN_free(modulus);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

int crypto__rs256_adopt(struct crypto_key *key, EVP_PKEY **pkey)
{
    BIGNUM *modulus = NULL, *exponent = NULL;
    int rc = TR_EPROTO;

    if (EVP_PKEY_get_bn_param(*pkey, OSSL_PKEY_PARAM_RSA_N, &modulus) == 1 &&
        EVP_PKEY_get_bn_param(*pkey, OSSL_PKEY_PARAM_RSA_E, &exponent) == 1 &&
        is_acceptable(modulus, exponent)) {
        key->pkey = *pkey;
        *pkey = NULL;
        key->signature_size = (uint32_t)BN_num_bytes(modulus);
        key->is_private = true;
        rc = 0;
    }
    BN_free(exponent);
    BN_free(modulus);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

static int rs256_generate(struct crypto_key *key)
{
    EVP_PKEY *pkey = base_fault_hit() ? NULL : EVP_RSA_gen(CRYPTO_RSA_BITS_MIN);
    int rc;

    if (pkey == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    rc = crypto__rs256_adopt(key, &pkey);
    EVP_PKEY_free(pkey);
    return rc;
}

/* Create a context for RSASSA-PKCS1-v1_5 with SHA-256 and call `init` on it; NULL when out of
 * memory. */
static EVP_PKEY_CTX *rs256_context(const struct crypto_key *key, int (*init)(EVP_PKEY_CTX *context))
{
    EVP_PKEY_CTX *context = base_fault_hit() ? NULL : EVP_PKEY_CTX_new(key->pkey, NULL);

    if (context != NULL && init(context) == 1 &&
        EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING) == 1 &&
        EVP_PKEY_CTX_set_signature_md(context, EVP_sha256()) == 1)
        return context;
    EVP_PKEY_CTX_free(context);
    return NULL;
}

static int rs256_sign(
    const struct crypto_key *key, const void *bytes, size_t size, uint8_t *signature)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    EVP_PKEY_CTX *context = rs256_context(key, EVP_PKEY_sign_init);
    size_t written = key->signature_size;
    int rc = TR_ENOMEM;

    if (context == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    crypto_sha256(bytes, size, digest);
    if (EVP_PKEY_sign(context, signature, &written, digest, sizeof digest) == 1)
        rc = 0;
    EVP_PKEY_CTX_free(context);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

static int rs256_verify(
    const struct crypto_key *key, const void *bytes, size_t size, const uint8_t *signature)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    EVP_PKEY_CTX *context = rs256_context(key, EVP_PKEY_verify_init);
    int rc = TR_EACCES;

    if (context == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    crypto_sha256(bytes, size, digest);
    if (EVP_PKEY_verify(context, signature, key->signature_size, digest, sizeof digest) == 1)
        rc = 0;
    EVP_PKEY_CTX_free(context);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}

const struct crypto_key_kind crypto__rs256 = {
    .algorithm = CRYPTO_RS256,
    .generate = rs256_generate,
    .sign = rs256_sign,
    .verify = rs256_verify,
};

/* ---- HS256 ----------------------------------------------------------------------------------- */

static int hs256_set(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    if (size < CRYPTO_SECRET_BYTES_MIN || size > CRYPTO_SECRET_BYTES_MAX)
        return TR_EPROTO;
    memcpy(key->secret, bytes, size);
    key->secret_size = (uint32_t)size;
    key->signature_size = CRYPTO_SHA256_BYTES;
    key->is_private = true;
    return 0;
}

static int hs256_generate(struct crypto_key *key)
{
    uint8_t secret[CRYPTO_SECRET_BYTES_MIN];
    int rc;

    crypto_random_fill(secret, sizeof secret);
    rc = hs256_set(key, secret, sizeof secret);
    crypto_wipe(secret, sizeof secret);
    return rc;
}

static int hs256_sign(
    const struct crypto_key *key, const void *bytes, size_t size, uint8_t *signature)
{
    crypto_hmac_sha256(key->secret, key->secret_size, bytes, size, signature);
    return 0;
}

static int hs256_verify(
    const struct crypto_key *key, const void *bytes, size_t size, const uint8_t *signature)
{
    uint8_t tag[CRYPTO_SHA256_BYTES];

    crypto_hmac_sha256(key->secret, key->secret_size, bytes, size, tag);
    return crypto_equal(tag, signature, sizeof tag) ? 0 : TR_EACCES;
}

const struct crypto_key_kind crypto__hs256 = {
    .algorithm = CRYPTO_HS256,
    .generate = hs256_generate,
    .set_private = hs256_set,
    .sign = hs256_sign,
    .verify = hs256_verify,
};
