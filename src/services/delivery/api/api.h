/* SPDX-License-Identifier: Apache-2.0 */
/* api.h: helpers of the *_api.c files: a request's body becomes an act, the act goes to its
 * conversation, and its outcome becomes the answer. */
#ifndef SERVICES_DELIVERY_API_API_H
#define SERVICES_DELIVERY_API_API_H

#include "json/json_expect.h"
#include "json/json_write.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/delivery.h"

#define XRPC_PREFIX "blue.catbird.mls."
/* A row of a route table: method, name, handler, largest body. */
#define XRPC(http_method_, name, handler, body_max_)                                               \
    {                                                                                              \
        .method = (http_method_), .path = "/xrpc/" XRPC_PREFIX name, .handle = (handler),          \
        .gate = auth_gate, .body_max = (body_max_), .label = name,                                 \
        .demand = &(const struct auth_demand){ .lxm = XRPC_PREFIX name },                          \
    }

/* The same of a declared call: call.h. */
#define XRPC_CALL(http_method_, name, call_, body_max_)                                            \
    {                                                                                              \
        .method = (http_method_), .path = "/xrpc/" XRPC_PREFIX name, .handle = call_handle,        \
        .gate = auth_gate, .body_max = (body_max_), .label = name,                                 \
        .demand = &(const struct auth_demand){ .lxm = XRPC_PREFIX name }, .extra = &(call_),       \
    }

enum {
    API_SMALL = 16 << 10,
    API_MEDIUM = 128 << 10, /* a report, or messages that wait with a request */
    API_COMMIT = 24 << 20,  /* commit, welcomes and group info as base64 */
    API_MESSAGE = 14 << 20,
    COMMIT_SIZE_MAX = 10 << 20,
    WELCOME_SIZE_MAX = 4 << 20,
    GROUP_INFO_SIZE_MAX = 10 << 20,
    MESSAGE_SIZE_MAX = 10 << 20,
    KEY_PACKAGE_SIZE_MAX = 64 << 10,
};

struct api_body {
    struct act *act;
    struct json_doc doc;
    struct json_expect expect;
    const char *raw_name; /* the member that `raw` stands for; NULL: the body was JSON */
    struct span raw;
};

/* Creates an act with the caller's claims, and parses the body into `expect`. False: the request
 * was answered. */
bool api_begin(
    struct http_request *request, const struct act_type *type, struct api_body *ret_body);
/* The same, but accepts a body of type message/mls too: it is the value of the member `raw_name`,
 * and the other members are parameters of the query. */
bool api_begin_mls(struct http_request *request, const struct act_type *type, const char *raw_name,
    struct api_body *ret_body);
/* As api_begin, for the conversation in the member convoId. */
bool api_begin_convo(
    struct http_request *request, const struct act_type *type, struct api_body *ret_body);
/* Appends a query as the JSON object that the other form of the request would have. `scratch` has
 * room for query.size + 1. False: the query is malformed. */
bool api_put_query(struct buffer *out, struct span query, char *scratch);
/* Does the caller want message/mls rather than JSON? */
bool api_wants_mls(const struct http_request *request);
/* Creates an act of a GET for the conversation in the parameter convoId. */
bool api_begin_query(
    struct http_request *request, const struct act_type *type, struct api_body *ret_body);
/* The same with other claims than those of the token. */
bool api_begin_query_of(struct http_request *request, const struct act_type *type,
    const struct auth_claims *claims, struct api_body *ret_body);
/* Read bytes of a member, in any form that the API accepts. */
struct span api_need_bytes(struct api_body *body, const char *name, size_t size_max);
struct span api_may_bytes(struct api_body *body, const char *name, size_t size_max);
/* Sets the act's idempotency id: the caller and the client's id, or a new one. */
void api_set_op(struct api_body *body, const char *kind, struct span given);
/* Answers with an error and frees the body. */
void api_refuse(struct http_request *request, struct api_body *body, unsigned status,
    const char *label, const char *text);
/* Takes the act and checks it as far as the server's mode asks: see commit_check.h. `go_on` takes a
 * good act; another one was answered. The body's JSON must not be needed any more. */
void api_check(struct http_request *request, struct act *act,
    void (*go_on)(struct http_request *request, struct act *act));
/* Answers 400 if the body was wrong, else sends the act to its conversation; `then` runs with the
 * outcome. Frees the body. */
void api_send(struct http_request *request, struct api_body *body, http_then_fn then);
/* Creates an act for a conversation, whose id it copies. NULL when out of memory. */
struct act *api_create_act(
    const struct act_type *type, const struct auth_claims *claims, struct span convo);
/* Asks the conversation's actor, which is started for that. The request keeps its holder. */
int api_ask_actor(struct http_request *request, const struct delivery *delivery, struct act *act,
    http_then_fn then);
/* Takes the act and sends it to its conversation's actor, if that is in memory. act->convo may be
 * the request's own text. False: nothing was sent or answered. */
bool api_send_if_live(struct http_request *request, struct act *act, http_then_fn then);
/* In `then`: the act if its status is 200; api_end frees it. NULL: the request was answered. */
struct act *api_act(struct http_request *request, const struct tr_event *event);
void api_end(struct http_request *request);
/* A then-function that answers with the act's JSON. */
void api_answered(struct http_request *request, const struct tr_event *event);
/* Answers with an object whose members `put` writes. */
void api_answer_with(struct http_request *request, const struct tr_event *event,
    void (*put)(struct json_writer *writer, struct act *act));

/* ---- the calls: routes.c lists them --------------------------------------------------------- */

void api_create_convo(struct http_request *request);
void api_add_members(struct http_request *request);
void api_remove_member(struct http_request *request);
void api_leave_convo(struct http_request *request);
void api_submit_commit(struct http_request *request);
void api_process_external_commit(struct http_request *request);
void api_update_group_info(struct http_request *request);
void api_get_convo(struct http_request *request);
void api_get_epoch(struct http_request *request);
void api_get_group_info(struct http_request *request);
void api_send_message(struct http_request *request);
void api_send_proposal(struct http_request *request);
void api_update_cursor(struct http_request *request);
void api_mark_unread(struct http_request *request);
void api_get_subscription_ticket(struct http_request *request);
void api_subscribe_convo_events(struct http_request *request);
void api_group_info_refresh(struct http_request *request);
void api_promote_admin(struct http_request *request);
void api_demote_admin(struct http_request *request);
void api_promote_moderator(struct http_request *request);
void api_demote_moderator(struct http_request *request);
void api_get_policy(struct http_request *request);
void api_update_policy(struct http_request *request);
void api_confirm_epoch(struct http_request *request);
void api_report_invalid_commit(struct http_request *request);
void api_reset_group(struct http_request *request);

#endif
