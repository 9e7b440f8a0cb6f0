/* SPDX-License-Identifier: Apache-2.0 */
/* sim_registry.c: a few keys, fought over by clients that get, find, tell, ask, keep, drop, stop
 * and kill, while the registry passivates whatever is idle for a moment and evicts over its limit.
 * Checked:
 *
 *   one each   a key never has two actors between start and finish
 *   one fate   every accepted message is handled once or dead
 *   successor  while the registry is open no message is lost to an actor that ended: its successor
 *              gets the message
 *   held       an actor is not passivated while a client holds a sender of it, while it keeps
 *              itself, or while it waits
 *   fifo       messages of one sender come in order, at one actor
 *   asks       each ends once, with a code that fits
 *   liveness   closing comes to an end, and every actor ends */
#include "scenario.h"

enum { KEYS_MAX = 4, CLIENTS_MAX = 5, HANDLES = 3, ASKS_MAX = 20000 };
enum { TAG_LATER = 1, TAG_KEPT = 2, TAG_HOLD = 3 };

struct message {
    uint32_t id;
    uint32_t handle;   /* which sender it went through */
    uint32_t sequence; /* per handle */
    uint16_t client;
    uint16_t what;
};
enum { DO_WORK, DO_FAIL, DO_STOP, DO_KEEP, DO_HOLD, DO_STASH, DO_LATER, DO_KINDS };

struct tick {
    uint32_t id;
};

static struct {
    struct scenario s;
    struct tr_registry *registry;
    uint32_t keys, clients;
    bool crashes, stops, kills, start_fails;
    bool calm; /* no more faults */
    bool alive[KEYS_MAX];
    const void *alive_box[KEYS_MAX];
    const void *held[CLIENTS_MAX + 1][HANDLES]; /* the boxes that clients have senders of */
    tr_sender outside; /* of a thread that is no worker; its box is in the last row above */
    uint32_t outside_handle, outside_sequence;
    uint32_t starts, passivated, handles;
    tr_sender client_senders[CLIENTS_MAX], clerk;
    uint32_t asks, answers;
    bool open[ASKS_MAX];
} now;

static struct {
    uint32_t starts, passivated;
} seen; /* over all seeds */

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

static void drop_tick(void *message)
{
    ledger_dead(((struct tick *)message)->id);
}

/* ---- the clerk: answers a moment later, or never -------------------------------------------- */

struct clerk {
    tr_reply_handle waiting;
};

static enum tr_next clerk_handle(void *state, struct tr_context *ctx, void *message)
{
    struct clerk *self = state;

    ledger_handled(((struct tick *)message)->id);
    if (self->waiting.reply == NULL && tr_random(ctx) % 2 == 0) {
        self->waiting = tr_reply_take(ctx);
        CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 5 * MS, 0, NULL), 0);
    } else {
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    }
    return TR_GO;
}

static enum tr_next clerk_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    (void)event;
    tr_reply_send(&((struct clerk *)state)->waiting, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type clerk_type = {
    .name = "clerk",
    .message_size = sizeof(struct tick),
    .state_size = sizeof(struct clerk),
    .handle = clerk_handle,
    .event = clerk_event,
    .message_drop = drop_tick,
};

/* ---- the registered actors ------------------------------------------------------------------ */

enum { SEEN_MAX = 64 };

struct entity {
    uint32_t key;
    bool inside, started, holding;
    uint32_t keeps, stashed;
    struct {
        uint32_t handle, sequence;
    } last[SEEN_MAX]; /* by handle, a small cache */
};

static int make(void *data, const void *key, size_t size, void *state)
{
    struct entity *self = state;

    (void)data;
    CHECK_EQ_U64(size, sizeof(uint32_t));
    memcpy(&self->key, key, sizeof self->key);
    return 0;
}

static int ask_clerk(struct tr_context *ctx, uint32_t tag, bool hold)
{
    struct tick tick = { ledger_new() };

    return ledger_sent(tick.id, tr_ask(ctx, now.clerk, &tick, sizeof tick,
                                    &(struct tr_ask_options){ .tag = tag, .hold = hold }));
}

static int entity_start(void *state, struct tr_context *ctx)
{
    struct entity *self = state;
    size_t size;
    const void *key = tr_registry_key(ctx, &size);

    CHECK_MSG(!now.alive[self->key], "one each: two actors of key %u", self->key);
    CHECK(key != NULL && size == sizeof self->key && memcmp(key, &self->key, size) == 0);
    now.alive[self->key] = true;
    now.alive_box[self->key] = tr_self(ctx).box;
    self->started = true;
    now.starts++;
    if (now.start_fails && !now.calm && tr_random(ctx) % 8 == 0)
        return TR_EIO;
    if (tr_random(ctx) % 4 == 0 && ask_clerk(ctx, TAG_HOLD, true) == 0)
        self->holding = true;
    return 0;
}

static void check_order(struct entity *self, const struct message *m)
{
    uint32_t at = m->handle % SEEN_MAX;

    if (self->last[at].handle == m->handle)
        CHECK_MSG(m->sequence > self->last[at].sequence, "fifo: key %u: %u after %u of one sender",
            self->key, m->sequence, self->last[at].sequence);
    self->last[at].handle = m->handle;
    self->last[at].sequence = m->sequence;
}

static enum tr_next entity_handle(void *state, struct tr_context *ctx, void *message)
{
    struct entity *self = state;
    struct message *m = message;
    enum tr_next next = TR_GO;

    CHECK_MSG(!self->inside, "alone: two turns of key %u at once", self->key);
    CHECK_MSG(now.alive[self->key] && self->started, "one each: key %u handles without a life",
        self->key);
    CHECK_MSG(!self->holding, "hold: a message meanwhile");
    self->inside = true;
    if (m->sequence != 0)
        check_order(self, m);
    switch (m->what) {
    case DO_FAIL:
        if (!now.crashes || now.calm)
            break;
        ledger_dead(m->id);
        self->inside = false;
        return TR_FAIL;
    case DO_STOP:
        next = now.stops && !now.calm ? TR_STOP : TR_GO;
        break;
    case DO_KEEP: /* work is planned: not to be passivated */
        tr_registry_keep(ctx);
        self->keeps++;
        CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 10 * MS, TAG_KEPT, NULL), 0);
        break;
    case DO_HOLD:
        self->holding = ask_clerk(ctx, TAG_HOLD, true) == 0;
        break;
    case DO_STASH:
        if (!now.calm) {
            m->what = DO_WORK;
            m->sequence = 0; /* comes back later: no order */
            CHECK_EQ_INT(tr_stash(ctx), 0);
            CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % 5 * MS, TAG_LATER, NULL), 0);
            self->stashed++;
            self->inside = false;
            return TR_GO;
        }
        break;
    default:
        break;
    }
    if (tr_is_asked(ctx) && m->what != DO_LATER)
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
    ledger_handled(m->id);
    self->inside = false;
    return next;
}

static enum tr_next entity_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct entity *self = state;

    CHECK_MSG(!self->inside, "alone: two turns of key %u at once", self->key);
    if (event->kind == TR_EVENT_TIMER && event->tag == TAG_KEPT) {
        CHECK(self->keeps > 0);
        self->keeps--;
        tr_registry_release(ctx);
    } else if (event->kind == TR_EVENT_TIMER && event->tag == TAG_LATER) {
        self->stashed = 0;
        tr_unstash(ctx);
    } else {
        CHECK(event->kind == TR_EVENT_REPLY && event->tag == TAG_HOLD);
        self->holding = false;
    }
    return TR_GO;
}

static void entity_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct entity *self = state;

    if (why == TR_WHY_PASSIVATED) {
        now.passivated++;
        CHECK_MSG(self->keeps == 0, "held: key %u is passivated though it keeps itself", self->key);
        CHECK_MSG(
            !self->holding, "held: key %u is passivated though it waits for an answer", self->key);
        CHECK_MSG(self->stashed == 0, "held: key %u is passivated with a stash", self->key);
        for (uint32_t i = 0; i < (CLIENTS_MAX + 1) * HANDLES; i++)
            CHECK_MSG(now.held[i / HANDLES][i % HANDLES] != tr_self(ctx).box,
                "held: key %u is passivated though client %u has a sender", self->key, i / HANDLES);
    }
    self->holding = false;
    if (tr_random(ctx) % 4 == 0)
        ask_clerk(ctx, TAG_HOLD, tr_random(ctx) % 2 == 0);
}

static void entity_finish(void *state)
{
    struct entity *self = state;

    if (!self->started)
        return; /* a successor that never ran */
    CHECK_MSG(now.alive[self->key], "one each: key %u ends twice", self->key);
    now.alive[self->key] = false;
    now.alive_box[self->key] = NULL;
}

static const struct tr_type entity_type = {
    .name = "entity",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct entity),
    .start = entity_start,
    .handle = entity_handle,
    .event = entity_event,
    .stop = entity_stop,
    .finish = entity_finish,
    .message_drop = drop_message,
};

/* ---- clients -------------------------------------------------------------------------------- */

struct client {
    uint32_t index;
    uint32_t left; /* ticks yet */
    bool inside;
    struct {
        tr_sender sender;
        uint32_t key, handle, sequence;
    } held[HANDLES];
};

static void release(struct client *self, uint32_t slot)
{
    if (self->held[slot].sender.box == NULL)
        return;
    now.held[self->index][slot] = NULL;
    tr_sender_drop(&self->held[slot].sender);
}

static struct message draw_message(
    struct client *self, struct tr_context *ctx, uint32_t handle, uint32_t sequence)
{
    return (struct message){ .id = ledger_new(),
        .handle = handle,
        .sequence = sequence,
        .client = (uint16_t)self->index,
        .what = (uint16_t)(tr_random(ctx) % 3 != 0 ? DO_WORK : tr_random(ctx) % DO_KINDS) };
}

static void use_held(struct client *self, struct tr_context *ctx, uint32_t slot)
{
    struct message m =
        draw_message(self, ctx, self->held[slot].handle, self->held[slot].sequence + 1);
    tr_sender to = self->held[slot].sender;
    int rc;

    if (tr_random(ctx) % 2 == 0) {
        uint32_t tag = now.asks;

        CHECK(now.asks < ASKS_MAX);
        now.open[now.asks++] = true;
        rc = tr_ask(ctx, to, &m, sizeof m,
            &(struct tr_ask_options){ .tag = tag, .timeout_ns = tr_random(ctx) % 3 * 4 * MS });
        if (rc < 0) {
            now.open[tag] = false;
            now.answers++;
        }
    } else {
        rc = tr_tell(to, &m, sizeof m);
    }
    ledger_sent(m.id, rc);
    if (rc == 0)
        self->held[slot].sequence++;
    CHECK_MSG(rc == 0 || rc == TR_EFULL ||
                  (rc == TR_ECLOSED && (now.crashes || now.stops || now.kills || now.start_fails)),
        "held: a send to an actor nobody ends fails with %s", tr_error_name(rc));
    if (rc == TR_ECLOSED)
        release(self, slot);
}

static void act(struct client *self, struct tr_context *ctx)
{
    uint32_t key = (uint32_t)tr_random(ctx) % now.keys, slot = (uint32_t)tr_random(ctx) % HANDLES;
    uint32_t roll = (uint32_t)tr_random(ctx) % 16;
    struct message m;
    tr_sender sender;
    int rc;

    if (roll < 5) { /* get, or use what was got */
        if (self->held[slot].sender.box != NULL) {
            use_held(self, ctx, slot);
            return;
        }
        rc = roll == 0 ? tr_registry_find(now.registry, &key, sizeof key, "client", &sender)
                       : tr_registry_get(now.registry, &key, sizeof key, "client", &sender);
        CHECK_MSG(rc == 0 || (rc == TR_ENOENT && roll == 0) || rc == TR_EFULL, "get: %s",
            tr_error_name(rc));
        if (rc == 0) {
            self->held[slot].sender = sender;
            self->held[slot].key = key;
            self->held[slot].handle = ++now.handles;
            self->held[slot].sequence = 0;
            now.held[self->index][slot] = sender.box;
        }
        return;
    }
    if (roll < 9) {
        release(self, slot);
        return;
    }
    if (roll < 14) {
        m = draw_message(self, ctx, ++now.handles, 1);
        rc = tr_registry_tell(now.registry, &key, sizeof key, &m, sizeof m);
        ledger_sent(m.id, rc);
        CHECK_MSG(rc == 0 || rc == TR_EFULL, "tell: %s", tr_error_name(rc));
        return;
    }
    /* Only one that runs: ending a successor before its start would end its waiting messages. */
    if (self->held[slot].sender.box == NULL || now.calm ||
        self->held[slot].sender.box != now.alive_box[self->held[slot].key])
        return;
    if (roll == 14 && now.stops)
        tr_stop(tr_sender_weaken(self->held[slot].sender));
    else if (roll == 15 && now.kills)
        tr_kill(tr_sender_weaken(self->held[slot].sender));
}

static enum tr_next client_handle(void *state, struct tr_context *ctx, void *message)
{
    struct client *self = state;

    CHECK_MSG(!self->inside, "alone: two turns of client %u at once", self->index);
    self->inside = true;
    ledger_handled(((struct tick *)message)->id);
    act(self, ctx);
    if (--self->left > 0) {
        CHECK_EQ_INT(
            tr_after(ctx, tr_random(ctx) % 4 == 0 ? tr_random(ctx) % 8 * MS : 0, 0, NULL), 0);
    } else {
        for (uint32_t i = 0; i < HANDLES; i++)
            release(self, i);
    }
    self->inside = false;
    return TR_GO;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct tick tick;

    (void)state;
    if (event->kind == TR_EVENT_TIMER) {
        tick.id = ledger_new();
        CHECK_EQ_INT(ledger_sent(tick.id, tr_self_tell(ctx, &tick, sizeof tick)), 0);
        return TR_GO;
    }
    CHECK(event->kind == TR_EVENT_REPLY && event->tag < now.asks);
    CHECK_MSG(now.open[event->tag], "asks: %u ends twice", event->tag);
    CHECK_MSG(event->status == 0 || event->status == TR_EDROPPED || event->status == TR_ETIMEOUT ||
                  event->status == TR_ECLOSED ||
                  (event->status == TR_ECRASHED && (now.crashes || now.start_fails)),
        "asks: ends with %s", tr_error_name(event->status));
    now.open[event->tag] = false;
    now.answers++;
    return TR_GO;
}

static void client_finish(void *state)
{
    struct client *self = state;

    for (uint32_t i = 0; i < HANDLES; i++)
        release(self, i);
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(struct tick),
    .state_size = sizeof(struct client),
    .handle = client_handle,
    .event = client_event,
    .finish = client_finish,
    .message_drop = drop_tick,
};

/* ---- the run -------------------------------------------------------------------------------- */

/* Acts as a thread beside the workers: get, tell through the sender, drop, or both in one call. */
static void act_outside(void *data)
{
    struct scenario *s = data;
    uint32_t key = below(s, now.keys), roll = below(s, 8);
    struct message m = { .client = CLIENTS_MAX, .what = (uint16_t)below(s, DO_KINDS) };
    int rc;

    if (roll < 3 && now.outside.box == NULL) {
        rc = tr_registry_get(now.registry, &key, sizeof key, "outside", &now.outside);
        CHECK_MSG(rc == 0 || rc == TR_EFULL, "get: %s", tr_error_name(rc));
        now.held[CLIENTS_MAX][0] = rc == 0 ? now.outside.box : NULL;
        now.outside_handle = ++now.handles;
        now.outside_sequence = 0;
    } else if (roll < 5 && now.outside.box != NULL) {
        m.id = ledger_new();
        m.handle = now.outside_handle;
        m.sequence = now.outside_sequence + 1;
        rc = ledger_sent(m.id, tr_tell(now.outside, &m, sizeof m));
        now.outside_sequence += rc == 0;
        CHECK_MSG(
            rc == 0 || rc == TR_EFULL ||
                (rc == TR_ECLOSED && (now.crashes || now.stops || now.kills || now.start_fails)),
            "held: a send to an actor nobody ends fails with %s", tr_error_name(rc));
    } else if (roll < 6) {
        now.held[CLIENTS_MAX][0] = NULL;
        tr_sender_drop(&now.outside);
    } else {
        m.id = ledger_new();
        m.handle = ++now.handles;
        m.sequence = 1;
        rc = ledger_sent(m.id, tr_registry_tell(now.registry, &key, sizeof key, &m, sizeof m));
        CHECK_MSG(rc == 0 || rc == TR_EFULL, "tell: %s", tr_error_name(rc));
    }
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_registry_options options = { .name = "entities", .type = &entity_type, .make = make };
    uint32_t ticks, limit = 0;
    int rc;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.keys = between(s, 1, KEYS_MAX);
    now.clients = between(s, 1, CLIENTS_MAX);
    now.crashes = percent(s, 40);
    now.stops = percent(s, 40);
    now.kills = percent(s, 30);
    now.start_fails = percent(s, 20);
    ticks = between(s, 10, 60);
    options.box.capacity = between(s, 4, 64);
    options.idle_ns = percent(s, 90) ? between(s, 1, 6) * MS : 0;
    options.live_max = percent(s, 30) ? between(s, 1, now.keys) : 0;
    options.grace_ns = between(s, 1, 10) * MS;
    CHECK_EQ_INT(tr_spawn(s->system, &clerk_type, &(struct clerk){ 0 },
                     &(struct tr_spawn_options){ .box.capacity = 1000 }, &now.clerk),
        0);
    CHECK_EQ_INT(tr_registry_create(s->system, &options, &now.registry), 0);
    for (uint32_t i = 0; i < now.clients; i++) {
        struct client client = { .index = i, .left = ticks };
        struct tick tick = { ledger_new() };

        CHECK_EQ_INT(tr_spawn(s->system, &client_type, &client, NULL, &now.client_senders[i]), 0);
        CHECK_EQ_INT(ledger_sent(tick.id, tr_tell(now.client_senders[i], &tick, sizeof tick)), 0);
    }
    /* The sweep never rests: run until the clients are through, then a little on. */
    for (uint32_t busy = now.clients; busy > 0;) {
        CHECK_MSG(limit++ < 10000, "liveness: the clients do not come to their end");
        if (percent(s, 50))
            scenario_outside(s, act_outside, s);
        scenario_run(s, between(s, 5, 50));
        busy = 0;
        for (uint32_t i = 0; i < now.clients; i++)
            busy += tr_sender_depth(now.client_senders[i]) > 0;
        if (busy == 0) { /* their next tick may be a timer */
            tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 20 * MS);
            for (uint32_t i = 0; i < now.clients; i++)
                busy += tr_sender_depth(now.client_senders[i]) > 0;
        }
    }
    now.calm = true;
    now.held[CLIENTS_MAX][0] = NULL;
    tr_sender_drop(&now.outside);
    for (uint32_t i = 0; i < 100 && ledger_queued() > 0; i++)
        tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 20 * MS);
    check_nothing_queued(s);
    /* An actor that cannot start takes its messages with it: its successor could not start either.
     */
    CHECK_MSG(now.start_fails || tr_dead_count(s->system, TR_DEAD_STOPPED) == 0,
        "successor: %llu messages went down with their actor",
        (unsigned long long)tr_dead_count(s->system, TR_DEAD_STOPPED));
    for (uint32_t i = 0; i < now.clients; i++)
        tr_sender_drop(&now.client_senders[i]);
    tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 50 * MS);
    CHECK_MSG(now.asks == now.answers, "asks: %u were made, %u ended", now.asks, now.answers);
    if (options.idle_ns != 0)
        for (uint32_t key = 0; key < now.keys; key++)
            CHECK_MSG(!now.alive[key], "liveness: key %u is idle and not passivated", key);
    rc = tr_registry_close(&now.registry, 1000 * MS);
    CHECK_MSG(rc == 0, "liveness: closing the registry gives %s", tr_error_name(rc));
    tr_sender_drop(&now.clerk);
    scenario_rest(s);
    for (uint32_t key = 0; key < now.keys; key++)
        CHECK_MSG(!now.alive[key], "one each: key %u has not ended", key);
    seen.starts += now.starts;
    seen.passivated += now.passivated;
    return scenario_end(s);
}

TEST_LONG(registry, has_one_actor_a_key_and_loses_no_message, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 4000);)
        run(seed);
    scenario_report();
    printf("%u starts, %u passivated\n", seen.starts, seen.passivated);
    CHECK_COVERED(seen.passivated, 1000);
    CHECK_COVERED(covered.stats.crashes, 100);
}

TEST_LONG(registry, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
