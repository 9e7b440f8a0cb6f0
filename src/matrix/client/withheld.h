/* SPDX-License-Identifier: Apache-2.0 */
/* withheld.h: notices that a sender withholds a session's key from us (m.room_key.withheld).
 *
 * 1. A notice is the reason of held events and nothing more: it comes in the clear, so the server may
 *    have written it, and the key counts whenever it comes.
 * 2. It counts for events of the user who sent it; those of our own devices, which answer key requests,
 *    count for all. A user who is not in the room is not heard.
 * 3. A user's oldest notice goes when there are too many of the user, and the oldest of all when there
 *    are too many: the event that a notice is about comes with it. */
#ifndef MATRIX_CLIENT_WITHHELD_H
#define MATRIX_CLIENT_WITHHELD_H

#include "matrix/client/client.h"

enum { MXCLIENT_WITHHELD_MAX = 4096, MXCLIENT_WITHHELD_PER_USER_MAX = 256 };

struct mxclient_withheld {
    struct mxclient_entry entry; /* room, session id and sender, by lines */
    int64_t received_ms;
    int reason;
};

/* Take a stored row. TR_ENOMEM. */
int mxclient_withheld_load(struct mxclient *client, const struct mxstore_withheld *row);
/* Take a notice, an event of `to_device`. One of a room that we do not know, of a user who is not in it,
 * or of a key that this user has given us, is only counted. TR_ENOMEM. */
int mxclient_withheld_take(
    struct mxclient *client, const struct json *value, int64_t now_ms, struct sql_unit *unit);
/* Return why the key for an event of this sender is missing: MX_ESESSION without a notice. */
int mxclient_withheld_reason(
    const struct mxclient *client, struct span room_id, struct span session_id, struct span sender);
/* Return whether a reason is one of a notice. */
bool mxclient_withheld_is(int reason);
/* Forget the notices of a session whose key has come, of the user whose device the key is from. */
void mxclient_withheld_forget(struct mxclient *client, struct span room_id, struct span session_id,
    const struct mx_key *sender_key, struct sql_unit *unit);

/* Append the content of the notice to a device that does not get the key of our session. TR_ENOMEM. */
int mxclient_withheld_put(const struct mxclient *client, struct span room_id,
    struct span session_id, int reason, struct buffer *out);
/* Return the code of a reason, "m.unverified" for instance. */
const char *mxclient_withheld_code(int reason);

#endif
