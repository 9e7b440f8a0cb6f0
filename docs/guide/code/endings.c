/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/03-asking.md: every ask ends, with a value or with exactly one error. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

enum clerk_message { CLERK_ANSWER, CLERK_FORGET, CLERK_KEEP, CLERK_CRASH };

struct clerk {
    tr_reply_handle kept; /* a duty to answer that is still open */
};

static enum tr_next clerk_handle(void *state, struct tr_context *ctx, void *message)
{
    struct clerk *self = state;
    const enum clerk_message *m = message;
    int answer = 42;

    switch (*m) {
    case CLERK_ANSWER:
        tr_reply(ctx, 0, &answer, sizeof answer);
        return TR_GO;
    case CLERK_FORGET:
        return TR_GO; /* neither answered nor taken */
    case CLERK_KEEP:
        tr_reply_drop(&self->kept);
        self->kept = tr_reply_take(ctx); /* to be answered later */
        return TR_GO;
    case CLERK_CRASH:
        return TR_FAIL;
    }
    return TR_GO;
}

static const struct tr_type clerk_type = {
    .name = "clerk",
    .message_size = sizeof(enum clerk_message),
    .state_size = sizeof(struct clerk),
    .handle = clerk_handle,
};
TR_ACTOR(clerk, struct clerk, enum clerk_message)

static void ask(const char *what, clerk_sender clerk, enum clerk_message message)
{
    int value = 0;
    int rc = clerk_ask_wait(clerk, message, &value, sizeof value, 20 * MS);

    if (rc == 0)
        printf("%-14s %d\n", what, value);
    else
        printf("%-14s %s: %s\n", what, tr_error_name(rc), tr_error_text(rc));
}

int main(void)
{
    struct clerk clerk = { 0 };
    struct tr_system *system;
    clerk_sender sender;
    int rc = tr_system_create(&(struct tr_system_options){ .driven = true }, &system);

    if (rc == 0)
        rc = clerk_spawn(system, &clerk, &(struct tr_spawn_options){ .name = "clerk" }, &sender);
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        return 1;
    }
    ask("answered:", sender, CLERK_ANSWER);
    ask("forgotten:", sender, CLERK_FORGET);
    ask("kept too long:", sender, CLERK_KEEP);
    ask("crashed:", sender, CLERK_CRASH);
    ask("afterwards:", sender, CLERK_ANSWER);

    clerk_drop(&sender);
    tr_system_destroy(&system);
    return 0;
}
