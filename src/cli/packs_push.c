/* SPDX-License-Identifier: Apache-2.0 */
/* packs_push.c: `troupe packs push`: publish a file as the active version of a pack. Every step first
 * checks whether it is done already, so that the user can run the command again after any failure. The
 * command fails before it registers the pack if it can, and creates a missing key last. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/env.h>

#include "cli/packs_command.h"
#include "json/json_write.h"

enum { PATH_CHARS = 512, READ_BYTES = 64 << 10, STALLED_S = 30, SMALL_PIECE = 64 << 10 };

struct push {
    const struct packs_arguments *arguments;
    struct packs_web web;
    struct packs_answer answer;
    struct crypto_key *key;
    const char *type;
    int fd;
    uint64_t size;
    char sha256[65];
    char upload[65];
    uint64_t offset;    /* bytes on the server */
    uint64_t piece_max; /* bytes of one request: few after a failure, so that its answer arrives */
    char active_before[MANIFEST_VERSION_CHARS_MAX + 1]; /* "": no version was active */
    bool is_registered;                                 /* the server knows the pack */
    bool has_signed; /* the pack has signed versions: a new key would not be valid */
    bool is_there;   /* the server has the version */
    bool is_signed;  /* the server has its manifest */
    struct packs_progress progress;
};

static bool parse_answer(struct push *push, struct json_doc *doc)
{
    return json_parse_copy(
               doc, (struct span){ push->answer.body.bytes, push->answer.body.size }, 0) == 0;
}

/* ---- the pack and its versions ------------------------------------------------------ */

static int register_pack(struct push *push)
{
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    long status;

    json_put_object(&writer, NULL);
    json_put_text(&writer, "package_id", push->arguments->name);
    json_put_end(&writer);
    buffer_append(&body, "", 1);
    status = body.failed != 0
                 ? 0
                 : packs_web_ask(&push->web, "POST", "/v1/admin/packs", body.bytes, &push->answer);
    buffer_free(&body);
    if (status >= 200 && status < 300) {
        if (!push->arguments->quiet)
            fprintf(stderr, "Registered %s.\n", push->arguments->name);
        return CLI_OK;
    }
    if (status == 409) /* another process registered it first */
        return CLI_OK;
    return packs_web_complain(&push->web, "The registration of the pack", &push->answer);
}

/* Look for the version. Fails if it exists with other bytes. */
static int compare_version(struct push *push, const struct json *versions)
{
    struct span version, sha256;

    for (struct json_iter it = json_iterate(versions); json_next(&it);) {
        bool is_signed = false;

        (void)json_bool(json_get(it.value, "is_signed"), &is_signed);
        push->has_signed = push->has_signed || is_signed;
        if (!json_string(json_get(it.value, "version"), &version) ||
            !span_is(version, push->arguments->version) ||
            !json_string(json_get(it.value, "sha256"), &sha256))
            continue;
        push->is_there = true;
        push->is_signed = is_signed;
        if (push->arguments->encoding == NULL && !span_is(sha256, push->sha256))
            return packs_fail(
                "Version %s of %s exists already with other bytes, and a version never "
                "changes.\nChoose another one with --version V.",
                push->arguments->version, push->arguments->name);
    }
    return CLI_OK;
}

/* Read the state of the pack on the server. */
static int find_pack(struct push *push)
{
    char path[PATH_CHARS];
    struct json_doc doc = { 0 };
    struct span active;
    int rc = CLI_FAILED;
    long status;

    snprintf(path, sizeof path, "/v1/admin/packs/%s", push->arguments->name);
    status = packs_web_ask(&push->web, "GET", path, NULL, &push->answer);
    if (status == 404 && packs_answer_is(&push->answer, "PackNotFound"))
        return CLI_OK;
    if (status == 404)
        return packs_fail(
            "%s has no packs: its admin listener has no /v1/admin/packs.", push->web.base);
    if (status != 200)
        return packs_web_complain(&push->web, "The search for the pack", &push->answer);
    push->is_registered = true;
    if (parse_answer(push, &doc)) {
        if (json_string(json_get(json_root(&doc), "active_version"), &active) &&
            active.size < sizeof push->active_before)
            memcpy(push->active_before, active.at, active.size);
        rc = compare_version(push, json_get(json_root(&doc), "versions"));
    } else {
        packs_fail("The answer is not JSON; check that the address is a troupe server.");
    }
    json_doc_free(&doc);
    return rc;
}

static int fail_by_key(const struct push *push)
{
    return packs_fail(
        "Another key signs this pack.\nUse it with --key FILE, or add yours with it: troupe packs "
        "rotate %s --key OLD --add NEW",
        push->arguments->name);
}

static int fail_unsigned(const struct push *push)
{
    return packs_fail(
        "The versions of %s are signed; leave --unsigned out.", push->arguments->name);
}

/* Do what the upload needs, or explain why it cannot happen. */
static int push_prepare(struct push *push)
{
    const struct packs_arguments *arguments = push->arguments;
    int rc = CLI_OK;

    if (arguments->encoding != NULL)
        return push->is_there
                   ? CLI_OK
                   : packs_fail("There is no version %s of %s for this encoding.\nPush the "
                                "version first, without --encoding.",
                         arguments->version, arguments->name);
    if (push->is_signed || arguments->no_publish)
        return push->is_registered ? CLI_OK : register_pack(push); /* no key is needed */
    if (arguments->is_unsigned && push->has_signed)
        return fail_unsigned(push);
    if (!arguments->is_unsigned && packs_key_is_there(arguments->key))
        rc = packs_key_load(arguments->key, false, &push->key);
    else if (!arguments->is_unsigned)
        rc = push->has_signed ? fail_by_key(push) : packs_key_try(arguments->key);
    return rc == CLI_OK && !push->is_registered ? register_pack(push) : rc;
}

/* ---- the bytes ------------------------------------------------------------------------------ */

static int read_upload(struct push *push)
{
    struct json_doc doc = { 0 };
    struct span id = { "", 0 };
    int64_t offset = -1;

    if (parse_answer(push, &doc)) {
        (void)json_string(json_get(json_root(&doc), "upload"), &id);
        (void)json_int(json_get(json_root(&doc), "offset"), &offset);
    }
    if (id.size > 0 && id.size < sizeof push->upload && offset >= 0) {
        memcpy(push->upload, id.at, id.size);
        push->upload[id.size] = '\0';
        push->offset = (uint64_t)offset;
    }
    json_doc_free(&doc);
    return push->upload[0] != '\0' ? CLI_OK : packs_fail("The server's answer is not an upload.");
}

/* Start a new upload, or find the unfinished one. */
static int start_upload(struct push *push)
{
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    char path[PATH_CHARS];
    long status = 0;
    int rc;

    json_put_object(&writer, NULL);
    json_put_text(&writer, "version", push->arguments->version);
    json_put_int(&writer, "size", (int64_t)push->size);
    json_put_text(&writer, "sha256", push->sha256);
    json_put_text(&writer, "type", push->type);
    if (push->arguments->encoding != NULL)
        json_put_text(&writer, "encoding", push->arguments->encoding);
    json_put_end(&writer);
    buffer_append(&body, "", 1);
    snprintf(path, sizeof path, "/v1/admin/packs/%s/uploads", push->arguments->name);
    if (body.failed == 0)
        status = packs_web_ask(&push->web, "POST", path, body.bytes, &push->answer);
    buffer_free(&body);
    if (status != 200 && status != 201)
        return packs_web_complain(&push->web, "The start of the upload", &push->answer);
    rc = read_upload(push);
    if (rc == CLI_OK && push->offset > 0 && push->offset < push->size && !push->arguments->quiet)
        fprintf(stderr, "Going on at %.1f of %.1f MB.\n", (double)push->offset / 1e6,
            (double)push->size / 1e6);
    return rc;
}

struct sending {
    struct push *push;
    uint64_t at, end;
    struct buffer body; /* the answer */
};

static size_t on_read(char *bytes, size_t size, size_t count, void *data)
{
    struct sending *sending = data;
    uint64_t left = sending->end - sending->at;
    size_t want = left < size * count ? (size_t)left : size * count;
    ssize_t got;

    if (want == 0)
        return 0;
    got = pread(sending->push->fd, bytes, want, (off_t)sending->at);
    if (got <= 0) /* the file has become shorter */
        return CURL_READFUNC_ABORT;
    sending->at += (uint64_t)got;
    packs_progress_show(&sending->push->progress, sending->at);
    return (size_t)got;
}

static size_t on_push_answer(char *bytes, size_t size, size_t count, void *data)
{
    struct sending *sending = data;

    return buffer_append(&sending->push->answer.body, bytes, size * count) == 0 ? size * count : 0;
}

/* Send the rest, at most piece_max bytes, in one request. Returns the status, 0 without an answer. */
static long send_rest(struct push *push)
{
    struct sending sending = { .push = push, .at = push->offset, .end = push->size };
    struct curl_slist *headers = NULL;
    char path[PATH_CHARS], line[64];
    CURLcode code;
    long status = 0;

    if (sending.end - sending.at > push->piece_max)
        sending.end = sending.at + push->piece_max;
    for (struct curl_slist *at = push->web.headers; at != NULL; at = at->next)
        headers = curl_slist_append(headers, at->data);
    snprintf(line, sizeof line, "Upload-Offset: %llu", (unsigned long long)push->offset);
    headers = curl_slist_append(headers, line);
    headers = curl_slist_append(headers, "Content-Type: application/offset+octet-stream");
    headers = curl_slist_append(headers, "Expect:");
    snprintf(path, sizeof path, "/v1/admin/uploads/%s", push->upload);
    packs_web_prepare(&push->web, path, headers);
    buffer_clear(&push->answer.body);
    curl_easy_setopt(push->web.curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(push->web.curl, CURLOPT_CUSTOMREQUEST, "PATCH");
    curl_easy_setopt(
        push->web.curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(sending.end - sending.at));
    curl_easy_setopt(push->web.curl, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(push->web.curl, CURLOPT_READDATA, &sending);
    curl_easy_setopt(push->web.curl, CURLOPT_WRITEFUNCTION, on_push_answer);
    curl_easy_setopt(push->web.curl, CURLOPT_WRITEDATA, &sending);
    curl_easy_setopt(push->web.curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(push->web.curl, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
    curl_easy_setopt(push->web.curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)READ_BYTES);
    code = curl_easy_perform(push->web.curl);
    curl_easy_getinfo(push->web.curl, CURLINFO_RESPONSE_CODE, &status);
    if (status < 400 &&
        code != CURLE_OK) /* an error status before the end of the body is an answer */
        status = 0;
    if (code != CURLE_OK && push->web.problem[0] == '\0')
        snprintf(push->web.problem, sizeof push->web.problem, "%s", curl_easy_strerror(code));
    push->answer.status = status;
    curl_slist_free_all(headers);
    return status;
}

/* Read the offset of the upload. Returns the status. */
static long read_offset(struct push *push)
{
    char path[PATH_CHARS];
    long status;

    snprintf(path, sizeof path, "/v1/admin/uploads/%s", push->upload);
    status = packs_web_ask(&push->web, "GET", path, NULL, &push->answer);
    if (status == 200 && push->answer.offset != UINT64_MAX)
        push->offset = push->answer.offset;
    return status;
}

/* True if a retry can succeed. */
static bool is_temporary_failure(const struct packs_answer *answer)
{
    return answer->status == 0 || answer->status == 408 || answer->status == 429 ||
           answer->status == 502 || answer->status == 503 || answer->status == 504 ||
           (answer->status == 409 && (packs_answer_is(answer, "UploadBusy") ||
                                         packs_answer_is(answer, "UploadOffsetMismatch")));
}

static int send_all(struct push *push)
{
    unsigned failed = 0;

    while (push->offset < push->size) {
        uint64_t before = push->offset;
        long status = send_rest(push);

        if (status >= 200 && status < 300) {
            push->offset = push->size - push->offset > push->piece_max
                               ? push->offset + push->piece_max
                               : push->size;
            push->piece_max = UINT64_MAX;
            continue;
        }
        push->piece_max = SMALL_PIECE;
        if (!is_temporary_failure(&push->answer))
            return packs_web_complain(&push->web, "The upload", &push->answer);
        if (failed == 0) {
            packs_progress_end(&push->progress);
            packs_print_retry(push->arguments, push->answer.status);
        }
        if (++failed > PACKS_TRIES) {
            packs_progress_end(&push->progress);
            packs_web_complain(&push->web, "The upload", &push->answer);
            return packs_fail(
                "The server has %.1f of %.1f MB; run the same command again to go on.",
                (double)push->offset / 1e6, (double)push->size / 1e6);
        }
        sleep(failed < 5 ? failed : 5); /* tidy: allow sleep, because the server needs time */
        if (read_offset(push) == 200 && push->offset > before)
            failed = 0;
    }
    return CLI_OK;
}

static int finish_upload(struct push *push)
{
    char path[PATH_CHARS];
    long status = 0;

    snprintf(path, sizeof path, "/v1/admin/uploads/%s/finish", push->upload);
    for (unsigned failed = 0; failed <= PACKS_TRIES; failed++) {
        if (failed > 0)
            sleep(failed < 5 ? failed : 5); /* tidy: allow sleep, because the server is busy */
        status = packs_web_ask(&push->web, "POST", path, "{}", &push->answer);
        if (status >= 200 && status < 300)
            return CLI_OK;
        if (!is_temporary_failure(&push->answer))
            break;
        if (failed == 0)
            packs_print_retry(push->arguments, status);
    }
    return packs_web_complain(&push->web, "The end of the upload", &push->answer);
}

static int push_upload(struct push *push)
{
    int rc = start_upload(push);

    if (rc != CLI_OK)
        return rc;
    packs_progress_start(
        &push->progress, "uploading", push->offset, push->size, push->arguments->quiet);
    if (!push->arguments->quiet)
        packs_progress_stop_on_signal(&push->progress);
    rc = send_all(push);
    packs_progress_end(&push->progress);
    return rc == CLI_OK ? finish_upload(push) : rc;
}

/* ---- publishing ----------------------------------------------------------------------------- */

/* {"manifest":"…","signature":"…"}, terminated. */
static int write_signed(struct push *push, struct buffer *body)
{
    const struct tr_env *env = tr_env_real();
    struct manifest manifest = { .size = push->size,
        .created_s = (int64_t)(env->wall_ns(env->data) / 1000000000) };
    char signature[MANIFEST_SIGNATURE_CHARS + 1];
    struct json_writer writer;
    struct buffer text = { 0 };
    int rc;

    snprintf(manifest.pack, sizeof manifest.pack, "%s", push->arguments->name);
    snprintf(manifest.version, sizeof manifest.version, "%s", push->arguments->version);
    snprintf(manifest.type, sizeof manifest.type, "%s", push->type);
    memcpy(manifest.sha256, push->sha256, sizeof manifest.sha256);
    (void)crypto_multikey_encode(push->key, manifest.key);
    rc = manifest_write(&manifest, &text);
    if (rc == 0)
        rc = manifest_sign(push->key, (struct span){ text.bytes, text.size }, signature);
    if (rc == 0) {
        writer = json_writer(body);
        json_put_object(&writer, NULL);
        json_put_string(&writer, "manifest", (struct span){ text.bytes, text.size });
        json_put_text(&writer, "signature", signature);
        json_put_end(&writer);
        rc = json_writer_end(&writer);
    }
    buffer_free(&text);
    if (rc == 0)
        rc = buffer_append(body, "", 1);
    return rc == 0 ? CLI_OK : packs_fail("The manifest could not be signed.");
}

static int push_publish(struct push *push)
{
    struct buffer body = { 0 };
    char path[PATH_CHARS];
    long status;
    bool needs_key = !push->arguments->is_unsigned && !push->is_signed;
    int rc = CLI_OK;

    if (needs_key && push->key == NULL)
        rc = packs_key_load(push->arguments->key, true, &push->key);
    if (rc == CLI_OK && needs_key)
        rc = write_signed(push, &body);
    if (rc != CLI_OK)
        return rc;
    snprintf(path, sizeof path, "/v1/admin/packs/%s/versions/%s/publish", push->arguments->name,
        push->arguments->version);
    status = packs_web_ask(
        &push->web, "POST", path, body.bytes == NULL ? "{}" : body.bytes, &push->answer);
    buffer_free(&body);
    if (status >= 200 && status < 300)
        return CLI_OK;
    if (packs_answer_is(&push->answer, "KeyUnknown"))
        return fail_by_key(push);
    if (packs_answer_is(&push->answer, "ManifestRequired"))
        return fail_unsigned(push);
    return packs_web_complain(&push->web, "The publication", &push->answer);
}

static void print_url(const struct push *push)
{
    char base[PACKS_URL_SIZE];

    if (push->arguments->encoding != NULL || push->arguments->no_publish) {
        printf("%s %s uploaded\n", push->arguments->name, push->arguments->version);
        return;
    }
    if (!push->arguments->quiet && push->active_before[0] != '\0' &&
        strcmp(push->active_before, push->arguments->version) != 0)
        fprintf(stderr, "%s %s is now the active version; before it was %s.\n",
            push->arguments->name, push->arguments->version, push->active_before);
    if (packs_web_public_base(push->arguments, base, sizeof base))
        printf("%s/v1/packs/%s/download\n", base, push->arguments->name);
}

/* ---- the command ---------------------------------------------------------------------------- */

static int open_file(struct push *push)
{
    const char *path = push->arguments->word;
    struct stat status;
    bool is_read;

    push->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (push->fd < 0 || fstat(push->fd, &status) != 0)
        return packs_fail("%s: %s.", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return packs_fail("%s is not a regular file.", path);
    packs_progress_start(
        &push->progress, "hashing", 0, (uint64_t)status.st_size, push->arguments->quiet);
    is_read = packs_hash(push->fd, &push->progress, push->sha256, &push->size);
    packs_progress_end(&push->progress);
    return is_read ? CLI_OK : packs_fail("%s: %s.", path, strerror(errno));
}

static int push_all(struct push *push)
{
    bool is_variant = push->arguments->encoding != NULL;
    int rc = open_file(push);

    if (rc != CLI_OK || !packs_web_open_admin(&push->web, push->arguments))
        return CLI_FAILED;
    rc = find_pack(push);
    if (rc == CLI_OK)
        rc = push_prepare(push);
    if (rc == CLI_OK && (!push->is_there || is_variant))
        rc = push_upload(push);
    if (rc == CLI_OK && !push->arguments->no_publish && !is_variant)
        rc = push_publish(push);
    if (rc == CLI_OK)
        print_url(push);
    packs_web_close(&push->web);
    return rc;
}

int packs_push(const struct packs_arguments *arguments)
{
    struct push push = { .arguments = arguments,
        .fd = -1,
        .piece_max = UINT64_MAX,
        .type = arguments->type == NULL ? "application/octet-stream" : arguments->type };
    int rc;

    if (arguments->word == NULL)
        return cli_wrong(arguments->command, "Name the file, as in `troupe packs push FILE`", NULL);
    if (arguments->name == NULL)
        return cli_wrong(arguments->command, "Name the pack with --name NAME", NULL);
    if (!manifest_is_pack(span_of(arguments->name)))
        return packs_wrong_pack(arguments, "--name has", arguments->name);
    if (arguments->version == NULL)
        return cli_wrong(arguments->command, "Name the version with --version V", NULL);
    if (!manifest_is_version(span_of(arguments->version)))
        return packs_wrong_version(arguments);
    if (arguments->encoding != NULL && strcmp(arguments->encoding, "zstd") != 0 &&
        strcmp(arguments->encoding, "gzip") != 0)
        return cli_wrong(
            arguments->command, "--encoding takes zstd or gzip, not", arguments->encoding);
    if (!manifest_is_type(span_of(push.type)))
        return cli_wrong(arguments->command, "--type takes a media type like a/b, not", push.type);
    rc = push_all(&push);
    crypto_key_unref(&push.key);
    packs_answer_fini(&push.answer);
    if (push.fd >= 0)
        close(push.fd);
    return rc;
}
