/* SPDX-License-Identifier: Apache-2.0 */
/* embed_uv.c: actors driven by libuv. The loop is libuv's: a uv_poll_t watches the system's
 * descriptor, a uv_timer_t carries its next timeout, and both run what is ready. Handlers and libuv
 * callbacks run on one thread, and neither blocks the other. Built only where libuv is found. */
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

/* Adds what it is told; every 15 ms it says how much that is. Ends when nobody needs it any more.
 */
struct adder {
    int total;
};

static int adder_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_every(ctx, 15 * MS, 0, NULL);
}

static enum tr_next adder_handle(void *state, struct tr_context *ctx, void *message)
{
    struct adder *self = state;

    (void)ctx;
    self->total += *(const int *)message;
    return TR_GO;
}

static enum tr_next adder_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    const struct adder *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_TIMER)
        printf("actor: its own timer, total %d\n", self->total);
    return TR_GO;
}

static void adder_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    const struct adder *self = state;

    (void)ctx;
    printf("actor: ends with %d: %s\n", self->total, tr_why_text(why));
}

static const struct tr_type adder_type = {
    .name = "adder",
    .message_size = sizeof(int),
    .state_size = sizeof(struct adder),
    .start = adder_start,
    .handle = adder_handle,
    .event = adder_event,
    .stop = adder_stop,
};
TR_ACTOR(adder, struct adder, int)

/* Ties the two loops together. */
struct host {
    struct tr_system *system;
    uv_poll_t poll;
    uv_timer_t timer;
    uv_timer_t program; /* the program's own, to have something libuv does beside */
    adder_sender adder;
    int ticks;
};

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

static void must_uv(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", uv_strerror(rc));
        exit(1);
    }
}

static void on_timer(uv_timer_t *timer);

/* Run what is ready, then tell libuv when to come back. */
static void drive(struct host *host)
{
    struct tr_system_stats stats;
    int timeout_ms;

    tr_system_step(host->system, 100);
    tr_system_stats(host->system, &stats);
    if (stats.live == 0) {
        uv_close((uv_handle_t *)&host->poll, NULL);
        uv_close((uv_handle_t *)&host->timer, NULL);
        return;
    }
    timeout_ms = tr_system_timeout_ms(host->system);
    if (timeout_ms < 0)
        uv_timer_stop(&host->timer);
    else
        must_uv(uv_timer_start(&host->timer, on_timer, (uint64_t)timeout_ms, 0));
}

static void on_timer(uv_timer_t *timer)
{
    drive(timer->data);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    drive(poll->data);
}

static void on_program_tick(uv_timer_t *timer)
{
    struct host *host = timer->data;

    printf("libuv: tick %d\n", ++host->ticks);
    must(adder_tell(host->adder, host->ticks));
    if (host->ticks < 5)
        return;
    adder_drop(&host->adder); /* the last sender: the actor ends by itself */
    uv_close((uv_handle_t *)timer, NULL);
}

int main(void)
{
    struct adder adder = { 0 };
    struct host host = { 0 };
    uv_loop_t loop;

    must_uv(uv_loop_init(&loop));
    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &host.system));
    must(adder_spawn(host.system, &adder, NULL, &host.adder));

    host.poll.data = host.timer.data = host.program.data = &host;
    must_uv(uv_poll_init(&loop, &host.poll, tr_system_fd(host.system)));
    must_uv(uv_timer_init(&loop, &host.timer));
    must_uv(uv_timer_init(&loop, &host.program));
    must_uv(uv_poll_start(&host.poll, UV_READABLE, on_ready));
    must_uv(uv_timer_start(&host.program, on_program_tick, 10, 10));
    drive(&host);

    must_uv(uv_run(&loop, UV_RUN_DEFAULT)); /* returns when every handle is closed */

    must_uv(uv_loop_close(&loop));
    tr_system_destroy(&host.system);
    printf("both loops are done\n");
    return host.ticks == 5 ? 0 : 1;
}
