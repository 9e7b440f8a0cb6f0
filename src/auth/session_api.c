/* SPDX-License-Identifier: Apache-2.0 */
/* session_api.c: the routes of session.h. Each reads the body, asks the actor and sends its answer. */
#include <stdio.h>
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "json/json_expect.h"

enum { BODY_MAX = 16384 };

static void on_session_answer(struct http_request *request, const struct tr_event *event)
{
    const struct session_answer *answer = event->value;

    if (event->status < 0 || event->size < offsetof(struct session_answer, body)) {
        http_respond_lost(request, event->status, http_method(request) != HTTP_GET, "sessions");
        return;
    }
    if (answer->status == 429) {
        http_respond_shed(request, 429, answer->retry_s, "sign_ins");
        return;
    }
    if (answer->status == 504) {
        http_respond_lost(request, SQL_EUNKNOWN, true, "sessions");
        return;
    }
    if (answer->status == 503)
        http_add_header(request, "Retry-After", SPAN("1"));
    if (answer->status != 200)
        http_respond_error(request, answer->status, answer->label, answer->body);
    else
        http_respond(
            request, 200, "application/json", (struct span){ answer->body, answer->body_size });
}

static char *copy_of(struct span text)
{
    char *copy = base_alloc(text.size + 1);

    if (copy == NULL)
        return NULL;
    memcpy(copy, text.at, text.size);
    copy[text.size] = '\0';
    return copy;
}

static void ask_sessions(
    struct http_request *request, struct session_message *message, struct span text)
{
    struct sessions *sessions = http_service(request);

    if (message->kind == SESSION_EXCHANGE)
        (void)snprintf(message->traceparent, sizeof message->traceparent, "%.*s",
            (int)http_traceparent(request).size, http_traceparent(request).at);
    message->text = copy_of(text);
    message->text_size = text.size;
    if (message->text != NULL &&
        http_ask(request, sessions->actor, message, sizeof *message, on_session_answer) == 0)
        return;
    session_message_fini(message);
    http_respond_shed(request, 503, 1, "sessions");
}

/* Read the one member that matters and ask the actor, or answer 400. */
static void ask_from_body(
    struct http_request *request, struct session_message *message, const char *member)
{
    struct json_doc doc = { .depth_max = 4 };
    struct json_expect expect;
    struct span text, nonce;

    http_add_header(request, "Cache-Control", SPAN("no-store"));
    if (json_parse(&doc, http_body_bytes(request), http_body(request).size, JSON_UNIQUE_KEYS) < 0) {
        http_respond_error(request, 400, "InvalidRequest", "The body must be a JSON object.");
        json_doc_free(&doc);
        return;
    }
    expect = json_expect(json_root(&doc));
    /* OpenID Connect and other servers write id_token. */
    if (message->kind == SESSION_EXCHANGE && json_get(json_root(&doc), member) == NULL &&
        json_get(json_root(&doc), "id_token") != NULL)
        member = "id_token";
    text = json_need_string(&expect, member, 1, JWT_BYTES_MAX);
    nonce = json_may_string(&expect, "nonce", 1, 256);
    if (expect.failed) {
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    } else {
        if (nonce.at != NULL && message->kind == SESSION_EXCHANGE) {
            message->nonce = copy_of(nonce);
            if (message->nonce == NULL) {
                http_respond_shed(request, 503, 1, "memory");
                json_doc_free(&doc);
                return;
            }
        }
        ask_sessions(request, message, text);
    }
    json_doc_free(&doc);
}

static void handle_exchange(struct http_request *request)
{
    const struct session_options *options = &((struct sessions *)http_service(request))->options;
    struct span name = http_path_part(request, "provider");
    struct session_message message = { .kind = SESSION_EXCHANGE };

    message.address_size = (uint8_t)rate_limit_address_key(http_peer(request), message.address);
    while (message.provider < options->provider_count &&
           !span_is(name, options->providers[message.provider].name))
        message.provider++;
    if (message.provider == options->provider_count)
        http_respond_error(
            request, 404, "UnknownProvider", "The provider is not configured on this server.");
    else
        ask_from_body(request, &message, "idToken");
}

static void handle_refresh(struct http_request *request)
{
    ask_from_body(request, &(struct session_message){ .kind = SESSION_REFRESH }, "refreshToken");
}

static void handle_logout(struct http_request *request)
{
    ask_from_body(request, &(struct session_message){ .kind = SESSION_LOGOUT }, "refreshToken");
}

static void handle_me(struct http_request *request)
{
    ask_sessions(
        request, &(struct session_message){ .kind = SESSION_ME }, auth_claims_of(request)->issuer);
}

void sessions_routes(struct sessions *sessions, struct http_route routes[AUTH_SESSION_ROUTES])
{
    static const struct auth_demand me = { .session = true };
    /* Counted against their address. */
    static const struct auth_demand anyone = { .session = true, .anonymous = true };
    const struct {
        enum http_method method;
        const char *path;
        http_handler_fn handle;
        const struct auth_demand *demand;
    } table[AUTH_SESSION_ROUTES] = {
        { HTTP_POST, "/v1/auth/refresh", handle_refresh, &anyone },
        { HTTP_POST, "/v1/auth/logout", handle_logout, &anyone },
        { HTTP_POST, "/v1/auth/{provider}", handle_exchange, &anyone },
        { HTTP_GET, "/v1/users/me", handle_me, &me },
    };

    for (size_t i = 0; i < AUTH_SESSION_ROUTES; i++)
        routes[i] = (struct http_route){
            .method = table[i].method,
            .path = table[i].path,
            .handle = table[i].handle,
            .gate = auth_gate,
            .demand = table[i].demand,
            .body_max = table[i].method == HTTP_POST ? BODY_MAX : 0,
            .service = sessions,
        };
}
