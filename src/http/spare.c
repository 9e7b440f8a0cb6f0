/* SPDX-License-Identifier: Apache-2.0 */
#include "http/spare.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "http/request.h"

enum { KEPT_MAX = 16 };

static const size_t sizes[HTTP_SPARE_KINDS] = {
    [HTTP_SPARE_REQUEST] = sizeof(struct http_request),
    [HTTP_SPARE_INPUT] = HTTP_INPUT_SIZE,
    [HTTP_SPARE_SEGMENT] = HTTP_SEGMENT_SIZE,
};

/* Sanitizers shall see each one's life. */
#if defined(TR_MALLOC_CELLS) && TR_MALLOC_CELLS

void *http_spare_take(enum http_spare kind)
{
    return base_alloc(sizes[kind]);
}

void http_spare_give(enum http_spare kind, void *memory)
{
    (void)kind;
    base_free(memory);
}

#else

struct drawer {
    uint32_t counts[HTTP_SPARE_KINDS];
    bool is_known; /* it is emptied when the thread ends */
    void *kept[HTTP_SPARE_KINDS][KEPT_MAX];
};

static _Thread_local struct drawer drawer;
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool has_key;

static void empty(void *argument)
{
    struct drawer *old = argument;

    for (unsigned kind = 0; kind < HTTP_SPARE_KINDS; kind++)
        while (old->counts[kind] > 0)
            base_free(old->kept[kind][--old->counts[kind]]);
    old->is_known = false;
}

static void key_make(void)
{
    has_key = pthread_key_create(&key, empty) == 0;
}

static bool know(void)
{
    pthread_once(&key_once, key_make);
    drawer.is_known = has_key && pthread_setspecific(key, &drawer) == 0;
    return drawer.is_known;
}

void *http_spare_take(enum http_spare kind)
{
    if (drawer.counts[kind] > 0)
        return drawer.kept[kind][--drawer.counts[kind]];
    return base_alloc(sizes[kind]);
}

void http_spare_give(enum http_spare kind, void *memory)
{
    if (memory == NULL)
        return;
    if (drawer.counts[kind] < KEPT_MAX && (drawer.is_known || know()))
        drawer.kept[kind][drawer.counts[kind]++] = memory;
    else
        base_free(memory);
}

#endif
