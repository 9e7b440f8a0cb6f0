/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/11-looking-inside.md: the actors of a system, seen from outside. */
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

enum job { JOB_PLAIN, JOB_SLOW, JOB_BAD };

/* Does jobs. A slow one it hands to somebody else, and holds. */
struct worker {
    tr_sender helper; /* owned; {0} for the helper itself */
    tr_reply_handle open;
    int done;
};

static enum tr_next worker_handle(void *state, struct tr_context *ctx, void *message)
{
    struct worker *self = state;
    enum job job = *(const enum job *)message;

    if (job == JOB_BAD)
        return TR_FAIL;
    if (job == JOB_SLOW && self->helper.box != NULL)
        return tr_ask(ctx, self->helper, &job, sizeof job,
                   &(struct tr_ask_options){ .hold = true }) < 0
                   ? TR_FAIL
                   : TR_GO;
    if (job == JOB_SLOW)
        self->open = tr_reply_take(ctx); /* to be answered some day */
    self->done++;
    return TR_GO;
}

static void worker_finish(void *state)
{
    struct worker *self = state;

    tr_sender_drop(&self->helper);
}

static void worker_show(const void *state, char *text, size_t size)
{
    const struct worker *self = state;

    snprintf(text, size, "%d jobs done", self->done);
}

static const char *worker_message_name(const void *message)
{
    static const char *const names[] = { "plain", "slow", "bad" };

    return names[*(const enum job *)message];
}

static const struct tr_type worker_type = {
    .name = "worker",
    .message_size = sizeof(enum job),
    .state_size = sizeof(struct worker),
    .handle = worker_handle,
    .finish = worker_finish,
    .show = worker_show,
    .message_name = worker_message_name,
};
TR_ACTOR(worker, struct worker, enum job)

struct look {
    struct tr_system *system;
    uint64_t first; /* id of the first actor seen */
};

static bool print_actor(void *data, const struct tr_actor_info *info)
{
    struct look *look = data;
    struct tr_actor_info other = { .name = "-" };

    if (look->first == 0)
        look->first = info->id;
    tr_inspect_one(look->system, info->waiting_on, &other);
    printf("%-8s %-8s %5u of %-4u %7llu  %s\n", info->name, tr_doing_text(info->doing), info->depth,
        info->capacity, (unsigned long long)info->handled, other.name);
    return true;
}

int main(void)
{
    struct worker idle = { 0 }, busy = { 0 };
    struct tr_system *system;
    struct tr_system_stats stats;
    struct tr_dead_letter letter;
    worker_sender ann, bob, eve;
    struct look look = { 0 };
    char text[64];

    must(tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system));
    must(worker_spawn(system, &idle, &(struct tr_spawn_options){ .name = "bob" }, &bob));
    busy.helper = worker_clone(bob, "ann").raw;
    must(worker_spawn(
        system, &busy, &(struct tr_spawn_options){ .name = "ann", .box.capacity = 10 }, &ann));
    must(worker_spawn(system, &idle, &(struct tr_spawn_options){ .name = "eve" }, &eve));

    must(worker_tell(ann, JOB_PLAIN));
    must(worker_tell(ann, JOB_SLOW));  /* asks bob, and holds */
    must(worker_tell(ann, JOB_PLAIN)); /* waits behind it */
    must(worker_tell(eve, JOB_BAD));   /* the end of eve */
    tr_system_step(system, 100);

    printf("%-8s %-8s %-13s %7s  %s\n", "name", "doing", "   box", "handled", "waits for");
    look.system = system;
    tr_inspect(system, print_actor, &look);
    if (tr_inspect_show(system, look.first, text, sizeof text, 0) == 0)
        printf("the first of them says: %s\n", text);

    tr_system_stats(system, &stats);
    printf("\nsent %llu = handled %llu + dead %llu + queued %llu\n", (unsigned long long)stats.sent,
        (unsigned long long)stats.handled, (unsigned long long)stats.dead,
        (unsigned long long)stats.queued);
    if (tr_dead_letters(system, &letter, 1) == 1)
        printf("dead letter: %s of type %s: %s\n", letter.message, letter.type,
            tr_dead_text(letter.reason));

    worker_drop(&ann);
    worker_drop(&bob);
    worker_drop(&eve);
    tr_system_destroy(&system);
    return 0;
}
