/* SPDX-License-Identifier: Apache-2.0 */
/* Every fallible call fails once: the first, the second, … until a run passes untouched. Each time
 * the error is told, nothing leaks (a sanitized build looks), nobody hangs, and the system works
 * afterwards. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "stage.h"

static struct journal unused;

static struct player quiet_player(void)
{
    return (struct player){ .quiet = true, .journal = &unused };
}

static bool is_expected(int rc)
{
    return rc == 0 || rc == TR_ENOMEM || rc == TR_ELIMIT;
}

/* The worst that happened in a run; handlers and scenarios report here. */
static int worst;

static int noted(int rc)
{
    CHECK_MSG(is_expected(rc), "%s", tr_error_name(rc));
    if (rc < 0 && worst == 0)
        worst = rc;
    return rc;
}

static struct tr_system *driven(void)
{
    struct tr_system *system = NULL;
    static const int signals[] = { SIGUSR1, 0 };

    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .quiet = true, .signals = signals },
            &system),
        0);
    return system;
}

static void settle(struct tr_system *system)
{
    while (tr_system_step(system, 100) > 0) {
    }
}

/* It still spawns, sends, asks and ends. */
static void probe(struct tr_system *system)
{
    tr_sender sender = cast(system, quiet_player(), NULL);

    tell(sender, act_add, 1);
    CHECK_EQ_U64(add(sender, 1), 2);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    check_conservation(system);
}

/* Walk a scenario, each time in a system made for it. Not every failure must be told (a clone
 * without its name is still a clone), but some. */
static void walk(void (*scenario)(struct tr_system *system))
{
    for (uint64_t repeat = 1; repeat <= 3; repeat += 2) {
        uint64_t failures = 0, calls, n = 0;

        do {
            struct tr_system *system = driven();

            worst = 0;
            base_fault_countdown(++n, repeat);
            scenario(system);
            calls = base_fault_countdown(0, 0);
            failures += worst < 0;
            settle(system);
            probe(system);
            tr_system_destroy(&system);
            CHECK_MSG(n < 5000, "it does not come to an end");
        } while (calls >= n);
        CHECK_EQ_INT(worst, 0); /* the last run was not touched */
        CHECK_MSG(n > 1, "nothing in it can fail");
        CHECK_MSG(failures > 0, "none of %llu failures was told", (unsigned long long)n - 1);
        printf("# %llu calls failed %llu in a row, %llu told\n", (unsigned long long)n - 1,
            (unsigned long long)repeat, (unsigned long long)failures);
    }
}

/* ---- systems -------------------------------------------------------------------------------- */

static void walk_create(const struct tr_system_options *options)
{
    uint64_t calls, n = 0;
    int rc;

    do {
        struct tr_system *system = NULL;

        base_fault_countdown(++n, 1);
        rc = tr_system_create(options, &system);
        calls = base_fault_countdown(0, 0);
        CHECK_MSG(is_expected(rc), "%s", tr_error_name(rc));
        CHECK(rc == 0 || calls >= n);
        CHECK_EQ_INT(system == NULL, rc < 0);
        if (rc == 0)
            probe(system);
        tr_system_destroy(&system);
    } while (calls >= n);
    CHECK_EQ_INT(rc, 0);
    CHECK(n > 3);
}

TEST(faults, creating_a_system)
{
    static const int signals[] = { SIGUSR1, SIGUSR2, 0 };

    walk_create(&(struct tr_system_options){ .driven = true, .quiet = true });
    walk_create(&(struct tr_system_options){ .workers = 3, .quiet = true });
    walk_create(&(struct tr_system_options){ .workers = 1, .quiet = true, .signals = signals });
}

TEST(faults, creating_a_simulation)
{
    uint64_t calls, n = 0;
    int rc;

    do {
        struct tr_sim *sim = NULL;

        base_fault_countdown(++n, 1);
        rc = tr_sim_create(&(struct tr_sim_options){ .seed = 1 }, &sim);
        calls = base_fault_countdown(0, 0);
        CHECK_MSG(is_expected(rc), "%s", tr_error_name(rc));
        CHECK(rc == 0 || calls >= n);
        CHECK_EQ_INT(sim == NULL, rc < 0);
        if (rc == 0)
            probe(tr_sim_system(sim));
        tr_sim_destroy(&sim);
    } while (calls >= n);
    CHECK_EQ_INT(rc, 0);
    CHECK(n > 3);
}

TEST(faults, running_on_this_thread)
{
    uint64_t calls, n = 0;

    do {
        struct player player = quiet_player();
        struct tr_box *box = NULL;
        int rc;

        worst = 0;
        base_fault_countdown(++n, 1);
        if (noted(tr_box_create(NULL, &plain_player_type, NULL, &box)) == 0) {
            tr_sender sender = tr_box_sender(box, "test"), clone = tr_sender_clone(sender, "clone");

            rc = noted(tr_tell(
                sender, &(struct order){ .act = act_add, .number = 3 }, sizeof(struct order)));
            tr_sender_drop(&sender);
            tr_sender_drop(&clone);
            CHECK_EQ_INT(tr_run(box, &player), 0);
            CHECK_EQ_U64(player.number, rc == 0 ? 3 : 0);
            tr_box_destroy(&box);
        }
        calls = base_fault_countdown(0, 0);
    } while (calls >= n);
    CHECK(n > 1);
    CHECK_EQ_INT(worst, 0);
}

/* ---- spawning and sending ------------------------------------------------------------------- */

struct large_player {
    struct player player;
    char more[5000];
};

static struct tr_type large_type;

static void spawn_many(struct tr_system *system)
{
    struct large_player large = { .player = quiet_player() };
    const struct tr_spawn_options options = {
        .name = "somebody", .grace_ns = SECOND, .box = { .age_ns_max = SECOND, .capacity = 10 }
    };
    struct tr_done *done = NULL;
    tr_sender sender;

    if (noted(tr_spawn(system, &player_type, &large, &options, &sender)) == 0)
        tr_sender_drop(&sender);
    large_type = player_type;
    large_type.state_size = sizeof large;
    if (noted(tr_spawn(system, &large_type, &large, &(struct tr_spawn_options){ .ret_done = &done },
            &sender)) == 0) {
        tr_sender_drop(&sender);
        settle(system);
        CHECK_EQ_INT(tr_done_wait(&done, &large, NULL, 0), 0);
    }
}

TEST(faults, spawning)
{
    walk(spawn_many);
}

struct large_message {
    player_fn act; /* so that it is an order to begin with */
    char more[1000];
};

static enum tr_next large_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    CHECK_EQ_INT(((struct large_message *)message)->more[999], 7);
    return TR_GO;
}

static const struct tr_type large_message_type = {
    .name = "large",
    .message_size = sizeof(struct large_message),
    .handle = large_handle,
};

static void send_many(struct tr_system *system)
{
    struct large_message large = { .more[999] = 7 };
    struct order order = { .act = act_nothing };
    struct tr_slot slot;
    tr_sender to, clone, to_large;

    if (noted(tr_spawn(system, &player_type, &(struct player){ .quiet = true, .journal = &unused },
            NULL, &to)) < 0)
        return;
    if (noted(tr_spawn(system, &large_message_type, NULL, NULL, &to_large)) < 0) {
        tr_sender_drop(&to);
        return;
    }
    clone = tr_sender_clone(to, "clone"); /* cannot fail: memory costs it its name at most */
    noted(tr_tell(clone, &order, sizeof order));
    for (int lane = TR_INTERACTIVE; lane <= TR_BACKGROUND; lane++)
        noted(tr_tell_with(to, &order, sizeof order,
            &(struct tr_send_options){ .lane = (enum tr_lane)lane, .timeout_ns = SECOND }));
    noted(tr_tell(to_large, &large, sizeof large));
    if (noted(tr_reserve(to_large, sizeof large, &slot)) == 0) {
        memcpy(slot.message, &large, sizeof large);
        noted(tr_slot_commit(&slot));
    }
    settle(system);
    noted(tr_stop(tr_sender_weaken(to)));
    settle(system);
    noted(tr_kill(tr_sender_weaken(to_large)));
    settle(system);
    tr_sender_drop(&to);
    tr_sender_drop(&clone);
    tr_sender_drop(&to_large);
}

TEST(faults, sending)
{
    walk(send_many);
}

/* ---- asking --------------------------------------------------------------------------------- */

static enum tr_next act_reply_large(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    static const char large[2000];

    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_reply(ctx, 0, large, sizeof large), 0);
    return TR_GO;
}

static enum tr_next act_take_if_possible(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    tr_reply_handle handle = tr_reply_take(ctx);

    (void)order;
    if (handle.reply == NULL) {
        noted(TR_ENOMEM);
        CHECK(tr_is_asked(ctx)); /* still to be answered here */
        CHECK_EQ_INT(tr_reply(ctx, 0, NULL, 0), 0);
        return TR_GO;
    }
    tr_reply_drop(&self->reply);
    self->reply = handle;
    return TR_GO;
}

/* Ask the peer in every way there is. */
static enum tr_next act_ask_all(struct player *self, struct tr_context *ctx, struct order *order)
{
    static const player_fn acts[] = { act_add, act_reply_large, act_take_if_possible };
    struct tr_cancel *cancel = NULL;

    (void)order;
    if (noted(tr_cancel_create(NULL, &cancel)) < 0)
        return TR_GO;
    for (int i = 0; i < 3; i++) {
        struct order asked = { .act = acts[i] };

        if (noted(tr_ask(ctx, self->peer, &asked, sizeof asked, NULL)) == 0)
            self->number++;
        if (noted(tr_ask(ctx, self->peer, &asked, sizeof asked,
                &(struct tr_ask_options){ .timeout_ns = SECOND })) == 0)
            self->number++;
        if (noted(tr_ask(ctx, self->peer, &asked, sizeof asked,
                &(struct tr_ask_options){ .cancel = cancel })) == 0)
            self->number++;
    }
    if (noted(tr_ask(ctx, self->peer, &(struct order){ .act = act_add }, sizeof(struct order),
            &(struct tr_ask_options){ .hold = true })) == 0)
        self->number++;
    tr_cancel_fire(cancel);
    tr_cancel_destroy(&cancel);
    return TR_GO;
}

/* Every ask that was accepted is answered once. */
static enum tr_next on_answer(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_REPLY);
    CHECK_MSG(event->status == 0 || event->status == TR_ECANCELLED ||
                  event->status == TR_EDROPPED || event->status == TR_ENOMEM,
        "%s", tr_error_name(event->status));
    CHECK(self->number > 0);
    self->number--;
    return TR_GO;
}

static void asker_finish(void *state)
{
    struct player *self = state;

    CHECK_EQ_U64(self->number, 0);
    tr_sender_drop(&self->peer);
}

static const struct tr_type asker_type = {
    .name = "asker",
    .message_size = sizeof(struct order),
    .state_size = sizeof(struct player),
    .handle = player_handle,
    .event = player_event,
    .finish = asker_finish,
};

/* Memory is back: the operations that failed without it are tried again. */
static void kill_surely(tr_sender sender)
{
    while (noted(tr_kill(tr_sender_weaken(sender))) < 0) {
    }
}

static int spawn_player(struct tr_system *system, tr_sender *ret_sender)
{
    struct player player = quiet_player();

    return noted(tr_spawn(system, &player_type, &player, NULL, ret_sender));
}

/* An asker with somebody to ask. */
static int spawn_pair(struct tr_system *system, tr_sender *ret_asker, tr_sender *ret_asked)
{
    struct player asker = quiet_player();
    int rc = spawn_player(system, ret_asked);

    if (rc < 0)
        return rc;
    asker.peer = tr_sender_clone(*ret_asked, "asker");
    asker.on_event = on_answer;
    rc = noted(tr_spawn(system, &asker_type, &asker, NULL, ret_asker));
    if (rc < 0) {
        tr_sender_drop(&asker.peer);
        tr_sender_drop(ret_asked);
    }
    return rc;
}

static void ask_all(struct tr_system *system)
{
    tr_sender asker, asked;

    if (spawn_pair(system, &asker, &asked) < 0)
        return;
    noted(tr_tell(asker, &(struct order){ .act = act_ask_all }, sizeof(struct order)));
    settle(system);
    kill_surely(asked); /* so that what it has taken is answered */
    tr_sender_drop(&asked);
    tr_sender_drop(&asker);
    settle(system);
}

TEST(faults, asking_from_an_actor)
{
    walk(ask_all);
}

static void ask_futures(struct tr_system *system)
{
    static const player_fn acts[] = { act_add, act_reply_large, act_take_if_possible };
    struct tr_future *futures[6] = { NULL };
    tr_sender to;

    if (spawn_player(system, &to) < 0)
        return;
    for (int i = 0; i < 6; i++)
        noted(tr_ask_future(to, &(struct order){ .act = acts[i % 3] }, sizeof(struct order),
            i < 3 ? 0 : SECOND, &futures[i]));
    settle(system);
    kill_surely(to);
    settle(system);
    for (int i = 0; i < 6; i++)
        if (futures[i] != NULL) {
            CHECK(tr_future_is_ended(futures[i]));
            tr_future_drop(&futures[i]);
        }
    tr_sender_drop(&to);
}

TEST(faults, asking_from_a_thread)
{
    walk(ask_futures);
}

/* ---- stash, timers, work, descriptors ------------------------------------------------------- */

static enum tr_next act_stash_if_possible(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    if (order->number++ == 0)
        noted(tr_stash(ctx));
    return TR_GO;
}

static enum tr_next act_unstash(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_unstash(ctx);
    CHECK(tr_self_name(ctx) != NULL);
    return TR_GO;
}

static void stash_some(struct tr_system *system)
{
    tr_sender to;

    if (spawn_player(system, &to) < 0)
        return;
    for (int i = 0; i < 3; i++)
        noted(tr_tell(to, &(struct order){ .act = act_stash_if_possible }, sizeof(struct order)));
    noted(tr_tell(to, &(struct order){ .act = act_unstash }, sizeof(struct order)));
    settle(system);
    tr_sender_drop(&to);
    settle(system);
}

TEST(faults, stashing)
{
    walk(stash_some);
}

static enum tr_next act_set_timers(struct player *self, struct tr_context *ctx, struct order *order)
{
    uint64_t ids[20];

    (void)self;
    (void)order;
    for (int i = 0; i < 20; i++)
        ids[i] = noted(tr_after(ctx, SECOND, 1, &ids[i])) == 0 ? ids[i] : UINT64_MAX;
    noted(tr_every(ctx, MS, 2, NULL));
    for (int i = 0; i < 20; i += 2)
        if (ids[i] != UINT64_MAX)
            CHECK(tr_timer_stop(ctx, ids[i]));
    return TR_GO;
}

static void set_timers(struct tr_system *system)
{
    tr_sender to;

    if (spawn_player(system, &to) < 0)
        return;
    noted(tr_tell(to, &(struct order){ .act = act_set_timers }, sizeof(struct order)));
    settle(system);
    tr_sender_drop(&to);
    settle(system);
}

TEST(faults, setting_timers)
{
    walk(set_timers);
}

static int work_nothing(void *argument)
{
    (void)argument;
    return 0;
}

static enum tr_next act_offload_some(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    for (int i = 0; i < 6; i++)
        noted(tr_offload(ctx, work_nothing, NULL, NULL, 1));
    return TR_GO;
}

static void offload_some(struct tr_system *system)
{
    tr_sender to;

    if (spawn_player(system, &to) < 0)
        return;
    noted(tr_tell(to, &(struct order){ .act = act_offload_some }, sizeof(struct order)));
    tr_sender_drop(&to);
    CHECK_EQ_INT(tr_system_join(system, 0), 0); /* waits for all of it */
}

TEST(faults, offloading)
{
    walk(offload_some);
}

static enum tr_next act_watch_fds(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    for (int i = 0; i < 2; i++)
        noted(tr_fd_watch(ctx, ((int *)order->pointer)[i], i == 0 ? EPOLLIN : EPOLLOUT, 1));
    noted(tr_signal_watch(ctx, SIGUSR1, 2));
    return TR_GO;
}

static void watch_fds(struct tr_system *system)
{
    tr_sender to;
    int fds[2];

    if (spawn_player(system, &to) < 0)
        return;
    CHECK_EQ_INT(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    CHECK_EQ_INT(write(fds[1], "x", 1), 1);
    noted(
        tr_tell(to, &(struct order){ .act = act_watch_fds, .pointer = fds }, sizeof(struct order)));
    settle(system);
    CHECK_EQ_INT(kill(getpid(), SIGUSR1), 0);
    settle(system);
    settle(system);
    tr_sender_drop(&to);
    settle(system);
    close(fds[0]);
    close(fds[1]);
}

TEST(faults, watching_descriptors_and_signals)
{
    walk(watch_fds);
}

/* A readiness that could not be told for want of memory is told later. */
static uint32_t fd_events;

static enum tr_next on_fd(struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_FD);
    CHECK_EQ_INT(event->ready, EPOLLIN);
    fd_events++;
    return TR_GO;
}

static enum tr_next act_watch_in(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_fd_watch(ctx, (int)order->number, EPOLLIN, 1), 0);
    return TR_GO;
}

TEST(faults, readiness_is_not_lost)
{
    for (uint64_t n = 1; n < 6; n++) {
        struct tr_system *system = driven();
        struct player player = quiet_player();
        tr_sender to;
        int fds[2];

        CHECK_EQ_INT(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
        player.on_event = on_fd;
        to = cast(system, player, NULL);
        tell(to, act_watch_in, (uint64_t)fds[0]);
        settle(system);
        CHECK_EQ_INT(write(fds[1], "x", 1), 1);
        fd_events = 0;
        base_fault_countdown(n, 1);
        settle(system);
        base_fault_countdown(0, 0);
        settle(system);
        settle(system);
        CHECK_EQ_INT(fd_events, 1);
        tr_sender_drop(&to);
        probe(system);
        tr_system_destroy(&system);
        close(fds[0]);
        close(fds[1]);
    }
}

/* ---- watches and links ---------------------------------------------------------------------- */

static enum tr_next act_watch_and_link(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    noted(tr_watch(ctx, order->weak, 1));
    noted(tr_link(ctx, order->weak));
    tr_trap_exits(ctx, true);
    return TR_GO;
}

static void watch_and_link(struct tr_system *system)
{
    tr_sender a, b;

    if (spawn_player(system, &a) < 0)
        return;
    if (spawn_player(system, &b) < 0) {
        tr_sender_drop(&a);
        return;
    }
    noted(tr_tell(a, &(struct order){ .act = act_watch_and_link, .weak = tr_sender_weaken(b) },
        sizeof(struct order)));
    noted(tr_tell(b, &(struct order){ .act = act_watch_and_link, .weak = tr_sender_weaken(a) },
        sizeof(struct order)));
    settle(system);
    noted(tr_tell(b, &(struct order){ .act = act_fail }, sizeof(struct order)));
    settle(system);
    tr_sender_drop(&a);
    tr_sender_drop(&b);
    settle(system);
}

TEST(faults, watching_and_linking)
{
    walk(watch_and_link);
}

/* ---- supervision ---------------------------------------------------------------------------- */

static void supervise_tree(struct tr_system *system)
{
    /* The table outlives the system: it is used until the probe has joined it. */
    static struct player states[3];
    static struct tr_child inner_rows[2], rows[2];
    static struct tr_supervisor inner, table;
    tr_sender senders[3] = { { 0 } }, root;

    for (int i = 0; i < 3; i++)
        states[i] = quiet_player();
    inner_rows[0] = (struct tr_child){
        .name = "a", .type = &player_type, .state = &states[0], .ret_sender = &senders[0]
    };
    inner_rows[1] = (struct tr_child){ .name = "b",
        .type = &plain_player_type,
        .state = &states[1],
        .backoff_ns_min = 1, /* a timer, but hardly a wait */
        .ret_sender = &senders[1] };
    inner = (struct tr_supervisor){ .name = "inner",
        .strategy = TR_ONE_FOR_ALL,
        .restarts_max = 2,
        .children = inner_rows,
        .child_count = 2 };
    rows[0] = (struct tr_child){ .name = "inner", .supervisor = &inner };
    rows[1] = (struct tr_child){
        .name = "c", .type = &player_type, .state = &states[2], .ret_sender = &senders[2]
    };
    table = (struct tr_supervisor){ .name = "root", .children = rows, .child_count = 2 };
    if (noted(tr_supervise(system, &table, "test", &root)) < 0)
        return;
    settle(system);
    for (int i = 0; i < 4; i++) /* two restarts of the group, an escalation, one more */
        noted(tr_tell(senders[i % 2], &(struct order){ .act = act_fail }, sizeof(struct order)));
    settle(system);
    noted(tr_tell(senders[2], &(struct order){ .act = act_stop }, sizeof(struct order)));
    settle(system);
    tr_sender_drop(&root);
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&senders[i]);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
}

TEST(faults, supervising)
{
    walk(supervise_tree);
}

/* ---- registry ------------------------------------------------------------------------------- */

/* A state that owns memory: LeakSanitizer sees a lost one. */
struct owner {
    char *memory;
};

static int owner_make(void *data, const void *key, size_t key_size, void *state)
{
    struct owner *self = state;

    (void)data;
    (void)key;
    (void)key_size;
    self->memory = malloc(10);
    CHECK(self->memory != NULL);
    return 0;
}

static enum tr_next owner_handle(void *state, struct tr_context *ctx, void *message)
{
    struct owner *self = state;

    tr_reply(ctx, 0, NULL, 0);
    self->memory[0] = *(char *)message;
    return *(char *)message == 's' ? TR_STOP : *(char *)message == 'f' ? TR_FAIL : TR_GO;
}

static void owner_finish(void *state)
{
    free(((struct owner *)state)->memory);
}

static const struct tr_type owner_type = {
    .name = "owner",
    .message_size = 1,
    .state_size = sizeof(struct owner),
    .handle = owner_handle,
    .finish = owner_finish,
};

static void use_registry(struct tr_system *system)
{
    struct tr_registry *registry = NULL;
    tr_sender sender;

    if (noted(tr_registry_create(system,
            &(struct tr_registry_options){ .name = "owners",
                .type = &owner_type,
                .make = owner_make,
                .idle_ns = 3600 * SECOND },
            &registry)) < 0)
        return;
    for (uint32_t key = 0; key < 3; key++)
        for (const char *message = "gsfg"; *message != '\0'; message++)
            noted(tr_registry_tell(registry, &key, sizeof key, message, 1));
    settle(system);
    for (uint32_t key = 0; key < 5; key++)
        if (noted(tr_registry_get(registry, &key, sizeof key, "test", &sender)) == 0) {
            int rc = tr_tell(sender, "s", 1);

            CHECK_MSG(is_expected(rc) || rc == TR_ECLOSED, "%s", tr_error_name(rc));
            tr_sender_drop(&sender);
        }
    settle(system);
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
}

TEST(faults, using_a_registry)
{
    walk(use_registry);
}

/* A clock that the test moves. */
struct hand_clock {
    struct tr_env env;
    uint64_t now;
};

static uint64_t hand_now(void *data)
{
    struct hand_clock *clock = data;

    return clock->now;
}

TEST(faults, a_registry_passivates_whatever_failed_when_it_was_made)
{
    uint64_t calls, n = 0;

    do {
        struct hand_clock clock = { .env = *tr_env_real(), .now = SECOND };
        struct tr_registry *registry = NULL;
        struct tr_system *system;
        uint32_t key = 1;
        int rc;

        clock.env.now_ns = hand_now;
        clock.env.data = &clock;
        CHECK_EQ_INT(
            tr_system_create(
                &(struct tr_system_options){ .driven = true, .quiet = true, .env = &clock.env },
                &system),
            0);
        base_fault_countdown(++n, 1);
        rc = tr_registry_create(system,
            &(struct tr_registry_options){
                .type = &owner_type, .make = owner_make, .idle_ns = 10 * MS },
            &registry);
        settle(system);
        calls = base_fault_countdown(0, 0);
        CHECK_MSG(is_expected(rc), "%s", tr_error_name(rc));
        if (rc == 0) {
            CHECK_EQ_INT(tr_registry_tell(registry, &key, sizeof key, "g", 1), 0);
            settle(system);
            CHECK_EQ_INT(tr_registry_live(registry), 1);
            for (int i = 0; i < 50; i++) {
                clock.now += MS;
                settle(system);
            }
            CHECK_EQ_INT(tr_registry_live(registry), 0);
            CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
        }
        probe(system);
        tr_system_destroy(&system);
    } while (calls >= n);
    CHECK(n > 10);
}

/* ---- published values ----------------------------------------------------------------------- */

static void publish_some(struct tr_system *system)
{
    struct tr_snapshot *snapshot = NULL;
    struct tr_reader *reader = NULL;

    if (noted(tr_snapshot_create(system, free, &snapshot)) < 0)
        return;
    noted(tr_reader_create(system, &reader));
    for (int i = 0; i < 4; i++) {
        void *value = malloc(10);

        CHECK(value != NULL);
        if (reader != NULL)
            tr_reader_begin(reader);
        if (noted(tr_snapshot_publish(snapshot, value)) < 0)
            free(value); /* it is still ours */
        else
            CHECK(tr_snapshot_read(snapshot) == value);
        if (reader != NULL)
            tr_reader_end(reader);
    }
    tr_reader_destroy(&reader);
    tr_snapshot_destroy(&snapshot);
}

TEST(faults, publishing)
{
    walk(publish_some);
}

/* ---- looking and ending --------------------------------------------------------------------- */

static void show_nothing(const void *state, char *text, size_t size)
{
    (void)state;
    snprintf(text, size, "nothing");
}

static struct tr_type showing_type;

static bool visit_id(void *data, const struct tr_actor_info *info)
{
    *(uint64_t *)data = info->id;
    return true;
}

static void look_and_drain(struct tr_system *system)
{
    struct player player = quiet_player();
    FILE *nowhere = fopen("/dev/null", "w");
    tr_sender sender;
    uint64_t id = 0;
    char text[32];
    int rc;

    CHECK(nowhere != NULL);
    showing_type = player_type;
    showing_type.show = show_nothing;
    if (noted(tr_spawn(system, &showing_type, &player, NULL, &sender)) < 0) {
        fclose(nowhere);
        return;
    }
    settle(system);
    tr_inspect(system, visit_id, &id);
    if (noted(tr_inspect_show(system, id, text, sizeof text, 0)) == 0)
        CHECK_EQ_STR(text, "nothing");
    tr_inspect_tree(system, nowhere);
    tr_system_holders(system, nowhere);
    fclose(nowhere);
    do
        rc = noted(tr_system_drain(system, 0));
    while (rc < 0);
    tr_sender_drop(&sender);
}

TEST(faults, looking_and_draining)
{
    walk(look_and_drain);
}

static void use_descriptor(struct tr_system *system)
{
    int fd = tr_system_fd(system);

    CHECK(fd >= 0 || is_expected(fd));
    if (fd < 0)
        noted(fd);
}

TEST(faults, asking_for_the_descriptor)
{
    walk(use_descriptor);
}
