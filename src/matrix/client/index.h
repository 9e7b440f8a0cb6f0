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

#endif
