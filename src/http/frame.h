/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h: bytes shared by many streams. The framing of a chunked body is stored around them, so
 * that a hundred HTTP/1.1 streams send the same memory. */
#ifndef HTTP_FRAME_H
#define HTTP_FRAME_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "http/http.h"

struct http_frame {
    _Atomic uint32_t refs;
    uint32_t prefix; /* size of the "1f4\r\n" in front */
    size_t size;     /* without prefix and final CR LF */
    uint64_t mark;   /* http_frame_mark */
    char bytes[];    /* prefix, bytes, CR LF */
};

static inline const char *http_frame_bytes(const struct http_frame *frame)
{
    return frame->bytes + frame->prefix;
}
static inline size_t http_frame_chunk_size(const struct http_frame *frame)
{
    return frame->prefix + frame->size + 2;
}

#endif
