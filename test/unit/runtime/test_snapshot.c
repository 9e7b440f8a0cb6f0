/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "stage.h"

/* ---- a value that knows whether it is whole ------------------------------------------------- */

struct value {
    uint64_t first, middle[14], last; /* all the same */
};

static atomic_uint freed;

static struct value *value_make(uint64_t number)
{
    struct value *value = malloc(sizeof *value);

    CHECK(value != NULL);
    value->first = value->last = number;
    for (int i = 0; i < 14; i++)
        value->middle[i] = number;
    return value;
}

static void value_free(void *memory)
{
    struct value *value = memory;

    CHECK_EQ_U64(value->first, value->last);
    memset(value, 0xdd, sizeof *value); /* a late reader sees that */
    free(value);
    atomic_fetch_add(&freed, 1);
}

static uint64_t value_check(const struct value *value)
{
    uint64_t number = value->first;

    CHECK(number != UINT64_C(0xdddddddddddddddd));
    for (int i = 0; i < 14; i++)
        CHECK_EQ_U64(value->middle[i], number);
    CHECK_EQ_U64(value->last, number);
    return number;
}

static struct tr_snapshot *snapshot_of(struct tr_system *system)
{
    struct tr_snapshot *snapshot = NULL;

    CHECK_EQ_INT(tr_snapshot_create(system, value_free, &snapshot), 0);
    return snapshot;
}

static void publish(struct tr_snapshot *snapshot, uint64_t number)
{
    CHECK_EQ_INT(tr_snapshot_publish(snapshot, value_make(number)), 0);
}

static struct tr_system *system_of(uint32_t worker_count)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){
                         .workers = worker_count, .driven = worker_count == 0, .quiet = true },
                     &system),
        0);
    return system;
}

static enum tr_next act_read(struct player *self, struct tr_context *ctx, struct order *order)
{
    const struct value *value = tr_snapshot_read(self->data);
    uint64_t number = value == NULL ? 0 : value_check(value);

    (void)order;
    tr_reply(ctx, 0, &number, sizeof number);
    return TR_GO;
}

static tr_sender reader_of(struct tr_system *system, struct tr_snapshot *snapshot)
{
    static struct journal unused;

    return cast(
        system, (struct player){ .quiet = true, .journal = &unused, .data = snapshot }, NULL);
}

static uint64_t read_by(tr_sender sender)
{
    struct tr_future *future = ask(sender, act_read, 0);
    uint64_t number = 99;

    CHECK_EQ_INT(answer(&future, &number), 0);
    return number;
}

/* ---- reading -------------------------------------------------------------------------------- */

TEST(snapshot, is_nothing_before_the_first_and_the_latest_from_then_on)
{
    struct tr_system *system = system_of(2);
    struct tr_snapshot *snapshot = snapshot_of(system);
    tr_sender reader = reader_of(system, snapshot);

    CHECK_EQ_U64(read_by(reader), 0);
    for (uint64_t i = 1; i <= 10; i++) {
        publish(snapshot, i);
        CHECK_EQ_U64(read_by(reader), i);
    }
    tr_sender_drop(&reader);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_snapshot_destroy(&snapshot);
    CHECK(snapshot == NULL);
    CHECK_EQ_INT(atomic_load(&freed), 10);
    tr_snapshot_destroy(&snapshot); /* nothing is fine */
    system_finish(&system);
}

TEST(snapshot, of_a_system_are_independent)
{
    struct tr_system *system = system_of(0);
    struct tr_snapshot *one = snapshot_of(system), *two = snapshot_of(system);
    tr_sender readers[2] = { reader_of(system, one), reader_of(system, two) };

    publish(one, 1);
    publish(two, 2);
    publish(one, 3);
    CHECK_EQ_U64(read_by(readers[0]), 3);
    CHECK_EQ_U64(read_by(readers[1]), 2);
    tr_snapshot_destroy(&one);
    CHECK_EQ_U64(read_by(readers[1]), 2);
    CHECK_EQ_INT(atomic_load(&freed), 2);
    tr_snapshot_destroy(&two);
    CHECK_EQ_INT(atomic_load(&freed), 3);
    tr_sender_drop(&readers[0]);
    tr_sender_drop(&readers[1]);
    system_finish(&system);
}

TEST(snapshot, needs_no_function_to_free_what_is_static)
{
    static const int one = 1, two = 2;
    struct tr_system *system = system_of(0);
    struct tr_snapshot *snapshot = NULL;

    CHECK_EQ_INT(tr_snapshot_create(system, NULL, &snapshot), 0);
    CHECK_EQ_INT(tr_snapshot_publish(snapshot, (void *)(uintptr_t)&one), 0);
    CHECK_EQ_INT(tr_snapshot_publish(snapshot, (void *)(uintptr_t)&two), 0);
    CHECK(tr_snapshot_read(snapshot) == &two);
    tr_snapshot_destroy(&snapshot);
    system_finish(&system);
}

/* ---- how long a value stays ----------------------------------------------------------------- */

struct gate {
    struct tr_snapshot *snapshot;
    sem_t entered, leave;
};

/* Reads, waits at the gate, and looks at what it has read once more. */
static enum tr_next act_read_slowly(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct gate *gate = order->pointer;
    const struct value *value = tr_snapshot_read(gate->snapshot);
    uint64_t number = value_check(value);

    (void)self;
    sem_post(&gate->entered);
    sem_wait(&gate->leave);
    CHECK_EQ_U64(value_check(value), number);
    tr_reply(ctx, 0, &number, sizeof number);
    return TR_GO;
}

TEST(snapshot, a_replaced_value_stays_while_a_handler_that_read_it_runs)
{
    struct tr_system *system = system_of(2);
    struct tr_snapshot *snapshot = snapshot_of(system);
    struct gate gate = { .snapshot = snapshot };
    tr_sender slow = reader_of(system, snapshot), other = reader_of(system, snapshot);
    struct tr_future *future;
    uint64_t number;

    sem_init(&gate.entered, 0, 0);
    sem_init(&gate.leave, 0, 0);
    publish(snapshot, 1);
    CHECK_EQ_INT(tr_ask_future(slow, &(struct order){ .act = act_read_slowly, .pointer = &gate },
                     sizeof(struct order), 0, &future),
        0);
    sem_wait(&gate.entered);
    for (uint64_t i = 2; i <= 20; i++) { /* during all other events */
        publish(snapshot, i);
        CHECK_EQ_U64(read_by(other), i);
    }
    CHECK_EQ_INT(atomic_load(&freed), 0);
    sem_post(&gate.leave);
    CHECK_EQ_INT(answer(&future, &number), 0);
    CHECK_EQ_U64(number, 1);
    tr_sender_drop(&slow);
    tr_sender_drop(&other);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_snapshot_destroy(&snapshot);
    CHECK_EQ_INT(atomic_load(&freed), 20);
    system_finish(&system);
}

TEST(snapshot, a_replaced_value_goes_when_everybody_has_ended_a_turn_since)
{
    struct tr_system *system = system_of(2);
    struct tr_snapshot *snapshot = snapshot_of(system);
    tr_sender reader = reader_of(system, snapshot);

    publish(snapshot, 1);
    CHECK_EQ_U64(read_by(reader), 1);
    publish(snapshot, 2);
    while (atomic_load(&freed) == 0) /* turns and rests: nothing else is needed */
        CHECK_EQ_U64(read_by(reader), 2);
    CHECK_EQ_INT(atomic_load(&freed), 1);
    tr_sender_drop(&reader);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_snapshot_destroy(&snapshot);
    system_finish(&system);
}

/* Publishes while it has the value before in its hands. */
static enum tr_next act_replace(struct player *self, struct tr_context *ctx, struct order *order)
{
    const struct value *before = tr_snapshot_read(self->data);

    (void)ctx;
    publish(self->data, order->number);
    if (before != NULL)
        CHECK_EQ_U64(value_check(before), order->number - 1);
    CHECK_EQ_U64(value_check(tr_snapshot_read(self->data)), order->number);
    return TR_GO;
}

TEST(snapshot, who_publishes_in_a_handler_may_use_what_it_read_before)
{
    for (int kind = 0; kind < 3; kind++) { /* driven, simulated, on workers */
        struct tr_sim *sim = kind == 1 ? sim_create(1) : NULL;
        struct tr_system *system = kind == 1 ? tr_sim_system(sim) : system_of(kind == 0 ? 0 : 1);
        struct tr_snapshot *snapshot = snapshot_of(system);
        tr_sender publisher = reader_of(system, snapshot);

        atomic_store(&freed, 0);
        for (uint64_t i = 1; i <= 50; i++)
            tell(publisher, act_replace, i);
        CHECK_EQ_U64(read_by(publisher), 50);
        tr_sender_drop(&publisher);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        tr_snapshot_destroy(&snapshot);
        CHECK_EQ_INT(atomic_load(&freed), 50);
        if (sim != NULL)
            sim_finish(&sim);
        else
            system_finish(&system);
    }
}

TEST(snapshot, a_driven_system_that_has_nothing_to_do_keeps_no_old_values)
{
    struct tr_system *system = system_of(0);
    struct tr_snapshot *snapshot = snapshot_of(system);
    tr_sender publisher = reader_of(system, snapshot);

    for (uint64_t i = 1; i <= 5; i++)
        tell(publisher, act_replace, i);
    while (tr_system_step(system, 100) > 0) {
    }
    CHECK_EQ_INT(atomic_load(&freed), 4);
    tr_sender_drop(&publisher);
    tr_snapshot_destroy(&snapshot);
    system_finish(&system);
}

/* ---- readers on other threads --------------------------------------------------------------- */

TEST(reader, keeps_what_it_reads_between_begin_and_end)
{
    struct tr_system *system = system_of(0);
    struct tr_snapshot *snapshot = snapshot_of(system);
    struct tr_reader *reader = NULL;
    const struct value *value;

    CHECK_EQ_INT(tr_reader_create(system, &reader), 0);
    publish(snapshot, 1);
    tr_reader_begin(reader);
    value = tr_snapshot_read(snapshot);
    publish(snapshot, 2);
    publish(snapshot, 3);
    CHECK_EQ_U64(value_check(value), 1);
    CHECK_EQ_INT(atomic_load(&freed), 0);
    tr_reader_end(reader);
    publish(snapshot, 4);
    CHECK_EQ_INT(atomic_load(&freed), 3);
    tr_reader_begin(reader); /* a section that begins after the swap holds nothing up */
    CHECK_EQ_U64(value_check(tr_snapshot_read(snapshot)), 4);
    tr_reader_end(reader);
    tr_reader_destroy(&reader);
    CHECK(reader == NULL);
    tr_reader_destroy(&reader);
    tr_snapshot_destroy(&snapshot);
    CHECK_EQ_INT(atomic_load(&freed), 4);
    system_finish(&system);
}

TEST(reader, that_goes_away_holds_nothing_up)
{
    struct tr_system *system = system_of(0);
    struct tr_snapshot *snapshot = snapshot_of(system);
    struct tr_reader *stays = NULL, *goes = NULL;

    CHECK_EQ_INT(tr_reader_create(system, &stays), 0);
    CHECK_EQ_INT(tr_reader_create(system, &goes), 0);
    publish(snapshot, 1);
    tr_reader_begin(stays);
    tr_reader_begin(goes);
    publish(snapshot, 2);
    tr_reader_end(goes);
    tr_reader_destroy(&goes);
    CHECK_EQ_INT(atomic_load(&freed), 0);
    tr_reader_end(stays);
    publish(snapshot, 3);
    CHECK_EQ_INT(atomic_load(&freed), 2);
    tr_snapshot_destroy(&snapshot);
    tr_system_destroy(&system); /* a reader nobody destroyed goes with it */
}

/* ---- all at once ---------------------------------------------------------------------------- */

struct storm {
    struct tr_system *system;
    struct tr_snapshot *snapshot;
    atomic_bool stop;
    atomic_uint_least64_t reads;
    uint64_t rounds;
};

static void *storm_reader(void *argument)
{
    struct storm *storm = argument;
    struct tr_reader *reader = NULL;
    uint64_t last = 0;

    CHECK_EQ_INT(tr_reader_create(storm->system, &reader), 0);
    while (!atomic_load(&storm->stop)) {
        const struct value *value;

        tr_reader_begin(reader);
        value = tr_snapshot_read(storm->snapshot);
        if (value != NULL) {
            uint64_t number = value_check(value);

            CHECK(number >= last); /* never back in time */
            last = number;
            CHECK_EQ_U64(value_check(value), number);
        }
        tr_reader_end(reader);
        atomic_fetch_add_explicit(&storm->reads, 1, memory_order_relaxed);
    }
    tr_reader_destroy(&reader);
    return NULL;
}

/* An actor that reads in every turn. */
static enum tr_next act_storm_read(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct storm *storm = self->data;
    const struct value *value = tr_snapshot_read(storm->snapshot);

    if (value != NULL) {
        uint64_t number = value_check(value);

        CHECK(number >= self->number);
        self->number = number;
        CHECK_EQ_U64(value_check(value), number);
    }
    if (!atomic_load(&storm->stop))
        CHECK_EQ_INT(tr_self_tell(ctx, order, sizeof *order), 0);
    return TR_GO;
}

static enum tr_next act_storm_publish(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct storm *storm = self->data;

    publish(storm->snapshot, ++self->number);
    if (self->number < storm->rounds)
        CHECK_EQ_INT(tr_self_tell(ctx, order, sizeof *order), 0);
    else
        atomic_store(&storm->stop, true);
    return TR_GO;
}

TEST_LONG(snapshot, under_load_every_value_is_whole_while_read_and_freed_once, 120)
{
    static struct journal unused;
    struct storm storm = { .rounds = check_is_long() ? 300000 : 20000 };
    pthread_t threads[2];
    tr_sender senders[5];

    storm.system = system_of(2);
    storm.snapshot = snapshot_of(storm.system);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, storm_reader, &storm), 0);
    for (int i = 0; i < 5; i++) {
        senders[i] = cast(storm.system,
            (struct player){ .quiet = true, .journal = &unused, .data = &storm }, NULL);
        tell(senders[i], i == 0 ? act_storm_publish : act_storm_read, 0);
    }
    for (int i = 0; i < 5; i++)
        tr_sender_drop(&senders[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ_INT(tr_system_join(storm.system, 0), 0);
    CHECK(atomic_load(&storm.reads) > 0);
    CHECK(atomic_load(&freed) < storm.rounds);
    tr_snapshot_destroy(&storm.snapshot);
    CHECK_EQ_INT(atomic_load(&freed), (int)storm.rounds);
    system_finish(&storm.system);
}

TEST_LONG(snapshot, published_from_a_thread_while_workers_wake_and_sleep, 60)
{
    struct tr_system *system = system_of(2);
    struct tr_snapshot *snapshot = snapshot_of(system);
    tr_sender readers[4];

    for (int i = 0; i < 4; i++)
        readers[i] = reader_of(system, snapshot);
    for (uint64_t i = 1; i <= 3000; i++) {
        publish(snapshot, i);
        CHECK_EQ_U64(read_by(readers[i % 4]), i);
    }
    for (int i = 0; i < 4; i++)
        tr_sender_drop(&readers[i]);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_snapshot_destroy(&snapshot);
    CHECK_EQ_INT(atomic_load(&freed), 3000);
    system_finish(&system);
}

/* ---- destroying while a worker frees -------------------------------------------------------- */

static struct {
    sem_t entered;
    atomic_bool blocks, destroying, freed;
} slow_free;

static void free_slowly(void *value)
{
    if (!atomic_exchange(&slow_free.blocks, false)) {
        free(value);
        return;
    }
    sem_post(&slow_free.entered);
    while (!atomic_load(&slow_free.destroying))
        sched_yield();
    for (int i = 0; i < 1000; i++) /* time enough to return too early */
        sched_yield();
    free(value);
    atomic_store(&slow_free.freed, true);
}

TEST(snapshot, destroyed_while_a_worker_frees_an_old_value_waits_for_it)
{
    struct tr_system *system = system_of(1);
    struct journal journal;
    struct tr_snapshot *snapshot;
    struct tr_reader *reader;
    tr_sender sender;

    journal_init(&journal);
    sem_init(&slow_free.entered, 0, 0);
    CHECK_EQ_INT(tr_snapshot_create(system, free_slowly, &snapshot), 0);
    CHECK_EQ_INT(tr_reader_create(system, &reader), 0);
    sender = cast(system, (struct player){ .name = "a", .journal = &journal, .quiet = true }, NULL);
    CHECK_EQ_INT(tr_snapshot_publish(snapshot, malloc(1)), 0);
    tr_reader_begin(reader);
    CHECK_EQ_INT(tr_snapshot_publish(snapshot, malloc(1)), 0);
    atomic_store(&slow_free.blocks, true);
    tr_reader_end(reader);
    /* The worker goes idle after this turn, if not before, and frees what nobody reads any more.
     * It answers nobody while it frees, so this thread must not wait for the turn. */
    tell(sender, act_nothing, 1);
    sem_wait(&slow_free.entered);
    atomic_store(&slow_free.destroying, true);
    tr_snapshot_destroy(&snapshot);
    CHECK(atomic_load(&slow_free.freed));
    tr_reader_destroy(&reader);
    tr_sender_drop(&sender);
    system_finish(&system);
}

TEST_ABORTS(snapshot, read_by_an_actor_of_another_system_asserts,
    "a snapshot is read by actors of its own system")
{
    struct tr_system *here = system_of(0), *there = system_of(0);
    struct journal journal;
    struct tr_snapshot *snapshot = snapshot_of(there);
    tr_sender sender;

    journal_init(&journal);
    publish(snapshot, 1);
    sender = cast(here,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .data = snapshot }, NULL);
    add(sender, 0);
    ask(sender, act_read, 0);
    while (tr_system_step(here, 1) > 0) {
    }
}
