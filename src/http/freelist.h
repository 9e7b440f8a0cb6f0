/* SPDX-License-Identifier: Apache-2.0 */
/* spare.h: memory that connections need only while they do something. An idle one holds none of it;
 * a busy one gets what the last one on this thread has given back, warm from the cache. */
#ifndef HTTP_FREELIST_H
#define HTTP_FREELIST_H

enum {
    HTTP_INPUT_SIZE = 4096,   /* of a spare input, room behind it included */
    HTTP_SEGMENT_SIZE = 4096, /* of a spare segment of output, its struct included */
};
enum http_freelist {
    HTTP_FREELIST_REQUEST,
    HTTP_FREELIST_INPUT,
    HTTP_FREELIST_SEGMENT,
    HTTP_FREELIST_KINDS
};

/* Uninitialised; NULL when out of memory. */
void *http_freelist_take(enum http_freelist kind);
/* Memory of http_freelist_take of the same kind; NULL is fine. */
void http_freelist_give(enum http_freelist kind, void *memory);

#endif
