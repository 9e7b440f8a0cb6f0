/* SPDX-License-Identifier: Apache-2.0 */
/* uri.h: decodes the targets of requests strictly, and refuses ambiguous paths. */
#ifndef HTTP_URI_H
#define HTTP_URI_H

#include <stdbool.h>
#include <stddef.h>

#include "support/buffer.h"

/* Split "path?query". The target has origin form, or absolute form with the same authority as
 * `host`. Returns false if it is malformed. Without a '?' the query is {NULL, 0}. */
bool http_target_split(
    struct span target, struct span host, struct span *ret_path, struct span *ret_query);

/* Decode a path into `bytes`, which has room for path.size and may be path.at. Returns false for
 * control characters, an encoded slash, a backslash, dot segments, invalid UTF-8, and percent signs
 * without two hex digits. */
bool http_path_decode(struct span path, char *bytes, size_t *ret_size);

/* Decode one value of a query into `bytes`, which has room for value.size + 1, and end it with NUL.
 * '+' is a space. Returns false for percent signs without two hex digits, NUL and invalid UTF-8. */
bool http_query_decode(struct span value, char *bytes, size_t *ret_size);

/* Find the parameter `name` in a query and decode it into `bytes`, which has room for query.size +
 * 1. Returns 1 found, 0 absent, -1 malformed or there twice. */
int http_query_find(struct span query, const char *name, char *bytes, size_t *ret_size);

/* Returns true for valid UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF. */
bool http_is_utf8(const char *bytes, size_t size);

#endif
