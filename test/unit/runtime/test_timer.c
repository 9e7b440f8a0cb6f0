/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "puppet.h"

/* A clock's keeper: sets timers as its messages say and checks each when it fires. */
struct alarm {
    uint64_t due_ns;
    uint64_t id;
    unsigned fired;
};

struct keeper {
    struct alarm *alarms;
    uint32_t count;
    uint64_t last_ns;
    unsigned fired;
};

struct keeper_message {
    enum { KEEPER_SET, KEEPER_STOP, KEEPER_STOP_ODD } kind;
    uint32_t first, count;
    const uint64_t *delays_ns;
};

static enum tr_next keeper_handle(void *state, struct tr_context *ctx, void *message)
{
    struct keeper *self = state;
    struct keeper_message *m = message;

    for (uint32_t i = m->first; i < m->first + m->count; i++) {
        switch (m->kind) {
        case KEEPER_SET:
            self->alarms[i].due_ns = tr_now_ns(ctx) + m->delays_ns[i];
            CHECK_EQ_INT(tr_after(ctx, m->delays_ns[i], i, &self->alarms[i].id), 0);
            break;
        case KEEPER_STOP_ODD:
            if (i % 2 == 0)
                break;
            CHECK(tr_timer_stop(ctx, self->alarms[i].id));
            CHECK(!tr_timer_stop(ctx, self->alarms[i].id));
            break;
        case KEEPER_STOP:
            CHECK(tr_timer_stop(ctx, self->alarms[i].id));
            break;
        }
    }
    return TR_GO;
}

static enum tr_next keeper_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct keeper *self = state;
    struct alarm *alarm = &self->alarms[event->tag];
    uint64_t now = tr_now_ns(ctx);

    CHECK_EQ_INT(event->kind, TR_EVENT_TIMER);
    CHECK_EQ_U64(event->id, alarm->id);
    alarm->fired++;
    self->fired++;
    CHECK_MSG(now >= alarm->due_ns, "a timer came %llu ns early",
        (unsigned long long)(alarm->due_ns - now));
    /* The virtual clock stands still for as long as anything runs: it is off by the wheel's tick
     * alone. */
    CHECK_MSG(now - alarm->due_ns <= ms(1), "a timer came %llu ns late",
        (unsigned long long)(now - alarm->due_ns));
    CHECK(now >= self->last_ns);
    self->last_ns = now;
    return TR_GO;
}

static const struct tr_type keeper_type = { .name = "keeper",
    .message_size = sizeof(struct keeper_message),
    .state_size = sizeof(struct keeper),
    .handle = keeper_handle,
    .event = keeper_event };

static struct keeper run_keeper(
    uint64_t seed, const uint64_t *delays_ns, uint32_t count, int then, struct alarm *alarms)
{
    struct tr_sim *sim = simulation(seed);
    struct keeper state = { .alarms = alarms, .count = count };
    struct tr_done *done;
    tr_sender sender;

    CHECK_EQ_INT(tr_spawn(tr_sim_system(sim), &keeper_type, &state,
                     &(struct tr_spawn_options){ .ret_done = &done }, &sender),
        0);
    CHECK_EQ_INT(
        tr_tell(sender,
            &(struct keeper_message){ .kind = KEEPER_SET, .count = count, .delays_ns = delays_ns },
            sizeof(struct keeper_message)),
        0);
    if (then != KEEPER_SET)
        CHECK_EQ_INT(
            tr_tell(sender,
                &(struct keeper_message){
                    .kind = then == KEEPER_STOP ? KEEPER_STOP : KEEPER_STOP_ODD, .count = count },
                sizeof(struct keeper_message)),
            0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim)); /* all set, none fired */
    CHECK_EQ_U64(stats_of(tr_sim_system(sim)).timers, then == KEEPER_SET    ? count
                                                      : then == KEEPER_STOP ? 0
                                                                            : (count + 1) / 2);
    tr_sim_run(sim, 0);
    CHECK_EQ_U64(stats_of(tr_sim_system(sim)).timers, 0);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(tr_done_wait(&done, &state, NULL, 0), 0);
    finish_simulation(&sim);
    return state;
}

/* ---- when ----------------------------------------------------------------------------------- */

TEST(timer, fires_once_when_it_is_due)
{
    const uint64_t delays[] = { ms(5) };
    struct alarm alarms[1] = { 0 };

    CHECK_EQ_INT(run_keeper(check_seed(), delays, 1, KEEPER_SET, alarms).fired, 1);
    CHECK_EQ_INT(alarms[0].fired, 1);
}

TEST(timer, fires_in_the_order_of_the_due_times)
{
    uint64_t delays[200];
    static struct alarm alarms[200];

    for (uint64_t i = 0; i < 200; i++)
        delays[i] = ms(1 + (i * 73) % 200);
    CHECK_EQ_INT(run_keeper(check_seed(), delays, 200, KEEPER_SET, alarms).fired, 200);
}

TEST(timer, of_any_distance_fires_when_it_is_due)
{
    /* Around every turn of every level of the wheel, and past its end (2^36 ms: over two years). */
    static uint64_t delays[1000];
    static struct alarm alarms[1000];
    uint32_t count = 0;

    delays[count++] = 0;
    delays[count++] = 1;
    delays[count++] = 999999;
    delays[count++] = 1000000;
    delays[count++] = 1000001;
    for (uint32_t level = 1; level <= 6; level++)
        for (uint64_t around = 0; around < 5; around++)
            for (uint64_t turns = 1; turns <= 3; turns++)
                delays[count++] = ms((turns << (6 * level)) - 2 + around);
    delays[count++] = ms(UINT64_C(3) * 365 * 24 * 3600 * 1000);
    CHECK_EQ_INT(run_keeper(check_seed(), delays, count, KEEPER_SET, alarms).fired, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ_INT(alarms[i].fired, 1);
}

TEST(timer, of_random_distances_fires_when_it_is_due)
{
    static uint64_t delays[2000];
    static struct alarm alarms[2000];

    for (uint64_t seed; check_each_seed(&seed, 20);) {
        uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

        memset(alarms, 0, sizeof alarms);
        for (uint32_t i = 0; i < 2000; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            delays[i] = x % (ms(1) << (x >> 32) % 30);
        }
        CHECK_EQ_INT(run_keeper(seed, delays, 2000, KEEPER_SET, alarms).fired, 2000);
    }
}

TEST_LONG(timer, by_the_hundred_thousand_all_fire, 60)
{
    enum { COUNT = 100000 };
    uint64_t *delays = malloc(COUNT * sizeof *delays);
    struct alarm *alarms = calloc(COUNT, sizeof *alarms);

    for (uint64_t i = 0; i < COUNT; i++)
        delays[i] = ms((i * 7919) % 60000);
    CHECK_EQ_INT(run_keeper(check_seed(), delays, COUNT, KEEPER_SET, alarms).fired, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK_EQ_INT(alarms[i].fired, 1);
    free(delays);
    free(alarms);
}

TEST_LONG(timer, by_the_hundred_thousand_is_stopped_and_none_fires, 60)
{
    enum { COUNT = 100000 };
    uint64_t *delays = malloc(COUNT * sizeof *delays);
    struct alarm *alarms = calloc(COUNT, sizeof *alarms);

    for (uint64_t i = 0; i < COUNT; i++)
        delays[i] = ms((i * 7919) % 60000);
    CHECK_EQ_INT(run_keeper(check_seed(), delays, COUNT, KEEPER_STOP, alarms).fired, 0);
    free(delays);
    free(alarms);
}

TEST(timer, stopped_does_not_disturb_the_others)
{
    static uint64_t delays[1000];
    static struct alarm alarms[1000];

    for (uint64_t i = 0; i < 1000; i++)
        delays[i] = ms(1 + (i * 37) % 500);
    CHECK_EQ_INT(run_keeper(check_seed(), delays, 1000, KEEPER_STOP_ODD, alarms).fired, 500);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ_INT(alarms[i].fired, i % 2 == 0);
}

/* ---- stopping ------------------------------------------------------------------------------- */

static uint64_t timer_id;

/* Set a timer of as many milliseconds as the number says. */
static enum tr_next set_timer(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_after(ctx, ms(m->number), (uint32_t)m->number, &timer_id), 0);
    return TR_GO;
}

static enum tr_next set_every(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_every(ctx, ms(m->number), (uint32_t)m->number, &timer_id), 0);
    return TR_GO;
}

static enum tr_next stop_timer(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    note(self, tr_timer_stop(ctx, timer_id));
    return TR_GO;
}

static enum tr_next stop_own(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    note(self, tr_timer_stop(ctx, event->id));
    return TR_GO;
}

TEST(timer, that_has_fired_is_not_stopped_any_more)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(
        tr_sim_system(sim), (struct puppet){ .notes = &notes, .on_event = stop_own }, NULL);

    CHECK_EQ_INT(puppet_tell(sender, set_timer, 3), 0);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, 0); /* in its own event */
    CHECK_EQ_INT(puppet_tell(sender, stop_timer, 0), 0);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, 0, 0);
    CHECK_EQ_INT(notes.event_count, 1);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

/* Stop the timer that is on its way: its event waits behind this message in the box. */
static enum tr_next stop_held(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->kind == TR_EVENT_REPLY)
        note(self, tr_timer_stop(ctx, timer_id));
    return TR_GO;
}

static enum tr_next hold_for(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    self->asked = (struct puppet_message){ .run = puppet_take };
    self->ask = (struct tr_ask_options){ .hold = true, .timeout_ns = ms(m->number) };
    return puppet_ask(self, ctx, m);
}

TEST(timer, that_is_on_its_way_is_stopped_and_its_event_does_not_come)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender =
        puppet_spawn_with(system, (struct puppet){ .notes = &notes, .on_event = stop_held }, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, set_timer, 5), 0);
    CHECK_EQ_INT(
        puppet_tell(sender, hold_for, 20), 0); /* it fires while nothing but control runs */
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, 1);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_EQ_INT(notes.events[0].kind, TR_EVENT_REPLY);
    /* Its place is free for another one. */
    CHECK_EQ_INT(puppet_tell(sender, set_timer, 7), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(notes.event_count, 2);
    CHECK_EQ_INT(notes.events[1].tag, 7);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

static enum tr_next stop_strange_ids(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    uint64_t old;

    (void)m;
    CHECK(!tr_timer_stop(ctx, 0));
    CHECK(!tr_timer_stop(ctx, UINT64_MAX));
    CHECK(!tr_timer_stop(ctx, 12345678));
    CHECK_EQ_INT(tr_after(ctx, ms(1), 1, &old), 0);
    CHECK(tr_timer_stop(ctx, old));
    CHECK_EQ_INT(tr_after(ctx, ms(1), 2, &timer_id), 0); /* in the same place */
    CHECK(timer_id != old);
    CHECK(!tr_timer_stop(ctx, old));
    CHECK_EQ_INT(tr_after(ctx, ms(1), 3, NULL), 0); /* without asking for its id */
    CHECK_EQ_INT(tr_every(ctx, 0, 3, NULL), TR_EINVAL);
    note(self, 1);
    return TR_GO;
}

TEST(timer, is_not_stopped_by_an_id_that_is_not_its_own)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);

    CHECK_EQ_INT(puppet_tell(sender, stop_strange_ids, 0), 0);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, 1);
    CHECK_EQ_INT(notes.event_count, 2);
    CHECK_EQ_INT(notes.events[0].tag, 2);
    CHECK_EQ_INT(notes.events[1].tag, 3);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

/* ---- periods -------------------------------------------------------------------------------- */

TEST(every, comes_at_its_period_without_drift)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t began = tr_sim_now_ns(sim);

    CHECK_EQ_INT(puppet_tell(sender, set_every, 10), 0);
    tr_sim_run_until(sim, began + ms(1005));
    CHECK_EQ_INT(notes.event_count, 100);
    for (uint32_t i = 0; i < 100; i++) {
        CHECK_EQ_U64(notes.events[i].at_ns, began + ms(10 * (i + 1)));
        CHECK_EQ_U64(notes.events[i].id, timer_id);
    }
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

static enum tr_next set_odd_period(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_every(ctx, m->number, 1, &timer_id), 0);
    return TR_GO;
}

TEST(every, does_not_drift_when_its_period_is_no_multiple_of_the_tick)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t began = tr_sim_now_ns(sim);
    const uint64_t period = 3333333;

    CHECK_EQ_INT(puppet_tell(sender, set_odd_period, period), 0);
    tr_sim_run_until(sim, began + ms(1001));
    CHECK_EQ_INT(notes.event_count, 300);
    for (uint32_t i = 0; i < 300; i++) {
        CHECK(notes.events[i].at_ns >= began + period * (i + 1));
        CHECK(notes.events[i].at_ns < began + period * (i + 1) + ms(1));
    }
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

TEST(every, skips_what_it_missed_and_keeps_its_beat)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    uint64_t began = tr_sim_now_ns(sim);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, set_every, 10), 0);
    CHECK_EQ_INT(puppet_tell(sender, hold_for, 35), 0); /* the ticks of 10, 20 and 30 wait */
    tr_sim_run_until(sim, began + ms(65));
    CHECK_EQ_INT(notes.events[0].kind, TR_EVENT_REPLY);
    CHECK_EQ_INT(notes.event_count, 5);
    CHECK_EQ_U64(
        notes.events[1].at_ns, began + ms(35)); /* one late tick for all that were missed */
    CHECK_EQ_U64(notes.events[2].at_ns, began + ms(40)); /* and on the beat again */
    CHECK_EQ_U64(notes.events[3].at_ns, began + ms(50));
    CHECK_EQ_U64(notes.events[4].at_ns, began + ms(60));
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

TEST(every, is_stopped_in_its_own_event_or_from_outside)
{
    for (int i = 0; i < 2; i++) {
        struct tr_sim *sim = simulation(check_seed());
        struct notes notes = { 0 };
        tr_sender sender = puppet_spawn_with(tr_sim_system(sim),
            (struct puppet){ .notes = &notes, .on_event = i == 0 ? stop_own : NULL }, NULL);

        CHECK_EQ_INT(puppet_tell(sender, set_every, 10), 0);
        tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(15));
        if (i == 1)
            CHECK_EQ_INT(puppet_tell(sender, stop_timer, 0), 0);
        tr_sim_run(sim, 0); /* ends: nothing is left to do */
        CHECK_NOTES(&notes, 1);
        CHECK_EQ_INT(notes.event_count, 1);
        CHECK_EQ_U64(stats_of(tr_sim_system(sim)).timers, 0);
        tr_sender_drop(&sender);
        finish_simulation(&sim);
    }
}

/* ---- lives ---------------------------------------------------------------------------------- */

TEST(timer, does_not_keep_its_actor_alive_and_goes_with_it)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t began = tr_sim_now_ns(sim);

    CHECK_EQ_INT(puppet_tell(sender, set_timer, 50), 0);
    CHECK_EQ_INT(puppet_tell(sender, set_every, 60), 0);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK(notes.stopped);
    CHECK_EQ_INT(notes.event_count, 0);
    CHECK_EQ_U64(stats_of(tr_sim_system(sim)).timers, 0);
    CHECK_EQ_U64(tr_sim_now_ns(sim), began); /* there was nothing to jump to */
    finish_simulation(&sim);
}

TEST(timer, of_a_life_before_the_restart_does_not_fire)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    tr_sender sender, supervisor;
    const struct tr_child child = {
        .name = "child", .type = &puppet_type, .state = &state, .ret_sender = &sender
    };
    const struct tr_supervisor table = { .name = "top", .children = &child, .child_count = 1 };

    CHECK_EQ_INT(tr_supervise(system, &table, "test", &supervisor), 0);
    CHECK_EQ_INT(puppet_tell(sender, set_timer, 5), 0);
    CHECK_EQ_INT(puppet_tell(sender, set_every, 5), 0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_fail, 0), 0);
    CHECK_EQ_INT(puppet_tell(sender, set_timer, 7), 0); /* of the new life */
    tr_sim_run(sim, 0);
    CHECK_EQ_U64(stats_of(system).restarts, 1);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_EQ_INT(notes.events[0].tag, 7);
    tr_sender_drop(&sender);
    tr_sender_drop(&supervisor);
    finish_simulation(&sim);
}

/* ---- virtual time --------------------------------------------------------------------------- */

TEST(virtual_time, stands_still_while_anything_runs_and_jumps_to_the_next_timer)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t began = tr_sim_now_ns(sim);

    for (uint64_t i = 0; i < 100; i++)
        CHECK_EQ_INT(puppet_tell(sender, puppet_nothing, 0), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_U64(tr_sim_now_ns(sim), began);
    CHECK_EQ_INT(puppet_tell(sender, set_timer, 86400000), 0); /* a day */
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_EQ_U64(tr_sim_now_ns(sim), began + ms(86400000));
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

TEST(virtual_time, stops_where_it_was_told_to)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t began = tr_sim_now_ns(sim);

    CHECK_EQ_INT(puppet_tell(sender, set_timer, 10), 0);
    tr_sim_run_until(sim, began + ms(9));
    CHECK_EQ_INT(notes.event_count, 0);
    CHECK_EQ_U64(tr_sim_now_ns(sim), began + ms(9));
    tr_sim_run_until(sim, began + ms(10));
    CHECK_EQ_INT(notes.event_count, 1);
    tr_sim_run_until(sim, began + ms(500)); /* with nothing to do */
    CHECK_EQ_U64(tr_sim_now_ns(sim), began + ms(500));
    /* A timer set after the jump is measured from there. */
    CHECK_EQ_INT(puppet_tell(sender, set_timer, 10), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_U64(notes.events[1].at_ns, began + ms(510));
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

/* ---- with real workers ---------------------------------------------------------------------- */

static enum tr_next take_and_set(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    puppet_take(self, ctx, m);
    CHECK_EQ_INT(tr_after(ctx, m->number, 1, NULL), 0);
    return TR_GO;
}

static enum tr_next answer_on_timer(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    (void)event;
    tr_reply_send(&self->reply, 0, NULL, 0);
    return TR_GO;
}

TEST(timer, wakes_workers_that_sleep)
{
    struct tr_system *system = system_of_workers(2);
    tr_sender sender =
        puppet_spawn_with(system, (struct puppet){ .on_event = answer_on_timer }, NULL);

    for (uint64_t i = 0; i < 20; i++) {
        /* Nobody else has anything to do: only the timer can end this. */
        struct tr_future *future = puppet_future(sender, take_and_set, i * 300000, 0);

        CHECK_EQ_INT(puppet_end(&future, NULL), 0);
    }
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(timer, drives_a_system_without_workers)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender =
        puppet_spawn_with(system, (struct puppet){ .on_event = answer_on_timer }, NULL);

    for (uint64_t i = 0; i < 5; i++) {
        struct tr_future *future = puppet_future(sender, take_and_set, i * 300000, 0);

        CHECK_EQ_INT(puppet_end(&future, NULL), 0);
    }
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next tick(struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)event;
    if (--self->number == 0)
        return TR_STOP;
    CHECK_EQ_INT(tr_after(ctx, self->number % 3 * 1000000, 1, NULL), 0);
    return TR_GO;
}

static enum tr_next first_tick(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    self->number = m->number;
    CHECK_EQ_INT(tr_after(ctx, 0, 1, NULL), 0);
    return TR_GO;
}

TEST(timer, of_many_actors_on_several_workers_all_fire)
{
    struct tr_system *system = system_of_workers(3);
    struct tr_done *dones[64];
    tr_sender senders[64];
    enum tr_why why;

    for (int i = 0; i < 64; i++) {
        senders[i] = puppet_spawn_with(system, (struct puppet){ .on_event = tick },
            &(struct tr_spawn_options){ .ret_done = &dones[i] });
        CHECK_EQ_INT(puppet_tell(senders[i], first_tick, 20), 0);
    }
    for (int i = 0; i < 64; i++) {
        CHECK_EQ_INT(tr_done_wait(&dones[i], NULL, &why, 0), 0);
        CHECK_EQ_INT(why, TR_WHY_STOPPED);
        tr_sender_drop(&senders[i]);
    }
    CHECK_EQ_U64(stats_of(system).timers, 0);
    finish_system(&system);
}

static enum tr_next set_for_never(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    uint64_t id;

    (void)m;
    CHECK_EQ_INT(tr_after(ctx, UINT64_MAX, 1, &id), 0);
    CHECK_EQ_INT(tr_every(ctx, UINT64_MAX - 1, 2, NULL), 0);
    CHECK_EQ_INT(tr_after(ctx, 0, 3, NULL), 0);
    note(self, id);
    return TR_GO;
}

TEST(timer, set_for_never_does_not_fire)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    CHECK_EQ_INT(puppet_tell(sender, set_for_never, 0), 0);
    settle(system);
    while (notes.event_count == 0) /* the one that is due at once; a wheel turns by milliseconds */
        settle(system);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_EQ_INT(notes.events[0].tag, 3);
    tr_sender_drop(&sender);
    finish_system(&system);
}
