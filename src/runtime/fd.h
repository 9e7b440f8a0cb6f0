/* SPDX-License-Identifier: Apache-2.0 */
/* fd.h: descriptors that actors watch. The system's table, by descriptor number, says whose each
 * is: a slot is under its own lock, and fd_lock is held while the table grows. The list of watches
 * in ext->fds belongs to the actor. */
#ifndef RUNTIME_FD_H
#define RUNTIME_FD_H

#include <troupe/event.h>

#include "runtime/point.h"

struct tr_box;
struct tr__ext;

enum { FD_CHUNK_BITS = 8, FD_CHUNK = 1 << FD_CHUNK_BITS, FD_CHUNKS = 4096 };

/* In the actor's list. */
struct tr__fd_watch {
    struct tr__fd_watch *next;
    int fd;
    uint32_t serial;
    uint32_t tag;
    bool is_armed;
    bool is_kept; /* edge-triggered: stays armed */
    bool is_signal;
};

/* One per descriptor number. Chunks of slots are allocated when a number is first used and never
 * move, so that the descriptors of two workers do not meet in one lock. */
struct tr__fd_slot {
    pthread_mutex_t lock;
    struct tr_box *box;
    uint32_t serial;
    uint32_t worker;
    bool added;
    bool is_first;    /* in the worker's first_fd */
    bool is_queued;   /* an event is in the box, not yet taken: further ones join it */
    unsigned events;  /* wanted */
    unsigned pending; /* seen, for the event that is queued */
};

/* Queue an event for a ready descriptor; called by the worker whose epoll reported it. */
void tr__fd_ready(struct tr_system *system, int fd, uint32_t serial, unsigned events);
/* Fill the event of an FD cell. False if the actor has forgotten the descriptor meanwhile. */
bool tr__fd_take(struct tr_box *box, uint64_t opt, struct tr_event *event);
/* Forget all descriptors of an actor that ends or restarts. */
void tr__fds_fini(struct tr_box *box, struct tr__ext *ext);
void tr__fd_chunks_free(struct tr_system *system);

#endif
