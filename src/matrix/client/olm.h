/* SPDX-License-Identifier: Apache-2.0 */
/* olm.h: Olm sessions with other devices, and the messages to a device that they carry.
 *
 * 1. A session and the account are stored in the unit of the message that moved them, before bytes
 *    leave or the token moves on.
 * 2. A message counts only if its plaintext names its sender, us as recipient, our signing key and
 *    the sender's: the one of the device list if the device is known.
 * 3. A device whose messages cannot be decrypted gets a new session, at most once an hour, also if
 *    there was none before.
 * 4. Sends go over the session that received last; a new one counts as if it had.
 * 5. Anybody can start a session with us, under as many identity keys as he likes. MXCLIENT_STRANGERS_MAX
 *    peers are kept whose key is of no known device, and MXCLIENT_PEERS_MAX in all: above a limit the
 *    peer goes that received longest ago, a stranger before a known one. A device whose sessions were
 *    dropped is unwedged by its next message (rule 3). */
#ifndef MATRIX_CLIENT_OLM_H
#define MATRIX_CLIENT_OLM_H

#include "matrix/client/client.h"

enum {
    MXCLIENT_OLM_PER_DEVICE = 8, /* the one that is longest unused is dropped */
    MXCLIENT_STRANGERS_MAX = 1024,
    MXCLIENT_PEERS_MAX = 32768,
    MXCLIENT_UNWEDGE_MS = 60 * 60 * 1000,
};

struct mxclient_olm {
    struct mx_olm *olm;
    int64_t created_ms;
    int64_t received_ms;
};

/* The activity whose claim of a one-time key is under way: a device has one at a time. */
enum mxclient_claiming {
    MXCLIENT_NOT_CLAIMING,
    MXCLIENT_CLAIMING_TO_SEND,
    MXCLIENT_CLAIMING_TO_UNWEDGE,
    MXCLIENT_CLAIMING_TO_FORWARD,
};

/* The sessions with one device, by its identity key. */
struct mxclient_peer {
    struct mxclient_entry entry; /* the key as text */
    struct mxclient_olm sessions[MXCLIENT_OLM_PER_DEVICE];
    uint32_t count;
    char
        dropped[MX_OLM_ID_CHARS + 1]; /* a session whose row is deleted with the next step; or "" */
    bool is_known;                    /* its key is that of a device in a list */
    bool is_wedged;                   /* needs a new session */
    enum mxclient_claiming claiming;
    bool needs_dummy;      /* has one in place of a wedged one: a message must tell the peer */
    int64_t next_claim_ms; /* the server had no key for it */
};

void mxclient_peer_fini(void *object);
/* Return the sessions with a device, added if there are none yet; NULL: out of memory. */
struct mxclient_peer *mxclient_olm_peer(
    struct mxclient *client, const struct mxclient_device *device);
/* Take a stored row. Fails like mx_olm_unpickle. */
int mxclient_olm_load(struct mxclient *client, const struct mxstore_olm *row);

/* Return whether there is a session to send over, and no reason to replace it. */
bool mxclient_olm_is_ready(const struct mxclient *client, const struct mxclient_device *device);
/* Return whether there is a session, though it may be wedged. */
bool mxclient_olm_has_session(const struct mxclient *client, const struct mxclient_device *device);
/* Start a session with a claimed key; stored by the first message. MX_EKEY, TR_ENOMEM. */
int mxclient_olm_start(struct mxclient *client, const struct mxclient_device *device,
    const struct mx_key *one_time_key, int64_t now_ms);
/* Append the content of an m.room.encrypted message to a device, with this type and content (JSON),
 * and add the step that stores the session. TR_ENOENT without a session; TR_ENOMEM, MX_ETOOBIG. */
int mxclient_olm_encrypt(struct mxclient *client, struct mxclient_place place,
    const struct mxclient_device *device, struct span type, struct span content,
    struct sql_unit *unit, struct buffer *out);

/* A sendToDevice request with one message for each of several devices. Devices of one user stand
 * together. */
struct mxclient_batch {
    struct mxclient *client;
    struct mxclient_request *request;
    struct sql_unit *unit;
    struct json_writer writer;
    struct span user_id; /* the user of the devices being written; absent at first */
    uint32_t count;
};
void mxclient_batch_start(struct mxclient_batch *batch, struct mxclient *client,
    struct mxclient_request *request, struct sql_unit *unit);
/* Start a batch of this type whose messages mxclient_batch_put writes in the clear. */
void mxclient_batch_start_clear(struct mxclient_batch *batch, struct mxclient *client,
    struct span type, struct mxclient_request *request, struct sql_unit *unit);
/* Add a message as it is, JSON. */
void mxclient_batch_put(
    struct mxclient_batch *batch, struct mxclient_place place, struct span content);
/* Encrypt a message and add it; fails like mxclient_olm_encrypt. */
int mxclient_batch_add(struct mxclient_batch *batch, struct mxclient_place place,
    const struct mxclient_device *device, struct span type, struct span content);
/* End the request after `rc`, the result of the last call. It is written if this returns 0 and there
 * are messages; the unit then stores the transaction id. */
int mxclient_batch_end(struct mxclient_batch *batch, int rc);

/* Say what replacing wedged sessions needs, and write the request: MXCLIENT_NEED_CLAIM, then
 * MXCLIENT_NEED_SHARE (an m.dummy over the new session; send it after the COMMIT of the unit). One
 * claim at a time; the dummies are not repeated if they get lost. TR_ENOMEM. */
int mxclient_unwedge_prepare(struct mxclient *client, int64_t now_ms, struct sql_unit *unit,
    enum mxclient_need *ret_need, struct mxclient_request *request);
/* Take the answer to the claim; NULL: it was refused. TR_ENOMEM. */
int mxclient_unwedge_claimed(struct mxclient *client, const struct json *answer, int64_t now_ms);

/* Take one event of `to_device`. An invalid one is skipped and counted in the client. TR_ENOMEM. */
int mxclient_to_device_take(
    struct mxclient *client, const struct json *value, int64_t now_ms, struct sql_unit *unit);

#endif
