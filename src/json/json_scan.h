/* SPDX-License-Identifier: Apache-2.0 */
/* json_scan.h: find the next byte that matters, 16 at a time on machines with SSE2. Private to this
 * folder. A machine with SSE2 compiles both variants, so that a test can compare them.
 *
 * A scan has no end of its own: it runs until a byte stops it, and may read up to 15 bytes past
 * that byte. The parser puts zeros after its text, which stop both scans. */
#ifndef JSON_JSON_SCAN_H
#define JSON_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(JSON_PORTABLE)
#include <emmintrin.h>
#define JSON_SSE2 1
#else
#define JSON_SSE2 0
#endif

/* A plain byte of a string stands for itself: it is no quote, backslash or control character, and
 * no part of a longer UTF-8 sequence. */
static inline bool json__is_plain(unsigned char byte)
{
    return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

static inline const char *json__scan_plain_portable(const char *at)
{
    while (json__is_plain((unsigned char)*at))
        at++;
    return at;
}

static inline const char *json__scan_space_portable(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
        at++;
    return at;
}

#if JSON_SSE2
/* Return a mask with a bit set for each of the 16 bytes that is not plain. */
static inline unsigned json__special_mask(const char *at)
{
    const __m128i block = _mm_loadu_si128((const __m128i *)(const void *)at);
    const __m128i control = _mm_set1_epi8(0x1f);
    __m128i special = _mm_or_si128(
        _mm_cmpeq_epi8(block, _mm_set1_epi8('"')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\\')));

    special = _mm_or_si128(special, _mm_cmpeq_epi8(_mm_min_epu8(block, control), block));
    /* The mask takes the top bit of each byte, which is set in every byte outside ASCII. */
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(special, block));
}

static inline const char *json__scan_plain_sse2(const char *at)
{
    unsigned mask;

    while ((mask = json__special_mask(at)) == 0)
        at += 16;
    return at + __builtin_ctz(mask);
}

static inline const char *json__scan_space_sse2(const char *at)
{
    for (;; at += 16) {
        const __m128i block = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i space = _mm_or_si128(
            _mm_cmpeq_epi8(block, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\n')));
        unsigned mask;

        space = _mm_or_si128(space, _mm_cmpeq_epi8(block, _mm_set1_epi8('\t')));
        space = _mm_or_si128(space, _mm_cmpeq_epi8(block, _mm_set1_epi8('\r')));
        mask = (unsigned)_mm_movemask_epi8(space) ^ 0xffffu;
        if (mask != 0)
            return at + __builtin_ctz(mask);
    }
}
#define json__scan_plain json__scan_plain_sse2
#define json__scan_space json__scan_space_sse2
#else
#define json__scan_plain json__scan_plain_portable
#define json__scan_space json__scan_space_portable
#endif

/* Load four bytes, little-endian on every machine. */
static inline uint32_t json__load_u32(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;

    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Return the size of the UTF-8 sequence of two to four bytes at `at`, or 0 if it is invalid (RFC
 * 3629: no overlong form, no surrogate, no code point above U+10FFFF). Reads four bytes. */
static inline unsigned json__utf8_size(const char *at)
{
    uint32_t b = json__load_u32(at);
    uint32_t bits;

    if ((b & 0xc0c0f0u) == 0x8080e0u) {
        bits =
            b &
            0x200fu; /* the low bits of the first byte, and bit 5 of the second: set from a0 on */
        return bits != 0 && bits != 0x200du ? 3 : 0;
    }
    if ((b & 0xc0c0c0f8u) == 0x808080f0u) {
        bits = b & 0x3007u;
        return bits != 0 && ((bits & 4u) == 0 || (bits & 0x3003u) == 0) ? 4 : 0;
    }
    if ((b & 0xc0e0u) == 0x80c0u)
        return (b & 0x1eu) != 0 ? 2 : 0;
    return 0;
}

#endif
