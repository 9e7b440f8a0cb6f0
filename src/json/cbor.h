/* SPDX-License-Identifier: Apache-2.0 */
/* cbor.h: DAG-CBOR, the binary form with exactly one encoding for each value: definite lengths,
 * shortest heads, map keys that are text and sorted (shorter first, then by bytes), floats of 64
 * bits, and no tag but 42, a CID.
 *
 * It is read into the same tape as JSON (json.h), with two kinds of its own: bytes and links. */
#ifndef JSON_CBOR_H
#define JSON_CBOR_H

#include "json/json.h"

#define CBOR_WRITE_DEPTH_MAX 32

/* Read exactly one value. The bytes are not changed; cells point into them, so they must stay.
 * Integers must fit int64_t. doc->depth_max counts. TR_EPROTO for whatever is not DAG-CBOR (NaN and
 * infinities too), or if something follows; TR_EEXIST for a key that is there twice; TR_ELIMIT if
 * too deep or an integer too large; TR_ETOOBIG, TR_ENOMEM. doc->error says where and what. */
int cbor_parse(struct json_doc *doc, struct span bytes);
/* Read the first value; *ret_used is how many bytes it took. For frames of two values in a row. */
int cbor_parse_first(struct json_doc *doc, struct span bytes, size_t *ret_used);

/* Is it a binary CID: version 1 with a multihash of the length it says, or version 0. Without the
 * zero byte that CBOR puts before it. */
bool cbor_is_cid(struct span cid);

/* Write one value. Members may come in any order; a map is put into its own when it ends, and
 * nothing needs to be counted beforehand. Used like struct json_writer: `key` names the member in a
 * map and is NULL elsewhere; misuse aborts. cbor_writer_end must be called, also after a failure. */
struct cbor_writer {
    struct buffer *out;
    size_t start;        /* of the value in `out` */
    struct buffer marks; /* size_t each: where the members of open maps begin */
    struct {
        size_t start;      /* where its head is */
        size_t mark_count; /* marks of the maps around it */
        size_t count;      /* items, or members */
        bool is_map;
    } open[CBOR_WRITE_DEPTH_MAX];
    uint32_t depth;
    bool has_key;
    bool is_done;
    int failed;
};

struct cbor_writer cbor_writer(struct buffer *out);
/* 0 if a whole value was appended. Else nothing was: TR_EINVAL for text that is not UTF-8, a double
 * that is not finite or a CID that is none, TR_EEXIST for a key given twice, TR_ENOMEM, TR_ELIMIT
 * of the buffer or of depth. */
int cbor_writer_end(struct cbor_writer *writer);

void cbor_put_map(struct cbor_writer *writer, const char *key);
void cbor_put_array(struct cbor_writer *writer, const char *key);
void cbor_put_end(struct cbor_writer *writer); /* of the innermost map or array */
void cbor_put_key(struct cbor_writer *writer, struct span key);
void cbor_put_string(struct cbor_writer *writer, const char *key, struct span text);
void cbor_put_text(struct cbor_writer *writer, const char *key, const char *text);
void cbor_put_bytes(struct cbor_writer *writer, const char *key, struct span bytes);
void cbor_put_int(struct cbor_writer *writer, const char *key, int64_t integer);
void cbor_put_bool(struct cbor_writer *writer, const char *key, bool truth);
void cbor_put_null(struct cbor_writer *writer, const char *key);
void cbor_put_double(struct cbor_writer *writer, const char *key, double real);
void cbor_put_link(struct cbor_writer *writer, const char *key, struct span cid);
/* A parsed value, of JSON or CBOR. A real becomes the nearest double. NULL is null. */
void cbor_put_value(struct cbor_writer *writer, const char *key, const struct json *value);

#endif
