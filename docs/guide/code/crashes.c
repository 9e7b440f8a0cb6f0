/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/12-what-a-crash-is.md: the ways an actor can end, and how to see which it was. */
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

struct patient {
    bool refuses_to_start;
};

enum order { ORDER_NOTHING, ORDER_FAIL, ORDER_DAWDLE, ORDER_STOP };

static int patient_start(void *state, struct tr_context *ctx)
{
    const struct patient *self = state;

    (void)ctx;
    return self->refuses_to_start ? TR_EIO : 0;
}

static enum tr_next patient_handle(void *state, struct tr_context *ctx, void *message)
{
    uint64_t begin = tr_now_ns(ctx);

    (void)state;
    switch (*(const enum order *)message) {
    case ORDER_NOTHING:
        return TR_GO;
    case ORDER_FAIL:
        return TR_FAIL;
    case ORDER_DAWDLE:
        while (tr_now_ns(ctx) - begin < 60 * MS) {
        }
        return TR_GO;
    case ORDER_STOP:
        return TR_STOP;
    }
    return TR_GO;
}

static const struct tr_type patient_type = {
    .name = "patient",
    .message_size = sizeof(enum order),
    .state_size = sizeof(struct patient),
    .turn_ns_max = 50 * MS, /* one call takes at most 50 ms: it says so itself */
    .start = patient_start,
    .handle = patient_handle,
};
TR_ACTOR(patient, struct patient, enum order)

static void try(
    struct tr_system *system, const char *what, struct patient patient, enum order order)
{
    struct tr_done *done;
    patient_sender sender;
    enum tr_why why;

    must(patient_spawn(system, &patient, &(struct tr_spawn_options){ .ret_done = &done }, &sender));
    must(patient_tell(sender, order));
    patient_drop(&sender);
    must(tr_done_wait(&done, &patient, &why, 0));
    printf("%-24s %s\n", what, tr_why_text(why));
}

int main(void)
{
    struct patient good = { false }, bad = { true };
    struct tr_system_stats stats;
    struct tr_system *system;

    must(tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system));
    try(system, "nobody needs it:", good, ORDER_NOTHING);
    try(system, "it returned TR_STOP:", good, ORDER_STOP);
    try(system, "it returned TR_FAIL:", good, ORDER_FAIL);
    try(system, "its start failed:", bad, ORDER_NOTHING);
    try(system, "it took 60 ms:", good, ORDER_DAWDLE);
    tr_system_stats(system, &stats);
    printf("crashes: %llu\n", (unsigned long long)stats.crashes);
    tr_system_destroy(&system);
    return 0;
}
