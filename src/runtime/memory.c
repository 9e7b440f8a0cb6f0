/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: memory of messages and actors.
 *
 * Cells are one cache line each. A worker keeps a last-in-first-out list of free ones, so that the
 * next message reuses the line the last one left hot; lists that grow too long give magazines of 64
 * to a depot, empty ones take a magazine from it or carve a new one. Fresh memory costs several
 * times what a message does, so nothing is ever given back while the system lives.
 *
 * Boxes come from chunks that are aligned to their size, by size class. They are type-stable: a
 * slot is reused as a box only, so a weak sender can look at the generation of a box that has
 * ended.
 *
 * With TR_MALLOC_CELLS every cell is an allocation of its own, so that the sanitizers see its life.
 */
#include "runtime/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/system.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define poison(memory, size) ASAN_POISON_MEMORY_REGION(memory, size)
#define unpoison(memory, size) ASAN_UNPOISON_MEMORY_REGION(memory, size)
#else
#define poison(memory, size) ((void)0)
#define unpoison(memory, size) ((void)0)
#endif

enum {
    CHUNK_BYTES = 2 << 20,
    CHUNK_HEADER = 64,
    CHUNK_ORDERS = CHUNK_BYTES / 128 * 8, /* at its end: when each slot's actor began */
    CARVE_FIRST = 64 << 10,
    CARVE_BYTES = 2 << 20,
    SLOT_BATCH = 16,
    SLOT_CACHE_MAX = 512,
};

_Static_assert(sizeof(struct tr__chunk) <= CHUNK_HEADER, "the chunk's header has a line");

static const uint32_t slot_sizes[SLOT_CLASSES] = { 128, 192, 256, 384, 512, 768, 1024, 2048 };

struct tr__page_list {
    struct tr__page_list *next;
    void *pages;
    size_t size;
};

/* ---- cells ---------------------------------------------------------------------------------- */

void *tr__alloc_line(size_t size)
{
    if (base_fault_hit())
        return NULL;
    return aligned_alloc(64, (size + 63) & ~(size_t)63);
}

void tr__free_line(void *memory)
{
    free(memory);
}

static struct tr__cell **next_magazine(struct tr__cell *magazine)
{
    return (struct tr__cell **)(void *)magazine->payload;
}

/* A run of fresh lines, under memory_lock. */
static unsigned char *memory_carve(struct tr_system *system, size_t size)
{
    if ((size_t)(system->carve_end - system->carve_at) < size) {
        size_t bytes = system->pages == NULL ? CARVE_FIRST : CARVE_BYTES;
        struct tr__page_list *entry = base_alloc(sizeof *entry);
        void *pages;

        if (entry == NULL)
            return NULL;
        pages = base_pages_alloc(bytes, bytes);
        if (pages == NULL) {
            base_free(entry);
            return NULL;
        }
        *entry = (struct tr__page_list){ system->pages, pages, bytes };
        system->pages = entry;
        system->carve_at = pages;
        system->carve_end = system->carve_at + bytes;
    }
    system->carve_at += size;
    return system->carve_at - size;
}

/* ---- the reserve ---------------------------------------------------------------------------- */

/* Cells for messages that must not fail: answers, and notices between supervisors and children.
 * Allocated with the system, used when memory is out, and filled again when there is some. */

static bool reserve_is_full(const struct tr_system *system)
{
    return likely(tr__get(system->reserve_count) >= CELL_RESERVE);
}

/* Under memory_lock. */
static void reserve_give(struct tr_system *system, struct tr__cell *cell)
{
    cell->next = system->reserve;
    system->reserve = cell;
    tr__add(system->reserve_count, 1);
}

struct tr__cell *tr__reserve_take(struct tr_system *system)
{
    struct tr__cell *cell;

    pthread_mutex_lock(&system->memory_lock);
    cell = system->reserve;
    if (cell != NULL) {
        system->reserve = cell->next;
        tr__add(system->reserve_count, UINT32_MAX);
    }
    pthread_mutex_unlock(&system->memory_lock);
    return cell;
}

int tr__reserve_fill(struct tr_system *system)
{
    while (!reserve_is_full(system)) {
        struct tr__cell *cell = tr__cell_alloc(tr__foreign_enter(system), 0);

        tr__foreign_leave(system);
        if (cell == NULL)
            return TR_ENOMEM;
        pthread_mutex_lock(&system->memory_lock);
        reserve_give(system, cell);
        pthread_mutex_unlock(&system->memory_lock);
    }
    return 0;
}

tr__cold struct tr__cell *tr__cell_refill(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;
    struct tr__cell *first;

    pthread_mutex_lock(&system->memory_lock);
    first = system->depot;
    if (first != NULL) {
        system->depot = *next_magazine(first);
        for (struct tr__cell *cell = first; cell != NULL; cell = cell->next)
            worker->cells[worker->cell_count++] = cell;
    } else {
        first = (struct tr__cell *)(void *)memory_carve(system, CELL_MAGAZINE * sizeof *first);
        for (uint32_t i = CELL_MAGAZINE; first != NULL && i-- > 0;) {
            first[i].class = 0;
            worker->cells[worker->cell_count++] = &first[i];
        }
        tr__add(worker->counters.cells, first != NULL ? CELL_MAGAZINE : 0);
    }
    while (first != NULL && !reserve_is_full(system))
        reserve_give(system, worker->cells[--worker->cell_count]);
    pthread_mutex_unlock(&system->memory_lock);
    return first == NULL ? NULL : worker->cells[--worker->cell_count];
}

/* Give half of a full cache to the depot: the oldest, which are cold anyway. */
tr__cold void tr__cell_spill(struct tr__worker *worker)
{
    struct tr_system *system = worker->system;
    uint32_t given = CELL_CACHE_MAX / 2;

    for (uint32_t i = 0; i < given; i++)
        worker->cells[i]->next = (i + 1) % CELL_MAGAZINE != 0 ? worker->cells[i + 1] : NULL;
    pthread_mutex_lock(&system->memory_lock);
    for (uint32_t i = 0; i < given; i += CELL_MAGAZINE) {
        *next_magazine(worker->cells[i]) = system->depot;
        system->depot = worker->cells[i];
    }
    pthread_mutex_unlock(&system->memory_lock);
    worker->cell_count -= given;
    memmove(worker->cells, worker->cells + given, worker->cell_count * sizeof worker->cells[0]);
}

tr__noinline struct tr__cell *tr__cell_alloc_large(struct tr__worker *worker, size_t payload)
{
    size_t size = CELL_HEADER + payload;
    struct tr__cell *cell;
    uint8_t class = 1;

    if (!TR_MALLOC_CELLS) {
        while (class < CELL_CLASSES && ((size_t)64 << class) < size)
            class ++;
        if (class < CELL_CLASSES) {
            cell = worker->class_cells[class];
            if (cell != NULL) {
                worker->class_cells[class] = cell->next;
                worker->class_counts[class]--;
                return cell;
            }
            cell = tr__alloc_line((size_t)64 << class);
            if (cell != NULL)
                cell->class = class;
            return cell;
        }
    }
    cell = tr__alloc_line(size < sizeof *cell ? sizeof *cell : size);
    if (cell != NULL)
        cell->class = CELL_CLASS_MALLOC;
    if (TR_MALLOC_CELLS && cell != NULL && !reserve_is_full(worker->system)) {
        struct tr__cell *spare = tr__alloc_line(sizeof *spare);

        pthread_mutex_lock(&worker->system->memory_lock);
        if (spare != NULL) {
            spare->class = CELL_CLASS_MALLOC;
            reserve_give(worker->system, spare);
        }
        pthread_mutex_unlock(&worker->system->memory_lock);
    }
    return cell;
}

enum { CLASS_CACHE_BYTES = 256 << 10 };

tr__noinline void tr__cell_free_large(struct tr__worker *worker, struct tr__cell *cell)
{
    uint8_t class = cell->class;

    if (class == CELL_CLASS_MALLOC ||
        (uint32_t)worker->class_counts[class] << (6 + class) >= CLASS_CACHE_BYTES) {
        tr__free_line(cell);
        return;
    }
    cell->next = worker->class_cells[class];
    worker->class_cells[class] = cell;
    worker->class_counts[class]++;
}

struct tr__worker *tr__foreign_enter(struct tr_system *system)
{
    pthread_mutex_lock(&system->foreign_lock);
    return system->foreign;
}

void tr__foreign_leave(struct tr_system *system)
{
    struct tr__cell *doomed = system->foreign->doomed, *cell;
    struct tr_box *box = system->foreign->doomed_box;

    system->foreign->doomed = NULL;
    pthread_mutex_unlock(&system->foreign_lock);
    /* The sending thread still holds a sender of the box. */
    while (unlikely((cell = tr__queue_take(&doomed)) != NULL))
        tr__dead_letter(NULL, box, cell, TR_DEAD_DROPPED, TR_EFULL);
}

void tr__cell_release(struct tr_system *system, struct tr__cell *cell)
{
    struct tr__worker *cache = tr__cache_enter(system);

    tr__cell_free(cache, cell);
    tr__cache_leave(cache);
}

/* ---- slots ---------------------------------------------------------------------------------- */

static struct tr__chunk *memory_chunk_of(const struct tr_box *box)
{
    return (struct tr__chunk *)((uintptr_t)box & ~(uintptr_t)(CHUNK_BYTES - 1));
}

static struct tr_box *chunk_slot(struct tr__chunk *chunk, uint32_t index)
{
    return (
        struct tr_box *)(void *)((char *)chunk + CHUNK_HEADER + (size_t)index * chunk->slot_size);
}

/* No slot is smaller than 128 bytes, so each has a place of its own without a division. */
static uint64_t *order_at(const struct tr_box *box)
{
    char *chunk = (char *)memory_chunk_of(box);
    size_t offset = (size_t)((const char *)box - chunk) - CHUNK_HEADER;

    return (uint64_t *)(void *)(chunk + CHUNK_BYTES - CHUNK_ORDERS) + offset / 128;
}

void tr__box_set_order(struct tr_box *box, uint64_t order)
{
    __atomic_store_n(order_at(box), order, __ATOMIC_RELAXED);
}

uint64_t tr__box_order(const struct tr_box *box)
{
    return __atomic_load_n(order_at(box), __ATOMIC_RELAXED);
}

/* Under memory_lock. */
static struct tr__chunk *chunk_create(struct tr_system *system, uint8_t class)
{
    struct tr__chunk *chunk;

    if (system->serial_next >= system->actors_max)
        return NULL;
    chunk = base_pages_alloc(CHUNK_BYTES, CHUNK_BYTES);
    if (chunk == NULL)
        return NULL;
    /* A small system should cost a few pages, not a huge one. */
    if (system->chunks == NULL)
        madvise(chunk, CHUNK_BYTES, MADV_NOHUGEPAGE);
    chunk->system = system;
    chunk->class = class;
    chunk->slot_size = slot_sizes[class];
    chunk->slot_count = (CHUNK_BYTES - CHUNK_HEADER - CHUNK_ORDERS) / chunk->slot_size;
    chunk->serial = system->serial_next;
    system->serial_next += chunk->slot_count;
    chunk->next = atomic_load_explicit(&system->chunks, memory_order_relaxed);
    /* Pairs with the acquire in slots_each: the header is written before it can be found. */
    atomic_store_explicit(&system->chunks, chunk, memory_order_release);
    system->carving[class] = chunk;
    return chunk;
}

static void slot_push(struct tr__worker *worker, struct tr_box *box)
{
    box->run_next = worker->slots[box->class];
    worker->slots[box->class] = box;
    worker->slot_counts[box->class]++;
}

static struct tr_box *slot_pop(struct tr__worker *worker, uint8_t class)
{
    struct tr_box *box = worker->slots[class];

    worker->slots[class] = box->run_next;
    worker->slot_counts[class]--;
    return box;
}

/* Give the worker some slots of a class. */
static bool slots_refill(struct tr__worker *worker, uint8_t class)
{
    struct tr_system *system = worker->system;
    struct tr__chunk *chunk;

    pthread_mutex_lock(&system->memory_lock);
    for (uint32_t i = 0; i < SLOT_BATCH * 4 && system->slot_depot[class] != NULL; i++) {
        struct tr_box *box = system->slot_depot[class];

        system->slot_depot[class] = box->run_next;
        slot_push(worker, box);
    }
    if (worker->slots[class] == NULL) {
        chunk = system->carving[class];
        if (chunk == NULL || tr__get(chunk->slot_used) == chunk->slot_count)
            chunk = chunk_create(system, class);
        for (uint32_t i = 0; chunk != NULL && i < SLOT_BATCH; i++) {
            uint32_t used = tr__get(chunk->slot_used);
            struct tr_box *box;

            if (used == chunk->slot_count)
                break;
            box = chunk_slot(chunk, used);
            box->class = class;
            tr__set(box->status, STATUS_FREE);
            poison(box->state, slot_sizes[class] - offsetof(struct tr_box, state));
            /* Pairs with the acquire in slots_each. */
            atomic_store_explicit(&chunk->slot_used, used + 1, memory_order_release);
            slot_push(worker, box);
        }
    }
    pthread_mutex_unlock(&system->memory_lock);
    return worker->slots[class] != NULL;
}

struct tr_box *tr__slot_alloc(struct tr__worker *worker, uint32_t state_size)
{
    uint8_t class = 0;
    struct tr_box *box;

    while (class < SLOT_CLASSES && slot_sizes[class] - offsetof(struct tr_box, state) < state_size)
        class ++;
    if (class == SLOT_CLASSES)
        class = 0; /* the state is behind a pointer */
    if (worker->slots[class] == NULL && !slots_refill(worker, class))
        return NULL;
    box = slot_pop(worker, class);
    unpoison(box->state, slot_sizes[class] - offsetof(struct tr_box, state));
    return box;
}

bool tr__slot_holds(const struct tr_box *box, uint32_t state_size)
{
    return slot_sizes[box->class] - offsetof(struct tr_box, state) >= state_size;
}

void tr__slot_free(struct tr__worker *worker, struct tr_box *box)
{
    uint8_t class = box->class;

    poison(box->state, slot_sizes[class] - offsetof(struct tr_box, state));
    slot_push(worker, box);
    if (worker->slot_counts[class] <= SLOT_CACHE_MAX)
        return;
    pthread_mutex_lock(&worker->system->memory_lock);
    while (worker->slot_counts[class] > SLOT_CACHE_MAX / 2) {
        box = slot_pop(worker, class);
        box->run_next = worker->system->slot_depot[class];
        worker->system->slot_depot[class] = box;
    }
    pthread_mutex_unlock(&worker->system->memory_lock);
}

void tr__slots_each(
    struct tr_system *system, bool (*visit)(void *data, struct tr_box *box), void *data)
{
    struct tr__chunk *chunk = atomic_load_explicit(&system->chunks, memory_order_acquire);

    for (; chunk != NULL; chunk = chunk->next) {
        uint32_t used = atomic_load_explicit(&chunk->slot_used, memory_order_acquire);

        for (uint32_t i = 0; i < used; i++) {
            struct tr_box *box = chunk_slot(chunk, i);

            /* Acquire: pairs with the store in tr__box_init, so its type is there. */
            if (!(atomic_load_explicit(&box->status, memory_order_acquire) & STATUS_FREE) &&
                !visit(data, box))
                return;
        }
    }
}

uint64_t tr__box_id(const struct tr_box *box)
{
    const struct tr__chunk *chunk = memory_chunk_of(box);
    size_t offset = (size_t)((const char *)box - (const char *)chunk) - CHUNK_HEADER;

    return ((uint64_t)tr__get(box->generation) << 32) |
           (chunk->serial + offset / chunk->slot_size + 1);
}

struct tr_box *tr__box_by_id(struct tr_system *system, uint64_t id)
{
    uint32_t serial = (uint32_t)id - 1;
    struct tr__chunk *chunk = atomic_load_explicit(&system->chunks, memory_order_acquire);

    for (; chunk != NULL; chunk = chunk->next) {
        uint32_t used = atomic_load_explicit(&chunk->slot_used, memory_order_acquire);

        if (serial >= chunk->serial && serial - chunk->serial < used) {
            struct tr_box *box = chunk_slot(chunk, serial - chunk->serial);

            if (tr__get(box->generation) != id >> 32 || tr__get(box->status) & STATUS_FREE)
                return NULL;
            return box;
        }
    }
    return NULL;
}

static void caches_free(struct tr__worker *worker)
{
    for (uint32_t class = 1; class < CELL_CLASSES; class ++)
        while (worker->class_cells[class] != NULL) {
            struct tr__cell *cell = worker->class_cells[class];

            worker->class_cells[class] = cell->next;
            tr__free_line(cell);
        }
}

/* Senders that were never dropped: their names. */
static bool holds_free(void *data, struct tr_box *box)
{
    (void)data;
    while (box->holds != NULL) {
        struct tr__hold *hold = box->holds;

        box->holds = hold->next;
        base_free(hold);
    }
    return true;
}

void tr__memory_fini(struct tr_system *system)
{
    tr__slots_each(system, holds_free, NULL);
    for (uint32_t i = 0; system->workers != NULL && i < system->worker_count; i++)
        if (system->workers[i] != NULL)
            caches_free(system->workers[i]);
    if (system->foreign != NULL)
        caches_free(system->foreign);
    while (system->reserve != NULL) {
        struct tr__cell *cell = system->reserve;

        system->reserve = cell->next;
        if (cell->class == CELL_CLASS_MALLOC)
            tr__free_line(cell);
    }
    while (system->chunks != NULL) {
        struct tr__chunk *chunk = system->chunks;

        system->chunks = chunk->next;
        unpoison(chunk, CHUNK_BYTES);
        base_pages_free(chunk, CHUNK_BYTES);
    }
    while (system->pages != NULL) {
        struct tr__page_list *entry = system->pages;

        system->pages = entry->next;
        base_pages_free(entry->pages, entry->size);
        base_free(entry);
    }
}
