/* SPDX-License-Identifier: Apache-2.0 */
/* key_request.h: keys asked from our other devices, and given to them (m.room_key_request,
 * m.forwarded_room_key).
 *
 * 1. Only verified devices of our own user are asked, answered and believed. The request of a device
 *    that is not verified waits: the device may believe that the verification has ended before we do.
 * 2. A key is asked for once, some seconds after an event was held for it: most keys are only late. A
 *    request that stays without an answer for a day may be asked again, if the limit needs its place.
 *    After the key has come, from whomever, the request is cancelled.
 * 3. A forwarded key counts only if it was asked for.
 * 4. A device that asks gets the session from the first index that we know. The same request again is
 *    answered after some minutes. Requests to us are not stored: after a crash the device asks again,
 *    or waits. */
#ifndef MATRIX_CLIENT_KEY_REQUEST_H
#define MATRIX_CLIENT_KEY_REQUEST_H

#include "matrix/client/client.h"

enum {
    MXCLIENT_ASKS_MAX = 256,            /* further keys are not asked for */
    MXCLIENT_FORWARDS_MAX = 256,        /* further requests are ignored and counted */
    MXCLIENT_FORWARDS_WAITING_MAX = 64, /* of them, of devices that are not verified */
    MXCLIENT_ASK_AFTER_MS = 10 * 1000,
    MXCLIENT_ASK_LIFE_MS = 24 * 60 * 60 * 1000,
    MXCLIENT_FORWARD_AGAIN_MS = 5 * 60 * 1000,
    MXCLIENT_KEY_REQUEST_PAUSE_MS = 60 * 1000, /* after a refusal of the server */
    MXCLIENT_REQUEST_ID_CHARS = 32,
};

/* A key that we ask for. */
struct mxclient_ask {
    struct mxclient_entry entry; /* room and session id */
    struct buffer room_id;
    struct buffer session_id;
    struct buffer request_id;
    enum mxstore_asking asking;
    int64_t created_ms;
};

/* A key that a device of ours asks for. */
struct mxclient_forward {
    struct mxclient_entry entry; /* the device's id and the request's */
    struct buffer device_id;
    struct buffer request_id;
    struct buffer room_id;
    struct buffer session_id;
    int64_t answered_ms; /* 0: not yet */
};

void mxclient_key_requests_fini(struct mxclient_key_requests *requests);
/* Take a stored row. TR_ENOMEM. */
int mxclient_key_request_load(struct mxclient *client, const struct mxstore_key_request *row);
/* Note that an event is held for `reason`: if a key would help, it is asked for from `now_ms` on.
 * TR_ENOMEM. */
int mxclient_key_request_note(struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_event *event, int reason, int64_t now_ms, struct sql_unit *unit);
/* Note that a key has come. */
void mxclient_key_request_came(
    struct mxclient *client, struct span room_id, struct span session_id, struct sql_unit *unit);
/* Return whether we have asked for the key that has this content. */
bool mxclient_key_request_is_asked(const struct mxclient *client, const struct json *content);
/* Take an m.room_key_request event. TR_ENOMEM. */
int mxclient_key_request_take(struct mxclient *client, const struct json *value, int64_t now_ms);

/* Say what the next request or answer needs, and write it: MXCLIENT_NEED_CLAIM, or
 * MXCLIENT_NEED_SHARE, to be sent after the COMMIT of the unit. MXCLIENT_NEED_ANSWER: one is under
 * way. Call it after each sync and each answer. TR_ENOMEM. */
int mxclient_key_request_prepare(struct mxclient *client, int64_t now_ms, struct sql_unit *unit,
    enum mxclient_need *ret_need, struct mxclient_request *request);
/* Return when the next request or answer is due; INT64_MAX: not before another event. */
int64_t mxclient_key_request_due_ms(struct mxclient *client, int64_t now_ms);
/* Take the outcome of that request, MXCLIENT_DONE or MXCLIENT_REFUSED, with the answer to a claim.
 * TR_ENOMEM. */
int mxclient_key_request_answered(struct mxclient *client, enum mxclient_verdict verdict,
    const struct json *answer, int64_t now_ms, struct sql_unit *unit);

#endif
