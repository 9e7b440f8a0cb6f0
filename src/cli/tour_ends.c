/* SPDX-License-Identifier: Apache-2.0 */
/* tour_ends.c: how actors end: by a crash, by themselves, not at all, and while they wait for each
 * other. This thread drives the systems, so that the lines appear in the order of the events. */
#include "cli/tour.h"

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

/* ---- 4: a crash and a restart --------------------------------------------------------------- */

static const struct ids ids_initial = { .next = 1 };
static ids_sender supervised;

static const struct tr_child children[] = {
    { .name = "ids",
        .type = &ids_type,
        .state = &ids_initial,
        .restart = TR_PERMANENT,
        .ret_sender = &supervised.raw },
};
static const struct tr_supervisor table = {
    .name = "supervisor",
    .strategy = TR_ONE_FOR_ONE,
    .restarts_max = 3,
    .children = children,
    .child_count = 1,
};

static void ask_ids(const char *what, enum ids_message message)
{
    uint32_t id = 0;
    int rc = ids_ask_wait(supervised, message, &id, sizeof id, 0);

    if (rc < 0)
        tour_print("%s: %s (%s)", what, tr_error_name(rc), tr_error_text(rc));
    else
        tour_print("%s: %u", what, id);
}

static void run_crash(void)
{
    struct tr_system_options options = tour_driven();
    struct tr_system *system;
    struct tr_dead_letter letter;
    tr_sender top;

    tour_must(tr_system_create(&options, &system));
    tour_must(tr_supervise(system, &table, "tour", &top));
    ask_ids("get", IDS_GET);
    ask_ids("get", IDS_GET);
    ask_ids("break", IDS_BREAK);
    ask_ids("get, through the same sender", IDS_GET);
    if (tr_dead_letters(system, &letter, 1) == 1)
        tour_print("dead letter of %s: %s", letter.type, tr_dead_text(letter.reason));
    tour_print_stream(tr_inspect_tree, system);
    ids_drop(&supervised);
    tr_sender_drop(&top);
    tour_must(tr_system_join(system, 0));
    tr_system_destroy(&system);
}

const struct tour_step tour_crash = {
    .title = "A crash, and the supervisor's table",
    .text = "   A crash is a handler that returned TR_FAIL, a start that failed, or a call\n"
            "   over the time limit its type declares. The asker gets an error; the message\n"
            "   becomes a dead letter; the supervisor restarts the actor from its first state.\n"
            "   Its box and all its senders stay valid.\n",
    .run = run_crash,
};

/* ---- 5 and 6: shutdown ---------------------------------------------------------------------- */

struct stage {
    tr_sender next; /* owned; {0} for the last one */
};

static enum tr_next stage_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct stage *self = state;

    if (self->next.box != NULL)
        return tr_tell(self->next, message, sizeof(uint32_t)) < 0 ? TR_FAIL : TR_GO;
    tour_print("%s got %u", tr_self_name(ctx), *(const uint32_t *)message);
    return TR_GO;
}

static void stage_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    (void)state;
    tour_print("%s ends: %s", tr_self_name(ctx), tr_why_text(why));
}

static void stage_finish(void *state)
{
    struct stage *self = state;

    tr_sender_drop(&self->next);
}

static const struct tr_type stage_type = {
    .name = "stage",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct stage),
    .handle = stage_handle,
    .stop = stage_stop,
    .finish = stage_finish,
};

static tr_sender stage_spawn(
    struct tr_system *system, const char *name, const char *owner, tr_sender next)
{
    struct stage stage = { next };
    tr_sender sender;

    tour_must(tr_spawn(system, &stage_type, &stage,
        &(struct tr_spawn_options){ .name = name, .owner = owner }, &sender));
    return sender;
}

/* reader -> parser -> writer. */
static tr_sender pipeline_spawn(struct tr_system *system)
{
    tr_sender writer = stage_spawn(system, "writer", "parser", (tr_sender){ 0 });
    tr_sender parser = stage_spawn(system, "parser", "reader", writer);

    return stage_spawn(system, "reader", "tour", parser);
}

static void run_shutdown(void)
{
    struct tr_system_options options = tour_driven();
    struct tr_system *system;
    tr_sender reader;

    tour_must(tr_system_create(&options, &system));
    reader = pipeline_spawn(system);
    for (uint32_t number = 1; number <= 3; number++)
        tour_must(tr_tell(reader, &number, sizeof number));
    tour_print("dropping the one sender this program holds");
    tr_sender_drop(&reader);
    tour_must(tr_system_join(system, 0));
    tour_print("all three have ended");
    tr_system_destroy(&system);
}

const struct tour_step tour_shutdown = {
    .title = "Natural shutdown",
    .text = "   reader -> parser -> writer; each holds the sender of the next. Dropping the\n"
            "   first one's sender ends all three, one after the other, after they have\n"
            "   handled every message.\n",
    .run = run_shutdown,
};

static void run_holders(void)
{
    struct tr_system_options options = tour_driven();
    struct tr_system *system;
    tr_sender reader, leaked;
    int rc;

    tour_must(tr_system_create(&options, &system));
    reader = pipeline_spawn(system);
    leaked = tr_sender_clone(reader, "a cache that nobody empties");
    tr_sender_drop(&reader);
    rc = tr_system_join(system, 50 * MS);
    tour_print("waited 50 ms for the end: %s", tr_error_name(rc));
    tour_print("dropping the clone too");
    tr_sender_drop(&leaked);
    tour_must(tr_system_join(system, 0));
    tr_system_destroy(&system);
}

const struct tour_step tour_holders = {
    .title = "The report of holders",
    .text = "   The same pipeline, but the program has forgotten a clone of the first sender.\n"
            "   Every clone names its owner, so the report shows which one is left.\n",
    .run = run_holders,
};

/* ---- 7: a wait cycle ------------------------------------------------------------------------ */

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
    tour_print("%s asks and holds: %s", tr_self_name(ctx), rc < 0 ? tr_error_name(rc) : "waiting");
    tr_reply(ctx, rc, NULL, 0);
    return TR_GO;
}

static enum tr_next friend_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    (void)state;
    if (event->kind == TR_EVENT_REPLY)
        tour_print("%s has its answer: %s", tr_self_name(ctx), tr_error_name(event->status));
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

static void run_cycle(void)
{
    struct tr_system_options options = tour_driven();
    struct friend nobody = { 0 };
    struct tr_system *system;
    friend_sender ann, bob;

    tour_must(tr_system_create(&options, &system));
    tour_must(friend_spawn(system, &nobody, &(struct tr_spawn_options){ .name = "ann" }, &ann));
    tour_must(friend_spawn(system, &nobody, &(struct tr_spawn_options){ .name = "bob" }, &bob));
    tour_must(
        friend_tell(ann, (struct friend_message){ FRIEND_MEET, friend_clone(bob, "ann").raw }));
    tour_must(
        friend_tell(bob, (struct friend_message){ FRIEND_MEET, friend_clone(ann, "bob").raw }));
    tour_must(friend_tell(ann, (struct friend_message){ .kind = FRIEND_CALL }));
    friend_drop(&ann);
    friend_drop(&bob);
    tr_system_step(system, 100);
    /* Each holds a sender of the other, so neither ends by itself. */
    tour_must(tr_system_drain(system, 0));
    tr_system_destroy(&system);
}

const struct tour_step tour_cycle = {
    .title = "A circle of actors that wait for each other",
    .text = "   ann asks bob and holds: she handles nothing else until the answer is there.\n"
            "   To answer, bob asks ann, and holds. The two would wait for ever; so the ask\n"
            "   that closes the circle fails at once, and the report names every actor in it.\n",
    .run = run_cycle,
};
