/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/13-ready-made.md: many ask for the same thing at once; it is computed once. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

enum { ASKERS = 5 };

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* On the blocking pool: it may read a file, or ask a database. */
static int compute(void *data, const void *key, size_t key_size, void *value, size_t *value_size)
{
    int *answer = value;

    (void)data;
    (void)key;
    printf("computing, once\n");
    *answer = (int)key_size;
    *value_size = sizeof *answer;
    return 0;
}

int main(void)
{
    struct tr_single_flight_options options = { .compute = compute, .kept_max = 100 };
    struct tr_single_flight_stats stats;
    struct tr_future *answers[ASKERS];
    tr_single_flight_sender lengths;
    struct tr_system *system;
    int length;

    must(tr_system_create(NULL, &system));
    must(tr_single_flight_spawn(system, &options, NULL, &lengths));

    for (int i = 0; i < ASKERS; i++)
        must(tr_single_flight_future(lengths, "hippopotamus", 12, 0, &answers[i]));
    for (int i = 0; i < ASKERS; i++) {
        must(tr_future_wait(answers[i], &length, sizeof length, NULL, 0));
        printf("asker %d: %d letters\n", i + 1, length);
        tr_future_drop(&answers[i]);
    }
    must(tr_single_flight_stats_wait(lengths, &stats, 0));
    printf("%llu asks, %llu computation\n", (unsigned long long)stats.asks,
        (unsigned long long)stats.computations);

    tr_single_flight_drop(&lengths);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
