/* SPDX-License-Identifier: Apache-2.0 */
/* devices.h: the devices of the users we share rooms with, as their own signatures state them, and for
 * the time of a verification those of guests.
 *
 * 1. A device counts only if its object stands at its own user and device id and its own key signed
 *    it. The server is not believed.
 * 2. The keys of a known device never change, also not after it was deleted. An object with other
 *    keys is ignored and counted.
 * 3. A user is up to date only if no change arrived while the query was under way: each change
 *    counts up, and an answer clears the mark of the change that the query has seen. One query at a
 *    time.
 * 4. Memory is ahead of the store by one unit at most; if that unit fails, the caller drops all of it
 *    and loads it again.
 * 5. A guest is in memory alone: strangers cannot fill the disk. Tracking makes it a user like others. */
#ifndef MATRIX_CLIENT_DEVICES_H
#define MATRIX_CLIENT_DEVICES_H

#include "matrix/client/index.h"
#include "matrix/client/keys.h"

enum {
    MXCLIENT_QUERY_USERS_MAX = 250,
    MXCLIENT_DEVICES_PER_USER_MAX = 500, /* further ones are ignored and counted */
    MXCLIENT_QUERY_PAUSE_MS = 60 * 1000, /* for a user whose server could not be reached */
};

struct mxclient_device {
    struct mxclient_entry entry; /* its device id */
    struct mx_key identity_key;
    struct mx_key signing_key;
    enum mxstore_trust trust;
    bool is_deleted;
    bool is_seen;         /* in the answer that is being read */
    bool is_cross_signed; /* by the user's self-signing key; known after a query, not stored */
    struct buffer body;   /* its device_keys object */
    int64_t unwedged_ms;
};

/* Keys of cross-signing that passed their checks, from the last query that had them; not stored. A
 * master key is its own word: whether it is the user's own is for verification to say. */
struct mxclient_cross {
    bool has_master;
    bool has_self_signing; /* signed by the master key */
    bool is_changed;       /* the master key is another one than before */
    struct mx_key master;
    struct mx_key self_signing;
};

struct mxclient_user {
    struct mxclient_entry entry; /* its user id */
    bool is_outdated;
    bool is_left;     /* we share no room any more: no query until it is tracked again */
    bool is_guest;    /* not stored (rule 5) */
    bool is_querying; /* in the query under way */
    int64_t change;
    int64_t change_queried; /* the value of `change` when the query was sent */
    int64_t next_query_ms;
    struct mxclient_cross cross;
    struct mxclient_index devices; /* of struct mxclient_device */
};

struct mxclient_devices {
    const struct mxclient_session *session; /* borrowed */
    struct mxclient_index users;            /* of struct mxclient_user */
    bool is_querying;
    uint64_t added;    /* new devices so far: an event held for its sender may be readable now */
    uint64_t rejected; /* objects ignored by rules 1 and 2, and over the limit */
};

void mxclient_devices_init(
    struct mxclient_devices *devices, const struct mxclient_session *session);
void mxclient_devices_fini(struct mxclient_devices *devices); /* a zeroed one is fine */
/* Take stored rows, users first. TR_ENOMEM; MX_E* for a row whose keys cannot be read. */
int mxclient_devices_load_user(struct mxclient_devices *devices, const struct mxstore_user *row);
int mxclient_devices_load(struct mxclient_devices *devices, const struct mxstore_device *row);

/* Track a user; a new one is outdated. Adds a step if that changes something. TR_ENOMEM. */
int mxclient_devices_track(
    struct mxclient_devices *devices, struct span user_id, struct sql_unit *unit);
/* Track a user and query its devices again. Adds a step. TR_ENOMEM. */
int mxclient_devices_refresh(
    struct mxclient_devices *devices, struct span user_id, struct sql_unit *unit);
/* Query the devices of a user who may not be tracked: a new one is a guest, and one who left is queried
 * again. TR_ENOMEM. */
int mxclient_devices_invite(struct mxclient_devices *devices, struct span user_id);
/* Query the devices of a known user again, of a guest too. Adds a step for a user who is stored. */
void mxclient_devices_requery(
    struct mxclient_devices *devices, struct span user_id, struct sql_unit *unit);
/* Forget a guest; of a user who is tracked this changes nothing. */
void mxclient_devices_dismiss(struct mxclient_devices *devices, struct span user_id);
/* Take `device_lists` of a /sync answer. Users who are not tracked are ignored. */
void mxclient_devices_changed(
    struct mxclient_devices *devices, const struct json *device_lists, struct sql_unit *unit);

/* Write a query for outdated users; false if there is none to ask for now, or a query is under
 * way. A request that fails (mxclient_request_error) is passed to mxclient_devices_answered as
 * refused. */
bool mxclient_devices_query(
    struct mxclient_devices *devices, int64_t now_ms, struct mxclient_request *request);
/* Take the outcome of the query, MXCLIENT_DONE or MXCLIENT_REFUSED, and add the steps that store
 * it. TR_ENOMEM. */
int mxclient_devices_answered(struct mxclient_devices *devices,
    const struct mxclient_outcome *outcome, const struct json *body, int64_t now_ms,
    struct sql_unit *unit);

/* Find a user, a device, a device by its identity key; NULL if it is not known. Deleted devices are
 * found too. No device of a guest is found by its key: a guest takes part in verifications alone. */
struct mxclient_user *mxclient_devices_user(
    const struct mxclient_devices *devices, struct span user_id);
struct mxclient_device *mxclient_devices_find(
    const struct mxclient_devices *devices, struct mxclient_place place);
struct mxclient_device *mxclient_devices_by_key(
    const struct mxclient_devices *devices, struct span user_id, const struct mx_key *identity_key);
/* Add the step that stores a device, after its trust or unwedged_ms changed. */
void mxclient_devices_put(
    const struct mxclient_user *user, const struct mxclient_device *device, struct sql_unit *unit);

static inline struct span mxclient_id(const struct mxclient_entry *entry)
{
    return (struct span){ entry->id.bytes, entry->id.size };
}

/* Check a device_keys object: its ids, keys and own signature. Also for `sender_device_keys` of a
 * message. MX_EFORMAT, MX_EKEY, MX_EBASE64, MX_ESIGNATURE, TR_ENOMEM. */
int mxclient_device_check(const struct json *object, struct mxclient_place place,
    struct mx_key *ret_identity, struct mx_key *ret_signing);

#endif
