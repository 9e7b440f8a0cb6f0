/* SPDX-License-Identifier: Apache-2.0 */
/* client.c: the nouns of a client start, load and end together. */
#include "matrix/client/client.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/key_request.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/send.h"
#include "matrix/client/timeline.h"
#include "matrix/client/withheld.h"

void mxclient_start(struct mxclient *client)
{
    mxclient_keys_init(&client->keys, &client->session);
    mxclient_devices_init(&client->devices, &client->session);
    client->seq_next = 1;
}

/* ---- loading ---------------------------------------------------------------------------------- */

static int client_load_user(struct mxclient *client, const void *row)
{
    return mxclient_devices_load_user(&client->devices, row);
}

static int client_load_device(struct mxclient *client, const void *row)
{
    return mxclient_devices_load(&client->devices, row);
}

static int client_load_room(struct mxclient *client, const void *row)
{
    return mxclient_rooms_load(&client->rooms, row);
}

static int client_load_olm(struct mxclient *client, const void *row)
{
    return mxclient_olm_load(client, row);
}

static int client_load_inbound(struct mxclient *client, const void *row)
{
    return mxclient_megolm_load(client, row);
}

static int client_load_gap(struct mxclient *client, const void *row)
{
    return mxclient_timeline_load(client, row);
}

static int client_load_verification(struct mxclient *client, const void *row)
{
    return mxclient_verify_load(client, row);
}

static int client_load_withheld(struct mxclient *client, const void *row)
{
    return mxclient_withheld_load(client, row);
}

static int client_load_key_request(struct mxclient *client, const void *row)
{
    return mxclient_key_request_load(client, row);
}

/* The kinds in the order of their steps: users come before their devices. */
static const struct client_list {
    enum mxstore_kind kind;
    int (*load)(struct mxclient *client, const void *row);
} client_lists[] = {
    { MXSTORE_IS_user, client_load_user },
    { MXSTORE_IS_device, client_load_device },
    { MXSTORE_IS_room, client_load_room },
    { MXSTORE_IS_olm, client_load_olm },
    { MXSTORE_IS_inbound, client_load_inbound },
    { MXSTORE_IS_gap, client_load_gap },
    { MXSTORE_IS_verification, client_load_verification },
    { MXSTORE_IS_withheld, client_load_withheld },
    { MXSTORE_IS_key_request, client_load_key_request },
};
enum { CLIENT_LISTS = sizeof client_lists / sizeof client_lists[0] };

union client_row {
    struct mxstore_session session;
    struct mxstore_token token;
    struct mxstore_user user;
    struct mxstore_device device;
    struct mxstore_room room;
    struct mxstore_olm olm;
    struct mxstore_inbound inbound;
    struct mxstore_gap gap;
    struct mxstore_verification verification;
    struct mxstore_withheld withheld;
    struct mxstore_key_request key_request;
};

void mxclient_load_read(struct sql_unit *unit)
{
    mxstore_get(unit, MXSTORE_IS_session, SPAN(""));
    mxstore_get(unit, MXSTORE_IS_token, SPAN(""));
    mxstore_get_last_seq(unit);
    mxstore_count_unsent(unit);
    for (size_t i = 0; i < CLIENT_LISTS; i++)
        mxstore_list(unit, client_lists[i].kind);
}

int mxclient_load(struct mxclient *client, const struct sql_unit *unit, int64_t now_ms)
{
    union client_row row;
    uint32_t step = 4;
    int rc;

    tr_assert(client->session.account == NULL && client->session.key != NULL);
    if (sql_unit_rows(unit, 0) == 0)
        return TR_ENOENT;
    mxstore_row(unit, 0, 0, MXSTORE_IS_session, &row.session);
    rc = mxclient_session_load(&client->session, &row.session, now_ms);
    if (rc != 0)
        return rc;
    mxclient_start(client);
    mxstore_row(unit, 1, 0, MXSTORE_IS_token, &row.token);
    if (row.token.next_batch.at != NULL)
        rc = buffer_span(&client->next_batch, row.token.next_batch);
    client->seq_next = sql_row_int(unit, 2, 0, 0) + 1;
    client->unsent = (uint64_t)sql_row_int(unit, 3, 0, 0);
    client->failed = (uint64_t)sql_row_int(unit, 3, 0, 1);
    for (size_t i = 0; i < CLIENT_LISTS; i++, step++)
        for (uint32_t k = 0; rc == 0 && k < sql_unit_rows(unit, step); k++) {
            mxstore_row(unit, step, k, client_lists[i].kind, &row);
            rc = client_lists[i].load(client, &row);
        }
    return rc;
}

void mxclient_fini(struct mxclient *client)
{
    mxclient_index_fini(&client->peers, mxclient_peer_fini);
    mxclient_index_fini(&client->inbounds, mxclient_inbound_fini);
    mxclient_index_fini(&client->outbounds, mxclient_outbound_fini);
    mxclient_index_fini(&client->gaps, mxclient_gap_fini);
    mxclient_index_fini(&client->withheld, NULL);
    mxclient_key_requests_fini(&client->key_requests);
    client->walking = NULL;
    mxclient_verify_fini(&client->verify);
    mxclient_rooms_fini(&client->rooms);
    mxclient_devices_fini(&client->devices);
    mxclient_session_fini(&client->session);
    buffer_free(&client->next_batch);
}
