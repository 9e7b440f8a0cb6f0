/* SPDX-License-Identifier: Apache-2.0 */
/* key_private.h: what a key is made of, and the table each algorithm fills in. */
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

/* One a kind of key. NULL where a kind has no such thing. */
struct crypto_key_kind {
    enum crypto_algorithm algorithm;
    uint8_t codec[2]; /* multicodec of the public key as a varint; {0} is none */
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

/* A key without material, one reference; NULL when out of memory. */
struct crypto_key *crypto__key_create(const struct crypto_key_kind *kind);
/* Sets modulus and exponent after checking them. */
int crypto__rs256_set(struct crypto_key *key, const struct crypto_rsa_public *rsa);
/* Takes a private RSA key over. */
int crypto__rs256_adopt(struct crypto_key *key, EVP_PKEY **pkey);

/* OpenSSL keeps a queue of errors per thread; ours are codes, so it is emptied where they arise. */
int crypto__openssl_failed(int code);

#endif
