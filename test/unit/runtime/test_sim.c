/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation as a user sees it. The scenarios in test/sim use it; this is what they may count
 * on. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>

#include <troupe/troupe.h>

#include "check.h"

#define MS UINT64_C(1000000)

struct message {
    uint32_t what;
    uint32_t value;
};
enum { ADD, ASK, LATER, DESCRIPTOR, SIGNAL, STEP, WORK, DROPPED };

struct counter {
    uint32_t sum, ticks;
    uint64_t ticked_ns;
    tr_reply_handle later;
};

static struct tr_sim *sim; /* of the case: for what is wrong to do in a handler */

static int add_one(void *argument)
{
    ++*(uint32_t *)argument;
    return 7;
}

static enum tr_next counter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct counter *self = state;
    const struct message *m = message;

    switch (m->what) {
    case ADD:
        self->sum += m->value;
        break;
    case ASK:
        tr_reply(ctx, 0, &self->sum, sizeof self->sum);
        break;
    case LATER:
        self->later = tr_reply_take(ctx);
        CHECK_EQ_INT(tr_after(ctx, m->value * MS, 1, NULL), 0);
        break;
    case DESCRIPTOR:
        tr_fd_watch(ctx, 0, EPOLLIN, 0);
        break;
    case SIGNAL:
        tr_signal_watch(ctx, SIGUSR1, 0);
        break;
    case STEP:
        tr_sim_step(sim);
        break;
    case WORK:
        CHECK_EQ_INT(tr_offload(ctx, add_one, &self->ticks, NULL, 2), 0);
        break;
    default:
        break;
    }
    return TR_GO;
}

static enum tr_next counter_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct counter *self = state;

    if (event->kind == TR_EVENT_TIMER) {
        self->ticked_ns = tr_now_ns(ctx);
        tr_reply_send(&self->later, 0, &self->ticked_ns, sizeof self->ticked_ns);
    } else if (event->kind == TR_EVENT_WORK) {
        CHECK_EQ_INT(event->status, 7);
        self->sum += 100;
    }
    return TR_GO;
}

static const struct tr_type counter_type = {
    .name = "counter",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct counter),
    .handle = counter_handle,
    .event = counter_event,
};

static tr_sender begin(uint64_t seed)
{
    static const struct counter fresh;
    tr_sender sender;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim), 0);
    CHECK_EQ_INT(tr_spawn(tr_sim_system(sim), &counter_type, &fresh, NULL, &sender), 0);
    return sender;
}

static int send(tr_sender to, uint32_t what, uint32_t value)
{
    struct message m = { what, value };

    return tr_tell(to, &m, sizeof m);
}

TEST(sim, does_nothing_until_it_is_stepped)
{
    tr_sender counter = begin(1);

    CHECK_EQ_INT(send(counter, ADD, 3), 0);
    CHECK_EQ_U64(tr_sender_depth(counter), 1);
    CHECK(tr_sim_step(sim));
    CHECK_EQ_U64(tr_sender_depth(counter), 0);
    CHECK(!tr_sim_step(sim));
    tr_sender_drop(&counter);
    CHECK_EQ_U64(tr_sim_run(sim, 0), 1);
    tr_sim_destroy(&sim);
}

TEST(sim, time_stands_still_while_anything_runs_and_then_jumps)
{
    tr_sender counter = begin(1);
    uint64_t start = tr_sim_now_ns(sim), answered = 0;
    struct message later = { LATER, 5000 };
    struct tr_future *future;

    CHECK_EQ_INT(tr_ask_future(counter, &later, sizeof later, 0, &future), 0);
    CHECK(tr_sim_step(sim));
    CHECK_EQ_U64(tr_sim_now_ns(sim), start);
    CHECK(!tr_future_is_ended(future));
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(tr_future_wait(future, &answered, sizeof answered, NULL, 0), 0);
    CHECK_EQ_U64(answered, start + 5000 * MS);
    CHECK_EQ_U64(tr_sim_now_ns(sim), start + 5000 * MS);
    tr_future_drop(&future);
    tr_sender_drop(&counter);
    tr_sim_destroy(&sim);
}

TEST(sim, runs_until_a_time_and_no_further)
{
    tr_sender counter = begin(1);
    uint64_t start = tr_sim_now_ns(sim);
    struct message later = { LATER, 50 };
    struct tr_future *future;

    CHECK_EQ_INT(tr_ask_future(counter, &later, sizeof later, 0, &future), 0);
    tr_sim_run_until(sim, start + 49 * MS);
    CHECK_EQ_U64(tr_sim_now_ns(sim), start + 49 * MS);
    CHECK(!tr_future_is_ended(future));
    tr_sim_run_until(sim, start + 50 * MS);
    CHECK(tr_future_is_ended(future));
    tr_future_drop(&future);
    tr_sender_drop(&counter);
    tr_sim_destroy(&sim);
}

TEST(sim, waiting_drives_it)
{
    tr_sender counter = begin(1);
    struct message ask = { ASK, 0 }, later = { LATER, 20 }, never = { DROPPED, 0 };
    uint32_t sum = 0;
    uint64_t at = 0;

    CHECK_EQ_INT(send(counter, ADD, 4), 0);
    CHECK_EQ_INT(tr_ask_wait(counter, &ask, sizeof ask, &sum, sizeof sum, 0), 0);
    CHECK_EQ_U64(sum, 4);
    CHECK_EQ_INT(tr_ask_wait(counter, &later, sizeof later, &at, sizeof at, 10 * MS), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_ask_wait(counter, &never, sizeof never, NULL, 0, 0), TR_EDROPPED);
    tr_sender_drop(&counter);
    CHECK_EQ_INT(tr_system_join(tr_sim_system(sim), 0), 0);
    tr_sim_destroy(&sim);
}

TEST(sim, waiting_for_what_never_comes_ends)
{
    tr_sender counter = begin(1);

    CHECK_EQ_INT(tr_sender_wait_closed(counter, 0), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_system_join(tr_sim_system(sim), 0), TR_ETIMEOUT);
    tr_sender_drop(&counter);
    tr_sim_destroy(&sim);
}

TEST(sim, blocking_work_runs_inline)
{
    tr_sender counter = begin(1);
    struct message ask = { ASK, 0 };
    uint32_t sum;

    CHECK_EQ_INT(send(counter, WORK, 0), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(tr_ask_wait(counter, &ask, sizeof ask, &sum, sizeof sum, 0), 0);
    CHECK_EQ_U64(sum, 100);
    tr_sender_drop(&counter);
    tr_sim_destroy(&sim);
}

static uint64_t trace_of(uint64_t seed, uint32_t messages, uint64_t note)
{
    tr_sender counter = begin(seed);
    uint64_t trace;

    for (uint32_t i = 0; i < messages; i++)
        CHECK_EQ_INT(send(counter, i % 2 == 0 ? ADD : LATER, 3), 0);
    tr_sim_note(sim, note);
    tr_sender_drop(&counter);
    tr_sim_run(sim, 0);
    trace = tr_sim_trace(sim);
    tr_sim_destroy(&sim);
    return trace;
}

TEST(sim, equal_seeds_and_inputs_give_equal_traces)
{
    CHECK_EQ_U64(trace_of(5, 10, 0), trace_of(5, 10, 0));
    CHECK(trace_of(5, 10, 0) != trace_of(6, 10, 0));
    CHECK(trace_of(5, 10, 0) != trace_of(5, 11, 0));
    CHECK(trace_of(5, 10, 0) != trace_of(5, 10, 1));
}

TEST(sim, destroying_it_answers_whoever_asked)
{
    tr_sender counter = begin(1);
    struct message later = { LATER, 20 };
    struct tr_future *taken, *queued;

    CHECK_EQ_INT(tr_ask_future(counter, &later, sizeof later, 0, &taken), 0);
    tr_sim_step(sim);
    CHECK_EQ_INT(tr_ask_future(counter, &later, sizeof later, 0, &queued), 0);
    tr_sim_destroy(&sim);
    CHECK(tr_future_is_ended(taken) && tr_future_is_ended(queued));
    tr_future_drop(&taken);
    tr_future_drop(&queued);
}

TEST(sim, kills_at_the_chance_it_is_given)
{
    static const struct counter fresh;
    tr_sender senders[200];
    struct tr_system_stats stats;

    CHECK_EQ_INT(
        tr_sim_create(&(struct tr_sim_options){ .seed = 1, .kill_per_million = 500000 }, &sim), 0);
    for (uint32_t i = 0; i < 200; i++) {
        CHECK_EQ_INT(tr_spawn(tr_sim_system(sim), &counter_type, &fresh, NULL, &senders[i]), 0);
        CHECK_EQ_INT(send(senders[i], ADD, 1), 0);
    }
    tr_sim_run(sim, 0);
    tr_system_stats(tr_sim_system(sim), &stats);
    CHECK(stats.live > 50 && stats.live < 150);
    CHECK_EQ_U64(stats.live, stats.handled);
    for (uint32_t i = 0; i < 200; i++)
        tr_sender_drop(&senders[i]);
    tr_sim_destroy(&sim);
}

TEST_ABORTS(sim, a_real_descriptor_aborts, "could not be replayed")
{
    tr_sender counter = begin(1);

    CHECK_EQ_INT(send(counter, DESCRIPTOR, 0), 0);
    tr_sim_step(sim);
}

TEST_ABORTS(sim, a_real_signal_aborts, "could not be replayed")
{
    tr_sender counter = begin(1);

    CHECK_EQ_INT(send(counter, SIGNAL, 0), 0);
    tr_sim_step(sim);
}

TEST_ABORTS(sim, stepping_it_from_inside_aborts, "not stepped from inside")
{
    tr_sender counter = begin(1);

    CHECK_EQ_INT(send(counter, STEP, 0), 0);
    tr_sim_step(sim);
}

TEST_ABORTS(sim, a_process_actor_aborts, "could not be replayed")
{
    begin(1);
    tr_process_start(tr_sim_system(sim), NULL, 0);
}
