/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdio.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/random.h"
#include "json/json_scan.h"
#include "text.h"

/* Parse a literal and check the verdict; returns the code. Frees everything. */
static int verdict(const char *bytes, size_t size, unsigned flags, struct json_error *ret_error)
{
    struct json_doc doc = { 0 };
    char *text = text_padded(bytes, size);
    int rc = json_parse(&doc, text, size, flags);

    CHECK((json_root(&doc) == NULL) == (rc != 0));
    CHECK((doc.error.text == NULL) == (rc == 0));
    if (ret_error != NULL)
        *ret_error = doc.error;
    json_doc_free(&doc);
    free(text);
    return rc;
}

#define ACCEPTS(text) CHECK_EQ_INT(verdict(text, sizeof(text) - 1, 0, NULL), 0)
#define REFUSES(json, at, why)                                                                     \
    do {                                                                                           \
        struct json_error error;                                                                   \
                                                                                                   \
        CHECK_EQ_INT(verdict(json, sizeof(json) - 1, 0, &error), TR_EPROTO);                       \
        CHECK_EQ_STR(error.text, why);                                                             \
        CHECK_EQ_U64(error.offset, at);                                                            \
    } while (0)

/* ---- the conformance files ------------------------------------------------------------------- */

static char *read_whole(const char *path, size_t *ret_size)
{
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(1 << 20);

    CHECK_MSG(file != NULL, "cannot open %s", path);
    CHECK(bytes != NULL);
    *ret_size = fread(bytes, 1, 1 << 20, file);
    CHECK(*ret_size < 1 << 20);
    fclose(file);
    return bytes;
}

static DIR *open_vectors(char *folder, size_t size)
{
    const char *shared = getenv("TROUPE_SHARED");
    DIR *dir = NULL;

    /* Tests run in the root of the repository or in its build directory. */
    if (shared != NULL) {
        (void)snprintf(folder, size, "%s/vectors/json/test_parsing", shared);
        return opendir(folder);
    }
    for (const char *up = "../../../../"; dir == NULL && *up != '\0'; up += 3) {
        (void)snprintf(folder, size, "%sshared/vectors/json/test_parsing", up);
        dir = opendir(folder);
    }
    return dir;
}

TEST(json, conformance_files_have_their_verdicts)
{
    char folder[512], path[1024];
    DIR *dir = open_vectors(folder, sizeof folder);
    struct dirent *entry;
    int accepted = 0, refused = 0, either = 0;

    if (dir == NULL)
        SKIP("no ../shared/vectors/json and no TROUPE_SHARED");
    while ((entry = readdir(dir)) != NULL) {
        size_t size;
        char *bytes;
        int rc;

        if (strstr(entry->d_name, ".json") == NULL)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        bytes = read_whole(path, &size);
        rc = verdict(bytes, size, 0, NULL);
        free(bytes);
        if (entry->d_name[0] == 'y') {
            CHECK_MSG(rc == 0, "%s must be accepted", entry->d_name);
            accepted++;
        } else if (entry->d_name[0] == 'n') {
            CHECK_MSG(rc != 0, "%s must be refused", entry->d_name);
            refused++;
        } else {
            either++;
        }
    }
    closedir(dir);
    CHECK_EQ_INT(accepted, 95);
    CHECK_EQ_INT(refused, 188);
    CHECK_EQ_INT(either, 35);
}

/* ---- grammar --------------------------------------------------------------------------------- */

TEST(json, every_kind_of_value_is_accepted)
{
    ACCEPTS("null");
    ACCEPTS(" true ");
    ACCEPTS("\t\r\n false\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n");
    ACCEPTS("-12");
    ACCEPTS("\"\"");
    ACCEPTS("[]");
    ACCEPTS("{ }");
    ACCEPTS("[ [ ] , { } ]");
    ACCEPTS("{\"a\" : [1,2 , 3] , \"b\":{\"c\":null}}");
}

TEST(json, errors_name_the_byte_and_the_reason)
{
    REFUSES("", 0, "the text ends too early");
    REFUSES("  ", 2, "the text ends too early");
    REFUSES("{", 1, "the text ends too early");
    REFUSES("{\"a\":", 5, "the text ends too early");
    REFUSES("\"abc", 4, "the text ends too early");
    REFUSES("\"\xe2\x82", 1, "the string is not UTF-8");
    REFUSES("[1,]", 3, "a value is expected");
    REFUSES("[1 2]", 3, "a comma or ] is expected");
    REFUSES("{\"a\" 1}", 5, "a colon is expected");
    REFUSES("{\"a\":1 \"b\"}", 7, "a comma or } is expected");
    REFUSES("{\"a\":1,}", 7, "a key in quotes is expected");
    REFUSES("{a:1}", 1, "a key in quotes is expected");
    REFUSES("[1}", 2, "a comma or ] is expected");
    REFUSES("{\"a\":1]", 6, "a comma or } is expected");
    REFUSES("1 1", 2, "the text must end after its value");
    REFUSES("[]]", 2, "the text must end after its value");
    REFUSES("tru", 0, "a value is expected");
    REFUSES("truex", 4, "the text must end after its value");
    REFUSES("nul\0", 0, "a value is expected");
    REFUSES("1\0", 1, "the text must end after its value");
    REFUSES("[\0]", 1, "a value is expected");
    REFUSES("\xef\xbb\xbf[]", 0, "a value is expected");
    REFUSES("\v1", 0, "a value is expected");
    REFUSES("[1\f]", 2, "a comma or ] is expected");
    REFUSES("'a'", 0, "a value is expected");
    REFUSES("[NaN]", 1, "a value is expected");
    REFUSES("/**/1", 0, "a value is expected");
}

/* An error after decoded escapes: the offset is one of the original text. */
TEST(json, offsets_are_of_the_original_text)
{
    REFUSES("[\"\\u0041\\n\\n\",x]", 14, "a value is expected");
    REFUSES("{\"\\n\\n\\n\\n\":1,\"b\":\"\\q\"}", 19, "the escape is unknown");
}

TEST(json, a_failure_is_one_sentence_with_its_place)
{
    struct json_doc doc = { 0 };
    char text[JSON_EXPLAIN_BYTES];

    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("[1 2]"), 0), TR_EPROTO);
    json_explain(&doc, "The body", text);
    CHECK_EQ_STR(text, "The body is not JSON at byte 3: a comma or ] is expected.");
    CHECK_EQ_INT(json_parse_copy(&doc, SPAN(""), 0), TR_EPROTO);
    json_explain(&doc, "The query", text);
    CHECK_EQ_STR(text, "The query is not JSON at byte 0: the text ends too early.");
    json_doc_free(&doc);
}

TEST(json, every_cut_of_a_text_is_refused)
{
    static const char whole[] =
        "{\"key\\n\":[1,-2.5e3,true,false,null,\"\xf0\x9f\x8e\x89 long enough "
        "for more than one block \\ud83d\\ude00 end\",{\"a\":{}}]}";

    ACCEPTS(whole);
    for (size_t size = 0; size < sizeof(whole) - 1; size++)
        CHECK_MSG(verdict(whole, size, 0, NULL) == TR_EPROTO, "cut at %zu was accepted", size);
}

/* ---- strings --------------------------------------------------------------------------------- */

static void check_string(const char *json, size_t json_size, const char *expected, size_t size)
{
    struct json_doc doc = { 0 };
    char *text = text_padded(json, json_size);
    struct span string;

    CHECK_EQ_INT(json_parse(&doc, text, json_size, 0), 0);
    CHECK(json_string(json_root(&doc), &string));
    CHECK_EQ_U64(string.size, size);
    CHECK(memcmp(string.at, expected, size) == 0);
    json_doc_free(&doc);
    free(text);
}
#define IS_STRING(json, expected)                                                                  \
    check_string(json, sizeof(json) - 1, expected, sizeof(expected) - 1)

TEST(json, escapes_are_undone)
{
    IS_STRING("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    IS_STRING("\"\\u0000\\u001F\\u007f\\u0080\\u07ff\\u0800\\uFFFF\"",
        "\0\x1f\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf");
    IS_STRING("\"\\ud800\\udc00 \\uDBFF\\uDFFF\"", "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf");
    IS_STRING("\"a\\n0123456789abcdef0123456789abcdef\\t\xc3\xa4 tail of it\"",
        "a\n0123456789abcdef0123456789abcdef\t\xc3\xa4 tail of it");
}

TEST(json, wrong_escapes_are_refused)
{
    REFUSES("\"\\x\"", 1, "the escape is unknown");
    REFUSES("\"\\", 1, "the escape is unknown");
    REFUSES("\"\\u12g4\"", 1, "\\u needs four hexadecimal digits");
    REFUSES("\"\\u12", 1, "\\u needs four hexadecimal digits");
    REFUSES("\"ab\\ud800\"", 3, "a low surrogate must follow this high one");
    REFUSES("\"\\ud800\\n\"", 1, "a low surrogate must follow this high one");
    REFUSES("\"\\ud800\\ud800\"", 1, "a low surrogate must follow this high one");
    REFUSES("\"\\ud800\\ue000\"", 1, "a low surrogate must follow this high one");
    REFUSES("\"\\udc00\\ud800\"", 1, "a low surrogate must follow a high one");
    REFUSES("\"\\ud800\\udczz\"", 1, "a low surrogate must follow this high one");
}

/* Strings of every length with one special byte at every place, across all block borders. */
TEST(json, a_special_byte_is_seen_at_every_place)
{
    char json[128], expected[128];

    for (size_t size = 1; size < 70; size++)
        for (size_t place = 0; place < size; place++) {
            memset(json, 'a', sizeof json);
            memset(expected, 'a', sizeof expected);
            json[0] = json[size + 2] = '"';
            json[1 + place] = '\\';
            json[2 + place] = 'n';
            expected[place] = '\n';
            check_string(json, size + 3, expected, size);
            json[1 + place] = 'a';
            json[2 + place] = 'a';
            json[1 + place] = '\x1f';
            CHECK_EQ_INT(verdict(json, size + 3, 0, NULL), TR_EPROTO);
            json[1 + place] = '\xff';
            CHECK_EQ_INT(verdict(json, size + 3, 0, NULL), TR_EPROTO);
        }
}

/* A second opinion on UTF-8, written from the table of RFC 3629 section 4. */
static bool is_utf8_by_table(const unsigned char *b, size_t size)
{
    size_t i = 0;

    while (i < size) {
        size_t left = size - i;
        unsigned char low = 0x80, high = 0xbf;
        size_t more;

        if (b[i] < 0x80) {
            i++;
            continue;
        }
        if (b[i] >= 0xc2 && b[i] <= 0xdf)
            more = 1;
        else if (b[i] >= 0xe0 && b[i] <= 0xef)
            more = 2;
        else if (b[i] >= 0xf0 && b[i] <= 0xf4)
            more = 3;
        else
            return false;
        if (b[i] == 0xe0)
            low = 0xa0;
        if (b[i] == 0xed)
            high = 0x9f;
        if (b[i] == 0xf0)
            low = 0x90;
        if (b[i] == 0xf4)
            high = 0x8f;
        if (left <= more || b[i + 1] < low || b[i + 1] > high)
            return false;
        for (size_t k = 2; k <= more; k++)
            if (b[i + k] < 0x80 || b[i + k] > 0xbf)
                return false;
        i += more + 1;
    }
    return true;
}

/* All sequences of a first byte and the interesting second, third and fourth ones. */
TEST(json, utf8_is_checked_against_the_table)
{
    static const unsigned char next[] = { 0x00, 0x22, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
        0xc0, 0xff };
    const size_t count = sizeof next;
    struct json_doc doc = { 0 };
    char text[8 + JSON_PADDING_BYTES];
    int valid = 0;

    for (unsigned first = 0x80; first < 0x100; first++)
        for (size_t i = 0; i < count * count * count; i++)
            for (size_t size = 1; size <= 4; size++) {
                unsigned char bytes[4] = { (unsigned char)first, next[i % count],
                    next[i / count % count], next[i / count / count] };
                bool expected = is_utf8_by_table(bytes, size);
                char *exact = text_exact(bytes, size);

                CHECK(json_is_utf8((struct span){ exact, size }) == expected);
                free(exact);
                if (memchr(bytes, 0, size) != NULL || memchr(bytes, '"', size) != NULL)
                    continue;
                text[0] = '"';
                memcpy(text + 1, bytes, size);
                text[1 + size] = '"';
                CHECK((json_parse(&doc, text, size + 2, 0) == 0) == expected);
                valid += expected;
            }
    CHECK(valid > 100);
    json_doc_free(&doc);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void check_int(const char *json, int64_t expected)
{
    struct json_doc doc = { 0 };
    int64_t integer;
    double real;

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(json), 0), 0);
    CHECK_MSG(json_int(json_root(&doc), &integer), "%s is not an integer", json);
    CHECK_EQ_INT(integer, expected);
    CHECK(json_double(json_root(&doc), &real));
    CHECK(real == (double)expected);
    json_doc_free(&doc);
}

TEST(json, integers_are_exact_to_the_last_bit)
{
    check_int("0", 0);
    check_int("-0", 0);
    check_int("-1", -1);
    check_int("9007199254740993", 9007199254740993);
    check_int("1234567890123456789", 1234567890123456789);
    check_int("9223372036854775807", INT64_MAX);
    check_int("-9223372036854775807", -INT64_MAX);
    check_int("-9223372036854775808", INT64_MIN);
}

static void check_real(const char *json, double expected)
{
    struct json_doc doc = { 0 };
    struct span digits;
    int64_t integer;
    double real;

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(json), 0), 0);
    CHECK_EQ_INT(json_kind(json_root(&doc)), JSON_REAL);
    CHECK(!json_int(json_root(&doc), &integer));
    CHECK_MSG(json_double(json_root(&doc), &real), "%s has no double", json);
    CHECK_MSG(real == expected, "%s is read as %.17g", json, real);
    CHECK(json_digits(json_root(&doc), &digits));
    CHECK(span_is(digits, json));
    json_doc_free(&doc);
}

TEST(json, other_numbers_keep_their_digits)
{
    check_real("9223372036854775808", 9223372036854775808.0);
    check_real("-9223372036854775809", -9223372036854775809.0);
    check_real("18446744073709551616", 18446744073709551616.0);
    check_real("100000000000000000000000", 1e23);
    check_real("1.0", 1.0);
    check_real("-0.0", -0.0);
    check_real("1e3", 1000.0);
    check_real("1E+2", 100.0);
    check_real("123.456e-2", 1.23456);
    check_real("5e-324", 4.9406564584124654e-324);
    check_real("1e-400", 0.0);
    check_real("0e0", 0.0);
}

TEST(json, a_number_past_double_parses_but_has_no_double)
{
    struct json_doc doc = { 0 };
    double real = 7;

    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("-1e400"), 0), 0);
    CHECK(!json_double(json_root(&doc), &real));
    CHECK(real == 7);
    json_doc_free(&doc);
}

TEST(json, malformed_numbers_are_refused)
{
    REFUSES("01", 0, "a number must not start with a zero");
    REFUSES("-01", 1, "a number must not start with a zero");
    REFUSES("[00]", 1, "a number must not start with a zero");
    REFUSES("-x", 1, "a digit must follow the minus sign");
    REFUSES("-", 1, "the text ends too early");
    REFUSES("1.x", 2, "a digit must follow the decimal point");
    REFUSES("[1.e1]", 3, "a digit must follow the decimal point");
    REFUSES("[1e+]", 4, "an exponent needs a digit");
    REFUSES("[1ex]", 3, "an exponent needs a digit");
    REFUSES("+1", 0, "a value is expected");
    REFUSES(".5", 0, "a value is expected");
    REFUSES("0x10", 1, "the text must end after its value");
    REFUSES("[1a]", 2, "a comma or ] is expected");
}

/* ---- limits ---------------------------------------------------------------------------------- */

static int parse_nested(struct json_doc *doc, size_t depth, const char *open, const char *close)
{
    struct buffer text = { 0 };
    int rc;

    for (size_t i = 0; i < depth; i++)
        buffer_text(&text, open);
    buffer_text(&text, "1");
    for (size_t i = 0; i < depth; i++)
        buffer_text(&text, close);
    rc = json_parse_copy(doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS);
    buffer_free(&text);
    return rc;
}

TEST(json, depth_is_bounded)
{
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(parse_nested(&doc, JSON_DEPTH_DEFAULT, "[", "]"), 0);
    CHECK_EQ_INT(parse_nested(&doc, JSON_DEPTH_DEFAULT + 1, "[", "]"), TR_ELIMIT);
    CHECK_EQ_U64(doc.error.offset, JSON_DEPTH_DEFAULT);
    CHECK_EQ_STR(doc.error.text, "the nesting is too deep");
    CHECK_EQ_INT(parse_nested(&doc, JSON_DEPTH_DEFAULT, "{\"a\":", "}"), 0);
    CHECK_EQ_INT(parse_nested(&doc, JSON_DEPTH_DEFAULT + 1, "{\"a\":", "}"), TR_ELIMIT);
    doc.depth_max = 3;
    CHECK_EQ_INT(parse_nested(&doc, 3, "[", "]"), 0);
    CHECK_EQ_INT(parse_nested(&doc, 4, "[", "]"), TR_ELIMIT);
    doc.depth_max = JSON_DEPTH_MAX;
    CHECK_EQ_INT(parse_nested(&doc, JSON_DEPTH_MAX, "[", "]"), 0);
    CHECK_EQ_INT(parse_nested(&doc, 1000000, "[", "]"), TR_ELIMIT);
    json_doc_free(&doc);
}

TEST(json, siblings_do_not_add_to_the_depth)
{
    struct json_doc doc = { .depth_max = 2 };

    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("[[],[],{},[1],{\"a\":1}]"), 0), 0);
    CHECK_EQ_U64(json_count(json_root(&doc)), 5);
    json_doc_free(&doc);
}

TEST(json, a_text_past_the_limit_is_not_touched)
{
    struct json_doc doc = { 0 };
    char text[1] = { '1' };

    CHECK_EQ_INT(json_parse(&doc, text, JSON_TEXT_BYTES_MAX + 1, 0), TR_ETOOBIG);
    CHECK_EQ_INT(
        json_parse_copy(&doc, (struct span){ text, JSON_TEXT_BYTES_MAX + 1 }, 0), TR_ETOOBIG);
    CHECK(json_root(&doc) == NULL);
}

/* ---- keys ------------------------------------------------------------------------------------ */

#define TWIN(json, at)                                                                             \
    do {                                                                                           \
        struct json_error error;                                                                   \
                                                                                                   \
        ACCEPTS(json);                                                                             \
        CHECK_EQ_INT(verdict(json, sizeof(json) - 1, JSON_UNIQUE_KEYS, &error), TR_EEXIST);        \
        CHECK_EQ_U64(error.offset, at);                                                            \
        CHECK_EQ_STR(error.text, "the object has this key twice");                                 \
    } while (0)

TEST(json, a_key_twice_is_refused_if_asked)
{
    TWIN("{\"a\":1,\"a\":2}", 8);
    TWIN("{\"a\":1,\"b\":{},\"a\":2}", 15);
    TWIN("{\"\":1,\"\":2}", 7);
    TWIN("{\"a\":1,\"\\u0061\":2}", 8);
    TWIN("[{\"x\":{\"long enough key\":[1,2],\"b\":0,\"long enough key\":{}}}]", 38);
    CHECK_EQ_INT(verdict("{\"a\":{\"a\":1},\"b\":{\"a\":1}}", 25, JSON_UNIQUE_KEYS, NULL), 0);
    CHECK_EQ_INT(verdict("{\"a\":1,\"A\":1,\"aa\":1,\"\":1}", 25, JSON_UNIQUE_KEYS, NULL), 0);
}

/* Objects of sizes around FILTER_KEYS_MAX, with the equal keys at every pair of places. */
TEST(json, a_twin_is_found_wherever_it_is)
{
    struct json_doc doc = { 0 };
    struct buffer text = { 0 };

    for (int count = 2; count <= 40; count += 1)
        for (int twin = 0; twin < count; twin++)
            for (int other = 0; other < count; other++) {
                int rc;

                buffer_clear(&text);
                buffer_text(&text, "{");
                for (int i = 0; i < count; i++)
                    buffer_format(
                        &text, "%s\"key%d\":[{}]", i == 0 ? "" : ",", i == twin ? other : i);
                buffer_text(&text, "}");
                rc =
                    json_parse_copy(&doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS);
                CHECK_EQ_INT(rc, twin == other ? 0 : TR_EEXIST);
            }
    buffer_free(&text);
    json_doc_free(&doc);
}

/* Comparing each with each would be 2e10 comparisons and run into the time limit. */
TEST(json, many_keys_that_look_alike_are_not_quadratic)
{
    enum { COUNT = 200000 };
    struct json_doc doc = { 0 };
    struct buffer text = { 0 };

    buffer_text(&text, "{");
    for (int i = 0; i < COUNT; i++) /* same size, same first and last eight bytes */
        buffer_format(&text, "%s\"aaaaaaaa%08dzzzzzzzz\":0", i == 0 ? "" : ",", i);
    buffer_text(&text, "}");
    CHECK_EQ_INT(
        json_parse_copy(&doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS), 0);
    CHECK_EQ_U64(json_count(json_root(&doc)), COUNT);
    buffer_free(&text);
    json_doc_free(&doc);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void make_wide(struct buffer *text)
{
    buffer_text(text, "{");
    for (int i = 0; i < 300; i++)
        buffer_format(text, "%s\"k%d\":[%d,\"\\u00e4\"]", i == 0 ? "" : ",", i, i);
    buffer_text(text, "}");
}

TEST(json, running_out_of_memory_anywhere_is_an_error)
{
    struct buffer text = { 0 };
    uint64_t countdown = 0, calls;
    int rc;

    make_wide(&text);
    do {
        struct json_doc doc = { 0 };

        base_fault_countdown(++countdown, 1);
        rc = json_parse_copy(&doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS);
        calls = base_fault_countdown(0, 0);
        CHECK(rc == (calls >= countdown ? TR_ENOMEM : 0));
        CHECK((json_root(&doc) == NULL) == (rc != 0));
        if (rc != 0) {
            CHECK_EQ_STR(doc.error.text, tr_error_text(TR_ENOMEM));
            /* The document is usable afterwards. */
            CHECK_EQ_INT(json_parse_copy(&doc, SPAN("[1]"), 0), 0);
        }
        json_doc_free(&doc);
    } while (rc != 0);
    CHECK(countdown >= 6); /* the copy, five sizes of tape, the keys */
    buffer_free(&text);
}

TEST(json, a_document_is_reused_without_allocating)
{
    struct buffer text = { 0 };
    struct json_doc doc = { 0 };
    struct span span;

    make_wide(&text);
    span = (struct span){ text.bytes, text.size };
    CHECK_EQ_INT(json_parse_copy(&doc, span, JSON_UNIQUE_KEYS), 0);
    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("[["), 0), TR_EPROTO);
    base_fault_countdown(1, UINT64_MAX);
    CHECK_EQ_INT(json_parse_copy(&doc, span, JSON_UNIQUE_KEYS), 0);
    CHECK_EQ_U64(base_fault_countdown(0, 0), 0);
    CHECK_EQ_U64(json_count(json_root(&doc)), 300);
    json_doc_free(&doc);
    CHECK(json_root(&doc) == NULL);
    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("1"), 0), 0);
    json_doc_free(&doc);
    buffer_free(&text);
}

/* ---- scans ----------------------------------------------------------------------------------- */

#if JSON_SSE2
TEST(json, vector_and_portable_scans_agree)
{
    static const char kinds[] = "aaaaaaaa \"\\\x1f\x7f\x80\xff\n\t\r      \v~!#[]";
    struct base_random random;
    char text[80];

    base_random_init(&random, check_seed());
    for (int round = 0; round < 200000; round++) {
        size_t variety = 1 + base_random_below(&random, sizeof(kinds) - 1);
        size_t size = base_random_below(&random, 60);

        memset(text, 0, sizeof text);
        for (size_t i = 0; i < size; i++)
            text[i] = kinds[base_random_below(&random, variety)];
        if (round % 2 == 0)
            memset(text, ' ', base_random_below(&random, size + 1));
        CHECK(json__scan_plain_sse2(text) == json__scan_plain_portable(text));
        CHECK(json__scan_space_sse2(text) == json__scan_space_portable(text));
    }
    for (int byte = 0; byte < 256; byte++) {
        memset(text, byte, 32);
        memset(text + 32, 0, sizeof(text) - 32);
        CHECK(json__scan_plain_sse2(text) == json__scan_plain_portable(text));
        CHECK(json__scan_space_sse2(text) == json__scan_space_portable(text));
    }
}
#endif

TEST_ABORTS(json, an_unknown_flag_is_a_bug, "JSON_UNIQUE_KEYS")
{
    struct json_doc doc = { 0 };
    char text[1 + JSON_PADDING_BYTES] = "1";

    (void)json_parse(&doc, text, 1, 8);
}
