/* SPDX-License-Identifier: Apache-2.0 */
/* peer_troupe.c: a Matrix client on src/matrix/client, driven by JSON lines; test/README.md has the
 * commands and events. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <troupe/error.h>

#include "matrix/client/olm.h"
#include "peer_client.h"

/* Members come lazily, so that the client has to ask for them. */
#define FILTER "{\"room\":{\"timeline\":{\"limit\":100},\"state\":{\"lazy_load_members\":true}}}"

enum { UNTIL_MS = 60000, LINE_BYTES_MAX = 1 << 24 };

struct peer {
    struct peer_client client;
    struct buffer lines; /* read and not yet run */
    struct buffer why;   /* the reason of the command that failed */
    bool has_login;
    bool is_over;
};

/* ---- lines ------------------------------------------------------------------------------------ */

static void say_end(struct json_writer *writer, struct buffer *line)
{
    json_put_end(writer);
    if (json_writer_end(writer) != 0 || buffer_append(line, "\n", 1) != 0)
        peer_fail("a line cannot be written");
    for (size_t done = 0; done < line->size;) {
        ssize_t wrote = write(STDOUT_FILENO, line->bytes + done, line->size - done);

        if (wrote <= 0)
            exit(0); /* the driver has ended */
        done += (size_t)wrote;
    }
    buffer_free(line);
}

static struct json_writer say_start(struct buffer *line, const char *event)
{
    struct json_writer writer = json_writer(line);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "event", event);
    return writer;
}

static void say_message(const struct mxstore_event *event, const char *name, bool is_encrypted)
{
    struct json_doc doc = { 0 };
    struct buffer line = { 0 };
    struct json_writer writer = say_start(&line, name);

    json_put_string(&writer, "roomId", event->room_id);
    json_put_string(&writer, "eventId", event->event_id);
    json_put_string(&writer, "sender", event->sender);
    if (event->reason != 0)
        json_put_text(&writer, "code", mx_error_text((int)event->reason));
    else if (json_parse_copy(&doc, event->body, 0) == 0) {
        json_put_bool(&writer, "encrypted", is_encrypted);
        json_put_value(&writer, "content", json_get(json_root(&doc), "content"));
    }
    say_end(&writer, &line);
    json_doc_free(&doc);
}

static void on_event(void *data, const struct mxstore_event *event)
{
    struct peer *peer = data;
    const struct mxclient_room *room =
        mxclient_rooms_find(&peer->client.client.rooms, event->room_id);

    if (event->status != MXSTORE_ENQUEUED)
        say_message(event, "undecryptable", true);
    else if (span_is(event->type, "m.room.message"))
        say_message(event, "message", room != NULL && room->encryption != MXCLIENT_PLAIN);
}

static void on_member(void *data, struct span room_id, const struct mxclient_event *event)
{
    struct buffer line = { 0 };
    struct json_writer writer = say_start(&line, "member");
    struct span membership = SPAN("");

    (void)data;
    (void)json_string(json_get(event->content, "membership"), &membership);
    json_put_string(&writer, "roomId", room_id);
    json_put_string(&writer, "userId", event->state_key);
    json_put_string(&writer, "membership", membership);
    say_end(&writer, &line);
}

static void say_verify(const struct mxclient_verify_news *news, const char *event)
{
    struct buffer line = { 0 };
    struct json_writer writer = say_start(&line, event);

    json_put_text(&writer, "transactionId", news->transaction_id);
    json_put_text(&writer, "userId", news->user_id);
    json_put_text(&writer, "deviceId", news->device_id);
    json_put_bool(&writer, "legacy", news->origin == MXCLIENT_ORIGIN_BARE);
    if (news->failure != NULL)
        json_put_text(&writer, "code", news->failure);
    json_put_array(&writer, "decimals");
    for (size_t i = 0; i < 3; i++)
        json_put_int(&writer, NULL, news->code.decimals[i]);
    json_put_end(&writer);
    json_put_array(&writer, "emoji");
    for (size_t i = 0; i < 7; i++)
        json_put_int(&writer, NULL, news->code.emoji[i]);
    json_put_end(&writer);
    say_end(&writer, &line);
}

static int verify_act(struct peer *peer, struct span transaction_id, enum mxclient_verify_act act)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_verify_act(&peer->client.client, transaction_id, act, peer_now_ms(), unit);

    peer_commit(&peer->client, unit);
    peer_verify(&peer->client);
    return rc;
}

static void on_verify(void *data, const struct mxclient_verify_news *news)
{
    if (news->step == MXCLIENT_VERIFY_ASKED)
        say_verify(news, "verification_request");
    else if (news->step == MXCLIENT_VERIFY_COMPARE)
        say_verify(news, "sas");
    else if (news->step == MXCLIENT_VERIFY_DONE)
        say_verify(news, "verified");
    else if (news->step == MXCLIENT_VERIFY_CANCELLED)
        say_verify(news, "cancelled");
    else if (news->step == MXCLIENT_VERIFY_READY && news->origin == MXCLIENT_ORIGIN_OURS)
        (void)verify_act(data, span_of(news->transaction_id), MXCLIENT_VERIFY_START);
}

static void on_session(void *data, enum mxclient_state former)
{
    struct peer *peer = data;
    enum mxclient_state state = peer->client.client.session.state;
    bool is_fresh = former == MXCLIENT_REFRESHING && state == MXCLIENT_ACTIVE;
    struct buffer line = { 0 };
    struct json_writer writer;

    if (!is_fresh && state != MXCLIENT_SOFT_OUT && state != MXCLIENT_ENDED)
        return;
    writer = say_start(&line, is_fresh ? "refreshed" : "logged_out");
    json_put_bool(&writer, "soft", state == MXCLIENT_SOFT_OUT);
    say_end(&writer, &line);
}

/* ---- values of a command ---------------------------------------------------------------------- */

static bool refuse(struct peer *peer, const char *why)
{
    buffer_clear(&peer->why);
    (void)buffer_text(&peer->why, why);
    return false;
}

static bool refuse_code(struct peer *peer, int rc)
{
    return refuse(peer, mx_error_text(rc));
}

static struct span text_of(const struct json *line, const char *key)
{
    struct span text = { "", 0 };

    (void)json_string(json_get(line, key), &text);
    return text;
}

static struct mxclient_room *room_of(struct peer *peer, const struct json *line)
{
    struct mxclient_room *room =
        mxclient_rooms_find(&peer->client.client.rooms, text_of(line, "roomId"));

    if (room == NULL || room->membership != MXCLIENT_JOINED)
        (void)refuse(peer, "this client is not in the room");
    return room != NULL && room->membership == MXCLIENT_JOINED ? room : NULL;
}

static struct mxclient_device *device_of(struct peer *peer, const struct json *line)
{
    struct mxclient_device *device = mxclient_devices_find(&peer->client.client.devices,
        (struct mxclient_place){ text_of(line, "userId"), text_of(line, "deviceId") });

    if (device == NULL)
        (void)refuse(peer, "the device is not known");
    return device;
}

static bool post_end(struct peer *peer, struct mxclient_request *request)
{
    struct mxclient_outcome outcome = peer_ask(&peer->client, request);

    return outcome.verdict == MXCLIENT_DONE || refuse(peer, outcome.errcode);
}

/* ---- commands --------------------------------------------------------------------------------- */

typedef bool (*command_fn)(struct peer *peer, const struct json *line, struct json_writer *answer);

/* Sync until the room is joined and encrypted. */
static bool until_in_room(struct peer *peer, struct span room_id)
{
    int64_t end_ms = peer_now_ms() + UNTIL_MS;

    while (peer_now_ms() < end_ms) {
        struct mxclient_room *room = mxclient_rooms_find(&peer->client.client.rooms, room_id);

        if (room != NULL && room->membership == MXCLIENT_JOINED &&
            room->encryption != MXCLIENT_PLAIN)
            return true;
        (void)peer_turn(&peer->client, -1, 1000);
    }
    return refuse(peer, "the room did not come");
}

/* Sync until the server has keys of this device. */
static bool until_keys(struct peer *peer)
{
    int64_t end_ms = peer_now_ms() + UNTIL_MS;

    while (peer_now_ms() < end_ms) {
        if (peer->client.client.keys.count > 0 && peer->client.client.keys.has_device_keys &&
            peer->client.client.next_batch.size > 0)
            return true;
        (void)peer_turn(&peer->client, -1, 1000);
    }
    return refuse(peer, "the keys did not reach the server");
}

static bool put_filter(struct peer *peer)
{
    struct mxclient_session *session = &peer->client.client.session;
    struct mxclient_request request;
    struct sql_unit *unit;

    mxclient_request_init(
        &request, MXCLIENT_FILTER, (struct span[]){ mxclient_span(&session->user_id) });
    (void)buffer_text(&request.body, FILTER);
    if (!post_end(peer, &request))
        return false;
    (void)buffer_span(&session->filter_id, text_of(json_root(&peer->client.doc), "filter_id"));
    unit = sql_unit_create(0);
    if (mxclient_session_put(session, unit) != 0)
        peer_fail("the session cannot be stored");
    peer_commit(&peer->client, unit);
    return true;
}

static bool do_login(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_session *session = &peer->client.client.session;
    struct buffer path = { 0 };
    char ed25519[MX_KEY_CHARS + 1], curve25519[MX_KEY_CHARS + 1];
    bool is_known;

    (void)buffer_span(&path, text_of(line, "data"));
    if (path.size == 0)
        (void)buffer_format(&path, "troupe-%d.db", (int)getpid());
    (void)buffer_append(&path, "", 1);
    is_known = peer_client_open(&peer->client, path.bytes);
    buffer_free(&path);
    peer->has_login = true;
    if (!is_known) {
        int rc = peer_client_login(&peer->client, text_of(line, "homeserver"),
            text_of(line, "user"), text_of(line, "password"));

        if (rc != 0)
            return refuse_code(peer, rc);
        if (!put_filter(peer))
            return false;
    }
    if (!until_keys(peer))
        return false;
    mx_key_text(mx_account_signing_key(session->account), ed25519);
    mx_key_text(mx_account_identity_key(session->account), curve25519);
    json_put_string(answer, "userId", mxclient_span(&session->user_id));
    json_put_string(answer, "deviceId", mxclient_span(&session->device_id));
    json_put_text(answer, "ed25519", ed25519);
    json_put_text(answer, "curve25519", curve25519);
    return true;
}

static bool do_create_room(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_request request;
    struct buffer room_id = { 0 };
    bool is_there;

    mxclient_room_create_request(text_of(line, "name"), (struct span){ NULL, 0 }, &request);
    if (!post_end(peer, &request))
        return false;
    (void)buffer_span(&room_id, text_of(json_root(&peer->client.doc), "room_id"));
    is_there = until_in_room(peer, mxclient_span(&room_id));
    json_put_string(answer, "roomId", mxclient_span(&room_id));
    buffer_free(&room_id);
    return is_there;
}

static bool do_join(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_request request;

    (void)answer;
    mxclient_room_join_request(text_of(line, "roomId"), &request);
    return post_end(peer, &request) && until_in_room(peer, text_of(line, "roomId"));
}

static bool do_invite(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_request request;

    (void)answer;
    mxclient_room_invite_request(text_of(line, "roomId"), text_of(line, "userId"), &request);
    return post_end(peer, &request);
}

static bool do_leave(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_request request;

    (void)answer;
    mxclient_room_leave_request(text_of(line, "roomId"), &request);
    return post_end(peer, &request);
}

static bool send_content(struct peer *peer, struct mxclient_room *room,
    const struct buffer *content, struct json_writer *answer)
{
    struct mxclient_message message = { SPAN("m.room.message"), mxclient_span(content) };
    const struct mxclient_outbound *outbound;
    char session_id[MX_SESSION_ID_CHARS + 1];
    int rc = peer_send(&peer->client, room, &message);

    if (rc != 0)
        return refuse_code(peer, rc);
    json_put_string(answer, "eventId", text_of(json_root(&peer->client.doc), "event_id"));
    outbound = mxclient_index_find(&peer->client.client.outbounds, mxclient_id(&room->entry));
    if (outbound != NULL) {
        mx_outbound_id(outbound->outbound, session_id);
        json_put_text(answer, "sessionId", session_id);
    }
    return true;
}

static bool do_send(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_room *room = room_of(peer, line);
    struct buffer content = { 0 };
    struct json_writer writer = json_writer(&content);
    bool is_sent;

    if (room == NULL)
        return false;
    if (json_get(line, "content") != NULL)
        json_put_value(&writer, NULL, json_get(line, "content"));
    else {
        json_put_object(&writer, NULL);
        json_put_text(&writer, "msgtype", "m.text");
        json_put_string(&writer, "body", text_of(line, "text"));
        json_put_end(&writer);
    }
    (void)json_writer_end(&writer);
    is_sent = send_content(peer, room, &content, answer);
    buffer_free(&content);
    return is_sent;
}

/* ---- attachments ------------------------------------------------------------------------------ */

static bool file_read(struct peer *peer, struct span path, struct buffer *bytes)
{
    struct buffer name = { 0 };
    FILE *file;
    size_t got = 1;

    (void)buffer_span(&name, path);
    (void)buffer_append(&name, "", 1);
    file = fopen(name.bytes, "rb");
    buffer_free(&name);
    if (file == NULL)
        return refuse(peer, "the file cannot be read");
    while (got > 0) {
        char *place = buffer_reserve(bytes, 65536);

        got = place == NULL ? 0 : fread(place, 1, 65536, file);
        buffer_grew(bytes, got);
    }
    (void)fclose(file);
    return true;
}

static void put_sha256(const struct buffer *bytes, struct json_writer *answer)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    char hex[2 * CRYPTO_SHA256_BYTES + 1];

    crypto_sha256(bytes->bytes, bytes->size, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    json_put_int(answer, "size", (int64_t)bytes->size);
    json_put_text(answer, "sha256", hex);
}

/* Encrypt a file in place. */
static void file_encrypt(struct buffer *bytes, struct mx_attachment *attachment)
{
    struct mx_attachment_stream stream = { 0 };

    if (mx_attachment_encrypt(&stream, &peer_random, attachment) != 0)
        peer_fail("out of memory");
    mx_attachment_update(&stream, mxclient_span(bytes), bytes->bytes);
    mx_attachment_encrypt_end(&stream, attachment);
}

static bool file_upload(struct peer *peer, struct buffer *bytes)
{
    struct mxclient_request request;
    struct mxclient_answer raw;
    bool is_good;

    /* The rule of another POST with a token. */
    mxclient_request_init(&request, MXCLIENT_CREATE_ROOM, NULL);
    buffer_clear(&request.target);
    (void)buffer_text(&request.target, "/_matrix/media/v3/upload");
    request.body = *bytes;
    *bytes = (struct buffer){ 0 };
    raw = peer_ask_raw(&peer->client, &request, "application/octet-stream");
    is_good = raw.status == 200 && json_parse_copy(&peer->client.doc, raw.body, 0) == 0;
    mxclient_request_fini(&request);
    return is_good || refuse(peer, "the upload is refused");
}

static bool do_attach(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_room *room = room_of(peer, line);
    struct mx_attachment attachment;
    struct buffer bytes = { 0 }, content = { 0 };
    struct json_writer writer = json_writer(&content);
    size_t size;
    bool is_sent;

    if (room == NULL || !file_read(peer, text_of(line, "path"), &bytes))
        return false;
    put_sha256(&bytes, answer);
    size = bytes.size;
    file_encrypt(&bytes, &attachment);
    if (!file_upload(peer, &bytes))
        return false;
    json_put_object(&writer, NULL);
    json_put_text(&writer, "msgtype", "m.file");
    json_put_string(&writer, "body", text_of(line, "name"));
    json_put_object(&writer, "info");
    json_put_int(&writer, "size", (int64_t)size);
    json_put_end(&writer);
    mx_attachment_put(
        &writer, "file", &attachment, text_of(json_root(&peer->client.doc), "content_uri"));
    json_put_end(&writer);
    (void)json_writer_end(&writer);
    is_sent = send_content(peer, room, &content, answer);
    mx_wipe_buffer(&content);
    return is_sent;
}

static bool file_decrypt(
    struct peer *peer, const struct mx_attachment *attachment, struct buffer *bytes)
{
    struct mx_attachment_stream stream = { 0 };
    int rc = mx_attachment_decrypt(&stream, attachment);

    if (rc == 0) {
        mx_attachment_update(&stream, mxclient_span(bytes), bytes->bytes);
        rc = mx_attachment_decrypt_end(&stream, attachment);
    }
    return rc == 0 || refuse_code(peer, rc);
}

static bool do_download(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mx_attachment attachment;
    struct mxclient_request request;
    struct mxclient_answer raw;
    struct buffer bytes = { 0 };
    struct span url;
    bool is_good;
    int rc = mx_attachment_parse(json_get(json_get(line, "content"), "file"), &attachment, &url);

    if (rc != 0 || !span_starts(url, "mxc://"))
        return refuse_code(peer, rc != 0 ? rc : MX_EFORMAT);
    mxclient_request_init(&request, MXCLIENT_MESSAGES, (struct span[]){ SPAN("x") });
    buffer_clear(&request.target);
    (void)buffer_format(
        &request.target, "/_matrix/client/v1/media/download/%.*s", (int)url.size - 6, url.at + 6);
    raw = peer_ask_raw(&peer->client, &request, "");
    mxclient_request_fini(&request);
    if (raw.failed != 0 || raw.status != 200)
        return refuse(peer, "the download is refused");
    (void)buffer_span(&bytes, raw.body);
    is_good = file_decrypt(peer, &attachment, &bytes);
    if (is_good)
        put_sha256(&bytes, answer);
    buffer_free(&bytes);
    return is_good;
}

/* ---- devices and sessions --------------------------------------------------------------------- */

static void put_device(const struct mxclient_device *device, struct json_writer *answer)
{
    char text[MX_KEY_CHARS + 1];

    json_put_object(answer, NULL);
    json_put_string(answer, "deviceId", mxclient_id(&device->entry));
    mx_key_text(&device->signing_key, text);
    json_put_text(answer, "ed25519", text);
    mx_key_text(&device->identity_key, text);
    json_put_text(answer, "curve25519", text);
    json_put_bool(answer, "verified", device->trust == MXSTORE_VERIFIED);
    json_put_end(answer);
}

static bool do_devices(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_user *user;

    if (mxclient_devices_track(&peer->client.client.devices, text_of(line, "userId"), unit) != 0)
        peer_fail("the user cannot be tracked");
    peer_commit(&peer->client, unit);
    user = mxclient_devices_user(&peer->client.client.devices, text_of(line, "userId"));
    user->is_outdated = true;
    user->next_query_ms = 0;
    peer_query(&peer->client);
    json_put_array(answer, "devices");
    for (uint32_t i = 0; i < user->devices.count; i++) {
        const struct mxclient_device *device =
            (const struct mxclient_device *)user->devices.entries[i];

        if (!device->is_deleted)
            put_device(device, answer);
    }
    json_put_end(answer);
    return true;
}

static bool do_rotate(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_room *room = room_of(peer, line);

    (void)answer;
    if (room != NULL)
        room->encryption = MXCLIENT_ROTATING;
    return room != NULL;
}

static bool do_trust(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    bool only_verified = false;

    (void)answer;
    (void)json_bool(json_get(line, "onlyVerified"), &only_verified);
    peer->client.client.policy = only_verified ? MXCLIENT_SHARE_EXCLUDE : MXCLIENT_SHARE_ALL;
    return true;
}

/* ---- verification ------------------------------------------------------------------------------ */

static bool do_verify(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_place place = { text_of(line, "userId"), text_of(line, "deviceId") };
    char transaction_id[MXCLIENT_VERIFY_ID_CHARS + 1];
    int rc = TR_EAGAIN;

    for (int i = 0; rc == TR_EAGAIN && i < 3; i++) {
        struct sql_unit *unit = sql_unit_create(0);

        rc = mxclient_verify_request(
            &peer->client.client, place, peer_now_ms(), unit, transaction_id);
        peer_commit(&peer->client, unit);
        if (rc == TR_EAGAIN)
            peer_query(&peer->client);
    }
    if (rc != 0)
        return refuse_code(peer, rc);
    json_put_text(answer, "transactionId", transaction_id);
    peer_verify(&peer->client);
    return true;
}

static bool act_on(struct peer *peer, const struct json *line, enum mxclient_verify_act act)
{
    int rc = verify_act(peer, text_of(line, "transactionId"), act);

    return rc == 0 || refuse_code(peer, rc);
}

static bool do_accept(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    bool starts = false;

    (void)answer;
    (void)json_bool(json_get(line, "start"), &starts);
    return act_on(peer, line, MXCLIENT_VERIFY_ACCEPT) &&
           (!starts || act_on(peer, line, MXCLIENT_VERIFY_START));
}

static bool do_confirm(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(peer, line, MXCLIENT_VERIFY_MATCH);
}

static bool do_mismatch(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(peer, line, MXCLIENT_VERIFY_MISMATCH);
}

static bool do_cancel(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)answer;
    return act_on(peer, line, MXCLIENT_VERIFY_CANCEL);
}

/* ---- time, restarts and broken sessions -------------------------------------------------------- */

static bool do_pass_time(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    int64_t ms = 0;

    (void)answer;
    if (!json_int(json_get(line, "ms"), &ms) || ms < 0)
        return refuse(peer, "ms must be a positive number");
    peer_pass_ms(ms);
    return true;
}

/* Replace the Olm session to a device by one that the device cannot read: its one-time key is made up. */
static bool do_wedge(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    struct mxclient_device *device = device_of(peer, line);
    struct mx_key key;
    int rc;

    (void)answer;
    if (device == NULL)
        return false;
    crypto_random_fill(key.bytes, sizeof key.bytes);
    rc = mxclient_olm_start(&peer->client.client, device, &key, peer_now_ms());
    return rc == 0 || refuse_code(peer, rc);
}

/* Lose all Olm sessions, as a damaged store would. */
static bool do_forget(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)line;
    (void)answer;
    mxclient_index_fini(&peer->client.client.peers, mxclient_peer_fini);
    return true;
}

static bool do_restart(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)line;
    (void)answer;
    peer_client_restart(&peer->client);
    return true;
}

static bool do_counts(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)line;
    json_put_string(answer, "deviceId", mxclient_span(&peer->client.client.session.device_id));
    json_put_int(answer, "undecrypted", (int64_t)peer->client.client.undecrypted);
    json_put_int(answer, "skipped", (int64_t)peer->client.client.skipped);
    json_put_int(answer, "oneTimeKeys", peer->client.client.keys.count);
    return true;
}

static bool do_logout(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    int rc = peer_client_logout(&peer->client);

    (void)line;
    (void)answer;
    return rc == 0 || refuse_code(peer, rc);
}

static bool do_stop(struct peer *peer, const struct json *line, struct json_writer *answer)
{
    (void)line;
    (void)answer;
    peer->is_over = true;
    return true;
}

static const struct command {
    const char *name;
    command_fn run;
} commands[] = {
    { "login", do_login },
    { "create_room", do_create_room },
    { "join", do_join },
    { "invite", do_invite },
    { "leave", do_leave },
    { "send", do_send },
    { "attach", do_attach },
    { "download", do_download },
    { "devices", do_devices },
    { "rotate", do_rotate },
    { "trust", do_trust },
    { "pass_time", do_pass_time },
    { "wedge", do_wedge },
    { "forget", do_forget },
    { "restart", do_restart },
    { "counts", do_counts },
    { "verify", do_verify },
    { "accept", do_accept },
    { "confirm", do_confirm },
    { "mismatch", do_mismatch },
    { "cancel", do_cancel },
    { "logout", do_logout },
    { "stop", do_stop },
};

/* ---- the loop --------------------------------------------------------------------------------- */

static command_fn command_find(struct peer *peer, const struct json *line)
{
    struct span name = text_of(line, "do");

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (span_is(name, commands[i].name) &&
            (peer->has_login || commands[i].run == do_login || commands[i].run == do_stop))
            return commands[i].run;
    (void)refuse(peer, "there is no such command, or no login yet");
    return NULL;
}

static void line_run(struct peer *peer, struct span text)
{
    struct json_doc doc = { 0 };
    struct buffer values = { 0 }, line = { 0 };
    struct json_writer answer = json_writer(&values), writer;
    command_fn run;
    bool is_good;

    if (json_parse_copy(&doc, text, JSON_UNIQUE_KEYS) != 0)
        peer_fail("a line is no JSON");
    json_put_object(&answer, NULL);
    run = command_find(peer, json_root(&doc));
    is_good = run != NULL && run(peer, json_root(&doc), &answer);
    if (is_good) {
        json_put_value(&answer, "id", json_get(json_root(&doc), "id"));
        json_put_bool(&answer, "ok", true);
        say_end(&answer, &values);
    } else {
        writer = json_writer(&line);
        json_put_object(&writer, NULL);
        json_put_value(&writer, "id", json_get(json_root(&doc), "id"));
        json_put_bool(&writer, "ok", false);
        json_put_string(&writer, "error", mxclient_span(&peer->why));
        say_end(&writer, &line);
    }
    buffer_free(&values);
    json_doc_free(&doc);
}

/* Read what is there; false at the end of the input. */
static bool lines_read(struct peer *peer)
{
    char *place = buffer_reserve(&peer->lines, 65536);
    ssize_t got = place == NULL ? -1 : read(STDIN_FILENO, place, 65536);

    if (got > 0)
        buffer_grew(&peer->lines, (size_t)got);
    return got > 0;
}

static void lines_run(struct peer *peer)
{
    while (!peer->is_over && peer->lines.size > 0) {
        const char *end = memchr(peer->lines.bytes, '\n', peer->lines.size);
        size_t size = end == NULL ? 0 : (size_t)(end - peer->lines.bytes);

        if (end == NULL)
            return;
        line_run(peer, (struct span){ peer->lines.bytes, size });
        buffer_consume(&peer->lines, size + 1);
    }
}

int main(void)
{
    struct peer peer = { .lines = { .size_max = LINE_BYTES_MAX } };
    struct buffer line = { 0 };
    struct json_writer writer = say_start(&line, "ready");

    say_end(&writer, &line);
    peer.client.listener = (struct peer_listener){
        .data = &peer,
        .on_event = on_event,
        .on_member = on_member,
        .on_verify = on_verify,
        .on_session = on_session,
    };
    while (!peer.is_over) {
        if ((!peer.has_login || peer_turn(&peer.client, STDIN_FILENO, 1000)) && !lines_read(&peer))
            break;
        lines_run(&peer);
    }
    if (peer.has_login)
        peer_client_close(&peer.client);
    buffer_free(&peer.lines);
    buffer_free(&peer.why);
    return 0;
}
