/* SPDX-License-Identifier: Apache-2.0 */
/* ask_record.c: the record of an ask that a deadline, a token or a dropped future may end.
 *
 *            tr__ask_accept                  tr__ask_end
 *   ACCEPTING <----------> OPEN ----------------------------> ENDED
 *
 *   1. The thread that moves the state from OPEN to ENDED delivers the end, to the asking actor or
 *      to the future. Every other end is late and says nothing.
 *   2. ACCEPTING lasts a few instructions: an end waits for it, so the first stage never comes
 *      after the last.
 *   3. Arming runs after the message is in the box, so the answer may be there already. It stores
 *      the timer, then looks at the state; an end moves the state, then looks at the timer. Both
 *      are sequentially consistent: one of the two sees the other and detaches. */

#include "base/alloc.h"
#include "runtime/ask.h"
#include "runtime/system.h"

int tr__ask_create(struct tr_system *system, struct tr_box *asker, uint64_t deadline_ns,
    struct tr_cancel *cancel, struct tr__ask **ret_ask)
{
    struct tr__ask *ask = base_calloc(sizeof *ask);

    if (ask == NULL)
        return TR_ENOMEM;
    tr__set(ask->refs, 1);
    ask->asker = asker;
    ask->system = system;
    ask->deadline_ns = deadline_ns;
    tr__list_init(&ask->by_cancel);
    ask->cancel = cancel;
    if (cancel != NULL)
        tr__cancel_ref(cancel);
    *ret_ask = ask;
    return 0;
}

void tr__ask_unref(struct tr__ask *ask)
{
    if (atomic_fetch_sub_explicit(&ask->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (ask->cancel != NULL)
        tr__cancel_unref(ask->cancel);
    base_free(ask->value);
    base_free(ask);
}

static struct tr__reply_to ask_reply_to(const struct tr__ask *ask)
{
    return (struct tr__reply_to){ ask->asker, ask->tag, ask->sequence, ask->hold };
}

bool tr__ask_end(struct tr__ask *ask, int status, const void *value, size_t size)
{
    uint32_t open = ASK_OPEN;

    /* Sequentially consistent with tr__ask_arm: invariant 3. */
    while (!atomic_compare_exchange_strong_explicit(
        &ask->state, &open, ASK_ENDED, memory_order_seq_cst, memory_order_relaxed)) {
        if (open == ASK_ENDED)
            return false;
        open = ASK_OPEN;
        sched_yield(); /* ACCEPTING: a few instructions */
    }
    tr__point();
    if (ask->asker != NULL) {
        struct tr__reply_to to = ask_reply_to(ask);

        tr__reply_deliver(&to, status, value, size);
    } else {
        tr__future_store(ask, status, value, size);
    }
    return true;
}

int tr__ask_accept(struct tr__ask *ask)
{
    uint32_t open = ASK_OPEN;

    if (!atomic_compare_exchange_strong_explicit(
            &ask->state, &open, ASK_ACCEPTING, memory_order_acq_rel, memory_order_relaxed))
        return TR_ECANCELLED;
    tr__point();
    if (ask->asker == NULL) {
        atomic_store_explicit(&ask->accepted, 1, memory_order_release);
        tr__futex_wake(&ask->accepted);
    } else {
        /* Not ended, so the asker's slot is still the asker's. */
        struct tr__reply_to to = ask_reply_to(ask);

        tr__reply_deliver_accepted(&to);
    }
    atomic_store_explicit(&ask->state, ASK_OPEN, memory_order_release);
    return 0;
}

void tr__ask_detach(struct tr__ask *ask)
{
    if (atomic_exchange_explicit(&ask->has_timer, false, memory_order_seq_cst) &&
        tr__timer_cancel(&ask->timer))
        tr__ask_unref(ask); /* the timer's */
    tr__cancel_unlist(ask);
}

bool tr__ask_answer(struct tr__ask *ask, int status, const void *value, size_t size)
{
    bool first = tr__ask_end(ask, status, value, size);

    tr__point();
    tr__ask_detach(ask);
    tr__ask_unref(ask);
    return first;
}

static void on_ask_timeout(struct tr__timer *timer, struct tr__worker *worker)
{
    struct tr__ask *ask = tr__container(timer, struct tr__ask, timer);

    (void)worker;
    tr__ask_end(ask, TR_ETIMEOUT, NULL, 0);
    /* A future may outlive its system: it must not look for the wheel. */
    atomic_store_explicit(&ask->has_timer, false, memory_order_seq_cst);
    tr__ask_unref(ask);
}

void tr__ask_arm(struct tr__ask *ask, struct tr__wheel *wheel)
{
    tr__point();
    if (ask->cancel != NULL && !tr__cancel_list(ask->cancel, ask))
        tr__ask_end(ask, TR_ECANCELLED, NULL, 0);
    if (ask->deadline_ns != 0) {
        atomic_fetch_add_explicit(&ask->refs, 1, memory_order_relaxed);
        ask->timer.fire = on_ask_timeout;
        tr__timer_set(wheel, &ask->timer, ask->deadline_ns);
        atomic_store_explicit(&ask->has_timer, true, memory_order_seq_cst);
    }
    /* Ended meanwhile? Then that thread may have missed the timer or the token's list. */
    if (atomic_load_explicit(&ask->state, memory_order_seq_cst) == ASK_ENDED)
        tr__ask_detach(ask);
}
