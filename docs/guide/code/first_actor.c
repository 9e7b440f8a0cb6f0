/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/01-first-actor.md: an actor, run on this thread and then on workers. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

/* The actor is its data. */
struct counter {
    int value;
};

/* The messages it takes. */
struct counter_message {
    enum { COUNTER_ADD, COUNTER_GET } kind;
    int amount;
};

/* Handles one message. */
static enum tr_next counter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct counter *self = state;
    const struct counter_message *m = message;

    switch (m->kind) {
    case COUNTER_ADD:
        self->value += m->amount;
        break;
    case COUNTER_GET:
        tr_reply(ctx, 0, &self->value, sizeof self->value);
        break;
    }
    return TR_GO;
}

static const struct tr_type counter_type = {
    .name = "counter",
    .message_size = sizeof(struct counter_message),
    .state_size = sizeof(struct counter),
    .handle = counter_handle,
};
TR_ACTOR(counter, struct counter, struct counter_message)

/* The programs of this guide give up at the first error. */
static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

static void on_this_thread(void)
{
    struct counter counter = { .value = 10 };
    struct tr_box *box;
    counter_sender sender;

    must(counter_box(NULL, NULL, &box));
    sender = counter_of(tr_box_sender(box, "main"));
    must(counter_tell(sender, (struct counter_message){ COUNTER_ADD, 5 }));
    must(counter_tell(sender, (struct counter_message){ COUNTER_ADD, 7 }));
    printf("queued, not run yet: %d\n", counter.value);

    counter_drop(&sender);
    must(counter_run(box, &counter));
    printf("run to its end:      %d\n", counter.value);
    tr_box_destroy(&box);
}

static void on_workers(void)
{
    struct counter counter = { .value = 10 };
    struct tr_system *system;
    counter_sender sender;
    int value;

    must(tr_system_create(NULL, &system));
    must(counter_spawn(system, &counter, NULL, &sender));
    must(counter_tell(sender, (struct counter_message){ COUNTER_ADD, 5 }));
    must(counter_ask_wait(
        sender, (struct counter_message){ .kind = COUNTER_GET }, &value, sizeof value, 0));
    printf("asked on workers:    %d\n", value);

    counter_drop(&sender);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
}

int main(void)
{
    on_this_thread();
    on_workers();
    return 0;
}
