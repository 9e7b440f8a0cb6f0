/* SPDX-License-Identifier: Apache-2.0 */
/* The vector was computed by a second program: key 00..1f, IV 20..27 and eight zeros. */
#include <stdlib.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "mx_stage.h"

enum { FILE_BYTES = 1000 };

static void file_fill(uint8_t bytes[FILE_BYTES])
{
    for (int i = 0; i < FILE_BYTES; i++)
        bytes[i] = (uint8_t)(i % 251);
}

/* Transform a file in place, in pieces of this size. */
static void update_pieces(
    struct mx_attachment_stream *stream, uint8_t *bytes, size_t size, size_t piece)
{
    for (size_t at = 0; at < size; at += piece) {
        size_t part = size - at < piece ? size - at : piece;

        mx_attachment_update(stream, (struct span){ (char *)bytes + at, part }, bytes + at);
    }
}

static void encrypt_vector(
    uint8_t bytes[FILE_BYTES], size_t piece, struct mx_attachment *ret_attachment)
{
    struct mx_random random = MX_STAGE_COUNTING;
    struct mx_attachment_stream stream;

    file_fill(bytes);
    CHECK_EQ_INT(mx_attachment_encrypt(&stream, &random, ret_attachment), 0);
    update_pieces(&stream, bytes, FILE_BYTES, piece);
    mx_attachment_encrypt_end(&stream, ret_attachment);
    mx_attachment_fini(&stream);
}

TEST(attachment, pieces_of_any_size_give_the_same_file)
{
    struct mx_attachment attachment;
    struct mx_attachment_stream stream;
    uint8_t bytes[FILE_BYTES], plain[FILE_BYTES];
    struct mx_key digest;
    char text[MX_KEY_CHARS + 1];

    file_fill(plain);
    for (size_t piece = 1; piece <= FILE_BYTES; piece += piece < 40 ? 1 : 97) {
        encrypt_vector(bytes, piece, &attachment);
        memcpy(digest.bytes, attachment.sha256, sizeof digest.bytes);
        mx_key_text(&digest, text);
        CHECK_EQ_STR(text, "eve7IkmJvWZ1CGcNkyU5TpqDZ9vbE64HATl4grUWOrM");
        CHECK(memcmp(bytes, "\xb4\xd8\xb8\xe2\x92\x7d\xf7\x2b", 8) == 0);
        CHECK_EQ_INT(mx_attachment_decrypt(&stream, &attachment), 0);
        update_pieces(&stream, bytes, FILE_BYTES, FILE_BYTES + 1 - piece);
        CHECK_EQ_INT(mx_attachment_decrypt_end(&stream, &attachment), 0);
        CHECK(memcmp(bytes, plain, FILE_BYTES) == 0);
        mx_attachment_fini(&stream);
    }
}

TEST(attachment, the_output_may_be_other_memory)
{
    struct mx_random random = MX_STAGE_COUNTING;
    uint8_t in[FILE_BYTES], out[FILE_BYTES], plain[FILE_BYTES], expected[FILE_BYTES];
    struct mx_attachment attachment, same;
    struct mx_attachment_stream stream;

    encrypt_vector(expected, 64, &same);
    file_fill(in);
    CHECK_EQ_INT(mx_attachment_encrypt(&stream, &random, &attachment), 0);
    mx_attachment_update(&stream, (struct span){ (char *)in, sizeof in }, out);
    mx_attachment_encrypt_end(&stream, &attachment);
    mx_attachment_fini(&stream);
    CHECK(memcmp(out, expected, sizeof out) == 0);
    CHECK(memcmp(&attachment, &same, sizeof same) == 0);
    CHECK_EQ_INT(mx_attachment_decrypt(&stream, &attachment), 0);
    mx_attachment_update(&stream, (struct span){ (char *)out, sizeof out }, plain);
    CHECK_EQ_INT(mx_attachment_decrypt_end(&stream, &attachment), 0);
    mx_attachment_fini(&stream);
    CHECK(memcmp(in, plain, sizeof in) == 0);
}

TEST(attachment, a_changed_or_cut_file_is_refused)
{
    struct mx_attachment attachment;
    struct mx_attachment_stream stream;
    uint8_t bytes[FILE_BYTES];

    for (int round = 0; round < 3; round++) {
        encrypt_vector(bytes, 64, &attachment);
        bytes[500] ^= round == 0;
        attachment.sha256[31] ^= round == 1;
        CHECK_EQ_INT(mx_attachment_decrypt(&stream, &attachment), 0);
        update_pieces(&stream, bytes, FILE_BYTES - (round == 2), 64);
        CHECK_EQ_INT(mx_attachment_decrypt_end(&stream, &attachment), MX_EHASH);
        mx_attachment_fini(&stream);
    }
}

TEST(attachment, an_empty_file_has_a_hash_too)
{
    struct mx_attachment attachment;
    struct mx_attachment_stream stream;

    CHECK_EQ_INT(mx_attachment_encrypt(&stream, mx_stage_random(), &attachment), 0);
    mx_attachment_encrypt_end(&stream, &attachment);
    mx_attachment_fini(&stream);
    CHECK_EQ_INT(mx_attachment_decrypt(&stream, &attachment), 0);
    CHECK_EQ_INT(mx_attachment_decrypt_end(&stream, &attachment), 0);
    mx_attachment_fini(&stream);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const char vector_json[] =
    "{\"v\":\"v2\",\"url\":\"mxc://x/y\",\"key\":{\"kty\":\"oct\",\"alg\":\"A256CTR\",\"ext\":true,"
    "\"key_ops\":[\"encrypt\",\"decrypt\"],\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\"},"
    "\"iv\":\"ICEiIyQlJicAAAAAAAAAAA\",\"hashes\":{\"sha256\":"
    "\"eve7IkmJvWZ1CGcNkyU5TpqDZ9vbE64HATl4grUWOrM\"}}";

TEST(attachment, its_json_is_written_and_read)
{
    struct mx_attachment attachment, again;
    struct json_doc doc = { 0 };
    struct buffer out = { 0 };
    struct json_writer writer = json_writer(&out);
    uint8_t bytes[FILE_BYTES];
    struct span url;

    encrypt_vector(bytes, 64, &attachment);
    mx_attachment_put(&writer, NULL, &attachment, SPAN("mxc://x/y"));
    CHECK_EQ_INT(json_writer_end(&writer), 0);
    mx_stage_check_text(&out, vector_json);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&out), JSON_UNIQUE_KEYS), 0);
    CHECK_EQ_INT(mx_attachment_parse(json_root(&doc), &again, &url), 0);
    CHECK(memcmp(&attachment, &again, sizeof again) == 0);
    CHECK(span_is(url, "mxc://x/y"));
    json_doc_free(&doc);
    mx_wipe_buffer(&out);
}

/* Replace a part of the vector and read it. */
static int parse_changed(const char *from, const char *to)
{
    const char *at = strstr(vector_json, from);
    struct mx_attachment attachment;
    struct json_doc doc = { 0 };
    struct buffer text = { 0 };
    struct span url;
    int rc;

    CHECK(at != NULL);
    buffer_append(&text, vector_json, (size_t)(at - vector_json));
    buffer_text(&text, to);
    buffer_text(&text, at + strlen(from));
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&text), JSON_UNIQUE_KEYS), 0);
    rc = mx_attachment_parse(json_root(&doc), &attachment, &url);
    json_doc_free(&doc);
    buffer_free(&text);
    return rc;
}

TEST(attachment, malformed_json_is_refused)
{
    CHECK_EQ_INT(parse_changed("v2", "v2"), 0);
    CHECK_EQ_INT(parse_changed("AAAAAAAAAA\"", "AAAAAAAAAA==\""), 0); /* padded, as some write it */
    CHECK_EQ_INT(parse_changed("v2", "v1"), MX_EVERSION);
    CHECK_EQ_INT(parse_changed("oct", "RSA"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("A256CTR", "A128CTR"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("true", "false"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("decrypt", "nothing"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("AAECAw", ""), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("AAECAw", "AAECAwAA"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("AAECAw", "AAE+Aw"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("ICEi", ""), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("sha256", "sha1"), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("eve7", ""), MX_EFORMAT);
    CHECK_EQ_INT(parse_changed("\"mxc://x/y\"", "7"), MX_EFORMAT);
}

TEST(attachment, out_of_memory_is_reported)
{
    struct mx_attachment attachment;
    struct mx_attachment_stream stream;

    for (uint64_t fault = 1; fault <= 2; fault++) {
        base_fault_countdown(fault, 1);
        CHECK_EQ_INT(mx_attachment_encrypt(&stream, mx_stage_random(), &attachment), TR_ENOMEM);
        base_fault_countdown(0, 0);
    }
}
