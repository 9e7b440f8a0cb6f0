/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h: the public keys of our device on the server, and one-time keys claimed from others.
 *
 * 1. Keys are stored before they are uploaded: mxclient_keys_plan adds them to a unit, and
 *    mxclient_keys_request is called after its COMMIT. They count as published after a 200 alone.
 * 2. One upload at a time. A refused upload drops its one-time keys, skips their ids and waits
 *    longer each time, so a server that has other keys under these ids causes no loop.
 * 3. A server that lies about counts costs one upload a minute and one fallback key an hour.
 * 4. A claimed key is used only with a valid signature of its device.
 * 5. A former fallback key stays usable for about an hour after the server has its successor. */
#ifndef MATRIX_CLIENT_KEYS_H
#define MATRIX_CLIENT_KEYS_H

#include "matrix/client/session.h"

enum {
    MXCLIENT_KEYS_ON_SERVER = 50,
    MXCLIENT_KEYS_LOW = 25, /* below it new keys are made */
    MXCLIENT_KEYS_PER_UPLOAD = 100,
    MXCLIENT_KEYS_SKIPPED = 1000, /* ids skipped after a conflict */
    MXCLIENT_KEYS_PAUSE_MS = 60 * 1000,
    MXCLIENT_KEYS_PAUSE_MAX_MS = 24 * 60 * 60 * 1000,
    MXCLIENT_FALLBACK_KEEP_MS = 60 * 60 * 1000, /* of the former one; also the least lifetime */
    MXCLIENT_FALLBACK_LIFE_MS = 7 * 24 * 60 * 60 * 1000,
    MXCLIENT_CLAIM_TIMEOUT_MS = 10 * 1000,
};

struct mxclient_keys {
    struct mxclient_session *session; /* borrowed */
    int64_t count;                    /* one-time keys on the server, as it says; -1: not known */
    bool fallback_is_used;            /* the server says so */
    bool has_device_keys;             /* uploaded since the start */
    bool has_former_fallback;         /* or it is not known */
    uint64_t uploading_last;          /* the highest id of the upload under way */
    bool is_uploading;
    int64_t next_make_ms;    /* the earliest time for new one-time keys */
    int64_t next_upload_ms;  /* the earliest time for an upload */
    uint32_t conflicts;      /* refused uploads in a row */
    uint64_t refused;        /* uploads since the start */
    uint32_t refused_status; /* of HTTP, of the last one; with its code, or "" */
    char refused_code[MXCLIENT_ERRCODE_BYTES_MAX + 1];
};

void mxclient_keys_init(struct mxclient_keys *keys, struct mxclient_session *session);
/* Take the counts of a /sync answer. Absent or senseless members change nothing. */
void mxclient_keys_counts(struct mxclient_keys *keys, const struct json *sync);
/* Make the keys that the server lacks, and drop a former fallback key that is due. Adds the step that
 * stores the account, if it changed; sets *ret_is_due if an upload is due after the unit's COMMIT.
 * TR_ENOMEM. */
int mxclient_keys_plan(
    struct mxclient_keys *keys, int64_t now_ms, struct sql_unit *unit, bool *ret_is_due);
/* Write the upload. TR_ENOMEM, TR_ELIMIT: there is no upload. */
int mxclient_keys_request(struct mxclient_keys *keys, struct mxclient_request *request);
/* Take the outcome of the upload, MXCLIENT_DONE or MXCLIENT_REFUSED, and add the step that stores
 * the account. TR_ENOMEM. */
int mxclient_keys_uploaded(struct mxclient_keys *keys, const struct mxclient_outcome *outcome,
    const struct json *body, int64_t now_ms, struct sql_unit *unit);

/* Append the signed `device_keys` of our device. TR_ENOMEM. */
int mxclient_keys_device(const struct mxclient_session *session, struct buffer *out);

/* A device of a user. */
struct mxclient_place {
    struct span user_id;
    struct span device_id;
};
/* Write the claim of one key for each device. Devices of one user stand together. */
void mxclient_claim_request(
    struct mxclient_request *request, const struct mxclient_place *places, size_t count);
/* Read the key for a device from the answer to a claim. TR_ENOENT: the server gave none, also if it
 * could not reach the user's server. MX_ESIGNATURE, MX_EKEY, MX_EFORMAT, TR_ENOMEM. */
int mxclient_claim_read(const struct json *answer, struct mxclient_place place,
    const struct mx_key *signing_key, struct mx_key *ret_key);

#endif
