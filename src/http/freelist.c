/* SPDX-License-Identifier: Apache-2.0 */
#include "http/freelist.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "http/request.h"

enum { KEPT_MAX = 16 };

static const size_t sizes[HTTP_FREELIST_KINDS] = {
    [HTTP_FREELIST_REQUEST] = sizeof(struct http_request),
    [HTTP_FREELIST_INPUT] = HTTP_INPUT_SIZE,
    [HTTP_FREELIST_SEGMENT] = HTTP_SEGMENT_SIZE,
};

/* Under a sanitizer each block is allocated and freed separately, so that it sees misuse. */
#if defined(TR_MALLOC_CELLS) && TR_MALLOC_CELLS

void *http_freelist_take(enum http_freelist kind)
{
    return base_alloc(sizes[kind]);
}

void http_freelist_give(enum http_freelist kind, void *memory)
{
    (void)kind;
    base_free(memory);
}

#else

struct freelists {
    uint32_t counts[HTTP_FREELIST_KINDS];
    bool is_freed_at_exit; /* the thread frees its lists when it ends */
    void *blocks[HTTP_FREELIST_KINDS][KEPT_MAX];
};

static _Thread_local struct freelists lists;
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool has_key;

static void freelists_free(void *argument)
{
    struct freelists *old = argument;

    for (unsigned kind = 0; kind < HTTP_FREELIST_KINDS; kind++)
        while (old->counts[kind] > 0)
            base_free(old->blocks[kind][--old->counts[kind]]);
    old->is_freed_at_exit = false;
}

static void key_create(void)
{
    has_key = pthread_key_create(&key, freelists_free) == 0;
}

static bool free_at_exit(void)
{
    pthread_once(&key_once, key_create);
    lists.is_freed_at_exit = has_key && pthread_setspecific(key, &lists) == 0;
    return lists.is_freed_at_exit;
}

void *http_freelist_take(enum http_freelist kind)
{
    if (lists.counts[kind] > 0)
        return lists.blocks[kind][--lists.counts[kind]];
    return base_alloc(sizes[kind]);
}

void http_freelist_give(enum http_freelist kind, void *memory)
{
    if (memory == NULL)
        return;
    if (lists.counts[kind] < KEPT_MAX && (lists.is_freed_at_exit || free_at_exit()))
        lists.blocks[kind][lists.counts[kind]++] = memory;
    else
        base_free(memory);
}

#endif
