/* SPDX-License-Identifier: Apache-2.0 */
/* Units with a decision on PostgreSQL: they wait for each other's rows, meet in deadlocks, and lose
 * their connection at the worst moment. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "place.h"
#include "test_postgres_fixture.h"

SQL_LOCKING_STATEMENT(lock_counter, "SELECT value FROM counter WHERE id = $1");
SQL_STATEMENT(set_counter, "UPDATE counter SET value = $2 WHERE id = $1");
SQL_STATEMENT(raise_counter, "UPDATE counter SET value = value + 1 WHERE id = $1");

static const char *const counters = "CREATE TABLE counter (id BIGINT PRIMARY KEY, value BIGINT);"
                                    "INSERT INTO counter VALUES (1, 0), (2, 0)";

struct committer {
    struct sql_connection *connection;
    struct sql_unit *unit;
    int rc;
    pthread_t thread;
};

static void *commit_in_thread(void *argument)
{
    struct committer *committer = argument;

    committer->rc = sql_postgres.commit(committer->connection, &committer->unit, 1);
    return NULL;
}

static void commit_beside(
    struct committer *committer, struct sql_connection *connection, struct sql_unit *unit)
{
    *committer = (struct committer){ .connection = connection, .unit = unit };
    CHECK_EQ_INT(pthread_create(&committer->thread, NULL, commit_in_thread, committer), 0);
}

static struct sql_connection *another_writer(struct fixture *fixture)
{
    struct sql_connection *connection;
    char why[160] = "";
    int rc = sql_postgres.connect(fixture->database, true, &connection, why, sizeof why);

    CHECK_MSG(rc == 0, "%d: %s", rc, why);
    return connection;
}

static struct sql_unit *deciding_unit(int64_t counter, sql_decide_fn decide, void *data)
{
    struct sql_unit *unit = fixture_unit(&lock_counter, counter);

    sql_unit_decide(unit, decide, data, NULL);
    return unit;
}

static void set_to(struct sql_unit *unit, int64_t counter, int64_t value)
{
    sql_unit_step(unit, &set_counter, 1);
    sql_unit_int(unit, counter);
    sql_unit_int(unit, value);
}

/* ---- locks ----------------------------------------------------------------------------------- */

static int64_t waiting_writers(struct fixture *fixture)
{
    return fixture_number(fixture, "SELECT count(*) FROM pg_stat_activity WHERE"
                                   " application_name = 'troupe-writer' AND"
                                   " wait_event_type = 'Lock'");
}

struct queue {
    struct fixture *fixture;
    sem_t is_locked;
    _Atomic uint32_t second_calls;
    int64_t second_seen;
};

/* Holds the row, and continues when the other unit waits for it. */
static void decide_first(struct sql_unit *unit, void *data)
{
    struct queue *queue = data;

    CHECK_EQ_INT(sem_post(&queue->is_locked), 0);
    while (waiting_writers(queue->fixture) == 0)
        CHECK_MSG(queue->second_calls == 0, "the second did not wait for the first");
    set_to(unit, 1, sql_row_int(unit, 0, 0, 0) + 1);
}

static void decide_second(struct sql_unit *unit, void *data)
{
    struct queue *queue = data;

    queue->second_calls++;
    queue->second_seen = sql_row_int(unit, 0, 0, 0);
    set_to(unit, 1, queue->second_seen + 1);
}

TEST_LONG(postgres_decision, waits_for_the_row_and_then_sees_what_was_stored, 60)
{
    struct queue queue = { 0 };
    struct sql_connection *other;
    struct committer first;
    struct fixture fixture;
    struct sql_unit *unit;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, counters);
    other = another_writer(&fixture);
    queue.fixture = &fixture;
    CHECK_EQ_INT(sem_init(&queue.is_locked, 0, 0), 0);
    commit_beside(&first, other, deciding_unit(1, decide_first, &queue));
    while (sem_wait(&queue.is_locked) != 0) {
    }
    unit = deciding_unit(1, decide_second, &queue);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), 0);
    CHECK_EQ_INT(pthread_join(first.thread, NULL), 0);
    CHECK_EQ_INT(first.rc, 0);
    CHECK_EQ_INT(first.unit->status, 0);
    CHECK_EQ_INT(queue.second_seen, 1);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT value FROM counter WHERE id = 1"), 2);
    sql_unit_destroy(first.unit);
    sql_unit_destroy(unit);
    sql_postgres.disconnect(other);
    CHECK_EQ_INT(sem_destroy(&queue.is_locked), 0);
    fixture_close(&fixture);
}

/* A foreign key to the row does not wait: it would not wait for an UPDATE either. */
static void decide_and_refer(struct sql_unit *unit, void *data)
{
    fixture_run(data, "SET lock_timeout = '5s'; INSERT INTO reference VALUES (1)");
    set_to(unit, 1, sql_row_int(unit, 0, 0, 0) + 1);
}

TEST_LONG(postgres_decision, lets_others_refer_to_its_row, 60)
{
    struct fixture fixture;
    struct sql_unit *unit;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, counters);
    fixture_run(&fixture, "CREATE TABLE reference (counter BIGINT REFERENCES counter (id))");
    unit = deciding_unit(1, decide_and_refer, &fixture);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), 0);
    sql_unit_destroy(unit);
    fixture_close(&fixture);
}

/* ---- deadlocks ------------------------------------------------------------------------------- */

struct knot {
    pthread_barrier_t *both_have_theirs;
    uint32_t calls;
    int64_t other;
};

static void decide_crosswise(struct sql_unit *unit, void *data)
{
    struct knot *knot = data;

    if (knot->calls++ == 0)
        (void)pthread_barrier_wait(knot->both_have_theirs);
    sql_unit_step(unit, &raise_counter, 1);
    sql_unit_int(unit, knot->other);
}

TEST_LONG(postgres_decision, in_a_deadlock_is_made_again, 60)
{
    pthread_barrier_t barrier;
    struct knot knots[2] = { { &barrier, 0, 2 }, { &barrier, 0, 1 } };
    struct sql_connection *other;
    struct committer committer;
    struct fixture fixture;
    struct sql_unit *unit;

    fixture_open(&fixture, "deadlock_timeout = 50ms");
    fixture_run(&fixture, counters);
    other = another_writer(&fixture);
    CHECK_EQ_INT(pthread_barrier_init(&barrier, NULL, 2), 0);
    commit_beside(&committer, other, deciding_unit(1, decide_crosswise, &knots[0]));
    unit = deciding_unit(2, decide_crosswise, &knots[1]);
    CHECK_EQ_INT(fixture_commit_one(&fixture, unit), 0);
    CHECK_EQ_INT(pthread_join(committer.thread, NULL), 0);
    CHECK_EQ_INT(committer.rc, 0);
    CHECK_EQ_INT(committer.unit->status, 0);
    CHECK(knots[0].calls + knots[1].calls >= 3);
    CHECK_EQ_INT(fixture_number(&fixture, "SELECT min(value) * 10 + max(value) FROM counter"), 11);
    sql_unit_destroy(committer.unit);
    sql_unit_destroy(unit);
    sql_postgres.disconnect(other);
    CHECK_EQ_INT(pthread_barrier_destroy(&barrier), 0);
    fixture_close(&fixture);
}

/* ---- lost connections ------------------------------------------------------------------------ */

struct loss {
    PGconn *admin;
    uint32_t calls;
    uint32_t losses_max;
};

static void run_admin(struct loss *loss, const char *text)
{
    PGresult *result = PQexec(loss->admin, text);

    CHECK_MSG(
        PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK,
        "%s", PQerrorMessage(loss->admin));
    PQclear(result);
}

/* The connection is lost, and with it the lock; another session is faster. */
static void decide_and_lose(struct sql_unit *unit, void *data)
{
    struct loss *loss = data;

    if (loss->calls++ < loss->losses_max) {
        run_admin(loss, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                        " WHERE application_name = 'troupe-writer'");
        run_admin(loss, "UPDATE counter SET value = value + 10 WHERE id = 1");
    }
    unit_add_note(unit, 100 + loss->calls, 1);
    set_to(unit, 1, sql_row_int(unit, 0, 0, 0) + 1);
}

static void check_loss(uint32_t losses_max, int status, int64_t value, int64_t notes)
{
    struct test_postgres postgres;
    struct sql_options options;
    struct sql_unit *unit;
    struct place place;
    struct loss loss = { .losses_max = losses_max };

    test_postgres_open(&postgres, NULL);
    place_init(&place);
    (void)snprintf(place.url, sizeof place.url, "%s", postgres.url);
    place_system(&place);
    options = place_options(&place);
    options.writers = 1;
    CHECK_MSG(place_try_open(&place, &options) == 0, "%s", place.why);
    loss.admin = PQconnectdb(postgres.url);
    CHECK_MSG(PQstatus(loss.admin) == CONNECTION_OK, "%s", PQerrorMessage(loss.admin));
    unit = deciding_unit(1, decide_and_lose, &loss);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), status);
    CHECK_EQ_INT(place_counter(&place, 1), value);
    CHECK_EQ_INT(place_notes(&place), notes);
    sql_unit_destroy(unit);
    PQfinish(loss.admin);
    place_finish(&place);
    test_postgres_close(&postgres);
}

TEST_LONG(postgres_decision, is_made_anew_when_the_connection_was_lost_behind_it, 60)
{
    check_loss(1, 0, 11, 1);
    check_loss(2, 0, 21, 1);
}

TEST_LONG(postgres_decision, that_loses_every_connection_is_refused, 60)
{
    check_loss(UINT32_MAX, SQL_ELOST, 30, 0);
}

static void decide_plainly(struct sql_unit *unit, void *data)
{
    (void)data;
    set_to(unit, 1, sql_row_int(unit, 0, 0, 0) + 1);
}

TEST_LONG(postgres_decision, lost_in_commit_is_unknown, 60)
{
    struct committer committer;
    struct fixture fixture;

    fixture_open(&fixture, NULL);
    fixture_run(&fixture, counters);
    fixture_run(&fixture,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON counter DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait(); SELECT pg_advisory_lock(1)");
    commit_beside(&committer, fixture.writer, deciding_unit(1, decide_plainly, NULL));
    while (waiting_writers(&fixture) == 0) {
    }
    fixture_terminate_writers(&fixture);
    CHECK_EQ_INT(pthread_join(committer.thread, NULL), 0);
    CHECK_EQ_INT(committer.rc, SQL_EUNKNOWN);
    CHECK_EQ_INT(committer.unit->status, SQL_EUNKNOWN);
    sql_unit_destroy(committer.unit);
    fixture_close(&fixture);
}
