/* SPDX-License-Identifier: Apache-2.0 */
/* spare.h: memory that connections need only while they do something. An idle one holds none of it;
 * a busy one gets what the last one on this thread has given back, warm from the cache. */
#ifndef HTTP_SPARE_H
#define HTTP_SPARE_H

enum {
    HTTP_INPUT_SIZE = 4096,   /* of a spare input, room behind it included */
    HTTP_SEGMENT_SIZE = 4096, /* of a spare segment of output, its struct included */
};
enum http_spare { HTTP_SPARE_REQUEST, HTTP_SPARE_INPUT, HTTP_SPARE_SEGMENT, HTTP_SPARE_KINDS };

/* Uninitialised; NULL when out of memory. */
void *http_spare_take(enum http_spare kind);
/* Memory of http_spare_take of the same kind; NULL is fine. */
void http_spare_give(enum http_spare kind, void *memory);

#endif
