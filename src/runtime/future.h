/* SPDX-License-Identifier: Apache-2.0 */
/* future.h: the answer that a thread waits for. A future is an ask's record without an asker.
 *
 * `ended` is the futex word. In a driven system the waiting thread sleeps in the system's epoll
 * instead: it says so (SLEPT), the thread that ends the future then wakes it (WAKING), and the
 * waiter goes on only after that thread is done with the system, which may be destroyed next. */
#ifndef RUNTIME_FUTURE_H
#define RUNTIME_FUTURE_H

#include <stddef.h>

struct tr__ask;

enum tr__future {
    FUTURE_OPEN,
    FUTURE_ENDED,  /* status and value are there */
    FUTURE_SLEPT,  /* open; the thread that drives the system sleeps */
    FUTURE_WAKING, /* status and value are there; the sleeper is being woken */
};

/* Store the answer and wake the waiting thread. Called once, by the thread that ended the ask. */
void tr__future_store(struct tr__ask *ask, int status, const void *value, size_t size);

#endif
