/* SPDX-License-Identifier: Apache-2.0 */
/* process_proxy.c: the child of a proxy: started, fed, listened to and ended.
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
 *   3. The wire is open in the phases starting, greeted and up, and in no other.
 *   4. A child is over when the helper says so, or, if the helper cannot, when its pidfd does. Its
 *      descriptors are closed then, not before, except the wire, which is closed as soon as the
 *      child has nothing more to say. */
#include "runtime/process_proxy.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/system.h"

enum { TAG_WIRE = 1, TAG_NOTICES, TAG_PIDFD, TAG_TICK, TAG_PHASE };

enum {
    OUT_BYTES_MAX = 1 << 20, /* written but not taken by the socket: then the gate shuts */
    READS_MAX = 16,          /* in one event */
    DRAIN_READS_MAX = 4096,  /* bytes that a dead child may have left behind */
};
static const uint64_t memory_ns = UINT64_C(10000000); /* until it is tried again */
static const uint64_t busy_ns = UINT64_C(5000000);    /* the same */
static const uint64_t back_off_step_ns = UINT64_C(50000000);
static const uint64_t last_word_ns = UINT64_C(1000000000);

static void phase_move(struct tr__proxy *proxy, enum tr__phase to)
{
    enum {
        DOWN = 1 << PHASE_DOWN,
        ENDS = DOWN | 1 << PHASE_ENDING | 1 << PHASE_EXITED,
    };
    static const uint8_t moves[] = {
        [PHASE_DOWN] = DOWN | 1 << PHASE_DESERTED | 1 << PHASE_STARTING,
        [PHASE_DESERTED] = DOWN,
        [PHASE_STARTING] = ENDS | 1 << PHASE_GREETED,
        [PHASE_GREETED] = ENDS | 1 << PHASE_UP,
        [PHASE_UP] = ENDS,
        [PHASE_ENDING] = ENDS,
        [PHASE_EXITED] = ENDS,
    };

    tr_assert(moves[proxy->phase] & 1 << to);
    proxy->phase = to;
}

static bool is_down(const struct tr__proxy *proxy)
{
    return proxy->phase == PHASE_DOWN || proxy->phase == PHASE_DESERTED;
}

/* ---- gate and keep --------------------------------------------------------------------------- */

static void gate_set(struct tr__proxy *proxy, struct tr_context *ctx)
{
    bool shut = proxy->phase != PHASE_UP ||
                tr__proxy_ahead_count(proxy) >= proxy->limits.ahead_max ||
                tr__wire_size(&proxy->out) > OUT_BYTES_MAX || proxy->stopping;

    /* In the stop without a child, or when no sender needs one, there is nothing to wait for. */
    if (proxy->phase == PHASE_DESERTED || (proxy->phase == PHASE_DOWN && proxy->stopping))
        shut = false;
    if (shut) {
        tr__status_set(proxy->box, STATUS_HELD);
        ctx->after |= AFTER_HOLD; /* leaves the fast path */
    } else {
        tr__status_clear(proxy->box, STATUS_HELD);
    }
}

void tr__proxy_keep_set(struct tr__proxy *proxy)
{
    bool keep = tr__proxy_ahead_count(proxy) > 0 || (proxy->stopping && !is_down(proxy));

    if (keep != proxy->kept)
        tr__add(proxy->box->asks, keep ? 1 : UINT32_MAX);
    proxy->kept = keep;
}

void tr__proxy_update(struct tr__proxy *proxy, struct tr_context *ctx)
{
    gate_set(proxy, ctx);
    tr__proxy_keep_set(proxy);
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

/* 0 is no timer. */
static void proxy_timer_stop(struct tr_context *ctx, uint64_t *timer)
{
    tr_timer_stop(ctx, *timer);
    *timer = 0;
}

static int phase_timer_set(struct tr__proxy *proxy, struct tr_context *ctx, uint64_t delay_ns)
{
    proxy_timer_stop(ctx, &proxy->phase_timer);
    return tr_after(ctx, delay_ns, TAG_PHASE, &proxy->phase_timer);
}

static void wire_close(struct tr__proxy *proxy, struct tr_context *ctx)
{
    fd_close(ctx, &proxy->wire);
    proxy->wire_armed = 0;
    tr__wire_fini(&proxy->in);
    tr__wire_fini(&proxy->out);
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

/* The first cause counts. */
static void cause_set(struct tr__proxy *proxy, enum tr_process_end cause, int code)
{
    if (proxy->cause != TR_PROCESS_RUNNING)
        return;
    proxy->cause = cause;
    proxy->cause_code = code;
}

/* End this child: close its wire, answer its askers, wait for its exit. */
static void child_condemn(
    struct tr__proxy *proxy, struct tr_context *ctx, enum tr_process_end cause, int code)
{
    cause_set(proxy, cause, code);
    phase_move(proxy, PHASE_ENDING);
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
    phase_move(proxy, PHASE_ENDING);
    if (!proxy->stopping && phase_timer_set(proxy, ctx, proxy->limits.hang_ns) < 0)
        child_condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
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
        child_condemn(proxy, ctx, TR_PROCESS_LOST, ENOMEM);
    else
        proxy->wire_armed = events;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Is a sign of life due? */
static bool is_due(const struct tr__proxy *proxy)
{
    return proxy->phase == PHASE_UP && !proxy->stopping &&
           (tr__proxy_ahead_count(proxy) > 0 || tr__proxy_ask_count(proxy) > 0);
}

static void tick_set(struct tr__proxy *proxy, struct tr_context *ctx, uint64_t delay_ns)
{
    proxy_timer_stop(ctx, &proxy->tick_timer);
    if (is_due(proxy) && tr_after(ctx, delay_ns, TAG_TICK, &proxy->tick_timer) < 0)
        proxy->tick_timer = 0; /* with the next message */
}

static int proxy_receive(struct tr__proxy *proxy, struct tr_context *ctx, uint32_t reads_max);

static void on_receive_error(struct tr__proxy *proxy, struct tr_context *ctx, int error)
{
    if (error == TR_EPROTO)
        child_condemn(proxy, ctx, TR_PROCESS_GARBAGE, 0);
    else if (error == TR_ECLOSED)
        wire_ended(proxy, ctx);
    else
        child_condemn(proxy, ctx, TR_PROCESS_LOST, error == TR_ENOMEM ? ENOMEM : EPIPE);
}

void tr__proxy_pump(struct tr__proxy *proxy, struct tr_context *ctx)
{
    bool short_of_memory = false;

    if (proxy->phase == PHASE_UP && proxy->wire >= 0) {
        if (!proxy->stopping)
            short_of_memory =
                tr__flights_send(&proxy->flights, ctx, &proxy->out, OUT_BYTES_MAX) < 0;
        if (tr__wire_send(&proxy->out, proxy->wire) == TR_ECLOSED) {
            /* The child has probably died; frames it sent before still count. */
            on_receive_error(proxy, ctx, proxy_receive(proxy, ctx, DRAIN_READS_MAX));
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
           tr__proxy_ahead_count(proxy) == 0;
}

static enum tr_next proxy_give_up(struct tr__proxy *proxy, const char *why)
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

    if (is_deserted(proxy)) {
        phase_move(proxy, PHASE_DESERTED);
        return TR_GO;
    }
    if (phase_timer_set(proxy, ctx, delay < back_off_step_ns ? delay : back_off_step_ns) < 0)
        return proxy_give_up(proxy, "gives up: no memory to wait");
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
        return proxy_give_up(proxy, "cannot be started again");
    if (tr__restarts_add(&proxy->restarts, now))
        return proxy_give_up(proxy, "gives up: too many restarts in its window");
    proxy->failures =
        proxy->up_ns != 0 && now - proxy->up_ns > proxy->limits.window_ns ? 1 : proxy->failures + 1;
    delay = tr__backoff_ns(&backoff, proxy->failures, &ctx->worker->random);
    snprintf(then, sizeof then, "restart in %llu ms", (unsigned long long)(delay / ms_ns));
    log_end(proxy, then);
    proxy->restart_at_ns = tr__later(now, delay);
    return back_off(proxy, ctx);
}

enum tr_next tr__proxy_child_start(struct tr__proxy *proxy, struct tr_context *ctx)
{
    int rc;

    proxy->cause = TR_PROCESS_RUNNING;
    proxy->cause_code = 0;
    proxy->ping_id = proxy->up_ns = 0;
    proxy->bye = false;
    phase_move(proxy, PHASE_STARTING);
    rc = child_request(proxy, ctx);
    if (rc == 0) {
        tr__add(proxy->starts, 1);
        return TR_GO;
    }
    if (rc == TR_EAGAIN) { /* the helper is behind: no fault of anybody */
        phase_move(proxy, PHASE_DOWN);
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

    proxy_timer_stop(ctx, &proxy->phase_timer);
    proxy_timer_stop(ctx, &proxy->tick_timer);
    wire_close(proxy, ctx);
    fd_close(ctx, &proxy->notices);
    fd_close(ctx, &proxy->pidfd);
    phase_move(proxy, PHASE_DOWN);
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
    if (proxy->phase != PHASE_GREETED || proxy->pidfd < 0)
        return;
    phase_move(proxy, PHASE_UP);
    proxy->up_ns = tr_now_ns(ctx);
    proxy_timer_stop(ctx, &proxy->phase_timer);
}

static int on_hello(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__wire_frame *frame)
{
    if (proxy->phase != PHASE_STARTING || frame->id != WIRE_VERSION ||
        frame->argument != proxy->box->type->message_size)
        return TR_EPROTO;
    phase_move(proxy, PHASE_GREETED);
    up_if_ready(proxy, ctx);
    return 0;
}

static int proxy_on_frame(void *owner, struct tr_context *ctx, const struct tr__wire_frame *frame)
{
    struct tr__proxy *proxy = owner;

    if (frame->kind == WIRE_HELLO)
        return on_hello(proxy, ctx, frame);
    if (proxy->phase == PHASE_STARTING || proxy->bye)
        return TR_EPROTO;
    switch (frame->kind) {
    case WIRE_BEGIN:
    case WIRE_DONE:
    case WIRE_REPLY:
    case WIRE_ACCEPT:
        return tr__flights_on_frame(&proxy->flights, frame);
    case WIRE_PONG:
        if (proxy->ping_id == 0 || frame->id != proxy->ping_id)
            return TR_EPROTO;
        proxy->ping_id = 0;
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
static int proxy_receive(struct tr__proxy *proxy, struct tr_context *ctx, uint32_t reads_max)
{
    const struct tr__wire_reader reader = { WIRE_FROM_CHILD,
        tr__codec_bytes_max(tr__proxy_codec_of(proxy)), proxy_on_frame, proxy };
    int rc = tr__wire_read(&proxy->in, proxy->wire, reads_max, &reader, ctx);

    if (rc > 0)
        proxy->heard_ns = tr_now_ns(ctx);
    return rc < 0 ? rc : 0;
}

static void on_wire(struct tr__proxy *proxy, struct tr_context *ctx)
{
    int rc;

    if (proxy->wire < 0)
        return;
    rc = proxy_receive(proxy, ctx, READS_MAX);
    if (rc < 0)
        on_receive_error(proxy, ctx, rc);
}

/* ---- notices of the helper ------------------------------------------------------------------ */

/* The child has exited. Frames it sent before still count. */
static void proxy_drain(struct tr__proxy *proxy, struct tr_context *ctx)
{
    if (proxy->wire >= 0 && proxy_receive(proxy, ctx, DRAIN_READS_MAX) == TR_EPROTO)
        cause_set(proxy, TR_PROCESS_GARBAGE, 0);
    wire_close(proxy, ctx);
}

static enum tr_next on_exited(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__notice *notice)
{
    proxy_drain(proxy, ctx);
    cause_set(proxy, notice->code == CLD_EXITED ? TR_PROCESS_EXITED : TR_PROCESS_SIGNALED,
        notice->status);
    return child_over(proxy, ctx);
}

static void on_spawned(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr__notice *notice, int pidfd)
{
    tr__set(proxy->pid, notice->pid);
    proxy->pidfd = pidfd;
    if (pidfd < 0) {
        child_condemn(proxy, ctx, TR_PROCESS_LOST, EMFILE);
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
    child_condemn(proxy, ctx, proxy->helper_gone ? TR_PROCESS_HELPER : TR_PROCESS_LOST, 0);
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
        cause_set(proxy, TR_PROCESS_NO_START, notice.code);
        return child_over(proxy, ctx);
    }
    if (proxy->notices >= 0 && tr_fd_watch(ctx, proxy->notices, EPOLLIN, TAG_NOTICES) < 0)
        return on_notices_end(proxy, ctx);
    return TR_GO;
}

/* The child is gone, and its exit status is unknown. */
static enum tr_next child_lost(struct tr__proxy *proxy, struct tr_context *ctx)
{
    cause_set(proxy, TR_PROCESS_EXITED, -1);
    return child_over(proxy, ctx);
}

/* The helper is about to say how it exited; if it does not, that is lost. */
static enum tr_next on_pidfd(struct tr__proxy *proxy, struct tr_context *ctx)
{
    proxy_drain(proxy, ctx);
    phase_move(proxy, PHASE_EXITED);
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
    if (silent_ns >= proxy->limits.hang_ns && proxy->ping_id != 0) {
        child_condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
        return;
    }
    if (silent_ns >= proxy->limits.hang_ns / 4 && proxy->ping_id == 0) {
        struct tr__wire_frame ping = { .kind = WIRE_PING, .id = ++proxy->ping_count };

        proxy->ping_id = tr__wire_put(&proxy->out, &ping) == 0 ? ping.id : 0;
    }
    tick_set(proxy, ctx, proxy->limits.hang_ns / 4);
}

static enum tr_next on_phase_timer(struct tr__proxy *proxy, struct tr_context *ctx)
{
    proxy->phase_timer = 0;
    switch (proxy->phase) {
    case PHASE_DOWN:
        return tr_now_ns(ctx) >= proxy->restart_at_ns ? tr__proxy_child_start(proxy, ctx)
                                                      : back_off(proxy, ctx);
    case PHASE_STARTING:
    case PHASE_GREETED:
        child_condemn(proxy, ctx, TR_PROCESS_NO_START, ETIMEDOUT);
        return TR_GO;
    case PHASE_EXITED:
        return child_lost(proxy, ctx);
    case PHASE_ENDING:
        if (proxy->cause != TR_PROCESS_RUNNING)
            return child_lost(proxy, ctx);
        __attribute__((fallthrough));
    case PHASE_UP: /* in the stop: its grace is over */
        child_condemn(proxy, ctx, TR_PROCESS_HUNG, 0);
        return TR_GO;
    case PHASE_DESERTED:
        break;
    }
    return TR_GO;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

enum tr_next tr__proxy_on_event(
    struct tr__proxy *proxy, struct tr_context *ctx, const struct tr_event *event)
{
    enum tr_next next = TR_GO;

    switch (event->tag) {
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
    tr__proxy_pump(proxy, ctx);
    tr__proxy_update(proxy, ctx);
    return next;
}

void tr__proxy_stop(struct tr__proxy *proxy, struct tr_context *ctx)
{
    proxy->stopping = true;
    if (is_down(proxy))
        proxy_timer_stop(ctx, &proxy->phase_timer);
    if (proxy->phase == PHASE_STARTING || proxy->phase == PHASE_GREETED)
        child_condemn(proxy, ctx, TR_PROCESS_STOPPED, 0);
    if (proxy->phase == PHASE_UP) {
        struct tr__wire_frame frame = { .kind = WIRE_STOP };

        /* A message that has left the box counts as handled. */
        tr__flights_send(&proxy->flights, ctx, &proxy->out, SIZE_MAX);
        if (tr__wire_put(&proxy->out, &frame) < 0 ||
            phase_timer_set(proxy, ctx, proxy->limits.grace_ns) < 0)
            child_condemn(proxy, ctx, TR_PROCESS_STOPPED, 0);
        tr__proxy_pump(proxy, ctx);
    }
    tr__proxy_update(proxy, ctx);
}

void tr__proxy_abandon(struct tr__proxy *proxy, enum tr_dead_reason reason)
{
    tr__flights_fail(&proxy->flights, TR_ECRASHED, reason);
    if (proxy->pidfd >= 0)
        pidfd_send_signal(proxy->pidfd, SIGKILL, NULL, 0);
    wire_close(proxy, NULL);
    fd_close(NULL, &proxy->notices);
    fd_close(NULL, &proxy->pidfd);
    phase_move(proxy, PHASE_DOWN);
    proxy->tick_timer = proxy->phase_timer = 0;
    tr__set(proxy->pid, 0);
}
