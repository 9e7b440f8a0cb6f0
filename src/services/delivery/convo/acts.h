/* SPDX-License-Identifier: Apache-2.0 */
/* acts.h: the payloads of all acts, and their types. A type's functions are in the file named in
 * the ruler above it. Each payload embeds struct act. The end of this file declares the type that is
 * named after each payload, and act_<payload>(), which leads from the act to the payload and asserts
 * the type. */
#ifndef SERVICES_DELIVERY_CONVO_ACTS_H
#define SERVICES_DELIVERY_CONVO_ACTS_H

#include <stddef.h>

#include "base/assert.h"
#include "services/delivery/api/policy_api.h"
#include "services/delivery/convo/act.h"
#include "services/delivery/convo/event.h"

/* ---- act_commit.c: everything that moves the epoch ------------------------------------------ */

enum commit_kind {
    COMMIT_CHANGE, /* adds, removes, updates by a member */
    COMMIT_LEAVE,  /* the caller leaves */
    COMMIT_JOIN,   /* an external commit: the caller joins */
};

/* A proposal in a commit's bundle: it is logged before the commit. */
struct act_proposal {
    struct span bytes;
    unsigned char sha256[32];
};

struct commit_act {
    struct act act;
    struct act_content content;
    struct act_members members;
    struct act_group_info info;
    enum commit_kind kind;
    bool knows_proposals; /* every proposal the commit refers to is stored or in the bundle */
    struct act_proposal *proposals; /* owned */
    uint32_t proposal_count;
    struct span app_bytes; /* an application message of the next epoch */
    struct act_invite invite;
};

/* Hashes the commit's bytes. A commit without bytes (numbered) is hashed by what it asks for, so
 * that the same id with another request is no repeat. */
void commit_act_hash(struct commit_act *commit);

/* ---- act_creation.c --------------------------------------------------------------------------- */

struct creation_act {
    struct act act;
    struct act_members members;
    struct act_group_info info;
    struct span name, description, suite;
    uint64_t epoch;
};

/* ---- act_message.c -------------------------------------------------------------------------- */

struct message_act {
    struct act act;
    struct act_content content;
    struct span id; /* chosen by the sender */
};
extern const struct act_type proposal_act_type;
/* An application message for current subscribers, never stored. */
extern const struct act_type ephemeral_act_type;

/* ---- act_read.c ----------------------------------------------------------------------------- */

extern const struct act_type epoch_act_type;
extern const struct act_type view_act_type;  /* getConvo */
extern const struct act_type state_act_type; /* the actor's memory, for operators */

/* Is `seq` the newest number? Answered from memory, or must_read is set. */
struct poll_act {
    struct act act;
    uint64_t seq;
    uint64_t trims; /* delivery->trims before the lookup */
    uint64_t kept_from;
    bool must_read; /* memory does not know: ask the database */
};

struct read_to_act {
    struct act act;
    uint64_t seq;
    bool is_news; /* stored: the cursor moved forward */
};
extern const struct act_type mark_unread_act_type;

/* ---- convo_stream.c ------------------------------------------------------------------------- */

struct subscribe_act {
    struct act act;
    uint64_t seq; /* the stream begins after it; INT64_MAX: at the end of the log */
    http_stream stream;
    uint64_t stream_number; /* identifies the stream when it ends */
    tr_weak watcher;        /* the actor that is told when the stream ends */
    bool is_websocket;
    bool is_stream_gone; /* the client left before the act was planned */
};
extern const struct act_type member_act_type; /* is the caller a member? Sets seq */

/* Which accounts have an open stream? One byte for each row in the answer. */
struct listening_act {
    struct act act;
    struct sql_unit *devices; /* owned: the first column of its first step has the DIDs */
};

/* ---- act_group_info.c ----------------------------------------------------------------------- */

struct group_info_act {
    struct act act;
    struct act_group_info info;
    uint64_t epoch;
};

/* The stored GroupInfo, for members and for accounts that may join. */
struct context_act {
    struct act act;
    struct act_invite invite;
    bool wants_mls; /* message/mls rather than JSON */
};

/* ---- act_policy.c --------------------------------------------------------------------------- */

struct role_act {
    struct act act;
    struct span target;
    bool is_admin; /* else moderator */
    bool is_given; /* else taken */
};

struct policy_act {
    struct act act;
    struct convo_policy policy; /* planned: the whole new policy */
    uint32_t changes;           /* a bit per field */
};
extern const struct act_type policy_read_act_type;

/* ---- act_recovery.c ------------------------------------------------------------------------- */

/* The caller is in `epoch`, whose authenticator has this hash. */
struct confirm_act {
    struct act act;
    uint64_t epoch;
    unsigned char sha256[32];
    bool is_fork; /* stored: another member confirmed another hash */
};

/* The caller cannot process the commit `sha256` made at `base_epoch`. */
struct report_act {
    struct act act;
    uint64_t base_epoch;
    unsigned char sha256[32];
    struct span reason;
};

/* Replaces the group by a new one with the same members. */
struct reset_act {
    struct act act;
    struct span group; /* the new group's id, as text or hex */
};

/* ---- act_notice.c: events that are told and not stored --------------------------------------- */

struct notice_act {
    struct act act;
    struct delivery_event event;
    uint32_t count; /* refresh: members that heard it */
};
/* A notice is from the service; in a refresh the caller asks for a fresh GroupInfo. */
extern const struct act_type refresh_act_type;

/* ---- for each payload: the type that is named after it, and act_<payload>() ----------------- */

#define ACT_ACCESSOR(noun)                                                                         \
    extern const struct act_type noun##_act_type;                                                  \
    _Static_assert(offsetof(struct noun##_act, act) == 0, "act_create allocates the head");        \
    static inline struct noun##_act *act_##noun(struct act *act)                                   \
    {                                                                                              \
        tr_assert(act->type->payload == PAYLOAD_##noun);                                           \
        return (struct noun##_act *)(void *)((char *)act - offsetof(struct noun##_act, act));      \
    }
ACT_PAYLOADS(ACT_ACCESSOR)

/* The invite of an external commit; NULL: the act is none. */
static inline struct act_invite *join_invite(struct act *act)
{
    return act_has(act, ACT_COMMITS) && act_commit(act)->kind == COMMIT_JOIN
               ? &act_commit(act)->invite
               : NULL;
}

#endif
