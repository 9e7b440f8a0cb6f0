/* SPDX-License-Identifier: Apache-2.0 */
/* withheld.c: notices about keys (Matrix specification, Client-Server API, "m.room_key.withheld"). */
#include "matrix/client/withheld.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/megolm.h"

/* A notice with another code is MX_EWITHHELD. `m.no_olm` names no session. */
static const struct withheld_code {
    const char *code;
    int reason;
} withheld_codes[] = {
    { "m.blacklisted", MX_EBLOCKED },
    { "m.unverified", MX_EUNVERIFIED },
    { "m.unauthorised", MX_EUNAUTHORISED },
    { "m.unavailable", MX_EUNAVAILABLE },
};
enum { WITHHELD_CODES = sizeof withheld_codes / sizeof withheld_codes[0] };

bool mxclient_withheld_is(int reason)
{
    return reason <= MX_EBLOCKED && reason >= MX_EWITHHELD;
}

static int withheld_parse(struct span code)
{
    for (size_t i = 0; i < WITHHELD_CODES; i++)
        if (span_is(code, withheld_codes[i].code))
            return withheld_codes[i].reason;
    return MX_EWITHHELD;
}

const char *mxclient_withheld_code(int reason)
{
    size_t i = 0;

    while (i < WITHHELD_CODES && withheld_codes[i].reason != reason)
        i++;
    tr_assert(i < WITHHELD_CODES);
    return withheld_codes[i].code;
}

/* ---- received --------------------------------------------------------------------------------- */

int mxclient_withheld_load(struct mxclient *client, const struct mxstore_withheld *row)
{
    struct mxclient_withheld *withheld =
        mxclient_index_add_pair(&client->withheld, row->room_id, row->session_id, sizeof *withheld);

    if (withheld == NULL)
        return TR_ENOMEM;
    withheld->reason =
        row->reason <= MX_EBLOCKED && row->reason >= MX_EWITHHELD ? (int)row->reason : MX_EWITHHELD;
    return 0;
}

int mxclient_withheld_take(
    struct mxclient *client, const struct json *content, int64_t now_ms, struct sql_unit *unit)
{
    struct mxstore_withheld row = { .received_ms = now_ms };
    struct mxclient_room *room = NULL;
    struct span algorithm, code;

    client->notices++;
    if (json_string(json_get(content, "algorithm"), &algorithm) &&
        span_is(algorithm, MXCLIENT_MEGOLM) &&
        mxclient_read_id(json_get(content, "room_id"), &row.room_id) &&
        mxclient_read_id(json_get(content, "session_id"), &row.session_id) &&
        json_string(json_get(content, "code"), &code))
        room = mxclient_rooms_find(&client->rooms, row.room_id);
    if (room == NULL || client->withheld.count >= MXCLIENT_WITHHELD_MAX ||
        mxclient_megolm_find(client, row.room_id, row.session_id) != NULL)
        return 0;
    row.reason = withheld_parse(code);
    mxstore_put(unit, MXSTORE_IS_withheld, &row);
    room->has_new_keys = true; /* the walk notes the reason of events that are held already */
    return mxclient_withheld_load(client, &row);
}

int mxclient_withheld_reason(
    const struct mxclient *client, struct span room_id, struct span session_id)
{
    const struct mxclient_withheld *withheld =
        mxclient_index_find_pair(&client->withheld, room_id, session_id);

    return withheld == NULL ? MX_ESESSION : withheld->reason;
}

void mxclient_withheld_forget(
    struct mxclient *client, struct span room_id, struct span session_id, struct sql_unit *unit)
{
    struct mxclient_withheld *withheld =
        mxclient_index_find_pair(&client->withheld, room_id, session_id);

    if (withheld == NULL)
        return;
    mxstore_drop_withheld(unit, room_id, session_id);
    mxclient_index_remove(&client->withheld, mxclient_id(&withheld->entry), NULL);
}

/* ---- sent ------------------------------------------------------------------------------------- */

int mxclient_withheld_put(const struct mxclient *client, struct span room_id,
    struct span session_id, int reason, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    char sender_key[MX_KEY_CHARS + 1];

    mx_key_text(mx_account_identity_key(client->session.account), sender_key);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "algorithm", MXCLIENT_MEGOLM);
    json_put_string(&writer, "room_id", room_id);
    json_put_string(&writer, "session_id", session_id);
    json_put_text(&writer, "sender_key", sender_key);
    json_put_text(&writer, "code", mxclient_withheld_code(reason));
    json_put_text(&writer, "reason", mx_error_text(reason));
    json_put_end(&writer);
    return json_writer_end(&writer);
}
