/* SPDX-License-Identifier: Apache-2.0 */
#include "puppet.h"

/* Actors in a system that the test drives, each with notes of its own. */
enum { CAST = 4 };

struct cast {
    struct tr_system *system;
    struct lines lines;
    struct notes notes[CAST];
    tr_sender actor[CAST];
};

static const char *const cast_names[CAST] = { "anna", "bert", "cleo", "dora" };

static void cast_init(struct cast *cast, struct tr_system *system)
{
    memset(cast, 0, sizeof *cast);
    cast->system = system != NULL ? system : system_driven(&cast->lines);
    for (int i = 0; i < CAST; i++)
        cast->actor[i] = puppet_spawn(cast->system, &cast->notes[i], cast_names[i]);
}

static void cast_drop(struct cast *cast)
{
    for (int i = 0; i < CAST; i++) {
        /* Peers may point in circles: open them. */
        puppet_tell(cast->actor[i], puppet_drop_peer, 0);
        tr_sender_drop(&cast->actor[i]);
    }
}

static void cast_finish(struct cast *cast)
{
    cast_drop(cast);
    finish_system(&cast->system);
}

/* Ask the peer, with hold. The peer runs the function in the message's data, through a
 * puppet_message. */
static enum tr_next hold_on_peer(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    self->asked = (struct puppet_message){ .number = m->number };
    memcpy(&self->asked.run, &m->data, sizeof self->asked.run);
    self->ask.hold = true;
    return puppet_ask(self, ctx, m);
}

static void tell_hold(tr_sender who, puppet_fn what, uint64_t number)
{
    struct puppet_message m = { .run = hold_on_peer, .number = number };

    memcpy(&m.data, &what, sizeof what);
    CHECK_EQ_INT(tr_tell(who, &m, sizeof m), 0);
}

static void tell_hold_lane(tr_sender who, puppet_fn what, enum tr_lane lane)
{
    struct puppet_message m = { .run = hold_on_peer };

    memcpy(&m.data, &what, sizeof what);
    CHECK_EQ_INT(tr_tell_with(who, &m, sizeof m, &(struct tr_send_options){ .lane = lane }), 0);
}

struct looked_for {
    const char *name;
    struct tr_actor_info info;
    bool found;
};

static bool look(void *data, const struct tr_actor_info *info)
{
    struct looked_for *wanted = data;

    if (strcmp(info->name, wanted->name) != 0)
        return true;
    wanted->info = *info;
    wanted->found = true;
    return false;
}

static struct tr_actor_info info_of(struct tr_system *system, const char *name)
{
    struct looked_for wanted = { .name = name };

    tr_inspect(system, look, &wanted);
    CHECK_MSG(wanted.found, "no actor is called %s", name);
    return wanted.info;
}

/* ---- holding -------------------------------------------------------------------------------- */

TEST(hold, handles_only_control_until_the_answer_is_there)
{
    struct cast cast;
    const struct notes *notes = &cast.notes[0];

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    tell_hold(cast.actor[0], puppet_take, 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], NULL, 1), 0);
    CHECK_EQ_INT(puppet_tell_lane(cast.actor[0], NULL, 2, TR_BACKGROUND), 0);
    settle(cast.system);
    CHECK_EQ_INT(notes->rc, 0);
    CHECK_EQ_INT(info_of(cast.system, "anna").doing, TR_DOING_HOLDING);
    CHECK_EQ_U64(info_of(cast.system, "anna").waiting_on, info_of(cast.system, "bert").id);
    CHECK_EQ_INT(puppet_tell_lane(cast.actor[0], NULL, 3, TR_CONTROL), 0);
    settle(cast.system);
    CHECK_NOTES(notes, 3);
    CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 9), 0);
    settle(cast.system);
    CHECK_NOTES(notes, 3, 1, 2);
    CHECK_EQ_INT(notes->event_count, 1);
    CHECK_EQ_U64(notes->events[0].number, 9);
    CHECK_EQ_INT(info_of(cast.system, "anna").doing, TR_DOING_IDLE);
    CHECK_EQ_U64(info_of(cast.system, "anna").waiting_on, 0);
    cast_finish(&cast);
}

TEST(hold, answer_comes_before_messages_that_were_there_first)
{
    struct cast cast;
    struct tr_box *box;
    struct puppet state = { .notes = &cast.notes[0] };
    tr_sender sender;

    cast_init(&cast, NULL);
    CHECK_EQ_INT(tr_box_create(cast.system, &puppet_type, NULL, &box), 0);
    sender = tr_box_sender(box, "test");
    puppet_introduce(sender, cast.actor[1]);
    tell_hold(sender, puppet_echo, 5);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &state, NULL), 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[0].event_count, 1);
    CHECK_NOTES(&cast.notes[0], 1);
    CHECK_NOTES(&cast.notes[1], 5);
    tr_sender_drop(&sender);
    cast_finish(&cast);
}

TEST(hold, of_one_who_holds_is_busy)
{
    struct cast cast;
    struct notes *notes = &cast.notes[0];

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    tell_hold(cast.actor[0], puppet_take, 0);
    settle(cast.system);
    tell_hold_lane(cast.actor[0], puppet_echo, TR_CONTROL);
    settle(cast.system);
    CHECK_EQ_INT(notes->rc, TR_EBUSY);
    CHECK_EQ_INT(notes->event_count, 0); /* refused: no event comes, and the first still waits */
    CHECK_EQ_INT(info_of(cast.system, "anna").doing, TR_DOING_HOLDING);
    CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 9), 0);
    settle(cast.system);
    CHECK_EQ_INT(notes->event_count, 1);
    cast_finish(&cast);
}

static enum tr_next ask_peer_plainly(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    self->notes->rc = tr_ask(ctx, self->peer, &(struct puppet_message){ .run = puppet_echo },
        sizeof(struct puppet_message), &(struct tr_ask_options){ .tag = 77 });
    return TR_GO;
}

TEST(hold, of_one_who_asks_without_holding_meanwhile_keeps_holding)
{
    struct cast cast;
    struct notes *notes = &cast.notes[0];

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    tell_hold(cast.actor[0], puppet_take, 0);
    settle(cast.system);
    CHECK_EQ_INT(puppet_tell_lane(cast.actor[0], ask_peer_plainly, 0, TR_CONTROL), 0);
    settle(cast.system);
    CHECK_EQ_INT(notes->rc, 0);
    CHECK_EQ_INT(info_of(cast.system, "anna").doing, TR_DOING_HOLDING);
    CHECK_EQ_INT(notes->event_count, 0); /* its answer waits like any interactive message */
    CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 9), 0);
    settle(cast.system);
    CHECK_EQ_INT(notes->event_count, 2);
    CHECK_EQ_INT(notes->events[0].tag, 0);
    CHECK_EQ_INT(notes->events[1].tag, 77);
    cast_finish(&cast);
}

/* ---- what releases it ----------------------------------------------------------------------- */

TEST(hold, is_released_by_every_end_of_its_ask)
{
    const struct {
        puppet_fn what;
        int status;
    } rows[] = {
        { puppet_echo, 0 },
        { puppet_nothing, TR_EDROPPED },
        { puppet_fail, TR_ECRASHED },
        { puppet_quit, TR_EDROPPED },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct cast cast;

        cast_init(&cast, NULL);
        puppet_introduce(cast.actor[0], cast.actor[1]);
        tell_hold(cast.actor[0], rows[i].what, 4);
        CHECK_EQ_INT(puppet_tell(cast.actor[0], NULL, 1), 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[0].event_count, 1);
        CHECK_EQ_INT(cast.notes[0].events[0].status, rows[i].status);
        CHECK_NOTES(&cast.notes[0], 1);
        cast_finish(&cast);
    }
}

TEST(hold, that_could_not_send_does_not_hold)
{
    struct cast cast;

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_quit, 0), 0);
    settle(cast.system);
    tell_hold(cast.actor[0], puppet_echo, 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], NULL, 1), 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[0].rc, TR_ECLOSED);
    CHECK_NOTES(&cast.notes[0], 1);
    CHECK_EQ_U64(info_of(cast.system, "anna").waiting_on, 0);
    cast_finish(&cast);
}

/* Hold on the peer, which takes it, for as many milliseconds as the number says. */
static enum tr_next hold_for(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    self->asked = (struct puppet_message){ .run = puppet_take };
    self->ask = (struct tr_ask_options){ .tag = 6, .hold = true, .timeout_ns = ms(m->number) };
    return puppet_ask(self, ctx, m);
}

TEST(hold, is_released_by_its_timeout_and_the_late_answer_is_nobodys)
{
    struct tr_sim *sim = simulation(check_seed());
    struct cast cast;
    uint64_t began = tr_sim_now_ns(sim);

    cast_init(&cast, tr_sim_system(sim));
    puppet_introduce(cast.actor[0], cast.actor[1]);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], hold_for, 30), 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], NULL, 1), 0);
    tr_sim_run_until(sim, began + ms(29));
    CHECK_EQ_INT(cast.notes[0].count, 0);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&cast.notes[0], 1);
    CHECK_EQ_INT(cast.notes[0].event_count, 1);
    CHECK_EQ_INT(cast.notes[0].events[0].status, TR_ETIMEOUT);
    CHECK_EQ_U64(cast.notes[0].events[0].at_ns, began + ms(30));
    /* A second hold is under way when the answer to the first comes: it must not release it. */
    CHECK_EQ_INT(puppet_tell(cast.actor[0], hold_for, 30), 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 5), 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], NULL, 2), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(10));
    tr_sim_run(sim, 0);
    CHECK_NOTES(&cast.notes[0], 1, 2);
    cast_drop(&cast);
    finish_simulation(&sim);
}

static enum tr_next set_timer(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_after(ctx, ms(m->number), 1, NULL), 0);
    return TR_GO;
}

TEST(hold, lets_timers_of_the_actor_wait_until_it_is_released)
{
    struct tr_sim *sim = simulation(check_seed());
    struct cast cast;
    uint64_t began = tr_sim_now_ns(sim);

    cast_init(&cast, tr_sim_system(sim));
    puppet_introduce(cast.actor[0], cast.actor[1]);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], set_timer, 5), 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], hold_for, 30), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(cast.notes[0].event_count, 2);
    CHECK_EQ_INT(cast.notes[0].events[0].kind, TR_EVENT_REPLY);
    CHECK_EQ_INT(cast.notes[0].events[1].kind, TR_EVENT_TIMER);
    CHECK_EQ_U64(cast.notes[0].events[1].at_ns, began + ms(30));
    cast_drop(&cast);
    finish_simulation(&sim);
}

TEST(hold, is_released_by_its_token)
{
    struct cast cast;
    struct tr_cancel *token;
    tr_sender sender;

    cast_init(&cast, NULL);
    CHECK_EQ_INT(tr_cancel_create(NULL, &token), 0);
    sender = puppet_spawn_with(cast.system,
        (struct puppet){ .notes = &cast.notes[0],
            .asked = { .run = puppet_take },
            .ask = { .hold = true, .cancel = token } },
        NULL);
    puppet_introduce(sender, cast.actor[1]);
    CHECK_EQ_INT(puppet_tell(sender, puppet_ask, 0), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[0].count, 0);
    tr_cancel_fire(token);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[0].events[0].status, TR_ECANCELLED);
    CHECK_NOTES(&cast.notes[0], 1);
    tr_cancel_destroy(&token);
    tr_sender_drop(&sender);
    cast_finish(&cast);
}

TEST(hold, ends_with_the_actor_that_holds)
{
    for (int i = 0; i < 3; i++) {
        struct cast cast;
        tr_weak weak;

        cast_init(&cast, NULL);
        puppet_introduce(cast.actor[0], cast.actor[1]);
        tell_hold(cast.actor[0], puppet_take, 0);
        settle(cast.system);
        weak = tr_sender_weaken(cast.actor[0]);
        if (i == 0)
            CHECK_EQ_INT(tr_kill(weak), 0);
        else if (i == 1)
            CHECK_EQ_INT(puppet_tell_lane(cast.actor[0], puppet_fail, 0, TR_CONTROL), 0);
        else
            CHECK_EQ_INT(tr_stop(weak), 0); /* may still get its answer, within its grace */
        settle(cast.system);
        if (i == 2) {
            CHECK_EQ_INT(info_of(cast.system, "anna").doing, TR_DOING_STOPPING);
            CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 3), 0);
            settle(cast.system);
            CHECK_EQ_INT(cast.notes[0].event_count, 1);
        }
        CHECK(tr_sender_is_closed(cast.actor[0]));
        if (i < 2)
            CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 3), 0);
        cast_finish(&cast);
    }
}

static enum tr_next hold_at_the_end(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    note(self, 100 + event->tag);
    return TR_GO;
}

static void hold_in_stop(struct puppet *self, struct tr_context *ctx)
{
    self->asked = (struct puppet_message){ .run = puppet_take };
    self->ask = (struct tr_ask_options){ .tag = 2, .hold = true };
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &self->asked, sizeof self->asked, &self->ask), 0);
}

TEST(hold, is_allowed_in_the_stop_hook_and_the_end_waits_for_it)
{
    struct cast cast;
    tr_sender sender;

    cast_init(&cast, NULL);
    sender = puppet_spawn_with(cast.system,
        (struct puppet){
            .notes = &cast.notes[0], .on_event = hold_at_the_end, .on_stop = hold_in_stop },
        &(struct tr_spawn_options){ .name = "last" });
    puppet_introduce(sender, cast.actor[1]);
    tr_sender_drop(&sender);
    settle(cast.system);
    CHECK_EQ_INT(info_of(cast.system, "last").doing, TR_DOING_STOPPING);
    CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 3), 0);
    settle(cast.system);
    CHECK_NOTES(&cast.notes[0], 102);
    CHECK_EQ_U64(stats_of(cast.system).live, CAST);
    cast_finish(&cast);
}

TEST(hold, in_the_stop_hook_is_cut_short_by_the_grace)
{
    struct tr_sim *sim = simulation(check_seed());
    struct cast cast;
    tr_sender sender;

    cast_init(&cast, tr_sim_system(sim));
    sender = puppet_spawn_with(cast.system,
        (struct puppet){ .notes = &cast.notes[0], .on_stop = hold_in_stop },
        &(struct tr_spawn_options){ .name = "last", .grace_ns = ms(10) });
    puppet_introduce(sender, cast.actor[1]);
    tr_sim_run(sim, 0);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(cast.notes[0].event_count, 0);
    CHECK_EQ_U64(stats_of(cast.system).live, CAST);
    cast_drop(&cast);
    finish_simulation(&sim);
}

/* ---- circles of holds ----------------------------------------------------------------------- */

/* Everybody in a circle of `count` holds on the next; the last closes it. */
static void run_circle(int count, uint64_t seed)
{
    struct cast cast;
    struct tr_sim *sim = seed != 0 ? simulation(seed) : NULL;
    int refused = 0;
    char expected[256];
    size_t used = 0;

    cast_init(&cast, sim != NULL ? tr_sim_system(sim) : NULL);
    for (int i = 0; i < count; i++)
        puppet_introduce(cast.actor[i], cast.actor[(i + 1) % count]);
    if (sim == NULL)
        settle(cast.system);
    for (int i = 0; i < count; i++) {
        /* One after the other, and nobody answers yet; or all at once. */
        tell_hold(cast.actor[i], sim == NULL ? puppet_take : puppet_echo, 5);
        if (sim == NULL)
            settle(cast.system);
        if (sim == NULL && i + 1 < count)
            CHECK_EQ_INT(cast.notes[i].rc, 0);
    }
    if (sim != NULL)
        tr_sim_run(sim, 0);
    /* The closer does not hold: it answers the one before it, and so back to the first. */
    for (int i = count - 1; i > 0 && sim == NULL; i--) {
        int rc = cast.notes[i].rc;

        CHECK_EQ_INT(cast.notes[i - 1].event_count, 0);
        CHECK_EQ_INT(puppet_tell(cast.actor[i], puppet_answer, 1), 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[i].rc, 0);
        cast.notes[i].rc = rc;
    }
    for (int i = 0; i < count; i++) {
        refused += cast.notes[i].rc == TR_EDEADLOCK;
        CHECK(cast.notes[i].rc == 0 || cast.notes[i].rc == TR_EDEADLOCK);
        /* An asker that was not refused got its answer: the circle is open. */
        CHECK_EQ_INT(cast.notes[i].event_count, cast.notes[i].rc == 0);
        if (cast.notes[i].rc == 0)
            CHECK_EQ_INT(cast.notes[i].events[0].status, 0);
    }
    CHECK_EQ_U64(stats_of(cast.system).deadlocks, (uint64_t)refused);
    if (sim == NULL) {
        CHECK_EQ_INT(refused, 1);
        CHECK_EQ_INT(cast.notes[count - 1].rc, TR_EDEADLOCK); /* the closer */
        used += (size_t)snprintf(
            expected, sizeof expected, "wait cycle (hold): %s", cast_names[count - 1]);
        for (int i = 0; i < count; i++)
            used +=
                (size_t)snprintf(expected + used, sizeof expected - used, " -> %s", cast_names[i]);
        CHECK_MSG(strstr(cast.lines.text, expected) != NULL, "the log is:\n%s", cast.lines.text);
        cast_finish(&cast);
    } else {
        cast_drop(&cast);
        finish_simulation(&sim);
    }
}

TEST(circle, of_two_holds_is_refused_to_the_closer_and_named)
{
    run_circle(2, 0);
}

TEST(circle, of_three_holds_is_refused_to_the_closer_and_named)
{
    run_circle(3, 0);
}

TEST(circle, of_holds_opens_whoever_comes_first)
{
    for (uint64_t seed; check_each_seed(&seed, 200);) {
        run_circle(2, seed);
        run_circle(3, seed);
        run_circle(4, seed);
    }
}

TEST(circle, closed_again_and_again_is_refused_every_time)
{
    struct cast cast;

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    puppet_introduce(cast.actor[1], cast.actor[0]);
    for (int i = 0; i < 600; i++) { /* more than its sequence numbers */
        cast.notes[0].event_count = cast.notes[0].count = 0;
        tell_hold(cast.actor[0], puppet_take, 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[0].rc, 0);
        tell_hold(cast.actor[1], puppet_echo, 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[1].rc, TR_EDEADLOCK);
        CHECK_EQ_INT(puppet_tell(cast.actor[1], puppet_answer, 1), 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[0].event_count, 1);
    }
    CHECK_EQ_U64(stats_of(cast.system).deadlocks, 600);
    cast_finish(&cast);
}

TEST(circle, of_asks_without_hold_is_never_refused)
{
    struct cast cast;

    cast_init(&cast, NULL);
    for (int i = 0; i < 3; i++)
        puppet_introduce(cast.actor[i], cast.actor[(i + 1) % 3]);
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < 3; i++)
            CHECK_EQ_INT(puppet_tell(cast.actor[i], ask_peer_plainly, 0), 0);
    settle(cast.system);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(cast.notes[i].rc, 0);
        CHECK_EQ_INT(cast.notes[i].event_count, 10);
    }
    CHECK_EQ_U64(stats_of(cast.system).deadlocks, 0);
    CHECK_EQ_INT(cast.lines.used, 0);
    cast_finish(&cast);
}

TEST(circle, with_one_ask_that_does_not_hold_is_legal)
{
    struct cast cast;

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    puppet_introduce(cast.actor[1], cast.actor[0]);
    tell_hold(cast.actor[0], puppet_echo, 1);
    CHECK_EQ_INT(puppet_tell(cast.actor[1], ask_peer_plainly, 0), 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[0].rc, 0);
    CHECK_EQ_INT(cast.notes[1].rc, 0);
    CHECK_EQ_INT(cast.notes[0].event_count, 1);
    CHECK_EQ_INT(cast.notes[1].event_count, 1);
    cast_finish(&cast);
}

/* Answer, and in the same handler hold on the one who asked. */
static enum tr_next answer_then_hold(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    CHECK_EQ_INT(tr_reply(ctx, 0, &m->number, sizeof m->number), 0);
    self->asked = (struct puppet_message){ .run = puppet_echo, .number = 8 };
    self->ask.hold = true;
    return puppet_ask(self, ctx, m);
}

TEST(circle, is_none_when_the_first_was_answered_before_the_second_holds)
{
    for (int i = 0; i < 2; i++) {
        struct cast cast;

        cast_init(&cast, NULL);
        puppet_introduce(cast.actor[0], cast.actor[1]);
        puppet_introduce(cast.actor[1], cast.actor[0]);
        if (i == 0) {
            tell_hold(cast.actor[0], answer_then_hold, 0);
        } else { /* with a deadline, so with a record */
            struct puppet_message m = { .run = hold_on_peer };
            puppet_fn what = answer_then_hold;

            memcpy(&m.data, &what, sizeof what);
            CHECK_EQ_INT(tr_tell_with(cast.actor[0], &m, sizeof m,
                             &(struct tr_send_options){ .timeout_ns = ms(100000) }),
                0);
        }
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[0].rc, 0);
        CHECK_EQ_INT(cast.notes[1].rc, 0);
        CHECK_EQ_INT(cast.notes[0].event_count, 1);
        CHECK_EQ_INT(cast.notes[1].event_count, 1);
        CHECK_EQ_U64(stats_of(cast.system).deadlocks, 0);
        cast_finish(&cast);
    }
}

TEST(circle, is_none_when_the_first_hold_timed_out)
{
    struct tr_sim *sim = simulation(check_seed());
    struct cast cast;

    cast_init(&cast, tr_sim_system(sim));
    puppet_introduce(cast.actor[0], cast.actor[1]);
    puppet_introduce(cast.actor[1], cast.actor[0]);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], hold_for, 5), 0);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(cast.notes[0].events[0].status, TR_ETIMEOUT);
    tell_hold(cast.actor[1], puppet_echo, 1);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(cast.notes[1].rc, 0);
    CHECK_EQ_INT(cast.notes[1].event_count, 1);
    cast_drop(&cast);
    finish_simulation(&sim);
}

TEST(circle, is_none_in_a_chain_of_holds_that_ends)
{
    struct cast cast;

    cast_init(&cast, NULL);
    for (int i = 0; i < 3; i++)
        puppet_introduce(cast.actor[i], cast.actor[i + 1]);
    /* cleo holds on dora, bert on cleo, anna on bert. */
    tell_hold(cast.actor[2], puppet_take, 0);
    settle(cast.system);
    tell_hold(cast.actor[1], puppet_echo, 0);
    settle(cast.system);
    tell_hold(cast.actor[0], puppet_echo, 0);
    settle(cast.system);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(cast.notes[i].rc, 0);
        CHECK_EQ_INT(info_of(cast.system, cast_names[i]).doing, TR_DOING_HOLDING);
    }
    CHECK_EQ_INT(puppet_tell(cast.actor[3], puppet_answer, 0), 0);
    settle(cast.system);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(cast.notes[i].event_count, 1);
    CHECK_EQ_U64(stats_of(cast.system).deadlocks, 0);
    cast_finish(&cast);
}

/* ---- the duty to answer moves on: so does what the holder waits for ------------------------- */

/* Forward to the peer, which takes it. Then, the number says so, hold on the sender in hand
 * (self->data). */
static enum tr_next forward_taking(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    m->run = puppet_take;
    self->notes->rc = tr_forward(ctx, self->peer);
    return TR_GO;
}

TEST(forwarded_hold, is_no_circle_with_the_one_who_forwarded)
{
    for (int with_deadline = 0; with_deadline < 2; with_deadline++) {
        struct cast cast;

        cast_init(&cast, NULL);
        puppet_introduce(cast.actor[0], cast.actor[1]);
        puppet_introduce(cast.actor[1], cast.actor[2]);
        if (with_deadline) {
            struct puppet_message m = { .run = hold_on_peer };
            puppet_fn what = forward_taking;

            memcpy(&m.data, &what, sizeof what);
            CHECK_EQ_INT(tr_tell_with(cast.actor[0], &m, sizeof m,
                             &(struct tr_send_options){ .timeout_ns = ms(100000) }),
                0);
        } else {
            tell_hold(cast.actor[0], forward_taking, 0);
        }
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[1].rc, 0);
        /* anna waits for cleo now. Bert may hold on anna: cleo's answer will let her serve him. */
        CHECK_EQ_U64(info_of(cast.system, "anna").waiting_on, info_of(cast.system, "cleo").id);
        puppet_introduce(cast.actor[1], cast.actor[0]);
        tell_hold(cast.actor[1], puppet_echo, 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[1].rc, 0);
        /* Cleo may not. */
        puppet_introduce(cast.actor[2], cast.actor[0]);
        tell_hold(cast.actor[2], puppet_echo, 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[2].rc, TR_EDEADLOCK);
        CHECK_EQ_INT(puppet_tell(cast.actor[2], puppet_answer, 1), 0);
        settle(cast.system);
        CHECK_EQ_INT(cast.notes[0].event_count, 1);
        CHECK_EQ_INT(cast.notes[1].event_count, 1);
        cast_finish(&cast);
    }
}

TEST(forwarded_hold, that_would_close_a_circle_is_answered_with_deadlock)
{
    struct cast cast;

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    puppet_introduce(cast.actor[1], cast.actor[2]);
    puppet_introduce(cast.actor[2], cast.actor[0]);
    tell_hold(cast.actor[2], puppet_take, 0); /* cleo on anna, who takes it */
    settle(cast.system);
    tell_hold(cast.actor[0], forward_taking, 0); /* anna on bert, who would pass it to cleo */
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[1].rc, TR_EDEADLOCK);
    CHECK_EQ_INT(cast.notes[0].event_count, 1);
    CHECK_EQ_INT(cast.notes[0].events[0].status, TR_EDEADLOCK);
    CHECK_MSG(strstr(cast.lines.text, "anna -> cleo -> anna") != NULL, "the log is:\n%s",
        cast.lines.text);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], puppet_answer, 1), 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[2].event_count, 1);
    cast_finish(&cast);
}

TEST(forwarded_hold, that_could_not_be_forwarded_waits_for_the_one_who_tried)
{
    struct cast cast;

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    puppet_introduce(cast.actor[1], cast.actor[2]);
    CHECK_EQ_INT(puppet_tell(cast.actor[2], puppet_quit, 0), 0);
    settle(cast.system);
    tell_hold(cast.actor[0], forward_taking, 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[1].rc, TR_ECLOSED);
    CHECK_EQ_INT(cast.notes[0].event_count, 1);
    CHECK_EQ_INT(cast.notes[0].events[0].status, TR_EDROPPED);
    cast_finish(&cast);
}

static enum tr_next take_and_give(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    tr_reply_handle handle = tr_reply_take(ctx);

    (void)m;
    tr_reply_give(handle, self->peer);
    self->reply = handle;
    return TR_GO;
}

TEST(given_hold, waits_for_the_one_it_was_given_to)
{
    struct cast cast;

    cast_init(&cast, NULL);
    puppet_introduce(cast.actor[0], cast.actor[1]);
    puppet_introduce(cast.actor[1], cast.actor[2]);
    tell_hold(cast.actor[0], take_and_give, 0);
    settle(cast.system);
    CHECK_EQ_U64(info_of(cast.system, "anna").waiting_on, info_of(cast.system, "cleo").id);
    puppet_introduce(cast.actor[1], cast.actor[0]);
    tell_hold(cast.actor[1], puppet_echo, 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[1].rc, 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[2], puppet_quit, 0), 0);
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[0].events[0].status, TR_EDROPPED);
    CHECK_EQ_INT(cast.notes[1].event_count, 1);
    cast_finish(&cast);
}

/* ---- circles of full boxes ------------------------------------------------------------------ */

/* Send `number` messages, each of which sends one less back: a storm that fills every box in the
 * circle. */
static enum tr_next storm(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    self->number++;
    if (m->number == 0)
        return TR_GO;
    for (int i = 0; i < 2; i++) {
        int rc = puppet_tell(self->peer, storm, m->number - 1);

        if (rc == 0)
            self->notes->count++;
        else
            CHECK_EQ_INT(rc, TR_EFULL);
    }
    return TR_GO;
}

TEST(full_circle, overshoots_is_counted_and_never_deadlocks)
{
    struct tr_system *system;
    struct lines lines = { 0 };
    struct notes notes[2] = { { 0 }, { 0 } };
    struct puppet states[2];
    struct tr_done *dones[2];
    tr_sender actors[2];

    system = system_driven(&lines);
    for (int i = 0; i < 2; i++)
        actors[i] = puppet_spawn_with(system, (struct puppet){ .notes = &notes[i] },
            &(struct tr_spawn_options){
                .name = cast_names[i], .box.capacity = 4, .ret_done = &dones[i] });
    puppet_introduce(actors[0], actors[1]);
    puppet_introduce(actors[1], actors[0]);
    CHECK_EQ_INT(puppet_tell(actors[0], storm, 12), 0);
    CHECK_EQ_INT(puppet_tell(actors[1], storm, 12), 0);
    settle(system);
    /* Everybody is idle and nobody waits: it did not stop half way. */
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(info_of(system, cast_names[i]).doing, TR_DOING_IDLE);
        CHECK_EQ_INT(tr_sender_depth(actors[i]), 0);
    }
    CHECK(stats_of(system).parks > 0);
    CHECK(stats_of(system).overshoots > 0);
    CHECK_MSG(
        strstr(lines.text, "wait cycle (full boxes): ") != NULL, "the log is:\n%s", lines.text);
    CHECK_MSG(strstr(lines.text, "anna") != NULL && strstr(lines.text, "bert") != NULL,
        "the log is:\n%s", lines.text);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(puppet_tell(actors[i], puppet_drop_peer, 0), 0);
    for (int i = 0; i < 2; i++) {
        tr_sender_drop(&actors[i]);
        CHECK_EQ_INT(tr_done_wait(&dones[i], &states[i], NULL, 0), 0);
    }
    /* The other actor handled every message that the box accepted. */
    CHECK_EQ_U64(states[0].number, notes[1].count + 1);
    CHECK_EQ_U64(states[1].number, notes[0].count + 1);
    finish_system(&system);
}

TEST(full_circle, is_reported_once_for_a_box)
{
    struct tr_system *system;
    struct lines lines = { 0 };
    struct notes notes[2] = { { 0 }, { 0 } };
    tr_sender actors[2];
    unsigned reports = 0;

    system = system_driven(&lines);
    for (int i = 0; i < 2; i++)
        actors[i] = puppet_spawn_with(system, (struct puppet){ .notes = &notes[i] },
            &(struct tr_spawn_options){ .name = cast_names[i], .box.capacity = 4 });
    puppet_introduce(actors[0], actors[1]);
    puppet_introduce(actors[1], actors[0]);
    CHECK_EQ_INT(puppet_tell(actors[0], storm, 12), 0);
    CHECK_EQ_INT(puppet_tell(actors[1], storm, 12), 0);
    settle(system);
    CHECK(stats_of(system).overshoots > 2);
    for (const char *at = lines.text; (at = strstr(at, "full boxes")) != NULL; at++)
        reports++;
    CHECK(reports >= 1 && reports <= 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(puppet_tell(actors[i], puppet_drop_peer, 0), 0);
        tr_sender_drop(&actors[i]);
    }
    finish_system(&system);
}

TEST(full_circle, in_any_order_never_deadlocks)
{
    for (uint64_t seed; check_each_seed(&seed, 100);) {
        struct tr_sim *sim = simulation(seed);
        struct tr_system *system = tr_sim_system(sim);
        struct notes notes[3] = { { 0 } };
        tr_sender actors[3];

        for (int i = 0; i < 3; i++)
            actors[i] = puppet_spawn_with(system, (struct puppet){ .notes = &notes[i] },
                &(struct tr_spawn_options){ .name = cast_names[i], .box.capacity = 3 });
        for (int i = 0; i < 3; i++)
            puppet_introduce(actors[i], actors[(i + 1) % 3]);
        for (int i = 0; i < 3; i++)
            CHECK_EQ_INT(puppet_tell(actors[i], storm, 10), 0);
        tr_sim_run(sim, 0);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ_INT(info_of(system, cast_names[i]).doing, TR_DOING_IDLE);
            CHECK_EQ_INT(tr_sender_depth(actors[i]), 0);
            CHECK_EQ_INT(puppet_tell(actors[i], puppet_drop_peer, 0), 0);
            tr_sender_drop(&actors[i]);
        }
        finish_simulation(&sim);
    }
}

/* One parked on the other's full box, the other holds on the first: a circle too. */
static enum tr_next send_many(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    for (uint64_t i = 0; i < m->number; i++)
        CHECK_EQ_INT(puppet_tell(self->peer, puppet_nothing, i), 0);
    note(self, m->number);
    return TR_GO;
}

TEST(mixed_circle, of_a_hold_on_one_who_is_parked_here_does_not_deadlock)
{
    struct tr_system *system;
    struct lines lines = { 0 };
    struct notes notes[2] = { { 0 }, { 0 } };
    struct tr_box *box;
    struct puppet state = { .notes = &notes[1] };
    tr_sender first, second;

    system = system_driven(&lines);
    CHECK_EQ_INT(
        tr_box_create(system, &puppet_type, &(struct tr_box_options){ .capacity = 2 }, &box), 0);
    second = tr_box_sender(box, "test");
    first = puppet_spawn(system, &notes[0], "first");
    puppet_introduce(first, second);
    puppet_introduce(second, first);
    tell_hold(second, puppet_echo, 5);
    CHECK_EQ_INT(puppet_tell(first, send_many, 2), 0);
    settle(system);
    CHECK_EQ_U64(stats_of(system).parks, 1); /* the first is parked on the second */
    CHECK_EQ_INT(tr_box_spawn(&box, &state, NULL), 0);
    settle(system);
    /* Refused or answered, but not stuck. */
    CHECK(notes[1].rc == TR_EDEADLOCK || notes[1].event_count == 1);
    CHECK_EQ_INT(tr_sender_depth(second), 0);
    CHECK_EQ_INT(puppet_tell(first, puppet_drop_peer, 0), 0);
    CHECK_EQ_INT(puppet_tell(second, puppet_drop_peer, 0), 0);
    settle(system);
    tr_sender_drop(&first);
    tr_sender_drop(&second);
    finish_system(&system);
}

TEST(mixed_circle, of_a_send_to_the_full_box_of_one_who_holds_on_the_sender_does_not_deadlock)
{
    struct cast cast;
    tr_sender small;

    cast_init(&cast, NULL);
    small = puppet_spawn_with(cast.system, (struct puppet){ .notes = &cast.notes[3] },
        &(struct tr_spawn_options){ .name = "small", .box.capacity = 2 });
    puppet_introduce(small, cast.actor[0]);
    puppet_introduce(cast.actor[0], small);
    settle(cast.system);
    tell_hold(small, puppet_take, 0); /* small holds on anna, who takes it */
    settle(cast.system);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], send_many, 3), 0); /* anna fills small's box */
    settle(cast.system);
    CHECK_EQ_U64(stats_of(cast.system).overshoots, 1);
    CHECK_EQ_U64(stats_of(cast.system).parks, 0);
    CHECK_EQ_INT(puppet_tell(cast.actor[0], puppet_answer, 1), 0); /* so she can answer */
    settle(cast.system);
    CHECK_EQ_INT(cast.notes[3].event_count, 1);
    CHECK_EQ_INT(tr_sender_depth(small), 0);
    CHECK_EQ_INT(puppet_tell(small, puppet_drop_peer, 0), 0);
    tr_sender_drop(&small);
    cast_finish(&cast);
}

static enum tr_next note_rc_of_hold(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    note(self, (uint64_t)-tr_ask(ctx, self->peer, &(struct puppet_message){ .run = puppet_echo },
                   sizeof(struct puppet_message), &(struct tr_ask_options){ .hold = true }));
    return TR_GO;
}

TEST(hold, of_one_who_is_parked_is_busy)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full, sender;

    CHECK_EQ_INT(
        tr_box_create(system, &puppet_type, &(struct tr_box_options){ .capacity = 1 }, &box), 0);
    full = tr_box_sender(box, "test");
    sender = puppet_spawn(system, &notes, NULL);
    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, send_many, 2), 0);
    settle(system);
    CHECK_EQ_U64(stats_of(system).parks, 1);
    CHECK_EQ_INT(puppet_tell_lane(sender, note_rc_of_hold, 0, TR_CONTROL), 0);
    settle(system);
    CHECK_NOTES(&notes, 2, (uint64_t)-TR_EBUSY);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system);
    CHECK_EQ_INT(puppet_tell(sender, note_rc_of_hold, 0), 0);
    settle(system);
    CHECK_EQ_INT(notes.numbers[2], 0);
    CHECK_EQ_INT(notes.event_count, 1);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}
