/* SPDX-License-Identifier: Apache-2.0 */
/* json_parse.c: parse a text into the tape in one pass.
 *
 *     {"a":[1,2]}   ->   OBJECT size 5 count 1 | "a" | ARRAY size 3 count 2 | INT 1 | INT 2
 *
 * Invariants:
 * 1. Zeros follow the text. A zero is a control byte in a string and otherwise no digit, no space
 *    and no token, so it stops every scan at the latest.
 * 2. The cell of an open array or object holds the index of its parent and the parent's count so
 *    far. The tape is therefore the only stack, and nesting costs only cells.
 * 3. A decoded escape is never longer than its text, so decoding writes only inside its own string
 *    and never past the next byte to read. The rest of the text stays intact, and the offset of an
 *    error is an offset in the original text.
 * 4. Before the parser reads a value, the tape has room for two cells: the value and the key after
 *    it. */
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "json/json_private.h"
#include "json/json_scan.h"

#define NOT_OPEN UINT64_MAX

struct parser {
    const char *error_at;
    const char *error_text;
};

__attribute__((cold, noinline)) static char *parser_fail(
    struct parser *parser, const char *at, const char *text)
{
    parser->error_at = at;
    parser->error_text = text;
    return NULL;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* The value of each hexadecimal digit plus one; 0 means that the character is no digit. */
static const unsigned char hex_plus_one[256] = {
    ['0'] = 1,
    ['1'] = 2,
    ['2'] = 3,
    ['3'] = 4,
    ['4'] = 5,
    ['5'] = 6,
    ['6'] = 7,
    ['7'] = 8,
    ['8'] = 9,
    ['9'] = 10,
    ['a'] = 11,
    ['b'] = 12,
    ['c'] = 13,
    ['d'] = 14,
    ['e'] = 15,
    ['f'] = 16,
    ['A'] = 11,
    ['B'] = 12,
    ['C'] = 13,
    ['D'] = 14,
    ['E'] = 15,
    ['F'] = 16,
};

/* The byte that each character after a backslash stands for; 0 means no short escape. \u is decoded
 * by decode_unicode. */
static const char escaped[256] = {
    ['"'] = '"',
    ['\\'] = '\\',
    ['/'] = '/',
    ['b'] = '\b',
    ['f'] = '\f',
    ['n'] = '\n',
    ['r'] = '\r',
    ['t'] = '\t',
};

/* Read four hexadecimal digits; UINT32_MAX if one of them is no digit. */
static uint32_t read_hex4(const char *at)
{
    uint32_t value = 0;

    for (int i = 0; i < 4; i++) {
        unsigned digit = hex_plus_one[(unsigned char)at[i]];

        if (digit == 0)
            return UINT32_MAX;
        value = value << 4 | (digit - 1);
    }
    return value;
}

static char *put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *out++ = (char)(0xe0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    } else {
        *out++ = (char)(0xf0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3f));
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    }
    return out;
}

/* Decode the \uXXXX, or the pair of them, at *io_at, and advance both pointers. */
static bool decode_unicode(struct parser *parser, char **io_at, char **io_out)
{
    char *at = *io_at;
    uint32_t code = read_hex4(at + 2), low;

    if (code == UINT32_MAX)
        return parser_fail(parser, at, "\\u needs four hexadecimal digits") != NULL;
    if (code >= 0xdc00 && code < 0xe000)
        return parser_fail(parser, at, "a low surrogate must follow a high one") != NULL;
    at += 6;
    if (code >= 0xd800 && code < 0xdc00) {
        low = at[0] == '\\' && at[1] == 'u' ? read_hex4(at + 2) : UINT32_MAX;
        if (low < 0xdc00 || low >= 0xe000)
            return parser_fail(parser, *io_at, "a low surrogate must follow this high one") != NULL;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        at += 6;
    }
    *io_out = put_utf8(*io_out, code);
    *io_at = at;
    return true;
}

/* Copy `size` < 16 plain bytes down, piece by piece: a wider store could overwrite bytes that have
 * not been read yet. */
static inline void move_down(char *out, const char *at, size_t size)
{
    char piece[8];

    if ((size & 8) != 0) {
        memcpy(piece, at, 8);
        memcpy(out, piece, 8);
        out += 8;
        at += 8;
    }
    if ((size & 4) != 0) {
        memcpy(piece, at, 4);
        memcpy(out, piece, 4);
        out += 4;
        at += 4;
    }
    for (size &= 3; size > 0; size--)
        *out++ = *at++;
}

/* Copy the plain bytes at *io_at down to *io_out and advance both pointers. */
static inline void move_plain(char **io_at, char **io_out)
{
    char *at = *io_at, *out = *io_out;
#if JSON_SSE2
    unsigned mask;
    size_t size;

    while ((mask = json__special_mask(at)) == 0) {
        /* The register holds the whole block before the store overwrites any of it. */
        const __m128i block = _mm_loadu_si128((const __m128i *)(const void *)at);

        _mm_storeu_si128((__m128i *)(void *)out, block);
        at += 16;
        out += 16;
    }
    size = (size_t)__builtin_ctz(mask);
    move_down(out, at, size);
    at += size;
    out += size;
#else
    while (json__is_plain((unsigned char)*at))
        *out++ = *at++;
#endif
    *io_at = at;
    *io_out = out;
}

static const char *why_not_plain(const char *at)
{
    if ((signed char)*at < 0)
        return "the string is not UTF-8";
    return "a control character in a string must be escaped";
}

/* Decode the rest of a string from its first backslash on. Returns the byte after the closing
 * quote, or NULL. */
static char *decode_escapes(struct parser *parser, char *start, char *at, struct json *cell)
{
    char *out = at;

    for (;;) {
        if (*at == '\\') {
            char plain = escaped[(unsigned char)at[1]];

            if (plain != 0) {
                *out++ = plain;
                at += 2;
            } else if (at[1] != 'u') {
                return parser_fail(parser, at, "the escape is unknown");
            } else if (!decode_unicode(parser, &at, &out)) {
                return NULL;
            }
        } else if (*at == '"') {
            cell->kind = JSON_STRING;
            cell->size = (uint32_t)(out - start);
            cell->as.text = start;
            return at + 1;
        } else if ((signed char)*at < 0) {
            unsigned size = json__utf8_size(at);

            if (size == 0)
                return parser_fail(parser, at, why_not_plain(at));
            for (; size > 0; size--)
                *out++ = *at++;
        } else if ((unsigned char)*at < 0x20) {
            return parser_fail(parser, at, why_not_plain(at));
        } else {
            move_plain(&at, &out);
        }
    }
}

/* Parse a string that is long, not ASCII, or has escapes. */
__attribute__((noinline)) static char *parse_long_string(
    struct parser *parser, char *start, struct json *cell)
{
    char *at = start;

    for (;;) {
        at += json__scan_plain(at) - at;
        if (*at == '"')
            break;
        if (*at == '\\')
            return decode_escapes(parser, start, at, cell);
        if ((signed char)*at >= 0)
            return parser_fail(parser, at, why_not_plain(at));
        do {
            unsigned size = json__utf8_size(at);

            if (size == 0)
                return parser_fail(parser, at, why_not_plain(at));
            at += size;
        } while ((signed char)*at < 0);
    }
    cell->kind = JSON_STRING;
    cell->size = (uint32_t)(at - start);
    cell->as.text = start;
    return at + 1;
}

/* Parse a string; `start` is the byte after the opening quote. Returns the byte after the closing
 * quote, or NULL. */
static inline char *parse_string(struct parser *parser, char *start, struct json *cell)
{
#if JSON_SSE2
    unsigned mask = json__special_mask(start);

    /* Most strings are short and plain: no loop. */
    if (__builtin_expect(mask != 0, 1)) {
        unsigned size = (unsigned)__builtin_ctz(mask);

        if (__builtin_expect(start[size] == '"', 1)) {
            cell->kind = JSON_STRING;
            cell->size = size;
            cell->as.text = start;
            return start + size + 1;
        }
    }
#endif
    return parse_long_string(parser, start, cell);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static inline bool is_digit(char c)
{
    return (unsigned char)(c - '0') <= 9;
}

/* Parse the fraction and the exponent, if any, after the integer part that ends at `at`. */
static char *parse_real(struct parser *parser, char *start, char *at, struct json *cell)
{
    if (*at == '.') {
        at++;
        if (!is_digit(*at))
            return parser_fail(parser, at, "a digit must follow the decimal point");
        while (is_digit(*at))
            at++;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-')
            at++;
        if (!is_digit(*at))
            return parser_fail(parser, at, "an exponent needs a digit");
        while (is_digit(*at))
            at++;
    }
    cell->kind = JSON_REAL;
    cell->size = (uint32_t)(at - start);
    cell->as.text = start;
    return at;
}

static inline char *parse_number(struct parser *parser, char *start, struct json *cell)
{
    bool negative = *start == '-';
    char *first = start + negative, *at = first;
    uint64_t value = 0;

    if (!is_digit(*at))
        return parser_fail(parser, at, "a digit must follow the minus sign");
    /* `value` wraps around after 19 digits; a longer number is kept as a real. */
    while (is_digit(*at))
        value = value * 10 + (uint64_t)(*at++ - '0');
    if (*first == '0' && at - first > 1)
        return parser_fail(parser, first, "a number must not start with a zero");
    if (*at == '.' || *at == 'e' || *at == 'E')
        return parse_real(parser, start, at, cell);
    if (at - first > 19 || value > (uint64_t)INT64_MAX + negative)
        return parse_real(parser, start, at, cell);
    cell->kind = JSON_INT;
    cell->size = 0;
    cell->as.integer = (int64_t)(negative ? 0 - value : value);
    return at;
}

/* ---- structure ------------------------------------------------------------------------------- */

static inline char *skip_space(char *at)
{
    /* The usual cases, no space or one space, need no vector. */
    if (__builtin_expect((unsigned char)*at > ' ', 1))
        return at;
    if (*at == ' ' && (unsigned char)at[1] > ' ')
        return at + 1;
    return at + (json__scan_space(at) - at);
}

static inline char *parse_literal(struct parser *parser, char *at, struct json *cell)
{
    cell->size = 0;
    cell->as.integer = 0;
    if (memcmp(at, "true", 4) == 0) {
        cell->kind = JSON_BOOL;
        cell->as.truth = true;
        return at + 4;
    }
    if (memcmp(at, "null", 4) == 0) {
        cell->kind = JSON_NULL;
        return at + 4;
    }
    if (memcmp(at, "false", 5) == 0) {
        cell->kind = JSON_BOOL;
        return at + 5;
    }
    return parser_fail(parser, at, "a value is expected");
}

/* The container of a value, which decides what may follow it. */
enum place { OUTSIDE, IN_ARRAY, IN_OBJECT };

/* One function, so that the position, the cell and the counts stay in registers. */
static int parse_text(struct json_doc *doc, char *at, unsigned flags, struct parser *parser)
{
    const uint32_t depth_max = json__depth_max(doc);
    struct json *cell = doc->cells, *cell_limit = doc->cells + doc->capacity;
    struct json *container;
    const struct json *twin;
    uint64_t open = NOT_OPEN;
    uint32_t count = 0, depth = 0;
    enum place place = OUTSIDE;
    int rc;

value:
    if (__builtin_expect(cell_limit - cell < 2, 0)) {
        doc->count = (size_t)(cell - doc->cells);
        rc = json__grow(doc);
        if (rc != 0)
            return rc;
        cell = doc->cells + doc->count;
        cell_limit = doc->cells + doc->capacity;
    }
value_after_space:
    switch (*at) {
    case '"':
        at = parse_string(parser, at + 1, cell);
        break;
    case '{':
    case '[':
        if (depth == depth_max) {
            parser_fail(parser, at, "the nesting is too deep");
            return TR_ELIMIT;
        }
        depth++;
        place = *at == '{' ? IN_OBJECT : IN_ARRAY;
        cell->kind = *at == '{' ? JSON_OBJECT : JSON_ARRAY;
        cell->size = count; /* of the parent */
        cell->as.count = open;
        open = (uint64_t)(cell - doc->cells);
        count = 0;
        cell++;
        at = skip_space(at + 1);
        if (*at == (place == IN_OBJECT ? '}' : ']'))
            goto close;
        if (place == IN_OBJECT)
            goto key;
        goto value;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
        at = parse_number(parser, at, cell);
        break;
    case ' ':
    case '\n':
    case '\r':
    case '\t':
        at = skip_space(at);
        goto value_after_space;
    default:
        at = parse_literal(parser, at, cell);
        break;
    }
    if (__builtin_expect(at == NULL, 0))
        return TR_EPROTO;
    cell++;

after_value:
    at = skip_space(at);
    if (place == IN_OBJECT) {
        count++;
        if (*at == ',') {
            at = skip_space(at + 1);
            goto key;
        }
        if (*at == '}')
            goto close;
        parser_fail(parser, at, "a comma or } is expected");
        return TR_EPROTO;
    }
    if (place == IN_ARRAY) {
        count++;
        if (*at == ',') {
            at++;
            goto value;
        }
        if (*at == ']')
            goto close;
        parser_fail(parser, at, "a comma or ] is expected");
        return TR_EPROTO;
    }
    doc->count = (size_t)(cell - doc->cells);
    parser->error_at = at; /* the caller checks that the text ends here */
    return 0;

key:
    if (__builtin_expect(*at != '"', 0)) {
        parser_fail(parser, at, "a key in quotes is expected");
        return TR_EPROTO;
    }
    at = parse_string(parser, at + 1, cell);
    if (__builtin_expect(at == NULL, 0))
        return TR_EPROTO;
    cell++;
    at = skip_space(at);
    if (__builtin_expect(*at != ':', 0)) {
        parser_fail(parser, at, "a colon is expected");
        return TR_EPROTO;
    }
    at++;
    goto value;

close:
    at++;
    depth--;
    container = doc->cells + open;
    open = container->as.count;
    container->as.count = count;
    count = container->size;
    container->size = (uint32_t)(cell - container);
    if ((flags & JSON_UNIQUE_KEYS) != 0 && place == IN_OBJECT) {
        twin = json__find_twin(doc, container, &rc);
        if (rc != 0)
            return rc;
        if (twin != NULL) {
            parser_fail(parser, twin->as.text, "the object has this key twice");
            return TR_EEXIST;
        }
    }
    place = open == NOT_OPEN                       ? OUTSIDE
            : doc->cells[open].kind == JSON_OBJECT ? IN_OBJECT
                                                   : IN_ARRAY;
    goto after_value;
}

int json_parse(struct json_doc *doc, char *text, size_t size, unsigned flags)
{
    struct parser parser = { NULL, NULL };
    int rc;

    tr_assert((flags & ~JSON_UNIQUE_KEYS) == 0);
    tr_assert(text != NULL);

    doc->count = 0;
    doc->error = (struct json_error){ 0, NULL };
    if (size > JSON_TEXT_BYTES_MAX) {
        doc->error.text = "the text is longer than 1 GiB";
        return TR_ETOOBIG;
    }
    memset(text + size, 0, JSON_PADDING_BYTES);
    rc = doc->capacity == 0 ? json__grow(doc) : 0; /* arithmetic on NULL is undefined */
    if (rc == 0)
        rc = parse_text(doc, text, flags, &parser);
    if (rc == 0 && parser.error_at != text + size) {
        parser.error_text = "the text must end after its value";
        rc = TR_EPROTO;
    }
    if (rc == 0)
        return 0;
    doc->count = 0;
    if (rc == TR_ENOMEM) {
        doc->error.text = tr_error_text(rc);
        return rc;
    }
    /* A zero byte may be padding or part of the text; the offset tells them apart. */
    doc->error.offset = (size_t)(parser.error_at - text);
    doc->error.text = doc->error.offset >= size ? "the text ends too early" : parser.error_text;
    return rc;
}
