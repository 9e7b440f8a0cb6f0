/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/04-bounded-boxes.md: a fast producer, a slow consumer, and a box of four between them.
 */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

struct sink {
    int sum;
};

static enum tr_next sink_handle(void *state, struct tr_context *ctx, void *message)
{
    struct sink *self = state;

    (void)ctx;
    self->sum += *(const int *)message;
    return TR_GO;
}

static const struct tr_type sink_type = {
    .name = "sink",
    .message_size = sizeof(int),
    .state_size = sizeof(struct sink),
    .handle = sink_handle,
};
TR_ACTOR(sink, struct sink, int)

/* Sends 1 to 20, whatever the sink's box says. */
struct producer {
    sink_sender sink; /* owned */
    int next;
};

enum producer_message { PRODUCER_START };

static enum tr_next producer_handle(void *state, struct tr_context *ctx, void *message)
{
    struct producer *self = state;
    int first = self->next;

    (void)message;
    while (self->next <= 20) {
        int rc = sink_tell(self->sink, self->next);

        if (rc == TR_EFULL) {
            printf("producer: sent %d to %d, then the box was full\n", first, self->next - 1);
            tr_again(ctx); /* this same message once more, when there is room */
            return TR_GO;
        }
        if (rc < 0)
            return TR_FAIL;
        self->next++;
    }
    printf("producer: sent %d to %d, done\n", first, self->next - 1);
    return TR_GO;
}

static void producer_finish(void *state)
{
    struct producer *self = state;

    sink_drop(&self->sink);
}

static const struct tr_type producer_type = {
    .name = "producer",
    .message_size = sizeof(enum producer_message),
    .state_size = sizeof(struct producer),
    .handle = producer_handle,
    .finish = producer_finish,
};
TR_ACTOR(producer, struct producer, enum producer_message)

static void wait_for_room(void)
{
    struct tr_system *system;
    struct tr_system_stats stats;
    struct sink sink = { 0 };
    struct producer producer = { .next = 1 };
    struct tr_done *done;
    producer_sender sender;

    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));
    must(sink_spawn(system, &sink,
        &(struct tr_spawn_options){ .box.capacity = 4, .ret_done = &done }, &producer.sink));
    must(producer_spawn(system, &producer, NULL, &sender));
    must(producer_tell(sender, PRODUCER_START));
    producer_drop(&sender);
    must(tr_done_wait(&done, &sink, NULL, 0));

    tr_system_stats(system, &stats);
    printf("sink: sum %d; the producer was parked %llu times\n", sink.sum,
        (unsigned long long)stats.parks);
    tr_system_destroy(&system);
}

static void from_a_thread(const char *what, enum tr_full full)
{
    struct sink sink = { 0 };
    struct tr_box *box;
    sink_sender sender;
    int accepted = 0;

    must(sink_box(NULL, &(struct tr_box_options){ .capacity = 4, .full = full }, &box));
    sender = sink_of(tr_box_sender(box, "main"));
    for (int i = 1; i <= 20; i++)
        accepted += sink_tell(sender, i) == 0;
    sink_drop(&sender);
    must(sink_run(box, &sink));
    printf("%-12s 20 sent, %2d accepted, sum of those handled %d\n", what, accepted, sink.sum);
    tr_box_destroy(&box);
}

int main(void)
{
    wait_for_room();
    from_a_thread("wait:", TR_FULL_WAIT);
    from_a_thread("fail:", TR_FULL_FAIL);
    from_a_thread("drop newest:", TR_FULL_DROP_NEWEST);
    from_a_thread("drop oldest:", TR_FULL_DROP_OLDEST);
    return 0;
}
