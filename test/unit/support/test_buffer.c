/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/error.h>

#include "base/alloc.h"
#include "check.h"
#include "support/buffer.h"

static void check_holds(const struct buffer *buffer, const char *text)
{
    CHECK_EQ_INT(buffer->failed, 0);
    CHECK_EQ_INT(buffer->size, strlen(text));
    CHECK(memcmp(buffer->bytes, text, buffer->size) == 0);
}

TEST(buffer, holds_what_was_appended)
{
    struct buffer buffer = { 0 };

    CHECK_EQ_INT(buffer_text(&buffer, "a"), 0);
    CHECK_EQ_INT(buffer_append(&buffer, "bc", 2), 0);
    CHECK_EQ_INT(buffer_span(&buffer, SPAN("-")), 0);
    CHECK_EQ_INT(buffer_u64(&buffer, UINT64_MAX), 0);
    CHECK_EQ_INT(buffer_text(&buffer, " "), 0);
    CHECK_EQ_INT(buffer_i64(&buffer, INT64_MIN), 0);
    CHECK_EQ_INT(buffer_i64(&buffer, 0), 0);
    CHECK_EQ_INT(buffer_format(&buffer, " %s/%d", "x", 7), 0);
    check_holds(&buffer, "abc-18446744073709551615 -92233720368547758080 x/7");
    buffer_free(&buffer);
}

TEST(buffer, over_its_limit_sticks_until_cleared)
{
    struct buffer buffer = { .size_max = 4 };

    CHECK_EQ_INT(buffer_text(&buffer, "abcd"), 0);
    CHECK_EQ_INT(buffer_text(&buffer, "e"), TR_ELIMIT);
    CHECK_EQ_INT(buffer_append(&buffer, "", 0), TR_ELIMIT);
    CHECK_EQ_INT(buffer.size, 4);
    buffer_clear(&buffer);
    CHECK_EQ_INT(buffer_text(&buffer, "xy"), 0);
    check_holds(&buffer, "xy");
    CHECK(buffer_reserve(&buffer, SIZE_MAX) == NULL);
    CHECK_EQ_INT(buffer.failed, TR_ELIMIT);
    buffer_free(&buffer);
    CHECK_EQ_INT(buffer_text(&buffer, "again"), TR_ELIMIT); /* the limit stays */
    buffer_free(&buffer);
}

TEST(buffer, out_of_memory_keeps_what_it_held)
{
    struct buffer buffer = { 0 };
    static char big[4096];

    CHECK_EQ_INT(buffer_text(&buffer, "kept"), 0);
    base_fault_countdown(1, 1);
    CHECK_EQ_INT(buffer_append(&buffer, big, sizeof big), TR_ENOMEM);
    base_fault_countdown(0, 0);
    CHECK_EQ_INT(buffer_text(&buffer, "x"), TR_ENOMEM); /* sticks */
    CHECK_EQ_INT(buffer.size, 4);
    CHECK(memcmp(buffer.bytes, "kept", 4) == 0);
    buffer_free(&buffer);
}

TEST(buffer, consume_drops_from_the_front)
{
    struct buffer buffer = { 0 };

    buffer_text(&buffer, "abcdef");
    buffer_consume(&buffer, 2);
    check_holds(&buffer, "cdef");
    buffer_consume(&buffer, 4);
    CHECK_EQ_INT(buffer.size, 0);
    buffer_free(&buffer);
    buffer_consume(&buffer, 0);
}

TEST(span, numbers_are_digits_that_fit)
{
    static const char *const bad[] = { "", "-1", "+1", " 1", "1 ", "0x1", "18446744073709551616",
        "1.0" };
    uint64_t value = 0;

    CHECK(span_u64(SPAN("18446744073709551615"), &value));
    CHECK_EQ_U64(value, UINT64_MAX);
    CHECK(span_u64(SPAN("007"), &value));
    CHECK_EQ_U64(value, 7);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(!span_u64(span_of(bad[i]), &value), "'%s' was taken", bad[i]);
    CHECK_EQ_U64(value, 7);
}

TEST(span, comparisons_look_at_all_of_it)
{
    CHECK(span_is(SPAN("abc"), "abc"));
    CHECK(!span_is(SPAN("abc"), "ab"));
    CHECK(!span_is(SPAN("ab"), "abc"));
    CHECK(span_is_nocase(SPAN("Content-LENGTH"), "content-length"));
    CHECK(!span_is_nocase(SPAN("content-lengt"), "content-length"));
    CHECK(!span_is_nocase(SPAN("content-length "), "content-length"));
    CHECK(!span_is_nocase(SPAN("@"), "`")); /* not letters, 0x20 apart */
    CHECK(span_starts(SPAN("abc"), "ab"));
    CHECK(!span_starts(SPAN("a"), "ab"));
    CHECK(span_equal((struct span){ NULL, 0 }, SPAN("")));
    CHECK(!span_equal(SPAN("a"), SPAN("b")));
    CHECK_EQ_INT(span_of(NULL).size, 0);
}

TEST(span, cut_takes_the_pieces_between_marks)
{
    static const char *const pieces[] = { "a", "", "b", "" };
    struct span rest = SPAN("a,,b,"), piece;

    for (size_t i = 0; i < 4; i++)
        CHECK(span_cut(&rest, ',', &piece) && span_is(piece, pieces[i]));
    CHECK(rest.at == NULL && !span_cut(&rest, ',', &piece));
    rest = SPAN("");
    CHECK(span_cut(&rest, ',', &piece) && piece.size == 0 && rest.at == NULL);
}
