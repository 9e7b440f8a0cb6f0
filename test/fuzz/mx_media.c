/* SPDX-License-Identifier: Apache-2.0 */
/* mx_media.c: the content of an event with a file, then after a zero byte gzip text that is encrypted
 * as it is and decrypted. A name that is read is one part of a path, an address has two parts, and no
 * text grows over its limit. */
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/media.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LIMIT = 1 << 20 };

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static uint8_t counter;
static const struct mx_random counting = { count_up, &counter };

static int keep(void *data, const void *bytes, size_t size)
{
    return buffer_append(data, bytes, size);
}

static int count(void *data, const void *bytes, size_t size)
{
    (void)bytes;
    *(uint64_t *)data += size;
    return 0;
}

static void read_content(struct span text)
{
    struct json_doc doc = { 0 };
    struct mxclient_media media;
    struct mxclient_request request;

    if (json_parse_copy(&doc, text, 0) == 0 && mxclient_media_read(json_root(&doc), &media) == 0) {
        tr_assert(media.name.at == NULL || mxclient_media_is_name(media.name));
        tr_assert(media.server.size > 0 && media.id.size > 0);
        tr_assert(media.url.size == 7 + media.server.size + media.id.size);
        mxclient_media_download_request(&media, &request);
        tr_assert(mxclient_request_error(&request) == 0);
        mxclient_request_fini(&request);
    }
    json_doc_free(&doc);
}

static void expand(struct span text)
{
    struct mxclient_media media = { 0 };
    struct mxclient_media_stream stream;
    struct buffer cipher = { 0 };
    uint64_t written = 0;
    int rc = mxclient_media_encrypt(
        &stream, &media, &counting, LIMIT, &(struct mxclient_media_sink){ keep, &cipher });

    tr_assert(rc == 0);
    rc = mxclient_media_update(&stream, text);
    rc = rc != 0 ? rc : mxclient_media_end(&stream, &media);
    mxclient_media_fini(&stream);
    tr_assert(rc == (text.size > LIMIT ? MX_ETOOBIG : 0));
    media.is_gzip = true;
    if (rc == 0) {
        rc = mxclient_media_decrypt(
            &stream, &media, LIMIT, &(struct mxclient_media_sink){ count, &written });
        tr_assert(rc == 0);
        rc = mxclient_media_update(&stream, (struct span){ cipher.bytes, cipher.size });
        rc = rc != 0 ? rc : mxclient_media_end(&stream, &media);
        tr_assert(rc == 0 || rc == MX_EFORMAT || rc == MX_ETOOBIG);
        tr_assert(written <= LIMIT && stream.size == written);
        mxclient_media_fini(&stream);
    }
    buffer_free(&cipher);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest = { size == 0 ? "" : (const char *)data, size }, content;

    (void)span_cut(&rest, '\0', &content);
    read_content(content);
    if (rest.at != NULL)
        expand(rest);
    return 0;
}
