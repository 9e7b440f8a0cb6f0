/* SPDX-License-Identifier: Apache-2.0 */
/* sync_media.c: attachments of `troupe sync`. The command encrypts and decrypts; the engine carries
 * the ciphertext. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "cli/packs_command.h"
#include "cli/sync_command.h"
#include "matrix/client/media.h"

enum {
    NAMES_MAX = 1000,
    SAVE_PATH_MAX = 2 * PATH_MAX,
    MEDIA_NAME_BYTES = MXCLIENT_MEDIA_NAME_MAX + 2 /* a longer name stays too long */
};

/* ---- progress --------------------------------------------------------------------------------- */

static int media_on_status(void *data, const struct json *status)
{
    struct packs_progress *progress = data;
    int64_t bytes = sync_number(status, "mediaBytes"), total = sync_number(status, "mediaTotal");

    if (total > 0)
        progress->total = (uint64_t)total;
    if (bytes > 0 && progress->total >= (uint64_t)bytes)
        packs_progress_show(progress, (uint64_t)bytes);
    return 0;
}

/* Run an upload or a download with a progress line on a terminal. */
static int media_run(struct sync_call *call, const char *what, uint64_t size)
{
    struct sync_client *client = call->client;
    struct packs_progress progress;
    int rc;

    packs_progress_start(&progress, what, 0, size, client->arguments->as_json);
    packs_progress_show(&progress, 0);
    client->on_status = progress.is_shown ? media_on_status : NULL;
    client->on_status_data = &progress;
    rc = sync_call_end(call);
    client->on_status = NULL;
    packs_progress_end(&progress);
    return rc;
}

/* ---- attach ----------------------------------------------------------------------------------- */

static const struct {
    const char *ending;
    const char *mimetype;
} media_images[] = {
    { ".png", "image/png" },
    { ".jpg", "image/jpeg" },
    { ".jpeg", "image/jpeg" },
    { ".gif", "image/gif" },
    { ".webp", "image/webp" },
};

/* Name the file in the event: its last part, and its type by its ending. JSON is compressed, and its
 * name says so to clients that do not know of the compression. */
static bool media_describe(
    const char *path, char name[MEDIA_NAME_BYTES], struct mxclient_media *media)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    media->is_gzip = dot != NULL && span_is_nocase(span_of(dot), ".json");
    if (media->is_gzip)
        media->mimetype = SPAN("application/gzip");
    (void)snprintf(name, MEDIA_NAME_BYTES, "%s%s", slash == NULL ? path : slash + 1,
        media->is_gzip ? ".gz" : "");
    media->name = span_of(name);
    for (size_t i = 0; dot != NULL && i < sizeof media_images / sizeof media_images[0]; i++)
        if (span_is_nocase(span_of(dot), media_images[i].ending)) {
            media->is_image = true;
            media->mimetype = span_of(media_images[i].mimetype);
        }
    return mxclient_media_is_name(media->name);
}

static void media_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    crypto_random_fill(bytes, size);
}

/* Upload the ciphertext and send its event. */
static int media_post(struct sync_client *client, const char *path, struct mxclient_media *media)
{
    struct buffer content = { 0 };
    struct sync_call call;
    int rc, status;

    sync_call_start(&call, client, "upload");
    json_put_text(&call.writer, "path", path);
    rc = media_run(&call, "upload", media->size);
    if (rc == 0)
        rc = mxclient_media_set_url(sync_text(call.answer, "result"), media) ? 0 : TR_EPROTO;
    if (rc == 0)
        rc = mxclient_media_put(media, &content);
    if (rc == TR_EACCES)
        status = sync_fail("The homeserver refuses the file; it may be larger than it allows.");
    else
        status = rc != 0 ? sync_complain(client, "attach", rc)
                         : sync_send_content(
                               client, client->arguments->words[1], mxclient_span(&content));
    mx_wipe_buffer(&content);
    sync_call_fini(&call);
    return status;
}

int sync_attach(struct sync_client *client)
{
    const struct mx_random random = { .fill = media_fill };
    const char *path = client->arguments->words[2];
    char data[PATH_MAX], sealed[PATH_MAX + 32];
    struct mxclient_media media = { 0 };
    char name[MEDIA_NAME_BYTES];
    struct stat about;
    int status, rc;

    if (stat(path, &about) != 0)
        return sync_fail("%s cannot be read: %s.", path, strerror(errno));
    if (!S_ISREG(about.st_mode) || !media_describe(path, name, &media))
        return sync_fail("%s is no file with a name that can be sent.", path);
    status = sync_settle(client);
    if (status != CLI_OK)
        return status;
    if (realpath(client->arguments->data, data) == NULL)
        return sync_fail("%s cannot be read: %s.", client->arguments->data, strerror(errno));
    (void)snprintf(sealed, sizeof sealed, "%s/upload-%ld", data, (long)getpid());
    rc = mxclient_media_encrypt_file(
        tr_env_real(), path, sealed, &random, MXCLIENT_MEDIA_BYTES_MAX, &media);
    if (rc != 0)
        return sync_fail("%s cannot be encrypted: %s.", path, mx_error_text(rc));
    status = media_post(client, sealed, &media);
    (void)unlink(sealed);
    crypto_wipe(&media.attachment, sizeof media.attachment);
    return status;
}

/* ---- save ------------------------------------------------------------------------------------- */

/* Find a name that is free in the directory. */
static bool save_path(const char *folder, struct span name, char path[SAVE_PATH_MAX])
{
    struct stat about;

    for (int i = 1; i < NAMES_MAX; i++) {
        if (i == 1)
            (void)snprintf(path, SAVE_PATH_MAX, "%s/%.*s", folder, (int)name.size, name.at);
        else
            (void)snprintf(path, SAVE_PATH_MAX, "%s/%d-%.*s", folder, i, (int)name.size, name.at);
        if (lstat(path, &about) != 0 && errno == ENOENT)
            return true;
    }
    return false;
}

/* Return the name of a file after it was decompressed. */
static struct span save_name(const struct mxclient_media *media)
{
    struct span name = media->name;

    if (name.at == NULL)
        return SPAN("attachment");
    if (media->is_gzip && name.size > 3 && memcmp(name.at + name.size - 3, ".gz", 3) == 0)
        name.size -= 3;
    return name;
}

static int save_download(
    struct sync_client *client, const struct mxclient_media *media, const char *part)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, client, "download");
    json_put_string(&call.writer, "url", media->url);
    json_put_text(&call.writer, "path", part);
    rc = media_run(&call, "download", media->size);
    sync_call_fini(&call);
    return rc;
}

int sync_save(struct sync_client *client, const struct json *content, const char *directory,
    struct buffer *ret_path)
{
    char folder[PATH_MAX], part[SAVE_PATH_MAX], path[SAVE_PATH_MAX];
    struct mxclient_media media = { 0 };
    int rc = mxclient_media_read(content, &media);

    if (rc == TR_ENOENT)
        return 0;
    if (rc != 0)
        return rc;
    if ((mkdir(directory, 0700) != 0 && errno != EEXIST) || realpath(directory, folder) == NULL)
        return TR_EIO;
    if (!save_path(folder, save_name(&media), path))
        return TR_EEXIST;
    (void)snprintf(part, sizeof part, "%s/.%.*s.part", folder, (int)media.id.size, media.id.at);
    rc = save_download(client, &media, part);
    /* A part that was whole already makes the server refuse: its hash decides. */
    if (rc == 0 || rc == TR_EACCES)
        rc = mxclient_media_save(tr_env_real(), part, path, MXCLIENT_MEDIA_BYTES_MAX, &media);
    crypto_wipe(&media.attachment, sizeof media.attachment);
    if (rc == 0)
        rc = buffer_text(ret_path, path);
    return rc == 0 ? 1 : rc;
}
