/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: an answer made of parts of one file with bytes between them, which somebody watches over
 * (http_respond_parts). One object per answer; it remembers how far it is, so both transports send
 * it from here. */
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
    uint64_t began_ns;   /* of the pace; 0: nothing has been sent */
    uint64_t checked_ns; /* the turn in which it was checked */
    uint64_t length;     /* all together */
    uint64_t sent;       /* of that */
    uint64_t file_sent;
    /* What is next: text of part `at` from `text_done` on, then its bytes. at == count: `after`. */
    uint32_t at, count;
    uint64_t text_done, part_done;
    struct {
        uint32_t text_begin, text_size;
        uint64_t offset, size;
    } part[HTTP_RANGES_MAX];
    uint32_t after_begin, after_size;
    char text[];
};

/* Once, whatever became of it: tells `done`. NULL is fine. */
void http_parts_destroy(struct http_parts *parts);

enum { HTTP_PARTS_LATER = -100 };
/* The next bytes to a stream, by sendfile where that is safe. What net_send_file returns, or
 * HTTP_PARTS_LATER: not before *ret_resume_ns. NET_GONE also if the check failed. */
ssize_t http_parts_send(struct http_parts *parts, struct net_stream *stream, size_t size_max,
    uint64_t now_ns, uint64_t *ret_resume_ns);
/* The next bytes to memory. The same; never NET_AGAIN. */
ssize_t http_parts_read(
    struct http_parts *parts, void *bytes, size_t size, uint64_t now_ns, uint64_t *ret_resume_ns);

#endif
