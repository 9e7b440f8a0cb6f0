/* SPDX-License-Identifier: Apache-2.0 */
/* http2_memory.c: the allocator of the library. Each block is in a list of its session. After a
 * failed allocation the library may not be able to free its own structures (its session_del then
 * fails an assertion), so such a session is freed block by block. */
#include "base/alloc.h"
#include "http/http2.h"

struct http2_block {
    struct http2_block *next, *prev;
};
_Static_assert(sizeof(struct http2_block) == 16, "what follows stays aligned");

static void *block_link(struct http2 *http2, struct http2_block *block)
{
    if (block == NULL) {
        http2->failure = HTTP2_BROKEN;
        return NULL;
    }
    block->prev = NULL;
    block->next = http2->blocks;
    if (block->next != NULL)
        block->next->prev = block;
    http2->blocks = block;
    return block + 1;
}

static struct http2_block *block_unlink(struct http2 *http2, void *memory)
{
    struct http2_block *block = (struct http2_block *)memory - 1;

    if (block->next != NULL)
        block->next->prev = block->prev;
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        http2->blocks = block->next;
    return block;
}

static void *memory_alloc(size_t size, void *data)
{
    return size > SIZE_MAX / 2 ? NULL
                               : block_link(data, base_alloc(sizeof(struct http2_block) + size));
}

static void *memory_calloc(size_t count, size_t size, void *data)
{
    if (count != 0 && size > SIZE_MAX / 2 / count)
        return NULL;
    return block_link(data, base_calloc(sizeof(struct http2_block) + count * size));
}

static void memory_free(void *memory, void *data)
{
    if (memory != NULL)
        base_free(block_unlink(data, memory));
}

static void *memory_realloc(void *memory, size_t size, void *data)
{
    struct http2_block *block, *moved;

    if (memory == NULL)
        return memory_alloc(size, data);
    block = block_unlink(data, memory);
    moved = size > SIZE_MAX / 2 ? NULL : base_realloc(block, sizeof *block + size);
    if (moved == NULL)
        block_link(data, block); /* the old block is still valid */
    return block_link(data, moved);
}

nghttp2_mem http2_memory(struct http2 *http2)
{
    return (nghttp2_mem){ .mem_user_data = http2,
        .malloc = memory_alloc,
        .free = memory_free,
        .calloc = memory_calloc,
        .realloc = memory_realloc };
}

void http2_session_destroy(struct http2 *http2)
{
    if (http2->failure != HTTP2_BROKEN)
        nghttp2_session_del(http2->session);
    http2->session = NULL;
    while (http2->blocks != NULL)
        base_free(block_unlink(http2, http2->blocks + 1));
}
