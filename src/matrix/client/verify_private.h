/* SPDX-License-Identifier: Apache-2.0 */
/* verify_private.h: declarations shared by verify.c (events, users, time) and the files of one
 * verification: verify_flow.c, verify_move.c, verify_post.c. */
#ifndef MATRIX_CLIENT_VERIFY_PRIVATE_H
#define MATRIX_CLIENT_VERIFY_PRIVATE_H

#include "json/json_write.h"
#include "matrix/client/client.h"
#include "matrix/client/verify_content.h"

/* An event moves a verification: first the messages of the peer, then the decisions of the user. */
enum verify_event {
    VERIFY_REQUEST,
    VERIFY_READY,
    VERIFY_START,
    VERIFY_ACCEPT,
    VERIFY_KEY,
    VERIFY_MAC,
    VERIFY_DONE,
    VERIFY_CANCEL,
    VERIFY_MESSAGES, /* the number of those above */
    VERIFY_USER_ACCEPTS = VERIFY_MESSAGES,
    VERIFY_USER_STARTS,
    VERIFY_USER_MATCHES,
    VERIFY_EVENTS,
};
extern const char *const verify_event_names[VERIFY_MESSAGES]; /* as types */

struct verify_failure {
    const char *code;
    const char *reason;
};
extern const struct verify_failure verify_failures[MXCLIENT_FAILURE_COUNT];

/* One event on its way into a verification. */
struct verify_run {
    struct mxclient *client;
    struct sql_unit *unit;
    int64_t now_ms;
    struct span sender;
    struct span transaction_id;
    struct span device_id; /* of a request, ready or start: from_device */
    const struct json *content;
    struct mxclient_flow *flow; /* NULL: not known */
    enum mxclient_verify_step to;
};

/* ---- verify_post.c: messages to devices -------------------------------------------------------- */

/* A message on its way: {"messages":{USER:{DEVICE:content}}} for each device. */
struct verify_post {
    struct verify_run *run;
    struct buffer content;
    struct json_writer writer;
};
/* Start a content with its transaction_id; the caller adds members to post->writer. */
void verify_post_start(struct verify_post *post, struct verify_run *run);
/* Queue the content for one device ("*": all of the user). Frees it. TR_ENOMEM; a full queue drops
 * the message, and the verification will time out. */
int verify_post_end(struct verify_post *post, enum verify_event event, struct mxclient_place place);
/* Queue it for all devices of the user that may be verified, but for the one of `place`. */
int verify_post_end_all(
    struct verify_post *post, enum verify_event event, struct mxclient_place place);
/* Tell one device, or all, that a verification is over. `is_stray`: it was none of ours, so the
 * answer must leave room for those that are. */
int verify_post_cancel(struct verify_run *run, struct mxclient_place place,
    enum mxclient_failure failure, bool is_stray);
int verify_post_cancel_all(
    struct verify_run *run, struct mxclient_place place, enum mxclient_failure failure);
/* Return the last message of run->flow, which has ended, if the server has not answered it and the peer
 * waits for it. */
struct mxclient_verify_message *verify_post_last(const struct verify_run *run);
/* Write the step of a row that keeps a message (rule 7), and read it: TR_ENOENT if it keeps none. */
int verify_post_pack(const struct mxclient_verify_message *message, struct buffer *out);
int verify_post_load(struct mxclient *client, const struct mxstore_verification *row);
void verify_post_free(struct mxclient_verify_message *message);

/* ---- verify_flow.c: verifications under way ---------------------------------------------------- */

bool verify_is_ourselves(const struct mxclient *client, struct mxclient_place place);
/* Return the device if it may be verified: known, not deleted, not blocked, not this one. */
struct mxclient_device *verify_device(const struct mxclient *client, struct mxclient_place place);
/* Return whether a user is stored, and whether a verification is with a guest (rule 6). */
bool verify_is_tracked(const struct mxclient *client, struct span user_id);
bool verify_is_guest(const struct mxclient *client, const struct mxclient_flow *flow);
/* Fix the device of a verification, and its keys. TR_ENOMEM. */
int verify_bind(struct mxclient_flow *flow, const struct mxclient_device *device);
/* Return whether the device is still the one that the verification began with (rule 3). */
bool verify_keys_hold(const struct mxclient *client, const struct mxclient_flow *flow);

/* Return the verification under way with this id: no two have the same. */
struct mxclient_flow *verify_find(const struct mxclient *client, struct span transaction_id);
/* Return whether there is room for another one with this user. */
bool verify_has_room(const struct mxclient *client, struct span user_id);
/* Remember that the verification of run->sender and run->transaction_id has ended. TR_ENOMEM. */
int verify_note_end(struct verify_run *run);
/* Add a verification with run->sender and make it run->flow. TR_ENOMEM. */
int verify_add(struct verify_run *run, enum mxclient_origin origin, int64_t began_ms);
void verify_free(struct mxclient_flow *flow);
/* Return whether the verification of this message ended a while ago. */
bool verify_is_late(const struct verify_run *run);
/* Return when a verification has taken too long: sooner while the user has not accepted it. */
int64_t verify_due_ms(const struct mxclient_flow *flow);
bool verify_is_overdue(const struct verify_run *run);

/* Set the step, and store it if the user or we have acted (rule 4). TR_ENOMEM. */
int verify_go(struct verify_run *run, enum mxclient_verify_step step);
/* End a verification that has not ended, and tell the peer, or nobody. TR_ENOMEM. */
int verify_end(struct verify_run *run, enum mxclient_failure failure);
int verify_end_quietly(struct verify_run *run, enum mxclient_failure failure);
/* Apply an event to run->flow; a failure ends it. TR_EBUSY, TR_EAGAIN (verify_move), TR_ENOMEM. */
int verify_apply(struct verify_run *run, enum verify_event event);

static inline bool verify_has_ended(const struct mxclient_flow *flow)
{
    return flow->step == MXCLIENT_VERIFY_DONE || flow->step == MXCLIENT_VERIFY_CANCELLED;
}

/* ---- verify_move.c ----------------------------------------------------------------------------- */

/* Apply an event to run->flow. 0; a failure that ends it; TR_EBUSY: no move from this step; TR_EAGAIN:
 * not meant for us, ignored; TR_ENOMEM. */
int verify_move(struct verify_run *run, enum verify_event event);
/* Choose the algorithms of a bare start and keep the commitment for the accept. */
int verify_take_offer(struct verify_run *run);

static inline struct mxclient_place verify_peer(const struct mxclient_flow *flow)
{
    return (
        struct mxclient_place){ mxclient_span(&flow->user_id), mxclient_span(&flow->device_id) };
}

#endif
