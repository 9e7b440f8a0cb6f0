/* SPDX-License-Identifier: Apache-2.0 */
/* ready_cache.c: values by key, each with its own lifetime.
 *
 * An entry is in a table by key, in a list by last use and, if it expires, in a heap by expiry. One
 * timer is set for the top of the heap. It may fire too early (its entry is gone) and is then set
 * again, but never too late; a get looks at the clock itself, so its answer does not depend on the
 * timer.
 *
 * Stamps: removals are counted in a fixed number of counters, by hash of the key. A stamp is the
 * counter of the key as it was when the get found nothing. Keys that share a counter make a put be
 * ignored for nothing, which costs a later miss; a stale value never comes in. */
#include <string.h>

#include <troupe/actor.h>
#include <troupe/cache.h>
#include <troupe/event.h>

#include "base/alloc.h"
#include "base/siphash.h"
#include "runtime/list.h"
#include "runtime/ready.h"
#include "runtime/system.h"
#include "runtime/worker.h"

enum { ENTRIES_DEFAULT = 65536, BYTES_DEFAULT = 64 << 20, STAMPS = 256 };

enum { KIND_GET = READY_STATS + 1, KIND_PUT, KIND_REMOVE, KIND_CLEAR };

struct cached {
    struct tr__entry entry;
    struct tr__link used; /* oldest first */
    struct tr__node node;
    bool expires;
    uint32_t value_size;
    unsigned char bytes[]; /* key and value */
};

struct tr__cache {
    struct tr__table table;
    struct tr__heap heap;
    struct tr__link used;
    uint64_t timer_id;
    uint64_t timer_due_ns; /* 0: not set */
    uint64_t stamps[STAMPS];
    struct tr_cache_stats stats;
};

/* A put as a message: the ttl is its number, and the stamp stands before the value. */
struct put_head {
    uint64_t stamp;
};

static uint64_t *stamp_of(struct tr__cache *inner, const void *key, size_t key_size)
{
    return &inner->stamps[base_siphash(inner->table.hash_key, key, key_size) >> 32 & (STAMPS - 1)];
}

static uint64_t size_of(const struct cached *cached)
{
    return cached->entry.key_size + cached->value_size;
}

static void cache_drop(struct tr__cache *inner, struct cached *cached)
{
    tr__table_remove(&inner->table, &cached->entry);
    tr__list_remove(&cached->used);
    if (cached->expires)
        tr__heap_remove(&inner->heap, &cached->node);
    inner->stats.bytes -= size_of(cached);
    base_free(cached);
}

static struct cached *cache_find(struct tr__cache *inner, const struct tr__ready_message *m)
{
    struct tr__entry *entry = tr__table_find(&inner->table, tr__ready_key(m), m->key_size);

    return entry == NULL ? NULL : tr__container(entry, struct cached, entry);
}

/* ---- time ----------------------------------------------------------------------------------- */

static bool cache_is_over(const struct cached *cached, uint64_t now_ns)
{
    return cached->expires && cached->node.due_ns <= now_ns;
}

static void cache_expire(struct tr__cache *inner, uint64_t now_ns)
{
    struct tr__node *node;

    while ((node = tr__heap_first(&inner->heap)) != NULL && node->due_ns <= now_ns) {
        cache_drop(inner, tr__container(node, struct cached, node));
        inner->stats.expired++;
    }
}

/* One timer, not later than the first entry's end. */
static void cache_arm(struct tr__cache *inner, struct tr_context *ctx)
{
    const struct tr__node *first = tr__heap_first(&inner->heap);
    uint64_t now_ns = tr_now_ns(ctx);

    if (first == NULL || (inner->timer_due_ns != 0 && inner->timer_due_ns <= first->due_ns))
        return;
    if (inner->timer_due_ns != 0)
        tr_timer_stop(ctx, inner->timer_id);
    inner->timer_due_ns = first->due_ns;
    /* Out of memory: no timer. Gets still see the time, and the next put tries again. */
    if (tr_after(ctx, first->due_ns > now_ns ? first->due_ns - now_ns : 0, 0, &inner->timer_id) < 0)
        inner->timer_due_ns = 0;
}

static enum tr_next cache_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct tr_cache *self = state;

    if (event->kind == TR_EVENT_TIMER) {
        self->inner->timer_due_ns = 0;
        cache_expire(self->inner, tr_now_ns(ctx));
        cache_arm(self->inner, ctx);
    }
    return TR_GO;
}

/* ---- messages ------------------------------------------------------------------------------- */

static void handle_get(
    struct tr__cache *inner, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct cached *cached = cache_find(inner, m);
    uint64_t stamp;

    if (cached != NULL && cache_is_over(cached, tr_now_ns(ctx))) {
        cache_drop(inner, cached);
        inner->stats.expired++;
        cached = NULL;
    }
    if (cached == NULL) {
        inner->stats.misses++;
        stamp = *stamp_of(inner, tr__ready_key(m), m->key_size) + 1;
        tr_reply(ctx, TR_ENOENT, &stamp, sizeof stamp);
        return;
    }
    inner->stats.hits++;
    tr__list_remove(&cached->used);
    tr__list_add(&inner->used, &cached->used);
    tr_reply(ctx, 0, cached->bytes + cached->entry.key_size, cached->value_size);
}

/* Out of the table, the least recently used first, until so much more fits. */
static void cache_make_room(struct tr_cache *self, uint64_t bytes)
{
    struct tr__cache *inner = self->inner;
    uint64_t bytes_max = tr__or64(self->options.bytes_max, BYTES_DEFAULT);
    uint32_t entries_max = tr__or(self->options.entries_max, ENTRIES_DEFAULT);

    while (inner->table.count >= entries_max || inner->stats.bytes + bytes > bytes_max) {
        cache_drop(inner, tr__container(inner->used.next, struct cached, used));
        inner->stats.evicted++;
    }
}

static int handle_put(
    struct tr_cache *self, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct tr__cache *inner = self->inner;
    const unsigned char *key = tr__ready_key(m), *value = tr__ready_value(m);
    uint32_t value_size = m->value_size - (uint32_t)sizeof(struct put_head);
    uint64_t ttl_ns = tr__or64(m->number, self->options.ttl_ns), now_ns = tr_now_ns(ctx);
    struct put_head head;
    struct cached *cached, *old;

    memcpy(&head, value, sizeof head);
    value += sizeof head;
    if (head.stamp != 0 && head.stamp != *stamp_of(inner, key, m->key_size) + 1)
        return TR_EAGAIN;
    if (m->key_size + value_size > tr__or64(self->options.bytes_max, BYTES_DEFAULT))
        return TR_ETOOBIG;
    cached = base_alloc(sizeof *cached + m->key_size + value_size);
    if (cached == NULL)
        return TR_ENOMEM;
    *cached = (struct cached){ .entry = { .key = cached->bytes, .key_size = m->key_size },
        .value_size = value_size,
        .expires = ttl_ns != 0 };
    memcpy(cached->bytes, key, m->key_size);
    memcpy(cached->bytes + m->key_size, value, value_size);
    if (cached->expires && tr__heap_add(&inner->heap, &cached->node,
                               ttl_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + ttl_ns) < 0) {
        base_free(cached);
        return TR_ENOMEM;
    }
    old = cache_find(inner, m);
    if (old != NULL)
        cache_drop(inner, old);
    cache_expire(inner, now_ns);
    cache_make_room(self, size_of(cached));
    tr__table_add(&inner->table, &cached->entry);
    tr__list_add(&inner->used, &cached->used);
    inner->stats.bytes += size_of(cached);
    cache_arm(inner, ctx);
    return 0;
}

static void handle_remove(struct tr__cache *inner, const struct tr__ready_message *m)
{
    struct cached *cached = cache_find(inner, m);

    ++*stamp_of(inner, tr__ready_key(m), m->key_size);
    if (cached != NULL) {
        cache_drop(inner, cached);
        inner->stats.removed++;
    }
}

static void cache_handle_clear(struct tr__cache *inner)
{
    for (uint32_t i = 0; i < STAMPS; i++)
        inner->stamps[i]++;
    while (!tr__list_is_empty(&inner->used)) {
        cache_drop(inner, tr__container(inner->used.next, struct cached, used));
        inner->stats.removed++;
    }
}

static enum tr_next cache_handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr_cache *self = state;
    struct tr__cache *inner = self->inner;
    struct tr__ready_message *m = message;

    switch (m->kind) {
    case KIND_GET:
        handle_get(inner, ctx, m);
        break;
    case KIND_PUT:
        if (handle_put(self, ctx, m) < 0)
            inner->stats.refused++;
        else
            inner->stats.puts++;
        break;
    case KIND_REMOVE:
        handle_remove(inner, m);
        break;
    case KIND_CLEAR:
        cache_handle_clear(inner);
        break;
    case READY_STATS:
        inner->stats.entries = inner->table.count;
        tr_reply(ctx, 0, &inner->stats, sizeof inner->stats);
        break;
    }
    tr__ready_release(m);
    return TR_GO;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void cache_finish(void *state)
{
    struct tr_cache *self = state;
    struct tr__cache *inner = self->inner;

    if (inner == NULL)
        return;
    cache_handle_clear(inner);
    tr__heap_fini(&inner->heap);
    tr__table_fini(&inner->table);
    base_free(inner);
    self->inner = NULL;
}

static int cache_start(void *state, struct tr_context *ctx)
{
    struct tr_cache *self = state;
    int rc;

    self->inner = base_calloc(sizeof *self->inner);
    if (self->inner == NULL)
        return TR_ENOMEM;
    tr__list_init(&self->inner->used);
    /* Not from zero: a stamp of a life before must not fit. */
    for (uint32_t i = 0; i < STAMPS; i++)
        self->inner->stamps[i] = tr_random(ctx) >> 1;
    rc = tr__table_init(&self->inner->table, ctx);
    if (rc < 0)
        cache_finish(self);
    return rc;
}

static int cache_reset(void *state, enum tr_why why)
{
    (void)why;
    cache_finish(state);
    return 0;
}

static const char *cache_message_name(const void *message)
{
    static const char *const names[] = { "stats", "get", "put", "remove", "clear" };

    return names[((const struct tr__ready_message *)message)->kind];
}

const struct tr_type tr_cache_type = {
    .name = "cache",
    .message_size = sizeof(struct tr__ready_message),
    .state_size = sizeof(struct tr_cache),
    .start = cache_start,
    .handle = cache_handle,
    .event = cache_on_event,
    .finish = cache_finish,
    .reset = cache_reset,
    .message_drop = tr__ready_release,
    .message_name = cache_message_name,
};

int tr_cache_spawn(struct tr_system *system, const struct tr_cache_options *options,
    const struct tr_spawn_options *spawn, tr_cache_sender *ret_sender)
{
    struct tr_cache self = { .options =
                                 options == NULL ? (struct tr_cache_options){ 0 } : *options };

    return tr_spawn(system, &tr_cache_type, &self, spawn, &ret_sender->raw);
}

/* ---- its face ------------------------------------------------------------------------------- */

static int cache_key_message(
    uint32_t kind, const void *key, size_t key_size, struct tr__ready_message *ret_message)
{
    *ret_message = (struct tr__ready_message){ .kind = kind };
    return tr__ready_fill(
        ret_message, (struct tr__bytes){ key, key_size }, (struct tr__bytes){ 0 });
}

int tr_cache_get(struct tr_context *ctx, tr_cache_sender cache, const void *key, size_t key_size,
    const struct tr_ask_options *options)
{
    struct tr__ready_message m;
    int rc = cache_key_message(KIND_GET, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_ask(ctx, cache.raw, &m, options);
}

int tr_cache_get_wait(tr_cache_sender cache, const void *key, size_t key_size, void *value,
    size_t value_size, size_t *ret_size, uint64_t timeout_ns)
{
    struct tr__ready_message m;
    int rc = cache_key_message(KIND_GET, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_wait(cache.raw, &m, value, value_size, ret_size, timeout_ns);
}

int tr_cache_put(tr_cache_sender cache, const struct tr_cache_entry *put)
{
    struct tr__ready_message m = { .kind = KIND_PUT, .number = put->ttl_ns };
    struct put_head head = { .stamp = put->stamp };
    int rc;

    rc = tr__ready_fill_parts(&m, (struct tr__bytes){ put->key, put->key_size },
        (struct tr__bytes){ &head, sizeof head },
        (struct tr__bytes){ put->value, put->value_size });
    return rc < 0 ? rc : tr__ready_tell(cache.raw, &m, TR_INTERACTIVE);
}

int tr_cache_remove(tr_cache_sender cache, const void *key, size_t key_size)
{
    struct tr__ready_message m;
    int rc = cache_key_message(KIND_REMOVE, key, key_size, &m);

    return rc < 0 ? rc : tr__ready_tell(cache.raw, &m, TR_INTERACTIVE);
}

int tr_cache_clear(tr_cache_sender cache)
{
    struct tr__ready_message m = { .kind = KIND_CLEAR };

    return tr__ready_tell(cache.raw, &m, TR_INTERACTIVE);
}
