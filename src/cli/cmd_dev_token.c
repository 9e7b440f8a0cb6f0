/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_dev_token.c: `troupe dev-token`: print tokens for a developer's first requests. The identity is
 * a did:key in a file, so the developer registers nowhere. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/env.h>

#include "auth/did.h"
#include "auth/jwk.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "cli/cli.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "crypto/key.h"
#include "json/json.h"

enum { COUNT_MAX = 10000, LIFETIME_S = 60, KEY_FILE_BYTES_MAX = 4096 };

struct arguments {
    const char *key;
    const char *lxm;
    const char *aud;
    uint64_t count;
};

/* ---- the key file ---------------------------------------------------------------------------- */

/* Print "troupe dev-token: FILE: PROBLEM." to stderr. Returns CLI_FAILED. */
static int fail_key_file(const char *path, const char *problem)
{
    fprintf(stderr, "troupe dev-token: %s: %s.\n", path, problem);
    return CLI_FAILED;
}

static int parse_dev_key(const char *path, char *text, size_t size, struct crypto_key **ret_key)
{
    struct json_doc doc = { 0 };
    const char *why = NULL;
    char sentence[160];
    int rc = json_parse_copy(&doc, (struct span){ text, size }, JSON_UNIQUE_KEYS);

    if (rc != 0)
        snprintf(sentence, sizeof sentence, "The file is not a key: byte %zu: %s", doc.error.offset,
            doc.error.text == NULL ? tr_error_text(rc) : doc.error.text);
    else {
        rc = jwk_parse(json_root(&doc), JWK_PRIVATE, ret_key, &why);
        if (rc != 0)
            snprintf(sentence, sizeof sentence, "The file is not a key: %s", why);
        else if (crypto_key_algorithm(*ret_key) == CRYPTO_HS256) {
            crypto_key_unref(ret_key);
            rc = TR_EUNSUPPORTED;
            snprintf(
                sentence, sizeof sentence, "The file holds a secret (kty oct), not a private key");
        }
    }
    if (doc.copy.bytes != NULL)
        crypto_wipe(doc.copy.bytes, doc.copy.capacity);
    json_doc_free(&doc);
    return rc == 0 ? CLI_OK : fail_key_file(path, sentence);
}

/* Read a key from `fd` and close it. */
static int read_key(const char *path, int fd, struct crypto_key **ret_key)
{
    char text[KEY_FILE_BYTES_MAX];
    struct stat info;
    size_t size = 0;
    ssize_t got = 0;
    int rc;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return fail_key_file(path, "The file is not a regular file");
    }
    while (size < sizeof text && (got = read(fd, text + size, sizeof text - size)) > 0)
        size += (size_t)got;
    close(fd);
    if (got < 0)
        return fail_key_file(path, strerror(errno));
    if (size == sizeof text)
        return fail_key_file(path, "The file is larger than 4,096 bytes, so it is no key");
    rc = parse_dev_key(path, text, size, ret_key);
    crypto_wipe(text, sizeof text);
    if (rc == CLI_OK && (info.st_mode & 077) != 0) {
        crypto_key_unref(ret_key);
        return fail_key_file(path, "Other users can read this private key; run chmod 600 on it");
    }
    return rc;
}

static int write_whole(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, bytes, size);

        if (done < 0)
            return -1;
        bytes += done;
        size -= (size_t)done;
    }
    return fsync(fd);
}

/* Create the file atomically: write a temporary file, then link it, which never replaces a file. Another
 * process sees no file or the complete one. */
static int write_key_file(const char *path, const char *bytes, size_t size)
{
    char random[8], suffix[16], *temporary;
    int fd, rc, error;

    crypto_random_fill(random, sizeof random);
    if (asprintf(&temporary, "%s.%.*s", path, (int)crypto_hex_encode(random, sizeof random, suffix),
            suffix) < 0)
        return fail_key_file(path, "The command is out of memory");
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        error = errno;
        free(temporary);
        return fail_key_file(path, error == ENOENT
                                       ? "The folder of this file does not exist; create it first"
                                       : strerror(error));
    }
    rc = write_whole(fd, bytes, size);
    error = errno;
    if (close(fd) != 0 && rc == 0) {
        rc = -1;
        error = errno;
    }
    if (rc == 0 && link(temporary, path) != 0) {
        rc = -1;
        error = errno;
    }
    unlink(temporary);
    free(temporary);
    if (rc == 0)
        return CLI_OK;
    return error == EEXIST
               ? CLI_OK
               : fail_key_file(path, strerror(error)); /* another process created it first */
}

static int create_key_file(const char *path)
{
    struct buffer jwk = { 0 };
    struct crypto_key *key = NULL;
    char did[DID_KEY_CHARS_MAX];
    int rc;

    rc = crypto_key_generate(CRYPTO_ES256K, &key);
    if (rc != 0)
        return fail_key_file(path, tr_error_text(rc));
    did_key_format(key, did);
    rc = jwk_write(key, span_of(did), true, &jwk);
    buffer_text(&jwk, "\n");
    rc = rc != 0 || jwk.failed != 0 ? fail_key_file(path, "The command is out of memory")
                                    : write_key_file(path, jwk.bytes, jwk.size);
    if (jwk.bytes != NULL)
        crypto_wipe(jwk.bytes, jwk.capacity);
    buffer_free(&jwk);
    crypto_key_unref(&key);
    return rc;
}

static int load_key(const char *path, struct crypto_key **ret_key)
{
    bool is_new = false;
    int fd, rc;

    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        rc = create_key_file(path);
        if (rc != CLI_OK)
            return rc;
        is_new = true;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    }
    if (fd < 0)
        return fail_key_file(path, strerror(errno));
    rc = read_key(path, fd, ret_key);
    if (rc == CLI_OK && is_new) {
        char did[DID_KEY_CHARS_MAX];

        did_key_format(*ret_key, did);
        fprintf(stderr, "troupe dev-token: Created %s, the private key of %s.\n", path, did);
    }
    return rc;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int print_tokens(const struct arguments *arguments, const struct crypto_key *key)
{
    const struct tr_env *env = tr_env_real();
    struct buffer token = { 0 };
    char did[DID_KEY_CHARS_MAX], jti[32];
    uint8_t random[16];
    int rc = 0;

    did_key_format(key, did);
    for (uint64_t i = 0; i < arguments->count && rc == 0; i++) {
        const int64_t now_s = (int64_t)(env->wall_ns(env->data) / 1000000000);

        crypto_random_fill(random, sizeof random);
        crypto_hex_encode(random, sizeof random, jti);
        buffer_clear(&token);
        rc = jwt_sign_claims(key, (struct span){ NULL, 0 },
            &(struct jwt_claims){
                .iss = span_of(did),
                .aud = span_of(arguments->aud),
                .lxm = span_of(arguments->lxm),
                .jti = { jti, sizeof jti },
                .iat_s = now_s,
                .nbf_s = -1,
                .exp_s = now_s + LIFETIME_S,
            },
            &token);
        if (rc == 0)
            printf("%.*s\n", (int)token.size, token.bytes);
    }
    buffer_free(&token);
    if (rc != 0) {
        fprintf(
            stderr, "troupe dev-token: The token could not be signed: %s.\n", tr_error_text(rc));
        return CLI_FAILED;
    }
    if (fflush(stdout) != 0) {
        fprintf(
            stderr, "troupe dev-token: The tokens could not be written: %s.\n", strerror(errno));
        return CLI_FAILED;
    }
    return CLI_OK;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* True for a method name of AT Protocol: a reversed domain and a name, like social.example.sendMessage. */
static bool is_nsid(const char *text)
{
    size_t segments = 0, size = 0;
    const char *at = text, *last = text;

    if (strlen(text) > 317)
        return false;
    for (;; at++) {
        if (is_alnum(*at) || (*at == '-' && size > 0)) {
            size++;
            continue;
        }
        if (size == 0 || size > 63 || at[-1] == '-' || (*at != '.' && *at != '\0'))
            return false;
        segments++;
        if (*at == '\0')
            break;
        size = 0;
        last = at + 1;
    }
    return segments >= 3 && (text[0] < '0' || text[0] > '9') && (*last < '0' || *last > '9') &&
           strchr(last, '-') == NULL;
}

/* True for a DID, with or without the id of a service after '#'. */
static bool is_audience(const char *text)
{
    const char *hash = strchr(text, '#');
    struct did did;

    if (hash == NULL)
        return did_parse(span_of(text), &did) == DID_OK;
    if (hash[1] == '\0')
        return false;
    for (const char *at = hash + 1; *at != '\0'; at++)
        if (!is_alnum(*at) && *at != '-' && *at != '_')
            return false;
    return did_parse((struct span){ text, (size_t)(hash - text) }, &did) == DID_OK;
}

/* Return the value of option `name` at argv[*i], after '=' or in the next argument: NULL if argv[*i] is
 * another option, "" without a value. */
static const char *option_value(const char *name, int argc, char **argv, int *i)
{
    size_t size = strlen(name);

    if (strncmp(argv[*i], name, size) != 0)
        return NULL;
    if (argv[*i][size] == '=')
        return argv[*i] + size + 1;
    if (argv[*i][size] != '\0')
        return NULL;
    return *i + 1 < argc && argv[*i + 1] != NULL ? argv[++*i] : "";
}

static int parse_one(
    const struct cli_command *command, struct arguments *arguments, int argc, char **argv, int *i)
{
    const char *name = argv[*i], *value;

    if ((value = option_value("--key", argc, argv, i)) != NULL)
        arguments->key = value;
    else if ((value = option_value("--lxm", argc, argv, i)) != NULL)
        arguments->lxm = value;
    else if ((value = option_value("--aud", argc, argv, i)) != NULL)
        arguments->aud = value;
    else if ((value = option_value("--count", argc, argv, i)) != NULL) {
        if (*value != '\0' && (!span_u64(span_of(value), &arguments->count) ||
                                  arguments->count == 0 || arguments->count > COUNT_MAX))
            return cli_wrong(command, "--count is a number from 1 to 10,000, not", value);
    } else
        return cli_wrong(command,
            name[0] == '-' ? "There is no option" : "There is one argument too many:", name);
    return *value != '\0' ? CLI_OK : cli_wrong(command, "There is no value after", name);
}

static int dev_token_run(const struct cli_command *command, int argc, char **argv)
{
    struct arguments arguments = { .aud = "did:web:localhost", .count = 1 };
    struct crypto_key *key = NULL;
    int rc;

    for (int i = 1; i < argc; i++) {
        if (cli_is_help(argv[i])) {
            cli_help(command);
            return CLI_OK;
        }
        rc = parse_one(command, &arguments, argc, argv, &i);
        if (rc != CLI_OK)
            return rc;
    }
    if (arguments.key == NULL)
        return cli_wrong(command, "--key FILE is missing; it names the file of the identity", NULL);
    if (arguments.lxm == NULL)
        return cli_wrong(command, "--lxm NSID is missing; it names the method of the token", NULL);
    if (!is_nsid(arguments.lxm))
        return cli_wrong(
            command, "--lxm is a method like com.example.group.send, not", arguments.lxm);
    if (!is_audience(arguments.aud))
        return cli_wrong(command, "--aud is a DID like did:web:example.com, not", arguments.aud);
    rc = load_key(arguments.key, &key);
    if (rc == CLI_OK)
        rc = print_tokens(&arguments, key);
    crypto_key_unref(&key);
    return rc;
}

const struct cli_command cmd_dev_token = {
    .name = "dev-token",
    .arguments = "--key FILE --lxm NSID [--aud DID] [--count N]",
    .summary = "print tokens for requests to a server that runs with --dev",
    .help =
        "The identity is a did:key. The command creates FILE with its private key if the file "
        "does\n"
        "not exist; only you can read it. Each token is valid for one method and one minute. A\n"
        "request that changes data uses its token up.\n"
        "\n"
        "  --key FILE     file of the identity, a JSON Web Key\n"
        "  --lxm NSID     method of the token\n"
        "  --aud DID      service of the token (did:web:localhost, as in `troupe serve --dev`)\n"
        "  --count N      number of tokens, one per line (1)\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe dev-token --key dev.key --lxm com.example.group.send\n"
        "  curl -H \"Authorization: Bearer $(troupe dev-token --key dev.key --lxm "
        "com.example.group.list)\" \\\n"
        "      http://localhost:8080/xrpc/com.example.group.list\n",
    .run = dev_token_run,
};
