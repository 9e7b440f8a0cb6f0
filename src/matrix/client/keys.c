/* SPDX-License-Identifier: Apache-2.0 */
/* keys.c: uploads and claims (Matrix specification, Client-Server API, "Key management"). */
#include "matrix/client/keys.h"

#include <troupe/error.h>

#include "base/assert.h"

#define ONE_TIME "signed_curve25519"

void mxclient_keys_init(struct mxclient_keys *keys, struct mxclient_session *session)
{
    tr_assert(session->account != NULL);
    /* The stored account does not tell whether it has a former fallback key. */
    *keys = (struct mxclient_keys){ .session = session, .count = -1, .has_former_fallback = true };
}

static void keys_take_count(struct mxclient_keys *keys, const struct json *counts)
{
    int64_t count = 0;

    /* A type that is missing in the list has no key left. */
    if (json_kind(counts) != JSON_OBJECT)
        return;
    if (json_get(counts, ONE_TIME) != NULL &&
        (!json_int(json_get(counts, ONE_TIME), &count) || count < 0))
        return;
    keys->count = count;
}

void mxclient_keys_counts(struct mxclient_keys *keys, const struct json *sync)
{
    const struct json *unused = json_get(sync, "device_unused_fallback_key_types");
    struct span type;

    keys_take_count(keys, json_get(sync, "device_one_time_keys_count"));
    if (json_kind(unused) != JSON_ARRAY)
        return;
    keys->fallback_is_used = true;
    for (struct json_iter it = json_iterate(unused); json_next(&it);)
        if (json_string(it.value, &type) && span_is(type, ONE_TIME))
            keys->fallback_is_used = false;
}

/* ---- upload ----------------------------------------------------------------------------------- */

static size_t keys_unpublished(const struct mx_account *account)
{
    struct mx_one_time_key key;
    size_t count = 0;

    for (size_t i = 0; mx_account_one_time_key_at(account, i, &key); i++)
        count += key.is_published ? 0 : 1;
    return count;
}

static bool keys_fallback_is_due(const struct mxclient_keys *keys, int64_t now_ms)
{
    int64_t age = now_ms - keys->session->fallback_rotated_ms;
    struct mx_one_time_key key;

    if (!mx_account_fallback_key(keys->session->account, &key))
        return true;
    if (!key.is_published)
        return false;
    return age < 0 || age >= MXCLIENT_FALLBACK_LIFE_MS || /* below 0: the clock went back */
           (keys->fallback_is_used && age >= MXCLIENT_FALLBACK_KEEP_MS);
}

/* Drop the former fallback key. The server gives it away until it has its successor, and a message
 * that uses it may be late. */
static bool keys_forget_former(struct mxclient_keys *keys, int64_t now_ms)
{
    struct mxclient_session *session = keys->session;
    struct mx_one_time_key key;

    if (!keys->has_former_fallback || !mx_account_fallback_key(session->account, &key) ||
        !key.is_published || now_ms - session->fallback_rotated_ms < MXCLIENT_FALLBACK_KEEP_MS)
        return false;
    mx_account_forget_fallback(session->account);
    keys->has_former_fallback = false;
    return true;
}

/* Make what is missing; *ret_changed if there is something to store. */
static int keys_make(struct mxclient_keys *keys, int64_t now_ms, bool *ret_changed)
{
    struct mxclient_session *session = keys->session;
    size_t ready = keys_unpublished(session->account);
    int rc = 0;

    *ret_changed = false;
    if (keys->count >= 0 && keys->count < MXCLIENT_KEYS_LOW && ready == 0 &&
        now_ms >= keys->next_make_ms) {
        rc = mx_account_add_one_time_keys(
            session->account, (size_t)(MXCLIENT_KEYS_ON_SERVER - keys->count), session->random);
        if (rc != 0)
            return rc;
        keys->next_make_ms = now_ms + MXCLIENT_KEYS_PAUSE_MS;
        *ret_changed = true;
    }
    if (keys_fallback_is_due(keys, now_ms)) {
        mx_account_rotate_fallback(session->account, session->random);
        session->fallback_rotated_ms = now_ms;
        keys->has_former_fallback = true;
        *ret_changed = true;
    } else if (keys_forget_former(keys, now_ms))
        *ret_changed = true;
    return 0;
}

int mxclient_keys_plan(
    struct mxclient_keys *keys, int64_t now_ms, struct sql_unit *unit, bool *ret_is_due)
{
    struct mx_one_time_key fallback;
    bool is_changed;
    int rc;

    *ret_is_due = false;
    if (keys->is_uploading || now_ms < keys->next_upload_ms)
        return 0;
    rc = keys_make(keys, now_ms, &is_changed);
    if (rc == 0 && is_changed)
        rc = mxclient_session_put(keys->session, unit);
    if (rc != 0)
        return rc;
    *ret_is_due =
        !keys->has_device_keys || keys_unpublished(keys->session->account) > 0 ||
        (mx_account_fallback_key(keys->session->account, &fallback) && !fallback.is_published);
    return 0;
}

/* Append an object with our signature. */
static int keys_sign(
    const struct mxclient_session *session, const struct buffer *text, struct buffer *out)
{
    struct json_doc doc = { 0 };
    int rc = text->failed;

    if (rc == 0)
        rc = json_parse_copy(&doc, mxclient_span(text), JSON_UNIQUE_KEYS);
    if (rc == 0)
        rc = mx_account_sign_json(session->account, json_root(&doc),
            mxclient_span(&session->user_id), mxclient_span(&session->device_id), out);
    json_doc_free(&doc);
    return rc;
}

static void keys_put_named(struct json_writer *writer, const char *algorithm,
    const struct mxclient_session *session, const struct mx_key *key)
{
    struct buffer name = { 0 };
    char text[MX_KEY_CHARS + 1];

    (void)buffer_format(
        &name, "%s:%.*s", algorithm, (int)session->device_id.size, session->device_id.bytes);
    mx_key_text(key, text);
    json_put_key(writer, mxclient_span(&name));
    json_put_text(writer, NULL, text);
    buffer_free(&name);
}

int mxclient_keys_device(const struct mxclient_session *session, struct buffer *out)
{
    struct buffer text = { 0 };
    struct json_writer writer = json_writer(&text);
    int rc;

    json_put_object(&writer, NULL);
    json_put_string(&writer, "user_id", mxclient_span(&session->user_id));
    json_put_string(&writer, "device_id", mxclient_span(&session->device_id));
    json_put_array(&writer, "algorithms");
    json_put_text(&writer, NULL, "m.olm.v1.curve25519-aes-sha2");
    json_put_text(&writer, NULL, "m.megolm.v1.aes-sha2");
    json_put_end(&writer);
    json_put_object(&writer, "keys");
    keys_put_named(&writer, "curve25519", session, mx_account_identity_key(session->account));
    keys_put_named(&writer, "ed25519", session, mx_account_signing_key(session->account));
    json_put_end(&writer);
    json_put_end(&writer);
    rc = json_writer_end(&writer);
    if (rc == 0)
        rc = keys_sign(session, &text, out);
    buffer_free(&text);
    return rc;
}

/* Write one key as "signed_curve25519:ID": {key, fallback?, signatures}. */
static int keys_put_signed(struct json_writer *writer, const struct mxclient_session *session,
    const struct mx_one_time_key *key, bool is_fallback)
{
    char id[MX_KEY_ID_CHARS + 1], text[MX_KEY_CHARS + 1];
    struct buffer name = { 0 }, plain = { 0 }, signed_key = { 0 };
    int rc;

    mx_key_id_text(key->id, id);
    mx_key_text(&key->key, text);
    (void)buffer_format(&name, ONE_TIME ":%s", id);
    (void)buffer_format(
        &plain, "{%s\"key\":\"%s\"}", is_fallback ? "\"fallback\":true," : "", text);
    rc = keys_sign(session, &plain, &signed_key);
    if (rc == 0)
        rc = name.failed;
    if (rc == 0) {
        json_put_key(writer, mxclient_span(&name));
        json_put_raw(writer, NULL, mxclient_span(&signed_key));
    }
    buffer_free(&name);
    buffer_free(&plain);
    buffer_free(&signed_key);
    return rc;
}

/* Write the unpublished one-time keys, the oldest first. *ret_is_cut: there are more. */
static int keys_put_one_time(
    struct mxclient_keys *keys, struct json_writer *writer, bool *ret_is_cut)
{
    struct mx_one_time_key key;
    size_t count = 0;
    int rc = 0;

    *ret_is_cut = false;
    json_put_object(writer, "one_time_keys");
    for (size_t i = 0; rc == 0 && mx_account_one_time_key_at(keys->session->account, i, &key);
         i++) {
        if (key.is_published)
            continue;
        if (count++ == MXCLIENT_KEYS_PER_UPLOAD) {
            *ret_is_cut = true;
            break;
        }
        tr_assert(key.id > keys->uploading_last || keys->uploading_last == 0);
        rc = keys_put_signed(writer, keys->session, &key, false);
        keys->uploading_last = key.id;
    }
    json_put_end(writer);
    return rc;
}

/* The fallback key shares the ids of the one-time keys. It must wait if keys with smaller ids wait:
 * the answer publishes all ids up to the last. */
static int keys_put_fallback(struct mxclient_keys *keys, struct json_writer *writer, bool is_cut)
{
    struct mx_one_time_key key;
    int rc;

    if (!mx_account_fallback_key(keys->session->account, &key) || key.is_published ||
        (is_cut && key.id > keys->uploading_last))
        return 0;
    json_put_object(writer, "fallback_keys");
    rc = keys_put_signed(writer, keys->session, &key, true);
    json_put_end(writer);
    if (key.id > keys->uploading_last)
        keys->uploading_last = key.id;
    return rc;
}

int mxclient_keys_request(struct mxclient_keys *keys, struct mxclient_request *request)
{
    struct buffer device = { 0 };
    struct json_writer writer;
    bool is_cut = false;
    int rc = 0;

    tr_assert(!keys->is_uploading);
    keys->uploading_last = 0;
    mxclient_request_init(request, MXCLIENT_KEYS_UPLOAD, NULL);
    writer = json_writer(&request->body);
    json_put_object(&writer, NULL);
    if (!keys->has_device_keys) {
        rc = mxclient_keys_device(keys->session, &device);
        if (rc == 0)
            json_put_raw(&writer, "device_keys", mxclient_span(&device));
        buffer_free(&device);
    }
    if (rc == 0)
        rc = keys_put_one_time(keys, &writer, &is_cut);
    if (rc == 0)
        rc = keys_put_fallback(keys, &writer, is_cut);
    json_put_end(&writer);
    if (rc == 0)
        rc = mxclient_request_error(request);
    if (rc != 0)
        mxclient_request_fini(request);
    keys->is_uploading = rc == 0;
    return rc;
}

/* The pause doubles with each refusal, from a minute to a day. */
static int64_t keys_pause_ms(uint32_t conflicts)
{
    int64_t pause =
        conflicts > 16 ? MXCLIENT_KEYS_PAUSE_MAX_MS : (int64_t)MXCLIENT_KEYS_PAUSE_MS << conflicts;

    return pause > MXCLIENT_KEYS_PAUSE_MAX_MS ? MXCLIENT_KEYS_PAUSE_MAX_MS : pause;
}

/* Note what the server has now. A fallback key's hours count from here. */
static void keys_mark_published(struct mxclient_keys *keys, int64_t now_ms)
{
    struct mxclient_session *session = keys->session;
    struct mx_one_time_key before, after;
    bool was_new = mx_account_fallback_key(session->account, &before) && !before.is_published;

    mx_account_mark_published(session->account, keys->uploading_last);
    if (was_new && mx_account_fallback_key(session->account, &after) && after.is_published)
        session->fallback_rotated_ms = now_ms;
}

int mxclient_keys_uploaded(struct mxclient_keys *keys, const struct mxclient_outcome *outcome,
    const struct json *body, int64_t now_ms, struct sql_unit *unit)
{
    struct mx_account *account = keys->session->account;

    tr_assert(keys->is_uploading);
    tr_assert(outcome->verdict == MXCLIENT_DONE || outcome->verdict == MXCLIENT_REFUSED);
    keys->is_uploading = false;
    if (outcome->verdict == MXCLIENT_DONE) {
        keys->conflicts = 0;
        keys->has_device_keys = true;
        keys_mark_published(keys, now_ms);
        keys_take_count(keys, json_get(body, "one_time_key_counts"));
    } else {
        /* The server has other keys under these ids, as after a restored backup. The error has no
         * code of its own, so every refusal counts as this one. */
        mx_account_skip_key_ids(account, MXCLIENT_KEYS_SKIPPED);
        keys->next_upload_ms = now_ms + keys_pause_ms(keys->conflicts);
        keys->refused++;
        keys->refused_status = outcome->status;
        memcpy(keys->refused_code, outcome->errcode, sizeof keys->refused_code);
        if (keys->conflicts < UINT32_MAX)
            keys->conflicts++;
    }
    return mxclient_session_put(keys->session, unit);
}

/* ---- claims ----------------------------------------------------------------------------------- */

void mxclient_claim_request(
    struct mxclient_request *request, const struct mxclient_place *places, size_t count)
{
    struct json_writer writer;

    tr_assert(count > 0);
    mxclient_request_init(request, MXCLIENT_KEYS_CLAIM, NULL);
    writer = json_writer(&request->body);
    json_put_object(&writer, NULL);
    json_put_int(&writer, "timeout", MXCLIENT_CLAIM_TIMEOUT_MS);
    json_put_object(&writer, "one_time_keys");
    for (size_t i = 0; i < count; i++) {
        bool is_first = i == 0 || !span_equal(places[i - 1].user_id, places[i].user_id);

        if (is_first && i > 0)
            json_put_end(&writer);
        if (is_first) {
            json_put_key(&writer, places[i].user_id);
            json_put_object(&writer, NULL);
        }
        json_put_key(&writer, places[i].device_id);
        json_put_text(&writer, NULL, ONE_TIME);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    json_put_end(&writer);
}

int mxclient_claim_read(const struct json *answer, struct mxclient_place place,
    const struct mx_key *signing_key, struct mx_key *ret_key)
{
    const struct json *of_user = json_get_span(json_get(answer, "one_time_keys"), place.user_id);
    struct json_iter it = json_iterate(json_get_span(of_user, place.device_id));
    struct buffer key_id = { 0 };
    struct span text;
    struct mx_key key;
    int rc;

    if (!json_next(&it) || !span_starts(it.key, ONE_TIME ":"))
        return TR_ENOENT;
    if (!json_string(json_get(it.value, "key"), &text))
        return MX_EFORMAT;
    rc = mx_key_parse(text, &key);
    if (rc != 0)
        return rc;
    (void)buffer_text(&key_id, "ed25519:");
    rc = buffer_span(&key_id, place.device_id);
    if (rc == 0)
        rc = mx_verify_json(it.value, place.user_id, mxclient_span(&key_id), signing_key);
    buffer_free(&key_id);
    if (rc == 0)
        *ret_key = key;
    return rc;
}
