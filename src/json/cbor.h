/* SPDX-License-Identifier: Apache-2.0 */
/* cbor.h: DAG-CBOR, the binary form with exactly one encoding for each value: definite lengths,
 * shortest heads, map keys that are text and sorted (shorter first, then by bytes), floats of 64
 * bits, and no tag but 42, a CID.
 *
 * The parser fills the same tape as for JSON (json.h), with two more kinds: bytes and links. */
#ifndef JSON_CBOR_H
#define JSON_CBOR_H

#include "json/json.h"

#define CBOR_WRITE_DEPTH_MAX 32

/* Parse exactly one value. Cells point into the bytes, which stay unchanged and must outlive the
 * document's use. Fails with TR_EPROTO for bytes that are not DAG-CBOR (NaN and infinities too) or
 * that go on after the value, TR_EEXIST for two equal keys, TR_ELIMIT for nesting over
 * doc->depth_max or an integer that does not fit int64_t, TR_ETOOBIG or TR_ENOMEM; doc->error then
 * has the place and the reason. */
int cbor_parse(struct json_doc *doc, struct span bytes);
/* Parse the first value; *ret_used is its size in bytes. For frames of two values in a row. */
int cbor_parse_first(struct json_doc *doc, struct span bytes, size_t *ret_used);

/* Check for a binary CID, without the zero byte that CBOR puts before it: version 1 with a
 * multihash of the length it declares, or version 0. */
bool cbor_is_cid(struct span cid);

/* Writes one value. The caller writes members in any order and counts nothing; the writer sorts a
 * map and fills in its count when the map ends. Used like struct json_writer: `key` names the
 * member in a map and is NULL elsewhere; misuse aborts. Always call cbor_writer_end, also after a
 * failure. */
struct cbor_writer {
    struct buffer *out;
    size_t start;        /* of the value, in `out` */
    struct buffer marks; /* of size_t: the start of each member of the open maps */
    struct {
        size_t start;      /* of its head, in `out` */
        size_t mark_count; /* the marks of the maps around it */
        size_t count;      /* of items or members */
        bool is_map;
    } open[CBOR_WRITE_DEPTH_MAX];
    uint32_t depth;
    bool has_key;
    bool is_done;
    int failed;
};

struct cbor_writer cbor_writer(struct buffer *out);
/* Free the writer's memory and return 0 if `out` got a whole value. On failure `out` is as before:
 * TR_EINVAL for text that is not UTF-8, a double that is not finite or an invalid CID, TR_EEXIST
 * for two equal keys, TR_ENOMEM, TR_ELIMIT for the buffer's limit or too many levels. */
int cbor_writer_end(struct cbor_writer *writer);

void cbor_put_map(struct cbor_writer *writer, const char *key);
void cbor_put_array(struct cbor_writer *writer, const char *key);
void cbor_put_end(struct cbor_writer *writer); /* ends the innermost map or array */
void cbor_put_key(struct cbor_writer *writer, struct span key);
void cbor_put_string(struct cbor_writer *writer, const char *key, struct span text);
void cbor_put_text(struct cbor_writer *writer, const char *key, const char *text);
void cbor_put_bytes(struct cbor_writer *writer, const char *key, struct span bytes);
void cbor_put_int(struct cbor_writer *writer, const char *key, int64_t integer);
void cbor_put_bool(struct cbor_writer *writer, const char *key, bool truth);
void cbor_put_null(struct cbor_writer *writer, const char *key);
void cbor_put_double(struct cbor_writer *writer, const char *key, double real);
void cbor_put_link(struct cbor_writer *writer, const char *key, struct span cid);
/* Write a value parsed from JSON or CBOR. A real becomes the nearest double, NULL becomes null. */
void cbor_put_value(struct cbor_writer *writer, const char *key, const struct json *value);

#endif
