/* SPDX-License-Identifier: Apache-2.0 */
/* sim_snapshot.c: values published while others read them in the middle of their turns. Checked:
 *
 *   valid  a value that a handler has read stays as it was until the handler returns, whatever is
 *          published meanwhile
 *   newer  an actor never reads an older value than it has read before
 *   freed  every value is freed once, and only the last one is kept when all actors are at rest */
#include "scenario.h"

enum { READERS_MAX = 4, VALUES_MAX = 2000 };

struct message {
    uint32_t id;
    uint32_t hops;
};

struct value {
    uint32_t version;
    bool freed;
};

static struct {
    struct scenario s;
    struct tr_snapshot *snapshot;
    uint32_t readers, published, freed;
    struct value values[VALUES_MAX];
    tr_sender senders[READERS_MAX];
} now;

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

static void free_value(void *value)
{
    struct value *v = value;

    CHECK_MSG(!v->freed, "freed: version %u twice", v->version);
    v->freed = true;
    now.freed++;
}

static void publish(void)
{
    struct value *value = &now.values[now.published];

    CHECK(now.published < VALUES_MAX);
    value->version = ++now.published;
    CHECK_EQ_INT(tr_snapshot_publish(now.snapshot, value), 0);
}

struct reader {
    uint32_t index, seen;
};

static enum tr_next handle(void *state, struct tr_context *ctx, void *message)
{
    struct reader *self = state;
    const struct message *m = message;
    const struct value *value = tr_snapshot_read(now.snapshot);
    uint32_t version;

    ledger_handled(m->id);
    CHECK(value != NULL);
    version = value->version;
    CHECK_MSG(!value->freed, "valid: version %u is read and was freed", version);
    CHECK_MSG(version >= self->seen, "newer: version %u after %u", version, self->seen);
    self->seen = version;
    /* Only the first publishes: one at a time. */
    if (self->index == 0 && tr_random(ctx) % 2 == 0 && now.published < VALUES_MAX)
        publish();
    for (uint32_t i = 0; i < 2 && m->hops > 0; i++) {
        struct message on = { ledger_new(), m->hops - 1 };

        ledger_sent(on.id, tr_tell(now.senders[tr_random(ctx) % now.readers], &on, sizeof on));
        CHECK_MSG(!value->freed && value->version == version,
            "valid: version %u was freed under its reader", version);
    }
    return TR_GO;
}

static const struct tr_type reader_type = {
    .name = "reader",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct reader),
    .handle = handle,
    .message_drop = drop_message,
};

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.readers = between(s, 2, READERS_MAX);
    CHECK_EQ_INT(tr_snapshot_create(s->system, free_value, &now.snapshot), 0);
    publish();
    for (uint32_t i = 0; i < now.readers; i++)
        CHECK_EQ_INT(tr_spawn(s->system, &reader_type, &(struct reader){ .index = i }, NULL,
                         &now.senders[i]),
            0);
    for (uint32_t i = between(s, 5, 20); i > 0; i--) {
        struct message m = { ledger_new(), between(s, 1, 4) };

        ledger_sent(m.id, tr_tell(now.senders[below(s, now.readers)], &m, sizeof m));
        scenario_run(s, below(s, 20));
    }
    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    publish(); /* between turns: nobody reads, so all the others go */
    CHECK_MSG(now.freed == now.published - 1, "freed: %u of %u at rest", now.freed, now.published);
    for (uint32_t i = 0; i < now.readers; i++)
        tr_sender_drop(&now.senders[i]);
    scenario_rest(s);
    tr_snapshot_destroy(&now.snapshot);
    CHECK_MSG(now.freed == now.published, "freed: %u of %u in the end", now.freed, now.published);
    return scenario_end(s);
}

TEST_LONG(snapshot, is_valid_as_long_as_somebody_reads_it, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 2000);)
        run(seed);
    scenario_report();
}

TEST_LONG(snapshot, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
