/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: what a connection has to send: a queue of bytes, shared frames and parts of files, sent
 * with as few calls as possible. */
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
    int fd;          /* of a file */
    const char *at;  /* what is left: of bytes and frames */
    uint64_t left;   /* bytes; of a file too */
    uint64_t offset; /* in the file */
    uint64_t sent;
    struct http_parts *parts; /* of a file that is watched over; then there is no fd */
    http_file_done_fn done;
    void *data;  /* of done; the memory of SEGMENT_OWNED; the frame */
    size_t used; /* of space; of SEGMENT_OWNED all of it */
    size_t capacity;
    char space[]; /* of SEGMENT_BYTES */
};

struct http_output {
    struct http_segment *first, *last;
    uint64_t pending;   /* bytes not sent, without those of files */
    uint64_t sent;      /* all together */
    uint64_t now_ns;    /* set before a flush */
    uint64_t resume_ns; /* HTTP_OUTPUT_LATER: flush again then */
    bool has_files;
    bool is_final; /* what waits is the last of the connection's streams */
};

/* Room for `size` more contiguous bytes at the end, or NULL; http_output_grew says how many came.
 */
char *http_output_reserve(struct http_output *output, size_t size);
void http_output_grew(struct http_output *output, size_t size);
int http_output_append(struct http_output *output, const void *bytes, size_t size);
/* Bytes that http_answer_bytes tells: of an answer from when it is queued until it is sent. */
void http_answer_bytes_add(uint64_t size);
void http_answer_bytes_drop(uint64_t size);
/* Takes memory of base_alloc, also on failure. */
int http_output_owned(struct http_output *output, char *bytes, size_t size);
/* Takes one reference, also on failure. `chunked`: with the framing round it. */
int http_output_frame(struct http_output *output, struct http_frame *frame, bool chunked);
/* `done` is called also on failure, and when the output is dropped. */
int http_output_file(struct http_output *output, int fd, uint64_t offset, uint64_t size,
    http_file_done_fn done, void *data);

/* Takes the parts, also on failure. */
int http_output_parts(struct http_output *output, struct http_parts *parts);

static inline bool http_output_is_empty(const struct http_output *output)
{
    return output->first == NULL;
}
/* Send what the stream takes, a few megabytes at most. 0: all is sent; HTTP_OUTPUT_MORE: there is
 * more and the stream would take it; HTTP_OUTPUT_LATER: a pace is kept, go on at resume_ns;
 * NET_AGAIN; NET_GONE, also when a file turned out too short to keep the promised length. */
enum { HTTP_OUTPUT_MORE = 1, HTTP_OUTPUT_LATER = 2 };
int http_output_flush(struct http_output *output, struct net_stream *stream);
/* Forget all of it. */
void http_output_drop(struct http_output *output);
#endif
