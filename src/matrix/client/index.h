/* SPDX-License-Identifier: Apache-2.0 */
/* index.h: objects by their id, sorted by it. An object stays at its address until the end. */
#ifndef MATRIX_CLIENT_INDEX_H
#define MATRIX_CLIENT_INDEX_H

#include "support/buffer.h"

/* The first member of an object in an index. */
struct mxclient_entry {
    struct buffer id;
};

/* {0} is an empty index. */
struct mxclient_index {
    struct mxclient_entry **entries; /* owned, sorted by the bytes of the id */
    uint32_t count;
    uint32_t capacity;
};

/* Free all objects; `fini` (may be NULL) frees what an object owns beside its id. */
void mxclient_index_fini(struct mxclient_index *index, void (*fini)(void *object));
/* Return the object with this id, or NULL. */
void *mxclient_index_find(const struct mxclient_index *index, struct span id);
/* Return the object with this id. A missing one is added with `size` bytes, zeroed but for its id.
 * NULL: out of memory. */
void *mxclient_index_add(struct mxclient_index *index, struct span id, size_t size);
/* Free the object with this id; `fini` may be NULL. */
void mxclient_index_remove(
    struct mxclient_index *index, struct span id, void (*fini)(void *object));

/* Return the place of the first object whose id is not before this one; the count: there is none. */
uint32_t mxclient_index_from(const struct mxclient_index *index, struct span id);

/* The same for an id of two parts, the first without a line feed. Without memory there is none. */
void *mxclient_index_find_pair(
    const struct mxclient_index *index, struct span first, struct span second);
void *mxclient_index_add_pair(
    struct mxclient_index *index, struct span first, struct span second, size_t size);

#endif
