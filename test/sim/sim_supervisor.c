/* SPDX-License-Identifier: Apache-2.0 */
/* sim_supervisor.c: trees of supervisors, all strategies, whose leaves crash in every way there is.
 *
 * Leaves fail on messages, fail to start, are killed by the simulator, stop by themselves, stash,
 * ask and hold in start and in stop. Then the storm ends and the tree must come down in order.
 * Checked:
 *
 *   one fate   no restart loses or repeats a message; the one that crashed a leaf is dead unless it
 *              is retried
 *   fifo       box and stash keep their order over restarts
 *   alone      one actor never has two turns at once, and no message before start or after the end
 *   notices    every watch ends with one notice, after the leaf has ended
 *   intensity  a supervisor gives up only after more than its maximum of restarts in its window,
 *              and then always; in some seeds crashes come one in a window: then it never does
 *   order      a tree that is dropped stops its children from the last to the first
 *   liveness   every actor ends
 *   destroyed  a system that is destroyed meanwhile gives every message its fate */
#include "scenario.h"

enum {
    LEAVES_MAX = 12,
    SUPERVISORS_MAX = 5,
    CHILDREN_MAX = 4,
    RESTARTS_KEPT = 256,
    SENDERS_MAX = LEAVES_MAX + 1
};
enum { TAG_START = 1, TAG_STOP = 2, TAG_ASK = 3 };

struct message {
    uint32_t id;
    uint16_t from; /* a leaf, or LEAVES_MAX: the scenario */
    uint16_t retried;
    uint32_t sequence; /* per sender and leaf */
};

struct leaf_record {
    bool alive;   /* started and not ended */
    bool started; /* in this life */
    bool inside;
    bool retry_poison;
    uint32_t stops;
    uint32_t order;             /* in the table, depth first */
    uint32_t sent[SENDERS_MAX]; /* the last sequence number accepted */
    uint32_t seen[SENDERS_MAX]; /* the last one handled */
    uint32_t stashed;
    uint32_t watched, noticed;
};

struct question {
    uint32_t id;
};

static struct {
    struct scenario s;
    bool calm;     /* no more faults */
    bool dropping; /* the tree has been dropped */
    bool kills;
    bool spaced; /* crashes come one in a window */
    bool crash_next;
    uint32_t fail_percent, start_fail_percent;
    uint32_t leaves, supervisors, order;
    struct tr_supervisor tables[SUPERVISORS_MAX];
    struct tr_child rows[SUPERVISORS_MAX][CHILDREN_MAX];
    struct leaf *states[LEAVES_MAX];
    struct leaf_record records[LEAVES_MAX];
    tr_sender senders[LEAVES_MAX];
    tr_sender root, clerk, watcher;
    bool retried[LEDGER_MAX];
    uint32_t last_stopped;
    bool root_gave_up, root_ended;
    uint64_t root_restarts[RESTARTS_KEPT]; /* of leaves right under a one-for-one root */
    uint32_t root_restart_count;
    uint64_t root_ended_ns;
    uint32_t asked, answered;
} now;

static uint32_t gave_up; /* over all seeds */

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

/* ---- the clerk, outside of the tree --------------------------------------------------------- */

struct clerk {
    tr_reply_handle waiting;
};

static enum tr_next clerk_handle(void *state, struct tr_context *ctx, void *message)
{
    struct clerk *self = state;

    ledger_handled(((struct question *)message)->id);
    if (self->waiting.reply == NULL && tr_random(ctx) % 4 == 0) {
        self->waiting = tr_reply_take(ctx);
        CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 20 * MS, 0, NULL), 0);
    } else if (tr_random(ctx) % 8 != 0) {
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    }
    return TR_GO;
}

static enum tr_next clerk_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct clerk *self = state;

    (void)ctx;
    (void)event;
    tr_reply_send(&self->waiting, 0, NULL, 0); /* the asker may be gone: no error */
    return TR_GO;
}

static void drop_question(void *message)
{
    ledger_dead(((struct question *)message)->id);
}

static const struct tr_type clerk_type = {
    .name = "clerk",
    .message_size = sizeof(struct question),
    .state_size = sizeof(struct clerk),
    .handle = clerk_handle,
    .event = clerk_event,
    .message_drop = drop_question,
};

static int ask_clerk(struct tr_context *ctx, uint32_t tag, bool hold)
{
    struct question question = { ledger_new() };
    int rc = tr_ask(ctx, now.clerk, &question, sizeof question,
        &(struct tr_ask_options){
            .tag = tag, .hold = hold, .timeout_ns = tr_random(ctx) % 2 * 15 * MS });

    ledger_sent(question.id, rc);
    return rc;
}

/* ---- leaves --------------------------------------------------------------------------------- */

struct leaf {
    uint32_t index;
    uint32_t parent; /* supervisor */
    uint32_t handled;
    bool holding;
};

static struct leaf_record *enter(const struct leaf *self, bool starting)
{
    struct leaf_record *record = &now.records[self->index];

    CHECK_MSG(!record->inside, "alone: two turns of leaf %u at once", self->index);
    CHECK_MSG(starting || record->started, "leaf %u runs before its start", self->index);
    record->inside = true;
    return record;
}

static int leaf_start(void *state, struct tr_context *ctx)
{
    struct leaf *self = state;
    struct leaf_record *record = enter(self, true);
    int rc = 0;

    CHECK_MSG(self->handled == 0, "a restart begins with a fresh state");
    if (self->parent == 0 && now.tables[0].strategy == TR_ONE_FOR_ONE &&
        tr_self_restarts(ctx) > 0) {
        CHECK(now.root_restart_count < RESTARTS_KEPT);
        now.root_restarts[now.root_restart_count++] = tr_now_ns(ctx);
    }
    record->started = record->alive = true;
    if (!now.calm && tr_random(ctx) % 100 < now.start_fail_percent) {
        record->started = false;
        rc = TR_EIO;
    } else if (tr_random(ctx) % 4 == 0 && ask_clerk(ctx, TAG_START, true) == 0) {
        self->holding = true;
    }
    record->inside = false;
    return rc;
}

static void tell_leaf(uint32_t from, uint32_t to)
{
    struct leaf_record *record = &now.records[to];
    struct message m = {
        .id = ledger_new(), .from = (uint16_t)from, .sequence = record->sent[from] + 1
    };
    tr_sender sender = now.senders[to];
    int rc;

    if (sender.box == NULL) {
        ledger_sent(m.id, TR_ECLOSED);
        return;
    }
    /* Counted first: it may be handled before the send returns. Leaves run one turn at a time, so
     * nobody else uses this pair meanwhile. */
    record->sent[from]++;
    rc = ledger_sent(m.id, tr_try_tell(sender, &m, sizeof m));
    if (rc < 0)
        record->sent[from]--;
    CHECK_MSG(
        rc == 0 || rc == TR_EFULL || rc == TR_ECLOSED, "a tell fails with %s", tr_error_name(rc));
}

static enum tr_next leaf_handle(void *state, struct tr_context *ctx, void *message)
{
    struct leaf *self = state;
    struct leaf_record *record = enter(self, false);
    struct message *m = message;
    enum tr_next next = TR_GO;
    uint32_t roll = (uint32_t)tr_random(ctx) % 100;

    CHECK_MSG(!self->holding, "hold: a message meanwhile");
    /* A message seen before comes again only from the stash, or because it crashed the leaf. */
    CHECK_MSG(m->sequence == record->seen[m->from] + 1 || m->retried ||
                  m->sequence > record->seen[m->from] + 1,
        "fifo: leaf %u, sender %u: %u after %u", self->index, m->from, m->sequence,
        record->seen[m->from]);
    if (!m->retried) {
        CHECK_MSG(m->sequence > record->seen[m->from], "fifo: leaf %u, sender %u: %u after %u",
            self->index, m->from, m->sequence, record->seen[m->from]);
        record->seen[m->from] = m->sequence;
    }
    self->handled++;
    if (!now.calm && (roll < now.fail_percent || now.crash_next)) {
        now.crash_next = false;
        if (record->retry_poison && !now.retried[m->id]) {
            now.retried[m->id] = true;
            m->retried = 1;
        } else if (record->retry_poison) {
            ledger_handled(m->id); /* once is enough: else it would come back for ever */
            record->inside = false;
            return TR_GO;
        } else {
            ledger_dead(m->id);
        }
        record->inside = false;
        record->started = false;
        return TR_FAIL;
    }
    if (!now.calm && roll < now.fail_percent + 10 && tr_stash(ctx) == 0) {
        m->retried = 1;
        record->stashed++;
        record->inside = false;
        return TR_GO;
    }
    if (roll % 8 == 0) {
        tr_unstash(ctx);
        record->stashed = 0;
    }
    if (roll % 8 == 1)
        tell_leaf(self->index, (uint32_t)tr_random(ctx) % now.leaves);
    if (roll % 16 == 2 && ask_clerk(ctx, TAG_ASK, true) == 0)
        self->holding = true;
    if (!now.calm && !now.spaced && roll == 99)
        next = TR_STOP;
    ledger_handled(m->id);
    record->inside = false;
    return next;
}

static enum tr_next leaf_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct leaf *self = state;
    struct leaf_record *record = enter(self, false);

    (void)ctx;
    CHECK(event->kind == TR_EVENT_REPLY);
    CHECK_MSG(event->status == 0 || event->status == TR_ETIMEOUT || event->status == TR_EDROPPED ||
                  (now.kills && event->status == TR_ECLOSED),
        "the clerk's answer is %s", tr_error_name(event->status));
    CHECK_MSG(
        self->holding || event->tag == TAG_STOP || record->stops > 0, "an answer nobody waits for");
    self->holding = false;
    record->inside = false;
    return TR_GO;
}

static void leaf_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct leaf *self = state;
    struct leaf_record *record = enter(self, false);

    (void)why;
    record->stops++;
    self->holding = false;
    if (now.dropping && !now.kills) {
        CHECK_MSG(record->order < now.last_stopped, "order: child %u stops after %u", record->order,
            now.last_stopped);
        now.last_stopped = record->order;
    }
    if (tr_random(ctx) % 4 == 0)
        ask_clerk(ctx, TAG_STOP, tr_random(ctx) % 2 == 0);
    record->inside = false;
}

static void leaf_finish(void *state)
{
    struct leaf *self = state;
    struct leaf_record *record = &now.records[self->index];

    record->alive = record->started = false;
}

static const struct tr_type leaf_type = {
    .name = "leaf",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct leaf),
    .start = leaf_start,
    .handle = leaf_handle,
    .event = leaf_event,
    .stop = leaf_stop,
    .finish = leaf_finish,
    .message_drop = drop_message,
};

/* ---- the watcher ---------------------------------------------------------------------------- */

static int watcher_start(void *state, struct tr_context *ctx)
{
    (void)state;
    for (uint32_t i = 0; i < now.leaves; i++)
        if (now.senders[i].box != NULL) {
            CHECK_EQ_INT(tr_watch(ctx, tr_sender_weaken(now.senders[i]), i), 0);
            now.records[i].watched++;
        }
    CHECK_EQ_INT(tr_watch(ctx, tr_sender_weaken(now.root), LEAVES_MAX), 0);
    return 0;
}

static enum tr_next watcher_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next watcher_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    (void)state;
    CHECK(event->kind == TR_EVENT_DOWN);
    if (event->tag == LEAVES_MAX) {
        CHECK_MSG(!now.root_ended, "notices: two for the root");
        now.root_ended = true;
        now.root_ended_ns = tr_now_ns(ctx);
        now.root_gave_up = event->status == TR_WHY_FAILED;
        gave_up += now.root_gave_up;
        return TR_GO;
    }
    CHECK_MSG(now.records[event->tag].noticed == 0, "notices: two for leaf %u", event->tag);
    CHECK_MSG(!now.records[event->tag].started, "notices: leaf %u is still there", event->tag);
    now.records[event->tag].noticed++;
    return TR_GO;
}

static const struct tr_type watcher_type = {
    .name = "watcher",
    .message_size = sizeof(struct message),
    .start = watcher_start,
    .handle = watcher_handle,
    .event = watcher_event,
};

static const struct tr_type idle_type = {
    .name = "idle",
    .message_size = sizeof(struct message),
    .handle = watcher_handle,
};

/* ---- building ------------------------------------------------------------------------------- */

static struct leaf leaf_states[LEAVES_MAX];

static uint32_t draw_table(struct scenario *s, uint32_t depth)
{
    uint32_t index = now.supervisors++;
    struct tr_supervisor *table = &now.tables[index];

    *table = (struct tr_supervisor){
        .name = "supervisor",
        .strategy = (enum tr_strategy)below(s, 3),
        .restarts_max = between(s, 1, 6),
        .window_ns = between(s, 5, 200) * MS,
        .children = now.rows[index],
        .child_count = between(s, 1, CHILDREN_MAX),
    };
    for (uint32_t i = 0; i < table->child_count; i++) {
        struct tr_child *row = &now.rows[index][i];

        *row = (struct tr_child){
            .restart = percent(s, 60) ? TR_PERMANENT : (enum tr_restart)below(s, 3),
            .backoff_ns_min = percent(s, 50) && index != 0 ? between(s, 1, 10) * MS : 0,
            .backoff_ns_max = 50 * MS,
            .jitter_percent = below(s, 100),
            .grace_ns = between(s, 1, 30) * MS,
            .retry_poison = percent(s, 30),
        };
        if (depth < 2 && now.supervisors < SUPERVISORS_MAX && percent(s, 35)) {
            row->supervisor = &now.tables[draw_table(s, depth + 1)];
            continue;
        }
        if (now.leaves == LEAVES_MAX) {
            table->child_count = i;
            break;
        }
        leaf_states[now.leaves] = (struct leaf){ .index = now.leaves, .parent = index };
        now.records[now.leaves] =
            (struct leaf_record){ .order = now.order++, .retry_poison = row->retry_poison };
        row->name = "leaf";
        row->type = &leaf_type;
        row->state = &leaf_states[now.leaves];
        row->box = (struct tr_box_options){ .capacity = between(s, 2, 16) };
        if (percent(s, 80))
            row->ret_sender = &now.senders[now.leaves];
        now.leaves++;
    }
    if (table->child_count == 0) { /* no leaf was left: there must be a child */
        now.rows[index][0] = (struct tr_child){ .type = &idle_type, .name = "idle" };
        table->child_count = 1;
    }
    return index;
}

/* ---- the run -------------------------------------------------------------------------------- */

/* How many restarts of the root's leaves began in the window that ends at `at`. */
static uint32_t restarts_before(uint64_t at, uint64_t window)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < now.root_restart_count; i++)
        count += now.root_restarts[i] <= at && now.root_restarts[i] + window > at;
    return count;
}

static void check_intensity(void)
{
    const struct tr_supervisor *root = &now.tables[0];
    static const uint64_t slack =
        20 * MS; /* a little time passes between a crash and what follows */

    if (root->strategy != TR_ONE_FOR_ONE)
        return;
    if (root->window_ns > slack)
        for (uint32_t i = 0; i < now.root_restart_count; i++)
            CHECK_MSG(restarts_before(now.root_restarts[i], root->window_ns - slack) <=
                          root->restarts_max,
                "intensity: more than %u restarts in the window", root->restarts_max);
    for (uint32_t i = 0; i < root->child_count; i++)
        if (root->children[i].supervisor != NULL)
            return; /* its restarts count too and are not recorded here */
    if (now.root_gave_up)
        CHECK_MSG(
            restarts_before(now.root_ended_ns, root->window_ns + 400 * MS) >= root->restarts_max,
            "intensity: gave up after fewer than %u restarts in the window", root->restarts_max);
}

/* One crash, then a pause longer than any window. */
static void storm_spaced(struct scenario *s, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        now.crash_next = true;
        for (uint32_t sends = below(s, 4); sends > 0; sends--)
            tell_leaf(LEAVES_MAX, below(s, now.leaves));
        tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 400 * MS);
    }
    CHECK_MSG(!now.root_ended, "intensity: gave up, though crashes came one in a window");
}

static void storm(struct scenario *s, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        for (uint32_t sends = below(s, 6); sends > 0; sends--)
            tell_leaf(LEAVES_MAX, below(s, now.leaves));
        if (percent(s, 10))
            tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + below(s, 100) * MS);
        if (percent(s, 3)) {
            uint32_t leaf = below(s, now.leaves);

            if (now.senders[leaf].box != NULL) {
                if (percent(s, 50))
                    tr_stop(tr_sender_weaken(now.senders[leaf]));
                else
                    tr_kill(tr_sender_weaken(now.senders[leaf]));
            }
        }
        scenario_run(s, below(s, 40));
    }
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;

    memset(&now, 0, sizeof now);
    now.kills = seed % 3 == 0;
    scenario_begin(s, seed, &(struct tr_sim_options){ .kill_per_million = now.kills ? 5000 : 0 });
    now.spaced = !now.kills && percent(s, 20);
    now.fail_percent = now.spaced ? 0 : below(s, 4) * 5;
    now.start_fail_percent = now.spaced ? 0 : below(s, 3) * 8;
    draw_table(s, 0);
    CHECK_EQ_INT(tr_spawn(s->system, &clerk_type, &(struct clerk){ 0 },
                     &(struct tr_spawn_options){ .box.capacity = 1000 }, &now.clerk),
        0);
    CHECK_EQ_INT(tr_supervise(s->system, &now.tables[0], "scenario", &now.root), 0);
    CHECK_EQ_INT(tr_spawn(s->system, &watcher_type, NULL, NULL, &now.watcher), 0);
    if (now.spaced)
        storm_spaced(s, between(s, 5, 20));
    else
        storm(s, between(s, 20, 80));
    if (percent(s, 10))
        return scenario_cut(s);
    /* The storm is over: all work in flight ends. */
    now.calm = true;
    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    check_conserved(s);
    check_intensity();
    /* Now the tree comes down, from the last child to the first. */
    now.dropping = true;
    now.last_stopped = UINT32_MAX;
    tr_sender_drop(&now.root);
    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    for (uint32_t i = 0; i < now.leaves; i++) {
        if (now.records[i].alive)
            tr_system_holders(s->system, stderr);
        tr_sender_drop(&now.senders[i]);
        CHECK_MSG(!now.records[i].alive, "the tree has ended, leaf %u has not", i);
    }
    tr_sender_drop(&now.clerk);
    scenario_run(s, STEPS_MAX);
    for (uint32_t i = 0; i < now.leaves; i++)
        CHECK_MSG(now.kills || now.records[i].watched == now.records[i].noticed,
            "notices: %u of %u for leaf %u", now.records[i].noticed, now.records[i].watched, i);
    CHECK_MSG(now.kills || now.root_ended, "notices: none for the root");
    tr_sender_drop(&now.watcher);
    scenario_rest(s);
    return scenario_end(s);
}

TEST_LONG(supervisor, keeps_messages_order_and_limits_in_a_storm, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 4000);)
        run(seed);
    scenario_report();
    printf("%u times the root gave up\n", gave_up);
    CHECK_COVERED(covered.stats.crashes, 2000);
    CHECK_COVERED(covered.stats.restarts, 2000);
    CHECK_COVERED(gave_up, 50);
}

TEST_LONG(supervisor, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
