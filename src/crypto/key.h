/* SPDX-License-Identifier: Apache-2.0 */
/* key.h: keys that sign and verify. A key knows its one algorithm; nobody else chooses it. Keys do
 * not change after they are made, so any number of threads may use one; references are counted.
 *
 * Signatures are in the form JWS uses: r||s (64 bytes) for ES256 and ES256K, 64 bytes for EdDSA,
 * the size of the modulus for RS256, 32 bytes for HS256. ES256 and ES256K are made and accepted
 * with S <= n/2 only, so that a signature has no second form. */
#ifndef CRYPTO_KEY_H
#define CRYPTO_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

enum crypto_algorithm {
    CRYPTO_ES256 = 1, /* ECDSA on P-256 with SHA-256 */
    CRYPTO_ES256K,    /* ECDSA on secp256k1 with SHA-256 */
    CRYPTO_EDDSA,     /* Ed25519 */
    CRYPTO_RS256,     /* RSASSA-PKCS1-v1_5 with SHA-256 */
    CRYPTO_HS256,     /* HMAC-SHA256: a shared secret, for our own tickets */
};
enum { CRYPTO_ALGORITHMS = 5 };

enum {
    CRYPTO_SIGNATURE_BYTES_MAX = 512,
    CRYPTO_PUBLIC_BYTES_MAX = 33,
    CRYPTO_PRIVATE_BYTES = 32,
    CRYPTO_SECRET_BYTES_MIN = 32, /* RFC 7518 section 3.2 */
    CRYPTO_SECRET_BYTES_MAX = 128,
    CRYPTO_RSA_BITS_MIN = 2048,
    CRYPTO_RSA_BITS_MAX = 4096,
    CRYPTO_PEM_BYTES_MAX = 16384,
};

/* The name in a JWS header ("ES256K"), and back: false if it is none of ours. Case counts. */
const char *crypto_algorithm_name(enum crypto_algorithm algorithm);
bool crypto_algorithm_parse(struct span name, enum crypto_algorithm *ret_algorithm);

struct crypto_key;

struct crypto_key *crypto_key_ref(struct crypto_key *key);
/* Drops a reference; the last wipes and frees. Nulls the caller's pointer; NULL is fine. */
void crypto_key_unref(struct crypto_key **key);

/* Makers give a key with one reference. TR_EPROTO for bytes that are no valid key of this kind (not
 * on the curve, zero, too large, too short), TR_EUNSUPPORTED for a kind that is not supported here,
 * TR_ENOMEM. */

/* A new key pair or secret (HS256: 32 bytes; RS256: 2048 bits, which takes a while). */
int crypto_key_generate(enum crypto_algorithm algorithm, struct crypto_key **ret_key);
/* ES256, ES256K: a compressed (33) or uncompressed (65) point; EdDSA: 32 bytes. */
int crypto_key_from_public(
    enum crypto_algorithm algorithm, const void *bytes, size_t size, struct crypto_key **ret_key);
/* ES256, ES256K: the scalar; EdDSA: the seed; 32 bytes each. HS256: the secret. */
int crypto_key_from_private(
    enum crypto_algorithm algorithm, const void *bytes, size_t size, struct crypto_key **ret_key);
/* Big-endian. 2048 to 4096 bits, an odd exponent of 65537 or more and no more than 32 bits, and no
 * modulus that shows the structure of CVE-2017-15361. */
struct crypto_rsa_public {
    struct span modulus;
    struct span exponent;
};
int crypto_key_from_rsa(const struct crypto_rsa_public *rsa, struct crypto_key **ret_key);
/* One PEM block: SubjectPublicKeyInfo, or an unencrypted private key. Not for HS256. */
int crypto_key_from_pem(struct span pem, struct crypto_key **ret_key);

enum crypto_algorithm crypto_key_algorithm(const struct crypto_key *key);
bool crypto_key_is_private(const struct crypto_key *key); /* can it sign? */

/* The compressed point (33 bytes) or Ed25519's 32. 0 for RS256 and HS256. */
size_t crypto_key_public_bytes(
    const struct crypto_key *key, uint8_t ret_bytes[CRYPTO_PUBLIC_BYTES_MAX]);
/* Both coordinates. False if the key is not on a curve with two. */
bool crypto_key_public_point(const struct crypto_key *key, uint8_t ret_x[32], uint8_t ret_y[32]);
/* Scalar or seed, for a key file; the caller wipes it. False if there is none. */
bool crypto_key_private_bytes(
    const struct crypto_key *key, uint8_t ret_bytes[CRYPTO_PRIVATE_BYTES]);
/* The public half as SubjectPublicKeyInfo, appended. TR_EUNSUPPORTED for HS256, TR_ENOMEM. */
int crypto_key_public_pem(const struct crypto_key *key, struct buffer *pem);

/* Bytes of a signature of this key. */
size_t crypto_key_signature_size(const struct crypto_key *key);
/* TR_EACCES if the key cannot sign, TR_ENOMEM. Writes crypto_key_signature_size() bytes. */
int crypto_key_sign(const struct crypto_key *key, const void *bytes, size_t size,
    uint8_t ret_signature[CRYPTO_SIGNATURE_BYTES_MAX]);
/* 0 if the signature is right. TR_EPROTO for one of the wrong size or with a high S, TR_EACCES for
 * one that does not fit, TR_ENOMEM. */
int crypto_key_verify(
    const struct crypto_key *key, const void *bytes, size_t size, struct span signature);

/* Is 0 < S <= n/2 in the second half of these 64 bytes? True for algorithms without an S. */
bool crypto_signature_is_low_s(enum crypto_algorithm algorithm, const uint8_t signature[64]);

/* ---- multikey: multibase base58btc of a multicodec prefix and the public bytes -------------- */

enum { CRYPTO_MULTIKEY_CHARS_MAX = 64 };
/* "z...", terminated; the number of characters, 0 for a kind without a multicodec here. */
size_t crypto_multikey_encode(
    const struct crypto_key *key, char ret_text[CRYPTO_MULTIKEY_CHARS_MAX]);
/* TR_EPROTO, TR_EUNSUPPORTED for another base or codec, TR_ENOMEM. */
int crypto_multikey_decode(struct span text, struct crypto_key **ret_key);

#endif
