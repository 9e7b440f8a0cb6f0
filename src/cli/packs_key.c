/* SPDX-License-Identifier: Apache-2.0 */
/* packs_key.c: the publisher's private key, and the pinned keys of a reader.
 *
 * Pins are lines "NAME KEY KEY -KEY…" in pack-keys of the user's configuration: for each pack, the
 * keys that were valid at its last check, and the retired ones with a minus. A line may be empty or
 * begin with #. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/error.h>

#include "auth/jwk.h"
#include "cli/packs_command.h"
#include "crypto/digest.h"

enum { KEY_FILE_MAX = 4096, PINS_FILE_MAX = 4 << 20 };

/* Build the path of a file in ~/.config/troupe, and create that directory. */
static bool own_path(const char *name, char ret_path[PATH_MAX])
{
    const char *base = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    int size;

    if (base != NULL && base[0] == '/')
        size = snprintf(ret_path, PATH_MAX, "%s", base);
    else if (home != NULL && home[0] == '/')
        size = snprintf(ret_path, PATH_MAX, "%s/.config", home);
    else
        return false;
    if (size < 0 || size > PATH_MAX - 64)
        return false;
    (void)mkdir(ret_path, 0700);
    strncat(ret_path, "/troupe", 16);
    (void)mkdir(ret_path, 0700);
    strncat(ret_path, "/", 2);
    strncat(ret_path, name, 32);
    return true;
}

/* ---- the publisher's key -------------------------------------------------------------------- */

static int create_key(const char *path)
{
    char text[CRYPTO_MULTIKEY_CHARS_MAX];
    struct crypto_key *key = NULL;
    struct buffer jwk = { 0 };
    int fd, rc = CLI_FAILED;

    if (crypto_key_generate(CRYPTO_EDDSA, &key) != 0)
        return packs_fail("The command is out of memory.");
    (void)crypto_multikey_encode(key, text);
    /* O_EXCL: never replace a key. If another process creates it first, use that one. */
    if (jwk_write(key, span_of(text), true, &jwk) != 0 || buffer_text(&jwk, "\n") != 0) {
        packs_fail("The command is out of memory.");
    } else {
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno == EEXIST) {
            rc = CLI_OK;
        } else if (fd < 0 || write(fd, jwk.bytes, jwk.size) != (ssize_t)jwk.size ||
                   fsync(fd) != 0) {
            packs_fail("The key cannot be written to %s: %s.", path, strerror(errno));
        } else {
            fprintf(stderr,
                "Created %s, the private key of %s.\nKeep it: new versions need its signature.\n",
                path, text);
            rc = CLI_OK;
        }
        if (fd >= 0)
            close(fd);
    }
    if (jwk.bytes != NULL)
        crypto_wipe(jwk.bytes, jwk.capacity);
    buffer_free(&jwk);
    crypto_key_unref(&key);
    return rc;
}

static int parse_publisher_key(const char *path, struct buffer *text, struct crypto_key **ret_key)
{
    struct json_doc doc = { 0 };
    const char *why = "it is not JSON";
    int rc = json_parse_copy(&doc, (struct span){ text->bytes, text->size }, JSON_UNIQUE_KEYS);

    if (rc == 0)
        rc = jwk_parse(json_root(&doc), JWK_PRIVATE, ret_key, &why);
    if (rc == 0 && crypto_key_algorithm(*ret_key) != CRYPTO_EDDSA) {
        crypto_key_unref(ret_key);
        why = "packs need an Ed25519 key, and this is another kind";
        rc = -1;
    }
    if (doc.copy.bytes != NULL)
        crypto_wipe(doc.copy.bytes, doc.copy.capacity);
    json_doc_free(&doc);
    return rc == 0 ? CLI_OK : packs_fail("%s is not a key file: %s.", path, why);
}

bool packs_key_is_there(const char *path)
{
    char own[PATH_MAX];

    if (path == NULL && !own_path("publisher.key", own))
        return false;
    return access(path == NULL ? own : path, F_OK) == 0;
}

int packs_key_try(const char *path)
{
    char own[PATH_MAX], folder[PATH_MAX];

    if (path == NULL && !own_path("publisher.key", own))
        return packs_fail("There is no home directory; name the key file with --key FILE.");
    if (path == NULL)
        path = own;
    snprintf(folder, sizeof folder, "%s", path);
    if (access(dirname(folder), W_OK | X_OK) == 0)
        return CLI_OK;
    return packs_fail("The key cannot be written to %s: %s.\nName another file with --key FILE.",
        path, strerror(errno));
}

int packs_key_load(const char *path, bool may_make, struct crypto_key **ret_key)
{
    struct buffer text = { 0 };
    struct stat status;
    char own[PATH_MAX];
    int rc;

    if (path == NULL) {
        if (!own_path("publisher.key", own))
            return packs_fail("There is no home directory; name the key file with --key FILE.");
        path = own;
    }
    if (stat(path, &status) != 0 && errno == ENOENT && may_make) {
        rc = create_key(path);
        if (rc != CLI_OK)
            return rc;
    }
    if (stat(path, &status) != 0)
        return packs_fail("The key in %s cannot be read: %s.", path, strerror(errno));
    if ((status.st_mode & 077) != 0)
        return packs_fail("Other users can read the private key in %s; run chmod 600 on it.", path);
    if (!packs_read(AT_FDCWD, path, KEY_FILE_MAX, &text))
        return packs_fail("The key in %s cannot be read: %s.", path, strerror(errno));
    rc = parse_publisher_key(path, &text, ret_key);
    crypto_wipe(text.bytes, text.capacity);
    buffer_free(&text);
    return rc;
}

/* ---- pins ----------------------------------------------------------------------------------- */

static bool pins_path(const char *given, char ret_path[PATH_MAX])
{
    if (given == NULL)
        return own_path("pack-keys", ret_path);
    return snprintf(ret_path, PATH_MAX, "%s", given) < PATH_MAX;
}

void packs_pins_show(const char *path, char *ret_text, size_t text_size)
{
    const char *home = getenv("HOME");
    size_t size = home == NULL ? 0 : strlen(home);
    char file[PATH_MAX] = "pack-keys";

    (void)pins_path(path, file);
    if (size > 1 && strncmp(file, home, size) == 0 && file[size] == '/')
        snprintf(ret_text, text_size, "~%s", file + size);
    else
        snprintf(ret_text, text_size, "%s", file);
}

static bool next_line(const struct buffer *text, size_t *at, struct span *ret_line)
{
    const char *end;

    if (*at >= text->size)
        return false;
    end = memchr(text->bytes + *at, '\n', text->size - *at);
    *ret_line = (struct span){ text->bytes + *at,
        end == NULL ? text->size - *at : (size_t)(end - text->bytes) - *at };
    *at += ret_line->size + 1;
    return true;
}

/* Take the next word off *text. Spaces and tabs separate words; empty at the end. */
static struct span next_word(struct span *text)
{
    static const char blanks[] = { ' ', '\t', '\r' };
    size_t start = 0, end;
    struct span word;

    while (start < text->size && memchr(blanks, text->at[start], sizeof blanks) != NULL)
        start++;
    end = start;
    while (end < text->size && memchr(blanks, text->at[end], sizeof blanks) == NULL)
        end++;
    word = (struct span){ text->at + start, end - start };
    *text = (struct span){ text->at + end, text->size - end };
    return word;
}

/* True if the line is about the pack. */
static bool is_line_of(struct span line, const char *pack)
{
    return span_is(next_word(&line), pack);
}

/* Add the keys of a line "NAME KEY KEY -KEY…". */
static int add_keys(struct span line, struct manifest_keys *keys)
{
    int rc = manifest_is_pack(next_word(&line)) ? 0 : TR_EINVAL;

    for (struct span word; rc == 0 && (word = next_word(&line)).size > 0;)
        rc = word.at[0] == '-'
                 ? manifest_keys_retire(keys, (struct span){ word.at + 1, word.size - 1 })
                 : manifest_keys_add(keys, word);
    return rc == 0 && keys->count == 0 ? TR_EINVAL : rc;
}

/* Read the file; no file is an empty one. Every line must be well-formed, also those of other packs:
 * if a pin were ignored, the command would trust the key that the server sends. */
static int pins_read(const char *path, char ret_file[PATH_MAX], struct buffer *ret_text)
{
    struct span line, rest, first;
    size_t at = 0;

    if (!pins_path(path, ret_file))
        return packs_fail(
            "There is no home directory; name the file of pinned keys with --pins FILE.");
    if (!packs_read(AT_FDCWD, ret_file, PINS_FILE_MAX, ret_text)) {
        if (errno == ENOENT)
            return CLI_OK;
        return packs_fail("The pinned keys in %s cannot be read: %s.", ret_file, strerror(errno));
    }
    for (size_t number = 1; next_line(ret_text, &at, &line); number++) {
        struct manifest_keys keys = { 0 };

        rest = line;
        first = next_word(&rest);
        if (first.size == 0 || first.at[0] == '#' || add_keys(line, &keys) == 0)
            continue;
        buffer_free(ret_text);
        return packs_fail("%s:%zu is not \"NAME KEY...\", the name of a pack and its Ed25519 keys; "
                          "correct the line, or remove it.",
            ret_file, number);
    }
    return CLI_OK;
}

int packs_pins_load(const char *path, const char *pack, struct manifest_keys *ret_keys)
{
    struct buffer text = { 0 };
    struct span line;
    char file[PATH_MAX];
    size_t at = 0;
    int rc = pins_read(path, file, &text);

    *ret_keys = (struct manifest_keys){ 0 };
    if (rc != CLI_OK)
        return rc;
    while (rc == 0 && next_line(&text, &at, &line))
        if (is_line_of(line, pack))
            rc = add_keys(line, ret_keys);
    buffer_free(&text);
    if (rc != 0) /* each line is right, but they have more than MANIFEST_KEYS_MAX keys together */
        return packs_fail("%s: The lines of %s have more than %d keys; remove some.", file, pack,
            MANIFEST_KEYS_MAX);
    return CLI_OK;
}

int packs_pins_save(const char *path, const char *pack, const struct manifest_keys *keys)
{
    struct buffer text = { 0 }, out = { 0 };
    struct span line;
    char file[PATH_MAX];
    size_t at = 0;
    bool is_saved;
    int rc = pins_read(path, file, &text);

    if (rc != CLI_OK)
        return rc;
    while (next_line(&text, &at, &line)) {
        if (is_line_of(line, pack) || line.size == 0)
            continue;
        buffer_span(&out, line);
        buffer_text(&out, "\n");
    }
    buffer_text(&out, pack);
    for (size_t i = 0; i < keys->count; i++)
        buffer_format(&out, " %s", keys->keys[i]);
    for (size_t i = 0; i < keys->retired_count; i++)
        buffer_format(&out, " -%s", keys->retired[i]);
    buffer_text(&out, "\n");
    is_saved = out.failed == 0 && (span_equal((struct span){ text.bytes, text.size },
                                       (struct span){ out.bytes, out.size }) ||
                                      packs_write(file, 0600, out.bytes, out.size));
    buffer_free(&text);
    buffer_free(&out);
    return is_saved
               ? CLI_OK
               : packs_fail("The pinned keys cannot be written to %s: %s.", file, strerror(errno));
}

/* ---- the signer -------------------------------------------------------------------------- */

bool packs_signer_explain(const struct packs_arguments *arguments, const struct json *document,
    const struct manifest_keys *keys, char ret_text[PACKS_SIGNER_SIZE])
{
    char trusted[MANIFEST_KEYS_MAX * (CRYPTO_MULTIKEY_CHARS_MAX + 4)] = "", place[PATH_MAX];
    struct manifest manifest;
    struct span text;
    size_t size = 0;

    if (!json_string(json_get(document, "manifest"), &text) ||
        manifest_read(text, &manifest, NULL) != 0 || keys->count == 0 ||
        manifest_keys_has(keys, manifest.key))
        return false;
    for (size_t i = 0; i < keys->retired_count; i++)
        if (strcmp(keys->retired[i], manifest.key) == 0) { /* do not suggest --trust for it */
            snprintf(ret_text, PACKS_SIGNER_SIZE,
                "is signed by %s, a retired key that is not trusted any more", manifest.key);
            return true;
        }
    for (size_t i = 0; i < keys->count; i++)
        size += (size_t)snprintf(
            trusted + size, sizeof trusted - size, "%s%s", i == 0 ? "" : " or ", keys->keys[i]);
    packs_pins_show(arguments->pins, place, sizeof place);
    if (arguments->trust != NULL)
        snprintf(ret_text, PACKS_SIGNER_SIZE, "is signed by %s, but --trust names %s", manifest.key,
            trusted);
    else
        snprintf(ret_text, PACKS_SIGNER_SIZE,
            "is signed by %s, but %s pins %s for it. If the publisher told you of the new key, use "
            "--trust KEY, or --pins FILE with other keys",
            manifest.key, place, trusted);
    return true;
}
