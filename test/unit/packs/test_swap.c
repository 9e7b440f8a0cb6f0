/* SPDX-License-Identifier: Apache-2.0 */
/* test_swap.c: files that change while they are sent. A complete answer has the bytes of its entity
 * tag; an answer that is cut off claims nothing. test_integrity.c changes files during their hash. */
#include "download_site.h"

enum {
    SWAPPERS = 8,
    LARGE = 8 << 20, /* more than the sockets of a client that does not read can hold */
};

enum change { WRITE_IN_PLACE, TRUNCATE, APPEND, REPLACE, UNLINK, MODE, NOTHING, CHANGES };

static struct swap {
    pthread_t thread;
    int index, rounds;
    unsigned complete[CHANGES], cut[CHANGES], refused;
    unsigned char *other;
} swaps[SWAPPERS];

static void change_file(const struct swap *swap, enum change change, uint64_t where)
{
    const struct pack_version *version = &site.versions[swap->index];
    unsigned char byte = (unsigned char)(site.bytes[swap->index][where] ^ 1);
    char path[256];
    int fd;

    site_path(swap->index, path);
    switch (change) {
    case WRITE_IN_PLACE:
    case TRUNCATE:
    case APPEND:
        CHECK_EQ_INT(chmod(path, 0640), 0);
        fd = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0);
        if (change == WRITE_IN_PLACE)
            CHECK_EQ_INT(pwrite(fd, &byte, 1, (off_t)where), 1);
        else
            CHECK_EQ_INT(ftruncate(fd, (off_t)(change == TRUNCATE ? where : version->size + 1)), 0);
        close(fd);
        break;
    case REPLACE:
        put_file(path, swap->other, version->size);
        break;
    case UNLINK:
        CHECK_EQ_INT(unlink(path), 0);
        break;
    case MODE:
        CHECK_EQ_INT(chmod(path, 0), 0);
        break;
    case NOTHING:
    case CHANGES:
        break;
    }
}

static void repair(const struct swap *swap)
{
    char path[256];

    site_path(swap->index, path);
    put_file(path, site.bytes[swap->index], site.versions[swap->index].size);
}

static void swap_once(struct swap *swap, uint64_t x)
{
    enum change change = (enum change)((x >> 33) % CHANGES);
    struct taker *taker = taker_open(0);
    struct download_result result;
    char path[32];

    repair(swap);
    snprintf(path, sizeof path, "/d/%d", swap->index);
    taker_ask(taker, path, "");
    taker_head(taker, &result);
    CHECK_EQ_INT(result.status, 200);
    CHECK(strstr(result_header(&result, "ETag"), site.versions[swap->index].sha256_hex) != NULL);
    /* The head is here and most of the file cannot be: the server waits for room. */
    change_file(swap, change, (x >> 20) % site.versions[swap->index].size);
    taker_body(taker, &result, site.bytes[swap->index]);
    if (result.is_complete) {
        CHECK_MSG(result.is_right, "wrong bytes are complete under the tag (change %d)", change);
        swap->complete[change]++;
    } else {
        swap->cut[change]++;
    }
    taker_close(taker);
}

static void *swap_run(void *data)
{
    struct swap *swap = data;
    uint64_t x = (uint64_t)(swap - swaps) + check_seed() * 64 + 1;

    for (int i = 0; i < swap->rounds; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        swap_once(swap, x);
    }
    return NULL;
}

TEST_LONG(swap, file_that_changes_while_it_is_sent_never_arrives_complete_and_wrong, 240)
{
    int rounds = (int)check_rounds(1000, 10000);
    unsigned complete[CHANGES] = { 0 }, cut[CHANGES] = { 0 };

    site_open_with(&(struct packs_settings){ .hashes_max = SWAPPERS }, NULL);
    for (int i = 0; i < SWAPPERS; i++) {
        swaps[i].index = site_add((uint64_t)i + 1, LARGE + (size_t)i * 1000);
        swaps[i].other = make_bytes((uint64_t)i + 50, LARGE + (size_t)i * 1000);
        swaps[i].rounds = rounds / SWAPPERS + 1;
    }
    for (int i = 0; i < SWAPPERS; i++)
        CHECK_EQ_INT(pthread_create(&swaps[i].thread, NULL, swap_run, &swaps[i]), 0);
    for (int i = 0; i < SWAPPERS; i++) {
        pthread_join(swaps[i].thread, NULL);
        free(swaps[i].other);
        for (int j = 0; j < CHANGES; j++) {
            complete[j] += swaps[i].complete[j];
            cut[j] += swaps[i].cut[j];
        }
    }
    for (int j = 0; j < CHANGES; j++) {
        printf("change %d: %u complete and right, %u cut\n", j, complete[j], cut[j]);
        if (j == NOTHING)
            CHECK_MSG(cut[j] == 0 && complete[j] > 0, "%u were cut without a reason", cut[j]);
        else
            CHECK_MSG(cut[j] > 0, "change %d was never noticed in %u", j, complete[j]);
    }
    site_close();
}

/* Small ones go out of memory: they are right whatever happens, at any moment. */
static _Atomic bool is_over;

static void *disturb(void *data)
{
    struct swap *swap = data;
    uint64_t x = 12345;

    while (!atomic_load(&is_over)) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        repair(swap);
        poll(NULL, 0, (int)((x >> 40) % 60)); /* long enough to be verified, now and then */
        change_file(
            swap, (enum change)((x >> 33) % CHANGES), (x >> 20) % site.versions[swap->index].size);
    }
    return NULL;
}

TEST_LONG(swap, small_file_that_changes_at_any_time_arrives_right_or_not_at_all, 60)
{
    struct swap *swap = &swaps[0];
    unsigned right = 0, refused = 0, rounds = check_rounds(2000, 20000);

    site_open();
    swap->index = site_add(1, 60000);
    swap->other = make_bytes(2, 60000);
    CHECK_EQ_INT(pthread_create(&swap->thread, NULL, disturb, swap), 0);
    for (unsigned i = 0; i < rounds || right < 10 || refused == 0; i++) {
        struct download_result result = take("/d/0", "", site.bytes[0]);

        CHECK(result.status == 200 || result.status == 500 || result.status == 503);
        if (result.status == 200) {
            CHECK(result.is_complete && result.is_right);
            right++;
        } else {
            refused++;
        }
    }
    atomic_store(&is_over, true);
    pthread_join(swap->thread, NULL);
    free(swap->other);
    site_close();
}
