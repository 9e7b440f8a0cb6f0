/* SPDX-License-Identifier: Apache-2.0 */
/* The first six of the ten laws of the runtime, each over many seeds and, where threads matter, on
 * workers. */
#include <pthread.h>

#include "puppet.h"

/* ---- law 1: FIFO per sender and lane; control overtakes ------------------------------------- */

enum { SENDERS = 4, LANES = 3 };

struct ordered {
    uint32_t sender;
    uint32_t lane;
    uint64_t number;
};

struct order_keeper {
    uint64_t next[SENDERS][LANES];
    uint64_t handled;
};

static enum tr_next handle_ordered(void *state, struct tr_context *ctx, void *message)
{
    struct order_keeper *self = state;
    const struct ordered *m = message;

    (void)ctx;
    CHECK_MSG(m->number == self->next[m->sender][m->lane],
        "sender %u, lane %u: %llu came when %llu was due", m->sender, m->lane,
        (unsigned long long)m->number, (unsigned long long)self->next[m->sender][m->lane]);
    self->next[m->sender][m->lane]++;
    self->handled++;
    return TR_GO;
}

static const struct tr_type order_keeper_type = { .name = "order keeper",
    .message_size = sizeof(struct ordered),
    .state_size = sizeof(struct order_keeper),
    .handle = handle_ordered };

/* Sends to the order keeper as often as it is told, over all lanes; full boxes make it come back.
 */
struct order_sender {
    tr_sender to;
    uint32_t sender;
    uint64_t next[LANES];
};

static enum tr_next order_sender_handle(void *state, struct tr_context *ctx, void *message)
{
    struct order_sender *self = state;
    uint64_t *left = message;

    while (*left > 0) {
        uint32_t lane = (uint32_t)(tr_random(ctx) % LANES);
        struct ordered m = { self->sender, lane, self->next[lane] };
        int rc = tr_tell_with(
            self->to, &m, sizeof m, &(struct tr_send_options){ .lane = (enum tr_lane)lane });

        if (rc == TR_EFULL) {
            tr_again(ctx);
            return TR_GO;
        }
        CHECK_EQ_INT(rc, 0);
        self->next[lane]++;
        --*left;
    }
    return TR_GO;
}

static void order_sender_finish(void *state)
{
    struct order_sender *self = state;

    tr_sender_drop(&self->to);
}

static const struct tr_type order_sender_type = { .name = "order sender",
    .message_size = sizeof(uint64_t),
    .state_size = sizeof(struct order_sender),
    .handle = order_sender_handle,
    .finish = order_sender_finish };

static void run_order(struct tr_system *system, struct tr_sim *sim, uint64_t messages)
{
    struct tr_done *done;
    struct order_keeper state = { 0 };
    tr_sender keeper, senders[SENDERS];

    CHECK_EQ_INT(tr_spawn(system, &order_keeper_type, &state,
                     &(struct tr_spawn_options){ .box.capacity = 16, .ret_done = &done }, &keeper),
        0);
    for (uint32_t i = 0; i < SENDERS; i++) {
        struct order_sender s = { .to = tr_sender_clone(keeper, "sender"), .sender = i };

        CHECK_EQ_INT(tr_spawn(system, &order_sender_type, &s, NULL, &senders[i]), 0);
        for (int part = 0; part < 4; part++)
            CHECK_EQ_INT(tr_tell(senders[i], &(uint64_t){ messages / 4 }, sizeof(uint64_t)), 0);
        tr_sender_drop(&senders[i]);
    }
    tr_sender_drop(&keeper);
    if (sim != NULL)
        tr_sim_run(sim, 0);
    CHECK_EQ_INT(tr_done_wait(&done, &state, NULL, 0), 0);
    CHECK_EQ_U64(state.handled, messages / 4 * 4 * SENDERS);
}

TEST(law, one_fifo_per_sender_and_lane)
{
    for (uint64_t seed; check_each_seed(&seed, 200);) {
        struct tr_sim *sim = simulation(seed);

        run_order(tr_sim_system(sim), sim, 200);
        finish_simulation(&sim);
    }
}

TEST(law, one_fifo_per_sender_and_lane_on_workers)
{
    for (uint32_t workers = 1; workers <= 4; workers++) {
        struct tr_system *system = system_of_workers(workers);

        run_order(system, NULL, 4000);
        finish_system(&system);
    }
}

TEST(law, one_control_overtakes_what_waits)
{
    for (uint64_t seed; check_each_seed(&seed, 200);) {
        struct tr_sim *sim = simulation(seed);
        struct tr_system *system = tr_sim_system(sim);
        struct notes notes = { 0 };
        struct tr_box *box;
        tr_sender sender;
        uint32_t controls = 0, others;
        bool seen_other = false;

        CHECK_EQ_INT(tr_box_create(system, &puppet_type, NULL, &box), 0);
        sender = tr_box_sender(box, "test");
        others = 1 + (uint32_t)(tr_sim_random(sim) % 40);
        for (uint32_t i = 0; i < others; i++) {
            enum tr_lane lane = tr_sim_chance(sim, 300000)   ? TR_CONTROL
                                : tr_sim_chance(sim, 500000) ? TR_BACKGROUND
                                                             : TR_INTERACTIVE;

            controls += lane == TR_CONTROL;
            CHECK_EQ_INT(puppet_tell_lane(sender, NULL, (uint64_t)lane, lane), 0);
        }
        CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ .notes = &notes }, NULL), 0);
        tr_sim_run(sim, 0);
        CHECK_EQ_INT(notes.count, others);
        for (uint32_t i = 0; i < notes.count; i++) {
            seen_other |= notes.numbers[i] != TR_CONTROL;
            CHECK(!seen_other || notes.numbers[i] != TR_CONTROL);
        }
        CHECK(controls == 0 || notes.numbers[0] == TR_CONTROL);
        tr_sender_drop(&sender);
        finish_simulation(&sim);
    }
}

/* ---- law 2: one fate ------------------------------------------------------------------------ */

enum { TOKENS = 400 };

/* The fate of each message. Senders write `accepted`; the other actors write the other two. */
struct fates {
    unsigned accepted[TOKENS], handled[TOKENS], dropped[TOKENS];
};
static struct fates fates;

struct token {
    uint32_t index;
    enum {
        TOKEN_PLAIN,
        TOKEN_FAIL,
        TOKEN_QUIT,
        TOKEN_STASH,
        TOKEN_UNSTASH,
        TOKEN_AGAIN,
        TOKEN_KINDS
    } kind;
};

static enum tr_next handle_token(void *state, struct tr_context *ctx, void *message)
{
    struct token *m = message;

    (void)state;
    switch (m->kind) {
    case TOKEN_STASH:
        m->kind = TOKEN_PLAIN;
        CHECK_EQ_INT(tr_stash(ctx), 0);
        return TR_GO;
    case TOKEN_AGAIN:
        m->kind = TOKEN_PLAIN;
        tr_again(ctx);
        return TR_GO;
    case TOKEN_FAIL:
        fates.handled[m->index]++; /* it was the handler's: a dead letter that is not dropped */
        return TR_FAIL;
    case TOKEN_QUIT:
        fates.handled[m->index]++;
        return TR_STOP;
    case TOKEN_UNSTASH:
        tr_unstash(ctx);
        break;
    case TOKEN_PLAIN:
    case TOKEN_KINDS:
        break;
    }
    fates.handled[m->index]++;
    return TR_GO;
}

static void drop_token(void *message)
{
    const struct token *m = message;

    fates.dropped[m->index]++;
}

static const struct tr_type token_type = { .name = "fate",
    .message_size = sizeof(struct token),
    .handle = handle_token,
    .message_drop = drop_token };

static void run_fates(uint64_t seed)
{
    struct tr_sim *sim = simulation(seed);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender to[8];
    struct tr_slot slot;
    uint64_t refused = 0;

    memset(&fates, 0, sizeof fates);
    for (int i = 0; i < 8; i++)
        CHECK_EQ_INT(tr_spawn(system, &token_type, NULL,
                         &(struct tr_spawn_options){
                             .box = { .capacity = 1 + (uint32_t)(tr_sim_random(sim) % 6),
                                 .full = (enum tr_full)(i % 4),
                                 .age_ns_max = i == 4 ? ms(5) : 0 } },
                         &to[i]),
            0);
    for (uint32_t i = 0; i < TOKENS; i++) {
        tr_sender target = to[tr_sim_random(sim) % 8];
        struct token m = { .index = i };
        struct tr_send_options options = { .lane = (enum tr_lane)(tr_sim_random(sim) % 3),
            .timeout_ns = tr_sim_chance(sim, 200000) ? ms(1) : 0 };
        struct tr_future *future = NULL;
        int rc;

        if (tr_sim_chance(sim, 400000))
            m.kind = tr_sim_chance(sim, 100000)   ? TOKEN_FAIL
                     : tr_sim_chance(sim, 100000) ? TOKEN_QUIT
                                                  : TOKEN_STASH + tr_sim_random(sim) % 3;
        switch (tr_sim_random(sim) % 4) {
        case 0:
            rc = tr_try_tell(target, &m, sizeof m);
            break;
        case 1:
            rc = tr_reserve(target, sizeof m, &slot);
            if (rc < 0)
                break;
            if (tr_sim_chance(sim, 200000)) {
                tr_slot_cancel(&slot);
                continue;
            }
            memcpy(slot.message, &m, sizeof m);
            rc = tr_slot_commit(&slot);
            if (rc < 0)
                tr_slot_cancel(&slot);
            break;
        case 2:
            rc = tr_ask_future(target, &m, sizeof m, options.timeout_ns, &future);
            break;
        default:
            rc = tr_tell_with(target, &m, sizeof m, &options);
        }
        CHECK_MSG(rc == 0 || rc == TR_EFULL || rc == TR_ECLOSED, "%s", tr_error_name(rc));
        fates.accepted[i] = rc == 0;
        refused += rc != 0;
        if (tr_sim_chance(sim, 100000))
            tr_future_drop(&future);
        if (tr_sim_chance(sim, 300000))
            tr_sim_step(sim);
        if (tr_sim_chance(sim, 20000))
            tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(2));
        if (tr_sim_chance(sim, 5000))
            tr_kill(tr_sender_weaken(target));
        tr_future_drop(&future);
    }
    CHECK(refused > 0);
    for (int i = 0; i < 8; i++)
        tr_sender_drop(&to[i]);
    finish_simulation(&sim); /* checks the counters */
    for (uint32_t i = 0; i < TOKENS; i++)
        CHECK_MSG(fates.handled[i] + fates.dropped[i] == fates.accepted[i],
            "message %u: accepted %u, handled %u, dropped %u", i, fates.accepted[i],
            fates.handled[i], fates.dropped[i]);
}

TEST_LONG(law, two_a_message_that_was_taken_has_exactly_one_fate, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 300);)
        run_fates(seed);
}

/* ---- law 3: an ask always ends, once -------------------------------------------------------- */

enum { MESH = 6, ASKS_MAX = 4000 };

struct ask_fate {
    unsigned sent, ended;
};
static struct ask_fate ask_fates[ASKS_MAX];
static uint32_t ask_count;

struct mesh_message {
    enum { MESH_WORK, MESH_ASK } kind;
    uint32_t depth;
};

struct mesh {
    uint32_t index;
    tr_sender *others; /* the test's; held until the end */
    struct tr_cancel *cancel;
    tr_reply_handle
        kept[4]; /* some are given to other actors without their knowledge: any holder may answer */
    uint32_t kept_count;
};

static bool is_end(int status)
{
    return status == 0 || status == TR_EDROPPED || status == TR_ECRASHED || status == TR_ECLOSED ||
           status == TR_ETIMEOUT || status == TR_ECANCELLED || status == TR_EDEADLOCK ||
           status == TR_EFULL;
}

static void mesh_ask(struct mesh *self, struct tr_context *ctx, uint32_t depth)
{
    struct mesh_message m = { .kind = MESH_ASK, .depth = depth };
    uint64_t r = tr_random(ctx);
    struct tr_ask_options options = { .tag = ask_count,
        .timeout_ns = r % 3 == 0 ? ms(1 + r / 3 % 20) : 0,
        .lane = (enum tr_lane)(r / 64 % 3),
        .hold = r / 256 % 3 == 0,
        .cancel = r / 1024 % 5 == 0 ? self->cancel : NULL };
    int rc;

    if (ask_count == ASKS_MAX)
        return;
    rc = tr_ask(ctx, self->others[r / 4096 % MESH], &m, sizeof m, &options);
    CHECK_MSG(rc == 0 || rc == TR_ECLOSED || rc == TR_EFULL || rc == TR_EDEADLOCK ||
                  rc == TR_ETIMEOUT || rc == TR_EBUSY,
        "%s", tr_error_name(rc));
    if (rc == 0)
        ask_fates[ask_count++].sent = 1;
}

static enum tr_next mesh_handle(void *state, struct tr_context *ctx, void *message)
{
    struct mesh *self = state;
    struct mesh_message *m = message;
    uint64_t r = tr_random(ctx);

    if (m->depth > 0)
        mesh_ask(self, ctx, m->depth - 1);
    if (m->kind == MESH_WORK)
        return TR_GO;
    switch (r % 16) {
    case 0:
        return TR_GO; /* dropped */
    case 1:
    case 2:
    case 3:
        if (self->kept_count < 4)
            self->kept[self->kept_count++] = tr_reply_take(ctx);
        return TR_GO;
    case 4:
        tr_forward(ctx, self->others[r / 16 % MESH]);
        return TR_GO;
    case 5:
        if (self->kept_count < 4) {
            self->kept[self->kept_count] = tr_reply_take(ctx);
            tr_reply_give(self->kept[self->kept_count++], self->others[r / 16 % MESH]);
        }
        return TR_GO;
    case 6:
        tr_reply_accept(ctx);
        if (self->kept_count < 4)
            self->kept[self->kept_count++] = tr_reply_take(ctx);
        return TR_GO;
    case 7:
        if (r / 16 % 64 == 0)
            return TR_FAIL;
        return TR_GO;
    case 8:
        while (self->kept_count > 0)
            tr_reply_send(&self->kept[--self->kept_count], 0, &r, sizeof r);
        break;
    default:
        break;
    }
    tr_reply(ctx, 0, &r, sizeof r);
    return TR_GO;
}

static enum tr_next mesh_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct mesh *self = state;

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_REPLY);
    CHECK(event->tag < ask_count);
    if (event->status == TR_ACCEPTED) {
        CHECK_EQ_INT(ask_fates[event->tag].ended, 0);
        return TR_GO;
    }
    CHECK_MSG(is_end(event->status), "an ask ended with %s", tr_error_name(event->status));
    CHECK_EQ_INT(++ask_fates[event->tag].ended, 1);
    if (self->kept_count > 0)
        tr_reply_send(&self->kept[--self->kept_count], 0, NULL, 0);
    return TR_GO;
}

static void mesh_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct mesh *self = state;

    (void)ctx;
    (void)why;
    while (self->kept_count > 0)
        tr_reply_drop(&self->kept[--self->kept_count]);
}

static const struct tr_type mesh_type = { .name = "mesh",
    .message_size = sizeof(struct mesh_message),
    .state_size = sizeof(struct mesh),
    .handle = mesh_handle,
    .event = mesh_event,
    .stop = mesh_stop };

static void run_mesh(uint64_t seed)
{
    struct tr_sim *sim = simulation(seed);
    struct tr_system *system = tr_sim_system(sim);
    tr_sender others[MESH];
    struct tr_cancel *tokens[MESH];
    struct tr_future *futures[64];
    uint32_t future_count = 0;
    bool crashed = false;

    memset(ask_fates, 0, sizeof ask_fates);
    ask_count = 0;
    for (uint32_t i = 0; i < MESH; i++) {
        struct mesh state = { .index = i, .others = others };

        CHECK_EQ_INT(tr_cancel_create(NULL, &tokens[i]), 0);
        state.cancel = tokens[i];
        CHECK_EQ_INT(tr_spawn(system, &mesh_type, &state,
                         &(struct tr_spawn_options){ .box = { .capacity = 2 + 3 * (i % 3),
                                                         .full = (enum tr_full)(i % 4) } },
                         &others[i]),
            0);
    }
    for (int round = 0; round < 60; round++) {
        tr_sender to = others[tr_sim_random(sim) % MESH];
        struct mesh_message m = { .kind = tr_sim_chance(sim, 500000) ? MESH_WORK : MESH_ASK,
            .depth = (uint32_t)(tr_sim_random(sim) % 5) };

        if (future_count < 64 && tr_sim_chance(sim, 500000)) {
            int rc = tr_ask_future(to, &m, sizeof m,
                tr_sim_chance(sim, 500000) ? ms(tr_sim_random(sim) % 20) : 0,
                &futures[future_count]);

            future_count += rc == 0;
        } else {
            tr_tell(to, &m, sizeof m);
        }
        if (tr_sim_chance(sim, 50000))
            tr_cancel_fire(tokens[tr_sim_random(sim) % MESH]);
        if (future_count > 0 && tr_sim_chance(sim, 30000))
            tr_future_cancel(futures[tr_sim_random(sim) % future_count]);
        tr_sim_run(sim, tr_sim_random(sim) % 30 + 1);
    }
    tr_sim_run(sim, 0);
    /* Now every actor is idle, or waits for an answer that another actor took and keeps. A stopping
     * actor gives it. */
    for (uint32_t i = 0; i < MESH; i++)
        crashed |= tr_stop(tr_sender_weaken(others[i])) < 0;
    tr_sim_run(sim, 0);
    for (uint32_t i = 0; i < MESH; i++) {
        CHECK(tr_sender_is_closed(others[i]));
        tr_sender_drop(&others[i]);
        tr_cancel_destroy(&tokens[i]);
    }
    for (uint32_t i = 0; i < ask_count; i++)
        CHECK_MSG(crashed || ask_fates[i].ended == ask_fates[i].sent, "ask %u never ended", i);
    for (uint32_t i = 0; i < future_count; i++) {
        CHECK(tr_future_is_ended(futures[i]));
        CHECK(is_end(tr_future_wait(futures[i], NULL, 0, NULL, 0)));
        tr_future_drop(&futures[i]);
    }
    finish_simulation(&sim);
}

TEST_LONG(law, three_an_ask_always_ends_once, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 400);)
        run_mesh(seed);
}

/* ---- law 4: a nested deadline is never later ------------------------------------------------ */

struct nested {
    uint64_t not_after_ns; /* of the message that this one was sent for; 0 is none */
    uint32_t depth;
};

struct nester {
    tr_sender *others;
    uint64_t seen;
};

static enum tr_next nester_handle(void *state, struct tr_context *ctx, void *message)
{
    struct nester *self = state;
    const struct nested *m = message;
    uint64_t mine = tr_deadline_ns(ctx), r = tr_random(ctx);
    struct nested next = { .not_after_ns = mine, .depth = m->depth - 1 };
    tr_sender to = self->others[r % MESH];
    uint64_t timeout_ns = r / 8 % 3 == 0 ? 0 : ms(1 + r / 32 % 100);
    struct tr_slot slot;

    self->seen++;
    if (m->not_after_ns != 0) {
        CHECK(mine != 0);
        CHECK(mine <= m->not_after_ns);
    }
    CHECK(mine == 0 || tr_now_ns(ctx) <= mine); /* an expired one is not handled */
    if (m->depth == 0)
        return TR_GO;
    switch (r / 4096 % 5) {
    case 0:
        tr_ask(ctx, to, &next, sizeof next, &(struct tr_ask_options){ .timeout_ns = timeout_ns });
        break;
    case 1:
        if (tr_reserve(to, sizeof next, &slot) == 0) {
            memcpy(slot.message, &next, sizeof next);
            if (tr_slot_commit(&slot) < 0)
                tr_slot_cancel(&slot);
        }
        break;
    case 2:
        tr_self_tell(ctx, &next, sizeof next);
        break;
    case 3:
        tr_tell(to, &next, sizeof next);
        break;
    default:
        tr_tell_with(to, &next, sizeof next, &(struct tr_send_options){ .timeout_ns = timeout_ns });
    }
    return TR_GO;
}

static const struct tr_type nester_type = { .name = "nester",
    .message_size = sizeof(struct nested),
    .state_size = sizeof(struct nester),
    .handle = nester_handle };

TEST(law, four_a_nested_deadline_is_never_later)
{
    uint64_t seen = 0;

    for (uint64_t seed; check_each_seed(&seed, 300);) {
        struct tr_sim *sim = simulation(seed);
        tr_sender others[MESH];
        struct tr_done *dones[MESH];

        for (uint32_t i = 0; i < MESH; i++)
            CHECK_EQ_INT(
                tr_spawn(tr_sim_system(sim), &nester_type, &(struct nester){ .others = others },
                    &(struct tr_spawn_options){ .ret_done = &dones[i] }, &others[i]),
                0);
        for (int i = 0; i < 20; i++)
            tr_tell_with(others[tr_sim_random(sim) % MESH], &(struct nested){ .depth = 10 },
                sizeof(struct nested),
                &(struct tr_send_options){ .timeout_ns = ms(tr_sim_random(sim) % 50) });
        tr_sim_run(sim, 0);
        for (uint32_t i = 0; i < MESH; i++)
            tr_sender_drop(&others[i]);
        tr_sim_run(sim, 0);
        for (uint32_t i = 0; i < MESH; i++) {
            struct nester state;

            CHECK_EQ_INT(tr_done_wait(&dones[i], &state, NULL, 0), 0);
            seen += state.seen;
        }
        finish_simulation(&sim);
    }
    CHECK(seen > 0);
}

/* ---- law 5: no handler blocks a worker ------------------------------------------------------ */

static enum tr_next send_many(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    for (; m->number > 0; m->number--)
        if (puppet_tell(self->peer, puppet_nothing, 0) == TR_EFULL) {
            tr_again(ctx);
            break;
        }
    return TR_GO;
}

TEST(law, five_a_full_box_parks_actors_and_never_the_worker)
{
    struct tr_system *system = system_of_workers(1); /* if it were blocked, nobody would be left */
    struct tr_box *box;
    tr_sender full, bystander = puppet_spawn(system, NULL, NULL), producers[20];
    struct tr_future *future;

    CHECK_EQ_INT(
        tr_box_create(system, &puppet_type, &(struct tr_box_options){ .capacity = 4 }, &box), 0);
    full = tr_box_sender(box, "test");
    for (int i = 0; i < 20; i++) {
        producers[i] = puppet_spawn(system, NULL, NULL);
        puppet_introduce(producers[i], full);
        CHECK_EQ_INT(puppet_tell(producers[i], send_many, 1000), 0);
    }
    for (uint64_t i = 0; i < 100; i++) { /* the box is full and stays so; others are served */
        future = puppet_future(bystander, puppet_echo, i, 0);
        CHECK_EQ_INT(puppet_end(&future, NULL), 0);
    }
    /* All producers have met the full box by now, so an actor answers only control messages. */
    CHECK(tr_sender_depth(full) >= 4 && tr_sender_depth(full) <= 8);
    CHECK_EQ_INT(tr_box_spawn(&box, &(struct puppet){ 0 }, NULL), 0);
    for (int i = 0; i < 20; i++)
        tr_sender_drop(&producers[i]);
    tr_sender_drop(&full);
    tr_sender_drop(&bystander);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    /* 20 000 of the producers, 2 for each, 100 asks. */
    CHECK_EQ_U64(stats_of(system).handled, 20000 + 40 + 100);
    CHECK(stats_of(system).parks > 0);
    finish_system(&system);
}

/* ---- law 6: the end ------------------------------------------------------------------------- */

static enum tr_next watch_peer(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    CHECK_EQ_INT(tr_watch(ctx, m->weak, 9), 0);
    return TR_GO;
}

static enum tr_next keep_self_and_timers(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    note(self, m->number);
    CHECK_EQ_INT(tr_after(ctx, ms(1000), 1, NULL), 0);
    CHECK_EQ_INT(tr_every(ctx, ms(10), 2, NULL), 0);
    self->data = tr_self(ctx).box; /* a weak self is all it has */
    return TR_GO;
}

static void note_stop(struct puppet *self, struct tr_context *ctx)
{
    (void)ctx;
    note(self, 1000);
}

TEST(law, six_the_last_sender_gone_the_box_drains_then_stop_then_the_state_comes_back)
{
    for (uint64_t seed; check_each_seed(&seed, 100);) {
        struct tr_sim *sim = simulation(seed);
        struct tr_system *system = tr_sim_system(sim);
        struct notes notes = { 0 }, watcher_notes = { 0 };
        struct puppet state = { 0 };
        struct tr_done *done;
        enum tr_why why;
        tr_sender watcher = puppet_spawn(system, &watcher_notes, "watcher");
        tr_sender sender =
            puppet_spawn_with(system, (struct puppet){ .notes = &notes, .on_stop = note_stop },
                &(struct tr_spawn_options){ .ret_done = &done });
        uint64_t count = 1 + tr_sim_random(sim) % 50;

        CHECK_EQ_INT(
            tr_tell(watcher,
                &(struct puppet_message){ .run = watch_peer, .weak = tr_sender_weaken(sender) },
                sizeof(struct puppet_message)),
            0);
        for (uint64_t i = 0; i < count; i++)
            CHECK_EQ_INT(puppet_tell(sender, keep_self_and_timers, i), 0);
        CHECK_EQ_INT(tr_done_wait(&done, &state, &why, ms(1)), TR_ETIMEOUT); /* a sender is held */
        tr_sender_drop(&sender);
        tr_sim_run(sim, 0);
        CHECK_EQ_INT(tr_done_wait(&done, &state, &why, 0), 0);
        CHECK_EQ_INT(why, TR_WHY_DONE);
        CHECK_EQ_INT(notes.count, count + 1);
        for (uint64_t i = 0; i < count; i++)
            CHECK_EQ_U64(notes.numbers[i], i);
        CHECK_EQ_U64(notes.numbers[count], 1000);
        CHECK(state.notes == &notes); /* the state, not a copy of what it was */
        CHECK(state.data != NULL);
        CHECK_EQ_INT(watcher_notes.event_count, 1);
        CHECK_EQ_INT(watcher_notes.events[0].kind, TR_EVENT_DOWN);
        CHECK_EQ_INT(watcher_notes.events[0].tag, 9);
        CHECK_EQ_INT(watcher_notes.events[0].status, TR_WHY_DONE);
        tr_sender_drop(&watcher);
        finish_simulation(&sim);
    }
}

static int make_puppet(void *data, const void *key, size_t key_size, void *state)
{
    struct puppet *puppet = state;

    (void)key;
    (void)key_size;
    puppet->notes = data;
    return 0;
}

TEST(law, six_an_idle_entry_of_a_registry_does_not_keep_its_actor)
{
    struct tr_sim *sim = simulation(check_seed());
    struct notes notes = { 0 };
    struct tr_registry *registry;
    tr_sender sender;

    CHECK_EQ_INT(tr_registry_create(tr_sim_system(sim),
                     &(struct tr_registry_options){ .name = "idle",
                         .type = &puppet_type,
                         .make = make_puppet,
                         .data = &notes,
                         .idle_ns = ms(20) },
                     &registry),
        0);
    CHECK_EQ_INT(tr_registry_get(registry, "key", 3, "test", &sender), 0);
    CHECK_EQ_INT(puppet_tell(sender, NULL, 1), 0);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(200));
    CHECK_EQ_INT(tr_registry_live(registry), 1); /* a sender is held */
    tr_sender_drop(&sender);
    tr_sim_run_until(sim, tr_sim_now_ns(sim) + ms(200));
    CHECK_EQ_INT(tr_registry_live(registry), 0);
    CHECK(notes.stopped);
    CHECK_NOTES(&notes, 1);
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
    finish_simulation(&sim);
}

TEST(law, six_dropping_the_first_sender_ends_a_whole_chain)
{
    struct tr_system *system = system_of_workers(2);
    tr_sender first = { 0 };

    for (int i = 0; i < 100; i++) {
        tr_sender next = puppet_spawn_with(system, (struct puppet){ .peer = first }, NULL);

        first = next; /* the one before it is owned by it now */
    }
    CHECK_EQ_U64(stats_of(system).live, 100);
    tr_sender_drop(&first);
    finish_system(&system);
}
