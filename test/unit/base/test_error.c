/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>

#include <troupe/error.h>

#include "check.h"

struct row {
    int error;
    const char *name;
    const char *text;
};

#define ROW(name, number, text) { name, #name, text },
static const struct row rows[] = { TR_ERRORS(ROW) };
#define ROW_COUNT (sizeof rows / sizeof rows[0])

TEST(error, every_code_has_its_name_and_text)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        CHECK_EQ_STR(tr_error_name(rows[i].error), rows[i].name);
        CHECK_EQ_STR(tr_error_text(rows[i].error), rows[i].text);
    }
}

TEST(error, codes_are_negative_and_outside_errno)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        CHECK(rows[i].error < -4000);
        CHECK(rows[i].error > -5000);
    }
}

TEST(error, no_two_codes_share_a_number_or_a_text)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        for (size_t j = 0; j < i; j++) {
            CHECK(rows[i].error != rows[j].error);
            CHECK(strcmp(rows[i].text, rows[j].text) != 0);
        }
    }
}

TEST(error, zero_is_success)
{
    CHECK_EQ_STR(tr_error_name(0), "TR_OK");
    CHECK_EQ_STR(tr_error_text(0), "success");
}

TEST(error, an_unknown_number_still_has_a_name_and_a_text)
{
    const int unknown[] = { 1, -1, -4000, -4999, 4001, INT_MIN, INT_MAX };

    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        CHECK_EQ_STR(tr_error_name(unknown[i]), "TR_EUNKNOWN");
        CHECK(tr_error_text(unknown[i])[0] != '\0');
    }
}
