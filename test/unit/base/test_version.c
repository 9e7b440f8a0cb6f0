/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include <troupe/version.h>

#include "check.h"

TEST(version, header_and_library_agree)
{
    char text[32];

    snprintf(text, sizeof text, "%d.%d.%d", TR_VERSION_MAJOR, TR_VERSION_MINOR, TR_VERSION_PATCH);
    CHECK_EQ_STR(tr_version(), TR_VERSION);
    CHECK_EQ_STR(tr_version(), text);
}

TEST(version, number_grows_with_each_part)
{
    CHECK_EQ_INT(TR_VERSION_NUMBER / 1000000, TR_VERSION_MAJOR);
    CHECK_EQ_INT(TR_VERSION_NUMBER / 1000 % 1000, TR_VERSION_MINOR);
    CHECK_EQ_INT(TR_VERSION_NUMBER % 1000, TR_VERSION_PATCH);
}
