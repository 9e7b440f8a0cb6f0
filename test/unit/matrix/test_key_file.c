/* SPDX-License-Identifier: Apache-2.0 */
/* The two files were computed by a second program that reads the files of Element's own tests. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "mx_stage.h"

#define BEGIN "-----BEGIN MEGOLM SESSION DATA-----"
#define END "-----END MEGOLM SESSION DATA-----"

static const char text_1000[] =
    "AQABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAAD6N+za9Hf3S9TixOJw7WLmu6gR8JxGFY33wLn3HEFaIzi"
    "2hPFvA3U88+gEdd75XM4qqGIdo4";
/* No passphrase, one round, and a counter that overflows. */
static const char text_1[] =
    "AQAAAAAAAAAAAAAAAAAAAAD//////////3//////////AAAAAWr76wuaM96+NZb3DcPxSFVBtHltYeE0OPn/5ZIr"
    "+eGUd+NLC0FpQ5MuHA5Pyyb5XSSi8Ga41jOqykvANxYttj0dgOoQW0CMz8RnEIPz4biJCRE8+NXAvtKG8wbFEnbEw3TQ"
    "B12X0KMN0E0V7DDMw97jhOJ3Ftm1ASSb0jeADMU+RysB9Q";

static const struct mx_key_file_options options = { { "p\u00e4ssword", sizeof "p\u00e4ssword" - 1 },
    1000 };
#define SESSIONS "[{\"room_id\":\"!r:x\"}]"
static const struct span sessions = { SESSIONS, sizeof SESSIONS - 1 };

static int decrypt(const char *head, struct span body, const char *tail, struct buffer *out)
{
    struct buffer file = { 0 };
    int rc;

    buffer_text(&file, head);
    buffer_span(&file, body);
    buffer_text(&file, tail);
    rc = mx_key_file_decrypt(&options, mx_stage_span(&file), out);
    buffer_free(&file);
    return rc;
}

TEST(key_file, files_of_another_program_are_read)
{
    struct buffer out = { 0 };

    CHECK_EQ_INT(decrypt(BEGIN "\n", SPAN(text_1000), "\n" END "\n", &out), 0);
    CHECK(span_equal(mx_stage_span(&out), sessions));
    buffer_clear(&out);
    CHECK_EQ_INT(decrypt("note\r\n" BEGIN "\r\n", SPAN(text_1000), "=\r\n" END, &out), 0);
    CHECK(span_equal(mx_stage_span(&out), sessions));
    mx_wipe_buffer(&out);
}

TEST(key_file, a_counter_may_overflow_and_a_passphrase_be_empty)
{
    const struct mx_key_file_options empty = { SPAN(""), 1 };
    struct buffer file = { 0 }, out = { 0 };

    buffer_format(&file, "%s\n%s\n%s", BEGIN, text_1, END);
    CHECK_EQ_INT(mx_key_file_decrypt(&empty, mx_stage_span(&file), &out), 0);
    CHECK_EQ_U64(out.size, 100);
    for (size_t i = 0; i < out.size; i++)
        CHECK(out.bytes[i] == 'x');
    buffer_free(&file);
    mx_wipe_buffer(&out);
}

TEST(key_file, the_same_bytes_are_written)
{
    struct mx_random random = MX_STAGE_COUNTING;
    struct buffer file = { 0 }, out = { 0 };
    uint8_t expected[128];
    size_t size, at = 0;

    CHECK_EQ_INT(mx_key_file_encrypt(&options, sessions, &random, &file), 0);
    CHECK(span_starts(mx_stage_span(&file), BEGIN "\n"));
    CHECK_EQ_INT(mx_base64_decode(SPAN(text_1000), expected, sizeof expected, &size), 0);
    for (size_t i = strlen(BEGIN); at < strlen(text_1000); i++)
        if (file.bytes[i] != '\n')
            CHECK(file.bytes[i] == text_1000[at++]);
    CHECK_EQ_INT(mx_key_file_decrypt(&options, mx_stage_span(&file), &out), 0);
    CHECK(span_equal(mx_stage_span(&out), sessions));
    buffer_free(&file);
    mx_wipe_buffer(&out);
}

TEST(key_file, sizes_around_a_line_go_round)
{
    char text[300];
    struct buffer file = { 0 }, out = { 0 };
    const struct mx_key_file_options quick = { SPAN("x"), 1 };

    memset(text, 'y', sizeof text);
    for (size_t size = 0; size <= sizeof text; size++) {
        buffer_clear(&file);
        buffer_clear(&out);
        CHECK_EQ_INT(
            mx_key_file_encrypt(&quick, (struct span){ text, size }, mx_stage_random(), &file), 0);
        CHECK_EQ_INT(mx_key_file_decrypt(&quick, mx_stage_span(&file), &out), 0);
        CHECK_EQ_U64(out.size, size);
    }
    buffer_free(&file);
    mx_wipe_buffer(&out);
}

TEST(key_file, malformed_files_are_refused)
{
    struct mx_key_file_options other = options;
    struct buffer out = { 0 }, file = { 0 };
    char changed[sizeof text_1000];

    CHECK_EQ_INT(decrypt("", SPAN(text_1000), END, &out), MX_EFORMAT);
    CHECK_EQ_INT(decrypt(BEGIN, SPAN(text_1000), "", &out), MX_EFORMAT);
    CHECK_EQ_INT(decrypt(BEGIN, SPAN(""), END, &out), MX_EFORMAT);
    CHECK_EQ_INT(decrypt(BEGIN, SPAN("AQAB"), END, &out), MX_EFORMAT);
    CHECK_EQ_INT(decrypt(BEGIN, SPAN("!"), END, &out), MX_EBASE64);
    memcpy(changed, text_1000, sizeof changed);
    changed[1] = 'g'; /* version 2 */
    CHECK_EQ_INT(decrypt(BEGIN, span_of(changed), END, &out), MX_EVERSION);
    changed[1] = 'Q';
    changed[70] = changed[70] == 'A' ? 'B' : 'A';
    CHECK_EQ_INT(decrypt(BEGIN, span_of(changed), END, &out), MX_EMAC);
    buffer_format(&file, "%s%s%s", BEGIN, text_1000, END);
    other.passphrase = SPAN("password");
    CHECK_EQ_INT(mx_key_file_decrypt(&other, mx_stage_span(&file), &out), MX_EMAC);
    other = options;
    other.rounds = 999;
    CHECK_EQ_INT(mx_key_file_decrypt(&other, mx_stage_span(&file), &out), MX_EROUNDS);
    other.passphrase.size = MX_PASSPHRASE_BYTES_MAX + 1;
    CHECK_EQ_INT(mx_key_file_decrypt(&other, mx_stage_span(&file), &out), MX_ETOOBIG);
    CHECK_EQ_U64(out.size, 0);
    buffer_free(&file);
    buffer_free(&out);
}

TEST(key_file, out_of_memory_is_reported)
{
    const struct mx_key_file_options quick = { SPAN("x"), 1 };
    struct buffer file = { 0 }, out = { 0 };
    uint64_t faults = 0;
    int rc;

    do {
        base_fault_countdown(++faults, 1);
        rc = mx_key_file_encrypt(&quick, sessions, mx_stage_random(), &file);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        CHECK(rc == 0 || file.size == 0);
        file.failed = 0;
    } while (rc != 0);
    CHECK(faults > 3);
    faults = 0;
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_key_file_decrypt(&quick, mx_stage_span(&file), &out);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        out.failed = 0;
    } while (rc != 0);
    CHECK(faults > 3);
    CHECK(span_equal(mx_stage_span(&out), sessions));
    buffer_free(&file);
    mx_wipe_buffer(&out);
}
