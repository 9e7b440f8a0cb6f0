/* SPDX-License-Identifier: Apache-2.0 */
/* supervised_counter.c: shows which state survives a restart. Two counters in one table crash
 * on the same bad input. One starts again from the state in the table; the other has a reset() and
 * keeps the part of its state that is good. Senders, queued messages and their order survive in both. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

struct counter {
    int value;
    bool half_done; /* true while a change is under way; a crash may leave it true */
};

struct counter_message {
    enum { COUNTER_ADD, COUNTER_ADD_BADLY, COUNTER_GET } kind;
    int amount;
};

static enum tr_next counter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct counter *self = state;
    const struct counter_message *m = message;

    switch (m->kind) {
    case COUNTER_ADD:
        self->value += m->amount;
        break;
    case COUNTER_ADD_BADLY:
        self->half_done = true;
        return TR_FAIL; /* something is wrong in here, and the supervisor is to know */
    case COUNTER_GET:
        tr_reply(ctx, 0, &self->value, sizeof self->value);
        break;
    }
    return TR_GO;
}

/* Before a restart: make the struct fit to start again. Without this function it would be
 * overwritten with the state of the table. */
static int counter_reset(void *state, enum tr_why why)
{
    struct counter *self = state;

    (void)why;
    self->half_done = false;
    return 0;
}

static const struct tr_type counter_type = {
    .name = "counter",
    .message_size = sizeof(struct counter_message),
    .state_size = sizeof(struct counter),
    .handle = counter_handle,
};
static const struct tr_type careful_type = {
    .name = "counter",
    .message_size = sizeof(struct counter_message),
    .state_size = sizeof(struct counter),
    .handle = counter_handle,
    .reset = counter_reset,
};
TR_ACTOR(counter, struct counter,
    struct counter_message) /* one face for both: the messages are the same */

/* The children and their restart rules. */
static const struct counter zero = { 0 };
static counter_sender forgetful, careful;

static const struct tr_child children[] = {
    { .name = "forgetful",
        .type = &counter_type,
        .state = &zero,
        .restart = TR_PERMANENT,
        .backoff_ns_min = MS,
        .backoff_ns_max = 50 * MS,
        .jitter_percent = 20,
        .ret_sender = &forgetful.raw },
    { .name = "careful",
        .type = &careful_type,
        .state = &zero,
        .restart = TR_PERMANENT,
        .ret_sender = &careful.raw },
};
static const struct tr_supervisor table = {
    .name = "counters",
    .strategy = TR_ONE_FOR_ONE, /* the other one does not care */
    .restarts_max = 10,
    .children = children,
    .child_count = sizeof children / sizeof children[0],
};

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* 1, 2, a crash, 4: all queued before the first is handled, or while it is; their order does not
 * change. */
static void exercise(const char *name, counter_sender counter)
{
    int value = 0;

    must(counter_tell(counter, (struct counter_message){ COUNTER_ADD, 1 }));
    must(counter_tell(counter, (struct counter_message){ COUNTER_ADD, 2 }));
    must(counter_tell(counter, (struct counter_message){ .kind = COUNTER_ADD_BADLY }));
    must(counter_tell(counter, (struct counter_message){ COUNTER_ADD, 4 }));
    must(counter_ask_wait(
        counter, (struct counter_message){ .kind = COUNTER_GET }, &value, sizeof value, 0));
    printf("%s: 1 + 2, a crash, + 4 = %d\n", name, value);
}

int main(void)
{
    struct tr_system *system;
    struct tr_system_stats stats;
    tr_sender top;

    must(tr_system_create(&(struct tr_system_options){ .quiet = true }, &system));
    must(tr_supervise(system, &table, "main", &top));
    exercise("forgetful", forgetful);
    exercise("careful", careful);

    tr_system_stats(system, &stats);
    printf("%llu crashes, %llu restarts, %llu messages became dead letters\n",
        (unsigned long long)stats.crashes, (unsigned long long)stats.restarts,
        (unsigned long long)stats.dead);
    tr_inspect_tree(system, stdout);

    counter_drop(&forgetful);
    counter_drop(&careful);
    tr_sender_drop(&top);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
