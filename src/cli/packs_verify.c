/* SPDX-License-Identifier: Apache-2.0 */
/* packs_verify.c: `troupe packs verify DIR`: verify the files of a mirror against their signed
 * manifests, without a network. The command knows these layouts, at any depth:
 *
 *   NAME-VERSION, NAME-VERSION.manifest.json       written by `troupe packs get`
 *   manifest or manifest.json, beside download     a copy of /v1/packs/NAME or
 *                                                  /v1/packs/NAME/versions/V
 *   manifest, beside versions/V/download           a copy of /v1/packs/NAME */
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

static void print_bad(struct verify *verify, const char *path, const char *why)
{
    verify->bad++;
    printf("%-8s %s: %s\n", "BAD", path, why);
}

/* ---- one manifest --------------------------------------------------------------------------- */

/* Collect the trusted keys of a pack. False: the message is on stderr. */
static bool verify_trusted_keys(
    struct verify *verify, const char *pack, struct manifest_keys *ret_keys)
{
    *ret_keys = (struct manifest_keys){ 0 };
    if (verify->arguments->trust != NULL)
        return manifest_keys_add(ret_keys, span_of(verify->arguments->trust)) == 0;
    return packs_pins_load(verify->arguments->pins, pack, ret_keys) == CLI_OK;
}

/* Open the bytes at the first of their possible places. */
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
        print_bad(verify, path, "the file of its bytes is not a regular file");
        return;
    }
    if ((uint64_t)status.st_size != manifest->size) { /* before hashing, which may take long */
        print_bad(verify, path,
            (uint64_t)status.st_size < manifest->size ? "the file is too short"
                                                      : "the file is too long");
        return;
    }
    packs_progress_start(&progress, "verifying", 0, manifest->size, verify->arguments->quiet);
    is_read = packs_hash(fd, &progress, hex, &size);
    packs_progress_end(&progress);
    if (!is_read)
        print_bad(verify, path, strerror(errno));
    else if (size != manifest->size)
        print_bad(
            verify, path, size < manifest->size ? "the file is too short" : "the file is too long");
    else if (strcmp(hex, manifest->sha256) != 0)
        print_bad(verify, path, "the bytes do not have the SHA-256 of the manifest");
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
        print_bad(verify, path, "it is not signed");
        return;
    }
    if (manifest_read(text, &manifest, &why) != 0) {
        print_bad(verify, path, why);
        return;
    }
    if (!verify_trusted_keys(verify, manifest.pack, &keys)) {
        print_bad(verify, path, "the pinned keys cannot be read");
        return;
    }
    if (keys.count == 0) {
        print_bad(verify, path,
            "no key is pinned for this pack; run `troupe packs get` once, or use --trust KEY");
        return;
    }
    if (manifest_document_check(root, manifest.pack, &keys, &manifest, &why) != 0) {
        if (packs_signer_explain(verify->arguments, root, &keys, signer + 3))
            why = signer;
        print_bad(verify, path, why);
        return;
    }
    fd = open_bytes(folder, beside, &manifest);
    if (fd < 0) {
        print_bad(verify, path, "its bytes are missing");
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
        print_bad(verify, path, strerror(errno));
    else if (json_parse_copy(&doc, (struct span){ text.bytes, text.size }, JSON_UNIQUE_KEYS) != 0)
        print_bad(verify, path, "it is not JSON");
    else
        check_document(verify, folder, path, beside, json_root(&doc));
    json_doc_free(&doc);
    buffer_free(&text);
}

/* ---- the directory ---------------------------------------------------------------------------- */

static void verify_walk(struct verify *verify, int folder, const char *path, unsigned depth);

static void verify_entry(
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
            verify_walk(verify, below, path, depth + 1);
        else
            print_bad(verify, path, strerror(errno));
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

/* Verify a directory and close its descriptor. */
static void verify_walk(struct verify *verify, int folder, const char *path, unsigned depth)
{
    DIR *names = fdopendir(folder);
    const struct dirent *entry;

    if (names == NULL) {
        close(folder);
        print_bad(verify, path, strerror(errno));
        return;
    }
    while ((entry = readdir(names)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            verify_entry(verify, folder, path, entry->d_name, depth);
    closedir(names);
}

int packs_verify(const struct packs_arguments *arguments)
{
    struct verify verify = { .arguments = arguments };
    int folder;

    if (arguments->word == NULL)
        return cli_wrong(
            arguments->command, "Name the directory, as in `troupe packs verify DIR`", NULL);
    if (packs_check_trust(arguments) != CLI_OK)
        return CLI_USAGE;
    folder = open(arguments->word, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return packs_fail("%s: %s.", arguments->word, strerror(errno));
    verify_walk(&verify, folder, arguments->word, 0);
    if (verify.good + verify.bad == 0)
        return packs_fail(
            "There is no manifest in %s; the command verified no file.", arguments->word);
    printf("%u good, %u bad\n", verify.good, verify.bad);
    return verify.bad == 0 && fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}
