/* SPDX-License-Identifier: Apache-2.0 */
/* twenty_lines.c: the smallest whole program: one actor, one question, a clean end. */
#include <stdio.h>

#include <troupe/troupe.h>

struct counter {
    int value; /* the actor is its data */
};

struct add {
    int amount;
};

static enum tr_next counter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct counter *self = state;

    self->value += ((struct add *)message)->amount;
    tr_reply(ctx, 0, &self->value, sizeof self->value);
    return TR_GO;
}

static const struct tr_type counter_type = {
    .name = "counter",
    .message_size = sizeof(struct add),
    .state_size = sizeof(struct counter),
    .handle = counter_handle,
};
TR_ACTOR(counter, struct counter, struct add) /* typed: another struct does not compile */

int main(void)
{
    struct tr_system *system;
    counter_sender sender;
    int value;

    if (tr_system_create(NULL, &system) < 0 ||
        counter_spawn(system, &(struct counter){ .value = 40 }, NULL, &sender) < 0 ||
        counter_ask_wait(sender, (struct add){ 2 }, &value, sizeof value, 0) < 0)
        return 1;
    printf("the counter says %d\n", value);
    counter_drop(&sender); /* the last sender is gone: the actor ends by itself */
    tr_system_join(system, 0);
    tr_system_destroy(&system);
    return 0;
}
