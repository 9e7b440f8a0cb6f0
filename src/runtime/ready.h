/* SPDX-License-Identifier: Apache-2.0 */
/* ready.h: shared by the ready-made actors: their message, a table by key, a heap by time. */
#ifndef RUNTIME_READY_H
#define RUNTIME_READY_H

#include <troupe/ready.h>

#include "base/siphash.h"
#include "runtime/cell.h"

/* ---- the message: a kind, two numbers, a key and a value ------------------------------------ */

enum { READY_INLINE = 16, READY_STATS = 0 };

/* Key and value lie one after the other: inside while they fit, else in one block that the message
 * owns. */
struct tr__ready_message {
    uint32_t kind; /* the actor's own, or READY_STATS */
    uint32_t key_size;
    uint32_t value_size;
    uint32_t flags;  /* the actor's own */
    uint64_t number; /* the actor's own */
    unsigned char bytes[READY_INLINE];
};
_Static_assert(sizeof(struct tr__ready_message) == CELL_INLINE, "rides inside a cell");

struct tr__bytes {
    const void *bytes;
    size_t size;
};

/* Fill in key and value. TR_ETOOBIG, TR_ENOMEM. */
int tr__ready_fill(struct tr__ready_message *message, struct tr__bytes key, struct tr__bytes value);
/* The same; the value is a head of the actor's own, followed by the user's bytes. */
int tr__ready_fill_parts(struct tr__ready_message *message, struct tr__bytes key,
    struct tr__bytes head, struct tr__bytes value);
const unsigned char *tr__ready_key(const struct tr__ready_message *message);
const unsigned char *tr__ready_value(const struct tr__ready_message *message);
/* Free the block of a message: the types' message_drop, and the end of every handler. */
void tr__ready_release(void *message);

/* Send a message; it is released if that fails. A tell does not expire with the message being
 * handled: it carries a fact (this key is stale) that no later message repeats. */
int tr__ready_tell(tr_sender to, struct tr__ready_message *message, enum tr_lane lane);
int tr__ready_ask(struct tr_context *ctx, tr_sender to, struct tr__ready_message *message,
    const struct tr_ask_options *options);
int tr__ready_wait(tr_sender to, struct tr__ready_message *message, void *value, size_t value_size,
    size_t *ret_size, uint64_t timeout_ns);

/* ---- a table by key ------------------------------------------------------------------------- */

struct tr__entry {
    struct tr__entry *next;
    uint64_t hash;
    const unsigned char *key; /* somewhere in the memory of the entry's owner */
    uint32_t key_size;
};

struct tr__table {
    struct tr__entry **buckets;
    uint32_t bucket_count; /* a power of two */
    uint32_t count;
    struct base_siphash_key hash_key; /* a client that chooses keys cannot choose a bucket */
};

/* TR_ENOMEM. Without a context the caller hashes: tr__table_find_hash and tr__table_add_hash. */
int tr__table_init(struct tr__table *table, struct tr_context *ctx);
/* The entries are the caller's. Zeroed memory is fine. */
void tr__table_fini(struct tr__table *table);
struct tr__entry *tr__table_find(const struct tr__table *table, const void *key, size_t key_size);
struct tr__entry *tr__table_find_hash(
    const struct tr__table *table, uint64_t hash, const void *key, size_t key_size);
/* The key is set in the entry and not in the table yet. Cannot fail: a table that cannot grow is
 * slower. */
void tr__table_add(struct tr__table *table, struct tr__entry *entry);
/* The same; the hash is set too. */
void tr__table_add_hash(struct tr__table *table, struct tr__entry *entry);
void tr__table_remove(struct tr__table *table, struct tr__entry *entry);

/* ---- a heap by time: the earliest on top ---------------------------------------------------- */

struct tr__node {
    uint64_t due_ns;
    uint32_t index;
};

struct tr__heap {
    struct tr__node **nodes;
    uint32_t count, capacity;
};

/* TR_ENOMEM. */
int tr__heap_add(struct tr__heap *heap, struct tr__node *node, uint64_t due_ns);
void tr__heap_move(struct tr__heap *heap, struct tr__node *node, uint64_t due_ns);
void tr__heap_remove(struct tr__heap *heap, struct tr__node *node);
void tr__heap_fini(struct tr__heap *heap);
static inline struct tr__node *tr__heap_first(const struct tr__heap *heap)
{
    return heap->count == 0 ? NULL : heap->nodes[0];
}

/* ---- small things --------------------------------------------------------------------------- */

static inline uint32_t tr__or(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static inline uint64_t tr__or64(uint64_t value, uint64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

/* Would an ask park the asking actor? A ready-made actor serves others, so it says full instead.
 * The look may be out of date when the ask comes; then it is parked once. */
static inline bool tr__is_full(tr_sender sender)
{
    return tr_sender_depth(sender) >= tr_sender_capacity(sender) && !tr_sender_is_closed(sender);
}

#endif
