/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/rest.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { BODY_DEPTH_MAX = 32 };

/* ---- a body --------------------------------------------------------------------------------- */

bool rest_read_body(
    struct http_request *request, struct json_doc *ret_doc, struct json_expect *ret_expect)
{
    struct span body = http_body(request);
    char text[JSON_EXPLAIN_BYTES];
    int rc;

    *ret_doc = (struct json_doc){ .depth_max = BODY_DEPTH_MAX };
    rc = body.size == 0
             ? json_parse_copy(ret_doc, SPAN("{}"), 0)
             : json_parse(ret_doc, http_body_bytes(request), body.size, JSON_UNIQUE_KEYS);
    if (rc == 0) {
        *ret_expect = json_expect(json_root(ret_doc));
        return true;
    }
    if (rc == TR_ENOMEM) {
        http_respond_shed(request, 503, 1, "memory");
    } else {
        json_explain(ret_doc, "The body", text);
        http_respond_error(request, 400, "InvalidRequest", text);
    }
    json_doc_free(ret_doc);
    return false;
}

static void check_text(struct json_expect *expect, const struct rest_param *param, struct span text)
{
    if (text.size > 0 && memchr(text.at, '\0', text.size) != NULL)
        json_expect_fail(expect, param->name, "must not contain a zero byte");
    else if (text.at != NULL && param->is_valid != NULL && !param->is_valid(text))
        json_expect_fail(expect, param->name, "%s", param->rule);
}

static struct rest_value read_member(struct json_expect *expect, const struct rest_param *param)
{
    size_t min = (size_t)param->min, max = (size_t)param->max;
    bool is_required = param->need == REST_REQUIRED;
    struct rest_value value = { .number = param->fallback };

    tr_assert(param->min <= param->max);
    switch (param->type) {
    case REST_INT:
        value.number = is_required ? json_need_int(expect, param->name, param->min, param->max)
                                   : json_may_int(expect, param->name, param->min, param->max,
                                         param->fallback);
        break;
    case REST_BOOL:
        value.number = is_required ? json_need_bool(expect, param->name)
                                   : json_may_bool(expect, param->name, param->fallback != 0);
        break;
    case REST_TEXT:
    case REST_END:
        value.text = is_required ? json_need_string(expect, param->name, min, max)
                                 : json_may_string(expect, param->name, min, max);
        if (!expect->failed)
            check_text(expect, param, value.text);
        break;
    }
    return value;
}

void rest_read_members(struct json_expect *expect, const struct rest_param *params,
    struct rest_value ret_values[REST_PARAMS_MAX])
{
    for (size_t i = 0; params[i].type != REST_END; i++) {
        tr_assert(i < REST_PARAMS_MAX);
        ret_values[i] = read_member(expect, &params[i]);
    }
}

/* ---- a query -------------------------------------------------------------------------------- */

static void read_number(
    struct json_expect *expect, const struct rest_param *param, struct rest_value *value)
{
    uint64_t number;

    if (!span_u64(value->text, &number) || number > INT64_MAX)
        json_expect_fail(expect, param->name, "must be a number");
    else if ((int64_t)number < param->min)
        json_expect_fail(expect, param->name, "is %llu; the least is %lld",
            (unsigned long long)number, (long long)param->min);
    else if ((int64_t)number > param->max)
        json_expect_fail(expect, param->name, "is %llu; the most is %lld",
            (unsigned long long)number, (long long)param->max);
    else
        value->number = (int64_t)number;
}

/* Returns false if the request has no memory for the value. */
static bool read_parameter(struct http_request *request, struct json_expect *expect,
    const struct rest_param *param, struct rest_value *value)
{
    int found = http_parameter_find(request, param->name, &value->text);

    value->number = param->fallback;
    if (found == TR_ENOMEM)
        return false;
    if (found < 0)
        json_expect_fail(expect, param->name, "must be given once, in UTF-8");
    else if (found == 0 && param->need == REST_REQUIRED)
        json_expect_fail(expect, param->name, "is missing");
    else if (found > 0 && param->type == REST_INT)
        read_number(expect, param, value);
    else if (found > 0 && param->type == REST_BOOL) {
        value->number = span_is(value->text, "true");
        if (value->number == 0 && !span_is(value->text, "false"))
            json_expect_fail(expect, param->name, "must be true or false");
    } else if (found > 0)
        check_text(expect, param, value->text);
    return true;
}

bool rest_read_query(struct http_request *request, const struct rest_param *params,
    struct rest_value ret_values[REST_PARAMS_MAX])
{
    struct json_expect expect = { .index = SIZE_MAX };

    for (size_t i = 0; params[i].type != REST_END; i++) {
        tr_assert(i < REST_PARAMS_MAX);
        ret_values[i] = (struct rest_value){ .text = { NULL, 0 } };
        if (!read_parameter(request, &expect, &params[i], &ret_values[i])) {
            http_respond_shed(request, 503, 1, "memory");
            return false;
        }
    }
    if (expect.failed)
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    return !expect.failed;
}

/* ---- columns -------------------------------------------------------------------------------- */

void rest_put_row(struct json_writer *writer, const struct sql_unit *unit, uint32_t step,
    uint32_t row, const struct rest_column *columns)
{
    for (const struct rest_column *column = columns; column->type != COLUMN_END; column++) {
        uint32_t at = column->at;

        if (column->type == COLUMN_OPEN)
            json_put_object(writer, column->name);
        else if (column->type == COLUMN_CLOSE)
            json_put_end(writer);
        else if (sql_row_is_null(unit, step, row, at))
            continue;
        else if (column->type == COLUMN_INT)
            json_put_int(writer, column->name, sql_row_int(unit, step, row, at));
        else if (column->type == COLUMN_BOOL)
            json_put_bool(writer, column->name, sql_row_int(unit, step, row, at) != 0);
        else if (column->type == COLUMN_TEXT)
            json_put_string(writer, column->name, sql_row_bytes(unit, step, row, at));
        else
            json_put_text(writer, column->name, column->choices[sql_row_int(unit, step, row, at)]);
    }
}

void rest_put_rows(struct json_writer *writer, const char *name, const struct sql_unit *unit,
    uint32_t step, const struct rest_column *columns)
{
    json_put_array(writer, name);
    for (uint32_t row = 0; row < sql_unit_rows(unit, step); row++) {
        json_put_object(writer, NULL);
        rest_put_row(writer, unit, step, row, columns);
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* ---- answers -------------------------------------------------------------------------------- */

void rest_respond(struct http_request *request, struct buffer *body)
{
    if (body->failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", body);
    buffer_free(body);
}

void rest_respond_tagged(struct http_request *request, struct buffer *body)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];
    /* The tag is weak: the answer may be compressed on its way. */
    char tag[4 + CRYPTO_SHA256_BYTES + 1] = "W/\"";
    size_t size = 3;

    if (body->failed != 0) {
        rest_respond(request, body);
        return;
    }
    crypto_sha256(body->bytes, body->size, digest);
    size += crypto_hex_encode(digest, sizeof digest / 2, tag + size);
    tag[size++] = '"';
    tr_assert(size < sizeof tag);
    http_add_header(request, "ETag", (struct span){ tag, size });
    http_add_header(request, "Cache-Control", SPAN("no-cache"));
    if (http_condition(request, (struct span){ tag, size }, 0) != 304) {
        rest_respond(request, body);
        return;
    }
    http_respond(request, 304, NULL, (struct span){ NULL, 0 });
    buffer_free(body);
}
