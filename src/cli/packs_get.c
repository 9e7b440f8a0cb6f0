/* SPDX-License-Identifier: Apache-2.0 */
/* packs_get.c: `troupe packs get` and `list`. The command fetches the signed manifest first, which
 * names the bytes of the pack; it discards any other bytes that the server sends. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/packs_command.h"

enum { PATH_CHARS = 512, STALLED_S = 30, LINE_CHARS = 160, ERROR_BYTES = 4096 };

struct get {
    const struct packs_arguments *arguments;
    struct packs_web web;
    struct packs_answer answer; /* the document */
    struct manifest manifest;
    char out[PATH_MAX];
    char part[PATH_MAX];
    int fd;
    uint64_t at; /* bytes in `part` */
    bool is_refused;
    long status;
    int write_error;
    struct packs_progress progress;
};

/* ---- the manifest ------------------------------------------------------------------------- */

static bool copy_member(const struct json *root, const char *key, char *to, size_t size)
{
    struct span text;

    if (!json_string(json_get(root, key), &text) || text.size >= size)
        return false;
    memcpy(to, text.at, text.size);
    to[text.size] = '\0';
    return true;
}

/* True if the manifest is of the requested version. False: the message is on stderr. */
static bool is_wanted_version(const struct get *get)
{
    const char *wanted = get->arguments->version;

    if (wanted == NULL || strcmp(wanted, get->manifest.version) == 0)
        return true;
    packs_fail(
        "The server sent the manifest of version %s instead of %s.", get->manifest.version, wanted);
    return false;
}

/* Accept an unsigned pack by the server's checksum. */
static int take_unsigned(struct get *get, const struct json *root)
{
    int64_t size = -1;

    if (!get->arguments->is_unsigned)
        return packs_fail("%s is not signed, so only this server vouches for its bytes.\n"
                          "Use --unsigned to accept it by its checksum alone.",
            get->arguments->word);
    snprintf(get->manifest.pack, sizeof get->manifest.pack, "%s", get->arguments->word);
    if (!copy_member(root, "version", get->manifest.version, sizeof get->manifest.version) ||
        !copy_member(root, "sha256", get->manifest.sha256, sizeof get->manifest.sha256) ||
        !json_int(json_get(root, "size_bytes"), &size) || size < 0 ||
        !manifest_is_version(span_of(get->manifest.version)) ||
        strspn(get->manifest.sha256, "0123456789abcdef") != 64) /* it goes into a header */
        return packs_fail("The server's answer is not a manifest.");
    if (!is_wanted_version(get))
        return CLI_FAILED;
    get->manifest.size = (uint64_t)size;
    return CLI_OK;
}

/* Collect the trusted keys: of --trust, or the pinned ones; none at the first get. */
static int get_trusted_keys(const struct get *get, struct manifest_keys *ret_keys)
{
    const char *trust = get->arguments->trust;

    if (trust == NULL)
        return packs_pins_load(get->arguments->pins, get->arguments->word, ret_keys);
    *ret_keys = (struct manifest_keys){ 0 };
    (void)manifest_keys_add(ret_keys, span_of(trust)); /* packs_check_trust has validated it */
    return CLI_OK;
}

static int take_signed(struct get *get, const struct json *root)
{
    char signer[PACKS_SIGNER_SIZE], place[PATH_MAX];
    const char *why = NULL;
    struct manifest_keys keys;
    bool is_first;
    int rc = get_trusted_keys(get, &keys);

    if (rc != CLI_OK)
        return rc;
    is_first = keys.count == 0;
    if (manifest_document_check(root, get->arguments->word, &keys, &get->manifest, &why) != 0)
        return packs_signer_explain(get->arguments, root, &keys, signer)
                   ? packs_fail("%s %s.", get->arguments->word, signer)
                   : packs_fail(
                         "The manifest of %s cannot be trusted: %s.", get->arguments->word, why);
    if (!is_wanted_version(get))
        return CLI_FAILED;
    rc = packs_pins_save(get->arguments->pins, get->arguments->word, &keys);
    if (rc == CLI_OK && is_first) {
        packs_pins_show(get->arguments->pins, place, sizeof place);
        fprintf(stderr, "This is the first get of %s: %s now pins its key, %s.\n",
            get->arguments->word, place, get->manifest.key);
    }
    return rc;
}

/* Explain a 404. */
static int fail_missing(const struct get *get)
{
    const struct packs_arguments *arguments = get->arguments;
    const char *place = get->web.socket[0] != '\0' ? get->web.socket : get->web.base;

    if (packs_answer_is(&get->answer, "PackNotFound"))
        return packs_fail("There is no pack %s on %s.", arguments->word, place);
    if (packs_answer_is(&get->answer, "VersionNotFound") && arguments->version != NULL)
        return packs_fail(
            "There is no version %s of %s on %s.", arguments->version, arguments->word, place);
    return packs_web_complain(&get->web, "The manifest", &get->answer);
}

static int fetch_manifest(struct get *get)
{
    struct json_doc doc = { 0 };
    char path[PATH_CHARS];
    struct span text;
    int rc;

    if (get->arguments->version != NULL)
        snprintf(path, sizeof path, "/v1/packs/%s/versions/%s/manifest", get->arguments->word,
            get->arguments->version);
    else
        snprintf(path, sizeof path, "/v1/packs/%s/manifest", get->arguments->word);
    if (packs_web_ask(&get->web, "GET", path, NULL, &get->answer) != 200)
        return get->answer.status == 404
                   ? fail_missing(get)
                   : packs_web_complain(&get->web, "The manifest", &get->answer);
    rc = json_parse_copy(
        &doc, (struct span){ get->answer.body.bytes, get->answer.body.size }, JSON_UNIQUE_KEYS);
    if (rc != 0)
        rc = packs_fail("The server's answer is not a manifest.");
    else if (json_string(json_get(json_root(&doc), "manifest"), &text))
        rc = take_signed(get, json_root(&doc));
    else
        rc = take_unsigned(get, json_root(&doc));
    json_doc_free(&doc);
    return rc;
}

/* ---- the bytes ------------------------------------------------------------------------------ */

static size_t on_bytes(char *bytes, size_t size, size_t count, void *data)
{
    struct get *get = data;
    size_t left = size * count;

    if (get->status == 0) {
        curl_easy_getinfo(get->web.curl, CURLINFO_RESPONSE_CODE, &get->status);
        if (get->status == 200 && get->at > 0) { /* the server sends the file from the start */
            get->at = 0;
            if (ftruncate(get->fd, 0) != 0)
                get->write_error = errno;
        }
    }
    if (get->status != 200 && get->status != 206) { /* an error; keep the start of its text */
        if (get->answer.body.size >= ERROR_BYTES)
            return 0;
        (void)buffer_append(&get->answer.body, bytes, left);
        return left;
    }
    if (left > get->manifest.size - get->at) { /* more than the manifest names */
        get->is_refused = true;
        return 0;
    }
    while (left > 0 && get->write_error == 0) {
        ssize_t done = pwrite(get->fd, bytes, left, (off_t)get->at);

        if (done < 0 && errno != EINTR)
            get->write_error = errno;
        if (done <= 0)
            continue;
        bytes += done;
        left -= (size_t)done;
        get->at += (uint64_t)done;
    }
    packs_progress_show(&get->progress, get->at);
    return get->write_error == 0 ? size * count : 0;
}

/* Request the missing bytes. True if the transfer completed. */
static bool fetch_rest(struct get *get)
{
    struct curl_slist *headers = NULL;
    char path[PATH_CHARS], line[LINE_CHARS], range[64];
    CURLcode code;

    snprintf(path, sizeof path, "/v1/packs/%s/versions/%s/download", get->manifest.pack,
        get->manifest.version);
    headers = curl_slist_append(headers, "Accept-Encoding: identity");
    if (get->at > 0) {
        snprintf(line, sizeof line, "If-Range: \"%s\"", get->manifest.sha256);
        headers = curl_slist_append(headers, line);
    }
    packs_web_prepare(&get->web, path, headers);
    if (get->at > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)get->at);
        curl_easy_setopt(get->web.curl, CURLOPT_RANGE, range);
    }
    curl_easy_setopt(get->web.curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(get->web.curl, CURLOPT_WRITEDATA, get);
    curl_easy_setopt(get->web.curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(get->web.curl, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
    get->status = 0;
    buffer_clear(&get->answer.body);
    packs_progress_wait(&get->progress, "waiting: the server verifies the file before it sends it");
    code = curl_easy_perform(get->web.curl);
    curl_slist_free_all(headers);
    curl_easy_getinfo(get->web.curl, CURLINFO_RESPONSE_CODE, &get->answer.status);
    if (code != CURLE_OK && get->web.problem[0] == '\0')
        snprintf(get->web.problem, sizeof get->web.problem, "%s", curl_easy_strerror(code));
    if (code != CURLE_OK && get->answer.status < 400)
        get->answer.status = 0;
    return code == CURLE_OK && (get->answer.status == 200 || get->answer.status == 206);
}

static bool is_temporary(long status)
{
    return status == 0 || status == 408 || status == 429 || (status >= 502 && status <= 504);
}

static int fetch_all(struct get *get)
{
    unsigned failed = 0;

    while (get->at < get->manifest.size) {
        uint64_t before = get->at;

        if (fetch_rest(get) && get->at > before)
            continue;
        if (get->write_error != 0)
            return packs_fail("%s: %s.", get->part, strerror(get->write_error));
        if (get->is_refused)
            return packs_fail("The server sends more bytes than the manifest names; the command "
                              "keeps none of them.");
        if (!is_temporary(get->answer.status))
            return packs_web_complain(&get->web, "The download", &get->answer);
        if (failed == 0 || get->at > before) {
            packs_progress_end(&get->progress);
            packs_print_retry(get->arguments, get->answer.status);
        }
        failed = get->at > before ? 1 : failed + 1;
        if (failed > PACKS_TRIES) {
            packs_progress_end(&get->progress);
            packs_web_complain(&get->web, "The download", &get->answer);
            return packs_fail("%.1f of %.1f MB are in %s; run the same command again to go on.",
                (double)get->at / 1e6, (double)get->manifest.size / 1e6, get->part);
        }
        sleep(failed < 5 ? failed : 5); /* tidy: allow sleep, because the server needs time */
    }
    return CLI_OK;
}

/* ---- the file ------------------------------------------------------------------------------- */

static int set_paths(struct get *get)
{
    const char *out = get->arguments->out;
    struct stat status;
    int size;

    if (out == NULL)
        size =
            snprintf(get->out, sizeof get->out, "%s-%s", get->manifest.pack, get->manifest.version);
    else if (stat(out, &status) == 0 && S_ISDIR(status.st_mode))
        size = snprintf(
            get->out, sizeof get->out, "%s/%s-%s", out, get->manifest.pack, get->manifest.version);
    else
        size = snprintf(get->out, sizeof get->out, "%s", out);
    if (size < 0 || size > PATH_MAX - 32)
        return packs_fail("--out is too long; the most is 4,064 bytes.");
    snprintf(get->part, sizeof get->part, "%.*s.part", size, get->out);
    return CLI_OK;
}

static int open_part(struct get *get)
{
    struct stat status;

    get->fd = open(get->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (get->fd < 0 || fstat(get->fd, &status) != 0)
        return packs_fail("%s: %s.", get->part, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return packs_fail("%s is not a regular file.", get->part);
    get->at = (uint64_t)status.st_size;
    if (get->at > get->manifest.size) { /* of another version */
        if (ftruncate(get->fd, 0) != 0)
            return packs_fail("%s: %s.", get->part, strerror(errno));
        get->at = 0;
    }
    if (get->at > 0 && !get->arguments->quiet)
        fprintf(stderr, "Going on at %.1f of %.1f MB.\n", (double)get->at / 1e6,
            (double)get->manifest.size / 1e6);
    return CLI_OK;
}

/* Hash the part. CLI_OK and the verdict, or CLI_FAILED and a message. */
static int check_part(struct get *get, bool *ret_is_right)
{
    char hex[65];
    uint64_t size;
    bool is_read;

    packs_progress_start(&get->progress, "verifying", 0, get->manifest.size, get->arguments->quiet);
    is_read = packs_hash(get->fd, &get->progress, hex, &size);
    packs_progress_end(&get->progress);
    if (!is_read)
        return packs_fail("%s: %s.", get->part, strerror(errno));
    *ret_is_right = size == get->manifest.size && strcmp(hex, get->manifest.sha256) == 0;
    return CLI_OK;
}

/* Download and verify. An old part may have other bytes: then download the file once more. */
static int get_download(struct get *get)
{
    bool had_part = get->at > 0, is_right = false;
    int rc;

    for (int round = 0; round < 2; round++) {
        packs_progress_start(
            &get->progress, "downloading", get->at, get->manifest.size, get->arguments->quiet);
        if (!get->arguments->quiet)
            packs_progress_stop_on_signal(&get->progress);
        rc = fetch_all(get);
        packs_progress_end(&get->progress);
        if (rc == CLI_OK)
            rc = check_part(get, &is_right);
        if (rc != CLI_OK || is_right)
            return rc;
        if (ftruncate(get->fd, 0) != 0)
            return packs_fail("%s: %s.", get->part, strerror(errno));
        get->at = 0;
        if (!had_part)
            break;
    }
    unlink(get->part);
    return packs_fail("The bytes from the server do not have the SHA-256 of the manifest; the "
                      "command keeps none of them.");
}

static int get_keep(struct get *get, const struct buffer *document)
{
    char path[PATH_MAX + 32];

    if (fsync(get->fd) != 0 || rename(get->part, get->out) != 0)
        return packs_fail("%s: %s.", get->out, strerror(errno));
    snprintf(path, sizeof path, "%s.manifest.json", get->out);
    if (!packs_write(path, 0644, document->bytes, document->size))
        return packs_fail("%s: %s.", path, strerror(errno));
    printf("%s\n", get->out);
    return CLI_OK;
}

/* True if the file exists already with the right bytes. */
static bool is_done(struct get *get)
{
    int fd = open(get->out, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char hex[65];
    uint64_t size;
    bool is_right;

    if (fd < 0)
        return false;
    is_right = packs_hash(fd, NULL, hex, &size) && size == get->manifest.size &&
               strcmp(hex, get->manifest.sha256) == 0;
    close(fd);
    return is_right;
}

static int get_all(struct get *get)
{
    struct buffer document = { 0 };
    int rc = fetch_manifest(get);

    if (rc == CLI_OK)
        rc = set_paths(get);
    if (rc != CLI_OK)
        return rc;
    if (is_done(get)) {
        printf("%s\n", get->out);
        return CLI_OK;
    }
    if (buffer_append(&document, get->answer.body.bytes, get->answer.body.size) != 0)
        return packs_fail("The command is out of memory.");
    rc = open_part(get);
    if (rc == CLI_OK)
        rc = get_download(get);
    if (rc == CLI_OK)
        rc = get_keep(get, &document);
    buffer_free(&document);
    return rc;
}

int packs_get(const struct packs_arguments *arguments)
{
    struct get get = { .arguments = arguments, .fd = -1 };
    int rc = CLI_FAILED;

    if (arguments->word == NULL)
        return cli_wrong(arguments->command, "Name the pack, as in `troupe packs get NAME`", NULL);
    if (!manifest_is_pack(span_of(arguments->word)))
        return packs_wrong_pack(arguments, "A pack name has", arguments->word);
    if (arguments->version != NULL && !manifest_is_version(span_of(arguments->version)))
        return packs_wrong_version(arguments);
    if (packs_check_trust(arguments) != CLI_OK)
        return CLI_USAGE;
    if (packs_web_open_public(&get.web, arguments)) {
        rc = get_all(&get);
        packs_web_close(&get.web);
    }
    packs_answer_fini(&get.answer);
    if (get.fd >= 0)
        close(get.fd);
    return rc;
}

/* ---- list ----------------------------------------------------------------------------------- */

static void print_offer(const struct json *offer)
{
    struct span name = { "?", 1 }, version = { "?", 1 };
    int64_t size = 0;

    (void)json_string(json_get(offer, "package_id"), &name);
    (void)json_string(json_get(offer, "version"), &version);
    (void)json_int(json_get(offer, "size_bytes"), &size);
    if (!manifest_is_pack(name) || !manifest_is_version(version))
        return; /* do not print a malformed name to the terminal */
    printf("%-32.*s %-16.*s %12lld\n", (int)name.size, name.at, (int)version.size, version.at,
        (long long)size);
}

static int print_packs(const struct packs_arguments *arguments, const struct buffer *body)
{
    struct span text = { body->bytes, body->size };
    struct json_doc doc = { 0 };
    const struct json *packs;

    if (arguments->as_json) {
        printf("%.*s\n", (int)text.size, text.at);
        return CLI_OK;
    }
    if (json_parse_copy(&doc, text, 0) != 0) {
        json_doc_free(&doc);
        return packs_fail("The answer is not JSON; check that the address is a troupe server.");
    }
    packs = json_get(json_root(&doc), "packs");
    if (json_count(packs) == 0)
        fprintf(stderr, "The server has no published packs; publish one with troupe packs push "
                        "FILE --name NAME --version V.\n");
    else
        printf("%s%-32s %-16s %12s%s\n", cli_bold(), "PACK", "VERSION", "BYTES", cli_plain());
    for (struct json_iter it = json_iterate(packs); json_next(&it);)
        print_offer(it.value);
    json_doc_free(&doc);
    return CLI_OK;
}

int packs_list(const struct packs_arguments *arguments)
{
    struct packs_answer answer = { 0 };
    struct packs_web web;
    int rc;

    if (arguments->word != NULL)
        return cli_wrong(arguments->command, "There is one argument too many:", arguments->word);
    if (!packs_web_open_public(&web, arguments))
        return CLI_FAILED;
    if (packs_web_ask(&web, "GET", "/v1/packs/available", NULL, &answer) == 200)
        rc = print_packs(arguments, &answer.body);
    else
        rc = packs_web_complain(&web, "The list", &answer);
    packs_answer_fini(&answer);
    packs_web_close(&web);
    return rc;
}
