/* SPDX-License-Identifier: Apache-2.0 */
#include "http/frame.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

struct http_frame *http_frame_create(const void *bytes, size_t size)
{
    struct http_frame *frame;
    char prefix[24];
    int length = snprintf(prefix, sizeof prefix, "%zx\r\n", size);

    tr_assert(bytes != NULL || size == 0);
    frame = base_alloc(sizeof *frame + (size_t)length + size + 2);
    if (frame == NULL)
        return NULL;
    atomic_init(&frame->refs, 1);
    frame->prefix = (uint32_t)length;
    frame->size = size;
    frame->mark = 0;
    memcpy(frame->bytes, prefix, (size_t)length);
    if (size > 0)
        memcpy(frame->bytes + length, bytes, size);
    memcpy(frame->bytes + (size_t)length + size, "\r\n", 2);
    return frame;
}

void http_frame_mark(struct http_frame *frame, uint64_t mark)
{
    frame->mark = mark;
}

struct http_frame *http_frame_ref(struct http_frame *frame)
{
    atomic_fetch_add_explicit(&frame->refs, 1, memory_order_relaxed);
    return frame;
}

void http_frame_unref(struct http_frame *frame)
{
    /* Release this thread's reads, and acquire those of the others before the free. */
    if (frame != NULL && atomic_fetch_sub_explicit(&frame->refs, 1, memory_order_acq_rel) == 1)
        base_free(frame);
}

const char *http_frame_at(const struct http_frame *frame)
{
    return http_frame_bytes(frame);
}
