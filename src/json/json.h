/* SPDX-License-Identifier: Apache-2.0 */
/* json.h: read a JSON text (RFC 8259, strict) into a tape of 16-byte cells.
 *
 * The text is parsed where it lies: escapes are undone in place and cells point into it, so it must
 * stay where it is, unchanged, for as long as the document is read. Nothing else is allocated but
 * the tape, which a document keeps for the next text. Not shared between threads while it is parsed
 * into; reading it needs no lock. */
#ifndef JSON_JSON_H
#define JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

#define JSON_PADDING_BYTES 64 /* writable memory that must follow a text */
#define JSON_DEPTH_DEFAULT 64
#define JSON_DEPTH_MAX 1024                   /* walking a value takes C stack per level */
#define JSON_TEXT_BYTES_MAX ((size_t)1 << 30) /* sizes in cells are 32 bits */

enum json_kind {
    JSON_NONE, /* what is not there: the kind of NULL */
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,    /* no fraction, no exponent, fits int64_t: exact; -0 is 0 */
    JSON_REAL,   /* every other number. From JSON its digits are kept as they stand in the text */
    JSON_STRING, /* valid UTF-8, may hold zero bytes */
    JSON_BYTES,  /* from CBOR only */
    JSON_LINK,   /* from CBOR only: a CID, without the zero byte before it */
    JSON_ARRAY,
    JSON_OBJECT,
};

/* One value. Arrays and objects are followed by what they hold, objects by key, value, key, ...
 * Read it through the functions below. Every one of them takes NULL for "not there". */
struct json {
    uint32_t kind; /* enum json_kind */
    uint32_t size; /* text and bytes: how many; arrays and objects: cells, itself included */
    union {
        const char *text; /* strings, bytes, links, and reals with size > 0 */
        int64_t integer;
        double real;
        bool truth;
        uint64_t count; /* items, or members */
    } as;
};
_Static_assert(sizeof(struct json) == 16, "a cell is 16 bytes");

#define JSON_EXPLAIN_BYTES 120

struct json_error {
    size_t offset;    /* byte of the text as it was given */
    const char *text; /* a clause without capital and full stop; static; NULL without an error */
};

/* {0} is an empty document. */
struct json_doc {
    uint32_t depth_max; /* nested arrays and objects allowed; 0 is JSON_DEPTH_DEFAULT */
    struct json *cells;
    size_t count;
    size_t capacity;
    void *scratch; /* to find equal keys in large objects; kept like the tape */
    size_t scratch_bytes;
    struct buffer copy; /* of json_parse_copy */
    struct json_error error;
};

/* Refuse an object that has two equal keys (compared after escapes are undone). Set it for what is
 * signed, hashed or acted upon: readers disagree about which of two counts. Costs O(n log n) at
 * worst, whatever the keys. */
#define JSON_UNIQUE_KEYS 1u

/* Parse text[0 .. size), which must be followed by JSON_PADDING_BYTES of writable memory (they are
 * overwritten). The document's former values are gone, also on failure. TR_EPROTO if it is not JSON
 * or not UTF-8, TR_EEXIST for a key that is there twice, TR_ELIMIT if too deep, TR_ETOOBIG,
 * TR_ENOMEM; then doc->error says where and what, and the text is left half undone. */
int json_parse(struct json_doc *doc, char *text, size_t size, unsigned flags);
/* The same for bytes that must not change or have no padding: a copy in the document is parsed. */
int json_parse_copy(struct json_doc *doc, struct span text, unsigned flags);
void json_doc_free(struct json_doc *doc); /* leaves it empty and usable, with its depth_max */

/* Write the last parse failure as a sentence about `subject`, for a client to read:
 * "The body is not JSON at byte 17: a comma or } is expected." Call it only after a failure. */
void json_explain(const struct json_doc *doc, const char *subject, char text[JSON_EXPLAIN_BYTES]);

/* The outermost value; NULL after a failure or before the first parse. */
const struct json *json_root(const struct json_doc *doc);

static inline enum json_kind json_kind(const struct json *value)
{
    return value == NULL ? JSON_NONE : (enum json_kind)value->kind;
}

/* Number of items or members; 0 for everything else. */
size_t json_count(const struct json *value);
/* The value of a member, NULL if there is none or `object` is not an object. The last one counts
 * if a key is there twice. Linear in the members. */
const struct json *json_get(const struct json *object, const char *key);
const struct json *json_get_span(const struct json *object, struct span key);
/* An item of an array; linear in what lies before it. */
const struct json *json_at(const struct json *array, size_t index);

/* Walk items or members in the order of the text:
 *
 *     for (struct json_iter it = json_iterate(value); json_next(&it);)
 *         use(it.key, it.value);
 *
 * Over what is neither array nor object: nothing. */
struct json_iter {
    struct span key; /* {NULL, 0} in an array */
    const struct json *value;
    const struct json *next; /* private from here */
    const struct json *end;
    bool keyed;
};
struct json_iter json_iterate(const struct json *value);
bool json_next(struct json_iter *iter);

/* Typed reads. False, and nothing written, if the kind is another one. */
bool json_string(const struct json *value, struct span *ret_text);
bool json_bytes(const struct json *value, struct span *ret_bytes);
bool json_link(const struct json *value, struct span *ret_cid);
bool json_int(const struct json *value, int64_t *ret_integer); /* JSON_INT alone: never 1.0 */
bool json_bool(const struct json *value, bool *ret_truth);
/* Any number, as the nearest double; false too if it is beyond the range of double. */
bool json_double(const struct json *value, double *ret_real);
/* A real's digits as they stand in the text; false if it did not come from JSON. */
bool json_digits(const struct json *value, struct span *ret_digits);

/* RFC 3629: no overlong forms, no surrogates. */
bool json_is_utf8(struct span text);

/* Append the Matrix canonical form: no spaces, keys in the order of their code points (which is the
 * order of their UTF-8 bytes), shortest escapes, integers only. Members of the outermost object
 * that `leave_out` names (NULL, or a list that ends with NULL) are left out, as for signing.
 * TR_EPROTO if there is no such form: a fraction, or a number beyond 2^53 - 1 either way; what an
 * exponent makes an integer (1e3) is written as one. TR_EEXIST for a key that is there twice.
 * What was appended on failure is taken back. */
int json_canonical(const struct json *value, const char *const *leave_out, struct buffer *out);

#endif
