/* SPDX-License-Identifier: Apache-2.0 */
/* The last five of the ten laws, each by its words. The details are in the tests of their parts. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* law 10 looks at locks and queues */
#include "runtime/box.h"
#include "runtime/sync.h"
#include "runtime/system.h"
#include "runtime/timer.h"
#include "stage.h"

/* ---- law 6: the box closes when the last strong sender drops; queued messages are still handled; ---- */

/* then stop, then the state is handed back. Self, timers, watches and the registry's idle entries
 * are weak. ---------------------- */

TEST(law_6, the_last_sender_closes_the_box_the_rest_is_handled_then_stop_then_the_state_comes_back)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct tr_sim *sim = sim_create(seed);
        struct journal journal;
        struct player player;
        struct tr_done *done;
        enum tr_why why;
        tr_sender first, second;

        journal_init(&journal);
        first = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal },
            &(struct tr_spawn_options){ .ret_done = &done });
        second = tr_sender_clone(first, "second");
        for (uint64_t i = 1; i <= 3; i++)
            tell(first, act_note, i);
        tr_sender_drop(&first);
        sim_stumble(sim, 3);
        tell(second, act_note, 4); /* one is left: open */
        tell(second, act_add, 7);
        tr_sender_drop(&second);
        CHECK_EQ_INT(tr_done_wait(&done, &player, &why, 0), 0);
        CHECK_JOURNAL(&journal, "a starts; a 1; a 2; a 3; a 4; a stops");
        CHECK_EQ_INT(why, TR_WHY_DONE);
        CHECK_EQ_U64(player.number, 7);
        sim_finish(&sim);
    }
}

static enum tr_next act_weak_holds(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    CHECK(tr_self(ctx).box != NULL); /* itself */
    CHECK_EQ_INT(tr_every(ctx, 10 * MS, 1, NULL), 0);
    CHECK_EQ_INT(tr_watch(ctx, order->weak, 2), 0);
    return TR_GO;
}

TEST(law_6, itself_timers_and_watches_do_not_keep_an_actor_alive)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal;
    tr_sender a, b;

    journal_init(&journal);
    a = cast(tr_sim_system(sim), (struct player){ .name = "a", .journal = &journal }, NULL);
    b = cast(tr_sim_system(sim), (struct player){ .name = "b", .journal = &journal, .quiet = true },
        NULL);
    CHECK_EQ_INT(tr_tell(a, &(struct order){ .act = act_weak_holds, .weak = tr_sender_weaken(b) },
                     sizeof(struct order)),
        0);
    CHECK_EQ_INT(tr_tell(b, &(struct order){ .act = act_weak_holds, .weak = tr_sender_weaken(a) },
                     sizeof(struct order)),
        0);
    sim_settle(sim);
    tr_sender_drop(&a);
    sim_settle(sim);
    CHECK_JOURNAL(&journal, "a starts; a stops; a ends");
    tr_sender_drop(&b);
    sim_finish(&sim);
}

static int make_player(void *data, const void *key, size_t key_size, void *state)
{
    (void)key;
    (void)key_size;
    *(struct player *)state = (struct player){ .name = "r", .journal = data };
    return 0;
}

TEST(law_6, an_idle_entry_of_a_registry_does_not_keep_its_actor_alive)
{
    struct tr_sim *sim = sim_create(1);
    struct tr_registry *registry;
    struct journal journal;

    journal_init(&journal);
    CHECK_EQ_INT(
        tr_registry_create(tr_sim_system(sim),
            &(struct tr_registry_options){
                .type = &player_type, .make = make_player, .data = &journal, .idle_ns = 10 * MS },
            &registry),
        0);
    CHECK_EQ_INT(tr_registry_tell(registry, "k", 1, &(struct order){ .act = act_note, .number = 1 },
                     sizeof(struct order)),
        0);
    sim_pass(sim, 100 * MS);
    CHECK_JOURNAL(&journal, "r starts; r 1; r stops; r ends");
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
    sim_finish(&sim);
}

/* ---- law 7: a restart keeps box, stash and order; the message that crashed goes to dead letters ---- */

/* unless retry_poison. ---- */

static enum tr_next act_stash_once(struct player *self, struct tr_context *ctx, struct order *order)
{
    if (order->number++ == 0)
        CHECK_EQ_INT(tr_stash(ctx), 0);
    else
        journal_write(self->journal, "%s unstashed", self->name);
    return TR_GO;
}

static enum tr_next act_unstash(struct player *self, struct tr_context *ctx, struct order *order)
{
    (void)self;
    (void)order;
    tr_unstash(ctx);
    return TR_GO;
}

static enum tr_next act_poison(struct player *self, struct tr_context *ctx, struct order *order)
{
    if (tr_self_restarts(ctx) == 0)
        return TR_FAIL;
    return act_note(self, ctx, order);
}

TEST(law_7, a_restart_keeps_box_stash_and_order_and_costs_the_message_that_crashed_or_not_even_that)
{
    for (uint64_t seed; check_each_seed(&seed, 50);)
        for (int retry = 0; retry < 2; retry++) {
            struct tr_sim *sim = sim_create(seed);
            struct journal journal;
            struct player state = { .name = "c", .journal = &journal };
            tr_sender child, root;
            struct tr_child row = { .name = "c",
                .type = &player_type,
                .state = &state,
                .retry_poison = retry,
                .backoff_ns_min = 5 * MS,
                .ret_sender = &child };
            struct tr_supervisor table = { .name = "root", .children = &row, .child_count = 1 };
            struct tr_future *future;

            journal_init(&journal);
            CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), 0);
            tell(child, act_stash_once, 0);
            tell(child, act_note, 1);
            future = ask(child, act_poison, 2);
            tell(child, act_note, 3);
            sim_stumble(sim, 6);
            tell(child, act_unstash, 0);
            tell(child, act_note, 4);
            sim_pass(sim, 20 * MS);
            CHECK_JOURNAL(&journal, retry ? "c starts; c 1; c starts; c 2; c 3; c unstashed; c 4"
                                          : "c starts; c 1; c starts; c 3; c unstashed; c 4");
            CHECK_EQ_INT(answer(&future, NULL), retry ? TR_EDROPPED : TR_ECRASHED);
            CHECK_EQ_U64(tr_dead_count(tr_sim_system(sim), TR_DEAD_CRASHED), retry ? 0 : 1);
            tr_sender_drop(&child);
            tr_sender_drop(&root);
            sim_finish(&sim);
        }
}

/* ---- law 8: children stop in reverse start order, each within its grace; then cancel; then the ---- */

/* runtime says who was abandoned. ---- */

static void stop_for_ever(struct player *self, struct tr_context *ctx, enum tr_why why)
{
    tr_sender *store = self->data;

    (void)why;
    CHECK_EQ_INT(tr_ask(ctx, *store, &(struct order){ .act = act_take }, sizeof(struct order),
                     &(struct tr_ask_options){ .hold = true }),
        0);
}

TEST(law_8, children_stop_in_reverse_each_within_its_grace_and_who_is_abandoned_is_named)
{
    struct journal journal, log;
    struct tr_system *system;
    struct player states[3];
    struct tr_child rows[3];
    struct tr_supervisor table = { .name = "root", .children = rows, .child_count = 3 };
    tr_sender senders[3], store, root;
    static const char *const names[] = { "a", "b", "c" };

    journal_init(&journal);
    journal_init(&log);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .driven = true, .log = journal_log, .log_data = &log },
            &system),
        0);
    /* It never answers. */
    store = cast(system, (struct player){ .quiet = true, .journal = &journal }, NULL);
    for (int i = 0; i < 3; i++) {
        states[i] = (struct player){ .name = names[i],
            .journal = &journal,
            .data = &store,
            .on_stop = i == 1 ? stop_for_ever : NULL };
        rows[i] = (struct tr_child){ .name = names[i],
            .type = &player_type,
            .state = &states[i],
            .grace_ns = 2 * MS,
            .ret_sender = &senders[i] };
    }
    CHECK_EQ_INT(tr_supervise(system, &table, "test", &root), 0);
    while (tr_system_step(system, 100) > 0) {
    }
    tr_sender_drop(&root);
    CHECK_EQ_INT(tr_sender_wait_closed(senders[0], 0), 0);
    CHECK_JOURNAL(&journal,
        "a starts; b starts; c starts; c stops; c ends; b stops; b ends; a stops; a ends");
    CHECK_JOURNAL(&log, "actor b: abandoned, its grace to stop has run out");
    for (int i = 0; i < 3; i++)
        tr_sender_drop(&senders[i]);
    tr_sender_drop(&store);
    system_finish(&system);
}

/* ---- law 9: same seed and same inputs give the same trace hash. ----------------------------- */

/* A bit of everything that could go another way. */
static uint64_t scenario(uint64_t seed)
{
    struct tr_sim *sim = NULL;
    struct tr_registry *registry;
    struct journal journal;
    struct player state = { .name = "c", .journal = &journal, .quiet = true };
    tr_sender child, root;
    struct tr_child row = { .name = "c",
        .type = &player_type,
        .state = &state,
        .backoff_ns_min = MS,
        .backoff_ns_max = 8 * MS,
        .jitter_percent = 50,
        .ret_sender = &child };
    struct tr_supervisor table = {
        .name = "root", .restarts_max = 1000, .children = &row, .child_count = 1
    };
    uint64_t trace;

    journal_init(&journal);
    CHECK_EQ_INT(
        tr_sim_create(&(struct tr_sim_options){ .seed = seed, .kill_per_million = 5000 }, &sim), 0);
    CHECK_EQ_INT(
        tr_registry_create(tr_sim_system(sim),
            &(struct tr_registry_options){
                .type = &player_type, .make = make_player, .data = &journal, .idle_ns = 3 * MS },
            &registry),
        0);
    CHECK_EQ_INT(tr_supervise(tr_sim_system(sim), &table, "test", &root), 0);
    for (int i = 0; i < 100; i++) {
        uint32_t key = (uint32_t)(tr_sim_random(sim) % 16);

        CHECK_EQ_INT(tr_registry_tell(registry, &key, sizeof key,
                         &(struct order){ .act = tr_sim_chance(sim, 200000) ? act_stop : act_add },
                         sizeof(struct order)),
            0);
        tell(child, tr_sim_chance(sim, 200000) ? act_fail : act_add, 1);
        sim_stumble(sim, 8);
        journal_clear(&journal);
    }
    tr_sender_drop(&child);
    tr_sender_drop(&root);
    CHECK_EQ_INT(tr_registry_close(&registry, 0), 0);
    tr_sim_run(sim, 0);
    trace = tr_sim_trace(sim);
    check_conservation(tr_sim_system(sim));
    tr_sim_destroy(&sim);
    return trace;
}

TEST(law_9, the_same_seed_gives_the_same_trace_and_another_one_another)
{
    uint64_t traces[5];

    for (uint64_t seed = 0; seed < 5; seed++) {
        void *noise = malloc(1000 + (size_t)seed * 100000); /* moves what comes after it */

        traces[seed] = scenario(seed);
        free(noise);
        CHECK_EQ_U64(scenario(seed), traces[seed]);
        for (uint64_t other = 0; other < seed; other++)
            CHECK(traces[other] != traces[seed]);
    }
}

TEST(law_9, one_input_more_gives_another_trace)
{
    struct journal journal;
    uint64_t traces[2];

    journal_init(&journal);
    for (int i = 0; i < 2; i++) {
        struct tr_sim *sim = sim_create(7);
        tr_sender a =
            cast(tr_sim_system(sim), (struct player){ .quiet = true, .journal = &journal }, NULL);

        tell(a, act_nothing, 0);
        if (i == 1)
            tell(a, act_nothing, 0);
        tr_sender_drop(&a);
        tr_sim_run(sim, 0);
        traces[i] = tr_sim_trace(sim);
        tr_sim_destroy(&sim);
    }
    CHECK(traces[0] != traces[1]);
}

/* For the case below, which runs it in processes of their own. */
TEST(law_9, a_trace_can_be_printed)
{
    printf("trace %016" PRIx64 "\n", scenario(11));
    fflush(stdout);
}

static uint64_t trace_of_a_new_process(void)
{
    char path[4096], text[4096] = "";
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1), got;
    const char *at;
    size_t used = 0;
    int fds[2], status;
    pid_t pid;

    CHECK(length > 0);
    path[length] = '\0';
    CHECK_EQ_INT(pipe(fds), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        execl(path, path, "--no-fork", "law_9: a_trace_can_be_printed", (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    while ((got = read(fds[0], text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)got;
    close(fds[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", text);
    at = strstr(text, "trace ");
    CHECK_MSG(at != NULL, "%s", text);
    return strtoull(at + 6, NULL, 16);
}

TEST(law_9, addresses_and_environment_of_a_process_do_not_matter)
{
    uint64_t trace = scenario(11);

    for (int i = 0; i < 3; i++) /* each has its memory elsewhere */
        CHECK_EQ_U64(trace_of_a_new_process(), trace);
}

/* ---- law 10: observation is O(1) per actor and never walks a queue or takes a lock the hot path ---- */

/* takes. ----------------------- */

struct looking {
    struct tr_system *system;
    uint64_t id;
    struct tr_actor_info info;
    struct tr_system_stats stats;
    uint32_t visited;
};

static bool visit(void *data, const struct tr_actor_info *info)
{
    struct looking *looking = data;

    (void)info;
    looking->visited++;
    return true;
}

static void *look(void *argument)
{
    struct looking *looking = argument;

    CHECK_EQ_INT(tr_inspect_one(looking->system, looking->id, &looking->info), 0);
    tr_inspect(looking->system, visit, looking);
    tr_system_stats(looking->system, &looking->stats);
    return NULL;
}

static enum tr_next act_id(struct player *self, struct tr_context *ctx, struct order *order)
{
    uint64_t id = tr_self_id(ctx);

    (void)self;
    (void)order;
    tr_reply(ctx, 0, &id, sizeof id);
    return TR_GO;
}

struct crowd {
    struct tr_system *system;
    struct journal journal;
    tr_sender a;
    struct looking looking;
};

static void crowd_init(struct crowd *crowd)
{
    struct tr_future *future;

    journal_init(&crowd->journal);
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){ .driven = true, .quiet = true }, &crowd->system),
        0);
    crowd->a =
        cast(crowd->system, (struct player){ .quiet = true, .journal = &crowd->journal }, NULL);
    crowd->looking = (struct looking){ .system = crowd->system };
    future = ask(crowd->a, act_id, 0);
    CHECK_EQ_INT(answer(&future, &crowd->looking.id), 0);
}

TEST(law_10, looking_takes_no_lock_of_the_hot_path)
{
    struct crowd crowd;
    pthread_t thread;

    crowd_init(&crowd);
    tell(crowd.a, act_nothing, 0);
    /* A thread that needs one of these locks now waits for ever. */
    pthread_mutex_lock(&crowd.system->foreign_lock);
    pthread_mutex_lock(&crowd.system->memory_lock);
    pthread_mutex_lock(&crowd.system->reply_lock);
    pthread_mutex_lock(&crowd.system->end_lock);
    for (uint32_t i = 0; i < crowd.system->worker_count; i++)
        tr__spin_lock(&crowd.system->workers[i]->wheel->lock);
    CHECK_EQ_INT(pthread_create(&thread, NULL, look, &crowd.looking), 0);
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < crowd.system->worker_count; i++)
        tr__spin_unlock(&crowd.system->workers[i]->wheel->lock);
    pthread_mutex_unlock(&crowd.system->end_lock);
    pthread_mutex_unlock(&crowd.system->reply_lock);
    pthread_mutex_unlock(&crowd.system->memory_lock);
    pthread_mutex_unlock(&crowd.system->foreign_lock);
    CHECK_EQ_INT(crowd.looking.info.depth, 1);
    CHECK_EQ_INT(crowd.looking.visited, 1);
    CHECK_EQ_U64(crowd.looking.stats.queued, 1);
    tr_sender_drop(&crowd.a);
    system_finish(&crowd.system);
}

TEST(law_10, looking_never_walks_a_queue)
{
    struct crowd crowd;
    struct tr__cell *newest, *next;

    crowd_init(&crowd);
    for (int i = 0; i < 5; i++)
        tell(crowd.a, act_nothing, 0);
    /* A queue without an end: a walk over it never returns. */
    newest = tr__word_cell(tr__get(crowd.a.box->word));
    CHECK(newest != NULL);
    next = newest->next;
    newest->next = newest;
    look(&crowd.looking);
    newest->next = next;
    CHECK_EQ_INT(crowd.looking.info.depth, 5);
    CHECK_EQ_INT(crowd.looking.visited, 1);
    tr_sender_drop(&crowd.a);
    system_finish(&crowd.system);
}
