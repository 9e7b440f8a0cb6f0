/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "check.h"
#include "ops/flags.h"

enum { KEYS = 20000 };

static struct flag flags[] = {
    { .name = "fast-path", .help = "Take the fast path" },
    { .name = "slow-path", .help = "Take the slow path", .initial = FLAG_ALL },
};
static char folder[] = "/tmp/test-flags-XXXXXX";
static char path[64];
static char why[256];

static void begin(void)
{
    flags_register(flags, 2);
    if (path[0] == '\0') {
        CHECK(mkdtemp(folder) != NULL);
        snprintf(path, sizeof path, "%s/flags", folder);
    }
    CHECK_EQ_INT(flags_open(tr_env_real(), path, why, sizeof why), 0);
}

static void end(void)
{
    flags_close();
    unlink(path);
    rmdir(folder);
}

static bool is_on(const struct flag *flag, int key)
{
    return flag_is_on(flag, &key, sizeof key);
}

/* Reset the values in memory, as a restart does. */
static void forget(void)
{
    flags_close();
    for (int i = 0; i < 2; i++) {
        atomic_store(&flags[i].parts, flags[i].initial);
        flags[i].previous = flags[i].initial;
    }
}

static void write_store(const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void check_store(const char *text)
{
    char is[256] = { 0 };
    int fd = open(path, O_RDONLY);

    CHECK(fd >= 0 && read(fd, is, sizeof is - 1) >= 0);
    close(fd);
    CHECK_EQ_STR(is, text);
}

TEST(flags, part_of_the_keys_is_what_was_asked_for)
{
    static const unsigned parts[] = { 1, 100, 1000, 5000, 9900 };

    begin();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int on = 0;
        int expected = (int)(KEYS * parts[i] / FLAG_ALL);

        CHECK_EQ_INT(flags_set("fast-path", parts[i]), 0);
        for (int key = 0; key < KEYS; key++)
            on += is_on(&flags[0], key);
        /* Five standard deviations of 20,000 draws are at most 354. */
        CHECK_MSG(
            on >= expected - 354 && on <= expected + 354, "%d of %d at %u", on, KEYS, parts[i]);
    }
    end();
}

TEST(flags, key_that_is_in_stays_in_when_the_part_grows)
{
    static bool was_on[KEYS];

    begin();
    for (unsigned parts = 0; parts <= FLAG_ALL; parts += 500) {
        CHECK_EQ_INT(flags_set("fast-path", parts), 0);
        for (int key = 0; key < KEYS; key++) {
            bool now = is_on(&flags[0], key);

            CHECK_MSG(now || !was_on[key], "key %d fell out at %u", key, parts);
            was_on[key] = now;
        }
    }
    for (int key = 0; key < KEYS; key++)
        CHECK(was_on[key]);
    end();
}

TEST(flags, nothing_and_everything_are_exact)
{
    begin();
    for (int key = 0; key < KEYS; key++)
        CHECK(!is_on(&flags[0], key) && is_on(&flags[1], key));
    end();
}

TEST(flags, places_are_fixed_for_ever_and_differ_by_flag)
{
    int same = 0;

    /* Written down: a place that changes with a version would move users between the paths. */
    CHECK_EQ_INT(flag_place(&flags[0], "did:plc:alice", 13), 9296);
    CHECK_EQ_INT(flag_place(&flags[0], "", 0), 6631);
    for (int key = 0; key < KEYS; key++)
        same += flag_place(&flags[0], &key, sizeof key) < 5000 &&
                flag_place(&flags[1], &key, sizeof key) < 5000;
    CHECK_MSG(same > KEYS / 4 - 400 && same < KEYS / 4 + 400, "%d", same);
}

TEST(flags, rollback_goes_back_one_then_to_the_beginning)
{
    begin();
    CHECK_EQ_INT(flags_set("fast-path", 1000), 0);
    CHECK_EQ_INT(flags_set("fast-path", 5000), 0);
    CHECK_EQ_INT(flags_rollback("fast-path"), 0);
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 1000);
    CHECK_EQ_INT(flags_rollback("fast-path"), 0);
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 0);
    CHECK_EQ_INT(flags_set("slow-path", 0), 0);
    CHECK_EQ_INT(flags_rollback("slow-path"), 0);
    CHECK_EQ_INT(atomic_load(&flags[1].parts), FLAG_ALL);
    end();
}

TEST(flags, changes_survive_a_restart)
{
    struct stat status;

    begin();
    CHECK_EQ_INT(flags_set("fast-path", 1025), 0);
    CHECK_EQ_INT(flags_set("fast-path", 2000), 0);
    check_store("fast-path 20% 10.25%\n");
    CHECK(stat(path, &status) == 0 && (status.st_mode & 0777) == 0600);
    forget();
    begin();
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 2000);
    CHECK_EQ_INT(flags_rollback("fast-path"), 0);
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 1025);
    end();
}

TEST(flags, retired_flag_leaves_the_store_with_the_next_change)
{
    begin();
    forget();
    write_store("long-gone 50% 0%\nfast-path 1% 0%\n");
    begin();
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 100);
    CHECK_EQ_INT(flags_set("fast-path", 200), 0);
    check_store("fast-path 2% 1%\n");
    end();
}

TEST(flags, damaged_store_is_refused_with_its_line)
{
    static const char *const bad[] = { "fast-path 1%", "fast-path", "fast-path 1% 0% 2%",
        "fast-path 1 0", "fast-path 101% 0%", "\x01" };
    char text[64];

    begin();
    forget();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "slow-path 5%% 0%%\n%s\n", bad[i]);
        write_store(text);
        CHECK_EQ_INT(flags_open(tr_env_real(), path, why, sizeof why), TR_EINVAL);
        CHECK_MSG(strstr(why, "flags:2: The line must be") != NULL, "%s", why);
    }
    unlink(path);
    rmdir(folder);
}

TEST(flags, unknown_names_and_parts_are_refused)
{
    begin();
    CHECK_EQ_INT(flags_set("no-such", 1), TR_ENOENT);
    CHECK_EQ_INT(flags_rollback("no-such"), TR_ENOENT);
    CHECK_EQ_INT(flags_set("fast-path", FLAG_ALL + 1), TR_EINVAL);
    CHECK_EQ_INT(atomic_load(&flags[0].parts), 0);
    end();
}

TEST(flags, change_holds_also_when_it_cannot_be_stored)
{
    begin();
    CHECK(rmdir(folder) == 0);
    CHECK(flags_set("slow-path", 0) != 0);
    CHECK_EQ_INT(atomic_load(&flags[1].parts), 0);
    CHECK(mkdir(folder, 0700) == 0);
    CHECK_EQ_INT(flags_set("fast-path", 1), 0); /* and is stored with the next */
    check_store("slow-path 0% 100%\nfast-path 0.01% 0%\n");
    end();
}

TEST(flags, every_failing_call_leaves_the_old_store_or_the_new)
{
    uint64_t countdown = 0;
    uint64_t calls;

    begin();
    CHECK_EQ_INT(flags_set("fast-path", 100), 0);
    do {
        int rc;

        base_fault_countdown(++countdown, 1);
        rc = flags_set("fast-path", 200);
        calls = base_fault_countdown(0, 0);
        CHECK((rc == 0) == (calls < countdown));
        forget();
        begin();
        CHECK(atomic_load(&flags[0].parts) == 100 || atomic_load(&flags[0].parts) == 200);
        CHECK(rc != 0 || atomic_load(&flags[0].parts) == 200);
        CHECK_EQ_INT(flags_set("fast-path", 100), 0);
    } while (calls >= countdown);
    CHECK_MSG(countdown >= 4, "only %d calls", (int)countdown);
    end();
}
