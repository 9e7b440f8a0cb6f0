/* SPDX-License-Identifier: Apache-2.0 */
/* act.h: an act is one request on its way through the service, with its parameters and outcome.
 *
 * Every act has a type (struct act_type): one table of functions that says how to plan it, store
 * it, apply it, answer it and tell subscribers. Two drivers call these functions: the
 * conversation's actor (convo.c) and the direct path (direct.c). acts.h has the types and their
 * payloads. A unit is a list of SQL statements that the database stores together or not at all
 * (sql/sql.h).
 *
 * The connection and the driver each hold the act; the last holder frees it, so a client that
 * disconnects leaks nothing. Until the driver has replied, only the driver touches the act; after
 * the reply, only the connection does. */
#ifndef SERVICES_DELIVERY_CONVO_ACT_H
#define SERVICES_DELIVERY_CONVO_ACT_H

#include <stdatomic.h>

#include "auth/claims.h"
#include "http/http.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/mls/mls_message.h"

struct act;
struct commit_roster;
struct convo;
struct convo_op;
struct convo_slot;
struct sql_unit;

enum {
    ACT_WELCOMES_MAX = 16,
    ACT_CONVO_SIZE_MAX = 128, /* bytes of a conversation's id */
    ACT_MEMBERS_MAX = 1000,
    ACT_PROPOSALS_MAX = 100,
};

/* ---- types ---------------------------------------------------------------------------------- */

/* The decision of a plan. */
enum convo_plan {
    CONVO_GO,        /* store the act: op->after is the epoch and seq that it leads to */
    CONVO_ANSWERED,  /* the plan has set the status: answer the act */
    CONVO_WAIT,      /* plan the act again when an awaited act or all units in flight have ended */
    CONVO_EXCLUSIVE, /* plan the act again when no unit is in flight */
    CONVO_LOOKUP,    /* read the answer from the database */
    CONVO_TELL,      /* tell subscribers and answer; there is nothing to store */
};

enum {
    ACT_READS = 1,           /* changes nothing; does not wait behind exclusive acts */
    ACT_LOGS = 2,            /* stores a log row with its op: a repeated request finds it there */
    ACT_COMMITS = 4,         /* is a commit: starts the next epoch */
    ACT_CREATES = 8,         /* creates the conversation; the caller becomes its first admin */
    ACT_NEEDS_NO_CONVO = 16, /* is planned even if no conversation has this id; others get 404 */
    ACT_NEEDS_ACTOR = 32,    /* needs subscribers or the actor's memory: not for the direct path */
    ACT_IS_AWAITED = 64,     /* waiting acts are planned again as soon as it has ended */
    ACT_TRANSIENT = 128,     /* ephemeral: not logged, consumes no token, refused without waiting */
    ACT_PUSHES = 256,        /* wakes the devices of members without an open stream */
    ACT_IN_ORDER = 512,      /* its lookup runs after all units sent before, by any actor */
    ACT_FOR_MEMBERS = 1024,  /* refused unless the caller is a member, also after units in flight */
    ACT_FOR_READERS = 2048,  /* refused unless the caller is a member now */
};

/* The struct that embeds the act: acts.h has struct <noun>_act and act_<noun>() for each. */
#define ACT_PAYLOADS(each)                                                                         \
    each(commit) each(creation) each(message) each(context) each(poll) each(subscribe)             \
        each(read_to) each(group_info) each(role) each(policy) each(confirm) each(report)          \
            each(reset) each(notice) each(listening)
#define ACT_TAG(noun) PAYLOAD_##noun,
enum act_payload { PAYLOAD_NONE, ACT_PAYLOADS(ACT_TAG) };
/* In a struct act_type: the payload of the type. */
#define ACT_PAYLOAD(noun) .payload = PAYLOAD_##noun, .size = sizeof(struct noun##_act)

/* Appends the steps that store a planned act, or that look up its answer. */
typedef void act_steps_fn(const struct convo_op *op);

struct act_type {
    const char *name; /* in message names and traces */
    enum act_payload payload;
    size_t size; /* of the payload's struct; 0: there is none */
    /* Where in the payload these parts of struct act are. 0: it has no such part. */
    size_t content_at, members_at, info_at;
    /* Free what only this type owns. NULL: nothing. */
    void (*fini)(struct act *act);
    /* Answer from memory without waking the conversation. False: memory has no answer. NULL: no act
     * of this type can be answered so. */
    bool (*peek)(const struct convo_slot *slot, struct act *act);
    /* Decide what to do with the act. Changes only the op and the act. NULL: CONVO_GO. */
    enum convo_plan (*plan)(struct convo *convo, struct convo_op *op);
    act_steps_fn *store;
    /* Read results of the stored unit. NULL: there are none. */
    void (*stored)(struct convo_op *op, const struct sql_unit *unit);
    /* Change the conversation in memory as the stored unit changed the database. */
    void (*apply)(struct convo *convo, const struct convo_op *op);
    /* Write the answer of a stored or read act, or change it. NULL: epoch, seq and time are the
     * answer. */
    void (*answer)(const struct convo_op *op);
    /* Tell subscribers. NULL: subscribers get no event. */
    void (*tell)(struct convo *convo, struct tr_context *ctx, const struct convo_op *op);
    /* CONVO_LOOKUP: looked_up writes the answer from the rows of `lookup`. It returns false if the
     * act has to be planned again. */
    act_steps_fn *lookup;
    bool (*looked_up)(struct convo *convo, struct convo_op *op, const struct sql_unit *unit);
    unsigned flags;
    enum delivery_metric counter; /* counts the acts that were not repeats */
    enum delivery_timer timer;
};

/* ---- parts that several payloads have ------------------------------------------------------- */

/* An MLS message. */
struct act_content {
    struct span bytes; /* as sent; empty only in a commit to a numbered conversation */
    struct mls_message mls;
    unsigned char sha256[32]; /* identifies a repeat */
    bool is_verified;         /* the signature is right for the group at its epoch */
    struct buffer stored_id;  /* of a repeat: the message id it was stored with */
};

/* An account that a commit or a creation adds. A Welcome refers to its key package, or the request
 * lists its DID without a Welcome. */
struct act_add {
    struct span did;
    struct span device;    /* absent: not known */
    struct span reference; /* KeyPackageRef; absent: none */
    uint32_t welcome;      /* index of the Welcome that has the reference */
};

/* A key package that the request lists beside its Welcomes. */
struct act_hash {
    struct span did;
    size_t size;
    unsigned char bytes[64];
};

/* Accounts that an act adds and removes, and the Welcomes of the added ones. */
struct act_members {
    struct act_add *adds; /* owned */
    uint32_t add_count;
    struct span *removes; /* owned */
    uint32_t remove_count;
    struct act_add *named; /* owned: the accounts the caller lists; NULL: it lists none */
    uint32_t named_count;
    struct span welcomes[ACT_WELCOMES_MAX];
    uint32_t welcome_count;
    uint16_t welcome_suite;  /* of all Welcomes */
    struct act_hash *hashes; /* owned, sorted */
    uint32_t hash_count;
};

/* A GroupInfo. commit_check_run sets all fields except the bytes. */
struct act_group_info {
    struct span bytes; /* empty: none was sent */
    struct span group_id;
    uint64_t epoch;
    uint16_t suite;
    struct commit_roster *roster; /* owned: accounts in its ratchet tree; NULL: not known */
};

/* An invite. An external commit carries its secret; getGroupInfo carries the hash of the secret. */
struct act_invite {
    bool is_given;
    bool is_needed;              /* set by the plan: storing the act uses the invite once */
    bool must_name_caller;       /* set by the plan: a removed caller needs an invite of its own */
    unsigned char hashes[2][32]; /* of the secret as text, and of the bytes if it is base64 */
};

/* ---- struct act ----------------------------------------------------------------------------- */

struct act {
    _Atomic uint32_t holders;
    const struct act_type *type;
    const struct auth_claims *claims; /* one reference; NULL: the service itself acts */
    char *body;                       /* owned; most spans point into it */
    struct buffer decoded;            /* owned; decoded base64. If it fails, the act fails */
    struct span convo;
    struct span op; /* idempotency id: a repeated request has the same; absent: none */
    uint64_t began_ns;

    struct act_content *content; /* parts of the payload; NULL: it has no such part */
    struct act_members *members;
    struct act_group_info *info;

    /* the outcome */
    unsigned status;   /* of HTTP; 0: not answered yet */
    const char *label; /* of an error; static */
    char text[160];
    struct buffer answer;
    bool is_answer_mls; /* message/mls, else JSON */
    bool is_in_doubt;   /* the database may have stored it: answer 504, not 503 */
    bool is_repeat;     /* an earlier request stored it: the answer repeats the first one */
    uint64_t result_epoch, result_seq;
    int64_t result_ms;
};

/* Creates an act with one holder. NULL when out of memory. */
struct act *act_create(const struct act_type *type, const struct auth_claims *claims);
/* Changes the type to one with the same payload, for example from message to ephemeral. */
void act_become(struct act *act, const struct act_type *type);
struct act *act_ref(struct act *act);
void act_unref(struct act *act); /* NULL is fine */
/* Sets an error; the first error stays. */
void act_fail(struct act *act, unsigned status, const char *label, const char *text);
/* Sets an error and returns CONVO_ANSWERED, for a plan. */
enum convo_plan act_refuse(struct act *act, unsigned status, const char *label, const char *text);
enum convo_plan act_refuse_stranger(struct act *act); /* 403 NotMember */
/* Clears the outcome, before the act is planned again. */
void act_forget(struct act *act);
/* Answers the request with the act's outcome. */
void act_respond(struct http_request *request, struct act *act);

static inline bool act_has(const struct act *act, unsigned flags)
{
    return (act->type->flags & flags) != 0;
}

/* The message of every actor that takes acts. It holds one reference to the act. Without an act it
 * is a notice: a stream has ended, or the direct path changed the conversation in the database and
 * the actor's memory is out of date (direct.h). A direct worker has one more kind of message without
 * an act (direct.c). */
struct act_envelope {
    struct act *act; /* NULL: see `stream` */
    uint64_t stream; /* the stream that has ended; 0: memory is out of date */
};
void act_envelope_drop(void *message);

#endif
