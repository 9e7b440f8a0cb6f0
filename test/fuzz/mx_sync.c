/* SPDX-License-Identifier: Apache-2.0 */
/* mx_sync.c: two /sync answers, and then texts of a known device, all separated by zero bytes. "m" and
 * a text is the plaintext of an event in an encrypted room; "o", a type, a newline and a text is a
 * message to our device with this content. The target encrypts them, so that all that comes after a
 * right MAC is reached too. Whatever they have, an answer is taken or refused as a whole, the client
 * goes on, and a text whose key is there is never held. */
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/sync.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static const struct mx_pickle_key key = { { 1 } };
static uint8_t counter;
static const struct mx_random counting = { count_up, &counter };

static void set_up(struct mxclient *client)
{
    int rc;

    mxclient_session_init(&client->session, &counting, &key);
    rc = mx_account_create(&counting, &client->session.account);
    rc |= buffer_text(&client->session.user_id, "@ada:x");
    rc |= buffer_text(&client->session.device_id, "A");
    tr_assert(rc == 0);
    client->session.state = MXCLIENT_ACTIVE;
    mxclient_start(client);
    rc = mxclient_devices_track(&client->devices, SPAN("@bob:y"), NULL);
    tr_assert(rc == 0);
}

/* Take an answer; returns the number of its events that are held. */
static uint32_t take(struct mxclient *client, struct span body)
{
    struct mxclient_request request = { .call = MXCLIENT_SYNC };
    struct mxclient_answer answer = { .status = 200, .body = body };
    struct mxclient_sync_news news = { 0 };
    struct mxclient_outcome outcome;
    struct sql_unit *unit = sql_unit_create(0);
    struct json_doc doc = { 0 };
    size_t before = client->next_batch.size;
    int64_t seq = client->seq_next;
    int rc;

    mxclient_request_judge(&request, &answer, &counting, &doc, &outcome);
    tr_assert(outcome.verdict == MXCLIENT_DONE || outcome.wait_ms > 0 ||
              outcome.verdict == MXCLIENT_REFUSED);
    if (outcome.verdict == MXCLIENT_DONE) {
        rc = mxclient_sync_take(client, json_root(&doc), 1, 0, unit, &news);
        tr_assert(rc == 0 || rc == TR_EPROTO);
        tr_assert(rc == 0 || (client->next_batch.size == before && client->seq_next == seq));
        tr_assert(rc != 0 || client->next_batch.size > 0);
        tr_assert(client->seq_next == seq + news.events);
    }
    sql_unit_destroy(unit);
    json_doc_free(&doc);
    return news.held;
}

/* ---- bob's device ----------------------------------------------------------------------------- */

struct peer {
    struct mxclient_session bob;
    struct mx_olm *olm;
    struct mx_outbound *outbound;
    char session_id[MX_SESSION_ID_CHARS + 1];
    char keys[4][MX_KEY_CHARS + 1]; /* identity and signing key of ada, then of bob */
    uint32_t sent;
};

/* Let ada know bob's device. */
static void peer_meet(struct peer *peer, struct mxclient *client, struct sql_unit *unit)
{
    struct mxclient_outcome done = { .verdict = MXCLIENT_DONE };
    struct buffer keys = { 0 }, answer = { 0 };
    struct mxclient_request request;
    struct json_doc doc = { 0 };
    int rc = mxclient_keys_device(&peer->bob, &keys);

    rc |= buffer_format(
        &answer, "{\"device_keys\":{\"@bob:y\":{\"B\":%.*s}}}", (int)keys.size, keys.bytes);
    rc |= json_parse_copy(&doc, mxclient_span(&answer), 0);
    tr_assert(rc == 0);
    if (mxclient_devices_query(&client->devices, 1, &request)) {
        mxclient_request_fini(&request);
        rc = mxclient_devices_answered(&client->devices, &done, json_root(&doc), 1, unit);
        tr_assert(rc == 0);
    }
    json_doc_free(&doc);
    buffer_free(&keys);
    buffer_free(&answer);
}

/* Give ada the key of bob's session. */
static void peer_share(struct peer *peer, struct mxclient *client, struct sql_unit *unit)
{
    struct mxclient_room_key from = { .source = MXSTORE_FROM_OWNER,
        .sender_key = *mx_account_identity_key(peer->bob.account),
        .signing_key = *mx_account_signing_key(peer->bob.account) };
    struct buffer session_key = { 0 }, content = { 0 };
    struct json_doc doc = { 0 };
    int rc = mx_outbound_key(peer->outbound, &session_key);

    rc |= buffer_format(&content,
        "{\"algorithm\":\"" MXCLIENT_MEGOLM "\",\"room_id\":\"!r:x\",\"session_id\":\"%s\","
        "\"session_key\":\"%.*s\"}",
        peer->session_id, (int)session_key.size, session_key.bytes);
    rc |= json_parse_copy(&doc, mxclient_span(&content), 0);
    rc |= mxclient_megolm_add_key(client, &from, json_root(&doc), unit);
    tr_assert(rc == 0);
    json_doc_free(&doc);
    buffer_free(&session_key);
    buffer_free(&content);
}

static void peer_init(struct peer *peer, struct mxclient *client)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mx_account *ada = client->session.account;
    struct mx_one_time_key one_time;
    int rc;

    *peer = (struct peer){ 0 };
    mxclient_session_init(&peer->bob, &counting, &key);
    rc = mx_account_create(&counting, &peer->bob.account);
    rc |= buffer_text(&peer->bob.user_id, "@bob:y");
    rc |= buffer_text(&peer->bob.device_id, "B");
    rc |= mx_account_add_one_time_keys(ada, 1, &counting);
    tr_assert(rc == 0);
    tr_assert(mx_account_one_time_key_at(ada, 0, &one_time));
    rc = mx_olm_create_outbound(
        peer->bob.account, mx_account_identity_key(ada), &one_time.key, &counting, &peer->olm);
    rc |= mx_outbound_create(&counting, &peer->outbound);
    tr_assert(rc == 0);
    mx_outbound_id(peer->outbound, peer->session_id);
    mx_key_text(mx_account_identity_key(ada), peer->keys[0]);
    mx_key_text(mx_account_signing_key(ada), peer->keys[1]);
    mx_key_text(mx_account_identity_key(peer->bob.account), peer->keys[2]);
    mx_key_text(mx_account_signing_key(peer->bob.account), peer->keys[3]);
    peer_meet(peer, client, unit);
    peer_share(peer, client, unit);
    sql_unit_destroy(unit);
}

static void peer_fini(struct peer *peer)
{
    mxclient_session_fini(&peer->bob);
    mx_olm_destroy(peer->olm);
    mx_outbound_destroy(peer->outbound);
}

/* Put a plaintext into the room. */
static void peer_post(struct peer *peer, struct mxclient *client, struct span plaintext)
{
    struct buffer body = { 0 }, answer = { 0 };
    int rc = mx_outbound_encrypt(peer->outbound, plaintext, &body);
    uint32_t held;

    if (rc == 0) { /* else it is too long */
        rc = buffer_format(&answer,
            "{\"next_batch\":\"p%u\",\"rooms\":{\"join\":{\"!r:x\":{\"timeline\":{\"events\":[{"
            "\"event_id\":\"$p%u\",\"type\":\"m.room.encrypted\",\"sender\":\"@bob:y\",\"content\":"
            "{"
            "\"algorithm\":\"" MXCLIENT_MEGOLM
            "\",\"session_id\":\"%s\",\"ciphertext\":\"%.*s\"}}]}}}}}",
            peer->sent, peer->sent, peer->session_id, (int)body.size, body.bytes);
        tr_assert(rc == 0);
        held = take(client, mxclient_span(&answer));
        tr_assert(held == 0);
    }
    peer->sent++;
    buffer_free(&body);
    buffer_free(&answer);
}

/* Send a message with a type and a content to ada's device. */
static void peer_send(struct peer *peer, struct mxclient *client, struct span text)
{
    struct buffer plaintext = { 0 }, body = { 0 }, answer = { 0 };
    uint64_t undecrypted = client->undecrypted;
    struct span type;
    enum mx_olm_type kind;
    int rc;

    if (!span_cut(&text, '\n', &type) || text.at == NULL)
        return;
    rc = buffer_format(&plaintext,
        "{\"sender\":\"@bob:y\",\"recipient\":\"@ada:x\",\"recipient_keys\":{\"ed25519\":\"%s\"},"
        "\"keys\":{\"ed25519\":\"%s\"},\"type\":\"%.*s\",\"content\":%.*s}",
        peer->keys[1], peer->keys[3], (int)type.size, type.at, (int)text.size, text.at);
    rc |= mx_olm_encrypt(peer->olm, mxclient_span(&plaintext), &counting, &kind, &body);
    if (rc == 0) {
        rc = buffer_format(&answer,
            "{\"next_batch\":\"p%u\",\"to_device\":{\"events\":[{\"type\":\"m.room.encrypted\","
            "\"sender\":\"@bob:y\",\"content\":{\"algorithm\":\"m.olm.v1.curve25519-aes-sha2\","
            "\"sender_key\":\"%s\",\"ciphertext\":{\"%s\":{\"type\":%d,\"body\":\"%.*s\"}}}}]}}",
            peer->sent, peer->keys[2], peer->keys[0], (int)kind, (int)body.size, body.bytes);
        tr_assert(rc == 0);
        (void)take(client, mxclient_span(&answer));
        tr_assert(client->undecrypted == undecrypted);
    }
    peer->sent++;
    buffer_free(&plaintext);
    buffer_free(&body);
    buffer_free(&answer);
}

static void take_texts(struct peer *peer, struct mxclient *client, struct span texts)
{
    struct span text;

    while (texts.at != NULL && span_cut(&texts, '\0', &text)) {
        if (text.size > 0 && text.at[0] == 'm')
            peer_post(peer, client, (struct span){ text.at + 1, text.size - 1 });
        else if (text.size > 0 && text.at[0] == 'o')
            peer_send(peer, client, (struct span){ text.at + 1, text.size - 1 });
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest = { (const char *)data, size }, answers[2] = { { NULL, 0 }, { NULL, 0 } };
    struct mxclient client = { 0 };
    struct peer peer = { 0 };
    bool has_texts;

    counter = 0; /* the keys are the same each time */
    set_up(&client);
    for (int i = 0; i < 2 && rest.at != NULL; i++)
        (void)span_cut(&rest, '\0', &answers[i]);
    has_texts = rest.at != NULL && rest.size > 0;
    if (has_texts)
        peer_init(&peer, &client); /* no answer of the server can take it back */
    for (int i = 0; i < 2 && answers[i].at != NULL; i++)
        (void)take(&client, answers[i]);
    if (has_texts)
        take_texts(&peer, &client, rest);
    peer_fini(&peer);
    mxclient_fini(&client);
    return 0;
}
