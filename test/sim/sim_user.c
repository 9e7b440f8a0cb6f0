/* SPDX-License-Identifier: Apache-2.0 */
/* sim_user.c: devices of two users push and pull, on a real SQLite and a disk that fails, fills up
 * and loses power, while the users' actors are killed and connections are lost in a COMMIT.
 *
 * They write settings, sessions and items of sessions, and delete them again. Every write has a
 * number of its own, which is its value. A device's copy is made of what it pulls alone. Checked,
 * by name:
 *
 *   order     a page begins after the cursor and its numbers grow
 *   durable   a number that a push or a pull returned is in the database for good
 *   numbers   no two acknowledged writes have the same number
 *   applied   a write that was acknowledged as applied is there, or a later one is
 *   nothing   no part of a refused push is ever there
 *   session   an item that is there came when its session was there
 *   noted     a value that lost against another device's write is in the log of conflicts as it
 *             was; the log has no other values, also none that the losing or the winning device
 *             had pulled
 *   answered  every request ends
 *   missed    in the end every device's copy is what the database has, tombstones too */
#include <fcntl.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "ops/service.h"
#include "scenario.h"
#include "services/common/step.h"
#include "services/delivery/delivery.h"
#include "services/packs/packs.h"
#include "services/users/user_job.h"
#include "sql/backend.h"
#include "sql/runner.h"
#include "sql/unit.h"
#include "support/log.h"

enum {
    USERS = 2,
    DEVICES = 6,       /* device i is of user i % USERS */
    SESSION_FIRST = 3, /* rows 0 to 2 are settings */
    ITEM_FIRST = 5,
    ROWS = 8,
    DELETE_PERCENT = 25,
    WRITES_MAX = 20000,
    PUSH_MAX = 4,
    BATCH_MAX = 4,
    TAG_ASK = 1,
    TAG_AGAIN = 2,
};

/* Rejected: the item's session was not there. */
enum write_fate { UNDER_WAY, APPLIED, SKIPPED, REJECTED, REFUSED, UNKNOWN };

struct write {
    uint32_t device, row;
    uint32_t session; /* of an item: its session's row */
    int64_t updated_ms;
    bool is_deleted;
    int64_t known_seq; /* the cursor that its device sent; -1: none */
    enum write_fate fate;
    int64_t seq;   /* 0: not known */
    bool is_noted; /* as a conflict */
};

/* A row as it is stored, or as a device has it. */
struct row {
    int64_t seq; /* 0: there is none */
    int64_t updated_ms;
    int64_t number; /* the write's; -1 of a tombstone */
};

/* The data of a device; it outlives the device's actor. */
struct copy {
    int64_t cursor;
    struct row rows[ROWS];
    bool has_all;
};

static struct {
    struct scenario s;
    struct sql *sql;
    struct users *users;
    struct write writes[WRITES_MAX];
    uint32_t write_count;
    uint32_t owners[USERS][WRITES_MAX]; /* of the numbers: the write's, plus 1; 0: not known */
    struct copy copies[DEVICES];
    uint32_t left[DEVICES];
    tr_sender senders[DEVICES];
    int64_t told_seq[USERS];
    bool is_down, has_failed, is_opening, is_healed;
    uint32_t open_count, lose_percent;
    struct tr_disk_faults faults;
} now;

static struct {
    uint64_t applied, skipped, rejected, tombstones, noted, refused, unknown, pulls, rows, cuts,
        kills, user_kills, strange, lost, lost_there, fatal, full;
} seen;

static struct sql_migration *migrations;
static size_t migration_count;

static const char *user_name(uint32_t user)
{
    return user == 0 ? "ada" : "bob";
}

static enum user_kind kind_of(uint32_t row)
{
    return row < SESSION_FIRST ? USER_SETTING : row < ITEM_FIRST ? USER_SESSION : USER_SESSION_ITEM;
}

static uint32_t row_of(struct span item)
{
    uint32_t row = (uint32_t)(item.at[item.size - 1] - '0');

    CHECK(row < ROWS);
    return row;
}

/* The write that a row's members are of; -1: it is deleted. */
static int64_t number_of(struct span body)
{
    return body.size == 0 ? -1 : strtoll(body.at + strlen("\"v\":"), NULL, 10);
}

/* ---- devices --------------------------------------------------------------------------------- */

struct device {
    uint32_t index;
    struct user_job *job;  /* a push under way */
    struct sql_client sql; /* a pull under way */
    bool is_waiting;
    uint32_t first_write;
    int64_t told_seq; /* by anybody, when it asked */
};

static void again(struct tr_context *ctx)
{
    CHECK_EQ_INT(tr_after(ctx, MS + tr_random(ctx) % (20 * MS), TAG_AGAIN, NULL), 0);
}

static struct span keep(struct user_job *job, const char *text)
{
    const char *at = job->texts.bytes + job->texts.size;

    CHECK_EQ_INT(buffer_text(&job->texts, text), 0);
    return (struct span){ at, strlen(text) };
}

static struct user_job *make_push(struct device *device, struct tr_context *ctx)
{
    uint32_t user = device->index % USERS;
    struct user_job *job = user_job_create(span_of(user_name(user)));
    char text[64];

    CHECK(job != NULL && buffer_reserve(&job->texts, 1024) != NULL);
    (void)snprintf(text, sizeof text, "device-%u", device->index);
    job->device = keep(job, text);
    job->change_count = (uint32_t)(1 + tr_random(ctx) % PUSH_MAX);
    job->changes = base_calloc(PUSH_MAX * sizeof *job->changes);
    CHECK(job->changes != NULL);
    job->known_seq = tr_random(ctx) % 2 == 0 ? now.copies[device->index].cursor : -1;
    device->first_write = now.write_count;
    for (uint32_t i = 0; i < job->change_count; i++) {
        struct write *write = &now.writes[now.write_count];
        struct user_change *change = &job->changes[i];

        CHECK(now.write_count + 1 < WRITES_MAX);
        *write = (struct write){ .device = device->index,
            .row = (uint32_t)(tr_random(ctx) % ROWS),
            .session = (uint32_t)(SESSION_FIRST + tr_random(ctx) % (ITEM_FIRST - SESSION_FIRST)),
            .updated_ms = (int64_t)(tr_sim_now_ns(now.s.sim) / MS + tr_random(ctx) % 40),
            .is_deleted = tr_random(ctx) % 100 < DELETE_PERCENT,
            .known_seq = job->known_seq };
        change->kind = kind_of(write->row);
        change->is_deleted = write->is_deleted;
        change->updated_ms = write->updated_ms;
        (void)snprintf(text, sizeof text, "row-%u", write->row);
        change->item = keep(job, text);
        (void)snprintf(text, sizeof text, "row-%u", write->session);
        if (change->kind == USER_SESSION_ITEM && !write->is_deleted)
            change->session = keep(job, text);
        (void)snprintf(text, sizeof text, "\"v\":%u", now.write_count++);
        change->body = write->is_deleted ? SPAN("") : keep(job, text);
    }
    return job;
}

/* What the call of a pull does. */
static int start_pull(struct device *device, struct tr_context *ctx)
{
    struct span user = span_of(user_name(device->index % USERS));
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    CHECK(unit != NULL);
    UNIT_STEP(unit, &user_seq, SQL_ROWS_ANY, VALUE_TEXT(user));
    UNIT_STEP(unit, &user_pull, SQL_ROWS_ANY, VALUE_TEXT(user),
        VALUE_INT(now.copies[device->index].cursor), VALUE_INT(1 + tr_random(ctx) % 4),
        VALUE_INT(USER_PULL_BYTES_MAX));
    UNIT_STEP(unit, &user_last_row, SQL_ROWS_ANY, VALUE_TEXT(user));
    sql_client_init(&device->sql, now.users->calls.sql);
    rc = sql_read(ctx, &device->sql, unit, &(struct sql_submit_options){ .tag = TAG_ASK });
    if (rc < 0)
        sql_unit_destroy(unit);
    return rc;
}

static int start_push(struct device *device, struct tr_context *ctx)
{
    struct user_message message;
    tr_sender user;
    int rc;

    message.job = device->job = make_push(device, ctx);
    atomic_fetch_add(&device->job->holders, 1);
    rc = tr_registry_get(
        now.users->actors, device->job->user, strlen(device->job->user), "a device", &user);
    if (rc == 0) {
        rc =
            tr_ask(ctx, user, &message, sizeof message, &(struct tr_ask_options){ .tag = TAG_ASK });
        tr_sender_drop(&user);
    }
    if (rc < 0)
        user_job_unref(device->job);
    return rc;
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
    int rc;

    if (now.left[device->index] == 0 || device->is_waiting)
        return;
    if (now.is_down) {
        again(ctx);
        return;
    }
    device->told_seq = now.told_seq[device->index % USERS];
    rc = is_push ? start_push(device, ctx) : start_pull(device, ctx);
    if (rc == 0) {
        device->is_waiting = true;
        now.open_count++;
        return;
    }
    if (is_push)
        end_writes(device, REFUSED);
    user_job_unref(device->job);
    device->job = NULL;
    again(ctx);
}

static void end_write(
    struct write *write, const struct user_job *job, const struct user_change *change, int64_t seq)
{
    bool is_applied = sql_unit_changed(job->unit, change->step) > 0;
    bool is_rejected =
        change->session.at != NULL && sql_unit_rows(job->unit, change->step - 2) == 0;
    uint32_t user = write->device % USERS;

    CHECK(seq > 0 && seq < WRITES_MAX);
    CHECK_MSG(now.owners[user][seq] == 0, "numbers: %lld of %s was given out twice", (long long)seq,
        user_name(user));
    now.owners[user][seq] = (uint32_t)(write - now.writes) + 1;
    write->seq = seq;
    write->is_noted = sql_unit_changed(job->unit, change->step - 1) > 0;
    write->fate = is_applied ? APPLIED : is_rejected ? REJECTED : SKIPPED;
    CHECK_MSG(!is_rejected || !is_applied, "session: an item without one was stored");
    CHECK_MSG(!is_rejected || !write->is_noted, "noted: an item without a session");
    seen.applied += is_applied;
    seen.rejected += is_rejected;
    seen.skipped += write->fate == SKIPPED;
    seen.tombstones += is_applied && write->is_deleted;
    seen.noted += write->is_noted;
}

static void on_pushed(struct device *device)
{
    const struct user_job *job = device->job;
    uint32_t user = device->index % USERS;
    int status = job->status;
    int64_t base;

    if (status != 0) {
        bool is_refused =
            status == SQL_EDISK || status == TR_EFULL || status == TR_ELIMIT || status == TR_ENOMEM;

        end_writes(device, is_refused ? REFUSED : UNKNOWN);
        return;
    }
    base = job->unit->values[job->unit->steps[0].value_first + 1].number - job->change_count;
    CHECK_MSG(base >= device->told_seq,
        "durable: %s goes on at %lld, and somebody was told of %lld", user_name(user),
        (long long)base, (long long)device->told_seq);
    if (base + job->change_count > now.told_seq[user])
        now.told_seq[user] = base + job->change_count;
    for (uint32_t i = 0; i < job->change_count; i++)
        end_write(&now.writes[device->first_write + i], job, &job->changes[i], base + 1 + i);
}

static void on_pulled(struct device *device, const struct sql_unit *unit)
{
    struct copy *copy = &now.copies[device->index];
    uint32_t user = device->index % USERS, rows;
    int64_t seq, last;

    if (sql_unit_status(unit) != 0)
        return;
    seq = sql_unit_rows(unit, 0) == 0 ? 0 : sql_row_int(unit, 0, 0, 0);
    CHECK_MSG(seq >= device->told_seq, "durable: %s is at %lld, and somebody was told of %lld",
        user_name(user), (long long)seq, (long long)device->told_seq);
    if (seq > now.told_seq[user])
        now.told_seq[user] = seq;
    rows = sql_unit_rows(unit, 1);
    for (uint32_t row = 0; row < rows; row++) {
        struct row *own = &copy->rows[row_of(sql_row_bytes(unit, 1, row, 1))];
        int64_t number = sql_row_int(unit, 1, row, 2);

        CHECK_MSG(number > copy->cursor && number <= seq, "order: %lld after %lld, of %lld",
            (long long)number, (long long)copy->cursor, (long long)seq);
        copy->cursor = number;
        *own = (struct row){ .seq = number,
            .updated_ms = sql_row_int(unit, 1, row, 3),
            .number = number_of(sql_row_bytes(unit, 1, row, 6)) };
        CHECK_MSG((own->number < 0) == (sql_row_int(unit, 1, row, 5) != 0),
            "missed: a tombstone has members, or a row has none");
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
    struct sql_unit *unit;

    if (event->kind != TR_EVENT_REPLY) {
        act(device, ctx);
        return TR_GO;
    }
    now.open_count--;
    device->is_waiting = false;
    if (device->job == NULL) {
        unit = sql_take(&device->sql, event);
        CHECK(unit != NULL);
        on_pulled(device, unit);
        sql_unit_destroy(unit);
    } else if (event->status < 0) { /* nobody knows: the actor ended with it */
        end_writes(device, UNKNOWN);
    } else {
        on_pushed(device);
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
    struct device *device = self;

    user_job_unref(device->job);
    sql_client_fini(&device->sql);
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

SQL_STATEMENT(skip_number, "UPDATE user_sync SET seq = seq + 1 WHERE user_id = $1");
SQL_STATEMENT(one_seq, "SELECT seq FROM user_sync WHERE user_id = $1");

/* Somebody else gives out a number, as a killed actor does whose last unit was running: the user's
 * actor has to notice. In the COMMIT of others, so that nobody waits for it. */
static int commit_with_another(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    struct sql_unit *all[BATCH_MAX + 1], *another = sql_unit_create(0);
    uint32_t user = below(&now.s, USERS);
    int rc;

    CHECK(count <= BATCH_MAX && another != NULL);
    memcpy(all, units, count * sizeof *all);
    all[count] = another;
    sql_unit_step(another, &skip_number, SQL_ROWS_ANY);
    sql_unit_text(another, span_of(user_name(user)));
    sql_unit_step(another, &one_seq, SQL_ROWS_ANY);
    sql_unit_text(another, span_of(user_name(user)));
    rc = sql_sqlite.commit(connection, all, count + 1);
    atomic_store(&another->state, SQL_DONE); /* as its runner would say: there are results */
    if (rc == 0 && another->status == 0 && sql_unit_rows(another, 1) == 1) {
        now.told_seq[user] = sql_row_int(another, 1, 0, 0);
        seen.strange++;
    }
    sql_unit_destroy(another);
    return rc;
}

static int flaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool is_another = !now.is_opening && now.users != NULL && percent(&now.s, 2);
    int rc;

    if (is_lost()) {
        seen.lost++;
        return TR_ECLOSED;
    }
    rc = is_another ? commit_with_another(connection, units, count)
                    : sql_sqlite.commit(connection, units, count);
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
            .batch_max = BATCH_MAX,
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

SQL_STATEMENT(all_items, "SELECT user_id, item, kind, seq, updated_ms, device, is_deleted, body"
                         " FROM user_items");
SQL_STATEMENT(all_seqs, "SELECT user_id, seq FROM user_sync");
SQL_STATEMENT(all_conflicts,
    "SELECT user_id, item, kind, seq, updated_ms, device, is_deleted, body,"
    " is_incoming_kept FROM user_conflicts");

static struct row stored[USERS][ROWS];

/* The write that a row of either table is of; there is one, and it was not refused. A tombstone has
 * no number: any write that is like it is taken. */
static const struct write *find_write(const struct sql_unit *unit, uint32_t step, uint32_t row)
{
    uint32_t user = span_is(sql_row_bytes(unit, step, row, 0), "bob");
    uint32_t index = row_of(sql_row_bytes(unit, step, row, 1));
    struct span device = sql_row_bytes(unit, step, row, 5);
    int64_t updated_ms = sql_row_int(unit, step, row, 4);
    int64_t number = number_of(sql_row_bytes(unit, step, row, 7));
    bool is_deleted = sql_row_int(unit, step, row, 6) != 0;
    uint32_t first = number < 0 ? 0 : (uint32_t)number;
    uint32_t end = number < 0 ? now.write_count : (uint32_t)number + 1;

    CHECK(end <= now.write_count);
    CHECK_EQ_INT(sql_row_int(unit, step, row, 2), kind_of(index));
    for (uint32_t i = first; i < end; i++) {
        const struct write *write = &now.writes[i];

        if (write->device % USERS == user && write->row == index &&
            write->updated_ms == updated_ms && write->is_deleted == is_deleted &&
            (uint32_t)(device.at[device.size - 1] - '0') == write->device && write->fate != REFUSED)
            return write;
    }
    CHECK_MSG(false, "nothing: a row that nobody wrote, or whose write %lld was refused",
        (long long)number);
    return NULL;
}

static void check_item(const struct sql_unit *unit, uint32_t row, const struct write *write)
{
    uint32_t user = write->device % USERS;
    int64_t seq = sql_row_int(unit, 0, row, 3);
    uint32_t owner = now.owners[user][seq];

    CHECK_MSG(owner == 0 || now.writes[owner - 1].fate == APPLIED,
        "applied: number %lld is of a write that was not", (long long)seq);
    CHECK_MSG(owner == 0 || (now.writes[owner - 1].row == write->row &&
                                now.writes[owner - 1].updated_ms == write->updated_ms),
        "numbers: %lld is of two writes", (long long)seq);
    stored[user][write->row] = (struct row){ .seq = seq,
        .updated_ms = write->updated_ms,
        .number = number_of(sql_row_bytes(unit, 0, row, 7)) };
}

static void check_sessions(void)
{
    for (uint32_t user = 0; user < USERS; user++)
        for (uint32_t row = ITEM_FIRST; row < ROWS; row++) {
            const struct row *item = &stored[user][row], *session;

            if (item->seq == 0 || item->number < 0)
                continue;
            session = &stored[user][now.writes[item->number].session];
            CHECK_MSG(session->seq != 0 && (session->number >= 0 || session->seq > item->seq),
                "session: item %u of %s came at %lld without one", row, user_name(user),
                (long long)item->seq);
        }
}

static void check_conflict(const struct sql_unit *unit, uint32_t row)
{
    const struct write *lost = find_write(unit, 2, row), *incoming;
    int64_t seq = sql_row_int(unit, 2, row, 3);
    bool is_kept = sql_row_int(unit, 2, row, 8) != 0;
    uint32_t owner = now.owners[lost->device % USERS][seq];

    if (owner == 0) /* nobody knows what became of that push */
        return;
    incoming = &now.writes[owner - 1];
    CHECK_MSG(incoming->is_noted && incoming->row == lost->row,
        "noted: number %lld has no conflict", (long long)seq);
    CHECK_MSG(is_kept == (incoming->fate == APPLIED), "noted: the wrong one was kept");
    if (!is_kept) {
        CHECK_MSG(lost->device == incoming->device && lost->updated_ms == incoming->updated_ms,
            "noted: what lost is not what came");
        return;
    }
    CHECK_MSG(lost->device != incoming->device, "noted: a device against itself");
    CHECK_MSG(incoming->known_seq >= 0 &&
                  (lost->is_deleted || lost->seq == 0 || lost->seq > incoming->known_seq),
        "noted: a write over one that was pulled");
}

/* A write that lost and is not in the log lost against its own device's. */
static void check_unnoted(const struct write *write)
{
    for (uint32_t i = 0; i < now.write_count; i++)
        if (now.writes[i].device == write->device && now.writes[i].row == write->row &&
            now.writes[i].updated_ms > write->updated_ms && now.writes[i].fate != REFUSED)
            return;
    CHECK_MSG(false, "noted: write %d lost against another device's and is not in the log",
        (int)(write - now.writes));
}

static void check_writes(uint64_t conflicts_known)
{
    uint64_t noted = 0;

    for (uint32_t i = 0; i < now.write_count; i++) {
        const struct write *write = &now.writes[i];
        const struct row *row = &stored[write->device % USERS][write->row];

        noted += write->is_noted;
        if (write->fate == APPLIED)
            CHECK_MSG(row->updated_ms >= write->updated_ms && row->seq >= write->seq,
                "applied: write %u was acknowledged and is gone", i);
        else if (write->fate == SKIPPED && !write->is_noted && !write->is_deleted)
            check_unnoted(write);
    }
    CHECK_MSG(noted == conflicts_known, "noted: %llu were, %llu are in the log",
        (unsigned long long)noted, (unsigned long long)conflicts_known);
}

/* Checks that every answer still holds; fills `stored`. */
static void check_database(void)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t seqs[USERS] = { 0 };
    uint64_t conflicts_known = 0;

    memset(stored, 0, sizeof stored);
    sql_unit_step(unit, &all_items, SQL_ROWS_ANY);
    sql_unit_step(unit, &all_seqs, SQL_ROWS_ANY);
    sql_unit_step(unit, &all_conflicts, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(now.sql, unit), 0);
    for (uint32_t row = 0; row < sql_unit_rows(unit, 1); row++)
        seqs[span_is(sql_row_bytes(unit, 1, row, 0), "bob")] = sql_row_int(unit, 1, row, 1);
    for (uint32_t user = 0; user < USERS; user++)
        CHECK_MSG(seqs[user] >= now.told_seq[user] && seqs[user] < WRITES_MAX,
            "durable: %s is at %lld, told was %lld", user_name(user), (long long)seqs[user],
            (long long)now.told_seq[user]);
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++)
        check_item(unit, row, find_write(unit, 0, row));
    check_sessions();
    for (uint32_t row = 0; row < sql_unit_rows(unit, 2); row++) {
        uint32_t user = span_is(sql_row_bytes(unit, 2, row, 0), "bob");

        check_conflict(unit, row);
        conflicts_known += now.owners[user][sql_row_int(unit, 2, row, 3)] != 0;
    }
    check_writes(conflicts_known);
    sql_unit_destroy(unit);
}

/* ---- the service ----------------------------------------------------------------------------- */

static void start_service(void)
{
    void *state;
    char why[200] = "";

    CHECK_EQ_INT(users_start(&(struct service_context){ .system = now.s.system, .sql = now.sql },
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
    users_stop(now.users);
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
        &users_service };
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
        for (uint32_t row = 0; row < ROWS; row++) {
            const struct row *own = &now.copies[i].rows[row], *there = &stored[i % USERS][row];

            CHECK_MSG(own->seq == there->seq && own->number == there->number &&
                          own->updated_ms == there->updated_ms,
                "missed: device %u has write %lld of row %u at %lld, stored is %lld at %lld", i,
                (long long)own->number, row, (long long)own->seq, (long long)there->number,
                (long long)there->seq);
        }
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
    printf("%llu writes applied (%llu tombstones), %llu skipped, %llu without their session, %llu "
           "conflicts; %llu pushes refused, %llu unknown; %llu pulls, %llu "
           "rows; %llu power cuts, %llu process kills, %llu user kills, %llu numbers of "
           "somebody else, %llu lost connections, "
           "%llu units after their COMMIT, %llu failed disks, %llu full disks\n",
        (unsigned long long)seen.applied, (unsigned long long)seen.tombstones,
        (unsigned long long)seen.skipped, (unsigned long long)seen.rejected,
        (unsigned long long)seen.noted, (unsigned long long)seen.refused,
        (unsigned long long)seen.unknown, (unsigned long long)seen.pulls,
        (unsigned long long)seen.rows, (unsigned long long)seen.cuts,
        (unsigned long long)seen.kills, (unsigned long long)seen.user_kills,
        (unsigned long long)seen.strange, (unsigned long long)seen.lost,
        (unsigned long long)seen.lost_there, (unsigned long long)seen.fatal,
        (unsigned long long)seen.full);
    CHECK_COVERED(seen.applied, 20000);
    CHECK_COVERED(seen.skipped, 2000);
    CHECK_COVERED(seen.tombstones, 10000);
    CHECK_COVERED(seen.rejected, 5000);
    CHECK_COVERED(seen.noted, 10000);
    CHECK_COVERED(seen.unknown, 500);
    CHECK_COVERED(seen.cuts, 1500);
    CHECK_COVERED(seen.user_kills, 1000);
    CHECK_COVERED(seen.strange, 500);
    CHECK_COVERED(seen.lost_there, 100);
}

TEST_LONG(user, is_replayed_from_its_seed, 60)
{
    check_traces(run, 6);
}
