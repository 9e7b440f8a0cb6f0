/* SPDX-License-Identifier: Apache-2.0 */
/* poll.c: a worker's epoll.
 *
 * epoll_fd has everything a worker waits for: its event_fd (wake-ups), the descriptors of its
 * actors, and first_fd, a second epoll for descriptors watched with TR_FD_FIRST. quiet_fd has
 * event_fd and first_fd alone: a worker waits for it while tr_fd_calm pauses the rest. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "runtime/fd.h"
#include "runtime/system.h"
#include "runtime/timer.h"

enum { FIRST_EVENTS_MAX = 16, CALM_NS_MAX = 20000000 };

/* The epoll data of a worker's own descriptors; that of others is serial and number. */
#define DATA_WAKE UINT64_MAX
#define DATA_FIRST (UINT64_MAX - 1)

/* ---- opening -------------------------------------------------------------------------------- */

/* Opened when first needed: a unit test's system has no descriptor. */
int tr__worker_open(struct tr__worker *worker)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = DATA_WAKE };

    if (worker->epoll_fd >= 0)
        return 0;
    if (base_fault_hit())
        return TR_ELIMIT;
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->epoll_fd < 0)
        return TR_ELIMIT;
    worker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    worker->quiet_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->event_fd < 0 || worker->quiet_fd < 0 ||
        epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, worker->event_fd, &event) < 0 ||
        epoll_ctl(worker->quiet_fd, EPOLL_CTL_ADD, worker->event_fd, &event) < 0) {
        tr__worker_close(worker);
        return TR_ELIMIT;
    }
    return 0;
}

int tr__worker_open_first(struct tr__worker *worker)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = DATA_FIRST };
    int fd;

    if (atomic_load_explicit(&worker->first_fd, memory_order_relaxed) >= 0)
        return 0;
    fd = base_fault_hit() ? -1 : epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0)
        return TR_ELIMIT;
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ||
        epoll_ctl(worker->quiet_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        close(fd);
        return TR_ELIMIT;
    }
    atomic_store_explicit(&worker->first_fd, fd, memory_order_relaxed);
    return 0;
}

void tr__worker_close(struct tr__worker *worker)
{
    int first_fd = atomic_exchange_explicit(&worker->first_fd, -1, memory_order_relaxed);

    if (first_fd >= 0)
        close(first_fd);
    if (worker->epoll_fd >= 0)
        close(worker->epoll_fd);
    if (worker->event_fd >= 0)
        close(worker->event_fd);
    if (worker->quiet_fd >= 0)
        close(worker->quiet_fd);
    worker->epoll_fd = worker->event_fd = worker->quiet_fd = -1;
}

/* ---- polling -------------------------------------------------------------------------------- */

/* Not while the last poll left events behind: those are polled at once. */
bool tr__worker_is_pausing(const struct tr__worker *worker, uint64_t now_ns)
{
    return now_ns < worker->calm_until_ns && !worker->has_more_ready &&
           now_ns - worker->polled_ns < worker->pause_ns;
}

static void poll_ready(struct tr__worker *worker, const struct epoll_event *event)
{
    uint64_t data = event->data.u64;

    tr__fd_ready(worker->system, (int)(uint32_t)data, (uint32_t)(data >> 32), event->events);
}

/* Poll first_fd. True if a descriptor was ready. */
static bool poll_first(struct tr__worker *worker)
{
    struct epoll_event events[FIRST_EVENTS_MAX];
    int first_fd = atomic_load_explicit(&worker->first_fd, memory_order_relaxed);
    int count = first_fd < 0 ? 0 : epoll_wait(first_fd, events, FIRST_EVENTS_MAX, 0);

    for (int i = 0; i < count; i++)
        poll_ready(worker, &events[i]);
    return count > 0;
}

void tr__worker_poll(struct tr__worker *worker, int timeout_ms)
{
    struct epoll_event events[POLL_EVENTS_MAX];
    int count;

    /* If the last poll returned all events, this one returns first_fd too. */
    if (worker->has_more_ready && poll_first(worker))
        timeout_ms = 0;
    count = epoll_wait(worker->epoll_fd, events, POLL_EVENTS_MAX, timeout_ms);
    worker->has_more_ready = count == POLL_EVENTS_MAX;
    for (int i = 0; i < count; i++) {
        uint64_t ignored;

        if (events[i].data.u64 == DATA_WAKE) {
            if (read(worker->event_fd, &ignored, sizeof ignored) < 0) {
                /* Another thread read it: fine. */
            }
        } else if (events[i].data.u64 == DATA_FIRST) {
            poll_first(worker);
        } else {
            poll_ready(worker, &events[i]);
        }
    }
}

void tr__worker_pause(struct tr__worker *worker, uint64_t now_ns, int timeout_ms)
{
    uint64_t left_ns = worker->polled_ns + worker->pause_ns - now_ns;
    int left_ms = (int)((left_ns + 999999) / 1000000);
    struct epoll_event ignored; /* the look that follows takes it */

    (void)epoll_wait(worker->quiet_fd, &ignored, 1,
        timeout_ms >= 0 && timeout_ms < left_ms ? timeout_ms : left_ms);
}

void tr_fd_calm(struct tr_context *ctx, uint64_t pause_ns, uint64_t for_ns)
{
    struct tr__worker *worker = ctx->worker;

    if (!worker->is_thread || worker->quiet_fd < 0)
        return;
    worker->pause_ns = pause_ns < CALM_NS_MAX ? pause_ns : CALM_NS_MAX;
    worker->calm_until_ns = worker->now_ns + for_ns;
}

int tr__worker_timeout_ms(struct tr__worker *worker, uint64_t now_ns)
{
    uint64_t next_ms = tr__system_next_ms(worker->system);
    uint64_t now_ms = now_ns / 1000000;

    if (next_ms == UINT64_MAX)
        return -1;
    if (next_ms <= now_ms)
        return 0;
    return next_ms - now_ms > 60000 ? 60000 : (int)(next_ms - now_ms);
}
