/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "puppet.h"

/* A box that no thread runs: its messages wait. */
static tr_sender waiting_box(
    struct tr_system *system, const struct tr_box_options *options, struct tr_box **ret_box)
{
    CHECK_EQ_INT(tr_box_create(system, &puppet_type, options, ret_box), 0);
    return tr_box_sender(*ret_box, "test");
}

static int tell_with_timeout(tr_sender to, uint64_t number, uint64_t timeout_ns)
{
    return tr_tell_with(to, &(struct puppet_message){ .number = number },
        sizeof(struct puppet_message), &(struct tr_send_options){ .timeout_ns = timeout_ns });
}

static int try_tell(tr_sender to, uint64_t number)
{
    return tr_try_tell(
        to, &(struct puppet_message){ .number = number }, sizeof(struct puppet_message));
}

static int tell_wait(tr_sender to, uint64_t number, uint64_t timeout_ns)
{
    return tr_tell_wait(to, &(struct puppet_message){ .number = number },
        sizeof(struct puppet_message), timeout_ns);
}

/* ---- clone and drop ------------------------------------------------------------------------- */

TEST(sender, of_nothing_is_closed_and_harmless)
{
    tr_sender none = { 0 }, clone;
    tr_weak weak = tr_sender_weaken(none);
    struct tr_slot slot;
    struct tr_future *future;

    CHECK_EQ_INT(puppet_tell(none, NULL, 1), TR_ECLOSED);
    CHECK_EQ_INT(try_tell(none, 1), TR_ECLOSED);
    CHECK_EQ_INT(tell_wait(none, 1, 0), TR_ECLOSED);
    CHECK_EQ_INT(tr_reserve(none, sizeof(struct puppet_message), &slot), TR_ECLOSED);
    CHECK_EQ_INT(tr_ask_future(none, &(struct puppet_message){ 0 }, sizeof(struct puppet_message),
                     0, &future),
        TR_ECLOSED);
    clone = tr_sender_clone(none, "test");
    CHECK(clone.box == NULL);
    CHECK(tr_sender_is_closed(none));
    CHECK_EQ_INT(tr_sender_wait_closed(none, 0), 0);
    CHECK_EQ_INT(tr_sender_capacity(none), 0);
    CHECK_EQ_INT(tr_sender_depth(none), 0);
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &clone), TR_ECLOSED);
    CHECK_EQ_INT(tr_stop(weak), TR_ECLOSED);
    tr_sender_rename(&none, "nobody");
    tr_sender_drop(&none);
}

TEST(sender, clone_keeps_the_actor_alive)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender first = waiting_box(NULL, NULL, &box), second = tr_sender_clone(first, "second");

    tr_sender_drop(&first);
    CHECK(first.box == NULL);
    CHECK_EQ_INT(tr_step(box, &state, 10), 0);
    CHECK_EQ_INT(puppet_tell(second, NULL, 1), 0);
    CHECK_EQ_INT(tr_step(box, &state, 10), 1);
    CHECK(!notes.stopped);
    tr_sender_drop(&second);
    CHECK_EQ_INT(tr_step(box, &state, 10), TR_ECLOSED);
    CHECK(notes.stopped);
    CHECK_NOTES(&notes, 1);
    tr_box_destroy(&box);
}

TEST(sender, dropping_the_last_one_lets_queued_messages_be_handled_first)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, NULL, &box);

    for (uint64_t i = 1; i <= 3; i++)
        CHECK_EQ_INT(puppet_tell(sender, NULL, i), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 1, 2, 3);
    CHECK(notes.stopped);
    tr_box_destroy(&box);
}

TEST_ABORTS(sender, dropped_twice_is_a_named_assert, "a sender is dropped once")
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL), copy = sender;

    tr_sender_drop(&sender);
    tr_sender_drop(&copy);
}

TEST(sender, clones_are_named_in_the_report_of_holders)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender first = puppet_spawn_with(system, (struct puppet){ 0 },
        &(struct tr_spawn_options){ .name = "kept", .owner = "the first holder" });
    tr_sender second = tr_sender_clone(first, "the second holder");
    tr_sender third = tr_sender_clone(first, "a name to be replaced");
    tr_sender fourth;
    char *text = NULL;
    size_t size = 0;
    FILE *out;

    CHECK_EQ_INT(tr_weak_upgrade(tr_sender_weaken(first), "the fourth holder", &fourth), 0);
    tr_sender_rename(&third, "the third holder");
    out = open_memstream(&text, &size);
    tr_system_holders(system, out);
    fclose(out);
    CHECK_MSG(strstr(text, "kept: 4 senders") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "the first holder") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "the second holder") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "the third holder") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "the fourth holder") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "replaced") == NULL, "%s", text);
    free(text);

    tr_sender_drop(&first);
    tr_sender_drop(&third);
    out = open_memstream(&text, &size);
    tr_system_holders(system, out);
    fclose(out);
    CHECK_MSG(strstr(text, "kept: 2 senders") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "the first holder") == NULL, "%s", text);
    CHECK_MSG(strstr(text, "the third holder") == NULL, "%s", text);
    CHECK_MSG(strstr(text, "the second holder") != NULL, "%s", text);
    free(text);

    tr_sender_drop(&second);
    tr_sender_drop(&fourth);
    finish_system(&system);
}

/* ---- weak senders --------------------------------------------------------------------------- */

TEST(weak_sender, does_not_keep_the_actor_alive)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL), upgraded;
    tr_weak weak = tr_sender_weaken(sender);

    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &upgraded), 0);
    tr_sender_drop(&upgraded);
    tr_sender_drop(&sender);
    settle(system);
    CHECK_EQ_U64(stats_of(system).live, 0);
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &upgraded), TR_ECLOSED);
    finish_system(&system);
}

TEST(weak_sender, upgraded_keeps_the_actor_alive_and_sends)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL), upgraded;
    tr_weak weak = tr_sender_weaken(sender);

    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &upgraded), 0);
    tr_sender_drop(&sender);
    settle(system);
    CHECK_EQ_U64(stats_of(system).live, 1);
    CHECK_EQ_INT(puppet_tell(upgraded, NULL, 7), 0);
    tr_sender_drop(&upgraded);
    finish_system(&system);
    CHECK_NOTES(&notes, 7);
}

TEST(weak_sender, is_closed_when_the_last_strong_one_is_gone_although_the_box_is_not_drained)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, NULL, &box), upgraded;
    tr_weak weak = tr_sender_weaken(sender);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &upgraded), TR_ECLOSED);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 1);
    tr_box_destroy(&box);
}

static enum tr_next spawn_here(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    *(tr_sender *)m->data = puppet_spawn(tr_system_of(ctx), self->notes, NULL);
    return TR_GO;
}

/* Spawned by a handler: it takes the place that was left last. */
static tr_sender spawn_inside(struct tr_system *system, struct notes *notes)
{
    tr_sender maker = puppet_spawn(system, notes, "maker"), made = { 0 };

    CHECK_EQ_INT(tr_tell(maker, &(struct puppet_message){ .run = spawn_here, .data = &made },
                     sizeof(struct puppet_message)),
        0);
    settle(system);
    CHECK(made.box != NULL);
    CHECK_EQ_INT(puppet_tell(maker, puppet_nothing, 0), 0);
    tr_sender_drop(&maker);
    return made;
}

TEST(weak_sender, does_not_reach_the_next_actor_in_the_same_place)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender old = spawn_inside(system, NULL), new, upgraded;
    tr_weak weak = tr_sender_weaken(old);

    settle(system); /* the maker has ended */
    tr_sender_drop(&old);
    settle(system);
    new = spawn_inside(system, &notes);
    CHECK(new.box == weak.box); /* or the test shows nothing */
    CHECK_EQ_INT(tr_weak_upgrade(weak, "test", &upgraded), TR_ECLOSED);
    CHECK_EQ_INT(tr_stop(weak), TR_ECLOSED);
    CHECK_EQ_INT(tr_kill(weak), TR_ECLOSED);
    CHECK_EQ_INT(puppet_tell(new, NULL, 1), 0);
    settle(system);
    CHECK_NOTES(&notes, 1);
    tr_sender_drop(&new);
    finish_system(&system);
}

TEST(weak_sender, stops_the_actor_after_the_control_messages_that_wait)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender sender = waiting_box(system, NULL, &box);
    struct puppet state = { .notes = &notes };

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 2, TR_CONTROL), 0);
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 3, TR_CONTROL), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &state, NULL), 0);
    settle(system);
    CHECK(notes.stopped);
    CHECK_NOTES(&notes, 2);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_STOPPED), 2);
    CHECK(tr_sender_is_closed(sender));
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(weak_sender, kills_without_the_stop_hook)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
    settle(system);
    CHECK(!notes.stopped);
    CHECK(tr_sender_is_closed(sender));
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* ---- capacity and depth --------------------------------------------------------------------- */

TEST(capacity, is_the_default_or_what_was_asked_for)
{
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, NULL, &box);

    CHECK_EQ_INT(tr_sender_capacity(sender), TR_CAPACITY_DEFAULT);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
    sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 3 }, &box);
    CHECK_EQ_INT(tr_sender_capacity(sender), 3);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
    sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = TR_CAPACITY_MAX }, &box);
    CHECK_EQ_INT(tr_sender_capacity(sender), TR_CAPACITY_MAX);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
    CHECK_EQ_INT(tr_box_create(NULL, &puppet_type,
                     &(struct tr_box_options){ .capacity = TR_CAPACITY_MAX + 1 }, &box),
        TR_EINVAL);
}

TEST(capacity, of_the_largest_box_is_reached_and_not_passed)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender =
        waiting_box(NULL, &(struct tr_box_options){ .capacity = TR_CAPACITY_MAX }, &box);

    for (uint32_t i = 0; i < TR_CAPACITY_MAX; i++)
        CHECK_EQ_INT(puppet_tell(sender, puppet_nothing, i), 0);
    CHECK_EQ_INT(puppet_tell(sender, puppet_nothing, 0), TR_EFULL);
    CHECK_EQ_INT(tr_sender_depth(sender), TR_CAPACITY_MAX);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    tr_box_destroy(&box);
}

static enum tr_next stash_it(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    note(self, m->number);
    CHECK_EQ_INT(tr_stash(ctx), 0);
    return TR_GO;
}

TEST(depth, counts_what_waits_in_the_box_is_reserved_or_stashed_but_not_control)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    struct tr_slot slot;
    tr_sender sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 8 }, &box);

    CHECK_EQ_INT(tr_sender_depth(sender), 0);
    CHECK_EQ_INT(puppet_tell(sender, stash_it, 1), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 2), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 3, TR_BACKGROUND), 0);
    CHECK_EQ_INT(tr_sender_depth(sender), 3);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 4, TR_CONTROL), 0);
    CHECK_EQ_INT(tr_sender_depth(sender), 3);
    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), 0);
    CHECK_EQ_INT(tr_sender_depth(sender), 4);
    CHECK_EQ_INT(tr_step(box, &state, 100), 4);
    CHECK_EQ_INT(tr_sender_depth(sender), 2); /* the stashed and the reserved */
    tr_slot_cancel(&slot);
    CHECK_EQ_INT(tr_sender_depth(sender), 1);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    tr_box_destroy(&box);
}

/* ---- sends that a full box refuses ---------------------------------------------------------- */

TEST(tell, from_a_thread_to_a_full_box_fails_at_once)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 2 }, &box);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(try_tell(sender, 2), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 3), TR_EFULL);
    CHECK_EQ_INT(try_tell(sender, 4), TR_EFULL);
    CHECK_EQ_INT(tr_step(box, &state, 1), 1);
    CHECK_EQ_INT(try_tell(sender, 5), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 1, 2, 5);
    tr_box_destroy(&box);
}

/* Send to the peer until it refuses; the number is how to send. Notes how many it took, then the
 * error. */
static enum tr_next fill_peer(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    uint64_t taken = 0;
    int rc;

    (void)ctx;
    do {
        rc = m->number == 0 ? puppet_tell(self->peer, NULL, 100 + taken)
                            : try_tell(self->peer, 100 + taken);
        taken += rc == 0;
    } while (rc == 0);
    note(self, taken);
    self->notes->rc = rc;
    return TR_GO;
}

TEST(tell, in_a_handler_goes_past_the_capacity_up_to_the_hard_limit)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct puppet sink = { .notes = &notes };
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 4 }, &box);
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, fill_peer, 0), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, TR_EFULL);
    CHECK_NOTES(&notes, 8);
    CHECK_EQ_U64(stats_of(system).parks, 1);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    CHECK_EQ_INT(tr_box_spawn(&box, &sink, NULL), 0);
    finish_system(&system);
    CHECK_NOTES(&notes, 8, 100, 101, 102, 103, 104, 105, 106, 107);
}

TEST(try_tell, in_a_handler_neither_passes_the_capacity_nor_parks)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 4 }, &box);
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, fill_peer, 1), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 99), 0); /* not parked: handles it at once */
    settle(system);
    CHECK_EQ_INT(notes.rc, TR_EFULL);
    CHECK_NOTES(&notes, 4, 99);
    CHECK_EQ_U64(stats_of(system).parks, 0);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    tr_box_destroy(&box);
    settle(system);
    CHECK_EQ_U64(stats_of(system).live, 0);
    tr_system_destroy(&system);
}

static enum tr_next fill_self(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    uint64_t taken = 0;

    (void)m;
    while (tr_self_tell(ctx, &(struct puppet_message){ .run = puppet_nothing },
               sizeof(struct puppet_message)) == 0)
        taken++;
    note(self, taken);
    return TR_GO;
}

TEST(tell, to_oneself_never_parks_and_ends_at_the_hard_limit)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .box.capacity = 4 });

    CHECK_EQ_INT(puppet_tell(sender, fill_self, 0), 0);
    settle(system);
    /* The message being handled still counts. */
    CHECK_NOTES(&notes, 7);
    CHECK_EQ_INT(tr_sender_depth(sender), 0);
    CHECK_EQ_U64(stats_of(system).parks, 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* ---- parking -------------------------------------------------------------------------------- */

/* Send as many as the number says to the peer, from 100 on; then note the number. */
static enum tr_next send_some(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    for (uint64_t i = 0; i < m->number; i++)
        CHECK_EQ_INT(puppet_tell(self->peer, NULL, 100 + i), 0);
    note(self, m->number);
    return TR_GO;
}

TEST(park, actor_that_met_a_full_box_goes_on_when_there_is_room)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct puppet sink = { .notes = &notes };
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 2 }, &box);
    tr_sender sender = puppet_spawn(system, &notes, "sender");

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, send_some, 3), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 50), 0);
    settle(system);
    CHECK_NOTES(&notes, 3); /* the handler ended; the next message waits */
    CHECK_EQ_U64(stats_of(system).parks, 1);
    CHECK_EQ_INT(tr_box_spawn(&box, &sink, NULL), 0);
    settle(system);
    CHECK_NOTES(&notes, 3, 100, 101, 102, 50);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}

TEST(park, parked_actor_still_handles_control)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 1 }, &box);
    tr_sender sender = puppet_spawn(system, &notes, "sender");

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, send_some, 2), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 50), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 51, TR_BACKGROUND), 0);
    settle(system);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 52, TR_CONTROL), 0);
    settle(system);
    CHECK_NOTES(&notes, 2, 52);
    tr_box_destroy(&box); /* nobody waits for the room of a box that has gone */
    tr_sender_drop(&full);
    settle(system);
    CHECK_NOTES(&notes, 2, 52, 50, 51);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(park, parked_actor_ends_when_it_is_stopped_or_killed)
{
    for (int i = 0; i < 2; i++) {
        struct tr_system *system = system_driven(NULL);
        struct notes notes = { 0 };
        struct tr_box *box;
        tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 1 }, &box);
        tr_sender sender = puppet_spawn(system, &notes, "sender");

        puppet_introduce(sender, full);
        CHECK_EQ_INT(puppet_tell(sender, send_some, 2), 0);
        settle(system);
        CHECK_EQ_U64(stats_of(system).parks, 1);
        if (i == 0)
            CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
        else
            CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
        settle(system);
        CHECK(tr_sender_is_closed(sender));
        CHECK_EQ_INT(notes.stopped, i == 0);
        tr_sender_drop(&sender);
        CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
        tr_sender_drop(&full);
        finish_system(&system);
        CHECK_NOTES(&notes, 2, 100, 101);
    }
}

TEST(park, room_is_given_although_stashed_messages_keep_the_box_more_than_half_full)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct puppet sink = { .notes = &notes };
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 4 }, &box);
    tr_sender sender = puppet_spawn(system, &notes, "sender");

    for (uint64_t i = 0; i < 3; i++)
        CHECK_EQ_INT(puppet_tell(full, stash_it, i), 0);
    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, send_some, 2), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 50), 0);
    settle(system);
    CHECK_EQ_U64(stats_of(system).parks, 1);
    CHECK_EQ_INT(tr_box_spawn(&box, &sink, NULL), 0);
    settle(system);
    /* 3 of 4 places are taken for good, but one is free. */
    CHECK_EQ_INT(tr_sender_depth(full), 3);
    CHECK_NOTES(&notes, 2, 0, 1, 2, 100, 101, 50);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}

TEST(park, room_is_given_although_reserved_places_keep_the_box_more_than_half_full)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct tr_slot slots[3];
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 4 }, &box);
    tr_sender sender = puppet_spawn(system, &notes, "sender");

    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(tr_reserve(full, sizeof(struct puppet_message), &slots[i]), 0);
    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, send_some, 2), 0); /* one fits, one is over */
    CHECK_EQ_INT(puppet_tell(sender, NULL, 50), 0);
    settle(system);
    CHECK_EQ_U64(stats_of(system).parks, 1);
    CHECK_NOTES(&notes, 2);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system);
    CHECK_NOTES(&notes, 2, 100, 101, 50);
    for (int i = 0; i < 3; i++)
        tr_slot_cancel(&slots[i]);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}

TEST(park, cancelled_reservation_wakes_the_parked)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_slot slots[2];
    tr_sender full = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .box.capacity = 2 });
    tr_sender sender = puppet_spawn(system, &notes, "sender");

    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(tr_reserve(full, sizeof(struct puppet_message), &slots[i]), 0);
    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, send_some, 1), 0); /* over the capacity */
    CHECK_EQ_INT(puppet_tell(sender, NULL, 50), 0);
    settle(system);
    CHECK_EQ_U64(stats_of(system).parks, 1);
    CHECK_NOTES(&notes, 1, 100); /* its message was handled, but no place is free for another */
    tr_slot_cancel(&slots[0]);
    settle(system);
    CHECK_NOTES(&notes, 1, 100, 50);
    tr_slot_cancel(&slots[1]);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}

TEST(park, sixty_four_parked_actors_all_go_on)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full = waiting_box(system, &(struct tr_box_options){ .capacity = 100 }, &box);
    tr_sender senders[64];

    for (uint64_t i = 0; i < 99; i++)
        CHECK_EQ_INT(puppet_tell(full, puppet_nothing, i), 0);
    for (int i = 0; i < 64; i++) {
        senders[i] = puppet_spawn(system, &notes, "sender");
        puppet_introduce(senders[i], full);
        CHECK_EQ_INT(puppet_tell(senders[i], send_some, 1), 0);
        CHECK_EQ_INT(puppet_tell(senders[i], NULL, 50), 0);
    }
    settle(system);
    CHECK_EQ_U64(stats_of(system).parks, 63); /* the first filled the box, the others went over */
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    for (int i = 0; i < 64; i++)
        tr_sender_drop(&senders[i]);
    tr_sender_drop(&full);
    finish_system(&system);
    CHECK_EQ_INT(notes.count, 3 * 64);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

TEST(deadline, message_that_waits_longer_is_not_handled)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender sender = waiting_box(system, NULL, &box);

    CHECK_EQ_INT(tell_with_timeout(sender, 1, ms(5)), 0);
    CHECK_EQ_INT(tell_with_timeout(sender, 2, ms(50)), 0);
    CHECK_EQ_INT(tell_with_timeout(sender, 3, 0), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(20));
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, 2, 3);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_EXPIRED), 1);
    finish_simulation(&sim);
}

static enum tr_next note_deadline(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    note(self, tr_deadline_ns(ctx));
    return TR_GO;
}

TEST(deadline, is_what_the_handler_is_told)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(tr_sim_system(sim), &notes, NULL);
    uint64_t now = tr_sim_now_ns(sim);

    CHECK_EQ_INT(puppet_tell(sender, note_deadline, 0), 0);
    CHECK_EQ_INT(
        tr_tell_with(sender, &(struct puppet_message){ .run = note_deadline },
            sizeof(struct puppet_message), &(struct tr_send_options){ .timeout_ns = ms(7) }),
        0);
    CHECK_EQ_INT(puppet_tell(sender, note_deadline, 0), 0);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
    CHECK_NOTES(&notes, 0, now + ms(7), 0);
}

/* ---- blocking sends ------------------------------------------------------------------------- */

struct blocked {
    tr_sender to;
    uint64_t first, count;
    int rc;
};

static void *send_blocking(void *argument)
{
    struct blocked *blocked = argument;

    for (uint64_t i = 0; i < blocked->count; i++) {
        blocked->rc = tell_wait(blocked->to, blocked->first + i, 0);
        if (blocked->rc < 0)
            break;
    }
    return NULL;
}

TEST(tell_wait, blocks_until_there_is_room)
{
    struct tr_system *system = system_of_workers(2);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct tr_done *done;
    struct blocked blocked = { .first = 2, .count = 20 };
    tr_sender sender = waiting_box(system, &(struct tr_box_options){ .capacity = 1 }, &box);
    pthread_t thread;

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    blocked.to = tr_sender_clone(sender, "thread");
    CHECK_EQ_INT(pthread_create(&thread, NULL, send_blocking, &blocked), 0);
    CHECK_EQ_INT(tr_sender_depth(sender), 1);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes },
                     &(struct tr_spawn_options){ .ret_done = &done }),
        0);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(blocked.rc, 0);
    tr_sender_drop(&blocked.to);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_done_wait(&done, NULL, NULL, 0), 0);
    CHECK_EQ_INT(notes.count, 21);
    for (uint32_t i = 0; i < 21; i++)
        CHECK_EQ_U64(notes.numbers[i], i + 1);
    finish_system(&system);
}

TEST(tell_wait, drives_a_system_without_workers)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .box.capacity = 1 });

    for (uint64_t i = 1; i <= 3; i++)
        CHECK_EQ_INT(tell_wait(sender, i, 0), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
    CHECK_NOTES(&notes, 1, 2, 3);
}

TEST(tell_wait, gives_up_after_its_time)
{
    struct tr_system *system = system_of_workers(1);
    struct tr_box *box;
    tr_sender sender = waiting_box(system, &(struct tr_box_options){ .capacity = 1 }, &box);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(tell_wait(sender, 2, ms(1)), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_sender_depth(sender), 1);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_STOPPED), 1);
    finish_system(&system);
}

TEST(tell_wait, of_a_simulation_gives_up_when_nothing_is_left_to_step)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_box *box;
    tr_sender sender =
        waiting_box(tr_sim_system(sim), &(struct tr_box_options){ .capacity = 1 }, &box);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(tell_wait(sender, 2, 0), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_sender_wait_closed(sender, 0), TR_ETIMEOUT);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
    finish_simulation(&sim);
}

TEST(tell_wait, ends_when_the_actor_does)
{
    struct tr_system *system = system_of_workers(1);
    struct tr_box *box;
    struct blocked blocked = { .count = 1 };
    tr_sender sender = waiting_box(system, &(struct tr_box_options){ .capacity = 1 }, &box);
    pthread_t thread;

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    blocked.to = tr_sender_clone(sender, "thread");
    CHECK_EQ_INT(pthread_create(&thread, NULL, send_blocking, &blocked), 0);
    tr_box_destroy(&box);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(blocked.rc, TR_ECLOSED);
    tr_sender_drop(&blocked.to);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next block_in_handler(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    (void)m;
    tell_wait(self->peer, 1, 0);
    return TR_GO;
}

TEST_ABORTS(
    tell_wait, in_a_handler_is_a_named_assert, "tr_tell_wait is for threads that are not workers")
{
    struct tr_system *system = system_driven(NULL);
    tr_sender peer = puppet_spawn(system, NULL, NULL), sender = puppet_spawn(system, NULL, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, block_in_handler, 0), 0);
    settle(system);
}

/* ---- closed --------------------------------------------------------------------------------- */

TEST(closed, box_of_an_actor_that_ended_refuses_everything)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *future = NULL;
    struct tr_slot slot;

    CHECK(!tr_sender_is_closed(sender));
    CHECK_EQ_INT(puppet_tell(sender, puppet_quit, 0), 0);
    settle(system);
    CHECK(tr_sender_is_closed(sender));
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), TR_ECLOSED);
    CHECK_EQ_INT(try_tell(sender, 1), TR_ECLOSED);
    CHECK_EQ_INT(tell_wait(sender, 1, 0), TR_ECLOSED);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 1, TR_CONTROL), TR_ECLOSED);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 1, TR_BACKGROUND), TR_ECLOSED);
    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), TR_ECLOSED);
    CHECK_EQ_INT(tr_ask_future(sender, &(struct puppet_message){ 0 }, sizeof(struct puppet_message),
                     0, &future),
        TR_ECLOSED);
    CHECK(future == NULL);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static void *wait_closed(void *argument)
{
    struct blocked *blocked = argument;

    blocked->rc = tr_sender_wait_closed(blocked->to, 0);
    return NULL;
}

TEST(wait_closed, returns_when_the_actor_has_ended)
{
    struct tr_system *system = system_of_workers(2);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct blocked blocked[3];
    pthread_t threads[3];

    CHECK_EQ_INT(tr_sender_wait_closed(sender, ms(1)), TR_ETIMEOUT);
    for (int i = 0; i < 3; i++) {
        blocked[i] = (struct blocked){ .to = tr_sender_clone(sender, "thread"), .rc = -1 };
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, wait_closed, &blocked[i]), 0);
    }
    for (int i = 0; i < 100; i++) /* being woken for other reasons does not end the wait */
        CHECK_EQ_INT(tr_tell_wait(sender, &(struct puppet_message){ .run = puppet_nothing },
                         sizeof(struct puppet_message), 0),
            0);
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK_EQ_INT(blocked[i].rc, 0);
        CHECK(tr_sender_is_closed(blocked[i].to));
        tr_sender_drop(&blocked[i].to);
    }
    CHECK_EQ_INT(tr_sender_wait_closed(sender, 0), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(wait_closed, drives_a_system_without_workers)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);

    CHECK_EQ_INT(puppet_tell(sender, puppet_quit, 0), 0);
    CHECK_EQ_INT(tr_sender_wait_closed(sender, 0), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* ---- reserved slots ------------------------------------------------------------------------- */

static void fill_slot(struct tr_slot *slot, uint64_t number)
{
    struct puppet_message *message = slot->message;

    *message = (struct puppet_message){ .number = number };
}

TEST(reserve, keeps_a_place_until_it_is_committed)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    struct tr_slot slot;
    tr_sender sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 2 }, &box);

    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 2), TR_EFULL);
    fill_slot(&slot, 3);
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    CHECK(slot.cell == NULL);
    tr_slot_cancel(&slot); /* of nothing: fine */
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 1, 3); /* it has its place from the commit on, not from the reservation */
    tr_box_destroy(&box);
}

TEST(reserve, of_a_full_box_or_with_a_wrong_size_is_refused)
{
    struct tr_box *box;
    struct tr_slot slot = { 0 };
    tr_sender sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 1 }, &box);

    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message) - 1, &slot), TR_EINVAL);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), TR_EFULL);
    CHECK(slot.cell == NULL);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
}

TEST(reserve, cancelled_gives_the_place_back)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    struct tr_slot slot;
    tr_sender sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 1 }, &box);

    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), 0);
        CHECK_EQ_INT(puppet_tell(sender, NULL, 2), TR_EFULL);
        tr_slot_cancel(&slot);
        CHECK(slot.cell == NULL);
    }
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 1);
    tr_box_destroy(&box);
}

TEST(reserve, committed_after_the_end_is_refused_and_can_be_cancelled)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_slot slot;

    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), 0);
    fill_slot(&slot, 1);
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
    settle(system);
    CHECK_EQ_INT(tr_slot_commit(&slot), TR_ECLOSED);
    CHECK(slot.message != NULL);
    tr_slot_cancel(&slot);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST_ABORTS(reserve, committed_twice_is_a_named_assert, "a slot is committed or cancelled once")
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_slot slot;

    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct puppet_message), &slot), 0);
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    tr_slot_commit(&slot);
}

static enum tr_next reserve_in_handler(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct tr_slot slot;

    (void)ctx;
    CHECK_EQ_INT(tr_reserve(self->peer, sizeof(struct puppet_message), &slot), 0);
    fill_slot(&slot, m->number);
    if (m->number % 2 == 0)
        CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    else
        tr_slot_cancel(&slot);
    return TR_GO;
}

TEST(reserve, works_in_a_handler)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sink = puppet_spawn(system, &notes, NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);

    puppet_introduce(sender, sink);
    for (uint64_t i = 1; i <= 4; i++)
        CHECK_EQ_INT(puppet_tell(sender, reserve_in_handler, i), 0);
    tr_sender_drop(&sender);
    tr_sender_drop(&sink);
    finish_system(&system);
    CHECK_NOTES(&notes, 2, 4);
}

struct large {
    unsigned char bytes[100000];
};

static const void *large_seen;

static enum tr_next handle_large(void *state, struct tr_context *ctx, void *message)
{
    const struct large *large = message;

    (void)state;
    (void)ctx;
    CHECK_EQ_INT(large->bytes[0], 1);
    CHECK_EQ_INT(large->bytes[sizeof large->bytes - 1], 2);
    large_seen = message;
    return TR_GO;
}

TEST(reserve, builds_a_large_message_in_place_without_a_copy)
{
    static const struct tr_type type = {
        .name = "large", .message_size = sizeof(struct large), .handle = handle_large
    };
    struct tr_box *box;
    struct tr_slot slot;
    struct large *large;
    tr_sender sender;

    CHECK_EQ_INT(tr_box_create(NULL, &type, NULL, &box), 0);
    sender = tr_box_sender(box, "test");
    CHECK_EQ_INT(tr_reserve(sender, sizeof(struct large), &slot), 0);
    large = slot.message;
    large->bytes[0] = 1;
    large->bytes[sizeof large->bytes - 1] = 2;
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, NULL), 0);
    CHECK(large_seen == large);
    tr_box_destroy(&box);
}

/* ---- sending from another thread to an actor that runs here --------------------------------- */

static void *send_and_drop(void *argument)
{
    struct blocked *blocked = argument;

    for (uint64_t i = 0; i < blocked->count; i++)
        while (puppet_tell(blocked->to, NULL, blocked->first + i) == TR_EFULL) {
        }
    tr_sender_drop(&blocked->to);
    return NULL;
}

TEST(run, takes_messages_of_another_thread_until_it_drops_its_sender)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    struct blocked blocked = { .first = 0, .count = 1000 };
    pthread_t thread;

    blocked.to = waiting_box(NULL, NULL, &box);
    CHECK_EQ_INT(pthread_create(&thread, NULL, send_and_drop, &blocked), 0);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(notes.count, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ_U64(notes.numbers[i], i);
    tr_box_destroy(&box);
}

static void *send_waiting_and_drop(void *argument)
{
    struct blocked *blocked = argument;

    for (uint64_t i = 0; i < blocked->count; i++) {
        struct puppet_message m = { .run = puppet_echo, .number = blocked->first + i };
        uint64_t number = 0;

        if (i % 2 == 0) {
            CHECK_EQ_INT(tell_wait(blocked->to, blocked->first + i, 0), 0);
        } else {
            int rc;

            do
                rc = tr_ask_wait(blocked->to, &m, sizeof m, &number, sizeof number, 0);
            while (rc == TR_EFULL);
            CHECK_EQ_INT(rc, 0);
            CHECK_EQ_U64(number, blocked->first + i);
        }
    }
    tr_sender_drop(&blocked->to);
    return NULL;
}

TEST(run, serves_threads_that_wait_for_room_and_for_answers)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    struct blocked blocked = { .first = 0, .count = 1000 };
    pthread_t thread;

    blocked.to = waiting_box(NULL, &(struct tr_box_options){ .capacity = 1 }, &box);
    CHECK_EQ_INT(pthread_create(&thread, NULL, send_waiting_and_drop, &blocked), 0);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    pthread_join(thread, NULL);
    CHECK_EQ_INT(notes.count, 1000);
    tr_box_destroy(&box);
}
