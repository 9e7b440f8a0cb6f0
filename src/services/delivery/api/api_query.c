/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/api_query.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "http/uri.h"
#include "services/delivery/api/text.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/audit.h"

uint64_t api_query_key(struct span did)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < did.size; i++)
        hash = (hash ^ (unsigned char)did.at[i]) * UINT64_C(1099511628211);
    return hash;
}

struct sql_unit *api_query_unit(const struct http_request *request, uint64_t key)
{
    struct sql_unit *unit = sql_unit_create(key);

    auth_consume(unit, auth_claims_of(request));
    return unit;
}

int64_t api_query_now_s(const struct delivery *delivery)
{
    return delivery_now_ms(delivery) / 1000;
}

bool api_query_begin(struct http_request *request, struct api_body *ret_body)
{
    /* The act only keeps the body: it goes to no conversation. */
    return api_begin(request, &state_act_type, ret_body);
}

bool api_query_is_good(struct http_request *request, struct api_body *body)
{
    if (!body->expect.failed)
        return true;
    api_refuse(request, body, 400, "InvalidRequest", body->expect.message);
    return false;
}

void api_query_end(struct api_body *body)
{
    act_unref(body->act);
    json_doc_free(&body->doc);
}

bool api_query_is_device(struct span device)
{
    if (device.size == 0 || device.size > DEVICE_SIZE_MAX)
        return false;
    for (size_t i = 0; i < device.size; i++) {
        char c = device.at[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '-' && c != '.' && c != '_' && c != ':')
            return false;
    }
    return true;
}

struct span api_query_may_device(struct api_body *body)
{
    struct span device = json_may_string(&body->expect, "deviceId", 1, DEVICE_SIZE_MAX);

    if (device.at == NULL)
        return SPAN("");
    if (!api_query_is_device(device))
        json_expect_fail(&body->expect, "deviceId", "must be letters, digits and - . _ :");
    return device;
}

struct span api_query_need_device(struct api_body *body)
{
    struct span device = api_query_may_device(body);

    if (device.size == 0)
        json_expect_fail(&body->expect, "deviceId", "must be there");
    return device;
}

int api_query_query(struct http_request *request, const char *name, struct span *ret_value)
{
    int found = http_parameter_find(request, name, ret_value);
    char message[96];

    if (found >= 0)
        return found;
    if (found == TR_ENOMEM) {
        http_respond_shed(request, 503, 1, "memory");
        return -1;
    }
    (void)snprintf(message, sizeof message, "%s must be there once, in UTF-8", name);
    http_respond_error(request, 400, "InvalidRequest", message);
    return -1;
}

int api_query_query_choice(struct http_request *request, const char *name,
    const char *const *choices, int64_t choice_count, int64_t *ret_choice)
{
    struct span text = { 0 };
    struct buffer message = { 0 };
    int found = api_query_query(request, name, &text);

    if (found <= 0)
        return found;
    buffer_format(&message, "%s must be", name);
    for (int64_t i = 0; i < choice_count; i++) {
        if (span_is(text, choices[i])) {
            *ret_choice = i;
            buffer_free(&message);
            return 1;
        }
        buffer_format(&message, "%s %s", i == 0 ? "" : " or", choices[i]);
    }
    buffer_append(&message, "", 1);
    http_respond_error(
        request, 400, "InvalidRequest", message.failed != 0 ? "unknown word" : message.bytes);
    buffer_free(&message);
    return -1;
}

/* Ids are ASCII without spaces; what decodes to anything else is none. */
static bool decode_id(struct span text, char *bytes, struct span *ret_item)
{
    size_t size;

    if (!http_query_decode(text, bytes, &size))
        return false;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] <= ' ' || bytes[i] >= 0x7f)
            return false;
    *ret_item = (struct span){ bytes, size };
    return true;
}

static bool add_item(struct query_list *list, struct span item, size_t size_min)
{
    if (list->count == sizeof list->items / sizeof list->items[0] || item.size < size_min ||
        item.size > DID_SIZE_MAX)
        return false;
    for (uint32_t i = 0; i < list->count; i++)
        if (span_equal(list->items[i], item))
            return false;
    list->items[list->count++] = item;
    return true;
}

static bool add_items(struct query_list *list, struct span values, char **bytes, size_t size_min)
{
    for (bool has_more = true; has_more;) {
        const char *comma = memchr(values.at, ',', values.size);
        size_t size = comma == NULL ? values.size : (size_t)(comma - values.at);
        struct span item;

        if (!decode_id((struct span){ values.at, size }, *bytes, &item) ||
            !add_item(list, item, size_min))
            return false;
        *bytes += item.size;
        has_more = comma != NULL;
        if (has_more)
            values = (struct span){ comma + 1, values.size - size - 1 };
    }
    return true;
}

bool api_query_query_list(
    struct http_request *request, const char *name, size_t size_min, struct query_list *ret_list)
{
    struct span query = http_query(request);
    char *bytes = http_alloc(request, query.size + 1), text[96];
    const char *at = query.at, *end = query.at + query.size;
    size_t name_size = strlen(name);
    bool is_good = true;

    ret_list->count = 0;
    if (bytes == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return false;
    }
    while (is_good && at != NULL && at < end) {
        const char *stop = memchr(at, '&', (size_t)(end - at));
        struct span pair = { at, (size_t)((stop == NULL ? end : stop) - at) };

        at = pair.at + pair.size + 1;
        if (span_starts(pair, name) && pair.size > name_size && pair.at[name_size] == '=')
            is_good = add_items(ret_list,
                (struct span){ pair.at + name_size + 1, pair.size - name_size - 1 }, &bytes,
                size_min);
    }
    if (is_good && ret_list->count > 0)
        return true;
    (void)snprintf(text, sizeof text, "%s must be 1 to 100 different ids", name);
    http_respond_error(request, 400, "InvalidRequest", text);
    return false;
}

bool api_query_query_device(struct http_request *request, struct span *ret_device)
{
    int found = api_query_query(request, "deviceId", ret_device);

    if (found < 0)
        return false;
    if (found == 0) {
        *ret_device = SPAN("");
        return true;
    }
    if (api_query_is_device(*ret_device))
        return true;
    http_respond_error(
        request, 400, "InvalidRequest", "deviceId must be 1 to 64 letters, digits and - . _ :");
    return false;
}

bool api_query_query_convo(struct http_request *request, struct span *ret_convo)
{
    int found = api_query_query(request, "convoId", ret_convo);

    if (found == 1 && ret_convo->size >= 1 && ret_convo->size <= ACT_CONVO_SIZE_MAX)
        return true;
    if (found >= 0)
        http_respond_error(
            request, 400, "InvalidRequest", "convoId must be there, with 1 to 128 bytes");
    return false;
}

bool api_query_query_number(
    struct http_request *request, const char *name, uint64_t max, uint64_t *value)
{
    return api_query_query_range(request, name, 1, max, value);
}

bool api_query_query_range(
    struct http_request *request, const char *name, uint64_t min, uint64_t max, uint64_t *value)
{
    struct span text = { 0 };
    char message[96];
    int found = api_query_query(request, name, &text);

    if (found <= 0)
        return found == 0;
    if (span_u64(text, value) && *value >= min && *value <= max)
        return true;
    (void)snprintf(message, sizeof message, "%s must be a number from %llu to %llu", name,
        (unsigned long long)min, (unsigned long long)max);
    http_respond_error(request, 400, "InvalidRequest", message);
    return false;
}

void api_query_respond(struct http_request *request, struct buffer *answer)
{
    if (answer->failed != 0)
        http_respond_lost(request, answer->failed, http_method(request) != HTTP_GET, "memory");
    else
        http_respond_buffer(request, 200, "application/json", answer);
    buffer_free(answer);
}

void api_query_respond_list(struct http_request *request, const struct tr_event *event,
    const char *name, api_query_put_fn put)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    uint32_t count;

    if (unit == NULL)
        return;
    count = sql_unit_rows(unit, 0);
    json_put_object(&writer, NULL);
    json_put_array(&writer, name);
    for (uint32_t row = 0; row < count; row++)
        put(&writer, unit, row);
    json_put_end(&writer);
    if (count > 0)
        json_put_string(&writer, "cursor", sql_row_bytes(unit, 0, count - 1, 0));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_query_refuse_many(
    struct http_request *request, uint32_t retry_after_s, const char *label, const char *text)
{
    char seconds[16];

    (void)snprintf(seconds, sizeof seconds, "%u", retry_after_s);
    (void)http_add_header(request, "Retry-After", span_of(seconds));
    http_respond_error(request, 429, label, text);
}

_Static_assert((int)OWNER_ID_SIZE == (int)AUDIT_ID_SIZE, "audit.h makes the names");

struct api_query_made *api_query_make(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct api_query_made *made = http_alloc(request, sizeof *made);

    if (made == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    audit_new_id(delivery, made->id);
    made->now_ms = delivery_now_ms(delivery);
    return made;
}

void api_query_keep(void *made)
{
    (void)made;
}

struct span api_query_made_id(const struct api_query_made *made)
{
    return (struct span){ made->id, sizeof made->id };
}

void api_query_respond_made(struct http_request *request, const struct api_query_made *made,
    const char *id_name, const char *time_name)
{
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    json_put_string(&writer, id_name, api_query_made_id(made));
    delivery_put_time(&writer, time_name, made->now_ms);
    json_put_end(&writer);
    api_query_respond(request, &answer);
}

void api_query_may_text(struct sql_unit *unit, struct span text)
{
    if (text.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, text);
}

void api_query_put_time_s(struct json_writer *writer, const char *key, int64_t unix_s)
{
    if (unix_s <= INT64_C(253402300799))
        delivery_put_time(writer, key, unix_s * 1000);
}

void api_query_put_hex(struct json_writer *writer, const char *key, struct span bytes)
{
    char text[2 * MLS_REFERENCE_SIZE_MAX];

    tr_assert(bytes.size <= MLS_REFERENCE_SIZE_MAX);
    json_put_string(
        writer, key, (struct span){ text, crypto_hex_encode(bytes.at, bytes.size, text) });
}

void api_query_put_suite(struct json_writer *writer, const char *key, int64_t suite)
{
    const struct mls_suite *known = mls_suite_of((uint16_t)suite);

    json_put_text(writer, key, known == NULL ? "unknown" : known->name);
}

void api_query_put_mls_did(struct json_writer *writer, struct span did, struct span device)
{
    char text[DID_SIZE_MAX + 1 + DEVICE_SIZE_MAX + 1];

    (void)snprintf(text, sizeof text, "%.*s%s%.*s", (int)did.size, did.at,
        device.size == 0 ? "" : "#", (int)device.size, device.at);
    json_put_text(writer, "mlsDid", text);
}
