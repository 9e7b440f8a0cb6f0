/* SPDX-License-Identifier: Apache-2.0 */
/* freelist.h: memory that a connection needs only while it is busy. Each thread keeps a few
 * blocks, so a busy connection gets a block that is still in the CPU's cache, and an idle one
 * holds none. */
#ifndef HTTP_FREELIST_H
#define HTTP_FREELIST_H

enum {
    HTTP_INPUT_SIZE = 4096,   /* of an input block, including the room behind it */
    HTTP_SEGMENT_SIZE = 4096, /* of a segment of output, including its struct */
};
enum http_freelist {
    HTTP_FREELIST_REQUEST,
    HTTP_FREELIST_INPUT,
    HTTP_FREELIST_SEGMENT,
    HTTP_FREELIST_KINDS
};

/* Returns uninitialised memory, or NULL when out of memory. */
void *http_freelist_take(enum http_freelist kind);
/* Give back memory of http_freelist_take of the same kind. NULL is fine. */
void http_freelist_give(enum http_freelist kind, void *memory);

#endif
