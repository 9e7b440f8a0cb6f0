/* SPDX-License-Identifier: Apache-2.0 */
/* megolm.h: the received sessions of rooms, and the events that they decrypt.
 *
 * 1. A session belongs to the room and the sender's identity key that it came with. A copy from the
 *    same device replaces it only if it begins earlier and leads to the same ratchet. A copy from
 *    another device is kept beside it: every member has the key of a session and can pass it on as
 *    its own, and nothing in the key tells whose it is. So a member who is first takes nothing from
 *    the owner.
 * 2. An event counts only if a copy's identity key is that of a known device of the event's sender,
 *    and its plaintext names the room. Else it stays held. Its row names that device, and what was
 *    known of it at decryption. An event that this device sent needs no list.
 * 3. An index of a copy belongs to one event: the store refuses replays, in the same unit.
 * 4. A walk tries the held events of a room again, page by page, after keys or devices have come. An
 *    event that decrypts gets the next seq: readers apply it after all events before it. The last
 *    page raises the room's floor to the earliest event that stays held, unless an event was held
 *    meanwhile that the walk has not seen.
 * 5. MXCLIENT_INBOUND_MAX copies are kept. Above it those go first that never decrypted an event, the
 *    oldest of them first, then those that did so longest ago. A clock of its own orders them: it
 *    counts keys that come, and copies that decrypt after a pause. Keys that we asked for, imported
 *    or made count as used. A key that was dropped can be asked for again. */
#ifndef MATRIX_CLIENT_MEGOLM_H
#define MATRIX_CLIENT_MEGOLM_H

#include "matrix/client/client.h"

enum {
    MXCLIENT_HELD_PER_PAGE = 32,
    MXCLIENT_INBOUND_MAX = 32768,
    MXCLIENT_INBOUND_PAUSE = 256, /* ticks of the clock after which another use is noted */
};

#define MXCLIENT_MEGOLM "m.megolm.v1.aes-sha2"

struct mxclient_inbound {
    struct mxclient_entry entry; /* room, session id and sender key, by lines */
    struct mx_inbound *inbound;
    struct mx_key sender_key;
    struct mx_key signing_key;
    enum mxstore_source source;
    int64_t received; /* by the clock of rule 5 */
    int64_t used;     /* 0: it never decrypted an event */
};
/* Return the room and the id of a copy's session. */
struct span mxclient_inbound_room(const struct mxclient_inbound *inbound);
struct span mxclient_inbound_session(const struct mxclient_inbound *inbound);

/* The device that gave a session. */
struct mxclient_room_key {
    struct mx_key sender_key;
    struct mx_key signing_key;
    enum mxstore_source source;
};

void mxclient_inbound_fini(void *object);
/* Take a stored row. Fails like mx_inbound_unpickle. */
int mxclient_megolm_load(struct mxclient *client, const struct mxstore_inbound *row);
/* Add the key of a session: the content of m.room_key, or one that names the session's owner itself:
 * of m.forwarded_room_key, or an entry of a key file. Sets the room's has_new_keys. MX_EINDEX: the
 * copy that is known is as good; MX_E*: the key is not valid; TR_ENOMEM. */
int mxclient_megolm_add_key(struct mxclient *client, const struct mxclient_room_key *from,
    const struct json *content, struct sql_unit *unit);
/* Add a key that a device sent; one that cannot be added is skipped and counted. TR_ENOMEM. */
int mxclient_megolm_take_key(struct mxclient *client, const struct mxclient_room_key *from,
    const struct json *content, struct sql_unit *unit);

/* Keep our own copy of a sending session, from its present index on, for our other devices and for
 * key files. TR_ENOMEM. */
int mxclient_megolm_keep_own(struct mxclient *client, struct span room_id,
    const struct mx_outbound *outbound, struct sql_unit *unit);
/* Find a session; NULL if it is not known. Of several copies the one that decrypted last counts. */
const struct mxclient_inbound *mxclient_megolm_find(
    const struct mxclient *client, struct span room_id, struct span session_id);
/* Return whether a known device of a user has brought a session. */
bool mxclient_megolm_has_of(const struct mxclient *client, struct span room_id,
    struct span session_id, struct span user_id);

/* An event that was decrypted. Texts point into the document. */
struct mxclient_cleartext {
    struct mxclient_inbound *session; /* the copy that decrypted it */
    uint32_t message_index;
    struct span type;
    struct buffer text; /* the whole plaintext; the caller wipes it */
    /* The author, by the session's keys and the device list. */
    enum mxstore_proof proof;
    struct span device_id; /* points into the client */
    char identity_key[MX_KEY_CHARS + 1];
};
/* Note the author of a decrypted event in its row. Texts of the row point into `text`. */
void mxclient_megolm_name_author(const struct mxclient_cleartext *text, struct mxstore_event *row);
/* Decrypt an m.room.encrypted event. MX_ESESSION or a reason of withheld.h: its key
 * has not come; MX_EDEVICE: its sender's
 * device is not known, or is another; MX_E*, TR_ENOMEM. */
int mxclient_megolm_decrypt(const struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_event *event, struct json_doc *doc, struct mxclient_cleartext *ret_text);

/* Add the steps that guard a decrypted event, whose row is in the unit before them or was stored, against
 * a replay (rule 3), and note that its session is in use. */
void mxclient_megolm_guard(struct mxclient *client, const struct mxclient_cleartext *text,
    struct span event_id, struct sql_unit *unit);

/* Return whether a key, a better copy of it or a device list can still come and help. */
bool mxclient_megolm_is_waiting(int reason);
/* Return whether the room's walk is under way, or keys or devices have come since the last one. */
bool mxclient_megolm_is_due(const struct mxclient *client, const struct mxclient_room *room);
/* Add the step that reads the next page of held events. */
void mxclient_megolm_read_held(const struct mxclient_room *room, struct sql_unit *unit);
/* Try a page again: the rows of that step, in a unit that has ended. Adds the steps that release the
 * events that decrypt and note why the others do not, and after the last page the one that raises the floor. Returns the number of
 * released events, or TR_ENOMEM. */
int mxclient_megolm_release(struct mxclient *client, struct mxclient_room *room,
    const struct sql_unit *held, uint32_t step, struct sql_unit *unit);

#endif
