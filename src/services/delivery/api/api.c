/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/api.h"

#include <string.h>

#include "base/alloc.h"
#include "http/uri.h"
#include "json/json_write.h"
#include "services/common/param.h"
#include "services/common/text.h"
#include "services/delivery/convo/direct.h"
#include "services/delivery/delivery_metrics.h"

static bool no_memory(struct http_request *request, struct api_body *body)
{
    act_unref(body->act);
    json_doc_free(&body->doc);
    http_respond_shed(request, 503, 1, "memory");
    return false;
}

static bool parse_body(struct http_request *request, struct api_body *body, char *text, size_t size)
{
    char message[JSON_EXPLAIN_BYTES];
    int rc = param_parse_json(
        &body->doc, text, size, body->raw_name == NULL ? "The body" : "The query", message);

    if (rc == TR_ENOMEM)
        return no_memory(request, body);
    if (rc < 0) {
        api_refuse(request, body, 400, "InvalidRequest", message);
        return false;
    }
    body->expect = json_expect(json_root(&body->doc));
    return true;
}

bool api_begin(struct http_request *request, const struct act_type *type, struct api_body *ret_body)
{
    struct span body = http_body(request);

    *ret_body = (struct api_body){ .act = act_create(type, auth_claims_of(request)) };
    if (ret_body->act == NULL)
        return no_memory(request, ret_body);
    ret_body->act->body = base_alloc(body.size + JSON_PADDING_BYTES);
    if (ret_body->act->body == NULL)
        return no_memory(request, ret_body);
    memcpy(ret_body->act->body, body.at == NULL ? "" : body.at, body.size);
    return parse_body(request, ret_body, ret_body->act->body, body.size);
}

bool api_begin_convo(
    struct http_request *request, const struct act_type *type, struct api_body *ret_body)
{
    if (!api_begin(request, type, ret_body))
        return false;
    ret_body->act->convo = json_need_string(&ret_body->expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    return true;
}

/* ---- message/mls ---------------------------------------------------------------------------- */

/* Ignores parameters of the type, such as ;version=mls10. */
static bool is_type(struct span type, const char *wanted)
{
    const char *end = type.at == NULL ? NULL : memchr(type.at, ';', type.size);

    if (end != NULL)
        type.size = (size_t)(end - type.at);
    while (type.at != NULL && type.size > 0 && type.at[type.size - 1] == ' ')
        type.size--;
    return span_is_nocase(type, wanted);
}

bool api_wants_mls(const struct http_request *request)
{
    struct span list = http_header(request, "Accept");

    while (list.size > 0) {
        const char *comma = memchr(list.at, ',', list.size);
        size_t size = comma == NULL ? list.size : (size_t)(comma - list.at);

        if (is_type((struct span){ list.at, size }, "message/mls"))
            return true;
        size += comma == NULL ? 0 : 1;
        list = (struct span){ list.at + size, list.size - size };
        while (list.size > 0 && list.at[0] == ' ')
            list = (struct span){ list.at + 1, list.size - 1 };
    }
    return false;
}

static void put_list(struct json_writer *writer, struct span values)
{
    json_put_array(writer, NULL);
    for (bool has_more = values.size > 0; has_more;) {
        const char *comma = memchr(values.at, ',', values.size);
        size_t size = comma == NULL ? values.size : (size_t)(comma - values.at);

        json_put_string(writer, NULL, (struct span){ values.at, size });
        has_more = comma != NULL;
        if (has_more)
            values = (struct span){ comma + 1, values.size - size - 1 };
    }
    json_put_end(writer);
}

/* Writes a parameter as the member it stands for: most are texts. */
static void put_parameter(struct json_writer *writer, struct span name, struct span value)
{
    static const char *const numbers[] = { "epoch", "paddedSize" };
    static const char *const lists[] = { "didList", "removes" };
    uint64_t number;

    json_put_key(writer, name);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (span_is(name, lists[i])) {
            put_list(writer, value);
            return;
        }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (span_is(name, numbers[i]) && span_u64(value, &number) && number <= INT64_MAX) {
            json_put_int(writer, NULL, (int64_t)number);
            return;
        }
    json_put_string(writer, NULL, value);
}

bool api_put_query(struct buffer *out, struct span query, char *scratch)
{
    struct json_writer writer = json_writer(out);
    const char *at = query.at, *end = query.at + query.size;

    json_put_object(&writer, NULL);
    while (at != NULL && at < end) {
        const char *ampersand = memchr(at, '&', (size_t)(end - at));
        const char *stop = ampersand == NULL ? end : ampersand;
        const char *equals = memchr(at, '=', (size_t)(stop - at));
        struct span value = { equals == NULL ? stop : equals + 1, 0 };
        size_t size;

        value.size = (size_t)(stop - value.at);
        if (stop > at) {
            if (!http_query_decode(value, scratch, &size) || !http_is_utf8(at, (size_t)(stop - at)))
                return false;
            put_parameter(&writer,
                (struct span){ at, (size_t)((equals == NULL ? stop : equals) - at) },
                (struct span){ scratch, size });
        }
        at = stop + 1;
    }
    json_put_end(&writer);
    return true;
}

bool api_begin_mls(struct http_request *request, const struct act_type *type, const char *raw_name,
    struct api_body *ret_body)
{
    struct span raw = http_body(request), query = http_query(request);
    struct span media = http_header(request, "Content-Type");
    struct buffer members = { 0 };
    struct act *act;
    char *scratch;
    bool is_good;

    if (!is_type(media, "message/mls") && !is_type(media, "application/octet-stream"))
        return api_begin(request, type, ret_body);
    *ret_body =
        (struct api_body){ .act = act_create(type, auth_claims_of(request)), .raw_name = raw_name };
    act = ret_body->act;
    scratch = http_alloc(request, query.size + 1);
    if (act == NULL || scratch == NULL)
        return no_memory(request, ret_body);
    is_good = api_put_query(&members, query, scratch);
    if (is_good && members.failed == 0)
        act->body = base_alloc(raw.size + members.size + JSON_PADDING_BYTES);
    if (act->body != NULL) {
        memcpy(act->body, raw.at, raw.size);
        memcpy(act->body + raw.size, members.bytes, members.size);
        ret_body->raw = (struct span){ act->body, raw.size };
        is_good = parse_body(request, ret_body, act->body + raw.size, members.size);
    } else if (is_good) {
        is_good = no_memory(request, ret_body);
    } else {
        api_refuse(request, ret_body, 400, "InvalidRequest",
            "A parameter of the query is not valid percent-encoded UTF-8.");
    }
    buffer_free(&members);
    return is_good;
}

bool api_begin_query(
    struct http_request *request, const struct act_type *type, struct api_body *ret_body)
{
    return api_begin_query_of(request, type, auth_claims_of(request), ret_body);
}

struct act *api_create_act(
    const struct act_type *type, const struct auth_claims *claims, struct span convo)
{
    struct act *act = act_create(type, claims);

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

bool api_begin_query_of(struct http_request *request, const struct act_type *type,
    const struct auth_claims *claims, struct api_body *ret_body)
{
    struct span convo;

    *ret_body = (struct api_body){ .act = NULL };
    if (http_parameter_find(request, "convoId", &convo) != 1 || convo.size == 0 ||
        convo.size > ACT_CONVO_SIZE_MAX) {
        api_refuse(request, ret_body, 400, "InvalidRequest",
            "convoId is required once, with 1 to 128 bytes.");
        return false;
    }
    ret_body->act = api_create_act(type, claims, convo);
    return ret_body->act != NULL || no_memory(request, ret_body);
}

void api_refuse(struct http_request *request, struct api_body *body, unsigned status,
    const char *label, const char *text)
{
    http_respond_error(request, status, label, text);
    act_unref(body->act);
    json_doc_free(&body->doc);
}

struct span api_may_bytes(struct api_body *body, const char *name, size_t size_max)
{
    const struct json *value = json_get(body->expect.object, name);
    struct span bytes = { NULL, 0 };

    if (body->raw_name != NULL && strcmp(name, body->raw_name) == 0) {
        if (body->raw.size > size_max)
            json_expect_fail(&body->expect, name, "is larger than it may be");
        return body->raw;
    }
    if (value == NULL || json_kind(value) == JSON_NULL)
        return bytes;
    if (!text_get_bytes(value, size_max, &bytes))
        json_expect_fail(&body->expect, name, "must be base64, within its size");
    return bytes;
}

struct span api_need_bytes(struct api_body *body, const char *name, size_t size_max)
{
    struct span bytes = api_may_bytes(body, name, size_max);

    if (bytes.size == 0)
        json_expect_fail(&body->expect, name, "must be there and not be empty");
    return bytes;
}

void api_set_op(struct api_body *body, const char *kind, struct span given)
{
    static _Atomic uint64_t number;
    struct buffer *text = &body->act->decoded;
    size_t from = text->size;

    /* Two callers may choose the same id: the caller is part of it. */
    if (given.at != NULL) {
        buffer_text(text, kind);
        buffer_text(text, ":");
        buffer_span(text, body->act->claims->issuer);
        buffer_text(text, ":");
        buffer_span(text, given);
    } else { /* a token is used once, so its id identifies the request */
        buffer_format(text, "jti:%.*s:%.*s:%llu", (int)body->act->claims->issuer.size,
            body->act->claims->issuer.at, (int)body->act->claims->jti.size,
            body->act->claims->jti.at, (unsigned long long)atomic_fetch_add(&number, 1));
    }
    if (text->failed == 0)
        body->act->op = (struct span){ text->bytes + from, text->size - from };
}

static int ask_to(struct http_request *request, tr_sender to, struct act *act, http_then_fn then)
{
    struct act_message message = { .act = act_ref(act) };
    int rc = http_ask(request, to, &message, sizeof message, then);

    if (rc < 0)
        act_unref(act);
    return rc;
}

int api_ask_actor(struct http_request *request, const struct delivery *delivery, struct act *act,
    http_then_fn then)
{
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, act->convo.at, act->convo.size, "a request", &convo);

    if (rc < 0)
        return rc;
    rc = ask_to(request, convo, act, then);
    tr_sender_drop(&convo);
    return rc;
}

static int send_to_convo(struct http_request *request, struct act *act, http_then_fn then)
{
    struct delivery *delivery = http_service(request);
    int rc;

    act->began_ns = delivery->env->now_ns(delivery->env->data);
    if (direct_takes(delivery->direct, act))
        rc = ask_to(request, direct_worker_of(delivery->direct, act->convo), act, then);
    else
        rc = api_ask_actor(request, delivery, act, then);
    if (rc < 0) {
        delivery_metrics_add(DELIVERY_METRIC_DROPS, 1);
        delivery_metrics_add(DELIVERY_METRIC_BOX_FULL, rc == TR_EFULL);
    }
    return rc;
}

void api_send(struct http_request *request, struct api_body *body, http_then_fn then)
{
    struct act *act = body->act;

    if (body->expect.failed) {
        api_refuse(request, body, 400, "InvalidRequest", body->expect.message);
        return;
    }
    json_doc_free(&body->doc);
    http_set_data(request, act);
    if (act->decoded.failed == 0 && send_to_convo(request, act, then) == 0)
        return;
    api_end(request);
    http_respond_shed(request, 503, 1, "busy");
}

bool api_send_if_live(struct http_request *request, struct act *act, http_then_fn then)
{
    struct delivery *delivery = http_service(request);
    tr_sender convo;
    int rc = TR_ENOENT;

    if (!direct_takes(delivery->direct, act))
        rc =
            tr_registry_find(delivery->convos, act->convo.at, act->convo.size, "a request", &convo);
    if (rc < 0) {
        act_unref(act);
        return false;
    }
    act->convo = (struct span){ NULL, 0 }; /* the request's text; the actor knows its id */
    http_set_data(request, act);
    rc = ask_to(request, convo, act, then);
    tr_sender_drop(&convo);
    if (rc < 0)
        api_end(request);
    return rc == 0;
}

struct act *api_act(struct http_request *request, const struct tr_event *event)
{
    struct delivery *delivery = http_service(request);
    struct act *act = http_data(request);

    if (event->status == 0 && act->status != 0)
        delivery_metrics_act(act, delivery->env->now_ns(delivery->env->data) - act->began_ns);
    else
        delivery_metrics_add(DELIVERY_METRIC_DROPS, 1);
    if (event->status == 0 && act->status == 200)
        return act;
    if (event->status == 0 && act->status != 0)
        act_respond(request, act);
    else
        http_respond_lost(request, event->status, http_method(request) != HTTP_GET, "conversation");
    api_end(request);
    return NULL;
}

void api_end(struct http_request *request)
{
    act_unref(http_data(request));
    http_set_data(request, NULL);
}

void api_answered(struct http_request *request, const struct tr_event *event)
{
    struct act *act = api_act(request, event);

    if (act == NULL)
        return;
    act_respond(request, act);
    api_end(request);
}

void api_answer_with(struct http_request *request, const struct tr_event *event,
    void (*put)(struct json_writer *writer, struct act *act))
{
    struct act *act = api_act(request, event);
    struct json_writer writer;

    if (act == NULL)
        return;
    writer = json_writer(&act->answer);
    json_put_object(&writer, NULL);
    put(&writer, act);
    json_put_end(&writer);
    act_respond(request, act);
    api_end(request);
}
