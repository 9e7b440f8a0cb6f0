/* SPDX-License-Identifier: Apache-2.0 */
/* api.h: calls of a conversation, described by tables. A struct api_call lists the parameters; `fill`
 * puts their values into an act. The act goes to its conversation, and its outcome becomes the answer.
 *
 *   read params ──▶ fill ──▶ check (commit_check.h) ──▶ the conversation ──▶ put or answer
 *
 * The act owns a copy of the body, since it may outlive the request; values point into that. */
#ifndef SERVICES_DELIVERY_API_API_H
#define SERVICES_DELIVERY_API_API_H

#include "services/common/call.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/delivery.h"

#define XRPC_PREFIX "blue.catbird.mls."

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

struct api_body;

struct api_call {
    const struct act_type *type;
    const struct param *params; /* the first is the conversation */
    /* A body of type message/mls is good too: it stands for this member (bundle.h has its own name
     * for all of them), and the query has the other members. NULL: JSON alone. */
    const char *raw;
    int variant; /* of calls that share a `fill` */
    bool is_checked;
    /* Put the values into the act, if all were good. Mistakes go to body->reader.expect or
     * api_refuse. NULL: the act needs the conversation alone. */
    void (*fill)(struct api_body *body);
    /* Write the members of the answer. NULL: the act has the whole answer. */
    void (*put)(struct json_writer *writer, struct act *act);
    /* Answer the request instead, or go on with it. */
    void (*answer)(struct http_request *request, struct act *act);
};

/* A request on its way to an act. */
struct api_body {
    struct http_request *request;
    const struct api_call *call;
    struct act *act;
    struct param_reader reader; /* raw_name NULL: the body is JSON */
    struct param_value values[PARAMS_MAX];
    struct refusal refusal; /* to answer with; status 0: none */
};

/* Serve a route whose `extra` is a struct api_call, or a struct call. */
void api_handle(struct http_request *request);
void api_handle_call(struct http_request *request);
/* Return the value of a parameter of the call's table. */
const struct param_value *api_value(const struct api_body *body, const char *name);
static inline struct span api_text(const struct api_body *body, const char *name)
{
    return api_value(body, name)->text;
}
/* Allocates a list for the act. NULL if it has no item, or when out of memory, which is noted. */
void *api_alloc(struct api_body *body, size_t count, size_t item_size);
static inline struct delivery *api_delivery(const struct api_body *body)
{
    return http_service(body->request);
}
/* Note an error to answer with; the first one stays. A NULL text is no error. */
void api_refuse(struct api_body *body, unsigned status, const char *label, const char *text);
/* Sets the act's idempotency id: the caller and the client's id, or a new one. */
void api_set_op(struct api_body *body, const char *kind, struct span given);
/* Appends a query as the JSON object that the other form of the request would have, with the types of
 * the parameters. `scratch` has
 * room for query.size + 1. False: the query is malformed. */
bool api_put_query(
    struct buffer *out, const struct param *params, struct span query, char *scratch);

/* Does the caller want message/mls rather than JSON? */
bool api_wants_mls(const struct http_request *request);
/* Creates an act for the conversation in the parameter convoId, with the claims of the request's token,
 * if it has one. NULL: the request was answered. */
struct act *api_create_query_act(struct http_request *request, const struct act_type *type);
/* Creates an act for a conversation, whose id it copies. NULL when out of memory. */
struct act *api_create_act(
    const struct act_type *type, const struct auth_claims *claims, struct span convo);
/* Takes the act and checks it as far as the server's mode asks: see commit_check.h. A good act is
 * sent; another one was answered. */
void api_check(struct http_request *request, struct act *act);
/* Takes the act and sends it to its conversation; the outcome is answered as the route's call says. */
void api_send(struct http_request *request, struct act *act);
/* Asks the conversation's actor, which is started for that. The request keeps its holder. */
int api_ask_actor(struct http_request *request, struct act *act, http_then_fn then);
/* Answers with the outcome of an act that was asked for. */
void api_respond(struct http_request *request, const struct tr_event *event, struct act *act);
/* Asks the conversation's actor, if that is in memory. act->convo may be the request's own text. False:
 * nothing was sent or answered. */
bool api_ask_if_live(struct http_request *request, struct act *act, http_then_fn then);
/* Frees the act that is the request's data. */
void api_end(struct http_request *request);

#endif
