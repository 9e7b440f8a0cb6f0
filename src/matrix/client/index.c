/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix/client/index.h"

#include "base/alloc.h"
#include "base/assert.h"

static void index_free(struct mxclient_entry *entry, void (*fini)(void *object))
{
    if (fini != NULL)
        fini(entry);
    buffer_free(&entry->id);
    base_free(entry);
}

void mxclient_index_fini(struct mxclient_index *index, void (*fini)(void *object))
{
    for (uint32_t i = 0; i < index->count; i++)
        index_free(index->entries[i], fini);
    base_free(index->entries);
    *index = (struct mxclient_index){ 0 };
}

/* Return the place of the first entry that is not before the id. */
static uint32_t index_place(const struct mxclient_index *index, struct span id)
{
    uint32_t low = 0, high = index->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct buffer *other = &index->entries[middle]->id;

        if (span_compare((struct span){ other->bytes, other->size }, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct mxclient_entry *index_at(
    const struct mxclient_index *index, uint32_t place, struct span id)
{
    const struct buffer *other;

    if (place == index->count)
        return NULL;
    other = &index->entries[place]->id;
    return span_equal((struct span){ other->bytes, other->size }, id) ? index->entries[place]
                                                                      : NULL;
}

uint32_t mxclient_index_from(const struct mxclient_index *index, struct span id)
{
    return index_place(index, id);
}

void *mxclient_index_find(const struct mxclient_index *index, struct span id)
{
    return index_at(index, index_place(index, id), id);
}

void *mxclient_index_add(struct mxclient_index *index, struct span id, size_t size)
{
    uint32_t place = index_place(index, id);
    struct mxclient_entry *entry = index_at(index, place, id);
    void *grown;

    tr_assert(size >= sizeof *entry && id.size > 0);
    if (entry != NULL)
        return entry;
    if (index->count == index->capacity) {
        grown = base_grow(index->entries, &index->capacity, 8, sizeof(struct mxclient_entry *));
        if (grown == NULL)
            return NULL;
        index->entries = grown;
    }
    entry = base_calloc(size);
    if (entry == NULL || buffer_span(&entry->id, id) != 0) {
        base_free(entry);
        return NULL;
    }
    memmove(&index->entries[place + 1], &index->entries[place],
        (index->count - place) * sizeof(struct mxclient_entry *));
    index->entries[place] = entry;
    index->count++;
    return entry;
}

void mxclient_index_remove(struct mxclient_index *index, struct span id, void (*fini)(void *object))
{
    uint32_t place = index_place(index, id);
    struct mxclient_entry *entry = index_at(index, place, id);

    if (entry == NULL)
        return;
    index->count--;
    memmove(&index->entries[place], &index->entries[place + 1],
        (index->count - place) * sizeof(struct mxclient_entry *));
    index_free(entry, fini); /* last: `id` may be the entry's own */
}

/* ---- ids of two parts ------------------------------------------------------------------------- */

static int index_pair(struct span first, struct span second, struct buffer *out)
{
    (void)buffer_span(out, first);
    (void)buffer_append(out, "\n", 1);
    return buffer_span(out, second);
}

void *mxclient_index_find_pair(
    const struct mxclient_index *index, struct span first, struct span second)
{
    struct buffer id = { 0 };
    void *found = NULL;

    if (index_pair(first, second, &id) == 0)
        found = mxclient_index_find(index, (struct span){ id.bytes, id.size });
    buffer_free(&id);
    return found;
}

void *mxclient_index_add_pair(
    struct mxclient_index *index, struct span first, struct span second, size_t size)
{
    struct buffer id = { 0 };
    void *added = NULL;

    if (index_pair(first, second, &id) == 0)
        added = mxclient_index_add(index, (struct span){ id.bytes, id.size }, size);
    buffer_free(&id);
    return added;
}
