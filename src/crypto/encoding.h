/* SPDX-License-Identifier: Apache-2.0 */
/* encoding.h: encode bytes as text and decode them. Decoders are strict: each value has exactly one
 * text, so that two different tokens or keys never mean the same. They refuse padding in base64url,
 * left-over bits, white space and characters of another alphabet. */
#ifndef CRYPTO_ENCODING_H
#define CRYPTO_ENCODING_H

#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

/* Return the length of the text for `size` bytes. Encoders write no terminator. */
static inline size_t crypto_base64url_size(size_t size)
{
    return size / 3 * 4 + (size % 3 == 0 ? 0 : size % 3 + 1);
}
static inline size_t crypto_base64_size(size_t size)
{
    return (size + 2) / 3 * 4;
}
static inline size_t crypto_hex_size(size_t size)
{
    return size * 2;
}

/* Encoders return the number of characters written. */
size_t crypto_base64url_encode(const void *bytes, size_t size, char *ret_text);
size_t crypto_base64_encode(const void *bytes, size_t size, char *ret_text);
size_t crypto_hex_encode(const void *bytes, size_t size, char *ret_text); /* lower case */

/* Decoders fail with TR_EPROTO for a text that is no strict encoding, and with TR_ETOOBIG for more
 * than bytes_max bytes; the content of `bytes` is then unspecified. `bytes` may point to the start
 * of the text. */
int crypto_base64url_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);
/* Decode RFC 4648 section 4; padding is required. */
int crypto_base64_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);
/* Decode with or without padding and ignore left-over bits. For Matrix alone, whose specification
 * has a key with left-over bits: a value has several texts, so compare the bytes. */
int crypto_base64_decode_loose(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);
/* Accepts upper and lower case. */
int crypto_hex_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);

/* base58btc takes quadratic time: for short values only. A leading zero byte becomes a '1'. */
enum { CRYPTO_BASE58_BYTES_MAX = 128, CRYPTO_BASE58_TEXT_MAX = 176 };
size_t crypto_base58_encode(const void *bytes, size_t size, char ret_text[CRYPTO_BASE58_TEXT_MAX]);
int crypto_base58_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);

#endif
