/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/supervisor_stop.h"

struct ending_message {
    int unused;
};
struct ending {
    tr_weak target;
};

static int ending_start(void *self, struct tr_context *ctx)
{
    return tr_watch(ctx, ((struct ending *)self)->target, 0);
}

static enum tr_next ending_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next ending_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    return event->kind == TR_EVENT_DOWN ? TR_STOP : TR_GO;
}

static const struct tr_type ending_type = {
    .name = "packs_ending",
    .message_size = sizeof(struct ending_message),
    .state_size = sizeof(struct ending),
    .start = ending_start,
    .handle = ending_handle,
    .event = ending_event,
};

bool packs_stop_supervisor(struct tr_system *system, tr_sender *supervisor)
{
    struct tr_done *done = NULL;
    enum tr_why why = TR_WHY_START;
    tr_sender sender;
    int rc = tr_spawn(system, &ending_type, &(struct ending){ tr_sender_weaken(*supervisor) },
        &(struct tr_spawn_options){ .owner = "packs", .ret_done = &done }, &sender);

    (void)tr_stop(tr_sender_weaken(*supervisor));
    if (rc == 0) {
        rc = tr_done_wait(&done, NULL, &why, 0);
        tr_sender_drop(&sender);
    } else {
        (void)tr_sender_wait_closed(*supervisor, 0);
    }
    tr_sender_drop(supervisor);
    return rc == 0 && why == TR_WHY_STOPPED;
}
