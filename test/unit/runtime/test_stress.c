/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads at once. Every case ends by checking that no message was lost: each was handled or
 * is a dead letter, no box holds one, and (under AddressSanitizer) nothing leaks. */
#include <pthread.h>
#include <stdlib.h>

#include "puppet.h"

static uint64_t big(uint64_t n)
{
    return check_is_long() ? 20 * n : n;
}

/* A generator of one's own for each thread. */
static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- fan-in --------------------------------------------------------------------------------- */

enum { THREADS = 4 };

struct counted {
    uint32_t from;
    uint64_t number;
};

struct counter {
    uint64_t next[THREADS];
    uint64_t handled;
};

static enum tr_next counter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct counter *self = state;
    const struct counted *m = message;

    CHECK_EQ_U64(m->number, self->next[m->from]);
    self->next[m->from]++;
    self->handled++;
    if (tr_is_asked(ctx))
        tr_reply(ctx, 0, &m->number, sizeof m->number);
    return TR_GO;
}

static const struct tr_type counter_type = { .name = "counter",
    .message_size = sizeof(struct counted),
    .state_size = sizeof(struct counter),
    .handle = counter_handle };

struct feeder {
    tr_sender to;
    uint32_t from;
    uint64_t count;
};

/* Every way a thread can send, in turns. */
static void *feed(void *argument)
{
    struct feeder *feeder = argument;

    for (uint64_t i = 0; i < feeder->count; i++) {
        struct counted m = { feeder->from, i };
        struct tr_slot slot;
        int rc;

        switch (i % 4) {
        case 0:
            do
                rc = tr_reserve(feeder->to, sizeof m, &slot);
            while (rc == TR_EFULL);
            CHECK_EQ_INT(rc, 0);
            memcpy(slot.message, &m, sizeof m);
            CHECK_EQ_INT(tr_slot_commit(&slot), 0);
            break;
        case 1: {
            uint64_t answer = 0;

            do
                rc = tr_ask_wait(feeder->to, &m, sizeof m, &answer, sizeof answer, 0);
            while (rc == TR_EFULL);
            CHECK_EQ_INT(rc, 0);
            CHECK_EQ_U64(answer, i);
            break;
        }
        default:
            CHECK_EQ_INT(tr_tell_wait(feeder->to, &m, sizeof m, 0), 0);
        }
    }
    tr_sender_drop(&feeder->to);
    return NULL;
}

TEST_LONG(stress, threads_feed_one_small_box_in_order, 60)
{
    for (uint32_t workers = 1; workers <= 3; workers++) {
        struct tr_system *system = system_of_workers(workers);
        struct feeder feeders[THREADS];
        pthread_t threads[THREADS];
        struct counter state = { 0 };
        struct tr_done *done;
        uint64_t count = big(3000);
        tr_sender sender;

        CHECK_EQ_INT(
            tr_spawn(system, &counter_type, &state,
                &(struct tr_spawn_options){ .box.capacity = 3, .ret_done = &done }, &sender),
            0);
        for (uint32_t i = 0; i < THREADS; i++) {
            feeders[i] = (struct feeder){ tr_sender_clone(sender, "thread"), i, count };
            CHECK_EQ_INT(pthread_create(&threads[i], NULL, feed, &feeders[i]), 0);
        }
        tr_sender_drop(&sender);
        for (uint32_t i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        CHECK_EQ_INT(tr_done_wait(&done, &state, NULL, 0), 0);
        CHECK_EQ_U64(state.handled, THREADS * count);
        finish_system(&system);
    }
}

/* ---- a mesh of asks ------------------------------------------------------------------------- */

enum { MESH = 12 };

static _Atomic uint64_t asks_sent, asks_ended, deadlocks;

struct mesh_message {
    bool asked;
    uint32_t depth;
};

struct mesh {
    tr_sender *others;
    struct tr_cancel *const *tokens;
    tr_reply_handle kept[3];
    uint32_t kept_count;
    uint64_t open;
};

static void mesh_ask(struct mesh *self, struct tr_context *ctx, uint32_t depth)
{
    struct mesh_message m = { true, depth };
    uint64_t r = tr_random(ctx);
    struct tr_ask_options options = { .timeout_ns = r % 4 == 0 ? 1 + r / 4 % 3000000 : 0,
        .lane = (enum tr_lane)(r / 64 % 3),
        .hold = r / 256 % 3 == 0,
        .cancel = r / 1024 % 6 == 0 ? self->tokens[r / 8192 % 4] : NULL };
    int rc = tr_ask(ctx, self->others[r / 65536 % MESH], &m, sizeof m, &options);

    if (rc == 0) {
        asks_sent++;
        self->open++;
    } else {
        CHECK_MSG(rc == TR_ECLOSED || rc == TR_EFULL || rc == TR_EDEADLOCK || rc == TR_ETIMEOUT ||
                      rc == TR_EBUSY,
            "%s", tr_error_name(rc));
        deadlocks += rc == TR_EDEADLOCK;
    }
}

static enum tr_next mesh_handle(void *state, struct tr_context *ctx, void *message)
{
    struct mesh *self = state;
    const struct mesh_message *m = message;
    uint64_t r = tr_random(ctx);

    if (m->depth > 0) {
        mesh_ask(self, ctx, m->depth - 1);
        if (r % 3 == 0)
            mesh_ask(self, ctx, m->depth - 1);
    }
    if (!m->asked)
        return TR_GO;
    switch (r / 16 % 12) {
    case 0:
        return TR_GO;
    case 1:
    case 2:
        tr_reply_accept(ctx);
        if (self->kept_count < 3)
            self->kept[self->kept_count++] = tr_reply_take(ctx);
        return TR_GO;
    case 3:
        tr_forward(ctx, self->others[r / 256 % MESH]);
        return TR_GO;
    case 4:
        if (self->kept_count <
            3) { /* given to an actor that does not know it; the first holder may still answer */
            self->kept[self->kept_count] = tr_reply_take(ctx);
            tr_reply_give(self->kept[self->kept_count++], self->others[r / 256 % MESH]);
        }
        return TR_GO;
    case 5:
        tr_is_cancelled(ctx);
        break;
    default:
        break;
    }
    while (self->kept_count > 0 && r % 2 == 0)
        tr_reply_send(&self->kept[--self->kept_count], 0, &r, sizeof r);
    tr_reply(ctx, 0, &r, sizeof r);
    return TR_GO;
}

static enum tr_next mesh_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct mesh *self = state;

    (void)ctx;
    if (event->status == TR_ACCEPTED)
        return TR_GO;
    CHECK(self->open > 0);
    self->open--;
    asks_ended++;
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

struct poker {
    tr_sender *others;
    struct tr_cancel *const *tokens;
    uint64_t seed, count;
};

/* Keeps the mesh busy from outside. */
static void *poke(void *argument)
{
    struct poker *poker = argument;
    uint64_t seed = poker->seed;

    for (uint64_t i = 0; i < poker->count; i++) {
        uint64_t r = draw(&seed);
        struct mesh_message m = { false, (uint32_t)(r % 4) };
        tr_sender to = poker->others[r / 8 % MESH];
        struct tr_future *future = NULL;
        int rc;

        if (r / 128 % 2 == 0) {
            rc = tr_tell(to, &m, sizeof m);
            CHECK_MSG(rc == 0 || rc == TR_EFULL, "%s", tr_error_name(rc));
            continue;
        }
        m.asked = true;
        if (tr_ask_future(to, &m, sizeof m, 1 + r / 256 % 2000000, &future) < 0)
            continue;
        if (r / 1024 % 4 == 0)
            tr_future_cancel(future);
        if (r / 1024 % 4 == 1)
            tr_future_wait(future, NULL, 0, NULL, 0);
        tr_future_drop(&future);
    }
    return NULL;
}

TEST_LONG(stress, mesh_of_asks_ends_every_ask_once, 60)
{
    for (uint32_t workers = 2; workers <= 4; workers++) {
        struct tr_system *system = system_of_workers(workers);
        tr_sender others[MESH];
        struct tr_done *dones[MESH];
        struct tr_cancel *tokens[4];
        struct poker pokers[2];
        pthread_t threads[2];
        uint64_t open = 0;

        asks_sent = asks_ended = deadlocks = 0;
        CHECK_EQ_INT(tr_cancel_create(NULL, &tokens[0]), 0);
        for (int i = 1; i < 4; i++)
            CHECK_EQ_INT(tr_cancel_create(tokens[i - 1], &tokens[i]), 0);
        for (int i = 0; i < MESH; i++)
            CHECK_EQ_INT(
                tr_spawn(system, &mesh_type, &(struct mesh){ .others = others, .tokens = tokens },
                    &(struct tr_spawn_options){ .ret_done = &dones[i],
                        .box = { .capacity = 4 + 4 * (uint32_t)(i % 3),
                            .full = (enum tr_full)(i % 4) } },
                    &others[i]),
                0);
        for (int i = 0; i < 2; i++) {
            pokers[i] = (struct poker){ others, tokens, 77 + 13 * (uint64_t)i, big(2000) };
            CHECK_EQ_INT(pthread_create(&threads[i], NULL, poke, &pokers[i]), 0);
        }
        tr_cancel_fire(tokens[3]);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        tr_cancel_fire(tokens[0]);
        /* A stopping actor answers the handles it took: so every ask ends. */
        for (int i = 0; i < MESH; i++)
            CHECK_EQ_INT(tr_stop(tr_sender_weaken(others[i])), 0);
        for (int i = 0; i < MESH; i++) {
            struct mesh state;

            CHECK_EQ_INT(tr_done_wait(&dones[i], &state, NULL, 0), 0);
            open += state.open;
        }
        for (int i = 0; i < MESH; i++)
            tr_sender_drop(&others[i]);
        for (int i = 0; i < 4; i++)
            tr_cancel_destroy(&tokens[i]);
        CHECK_EQ_U64(open, 0);
        CHECK_EQ_U64(asks_sent, asks_ended);
        CHECK(asks_sent > 0);
        CHECK_EQ_U64(stats_of(system).deadlocks >= deadlocks, true);
        finish_system(&system);
    }
}

/* ---- senders come and go -------------------------------------------------------------------- */

struct churner {
    tr_sender mine;
    tr_weak weak;
    uint64_t count, sent, refused;
};

static void *churn(void *argument)
{
    struct churner *churner = argument;

    for (uint64_t i = 0; i < churner->count; i++) {
        tr_sender clone = tr_sender_clone(churner->mine, "clone"), upgraded;

        CHECK_EQ_INT(tr_weak_upgrade(churner->weak, "upgraded", &upgraded), 0);
        if (puppet_tell(i % 2 == 0 ? clone : upgraded, puppet_nothing, 0) == 0)
            churner->sent++;
        else
            churner->refused++;
        tr_sender_drop(&clone);
        tr_sender_drop(&upgraded);
    }
    tr_sender_drop(&churner->mine);
    /* Closed from the last drop on: others may still hold one, so this may or may not be refused.
     */
    for (int i = 0; i < 10; i++) {
        tr_sender upgraded;

        if (tr_weak_upgrade(churner->weak, "upgraded", &upgraded) == 0)
            tr_sender_drop(&upgraded);
    }
    return NULL;
}

TEST_LONG(stress, clones_and_upgrades_of_many_threads_end_the_actor_once, 60)
{
    for (uint64_t round = 0; round < big(30); round++) {
        struct tr_system *system = system_of_workers(2);
        struct churner churners[THREADS];
        pthread_t threads[THREADS];
        struct notes notes = { 0 };
        struct tr_done *done;
        enum tr_why why;
        uint64_t sent = 0;
        tr_sender sender = puppet_spawn_with(system, (struct puppet){ .notes = &notes },
            &(struct tr_spawn_options){ .ret_done = &done });

        for (int i = 0; i < THREADS; i++) {
            churners[i] = (struct churner){ .mine = tr_sender_clone(sender, "thread"),
                .weak = tr_sender_weaken(sender),
                .count = 200 };
            CHECK_EQ_INT(pthread_create(&threads[i], NULL, churn, &churners[i]), 0);
        }
        tr_sender_drop(&sender);
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            sent += churners[i].sent;
        }
        CHECK_EQ_INT(tr_weak_upgrade(churners[0].weak, "nobody", &sender), TR_ECLOSED);
        CHECK_EQ_INT(tr_done_wait(&done, NULL, &why, 0), 0);
        CHECK_EQ_INT(why, TR_WHY_DONE);
        CHECK(notes.stopped);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        CHECK_EQ_U64(stats_of(system).handled, sent);
        finish_system(&system);
    }
}

/* ---- parking -------------------------------------------------------------------------------- */

/* Send what is left of the number to the peer, and come back when it is full. */
static enum tr_next produce(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    for (; m->number > 0; m->number--)
        if (puppet_tell(self->peer, puppet_nothing, 0) == TR_EFULL) {
            tr_again(ctx);
            break;
        }
    return TR_GO;
}

TEST_LONG(stress, producers_and_threads_share_a_slow_sink, 60)
{
    for (uint32_t workers = 2; workers <= 4; workers++) {
        struct tr_system *system = system_of_workers(workers);
        uint64_t count = big(2000);
        tr_sender sink = puppet_spawn_with(
            system, (struct puppet){ 0 }, &(struct tr_spawn_options){ .box.capacity = 4 });

        for (int i = 0; i < 8; i++) {
            tr_sender producer = puppet_spawn_with(
                system, (struct puppet){ .peer = tr_sender_clone(sink, "producer") }, NULL);

            CHECK_EQ_INT(puppet_tell(producer, produce, count), 0);
            tr_sender_drop(&producer);
        }
        for (uint64_t i = 0; i < count; i++)
            CHECK_EQ_INT(tr_tell_wait(sink, &(struct puppet_message){ .run = puppet_nothing },
                             sizeof(struct puppet_message), 0),
                0);
        tr_sender_drop(&sink);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        CHECK_EQ_U64(stats_of(system).handled, 9 * count + 8);
        finish_system(&system);
    }
}

static enum tr_next pass_round(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)ctx;
    if (m->number > 0)
        for (int i = 0; i < 2; i++)
            puppet_tell(self->peer, pass_round, m->number - 1); /* a full one takes no more: fine */
    return TR_GO;
}

TEST_LONG(stress, circles_of_full_boxes_never_deadlock, 60)
{
    for (uint64_t round = 0; round < big(20); round++) {
        struct tr_system *system = system_of_workers(2);
        tr_sender ring[4];

        for (int i = 0; i < 4; i++)
            ring[i] = puppet_spawn_with(
                system, (struct puppet){ 0 }, &(struct tr_spawn_options){ .box.capacity = 3 });
        for (int i = 0; i < 4; i++)
            puppet_introduce(ring[i], ring[(i + 1) % 4]);
        for (int i = 0; i < 4; i++)
            puppet_tell(ring[i], pass_round, 12);
        for (int i = 0; i < 4; i++) { /* answered only if it is not stuck */
            int rc;

            do
                rc = tr_ask_wait(ring[i], &(struct puppet_message){ .run = puppet_echo },
                    sizeof(struct puppet_message), NULL, 0, 0);
            while (rc == TR_EFULL);
            CHECK_EQ_INT(rc, 0);
        }
        for (int i = 0; i < 4; i++) {
            CHECK_EQ_INT(puppet_tell_lane(ring[i], puppet_drop_peer, 0, TR_CONTROL), 0);
            tr_sender_drop(&ring[i]);
        }
        finish_system(&system);
    }
}

/* ---- holds race ----------------------------------------------------------------------------- */

/* Hold on the peer, which only echoes; again and again, as often as the number says. Then let go of
 * it. */
static enum tr_next hold_again(
    struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    int rc = tr_ask(ctx, self->peer, &(struct puppet_message){ .run = puppet_echo },
        sizeof(struct puppet_message), &(struct tr_ask_options){ .hold = true });

    CHECK_MSG(rc == 0 || rc == TR_EDEADLOCK, "%s", tr_error_name(rc));
    if (rc == TR_EDEADLOCK)
        deadlocks++;
    if (m->number > 1) {
        struct puppet_message next = { .run = hold_again, .number = m->number - 1 };

        CHECK_EQ_INT(tr_self_tell(ctx, &next, sizeof next), 0);
    } else {
        tr_sender_drop(&self->peer);
    }
    return TR_GO;
}

TEST_LONG(stress, actors_that_hold_on_each_other_are_refused_or_answered, 60)
{
    for (uint32_t count = 2; count <= 4; count++) {
        struct tr_system *system = system_of_workers(2);
        tr_sender ring[4];

        deadlocks = 0;
        for (uint32_t i = 0; i < count; i++)
            ring[i] = puppet_spawn(system, NULL, NULL);
        for (uint32_t i = 0; i < count; i++)
            puppet_introduce(ring[i], ring[(i + 1) % count]);
        for (uint32_t i = 0; i < count; i++)
            CHECK_EQ_INT(puppet_tell(ring[i], hold_again, big(2000)), 0);
        for (uint32_t i = 0; i < count; i++)
            CHECK_EQ_INT(tr_ask_wait(ring[i], &(struct puppet_message){ .run = puppet_echo },
                             sizeof(struct puppet_message), NULL, 0, 0),
                0);
        /* A circle of peers, until the last of their own messages opens it. */
        for (uint32_t i = 0; i < count; i++)
            tr_sender_drop(&ring[i]);
        CHECK_EQ_INT(tr_system_join(system, 0), 0);
        CHECK_EQ_U64(stats_of(system).deadlocks, deadlocks);
        finish_system(&system);
    }
}

/* ---- timers --------------------------------------------------------------------------------- */

struct timed {
    uint64_t set, fired, stopped;
    uint64_t ids[16];
    uint64_t rounds;
};

static enum tr_next timed_round(struct timed *self, struct tr_context *ctx)
{
    if (self->rounds == 0)
        return self->set == self->fired + self->stopped ? TR_STOP : TR_GO;
    self->rounds--;
    for (int i = 0; i < 4; i++) {
        uint64_t r = tr_random(ctx);

        if (self->ids[r % 16] != 0 && tr_timer_stop(ctx, self->ids[r % 16]))
            self->stopped++;
        CHECK_EQ_INT(tr_after(ctx, r / 16 % 2000000, 1, &self->ids[r % 16]), 0);
        self->set++;
    }
    return TR_GO;
}

static enum tr_next timed_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)message;
    return timed_round(state, ctx);
}

static enum tr_next timed_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct timed *self = state;

    (void)event;
    self->fired++;
    return timed_round(self, ctx);
}

TEST_LONG(stress, every_timer_is_stopped_or_fires, 60)
{
    static const struct tr_type type = { .name = "timed",
        .state_size = sizeof(struct timed),
        .handle = timed_handle,
        .event = timed_event };
    struct tr_system *system = system_of_workers(3);
    struct tr_done *dones[24];
    tr_sender senders[24];

    for (int i = 0; i < 24; i++) {
        CHECK_EQ_INT(tr_spawn(system, &type, &(struct timed){ .rounds = big(200) },
                         &(struct tr_spawn_options){ .ret_done = &dones[i] }, &senders[i]),
            0);
        CHECK_EQ_INT(tr_tell(senders[i], NULL, 0), 0);
    }
    for (int i = 0; i < 24; i++) {
        struct timed state;

        CHECK_EQ_INT(tr_done_wait(&dones[i], &state, NULL, 0), 0);
        CHECK_EQ_U64(state.set, state.fired + state.stopped);
        CHECK_EQ_U64(state.rounds, 0);
        tr_sender_drop(&senders[i]);
    }
    CHECK_EQ_U64(stats_of(system).timers, 0);
    finish_system(&system);
}

/* ---- dropping the oldest -------------------------------------------------------------------- */

enum { TOKENS = 20000 };
static _Atomic unsigned char taken[TOKENS], fate[TOKENS];

struct owned {
    uint32_t index;
    uint32_t unused;
};

static enum tr_next owner_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct owned *m = message;

    (void)state;
    fate[m->index]++;
    if (tr_is_asked(ctx))
        tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

static void owner_drop(void *message)
{
    const struct owned *m = message;

    fate[m->index]++;
}

static const struct tr_type owner_type = { .name = "owner",
    .message_size = sizeof(struct owned),
    .handle = owner_handle,
    .message_drop = owner_drop };

struct dropper {
    tr_sender *to;
    uint32_t first, count;
};

static void *send_owned(void *argument)
{
    struct dropper *dropper = argument;

    for (uint32_t i = dropper->first; i < dropper->first + dropper->count; i++) {
        struct owned m = { i, 0 };
        struct tr_future *future = NULL;
        tr_sender to = dropper->to[i % 4];
        int rc;

        if (i % 7 == 0)
            rc = tr_ask_future(to, &m, sizeof m, i % 2 == 0 ? 1000000 : 0, &future);
        else
            rc = tr_tell(to, &m, sizeof m);
        taken[i] = rc == 0;
        if (i % 14 == 0 && future != NULL) {
            int status = tr_future_wait(future, NULL, 0, NULL, 0);

            CHECK_MSG(
                status == 0 || status == TR_EFULL || status == TR_ETIMEOUT || status == TR_ECLOSED,
                "%s", tr_error_name(status));
        }
        tr_future_drop(&future);
    }
    return NULL;
}

/* Asks an owner with a token that somebody else fires. */
struct cancelled_asker {
    tr_sender *to;
    struct tr_cancel *token;
    uint32_t next, last;
};

static enum tr_next ask_cancelled(void *state, struct tr_context *ctx, void *message)
{
    struct cancelled_asker *self = state;

    (void)message;
    for (int i = 0; i < 20 && self->next < self->last; i++, self->next++) {
        struct owned m = { self->next, 0 };

        taken[self->next] = tr_ask(ctx, self->to[i % 4], &m, sizeof m,
                                &(struct tr_ask_options){ .cancel = self->token }) == 0;
    }
    if (self->next < self->last)
        CHECK_EQ_INT(tr_self_tell(ctx, NULL, 0), 0);
    return TR_GO;
}

static void *fire_late(void *argument)
{
    tr_cancel_fire(argument);
    return NULL;
}

TEST_LONG(stress, boxes_of_every_policy_give_each_message_one_fate, 60)
{
    static const struct tr_type asker_type = {
        .name = "asker", .state_size = sizeof(struct cancelled_asker), .handle = ask_cancelled
    };
    enum { SENDERS = 3, EACH = 4000, ASKED = 4000 };

    for (uint64_t round = 0; round < big(3); round++) {
        struct tr_system *system = system_of_workers(2);
        struct dropper droppers[SENDERS];
        struct tr_cancel *tokens[8];
        pthread_t threads[SENDERS], firing[8];
        tr_sender to[4];

        memset(taken, 0, sizeof taken);
        memset(fate, 0, sizeof fate);
        for (int i = 0; i < 4; i++)
            CHECK_EQ_INT(
                tr_spawn(system, &owner_type, NULL,
                    &(struct tr_spawn_options){ .box = { .capacity = 4, .full = (enum tr_full)i } },
                    &to[i]),
                0);
        for (uint32_t i = 0; i < 8; i++) {
            struct cancelled_asker state = { .to = to,
                .next = SENDERS * EACH + i * (ASKED / 8),
                .last = SENDERS * EACH + (i + 1) * (ASKED / 8) };
            tr_sender asker;

            CHECK_EQ_INT(tr_cancel_create(NULL, &tokens[i]), 0);
            state.token = tokens[i];
            CHECK_EQ_INT(tr_spawn(system, &asker_type, &state, NULL, &asker), 0);
            CHECK_EQ_INT(tr_tell(asker, NULL, 0), 0);
            tr_sender_drop(&asker);
        }
        for (uint32_t i = 0; i < SENDERS; i++) {
            droppers[i] = (struct dropper){ to, i * EACH, EACH };
            CHECK_EQ_INT(pthread_create(&threads[i], NULL, send_owned, &droppers[i]), 0);
        }
        for (int i = 0; i < 8; i++)
            CHECK_EQ_INT(pthread_create(&firing[i], NULL, fire_late, tokens[i]), 0);
        for (uint32_t i = 0; i < SENDERS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(firing[i], NULL);
        /* The askers end when they have asked all and all have ended; they borrow these senders
         * until then. */
        while (stats_of(system).live > 4)
            CHECK_EQ_INT(tr_ask_wait(to[0], &(struct owned){ TOKENS - 1, 0 }, sizeof(struct owned),
                             NULL, 0, 0) == TR_ECLOSED,
                false);
        fate[TOKENS - 1] = 0;
        for (int i = 0; i < 4; i++)
            tr_sender_drop(&to[i]);
        finish_system(&system);
        for (int i = 0; i < 8; i++)
            tr_cancel_destroy(&tokens[i]);
        for (uint32_t i = 0; i < TOKENS; i++)
            CHECK_MSG(taken[i] == fate[i], "message %u: taken %u, fates %u", i, taken[i], fate[i]);
    }
}

/* ---- ends ----------------------------------------------------------------------------------- */

struct asker_of_the_dying {
    _Atomic uint64_t *ended;
    tr_sender to;
};

/* Ask an actor that may be killed at any time; the ask ends in every case. */
static void *ask_the_dying(void *argument)
{
    struct asker_of_the_dying *asker = argument;

    for (int i = 0; i < 50; i++) {
        struct puppet_message m = { .run = i % 3 == 0 ? puppet_take : puppet_echo };
        int rc = tr_ask_wait(asker->to, &m, sizeof m, NULL, 0, 0);

        CHECK_MSG(rc == 0 || rc == TR_ECLOSED || rc == TR_EDROPPED || rc == TR_ECRASHED, "%s",
            tr_error_name(rc));
        if (rc != 0)
            break;
        if (i % 3 == 0)
            break; /* nobody answers a taken one but the end */
    }
    atomic_fetch_add(asker->ended, 1);
    tr_sender_drop(&asker->to);
    return NULL;
}

TEST_LONG(stress, askers_of_actors_that_are_killed_or_crash_are_all_answered, 60)
{
    for (uint64_t round = 0; round < big(60); round++) {
        struct tr_system *system = system_of_workers(2);
        _Atomic uint64_t ended = 0;
        struct asker_of_the_dying askers[THREADS];
        pthread_t threads[THREADS];
        tr_sender sender = puppet_spawn(system, NULL, NULL);

        for (int i = 0; i < THREADS; i++) {
            askers[i] = (struct asker_of_the_dying){ &ended, tr_sender_clone(sender, "thread") };
            CHECK_EQ_INT(pthread_create(&threads[i], NULL, ask_the_dying, &askers[i]), 0);
        }
        switch (round % 4) {
        case 0:
            CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender)), 0);
            break;
        case 1:
            CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender)), 0);
            break;
        case 2:
            CHECK_EQ_INT(puppet_tell(sender, puppet_fail, 0), 0);
            break;
        default:
            CHECK_EQ_INT(puppet_tell(sender, puppet_quit, 0), 0);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        CHECK_EQ_U64(ended, THREADS);
        CHECK(tr_sender_is_closed(sender));
        tr_sender_drop(&sender);
        finish_system(&system);
    }
}

/* The handle is answered from a thread while its actor ends: one of the two answers, once. */
static tr_reply_handle handed_out;
static _Atomic int is_handed_out;

static enum tr_next hand_out(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    (void)m;
    handed_out = tr_reply_take(ctx);
    atomic_store(&is_handed_out, 1);
    return TR_GO;
}

static void *answer_or_look(void *argument)
{
    tr_reply_handle handle = handed_out;
    int rc;

    for (int i = 0; i < 10; i++) {
        tr_reply_is_cancelled(handle);
        tr_reply_send_accept(handle);
    }
    rc = tr_reply_send(&handle, 0, NULL, 0);
    CHECK(rc == 0 || rc == TR_EREPLIED);
    *(int *)argument = rc;
    return NULL;
}

TEST_LONG(stress, taken_replies_race_with_the_end_of_their_actor, 60)
{
    for (uint64_t round = 0; round < big(200); round++) {
        struct tr_system *system = system_of_workers(1);
        tr_sender sender = puppet_spawn(system, NULL, NULL);
        tr_sender heir = puppet_spawn(system, NULL, NULL);
        struct tr_future *future;
        pthread_t threads[2];
        int rcs[2], status;

        atomic_store(&is_handed_out, 0);
        future = puppet_future(sender, hand_out, 0, 0);
        while (!atomic_load(&is_handed_out)) {
        }
        for (int i = 0; i < 2; i++)
            CHECK_EQ_INT(pthread_create(&threads[i], NULL, answer_or_look, &rcs[i]), 0);
        if (round % 2 == 0)
            tr_reply_give(handed_out, heir);
        tr_sender_drop(&sender); /* which ends it */
        tr_sender_drop(&heir);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        status = puppet_end(&future, NULL);
        CHECK(rcs[0] != 0 || rcs[1] != 0); /* not both */
        CHECK_MSG(status == (rcs[0] == 0 || rcs[1] == 0 ? 0 : TR_EDROPPED) ||
                      (round % 2 == 0 && status == TR_ECLOSED),
            "%s", tr_error_name(status));
        finish_system(&system);
    }
}

/* ---- births and deaths ---------------------------------------------------------------------- */

/* Spawn two more until the number is used up; each ends by itself. */
static enum tr_next multiply(struct puppet *self, struct tr_context *ctx, struct puppet_message *m)
{
    (void)self;
    for (int i = 0; i < 2 && m->number > 0; i++) {
        tr_sender child = puppet_spawn(tr_system_of(ctx), NULL, NULL);

        CHECK_EQ_INT(puppet_tell(child, multiply, m->number - 1), 0);
        tr_sender_drop(&child);
    }
    return TR_GO;
}

TEST_LONG(stress, trees_of_actors_come_and_go_on_all_workers, 60)
{
    struct tr_system *system = system_of_workers(4);
    uint64_t depth = 12;

    for (int i = 0; i < 4; i++) {
        tr_sender root = puppet_spawn(system, NULL, NULL);

        CHECK_EQ_INT(puppet_tell(root, multiply, depth), 0);
        tr_sender_drop(&root);
    }
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_U64(stats_of(system).spawned, 4 * ((UINT64_C(2) << depth) - 1));
    finish_system(&system);
}

TEST_LONG(stress, a_system_destroyed_while_it_is_busy_drops_every_message_once, 60)
{
    for (uint64_t round = 0; round < big(20); round++) {
        struct tr_system *system = system_of_workers(2);
        tr_sender to[4];

        memset(taken, 0, sizeof taken);
        memset(fate, 0, sizeof fate);
        for (int i = 0; i < 4; i++)
            CHECK_EQ_INT(tr_spawn(system, &owner_type, NULL,
                             &(struct tr_spawn_options){ .box.capacity = 1000 }, &to[i]),
                0);
        for (uint32_t i = 0; i < 3000; i++)
            taken[i] = tr_tell(to[i % 4], &(struct owned){ i, 0 }, sizeof(struct owned)) == 0;
        tr_system_destroy(&system);
        for (uint32_t i = 0; i < 3000; i++)
            CHECK_EQ_INT(taken[i], fate[i]);
    }
}
