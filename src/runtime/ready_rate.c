/* SPDX-License-Identifier: Apache-2.0 */
/* ready_rate.c: token buckets.
 *
 * A bucket counts units: a token is period_ns of them, and every nanosecond brings `count`. So a
 * bucket holds burst × period_ns units when full, and neither taking nor filling ever divides. Only
 * figures for callers do: whole tokens are rounded down, waits are rounded up.
 *
 * The limiter keeps its buckets in a table by key and in a heap by the time each is full again. The
 * top of the heap is the one that has been full for longest (or will be full first): the one to
 * forget. */
#include <string.h>

#include <troupe/rate.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/list.h"
#include "runtime/ready.h"
#include "runtime/system.h"

enum { KEYS_DEFAULT = 65536 };

/* ---- buckets -------------------------------------------------------------------------------- */

bool tr_rate_is_valid(const struct tr_rate *rate)
{
    return rate->count != 0 && rate->count <= TR_RATE_MAX && rate->period_ns != 0 &&
           rate->burst != 0 && rate->burst <= TR_RATE_MAX / rate->period_ns;
}

static uint64_t units_max(const struct tr_rate *rate)
{
    return rate->burst * rate->period_ns;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static struct tr_bucket limiter_filled(
    const struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns)
{
    struct tr_bucket now = *bucket;
    uint64_t room = units_max(rate) - bucket->units;

    if (now_ns <= bucket->at_ns)
        return now;
    now.at_ns = now_ns;
    if (now_ns - bucket->at_ns > room / rate->count)
        now.units += room;
    else
        now.units += (now_ns - bucket->at_ns) * rate->count;
    return now;
}

void tr_bucket_init(struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns)
{
    tr_assert_use(tr_rate_is_valid(rate), "a bucket needs a valid rate");
    *bucket = (struct tr_bucket){ .units = units_max(rate), .at_ns = now_ns };
}

int tr_bucket_take(struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns,
    uint64_t tokens, uint64_t *ret_retry_ns)
{
    uint64_t units;

    if (tokens > rate->burst)
        return TR_EINVAL;
    units = tokens * rate->period_ns;
    *bucket = limiter_filled(bucket, rate, now_ns);
    if (bucket->units < units) {
        /* From now, even if the bucket is ahead of a clock that went back. */
        if (ret_retry_ns != NULL)
            *ret_retry_ns = tr__later(bucket->at_ns > now_ns ? bucket->at_ns - now_ns : 0,
                divide_up(units - bucket->units, rate->count));
        return TR_ERATE;
    }
    bucket->units -= units;
    if (ret_retry_ns != NULL)
        *ret_retry_ns = 0;
    return 0;
}

uint64_t tr_bucket_left(const struct tr_bucket *bucket, const struct tr_rate *rate, uint64_t now_ns)
{
    return limiter_filled(bucket, rate, now_ns).units / rate->period_ns;
}

uint64_t tr_bucket_full_ns(const struct tr_bucket *bucket, const struct tr_rate *rate)
{
    return tr__later(bucket->at_ns, divide_up(units_max(rate) - bucket->units, rate->count));
}

/* ---- the limiter ---------------------------------------------------------------------------- */

enum { KIND_TAKE = READY_STATS + 1 };

struct limited {
    struct tr__entry entry;
    struct tr__node node; /* due when it is full */
    struct tr_bucket bucket;
    unsigned char key[];
};

struct tr__limiter {
    struct tr__table table;
    struct tr__heap heap;
    struct tr_limiter_stats stats;
};

static void limiter_forget(struct tr__limiter *inner, struct limited *limited)
{
    tr__table_remove(&inner->table, &limited->entry);
    tr__heap_remove(&inner->heap, &limited->node);
    base_free(limited);
}

static struct limited *first_full(const struct tr__limiter *inner)
{
    struct tr__node *node = tr__heap_first(&inner->heap);

    return node == NULL ? NULL : tr__container(node, struct limited, node);
}

static int limiter_add(struct tr__limiter *inner, const struct tr__ready_message *m,
    const struct tr_rate *rate, uint64_t now_ns, struct limited **ret_limited)
{
    struct limited *limited = base_alloc(sizeof *limited + m->key_size);

    if (limited == NULL)
        return TR_ENOMEM;
    *limited = (struct limited){ .entry = { .key = limited->key, .key_size = m->key_size } };
    if (m->key_size > 0)
        memcpy(limited->key, tr__ready_key(m), m->key_size);
    tr_bucket_init(&limited->bucket, rate, now_ns);
    if (tr__heap_add(&inner->heap, &limited->node, now_ns) < 0) {
        base_free(limited);
        return TR_ENOMEM;
    }
    tr__table_add(&inner->table, &limited->entry);
    *ret_limited = limited;
    return 0;
}

/* The bucket of the message's key, made if need be. TR_EFULL: *ret_retry_ns is when there will be
 * room. */
static int limiter_find(struct tr_limiter *self, const struct tr__ready_message *m, uint64_t now_ns,
    struct limited **ret_limited, uint64_t *ret_retry_ns)
{
    struct tr__limiter *inner = self->inner;
    struct tr__entry *entry = tr__table_find(&inner->table, tr__ready_key(m), m->key_size);
    struct limited *oldest;

    if (entry != NULL) {
        *ret_limited = tr__container(entry, struct limited, entry);
        return 0;
    }
    if (inner->table.count >= tr__or(self->options.keys_max, KEYS_DEFAULT)) {
        oldest = first_full(inner);
        tr_assert(oldest != NULL);
        if (oldest->node.due_ns > now_ns && !self->options.forget_busy) {
            *ret_retry_ns = oldest->node.due_ns - now_ns;
            return TR_EFULL;
        }
        limiter_forget(inner, oldest);
        inner->stats.forgotten++;
    }
    return limiter_add(inner, m, &self->options.rate, now_ns, ret_limited);
}

static void handle_take(
    struct tr_limiter *self, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct tr__limiter *inner = self->inner;
    const struct tr_rate *rate = &self->options.rate;
    struct tr_limit limit = { 0 };
    struct limited *limited;
    uint64_t now_ns = tr_now_ns(ctx);
    int rc;

    rc = limiter_find(self, m, now_ns, &limited, &limit.retry_ns);
    if (rc == 0) {
        rc = tr_bucket_take(&limited->bucket, rate, now_ns, m->number, &limit.retry_ns);
        tr__heap_move(&inner->heap, &limited->node, tr_bucket_full_ns(&limited->bucket, rate));
        limit.left = tr_bucket_left(&limited->bucket, rate, now_ns);
    }
    inner->stats.allowed += rc == 0;
    inner->stats.refused += rc == TR_ERATE;
    inner->stats.full += rc == TR_EFULL;
    tr_reply(ctx, rc, &limit, sizeof limit);
}

static enum tr_next limiter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr_limiter *self = state;
    struct tr__ready_message *m = message;

    if (m->kind == READY_STATS) {
        self->inner->stats.keys = self->inner->table.count;
        tr_reply(ctx, 0, &self->inner->stats, sizeof self->inner->stats);
    } else {
        handle_take(self, ctx, m);
    }
    tr__ready_release(m);
    return TR_GO;
}

static void limiter_finish(void *state)
{
    struct tr_limiter *self = state;
    struct tr__limiter *inner = self->inner;

    if (inner == NULL)
        return;
    while (inner->heap.count > 0)
        limiter_forget(inner, first_full(inner));
    tr__heap_fini(&inner->heap);
    tr__table_fini(&inner->table);
    base_free(inner);
    self->inner = NULL;
}

static int limiter_start(void *state, struct tr_context *ctx)
{
    struct tr_limiter *self = state;
    int rc;

    if (!tr_rate_is_valid(&self->options.rate))
        return TR_EINVAL;
    self->inner = base_calloc(sizeof *self->inner);
    if (self->inner == NULL)
        return TR_ENOMEM;
    rc = tr__table_init(&self->inner->table, ctx);
    if (rc < 0)
        limiter_finish(self);
    return rc;
}

static int limiter_reset(void *state, enum tr_why why)
{
    (void)why;
    limiter_finish(state);
    return 0;
}

static const char *limiter_message_name(const void *message)
{
    const struct tr__ready_message *m = message;

    return m->kind == READY_STATS ? "stats" : "take";
}

const struct tr_type tr_limiter_type = {
    .name = "limiter",
    .message_size = sizeof(struct tr__ready_message),
    .state_size = sizeof(struct tr_limiter),
    .start = limiter_start,
    .handle = limiter_handle,
    .finish = limiter_finish,
    .reset = limiter_reset,
    .message_drop = tr__ready_release,
    .message_name = limiter_message_name,
};

int tr_limiter_spawn(struct tr_system *system, const struct tr_limiter_options *options,
    const struct tr_spawn_options *spawn, tr_limiter_sender *ret_sender)
{
    struct tr_limiter self = { .options = *options };

    if (!tr_rate_is_valid(&options->rate))
        return TR_EINVAL;
    return tr_spawn(system, &tr_limiter_type, &self, spawn, &ret_sender->raw);
}

/* ---- its face ------------------------------------------------------------------------------- */

int tr_limiter_ask(struct tr_context *ctx, tr_limiter_sender limiter, const void *key,
    size_t key_size, uint32_t tokens, const struct tr_ask_options *options)
{
    struct tr__ready_message m = { .kind = KIND_TAKE, .number = tokens };
    int rc = tr__ready_fill(&m, (struct tr__bytes){ key, key_size }, (struct tr__bytes){ 0 });

    return rc < 0 ? rc : tr__ready_ask(ctx, limiter.raw, &m, options);
}

int tr_limiter_wait(tr_limiter_sender limiter, const void *key, size_t key_size, uint32_t tokens,
    struct tr_limit *ret_limit, uint64_t timeout_ns)
{
    struct tr__ready_message m = { .kind = KIND_TAKE, .number = tokens };
    int rc = tr__ready_fill(&m, (struct tr__bytes){ key, key_size }, (struct tr__bytes){ 0 });

    return rc < 0 ? rc
                  : tr__ready_wait(limiter.raw, &m, ret_limit,
                        ret_limit == NULL ? 0 : sizeof *ret_limit, NULL, timeout_ns);
}
