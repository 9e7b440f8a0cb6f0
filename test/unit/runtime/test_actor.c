/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/troupe.h>

#include "check.h"

/* ---- the actor of the tests: hands out numbers ---------------------------------------------- */

struct uid {
    uint32_t next_id;
};

struct uid_message {
    enum { UID_GET, UID_SKIP, UID_FAIL, UID_STOP, UID_FORGET } kind;
    uint32_t count;
};

static enum tr_next uid_handle(void *state, struct tr_context *ctx, void *message)
{
    struct uid *self = state;
    struct uid_message *m = message;

    switch (m->kind) {
    case UID_GET:
        tr_reply(ctx, 0, &self->next_id, sizeof self->next_id);
        self->next_id++;
        return TR_GO;
    case UID_SKIP:
        self->next_id += m->count;
        return TR_GO;
    case UID_FAIL:
        return TR_FAIL;
    case UID_STOP:
        return TR_STOP;
    case UID_FORGET:
        return TR_GO;
    }
    return TR_GO;
}

static const struct tr_type uid_type = {
    .name = "uid",
    .message_size = sizeof(struct uid_message),
    .state_size = sizeof(struct uid),
    .handle = uid_handle,
};
TR_ACTOR(uid, struct uid, struct uid_message)

/* Types with a missing or wrong size. */
static const struct tr_type stateless_type = {
    .name = "stateless", .message_size = sizeof(struct uid_message), .handle = uid_handle
};
TR_ACTOR(stateless, struct uid, struct uid_message)
static const struct tr_type narrow_type = {
    .name = "narrow", .message_size = 1, .state_size = sizeof(struct uid), .handle = uid_handle
};
TR_ACTOR(narrow, struct uid, struct uid_message)

TEST(actor, of_other_sizes_than_its_types_is_refused)
{
    struct tr_box *box = NULL;
    stateless_sender stateless;
    narrow_sender narrow;
    struct tr_system *system;

    CHECK_EQ_INT(tr_system_create(NULL, &system), 0);
    CHECK_EQ_INT(stateless_spawn(system, &(struct uid){ 0 }, NULL, &stateless), TR_EINVAL);
    CHECK_EQ_INT(narrow_spawn(system, &(struct uid){ 0 }, NULL, &narrow), TR_EINVAL);
    CHECK_EQ_INT(stateless_box(NULL, NULL, &box), TR_EINVAL);
    CHECK_EQ_INT(narrow_box(NULL, NULL, &box), TR_EINVAL);
    CHECK(box == NULL);
    tr_system_destroy(&system);
}

TEST(actor, is_its_data_and_its_loop_is_a_function)
{
    struct uid state = { 0 };
    struct tr_future *answers[3];
    struct tr_box *box;
    uid_sender sender;

    CHECK_EQ_INT(uid_box(NULL, &(struct tr_box_options){ .capacity = 3 }, &box), 0);
    sender = uid_of(tr_box_sender(box, "test"));
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(
            uid_future(sender, (struct uid_message){ .kind = UID_GET }, 0, &answers[i]), 0);
    uid_drop(&sender);

    CHECK_EQ_INT(uid_run(box, &state), 0);

    for (uint32_t i = 0; i < 3; i++) {
        uint32_t id;

        CHECK_EQ_INT(tr_future_wait(answers[i], &id, sizeof id, NULL, 0), 0);
        CHECK_EQ_INT(id, i);
        tr_future_drop(&answers[i]);
    }
    CHECK_EQ_INT(state.next_id, 3);
    tr_box_destroy(&box);
}

TEST(actor, the_same_state_runs_again_in_a_new_box)
{
    struct uid state = { 0 };

    for (int i = 0; i < 3; i++) {
        struct tr_box *box;
        uid_sender sender;

        CHECK_EQ_INT(uid_box(NULL, NULL, &box), 0);
        sender = uid_of(tr_box_sender(box, "test"));
        CHECK_EQ_INT(uid_tell(sender, (struct uid_message){ .kind = UID_SKIP, .count = 5 }), 0);
        uid_drop(&sender);
        CHECK_EQ_INT(uid_run(box, &state), 0);
        tr_box_destroy(&box);
    }
    CHECK_EQ_INT(state.next_id, 15);
}

TEST(actor, steps_handle_at_most_what_they_are_told)
{
    struct uid state = { 0 };
    struct tr_box *box;
    uid_sender sender;

    CHECK_EQ_INT(uid_box(NULL, NULL, &box), 0);
    sender = uid_of(tr_box_sender(box, "test"));
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(uid_tell(sender, (struct uid_message){ .kind = UID_SKIP, .count = 1 }), 0);
    CHECK_EQ_INT(tr_step(box, &state, 2), 2);
    CHECK_EQ_INT(state.next_id, 2);
    CHECK_EQ_INT(tr_step(box, &state, 2), 2);
    CHECK_EQ_INT(tr_step(box, &state, 2), 1);
    CHECK_EQ_INT(tr_step(box, &state, 2), 0);
    uid_drop(&sender);
    CHECK_EQ_INT(tr_step(box, &state, 2), TR_ECLOSED);
    CHECK_EQ_INT(state.next_id, 5);
    tr_box_destroy(&box);
}

TEST(actor, spawned_hands_its_state_back_when_the_last_sender_is_gone)
{
    struct tr_system *system;
    struct tr_done *done;
    struct uid state = { .next_id = 10 };
    enum tr_why why;
    uid_sender sender;
    uint32_t id;

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system), 0);
    CHECK_EQ_INT(
        uid_spawn(system, &state, &(struct tr_spawn_options){ .ret_done = &done }, &sender), 0);
    CHECK_EQ_INT(
        uid_ask_wait(sender, (struct uid_message){ .kind = UID_GET }, &id, sizeof id, 0), 0);
    CHECK_EQ_INT(id, 10);
    CHECK_EQ_INT(uid_tell(sender, (struct uid_message){ .kind = UID_SKIP, .count = 7 }), 0);
    uid_drop(&sender);
    CHECK_EQ_INT(tr_done_wait(&done, &state, &why, 0), 0);
    CHECK_EQ_INT(state.next_id, 18);
    CHECK_EQ_INT(why, TR_WHY_DONE);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    tr_system_destroy(&system);
}

TEST(actor, run_says_that_it_crashed)
{
    struct uid state = { 0 };
    struct tr_future *answer;
    struct tr_box *box;
    uid_sender sender;

    CHECK_EQ_INT(uid_box(NULL, NULL, &box), 0);
    sender = uid_of(tr_box_sender(box, "test"));
    CHECK_EQ_INT(uid_future(sender, (struct uid_message){ .kind = UID_FAIL }, 0, &answer), 0);
    CHECK_EQ_INT(uid_run(box, &state), TR_ECRASHED);
    CHECK_EQ_INT(tr_future_wait(answer, NULL, 0, NULL, 0), TR_ECRASHED);
    CHECK_EQ_INT(
        uid_tell(sender, (struct uid_message){ .kind = UID_SKIP, .count = 1 }), TR_ECLOSED);
    tr_future_drop(&answer);
    uid_drop(&sender);
    tr_box_destroy(&box);
}
