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

/* ---- JSON ----------------------------------------------------------------------------------- */

static void put_json_value(
    struct json_writer *writer, const struct field *field, const struct field_value *value)
{
    switch ((int)field->type) {
    case FIELD_TEXT:
        json_put_string(writer, field->name, value->bytes);
        break;
    case FIELD_INT:
        json_put_int(writer, field->name, value->number);
        break;
    case FIELD_BOOL:
        json_put_bool(writer, field->name, value->number != 0);
        break;
    case FIELD_TIME_MS:
        text_put_time(writer, field->name, value->number);
        break;
    case FIELD_TIME_S:
        text_put_time_s(writer, field->name, value->number);
        break;
    case FIELD_BASE64:
        text_put_base64(writer, field->name, value->bytes);
        break;
    case FIELD_BYTES:
        text_put_bytes(writer, field->name, value->bytes);
        break;
    case FIELD_HEX:
        text_put_hex(writer, field->name, value->bytes);
        break;
    case FIELD_CHOICE:
        json_put_text(writer, field->name, choice_name(field, value->number));
        break;
    case FIELD_NAMED:
        json_put_text(writer, field->name, field->name_of(value->number));
        break;
    default:
        tr_assert(false); /* a field must have a value */
    }
}

static void put_json_list(
    struct json_writer *writer, const struct field *list, const struct field_source *source)
{
    uint32_t count = source->count(source, list);
    bool is_bare = has_bare_items(list);

    json_put_array(writer, list->name);
    for (uint32_t row = 0; row < count; row++) {
        struct field_source inner = source_of_row(source, list, row);

        if (!is_bare)
            json_put_object(writer, NULL);
        field_put_json(writer, list->fields, &inner);
        if (!is_bare)
            json_put_end(writer);
    }
    json_put_end(writer);
}

static void put_json_map(
    struct json_writer *writer, const struct field *map, const struct field_source *source)
{
    uint32_t count = source->count(source, map);

    tr_assert(map->fields[0].type == FIELD_TEXT && map->fields[1].type == FIELD_INT);
    json_put_object(writer, map->name);
    for (uint32_t row = 0; row < count; row++) {
        struct field_source inner = source_of_row(source, map, row);

        json_put_key(writer, source->get(&inner, &map->fields[0]).bytes);
        json_put_int(writer, NULL, source->get(&inner, &map->fields[1]).number);
    }
    json_put_end(writer);
}

void field_put_json(
    struct json_writer *writer, const struct field *fields, const struct field_source *source)
{
    for (const struct field *field = fields; field->type != FIELD_END; field++) {
        if (field->type == FIELD_PUT) {
            field->put(writer, field, source);
        } else if (field->type == FIELD_LIST) {
            put_json_list(writer, field, source);
        } else if (field->type == FIELD_MAP) {
            put_json_map(writer, field, source);
        } else if (field->type == FIELD_OBJECT) {
            json_put_object(writer, field->name);
            field_put_json(writer, field->fields, source);
            json_put_end(writer);
        } else {
            struct field_value value = source->get(source, field);

            if (value.is_there)
                put_json_value(writer, field, &value);
        }
    }
}

/* ---- CBOR ----------------------------------------------------------------------------------- */

static void put_cbor_time(struct cbor_writer *writer, const char *name, int64_t unix_ms)
{
    char key[64];
    int size = snprintf(key, sizeof key, "%sMs", name);

    tr_assert(size > 0 && (size_t)size < sizeof key);
    cbor_put_key(writer, (struct span){ key, (size_t)size });
    cbor_put_int(writer, NULL, unix_ms);
}

static void put_cbor_hex(struct cbor_writer *writer, const char *name, struct span bytes)
{
    char text[2 * TEXT_HEX_BYTES_MAX];

    tr_assert(bytes.size <= TEXT_HEX_BYTES_MAX);
    cbor_put_string(
        writer, name, (struct span){ text, crypto_hex_encode(bytes.at, bytes.size, text) });
}

static void put_cbor_value(
    struct cbor_writer *writer, const struct field *field, const struct field_value *value)
{
    switch ((int)field->type) {
    case FIELD_TEXT:
        cbor_put_string(writer, field->name, value->bytes);
        break;
    case FIELD_INT:
        cbor_put_int(writer, field->name, value->number);
        break;
    case FIELD_BOOL:
        cbor_put_bool(writer, field->name, value->number != 0);
        break;
    case FIELD_TIME_MS:
        put_cbor_time(writer, field->name, value->number);
        break;
    case FIELD_TIME_S:
        put_cbor_time(writer, field->name, value->number * 1000);
        break;
    case FIELD_BASE64:
    case FIELD_BYTES:
        cbor_put_bytes(writer, field->name, value->bytes);
        break;
    case FIELD_HEX:
        put_cbor_hex(writer, field->name, value->bytes);
        break;
    case FIELD_CHOICE:
        cbor_put_text(writer, field->name, choice_name(field, value->number));
        break;
    case FIELD_NAMED:
        cbor_put_text(writer, field->name, field->name_of(value->number));
        break;
    default:
        tr_assert(false); /* a field must have a value */
    }
}

static void put_cbor_list(
    struct cbor_writer *writer, const struct field *list, const struct field_source *source)
{
    uint32_t count = source->count(source, list);
    bool is_bare = has_bare_items(list);

    cbor_put_array(writer, list->name);
    for (uint32_t row = 0; row < count; row++) {
        struct field_source inner = source_of_row(source, list, row);

        if (!is_bare)
            cbor_put_map(writer, NULL);
        field_put_cbor(writer, list->fields, &inner);
        if (!is_bare)
            cbor_put_end(writer);
    }
    cbor_put_end(writer);
}

static void put_cbor_map(
    struct cbor_writer *writer, const struct field *map, const struct field_source *source)
{
    uint32_t count = source->count(source, map);

    tr_assert(map->fields[0].type == FIELD_TEXT && map->fields[1].type == FIELD_INT);
    cbor_put_map(writer, map->name);
    for (uint32_t row = 0; row < count; row++) {
        struct field_source inner = source_of_row(source, map, row);

        cbor_put_key(writer, source->get(&inner, &map->fields[0]).bytes);
        cbor_put_int(writer, NULL, source->get(&inner, &map->fields[1]).number);
    }
    cbor_put_end(writer);
}

void field_put_cbor(
    struct cbor_writer *writer, const struct field *fields, const struct field_source *source)
{
    for (const struct field *field = fields; field->type != FIELD_END; field++) {
        tr_assert(field->type != FIELD_PUT);
        if (field->type == FIELD_LIST) {
            put_cbor_list(writer, field, source);
        } else if (field->type == FIELD_MAP) {
            put_cbor_map(writer, field, source);
        } else if (field->type == FIELD_OBJECT) {
            cbor_put_map(writer, field->name);
            field_put_cbor(writer, field->fields, source);
            cbor_put_end(writer);
        } else {
            struct field_value value = source->get(source, field);

            if (value.is_there)
                put_cbor_value(writer, field, &value);
        }
    }
}
