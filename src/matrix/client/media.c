/* SPDX-License-Identifier: Apache-2.0 */
/* media.c: the content of events with a file (Matrix specification, Client-Server API, "m.file",
 * "EncryptedFile"), and the requests for their bytes. */
#include "matrix/client/media.h"

#include <troupe/error.h>

#include "base/assert.h"

/* ---- names and addresses ---------------------------------------------------------------------- */

bool mxclient_media_is_name(struct span name)
{
    if (name.size == 0 || name.size > MXCLIENT_MEDIA_NAME_MAX || name.at[0] == '.')
        return false;
    for (size_t i = 0; i < name.size; i++)
        if ((unsigned char)name.at[i] < 0x20 || name.at[i] == 0x7f || name.at[i] == '/' ||
            name.at[i] == '\\')
            return false;
    return true;
}

static bool media_is_of(struct span text, const char *more)
{
    if (text.size == 0 || text.size > MXCLIENT_ID_BYTES_MAX)
        return false;
    for (size_t i = 0; i < text.size; i++) {
        char c = text.at[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');

        if (!is_letter && !(c >= '0' && c <= '9') && (c == '\0' || strchr(more, c) == NULL))
            return false;
    }
    return true;
}

bool mxclient_media_set_url(struct span url, struct mxclient_media *media)
{
    struct span rest = url, server;

    if (!span_starts(url, "mxc://"))
        return false;
    rest.at += 6;
    rest.size -= 6;
    if (!span_cut(&rest, '/', &server) || rest.at == NULL || !media_is_of(server, ".-:[]") ||
        !media_is_of(rest, "-_"))
        return false;
    media->url = url;
    media->server = server;
    media->id = rest;
    return true;
}

/* ---- content ---------------------------------------------------------------------------------- */

static bool media_is(const struct json *object, const char *key, const char *text)
{
    struct span value;

    return json_string(json_get(object, key), &value) && span_is(value, text);
}

static struct span media_read_name(const struct json *content)
{
    struct span name = { NULL, 0 };

    if (!json_string(json_get(content, "filename"), &name))
        (void)json_string(json_get(content, "body"), &name);
    return mxclient_media_is_name(name) ? name : (struct span){ NULL, 0 };
}

int mxclient_media_read(const struct json *content, struct mxclient_media *ret_media)
{
    const struct json *info = json_get(content, "info"), *file = json_get(content, "file");
    struct mxclient_media media = { .is_image = media_is(content, "msgtype", "m.image"),
        .is_gzip = media_is(content, "org.troupe.encoding", "gzip") ||
                   media_is(content, "com.lotti.encoding", "gzip") };
    struct span url;
    int64_t size;
    int rc;

    if ((!media.is_image && !media_is(content, "msgtype", "m.file")) || file == NULL)
        return TR_ENOENT;
    rc = mx_attachment_parse(file, &media.attachment, &url);
    if (rc == 0 && !mxclient_media_set_url(url, &media))
        rc = MX_EFORMAT;
    media.name = media_read_name(content);
    if (!mxclient_read_id(json_get(info, "mimetype"), &media.mimetype))
        media.mimetype = (struct span){ NULL, 0 };
    /* Lotti's size counts the compressed bytes. */
    if (json_int(json_get(info, "size"), &size) && size > 0 &&
        !media_is(content, "com.lotti.encoding", "gzip"))
        media.size = (uint64_t)size;
    if (rc == 0)
        *ret_media = media;
    crypto_wipe(&media.attachment, sizeof media.attachment);
    return rc;
}

int mxclient_media_put(const struct mxclient_media *media, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    struct span name = media->name.at == NULL ? SPAN("attachment") : media->name;

    tr_assert(mxclient_media_is_name(name));
    tr_assert(media->size <= MXCLIENT_MEDIA_BYTES_MAX);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "msgtype", media->is_image ? "m.image" : "m.file");
    json_put_string(&writer, "body", name);
    json_put_string(&writer, "filename", name);
    mx_attachment_put(&writer, "file", &media->attachment, media->url);
    json_put_object(&writer, "info");
    json_put_int(&writer, "size", (int64_t)media->size);
    if (media->mimetype.at != NULL)
        json_put_string(&writer, "mimetype", media->mimetype);
    json_put_end(&writer);
    if (media->is_gzip)
        json_put_text(&writer, "org.troupe.encoding", "gzip");
    json_put_end(&writer);
    return json_writer_end(&writer);
}

/* ---- requests --------------------------------------------------------------------------------- */

void mxclient_media_config_request(struct mxclient_request *request)
{
    mxclient_request_init(request, MXCLIENT_MEDIA_CONFIG, NULL);
}

uint64_t mxclient_media_config_read(const struct json *answer)
{
    int64_t limit;

    return json_int(json_get(answer, "m.upload.size"), &limit) && limit >= 0 ? (uint64_t)limit
                                                                             : UINT64_MAX;
}

void mxclient_media_upload_request(struct mxclient_request *request)
{
    mxclient_request_init(request, MXCLIENT_UPLOAD, NULL);
}

int mxclient_media_uploaded(const struct json *answer, struct mxclient_media *media)
{
    struct span url;

    return json_string(json_get(answer, "content_uri"), &url) && mxclient_media_set_url(url, media)
               ? 0
               : TR_EPROTO;
}

void mxclient_media_download_request(
    const struct mxclient_media *media, struct mxclient_request *request)
{
    mxclient_request_init(request, MXCLIENT_DOWNLOAD, (struct span[]){ media->server, media->id });
}
