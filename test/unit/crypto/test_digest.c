/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/random.h"
#include "check.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

static void check_hex(const uint8_t *digest, const char *expected)
{
    char text[65];

    text[crypto_hex_encode(digest, 32, text)] = '\0';
    CHECK_EQ_STR(text, expected);
}

TEST(sha256, knows_the_examples_of_fips_180)
{
    uint8_t digest[32];

    crypto_sha256("abc", 3, digest);
    check_hex(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    crypto_sha256("", 0, digest);
    check_hex(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    crypto_sha256(NULL, 0, digest);
    check_hex(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(sha256, agrees_with_openssl_on_random_input_of_every_small_size)
{
    struct base_random random;
    uint8_t bytes[300], digest[32], expected[32];

    base_random_init(&random, check_seed());
    for (size_t size = 0; size <= sizeof bytes; size++) {
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)base_random_next(&random);
        crypto_sha256(bytes, size, digest);
        CHECK_EQ_INT(EVP_Digest(bytes, size, expected, NULL, EVP_sha256(), NULL), 1);
        CHECK(memcmp(digest, expected, 32) == 0);
    }
}

TEST(sha256, works_without_memory_for_a_context)
{
    uint8_t digest[32];

    base_fault_countdown(1, 1000000);
    crypto_sha256("abc", 3, digest);
    check_hex(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(base_fault_countdown(0, 0) > 0);
    crypto_sha256("abc", 3, digest);
    check_hex(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void *hash_many(void *data)
{
    uint8_t digest[32];

    (void)data;
    for (int i = 0; i < 2000; i++) {
        crypto_sha256("abc", 3, digest);
        check_hex(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
    return NULL;
}

TEST(sha256, threads_have_contexts_of_their_own)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, hash_many, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
}

TEST(sha256_stream, any_split_gives_the_digest_of_the_whole)
{
    struct crypto_sha256_stream stream;
    uint8_t bytes[200], whole[32], digest[32];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    crypto_sha256(bytes, sizeof bytes, whole);
    CHECK_EQ_INT(crypto_sha256_stream_init(&stream), 0);
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        crypto_sha256_stream_update(&stream, bytes, cut);
        crypto_sha256_stream_update(&stream, bytes + cut, sizeof bytes - cut);
        crypto_sha256_stream_digest(&stream, digest); /* the stream starts again */
        CHECK(memcmp(digest, whole, 32) == 0);
    }
    crypto_sha256_stream_fini(&stream);
    crypto_sha256_stream_fini(&stream);
}

TEST(sha256_stream, without_memory_says_so)
{
    struct crypto_sha256_stream stream = { 0 };

    base_fault_countdown(1, 1);
    CHECK_EQ_INT(crypto_sha256_stream_init(&stream), TR_ENOMEM);
    base_fault_countdown(0, 0);
    crypto_sha256_stream_fini(&stream);
}

TEST(hmac, agrees_with_openssl_for_keys_below_at_and_above_a_block)
{
    uint8_t key[200], message[77], tag[32], expected[32];
    unsigned size;

    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(i * 31 + 1);
    memset(message, 'm', sizeof message);
    for (size_t key_size = 0; key_size <= sizeof key; key_size++) {
        crypto_hmac_sha256(key, key_size, message, sizeof message, tag);
        CHECK(HMAC(EVP_sha256(), key, (int)key_size, message, sizeof message, expected, &size) !=
              NULL);
        CHECK(memcmp(tag, expected, 32) == 0);
    }
}

TEST(equal, sees_a_difference_in_every_bit)
{
    uint8_t a[40], b[40];

    memset(a, 0x5a, sizeof a);
    for (size_t bit = 0; bit < sizeof a * 8; bit++) {
        memcpy(b, a, sizeof a);
        CHECK(crypto_equal(a, b, sizeof a));
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!crypto_equal(a, b, sizeof a));
    }
    CHECK(crypto_equal(a, b, 0));
}

TEST(random, bytes_differ_and_wiping_clears_them)
{
    uint8_t a[32] = { 0 }, b[32] = { 0 }, zero[32] = { 0 };

    crypto_random_fill(a, sizeof a);
    crypto_random_fill(b, sizeof b);
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK(memcmp(a, zero, sizeof a) != 0);
    crypto_wipe(a, sizeof a);
    CHECK(memcmp(a, zero, sizeof a) == 0);
}
