/* SPDX-License-Identifier: Apache-2.0 */
/* ping_pong.c: two actors that send a ball to each other. It shows how an actor gets to know
 * another one (its sender arrives in a message), how to break a circle of senders so that both can
 * end, and how a program waits for an actor and takes its data back. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <troupe/troupe.h>

enum { ROUND_TRIPS = 1000000 };

/* Both players are of one type: a plain struct, and a switch. */
struct player {
    tr_sender other; /* owned */
    int touches;
};

struct player_message {
    enum { PLAYER_MEET, PLAYER_BALL, PLAYER_GOODBYE } kind;
    int left;        /* of BALL: how often it is still to be sent */
    tr_sender other; /* of MEET: the receiver's from now on */
};

static enum tr_next player_handle(void *state, struct tr_context *ctx, void *message);

static const struct tr_type player_type = {
    .name = "player",
    .message_size = sizeof(struct player_message),
    .state_size = sizeof(struct player),
    .handle = player_handle,
};
TR_ACTOR(player, struct player, struct player_message)

static enum tr_next player_handle(void *state, struct tr_context *ctx, void *message)
{
    struct player *self = state;
    const struct player_message *m = message;
    struct player_message out = { .kind = PLAYER_BALL };

    (void)ctx;
    switch (m->kind) {
    case PLAYER_MEET:
        self->other = m->other;
        break;
    case PLAYER_BALL:
        self->touches++;
        out.left = m->left - 1;
        if (m->left == 0)
            out.kind = PLAYER_GOODBYE;
        if (player_tell(player_of(self->other), out) < 0)
            return TR_FAIL;
        if (m->left > 0)
            break;
        /* Each holds a sender of the other: neither would ever see its last sender go. */
        tr_sender_drop(&self->other);
        break;
    case PLAYER_GOODBYE:
        tr_sender_drop(&self->other);
        break;
    }
    return TR_GO;
}

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(void)
{
    struct player ann = { 0 }, bob = { 0 };
    struct tr_done *ann_done, *bob_done;
    struct tr_system *system;
    player_sender to_ann, to_bob;
    double seconds;

    must(tr_system_create(NULL, &system));
    must(player_spawn(
        system, &ann, &(struct tr_spawn_options){ .name = "ann", .ret_done = &ann_done }, &to_ann));
    must(player_spawn(
        system, &bob, &(struct tr_spawn_options){ .name = "bob", .ret_done = &bob_done }, &to_bob));
    /* A sender given away in a message belongs to the receiver. */
    must(player_tell(
        to_ann, (struct player_message){ PLAYER_MEET, 0, player_clone(to_bob, "ann").raw }));
    must(player_tell(
        to_bob, (struct player_message){ PLAYER_MEET, 0, player_clone(to_ann, "bob").raw }));

    seconds = now_s();
    must(player_tell(to_ann, (struct player_message){ PLAYER_BALL, 2 * ROUND_TRIPS - 1, { 0 } }));
    player_drop(&to_ann);
    player_drop(&to_bob);
    must(tr_done_wait(&ann_done, &ann, NULL, 0));
    must(tr_done_wait(&bob_done, &bob, NULL, 0));
    seconds = now_s() - seconds;

    printf("ann touched the ball %d times, bob %d times\n", ann.touches, bob.touches);
    printf("%d round trips, %.0f ns each\n", ROUND_TRIPS, seconds * 1e9 / ROUND_TRIPS);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return ann.touches == ROUND_TRIPS && bob.touches == ROUND_TRIPS ? 0 : 1;
}
