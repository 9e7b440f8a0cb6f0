/* SPDX-License-Identifier: Apache-2.0 */
/* sim_trace.c: equal seeds give equal traces, also in another process with other addresses; and the
 * rig itself: a seed that must fail fails, and the interleavings it is there for do happen.
 *
 * The town has a little of everything: a registry, a supervisor, asks with and without hold,
 * timers, work, the network and the disk. */
#include <sys/wait.h>
#include <unistd.h>

#include "scenario.h"

enum { FOLK = 5, TAG_NET = 1, TAG_TICK = 2, TAG_WORK = 3, TAG_ASK = 4, TRACES = 50 };

struct message {
    uint32_t id;
    uint32_t hops;
};

static struct {
    struct scenario s;
    tr_sender folk[FOLK], root;
    struct tr_registry *registry;
    bool calm;
} now;

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

struct person {
    uint32_t index, ticks;
};

static int work(void *argument)
{
    const struct tr_env *env = tr_system_env(now.s.system);
    struct tr_file *file;
    int rc = env->disk->open(
        env->disk_data, "town", TR_OPEN_READ | TR_OPEN_WRITE | TR_OPEN_CREATE, &file);

    if (rc < 0)
        return rc;
    rc = env->disk->write(file, (uintptr_t)argument * 100, "town", 4);
    env->disk->close(file);
    return rc;
}

static int start(void *state, struct tr_context *ctx)
{
    struct person *self = state;

    if (self->index < FOLK)
        CHECK_EQ_INT(tr_net_bind(ctx, 1 + self->index, TAG_NET), 0);
    return tr_every(ctx, 3 * MS, TAG_TICK, NULL);
}

static void act(struct person *self, struct tr_context *ctx, uint32_t hops)
{
    uint64_t roll = tr_random(ctx);
    uint32_t key = roll >> 8 & 3, to = (uint32_t)(roll >> 16) % FOLK;
    struct message m;

    if (hops == 0 || now.calm)
        return;
    m = (struct message){ ledger_new(), hops - 1 };
    switch (roll & 7) {
    case 0:
    case 1:
        ledger_sent(m.id, tr_tell(now.folk[to], &m, sizeof m));
        return;
    case 2:
    case 3:
        ledger_sent(m.id,
            tr_ask(ctx, now.folk[to], &m, sizeof m,
                &(struct tr_ask_options){
                    .tag = TAG_ASK, .hold = roll >> 24 & 1, .timeout_ns = (roll >> 32 & 3) * MS }));
        return;
    case 4:
        ledger_sent(m.id, tr_registry_tell(now.registry, &key, sizeof key, &m, sizeof m));
        return;
    case 5:
        tr_net_send(ctx, 1 + to, &key, sizeof key);
        break;
    case 6:
        CHECK_EQ_INT(tr_offload(ctx, work, (void *)(uintptr_t)self->index, NULL, TAG_WORK), 0);
        break;
    default:
        break;
    }
    ledger_sent(m.id, TR_EAGAIN); /* not sent after all */
}

static enum tr_next handle(void *state, struct tr_context *ctx, void *message)
{
    const struct message *m = message;

    if (tr_random(ctx) % 50 == 0) {
        ledger_dead(m->id);
        return TR_FAIL;
    }
    ledger_handled(m->id);
    act(state, ctx, m->hops);
    if (tr_is_asked(ctx) && tr_random(ctx) % 4 != 0)
        tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

static enum tr_next on_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct person *self = state;

    if (event->kind == TR_EVENT_TIMER && ++self->ticks > 10)
        tr_timer_stop(ctx, event->id);
    act(self, ctx, event->kind == TR_EVENT_TIMER ? 3 : 0);
    return TR_GO;
}

static const struct tr_type person_type = {
    .name = "person",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct person),
    .start = start,
    .handle = handle,
    .event = on_event,
    .message_drop = drop_message,
};

static int make(void *data, const void *key, size_t size, void *state)
{
    (void)data;
    (void)key;
    (void)size;
    ((struct person *)state)->index = FOLK;
    return 0;
}

static uint64_t run(uint64_t seed)
{
    static struct person states[FOLK];
    static struct tr_child rows[FOLK];
    static struct tr_supervisor table;
    struct scenario *s = &now.s;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, &(struct tr_sim_options){ .kill_per_million = 2000 });
    tr_sim_net_faults(s->sim,
        &(struct tr_net_faults){
            .delay_ns_max = 5 * MS, .loss_per_million = 100000, .duplicate_per_million = 100000 });
    tr_sim_disk_faults(s->sim, &(struct tr_disk_faults){ .eio_per_million = 100000 });
    for (uint32_t i = 0; i < FOLK; i++) {
        states[i] = (struct person){ .index = i };
        rows[i] = (struct tr_child){ .name = "person",
            .type = &person_type,
            .state = &states[i],
            .backoff_ns_min = MS,
            .backoff_ns_max = 4 * MS,
            .jitter_percent = 50,
            .box.capacity = between(s, 2, 20),
            .ret_sender = &now.folk[i] };
    }
    table = (struct tr_supervisor){ .name = "town",
        .strategy = (enum tr_strategy)below(s, 3),
        .restarts_max = 1000,
        .children = rows,
        .child_count = FOLK };
    CHECK_EQ_INT(tr_registry_create(s->system,
                     &(struct tr_registry_options){
                         .name = "guests", .type = &person_type, .make = make, .idle_ns = 2 * MS },
                     &now.registry),
        0);
    CHECK_EQ_INT(tr_supervise(s->system, &table, "scenario", &now.root), 0);
    tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 60 * MS);
    tr_sim_disk_crash(s->sim);
    check_conserved(s);
    tr_sender_drop(&now.root);
    tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 20 * MS);
    now.calm = true;
    for (uint32_t i = 0; i < FOLK; i++)
        tr_sender_drop(&now.folk[i]);
    CHECK_EQ_INT(tr_registry_close(&now.registry, 0), 0);
    scenario_rest(s);
    return scenario_end(s);
}

TEST_LONG(trace, is_equal_for_equal_seeds, 60)
{
    check_traces(run, TRACES);
    scenario_report();
}

/* The same program once more, which then lies elsewhere in memory: it prints its traces, a line
 * each. */
TEST_LONG(trace, does_not_depend_on_addresses, 60)
{
    bool is_child = getenv("TROUPE_TRACE_CHILD") != NULL;
    char self[4096], line[128],
        *arguments[] = { self, (char[]){ "--no-fork" }, (char[]){ "does_not_depend" }, NULL };
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int ends[2], status;
    FILE *input;
    pid_t child;
    uint64_t seed = 1;

    if (is_child) {
        for (; seed <= TRACES; seed++)
            printf("trace %llu\n", (unsigned long long)run(seed));
        return;
    }
    CHECK(length > 0 && pipe(ends) == 0);
    self[length] = '\0';
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("TROUPE_TRACE_CHILD", "1", 1);
        dup2(ends[1], STDOUT_FILENO);
        execv(self, arguments);
        _exit(127);
    }
    close(ends[1]);
    input = fdopen(ends[0], "r");
    CHECK(input != NULL);
    while (fgets(line, sizeof line, input) != NULL) {
        char expected[64];

        if (strncmp(line, "trace ", 6) != 0)
            continue;
        snprintf(expected, sizeof expected, "trace %llu\n", (unsigned long long)run(seed));
        CHECK_MSG(strcmp(line, expected) == 0, "seed %llu: %.*s here, %.*s there",
            (unsigned long long)seed, (int)strcspn(expected, "\n"), expected,
            (int)strcspn(line, "\n"), line);
        seed++;
    }
    fclose(input);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_EQ_U64(seed, TRACES + 1);
}

/* ---- the rig itself ------------------------------------------------------------------------- */

/* Two actors add to a number that is not theirs, with a send between reading and writing it: wrong
 * on two threads. */
struct thief {
    uint32_t left;
};

static uint32_t shared, lost;
static tr_sender thieves[2];

static enum tr_next steal(void *state, struct tr_context *ctx, void *message)
{
    struct thief *self = state;
    uint32_t before = shared;
    struct message m = { ledger_new(), 0 };

    ledger_handled(((struct message *)message)->id);
    ledger_sent(m.id, self->left > 0 ? tr_self_tell(ctx, &m, sizeof m) : TR_EAGAIN);
    self->left -= self->left > 0;
    lost += shared != before;
    shared = before + 1;
    return TR_GO;
}

static const struct tr_type thief_type = {
    .name = "thief",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct thief),
    .handle = steal,
    .message_drop = drop_message,
};

TEST(trace, meets_the_interleavings_of_threads)
{
    uint32_t seeds_with_loss = 0;

    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct scenario s;

        scenario_begin(&s, seed, NULL);
        shared = lost = 0;
        for (uint32_t i = 0; i < 2; i++) {
            struct message m = { ledger_new(), 0 };

            CHECK_EQ_INT(
                tr_spawn(s.system, &thief_type, &(struct thief){ 50 }, NULL, &thieves[i]), 0);
            CHECK_EQ_INT(ledger_sent(m.id, tr_tell(thieves[i], &m, sizeof m)), 0);
        }
        tr_sender_drop(&thieves[0]);
        tr_sender_drop(&thieves[1]);
        scenario_rest(&s);
        CHECK_EQ_U64(ledger.handled, 102);
        seeds_with_loss += lost > 0;
        scenario_end(&s);
    }
    CHECK_MSG(seeds_with_loss >= 40,
        "only %u of 100 seeds let one actor run in the middle of another's turn", seeds_with_loss);
}
