/* SPDX-License-Identifier: Apache-2.0 */
/* stream_api.c: event streams over HTTP: server-sent events, or WebSocket when the client asks for
 * an upgrade. A client that cannot send a header brings a ticket: a token of this server, good for
 * half a minute and one conversation. */
#include <stdio.h>
#include <string.h>

#include "auth/jwt.h"
#include "base/alloc.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/convo/event.h"

enum { TICKET_S = 30 };

/* ---- tickets -------------------------------------------------------------------------------- */

/* A hash that stands for an id in a ticket: ids may have any character, claims may not. */
struct mark {
    char hex[2 * CRYPTO_SHA256_BYTES];
};

static struct span mark_of(struct span text, struct mark *mark)
{
    uint8_t hash[CRYPTO_SHA256_BYTES];

    crypto_sha256(text.at, text.size, hash);
    return (struct span){ mark->hex, crypto_hex_encode(hash, sizeof hash, mark->hex) };
}

static void answer_ticket(struct http_request *request, struct act *act)
{
    struct delivery *delivery = http_service(request);
    struct buffer ticket = { 0 };
    int64_t now_s = delivery_now_ms(delivery) / 1000;
    struct json_writer writer = json_writer(&act->answer);
    struct mark convo, jti;

    tr_assert(act->claims != NULL);
    if (jwt_sign_claims(delivery->ticket_key, (struct span){ NULL, 0 },
            &(struct jwt_claims){ .iss = span_of(delivery->service_did),
                .aud = span_of(delivery->service_did),
                .sub = act->claims->issuer,
                .nonce = mark_of(act->convo, &convo),
                .jti = mark_of(act->claims->jti, &jti),
                .iat_s = now_s,
                .exp_s = now_s + TICKET_S,
                .nbf_s = -1 },
            &ticket) < 0) {
        http_respond_shed(request, 503, 1, "memory");
    } else {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "ticket", (struct span){ ticket.bytes, ticket.size });
        json_put_text(&writer, "endpoint", "/xrpc/" XRPC_PREFIX "subscribeConvoEvents");
        text_put_time(&writer, "expiresAt", (now_s + TICKET_S) * 1000);
        json_put_end(&writer);
        call_respond(request, &act->answer);
    }
    buffer_free(&ticket);
}

const struct api_call api_get_subscription_ticket = {
    .type = &member_act_type,
    .params = PARAMS(PARAM_CONVO),
    .answer = answer_ticket,
};

/* Verifies a ticket and returns its claims. NULL: refused, or out of memory. */
static const struct auth_claims *open_ticket(
    const struct delivery *delivery, struct span ticket, struct span convo)
{
    const struct span us = span_of(delivery->service_did);
    const struct auth_claims *claims = NULL;
    enum jwt_refusal refusal;
    struct mark mark;
    struct jwt jwt;

    refusal = jwt_parse(&jwt, ticket);
    if (refusal == JWT_OK)
        refusal = jwt_check(&jwt, &(struct jwt_expect){ .now_s = delivery_now_ms(delivery) / 1000,
                                      .lifetime_s_max = TICKET_S,
                                      .issuer = us,
                                      .audiences = &us,
                                      .audience_count = 1,
                                      .any_lxm = true,
                                      .algorithms = 1u << CRYPTO_HS256 });
    if (refusal == JWT_OK)
        refusal = jwt_verify(&jwt, delivery->ticket_key);
    if (refusal == JWT_OK && jwt.claims.sub.at != NULL &&
        span_equal(jwt.claims.nonce, mark_of(convo, &mark)))
        claims = auth_claims_create(&(struct auth_claims){ .kind = AUTH_SESSION,
            .issuer = jwt.claims.sub,
            .jti = jwt.claims.jti,
            .expires_s = (uint64_t)jwt.claims.exp_s });
    jwt_fini(&jwt);
    return claims;
}

/* ---- streams -------------------------------------------------------------------------------- */

/* Clients send nothing but pings, which http answers. */
static void ignore_message(
    http_stream stream, void *data, bool is_text, const char *bytes, size_t size)
{
    (void)stream;
    (void)data;
    (void)is_text;
    (void)bytes;
    (void)size;
}

static int open_stream(
    struct http_request *request, struct subscribe_act *subscribe, tr_sender convo)
{
    static _Atomic uint64_t number;
    const struct act_envelope notice = { NULL, atomic_fetch_add(&number, 1) + 1 };
    const struct http_stream_options options = { .pending_max = 1 << 20,
        .farewell = { .make = delivery_slow_frame,
            .about = subscribe->act.convo,
            .mark = subscribe->seq,
            .close_code = 1013 }, /* the client may come back; 1008 says that it may not */
        .watcher = convo,
        .notice = &notice,
        .notice_size = sizeof notice };

    subscribe->stream_number = notice.stream;
    subscribe->watcher = tr_sender_weaken(convo);
    subscribe->is_websocket = span_is_nocase(http_header(request, "Upgrade"), "websocket");
    if (subscribe->is_websocket)
        return http_websocket_open(
            request, &options, 4096, ignore_message, NULL, &subscribe->stream);
    return http_sse_open(request, &options, &subscribe->stream);
}

/* Opens the stream of a member and hands it to the conversation. False: the act was not sent. */
static bool stream_start(struct http_request *request, struct act *act)
{
    struct delivery *delivery = http_service(request);
    struct act_envelope message = { .act = act };
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, act->convo.at, act->convo.size, "a stream", &convo);

    tr_assert(act->status == 200);
    if (rc < 0) {
        http_respond_shed(request, 503, 1, "busy");
        return false;
    }
    rc = open_stream(request, act_subscribe(act), convo); /* a failure was answered */
    if (rc == 0) {
        act_become(act, &subscribe_act_type);
        /* In the lane of the notice that the stream has ended, so that the notice cannot overtake. */
        rc = tr_tell_with(
            convo, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
        if (rc < 0)
            http_stream_end(act_subscribe(act)->stream, NULL, 1013);
    }
    tr_sender_drop(&convo);
    return rc == 0;
}

static void member_answered(struct http_request *request, const struct tr_event *event)
{
    struct act *act = http_data(request); /* see api_subscribe_convo_events */

    if (event->status != 0 || act->status != 200)
        api_respond(request, event, act);
    else if (stream_start(request, act))
        return;
    act_unref(act);
}

enum { STREAM_TICKET, STREAM_CURSOR, STREAM_PARAMS };

/* Without a token, sets the claims of the ticket. False: the request was answered. */
static bool read_claims(
    struct http_request *request, struct act *act, const struct param_value *ticket)
{
    if (act->claims == NULL && ticket->is_given)
        act->claims = open_ticket(http_service(request), ticket->text, act->convo);
    if (act->claims == NULL)
        http_respond_error(request, 401, "TicketRefused",
            "The ticket is missing, expired or for another conversation; send a token, or get a "
            "new ticket.");
    return act->claims != NULL;
}

/* Reads the header of an EventSource that resumes, or the parameter cursor. Neither: new rows only.
 * False: the request was answered. */
static bool read_stream_cursor(
    struct http_request *request, const struct param_value *cursor, uint64_t *ret_seq)
{
    struct span text = http_header(request, "Last-Event-ID");

    *ret_seq = INT64_MAX;
    if (text.at == NULL && !cursor->is_given)
        return true;
    if (span_u64(text.at == NULL ? cursor->text : text, ret_seq) && *ret_seq <= INT64_MAX)
        return true;
    http_respond_error(request, 400, "InvalidCursor", "cursor must be a sequence number.");
    return false;
}

void api_subscribe_convo_events(struct http_request *request)
{
    static const struct param params[] = { [STREAM_TICKET] = PARAM_MAY_TEXT("ticket", 0, 0),
        [STREAM_CURSOR] = PARAM_MAY_TEXT("cursor", 0, 0),
        PARAM_LAST };
    struct param_reader reader = { .request = request };
    struct param_value values[STREAM_PARAMS] = { 0 };
    struct act *act = api_create_query_act(request, &member_act_type);

    if (act == NULL)
        return;
    param_read_query(&reader, params, values);
    if (param_reader_refuse(&reader) || !read_claims(request, act, &values[STREAM_TICKET]) ||
        !read_stream_cursor(request, &values[STREAM_CURSOR], &act_subscribe(act)->seq)) {
        act_unref(act);
        return;
    }
    http_set_data(request, act);
    if (api_ask_actor(request, act, member_answered) == 0)
        return;
    api_end(request);
    http_respond_shed(request, 503, 1, "busy");
}
