/* SPDX-License-Identifier: Apache-2.0 */
/* key.h: keys that sign and verify. A key has one fixed algorithm; a message cannot choose another.
 * A key never changes, so any number of threads may share it; references are counted.
 *
 * Signatures are in the form JWS uses: r||s (64 bytes) for ES256 and ES256K, 64 bytes for EdDSA,
 * the size of the modulus for RS256, 32 bytes for HS256. For ES256 and ES256K, S is at most n/2 in
 * every signature made or accepted, so that a signature has no second form. */
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
    CRYPTO_HS256,     /* HMAC-SHA256: a shared secret, for the server's own tickets */
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

/* Convert to and from the name in a JWS header ("ES256K"), which is case-sensitive. Parsing returns
 * false for an unknown name. */
const char *crypto_algorithm_name(enum crypto_algorithm algorithm);
bool crypto_algorithm_parse(struct span name, enum crypto_algorithm *ret_algorithm);

struct crypto_key;

struct crypto_key *crypto_key_ref(struct crypto_key *key);
/* Drop a reference; the last one wipes and frees the key. Sets *key to NULL and accepts NULL. */
void crypto_key_unref(struct crypto_key **key);

/* The functions that create a key return it with one reference. They fail with TR_EPROTO for bytes
 * that are no valid key of this kind (off the curve, zero, too large, too short), TR_EUNSUPPORTED
 * for an unsupported kind, or TR_ENOMEM. */

/* Generate a key pair or a secret (HS256: 32 bytes; RS256: 2048 bits, which is slow). */
int crypto_key_generate(enum crypto_algorithm algorithm, struct crypto_key **ret_key);
/* Create from public bytes. ES256, ES256K: a compressed (33) or uncompressed (65) point; EdDSA: 32
 * bytes. */
int crypto_key_from_public(
    enum crypto_algorithm algorithm, const void *bytes, size_t size, struct crypto_key **ret_key);
/* Create from private bytes. ES256, ES256K: the scalar; EdDSA: the seed; 32 bytes each. HS256: the
 * secret. */
int crypto_key_from_private(
    enum crypto_algorithm algorithm, const void *bytes, size_t size, struct crypto_key **ret_key);
/* Big-endian. The modulus has 2048 to 4096 bits and not the weak structure of CVE-2017-15361; the
 * exponent is odd, at least 65537, and has at most 32 bits. */
struct crypto_rsa_public {
    struct span modulus;
    struct span exponent;
};
int crypto_key_from_rsa(const struct crypto_rsa_public *rsa, struct crypto_key **ret_key);
/* Create from one PEM block: SubjectPublicKeyInfo, or an unencrypted private key. Not for HS256. */
int crypto_key_from_pem(struct span pem, struct crypto_key **ret_key);

enum crypto_algorithm crypto_key_algorithm(const struct crypto_key *key);
bool crypto_key_is_private(const struct crypto_key *key); /* true if the key can sign */

/* Copy the compressed point (33 bytes) or the Ed25519 key (32) and return its size; 0 for RS256 and
 * HS256. */
size_t crypto_key_public_bytes(
    const struct crypto_key *key, uint8_t ret_bytes[CRYPTO_PUBLIC_BYTES_MAX]);
/* Copy both coordinates of an ES256 or ES256K key; false for other kinds. */
bool crypto_key_public_point(const struct crypto_key *key, uint8_t ret_x[32], uint8_t ret_y[32]);
/* Copy the scalar or seed, for a key file; the caller wipes it. False if the key has none. */
bool crypto_key_private_bytes(
    const struct crypto_key *key, uint8_t ret_bytes[CRYPTO_PRIVATE_BYTES]);
/* Append the public half as SubjectPublicKeyInfo. TR_EUNSUPPORTED for HS256, or TR_ENOMEM. */
int crypto_key_public_pem(const struct crypto_key *key, struct buffer *pem);

/* Return the size of a signature of this key, in bytes. */
size_t crypto_key_signature_size(const struct crypto_key *key);
/* Sign: write crypto_key_signature_size() bytes. TR_EACCES if the key cannot sign, or TR_ENOMEM. */
int crypto_key_sign(const struct crypto_key *key, const void *bytes, size_t size,
    uint8_t ret_signature[CRYPTO_SIGNATURE_BYTES_MAX]);
/* Return 0 for a valid signature. TR_EPROTO for one of the wrong size or with a high S, TR_EACCES
 * for one by another key or over other bytes, or TR_ENOMEM. */
int crypto_key_verify(
    const struct crypto_key *key, const void *bytes, size_t size, struct span signature);

/* Check that the second half of the signature, S, is within 1 .. n/2. True for algorithms without
 * an S. */
bool crypto_signature_is_low_s(enum crypto_algorithm algorithm, const uint8_t signature[64]);

/* ---- multikey: multibase base58btc of a multicodec prefix and the public bytes -------------- */

enum { CRYPTO_MULTIKEY_CHARS_MAX = 64 };
/* Write "z..." with a terminator and return its length; 0 for a kind without a multicodec here. */
size_t crypto_multikey_encode(
    const struct crypto_key *key, char ret_text[CRYPTO_MULTIKEY_CHARS_MAX]);
/* Create a key from a multikey. TR_EPROTO, TR_EUNSUPPORTED for another base or codec, TR_ENOMEM. */
int crypto_multikey_decode(struct span text, struct crypto_key **ret_key);

#endif
