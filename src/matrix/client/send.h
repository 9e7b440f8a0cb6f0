/* SPDX-License-Identifier: Apache-2.0 */
/* send.h: sending to a room. A room's sending session is shared with the devices of its members over
 * Olm, then it encrypts.
 *
 * 1. No plaintext leaves for a room that was ever encrypted.
 * 2. The session goes to no device that the policy excludes, and to none that is deleted or blocked.
 *    A device that had it and is excluded now makes the session rotate before the next message.
 * 3. A message is accepted with its transaction id, then encrypted. A ratchet is stored before its
 *    bytes leave: one unit has the session and the encrypted body of the outbox row.
 * 4. A device that the policy excludes or that is blocked is told so once per session
 *    (m.room_key.withheld).
 * 5. A device counts as having the key after the 200 of the message alone: a crash before it shares
 *    again. */
#ifndef MATRIX_CLIENT_SEND_H
#define MATRIX_CLIENT_SEND_H

#include "matrix/client/client.h"

enum {
    MXCLIENT_SHARES_PER_REQUEST = 100,        /* devices in one sendToDevice */
    MXCLIENT_CLAIM_PAUSE_MS = 15 * 60 * 1000, /* for a device without a key to claim */
    MXCLIENT_CONTENT_BYTES_MAX = 64 << 10,    /* as accepted, and as encrypted */
};

/* A device and the room's session. */
struct mxclient_share {
    struct mxclient_entry entry; /* user and device id */
    bool is_shared;
    bool is_sending; /* in the request under way */
    bool is_told;    /* that it does not get the session, or the attempt was made */
    bool is_telling; /* in the request under way */
};

struct mxclient_outbound {
    struct mxclient_entry entry; /* the room's id */
    struct mx_outbound *outbound;
    int64_t created_ms; /* by the wall clock */
    int64_t message_count;
    struct mxclient_index shares; /* of struct mxclient_share */
    bool is_sharing;              /* a request is under way */
};

void mxclient_outbound_fini(void *object);

/* Say what is missing before a message can be sent to a room, and write the request for it. The
 * caller stores the unit before it does what is needed. TR_EACCES: not a member. TR_ENOMEM. */
int mxclient_send_prepare(struct mxclient *client, struct mxclient_room *room, int64_t now_ms,
    struct sql_unit *unit, enum mxclient_need *ret_need, struct mxclient_request *request);
/* Take the answer to the claim: start sessions with the keys whose signatures are right. NULL: it was
 * refused. The others wait. TR_ENOMEM. */
int mxclient_send_claimed(struct mxclient *client, const struct mxclient_room *room,
    const struct json *answer, int64_t now_ms);
/* Take the outcome of the request that shares: MXCLIENT_DONE or MXCLIENT_REFUSED. */
void mxclient_send_shared(struct mxclient *client, const struct mxclient_room *room,
    enum mxclient_verdict verdict, struct sql_unit *unit);

/* Forget that a device has the keys of any room: it lost them, or its session was wedged. */
void mxclient_send_forget(struct mxclient *client, struct mxclient_place place);

/* A message for a room. */
struct mxclient_message {
    struct span type;
    struct span content;         /* JSON, an object */
    enum mxclient_policy policy; /* under which it is sent, whenever that is */
};
/* Accept a message into the outbox: add its row, not encrypted yet, and the step that stores its
 * transaction id. TR_EACCES: not a member; TR_EINVAL for a type or content that is not valid,
 * MX_ETOOBIG, TR_ENOMEM. */
int mxclient_send_accept(struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_message *message, int64_t now_ms, struct sql_unit *unit,
    char txn[MXCLIENT_TXN_BYTES]);
/* Encrypt an accepted message, add the steps that store its body and the ratchet, and write the
 * request to send after the COMMIT. mxclient_send_prepare has just said MXCLIENT_NEED_NOTHING.
 * TR_EINVAL for a content that is no JSON object, MX_ETOOBIG, TR_ENOMEM. */
int mxclient_send(struct mxclient *client, struct mxclient_room *room,
    const struct mxstore_outbox *row, struct sql_unit *unit, struct mxclient_request *request);
/* Write the request of a stored outbox row, to send it again: the same body under the same
 * transaction id, so the server has it once. TR_ENOMEM, TR_ELIMIT. */
int mxclient_send_again(const struct mxstore_outbox *row, struct mxclient_request *request);

#endif
