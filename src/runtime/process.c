/* SPDX-License-Identifier: Apache-2.0 */
/* process.c: the proxy of an actor that lives in a child process.
 *
 *   down ──request──▶ starting ──HELLO, pidfd──▶ up ──its socket ends, garbage, silence──▶ ending
 *    ▲                    └───────────────┬────────┴──────────────────────────────────────────┘
 *    │                                    ▼ it exits (after STOP, if the proxy stops)
 *    └── back-off ◀── unasked ◀── its flights are settled
 *
 * A message that has left the box is a flight (process_flight.h). A child's end loses the messages
 * it had begun and the answers it owed; the others go to the next child.
 *
 * Invariants:
 *   1. The gate is shut (nothing but control messages and events run) unless the child is up and
 *      fewer than ahead_max flights are ahead. So the box bounds the senders, with its lanes and
 *      its policy.
 *   2. While flights are ahead, or a child has to be waited for in the stop, box->asks counts one
 *      more than the runtime knows of (`kept`): the actor does not end under them.
 *   3. The wire is open in the phases starting and up, and in no other.
 *   4. A child is over when the helper says so, or, if the helper cannot, when its pidfd does. Its
 *      descriptors are closed then, not before, except the wire, which is closed as soon as the
 *      child has nothing more to say. */
#include "runtime/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <troupe/ask.h>
#include <troupe/event.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/random.h"
#include "runtime/actor.h"
#include "runtime/box.h"
#include "runtime/context.h"
#include "runtime/ext.h"
#include "runtime/list.h"
#include "runtime/point.h"
#include "runtime/process_flight.h"
#include "runtime/restart.h"
#include "runtime/run_queue.h"
#include "runtime/system.h"
#include "runtime/wire.h"
#include "runtime/worker.h"

enum phase { PHASE_DOWN, PHASE_STARTING, PHASE_UP, PHASE_ENDING };
enum tag { TAG_WIRE = 1, TAG_NOTICES, TAG_PIDFD, TAG_TICK, TAG_PHASE };

enum {
    AHEAD_DEFAULT = 16,
    AHEAD_MAX = 1024,
    CONTROL_AHEAD_MAX = 64, /* control messages may go past ahead_max by this */
    ASKS_DEFAULT = 1024,
    ASKS_MAX = 16384,
    RESTARTS_DEFAULT = 5,
    RESTARTS_MAX = 1 << 20,
    JITTER_DEFAULT = 20,
    OUT_BYTES_MAX = 1 << 20, /* written but not taken by the socket: then the gate shuts */
    READS_MAX = 16,          /* in one event */
    DRAIN_READS_MAX = 4096,  /* bytes that a dead child may have left behind */
};
static const uint64_t second_ns = UINT64_C(1000000000);
static const uint64_t ms_ns = UINT64_C(1000000);
static const uint64_t killed_ns = UINT64_C(5000000000);
static const uint64_t memory_ns = UINT64_C(10000000); /* until it is tried again */
static const uint64_t busy_ns = UINT64_C(5000000);    /* the same */
static const uint64_t back_off_step_ns = UINT64_C(50000000);
static const uint64_t last_word_ns = UINT64_C(1000000000);

struct tr__proxy {
    struct tr__proxy *next, *prev; /* the owner's list, under its lock */
    struct tr__process_type *type;
    struct tr_box *box;
    char *argument;
    struct tr_process limits; /* with the defaults filled in */

    enum phase phase;
    bool stopping; /* the stop hook has run */
    bool greeted;  /* HELLO has come */
    bool bye;      /* the actor in the child has ended by itself */
    bool helper_gone;
    bool kept;     /* invariant 2 */
    bool exited;   /* its pidfd says so */
    bool deserted; /* no child, no senders, nothing to do */
    bool listed;
    int wire, notices, pidfd;
    unsigned wire_armed;
    enum tr_process_end cause; /* why this child has to end; RUNNING: unknown yet */
    int cause_code;
    uint64_t up_ns;

    struct tr__wire_buffer in, out;
    struct tr__flights flights;

    uint64_t tick_timer, phase_timer;
    uint64_t heard_ns; /* the last sign of life, or when something became due */
    uint64_t ping_id;
    bool ping_open;

    struct tr__restarts restarts;
    uint32_t failures;      /* in a row */
    uint64_t restart_at_ns; /* the end of the back-off */

    /* for tr_process_info, from any thread */
    _Atomic int pid;
    _Atomic uint32_t starts, restart_total;
    _Atomic uint64_t last_end; /* enum tr_process_end << 32 | code */
};

static struct tr__process_type *type_of(const struct tr_box *box)
{
    return tr__container((uintptr_t)box->type, struct tr__process_type, type);
}

static const struct tr_codec *codec_of(const struct tr__proxy *proxy)
{
    return &proxy->type->row->codec;
}

static uint32_t ahead_count(const struct tr__proxy *proxy)
{
    return tr__get(proxy->flights.ahead_count);
}

static uint32_t ask_count(const struct tr__proxy *proxy)
{
    return tr__get(proxy->flights.ask_count);
}

/* ---- gate and keep --------------------------------------------------------------------------- */

static void gate_set(struct tr__proxy *proxy, struct tr_context *ctx)
{
    uint32_t status = tr__get(proxy->box->status);
    bool shut = proxy->phase != PHASE_UP || ahead_count(proxy) >= proxy->limits.ahead_max ||
                tr__wire_size(&proxy->out) > OUT_BYTES_MAX || proxy->stopping;

    /* In the stop without a child, or when no sender needs one, there is nothing to wait for. */
    if (proxy->phase == PHASE_DOWN && (proxy->stopping || proxy->deserted))
        shut = false;
    if (shut) {
        tr__set(proxy->box->status, status | STATUS_HELD);
        ctx->after |= AFTER_HOLD; /* leaves the fast path */
    } else {
        tr__set(proxy->box->status, status & ~(uint32_t)STATUS_HELD);
    }
}

static void keep_set(struct tr__proxy *proxy)
{
    bool keep = ahead_count(proxy) > 0 || (proxy->stopping && proxy->phase != PHASE_DOWN);

    if (keep != proxy->kept)
        tr__add(proxy->box->asks, keep ? 1 : UINT32_MAX);
    proxy->kept = keep;
}

/* Called at the end of every hook: set gate, timer and watches for the new state. */
static void update(struct tr__proxy *proxy, struct tr_context *ctx)
{
    gate_set(proxy, ctx);
    keep_set(proxy);
}

/* ---- descriptors and timers ------------------------------------------------------------------ */

static void fd_close(struct tr_context *ctx, int *fd)
{
    if (*fd < 0)
        return;
    if (ctx != NULL)
        tr_fd_forget(ctx, *fd);
    close(*fd);
    *fd = -1;
}

static void phase_timer_stop(struct tr__proxy *proxy, struct tr_context *ctx)
{
    if (proxy->phase_timer != 0)
        tr_timer_stop(ctx, proxy->phase_timer);
    proxy->phase_timer = 0;
}

static int phase_timer_set(struct tr__proxy *proxy, struct tr_context *ctx, uint64_t delay_ns)
{
    phase_timer_stop(proxy, ctx);
    return tr_after(ctx, delay_ns, TAG_PHASE, &proxy->phase_timer);
}

static void wire_close(struct tr__proxy *proxy, struct tr_context *ctx)
{
    fd_close(ctx, &proxy->wire);
    proxy->wire_armed = 0;
    tr__wire_finish(&proxy->in);
    tr__wire_finish(&proxy->out);
}

/* Without a pidfd it is not there yet, or there was no descriptor left for it; and a sandbox may
 * forbid signals. The helper can always. */
static void child_kill(struct tr__proxy *proxy)
{
    if (proxy->pidfd < 0 || pidfd_send_signal(proxy->pidfd, SIGKILL, NULL, 0) < 0)
        tr__process_kill(proxy->notices);
}

/* The error of askers for each cause. */
static int status_of(enum tr_process_end cause)
{
    return cause == TR_PROCESS_HUNG      ? TR_ETIMEOUT
           : cause == TR_PROCESS_GARBAGE ? TR_EPROTO
                                         : TR_ECRASHED;
}

/* End this child: close its wire, answer its askers, wait for its exit. */
static void condemn(
    struct tr__proxy *proxy, struct tr_context *ctx, enum tr_process_end cause, int code)
{
    if (proxy->cause == TR_PROCESS_RUNNING) {
        proxy->cause = cause;
        proxy->cause_code = code;
    }
    proxy->phase = PHASE_ENDING;
    tr__flights_settle(&proxy->flights, status_of(proxy->cause), TR_DEAD_CRASHED);
    wire_close(proxy, ctx);
    child_kill(proxy);
    /* A process that does not even die when it is killed is the helper's from then on. */
    phase_timer_set(proxy, ctx, killed_ns);
}

/* Its end of the wire is closed. Mostly it is exiting; if not, it does not have long. */
static void wire_ended(struct tr__proxy *proxy, struct tr_context *ctx)
{
    wire_close(proxy, ctx);
    proxy->phase = PHASE_ENDING;
    if (!proxy->stopping && phase_timer_set(proxy, ctx, proxy->limits.hang_ns) < 0)
        condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
}

static void wire_watch(struct tr__proxy *proxy, struct tr_context *ctx)
{
    unsigned events = EPOLLIN;

    if (proxy->wire < 0)
        return;
    if (tr__wire_size(&proxy->out) > 0)
        events |= EPOLLOUT;
    if (proxy->wire_armed == events)
        return;
    if (tr_fd_watch(ctx, proxy->wire, events, TAG_WIRE) < 0)
        condemn(proxy, ctx, TR_PROCESS_LOST, ENOMEM);
    else
        proxy->wire_armed = events;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Is a sign of life due? */
static bool is_due(const struct tr__proxy *proxy)
{
    return proxy->phase == PHASE_UP && !proxy->stopping &&
           (ahead_count(proxy) > 0 || ask_count(proxy) > 0);
}

static void tick_set(struct tr__proxy *proxy, struct tr_context *ctx, uint64_t delay_ns)
{
    if (proxy->tick_timer != 0)
        tr_timer_stop(ctx, proxy->tick_timer);
    proxy->tick_timer = 0;
    if (is_due(proxy) && tr_after(ctx, delay_ns, TAG_TICK, &proxy->tick_timer) < 0)
        proxy->tick_timer = 0; /* with the next message */
}

static int receive(struct tr__proxy *proxy, struct tr_context *ctx, uint32_t reads_max);

static void on_receive_error(struct tr__proxy *proxy, struct tr_context *ctx, int error)
{
    if (error == TR_EPROTO)
        condemn(proxy, ctx, TR_PROCESS_GARBAGE, 0);
    else if (error == TR_ECLOSED)
        wire_ended(proxy, ctx);
    else
        condemn(proxy, ctx, TR_PROCESS_LOST, error == TR_ENOMEM ? ENOMEM : EPIPE);
}

/* Send the messages that may go to the child now. */
static void pump(struct tr__proxy *proxy, struct tr_context *ctx)
{
    bool short_of_memory = false;

    if (proxy->phase == PHASE_UP && proxy->wire >= 0) {
        if (!proxy->stopping)
            short_of_memory =
                tr__flights_send(&proxy->flights, ctx, &proxy->out, OUT_BYTES_MAX) < 0;
        if (tr__wire_send(&proxy->out, proxy->wire) == TR_ECLOSED) {
            /* The child has probably died; frames it sent before still count. */
            on_receive_error(proxy, ctx, receive(proxy, ctx, DRAIN_READS_MAX));
            return;
        }
        if (proxy->tick_timer == 0)
            proxy->heard_ns = tr_now_ns(ctx);
        if (short_of_memory)
            tick_set(proxy, ctx, memory_ns);
        else if (proxy->tick_timer == 0)
            tick_set(proxy, ctx, proxy->limits.hang_ns / 4);
    }
    wire_watch(proxy, ctx);
}

/* ---- life of a child ------------------------------------------------------------------------- */

static enum tr_next child_over(struct tr__proxy *proxy, struct tr_context *ctx);

static int child_request(struct tr__proxy *proxy, struct tr_context *ctx)
{
    int rc;

    rc = tr__process_request(
        proxy->type->owner, proxy->type->row->name, proxy->argument, &proxy->wire, &proxy->notices);
    if (rc < 0) {
        proxy->wire = proxy->notices = -1;
        return rc;
    }
    rc = tr_fd_watch(ctx, proxy->notices, EPOLLIN, TAG_NOTICES);
    if (rc == 0)
        rc = tr_fd_watch(ctx, proxy->wire, EPOLLIN, TAG_WIRE);
    if (rc == 0)
        rc = phase_timer_set(proxy, ctx, proxy->limits.start_ns);
    if (rc == 0) {
        proxy->wire_armed = EPOLLIN;
        return 0;
    }
    /* Closed notices: the helper ends what it may have started. */
    fd_close(ctx, &proxy->notices);
    wire_close(proxy, ctx);
    return rc;
}

static void log_end(struct tr__proxy *proxy, const char *then)
{
    char name[64];

    tr__log(proxy->box->system, "process actor %s: child %d: %s (%d); %s",
        tr__box_name(proxy->box, name, sizeof name), tr__get(proxy->pid),
        tr_process_end_text(proxy->cause), proxy->cause_code, then);
}

static bool is_deserted(const struct tr__proxy *proxy)
{
    uint64_t word = atomic_load_explicit(&proxy->box->word, memory_order_acquire);

    return word & WORD_SENDERLESS && tr__word_count(word) == 0 && tr__word_cell(word) == NULL &&
           ahead_count(proxy) == 0;
}

static enum tr_next give_up(struct tr__proxy *proxy, const char *why)
{
    log_end(proxy, why);
    tr__flights_fail(&proxy->flights, TR_ECRASHED, TR_DEAD_CRASHED);
    return TR_FAIL;
}

/* Wait in short steps and check whether a child is still needed: without senders and messages the
 * gate opens and the actor ends. */
static enum tr_next back_off(struct tr__proxy *proxy, struct tr_context *ctx)
{
    uint64_t now = tr_now_ns(ctx);
    uint64_t delay = proxy->restart_at_ns > now ? proxy->restart_at_ns - now : 0;

    proxy->deserted = is_deserted(proxy);
    if (proxy->deserted)
        return TR_GO;
    if (phase_timer_set(proxy, ctx, delay < back_off_step_ns ? delay : back_off_step_ns) < 0)
        return give_up(proxy, "gives up: no memory to wait");
    return TR_GO;
}

static enum tr_next restart_later(struct tr__proxy *proxy, struct tr_context *ctx)
{
    struct tr__backoff backoff = { proxy->limits.backoff_ns_min, proxy->limits.backoff_ns_max,
        proxy->limits.jitter_percent };
    uint64_t now = tr_now_ns(ctx), delay;
    char then[64];

    tr__add(proxy->restart_total, 1);
    if (proxy->helper_gone)
        return give_up(proxy, "cannot be started again");
    if (tr__restarts_add(&proxy->restarts, now))
        return give_up(proxy, "gives up: too many restarts in its window");
    proxy->failures =
        proxy->up_ns != 0 && now - proxy->up_ns > proxy->limits.window_ns ? 1 : proxy->failures + 1;
    delay = tr__backoff_ns(&backoff, proxy->failures, &ctx->worker->random);
    snprintf(then, sizeof then, "restart in %llu ms", (unsigned long long)(delay / ms_ns));
    log_end(proxy, then);
    proxy->restart_at_ns = tr__later(now, delay);
    return back_off(proxy, ctx);
}

static enum tr_next child_start(struct tr__proxy *proxy, struct tr_context *ctx)
{
    int rc;

    proxy->cause = TR_PROCESS_RUNNING;
    proxy->cause_code = 0;
    proxy->ping_open = proxy->exited = proxy->greeted = proxy->bye = false;
    proxy->up_ns = 0;
    proxy->phase = PHASE_STARTING;
    rc = child_request(proxy, ctx);
    if (rc == 0) {
        tr__add(proxy->starts, 1);
        return TR_GO;
    }
    if (rc == TR_EAGAIN) { /* the helper is behind: no fault of anybody */
        proxy->phase = PHASE_DOWN;
        proxy->restart_at_ns = tr_now_ns(ctx) + busy_ns;
        return back_off(proxy, ctx);
    }
    proxy->helper_gone = rc == TR_ECLOSED;
    proxy->cause = proxy->helper_gone ? TR_PROCESS_HELPER : TR_PROCESS_NO_START;
    return child_over(proxy, ctx);
}

/* The child is gone and reaped, or was never there. */
static enum tr_next child_over(struct tr__proxy *proxy, struct tr_context *ctx)
{
    enum tr_next next = TR_GO;

    phase_timer_stop(proxy, ctx);
    if (proxy->tick_timer != 0)
        tr_timer_stop(ctx, proxy->tick_timer);
    proxy->tick_timer = 0;
    wire_close(proxy, ctx);
    fd_close(ctx, &proxy->notices);
    fd_close(ctx, &proxy->pidfd);
    proxy->phase = PHASE_DOWN;
    if ((proxy->stopping || proxy->bye) && proxy->cause == TR_PROCESS_EXITED &&
        proxy->cause_code == 0)
        proxy->cause = TR_PROCESS_STOPPED;
    tr__set(proxy->last_end, (uint64_t)proxy->cause << 32 | (uint32_t)proxy->cause_code);
    if (proxy->cause != TR_PROCESS_STOPPED)
        tr__flights_settle(&proxy->flights, status_of(proxy->cause), TR_DEAD_CRASHED);
    if (proxy->stopping && proxy->cause != TR_PROCESS_STOPPED)
        log_end(proxy, "while it was stopping");
    if (proxy->stopping || proxy->cause == TR_PROCESS_STOPPED) {
        tr__flights_fail(&proxy->flights, TR_ECLOSED, TR_DEAD_STOPPED);
        /* In the stop no answer is outstanding: the turn ends the actor. */
        next = proxy->stopping ? TR_GO : TR_STOP;
    } else {
        next = restart_later(proxy, ctx);
    }
    tr__set(proxy->pid, 0);
    return next;
}

/* ---- frames of the child -------------------------------------------------------------------- */

/* It has started, and its pidfd is here: one that could not be killed gets no messages. */
static void up_if_ready(struct tr__proxy *proxy, struct tr_context *ctx)
{
    if (proxy->phase != PHASE_STARTING || !proxy->greeted || proxy->pidfd < 0)
        return;
    proxy->phase = PHASE_UP;
    proxy->up_ns = tr_now_ns(ctx);
    phase_timer_stop(proxy, ctx);
}

static int on_hello(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__wire_frame *frame)
{
    if (proxy->greeted || frame->id != WIRE_VERSION ||
        frame->argument != proxy->box->type->message_size)
        return TR_EPROTO;
    proxy->greeted = true;
    up_if_ready(proxy, ctx);
    return 0;
}

static int on_frame(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__wire_frame *frame)
{
    if (frame->kind == WIRE_HELLO)
        return on_hello(proxy, ctx, frame);
    if (!proxy->greeted || proxy->bye)
        return TR_EPROTO;
    switch (frame->kind) {
    case WIRE_BEGIN:
    case WIRE_DONE:
    case WIRE_REPLY:
    case WIRE_ACCEPT:
        return tr__flights_on_frame(&proxy->flights, frame);
    case WIRE_PONG:
        if (!proxy->ping_open || frame->id != proxy->ping_id)
            return TR_EPROTO;
        proxy->ping_open = false;
        return 0;
    case WIRE_BYE:
        proxy->bye = true;
        return 0;
    case WIRE_TELL:
    case WIRE_ASK:
    case WIRE_PING:
    case WIRE_STOP:
    case WIRE_HELLO:
    case WIRE_KINDS:
        break;
    }
    return TR_EPROTO;
}

/* Read the available frames. 0, or the reason why no more come: TR_ECLOSED, TR_EPROTO, TR_ENOMEM.
 */
static int receive(struct tr__proxy *proxy, struct tr_context *ctx, uint32_t reads_max)
{
    uint32_t body_max = tr__codec_bytes_max(codec_of(proxy));
    struct tr__wire_frame frame;
    int rc = 0;

    for (uint32_t reads = 0; rc >= 0 && reads < reads_max; reads++) {
        rc = tr__wire_receive(&proxy->in, proxy->wire);
        if (rc > 0)
            proxy->heard_ns = tr_now_ns(ctx);
        while (rc >= 0) {
            rc = tr__wire_take(&proxy->in, WIRE_FROM_CHILD, body_max, &frame);
            if (rc <= 0)
                break;
            rc = on_frame(proxy, ctx, &frame);
        }
    }
    return rc < 0 && rc != TR_EAGAIN ? rc : 0;
}

static void on_wire(struct tr__proxy *proxy, struct tr_context *ctx)
{
    int rc;

    if (proxy->wire < 0)
        return;
    rc = receive(proxy, ctx, READS_MAX);
    if (rc < 0)
        on_receive_error(proxy, ctx, rc);
}

/* ---- notices of the helper ------------------------------------------------------------------ */

/* The child has exited. Frames it sent before still count. */
static void drain(struct tr__proxy *proxy, struct tr_context *ctx)
{
    if (proxy->wire >= 0 && receive(proxy, ctx, DRAIN_READS_MAX) == TR_EPROTO &&
        proxy->cause == TR_PROCESS_RUNNING)
        proxy->cause = TR_PROCESS_GARBAGE;
    wire_close(proxy, ctx);
    proxy->phase = PHASE_ENDING;
}

static enum tr_next on_exited(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__notice *notice)
{
    drain(proxy, ctx);
    if (proxy->cause == TR_PROCESS_RUNNING) {
        bool exited = notice->code == CLD_EXITED;

        proxy->cause = exited ? TR_PROCESS_EXITED : TR_PROCESS_SIGNALED;
        proxy->cause_code = notice->status;
    }
    return child_over(proxy, ctx);
}

static void on_spawned(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__notice *notice, int pidfd)
{
    tr__set(proxy->pid, notice->pid);
    proxy->pidfd = pidfd;
    if (pidfd < 0) {
        condemn(proxy, ctx, TR_PROCESS_LOST, EMFILE);
        return;
    }
    /* Only in case that the helper cannot tell. */
    tr_fd_watch(ctx, pidfd, EPOLLIN, TAG_PIDFD);
    if (proxy->phase == PHASE_ENDING)
        child_kill(proxy);
    up_if_ready(proxy, ctx);
}

/* The helper's end is closed without a last word. */
static enum tr_next on_notices_end(struct tr__proxy *proxy, struct tr_context *ctx)
{
    fd_close(ctx, &proxy->notices);
    proxy->helper_gone = !tr__process_helper_lives(proxy->type->owner);
    condemn(proxy, ctx, proxy->helper_gone ? TR_PROCESS_HELPER : TR_PROCESS_LOST, 0);
    if (proxy->pidfd < 0 || tr_fd_watch(ctx, proxy->pidfd, EPOLLIN, TAG_PIDFD) < 0)
        return child_over(proxy, ctx);
    return TR_GO;
}

static enum tr_next on_notices(struct tr__proxy *proxy, struct tr_context *ctx)
{
    struct tr__notice notice;
    int pidfd, rc;

    while (proxy->notices >= 0) {
        rc = tr__process_notice(proxy->notices, &notice, &pidfd);
        if (rc == TR_EAGAIN)
            break;
        if (rc < 0)
            return on_notices_end(proxy, ctx);
        if (notice.kind == NOTICE_SPAWNED) {
            on_spawned(proxy, ctx, &notice, pidfd);
            continue;
        }
        if (pidfd >= 0)
            close(pidfd);
        if (notice.kind == NOTICE_EXITED)
            return on_exited(proxy, ctx, &notice);
        if (proxy->cause == TR_PROCESS_RUNNING) {
            proxy->cause = TR_PROCESS_NO_START;
            proxy->cause_code = notice.code;
        }
        return child_over(proxy, ctx);
    }
    if (proxy->notices >= 0 && tr_fd_watch(ctx, proxy->notices, EPOLLIN, TAG_NOTICES) < 0)
        return on_notices_end(proxy, ctx);
    return TR_GO;
}

/* The child is gone, and its exit status is unknown. */
static enum tr_next child_lost(struct tr__proxy *proxy, struct tr_context *ctx)
{
    if (proxy->cause == TR_PROCESS_RUNNING) {
        proxy->cause = TR_PROCESS_EXITED;
        proxy->cause_code = -1;
    }
    return child_over(proxy, ctx);
}

/* The helper is about to say how it exited; if it does not, that is lost. */
static enum tr_next on_pidfd(struct tr__proxy *proxy, struct tr_context *ctx)
{
    proxy->exited = true;
    drain(proxy, ctx);
    if (proxy->notices < 0 || phase_timer_set(proxy, ctx, last_word_ns) < 0)
        return child_lost(proxy, ctx);
    return TR_GO;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void on_tick(struct tr__proxy *proxy, struct tr_context *ctx)
{
    uint64_t silent_ns;

    proxy->tick_timer = 0;
    /* Look before judging: perhaps it was this side that did not run. */
    on_wire(proxy, ctx);
    if (!is_due(proxy))
        return;
    silent_ns = tr_now_ns(ctx) - proxy->heard_ns;
    if (silent_ns >= proxy->limits.hang_ns && proxy->ping_open) {
        condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
        return;
    }
    if (silent_ns >= proxy->limits.hang_ns / 4 && !proxy->ping_open) {
        struct tr__wire_frame ping = { .kind = WIRE_PING, .id = ++proxy->ping_id };

        proxy->ping_open = tr__wire_put(&proxy->out, &ping) == 0;
    }
    tick_set(proxy, ctx, proxy->limits.hang_ns / 4);
}

static enum tr_next on_phase_timer(struct tr__proxy *proxy, struct tr_context *ctx)
{
    proxy->phase_timer = 0;
    switch (proxy->phase) {
    case PHASE_DOWN:
        return tr_now_ns(ctx) >= proxy->restart_at_ns ? child_start(proxy, ctx)
                                                      : back_off(proxy, ctx);
    case PHASE_STARTING:
        condemn(proxy, ctx, TR_PROCESS_NO_START, ETIMEDOUT);
        return TR_GO;
    case PHASE_UP: /* in the stop: its grace is over */
        condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
        return TR_GO;
    case PHASE_ENDING:
        if (proxy->exited || proxy->cause != TR_PROCESS_RUNNING)
            return child_lost(proxy, ctx);
        condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
        return TR_GO;
    }
    return TR_GO;
}

/* ---- the actor ------------------------------------------------------------------------------- */

static struct tr__proxy *proxy_of(void *state)
{
    return ((struct tr_process *)state)->proxy;
}

static void limits_init(struct tr_process *limits)
{
#define DEFAULT(field, value) (limits->field = limits->field != 0 ? limits->field : (value))
    DEFAULT(start_ns, 10 * second_ns);
    DEFAULT(hang_ns, 10 * second_ns);
    DEFAULT(grace_ns, 5 * second_ns);
    DEFAULT(backoff_ns_min, 10 * ms_ns);
    DEFAULT(backoff_ns_max, 5 * second_ns);
    DEFAULT(jitter_percent, JITTER_DEFAULT);
    DEFAULT(restarts_max, RESTARTS_DEFAULT);
    DEFAULT(window_ns, 10 * second_ns);
    DEFAULT(ahead_max, AHEAD_DEFAULT);
    DEFAULT(asks_max, ASKS_DEFAULT);
#undef DEFAULT
    if (limits->jitter_percent > 100)
        limits->jitter_percent = 100;
    if (limits->restarts_max > RESTARTS_MAX)
        limits->restarts_max = RESTARTS_MAX;
    if (limits->ahead_max > AHEAD_MAX)
        limits->ahead_max = AHEAD_MAX;
    if (limits->asks_max > ASKS_MAX)
        limits->asks_max = ASKS_MAX;
}

static void proxy_free(struct tr__proxy *proxy)
{
    tr__flights_finish(&proxy->flights);
    base_free(proxy->argument);
    tr__restarts_fini(&proxy->restarts);
    base_free(proxy);
}

static struct tr__proxy *proxy_make(const struct tr_process *process, struct tr__process_type *type)
{
    struct tr__proxy *proxy = base_calloc(sizeof *proxy);

    if (proxy == NULL)
        return NULL;
    proxy->type = type;
    proxy->limits = *process;
    proxy->wire = proxy->notices = proxy->pidfd = -1;
    limits_init(&proxy->limits);
    if (process->argument != NULL)
        proxy->argument = base_strdup(process->argument);
    if (tr__flights_init(&proxy->flights, codec_of(proxy)) < 0 ||
        tr__restarts_init(&proxy->restarts, proxy->limits.restarts_max, proxy->limits.window_ns) <
            0 ||
        (process->argument != NULL && proxy->argument == NULL)) {
        proxy_free(proxy);
        return NULL;
    }
    return proxy;
}

static void proxy_list(struct tr__proxy *proxy)
{
    struct tr__processes *owner = proxy->type->owner;

    pthread_mutex_lock(&owner->lock);
    proxy->next = owner->live;
    if (owner->live != NULL)
        owner->live->prev = proxy;
    owner->live = proxy;
    proxy->listed = true;
    pthread_mutex_unlock(&owner->lock);
}

static void proxy_unlist(struct tr__proxy *proxy)
{
    struct tr__processes *owner = proxy->type->owner;

    pthread_mutex_lock(&owner->lock);
    if (proxy->prev != NULL)
        proxy->prev->next = proxy->next;
    else
        owner->live = proxy->next;
    if (proxy->next != NULL)
        proxy->next->prev = proxy->prev;
    pthread_mutex_unlock(&owner->lock);
}

static int argument_check(const struct tr_process *process)
{
    return process->argument != NULL && strlen(process->argument) > TR_PROCESS_ARGUMENT_MAX
               ? TR_ETOOBIG
               : 0;
}

static int start(void *state, struct tr_context *ctx)
{
    struct tr_process *self = state;
    struct tr__proxy *proxy = self->proxy;
    enum tr_next next;

    tr_assert_use(type_of(ctx->box)->owner->system == ctx->worker->system,
        "a process actor runs in the system whose helper was started for it");
    if (proxy == NULL) {
        if (argument_check(self) < 0)
            return TR_ETOOBIG;
        proxy = self->proxy = proxy_make(self, type_of(ctx->box));
        if (proxy == NULL)
            return TR_ENOMEM;
    }
    if (tr__ext_get(ctx->box) == NULL)
        return TR_ENOMEM; /* an actor that holds has an ext, and a shut gate is a hold */
    proxy->box = proxy->flights.box = ctx->box;
    if (!proxy->listed)
        proxy_list(proxy);
    /* Its timers and descriptors must reach it through the shut gate. */
    tr__set(ctx->box->status, tr__get(ctx->box->status) | STATUS_URGENT);
    proxy->stopping = false;
    tr__restarts_reset(&proxy->restarts);
    proxy->failures = 0;
    next = child_start(proxy, ctx);
    update(proxy, ctx);
    return next == TR_GO ? 0 : TR_ECRASHED;
}

/* Check whether one more message may leave the box. The gate holds back the ordinary lanes. */
static int room_check(struct tr__proxy *proxy, const struct tr_context *ctx)
{
    if (ahead_count(proxy) >= proxy->limits.ahead_max + CONTROL_AHEAD_MAX)
        return TR_EFULL;
    if (!tr_is_asked(ctx) || ask_count(proxy) < proxy->limits.asks_max)
        return 0;
    tr__flights_sweep(&proxy->flights);
    return ask_count(proxy) < proxy->limits.asks_max ? 0 : TR_EFULL;
}

static enum tr_next handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr__proxy *proxy = proxy_of(state);
    const struct tr_type *type = proxy->box->type;
    int rc;

    rc = room_check(proxy, ctx);
    if (rc == 0)
        rc = tr__flights_take(&proxy->flights, ctx, message);
    if (rc < 0) {
        tr_reply(ctx, rc, NULL, 0);
        tr__flights_refused(
            &proxy->flights, type->message_name != NULL ? type->message_name(message) : NULL);
    }
    if (type->message_drop != NULL)
        type->message_drop(message);
    pump(proxy, ctx);
    update(proxy, ctx);
    return TR_GO;
}

static enum tr_next on_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct tr__proxy *proxy = proxy_of(state);
    enum tr_next next = TR_GO;

    switch ((enum tag)event->tag) {
    case TAG_WIRE:
        proxy->wire_armed = 0;
        on_wire(proxy, ctx);
        break;
    case TAG_NOTICES:
        next = on_notices(proxy, ctx);
        break;
    case TAG_PIDFD:
        next = on_pidfd(proxy, ctx);
        break;
    case TAG_TICK:
        on_tick(proxy, ctx);
        break;
    case TAG_PHASE:
        next = on_phase_timer(proxy, ctx);
        break;
    }
    pump(proxy, ctx);
    update(proxy, ctx);
    return next;
}

static void stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct tr__proxy *proxy = proxy_of(state);

    (void)why;
    if (proxy == NULL || proxy->box == NULL)
        return; /* it has never started */
    proxy->stopping = true;
    if (proxy->phase == PHASE_DOWN)
        phase_timer_stop(proxy, ctx);
    if (proxy->phase == PHASE_STARTING)
        condemn(proxy, ctx, TR_PROCESS_STOPPED, 0);
    if (proxy->phase == PHASE_UP) {
        struct tr__wire_frame frame = { .kind = WIRE_STOP };

        /* A message that has left the box counts as handled. */
        tr__flights_send(&proxy->flights, ctx, &proxy->out, SIZE_MAX);
        if (tr__wire_put(&proxy->out, &frame) < 0 ||
            phase_timer_set(proxy, ctx, proxy->limits.grace_ns) < 0)
            condemn(proxy, ctx, TR_PROCESS_STOPPED, 0);
        pump(proxy, ctx);
    }
    update(proxy, ctx);
}

/* The actor has no turn left, or its next one starts anew: kill the child; the helper reaps it. */
static void abandon(struct tr__proxy *proxy, enum tr_dead_reason reason)
{
    tr__flights_fail(&proxy->flights, TR_ECRASHED, reason);
    if (proxy->pidfd >= 0)
        pidfd_send_signal(proxy->pidfd, SIGKILL, NULL, 0);
    wire_close(proxy, NULL);
    fd_close(NULL, &proxy->notices);
    fd_close(NULL, &proxy->pidfd);
    proxy->phase = PHASE_DOWN;
    proxy->tick_timer = proxy->phase_timer = 0;
    tr__set(proxy->pid, 0);
}

static int reset(void *state, enum tr_why why)
{
    struct tr__proxy *proxy = proxy_of(state);

    (void)why;
    if (proxy == NULL || proxy->box == NULL)
        return 0;
    abandon(proxy, TR_DEAD_CRASHED);
    proxy->stopping = false;
    keep_set(proxy);
    return 0;
}

static void finish(void *state)
{
    struct tr_process *self = state;
    struct tr__proxy *proxy = self->proxy;

    if (proxy == NULL)
        return;
    abandon(proxy, TR_DEAD_STOPPED);
    if (proxy->listed)
        proxy_unlist(proxy);
    /* The runtime has pinned the slot for an answer that is not one. */
    if (proxy->kept)
        tr__box_unpin(proxy->box, 1);
    proxy_free(proxy);
    self->proxy = NULL;
}

static void show(const void *state, char *text, size_t size)
{
    static const char *const phases[] = { "down", "starting", "up", "ending" };
    const struct tr__proxy *proxy = ((const struct tr_process *)state)->proxy;

    if (proxy == NULL)
        return;
    snprintf(text, size, "child %d is %s; %u restarts; %u ahead, %u answers owed",
        tr__get(proxy->pid), phases[proxy->phase], tr__get(proxy->restart_total),
        ahead_count(proxy), ask_count(proxy));
}

void tr__process_type_init(
    struct tr__process_type *type, const struct tr_process_row *row, struct tr__processes *owner)
{
    *type = (struct tr__process_type){ .row = row, .owner = owner };
    type->type = (struct tr_type){
        .name = row->name,
        .message_size = row->type->message_size,
        .state_size = sizeof(struct tr_process),
        .start = start,
        .handle = handle,
        .event = on_event,
        .stop = stop,
        .finish = finish,
        .reset = reset,
        .message_drop = row->type->message_drop,
        .message_name = row->type->message_name,
        .show = show,
    };
}

/* ---- the public functions -------------------------------------------------------------------- */

const struct tr_type *tr_process_type(struct tr_system *system, const char *name)
{
    struct tr__processes *processes =
        atomic_load_explicit(&system->processes, memory_order_acquire);

    for (uint32_t i = 0; processes != NULL && i < processes->count; i++)
        if (strcmp(processes->types[i].row->name, name) == 0)
            return &processes->types[i].type;
    return NULL;
}

int tr_process_spawn(struct tr_system *system, const char *name, const struct tr_process *process,
    const struct tr_spawn_options *options, tr_sender *ret_sender)
{
    const struct tr_type *type = tr_process_type(system, name);
    struct tr_process state = process != NULL ? *process : (struct tr_process){ 0 };
    struct tr_spawn_options spawn = options != NULL ? *options : (struct tr_spawn_options){ 0 };
    int rc;

    if (type == NULL)
        return TR_ENOENT;
    if (spawn.ret_done != NULL || state.proxy != NULL)
        return TR_EINVAL;
    rc = argument_check(&state);
    if (rc < 0)
        return rc;
    state.proxy = proxy_make(&state, tr__container((uintptr_t)type, struct tr__process_type, type));
    if (state.proxy == NULL)
        return TR_ENOMEM;
    state.argument = NULL; /* the proxy has its own */
    if (spawn.grace_ns == 0)
        spawn.grace_ns = tr__later(state.proxy->limits.grace_ns, killed_ns);
    rc = tr_spawn(system, type, &state, &spawn, ret_sender);
    if (rc < 0)
        proxy_free(state.proxy);
    return rc;
}

int tr_process_info(tr_sender sender, struct tr_process_info *ret_info)
{
    struct tr__processes *processes;
    struct tr__proxy *proxy;
    uint64_t end;

    if (sender.box == NULL)
        return TR_ECLOSED;
    if (sender.box->type->handle != handle)
        return TR_EINVAL;
    processes = type_of(sender.box)->owner;
    pthread_mutex_lock(&processes->lock);
    proxy = processes->live;
    while (proxy != NULL && proxy->box != sender.box)
        proxy = proxy->next;
    if (proxy != NULL) {
        end = tr__get(proxy->last_end);
        *ret_info = (struct tr_process_info){ .pid = tr__get(proxy->pid),
            .helper_pid = processes->pid,
            .starts = tr__get(proxy->starts),
            .restarts = tr__get(proxy->restart_total),
            .last_end = (enum tr_process_end)(end >> 32),
            .last_code = (int)(uint32_t)end,
            .ahead = ahead_count(proxy),
            .asks = ask_count(proxy) };
    }
    pthread_mutex_unlock(&processes->lock);
    return proxy != NULL ? 0 : TR_ECLOSED;
}

const char *tr_process_end_text(enum tr_process_end end)
{
    static const char *const texts[] = { "running", "exited", "killed by a signal",
        "gave no sign of life", "sent garbage", "did not start", "was lost", "its helper died",
        "stopped as it was told" };

    return (size_t)end < sizeof texts / sizeof texts[0] ? texts[end] : "?";
}
