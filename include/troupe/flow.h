/* SPDX-License-Identifier: Apache-2.0 */
/* flow.h: work of several steps, as a table of steps. The frame, which keeps the flow's data
 * between steps, is plain data inside the actor's struct: no stack, no allocation, and visible in a
 * debugger.
 *
 *     struct transfer {               the frame: begins with a struct tr_flow
 *         struct tr_flow flow;
 *         uint64_t amount;
 *     };
 *     struct bank {                   the actor: room for eight transfers at once
 *         struct transfer transfers[8];
 *     };
 *     enum { TAKE, GIVE, FINISH, GIVE_BACK };
 *     static const struct tr_step transfer_steps[] = {
 *         [TAKE] = { .name = "take", .run = take },
 *         [GIVE] = { .name = "give", .run = give, .undo = GIVE_BACK },
 *         [FINISH] = { .name = "finish", .run = finish },
 *         [GIVE_BACK] = { .name = "give back", .run = give_back },
 *     };
 *     static const struct tr_flow_type transfer_flow = {
 *         .name = "transfer",
 *         TR_FLOW_STEPS(transfer_steps),
 *         TR_FLOW_FRAMES(struct bank, transfers),
 *         .tag_first = 1000,
 *     };
 *
 * A handler begins a flow, fills in its frame and runs it; the actor's event function passes every
 * event to tr_flow_event. The flow takes the duty to answer out of the message that began it, and
 * answers exactly once: when it ends, or with TR_EDROPPED or TR_ECRASHED if the actor ends first.
 * test/unit/runtime/test_flow.c begins with this example in full. */
#ifndef TROUPE_FLOW_H
#define TROUPE_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <troupe/actor.h>
#include <troupe/ask.h>
#include <troupe/event.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a step. */
enum tr_flow_next {
    TR_FLOW_NEXT,  /* on to the next row, or the one that tr_flow_goto named, at once */
    TR_FLOW_WAIT,  /* the same once every ask of this step has ended without a failure */
    TR_FLOW_FIRST, /* the same once the first ask has ended well; the others go on */
    TR_FLOW_DONE,  /* the flow ends: well, or with the failure that is being undone */
    TR_FLOW_FAIL,  /* return tr_flow_fail(flow, code): to the row's undo, or the end */
};

/* A row. `frame` is the user's struct, which begins with its struct tr_flow. */
struct tr_step {
    const char *name;
    enum tr_flow_next (*run)(void *self, struct tr_context *ctx, void *frame);
    /* The row to go on with when this one fails: its step returns TR_FLOW_FAIL, or one of its asks
     * fails. It comes later in the table. 0: the flow ends with the failure. While undoing, the
     * flow's answer is the code of the failure, whatever the later rows return. */
    uint32_t undo;
    /* Called for each answer to an ask of this row, to keep its value or to judge it. `slot` is the
     * result of tr_flow_ask. Returns the status that counts. NULL: event->status counts. */
    int (*answer)(
        void *self, struct tr_context *ctx, void *frame, int slot, const struct tr_event *event);
};

enum {
    TR_FLOW_SLOTS = 32, /* asks of a frame that are open at once; one more fails with TR_ELIMIT */
    TR_FLOW_TAGS = 64,  /* tags a frame takes up */
    TR_FLOW_ROUNDS_MAX = 1000, /* steps without a wait; one more fails with TR_ELIMIT */
};

/* A kind of flow: const, and several may share an actor if their tags do not overlap. */
struct tr_flow_type {
    const char *name;
    const struct tr_step *steps;
    uint32_t step_count;
    size_t frames_at; /* where the frames are in the actor's struct */
    size_t frame_size;
    uint32_t frame_count;
    uint32_t tag_first; /* the flow owns the tags from here on, TR_FLOW_TAGS per frame */
    uint64_t undo_ns;   /* time for undoing; 0: the timeout given to tr_flow_begin, once more */
    /* The flow has ended: `status` is what it answered. May be NULL. */
    void (*end)(void *self, struct tr_context *ctx, void *frame, int status);
};
#define TR_FLOW_STEPS(array) .steps = (array), .step_count = sizeof(array) / sizeof((array)[0])
#define TR_FLOW_FRAMES(State, member)                                                              \
    .frames_at = offsetof(State, member), .frame_size = sizeof(((State *)0)->member[0]),           \
    .frame_count = sizeof(((State *)0)->member) / sizeof(((State *)0)->member[0])

/* The head of a frame; zeroed is free. The first four are for steps to read, the rest is the flow's
 * own. */
struct tr_flow {
    int status;    /* of the last answer that came */
    uint32_t size; /* and its value, in the step that follows the wait only */
    const void *value;
    int failed; /* the code that is being undone, 0 if none */

    uint32_t state;
    uint32_t tag; /* of its slot 0 */
    uint32_t row, row_next;
    uint32_t waiting; /* slots that the present row waits for */
    uint32_t pending; /* slots whose answer has not come, also of rows before */
    int wait_status;  /* first failure of what is waited for */
    bool first, first_good;
    uint64_t timer_id, deadline_id; /* 0 is none */
    uint64_t deadline_ns;           /* absolute; 0 is none */
    uint64_t timeout_ns;
    tr_reply_handle reply;
};

/* ---- in the actor's functions --------------------------------------------------------------- */

/* Take a free frame, zeroed, and take the duty to answer the message being handled, if it is an
 * ask. `timeout_ns` is the whole flow's, 0 for none; the deadline of the message is inherited. When
 * it passes, the flow fails with TR_ETIMEOUT. NULL: the message has been answered with TR_EFULL
 * (all frames in use, also by flows that ended but whose last answers have not come) or TR_ENOMEM.
 */
TR_API void *tr_flow_begin(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, uint64_t timeout_ns);
/* Run it from its first row until it waits or ends; it may be gone when this returns. */
TR_API void tr_flow_run(
    const struct tr_flow_type *type, void *self, struct tr_context *ctx, void *frame);
/* Handle an event of this kind of flow. False if it is not one. */
TR_API bool tr_flow_event(const struct tr_flow_type *type, void *self, struct tr_context *ctx,
    const struct tr_event *event);
/* Return the number of flows under way. */
TR_API uint32_t tr_flow_count(const struct tr_flow_type *type, const void *self);
/* Free all frames, in a type's reset(). Answers to asks of the earlier life do not come. */
TR_API void tr_flow_reset(const struct tr_flow_type *type, void *self);

/* ---- inside a step -------------------------------------------------------------------------- */

/* Ask, and wait for it by what the step returns. Returns its slot, or a negative code; that counts
 * as its answer too, so a step need not look (the row's answer function is not called for it). The
 * ask ends no later than the flow; `timeout_ns` (0: none) is one of its own. */
TR_API int tr_flow_ask(struct tr_context *ctx, struct tr_flow *flow, tr_sender to,
    const void *message, size_t size, uint64_t timeout_ns);
/* Time as one of the things to wait for: its end is a good one. A row has one timer; a second call
 * moves it. */
TR_API int tr_flow_after(struct tr_context *ctx, struct tr_flow *flow, uint64_t delay_ns);
/* The row that comes after this one, instead of the next. Returns TR_FLOW_NEXT, to be returned. */
TR_API enum tr_flow_next tr_flow_goto(struct tr_flow *flow, uint32_t row);
TR_API enum tr_flow_next tr_flow_fail(struct tr_flow *flow, int code);
/* End with a value for the asker. Returns TR_FLOW_DONE. On the way of undoing the answer is the
 * failure. */
TR_API enum tr_flow_next tr_flow_done(struct tr_flow *flow, const void *value, size_t size);
/* Answer now and go on; the asker does not wait for the rest. */
TR_API void tr_flow_answer(struct tr_flow *flow, const void *value, size_t size);
/* Return whether the asker has given up. False if no ask began the flow. */
TR_API bool tr_flow_is_cancelled(const struct tr_flow *flow);

#ifdef __cplusplus
}
#endif

#endif
