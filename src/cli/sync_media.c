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
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "matrix/client/media.h"

enum {
    NAMES_MAX = 1000,
    SAVE_PATH_MAX = 2 * PATH_MAX,
    SAVE_NAME_MAX = NAME_MAX - 16, /* "999-" comes before it, ".fresh" behind */
    SAVE_BYTES_MAX = 1 << 30,      /* of an attachment, without --save-max */
    SAVE_INFLATED_MAX = 64 << 20, /* of a compressed one whose event does not say how large it is */
    SAVE_SLACK_BYTES = 64 << 10,
    MEDIA_ENDING_MAX = 32, /* of a name that is cut, with the dot */
    MEDIA_NAME_BYTES = MXCLIENT_MEDIA_NAME_MAX + 1
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

/* Copy a name, at most `size_max` bytes of it: the middle is left out, and the ending stays. */
static void media_cut_name(struct span name, size_t size_max, char copy[MEDIA_NAME_BYTES])
{
    size_t ending = name.size > size_max ? 1 : 0, head;

    tr_assert(size_max < MEDIA_NAME_BYTES && size_max > MEDIA_ENDING_MAX);
    while (ending > 0 && ending < MEDIA_ENDING_MAX && name.at[name.size - ending] != '.')
        ending++;
    ending = ending == MEDIA_ENDING_MAX ? 0 : ending;
    head = (name.size < size_max ? name.size : size_max) - ending;
    while (head > 0 && head < name.size && ((unsigned char)name.at[head] & 0xc0) == 0x80)
        head--; /* a character stays whole */
    memcpy(copy, name.at, head);
    memcpy(copy + head, name.at + name.size - ending, ending);
    copy[head + ending] = 0;
}

/* Name the file in the event: its last part, and its type by its ending. JSON is compressed, and its
 * name says so to clients that do not know of the compression. */
static bool media_describe(
    const char *path, char name[MEDIA_NAME_BYTES], struct mxclient_media *media)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    media->is_gzip = dot != NULL && span_is_nocase(span_of(dot), ".json");
    if (media->is_gzip)
        media->mimetype = SPAN("application/gzip");
    media_cut_name(span_of(slash == NULL ? path : slash + 1),
        MXCLIENT_MEDIA_NAME_MAX - (media->is_gzip ? 3 : 0), name);
    if (media->is_gzip)
        memcpy(name + strlen(name), ".gz", sizeof ".gz");
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
    status = rc != 0
                 ? sync_complain(client, "attach", rc)
                 : sync_send_content(client, client->arguments->words[1], mxclient_span(&content));
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
    if (status == CLI_OK)
        status = sync_check_room(client, "attach", client->arguments->words[1]);
    if (status != CLI_OK)
        return status;
    if (realpath(client->arguments->data, data) == NULL)
        return sync_fail("%s cannot be read: %s.", client->arguments->data, strerror(errno));
    (void)snprintf(sealed, sizeof sealed, "%s/upload-%ld", data, (long)getpid());
    rc = mxclient_media_encrypt_file(
        tr_env_real(), path, sealed, &random, MXCLIENT_MEDIA_BYTES_MAX, &media);
    if (rc != 0)
        return sync_fail("%s cannot be encrypted: %s.", path, sync_error_text(rc));
    status = media_post(client, sealed, &media);
    (void)unlink(sealed);
    crypto_wipe(&media.attachment, sizeof media.attachment);
    return status;
}

/* ---- save ------------------------------------------------------------------------------------- */

/* Find a name that is free in the directory. */
static bool save_path(const char *folder, const char *name, char path[SAVE_PATH_MAX])
{
    struct stat about;

    for (int i = 1; i < NAMES_MAX; i++) {
        if (i == 1)
            (void)snprintf(path, SAVE_PATH_MAX, "%s/%s", folder, name);
        else
            (void)snprintf(path, SAVE_PATH_MAX, "%s/%d-%s", folder, i, name);
        if (lstat(path, &about) != 0 && errno == ENOENT)
            return true;
    }
    return false;
}

/* Write the name of a file after it was decompressed. */
static void save_name(const struct mxclient_media *media, char name[MEDIA_NAME_BYTES])
{
    struct span given = media->name.at == NULL ? SPAN("attachment") : media->name;

    if (media->is_gzip && given.size > 3 && memcmp(given.at + given.size - 3, ".gz", 3) == 0)
        given.size -= 3;
    media_cut_name(given, SAVE_NAME_MAX, name);
}

/* The part of a download has a name of one length: an id may be as long as a name. */
static void save_part(const char *folder, const struct mxclient_media *media, char *part)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    char hex[2 * sizeof digest + 1];

    crypto_sha256(media->url.at, media->url.size, digest);
    hex[crypto_hex_encode(digest, sizeof digest, hex)] = 0;
    (void)snprintf(part, SAVE_PATH_MAX, "%s/.%s.part", folder, hex);
}

/* Return how many bytes a file may have: an event that lies about the size must not fill the disk, nor
 * may a compressed file whose size nobody said. */
static uint64_t save_limit(const struct sync_client *client, const struct mxclient_media *media)
{
    uint64_t limit = SAVE_BYTES_MAX;

    if (client->arguments->save_max != NULL)
        (void)span_u64(span_of(client->arguments->save_max), &limit);
    else if (media->is_gzip && media->size == 0)
        limit = SAVE_INFLATED_MAX;
    return media->size > 0 && media->size < limit ? media->size : limit;
}

static int save_download(struct sync_client *client, const struct mxclient_media *media,
    const char *part, uint64_t limit)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, client, "download");
    json_put_string(&call.writer, "url", media->url);
    json_put_text(&call.writer, "path", part);
    /* Bytes that cannot be compressed grow by less than a hundredth, and the server's refusal fits. A
     * part that is whole may have the limit; the transport asks for bytes behind it. */
    json_put_int(&call.writer, "sizeMax", (int64_t)(limit + limit / 100 + SAVE_SLACK_BYTES));
    rc = media_run(&call, "download", media->size);
    sync_call_fini(&call);
    return rc;
}

/* Say why an attachment was not saved. */
static int save_complain(
    const struct sync_client *client, const struct mxclient_media *media, uint64_t limit, int rc)
{
    const char *directory = client->arguments->save;

    if (rc == TR_EIO && access(directory, W_OK) != 0)
        (void)sync_fail(
            "The attachment was not saved: %s cannot be written: %s.", directory, strerror(errno));
    else if (rc != MX_ETOOBIG)
        (void)sync_complain(client, "The attachment was not saved", rc);
    else if (limit == media->size)
        (void)sync_fail(
            "The attachment was not saved: It has more than the %llu bytes that its event "
            "says.",
            (unsigned long long)limit);
    else
        (void)sync_fail(
            "The attachment was not saved: It has more than %llu bytes. --save-max BYTES "
            "sets another limit.",
            (unsigned long long)limit);
    return rc;
}

/* Download, check and decrypt a file. */
static int save_run(struct sync_client *client, struct mxclient_media *media, const char *part,
    const char *path, uint64_t limit)
{
    int rc = save_download(client, media, part, limit), saved;

    if (rc == TR_ETOOBIG)
        rc = MX_ETOOBIG;
    /* A part that was whole already makes the server refuse: its hash decides. */
    if (rc == 0 || rc == TR_EACCES) {
        saved = mxclient_media_save(tr_env_real(), part, path, limit, media);
        rc = rc == TR_EACCES && saved == MX_EHASH ? rc : saved;
    }
    if (rc == MX_ETOOBIG)
        (void)unlink(part); /* another attempt has the same end */
    return rc;
}

int sync_save(struct sync_client *client, const struct json *content, const char *directory,
    struct buffer *ret_path)
{
    char folder[PATH_MAX], part[SAVE_PATH_MAX], path[SAVE_PATH_MAX], name[MEDIA_NAME_BYTES];
    struct mxclient_media media = { 0 };
    int rc = mxclient_media_read(content, &media);
    uint64_t limit;

    if (rc == TR_ENOENT)
        return 0;
    limit = save_limit(client, &media);
    if (rc == 0) {
        save_name(&media, name);
        if ((mkdir(directory, 0700) != 0 && errno != EEXIST) || realpath(directory, folder) == NULL)
            rc = TR_EIO;
        else if (!save_path(folder, name, path))
            rc = TR_EEXIST;
    }
    if (rc == 0) {
        save_part(folder, &media, part);
        rc = save_run(client, &media, part, path, limit);
    }
    crypto_wipe(&media.attachment, sizeof media.attachment);
    if (rc == 0)
        rc = buffer_text(ret_path, path);
    return rc == 0 ? 1 : save_complain(client, &media, limit, rc);
}
