/* SPDX-License-Identifier: Apache-2.0 */
/* json_write.h: append one JSON value to a buffer. The writer adds commas and escapes strings.
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
 * `key` names the member in an object and is NULL elsewhere (or after json_put_key). A key outside
 * an object and a member without a key are bugs and abort. */
#ifndef JSON_JSON_WRITE_H
#define JSON_JSON_WRITE_H

#include "json/json.h"

#define JSON_WRITE_DEPTH_MAX 64

struct json_writer {
    struct buffer *out;
    uint64_t objects; /* one bit per level, the innermost lowest: 1 is an object, 0 an array */
    uint32_t depth;
    bool has_item; /* the innermost array or object is not empty */
    bool has_key;  /* json_put_key was called; its value comes next */
    bool is_done;  /* the outermost value is complete */
    int failed;    /* 0, TR_EUNSUPPORTED (see json_put_value) or TR_ELIMIT (too deep) */
};

/* Start a writer that appends to `out`, which is borrowed. */
struct json_writer json_writer(struct buffer *out);
/* Return 0 if a whole value was written, else the first failure of the buffer or the writer. */
int json_writer_end(const struct json_writer *writer);

void json_put_object(struct json_writer *writer, const char *key);
void json_put_array(struct json_writer *writer, const char *key);
void json_put_end(struct json_writer *writer); /* ends the innermost object or array */
/* Write the key of the next value; for keys that are not literals. */
void json_put_key(struct json_writer *writer, struct span key);

/* Write a string. U+FFFD replaces bytes that are not UTF-8, so the output is always valid. */
void json_put_string(struct json_writer *writer, const char *key, struct span text);
void json_put_text(struct json_writer *writer, const char *key, const char *text);
void json_put_int(struct json_writer *writer, const char *key, int64_t integer);
void json_put_bool(struct json_writer *writer, const char *key, bool truth);
void json_put_null(struct json_writer *writer, const char *key);
/* Write the shortest digits that read back as the same double; null for NaN and infinities. */
void json_put_double(struct json_writer *writer, const char *key, double real);
/* Copy a value that is JSON text already. The writer does not check it. */
void json_put_raw(struct json_writer *writer, const char *key, struct span json);
/* Write a parsed value. Numbers keep their digits; NULL becomes null. Bytes and links of CBOR have
 * no form in JSON: they fail the writer with TR_EUNSUPPORTED. */
void json_put_value(struct json_writer *writer, const char *key, const struct json *value);

/* Append one string with quotes and the shortest escapes, without a writer. */
void json_quote(struct buffer *out, struct span text);

#endif
