/* SPDX-License-Identifier: Apache-2.0 */
/* sim_delivery.c: the conversations of the delivery service, on a real SQLite and a disk that
 * fails, fills up and loses power.
 *
 * Clients race commits, messages, joins, leaves and reads on four conversations: one is mls, one
 * numbered, the third becomes what its first commit is, and in the fourth, mls too, members report
 * commits, or confirm the epochs they made, and admins begin another group, several at once, by the
 * same name or by one that was used before. They ask again for what they asked before, with a new
 * token or the old one. Meanwhile conversations are killed, connections are lost before, in and
 * after a COMMIT, the writer is killed, the disk fails, the power is cut. After every COMMIT the
 * truth is read from the database (delivery_facts.h). Others listen, go away and come back with
 * their cursor (delivery_listeners.h). In one run of five some or all conversations are served
 * without their actors (direct.h), and which ones they are changes; in one of four admins change
 * all the time. Checked, by name:
 *
 *   epochs    1, 2, 3 …, one commit each, none twice, none left out; a commit moves its own epoch
 *   seqs      the same of sequence numbers; they never go back
 *   acked     who is told that something is stored is told after the COMMIT that stored it
 *   durable   and then it is there for good, with the numbers that were told
 *   whole     commit, members, message that goes with it, token: all there, or nothing
 *   once      the same op is stored once
 *   quoted    a 409 quotes stored commits alone, from the loser's epoch on; at least one (conflict)
 *   current   an epoch in an answer was the stored one at some moment during the request; a poll
 *             returns no less than was stored when it began
 *   members   stored messages are of members; views show the members of one moment; a listener
 *             gets the messages of the time of its membership
 *   admins    there is always one
 *   refused   a refusal says what was so at some moment, and nothing of it is stored
 *   repeated  the same bytes again get the first answer
 *   answered  every request ends, with a status
 *   heard     who listens hears everything after its cursor, once and in order, and does not wait
 *             for anybody to ask for something
 *   ahead     whose cursor is not in the log is told so, with where that ends; nobody else is
 *   committed and nothing before its COMMIT
 *   ended     the stream of whom a commit removes ends behind that commit, within a second; no
 *             stream stays open behind an actor that is gone
 *   revoked   a commit is taken back by more than half of those who were in before and after it,
 *             each counted once, and never when a member has confirmed its epoch or spoken in it;
 *             then the members are those of before, but for who left by it, and the next commit
 *             gets its epoch
 *   reset     one reset, by an admin, begins a group, and no two have the same name; a message of
 *             one group is refused in another; numbers and members continue, epochs begin again; a
 *             repeated request of a former group gets the first answer
 *   readable  everybody reads what was said while it was in, and nothing else
 *   checks    what `troupe check delivery` looks for is not there
 *   marked    what a member marked as unread is so until it reads on, and not after that
 *   linear    all answers together are possible for one copy that does one thing at a time
 *             (linear.h)
 *   healed    when everything is well again, everything is answered, soon, and nothing with 503
 *   idle      then the actors know what the database knows, and nothing is planned */
#include <fcntl.h>

#include "auth/auth.h"
#include "delivery_listeners.h"
#include "delivery_marks.h"
#include "delivery_tables.h"
#include "ops/flags.h"
#include "ops/service.h"
#include "services/delivery/store/check.h"
#include "sql/runner.h"
#include "support/log.h"

enum { HEALED_S_MAX = 60 }; /* of virtual time */

static struct sql_migration *migrations;
static size_t migration_count;

/* ---- a connection that gets lost, and the truth after every COMMIT -------------------------- */

static void set_faults(const struct tr_disk_faults *faults)
{
    static const struct tr_disk_faults none;

    tr_sim_disk_faults(now.s.sim, faults != NULL ? faults : &none);
    world.faults = faults != NULL ? *faults : none;
    note_trouble();
}

static bool is_lost(uint32_t percent_of_batches)
{
    if (world.lose_percent == 0 || world.is_opening || !percent(&now.s, percent_of_batches))
        return false;
    note_trouble();
    return true;
}

static void look_after_commit(struct sql_connection *connection)
{
    struct sql_unit *unit = truth_unit();
    struct tr_disk_faults faults = world.faults;
    uint64_t calm_ns = world.calm_ns;

    set_faults(NULL);
    CHECK_EQ_INT(sql_sqlite.read(connection, &unit, 1), 0);
    atomic_store(&unit->state, SQL_DONE);
    set_faults(&faults);
    world.calm_ns = calm_ns;
    /* On files that died with the power: the COMMIT of who had decided to store nothing. */
    CHECK_MSG(unit->status == 0 || world.is_dark, "looking: %s", unit->why);
    if (unit->status == 0)
        truth_learn(unit);
    sql_unit_destroy(unit);
}

static void lose(struct sql_unit *const *units, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (units[i]->status != 0)
            continue;
        sql_unit_reset_results(units[i]);
        sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "lost");
    }
    seen.lost++;
}

static bool is_any_stored(struct sql_unit *const *units, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0)
            return true;
    return false;
}

static int flaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool is_lost_in_commit;
    int rc;

    if (world.is_opening)
        return sql_sqlite.commit(connection, units, count);
    if (is_lost(world.lose_percent)) {
        seen.lost++;
        return TR_ECLOSED;
    }
    is_lost_in_commit = is_lost(world.lose_percent);
    if (is_lost_in_commit && percent(&now.s, 50)) { /* it never arrived */
        for (size_t i = 0; i < count; i++)
            units[i]->status = 0;
        lose(units, count);
        return SQL_EUNKNOWN;
    }
    rc = sql_sqlite.commit(connection, units, count);
    if (rc != 0)
        return rc;
    if (is_any_stored(units, count)) /* else there may be no disk any more */
        look_after_commit(connection);
    if (!is_lost_in_commit)
        return 0;
    lose(units, count); /* it happened, and nobody knows */
    seen.lost_there++;
    return SQL_EUNKNOWN;
}

static void refuse(struct sql_unit *const *units, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sql_unit_reset_results(units[i]);
        sql_unit_fail(units[i], -1, SQL_EFAILED, "not now");
    }
    note_trouble();
    seen.unread++;
}

static int flaky_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    if (is_lost(world.lose_percent))
        return TR_ECLOSED;
    if (world.unread_percent == 0 || world.is_opening || !percent(&now.s, world.unread_percent))
        return sql_sqlite.read(connection, units, count);
    refuse(units, count);
    return 0;
}

static int flaky_connect(void *database, bool is_writer, struct sql_connection **ret_connection,
    char *why, size_t why_size)
{
    if (is_lost(50)) {
        (void)snprintf(why, why_size, "not now");
        return TR_ECLOSED;
    }
    return sql_sqlite.connect(database, is_writer, ret_connection, why, why_size);
}

static struct sql_backend flaky;

/* ---- the service ---------------------------------------------------------------------------- */

static void on_fatal(void *data, const char *line)
{
    (void)data;
    (void)line;
    seen.fatal++;
    world.has_failed = true;
    world.is_down = true;
}

static int try_open(void)
{
    char why[300];
    int rc;

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
            .queue_max = 64,
            .backend = &flaky,
            .in_simulation = true,
            .fatal = on_fatal },
        why, sizeof why, &now.sql);
    world.is_opening = false;
    if (rc < 0)
        seen.open_failed++;
    CHECK_MSG(rc == 0 || rc == SQL_EDISK || rc == TR_EACCES || rc == TR_ECLOSED ||
                  rc == SQL_EUNKNOWN || rc == SQL_EFAILED,
        "open: %s: %s", sql_error_text(rc), why);
    return rc;
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
        .lease_s = 600,
        .turn_ms = world.turn_ms };
    CHECK_EQ_INT(tr_registry_create(now.s.system,
                     &(struct tr_registry_options){ .name = "convos",
                         .type = &convo_type,
                         .make = convo_slot_make,
                         .data = &now.delivery,
                         .box = { .capacity = world.box_capacity, .full = TR_FULL_FAIL },
                         .idle_ns = world.idle_ns },
                     &now.delivery.convos),
        0);
    if (world.has_direct)
        CHECK_EQ_INT(direct_start(&now.delivery, &now.delivery.direct), 0);
}

static void draw_direct(void)
{
    if (world.has_direct)
        (void)flags_set("delivery.direct", below(&now.s, 3) * FLAG_ALL / 2); /* kept in no file */
}

/* Its units in flight continue without it. */
static void kill_worker(uint32_t convo)
{
    (void)tr_kill(
        tr_sender_weaken(direct_worker_of(now.delivery.direct, span_of(convo_id(convo)))));
}

static void kill_convo(uint32_t convo)
{
    tr_sender sender;

    if (tr_registry_find(now.delivery.convos, convo_id(convo), strlen(convo_id(convo)),
            "the scenario", &sender) < 0)
        return;
    (void)tr_kill(tr_sender_weaken(sender));
    tr_sender_drop(&sender);
    note_trouble();
    seen.convo_kills++;
}

/* The actors are gone at once; their units in flight may be stored or not. */
static void stop_service(void)
{
    for (uint32_t i = 0; i < CONVOS && now.delivery.direct != NULL; i++)
        kill_worker(i);
    (void)direct_stop(&now.delivery.direct); /* the database may still be at it */
    for (uint32_t i = 0; i < CONVOS; i++)
        kill_convo(i);
    CHECK_MSG(tr_registry_close(&now.delivery.convos, 0) == 0, "liveness: the registry stays");
}

static void close_database(void)
{
    sql_close(&now.sql);
    CHECK_MSG(direct_stop(&now.delivery.direct), "liveness: a decision is still to be made");
}

static struct sql_unit *look(const struct sql_statement *statement)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    rc = sql_read_wait(now.sql, unit);
    CHECK_MSG(rc == 0, "looking: %s: %s", sql_error_text(rc), sql_unit_why(unit));
    return unit;
}

static void on_violation(void *data, const char *check, struct span convo, const char *text)
{
    (void)data;
    CHECK_MSG(false, "checks: %s of %.*s: %s", check, (int)convo.size, convo.at, text);
}

/* Reads everything anew: every answer that a client got must still hold. */
static void check_database(void)
{
    struct sql_unit *unit;
    uint64_t violations;

    for (uint32_t i = 0; i < CONVOS; i++)
        now.truths[i] = (struct truth){ .shown_seq = now.truths[i].shown_seq };
    memset(now.op_seqs, 0, sizeof now.op_seqs);
    memset(now.revoked_seqs, 0, sizeof now.revoked_seqs);
    now.log_rowid = 0;
    unit = truth_unit();
    CHECK_EQ_INT(sql_read_wait(now.sql, unit), 0);
    now.is_reading_anew = true;
    truth_learn(unit);
    now.is_reading_anew = false;
    sql_unit_destroy(unit);
    for (uint32_t i = 0; i < CONVOS; i++)
        CHECK_MSG(now.truths[i].seq >= now.truths[i].shown_seq,
            "durable: %s is at %llu, and somebody was told of %llu", convo_id(i),
            (unsigned long long)now.truths[i].seq, (unsigned long long)now.truths[i].shown_seq);
    check_heard_is_there();
    check_all_told();
    unit = look(&all_tokens);
    check_tokens(unit);
    sql_unit_destroy(unit);
    unit = look(&all_marks);
    check_marks(unit);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(delivery_check(now.sql, on_violation, NULL, &violations), 0);
}

SQL_STATEMENT(all_readable,
    "SELECT l.convo, l.seq FROM log l WHERE l.kind NOT IN (4, 6)"
    " AND (l.kind <> 1 OR LENGTH(l.bytes) > 0)" LOG_SEEN_BY("l.convo", "$1"));

/* Everybody reads what was said while it was in, before a reset and after, and nothing else. */
static void check_readable(uint32_t user)
{
    static bool is_readable[CONVOS][SEQS_MAX];
    struct sql_unit *unit = sql_unit_create(0);

    memset(is_readable, 0, sizeof is_readable);
    sql_unit_step(unit, &all_readable, SQL_ROWS_ANY);
    sql_unit_text(unit, span_of(user_did(user)));
    CHECK_EQ_INT(sql_read_wait(now.sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++)
        is_readable[convo_of(sql_row_bytes(unit, 0, i, 0))][sql_row_int(unit, 0, i, 1)] = true;
    sql_unit_destroy(unit);
    for (uint32_t convo = 0; convo < CONVOS; convo++)
        for (uint64_t seq = 2; seq <= now.truths[convo].seq; seq++)
            CHECK_MSG(is_readable[convo][seq] == (is_in(&now.truths[convo], seq - 1, user) &&
                                                     !is_passed_over(&now.truths[convo], seq)),
                "readable: %s %s %llu of %s", user_did(user),
                is_readable[convo][seq] ? "was not in, and reads" : "was in, and does not read",
                (unsigned long long)seq, convo_id(convo));
}

/* The "process" ends, with or without the machine, and another one recovers. */
static void end_and_recover(bool is_power_cut, const struct tr_disk_faults *faults)
{
    uint32_t lose_percent = world.lose_percent, unread_percent = world.unread_percent;

    world.is_down = true;
    world.is_dark = is_power_cut;
    if (is_power_cut) {
        tr_sim_disk_crash(now.s.sim);
        seen.cuts++;
    } else {
        seen.kills++;
    }
    stop_service();
    close_database();
    if (is_power_cut) /* closing wrote nothing: every file it had open is dead */
        tr_sim_disk_crash(now.s.sim);
    world.is_dark = false;
    set_faults(faults);
    for (int tries = 0; now.sql == NULL; tries++) {
        world.has_failed = false;
        if (tries == 3)
            set_faults(NULL);
        if (try_open() < 0 && is_power_cut)
            tr_sim_disk_crash(now.s.sim);
        CHECK_MSG(tries < 5, "healed: it does not open");
    }
    set_faults(NULL);
    world.lose_percent = world.unread_percent = 0; /* while we look */
    check_database();
    world.lose_percent = lose_percent;
    world.unread_percent = unread_percent;
    start_service();
    world.has_failed = false;
    world.is_down = false;
    note_trouble();
}

static void kill_writer(void)
{
    (void)tr_kill(tr_sender_weaken(sql_runner_sender(now.sql->writers[0])));
    seen.writer_kills++;
}

/* ---- the run -------------------------------------------------------------------------------- */

static void run_steps(uint32_t steps)
{
    for (uint32_t i = 0; i < steps && !world.has_failed; i++) {
        if (!tr_sim_step(now.s.sim))
            return;
        now.s.steps++;
    }
}

static void start_clients(void)
{
    for (uint32_t i = 0; i < world.clients; i++) {
        struct client client = { .index = i };

        world.left[i] = between(&now.s, 5, 60);
        CHECK_EQ_INT(tr_spawn(now.s.system, &client_type, &client,
                         &(struct tr_spawn_options){ .owner = "the scenario" }, &world.senders[i]),
            0);
    }
}

static bool is_all_done(void)
{
    for (uint32_t i = 0; i < world.clients; i++)
        if (world.left[i] > 0)
            return false;
    return now.open_count == 0;
}

static void finish_requests(const char *when)
{
    uint64_t begin_ns = tr_sim_now_ns(now.s.sim);

    for (uint32_t i = 0; i < STEPS_MAX && !is_all_done(); i++) {
        CHECK_MSG(
            tr_sim_step(now.s.sim), "answered: nothing is left to do and clients wait (%s)", when);
        now.s.steps++;
    }
    CHECK_MSG(is_all_done(), "answered: clients wait for their answers (%s)", when);
    CHECK_MSG(tr_sim_now_ns(now.s.sim) - begin_ns < HEALED_S_MAX * UINT64_C(1000000000),
        "healed: it took too long (%s)", when);
}

/* Ends all faults: requests in flight end, and then everything works at once. */
static void heal(void)
{
    set_faults(NULL);
    world.lose_percent = 0;
    if (world.has_failed)
        end_and_recover(true, NULL);
    if (world.unread_percent > 0)
        world.unread_percent = 100; /* so that nothing but what was refused is left to hear */
    finish_requests("healing");
    world.unread_percent = 0;
    hall.is_quiet = true;
    check_listeners();
    hall.is_quiet = false;
    tr_sim_run_until(now.s.sim, tr_sim_now_ns(now.s.sim) + 5000 * MS);
    world.is_healed = true;
    for (uint32_t i = 0; i < world.clients; i++) {
        uint32_t message = 0;

        world.left[i] = 8;
        CHECK_EQ_INT(tr_tell(world.senders[i], &message, sizeof message), 0);
    }
    finish_requests("healed");
    hall.is_quiet = true;
    check_listeners();
}

static struct act *ask_now(const struct act_type *kind, uint32_t convo, uint32_t user)
{
    struct auth_claims claims = { .kind = AUTH_SERVICE,
        .issuer = span_of(user_did(user)),
        .jti = SPAN("t-0"),
        .expires_s = UINT32_MAX };
    struct act *act = act_create(kind, &claims);
    struct act_envelope message = { .act = act_ref(act) };
    struct tr_future *future;
    tr_sender sender;

    act->convo = span_of(convo_id(convo));
    CHECK_EQ_INT(tr_registry_get(
                     now.delivery.convos, act->convo.at, act->convo.size, "the scenario", &sender),
        0);
    CHECK_EQ_INT(tr_ask_future(sender, &message, sizeof message, 0, &future), 0);
    tr_sender_drop(&sender);
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, 0), 0);
    tr_future_drop(&future);
    CHECK_MSG(act->status == 200, "idle: %s answers %u %s", convo_id(convo), act->status,
        act->label == NULL ? "" : act->label);
    return act;
}

static void check_idle(uint32_t convo)
{
    const struct truth *truth = &now.truths[convo];
    unsigned members = truth->rows[truth->seq].members;
    struct json_doc doc = { 0 };
    struct act *act = ask_now(&state_act_type, convo, 0);
    const struct json *state;

    CHECK_EQ_INT(json_parse_copy(&doc, answer_of(act), 0), 0);
    state = json_root(&doc);
    CHECK_MSG(int_of(state, "epoch") == (int64_t)truth->epoch &&
                  int_of(state, "seq") == (int64_t)truth->seq &&
                  int_of(state, "plannedEpoch") == (int64_t)truth->epoch &&
                  int_of(state, "plannedSeq") == (int64_t)truth->seq &&
                  int_of(state, "members") == __builtin_popcount(members) &&
                  int_of(state, "inFlight") == 0 && int_of(state, "waiting") == 0,
        "idle: %s says %.*s, and stored is %llu in epoch %llu with %d members", convo_id(convo),
        (int)act->answer.size, act->answer.bytes, (unsigned long long)truth->seq,
        (unsigned long long)truth->epoch, __builtin_popcount(members));
    json_doc_free(&doc);
    act_unref(act);
    for (uint32_t user = 0; user < USERS; user++) {
        if ((members & 1U << user) == 0)
            continue;
        act = ask_now(&view_act_type, convo, user);
        for (uint32_t other = 0; other < USERS; other++) {
            char did[40];

            (void)snprintf(did, sizeof did, "\"%s\"", user_did(other));
            CHECK_MSG((memmem(strstr(act->answer.bytes, "\"members\""),
                           act->answer.size - (size_t)(strstr(act->answer.bytes, "\"members\"") -
                                                       act->answer.bytes),
                           did, strlen(did)) != NULL) == ((members & 1U << other) != 0),
                "idle: %s disagrees about %s", convo_id(convo), user_did(other));
        }
        act_unref(act);
        break;
    }
}

static void begin(uint64_t seed)
{
    struct scenario *s = &now.s;

    if (migrations == NULL)
        migrations = delivery_tables(&migration_count);
    memset(&now, 0, sizeof now);
    memset(&world, 0, sizeof world);
    scenario_begin(s, seed, NULL);
    world.clients = between(s, 2, CLIENTS_MAX);
    world.lose_percent = percent(s, 50) ? between(s, 1, 20) : 0;
    world.repeat_percent = below(s, 4) * 8;
    world.box_capacity = percent(s, 20) ? 4 : 256;
    world.turn_ms = percent(s, 50) ? between(s, 1, 200) : 0;
    world.idle_ns = percent(s, 30) ? between(s, 1, 20) * MS : TR_SECONDS(300);
    world.unread_percent = seed % 10 == 1 || seed % 10 == 2 ? 20 : 0;
    world.has_direct = seed % 5 == 2; /* so that the others stay what they were */
    world.has_roles = seed % 5 == 3 || seed % 20 == 7;
    direct_register();
    (void)flags_set("delivery.direct", 0);
    draw_direct();
    CHECK_EQ_INT(try_open(), 0);
    start_service();
    start_clients();
    start_listeners(seed);
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_disk_faults faults;
    uint32_t rounds, kill_percent;
    static int nowhere = -1;

    /* A disk that fails has much to say. */
    if (getenv("TROUPE_VERBOSE") == NULL && nowhere < 0) {
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        log_setup(nowhere, LOG_LOGFMT, LOG_ERROR);
    }
    begin(seed);
    faults = (struct tr_disk_faults){ .eio_per_million = below(s, 3) * 1000,
        .short_per_million = below(s, 3) * 1000,
        .bytes_max = percent(s, 20) ? 400000 + below(s, 300000) : 0 };
    seen.full += faults.bytes_max != 0;
    kill_percent = below(s, 3) * 20;
    rounds = between(s, 2, 10);
    for (uint32_t i = 0; i < rounds; i++) {
        set_faults(percent(s, 50) ? &faults : NULL);
        run_steps(below(s, 300));
        draw_direct();
        if (!world.has_failed && percent(s, kill_percent))
            kill_convo(below(s, CONVOS));
        if (!world.has_failed && percent(s, 5)) {
            kill_writer();
            run_steps(below(s, 100));
            world.has_failed = true;
        }
        if (world.has_failed || percent(s, 25))
            end_and_recover(percent(s, 70), percent(s, 30) ? &faults : NULL);
    }
    heal();
    for (uint32_t i = 0; i < CONVOS; i++) {
        check_history(i);
        if (now.truths[i].is_there)
            check_idle(i);
    }
    for (uint32_t i = 0; i < world.clients; i++)
        tr_sender_drop(&world.senders[i]);
    end_and_recover(true, NULL);
    for (uint32_t i = 0; i < USERS; i++)
        check_readable(i);
    stop_service();
    close_database();
    tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 100 * MS);
    check_all_ended();
    stop_listeners();
    CHECK_MSG(tr_sim_run(s->sim, STEPS_MAX) < STEPS_MAX, "answered: somebody is still busy");
    return scenario_end(s);
}

static void report(void)
{
    scenario_report();
    printf(
        "%llu requests ended, %llu of them unknown, %llu unavailable; %llu stored (%llu commits, "
        "%llu joins, %llu messages), %llu repeated, %llu conflicts, %llu refused, %llu replayed, "
        "%llu reads, %llu views, %llu polls from memory and %llu from the database, %llu not sent, "
        "%llu without an actor; "
        "%llu streams heard %llu entries, %llu were slow, %llu ended by a removal, %llu open at "
        "the "
        "end, %llu began at the end of the log or behind it (%llu were told so); "
        "%llu confirmations, %llu reports, %llu commits taken back; %llu groups begun anew "
        "(heard %llu times), %llu not, because another had the name, %llu refused as of another "
        "group; %llu marks and %llu cursors checked; %llu ops of histories; "
        "%llu power cuts, %llu "
        "process kills, %llu conversation kills, %llu writer kills, %llu failed disks, %llu full "
        "disks, %llu lost connections (%llu after the COMMIT), %llu refused reads, %llu failed "
        "opens\n",
        (unsigned long long)seen.ended, (unsigned long long)seen.unknown,
        (unsigned long long)seen.unavailable, (unsigned long long)seen.stored,
        (unsigned long long)seen.commits, (unsigned long long)seen.joins,
        (unsigned long long)seen.messages, (unsigned long long)seen.repeated,
        (unsigned long long)seen.conflicts, (unsigned long long)seen.refused,
        (unsigned long long)seen.replayed, (unsigned long long)seen.reads,
        (unsigned long long)seen.views, (unsigned long long)seen.polls,
        (unsigned long long)seen.polls_read, (unsigned long long)seen.not_sent,
        (unsigned long long)seen.direct, (unsigned long long)seen.streams,
        (unsigned long long)seen.heard, (unsigned long long)seen.slow,
        (unsigned long long)seen.ends_removed, (unsigned long long)seen.listening,
        (unsigned long long)seen.edges, (unsigned long long)seen.ahead,
        (unsigned long long)seen.confirms, (unsigned long long)seen.reports,
        (unsigned long long)seen.revokes, (unsigned long long)seen.resets,
        (unsigned long long)seen.resets_heard, (unsigned long long)seen.resets_lost,
        (unsigned long long)seen.of_another_group, (unsigned long long)seen.marks,
        (unsigned long long)seen.reads_to, (unsigned long long)seen.linear_ops,
        (unsigned long long)seen.cuts, (unsigned long long)seen.kills,
        (unsigned long long)seen.convo_kills, (unsigned long long)seen.writer_kills,
        (unsigned long long)seen.fatal, (unsigned long long)seen.full,
        (unsigned long long)seen.lost, (unsigned long long)seen.lost_there,
        (unsigned long long)seen.unread, (unsigned long long)seen.open_failed);
}

TEST_LONG(delivery, keeps_epochs_members_and_answers_right_whatever_fails, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 400);)
        run(seed);
    report();
    CHECK_COVERED(seen.commits, 10000);
    CHECK_COVERED(seen.messages, 12000);
    CHECK_COVERED(seen.repeated, 2000);
    CHECK_COVERED(seen.polls, 500);
    CHECK_COVERED(seen.polls_read, 1000);
    CHECK_COVERED(seen.conflicts, 4000);
    CHECK_COVERED(seen.direct, 2000);
    CHECK_COVERED(seen.replayed, 200);
    CHECK_COVERED(seen.heard, 20000);
    CHECK_COVERED(seen.slow, 1000);
    CHECK_COVERED(seen.ends_removed, 100);
    CHECK_COVERED(seen.listening, 300);
    CHECK_COVERED(seen.edges, 1000);
    CHECK_COVERED(seen.ahead, 500);
    CHECK_COVERED(seen.reports, 500);
    CHECK_COVERED(seen.confirms, 200);
    CHECK_COVERED(seen.revokes, 200);
    CHECK_COVERED(seen.resets, 200);
    CHECK_COVERED(seen.resets_heard, 50);
    CHECK_COVERED(seen.resets_lost, 50);
    CHECK_COVERED(seen.of_another_group, 200);
    CHECK_COVERED(seen.marks, 500);
    CHECK_COVERED(seen.reads_to, 500);
    CHECK_COVERED(seen.unknown, 4000);
    CHECK_COVERED(seen.cuts, 2000);
    CHECK_COVERED(seen.kills, 300);
    CHECK_COVERED(seen.convo_kills, 3000);
    CHECK_COVERED(seen.writer_kills, 100);
    CHECK_COVERED(seen.fatal, 200);
    CHECK_COVERED(seen.lost, 1000);
    CHECK_COVERED(seen.lost_there, 200);
    CHECK_COVERED(seen.unread, 200);
}

TEST_LONG(delivery, is_replayed_from_its_seed, 60)
{
    check_traces(run, 6);
}
