/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: how bytes and times look in the API's JSON, both ways. */
#ifndef SERVICES_DELIVERY_API_TEXT_H
#define SERVICES_DELIVERY_API_TEXT_H

#include "json/json_write.h"

/* {"$bytes": base64}, base64 alone, and 2026-11-15T12:00:00.000Z. */
void delivery_put_bytes(struct json_writer *writer, const char *key, struct span bytes);
void delivery_put_base64(struct json_writer *writer, const char *key, struct span bytes);
void delivery_put_time(struct json_writer *writer, const char *key, int64_t unix_ms);

/* Either form of bytes, decoded in place: the span points into the document's text. False if it is
 * neither, or longer than size_max. Padding may be left out. */
bool delivery_get_bytes(const struct json *value, size_t size_max, struct span *ret_bytes);

#endif
