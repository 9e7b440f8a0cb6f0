/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/field.h"

#include <stdio.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "services/common/text.h"

static const char *choice_name(const struct field *field, int64_t number)
{
    const char *const *choice = field->choices;

    tr_assert(choice != NULL && choice[0] != NULL);
    while (number-- > 0 && choice[1] != NULL)
        choice++;
    return *choice;
}

/* True if the items of the list are values and not objects. */
static bool has_bare_items(const struct field *list)
{
    return list->fields[0].name == NULL && list->fields[0].type != FIELD_PUT;
}

static struct field_source source_of_row(
    const struct field_source *source, const struct field *list, uint32_t row)
{
    struct field_source inner = *source;

    tr_assert(list->fields != NULL);
    inner.list = list;
    inner.row = row;
    return inner;
}

/* ---- both forms ------------------------------------------------------------------------------ */

/* One of them is NULL. */
struct field_out {
    struct json_writer *json;
    struct cbor_writer *cbor;
};

#define PUT(out, what, ...)                                                                        \
    ((out)->json != NULL ? json_put_##what((out)->json, __VA_ARGS__)                               \
                         : cbor_put_##what((out)->cbor, __VA_ARGS__))

static void put_object(const struct field_out *out, const char *name)
{
    if (out->json != NULL)
        json_put_object(out->json, name);
    else
        cbor_put_map(out->cbor, name);
}

static void put_end(const struct field_out *out)
{
    if (out->json != NULL)
        json_put_end(out->json);
    else
        cbor_put_end(out->cbor);
}

static void put_cbor_time(struct cbor_writer *writer, const char *name, int64_t unix_ms)
{
    char key[64];
    int size = snprintf(key, sizeof key, "%sMs", name);

    tr_assert(size > 0 && (size_t)size < sizeof key);
    cbor_put_key(writer, (struct span){ key, (size_t)size });
    cbor_put_int(writer, NULL, unix_ms);
}

static void put_time(const struct field_out *out, const struct field *field, int64_t number)
{
    bool is_in_s = field->type == FIELD_TIME_S;

    if (out->cbor != NULL)
        put_cbor_time(out->cbor, field->name, is_in_s ? number * 1000 : number);
    else if (is_in_s)
        text_put_time_s(out->json, field->name, number);
    else
        text_put_time(out->json, field->name, number);
}

static void put_bytes(const struct field_out *out, const struct field *field, struct span bytes)
{
    if (out->cbor != NULL)
        cbor_put_bytes(out->cbor, field->name, bytes);
    else if (field->type == FIELD_BASE64)
        text_put_base64(out->json, field->name, bytes);
    else
        text_put_bytes(out->json, field->name, bytes);
}

static void put_hex(const struct field_out *out, const char *name, struct span bytes)
{
    char text[2 * TEXT_HEX_BYTES_MAX];

    tr_assert(bytes.size <= TEXT_HEX_BYTES_MAX);
    PUT(out, string, name, (struct span){ text, crypto_hex_encode(bytes.at, bytes.size, text) });
}

static void put_value(
    const struct field_out *out, const struct field *field, const struct field_value *value)
{
    switch ((int)field->type) {
    case FIELD_TEXT:
        PUT(out, string, field->name, value->bytes);
        break;
    case FIELD_INT:
        PUT(out, int, field->name, value->number);
        break;
    case FIELD_BOOL:
        PUT(out, bool, field->name, value->number != 0);
        break;
    case FIELD_TIME_MS:
    case FIELD_TIME_S:
        put_time(out, field, value->number);
        break;
    case FIELD_BASE64:
    case FIELD_BYTES:
        put_bytes(out, field, value->bytes);
        break;
    case FIELD_HEX:
        put_hex(out, field->name, value->bytes);
        break;
    case FIELD_CHOICE:
        PUT(out, text, field->name, choice_name(field, value->number));
        break;
    case FIELD_NAMED:
        PUT(out, text, field->name, field->name_of(value->number));
        break;
    default:
        tr_assert(false); /* a field must have a value */
    }
}

static void put_fields(
    const struct field_out *out, const struct field *fields, const struct field_source *source);

static void put_list(
    const struct field_out *out, const struct field *list, const struct field_source *source)
{
    uint32_t count = source->count(source, list);
    bool is_bare = has_bare_items(list);

    PUT(out, array, list->name);
    for (uint32_t row = 0; row < count; row++) {
        struct field_source inner = source_of_row(source, list, row);

        if (!is_bare)
            put_object(out, NULL);
        put_fields(out, list->fields, &inner);
        if (!is_bare)
            put_end(out);
    }
    put_end(out);
}

static void put_map(
    const struct field_out *out, const struct field *map, const struct field_source *source)
{
    uint32_t count = source->count(source, map);

    tr_assert(map->fields[0].type == FIELD_TEXT && map->fields[1].type == FIELD_INT);
    put_object(out, map->name);
    for (uint32_t row = 0; row < count; row++) {
        struct field_source inner = source_of_row(source, map, row);

        PUT(out, key, source->get(&inner, &map->fields[0]).bytes);
        PUT(out, int, NULL, source->get(&inner, &map->fields[1]).number);
    }
    put_end(out);
}

static void put_field(
    const struct field_out *out, const struct field *field, const struct field_source *source)
{
    struct field_value value = source->get(source, field);

    if (value.is_there)
        put_value(out, field, &value);
}

static void put_fields(
    const struct field_out *out, const struct field *fields, const struct field_source *source)
{
    for (const struct field *field = fields; field->type != FIELD_END; field++) {
        if (field->put != NULL) {
            tr_assert(out->json != NULL);
            field->put(out->json, field, source);
        } else if (field->type == FIELD_LIST) {
            put_list(out, field, source);
        } else if (field->type == FIELD_MAP) {
            put_map(out, field, source);
        } else if (field->type == FIELD_OBJECT) {
            put_object(out, field->name);
            put_fields(out, field->fields, source);
            put_end(out);
        } else {
            put_field(out, field, source);
        }
    }
}

void field_put_json(
    struct json_writer *writer, const struct field *fields, const struct field_source *source)
{
    put_fields(&(struct field_out){ .json = writer }, fields, source);
}

void field_put_cbor(
    struct cbor_writer *writer, const struct field *fields, const struct field_source *source)
{
    put_fields(&(struct field_out){ .cbor = writer }, fields, source);
}

/* ---- rows of a unit --------------------------------------------------------------------------- */

bool field_is_number(enum field_type type)
{
    return type == FIELD_INT || type == FIELD_BOOL || type == FIELD_TIME_MS ||
           type == FIELD_TIME_S || type == FIELD_CHOICE || type == FIELD_NAMED;
}

struct field_value field_of_cell(
    const struct sql_unit *unit, const struct field *field, uint32_t step, uint32_t row)
{
    struct field_value value = { 0 };

    if (unit == NULL || row >= sql_unit_rows(unit, step) ||
        sql_row_is_null(unit, step, row, field->at))
        return value;
    value.is_there = true;
    if (field_is_number(field->type))
        value.number = sql_row_int(unit, step, row, field->at);
    else
        value.bytes = sql_row_bytes(unit, step, row, field->at);
    return value;
}
