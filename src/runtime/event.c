/* SPDX-License-Identifier: Apache-2.0 */
/* event.c: descriptors, signals, blocking work, death watches and links: how the outside reaches an
 * actor.
 *
 * Descriptors are one-shot, or edge-triggered, in the epoll of the worker that first watched them.
 * The system's table, by descriptor number, says whose it is; an event carries the serial it was
 * armed with, so one that was on the way when the actor forgot the descriptor (or closed it and got
 * the same number again) finds another serial and is dropped. */
#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runtime/runtime.h"

enum { WORK_NICE = 2 };

/* ---- descriptors ---------------------------------------------------------------------------- */

static void forbid_in_simulation(const struct tr_context *ctx, const char *what)
{
    tr_assert_use(ctx->worker->system->sim == NULL, what);
}

static struct tr__fd_slot *_Atomic *chunk_of(struct tr_system *system, int fd)
{
    struct tr__fd_slot *_Atomic *chunks =
        atomic_load_explicit(&system->fd_chunks, memory_order_acquire);

    if (fd < 0 || chunks == NULL || fd >> FD_CHUNK_BITS >= FD_CHUNKS)
        return NULL;
    return &chunks[fd >> FD_CHUNK_BITS];
}

/* NULL if the number was never watched. */
static struct tr__fd_slot *slot_of(struct tr_system *system, int fd)
{
    struct tr__fd_slot *_Atomic *chunk = chunk_of(system, fd);
    struct tr__fd_slot *slots =
        chunk == NULL ? NULL : atomic_load_explicit(chunk, memory_order_acquire);

    return slots == NULL ? NULL : &slots[fd & (FD_CHUNK - 1)];
}

/* Under fd_lock. */
static int chunk_make(struct tr_system *system, int fd)
{
    struct tr__fd_slot *_Atomic *chunks = atomic_load(&system->fd_chunks);
    struct tr__fd_slot *slots;

    if (fd >> FD_CHUNK_BITS >= FD_CHUNKS)
        return TR_ELIMIT;
    if (chunks == NULL) {
        chunks = base_calloc(FD_CHUNKS * sizeof *chunks);
        if (chunks == NULL)
            return TR_ENOMEM;
        atomic_store_explicit(&system->fd_chunks, chunks, memory_order_release);
    }
    if (atomic_load(&chunks[fd >> FD_CHUNK_BITS]) != NULL)
        return 0;
    slots = base_calloc(FD_CHUNK * sizeof *slots);
    if (slots == NULL)
        return TR_ENOMEM;
    for (int i = 0; i < FD_CHUNK; i++)
        pthread_mutex_init(&slots[i].lock, NULL);
    atomic_store_explicit(&chunks[fd >> FD_CHUNK_BITS], slots, memory_order_release);
    return 0;
}

static int slot_get(struct tr_system *system, int fd, struct tr__fd_slot **ret_slot)
{
    int rc;

    *ret_slot = slot_of(system, fd);
    if (*ret_slot != NULL)
        return 0;
    pthread_mutex_lock(&system->fd_lock);
    rc = chunk_make(system, fd);
    pthread_mutex_unlock(&system->fd_lock);
    if (rc < 0)
        return rc;
    *ret_slot = slot_of(system, fd);
    tr_assert(*ret_slot != NULL); /* a chunk that is made stays */
    return 0;
}

void tr__fd_chunks_free(struct tr_system *system)
{
    struct tr__fd_slot *_Atomic *chunks = atomic_load(&system->fd_chunks);

    for (int i = 0; chunks != NULL && i < FD_CHUNKS; i++) {
        struct tr__fd_slot *slots = atomic_load(&chunks[i]);

        for (int k = 0; slots != NULL && k < FD_CHUNK; k++)
            pthread_mutex_destroy(&slots[k].lock);
        base_free(slots);
    }
    base_free(chunks);
    atomic_store(&system->fd_chunks, NULL);
}

static struct tr__fd_watch *watch_of(struct tr__ext *ext, int fd)
{
    struct tr__fd_watch *watch = ext == NULL ? NULL : ext->fds;

    while (watch != NULL && watch->fd != fd)
        watch = watch->next;
    return watch;
}

static unsigned kernel_events(unsigned events)
{
    return events & EPOLLET ? events : events | EPOLLONESHOT;
}

static int epoll_of(struct tr_system *system, const struct tr__fd_slot *slot)
{
    struct tr__worker *worker = system->workers[slot->worker];

    return slot->is_first ? atomic_load_explicit(&worker->first_fd, memory_order_relaxed)
                          : worker->epoll_fd;
}

static int arm_slot(struct tr_system *system, uint32_t worker_index, struct tr_box *box,
    struct tr__fd_watch *watch, struct tr__fd_slot *slot, unsigned events)
{
    struct epoll_event event = { 0 };
    int op = slot->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

    if (slot->added && slot->box != box)
        return TR_EBUSY;
    if (!slot->added) {
        slot->worker = worker_index;
        slot->is_first = (events & TR_FD_FIRST) != 0;
    }
    events &= ~(unsigned)TR_FD_FIRST;
    event.events = kernel_events(events);
    watch->serial = atomic_fetch_add(&system->fd_serial, 1) + 1;
    slot->events = events;
    event.data.u64 = (uint64_t)watch->serial << 32 | (uint32_t)watch->fd;
    slot->box = box;
    slot->serial = watch->serial;
    slot->is_queued = false;
    slot->pending = 0;
    if (epoll_ctl(epoll_of(system, slot), op, watch->fd, &event) < 0) {
        if (!slot->added)
            slot->box = NULL;
        return errno == ENOSPC || errno == ENOMEM ? TR_ELIMIT : TR_EINVAL;
    }
    slot->added = true;
    watch->is_armed = true;
    watch->is_kept = (events & EPOLLET) != 0;
    atomic_store_explicit(&system->workers[slot->worker]->has_fds, 1, memory_order_relaxed);
    return 0;
}

static int arm(
    struct tr__worker *worker, struct tr_box *box, struct tr__fd_watch *watch, unsigned events)
{
    struct tr_system *system = worker->system;
    struct tr__fd_slot *slot;
    int rc;

    rc = tr__worker_open(worker);
    if (rc == 0 && events & TR_FD_FIRST)
        rc = tr__worker_open_first(worker);
    if (rc < 0)
        return rc;
    rc = slot_get(system, watch->fd, &slot);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&slot->lock);
    rc = arm_slot(system, worker->index, box, watch, slot, events);
    pthread_mutex_unlock(&slot->lock);
    return rc;
}

static int fd_watch(struct tr_context *ctx, int fd, unsigned events, uint32_t tag, bool is_signal)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    struct tr__fd_watch *watch = watch_of(ext, fd);
    bool fresh = watch == NULL;
    int rc;

    if (ext == NULL)
        return TR_ENOMEM;
    if (fd < 0)
        return TR_EINVAL;
    if (fresh) {
        watch = base_calloc(sizeof *watch);
        if (watch == NULL)
            return TR_ENOMEM;
        watch->fd = fd;
    }
    watch->tag = tag;
    watch->is_signal = is_signal;
    rc = arm(ctx->worker, ctx->box, watch, events);
    if (rc < 0) {
        if (fresh)
            base_free(watch);
        return rc;
    }
    if (fresh) {
        watch->next = ext->fds;
        ext->fds = watch;
    }
    return 0;
}

int tr_fd_watch(struct tr_context *ctx, int fd, unsigned events, uint32_t tag)
{
    forbid_in_simulation(ctx, "a real descriptor in a simulation could not be replayed");
    return fd_watch(ctx, fd, events, tag, false);
}

static void forget(struct tr_system *system, struct tr_box *box, int fd)
{
    struct tr__fd_slot *slot = slot_of(system, fd);

    if (slot == NULL)
        return;
    pthread_mutex_lock(&slot->lock);
    if (slot->added && slot->box == box) {
        epoll_ctl(epoll_of(system, slot), EPOLL_CTL_DEL, fd, NULL);
        slot->box = NULL;
        slot->serial = 0;
        slot->added = slot->is_queued = false;
    }
    pthread_mutex_unlock(&slot->lock);
}

int tr_fd_forget(struct tr_context *ctx, int fd)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    struct tr__fd_watch **link = ext == NULL ? NULL : &ext->fds;
    struct tr__fd_watch *watch;

    while (link != NULL && *link != NULL && (*link)->fd != fd)
        link = &(*link)->next;
    if (link == NULL || *link == NULL)
        return TR_ENOENT;
    watch = *link;
    *link = watch->next;
    forget(ctx->worker->system, ctx->box, fd);
    base_free(watch);
    return 0;
}

void tr__fds_finish(struct tr_box *box, struct tr__ext *ext)
{
    while (ext->fds != NULL) {
        struct tr__fd_watch *watch = ext->fds;

        ext->fds = watch->next;
        forget(box->system, box, watch->fd);
        if (watch->is_signal)
            close(watch->fd);
        base_free(watch);
    }
}

/* Under the slot's lock. */
static void slot_ready(struct tr_system *system, struct tr__fd_slot *slot, int fd, unsigned events)
{
    uint64_t data = (uint64_t)slot->serial << 32 | (uint32_t)fd;
    struct tr__cell *cell;

    slot->pending |= events;
    if (slot->is_queued)
        return;
    cell = tr__event_cell(system, CELL_FD, 0, data, NULL, 0);
    if (cell != NULL && tr__get(slot->box->status) & STATUS_URGENT)
        cell->flags = TR_CONTROL;
    /* Out of memory: arm it again and the kernel will repeat it. */
    if (cell == NULL) {
        struct epoll_event event = { .events = kernel_events(slot->events), .data.u64 = data };

        epoll_ctl(epoll_of(system, slot), EPOLL_CTL_MOD, fd, &event);
    } else if (tr__push_event(slot->box, cell) < 0) {
        tr__cell_free(tr__self, cell);
    } else {
        slot->is_queued = true;
    }
}

/* By the worker whose epoll reported it. */
void tr__fd_ready(struct tr_system *system, int fd, uint32_t serial, unsigned events)
{
    struct tr__fd_slot *slot = slot_of(system, fd);

    if (slot == NULL)
        return;
    pthread_mutex_lock(&slot->lock);
    if (slot->added && slot->serial == serial)
        slot_ready(system, slot, fd, events);
    pthread_mutex_unlock(&slot->lock);
}

/* What was seen since the event was queued; edges after this make a new one. */
static unsigned take_pending(struct tr_system *system, int fd, uint32_t serial)
{
    struct tr__fd_slot *slot = slot_of(system, fd);
    unsigned pending = 0;

    tr_assert(slot != NULL);
    pthread_mutex_lock(&slot->lock);
    if (slot->serial == serial) {
        pending = slot->pending;
        slot->pending = 0;
        slot->is_queued = false;
    }
    pthread_mutex_unlock(&slot->lock);
    return pending;
}

bool tr__fd_take(struct tr_box *box, uint64_t opt, struct tr_event *event)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__fd_watch *watch = watch_of(ext, (int)(uint32_t)opt);

    if (watch == NULL || !watch->is_armed || watch->serial != (uint32_t)(opt >> 32))
        return false;
    watch->is_armed = watch->is_kept;
    event->ready = take_pending(box->system, watch->fd, watch->serial);
    event->tag = watch->tag;
    event->fd = watch->fd;
    event->id = 0;
    if (watch->is_signal) {
        struct signalfd_siginfo info;
        bool is_there = read(watch->fd, &info, sizeof info) == (ssize_t)sizeof info;

        event->kind = TR_EVENT_SIGNAL;
        event->status = is_there ? (int)info.ssi_signo : 0;
        arm(tr__self, box, watch, EPOLLIN);
        return is_there; /* another actor that watches it too may have been faster */
    }
    return true;
}

int tr_signal_watch(struct tr_context *ctx, int signal_number, uint32_t tag)
{
    struct tr_system *system = ctx->worker->system;
    const int *at = system->signals;
    sigset_t set;
    int fd, rc;

    forbid_in_simulation(ctx, "a real signal in a simulation could not be replayed");
    while (at != NULL && *at != 0 && *at != signal_number)
        at++;
    if (at == NULL || *at == 0)
        return TR_EINVAL;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    fd = base_fault_hit() ? -1 : signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return TR_ELIMIT;
    rc = fd_watch(ctx, fd, EPOLLIN | TR_FD_FIRST, tag, true);
    if (rc < 0)
        close(fd);
    return rc;
}

/* ---- blocking work -------------------------------------------------------------------------- */

enum { WORK_QUEUE_MAX = 4096 };

static void work_deliver(struct tr__work *work)
{
    struct tr__cell *cell = work->cell;
    struct tr_box *box = work->box;

    work->cell = NULL;
    /* The box is pinned by its asks count until this arrives. */
    if (tr__push_event(box, cell) < 0) {
        struct tr_system *system = box->system;
        struct tr__worker *worker = tr__worker_of(system);

        tr__cell_free(worker != NULL ? worker : tr__foreign_enter(system), cell);
        if (worker == NULL)
            tr__foreign_leave(system);
        if (work->drop != NULL)
            work->drop(work->argument);
        base_free(work);
        tr__box_unpin(box, 1);
    }
}

/* Its cell was in a box that ended. */
void tr__work_dropped(struct tr__work *work)
{
    if (work->drop != NULL)
        work->drop(work->argument);
    base_free(work);
}

static struct tr__work *work_take(struct tr_system *system)
{
    struct tr__work *work = system->work_head;

    if (work != NULL) {
        system->work_head = work->next;
        system->work_queued--;
    }
    return work;
}

static void *work_main(void *argument)
{
    struct tr_system *system = argument;

    /* Where cores are short, workers come first: what they do is short, and others wait for it. It
     * is a wish: that it may not be granted changes nothing. */
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + WORK_NICE);
    pthread_mutex_lock(&system->work_lock);
    for (;;) {
        struct tr__work *work = work_take(system);

        if (work == NULL) {
            if (system->work_ending)
                break;
            system->work_idle++;
            pthread_cond_wait(&system->work_ready, &system->work_lock);
            system->work_idle--;
            continue;
        }
        pthread_mutex_unlock(&system->work_lock);
        work->status = work->work(work->argument);
        work_deliver(work);
        pthread_mutex_lock(&system->work_lock);
    }
    pthread_mutex_unlock(&system->work_lock);
    return NULL;
}

bool tr__work_run_one(struct tr_system *system)
{
    struct tr__work *work;

    if (system->sim == NULL)
        return false;
    pthread_mutex_lock(&system->work_lock);
    work = work_take(system);
    pthread_mutex_unlock(&system->work_lock);
    if (work == NULL)
        return false;
    work->status = work->work(work->argument);
    work_deliver(work);
    return true;
}

int tr_offload(struct tr_context *ctx, tr_work_fn run, void *argument, void (*drop)(void *argument),
    uint32_t tag)
{
    struct tr_system *system = ctx->worker->system;
    struct tr__work *work = base_calloc(sizeof *work);
    const struct tr__ext *ext;
    int rc = 0;

    if (work == NULL)
        return TR_ENOMEM;
    *work = (struct tr__work){ .work = run,
        .argument = argument,
        .drop = drop,
        .box = ctx->box,
        .system = system,
        .tag = tag };
    work->cell = tr__event_cell(system, CELL_WORK, tag, (uint64_t)(uintptr_t)work, NULL, 0);
    if (work->cell == NULL) {
        base_free(work);
        return TR_ENOMEM;
    }
    ext = atomic_load_explicit(&ctx->box->ext, memory_order_acquire);
    work->life = ext == NULL ? 0 : ext->restarts;
    pthread_mutex_lock(&system->work_lock);
    if (system->work_queued >= WORK_QUEUE_MAX) {
        rc = TR_EFULL;
    } else if (system->sim == NULL && system->work_queued >= system->work_idle &&
               system->work_threads < system->work_threads_max) {
        if (base_fault_hit() ||
            pthread_create(&system->work_ids[system->work_threads], NULL, work_main, system) != 0) {
            if (system->work_threads == 0)
                rc = TR_ELIMIT;
        } else {
            system->work_threads++;
        }
    }
    if (rc == 0) {
        if (system->work_head == NULL)
            system->work_head = work;
        else
            system->work_tail->next = work;
        system->work_tail = work;
        system->work_queued++;
        /* Waits for it like for an answer: shutdown and the slot. */
        tr__add(ctx->box->asks, 1);
        pthread_cond_signal(&system->work_ready);
    }
    pthread_mutex_unlock(&system->work_lock);
    if (rc < 0) {
        tr__cell_free(ctx->worker, work->cell);
        base_free(work);
    }
    return rc;
}

/* All threads end after the work that is queued. */
void tr__work_pool_finish(struct tr_system *system)
{
    pthread_mutex_lock(&system->work_lock);
    system->work_ending = true;
    pthread_cond_broadcast(&system->work_ready);
    pthread_mutex_unlock(&system->work_lock);
    for (uint32_t i = 0; i < system->work_threads; i++)
        pthread_join(system->work_ids[i], NULL);
    system->work_threads = 0;
    while (tr__work_run_one(system)) {
    }
}

/* ---- watches and links ---------------------------------------------------------------------- */

static bool is_gone(const struct tr_box *target, uint64_t generation)
{
    return tr__get(target->generation) != generation ||
           atomic_load_explicit(&target->word, memory_order_acquire) & WORD_GONE;
}

/* A watch and its notice; nobody knows it yet. */
static struct tr__watch *watch_make(
    struct tr_box *watcher, tr_weak target, uint32_t tag, bool is_link)
{
    struct tr_system *system = watcher->system;
    struct tr__watch *watch = base_calloc(sizeof *watch);
    int why = TR_WHY_DONE;

    if (watch == NULL)
        return NULL;
    *watch = (struct tr__watch){ .watcher = watcher,
        .target = target.box,
        .target_generation = (uint32_t)target.generation,
        .target_id = target.generation << 32 | (uint32_t)tr__box_id(target.box),
        .serial = atomic_fetch_add_explicit(&system->watch_serial, 1, memory_order_relaxed) + 1,
        .is_link = is_link };
    tr__list_init(&watch->by_target);
    watch->cell = tr__event_cell(
        system, is_link ? CELL_EXIT : CELL_DOWN, tag, watch->serial, &why, sizeof why);
    if (watch->cell == NULL) {
        base_free(watch);
        return NULL;
    }
    return watch;
}

static void watch_free(struct tr__watch *watch)
{
    if (watch->cell != NULL)
        tr__cell_free(tr__self, watch->cell);
    base_free(watch);
}

/* List it with its target. TR_ECLOSED if that has ended. */
static int watch_attach(struct tr__watch *watch)
{
    struct tr_box *target = watch->target;
    pthread_mutex_t *lock = tr__box_lock(target);
    struct tr__ext *theirs =
        is_gone(target, watch->target_generation) ? NULL : tr__ext_get_locked(target);
    int rc = 0;

    /* Once more: it may have ended, and somebody begun in its slot, between the look and the list.
     */
    if (is_gone(target, watch->target_generation))
        rc = TR_ECLOSED;
    else if (theirs == NULL)
        rc = TR_ENOMEM;
    else
        tr__list_add(&theirs->watchers, &watch->by_target);
    pthread_mutex_unlock(lock);
    return rc;
}

/* Take it off the target's list. */
static void watch_detach(struct tr__watch *watch)
{
    pthread_mutex_t *lock = tr__box_lock(watch->target);

    tr__list_remove(&watch->by_target);
    pthread_mutex_unlock(lock);
}

static bool is_failure(enum tr_why why)
{
    return why == TR_WHY_FAILED || why == TR_WHY_START || why == TR_WHY_BUDGET ||
           why == TR_WHY_LINKED || why == TR_WHY_KILLED;
}

/* Under the target's lock: the watch has done its duty. */
static void notify(struct tr__watch *watch, enum tr_why why)
{
    struct tr__cell *cell = watch->cell;
    int status = (int)why;

    tr__list_remove(&watch->by_target);
    if (watch->is_link && !is_failure(why))
        return;
    tr_assert(cell != NULL); /* made with the watch, and it is listed until it goes out */
    watch->cell = NULL;
    memcpy(cell->payload, &status, sizeof status);
    /* Under the lock: the watcher takes it to let go of the watch, so it cannot be gone. */
    if (tr__push_event(watch->watcher, cell) < 0)
        tr__cell_release(watch->watcher->system, cell);
}

/* The target ends: its watchers hear of it. */
void tr__watches_finish(struct tr_box *box, struct tr__ext *ext, enum tr_why why)
{
    pthread_mutex_t *lock = tr__box_lock(box);

    while (!tr__list_is_empty(&ext->watchers))
        notify(tr__container(ext->watchers.next, struct tr__watch, by_target), why);
    pthread_mutex_unlock(lock);
}

/* The target restarts: links are of one life, watches of the actor. */
void tr__links_break(struct tr_box *box, struct tr__ext *ext, enum tr_why why)
{
    pthread_mutex_t *lock = tr__box_lock(box);
    struct tr__link *link, *next;

    for (link = ext->watchers.next; link != &ext->watchers; link = next) {
        struct tr__watch *watch = tr__container(link, struct tr__watch, by_target);

        next = link->next;
        if (watch->is_link)
            notify(watch, why);
    }
    pthread_mutex_unlock(lock);
}

/* Its notice is being handled: fill in who, and forget the watch. */
uint64_t tr__watch_delivered(struct tr_box *box, const struct tr__cell *cell)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__watch **link = ext == NULL ? NULL : &ext->watching;
    struct tr__watch *wanted;
    uint64_t id;

    while (link != NULL && *link != NULL && (*link)->serial != cell->opt)
        link = &(*link)->next;
    if (link == NULL || *link == NULL)
        return 0; /* it was unwatched while the notice was on the way */
    wanted = *link;
    *link = wanted->next;
    id = wanted->target_id;
    watch_free(wanted);
    return id;
}

/* The watcher ends or restarts. */
void tr__watching_finish(struct tr_box *box, struct tr__ext *ext)
{
    (void)box;
    while (ext->watching != NULL) {
        struct tr__watch *watch = ext->watching;

        ext->watching = watch->next;
        watch_detach(watch);
        watch_free(watch);
    }
}

int tr_watch(struct tr_context *ctx, tr_weak target, uint32_t tag)
{
    struct tr__ext *mine = tr__ext_get(ctx->box);
    struct tr__watch *watch;
    int rc;

    if (target.box == NULL || target.box->system != ctx->worker->system)
        return TR_EINVAL;
    watch = mine == NULL ? NULL : watch_make(ctx->box, target, tag, false);
    if (watch == NULL)
        return TR_ENOMEM;
    rc = watch_attach(watch);
    if (rc == TR_ENOMEM) {
        watch_free(watch);
        return rc;
    }
    watch->next = mine->watching;
    mine->watching = watch;
    if (rc == TR_ECLOSED) {
        struct tr__cell *cell = watch->cell;

        /* It has ended: the notice goes out at once. Why is not known any more. */
        watch->cell = NULL;
        if (tr__push_event(ctx->box, cell) < 0)
            tr__cell_free(tr__self, cell);
    }
    return 0;
}

void tr_unwatch(struct tr_context *ctx, tr_weak target)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    struct tr__watch **link = ext == NULL ? NULL : &ext->watching;

    while (link != NULL && *link != NULL) {
        struct tr__watch *watch = *link;

        if (watch->is_link || watch->target != target.box ||
            watch->target_generation != (uint32_t)target.generation) {
            link = &watch->next;
            continue;
        }
        *link = watch->next;
        watch_detach(watch);
        watch_free(watch);
    }
}

/* Both halves are made here, so that no end of either side can come between them. The other's half
 * is listed with this actor at once and taken over by the other with OP_LINK, which is before any
 * notice in its box; if it ends before that, the operation is dropped and the half with it. */
int tr_link(struct tr_context *ctx, tr_weak target)
{
    struct tr__ext *ext = tr__ext_get(ctx->box);
    struct tr__watch *mine, *theirs;
    struct tr__cell *cell;
    int rc;

    if (target.box == NULL || target.box->system != ctx->worker->system ||
        (target.box == ctx->box && target.generation == tr_self(ctx).generation))
        return TR_EINVAL;
    if (ext == NULL)
        return TR_ENOMEM;
    mine = watch_make(ctx->box, target, 0, true);
    theirs = watch_make(target.box, tr_self(ctx), 0, true);
    cell = tr__event_cell(
        ctx->worker->system, CELL_OP, (uint32_t)target.generation, OP_LINK, &theirs, sizeof theirs);
    rc = mine == NULL || theirs == NULL || cell == NULL ? TR_ENOMEM : watch_attach(mine);
    if (rc < 0)
        goto fail;
    mine->next = ext->watching;
    ext->watching = mine;
    watch_attach(theirs); /* to this actor, which is here */
    if (tr__push_event(target.box, cell) < 0) {
        /* It has ended meanwhile, and if it failed its notice is on the way. */
        watch_detach(theirs);
        watch_free(theirs);
        tr__cell_free(ctx->worker, cell);
    }
    return 0;

fail:
    if (cell != NULL)
        tr__cell_free(ctx->worker, cell);
    if (theirs != NULL)
        watch_free(theirs);
    if (mine != NULL)
        watch_free(mine);
    return rc;
}

/* The other half arrives. */
void tr__link_back(struct tr_box *box, const void *payload)
{
    struct tr__ext *ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    struct tr__watch *watch;

    memcpy(&watch, payload, sizeof watch);
    if (ext == NULL || tr__get(box->status) & STATUS_CRASHED) { /* the life it was for is over */
        tr__link_dropped(payload);
        return;
    }
    watch->next = ext->watching;
    ext->watching = watch;
}

/* … or never does. */
void tr__link_dropped(const void *payload)
{
    struct tr__watch *watch;

    memcpy(&watch, payload, sizeof watch);
    watch_detach(watch);
    watch_free(watch);
}

void tr_trap_exits(struct tr_context *ctx, bool trap)
{
    uint32_t status = tr__get(ctx->box->status);

    tr__set(ctx->box->status,
        trap ? status | STATUS_TRAP | STATUS_SLOW : status & ~(uint32_t)STATUS_TRAP);
}
