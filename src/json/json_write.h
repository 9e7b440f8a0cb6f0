/* SPDX-License-Identifier: Apache-2.0 */
/* json_write.h: append one JSON value to a buffer. Commas come by themselves, and strings are
 * escaped.
 *
 *     struct json_writer writer = json_writer(&body);
 *     json_put_object(&writer, NULL);
 *     json_put_int(&writer, "epoch", 7);
 *     json_put_array(&writer, "members");
 *     json_put_text(&writer, NULL, "did:plc:abc");
 *     json_put_end(&writer);
 *     json_put_end(&writer);
 *     rc = json_writer_end(&writer);
 *
 * `key` names the member in an object and is NULL elsewhere (or after json_put_key). A key where
 * none belongs, or none where one does, is a bug and aborts. */
#ifndef JSON_JSON_WRITE_H
#define JSON_JSON_WRITE_H

#include "json/json.h"

#define JSON_WRITE_DEPTH_MAX 64

struct json_writer {
    struct buffer *out;
    uint64_t objects; /* a bit per level: is it an object, the innermost lowest */
    uint32_t depth;
    bool has_item; /* the innermost array or object is not empty */
    bool has_key;  /* json_put_key was called, its value is missing */
    bool is_done;  /* the outermost value is complete */
    int failed;    /* 0, TR_EUNSUPPORTED (see json_put_value) or TR_ELIMIT (too deep) */
};

/* Appends to `out`, which is borrowed. What it holds already stays. */
struct json_writer json_writer(struct buffer *out);
/* 0 if a whole value was written, else the first failure, of the buffer or the writer. */
int json_writer_end(const struct json_writer *writer);

void json_put_object(struct json_writer *writer, const char *key);
void json_put_array(struct json_writer *writer, const char *key);
void json_put_end(struct json_writer *writer); /* of the innermost object or array */
/* The key of the next value, for keys that are not literals. */
void json_put_key(struct json_writer *writer, struct span key);

/* What is not UTF-8 is written as U+FFFD: the output is always valid. */
void json_put_string(struct json_writer *writer, const char *key, struct span text);
void json_put_text(struct json_writer *writer, const char *key, const char *text);
void json_put_int(struct json_writer *writer, const char *key, int64_t integer);
void json_put_bool(struct json_writer *writer, const char *key, bool truth);
void json_put_null(struct json_writer *writer, const char *key);
/* The shortest digits that read back as the same double; null for what JSON has no digits for. */
void json_put_double(struct json_writer *writer, const char *key, double real);
/* A JSON value that is written already. It is not looked at. */
void json_put_raw(struct json_writer *writer, const char *key, struct span json);
/* A parsed value. Numbers keep their digits. Bytes and links of CBOR have no form in JSON: the
 * writer fails with TR_EUNSUPPORTED. NULL is null. */
void json_put_value(struct json_writer *writer, const char *key, const struct json *value);

/* One string with its quotes, escaped in the shortest way, outside of any writer. */
void json_quote(struct buffer *out, struct span text);

#endif
