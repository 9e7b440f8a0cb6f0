/* SPDX-License-Identifier: Apache-2.0 */
/* rest.h: helpers for the calls of the REST services. A call declares its parameters and the columns it
 * returns as tables; this file reads the first from a body or a query, and writes the second as
 * JSON.
 *
 *     static const struct rest_param params[] = {
 *         { "package_id", REST_TEXT, REST_REQUIRED, 1, 128, .is_valid = pack_name_is_valid,
 *             .rule = "must be the name of a pack" },
 *         { "limit", REST_INT, .min = 1, .max = 1000, .fallback = 100 },
 *         REST_PARAMS_END,
 *     };
 *     static const struct rest_column columns[] = {
 *         { "id", COLUMN_INT, .at = 0 }, { "actor", COLUMN_TEXT, .at = 1 }, REST_COLUMNS_END,
 *     };
 *
 * The role a call demands stands in its route (auth_demand), its statements in a *_store.c. */
#ifndef SERVICES_COMMON_REST_H
#define SERVICES_COMMON_REST_H

#include "http/http.h"
#include "json/json_expect.h"
#include "json/json_write.h"
#include "sql/sql.h"

/* ---- parameters ----------------------------------------------------------------------------- */

enum rest_type { REST_END, REST_TEXT, REST_INT, REST_BOOL };
enum rest_need { REST_OPTIONAL, REST_REQUIRED };
struct rest_param {
    const char *name;
    enum rest_type type;
    enum rest_need need;
    int64_t min, max;                   /* bytes of a text, or the range of a number */
    int64_t fallback;                   /* value of a missing number or truth value */
    bool (*is_valid)(struct span text); /* NULL: every text of that length is valid */
    const char *rule;                   /* completes "<name> ..." if is_valid returns false */
};
/* clang-format off */
#define REST_PARAMS_END { .type = REST_END }
/* clang-format on */
enum { REST_PARAMS_MAX = 8 };

struct rest_value {
    struct span text; /* {NULL, 0}: missing */
    int64_t number;
};

/* Parse the body as JSON; an empty body is {}. Returns false after answering 400 or 503; otherwise
 * the caller frees the document with json_doc_free. */
bool rest_read_body(
    struct http_request *request, struct json_doc *ret_doc, struct json_expect *ret_expect);
/* Read the members that the table names into ret_values, one for each row. A mistake fails `expect`;
 * so does a text with a zero byte, which PostgreSQL cannot store. Texts point into the document. */
void rest_read_members(struct json_expect *expect, const struct rest_param *params,
    struct rest_value ret_values[REST_PARAMS_MAX]);
/* Read texts and numbers from the query in the same way. Returns false after answering 400 or 503. */
bool rest_read_query(struct http_request *request, const struct rest_param *params,
    struct rest_value ret_values[REST_PARAMS_MAX]);

/* ---- columns -------------------------------------------------------------------------------- */

enum rest_column_type {
    COLUMN_END,
    COLUMN_INT,
    COLUMN_BOOL,   /* a number other than 0 is true */
    COLUMN_TEXT,   /* a column that is NULL is left out */
    COLUMN_CHOICE, /* a number as its place in `choices` */
    COLUMN_OPEN,   /* the columns up to COLUMN_CLOSE are members of the object `name` */
    COLUMN_CLOSE,
};
struct rest_column {
    const char *name;
    enum rest_column_type type;
    uint32_t at; /* column of the row, from 0 */
    const char *const *choices;
};
/* clang-format off */
#define REST_COLUMNS_END { .type = COLUMN_END }
/* clang-format on */

/* Write the columns of a row as members of the object that the writer is in. */
void rest_put_row(struct json_writer *writer, const struct sql_unit *unit, uint32_t step,
    uint32_t row, const struct rest_column *columns);
/* Write the array `name` of objects, one for each row of the step. */
void rest_put_rows(struct json_writer *writer, const char *name, const struct sql_unit *unit,
    uint32_t step, const struct rest_column *columns);

/* ---- answers -------------------------------------------------------------------------------- */

/* Answer with the JSON in `body`, or 503 if writing it failed. Frees the buffer. */
void rest_respond(struct http_request *request, struct buffer *body);
/* Answer 200 with an ETag of the bytes, or 304 to a client that has them. Frees the buffer. */
void rest_respond_tagged(struct http_request *request, struct buffer *body);

#endif
