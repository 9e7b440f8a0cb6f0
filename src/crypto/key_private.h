/* SPDX-License-Identifier: Apache-2.0 */
/* key_private.h: the members of a key, and the table of functions of each algorithm. */
#ifndef CRYPTO_KEY_PRIVATE_H
#define CRYPTO_KEY_PRIVATE_H

#include <openssl/types.h>
#include <secp256k1.h>
#include <stdatomic.h>

#include "crypto/key.h"

struct crypto_key {
    const struct crypto_key_kind *kind;
    _Atomic uint32_t references;
    bool is_private;
    uint32_t signature_size;
    uint32_t secret_size;
    EVP_PKEY *pkey;               /* ES256, RS256; owned */
    secp256k1_pubkey secp_public; /* ES256K, in the library's own form */
    uint8_t public_bytes[CRYPTO_PUBLIC_BYTES_MAX];
    uint8_t secret[CRYPTO_SECRET_BYTES_MAX]; /* scalar, seed and public (EdDSA), or secret */
};

/* One per kind of key. A function is NULL if the kind does not support it. */
struct crypto_key_kind {
    enum crypto_algorithm algorithm;
    uint8_t codec[2]; /* the multicodec of the public key as a varint; {0} means none */
    uint8_t public_size;
    int (*generate)(struct crypto_key *key);
    int (*set_public)(struct crypto_key *key, const uint8_t *bytes, size_t size);
    int (*set_private)(struct crypto_key *key, const uint8_t *bytes, size_t size);
    bool (*get_point)(const struct crypto_key *key, uint8_t point[65]); /* uncompressed */
    int (*sign)(const struct crypto_key *key, const void *bytes, size_t size, uint8_t *signature);
    int (*verify)(
        const struct crypto_key *key, const void *bytes, size_t size, const uint8_t *signature);
};

extern const struct crypto_key_kind crypto__es256;
extern const struct crypto_key_kind crypto__es256k;
extern const struct crypto_key_kind crypto__eddsa;
extern const struct crypto_key_kind crypto__rs256;
extern const struct crypto_key_kind crypto__hs256;

/* Create a key without material and with one reference; NULL when out of memory. */
struct crypto_key *crypto__key_create(const struct crypto_key_kind *kind);
/* Check modulus and exponent and set them. */
int crypto__rs256_set(struct crypto_key *key, const struct crypto_rsa_public *rsa);
/* Take over a private RSA key. */
int crypto__rs256_adopt(struct crypto_key *key, EVP_PKEY **pkey);

/* Empty OpenSSL's queue of errors of this thread and return `code`. Call it wherever OpenSSL fails:
 * this folder reports codes, and errors left in the queue would mislead a later call. */
int crypto__openssl_failed(int code);

#endif
