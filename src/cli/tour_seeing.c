/* SPDX-License-Identifier: Apache-2.0 */
/* tour_seeing.c: the same actor in a simulation, and the counters of a running system. */
#include <inttypes.h>
#include <string.h>

#include "cli/tour.h"

static const uint64_t ms_ns = 1000000;

/* ---- 8: simulation -------------------------------------------------------------------------- */

enum { CUSTOMERS = 4 };

/* Asks for one number and notes it in `order`. */
struct customer {
    ids_sender ids; /* owned */
    char name;
    char *order; /* shared: the names in the order of their numbers */
};

static int customer_start(void *state, struct tr_context *ctx)
{
    struct customer *self = state;

    return ids_ask(ctx, self->ids, IDS_GET, NULL);
}

static enum tr_next customer_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next customer_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct customer *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_REPLY && event->status == 0)
        self->order[*(const uint32_t *)event->value] = self->name;
    return TR_STOP;
}

static void customer_finish(void *state)
{
    struct customer *self = state;

    ids_drop(&self->ids);
}

static const struct tr_type customer_type = {
    .name = "customer",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct customer),
    .start = customer_start,
    .handle = customer_handle,
    .event = customer_event,
    .finish = customer_finish,
};

static uint64_t run_seed(uint64_t seed)
{
    char order[CUSTOMERS + 1] = "????";
    struct ids ids = { 0 };
    tr_sender senders[CUSTOMERS];
    struct tr_sim *sim;
    ids_sender sender;
    uint64_t trace;

    tour_must(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim));
    tour_must(ids_spawn(tr_sim_system(sim), &ids, NULL, &sender));
    for (int i = 0; i < CUSTOMERS; i++) {
        struct customer customer = { ids_clone(sender, "customer"), (char)('A' + i), order };

        tour_must(tr_spawn(tr_sim_system(sim), &customer_type, &customer, NULL, &senders[i]));
    }
    ids_drop(&sender);
    tr_sim_run(sim, 0);
    for (int i = 0; i < CUSTOMERS; i++)
        tr_sender_drop(&senders[i]);
    tr_sim_run(sim, 0);
    trace = tr_sim_trace(sim);
    tr_sim_destroy(&sim);
    tour_print("seed %" PRIu64 ": served in the order %s, trace %016" PRIx64, seed, order, trace);
    return trace;
}

static void run_simulation(void)
{
    uint64_t first = run_seed(1), again = run_seed(1), other = run_seed(2);

    tour_print("the same seed gives %s trace, another seed %s",
        first == again ? "the same" : "ANOTHER", first == other ? "THE SAME" : "another");
}

const struct tour_step tour_simulation = {
    .title = "The same actor in a simulation",
    .text = "   One thread, a clock that jumps, and a seed that decides who runs next, what\n"
            "   the network loses and what a power cut leaves on the disk. Equal seeds give\n"
            "   equal traces, the hash of every event: you can replay a failure from its\n"
            "   seed for ever.\n",
    .run = run_simulation,
};

/* ---- 9: a live table ------------------------------------------------------------------------ */

enum member_message { MEMBER_WORK, MEMBER_WAIT, MEMBER_FLOOD, MEMBER_PAUSE };

/* Plays every part of the table: it works without end, waits for an answer, floods a full box, or
 * answers late. */
struct member {
    tr_sender other; /* owned */
    tr_reply_handle asker;
};

static enum tr_next member_handle(void *state, struct tr_context *ctx, void *message)
{
    struct member *self = state;
    enum member_message work = MEMBER_WORK, wait = MEMBER_WAIT;
    int rc = 0;

    switch (*(const enum member_message *)message) {
    case MEMBER_WORK: /* for ever */
        rc = tr_self_tell(ctx, &work, sizeof work);
        break;
    case MEMBER_WAIT:
        if (self->other.box != NULL) {
            rc = tr_ask(
                ctx, self->other, &wait, sizeof wait, &(struct tr_ask_options){ .hold = true });
        } else {
            self->asker = tr_reply_take(ctx); /* the runtime answers it when this actor ends */
        }
        break;
    case MEMBER_FLOOD:
        while (rc == 0)
            rc = tr_tell(self->other, &wait, sizeof wait);
        if (rc == TR_EFULL) {
            tr_again(ctx);
            rc = 0;
        }
        break;
    case MEMBER_PAUSE:
        self->asker = tr_reply_take(ctx);
        rc = tr_after(ctx, 100 * ms_ns, 0, NULL);
        break;
    }
    return rc < 0 ? TR_FAIL : TR_GO;
}

static enum tr_next member_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct member *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_TIMER)
        tr_reply_send(&self->asker, 0, NULL, 0);
    return TR_GO;
}

static void member_finish(void *state)
{
    struct member *self = state;

    tr_sender_drop(&self->other);
}

static const struct tr_type member_type = {
    .name = "member",
    .message_size = sizeof(enum member_message),
    .state_size = sizeof(struct member),
    .handle = member_handle,
    .event = member_event,
    .finish = member_finish,
};
TR_ACTOR(member, struct member, enum member_message)

static member_sender member_start(
    struct tr_system *system, const char *name, uint32_t capacity, tr_sender other)
{
    struct member member = { .other = other };
    member_sender sender;

    tour_must(member_spawn(system, &member,
        &(struct tr_spawn_options){ .name = name, .owner = "tour", .box.capacity = capacity },
        &sender));
    return sender;
}

static bool print_row(void *data, const struct tr_actor_info *info)
{
    struct tr_actor_info other = { .name = "-" };

    tr_inspect_one(data, info->waiting_on, &other);
    tour_print("%-8s %-8s %4u of %-5u %8" PRIu64 "  %s", info->name, tr_doing_text(info->doing),
        info->depth, info->capacity, info->handled, other.name);
    return true;
}

static void run_live(void)
{
    struct tr_system_options options = tour_threads(2);
    struct tr_system *system;
    struct tr_system_stats stats;
    member_sender busy, bank, till, crowd, clock;

    tour_must(tr_system_create(&options, &system));
    busy = member_start(system, "busy", 0, (tr_sender){ 0 });
    bank = member_start(system, "bank", 0, (tr_sender){ 0 });
    till = member_start(system, "till", 16, member_clone(bank, "till").raw);
    crowd = member_start(system, "crowd", 0, member_clone(till, "crowd").raw);
    clock = member_start(system, "clock", 0, (tr_sender){ 0 });
    tour_must(member_tell(busy, MEMBER_WORK));
    tour_must(member_tell(crowd, MEMBER_FLOOD));
    tour_must(member_ask_wait(clock, MEMBER_PAUSE, NULL, 0, 0)); /* 100 ms */

    tour_print("%-8s %-8s %4s    %-5s %8s  %s", "name", "doing", "box", "", "handled", "waits for");
    tr_inspect(system, print_row, system);

    member_drop(&clock);
    member_drop(&crowd);
    member_drop(&till);
    member_drop(&bank);
    tr_stop(tr_sender_weaken(busy.raw)); /* it never ends by itself */
    member_drop(&busy);
    /* till holds for an answer of bank; when bank stops, the runtime answers till. */
    tour_must(tr_system_drain(system, 0));
    tr_system_stats(system, &stats);
    tour_print("in the end: %" PRIu64 " sent = %" PRIu64 " handled + %" PRIu64
               " dead letters + %" PRIu64 " queued",
        stats.sent, stats.handled, stats.dead, stats.queued);
    tr_system_destroy(&system);
}

const struct tour_step tour_live = {
    .title = "A table of running actors",
    .text = "   Five actors on two threads: one works without end, one floods a box of 16,\n"
            "   whose owner holds for an answer that does not come. The table shows their\n"
            "   counters; reading it stops no actor.\n",
    .run = run_live,
};
