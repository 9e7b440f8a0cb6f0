/* SPDX-License-Identifier: Apache-2.0 */
/* Kill a writing process again and again. All units that it acknowledged must be stored, and no
 * unit in part. */
#include "acks.h"
#include "base/random.h"

static void end_by_kill(pid_t pid)
{
    CHECK_EQ_INT(kill(pid, SIGKILL), 0);
}

TEST_LONG(kill_9, loses_nothing_that_was_acknowledged, 120)
{
    struct base_random random;
    struct place place;
    int kills = check_is_long() ? 500 : 20;
    int64_t first = 0, rows = 0;

    base_random_init(&random, check_seed());
    place_init(&place);
    for (int i = 0; i < kills; i++) {
        first =
            acks_run(&place, first, (int64_t)base_random_below(&random, 100), end_by_kill, true);
        rows = acks_check(&place);
    }
    printf("%d kills, %lld acknowledged, %lld stored, 0 lost\n", kills, (long long)acked_count,
        (long long)rows);
    CHECK(acked_count >= kills);
    place_finish(&place);
}
