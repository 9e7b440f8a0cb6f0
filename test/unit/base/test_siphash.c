/* SPDX-License-Identifier: Apache-2.0 */
#include "base/siphash.h"
#include "check.h"

TEST(siphash, equals_the_published_vector)
{
    const struct base_siphash_key key = { UINT64_C(0x0706050403020100),
        UINT64_C(0x0f0e0d0c0b0a0908) };
    unsigned char bytes[15];

    for (unsigned char i = 0; i < 15; i++)
        bytes[i] = i;
    CHECK(base_siphash(key, bytes, 15) == UINT64_C(0xa129ca6149be45e5));
    CHECK(base_siphash(key, bytes, 0) == UINT64_C(0x726fdb47dd0e0e31));
    CHECK(base_siphash(key, bytes, 8) == UINT64_C(0x93f5f5799a932462));
}

TEST(siphash, another_key_gives_another_hash)
{
    CHECK(base_siphash((struct base_siphash_key){ 1, 2 }, "a", 1) !=
          base_siphash((struct base_siphash_key){ 1, 3 }, "a", 1));
}
