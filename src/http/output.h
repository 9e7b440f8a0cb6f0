/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: the queue of a connection's output: bytes, shared frames and parts of files, sent with
 * few system calls. */
#ifndef HTTP_OUTPUT_H
#define HTTP_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/frame.h"
#include "net/stream.h"

typedef void (*http_file_done_fn)(void *data, int fd, uint64_t sent);

struct http_parts;

struct http_segment {
    struct http_segment *next;
    enum { SEGMENT_BYTES, SEGMENT_OWNED, SEGMENT_FRAME, SEGMENT_FILE } kind;
    int fd;          /* of SEGMENT_FILE */
    const char *at;  /* of bytes and frames: the rest to send */
    uint64_t left;   /* bytes to send */
    uint64_t offset; /* in the file */
    uint64_t sent;
    struct http_parts *parts; /* instead of fd, for a file with checks and a rate */
    http_file_done_fn done;
    void *data;  /* for `done`; or the memory of SEGMENT_OWNED; or the frame */
    size_t used; /* bytes of `space`, or all bytes of SEGMENT_OWNED */
    size_t capacity;
    char space[]; /* of SEGMENT_BYTES */
};

struct http_output {
    struct http_segment *first, *last;
    uint64_t pending;   /* bytes to send, without those of files */
    uint64_t sent;      /* in total */
    uint64_t now_ns;    /* the caller sets it before a flush */
    uint64_t resume_ns; /* after HTTP_OUTPUT_LATER: when to flush again */
    bool has_files;
    bool is_final; /* the queue is the end of the connection's streams */
};

/* Returns room for `size` contiguous bytes at the end, or NULL. http_output_grew says how many were
 * written. */
char *http_output_reserve(struct http_output *output, size_t size);
void http_output_grew(struct http_output *output, size_t size);
int http_output_append(struct http_output *output, const void *bytes, size_t size);
/* Count bytes of buffered answers for http_answer_bytes, from when they are queued until they are
 * sent. */
void http_answer_bytes_add(uint64_t size);
void http_answer_bytes_drop(uint64_t size);
/* Append memory of base_alloc. Takes it, also on failure. TR_ENOMEM. */
int http_output_owned(struct http_output *output, char *bytes, size_t size);
/* Append a frame. Takes one reference, also on failure. `chunked` sends its chunk framing too.
 * TR_ENOMEM. */
int http_output_frame(struct http_output *output, struct http_frame *frame, bool chunked);
/* Append a part of a file. Calls `done` in the end, also on failure and when the output is dropped.
 * TR_ENOMEM. */
int http_output_file(struct http_output *output, int fd, uint64_t offset, uint64_t size,
    http_file_done_fn done, void *data);

/* Append parts of a file. Takes them, also on failure. TR_ENOMEM. */
int http_output_parts(struct http_output *output, struct http_parts *parts);

static inline bool http_output_is_empty(const struct http_output *output)
{
    return output->first == NULL;
}
/* Send as much as the stream takes, at most a few megabytes. Returns 0: all is sent;
 * HTTP_OUTPUT_MORE: the stream would take more; HTTP_OUTPUT_LATER: the rate is reached, go on at
 * resume_ns; NET_AGAIN; NET_GONE, also if a file is shorter than its promised length. */
enum { HTTP_OUTPUT_MORE = 1, HTTP_OUTPUT_LATER = 2 };
int http_output_flush(struct http_output *output, struct net_stream *stream);
/* Drop the whole queue. */
void http_output_drop(struct http_output *output);
#endif
