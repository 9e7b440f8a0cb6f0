/* SPDX-License-Identifier: Apache-2.0 */
/* id.h: ids that sort by creation time. The caller passes time and randomness, so that a simulated
 * run repeats its ids. */
#ifndef CRYPTO_ID_H
#define CRYPTO_ID_H

#include <stdint.h>

enum { CRYPTO_UUID_CHARS = 36, CRYPTO_TID_CHARS = 13 };

/* Write a UUID of RFC 9562 version 7: 48 bits of milliseconds since 1970, then 74 random bits. */
void crypto_uuid7(uint64_t unix_ms, const uint64_t random[2], char ret_text[CRYPTO_UUID_CHARS + 1]);

/* Write an AT Protocol TID: 53 bits of microseconds since 1970 and a 10-bit clock id, in sortable
 * base 32. */
void crypto_tid(uint64_t unix_us, uint32_t clock_id, char ret_text[CRYPTO_TID_CHARS + 1]);

#endif
