/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "check.h"
#include "runtime/sim_net.h"

#define MILLION 1000000u

static struct tr__sim_net *net_create(uint64_t seed)
{
    struct tr__sim_net *net = NULL;
    struct base_random random;

    base_random_init(&random, seed);
    CHECK_EQ_INT(tr__sim_net_create(&random, &net), 0);
    return net;
}

static void send_number(
    struct tr__sim_net *net, uint64_t now_ns, uint64_t from, uint64_t to, uint64_t number)
{
    CHECK_EQ_INT(tr__sim_net_send(net, now_ns, from, to, &number, sizeof number), 0);
}

/* The number in the next due datagram; UINT64_MAX if none is due. */
static uint64_t pop_number(struct tr__sim_net *net, uint64_t now_ns)
{
    struct tr__sim_net_datagram datagram;
    uint64_t number;

    if (!tr__sim_net_pop(net, now_ns, &datagram))
        return UINT64_MAX;
    CHECK_EQ_U64(datagram.size, sizeof number);
    memcpy(&number, datagram.bytes, sizeof number);
    base_free(datagram.bytes);
    return number;
}

static void check_counters_add_up(const struct tr__sim_net *net)
{
    const struct tr__sim_net_counters *c = tr__sim_net_counters(net);

    CHECK_EQ_U64(c->sent + c->duplicated,
        c->delivered + c->lost + c->cut + c->crowded_out + tr__sim_net_under_way(net));
}

TEST(sim_net, a_datagram_arrives_whole)
{
    struct tr__sim_net *net = net_create(1);
    struct tr__sim_net_datagram datagram;

    CHECK_EQ_INT(tr__sim_net_send(net, 100, 7, 8, "curtain", 8), 0);
    CHECK(tr__sim_net_pop(net, 100, &datagram));
    CHECK_EQ_U64(datagram.from, 7);
    CHECK_EQ_U64(datagram.to, 8);
    CHECK_EQ_U64(datagram.due_ns, 100);
    CHECK_EQ_U64(datagram.size, 8);
    CHECK_EQ_STR(datagram.bytes, "curtain");
    base_free(datagram.bytes);
    CHECK(!tr__sim_net_pop(net, UINT64_MAX, &datagram));
    tr__sim_net_destroy(&net);
    CHECK(net == NULL);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, an_empty_datagram_arrives_too)
{
    struct tr__sim_net *net = net_create(1);
    struct tr__sim_net_datagram datagram;

    CHECK_EQ_INT(tr__sim_net_send(net, 0, 1, 2, NULL, 0), 0);
    CHECK(tr__sim_net_pop(net, 0, &datagram));
    CHECK_EQ_U64(datagram.size, 0);
    CHECK(datagram.bytes != NULL);
    base_free(datagram.bytes);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, a_datagram_over_the_limit_is_refused)
{
    static char bytes[TR__SIM_NET_DATAGRAM_BYTES_MAX + 1];
    struct tr__sim_net *net = net_create(1);

    CHECK_EQ_INT(tr__sim_net_send(net, 0, 1, 2, bytes, sizeof bytes), TR_ETOOBIG);
    CHECK_EQ_INT(tr__sim_net_send(net, 0, 1, 2, bytes, sizeof bytes - 1), 0);
    CHECK_EQ_U64(tr__sim_net_under_way(net), 1);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, an_idle_net_has_no_next_time)
{
    struct tr__sim_net *net = net_create(1);

    CHECK_EQ_U64(tr__sim_net_next_ns(net), UINT64_MAX);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, nothing_is_due_before_its_time)
{
    struct tr__sim_net *net = net_create(1);

    tr__sim_net_faults(net, &(struct tr_net_faults){ .delay_ns_min = 50, .delay_ns_max = 50 });
    send_number(net, 1000, 1, 2, 42);
    CHECK_EQ_U64(tr__sim_net_next_ns(net), 1050);
    CHECK_EQ_U64(pop_number(net, 1049), UINT64_MAX);
    CHECK_EQ_U64(pop_number(net, 1050), 42);
    CHECK_EQ_U64(tr__sim_net_next_ns(net), UINT64_MAX);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, datagrams_due_together_come_in_the_order_of_sending)
{
    struct tr__sim_net *net = net_create(1);

    for (uint64_t i = 0; i < 1000; i++)
        send_number(net, 5, i % 7, i % 3, i);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK_EQ_U64(pop_number(net, 5), i);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, datagrams_come_in_the_order_of_their_time)
{
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct tr__sim_net *net = net_create(seed);
        struct tr__sim_net_datagram datagram;
        uint64_t last_ns = 0, count = 0;

        tr__sim_net_faults(
            net, &(struct tr_net_faults){
                     .delay_ns_min = 10, .delay_ns_max = 90, .reorder_per_million = MILLION / 5 });
        for (uint64_t i = 0; i < 500; i++)
            send_number(net, i, 1, 2, i);
        while (tr__sim_net_next_ns(net) != UINT64_MAX) {
            uint64_t next_ns = tr__sim_net_next_ns(net);

            CHECK(tr__sim_net_pop(net, next_ns, &datagram));
            CHECK_EQ_U64(datagram.due_ns, next_ns);
            CHECK(next_ns >= last_ns);
            last_ns = next_ns;
            base_free(datagram.bytes);
            count++;
        }
        CHECK_EQ_U64(count, 500);
        check_counters_add_up(net);
        tr__sim_net_destroy(&net);
    }
}

TEST(sim_net, delays_stay_in_their_range_and_fill_it)
{
    struct tr__sim_net *net = net_create(check_seed());
    struct tr__sim_net_datagram datagram;
    uint64_t least = UINT64_MAX, most = 0;

    tr__sim_net_faults(net, &(struct tr_net_faults){ .delay_ns_min = 10, .delay_ns_max = 20 });
    for (uint64_t i = 0; i < 1000; i++)
        send_number(net, 100, 1, 2, i);
    while (tr__sim_net_pop(net, UINT64_MAX, &datagram)) {
        least = datagram.due_ns < least ? datagram.due_ns : least;
        most = datagram.due_ns > most ? datagram.due_ns : most;
        base_free(datagram.bytes);
    }
    CHECK_EQ_U64(least, 110);
    CHECK_EQ_U64(most, 120);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, a_reordered_datagram_is_at_most_ten_delays_later)
{
    struct tr__sim_net *net = net_create(check_seed());
    struct tr__sim_net_datagram datagram;
    uint64_t most = 0;

    tr__sim_net_faults(
        net, &(struct tr_net_faults){
                 .delay_ns_min = 100, .delay_ns_max = 100, .reorder_per_million = MILLION });
    for (uint64_t i = 0; i < 5000; i++)
        send_number(net, 0, 1, 2, i);
    CHECK_EQ_U64(tr__sim_net_counters(net)->reordered, 5000);
    while (tr__sim_net_pop(net, UINT64_MAX, &datagram)) {
        most = datagram.due_ns > most ? datagram.due_ns : most;
        base_free(datagram.bytes);
    }
    CHECK(most > 1000);
    CHECK(most <= 1100);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, the_longest_delays_do_not_wrap_around)
{
    struct tr__sim_net *net = net_create(check_seed());

    tr__sim_net_faults(net,
        &(struct tr_net_faults){ .delay_ns_max = UINT64_MAX, .reorder_per_million = MILLION / 2 });
    for (uint64_t i = 0; i < 100; i++)
        send_number(net, UINT64_MAX - 10, 1, 2, i);
    CHECK(tr__sim_net_next_ns(net) >= UINT64_MAX - 10);
    CHECK(tr__sim_net_next_ns(net) < UINT64_MAX);
    tr__sim_net_destroy(&net);
}

TEST_ABORTS(sim_net, a_delay_range_upside_down_is_a_bug, "the smallest network delay")
{
    struct tr__sim_net *net = net_create(1);

    tr__sim_net_faults(net, &(struct tr_net_faults){ .delay_ns_min = 2, .delay_ns_max = 1 });
}

TEST(sim_net, loss_takes_its_share)
{
    struct tr__sim_net *net = net_create(check_seed());

    tr__sim_net_faults(net, &(struct tr_net_faults){ .loss_per_million = MILLION / 4 });
    for (uint64_t i = 0; i < 10000; i++)
        send_number(net, 0, 1, 2, i);
    /* 2,500 with a deviation of 43. */
    CHECK(tr__sim_net_counters(net)->lost > 2240);
    CHECK(tr__sim_net_counters(net)->lost < 2760);
    check_counters_add_up(net);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, a_duplicate_carries_the_same_bytes)
{
    struct tr__sim_net *net = net_create(check_seed());
    unsigned seen[100] = { 0 };
    uint64_t number;

    tr__sim_net_faults(
        net, &(struct tr_net_faults){ .delay_ns_max = 50, .duplicate_per_million = MILLION });
    for (uint64_t i = 0; i < 100; i++)
        send_number(net, 0, 1, 2, i);
    while ((number = pop_number(net, UINT64_MAX)) != UINT64_MAX) {
        CHECK(number < 100);
        seen[number]++;
    }
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQ_INT(seen[i], 2);
    CHECK_EQ_U64(tr__sim_net_counters(net)->duplicated, 100);
    check_counters_add_up(net);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, a_partition_cuts_one_direction)
{
    struct tr__sim_net *net = net_create(1);

    CHECK_EQ_INT(tr__sim_net_partition(net, 1, 2, true), 0);
    send_number(net, 0, 1, 2, 12);
    send_number(net, 0, 2, 1, 21);
    send_number(net, 0, 1, 3, 13);
    CHECK_EQ_U64(pop_number(net, 0), 21);
    CHECK_EQ_U64(pop_number(net, 0), 13);
    CHECK_EQ_U64(pop_number(net, 0), UINT64_MAX);
    CHECK_EQ_U64(tr__sim_net_counters(net)->cut, 1);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, a_cut_takes_what_is_under_way)
{
    struct tr__sim_net *net = net_create(1);

    tr__sim_net_faults(net, &(struct tr_net_faults){ .delay_ns_min = 10, .delay_ns_max = 90 });
    for (uint64_t i = 0; i < 360; i++)
        send_number(net, 0, i % 3, i % 4, i);
    CHECK_EQ_INT(tr__sim_net_partition(net, 1, 2, true), 0);
    CHECK_EQ_U64(tr__sim_net_under_way(net), 330);
    for (unsigned i = 0; i < 330; i++) {
        uint64_t next_ns = tr__sim_net_next_ns(net);
        uint64_t number = pop_number(net, next_ns);

        CHECK(number % 3 != 1 || number % 4 != 2);
        CHECK(tr__sim_net_next_ns(net) >= next_ns);
    }
    check_counters_add_up(net);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, a_restored_direction_carries_again)
{
    struct tr__sim_net *net = net_create(1);

    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ_INT(tr__sim_net_partition(net, 1, 2, true), 0);
        CHECK_EQ_INT(tr__sim_net_partition(net, 3, 4, true), 0);
    }
    CHECK_EQ_INT(tr__sim_net_partition(net, 1, 2, false), 0);
    CHECK_EQ_INT(tr__sim_net_partition(net, 5, 6, false), 0);
    send_number(net, 0, 1, 2, 12);
    send_number(net, 0, 3, 4, 34);
    CHECK_EQ_U64(pop_number(net, 0), 12);
    CHECK_EQ_U64(pop_number(net, 0), UINT64_MAX);
    tr__sim_net_heal(net);
    send_number(net, 0, 3, 4, 34);
    CHECK_EQ_U64(pop_number(net, 0), 34);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, many_cuts_are_kept_apart)
{
    struct tr__sim_net *net = net_create(1);

    /* In an order that is neither up nor down. */
    for (uint64_t i = 0; i < (uint64_t)31 * 31; i++) {
        uint64_t mixed = i * 367 % ((uint64_t)31 * 31);

        if ((mixed / 31 + mixed % 31) % 2 == 0)
            CHECK_EQ_INT(tr__sim_net_partition(net, mixed / 31, mixed % 31, true), 0);
    }
    for (uint64_t from = 0; from < 31; from++) {
        for (uint64_t to = 0; to < 31; to++) {
            send_number(net, 0, from, to, 1);
            CHECK_EQ_INT(pop_number(net, 0) == UINT64_MAX, (from + to) % 2 == 0);
        }
    }
    tr__sim_net_destroy(&net);
}

TEST(sim_net, cuts_past_the_limit_are_refused)
{
    struct tr__sim_net *net = net_create(1);

    for (uint64_t i = 0; i < TR__SIM_NET_CUTS_MAX; i++)
        CHECK_EQ_INT(tr__sim_net_partition(net, 1, i, true), 0);
    CHECK_EQ_INT(tr__sim_net_partition(net, 2, 0, true), TR_ELIMIT);
    CHECK_EQ_INT(tr__sim_net_partition(net, 1, 0, false), 0);
    CHECK_EQ_INT(tr__sim_net_partition(net, 2, 0, true), 0);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, past_the_limit_the_newest_is_lost)
{
    struct tr__sim_net *net = net_create(1);

    for (uint64_t i = 0; i < TR__SIM_NET_DATAGRAMS_MAX + 10; i++)
        send_number(net, 0, 1, 2, i);
    CHECK_EQ_U64(tr__sim_net_under_way(net), TR__SIM_NET_DATAGRAMS_MAX);
    CHECK_EQ_U64(tr__sim_net_counters(net)->crowded_out, 10);
    CHECK_EQ_U64(pop_number(net, 0), 0);
    check_counters_add_up(net);
    tr__sim_net_destroy(&net);
}

TEST(sim_net, bytes_under_way_are_limited_too)
{
    static char bytes[TR__SIM_NET_DATAGRAM_BYTES_MAX];
    struct tr__sim_net *net = net_create(1);
    size_t fit = TR__SIM_NET_BYTES_MAX / sizeof bytes;
    struct tr__sim_net_datagram datagram;

    for (size_t i = 0; i < fit + 5; i++)
        CHECK_EQ_INT(tr__sim_net_send(net, 0, 1, 2, bytes, sizeof bytes), 0);
    CHECK_EQ_U64(tr__sim_net_under_way(net), fit);
    CHECK_EQ_U64(tr__sim_net_counters(net)->crowded_out, 5);
    while (tr__sim_net_pop(net, 0, &datagram))
        base_free(datagram.bytes);
    CHECK_EQ_INT(tr__sim_net_send(net, 0, 1, 2, bytes, sizeof bytes), 0);
    CHECK_EQ_U64(tr__sim_net_under_way(net), 1);
    tr__sim_net_destroy(&net);
}

/* A number that any difference in what was delivered, or when, changes. */
static uint64_t run_storm(uint64_t seed)
{
    struct tr__sim_net *net = net_create(seed);
    struct base_random choices;
    uint64_t hash = 0, now_ns = 0;

    base_random_init(&choices, seed);
    tr__sim_net_faults(net, &(struct tr_net_faults){ .delay_ns_min = 5,
                                .delay_ns_max = 200,
                                .loss_per_million = MILLION / 10,
                                .duplicate_per_million = MILLION / 10,
                                .reorder_per_million = MILLION / 10 });
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t from = base_random_below(&choices, 5), to = base_random_below(&choices, 5);
        struct tr__sim_net_datagram datagram;

        now_ns += base_random_below(&choices, 20);
        if (base_random_chance(&choices, MILLION / 50))
            CHECK_EQ_INT(tr__sim_net_partition(net, from, to, true), 0);
        if (base_random_chance(&choices, MILLION / 200))
            tr__sim_net_heal(net);
        send_number(net, now_ns, from, to, i);
        while (tr__sim_net_pop(net, now_ns, &datagram)) {
            uint64_t number;

            memcpy(&number, datagram.bytes, sizeof number);
            hash = (hash ^ number ^ datagram.due_ns << 20) * 0x100000001b3u;
            base_free(datagram.bytes);
        }
        check_counters_add_up(net);
    }
    tr__sim_net_destroy(&net);
    return hash;
}

TEST(sim_net, equal_seeds_give_equal_deliveries)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        CHECK_EQ_U64(run_storm(seed), run_storm(seed));
        CHECK(run_storm(seed) != run_storm(seed + 1));
    }
}

static int run_once(struct tr__sim_net *net)
{
    int rc;

    rc = tr__sim_net_partition(net, 3, 4, true);
    for (uint64_t i = 0; i < 40 && rc == 0; i++)
        rc = tr__sim_net_send(net, 0, 1, 2, &i, sizeof i);
    return rc;
}

TEST(sim_net, whichever_allocation_fails_the_error_is_returned)
{
    uint64_t countdown = 0, calls;

    do {
        struct tr__sim_net *net = NULL;
        struct base_random random;
        int rc;

        countdown++;
        base_random_init(&random, 1);
        base_fault_countdown(countdown, 1);
        rc = tr__sim_net_create(&random, &net);
        if (rc == 0)
            rc = run_once(net);
        calls = base_fault_countdown(0, 0);
        CHECK_EQ_INT(rc, calls >= countdown ? TR_ENOMEM : 0);
        if (net != NULL)
            check_counters_add_up(net);
        tr__sim_net_destroy(&net);
    } while (calls >= countdown);
    CHECK(countdown > 40);
}
