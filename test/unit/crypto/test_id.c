/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "crypto/id.h"

TEST(uuid7, is_the_example_of_rfc_9562)
{
    char text[CRYPTO_UUID_CHARS + 1];

    crypto_uuid7(0x017F22E279B0, (uint64_t[]){ 0xCC3, 0x18C4DC0C0C07398F }, text);
    CHECK_EQ_STR(text, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
}

TEST(uuid7, version_and_variant_do_not_depend_on_chance)
{
    char text[CRYPTO_UUID_CHARS + 1];

    crypto_uuid7(UINT64_MAX, (uint64_t[]){ UINT64_MAX, UINT64_MAX }, text);
    CHECK_EQ_STR(text, "ffffffff-ffff-7fff-bfff-ffffffffffff");
    crypto_uuid7(0, (uint64_t[]){ 0, 0 }, text);
    CHECK_EQ_STR(text, "00000000-0000-7000-8000-000000000000");
}

TEST(uuid7, sorts_by_time)
{
    char before[CRYPTO_UUID_CHARS + 1], after[CRYPTO_UUID_CHARS + 1];

    for (uint64_t ms = 1; ms < UINT64_C(1) << 47; ms = ms * 3 + 1) {
        crypto_uuid7(ms, (uint64_t[]){ UINT64_MAX, UINT64_MAX }, before);
        crypto_uuid7(ms + 1, (uint64_t[]){ 0, 0 }, after);
        CHECK(strcmp(before, after) < 0);
    }
}

TEST(tid, has_13_sortable_characters)
{
    char before[CRYPTO_TID_CHARS + 1], after[CRYPTO_TID_CHARS + 1];

    crypto_tid(0, 0, before);
    CHECK_EQ_STR(before, "2222222222222");
    crypto_tid(UINT64_MAX, UINT32_MAX, after);
    CHECK_EQ_STR(after, "bzzzzzzzzzzzz"); /* the top bit stays clear */
    for (uint64_t us = 1; us < UINT64_C(1) << 52; us = us * 3 + 1) {
        crypto_tid(us, 1023, before);
        crypto_tid(us + 1, 0, after);
        CHECK(strcmp(before, after) < 0);
        CHECK_EQ_U64(strlen(before), CRYPTO_TID_CHARS);
    }
}

TEST(tid, is_time_shifted_by_the_clock_id)
{
    char text[CRYPTO_TID_CHARS + 1];

    /* 1 << 10 | 1 = 1025 = 1 * 32 * 32 + 0 * 32 + 1 */
    crypto_tid(1, 1, text);
    CHECK_EQ_STR(text, "2222222222323");
}
