/* SPDX-License-Identifier: Apache-2.0 */
/* megolm.c: received room sessions (Matrix specification, Client-Server API,
 * "m.megolm.v1.aes-sha2"). */
#include "matrix/client/megolm.h"

#include <stdio.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/body.h"
#include "matrix/client/key_request.h"
#include "matrix/client/withheld.h"

enum { MEGOLM_COPY_BYTES = MXCLIENT_ID_BYTES_MAX + 1 + MX_KEY_CHARS + 1 };

/* ---- sessions --------------------------------------------------------------------------------- */

void mxclient_inbound_fini(void *object)
{
    mx_inbound_destroy(((struct mxclient_inbound *)object)->inbound);
}

/* Write the id of a copy within its room. */
static void megolm_copy_id(
    struct span session_id, const struct mx_key *sender_key, char id[MEGOLM_COPY_BYTES])
{
    char sender[MX_KEY_CHARS + 1];

    mx_key_text(sender_key, sender);
    tr_assert(session_id.size <= MXCLIENT_ID_BYTES_MAX);
    (void)snprintf(id, MEGOLM_COPY_BYTES, "%.*s\n%s", (int)session_id.size, session_id.at, sender);
}

struct span mxclient_inbound_room(const struct mxclient_inbound *inbound)
{
    struct span rest = mxclient_id(&inbound->entry), room_id = rest;

    (void)span_cut(&rest, '\n', &room_id);
    return room_id;
}

struct span mxclient_inbound_session(const struct mxclient_inbound *inbound)
{
    struct span rest = mxclient_id(&inbound->entry), part = rest;

    (void)span_cut(&rest, '\n', &part);
    (void)span_cut(&rest, '\n', &part);
    return part;
}

/* A walk through the copies of a session, which stand together in the index. */
struct megolm_copies {
    const struct mxclient *client;
    struct buffer prefix; /* of their ids */
    uint32_t place;
};

static int megolm_copies_start(struct megolm_copies *copies, const struct mxclient *client,
    struct span room_id, struct span session_id)
{
    int rc;

    *copies = (struct megolm_copies){ .client = client };
    (void)buffer_span(&copies->prefix, room_id);
    (void)buffer_append(&copies->prefix, "\n", 1);
    (void)buffer_span(&copies->prefix, session_id);
    rc = buffer_append(&copies->prefix, "\n", 1);
    if (rc == 0)
        copies->place = mxclient_index_from(&client->inbounds, mxclient_span(&copies->prefix));
    return rc;
}

/* Return the next copy; NULL after the last, which ends the walk. */
static struct mxclient_inbound *megolm_copies_next(struct megolm_copies *copies)
{
    const struct mxclient_index *inbounds = &copies->client->inbounds;
    struct mxclient_entry *entry =
        copies->place < inbounds->count ? inbounds->entries[copies->place] : NULL;

    if (entry != NULL && copies->prefix.failed == 0 && entry->id.size > copies->prefix.size &&
        memcmp(entry->id.bytes, copies->prefix.bytes, copies->prefix.size) == 0) {
        copies->place++;
        return (struct mxclient_inbound *)entry;
    }
    buffer_free(&copies->prefix);
    copies->place = UINT32_MAX;
    return NULL;
}

const struct mxclient_inbound *mxclient_megolm_find(
    const struct mxclient *client, struct span room_id, struct span session_id)
{
    const struct mxclient_inbound *best = NULL, *copy;
    struct megolm_copies copies;

    (void)megolm_copies_start(&copies, client, room_id, session_id);
    while ((copy = megolm_copies_next(&copies)) != NULL)
        if (best == NULL || copy->used > best->used)
            best = copy;
    return best;
}

bool mxclient_megolm_has_of(
    const struct mxclient *client, struct span room_id, struct span session_id, struct span user_id)
{
    const struct mxclient_inbound *copy;
    struct megolm_copies copies;
    bool has = false;

    (void)megolm_copies_start(&copies, client, room_id, session_id);
    while ((copy = megolm_copies_next(&copies)) != NULL)
        has = has || mxclient_devices_by_key(&client->devices, user_id, &copy->sender_key) != NULL;
    return has;
}

/* Keep a session, which is then owned by the client, in place of the device's former copy. */
static int megolm_keep(struct mxclient *client, struct span room_id, struct span session_id,
    const struct mxclient_room_key *key, struct mx_inbound *inbound,
    struct mxclient_inbound **ret_kept)
{
    struct mxclient_inbound *kept;
    char id[MEGOLM_COPY_BYTES];

    megolm_copy_id(session_id, &key->sender_key, id);
    kept = mxclient_index_add_pair(&client->inbounds, room_id, span_of(id), sizeof *kept);
    if (kept == NULL)
        return TR_ENOMEM;
    mx_inbound_destroy(kept->inbound);
    kept->inbound = inbound;
    kept->sender_key = key->sender_key;
    kept->signing_key = key->signing_key;
    kept->source = key->source;
    *ret_kept = kept;
    return 0;
}

int mxclient_megolm_load(struct mxclient *client, const struct mxstore_inbound *row)
{
    struct mxclient_room_key key = { .source = (enum mxstore_source)row->source };
    struct mxclient_inbound *kept = NULL;
    struct mx_inbound *inbound = NULL;
    int rc = mx_key_parse(row->sender_key, &key.sender_key);

    tr_assert(row->source >= 0 && row->source <= MXSTORE_IMPORTED);
    if (rc == 0)
        rc = mx_key_parse(row->signing_key, &key.signing_key);
    if (rc == 0)
        rc = mx_inbound_unpickle(row->pickle, client->session.key, &inbound);
    if (rc == 0)
        rc = megolm_keep(client, row->room_id, row->session_id, &key, inbound, &kept);
    if (rc != 0) {
        mx_inbound_destroy(inbound);
        return rc;
    }
    kept->received = row->received;
    kept->used = row->used;
    if (client->inbound_clock < row->received)
        client->inbound_clock = row->received;
    if (client->inbound_clock < row->used)
        client->inbound_clock = row->used;
    return 0;
}

/* ---- the limit -------------------------------------------------------------------------------- */

/* Return whether a copy is dropped before another one (rule 5). */
static bool megolm_is_idler(
    const struct mxclient_inbound *one, const struct mxclient_inbound *other)
{
    if (one->used != other->used)
        return one->used < other->used;
    return one->received < other->received;
}

/* Drop the copy that is idle longest, but not this one. */
static void megolm_make_place(
    struct mxclient *client, const struct mxclient_inbound *kept, struct sql_unit *unit)
{
    const struct mxclient_index *inbounds = &client->inbounds;
    const struct mxclient_inbound *idle = NULL;
    char sender[MX_KEY_CHARS + 1];

    if (inbounds->count <= MXCLIENT_INBOUND_MAX)
        return;
    for (uint32_t i = 0; i < inbounds->count; i++) {
        const struct mxclient_inbound *it = (const struct mxclient_inbound *)inbounds->entries[i];

        if (it != kept && (idle == NULL || megolm_is_idler(it, idle)))
            idle = it;
    }
    tr_assert(idle != NULL);
    mx_key_text(&idle->sender_key, sender);
    mxstore_drop_inbound(unit, &(struct mxstore_inbound){ .room_id = mxclient_inbound_room(idle),
                                   .session_id = mxclient_inbound_session(idle),
                                   .sender_key = span_of(sender) });
    mxclient_index_remove(&client->inbounds, mxclient_id(&idle->entry), mxclient_inbound_fini);
    client->dropped_sessions++;
}

/* ---- storing ---------------------------------------------------------------------------------- */

static int megolm_put(
    const struct mxclient *client, const struct mxclient_inbound *kept, struct sql_unit *unit)
{
    char sender[MX_KEY_CHARS + 1], signing[MX_KEY_CHARS + 1];
    struct buffer pickle = { 0 };
    int rc = mx_inbound_pickle(kept->inbound, client->session.key, client->session.random, &pickle);

    mx_key_text(&kept->sender_key, sender);
    mx_key_text(&kept->signing_key, signing);
    if (rc == 0)
        mxstore_put(unit, MXSTORE_IS_inbound,
            &(struct mxstore_inbound){ .room_id = mxclient_inbound_room(kept),
                .session_id = mxclient_inbound_session(kept),
                .sender_key = span_of(sender),
                .signing_key = span_of(signing),
                .pickle = mxclient_span(&pickle),
                .first_index = mx_inbound_first_index(kept->inbound),
                .source = kept->source,
                .received = kept->received,
                .used = kept->used });
    buffer_free(&pickle);
    return rc;
}

/* Keep and store a session, which this takes. TR_ENOMEM. */
static int megolm_take(struct mxclient *client, struct span room_id, struct span session_id,
    const struct mxclient_room_key *key, struct mx_inbound *inbound, struct sql_unit *unit)
{
    bool is_ours = mx_key_equal(&key->sender_key, mx_account_identity_key(client->session.account));
    struct mxclient_inbound *kept = NULL;
    int rc = megolm_keep(client, room_id, session_id, key, inbound, &kept);

    if (rc != 0) {
        mx_inbound_destroy(inbound);
        return rc;
    }
    kept->received = ++client->inbound_clock;
    if (kept->used == 0 && (is_ours || key->source != MXSTORE_FROM_OWNER))
        kept->used = kept->received;
    megolm_make_place(client, kept, unit);
    return megolm_put(client, kept, unit);
}

/* ---- keys ------------------------------------------------------------------------------------- */

/* Return whether this copy is worth keeping (rule 1). */
static bool megolm_is_better(const struct mxclient *client, struct span room_id,
    struct span session_id, const struct mxclient_room_key *key, const struct mx_inbound *inbound)
{
    const struct mxclient_inbound *known;
    char id[MEGOLM_COPY_BYTES];

    megolm_copy_id(session_id, &key->sender_key, id);
    known = mxclient_index_find_pair(&client->inbounds, room_id, span_of(id));
    return known == NULL || mx_inbound_compare(known->inbound, inbound) == MX_COPY_BETTER;
}

/* A forwarded or imported key names its owner; the one who gives it is trusted to be right. */
static bool megolm_read_owner(const struct json *content, struct mxclient_room_key *key)
{
    const struct json *claimed = key->source == MXSTORE_IMPORTED
                                     ? json_get(json_get(content, "sender_claimed_keys"), "ed25519")
                                     : json_get(content, "sender_claimed_ed25519_key");
    struct span sender, signing;

    return json_string(json_get(content, "sender_key"), &sender) &&
           json_string(claimed, &signing) && mx_key_parse(sender, &key->sender_key) == 0 &&
           mx_key_parse(signing, &key->signing_key) == 0;
}

int mxclient_megolm_take_key(struct mxclient *client, const struct mxclient_room_key *from,
    const struct json *content, struct sql_unit *unit)
{
    int rc = mxclient_megolm_add_key(client, from, content, unit);

    if (rc == 0 || rc == TR_ENOMEM)
        return rc;
    client->skipped++;
    return 0;
}

int mxclient_megolm_add_key(struct mxclient *client, const struct mxclient_room_key *from,
    const struct json *content, struct sql_unit *unit)
{
    struct mxclient_room_key key = *from;
    struct span algorithm, room_id, session_id, text;
    struct mx_inbound *inbound = NULL;
    struct mxclient_room *room;
    char id[MX_SESSION_ID_CHARS + 1];
    bool is_given = from->source != MXSTORE_FROM_OWNER; /* by another than its owner */
    int rc = MX_EFORMAT;

    if (json_string(json_get(content, "algorithm"), &algorithm) &&
        span_is(algorithm, MXCLIENT_MEGOLM) &&
        mxclient_read_id(json_get(content, "room_id"), &room_id) &&
        mxclient_read_id(json_get(content, "session_id"), &session_id) &&
        json_string(json_get(content, "session_key"), &text) &&
        (!is_given || megolm_read_owner(content, &key)))
        rc = is_given ? mx_inbound_import(text, &inbound) : mx_inbound_create(text, &inbound);
    if (rc == 0) {
        mx_inbound_id(inbound, id);
        rc = span_is(session_id, id) ? 0 : MX_ESESSION;
    }
    if (rc == 0 && !megolm_is_better(client, room_id, session_id, &key, inbound))
        rc = MX_EINDEX;
    if (rc != 0) {
        mx_inbound_destroy(inbound);
        return rc;
    }
    rc = megolm_take(client, room_id, session_id, &key, inbound, unit);
    if (rc != 0)
        return rc;
    mxclient_withheld_forget(client, room_id, session_id, &key.sender_key, unit);
    mxclient_key_request_came(client, room_id, session_id, unit);
    room = mxclient_rooms_find(&client->rooms, room_id);
    if (room != NULL)
        room->has_new_keys = true;
    return 0;
}

int mxclient_megolm_keep_own(struct mxclient *client, struct span room_id,
    const struct mx_outbound *outbound, struct sql_unit *unit)
{
    const struct mx_account *account = client->session.account;
    struct mxclient_room_key key = { .sender_key = *mx_account_identity_key(account),
        .signing_key = *mx_account_signing_key(account),
        .source = MXSTORE_FROM_OWNER };
    struct mx_inbound *inbound = NULL;
    char id[MX_SESSION_ID_CHARS + 1];
    struct buffer text = { 0 };
    int rc = mx_outbound_key(outbound, &text);

    mx_outbound_id(outbound, id);
    rc = rc != 0 ? rc : mx_inbound_create(mxclient_span(&text), &inbound);
    if (rc == 0)
        rc = megolm_take(client, room_id, span_of(id), &key, inbound, unit);
    mx_wipe_buffer(&text);
    return rc;
}

/* ---- events ----------------------------------------------------------------------------------- */

/* Check rule 2 on the plaintext. */
static int megolm_read_plaintext(
    const struct mxclient_room *room, struct json_doc *doc, struct mxclient_cleartext *text)
{
    struct span room_id;
    int rc;

    doc->depth_max = MXCLIENT_EVENT_DEPTH_MAX;
    rc = json_parse_copy(doc, mxclient_span(&text->text), JSON_UNIQUE_KEYS);
    if (rc != 0)
        return rc == TR_ENOMEM ? rc : rc == TR_ELIMIT ? MX_ETOOBIG : MX_EFORMAT;
    if (!json_string(json_get(json_root(doc), "room_id"), &room_id) ||
        !span_equal(room_id, mxclient_id(&room->entry)) ||
        !mxclient_read_id(json_get(json_root(doc), "type"), &text->type) ||
        json_kind(json_get(json_root(doc), "content")) != JSON_OBJECT)
        return MX_EFORMAT;
    return 0;
}

void mxclient_megolm_name_author(const struct mxclient_cleartext *text, struct mxstore_event *row)
{
    row->proof = text->proof;
    row->device_id = text->device_id;
    row->identity_key = span_of(text->identity_key);
    row->is_own = text->proof == MXSTORE_BY_US;
}

/* Say how far a session proves that this device wrote an event. The owner of a session that was given
 * to us by another is that one's word. */
static enum mxstore_proof megolm_prove(
    const struct mxclient_inbound *session, const struct mxclient_device *device)
{
    static const enum mxstore_proof given[] = {
        [MXSTORE_FORWARDED] = MXSTORE_BY_FORWARDED,
        [MXSTORE_IMPORTED] = MXSTORE_BY_IMPORTED,
    };

    if (session->source != MXSTORE_FROM_OWNER)
        return given[session->source];
    return device->is_deleted ? MXSTORE_BY_GONE
                              : (enum mxstore_proof)(MXSTORE_BY_UNVERIFIED + device->trust);
}

/* Find the device that wrote an event, by its session's keys (rule 2). Our own device needs no list.
 * MX_EDEVICE: it is not known, or is another. */
static int megolm_find_author(const struct mxclient *client, const struct mxclient_event *event,
    const struct mxclient_inbound *session, struct mxclient_cleartext *text)
{
    const struct mxclient_session *own = &client->session;
    const struct mxclient_device *device =
        mxclient_devices_by_key(&client->devices, event->sender, &session->sender_key);

    mx_key_text(&session->sender_key, text->identity_key);
    if (session->source == MXSTORE_FROM_OWNER &&
        span_equal(event->sender, mxclient_span(&own->user_id)) &&
        mx_key_equal(&session->sender_key, mx_account_identity_key(own->account))) {
        text->proof = MXSTORE_BY_US;
        text->device_id = mxclient_span(&own->device_id);
        return 0;
    }
    if (device == NULL || !mx_key_equal(&device->signing_key, &session->signing_key))
        return MX_EDEVICE;
    text->proof = megolm_prove(session, device);
    text->device_id = mxclient_id(&device->entry);
    return 0;
}

/* Decrypt with one copy of the session. */
static int megolm_decrypt_with(const struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_event *event, struct span body, struct json_doc *doc,
    struct mxclient_cleartext *text)
{
    int rc = megolm_find_author(client, event, text->session, text);

    if (rc == 0)
        rc = mx_inbound_decrypt(text->session->inbound, body, &text->text, &text->message_index);
    if (rc == 0)
        rc = megolm_read_plaintext(room, doc, text);
    if (rc != 0)
        mx_wipe_buffer(&text->text);
    return rc;
}

int mxclient_megolm_decrypt(const struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_event *event, struct json_doc *doc, struct mxclient_cleartext *ret_text)
{
    struct span algorithm, session_id, body, room_id = mxclient_id(&room->entry);
    struct mxclient_cleartext text = { 0 };
    struct megolm_copies copies;
    bool is_known = false;
    int rc, why = MX_EDEVICE;

    if (json_string(json_get(event->content, "algorithm"), &algorithm) &&
        !span_is(algorithm, MXCLIENT_MEGOLM))
        return MX_EALGORITHM;
    if (!json_string(json_get(event->content, "algorithm"), &algorithm) ||
        !mxclient_read_id(json_get(event->content, "session_id"), &session_id) ||
        !json_string(json_get(event->content, "ciphertext"), &body))
        return MX_EFORMAT;
    rc = megolm_copies_start(&copies, client, room_id, session_id);
    if (rc != 0)
        why = rc;
    while ((text.session = megolm_copies_next(&copies)) != NULL) {
        is_known = true;
        /* After the copy that decrypts, the others are walked over. */
        if (why == 0 || why == TR_ENOMEM)
            continue;
        rc = megolm_decrypt_with(client, room, event, body, doc, &text);
        if (rc == 0)
            *ret_text = text;
        if (rc == 0 || why == MX_EDEVICE)
            why = rc;
    }
    /* The owner's word counts more than a copy of another device. */
    if (why == MX_EDEVICE) {
        rc = mxclient_withheld_reason(client, room_id, session_id, event->sender);
        why = !is_known || mxclient_withheld_is(rc) ? rc : why;
    }
    return why;
}

void mxclient_megolm_guard(struct mxclient *client, const struct mxclient_cleartext *text,
    struct span event_id, struct sql_unit *unit)
{
    struct mxclient_inbound *session = text->session;
    struct span session_id = mxclient_inbound_session(session);
    char sender[MX_KEY_CHARS + 1], copy[MEGOLM_COPY_BYTES];

    mx_key_text(&session->sender_key, sender);
    (void)snprintf(copy, sizeof copy, "%.*s %s", (int)session_id.size, session_id.at, sender);
    mxstore_guard_index(unit, span_of(copy), text->message_index, event_id, MX_EINDEX);
    if (session->used != 0 && client->inbound_clock - session->used < MXCLIENT_INBOUND_PAUSE)
        return;
    session->used = ++client->inbound_clock;
    mxstore_use_inbound(unit, &(struct mxstore_inbound){ .room_id = mxclient_inbound_room(session),
                                  .session_id = session_id,
                                  .sender_key = span_of(sender),
                                  .used = session->used });
}

bool mxclient_megolm_is_waiting(int reason)
{
    return reason == MX_ESESSION || reason == MX_EINDEX || reason == MX_EDEVICE ||
           mxclient_withheld_is(reason);
}

/* Release one held row if it decrypts. */
static int megolm_release_row(struct mxclient *client, const struct mxclient_room *room,
    const struct mxstore_event *row, struct sql_unit *unit)
{
    struct json_doc event_doc = { 0 }, doc = { 0 };
    struct mxclient_cleartext text = { 0 };
    struct mxclient_event event = { 0 };
    struct mxstore_event released = { .event_id = row->event_id };
    struct buffer sealed = { 0 };
    int rc = json_parse_copy(&event_doc, row->body, 0);

    if (rc == 0)
        rc = mxclient_event_read(json_root(&event_doc), &event) ? 0 : MX_EFORMAT;
    if (rc == 0)
        rc = mxclient_megolm_decrypt(client, room, &event, &doc, &text);
    if (rc != 0 && rc != TR_ENOMEM && mxclient_key_request_note(client, room, &event, rc, 0, unit))
        rc = TR_ENOMEM;
    if (rc == 0)
        rc =
            mxclient_body_seal(&client->session, row->event_id, mxclient_span(&text.text), &sealed);
    if (rc == 0) {
        released.type = text.type;
        released.body = mxclient_span(&sealed);
        released.seq = client->seq_next++;
        mxclient_megolm_name_author(&text, &released);
        mxstore_release_event(unit, &released);
        mxclient_megolm_guard(client, &text, row->event_id, unit);
    }
    mx_wipe_buffer(&text.text);
    buffer_free(&sealed);
    json_doc_free(&event_doc);
    mxclient_body_forget(&doc);
    return rc;
}

bool mxclient_megolm_is_due(const struct mxclient *client, const struct mxclient_room *room)
{
    return room->has_new_keys || room->devices_tried != client->devices.added || room->held_seq > 0;
}

void mxclient_megolm_read_held(const struct mxclient_room *room, struct sql_unit *unit)
{
    mxstore_get_held(unit, mxclient_id(&room->entry), room->held_seq, MXCLIENT_HELD_PER_PAGE);
}

/* Keys that come from now on are for the next walk. */
static void megolm_start_walk(const struct mxclient *client, struct mxclient_room *room)
{
    room->has_new_keys = false;
    room->devices_tried = client->devices.added;
    room->held_floor_ms = MXSTORE_NO_FLOOR;
    room->held_revision = -1;
}

static void megolm_keep_held(
    struct mxclient_room *room, const struct mxstore_event *row, int reason, struct sql_unit *unit)
{
    bool is_waiting = mxclient_megolm_is_waiting(reason);

    if (reason != row->reason || !is_waiting)
        mxstore_judge_held(
            unit, row->event_id, is_waiting ? MXSTORE_HELD : MXSTORE_ABANDONED, reason);
    if (is_waiting && row->origin_ms < room->held_floor_ms)
        room->held_floor_ms = row->origin_ms;
}

/* An event that is held while the walk goes on has a larger seq, so a later page has it. */
static void megolm_end_walk(struct mxclient_room *room, struct sql_unit *unit)
{
    room->held_seq = 0;
    if (room->held_revision >= 0)
        mxstore_raise_floor(
            unit, mxclient_id(&room->entry), room->held_revision, room->held_floor_ms);
}

int mxclient_megolm_release(struct mxclient *client, struct mxclient_room *room,
    const struct sql_unit *held, uint32_t step, struct sql_unit *unit)
{
    uint32_t rows = sql_unit_rows(held, step);
    int count = 0;

    if (room->held_seq == 0)
        megolm_start_walk(client, room);
    if (rows > 0)
        room->held_revision = mxstore_held_revision(held, step);
    for (uint32_t i = 0; i < rows; i++) {
        struct mxstore_event row;
        int rc;

        mxstore_row(held, step, i, MXSTORE_IS_event, &row);
        rc = megolm_release_row(client, room, &row, unit);
        if (rc == TR_ENOMEM)
            return rc;
        count += rc == 0 ? 1 : 0;
        room->held_seq = row.seq;
        if (rc != 0)
            megolm_keep_held(room, &row, rc, unit);
    }
    if (rows < MXCLIENT_HELD_PER_PAGE)
        megolm_end_walk(room, unit);
    return count;
}
