/* SPDX-License-Identifier: Apache-2.0 */
/* packs_command.h: what the parts of `troupe packs` share: arguments, requests, progress, keys. */
#ifndef CLI_PACKS_COMMAND_H
#define CLI_PACKS_COMMAND_H

#include <curl/curl.h>
#include <limits.h>

#include "cli/admin_client.h"
#include "crypto/key.h"
#include "manifest/manifest.h"

struct packs_arguments {
    const struct cli_command *command;
    const char *server; /* URL; NULL: found by the admin listener, or the settings */
    const char *name, *version, *key, *type, *out, *trust, *pins, *add, *retire, *encoding;
    bool is_unsigned, no_publish, as_json, quiet;
    struct options options;
    const char *word; /* what stands behind the action: FILE, NAME, DIR; NULL: nothing */
};

/* packs_push.c, packs_get.c, packs_verify.c, packs_rotate.c: exit statuses. */
int packs_push(const struct packs_arguments *arguments);
int packs_get(const struct packs_arguments *arguments);
int packs_verify(const struct packs_arguments *arguments);
int packs_list(const struct packs_arguments *arguments);
int packs_rotate(const struct packs_arguments *arguments);

/* "troupe packs: ..." to stderr, printf form, one line or more. Returns CLI_FAILED. */
int packs_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "... 1 to 128 of a-z ...: 'Core X' is not that", for a name or arguments->version that is none;
 * for --trust if it is no key, else CLI_OK. Return CLI_USAGE. */
int packs_wrong_pack(const struct packs_arguments *arguments, const char *what, const char *name);
int packs_wrong_version(const struct packs_arguments *arguments);
int packs_check_trust(const struct packs_arguments *arguments);
/* A line about a server that is away (status 0) or busy, before the first of the tries that follow
 * for PACKS_TRY_S; none if --quiet. */
void packs_say_away(const struct packs_arguments *arguments, long status);
enum { PACKS_TRIES = 8, PACKS_TRY_S = 30 /* 1 + 2 + 3 + 4 + 5 + 5 + 5 + 5 */ };

/* ---- requests: packs_web.c ------------------------------------------------------------------ */

enum { PACKS_URL_SIZE = 1024, PACKS_ANSWER_MAX = 16 << 20 };

struct packs_web {
    CURL *curl;
    char base[PACKS_URL_SIZE];   /* http://HOST:PORT, without a slash at its end */
    char socket[PACKS_URL_SIZE]; /* path of a unix socket; "": none */
    struct curl_slist *headers;  /* of every request */
    char problem[CURL_ERROR_SIZE];
};
struct packs_answer {
    long status; /* 0: nobody answered; web->problem says why */
    struct buffer body;
    uint64_t offset; /* Upload-Offset, or UINT64_MAX */
};

/* The admin listener, with its token. False: it was said why. */
bool packs_web_open_admin(struct packs_web *web, const struct packs_arguments *arguments);
/* The public one. */
bool packs_web_open_public(struct packs_web *web, const struct packs_arguments *arguments);
void packs_web_close(struct packs_web *web);
/* Where the public listener is, for who prints it. False: nobody knows. */
bool packs_web_public_base(
    const struct packs_arguments *arguments, char *ret_base, size_t base_size);

/* Fill in URL, socket and headers of a transfer; the caller sets the rest. `more` may be NULL. */
void packs_web_prepare(struct packs_web *web, const char *path, struct curl_slist *more);
/* One request with a short body (NULL: none) and a short answer, which is emptied first. */
long packs_web_ask(struct packs_web *web, const char *method, const char *path, const char *body,
    struct packs_answer *answer);
void packs_answer_free(struct packs_answer *answer);
/* "what: the server answered 409: message", or that nobody answers. Returns CLI_FAILED. */
int packs_web_complain(
    const struct packs_web *web, const char *what, const struct packs_answer *answer);
/* The "error" of the answer is this label. */
bool packs_answer_is(const struct packs_answer *answer, const char *label);

/* ---- progress: on a terminal alone ---------------------------------------------------------- */

struct packs_progress {
    const char *what;
    uint64_t total;
    uint64_t begun_at; /* bytes that were there before */
    uint64_t begun_ns, shown_ns;
    bool is_shown;
};
/* In its place, before there is anything to count. */
void packs_progress_wait(struct packs_progress *progress, const char *text);
void packs_progress_begin(
    struct packs_progress *progress, const char *what, uint64_t at, uint64_t total, bool quiet);
void packs_progress_show(struct packs_progress *progress, uint64_t at);
void packs_progress_end(struct packs_progress *progress); /* the line is gone */

/* ---- keys: packs_key.c ---------------------------------------------------------------------- */

/* The private key in a file; made, readable by its owner alone, if it is not there and `may_make`.
 * `path` NULL is publisher.key in the user's configuration. CLI_OK, or CLI_FAILED and it was said.
 */
int packs_key_load(const char *path, bool may_make, struct crypto_key **ret_key);
/* Is there such a file? Could one be made? CLI_OK, or CLI_FAILED and it was said. */
bool packs_key_is_there(const char *path);
int packs_key_try(const char *path);
/* The file that the keys trusted for packs are in, as it may be shown: ~ for the home. */
void packs_pins_show(const char *path, char *ret_text, size_t text_size);
/* Is a manifest refused because of who signed it? Then the text, one line, begins with "is signed
 * by KEY" and says who is trusted, where that is written, and what to do. The keys in it are whole.
 */
enum { PACKS_SIGNER_SIZE = PATH_MAX + (MANIFEST_KEYS_MAX + 4) * CRYPTO_MULTIKEY_CHARS_MAX + 256 };
bool packs_signer_explain(const struct packs_arguments *arguments, const struct json *document,
    const struct manifest_keys *keys, char ret_text[PACKS_SIGNER_SIZE]);
/* The keys that were trusted for a pack before. */
int packs_pins_load(const char *path, const char *pack, struct manifest_keys *ret_keys);
int packs_pins_save(const char *path, const char *pack, const struct manifest_keys *keys);

/* ---- files: packs_file.c -------------------------------------------------------------------- */

/* Reads the descriptor to its end. False: errno says why. */
bool packs_hash(int fd, struct packs_progress *progress, char ret_hex[65], uint64_t *ret_size);
/* A file as a whole, terminated; false if it cannot be read or is larger. The caller frees it. */
bool packs_read(int folder, const char *path, size_t size_max, struct buffer *ret_text);
/* Beside it, synced, then renamed over it. False: errno says why. */
bool packs_write(const char *path, unsigned mode, const void *bytes, size_t size);

#endif
