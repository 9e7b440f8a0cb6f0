/* SPDX-License-Identifier: Apache-2.0 */
/* param.h: the parameters of a call as a table. A GET has them in its query, a POST in its JSON
 * body; the table and the rules are the same. Values point into the request's own memory: the
 * body is parsed and decoded in place, and lives as long as the request. */
#ifndef SERVICES_COMMON_PARAM_H
#define SERVICES_COMMON_PARAM_H

#include "http/http.h"
#include "json/json_expect.h"

enum {
    CONVO_SIZE_MAX = 128,
    DEVICE_SIZE_MAX = 64,
    DID_SIZE_MIN = 8,
    DID_SIZE_MAX = 255,
    WHY_SIZE_MAX = 256,
    PARAM_ITEMS_MAX = 1000, /* of any list */
    PARAMS_MAX = 12,        /* of one call */
};

enum param_type {
    PARAM_END,    /* the last entry of a table */
    PARAM_TEXT,   /* min to max bytes; max 0: any number */
    PARAM_DEVICE, /* a device id; "" if it is missing */
    PARAM_INT,    /* min to max */
    PARAM_BOOL,
    PARAM_CHOICE, /* one of `choices`; its place among them is the number */
    PARAM_TIME,   /* within the next `max` days, in milliseconds; missing: `fallback` days ahead */
    PARAM_BYTES,  /* base64 of 1 to max bytes; bodies only */
    PARAM_HEX,    /* hex of min to max bytes */
    PARAM_IDS,    /* min to max different ids: name=a&name=b or name=a,b; queries only */
    PARAM_DIDS,   /* the same of DIDs; in a body an array of at least `min` */
    PARAM_HEXES,  /* an array of min to max hashes in hex; bodies only */
    PARAM_JSON,   /* an array of min to max values, read by the call itself; bodies only */
    PARAM_MLS,    /* an MLS message of at most max bytes: base64, or `raw` itself; bodies only */
    PARAM_ANY,    /* a value that the call reads itself; bodies only */
};

/* A table ends with PARAM_LAST. */
struct param {
    const char *name;
    enum param_type type;
    enum {
        PARAM_REQUIRED = 1,
        PARAM_OR_EMPTY = 2, /* a missing text is "" */
        PARAM_HIDDEN = 4,   /* not of the request: hooks of the call set the value */
    } flags;
    int64_t min;
    int64_t max;
    int64_t fallback;                   /* of a missing INT, BOOL, CHOICE or TIME */
    const char *const *choices;         /* ends with NULL */
    bool (*is_valid)(struct span text); /* of a TEXT; NULL: every text of that length is valid */
    const char *rule; /* completes "<name> ..." of a text that is not, or of no number in a query */
};
#define PARAM_NUMBER_RULE "must be a number"
/* clang-format off */
#define PARAM_LAST { .type = PARAM_END }
#define PARAMS(...) ((const struct param[]){ __VA_ARGS__, PARAM_LAST })
#define PARAM_NEED_TEXT(name, min_, max_) { name, PARAM_TEXT, PARAM_REQUIRED, .min = (min_), .max = (max_) }
#define PARAM_MAY_TEXT(name, min_, max_) { name, PARAM_TEXT, .min = (min_), .max = (max_) }
#define PARAM_OWN(name, type) { name, type, PARAM_HIDDEN, .max = 0 }
#define PARAM_CONVO PARAM_NEED_TEXT("convoId", 1, CONVO_SIZE_MAX)
#define PARAM_DID(name) PARAM_NEED_TEXT(name, DID_SIZE_MIN, DID_SIZE_MAX)
#define PARAM_DEVICE_ID { "deviceId", PARAM_DEVICE, .max = DEVICE_SIZE_MAX }
#define PARAM_OWN_DEVICE { "deviceId", PARAM_DEVICE, PARAM_REQUIRED, .max = DEVICE_SIZE_MAX }
#define PARAM_CURSOR { "cursor", PARAM_TEXT, PARAM_OR_EMPTY, .max = 0 }
#define PARAM_LIMIT(most, usual) { "limit", PARAM_INT, .min = 1, .max = (most), .fallback = (usual) }
/* clang-format on */

struct param_value {
    bool is_given;
    uint32_t count; /* of items */
    int64_t number;
    union {
        struct span text; /* decoded bytes of BYTES and HEX; {NULL, 0}: missing */
        struct span *items;
        const struct json *json; /* while the body is read */
    };
};

/* One request that a table is read from. */
struct param_reader {
    struct http_request *request;
    int64_t now_ms;
    /* The manners of the REST services: an empty body is {}; a text that is read has no zero byte,
     * while other members may; a required null has the wrong type. */
    bool is_rest;
    struct json_expect expect; /* the first mistake */
    struct json_doc doc;       /* of a body */
    bool is_out_of_memory;
    bool is_null_wrong;   /* a required null has the wrong type; else it is missing */
    const char *raw_name; /* the PARAM_MLS that `raw` stands for; NULL: none */
    struct span raw;
};

/* Read the parameters of the query, or the members of the body, into one value per entry. A mistake
 * fails reader->expect. param_reader_fini frees the document; the values stay. */
void param_read_query(
    struct param_reader *reader, const struct param *params, struct param_value *ret_values);
void param_read_body(
    struct param_reader *reader, const struct param *params, struct param_value *ret_values);
/* The same of JSON text that is not the request's own. It is parsed in place and has
 * JSON_PADDING_BYTES behind it; NULL: out of memory. `subject` begins a sentence: "The body". */
void param_read_text(struct param_reader *reader, struct span text, const char *subject,
    const struct param *params, struct param_value *ret_values);
/* Read the members of the object that reader->expect is of. */
void param_read_members(
    struct param_reader *reader, const struct param *params, struct param_value *ret_values);
void param_reader_fini(struct param_reader *reader);
/* Return the index of the parameter of this name; -1: the table has none. */
int param_find(const struct param *params, struct span name);
/* Read the query in the manner of the REST services. Returns false after answering 400 or 503. */
bool param_read_rest_query(struct http_request *request, const struct param *params,
    struct param_value ret_values[PARAMS_MAX]);
/* Answer 400 InvalidRequest or 503 if anything was wrong, and free the document. True: it was. */
bool param_reader_refuse(struct param_reader *reader);

/* True for 1 to 64 letters, digits and - . _ : which is what may follow the # of an identity. */
bool param_is_device(struct span device);

#endif
