/* SPDX-License-Identifier: Apache-2.0 */
/* packs_command.h: the shared parts of `troupe packs`: arguments, requests, progress, keys, files. */
#ifndef CLI_PACKS_COMMAND_H
#define CLI_PACKS_COMMAND_H

#include <curl/curl.h>
#include <limits.h>

#include "cli/admin_client.h"
#include "crypto/key.h"
#include "manifest/manifest.h"

struct packs_arguments {
    const struct cli_command *command;
    const char *server; /* URL; NULL: the admin listener names it */
    const char *name, *version, *key, *type, *out, *trust, *pins, *add, *retire, *encoding;
    bool is_unsigned, no_publish, as_json, quiet;
    struct options options;
    const char *word; /* the word after the action: FILE, NAME or DIR; NULL: none */
};

/* The actions. Each returns an exit status. */
int packs_push(const struct packs_arguments *arguments);
int packs_get(const struct packs_arguments *arguments);
int packs_verify(const struct packs_arguments *arguments);
int packs_list(const struct packs_arguments *arguments);
int packs_rotate(const struct packs_arguments *arguments);

/* Print "troupe packs: TEXT" to stderr, one line or more. Returns CLI_FAILED. */
int packs_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print that a name, or arguments->version, is malformed. Return CLI_USAGE. */
int packs_wrong_pack(const struct packs_arguments *arguments, const char *what, const char *name);
int packs_wrong_version(const struct packs_arguments *arguments);
/* Return CLI_OK, or CLI_USAGE and a message if --trust is not a key. */
int packs_check_trust(const struct packs_arguments *arguments);
/* Print that the server is unreachable (status 0) or busy, before retries of PACKS_TRY_S in all. Prints
 * nothing with --quiet. */
void packs_print_retry(const struct packs_arguments *arguments, long status);
enum { PACKS_TRIES = 8, PACKS_TRY_S = 30 /* 1 + 2 + 3 + 4 + 5 + 5 + 5 + 5 */ };

/* ---- requests: packs_web.c ------------------------------------------------------------------ */

enum { PACKS_URL_SIZE = 1024, PACKS_ANSWER_MAX = 16 << 20 };

struct packs_web {
    CURL *curl;
    char base[PACKS_URL_SIZE];   /* http://HOST:PORT, without a slash at its end */
    char socket[PACKS_URL_SIZE]; /* path of a unix socket; "": none */
    struct curl_slist *headers;  /* sent with every request */
    char problem[CURL_ERROR_SIZE];
};
struct packs_answer {
    long status; /* 0: no answer; web->problem has the reason */
    struct buffer body;
    uint64_t offset; /* Upload-Offset, or UINT64_MAX */
};

/* Open the admin listener, with its token. False: the reason is on stderr. */
bool packs_web_open_admin(struct packs_web *web, const struct packs_arguments *arguments);
/* Open the public listener. False: the reason is on stderr. */
bool packs_web_open_public(struct packs_web *web, const struct packs_arguments *arguments);
void packs_web_close(struct packs_web *web);
/* Find the URL of the public listener. False: the reason is on stderr. */
bool packs_web_public_base(
    const struct packs_arguments *arguments, char *ret_base, size_t base_size);

/* Set URL, socket and headers of a transfer; the caller sets the other options. `more` may be NULL. */
void packs_web_prepare(struct packs_web *web, const char *path, struct curl_slist *more);
/* Send one request with a short body (NULL: none) and read a short answer into *answer. Returns the
 * status, 0 without an answer. */
long packs_web_ask(struct packs_web *web, const char *method, const char *path, const char *body,
    struct packs_answer *answer);
void packs_answer_fini(struct packs_answer *answer);
/* Print "WHAT: The server answered 409: MESSAGE", or that no server answers. Returns CLI_FAILED. */
int packs_web_complain(
    const struct packs_web *web, const char *what, const struct packs_answer *answer);
/* True if the "error" of the answer is this label. */
bool packs_answer_is(const struct packs_answer *answer, const char *label);

/* ---- progress, on a terminal only ---------------------------------------------------------- */

struct packs_progress {
    const char *what;
    uint64_t total;
    uint64_t start_at; /* bytes present at the start */
    _Atomic uint64_t at;
    uint64_t start_ns, shown_ns;
    bool is_shown;
};
/* Show a text before there are bytes to count. */
void packs_progress_wait(struct packs_progress *progress, const char *text);
void packs_progress_start(
    struct packs_progress *progress, const char *what, uint64_t at, uint64_t total, bool quiet);
/* From now on Ctrl-C prints how far the transfer came, and ends the command. `progress` stays in place
 * until the process ends. */
void packs_progress_stop_on_signal(struct packs_progress *progress);
void packs_progress_show(struct packs_progress *progress, uint64_t at);
/* Remove the line. */
void packs_progress_end(struct packs_progress *progress);

/* ---- keys: packs_key.c ---------------------------------------------------------------------- */

/* Load a private key. With `may_make`, create a missing file that only its owner can read. `path` NULL
 * is publisher.key in the user's configuration. CLI_OK, or CLI_FAILED and a message. */
int packs_key_load(const char *path, bool may_make, struct crypto_key **ret_key);
/* True if the key file exists. */
bool packs_key_is_there(const char *path);
/* Return CLI_OK if the key file can be created, else CLI_FAILED and a message. */
int packs_key_try(const char *path);
/* Write the path of the file of pinned keys, with ~ for the home directory. */
void packs_pins_show(const char *path, char *ret_text, size_t text_size);
/* True if the signer of a manifest is not trusted. The text, one line, begins with "is signed by KEY"
 * and names the trusted keys, their file and what to do. */
enum { PACKS_SIGNER_SIZE = PATH_MAX + (MANIFEST_KEYS_MAX + 4) * CRYPTO_MULTIKEY_CHARS_MAX + 256 };
bool packs_signer_explain(const struct packs_arguments *arguments, const struct json *document,
    const struct manifest_keys *keys, char ret_text[PACKS_SIGNER_SIZE]);
/* Load and save the pinned keys of a pack. CLI_OK, or CLI_FAILED and a message. */
int packs_pins_load(const char *path, const char *pack, struct manifest_keys *ret_keys);
int packs_pins_save(const char *path, const char *pack, const struct manifest_keys *keys);

/* ---- files: packs_file.c -------------------------------------------------------------------- */

/* Hash a file to its end. False: errno has the reason. */
bool packs_hash(int fd, struct packs_progress *progress, char ret_hex[65], uint64_t *ret_size);
/* Read a whole file and end it with a zero. False: it cannot be read or is larger. The caller frees it. */
bool packs_read(int folder, const char *path, size_t size_max, struct buffer *ret_text);
/* Replace a file atomically: write and sync a temporary file, then rename it. False: errno has the
 * reason. */
bool packs_write(const char *path, unsigned mode, const void *bytes, size_t size);

#endif
