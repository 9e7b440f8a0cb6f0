/* SPDX-License-Identifier: Apache-2.0 */
/* fd.c: descriptors and signals.
 *
 * Descriptors are one-shot or edge-triggered, in the epoll of the worker that first watched them.
 * The system's table, by descriptor number, says whose each is. An event carries the serial it was
 * armed with: if the actor forgot the descriptor while the event was on the way, or closed it and
 * got the same number again, the serial differs and the event is dropped. */
#include "runtime/fd.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/mailbox.h"
#include "runtime/memory.h"
#include "runtime/system.h"

static void forbid_in_simulation(const struct tr_context *ctx, const char *what)
{
    tr_assert_use(ctx->worker->system->sim == NULL, what);
}

static struct tr__fd_slot *_Atomic *fd_chunk_of(struct tr_system *system, int fd)
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
    struct tr__fd_slot *_Atomic *chunk = fd_chunk_of(system, fd);
    struct tr__fd_slot *slots =
        chunk == NULL ? NULL : atomic_load_explicit(chunk, memory_order_acquire);

    return slots == NULL ? NULL : &slots[fd & (FD_CHUNK - 1)];
}

/* Under fd_lock. */
static int fd_chunk_create(struct tr_system *system, int fd)
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
    rc = fd_chunk_create(system, fd);
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

static int fd_arm(
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
    rc = fd_arm(ctx->worker, ctx->box, watch, events);
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

static void fd_forget(struct tr_system *system, struct tr_box *box, int fd)
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
    fd_forget(ctx->worker->system, ctx->box, fd);
    base_free(watch);
    return 0;
}

void tr__fds_fini(struct tr_box *box, struct tr__ext *ext)
{
    while (ext->fds != NULL) {
        struct tr__fd_watch *watch = ext->fds;

        ext->fds = watch->next;
        fd_forget(box->system, box, watch->fd);
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

/* Take the events seen since the cell was queued; later edges queue a new one. */
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
        fd_arm(tr__self, box, watch, EPOLLIN);
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
