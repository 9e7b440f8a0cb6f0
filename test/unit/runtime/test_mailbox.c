/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "puppet.h"

static tr_sender waiting_box(
    struct tr_system *system, const struct tr_box_options *options, struct tr_box **ret_box)
{
    CHECK_EQ_INT(tr_box_create(system, &puppet_type, options, ret_box), 0);
    return tr_box_sender(*ret_box, "test");
}

/* ---- sizes ---------------------------------------------------------------------------------- */

struct measured {
    size_t size;
    unsigned seen;
};

static void fill_pattern(unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(size * 7 + i * 13 + 1);
}

static enum tr_next handle_measured(void *state, struct tr_context *ctx, void *message)
{
    struct measured *self = state;
    const unsigned char *bytes = message;

    for (size_t i = 0; i < self->size; i++)
        CHECK_EQ_INT(bytes[i], (unsigned char)(self->size * 7 + i * 13 + 1));
    self->seen++;
    if (tr_is_asked(ctx))
        CHECK_EQ_INT(tr_reply(ctx, 0, message, self->size < 64 ? self->size : 64), 0);
    return TR_GO;
}

/* One that tells, asks and forwards messages of a size from inside the system. */
struct relay {
    tr_sender to;
    unsigned char *bytes;
    size_t size;
    unsigned replies;
};

static enum tr_next handle_relay(void *state, struct tr_context *ctx, void *message)
{
    struct relay *self = state;

    (void)message;
    CHECK_EQ_INT(tr_tell(self->to, self->bytes, self->size), 0);
    CHECK_EQ_INT(tr_ask(ctx, self->to, self->bytes, self->size, NULL), 0);
    CHECK_EQ_INT(tr_ask(ctx, self->to, self->bytes, self->size,
                     &(struct tr_ask_options){ .timeout_ns = ms(100000) }),
        0);
    return TR_GO;
}

static enum tr_next relay_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct relay *self = state;

    (void)ctx;
    CHECK_EQ_INT(event->status, 0);
    CHECK_EQ_INT(event->size, self->size < 64 ? self->size : 64);
    self->replies++;
    return TR_GO;
}

/* Send one message of the size in every way there is. */
static void check_size(struct tr_system *system, size_t size)
{
    static const struct tr_type relay_type = { .name = "relay",
        .state_size = sizeof(struct relay),
        .handle = handle_relay,
        .event = relay_event };
    struct tr_type type = { .name = "measured",
        .message_size = (uint32_t)size,
        .state_size = sizeof(struct measured),
        .handle = handle_measured };
    struct measured state = { .size = size };
    struct relay relay = { .size = size };
    unsigned char *bytes = malloc(size + 1);
    tr_sender sender, relayer;
    struct tr_slot slot;
    struct tr_done *done, *relay_done;

    fill_pattern(bytes, size);
    CHECK_EQ_INT(
        tr_spawn(system, &type, &state, &(struct tr_spawn_options){ .ret_done = &done }, &sender),
        0);
    CHECK_EQ_INT(tr_tell(sender, bytes, size + 1), TR_EINVAL);
    if (size > 0)
        CHECK_EQ_INT(tr_tell(sender, bytes, size - 1), TR_EINVAL);
    CHECK_EQ_INT(tr_tell(sender, bytes, size), 0);
    CHECK_EQ_INT(tr_try_tell(sender, bytes, size), 0);
    CHECK_EQ_INT(tr_ask_wait(sender, bytes, size, NULL, 0, 0), 0);
    CHECK_EQ_INT(tr_reserve(sender, size, &slot), 0);
    fill_pattern(slot.message, size);
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    relay.to = sender;
    relay.bytes = bytes;
    CHECK_EQ_INT(tr_spawn(system, &relay_type, &relay,
                     &(struct tr_spawn_options){ .ret_done = &relay_done }, &relayer),
        0);
    CHECK_EQ_INT(tr_tell(relayer, NULL, 0), 0);
    tr_sender_drop(&relayer);
    CHECK_EQ_INT(tr_done_wait(&relay_done, &relay, NULL, 0), 0);
    CHECK_EQ_INT(relay.replies, 2);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_done_wait(&done, &state, NULL, 0), 0);
    CHECK_EQ_INT(state.seen, 7);
    free(bytes);
}

TEST(message, of_zero_to_forty_bytes_arrives_whole)
{
    struct tr_system *system = system_driven(NULL);

    for (size_t size = 0; size <= 40; size++)
        check_size(system, size);
    finish_system(&system);
}

TEST_LONG(message, of_41_to_4096_bytes_arrives_whole, 60)
{
    struct tr_system *system = system_driven(NULL);

    for (size_t size = 41; size <= 4096; size++)
        check_size(system, size);
    finish_system(&system);
}

TEST(message, of_100_kilobytes_and_around_64_arrives_whole)
{
    struct tr_system *system = system_driven(NULL);

    for (size_t size = 65530; size <= 65540; size++)
        check_size(system, size);
    check_size(system, 100 << 10);
    check_size(system, 1 << 20);
    finish_system(&system);
}

static enum tr_next check_sizes_in_handler(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    static unsigned char bytes[65536];
    struct tr_slot slot;

    (void)m;
    for (size_t size = 0; size <= sizeof bytes; size++) {
        if (size == sizeof(struct puppet_message))
            continue;
        CHECK_EQ_INT(tr_tell(self->peer, bytes, size), TR_EINVAL);
        CHECK_EQ_INT(tr_try_tell(self->peer, bytes, size), TR_EINVAL);
        CHECK_EQ_INT(tr_self_tell(ctx, bytes, size), TR_EINVAL);
        CHECK_EQ_INT(tr_ask(ctx, self->peer, bytes, size, NULL), TR_EINVAL);
        CHECK_EQ_INT(tr_reserve(self->peer, size, &slot), TR_EINVAL);
    }
    note(self, 1);
    return TR_GO;
}

TEST(message, of_a_wrong_size_is_refused_by_every_send)
{
    static unsigned char bytes[65536];
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_future *future;
    tr_sender peer = puppet_spawn(system, NULL, NULL);
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(puppet_tell(sender, check_sizes_in_handler, 0), 0);
    settle(system);
    CHECK_NOTES(&notes, 1);
    for (size_t size = 0; size <= sizeof bytes; size++) {
        if (size == sizeof(struct puppet_message))
            continue;
        CHECK_EQ_INT(tr_tell(peer, bytes, size), TR_EINVAL);
        CHECK_EQ_INT(tr_tell_wait(peer, bytes, size, 0), TR_EINVAL);
        CHECK_EQ_INT(
            tr_tell_with(peer, bytes, size, &(struct tr_send_options){ .lane = TR_CONTROL }),
            TR_EINVAL);
        CHECK_EQ_INT(tr_ask_future(peer, bytes, size, 0, &future), TR_EINVAL);
        CHECK_EQ_INT(tr_ask_wait(peer, bytes, size, NULL, 0, 0), TR_EINVAL);
    }
    CHECK_EQ_U64(stats_of(system).sent, 2);
    tr_sender_drop(&peer);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(message, of_a_wrong_size_is_refused_by_a_box_of_large_ones)
{
    static const struct tr_type type = { .name = "large",
        .message_size = 100,
        .state_size = sizeof(struct measured),
        .handle = handle_measured };
    static unsigned char bytes[70000];
    struct tr_box *box;
    tr_sender sender;

    CHECK_EQ_INT(tr_box_create(NULL, &type, NULL, &box), 0);
    sender = tr_box_sender(box, "test");
    for (size_t size = 0; size <= sizeof bytes; size++)
        if (size != 100)
            CHECK_EQ_INT(tr_tell(sender, bytes, size), TR_EINVAL);
    tr_sender_drop(&sender);
    tr_box_destroy(&box);
}

/* ---- lanes ---------------------------------------------------------------------------------- */

static void tell_mixed(tr_sender sender)
{
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 21, TR_INTERACTIVE), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 31, TR_BACKGROUND), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 22, TR_INTERACTIVE), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 11, TR_CONTROL), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 32, TR_BACKGROUND), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 23, TR_INTERACTIVE), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 12, TR_CONTROL), 0);
}

TEST(lanes, control_overtakes_and_background_waits_on_this_thread)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, NULL, &box);

    tell_mixed(sender);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 11, 12, 21, 22, 23, 31, 32);
    tr_box_destroy(&box);
}

TEST(lanes, control_overtakes_and_background_waits_when_spawned)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender sender = waiting_box(system, NULL, &box);

    tell_mixed(sender);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system); /* the sender is held: nothing but the messages makes it run */
    CHECK_NOTES(&notes, 11, 12, 21, 22, 23, 31, 32);
    notes.count = 0;
    tell_mixed(sender);
    settle(system);
    CHECK_NOTES(&notes, 11, 12, 21, 22, 23, 31, 32);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next tell_self_control(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    tr_sender me;

    note(self, m->number);
    CHECK_EQ_INT(tr_weak_upgrade(tr_self(ctx), "itself", &me), 0);
    CHECK_EQ_INT(puppet_tell_lane(me, NULL, 10, TR_CONTROL), 0);
    tr_sender_drop(&me);
    return TR_GO;
}

TEST(lanes, control_that_arrives_during_a_turn_overtakes_what_the_turn_has_taken)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender sender = waiting_box(system, NULL, &box);

    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 31, TR_BACKGROUND), 0); /* a turn with lanes */
    CHECK_EQ_INT(puppet_tell(sender, tell_self_control, 20), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 21), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system);
    CHECK_NOTES(&notes, 20, 10, 21, 31);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static int start_well(struct puppet *self, struct tr_context *ctx)
{
    (void)ctx;
    note(self, 1);
    return 0;
}

TEST(lanes, control_overtakes_in_the_box_of_an_actor_that_has_not_started)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender =
        puppet_spawn_with(system, (struct puppet){ .notes = &notes, .on_start = start_well }, NULL);

    tell_mixed(sender);
    tr_sender_drop(&sender);
    finish_system(&system);
    CHECK_NOTES(&notes, 1, 11, 12, 21, 22, 23, 31, 32);
}

TEST(lanes, control_is_never_refused_for_want_of_room)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender =
        waiting_box(NULL, &(struct tr_box_options){ .capacity = 1, .full = TR_FULL_FAIL }, &box);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 99), 0);
    for (uint64_t i = 0; i < 10; i++)
        CHECK_EQ_INT(puppet_tell_lane(sender, NULL, i, TR_CONTROL), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 98), TR_EFULL);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99);
    tr_box_destroy(&box);
}

TEST(lanes, more_background_messages_than_a_turn_handles_all_run)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .box.capacity = 3000 });

    for (uint64_t i = 0; i < 3000; i++)
        CHECK_EQ_INT(puppet_tell_lane(sender, NULL, i, TR_BACKGROUND), 0);
    settle(system); /* the sender is still held */
    CHECK_EQ_INT(notes.count, 3000);
    for (uint32_t i = 0; i < 3000; i++)
        CHECK_EQ_U64(notes.numbers[i], i);
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* Interactive work that never ends until the number reaches 0. */
static enum tr_next count_down(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    note(self, m->number);
    if (m->number > 1) {
        struct puppet_message next = { .run = count_down, .number = m->number - 1 };

        CHECK_EQ_INT(tr_self_tell(ctx, &next, sizeof next), 0);
    }
    return TR_GO;
}

TEST(lanes, background_is_not_starved_by_interactive_work_that_never_ends)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    uint32_t first = 0, second = 0;

    /* Two of them: there is always one in the box. */
    CHECK_EQ_INT(puppet_tell(sender, count_down, 1000), 0);
    CHECK_EQ_INT(puppet_tell(sender, count_down, 1000), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 5001, TR_BACKGROUND), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 5002, TR_BACKGROUND), 0);
    settle(system);
    CHECK_EQ_INT(notes.count, 2002);
    for (uint32_t i = 0; i < notes.count; i++) {
        if (notes.numbers[i] == 5001)
            first = i;
        if (notes.numbers[i] == 5002)
            second = i;
    }
    CHECK(first > 0 && first < 200);
    CHECK(second > first && second < 400);
    tr_sender_drop(&sender);
    finish_system(&system);
}

/* ---- full boxes ----------------------------------------------------------------------------- */

/* A message that knows when it is dropped. */
struct owned {
    _Atomic unsigned *drops;
    uint64_t number;
    enum { OWNED_PLAIN, OWNED_FAIL, OWNED_QUIT, OWNED_STASH } what;
};

struct owner {
    struct notes *notes;
};

static enum tr_next handle_owned(void *state, struct tr_context *ctx, void *message)
{
    struct owner *self = state;
    struct owned *m = message;

    if (self->notes != NULL)
        self->notes->numbers[self->notes->count++] = m->number;
    switch (m->what) {
    case OWNED_FAIL:
        return TR_FAIL;
    case OWNED_QUIT:
        return TR_STOP;
    case OWNED_STASH:
        CHECK_EQ_INT(tr_stash(ctx), 0);
        return TR_GO;
    case OWNED_PLAIN:
        break;
    }
    if (tr_is_asked(ctx))
        tr_reply(ctx, 0, &m->number, sizeof m->number);
    return TR_GO;
}

static void drop_owned(void *message)
{
    struct owned *m = message;

    if (m->drops != NULL)
        atomic_fetch_add(m->drops, 1);
}

static const struct tr_type owner_type = { .name = "owner",
    .message_size = sizeof(struct owned),
    .state_size = sizeof(struct owner),
    .handle = handle_owned,
    .message_drop = drop_owned };

static tr_sender owner_box(
    struct tr_system *system, uint32_t capacity, enum tr_full full, struct tr_box **ret_box)
{
    CHECK_EQ_INT(tr_box_create(system, &owner_type,
                     &(struct tr_box_options){ .capacity = capacity, .full = full }, ret_box),
        0);
    return tr_box_sender(*ret_box, "test");
}

static int tell_owned(tr_sender to, _Atomic unsigned *drops, uint64_t number)
{
    return tr_tell(to, &(struct owned){ .drops = drops, .number = number }, sizeof(struct owned));
}

static struct tr_future *ask_owned(tr_sender to, _Atomic unsigned *drops, uint64_t number)
{
    struct tr_future *future = NULL;

    CHECK_EQ_INT(tr_ask_future(to, &(struct owned){ .drops = drops, .number = number },
                     sizeof(struct owned), 0, &future),
        0);
    return future;
}

TEST(full_box, that_fails_leaves_the_message_with_the_sender)
{
    struct notes notes = { 0 };
    struct owner state = { &notes };
    struct tr_box *box;
    _Atomic unsigned drops = 0;
    tr_sender sender = owner_box(NULL, 2, TR_FULL_FAIL, &box);
    struct tr_future *future = NULL;

    CHECK_EQ_INT(tell_owned(sender, &drops, 1), 0);
    CHECK_EQ_INT(tell_owned(sender, &drops, 2), 0);
    CHECK_EQ_INT(tell_owned(sender, &drops, 3), TR_EFULL);
    CHECK_EQ_INT(
        tr_ask_future(sender, &(struct owned){ .drops = &drops }, sizeof(struct owned), 0, &future),
        TR_EFULL);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 1, 2);
    CHECK_EQ_INT(drops, 0);
    tr_box_destroy(&box);
}

static enum tr_next tell_peer_once(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    self->notes->rc = puppet_tell(self->peer, NULL, m->number);
    return TR_GO;
}

TEST(full_box, that_fails_does_so_in_a_handler_too_and_parks_nobody)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full =
        waiting_box(system, &(struct tr_box_options){ .capacity = 1, .full = TR_FULL_FAIL }, &box);
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, tell_peer_once, 1), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, 0);
    CHECK_EQ_INT(puppet_tell(sender, tell_peer_once, 2), 0);
    settle(system);
    CHECK_EQ_INT(notes.rc, TR_EFULL);
    CHECK_EQ_U64(stats_of(system).parks, 0);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    finish_system(&system);
    CHECK_NOTES(&notes, 1);
}

TEST(full_box, that_drops_the_newest_takes_and_drops_it)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    _Atomic unsigned kept = 0, dropped = 0;
    tr_sender sender = owner_box(system, 2, TR_FULL_DROP_NEWEST, &box);

    CHECK_EQ_INT(tell_owned(sender, &kept, 1), 0);
    CHECK_EQ_INT(tell_owned(sender, &kept, 2), 0);
    CHECK_EQ_INT(tell_owned(sender, &dropped, 3), 0);
    CHECK_EQ_INT(tell_owned(sender, &dropped, 4), 0);
    CHECK_EQ_INT(dropped, 2);
    CHECK_EQ_INT(tr_try_tell(sender, &(struct owned){ 0 }, sizeof(struct owned)), TR_EFULL);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_DROPPED), 2);
    CHECK_EQ_INT(tr_sender_depth(sender), 2);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ &notes }, NULL), 0);
    finish_system(&system);
    CHECK_NOTES(&notes, 1, 2);
    CHECK_EQ_INT(kept, 0);
    CHECK_EQ_INT(dropped, 2);
}

/* Ask the peer (an owner) as often as the number says, tags from 0 on. */
static enum tr_next ask_owner(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    for (uint64_t i = 0; i < m->number; i++) {
        struct owned message = { .number = i };

        CHECK_EQ_INT(tr_ask(ctx, self->peer, &message, sizeof message,
                         &(struct tr_ask_options){ .tag = (uint32_t)i }),
            0);
    }
    return TR_GO;
}

TEST(full_box, that_drops_the_newest_answers_dropped_asks_with_full)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full = owner_box(system, 2, TR_FULL_DROP_NEWEST, &box);
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, ask_owner, 5), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ_INT(notes.events[i].tag, i + 2);
        CHECK_EQ_INT(notes.events[i].status, TR_EFULL);
    }
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ NULL }, NULL), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 5);
    CHECK_EQ_INT(notes.events[3].status, 0);
    CHECK_EQ_INT(notes.events[4].status, 0);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}

TEST(full_box, that_drops_the_oldest_handles_the_newest_of_its_capacity)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    _Atomic unsigned kept = 0, dropped = 0;
    tr_sender sender = owner_box(system, 4, TR_FULL_DROP_OLDEST, &box);

    for (uint64_t i = 0; i < 30; i++)
        CHECK_EQ_INT(tell_owned(sender, i < 26 ? &dropped : &kept, i), 0);
    CHECK_EQ_INT(tr_try_tell(sender, &(struct owned){ 0 }, sizeof(struct owned)), TR_EFULL);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ &notes }, NULL), 0);
    settle(system);
    CHECK_NOTES(&notes, 26, 27, 28, 29);
    CHECK_EQ_INT(dropped, 26);
    CHECK_EQ_INT(kept, 0);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_DROPPED), 26);
    finish_system(&system);
}

TEST(full_box, that_drops_the_oldest_answers_dropped_asks_of_threads_with_full)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct tr_future *futures[10];
    tr_sender sender = owner_box(system, 3, TR_FULL_DROP_OLDEST, &box);

    for (uint64_t i = 0; i < 10; i++)
        futures[i] = ask_owned(sender, NULL, i);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ &notes }, NULL), 0);
    for (int i = 0; i < 10; i++)
        CHECK_EQ_INT(puppet_end(&futures[i], NULL), i < 7 ? TR_EFULL : 0);
    CHECK_NOTES(&notes, 7, 8, 9);
    finish_system(&system);
}

TEST(full_box, that_drops_the_oldest_answers_dropped_asks_of_actors_with_full)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full = owner_box(system, 3, TR_FULL_DROP_OLDEST, &box);
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    uint32_t answered = 0, refused = 0;

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, ask_owner, 10), 0);
    settle(system);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ NULL }, NULL), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 10);
    for (uint32_t i = 0; i < 10; i++) {
        answered += notes.events[i].status == 0;
        refused += notes.events[i].status == TR_EFULL;
        CHECK_EQ_INT(notes.events[i].status, notes.events[i].tag < 7 ? TR_EFULL : 0);
    }
    CHECK_EQ_INT(answered, 3);
    CHECK_EQ_INT(refused, 7);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    finish_system(&system);
}

TEST(full_box, that_drops_the_oldest_answers_asks_of_actors_that_a_thread_pushed_out)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender full = owner_box(system, 3, TR_FULL_DROP_OLDEST, &box);
    tr_sender sender = puppet_spawn(system, &notes, NULL);

    puppet_introduce(sender, full);
    CHECK_EQ_INT(puppet_tell(sender, ask_owner, 3), 0);
    settle(system);
    for (uint64_t i = 0; i < 10; i++)
        CHECK_EQ_INT(tell_owned(full, NULL, i), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ_INT(notes.events[i].status, TR_EFULL);
    tr_sender_drop(&sender);
    tr_sender_drop(&full);
    settle(system);
    tr_box_destroy(&box);
    CHECK_EQ_U64(stats_of(system).live, 0);
    check_conserved(system);
    tr_system_destroy(&system);
}

static enum tr_next ask_self(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct puppet_message message = { .run = puppet_echo };
    tr_sender me;

    (void)self;
    CHECK_EQ_INT(tr_weak_upgrade(tr_self(ctx), "itself", &me), 0);
    for (uint64_t i = 0; i < m->number; i++) {
        message.number = i;
        CHECK_EQ_INT(tr_ask(ctx, me, &message, sizeof message,
                         &(struct tr_ask_options){ .tag = (uint32_t)i }),
            0);
    }
    tr_sender_drop(&me);
    return TR_GO;
}

TEST(full_box, that_drops_the_oldest_answers_asks_of_its_own_actor)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .box = { .capacity = 3, .full = TR_FULL_DROP_OLDEST } });
    uint32_t answered = 0, refused = 0;

    CHECK_EQ_INT(puppet_tell(sender, ask_self, 20), 0);
    settle(system);
    CHECK_EQ_INT(notes.event_count, 20);
    for (uint32_t i = 0; i < 20; i++) {
        answered += notes.events[i].status == 0;
        refused += notes.events[i].status == TR_EFULL;
    }
    CHECK_EQ_INT(answered + refused, 20);
    CHECK(answered >= 2 && answered <= 3);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(full_box, that_drops_the_oldest_takes_messages_although_all_its_places_are_stashed)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    _Atomic unsigned drops = 0;
    tr_sender sender = owner_box(system, 2, TR_FULL_DROP_OLDEST, &box);

    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ &notes }, NULL), 0);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_EQ_INT(
            tr_tell(sender, &(struct owned){ .drops = &drops, .number = i, .what = OWNED_STASH },
                sizeof(struct owned)),
            0);
        settle(system);
    }
    CHECK(tr_sender_depth(sender) <= 4); /* it does not grow for ever */
    tr_sender_drop(&sender);
    finish_system(&system);
    CHECK_EQ_INT(drops, 8); /* stashed or pushed out: never handled */
}

static _Atomic unsigned told_in_drop;
static tr_sender drop_target;

static void tell_in_drop(void *message)
{
    (void)message;
    if (puppet_tell(drop_target, puppet_nothing, 0) == 0)
        told_in_drop++;
}

static enum tr_next handle_plain(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

TEST(full_box, calls_message_drop_where_it_may_send)
{
    static const struct tr_type type = {
        .name = "chatty", .message_size = 8, .handle = handle_plain, .message_drop = tell_in_drop
    };
    const enum tr_full policies[] = { TR_FULL_DROP_NEWEST, TR_FULL_DROP_OLDEST };
    struct tr_system *system = system_driven(NULL);

    drop_target = puppet_spawn(system, NULL, NULL);
    for (int p = 0; p < 2; p++) {
        struct tr_box *box;
        tr_sender sender;

        told_in_drop = 0;
        CHECK_EQ_INT(tr_box_create(system, &type,
                         &(struct tr_box_options){ .capacity = 2, .full = policies[p] }, &box),
            0);
        sender = tr_box_sender(box, "test");
        for (uint64_t i = 0; i < 10; i++)
            CHECK_EQ_INT(tr_tell(sender, &i, sizeof i), 0);
        CHECK(told_in_drop >= 5);
        tr_sender_drop(&sender);
        tr_box_destroy(&box);
        CHECK_EQ_INT(told_in_drop, 10);
    }
    tr_sender_drop(&drop_target);
    finish_system(&system);
}

/* ---- every unhandled message is dropped, once ----------------------------------------------- */

/* How a box with five messages in it ends. */
enum ending {
    ENDING_HANDLED,
    ENDING_STOP,
    ENDING_KILL,
    ENDING_CRASH,
    ENDING_DESTROY_BOX,
    ENDING_DESTROY_SYSTEM,
    ENDING_STASHED,
    ENDINGS,
};

static void run_ending(enum ending ending)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    _Atomic unsigned drops[5] = { 0 };
    struct tr_future *asked;
    tr_sender sender = owner_box(system, 16, TR_FULL_WAIT, &box);
    unsigned expected[5] = { 1, 1, 1, 1, 1 };
    int status;

    if (ending == ENDING_STOP || ending == ENDING_CRASH) {
        struct owned first = {
            .number = 100, .what = ending == ENDING_STOP ? OWNED_QUIT : OWNED_FAIL, .drops = NULL
        };

        CHECK_EQ_INT(tr_tell(sender, &first, sizeof first), 0);
    }
    for (uint64_t i = 0; i < 5; i++) {
        struct owned m = { .drops = &drops[i],
            .number = i,
            .what = ending == ENDING_STASHED ? OWNED_STASH : OWNED_PLAIN };
        enum tr_lane lane = i == 1 ? TR_BACKGROUND : TR_INTERACTIVE;

        if (i == 2)
            CHECK_EQ_INT(tr_ask_future(sender, &m, sizeof m, 0, &asked), 0);
        else
            CHECK_EQ_INT(
                tr_tell_with(sender, &m, sizeof m, &(struct tr_send_options){ .lane = lane }), 0);
    }
    if (ending == ENDING_KILL)
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
    if (ending == ENDING_DESTROY_BOX) {
        tr_box_destroy(&box);
    } else if (ending != ENDING_DESTROY_SYSTEM) {
        CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ &notes }, NULL), 0);
        if (ending == ENDING_HANDLED || ending == ENDING_STASHED)
            tr_sender_drop(&sender);
        settle(system);
    }
    if (ending == ENDING_HANDLED)
        memset(expected, 0, sizeof expected);
    if (ending != ENDING_DESTROY_SYSTEM) {
        check_conserved(system);
        tr_sender_drop(&sender);
    }
    tr_system_destroy(&system);
    for (int i = 0; i < 5; i++)
        CHECK_MSG(drops[i] == expected[i], "ending %d: message %d was dropped %u times",
            (int)ending, i, drops[i]);
    status = puppet_end(&asked, NULL);
    CHECK_MSG(status == (ending == ENDING_HANDLED    ? 0
                            : ending == ENDING_CRASH ? TR_ECRASHED
                                                     : TR_ECLOSED),
        "ending %d: the ask ended with %s", (int)ending, tr_error_name(status));
}

TEST(message_drop, is_called_once_for_every_message_that_is_never_handled_however_it_ends)
{
    for (int ending = 0; ending < ENDINGS; ending++)
        run_ending((enum ending)ending);
}

TEST(message_drop, is_not_called_for_the_message_a_handler_failed_on)
{
    struct tr_system *system = system_driven(NULL);
    _Atomic unsigned drops = 0;
    tr_sender sender;

    CHECK_EQ_INT(tr_spawn(system, &owner_type, &(struct owner){ NULL }, NULL, &sender), 0);
    CHECK_EQ_INT(tr_tell(sender, &(struct owned){ .drops = &drops, .what = OWNED_FAIL },
                     sizeof(struct owned)),
        0);
    settle(system);
    CHECK_EQ_INT(drops, 0); /* the handler owned it: what is left of it is unknown */
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 1);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(message_drop, is_called_for_expired_and_cancelled_messages)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct tr_future *expired, *cancelled;
    _Atomic unsigned drops[3] = { 0 };
    tr_sender sender = owner_box(system, 16, TR_FULL_WAIT, &box);

    CHECK_EQ_INT(tr_tell_with(sender, &(struct owned){ .drops = &drops[0] }, sizeof(struct owned),
                     &(struct tr_send_options){ .timeout_ns = ms(1) }),
        0);
    CHECK_EQ_INT(tr_ask_future(sender, &(struct owned){ .drops = &drops[1] }, sizeof(struct owned),
                     ms(1), &expired),
        0);
    CHECK_EQ_INT(tr_ask_future(sender, &(struct owned){ .drops = &drops[2] }, sizeof(struct owned),
                     ms(1000), &cancelled),
        0);
    tr_future_cancel(cancelled);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(10));
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct owner){ &notes }, NULL), 0);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(notes.count, 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(drops[i], 1);
    CHECK_EQ_INT(puppet_end(&expired, NULL), TR_ETIMEOUT);
    CHECK_EQ_INT(puppet_end(&cancelled, NULL), TR_ECANCELLED);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_EXPIRED), 2);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CANCELLED), 1);
    finish_simulation(&sim);
}

/* ---- maximum age ---------------------------------------------------------------------------- */

TEST(age, older_messages_and_asks_expire_unhandled)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    struct tr_box *box;
    struct tr_future *old, *young;
    tr_sender sender = waiting_box(system, &(struct tr_box_options){ .age_ns_max = ms(10) }, &box);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    old = puppet_future(sender, puppet_echo, 2, 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 3, TR_CONTROL), 0);
    CHECK_EQ_INT(puppet_tell_lane(sender, NULL, 4, TR_BACKGROUND), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(20));
    CHECK_EQ_INT(puppet_tell(sender, NULL, 5), 0);
    young = puppet_future(sender, puppet_echo, 6, 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_NOTES(&notes, 5, 6);
    CHECK_EQ_INT(puppet_end(&old, NULL), TR_ETIMEOUT);
    CHECK_EQ_INT(puppet_end(&young, NULL), 0);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_EXPIRED), 4);
    finish_simulation(&sim);
}

TEST(age, of_a_box_applies_to_asks_of_actors)
{
    struct tr_sim *sim = simulation(check_seed());
    struct tr_system *system = tr_sim_system(sim);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender old = waiting_box(system, &(struct tr_box_options){ .age_ns_max = ms(10) }, &box);
    tr_sender sender = puppet_spawn_with(system,
        (struct puppet){ .notes = &notes, .asked = { .run = puppet_echo, .number = 1 } }, NULL);

    puppet_introduce(sender, old);
    CHECK_EQ_INT(puppet_tell(sender, puppet_ask, 0), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(20));
    CHECK_EQ_INT(notes.rc, 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    tr_sender_drop(&old);
    tr_sender_drop(&sender);
    tr_sim_run(sim, 0);
    CHECK_EQ_INT(notes.count, 0);
    CHECK_EQ_INT(notes.event_count, 1);
    CHECK_EQ_INT(notes.events[0].status, TR_ETIMEOUT);
    finish_simulation(&sim);
}

/* ---- stash ---------------------------------------------------------------------------------- */

static enum tr_next stash_once(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    if (self->number == 0) {
        CHECK_EQ_INT(tr_stash(ctx), 0);
    } else {
        note(self, m->number);
        if (tr_is_asked(ctx))
            tr_reply(ctx, 0, &m->number, sizeof m->number);
    }
    return TR_GO;
}

/* From now on the actor stashes nothing; the stashed messages come back. */
static enum tr_next open_stash(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    note(self, m->number);
    self->number = 1;
    tr_unstash(ctx);
    return TR_GO;
}

TEST(stash, comes_back_in_front_and_in_order)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender sender = waiting_box(system, NULL, &box);
    struct tr_future *asked;

    CHECK_EQ_INT(puppet_tell(sender, stash_once, 1), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 10), 0);
    asked = puppet_future(sender, stash_once, 2, 0);
    CHECK_EQ_INT(puppet_tell(sender, stash_once, 3), 0);
    CHECK_EQ_INT(puppet_tell(sender, open_stash, 11), 0);
    CHECK_EQ_INT(puppet_tell(sender, stash_once, 4), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 12), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system);
    CHECK_NOTES(&notes, 10, 11, 1, 2, 3, 4, 12);
    CHECK_EQ_INT(puppet_end(&asked, NULL), 0);
    CHECK_EQ_INT(tr_sender_depth(sender), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}

static enum tr_next unstash_here(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)event;
    self->number = 1;
    tr_unstash(ctx);
    return TR_GO;
}

static enum tr_next set_timer(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_after(ctx, ms(m->number), 1, NULL), 0);
    return TR_GO;
}

TEST(stash, comes_back_when_an_event_says_so_and_the_box_is_empty)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(
        tr_sim_system(sim), (struct puppet){ .notes = &notes, .on_event = unstash_here }, NULL);

    CHECK_EQ_INT(puppet_tell(sender, set_timer, 5), 0);
    CHECK_EQ_INT(puppet_tell(sender, stash_once, 1), 0);
    CHECK_EQ_INT(puppet_tell(sender, stash_once, 2), 0);
    tr_sim_run(sim, 0); /* the sender is held: only the timer makes it run */
    CHECK_NOTES(&notes, 1, 2);
    tr_sender_drop(&sender);
    finish_simulation(&sim);
}

static enum tr_next stash_then_fail(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    (void)self;
    CHECK_EQ_INT(tr_stash(ctx), 0);
    return TR_FAIL;
}

TEST(stash, is_not_for_a_message_its_handler_fails_on)
{
    struct tr_system *system = system_driven(NULL);
    tr_sender sender = puppet_spawn(system, NULL, NULL);
    struct tr_future *asked = puppet_future(sender, stash_then_fail, 1, 0);

    CHECK_EQ_INT(puppet_end(&asked, NULL), TR_ECRASHED);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 1);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(stash, counts_against_the_capacity)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, &(struct tr_box_options){ .capacity = 2 }, &box);

    CHECK_EQ_INT(puppet_tell(sender, stash_once, 1), 0);
    CHECK_EQ_INT(puppet_tell(sender, stash_once, 2), 0);
    CHECK_EQ_INT(tr_step(box, &state, 10), 2);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 3), TR_EFULL);
    CHECK_EQ_INT(puppet_tell_lane(sender, open_stash, 4, TR_CONTROL), 0);
    CHECK_EQ_INT(tr_step(box, &state, 10), 3);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 5), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_run(box, &state), 0);
    CHECK_NOTES(&notes, 4, 1, 2, 5);
    tr_box_destroy(&box);
}

TEST(stash, left_at_the_end_is_dead_and_its_asks_are_answered_closed)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn(system, &notes, NULL);
    struct tr_future *asked = puppet_future(sender, stash_once, 1, 0);

    tr_sender_drop(&sender);
    CHECK_EQ_INT(puppet_end(&asked, NULL), TR_ECLOSED);
    finish_system(&system);
    CHECK_EQ_INT(notes.count, 0);
}

static enum tr_next stash_an_event(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)event;
    tr_stash(ctx);
    return TR_GO;
}

TEST_ABORTS(stash, of_an_event_is_a_named_assert, "only a message being handled can be stashed")
{
    struct tr_sim *sim = simulation(1);
    tr_sender sender =
        puppet_spawn_with(tr_sim_system(sim), (struct puppet){ .on_event = stash_an_event }, NULL);

    CHECK_EQ_INT(puppet_tell(sender, set_timer, 5), 0);
    tr_sim_run(sim, 0);
}

/* ---- again ---------------------------------------------------------------------------------- */

static enum tr_next again_until_three(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    note(self, m->number);
    if (++m->number % 10 < 3)
        tr_again(ctx);
    else if (tr_is_asked(ctx))
        tr_reply(ctx, 0, &m->number, sizeof m->number);
    return TR_GO;
}

TEST(again, handles_the_same_message_before_those_behind_it_and_keeps_what_was_changed_in_it)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    uint64_t number;
    tr_sender sender = waiting_box(system, NULL, &box);
    struct tr_future *asked = puppet_future(sender, again_until_three, 10, 0);

    CHECK_EQ_INT(puppet_tell(sender, NULL, 50), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system);
    CHECK_NOTES(&notes, 10, 11, 12, 50);
    CHECK_EQ_INT(puppet_end(&asked, &number), 0);
    CHECK_EQ_U64(number, 13);
    CHECK_EQ_U64(stats_of(system).handled, 2); /* once each */
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(again, lets_others_run_in_between)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender first = puppet_spawn(system, &notes, NULL);
    tr_sender second = puppet_spawn(system, &notes, NULL);

    CHECK_EQ_INT(puppet_tell(first, again_until_three, 10), 0);
    CHECK_EQ_INT(puppet_tell(second, again_until_three, 20), 0);
    settle(system);
    CHECK_EQ_INT(notes.count, 6);
    /* Whichever was first, the other had a turn before its second. */
    CHECK(notes.numbers[0] / 10 != notes.numbers[1] / 10);
    tr_sender_drop(&first);
    tr_sender_drop(&second);
    finish_system(&system);
}

/* Send the numbers below m->data to the peer; m->number is how far it came. */
static enum tr_next produce(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    uint64_t count = (uint64_t)(uintptr_t)m->data;

    for (; m->number < count; m->number++)
        if (puppet_tell(self->peer, NULL, m->number) == TR_EFULL) {
            tr_again(ctx);
            break;
        }
    return TR_GO;
}

TEST(again, lets_a_producer_that_met_a_full_box_carry_on_where_it_stopped)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sink = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .box.capacity = 4 });
    tr_sender producer = puppet_spawn(system, NULL, NULL);

    puppet_introduce(producer, sink);
    CHECK_EQ_INT(tr_tell(producer,
                     &(struct puppet_message){ .run = produce, .data = (void *)(uintptr_t)1000 },
                     sizeof(struct puppet_message)),
        0);
    tr_sender_drop(&producer);
    tr_sender_drop(&sink);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_INT(notes.count, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ_U64(notes.numbers[i], i);
    CHECK(stats_of(system).parks > 0);
    CHECK_EQ_U64(stats_of(system).handled, 1002);
    finish_system(&system);
}

/* ---- order ---------------------------------------------------------------------------------- */

TEST(box, keeps_the_order_over_more_messages_than_a_turn_handles)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender sender = waiting_box(system, &(struct tr_box_options){ .capacity = 4000 }, &box);

    for (uint64_t i = 0; i < 3000; i++)
        CHECK_EQ_INT(puppet_tell(sender, NULL, i), 0);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
    settle(system);
    CHECK_EQ_INT(notes.count, 3000);
    for (uint32_t i = 0; i < 3000; i++)
        CHECK_EQ_U64(notes.numbers[i], i);
    tr_sender_drop(&sender);
    finish_system(&system);
}

TEST(box, destroyed_while_it_runs_in_a_system_of_its_own_answers_what_is_left)
{
    struct notes notes = { 0 };
    struct puppet state = { .notes = &notes };
    struct tr_box *box;
    tr_sender sender = waiting_box(NULL, NULL, &box);
    struct tr_future *first = puppet_future(sender, puppet_echo, 1, 0);
    struct tr_future *second = puppet_future(sender, puppet_echo, 2, 0);

    CHECK_EQ_INT(tr_step(box, &state, 1), 1);
    tr_box_destroy(&box);
    CHECK(tr_sender_is_closed(sender));
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), TR_ECLOSED);
    CHECK_EQ_INT(puppet_end(&first, NULL), 0);
    CHECK_EQ_INT(puppet_end(&second, NULL), TR_ECLOSED);
    tr_sender_drop(&sender);
    CHECK_NOTES(&notes, 1);
}

/* ---- hooks and locks ------------------------------------------------------------------------ */

/* A user's hook may take a lock that another thread holds while it sends. */
struct crossing {
    tr_sender other;
    unsigned drops;
};
static struct crossing crossing;

static void *crossing_main(void *argument)
{
    (void)argument;
    CHECK_EQ_INT(puppet_tell(crossing.other, puppet_nothing, 0), 0);
    return NULL;
}

static void drop_when_another_has_sent(void *message)
{
    pthread_t thread;

    (void)message;
    crossing.drops++;
    CHECK_EQ_INT(pthread_create(&thread, NULL, crossing_main, NULL), 0);
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
}

static const struct tr_type crossing_type = {
    .name = "crossing",
    .message_size = sizeof(struct puppet_message),
    .state_size = sizeof(struct puppet),
    .handle = puppet_handle,
    .message_drop = drop_when_another_has_sent,
};

static void check_crossing(enum tr_full full)
{
    struct tr_system *system = system_driven(NULL);
    struct tr_future *futures[8];
    tr_sender sender;
    unsigned refused = 0;

    crossing.other = puppet_spawn(system, NULL, NULL);
    CHECK_EQ_INT(tr_spawn(system, &crossing_type, &(struct puppet){ 0 },
                     &(struct tr_spawn_options){ .box = { .capacity = 2, .full = full } }, &sender),
        0);
    for (int i = 0; i < 8; i++) /* by a thread that is no worker, and does not drive meanwhile */
        futures[i] = puppet_future(sender, puppet_echo, 1, 0);
    CHECK(crossing.drops > 0);
    settle(system);
    for (int i = 0; i < 8; i++)
        refused += puppet_end(&futures[i], NULL) == TR_EFULL;
    CHECK_EQ_INT(refused, crossing.drops);
    CHECK_EQ_INT(refused, 6);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_DROPPED), 6);
    tr_sender_drop(&sender);
    tr_sender_drop(&crossing.other);
    finish_system(&system);
}

TEST(message_drop, of_the_newest_runs_without_the_runtimes_locks)
{
    check_crossing(TR_FULL_DROP_NEWEST);
}

TEST(message_drop, of_the_oldest_runs_without_the_runtimes_locks)
{
    check_crossing(TR_FULL_DROP_OLDEST);
}

struct asked_box {
    sem_t asked, answered;
    int status;
};

static enum tr_next ask_the_box(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct asked_box *asked = self->data;

    puppet_ask(self, ctx, m);
    sem_post(&asked->asked);
    return TR_GO;
}

static enum tr_next on_box_answer(
    struct puppet *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct asked_box *asked = self->data;

    (void)ctx;
    asked->status = event->status;
    sem_post(&asked->answered);
    return TR_GO;
}

TEST(box, destroyed_beside_workers_answers_its_askers_and_runs_hooks_without_locks)
{
    struct tr_system *system = system_of_workers(1);
    struct asked_box asked = { .status = 1 };
    struct notes notes = { 0 };
    struct tr_box *box;
    tr_sender asker;

    sem_init(&asked.asked, 0, 0);
    sem_init(&asked.answered, 0, 0);
    crossing.other = puppet_spawn(system, NULL, NULL);
    asker = puppet_spawn_with(system,
        (struct puppet){ .notes = &notes, .data = &asked, .on_event = on_box_answer }, NULL);
    CHECK_EQ_INT(tr_box_create(system, &crossing_type, NULL, &box), 0);
    CHECK_EQ_INT(
        tr_tell(asker,
            &(struct puppet_message){ .run = puppet_meet, .to = tr_box_sender(box, "asker") },
            sizeof(struct puppet_message)),
        0);
    CHECK_EQ_INT(puppet_tell(asker, ask_the_box, 0), 0);
    sem_wait(&asked.asked);
    tr_box_destroy(&box);
    sem_wait(&asked.answered);
    CHECK_EQ_INT(asked.status, TR_ECLOSED);
    CHECK_EQ_INT(crossing.drops, 1);
    tr_sender_drop(&asker);
    tr_sender_drop(&crossing.other);
    finish_system(&system);
}

static void finish_what_never_was(void *state)
{
    (void)state;
    CHECK_MSG(false, "a state that nobody gave was finished");
}

TEST(box, that_nobody_ran_has_no_state_to_finish)
{
    static const struct tr_type type = { .name = "unborn",
        .message_size = sizeof(struct puppet_message),
        .state_size = sizeof(struct puppet),
        .handle = puppet_handle,
        .finish = finish_what_never_was };

    for (int kind = 0; kind < 3; kind++) {
        struct tr_system *system = kind == 0   ? NULL
                                   : kind == 1 ? system_driven(NULL)
                                               : system_of_workers(1);
        struct tr_box *box, *left;

        CHECK_EQ_INT(tr_box_create(system, &type, NULL, &box), 0);
        tr_box_destroy(&box);
        if (system != NULL) {
            CHECK_EQ_INT(tr_box_create(system, &type, NULL, &left), 0);
            tr_system_destroy(&system); /* with one in it */
        }
    }
}

/* ---- deadlines from one system to another --------------------------------------------------- */

static enum tr_next note_deadline(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)m;
    note(self, tr_deadline_ns(ctx));
    return TR_GO;
}

/* By a tell, a slot and a future. */
static enum tr_next pass_on(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    struct puppet_message message = { .run = note_deadline };
    struct tr_slot slot;
    struct tr_future *future;

    (void)m;
    note(self, tr_deadline_ns(ctx));
    CHECK_EQ_INT(tr_tell(self->peer, &message, sizeof message), 0);
    CHECK_EQ_INT(tr_reserve(self->peer, sizeof message, &slot), 0);
    memcpy(slot.message, &message, sizeof message);
    CHECK_EQ_INT(tr_slot_commit(&slot), 0);
    CHECK_EQ_INT(tr_ask_future(self->peer, &message, sizeof message, 0, &future), 0);
    *(struct tr_future **)self->data = future;
    return TR_GO;
}

static void check_passed_on(struct tr_system *from, struct tr_system *to, bool inherits)
{
    struct notes notes = { 0 }, peer_notes = { 0 };
    struct tr_future *future = NULL;
    tr_sender peer = puppet_spawn(to, &peer_notes, NULL);
    tr_sender sender =
        puppet_spawn_with(from, (struct puppet){ .notes = &notes, .data = &future }, NULL);

    puppet_introduce(sender, peer);
    CHECK_EQ_INT(
        tr_tell_with(sender, &(struct puppet_message){ .run = pass_on },
            sizeof(struct puppet_message), &(struct tr_send_options){ .timeout_ns = ms(3600000) }),
        0);
    settle(from);
    settle(to);
    CHECK_EQ_INT(notes.count, 1);
    CHECK(notes.numbers[0] != 0);
    CHECK_EQ_INT(peer_notes.count, 3);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_U64(peer_notes.numbers[i], inherits ? notes.numbers[0] : 0);
    CHECK_EQ_INT(puppet_end(&future, NULL), TR_EDROPPED);
    tr_sender_drop(&sender);
    tr_sender_drop(&peer);
}

TEST(deadline, is_inherited_by_messages_to_a_system_with_the_same_clock)
{
    struct tr_system *from = system_driven(NULL), *to = system_driven(NULL);

    check_passed_on(from, to, true);
    finish_system(&from);
    finish_system(&to);
}

TEST(deadline, is_not_inherited_by_messages_to_a_system_with_another_clock)
{
    struct tr_system *from = system_driven(NULL);
    struct tr_sim *sim = simulation(1);

    check_passed_on(from, tr_sim_system(sim), false);
    finish_system(&from);
    finish_simulation(&sim);
}

TEST(deadline, that_is_never_never_comes)
{
    struct tr_system *system = system_driven(NULL);
    struct notes notes = { 0 };
    tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
        &(struct tr_spawn_options){ .grace_ns = UINT64_MAX, .box = { .age_ns_max = UINT64_MAX } });

    CHECK_EQ_INT(
        tr_tell_with(sender, &(struct puppet_message){ .number = 1 }, sizeof(struct puppet_message),
            &(struct tr_send_options){ .timeout_ns = UINT64_MAX }),
        0);
    CHECK_EQ_INT(tr_tell_wait(sender, &(struct puppet_message){ .number = 2 },
                     sizeof(struct puppet_message), UINT64_MAX),
        0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 3), 0);
    settle(system);
    CHECK_NOTES(&notes, 1, 2, 3);
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
    CHECK_EQ_INT(tr_sender_wait_closed(sender, UINT64_MAX), 0);
    tr_sender_drop(&sender);
    finish_system(&system);
}
