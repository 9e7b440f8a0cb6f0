/* SPDX-License-Identifier: Apache-2.0 */
/* key_request.c: key requests (Matrix specification, Client-Server API, "Key requests"). */
#include "matrix/client/key_request.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/send.h"
#include "matrix/client/withheld.h"

static void key_request_free_ask(void *object)
{
    struct mxclient_ask *ask = object;

    buffer_free(&ask->room_id);
    buffer_free(&ask->session_id);
    buffer_free(&ask->request_id);
}

static void key_request_free_forward(void *object)
{
    struct mxclient_forward *forward = object;

    buffer_free(&forward->device_id);
    buffer_free(&forward->request_id);
    buffer_free(&forward->room_id);
    buffer_free(&forward->session_id);
}

void mxclient_key_requests_fini(struct mxclient_key_requests *requests)
{
    mxclient_index_fini(&requests->asks, key_request_free_ask);
    mxclient_index_fini(&requests->forwards, key_request_free_forward);
    *requests = (struct mxclient_key_requests){ 0 };
}

static struct mxclient_ask *key_request_ask(const struct mxclient *client, uint32_t place)
{
    return (struct mxclient_ask *)client->key_requests.asks.entries[place];
}

static struct mxclient_forward *key_request_forward(const struct mxclient *client, uint32_t place)
{
    return (struct mxclient_forward *)client->key_requests.forwards.entries[place];
}

/* ---- keys that we ask for --------------------------------------------------------------------- */

int mxclient_key_request_load(struct mxclient *client, const struct mxstore_key_request *row)
{
    struct mxclient_ask *ask = mxclient_index_add_pair(
        &client->key_requests.asks, row->room_id, row->session_id, sizeof *ask);

    tr_assert(row->asking >= 0 && row->asking <= MXSTORE_CAME);
    if (ask == NULL)
        return TR_ENOMEM;
    ask->asking = (enum mxstore_asking)row->asking;
    ask->created_ms = row->created_ms;
    (void)buffer_span(&ask->room_id, row->room_id);
    (void)buffer_span(&ask->session_id, row->session_id);
    (void)buffer_span(&ask->request_id, row->request_id);
    return ask->room_id.failed | ask->session_id.failed | ask->request_id.failed;
}

static void key_request_put(const struct mxclient_ask *ask, struct sql_unit *unit)
{
    mxstore_put(unit, MXSTORE_IS_key_request,
        &(struct mxstore_key_request){ .room_id = mxclient_span(&ask->room_id),
            .session_id = mxclient_span(&ask->session_id),
            .request_id = mxclient_span(&ask->request_id),
            .asking = ask->asking,
            .created_ms = ask->created_ms });
}

static void key_request_drop(
    struct mxclient *client, struct mxclient_ask *ask, struct sql_unit *unit)
{
    mxstore_drop_key_request(unit, mxclient_span(&ask->room_id), mxclient_span(&ask->session_id));
    mxclient_index_remove(
        &client->key_requests.asks, mxclient_id(&ask->entry), key_request_free_ask);
}

/* Make room for one more request (rule 2); false if there is none. */
static bool key_request_make_room(struct mxclient *client, int64_t now_ms, struct sql_unit *unit)
{
    if (client->key_requests.asks.count < MXCLIENT_ASKS_MAX)
        return true;
    for (uint32_t i = 0; i < client->key_requests.asks.count; i++) {
        struct mxclient_ask *ask = key_request_ask(client, i);

        if (ask->asking == MXSTORE_ASKED && now_ms - ask->created_ms >= MXCLIENT_ASK_LIFE_MS &&
            ask != client->key_requests.asking) {
            key_request_drop(client, ask, unit);
            return true;
        }
    }
    return false;
}

int mxclient_key_request_note(struct mxclient *client, const struct mxclient_room *room,
    const struct mxclient_event *event, int reason, int64_t now_ms, struct sql_unit *unit)
{
    struct mxstore_key_request row = {
        .room_id = mxclient_id(&room->entry), .asking = MXSTORE_WANTED, .created_ms = now_ms
    };
    uint8_t bytes[MXCLIENT_REQUEST_ID_CHARS / 2];
    char id[MXCLIENT_REQUEST_ID_CHARS + 1];

    if (reason != MX_ESESSION && reason != MX_EINDEX && !mxclient_withheld_is(reason))
        return 0;
    if (!mxclient_read_id(json_get(event->content, "session_id"), &row.session_id) ||
        mxclient_index_find_pair(&client->key_requests.asks, row.room_id, row.session_id) != NULL ||
        !key_request_make_room(client, now_ms, unit))
        return 0;
    client->session.random->fill(client->session.random->data, bytes, sizeof bytes);
    crypto_hex_encode(bytes, sizeof bytes, id);
    row.request_id = (struct span){ id, MXCLIENT_REQUEST_ID_CHARS };
    mxstore_put(unit, MXSTORE_IS_key_request, &row);
    return mxclient_key_request_load(client, &row);
}

void mxclient_key_request_came(
    struct mxclient *client, struct span room_id, struct span session_id, struct sql_unit *unit)
{
    struct mxclient_ask *ask =
        mxclient_index_find_pair(&client->key_requests.asks, room_id, session_id);

    if (ask == NULL || ask->asking == MXSTORE_CAME)
        return;
    if (ask->asking == MXSTORE_WANTED && ask != client->key_requests.asking) {
        key_request_drop(client, ask, unit); /* nobody was asked */
        return;
    }
    ask->asking = MXSTORE_CAME;
    key_request_put(ask, unit);
}

bool mxclient_key_request_is_asked(const struct mxclient *client, const struct json *content)
{
    const struct mxclient_ask *ask = NULL;
    struct span room_id, session_id;

    if (mxclient_read_id(json_get(content, "room_id"), &room_id) &&
        mxclient_read_id(json_get(content, "session_id"), &session_id))
        ask = mxclient_index_find_pair(&client->key_requests.asks, room_id, session_id);
    return ask != NULL && (ask->asking == MXSTORE_ASKED || ask == client->key_requests.asking);
}

/* ---- keys that we are asked for --------------------------------------------------------------- */

/* Return another device of our own user that is neither gone nor blocked, or NULL. */
static const struct mxclient_device *key_request_own(
    const struct mxclient *client, struct span device_id)
{
    const struct mxclient_session *session = &client->session;
    const struct mxclient_device *device = mxclient_devices_find(
        &client->devices, (struct mxclient_place){ mxclient_span(&session->user_id), device_id });

    return device != NULL && device->trust != MXSTORE_BLOCKED && !device->is_deleted &&
                   !span_equal(device_id, mxclient_span(&session->device_id))
               ? device
               : NULL;
}

/* Return a device of our own user that is asked and answered, or NULL. */
static const struct mxclient_device *key_request_device(
    const struct mxclient *client, struct span device_id)
{
    const struct mxclient_device *device = key_request_own(client, device_id);

    return device != NULL && device->trust == MXSTORE_VERIFIED ? device : NULL;
}

/* Return whether the request of a device may wait for the device's verification, or needs not. */
static bool key_request_may_wait(const struct mxclient *client, struct span device_id)
{
    uint32_t waiting = 0;

    if (key_request_device(client, device_id) != NULL)
        return true;
    for (uint32_t i = 0; i < client->key_requests.forwards.count; i++) {
        const struct mxclient_forward *forward = key_request_forward(client, i);

        waiting += forward->answered_ms == 0 &&
                   key_request_device(client, mxclient_span(&forward->device_id)) == NULL;
    }
    return waiting < MXCLIENT_FORWARDS_WAITING_MAX;
}

/* Drop one answered request if the limit is reached; false if all wait for their answers. */
static bool key_request_make_place(struct mxclient *client)
{
    struct mxclient_index *forwards = &client->key_requests.forwards;

    for (uint32_t i = 0; forwards->count >= MXCLIENT_FORWARDS_MAX && i < forwards->count; i++)
        if (key_request_forward(client, i)->answered_ms != 0) {
            mxclient_index_remove(
                forwards, mxclient_id(forwards->entries[i]), key_request_free_forward);
            return true;
        }
    return forwards->count < MXCLIENT_FORWARDS_MAX;
}

static int key_request_add(struct mxclient *client, struct span device_id, struct span request_id,
    struct span room_id, struct span session_id)
{
    struct mxclient_forward *forward = mxclient_index_add_pair(
        &client->key_requests.forwards, device_id, request_id, sizeof *forward);

    if (forward == NULL)
        return TR_ENOMEM;
    (void)buffer_span(&forward->device_id, device_id);
    (void)buffer_span(&forward->request_id, request_id);
    (void)buffer_span(&forward->room_id, room_id);
    (void)buffer_span(&forward->session_id, session_id);
    return forward->device_id.failed | forward->request_id.failed | forward->room_id.failed |
           forward->session_id.failed;
}

/* Take a request; false if it is not one that we answer. */
static bool key_request_take(struct mxclient *client, struct span device_id, struct span request_id,
    const struct json *body, int64_t now_ms, int *ret_rc)
{
    struct mxclient_forward *known =
        mxclient_index_find_pair(&client->key_requests.forwards, device_id, request_id);
    struct span algorithm, room_id, session_id;

    if (key_request_own(client, device_id) == NULL ||
        !json_string(json_get(body, "algorithm"), &algorithm) ||
        !span_is(algorithm, MXCLIENT_MEGOLM) ||
        !mxclient_read_id(json_get(body, "room_id"), &room_id) ||
        !mxclient_read_id(json_get(body, "session_id"), &session_id) ||
        mxclient_megolm_find(client, room_id, session_id) == NULL)
        return false;
    if (known != NULL) {
        if (now_ms - known->answered_ms >= MXCLIENT_FORWARD_AGAIN_MS)
            known->answered_ms = 0;
        return true;
    }
    if (!key_request_may_wait(client, device_id) || !key_request_make_place(client))
        return false;
    *ret_rc = key_request_add(client, device_id, request_id, room_id, session_id);
    return true;
}

int mxclient_key_request_take(struct mxclient *client, const struct json *value, int64_t now_ms)
{
    const struct json *content = json_get(value, "content");
    struct span sender, action, device_id, request_id;
    struct mxclient_forward *forward;
    bool is_taken = false;
    int rc = 0;

    if (json_string(json_get(value, "sender"), &sender) &&
        span_equal(sender, mxclient_span(&client->session.user_id)) &&
        json_string(json_get(content, "action"), &action) &&
        mxclient_read_id(json_get(content, "requesting_device_id"), &device_id) &&
        mxclient_read_id(json_get(content, "request_id"), &request_id)) {
        forward = mxclient_index_find_pair(&client->key_requests.forwards, device_id, request_id);
        if (span_is(action, "request"))
            is_taken = key_request_take(
                client, device_id, request_id, json_get(content, "body"), now_ms, &rc);
        else if (span_is(action, "request_cancellation") && forward != NULL) {
            is_taken = true;
            if (forward->answered_ms == 0 && forward != client->key_requests.forwarding)
                forward->answered_ms = now_ms;
        }
    }
    client->skipped += is_taken ? 0 : 1;
    return rc;
}

/* ---- requests --------------------------------------------------------------------------------- */

static void key_request_put_content(
    const struct mxclient *client, const struct mxclient_ask *ask, struct buffer *out)
{
    struct json_writer writer = json_writer(out);

    json_put_object(&writer, NULL);
    json_put_text(
        &writer, "action", ask->asking == MXSTORE_CAME ? "request_cancellation" : "request");
    json_put_string(&writer, "request_id", mxclient_span(&ask->request_id));
    json_put_string(&writer, "requesting_device_id", mxclient_span(&client->session.device_id));
    if (ask->asking != MXSTORE_CAME) {
        json_put_object(&writer, "body");
        json_put_text(&writer, "algorithm", MXCLIENT_MEGOLM);
        json_put_string(&writer, "room_id", mxclient_span(&ask->room_id));
        json_put_string(&writer, "session_id", mxclient_span(&ask->session_id));
        json_put_end(&writer);
    }
    json_put_end(&writer);
}

/* Write a request or its cancellation to all verified devices of our own; none if there are none. */
static int key_request_send(struct mxclient *client, struct mxclient_ask *ask,
    struct sql_unit *unit, struct mxclient_request *request, bool *ret_is_written)
{
    const struct mxclient_user *user =
        mxclient_devices_user(&client->devices, mxclient_span(&client->session.user_id));
    struct mxclient_batch batch;
    struct buffer content = { 0 };
    int rc;

    key_request_put_content(client, ask, &content);
    mxclient_batch_start_clear(&batch, client, SPAN("m.room_key_request"), request, unit);
    for (uint32_t i = 0; user != NULL && i < user->devices.count; i++) {
        struct mxclient_place place = { mxclient_id(&user->entry),
            mxclient_id(user->devices.entries[i]) };

        if (key_request_device(client, place.device_id) != NULL)
            mxclient_batch_put(&batch, place, mxclient_span(&content));
    }
    *ret_is_written = batch.count > 0;
    if (batch.count > 0) {
        client->key_requests.asking = ask;
        client->key_requests.is_cancelling = ask->asking == MXSTORE_CAME;
    } else if (ask->asking == MXSTORE_CAME)
        key_request_drop(client, ask, unit); /* nobody is left who could answer */
    rc = mxclient_batch_end(&batch, content.failed);
    buffer_free(&content);
    return rc;
}

/* Return the next request to send: a cancellation, or a key that is missing for some time. */
static struct mxclient_ask *key_request_next(struct mxclient *client, int64_t now_ms)
{
    for (uint32_t i = 0; i < client->key_requests.asks.count; i++) {
        struct mxclient_ask *ask = key_request_ask(client, i);
        int64_t age_ms = now_ms - ask->created_ms;

        if (ask->asking == MXSTORE_CAME ||
            (ask->asking == MXSTORE_WANTED && (age_ms >= MXCLIENT_ASK_AFTER_MS || age_ms < 0)))
            return ask;
    }
    return NULL;
}

/* Write the content of m.forwarded_room_key. */
static int key_request_put_key(
    const struct mxclient *client, const struct mxclient_forward *forward, struct buffer *out)
{
    const struct mxclient_inbound *session = mxclient_megolm_find(
        client, mxclient_span(&forward->room_id), mxclient_span(&forward->session_id));
    char sender[MX_KEY_CHARS + 1], signing[MX_KEY_CHARS + 1];
    struct json_writer writer = json_writer(out);
    struct buffer key = { 0 };
    int rc;

    tr_assert(session != NULL); /* the caller has looked */
    rc = mx_inbound_export(session->inbound, mx_inbound_first_index(session->inbound), &key);
    mx_key_text(&session->sender_key, sender);
    mx_key_text(&session->signing_key, signing);
    json_put_object(&writer, NULL);
    json_put_text(&writer, "algorithm", MXCLIENT_MEGOLM);
    json_put_string(&writer, "room_id", mxclient_span(&forward->room_id));
    json_put_string(&writer, "session_id", mxclient_span(&forward->session_id));
    json_put_string(&writer, "session_key", mxclient_span(&key));
    json_put_text(&writer, "sender_key", sender);
    json_put_text(&writer, "sender_claimed_ed25519_key", signing);
    json_put_array(&writer, "forwarding_curve25519_key_chain");
    json_put_end(&writer);
    json_put_end(&writer);
    mx_wipe_buffer(&key);
    return rc == 0 ? json_writer_end(&writer) : rc;
}

static int key_request_give(struct mxclient *client, const struct mxclient_forward *forward,
    const struct mxclient_device *device, struct sql_unit *unit, struct mxclient_request *request)
{
    struct mxclient_place place = { mxclient_span(&client->session.user_id),
        mxclient_span(&forward->device_id) };
    struct mxclient_batch batch;
    struct buffer content = { 0 };
    int rc = key_request_put_key(client, forward, &content);

    mxclient_batch_start(&batch, client, request, unit);
    if (rc == 0)
        rc = mxclient_batch_add(
            &batch, place, device, SPAN("m.forwarded_room_key"), mxclient_span(&content));
    mx_wipe_buffer(&content);
    return mxclient_batch_end(&batch, rc);
}

/* Write the answer to a device's request, or the claim that it needs. */
static int key_request_answer(struct mxclient *client, struct mxclient_forward *forward,
    int64_t now_ms, struct sql_unit *unit, enum mxclient_need *ret_need,
    struct mxclient_request *request)
{
    const struct mxclient_device *device =
        key_request_device(client, mxclient_span(&forward->device_id));
    struct mxclient_place place = { mxclient_span(&client->session.user_id),
        mxclient_span(&forward->device_id) };
    struct mxclient_peer *peer;

    if (mxclient_megolm_find(client, mxclient_span(&forward->room_id),
            mxclient_span(&forward->session_id)) == NULL) {
        forward->answered_ms = now_ms; /* the session was over the limit since */
        return 0;
    }
    if (device == NULL) {
        if (key_request_own(client, place.device_id) == NULL)
            forward->answered_ms = now_ms; /* it is gone or blocked */
        return 0;
    }
    peer = mxclient_olm_peer(client, device);
    if (peer == NULL)
        return TR_ENOMEM;
    if (mxclient_olm_is_ready(client, device)) {
        *ret_need = MXCLIENT_NEED_SHARE;
        client->key_requests.forwarding = forward;
        return key_request_give(client, forward, device, unit, request);
    }
    if (now_ms < peer->next_claim_ms || peer->claiming != MXCLIENT_NOT_CLAIMING)
        return 0;
    *ret_need = MXCLIENT_NEED_CLAIM;
    peer->claiming = MXCLIENT_CLAIMING_TO_FORWARD;
    client->key_requests.forwarding = forward;
    client->key_requests.is_claiming = true;
    mxclient_claim_request(request, &place, 1);
    return 0;
}

int mxclient_key_request_prepare(struct mxclient *client, int64_t now_ms, struct sql_unit *unit,
    enum mxclient_need *ret_need, struct mxclient_request *request)
{
    struct mxclient_key_requests *requests = &client->key_requests;
    struct mxclient_ask *ask = key_request_next(client, now_ms);
    bool is_written = false;
    int rc = 0;

    *ret_need = MXCLIENT_NEED_NOTHING;
    if (requests->asking != NULL || requests->forwarding != NULL)
        *ret_need = MXCLIENT_NEED_ANSWER;
    if (*ret_need != MXCLIENT_NEED_NOTHING || now_ms < requests->next_ms)
        return 0;
    if (ask != NULL)
        rc = key_request_send(client, ask, unit, request, &is_written);
    if (is_written)
        *ret_need = MXCLIENT_NEED_SHARE;
    for (uint32_t i = 0;
         rc == 0 && *ret_need == MXCLIENT_NEED_NOTHING && i < requests->forwards.count; i++)
        if (key_request_forward(client, i)->answered_ms == 0)
            rc = key_request_answer(
                client, key_request_forward(client, i), now_ms, unit, ret_need, request);
    return rc;
}

/* Return when a device's request can be answered. A claim of another activity has no time: its
 * answer comes first. */
static int64_t key_request_forward_due_ms(
    struct mxclient *client, const struct mxclient_forward *forward)
{
    const struct mxclient_device *device =
        key_request_device(client, mxclient_span(&forward->device_id));
    const struct mxclient_peer *peer;

    if (forward->answered_ms != 0)
        return INT64_MAX;
    if (device == NULL)
        return key_request_own(client, mxclient_span(&forward->device_id)) == NULL ? 0 : INT64_MAX;
    if (mxclient_olm_is_ready(client, device))
        return 0;
    peer = mxclient_olm_peer(client, device);
    return peer == NULL || peer->claiming != MXCLIENT_NOT_CLAIMING ? INT64_MAX
                                                                   : peer->next_claim_ms;
}

/* Return whether one of our own devices can be asked. */
static bool key_request_has_devices(const struct mxclient *client)
{
    const struct mxclient_user *user =
        mxclient_devices_user(&client->devices, mxclient_span(&client->session.user_id));

    for (uint32_t i = 0; user != NULL && i < user->devices.count; i++)
        if (key_request_device(client, mxclient_id(user->devices.entries[i])) != NULL)
            return true;
    return false;
}

int64_t mxclient_key_request_due_ms(struct mxclient *client, int64_t now_ms)
{
    const struct mxclient_key_requests *requests = &client->key_requests;
    bool has_devices = key_request_has_devices(client);
    int64_t due = INT64_MAX, at;

    for (uint32_t i = 0; i < requests->asks.count; i++) {
        const struct mxclient_ask *ask = key_request_ask(client, i);

        if (ask->asking == MXSTORE_CAME)
            due = 0;
        else if (ask->asking == MXSTORE_WANTED && has_devices) {
            at = ask->created_ms > now_ms ? now_ms : ask->created_ms + MXCLIENT_ASK_AFTER_MS;
            due = at < due ? at : due;
        }
    }
    for (uint32_t i = 0; i < requests->forwards.count; i++) {
        at = key_request_forward_due_ms(client, key_request_forward(client, i));
        due = at < due ? at : due;
    }
    return due < requests->next_ms ? requests->next_ms : due;
}

/* ---- outcomes --------------------------------------------------------------------------------- */

static int key_request_claimed(struct mxclient *client, const struct json *answer, int64_t now_ms)
{
    const struct mxclient_forward *forward = client->key_requests.forwarding;
    struct mxclient_place place = { mxclient_span(&client->session.user_id),
        mxclient_span(&forward->device_id) };
    const struct mxclient_device *device = mxclient_devices_find(&client->devices, place);
    struct mxclient_peer *peer = mxclient_olm_peer(client, device);
    struct mx_key key;
    int rc =
        peer == NULL ? TR_ENOMEM : mxclient_claim_read(answer, place, &device->signing_key, &key);

    if (peer != NULL)
        peer->claiming = MXCLIENT_NOT_CLAIMING;
    if (rc == 0)
        rc = mxclient_olm_start(client, device, &key, now_ms);
    if (rc != 0 && rc != TR_ENOMEM) {
        peer->next_claim_ms = now_ms + MXCLIENT_CLAIM_PAUSE_MS;
        rc = 0;
    }
    return rc;
}

/* Note that a request was sent, or its cancellation. The key may have come meanwhile. */
static void key_request_sent(struct mxclient *client, struct sql_unit *unit)
{
    struct mxclient_ask *ask = client->key_requests.asking;

    if (client->key_requests.is_cancelling)
        key_request_drop(client, ask, unit);
    else if (ask->asking == MXSTORE_WANTED) {
        ask->asking = MXSTORE_ASKED;
        key_request_put(ask, unit);
    }
}

int mxclient_key_request_answered(struct mxclient *client, enum mxclient_verdict verdict,
    const struct json *answer, int64_t now_ms, struct sql_unit *unit)
{
    struct mxclient_key_requests *requests = &client->key_requests;
    bool is_done = verdict == MXCLIENT_DONE;
    int rc = 0;

    tr_assert(verdict == MXCLIENT_DONE || verdict == MXCLIENT_REFUSED);
    tr_assert(requests->asking != NULL || requests->forwarding != NULL);
    if (!is_done)
        requests->next_ms = now_ms + MXCLIENT_KEY_REQUEST_PAUSE_MS;
    if (requests->is_claiming)
        rc = key_request_claimed(client, is_done ? answer : NULL, now_ms);
    else if (requests->forwarding != NULL)
        requests->forwarding->answered_ms = is_done ? now_ms : 0;
    else if (is_done)
        key_request_sent(client, unit);
    requests->asking = NULL;
    requests->forwarding = NULL;
    requests->is_claiming = requests->is_cancelling = false;
    return rc;
}
