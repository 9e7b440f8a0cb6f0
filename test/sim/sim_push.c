/* SPDX-License-Identifier: Apache-2.0 */
/* sim_push.c: devices are woken (services/delivery/push/push.h): the real actor, real conversations and
 * a real SQLite, and a gateway that takes its time.
 *
 * People talk in three conversations, are added and leave, leave push tokens and take them back,
 * and listen for a while. The gateway takes wake-ups, refuses them, calls tokens gone, is in
 * trouble, is slow, cuts the connection or never answers. Connections to the database are lost,
 * reads fail, the disk fails; conversations and the actor that wakes are killed, the process ends
 * and begins anew. After every COMMIT the truth is read from the database (push_facts.h). Checked,
 * by name:
 *
 *   told       whose message was stored may rely on it: each device with a token of a member who
 *              does not listen is told after that, soon, unless a drop was counted or the actor
 *              that wakes has ended since
 *   tried      a gateway in trouble is tried again, three times in all
 *   reason     every wake-up has one: another account stored something while the device's owner was
 *              a member and did not listen, or the gateway was in trouble. So listeners, former
 *              members and the sender get none, and no wake-up comes twice
 *   dropped    nothing is, unless the database is in trouble
 *   often      nobody is told again before the interval has passed
 *   token      a device is told by its own token, and the gateway learns nothing else
 *   withdrawn  a token that was taken back, or was gone, is told no more
 *   gone       a token that the gateway calls gone is deleted, unless a drop was counted; a device
 *              with a newer token is woken by that
 *   kept       no other token is deleted by anybody but its device
 *   bounded    no more than 64 wake-ups are under way
 *   counted    what the gateway took and refused is counted, once
 *   healed     when everything is well again, what is owed is done, and what is stored wakes at
 *              once
 *   ending     nothing that ends waits for the gateway
 *   stored     nobody is told that something is stored before it is (sim_delivery.c has the rest)
 *
 * The HTTP client of this program is that of push_gateway.h. */
#include <fcntl.h>

#include "delivery_tables.h"
#include "ops/config.h"
#include "push_gateway.h"
#include "push_people.h"
#include "services/delivery/convo/convo.h"
#include "sql/backend.h"
#include "support/log.h"

static struct {
    bool is_opening;
    bool has_failed; /* the disk did; the "process" must end */
    uint32_t lose_percent, fail_percent;
    uint64_t idle_ns;
    struct tr_disk_faults faults;
    tr_sender clock, talkers[TALKERS];
} world;

/* ---- a database that is lost, and the truth after every COMMIT ------------------------------ */

static void set_faults(const struct tr_disk_faults *faults)
{
    static const struct tr_disk_faults none;

    tr_sim_disk_faults(now.s.sim, faults != NULL ? faults : &none);
    world.faults = faults != NULL ? *faults : none;
    now.is_faulty = world.faults.eio_per_million > 0;
    note_trouble();
}

static bool is_lost(uint32_t chance)
{
    if (world.lose_percent == 0 || world.is_opening || !percent(&now.s, chance))
        return false;
    note_trouble();
    seen.lost++;
    return true;
}

static void look_after_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    struct tr_disk_faults faults = world.faults;
    struct sql_unit *unit = facts_unit();
    uint64_t calm_ns = now.calm_ns;

    set_faults(NULL);
    CHECK_EQ_INT(sql_sqlite.read(connection, &unit, 1), 0);
    atomic_store(&unit->state, SQL_DONE);
    set_faults(&faults);
    now.calm_ns = calm_ns;
    CHECK_MSG(unit->status == 0, "looking: %s", unit->why);
    learn_forgotten(units, count);
    facts_learn(unit);
    sql_unit_destroy(unit);
}

static bool is_any_stored(struct sql_unit *const *units, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0)
            return true;
    return false;
}

static void fail_units(struct sql_unit *const *units, size_t count, int status)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0) {
            sql_unit_reset_results(units[i]);
            sql_unit_fail(units[i], -1, status, "not today");
        }
    note_trouble();
}

/* Nothing is stored, or everything and nobody knows. */
static int flaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc;

    if (is_lost(world.lose_percent))
        return TR_ECLOSED;
    rc = sql_sqlite.commit(connection, units, count);
    if (rc != 0 || world.is_opening || !is_any_stored(units, count))
        return rc;
    look_after_commit(connection, units, count);
    if (!is_lost(world.lose_percent))
        return 0;
    fail_units(units, count, SQL_EUNKNOWN);
    return SQL_EUNKNOWN;
}

static int flaky_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc;

    if (is_lost(world.lose_percent))
        return TR_ECLOSED;
    rc = sql_sqlite.read(connection, units, count);
    if (rc == 0 && !world.is_opening && percent(&now.s, world.fail_percent)) {
        fail_units(units, count, SQL_EDISK);
        seen.failed_reads++;
    }
    return rc;
}

static int flaky_connect(void *database, bool is_writer, struct sql_connection **ret_connection,
    char *why, size_t why_size)
{
    if (is_lost(80)) {
        (void)snprintf(why, why_size, "not now");
        return TR_ECLOSED;
    }
    return sql_sqlite.connect(database, is_writer, ret_connection, why, why_size);
}

static void on_fatal(void *data, const char *line)
{
    (void)data;
    (void)line;
    seen.fatal++;
    world.has_failed = true;
    people.is_down = true;
}

static int try_open(void)
{
    static struct sql_migration *migrations;
    static size_t migration_count;
    static struct sql_backend flaky;
    char why[300];
    int rc;

    if (migrations == NULL)
        migrations = delivery_tables(&migration_count);
    flaky = sql_sqlite;
    flaky.commit = flaky_commit;
    flaky.read = flaky_read;
    flaky.connect = flaky_connect;
    world.is_opening = true;
    rc = sql_open(now.s.system,
        &(struct sql_options){ .url = "sqlite:data/delivery.db",
            .migrations = migrations,
            .migration_count = migration_count,
            .readers = 2,
            .batch_max = 4,
            .backend = &flaky,
            .in_simulation = true,
            .fatal = on_fatal },
        why, sizeof why, &now.sql);
    world.is_opening = false;
    return rc;
}

/* ---- a clock --------------------------------------------------------------------------------- */

/* Time goes to the next timer, whatever somebody is in the middle of. With a clock that is never
 * far, and without trouble everything takes a few ticks at most. */

static enum tr_next clock_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    const uint64_t *period_ns = state;

    (void)event;
    CHECK_EQ_INT(tr_after(ctx, people.is_quiet ? TR_SECONDS(1) : *period_ns, TAG_AGAIN, NULL), 0);
    return TR_GO;
}

static int clock_start(void *state, struct tr_context *ctx)
{
    return tr_after(ctx, *(uint64_t *)state, TAG_AGAIN, NULL);
}

static const struct tr_type clock_type = {
    .name = "clock",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(uint64_t),
    .start = clock_start,
    .handle = talker_handle,
    .event = clock_event,
};

static tr_sender start_clock(uint64_t period_ns)
{
    tr_sender clock;

    CHECK_EQ_INT(tr_spawn(now.s.system, &clock_type, &period_ns,
                     &(struct tr_spawn_options){ .owner = "the scenario" }, &clock),
        0);
    return clock;
}

static void stop_clock(tr_sender *clock)
{
    (void)tr_kill(tr_sender_weaken(*clock));
    tr_sender_drop(clock);
}

/* ---- the service ---------------------------------------------------------------------------- */

static void start_push(void)
{
    struct buffer errors = { 0 };
    struct config config = { 0 };
    char file[256];

    (void)snprintf(file, sizeof file, "[delivery]\npush_url = %s\npush_interval = %llums\n",
        gateway_url, (unsigned long long)(now.interval_ns / MS));
    CHECK_EQ_INT(
        config_load_bytes(span_of(file), "t.conf", &(struct config_sources){ 0 }, &config, &errors),
        0);
    CHECK_EQ_INT(push_start(&now.delivery, &config), 0);
    config_fini(&config);
    note_new_life();
}

/* As delivery_start does it, without what only HTTP needs. */
static void start_service(void)
{
    now.delivery = (struct delivery){ .system = now.s.system,
        .env = tr_system_env(now.s.system),
        .sql = now.sql,
        .mode = DELIVERY_BLIND,
        .app_window = 2,
        .members_max = 1000,
        .lease_s = 600 };
    CHECK_EQ_INT(tr_registry_create(now.s.system,
                     &(struct tr_registry_options){ .name = "convos",
                         .type = &convo_type,
                         .make = convo_slot_make,
                         .data = &now.delivery,
                         .box = { .capacity = 1024, .full = TR_FULL_FAIL },
                         .idle_ns = world.idle_ns },
                     &now.delivery.convos),
        0);
    start_push();
    for (uint32_t i = 0; i < TALKERS; i++)
        CHECK_EQ_INT(tr_spawn(now.s.system, &talker_type, &(struct talker){ .act = NULL },
                         &(struct tr_spawn_options){ .owner = "the scenario" }, &world.talkers[i]),
            0);
    people.is_down = false;
}

/* Stops it in any state of the gateway. */
static void stop_push(void)
{
    uint64_t begin_ns = time_ns();
    tr_sender clock;

    seen.ends++;
    seen.hung_ends += under_way() > 0;
    clock = start_clock(MS);
    now.is_stopped = true;
    push_stop(&now.delivery);
    CHECK_MSG(time_ns() - begin_ns <= 20 * MS, "ending: it took %llu ms",
        (unsigned long long)((time_ns() - begin_ns) / MS));
    stop_clock(&clock);
    now.life++; /* later answers belong to the life before */
}

static void kill_convo(uint32_t convo)
{
    tr_sender sender;

    doubt_listeners(convo);
    note_trouble();
    if (tr_registry_find(now.delivery.convos, convo_id(convo), strlen(convo_id(convo)),
            "the scenario", &sender) < 0)
        return;
    (void)tr_kill(tr_sender_weaken(sender));
    tr_sender_drop(&sender);
    seen.convo_kills++;
}

/* The order is that of delivery.c, but for the people, who come and go by HTTP. */
static void stop_service(void)
{
    people.is_down = true;
    stop_push();
    for (uint32_t i = 0; i < CONVOS; i++)
        kill_convo(i);
    CHECK_EQ_INT(tr_registry_close(&now.delivery.convos, 0), 0);
    push_free(&now.delivery);
    for (uint32_t i = 0; i < TALKERS; i++) {
        (void)tr_kill(tr_sender_weaken(world.talkers[i]));
        CHECK_EQ_INT(tr_sender_wait_closed(world.talkers[i], 0), 0);
        tr_sender_drop(&world.talkers[i]);
    }
    CHECK_EQ_INT(people.busy, 0);
}

/* An actor begins anew, and knows nothing. */
static void restart_push(void)
{
    stop_push();
    push_free(&now.delivery);
    start_push();
    seen.push_kills++;
}

static void end_and_recover(bool is_power_cut)
{
    if (is_power_cut)
        tr_sim_disk_crash(now.s.sim);
    stop_service();
    sql_close(&now.sql);
    if (is_power_cut)
        tr_sim_disk_crash(now.s.sim);
    set_faults(NULL);
    world.has_failed = false;
    CHECK_EQ_INT(try_open(), 0);
    start_service();
    seen.recovers++;
}

/* ---- the run -------------------------------------------------------------------------------- */

SQL_STATEMENT(put_device, "INSERT INTO devices (did, device, name, signature_key, created_ms)"
                          " VALUES ($1, $2, 'a', $3, 1)");

/* They are there from the beginning; most have a token. */
static void make_devices(void)
{
    for (uint32_t i = 0; i < now.device_count; i++) {
        struct sql_unit *unit = sql_unit_create(0);
        char device[16];

        now.devices[i].user = below(&now.s, USERS);
        (void)snprintf(device, sizeof device, "d-%u", i);
        sql_unit_step(unit, &put_device, 1);
        sql_unit_text(unit, span_of(user_did(now.devices[i].user)));
        sql_unit_text(unit, span_of(device));
        sql_unit_blob(unit, "key", 3);
        CHECK_EQ_INT(sql_write_wait(now.sql, unit), 0);
        sql_unit_destroy(unit);
        if (percent(&now.s, 20))
            continue;
        unit = token_unit(i, new_token(i));
        CHECK_EQ_INT(sql_write_wait(now.sql, unit), 0);
        sql_unit_destroy(unit);
    }
}

static void start_listeners(void)
{
    memset(listeners, 0, sizeof listeners);
    for (uint32_t i = 0; i < LISTENERS; i++)
        CHECK_EQ_INT(
            tr_spawn(now.s.system, &listener_type, &(struct listener_seat){ i },
                &(struct tr_spawn_options){ .owner = "the scenario", .box = { .capacity = 4096 } },
                &listeners[i].sender),
            0);
}

static void begin(uint64_t seed)
{
    struct scenario *s = &now.s;

    memset(&now, 0, sizeof now);
    memset(&world, 0, sizeof world);
    memset(&people, 0, sizeof people);
    mood = moods[MOOD_WELL];
    scenario_begin(s, seed, NULL);
    now.interval_ns = (uint64_t[]){ 100, 500, 2000, 5000, 30000 }[below(s, 5)] * MS;
    now.device_count = percent(s, 10) ? DEVICES_MAX : between(s, 3, 12);
    people.pause_ns = now.interval_ns / between(s, 1, 10) * 4;
    world.idle_ns = percent(s, 30) ? now.interval_ns : TR_SECONDS(300);
    now.sent_before = counter(SENT);
    now.failed_before = counter(FAILED);
    now.forgotten_before = counter(FORGOTTEN);
    now.dropped = counter(DROPPED);
    CHECK_EQ_INT(try_open(), 0);
    make_devices();
    start_service();
    start_listeners();
    world.clock = start_clock(now.interval_ns / TICKS);
}

/* Fails for a wake-up that is owed for longer than `limit_ns`. */
static void run_for(uint64_t duration_ns, uint64_t limit_ns)
{
    uint64_t until_ns = time_ns() + duration_ns;

    for (uint32_t i = 0; time_ns() < until_ns && !world.has_failed; i++) {
        if (!tr_sim_step(now.s.sim))
            return;
        now.s.steps++;
        if (i % CHECK_EVERY == 0)
            check_owed_by(limit_ns);
    }
}

static void trouble(void)
{
    struct scenario *s = &now.s;

    if (!world.has_failed && percent(s, 20))
        kill_convo(below(s, CONVOS));
    if (!world.has_failed && percent(s, 20))
        restart_push();
    if (world.has_failed || percent(s, 10))
        end_and_recover(percent(s, 50));
    world.lose_percent = percent(s, 30) ? between(s, 1, 30) : 0;
    world.fail_percent = percent(s, 30) ? between(s, 1, 30) : 0;
    set_faults(percent(s, 20)
                   ? &(struct tr_disk_faults){ .eio_per_million = between(s, 1, 5) * 1000 }
                   : NULL);
}

/* Sends nothing new, so that an owed wake-up cannot come by accident. */
static void lull(void)
{
    people.is_silent = true;
    run_for(TR_SECONDS(2 * LIMIT_S), patience_ns());
    people.is_silent = false;
    people.is_quiet = true;
    run_for(patience_ns() + TR_SECONDS(1), patience_ns());
    people.is_quiet = false;
}

static void storm(void)
{
    struct scenario *s = &now.s;
    bool is_troubled = percent(s, 60);
    uint32_t rounds = between(s, 2, 5);

    for (uint32_t i = 0; i < rounds; i++) {
        mood = moods[percent(s, 30) ? MOOD_WELL : below(s, MOODS)];
        if (is_troubled)
            trouble();
        run_for(people.pause_ns * between(s, 1, 8), patience_ns());
        if (percent(s, 25))
            lull();
    }
}

static void check_counters(void)
{
    uint64_t sent = (uint64_t)(counter(SENT) - now.sent_before);
    uint64_t failed = (uint64_t)(counter(FAILED) - now.failed_before);
    uint64_t forgotten = (uint64_t)(counter(FORGOTTEN) - now.forgotten_before);
    bool is_one_life = now.life == 1; /* one that is killed counts no more */

    CHECK_MSG(is_one_life ? sent == now.taken : sent <= now.taken,
        "counted: %llu are sent, and %llu were taken", (unsigned long long)sent,
        (unsigned long long)now.taken);
    CHECK_MSG(failed <= now.refused + now.given_up_max && (failed >= now.refused || !is_one_life),
        "counted: %llu have failed; %llu were refused, and %llu may have been given up",
        (unsigned long long)failed, (unsigned long long)now.refused,
        (unsigned long long)now.given_up_max);
    CHECK_MSG(forgotten <= now.gone, "counted: %llu are forgotten, and %llu were gone",
        (unsigned long long)forgotten, (unsigned long long)now.gone);
    seen.given_up += failed - (failed < now.refused ? failed : now.refused);
    seen.deleted += forgotten;
}

/* Ends all faults: owed wake-ups come, and then the system rests. */
static void heal(void)
{
    mood = moods[MOOD_WELL];
    world.lose_percent = world.fail_percent = 0;
    if (world.has_failed)
        end_and_recover(true);
    if (now.calm_ns != 0)
        set_faults(NULL);
    people.is_quiet = true;
    run_for(patience_ns() + TR_SECONDS(CALM_S), patience_ns());
    CHECK_MSG(people.busy == 0, "healed: %u wait for an answer", people.busy);
    check_owed_by(0);
    CHECK_MSG(under_way() == 0, "healed: %u are under way", under_way());
    check_counters();
    people.is_quiet = false;
    run_for(people.pause_ns * 10, promptly_ns());
    people.is_quiet = true;
    run_for(promptly_ns(), promptly_ns());
    check_owed_by(0);
}

/* In the middle of everything, and nobody answers. */
static void end(void)
{
    mood = moods[MOOD_NEVER];
    people.is_quiet = false;
    run_for(people.pause_ns * 5, patience_ns());
    stop_service();
    sql_close(&now.sql);
    stop_clock(&world.clock);
    for (uint32_t i = 0; i < LISTENERS; i++) {
        (void)tr_kill(tr_sender_weaken(listeners[i].sender));
        if (listeners[i].is_open)
            tr_sender_drop(&listeners[i].watcher);
        tr_sender_drop(&listeners[i].sender);
    }
    CHECK_MSG(tr_sim_run(now.s.sim, STEPS_MAX) < STEPS_MAX, "ending: somebody is still busy");
}

static uint64_t run(uint64_t seed)
{
    static int nowhere = -1;

    /* A database that fails has much to say. */
    if (getenv("TROUPE_VERBOSE") == NULL && nowhere < 0) {
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        log_setup(nowhere, LOG_LOGFMT, LOG_ERROR);
    }
    begin(seed);
    storm();
    heal();
    end();
    return scenario_end(&now.s);
}

static void report(void)
{
    scenario_report();
    printf("%llu requests, %llu stored; %llu wishes owed, %llu of them told, %llu excused; %llu "
           "tokens left, %llu taken back; %llu streams heard %llu events; %llu posts: %llu taken, "
           "%llu refused, %llu gone, %llu in trouble (%llu cut, %llu never answered), %llu slow; "
           "%llu tried again, %llu given up, %llu tokens deleted, %llu replaced first, %llu "
           "times 64 under way; %llu "
           "drops, %llu connections lost, %llu reads failed, %llu failed disks; %llu actors and "
           "%llu conversations killed, %llu recoveries; %llu ends, %llu of them with wake-ups "
           "under way\n",
        (unsigned long long)seen.requests, (unsigned long long)seen.stored,
        (unsigned long long)seen.owed, (unsigned long long)seen.told,
        (unsigned long long)seen.excused, (unsigned long long)seen.tokens,
        (unsigned long long)seen.withdrawals, (unsigned long long)seen.streams,
        (unsigned long long)seen.heard, (unsigned long long)seen.posts,
        (unsigned long long)seen.taken, (unsigned long long)seen.refused,
        (unsigned long long)seen.gone, (unsigned long long)seen.troubled,
        (unsigned long long)seen.cut, (unsigned long long)seen.never, (unsigned long long)seen.slow,
        (unsigned long long)seen.retries, (unsigned long long)seen.given_up,
        (unsigned long long)seen.deleted, (unsigned long long)seen.replaced,
        (unsigned long long)seen.saturated, (unsigned long long)seen.drops,
        (unsigned long long)seen.lost, (unsigned long long)seen.failed_reads,
        (unsigned long long)seen.fatal, (unsigned long long)seen.push_kills,
        (unsigned long long)seen.convo_kills, (unsigned long long)seen.recovers,
        (unsigned long long)seen.ends, (unsigned long long)seen.hung_ends);
}

TEST_LONG(push, wakes_whom_it_must_and_nobody_else_whatever_fails, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 150);)
        run(seed);
    report();
    CHECK_COVERED(seen.stored, 50000);
    CHECK_COVERED(seen.told, 100000);
    CHECK_COVERED(seen.tokens, 10000);
    CHECK_COVERED(seen.withdrawals, 5000);
    CHECK_COVERED(seen.heard, 10000);
    CHECK_COVERED(seen.taken, 60000);
    CHECK_COVERED(seen.refused, 200);
    CHECK_COVERED(seen.gone, 1000);
    CHECK_COVERED(seen.troubled, 5000);
    CHECK_COVERED(seen.cut, 1000);
    CHECK_COVERED(seen.never, 3000);
    CHECK_COVERED(seen.slow, 3000);
    CHECK_COVERED(seen.retries, 3000);
    CHECK_COVERED(seen.given_up, 50);
    CHECK_COVERED(seen.deleted, 500);
    CHECK_COVERED(seen.replaced, 5);
    CHECK_COVERED(seen.saturated, 50);
    CHECK_COVERED(seen.drops, 500);
    CHECK_COVERED(seen.lost, 3000);
    CHECK_COVERED(seen.failed_reads, 500);
    CHECK_COVERED(seen.fatal, 20);
    CHECK_COVERED(seen.push_kills, 50);
    CHECK_COVERED(seen.recovers, 100);
    CHECK_COVERED(seen.hung_ends, 300);
}

TEST_LONG(push, is_replayed_from_its_seed, 60)
{
    check_traces(run, 6);
}
