/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/07-time-descriptors-blocking-work.md: the outside world arrives as events. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* Ticks three times, has a sum computed elsewhere, and reads what comes out of a pipe. */
struct sum {
    int upto, result;
};

struct watcher {
    int pipe[2];
    int ticks;
    struct sum *sum; /* lent to the blocking pool until its event comes */
};

enum { TAG_TICK, TAG_SUM, TAG_PIPE };

/* On a thread of the blocking pool: may take as long as it likes, and must not touch the actor. */
static int sum_work(void *argument)
{
    struct sum *sum = argument;

    for (int i = 1; i <= sum->upto; i++)
        sum->result += i;
    return 0;
}

static int watcher_start(void *state, struct tr_context *ctx)
{
    struct watcher *self = state;
    int rc;

    self->sum = malloc(sizeof *self->sum);
    if (self->sum == NULL)
        return TR_ENOMEM;
    *self->sum = (struct sum){ .upto = 1000 };
    rc = tr_offload(ctx, sum_work, self->sum, free, TAG_SUM); /* free: if we end before it does */
    if (rc < 0) {
        free(self->sum);
        return rc;
    }
    return tr_fd_watch(ctx, self->pipe[0], EPOLLIN, TAG_PIPE);
}

static enum tr_next watcher_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct watcher *self = state;
    char text[32];
    ssize_t size;

    switch (event->tag) {
    case TAG_SUM:
        printf("work: the sum up to %d is %d\n", self->sum->upto, self->sum->result);
        free(self->sum); /* ours again */
        if (write(self->pipe[1], "hello", 5) != 5)
            return TR_FAIL;
        break;
    case TAG_PIPE:
        size = read(self->pipe[0], text, sizeof text);
        printf("pipe: %.*s\n", (int)size, text);
        /* Readiness comes once. To hear of more, tr_fd_watch again. Now start ticking instead. */
        return tr_every(ctx, 2 * MS, TAG_TICK, NULL) < 0 ? TR_FAIL : TR_GO;
    case TAG_TICK:
        printf("tick %d\n", ++self->ticks);
        return self->ticks == 3 ? TR_STOP : TR_GO;
    default:
        break;
    }
    return TR_GO;
}

static enum tr_next watcher_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static void watcher_finish(void *state)
{
    struct watcher *self = state;

    close(self->pipe[0]);
    close(self->pipe[1]);
}

static const struct tr_type watcher_type = {
    .name = "watcher",
    .message_size = sizeof(int),
    .state_size = sizeof(struct watcher),
    .start = watcher_start,
    .handle = watcher_handle,
    .event = watcher_event,
    .finish = watcher_finish,
};

int main(void)
{
    struct watcher watcher = { 0 };
    struct tr_system *system;
    tr_sender sender;

    if (pipe(watcher.pipe) < 0)
        return 1;
    must(tr_system_create(NULL, &system));
    must(tr_spawn(system, &watcher_type, &watcher, NULL, &sender));
    /* Timers and descriptors are weak: this sender is what keeps the actor alive until it stops. */
    must(tr_sender_wait_closed(sender, 0));
    tr_sender_drop(&sender);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
