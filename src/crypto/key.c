/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/key.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "crypto/key_private.h"

static const struct crypto_key_kind *const kinds[CRYPTO_ALGORITHMS] = {
    &crypto__es256,
    &crypto__es256k,
    &crypto__eddsa,
    &crypto__rs256,
    &crypto__hs256,
};
static const char *const names[CRYPTO_ALGORITHMS] = { "ES256", "ES256K", "EdDSA", "RS256",
    "HS256" };

static const struct crypto_key_kind *kind_of(enum crypto_algorithm algorithm)
{
    tr_assert(algorithm >= CRYPTO_ES256);
    tr_assert(algorithm <= CRYPTO_HS256);
    return kinds[algorithm - CRYPTO_ES256];
}

const char *crypto_algorithm_name(enum crypto_algorithm algorithm)
{
    return names[kind_of(algorithm)->algorithm - CRYPTO_ES256];
}

bool crypto_algorithm_parse(struct span name, enum crypto_algorithm *ret_algorithm)
{
    for (size_t i = 0; i < CRYPTO_ALGORITHMS; i++) {
        if (span_is(name, names[i])) {
            *ret_algorithm = kinds[i]->algorithm;
            return true;
        }
    }
    return false;
}

int crypto__openssl_failed(int code)
{
    ERR_clear_error();
    return code;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct crypto_key *crypto__key_create(const struct crypto_key_kind *kind)
{
    struct crypto_key *key = base_calloc(sizeof *key);

    if (key == NULL)
        return NULL;
    key->kind = kind;
    key->signature_size = 64;
    atomic_init(&key->references, 1);
    return key;
}

struct crypto_key *crypto_key_ref(struct crypto_key *key)
{
    /* Relaxed: the caller holds a reference already. */
    atomic_fetch_add_explicit(&key->references, 1, memory_order_relaxed);
    return key;
}

void crypto_key_unref(struct crypto_key **key)
{
    struct crypto_key *gone = *key;

    *key = NULL;
    /* The last decrement (acquire) sees all uses before the other decrements (release). */
    if (gone == NULL || atomic_fetch_sub_explicit(&gone->references, 1, memory_order_acq_rel) != 1)
        return;
    EVP_PKEY_free(gone->pkey);
    crypto_wipe(gone, sizeof *gone);
    base_free(gone);
}

typedef int set_fn(struct crypto_key *key, const uint8_t *bytes, size_t size);

static int key_build(const struct crypto_key_kind *kind, set_fn *set, const void *bytes,
    size_t size, struct crypto_key **ret_key)
{
    struct crypto_key *key;
    int rc;

    if (set == NULL)
        return TR_EUNSUPPORTED;
    key = crypto__key_create(kind);
    if (key == NULL)
        return TR_ENOMEM;
    rc = set(key, bytes, size);
    if (rc != 0) {
        crypto_key_unref(&key);
        return rc;
    }
    *ret_key = key;
    return 0;
}

static int generate_secret(struct crypto_key *key, const uint8_t *bytes, size_t size)
{
    (void)bytes;
    (void)size;
    return key->kind->generate(key);
}

int crypto_key_generate(enum crypto_algorithm algorithm, struct crypto_key **ret_key)
{
    return key_build(kind_of(algorithm), generate_secret, NULL, 0, ret_key);
}

int crypto_key_from_public(
    enum crypto_algorithm algorithm, const void *bytes, size_t size, struct crypto_key **ret_key)
{
    return key_build(kind_of(algorithm), kind_of(algorithm)->set_public, bytes, size, ret_key);
}

int crypto_key_from_private(
    enum crypto_algorithm algorithm, const void *bytes, size_t size, struct crypto_key **ret_key)
{
    return key_build(kind_of(algorithm), kind_of(algorithm)->set_private, bytes, size, ret_key);
}

int crypto_key_from_rsa(const struct crypto_rsa_public *rsa, struct crypto_key **ret_key)
{
    struct crypto_key *key = crypto__key_create(&crypto__rs256);
    int rc;

    if (key == NULL)
        return TR_ENOMEM;
    rc = crypto__rs256_set(key, rsa);
    if (rc != 0) {
        crypto_key_unref(&key);
        return rc;
    }
    *ret_key = key;
    return 0;
}

/* ---- properties ------------------------------------------------------------------------------ */

enum crypto_algorithm crypto_key_algorithm(const struct crypto_key *key)
{
    return key->kind->algorithm;
}

bool crypto_key_is_private(const struct crypto_key *key)
{
    return key->is_private;
}

size_t crypto_key_public_bytes(
    const struct crypto_key *key, uint8_t ret_bytes[CRYPTO_PUBLIC_BYTES_MAX])
{
    memcpy(ret_bytes, key->public_bytes, key->kind->public_size);
    return key->kind->public_size;
}

bool crypto_key_public_point(const struct crypto_key *key, uint8_t ret_x[32], uint8_t ret_y[32])
{
    uint8_t point[65];

    if (key->kind->get_point == NULL || !key->kind->get_point(key, point))
        return false;
    memcpy(ret_x, point + 1, 32);
    memcpy(ret_y, point + 33, 32);
    return true;
}

bool crypto_key_private_bytes(const struct crypto_key *key, uint8_t ret_bytes[CRYPTO_PRIVATE_BYTES])
{
    if (!key->is_private || key->kind->public_size == 0)
        return false;
    memcpy(ret_bytes, key->secret, CRYPTO_PRIVATE_BYTES);
    return true;
}

/* ---- signatures ------------------------------------------------------------------------------ */

size_t crypto_key_signature_size(const struct crypto_key *key)
{
    return key->signature_size;
}

int crypto_key_sign(const struct crypto_key *key, const void *bytes, size_t size,
    uint8_t ret_signature[CRYPTO_SIGNATURE_BYTES_MAX])
{
    if (!key->is_private)
        return TR_EACCES;
    return key->kind->sign(key, bytes, size, ret_signature);
}

int crypto_key_verify(
    const struct crypto_key *key, const void *bytes, size_t size, struct span signature)
{
    const uint8_t *at = (const uint8_t *)signature.at;

    if (signature.size != key->signature_size)
        return TR_EPROTO;
    if (!crypto_signature_is_low_s(key->kind->algorithm, at))
        return TR_EPROTO;
    return key->kind->verify(key, bytes, size, at);
}

/* n/2 of the two curves, rounded down (SEC 2, 2.4.1 and 2.4.2). */
static const uint8_t half_order_p256[32] = { 0x7f, 0xff, 0xff, 0xff, 0x80, 0x00, 0x00, 0x00, 0x7f,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xde, 0x73, 0x7d, 0x56, 0xd3, 0x8b, 0xcf, 0x42, 0x79,
    0xdc, 0xe5, 0x61, 0x7e, 0x31, 0x92, 0xa8 };
static const uint8_t half_order_secp256k1[32] = { 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x5d, 0x57, 0x6e, 0x73, 0x57, 0xa4, 0x50, 0x1d,
    0xdf, 0xe9, 0x2f, 0x46, 0x68, 0x1b, 0x20, 0xa0 };

bool crypto_signature_is_low_s(enum crypto_algorithm algorithm, const uint8_t signature[64])
{
    static const uint8_t zero[32];
    const uint8_t *half = algorithm == CRYPTO_ES256    ? half_order_p256
                          : algorithm == CRYPTO_ES256K ? half_order_secp256k1
                                                       : NULL;

    /* Signatures are public: memcmp is fine. */
    return half == NULL ||
           (memcmp(signature + 32, half, 32) <= 0 && memcmp(signature + 32, zero, 32) != 0);
}

/* ---- multikey -------------------------------------------------------------------------------- */

size_t crypto_multikey_encode(
    const struct crypto_key *key, char ret_text[CRYPTO_MULTIKEY_CHARS_MAX])
{
    const struct crypto_key_kind *kind = key->kind;
    uint8_t bytes[2 + CRYPTO_PUBLIC_BYTES_MAX];
    char text[CRYPTO_BASE58_TEXT_MAX];
    size_t size;

    if (kind->codec[0] == 0)
        return 0;
    memcpy(bytes, kind->codec, 2);
    memcpy(bytes + 2, key->public_bytes, kind->public_size);
    size = crypto_base58_encode(bytes, (size_t)kind->public_size + 2, text);
    tr_assert(size + 2 <= CRYPTO_MULTIKEY_CHARS_MAX);
    ret_text[0] = 'z';
    memcpy(ret_text + 1, text, size);
    ret_text[size + 1] = '\0';
    return size + 1;
}

int crypto_multikey_decode(struct span text, struct crypto_key **ret_key)
{
    uint8_t bytes[2 + CRYPTO_PUBLIC_BYTES_MAX];
    size_t size;
    int rc;

    if (text.size < 2)
        return TR_EPROTO;
    if (text.at[0] != 'z')
        return TR_EUNSUPPORTED;
    rc = crypto_base58_decode(
        (struct span){ text.at + 1, text.size - 1 }, bytes, sizeof bytes, &size);
    if (rc != 0)
        return TR_EPROTO;
    for (size_t i = 0; i < CRYPTO_ALGORITHMS; i++) {
        if (kinds[i]->codec[0] == 0 || size < 2 || memcmp(bytes, kinds[i]->codec, 2) != 0)
            continue;
        /* Only the compressed form has this size, so a key has one text. */
        if (size - 2 != kinds[i]->public_size)
            return TR_EPROTO;
        return key_build(kinds[i], kinds[i]->set_public, bytes + 2, size - 2, ret_key);
    }
    return TR_EUNSUPPORTED;
}
