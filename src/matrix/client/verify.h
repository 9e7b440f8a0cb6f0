/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h: two devices verify each other by short strings (SAS), over messages to devices.
 *
 *     request → ready → start → accept → key, key → the users compare → mac, mac → done, done
 *
 * 1. A device becomes verified in one place: both MACs were right, both sides said `done` and nobody
 *    cancelled. The unit that stores this end stores the trust. A verification that began with a
 *    bare `start`, as old clients do, has no `done`: its end is the second MAC.
 * 2. Every failure ends the verification and tells the peer a code and a reason. A cancel is never
 *    answered, and no message revives a verification that has ended.
 * 3. The keys under verification are those of the device list when the devices met. If they change,
 *    or the device is deleted or blocked, the verification ends.
 * 4. A verification does not survive a restart: its row is loaded and cancelled. A request that its
 *    user has neither accepted nor refused has no row, so that strangers cannot fill the disk.
 * 5. Messages and news are taken after the COMMIT of the unit that they belong to, and messages are
 *    sent one after the other.
 * 6. The user sees every request, or the device that asks gets a cancel. No answer goes to this device
 *    itself, to a blocked one and to a request whose time is far off. The keys of a user who is not
 *    tracked are queried; it is a guest (devices.h) until our user accepts.
 * 7. The unit that ends a verification also stores its last message, if the server has not answered
 *    it: the row's step is "STEP TXN TYPE BODY" then. The answer leaves "STEP". A restart before it
 *    sends the same message again under the same transaction id. */
#ifndef MATRIX_CLIENT_VERIFY_H
#define MATRIX_CLIENT_VERIFY_H

#include "matrix/client/devices.h"

struct mxclient;

/* X(name, text): the text is for JSON and for the stored row. */
#define MXCLIENT_VERIFY_STEPS(X)                                                                   \
    X(INTERRUPTED, "interrupted") /* loaded from a row; the next tick cancels it */                \
    X(ARRIVED, "arrived")         /* a device asks whose keys are not known yet */                 \
    X(ASKED, "asked")             /* a device asks: the user accepts or cancels */                 \
    X(REQUESTED, "requested")     /* we asked */                                                   \
    X(READY, "ready")             /* both agreed to verify; either side starts */                  \
    X(STARTED, "started")         /* we started; their accept is due */                            \
    X(ACCEPTED, "accepted")       /* they started and we accepted; their key is due */             \
    X(KEY_SENT, "key_sent")       /* they accepted; their key is due */                            \
    X(COMPARE, "compare")         /* the users compare: match or mismatch */                       \
    X(CONFIRMED, "confirmed")     /* our user said match; their MAC is due */                      \
    X(CHECKED, "checked")         /* their MAC is right; our user has not answered */              \
    X(FINISHING, "finishing")     /* both MACs are right on our side; their done is due */         \
    X(DONE, "done")                                                                                \
    X(CANCELLED, "cancelled")

#define MXCLIENT__STEP_ENUM(name, text) MXCLIENT_VERIFY_##name,
enum mxclient_verify_step { MXCLIENT_VERIFY_STEPS(MXCLIENT__STEP_ENUM) MXCLIENT_VERIFY_STEP_COUNT };
#undef MXCLIENT__STEP_ENUM
const char *mxclient_verify_step_text(enum mxclient_verify_step step);

/* X(name, code, reason): why a verification ended. The first row of a code is the one for a peer's
 * cancel. */
#define MXCLIENT_VERIFY_FAILURES(X)                                                                \
    X(USER, "m.user", "the user cancelled")                                                        \
    X(RESTARTED, "m.user", "the program was restarted")                                            \
    X(BUSY, "m.user", "too many verifications are under way")                                      \
    X(TIMEOUT, "m.timeout", "the verification took too long")                                      \
    X(UNKNOWN, "m.unknown_transaction", "no such verification is under way")                       \
    X(METHOD, "m.unknown_method", "the devices have no method in common")                          \
    X(UNEXPECTED, "m.unexpected_message", "a message came out of order")                           \
    X(SECOND, "m.unexpected_message", "the device asked again during a verification")              \
    X(MAC, "m.key_mismatch", "a MAC is wrong: the keys are not the ones that were compared")       \
    X(NO_KEY, "m.key_mismatch", "the MACs leave out the key of the device")                        \
    X(CHANGED, "m.key_mismatch", "the device or its keys changed during the verification")         \
    X(OTHER_USER, "m.user_mismatch", "the verified user is not the expected one")                  \
    X(INVALID, "m.invalid_message", "a message has a wrong or missing member")                     \
    X(NO_DEVICE, "m.invalid_message", "the device that asks has no keys on the server")            \
    X(TAKEN, "m.accepted", "another device accepted the request")                                  \
    X(COMMITMENT, "m.mismatched_commitment", "the key is not the one that was committed to")       \
    X(STRINGS, "m.mismatched_sas", "the users saw different strings")                              \
    X(OTHER, "m.unknown", "the peer cancelled with an unknown code")

#define MXCLIENT__FAILURE_ENUM(name, code, reason) MXCLIENT_FAILED_##name,
/* A failure is positive, so that one int holds 0, TR_ENOMEM or a failure. */
enum mxclient_failure {
    MXCLIENT_FAILED_NOT,
    MXCLIENT_VERIFY_FAILURES(MXCLIENT__FAILURE_ENUM) MXCLIENT_FAILURE_COUNT
};
#undef MXCLIENT__FAILURE_ENUM

enum {
    MXCLIENT_VERIFY_MAX = 8, /* at once */
    MXCLIENT_VERIFY_PER_USER_MAX = 3,
    MXCLIENT_VERIFY_GUESTS_MAX = 2,    /* verifications with guests, so that they leave room */
    MXCLIENT_VERIFY_DEVICES_MAX = 32,  /* of a request to all devices of a user */
    MXCLIENT_VERIFY_MESSAGES_MAX = 64, /* not answered by the server */
    MXCLIENT_VERIFY_MESSAGES_STRAY_MAX = 32,  /* of them, when another one may begin */
    MXCLIENT_VERIFY_ENDED_MAX = 32,           /* remembered, so that late messages are ignored */
    MXCLIENT_VERIFY_MS = 10 * 60 * 1000,      /* from the request to the end */
    MXCLIENT_VERIFY_ASK_MS = 2 * 60 * 1000,   /* for the user to accept a request */
    MXCLIENT_VERIFY_AHEAD_MS = 5 * 60 * 1000, /* that a peer's clock may be ahead of ours */
    MXCLIENT_VERIFY_ID_CHARS = 32,
};

enum mxclient_origin {
    MXCLIENT_ORIGIN_OURS,   /* we sent the request */
    MXCLIENT_ORIGIN_THEIRS, /* they did */
    MXCLIENT_ORIGIN_BARE,   /* they began with a start: no ready and no done */
};

/* The algorithms that both sides agreed on. */
struct mxclient_sas_choice {
    uint8_t mac;     /* a place in the list of MACs (verify_content.c) */
    uint8_t strings; /* enum mxclient_sas_strings, as bits */
};
enum mxclient_sas_strings { MXCLIENT_SAS_DECIMAL = 1, MXCLIENT_SAS_EMOJI = 2 };

struct mxclient_flow {
    enum mxclient_verify_step step;
    enum mxclient_origin origin;
    struct buffer transaction_id;
    struct buffer user_id;
    struct buffer device_id; /* empty: we asked all devices of the user and none has answered */
    int64_t began_ms;        /* as the request says */
    int64_t asked_ms;        /* when it arrived here */
    int64_t deadline_ms;
    struct mx_key identity_key; /* of the device, from when its id was known (rule 3) */
    struct mx_key signing_key;
    bool we_started; /* the start that counts is ours */
    bool has_master; /* the peer's MAC of the master key below was right */
    bool is_news;
    bool is_by_peer; /* the peer cancelled */
    struct mx_key master;
    struct mx_sas *sas;
    struct mxclient_sas_choice choice;
    char commitment[MX_SAS_COMMITMENT_CHARS + 1];
    struct mx_sas_code code;
    enum mxclient_failure failure;
};

/* A message that the server has not answered yet. */
struct mxclient_verify_message {
    const char *type; /* static */
    char txn[MXCLIENT_TXN_BYTES];
    struct buffer body;
    struct buffer transaction_id; /* of its verification */
    struct buffer user_id;
    /* of the row that keeps this message (rule 7) */
    enum mxclient_verify_step ended; /* INTERRUPTED: no row does */
    struct buffer device_id;
    int64_t ended_ms;
};

/* {0} is one without a verification. */
struct mxclient_verify {
    struct mxclient_flow *flows[MXCLIENT_VERIFY_MAX]; /* owned */
    uint32_t count;
    struct mxclient_verify_message messages[MXCLIENT_VERIFY_MESSAGES_MAX]; /* a ring */
    uint32_t message_first;
    uint32_t message_count;
    bool is_sending; /* the caller has the first message */
    uint8_t ended[MXCLIENT_VERIFY_ENDED_MAX][CRYPTO_SHA256_BYTES]; /* a ring of digests of ids */
    uint32_t ended_next;
};

void mxclient_verify_fini(struct mxclient_verify *verify); /* wipes; a zeroed one is fine */
/* Take a stored row: an open verification waits for the tick that cancels it, a last message to be sent
 * again. TR_ENOMEM. */
int mxclient_verify_load(struct mxclient *client, const struct mxstore_verification *row);

/* ---- the user's side -------------------------------------------------------------------------- */

/* Ask a device for verification, or with an absent device_id all devices of the user: the first that
 * is ready takes part. TR_EAGAIN: the user's devices must be queried first; store the unit, query, ask
 * again. TR_ENOENT: no such device. TR_EACCES: it is blocked. TR_EINVAL: it is this device.
 * TR_ELIMIT: too many at once. TR_ENOMEM. */
int mxclient_verify_request(struct mxclient *client, struct mxclient_place place, int64_t now_ms,
    struct sql_unit *unit, char ret_transaction_id[MXCLIENT_VERIFY_ID_CHARS + 1]);

enum mxclient_verify_act {
    MXCLIENT_VERIFY_ACCEPT, /* a request, at step `asked` */
    MXCLIENT_VERIFY_START,  /* at step `ready`, if the peer does not */
    MXCLIENT_VERIFY_MATCH,  /* at step `compare` */
    MXCLIENT_VERIFY_MISMATCH,
    MXCLIENT_VERIFY_CANCEL, /* at any step before the end */
};
/* Do what the user decided. TR_ENOENT: no such verification, or it has ended. TR_EBUSY: not at this
 * step. TR_ENOMEM. The verification may end by it; the news say so. */
int mxclient_verify_act(struct mxclient *client, struct span transaction_id,
    enum mxclient_verify_act act, int64_t now_ms, struct sql_unit *unit);

/* A step for the user to see. Texts are static or belong to the caller. */
struct mxclient_verify_news {
    enum mxclient_verify_step step; /* `compare` also if the peer's MAC has come already */
    enum mxclient_origin origin;
    char transaction_id[MXCLIENT_ID_BYTES_MAX + 1];
    char user_id[MXCLIENT_ID_BYTES_MAX + 1];
    char device_id[MXCLIENT_ID_BYTES_MAX + 1]; /* "" until a device has answered */
    uint8_t strings;                           /* from `compare` on: which strings both show */
    struct mx_sas_code code;                   /* emoji as numbers of mx_sas_emojis, decimals */
    bool has_master;     /* with `done`: the user's master key was verified as well */
    bool is_by_peer;     /* with `cancelled` */
    const char *failure; /* "m.user"; NULL unless `cancelled` */
    const char *reason;  /* a clause; NULL unless `cancelled` */
};
/* Take the next change; false if there is none. Changes that were not taken in between are left
 * out. A verification that has ended is forgotten with it. */
bool mxclient_verify_news(struct mxclient *client, struct mxclient_verify_news *ret_news);

/* Return whether a request of a peer waits for our user: at step `asked`. */
bool mxclient_verify_is_asked(const struct mxclient *client, struct span transaction_id);
/* Make news of all requests that wait for our user. */
void mxclient_verify_repeat_asked(struct mxclient *client);

/* ---- the driver's side ------------------------------------------------------------------------ */

/* Return whether an event type belongs here: "m.key.verification." and more. */
bool mxclient_verify_is(struct span type);

struct mxclient_verify_event {
    struct span type;
    struct span sender;
    const struct json *content;
};
/* Take a received event. An invalid one is counted in the client. The caller stores the session if
 * client->is_account_changed. TR_ENOMEM. */
int mxclient_verify_take(struct mxclient *client, const struct mxclient_verify_event *event,
    int64_t now_ms, struct sql_unit *unit);
/* End verifications that are overdue, were interrupted or lost their device, and ask the user about
 * those whose device has become known: at mxclient_verify_due_ms and after each device query.
 * TR_ENOMEM. */
int mxclient_verify_tick(struct mxclient *client, int64_t now_ms, struct sql_unit *unit);
/* Return the time of the next tick; INT64_MAX: none. */
int64_t mxclient_verify_due_ms(const struct mxclient *client);
/* Write the request of the next message; false if there is none. The caller ends it. The server has
 * answered the message before it, and the unit stores that. */
bool mxclient_verify_next(
    struct mxclient *client, struct sql_unit *unit, struct mxclient_request *ret_request);

#endif
