/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h: SHA-256, HMAC-SHA256, comparison of secrets and random bytes. Any thread. */
#ifndef CRYPTO_DIGEST_H
#define CRYPTO_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CRYPTO_SHA256_BYTES = 32, CRYPTO_HMAC_KEY_BYTES_MAX = 4096 };

/* Hash bytes at once. Cannot fail: each thread creates an OpenSSL context once and reuses it, and a
 * thread without memory for a context uses a slower function that needs none. */
void crypto_sha256(const void *bytes, size_t size, uint8_t ret_digest[CRYPTO_SHA256_BYTES]);

/* Hash piece by piece, for files and streams. */
struct crypto_sha256_stream {
    void *context; /* owned */
};
int crypto_sha256_stream_init(struct crypto_sha256_stream *stream); /* 0 or TR_ENOMEM */
void crypto_sha256_stream_update(
    struct crypto_sha256_stream *stream, const void *bytes, size_t size);
/* Return the digest of the bytes so far and reset the stream to empty. */
void crypto_sha256_stream_digest(
    struct crypto_sha256_stream *stream, uint8_t ret_digest[CRYPTO_SHA256_BYTES]);
void crypto_sha256_stream_fini(struct crypto_sha256_stream *stream); /* accepts a zeroed one */

/* Compute the HMAC of RFC 2104. Cannot fail. */
void crypto_hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size,
    uint8_t ret_tag[CRYPTO_SHA256_BYTES]);

/* Compare in constant time. The only way to compare secrets. */
bool crypto_equal(const void *a, const void *b, size_t size);

/* Fill with unpredictable bytes for keys, nonces and ids. Aborts if the system provides none. */
void crypto_random_fill(void *bytes, size_t size);

/* Overwrite a secret in a way that the compiler must not optimise away. */
void crypto_wipe(void *bytes, size_t size);

#endif
