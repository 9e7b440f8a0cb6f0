/* SPDX-License-Identifier: Apache-2.0 */
/* The checker, against histories whose verdict is known: by hand, drawn from a real order, spoilt
 * by one change, and small ones that a search through all orders judges too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "linear.h"

static bool is_possible(const struct linear_op *ops, size_t count, uint64_t first)
{
    struct linear_history history = { 0 };
    char why[300];
    bool is_good;

    for (size_t i = 0; i < count; i++) {
        linear_add(&history, ops[i]);
        history.ops[history.count - 1].id = i;
    }
    is_good = linear_check(&history, first, why, sizeof why);
    if (!is_good)
        printf("%s\n", why);
    CHECK(is_good || strlen(why) > 10);
    linear_free(&history);
    return is_good;
}

#define POSSIBLE(...)                                                                              \
    is_possible((struct linear_op[]){ __VA_ARGS__ },                                               \
        sizeof((struct linear_op[]){ __VA_ARGS__ }) / sizeof(struct linear_op), 0)
#define MOVE(number, begin, end)                                                                   \
    {                                                                                              \
        LINEAR_MOVE, number, begin, end, 0                                                         \
    }
#define READ(number, begin, end)                                                                   \
    {                                                                                              \
        LINEAR_READ, number, begin, end, 0                                                         \
    }
#define SEEN(number, begin, end)                                                                   \
    {                                                                                              \
        LINEAR_SEEN, number, begin, end, 0                                                         \
    }
#define NEVER LINEAR_NEVER
#define ANY LINEAR_ANY

TEST(linear, accepts_what_happened_in_order)
{
    CHECK(POSSIBLE(READ(0, 1, 2), MOVE(1, 3, 4), READ(1, 5, 6), MOVE(2, 7, 8), SEEN(1, 9, 10)));
    CHECK(is_possible(NULL, 0, 0));
}

TEST(linear, accepts_any_order_of_what_overlaps)
{
    CHECK(POSSIBLE(MOVE(2, 1, 10), MOVE(1, 2, 9), READ(0, 1, 10), READ(2, 3, 8), READ(1, 3, 9)));
    /* An answer at the moment of a request was not before it. */
    CHECK(POSSIBLE(MOVE(2, 1, 5), MOVE(1, 5, 9)));
}

TEST(linear, refuses_a_number_given_twice)
{
    CHECK(!POSSIBLE(MOVE(1, 1, 4), MOVE(1, 2, 5)));
    CHECK(!POSSIBLE(MOVE(0, 1, 4)));
}

TEST(linear, refuses_a_gap)
{
    CHECK(!POSSIBLE(MOVE(2, 1, 4)));
    CHECK(!POSSIBLE(MOVE(1, 1, 2), READ(2, 3, 4)));
    CHECK(!POSSIBLE(SEEN(1, 3, 4)));
    CHECK(!is_possible((struct linear_op[]){ READ(3, 1, 2) }, 1, 4));
}

TEST(linear, refuses_a_larger_number_before_a_smaller_one)
{
    CHECK(!POSSIBLE(MOVE(2, 1, 4), MOVE(1, 5, 6)));
    CHECK(!POSSIBLE(MOVE(1, 5, 6), MOVE(2, 3, 9), READ(2, 1, 4)));
}

TEST(linear, refuses_a_stale_read)
{
    CHECK(!POSSIBLE(MOVE(1, 1, 2), READ(0, 3, 4)));
    CHECK(!POSSIBLE(MOVE(1, 1, 9), READ(1, 2, 3), READ(0, 4, 5)));
    CHECK(!POSSIBLE(MOVE(1, 1, 9), SEEN(1, 2, 3), READ(0, 4, 5)));
    CHECK(POSSIBLE(MOVE(1, 1, 9), SEEN(1, 2, 5), READ(0, 4, 6)));
}

TEST(linear, refuses_a_read_of_what_has_not_begun)
{
    CHECK(!POSSIBLE(READ(1, 1, 2), MOVE(1, 3, 4)));
    CHECK(!POSSIBLE(SEEN(1, 1, 2), MOVE(1, 3, 4)));
}

TEST(linear, lets_what_did_not_end_happen_or_not)
{
    CHECK(POSSIBLE(MOVE(1, 1, NEVER), READ(0, 5, 6)));
    CHECK(POSSIBLE(MOVE(1, 1, NEVER), READ(0, 5, 6), READ(1, 7, 8)));
    CHECK(POSSIBLE(MOVE(1, 1, NEVER), MOVE(1, 2, 3), MOVE(2, 4, 5)));
    CHECK(!POSSIBLE(MOVE(1, 9, NEVER), MOVE(2, 4, 5)));
    CHECK(POSSIBLE(MOVE(5, 1, NEVER), READ(0, 1, 2)));
    CHECK(POSSIBLE(READ(7, 1, NEVER), SEEN(9, 1, NEVER)));
}

TEST(linear, fills_gaps_with_what_began_in_time)
{
    CHECK(POSSIBLE(MOVE(ANY, 1, NEVER), MOVE(2, 3, 4)));
    CHECK(!POSSIBLE(MOVE(ANY, 5, NEVER), MOVE(2, 3, 4)));
    CHECK(!POSSIBLE(MOVE(ANY, 1, NEVER), MOVE(3, 3, 4)));
    CHECK(POSSIBLE(MOVE(ANY, 6, NEVER), MOVE(ANY, 1, NEVER), MOVE(2, 3, 4), READ(3, 7, 8)));
    CHECK(!POSSIBLE(MOVE(ANY, 9, NEVER), MOVE(ANY, 1, NEVER), MOVE(2, 3, 4), READ(3, 7, 8)));
    /* The move to 1 began at 5, so no read of 0 can come after the end of the read of 1. */
    CHECK(!POSSIBLE(MOVE(ANY, 5, NEVER), READ(1, 6, 7), READ(0, 8, 9)));
}

/* ---- drawn histories ------------------------------------------------------------------------ */

static uint64_t state;

static uint64_t draw(uint64_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
}

/* Ops that each took effect at one moment, with begin and end around it; some ends are unknown. */
static void draw_history(struct linear_history *history, size_t count, uint64_t spread)
{
    uint64_t number = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t moment = (i + 1) * 10;
        uint64_t dice = draw(10);
        struct linear_op op = { .id = i };

        op.begin_ns = moment - draw(moment < spread ? moment : spread);
        op.end_ns = moment + draw(spread);
        if (dice < 5) {
            op.kind = LINEAR_MOVE;
            op.number = ++number;
            if (draw(8) == 0)
                op.end_ns = LINEAR_NEVER;
            if (op.end_ns == LINEAR_NEVER && draw(2) == 0)
                op.number = LINEAR_ANY;
        } else if (dice < 8) {
            op.kind = LINEAR_READ;
            op.number = number;
        } else {
            op.kind = LINEAR_SEEN;
            op.number = draw(number + 1);
        }
        linear_add(history, op);
    }
}

TEST(linear, accepts_every_history_of_one_copy)
{
    state = check_seed();
    for (int round = 0; round < 300; round++) {
        struct linear_history history = { 0 };
        char why[300];

        draw_history(&history, 1 + draw(300), 1 + draw(200));
        CHECK_MSG(linear_check(&history, 0, why, sizeof why), "round %d: %s", round, why);
        linear_free(&history);
    }
}

/* Many clients, and what each reads was true a while ago: an op moved behind others is found. */
TEST(linear, refuses_histories_with_one_stale_answer)
{
    int found = 0;

    state = check_seed() + 1;
    for (int round = 0; round < 300; round++) {
        struct linear_history history = { 0 };
        uint64_t number = 0, last_end = 0;
        char why[300];

        draw_history(&history, 200, 1 + draw(100));
        for (size_t i = 0; i < history.count; i++) {
            struct linear_op *op = &history.ops[i];

            if (op->kind == LINEAR_MOVE && op->end_ns != LINEAR_NEVER) {
                number = op->number;
                last_end = op->end_ns > last_end ? op->end_ns : last_end;
            }
        }
        CHECK(number > 1);
        linear_add(&history, (struct linear_op){ LINEAR_READ, number - 1 - draw(number / 2),
                                 last_end + 1, last_end + 5, history.count });
        CHECK_MSG(!linear_check(&history, 0, why, sizeof why), "round %d was accepted", round);
        found++;
        linear_free(&history);
    }
    CHECK_EQ_INT(found, 300);
}

/* ---- against a search ----------------------------------------------------------------------- */

enum { SMALL = 6 };

/* Put the ops in every order that their times allow, and let moves that did not end not happen. */
static bool search(const struct linear_op *ops, size_t count, unsigned done, uint64_t number)
{
    uint64_t least_end = UINT64_MAX;
    bool is_over = true;

    for (size_t i = 0; i < count; i++) {
        if ((done & 1U << i) != 0)
            continue;
        if (ops[i].end_ns < least_end)
            least_end = ops[i].end_ns;
        if (ops[i].end_ns != LINEAR_NEVER)
            is_over = false;
    }
    if (is_over)
        return true;
    for (size_t i = 0; i < count; i++) {
        bool is_move = ops[i].kind == LINEAR_MOVE;

        if ((done & 1U << i) != 0 || ops[i].begin_ns > least_end)
            continue;
        if (is_move ? ops[i].number != LINEAR_ANY && ops[i].number != number + 1
            : ops[i].kind == LINEAR_READ ? ops[i].number != number
                                         : ops[i].number > number)
            continue;
        if (search(ops, count, done | 1U << i, number + (is_move ? 1 : 0)))
            return true;
    }
    return false;
}

TEST_LONG(linear, agrees_with_a_search_through_all_orders, 60)
{
    unsigned possible = 0, impossible = 0;

    state = check_seed() + 2;
    for (int round = 0; round < 200000; round++) {
        struct linear_history history = { 0 };
        struct linear_op ops[SMALL];
        bool has_known = draw(2) == 0; /* moves that did not end all know their number, or none */
        size_t count = 1 + draw(SMALL);
        char why[300];
        bool expected;

        for (size_t i = 0; i < count; i++) {
            uint64_t begin = draw(12);

            ops[i] = (struct linear_op){ .kind = (enum linear_kind)draw(3),
                .begin_ns = begin,
                .end_ns = begin + draw(8),
                .number = draw(4),
                .id = i };
            if (ops[i].kind == LINEAR_MOVE && ops[i].number == 0)
                ops[i].number = 1;
            if (ops[i].kind == LINEAR_MOVE && draw(3) == 0) {
                ops[i].end_ns = LINEAR_NEVER;
                if (!has_known)
                    ops[i].number = LINEAR_ANY;
            }
            linear_add(&history, ops[i]);
        }
        expected = search(ops, count, 0, 0);
        possible += expected;
        impossible += !expected;
        CHECK_MSG(linear_check(&history, 0, why, sizeof why) == expected,
            "round %d: the search says %s (%s)", round, expected ? "possible" : "impossible", why);
        linear_free(&history);
    }
    printf("%u possible, %u impossible\n", possible, impossible);
    CHECK(possible > 10000 && impossible > 10000);
}

TEST(linear, judges_200000_ops_well_within_its_time)
{
    struct linear_history history = { 0 };
    char why[300];

    state = check_seed() + 3;
    draw_history(&history, 200000, 1000);
    CHECK_MSG(linear_check(&history, 0, why, sizeof why), "%s", why);
    linear_free(&history);
}
