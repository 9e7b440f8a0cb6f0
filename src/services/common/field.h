/* SPDX-License-Identifier: Apache-2.0 */
/* field.h: answers and events as tables. A table of fields says which members an object has, of
 * which type, and where each value comes from. One table is written as JSON and as DAG-CBOR, and
 * test/integration/api_description.py compares it with docs/api/delivery.yaml.
 *
 *     static const struct field device_fields[] = {
 *         TEXT_AT("deviceId", 0),
 *         TIME_AT("registeredAt", 1),
 *         FIELD_LAST,
 *     };
 *
 * The writer knows names and types. A struct field_source knows the values: rows of a unit (call.c),
 * or members of a struct. `from`, `step`, `at` and `param` are the source's own. */
#ifndef SERVICES_COMMON_FIELD_H
#define SERVICES_COMMON_FIELD_H

#include "json/cbor.h"
#include "json/json_write.h"
#include "sql/sql.h"

enum field_type {
    FIELD_END,  /* the last entry of a table */
    FIELD_TEXT, /* bytes that are UTF-8 */
    FIELD_INT,
    FIELD_BOOL,    /* a number other than 0 is true */
    FIELD_TIME_MS, /* 2026-11-15T12:00:00.000Z; in CBOR an integer, and the name ends in Ms */
    FIELD_TIME_S,  /* the same of seconds; left out past the year 9999 */
    FIELD_BASE64,  /* a text; in CBOR bytes */
    FIELD_BYTES,   /* {"$bytes": base64}; in CBOR bytes */
    FIELD_HEX,     /* a text */
    FIELD_CHOICE,  /* a number as its place in `choices`; a number past the end is the last one */
    FIELD_NAMED,   /* a number as the text that `name_of` returns */
    FIELD_DOUBLE,  /* or null; only a `put` writes it */
    FIELD_OBJECT,  /* of `fields` */
    FIELD_LIST, /* of at most `number` (0: any) objects of `fields`; of bare values if the first of them has no name */
    FIELD_MAP,  /* of integers: the name and the number of each row are `fields` 0 and 1 */
    FIELD_PUT,  /* members without an object of their own: `put` writes them */
};

struct field_source;
struct field;
typedef void (*field_put_fn)(
    struct json_writer *writer, const struct field *field, const struct field_source *source);

struct field {
    const char *name;
    enum field_type type;
    uint8_t from;
    uint8_t step;
    uint16_t at;
    bool is_optional; /* a value may be absent; an absent value is always left out */
    int64_t number;
    const char *param;          /* the source's own */
    const char *const *choices; /* ends with NULL */
    const char *(*name_of)(int64_t number);
    const struct field *fields;
    field_put_fn put; /* writes the field; type and `fields` describe what it writes */
};
/* clang-format off */
#define FIELD_LAST { .type = FIELD_END }
#define FIELDS(...) ((const struct field[]){ __VA_ARGS__, FIELD_LAST })
/* Fields of a row: the name, the column, and more members such as OPTIONAL. */
#define TEXT_AT(name_, ...) { name_, FIELD_TEXT, .at = __VA_ARGS__ }
#define INT_AT(name_, ...) { name_, FIELD_INT, .at = __VA_ARGS__ }
#define BOOL_AT(name_, ...) { name_, FIELD_BOOL, .at = __VA_ARGS__ }
#define TIME_AT(name_, ...) { name_, FIELD_TIME_MS, .at = __VA_ARGS__ }
#define TIME_S_AT(name_, ...) { name_, FIELD_TIME_S, .at = __VA_ARGS__ }
#define BASE64_AT(name_, ...) { name_, FIELD_BASE64, .at = __VA_ARGS__ }
#define BYTES_AT(name_, ...) { name_, FIELD_BYTES, .at = __VA_ARGS__ }
#define HEX_AT(name_, ...) { name_, FIELD_HEX, .at = __VA_ARGS__ }
/* The same of the first row of a step: the name, the step, the column. */
#define TEXT_OF(name_, step_, ...) { name_, FIELD_TEXT, .step = (step_), .at = __VA_ARGS__ }
#define INT_OF(name_, step_, ...) { name_, FIELD_INT, .step = (step_), .at = __VA_ARGS__ }
#define TIME_OF(name_, step_, ...) { name_, FIELD_TIME_MS, .step = (step_), .at = __VA_ARGS__ }
#define LIST(name_, ...) { name_, FIELD_LIST, __VA_ARGS__ }
#define OBJECT(name_, ...) { name_, FIELD_OBJECT, .fields = FIELDS(__VA_ARGS__) }
#define CHOICE_AT(name_, at_, choices_) { name_, FIELD_CHOICE, .at = (at_), .choices = (choices_) }
/* clang-format on */

struct field_value {
    bool is_there;
    int64_t number;    /* INT, BOOL, TIME, CHOICE, NAMED */
    struct span bytes; /* the others */
};

struct field_source {
    struct field_value (*get)(const struct field_source *source, const struct field *field);
    uint32_t (*count)(const struct field_source *source, const struct field *list);
    void *data;
    const struct field *list; /* the list that is being written; NULL outside of one */
    uint32_t row;             /* of that list */
};

/* Write the members of the object that the writer is in. JSON failures stick in the writer's
 * buffer. A table with a `put` has no CBOR form: that asserts. */
void field_put_json(
    struct json_writer *writer, const struct field *fields, const struct field_source *source);
void field_put_cbor(
    struct cbor_writer *writer, const struct field *fields, const struct field_source *source);

/* True if a value of the type is a number and not bytes. */
bool field_is_number(enum field_type type);
/* The value of a column; absent if it is NULL, or if there is no such row, step or unit. */
struct field_value field_of_cell(
    const struct sql_unit *unit, const struct field *field, uint32_t step, uint32_t row);

#endif
