/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/id.h"

#include "crypto/encoding.h"

void crypto_uuid7(uint64_t unix_ms, const uint64_t random[2], char ret_text[CRYPTO_UUID_CHARS + 1])
{
    const uint64_t high = unix_ms << 16 | 0x7000 | (random[0] & 0xfff);       /* version 7 */
    const uint64_t low = UINT64_C(1) << 63 | (random[1] & (UINT64_MAX >> 2)); /* variant 10 */
    static const uint8_t ends[] = { 4, 6, 8, 10 };                            /* in bytes */
    uint8_t bytes[16];
    char *out = ret_text;

    for (unsigned i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(high >> (56 - 8 * i));
        bytes[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
    for (unsigned i = 0, next = 0; i < 16; i++) {
        if (next < sizeof ends && i == ends[next]) {
            *out++ = '-';
            next++;
        }
        out += crypto_hex_encode(&bytes[i], 1, out);
    }
    *out = '\0';
}

void crypto_tid(uint64_t unix_us, uint32_t clock_id, char ret_text[CRYPTO_TID_CHARS + 1])
{
    uint64_t value = (unix_us & ((UINT64_C(1) << 53) - 1)) << 10 | (clock_id & 1023);

    for (int i = CRYPTO_TID_CHARS; i-- > 0; value >>= 5)
        ret_text[i] = "234567abcdefghijklmnopqrstuvwxyz"[value & 31];
    ret_text[CRYPTO_TID_CHARS] = '\0';
}
