/* SPDX-License-Identifier: Apache-2.0 */
/* unit_test.c: the unit test of an actor. The test queues messages, drops the sender and runs the
 * actor on this thread until it ends by itself; then it checks the answers and the data. No thread,
 * no mock, no sleep, and the same result every time. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define EXPECT(condition)                                                                          \
    ((condition) ? (void)0                                                                         \
                 : (fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition), exit(1)))

struct ids {
    int next;
};

enum ids_message { IDS_GET };

static enum tr_next ids_handle(void *state, struct tr_context *ctx, void *message)
{
    struct ids *self = state;

    (void)message; /* there is only one kind */
    tr_reply(ctx, 0, &self->next, sizeof self->next);
    self->next++;
    return TR_GO;
}

static const struct tr_type ids_type = {
    .name = "ids",
    .message_size = sizeof(enum ids_message),
    .state_size = sizeof(struct ids),
    .handle = ids_handle,
};
TR_ACTOR(ids, struct ids, enum ids_message)

int main(void)
{
    struct ids ids = { .next = 0 };
    struct tr_future *answers[3];
    struct tr_box *box;
    ids_sender sender;

    EXPECT(ids_box(NULL, NULL, &box) == 0);
    sender = ids_of(tr_box_sender(box, "test"));
    for (int i = 0; i < 3; i++)
        EXPECT(ids_future(sender, IDS_GET, 0, &answers[i]) == 0);
    ids_drop(&sender); /* important: it is what lets the actor end */

    EXPECT(ids_run(box, &ids) == 0);

    for (int i = 0, id; i < 3; i++) {
        EXPECT(tr_future_wait(answers[i], &id, sizeof id, NULL, 0) == 0 && id == i);
        tr_future_drop(&answers[i]);
    }
    EXPECT(ids.next == 3);
    tr_box_destroy(&box);
    puts("three asks, answered 0 1 2; the state is 3");
    return 0;
}
