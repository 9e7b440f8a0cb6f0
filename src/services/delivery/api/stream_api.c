/* SPDX-License-Identifier: Apache-2.0 */
/* stream_api.c: event streams over HTTP: server-sent events, or WebSocket when the client asks for
 * an upgrade. Whoever cannot send a header brings a ticket: a token of ours, good for half a minute
 * and one conversation. */
#include <stdio.h>
#include <string.h>

#include "auth/jwt.h"
#include "base/alloc.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json_write.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/event.h"

enum { TICKET_S = 30 };

/* ---- tickets -------------------------------------------------------------------------------- */

/* What stands for a text in a ticket: ids may have any character, and claims may not. */
struct mark {
    char hex[2 * CRYPTO_SHA256_BYTES];
};

static struct span mark_of(struct span text, struct mark *mark)
{
    uint8_t hash[CRYPTO_SHA256_BYTES];

    crypto_sha256(text.at, text.size, hash);
    return (struct span){ mark->hex, crypto_hex_encode(hash, sizeof hash, mark->hex) };
}

static void ticket_answered(struct http_request *request, const struct tr_event *event)
{
    struct delivery *delivery = http_service(request);
    struct job *job = api_job(request, event);
    struct buffer ticket = { 0 };
    int64_t now_s = delivery_now_ms(delivery) / 1000;
    struct json_writer writer;
    struct mark convo, jti;

    if (job == NULL)
        return;
    if (jwt_sign_claims(delivery->ticket_key, (struct span){ NULL, 0 },
            &(struct jwt_claims){ .iss = span_of(delivery->service_did),
                .aud = span_of(delivery->service_did),
                .sub = job->claims->issuer,
                .nonce = mark_of(job->convo, &convo),
                .jti = mark_of(job->claims->jti, &jti),
                .iat_s = now_s,
                .exp_s = now_s + TICKET_S,
                .nbf_s = -1 },
            &ticket) < 0) {
        http_respond_shed(request, 503, 1, "memory");
    } else {
        writer = json_writer(&job->answer);
        json_put_object(&writer, NULL);
        json_put_string(&writer, "ticket", (struct span){ ticket.bytes, ticket.size });
        json_put_text(&writer, "endpoint", "/xrpc/" XRPC_PREFIX "subscribeConvoEvents");
        delivery_put_time(&writer, "expiresAt", (now_s + TICKET_S) * 1000);
        json_put_end(&writer);
        job_respond(request, job);
    }
    buffer_free(&ticket);
    api_end(request);
}

void api_get_subscription_ticket(struct http_request *request)
{
    struct api_body body;

    if (api_begin_convo(request, JOB_MEMBER, &body))
        api_send(request, &body, ticket_answered);
}

/* Who the ticket is for, as claims of the job's own. NULL: refused. */
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

static bool wants_websocket(const struct http_request *request)
{
    return span_is_nocase(http_header(request, "Upgrade"), "websocket");
}

/* Nothing is expected from the client but pings, which the layer below answers. */
static void ignore_message(
    http_stream stream, void *data, bool is_text, const char *bytes, size_t size)
{
    (void)stream;
    (void)data;
    (void)is_text;
    (void)bytes;
    (void)size;
}

static int begin_stream(struct http_request *request, struct job *job, tr_sender convo)
{
    static _Atomic uint64_t number;
    const struct job_message notice = { NULL, atomic_fetch_add(&number, 1) + 1 };
    const struct http_stream_options options = { .pending_max = 1 << 20,
        .farewell = { .make = delivery_slow_frame,
            .about = job->convo,
            .mark = job->seq,
            .close_code = 1013 }, /* 1008 is for who may not listen; this one may come back */
        .watcher = convo,
        .notice = &notice,
        .notice_size = sizeof notice };

    job->stream_number = notice.stream;
    job->is_websocket = wants_websocket(request);
    if (job->is_websocket)
        return http_websocket_open(request, &options, 4096, ignore_message, NULL, &job->stream);
    return http_sse_open(request, &options, &job->stream);
}

/* The caller is a member: the stream is opened here, then handed to the conversation. */
static void member_found(struct http_request *request, struct job *job)
{
    struct delivery *delivery = http_service(request);
    struct job_message message = { .job = job };
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, job->convo.at, job->convo.size, "a stream", &convo);

    if (rc < 0) {
        http_respond_shed(request, 503, 1, "busy");
        job_unref(job);
        return;
    }
    if (begin_stream(request, job, convo) == 0) { /* else it has answered */
        job->kind = JOB_SUBSCRIBE;
        job->status = 0;
        /* Control, as the notice that the stream ended: in one lane that notice cannot come first.
         */
        rc = tr_tell_with(
            convo, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
        if (rc < 0)
            http_stream_end(job->stream, NULL, 1013);
    } else {
        rc = TR_EUNSUPPORTED;
    }
    if (rc < 0)
        job_unref(job);
    tr_sender_drop(&convo);
}

static void looked(struct http_request *request, const struct tr_event *event)
{
    struct job *job = http_data(request); /* see api_subscribe_convo_events */

    if (event->status == 0 && job->status == 200) {
        member_found(request, job);
        return;
    }
    if (event->status == 0 && job->status != 0)
        job_respond(request, job);
    else
        http_respond_lost(request, event->status, false, "conversation");
    job_unref(job);
}

static int ask_member(struct http_request *request, struct job *job)
{
    struct delivery *delivery = http_service(request);
    struct job_message message = { .job = job_ref(job) };
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, job->convo.at, job->convo.size, "a request", &convo);

    if (rc == 0) {
        rc = http_ask(request, convo, &message, sizeof message, looked);
        tr_sender_drop(&convo);
    }
    if (rc < 0)
        job_unref(job);
    return rc;
}

/* The claims of the token or of the ticket; false: it has been answered. */
static bool identify(struct http_request *request, struct job *job)
{
    struct span ticket;

    if (auth_claims_of(request) != NULL) {
        job->claims = auth_claims_create(auth_claims_of(request));
    } else {
        int found = api_query_query(request, "ticket", &ticket);

        if (found < 0)
            return false;
        if (found == 1)
            job->claims = open_ticket(http_service(request), ticket, job->convo);
        if (job->claims == NULL) {
            http_respond_error(request, 401, "TicketRefused",
                "send a token, or a fresh ticket of getSubscriptionTicket");
            return false;
        }
    }
    if (job->claims == NULL)
        http_respond_shed(request, 503, 1, "memory");
    return job->claims != NULL;
}

/* ?cursor, or what an EventSource sends when it comes back; nothing: from now on. */
static bool read_cursor(struct http_request *request, struct job *job)
{
    struct span text = http_header(request, "Last-Event-ID");
    int found = text.at == NULL ? api_query_query(request, "cursor", &text) : 1;

    job->seq = INT64_MAX;
    if (found <= 0)
        return found == 0;
    if (span_u64(text, &job->seq) && job->seq <= INT64_MAX)
        return true;
    http_respond_error(request, 400, "InvalidCursor", "a cursor is a sequence number");
    return false;
}

void api_subscribe_convo_events(struct http_request *request)
{
    struct api_body body = { 0 };
    struct job *job;

    if (!api_begin_query_of(request, JOB_MEMBER, NULL, &body))
        return;
    job = body.job;
    if (!identify(request, job) || !read_cursor(request, job)) {
        job_unref(job);
        return;
    }
    http_set_data(request, job);
    if (ask_member(request, job) == 0)
        return;
    job_unref(job);
    http_respond_shed(request, 503, 1, "busy");
}
