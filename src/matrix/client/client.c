/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix/client/client.h"

#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/send.h"

void mxclient_start(struct mxclient *client)
{
    mxclient_keys_init(&client->keys, &client->session);
    mxclient_devices_init(&client->devices, &client->session);
    client->seq_next = 1;
}

void mxclient_fini(struct mxclient *client)
{
    mxclient_index_fini(&client->peers, mxclient_peer_fini);
    mxclient_index_fini(&client->inbounds, mxclient_inbound_fini);
    mxclient_index_fini(&client->outbounds, mxclient_outbound_fini);
    mxclient_rooms_fini(&client->rooms);
    mxclient_devices_fini(&client->devices);
    mxclient_session_fini(&client->session);
    buffer_free(&client->next_batch);
}
