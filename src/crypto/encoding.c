/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/encoding.h"

#include <stdbool.h>
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"

static const char url_alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
static const char standard_alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char base58_alphabet[] = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/* ---- base64 ---------------------------------------------------------------------------------- */

static size_t encode_base64(const uint8_t *in, size_t size, const char *alphabet, char *out)
{
    char *start = out;
    size_t i = 0;
    uint32_t bits;

    for (; i + 3 <= size; i += 3) {
        bits = (uint32_t)in[i] << 16 | (uint32_t)in[i + 1] << 8 | in[i + 2];
        *out++ = alphabet[bits >> 18];
        *out++ = alphabet[bits >> 12 & 63];
        *out++ = alphabet[bits >> 6 & 63];
        *out++ = alphabet[bits & 63];
    }
    if (size - i == 1) {
        *out++ = alphabet[in[i] >> 2];
        *out++ = alphabet[(in[i] & 3) << 4];
    } else if (size - i == 2) {
        bits = (uint32_t)in[i] << 8 | in[i + 1];
        *out++ = alphabet[bits >> 10];
        *out++ = alphabet[bits >> 4 & 63];
        *out++ = alphabet[(bits & 15) << 2];
    }
    return (size_t)(out - start);
}

size_t crypto_base64url_encode(const void *bytes, size_t size, char *ret_text)
{
    return encode_base64(bytes, size, url_alphabet, ret_text);
}

size_t crypto_base64_encode(const void *bytes, size_t size, char *ret_text)
{
    size_t written = encode_base64(bytes, size, standard_alphabet, ret_text);

    while (written % 4 != 0)
        ret_text[written++] = '=';
    return written;
}

/* The value of each character. NOT_IN_URL and NOT_IN_STANDARD mark a character that is missing from
 * that alphabet; one with both marks is in neither. */
enum { NOT_IN_URL = 0x40, NOT_IN_STANDARD = 0x80, LEFT_OVER_BITS = 0x100 };
/* clang-format off */
static const uint8_t base64_values[128] = {
    0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0,
    0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0,
    0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0x7e, 0xc0, 0xbe, 0xc0, 0x7f,
    0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0,
    0xc0, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e,
    0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf,
    0xc0, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
    0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f, 0x30, 0x31, 0x32, 0x33, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0,
};
/* clang-format on */

static unsigned base64_value(char c)
{
    return (unsigned char)c < 128 ? base64_values[(unsigned char)c] : NOT_IN_URL | NOT_IN_STANDARD;
}

static int decode_base64(
    struct span text, unsigned refused, uint8_t *out, size_t bytes_max, size_t *ret_size)
{
    const size_t size = text.size / 4 * 3 + (text.size % 4 == 0 ? 0 : text.size % 4 - 1);
    const size_t whole = text.size / 4 * 4;
    uint32_t bits = 0;
    unsigned seen = 0, value, count = 0;

    if (text.size % 4 == 1)
        return TR_EPROTO;
    if (size > bytes_max)
        return TR_ETOOBIG;
    for (size_t i = 0; i < whole; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            value = base64_value(text.at[i + k]);
            seen |= value;
            bits = bits << 6 | (value & 63);
        }
        *out++ = (uint8_t)(bits >> 16);
        *out++ = (uint8_t)(bits >> 8);
        *out++ = (uint8_t)bits;
    }
    bits = 0;
    for (size_t i = whole; i < text.size; i++) {
        value = base64_value(text.at[i]);
        seen |= value;
        bits = bits << 6 | (value & 63);
        count += 6;
        if (count >= 8) {
            count -= 8;
            *out++ = (uint8_t)(bits >> count);
            bits &= (1u << count) - 1;
        }
    }
    seen |= bits != 0 ? LEFT_OVER_BITS : 0; /* another text would mean the same bytes */
    if ((seen & refused) != 0)
        return TR_EPROTO;
    *ret_size = size;
    return 0;
}

int crypto_base64url_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size)
{
    return decode_base64(text, NOT_IN_URL | LEFT_OVER_BITS, bytes, bytes_max, ret_size);
}

static struct span without_padding(struct span text)
{
    for (int i = 0; i < 2 && text.size > 0 && text.at[text.size - 1] == '='; i++)
        text.size--;
    return text;
}

int crypto_base64_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size)
{
    if (text.size % 4 != 0)
        return TR_EPROTO;
    return decode_base64(
        without_padding(text), NOT_IN_STANDARD | LEFT_OVER_BITS, bytes, bytes_max, ret_size);
}

int crypto_base64_decode_loose(struct span text, void *bytes, size_t bytes_max, size_t *ret_size)
{
    return decode_base64(without_padding(text), NOT_IN_STANDARD, bytes, bytes_max, ret_size);
}

/* ---- hex ------------------------------------------------------------------------------------- */

size_t crypto_hex_encode(const void *bytes, size_t size, char *ret_text)
{
    const uint8_t *in = bytes;

    for (size_t i = 0; i < size; i++) {
        ret_text[2 * i] = "0123456789abcdef"[in[i] >> 4];
        ret_text[2 * i + 1] = "0123456789abcdef"[in[i] & 15];
    }
    return size * 2;
}

static unsigned hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    if (c >= 'a' && c <= 'f')
        return (unsigned)(c - 'a') + 10;
    if (c >= 'A' && c <= 'F')
        return (unsigned)(c - 'A') + 10;
    return 16;
}

int crypto_hex_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size)
{
    uint8_t *out = bytes;

    if (text.size % 2 != 0)
        return TR_EPROTO;
    if (text.size / 2 > bytes_max)
        return TR_ETOOBIG;
    for (size_t i = 0; i < text.size; i += 2) {
        unsigned high = hex_value(text.at[i]), low = hex_value(text.at[i + 1]);

        if (high > 15 || low > 15)
            return TR_EPROTO;
        *out++ = (uint8_t)(high << 4 | low);
    }
    *ret_size = text.size / 2;
    return 0;
}

/* ---- base58btc ------------------------------------------------------------------------------- */

/* Compute number = number * multiplier + add on little-endian digits in `base`. */
static size_t multiply_add(
    uint8_t *digits, size_t count, unsigned base, unsigned multiplier, unsigned add)
{
    unsigned carry = add;

    for (size_t i = 0; i < count; i++) {
        carry += digits[i] * multiplier;
        digits[i] = (uint8_t)(carry % base);
        carry /= base;
    }
    while (carry > 0) {
        digits[count++] = (uint8_t)(carry % base);
        carry /= base;
    }
    return count;
}

size_t crypto_base58_encode(const void *bytes, size_t size, char ret_text[CRYPTO_BASE58_TEXT_MAX])
{
    const uint8_t *in = bytes;
    uint8_t digits[CRYPTO_BASE58_TEXT_MAX] = { 0 };
    size_t zeros = 0, count = 0;

    tr_assert(size <= CRYPTO_BASE58_BYTES_MAX);
    while (zeros < size && in[zeros] == 0)
        ret_text[zeros++] = '1';
    for (size_t i = zeros; i < size; i++)
        count = multiply_add(digits, count, 58, 256, in[i]);
    for (size_t i = 0; i < count; i++)
        ret_text[zeros + i] = base58_alphabet[digits[count - 1 - i]];
    return zeros + count;
}

int crypto_base58_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size)
{
    uint8_t *out = bytes, digits[CRYPTO_BASE58_TEXT_MAX] = { 0 };
    size_t zeros = 0, count = 0;

    if (text.size > CRYPTO_BASE58_TEXT_MAX)
        return TR_ETOOBIG;
    while (zeros < text.size && text.at[zeros] == '1')
        zeros++;
    for (size_t i = zeros; i < text.size; i++) {
        const char *found = text.at[i] == '\0' ? NULL : strchr(base58_alphabet, text.at[i]);

        if (found == NULL)
            return TR_EPROTO;
        count = multiply_add(digits, count, 256, 58, (unsigned)(found - base58_alphabet));
    }
    if (zeros + count > bytes_max)
        return TR_ETOOBIG;
    memset(out, 0, zeros);
    for (size_t i = 0; i < count; i++)
        out[zeros + i] = digits[count - 1 - i];
    *ret_size = zeros + count;
    return 0;
}
