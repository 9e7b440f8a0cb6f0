/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stage.h"

static struct tr_system *driven(void)
{
    struct tr_system *system = NULL;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system), 0);
    return system;
}

static void settle(struct tr_system *system)
{
    while (tr_system_step(system, 100) > 0) {
    }
}

/* Write what the event says. */
static enum tr_next on_fd(struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    if (event->kind == TR_EVENT_FD)
        journal_write(self->journal, "%s: fd %u%s%s%s", self->name, event->tag,
            event->ready & EPOLLIN ? " in" : "", event->ready & EPOLLOUT ? " out" : "",
            event->ready & EPOLLHUP ? " hup" : "");
    else
        journal_write(self->journal, "%s: %s", self->name, event_text(event->kind));
    return TR_GO;
}

struct watching {
    int fd;
    unsigned events;
    uint32_t tag;
};

static enum tr_next act_watch(struct player *self, struct tr_context *ctx, struct order *order)
{
    const struct watching *w = order->pointer;
    int rc = tr_fd_watch(ctx, w->fd, w->events, w->tag);

    if (rc < 0)
        journal_write(self->journal, "%s: %s", self->name, tr_error_name(rc));
    return TR_GO;
}

static enum tr_next act_forget(struct player *self, struct tr_context *ctx, struct order *order)
{
    int rc = tr_fd_forget(ctx, (int)order->number);

    if (rc < 0)
        journal_write(self->journal, "%s: %s", self->name, tr_error_name(rc));
    return TR_GO;
}

static void watch(tr_sender to, int fd, unsigned events, uint32_t tag)
{
    static struct watching places[64];
    static atomic_uint next;
    struct watching *w = &places[atomic_fetch_add(&next, 1) % 64];

    *w = (struct watching){ fd, events, tag };
    CHECK_EQ_INT(
        tr_tell(to, &(struct order){ .act = act_watch, .pointer = w }, sizeof(struct order)), 0);
}

struct room {
    struct journal journal;
    struct tr_system *system;
    tr_sender a;
    int fds[2]; /* a pipe */
};

static void room_open(struct room *room)
{
    journal_init(&room->journal);
    room->system = driven();
    CHECK_EQ_INT(pipe2(room->fds, O_CLOEXEC | O_NONBLOCK), 0);
    room->a = cast(room->system,
        (struct player){ .name = "a", .journal = &room->journal, .on_event = on_fd }, NULL);
    settle(room->system);
    journal_clear(&room->journal);
}

static void room_close(struct room *room)
{
    tr_sender_drop(&room->a);
    system_finish(&room->system);
    close(room->fds[0]);
    close(room->fds[1]);
}

static void write_byte(int fd)
{
    CHECK_EQ_INT(write(fd, "x", 1), 1);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

TEST(fd, readiness_comes_once_for_each_watch)
{
    struct room room;

    room_open(&room);
    watch(room.a, room.fds[0], EPOLLIN, 7);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "");
    write_byte(room.fds[1]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: fd 7 in");
    write_byte(room.fds[1]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: fd 7 in");
    /* Watched again, what is still there to read is told at once. */
    watch(room.a, room.fds[0], EPOLLIN, 8);
    settle(room.system);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: fd 7 in; a: fd 8 in");
    room_close(&room);
}

TEST(fd, writable_and_hung_up_are_told)
{
    struct room room;
    int pair[2];

    room_open(&room);
    CHECK_EQ_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    watch(room.a, pair[0], EPOLLOUT, 1);
    settle(room.system);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: fd 1 out");
    watch(room.a, pair[0], EPOLLIN, 2);
    settle(room.system);
    close(pair[1]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: fd 1 out; a: fd 2 in hup");
    room_close(&room);
    close(pair[0]);
}

TEST(fd, forgotten_tells_nothing)
{
    struct room room;

    room_open(&room);
    watch(room.a, room.fds[0], EPOLLIN, 7);
    tell(room.a, act_forget, (uint64_t)room.fds[0]);
    settle(room.system);
    write_byte(room.fds[1]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "");
    tell(room.a, act_forget, (uint64_t)room.fds[0]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: TR_ENOENT");
    room_close(&room);
}

/* Many descriptors that are ready, and one that is so after all of them. */
struct crowd {
    int fds[300];
    int late_fd;
    unsigned late_events;
    unsigned seen, late_came_as;
};

static struct crowd *crowd_of(struct player *self)
{
    return self->data;
}

static enum tr_next on_crowd(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct crowd *crowd = crowd_of(self);

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_FD);
    crowd->seen++;
    if (event->fd == crowd->late_fd)
        crowd->late_came_as = crowd->seen;
    return TR_GO;
}

static enum tr_next act_watch_crowd(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct crowd *crowd = crowd_of(self);

    (void)order;
    for (size_t i = 0; i < 300; i++)
        CHECK_EQ_INT(tr_fd_watch(ctx, crowd->fds[i], EPOLLIN, 0), 0);
    CHECK_EQ_INT(tr_fd_watch(ctx, crowd->late_fd, EPOLLIN | crowd->late_events, 0), 0);
    return TR_GO;
}

static unsigned place_of_the_late(unsigned late_events)
{
    struct crowd crowd = { .late_events = late_events };
    struct tr_system *system = driven();
    struct journal journal;
    tr_sender a;

    journal_init(&journal);
    for (size_t i = 0; i < 300; i++)
        CHECK((crowd.fds[i] = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0);
    CHECK((crowd.late_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .on_event = on_crowd, .data = &crowd },
        NULL);
    tell(a, act_watch_crowd, 0);
    while (crowd.seen == 0)
        tr_system_step(system, 100);
    CHECK_EQ_INT(eventfd_write(crowd.late_fd, 1), 0);
    while (crowd.seen < 301)
        CHECK(tr_system_step(system, 100) > 0);
    tr_sender_drop(&a);
    system_finish(&system);
    for (size_t i = 0; i < 300; i++)
        close(crowd.fds[i]);
    close(crowd.late_fd);
    return crowd.late_came_as;
}

TEST(fd, that_comes_first_does_not_wait_for_a_crowd)
{
    CHECK_EQ_INT(place_of_the_late(0), 301);
    CHECK(place_of_the_late(TR_FD_FIRST) < 200);
}

/* An actor that wants to be calm, and a thread that waits for each thing it hears of. */
struct calm_talk {
    int fds[2], first_fds[2]; /* pipes */
    sem_t heard;
};

static enum tr_next on_calm(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct calm_talk *talk = self->data;
    char byte;

    if (event->kind != TR_EVENT_FD)
        return TR_GO;
    CHECK_EQ_INT(read(event->fd, &byte, 1), 1);
    tr_fd_calm(ctx, TR_SECONDS(1), TR_SECONDS(60)); /* a pause is never as long as that */
    sem_post(&talk->heard);
    return TR_GO;
}

static enum tr_next act_be_calm(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct calm_talk *talk = self->data;

    (void)order;
    CHECK_EQ_INT(tr_fd_watch(ctx, talk->fds[0], EPOLLIN | EPOLLET, 0), 0);
    CHECK_EQ_INT(tr_fd_watch(ctx, talk->first_fds[0], EPOLLIN | EPOLLET | TR_FD_FIRST, 0), 0);
    tr_fd_calm(ctx, TR_MILLISECONDS(5), TR_SECONDS(60));
    sem_post(&talk->heard);
    return TR_GO;
}

static enum tr_next act_hear(struct player *self, struct tr_context *ctx, struct order *order)
{
    struct calm_talk *talk = self->data;

    (void)ctx;
    (void)order;
    sem_post(&talk->heard);
    return TR_GO;
}

/* Each is waited for before the next: a wake-up that is lost ends the case by its time limit. */
static void talk_to_calm(uint32_t workers)
{
    struct tr_system *system;
    struct calm_talk talk;
    struct journal journal;
    tr_sender a;

    journal_init(&journal);
    sem_init(&talk.heard, 0, 0);
    CHECK_EQ_INT(pipe2(talk.fds, O_CLOEXEC | O_NONBLOCK), 0);
    CHECK_EQ_INT(pipe2(talk.first_fds, O_CLOEXEC | O_NONBLOCK), 0);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = workers, .quiet = true }, &system),
        0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .on_event = on_calm, .data = &talk },
        NULL);
    tell(a, act_be_calm, 0);
    CHECK_EQ_INT(sem_wait(&talk.heard), 0);
    for (int i = 0; i < 60; i++) {
        if (i % 3 == 0)
            write_byte(talk.fds[1]);
        else if (i % 3 == 1)
            write_byte(talk.first_fds[1]);
        else
            tell(a, act_hear, 0);
        CHECK_EQ_INT(sem_wait(&talk.heard), 0);
    }
    tr_sender_drop(&a);
    system_finish(&system);
    for (int i = 0; i < 2; i++) {
        close(talk.fds[i]);
        close(talk.first_fds[i]);
    }
}

TEST(fd, of_a_calm_worker_are_all_heard_of)
{
    talk_to_calm(1);
    talk_to_calm(2);
}

/* An actor that holds has the event in its box already when its answer lets it forget the
 * descriptor. */
struct replacing {
    int fd;    /* watched, and forgotten when the answer comes */
    int other; /* takes its number, if there is one */
    bool rewatch;
};

static enum tr_next act_hold(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)order;
    CHECK_EQ_INT(tr_ask(ctx, self->peer, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = true }),
        0);
    return TR_GO;
}

static enum tr_next on_answer_forget(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct replacing *replacing = self->data;

    if (event->kind != TR_EVENT_REPLY)
        return on_fd(self, ctx, event);
    CHECK_EQ_INT(tr_fd_forget(ctx, replacing->fd), 0);
    if (replacing->other >= 0) {
        CHECK_EQ_INT(dup3(replacing->other, replacing->fd, O_CLOEXEC), replacing->fd);
        close(replacing->other);
    }
    if (replacing->rewatch)
        CHECK_EQ_INT(tr_fd_watch(ctx, replacing->fd, EPOLLIN, 2), 0);
    return TR_GO;
}

static void replace_while_under_way(struct replacing replacing, struct room *room)
{
    tr_sender b, helper;

    helper = cast(room->system,
        (struct player){ .name = "h", .journal = &room->journal, .quiet = true }, NULL);
    replacing.fd = room->fds[0];
    b = cast(room->system,
        (struct player){ .name = "b",
            .journal = &room->journal,
            .quiet = true,
            .on_event = on_answer_forget,
            .peer = tr_sender_clone(helper, "b"),
            .data = &replacing },
        NULL);
    watch(b, room->fds[0], EPOLLIN, 1);
    tell(b, act_hold, 0);
    settle(room->system);
    write_byte(room->fds[1]); /* the event waits in b's box */
    settle(room->system);
    tell(helper, act_answer, 0);
    settle(room->system);
    settle(room->system);
    tr_sender_drop(&b);
    tr_sender_drop(&helper);
    settle(room->system);
}

TEST(fd, forgotten_while_its_event_is_under_way_tells_nothing)
{
    struct room room;

    room_open(&room);
    replace_while_under_way((struct replacing){ .other = -1 }, &room);
    CHECK_JOURNAL(&room.journal, "");
    room_close(&room);
}

TEST(fd, a_number_that_is_used_again_gets_none_of_the_old_events)
{
    struct room room;
    int other[2];

    room_open(&room);
    CHECK_EQ_INT(pipe2(other, O_CLOEXEC | O_NONBLOCK), 0);
    /* The new pipe under the old number has nothing to read: nothing may come. */
    replace_while_under_way((struct replacing){ .other = other[0], .rewatch = true }, &room);
    CHECK_JOURNAL(&room.journal, "");
    close(other[1]);
    room_close(&room);
}

TEST(fd, an_edge_watch_tells_every_edge_until_it_is_forgotten)
{
    struct room room;

    room_open(&room);
    watch(room.a, room.fds[0], EPOLLIN | EPOLLET, 7);
    settle(room.system);
    for (int i = 0; i < 3; i++) {
        write_byte(room.fds[1]);
        settle(room.system);
    }
    CHECK_JOURNAL(&room.journal, "a: fd 7 in; a: fd 7 in; a: fd 7 in");
    tell(room.a, act_forget, (uint64_t)room.fds[0]);
    settle(room.system);
    write_byte(room.fds[1]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: fd 7 in; a: fd 7 in; a: fd 7 in");
    room_close(&room);
}

static enum tr_next on_fd_only(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    return event->kind == TR_EVENT_REPLY ? TR_GO : on_fd(self, ctx, event);
}

TEST(fd, edges_that_meet_a_waiting_actor_come_as_one)
{
    struct room room;
    tr_sender b, helper;
    int pair[2];

    room_open(&room);
    CHECK_EQ_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    helper = cast(
        room.system, (struct player){ .name = "h", .journal = &room.journal, .quiet = true }, NULL);
    b = cast(room.system,
        (struct player){ .name = "b",
            .journal = &room.journal,
            .quiet = true,
            .on_event = on_fd_only,
            .peer = tr_sender_clone(helper, "b") },
        NULL);
    watch(b, pair[0], EPOLLIN | EPOLLET, 1);
    tell(b, act_hold, 0);
    settle(room.system);
    for (int i = 0; i < 5; i++) {
        write_byte(pair[1]);
        settle(room.system);
    }
    close(pair[1]);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "");
    tell(helper, act_answer, 0);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "b: fd 1 in hup");
    tr_sender_drop(&b);
    tr_sender_drop(&helper);
    settle(room.system);
    room_close(&room);
    close(pair[0]);
}

TEST(fd, belongs_to_one_actor_at_a_time)
{
    struct room room;
    tr_sender b;

    room_open(&room);
    b = cast(room.system,
        (struct player){ .name = "b", .journal = &room.journal, .quiet = true, .on_event = on_fd },
        NULL);
    watch(room.a, room.fds[0], EPOLLIN, 1);
    settle(room.system);
    watch(b, room.fds[0], EPOLLIN, 2);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "b: TR_EBUSY");
    journal_clear(&room.journal);
    /* The end of the first lets it go. */
    tr_sender_drop(&room.a);
    settle(room.system);
    watch(b, room.fds[0], EPOLLIN, 2);
    write_byte(room.fds[1]);
    settle(room.system);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a stops; a ends; b: fd 2 in");
    tr_sender_drop(&b);
    room_close(&room);
}

TEST(fd, that_cannot_be_watched_is_refused)
{
    struct room room;
    int file;

    room_open(&room);
    file = memfd_create("file", MFD_CLOEXEC);
    CHECK(file >= 0);
    watch(room.a, -1, EPOLLIN, 1);
    settle(room.system);
    watch(room.a, 900, EPOLLIN, 1); /* not open */
    settle(room.system);
    watch(room.a, file, EPOLLIN, 1);
    settle(room.system);
    CHECK_JOURNAL(&room.journal, "a: TR_EINVAL; a: TR_EINVAL; a: TR_EINVAL");
    close(file);
    room_close(&room);
}

/* An echo: reads what is there, writes it back, watches again. */
struct echo {
    int fd;
    bool first; /* begins the exchange */
    uint32_t left;
    sem_t *done;
};

static int echo_start(void *state, struct tr_context *ctx)
{
    struct echo *self = state;

    if (self->first)
        write_byte(self->fd);
    return tr_fd_watch(ctx, self->fd, EPOLLIN, 0);
}

static enum tr_next echo_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next echo_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct echo *self = state;
    char byte;

    CHECK_EQ_INT(event->kind, TR_EVENT_FD);
    CHECK_EQ_INT(event->fd, self->fd);
    CHECK_EQ_INT(read(self->fd, &byte, 1), 1);
    if (--self->left == 0) {
        sem_post(self->done);
        if (self->first)
            return TR_GO;
    }
    write_byte(self->fd);
    if (self->left > 0)
        CHECK_EQ_INT(tr_fd_watch(ctx, self->fd, EPOLLIN, 0), 0);
    return TR_GO;
}

static const struct tr_type echo_type = {
    .name = "echo",
    .message_size = 1,
    .state_size = sizeof(struct echo),
    .start = echo_start,
    .handle = echo_handle,
    .event = echo_event,
};

TEST(fd, two_actors_on_two_workers_play_over_a_socket)
{
    enum { BALLS = 2000 };
    struct tr_system *system;
    tr_sender senders[2];
    sem_t done;
    int pair[2];

    sem_init(&done, 0, 0);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(tr_spawn(system, &echo_type, &(struct echo){ pair[i], i == 0, BALLS, &done },
                         NULL, &senders[i]),
            0);
    sem_wait(&done);
    sem_wait(&done);
    tr_sender_drop(&senders[0]);
    tr_sender_drop(&senders[1]);
    system_finish(&system);
    close(pair[0]);
    close(pair[1]);
    sem_destroy(&done);
}

/* Busy until told otherwise by the descriptor of another actor on the same worker. */
struct busy {
    atomic_bool *stop;
};

static enum tr_next busy_handle(void *state, struct tr_context *ctx, void *message)
{
    struct busy *self = state;

    if (!atomic_load(self->stop))
        CHECK_EQ_INT(tr_self_tell(ctx, message, 1), 0);
    return TR_GO;
}

static const struct tr_type busy_type = {
    .name = "busy",
    .message_size = 1,
    .state_size = sizeof(struct busy),
    .handle = busy_handle,
};

static enum tr_next on_fd_stop(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_FD);
    atomic_store((atomic_bool *)self->data, true);
    return TR_GO;
}

static enum tr_next act_answer_now(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

TEST(fd, a_worker_that_is_always_busy_still_looks)
{
    struct tr_system *system;
    struct journal journal;
    atomic_bool stop = false;
    tr_sender flood, watcher;
    struct tr_future *future;
    struct tr_done *done;
    int fds[2];
    char go = 0;

    journal_init(&journal);
    CHECK_EQ_INT(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &system), 0);
    watcher = cast(system,
        (struct player){ .name = "w",
            .journal = &journal,
            .quiet = true,
            .on_event = on_fd_stop,
            .data = &stop },
        NULL);
    watch(watcher, fds[0], EPOLLIN, 1);
    CHECK_EQ_INT(tr_spawn(system, &busy_type, &(struct busy){ &stop },
                     &(struct tr_spawn_options){ .ret_done = &done }, &flood),
        0);
    CHECK_EQ_INT(tr_tell(flood, &go, 1), 0);
    future = ask(watcher, act_answer_now, 0); /* the watch is set */
    CHECK_EQ_INT(answer(&future, NULL), 0);
    write_byte(fds[1]);
    tr_sender_drop(&flood);
    CHECK_EQ_INT(tr_done_wait(&done, NULL, NULL, 0), 0); /* ends only when the event was handled */
    CHECK(atomic_load(&stop));
    tr_sender_drop(&watcher);
    system_finish(&system);
    close(fds[0]);
    close(fds[1]);
}

/* ---- signals -------------------------------------------------------------------------------- */

static enum tr_next on_signal(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)ctx;
    journal_write(self->journal, "%s: %s %u %s", self->name, event_text(event->kind), event->tag,
        event->status == SIGUSR1   ? "USR1"
        : event->status == SIGUSR2 ? "USR2"
                                   : "?");
    return TR_GO;
}

static enum tr_next act_signal(struct player *self, struct tr_context *ctx, struct order *order)
{
    int rc = tr_signal_watch(ctx, (int)order->number, (uint32_t)order->number);

    if (rc < 0)
        journal_write(self->journal, "%s: %s", self->name, tr_error_name(rc));
    return TR_GO;
}

TEST(signal, arrives_as_an_event_each_time)
{
    static const int signals[] = { SIGUSR1, SIGUSR2, 0 };
    char expected[128];
    struct journal journal;
    struct tr_system *system;
    tr_sender a;

    journal_init(&journal);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .quiet = true, .signals = signals },
            &system),
        0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_signal },
        NULL);
    tell(a, act_signal, SIGUSR1);
    tell(a, act_signal, SIGUSR2);
    settle(system);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(kill(getpid(), SIGUSR1), 0);
        settle(system);
    }
    CHECK_EQ_INT(kill(getpid(), SIGUSR2), 0);
    settle(system);
    snprintf(expected, sizeof expected, "a: signal %d USR1; a: signal %d USR1; a: signal %d USR2",
        SIGUSR1, SIGUSR1, SIGUSR2);
    CHECK_JOURNAL(&journal, expected);
    tr_sender_drop(&a);
    system_finish(&system);
}

TEST(signal, reaches_a_worker)
{
    static const int signals[] = { SIGUSR1, 0 };
    struct journal journal;
    struct tr_system *system;
    struct tr_future *future;
    tr_sender a;

    journal_init(&journal);
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){ .workers = 2, .quiet = true, .signals = signals },
                     &system),
        0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_signal },
        NULL);
    tell(a, act_signal, SIGUSR1);
    future = ask(a, act_answer_now, 0);
    CHECK_EQ_INT(answer(&future, NULL), 0);
    CHECK_EQ_INT(kill(getpid(), SIGUSR1), 0);
    for (;;) { /* its event is a turn of its own: ask until it was there */
        bool seen;

        future = ask(a, act_answer_now, 0);
        CHECK_EQ_INT(answer(&future, NULL), 0);
        pthread_mutex_lock(&journal.lock);
        seen = journal.used > 0;
        pthread_mutex_unlock(&journal.lock);
        if (seen)
            break;
    }
    tr_sender_drop(&a);
    system_finish(&system);
    CHECK_EQ_STR(strstr(journal.text, "USR1"), "USR1");
}

TEST(signal, that_the_system_was_not_made_for_is_refused)
{
    static const int signals[] = { SIGUSR1, 0 };
    struct journal journal;
    struct tr_system *system;
    tr_sender a;

    journal_init(&journal);
    for (int with = 0; with < 2; with++) {
        CHECK_EQ_INT(tr_system_create(
                         &(struct tr_system_options){
                             .driven = true, .quiet = true, .signals = with ? signals : NULL },
                         &system),
            0);
        a = cast(system, (struct player){ .name = "a", .journal = &journal, .quiet = true }, NULL);
        tell(a, act_signal, SIGUSR2);
        settle(system);
        tr_sender_drop(&a);
        system_finish(&system);
    }
    CHECK_JOURNAL(&journal, "a: TR_EINVAL; a: TR_EINVAL");
}

TEST(signal, watched_by_two_is_told_without_false_alarms)
{
    static const int signals[] = { SIGUSR1, 0 };
    struct journal journal;
    struct tr_system *system;
    tr_sender senders[2];

    journal_init(&journal);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .quiet = true, .signals = signals },
            &system),
        0);
    for (int i = 0; i < 2; i++) {
        senders[i] = cast(system,
            (struct player){
                .name = "a", .journal = &journal, .quiet = true, .on_event = on_signal },
            NULL);
        tell(senders[i], act_signal, SIGUSR1);
    }
    settle(system);
    CHECK_EQ_INT(kill(getpid(), SIGUSR1), 0);
    settle(system);
    settle(system);
    CHECK(strstr(journal.text, "USR1") != NULL);
    CHECK_MSG(strstr(journal.text, "?") == NULL, "%s", journal.text);
    for (int i = 0; i < 2; i++)
        tr_sender_drop(&senders[i]);
    system_finish(&system);
}

/* ---- blocking work -------------------------------------------------------------------------- */

struct job {
    sem_t *gate; /* NULL: no wait */
    atomic_int *running, *most, *done, *dropped;
    int result;
    atomic_int thread;
};

static int job_run(void *argument)
{
    struct job *job = argument;
    int now = atomic_fetch_add(job->running, 1) + 1;
    int most = atomic_load(job->most);

    while (now > most && !atomic_compare_exchange_weak(job->most, &most, now)) {
    }
    atomic_store(&job->thread, (int)syscall(SYS_gettid));
    if (job->gate != NULL)
        sem_wait(job->gate);
    atomic_fetch_sub(job->running, 1);
    atomic_fetch_add(job->done, 1);
    return job->result;
}

static void job_drop(void *argument)
{
    struct job *job = argument;

    /* Never before the work has ended: it has the argument. */
    CHECK(atomic_load(job->done) > atomic_load(job->dropped));
    atomic_fetch_add(job->dropped, 1);
}

static enum tr_next act_offload(struct player *self, struct tr_context *ctx, struct order *order)
{
    int rc = tr_offload(ctx, job_run, order->pointer, job_drop, 5);

    if (rc < 0) {
        journal_write(self->journal, "%s: %s", self->name, tr_error_name(rc));
        return TR_GO;
    }
    return TR_GO;
}

static enum tr_next on_work(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    const struct job *job = event->value;

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_WORK);
    CHECK_EQ_INT(event->tag, 5);
    CHECK_EQ_INT(event->status, job->result);
    journal_write(self->journal, "%s: result %d", self->name, event->status);
    return TR_GO;
}

struct yard {
    atomic_int running, most, done, dropped;
    sem_t gate;
    struct job job;
};

static void yard_init(struct yard *yard, bool gated)
{
    *yard = (struct yard){ 0 };
    sem_init(&yard->gate, 0, 0);
    yard->job = (struct job){ .gate = gated ? &yard->gate : NULL,
        .running = &yard->running,
        .most = &yard->most,
        .done = &yard->done,
        .dropped = &yard->dropped,
        .result = 42 };
}

static void offload(tr_sender to, struct job *job)
{
    CHECK_EQ_INT(
        tr_tell(to, &(struct order){ .act = act_offload, .pointer = job }, sizeof(struct order)),
        0);
}

TEST(work, runs_on_another_thread_and_comes_back_with_its_argument)
{
    struct journal journal;
    struct tr_system *system = driven();
    struct yard yard;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, false);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_work },
        NULL);
    offload(a, &yard.job);
    tr_sender_drop(&a); /* it waits for its work all the same */
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_JOURNAL(&journal, "a: result 42");
    CHECK(yard.job.thread != (int)syscall(SYS_gettid));
    CHECK_EQ_INT(atomic_load(&yard.dropped), 0);
    system_finish(&system);
}

/* Each lets the other go: they must run at the same time. */
struct pair_job {
    sem_t *mine, *other;
};

static int pair_run(void *argument)
{
    struct pair_job *job = argument;

    sem_post(job->other);
    while (sem_wait(job->mine) < 0) {
    }
    return 0;
}

static enum tr_next act_offload_alone(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK_EQ_INT(tr_offload(ctx, pair_run, order->pointer, NULL, 5), 0);
    return TR_GO;
}

static enum tr_next act_offload_pair(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    struct pair_job *jobs = order->pointer;

    (void)self;
    CHECK_EQ_INT(tr_offload(ctx, pair_run, &jobs[0], NULL, 5), 0);
    CHECK_EQ_INT(tr_offload(ctx, pair_run, &jobs[1], NULL, 5), 0);
    return TR_GO;
}

static enum tr_next on_pair(
    struct player *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    CHECK_EQ_INT(event->status, 0);
    return TR_GO;
}

/* A system whose pool has one thread, which is idle or about to be, gets two works at once. */
static void offload_pair(struct pair_job jobs[2])
{
    struct journal journal;
    struct tr_system *system = driven();
    sem_t first;
    struct pair_job alone = { &first, &first };
    tr_sender a;

    journal_init(&journal);
    CHECK_EQ_INT(sem_init(&first, 0, 0), 0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_pair },
        NULL);
    CHECK_EQ_INT(tr_tell(a, &(struct order){ .act = act_offload_alone, .pointer = &alone },
                     sizeof(struct order)),
        0);
    tr_sender_drop(&a);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    a = cast(system,
        (struct player){ .name = "b", .journal = &journal, .quiet = true, .on_event = on_pair },
        NULL);
    CHECK_EQ_INT(tr_tell(a, &(struct order){ .act = act_offload_pair, .pointer = jobs },
                     sizeof(struct order)),
        0);
    tr_sender_drop(&a);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    system_finish(&system);
}

TEST(work, that_comes_while_an_idle_thread_wakes_up_has_a_thread_of_its_own)
{
    struct pair_job jobs[2];
    sem_t gates[2];

    CHECK_EQ_INT(sem_init(&gates[0], 0, 0), 0);
    CHECK_EQ_INT(sem_init(&gates[1], 0, 0), 0);
    jobs[0] = (struct pair_job){ &gates[0], &gates[1] };
    jobs[1] = (struct pair_job){ &gates[1], &gates[0] };
    for (int round = 0; round < 100; round++)
        offload_pair(jobs);
}

TEST(work, does_not_hold_up_its_actor)
{
    struct journal journal;
    struct tr_system *system = driven();
    struct yard yard;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, true);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_work },
        NULL);
    offload(a, &yard.job);
    tell(a, act_note, 1);
    settle(system);
    CHECK_JOURNAL(&journal, "a 1");
    sem_post(&yard.gate);
    tr_sender_drop(&a);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_JOURNAL(&journal, "a 1; a: result 42");
    system_finish(&system);
}

TEST(work, whose_actor_ended_first_is_dropped_once_after_it_ended)
{
    struct journal journal;
    struct tr_system *system = driven();
    struct yard yard;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, true);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_work },
        NULL);
    offload(a, &yard.job);
    settle(system);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(a)), 0);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_INT(atomic_load(&yard.dropped), 0);
    sem_post(&yard.gate);
    tr_sender_drop(&a);
    tr_system_destroy(&system); /* waits for the pool */
    CHECK_EQ_INT(atomic_load(&yard.done), 1);
    CHECK_EQ_INT(atomic_load(&yard.dropped), 1);
    CHECK_JOURNAL(&journal, "");
}

TEST(work, whose_result_was_in_the_box_when_its_actor_ended_is_dropped_once)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    struct yard yard;
    tr_sender a, helper;

    journal_init(&journal);
    yard_init(&yard, false);
    helper = cast(tr_sim_system(sim),
        (struct player){ .name = "h", .journal = &journal, .quiet = true }, NULL);
    a = cast(tr_sim_system(sim),
        (struct player){ .name = "a",
            .journal = &journal,
            .quiet = true,
            .on_event = on_work,
            .peer = tr_sender_clone(helper, "a") },
        NULL);
    offload(a, &yard.job);
    tell(a, act_hold, 0); /* so that the result waits in the box */
    sim_settle(sim);
    CHECK_EQ_INT(atomic_load(&yard.done), 1);
    CHECK_EQ_INT(atomic_load(&yard.dropped), 0);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(a)), 0);
    sim_settle(sim);
    CHECK_EQ_INT(atomic_load(&yard.dropped), 1);
    CHECK_JOURNAL(&journal, "");
    tr_sender_drop(&a);
    tr_sender_drop(&helper);
    sim_finish(&sim);
}

TEST(work, never_runs_on_more_threads_than_allowed)
{
    enum { JOBS = 40, THREADS = 3 };
    struct journal journal;
    struct tr_system *system;
    struct yard yard;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, true);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 1, .quiet = true, .blocking_threads = THREADS },
            &system),
        0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_work },
        NULL);
    for (int i = 0; i < JOBS; i++)
        offload(a, &yard.job);
    for (int i = 0; i < JOBS; i++)
        sem_post(&yard.gate);
    tr_sender_drop(&a);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_INT(atomic_load(&yard.done), JOBS);
    CHECK(atomic_load(&yard.most) <= THREADS);
    system_finish(&system);
}

TEST(work, uses_all_the_threads_it_may)
{
    enum { THREADS = 3 };
    struct journal journal;
    struct tr_system *system;
    struct yard yard;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, true);
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){
                         .driven = true, .quiet = true, .blocking_threads = THREADS },
                     &system),
        0);
    a = cast(system,
        (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_work },
        NULL);
    for (int i = 0; i < THREADS; i++)
        offload(a, &yard.job);
    settle(system);
    while (atomic_load(&yard.running) < THREADS) /* all of them wait at the gate at once */
        sched_yield();
    for (int i = 0; i < THREADS; i++)
        sem_post(&yard.gate);
    tr_sender_drop(&a);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    system_finish(&system);
}

TEST(work, past_its_queue_is_refused)
{
    enum { QUEUE_MAX = 4096 };
    struct journal journal;
    struct tr_system *system;
    struct yard yard;
    uint32_t accepted = 0;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, true);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .quiet = true, .blocking_threads = 1 },
            &system),
        0);
    a = cast(system, (struct player){ .name = "a", .journal = &journal, .quiet = true }, NULL);
    while (journal.used == 0) {
        offload(a, &yard.job);
        settle(system);
        accepted++;
        CHECK(accepted <= QUEUE_MAX + 2); /* the queue, and what the one thread has */
    }
    CHECK_JOURNAL(&journal, "a: TR_EFULL");
    accepted--; /* the last one was not */
    CHECK(accepted >= QUEUE_MAX);
    for (uint32_t i = 0; i < accepted; i++)
        sem_post(&yard.gate);
    tr_sender_drop(&a);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_INT(atomic_load(&yard.done), (int)accepted);
    system_finish(&system);
}

TEST(work, of_a_destroyed_system_is_done_and_dropped)
{
    enum { JOBS = 10 };
    struct journal journal;
    struct tr_system *system;
    struct yard yard;
    tr_sender a;

    journal_init(&journal);
    yard_init(&yard, true);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .quiet = true, .blocking_threads = 1 },
            &system),
        0);
    a = cast(system, (struct player){ .name = "a", .journal = &journal, .quiet = true }, NULL);
    for (int i = 0; i < JOBS; i++)
        offload(a, &yard.job);
    settle(system);
    for (int i = 0; i < JOBS; i++)
        sem_post(&yard.gate);
    tr_system_destroy(&system);
    CHECK_EQ_INT(atomic_load(&yard.done), JOBS);
    CHECK_EQ_INT(atomic_load(&yard.dropped), JOBS);
}

TEST(work, in_a_simulation_runs_at_a_moment_the_seed_chooses)
{
    uint32_t places = 0; /* a bit for each number of messages that were handled before the result */

    for (uint64_t seed; check_each_seed(&seed, 40);) {
        struct tr_sim *sim = sim_create(seed);
        struct journal journal;
        struct yard yard;
        tr_sender a;

        journal_init(&journal);
        yard_init(&yard, false);
        a = cast(tr_sim_system(sim),
            (struct player){ .name = "a", .journal = &journal, .quiet = true, .on_event = on_work },
            NULL);
        offload(a, &yard.job);
        for (uint64_t i = 0; i < 8; i++) {
            tell(a, act_note, 1);
            tr_sim_step(sim);
        }
        sim_settle(sim);
        CHECK(strstr(journal.text, "a: result 42") != NULL);
        places |= 1u << (strstr(journal.text, "a: result") - journal.text) / 5;
        CHECK_EQ_INT(yard.job.thread, (int)syscall(SYS_gettid));
        tr_sender_drop(&a);
        sim_finish(&sim);
    }
    if (getenv("TROUPE_SEED") == NULL)
        CHECK((places & (places - 1)) != 0);
}

/* ---- work of a life long ago ---------------------------------------------------------------- */

static sem_t work_leaves;
static unsigned works_dropped;

static int work_that_takes_long(void *argument)
{
    (void)argument;
    sem_wait(&work_leaves);
    return 0;
}

static void drop_work(void *argument)
{
    (void)argument;
    works_dropped++;
}

static enum tr_next act_work_long(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    CHECK_EQ_INT(tr_offload(ctx, work_that_takes_long, self, drop_work, 1), 0);
    return TR_GO;
}

TEST(work, begun_256_lives_ago_is_dropped)
{
    struct tr_system *system = driven();
    struct journal journal;
    struct player state = { .name = "a", .journal = &journal };
    tr_sender child, root;
    struct tr_child row = {
        .name = "a", .type = &plain_player_type, .state = &state, .ret_sender = &child
    };
    struct tr_supervisor table = {
        .name = "root", .restarts_max = 10000, .children = &row, .child_count = 1
    };

    journal_init(&journal);
    sem_init(&work_leaves, 0, 0);
    CHECK_EQ_INT(tr_supervise(system, &table, "test", &root), 0);
    tell(child, act_work_long, 0);
    while (tr_system_step(system, 100) > 0) {
    }
    for (int i = 0; i < 256; i++) {
        tell(child, act_fail, 0);
        while (tr_system_step(system, 100) > 0) {
        }
    }
    CHECK_JOURNAL(&journal, "");
    sem_post(&work_leaves);
    tr_sender_drop(&child); /* ends when nothing is outstanding any more */
    tr_sender_drop(&root);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_JOURNAL(&journal, "a stops; a ends");
    CHECK_EQ_INT(works_dropped, 1);
    system_finish(&system);
}
