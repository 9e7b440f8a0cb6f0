/* SPDX-License-Identifier: Apache-2.0 */
/* header.h: one header field of a request. */
#ifndef HTTP_HEADER_H
#define HTTP_HEADER_H

#include "base/buffer.h"

struct http_header {
    struct tr_span name; /* as sent; compare without case */
    struct tr_span value;
};

#endif
