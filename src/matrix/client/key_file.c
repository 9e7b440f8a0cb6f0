/* SPDX-License-Identifier: Apache-2.0 */
/* key_file.c: the sessions of a key file (Matrix specification, Client-Server API, "Key export
 * format"). */
#include "matrix/client/key_file.h"

#include <troupe/error.h>

#include "matrix/client/megolm.h"

/* An estimate that a session with the longest ids stays below: a buffer that is moved while it grows
 * would leave keys in freed memory. */
enum { KEY_FILE_SESSION_BYTES = 1400 };

static int key_file_put(struct json_writer *writer, const struct mxclient_inbound *session)
{
    char sender[MX_KEY_CHARS + 1], signing[MX_KEY_CHARS + 1];
    struct buffer key = { 0 };
    int rc = mx_inbound_export(session->inbound, mx_inbound_first_index(session->inbound), &key);

    mx_key_text(&session->sender_key, sender);
    mx_key_text(&session->signing_key, signing);
    json_put_object(writer, NULL);
    json_put_text(writer, "algorithm", MXCLIENT_MEGOLM);
    json_put_string(writer, "room_id", mxclient_inbound_room(session));
    json_put_string(writer, "session_id", mxclient_inbound_session(session));
    json_put_string(writer, "session_key", mxclient_span(&key));
    json_put_text(writer, "sender_key", sender);
    json_put_object(writer, "sender_claimed_keys");
    json_put_text(writer, "ed25519", signing);
    json_put_end(writer);
    json_put_array(writer, "forwarding_curve25519_key_chain");
    json_put_end(writer);
    json_put_end(writer);
    mx_wipe_buffer(&key);
    return rc;
}

int mxclient_key_file_write(const struct mxclient *client, struct buffer *sessions)
{
    size_t size = (size_t)client->inbounds.count * KEY_FILE_SESSION_BYTES + 16;
    struct json_writer writer;
    int rc = 0;

    sessions->size_max = MX_KEY_FILE_BYTES_MAX;
    if (buffer_reserve(sessions, size < MX_KEY_FILE_BYTES_MAX ? size : MX_KEY_FILE_BYTES_MAX) ==
        NULL)
        return TR_ENOMEM;
    writer = json_writer(sessions);
    json_put_array(&writer, NULL);
    for (uint32_t i = 0; rc == 0 && i < client->inbounds.count; i++)
        rc = key_file_put(&writer, (const struct mxclient_inbound *)client->inbounds.entries[i]);
    json_put_end(&writer);
    rc = rc != 0 ? rc : json_writer_end(&writer);
    return rc == TR_ELIMIT ? MX_ETOOBIG : rc;
}

static int key_file_take_all(struct mxclient *client, const struct json *array,
    struct sql_unit *unit, struct mxclient_import *import)
{
    static const struct mxclient_room_key from = { .source = MXSTORE_IMPORTED };

    for (struct json_iter it = json_iterate(array); json_next(&it);) {
        int rc = mxclient_megolm_add_key(client, &from, it.value, unit);

        if (rc == TR_ENOMEM)
            return rc;
        import->sessions++;
        *(rc == 0 ? &import->taken : rc == MX_EINDEX ? &import->known : &import->invalid) += 1;
    }
    return 0;
}

int mxclient_key_file_take(struct mxclient *client, struct span sessions, struct sql_unit *unit,
    struct mxclient_import *ret_import)
{
    struct json_doc doc = { 0 };
    int rc =
        sessions.size > MX_KEY_FILE_BYTES_MAX ? MX_ETOOBIG : json_parse_copy(&doc, sessions, 0);

    *ret_import = (struct mxclient_import){ 0 };
    if (rc != 0 && rc != TR_ENOMEM && rc != MX_ETOOBIG)
        rc = MX_EFORMAT;
    if (rc == 0 && json_kind(json_root(&doc)) != JSON_ARRAY)
        rc = MX_EFORMAT;
    if (rc == 0 && json_count(json_root(&doc)) > MXCLIENT_IMPORT_MAX)
        rc = MX_ETOOBIG;
    if (rc == 0)
        rc = key_file_take_all(client, json_root(&doc), unit, ret_import);
    if (doc.copy.size > 0)
        mx_wipe_buffer(&doc.copy);
    json_doc_free(&doc);
    return rc;
}
