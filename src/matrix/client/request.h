/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a request to the homeserver as data, and the rules for its answer. No I/O: a transport
 * sends the target and the body, and passes back what it got.
 *
 * 1. Every call is a row of one table: method, path, time limit, size limit, retry class.
 * 2. An answer has exactly one verdict. A body that is cut or is no JSON object is no answer: it
 *    counts like a lost connection. Bytes that are not UTF-8 are replaced: one odd event in an answer
 *    that comes again and again must not stop the account.
 * 3. Waiting times come from the server, bounded, or from a back-off with jitter. They are never
 *    zero, so a client never spins.
 * 4. A repeated request has the same target and body, hence the same transaction id. */
#ifndef MATRIX_CLIENT_REQUEST_H
#define MATRIX_CLIENT_REQUEST_H

#include "json/json.h"
#include "matrix/crypto/mxcrypto.h"
#include "support/buffer.h"

/* When a request whose outcome is unknown (no answer, a cut one, 5xx) is sent again. A 429 and a
 * locked user always mean: later. */
enum mxclient_retry {
    MXCLIENT_RETRY_FOREVER, /* it changes nothing, or has a transaction id */
    MXCLIENT_RETRY_BUDGET,  /* like it, but gives up after MXCLIENT_ATTEMPTS_MAX attempts */
    MXCLIENT_RETRY_NEVER,   /* a second one could act twice, or the answer can be done without */
};

/* X(name, method, path, retry, timeout in ms, largest answer in KiB, has a token). Each {} of a path
 * is one part. */
#define MXCLIENT_CALLS(X)                                                                          \
    X(WELL_KNOWN, GET, "/.well-known/matrix/client", BUDGET, 10000, 64, false)                     \
    X(VERSIONS, GET, "/_matrix/client/versions", FOREVER, 30000, 64, false)                        \
    X(LOGIN, POST, "/_matrix/client/v3/login", NEVER, 30000, 64, false)                            \
    X(REFRESH, POST, "/_matrix/client/v3/refresh", BUDGET, 30000, 64, false)                       \
    X(LOGOUT, POST, "/_matrix/client/v3/logout", BUDGET, 30000, 64, true)                          \
    X(FILTER, POST, "/_matrix/client/v3/user/{}/filter", FOREVER, 30000, 64, true)                 \
    X(SYNC, GET, "/_matrix/client/v3/sync", FOREVER, 110000, 65536, true)                          \
    X(SEND, PUT, "/_matrix/client/v3/rooms/{}/send/{}/{}", FOREVER, 20000, 64, true)               \
    X(TO_DEVICE, PUT, "/_matrix/client/v3/sendToDevice/{}/{}", FOREVER, 30000, 64, true)           \
    X(MESSAGES, GET, "/_matrix/client/v3/rooms/{}/messages", FOREVER, 60000, 32768, true)          \
    X(MEMBERS, GET, "/_matrix/client/v3/rooms/{}/members", FOREVER, 60000, 65536, true)            \
    X(STATE, GET, "/_matrix/client/v3/rooms/{}/state/{}", BUDGET, 30000, 128, true)                \
    X(CREATE_ROOM, POST, "/_matrix/client/v3/createRoom", NEVER, 60000, 64, true)                  \
    X(INVITE, POST, "/_matrix/client/v3/rooms/{}/invite", BUDGET, 30000, 64, true)                 \
    X(JOIN, POST, "/_matrix/client/v3/join/{}", BUDGET, 60000, 64, true)                           \
    X(LEAVE, POST, "/_matrix/client/v3/rooms/{}/leave", BUDGET, 30000, 64, true)                   \
    X(KEYS_UPLOAD, POST, "/_matrix/client/v3/keys/upload", FOREVER, 30000, 64, true)               \
    X(KEYS_QUERY, POST, "/_matrix/client/v3/keys/query", FOREVER, 60000, 65536, true)              \
    X(KEYS_CLAIM, POST, "/_matrix/client/v3/keys/claim", BUDGET, 30000, 16384, true)               \
    X(MEDIA_CONFIG, GET, "/_matrix/client/v1/media/config", NEVER, 30000, 64, true)                \
    X(UPLOAD, POST, "/_matrix/media/v3/upload", BUDGET, 3600000, 64, true)                         \
    X(DOWNLOAD, GET, "/_matrix/client/v1/media/download/{}/{}", BUDGET, 3600000, 64, true)

#define MXCLIENT__CALL_ENUM(name, method, path, retry, timeout, size, token) MXCLIENT_##name,
enum mxclient_call { MXCLIENT_CALLS(MXCLIENT__CALL_ENUM) MXCLIENT_CALL_COUNT };
#undef MXCLIENT__CALL_ENUM

struct mxclient_call_rule {
    const char *method;
    const char *path;
    enum mxclient_retry retry;
    uint32_t timeout_ms;
    size_t answer_bytes_max;
    bool has_token; /* send "Authorization: Bearer" with the session's token */
};
extern const struct mxclient_call_rule mxclient_call_rules[MXCLIENT_CALL_COUNT];

enum {
    MXCLIENT_TARGET_BYTES_MAX = 7168,
    MXCLIENT_BODY_BYTES_MAX = 1 << 20,
    MXCLIENT_ID_BYTES_MAX = 255, /* of a user, room, device or event id */
    MXCLIENT_ERRCODE_BYTES_MAX = 63,
    MXCLIENT_REASON_BYTES_MAX = 255,
    MXCLIENT_BACKOFF_MIN_MS = 500,
    MXCLIENT_BACKOFF_MAX_MS = 60 * 1000,
    MXCLIENT_WAIT_MAX_MS = 60 * 60 * 1000, /* the longest wait that a server may ask for */
    MXCLIENT_ATTEMPTS_MAX = 12,            /* about a quarter of an hour of back-off */
};

struct mxclient_request {
    enum mxclient_call call;
    struct buffer target; /* path and query, encoded, without scheme and host */
    struct buffer body;   /* JSON; empty without one */
    uint32_t attempts;    /* judged so far; back-off grows with it */
    uint64_t token;       /* the serial of the token it was sent with (session.h) */
};

/* Start a request. `parts` fill the {} of the path and are encoded; an absent one is a bug. Failures
 * (TR_ENOMEM, TR_ELIMIT) stay in the buffers: ask mxclient_request_error once, at the end. */
void mxclient_request_init(
    struct mxclient_request *request, enum mxclient_call call, const struct span *parts);
void mxclient_request_fini(struct mxclient_request *request); /* wipes; a zeroed one is fine */
/* Add a parameter of the query, encoded; an absent value is left out. */
void mxclient_request_query(struct mxclient_request *request, const char *name, struct span value);
void mxclient_request_query_int(struct mxclient_request *request, const char *name, int64_t value);
/* Return 0 if target and body are whole. */
int mxclient_request_error(const struct mxclient_request *request);

/* The answer as the transport received it. */
struct mxclient_answer {
    int failed;              /* 0, or why there is no answer: TR_EIO, TR_ETIMEOUT, TR_ETOOBIG … */
    uint32_t status;         /* of HTTP */
    struct span retry_after; /* the header, or absent */
    struct span body;
    /* The body again, in memory that the caller no longer needs and JSON_PADDING_BYTES longer: it is
     * parsed there, and stays as long as the document. NULL: it is copied. */
    char *text;
};

enum mxclient_verdict {
    MXCLIENT_DONE,    /* 200 with a JSON object */
    MXCLIENT_LATER,   /* send the same request again after wait_ms */
    MXCLIENT_TOKEN,   /* the token is refused; session.h decides */
    MXCLIENT_REFUSED, /* final: an error of the request itself, or the retries are used up */
};
struct mxclient_outcome {
    enum mxclient_verdict verdict;
    uint64_t wait_ms;    /* with MXCLIENT_LATER; at least 1 */
    bool is_soft_logout; /* with MXCLIENT_TOKEN */
    int error;           /* the transport's error, or TR_EPROTO for a body that is no JSON object */
    uint32_t status;
    uint64_t repaired; /* characters of the body that were not Unicode, and are '?' or U+FFFD now */
    char errcode[MXCLIENT_ERRCODE_BYTES_MAX + 1]; /* "M_FORBIDDEN"; "" without one */
    char reason[MXCLIENT_REASON_BYTES_MAX + 1];   /* the server's sentence; "" without one */
};
/* Judge the answer to a request and count the attempt. With MXCLIENT_DONE the document has its body,
 * an object whose texts point into the document, or into the answer's text. Equal keys and deep nesting are allowed here: one odd
 * event must not stop the sync. Signatures refuse them, by the canonical form. */
void mxclient_request_judge(struct mxclient_request *request, const struct mxclient_answer *answer,
    const struct mx_random *random, struct json_doc *doc, struct mxclient_outcome *ret_outcome);

/* Append a sentence that says how the server refused a request, with its own words. */
void mxclient_outcome_explain(const struct mxclient_outcome *outcome, struct buffer *out);

/* Read an id of a user, room, device or event: text of 1 to MXCLIENT_ID_BYTES_MAX bytes without
 * control characters. */
bool mxclient_is_id(struct span text);
bool mxclient_read_id(const struct json *value, struct span *ret_id);

#endif
