/* SPDX-License-Identifier: Apache-2.0 */
#include "http/output.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/freelist.h"
#include "http/http.h"
#include "http/parts.h"

enum {
    SEGMENT_SIZE = HTTP_SEGMENT_SIZE - sizeof(struct http_segment),
    PARTS_MAX = 16,
    FILE_STEP = 2 << 20,
    FLUSH_MAX = 2 << 20, /* so that one fast reader leaves time for the others */
};

static struct http_segment *segment_create(size_t capacity)
{
    struct http_segment *segment;

    if (capacity > 0 && capacity <= SEGMENT_SIZE) {
        segment = http_freelist_take(HTTP_FREELIST_SEGMENT);
        capacity = SEGMENT_SIZE;
    } else {
        segment = base_alloc(sizeof *segment + capacity);
    }
    if (segment != NULL)
        *segment = (struct http_segment){ .capacity = capacity, .fd = -1 };
    return segment;
}

static void output_enqueue(struct http_output *output, struct http_segment *segment)
{
    if (output->first == NULL)
        output->first = segment;
    else
        output->last->next = segment;
    output->last = segment;
}

/* ---- bytes of answers that wait ------------------------------------------------------------ */

static _Atomic uint64_t answer_bytes;

void http_answer_bytes_add(uint64_t size)
{
    atomic_fetch_add_explicit(&answer_bytes, size, memory_order_relaxed);
}

void http_answer_bytes_drop(uint64_t size)
{
    atomic_fetch_sub_explicit(&answer_bytes, size, memory_order_relaxed);
}

uint64_t http_answer_bytes(void)
{
    return atomic_load_explicit(&answer_bytes, memory_order_relaxed);
}

static void segment_destroy(struct http_segment *segment)
{
    switch (segment->kind) {
    case SEGMENT_OWNED:
        http_answer_bytes_drop(segment->used);
        base_free(segment->data);
        break;
    case SEGMENT_FRAME:
        http_frame_unref(segment->data);
        break;
    case SEGMENT_FILE:
        if (segment->parts != NULL)
            http_parts_destroy(segment->parts);
        else if (segment->done != NULL)
            segment->done(segment->data, segment->fd, segment->sent);
        else
            close(segment->fd);
        break;
    case SEGMENT_BYTES:
        if (segment->capacity == SEGMENT_SIZE) {
            http_freelist_give(HTTP_FREELIST_SEGMENT, segment);
            return;
        }
        break;
    }
    base_free(segment);
}

char *http_output_reserve(struct http_output *output, size_t size)
{
    struct http_segment *last = output->last;

    if (output->first == NULL || last->kind != SEGMENT_BYTES ||
        last->capacity - last->used < size) {
        last = segment_create(size);
        if (last == NULL)
            return NULL;
        last->at = last->space;
        output_enqueue(output, last);
    }
    return last->space + last->used;
}

void http_output_grew(struct http_output *output, size_t size)
{
    struct http_segment *last = output->last;

    tr_assert(last->kind == SEGMENT_BYTES);
    tr_assert(last->capacity - last->used >= size);
    last->used += size;
    last->left += size;
    output->pending += size;
}

int http_output_append(struct http_output *output, const void *bytes, size_t size)
{
    char *room;

    if (size == 0)
        return 0;
    room = http_output_reserve(output, size);
    if (room == NULL)
        return TR_ENOMEM;
    memcpy(room, bytes, size);
    http_output_grew(output, size);
    return 0;
}

int http_output_owned(struct http_output *output, char *bytes, size_t size)
{
    struct http_segment *segment = segment_create(0);

    if (segment == NULL || size == 0) {
        base_free(segment);
        base_free(bytes);
        return size == 0 ? 0 : TR_ENOMEM;
    }
    segment->kind = SEGMENT_OWNED;
    segment->data = bytes;
    segment->at = bytes;
    segment->left = segment->used = size;
    http_answer_bytes_add(size);
    output->pending += size;
    output_enqueue(output, segment);
    return 0;
}

int http_output_frame(struct http_output *output, struct http_frame *frame, bool chunked)
{
    struct http_segment *segment = segment_create(0);

    if (segment == NULL || frame->size == 0) {
        base_free(segment);
        segment = NULL;
        chunked = frame->size != 0;
        http_frame_unref(frame);
        return chunked ? TR_ENOMEM : 0;
    }
    segment->kind = SEGMENT_FRAME;
    segment->data = frame;
    segment->at = chunked ? frame->bytes : http_frame_bytes(frame);
    segment->left = chunked ? http_frame_chunk_size(frame) : frame->size;
    output->pending += segment->left;
    output_enqueue(output, segment);
    return 0;
}

int http_output_file(struct http_output *output, int fd, uint64_t offset, uint64_t size,
    http_file_done_fn done, void *data)
{
    struct http_segment *segment = segment_create(0);

    if (segment == NULL) {
        if (done != NULL)
            done(data, fd, 0);
        else
            close(fd);
        return TR_ENOMEM;
    }
    segment->kind = SEGMENT_FILE;
    segment->fd = fd;
    segment->offset = offset;
    segment->left = size;
    segment->done = done;
    segment->data = data;
    output_enqueue(output, segment);
    output->has_files = true;
    return 0;
}

int http_output_parts(struct http_output *output, struct http_parts *parts)
{
    struct http_segment *segment = segment_create(0);

    if (segment == NULL) {
        http_parts_destroy(parts);
        return TR_ENOMEM;
    }
    segment->kind = SEGMENT_FILE;
    segment->parts = parts;
    segment->left = parts->length;
    output_enqueue(output, segment);
    output->has_files = true;
    return 0;
}

static void output_pop(struct http_output *output)
{
    struct http_segment *segment = output->first;

    output->first = segment->next;
    segment_destroy(segment);
}

/* Remove `size` bytes that were sent from the front of the queue. */
static void output_consume(struct http_output *output, uint64_t size)
{
    output->pending -= size;
    output->sent += size;
    while (output->first != NULL && output->first->kind != SEGMENT_FILE) {
        struct http_segment *segment = output->first;
        uint64_t step = size < segment->left ? size : segment->left;

        segment->at += step;
        segment->left -= step;
        segment->sent += step;
        size -= step;
        if (segment->left > 0)
            break;
        output_pop(output);
    }
}

static ssize_t output_send_bytes(struct http_output *output, struct net_stream *stream)
{
    struct iovec parts[PARTS_MAX];
    int count = 0;
    const struct http_segment *segment = output->first;
    ssize_t sent;

    for (; segment != NULL && segment->kind != SEGMENT_FILE && count < PARTS_MAX;
         segment = segment->next) {
        union {
            const char *in;
            char *out;
        } pun = { .in = segment->at }; /* the kernel only reads it */

        if (segment->left > 0)
            parts[count++] =
                (struct iovec){ .iov_base = pun.out, .iov_len = (size_t)segment->left };
    }
    if (count == 0) {
        output_consume(output, 0);
        return 1;
    }
    sent = net_write(stream, parts, count, segment != NULL);
    if (sent > 0)
        output_consume(output, (uint64_t)sent);
    return sent;
}

static ssize_t output_send_file(struct http_output *output, struct net_stream *stream)
{
    struct http_segment *segment = output->first;
    size_t size = segment->left < FILE_STEP ? (size_t)segment->left : FILE_STEP;
    ssize_t sent;

    if (size == 0) {
        output_pop(output);
        return 1;
    }
    if (segment->parts != NULL)
        sent =
            http_parts_send(segment->parts, stream, FILE_STEP, output->now_ns, &output->resume_ns);
    else
        sent = net_send_file(stream, segment->fd, &segment->offset, size);
    if (sent == NET_END)
        return NET_GONE; /* the length is promised, so only an early close tells the client */
    if (sent > 0) {
        segment->left -= (uint64_t)sent;
        segment->sent += (uint64_t)sent;
        output->sent += (uint64_t)sent;
        if (segment->left == 0)
            output_pop(output);
    }
    return sent;
}

int http_output_flush(struct http_output *output, struct net_stream *stream)
{
    uint64_t begin = output->sent;

    output->resume_ns = 0;
    while (output->first != NULL) {
        ssize_t sent;

        if (output->sent - begin >= FLUSH_MAX)
            return HTTP_OUTPUT_MORE;
        sent = output->first->kind == SEGMENT_FILE ? output_send_file(output, stream)
                                                   : output_send_bytes(output, stream);

        if (sent == HTTP_PARTS_LATER)
            return HTTP_OUTPUT_LATER;
        if (sent < 0)
            return (int)sent;
    }
    output->has_files = false;
    return 0;
}

void http_output_drop(struct http_output *output)
{
    while (output->first != NULL)
        output_pop(output);
    output->pending = 0;
    output->has_files = false;
}
