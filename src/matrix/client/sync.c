/* SPDX-License-Identifier: Apache-2.0 */
/* sync.c: the parts of a /sync answer, in the order in which they depend on each other: device lists
 * and key counts, messages to the device, then rooms with their state, then timelines. */
#include "matrix/client/sync.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/body.h"
#include "matrix/client/key_request.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/timeline.h"

void mxclient_sync_request(
    const struct mxclient *client, bool is_first, struct mxclient_request *request)
{
    mxclient_request_init(request, MXCLIENT_SYNC, NULL);
    if (client->next_batch.size > 0)
        mxclient_request_query(request, "since", mxclient_span(&client->next_batch));
    if (client->session.filter_id.size > 0)
        mxclient_request_query(request, "filter", mxclient_span(&client->session.filter_id));
    mxclient_request_query_int(request, "timeout", is_first ? 0 : MXCLIENT_SYNC_TIMEOUT_MS);
    mxclient_request_query(request, "set_presence", SPAN("offline"));
    mxclient_request_query(request, "use_state_after", SPAN("true"));
}

/* ---- received events -------------------------------------------------------------------------- */

static void sync_put_event(struct mxclient_intake *intake, const struct mxclient_room *room,
    const struct mxclient_event *event, struct mxstore_event *row)
{
    row->event_id = event->event_id;
    row->seq = intake->client->seq_next++;
    row->room_id = mxclient_id(&room->entry);
    row->sender = event->sender;
    row->type = event->type;
    row->origin_ms = event->origin_ms;
    mxstore_put(intake->unit, MXSTORE_IS_event, row);
    intake->news.events++;
}

/* Return whether the server says that this device sent an event: it has the transaction id that we
 * gave it, which no other device is shown. */
static bool sync_is_echo(const struct mxclient_intake *intake, const struct mxclient_event *event)
{
    return event->transaction_id.at != NULL &&
           span_equal(event->sender, mxclient_span(&intake->client->session.user_id));
}

/* Return the row of an event as it came. Ciphertext waits for its key. Plaintext in an encrypted room
 * is nobody's word: the server may have written it. */
static struct mxstore_event sync_event_row(const struct mxclient_intake *intake,
    const struct mxclient_room *room, const struct mxclient_event *event)
{
    if (span_is(event->type, "m.room.encrypted"))
        return (struct mxstore_event){ .status = MXSTORE_HELD, .reason = MX_ESESSION };
    if (room->encryption != MXCLIENT_PLAIN)
        return (struct mxstore_event){ .status = MXSTORE_ABANDONED, .reason = MX_ESIGNATURE };
    return (struct mxstore_event){ .status = MXSTORE_ENQUEUED,
        .proof = MXSTORE_BY_SERVER,
        .is_own = sync_is_echo(intake, event) };
}

/* Store ciphertext that decrypts, as its plaintext. TR_EAGAIN: it does not, for `row`'s reason. */
static int sync_take_cipher(struct mxclient_intake *intake, const struct mxclient_room *room,
    const struct mxclient_event *event, struct mxstore_event *row)
{
    struct mxclient_cleartext text = { 0 };
    struct mxclient_event inner = *event;
    struct buffer sealed = { 0 };
    struct json_doc doc = { 0 };
    int rc = mxclient_megolm_decrypt(intake->client, room, event, &doc, &text);

    if (rc == 0) {
        inner.type = text.type;
        rc = mxclient_body_seal(
            &intake->client->session, event->event_id, mxclient_span(&text.text), &sealed);
        *row = (struct mxstore_event){ .status = MXSTORE_ENQUEUED, .body = mxclient_span(&sealed) };
        mxclient_megolm_name_author(&text, row);
        if (rc == 0)
            sync_put_event(intake, room, &inner, row);
        mxclient_megolm_guard(intake->client, &text, event->event_id, intake->unit);
    } else if (rc != TR_ENOMEM) {
        row->status = mxclient_megolm_is_waiting(rc) ? MXSTORE_HELD : MXSTORE_ABANDONED;
        row->reason = rc;
        /* With lazy members the sender's may never have come; its devices are needed all the same. */
        rc = mxclient_devices_track(&intake->client->devices, event->sender, intake->unit);
        if (rc == 0)
            rc = mxclient_key_request_note(
                intake->client, room, event, (int)row->reason, intake->now_ms, intake->unit);
        rc = rc == 0 ? TR_EAGAIN : rc;
    }
    mx_wipe_buffer(&text.text);
    buffer_free(&sealed);
    mxclient_body_forget(&doc);
    return rc;
}

/* Store an event. One over the limit is stored without its body, so that it is not missed
 * silently. */
static int sync_take_event(
    struct mxclient_intake *intake, struct mxclient_room *room, const struct mxclient_event *event)
{
    struct mxstore_event row = sync_event_row(intake, room, event);
    struct buffer body = { .size_max = MXCLIENT_EVENT_BYTES_MAX };
    struct json_writer writer = json_writer(&body);
    int rc = TR_EAGAIN;

    if (row.status == MXSTORE_HELD)
        rc = sync_take_cipher(intake, room, event, &row);
    if (rc != TR_EAGAIN)
        return rc;
    if (!mxclient_is_deeper(event->json, MXCLIENT_EVENT_DEPTH_MAX)) {
        json_put_value(&writer, NULL, event->json);
        rc = json_writer_end(&writer);
    } else
        rc = TR_ELIMIT;
    row.body = mxclient_span(&body);
    if (rc == TR_ELIMIT) {
        row.status = MXSTORE_ABANDONED;
        row.reason = MX_ETOOBIG;
        row.body = SPAN("");
        rc = 0;
    }
    if (rc == 0) {
        if (row.status == MXSTORE_HELD) {
            mxstore_lower_floor(intake->unit, mxclient_id(&room->entry), event->origin_ms);
            intake->news.held++;
        }
        sync_put_event(intake, room, event, &row);
    }
    buffer_free(&body);
    return rc;
}

static int sync_take_state_event(const struct mxclient_intake *intake, struct mxclient_room *room,
    const struct mxclient_event *event)
{
    return mxclient_room_take_state(
        room, event, mxclient_span(&intake->client->session.user_id), intake->is_limited);
}

int mxclient_intake_event(
    struct mxclient_intake *intake, struct mxclient_room *room, const struct json *value)
{
    struct mxclient_event event;

    if (!mxclient_event_read(value, &event) || event.event_id.at == NULL) {
        intake->client->skipped++;
        return 0;
    }
    if (event.state_key.at != NULL)
        return intake->takes_state ? sync_take_state_event(intake, room, &event) : 0;
    return sync_take_event(intake, room, &event);
}

/* ---- rooms ------------------------------------------------------------------------------------ */

static int sync_take_state(
    struct mxclient_intake *intake, struct mxclient_room *room, const struct json *events)
{
    struct mxclient_event event;
    int rc = 0;

    for (struct json_iter it = json_iterate(events); rc == 0 && json_next(&it);)
        if (mxclient_event_read(it.value, &event) && event.state_key.at != NULL)
            rc = sync_take_state_event(intake, room, &event);
        else
            intake->client->skipped++;
    return rc;
}

static int sync_take_timeline(
    struct mxclient_intake *intake, struct mxclient_room *room, const struct json *events)
{
    int rc = 0;

    for (struct json_iter it = json_iterate(events); rc == 0 && json_next(&it);)
        rc = mxclient_intake_event(intake, room, it.value);
    return rc;
}

bool mxclient_read_token(const struct json *value, struct span *ret_token)
{
    struct span token;

    if (!json_string(value, &token) || token.size == 0 ||
        token.size > MXCLIENT_SYNC_TOKEN_BYTES_MAX)
        return false;
    *ret_token = token;
    return true;
}

/* The first answer starts in the present: events before it are no gap. */
static int sync_take_gap(
    struct mxclient_intake *intake, const struct mxclient_room *room, const struct json *timeline)
{
    struct mxstore_gap row = { .room_id = mxclient_id(&room->entry),
        .until_token = mxclient_span(&intake->client->next_batch),
        .created_ms = intake->now_ms };

    if (intake->client->next_batch.size == 0)
        return 0;
    if (!mxclient_read_token(json_get(timeline, "prev_batch"), &row.from_token)) {
        intake->client->skipped++;
        return 0;
    }
    intake->news.gaps++;
    return mxclient_timeline_add(intake->client, &row, intake->unit);
}

int mxclient_sync_track(
    struct mxclient *client, const struct mxclient_room *room, struct sql_unit *unit)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && room->encryption != MXCLIENT_PLAIN && i < room->members.count;
         i++) {
        const struct mxclient_member *member =
            (const struct mxclient_member *)room->members.entries[i];

        if (member->membership != MXCLIENT_LEFT)
            rc = mxclient_devices_track(&client->devices, mxclient_id(&member->entry), unit);
    }
    return rc;
}

static int sync_take_room(struct mxclient_intake *intake, struct span room_id,
    const struct json *value, enum mxclient_membership membership)
{
    const struct json *timeline = json_get(value, "timeline");
    const struct json *after = json_get(value, "state_after"), *state;
    bool is_new = mxclient_rooms_find(&intake->client->rooms, room_id) == NULL;
    struct mxclient_room *room = mxclient_rooms_add(&intake->client->rooms, room_id);
    int rc;

    if (room == NULL)
        return TR_ENOMEM;
    intake->takes_state = after == NULL; /* else `state_after` has what the timeline changes */
    intake->is_limited = false;
    (void)json_bool(json_get(timeline, "limited"), &intake->is_limited);
    mxclient_room_set_membership(room, membership);
    /* A filter may leave members out; without one the answer has the whole state of a new room. */
    if (is_new && membership == MXCLIENT_JOINED && intake->client->session.filter_id.size == 0)
        room->has_members = true;
    /* With lazy members a gap may hide changes of members who sent nothing. */
    if (intake->is_limited && intake->client->session.filter_id.size > 0)
        mxclient_room_note_gap(room);
    if (membership == MXCLIENT_INVITED)
        state = json_get(value, "invite_state"); /* a part, without event ids */
    else
        state = after != NULL ? after : json_get(value, "state");
    rc = sync_take_state(intake, room, json_get(state, "events"));
    /* The row of a new room must be there before its floor is lowered. Its events may encrypt it. */
    mxclient_room_put(room, intake->unit);
    if (rc == 0)
        rc = sync_take_timeline(intake, room, json_get(timeline, "events"));
    mxclient_room_put(room, intake->unit);
    if (rc == 0 && intake->is_limited)
        rc = sync_take_gap(intake, room, timeline);
    return rc == 0 ? mxclient_sync_track(intake->client, room, intake->unit) : rc;
}

/* Say that the text of a room, up to the next one, was read: the unit has copies. */
static void sync_forget_room(const struct mxclient *client, struct span room_id, const char *next)
{
    if (client->forget.done != NULL && next > room_id.at)
        client->forget.done(
            client->forget.data, (struct span){ room_id.at, (size_t)(next - room_id.at) });
}

static int sync_take_rooms(
    struct mxclient_intake *intake, const struct json *rooms, enum mxclient_membership membership)
{
    struct span former = { NULL, 0 };
    int rc = 0;

    for (struct json_iter it = json_iterate(rooms); rc == 0 && json_next(&it);) {
        if (former.at != NULL)
            sync_forget_room(intake->client, former, it.key.at);
        former = it.key;
        if (mxclient_is_id(it.key) && json_kind(it.value) == JSON_OBJECT)
            rc = sync_take_room(intake, it.key, it.value, membership);
        else
            intake->client->skipped++;
    }
    return rc;
}

static int sync_take_to_device(struct mxclient_intake *intake, const struct json *events)
{
    struct mxclient *client = intake->client;
    int rc = 0;

    for (struct json_iter it = json_iterate(events); rc == 0 && json_next(&it);)
        rc = mxclient_to_device_take(client, it.value, intake->now_ms, intake->unit);
    if (rc == 0 && client->is_account_changed)
        rc = mxclient_session_put(&client->session, intake->unit);
    client->is_account_changed = false;
    return rc;
}

/* ---- the answer ------------------------------------------------------------------------------- */

static bool sync_is_empty(const struct json *body)
{
    const struct json *rooms = json_get(body, "rooms");
    const struct json *lists = json_get(body, "device_lists");

    return json_count(json_get(rooms, "join")) == 0 && json_count(json_get(rooms, "invite")) == 0 &&
           json_count(json_get(rooms, "leave")) == 0 &&
           json_count(json_get(lists, "changed")) == 0 &&
           json_count(json_get(json_get(body, "to_device"), "events")) == 0;
}

/* A server that ignores the timeout must not make us spin: it answers at once, and either it has
 * nothing, or it repeats itself because its token stands still. */
static uint64_t sync_pause_ms(
    struct mxclient *client, const struct json *body, uint64_t took_ms, bool is_still)
{
    uint64_t pause;

    if (took_ms >= MXCLIENT_SYNC_QUICK_MS || (!is_still && !sync_is_empty(body))) {
        client->empty_syncs = 0;
        return 0;
    }
    pause = (uint64_t)MXCLIENT_SYNC_QUICK_MS << (client->empty_syncs < 5 ? client->empty_syncs : 5);
    if (client->empty_syncs < UINT32_MAX)
        client->empty_syncs++;
    return pause > MXCLIENT_SYNC_PAUSE_MAX_MS ? MXCLIENT_SYNC_PAUSE_MAX_MS : pause;
}

int mxclient_sync_take(struct mxclient *client, const struct json *body, int64_t now_ms,
    uint64_t took_ms, struct sql_unit *unit, struct mxclient_sync_news *ret_news)
{
    struct mxclient_intake intake = { .client = client, .unit = unit, .now_ms = now_ms };
    const struct json *rooms = json_get(body, "rooms");
    struct span token, former = mxclient_span(&client->next_batch);
    int rc;

    tr_assert(client->seq_next > 0);
    if (!mxclient_read_token(json_get(body, "next_batch"), &token))
        return TR_EPROTO;
    intake.news.is_still = span_equal(token, former);
    intake.news.pause_ms = sync_pause_ms(client, body, took_ms, intake.news.is_still);
    mxclient_devices_changed(&client->devices, json_get(body, "device_lists"), unit);
    mxclient_keys_counts(&client->keys, body);
    /* Messages to the device come first: they bring the keys of the timelines. */
    rc = sync_take_to_device(&intake, json_get(json_get(body, "to_device"), "events"));
    rc = rc != 0 ? rc : sync_take_rooms(&intake, json_get(rooms, "invite"), MXCLIENT_INVITED);
    rc = rc != 0 ? rc : sync_take_rooms(&intake, json_get(rooms, "join"), MXCLIENT_JOINED);
    rc = rc != 0 ? rc : sync_take_rooms(&intake, json_get(rooms, "leave"), MXCLIENT_LEFT);
    if (rc != 0)
        return rc;
    mxstore_advance_token(unit, former.size == 0 ? (struct span){ NULL, 0 } : former, token);
    buffer_clear(&client->next_batch);
    rc = buffer_span(&client->next_batch, token);
    if (rc == 0)
        *ret_news = intake.news;
    return rc;
}
