/* SPDX-License-Identifier: Apache-2.0 */
/* point.h: the places where the simulator may switch to another simulated worker.
 *
 * In the build for simulations (TR_POINTS) tr__point(), taking or releasing a mutex, and
 * sched_yield() are such places, so that one thread meets the interleavings that many threads meet.
 * In every other build they are what they always are, and tr__point() is nothing.
 *
 * A header that declares a mutex includes this one: a lock taken with the plain pthread call would
 * block the simulator's only thread. */
#ifndef RUNTIME_POINT_H
#define RUNTIME_POINT_H

#include <pthread.h>
#include <stdbool.h>

struct tr_sim;

#if defined(TR_POINTS) && TR_POINTS
#define TR__POINTS 1
#include <sched.h>
void tr__sim_point(void);
void tr__sim_yield(void);
int tr__sim_mutex_lock(pthread_mutex_t *mutex);
int tr__sim_mutex_unlock(pthread_mutex_t *mutex);
/* Run `run` the way a thread that is no worker would, at some moment of the coming steps. One at a
 * time. */
void tr__sim_outside(struct tr_sim *sim, void (*run)(void *data), void *data);
/* Return whether the last tr__sim_outside() call is still under way. */
bool tr__sim_is_outside(const struct tr_sim *sim);
#define tr__point() tr__sim_point()
#define pthread_mutex_lock(mutex) tr__sim_mutex_lock(mutex)
#define pthread_mutex_unlock(mutex) tr__sim_mutex_unlock(mutex)
#define sched_yield() tr__sim_yield()
#else
#define TR__POINTS 0
#define tr__point() ((void)0)
#endif

enum { SIM_WORKERS = TR__POINTS ? 3 : 1 };

#endif
