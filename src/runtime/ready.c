/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/ready.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/worker.h"

/* ---- the message ---------------------------------------------------------------------------- */

static bool is_inline(const struct tr__ready_message *message)
{
    return (size_t)message->key_size + message->value_size <= READY_INLINE;
}

static void *block_of(const struct tr__ready_message *message)
{
    void *block;

    memcpy(&block, message->bytes, sizeof block);
    return block;
}

static unsigned char *ready_append(unsigned char *to, struct tr__bytes bytes)
{
    if (bytes.size > 0)
        memcpy(to, bytes.bytes, bytes.size);
    return to + bytes.size;
}

int tr__ready_fill_parts(struct tr__ready_message *message, struct tr__bytes key,
    struct tr__bytes head, struct tr__bytes value)
{
    unsigned char *to = message->bytes;

    if (key.size > TR_KEY_SIZE_MAX || value.size > TR_VALUE_SIZE_MAX)
        return TR_ETOOBIG;
    message->key_size = (uint32_t)key.size;
    message->value_size = (uint32_t)(head.size + value.size);
    if (!is_inline(message)) {
        to = base_alloc(key.size + head.size + value.size);
        if (to == NULL)
            return TR_ENOMEM;
        memcpy(message->bytes, &to, sizeof to);
    }
    ready_append(ready_append(ready_append(to, key), head), value);
    return 0;
}

int tr__ready_fill(struct tr__ready_message *message, struct tr__bytes key, struct tr__bytes value)
{
    return tr__ready_fill_parts(message, key, (struct tr__bytes){ 0 }, value);
}

const unsigned char *tr__ready_key(const struct tr__ready_message *message)
{
    return is_inline(message) ? message->bytes : block_of(message);
}

const unsigned char *tr__ready_value(const struct tr__ready_message *message)
{
    return tr__ready_key(message) + message->key_size;
}

void tr__ready_release(void *message)
{
    struct tr__ready_message *m = message;

    if (!is_inline(m))
        base_free(block_of(m));
    m->key_size = m->value_size = 0;
}

int tr__ready_tell(tr_sender to, struct tr__ready_message *message, enum tr_lane lane)
{
    struct tr__worker *worker = tr__self;
    uint64_t deadline_ns = 0;
    int rc;

    if (worker != NULL) {
        deadline_ns = worker->ctx.deadline_ns;
        worker->ctx.deadline_ns = 0;
    }
    rc = tr_tell_with(to, message, sizeof *message, &(struct tr_send_options){ .lane = lane });
    if (worker != NULL)
        worker->ctx.deadline_ns = deadline_ns;
    if (rc < 0)
        tr__ready_release(message);
    return rc;
}

int tr__ready_ask(struct tr_context *ctx, tr_sender to, struct tr__ready_message *message,
    const struct tr_ask_options *options)
{
    int rc = tr_ask(ctx, to, message, sizeof *message, options);

    if (rc < 0)
        tr__ready_release(message);
    return rc;
}

int tr__ready_wait(tr_sender to, struct tr__ready_message *message, void *value, size_t value_size,
    size_t *ret_size, uint64_t timeout_ns)
{
    struct tr_future *future;
    int rc = tr_ask_future(to, message, sizeof *message, timeout_ns, &future);

    if (rc < 0) {
        tr__ready_release(message);
        return rc;
    }
    rc = tr_future_wait(future, value, value_size, ret_size, 0);
    tr_future_drop(&future);
    return rc;
}

int tr_ready_stats_ask(struct tr_context *ctx, tr_sender to, const struct tr_ask_options *options)
{
    return tr__ready_ask(ctx, to, &(struct tr__ready_message){ .kind = READY_STATS }, options);
}

int tr_ready_stats_wait(tr_sender to, void *ret_stats, size_t size, uint64_t timeout_ns)
{
    return tr__ready_wait(
        to, &(struct tr__ready_message){ .kind = READY_STATS }, ret_stats, size, NULL, timeout_ns);
}

/* ---- the table ------------------------------------------------------------------------------ */

enum { BUCKETS_FIRST = 64 };

int tr__table_init(struct tr__table *table, struct tr_context *ctx)
{
    *table = (struct tr__table){ .bucket_count = BUCKETS_FIRST };
    table->hash_key.k0 = ctx != NULL ? tr_random(ctx) : 0;
    table->hash_key.k1 = ctx != NULL ? tr_random(ctx) : 0;
    table->buckets = base_calloc(BUCKETS_FIRST * sizeof(struct tr__entry *));
    return table->buckets == NULL ? TR_ENOMEM : 0;
}

void tr__table_fini(struct tr__table *table)
{
    base_free(table->buckets);
    *table = (struct tr__table){ 0 };
}

/* By the high bits: a registry has used the low ones. */
static struct tr__entry **ready_bucket_of(const struct tr__table *table, uint64_t hash)
{
    return &table->buckets[hash >> 32 & (table->bucket_count - 1)];
}

struct tr__entry *tr__table_find(const struct tr__table *table, const void *key, size_t key_size)
{
    return tr__table_find_hash(table, base_siphash(table->hash_key, key, key_size), key, key_size);
}

struct tr__entry *tr__table_find_hash(
    const struct tr__table *table, uint64_t hash, const void *key, size_t key_size)
{
    struct tr__entry *entry = *ready_bucket_of(table, hash);

    while (entry != NULL && !(entry->hash == hash && entry->key_size == key_size &&
                                (key_size == 0 || memcmp(entry->key, key, key_size) == 0)))
        entry = entry->next;
    return entry;
}

static void ready_grow(struct tr__table *table)
{
    struct tr__table bigger = *table;

    bigger.bucket_count *= 2;
    bigger.buckets = base_calloc(bigger.bucket_count * sizeof(struct tr__entry *));
    if (bigger.buckets == NULL)
        return;
    for (uint32_t i = 0; i < table->bucket_count; i++)
        for (struct tr__entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            struct tr__entry **to = ready_bucket_of(&bigger, entry->hash);

            next = entry->next;
            entry->next = *to;
            *to = entry;
        }
    base_free(table->buckets);
    *table = bigger;
}

void tr__table_add(struct tr__table *table, struct tr__entry *entry)
{
    entry->hash = base_siphash(table->hash_key, entry->key, entry->key_size);
    tr__table_add_hash(table, entry);
}

void tr__table_add_hash(struct tr__table *table, struct tr__entry *entry)
{
    struct tr__entry **to;

    if (table->count >= table->bucket_count && table->bucket_count < 1u << 30)
        ready_grow(table);
    to = ready_bucket_of(table, entry->hash);
    entry->next = *to;
    *to = entry;
    table->count++;
}

void tr__table_remove(struct tr__table *table, struct tr__entry *entry)
{
    struct tr__entry **at = ready_bucket_of(table, entry->hash);

    while (*at != entry) {
        tr_assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = entry->next;
    table->count--;
}

/* ---- the heap ------------------------------------------------------------------------------- */

static void ready_put(struct tr__heap *heap, uint32_t index, struct tr__node *node)
{
    heap->nodes[index] = node;
    node->index = index;
}

static void ready_sift(struct tr__heap *heap, struct tr__node *node)
{
    uint32_t index = node->index;

    while (index > 0 && heap->nodes[(index - 1) / 2]->due_ns > node->due_ns) {
        ready_put(heap, index, heap->nodes[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * index + 1;

        if (child + 1 < heap->count && heap->nodes[child + 1]->due_ns < heap->nodes[child]->due_ns)
            child++;
        if (child >= heap->count || heap->nodes[child]->due_ns >= node->due_ns)
            break;
        ready_put(heap, index, heap->nodes[child]);
        index = child;
    }
    ready_put(heap, index, node);
}

int tr__heap_add(struct tr__heap *heap, struct tr__node *node, uint64_t due_ns)
{
    if (heap->count == heap->capacity) {
        struct tr__node **nodes = base_grow(heap->nodes, &heap->capacity, 64, sizeof *nodes);

        if (nodes == NULL)
            return TR_ENOMEM;
        heap->nodes = nodes;
    }
    node->due_ns = due_ns;
    ready_put(heap, heap->count++, node);
    ready_sift(heap, node);
    return 0;
}

void tr__heap_move(struct tr__heap *heap, struct tr__node *node, uint64_t due_ns)
{
    node->due_ns = due_ns;
    ready_sift(heap, node);
}

void tr__heap_remove(struct tr__heap *heap, struct tr__node *node)
{
    struct tr__node *last = heap->nodes[--heap->count];

    tr_assert(heap->nodes[node->index] == node || last == node);
    if (last == node)
        return;
    ready_put(heap, node->index, last);
    ready_sift(heap, last);
}

void tr__heap_fini(struct tr__heap *heap)
{
    base_free(heap->nodes);
    *heap = (struct tr__heap){ 0 };
}
