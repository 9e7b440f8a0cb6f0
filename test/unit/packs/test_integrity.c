/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "objects_site.h"
#include "services/packs/integrity.h"
#include "support/metric.h"
#include "tree.h"

enum { SIZE = 1 << 20 };

/* ---- a cache, and an actor that looks into it ----------------------------------------------- */

struct looker {
    struct integrity *integrity;
};

static enum tr_next looker_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct looker *looker = state;
    struct pinned_file *pinned = integrity_warm(looker->integrity, message);

    (void)tr_reply(ctx, 0, &pinned, sizeof pinned);
    return TR_GO;
}

static const struct tr_type looker_type = { .name = "looker",
    .message_size = sizeof(struct hash_file),
    .state_size = sizeof(struct looker),
    .handle = looker_handle };

static struct {
    struct objects_site files;
    struct tr_system *system;
    struct integrity *integrity;
    tr_sender looker;
    tr_sender supervisor;
} site;

static void site_open(const struct integrity_options *options, uint32_t threads)
{
    struct integrity_options mine = *options;

    objects_site_open(&site.files);
    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 2, .blocking_threads = threads, .quiet = true },
            &site.system),
        0);
    if (mine.source.open == NULL)
        mine.source = hash_source_of(site.files.objects);
    mine.supervisor = site.supervisor = tree_create(site.system);
    CHECK_EQ_INT(integrity_start(site.system, &mine, &site.integrity), 0);
    CHECK_EQ_INT(
        tr_spawn(site.system, &looker_type, &(struct looker){ site.integrity }, NULL, &site.looker),
        0);
}

static void site_close(void)
{
    tr_sender_drop(&site.looker);
    integrity_stop(&site.integrity);
    tr_sender_drop(&site.supervisor);
    tr_system_destroy(&site.system);
    objects_site_close(&site.files);
}

struct object {
    struct hash_file file;
    unsigned char *bytes;
    size_t size;
    char hex[65], path[256];
};

static void object_make(struct object *object, uint64_t seed, size_t size)
{
    object->file =
        (struct hash_file){ .key = integrity_key((int64_t)seed, PACK_IDENTITY), .size = size };
    object->bytes = make_bytes(seed, size);
    object->size = size;
    digest_of(object->bytes, size, object->file.sha256, object->hex);
    object_path(&site.files, object->hex, object->path);
    put_file(object->path, object->bytes, size);
}

static struct tr_future *query_later(const struct object *object)
{
    struct tr_future *future;

    CHECK_EQ_INT(tr_single_flight_future(integrity_flight(site.integrity), &object->file,
                     sizeof object->file, 0, &future),
        0);
    return future;
}

/* One waiter too many is told to come again, as download.c does. */
static enum pack_verdict answer(struct tr_future **future)
{
    enum pack_verdict verdict = PACK_UNSETTLED;
    int rc = tr_future_wait(*future, &verdict, sizeof verdict, NULL, TR_SECONDS(15));

    CHECK(rc == 0 || rc == TR_EFULL);
    tr_future_drop(future);
    return rc == 0 ? verdict : PACK_BUSY;
}

static enum pack_verdict query(const struct object *object)
{
    struct tr_future *future = query_later(object);

    return answer(&future);
}

/* A reference, or NULL. */
static struct pinned_file *look(const struct object *object)
{
    struct pinned_file *pinned = NULL;

    CHECK_EQ_INT(tr_ask_wait(site.looker, &object->file, sizeof object->file, &pinned,
                     sizeof pinned, TR_SECONDS(15)),
        0);
    return pinned;
}

static bool is_warm(const struct object *object)
{
    struct pinned_file *pinned = look(object);

    pinned_unref(pinned);
    return pinned != NULL;
}

static int64_t hashes(void)
{
    return metric_get(&hasher_metrics[HASHES]);
}

/* ---- a source that stops in the middle ------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_shut;
    int reads, allowed;        /* reads that came to the gate; how many of them may pass, if shut */
    int reading, reading_most; /* at the gate */
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static int gated_open(
    const struct objects *objects, const char *hex, int *ret_fd, struct file_identity *ret)
{
    (void)objects;
    return objects_open_file(site.files.objects, hex, ret_fd, ret);
}

static int gated_read(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret)
{
    int number;

    pthread_mutex_lock(&gate.lock);
    number = ++gate.reads;
    gate.reading++;
    if (gate.reading > gate.reading_most)
        gate.reading_most = gate.reading;
    pthread_cond_broadcast(&gate.changed);
    while (gate.is_shut && number > gate.allowed)
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.reading--;
    pthread_mutex_unlock(&gate.lock);
    return file_read(fd, offset, bytes, size, ret);
}

static const struct hash_source gated_source = {
    .open = gated_open, .identify = file_identify, .read = gated_read, .close = close
};

static void gate_set(bool is_shut)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_shut = is_shut;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Shut, but for those that came first. */
static void gate_let(int allowed)
{
    pthread_mutex_lock(&gate.lock);
    gate.allowed = allowed;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Until so many stand at the gate. */
static void gate_wait(int count)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.reading < count)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* Until so many have come to the gate, from the beginning. */
static void gate_wait_reads(int count)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.reads < count)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static int gate_reads(void)
{
    int reads;

    pthread_mutex_lock(&gate.lock);
    reads = gate.reads;
    pthread_mutex_unlock(&gate.lock);
    return reads;
}

/* ---- metrics of the cache ------------------------------------------------------------------- */

static int64_t figure(const char *name)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0)
            return metric_get(metric);
    check_fail(__FILE__, __LINE__, "there is no metric %s", name);
    return -1;
}

static void wait_for_figure(const char *name, int64_t value)
{
    for (int i = 0; figure(name) != value; i++) {
        CHECK_MSG(i < 15000, "%s is %lld", name, (long long)figure(name));
        poll(NULL, 0, 1);
    }
}

struct seen {
    const char *type;
    uint64_t id;
};

static bool see(void *data, const struct tr_actor_info *info)
{
    struct seen *seen = data;

    if (strcmp(info->type, seen->type) == 0)
        seen->id = info->id;
    return seen->id == 0;
}

/* The line that the one actor of a type shows. */
static void show(const char *type, char *text, size_t size)
{
    struct seen seen = { .type = type };

    tr_inspect(site.system, see, &seen);
    CHECK_MSG(seen.id != 0, "there is no %s", type);
    CHECK_EQ_INT(tr_inspect_show(site.system, seen.id, text, size, TR_SECONDS(15)), 0);
}

/* ---- single flight -------------------------------------------------------------------------- */

TEST_LONG(integrity, thousand_askers_cost_one_hash, 60)
{
    enum { ASKERS = 1000 };
    static struct tr_future *futures[ASKERS];
    struct object object;

    site_open(&(struct integrity_options){ .source = gated_source }, 2);
    object_make(&object, 1, SIZE);
    gate_set(true);
    for (int i = 0; i < ASKERS; i++)
        futures[i] = query_later(&object);
    gate_wait(1);
    gate_set(false);
    for (int i = 0; i < ASKERS; i++)
        CHECK_EQ_INT(answer(&futures[i]), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 1);
    CHECK(is_warm(&object));
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 1);
    free(object.bytes);
    site_close();
}

TEST(integrity, no_more_files_are_hashed_at_once_than_allowed)
{
    enum { FILES = 7, LIMIT = 3 };
    struct object known, objects[FILES];
    struct tr_future *futures[FILES];

    site_open(&(struct integrity_options){ .source = gated_source, .hashes_max = LIMIT }, 8);
    object_make(&known, 100, 1000);
    CHECK_EQ_INT(query(&known), PACK_VERIFIED);
    wait_for_figure("troupe_pack_hashes_in_flight", 0);
    gate_set(true);
    for (int i = 0; i < FILES; i++) {
        object_make(&objects[i], (uint64_t)i + 1, 1000);
        futures[i] = query_later(&objects[i]);
    }
    gate_wait(LIMIT);
    /* This answer comes after the cache has seen all the other questions. */
    CHECK_EQ_INT(query(&known), PACK_VERIFIED);
    CHECK_EQ_INT(figure("troupe_pack_hashes_in_flight"), LIMIT);
    CHECK_EQ_INT(gate_reads(), 1 + LIMIT);
    gate_set(false);
    for (int i = 0; i < FILES; i++) {
        CHECK_EQ_INT(answer(&futures[i]), PACK_VERIFIED);
        free(objects[i].bytes);
    }
    CHECK_EQ_INT(gate.reading_most, LIMIT);
    CHECK_EQ_INT(hashes(), 1 + FILES);
    free(known.bytes);
    site_close();
}

/* ---- invalidation --------------------------------------------------------------------------- */

static int clear(void)
{
    struct integrity_message message = { .kind = INTEGRITY_CLEAR };

    return tr_tell(integrity_sender(site.integrity), &message, sizeof message);
}

TEST(integrity, invalidated_file_is_hashed_again)
{
    struct object object, other;

    site_open(&(struct integrity_options){ 0 }, 2);
    object_make(&object, 5, SIZE);
    object_make(&other, 6, SIZE);
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK_EQ_INT(query(&other), PACK_VERIFIED);
    CHECK_EQ_INT(integrity_invalidate(site.integrity, 5), 0);
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 3);
    CHECK(is_warm(&other));
    CHECK_EQ_INT(clear(), 0);
    CHECK_EQ_INT(query(&other), PACK_VERIFIED);
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 5);
    free(object.bytes);
    free(other.bytes);
    site_close();
}

static void check_late_insert(bool is_clear)
{
    struct tr_future *before, *after;
    struct object object;

    site_open(&(struct integrity_options){ .source = gated_source }, 4);
    object_make(&object, 9, SIZE);
    gate_set(true);
    before = query_later(&object);
    gate_wait(1);
    CHECK_EQ_INT(is_clear ? clear() : integrity_invalidate(site.integrity, 9), 0);
    after = query_later(&object);
    gate_wait(2); /* the second has begun while the first is under way */
    gate_let(1);
    /* The first has told: nobody is answered by it, nothing is warm. */
    wait_for_figure("troupe_pack_late_inserts_total", 1);
    CHECK(!tr_future_is_ended(before) && !tr_future_is_ended(after));
    CHECK(!is_warm(&object));
    gate_set(false);
    CHECK_EQ_INT(answer(&before), PACK_VERIFIED);
    CHECK_EQ_INT(answer(&after), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 2);
    wait_for_figure("troupe_pack_hashes_in_flight", 0);
    CHECK_EQ_INT(figure("troupe_pack_late_inserts_total"), 1);
    free(object.bytes);
    site_close();
}

TEST(integrity, hash_from_before_an_invalidate_is_ignored_and_who_waited_is_answered)
{
    check_late_insert(false);
}

TEST(integrity, hash_from_before_a_clear_is_ignored_and_who_waited_is_answered)
{
    check_late_insert(true);
}

/* ---- files that change ---------------------------------------------------------------------- */

enum change {
    CHANGE_WRITE, /* one byte, in place */
    CHANGE_TRUNCATE,
    CHANGE_APPEND,
    CHANGE_REPLACE, /* other bytes renamed over it */
    CHANGE_SAME,    /* the same bytes renamed over it */
    CHANGE_UNLINK,
    CHANGE_MODE,
    CHANGES,
};

static void change(const struct object *object, enum change change, uint64_t where)
{
    unsigned char *other = NULL;
    int fd;

    switch (change) {
    case CHANGE_WRITE:
    case CHANGE_TRUNCATE:
    case CHANGE_APPEND:
        CHECK_EQ_INT(chmod(object->path, 0640), 0);
        fd = open(object->path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0);
        if (change == CHANGE_WRITE) {
            unsigned char byte = (unsigned char)(object->bytes[where] ^ 1);

            CHECK_EQ_INT(pwrite(fd, &byte, 1, (off_t)where), 1);
        } else {
            CHECK_EQ_INT(ftruncate(fd,
                             (off_t)(change == CHANGE_TRUNCATE ? where : object->size + where + 1)),
                0);
        }
        close(fd);
        break;
    case CHANGE_REPLACE:
        other = make_bytes(where + 1000, object->size);
        put_file(object->path, other, object->size);
        free(other);
        break;
    case CHANGE_SAME:
        put_file(object->path, object->bytes, object->size);
        break;
    case CHANGE_UNLINK:
        CHECK_EQ_INT(unlink(object->path), 0);
        break;
    case CHANGE_MODE:
        CHECK_EQ_INT(chmod(object->path, 0), 0);
        break;
    case CHANGES:
        break;
    }
}

/* As root a file of mode 0 is read all the same. */
static enum pack_verdict expected(enum change change)
{
    switch (change) {
    case CHANGE_SAME:
        return PACK_VERIFIED;
    case CHANGE_MODE:
        return geteuid() == 0 ? PACK_VERIFIED : PACK_UNREADABLE;
    case CHANGE_UNLINK:
        return PACK_MISSING;
    case CHANGE_WRITE:
    case CHANGE_TRUNCATE:
    case CHANGE_APPEND:
    case CHANGE_REPLACE:
    case CHANGES:
        break;
    }
    return PACK_DAMAGED;
}

TEST(integrity, file_that_changes_is_cold_at_once_and_verified_again)
{
    struct object object;

    site_open(&(struct integrity_options){ 0 }, 2);
    object_make(&object, 3, SIZE);
    for (int i = 0; i < CHANGES; i++) {
        put_file(object.path, object.bytes, object.size);
        CHECK_EQ_INT(query(&object), PACK_VERIFIED);
        CHECK(is_warm(&object));
        change(&object, (enum change)i, 12345);
        CHECK_MSG(!is_warm(&object), "change %d is not seen", i);
        CHECK_MSG(query(&object) == expected((enum change)i), "change %d", i);
        CHECK_EQ_INT(is_warm(&object), expected((enum change)i) == PACK_VERIFIED);
        CHECK_EQ_INT(figure("troupe_pack_pinned_files"), expected((enum change)i) == PACK_VERIFIED);
    }
    free(object.bytes);
    site_close();
}

TEST(integrity, damaged_file_is_hashed_once_until_it_changes)
{
    struct object object;

    site_open(&(struct integrity_options){ 0 }, 2);
    object_make(&object, 3, SIZE);
    change(&object, CHANGE_WRITE, 5);
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(query(&object), PACK_DAMAGED);
    CHECK_EQ_INT(hashes(), 1);
    put_file(object.path, object.bytes, object.size);
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 2);
    free(object.bytes);
    site_close();
}

/* ---- swapped while it is hashed ------------------------------------------------------------- */

enum { SWAPPERS = 16 };

/* A thread changes its file in the middle of its hash. */
static struct swap {
    struct object object;
    enum change change;
    uint64_t where;
    _Atomic bool is_due; /* the next read changes the file between its halves */
    pthread_t thread;
    int rounds;
} swaps[SWAPPERS];

static _Atomic int swapped[CHANGES]; /* how often */

static _Thread_local struct swap *hashing; /* on the blocking pool: the swap whose file is open */

static int swapped_open(
    const struct objects *objects, const char *hex, int *ret_fd, struct file_identity *ret)
{
    (void)objects;
    hashing = NULL;
    for (int i = 0; i < SWAPPERS; i++)
        if (strcmp(swaps[i].object.hex, hex) == 0)
            hashing = &swaps[i];
    return objects_open_file(site.files.objects, hex, ret_fd, ret);
}

/* The first half as it was, then the change, then the rest as it is: a file in one read, so every
 * hash is of a file that changes under it. */
static int swapped_read(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret)
{
    size_t first = 0, rest = 0;
    int rc = 0;

    if (hashing != NULL && atomic_exchange(&hashing->is_due, false)) {
        rc = file_read(fd, offset, bytes, size / 2, &first);
        CHECK(rc == 0 && first == size / 2);
        change(&hashing->object, hashing->change, hashing->where);
        atomic_fetch_add(&swapped[hashing->change], 1);
    }
    rc = file_read(fd, offset + first, (char *)bytes + first, size - first, &rest);
    *ret = first + rest;
    return rc;
}

static const struct hash_source swapped_source = {
    .open = swapped_open, .identify = file_identify, .read = swapped_read, .close = close
};

/* A warm file has all of the right bytes. */
static void check_served(const struct object *object)
{
    struct pinned_file *pinned = look(object);
    unsigned char *bytes;

    if (pinned == NULL)
        return;
    bytes = malloc(object->size + 1);
    CHECK(bytes != NULL);
    CHECK_EQ_INT(pread(pinned->fd, bytes, object->size + 1, 0), (ssize_t)object->size);
    CHECK_MSG(memcmp(bytes, object->bytes, object->size) == 0, "wrong bytes are warm");
    if (pinned->bytes != NULL)
        CHECK(memcmp(http_frame_at(pinned->bytes), object->bytes, object->size) == 0);
    free(bytes);
    pinned_unref(pinned);
}

static void *swap_run(void *data)
{
    struct swap *swap = data;
    uint64_t x = (uint64_t)(swap - swaps) + check_seed() * 64 + 1;

    for (int i = 0; i < swap->rounds; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        put_file(swap->object.path, swap->object.bytes, swap->object.size);
        swap->change = (enum change)((x >> 33) % CHANGES);
        swap->where = (x >> 40) % swap->object.size;
        atomic_store(&swap->is_due, true);
        /* The changed file was read again: the verdict is about the file as it is now. */
        CHECK_MSG(query(&swap->object) == expected(swap->change), "change %d", swap->change);
        check_served(&swap->object);
    }
    return NULL;
}

TEST_LONG(integrity, file_swapped_while_it_is_hashed_is_never_verified_wrongly, 120)
{
    int rounds = (int)check_rounds(1000, 10000), total = 0;

    site_open(
        &(struct integrity_options){ .source = swapped_source, .hashes_max = SWAPPERS }, SWAPPERS);
    for (int i = 0; i < SWAPPERS; i++) {
        object_make(&swaps[i].object, (uint64_t)i + 100, i % 4 == 0 ? 50000 : SIZE + (size_t)i);
        swaps[i].rounds = rounds / SWAPPERS + 1;
        atomic_init(&swaps[i].is_due, false);
    }
    for (int i = 0; i < SWAPPERS; i++)
        CHECK_EQ_INT(pthread_create(&swaps[i].thread, NULL, swap_run, &swaps[i]), 0);
    for (int i = 0; i < SWAPPERS; i++)
        pthread_join(swaps[i].thread, NULL);
    for (int i = 0; i < CHANGES; i++) {
        CHECK_MSG(atomic_load(&swapped[i]) > 0, "no file was changed by %d", i);
        total += atomic_load(&swapped[i]);
    }
    printf(
        "%d files changed in the middle of their hash, %lld hashes\n", total, (long long)hashes());
    CHECK(total >= rounds);
    CHECK(hashes() >= total);
    site_close();
    for (int i = 0; i < SWAPPERS; i++)
        free(swaps[i].object.bytes);
}

/* ---- nobody waits --------------------------------------------------------------------------- */

TEST(integrity, hash_that_nobody_waits_for_ends)
{
    struct tr_future *future;
    struct object object;
    char text[256] = "";

    site_open(&(struct integrity_options){ .source = gated_source }, 2);
    object_make(&object, 3, 64 << 20); /* many reads */
    gate_set(true);
    future = query_later(&object);
    gate_wait(1);
    tr_future_drop(&future); /* cancels it */
    /* The cache notices, while the hash still stands at its first read. */
    for (int i = 0; strstr(text, "bytes hashed, cancelled") == NULL; i++) {
        CHECK_MSG(i < 15000, "%s", text);
        poll(NULL, 0, 1);
        show("integrity", text, sizeof text);
    }
    CHECK_EQ_INT(figure("troupe_pack_hashes_in_flight"), 1);
    gate_set(false);
    wait_for_figure("troupe_pack_hashes_in_flight", 0);
    CHECK_EQ_INT(gate_reads(), 1); /* it did not go on */
    CHECK(!is_warm(&object));
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK_EQ_INT(hashes(), 2);
    free(object.bytes);
    site_close();
}

/* ---- progress ------------------------------------------------------------------------------- */

TEST(integrity, progress_of_a_hash_is_seen_while_it_runs)
{
    enum { READ = 2 << 20, LONG = 5 << 20 };
    struct tr_future *future;
    struct object object;
    char text[256];

    site_open(&(struct integrity_options){ .source = gated_source }, 2);
    object_make(&object, 3, LONG);
    gate_set(true);
    future = query_later(&object);
    for (int done = 0; done < 3; done++) {
        char expected_text[256];

        gate_let(done);
        gate_wait_reads(done + 1); /* between two reads */
        CHECK_EQ_INT(metric_get(&hasher_metrics[HASHED_BYTES]), (int64_t)done * READ);
        snprintf(expected_text, sizeof expected_text,
            "0 files open, 0 known to be bad, 1 being hashed; %s: %d of %d bytes hashed",
            object.hex, done * READ, LONG);
        show("integrity", text, sizeof text);
        CHECK_EQ_STR(text, expected_text);
    }
    gate_set(false);
    CHECK_EQ_INT(answer(&future), PACK_VERIFIED);
    CHECK_EQ_INT(metric_get(&hasher_metrics[HASHED_BYTES]), LONG);
    free(object.bytes);
    site_close();
}

/* ---- a disk that fails ---------------------------------------------------------------------- */

static _Atomic int failing_read; /* counts down; the one that makes it 0 fails */

static int failing_source_read(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret)
{
    if (atomic_fetch_sub(&failing_read, 1) == 1)
        return TR_EIO;
    return file_read(fd, offset, bytes, size, ret);
}

static const struct hash_source failing_source = {
    .open = gated_open, .identify = file_identify, .read = failing_source_read, .close = close
};

TEST(integrity, file_of_which_a_read_fails_is_unreadable_until_it_is_read)
{
    struct object object;

    site_open(&(struct integrity_options){ .source = failing_source }, 2);
    object_make(&object, 3, 5 << 20);
    for (int read = 1; read <= 3; read++) {
        atomic_store(&failing_read, read);
        CHECK_EQ_INT(query(&object), PACK_UNREADABLE);
        CHECK(!is_warm(&object));
        CHECK_EQ_INT(atomic_load(&failing_read), 0); /* not one more after it */
    }
    CHECK_EQ_INT(figure("troupe_pack_damaged_total"), 3);
    CHECK_EQ_INT(query(&object), PACK_VERIFIED); /* it was not the file */
    CHECK(is_warm(&object));
    free(object.bytes);
    site_close();
}

/* ---- bounds --------------------------------------------------------------------------------- */

TEST(integrity, number_of_open_files_is_bounded)
{
    enum { FILES = 12, LIMIT = 4 };
    struct object objects[FILES];
    int warm = 0;

    site_open(&(struct integrity_options){ .pinned_max = LIMIT }, 2);
    for (int i = 0; i < FILES; i++) {
        object_make(&objects[i], (uint64_t)i + 1, 1000);
        CHECK_EQ_INT(query(&objects[i]), PACK_VERIFIED);
        CHECK(is_warm(&objects[i]) || i >= LIMIT);
    }
    for (int i = 0; i < FILES; i++)
        warm += is_warm(&objects[i]);
    CHECK_EQ_INT(warm, LIMIT);
    for (int i = 0; i < FILES; i++) {
        CHECK_EQ_INT(query(&objects[i]), PACK_VERIFIED);
        free(objects[i].bytes);
    }
    site_close();
}

TEST(integrity, too_many_waiters_are_told_so)
{
    struct tr_future *futures[5];
    struct object object;
    int busy = 0;

    site_open(&(struct integrity_options){ .source = gated_source, .waiters_max = 3 }, 2);
    object_make(&object, 3, 1000);
    gate_set(true);
    for (int i = 0; i < 5; i++)
        futures[i] = query_later(&object);
    gate_wait(1);
    CHECK_EQ_INT(query(&object), PACK_BUSY);
    gate_set(false);
    for (int i = 0; i < 5; i++)
        busy += answer(&futures[i]) == PACK_BUSY;
    CHECK_EQ_INT(busy, 2);
    free(object.bytes);
    site_close();
}

/* Fail call 1, 2, 3 and so on until the run passes untouched: every question is answered. */
TEST_LONG(integrity, every_question_is_answered_when_memory_runs_out, 120)
{
    struct object object;
    uint64_t countdown = 0;
    bool is_done = false;

    site_open(&(struct integrity_options){ 0 }, 2);
    object_make(&object, 3, 20000);
    while (!is_done) {
        enum pack_verdict verdict = PACK_BUSY;
        int rc;

        countdown++;
        (void)integrity_invalidate(site.integrity, 3);
        (void)base_fault_countdown(countdown, 1);
        rc = tr_single_flight_wait(integrity_flight(site.integrity), &object.file,
            sizeof object.file, &verdict, sizeof verdict, NULL, TR_SECONDS(15));
        is_done = base_fault_countdown(0, 0) < countdown;
        CHECK_MSG(
            rc != TR_ETIMEOUT, "no answer when call %llu fails", (unsigned long long)countdown);
        CHECK(countdown < 500);
    }
    CHECK_EQ_INT(query(&object), PACK_VERIFIED);
    CHECK(countdown > 10);
    free(object.bytes);
    site_close();
}
