/* SPDX-License-Identifier: Apache-2.0 */
/* packs_verify.c: `troupe packs verify DIR`: are the files of a mirror what their publishers
 * signed? Nothing is fetched. Two layouts are known, at any depth:
 *
 *   NAME-VERSION, NAME-VERSION.manifest.json       as `troupe packs get` leaves them
 *   manifest or manifest.json, beside download     as a copy of /v1/packs/NAME, or of
 *                                                  /v1/packs/NAME/versions/V
 *   manifest, beside versions/V/download           as a copy of /v1/packs/NAME */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/packs_command.h"

enum { DEPTH_MAX = 8 };
static const char suffix[] = ".manifest.json";

struct verify {
    const struct packs_arguments *arguments;
    unsigned good, bad;
};

static void say_bad(struct verify *verify, const char *path, const char *why)
{
    verify->bad++;
    printf("%-8s %s: %s\n", "BAD", path, why);
}

/* ---- one manifest --------------------------------------------------------------------------- */

/* The keys that are trusted for a pack; false: it was said. */
static bool gather_trust(struct verify *verify, const char *pack, struct manifest_keys *ret_keys)
{
    *ret_keys = (struct manifest_keys){ 0 };
    if (verify->arguments->trust != NULL)
        return manifest_keys_add(ret_keys, span_of(verify->arguments->trust)) == 0;
    return packs_pins_load(verify->arguments->pins, pack, ret_keys) == CLI_OK;
}

/* The first of the places where its bytes may be. */
static int open_bytes(int folder, const char *beside, const struct manifest *manifest)
{
    char path[PATH_MAX];
    int fd;

    if (beside != NULL)
        return openat(folder, beside, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    snprintf(path, sizeof path, "versions/%s/download", manifest->version);
    fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        fd = openat(folder, "download", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    return fd;
}

static void check_bytes(
    struct verify *verify, const char *path, int fd, const struct manifest *manifest)
{
    struct packs_progress progress;
    struct stat status;
    char hex[65];
    uint64_t size = 0;
    bool is_read;

    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        say_bad(verify, path, "what should be its bytes is not a file");
        return;
    }
    if ((uint64_t)status.st_size != manifest->size) { /* before reading what may be endless */
        say_bad(verify, path,
            (uint64_t)status.st_size < manifest->size ? "the file is too short"
                                                      : "the file is too long");
        return;
    }
    packs_progress_begin(&progress, "verifying", 0, manifest->size, verify->arguments->quiet);
    is_read = packs_hash(fd, &progress, hex, &size);
    packs_progress_end(&progress);
    if (!is_read)
        say_bad(verify, path, strerror(errno));
    else if (size != manifest->size)
        say_bad(
            verify, path, size < manifest->size ? "the file is too short" : "the file is too long");
    else if (strcmp(hex, manifest->sha256) != 0)
        say_bad(verify, path, "the bytes are not those of the manifest (SHA-256)");
    else {
        verify->good++;
        printf("%-8s %s: %s %s, %llu bytes\n", "ok", path, manifest->pack, manifest->version,
            (unsigned long long)manifest->size);
    }
}

static void check_document(struct verify *verify, int folder, const char *path, const char *beside,
    const struct json *root)
{
    struct manifest manifest;
    struct manifest_keys keys;
    struct span text;
    char signer[3 + PACKS_SIGNER_SIZE] = "it ";
    const char *why = NULL;
    int fd;

    if (!json_string(json_get(root, "manifest"), &text)) {
        say_bad(verify, path, "it is not signed");
        return;
    }
    if (manifest_read(text, &manifest, &why) != 0) {
        say_bad(verify, path, why);
        return;
    }
    if (!gather_trust(verify, manifest.pack, &keys)) {
        say_bad(verify, path, "the trusted keys cannot be read");
        return;
    }
    if (keys.count == 0) {
        say_bad(verify, path,
            "no key is trusted for this pack: `troupe packs get` it once, or --trust KEY");
        return;
    }
    if (manifest_document_check(root, manifest.pack, &keys, &manifest, &why) != 0) {
        if (packs_signer_explain(verify->arguments, root, &keys, signer + 3))
            why = signer;
        say_bad(verify, path, why);
        return;
    }
    fd = open_bytes(folder, beside, &manifest);
    if (fd < 0) {
        say_bad(verify, path, "its bytes are not there");
        return;
    }
    check_bytes(verify, path, fd, &manifest);
    close(fd);
}

static void check_manifest(
    struct verify *verify, int folder, const char *name, const char *path, const char *beside)
{
    struct buffer text = { 0 };
    struct json_doc doc = { .depth_max = 8 };

    if (!packs_read(folder, name, MANIFEST_DOCUMENT_BYTES_MAX, &text))
        say_bad(verify, path, strerror(errno));
    else if (json_parse_copy(&doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS) != 0)
        say_bad(verify, path, "it is not JSON");
    else
        check_document(verify, folder, path, beside, json_root(&doc));
    json_doc_free(&doc);
    buffer_free(&text);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static void walk(struct verify *verify, int folder, const char *path, unsigned depth);

static void look_at(
    struct verify *verify, int folder, const char *folder_path, const char *name, unsigned depth)
{
    char path[PATH_MAX], beside[NAME_MAX + 1];
    size_t size = strlen(name);
    struct stat status;
    int below;

    if (snprintf(path, sizeof path, "%s/%s", folder_path, name) >= (int)sizeof path ||
        fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (S_ISDIR(status.st_mode) && depth < DEPTH_MAX) {
        below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (below >= 0)
            walk(verify, below, path, depth + 1);
        else
            say_bad(verify, path, strerror(errno));
    } else if (S_ISREG(status.st_mode) && size > sizeof suffix - 1 && size <= NAME_MAX &&
               strcmp(name + size - (sizeof suffix - 1), suffix) == 0) {
        memcpy(beside, name, size - (sizeof suffix - 1));
        beside[size - (sizeof suffix - 1)] = '\0';
        check_manifest(verify, folder, name, path, beside);
    } else if (S_ISREG(status.st_mode) &&
               (strcmp(name, "manifest") == 0 || strcmp(name, "manifest.json") == 0)) {
        check_manifest(verify, folder, name, path, NULL);
    }
}

/* Takes the descriptor. */
static void walk(struct verify *verify, int folder, const char *path, unsigned depth)
{
    DIR *names = fdopendir(folder);
    const struct dirent *entry;

    if (names == NULL) {
        close(folder);
        say_bad(verify, path, strerror(errno));
        return;
    }
    while ((entry = readdir(names)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            look_at(verify, folder, path, entry->d_name, depth);
    closedir(names);
}

int packs_verify(const struct packs_arguments *arguments)
{
    struct verify verify = { .arguments = arguments };
    int folder;

    if (arguments->word == NULL)
        return cli_wrong(arguments->command, "which directory? verify DIR", NULL);
    if (packs_check_trust(arguments) != CLI_OK)
        return CLI_USAGE;
    folder = open(arguments->word, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return packs_fail("%s: %s", arguments->word, strerror(errno));
    walk(&verify, folder, arguments->word, 0);
    if (verify.good + verify.bad == 0)
        return packs_fail("there is no manifest in %s: nothing was verified", arguments->word);
    printf("%u good, %u bad\n", verify.good, verify.bad);
    return verify.bad == 0 && fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}
