/* SPDX-License-Identifier: Apache-2.0 */
/* flow.c: several steps as a table, with the frame in the actor's struct.
 *
 *   free ──begin──▶ running ──WAIT, FIRST──▶ waiting ──the asks have ended───────▶ running
 *    ▲                 │ DONE, or failed without undo      │ deadline: fails
 *    │                 ▼                                   ▼
 *    └─ last answer ─ ended                             running, at the row's undo
 *
 * Invariants:
 *   1. A slot is pending from its ask to its one answer. It is given out again only after that, and
 *      a frame comes free only when no slot is pending: so every answer finds its ask.
 *   2. waiting is a part of pending. A slot that is pending and not in waiting belongs to an
 *      earlier row; its answer is dropped.
 *   3. The reply handle is answered when the flow ends, unless it was before; it is one-shot. */
#include <string.h>

#include <troupe/flow.h>

#include "base/assert.h"
#include "runtime/system.h"

enum state { FLOW_FREE, FLOW_RUNNING, FLOW_WAITING, FLOW_ENDED };

enum { TAG_TIMER = TR_FLOW_SLOTS, TAG_DEADLINE };
_Static_assert((int)TAG_DEADLINE < (int)TR_FLOW_TAGS, "a frame's tags are its own");
_Static_assert(TR_FLOW_SLOTS == 32, "slots are the bits of 32");

static struct tr_flow *frame_at(const struct tr_flow_type *type, void *self, uint32_t index)
{
    return (struct tr_flow *)(void *)((char *)self + type->frames_at +
                                      (size_t)index * type->frame_size);
}

static const struct tr_step *step_of(const struct tr_flow_type *type, const struct tr_flow *flow)
{
    return &type->steps[flow->row];
}

/* ---- time ----------------------------------------------------------------------------------- */

/* 0 is no timer. */
static void flow_timer_stop(struct tr_context *ctx, uint64_t *id)
{
    if (*id != 0)
        tr_timer_stop(ctx, *id);
    *id = 0;
}

static void deadline_stop(struct tr_context *ctx, struct tr_flow *flow)
{
    flow_timer_stop(ctx, &flow->deadline_id);
    flow->deadline_ns = 0;
}

static int deadline_set(struct tr_context *ctx, struct tr_flow *flow, uint64_t deadline_ns)
{
    uint64_t now_ns = tr_now_ns(ctx);
    int rc;

    deadline_stop(ctx, flow);
    if (deadline_ns == 0)
        return 0;
    rc = tr_after(ctx, deadline_ns > now_ns ? deadline_ns - now_ns : 0, flow->tag + TAG_DEADLINE,
        &flow->deadline_id);
    if (rc == 0)
        flow->deadline_ns = deadline_ns;
    return rc;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void flow_answer(struct tr_flow *flow, int status, const void *value, size_t size)
{
    int rc = tr_reply_send(&flow->reply, status, value, size);

    if (rc == TR_ETOOBIG)
        tr_reply_send(&flow->reply, rc, NULL, 0);
}

static void flow_settle(struct tr_flow *flow)
{
    if (flow->state == FLOW_ENDED && flow->pending == 0)
        flow->state = FLOW_FREE;
}

static void flow_end(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, struct tr_flow *flow)
{
    int status = flow->failed;

    flow_timer_stop(ctx, &flow->timer_id);
    deadline_stop(ctx, flow);
    flow->waiting = 0;
    flow_answer(flow, status, NULL, 0);
    flow->state = FLOW_ENDED;
    if (type->end != NULL)
        type->end(self, ctx, flow, status);
    flow_settle(flow);
}

/* ---- the rows ------------------------------------------------------------------------------- */

static void forget_waits(struct tr_context *ctx, struct tr_flow *flow)
{
    flow_timer_stop(ctx, &flow->timer_id);
    flow->waiting = 0;
    flow->wait_status = 0;
    flow->first = flow->first_good = false;
}

/* The present row has failed. False: the flow ends. */
static bool to_undo(
    const struct tr_flow_type *type, struct tr_context *ctx, struct tr_flow *flow, int code)
{
    uint32_t undo = step_of(type, flow)->undo;
    uint64_t time_ns = type->undo_ns != 0 ? type->undo_ns : flow->timeout_ns;

    forget_waits(ctx, flow);
    if (flow->failed == 0) {
        flow->failed = code;
        /* Without memory for a new deadline there is none: undoing goes on. */
        deadline_set(ctx, flow, time_ns == 0 ? 0 : tr__later(tr_now_ns(ctx), time_ns));
    }
    if (undo == 0)
        return false;
    tr_assert_use(
        undo > flow->row && undo < type->step_count, "a row's undo is a later row of the table");
    flow->row = undo;
    return true;
}

/* Return whether the asks that the row waits for have ended. */
static bool is_settled(const struct tr_flow *flow)
{
    return (flow->waiting == 0 && flow->timer_id == 0) || (flow->first && flow->first_good);
}

static bool has_failed(const struct tr_flow *flow)
{
    return flow->wait_status < 0 && !(flow->first && flow->first_good);
}

/* The present row's wait is over: on to the next, or to its undo. False: the flow ends. */
static bool flow_leave(
    const struct tr_flow_type *type, struct tr_context *ctx, struct tr_flow *flow)
{
    if (has_failed(flow))
        return to_undo(type, ctx, flow, flow->wait_status);
    forget_waits(ctx, flow);
    flow->row = flow->row_next;
    return flow->row < type->step_count;
}

/* Run the present row. True: there is another one to run. False: the flow waits, or (still running)
 * it ends. */
static bool run_row(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, struct tr_flow *flow)
{
    enum tr_flow_next next;

    flow->state = FLOW_RUNNING;
    flow->row_next = flow->row + 1;
    next = step_of(type, flow)->run(self, ctx, flow);
    flow->value = NULL;
    flow->size = 0;
    switch (next) {
    case TR_FLOW_NEXT:
        forget_waits(ctx, flow);
        return flow_leave(type, ctx, flow);
    case TR_FLOW_WAIT:
    case TR_FLOW_FIRST:
        flow->first = next == TR_FLOW_FIRST;
        if (is_settled(flow))
            return flow_leave(type, ctx, flow);
        flow->state = FLOW_WAITING;
        return false;
    case TR_FLOW_DONE:
        return false;
    case TR_FLOW_FAIL:
        return to_undo(type, ctx, flow, flow->wait_status < 0 ? flow->wait_status : TR_EINVAL);
    }
    return false;
}

/* True: so many rows have run without a wait that something must be wrong. */
static bool run_rows(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, struct tr_flow *flow)
{
    for (uint32_t i = 0; i < TR_FLOW_ROUNDS_MAX; i++)
        if (!run_row(type, self, ctx, flow))
            return false;
    return true;
}

static void go_on(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, struct tr_flow *flow)
{
    while (run_rows(type, self, ctx, flow))
        if (flow->failed != 0 || !to_undo(type, ctx, flow, TR_ELIMIT))
            break;
    if (flow->state == FLOW_RUNNING)
        flow_end(type, self, ctx, flow);
}

/* ---- in the actor's functions --------------------------------------------------------------- */

static struct tr_flow *flow_frame_free(
    const struct tr_flow_type *type, void *self, uint32_t *ret_index)
{
    for (uint32_t i = 0; i < type->frame_count; i++)
        if (frame_at(type, self, i)->state == FLOW_FREE) {
            *ret_index = i;
            return frame_at(type, self, i);
        }
    return NULL;
}

void *tr_flow_begin(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, uint64_t timeout_ns)
{
    uint64_t deadline_ns = tr_deadline_ns(ctx), now_ns = tr_now_ns(ctx);
    struct tr_flow *flow;
    uint32_t index;

    flow = flow_frame_free(type, self, &index);
    if (flow == NULL) {
        tr_reply(ctx, TR_EFULL, NULL, 0);
        return NULL;
    }
    memset(flow, 0, type->frame_size);
    flow->tag = type->tag_first + index * TR_FLOW_TAGS;
    flow->timeout_ns = timeout_ns;
    if (timeout_ns != 0 && (deadline_ns == 0 || tr__later(now_ns, timeout_ns) < deadline_ns))
        deadline_ns = tr__later(now_ns, timeout_ns);
    if (deadline_set(ctx, flow, deadline_ns) < 0) {
        tr_reply(ctx, TR_ENOMEM, NULL, 0);
        return NULL;
    }
    flow->reply = tr_reply_take(ctx);
    if (tr_is_asked(ctx)) { /* still: it could not be taken */
        deadline_stop(ctx, flow);
        tr_reply(ctx, TR_ENOMEM, NULL, 0);
        return NULL;
    }
    flow->state = FLOW_RUNNING;
    return flow;
}

void tr_flow_run(const struct tr_flow_type *type, void *self, struct tr_context *ctx, void *frame)
{
    struct tr_flow *flow = frame;

    tr_assert_use(flow->state == FLOW_RUNNING && flow->row == 0, "a flow is begun, then run once");
    go_on(type, self, ctx, flow);
}

/* The end of one thing that the present row waits for. */
static void flow_on_end(const struct tr_flow_type *type, void *self, struct tr_context *ctx,
    struct tr_flow *flow, uint32_t slot, const struct tr_event *event)
{
    const struct tr_step *step = step_of(type, flow);

    flow->status = event->status;
    if (step->answer != NULL && slot < TR_FLOW_SLOTS)
        flow->status = step->answer(self, ctx, flow, (int)slot, event);
    flow->value = event->value;
    flow->size = event->size;
    if (flow->status >= 0)
        flow->first_good = true;
    else if (flow->wait_status == 0)
        flow->wait_status = flow->status;
    if (is_settled(flow)) {
        flow->state = FLOW_RUNNING;
        if (flow_leave(type, ctx, flow))
            go_on(type, self, ctx, flow);
        else
            flow_end(type, self, ctx, flow);
    }
    flow->value = NULL;
    flow->size = 0;
}

static void on_deadline(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, struct tr_flow *flow)
{
    flow->deadline_id = 0;
    flow->state = FLOW_RUNNING;
    flow->status = TR_ETIMEOUT;
    if (to_undo(type, ctx, flow, TR_ETIMEOUT))
        go_on(type, self, ctx, flow);
    else
        flow_end(type, self, ctx, flow);
}

static void on_answer(const struct tr_flow_type *type, void *self, struct tr_context *ctx,
    struct tr_flow *flow, uint32_t slot, const struct tr_event *event)
{
    uint32_t bit = UINT32_C(1) << slot;
    bool is_waited_for = flow->waiting & bit;

    flow->pending &= ~bit;
    flow->waiting &= ~bit;
    if (is_waited_for)
        flow_on_end(type, self, ctx, flow, slot, event);
    flow_settle(flow);
}

bool tr_flow_event(const struct tr_flow_type *type, void *self, struct tr_context *ctx,
    const struct tr_event *event)
{
    uint32_t offset = event->tag - type->tag_first;
    uint32_t slot = offset % TR_FLOW_TAGS;
    struct tr_flow *flow;

    if (offset / TR_FLOW_TAGS >= type->frame_count ||
        (event->kind != TR_EVENT_REPLY && event->kind != TR_EVENT_TIMER))
        return false;
    flow = frame_at(type, self, offset / TR_FLOW_TAGS);
    if (event->kind == TR_EVENT_REPLY && slot < TR_FLOW_SLOTS) {
        if (event->status != TR_ACCEPTED)
            on_answer(type, self, ctx, flow, slot, event);
    } else if (slot == TAG_DEADLINE && flow->deadline_id != 0) {
        on_deadline(type, self, ctx, flow);
    } else if (slot == TAG_TIMER && flow->timer_id != 0) {
        flow->timer_id = 0;
        flow_on_end(type, self, ctx, flow, slot, event);
    }
    return true;
}

uint32_t tr_flow_count(const struct tr_flow_type *type, const void *self)
{
    const char *frames = (const char *)self + type->frames_at;
    uint32_t count = 0;

    for (uint32_t i = 0; i < type->frame_count; i++) {
        const struct tr_flow *flow =
            (const struct tr_flow *)(const void *)(frames + (size_t)i * type->frame_size);

        count += flow->state == FLOW_RUNNING || flow->state == FLOW_WAITING;
    }
    return count;
}

void tr_flow_reset(const struct tr_flow_type *type, void *self)
{
    memset(frame_at(type, self, 0), 0, type->frame_count * type->frame_size);
}

/* ---- inside a step -------------------------------------------------------------------------- */

/* It could not be asked: that is its end. */
static int flow_refused(struct tr_flow *flow, int code)
{
    flow->status = code;
    if (flow->wait_status == 0)
        flow->wait_status = code;
    return code;
}

int tr_flow_ask(struct tr_context *ctx, struct tr_flow *flow, tr_sender to, const void *message,
    size_t size, uint64_t timeout_ns)
{
    uint64_t now_ns = tr_now_ns(ctx);
    uint32_t slot;
    int rc;

    tr_assert_use(flow->state == FLOW_RUNNING, "a flow asks inside its steps");
    if (flow->pending == UINT32_MAX)
        return flow_refused(flow, TR_ELIMIT);
    slot = (uint32_t)__builtin_ctz(~flow->pending);
    if (flow->deadline_ns != 0) {
        if (flow->deadline_ns <= now_ns)
            return flow_refused(flow, TR_ETIMEOUT);
        if (timeout_ns == 0 || timeout_ns > flow->deadline_ns - now_ns)
            timeout_ns = flow->deadline_ns - now_ns;
    }
    rc = tr_ask(ctx, to, message, size,
        &(struct tr_ask_options){ .tag = flow->tag + slot, .timeout_ns = timeout_ns });
    if (rc < 0)
        return flow_refused(flow, rc);
    flow->pending |= UINT32_C(1) << slot;
    flow->waiting |= UINT32_C(1) << slot;
    return (int)slot;
}

int tr_flow_after(struct tr_context *ctx, struct tr_flow *flow, uint64_t delay_ns)
{
    int rc;

    tr_assert_use(flow->state == FLOW_RUNNING, "a flow sets its timer inside its steps");
    flow_timer_stop(ctx, &flow->timer_id);
    rc = tr_after(ctx, delay_ns, flow->tag + TAG_TIMER, &flow->timer_id);
    return rc < 0 ? flow_refused(flow, rc) : 0;
}

enum tr_flow_next tr_flow_goto(struct tr_flow *flow, uint32_t row)
{
    flow->row_next = row;
    return TR_FLOW_NEXT;
}

enum tr_flow_next tr_flow_fail(struct tr_flow *flow, int code)
{
    tr_assert_use(code < 0, "a flow fails with a negative code");
    flow->wait_status = code;
    return TR_FLOW_FAIL;
}

enum tr_flow_next tr_flow_done(struct tr_flow *flow, const void *value, size_t size)
{
    tr_flow_answer(flow, value, size);
    return TR_FLOW_DONE;
}

void tr_flow_answer(struct tr_flow *flow, const void *value, size_t size)
{
    if (flow->failed != 0)
        flow_answer(flow, flow->failed, NULL, 0);
    else
        flow_answer(flow, 0, value, size);
}

bool tr_flow_is_cancelled(const struct tr_flow *flow)
{
    return flow->reply.reply != NULL && tr_reply_is_cancelled(flow->reply);
}
