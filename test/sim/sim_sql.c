/* SPDX-License-Identifier: Apache-2.0 */
/* sim_sql.c: SQLite on a disk that fails, fills up and loses power.
 *
 * Every client owns a conversation and pipelines units on it: a compare-and-set of its sequence
 * number and two rows that name the operation. Some units fail on purpose at their last step, after
 * they have changed everything; some expire; clients crash with units under way. The disk fails
 * reads, writes and syncs, stores half of them, is full for a while. A failed write or sync ends
 * the "process", as does a power cut, which keeps, tears or loses unsynced data. Then the database
 * is opened again and recovers. Checked:
 *
 *   durable   a unit that ended as stored is there after every crash
 *   whole     both rows of a unit are there, or none; sequence numbers have no gap
 *   nothing   a unit that ended as failed is never there
 *   order     units of a client are stored in the order of submission, and a unit that misses its
 *             compare-and-set has a predecessor that failed
 *   fresh     a read sees all units that ended before it
 *   liveness  once the disk works again, every client gets its quota and ends */
#include <fcntl.h>

#include "scenario.h"
#include "sql/backend.h"
#include "sql/sql.h"
#include "support/log.h"

enum {
    CLIENTS_MAX = 4,
    OPERATIONS_MAX = 4000,
    PIPELINE_MAX = 6,
    TAG_WRITE = 1, /* one tag for all units in the pipeline */
    TAG_READ = 2,
    TAG_AGAIN = 3,
};

enum fate_of_operation { UNUSED, UNDER_WAY, STORED, FAILED, UNKNOWN };

struct operation {
    enum fate_of_operation fate;
    uint32_t client;
    uint64_t sequence;
    bool is_there; /* found by the last read */
    bool is_half_there;
};

/* The state of a client in the scenario, which outlives its actor. */
struct client_facts {
    uint64_t stored_sequence; /* of the last operation that ended as stored */
    uint32_t left;
    bool is_done;
};

static struct {
    struct scenario s;
    struct sql *sql;
    uint32_t generation; /* of the database being open */
    bool is_down;        /* clients must not submit */
    bool has_failed;     /* the disk failed; the "process" must end */
    uint32_t clients;
    struct client_facts facts[CLIENTS_MAX];
    struct operation operations[OPERATIONS_MAX];
    uint32_t operation_count;
    uint32_t fail_percent, timeout_percent, crash_percent;
    uint32_t lose_percent; /* of batches: the connection */
    bool is_opening;
    tr_sender root, client_senders[CLIENTS_MAX];
} now;

static struct {
    uint64_t stored, failed, rows, unknown, disk, expired, shed, fatal, cuts, kills, full, crashes,
        reads, unknown_there, open_failed, lost;
} seen;

static const struct sql_migration migrations[] = { { 1, "conversations",
    "CREATE TABLE conversation (id BIGINT PRIMARY KEY, sequence BIGINT NOT NULL);\n"
    "INSERT INTO conversation VALUES (0, 0);\nINSERT INTO conversation VALUES (1, 0);\n"
    "INSERT INTO conversation VALUES (2, 0);\nINSERT INTO conversation VALUES (3, 0);\n"
    "CREATE TABLE entry (operation BIGINT PRIMARY KEY, conversation BIGINT NOT NULL, "
    "sequence BIGINT NOT NULL, body {blob}, UNIQUE (conversation, sequence));\n"
    "CREATE TABLE half (operation BIGINT PRIMARY KEY);\n",
    "DROP TABLE half;\nDROP TABLE entry;\nDROP TABLE conversation;\n" } };

SQL_STATEMENT(step_conversation,
    "UPDATE conversation SET sequence = sequence + 1 WHERE id = $1 AND sequence = $2");
SQL_STATEMENT(add_entry, "INSERT INTO entry VALUES ($1, $2, $3, $4)");
SQL_STATEMENT(add_half, "INSERT INTO half VALUES ($1)");
SQL_STATEMENT(read_conversation, "SELECT sequence FROM conversation WHERE id = $1");
SQL_STATEMENT(all_entries, "SELECT operation, conversation, sequence FROM entry");
SQL_STATEMENT(all_halves, "SELECT operation FROM half");
SQL_STATEMENT(all_conversations, "SELECT id, sequence FROM conversation ORDER BY id");
SQL_STATEMENT(integrity, "SELECT integrity_check FROM pragma_integrity_check");

/* ---- clients -------------------------------------------------------------------------------- */

struct pending {
    struct sql_unit *unit;
    uint32_t operation;
    bool must_fail;
};

struct client {
    uint32_t index;
    struct sql_client sql;
    uint32_t generation;
    struct pending pending[PIPELINE_MAX];
    uint32_t pending_count;
    uint64_t planned;
    bool needs_reload;
    bool is_reading;
    bool is_broken; /* since the last reload a unit was not, or may not have been, stored */
};

static void wait_a_little(struct tr_context *ctx)
{
    CHECK_EQ_INT(tr_after(ctx, MS + tr_random(ctx) % (5 * MS), TAG_AGAIN, NULL), 0);
}

static struct sql_unit *unit_of(
    struct client *self, uint32_t operation, bool must_fail, size_t body_size)
{
    static const char body[3000];
    struct sql_unit *unit = sql_unit_create(self->index);

    sql_unit_step(unit, &step_conversation, 1);
    sql_unit_int(unit, self->index);
    sql_unit_int(unit, (int64_t)self->planned);
    sql_unit_step(unit, &add_entry, 1);
    sql_unit_int(unit, operation);
    sql_unit_int(unit, self->index);
    sql_unit_int(unit, (int64_t)self->planned + 1);
    sql_unit_blob(unit, body, body_size);
    sql_unit_step(unit, &add_half, 1);
    sql_unit_int(unit, operation);
    if (must_fail) {
        sql_unit_step(unit, &add_half, 1);
        sql_unit_int(unit, operation);
    }
    return unit;
}

static void submit_write(struct client *self, struct tr_context *ctx)
{
    uint32_t id = now.operation_count++;
    struct operation *operation = &now.operations[id];
    struct sql_submit_options options = { .tag = TAG_WRITE };
    bool must_fail = tr_random(ctx) % 100 < now.fail_percent;
    struct sql_unit *unit = unit_of(self, id, must_fail, tr_random(ctx) % 3000);
    int rc;

    CHECK(id < OPERATIONS_MAX);
    *operation = (struct operation){
        .fate = UNDER_WAY, .client = self->index, .sequence = self->planned + 1
    };
    if (tr_random(ctx) % 100 < now.timeout_percent)
        options.timeout_ns = 1 + tr_random(ctx) % (3 * MS);
    rc = sql_write(ctx, &self->sql, unit, &options);
    if (rc < 0) {
        CHECK_MSG(rc == TR_EFULL, "a submit fails with %s", sql_error_text(rc));
        seen.shed++;
        operation->fate = FAILED;
        sql_unit_destroy(unit);
        return;
    }
    self->pending[self->pending_count++] =
        (struct pending){ .unit = unit, .operation = id, .must_fail = must_fail };
    if (!must_fail)
        self->planned++;
}

static void submit_read(struct client *self, struct tr_context *ctx)
{
    struct sql_unit *unit = sql_unit_create(self->index);
    int rc;

    sql_unit_step(unit, &read_conversation, 1);
    sql_unit_int(unit, self->index);
    rc = sql_read(ctx, &self->sql, unit, &(struct sql_submit_options){ .tag = TAG_READ });
    CHECK_EQ_INT(rc, 0);
    self->is_reading = true;
}

static void act(struct client *self, struct tr_context *ctx)
{
    struct client_facts *facts = &now.facts[self->index];

    if (facts->is_done || self->is_reading)
        return;
    if (now.is_down) {
        if (self->pending_count == 0)
            wait_a_little(ctx);
        return;
    }
    if (self->generation != now.generation || self->needs_reload) {
        if (self->pending_count > 0)
            return;
        if (self->generation != now.generation)
            sql_client_init(&self->sql, now.sql);
        self->generation = now.generation;
        submit_read(self, ctx);
        return;
    }
    if (facts->left == 0 && self->pending_count == 0) {
        facts->is_done = true;
        return;
    }
    while (self->pending_count < PIPELINE_MAX && self->pending_count < facts->left &&
           tr_random(ctx) % 4 != 0)
        submit_write(self, ctx);
    if (self->pending_count == 0)
        wait_a_little(ctx);
}

static void on_read(struct client *self, struct sql_unit *unit)
{
    struct client_facts *facts = &now.facts[self->index];
    uint64_t sequence;

    self->is_reading = false;
    if (sql_unit_status(unit) < 0) {
        self->needs_reload = true;
        return;
    }
    seen.reads++;
    sequence = (uint64_t)sql_row_int(unit, 0, 0, 0);
    CHECK_MSG(sequence >= facts->stored_sequence, "fresh: %llu is read, %llu came back as stored",
        (unsigned long long)sequence, (unsigned long long)facts->stored_sequence);
    self->planned = facts->stored_sequence = sequence;
    self->needs_reload = self->is_broken = false;
}

static void on_stored(
    struct client *self, struct operation *operation, const struct pending *pending)
{
    struct client_facts *facts = &now.facts[self->index];

    CHECK_MSG(!pending->must_fail, "nothing: a unit that breaks a constraint came back as stored");
    /* A unit with an unknown outcome may lie in between. */
    CHECK_MSG(self->is_broken ? operation->sequence > facts->stored_sequence
                              : operation->sequence == facts->stored_sequence + 1,
        "order: %llu is stored after %llu", (unsigned long long)operation->sequence,
        (unsigned long long)facts->stored_sequence);
    operation->fate = STORED;
    facts->stored_sequence = operation->sequence;
    if (facts->left > 0)
        facts->left--;
    seen.stored++;
}

static void on_not_stored(
    struct client *self, struct operation *operation, const struct pending *pending, int status)
{
    operation->fate = status == SQL_EUNKNOWN ? UNKNOWN : FAILED;
    if (status == SQL_ECONSTRAINT) {
        CHECK_MSG(pending->must_fail, "whole: a good unit broke a constraint: %s",
            sql_unit_why(pending->unit));
        seen.failed++;
        return; /* not planned */
    }
    if (status == SQL_EROWS) {
        CHECK_MSG(self->is_broken,
            "order: a unit missed its compare-and-set though all before it were stored");
        seen.rows++;
    }
    seen.unknown += status == SQL_EUNKNOWN;
    seen.disk += status == SQL_EDISK;
    seen.expired += status == TR_ETIMEOUT;
    self->needs_reload = true;
    if (!pending->must_fail || status == SQL_EUNKNOWN)
        self->is_broken = true;
}

static void on_write(struct client *self, struct sql_unit *unit)
{
    uint32_t at = 0;
    struct pending pending;

    while (at < self->pending_count && self->pending[at].unit != unit)
        at++;
    CHECK_MSG(at < self->pending_count, "a unit comes back once, to who submitted it");
    pending = self->pending[at];
    memmove(
        &self->pending[at], &self->pending[at + 1], (--self->pending_count - at) * sizeof pending);
    if (sql_unit_status(unit) == 0)
        on_stored(self, &now.operations[pending.operation], &pending);
    else
        on_not_stored(self, &now.operations[pending.operation], &pending, sql_unit_status(unit));
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;
    struct sql_unit *unit;

    if (event->kind == TR_EVENT_REPLY) {
        unit = sql_take(&self->sql, event);
        CHECK_MSG(unit != NULL, "every answer is of a unit that was submitted");
        if (event->tag == TAG_READ)
            on_read(self, unit);
        else
            on_write(self, unit);
        sql_unit_destroy(unit);
    }
    if (tr_random(ctx) % 1000 < now.crash_percent && !now.is_down)
        return TR_FAIL;
    act(self, ctx);
    return TR_GO;
}

static int client_start(void *state, struct tr_context *ctx)
{
    wait_a_little(ctx);
    (void)state;
    return 0;
}

static void forget(struct client *self)
{
    for (uint32_t i = 0; i < self->pending_count; i++)
        now.operations[self->pending[i].operation].fate = UNKNOWN;
    self->pending_count = 0;
    sql_client_fini(&self->sql);
}

static int client_reset(void *state, enum tr_why why)
{
    struct client *self = state;
    uint32_t index = self->index;

    (void)why;
    seen.crashes++;
    forget(self);
    *self = (struct client){ .index = index };
    return 0;
}

static void client_finish(void *state)
{
    forget(state);
}

static enum tr_next handle_nothing(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct client),
    .start = client_start,
    .reset = client_reset,
    .handle = handle_nothing,
    .event = client_event,
    .finish = client_finish,
};

/* ---- the database --------------------------------------------------------------------------- */

static void on_fatal(void *data, const char *line)
{
    (void)data;
    (void)line;
    seen.fatal++;
    now.has_failed = true;
    now.is_down = true;
}

/* ---- a connection that gets lost ------------------------------------------------------------- */

static bool is_lost(uint32_t percent_of_batches)
{
    return now.lose_percent > 0 && !now.is_opening && percent(&now.s, percent_of_batches);
}

static int flaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool is_lost_in_commit;
    int rc;

    if (is_lost(now.lose_percent)) {
        seen.lost++;
        return TR_ECLOSED;
    }
    is_lost_in_commit = is_lost(now.lose_percent);
    if (is_lost_in_commit && percent(&now.s, 50)) { /* the unit never arrived */
        for (size_t i = 0; i < count; i++) {
            sql_unit_reset_results(units[i]);
            sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "lost");
        }
        seen.lost++;
        return SQL_EUNKNOWN;
    }
    rc = sql_sqlite.commit(connection, units, count);
    if (rc == 0 && is_lost_in_commit) { /* stored, but the outcome is unknown */
        for (size_t i = 0; i < count; i++)
            if (units[i]->status == 0)
                sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "lost");
        seen.lost++;
        return SQL_EUNKNOWN;
    }
    return rc;
}

static int flaky_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    return is_lost(now.lose_percent) ? TR_ECLOSED : sql_sqlite.read(connection, units, count);
}

static int flaky_connect(void *database, bool is_writer, struct sql_connection **ret_connection,
    char *why, size_t why_size)
{
    if (is_lost(50)) {
        snprintf(why, why_size, "not now");
        return TR_ECLOSED;
    }
    return sql_sqlite.connect(database, is_writer, ret_connection, why, why_size);
}

static struct sql_backend flaky;

static void set_faults(const struct tr_disk_faults *faults)
{
    static const struct tr_disk_faults none;

    tr_sim_disk_faults(now.s.sim, faults != NULL ? faults : &none);
}

static int try_open(void)
{
    char why[300];
    int rc;

    flaky = sql_sqlite;
    flaky.commit = flaky_commit;
    flaky.read = flaky_read;
    flaky.connect = flaky_connect;
    now.is_opening = true;
    rc = sql_open(now.s.system,
        &(struct sql_options){ .url = "sqlite:data/test.db",
            .migrations = migrations,
            .migration_count = 1,
            .readers = 2,
            .batch_max = 4,
            .queue_max = 16,
            .backend = &flaky,
            .in_simulation = true,
            .fatal = on_fatal },
        why, sizeof why, &now.sql);
    now.is_opening = false;
    if (rc < 0)
        seen.open_failed++;
    CHECK_MSG(rc == 0 || rc == SQL_EDISK || rc == TR_EACCES || rc == TR_ECLOSED ||
                  rc == SQL_EUNKNOWN || rc == SQL_EFAILED,
        "open: %s: %s", sql_error_text(rc), why);
    return rc;
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

/* Compare each entry with the status that its client got. */
static void check_entries(uint64_t highest[CLIENTS_MAX], uint64_t counts[CLIENTS_MAX])
{
    struct sql_unit *entries = look(&all_entries), *halves = look(&all_halves);

    for (uint32_t i = 0; i < now.operation_count; i++)
        now.operations[i].is_there = now.operations[i].is_half_there = false;
    for (uint32_t i = 0; i < sql_unit_rows(halves, 0); i++)
        now.operations[sql_row_int(halves, 0, i, 0)].is_half_there = true;
    for (uint32_t i = 0; i < sql_unit_rows(entries, 0); i++) {
        struct operation *operation = &now.operations[sql_row_int(entries, 0, i, 0)];
        uint64_t sequence = (uint64_t)sql_row_int(entries, 0, i, 2);

        operation->is_there = true;
        CHECK_MSG(operation->sequence == sequence, "order: planned as %llu, stored as %llu",
            (unsigned long long)operation->sequence, (unsigned long long)sequence);
        counts[operation->client]++;
        if (sequence > highest[operation->client])
            highest[operation->client] = sequence;
    }
    for (uint32_t i = 0; i < now.operation_count; i++) {
        struct operation *operation = &now.operations[i];

        CHECK_MSG(operation->is_there == operation->is_half_there,
            "whole: half of operation %u is there", i);
        CHECK_MSG(operation->fate != STORED || operation->is_there,
            "durable: operation %u came back as stored and is not there", i);
        CHECK_MSG(operation->fate != FAILED || !operation->is_there,
            "nothing: operation %u came back as failed and is there", i);
        seen.unknown_there += operation->fate == UNKNOWN && operation->is_there;
    }
    sql_unit_destroy(entries);
    sql_unit_destroy(halves);
}

static void check_database(void)
{
    uint64_t highest[CLIENTS_MAX] = { 0 }, counts[CLIENTS_MAX] = { 0 };
    struct sql_unit *unit;

    check_entries(highest, counts);
    unit = look(&all_conversations);
    for (uint32_t i = 0; i < now.clients; i++) {
        uint64_t sequence = (uint64_t)sql_row_int(unit, 0, i, 1);

        CHECK_MSG(sequence == highest[i] && sequence == counts[i],
            "whole: conversation %u is at %llu with %llu entries up to %llu", i,
            (unsigned long long)sequence, (unsigned long long)counts[i],
            (unsigned long long)highest[i]);
    }
    sql_unit_destroy(unit);
    unit = look(&integrity);
    CHECK_MSG(span_is(sql_row_bytes(unit, 0, 0, 0), "ok"), "whole: %.*s",
        (int)sql_row_bytes(unit, 0, 0, 0).size, sql_row_bytes(unit, 0, 0, 0).at);
    sql_unit_destroy(unit);
}

/* End the "process", with or without the machine; a new one recovers. */
static void end_and_recover(bool is_power_cut, const struct tr_disk_faults *faults)
{
    uint32_t lose_percent = now.lose_percent;

    now.is_down = true;
    if (is_power_cut) {
        tr_sim_disk_crash(now.s.sim);
        seen.cuts++;
    } else {
        seen.kills++;
    }
    sql_close(&now.sql);
    if (is_power_cut) /* closing wrote nothing: every file it had open is dead */
        tr_sim_disk_crash(now.s.sim);
    set_faults(faults);
    for (int tries = 0; now.sql == NULL; tries++) {
        now.has_failed = false;
        if (tries == 3)
            set_faults(NULL);
        if (try_open() < 0 && is_power_cut)
            tr_sim_disk_crash(now.s.sim);
        CHECK_MSG(tries < 5, "liveness: it does not open");
    }
    set_faults(NULL);
    now.lose_percent = 0; /* during the check */
    check_database();
    now.lose_percent = lose_percent;
    now.has_failed = false;
    now.is_down = false;
    now.generation++;
}

/* ---- the run -------------------------------------------------------------------------------- */

static void run_steps(uint32_t steps)
{
    for (uint32_t i = 0; i < steps && !now.has_failed; i++) {
        if (!tr_sim_step(now.s.sim))
            return;
        now.s.steps++;
    }
}

static bool is_all_done(void)
{
    for (uint32_t i = 0; i < now.clients; i++)
        if (!now.facts[i].is_done)
            return false;
    return true;
}

static struct tr_child children[CLIENTS_MAX];
static struct client fresh[CLIENTS_MAX];
static struct tr_supervisor table;

static void start_clients(struct scenario *s)
{
    for (uint32_t i = 0; i < now.clients; i++) {
        now.facts[i].left = between(s, 4, 40);
        fresh[i] = (struct client){ .index = i };
        children[i] = (struct tr_child){ .name = "client",
            .type = &client_type,
            .state = &fresh[i],
            .ret_sender = &now.client_senders[i] };
    }
    table = (struct tr_supervisor){ .name = "clients",
        .children = children,
        .child_count = now.clients,
        .restarts_max = 100000,
        .window_ns = MS };
    CHECK_EQ_INT(tr_supervise(s->system, &table, "scenario", &now.root), 0);
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    struct tr_disk_faults faults;
    uint32_t rounds;

    static int nowhere = -1;

    /* A failing disk logs much. */
    if (getenv("TROUPE_VERBOSE") == NULL && nowhere < 0) {
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        log_setup(nowhere, LOG_LOGFMT, LOG_ERROR);
    }
    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.generation = 1;
    now.clients = between(s, 1, CLIENTS_MAX);
    now.fail_percent = below(s, 3) * 15;
    now.timeout_percent = below(s, 3) * 10;
    now.crash_percent = below(s, 3) * 10;
    now.lose_percent = percent(s, 40) ? between(s, 1, 15) : 0;
    faults = (struct tr_disk_faults){ .eio_per_million = below(s, 4) * 1500,
        .short_per_million = below(s, 3) * 1500,
        .bytes_max = percent(s, 25) ? 60000 + below(s, 200000) : 0 };
    seen.full += faults.bytes_max != 0;
    CHECK_EQ_INT(try_open(), 0);
    start_clients(s);
    rounds = between(s, 3, 14);
    for (uint32_t i = 0; i < rounds; i++) {
        set_faults(percent(s, 60) ? &faults : NULL);
        run_steps(below(s, 400));
        if (now.has_failed || percent(s, 40))
            end_and_recover(percent(s, 70), percent(s, 30) ? &faults : NULL);
    }
    /* The disk works again. */
    set_faults(NULL);
    now.lose_percent = 0;
    if (now.has_failed)
        end_and_recover(true, NULL);
    for (uint32_t i = 0; i < STEPS_MAX && !is_all_done(); i++)
        CHECK_MSG(tr_sim_step(s->sim), "liveness: nothing is left to do and clients wait");
    CHECK_MSG(is_all_done(), "liveness: clients wait for their units");
    check_database();
    for (uint32_t i = 0; i < now.clients; i++)
        tr_sender_drop(&now.client_senders[i]);
    tr_sender_drop(&now.root);
    run_steps(STEPS_MAX);
    end_and_recover(true, NULL);
    sql_close(&now.sql);
    CHECK_MSG(tr_sim_run(s->sim, STEPS_MAX) < STEPS_MAX, "liveness: somebody is still busy");
    return scenario_end(s);
}

static void report(void)
{
    scenario_report();
    printf(
        "%llu stored, %llu failed, %llu missed, %llu unknown (%llu times there), %llu disk, %llu "
        "expired, %llu shed; %llu failed syncs and writes, %llu power cuts, %llu kills, %llu full "
        "disks, %llu crashes, %llu reads, %llu failed opens, %llu lost connections\n",
        (unsigned long long)seen.stored, (unsigned long long)seen.failed,
        (unsigned long long)seen.rows, (unsigned long long)seen.unknown,
        (unsigned long long)seen.unknown_there, (unsigned long long)seen.disk,
        (unsigned long long)seen.expired, (unsigned long long)seen.shed,
        (unsigned long long)seen.fatal, (unsigned long long)seen.cuts,
        (unsigned long long)seen.kills, (unsigned long long)seen.full,
        (unsigned long long)seen.crashes, (unsigned long long)seen.reads,
        (unsigned long long)seen.open_failed, (unsigned long long)seen.lost);
}

TEST_LONG(sql, keeps_what_it_stored_and_nothing_of_what_failed, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 600);)
        run(seed);
    report();
    CHECK_COVERED(seen.stored, 20000);
    CHECK_COVERED(seen.failed, 1000);
    CHECK_COVERED(seen.cuts, 2000);
    CHECK_COVERED(seen.kills, 500);
    CHECK_COVERED(seen.fatal, 500);
    CHECK_COVERED(seen.unknown, 100);
    CHECK_COVERED(seen.disk, 50);
    CHECK_COVERED(seen.expired, 200);
    CHECK_COVERED(seen.crashes, 200);
    CHECK_COVERED(seen.lost, 200);
}

TEST_LONG(sql, is_replayed_from_its_seed, 60)
{
    check_traces(run, 10);
}
