/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of push.c: each thing at most once an interval, and none is forgotten. */
#include "check.h"
#include "services/delivery/push/push_queue.h"

enum { REST_NS = 100 };

static void want(struct push_queue *queue, const char *key, const char *value)
{
    CHECK_EQ_INT(push_queue_want(queue, span_of(key), span_of(value)), 0);
}

/* The next one is this, and done at once; NULL: there is none. */
static void expect_next(
    struct push_queue *queue, uint64_t now_ns, const char *key, const char *value)
{
    struct push_item *item = push_queue_next(queue);

    CHECK((item == NULL) == (key == NULL));
    if (item == NULL)
        return;
    CHECK_MSG(span_is(item->key, key), "%.*s", (int)item->key.size, item->key.at);
    CHECK_MSG(item->value.size == strlen(value) &&
                  memcmp(item->value.bytes, value, item->value.size) == 0,
        "%.*s", (int)item->value.size, item->value.bytes);
    push_queue_rest(queue, item, now_ns);
}

static void begin(struct push_queue *queue, uint32_t count_max)
{
    *queue = (struct push_queue){ .interval_ns = REST_NS };
    CHECK_EQ_INT(push_queue_init(queue, count_max, (struct base_siphash_key){ 1, 2 }), 0);
}

TEST(queue, what_is_new_is_done_at_once_in_order)
{
    struct push_queue queue;

    begin(&queue, 10);
    want(&queue, "a", "1");
    want(&queue, "b", "2");
    want(&queue, "a", "3"); /* still its turn, with the newer value */
    expect_next(&queue, 1000, "a", "3");
    expect_next(&queue, 1001, "b", "2");
    expect_next(&queue, 1002, NULL, NULL);
    push_queue_fini(&queue);
}

TEST(queue, what_is_wanted_while_it_rests_is_done_once_when_it_has_rested)
{
    struct push_queue queue;

    begin(&queue, 10);
    want(&queue, "a", "1");
    expect_next(&queue, 1000, "a", "1");
    want(&queue, "a", "2");
    want(&queue, "a", "3");
    CHECK_EQ_INT(push_queue_due_ns(&queue), 1000 + REST_NS);
    push_queue_wake(&queue, 1000 + REST_NS - 1);
    expect_next(&queue, 1000 + REST_NS - 1, NULL, NULL);
    push_queue_wake(&queue, 1000 + REST_NS);
    expect_next(&queue, 1000 + REST_NS, "a", "3");
    push_queue_wake(&queue, 1000 + 2 * REST_NS);
    expect_next(&queue, 1000 + 2 * REST_NS, NULL, NULL);
    CHECK(push_queue_find(&queue, SPAN("a")) == NULL);
    CHECK_EQ_INT(push_queue_due_ns(&queue), 0);
    push_queue_fini(&queue);
}

/* However long it takes. */
TEST(queue, what_is_wanted_while_it_is_done_rests_before_it_is_done_again)
{
    struct push_queue queue;
    struct push_item *item;

    begin(&queue, 10);
    want(&queue, "a", "1");
    item = push_queue_next(&queue);
    want(&queue, "a", "2");
    CHECK(item == push_queue_find(&queue, SPAN("a")) && item->is_wanted);
    push_queue_wake(&queue, 1000 + 2 * REST_NS);
    expect_next(&queue, 1000 + 2 * REST_NS, NULL, NULL);
    CHECK_EQ_INT(push_queue_due_ns(&queue), 0);
    push_queue_rest(&queue, item, 1000 + 2 * REST_NS);
    push_queue_wake(&queue, 1000 + 3 * REST_NS - 1);
    expect_next(&queue, 1000 + 3 * REST_NS - 1, NULL, NULL);
    push_queue_wake(&queue, 1000 + 3 * REST_NS);
    expect_next(&queue, 1000 + 3 * REST_NS, "a", "2");
    push_queue_fini(&queue);
}

TEST(queue, what_is_being_done_goes_with_the_queue)
{
    struct push_queue queue;

    begin(&queue, 10);
    want(&queue, "a", "1");
    want(&queue, "b", "1");
    CHECK(push_queue_next(&queue) != NULL);
    push_queue_fini(&queue);
}

TEST(queue, it_has_room_again_when_what_it_has_rested)
{
    struct push_queue queue;

    begin(&queue, 2);
    want(&queue, "a", "1");
    want(&queue, "b", "1");
    CHECK_EQ_INT(push_queue_want(&queue, SPAN("c"), SPAN("1")), TR_EFULL);
    want(&queue, "b", "2"); /* one that is there needs none */
    expect_next(&queue, 1000, "a", "1");
    CHECK_EQ_INT(push_queue_want(&queue, SPAN("c"), SPAN("1")), TR_EFULL);
    push_queue_wake(&queue, 1000 + REST_NS);
    want(&queue, "c", "1");
    expect_next(&queue, 1000 + REST_NS, "b", "2");
    expect_next(&queue, 1000 + REST_NS, "c", "1");
    push_queue_fini(&queue);
}
