/* SPDX-License-Identifier: Apache-2.0 */
/* push_queue.c: see push_queue.h.
 *
 *   ──want──▶ ready ──next──▶ running ──rest──▶ resting ──rested, wanted──▶ ready
 *                                                  └─────rested, not wanted──▶ removed
 *
 * 1. An item is in its bucket and, unless it is running, in one of the two lists.
 * 2. All items rest equally long, so the list of resting items is sorted by due_ns. */
#include "services/delivery/push/push_queue.h"

#include "base/alloc.h"
#include "base/assert.h"

enum { BUCKETS = 4096 };

static struct push_item **push_bucket(const struct push_queue *queue, struct span key)
{
    return &queue->buckets[base_siphash(queue->secret, key.at, key.size) % BUCKETS];
}

static void list_append(struct push_list *list, struct push_item *item)
{
    item->next = NULL;
    if (list->first == NULL)
        list->first = item;
    else
        list->last->next = item;
    list->last = item;
}

static void item_free(struct push_item *item)
{
    buffer_free(&item->value);
    base_free(item);
}

static void item_remove(struct push_queue *queue, struct push_item *item)
{
    struct push_item **link = push_bucket(queue, item->key);

    while (*link != item) {
        tr_assert(*link != NULL); /* an item is in its bucket */
        link = &(*link)->next_same;
    }
    *link = item->next_same;
    tr_assert(queue->count > 0);
    queue->count--;
    item_free(item);
}

int push_queue_init(struct push_queue *queue, uint32_t count_max, struct base_siphash_key secret)
{
    queue->count_max = count_max;
    queue->secret = secret;
    queue->buckets = base_calloc(BUCKETS * sizeof(struct push_item *));
    return queue->buckets == NULL ? TR_ENOMEM : 0;
}

void push_queue_fini(struct push_queue *queue)
{
    for (uint32_t i = 0; i < BUCKETS && queue->buckets != NULL; i++)
        for (struct push_item *item = queue->buckets[i], *next; item != NULL; item = next) {
            next = item->next_same;
            item_free(item);
        }
    base_free(queue->buckets);
    *queue = (struct push_queue){ .interval_ns = queue->interval_ns };
}

struct push_item *push_queue_find(const struct push_queue *queue, struct span key)
{
    struct push_item *item = *push_bucket(queue, key);

    while (item != NULL && !span_equal(item->key, key))
        item = item->next_same;
    return item;
}

static struct push_item *item_new(struct push_queue *queue, struct span key)
{
    struct push_item *item = base_calloc(sizeof *item + key.size);
    struct push_item **bucket = push_bucket(queue, key);

    if (item == NULL)
        return NULL;
    memcpy(item->text, key.at, key.size);
    item->key = (struct span){ item->text, key.size };
    item->next_same = *bucket;
    *bucket = item;
    queue->count++;
    list_append(&queue->ready, item);
    return item;
}

int push_queue_want(struct push_queue *queue, struct span key, struct span value)
{
    struct push_item *item = push_queue_find(queue, key);

    if (item == NULL && queue->count >= queue->count_max)
        return TR_EFULL;
    if (item == NULL)
        item = item_new(queue, key);
    if (item == NULL)
        return TR_ENOMEM;
    item->is_wanted = true;
    item->tries = 0;
    buffer_clear(&item->value);
    buffer_span(&item->value, value);
    return item->value.failed; /* then the value is empty, and the item runs all the same */
}

struct push_item *push_queue_next(struct push_queue *queue)
{
    struct push_item *item = queue->ready.first;

    if (item != NULL) {
        tr_assert(item->is_wanted);
        item->is_wanted = false;
        queue->ready.first = item->next;
    }
    return item;
}

void push_queue_rest(struct push_queue *queue, struct push_item *item, uint64_t now_ns)
{
    item->due_ns = now_ns + queue->interval_ns;
    tr_assert(queue->resting.first == NULL || queue->resting.last->due_ns <= item->due_ns);
    list_append(&queue->resting, item);
}

void push_queue_wake(struct push_queue *queue, uint64_t now_ns)
{
    while (queue->resting.first != NULL && queue->resting.first->due_ns <= now_ns) {
        struct push_item *item = queue->resting.first;

        queue->resting.first = item->next;
        if (item->is_wanted)
            list_append(&queue->ready, item);
        else
            item_remove(queue, item);
    }
}

uint64_t push_queue_due_ns(const struct push_queue *queue)
{
    return queue->resting.first == NULL ? 0 : queue->resting.first->due_ns;
}
