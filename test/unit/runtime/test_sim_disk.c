/* SPDX-License-Identifier: Apache-2.0 */
/* First what each function promises, one by one; then random operations against models: one for
 * bytes, one for names, one that is the real disk, and one with failing allocations. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "check.h"
#include "runtime/sim_disk.h"

#define MILLION 1000000u
#define SECTOR ((size_t)TR__SIM_DISK_SECTOR)
#define READ_WRITE (TR_OPEN_READ | TR_OPEN_WRITE)
#define NEW_FILE (READ_WRITE | TR_OPEN_CREATE | TR_OPEN_EXCLUSIVE)

static const struct tr_disk *const table = &tr__sim_disk_table;

static struct tr__sim_disk *disk_create(uint64_t seed)
{
    struct tr__sim_disk *disk = NULL;
    struct base_random random;

    base_random_init(&random, seed);
    CHECK_EQ_INT(tr__sim_disk_create(&random, &disk), 0);
    return disk;
}

static struct tr_file *open_file(struct tr__sim_disk *disk, const char *path, unsigned flags)
{
    struct tr_file *file = NULL;

    CHECK_EQ_INT(table->open(disk, path, flags, &file), 0);
    CHECK(file != NULL);
    return file;
}

static void write_text(struct tr_file *file, uint64_t offset, const char *text)
{
    CHECK_EQ_INT(table->write(file, offset, text, strlen(text)), 0);
}

/* A file with this text, all of it and its name durable. */
static void put_file(struct tr__sim_disk *disk, const char *path, const char *text)
{
    struct tr_file *file = open_file(disk, path, READ_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE);

    write_text(file, 0, text);
    CHECK_EQ_INT(table->sync(file), 0);
    CHECK_EQ_INT(table->close(file), 0);
    CHECK_EQ_INT(table->sync_dir(disk, path), 0);
}

/* "" if there is no such file. Valid until the next call. */
static const char *text_of(struct tr__sim_disk *disk, const char *path)
{
    static char text[256];
    struct tr_file *file;
    size_t size;

    if (table->open(disk, path, TR_OPEN_READ, &file) < 0)
        return "";
    CHECK_EQ_INT(table->read(file, 0, text, sizeof text - 1, &size), 0);
    text[size] = '\0';
    CHECK_EQ_INT(table->close(file), 0);
    return text;
}

static bool has_name(struct tr__sim_disk *disk, const char *path)
{
    int exists = -1;

    CHECK_EQ_INT(table->exists(disk, path, &exists), 0);
    return exists != 0;
}

static uint64_t size_of(struct tr_file *file)
{
    uint64_t size;

    CHECK_EQ_INT(table->size(file, &size), 0);
    return size;
}

/* ---- reading and writing --------------------------------------------------------------------- */

TEST(sim_disk, a_read_sees_what_is_not_synced)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);

    write_text(file, 0, "hello world");
    write_text(file, 6, "stage");
    CHECK_EQ_STR(text_of(disk, "a"), "hello stage");
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
    CHECK(disk == NULL);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, a_read_past_the_end_is_short)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);
    char bytes[100];
    size_t size = 99;

    write_text(file, 0, "12345");
    CHECK_EQ_INT(table->read(file, 2, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 3);
    CHECK_EQ_INT(table->read(file, 5, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 0);
    CHECK_EQ_INT(table->read(file, UINT64_MAX, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 0);
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, what_was_cut_off_does_not_come_back_by_growing)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);
    static char bytes[20000];
    size_t size;

    memset(bytes, 'x', sizeof bytes);
    CHECK_EQ_INT(table->write(file, 0, bytes, sizeof bytes), 0);
    CHECK_EQ_INT(table->sync(file), 0);
    CHECK_EQ_INT(table->truncate(file, 5000), 0);
    CHECK_EQ_INT(table->truncate(file, 20000), 0);
    CHECK_EQ_INT(table->read(file, 0, bytes, sizeof bytes, &size), 0);
    CHECK_EQ_U64(size, 20000);
    for (unsigned i = 0; i < 20000; i++)
        CHECK_EQ_INT(bytes[i], i < 5000 ? 'x' : 0);
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, an_empty_write_changes_nothing)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);

    CHECK_EQ_INT(table->write(file, 100, "", 0), 0);
    CHECK_EQ_U64(size_of(file), 0);
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, flags_and_paths_without_a_meaning_are_refused)
{
    const unsigned refused[] = { 0, TR_OPEN_CREATE, TR_OPEN_READ | TR_OPEN_EXCLUSIVE,
        TR_OPEN_READ | TR_OPEN_TRUNCATE, TR_OPEN_READ | 1024 };
    static char long_path[TR__SIM_DISK_PATH_BYTES_MAX + 2];
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *none = NULL;

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        CHECK_EQ_INT(table->open(disk, "a", refused[i], &none), TR_EINVAL);
    memset(long_path, 'x', sizeof long_path - 1);
    CHECK_EQ_INT(table->open(disk, long_path, NEW_FILE, &none), TR_EINVAL);
    CHECK_EQ_INT(table->open(disk, "", NEW_FILE, &none), TR_EINVAL);
    CHECK_EQ_INT(table->open(disk, "dir/", NEW_FILE, &none), TR_EINVAL);
    CHECK_EQ_INT(table->remove(disk, ""), TR_EINVAL);
    CHECK_EQ_INT(table->rename(disk, "", "b"), TR_EINVAL);
    CHECK_EQ_INT(table->rename(disk, "a", ""), TR_EINVAL);
    CHECK(none == NULL);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, a_removed_file_lives_until_it_is_closed)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);
    char bytes[3];
    size_t size;

    write_text(file, 0, "abc");
    CHECK_EQ_INT(table->remove(disk, "a"), 0);
    CHECK(!has_name(disk, "a"));
    CHECK_EQ_INT(table->sync_dir(disk, "a"), 0);
    CHECK_EQ_INT(table->read(file, 0, bytes, 3, &size), 0);
    CHECK_EQ_INT(memcmp(bytes, "abc", 3), 0);
    CHECK_EQ_U64(tr__sim_disk_bytes(disk), 3);
    CHECK_EQ_INT(table->close(file), 0);
    CHECK_EQ_U64(tr__sim_disk_bytes(disk), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, offsets_past_the_largest_file_are_too_big)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);

    CHECK_EQ_INT(table->write(file, UINT64_MAX, "x", 1), TR_ETOOBIG);
    CHECK_EQ_INT(table->write(file, TR__SIM_DISK_FILE_BYTES_MAX, "x", 1), TR_ETOOBIG);
    CHECK_EQ_INT(table->truncate(file, TR__SIM_DISK_FILE_BYTES_MAX + 1), TR_ETOOBIG);
    CHECK_EQ_INT(table->write(file, TR__SIM_DISK_FILE_BYTES_MAX - 1, "x", 1), 0);
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

/* ---- faults ---------------------------------------------------------------------------------- */

TEST(sim_disk, an_io_error_changes_nothing)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);
    char bytes[10];
    size_t size = 77;

    write_text(file, 0, "old");
    tr__sim_disk_faults(disk, &(struct tr_disk_faults){ .eio_per_million = MILLION });
    CHECK_EQ_INT(table->write(file, 0, "new", 3), TR_EIO);
    CHECK_EQ_INT(table->truncate(file, 0), TR_EIO);
    CHECK_EQ_INT(table->read(file, 0, bytes, 3, &size), TR_EIO);
    CHECK_EQ_INT(table->sync(file), TR_EIO);
    CHECK_EQ_INT(table->sync_dir(disk, "a"), TR_EIO);
    CHECK_EQ_U64(size, 77);
    CHECK_EQ_U64(tr__sim_disk_counters(disk)->faults, 5);
    tr__sim_disk_faults(disk, &(struct tr_disk_faults){ 0 });
    CHECK_EQ_STR(text_of(disk, "a"), "old");
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, a_short_write_stores_a_first_part)
{
    bool was_short[11] = { false };

    for (uint64_t seed; check_each_seed(&seed, 200);) {
        struct tr__sim_disk *disk = disk_create(seed);
        struct tr_file *file = open_file(disk, "a", NEW_FILE);
        char expected[11] = "0123456789";
        uint64_t size;

        tr__sim_disk_faults(disk, &(struct tr_disk_faults){ .short_per_million = MILLION });
        CHECK_EQ_INT(table->write(file, 0, "0123456789", 10), TR_EIO);
        size = size_of(file);
        CHECK(size < 10);
        was_short[size] = true;
        expected[size] = '\0';
        CHECK_EQ_STR(text_of(disk, "a"), expected);
        CHECK_EQ_INT(table->close(file), 0);
        tr__sim_disk_destroy(&disk);
    }
    /* 200 seeds reach all ten lengths; a single one given by hand cannot. */
    for (unsigned i = 0; i < 10 && getenv("TROUPE_SEED") == NULL; i++)
        CHECK(was_short[i]);
}

TEST(sim_disk, a_full_disk_refuses_to_grow_and_works_on)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *a = open_file(disk, "a", NEW_FILE), *b = open_file(disk, "b", NEW_FILE);
    static char bytes[600];

    tr__sim_disk_faults(disk, &(struct tr_disk_faults){ .bytes_max = 1000 });
    CHECK_EQ_INT(table->write(a, 0, bytes, 600), 0);
    CHECK_EQ_INT(table->write(b, 0, bytes, 401), TR_ENOSPC);
    CHECK_EQ_INT(table->truncate(b, 401), TR_ENOSPC);
    CHECK_EQ_U64(size_of(b), 0);
    CHECK_EQ_INT(table->write(b, 0, bytes, 400), 0);
    CHECK_EQ_INT(table->write(a, 0, bytes, 600), 0);
    CHECK_EQ_INT(table->write(a, 1, bytes, 600), TR_ENOSPC);
    CHECK_EQ_U64(tr__sim_disk_counters(disk)->full, 3);
    CHECK_EQ_INT(table->close(a), 0);
    CHECK_EQ_INT(table->close(b), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, what_is_removed_or_cut_off_makes_room_again)
{
    struct tr__sim_disk *disk = disk_create(1);
    static char bytes[900];

    tr__sim_disk_faults(disk, &(struct tr_disk_faults){ .bytes_max = 1000 });
    for (unsigned i = 0; i < 50; i++) {
        struct tr_file *file = open_file(disk, "a", NEW_FILE);

        CHECK_EQ_INT(table->write(file, 0, bytes, sizeof bytes), 0);
        CHECK_EQ_INT(table->sync(file), 0);
        if (i % 2 == 0) {
            CHECK_EQ_INT(table->remove(disk, "a"), 0);
        } else {
            CHECK_EQ_INT(table->truncate(file, 0), 0);
            CHECK_EQ_INT(table->rename(disk, "a", i % 4 == 1 ? "b" : "c"), 0);
        }
        CHECK_EQ_INT(table->close(file), 0);
        CHECK(tr__sim_disk_bytes(disk) <= 1000);
    }
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, a_file_counts_as_long_as_a_crash_could_bring_it_back)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file;

    put_file(disk, "a", "123456");
    file = open_file(disk, "a", READ_WRITE);
    CHECK_EQ_INT(table->truncate(file, 2), 0);
    CHECK_EQ_U64(tr__sim_disk_bytes(disk), 6);
    CHECK_EQ_INT(table->sync(file), 0);
    CHECK_EQ_U64(tr__sim_disk_bytes(disk), 2);
    CHECK_EQ_INT(table->close(file), 0);
    CHECK_EQ_INT(table->remove(disk, "a"), 0);
    CHECK_EQ_U64(tr__sim_disk_bytes(disk), 2);
    CHECK_EQ_INT(table->sync_dir(disk, "a"), 0);
    CHECK_EQ_U64(tr__sim_disk_bytes(disk), 0);
    tr__sim_disk_destroy(&disk);
}

/* ---- limits ---------------------------------------------------------------------------------- */

TEST(sim_disk, names_past_the_limit_are_no_space)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *none = NULL;
    char path[32];

    for (unsigned i = 0; i < TR__SIM_DISK_FILES_MAX; i++) {
        snprintf(path, sizeof path, "d/%u", i * 7919 % TR__SIM_DISK_FILES_MAX);
        CHECK_EQ_INT(table->close(open_file(disk, path, NEW_FILE)), 0);
    }
    CHECK_EQ_INT(table->open(disk, "one more", NEW_FILE, &none), TR_ENOSPC);
    CHECK_EQ_INT(table->remove(disk, "d/5"), 0);
    CHECK_EQ_INT(table->close(open_file(disk, "one more", NEW_FILE)), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, open_files_past_the_limit_are_refused)
{
    static struct tr_file *files[TR__SIM_DISK_HANDLES_MAX];
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *none = NULL;

    for (unsigned i = 0; i < TR__SIM_DISK_HANDLES_MAX; i++)
        files[i] = open_file(disk, "a", READ_WRITE | TR_OPEN_CREATE);
    CHECK_EQ_INT(table->open(disk, "a", TR_OPEN_READ, &none), TR_ELIMIT);
    for (unsigned i = 0; i < TR__SIM_DISK_HANDLES_MAX; i++)
        CHECK_EQ_INT(table->close(files[i]), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, past_the_limit_what_waits_is_written_back)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);
    char bytes[4096] = "first";

    tr__sim_disk_faults(disk, &(struct tr_disk_faults){ .bytes_max = 1 << 20 });
    /* 4 MiB over the same four pages: more than bytes_max and the extra together. */
    for (unsigned i = 0; i < 1024; i++)
        CHECK_EQ_INT(table->write(file, i % 4 * sizeof bytes, bytes, sizeof bytes), 0);
    CHECK(tr__sim_disk_counters(disk)->written_back > 0);
    tr__sim_disk_crash(disk);
    CHECK_EQ_STR(text_of(disk, "a"), "first");
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, name_operations_past_the_limit_become_durable)
{
    struct tr__sim_disk *disk = disk_create(1);

    CHECK_EQ_INT(table->close(open_file(disk, "a", NEW_FILE)), 0);
    for (unsigned i = 0; i < TR__SIM_DISK_UNSYNCED_NAMES_MAX; i++)
        CHECK_EQ_INT(table->rename(disk, i % 2 ? "b" : "a", i % 2 ? "a" : "b"), 0);
    CHECK(tr__sim_disk_counters(disk)->written_back > 0);
    tr__sim_disk_crash(disk);
    CHECK(has_name(disk, "a") != has_name(disk, "b"));
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, many_pending_writes_do_not_slow_down_reads)
{
    /* 10,000 pages not synced, 200,000 page reads: seconds if a read looked at each pending write.
     */
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE);
    struct base_random random;
    unsigned char page[4096];
    size_t size;

    base_random_init(&random, 1);
    for (uint64_t i = 0; i < 10000; i++) {
        memset(page, (int)(i % 251), sizeof page);
        CHECK_EQ_INT(table->write(file, i * sizeof page, page, sizeof page), 0);
    }
    CHECK_EQ_U64(tr__sim_disk_counters(disk)->written_back, 0);
    for (unsigned i = 0; i < 200000; i++) {
        uint64_t number = base_random_below(&random, 10000);

        CHECK_EQ_INT(table->read(file, number * sizeof page, page, sizeof page, &size), 0);
        CHECK_EQ_U64(size, sizeof page);
        CHECK_EQ_U64(page[4095], number % 251);
    }
    CHECK_EQ_INT(table->close(file), 0);
    tr__sim_disk_destroy(&disk);
}

/* ---- crashes, by hand ------------------------------------------------------------------------ */

TEST(sim_disk, open_files_answer_io_error_after_a_crash)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file;
    char bytes[3];
    size_t size;
    uint64_t length;

    put_file(disk, "a", "abc");
    file = open_file(disk, "a", READ_WRITE);
    tr__sim_disk_crash(disk);
    CHECK_EQ_INT(table->read(file, 0, bytes, 3, &size), TR_EIO);
    CHECK_EQ_INT(table->write(file, 0, "x", 1), TR_EIO);
    CHECK_EQ_INT(table->truncate(file, 0), TR_EIO);
    CHECK_EQ_INT(table->sync(file), TR_EIO);
    CHECK_EQ_INT(table->size(file, &length), TR_EIO);
    CHECK_EQ_INT(table->close(file), 0);
    CHECK_EQ_STR(text_of(disk, "a"), "abc");
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, open_files_can_be_closed_after_the_disk_is_gone)
{
    struct tr__sim_disk *disk = disk_create(1);
    struct tr_file *file = open_file(disk, "a", NEW_FILE), *other = open_file(disk, "b", NEW_FILE);

    tr__sim_disk_destroy(&disk);
    CHECK_EQ_INT(table->write(file, 0, "x", 1), TR_EIO);
    CHECK_EQ_INT(table->close(file), 0);
    CHECK_EQ_INT(table->close(other), 0);
}

TEST(sim_disk, a_write_not_synced_may_survive_whole_torn_or_not_at_all)
{
    static unsigned char old[8 * SECTOR], new[8 * SECTOR], found[8 * SECTOR];
    struct tr__sim_disk *disk = disk_create(check_seed());
    unsigned whole = 0, torn = 0, lost = 0;
    struct tr_file *file;
    size_t size;

    memset(old, 'o', sizeof old);
    memset(new, 'n', sizeof new);
    CHECK_EQ_INT(table->close(open_file(disk, "a", NEW_FILE)), 0);
    CHECK_EQ_INT(table->sync_dir(disk, "a"), 0);
    for (unsigned round = 0; round < 300; round++) {
        unsigned kept = 0;

        file = open_file(disk, "a", READ_WRITE);
        CHECK_EQ_INT(table->write(file, 0, old, sizeof old), 0);
        CHECK_EQ_INT(table->sync(file), 0);
        CHECK_EQ_INT(table->write(file, 0, new, sizeof new), 0);
        tr__sim_disk_crash(disk);
        CHECK_EQ_INT(table->close(file), 0);
        file = open_file(disk, "a", TR_OPEN_READ);
        CHECK_EQ_INT(table->read(file, 0, found, sizeof found, &size), 0);
        CHECK_EQ_U64(size, sizeof found);
        CHECK_EQ_INT(table->close(file), 0);
        for (unsigned i = 0; i < 8; i++) {
            bool is_new = found[i * SECTOR] == 'n';

            CHECK_EQ_INT(memcmp(found + i * SECTOR, is_new ? new : old, SECTOR), 0);
            kept += is_new;
        }
        if (kept == 0)
            lost++;
        else if (kept == 8)
            whole++;
        else
            torn++;
    }
    /* About 100 each. */
    CHECK(whole > 50);
    CHECK(torn > 50);
    CHECK(lost > 50);
    CHECK_EQ_U64(tr__sim_disk_counters(disk)->torn, torn);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, a_later_write_may_survive_an_earlier_one)
{
    struct tr__sim_disk *disk = disk_create(check_seed());
    bool seen[2][2] = { { false, false }, { false, false } };

    for (unsigned round = 0; round < 200; round++) {
        struct tr_file *file;
        const char *text;

        put_file(disk, "a", "--");
        file = open_file(disk, "a", READ_WRITE);
        write_text(file, 0, "1");
        write_text(file, 1, "2");
        tr__sim_disk_crash(disk);
        CHECK_EQ_INT(table->close(file), 0);
        text = text_of(disk, "a");
        CHECK(text[0] == '-' || text[0] == '1');
        CHECK(text[1] == '-' || text[1] == '2');
        seen[text[0] == '1'][text[1] == '2'] = true;
    }
    CHECK(seen[0][0] && seen[0][1] && seen[1][0] && seen[1][1]);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, a_name_not_synced_may_go_and_a_synced_one_stays)
{
    unsigned stayed = 0;

    for (unsigned round = 0; round < 100; round++) {
        struct tr__sim_disk *disk = disk_create(check_seed() + round);
        struct tr_file *file;

        put_file(disk, "d/synced", "s");
        file = open_file(disk, "d/fresh", NEW_FILE);
        write_text(file, 0, "f");
        CHECK_EQ_INT(table->sync(file), 0);
        CHECK_EQ_INT(table->sync_dir(disk, "other/x"), 0);
        tr__sim_disk_crash(disk);
        CHECK_EQ_INT(table->close(file), 0);
        CHECK_EQ_STR(text_of(disk, "d/synced"), "s");
        if (has_name(disk, "d/fresh")) {
            stayed++;
            CHECK_EQ_STR(text_of(disk, "d/fresh"), "f");
        }
        tr__sim_disk_destroy(&disk);
    }
    CHECK(stayed > 20);
    CHECK(stayed < 80);
}

TEST(sim_disk, replacing_by_rename_leaves_the_old_or_the_new)
{
    unsigned renamed = 0;

    for (unsigned round = 0; round < 100; round++) {
        struct tr__sim_disk *disk = disk_create(check_seed() + round);
        const char *text;

        put_file(disk, "d/a", "old");
        put_file(disk, "d/a.new", "new");
        CHECK_EQ_INT(table->rename(disk, "d/a.new", "d/a"), 0);
        if (round % 10 == 0)
            CHECK_EQ_INT(table->sync_dir(disk, "d/a"), 0);
        tr__sim_disk_crash(disk);
        text = text_of(disk, "d/a");
        CHECK(strcmp(text, "old") == 0 || strcmp(text, "new") == 0);
        CHECK_EQ_INT(strcmp(text, "old") == 0, has_name(disk, "d/a.new"));
        renamed += !has_name(disk, "d/a.new");
        if (round % 10 == 0)
            CHECK(!has_name(disk, "d/a.new"));
        tr__sim_disk_destroy(&disk);
    }
    CHECK(renamed > 25);
    CHECK(renamed < 80);
}

TEST(sim_disk, a_rename_across_directories_is_durable_after_either_sync)
{
    for (unsigned round = 0; round < 50; round++) {
        struct tr__sim_disk *disk = disk_create(check_seed() + round);

        put_file(disk, "c/a", "1");
        CHECK_EQ_INT(table->rename(disk, "c/a", "d/a"), 0);
        CHECK_EQ_INT(table->close(open_file(disk, "c/a", NEW_FILE)), 0);
        CHECK_EQ_INT(table->sync_dir(disk, round % 2 == 0 ? "c/" : "d/"), 0);
        tr__sim_disk_crash(disk);
        CHECK_EQ_STR(text_of(disk, "d/a"), "1");
        if (round % 2 == 0)
            CHECK(has_name(disk, "c/a"));
        tr__sim_disk_destroy(&disk);
    }
}

TEST(sim_disk, a_rename_across_directories_takes_only_earlier_operations_along)
{
    unsigned stayed = 0;

    for (unsigned round = 0; round < 50; round++) {
        struct tr__sim_disk *disk = disk_create(check_seed() + round);

        put_file(disk, "c/a", "1");
        CHECK_EQ_INT(table->rename(disk, "c/a", "d/a"), 0);
        CHECK_EQ_INT(table->close(open_file(disk, "e/later", NEW_FILE)), 0);
        CHECK_EQ_INT(table->sync_dir(disk, "d/"), 0);
        tr__sim_disk_crash(disk);
        stayed += has_name(disk, "e/later");
        tr__sim_disk_destroy(&disk);
    }
    CHECK(stayed > 5);
    CHECK(stayed < 45);
}

TEST(sim_disk, what_happens_to_a_name_in_one_crash_does_not_bind_the_next)
{
    struct tr__sim_disk *disk = disk_create(check_seed());
    unsigned moves = 0;

    put_file(disk, "a", "1");
    for (unsigned round = 0; round < 200; round++) {
        bool is_a = has_name(disk, "a");

        CHECK_EQ_INT(table->rename(disk, is_a ? "a" : "b", is_a ? "b" : "a"), 0);
        tr__sim_disk_crash(disk);
        moves += has_name(disk, "a") != is_a;
    }
    CHECK(moves > 50);
    CHECK(moves < 150);
    tr__sim_disk_destroy(&disk);
}

TEST(sim_disk, the_root_and_the_working_directory_are_different)
{
    bool is_lost = false;

    for (unsigned round = 0; round < 50; round++) {
        struct tr__sim_disk *disk = disk_create(check_seed() + round);

        CHECK_EQ_INT(table->close(open_file(disk, "/a", NEW_FILE)), 0);
        CHECK_EQ_INT(table->close(open_file(disk, "b", NEW_FILE)), 0);
        CHECK_EQ_INT(table->sync_dir(disk, "x"), 0);
        tr__sim_disk_crash(disk);
        CHECK(has_name(disk, "b"));
        is_lost |= !has_name(disk, "/a");
        tr__sim_disk_destroy(&disk);
    }
    CHECK(is_lost);
}

/* ---- a model of bytes ------------------------------------------------------------------------ */

#define MODEL_BYTES_MAX ((size_t)24 * 1024)
#define MODEL_CHANGES_MAX 10u
#define WRITE_BYTES_MAX 3000u
#define MODEL_FILES 3u

struct model_change {
    bool is_truncate;
    uint64_t offset, end; /* of a truncate: both are the new size */
    unsigned char bytes[WRITE_BYTES_MAX];
};

struct model {
    unsigned char live[MODEL_BYTES_MAX], durable[MODEL_BYTES_MAX];
    uint64_t live_size, durable_size;
    struct model_change changes[MODEL_CHANGES_MAX];
    unsigned change_count;
};

static void replay(unsigned char *bytes, uint64_t *size, const struct model_change *change)
{
    if (change->is_truncate) {
        if (change->offset < *size)
            memset(bytes + change->offset, 0, *size - change->offset);
        *size = change->offset;
    } else {
        memcpy(bytes + change->offset, change->bytes, change->end - change->offset);
        *size = change->end > *size ? change->end : *size;
    }
}

static void model_check_live(const struct model *model, struct tr_file *file)
{
    static unsigned char found[MODEL_BYTES_MAX + 1];
    size_t size;

    CHECK_EQ_INT(table->read(file, 0, found, sizeof found, &size), 0);
    CHECK_EQ_U64(size, model->live_size);
    CHECK_EQ_U64(size_of(file), model->live_size);
    CHECK_EQ_INT(memcmp(found, model->live, size), 0);
}

static void model_sync(struct model *model)
{
    memcpy(model->durable, model->live, sizeof model->live);
    model->durable_size = model->live_size;
    model->change_count = 0;
}

/* The bytes of one file after a crash, and the choices that the search below assumes. */
struct supposition {
    const struct model *model;
    const unsigned char *found;
    uint64_t size;
    unsigned truncates; /* bit i: change i is a truncate that was kept */
};

/* Whether the sector can look as it does if just these writes were kept in it. *ret_ends says if
 * one of them gives the file its size. */
static bool is_sector_result(
    const struct supposition *s, uint64_t sector, unsigned writes, bool *ret_ends)
{
    unsigned char bytes[SECTOR] = { 0 };
    uint64_t visible = s->size - sector < SECTOR ? s->size - sector : SECTOR;
    const struct model *model = s->model;
    bool is_after_last, ends = false;

    if (model->durable_size > sector) {
        uint64_t part =
            model->durable_size - sector < SECTOR ? model->durable_size - sector : SECTOR;

        memcpy(bytes, model->durable + sector, part);
    }
    for (unsigned i = 0; i < model->change_count; i++) {
        const struct model_change *change = &model->changes[i];
        uint64_t from, end;

        if (s->truncates >> i & 1) {
            if (change->offset < sector + SECTOR) {
                from = change->offset > sector ? change->offset - sector : 0;
                memset(bytes + from, 0, SECTOR - from);
            }
            continue;
        }
        if ((writes >> i & 1) == 0)
            continue;
        from = change->offset > sector ? change->offset : sector;
        end = change->end < sector + SECTOR ? change->end : sector + SECTOR;
        memcpy(bytes + (from - sector), change->bytes + (from - change->offset), end - from);
        is_after_last = s->truncates >> i == 0;
        if (is_after_last && end > s->size)
            return false;
        ends |= is_after_last && end == s->size;
    }
    if (memcmp(bytes, s->found + sector, visible) != 0)
        return false;
    *ret_ends = ends;
    return true;
}

/* Whether some choice of kept and lost writes explains the sector. */
static bool is_sector_possible(const struct supposition *s, uint64_t sector, bool *ret_ends)
{
    const struct model *model = s->model;
    unsigned touching = 0, writes;
    bool is_possible = false, ends;

    for (unsigned i = 0; i < model->change_count; i++) {
        const struct model_change *change = &model->changes[i];

        if (!change->is_truncate && change->offset < sector + SECTOR && change->end > sector)
            touching |= 1u << i;
    }
    writes = touching;
    for (;;) {
        if (is_sector_result(s, sector, writes, &ends)) {
            is_possible = true;
            *ret_ends |= ends;
        }
        if (writes == 0)
            return is_possible;
        writes = (writes - 1) & touching;
    }
}

static bool is_possible_with(const struct supposition *s)
{
    uint64_t base = s->model->durable_size;
    bool ends = false;

    for (unsigned i = 0; i < s->model->change_count; i++) {
        if (s->truncates >> i & 1)
            base = s->model->changes[i].offset;
    }
    if (s->size < base)
        return false;
    for (uint64_t sector = 0; sector < s->size; sector += SECTOR) {
        if (!is_sector_possible(s, sector, &ends))
            return false;
    }
    return s->size == base || ends;
}

/* Exactly what sim_disk.h allows: for one choice of kept truncates, each sector shows its durable
 * bytes with some of the writes over them, in order, and the size is the one those choices give. */
static bool is_possible(const struct model *model, const unsigned char *found, uint64_t size)
{
    struct supposition s = { .model = model, .found = found, .size = size };
    unsigned all = 0;

    for (unsigned i = 0; i < model->change_count; i++) {
        if (model->changes[i].is_truncate)
            all |= 1u << i;
    }
    s.truncates = all;
    for (;;) {
        if (is_possible_with(&s))
            return true;
        if (s.truncates == 0)
            return false;
        s.truncates = (s.truncates - 1) & all;
    }
}

static void model_check_crash(struct model *model, struct tr_file *file, uint64_t *hash)
{
    static unsigned char found[MODEL_BYTES_MAX + 1];
    size_t size;

    CHECK_EQ_INT(table->read(file, 0, found, sizeof found, &size), 0);
    CHECK(size <= MODEL_BYTES_MAX);
    if (model->change_count == 0) {
        CHECK_EQ_U64(size, model->durable_size);
        CHECK_EQ_INT(memcmp(found, model->durable, size), 0);
    }
    CHECK(is_possible(model, found, size));
    for (size_t i = 0; i < size; i++)
        *hash = (*hash ^ found[i]) * 0x100000001b3u;
    memset(model->live, 0, sizeof model->live);
    memcpy(model->live, found, size);
    model->live_size = size;
    model_sync(model);
}

static void random_change(struct model *model, struct tr_file *file, struct base_random *random)
{
    struct model_change *change = &model->changes[model->change_count];
    uint64_t largest = base_random_below(random, 4) == 0 ? WRITE_BYTES_MAX : 700;
    uint64_t size = 1 + base_random_below(random, largest);

    change->is_truncate = base_random_below(random, 5) == 0;
    change->offset = base_random_below(random, MODEL_BYTES_MAX - size);
    /* Often in a small part of the file, so that changes meet. */
    if (base_random_below(random, 2) == 0)
        change->offset %= 2 * SECTOR;
    if (base_random_below(random, 4) == 0)
        change->offset -= change->offset % SECTOR;
    if (change->is_truncate) {
        change->end = change->offset;
        CHECK_EQ_INT(table->truncate(file, change->offset), 0);
        /* To the size it has is no change. */
        if (change->offset == model->live_size)
            return;
    } else {
        change->end = change->offset + size;
        for (uint64_t i = 0; i < size; i++)
            change->bytes[i] = (unsigned char)base_random_next(random);
        CHECK_EQ_INT(table->write(file, change->offset, change->bytes, size), 0);
    }
    replay(model->live, &model->live_size, change);
    model->change_count++;
}

static const char *const model_paths[MODEL_FILES] = { "d/a", "d/b", "d/c" };

/* Hash of what all crashes left. */
static uint64_t run_byte_model(uint64_t seed)
{
    static struct model models[MODEL_FILES];
    struct tr__sim_disk *disk = disk_create(seed);
    struct tr_file *files[MODEL_FILES];
    struct base_random random;
    uint64_t hash = 0;

    memset(models, 0, sizeof models);
    base_random_init(&random, seed);
    for (unsigned i = 0; i < MODEL_FILES; i++)
        files[i] = open_file(disk, model_paths[i], NEW_FILE);
    CHECK_EQ_INT(table->sync_dir(disk, "d/"), 0);
    for (unsigned step = 0; step < 150; step++) {
        unsigned at = (unsigned)base_random_below(&random, MODEL_FILES);
        uint64_t choice = base_random_below(&random, 100);

        if (choice < 12 || models[at].change_count == MODEL_CHANGES_MAX) {
            CHECK_EQ_INT(table->sync(files[at]), 0);
            model_sync(&models[at]);
        } else if (choice < 18) {
            tr__sim_disk_crash(disk);
            for (unsigned i = 0; i < MODEL_FILES; i++) {
                CHECK_EQ_INT(table->close(files[i]), 0);
                files[i] = open_file(disk, model_paths[i], READ_WRITE);
                model_check_crash(&models[i], files[i], &hash);
            }
        } else {
            random_change(&models[at], files[at], &random);
        }
        model_check_live(&models[at], files[at]);
    }
    for (unsigned i = 0; i < MODEL_FILES; i++)
        CHECK_EQ_INT(table->close(files[i]), 0);
    tr__sim_disk_destroy(&disk);
    return hash;
}

TEST_LONG(sim_disk, a_crash_leaves_exactly_what_was_synced_and_a_part_of_what_was_not, 60)
{
    for (uint64_t seed; check_each_seed(&seed, check_is_long() ? 10000 : 300);)
        run_byte_model(seed);
}

TEST(sim_disk, equal_seeds_give_equal_crashes)
{
    for (uint64_t seed; check_each_seed(&seed, 20);) {
        CHECK_EQ_U64(run_byte_model(seed), run_byte_model(seed));
        CHECK(run_byte_model(seed) != run_byte_model(seed + 1));
    }
}

/* ---- a model of names ------------------------------------------------------------------------ */

#define NAMES 6u
#define STATES_MAX 512u

/* Two directories; a file is known by the number in it, 0 is no file. */
static const char *const names[NAMES] = { "c/1", "c/2", "c/3", "d/1", "d/2", "d/3" };

struct name_model {
    unsigned live[NAMES], durable[NAMES];
    unsigned states[NAMES]
                   [STATES_MAX]; /* since the directory was last synced, the first one durable */
    unsigned state_count[NAMES];
    unsigned next_number;
};

static void set_name(struct name_model *model, unsigned at, unsigned number)
{
    model->live[at] = number;
    CHECK(model->state_count[at] < STATES_MAX);
    model->states[at][model->state_count[at]++] = number;
}

static void settle_name(struct name_model *model, unsigned at)
{
    model->durable[at] = model->live[at];
    model->states[at][0] = model->live[at];
    model->state_count[at] = 1;
}

static unsigned number_at(struct tr__sim_disk *disk, unsigned at)
{
    return (unsigned)strtoul(text_of(disk, names[at]), NULL, 10);
}

static void random_name_operation(
    struct name_model *model, struct tr__sim_disk *disk, struct base_random *random)
{
    unsigned at = (unsigned)base_random_below(random, NAMES);
    unsigned to = (unsigned)base_random_below(random, NAMES);
    struct tr_file *file;
    char text[16];
    int rc;

    switch (base_random_below(random, 4)) {
    case 0:
        CHECK_EQ_INT(table->sync_dir(disk, names[at]), 0);
        for (unsigned i = 0; i < NAMES; i++) {
            if (names[i][0] == names[at][0])
                settle_name(model, i);
        }
        break;
    case 1:
        rc = table->remove(disk, names[at]);
        CHECK_EQ_INT(rc, model->live[at] != 0 ? 0 : TR_ENOENT);
        if (rc == 0)
            set_name(model, at, 0);
        break;
    case 2:
        rc = table->rename(disk, names[at], names[to]);
        CHECK_EQ_INT(rc, model->live[at] != 0 ? 0 : TR_ENOENT);
        if (rc == 0 && at != to) {
            set_name(model, to, model->live[at]);
            set_name(model, at, 0);
        }
        break;
    default:
        rc = table->open(disk, names[at], NEW_FILE, &file);
        CHECK_EQ_INT(rc, model->live[at] == 0 ? 0 : TR_EEXIST);
        if (rc < 0)
            break;
        snprintf(text, sizeof text, "%u", ++model->next_number);
        write_text(file, 0, text);
        CHECK_EQ_INT(table->sync(file), 0);
        CHECK_EQ_INT(table->close(file), 0);
        set_name(model, at, model->next_number);
        break;
    }
}

static void check_names_after_crash(struct name_model *model, struct tr__sim_disk *disk)
{
    unsigned found[NAMES];

    for (unsigned i = 0; i < NAMES; i++) {
        bool was_ever = false;

        found[i] = number_at(disk, i);
        for (unsigned j = 0; j < model->state_count[i]; j++)
            was_ever |= model->states[i][j] == found[i];
        CHECK(was_ever);
        for (unsigned j = 0; j < i; j++)
            CHECK(found[i] == 0 || found[i] != found[j]);
    }
    /* A file that was durable and that nobody removed or replaced is still there, under some name.
     */
    for (unsigned i = 0; i < NAMES; i++) {
        for (unsigned j = 0; j < NAMES; j++) {
            bool is_there = false;

            if (model->durable[i] == 0 || model->durable[i] != model->live[j])
                continue;
            for (unsigned k = 0; k < NAMES; k++)
                is_there |= found[k] == model->live[j];
            CHECK(is_there);
        }
    }
    for (unsigned i = 0; i < NAMES; i++) {
        model->live[i] = found[i];
        settle_name(model, i);
    }
}

TEST(sim_disk, names_are_in_a_state_they_had_and_no_file_is_lost_by_a_rename)
{
    static struct name_model model;

    for (uint64_t seed; check_each_seed(&seed, check_is_long() ? 10000 : 300);) {
        struct tr__sim_disk *disk = disk_create(seed);
        struct base_random random;

        memset(&model, 0, sizeof model);
        for (unsigned i = 0; i < NAMES; i++)
            settle_name(&model, i);
        base_random_init(&random, seed);
        for (unsigned step = 0; step < 300; step++) {
            random_name_operation(&model, disk, &random);
            for (unsigned i = 0; i < NAMES; i++)
                CHECK_EQ_INT(number_at(disk, i), model.live[i]);
            if (base_random_below(&random, 20) == 0) {
                tr__sim_disk_crash(disk);
                check_names_after_crash(&model, disk);
            }
        }
        tr__sim_disk_destroy(&disk);
    }
}

/* ---- the real disk as a model ---------------------------------------------------------------- */

#define PAIRS 4u

struct pair {
    const struct tr_disk *disk[2];
    void *data[2];
    struct tr_file *file[2][PAIRS];
    char path[PAIRS][PATH_MAX];
};

static void check_same_content(struct pair *pair, unsigned at)
{
    static unsigned char bytes[2][64 * 1024];
    size_t size[2];

    for (unsigned i = 0; i < 2; i++)
        CHECK_EQ_INT(
            pair->disk[i]->read(pair->file[i][at], 0, bytes[i], sizeof bytes[i], &size[i]), 0);
    CHECK_EQ_U64(size[0], size[1]);
    CHECK_EQ_INT(memcmp(bytes[0], bytes[1], size[0]), 0);
}

static void close_pair(struct pair *pair, unsigned at)
{
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ_INT(pair->disk[i]->close(pair->file[i][at]), 0);
        pair->file[i][at] = NULL;
    }
}

static void random_name_pair(struct pair *pair, unsigned at, struct base_random *random)
{
    static const unsigned flags[] = { READ_WRITE, READ_WRITE | TR_OPEN_CREATE, NEW_FILE,
        READ_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE, READ_WRITE | TR_OPEN_TRUNCATE };
    unsigned to = (unsigned)base_random_below(random, PAIRS);
    uint64_t kind = base_random_below(random, 4);
    unsigned flag = flags[base_random_below(random, 5)];
    int rc[2] = { 0 }, exists[2];

    for (unsigned i = 0; i < 2; i++) {
        const struct tr_disk *disk = pair->disk[i];

        if (kind == 0)
            rc[i] = disk->remove(pair->data[i], pair->path[at]);
        else if (kind == 1)
            rc[i] = disk->rename(pair->data[i], pair->path[at], pair->path[to]);
        else if (pair->file[i][at] == NULL)
            rc[i] = disk->open(pair->data[i], pair->path[at], flag, &pair->file[i][at]);
        CHECK_EQ_INT(disk->exists(pair->data[i], pair->path[to], &exists[i]), 0);
    }
    CHECK_EQ_INT(rc[0], rc[1]);
    CHECK_EQ_INT(exists[0], exists[1]);
}

static void random_byte_pair(struct pair *pair, unsigned at, struct base_random *random)
{
    uint64_t kind = base_random_below(random, 5), offset = base_random_below(random, 20000);
    size_t size = (size_t)base_random_below(random, 9000);
    static unsigned char bytes[9000];

    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)base_random_next(random);
    if (kind == 0) {
        close_pair(pair, at);
        return;
    }
    for (unsigned i = 0; i < 2; i++) {
        struct tr_file *file = pair->file[i][at];

        if (kind == 1)
            CHECK_EQ_INT(pair->disk[i]->truncate(file, offset), 0);
        else
            CHECK_EQ_INT(pair->disk[i]->write(file, offset, bytes, size), 0);
    }
    check_same_content(pair, at);
}

TEST(sim_disk, answers_like_a_real_disk)
{
    const char *tmp = getenv("TMPDIR");
    char dir[PATH_MAX - 16];

    snprintf(dir, sizeof dir, "%s/troupe-disk-XXXXXX", tmp != NULL ? tmp : "/tmp");
    CHECK(mkdtemp(dir) != NULL);
    for (uint64_t seed; check_each_seed(&seed, 30);) {
        struct tr__sim_disk *sim = disk_create(seed);
        struct pair pair = { .disk = { table, tr_env_real()->disk }, .data = { sim, NULL } };
        struct base_random random;

        base_random_init(&random, seed);
        for (unsigned i = 0; i < PAIRS; i++)
            snprintf(pair.path[i], sizeof pair.path[i], "%s/%u", dir, i);
        for (unsigned step = 0; step < 300; step++) {
            unsigned at = (unsigned)base_random_below(&random, PAIRS);

            if (pair.file[0][at] != NULL && base_random_below(&random, 3) != 0)
                random_byte_pair(&pair, at, &random);
            else
                random_name_pair(&pair, at, &random);
        }
        for (unsigned i = 0; i < PAIRS; i++) {
            if (pair.file[0][i] != NULL)
                close_pair(&pair, i);
            (void)unlink(pair.path[i]);
        }
        tr__sim_disk_destroy(&sim);
    }
    CHECK_EQ_INT(rmdir(dir), 0);
}

/* ---- every allocation ------------------------------------------------------------------------ */

/* One kind of call, numbered; the same every time for the same state of the disk. */
static int call_number(
    unsigned number, struct tr__sim_disk *disk, struct tr_file *file, struct tr_file **ret_file)
{
    static const unsigned char bytes[9000] = { 1 };

    switch (number) {
    case 0:
        return table->open(disk, "d/new", NEW_FILE, ret_file);
    case 1:
        return table->open(disk, "d/a", READ_WRITE | TR_OPEN_TRUNCATE, ret_file);
    case 2:
        return table->write(file, 300, bytes, sizeof bytes);
    case 3:
        return table->write(file, 100000, bytes, 10);
    case 4:
        return table->truncate(file, 3);
    case 5:
        return table->remove(disk, "d/a");
    default:
        return table->rename(disk, "d/a", "d/b");
    }
}

TEST(sim_disk, a_call_without_memory_changes_nothing)
{
    unsigned failed = 0;

    for (unsigned number = 0; number < 7; number++) {
        uint64_t countdown = 0;
        int rc = TR_ENOMEM;

        while (rc < 0) {
            struct tr__sim_disk *disk = disk_create(1);
            struct tr_file *file, *opened = NULL;

            put_file(disk, "d/a", "abcdef");
            file = open_file(disk, "d/a", READ_WRITE);
            base_fault_countdown(++countdown, 1);
            rc = call_number(number, disk, file, &opened);
            base_fault_countdown(0, 0);
            if (rc < 0) {
                failed++;
                CHECK_EQ_INT(rc, TR_ENOMEM);
                CHECK(opened == NULL);
                CHECK_EQ_STR(text_of(disk, "d/a"), "abcdef");
                CHECK(!has_name(disk, "d/new"));
                CHECK(!has_name(disk, "d/b"));
                CHECK_EQ_U64(tr__sim_disk_bytes(disk), 6);
                /* Nothing is left to be made durable or to be lost either. */
                CHECK_EQ_INT(table->sync(file), 0);
                tr__sim_disk_crash(disk);
                CHECK_EQ_STR(text_of(disk, "d/a"), "abcdef");
                CHECK_EQ_U64(tr__sim_disk_counters(disk)->lost, 0);
                CHECK_EQ_U64(tr__sim_disk_counters(disk)->kept, 0);
            }
            if (opened != NULL)
                CHECK_EQ_INT(table->close(opened), 0);
            CHECK_EQ_INT(table->close(file), 0);
            tr__sim_disk_destroy(&disk);
        }
    }
    CHECK(failed > 15);
}

TEST(sim_disk, a_crash_without_memory_only_loses_more)
{
    static unsigned char bytes[20000], found[20000];

    memset(bytes, 'n', sizeof bytes);
    for (uint64_t seed; check_each_seed(&seed, 50);) {
        struct tr__sim_disk *disk = disk_create(seed);
        struct tr_file *file;
        size_t size;

        put_file(disk, "a", "old");
        file = open_file(disk, "a", READ_WRITE);
        CHECK_EQ_INT(table->write(file, 8192, bytes, sizeof bytes), 0);
        base_fault_countdown(1, UINT64_MAX);
        tr__sim_disk_crash(disk);
        base_fault_countdown(0, 0);
        CHECK_EQ_INT(table->close(file), 0);
        file = open_file(disk, "a", TR_OPEN_READ);
        CHECK_EQ_INT(table->read(file, 0, found, sizeof found, &size), 0);
        CHECK_EQ_U64(size, 3);
        CHECK_EQ_INT(memcmp(found, "old", 3), 0);
        CHECK_EQ_INT(table->close(file), 0);
        tr__sim_disk_destroy(&disk);
    }
}
