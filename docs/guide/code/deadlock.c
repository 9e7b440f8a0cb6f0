/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/03-asking.md: a circle of actors that would wait for each other is refused when it
 * forms. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* Asks its friend and holds until the answer is there. */
struct friend
{
    tr_sender other;
};

struct friend_message {
    enum { FRIEND_MEET, FRIEND_CALL } kind;
    tr_sender other; /* of MEET: the receiver's from now on */
};

static enum tr_next friend_handle(void *state, struct tr_context *ctx, void *message)
{
    struct friend *self = state;
    const struct friend_message *m = message;
    struct friend_message call = { .kind = FRIEND_CALL };
    int rc;

    if (m->kind == FRIEND_MEET) {
        self->other = m->other;
        return TR_GO;
    }
    rc = tr_ask(ctx, self->other, &call, sizeof call, &(struct tr_ask_options){ .hold = true });
    printf("%s holds: %s\n", tr_self_name(ctx), rc < 0 ? tr_error_name(rc) : "yes");
    tr_reply(ctx, rc, NULL, 0);
    return TR_GO;
}

static enum tr_next friend_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    (void)state;
    if (event->kind == TR_EVENT_REPLY)
        printf("%s got its answer: %s\n", tr_self_name(ctx), tr_error_name(event->status));
    return TR_GO;
}

static void friend_finish(void *state)
{
    struct friend *self = state;

    tr_sender_drop(&self->other);
}

static const struct tr_type friend_type = {
    .name = "friend",
    .message_size = sizeof(struct friend_message),
    .state_size = sizeof(struct friend),
    .handle = friend_handle,
    .event = friend_event,
    .finish = friend_finish,
};
TR_ACTOR(friend, struct friend, struct friend_message)

int main(void)
{
    struct friend nobody = { 0 };
    struct tr_system *system;
    friend_sender ann, bob;

    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));
    must(friend_spawn(system, &nobody, &(struct tr_spawn_options){ .name = "ann" }, &ann));
    must(friend_spawn(system, &nobody, &(struct tr_spawn_options){ .name = "bob" }, &bob));
    must(friend_tell(ann, (struct friend_message){ FRIEND_MEET, friend_clone(bob, "ann").raw }));
    must(friend_tell(bob, (struct friend_message){ FRIEND_MEET, friend_clone(ann, "bob").raw }));
    must(friend_tell(ann, (struct friend_message){ .kind = FRIEND_CALL }));
    friend_drop(&ann);
    friend_drop(&bob);
    tr_system_step(system, 100); /* run what is ready */

    /* Each keeps the other alive: senders in a circle never run out. So these two are told to stop.
     */
    must(tr_system_drain(system, 0));
    tr_system_destroy(&system);
    return 0;
}
