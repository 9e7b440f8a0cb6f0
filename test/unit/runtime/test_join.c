/* SPDX-License-Identifier: Apache-2.0 */
/* A join that takes long says what it waits for. */
#include <stdatomic.h>

#include "runtime/system.h" /* the log of a simulated system is not for the public */
#include "stage.h"

/* A clock that goes on by a millisecond whenever somebody looks: ten seconds pass without waiting.
 */
struct fast_clock {
    atomic_uint_least64_t now_ns;
};

static uint64_t fast_now_ns(void *data)
{
    struct fast_clock *clock = data;

    return atomic_fetch_add(&clock->now_ns, MS) + MS;
}

static struct tr_env fast_env(struct fast_clock *clock)
{
    struct tr_env env = *tr_env_real();

    env.now_ns = fast_now_ns;
    env.data = clock;
    return env;
}

static uint32_t count_of(const char *text, const char *part)
{
    uint32_t count = 0;

    while ((text = strstr(text, part)) != NULL) {
        count++;
        text += strlen(part);
    }
    return count;
}

/* Tells itself to go on until a minute is over, so that a driven system never goes to sleep. */
static enum tr_next act_last_a_minute(
    struct player *self, struct tr_context *ctx, struct order *order)
{
    const struct fast_clock *clock = self->data;

    if (atomic_load(&clock->now_ns) >= 60000 * MS)
        return TR_STOP;
    CHECK_EQ_INT(tr_self_tell(ctx, order, sizeof *order), 0);
    return TR_GO;
}

/* The log when the join has returned. */
static void join_for_a_minute(uint64_t timeout_ns, bool quiet, int expected, struct journal *log)
{
    struct fast_clock clock = { 0 };
    struct tr_env env = fast_env(&clock);
    struct tr_system *system = NULL;
    struct journal journal;
    tr_sender sender;

    journal_init(&journal);
    journal_init(log);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){
                .driven = true, .env = &env, .quiet = quiet, .log = journal_log, .log_data = log },
            &system),
        0);
    sender = cast(system, (struct player){ .quiet = true, .journal = &journal, .data = &clock },
        &(struct tr_spawn_options){ .name = "forgotten", .owner = "somebody careless" });
    tell(sender, act_last_a_minute, 0);
    CHECK_EQ_INT(tr_system_join(system, timeout_ns), expected);
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
}

TEST(join, without_a_limit_says_once_who_holds_what_and_goes_on)
{
    struct journal log;

    join_for_a_minute(0, false, 0, &log);
    CHECK_MSG(
        strstr(log.text, "forgotten: 1 sender, held by somebody careless") != NULL, "%s", log.text);
    CHECK_EQ_U64(count_of(log.text, "actor alive"), 1);
}

TEST(join, of_a_quiet_system_says_nothing)
{
    struct journal log;

    join_for_a_minute(0, true, 0, &log);
    CHECK_JOURNAL(&log, "");
}

TEST(join, with_a_limit_says_it_only_when_that_is_over)
{
    struct journal log;

    join_for_a_minute(120000 * MS, false, 0, &log);
    CHECK_JOURNAL(&log, "");
    join_for_a_minute(30000 * MS, false, TR_ETIMEOUT, &log);
    CHECK_EQ_U64(count_of(log.text, "actor alive"), 1);
}

/* On workers, where the joining thread sleeps: the first line of the report lets go of what was
 * forgotten, so the join ends because of it and not before. */
struct careless {
    tr_sender sender;
    struct fast_clock clock;
    uint64_t said_ns;
    uint32_t lines;
};

static void let_go(void *data, const char *line)
{
    struct careless *careless = data;

    (void)line;
    if (careless->lines++ == 0)
        careless->said_ns = atomic_load(&careless->clock.now_ns);
    tr_sender_drop(&careless->sender);
}

TEST(join, without_a_limit_speaks_after_ten_seconds_on_workers_too)
{
    struct careless careless = { 0 };
    struct tr_env env = fast_env(&careless.clock);
    struct tr_system *system = NULL;
    struct journal journal;
    uint64_t began_ns;

    journal_init(&journal);
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){
                         .workers = 1, .env = &env, .log = let_go, .log_data = &careless },
                     &system),
        0);
    careless.sender = cast(system, (struct player){ .quiet = true, .journal = &journal }, NULL);
    began_ns = atomic_load(&careless.clock.now_ns);
    CHECK_EQ_INT(tr_system_join(system, 0), 0);
    CHECK_EQ_U64(careless.lines, 2); /* how many are alive, and the one */
    CHECK(careless.said_ns - began_ns >= 10000 * MS);
    system_finish(&system);
}

TEST(join, in_a_simulation_without_a_limit_ends_when_nothing_is_left_to_do)
{
    struct tr_sim *sim = sim_create(1);
    struct journal journal, log;
    tr_sender sender;

    journal_init(&journal);
    journal_init(&log);
    tr_sim_system(sim)->log = journal_log;
    tr_sim_system(sim)->log_data = &log;
    sender = cast(tr_sim_system(sim), (struct player){ .quiet = true, .journal = &journal }, NULL);
    CHECK_EQ_INT(tr_system_join(tr_sim_system(sim), 0), TR_ETIMEOUT);
    CHECK_EQ_U64(count_of(log.text, "actor alive"), 1);
    tr_sender_drop(&sender);
    sim_finish(&sim);
}
