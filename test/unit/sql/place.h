/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: fixture of the sql tests: a directory, a database with two tables in it, and an actor
 * that submits units and keeps the results. */
#ifndef TEST_UNIT_SQL_PLACE_H
#define TEST_UNIT_SQL_PLACE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "check.h"
#include "sql/sql.h"

struct place {
    char dir[200];
    char path[256];
    char url[300];
    char why[512];
    struct tr_system *system;
    struct sql *sql;
};

static const struct sql_migration place_migrations[] = {
    { 1, "counters",
        "CREATE TABLE counter (id BIGINT PRIMARY KEY, value BIGINT NOT NULL CHECK (value >= 0));\n"
        "INSERT INTO counter VALUES (1, 0);\nINSERT INTO counter VALUES (2, 0);\n",
        "DROP TABLE counter;\n" },
    { 2, "notes",
        "CREATE TABLE note (id BIGINT PRIMARY KEY, counter BIGINT REFERENCES counter(id) "
        "DEFERRABLE INITIALLY DEFERRED, body {blob}, title TEXT);\n",
        "DROP TABLE note;\n" },
};

static inline void place_init_at(struct place *place, const char *where)
{
    memset(place, 0, sizeof *place);
    snprintf(place->dir, sizeof place->dir, "%s/troupe-sql-XXXXXX", where);
    CHECK(mkdtemp(place->dir) != NULL);
    snprintf(place->path, sizeof place->path, "%s/test.db", place->dir);
    snprintf(place->url, sizeof place->url, "sqlite:%s", place->path);
}

static inline void place_init(struct place *place)
{
    const char *tmp = getenv("TMPDIR");

    place_init_at(place, tmp != NULL ? tmp : "/tmp");
}

/* A place where syncs are free, for tests with thousands of commits that do not depend on syncs. */
static inline void place_init_in_memory(struct place *place)
{
    if (access("/dev/shm", W_OK) == 0)
        place_init_at(place, "/dev/shm");
    else
        place_init(place);
}

static inline struct sql_options place_options(const struct place *place)
{
    return (struct sql_options){
        .url = place->url, .migrations = place_migrations, .migration_count = 2, .readers = 2
    };
}

static inline void place_system(struct place *place)
{
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){ .workers = 2, .quiet = true }, &place->system),
        0);
}

static inline int place_try_open(struct place *place, const struct sql_options *options)
{
    return sql_open(place->system, options, place->why, sizeof place->why, &place->sql);
}

static inline void place_open(struct place *place)
{
    struct sql_options options = place_options(place);
    int rc;

    if (place->system == NULL)
        place_system(place);
    rc = place_try_open(place, &options);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), place->why);
}

static inline void place_finish(struct place *place)
{
    DIR *dir;
    struct dirent *entry;
    char name[600];

    sql_close(&place->sql);
    if (place->system != NULL)
        tr_system_destroy(&place->system);
    dir = opendir(place->dir);
    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        snprintf(name, sizeof name, "%s/%s", place->dir, entry->d_name);
        if (entry->d_name[0] != '.')
            CHECK_EQ_INT(unlink(name), 0);
    }
    closedir(dir);
    CHECK_EQ_INT(rmdir(place->dir), 0);
}

/* ---- statements ------------------------------------------------------------------------------ */

SQL_STATEMENT(step_counter, "UPDATE counter SET value = value + 1 WHERE id = $1 AND value = $2");
SQL_STATEMENT(add_counter, "INSERT INTO counter (id, value) VALUES ($1, $2)");
SQL_STATEMENT(read_counter, "SELECT value FROM counter WHERE id = $1");
SQL_STATEMENT(add_note, "INSERT INTO note (id, counter, body, title) VALUES ($1, $2, $3, $4)");
SQL_STATEMENT(count_notes, "SELECT count(*) FROM note");

static inline struct sql_unit *unit_step_counter(int64_t id, int64_t from)
{
    struct sql_unit *unit = sql_unit_create((uint64_t)id);

    sql_unit_step(unit, &step_counter, 1);
    sql_unit_int(unit, id);
    sql_unit_int(unit, from);
    return unit;
}

static inline void unit_add_note(struct sql_unit *unit, int64_t id, int64_t counter)
{
    sql_unit_step(unit, &add_note, 1);
    sql_unit_int(unit, id);
    if (counter == 0)
        sql_unit_null(unit);
    else
        sql_unit_int(unit, counter);
    sql_unit_blob(unit, "\0\1\2", 3);
    sql_unit_text(unit, SPAN("title"));
}

static inline int64_t place_value(
    struct place *place, const struct sql_statement *statement, int64_t id)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t value;
    int rc;

    sql_unit_step(unit, statement, 1);
    if (id != 0)
        sql_unit_int(unit, id);
    rc = sql_read_wait(place->sql, unit);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    value = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return value;
}

static inline int64_t place_counter(struct place *place, int64_t id)
{
    return place_value(place, &read_counter, id);
}

static inline int64_t place_notes(struct place *place)
{
    return place_value(place, &count_notes, 0);
}

/* ---- an actor that submits a handful of units at once, and answers when all are back --------- */

enum { BURST_MAX = 600 };

struct burst {
    struct sql *sql;
    uint32_t count;
    struct sql_unit *units[BURST_MAX]; /* ended units, at their positions */
    int submitted[BURST_MAX];          /* results of submitting */
    uint64_t timeout_ns;
    bool is_read;
    bool ends_at_once;
};

struct burst_message {
    struct burst *burst; /* NULL: answer when all units have ended */
};

struct burst_actor {
    struct sql_client client;
    struct burst *burst;
    uint32_t left;
    tr_reply_handle reply;
    tr_reply_handle end;
};

static inline void burst_answer(struct burst_actor *actor)
{
    if (actor->left > 0)
        return;
    (void)tr_reply_send(&actor->reply, 0, NULL, 0);
    (void)tr_reply_send(&actor->end, 0, NULL, 0);
}

static inline enum tr_next burst_handle(void *self, struct tr_context *ctx, void *message)
{
    struct burst_actor *actor = self;
    struct burst *burst = ((struct burst_message *)message)->burst;

    if (burst == NULL) {
        actor->end = tr_reply_take(ctx);
        burst_answer(actor);
        return TR_GO;
    }
    sql_client_init(&actor->client, burst->sql);
    actor->burst = burst;
    actor->reply = tr_reply_take(ctx);
    for (uint32_t i = 0; i < burst->count; i++) {
        burst->submitted[i] =
            (burst->is_read ? sql_read : sql_write)(ctx, &actor->client, burst->units[i],
                &(struct sql_submit_options){ .tag = i, .timeout_ns = burst->timeout_ns });
        actor->left += burst->submitted[i] == 0;
    }
    if (burst->ends_at_once) {
        sql_client_fini(&actor->client);
        actor->left = 0;
    }
    burst_answer(actor);
    return TR_GO;
}

static inline enum tr_next burst_event(
    void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct burst_actor *actor = self;
    struct sql_unit *unit = sql_take(&actor->client, event);

    (void)ctx;
    if (unit == NULL)
        return TR_GO; /* of a unit that it gave up */
    CHECK(event->tag < actor->burst->count);
    CHECK(unit == actor->burst->units[event->tag]);
    actor->left--;
    burst_answer(actor);
    return TR_GO;
}

static inline void burst_finish(void *self)
{
    sql_client_fini(&((struct burst_actor *)self)->client);
}

static const struct tr_type burst_type = {
    .name = "burst",
    .message_size = sizeof(struct burst_message),
    .state_size = sizeof(struct burst_actor),
    .handle = burst_handle,
    .event = burst_event,
    .finish = burst_finish,
};

static inline void burst_run(struct place *place, struct burst *burst)
{
    struct burst_actor actor = { 0 };
    struct burst_message message = { burst };
    tr_sender sender;

    burst->sql = place->sql;
    CHECK_EQ_INT(tr_spawn(place->system, &burst_type, &actor, NULL, &sender), 0);
    CHECK_EQ_INT(tr_ask_wait(sender, &message, sizeof message, NULL, 0, 0), 0);
    tr_sender_drop(&sender);
}

static inline void burst_free(struct burst *burst)
{
    for (uint32_t i = 0; i < burst->count; i++)
        if (!burst->ends_at_once || burst->submitted[i] != 0)
            sql_unit_destroy(burst->units[i]);
}

#endif
