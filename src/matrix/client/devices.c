/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c: device lists (Matrix specification, Client-Server API, "Tracking the device list for a
 * user"), kept in memory and stored row by row. */
#include "matrix/client/devices.h"

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

/* ---- life and search -------------------------------------------------------------------------- */

void mxclient_devices_init(struct mxclient_devices *devices, const struct mxclient_session *session)
{
    *devices = (struct mxclient_devices){ .session = session };
}

static void devices_free_device(void *object)
{
    buffer_free(&((struct mxclient_device *)object)->body);
}

static void devices_free_user(void *object)
{
    mxclient_index_fini(&((struct mxclient_user *)object)->devices, devices_free_device);
}

void mxclient_devices_fini(struct mxclient_devices *devices)
{
    mxclient_index_fini(&devices->users, devices_free_user);
    *devices = (struct mxclient_devices){ 0 };
}

static struct mxclient_user *devices_user_at(const struct mxclient_devices *devices, uint32_t i)
{
    tr_assert(i < devices->users.count);
    return (struct mxclient_user *)devices->users.entries[i];
}

static struct mxclient_device *devices_at(const struct mxclient_user *user, uint32_t i)
{
    tr_assert(i < user->devices.count);
    return (struct mxclient_device *)user->devices.entries[i];
}

struct mxclient_user *mxclient_devices_user(
    const struct mxclient_devices *devices, struct span user_id)
{
    return mxclient_index_find(&devices->users, user_id);
}

struct mxclient_device *mxclient_devices_find(
    const struct mxclient_devices *devices, struct mxclient_place place)
{
    const struct mxclient_user *user = mxclient_devices_user(devices, place.user_id);

    return user == NULL ? NULL : mxclient_index_find(&user->devices, place.device_id);
}

struct mxclient_device *mxclient_devices_by_key(
    const struct mxclient_devices *devices, struct span user_id, const struct mx_key *identity_key)
{
    const struct mxclient_user *user = mxclient_devices_user(devices, user_id);

    for (uint32_t i = 0; user != NULL && !user->is_guest && i < user->devices.count; i++)
        if (mx_key_equal(&devices_at(user, i)->identity_key, identity_key))
            return devices_at(user, i);
    return NULL;
}

/* Add a device that is not there yet. NULL: out of memory. */
static struct mxclient_device *devices_add(
    struct mxclient_user *user, struct span device_id, struct span body)
{
    struct mxclient_device *device = mxclient_index_add(&user->devices, device_id, sizeof *device);

    tr_assert(device == NULL || device->body.size == 0);
    return device == NULL || buffer_span(&device->body, body) != 0 ? NULL : device;
}

/* ---- rows ------------------------------------------------------------------------------------- */

int mxclient_devices_load_user(struct mxclient_devices *devices, const struct mxstore_user *row)
{
    struct mxclient_user *user = mxclient_index_add(&devices->users, row->user_id, sizeof *user);

    if (user == NULL)
        return TR_ENOMEM;
    user->is_outdated = row->is_outdated != 0;
    user->change = row->change;
    return 0;
}

int mxclient_devices_load(struct mxclient_devices *devices, const struct mxstore_device *row)
{
    struct mxclient_user *user = mxclient_devices_user(devices, row->user_id);
    struct mxclient_device *device;
    struct mx_key identity, signing;
    int rc = mx_key_parse(row->identity_key, &identity);

    tr_assert(user != NULL);
    tr_assert(row->trust >= 0 && row->trust <= MXSTORE_BLOCKED);
    if (rc == 0)
        rc = mx_key_parse(row->signing_key, &signing);
    if (rc != 0)
        return rc;
    device = devices_add(user, row->device_id, row->body);
    if (device == NULL)
        return TR_ENOMEM;
    device->identity_key = identity;
    device->signing_key = signing;
    device->trust = (enum mxstore_trust)row->trust;
    device->is_deleted = row->is_deleted != 0;
    device->unwedged_ms = row->unwedged_ms;
    return 0;
}

static void devices_put_user(const struct mxclient_user *user, struct sql_unit *unit)
{
    if (user->is_guest)
        return;
    mxstore_put(unit, MXSTORE_IS_user,
        &(struct mxstore_user){ .user_id = mxclient_id(&user->entry),
            .is_outdated = user->is_outdated,
            .change = user->change });
}

void mxclient_devices_put(
    const struct mxclient_user *user, const struct mxclient_device *device, struct sql_unit *unit)
{
    char identity[MX_KEY_CHARS + 1], signing[MX_KEY_CHARS + 1];

    if (user->is_guest)
        return;
    mx_key_text(&device->identity_key, identity);
    mx_key_text(&device->signing_key, signing);
    mxstore_put(unit, MXSTORE_IS_device,
        &(struct mxstore_device){ .user_id = mxclient_id(&user->entry),
            .device_id = mxclient_id(&device->entry),
            .identity_key = span_of(identity),
            .signing_key = span_of(signing),
            .trust = device->trust,
            .is_deleted = device->is_deleted,
            .body = mxclient_span(&device->body),
            .unwedged_ms = device->unwedged_ms });
}

/* ---- changes ---------------------------------------------------------------------------------- */

/* Mark a user outdated: every change counts, also while a query runs. */
static void devices_outdate(struct mxclient_user *user, struct sql_unit *unit)
{
    user->is_outdated = true;
    user->change++;
    devices_put_user(user, unit);
}

/* Store a guest and its devices. */
static void devices_adopt(struct mxclient_user *user, struct sql_unit *unit)
{
    user->is_guest = false;
    devices_put_user(user, unit);
    for (uint32_t i = 0; i < user->devices.count; i++)
        mxclient_devices_put(user, devices_at(user, i), unit);
}

int mxclient_devices_track(
    struct mxclient_devices *devices, struct span user_id, struct sql_unit *unit)
{
    bool is_known = mxclient_devices_user(devices, user_id) != NULL;
    struct mxclient_user *user = mxclient_index_add(&devices->users, user_id, sizeof *user);

    if (user == NULL)
        return TR_ENOMEM;
    if (user->is_guest)
        devices_adopt(user, unit);
    if (!is_known)
        devices_outdate(user, unit);
    user->is_left = false;
    return 0;
}

int mxclient_devices_invite(struct mxclient_devices *devices, struct span user_id)
{
    bool is_known = mxclient_devices_user(devices, user_id) != NULL;
    struct mxclient_user *user = mxclient_index_add(&devices->users, user_id, sizeof *user);

    if (user == NULL)
        return TR_ENOMEM;
    if (!is_known)
        user->is_guest = user->is_outdated = true;
    user->is_left = false;
    return 0;
}

void mxclient_devices_dismiss(struct mxclient_devices *devices, struct span user_id)
{
    const struct mxclient_user *user = mxclient_devices_user(devices, user_id);

    if (user != NULL && user->is_guest)
        mxclient_index_remove(&devices->users, user_id, devices_free_user);
}

int mxclient_devices_refresh(
    struct mxclient_devices *devices, struct span user_id, struct sql_unit *unit)
{
    int rc = mxclient_devices_track(devices, user_id, unit);

    if (rc == 0)
        mxclient_devices_requery(devices, user_id, unit);
    return rc;
}

void mxclient_devices_requery(
    struct mxclient_devices *devices, struct span user_id, struct sql_unit *unit)
{
    struct mxclient_user *user = mxclient_devices_user(devices, user_id);

    tr_assert(user != NULL);
    devices_outdate(user, unit);
}

void mxclient_devices_changed(
    struct mxclient_devices *devices, const struct json *device_lists, struct sql_unit *unit)
{
    static const char *const lists[] = { "changed", "left" };

    for (size_t i = 0; i < 2; i++)
        for (struct json_iter it = json_iterate(json_get(device_lists, lists[i]));
             json_next(&it);) {
            struct mxclient_user *user = NULL;
            struct span user_id;

            if (mxclient_read_id(it.value, &user_id))
                user = mxclient_devices_user(devices, user_id);
            if (user == NULL)
                continue;
            devices_outdate(user, unit);
            user->is_left = i == 1;
        }
}

bool mxclient_devices_query(
    struct mxclient_devices *devices, int64_t now_ms, struct mxclient_request *request)
{
    struct json_writer writer;
    uint32_t count = 0;

    if (devices->is_querying)
        return false;
    for (uint32_t i = 0; i < devices->users.count && count < MXCLIENT_QUERY_USERS_MAX; i++) {
        struct mxclient_user *user = devices_user_at(devices, i);

        tr_assert(!user->is_querying);
        user->is_querying = user->is_outdated && !user->is_left && now_ms >= user->next_query_ms;
        user->change_queried = user->change;
        count += user->is_querying ? 1 : 0;
    }
    if (count == 0)
        return false;
    devices->is_querying = true;
    mxclient_request_init(request, MXCLIENT_KEYS_QUERY, NULL);
    writer = json_writer(&request->body);
    json_put_object(&writer, NULL);
    json_put_int(&writer, "timeout", MXCLIENT_CLAIM_TIMEOUT_MS);
    json_put_object(&writer, "device_keys");
    for (uint32_t i = 0; i < devices->users.count; i++)
        if (devices_user_at(devices, i)->is_querying) {
            json_put_key(&writer, mxclient_id(&devices_user_at(devices, i)->entry));
            json_put_array(&writer, NULL);
            json_put_end(&writer);
        }
    json_put_end(&writer);
    json_put_end(&writer);
    return true;
}

/* ---- checks ----------------------------------------------------------------------------------- */

/* Compose "ALGORITHM:ID". */
static int devices_key_id(const char *algorithm, struct span id, struct buffer *out)
{
    (void)buffer_text(out, algorithm);
    (void)buffer_text(out, ":");
    return buffer_span(out, id);
}

/* Read the member "ALGORITHM:ID" of `keys`. */
static int devices_read_key(
    const struct json *object, const char *algorithm, struct span id, struct mx_key *ret_key)
{
    struct buffer name = { 0 };
    struct span text = { NULL, 0 };
    int rc = devices_key_id(algorithm, id, &name);
    bool is_text =
        rc == 0 &&
        json_string(json_get_span(json_get(object, "keys"), mxclient_span(&name)), &text);

    buffer_free(&name);
    if (rc != 0)
        return rc;
    return is_text ? mx_key_parse(text, ret_key) : MX_EFORMAT;
}

static int devices_verify(
    const struct json *object, struct span user_id, struct span key_name, const struct mx_key *key)
{
    struct buffer key_id = { 0 };
    int rc = devices_key_id("ed25519", key_name, &key_id);

    if (rc == 0)
        rc = mx_verify_json(object, user_id, mxclient_span(&key_id), key);
    buffer_free(&key_id);
    return rc;
}

int mxclient_device_check(const struct json *object, struct mxclient_place place,
    struct mx_key *ret_identity, struct mx_key *ret_signing)
{
    struct mx_key identity, signing;
    struct span user_id, device_id;
    int rc;

    if (!mxclient_read_id(json_get(object, "user_id"), &user_id) ||
        !mxclient_read_id(json_get(object, "device_id"), &device_id) ||
        !span_equal(user_id, place.user_id) || !span_equal(device_id, place.device_id))
        return MX_EFORMAT;
    rc = devices_read_key(object, "curve25519", device_id, &identity);
    if (rc == 0)
        rc = devices_read_key(object, "ed25519", device_id, &signing);
    if (rc == 0)
        rc = devices_verify(object, user_id, device_id, &signing);
    if (rc != 0)
        return rc;
    *ret_identity = identity;
    *ret_signing = signing;
    return 0;
}

/* Read a key of cross-signing: an object with this usage, and one key whose id is the key itself. */
static bool devices_read_cross(const struct json *object, struct span user_id, const char *usage,
    struct mx_key *ret_key, struct span *ret_name)
{
    struct json_iter it = json_iterate(json_get(object, "keys"));
    struct span text, owner;
    bool is_usage = false;

    for (struct json_iter use = json_iterate(json_get(object, "usage")); json_next(&use);)
        is_usage = is_usage || (json_string(use.value, &text) && span_is(text, usage));
    if (!is_usage || json_count(json_get(object, "keys")) != 1 || !json_next(&it) ||
        !span_starts(it.key, "ed25519:") || !json_string(it.value, &text) ||
        !mxclient_read_id(json_get(object, "user_id"), &owner) || !span_equal(owner, user_id))
        return false;
    *ret_name = (struct span){ it.key.at + 8, it.key.size - 8 };
    return span_equal(*ret_name, text) && mx_key_parse(text, ret_key) == 0;
}

static void devices_take_cross(struct mxclient_user *user, const struct json *answer)
{
    struct span id = mxclient_id(&user->entry), master_name, name;
    const struct json *self = json_get_span(json_get(answer, "self_signing_keys"), id);
    struct mxclient_cross former = user->cross;
    struct mxclient_cross *cross = &user->cross;

    cross->has_self_signing = false;
    /* A master key that the server leaves out is not forgotten: the next one may be another. */
    if (!devices_read_cross(json_get_span(json_get(answer, "master_keys"), id), id, "master",
            &cross->master, &master_name))
        return;
    cross->has_master = true;
    cross->is_changed =
        former.is_changed || (former.has_master && !mx_key_equal(&former.master, &cross->master));
    cross->has_self_signing =
        devices_read_cross(self, id, "self_signing", &cross->self_signing, &name) &&
        devices_verify(self, id, master_name, &cross->master) == 0;
}

static bool devices_is_cross_signed(const struct mxclient_user *user, const struct json *object)
{
    char name[MX_KEY_CHARS + 1];

    if (!user->cross.has_self_signing)
        return false;
    mx_key_text(&user->cross.self_signing, name);
    return devices_verify(
               object, mxclient_id(&user->entry), span_of(name), &user->cross.self_signing) == 0;
}

/* ---- answers ---------------------------------------------------------------------------------- */

/* Return whether these are our own keys, if the object stands at our own device. */
static bool devices_is_ours_or_other(const struct mxclient_devices *devices,
    struct mxclient_place place, const struct mx_key *identity, const struct mx_key *signing)
{
    const struct mxclient_session *session = devices->session;

    if (!span_equal(place.user_id, mxclient_span(&session->user_id)) ||
        !span_equal(place.device_id, mxclient_span(&session->device_id)))
        return true;
    return mx_key_equal(identity, mx_account_identity_key(session->account)) &&
           mx_key_equal(signing, mx_account_signing_key(session->account));
}

/* Take a device with these keys: a known one must have them already. TR_ENOENT: it is ignored. */
static int devices_take_keys(struct mxclient_user *user, struct span device_id,
    const struct json *object, const struct mx_key *identity, const struct mx_key *signing)
{
    struct mxclient_device *device = mxclient_index_find(&user->devices, device_id);
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    int rc;

    if (device != NULL)
        return mx_key_equal(&device->identity_key, identity) &&
                       mx_key_equal(&device->signing_key, signing)
                   ? 0
                   : TR_ENOENT;
    if (user->devices.count >= MXCLIENT_DEVICES_PER_USER_MAX)
        return TR_ENOENT;
    json_put_value(&writer, NULL, object);
    rc = json_writer_end(&writer);
    if (rc == 0) {
        device = devices_add(user, device_id, mxclient_span(&body));
        rc = device == NULL ? TR_ENOMEM : 0;
    }
    buffer_free(&body);
    if (rc != 0)
        return rc == TR_ENOMEM ? rc : TR_ENOENT;
    device->identity_key = *identity;
    device->signing_key = *signing;
    device->is_deleted = true; /* until the answer is settled, which stores what changed */
    return 0;
}

static int devices_take(struct mxclient_devices *devices, struct mxclient_user *user,
    struct span device_id, const struct json *object)
{
    struct mxclient_place place = { mxclient_id(&user->entry), device_id };
    const uint32_t known = user->devices.count;
    struct mxclient_device *device;
    struct mx_key identity, signing;
    int rc = MX_EFORMAT;

    if (mxclient_is_id(device_id))
        rc = mxclient_device_check(object, place, &identity, &signing);
    if (rc == 0 && !devices_is_ours_or_other(devices, place, &identity, &signing))
        rc = TR_ENOENT;
    if (rc == 0)
        rc = devices_take_keys(user, device_id, object, &identity, &signing);
    if (rc == TR_ENOMEM)
        return rc;
    if (rc != 0) {
        devices->rejected++;
        return 0;
    }
    devices->added += user->devices.count - known;
    device = mxclient_index_find(&user->devices, device_id);
    device->is_seen = true;
    device->is_cross_signed = devices_is_cross_signed(user, object);
    return 0;
}

/* A device that the answer lacks was deleted. Rows that did not change are not stored again. */
static void devices_settle(struct mxclient_user *user, struct sql_unit *unit)
{
    for (uint32_t i = 0; i < user->devices.count; i++) {
        struct mxclient_device *device = devices_at(user, i);
        bool is_changed = device->is_deleted == device->is_seen;

        device->is_deleted = !device->is_seen;
        if (is_changed)
            mxclient_devices_put(user, device, unit);
        device->is_seen = false;
    }
}

static int devices_take_user(struct mxclient_devices *devices, struct mxclient_user *user,
    const struct json *answer, struct sql_unit *unit)
{
    struct span id = mxclient_id(&user->entry);
    const struct json *objects = json_get_span(json_get(answer, "device_keys"), id);
    int rc = 0;

    devices_take_cross(user, answer);
    for (struct json_iter it = json_iterate(objects); rc == 0 && json_next(&it);)
        rc = devices_take(devices, user, it.key, it.value);
    if (rc != 0)
        return rc;
    devices_settle(user, unit);
    if (!user->is_guest)
        mxstore_clear_outdated(unit, id, user->change_queried);
    user->is_outdated = user->change != user->change_queried;
    return 0;
}

/* A server in `failures` was not reached: nothing is known about its users. */
static bool devices_is_failed(const struct mxclient_user *user, const struct json *answer)
{
    struct span rest = mxclient_id(&user->entry), piece;

    (void)span_cut(&rest, ':', &piece);
    return rest.at != NULL && json_get_span(json_get(answer, "failures"), rest) != NULL;
}

int mxclient_devices_answered(struct mxclient_devices *devices,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms,
    struct sql_unit *unit)
{
    int rc = 0;

    tr_assert(devices->is_querying);
    tr_assert(outcome->verdict == MXCLIENT_DONE || outcome->verdict == MXCLIENT_REFUSED);
    devices->is_querying = false;
    for (uint32_t i = 0; i < devices->users.count; i++) {
        struct mxclient_user *user = devices_user_at(devices, i);

        if (!user->is_querying)
            continue;
        user->is_querying = false;
        if (outcome->verdict != MXCLIENT_DONE || devices_is_failed(user, body))
            user->next_query_ms = now_ms + MXCLIENT_QUERY_PAUSE_MS;
        else if (rc == 0)
            rc = devices_take_user(devices, user, body, unit);
    }
    return rc;
}
