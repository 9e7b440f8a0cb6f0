/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "support/number.h"

TEST(number, has_a_comma_between_groups_of_three)
{
    static const struct {
        uint64_t value;
        const char *text;
    } table[] = {
        { 0, "0" },
        { 999, "999" },
        { 1000, "1,000" },
        { 65536, "65,536" },
        { 16777216, "16,777,216" },
        { UINT64_MAX, "18,446,744,073,709,551,615" },
    };
    char text[NUMBER_TEXT_SIZE];

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        CHECK_EQ_STR(number_text(table[i].value, text), table[i].text);
}
