/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "stage.h"

static struct tr_system *driven(void)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system), 0);
    return system;
}

static bool is_readable(int fd)
{
    struct pollfd watched = { .fd = fd, .events = POLLIN };

    return poll(&watched, 1, 0) == 1;
}

static void settle(struct tr_system *system)
{
    while (tr_system_step(system, 100) > 0) {
    }
}

static tr_sender spawn_quiet(struct tr_system *system)
{
    static struct journal unused;

    return cast(system, (struct player){ .quiet = true, .journal = &unused }, NULL);
}

TEST(embed, the_descriptor_is_readable_exactly_while_there_is_something_to_do)
{
    struct tr_system *system = driven();
    int fd = tr_system_fd(system);
    tr_sender a;

    CHECK(fd >= 0);
    CHECK(!is_readable(fd));
    a = spawn_quiet(system);
    CHECK(is_readable(fd));
    settle(system);
    CHECK(!is_readable(fd));
    for (int i = 0; i < 3; i++) { /* also without a look at the timeout in between */
        tell(a, act_nothing, 0);
        CHECK(is_readable(fd));
        settle(system);
        CHECK(!is_readable(fd));
    }
    CHECK_EQ_INT(tr_system_fd(system), fd);
    tr_sender_drop(&a);
    CHECK(is_readable(fd));
    system_finish(&system);
}

TEST(embed, a_step_that_leaves_something_leaves_the_descriptor_readable)
{
    struct tr_system *system = driven();
    int fd = tr_system_fd(system);
    tr_sender senders[5];

    for (int i = 0; i < 5; i++)
        senders[i] = spawn_quiet(system);
    for (int left = 5; left > 0; left--) {
        CHECK(is_readable(fd));
        CHECK_EQ_INT(tr_system_timeout_ms(system), 0);
        CHECK_EQ_INT(tr_system_step(system, 1), 1);
    }
    CHECK_EQ_INT(tr_system_step(system, 1), 0);
    CHECK(!is_readable(fd));
    for (int i = 0; i < 5; i++)
        tr_sender_drop(&senders[i]);
    system_finish(&system);
}

TEST(embed, work_that_was_there_before_the_descriptor_makes_it_readable)
{
    struct tr_system *system = driven();
    tr_sender a = spawn_quiet(system);

    CHECK(is_readable(tr_system_fd(system)));
    tr_sender_drop(&a);
    system_finish(&system);
}

static enum tr_next act_timer(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_after(ctx, order->number, 1, NULL), 0);
    return TR_GO;
}

TEST(embed, the_timeout_is_that_of_the_next_timer)
{
    struct tr_system *system = driven();
    tr_sender a = spawn_quiet(system);
    int timeout;

    CHECK_EQ_INT(tr_system_timeout_ms(system), 0);
    settle(system);
    CHECK_EQ_INT(tr_system_timeout_ms(system), -1);
    tell(a, act_timer, 10 * SECOND);
    CHECK_EQ_INT(tr_system_timeout_ms(system), 0);
    settle(system);
    timeout = tr_system_timeout_ms(system);
    CHECK_MSG(timeout > 0 && timeout <= 10001, "%d ms", timeout);
    tr_sender_drop(&a);
    system_finish(&system);
}

/* A plain loop: the descriptor, the timeout, a step. */
static void loop_until(struct tr_system *system, const atomic_bool *stop)
{
    struct pollfd watched = { .fd = tr_system_fd(system), .events = POLLIN };

    while (!atomic_load(stop)) {
        int count = poll(&watched, 1, tr_system_timeout_ms(system));

        CHECK(count >= 0 || errno == EINTR);
        tr_system_step(system, 64);
    }
}

static enum tr_next on_timer_stop(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_TIMER);
    atomic_store((atomic_bool *)self->data, true);
    return TR_GO;
}

TEST(embed, a_poll_loop_runs_timers)
{
    static struct journal unused;
    struct tr_system *system = driven();
    atomic_bool stop = false;
    tr_sender a = cast(system,
        (struct player){
            .quiet = true, .journal = &unused, .on_event = on_timer_stop, .data = &stop },
        NULL);

    tell(a, act_timer, 5 * MS);
    loop_until(system, &stop);
    tr_sender_drop(&a);
    system_finish(&system);
}

struct caller {
    tr_sender to;
    atomic_bool *stop;
    uint64_t calls;
};

/* Stops the loop when it has all. */
static enum tr_next act_count(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)ctx;
    self->number += order->number;
    if (self->number == 2000)
        atomic_store((atomic_bool *)self->data, true);
    return TR_GO;
}

static void *teller_main(void *argument)
{
    struct caller *caller = argument;

    for (uint64_t i = 0; i < caller->calls; i++) {
        int rc;

        do /* the loop makes room: nobody else drives the system */
            rc = tr_try_tell(
                caller->to, &(struct order){ .act = act_count, .number = 1 }, sizeof(struct order));
        while (rc == TR_EFULL);
        CHECK_EQ_INT(rc, 0);
    }
    return NULL;
}

TEST(embed, a_poll_loop_misses_no_message_of_other_threads)
{
    static struct journal unused;
    struct tr_system *system = driven();
    atomic_bool stop = false;
    tr_sender a =
        cast(system, (struct player){ .quiet = true, .journal = &unused, .data = &stop }, NULL);
    struct caller caller = { .to = a, .calls = 1000 };
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, teller_main, &caller), 0);
    loop_until(system, &stop); /* a lost wake-up would let it sleep for ever */
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    tr_sender_drop(&a);
    system_finish(&system);
}

/* A loop that only waits for the descriptor, and never asks for the timeout, misses nothing either.
 */
static void *one_by_one_main(void *argument)
{
    struct caller *caller = argument;

    for (uint64_t i = 1; i <= caller->calls; i++) {
        struct tr_future *future = ask(caller->to, act_add, 1);

        while (!tr_future_is_ended(future))
            sched_yield();
        CHECK_EQ_INT(tr_future_is_ended(future), true);
        tr_future_drop(&future);
    }
    atomic_store(caller->stop, true);
    tr_tell(caller->to, &(struct order){ .act = act_nothing }, sizeof(struct order));
    return NULL;
}

TEST(embed, the_descriptor_alone_is_enough)
{
    struct tr_system *system = driven();
    atomic_bool stop = false;
    tr_sender a = spawn_quiet(system);
    struct caller caller = { .to = a, .stop = &stop, .calls = 1000 };
    struct pollfd watched = { .fd = tr_system_fd(system), .events = POLLIN };
    pthread_t thread;

    CHECK_EQ_INT(pthread_create(&thread, NULL, one_by_one_main, &caller), 0);
    while (!atomic_load(&stop)) {
        CHECK(poll(&watched, 1, -1) == 1);
        tr_system_step(system, 64);
    }
    pthread_join(thread, NULL);
    settle(system);
    tr_sender_drop(&a);
    system_finish(&system);
}

static enum tr_next on_fd_stop(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    if (event->kind == TR_EVENT_FD || event->kind == TR_EVENT_WORK)
        atomic_store((atomic_bool *)self->data, true);
    return TR_GO;
}

static enum tr_next act_watch(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_fd_watch(ctx, (int)order->number, EPOLLIN, 1), 0);
    return TR_GO;
}

TEST(embed, descriptors_of_actors_are_behind_the_systems_one)
{
    static struct journal unused;
    struct tr_system *system = driven();
    atomic_bool stop = false;
    tr_sender a = cast(system,
        (struct player){ .quiet = true, .journal = &unused, .on_event = on_fd_stop, .data = &stop },
        NULL);
    int fds[2];

    CHECK_EQ_INT(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    tell(a, act_watch, (uint64_t)fds[0]);
    settle(system);
    CHECK(!is_readable(tr_system_fd(system)));
    CHECK_EQ_INT(write(fds[1], "x", 1), 1);
    CHECK(is_readable(tr_system_fd(system)));
    loop_until(system, &stop);
    CHECK(!is_readable(tr_system_fd(system)));
    tr_sender_drop(&a);
    system_finish(&system);
    close(fds[0]);
    close(fds[1]);
}

static int work_nothing(void *argument)
{
    (void)argument;
    return 0;
}

static enum tr_next act_offload(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_offload(ctx, work_nothing, NULL, NULL, 1), 0);
    return TR_GO;
}

TEST(embed, finished_work_wakes_the_loop)
{
    for (int round = 0; round < 50; round++) {
        static struct journal unused;
        struct tr_system *system = driven();
        atomic_bool stop = false;
        tr_sender a = cast(system,
            (struct player){
                .quiet = true, .journal = &unused, .on_event = on_fd_stop, .data = &stop },
            NULL);

        tell(a, act_offload, 0);
        loop_until(system, &stop);
        tr_sender_drop(&a);
        system_finish(&system);
    }
}

TEST(embed, only_a_driven_system_has_a_descriptor)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_system *system;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_system_fd(system), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_system_workers(system), 2);
    CHECK_EQ_INT(tr_system_fd(tr_sim_system(sim)), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_system_workers(tr_sim_system(sim)), 0);
    CHECK(tr_system_env(system) == tr_env_real());
    CHECK(tr_system_env(tr_sim_system(sim)) != tr_env_real());
    system_finish(&system);
    sim_finish(&sim);
}

TEST(embed, two_systems_live_in_one_loop)
{
    struct tr_system *systems[2] = { driven(), driven() };
    atomic_bool stop[2] = { false, false };
    struct pollfd watched[2];
    tr_sender senders[2];

    for (int i = 0; i < 2; i++) {
        static struct journal unused;

        senders[i] = cast(systems[i],
            (struct player){
                .quiet = true, .journal = &unused, .on_event = on_timer_stop, .data = &stop[i] },
            NULL);
        watched[i] = (struct pollfd){ .fd = tr_system_fd(systems[i]), .events = POLLIN };
        tell(senders[i], act_timer, (uint64_t)(i + 1) * 2 * MS);
    }
    while (!atomic_load(&stop[0]) || !atomic_load(&stop[1])) {
        int timeout = -1;

        for (int i = 0; i < 2; i++) {
            int own = tr_system_timeout_ms(systems[i]);

            if (own >= 0 && (timeout < 0 || own < timeout))
                timeout = own;
        }
        CHECK(poll(watched, 2, timeout) >= 0);
        for (int i = 0; i < 2; i++)
            tr_system_step(systems[i], 64);
    }
    for (int i = 0; i < 2; i++) {
        tr_sender_drop(&senders[i]);
        system_finish(&systems[i]);
    }
}
