/* SPDX-License-Identifier: Apache-2.0 */
/* timer.h: timing wheels, one per worker, and the timers of actors.
 *
 * A wheel and the links of its timers are under wheel->lock; next_ms and count may be read without.
 * A timer's state changes under the lock, and its owner may read it without. */
#ifndef RUNTIME_TIMER_H
#define RUNTIME_TIMER_H

#include <troupe/event.h>

#include "runtime/list.h"
#include "runtime/sync.h"

struct tr_box;
struct tr__cell;
struct tr__ext;
struct tr__wheel;
struct tr__worker;

enum { WHEEL_LEVELS = 6, WHEEL_SLOTS = 64 };
enum tr__timer_state { TIMER_IDLE, TIMER_LINKED, TIMER_FIRED, TIMER_STOPPED };

struct tr__timer {
    struct tr__link link;
    uint64_t expires_ms;
    struct tr__wheel *wheel;
    void (*fire)(struct tr__timer *timer, struct tr__worker *worker); /* under the wheel's lock */
    _Atomic uint8_t state;                                            /* enum tr__timer_state */
    uint8_t level, slot;
};

struct tr__wheel {
    struct tr__spin lock;
    struct tr_system *system;
    uint64_t now_ms;
    _Atomic uint64_t next_ms; /* not later than the next expiry; UINT64_MAX if there is none */
    _Atomic uint64_t count;
    uint64_t occupied[WHEEL_LEVELS];
    struct tr__link slots[WHEEL_LEVELS][WHEEL_SLOTS];
};

/* A timer of an actor, in the actor's table. */
struct tr__timer_entry {
    struct tr__timer timer;
    struct tr_box *box;
    uint64_t generation; /* of the table's index */
    uint32_t index;
    uint32_t tag;
    uint64_t period_ns;
    uint32_t next_free;
    uint64_t due_ns;
    struct tr__cell *cell; /* allocated when the timer is set, so that firing cannot fail */
    bool is_grace;
    bool stopped; /* while its cell was on the way */
};

struct tr__wheel *tr__wheel_create(struct tr_system *system, uint64_t now_ms);
void tr__wheel_destroy(struct tr__wheel *wheel);
/* Fire what is due. */
void tr__wheel_advance(struct tr__wheel *wheel, uint64_t now_ns, struct tr__worker *worker);
void tr__timer_set(struct tr__wheel *wheel, struct tr__timer *timer, uint64_t expires_ns);
/* Unlink a timer. False if it has fired or is firing. */
bool tr__timer_cancel(struct tr__timer *timer);
/* Return when the next timer of the system is due; UINT64_MAX if there is none. */
uint64_t tr__system_next_ms(struct tr_system *system);

/* ---- of actors: called in the actor's turn -------------------------------------------------- */

int tr__actor_timer(struct tr__worker *worker, struct tr_box *box, uint64_t delay_ns,
    uint64_t period_ns, uint32_t tag, bool is_grace, uint64_t *ret_id);
bool tr__actor_timer_stop(struct tr_box *box, uint64_t id);
/* Fill the event of a TIMER cell and free a one-shot timer. False if the timer was stopped. */
bool tr__actor_timer_take(
    struct tr__worker *worker, struct tr_box *box, uint64_t opt, struct tr_event *event);
void tr__actor_timers_fini(struct tr_box *box, struct tr__ext *ext);

#endif
