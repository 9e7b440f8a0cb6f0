/* SPDX-License-Identifier: Apache-2.0 */
#include "asker.h"

struct cache_test {
    struct tr_sim *sim;
    tr_cache_sender cache;
    tr_sender asker;
    struct asker_log log;
    const char *key; /* of the next get */
    uint32_t tag;
};

static void begin(struct cache_test *test, struct tr_cache_options options)
{
    *test = (struct cache_test){ .sim = sim_of(check_seed()) };
    CHECK_EQ_INT(tr_cache_spawn(tr_sim_system(test->sim), &options, NULL, &test->cache), 0);
    test->asker = asker_spawn(tr_sim_system(test->sim), &test->log);
}

static void end(struct cache_test *test)
{
    tr_cache_drop(&test->cache);
    tr_sender_drop(&test->asker);
    sim_end(&test->sim);
}

static void do_get(struct tr_context *ctx, void *data)
{
    struct cache_test *test = data;

    CHECK_EQ_INT(tr_cache_get(ctx, test->cache, test->key, strlen(test->key),
                     &(struct tr_ask_options){ .tag = test->tag }),
        0);
}

static void do_stats(struct tr_context *ctx, void *data)
{
    struct cache_test *test = data;

    CHECK_EQ_INT(
        tr_cache_stats_ask(ctx, test->cache, &(struct tr_ask_options){ .tag = test->tag }), 0);
}

static const struct asker_event *get(struct cache_test *test, const char *key)
{
    test->key = key;
    test->log.count = 0;
    asker_do(test->asker, do_get, test, 0);
    sim_now(test->sim);
    return asker_answer(&test->log, test->tag);
}

/* The value as text, or NULL. */
static const char *text(struct cache_test *test, const char *key)
{
    const struct asker_event *answer = get(test, key);

    return answer->status < 0 ? NULL : (const char *)answer->value;
}

static uint64_t stamp(struct cache_test *test, const char *key)
{
    const struct asker_event *answer = get(test, key);
    uint64_t stamp;

    CHECK_EQ_INT(answer->status, TR_ENOENT);
    CHECK_EQ_INT(answer->size, sizeof stamp);
    memcpy(&stamp, answer->value, sizeof stamp);
    CHECK(stamp != 0);
    return stamp;
}

static struct tr_cache_entry of(const char *key, const char *value)
{
    return (struct tr_cache_entry){
        .key = key, .key_size = strlen(key), .value = value, .value_size = strlen(value) + 1
    };
}

static void put(struct cache_test *test, const char *key, const char *value, uint64_t ttl_ns)
{
    struct tr_cache_entry p = of(key, value);

    p.ttl_ns = ttl_ns;
    CHECK_EQ_INT(tr_cache_put(test->cache, &p), 0);
}

static struct tr_cache_stats stats(struct cache_test *test)
{
    struct tr_cache_stats stats;

    test->log.count = 0;
    asker_do(test->asker, do_stats, test, 0);
    sim_now(test->sim);
    memcpy(&stats, asker_answer(&test->log, test->tag)->value, sizeof stats);
    return stats;
}

TEST(cache, gives_back_what_was_put)
{
    struct cache_test test;
    struct tr_cache_stats s;

    begin(&test, (struct tr_cache_options){ 0 });
    CHECK_EQ_STR(text(&test, "a"), NULL);
    put(&test, "a", "first", 0);
    put(&test, "b", "a value that does not ride inline, whatever its key is", 0);
    CHECK_EQ_STR(text(&test, "a"), "first");
    CHECK_EQ_STR(text(&test, "b"), "a value that does not ride inline, whatever its key is");
    put(&test, "a", "second", 0);
    CHECK_EQ_STR(text(&test, "a"), "second");
    s = stats(&test);
    CHECK_EQ_U64(s.hits, 3);
    CHECK_EQ_U64(s.misses, 1);
    CHECK_EQ_U64(s.puts, 3);
    CHECK_EQ_U64(s.entries, 2);
    CHECK_EQ_U64(s.bytes, 1 + 7 + 1 + 55);
    end(&test);
}

TEST(cache, an_entry_ends_exactly_with_its_time)
{
    struct cache_test test;

    begin(&test, (struct tr_cache_options){ .ttl_ns = SECOND });
    put(&test, "own", "x", 1500000); /* between two ticks of the wheel */
    put(&test, "default", "x", 0);
    sim_now(test.sim);
    sim_after(test.sim, 1499999);
    CHECK_EQ_STR(text(&test, "own"), "x");
    sim_after(test.sim, 1);
    CHECK_EQ_STR(text(&test, "own"), NULL);
    sim_after(test.sim, SECOND - 1500001);
    CHECK_EQ_STR(text(&test, "default"), "x");
    sim_after(test.sim, 1);
    CHECK_EQ_STR(text(&test, "default"), NULL);
    CHECK_EQ_U64(stats(&test).expired, 2);
    end(&test);
}

TEST(cache, one_timer_clears_what_nobody_asks_for)
{
    struct cache_test test;
    struct tr_system_stats s;

    begin(&test, (struct tr_cache_options){ 0 });
    put(&test, "late", "x", 10 * SECOND);
    put(&test, "soon", "x", SECOND);
    put(&test, "ever", "x", 0);
    for (int i = 0; i < 100; i++)
        put(&test, (char[]){ 'k', (char)(' ' + i), 0 }, "x", 5 * SECOND);
    sim_now(test.sim);
    tr_system_stats(tr_sim_system(test.sim), &s);
    CHECK_EQ_U64(s.timers, 1);
    sim_after(test.sim, 2 * SECOND);
    CHECK_EQ_U64(stats(&test).entries, 102);
    sim_after(test.sim, 5 * SECOND);
    CHECK_EQ_U64(stats(&test).entries, 2);
    sim_after(test.sim, 5 * SECOND);
    CHECK_EQ_U64(stats(&test).entries, 1);
    tr_system_stats(tr_sim_system(test.sim), &s);
    CHECK_EQ_U64(s.timers, 0);
    end(&test);
}

TEST(cache, a_value_put_again_lives_by_its_new_time)
{
    struct cache_test test;

    begin(&test, (struct tr_cache_options){ 0 });
    put(&test, "a", "old", SECOND);
    put(&test, "a", "new", 3 * SECOND);
    put(&test, "b", "old", SECOND);
    put(&test, "b", "new", 0);
    sim_now(test.sim);
    sim_after(test.sim, 2 * SECOND);
    CHECK_EQ_STR(text(&test, "a"), "new");
    sim_after(test.sim, 2 * SECOND);
    CHECK_EQ_STR(text(&test, "a"), NULL);
    CHECK_EQ_STR(text(&test, "b"), "new");
    end(&test);
}

TEST(cache, the_least_recently_used_makes_room)
{
    struct cache_test test;

    begin(&test, (struct tr_cache_options){ .entries_max = 3 });
    put(&test, "a", "x", 0);
    put(&test, "b", "x", 0);
    put(&test, "c", "x", 0);
    CHECK_EQ_STR(text(&test, "a"), "x");
    put(&test, "d", "x", 0);
    CHECK_EQ_STR(text(&test, "b"), NULL);
    CHECK_EQ_STR(text(&test, "a"), "x");
    CHECK_EQ_STR(text(&test, "c"), "x");
    CHECK_EQ_STR(text(&test, "d"), "x");
    CHECK_EQ_U64(stats(&test).evicted, 1);
    end(&test);
}

TEST(cache, is_bounded_in_bytes)
{
    struct cache_test test;

    begin(&test, (struct tr_cache_options){ .bytes_max = 30 });
    put(&test, "a", "123456789", 0); /* 11 bytes with key and end */
    put(&test, "b", "123456789", 0);
    put(&test, "c", "123456789", 0);
    CHECK_EQ_STR(text(&test, "a"), NULL);
    CHECK_EQ_U64(stats(&test).bytes, 22);
    put(&test, "d", "this value is larger than the whole cache", 0);
    CHECK_EQ_STR(text(&test, "d"), NULL);
    CHECK_EQ_STR(text(&test, "b"), "123456789"); /* nobody had to go for it */
    CHECK_EQ_U64(stats(&test).refused, 1);
    put(&test, "b", "12345678901234567890123456", 0); /* 28: c goes too */
    CHECK_EQ_U64(stats(&test).entries, 1);
    CHECK_EQ_U64(stats(&test).bytes, 28);
    end(&test);
}

TEST(cache, removes_one_and_clears_all)
{
    struct cache_test test;

    begin(&test, (struct tr_cache_options){ .ttl_ns = SECOND });
    put(&test, "a", "x", 0);
    put(&test, "b", "x", 0);
    CHECK_EQ_INT(tr_cache_remove(test.cache, "a", 1), 0);
    CHECK_EQ_INT(tr_cache_remove(test.cache, "nothing", 7), 0);
    CHECK_EQ_STR(text(&test, "a"), NULL);
    CHECK_EQ_STR(text(&test, "b"), "x");
    CHECK_EQ_INT(tr_cache_clear(test.cache), 0);
    CHECK_EQ_STR(text(&test, "b"), NULL);
    CHECK_EQ_U64(stats(&test).removed, 2);
    CHECK_EQ_U64(stats(&test).bytes, 0);
    end(&test);
}

TEST(cache, a_value_fetched_before_a_removal_does_not_come_in_after_it)
{
    struct cache_test test;
    struct tr_cache_entry p = of("a", "stale");

    begin(&test, (struct tr_cache_options){ 0 });
    p.stamp = stamp(&test, "a");
    CHECK_EQ_INT(tr_cache_remove(test.cache, "a", 1), 0);
    CHECK_EQ_INT(tr_cache_put(test.cache, &p), 0);
    CHECK_EQ_STR(text(&test, "a"), NULL);

    p.stamp = stamp(&test, "a");
    CHECK_EQ_INT(tr_cache_clear(test.cache), 0);
    CHECK_EQ_INT(tr_cache_put(test.cache, &p), 0);
    CHECK_EQ_STR(text(&test, "a"), NULL);
    CHECK_EQ_U64(stats(&test).refused, 2);

    p.stamp = stamp(&test, "a");
    p.value = "fresh";
    CHECK_EQ_INT(tr_cache_put(test.cache, &p), 0);
    CHECK_EQ_STR(text(&test, "a"), "fresh");
    end(&test);
}

static void do_remove(struct tr_context *ctx, void *data)
{
    struct cache_test *test = data;

    CHECK(tr_deadline_ns(ctx) != 0);
    CHECK_EQ_INT(tr_cache_remove(test->cache, "a", 1), 0);
}

TEST(cache, a_removal_does_not_expire_with_the_message_that_caused_it)
{
    struct cache_test test = { .sim = sim_of(1) };
    struct tr_cache state = { 0 };
    struct tr_box *box;

    /* A box that no thread runs yet: its messages wait. */
    CHECK_EQ_INT(tr_box_create(tr_sim_system(test.sim), &tr_cache_type, NULL, &box), 0);
    test.cache = tr_cache_of(tr_box_sender(box, "test"));
    test.asker = asker_spawn(tr_sim_system(test.sim), &test.log);
    put(&test, "a", "x", 0);
    asker_do(test.asker, do_remove, &test, MS);
    sim_now(test.sim);
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(tr_box_spawn(&box, &state, NULL), 0);
    CHECK_EQ_STR(text(&test, "a"), NULL);
    CHECK_EQ_U64(stats(&test).removed, 1);
    end(&test);
}

TEST(cache, limits_are_errors)
{
    struct cache_test test;
    char large[TR_VALUE_SIZE_MAX + 1] = "";

    begin(&test, (struct tr_cache_options){ 0 });
    CHECK_EQ_INT(tr_cache_put(test.cache,
                     &(struct tr_cache_entry){
                         .key = "a", .key_size = 1, .value = large, .value_size = sizeof large }),
        TR_ETOOBIG);
    CHECK_EQ_INT(tr_cache_put(test.cache,
                     &(struct tr_cache_entry){ .key = large, .key_size = TR_KEY_SIZE_MAX + 1 }),
        TR_ETOOBIG);
    CHECK_EQ_INT(tr_cache_remove(test.cache, large, TR_KEY_SIZE_MAX + 1), TR_ETOOBIG);
    CHECK_EQ_INT(tr_cache_put(test.cache, &(struct tr_cache_entry){ .key = large,
                                              .key_size = TR_KEY_SIZE_MAX,
                                              .value = large,
                                              .value_size = TR_VALUE_SIZE_MAX }),
        0);
    CHECK_EQ_U64(stats(&test).bytes, TR_KEY_SIZE_MAX + TR_VALUE_SIZE_MAX);
    CHECK_EQ_INT(
        tr_cache_put(test.cache, &(struct tr_cache_entry){ 0 }), 0); /* nothing is a key, too */
    CHECK_EQ_INT(get(&test, "")->status, 0);
    CHECK_EQ_INT(get(&test, "")->size, 0);
    end(&test);
}

/* A model: an array that is searched. */
enum { MODEL_KEYS = 40 };
struct model {
    bool there;
    uint32_t value;
    uint64_t ends_ns;
};

TEST(cache, agrees_with_a_model_over_many_seeds)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        struct cache_test test;
        struct model model[MODEL_KEYS] = { 0 };
        char key[16], value[16];

        begin(&test, (struct tr_cache_options){ .entries_max = 1000 });
        for (int i = 0; i < 400; i++) {
            uint64_t r = tr_sim_random(test.sim);
            struct model *m = &model[r % MODEL_KEYS];

            snprintf(key, sizeof key, "key %u", (unsigned)(r % MODEL_KEYS));
            switch (r >> 32 & 7) {
            case 0:
            case 1:
            case 2:
                *m = (struct model){ .there = true,
                    .value = (uint32_t)i,
                    .ends_ns = tr_sim_now_ns(test.sim) + (r >> 40 & 63) * MS };
                snprintf(value, sizeof value, "%d", i);
                if ((r >> 40 & 63) == 0)
                    m->ends_ns = UINT64_MAX;
                put(&test, key, value, (r >> 40 & 63) * MS);
                sim_now(test.sim);
                break;
            case 3:
                CHECK_EQ_INT(tr_cache_remove(test.cache, key, strlen(key)), 0);
                m->there = false;
                break;
            case 4:
                sim_now(test.sim);
                sim_after(test.sim, (r >> 40 & 31) * MS / 2);
                break;
            default:
                snprintf(value, sizeof value, "%u", m->value);
                CHECK_EQ_STR(text(&test, key),
                    m->there && m->ends_ns > tr_sim_now_ns(test.sim) ? value : NULL);
            }
        }
        end(&test);
    }
}

static void fill_and_read(struct tr_system *system)
{
    tr_cache_sender cache;
    char key[48];

    if (tr_cache_spawn(system, NULL, NULL, &cache) < 0)
        return;
    for (int i = 0; i < 70; i++) {
        struct tr_cache_entry p;

        snprintf(key, sizeof key, "a key that is not inline %d", i);
        p = of(key, "value");
        p.ttl_ns = 3600 * SECOND - (uint64_t)i;
        tr_cache_put(cache, &p);
    }
    snprintf(key, sizeof key, "a key that is not inline %d", 3);
    tr_cache_get_wait(cache, key, strlen(key), NULL, 0, NULL, 0);
    tr_cache_drop(&cache);
}

TEST(cache, survives_whichever_allocation_fails)
{
    walk_faults(fill_and_read, 100);
}
