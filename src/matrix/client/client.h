/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: all that one device keeps in memory, as its nouns. */
#ifndef MATRIX_CLIENT_CLIENT_H
#define MATRIX_CLIENT_CLIENT_H

#include "matrix/client/devices.h"
#include "matrix/client/keys.h"
#include "matrix/client/rooms.h"
#include "matrix/client/session.h"

struct mxclient {
    struct mxclient_session session;
    struct mxclient_keys keys;
    struct mxclient_devices devices;
    struct mxclient_rooms rooms;
    int64_t seq_next;         /* of the next received event */
    struct buffer next_batch; /* the token of the next /sync; empty before the first */
    uint32_t empty_syncs;     /* in a row, that came at once and brought no news */
    uint64_t skipped;         /* members of answers that were not valid */
};

/* Start the nouns of a session that has logged in. */
static inline void mxclient_start(struct mxclient *client)
{
    mxclient_keys_init(&client->keys, &client->session);
    mxclient_devices_init(&client->devices, &client->session);
    client->seq_next = 1;
}

static inline void mxclient_fini(struct mxclient *client)
{
    mxclient_rooms_fini(&client->rooms);
    mxclient_devices_fini(&client->devices);
    mxclient_session_fini(&client->session);
    buffer_free(&client->next_batch);
}

#endif
