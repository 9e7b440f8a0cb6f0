/* SPDX-License-Identifier: Apache-2.0 */
/* tour_boxes.c: an actor and its box: on this thread, on workers, and when the box is full. */
#include "cli/tour.h"

/* ---- 1: an actor is its data ---------------------------------------------------------------- */

static void run_data(void)
{
    struct ids ids = { 0 };
    struct tr_future *answers[3];
    uint32_t got[3];
    struct tr_box *box = NULL;
    ids_sender sender;

    tour_must(ids_box(NULL, NULL, &box));
    sender = ids_of(tr_box_sender(box, "tour"));
    for (int i = 0; i < 3; i++)
        tour_must(ids_future(sender, IDS_GET, 0, &answers[i]));
    ids_drop(&sender);
    tour_must(ids_run(box, &ids));
    for (int i = 0; i < 3; i++) {
        tour_must(tr_future_wait(answers[i], &got[i], sizeof got[i], NULL, 0));
        tr_future_drop(&answers[i]);
    }
    tr_box_destroy(&box);
    tour_print("answers: %u %u %u", got[0], got[1], got[2]);
    tour_print("the struct afterwards: { .next = %u }", ids.next);
}

const struct tour_step tour_data = {
    .title = "An actor is its data",
    .text = "   A plain struct, and a function that handles one message. Here it hands out\n"
            "   numbers. Three asks are queued, the sender is dropped, and the actor runs\n"
            "   on this thread until its box is empty. No thread, no mock: a unit test looks\n"
            "   the same.\n",
    .run = run_data,
};

/* ---- 2: the same actor on workers ----------------------------------------------------------- */

static void run_workers(void)
{
    struct tr_system_options options = tour_threads(2);
    struct ids ids = { .next = 100 };
    struct tr_system *system;
    struct tr_done *done;
    enum tr_why why;
    ids_sender sender;
    uint32_t id;

    tour_must(tr_system_create(&options, &system));
    tour_must(ids_spawn(system, &ids, &(struct tr_spawn_options){ .ret_done = &done }, &sender));
    for (int i = 0; i < 3; i++) {
        tour_must(ids_ask_wait(sender, IDS_GET, &id, sizeof id, 0));
        tour_print("asked, and waited for the answer: %u", id);
    }
    ids_drop(&sender);
    tour_must(tr_done_wait(&done, &ids, &why, 0));
    tour_print("the sender is dropped; the actor ended (%s) and gave back { .next = %u }",
        tr_why_text(why), ids.next);
    tour_must(tr_system_join(system, 0));
    tr_system_destroy(&system);
}

const struct tour_step tour_workers = {
    .title = "The same actor on worker threads",
    .text = "   A spawn moves the struct into the system. Every ask ends, with a value or with\n"
            "   exactly one error. After the last sender is dropped, the actor drains its box,\n"
            "   ends, and gives its data back.\n",
    .run = run_workers,
};

/* ---- 3: a full box -------------------------------------------------------------------------- */

enum { NUMBERS = 100000, CAPACITY = 8 };

struct sink {
    uint64_t sum;
};

static enum tr_next sink_handle(void *state, struct tr_context *ctx, void *message)
{
    struct sink *self = state;

    (void)ctx;
    self->sum += *(const uint32_t *)message;
    return TR_GO;
}

static const struct tr_type sink_type = {
    .name = "sink",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct sink),
    .handle = sink_handle,
};
TR_ACTOR(sink, struct sink, uint32_t)

struct source {
    sink_sender sink; /* owned */
    uint32_t next, deepest;
};

enum source_message { SOURCE_START };

static enum tr_next source_handle(void *state, struct tr_context *ctx, void *message)
{
    struct source *self = state;

    (void)message;
    while (self->next <= NUMBERS) {
        uint32_t depth = tr_sender_depth(self->sink.raw);
        int rc = sink_tell(self->sink, self->next);

        if (depth > self->deepest)
            self->deepest = depth;
        if (rc == TR_EFULL) {
            tr_again(ctx);
            return TR_GO;
        }
        if (rc < 0)
            return TR_FAIL;
        self->next++;
    }
    return TR_STOP;
}

static const struct tr_type source_type = {
    .name = "source",
    .message_size = sizeof(enum source_message),
    .state_size = sizeof(struct source),
    .handle = source_handle,
};
TR_ACTOR(source, struct source, enum source_message)

static void run_bounded(void)
{
    struct tr_system_options options = tour_threads(2);
    struct source source = { .next = 1 };
    struct sink sink = { 0 };
    struct tr_system *system;
    struct tr_system_stats stats;
    struct tr_done *source_done, *sink_done;
    source_sender sender;

    tour_must(tr_system_create(&options, &system));
    tour_must(sink_spawn(system, &sink,
        &(struct tr_spawn_options){ .box.capacity = CAPACITY, .ret_done = &sink_done },
        &source.sink));
    tour_must(source_spawn(
        system, &source, &(struct tr_spawn_options){ .ret_done = &source_done }, &sender));
    tour_must(source_tell(sender, SOURCE_START));
    source_drop(&sender);
    tour_must(tr_done_wait(&source_done, &source, NULL, 0));
    sink_drop(&source.sink);
    tour_must(tr_done_wait(&sink_done, &sink, NULL, 0));
    tr_system_stats(system, &stats);
    tour_print("%d numbers through a box of %d: sum %llu, %s", NUMBERS, CAPACITY,
        (unsigned long long)sink.sum,
        sink.sum == (uint64_t)NUMBERS * (NUMBERS + 1) / 2 ? "as it should be" : "WRONG");
    tour_print("the box was never deeper than %u; the source was parked %llu times", source.deepest,
        (unsigned long long)stats.parks);
    tour_must(tr_system_join(system, 0));
    tr_system_destroy(&system);
}

const struct tour_step tour_bounded = {
    .title = "Boxes are bounded",
    .text = "   A source that never pauses, and a sink whose box holds 8. A full box takes\n"
            "   up to twice its capacity from handlers that are under way; then the sending\n"
            "   actor is parked until there is room. An actor is parked, never a thread.\n",
    .run = run_bounded,
};
