/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: the login of one device: discovery, tokens, refresh, logout. States and moves are one
 * table in session.c. No I/O and no clock: the caller sends the requests and passes the time.
 *
 * 1. One refresh at a time. A request whose token was refused waits for it, or is repeated at once if
 *    the token has been replaced since it was sent.
 * 2. A soft logout keeps the keys, the device id and the stored rows; the next login uses the same
 *    device id. A hard logout ends the session: it drops the tokens and keeps all other rows, the
 *    outbox among them.
 * 3. User and device id never change. A login that answers with others is refused.
 * 4. Tokens and the account are stored sealed. Memory may be ahead of the store by one unit: if that
 *    unit fails, the caller drops the session and loads it again. */
#ifndef MATRIX_CLIENT_SESSION_H
#define MATRIX_CLIENT_SESSION_H

#include "matrix/client/request.h"
#include "matrix/store/store.h"

/* X(name, text) */
#define MXCLIENT_STATES(X)                                                                         \
    X(NEW, "the homeserver is not known")                                                          \
    X(DISCOVERING, "reads .well-known")                                                            \
    X(CHECKING, "reads the server's versions")                                                     \
    X(SIGNED_OUT, "waits for a first login")                                                       \
    X(LOGGING_IN, "logs in")                                                                       \
    X(ACTIVE, "has a token")                                                                       \
    X(REFRESHING, "replaces its token; requests wait")                                             \
    X(SOFT_OUT, "the server ended the login; keys are kept: log in again")                         \
    X(LOGGING_IN_AGAIN, "logs in again with the same device")                                      \
    X(LOGGING_OUT, "logs out")                                                                     \
    X(ENDED, "logged out for good; received events and the outbox are kept")

#define MXCLIENT__STATE_ENUM(name, text) MXCLIENT_##name,
enum mxclient_state { MXCLIENT_STATES(MXCLIENT__STATE_ENUM) MXCLIENT_STATE_COUNT };
#undef MXCLIENT__STATE_ENUM
const char *mxclient_state_text(enum mxclient_state state);

enum {
    MXCLIENT_URL_BYTES_MAX = 1024,
    MXCLIENT_TOKEN_BYTES_MAX = 4000,
    MXCLIENT_REFRESH_AHEAD_MS = 30 * 1000, /* or half of the lifetime, if that is less */
    MXCLIENT_REFRESH_GAP_MS = 1000,        /* a token is used so long at least */
};

struct mxclient_session {
    enum mxclient_state state;
    const struct mx_random *random;  /* borrowed, like the key */
    const struct mx_pickle_key *key; /* seals what is stored */
    struct buffer homeserver;        /* "https://host", without a slash at the end */
    struct buffer user_id;
    struct buffer device_id;
    struct buffer access_token;
    struct buffer refresh_token;
    struct buffer filter_id;
    int64_t token_expires_ms; /* 0: never */
    int64_t token_refresh_ms; /* when to replace the token; 0: never */
    uint64_t token_serial;    /* counts tokens; a request carries the serial of its token */
    bool is_refusal_soft;     /* the refusal that began the refresh was a soft logout */
    bool is_refresh_early;    /* the refresh began without a refusal */
    int64_t txn_next;
    int64_t fallback_rotated_ms;
    struct mx_account *account; /* NULL until the first login is asked for */
};

/* Start without a login. */
void mxclient_session_init(struct mxclient_session *session, const struct mx_random *random,
    const struct mx_pickle_key *key);
void mxclient_session_fini(struct mxclient_session *session); /* wipes; a zeroed one is fine */
/* Continue from the stored row. Fails like mx_account_unpickle, and with TR_ENOMEM. */
int mxclient_session_load(
    struct mxclient_session *session, const struct mxstore_session *row, int64_t now_ms);
/* Add the step that stores the session. TR_ENOMEM. Not before a first login has succeeded. */
int mxclient_session_put(const struct mxclient_session *session, struct sql_unit *unit);

/* Ask a homeserver by its URL. TR_EINVAL for a URL that is not http or https or is too long;
 * TR_EBUSY in another state; TR_ENOMEM. */
int mxclient_session_discover(struct mxclient_session *session, struct span url);

struct mxclient_login {
    struct span user;     /* with a password: a local part or a whole id */
    struct span password; /* or a login token, one of both */
    struct span token;
    struct span device_name; /* shown to other users; may be absent */
};
/* Write the request of a login; its answer goes to mxclient_session_answered. The first login
 * creates the account and chooses the device id, so that a login whose answer was lost can be
 * repeated. TR_EBUSY in another state, TR_EINVAL, TR_ENOMEM. */
int mxclient_session_login(struct mxclient_session *session, const struct mxclient_login *login,
    struct mxclient_request *request);
/* Start to log out. This deletes the device on the server: never call it at shutdown. TR_EBUSY. */
int mxclient_session_logout(struct mxclient_session *session);
/* Start a refresh if the token is about to expire. It has one attempt: the token still counts. If it
 * fails, or the clock is wrong, the next refusal starts another. */
void mxclient_session_tick(struct mxclient_session *session, int64_t now_ms);
/* Return when the next tick starts a refresh; INT64_MAX: none does. */
int64_t mxclient_session_due_ms(const struct mxclient_session *session);

/* Write the request that the state needs; false if it needs none: the session waits for a login, has
 * ended or is active. The caller has at most one request of the session under way. */
bool mxclient_session_next(
    const struct mxclient_session *session, struct mxclient_request *request);
/* Take the outcome of a request of the session. Not for MXCLIENT_LATER. `body` is the answer of
 * MXCLIENT_DONE. The caller then stores the session if it is ACTIVE, SOFT_OUT or ENDED. Returns 0, or
 * why the answer is not accepted: TR_EPROTO, TR_EACCES (refused), TR_EUNSUPPORTED (no version in
 * common), TR_ENOMEM or the transport's error; the state is then one to try again from. */
int mxclient_session_answered(struct mxclient_session *session,
    const struct mxclient_request *request, const struct mxclient_outcome *outcome,
    const struct json *body, int64_t now_ms);

enum mxclient_repeat {
    MXCLIENT_REPEAT_NOW,   /* with the token of today */
    MXCLIENT_REPEAT_WAIT,  /* once the session is ACTIVE again */
    MXCLIENT_REPEAT_NEVER, /* the session has ended */
};
/* Decide about a request of another noun whose token was refused (MXCLIENT_TOKEN). The session may
 * move to REFRESHING, SOFT_OUT or ENDED; the caller stores it. */
enum mxclient_repeat mxclient_session_refused(struct mxclient_session *session,
    const struct mxclient_request *request, const struct mxclient_outcome *outcome);
/* Stamp a request with the present token's serial, before it is sent. The session is ACTIVE. */
void mxclient_session_stamp(
    const struct mxclient_session *session, struct mxclient_request *request);

/* Write the next transaction id, unique for this device once the session is stored. */
enum { MXCLIENT_TXN_BYTES = 24 };
struct span mxclient_session_txn(struct mxclient_session *session, char text[MXCLIENT_TXN_BYTES]);

static inline struct span mxclient_span(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

#endif
