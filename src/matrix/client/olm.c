/* SPDX-License-Identifier: Apache-2.0 */
/* olm.c: messages to a device (Matrix specification, Client-Server API,
 * "m.olm.v1.curve25519-aes-sha2"). */
#include "matrix/client/olm.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/key_request.h"
#include "matrix/client/megolm.h"
#include "matrix/client/send.h"
#include "matrix/client/withheld.h"

#define ALGORITHM "m.olm.v1.curve25519-aes-sha2"

/* ---- sessions --------------------------------------------------------------------------------- */

void mxclient_peer_fini(void *object)
{
    struct mxclient_peer *peer = object;

    for (uint32_t i = 0; i < peer->count; i++)
        mx_olm_destroy(peer->sessions[i].olm);
    peer->count = 0;
}

static struct mxclient_peer *olm_peer(const struct mxclient *client, const struct mx_key *key)
{
    char text[MX_KEY_CHARS + 1];

    mx_key_text(key, text);
    return mxclient_index_find(&client->peers, span_of(text));
}

struct mxclient_peer *mxclient_olm_peer(
    struct mxclient *client, const struct mxclient_device *device)
{
    struct mxclient_peer *peer;
    char text[MX_KEY_CHARS + 1];

    mx_key_text(&device->identity_key, text);
    peer = mxclient_index_add(&client->peers, span_of(text), sizeof *peer);
    if (peer != NULL)
        peer->is_known = true;
    return peer;
}

/* Return the place of the session that received last, or first (to be dropped). */
static uint32_t olm_extreme(const struct mxclient_peer *peer, bool is_last)
{
    uint32_t best = 0;

    tr_assert(peer->count > 0);
    for (uint32_t i = 1; i < peer->count; i++)
        if ((peer->sessions[i].received_ms > peer->sessions[best].received_ms) == is_last)
            best = i;
    return best;
}

/* Add a session, which the peer then owns. TR_ENOMEM: the caller still owns it. */
static int olm_add(struct mxclient *client, const struct mx_key *key,
    const struct mxclient_olm *session, struct mxclient_olm **ret_session)
{
    char text[MX_KEY_CHARS + 1];
    struct mxclient_peer *peer;
    uint32_t place;

    mx_key_text(key, text);
    peer = mxclient_index_add(&client->peers, span_of(text), sizeof *peer);
    if (peer == NULL)
        return TR_ENOMEM;
    place = peer->count;
    if (peer->count == MXCLIENT_OLM_PER_DEVICE) {
        place = olm_extreme(peer, false);
        mx_olm_id(peer->sessions[place].olm, peer->dropped);
        mx_olm_destroy(peer->sessions[place].olm);
    } else
        peer->count++;
    peer->sessions[place] = *session;
    *ret_session = &peer->sessions[place];
    return 0;
}

int mxclient_olm_load(struct mxclient *client, const struct mxstore_olm *row)
{
    struct mxclient_olm session = { .created_ms = row->created_ms,
        .received_ms = row->received_ms };
    const struct mxclient_peer *peer;
    struct mxclient_olm *added;
    struct mx_key key;
    bool is_full;
    int rc = mx_key_parse(row->identity_key, &key);

    if (rc == 0)
        rc = mx_olm_unpickle(row->pickle, client->session.key, &session.olm);
    if (rc != 0)
        return rc;
    peer = olm_peer(client, &key);
    is_full = peer != NULL && peer->count == MXCLIENT_OLM_PER_DEVICE &&
              peer->sessions[olm_extreme(peer, false)].received_ms >= session.received_ms;
    if (!is_full)
        rc = olm_add(client, &key, &session, &added);
    if (is_full || rc != 0)
        mx_olm_destroy(session.olm);
    return rc;
}

/* Store a session, and forget the one that it has replaced. */
static int olm_put(
    const struct mxclient *client, const struct mxclient_olm *session, struct sql_unit *unit)
{
    struct mxclient_peer *peer = olm_peer(client, mx_olm_their_identity(session->olm));
    char identity[MX_KEY_CHARS + 1], id[MX_OLM_ID_CHARS + 1];
    struct buffer pickle = { 0 };
    int rc = mx_olm_pickle(session->olm, client->session.key, client->session.random, &pickle);

    mx_key_text(mx_olm_their_identity(session->olm), identity);
    mx_olm_id(session->olm, id);
    if (rc == 0)
        mxstore_put(unit, MXSTORE_IS_olm,
            &(struct mxstore_olm){ .identity_key = span_of(identity),
                .session_id = span_of(id),
                .pickle = mxclient_span(&pickle),
                .created_ms = session->created_ms,
                .received_ms = session->received_ms });
    if (rc == 0 && peer->dropped[0] != 0) {
        mxstore_drop_olm(unit, span_of(identity), span_of(peer->dropped));
        peer->dropped[0] = 0;
    }
    buffer_free(&pickle);
    return rc;
}

/* ---- the limit -------------------------------------------------------------------------------- */

/* Mark the peers that are known devices, if devices have come since the last time. */
static void olm_mark_known(struct mxclient *client)
{
    if (client->peers_marked == client->devices.added + 1)
        return;
    client->peers_marked = client->devices.added + 1;
    for (uint32_t i = 0; i < client->devices.users.count; i++) {
        const struct mxclient_user *user =
            (const struct mxclient_user *)client->devices.users.entries[i];

        for (uint32_t k = 0; k < user->devices.count; k++) {
            struct mxclient_peer *peer = olm_peer(
                client, &((const struct mxclient_device *)user->devices.entries[k])->identity_key);

            if (peer != NULL)
                peer->is_known = true;
        }
    }
}

static int64_t olm_received_ms(const struct mxclient_peer *peer)
{
    return peer->count == 0 ? 0 : peer->sessions[olm_extreme(peer, true)].received_ms;
}

/* Drop a peer if a limit is passed (rule 5), but not this one, nor one that a claim is under way for. */
static void olm_make_place(
    struct mxclient *client, const struct mxclient_peer *kept, struct sql_unit *unit)
{
    const struct mxclient_index *peers = &client->peers;
    const struct mxclient_peer *idle = NULL;
    uint32_t strangers = 0;

    if (peers->count <= MXCLIENT_STRANGERS_MAX)
        return;
    olm_mark_known(client);
    for (uint32_t i = 0; i < peers->count; i++) {
        const struct mxclient_peer *it = (const struct mxclient_peer *)peers->entries[i];

        strangers += it->is_known ? 0 : 1;
        if (it == kept || it->claiming != MXCLIENT_NOT_CLAIMING)
            continue;
        if (idle == NULL ||
            (it->is_known == idle->is_known ? olm_received_ms(it) < olm_received_ms(idle)
                                            : !it->is_known))
            idle = it;
    }
    if (idle == NULL || (strangers <= MXCLIENT_STRANGERS_MAX && peers->count <= MXCLIENT_PEERS_MAX))
        return;
    mxstore_drop_olm(unit, mxclient_id(&idle->entry), (struct span){ NULL, 0 });
    mxclient_index_remove(&client->peers, mxclient_id(&idle->entry), mxclient_peer_fini);
    client->dropped_sessions++;
}

/* ---- sending ---------------------------------------------------------------------------------- */

bool mxclient_olm_is_ready(const struct mxclient *client, const struct mxclient_device *device)
{
    const struct mxclient_peer *peer = olm_peer(client, &device->identity_key);

    return peer != NULL && peer->count > 0 && !peer->is_wedged;
}

bool mxclient_olm_has_session(const struct mxclient *client, const struct mxclient_device *device)
{
    const struct mxclient_peer *peer = olm_peer(client, &device->identity_key);

    return peer != NULL && peer->count > 0;
}

int mxclient_olm_start(struct mxclient *client, const struct mxclient_device *device,
    const struct mx_key *one_time_key, int64_t now_ms)
{
    struct mxclient_olm session = { .created_ms = now_ms, .received_ms = now_ms };
    struct mxclient_olm *added;
    struct mxclient_peer *peer;
    int rc = mx_olm_create_outbound(client->session.account, &device->identity_key, one_time_key,
        client->session.random, &session.olm);

    if (rc != 0)
        return rc;
    rc = olm_add(client, &device->identity_key, &session, &added);
    if (rc != 0) {
        mx_olm_destroy(session.olm);
        return rc;
    }
    peer = olm_peer(client, &device->identity_key);
    peer->needs_dummy = peer->needs_dummy || peer->is_wedged;
    peer->is_wedged = false;
    return 0;
}

/* Write the plaintext: the members that the receiver checks, and our device keys for the check. */
static int olm_put_plaintext(const struct mxclient *client, struct mxclient_place place,
    const struct mxclient_device *device, struct span type, struct span content, struct buffer *out)
{
    const struct mxclient_session *session = &client->session;
    struct json_writer writer = json_writer(out);
    char ours[MX_KEY_CHARS + 1], theirs[MX_KEY_CHARS + 1];
    struct buffer keys = { 0 };
    int rc = mxclient_keys_device(session, &keys);

    mx_key_text(mx_account_signing_key(session->account), ours);
    mx_key_text(&device->signing_key, theirs);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "type", type);
    json_put_raw(&writer, "content", content);
    json_put_string(&writer, "sender", mxclient_span(&session->user_id));
    json_put_string(&writer, "recipient", place.user_id);
    json_put_object(&writer, "recipient_keys");
    json_put_text(&writer, "ed25519", theirs);
    json_put_end(&writer);
    json_put_object(&writer, "keys");
    json_put_text(&writer, "ed25519", ours);
    json_put_end(&writer);
    if (rc == 0)
        json_put_raw(&writer, "sender_device_keys", mxclient_span(&keys));
    json_put_end(&writer);
    buffer_free(&keys);
    return rc == 0 ? json_writer_end(&writer) : rc;
}

static void olm_put_content(const struct mxclient *client, const struct mxclient_device *device,
    enum mx_olm_type type, struct span body, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    char ours[MX_KEY_CHARS + 1], theirs[MX_KEY_CHARS + 1];

    mx_key_text(mx_account_identity_key(client->session.account), ours);
    mx_key_text(&device->identity_key, theirs);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "algorithm", ALGORITHM);
    json_put_text(&writer, "sender_key", ours);
    json_put_object(&writer, "ciphertext");
    json_put_object(&writer, theirs);
    json_put_int(&writer, "type", type);
    json_put_string(&writer, "body", body);
    json_put_end(&writer);
    json_put_end(&writer);
    json_put_end(&writer);
}

int mxclient_olm_encrypt(struct mxclient *client, struct mxclient_place place,
    const struct mxclient_device *device, struct span type, struct span content,
    struct sql_unit *unit, struct buffer *out)
{
    struct mxclient_peer *peer = olm_peer(client, &device->identity_key);
    struct buffer plaintext = { 0 }, body = { 0 };
    struct mxclient_olm *session;
    enum mx_olm_type kind;
    int rc;

    if (peer == NULL || peer->count == 0)
        return TR_ENOENT;
    session = &peer->sessions[olm_extreme(peer, true)];
    rc = olm_put_plaintext(client, place, device, type, content, &plaintext);
    if (rc == 0)
        rc = mx_olm_encrypt(
            session->olm, mxclient_span(&plaintext), client->session.random, &kind, &body);
    if (rc == 0)
        rc = olm_put(client, session, unit);
    if (rc == 0) {
        olm_put_content(client, device, kind, mxclient_span(&body), out);
        rc = out->failed;
    }
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
    return rc;
}

/* ---- batches ---------------------------------------------------------------------------------- */

void mxclient_batch_start(struct mxclient_batch *batch, struct mxclient *client,
    struct mxclient_request *request, struct sql_unit *unit)
{
    mxclient_batch_start_clear(batch, client, SPAN("m.room.encrypted"), request, unit);
}

void mxclient_batch_start_clear(struct mxclient_batch *batch, struct mxclient *client,
    struct span type, struct mxclient_request *request, struct sql_unit *unit)
{
    char txn[MXCLIENT_TXN_BYTES];

    mxclient_request_init(request, MXCLIENT_TO_DEVICE,
        (struct span[]){ type, mxclient_session_txn(&client->session, txn) });
    *batch = (struct mxclient_batch){
        .client = client, .request = request, .unit = unit, .writer = json_writer(&request->body)
    };
    json_put_object(&batch->writer, NULL);
    json_put_object(&batch->writer, "messages");
}

void mxclient_batch_put(
    struct mxclient_batch *batch, struct mxclient_place place, struct span content)
{
    if (!span_equal(batch->user_id, place.user_id)) {
        if (batch->count > 0)
            json_put_end(&batch->writer);
        json_put_key(&batch->writer, place.user_id);
        json_put_object(&batch->writer, NULL);
        batch->user_id = place.user_id;
    }
    json_put_key(&batch->writer, place.device_id);
    json_put_raw(&batch->writer, NULL, content);
    batch->count++;
}

int mxclient_batch_add(struct mxclient_batch *batch, struct mxclient_place place,
    const struct mxclient_device *device, struct span type, struct span content)
{
    struct buffer message = { 0 };
    int rc =
        mxclient_olm_encrypt(batch->client, place, device, type, content, batch->unit, &message);

    if (rc == 0)
        mxclient_batch_put(batch, place, mxclient_span(&message));
    buffer_free(&message);
    return rc;
}

int mxclient_batch_end(struct mxclient_batch *batch, int rc)
{
    if (batch->count > 0)
        json_put_end(&batch->writer);
    json_put_end(&batch->writer);
    json_put_end(&batch->writer);
    if (rc == 0)
        rc = mxclient_request_error(batch->request);
    if (rc == 0 && batch->count > 0)
        rc = mxclient_session_put(&batch->client->session, batch->unit);
    if (rc != 0 || batch->count == 0)
        mxclient_request_fini(batch->request);
    return rc;
}

/* ---- wedged sessions -------------------------------------------------------------------------- */

/* Walk all known devices that are not deleted, with their sessions. */
struct olm_walk {
    uint32_t user;
    uint32_t device;
    struct mxclient_place place;
    const struct mxclient_device *at;
    struct mxclient_peer *peer;
};

static bool olm_next(const struct mxclient *client, struct olm_walk *walk)
{
    for (; walk->user < client->devices.users.count; walk->user++, walk->device = 0) {
        const struct mxclient_user *user =
            (const struct mxclient_user *)client->devices.users.entries[walk->user];

        while (walk->device < user->devices.count) {
            walk->at = (const struct mxclient_device *)user->devices.entries[walk->device++];
            walk->peer = olm_peer(client, &walk->at->identity_key);
            walk->place =
                (struct mxclient_place){ mxclient_id(&user->entry), mxclient_id(&walk->at->entry) };
            if (walk->peer != NULL && !walk->at->is_deleted)
                return true;
        }
    }
    return false;
}

static int olm_send_dummies(struct mxclient *client, struct sql_unit *unit,
    struct mxclient_request *request, bool *ret_is_needed)
{
    struct olm_walk walk = { 0 };
    struct mxclient_batch batch;
    int rc = 0;

    mxclient_batch_start(&batch, client, request, unit);
    while (rc == 0 && batch.count < MXCLIENT_SHARES_PER_REQUEST && olm_next(client, &walk))
        if (walk.peer->needs_dummy && !walk.peer->is_wedged) {
            rc = mxclient_batch_add(&batch, walk.place, walk.at, SPAN("m.dummy"), SPAN("{}"));
            walk.peer->needs_dummy = false;
        }
    *ret_is_needed = batch.count > 0;
    return mxclient_batch_end(&batch, rc);
}

int mxclient_unwedge_prepare(struct mxclient *client, int64_t now_ms, struct sql_unit *unit,
    enum mxclient_need *ret_need, struct mxclient_request *request)
{
    struct mxclient_place places[MXCLIENT_SHARES_PER_REQUEST];
    struct olm_walk walk = { 0 };
    bool is_needed = false;
    size_t count = 0;
    int rc;

    *ret_need = MXCLIENT_NEED_ANSWER;
    if (client->is_unwedging)
        return 0;
    while (count < MXCLIENT_SHARES_PER_REQUEST && olm_next(client, &walk))
        if (walk.peer->is_wedged && walk.peer->claiming == MXCLIENT_NOT_CLAIMING &&
            now_ms >= walk.peer->next_claim_ms) {
            walk.peer->claiming = MXCLIENT_CLAIMING_TO_UNWEDGE;
            places[count++] = walk.place;
        }
    if (count > 0) {
        mxclient_claim_request(request, places, count);
        client->is_unwedging = true;
        *ret_need = MXCLIENT_NEED_CLAIM;
        return 0;
    }
    rc = olm_send_dummies(client, unit, request, &is_needed);
    *ret_need = is_needed ? MXCLIENT_NEED_SHARE : MXCLIENT_NEED_NOTHING;
    return rc;
}

int mxclient_unwedge_claimed(struct mxclient *client, const struct json *answer, int64_t now_ms)
{
    struct olm_walk walk = { 0 };

    tr_assert(client->is_unwedging);
    client->is_unwedging = false;
    while (olm_next(client, &walk)) {
        struct mx_key key;
        int rc;

        if (walk.peer->claiming != MXCLIENT_CLAIMING_TO_UNWEDGE)
            continue;
        walk.peer->claiming = MXCLIENT_NOT_CLAIMING;
        rc = mxclient_claim_read(answer, walk.place, &walk.at->signing_key, &key);
        if (rc == 0)
            rc = mxclient_olm_start(client, walk.at, &key, now_ms);
        if (rc == TR_ENOMEM)
            return rc;
        if (rc != 0)
            walk.peer->next_claim_ms = now_ms + MXCLIENT_CLAIM_PAUSE_MS;
    }
    return 0;
}

/* ---- receiving -------------------------------------------------------------------------------- */

/* A message on its way in. */
struct olm_message {
    struct span sender;
    struct mx_key sender_key;
    enum mx_olm_type type;
    struct span body;
};

static bool olm_read_message(
    const struct mxclient *client, const struct json *value, struct olm_message *ret_message)
{
    const struct json *content = json_get(value, "content"), *cipher;
    struct olm_message message = { 0 };
    char ours[MX_KEY_CHARS + 1];
    struct span algorithm, key;
    int64_t type;

    mx_key_text(mx_account_identity_key(client->session.account), ours);
    cipher = json_get(json_get(content, "ciphertext"), ours);
    if (!mxclient_read_id(json_get(value, "sender"), &message.sender) ||
        !json_string(json_get(content, "algorithm"), &algorithm) ||
        !span_is(algorithm, ALGORITHM) || !json_string(json_get(content, "sender_key"), &key) ||
        mx_key_parse(key, &message.sender_key) != 0 ||
        !json_string(json_get(cipher, "body"), &message.body) ||
        !json_int(json_get(cipher, "type"), &type) || (type != 0 && type != 1))
        return false;
    message.type = (enum mx_olm_type)type;
    *ret_message = message;
    return true;
}

/* Decrypt with a session that there is. TR_ENOENT: none fits. */
static int olm_decrypt_known(struct mxclient *client, const struct olm_message *message,
    struct mxclient_olm **ret_session, struct buffer *plaintext)
{
    struct mxclient_peer *peer = olm_peer(client, &message->sender_key);
    int rc = TR_ENOENT;

    for (uint32_t i = 0; peer != NULL && rc != 0 && i < peer->count; i++) {
        struct mxclient_olm *session = &peer->sessions[i];
        bool is_first = message->type == MX_OLM_PRE_KEY;

        if (is_first && !mx_olm_matches(session->olm, message->body))
            continue;
        rc = mx_olm_decrypt(session->olm, message->type, message->body, plaintext);
        if (rc == 0)
            *ret_session = session;
        if (rc == TR_ENOMEM || is_first)
            return rc; /* it belongs to this session and to no other */
    }
    return rc;
}

static int olm_decrypt(struct mxclient *client, const struct olm_message *message, int64_t now_ms,
    struct mxclient_olm **ret_session, struct buffer *plaintext)
{
    struct mxclient_olm session = { .created_ms = now_ms };
    int rc = olm_decrypt_known(client, message, ret_session, plaintext);

    if (rc != TR_ENOENT || message->type != MX_OLM_PRE_KEY)
        return rc == TR_ENOENT ? MX_ESESSION : rc;
    rc = mx_olm_create_inbound(
        client->session.account, &message->sender_key, message->body, &session.olm, plaintext);
    if (rc != 0)
        return rc;
    client->is_account_changed = true;
    rc = olm_add(client, &message->sender_key, &session, ret_session);
    if (rc != 0)
        mx_olm_destroy(session.olm);
    return rc;
}

/* Return whether a member of the plaintext is this key. */
static bool olm_is_key(const struct json *value, const struct mx_key *key)
{
    struct mx_key other;
    struct span text;

    return json_string(value, &text) && mx_key_parse(text, &other) == 0 &&
           mx_key_equal(key, &other);
}

/* Check `sender_device_keys`: without the check of its user another user's device could speak
 * (CVE-2026-45056). */
static bool olm_check_device_keys(
    const struct json *object, const struct olm_message *message, const struct mx_key *signing)
{
    struct mxclient_place place = { .user_id = message->sender };
    struct mx_key identity, own;

    return mxclient_read_id(json_get(object, "device_id"), &place.device_id) &&
           mxclient_device_check(object, place, &identity, &own) == 0 &&
           mx_key_equal(&identity, &message->sender_key) && mx_key_equal(&own, signing);
}

/* Check rule 2 and return the sender's signing key. */
static bool olm_check(const struct mxclient *client, const struct olm_message *message,
    const struct json *plaintext, struct mx_key *ret_signing)
{
    const struct mxclient_session *session = &client->session;
    const struct mxclient_device *device =
        mxclient_devices_by_key(&client->devices, message->sender, &message->sender_key);
    const struct json *keys = json_get(plaintext, "sender_device_keys");
    struct span sender, recipient, key;

    return json_string(json_get(plaintext, "sender"), &sender) &&
           span_equal(sender, message->sender) &&
           json_string(json_get(plaintext, "recipient"), &recipient) &&
           span_equal(recipient, mxclient_span(&session->user_id)) &&
           olm_is_key(json_get(json_get(plaintext, "recipient_keys"), "ed25519"),
               mx_account_signing_key(session->account)) &&
           json_string(json_get(json_get(plaintext, "keys"), "ed25519"), &key) &&
           mx_key_parse(key, ret_signing) == 0 &&
           (device == NULL || mx_key_equal(&device->signing_key, ret_signing)) &&
           (keys == NULL || olm_check_device_keys(keys, message, ret_signing));
}

/* Ask for a new session with the device, unless the last attempt was within the hour. */
static void olm_unwedge(struct mxclient *client, const struct olm_message *message, int64_t now_ms,
    struct sql_unit *unit)
{
    struct mxclient_user *user = mxclient_devices_user(&client->devices, message->sender);
    struct mxclient_device *device =
        mxclient_devices_by_key(&client->devices, message->sender, &message->sender_key);
    struct mxclient_peer *peer;

    client->undecrypted++;
    if (device == NULL || device->is_deleted ||
        (device->unwedged_ms != 0 && now_ms >= device->unwedged_ms &&
            now_ms - device->unwedged_ms < MXCLIENT_UNWEDGE_MS))
        return;
    peer = mxclient_olm_peer(client, device);
    if (peer == NULL)
        return; /* the next message that fails tries again */
    peer->is_wedged = true;
    mxclient_send_forget(
        client, (struct mxclient_place){ message->sender, mxclient_id(&device->entry) });
    device->unwedged_ms = now_ms;
    mxclient_devices_put(user, device, unit);
}

/* Act on a plaintext that passed its checks. Types that are not known here belong to others. */
static int olm_dispatch(struct mxclient *client, const struct olm_message *message,
    const struct json *plaintext, const struct mx_key *signing, int64_t now_ms,
    struct sql_unit *unit)
{
    struct mxclient_room_key key = { .sender_key = message->sender_key, .signing_key = *signing };
    const struct mxclient_device *device =
        mxclient_devices_by_key(&client->devices, message->sender, &message->sender_key);
    bool is_own = span_equal(message->sender, mxclient_span(&client->session.user_id)) &&
                  device != NULL && device->trust == MXSTORE_VERIFIED;
    const struct json *content = json_get(plaintext, "content");
    struct span type = { NULL, 0 };

    (void)json_string(json_get(plaintext, "type"), &type);
    if (mxclient_verify_is(type))
        return mxclient_verify_take(client,
            &(struct mxclient_verify_event){
                type, message->sender, json_get(plaintext, "content") },
            now_ms, unit);
    if (span_is(type, "m.room_key"))
        key.source = MXSTORE_FROM_OWNER;
    else if (span_is(type, "m.forwarded_room_key") && is_own &&
             mxclient_key_request_is_asked(client, content))
        key.source = MXSTORE_FORWARDED; /* only a verified device of our own is believed */
    else {
        /* The device replaced a session that it could not read: it may lack our keys. */
        if (span_is(type, "m.dummy") && device != NULL)
            mxclient_send_forget(
                client, (struct mxclient_place){ message->sender, mxclient_id(&device->entry) });
        client->skipped += span_is(type, "m.dummy") ? 0 : 1;
        return 0;
    }
    return mxclient_megolm_take_key(client, &key, content, unit);
}

/* Note that a peer has sent a message, and keep the limits. */
static void olm_note_peer(
    struct mxclient *client, const struct olm_message *message, struct sql_unit *unit)
{
    struct mxclient_peer *peer = olm_peer(client, &message->sender_key);

    if (mxclient_devices_by_key(&client->devices, message->sender, &message->sender_key) != NULL)
        peer->is_known = true;
    olm_make_place(client, peer, unit);
}

static int olm_take_encrypted(
    struct mxclient *client, const struct json *value, int64_t now_ms, struct sql_unit *unit)
{
    struct buffer plaintext = { 0 };
    struct json_doc doc = { 0 };
    struct mxclient_olm *session = NULL;
    struct olm_message message;
    struct mx_key signing;
    int rc;

    if (!olm_read_message(client, value, &message)) {
        client->skipped++;
        return 0;
    }
    rc = olm_decrypt(client, &message, now_ms, &session, &plaintext);
    if (rc != 0 && rc != TR_ENOMEM) {
        olm_unwedge(client, &message, now_ms, unit);
        return 0;
    }
    if (rc == 0) {
        session->received_ms = now_ms;
        rc = olm_put(client, session, unit); /* the ratchet has moved, whatever the text says */
        olm_note_peer(client, &message, unit);
    }
    if (rc == 0)
        rc = json_parse_copy(&doc, mxclient_span(&plaintext), JSON_UNIQUE_KEYS);
    if (rc == 0 && olm_check(client, &message, json_root(&doc), &signing))
        rc = olm_dispatch(client, &message, json_root(&doc), &signing, now_ms, unit);
    else if (rc != TR_ENOMEM) {
        client->skipped++;
        rc = 0;
    }
    if (doc.copy.size > 0)
        mx_wipe_buffer(&doc.copy);
    json_doc_free(&doc);
    mx_wipe_buffer(&plaintext);
    return rc;
}

int mxclient_to_device_take(
    struct mxclient *client, const struct json *value, int64_t now_ms, struct sql_unit *unit)
{
    struct mxclient_verify_event event = { .content = json_get(value, "content") };
    struct span type;

    if (!json_string(json_get(value, "type"), &type)) {
        client->skipped++;
        return 0;
    }
    if (span_is(type, "m.room.encrypted"))
        return olm_take_encrypted(client, value, now_ms, unit);
    if (mxclient_verify_is(type)) {
        event.type = type;
        (void)json_string(json_get(value, "sender"), &event.sender);
        return mxclient_verify_take(client, &event, now_ms, unit);
    }
    if (span_is(type, "m.room_key.withheld"))
        return mxclient_withheld_take(client, value, now_ms, unit);
    if (span_is(type, "m.room_key_request"))
        return mxclient_key_request_take(client, value, now_ms);
    client->skipped++; /* a room key that came in the clear is nobody's word */
    return 0;
}
