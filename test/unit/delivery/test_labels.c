/* SPDX-License-Identifier: Apache-2.0 */
/* Labels of docs/api/errors.md that are met seldom: when there is nobody else, when a range is
 * none, and when the database refuses, is full, has changed meanwhile or does not say what it did.
 */
#include <poll.h>
#include <pthread.h>

#include "http/stats.h"
#include "ops/flags.h"
#include "sql/backend.h"

/* ---- a database that refuses or waits ------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        int status; /* from this step on; 0: as it is */
        int64_t step;
    } writes, reads;
    bool is_held;
    uint32_t held; /* writes that wait */
} moody = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static const struct sql_backend *real_backend(void);

/* The status that the database returns next; 0: it refuses no unit. */
static int refuse(struct sql_unit *const *units, size_t count, bool is_read)
{
    int64_t step;
    int status;

    pthread_mutex_lock(&moody.lock);
    status = is_read ? moody.reads.status : moody.writes.status;
    step = is_read ? moody.reads.step : moody.writes.step;
    pthread_mutex_unlock(&moody.lock);
    for (size_t i = 0; status != 0 && i < count; i++) {
        sql_unit_reset_results(units[i]);
        sql_unit_fail(units[i], step, status, "not today");
    }
    return status;
}

static int moody_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool is_silent; /* it does what it is told, and does not say so */
    int rc = 0;

    pthread_mutex_lock(&moody.lock);
    moody.held++;
    pthread_cond_broadcast(&moody.changed);
    while (moody.is_held)
        pthread_cond_wait(&moody.changed, &moody.lock);
    moody.held--;
    is_silent = moody.writes.status == SQL_EUNKNOWN;
    pthread_mutex_unlock(&moody.lock);
    if (is_silent)
        rc = real_backend()->commit(connection, units, count);
    if (refuse(units, count, false) != 0)
        return rc;
    return real_backend()->commit(connection, units, count);
}

static int moody_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    return refuse(units, count, true) != 0 ? 0 : real_backend()->read(connection, units, count);
}

static const struct sql_backend *moody_backend(void)
{
    static struct sql_backend backend;

    backend = *real_backend();
    backend.commit = moody_commit;
    backend.read = moody_read;
    return &backend;
}

#define SITE_BACKEND moody_backend()
#define SITE_QUEUE_MAX 1
#include "convo_acts.h"

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static void be_moody(bool is_unread, int64_t step, int status)
{
    pthread_mutex_lock(&moody.lock);
    if (is_unread) {
        moody.reads.step = step;
        moody.reads.status = status;
    } else {
        moody.writes.step = step;
        moody.writes.status = status;
    }
    pthread_mutex_unlock(&moody.lock);
}

static void hold(bool is_held)
{
    pthread_mutex_lock(&moody.lock);
    moody.is_held = is_held;
    pthread_cond_broadcast(&moody.changed);
    pthread_mutex_unlock(&moody.lock);
}

static void wait_held(void)
{
    pthread_mutex_lock(&moody.lock);
    while (moody.held == 0) /* the case has a limit */
        pthread_cond_wait(&moody.changed, &moody.lock);
    pthread_mutex_unlock(&moody.lock);
}

/* How often a request was sent away for this reason. */
static int64_t shed_count(const char *reason)
{
    const struct metric *metric = http_stats_shed("test", reason);

    CHECK(metric != NULL);
    return metric_get(metric);
}

/* ---- nothing to do with the database -------------------------------------------------------- */

TEST(label, last_member_is_for_who_is_left_alone)
{
    struct cast cast;

    cast_begin(&cast);
    do_create(&cast.site, &cast.eve, "alone");
    act(&cast.site, &cast.eve, "leaveConvo", 400, "\"error\":\"LastMember\"",
        "{\"convoId\":\"alone\"}");
    /* A member who removes all others is the last one, too: also with a commit. */
    {
        char *commit = private_message("alone", 0, 3, "the end");

        act(&cast.site, &cast.eve, "leaveConvo", 400, "\"error\":\"LastMember\"",
            "{\"convoId\":\"alone\",\"commit\":\"%s\"}", commit);
        act(&cast.site, &cast.eve, "submitCommit", 400, "\"error\":\"LastMember\"",
            "{\"convoId\":\"alone\",\"commit\":\"%s\",\"removes\":[\"%s\"]}", commit, cast.eve.did);
        free(commit);
    }
    expect(&cast.site, &cast.eve, "getEpoch?convoId=alone", NULL, 200, "\"currentEpoch\":0");
    cast_end(&cast);
}

/* The first change without a commit makes the server count. */
TEST(label, not_admin_is_for_who_would_let_the_server_count)
{
    struct cast cast;

    cast_begin(&cast);
    act(&cast.site, &cast.ada, "resetGroup", 200, "",
        "{\"convoId\":\"g1\",\"newGroupId\":\"another\"}");
    act(&cast.site, &cast.bob, "addMembers", 403, "\"error\":\"NotAdmin\"",
        "{\"convoId\":\"g1\",\"didList\":[\"%s\"]}", cast.eve.did);
    act(&cast.site, &cast.bob, "leaveConvo", 403, "\"error\":\"NotAdmin\"", "{\"convoId\":\"g1\"}");
    act(&cast.site, &cast.ada, "addMembers", 200, "", "{\"convoId\":\"g1\",\"didList\":[\"%s\"]}",
        cast.eve.did);
    act(&cast.site, &cast.bob, "leaveConvo", 200, "", "{\"convoId\":\"g1\"}");
    cast_end(&cast);
}

TEST(label, invalid_epoch_range_is_for_one_that_is_none)
{
    struct cast cast;

    cast_begin(&cast);
#define RANGE "getCommits?convoId=g1"
    expect(&cast.site, &cast.ada, RANGE, NULL, 400, "\"error\":\"InvalidEpochRange\"");
    expect(&cast.site, &cast.ada, RANGE "&toEpoch=1", NULL, 400, "\"error\":\"InvalidEpochRange\"");
    expect(&cast.site, &cast.ada, RANGE "&fromEpoch=2&toEpoch=1", NULL, 400,
        "\"error\":\"InvalidEpochRange\"");
    expect(&cast.site, &cast.ada, RANGE "&fromEpoch=x", NULL, 400, "\"error\":\"InvalidRequest\"");
    expect(&cast.site, &cast.ada, RANGE "&fromEpoch=1&toEpoch=1", NULL, 200, "\"epoch\":1");
    cast_end(&cast);
}

static char *group_info_of(const char *group, uint64_t epoch)
{
    struct buffer bytes = { 0 };
    char *text;

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, 1, 2); /* suite */
    mls_put_vector(&bytes, span_of(group));
    mls_put_number(&bytes, epoch, 8);
    mls_put_vector(&bytes, SPAN("tree hash"));
    mls_put_vector(&bytes, SPAN("transcript hash"));
    mls_put_vector(&bytes, SPAN("")); /* extensions of the group, then of this */
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("confirmation tag"));
    mls_put_number(&bytes, 0, 4);
    mls_put_vector(&bytes, SPAN("signature"));
    CHECK_EQ_INT(bytes.failed, 0);
    text = malloc(crypto_base64_size(bytes.size) + 1);
    CHECK(text != NULL);
    text[crypto_base64_encode(bytes.bytes, bytes.size, text)] = '\0';
    buffer_free(&bytes);
    return text;
}

TEST(label, invalid_group_info_is_for_one_that_is_malformed_or_of_something_else)
{
    char *good = group_info_of("g1", 1), *other = group_info_of("g2", 1);
    struct cast cast;

    cast_begin(&cast);
#define INFO "{\"convoId\":\"g1\",\"groupInfo\":\"%s\",\"epoch\":%d}"
#define REFUSED 400, "\"error\":\"InvalidGroupInfo\""
    act(&cast.site, &cast.ada, "updateGroupInfo", REFUSED, INFO, "AAEAAQ==", 1);
    act(&cast.site, &cast.ada, "updateGroupInfo", REFUSED, INFO, good, 2);
    act(&cast.site, &cast.ada, "updateGroupInfo", REFUSED, INFO, other, 1);
    expect(&cast.site, &cast.ada, "getGroupInfo?convoId=g1", NULL, 404,
        "\"error\":\"GroupInfoUnavailable\"");
    act(&cast.site, &cast.ada, "updateGroupInfo", 200, "", INFO, good, 1);
    cast_end(&cast);
    free(good);
    free(other);
}

static void refuse_cursor(const struct cast *cast, const char *cursor)
{
    char query[128];
    struct web_answer answer = { 0 };
    int fd;

    (void)snprintf(query, sizeof query, "convoId=g1&cursor=%s", cursor);
    fd = do_listen(&cast->site, &cast->ada, query);
    CHECK(web_receive_until(fd, &answer, "\"}"));
    CHECK_MSG(answer.status == 400 && strstr(answer.body, "\"error\":\"InvalidCursor\"") != NULL,
        "cursor=%s: %s", cursor, answer.text);
    web_answer_free(&answer);
    close(fd);
}

TEST(label, invalid_cursor_is_for_what_is_no_sequence_number)
{
    struct cast cast;

    cast_begin(&cast);
    refuse_cursor(&cast, "x");
    refuse_cursor(&cast, "");
    refuse_cursor(&cast, "-1");
    refuse_cursor(&cast, "1.5");
    refuse_cursor(&cast, "1x");
    refuse_cursor(&cast, "18446744073709551616");
    cast_end(&cast);
}

/* ---- the database --------------------------------------------------------------------------- */

/* 503 says Overloaded and when to come back; why is counted. */
static void expect_shed(const struct cast *cast, const char *id, const char *reason)
{
    int64_t before = shed_count(reason);

    do_say(&cast->site, &cast->bob, "g1", id, 1, "persistent", 503, "\"error\":\"Overloaded\"");
    CHECK_EQ_INT(shed_count(reason), before + 1);
}

static void check_unavailable(uint32_t direct)
{
    struct cast cast;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", direct);
    do_say(&cast.site, &cast.bob, "g1", "m1", 1, "persistent", 200, "\"seq\":3");
    be_moody(false, -1, SQL_EFAILED);
    expect_shed(&cast, "m2", "Unavailable");
    be_moody(false, -1, 0);
    /* Nothing was stored, and its number is not lost. */
    do_say(&cast.site, &cast.bob, "g1", "m2", 1, "persistent", 200, "\"seq\":4");
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

TEST(label, unavailable_is_for_what_the_database_refuses)
{
    check_unavailable(0);
}

TEST(label, unavailable_is_for_what_the_database_refuses_without_an_actor)
{
    check_unavailable(FLAG_ALL);
}

TEST(label, unavailable_is_for_a_conversation_that_cannot_be_read)
{
    struct cast cast;

    cast_begin(&cast);
    site_close(&cast.site); /* nobody has it in memory */
    site_open(&cast.site);
    be_moody(true, -1, SQL_EFAILED);
    expect_shed(&cast, "m1", "Unavailable");
    be_moody(true, -1, 0);
    do_say(&cast.site, &cast.bob, "g1", "m1", 1, "persistent", 200, "\"seq\":3");
    cast_end(&cast);
}

static int say_later(const struct cast *cast, const char *id)
{
    char *header = caller_header(&cast->bob, "sendMessage");
    char *message = private_message("g1", 1, 1, id);
    int fd = web_connect(http_server_address(cast->site.server));
    struct buffer body = { 0 }, text = { 0 };

    buffer_format(&body, "{\"convoId\":\"g1\",\"msgId\":\"%s\",\"ciphertext\":\"%s\",\"epoch\":1}",
        id, message);
    buffer_format(&text,
        "POST /xrpc/blue.catbird.mls.sendMessage HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n%.*s",
        body.size, header, (int)body.size, body.bytes);
    CHECK(body.failed == 0 && text.failed == 0);
    web_send(fd, text.bytes, text.size);
    buffer_free(&body);
    buffer_free(&text);
    free(header);
    free(message);
    return fd;
}

/* One is being written, one waits, and there is no room for two more. */
TEST(label, busy_is_for_who_finds_no_room)
{
    enum { LATER = 3 };
    struct pollfd ready[LATER];
    int64_t before = shed_count("Busy");
    unsigned refused = 0;
    struct web_answer answer;
    struct cast cast;
    int first;

    cast_begin(&cast);
    hold(true);
    first = say_later(&cast, "first");
    wait_held();
    for (int i = 0; i < LATER; i++) {
        char id[24];

        (void)snprintf(id, sizeof id, "later%d", i);
        ready[i] = (struct pollfd){ .fd = say_later(&cast, id), .events = POLLIN };
    }
    while (refused < LATER - 1) {
        CHECK(poll(ready, LATER, 15000) > 0);
        for (int i = 0; i < LATER; i++)
            if (ready[i].revents != 0) {
                web_receive(ready[i].fd, &answer);
                CHECK_MSG(answer.status == 503 &&
                              strstr(answer.text, "Retry-After: 1\r\n") != NULL &&
                              strstr(answer.body, "\"error\":\"Overloaded\"") != NULL,
                    "%s", answer.text);
                web_answer_free(&answer);
                close(ready[i].fd);
                ready[i].fd = -1;
                refused++;
            }
    }
    CHECK_EQ_INT(shed_count("Busy"), before + LATER - 1);
    hold(false);
    web_receive(first, &answer);
    CHECK_EQ_INT(answer.status, 200);
    web_answer_free(&answer);
    close(first);
    for (int i = 0; i < LATER; i++)
        if (ready[i].fd >= 0) {
            web_receive(ready[i].fd, &answer);
            CHECK_EQ_INT(answer.status, 200);
            web_answer_free(&answer);
            close(ready[i].fd);
        }
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM log WHERE kind = 1"), 2);
    cast_end(&cast);
}

/* A step after the token's found other rows than it looked for. */
TEST(label, conflict_is_for_what_changed_meanwhile)
{
    struct cast cast;
    char call[256];

    cast_begin(&cast);
    (void)snprintf(call, sizeof call, "getOptInStatus?dids=%s", cast.ada.did);
    be_moody(false, 1, SQL_EROWS);
    act(&cast.site, &cast.ada, "optIn", 409, "\"error\":\"Conflict\"", "{}");
    be_moody(false, 0, 0);
    expect(&cast.site, &cast.ada, call, NULL, 200, "\"optedIn\":false");
    act(&cast.site, &cast.ada, "optIn", 200, "\"optedIn\":true", "{}");
    cast_end(&cast);
}

/* ---- nobody knows --------------------------------------------------------------------------- */

static void wait_stored(const struct site *site, const char *count)
{
    while (stored(site, count) == 0) /* the case has a limit */
        (void)poll(NULL, 0, 10);
}

TEST(label, outcome_unknown_is_for_what_the_database_may_have_stored)
{
    struct cast cast;

    cast_begin(&cast);
    be_moody(false, -1, SQL_EUNKNOWN);
    act(&cast.site, &cast.ada, "optIn", 504, "\"error\":\"OutcomeUnknown\"", "{}");
    be_moody(false, -1, 0);
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM consents"), 1);
    act(&cast.site, &cast.ada, "optIn", 200, "\"optedIn\":true", "{}");
    cast_end(&cast);
}

/* In doubt, and the conversation cannot be read to see. */
static void check_in_doubt(uint32_t direct)
{
    struct cast cast;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", direct);
    be_moody(true, -1, SQL_EFAILED);
    be_moody(false, -1, SQL_EUNKNOWN);
    do_say(&cast.site, &cast.bob, "g1", "m1", 1, "persistent", 504, "\"error\":\"OutcomeUnknown\"");
    be_moody(true, -1, 0);
    be_moody(false, -1, 0);
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM log WHERE kind = 1"), 1);
    do_say(&cast.site, &cast.bob, "g1", "m1", 1, "persistent", 200, "\"seq\":3");
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM log WHERE kind = 1"), 1);
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

TEST(label, outcome_unknown_is_for_a_message_that_may_be_stored)
{
    check_in_doubt(0);
}

TEST(label, outcome_unknown_is_for_a_message_that_may_be_stored_without_an_actor)
{
    check_in_doubt(FLAG_ALL);
}

/* A read stores nothing, however it ends. */
TEST(label, outcome_unknown_is_not_for_questions)
{
    struct cast cast;

    cast_begin(&cast);
    be_moody(true, -1, SQL_EUNKNOWN);
    expect(
        &cast.site, &cast.ada, "getExpectedConversations", NULL, 503, "\"error\":\"Overloaded\"");
    be_moody(true, -1, 0);
    cast_end(&cast);
}

/* It is written so slowly that nobody waits for it any more, and then it is there. */
static void cast_begin_slow(struct cast *cast)
{
    cast_begin(cast);
    site_close(&cast->site);
    site_request_ns = TR_SECONDS(1);
    site_open(&cast->site);
    hold(true);
}

static void cast_end_slow(struct cast *cast, const char *count)
{
    CHECK_EQ_INT(stored(&cast->site, count), 0);
    hold(false);
    wait_stored(&cast->site, count);
    site_request_ns = 0;
    cast_end(cast);
}

TEST(label, deadline_exceeded_is_for_what_may_be_stored_later)
{
    struct cast cast;

    cast_begin_slow(&cast);
    act(&cast.site, &cast.ada, "optIn", 504, "\"error\":\"DeadlineExceeded\"", "{}");
    cast_end_slow(&cast, "SELECT COUNT(*) FROM consents");
}

static void check_slow_message(uint32_t direct)
{
    struct cast cast;

    cast_begin_slow(&cast);
    (void)flags_set("delivery.direct", direct);
    do_say(
        &cast.site, &cast.bob, "g1", "m1", 1, "persistent", 504, "\"error\":\"DeadlineExceeded\"");
    (void)flags_set("delivery.direct", 0);
    cast_end_slow(&cast, "SELECT COUNT(*) FROM log WHERE kind = 1");
}

TEST(label, deadline_exceeded_is_for_a_message_that_may_be_stored_later)
{
    check_slow_message(0);
}

TEST(label, deadline_exceeded_is_for_a_message_that_may_be_stored_later_without_an_actor)
{
    check_slow_message(FLAG_ALL);
}
