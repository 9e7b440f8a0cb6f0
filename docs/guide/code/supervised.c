/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/05-supervision.md: an actor that crashes, and the table that restarts it. */
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

/* Keeps a running total, and has a bug: it does not know what to do with a zero. */
struct totals {
    int total;
};

static int totals_start(void *state, struct tr_context *ctx)
{
    const struct totals *self = state;

    printf("%s: started, life %u, total %d\n", tr_self_name(ctx), tr_self_restarts(ctx) + 1,
        self->total);
    return 0;
}

static enum tr_next totals_handle(void *state, struct tr_context *ctx, void *message)
{
    struct totals *self = state;
    int number = *(const int *)message;

    if (number == 0)
        return TR_FAIL; /* a broken invariant: this is what a crash is */
    self->total += number;
    tr_reply(ctx, 0, &self->total, sizeof self->total);
    return TR_GO;
}

static const struct tr_type totals_type = {
    .name = "totals",
    .message_size = sizeof(int),
    .state_size = sizeof(struct totals),
    .start = totals_start,
    .handle = totals_handle,
};
TR_ACTOR(totals, struct totals, int)

/* The table: the children, the state each starts from, and the restart rule. */
static const struct totals totals_initial = { .total = 100 };
static totals_sender totals;

static const struct tr_child children[] = {
    { .name = "totals",
        .type = &totals_type,
        .state = &totals_initial,
        .restart = TR_PERMANENT,
        .backoff_ns_min = MS,
        .backoff_ns_max = 100 * MS,
        .ret_sender = &totals.raw },
};
static const struct tr_supervisor table = {
    .name = "top",
    .strategy = TR_ONE_FOR_ONE,
    .restarts_max = 2,
    .children = children,
    .child_count = 1,
};

static void add(int number)
{
    int total = 0;
    int rc = totals_ask_wait(totals, number, &total, sizeof total, 0);

    if (rc == 0)
        printf("main: add %d: %d\n", number, total);
    else
        printf("main: add %d: %s\n", number, tr_error_name(rc));
}

int main(void)
{
    struct tr_system *system;
    tr_sender top;

    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));
    must(tr_supervise(system, &table, "main", &top));

    add(5);
    add(6);
    add(0); /* the first crash */
    add(7);
    tr_inspect_tree(system, stdout);

    add(0);
    add(0); /* the third within 5 s: more than the table allows */
    add(8);

    totals_drop(&totals);
    tr_sender_drop(&top);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
