/* SPDX-License-Identifier: Apache-2.0 */
/* withheld.h: notices that a sender withholds a session's key from us (m.room_key.withheld). A notice
 * is the reason of held events and nothing more: it comes in the clear, so the server may have written
 * it, and the key counts whenever it comes. */
#ifndef MATRIX_CLIENT_WITHHELD_H
#define MATRIX_CLIENT_WITHHELD_H

#include "matrix/client/client.h"

enum { MXCLIENT_WITHHELD_MAX = 4096 }; /* notices kept; further ones are ignored and counted */

struct mxclient_withheld {
    struct mxclient_entry entry; /* room and session id */
    int reason;
};

/* Take a stored row. TR_ENOMEM. */
int mxclient_withheld_load(struct mxclient *client, const struct mxstore_withheld *row);
/* Take the content of a notice; one of a room that we do not know or of a key that we have is only
 * counted. TR_ENOMEM. */
int mxclient_withheld_take(
    struct mxclient *client, const struct json *content, int64_t now_ms, struct sql_unit *unit);
/* Return why the key of a session is missing: MX_ESESSION without a notice. */
int mxclient_withheld_reason(
    const struct mxclient *client, struct span room_id, struct span session_id);
/* Return whether a reason is one of a notice. */
bool mxclient_withheld_is(int reason);
/* Forget the notice of a session whose key has come. */
void mxclient_withheld_forget(
    struct mxclient *client, struct span room_id, struct span session_id, struct sql_unit *unit);

/* Append the content of the notice to a device that does not get the key of our session. TR_ENOMEM. */
int mxclient_withheld_put(const struct mxclient *client, struct span room_id,
    struct span session_id, int reason, struct buffer *out);
/* Return the code of a reason, "m.unverified" for instance. */
const char *mxclient_withheld_code(int reason);

#endif
