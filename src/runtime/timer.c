/* SPDX-License-Identifier: Apache-2.0 */
/* timer.c: hierarchical wheels of one millisecond, six levels of 64 slots: setting and stopping are
 * O(1), a timer moves down at most five times. Every worker has a wheel for the timers its actors
 * set; any worker may advance any wheel under its lock, so a busy worker's timers do not wait for
 * it.
 *
 * A timer of an actor is an entry in the actor's own table. It is LINKED in a wheel, or FIRED with
 * its cell on the way, or STOPPED with its cell on the way; firing pushes the cell under the
 * wheel's lock, so the thread that holds the lock knows which. Only the actor frees its entries. */
#include "runtime/timer.h"

#include "base/alloc.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"

static const uint64_t ms_ns = 1000000;
enum { TIMER_INDEX_BITS = 24 };

struct tr__wheel *tr__wheel_create(struct tr_system *system, uint64_t now_ms)
{
    struct tr__wheel *wheel = base_calloc(sizeof *wheel);

    if (wheel == NULL)
        return NULL;
    wheel->system = system;
    wheel->now_ms = now_ms;
    tr__set(wheel->next_ms, UINT64_MAX);
    for (uint32_t level = 0; level < WHEEL_LEVELS; level++)
        for (uint32_t slot = 0; slot < WHEEL_SLOTS; slot++)
            tr__list_init(&wheel->slots[level][slot]);
    return wheel;
}

void tr__wheel_destroy(struct tr__wheel *wheel)
{
    base_free(wheel);
}

/* Under the lock. */
static void link_timer(struct tr__wheel *wheel, struct tr__timer *timer)
{
    uint64_t expires = timer->expires_ms > wheel->now_ms ? timer->expires_ms : wheel->now_ms + 1;
    uint64_t distance = expires - wheel->now_ms;
    uint8_t level = 0;

    while (level + 1 < WHEEL_LEVELS && distance >= UINT64_C(1) << (6 * (level + 1)))
        level++;
    if (distance >= UINT64_C(1) << (6 * WHEEL_LEVELS)) /* two years: as far as the wheel goes */
        expires = wheel->now_ms + (UINT64_C(1) << (6 * WHEEL_LEVELS)) - 1;
    timer->level = level;
    timer->slot = (uint8_t)((expires >> (6 * level)) % WHEEL_SLOTS);
    tr__set(timer->state, TIMER_LINKED);
    tr__list_add(&wheel->slots[level][timer->slot], &timer->link);
    wheel->occupied[level] |= UINT64_C(1) << timer->slot;
}

static void unlink_timer(struct tr__wheel *wheel, struct tr__timer *timer)
{
    tr__list_remove(&timer->link);
    if (tr__list_is_empty(&wheel->slots[timer->level][timer->slot]))
        wheel->occupied[timer->level] &= ~(UINT64_C(1) << timer->slot);
}

/* When the wheel must be looked at next: the next slot of level 0 that is occupied, or the next
 * turn of a higher level that brings something down. Not later than the next expiry. */
static uint64_t next_look(const struct tr__wheel *wheel)
{
    uint64_t best = UINT64_MAX;

    for (uint32_t level = 0; level < WHEEL_LEVELS; level++) {
        uint64_t position, rotated, ahead, at;

        if (wheel->occupied[level] == 0)
            continue;
        position = wheel->now_ms >> (6 * level);
        /* Slots after the present one, in order; the present one comes last (a full turn away). */
        rotated = position % 64 == 63 ? wheel->occupied[level]
                                      : wheel->occupied[level] >> (position % 64 + 1) |
                                            wheel->occupied[level] << (63 - position % 64);
        ahead = (uint64_t)__builtin_ctzll(rotated) + 1;
        at = (position + ahead) << (6 * level);
        if (at < best)
            best = at;
    }
    return best;
}

/* The wheels' next_ms decides how long parked workers sleep: an earlier one wakes a sleeper. */
static void wake_for(struct tr_system *system, uint64_t expires_ms, uint64_t before_ms)
{
    if (expires_ms >= before_ms || system->sim != NULL)
        return;
    for (uint32_t i = 0; i < system->worker_count; i++)
        if (tr__get(system->workers[i]->sleeping) == SLEEP_PARKED) {
            tr__worker_wake(system->workers[i]);
            return;
        }
}

uint64_t tr__system_next_ms(struct tr_system *system)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t i = 0; i < system->worker_count; i++) {
        /* Sequentially consistent: a worker that parks looks after it published that it sleeps. */
        uint64_t at =
            atomic_load_explicit(&system->workers[i]->wheel->next_ms, memory_order_seq_cst);

        if (at < next)
            next = at;
    }
    return next;
}

void tr__timer_set(struct tr__wheel *wheel, struct tr__timer *timer, uint64_t expires_ns)
{
    struct tr_system *system = wheel->system;
    uint64_t next, before;

    timer->wheel = wheel;
    timer->expires_ms = expires_ns / ms_ns + (expires_ns % ms_ns != 0);
    tr__spin_lock(&wheel->lock);
    if (tr__get(wheel->count) == 0) {
        /* An empty wheel may stand still for long: bring it up to date. */
        uint64_t now_ms = tr__now(system) / ms_ns;

        if (now_ms > wheel->now_ms)
            wheel->now_ms = now_ms;
    }
    before = tr__get(wheel->next_ms);
    link_timer(wheel, timer);
    tr__add(wheel->count, 1);
    next = next_look(wheel);
    atomic_store_explicit(&wheel->next_ms, next, memory_order_seq_cst);
    tr__spin_unlock(&wheel->lock);
    if (next < before)
        wake_for(system, next, before);
}

bool tr__timer_cancel(struct tr__timer *timer)
{
    struct tr__wheel *wheel = timer->wheel;
    bool was_linked;

    if (wheel == NULL)
        return false;
    tr__spin_lock(&wheel->lock);
    was_linked = tr__get(timer->state) == TIMER_LINKED;
    if (was_linked) {
        unlink_timer(wheel, timer);
        tr__set(timer->state, TIMER_IDLE);
        tr__add(wheel->count, UINT64_MAX);
        if (tr__get(wheel->count) == 0)
            tr__set(wheel->next_ms, UINT64_MAX);
    }
    tr__spin_unlock(&wheel->lock);
    return was_linked;
}

/* Fire the due timers of a slot, and move the others down a level. */
static void run_slot(
    struct tr__wheel *wheel, uint32_t level, uint32_t slot, struct tr__worker *worker)
{
    struct tr__link *list = &wheel->slots[level][slot];
    struct tr__link due;

    if (tr__list_is_empty(list))
        return;
    due = *list;
    due.next->prev = &due;
    due.prev->next = &due;
    tr__list_init(list);
    wheel->occupied[level] &= ~(UINT64_C(1) << slot);
    while (!tr__list_is_empty(&due)) {
        struct tr__timer *timer = tr__container(due.next, struct tr__timer, link);

        tr__list_remove(&timer->link);
        if (timer->expires_ms <= wheel->now_ms) {
            tr__add(wheel->count, UINT64_MAX);
            tr__set(timer->state, TIMER_FIRED);
            timer->fire(timer, worker);
        } else {
            link_timer(wheel, timer);
        }
    }
}

void tr__wheel_advance(struct tr__wheel *wheel, uint64_t now_ns, struct tr__worker *worker)
{
    uint64_t now_ms = now_ns / ms_ns;

    tr__spin_lock(&wheel->lock);
    while (wheel->now_ms < now_ms) {
        uint64_t next = next_look(wheel);

        if (next > now_ms) {
            wheel->now_ms = now_ms;
            break;
        }
        wheel->now_ms = next;
        for (uint32_t level = WHEEL_LEVELS; level-- > 1;)
            if (next % (UINT64_C(1) << (6 * level)) == 0)
                run_slot(wheel, level, (uint32_t)(next >> (6 * level)) % WHEEL_SLOTS, worker);
        run_slot(wheel, 0, (uint32_t)next % WHEEL_SLOTS, worker);
    }
    atomic_store_explicit(&wheel->next_ms, next_look(wheel), memory_order_seq_cst);
    tr__spin_unlock(&wheel->lock);
}

/* ---- timers of actors ----------------------------------------------------------------------- */

static void on_actor_timer(struct tr__timer *timer, struct tr__worker *worker)
{
    struct tr__timer_entry *entry = tr__container(timer, struct tr__timer_entry, timer);
    struct tr__cell *cell = entry->cell;

    entry->cell = NULL;
    /* Gone, but not finished with its timers yet: it frees the entry when it has this lock. */
    if (tr__push_event(entry->box, cell) < 0)
        tr__cell_free(worker, cell);
}

static int table_grow(struct tr__ext *ext)
{
    struct tr__timer_entry **timers;

    if (ext->timer_capacity >= 1u << TIMER_INDEX_BITS)
        return TR_ELIMIT;
    timers = base_grow(ext->timers, &ext->timer_capacity, 4, sizeof *timers);
    if (timers == NULL)
        return TR_ENOMEM;
    /* New places are handed out in order: the free list is threaded through entries that exist, so
     * fresh ones come from the end of the used part. */
    ext->timers = timers;
    return 0;
}

static struct tr__cell *timer_cell(struct tr_box *box, uint64_t id, uint32_t tag)
{
    return tr__event_cell(box->system, CELL_TIMER, tag, id, NULL, 0);
}

static void entry_free(struct tr__ext *ext, struct tr__timer_entry *entry)
{
    tr__set(entry->timer.state, TIMER_IDLE);
    entry->next_free = ext->timer_free;
    ext->timer_free = entry->index;
}

int tr__actor_timer(struct tr__worker *worker, struct tr_box *box, uint64_t delay_ns,
    uint64_t period_ns, uint32_t tag, bool is_grace, uint64_t *ret_id)
{
    struct tr__ext *ext = tr__ext_get(box);
    struct tr__timer_entry *entry;
    uint32_t index;
    int rc;

    if (ext == NULL)
        return TR_ENOMEM;
    if (ext->timer_free != UINT32_MAX) {
        index = ext->timer_free;
        entry = ext->timers[index];
        ext->timer_free = entry->next_free;
    } else {
        index = ext->timer_used;
        if (index == ext->timer_capacity) {
            rc = table_grow(ext);
            if (rc < 0)
                return rc;
        }
        entry = base_calloc(sizeof *entry);
        if (entry == NULL)
            return TR_ENOMEM;
        entry->index = index;
        ext->timers[index] = entry;
        ext->timer_used++;
    }
    entry->generation++;
    entry->box = box;
    entry->tag = tag;
    entry->period_ns = period_ns;
    entry->is_grace = is_grace;
    entry->timer.fire = on_actor_timer;
    entry->due_ns = tr__later(tr__now(box->system), delay_ns);
    entry->cell = timer_cell(box, entry->generation << TIMER_INDEX_BITS | index, tag);
    if (entry->cell == NULL) {
        entry_free(ext, entry);
        return TR_ENOMEM;
    }
    if (is_grace || tr__get(box->status) & STATUS_URGENT)
        entry->cell->flags = TR_CONTROL; /* also for one that holds */
    if (ret_id != NULL)
        *ret_id = entry->generation << TIMER_INDEX_BITS | index;
    tr__timer_set(worker->wheel, &entry->timer, entry->due_ns);
    return 0;
}

static struct tr__timer_entry *timer_entry_of(struct tr__ext *ext, uint64_t id)
{
    uint32_t index = (uint32_t)id & ((1u << TIMER_INDEX_BITS) - 1);
    struct tr__timer_entry *entry;

    if (ext == NULL || index >= ext->timer_used)
        return NULL;
    entry = ext->timers[index];
    if (entry->generation != id >> TIMER_INDEX_BITS || tr__get(entry->timer.state) == TIMER_IDLE)
        return NULL;
    return entry;
}

bool tr__actor_timer_stop(struct tr_box *box, uint64_t id)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__timer_entry *entry = timer_entry_of(ext, id);

    if (entry == NULL || entry->stopped)
        return false;
    if (tr__timer_cancel(&entry->timer)) {
        tr__cell_free(tr__self, entry->cell);
        entry->cell = NULL;
        entry_free(ext, entry);
    } else {
        entry->stopped = true; /* its cell is on the way and will find this */
    }
    return true;
}

bool tr__actor_timer_take(
    struct tr__worker *worker, struct tr_box *box, uint64_t opt, struct tr_event *event)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__timer_entry *entry = timer_entry_of(ext, opt);
    uint64_t now;

    if (entry == NULL)
        return false;
    if (entry->stopped) {
        entry->stopped = false;
        entry_free(ext, entry);
        return false;
    }
    event->tag = entry->tag;
    event->id = opt;
    if (entry->is_grace)
        worker->ctx.after |= AFTER_GRACE_OVER;
    if (entry->period_ns == 0) {
        entry_free(ext, entry);
        return true;
    }
    now = tr__now(box->system);
    /* From when it was due, not from now: a period does not drift. Missed ones are skipped, the
     * beat stays. */
    entry->due_ns = tr__later(entry->due_ns, entry->period_ns);
    if (entry->due_ns <= now)
        entry->due_ns += ((now - entry->due_ns) / entry->period_ns + 1) * entry->period_ns;
    entry->cell = timer_cell(box, opt, entry->tag);
    if (entry->cell == NULL)
        entry_free(ext, entry); /* out of memory: the last tick of this timer */
    else
        tr__timer_set(worker->wheel, &entry->timer, entry->due_ns);
    return true;
}

/* The actor ends or restarts. Cells on the way find nothing: the generation has moved on. */
void tr__actor_timers_fini(struct tr_box *box, struct tr__ext *ext)
{
    bool gone = atomic_load_explicit(&box->word, memory_order_relaxed) & WORD_GONE;

    for (uint32_t i = 0; i < ext->timer_used; i++) {
        struct tr__timer_entry *entry = ext->timers[i];

        if (tr__get(entry->timer.state) != TIMER_IDLE && tr__timer_cancel(&entry->timer)) {
            tr__cell_free(tr__self, entry->cell);
            entry->cell = NULL;
        }
        if (gone) {
            base_free(entry);
            continue;
        }
        entry->stopped = false;
        entry->generation++;
    }
    if (gone)
        ext->timer_used = 0;
    ext->timer_free = UINT32_MAX;
    for (uint32_t i = ext->timer_used; i-- > 0;)
        entry_free(ext, ext->timers[i]);
}

int tr_after(struct tr_context *ctx, uint64_t delay_ns, uint32_t tag, uint64_t *ret_id)
{
    return tr__actor_timer(ctx->worker, ctx->box, delay_ns, 0, tag, false, ret_id);
}

int tr_every(struct tr_context *ctx, uint64_t period_ns, uint32_t tag, uint64_t *ret_id)
{
    if (period_ns == 0)
        return TR_EINVAL;
    return tr__actor_timer(ctx->worker, ctx->box, period_ns, period_ns, tag, false, ret_id);
}

bool tr_timer_stop(struct tr_context *ctx, uint64_t id)
{
    return tr__actor_timer_stop(ctx->box, id);
}
