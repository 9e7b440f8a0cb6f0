/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool one_in(struct base_random *random, uint64_t n)
{
    return base_random_below(random, n) == 0;
}

static void put_space(struct base_random *random, struct buffer *text)
{
    static const char *const spaces[] = { " ", "\n", "\t", "\r\n", "                    ",
        "\n    " };

    if (one_in(random, 4))
        buffer_text(text, spaces[base_random_below(random, COUNT(spaces))]);
}

static void put_digits(struct base_random *random, struct buffer *text, uint64_t count)
{
    for (; count > 0; count--)
        buffer_u64(text, base_random_below(random, 10));
}

/* Integers that Matrix allows, now and then one that it does not. */
static void put_integer(struct base_random *random, struct buffer *text)
{
    static const char *const borders[] = { "0", "-0", "9007199254740991", "-9007199254740991",
        "1e3", "12E+2", "1e0" };
    static const char *const outside[] = { "9007199254740992", "-9007199254740992", "1.0", "1e16",
        "10e-1", "0.5" };

    if (one_in(random, 60))
        buffer_text(text, outside[base_random_below(random, COUNT(outside))]);
    else if (one_in(random, 3))
        buffer_text(text, borders[base_random_below(random, COUNT(borders))]);
    else
        buffer_i64(text, (int64_t)base_random_below(random, 1u << 30) - (1 << 29));
}

static void put_number(struct base_random *random, struct buffer *text)
{
    static const char *const borders[] = { "0", "-0", "9223372036854775807", "-9223372036854775808",
        "9223372036854775808", "18446744073709551615", "9007199254740993", "1e308", "5e-324",
        "2.2250738585072011e-308", "0.1", "1E+2", "-1.5e-7", "0e1" };

    if (one_in(random, 3)) {
        buffer_text(text, borders[base_random_below(random, COUNT(borders))]);
        return;
    }
    if (one_in(random, 3))
        buffer_text(text, "-");
    buffer_u64(text, 1 + base_random_below(random, 9));
    put_digits(random, text, base_random_below(random, 19));
    if (one_in(random, 3)) {
        buffer_text(text, ".");
        put_digits(random, text, 1 + base_random_below(random, 18));
    }
    if (one_in(random, 4)) {
        buffer_text(text, one_in(random, 2) ? "e" : "E-");
        put_digits(random, text, 1 + base_random_below(random, 2));
    }
}

static void put_string(struct base_random *random, struct buffer *text)
{
    static const char *const pieces[] = { "a", "key", "some words of plain text", "\\n", "\\\"",
        "\\\\", "\\/", "\\b\\f\\r\\t", "\\u0041", "\\u00e9", "\\u20AC", "\\ud83d\\ude00",
        "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xd0\xbf\xd1\x80", " ", "0123456789abcdef",
        "\x7f", "\\u001f" };

    buffer_text(text, "\"");
    for (uint64_t count = base_random_below(random, 7); count > 0; count--)
        buffer_text(text, pieces[base_random_below(random, COUNT(pieces))]);
    buffer_text(text, "\"");
}

static void put_value(struct base_random *random, struct buffer *text, int depth, bool integers);

static void put_container(
    struct base_random *random, struct buffer *text, int depth, bool is_object, bool integers)
{
    uint64_t count = base_random_below(random, one_in(random, 20) ? 40 : 5);

    buffer_text(text, is_object ? "{" : "[");
    put_space(random, text);
    for (uint64_t i = 0; i < count; i++) {
        if (i > 0)
            buffer_text(text, ",");
        put_space(random, text);
        if (is_object) {
            put_string(random, text);
            put_space(random, text);
            buffer_text(text, ":");
        }
        put_value(random, text, depth + 1, integers);
    }
    buffer_text(text, is_object ? "}" : "]");
}

static void put_value(struct base_random *random, struct buffer *text, int depth, bool integers)
{
    static const char *const words[] = { "true", "false", "null" };

    put_space(random, text);
    switch (base_random_below(random, depth > 6 ? 4 : 8)) {
    case 0:
        buffer_text(text, words[base_random_below(random, 3)]);
        break;
    case 1:
    case 2:
        if (integers)
            put_integer(random, text);
        else
            put_number(random, text);
        break;
    case 3:
        put_string(random, text);
        break;
    case 4:
    case 5:
        put_container(random, text, depth, false, integers);
        break;
    default:
        put_container(random, text, depth, true, integers);
        break;
    }
    put_space(random, text);
}

void generate_json(struct base_random *random, struct buffer *text)
{
    put_value(random, text, (int)base_random_below(random, 3), false);
}

void generate_integer_json(struct base_random *random, struct buffer *text)
{
    put_value(random, text, (int)base_random_below(random, 3), true);
}

/* Replace `size` bytes at `at` by `piece`. */
static void splice(struct buffer *text, size_t at, size_t size, struct span piece)
{
    struct buffer out = { 0 };

    buffer_append(&out, text->bytes, at);
    buffer_span(&out, piece);
    buffer_append(&out, text->bytes + at + size, text->size - at - size);
    buffer_free(text);
    *text = out;
}

void generate_mutation(struct base_random *random, struct buffer *text)
{
    static const struct span pieces[] = { { "\"", 1 }, { "\\", 1 }, { ",", 1 }, { "]", 1 },
        { "}", 1 }, { "[", 1 }, { "{\"\":", 4 }, { "0", 1 }, { ".", 1 }, { "e", 1 }, { "-", 1 },
        { "\0", 1 }, { "\x1f", 1 }, { "\xff", 1 }, { "\xc3", 1 }, { "\xed\xa0\x80", 3 },
        { "\xf4\x90\x80\x80", 4 }, { "\\ud800", 6 }, { "\\udc00", 6 }, { "\\u00", 4 },
        { "\\u0000", 6 }, { "\v", 1 }, { "\xef\xbb\xbf", 3 }, { "1e999", 5 }, { "NaN", 3 },
        { "/*", 2 }, { "'", 1 }, { "\xc0\x80", 2 }, { "\xe0\x80\x80", 3 }, { "nul", 3 },
        { "99999999999999999999", 20 } };
    uint64_t rounds = 1 + base_random_below(random, 3);

    for (; rounds > 0; rounds--) {
        size_t at = base_random_below(random, text->size);
        size_t left = text->size - at;
        size_t size = base_random_below(random, left < 8 ? left + 1 : 8);

        switch (base_random_below(random, 5)) {
        case 0:
            text->bytes[at] = (char)(text->bytes[at] ^ (1 << base_random_below(random, 8)));
            break;
        case 1:
            if (size < text->size)
                splice(text, at, size, (struct span){ "", 0 });
            break;
        case 2:
            if (size < text->size)
                text->size -= size; /* cut off the end */
            break;
        case 3: {
            char copy[8];

            memcpy(copy, text->bytes + at, size);
            splice(text, at, 0, (struct span){ copy, size });
            break;
        }
        default:
            splice(text, at, 0, pieces[base_random_below(random, COUNT(pieces))]);
            break;
        }
    }
}
