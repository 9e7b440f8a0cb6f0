/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/evp.h>
#include <string.h>

#include <troupe/error.h>

#include "base/random.h"
#include "check.h"
#include "crypto/encoding.h"

typedef size_t encode_fn(const void *bytes, size_t size, char *ret_text);
typedef int decode_fn(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);

static void fill(struct base_random *random, uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)base_random_next(random);
}

static void check_round_trips(encode_fn *encode, decode_fn *decode, size_t size_max)
{
    struct base_random random;
    uint8_t bytes[256], back[256];
    char text[520];
    size_t chars, size;

    base_random_init(&random, check_seed());
    for (size_t i = 0; i < size_max * 20; i++) {
        fill(&random, bytes, i % size_max);
        if (i % 5 == 0)
            memset(bytes, 0, i % size_max / 2);
        chars = encode(bytes, i % size_max, text);
        CHECK_EQ_INT(decode((struct span){ text, chars }, back, sizeof back, &size), 0);
        CHECK_EQ_U64(size, i % size_max);
        CHECK(memcmp(bytes, back, size) == 0);
        if (size > 0)
            CHECK_EQ_INT(decode((struct span){ text, chars }, back, size - 1, &size), TR_ETOOBIG);
    }
}

TEST(base64url, what_is_encoded_is_decoded)
{
    check_round_trips(crypto_base64url_encode, crypto_base64url_decode, 256);
}
TEST(base64, what_is_encoded_is_decoded)
{
    check_round_trips(crypto_base64_encode, crypto_base64_decode, 256);
}
TEST(hex, what_is_encoded_is_decoded)
{
    check_round_trips(crypto_hex_encode, crypto_hex_decode, 256);
}
TEST(base58, what_is_encoded_is_decoded)
{
    check_round_trips(crypto_base58_encode, crypto_base58_decode, CRYPTO_BASE58_BYTES_MAX + 1);
}

TEST(base64, agrees_with_openssl)
{
    struct base_random random;
    uint8_t bytes[100];
    char text[140];
    unsigned char expected[140];

    base_random_init(&random, check_seed());
    for (size_t size = 0; size <= sizeof bytes; size++) {
        fill(&random, bytes, size);
        CHECK_EQ_U64(crypto_base64_encode(bytes, size, text), crypto_base64_size(size));
        CHECK_EQ_INT(EVP_EncodeBlock(expected, bytes, (int)size), crypto_base64_size(size));
        CHECK(memcmp(text, expected, crypto_base64_size(size)) == 0);
    }
}

/* Decode every text of up to 4 characters over a small set: an accepted text must equal the
 * encoding of its bytes. Then no two texts mean the same bytes. */
static void check_strict(encode_fn *encode, decode_fn *decode, const char *characters)
{
    const size_t count = strlen(characters);
    uint8_t bytes[16];
    char text[4], again[16];
    size_t size, accepted = 0;

    for (size_t length = 1; length <= 4; length++) {
        size_t total = 1;

        for (size_t i = 0; i < length; i++)
            total *= count;
        for (size_t n = 0; n < total; n++) {
            for (size_t i = 0, rest = n; i < length; i++, rest /= count)
                text[i] = characters[rest % count];
            if (decode((struct span){ text, length }, bytes, sizeof bytes, &size) != 0)
                continue;
            accepted++;
            CHECK_EQ_U64(encode(bytes, size, again), length);
            CHECK_MSG(memcmp(text, again, length) == 0, "%.*s is accepted", (int)length, text);
        }
    }
    CHECK(accepted > 10);
}

TEST(base64url, one_text_for_one_value)
{
    check_strict(crypto_base64url_encode, crypto_base64url_decode, "AQgwBRh-_+/= \n.Z");
}
TEST(base64, one_text_for_one_value)
{
    check_strict(crypto_base64_encode, crypto_base64_decode, "AQgwBRh-_+/= \n.Z");
}
TEST(base58, one_text_for_one_value)
{
    check_strict(crypto_base58_encode, crypto_base58_decode, "12zZAl0OI =");
}

TEST(base64url, refuses_what_is_not_its_alphabet)
{
    uint8_t bytes[8];
    size_t size;
    char text[4] = "AAAA";

    for (int c = 0; c < 256; c++) {
        bool is_in = c != 0 && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                      "0123456789-_",
                                   c) != NULL;

        for (int place = 0; place < 4; place++) {
            memset(text, 'A', sizeof text);
            text[place] = (char)c;
            CHECK_EQ_INT(crypto_base64url_decode((struct span){ text, 4 }, bytes, 8, &size),
                is_in ? 0 : TR_EPROTO);
        }
    }
}

TEST(base58, knows_the_published_examples)
{
    static const struct {
        const char *hex, *text;
    } examples[] = {
        { "48656c6c6f20576f726c6421", "2NEpo7TZRRrLZSi2U" },
        { "0000287fb4cd", "11233QC4" },
        { "00", "1" },
        { "", "" },
    };
    uint8_t bytes[32];
    char text[CRYPTO_BASE58_TEXT_MAX + 1];
    size_t size;

    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        CHECK_EQ_INT(crypto_hex_decode(span_of(examples[i].hex), bytes, 32, &size), 0);
        text[crypto_base58_encode(bytes, size, text)] = '\0';
        CHECK_EQ_STR(text, examples[i].text);
    }
}

TEST(base58, long_texts_are_refused_not_computed)
{
    char text[1000];
    uint8_t bytes[128];
    size_t size;

    memset(text, 'z', sizeof text);
    for (size_t chars = 0; chars <= sizeof text; chars++) {
        int rc = crypto_base58_decode((struct span){ text, chars }, bytes, sizeof bytes, &size);

        CHECK(chars > 174 ? rc == TR_ETOOBIG : rc == 0);
    }
}

TEST(hex, refuses_odd_and_foreign_characters)
{
    static const char *const bad[] = { "0", "0g", "g0", "0x", " 00", "00 ", "0:" };
    uint8_t bytes[8];
    size_t size;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_EQ_INT(crypto_hex_decode(span_of(bad[i]), bytes, 8, &size), TR_EPROTO);
    CHECK_EQ_INT(crypto_hex_decode(SPAN("aBCd"), bytes, 8, &size), 0);
    CHECK_EQ_INT(bytes[0], 0xab);
}
