/* SPDX-License-Identifier: Apache-2.0 */
/* commit_fairness.c: every member gets a commit through. A member whose commits lost twice in a
 * row queues for a turn. During its turn, commits of other members for the current epoch wait, so
 * the member has time to make its commit anew, and wins. The turn ends with the member's commit, or
 * after delivery->turn_ms. After an unused turn the member gets no other for PENALTY_TURNS turns'
 * time, so a member that loses on purpose cannot block the others.
 *
 *   loss ──▶ listed ──second loss──▶ queued ──first in queue──▶ has the turn ──commit──▶ removed
 *              ▲                                                     │
 *              └──────────────────── the time is up ─────────────────┘
 *
 * 1. At most one member has the turn. While one has it, the timer runs.
 * 2. The queue is in memory only: a restarted actor begins with an empty one. */
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/convo/convo.h"

enum { LOSSES = 2, LOSERS_MAX = 64, PENALTY_TURNS = 20 };

struct convo_loser {
    struct convo_loser *next; /* the newest is first */
    uint32_t losses;
    uint64_t ticket; /* the lowest is first in the queue; 0: not queued */
    uint64_t no_turn_until_ns;
    struct span did;
    char did_bytes[];
};

static uint64_t turn_ns(const struct convo *convo)
{
    return (uint64_t)convo->delivery->turn_ms * 1000000;
}

static struct convo_loser **loser_link(struct convo *convo, struct span did)
{
    struct convo_loser **link = &convo->losers;

    while (*link != NULL && !span_equal((*link)->did, did))
        link = &(*link)->next;
    return link;
}

static void loser_destroy(struct convo *convo, struct convo_loser **link)
{
    struct convo_loser *loser = *link;

    tr_assert(convo->loser_count > 0);
    *link = loser->next;
    convo->loser_count--;
    base_free(loser);
}

/* Lists an account, in place of the oldest one that is not queued if there are too many. That one
 * loses its count of losses and its pause. */
static struct convo_loser *loser_create(struct convo *convo, struct span did)
{
    struct convo_loser **oldest = NULL;
    struct convo_loser *loser = NULL;

    for (struct convo_loser **link = &convo->losers; *link != NULL; link = &(*link)->next)
        if ((*link)->ticket == 0)
            oldest = link;
    if (convo->loser_count < LOSERS_MAX || oldest != NULL)
        loser = base_calloc(sizeof *loser + did.size);
    if (loser == NULL)
        return NULL;
    if (convo->loser_count >= LOSERS_MAX) {
        tr_assert(oldest != NULL);
        loser_destroy(convo, oldest);
    }
    memcpy(loser->did_bytes, did.at, did.size);
    loser->did = (struct span){ loser->did_bytes, did.size };
    loser->next = convo->losers;
    convo->losers = loser;
    convo->loser_count++;
    return loser;
}

/* Starts the turn of the first queued member, unless a turn is under way or there is no memory for
 * the timer that ends it. */
static void turn_start(struct convo *convo, struct tr_context *ctx)
{
    struct convo_loser *first = NULL;
    /* Read before the timer is set: the timer fires once, and not before this time. */
    uint64_t until_ns = tr_now_ns(ctx) + turn_ns(convo);

    for (struct convo_loser *at = convo->losers; at != NULL; at = at->next)
        if (at->ticket != 0 && (first == NULL || at->ticket < first->ticket))
            first = at;
    if (convo->turn != NULL || first == NULL ||
        tr_after(ctx, turn_ns(convo), CONVO_TAG_TURN, &convo->turn_timer) < 0)
        return;
    convo->turn = first;
    tr_registry_keep(ctx); /* acts wait for the timer, so the actor must not be passivated */
    convo->turn_until_ns = until_ns;
    delivery_metrics_add(DELIVERY_METRIC_TURNS, 1);
}

bool commit_fairness_is_anothers(const struct convo *convo, struct span did)
{
    return convo->turn != NULL && !span_equal(convo->turn->did, did);
}

uint64_t commit_fairness_wait_ms(const struct convo *convo, struct span did)
{
    const struct tr_env *env = convo->delivery->env;
    uint64_t now_ns = env->now_ns(env->data);

    if (!commit_fairness_is_anothers(convo, did) || now_ns >= convo->turn_until_ns)
        return 0;
    return (convo->turn_until_ns - now_ns + 999999) / 1000000;
}

void commit_fairness_lost(struct convo *convo, struct tr_context *ctx, struct span did)
{
    struct convo_loser *loser = *loser_link(convo, did);

    if (convo->delivery->turn_ms == 0)
        return;
    if (loser == NULL)
        loser = loser_create(convo, did);
    if (loser == NULL)
        return; /* out of memory, or all LOSERS_MAX entries are queued: no turn */
    loser->losses++;
    if (loser->losses < LOSSES || loser->ticket != 0 || tr_now_ns(ctx) < loser->no_turn_until_ns)
        return;
    loser->ticket = ++convo->loser_tickets;
    turn_start(convo, ctx);
}

void commit_fairness_won(struct convo *convo, struct tr_context *ctx, struct span did)
{
    struct convo_loser **link = loser_link(convo, did);
    struct convo_loser *loser = *link;

    if (loser == NULL)
        return;
    if (loser == convo->turn) {
        (void)tr_timer_stop(ctx, convo->turn_timer);
        tr_registry_release(ctx);
        convo->turn = NULL;
    }
    loser_destroy(convo, link);
    turn_start(convo, ctx);
}

bool commit_fairness_expired(struct convo *convo, struct tr_context *ctx)
{
    struct convo_loser *loser = convo->turn;
    uint64_t now_ns = tr_now_ns(ctx);

    if (loser == NULL || now_ns < convo->turn_until_ns)
        return false; /* the turn of this timer has ended already, by a commit */
    tr_assert(loser->ticket != 0);
    delivery_metrics_add(DELIVERY_METRIC_TURNS_UNUSED, 1);
    tr_registry_release(ctx);
    convo->turn = NULL;
    loser->ticket = 0;
    loser->losses = 0;
    loser->no_turn_until_ns = now_ns + turn_ns(convo) * PENALTY_TURNS;
    turn_start(convo, ctx);
    return true;
}

void commit_fairness_end(struct convo *convo)
{
    while (convo->losers != NULL)
        loser_destroy(convo, &convo->losers);
    convo->turn = NULL;
}
