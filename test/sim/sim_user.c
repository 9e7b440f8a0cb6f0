/* SPDX-License-Identifier: Apache-2.0 */
/* sim_user.c: devices of two users push and pull, on a real SQLite and a disk that fails, fills up
 * and loses power, while the users' actors are killed and connections are lost in a COMMIT.
 *
 * Every write has a number of its own, which is its value. A device's copy is made of what it pulls
 * alone. Checked, by name:
 *   order     a page begins after the cursor and its numbers grow
 *   durable   a number that was told, by a push or a pull, is in the database for good
 *   applied   a write that was acknowledged as applied is there, or a later one is
 *   nothing   of a push that was refused nothing is ever there
 *   answered  every request ends
 *   missed    in the end every device's copy is what the database has */
#include <fcntl.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "base/log.h"
#include "ops/service.h"
#include "scenario.h"
#include "services/delivery/delivery.h"
#include "services/packs/packs.h"
#include "services/packs/user_job.h"
#include "sql/backend.h"
#include "sql/runner.h"
#include "sql/unit.h"

enum {
    USERS = 2,
    DEVICES = 6, /* device i is of user i % USERS */
    ITEMS = 5,
    WRITES_MAX = 20000,
    PUSH_MAX = 4,
    TAG_ASK = 1,
    TAG_AGAIN = 2,
};

enum write_fate { UNDER_WAY, APPLIED, SKIPPED, REFUSED, UNKNOWN };

struct write {
    uint32_t user, item;
    int64_t updated_ms;
    enum write_fate fate;
};

/* What a device knows, whatever becomes of its actor. */
struct copy {
    int64_t cursor;
    int64_t values[ITEMS]; /* the write's number; -1: none */
    bool has_all;
};

static struct {
    struct scenario s;
    struct sql *sql;
    struct users *users;
    struct write writes[WRITES_MAX];
    uint32_t write_count;
    struct copy copies[DEVICES];
    uint32_t left[DEVICES];
    tr_sender senders[DEVICES];
    int64_t told_seq[USERS];
    bool is_down, has_failed, is_opening, is_healed;
    uint32_t open_count, lose_percent;
    struct tr_disk_faults faults;
} now;

static struct {
    uint64_t applied, skipped, refused, unknown, pulls, rows, cuts, kills, user_kills, lost,
        lost_there, fatal, full;
} seen;

static struct sql_migration *migrations;
static size_t migration_count;

static const char *user_name(uint32_t user)
{
    return user == 0 ? "ada" : "bob";
}

/* ---- devices --------------------------------------------------------------------------------- */

struct device {
    uint32_t index;
    struct user_job *job; /* under way */
    uint32_t first_write;
    int64_t told_seq; /* by anybody, when it asked */
};

static void again(struct tr_context *ctx)
{
    CHECK_EQ_INT(tr_after(ctx, MS + tr_random(ctx) % (20 * MS), TAG_AGAIN, NULL), 0);
}

static struct tr_span keep(struct user_job *job, const char *text)
{
    const char *at = job->texts.bytes + job->texts.size;

    CHECK_EQ_INT(tr_buffer_text(&job->texts, text), 0);
    return (struct tr_span){ at, strlen(text) };
}

static struct user_job *make_push(struct device *device, struct tr_context *ctx)
{
    uint32_t user = device->index % USERS;
    struct user_job *job = user_job_new(USER_PUSH, tr_span_of(user_name(user)));
    char text[64];

    CHECK(job != NULL && tr_buffer_reserve(&job->texts, 1024) != NULL);
    (void)snprintf(text, sizeof text, "device-%u", device->index);
    job->device = keep(job, text);
    job->change_count = (uint32_t)(1 + tr_random(ctx) % PUSH_MAX);
    job->changes = tr__calloc(PUSH_MAX * sizeof *job->changes);
    CHECK(job->changes != NULL);
    device->first_write = now.write_count;
    for (uint32_t i = 0; i < job->change_count; i++) {
        struct write *write = &now.writes[now.write_count];
        struct user_change *change = &job->changes[i];

        CHECK(now.write_count + 1 < WRITES_MAX);
        *write = (struct write){ .user = user,
            .item = (uint32_t)(tr_random(ctx) % ITEMS),
            .updated_ms = (int64_t)(tr_sim_now_ns(now.s.sim) / MS + tr_random(ctx) % 40) };
        (void)snprintf(text, sizeof text, "item-%u", write->item);
        change->kind = USER_SETTING;
        change->item = keep(job, text);
        (void)snprintf(text, sizeof text, "\"v\":%u", now.write_count++);
        change->body = keep(job, text);
        change->updated_ms = write->updated_ms;
    }
    return job;
}

static struct user_job *make_pull(struct device *device, struct tr_context *ctx)
{
    struct user_job *job = user_job_new(USER_PULL, tr_span_of(user_name(device->index % USERS)));

    CHECK(job != NULL);
    job->after_seq = now.copies[device->index].cursor;
    job->limit = (uint32_t)(1 + tr_random(ctx) % 4);
    return job;
}

static void end_writes(struct device *device, enum write_fate fate)
{
    for (uint32_t i = 0; i < device->job->change_count; i++)
        now.writes[device->first_write + i].fate = fate;
    if (fate == REFUSED)
        seen.refused++;
    else
        seen.unknown++;
}

static void act(struct device *device, struct tr_context *ctx)
{
    bool is_push = !now.is_healed && tr_random(ctx) % 2 == 0;
    struct user_message message;
    tr_sender user;
    int rc;

    if (now.left[device->index] == 0 || device->job != NULL)
        return;
    if (now.is_down) {
        again(ctx);
        return;
    }
    device->job = is_push ? make_push(device, ctx) : make_pull(device, ctx);
    message.job = device->job;
    device->told_seq = now.told_seq[device->index % USERS];
    atomic_fetch_add(&device->job->holders, 1);
    rc = tr_registry_get(
        now.users->actors, device->job->user, strlen(device->job->user), "a device", &user);
    if (rc == 0) {
        rc =
            tr_ask(ctx, user, &message, sizeof message, &(struct tr_ask_options){ .tag = TAG_ASK });
        tr_sender_drop(&user);
    }
    if (rc == 0) {
        now.open_count++;
        return;
    }
    user_job_unref(device->job);
    if (is_push)
        end_writes(device, REFUSED);
    user_job_unref(device->job);
    device->job = NULL;
    again(ctx);
}

static void on_pushed(struct device *device)
{
    const struct user_job *job = device->job;
    int status = job->status;

    if (status != 0) {
        bool is_refused =
            status == SQL_EDISK || status == TR_EFULL || status == TR_ELIMIT || status == TR_ENOMEM;

        end_writes(device, is_refused ? REFUSED : UNKNOWN);
        return;
    }
    for (uint32_t i = 0; i < job->change_count; i++) {
        bool is_applied = sql_unit_changed(job->unit, job->changes[i].step) > 0;

        now.writes[device->first_write + i].fate = is_applied ? APPLIED : SKIPPED;
        seen.applied += is_applied;
        seen.skipped += !is_applied;
    }
}

static void on_pulled(struct device *device)
{
    const struct sql_unit *unit = device->job->unit;
    struct copy *copy = &now.copies[device->index];
    uint32_t user = device->index % USERS, rows;
    int64_t seq, last;

    if (device->job->status != 0)
        return;
    seq = sql_unit_rows(unit, 0) == 0 ? 0 : sql_row_int(unit, 0, 0, 0);
    CHECK_MSG(seq >= device->told_seq, "durable: %s is at %lld, and somebody was told of %lld",
        user_name(user), (long long)seq, (long long)device->told_seq);
    if (seq > now.told_seq[user])
        now.told_seq[user] = seq;
    rows = sql_unit_rows(unit, 1);
    for (uint32_t row = 0; row < rows; row++) {
        struct tr_span item = sql_row_bytes(unit, 1, row, 1), body = sql_row_bytes(unit, 1, row, 6);
        int64_t number = sql_row_int(unit, 1, row, 2);

        CHECK_MSG(number > copy->cursor && number <= seq, "order: %lld after %lld, of %lld",
            (long long)number, (long long)copy->cursor, (long long)seq);
        copy->cursor = number;
        copy->values[item.at[item.size - 1] - '0'] = strtoll(body.at + strlen("\"v\":"), NULL, 10);
    }
    last = sql_row_is_null(unit, 2, 0, 0) ? 0 : sql_row_int(unit, 2, 0, 0);
    copy->has_all = copy->cursor >= last;
    if (copy->has_all)
        copy->cursor = seq; /* as the API tells it */
    seen.pulls++;
    seen.rows += rows;
}

static enum tr_next device_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct device *device = self;
    bool is_push;

    if (event->kind != TR_EVENT_REPLY) {
        act(device, ctx);
        return TR_GO;
    }
    is_push = device->job->kind == USER_PUSH;
    now.open_count--;
    if (event->status < 0) { /* nobody knows: the actor ended with it */
        if (is_push)
            end_writes(device, UNKNOWN);
    } else if (is_push) {
        on_pushed(device);
    } else {
        on_pulled(device);
    }
    user_job_unref(device->job);
    device->job = NULL;
    if (!now.is_healed)
        now.left[device->index]--;
    else if (now.copies[device->index].has_all)
        now.left[device->index] = 0;
    again(ctx);
    return TR_GO;
}

static enum tr_next device_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)message;
    act(self, ctx);
    return TR_GO;
}

static int device_start(void *self, struct tr_context *ctx)
{
    (void)self;
    again(ctx);
    return 0;
}

static void device_finish(void *self)
{
    user_job_unref(((struct device *)self)->job);
}

static const struct tr_type device_type = {
    .name = "device",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct device),
    .start = device_start,
    .handle = device_handle,
    .event = device_event,
    .finish = device_finish,
};

/* ---- the database ---------------------------------------------------------------------------- */

static void set_faults(const struct tr_disk_faults *faults)
{
    static const struct tr_disk_faults none;

    now.faults = faults != NULL ? *faults : none;
    tr_sim_disk_faults(now.s.sim, &now.faults);
}

static bool is_lost(void)
{
    return now.lose_percent > 0 && !now.is_opening && percent(&now.s, now.lose_percent);
}

static int flaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc;

    if (is_lost()) {
        seen.lost++;
        return TR_ECLOSED;
    }
    rc = sql_sqlite.commit(connection, units, count);
    if (rc != 0 || !is_lost())
        return rc;
    for (size_t i = 0; i < count; i++) { /* it happened, and nobody knows */
        if (units[i]->status != 0)
            continue;
        sql_unit_reset_results(units[i]);
        sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "lost");
        seen.lost_there++;
    }
    return SQL_EUNKNOWN;
}

static void on_fatal(void *data, const char *line)
{
    (void)data;
    (void)line;
    seen.fatal++;
    now.has_failed = now.is_down = true;
}

static int try_open(void)
{
    static struct sql_backend flaky;
    char why[300];
    int rc;

    flaky = sql_sqlite;
    flaky.commit = flaky_commit;
    now.is_opening = true;
    rc = sql_open(now.s.system,
        &(struct sql_options){ .url = "sqlite:data/users.db",
            .migrations = migrations,
            .migration_count = migration_count,
            .readers = 2,
            .batch_max = 4,
            .queue_max = 64,
            .backend = &flaky,
            .in_simulation = true,
            .fatal = on_fatal },
        why, sizeof why, &now.sql);
    now.is_opening = false;
    CHECK_MSG(rc == 0 || rc == SQL_EDISK || rc == TR_EACCES || rc == TR_ECLOSED ||
                  rc == SQL_EUNKNOWN || rc == SQL_EFAILED,
        "open: %s: %s", sql_error_text(rc), why);
    return rc;
}

SQL_STATEMENT(all_items, "SELECT user_id, item, seq, updated_ms, body FROM user_items");
SQL_STATEMENT(all_seqs, "SELECT user_id, seq FROM user_sync");

static int64_t stored[USERS][ITEMS];

/* What was told must be there; fills `stored`. */
static void check_database(void)
{
    struct sql_unit *unit = sql_unit_new(0);
    int64_t updated[USERS][ITEMS];
    int64_t seqs[USERS] = { 0 };

    memset(updated, -1, sizeof updated);
    memset(stored, -1, sizeof stored);
    sql_unit_step(unit, &all_items, SQL_ROWS_ANY);
    sql_unit_step(unit, &all_seqs, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(now.sql, unit), 0);
    for (uint32_t row = 0; row < sql_unit_rows(unit, 1); row++)
        seqs[tr_span_is(sql_row_bytes(unit, 1, row, 0), "bob")] = sql_row_int(unit, 1, row, 1);
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++) {
        uint32_t user = tr_span_is(sql_row_bytes(unit, 0, row, 0), "bob");
        struct tr_span item = sql_row_bytes(unit, 0, row, 1);
        uint32_t index = (uint32_t)(item.at[item.size - 1] - '0');
        int64_t number = strtoll(sql_row_bytes(unit, 0, row, 4).at + strlen("\"v\":"), NULL, 10);

        CHECK(number < now.write_count && now.writes[number].item == index);
        CHECK_MSG(now.writes[number].fate != REFUSED, "nothing: write %lld was refused",
            (long long)number);
        stored[user][index] = number;
        updated[user][index] = sql_row_int(unit, 0, row, 3);
    }
    for (uint32_t user = 0; user < USERS; user++)
        CHECK_MSG(seqs[user] >= now.told_seq[user], "durable: %s is at %lld, told was %lld",
            user_name(user), (long long)seqs[user], (long long)now.told_seq[user]);
    for (uint32_t i = 0; i < now.write_count; i++)
        CHECK_MSG(now.writes[i].fate != APPLIED ||
                      updated[now.writes[i].user][now.writes[i].item] >= now.writes[i].updated_ms,
            "applied: write %u was acknowledged and is gone", i);
    sql_unit_free(unit);
}

/* ---- the service ----------------------------------------------------------------------------- */

static void start_service(void)
{
    void *state;
    char why[200] = "";

    CHECK_EQ_INT(user_start(&(struct service_context){ .system = now.s.system, .sql = now.sql },
                     why, sizeof why, &state),
        0);
    now.users = state;
}

static void kill_user(uint32_t user)
{
    tr_sender sender;

    if (tr_registry_find(now.users->actors, user_name(user), strlen(user_name(user)),
            "the scenario", &sender) < 0)
        return;
    (void)tr_kill(tr_sender_weaken(sender));
    tr_sender_drop(&sender);
    seen.user_kills++;
}

static void stop_service(void)
{
    for (uint32_t i = 0; i < USERS; i++)
        kill_user(i);
    user_stop(now.users);
    now.users = NULL;
}

/* The "process" ends, with or without the machine, and another one recovers. */
static void end_and_recover(bool is_power_cut, const struct tr_disk_faults *faults)
{
    uint32_t lose_percent = now.lose_percent;

    now.is_down = true;
    if (is_power_cut)
        tr_sim_disk_crash(now.s.sim);
    seen.cuts += is_power_cut;
    seen.kills += !is_power_cut;
    stop_service();
    sql_close(&now.sql);
    if (is_power_cut)
        tr_sim_disk_crash(now.s.sim);
    set_faults(faults);
    for (int tries = 0; now.sql == NULL; tries++) {
        now.has_failed = false;
        if (tries == 3)
            set_faults(NULL);
        if (try_open() < 0 && is_power_cut)
            tr_sim_disk_crash(now.s.sim);
        CHECK_MSG(tries < 5, "healed: it does not open");
    }
    set_faults(NULL);
    now.lose_percent = 0;
    check_database();
    now.lose_percent = lose_percent;
    start_service();
    now.has_failed = now.is_down = false;
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool is_all_done(void)
{
    for (uint32_t i = 0; i < DEVICES; i++)
        if (now.left[i] > 0)
            return false;
    return now.open_count == 0;
}

static void run_steps(uint32_t steps)
{
    for (uint32_t i = 0; i < steps && !now.has_failed && tr_sim_step(now.s.sim); i++)
        now.s.steps++;
}

static void finish(const char *when)
{
    for (uint32_t i = 0; i < STEPS_MAX && !is_all_done(); i++) {
        CHECK_MSG(tr_sim_step(now.s.sim), "answered: devices wait (%s)", when);
        now.s.steps++;
        if (now.has_failed)
            end_and_recover(true, NULL);
    }
    CHECK_MSG(is_all_done(), "answered: devices wait for their answers (%s)", when);
}

static void begin(uint64_t seed)
{
    const struct service auth_service = {
        .name = "auth", .migrations = auth_migrations, .migration_count = auth_migration_count
    };
    const struct service *services[] = { &auth_service, &delivery_service, &packs_service,
        &user_service };
    char why[256] = "";

    if (migrations == NULL)
        CHECK_MSG(service_merge_migrations(
                      services, 4, why, sizeof why, &migrations, &migration_count) == 0,
            "%s", why);
    memset(&now, 0, sizeof now);
    scenario_begin(&now.s, seed, NULL);
    now.lose_percent = percent(&now.s, 50) ? between(&now.s, 1, 20) : 0;
    CHECK_EQ_INT(try_open(), 0);
    start_service();
    for (uint32_t i = 0; i < DEVICES; i++) {
        memset(now.copies[i].values, -1, sizeof now.copies[i].values);
        now.left[i] = between(&now.s, 5, 60);
        CHECK_EQ_INT(tr_spawn(now.s.system, &device_type, &(struct device){ .index = i },
                         &(struct tr_spawn_options){ .owner = "the scenario" }, &now.senders[i]),
            0);
    }
}

static void check_copies(void)
{
    check_database();
    for (uint32_t i = 0; i < DEVICES; i++)
        for (uint32_t item = 0; item < ITEMS; item++)
            CHECK_MSG(now.copies[i].values[item] == stored[i % USERS][item],
                "missed: device %u has write %lld of item %u, stored is %lld", i,
                (long long)now.copies[i].values[item], item, (long long)stored[i % USERS][item]);
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_disk_faults faults;
    uint32_t rounds;
    static int nowhere = -1;

    if (getenv("TROUPE_VERBOSE") == NULL && nowhere < 0) {
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        log_setup(nowhere, LOG_LOGFMT, LOG_ERROR);
    }
    begin(seed);
    faults = (struct tr_disk_faults){ .eio_per_million = below(s, 3) * 1000,
        .short_per_million = below(s, 3) * 1000,
        .bytes_max = percent(s, 20) ? 500000 + below(s, 300000) : 0 };
    seen.full += faults.bytes_max != 0;
    rounds = between(s, 2, 8);
    for (uint32_t i = 0; i < rounds; i++) {
        set_faults(percent(s, 50) ? &faults : NULL);
        run_steps(below(s, 600));
        if (!now.has_failed && percent(s, 40))
            kill_user(below(s, USERS));
        if (now.has_failed || percent(s, 25))
            end_and_recover(percent(s, 70), percent(s, 30) ? &faults : NULL);
    }
    set_faults(NULL);
    now.lose_percent = 0;
    if (now.has_failed)
        end_and_recover(true, NULL);
    finish("healing");
    now.is_healed = true; /* from now on they pull alone, until they have everything */
    for (uint32_t i = 0; i < DEVICES; i++) {
        uint32_t message = 0;

        now.left[i] = 1;
        now.copies[i].has_all = false;
        CHECK_EQ_INT(tr_tell(now.senders[i], &message, sizeof message), 0);
    }
    finish("healed");
    check_copies();
    for (uint32_t i = 0; i < DEVICES; i++)
        tr_sender_drop(&now.senders[i]);
    end_and_recover(true, NULL);
    check_copies();
    stop_service();
    sql_close(&now.sql);
    CHECK_MSG(tr_sim_run(s->sim, STEPS_MAX) < STEPS_MAX, "answered: somebody is still busy");
    return scenario_end(s);
}

TEST_LONG(user, misses_and_loses_nothing_whatever_fails, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 300);)
        run(seed);
    scenario_report();
    printf("%llu writes applied, %llu skipped; %llu pushes refused, %llu unknown; %llu pulls, %llu "
           "rows; %llu power cuts, %llu process kills, %llu user kills, %llu lost connections, "
           "%llu units after their COMMIT, %llu failed disks, %llu full disks\n",
        (unsigned long long)seen.applied, (unsigned long long)seen.skipped,
        (unsigned long long)seen.refused, (unsigned long long)seen.unknown,
        (unsigned long long)seen.pulls, (unsigned long long)seen.rows,
        (unsigned long long)seen.cuts, (unsigned long long)seen.kills,
        (unsigned long long)seen.user_kills, (unsigned long long)seen.lost,
        (unsigned long long)seen.lost_there, (unsigned long long)seen.fatal,
        (unsigned long long)seen.full);
    CHECK_COVERED(seen.applied, 20000);
    CHECK_COVERED(seen.skipped, 2000);
    CHECK_COVERED(seen.unknown, 500);
    CHECK_COVERED(seen.cuts, 1500);
    CHECK_COVERED(seen.user_kills, 1000);
    CHECK_COVERED(seen.lost_there, 100);
}

TEST_LONG(user, is_replayed_from_its_seed, 60)
{
    check_traces(run, 6);
}
