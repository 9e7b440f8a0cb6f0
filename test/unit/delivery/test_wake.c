/* SPDX-License-Identifier: Apache-2.0 */
/* What a conversation reads when it wakes: a few rows by their index and nothing of its history, as
 * much with two thousand messages and commits as with ten. So it needs no snapshot beside them. */
#include <pthread.h>
#include <sqlite3.h>

#include "check.h"
#include "services/delivery/convo.h"
#include "sql/backend.h"
#include "sql/unit.h"

/* ---- a database that notes what is read of a conversation
 * ------------------------------------------------ */

enum { READS_MAX = 32 };

static struct {
    pthread_mutex_t lock;
    bool is_noting;
    uint32_t count;
    struct {
        const struct sql_statement *statement;
        uint32_t rows;
    } reads[READS_MAX];
} notes = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct sql_backend *real_backend(void);

static bool is_of_convo(const struct sql_unit *unit, const struct sql_step *step)
{
    for (uint32_t i = 0; i < step->value_count; i++) {
        const struct sql_value *value = &unit->values[step->value_first + i];

        if (value->kind == SQL_TEXT &&
            tr_span_is((struct tr_span){ unit->bytes.bytes + value->offset, value->size }, "g1"))
            return true;
    }
    return false;
}

static void note(const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < unit->step_count; i++) {
        if (!is_of_convo(unit, &unit->steps[i]))
            continue;
        CHECK(notes.count < READS_MAX);
        notes.reads[notes.count].statement = unit->steps[i].statement;
        notes.reads[notes.count++].rows = unit->steps[i].row_count;
    }
}

static void note_all(struct sql_unit *const *units, size_t count)
{
    pthread_mutex_lock(&notes.lock);
    for (size_t i = 0; i < count && notes.is_noting; i++)
        note(units[i]);
    pthread_mutex_unlock(&notes.lock);
}

static int noted_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = real_backend()->read(connection, units, count);

    note_all(units, count);
    return rc;
}

static int noted_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = real_backend()->commit(connection, units, count);

    note_all(units, count);
    return rc;
}

static const struct sql_backend *noting_backend(void)
{
    static struct sql_backend backend;

    backend = *real_backend();
    backend.read = noted_read;
    backend.commit = noted_commit;
    return &backend;
}

#define SITE_BACKEND noting_backend()
#include "convo_acts.h"

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static void begin_noting(bool is_noting)
{
    pthread_mutex_lock(&notes.lock);
    notes.is_noting = is_noting;
    notes.count = is_noting ? 0 : notes.count;
    pthread_mutex_unlock(&notes.lock);
}

/* ---- what a statement costs the database, whatever it returns
 * ------------------------------------------ */

/* With the conversation's id in the place of $1: waking knows nothing else to ask by. */
static char *text_of(const struct sql_statement *statement)
{
    struct tr_buffer text = { 0 };
    const char *at = statement->text, *next;
    char *copy;

    for (; (next = strstr(at, "$1")) != NULL; at = next + 2)
        tr_buffer_format(&text, "%.*s'g1'", (int)(next - at), at);
    tr_buffer_text(&text, at);
    copy = strndup(text.bytes, text.size);
    CHECK(copy != NULL && strchr(copy, '$') == NULL);
    tr_buffer_free(&text);
    return copy;
}

/* Instructions of SQLite's machine: a few for every row that it looks at. */
static int64_t work_in_sqlite(const struct site *site, const char *text)
{
    char path[128];
    sqlite3 *handle;
    sqlite3_stmt *statement;
    int64_t work;

    (void)snprintf(path, sizeof path, "%s/delivery.db", site->place);
    CHECK_EQ_INT(sqlite3_open_v2(path, &handle, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_prepare_v2(handle, text, -1, &statement, NULL), SQLITE_OK);
    while (sqlite3_step(statement) == SQLITE_ROW)
        ;
    work = sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 0);
    CHECK_EQ_INT(sqlite3_finalize(statement), SQLITE_OK);
    CHECK_EQ_INT(sqlite3_close(handle), SQLITE_OK);
    return work;
}

static int64_t number_after(const char *line, const char *label)
{
    const char *at = strstr(line, label);

    return at == NULL ? 0 : strtoll(at + strlen(label), NULL, 10);
}

/* Rows that PostgreSQL looked at, for what it returns, and for what it passes over. */
static int64_t work_in_postgres(const struct site *site, const char *text)
{
    struct sql_unit *unit = sql_unit_new(0);
    struct tr_buffer explain = { 0 };
    int64_t work = 0;

    tr_buffer_format(&explain, "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) %s", text);
    tr_buffer_append(&explain, "", 1);
    sql_unit_step(unit, statement_of(explain.bytes), SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(site->sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        struct tr_span span = sql_row_bytes(unit, 0, i, 0);
        char line[400];

        (void)snprintf(line, sizeof line, "%.*s", (int)span.size, span.at);
        work += number_after(line, "actual rows=") * number_after(line, "loops=");
        work += number_after(line, "Removed by Filter: ");
    }
    sql_unit_free(unit);
    tr_buffer_free(&explain);
    return work;
}

/* ---- waking
 * ---------------------------------------------------------------------------------------------- */

struct cost {
    uint32_t statements;
    uint32_t rows;
    int64_t work;
};

static struct cost wake(struct cast *cast)
{
    struct cost cost = { 0 };

    begin_noting(true);
    expect(&cast->site, &cast->bob, "getConvo?convoId=g1", NULL, 200, "\"groupId\":\"g1\"");
    begin_noting(false);
    for (uint32_t i = 0; i < notes.count; i++) {
        char *text = text_of(notes.reads[i].statement);

        cost.statements++;
        cost.rows += notes.reads[i].rows;
        cost.work += SITE_ON_POSTGRES ? work_in_postgres(&cast->site, text)
                                      : work_in_sqlite(&cast->site, text);
        free(text);
    }
    return cost;
}

static void restart(struct site *site)
{
    site_close(site);
    site_open(site);
}

/* Every conversation, as one by one when nobody asks them. */
static void passivate(struct site *site)
{
    struct delivery *delivery = site->delivery;

    CHECK_EQ_INT(tr_registry_close(&delivery->convos, TR_SECONDS(10)), 0);
    CHECK_EQ_INT(tr_registry_create(site->system,
                     &(struct tr_registry_options){ .name = "convos",
                         .type = &convo_type,
                         .make = convo_seat_make,
                         .data = delivery,
                         .box = { .capacity = 256, .full = TR_FULL_FAIL } },
                     &delivery->convos),
        0);
}

/* A commit and a message in turns, up to this sequence number, which must be even. */
static void fill(const struct site *site, unsigned seq)
{
    char text[1024];

    (void)snprintf(text, sizeof text,
        "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes,"
        " created_ms) WITH RECURSIVE n (i) AS (SELECT seq + 1 FROM convos WHERE id = 'g1'"
        " UNION ALL SELECT i + 1 FROM n WHERE i < %u) SELECT 'g1', n.i,"
        " CASE WHEN n.i %% 2 = 1 THEN 3 ELSE 1 END, (n.i + 1) / 2 - n.i %% 2,"
        " (n.i + 1) / 2, l.sender, NULL, l.sha256, l.bytes, l.created_ms"
        " FROM n JOIN log l ON l.convo = 'g1' AND l.seq = 2",
        seq);
    plant(site, text);
    (void)snprintf(
        text, sizeof text, "UPDATE convos SET seq = %u, epoch = %u WHERE id = 'g1'", seq, seq / 2);
    plant(site, text);
}

static void check_wakes(void (*rest)(struct site *site))
{
    struct cost few, many;
    struct cast cast;

    cast_begin(&cast);
    fill(&cast.site, 12);
    rest(&cast.site);
    few = wake(&cast);
    CHECK_EQ_INT(wake(&cast).statements, 0); /* awake */
    fill(&cast.site, 2002);
    rest(&cast.site);
    many = wake(&cast);
    CHECK_EQ_INT(few.rows, 1 + 4 + 1); /* the conversation, its members, the newest commit */
    CHECK(few.work >= few.rows);
    CHECK_EQ_INT(many.statements, few.statements);
    CHECK_EQ_INT(many.rows, few.rows);
    CHECK_MSG(many.work <= few.work + 50, "waking takes %lld steps, and took %lld",
        (long long)many.work, (long long)few.work);
    act_say(&cast.site, &cast.bob, "g1", "next", 1001, "persistent", 200, "\"seq\":2003");
    cast_end(&cast);
}

TEST(wake, after_passivation_reads_nothing_of_the_history)
{
    check_wakes(passivate);
}

TEST(wake, after_a_restart_reads_nothing_of_the_history)
{
    check_wakes(restart);
}
