/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/api.h"

#include <string.h>

#include "base/alloc.h"
#include "http/uri.h"
#include "services/delivery/convo/direct.h"
#include "services/delivery/delivery_metrics.h"

/* ---- reading -------------------------------------------------------------------------------- */

void api_refuse(struct api_body *body, unsigned status, const char *label, const char *text)
{
    tr_assert(status >= 400 && label != NULL);
    if (text != NULL && body->refusal.status == 0)
        body->refusal = (struct refusal){ .status = status, .label = label, .text = text };
}

const struct param_value *api_value(const struct api_body *body, const char *name)
{
    int index = param_find(body->call->params, span_of(name));

    tr_assert(index >= 0); /* the table names it */
    return &body->values[index];
}

void *api_alloc(struct api_body *body, size_t count, size_t item_size)
{
    void *list = count == 0 ? NULL : base_calloc(count * item_size);

    if (list == NULL && count > 0)
        body->reader.is_out_of_memory = true;
    return list;
}

static bool is_good(const struct api_body *body)
{
    return !body->reader.expect.failed && !body->reader.is_out_of_memory &&
           body->refusal.status == 0;
}

static void read_json(struct api_body *body)
{
    struct span given = http_body(body->request), text = { NULL, given.size };

    body->act->body = base_alloc(given.size + JSON_PADDING_BYTES);
    if (body->act->body != NULL)
        text.at = memcpy(body->act->body, given.at == NULL ? "" : given.at, given.size);
    param_read_text(&body->reader, text, "The body", body->call->params, body->values);
}

/* ---- message/mls ---------------------------------------------------------------------------- */

/* Ignores parameters of the type, such as ;version=mls10. */
static bool is_type(struct span type, const char *wanted)
{
    struct span name;

    return span_cut(&type, ';', &name) && span_is_nocase(span_trimmed(name), wanted);
}

bool api_wants_mls(const struct http_request *request)
{
    struct span list = http_header(request, "Accept"), type;

    while (span_cut(&list, ',', &type))
        if (is_type(type, "message/mls"))
            return true;
    return false;
}

static void put_list(struct json_writer *writer, struct span values)
{
    struct span value;

    json_put_array(writer, NULL);
    if (values.size == 0) /* an empty value is an empty list; a last comma adds an empty item */
        values.at = NULL;
    while (span_cut(&values, ',', &value))
        json_put_string(writer, NULL, value);
    json_put_end(writer);
}

/* Writes a parameter as the member it stands for: a list, a number or, mostly, a text. */
static void put_parameter(
    struct json_writer *writer, enum param_type type, struct span name, struct span value)
{
    uint64_t number;

    json_put_key(writer, name);
    if (type == PARAM_DIDS)
        put_list(writer, value);
    else if (type == PARAM_INT && span_u64(value, &number) && number <= INT64_MAX)
        json_put_int(writer, NULL, (int64_t)number);
    else
        json_put_string(writer, NULL, value);
}

bool api_put_query(struct buffer *out, const struct param *params, struct span query, char *scratch)
{
    struct json_writer writer = json_writer(out);
    struct span pair;

    json_put_object(&writer, NULL);
    while (span_cut(&query, '&', &pair)) {
        struct span value = pair, name;
        size_t size;
        int param;

        if (pair.size == 0)
            continue;
        (void)span_cut(&value, '=', &name);
        if (!http_query_decode(value.at == NULL ? SPAN("") : value, scratch, &size) ||
            !http_is_utf8(pair.at, pair.size))
            return false;
        param = param_find(params, name);
        put_parameter(&writer, param < 0 ? PARAM_TEXT : params[param].type, name,
            (struct span){ scratch, size });
    }
    json_put_end(&writer);
    return true;
}

/* The act's copy has the message first and the members of the query after it. */
static void read_mls(struct api_body *body)
{
    struct span raw = http_body(body->request), query = http_query(body->request);
    struct span text = { NULL, 0 };
    struct buffer members = { 0 };
    char *scratch = http_alloc(body->request, query.size + 1);
    bool is_query_good =
        scratch == NULL || api_put_query(&members, body->call->params, query, scratch);

    tr_assert(body->call->raw != NULL);
    if (scratch != NULL && is_query_good && members.failed == 0)
        body->act->body = base_alloc(raw.size + members.size + JSON_PADDING_BYTES);
    if (body->act->body != NULL) {
        tr_assert(members.bytes != NULL); /* {} at least */
        memcpy(body->act->body, raw.at, raw.size);
        text.at = memcpy(body->act->body + raw.size, members.bytes, members.size);
        text.size = members.size;
    }
    body->reader.raw_name = body->call->raw;
    body->reader.raw = (struct span){ body->act->body, raw.size };
    if (is_query_good)
        param_read_text(&body->reader, text, "The query", body->call->params, body->values);
    else
        api_refuse(body, 400, "InvalidRequest",
            "A parameter of the query is not valid percent-encoded UTF-8.");
    buffer_free(&members);
}

static bool is_mls(const struct http_request *request)
{
    struct span media = http_header(request, "Content-Type");

    return is_type(media, "message/mls") || is_type(media, "application/octet-stream");
}

/* False: the request was answered. */
static bool read_request(struct api_body *body)
{
    const struct api_call *call = body->call;

    if (http_route(body->request)->method == HTTP_GET) { /* HEAD uses the route of GET */
        body->act = api_create_query_act(body->request, call->type);
        if (body->act == NULL)
            return false;
        /* The act has the first parameter, the conversation. */
        param_read_query(&body->reader, call->params + 1, body->values + 1);
        return true;
    }
    body->act = act_create(call->type, auth_claims_of(body->request));
    if (body->act == NULL)
        body->reader.is_out_of_memory = true;
    else if (call->raw != NULL && is_mls(body->request))
        read_mls(body);
    else
        read_json(body);
    if (is_good(body))
        body->act->convo = body->values[0].text;
    return true;
}

void api_handle(struct http_request *request)
{
    struct api_body body = { .request = request,
        .call = http_route(request)->extra,
        .reader = { .request = request, .is_null_wrong = true } };

    tr_assert(body.call != NULL && body.call->params != NULL);
    if (!read_request(&body))
        return;
    if (body.call->fill != NULL && is_good(&body))
        body.call->fill(&body);
    if (param_reader_refuse(&body.reader)) {
        act_unref(body.act);
        return;
    }
    param_reader_fini(&body.reader);
    if (body.refusal.status != 0) {
        http_respond_error(request, body.refusal.status, body.refusal.label, body.refusal.text);
        act_unref(body.act);
    } else if (body.call->is_checked) {
        api_check(request, body.act);
    } else {
        api_send(request, body.act);
    }
}

void api_handle_call(struct http_request *request)
{
    const struct delivery *delivery = http_service(request);

    call_begin(request, &delivery->calls, http_route(request)->extra);
}

/* ---- acts ----------------------------------------------------------------------------------- */

struct act *api_create_act(
    const struct act_type *type, const struct auth_claims *claims, struct span convo)
{
    struct act *act = act_create(type, claims);

    tr_assert(convo.size > 0 && convo.size <= ACT_CONVO_SIZE_MAX);
    if (act == NULL)
        return NULL;
    act->body = base_alloc(convo.size);
    if (act->body == NULL) {
        act_unref(act);
        return NULL;
    }
    memcpy(act->body, convo.at, convo.size);
    act->convo = (struct span){ act->body, convo.size };
    return act;
}

struct act *api_create_query_act(struct http_request *request, const struct act_type *type)
{
    struct act *act;
    struct span convo;
    int found = http_parameter_find(request, "convoId", &convo);

    if (found != 1 || convo.size == 0 || convo.size > ACT_CONVO_SIZE_MAX) {
        http_respond_error(request, 400, "InvalidRequest",
            found == 0        ? "convoId is missing."
            : found != 1      ? "convoId must be given once, as URL-encoded UTF-8."
            : convo.size == 0 ? "convoId must not be empty."
                              : "convoId is too long; the most is 128 bytes.");
        return NULL;
    }
    act = api_create_act(type, auth_claims_of(request), convo);
    if (act == NULL)
        http_respond_shed(request, 503, 1, "memory");
    return act;
}

void api_set_op(struct api_body *body, const char *kind, struct span given)
{
    static _Atomic uint64_t number;
    struct buffer *text = &body->act->decoded;
    size_t from = text->size;

    tr_assert(body->act->claims != NULL && body->act->op.at == NULL);
    /* Two callers may choose the same id: the caller is part of it. */
    if (given.at != NULL) {
        buffer_text(text, kind);
        buffer_text(text, ":");
        buffer_span(text, body->act->claims->issuer);
        buffer_text(text, ":");
        buffer_span(text, given);
    } else { /* without an id no repeat is recognised: the counter makes every op new */
        buffer_format(text, "jti:%.*s:%.*s:%llu", (int)body->act->claims->issuer.size,
            body->act->claims->issuer.at, (int)body->act->claims->jti.size,
            body->act->claims->jti.at, (unsigned long long)atomic_fetch_add(&number, 1));
    }
    if (text->failed == 0)
        body->act->op = (struct span){ text->bytes + from, text->size - from };
}

static int ask_to(struct http_request *request, tr_sender to, struct act *act, http_then_fn then)
{
    struct act_envelope message = { .act = act_ref(act) };
    int rc = http_ask(request, to, &message, sizeof message, then);

    if (rc < 0)
        act_unref(act);
    return rc;
}

int api_ask_actor(struct http_request *request, struct act *act, http_then_fn then)
{
    const struct delivery *delivery = http_service(request);
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, act->convo.at, act->convo.size, "a request", &convo);

    tr_assert(act->convo.size > 0);
    if (rc < 0)
        return rc;
    rc = ask_to(request, convo, act, then);
    tr_sender_drop(&convo);
    return rc;
}

void api_respond(struct http_request *request, const struct tr_event *event, struct act *act)
{
    if (event->status == 0 && act->status != 0)
        act_respond(request, act);
    else
        http_respond_lost(
            request, event->status, http_route(request)->method != HTTP_GET, "conversation");
}

static void act_answered(struct http_request *request, const struct tr_event *event)
{
    const struct api_call *call = http_route(request)->extra;
    const struct delivery *delivery = http_service(request);
    struct act *act = http_data(request);
    struct json_writer writer;

    tr_assert(act != NULL);
    if (event->status == 0 && act->status != 0)
        delivery_metrics_act(act, delivery->env->now_ns(delivery->env->data) - act->began_ns);
    else
        delivery_metrics_add(DELIVERY_METRIC_DROPS, 1);
    http_set_data(request, NULL);
    if (event->status != 0 || act->status != 200 || (call->answer == NULL && call->put == NULL)) {
        api_respond(request, event, act);
    } else if (call->answer != NULL) {
        call->answer(request, act);
    } else {
        tr_assert(act->answer.size == 0);
        writer = json_writer(&act->answer);
        json_put_object(&writer, NULL);
        call->put(&writer, act);
        json_put_end(&writer);
        call_respond(request, &act->answer);
    }
    act_unref(act);
}

void api_send(struct http_request *request, struct act *act)
{
    struct delivery *delivery = http_service(request);
    int rc = act->decoded.failed;

    tr_assert(act->convo.size > 0 && act->status == 0);
    http_set_data(request, act);
    act->began_ns = delivery->env->now_ns(delivery->env->data);
    if (rc == 0 && direct_takes(delivery->direct, act))
        rc = ask_to(request, direct_worker_of(delivery->direct, act->convo), act, act_answered);
    else if (rc == 0)
        rc = api_ask_actor(request, act, act_answered);
    if (rc == 0)
        return;
    if (act->decoded.failed == 0) {
        delivery_metrics_add(DELIVERY_METRIC_DROPS, 1);
        delivery_metrics_add(DELIVERY_METRIC_BOX_FULL, rc == TR_EFULL);
    }
    api_end(request);
    http_respond_shed(request, 503, 1, "busy");
}

void api_end(struct http_request *request)
{
    act_unref(http_data(request));
    http_set_data(request, NULL);
}

bool api_ask_if_live(struct http_request *request, struct act *act, http_then_fn then)
{
    struct delivery *delivery = http_service(request);
    tr_sender convo;
    int rc;

    tr_assert(act->convo.size > 0);
    if (direct_takes(delivery->direct, act) ||
        tr_registry_find(delivery->convos, act->convo.at, act->convo.size, "a request", &convo) < 0)
        return false;
    act->convo = (struct span){ NULL, 0 }; /* the request's text; the actor knows its id */
    rc = ask_to(request, convo, act, then);
    tr_sender_drop(&convo);
    return rc == 0;
}
