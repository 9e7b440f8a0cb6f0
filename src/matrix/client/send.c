/* SPDX-License-Identifier: Apache-2.0 */
/* send.c: sharing a room's session and encrypting with it. */
#include "matrix/client/send.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/body.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/sync.h"
#include "matrix/client/withheld.h"

void mxclient_outbound_fini(void *object)
{
    struct mxclient_outbound *outbound = object;

    mx_outbound_destroy(outbound->outbound);
    mxclient_index_fini(&outbound->shares, NULL);
}

static struct mxclient_outbound *send_outbound(
    const struct mxclient *client, const struct mxclient_room *room)
{
    return mxclient_index_find(&client->outbounds, mxclient_id(&room->entry));
}

/* ---- the devices of a room -------------------------------------------------------------------- */

/* Walk all devices of a room's members but our own. */
struct send_walk {
    const struct mxclient *client;
    const struct mxclient_room *room;
    uint32_t member;
    uint32_t next;
    struct mxclient_user *user;
    struct mxclient_device *device;
};

static bool send_is_ourselves(const struct mxclient *client, const struct mxclient_user *user,
    const struct mxclient_device *device)
{
    return span_equal(mxclient_id(&user->entry), mxclient_span(&client->session.user_id)) &&
           span_equal(mxclient_id(&device->entry), mxclient_span(&client->session.device_id));
}

static bool send_next_device(struct send_walk *walk)
{
    for (; walk->member < walk->room->members.count; walk->member++, walk->next = 0) {
        const struct mxclient_member *member =
            (const struct mxclient_member *)walk->room->members.entries[walk->member];

        walk->user = mxclient_devices_user(&walk->client->devices, mxclient_id(&member->entry));
        if (member->membership == MXCLIENT_LEFT || walk->user == NULL)
            continue;
        while (walk->next < walk->user->devices.count) {
            walk->device = (struct mxclient_device *)walk->user->devices.entries[walk->next++];
            if (!send_is_ourselves(walk->client, walk->user, walk->device))
                return true;
        }
    }
    return false;
}

/* Return whether a device may have the session (rule 2). */
static bool send_is_allowed(const struct mxclient *client, const struct mxclient_device *device)
{
    if (device->is_deleted || device->trust == MXSTORE_BLOCKED)
        return false;
    return device->trust == MXSTORE_VERIFIED || client->policy == MXCLIENT_SHARE_ALL;
}

static struct mxclient_place send_place(const struct send_walk *walk)
{
    return (struct mxclient_place){ mxclient_id(&walk->user->entry),
        mxclient_id(&walk->device->entry) };
}

static struct mxclient_share *send_share(
    struct mxclient_outbound *outbound, struct mxclient_place place, bool adds)
{
    if (!adds)
        return mxclient_index_find_pair(&outbound->shares, place.user_id, place.device_id);
    return mxclient_index_add_pair(
        &outbound->shares, place.user_id, place.device_id, sizeof(struct mxclient_share));
}

void mxclient_send_forget(struct mxclient *client, struct mxclient_place place)
{
    for (uint32_t i = 0; i < client->outbounds.count; i++) {
        struct mxclient_share *share =
            send_share((struct mxclient_outbound *)client->outbounds.entries[i], place, false);

        if (share != NULL)
            share->is_shared = share->is_sending = false; /* the message under way is lost too */
    }
}

/* ---- rotation --------------------------------------------------------------------------------- */

/* Return whether every device that has the session may still have it. */
static bool send_shares_hold(const struct mxclient *client, const struct mxclient_room *room,
    struct mxclient_outbound *outbound)
{
    struct send_walk walk = { .client = client, .room = room };
    uint32_t allowed = 0, shared = 0;

    while (send_next_device(&walk)) {
        const struct mxclient_share *share = send_share(outbound, send_place(&walk), false);

        if (share != NULL && (share->is_shared || share->is_sending) &&
            send_is_allowed(client, walk.device))
            allowed++;
    }
    for (uint32_t i = 0; i < outbound->shares.count; i++) {
        const struct mxclient_share *share =
            (const struct mxclient_share *)outbound->shares.entries[i];

        shared += share->is_shared || share->is_sending ? 1 : 0;
    }
    return shared == allowed;
}

static bool send_must_rotate(const struct mxclient *client, const struct mxclient_room *room,
    struct mxclient_outbound *outbound, int64_t now_ms)
{
    int64_t wall_ms = mxclient_wall_ms(client, now_ms); /* also the time in suspend counts */

    return outbound == NULL || outbound->outbound == NULL ||
           room->encryption == MXCLIENT_ROTATING ||
           outbound->message_count >= room->rotation_messages ||
           wall_ms - outbound->created_ms >= room->rotation_ms || wall_ms < outbound->created_ms ||
           !send_shares_hold(client, room, outbound);
}

/* Start a session of the room, in place of the former one. It is stored with its first share or
 * message, and our copy of it at once. */
static int send_rotate(
    struct mxclient *client, struct mxclient_room *room, int64_t now_ms, struct sql_unit *unit)
{
    struct mxclient_outbound *outbound =
        mxclient_index_add(&client->outbounds, mxclient_id(&room->entry), sizeof *outbound);
    struct mx_outbound *fresh = NULL;
    int rc = outbound == NULL ? TR_ENOMEM : mx_outbound_create(client->session.random, &fresh);

    if (rc == 0)
        rc = mxclient_megolm_keep_own(client, mxclient_id(&room->entry), fresh, unit);
    if (rc != 0) {
        mx_outbound_destroy(fresh);
        return rc;
    }
    mxclient_outbound_fini(outbound);
    outbound->outbound = fresh;
    outbound->created_ms = mxclient_wall_ms(client, now_ms);
    outbound->message_count = 0;
    mxclient_room_rotated(room);
    return 0;
}

static int send_put_outbound(
    const struct mxclient *client, const struct mxclient_outbound *outbound, struct sql_unit *unit)
{
    char id[MX_SESSION_ID_CHARS + 1];
    struct buffer pickle = { 0 };
    int rc = mx_outbound_pickle(
        outbound->outbound, client->session.key, client->session.random, &pickle);

    mx_outbound_id(outbound->outbound, id);
    if (rc == 0)
        mxstore_put(unit, MXSTORE_IS_outbound,
            &(struct mxstore_outbound){ .room_id = mxclient_id(&outbound->entry),
                .session_id = span_of(id),
                .pickle = mxclient_span(&pickle),
                .created_ms = outbound->created_ms,
                .message_count = outbound->message_count });
    buffer_free(&pickle);
    return rc;
}

/* ---- what is missing -------------------------------------------------------------------------- */

/* Return whether a member's devices must be queried first. A user whose server was not reached does
 * not stop the others: the devices that are known get the key. */
static bool send_is_outdated(
    const struct mxclient *client, const struct mxclient_room *room, int64_t now_ms)
{
    for (uint32_t i = 0; i < room->members.count; i++) {
        const struct mxclient_member *member =
            (const struct mxclient_member *)room->members.entries[i];
        const struct mxclient_user *user =
            mxclient_devices_user(&client->devices, mxclient_id(&member->entry));

        if (member->membership == MXCLIENT_LEFT)
            continue;
        if (user == NULL || (user->is_outdated && now_ms >= user->next_query_ms))
            return true;
    }
    return false;
}

static bool send_is_halted(const struct mxclient *client, const struct mxclient_room *room)
{
    struct send_walk walk = { .client = client, .room = room };

    while (client->policy == MXCLIENT_SHARE_HALT && send_next_device(&walk))
        if (!walk.device->is_deleted && walk.device->trust == MXSTORE_UNVERIFIED)
            return true;
    return false;
}

/* Return whether a device still lacks the session: it may have it and does not. */
static bool send_lacks(
    struct mxclient *client, struct mxclient_outbound *outbound, const struct send_walk *walk)
{
    const struct mxclient_share *share = send_share(outbound, send_place(walk), false);

    return send_is_allowed(client, walk->device) &&
           (share == NULL || (!share->is_shared && !share->is_sending));
}

/* Write a claim for devices without an Olm session: MXCLIENT_NEED_CLAIM. MXCLIENT_NEED_ANSWER: the
 * claim for wedged sessions has to end first. */
static int send_claim(struct mxclient *client, struct mxclient_room *room,
    struct mxclient_outbound *outbound, int64_t now_ms, struct mxclient_request *request,
    enum mxclient_need *ret_need)
{
    struct send_walk walk = { .client = client, .room = room };
    struct mxclient_place places[MXCLIENT_SHARES_PER_REQUEST];
    size_t count = 0;

    while (count < MXCLIENT_SHARES_PER_REQUEST && send_next_device(&walk)) {
        struct mxclient_peer *peer;

        if (!send_lacks(client, outbound, &walk) || mxclient_olm_is_ready(client, walk.device))
            continue;
        peer = mxclient_olm_peer(client, walk.device);
        if (peer == NULL)
            return TR_ENOMEM;
        if (peer->claiming != MXCLIENT_NOT_CLAIMING) {
            *ret_need = MXCLIENT_NEED_ANSWER;
            continue;
        }
        if (now_ms >= peer->next_claim_ms) {
            peer->claiming = MXCLIENT_CLAIMING_TO_SEND;
            places[count++] = send_place(&walk);
        }
    }
    if (count > 0) {
        mxclient_claim_request(request, places, count);
        *ret_need = MXCLIENT_NEED_CLAIM;
    }
    return 0;
}

int mxclient_send_claimed(struct mxclient *client, const struct mxclient_room *room,
    const struct json *answer, int64_t now_ms)
{
    struct mxclient_outbound *outbound = send_outbound(client, room);
    struct send_walk walk = { .client = client, .room = room };

    tr_assert(outbound != NULL && outbound->is_sharing);
    outbound->is_sharing = false;
    while (send_next_device(&walk)) {
        struct mxclient_peer *peer = mxclient_olm_peer(client, walk.device);
        struct mx_key key;
        int rc;

        if (peer == NULL)
            return TR_ENOMEM;
        if (peer->claiming != MXCLIENT_CLAIMING_TO_SEND)
            continue;
        peer->claiming = MXCLIENT_NOT_CLAIMING;
        rc = mxclient_claim_read(answer, send_place(&walk), &walk.device->signing_key, &key);
        if (rc == 0)
            rc = mxclient_olm_start(client, walk.device, &key, now_ms);
        if (rc == TR_ENOMEM)
            return rc;
        if (rc != 0)
            peer->next_claim_ms = now_ms + MXCLIENT_CLAIM_PAUSE_MS;
    }
    return 0;
}

/* ---- sharing ---------------------------------------------------------------------------------- */

/* Write the content of m.room_key. */
static int send_room_key(const struct mxclient_outbound *outbound, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    char id[MX_SESSION_ID_CHARS + 1];
    struct buffer key = { 0 };
    int rc = mx_outbound_key(outbound->outbound, &key);

    mx_outbound_id(outbound->outbound, id);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "algorithm", MXCLIENT_MEGOLM);
    json_put_string(&writer, "room_id", mxclient_id(&outbound->entry));
    json_put_text(&writer, "session_id", id);
    json_put_string(&writer, "session_key", mxclient_span(&key));
    json_put_end(&writer);
    mx_wipe_buffer(&key);
    return rc == 0 ? json_writer_end(&writer) : rc;
}

/* Share with the devices that lack the session and have an Olm session. One that seems wedged, and
 * could not be replaced, is better than none. */
static int send_put_shares(struct mxclient_batch *batch, struct mxclient_room *room,
    struct mxclient_outbound *outbound, struct span room_key)
{
    struct send_walk walk = { .client = batch->client, .room = room };
    int rc = 0;

    while (rc == 0 && batch->count < MXCLIENT_SHARES_PER_REQUEST && send_next_device(&walk)) {
        struct mxclient_share *share;

        if (!send_lacks(batch->client, outbound, &walk) ||
            !mxclient_olm_has_session(batch->client, walk.device))
            continue;
        rc =
            mxclient_batch_add(batch, send_place(&walk), walk.device, SPAN("m.room_key"), room_key);
        share = send_share(outbound, send_place(&walk), true);
        if (share == NULL)
            return TR_ENOMEM;
        share->is_sending = true;
    }
    return rc;
}

/* Write the request that shares the session, and store the session with it. */
static int send_share_all(struct mxclient *client, struct mxclient_room *room,
    struct mxclient_outbound *outbound, struct sql_unit *unit, struct mxclient_request *request,
    bool *ret_is_needed)
{
    struct buffer room_key = { 0 };
    struct mxclient_batch batch;
    int rc = send_room_key(outbound, &room_key);

    mxclient_batch_start(&batch, client, request, unit);
    if (rc == 0)
        rc = send_put_shares(&batch, room, outbound, mxclient_span(&room_key));
    if (rc == 0 && batch.count > 0)
        rc = send_put_outbound(client, outbound, unit);
    mx_wipe_buffer(&room_key);
    *ret_is_needed = batch.count > 0;
    return mxclient_batch_end(&batch, rc);
}

/* Return why a device that may not have the session does not get it. */
static int send_refusal(const struct mxclient_device *device)
{
    return device->trust == MXSTORE_BLOCKED ? MX_EBLOCKED : MX_EUNVERIFIED;
}

/* Tell the devices that do not get the session why, once: the attempt counts. */
static int send_put_notices(struct mxclient_batch *batch, struct mxclient_room *room,
    struct mxclient_outbound *outbound, struct span session_id)
{
    struct send_walk walk = { .client = batch->client, .room = room };
    int rc = 0;

    while (rc == 0 && batch->count < MXCLIENT_SHARES_PER_REQUEST && send_next_device(&walk)) {
        struct mxclient_share *share;
        struct buffer notice = { 0 };

        if (walk.device->is_deleted || send_is_allowed(batch->client, walk.device))
            continue;
        share = send_share(outbound, send_place(&walk), true);
        if (share == NULL)
            return TR_ENOMEM;
        if (share->is_told)
            continue;
        rc = mxclient_withheld_put(batch->client, mxclient_id(&room->entry), session_id,
            send_refusal(walk.device), &notice);
        if (rc == 0)
            mxclient_batch_put(batch, send_place(&walk), mxclient_span(&notice));
        share->is_told = share->is_telling = true;
        buffer_free(&notice);
    }
    return rc;
}

static int send_withhold_all(struct mxclient *client, struct mxclient_room *room,
    struct mxclient_outbound *outbound, struct sql_unit *unit, struct mxclient_request *request,
    bool *ret_is_needed)
{
    char id[MX_SESSION_ID_CHARS + 1];
    struct mxclient_batch batch;
    int rc;

    mx_outbound_id(outbound->outbound, id);
    mxclient_batch_start_clear(&batch, client, SPAN("m.room_key.withheld"), request, unit);
    rc = send_put_notices(&batch, room, outbound, span_of(id));
    *ret_is_needed = batch.count > 0;
    return mxclient_batch_end(&batch, rc);
}

void mxclient_send_shared(struct mxclient *client, const struct mxclient_room *room,
    enum mxclient_verdict verdict, struct sql_unit *unit)
{
    struct mxclient_outbound *outbound = send_outbound(client, room);
    struct send_walk walk = { .client = client, .room = room };
    char id[MX_SESSION_ID_CHARS + 1], identity[MX_KEY_CHARS + 1];
    bool is_told;

    tr_assert(outbound != NULL && outbound->is_sharing);
    tr_assert(verdict == MXCLIENT_DONE || verdict == MXCLIENT_REFUSED);
    outbound->is_sharing = false;
    mx_outbound_id(outbound->outbound, id);
    while (send_next_device(&walk)) {
        struct mxclient_share *share = send_share(outbound, send_place(&walk), false);

        if (share == NULL || (!share->is_sending && !share->is_telling))
            continue;
        is_told = share->is_telling;
        share->is_shared = share->is_sending && verdict == MXCLIENT_DONE;
        share->is_sending = share->is_telling = false;
        mx_key_text(&walk.device->identity_key, identity);
        if (share->is_shared || is_told)
            mxstore_put(unit, MXSTORE_IS_share,
                &(struct mxstore_share){ .session_id = span_of(id),
                    .user_id = mxclient_id(&walk.user->entry),
                    .device_id = mxclient_id(&walk.device->entry),
                    .identity_key = span_of(identity),
                    .message_index = outbound->message_count,
                    .withheld = is_told ? span_of(mxclient_withheld_code(send_refusal(walk.device)))
                                        : (struct span){ NULL, 0 } });
    }
}

/* ---- prepare and send ------------------------------------------------------------------------- */

int mxclient_send_prepare(struct mxclient *client, struct mxclient_room *room, int64_t now_ms,
    struct sql_unit *unit, enum mxclient_need *ret_need, struct mxclient_request *request)
{
    struct mxclient_outbound *outbound = send_outbound(client, room);
    bool is_needed = false;
    int rc = 0;

    *ret_need = MXCLIENT_NEED_NOTHING;
    if (room->membership != MXCLIENT_JOINED)
        return TR_EACCES;
    if (!mxclient_room_can_encrypt(room))
        return MX_EALGORITHM;
    if (room->encryption == MXCLIENT_PLAIN)
        return 0;
    if (outbound != NULL && outbound->is_sharing)
        *ret_need = MXCLIENT_NEED_ANSWER;
    else if (!room->has_members)
        *ret_need = MXCLIENT_NEED_MEMBERS;
    else if (send_is_outdated(client, room, now_ms)) {
        /* The server may have said that a member's devices left, wrongly: track them again. */
        *ret_need = MXCLIENT_NEED_QUERY;
        return mxclient_sync_track(client, room, unit);
    } else if (send_is_halted(client, room))
        *ret_need = MXCLIENT_NEED_TRUST;
    if (*ret_need != MXCLIENT_NEED_NOTHING)
        return 0;
    if (send_must_rotate(client, room, outbound, now_ms))
        rc = send_rotate(client, room, now_ms, unit);
    if (rc != 0)
        return rc;
    outbound = send_outbound(client, room);
    rc = send_claim(client, room, outbound, now_ms, request, ret_need);
    if (rc == 0 && *ret_need == MXCLIENT_NEED_NOTHING) {
        rc = send_share_all(client, room, outbound, unit, request, &is_needed);
        if (rc == 0 && !is_needed)
            rc = send_withhold_all(client, room, outbound, unit, request, &is_needed);
        *ret_need = is_needed ? MXCLIENT_NEED_SHARE : MXCLIENT_NEED_NOTHING;
    }
    outbound->is_sharing =
        rc == 0 && (*ret_need == MXCLIENT_NEED_CLAIM || *ret_need == MXCLIENT_NEED_SHARE);
    return rc;
}

/* Append the content of m.room.encrypted; m.relates_to stays in the clear, as servers need it. */
static int send_encrypt(struct mxclient *client, struct mxclient_outbound *outbound,
    const struct mxclient_message *message, const struct json *content, struct buffer *out)
{
    struct buffer plaintext = { 0 }, body = { 0 };
    struct json_writer writer = json_writer(&plaintext);
    char id[MX_SESSION_ID_CHARS + 1], ours[MX_KEY_CHARS + 1];
    int rc;

    json_put_object(&writer, NULL);
    json_put_string(&writer, "type", message->type);
    json_put_value(&writer, "content", content);
    json_put_string(&writer, "room_id", mxclient_id(&outbound->entry));
    json_put_end(&writer);
    rc = json_writer_end(&writer);
    if (rc == 0)
        rc = mx_outbound_encrypt(outbound->outbound, mxclient_span(&plaintext), &body);
    mx_outbound_id(outbound->outbound, id);
    mx_key_text(mx_account_identity_key(client->session.account), ours);
    writer = json_writer(out);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "algorithm", MXCLIENT_MEGOLM);
    json_put_text(&writer, "session_id", id);
    json_put_string(&writer, "ciphertext", mxclient_span(&body));
    json_put_text(&writer, "sender_key", ours);
    json_put_string(&writer, "device_id", mxclient_span(&client->session.device_id));
    if (json_get(content, "m.relates_to") != NULL)
        json_put_value(&writer, "m.relates_to", json_get(content, "m.relates_to"));
    json_put_end(&writer);
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
    return rc == 0 ? json_writer_end(&writer) : rc;
}

/* Return 0 for a JSON object. */
static int send_parse(struct span content, struct json_doc *doc)
{
    int rc = json_parse_copy(doc, content, JSON_UNIQUE_KEYS);

    if (rc == TR_ENOMEM)
        return rc;
    return rc == 0 && json_kind(json_root(doc)) == JSON_OBJECT ? 0 : TR_EINVAL;
}

static int send_put_body(struct mxclient *client, struct mxclient_room *room,
    const struct mxclient_message *message, struct sql_unit *unit, struct buffer *out)
{
    struct mxclient_outbound *outbound = send_outbound(client, room);
    struct json_doc doc = { 0 };
    int rc = send_parse(message->content, &doc);

    if (rc == 0 && room->encryption == MXCLIENT_PLAIN)
        rc = buffer_span(out, message->content);
    else if (rc == 0) {
        tr_assert(outbound != NULL && outbound->outbound != NULL && !outbound->is_sharing);
        rc = send_encrypt(client, outbound, message, json_root(&doc), out);
        outbound->message_count++;
        if (rc == 0)
            rc = send_put_outbound(client, outbound, unit);
    }
    mxclient_body_forget(&doc);
    return rc;
}

int mxclient_send_again(const struct mxstore_outbox *row, struct mxclient_request *request)
{
    int rc;

    tr_assert(row->body.at != NULL);
    mxclient_request_init(
        request, MXCLIENT_SEND, (struct span[]){ row->room_id, row->type, row->txn_id });
    (void)buffer_span(&request->body, row->body);
    rc = mxclient_request_error(request);
    if (rc != 0)
        mxclient_request_fini(request);
    return rc;
}

int mxclient_send_accept(struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_message *message, int64_t now_ms, struct sql_unit *unit,
    char txn[MXCLIENT_TXN_BYTES])
{
    struct mxstore_outbox row = { .created_ms = now_ms,
        .room_id = mxclient_id(&room->entry),
        .type = message->type,
        .sending = MXSTORE_PENDING,
        .policy = message->policy };
    struct buffer sealed = { 0 };
    struct json_doc doc = { 0 };
    int rc;

    if (room->membership != MXCLIENT_JOINED)
        return TR_EACCES;
    if (!mxclient_room_can_encrypt(room))
        return MX_EALGORITHM;
    if (message->content.size > MXCLIENT_CONTENT_BYTES_MAX)
        return MX_ETOOBIG;
    rc = mxclient_is_id(message->type) ? send_parse(message->content, &doc) : TR_EINVAL;
    mxclient_body_forget(&doc);
    if (rc != 0)
        return rc;
    row.txn_id = mxclient_session_txn(&client->session, txn);
    rc = mxclient_body_seal(&client->session, row.txn_id, message->content, &sealed);
    row.content = mxclient_span(&sealed);
    if (rc == 0)
        mxstore_put(unit, MXSTORE_IS_outbox, &row);
    buffer_free(&sealed);
    return rc == 0 ? mxclient_session_put(&client->session, unit) : rc;
}

int mxclient_send(struct mxclient *client, struct mxclient_room *room,
    const struct mxstore_outbox *row, struct sql_unit *unit, struct mxclient_request *request)
{
    struct buffer content = { 0 }, body = { .size_max = MXCLIENT_CONTENT_BYTES_MAX };
    struct mxstore_outbox sealed = *row;
    int rc;

    tr_assert(room->membership == MXCLIENT_JOINED);
    tr_assert(mxclient_room_can_encrypt(room));
    tr_assert(row->body.at == NULL && span_equal(row->room_id, mxclient_id(&room->entry)));
    rc = mxclient_body_open(client->session.key, row->txn_id, row->content, &content);
    if (rc == 0)
        rc = send_put_body(client, room,
            &(struct mxclient_message){ .type = row->type, .content = mxclient_span(&content) },
            unit, &body);
    if (rc == 0) {
        sealed.type = room->encryption == MXCLIENT_PLAIN ? row->type : SPAN("m.room.encrypted");
        sealed.body = mxclient_span(&body);
        mxstore_set_body(unit, row->txn_id, sealed.type, sealed.body);
        rc = mxclient_send_again(&sealed, request);
    }
    mx_wipe_buffer(&content);
    buffer_free(&body);
    return rc == TR_ELIMIT ? MX_ETOOBIG : rc;
}
