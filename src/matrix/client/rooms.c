/* SPDX-License-Identifier: Apache-2.0 */
/* rooms.c: state events become a room's properties and members. */
#include "matrix/client/rooms.h"

#include <troupe/error.h>

#include "base/assert.h"

/* ---- events ----------------------------------------------------------------------------------- */

/* Times are bounded, not refused: an event with a senseless time is still an event. */
static int64_t rooms_read_time(const struct json *value)
{
    const int64_t most = ((int64_t)1 << 53) - 1;
    int64_t ms;

    if (json_int(value, &ms))
        return ms < 0 ? 0 : ms > most ? most : ms;
    return json_kind(value) == JSON_REAL ? most : 0; /* digits that do not fit an int64_t */
}

/* Recurses, at most `depth` levels. */
bool mxclient_is_deeper(const struct json *value, uint32_t depth)
{
    if (json_kind(value) != JSON_OBJECT && json_kind(value) != JSON_ARRAY)
        return false;
    if (depth == 0)
        return true;
    for (struct json_iter it = json_iterate(value); json_next(&it);)
        if (mxclient_is_deeper(it.value, depth - 1))
            return true;
    return false;
}

bool mxclient_event_read(const struct json *value, struct mxclient_event *ret_event)
{
    struct mxclient_event event = { .json = value, .content = json_get(value, "content") };

    if (!mxclient_read_id(json_get(value, "type"), &event.type) ||
        !mxclient_read_id(json_get(value, "sender"), &event.sender) ||
        json_kind(event.content) != JSON_OBJECT)
        return false;
    if (json_string(json_get(value, "state_key"), &event.state_key) &&
        event.state_key.size > MXCLIENT_ID_BYTES_MAX)
        return false;
    if (!mxclient_read_id(json_get(value, "event_id"), &event.event_id) &&
        event.state_key.at == NULL)
        return false;
    (void)mxclient_read_id(
        json_get(json_get(value, "unsigned"), "transaction_id"), &event.transaction_id);
    event.origin_ms = rooms_read_time(json_get(value, "origin_server_ts"));
    *ret_event = event;
    return true;
}

/* ---- life ------------------------------------------------------------------------------------- */

static void rooms_free_room(void *object)
{
    struct mxclient_room *room = object;

    mxclient_index_fini(&room->members, NULL);
    buffer_free(&room->algorithm);
    buffer_free(&room->name);
    buffer_free(&room->inviter);
}

void mxclient_rooms_fini(struct mxclient_rooms *rooms)
{
    mxclient_index_fini(&rooms->rooms, rooms_free_room);
}

struct mxclient_room *mxclient_rooms_find(const struct mxclient_rooms *rooms, struct span room_id)
{
    return mxclient_index_find(&rooms->rooms, room_id);
}

struct mxclient_room *mxclient_rooms_add(struct mxclient_rooms *rooms, struct span room_id)
{
    struct mxclient_room *room = mxclient_index_add(&rooms->rooms, room_id, sizeof *room);

    if (room != NULL && room->rotation_ms == 0) {
        room->rotation_ms = MXCLIENT_ROTATION_MS;
        room->rotation_messages = MXCLIENT_ROTATION_MESSAGES;
        room->is_changed = true;
    }
    return room;
}

static const char *const membership_names[] = {
    [MXCLIENT_LEFT] = "leave",
    [MXCLIENT_INVITED] = "invite",
    [MXCLIENT_JOINED] = "join",
};

/* Any other membership, a ban or a knock for instance, is none. */
static enum mxclient_membership rooms_membership(struct span name)
{
    for (int i = MXCLIENT_INVITED; i <= MXCLIENT_JOINED; i++)
        if (span_is(name, membership_names[i]))
            return (enum mxclient_membership)i;
    return MXCLIENT_LEFT;
}

int mxclient_rooms_load(struct mxclient_rooms *rooms, const struct mxstore_room *row)
{
    struct mxclient_room *room = mxclient_rooms_add(rooms, row->room_id);

    if (room == NULL)
        return TR_ENOMEM;
    room->membership = rooms_membership(row->membership);
    /* Members may have left while this program was down. */
    room->encryption = row->is_encrypted != 0 ? MXCLIENT_ROTATING : MXCLIENT_PLAIN;
    room->is_sync_room = row->is_sync_room != 0;
    room->rotation_ms = row->rotation_ms;
    room->rotation_messages = row->rotation_messages;
    room->has_new_keys = true; /* held events are tried once after a start */
    room->is_changed = false;
    room->power = (struct mxclient_power){ row->own_level, row->invite_level, row->state_level };
    (void)buffer_span(&room->algorithm, row->algorithm);
    (void)buffer_span(&room->name, row->name);
    (void)buffer_span(&room->inviter, row->inviter);
    return room->algorithm.failed | room->name.failed | room->inviter.failed;
}

/* Return a text as a column; an empty one is absent. */
static struct span rooms_column(const struct buffer *text)
{
    return text->size == 0 ? (struct span){ NULL, 0 } : (struct span){ text->bytes, text->size };
}

void mxclient_room_put(struct mxclient_room *room, struct sql_unit *unit)
{
    if (!room->is_changed)
        return;
    mxstore_put(unit, MXSTORE_IS_room,
        &(struct mxstore_room){ .room_id = { room->entry.id.bytes, room->entry.id.size },
            .membership = span_of(membership_names[room->membership]),
            .is_encrypted = room->encryption != MXCLIENT_PLAIN,
            .rotation_ms = room->rotation_ms,
            .rotation_messages = room->rotation_messages,
            .is_sync_room = room->is_sync_room,
            .name = rooms_column(&room->name),
            .inviter = rooms_column(&room->inviter),
            .algorithm = rooms_column(&room->algorithm),
            .own_level = room->power.own,
            .invite_level = room->power.invite,
            .state_level = room->power.state });
    room->is_changed = false;
}

/* ---- state ------------------------------------------------------------------------------------ */

/* A plain room has no session to replace. */
static void rooms_rotate(struct mxclient_room *room)
{
    if (room->encryption != MXCLIENT_PLAIN)
        room->encryption = MXCLIENT_ROTATING;
}

bool mxclient_room_can_encrypt(const struct mxclient_room *room)
{
    struct span algorithm = { room->algorithm.bytes, room->algorithm.size };

    /* Rows of former versions have no algorithm: it was Megolm. */
    return room->encryption == MXCLIENT_PLAIN || algorithm.size == 0 ||
           span_is(algorithm, "m.megolm.v1.aes-sha2");
}

void mxclient_room_rotated(struct mxclient_room *room)
{
    tr_assert(room->encryption != MXCLIENT_PLAIN);
    room->encryption = MXCLIENT_ENCRYPTED;
}

void mxclient_room_set_membership(struct mxclient_room *room, enum mxclient_membership membership)
{
    room->is_changed = room->is_changed || room->membership != membership;
    room->membership = membership;
    if (membership == MXCLIENT_LEFT) { /* the server tells no changes while we are away */
        room->has_members = false;
        rooms_rotate(room);
    }
}

void mxclient_room_note_gap(struct mxclient_room *room)
{
    room->has_members = false;
    room->member_changes++;
}

/* Read a limit of rotation; the sender's wish counts within bounds. */
static int64_t rooms_read_limit(
    const struct json *value, int64_t fallback, int64_t least, int64_t most)
{
    int64_t limit;

    if (!json_int(value, &limit))
        return fallback;
    return limit < least ? least : limit > most ? most : limit;
}

/* Replace a text of a room. TR_ENOMEM. */
static int rooms_set(struct mxclient_room *room, struct buffer *text, struct span value)
{
    if (span_equal((struct span){ text->bytes, text->size }, value))
        return 0;
    room->is_changed = true;
    buffer_clear(text);
    return buffer_span(text, value);
}

static int rooms_take_encryption(struct mxclient_room *room, const struct json *content)
{
    struct span algorithm;

    /* Also for an algorithm that we do not know: no plaintext goes out. */
    if (room->encryption == MXCLIENT_PLAIN)
        room->encryption = MXCLIENT_ENCRYPTED;
    if (!mxclient_read_id(json_get(content, "algorithm"), &algorithm))
        algorithm = SPAN("?"); /* an event without one must not count as one without need */
    room->rotation_ms = rooms_read_limit(json_get(content, "rotation_period_ms"),
        MXCLIENT_ROTATION_MS, MXCLIENT_ROTATION_MS_MIN, MXCLIENT_ROTATION_MS);
    room->rotation_messages = rooms_read_limit(json_get(content, "rotation_period_msgs"),
        MXCLIENT_ROTATION_MESSAGES, 1, MXCLIENT_ROTATION_MESSAGES_MAX);
    room->is_changed = true;
    return rooms_set(room, &room->algorithm, algorithm);
}

/* Take a name. Control characters could write over a terminal: they become spaces. */
static int rooms_take_name(struct mxclient_room *room, const struct json *content)
{
    char text[MXCLIENT_ROOM_NAME_BYTES_MAX];
    struct span name = { NULL, 0 };

    (void)json_string(json_get(content, "name"), &name);
    if (name.size > sizeof text)
        name.size = 0;
    for (size_t i = 0; i < name.size; i++) {
        unsigned char byte = (unsigned char)name.at[i];

        text[i] = name.at[i];
        if (byte < 0x20 || byte == 0x7f)
            text[i] = ' ';
    }
    return rooms_set(room, &room->name, (struct span){ text, name.size });
}

static int64_t rooms_level(const struct json *value, int64_t fallback)
{
    int64_t level;

    return json_int(value, &level) ? level : fallback;
}

static void rooms_take_power(
    struct mxclient_room *room, const struct json *content, struct span user_id)
{
    struct mxclient_power power = {
        .own = rooms_level(json_get_span(json_get(content, "users"), user_id),
            rooms_level(json_get(content, "users_default"), 0)),
        .invite = rooms_level(json_get(content, "invite"), 0),
        .state = rooms_level(json_get(content, "state_default"), 50),
    };

    room->is_changed = room->is_changed || power.own != room->power.own ||
                       power.invite != room->power.invite || power.state != room->power.state;
    room->power = power;
}

static int rooms_take_member(
    struct mxclient_room *room, const struct mxclient_event *event, bool is_limited)
{
    struct mxclient_member *member;
    struct span name = { NULL, 0 };
    enum mxclient_membership membership;

    if (!mxclient_is_id(event->state_key))
        return 0;
    (void)json_string(json_get(event->content, "membership"), &name);
    membership = rooms_membership(name);
    member = mxclient_index_add(&room->members, event->state_key, sizeof *member);
    if (member == NULL)
        return TR_ENOMEM;
    if (membership == MXCLIENT_LEFT && (is_limited || member->membership != MXCLIENT_LEFT))
        rooms_rotate(room);
    member->membership = membership;
    member->is_listed = true;
    return 0;
}

/* Note who has invited us. */
static int rooms_take_inviter(struct mxclient_room *room, const struct mxclient_event *event)
{
    struct span membership;

    if (!json_string(json_get(event->content, "membership"), &membership) ||
        !span_is(membership, "invite"))
        return 0;
    return rooms_set(room, &room->inviter, event->sender);
}

int mxclient_room_take_state(struct mxclient_room *room, const struct mxclient_event *event,
    struct span user_id, bool is_limited)
{
    int rc = 0;

    tr_assert(event->state_key.at != NULL);
    if (span_is(event->type, "m.room.member")) {
        room->member_changes++;
        if (span_equal(event->state_key, user_id))
            rc = rooms_take_inviter(room, event);
        return rc != 0 ? rc : rooms_take_member(room, event, is_limited);
    }
    if (event->state_key.size != 0)
        return 0;
    if (span_is(event->type, "m.room.encryption"))
        return rooms_take_encryption(room, event->content);
    if (span_is(event->type, "m.room.name"))
        return rooms_take_name(room, event->content);
    if (span_is(event->type, "m.room.power_levels"))
        rooms_take_power(room, event->content, user_id);
    else if (span_is(event->type, "m.room.history_visibility"))
        rooms_rotate(room);
    else if (span_is(event->type, "org.troupe.sync_room") ||
             span_is(event->type, "m.lotti.sync_room")) {
        room->is_changed = room->is_changed || !room->is_sync_room;
        room->is_sync_room = true;
    }
    return 0;
}

void mxclient_room_members_request(
    const struct mxclient_room *room, struct span at, struct mxclient_request *request)
{
    mxclient_request_init(
        request, MXCLIENT_MEMBERS, &(struct span){ room->entry.id.bytes, room->entry.id.size });
    if (at.size > 0)
        mxclient_request_query(request, "at", at);
    mxclient_request_query(request, "not_membership", SPAN("leave"));
}

/* Members that the server no longer lists have left without an event that reached us. */
static void rooms_drop_unlisted(struct mxclient_room *room)
{
    for (uint32_t i = 0; i < room->members.count; i++) {
        struct mxclient_member *member = (struct mxclient_member *)room->members.entries[i];

        if (member->is_listed || member->membership == MXCLIENT_LEFT)
            continue;
        member->membership = MXCLIENT_LEFT;
        rooms_rotate(room);
    }
}

int mxclient_room_take_members(struct mxclient_room *room, const struct json *body)
{
    const struct json *chunk = json_get(body, "chunk");
    struct mxclient_event event;
    int rc = 0;

    if (json_kind(chunk) != JSON_ARRAY)
        return TR_EPROTO;
    for (uint32_t i = 0; i < room->members.count; i++)
        ((struct mxclient_member *)room->members.entries[i])->is_listed = false;
    for (struct json_iter it = json_iterate(chunk); rc == 0 && json_next(&it);)
        if (mxclient_event_read(it.value, &event) && event.state_key.at != NULL &&
            span_is(event.type, "m.room.member"))
            rc = rooms_take_member(room, &event, false);
    if (rc == 0) {
        rooms_drop_unlisted(room);
        room->has_members = true;
    }
    return rc;
}

/* ---- requests --------------------------------------------------------------------------------- */

static void rooms_put_state(struct json_writer *writer, const char *type)
{
    json_put_object(writer, NULL);
    json_put_text(writer, "type", type);
    json_put_text(writer, "state_key", "");
    json_put_object(writer, "content");
}

void mxclient_room_create_request(
    struct span name, struct span user_id, struct mxclient_request *request)
{
    struct json_writer writer;

    mxclient_request_init(request, MXCLIENT_CREATE_ROOM, NULL);
    writer = json_writer(&request->body);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "preset", "private_chat");
    if (name.at != NULL)
        json_put_string(&writer, "name", name);
    json_put_array(&writer, "invite");
    if (user_id.at != NULL)
        json_put_string(&writer, NULL, user_id);
    json_put_end(&writer);
    json_put_array(&writer, "initial_state");
    rooms_put_state(&writer, "m.room.encryption");
    json_put_text(&writer, "algorithm", "m.megolm.v1.aes-sha2");
    json_put_end(&writer);
    json_put_end(&writer);
    rooms_put_state(&writer, "org.troupe.sync_room");
    json_put_end(&writer);
    json_put_end(&writer);
    json_put_end(&writer);
    json_put_end(&writer);
}

void mxclient_room_invite_request(
    struct span room_id, struct span user_id, struct mxclient_request *request)
{
    struct json_writer writer;

    mxclient_request_init(request, MXCLIENT_INVITE, &room_id);
    writer = json_writer(&request->body);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "user_id", user_id);
    json_put_end(&writer);
}

static void rooms_put_empty_request(
    enum mxclient_call call, struct span room_id, struct mxclient_request *request)
{
    mxclient_request_init(request, call, &room_id);
    (void)buffer_text(&request->body, "{}");
}

void mxclient_room_join_request(struct span room_id, struct mxclient_request *request)
{
    rooms_put_empty_request(MXCLIENT_JOIN, room_id, request);
}

void mxclient_room_leave_request(struct span room_id, struct mxclient_request *request)
{
    rooms_put_empty_request(MXCLIENT_LEAVE, room_id, request);
}

void mxclient_room_state_request(
    struct span room_id, struct span type, struct mxclient_request *request)
{
    mxclient_request_init(request, MXCLIENT_STATE, (struct span[]){ room_id, type });
}
