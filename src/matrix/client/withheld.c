/* SPDX-License-Identifier: Apache-2.0 */
/* withheld.c: notices about keys (Matrix specification, Client-Server API, "m.room_key.withheld"). */
#include "matrix/client/withheld.h"

#include <stdio.h>

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

/* The parts of a notice's id. */
struct withheld_place {
    struct span room_id;
    struct span session_id;
    struct span sender;
};

static struct withheld_place withheld_place(const struct mxclient_withheld *withheld)
{
    struct withheld_place place = { .sender = mxclient_id(&withheld->entry) };

    (void)span_cut(&place.sender, '\n', &place.room_id);
    (void)span_cut(&place.sender, '\n', &place.session_id);
    return place;
}

static struct mxclient_withheld *withheld_at(const struct mxclient *client, uint32_t index)
{
    return (struct mxclient_withheld *)client->withheld.entries[index];
}

enum { WITHHELD_REST_BYTES = 2 * (MXCLIENT_ID_BYTES_MAX + 1) };

/* Write the id of a notice within its room. */
static struct span withheld_rest(const struct withheld_place *place, char text[WITHHELD_REST_BYTES])
{
    tr_assert(place->session_id.size <= MXCLIENT_ID_BYTES_MAX);
    tr_assert(place->sender.size <= MXCLIENT_ID_BYTES_MAX);
    (void)snprintf(text, WITHHELD_REST_BYTES, "%.*s\n%.*s", (int)place->session_id.size,
        place->session_id.at, (int)place->sender.size, place->sender.at);
    return span_of(text);
}

static const struct mxclient_withheld *withheld_find(
    const struct mxclient *client, const struct withheld_place *place)
{
    char text[WITHHELD_REST_BYTES];

    return mxclient_index_find_pair(&client->withheld, place->room_id, withheld_rest(place, text));
}

int mxclient_withheld_load(struct mxclient *client, const struct mxstore_withheld *row)
{
    struct withheld_place place = { row->room_id, row->session_id, row->sender };
    char text[WITHHELD_REST_BYTES];
    struct mxclient_withheld *withheld = mxclient_index_add_pair(
        &client->withheld, row->room_id, withheld_rest(&place, text), sizeof *withheld);

    if (withheld == NULL)
        return TR_ENOMEM;
    withheld->received_ms = row->received_ms;
    withheld->reason =
        row->reason <= MX_EBLOCKED && row->reason >= MX_EWITHHELD ? (int)row->reason : MX_EWITHHELD;
    return 0;
}

static void withheld_drop(
    struct mxclient *client, const struct mxclient_withheld *withheld, struct sql_unit *unit)
{
    struct withheld_place place = withheld_place(withheld);

    mxstore_drop_withheld(unit, place.room_id, place.session_id, place.sender);
    mxclient_index_remove(&client->withheld, mxclient_id(&withheld->entry), NULL);
}

/* Drop the oldest notice of the user, or of all, if there are too many (rule 3). */
static void withheld_make_place(struct mxclient *client, struct span sender, struct sql_unit *unit)
{
    const struct mxclient_withheld *oldest = NULL, *oldest_of = NULL;
    uint32_t count_of = 0;

    for (uint32_t i = 0; i < client->withheld.count; i++) {
        const struct mxclient_withheld *it = withheld_at(client, i);

        if (oldest == NULL || it->received_ms < oldest->received_ms)
            oldest = it;
        if (!span_equal(withheld_place(it).sender, sender))
            continue;
        count_of++;
        if (oldest_of == NULL || it->received_ms < oldest_of->received_ms)
            oldest_of = it;
    }
    if (count_of >= MXCLIENT_WITHHELD_PER_USER_MAX)
        withheld_drop(client, oldest_of, unit);
    else if (client->withheld.count >= MXCLIENT_WITHHELD_MAX)
        withheld_drop(client, oldest, unit);
}

/* Return whether a user may be in a room: with lazy members not all of them are known. */
static bool withheld_is_heard(
    const struct mxclient *client, const struct mxclient_room *room, struct span sender)
{
    const struct mxclient_member *member = mxclient_index_find(&room->members, sender);

    if (span_equal(sender, mxclient_span(&client->session.user_id)))
        return true;
    return member != NULL ? member->membership != MXCLIENT_LEFT : !room->has_members;
}

int mxclient_withheld_take(
    struct mxclient *client, const struct json *value, int64_t now_ms, struct sql_unit *unit)
{
    const struct json *content = json_get(value, "content");
    struct mxstore_withheld row = { .received_ms = now_ms };
    struct mxclient_room *room = NULL;
    struct span algorithm, code;

    client->notices++;
    if (json_string(json_get(content, "algorithm"), &algorithm) &&
        span_is(algorithm, MXCLIENT_MEGOLM) &&
        mxclient_read_id(json_get(value, "sender"), &row.sender) &&
        mxclient_read_id(json_get(content, "room_id"), &row.room_id) &&
        mxclient_read_id(json_get(content, "session_id"), &row.session_id) &&
        json_string(json_get(content, "code"), &code))
        room = mxclient_rooms_find(&client->rooms, row.room_id);
    if (room == NULL || !withheld_is_heard(client, room, row.sender) ||
        mxclient_megolm_has_of(client, row.room_id, row.session_id, row.sender))
        return 0;
    if (withheld_find(
            client, &(struct withheld_place){ row.room_id, row.session_id, row.sender }) == NULL)
        withheld_make_place(client, row.sender, unit);
    row.reason = withheld_parse(code);
    mxstore_put(unit, MXSTORE_IS_withheld, &row);
    room->has_new_keys = true; /* the walk notes the reason of events that are held already */
    return mxclient_withheld_load(client, &row);
}

int mxclient_withheld_reason(
    const struct mxclient *client, struct span room_id, struct span session_id, struct span sender)
{
    const struct mxclient_withheld *withheld =
        withheld_find(client, &(struct withheld_place){ room_id, session_id, sender });

    if (withheld == NULL)
        withheld = withheld_find(client, &(struct withheld_place){ room_id, session_id,
                                             mxclient_span(&client->session.user_id) });
    return withheld == NULL ? MX_ESESSION : withheld->reason;
}

void mxclient_withheld_forget(struct mxclient *client, struct span room_id, struct span session_id,
    const struct mx_key *sender_key, struct sql_unit *unit)
{
    for (uint32_t i = client->withheld.count; i > 0; i--) {
        const struct mxclient_withheld *it = withheld_at(client, i - 1);
        struct withheld_place place = withheld_place(it);

        bool is_own = span_equal(place.sender, mxclient_span(&client->session.user_id));

        if (span_equal(place.session_id, session_id) && span_equal(place.room_id, room_id) &&
            (is_own || mxclient_devices_by_key(&client->devices, place.sender, sender_key) != NULL))
            withheld_drop(client, it, unit);
    }
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
