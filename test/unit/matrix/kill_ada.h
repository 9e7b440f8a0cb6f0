/* SPDX-License-Identifier: Apache-2.0 */
/* kill_ada.h: the points of test_engine_kill.c, and ada's engine, which dies at one of them. */
#ifndef TEST_UNIT_MATRIX_KILL_ADA_H
#define TEST_UNIT_MATRIX_KILL_ADA_H

#include <signal.h>

#include "mx_home.h"
#include "sql/backend.h"
#include "sql/unit.h"

enum {
    SENDS_FIRST = 3, /* ada's events before her token ends */
    SENDS = 4,
    FLOWS_MAX = 8,
    TAGS_MAX = 64,
};

enum moment { BEFORE_COMMIT, AFTER_COMMIT, BEFORE_REQUEST, AFTER_ANSWER };

/* The part of ada's life in which points count. */
enum stage { STAGE_LOGIN, STAGE_TALK, STAGE_REFRESH, STAGE_VERIFY, STAGES };

/* A row of points: occurrences of a COMMIT or of a request. */
struct point {
    int count;         /* occurrences to walk */
    const char *what;  /* a part of the statement; of the request's target, which starts with '/' */
    const char *value; /* a text of that statement, or its first word; NULL: any */
};

/* The end of the verification of ada's first engine. */
enum ending {
    ENDING_MATCH,
    ENDING_MATCH_HELD, /* the server takes her `done` from the second engine only */
    ENDING_MISMATCH,
    ENDING_MISMATCH_HELD, /* the same of her `cancel` */
};

/* ---- a world ---------------------------------------------------------------------------------- */

/* Shared by the processes of a world. */
struct world {
    struct point point;
    enum moment moment;
    enum stage stage_of_point;
    bool is_asked; /* STAGE_VERIFY: bob asks for the verification */
    enum ending ending;
    int nth;
    _Atomic int stage;   /* of ada */
    _Atomic int reached; /* occurrences that ada met */
    char url[100];
    char dir[200];
    int commands[2];      /* a pipe: ada to the homeserver */
    bool is_tried[SENDS]; /* ada's events */
    bool is_accepted[SENDS];
};

static struct world *world; /* of this process */

/* ---- ada dies --------------------------------------------------------------------------------- */

/* Count an occurrence; the one that the point names is the last. */
static void meet_point(void)
{
    if (world->stage == (int)world->stage_of_point && ++world->reached == world->nth)
        (void)kill(getpid(), SIGKILL);
}

static bool text_fits(const char *text)
{
    size_t size = strlen(world->point.value);

    return strncmp(text, world->point.value, size) == 0 && (text[size] == 0 || text[size] == ' ');
}

static bool step_fits(const struct sql_unit *unit, const struct sql_step *step)
{
    const struct point *point = &world->point;

    if (strstr(step->statement->text, point->what) == NULL)
        return false;
    for (uint32_t i = 0; point->value != NULL && i < step->value_count; i++) {
        const struct sql_value *value = &unit->values[step->value_first + i];

        if (value->kind == SQL_TEXT && text_fits(unit->bytes.bytes + value->offset))
            return true;
    }
    return point->value == NULL;
}

static bool units_fit(struct sql_unit *const *units, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < units[i]->step_count; k++)
            if (step_fits(units[i], &units[i]->steps[k]))
                return true;
    return false;
}

/* Ada's story waits for the units of her engine. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t count;
} commits = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };

static void note_commit(void)
{
    pthread_mutex_lock(&commits.lock);
    commits.count++;
    pthread_cond_broadcast(&commits.changed);
    pthread_mutex_unlock(&commits.lock);
}

/* Wait for a unit, or for a moment: some steps store nothing. */
static void wait_commit(void)
{
    struct timespec until;
    uint64_t count;
    int rc = 0;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 5 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&commits.lock);
    for (count = commits.count; rc == 0 && commits.count == count;)
        rc = pthread_cond_timedwait(&commits.changed, &commits.lock, &until);
    pthread_mutex_unlock(&commits.lock);
}

static int deadly_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool fits = world->moment <= AFTER_COMMIT && units_fit(units, count);
    int rc;

    if (fits && world->moment == BEFORE_COMMIT)
        meet_point();
    rc = sql_sqlite.commit(connection, units, count);
    if (fits && world->moment == AFTER_COMMIT)
        meet_point();
    note_commit();
    return rc;
}

static struct {
    struct mxengine_transport inner;
    uint32_t tags[TAGS_MAX]; /* of requests that fit the point */
} deadly;

static int deadly_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    const struct point *point = &world->point;
    const struct buffer *target = &call->request->target;
    bool fits = world->moment >= BEFORE_REQUEST &&
                memmem(target->bytes, target->size, point->what, strlen(point->what)) != NULL;

    if (fits && world->moment == BEFORE_REQUEST)
        meet_point();
    for (int i = 0; fits && i < TAGS_MAX; i++)
        if (deadly.tags[i] == 0) {
            deadly.tags[i] = tag;
            fits = false;
        }
    return deadly.inner.ask(data, ctx, call, tag);
}

static void deadly_take(
    void *data, const struct tr_event *event, struct mxengine_answer *ret_answer)
{
    for (int i = 0; i < TAGS_MAX; i++)
        if (deadly.tags[i] == event->tag) {
            deadly.tags[i] = 0;
            if (world->moment == AFTER_ANSWER)
                meet_point();
        }
    deadly.inner.take(data, event, ret_answer);
}

static struct mxengine_transport deadly_wrap(struct mxengine_transport transport)
{
    deadly.inner = transport;
    transport.ask = deadly_ask;
    transport.take = deadly_take;
    return transport;
}

/* ---- ada's story ------------------------------------------------------------------------------ */

SQL_STATEMENT(count_unsent, "SELECT COUNT(*) FROM mx_outbox WHERE sending <> 2");
SQL_STATEMENT(count_open, "SELECT COUNT(*) FROM mx_verification"
                          " WHERE step <> 'done' AND step <> 'cancelled'");
SQL_STATEMENT(count_done, "SELECT COUNT(*) FROM mx_verification WHERE step = 'done'");
SQL_STATEMENT(count_checked, "SELECT COUNT(*) FROM mx_verification WHERE step = 'checked'");
SQL_STATEMENT(count_trusted, "SELECT COUNT(*) FROM mx_device WHERE trust = 1");

/* Ask until a count is what it must become; the case's time limit ends it. */
static void wait_count(struct mx_device *ada, const struct sql_statement *statement, int64_t count)
{
    while (place_value(&ada->place, statement, 0) != count)
        wait_commit();
}

static void command(char letter)
{
    CHECK_EQ_INT(write(world->commands[1], &letter, 1), 1);
}

static void ada_log_in(struct mx_device *ada)
{
    while (!mx_device_status(ada).is_loaded)
        wait_commit();
    if (mx_device_status(ada).state == MXCLIENT_NEW)
        CHECK_EQ_INT(mx_device_login(ada, world->url, "@u0:x"), 0);
    while (!mx_device_status(ada).is_settled)
        wait_commit();
    if (!mx_device_is_joined(ada))
        CHECK_EQ_INT(mx_device_room(ada, MXENGINE_JOIN, NULL), 0);
    while (!mx_device_is_joined(ada))
        wait_commit();
}

/* Read events from the first on until bob has answered all that were accepted so far. */
static void ada_wait_answers(struct mx_device *ada)
{
    int seen[SENDS] = { 0 }, missing = 0;
    int64_t cursor = 0;
    char text[200];

    for (int i = 0; i < SENDS; i++)
        missing += world->is_accepted[i] ? 1 : 0;
    while (missing > 0) {
        const char *at;
        int number;

        CHECK_EQ_INT(mx_device_next(ada, &cursor, text, sizeof text), 0);
        at = strstr(text, "answer ");
        CHECK_MSG(at != NULL, "%s", text);
        number = (int)strtol(at + strlen("answer "), NULL, 10);
        CHECK(number >= 0 && number < SENDS);
        CHECK_MSG(seen[number]++ == 0, "once: ada reads answer %d twice", number);
        missing -= world->is_accepted[number] ? 1 : 0;
    }
}

/* Send the events up to this one that no engine has tried to send, each after bob's last answer. */
static void ada_talk(struct mx_device *ada, int until)
{
    char text[40];

    for (int i = 0; i < until; i++) {
        if (!world->is_tried[i]) {
            world->is_tried[i] = true;
            snprintf(text, sizeof text, "event %d.", i);
            CHECK_EQ_INT(mx_device_send(ada, text), 0);
            world->is_accepted[i] = true;
        }
        ada_wait_answers(ada);
    }
    wait_count(ada, &count_unsent, 0);
}

static void ada_act(struct mx_device *ada, const char *id, enum mxclient_verify_act act)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_ACT);

    mxengine_job_set(job, MXENGINE_TEXT, span_of(id));
    job->act = act;
    CHECK_EQ_INT(mx_device_do(ada, job), 0);
    mxengine_job_unref(job);
}

/* Follow the steps of one verification to its end; returns the end. */
static enum mxclient_verify_step ada_follow(struct mx_device *ada, int64_t *seq)
{
    for (;;) {
        struct mxengine_job *job = mxengine_job_create(MXENGINE_NEWS);
        struct mxclient_verify_news news;

        job->after_seq = *seq;
        CHECK_EQ_INT(mx_device_do(ada, job), 0);
        *seq = job->seq;
        news = job->news;
        mxengine_job_unref(job);
        if (news.step == MXCLIENT_VERIFY_ASKED)
            ada_act(ada, news.transaction_id, MXCLIENT_VERIFY_ACCEPT);
        else if (news.step == MXCLIENT_VERIFY_COMPARE) {
            if (world->is_asked)
                wait_count(ada, &count_checked, 1); /* bob's MAC comes before ada's answer */
            ada_act(ada, news.transaction_id,
                world->stage == STAGE_VERIFY && world->ending >= ENDING_MISMATCH
                    ? MXCLIENT_VERIFY_MISMATCH
                    : MXCLIENT_VERIFY_MATCH);
        } else if (news.step >= MXCLIENT_VERIFY_DONE)
            return news.step;
    }
}

/* Do one verification; returns its end. */
static enum mxclient_verify_step ada_verify_once(struct mx_device *ada)
{
    int64_t seq = mx_device_status(ada).news_seq;
    struct mxengine_job *job;

    if (world->is_asked)
        command('v');
    else {
        job = mxengine_job_create(MXENGINE_VERIFY);
        mxengine_job_set(job, MXENGINE_USER, SPAN("@u1:x"));
        CHECK_EQ_INT(mx_device_do(ada, job), 0);
        mxengine_job_unref(job);
    }
    return ada_follow(ada, &seq);
}

/* Verify bob. A verification of the first engine has ended on both sides: it does not disturb. */
static void ada_verify(struct mx_device *ada)
{
    enum mxclient_verify_step end = ada_verify_once(ada);

    while (world->stage == STAGE_VERIFY && world->ending != ENDING_MATCH)
        wait_commit(); /* the kill ends this */
    CHECK_MSG(end == MXCLIENT_VERIFY_DONE, "cancelled: also the next one is");
    while (mx_device_status(ada).is_posting)
        wait_commit();
    wait_count(ada, &count_open, 0);
}

/* Check what the restart left of a verification. */
static void ada_check_verification(struct mx_device *ada)
{
    wait_count(ada, &count_open, 0);
    CHECK_MSG(
        place_value(&ada->place, &count_trusted, 0) == place_value(&ada->place, &count_done, 0),
        "cancelled: bob's device is trusted without a verification that was done");
    while (mx_device_status(ada).is_posting)
        wait_commit();
}

static void ada_run(bool is_first)
{
    struct mx_device ada = { .wrap = deadly_wrap };
    struct sql_backend backend = sql_sqlite;

    backend.commit = deadly_commit;
    ada.backend = &backend;
    snprintf(ada.place.dir, sizeof ada.place.dir, "%s", world->dir);
    snprintf(ada.place.url, sizeof ada.place.url, "sqlite:%s/ada.db", world->dir);
    world->stage = is_first ? STAGE_LOGIN : STAGES;
    mx_device_start(&ada);
    ada_log_in(&ada);
    /* The last keys may go out after the engine has settled: the kill ends this. */
    while (is_first && world->stage_of_point == STAGE_LOGIN)
        wait_commit();
    if (!is_first)
        ada_check_verification(&ada);
    world->stage = is_first ? STAGE_TALK : STAGES;
    ada_talk(&ada, SENDS_FIRST);
    world->stage = is_first ? STAGE_REFRESH : STAGES;
    if (world->stage_of_point == STAGE_REFRESH) {
        command('t');
        ada_talk(&ada, SENDS);
    }
    world->stage = is_first ? STAGE_VERIFY : STAGES;
    if (world->stage_of_point == STAGE_VERIFY)
        ada_verify(&ada);
    mx_device_close(&ada);
    _exit(0); /* three processes a world: test_engine.c is where leaks are looked for */
}

#endif
