/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: add a statement and its values to a unit in one expression:
 *
 *     UNIT_STEP(unit, &insert_key, 1, VALUE_INT(pack->id), VALUE_TEXT(statement), VALUE_INT(now_ms)); */
#ifndef SERVICES_COMMON_STEP_H
#define SERVICES_COMMON_STEP_H

#include "sql/sql.h"

struct step_value {
    enum { STEP_INT, STEP_TEXT, STEP_BLOB } kind;
    int64_t number;
    struct span bytes;
};

/* clang-format off */
#define VALUE_INT(number_) { .kind = STEP_INT, .number = (int64_t)(number_) }
/* An absent span, {NULL, 0}, is the NULL of SQL. */
#define VALUE_TEXT(span_) { .kind = STEP_TEXT, .bytes = (span_) }
#define VALUE_CHARS(text_) { .kind = STEP_TEXT, .bytes = span_of(text_) }
#define VALUE_BLOB(bytes_, size_) { .kind = STEP_BLOB, .bytes = { (const char *)(bytes_), (size_) } }
#define VALUE_BYTES(span_) { .kind = STEP_BLOB, .bytes = (span_) }
#define VALUE_ARRAY(bytes_) VALUE_BLOB(bytes_, sizeof(bytes_))
#define VALUE_NULL { .kind = STEP_TEXT }
/* clang-format on */

/* Add a statement that must change or return `rows` rows, with its values from $1 on. */
#define UNIT_STEP(unit_, statement_, rows_, ...)                                                   \
    step_add((unit_), (statement_), (rows_), (const struct step_value[]){ __VA_ARGS__ },           \
        sizeof((const struct step_value[]){ __VA_ARGS__ }) / sizeof(struct step_value))
void step_add(struct sql_unit *unit, const struct sql_statement *statement, int64_t rows,
    const struct step_value *values, size_t count);

#endif
