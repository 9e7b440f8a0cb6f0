/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of `troupe sync` for people. */
#include "check.h"
#include "cli/sync_command.h"
#include "sql/sql.h"

#define GONE "\xef\xbf\xbd"

static void safe_check(struct span text, const char *shown)
{
    struct buffer out = { 0 };

    sync_text_put(text, &out);
    (void)buffer_append(&out, "", 1);
    CHECK_EQ_STR(out.bytes, shown);
    buffer_free(&out);
}

TEST(sync_text, plain_text_stays)
{
    safe_check(SPAN(""), "");
    safe_check(SPAN("hello, @ada:x !r:x $e"), "hello, @ada:x !r:x $e");
    /* letters of two to four bytes, an emoji of three characters, a right-to-left word */
    safe_check(
        SPAN("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    safe_check(SPAN("\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb"),
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb");
    safe_check(SPAN("\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d"), "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d");
}

TEST(sync_text, a_text_has_one_line)
{
    safe_check(SPAN("a\nb\rc\td\ve\ff"), "a b c d e f");
    safe_check(SPAN("a\xe2\x80\xa8"
                    "b\xe2\x80\xa9"
                    "c\xc2\x85"
                    "d"),
        "a b c" GONE "d");
}

TEST(sync_text, no_control_character_is_shown)
{
    safe_check(SPAN("\x1b[2J\x07\x08\x00\x7f"), GONE "[2J" GONE GONE GONE GONE);
    safe_check(SPAN("\xc2\x9b"
                    "31m\xc2\x80\xc2\x9f\xc2\xa0"),
        GONE "31m" GONE GONE "\xc2\xa0");
}

TEST(sync_text, no_mark_turns_the_order_round)
{
    static const char *const marks[] = { "\xe2\x80\xaa", "\xe2\x80\xab", "\xe2\x80\xac",
        "\xe2\x80\xad", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa7", "\xe2\x81\xa8",
        "\xe2\x81\xa9", "\xe2\x80\x8e", "\xe2\x80\x8f", "\xd8\x9c" };

    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        safe_check(span_of(marks[i]), GONE);
}

/* Each byte that begins no character is shown as one replacement, so a cut one hides nothing behind it. */
TEST(sync_text, bytes_that_are_no_utf8_are_replaced)
{
    safe_check(SPAN("a\xff"
                    "b"),
        "a" GONE "b");
    safe_check(SPAN("\x9b"
                    "31m"),
        GONE "31m"); /* C1 as one byte */
    safe_check(SPAN("\xe2\x82"
                    "b"),
        GONE GONE "b");                               /* cut */
    safe_check(SPAN("\xc0\xaf"), GONE GONE);          /* longer than it need be */
    safe_check(SPAN("\xed\xa0\x80"), GONE GONE GONE); /* a surrogate */
    safe_check(SPAN("\xe2\x82"), GONE GONE);
    safe_check(SPAN("\xf0"), GONE);
    safe_check(SPAN("\xc3\xa9\xa9"), "\xc3\xa9" GONE);
}

TEST(sync_text, every_code_has_its_sentence)
{
    for (int code = SQL_ELOST; code <= SQL_EROWS; code++)
        CHECK(strcmp(sync_error_text(code), tr_error_text(code)) != 0);
    CHECK_EQ_STR(sync_error_text(SQL_EDISK), sql_error_text(SQL_EDISK));
    CHECK_EQ_STR(sync_error_text(MX_EMAC), mx_error_text(MX_EMAC));
    CHECK_EQ_STR(sync_error_text(TR_EIO), tr_error_text(TR_EIO));
}
