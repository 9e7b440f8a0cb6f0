/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: the memory of cells and boxes.
 *
 * A worker's caches are its thread's; the depots and chunks are under memory_lock. A thread that is
 * no worker uses the caches of `foreign`, between tr__foreign_enter and tr__foreign_leave. */
#ifndef RUNTIME_MEMORY_H
#define RUNTIME_MEMORY_H

#include "runtime/box.h"
#include "runtime/worker.h"

enum { CELL_RESERVE = 16 };

/* A run of slots of one size class, aligned to its size. Never freed while the system lives. */
struct tr__chunk {
    struct tr__chunk *next;
    struct tr_system *system;
    uint32_t slot_size;
    uint32_t slot_count;
    _Atomic uint32_t slot_used; /* carved so far */
    uint32_t serial;            /* of the first slot */
    uint8_t class;
};

/* ---- cells ---------------------------------------------------------------------------------- */

void *tr__alloc_line(size_t size); /* on a cache line of its own */
void tr__free_line(void *memory);

struct tr__cell *tr__cell_refill(struct tr__worker *worker);
void tr__cell_spill(struct tr__worker *worker);
struct tr__cell *tr__cell_alloc_large(struct tr__worker *worker, size_t payload);
void tr__cell_free_large(struct tr__worker *worker, struct tr__cell *cell);

/* Return a cell with room for the payload, or NULL. Its fields are not set, except `class`. */
static inline struct tr__cell *tr__cell_alloc(struct tr__worker *worker, size_t payload)
{
    if (unlikely(payload > CELL_INLINE || TR_MALLOC_CELLS))
        return tr__cell_alloc_large(worker, payload);
    if (unlikely(worker->cell_count == 0))
        return tr__cell_refill(worker);
    return worker->cells[--worker->cell_count];
}

static inline void tr__cell_free(struct tr__worker *worker, struct tr__cell *cell)
{
    if (unlikely(cell->class != 0)) {
        tr__cell_free_large(worker, cell);
        return;
    }
    if (unlikely(worker->cell_count == CELL_CACHE_MAX))
        tr__cell_spill(worker);
    worker->cells[worker->cell_count++] = cell;
}

/* Free a cell from any thread. */
void tr__cell_release(struct tr_system *system, struct tr__cell *cell);

/* Fill the reserve: cells for what must not fail. */
int tr__reserve_fill(struct tr_system *system);
struct tr__cell *tr__reserve_take(struct tr_system *system); /* a plain cell, or NULL */

/* Lock the caches of the threads that are no workers. */
struct tr__worker *tr__foreign_enter(struct tr_system *system);
void tr__foreign_leave(struct tr_system *system);

/* The caches this thread may use: its worker's, or those of `foreign`, locked until
 * tr__cache_leave. */
static inline struct tr__worker *tr__cache_enter(struct tr_system *system)
{
    struct tr__worker *worker = tr__worker_of(system);

    return likely(worker != NULL) ? worker : tr__foreign_enter(system);
}

static inline void tr__cache_leave(struct tr__worker *cache)
{
    if (unlikely(cache != tr__self))
        tr__foreign_leave(cache->system);
}

/* ---- slots: the memory of boxes ------------------------------------------------------------- */

/* Return a free slot for a state of this size, or NULL. */
struct tr_box *tr__slot_alloc(struct tr__worker *worker, uint32_t state_size);
void tr__slot_free(struct tr__worker *worker, struct tr_box *box);
bool tr__slot_holds(const struct tr_box *box, uint32_t state_size);
/* Call visit for every slot that was ever used, until it returns false. */
void tr__slots_each(
    struct tr_system *system, bool (*visit)(void *data, struct tr_box *box), void *data);

uint64_t tr__box_id(const struct tr_box *box);
struct tr_box *tr__box_by_id(struct tr_system *system, uint64_t id);
/* When the actor was launched, as a number that grows: exact among the actors of one worker, and
 * among those of threads that are no workers. */
void tr__box_set_order(struct tr_box *box, uint64_t order);
uint64_t tr__box_order(const struct tr_box *box);

/* Free everything. No thread uses the system any more. */
void tr__memory_fini(struct tr_system *system);

#endif
