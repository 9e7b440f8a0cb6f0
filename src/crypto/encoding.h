/* SPDX-License-Identifier: Apache-2.0 */
/* encoding.h: bytes as text. Decoders are strict: one text for one value, so that two different
 * tokens or keys never mean the same thing. No padding where there is none, no bits left over, no
 * white space, no other alphabet. */
#ifndef CRYPTO_ENCODING_H
#define CRYPTO_ENCODING_H

#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

/* Longest text for size bytes, without a terminator (none is written). base64url and hex always
 * need exactly this. */
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

/* Decoders: TR_EPROTO if the text is not the one encoding of some bytes, TR_ETOOBIG if they need
 * more than bytes_max. What is in `bytes` after an error is unspecified. `bytes` may be where the
 * text begins. */
int crypto_base64url_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);
/* RFC 4648 section 4, padding required. */
int crypto_base64_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);
/* Either case is read. */
int crypto_hex_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);

/* base58btc: quadratic, so for short values only. Leading zero bytes are leading '1's. */
enum { CRYPTO_BASE58_BYTES_MAX = 128, CRYPTO_BASE58_TEXT_MAX = 176 };
size_t crypto_base58_encode(const void *bytes, size_t size, char ret_text[CRYPTO_BASE58_TEXT_MAX]);
int crypto_base58_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);

#endif
