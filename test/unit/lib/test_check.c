/* SPDX-License-Identifier: Apache-2.0 */
/* The harness, tested with itself: each case runs one case of the program `selftest`, which lies
 * beside this one, and reads what it printed. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct outcome {
    int status;
    char output[16 * 1024];
};

static struct outcome outcome;

/* Run selftest with the arguments; environment is a prefix such as "TROUPE_SEED=7", or "". */
static void run_selftest(const char *environment, const char *arguments)
{
    char command[PATH_MAX + 256];
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t used = 0;
    FILE *pipe;

    CHECK(length > 0);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    unsetenv("TROUPE_SEED");
    unsetenv("TROUPE_SEEDS");
    unsetenv("TROUPE_LONG");
    unsetenv("TROUPE_LIMIT_S");
    CHECK(snprintf(command, sizeof(command), "%s '%s/selftest' %s 2>&1", environment, self,
              arguments) < (int)sizeof(command));
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    while (used < sizeof(outcome.output) - 1) {
        size_t got = fread(outcome.output + used, 1, sizeof(outcome.output) - 1 - used, pipe);
        if (got == 0)
            break;
        used += got;
    }
    outcome.output[used] = '\0';
    outcome.status = WEXITSTATUS(pclose(pipe));
    printf("%s", outcome.output); /* shown if this case fails */
}

static void check_says(const char *text)
{
    CHECK_MSG(strstr(outcome.output, text), "the output lacks \"%s\"", text);
}

static void check_does_not_say(const char *text)
{
    CHECK_MSG(!strstr(outcome.output, text), "the output has \"%s\"", text);
}

static void check_last_line(const char *text)
{
    size_t length = strlen(text);
    size_t total = strlen(outcome.output);

    CHECK(total > length + 1);
    CHECK_MSG(strncmp(outcome.output + total - length - 1, text, length) == 0 &&
                  outcome.output[total - length - 2] == '\n',
        "the last line is not \"%s\"", text);
}

/* The case called name must fail, for the reason given, and make the program's exit status 1. */
static void check_fails_with(const char *environment, const char *name, const char *reason)
{
    char arguments[256];

    snprintf(arguments, sizeof(arguments), "'%s'", name);
    run_selftest(environment, arguments);
    check_says("1..1\n");
    check_says("not ok 1 - ");
    check_says(name);
    check_says(reason);
    check_last_line("0 passed, 1 failed, 0 skipped");
    CHECK_EQ_INT(outcome.status, 1);
}

static void check_fails(const char *name, const char *reason)
{
    check_fails_with("", name, reason);
}

TEST(harness, passing_case_is_reported_without_its_output)
{
    run_selftest("", "'good: passes'");
    check_says("ok 1 - good: passes\n");
    check_does_not_say("not ok");
    check_does_not_say("quiet unless asked");
    check_last_line("1 passed, 0 failed, 0 skipped");
    CHECK_EQ_INT(outcome.status, 0);
}

TEST(harness, verbose_shows_the_output_of_a_passing_case)
{
    run_selftest("", "-v 'good: passes'");
    check_says("# quiet unless asked\n");
}

TEST(harness, failed_check_names_file_line_and_condition)
{
    check_fails("bad: condition", "a check failed");
    check_says("selftest.c:");
    check_says("CHECK(1 + 1 == 3)");
    check_says("# printed before the failure");
}

TEST(harness, failed_check_prints_its_values)
{
    check_fails("bad: message", "only 2 apples");
    check_fails("bad: integers", "CHECK_EQ_INT(1 + 1 == 3): 2 is not 3");
    check_fails("bad: unsigned_integers", "18446744073709551615 (0xffffffffffffffff) is not 255");
    check_fails("bad: strings", "\"one\" is not NULL");
}

TEST(harness, check_may_fail_on_any_thread)
{
    check_fails("bad: on_another_thread", "reached on a thread");
}

TEST(harness, check_that_fails_in_a_child_process_fails_the_case)
{
    check_fails("bad: in_a_child_process", "reached in a child");
}

TEST(harness, crash_is_a_failure_with_the_signal)
{
    check_fails("crash: signal", "killed by SIGILL");
    check_fails("crash: unexpected_abort", "killed by SIGABRT");
}

TEST(harness, early_exit_does_not_count_as_passed)
{
    check_fails("crash: early_exit", "called exit(0) before its end");
}

TEST(harness, exit_status_after_the_end_is_a_failure)
{
    check_fails("crash: exit_status_after_the_end", "exit status 5 after its end");
}

TEST(harness, hanging_case_is_killed_and_reported)
{
    check_fails_with("TROUPE_LIMIT_S=1", "hang: forever", "timed out after 1 s");
    check_says("# about to hang");
}

TEST(harness, what_a_hanging_case_started_ends_with_it)
{
    check_fails_with(
        "TROUPE_LIMIT_S=1", "hang: with_a_child_that_holds_the_output", "timed out after 1 s");
}

TEST(harness, expected_abort_passes)
{
    run_selftest("", "'abort: expected_text'");
    check_last_line("1 passed, 0 failed, 0 skipped");
    CHECK_EQ_INT(outcome.status, 0);
}

TEST(harness, expected_abort_must_say_the_text)
{
    check_fails("abort: other_text", "aborted without saying \"the expected words\"");
}

TEST(harness, expected_abort_must_happen)
{
    check_fails("abort: does_not_happen", "returned, but should have aborted");
    check_fails("abort: another_signal", "killed by SIGILL");
}

TEST(harness, skip_is_counted_apart_and_names_its_reason)
{
    run_selftest("", "'skip:'");
    check_says("ok 1 - skip: with_reason # SKIP needs a tuba\n");
    check_last_line("0 passed, 0 failed, 1 skipped");
    CHECK_EQ_INT(outcome.status, 0);
}

TEST(harness, failure_names_the_seed_from_the_environment)
{
    run_selftest("TROUPE_SEED=0x2a", "'seed: is_named'");
    check_says("(seed 42, a check failed)");
    check_says("# replay: TROUPE_SEED=42 ");
    check_says("selftest 'seed: is_named'");
}

TEST(harness, bad_seed_is_refused)
{
    run_selftest("TROUPE_SEED=4x2", "'seed: is_named'");
    check_says("TROUPE_SEED=4x2 is not a number");
    CHECK_EQ_INT(outcome.status, 2);
}

TEST(harness, failing_seed_of_a_walk_is_named)
{
    check_fails("seed: walk_that_fails_at_13", "(seed 13, a check failed)");
    check_says("# seed 13 was number 13 of 20");
    check_fails("seed: walk_that_crashes_at_13", "(seed 13, killed by SIGILL)");
}

TEST(harness, replay_runs_the_one_seed)
{
    run_selftest("TROUPE_SEED=13", "'walk_that_fails'");
    check_says("(seed 13, a check failed)");
    check_does_not_say("at 12\n");
    run_selftest("TROUPE_SEED=14", "'walk_that_fails'");
    check_last_line("1 passed, 0 failed, 0 skipped");
    run_selftest("TROUPE_SEED=10 TROUPE_SEEDS=4", "'walk_that_fails'");
    check_says("# seed 13 was number 4 of 4");
}

TEST(harness, passing_walk_says_how_many_seeds)
{
    run_selftest("TROUPE_SEED=20 TROUPE_SEEDS=5", "'walk_that_fails'");
    check_says("# 5 seeds from 20\n");
    run_selftest("", "'walks_can_follow'");
    check_last_line("1 passed, 0 failed, 0 skipped");
}

TEST(harness, rounds_are_fewer_under_a_sanitizer_and_many_in_the_long_run)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    unsigned expected = 25;
#else
    unsigned expected = 100;
#endif

    unsetenv("TROUPE_LONG");
    CHECK_EQ_INT(check_rounds(100, 3000), expected);
    setenv("TROUPE_LONG", "1", 1);
    CHECK_EQ_INT(check_rounds(100, 3000), 3000);
}

TEST(harness, filter_without_match_is_an_error)
{
    run_selftest("", "'no such case'");
    check_says("no case matches \"no such case\"");
    check_last_line("0 passed, 0 failed, 0 skipped");
    CHECK_EQ_INT(outcome.status, 2);
}

TEST(harness, list_prints_names_and_runs_nothing)
{
    run_selftest("", "--list");
    check_says("good: passes\n");
    check_says("hang: forever\n");
    check_does_not_say("passed");
    CHECK_EQ_INT(outcome.status, 0);
}

TEST(harness, several_jobs_report_every_case_once)
{
    run_selftest("TROUPE_LIMIT_S=2", "--jobs 8");
    check_says("not ok ");
    check_says("1..");
    check_last_line("3 passed, 19 failed, 1 skipped");
    CHECK_EQ_INT(outcome.status, 1);
}

TEST(harness, no_fork_runs_one_case_in_the_same_process)
{
    run_selftest("", "--no-fork 'good: passes'");
    check_says("quiet unless asked");
    CHECK_EQ_INT(outcome.status, 0);
    run_selftest("", "--no-fork bad");
    check_says("usage: ");
    CHECK_EQ_INT(outcome.status, 2);
}
