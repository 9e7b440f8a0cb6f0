/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/direct.h"
#include "services/delivery/text.h"

static bool no_memory(struct http_request *request, struct api_body *body)
{
    job_unref(body->job);
    json_doc_free(&body->doc);
    http_respond_shed(request, 503, 1, "memory");
    return false;
}

bool api_begin(struct http_request *request, enum job_kind kind, struct api_body *ret_body)
{
    struct tr_span body = http_body(request);
    int rc;

    *ret_body = (struct api_body){ .job = job_new(kind, auth_claims_of(request)) };
    if (ret_body->job == NULL)
        return no_memory(request, ret_body);
    ret_body->job->body = tr__alloc(body.size + JSON_PADDING_BYTES);
    if (ret_body->job->body == NULL)
        return no_memory(request, ret_body);
    memcpy(ret_body->job->body, body.at == NULL ? "" : body.at, body.size);
    rc = json_parse(&ret_body->doc, ret_body->job->body, body.size, JSON_UNIQUE_KEYS);
    if (rc == TR_ENOMEM)
        return no_memory(request, ret_body);
    if (rc < 0) {
        char text[120];

        (void)snprintf(text, sizeof text, "the body is not JSON: %s at byte %zu",
            ret_body->doc.error.text, ret_body->doc.error.offset);
        api_refuse(request, ret_body, 400, "InvalidRequest", text);
        return false;
    }
    ret_body->expect = json_expect(json_root(&ret_body->doc));
    return true;
}

bool api_begin_query(struct http_request *request, enum job_kind kind, struct api_body *ret_body)
{
    return api_begin_query_of(request, kind, auth_claims_of(request), ret_body);
}

bool api_begin_query_of(struct http_request *request, enum job_kind kind,
    const struct auth_claims *claims, struct api_body *ret_body)
{
    struct tr_span convo;

    *ret_body = (struct api_body){ .job = job_new(kind, claims) };
    if (ret_body->job == NULL)
        return no_memory(request, ret_body);
    if (!http_parameter(request, "convoId", &convo) || convo.size == 0 ||
        convo.size > JOB_CONVO_SIZE_MAX) {
        api_refuse(request, ret_body, 400, "InvalidRequest",
            "convoId must be there once, with 1 to 128 bytes");
        return false;
    }
    ret_body->job->body = tr__alloc(convo.size);
    if (ret_body->job->body == NULL)
        return no_memory(request, ret_body);
    memcpy(ret_body->job->body, convo.at, convo.size);
    ret_body->job->convo = (struct tr_span){ ret_body->job->body, convo.size };
    return true;
}

void api_refuse(struct http_request *request, struct api_body *body, unsigned status,
    const char *label, const char *text)
{
    http_respond_error(request, status, label, text);
    job_unref(body->job);
    json_doc_free(&body->doc);
}

struct tr_span api_may_bytes(struct api_body *body, const char *name, size_t size_max)
{
    const struct json *value = json_get(body->expect.object, name);
    struct tr_span bytes = { NULL, 0 };

    if (value == NULL || json_kind(value) == JSON_NULL)
        return bytes;
    if (!delivery_get_bytes(value, size_max, &bytes))
        json_expect_fail(&body->expect, name, "must be base64, within its size");
    return bytes;
}

struct tr_span api_need_bytes(struct api_body *body, const char *name, size_t size_max)
{
    struct tr_span bytes = api_may_bytes(body, name, size_max);

    if (bytes.size == 0)
        json_expect_fail(&body->expect, name, "must be there and not be empty");
    return bytes;
}

void api_set_op(struct api_body *body, const char *kind, struct tr_span given)
{
    static _Atomic uint64_t number;
    struct tr_buffer *text = &body->job->decoded;
    size_t from = text->size;

    /* Two callers may choose the same id: it is the caller's own. */
    if (given.at != NULL) {
        tr_buffer_format(text, "%s:%.*s:", kind, (int)body->job->claims->issuer.size,
            body->job->claims->issuer.at);
        tr_buffer_span(text, given); /* it may have any byte */
    } else                           /* its token is used once, so its id names the request */
        tr_buffer_format(text, "jti:%.*s:%.*s:%llu", (int)body->job->claims->issuer.size,
            body->job->claims->issuer.at, (int)body->job->claims->jti.size,
            body->job->claims->jti.at, (unsigned long long)atomic_fetch_add(&number, 1));
    if (text->failed == 0)
        body->job->op = (struct tr_span){ text->bytes + from, text->size - from };
}

static int send(struct http_request *request, struct job *job, http_then_fn then)
{
    struct delivery *delivery = http_service(request);
    struct job_message message = { .job = job_ref(job) };
    tr_sender convo;
    int rc = 0;

    if (direct_takes(delivery->direct, job))
        convo = tr_sender_clone(direct_desk(delivery->direct, job), "a request");
    else
        rc = tr_registry_get(delivery->convos, job->convo.at, job->convo.size, "a request", &convo);
    if (rc == 0) {
        rc = http_ask(request, convo, &message, sizeof message, then);
        tr_sender_drop(&convo);
    }
    if (rc < 0)
        job_unref(job);
    return rc;
}

void api_send(struct http_request *request, struct api_body *body, http_then_fn then)
{
    struct job *job = body->job;

    if (body->expect.failed) {
        api_refuse(request, body, 400, "InvalidRequest", body->expect.message);
        return;
    }
    json_doc_free(&body->doc);
    auth_set_data(request, job);
    if (job->decoded.failed == 0 && send(request, job, then) == 0)
        return;
    api_end(request);
    http_respond_shed(request, 503, 1, "busy");
}

struct job *api_job(struct http_request *request, const struct tr_event *event)
{
    struct job *job = auth_data(request);

    if (event->status == 0 && job->status == 200)
        return job;
    if (event->status == 0 && job->status != 0)
        job_respond(request, job);
    else
        http_respond_shed(request, 503, 1, "conversation");
    api_end(request);
    return NULL;
}

void api_end(struct http_request *request)
{
    job_unref(auth_data(request));
    auth_set_data(request, NULL);
}

void api_answered(struct http_request *request, const struct tr_event *event)
{
    struct job *job = api_job(request, event);

    if (job == NULL)
        return;
    job_respond(request, job);
    api_end(request);
}
