/* SPDX-License-Identifier: Apache-2.0 */
/* sim_packs.c: the cache of verified files, with a flight that is killed, a cache that is killed,
 * files that change at any time, questions that are given up, invalidations. Checked:
 *
 *   answered  every question ends, also when an actor died; with a verdict, unless one died
 *   single    a file is hashed once, and once more for each event that makes the known digest void
 *   true      a warm file has the right bytes
 *   fresh     a file that is warm after the answer to an Invalidate or Clear was opened after that
 *             message was sent */
#include <fcntl.h>

#include "crypto/digest.h"
#include "scenario.h"
#include "services/packs/integrity.h"
#include "support/log.h"
#include "support/metric.h"
#include "tree.h"

enum { VERSIONS = 3, CLIENTS_MAX = 6, INODES_MAX = 4000, OPEN_MAX = 20000, SIZE = 200 };

static const uint64_t tick_ns = 10 * MS; /* of the times of files */

struct inode {
    bool is_right;
    uint64_t size;
    int64_t changed_ns;
};

static struct {
    struct scenario s;
    struct integrity *integrity;
    tr_sender supervisor;
    uint32_t clients;
    tr_sender senders[CLIENTS_MAX];
    uint32_t left[CLIENTS_MAX]; /* actions */
    uint32_t open[CLIENTS_MAX]; /* questions not answered */
    bool changes, kills, cache_kills, gives_up, invalidates;
    /* the disk */
    struct inode inodes[INODES_MAX];
    uint32_t inode_count;
    uint32_t file[VERSIONS];          /* its inode; 0: there is none */
    uint32_t opened[OPEN_MAX];        /* descriptor to inode */
    uint32_t opened_serial[OPEN_MAX]; /* when: also the number of opens so far */
    bool is_stale[OPEN_MAX];          /* invalidated while it was hashed */
    uint32_t open_count, closed_count;
    /* the facts */
    struct hash_file files[VERSIONS];
    uint32_t hashes[VERSIONS], reasons[VERSIONS];
    uint32_t fresh_from[VERSIONS]; /* serials up to this one are void */
} now;

static struct {
    uint64_t seeds, verified, damaged, warm, killed, cache_killed, gave_up, invalidated, late, busy,
        changed_under;
} seen;

/* ---- the disk ------------------------------------------------------------------------------- */

static void bytes_of(uint32_t version, bool is_right, char bytes[SIZE])
{
    memset(bytes, (int)('a' + version), SIZE);
    if (!is_right)
        bytes[SIZE / 2] = '!';
}

static int64_t file_time(void)
{
    const struct tr_env *env = tr_system_env(now.s.system);

    return (int64_t)(env->wall_ns(env->data) / tick_ns * tick_ns);
}

static uint32_t inode_new(bool is_right)
{
    uint32_t inode = ++now.inode_count;

    CHECK(inode < INODES_MAX);
    now.inodes[inode] =
        (struct inode){ .is_right = is_right, .size = SIZE, .changed_ns = file_time() };
    return inode;
}

/* Another file in its place, or other bytes in the same one. */
static void change_file(uint32_t version, uint64_t how)
{
    struct inode *inode = &now.inodes[now.file[version]];

    now.reasons[version]++;
    switch (how % 4) {
    case 0: /* in place */
        if (now.file[version] != 0) {
            inode->is_right = !inode->is_right;
            inode->changed_ns = file_time();
        }
        break;
    case 1: /* renamed over; the old one has lost its name, and its time says so */
        if (now.file[version] != 0)
            inode->changed_ns = file_time();
        now.file[version] = inode_new(how / 4 % 3 != 0);
        break;
    case 2:
        if (now.file[version] != 0)
            inode->changed_ns = file_time();
        now.file[version] = 0;
        break;
    default: /* repaired */
        if (now.file[version] != 0)
            inode->changed_ns = file_time();
        now.file[version] = inode_new(true);
        break;
    }
}

static uint32_t version_of_hex(const char *hex)
{
    char text[65];

    for (uint32_t i = 0; i < VERSIONS; i++) {
        for (size_t j = 0; j < 32; j++)
            snprintf(text + j * 2, 3, "%02x", now.files[i].sha256[j]);
        if (strcmp(text, hex) == 0)
            return i;
    }
    CHECK_MSG(false, "true: a file is opened that nobody asked for");
    return 0;
}

static uint32_t opened_version[OPEN_MAX];

static int fake_identify(int fd, struct file_identity *ret)
{
    const struct inode *inode = &now.inodes[now.opened[fd]];

    *ret = (struct file_identity){ .device = 1,
        .inode = now.opened[fd],
        .size = inode->size,
        .modified_ns = inode->changed_ns,
        .changed_ns = inode->changed_ns };
    return 0;
}

static int fake_open(
    const struct objects *objects, const char *hex, int *ret_fd, struct file_identity *ret)
{
    uint32_t version = version_of_hex(hex);

    (void)objects;
    if (now.file[version] == 0)
        return TR_ENOENT;
    CHECK(++now.open_count < OPEN_MAX);
    *ret_fd = (int)now.open_count;
    now.opened[now.open_count] = now.file[version];
    opened_version[now.open_count] = version;
    return fake_identify(*ret_fd, ret);
}

static int fake_read(int fd, uint64_t offset, void *bytes, size_t size, size_t *ret)
{
    uint32_t version = opened_version[fd];
    char all[SIZE];

    bytes_of(version, now.inodes[now.opened[fd]].is_right, all);
    *ret = offset >= SIZE ? 0 : SIZE - (size_t)offset;
    CHECK(*ret <= size);
    memcpy(bytes, all + (offset >= SIZE ? 0 : offset), *ret);
    if (offset == 0) {
        now.hashes[version]++;
        if (now.changes && percent(&now.s, 10)) { /* behind our back */
            change_file(version, tr_sim_random(now.s.sim));
            seen.changed_under++;
        }
        if (now.invalidates && percent(&now.s, 10) &&
            integrity_invalidate(now.integrity, version) == 0) {
            now.reasons[version]++;
            now.is_stale[fd] = true;
        }
    }
    return 0;
}

static int fake_close(int fd)
{
    CHECK_MSG(now.opened[fd] != 0, "true: descriptor %d is closed twice", fd);
    now.opened[fd] = 0;
    now.closed_count++;
    return 0;
}

/* ---- invariants ----------------------------------------------------------------------------- */

/* In a turn. */
static void check_warm(uint32_t version)
{
    struct pinned_file *pinned = integrity_warm(now.integrity, &now.files[version]);

    if (pinned == NULL)
        return;
    seen.warm++;
    CHECK_MSG(
        now.inodes[now.opened[pinned->fd]].is_right, "true: version %u is warm and wrong", version);
    CHECK_MSG((uint32_t)pinned->fd > now.fresh_from[version],
        "fresh: version %u is warm by a hash from before it was invalidated", version);
    CHECK_MSG(!now.is_stale[pinned->fd],
        "fresh: version %u is warm by a hash during which it was invalidated", version);
    pinned_unref(pinned);
}

static void check_single(void)
{
    for (uint32_t i = 0; i < VERSIONS; i++) {
        CHECK_MSG(now.hashes[i] <= 1 + now.reasons[i],
            "single: version %u was hashed %u times for %u reasons", i, now.hashes[i],
            now.reasons[i]);
    }
}

/* ---- clients -------------------------------------------------------------------------------- */

struct client {
    uint32_t index;
    uint32_t serial;
    /* by tag */
    uint32_t version[64], fresh[64];
    uint8_t kind[64]; /* 'q', 'i', 'c' */
};

enum { TAG_NEXT = 1000 };

static void all_reasons(void)
{
    for (uint32_t i = 0; i < VERSIONS; i++)
        now.reasons[i]++;
}

static void ask(struct client *client, struct tr_context *ctx, char kind, uint32_t version)
{
    struct integrity_message message = { .kind = INTEGRITY_CLEAR };
    struct tr_ask_options options = { .tag = client->serial++ % 64 };
    int rc;

    if (kind == 'q') {
        if (now.gives_up && tr_random(ctx) % 3 == 0) {
            options.timeout_ns = 1 + tr_random(ctx) % (60 * MS);
            now.reasons[version]++;
        }
    } else if (kind == 'i') {
        message.kind = INTEGRITY_INVALIDATE;
        message.file.key = version;
        now.reasons[version]++;
    } else {
        all_reasons();
    }
    client->version[options.tag] = version;
    client->kind[options.tag] = (uint8_t)kind;
    client->fresh[options.tag] = now.open_count;
    rc = kind == 'q'
             ? tr_single_flight_ask(ctx, integrity_flight(now.integrity), &now.files[version],
                   sizeof now.files[version], &options)
             : tr_ask(ctx, integrity_sender(now.integrity), &message, sizeof message, &options);
    now.open[client->index] += rc == 0;
}

static void act(struct client *client, struct tr_context *ctx)
{
    uint32_t version = (uint32_t)(tr_random(ctx) % VERSIONS);
    uint64_t roll = tr_random(ctx) % 20;

    now.left[client->index]--;
    if (roll == 0 && now.invalidates) {
        ask(client, ctx, 'i', version);
        seen.invalidated++;
    } else if (roll == 1 && now.invalidates) {
        ask(client, ctx, 'c', version);
    } else if (roll <= 3 && now.changes) {
        change_file(version, tr_random(ctx));
    } else if (roll == 4 && now.kills) {
        all_reasons();
        seen.killed += tr_kill(tr_sender_weaken(integrity_flight(now.integrity).raw)) == 0;
    } else if (roll == 7 && now.cache_kills) {
        all_reasons();
        seen.cache_killed += tr_kill(tr_sender_weaken(integrity_sender(now.integrity))) == 0;
    } else {
        ask(client, ctx, 'q', version);
    }
    check_warm(version);
    if (now.left[client->index] > 0)
        CHECK_EQ_INT(tr_after(ctx, tr_random(ctx) % (30 * MS) + 1, TAG_NEXT, NULL), 0);
}

static void on_answer(struct client *client, const struct tr_event *event)
{
    uint32_t version = client->version[event->tag];
    enum pack_verdict verdict = PACK_BUSY;

    CHECK(now.open[client->index] > 0);
    now.open[client->index]--;
    if (event->status == TR_ETIMEOUT) {
        seen.gave_up++;
        return;
    }
    if (event->status < 0) {
        CHECK_MSG(now.kills || now.cache_kills, "answered: with %s", tr_error_name(event->status));
        return;
    }
    if (client->kind[event->tag] != 'q') {
        for (uint32_t i = 0; i < VERSIONS; i++)
            if ((client->kind[event->tag] == 'c' || i == version) &&
                now.fresh_from[i] < client->fresh[event->tag])
                now.fresh_from[i] = client->fresh[event->tag];
        return;
    }
    CHECK_EQ_U64(event->size, sizeof verdict);
    memcpy(&verdict, event->value, sizeof verdict);
    seen.verified += verdict == PACK_VERIFIED;
    seen.damaged += verdict == PACK_DAMAGED;
    seen.busy += verdict == PACK_BUSY;
    if (!now.changes)
        CHECK_MSG(verdict == PACK_VERIFIED, "true: a file that is right is said to be %d", verdict);
}

static int client_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_after(ctx, tr_random(ctx) % (20 * MS) + 1, TAG_NEXT, NULL);
}

static enum tr_next client_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *client = state;

    if (event->kind == TR_EVENT_REPLY)
        on_answer(client, event);
    else if (event->kind == TR_EVENT_TIMER && now.left[client->index] > 0)
        act(client, ctx);
    for (uint32_t i = 0; i < VERSIONS; i++)
        check_warm(i);
    return TR_GO;
}

static const struct tr_type client_type = { .name = "client",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = client_handle,
    .event = client_event };

/* ---- the run -------------------------------------------------------------------------------- */

static void draw(struct scenario *s)
{
    bool is_calm = percent(s, 25);

    now.changes = !is_calm && percent(s, 50);
    now.kills = !is_calm && percent(s, 50);
    now.cache_kills = !is_calm && percent(s, 20);
    now.gives_up = !is_calm && percent(s, 30);
    now.invalidates = !is_calm && percent(s, 60);
    now.clients = between(s, 2, CLIENTS_MAX);
}

static void start(struct scenario *s)
{
    struct integrity_options options = {
        .source = { .open = fake_open,
            .identify = fake_identify,
            .read = fake_read,
            .close = fake_close },
        .hashes_max = between(s, 1, 3),
    };

    for (uint32_t i = 0; i < VERSIONS; i++) {
        char bytes[SIZE];

        bytes_of(i, true, bytes);
        now.files[i] = (struct hash_file){ .key = integrity_key(i, PACK_IDENTITY), .size = SIZE };
        crypto_sha256(bytes, SIZE, now.files[i].sha256);
        now.file[i] = inode_new(true);
    }
    now.supervisor = tree_create(s->system);
    options.supervisor = now.supervisor;
    CHECK_EQ_INT(integrity_start(s->system, &options, &now.integrity), 0);
    for (uint32_t i = 0; i < now.clients; i++) {
        now.left[i] = between(s, 3, 40);
        CHECK_EQ_INT(tr_spawn(s->system, &client_type, &(struct client){ .index = i },
                         &(struct tr_spawn_options){ .owner = "the scenario" }, &now.senders[i]),
            0);
    }
}

static bool is_done(void)
{
    for (uint32_t i = 0; i < now.clients; i++)
        if (now.left[i] > 0 || now.open[i] > 0)
            return false;
    return true;
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_system_stats stats;
    uint64_t trace;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    draw(s);
    start(s);
    for (uint32_t i = 0; i < STEPS_MAX && !is_done(); i++) {
        CHECK_MSG(tr_sim_step(s->sim), "answered: nothing is left to do and somebody waits");
        s->steps++;
        check_single();
        CHECK_MSG(tr_sim_now_ns(s->sim) < 60000 * MS, "answered: somebody waits for a minute");
    }
    CHECK_MSG(is_done(), "answered: somebody waits for ever");
    for (uint32_t i = 0; i < now.clients; i++)
        tr_sender_drop(&now.senders[i]);
    tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 1000 * MS); /* hashes nobody waits for end */
    integrity_stop(&now.integrity);
    tr_sender_drop(&now.supervisor);
    (void)tr_sim_run(s->sim, STEPS_MAX);
    tr_system_stats(s->system, &stats);
    CHECK_MSG(
        stats.live == 0, "answered: %llu actors have not ended", (unsigned long long)stats.live);
    CHECK_MSG(now.closed_count == now.open_count, "true: %u of %u descriptors were closed",
        now.closed_count, now.open_count);
    trace = scenario_end(s);
    seen.seeds++;
    return trace;
}

static int64_t late_inserts(void)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, "troupe_pack_late_inserts_total") == 0)
            return metric_get(metric);
    return 0;
}

TEST_LONG(packs, every_question_is_answered_once_hashed_once_and_truly, 120)
{
    log_setup(open("/dev/null", O_WRONLY | O_CLOEXEC), LOG_LOGFMT, LOG_ERROR);
    for (uint64_t seed; check_each_seed(&seed, 1500);)
        run(seed);
    seen.late = (uint64_t)late_inserts();
    printf("%llu verified, %llu damaged, %llu busy, %llu warm looks, %llu flights and %llu caches "
           "killed, %llu gave up, %llu invalidated, %llu late inserts, %llu changed under a hash\n",
        (unsigned long long)seen.verified, (unsigned long long)seen.damaged,
        (unsigned long long)seen.busy, (unsigned long long)seen.warm,
        (unsigned long long)seen.killed, (unsigned long long)seen.cache_killed,
        (unsigned long long)seen.gave_up, (unsigned long long)seen.invalidated,
        (unsigned long long)seen.late, (unsigned long long)seen.changed_under);
    scenario_report();
    CHECK_COVERED(seen.verified, 10000);
    CHECK_COVERED(seen.damaged, 500);
    CHECK_COVERED(seen.warm, 10000);
    CHECK_COVERED(seen.killed, 100);
    CHECK_COVERED(seen.cache_killed, 100);
    CHECK_COVERED(seen.gave_up, 50);
    CHECK_COVERED(seen.late, 50);
    CHECK_COVERED(seen.changed_under, 100);
}

TEST_LONG(packs, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
