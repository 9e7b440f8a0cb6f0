/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose cases end in every way a case can end. Most of them fail, on purpose:
 * test/unit/lib/test_check.c runs it and checks that the harness reports each as what it is. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

TEST(good, passes)
{
    puts("quiet unless asked");
    CHECK(1 + 1 == 2);
    CHECK_MSG(1 + 1 == 2, "arithmetic is broken");
    CHECK_EQ_INT(-1, -1);
    CHECK_EQ_U64(UINT64_MAX, UINT64_MAX);
    CHECK_EQ_STR("a", "a");
    CHECK_EQ_STR(NULL, NULL);
}

TEST(bad, condition)
{
    puts("printed before the failure");
    CHECK(1 + 1 == 3);
}

TEST(bad, message)
{
    CHECK_MSG(1 + 1 == 3, "only %d apples", 2);
}

TEST(bad, integers)
{
    CHECK_EQ_INT(1 + 1, 3);
}

TEST(bad, unsigned_integers)
{
    CHECK_EQ_U64(UINT64_MAX, 255);
}

TEST(bad, strings)
{
    CHECK_EQ_STR("one", NULL);
}

static void *fail_on_thread(void *unused)
{
    (void)unused;
    CHECK_MSG(false, "reached on a thread");
    return NULL;
}

TEST(bad, on_another_thread)
{
    pthread_t thread;

    CHECK_EQ_INT(pthread_create(&thread, NULL, fail_on_thread, NULL), 0);
    pthread_join(thread, NULL);
    pause();
}

TEST(bad, in_a_child_process)
{
    pid_t child = fork();

    if (child == 0)
        CHECK_MSG(false, "reached in a child");
    CHECK(child > 0);
    CHECK_EQ_INT(waitpid(child, NULL, 0), child);
}

TEST(crash, signal)
{
    raise(SIGILL);
}

TEST(crash, unexpected_abort)
{
    abort();
}

TEST(crash, early_exit)
{
    exit(0);
}

static void exit_with_five(void)
{
    _exit(5);
}

TEST(crash, exit_status_after_the_end)
{
    atexit(exit_with_five); /* a sanitizer's report at exit looks like this */
}

TEST_LONG(hang, forever, 1)
{
    puts("about to hang");
    for (;;)
        pause();
}

TEST_LONG(hang, with_a_child_that_holds_the_output, 1)
{
    fork();
    for (;;)
        pause();
}

TEST_ABORTS(abort, expected_text, "the expected words")
{
    fputs("these are the expected words\n", stderr);
    abort();
}

TEST_ABORTS(abort, other_text, "the expected words")
{
    fputs("something else\n", stderr);
    abort();
}

TEST_ABORTS(abort, does_not_happen, "the expected words")
{
    fputs("these are the expected words\n", stderr);
}

TEST_ABORTS(abort, another_signal, "the expected words")
{
    fputs("these are the expected words\n", stderr);
    raise(SIGILL);
}

TEST(skip, with_reason)
{
    SKIP("needs %s", "a tuba");
}

TEST(seed, is_named)
{
    CHECK_MSG(check_seed() == 0, "seed is %llu", (unsigned long long)check_seed());
}

TEST(seed, walk_that_fails_at_13)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        printf("at %llu\n", (unsigned long long)seed);
        CHECK(seed != 13);
    }
}

TEST(seed, walk_that_crashes_at_13)
{
    for (uint64_t seed; check_each_seed(&seed, 20);)
        if (seed == 13)
            raise(SIGILL);
}

TEST(seed, walks_can_follow_each_other)
{
    unsigned count = 0;

    for (uint64_t seed; check_each_seed(&seed, 3);)
        count++;
    for (uint64_t seed; check_each_seed(&seed, 4);)
        count++;
    CHECK_EQ_INT(count, 7);
}
