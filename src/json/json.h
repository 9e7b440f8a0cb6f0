/* SPDX-License-Identifier: Apache-2.0 */
/* json.h: read a JSON text (RFC 8259, strict) into a tape of 16-byte cells.
 *
 * The parser works in place: it decodes escapes inside the text, and cells point into it. The text
 * must stay at its address, unchanged, for as long as the document is read. The parser allocates
 * only the tape, which the document keeps for the next text. One thread parses into a document at a
 * time; reading a parsed document needs no lock. */
#ifndef JSON_JSON_H
#define JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

#define JSON_PADDING_BYTES 64 /* writable bytes that must follow a text */
#define JSON_DEPTH_DEFAULT 64
#define JSON_DEPTH_MAX 1024                   /* walking a value takes C stack per level */
#define JSON_TEXT_BYTES_MAX ((size_t)1 << 30) /* sizes in cells are 32 bits */

enum json_kind {
    JSON_NONE, /* a missing value: the kind of NULL */
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,    /* no fraction, no exponent, fits int64_t: exact; -0 is 0 */
    JSON_REAL,   /* every other number; a real from JSON keeps its digits as text */
    JSON_STRING, /* valid UTF-8; may contain zero bytes */
    JSON_BYTES,  /* from CBOR only */
    JSON_LINK,   /* from CBOR only: a CID without its leading zero byte */
    JSON_ARRAY,
    JSON_OBJECT,
};

/* One value. The items of an array and the members of an object (key, value, key, ...) follow their
 * cell. Read values with the functions below; they all accept NULL, a missing value. */
struct json {
    uint32_t kind; /* enum json_kind */
    uint32_t size; /* of text: bytes; of arrays and objects: cells, this one included */
    union {
        const char *text; /* strings, bytes, links, and reals with size > 0 */
        int64_t integer;
        double real;
        bool truth;
        uint64_t count; /* of items or members */
    } as;
};
_Static_assert(sizeof(struct json) == 16, "a cell is 16 bytes");

#define JSON_EXPLAIN_BYTES 120

struct json_error {
    size_t offset;    /* of the byte, in the text as it was before parsing */
    const char *text; /* a clause without capital and full stop; static; NULL without an error */
};

/* {0} is an empty document. */
struct json_doc {
    uint32_t depth_max; /* nested arrays and objects allowed; 0 is JSON_DEPTH_DEFAULT */
    struct json *cells;
    size_t count;
    size_t capacity;
    void *scratch; /* for finding equal keys in large objects; kept like the tape */
    size_t scratch_bytes;
    struct buffer copy; /* the text of json_parse_copy */
    struct json_error error;
};

/* Refuse an object with two equal keys (compared after decoding escapes). Set it for texts that are
 * signed, hashed or acted upon: readers disagree about which of two equal keys counts. Costs at
 * most O(n log n), whatever the keys. */
#define JSON_UNIQUE_KEYS 1u

/* Parse text[0 .. size). JSON_PADDING_BYTES of writable memory must follow it; the parser
 * overwrites them. The document loses its former values, also on failure. Fails with TR_EPROTO for
 * a text that is not JSON or not UTF-8, TR_EEXIST for two equal keys, TR_ELIMIT for nesting over
 * depth_max, TR_ETOOBIG or TR_ENOMEM; doc->error then has the place and the reason, and the text
 * may be partly decoded. */
int json_parse(struct json_doc *doc, char *text, size_t size, unsigned flags);
/* Copy the text into the document and parse the copy: for bytes that must not change or that have
 * no padding. */
int json_parse_copy(struct json_doc *doc, struct span text, unsigned flags);
/* Free the memory of a document and leave it empty and usable, with its depth_max. */
void json_doc_free(struct json_doc *doc);

/* Write the last parse failure as a sentence about `subject`, for a client to read:
 * "The body is not JSON at byte 17: a comma or } is expected." Call it only after a failure. */
void json_explain(const struct json_doc *doc, const char *subject, char text[JSON_EXPLAIN_BYTES]);

/* Return the outermost value; NULL after a failure and before the first parse. */
const struct json *json_root(const struct json_doc *doc);

static inline enum json_kind json_kind(const struct json *value)
{
    return value == NULL ? JSON_NONE : (enum json_kind)value->kind;
}

/* Return the number of items or members; 0 for every other kind. */
size_t json_count(const struct json *value);
/* Find a member's value; NULL if the member is missing or `object` is not an object. The last of
 * two equal keys counts. Takes time linear in the number of members. */
const struct json *json_get(const struct json *object, const char *key);
const struct json *json_get_span(const struct json *object, struct span key);
/* Return an item of an array, or NULL. Takes time linear in `index`. */
const struct json *json_at(const struct json *array, size_t index);

/* Walk items or members in the order of the text:
 *
 *     for (struct json_iter it = json_iterate(value); json_next(&it);)
 *         use(it.key, it.value);
 *
 * A value that is neither an array nor an object has no items. */
struct json_iter {
    struct span key; /* {NULL, 0} in an array */
    const struct json *value;
    const struct json *next; /* private from here */
    const struct json *end;
    bool keyed;
};
struct json_iter json_iterate(const struct json *value);
bool json_next(struct json_iter *iter);

/* Typed reads. Return false and write nothing if the value has another kind. */
bool json_string(const struct json *value, struct span *ret_text);
bool json_bytes(const struct json *value, struct span *ret_bytes);
bool json_link(const struct json *value, struct span *ret_cid);
bool json_int(const struct json *value, int64_t *ret_integer); /* JSON_INT alone: never 1.0 */
bool json_bool(const struct json *value, bool *ret_truth);
/* Read any number as the nearest double; false too if it is outside the range of double. */
bool json_double(const struct json *value, double *ret_real);
/* Read a real's digits as the text has them; false if the real is from CBOR. */
bool json_digits(const struct json *value, struct span *ret_digits);

/* Check for UTF-8 as in RFC 3629: no overlong forms, no surrogates. */
bool json_is_utf8(struct span text);

/* Append the Matrix canonical form: no spaces, keys in the order of their code points (the order of
 * their UTF-8 bytes), shortest escapes, integers only. An integer with an exponent (1e3) is written
 * without it. `leave_out` (NULL, or a list that ends with NULL) names members of the outermost
 * object to omit, as for signing. Fails with TR_EPROTO for a value without canonical form (a
 * fraction, or an integer beyond 2^53 - 1 either way), TR_EEXIST for two equal keys, TR_ENOMEM or
 * TR_ELIMIT; `out` is then as before. */
int json_canonical(const struct json *value, const char *const *leave_out, struct buffer *out);

#endif
