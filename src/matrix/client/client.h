/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: all that one device keeps in memory, as its nouns. */
#ifndef MATRIX_CLIENT_CLIENT_H
#define MATRIX_CLIENT_CLIENT_H

#include "matrix/client/devices.h"
#include "matrix/client/keys.h"
#include "matrix/client/rooms.h"
#include "matrix/client/session.h"
#include "matrix/client/verify.h"

/* Keys asked for and given (key_request.h). */
struct mxclient_key_requests {
    struct mxclient_index asks;     /* of struct mxclient_ask */
    struct mxclient_index forwards; /* of struct mxclient_forward */
    /* The request under way is of one of these; NULL: none is. */
    struct mxclient_ask *asking;
    struct mxclient_forward *forwarding;
    bool is_claiming;   /* for `forwarding` */
    bool is_cancelling; /* the request of `asking` is its cancellation */
    int64_t next_ms;    /* the earliest time for the next request, after a refusal */
};

/* Which devices of a room's members get its keys. A blocked device never does. */
enum mxclient_policy {
    MXCLIENT_SHARE_EXCLUDE, /* verified ones; the others are left out */
    MXCLIENT_SHARE_HALT,    /* verified ones; a device that is not verified stops all sends */
    MXCLIENT_SHARE_ALL,     /* all but blocked ones */
};

/* The thing that is missing before an event can be sent. */
enum mxclient_need {
    MXCLIENT_NEED_NOTHING, /* send now */
    MXCLIENT_NEED_MEMBERS, /* the room's members are not known */
    MXCLIENT_NEED_QUERY,   /* mxclient_devices_query, for members whose devices are outdated */
    MXCLIENT_NEED_CLAIM,   /* `request` claims one-time keys */
    MXCLIENT_NEED_SHARE,   /* `request` shares the session; send it after the unit's COMMIT */
    MXCLIENT_NEED_ANSWER,  /* a request of this room, or for its devices, is under way */
    MXCLIENT_NEED_TRUST,   /* policy halt: a member's device is not verified */
};

/* Told about the text of an answer that nobody reads any more; `done` may be NULL. */
struct mxclient_forget {
    void (*done)(void *data, struct span text);
    void *data;
};

struct mxclient {
    enum mxclient_policy policy;
    struct mxclient_forget forget; /* the rooms of a large answer, one after the other */
    struct mxclient_session session;
    struct mxclient_keys keys;
    struct mxclient_devices devices;
    struct mxclient_rooms rooms;
    struct mxclient_index peers;     /* of struct mxclient_peer (olm.h) */
    uint64_t peers_marked;           /* the devices added when they were marked, plus 1; or 0 */
    struct mxclient_index inbounds;  /* of struct mxclient_inbound (megolm.h) */
    int64_t inbound_clock;           /* orders them (megolm.h, rule 5) */
    struct mxclient_index outbounds; /* of struct mxclient_outbound (send.h) */
    struct mxclient_index gaps;      /* of struct mxclient_gap (timeline.h) */
    struct mxclient_gap *walking;    /* the gap whose request is under way; or NULL */
    struct mxclient_index withheld;  /* of struct mxclient_withheld (withheld.h) */
    struct mxclient_key_requests key_requests;
    bool is_unwedging;             /* a claim for wedged sessions is under way */
    struct mxclient_verify verify; /* verifications under way */
    int64_t wall_ahead_ms;         /* the wall clock minus `now_ms`, which never jumps */
    bool is_account_changed;       /* by a received message; the sync's unit stores the session */
    int64_t seq_next;              /* of the next received event */
    uint64_t unsent;               /* rows of the outbox that are neither sent nor given up */
    uint64_t failed;               /* rows of the outbox that are given up */
    struct buffer next_batch;      /* the token of the next /sync; empty before the first */
    uint32_t empty_syncs;          /* in a row, that came at once and brought no news */
    uint64_t skipped;              /* members of answers that were not valid */
    uint64_t undecrypted;          /* messages to this device that no session decrypts */
    uint64_t notices;              /* that a key is withheld from us */
    uint64_t dropped_sessions;     /* received ones and ones with devices, over their limits */
};

/* Return the wall clock, for times that other devices or other lives of this one read. `now_ms` is the
 * clock of this life: it measures pauses and time limits. */
static inline int64_t mxclient_wall_ms(const struct mxclient *client, int64_t now_ms)
{
    return now_ms + client->wall_ahead_ms;
}

/* Start the nouns of a session that has logged in. */
void mxclient_start(struct mxclient *client);
/* Add the steps that read all that a client keeps in memory. */
void mxclient_load_read(struct sql_unit *unit);
/* Start from the rows of these steps, the first ones of a unit that has ended. The session was
 * initialised with its key. Sending sessions are not continued: the next message starts others.
 * TR_ENOENT: nobody has logged in here. MX_E*: another key, or damaged rows. TR_ENOMEM. */
int mxclient_load(struct mxclient *client, const struct sql_unit *unit, int64_t now_ms);
void mxclient_fini(struct mxclient *client); /* wipes; a zeroed one is fine */

#endif
