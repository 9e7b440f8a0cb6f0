/* SPDX-License-Identifier: Apache-2.0 */
/* uri.h: targets of requests, decoded strictly: a path that could mean two things is refused. */
#ifndef HTTP_URI_H
#define HTTP_URI_H

#include <stdbool.h>
#include <stddef.h>

#include "support/buffer.h"

/* Split "path?query". The target is in origin form, or in absolute form with an authority that is
 * the same as `host` (two names for one request are refused). False: malformed. The query is
 * {NULL, 0} if there is none. */
bool http_target_split(
    struct span target, struct span host, struct span *ret_path, struct span *ret_query);

/* Does the path need decoding? Without it, it is valid as it is, or not at all. */
bool http_path_is_encoded(struct span path);
/* Decode into `bytes`, which has room for path.size. Refused: %00 and other control characters, an
 * encoded slash, a backslash in any form, dot segments, what is not UTF-8 after decoding, and
 * percent signs without two hex digits. `bytes` may be path.at. */
bool http_path_decode(struct span path, char *bytes, size_t *ret_size);

/* One value of a query, decoded into `bytes`, which has room for value.size + 1, and terminated: +
 * is a space. False: percent signs without two hex digits, NUL, or not UTF-8. */
bool http_query_decode(struct span value, char *bytes, size_t *ret_size);

/* Value of the parameter `name` in a query, decoded into `bytes`, which has room for query.size +
 * 1, and terminated. 1 found, 0 absent, -1 malformed or there twice. */
int http_query_find(struct span query, const char *name, char *bytes, size_t *ret_size);

/* Valid UTF-8: no surrogates, nothing overlong, nothing past U+10FFFF. */
bool http_is_utf8(const char *bytes, size_t size);

#endif
