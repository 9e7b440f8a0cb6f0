/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: an answer of http_respond_parts: parts of one file with bytes between them, with
 * checks and a rate. The object records its progress, so all transports send it with the
 * functions below. */
#ifndef HTTP_PARTS_H
#define HTTP_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "http/http.h"
#include "net/stream.h"

struct http_parts {
    int fd; /* borrowed until `done` */
    bool (*check)(void *data, uint64_t sent, bool is_waiting);
    void (*done)(void *data, uint64_t sent);
    void *data;
    uint64_t rate_max;
    uint64_t began_ns;   /* when sending began; 0: nothing was sent */
    uint64_t checked_ns; /* the turn of the last check */
    uint64_t length;     /* in total */
    uint64_t sent;       /* of `length` */
    uint64_t file_sent;
    /* The next bytes are the text of part `at` from `text_done` on, then the part itself. If at ==
     * count they are `after`. */
    uint32_t at, count;
    uint64_t text_done, part_done;
    struct {
        uint32_t text_begin, text_size;
        uint64_t offset, size;
    } part[HTTP_RANGES_MAX];
    uint32_t after_begin, after_size;
    char text[];
};

/* Call `done` and free. NULL is fine. */
void http_parts_destroy(struct http_parts *parts);

enum { HTTP_PARTS_LATER = -100 };
/* Send the next bytes to a stream, by sendfile where that is safe. Returns the result of
 * net_send_file, or HTTP_PARTS_LATER: not before *ret_resume_ns. NET_GONE also if the check
 * failed. */
ssize_t http_parts_send(struct http_parts *parts, struct net_stream *stream, size_t size_max,
    uint64_t now_ns, uint64_t *ret_resume_ns);
/* Copy the next bytes to memory. Returns the same, but never NET_AGAIN. */
ssize_t http_parts_read(
    struct http_parts *parts, void *bytes, size_t size, uint64_t now_ns, uint64_t *ret_resume_ns);

#endif
