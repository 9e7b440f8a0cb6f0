/* SPDX-License-Identifier: Apache-2.0 */
/* embed_poll.c: actors inside a program that has its own loop. The system has no threads: poll()
 * watches its one descriptor beside the program's own, with its next timeout, and tr_system_step
 * runs what is ready. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

/* Counts what it is told, and says so every 20 ms. After five times it is done. */
struct meter {
    int total, reports;
};

static int meter_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_every(ctx, 20 * MS, 0, NULL);
}

static enum tr_next meter_handle(void *state, struct tr_context *ctx, void *message)
{
    struct meter *self = state;

    (void)ctx;
    self->total += *(const int *)message;
    return TR_GO;
}

static enum tr_next meter_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct meter *self = state;

    (void)ctx;
    (void)event;
    printf("meter: report %d, total %d\n", ++self->reports, self->total);
    return self->reports == 5 ? TR_STOP : TR_GO;
}

static const struct tr_type meter_type = {
    .name = "meter",
    .message_size = sizeof(int),
    .state_size = sizeof(struct meter),
    .start = meter_start,
    .handle = meter_handle,
    .event = meter_event,
};
TR_ACTOR(meter, struct meter, int)

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

int main(void)
{
    struct meter meter = { 0 };
    struct tr_system *system;
    struct tr_done *done;
    meter_sender sender;
    struct pollfd watched[2];
    int own[2], rounds = 0;
    char byte = 'x';

    /* The program's own descriptor: a pipe with three bytes in it, one read each round. */
    if (pipe(own) < 0 || write(own[1], "abc", 3) != 3)
        return 1;
    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));
    must(meter_spawn(system, &meter, &(struct tr_spawn_options){ .ret_done = &done }, &sender));

    watched[0] = (struct pollfd){ .fd = tr_system_fd(system), .events = POLLIN };
    watched[1] = (struct pollfd){ .fd = own[0], .events = POLLIN };
    must(watched[0].fd);

    while (!tr_sender_is_closed(sender.raw)) {
        tr_system_step(system, 100);
        /* Ask for the timeout last: from here on whoever sends makes the descriptor readable. */
        if (poll(watched, 2, tr_system_timeout_ms(system)) < 0)
            break;
        rounds++;
        if (watched[1].revents & POLLIN && read(own[0], &byte, 1) == 1) {
            printf("main: read '%c' from its own pipe\n", byte);
            must(meter_tell(sender, 10));
        }
    }
    meter_drop(&sender);
    must(tr_done_wait(&done, &meter, NULL, 0));
    must(tr_system_join(system, 0));
    printf("main: the meter ended with %d; the loop %s\n", meter.total,
        rounds < 1000 ? "slept in between" : "was spinning");
    tr_system_destroy(&system);
    close(own[0]);
    close(own[1]);
    return meter.total == 30 && rounds < 1000 ? 0 : 1;
}
