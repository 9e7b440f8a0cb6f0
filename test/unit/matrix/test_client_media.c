/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "matrix/client/media.h"
#include "mx_stage.h"

#define KEY                                                                                        \
    "\"key\":{\"kty\":\"oct\",\"alg\":\"A256CTR\",\"ext\":true,\"key_ops\":[\"encrypt\","          \
    "\"decrypt\"],\"k\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"},"                         \
    "\"iv\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"hashes\":{\"sha256\":"                                    \
    "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}"
#define FILE_OF(url) "\"file\":{\"v\":\"v2\",\"url\":\"" url "\"," KEY "}"
#define CONTENT(more) "{\"msgtype\":\"m.file\"," FILE_OF("mxc://x:8448/aB-_9") "," more "}"

static int read_content(const char *text, struct mxclient_media *media)
{
    static struct json_doc doc;

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(text), 0), 0);
    return mxclient_media_read(json_root(&doc), media);
}

/* ---- content ---------------------------------------------------------------------------------- */

TEST(media, content_is_read_and_written)
{
    struct mxclient_media media = { .url = SPAN("mxc://x:8448/aB-_9"),
        .name = SPAN("notes.json"),
        .mimetype = SPAN("application/json"),
        .size = 1234,
        .is_gzip = true },
                          read = { 0 };
    struct buffer content = { 0 };

    mx_stage_random()->fill(mx_stage_random()->data, &media.attachment, sizeof media.attachment);
    CHECK_EQ_INT(mxclient_media_put(&media, &content), 0);
    (void)buffer_append(&content, "", 1);
    CHECK_EQ_INT(read_content(content.bytes, &read), 0);
    CHECK(memcmp(&media.attachment, &read.attachment, sizeof read.attachment) == 0);
    CHECK(span_is(read.server, "x:8448") && span_is(read.id, "aB-_9"));
    CHECK(span_is(read.name, "notes.json") && span_is(read.mimetype, "application/json"));
    CHECK_EQ_U64(read.size, 1234);
    CHECK(read.is_gzip && !read.is_image);
    buffer_free(&content);
}

TEST(media, a_name_that_leads_elsewhere_is_absent)
{
    static const struct {
        const char *more;
        const char *name;
    } rows[] = {
        { "\"body\":\"a.txt\"", "a.txt" },
        { "\"body\":\"a caption\",\"filename\":\"b.txt\"", "b.txt" },
        { "\"body\":\"a.txt\",\"filename\":\"../b\"", NULL },
        { "\"body\":\"/etc/passwd\"", NULL },
        { "\"body\":\"..\"", NULL },
        { "\"body\":\".bashrc\"", NULL },
        { "\"body\":\"a\\\\b\"", NULL },
        { "\"body\":\"a\\u0000b\"", NULL },
        { "\"body\":\"\"", NULL },
        { "\"body\":7", NULL },
        { "\"info\":{\"size\":-5,\"mimetype\":\"a\\nb\"}", NULL },
    };
    struct mxclient_media media;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[1000];

        snprintf(text, sizeof text, CONTENT("%s"), rows[i].more);
        CHECK_EQ_INT(read_content(text, &media), 0);
        CHECK(rows[i].name == NULL ? media.name.at == NULL : span_is(media.name, rows[i].name));
        CHECK(media.mimetype.at == NULL);
        CHECK_EQ_U64(media.size, 0);
    }
}

TEST(media, content_without_a_usable_file_is_refused)
{
    static const struct {
        const char *text;
        int rc;
    } rows[] = {
        { "{}", TR_ENOENT },
        { "{\"msgtype\":\"m.text\"," FILE_OF("mxc://x/a") "}", TR_ENOENT },
        { "{\"msgtype\":\"m.file\",\"url\":\"mxc://x/a\"}", TR_ENOENT }, /* not encrypted */
        { "{\"msgtype\":\"m.file\",\"file\":{}}", MX_EVERSION },
        { "{\"msgtype\":\"m.image\"," FILE_OF("https://x/a") "}", MX_EFORMAT },
        { "{\"msgtype\":\"m.image\"," FILE_OF("mxc://x") "}", MX_EFORMAT },
        { "{\"msgtype\":\"m.image\"," FILE_OF("mxc:///a") "}", MX_EFORMAT },
        { "{\"msgtype\":\"m.image\"," FILE_OF("mxc://x/") "}", MX_EFORMAT },
        { "{\"msgtype\":\"m.image\"," FILE_OF("mxc://x/a/../b") "}", MX_EFORMAT },
        { "{\"msgtype\":\"m.image\"," FILE_OF("mxc://x/a?b") "}", MX_EFORMAT },
    };
    struct mxclient_media media = { .size = 77 };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_EQ_INT(read_content(rows[i].text, &media), rows[i].rc);
    CHECK_EQ_U64(media.size, 77); /* untouched */
}

TEST(media, requests_name_no_file)
{
    struct mxclient_media media = { 0 };
    struct mxclient_request request;
    struct json_doc doc = { 0 };

    mxclient_media_upload_request(&request);
    mx_stage_check_text(&request.target, "/_matrix/media/v3/upload");
    mxclient_request_fini(&request);
    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("{\"content_uri\":\"http://x\"}"), 0), 0);
    CHECK_EQ_INT(mxclient_media_uploaded(json_root(&doc), &media), TR_EPROTO);
    CHECK_EQ_INT(json_parse_copy(&doc, SPAN("{\"content_uri\":\"mxc://[::1]:8448/abc\"}"), 0), 0);
    CHECK_EQ_INT(mxclient_media_uploaded(json_root(&doc), &media), 0);
    mxclient_media_download_request(&media, &request);
    mx_stage_check_text(
        &request.target, "/_matrix/client/v1/media/download/%5B%3A%3A1%5D%3A8448/abc");
    mxclient_request_fini(&request);
    json_doc_free(&doc);
}

/* ---- bytes ------------------------------------------------------------------------------------ */

static int collect(void *data, const void *bytes, size_t size)
{
    CHECK(size <= MXCLIENT_MEDIA_PIECE);
    return buffer_append(data, bytes, size);
}

/* Pass bytes through a stream in pieces of this size, and end it. */
static int pass(struct mxclient_media_stream *stream, struct span bytes, size_t piece,
    struct mxclient_media *media)
{
    int rc = 0;

    while (rc == 0 && bytes.size > 0) {
        size_t size = bytes.size < piece ? bytes.size : piece;

        rc = mxclient_media_update(stream, (struct span){ bytes.at, size });
        bytes.at += size;
        bytes.size -= size;
    }
    rc = rc != 0 ? rc : mxclient_media_end(stream, media);
    mxclient_media_fini(stream);
    return rc;
}

static int encrypt(struct span plain, size_t piece, uint64_t max, struct mxclient_media *media,
    struct buffer *cipher)
{
    struct mxclient_media_stream stream;

    CHECK_EQ_INT(mxclient_media_encrypt(&stream, media, mx_stage_random(), max,
                     &(struct mxclient_media_sink){ collect, cipher }),
        0);
    return pass(&stream, plain, piece, media);
}

static int decrypt(struct span cipher, size_t piece, uint64_t max, struct mxclient_media *media,
    struct buffer *plain)
{
    struct mxclient_media_stream stream;

    CHECK_EQ_INT(mxclient_media_decrypt(
                     &stream, media, max, &(struct mxclient_media_sink){ collect, plain }),
        0);
    return pass(&stream, cipher, piece, media);
}

static void fill(struct buffer *bytes, size_t size, bool is_random)
{
    char *at = buffer_reserve(bytes, size + 1);

    if (is_random)
        mx_stage_random()->fill(mx_stage_random()->data, at, size);
    else
        memset(at, 'a', size);
    buffer_grew(bytes, size);
}

TEST(media, bytes_pass_in_any_pieces_with_and_without_gzip)
{
    static const size_t sizes[] = { 0, 1, 15, 16, 17, 16383, 16384, 16385, 300000 };
    static const size_t pieces[] = { 7777, 65536, 1 << 20 };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int k = 0; k < 12; k++) {
            struct mxclient_media media = { .is_gzip = k % 2 == 1 };
            struct buffer plain = { 0 }, cipher = { 0 }, read = { 0 };

            fill(&plain, sizes[i], k % 4 >= 2);
            CHECK_EQ_INT(
                encrypt(mx_stage_span(&plain), pieces[k % 3], sizes[i], &media, &cipher), 0);
            CHECK_EQ_U64(media.size, sizes[i]);
            CHECK(media.is_gzip || cipher.size == sizes[i]);
            CHECK(!media.is_gzip || k % 4 >= 2 || sizes[i] < 16383 || cipher.size < 2000);
            CHECK_EQ_INT(
                decrypt(mx_stage_span(&cipher), pieces[(k + 1) % 3], sizes[i], &media, &read), 0);
            CHECK(span_equal(mx_stage_span(&plain), mx_stage_span(&read)));
            buffer_free(&plain);
            buffer_free(&cipher);
            buffer_free(&read);
        }
}

TEST(media, limits_and_changed_bytes_are_refused)
{
    for (int k = 0; k < 2; k++) {
        struct mxclient_media media = { .is_gzip = k == 1 };
        struct buffer plain = { 0 }, cipher = { 0 }, read = { 0 };
        struct span cut;

        fill(&plain, 5 << 20, false); /* gzip makes a thousandth of it */
        CHECK_EQ_INT(
            encrypt(mx_stage_span(&plain), 65536, (5 << 20) - 1, &media, &cipher), MX_ETOOBIG);
        buffer_clear(&cipher);
        CHECK_EQ_INT(encrypt(mx_stage_span(&plain), 65536, 5 << 20, &media, &cipher), 0);
        CHECK_EQ_INT(
            decrypt(mx_stage_span(&cipher), 65536, (5 << 20) - 1, &media, &read), MX_ETOOBIG);
        CHECK(read.size < 5 << 20);
        cut = (struct span){ cipher.bytes, cipher.size - 1 };
        CHECK_EQ_INT(decrypt(cut, 65536, 5 << 20, &media, &read), MX_EHASH);
        cipher.bytes[cipher.size - 1] ^= 1;
        CHECK(decrypt(mx_stage_span(&cipher), 65536, 5 << 20, &media, &read) != 0);
        buffer_free(&plain);
        buffer_free(&cipher);
        buffer_free(&read);
    }
}

TEST(media, a_gzip_text_that_is_cut_or_followed_by_bytes_is_refused)
{
    struct mxclient_media media = { .is_gzip = true }, plain_media = { 0 };
    struct buffer zipped = { 0 }, plain = { 0 }, cipher = { 0 }, read = { 0 };

    fill(&plain, 1000, true);
    CHECK_EQ_INT(encrypt(mx_stage_span(&plain), 100, 1000, &media, &cipher), 0);
    media.is_gzip = false;
    CHECK_EQ_INT(decrypt(mx_stage_span(&cipher), 100, 5000, &media, &zipped), 0);
    for (int i = 0; i < 3; i++) { /* the hash is right, and the text is wrong */
        struct span text = mx_stage_span(&zipped);

        if (i == 1)
            text.size -= 9;
        if (i == 2)
            (void)buffer_text(&zipped, "x");
        text = i == 2 ? mx_stage_span(&zipped) : text;
        buffer_clear(&cipher);
        buffer_clear(&read);
        plain_media = (struct mxclient_media){ 0 };
        CHECK_EQ_INT(encrypt(text, 100, 5000, &plain_media, &cipher), 0);
        plain_media.is_gzip = true;
        CHECK_EQ_INT(decrypt(mx_stage_span(&cipher), 333, 5000, &plain_media, &read),
            i == 0 ? 0 : MX_EFORMAT);
    }
    buffer_free(&zipped);
    buffer_free(&plain);
    buffer_free(&cipher);
    buffer_free(&read);
}

/* ---- files ------------------------------------------------------------------------------------ */

struct files {
    const struct tr_env *env;
    char folder[64];
    char plain[100];
    char part[100];
    char saved[100];
    char fresh[110];
};

static void files_init(struct files *files)
{
    *files = (struct files){ .env = tr_env_real(), .folder = "/tmp/mx_media.XXXXXX" };
    CHECK(mkdtemp(files->folder) != NULL);
    snprintf(files->plain, sizeof files->plain, "%s/plain", files->folder);
    snprintf(files->part, sizeof files->part, "%s/part", files->folder);
    snprintf(files->saved, sizeof files->saved, "%s/saved", files->folder);
    snprintf(files->fresh, sizeof files->fresh, "%s/saved.fresh", files->folder);
}

static void files_fini(struct files *files)
{
    (void)unlink(files->plain);
    (void)unlink(files->part);
    (void)unlink(files->saved);
    CHECK_EQ_INT(rmdir(files->folder), 0); /* nothing else is left */
}

static void write_file(const char *path, struct span bytes)
{
    FILE *file = fopen(path, "w");

    CHECK(file != NULL);
    CHECK(bytes.size == 0 || fwrite(bytes.at, 1, bytes.size, file) == bytes.size);
    CHECK_EQ_INT(fclose(file), 0);
}

static bool read_file(const char *path, struct buffer *bytes)
{
    FILE *file = fopen(path, "r");
    char *at;
    size_t size;

    if (file == NULL)
        return false;
    do {
        at = buffer_reserve(bytes, 65536);
        size = fread(at, 1, 65536, file);
        buffer_grew(bytes, size);
    } while (size > 0);
    CHECK_EQ_INT(fclose(file), 0);
    return true;
}

TEST(media, a_file_goes_out_and_in)
{
    static const size_t sizes[] = { 0, 1, 10 << 20 };

    for (int i = 0; i < 6; i++) {
        struct mxclient_media media = { .is_gzip = i >= 3 };
        struct buffer plain = { 0 }, read = { 0 };
        struct files files;
        struct stat state;

        files_init(&files);
        fill(&plain, sizes[i % 3], i < 3);
        write_file(files.plain, mx_stage_span(&plain));
        CHECK_EQ_INT(mxclient_media_encrypt_file(files.env, files.plain, files.part,
                         mx_stage_random(), sizes[i % 3], &media),
            0);
        CHECK_EQ_INT(stat(files.part, &state), 0);
        CHECK_EQ_INT(state.st_mode & 0777, 0600);
        CHECK_EQ_INT(
            mxclient_media_save(files.env, files.part, files.saved, sizes[i % 3], &media), 0);
        CHECK(read_file(files.saved, &read));
        CHECK(span_equal(mx_stage_span(&plain), mx_stage_span(&read)));
        CHECK_EQ_INT(stat(files.saved, &state), 0);
        CHECK_EQ_INT(state.st_mode & 0777, 0600);
        CHECK(access(files.part, F_OK) != 0); /* done with */
        buffer_free(&plain);
        buffer_free(&read);
        files_fini(&files);
    }
}

TEST(media, wrong_bytes_get_no_name_and_are_removed)
{
    struct mxclient_media media = { 0 };
    struct buffer cipher = { 0 }, read = { 0 };
    struct files files;

    files_init(&files);
    write_file(files.plain, SPAN("the attachment"));
    write_file(files.saved, SPAN("former"));
    CHECK_EQ_INT(mxclient_media_encrypt_file(
                     files.env, files.plain, files.part, mx_stage_random(), 100, &media),
        0);
    CHECK(read_file(files.part, &cipher));
    cipher.bytes[3] ^= 1;
    write_file(files.part, mx_stage_span(&cipher));
    CHECK_EQ_INT(mxclient_media_save(files.env, files.part, files.saved, 100, &media), MX_EHASH);
    CHECK(access(files.part, F_OK) != 0);
    CHECK(read_file(files.saved, &read));
    mx_stage_check_text(&read, "former");
    /* An error that is not the bytes' fault leaves the part for another attempt. */
    cipher.bytes[3] ^= 1;
    write_file(files.part, mx_stage_span(&cipher));
    CHECK_EQ_INT(mxclient_media_save(files.env, files.part, files.saved, 5, &media), MX_ETOOBIG);
    CHECK(access(files.part, F_OK) == 0);
    CHECK(access(files.fresh, F_OK) != 0);
    CHECK_EQ_INT(mxclient_media_save(files.env, files.part, files.saved, 100, &media), 0);
    buffer_clear(&read);
    CHECK(read_file(files.saved, &read));
    mx_stage_check_text(&read, "the attachment");
    buffer_free(&cipher);
    buffer_free(&read);
    files_fini(&files);
}

TEST(media, a_download_continues_behind_its_part)
{
    struct mxclient_media media = { 0 };
    struct buffer cipher = { 0 };
    struct files files;
    uint64_t size = 7;

    files_init(&files);
    CHECK_EQ_INT(mxclient_media_part(files.env, files.part, 100, &size), 0);
    CHECK_EQ_U64(size, 0);
    write_file(files.plain, SPAN("the attachment"));
    CHECK_EQ_INT(mxclient_media_encrypt_file(
                     files.env, files.plain, files.part, mx_stage_random(), 100, &media),
        0);
    CHECK(read_file(files.part, &cipher));
    write_file(files.part, (struct span){ cipher.bytes, 6 }); /* and the program ends */
    CHECK_EQ_INT(mxclient_media_part(files.env, files.part, 100, &size), 0);
    CHECK_EQ_U64(size, 6);
    write_file(files.part, mx_stage_span(&cipher)); /* the server sent the rest */
    CHECK_EQ_INT(mxclient_media_save(files.env, files.part, files.saved, 100, &media), 0);
    /* A part that is too large was never ours. */
    write_file(files.part, mx_stage_span(&cipher));
    CHECK_EQ_INT(mxclient_media_part(files.env, files.part, 10, &size), 0);
    CHECK_EQ_U64(size, 0);
    CHECK(access(files.part, F_OK) != 0);
    buffer_free(&cipher);
    files_fini(&files);
}

TEST(media, a_file_that_is_missing_or_too_large_leaves_no_ciphertext)
{
    struct mxclient_media media = { 0 };
    struct files files;

    files_init(&files);
    CHECK_EQ_INT(mxclient_media_encrypt_file(
                     files.env, files.plain, files.part, mx_stage_random(), 100, &media),
        TR_ENOENT);
    write_file(files.plain, SPAN("the attachment"));
    CHECK_EQ_INT(mxclient_media_encrypt_file(
                     files.env, files.plain, files.part, mx_stage_random(), 13, &media),
        MX_ETOOBIG);
    CHECK(access(files.part, F_OK) != 0);
    CHECK_EQ_INT(mxclient_media_save(files.env, files.part, files.saved, 100, &media), TR_ENOENT);
    files_fini(&files);
}
