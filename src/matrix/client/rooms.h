/* SPDX-License-Identifier: Apache-2.0 */
/* rooms.h: rooms as their state events describe them, and an event as it stands in an answer.
 *
 * 1. Encryption is sticky: no event and no row takes it back. In a room with an algorithm that is not
 *    known here nobody sends.
 * 2. A room whose members are not all known has has_members false; nobody sends there before they
 *    are read.
 * 3. A room is ROTATING from a member's leave until the sending session is replaced. */
#ifndef MATRIX_CLIENT_ROOMS_H
#define MATRIX_CLIENT_ROOMS_H

#include "matrix/client/index.h"
#include "matrix/client/request.h"
#include "matrix/store/store.h"

enum {
    MXCLIENT_TYPE_BYTES_MAX = 255,
    MXCLIENT_EVENT_BYTES_MAX = 128 << 10, /* as JSON; servers refuse events over 64 KiB */
    /* Objects and arrays of an event within each other, so that its content fits into an answer that
     * nests it further (JSON_WRITE_DEPTH_MAX). */
    MXCLIENT_EVENT_DEPTH_MAX = 48,
    MXCLIENT_ROOM_NAME_BYTES_MAX = 1024, /* a longer name is none */
    MXCLIENT_ROTATION_MESSAGES = 100,
    MXCLIENT_ROTATION_MESSAGES_MAX = 10000,
    MXCLIENT_ROTATION_MS = 7 * 24 * 60 * 60 * 1000,
    MXCLIENT_ROTATION_MS_MIN = 60 * 60 * 1000,
};

/* An event of a room. Texts point into the answer. */
struct mxclient_event {
    const struct json *json;
    const struct json *content; /* an object */
    struct span event_id;       /* absent in stripped state */
    struct span type;
    struct span sender;
    struct span state_key;      /* absent: no state event */
    struct span transaction_id; /* of our own event; else absent */
    int64_t origin_ms;          /* 0 to 2^53 - 1, whatever the sender claims */
};
/* Read an event; false if its type, sender, content or (unless it is state) event id is missing or
 * not valid. */
bool mxclient_event_read(const struct json *value, struct mxclient_event *ret_event);

/* Return whether objects and arrays of a value stand deeper within each other than this. */
bool mxclient_is_deeper(const struct json *value, uint32_t depth);

enum mxclient_membership { MXCLIENT_LEFT, MXCLIENT_INVITED, MXCLIENT_JOINED };

struct mxclient_member {
    struct mxclient_entry entry; /* its user id */
    enum mxclient_membership membership;
    bool is_listed; /* in the answer of /members that is taken now */
};

/* PLAIN ──m.room.encryption──▶ ENCRYPTED ──a member leaves──▶ ROTATING ──new session──▶ ENCRYPTED */
enum mxclient_encryption { MXCLIENT_PLAIN, MXCLIENT_ENCRYPTED, MXCLIENT_ROTATING };

/* Powers by m.room.power_levels; without that event all are 0. */
struct mxclient_power {
    int64_t own;
    int64_t invite; /* needed to invite */
    int64_t state;  /* needed to send state, unless the type of the event has a level of its own */
};

struct mxclient_room {
    struct mxclient_entry entry; /* its id */
    enum mxclient_membership membership;
    enum mxclient_encryption encryption;
    struct buffer algorithm; /* of m.room.encryption; empty: none was given */
    struct buffer name;      /* without control characters; empty: it has none */
    struct buffer inviter;   /* empty: nobody has invited us */
    struct mxclient_power power;
    bool is_sync_room;
    bool has_members;
    uint32_t member_changes; /* member events and gaps so far: an answer of /members may be older */
    bool has_new_keys;       /* since held events were tried last */
    uint64_t devices_tried;  /* the devices known then (mxclient_devices.added) */
    /* The walk through the held events (megolm.h). */
    int64_t held_seq;      /* of the last event tried; 0: no walk is under way */
    int64_t held_floor_ms; /* the earliest event so far that stays held */
    int64_t held_revision; /* of the floor, as the last page saw it */
    bool is_changed;       /* since the last mxclient_room_put */
    int64_t rotation_ms;
    int64_t rotation_messages;
    int64_t next_send_ms;          /* sends wait until then: the server refused what they need */
    struct mxclient_index members; /* of struct mxclient_member; also those who left */
};

struct mxclient_rooms {
    struct mxclient_index rooms; /* of struct mxclient_room */
};

void mxclient_rooms_fini(struct mxclient_rooms *rooms); /* a zeroed one is fine */
/* Take a stored row. TR_ENOMEM. */
int mxclient_rooms_load(struct mxclient_rooms *rooms, const struct mxstore_room *row);
struct mxclient_room *mxclient_rooms_find(const struct mxclient_rooms *rooms, struct span room_id);
/* Return the room, added if new; NULL: out of memory. */
struct mxclient_room *mxclient_rooms_add(struct mxclient_rooms *rooms, struct span room_id);

/* Take a state event; other types change nothing. `user_id` is our own. `is_limited`: the answer has a
 * gap before it, so an absent member may have been there in between. TR_ENOMEM. */
int mxclient_room_take_state(struct mxclient_room *room, const struct mxclient_event *event,
    struct span user_id, bool is_limited);
/* Write the request for the members as they were at a token of /sync; empty: as they are. */
void mxclient_room_members_request(
    const struct mxclient_room *room, struct span at, struct mxclient_request *request);
/* Take its answer: the members are known then, and those it does not list have left. The caller tracks them (mxclient_sync_track).
 * TR_EPROTO for an answer without a list, TR_ENOMEM. */
int mxclient_room_take_members(struct mxclient_room *room, const struct json *body);
/* Write the request that creates a private, encrypted room with the marker of a sync room, which
 * invites a user at once if `user_id` is not absent. `name` may be absent. */
void mxclient_room_create_request(
    struct span name, struct span user_id, struct mxclient_request *request);
/* Write the request that invites a user, joins or leaves. */
void mxclient_room_invite_request(
    struct span room_id, struct span user_id, struct mxclient_request *request);
void mxclient_room_join_request(struct span room_id, struct mxclient_request *request);
void mxclient_room_leave_request(struct span room_id, struct mxclient_request *request);
/* Write the request for the content of a state event whose state key is empty. */
void mxclient_room_state_request(
    struct span room_id, struct span type, struct mxclient_request *request);
/* Return whether the room's algorithm is Megolm, as far as it is encrypted. */
bool mxclient_room_can_encrypt(const struct mxclient_room *room);
/* End ROTATING: the session for sending was replaced. The room is not plain. */
void mxclient_room_rotated(struct mxclient_room *room);
void mxclient_room_set_membership(struct mxclient_room *room, enum mxclient_membership membership);
/* Note that /sync left out events that may change members: they are unknown, and an answer of /members
 * that is under way is older than the gap. */
void mxclient_room_note_gap(struct mxclient_room *room);
/* Add the step that stores the room, if it has changed. */
void mxclient_room_put(struct mxclient_room *room, struct sql_unit *unit);

#endif
