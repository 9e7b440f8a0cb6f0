/* SPDX-License-Identifier: Apache-2.0 */
/* sim_shutdown.c: a graph of actors that hold senders of each other (never in a circle), pass them
 * on, clone, drop, weaken and upgrade them, spawn more, watch, link, work in the background, and
 * end: by the last sender's drop, or stopped, killed, crashed or drained while others still send.
 * Checked:
 *
 *   held       no actor ends naturally while a sender of it is held or its work is under way; a
 *              held sender of an actor that was not ended never fails
 *   weak       no upgrade succeeds after the end
 *   once       stop is called at most once, then finish or the hand-back, once; no hook is called
 *              afterwards
 *   one fate   every message is handled once or dead; a natural end loses none
 *   notices    every watch gets one notice, and none after it was given up; every piece of work
 *              comes back or is dropped, once
 *   links      no actor fails with another that ended well
 *   liveness   when the scenario has let go of its senders, every actor ends
 *   destroyed  a system that is destroyed meanwhile ends every actor and gives every message its
 *              fate */
#include "scenario.h"

enum { NODES_MAX = 24, HELD = 5, WORK_MAX = 4000 };
enum { TAG_WORK = 1, TAG_TIMER = 2, TAG_WATCH = 100 };

struct message {
    uint32_t id;
    uint16_t budget;
    uint16_t target; /* of the sender inside */
    tr_sender sender;
};

struct record {
    bool alive, stopped, ended;
    bool violated;   /* somebody stopped or killed it, or it crashed: senders may find it closed */
    uint32_t strong; /* senders of it that somebody has for sure */
    uint32_t handled;
    tr_weak weak;
    struct tr_done *done;
};

static struct {
    struct scenario s;
    bool violent;
    uint32_t nodes;
    struct record records[NODES_MAX];
    tr_sender roots[NODES_MAX]; /* the scenario's */
    uint32_t watches, notices;
    uint32_t works, works_back;
    bool work_open[WORK_MAX];
} now;

static struct {
    uint64_t upgrades, upgrades_refused, natural, hand_backs;
} seen;

struct node {
    uint32_t index;
    bool inside;
    struct {
        tr_sender sender;
        uint32_t target;
    } held[HELD];
    uint32_t handled;
    uint32_t watches[NODES_MAX];
    uint32_t works; /* that have not come back */
};

static const struct tr_type node_type;

/* ---- senders, with the model's count -------------------------------------------------------- */

static void drop_held(tr_sender *sender, uint32_t target)
{
    tr_sender dropped = *sender;

    CHECK(now.records[target].strong > 0);
    now.records[target].strong--;
    *sender = (tr_sender){ 0 }; /* the drop may take a while, and others look */
    tr_sender_drop(&dropped);
}

static bool upgrade(uint32_t target, tr_sender *ret_sender)
{
    bool ended = now.records[target].ended;
    int rc = tr_weak_upgrade(now.records[target].weak, "upgrade", ret_sender);

    if (rc < 0) {
        CHECK_EQ_INT(rc, TR_ECLOSED);
        seen.upgrades_refused++;
        return false;
    }
    /* One that was killed has senders left, and its last moments take a while. */
    CHECK_MSG(
        !ended || now.records[target].violated, "weak: node %u has ended and is upgraded", target);
    now.records[target].strong++;
    seen.upgrades++;
    return true;
}

static uint32_t free_place(const struct node *self)
{
    uint32_t at = 0;

    while (at < HELD && self->held[at].sender.box != NULL)
        at++;
    return at;
}

/* Keep it if there is room and no circle comes of it. */
static void keep_or_drop(struct node *self, tr_sender sender, uint32_t target)
{
    uint32_t at = free_place(self);

    if (at < HELD && self->index < target) {
        self->held[at].sender = sender;
        self->held[at].target = target;
    } else {
        drop_held(&sender, target);
    }
}

static void drop_message(void *message)
{
    struct message *m = message;

    ledger_dead(m->id);
    if (m->sender.box != NULL)
        drop_held(&m->sender, m->target);
}

static void tell(tr_sender to, uint32_t target, struct message m)
{
    bool violated;
    int rc;

    m.id = ledger_new();
    rc = ledger_sent(m.id, tr_tell(to, &m, sizeof m));
    violated = now.records[target].violated;
    CHECK_MSG(rc == 0 || rc == TR_EFULL || (rc == TR_ECLOSED && violated),
        "held: a send to node %u fails with %s", target, tr_error_name(rc));
    if (rc < 0 && m.sender.box != NULL)
        drop_held(&m.sender, m.target);
}

/* ---- work ----------------------------------------------------------------------------------- */

static int work(void *argument)
{
    return (int)(uintptr_t)argument % 7;
}

static void work_end(void *argument)
{
    uint32_t index = (uint32_t)(uintptr_t)argument - 1;

    CHECK_MSG(now.work_open[index], "notices: work %u comes back twice", index);
    now.work_open[index] = false;
    now.works_back++;
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static int spawn_node(
    struct tr_system *system, bool done, uint32_t full, tr_sender *ret_sender, uint32_t *ret_index)
{
    uint32_t index = now.nodes;
    struct node node = { .index = index };
    struct tr_spawn_options options = { .box = { .capacity = 4 + full % 60 } };
    struct record *record = &now.records[index];
    int rc;

    if (index == NODES_MAX)
        return TR_ELIMIT;
    now.nodes++;
    record->alive = true;
    record->strong = 1;
    if (done)
        options.ret_done = &record->done;
    rc = tr_spawn(system, &node_type, &node, &options, ret_sender);
    CHECK_EQ_INT(rc, 0);
    record->weak = tr_sender_weaken(*ret_sender);
    *ret_index = index;
    return 0;
}

static void act(struct node *self, struct tr_context *ctx, uint16_t budget)
{
    uint64_t roll = tr_random(ctx);
    uint32_t at = (uint32_t)(roll >> 8) % HELD,
             target = (uint32_t)(roll >> 16 & 0xffff) % now.nodes, other;
    struct message m = { .budget = budget };
    tr_sender sender;
    int rc;

    switch (roll % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: /* send on */
        if (self->held[at].sender.box != NULL && budget > 0) {
            m.budget--;
            tell(self->held[at].sender, self->held[at].target, m);
        }
        break;
    case 5: /* pass a sender on to a node before its target */
        other = (uint32_t)(roll >> 32) % HELD;
        if (self->held[at].sender.box != NULL && self->held[other].sender.box != NULL &&
            self->held[other].target < self->held[at].target) {
            m.target = (uint16_t)self->held[at].target;
            m.sender = tr_sender_clone(self->held[at].sender, "in a message");
            now.records[m.target].strong++;
            tell(self->held[other].sender, self->held[other].target, m);
        }
        break;
    case 6:
    case 7:
        if (self->held[at].sender.box != NULL)
            drop_held(&self->held[at].sender, self->held[at].target);
        break;
    case 8:
    case 9: /* weak ones: of anybody */
        if (upgrade(target, &sender)) {
            if (budget > 0) {
                m.budget--;
                tell(sender, target, m);
            }
            keep_or_drop(self, sender, target);
        }
        break;
    case 10:
        if (free_place(self) < HELD && tr_random(ctx) % 3 == 0 &&
            spawn_node(tr_system_of(ctx), tr_random(ctx) % 2 == 0, (uint32_t)tr_random(ctx),
                &sender, &other) == 0)
            keep_or_drop(self, sender, other);
        break;
    case 11:
        if (now.records[target].weak.box == NULL)
            break;
        if (self->watches[target] == 0 || roll >> 40 & 1) {
            CHECK_EQ_INT(tr_watch(ctx, now.records[target].weak, TAG_WATCH + target), 0);
            self->watches[target]++;
            now.watches++;
        }
        if (roll >> 41 & 1) { /* its notice may be on the way already */
            tr_unwatch(ctx, now.records[target].weak);
            now.watches -= self->watches[target];
            self->watches[target] = 0;
        }
        break;
    case 12:
        if (now.works < WORK_MAX) {
            now.work_open[now.works++] = true;
            CHECK_EQ_INT(
                tr_offload(ctx, work, (void *)(uintptr_t)now.works, work_end, TAG_WORK), 0);
            self->works++;
        }
        break;
    case 13:
        CHECK_EQ_INT(tr_after(ctx, roll >> 40 & 3 * MS, TAG_TIMER, NULL), 0);
        break;
    case 14:
        if (now.violent && tr_random(ctx) % 4 == 0 && now.records[target].weak.box != NULL) {
            now.records[target].violated = true;
            if (tr_random(ctx) % 2 == 0)
                tr_stop(now.records[target].weak);
            else
                tr_kill(now.records[target].weak);
        }
        break;
    default:
        if (now.records[target].weak.box == NULL || target == self->index)
            break;
        if (now.violent) /* a linked actor may fail with the other */
            now.records[target].violated = now.records[self->index].violated = true;
        tr_trap_exits(ctx, roll >> 40 & 1);
        rc = tr_link(ctx, now.records[target].weak);
        CHECK_MSG(rc == 0 || rc == TR_ECLOSED, "links: %s", tr_error_name(rc));
        break;
    }
}

static struct record *enter(struct node *self)
{
    struct record *record = &now.records[self->index];

    CHECK_MSG(!self->inside, "alone: two turns of node %u at once", self->index);
    CHECK_MSG(record->alive && !record->ended, "once: node %u runs after its end", self->index);
    self->inside = true;
    return record;
}

static enum tr_next node_handle(void *state, struct tr_context *ctx, void *message)
{
    struct node *self = state;
    struct message *m = message;
    struct record *record = enter(self);

    self->handled++;
    record->handled++;
    if (now.violent && tr_random(ctx) % 100 == 0) {
        ledger_dead(m->id);
        if (m->sender.box != NULL)
            drop_held(&m->sender, m->target);
        record->violated = true;
        self->inside = false;
        return TR_FAIL;
    }
    ledger_handled(m->id);
    if (m->sender.box != NULL)
        keep_or_drop(self, m->sender, m->target);
    act(self, ctx, m->budget);
    act(self, ctx, m->budget);
    self->inside = false;
    if (now.violent && tr_random(ctx) % 100 == 0) {
        record->violated = true;
        return TR_STOP;
    }
    return TR_GO;
}

static enum tr_next node_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct node *self = state;

    enter(self);
    if (event->kind == TR_EVENT_DOWN) {
        uint32_t target = event->tag - TAG_WATCH;

        const struct record *record = &now.records[target];

        /* A watch set in its last moments may be answered before finish() is through. */
        CHECK_MSG(record->ended || record->stopped || record->violated || record->done != NULL,
            "notices: node %u has not ended", target);
        CHECK_MSG(self->watches[target] > 0, "notices: node %u is not watched", target);
        self->watches[target]--;
        now.notices++;
    } else if (event->kind == TR_EVENT_WORK) {
        CHECK_EQ_INT(event->status, (int)(uintptr_t)event->value % 7);
        work_end((void *)(uintptr_t)event->value);
        self->works--;
    } else if (event->kind == TR_EVENT_EXIT) {
        CHECK_MSG(now.violent, "links: nobody failed");
    } else {
        CHECK(event->kind == TR_EVENT_TIMER && event->tag == TAG_TIMER);
        act(self, ctx, 2);
    }
    self->inside = false;
    return TR_GO;
}

static void node_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct node *self = state;
    struct record *record = enter(self);

    CHECK_MSG(!record->stopped, "once: node %u stops twice", self->index);
    record->stopped = true;
    if (why == TR_WHY_DONE) {
        CHECK_MSG(self->works == 0, "held: node %u is done, but waits for %u pieces of work",
            self->index, self->works);
        CHECK_MSG(record->strong == 0 || record->violated,
            "held: node %u is done, but %u senders are held", self->index, record->strong);
    }
    /* It may still do things; work it starts is waited for. */
    if (tr_random(ctx) % 4 == 0 && now.works < WORK_MAX) {
        now.work_open[now.works++] = true;
        CHECK_EQ_INT(tr_offload(ctx, work, (void *)(uintptr_t)now.works, work_end, TAG_WORK), 0);
        self->works++;
    }
    self->inside = false;
}

/* Its last moment, in finish or when the state was handed back. */
static void let_go(struct node *self)
{
    struct record *record = &now.records[self->index];

    CHECK_MSG(record->alive, "once: node %u ends twice", self->index);
    record->alive = false;
    CHECK_EQ_U64(self->handled, record->handled);
    for (uint32_t i = 0; i < NODES_MAX; i++)
        now.watches -= self->watches[i]; /* nobody is there to hear */
    for (uint32_t i = 0; i < HELD; i++)
        if (self->held[i].sender.box != NULL)
            drop_held(&self->held[i].sender, self->held[i].target);
}

static void node_finish(void *state)
{
    struct node *self = state;

    now.records[self->index].ended = true;
    let_go(self);
}

static const struct tr_type node_type = {
    .name = "node",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct node),
    .handle = node_handle,
    .event = node_event,
    .stop = node_stop,
    .finish = node_finish,
    .message_drop = drop_message,
};

/* ---- the run -------------------------------------------------------------------------------- */

/* States that were handed back come to the scenario: it lets go of what they hold. */
static void take_back(struct scenario *s)
{
    for (uint32_t i = 0; i < now.nodes; i++) {
        struct record *record = &now.records[i];
        struct node node;
        enum tr_why why;

        if (record->done == NULL || tr_done_wait(&record->done, &node, &why, 1) != 0)
            continue;
        (void)s;
        CHECK_EQ_U64(node.index, i);
        CHECK_MSG(record->violated || why == TR_WHY_DONE, "once: node %u ended as \"%s\"", i,
            tr_why_text(why));
        record->ended = true;
        let_go(&node);
        seen.hand_backs++;
    }
}

/* Acts as a thread beside the workers: sends messages, some of which bring a sender; drops and
 * upgrades senders. */
static void act_outside(void *data)
{
    struct scenario *s = data;
    uint32_t index = below(s, now.nodes), target = below(s, now.nodes);

    if (now.roots[index].box != NULL) {
        struct message m = { .budget = (uint16_t)between(s, 0, 6) };

        if (index < target && now.roots[target].box != NULL && percent(s, 50)) {
            m.target = (uint16_t)target;
            m.sender = tr_sender_clone(now.roots[target], "in a message");
            now.records[target].strong++;
        }
        tell(now.roots[index], index, m);
        if (percent(s, 8))
            drop_held(&now.roots[index], index);
    } else if (percent(s, 30) && now.records[index].weak.box != NULL) {
        upgrade(index, &now.roots[index]);
    }
    if (percent(s, 5) && now.records[index].done != NULL)
        tr_done_drop(&now.records[index].done);
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    uint32_t rounds, limit = 0;
    struct tr_system_stats stats;
    uint64_t trace;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.violent = percent(s, 50);
    for (uint32_t count = between(s, 2, 10), index; count > 0; count--) {
        tr_sender sender;

        CHECK_EQ_INT(spawn_node(s->system, percent(s, 30), below(s, 100), &sender, &index), 0);
        now.roots[index] = sender;
    }
    rounds = between(s, 10, 60);
    for (uint32_t i = 0; i < rounds; i++) {
        scenario_outside(s, act_outside, s);
        scenario_run(s, below(s, 20));
    }
    if (percent(s, 10)) {
        for (uint32_t i = 0; i < now.nodes; i++)
            now.records[i].violated = true;
        for (uint32_t i = 0; i < now.nodes; i++)
            tr_done_drop(&now.records[i].done);
        trace = scenario_cut(s);
        for (uint32_t i = 0; i < now.nodes; i++)
            CHECK_MSG(now.records[i].ended, "once: node %u outlives its system", i);
        CHECK_MSG(now.works == now.works_back, "notices: %u of %u pieces of work", now.works_back,
            now.works);
        return trace;
    }
    if (percent(s, 10)) {
        now.violent = true; /* that is what a drain is to whoever is sent to */
        for (uint32_t i = 0; i < NODES_MAX; i++)
            now.records[i].violated = true;
        CHECK_EQ_INT(tr_system_drain(s->system, 0), 0);
    }
    for (uint32_t i = 0; i < now.nodes; i++)
        if (now.roots[i].box != NULL) {
            drop_held(&now.roots[i], i);
            scenario_run(s, below(s, 4));
        }
    /* A state that was handed back holds senders until it is taken. */
    do {
        CHECK_MSG(limit++ < 100, "liveness: the graph does not come down");
        CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
        take_back(s);
        scenario_run(s, STEPS_MAX);
        tr_system_stats(s->system, &stats);
        if (stats.live > 0 && limit > 50)
            tr_system_holders(s->system, stderr);
    } while (stats.live > 0);
    take_back(s);
    scenario_rest(s);
    for (uint32_t i = 0; i < now.nodes; i++) {
        tr_sender sender;

        CHECK_MSG(
            now.records[i].ended && now.records[i].strong == 0, "once: node %u has not ended", i);
        CHECK_MSG(tr_weak_upgrade(now.records[i].weak, "late", &sender) == TR_ECLOSED,
            "weak: node %u is gone and is upgraded", i);
        CHECK_EQ_INT(tr_stop(now.records[i].weak), TR_ECLOSED);
    }
    CHECK_MSG(now.violent || tr_dead_count(s->system, TR_DEAD_STOPPED) == 0,
        "one fate: a natural end lost messages");
    CHECK_MSG(now.watches == now.notices, "notices: %u of %u watches", now.notices, now.watches);
    CHECK_MSG(
        now.works == now.works_back, "notices: %u of %u pieces of work", now.works_back, now.works);
    seen.natural += !now.violent;
    return scenario_end(s);
}

TEST_LONG(shutdown, ends_everybody_once_and_nobody_too_early, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 4000);)
        run(seed);
    scenario_report();
    printf("%llu upgrades, %llu refused, %llu states handed back\n",
        (unsigned long long)seen.upgrades, (unsigned long long)seen.upgrades_refused,
        (unsigned long long)seen.hand_backs);
    CHECK_COVERED(seen.upgrades, 2000);
    CHECK_COVERED(seen.upgrades_refused, 1000);
    CHECK_COVERED(seen.hand_backs, 500);
}

TEST_LONG(shutdown, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
