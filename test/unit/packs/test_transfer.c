/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>

#include "download_site.h"

enum { LARGE = 12 << 20 };

/* ---- leases --------------------------------------------------------------------------------- */

static struct transfers *lease_open(uint32_t per_user, uint32_t per_address)
{
    struct transfers *transfers = NULL;

    CHECK_EQ_INT(transfers_start(tr_env_real(),
                     &(struct transfer_limits){ .per_user = per_user, .per_address = per_address },
                     &transfers),
        0);
    return transfers;
}

static enum transfer_refusal begin(struct transfers *transfers, const char *user,
    const char *address, struct transfer **ret_flight)
{
    struct transfer_facts facts = { .pack = SPAN("pack"),
        .version = SPAN("1.0"),
        .user = span_of(user),
        .address = span_of(address),
        .address_key = span_of(address),
        .size = 100 };

    return transfer_start(transfers, &facts, ret_flight);
}

TEST(transfer, one_address_has_so_many_and_not_one_more)
{
    struct transfers *transfers = lease_open(0, 3);
    struct transfer *held[3], *more;

    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(begin(transfers, NULL, "10.0.0.1", &held[i]), TRANSFER_OK);
    CHECK_EQ_INT(begin(transfers, NULL, "10.0.0.1", &more), TRANSFER_ADDRESS);
    CHECK_EQ_INT(begin(transfers, NULL, "10.0.0.2", &more), TRANSFER_OK);
    transfer_stop(more, 100);
    CHECK_EQ_INT(transfers_held(transfers), 3);
    transfer_stop(held[1], 50);
    CHECK_EQ_INT(begin(transfers, NULL, "10.0.0.1", &held[1]), TRANSFER_OK);
    for (int i = 0; i < 3; i++)
        transfer_stop(held[i], 100);
    CHECK_EQ_INT(transfers_held(transfers), 0);
    transfers_stop(&transfers);
}

TEST(transfer, one_user_has_so_many_over_all_addresses)
{
    struct transfers *transfers = lease_open(2, 5);
    struct transfer *held[2], *more;

    CHECK_EQ_INT(begin(transfers, "did:a", "10.0.0.1", &held[0]), TRANSFER_OK);
    CHECK_EQ_INT(begin(transfers, "did:a", "10.0.0.2", &held[1]), TRANSFER_OK);
    CHECK_EQ_INT(begin(transfers, "did:a", "10.0.0.3", &more), TRANSFER_USER);
    CHECK_EQ_INT(transfers_held(transfers), 4); /* the address' lease of the refused one is back */
    CHECK_EQ_INT(begin(transfers, "did:b", "10.0.0.3", &more), TRANSFER_OK);
    transfer_stop(more, 0);
    transfer_stop(held[0], 0);
    transfer_stop(held[1], 0);
    CHECK_EQ_INT(transfers_held(transfers), 0);
    transfers_stop(&transfers);
}

enum { THREADS = 6, NAMES = 5, LIMIT = 4 };
static _Atomic int in_use[NAMES];
static _Atomic int refused, over;

static void *storm(void *data)
{
    struct transfers *transfers = data;
    uint64_t x = (uint64_t)(uintptr_t)&x ^ check_seed();
    int rounds = check_is_long() ? 300000 : 30000;

    for (int i = 0; i < rounds; i++) {
        struct transfer *transfer;
        char name[16];
        int who;

        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        who = (int)((x >> 33) % NAMES);
        snprintf(name, sizeof name, "10.0.0.%d", who);
        if (begin(transfers, NULL, name, &transfer) != TRANSFER_OK) {
            atomic_fetch_add(&refused, 1);
            continue;
        }
        if (atomic_fetch_add(&in_use[who], 1) >= LIMIT)
            atomic_fetch_add(&over, 1);
        if (x & 1 << 20)
            sched_yield();
        atomic_fetch_sub(&in_use[who], 1);
        transfer_stop(transfer, 100);
    }
    return NULL;
}

TEST_LONG(transfer, limit_holds_and_leases_return_when_many_come_at_once, 120)
{
    struct transfers *transfers = lease_open(0, LIMIT);
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, storm, transfers), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ_INT(atomic_load(&over), 0);
    CHECK_EQ_INT(transfers_held(transfers), 0);
    transfers_stop(&transfers);
}

/* ---- the list ------------------------------------------------------------------------------- */

static _Atomic bool is_storm_over;

/* Has one or two transfers in the list at any time, and the two ends of it change. */
static void *storm_listed(void *data)
{
    struct transfers *transfers = data;
    struct transfer *held[2] = { NULL, NULL };
    int rounds = check_is_long() ? 200000 : 20000;

    for (int i = 0; i < rounds; i++) {
        struct transfer **slot = &held[i % 2];

        if (*slot != NULL)
            transfer_stop(*slot, 100);
        CHECK_EQ_INT(begin(transfers, "did:a", "10.0.0.1", slot), TRANSFER_OK);
        (void)transfer_progress(*slot, 50, true);
        (void)transfer_progress(*slot, 60, true); /* which lists it once */
    }
    transfer_stop(held[0], 100);
    transfer_stop(held[1], 100);
    return NULL;
}

static void *storm_read(void *data)
{
    static struct transfer_info infos[TRANSFER_LIST_MAX];
    struct transfers *transfers = data;

    while (!atomic_load(&is_storm_over)) {
        uint32_t count = transfers_list(transfers, 0, infos);

        CHECK(count <= 2 * THREADS);
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ_STR(infos[i].user, "did:a");
            CHECK(infos[i].id > 0 && infos[i].sent <= 60);
        }
        if (count > 0)
            (void)transfers_cancel(transfers, infos[count - 1].id);
    }
    return NULL;
}

TEST_LONG(transfer, list_is_whole_when_many_come_and_go, 120)
{
    static struct transfer_info infos[TRANSFER_LIST_MAX];
    struct transfers *transfers = lease_open(0, 0);
    pthread_t threads[THREADS], reader;

    CHECK_EQ_INT(pthread_create(&reader, NULL, storm_read, transfers), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, storm_listed, transfers), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&is_storm_over, true);
    pthread_join(reader, NULL);
    CHECK_EQ_INT(transfers_list(transfers, 0, infos), 0);
    transfers_stop(&transfers);
}

/* ---- downloads that are under way ----------------------------------------------------------- */

/* One that has begun and is not read any further. */
static struct taker *begin_slowly(int index, const char *headers, struct download_result *result)
{
    struct taker *taker = taker_open(8192);
    char path[32];

    snprintf(path, sizeof path, "/d/%d", index);
    taker_ask(taker, path, headers);
    taker_head(taker, result);
    return taker;
}

TEST(transfer, too_many_downloads_of_an_address_get_429_until_one_ends)
{
    struct download_result result;
    struct taker *takers[3], *more;
    int large, small;

    site_open_with(&(struct packs_settings){ .downloads_per_address = 3 }, NULL);
    large = site_add(1, LARGE);
    small = site_add(2, 1000);
    for (int i = 0; i < 3; i++) {
        takers[i] = begin_slowly(large, "", &result);
        CHECK_EQ_INT(result.status, 200);
    }
    more = begin_slowly(large, "", &result);
    CHECK_EQ_INT(result.status, 429);
    CHECK_EQ_STR(result_header(&result, "Retry-After"), "5");
    CHECK_EQ_STR(result_header(&result, "ETag"), NULL);
    taker_close(more);
    /* A file of one or two packets takes no lease. */
    CHECK_EQ_INT(take("/d/1", "", site.bytes[small]).status, 200);
    taker_close(takers[0]); /* the client goes: its lease returns */
    for (int i = 0;; i++) {
        CHECK(i < 10000);
        more = begin_slowly(large, "", &result);
        if (result.status == 200)
            break;
        taker_close(more);
        poll(NULL, 0, 1);
    }
    taker_close(more);
    taker_close(takers[1]);
    taker_close(takers[2]);
    site_close();
}

TEST(transfer, too_many_downloads_of_a_user_get_429)
{
    struct download_result result;
    struct taker *first, *more;

    site_open_with(&(struct packs_settings){ .downloads_per_user = 1 }, NULL);
    (void)site_add(1, LARGE);
    first = begin_slowly(0, "X-User: did:a\r\n", &result);
    CHECK_EQ_INT(result.status, 200);
    more = begin_slowly(0, "X-User: did:a\r\n", &result);
    CHECK_EQ_INT(result.status, 429);
    taker_close(more);
    more = begin_slowly(0, "X-User: did:b\r\n", &result);
    CHECK_EQ_INT(result.status, 200);
    taker_close(more);
    more = begin_slowly(0, "", &result); /* nobody in particular */
    CHECK_EQ_INT(result.status, 200);
    taker_close(more);
    taker_close(first);
    site_close();
}

static uint32_t list(struct transfer_info infos[TRANSFER_LIST_MAX])
{
    return transfers_list(site.packs.transfers, 0, infos);
}

/* Those that wait are in the list; a moment after their head was read. */
static void list_all(struct transfer_info infos[TRANSFER_LIST_MAX], uint32_t count)
{
    for (int i = 0; list(infos) < count; i++) {
        CHECK_MSG(i < 10000, "they are not in the list");
        poll(NULL, 0, 1);
    }
}

static int cancel(uint64_t id)
{
    return transfers_cancel(site.packs.transfers, id);
}

static bool is_empty(void)
{
    return transfers_held(site.packs.transfers) == 0;
}

TEST(transfer, downloads_are_listed_with_their_progress_and_can_be_cancelled)
{
    static struct transfer_info infos[TRANSFER_LIST_MAX];
    struct download_result results[2];
    struct taker *takers[2];

    site_open_with(&(struct packs_settings){ .downloads_per_address = 10 }, NULL);
    (void)site_add(1, LARGE);
    for (int i = 0; i < 2; i++)
        takers[i] = begin_slowly(0, "X-User: did:a\r\n", &results[i]);
    list_all(infos, 2);
    CHECK_EQ_STR(infos[0].pack, "pack");
    CHECK_EQ_STR(infos[0].version, "1.0");
    CHECK_EQ_STR(infos[0].user, "did:a");
    CHECK_EQ_STR(infos[0].address, "127.0.0.1");
    CHECK_EQ_U64(infos[0].size, LARGE);
    CHECK(infos[0].sent > 0 && infos[0].sent < LARGE);
    CHECK(infos[0].id != infos[1].id);

    CHECK_EQ_INT(cancel(infos[0].id), 0);
    for (int i = 0; i < 2; i++) {
        taker_body(takers[i], &results[i], site.bytes[0]);
        CHECK(results[i].is_right);
        taker_close(takers[i]);
    }
    CHECK(results[0].is_complete != results[1].is_complete); /* one of them was cut */
    wait_until(is_empty, "all leases returned");
    CHECK_EQ_INT(cancel(infos[0].id), TR_ENOENT);
    CHECK_EQ_INT(list(infos), 0);
    site_close();
}

TEST(transfer, cancelled_download_is_cut_though_its_client_does_not_read)
{
    static struct transfer_info infos[TRANSFER_LIST_MAX];
    struct download_result result;
    struct taker *taker;

    site_open_with(&(struct packs_settings){ .downloads_per_address = 10 }, NULL);
    (void)site_add(1, LARGE);
    taker = begin_slowly(0, "", &result);
    list_all(infos, 1);
    CHECK_EQ_INT(cancel(infos[0].id), 0);
    wait_until(is_empty, "the lease returned"); /* before the client has read anything */
    taker_body(taker, &result, site.bytes[0]);
    CHECK(!result.is_complete);
    taker_close(taker);
    site_close();
}

TEST(transfer, leases_return_when_connections_are_killed)
{
    struct download_result result;
    struct taker *takers[5];

    site_open_with(&(struct packs_settings){ .downloads_per_address = 10 }, NULL);
    (void)site_add(1, LARGE);
    for (int i = 0; i < 5; i++)
        takers[i] = begin_slowly(0, "", &result);
    CHECK_EQ_INT(transfers_held(site.packs.transfers), 5);
    http_server_stop(&site.server); /* without patience: its actors end in the middle */
    CHECK_EQ_INT(transfers_held(site.packs.transfers), 0);
    for (int i = 0; i < 5; i++)
        taker_close(takers[i]);
    site_close();
}

static tr_weak last_connection(void)
{
    tr_weak connection;

    pthread_mutex_lock(&site.lock);
    connection = site.connection;
    pthread_mutex_unlock(&site.lock);
    return connection;
}

static uint32_t expected_held;

static bool is_held(void)
{
    return transfers_held(site.packs.transfers) == expected_held;
}

static void wait_held(uint32_t count)
{
    expected_held = count;
    wait_until(is_held, "the leases returned");
}

/* The list hears of an end a moment after the leases are back. */
static void wait_listed(uint32_t count)
{
    static struct transfer_info infos[TRANSFER_LIST_MAX];

    for (int i = 0; list(infos) != count; i++) {
        CHECK_MSG(i < 10000, "%u are in the list, not %u", list(infos), count);
        poll(NULL, 0, 1);
    }
}

TEST(transfer, connection_that_dies_gives_its_leases_back_and_no_others)
{
    enum { TAKERS = 3, DIES = 1 };
    static struct transfer_info infos[TRANSFER_LIST_MAX];
    struct download_result results[TAKERS];
    struct taker *takers[TAKERS];
    tr_weak connections[TAKERS];

    site_open_with(
        &(struct packs_settings){ .downloads_per_address = TAKERS, .downloads_per_user = TAKERS },
        NULL);
    (void)site_add(1, LARGE);
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = begin_slowly(0, "X-User: did:a\r\n", &results[i]);
        connections[i] = last_connection();
    }
    list_all(infos, TAKERS);
    CHECK_EQ_INT(transfers_held(site.packs.transfers), 2 * TAKERS); /* an address' and a user's */
    CHECK_EQ_INT(tr_kill(connections[DIES]), 0);
    wait_held(2 * (TAKERS - 1));
    wait_listed(TAKERS - 1);
    for (int i = 0; i < TAKERS; i++) {
        taker_body(takers[i], &results[i], site.bytes[0]);
        CHECK(results[i].is_right);
        CHECK_EQ_INT(results[i].is_complete, i != DIES);
        taker_close(takers[i]);
    }
    wait_held(0);
    wait_listed(0);
    /* The user and the address have all they may have again. */
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = begin_slowly(0, "X-User: did:a\r\n", &results[i]);
        CHECK_EQ_INT(results[i].status, 200);
    }
    for (int i = 0; i < TAKERS; i++)
        taker_close(takers[i]);
    wait_held(0);
    wait_listed(0);
    site_close();
}

TEST(transfer, one_is_cancelled_while_the_connection_of_another_dies)
{
    enum { TAKERS = 4 };
    static struct transfer_info infos[TRANSFER_LIST_MAX];
    struct download_result results[TAKERS];
    struct taker *takers[TAKERS];
    tr_weak dies;
    int complete = 0;

    site_open_with(&(struct packs_settings){ .downloads_per_address = TAKERS }, NULL);
    (void)site_add(1, LARGE);
    for (int i = 0; i < TAKERS; i++)
        takers[i] = begin_slowly(0, "", &results[i]);
    dies = last_connection();
    list_all(infos, TAKERS);
    CHECK_EQ_INT(tr_kill(dies), 0);
    CHECK_EQ_INT(cancel(infos[0].id), 0);
    wait_held(TAKERS - 2);
    wait_listed(TAKERS - 2);
    for (int i = 0; i < TAKERS; i++) {
        taker_body(takers[i], &results[i], site.bytes[0]);
        CHECK(results[i].is_right);
        complete += results[i].is_complete;
        taker_close(takers[i]);
    }
    CHECK_EQ_INT(complete, TAKERS - 2);
    wait_held(0);
    wait_listed(0);
    site_close();
}

/* ---- pace ----------------------------------------------------------------------------------- */

TEST_LONG(transfer, download_is_not_faster_than_its_pace, 60)
{
    enum { RATE = 400000, SIZE = 600000 };
    struct download_result result;
    const struct tr_env *env = tr_env_real();
    uint64_t begin_ns, took_ns;

    site_open_with(&(struct packs_settings){ .rate_max = RATE }, NULL);
    (void)site_add(1, SIZE);
    begin_ns = env->now_ns(env->data);
    result = take("/d/0", "", site.bytes[0]);
    took_ns = env->now_ns(env->data) - begin_ns;
    CHECK_EQ_INT(result.status, 200);
    CHECK(result.is_complete && result.is_right);
    /* An eighth of a second's worth goes at once, the rest takes its time. */
    CHECK_MSG(took_ns >= (SIZE - RATE / 8) * UINT64_C(1000000000) / RATE * 9 / 10,
        "it took %llu ms", (unsigned long long)(took_ns / 1000000));
    site_close();
}

/* A client that takes its time with a large file is not idle. */
TEST_LONG(transfer, long_download_outlives_the_idle_time, 60)
{
    enum { RATE = 200000, SIZE = 500000 };
    struct download_result result;

    site_open_with(&(struct packs_settings){ .rate_max = RATE },
        &(struct http_limits){ .idle_ns = 300000000, .header_ns = 300000000 });
    (void)site_add(1, SIZE);
    result = take("/d/0", "", site.bytes[0]); /* more than two seconds */
    CHECK(result.is_complete && result.is_right);
    site_close();
}
