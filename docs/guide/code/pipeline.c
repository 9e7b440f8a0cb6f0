/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/02-senders-and-shutdown.md: dropping one sender ends a whole program. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* One stage of a pipeline: adds, and passes on. The last one has nobody to pass to. */
struct stage {
    int add;
    tr_sender next; /* owned: dropped in stage_finish() */
};

static enum tr_next stage_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct stage *self = state;
    int number = *(const int *)message + self->add;

    if (self->next.box != NULL)
        return tr_tell(self->next, &number, sizeof number) < 0 ? TR_FAIL : TR_GO;
    printf("%s: %d\n", tr_self_name(ctx), number);
    return TR_GO;
}

static void stage_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    (void)state;
    printf("%s: %s\n", tr_self_name(ctx), tr_why_text(why));
}

static void stage_finish(void *state)
{
    struct stage *self = state;

    tr_sender_drop(&self->next);
}

static const struct tr_type stage_type = {
    .name = "stage",
    .message_size = sizeof(int),
    .state_size = sizeof(struct stage),
    .handle = stage_handle,
    .stop = stage_stop,
    .finish = stage_finish,
};

static tr_sender stage_spawn(
    struct tr_system *system, const char *name, const char *owner, struct stage stage)
{
    tr_sender sender;

    must(tr_spawn(system, &stage_type, &stage,
        &(struct tr_spawn_options){ .name = name, .owner = owner }, &sender));
    return sender;
}

/* first -> second -> third; the caller gets the first one's only sender. */
static tr_sender pipeline_spawn(struct tr_system *system)
{
    tr_sender third = stage_spawn(system, "third", "second", (struct stage){ .add = 1 });
    tr_sender second = stage_spawn(system, "second", "first", (struct stage){ 10, third });

    return stage_spawn(system, "first", "main", (struct stage){ 100, second });
}

int main(void)
{
    struct tr_system *system;
    tr_sender first, forgotten;
    int number;

    /* Without workers: this thread runs the actors, inside tr_system_join. */
    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));

    first = pipeline_spawn(system);
    for (number = 1; number <= 3; number++)
        must(tr_tell(first, &number, sizeof number));
    tr_sender_drop(&first);
    must(tr_system_join(system, 0));

    printf("\nand with a sender that somebody forgot:\n");
    first = pipeline_spawn(system);
    forgotten = tr_sender_clone(first, "a cache that is never emptied");
    tr_sender_drop(&first);
    if (tr_system_join(system, 100 * MS) == TR_ETIMEOUT)
        printf("still alive after 100 ms\n");

    tr_sender_drop(&forgotten);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
