/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/param.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "http/uri.h"
#include "services/common/text.h"

_Static_assert(
    JSON_MESSAGE_BYTES >= JSON_EXPLAIN_BYTES, "a parse failure is answered like a mistake");
enum { DAY_MS = 86400000, TIME_TEXT_MAX = 40, REST_DEPTH_MAX = 32 };
static const char device_form[] = "must be letters, digits and - . _ :";

bool param_is_device(struct span device)
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

#define param_fail(reader, param, ...)                                                             \
    json_expect_fail(&(reader)->expect, (param)->name, __VA_ARGS__)

int param_find(const struct param *params, struct span name)
{
    for (int i = 0; params != NULL && params[i].type != PARAM_END; i++)
        if (span_is(name, params[i].name))
            return i;
    return -1;
}

/* Memory of the request; NULL is noted. */
static void *param_alloc(struct param_reader *reader, size_t size)
{
    void *memory = http_alloc(reader->request, size);

    if (memory == NULL)
        reader->is_out_of_memory = true;
    return memory;
}

/* ---- values: the same rules for both ---------------------------------------------------------- */

static void set_fallback(
    const struct param_reader *reader, const struct param *param, struct param_value *value)
{
    value->number = param->fallback;
    if (param->type == PARAM_TIME)
        value->number = reader->now_ms + param->fallback * DAY_MS;
    if (param->type == PARAM_DEVICE || (param->flags & PARAM_OR_EMPTY) != 0)
        value->text = SPAN("");
}

static void read_choice(struct param_reader *reader, const struct param *param,
    const char *const *choices, struct param_value *value)
{
    char what[JSON_MESSAGE_BYTES] = "must be";
    size_t size = strlen(what);

    tr_assert(choices != NULL);
    for (int64_t i = 0; choices[i] != NULL; i++) {
        if (span_is(value->text, choices[i])) {
            value->number = i;
            return;
        }
        if (size < sizeof what)
            size += (size_t)snprintf(what + size, sizeof what - size, "%s %s",
                i == 0                   ? ""
                : choices[i + 1] == NULL ? " or"
                                         : ",",
                choices[i]);
    }
    param_fail(reader, param, "%s", what);
}

static void read_time(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    int64_t time_s, now_s = reader->now_ms / 1000;

    if (!text_get_time(value->text, &time_s))
        param_fail(reader, param, "must be a time like 2026-11-15T12:00:00Z");
    else if (time_s <= now_s)
        param_fail(reader, param, "must be a time in the future");
    else if (time_s > now_s + param->max * (DAY_MS / 1000))
        param_fail(reader, param, "must be within the next %lld days", (long long)param->max);
    else
        value->number = time_s * 1000;
}

/* Decode where the text is: hex is twice as long as its bytes. */
static void read_hex(struct param_reader *reader, const struct param *param, struct span *text)
{
    unsigned char *bytes = (unsigned char *)(uintptr_t)text->at;
    size_t size;

    tr_assert(param->max > 0 && param->min <= param->max);
    if (text->size < (size_t)param->min * 2 || text->size > (size_t)param->max * 2 ||
        crypto_hex_decode(*text, bytes, (size_t)param->max, &size) < 0) {
        if (param->min == param->max)
            param_fail(reader, param, "must be %lld hex digits", (long long)param->max * 2);
        else
            param_fail(reader, param, "must be %lld to %lld hex digits", (long long)param->min * 2,
                (long long)param->max * 2);
        return;
    }
    *text = (struct span){ (const char *)bytes, size };
}

/* Read the value that a text stands for. */
static void read_text(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    switch ((int)param->type) {
    case PARAM_DEVICE:
        if (!param_is_device(value->text))
            param_fail(reader, param, "%s", device_form);
        break;
    case PARAM_CHOICE:
        read_choice(reader, param, param->choices, value);
        break;
    case PARAM_TIME:
        read_time(reader, param, value);
        break;
    case PARAM_HEX:
        read_hex(reader, param, &value->text);
        break;
    default:
        break;
    }
}

/* ---- the query -------------------------------------------------------------------------------- */

static void check_text(struct param_reader *reader, const struct param *param, struct span text)
{
    if (reader->is_rest && text.size > 0 && memchr(text.at, '\0', text.size) != NULL)
        param_fail(reader, param, "must not contain a zero byte");
    else if (param->is_valid != NULL && !param->is_valid(text))
        param_fail(reader, param, "%s", param->rule);
}

static const char *const truths[] = { "false", "true", NULL };

static void read_query_int(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    uint64_t number;

    tr_assert(param->min >= 0 && param->min <= param->max);
    if (!span_u64(value->text, &number) || number > INT64_MAX) {
        if (param->rule != NULL)
            param_fail(reader, param, "%s", param->rule);
        param_fail(reader, param, "must be a number from %lld to %lld", (long long)param->min,
            (long long)param->max);
    } else if ((int64_t)number < param->min)
        param_fail(
            reader, param, "is %lld; the least is %lld", (long long)number, (long long)param->min);
    else if ((int64_t)number > param->max)
        param_fail(
            reader, param, "is %lld; the most is %lld", (long long)number, (long long)param->max);
    else
        value->number = (int64_t)number;
}

static void read_query_value(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    size_t size = value->text.size;

    switch ((int)param->type) {
    case PARAM_INT:
        read_query_int(reader, param, value);
        break;
    case PARAM_BOOL:
        read_choice(reader, param, truths, value);
        break;
    case PARAM_TEXT:
        if (size == 0 && param->min > 0)
            param_fail(reader, param, "must not be empty");
        else if (size < (size_t)param->min)
            param_fail(
                reader, param, "is %zu bytes; the least is %lld", size, (long long)param->min);
        else if (param->max > 0 && size > (size_t)param->max)
            param_fail(
                reader, param, "is %zu bytes; the most is %lld", size, (long long)param->max);
        else
            check_text(reader, param, value->text);
        break;
    default:
        read_text(reader, param, value);
    }
}

/* Ids are ASCII without spaces. */
static bool is_list_id(struct span id)
{
    for (size_t i = 0; i < id.size; i++)
        if (id.at[i] <= ' ' || id.at[i] >= 0x7f)
            return false;
    return true;
}

/* NULL, or what is wrong with the item. */
static const char *add_item(const struct param *param, struct param_value *value, struct span item)
{
    size_t size_min = param->type == PARAM_DIDS ? DID_SIZE_MIN : 1;

    if (value->count == (uint32_t)param->max)
        return "has too many items";
    if (item.size < size_min || item.size > DID_SIZE_MAX || !is_list_id(item))
        return param->type == PARAM_DIDS ? "must be DIDs" : "must be ids";
    for (uint32_t i = 0; i < value->count; i++)
        if (span_equal(value->items[i], item))
            return "must be different from each other";
    value->items[value->count++] = item;
    return NULL;
}

/* Add the items of one name=a,b. `*bytes` is where the next decoded item goes. */
static const char *add_items(
    const struct param *param, struct param_value *value, struct span list, char **bytes)
{
    const char *why = NULL;
    struct span item;
    size_t size;

    while (why == NULL && span_cut(&list, ',', &item)) {
        if (!http_query_decode(item, *bytes, &size))
            return "must be URL-encoded UTF-8";
        why = add_item(param, value, (struct span){ *bytes, size });
        *bytes += size;
    }
    return why;
}

static void read_query_list(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    struct span query = http_query(reader->request), pair, name;
    char *bytes = param_alloc(reader, query.size + 1);
    const char *why = NULL;

    tr_assert(param->max > 0 && param->max <= PARAM_ITEMS_MAX);
    value->items = param_alloc(reader, (size_t)param->max * sizeof value->items[0]);
    if (reader->is_out_of_memory)
        return;
    while (why == NULL && span_cut(&query, '&', &pair)) {
        (void)span_cut(&pair, '=', &name);
        if (!span_is(name, param->name) || pair.at == NULL)
            continue;
        value->is_given = true;
        why = add_items(param, value, pair, &bytes);
    }
    if (why != NULL && value->count == (uint32_t)param->max)
        param_fail(reader, param, "%s; the most is %lld", why, (long long)param->max);
    else if (why != NULL)
        param_fail(reader, param, "%s", why);
    else if (!value->is_given)
        param_fail(reader, param, "is missing");
    else if (value->count < (uint32_t)param->min)
        param_fail(reader, param, "has %u item%s; the least is %lld", value->count,
            value->count == 1 ? "" : "s", (long long)param->min);
}

static void read_query_param(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    int found;

    if (param->type == PARAM_IDS || param->type == PARAM_DIDS) {
        read_query_list(reader, param, value);
        return;
    }
    found = http_parameter_find(reader->request, param->name, &value->text);
    if (found == TR_ENOMEM) {
        reader->is_out_of_memory = true;
    } else if (found < 0) {
        param_fail(reader, param, "must be given once, %s UTF-8",
            reader->is_rest ? "in" : "as URL-encoded");
    } else if (found == 0) {
        value->text = (struct span){ NULL, 0 };
        set_fallback(reader, param, value);
        if ((param->flags & PARAM_REQUIRED) != 0)
            param_fail(reader, param, "is missing");
    } else {
        value->is_given = true;
        read_query_value(reader, param, value);
    }
}

void param_read_query(
    struct param_reader *reader, const struct param *params, struct param_value *ret_values)
{
    reader->expect = (struct json_expect){ .index = SIZE_MAX };
    for (uint32_t i = 0; params[i].type != PARAM_END && !reader->is_out_of_memory; i++) {
        tr_assert(i < PARAMS_MAX);
        if ((params[i].flags & PARAM_HIDDEN) == 0)
            read_query_param(reader, &params[i], &ret_values[i]);
    }
}

/* ---- the body --------------------------------------------------------------------------------- */

/* PostgreSQL's texts end at NUL and SQLite's do not: no string of a body may hold it. A NUL can only
 * be written as an escape, so it is found before the text is decoded. */
static bool has_nul(struct span text)
{
    const char *at = text.at, *end = text.at + text.size;

    while ((at = memmem(at, (size_t)(end - at), "\\u0000", 6)) != NULL) {
        const char *slash = at;

        while (slash > text.at && slash[-1] == '\\')
            slash--;
        if ((at - slash) % 2 == 0) /* else the backslash itself is escaped */
            return true;
        at += 6;
    }
    return false;
}

/* 0, TR_ENOMEM, or TR_EINVAL and a sentence about `subject`. */
static int parse_json(struct param_reader *reader, struct span text, const char *subject)
{
    int rc;

    reader->doc.depth_max = reader->is_rest ? REST_DEPTH_MAX : 0;
    if (reader->is_rest && text.size == 0)
        return json_parse_copy(&reader->doc, SPAN("{}"), 0);
    if (text.at == NULL)
        return TR_ENOMEM;
    if (text.size == 0) {
        (void)snprintf(reader->expect.message, JSON_EXPLAIN_BYTES,
            "%s is empty; send a JSON object.", subject);
        return TR_EINVAL;
    }
    if (!reader->is_rest && has_nul(text)) {
        (void)snprintf(reader->expect.message, JSON_EXPLAIN_BYTES,
            "%s has a text with a NUL character; remove it.", subject);
        return TR_EINVAL;
    }
    rc = json_parse(&reader->doc, (char *)(uintptr_t)text.at, text.size, JSON_UNIQUE_KEYS);
    if (rc == 0 || rc == TR_ENOMEM)
        return rc;
    json_explain(&reader->doc, subject, reader->expect.message);
    return TR_EINVAL;
}

static void read_body_bytes(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    const struct json *json = json_get(reader->expect.object, param->name);

    tr_assert(param->max > 0);
    if (!text_get_bytes(json, (size_t)param->max, &value->text))
        param_fail(reader, param, "must be base64 of at most %lld bytes", (long long)param->max);
    else if (value->text.size == 0)
        param_fail(reader, param, "must not be empty");
}

static void read_body_items(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    struct json_expect *expect = &reader->expect;
    const struct json *list =
        json_need_array(expect, param->name, (size_t)param->min, (size_t)param->max);
    struct param item = { .name = param->name, .min = 1, .max = param->fallback };
    struct span *items = param_alloc(reader, (json_count(list) + 1) * sizeof *items);
    bool is_hex = param->type == PARAM_HEXES;

    tr_assert(!is_hex || param->fallback > 0); /* bytes of one hash */
    for (struct json_iter it = json_iterate(list); items != NULL && json_next(&it);
         value->count++) {
        struct span *text = &items[value->count];

        *text = json_item_string(expect, param->name, value->count, it.value,
            is_hex ? 2 : DID_SIZE_MIN, is_hex ? (size_t)param->fallback * 2 : DID_SIZE_MAX);
        if (is_hex && !expect->failed)
            read_hex(reader, &item, text);
        for (uint32_t i = 0; !is_hex && i < value->count; i++)
            if (span_equal(items[i], *text))
                param_fail(reader, param, "must not name an account twice");
    }
    value->items = items;
}

static bool is_missing(const struct json *json)
{
    return json == NULL || json_kind(json) == JSON_NULL;
}

static void read_body_mls(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    const struct json *json = json_get(reader->expect.object, param->name);
    size_t size_max = (size_t)param->max;

    tr_assert(param->max > 0);
    if (reader->raw_name != NULL && strcmp(param->name, reader->raw_name) == 0) {
        value->text = reader->raw;
        if (value->text.size > size_max)
            param_fail(reader, param, "is %zu bytes; the most is %zu", value->text.size, size_max);
    } else if (!is_missing(json) && !text_get_bytes(json, size_max, &value->text)) {
        param_fail(reader, param, "must be base64 of at most %zu bytes", size_max);
    }
    if ((param->flags & PARAM_REQUIRED) != 0 && value->text.size == 0)
        param_fail(reader, param, is_missing(json) ? "is missing" : "must not be empty");
}

static void read_body_param(
    struct param_reader *reader, const struct param *param, struct param_value *value)
{
    struct json_expect *expect = &reader->expect;
    const struct json *json = json_get(expect->object, param->name);
    bool is_required = (param->flags & PARAM_REQUIRED) != 0;
    size_t size_max = param->max == 0 ? SIZE_MAX : (size_t)param->max;

    value->is_given = !is_missing(json) ||
                      (json != NULL && is_required && (reader->is_null_wrong || reader->is_rest));
    if (param->type == PARAM_MLS) {
        read_body_mls(reader, param, value);
        return;
    }
    if (!value->is_given) {
        set_fallback(reader, param, value);
        if (is_required)
            json_expect_fail(expect, param->name, "is missing");
        return;
    }
    switch ((int)param->type) {
    case PARAM_INT:
        value->number = json_need_int(expect, param->name, param->min, param->max);
        break;
    case PARAM_BOOL:
        value->number = json_need_bool(expect, param->name);
        break;
    case PARAM_TEXT:
        value->text = json_need_string(expect, param->name, (size_t)param->min, size_max);
        if (!expect->failed)
            check_text(reader, param, value->text);
        break;
    case PARAM_BYTES:
        read_body_bytes(reader, param, value);
        break;
    case PARAM_HEXES:
    case PARAM_DIDS:
        read_body_items(reader, param, value);
        break;
    case PARAM_JSON:
        value->json = json_need_array(expect, param->name, (size_t)param->min, (size_t)param->max);
        break;
    case PARAM_ANY:
        value->json = json;
        break;
    default:
        value->text = json_need_string(expect, param->name, 1,
            param->type == PARAM_HEX      ? size_max * 2
            : param->type == PARAM_DEVICE ? DEVICE_SIZE_MAX
                                          : TIME_TEXT_MAX);
        if (!expect->failed)
            read_text(reader, param, value);
    }
}

void param_read_members(
    struct param_reader *reader, const struct param *params, struct param_value *ret_values)
{
    for (uint32_t i = 0; params[i].type != PARAM_END && !reader->is_out_of_memory; i++) {
        tr_assert(i < PARAMS_MAX);
        if ((params[i].flags & PARAM_HIDDEN) == 0)
            read_body_param(reader, &params[i], &ret_values[i]);
    }
}

void param_read_body(
    struct param_reader *reader, const struct param *params, struct param_value *ret_values)
{
    struct span text = { http_body_bytes(reader->request), http_body(reader->request).size };

    param_read_text(reader, text, "The body", params, ret_values);
}

void param_read_text(struct param_reader *reader, struct span text, const char *subject,
    const struct param *params, struct param_value *ret_values)
{
    int rc;

    reader->expect = (struct json_expect){ .index = SIZE_MAX };
    rc = parse_json(reader, text, subject);
    reader->is_out_of_memory = rc == TR_ENOMEM;
    reader->expect.failed = rc == TR_EINVAL;
    if (rc < 0)
        return;
    reader->expect = json_expect(json_root(&reader->doc));
    param_read_members(reader, params, ret_values);
}

void param_reader_fini(struct param_reader *reader)
{
    json_doc_free(&reader->doc);
}

bool param_reader_refuse(struct param_reader *reader)
{
    if (!reader->is_out_of_memory && !reader->expect.failed)
        return false;
    param_reader_fini(reader);
    if (reader->is_out_of_memory)
        http_respond_shed(reader->request, 503, 1, "memory");
    else
        http_respond_error(reader->request, 400, "InvalidRequest", reader->expect.message);
    return true;
}

bool param_read_rest_query(struct http_request *request, const struct param *params,
    struct param_value ret_values[PARAMS_MAX])
{
    struct param_reader reader = { .request = request, .is_rest = true };

    memset(ret_values, 0, PARAMS_MAX * sizeof *ret_values);
    param_read_query(&reader, params, ret_values);
    return !param_reader_refuse(&reader);
}
