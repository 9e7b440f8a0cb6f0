/* SPDX-License-Identifier: Apache-2.0 */
/* header.h: one header field of a request. */
#ifndef HTTP_HEADER_H
#define HTTP_HEADER_H

#include "support/buffer.h"

struct http_header {
    struct span name; /* as sent; compare without case */
    struct span value;
};

#endif
