/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: every setting of the program, from one table (config_table.c). A value comes from the table,
 * a file, the environment or a flag. The later of these wins, and each value remembers its origin.
 *
 *     [server]                                  TROUPE_SERVER_LISTEN=127.0.0.1:80
 *     listen = 127.0.0.1:8080                   --set server.listen=127.0.0.1:80
 *
 * An unknown key, a bad value or a key that is set twice is an error, which names its place and the
 * allowed values. A configuration with an error is not used at all. */
#ifndef OPS_CONFIG_H
#define OPS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

enum config_kind {
    CONFIG_TEXT,     /* one of `choices`, if there are any */
    CONFIG_PATH,     /* a relative path starts at the current directory */
    CONFIG_INT,      /* decimal digits */
    CONFIG_BYTES,    /* 4096, 64KiB, 10MiB, 1GiB */
    CONFIG_DURATION, /* 250ms, 10s, 5m, 1h; as a number: nanoseconds */
    CONFIG_BOOL,     /* on or off; as a number: 1 or 0 */
    CONFIG_LIST,     /* words separated by commas; in a file also by indented lines */
    CONFIG_PERCENT,  /* 10% or 0.25%; as a number: hundredths of a percent */
};

enum config_key {
    CONFIG_SERVER_LISTEN,
    CONFIG_SERVER_DATA,
    CONFIG_SERVER_WORKERS,
    CONFIG_SERVER_BLOCKING_THREADS,
    CONFIG_SERVER_TLS_CERTIFICATE,
    CONFIG_SERVER_TLS_KEY,
    CONFIG_SERVER_TRUSTED_PROXIES,
    CONFIG_SERVER_DRAIN_DELAY,
    CONFIG_SERVER_DRAIN_TIMEOUT,
    CONFIG_SERVER_USER,
    CONFIG_SERVER_SANDBOX,
    CONFIG_SERVER_DEV,
    CONFIG_ADMIN_LISTEN,
    CONFIG_ADMIN_TOKEN_FILE,
    CONFIG_SQL_URL,
    CONFIG_SQL_WRITERS,
    CONFIG_SQL_READERS,
    CONFIG_SQL_BATCH_MAX,
    CONFIG_SQL_QUEUE_MAX,
    CONFIG_SQL_AWAY_TIMEOUT,
    CONFIG_SQL_MIGRATE,
    CONFIG_HTTP_ACCESS_LOG,
    CONFIG_HTTP_CONNECTIONS_MAX,
    CONFIG_HTTP_IN_FLIGHT_MAX,
    CONFIG_HTTP_WAIT_TARGET,
    CONFIG_HTTP_PIPELINE_MAX,
    CONFIG_HTTP_HEADER_SIZE_MAX,
    CONFIG_HTTP_HEADER_COUNT_MAX,
    CONFIG_HTTP_OUTPUT_MAX,
    CONFIG_HTTP_HEADER_TIMEOUT,
    CONFIG_HTTP_BODY_RATE_MIN,
    CONFIG_HTTP_IDLE_TIMEOUT,
    CONFIG_HTTP_REQUEST_TIMEOUT,
    CONFIG_AUTH_SERVICE_DID,
    CONFIG_AUTH_SERVICE_FRAGMENT,
    CONFIG_AUTH_PLC_DIRECTORY,
    CONFIG_AUTH_PROVIDERS,
    CONFIG_AUTH_ADMINS,
    CONFIG_AUTH_ALLOW_PRIVATE,
    CONFIG_AUTH_TOKEN_LIFETIME_MAX,
    CONFIG_AUTH_TOKENS_MAX,
    CONFIG_AUTH_KEY_LIFE,
    CONFIG_AUTH_KEY_STALE,
    CONFIG_AUTH_RATE_PER_DID,
    CONFIG_AUTH_BURST_PER_DID,
    CONFIG_AUTH_RATE_PER_ADDRESS,
    CONFIG_AUTH_BURST_PER_ADDRESS,
    CONFIG_AUTH_SIGN_INS_PER_MINUTE,
    CONFIG_AUTH_SIGN_IN_BURST,
    CONFIG_DELIVERY_MODE,
    CONFIG_DELIVERY_PUSH_URL,
    CONFIG_DELIVERY_PUSH_INTERVAL,
    CONFIG_DELIVERY_PUSH_ALLOW_PRIVATE,
    CONFIG_PACKS_QUOTA,
    CONFIG_PACKS_HASHES_MAX,
    CONFIG_PACKS_DOWNLOADS_PER_USER,
    CONFIG_PACKS_DOWNLOADS_PER_ADDRESS,
    CONFIG_PACKS_REQUESTS_PER_ADDRESS,
    CONFIG_PACKS_RATE_MAX,
    CONFIG_LOG_LEVEL,
    CONFIG_LOG_LEVELS,
    CONFIG_LOG_FORMAT,
    CONFIG_TRACE_URL,
    CONFIG_TRACE_SAMPLE,
    CONFIG_TRACE_QUEUE_MAX,
    CONFIG_TRACE_BATCH_MAX,
    CONFIG_TRACE_INTERVAL,
    CONFIG_KEYS,
};

struct config_setting {
    const char *key; /* "section.name" */
    enum config_kind kind;
    const char *value;   /* the default, as an operator would write it */
    uint64_t min;        /* of the number; unused for lists and text */
    uint64_t max;        /* 0 is none */
    const char *choices; /* "on|off": TEXT only; NULL is any */
    bool is_reloadable;  /* SIGHUP applies it */
    bool is_secret;      /* never shown whole */
    const char *help;    /* a sentence without its full stop */
};
extern const struct config_setting config_settings[CONFIG_KEYS];

enum config_origin { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_FLAG };
const char *config_origin_text(enum config_origin origin);

struct config_value {
    char *text; /* owned, terminated */
    uint64_t number;
    enum config_origin origin;
    char *place; /* "troupe.conf:12", "TROUPE_SERVER_LISTEN", "--listen"; "" for a default. Owned */
};
struct config {
    struct config_value values[CONFIG_KEYS];
};

/* A flag of the command line, already parsed. */
struct config_flag {
    const char *name; /* "--listen": for messages */
    const char *key;
    const char *value;
};
struct config_sources {
    const char *file_path;          /* NULL: none */
    const char *const *environment; /* like environ; NULL: none */
    const struct config_flag *flags;
    size_t flag_count;
};

/* Load all sources. The caller owns *ret_config. On failure (TR_EINVAL, TR_ENOENT, TR_ENOMEM) *ret_config
 * is empty and `errors` gets a line for each error, at most CONFIG_ERRORS_MAX. */
enum { CONFIG_ERRORS_MAX = 50, CONFIG_FILE_SIZE_MAX = 1 << 20 };
int config_load(
    const struct config_sources *sources, struct config *ret_config, struct buffer *errors);
/* Load bytes in place of a file. Errors call the file `name`. */
int config_load_bytes(struct span file, const char *name, const struct config_sources *sources,
    struct config *ret_config, struct buffer *errors);
/* Zeroed memory is fine. */
void config_fini(struct config *config);

const char *config_text(const struct config *config, enum config_key key); /* TEXT, PATH */
uint64_t config_number(const struct config *config, enum config_key key);  /* INT, BYTES, … */
bool config_is_on(const struct config *config, enum config_key key);       /* BOOL */
bool config_is_set(const struct config *config, enum config_key key);      /* not the default */
/* Return the next word of a list. Start with *position 0. False at the end. */
bool config_next(
    const struct config *config, enum config_key key, size_t *position, struct span *ret_word);

/* Parse and check a value. TR_EINVAL with a sentence in `why` that names the allowed values. */
int config_parse_value(const struct config_setting *setting, const char *text, uint64_t *ret_number,
    char *why, size_t why_size);
/* Find a setting by its key. CONFIG_KEYS if it does not exist. */
enum config_key config_find(const char *key);
/* Return the key most similar to this one, or NULL if none is similar. */
const char *config_nearest(const char *key);
/* Count the edits (insert, remove, replace) between two short texts. */
unsigned config_edit_distance(const char *a, const char *b);

/* Apply the reloadable values of `fresh` to `config`, as SIGHUP does. `report` gets a line for each
 * changed value: its new value, or "needs a restart". Return the number of applied values. */
unsigned config_reload(struct config *config, struct config *fresh, struct buffer *report);

/* ---- for people (config_show.c) ------------------------------------------------------------- */

/* Write a value for people: a secret as ********, of a URL only the password and the parameters. */
void config_put_value(struct buffer *out, const struct config *config, enum config_key key);
void config_show(struct buffer *out, const struct config *config, bool with_origin);
void config_show_json(struct buffer *out, const struct config *config);
void config_list(struct buffer *out);          /* a file with every default, as comments */
void config_list_markdown(struct buffer *out); /* the table of docs/operations.md */

#endif
