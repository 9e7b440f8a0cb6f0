/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h: SHA-256, HMAC-SHA256, comparison of secrets and random bytes. Any thread. */
#ifndef CRYPTO_DIGEST_H
#define CRYPTO_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CRYPTO_SHA256_BYTES = 32, CRYPTO_HMAC_KEY_BYTES_MAX = 4096 };

/* One-shot. Cannot fail: the thread's context is made once and reused, and a thread that cannot get
 * one computes without it, slower. */
void crypto_sha256(const void *bytes, size_t size, uint8_t ret_digest[CRYPTO_SHA256_BYTES]);

/* Piece by piece, for files and streams. */
struct crypto_sha256_stream {
    void *context; /* owned */
};
int crypto_sha256_stream_init(struct crypto_sha256_stream *stream); /* TR_ENOMEM */
void crypto_sha256_stream_update(
    struct crypto_sha256_stream *stream, const void *bytes, size_t size);
/* The digest of what came so far; the stream then starts again, empty. */
void crypto_sha256_stream_digest(
    struct crypto_sha256_stream *stream, uint8_t ret_digest[CRYPTO_SHA256_BYTES]);
void crypto_sha256_stream_finish(struct crypto_sha256_stream *stream); /* zeroed is fine */

/* RFC 2104. Cannot fail. */
void crypto_hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size,
    uint8_t ret_tag[CRYPTO_SHA256_BYTES]);

/* Equal? Takes the same time whatever the bytes are. The one way to compare secrets. */
bool crypto_equal(const void *a, const void *b, size_t size);

/* Unpredictable bytes for keys, nonces and ids. Ends the process if the system has none. */
void crypto_random_fill(void *bytes, size_t size);

/* Overwrite a secret in a way the compiler may not leave out. */
void crypto_wipe(void *bytes, size_t size);

#endif
