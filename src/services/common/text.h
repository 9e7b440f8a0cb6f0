/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: bytes and times in the JSON of the API, read and written. */
#ifndef SERVICES_COMMON_TEXT_H
#define SERVICES_COMMON_TEXT_H

#include "json/json_write.h"

enum { TEXT_HEX_BYTES_MAX = 64 };

/* Write {"$bytes": base64}, base64 alone, or hex of at most TEXT_HEX_BYTES_MAX bytes. */
void text_put_bytes(struct json_writer *writer, const char *key, struct span bytes);
void text_put_base64(struct json_writer *writer, const char *key, struct span bytes);
void text_put_hex(struct json_writer *writer, const char *key, struct span bytes);
/* Write a time like 2026-11-15T12:00:00.000Z. The one in seconds is left out past the year 9999. */
void text_put_time(struct json_writer *writer, const char *key, int64_t unix_ms);
void text_put_time_s(struct json_writer *writer, const char *key, int64_t unix_s);

/* Read either form of bytes, decoded in place: the span points into the document's text. Padding
 * may be left out. False if the value is neither form, or longer than size_max. */
bool text_get_bytes(const struct json *value, size_t size_max, struct span *ret_bytes);
/* Read a cursor: milliseconds, the mark, and the id of the last item seen. */
bool text_get_cursor(struct span text, char mark, int64_t *ret_ms, struct span *ret_id);
/* Read a time like 2026-11-15T12:00:00Z, with any fraction, in UTC. */
bool text_get_time(struct span text, int64_t *ret_unix_s);

#endif
