/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose COMMIT happened and whose answer got lost on the way from the database: the
 * stored request must not stand in its own way, neither when the server tries again nor when the client
 * does. And streams that wait while a conversation is read, and while it goes. */
#include <pthread.h>

#include "ops/flags.h"
#include "services/delivery/convo/acts.h"
#include "sql/backend.h"

/* ---- a database whose answers can be lost or held ------------------------------------------- */

static struct {
    _Atomic bool is_next_lost;
    _Atomic uint32_t lost;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held;
    uint32_t held; /* reads that wait */
} shaky = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static const struct sql_backend *real_backend(void);

static int shaky_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = real_backend()->commit(connection, units, count);

    if (rc != 0 || !atomic_exchange(&shaky.is_next_lost, false))
        return rc;
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0) {
            sql_unit_reset_results(units[i]);
            sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "lost");
        }
    atomic_fetch_add(&shaky.lost, 1);
    return SQL_EUNKNOWN;
}

static int shaky_read(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    pthread_mutex_lock(&shaky.lock);
    shaky.held++;
    pthread_cond_broadcast(&shaky.changed);
    while (shaky.is_held)
        pthread_cond_wait(&shaky.changed, &shaky.lock);
    shaky.held--;
    pthread_mutex_unlock(&shaky.lock);
    return real_backend()->read(connection, units, count);
}

static const struct sql_backend *shaky_backend(void)
{
    static struct sql_backend backend;

    backend = *real_backend();
    backend.commit = shaky_commit;
    backend.read = shaky_read;
    return &backend;
}

#define SITE_BACKEND shaky_backend()
#include "convo_acts.h"

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static void hold_reads(bool is_held)
{
    pthread_mutex_lock(&shaky.lock);
    shaky.is_held = is_held;
    pthread_cond_broadcast(&shaky.changed);
    pthread_mutex_unlock(&shaky.lock);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* The answer to its COMMIT is lost; it is told all the same that it is stored. */
#define LOST(caller, call, part, ...)                                                              \
    do {                                                                                           \
        uint32_t lost = atomic_load(&shaky.lost);                                                  \
                                                                                                   \
        atomic_store(&shaky.is_next_lost, true);                                                   \
        act(&cast.site, caller, call, 200, part, __VA_ARGS__);                                     \
        CHECK_EQ_INT(atomic_load(&shaky.lost), lost + 1);                                          \
    } while (0)

static void check_roles(uint32_t direct)
{
    struct cast cast;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", direct);
#define TARGET "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}", cast.bob.did
    LOST(&cast.ada, "promoteAdmin", "promotedAt", TARGET);
    act(&cast.site, &cast.ada, "promoteAdmin", 409, "AlreadyAdmin", TARGET); /* it is true */
    LOST(&cast.ada, "demoteAdmin", "demotedAt", TARGET);
    LOST(&cast.ada, "promoteModerator", "promotedAt", TARGET);
    LOST(&cast.ada, "demoteModerator", "demotedAt", TARGET);
    LOST(&cast.ada, "updatePolicy", "\"maxMembers\":9", "{\"convoId\":\"g1\",\"maxMembers\":9}");
    LOST(&cast.bob, "updateCursor", "success", "{\"convoId\":\"g1\",\"seq\":2}");
    LOST(&cast.ada, "resetGroup", "\"groupId\":\"g1-again\"",
        "{\"convoId\":\"g1\",\"newGroupId\":\"g1-again\"}");
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM log WHERE kind = 7"), 1);
    expect(&cast.site, &cast.bob, "getConvo?convoId=g1", NULL, 200, "\"groupId\":\"g1-again\"");
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

TEST(lost_answer, of_a_role_policy_or_reset_is_no_refusal)
{
    check_roles(0);
}

TEST(lost_answer, of_a_role_policy_or_reset_is_no_refusal_without_an_actor)
{
    check_roles(FLAG_ALL);
}

static void check_members(uint32_t direct)
{
    char commit[256] = "", again[320];
    struct cast cast;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", direct);
#define CREATE(key)                                                                                \
    "{\"groupId\":\"n1\",\"cipherSuite\":\"" SUITE "\",\"idempotencyKey\":\"" key "\"}"
    LOST(&cast.ada, "createConvo", "\"creator\"", CREATE("c1"));
    act(&cast.site, &cast.ada, "createConvo", 200, "\"id\":\"n1\"", CREATE("c1"));
    act(&cast.site, &cast.ada, "createConvo", 409, "ConvoExists", CREATE("c2"));
    act(&cast.site, &cast.bob, "createConvo", 409, "ConvoExists", CREATE("c1"));
#define ADD "{\"convoId\":\"n1\",\"didList\":[\"%s\",\"%s\"],\"idempotencyKey\":\"a1\"}"
    LOST(&cast.ada, "addMembers", "\"newEpoch\":1", ADD, cast.bob.did, cast.cyd.did);
    act(&cast.site, &cast.ada, "addMembers", 200, "\"newEpoch\":1", ADD, cast.bob.did,
        cast.cyd.did);
    act(&cast.site, &cast.ada, "addMembers", 409, "AlreadyMember",
        "{\"convoId\":\"n1\",\"didList\":[\"%s\"]}", cast.bob.did);
#define REMOVE "{\"convoId\":\"n1\",\"targetDid\":\"%s\",\"idempotencyKey\":\"r1\"}"
    LOST(&cast.ada, "removeMember", "\"newEpoch\":2", REMOVE, cast.cyd.did);
    act(&cast.site, &cast.ada, "removeMember", 200, "\"newEpoch\":2", REMOVE, cast.cyd.did);
#define LEAVE "{\"convoId\":\"n1\",\"idempotencyKey\":\"l1\"}"
    LOST(&cast.bob, "leaveConvo", "\"newEpoch\":3", LEAVE);
    act(&cast.site, &cast.bob, "leaveConvo", 200, "\"newEpoch\":3", LEAVE);
    CHECK_EQ_INT(stored(&cast.site, "SELECT epoch FROM convos WHERE id = 'n1'"), 3);
    {
        char *bytes = private_message("g1", 1, 3, "a commit");

        (void)snprintf(commit, sizeof commit, "%s", bytes);
        free(bytes);
    }
    (void)snprintf(again, sizeof again, "{\"convoId\":\"g1\",\"commit\":\"%s\"}", commit);
    LOST(&cast.ada, "submitCommit", "\"newEpoch\":2", "%s", again);
    act(&cast.site, &cast.ada, "submitCommit", 200, "\"newEpoch\":2", "%s", again);
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

TEST(lost_answer, of_who_comes_and_goes_is_no_refusal)
{
    check_members(0);
}

TEST(lost_answer, of_who_comes_and_goes_is_no_refusal_without_an_actor)
{
    check_members(FLAG_ALL);
}

/* The electors may have changed since the report was stored, so the answer has no numbers. */
static void check_reports(uint32_t direct)
{
    struct cast cast;

    cast_begin(&cast);
    (void)flags_set("delivery.direct", direct);
    do_commit(&cast.site, &cast.ada, "g1", 1, "bad", "", 200, "\"epoch\":2");
    atomic_store(&shaky.is_next_lost, true);
    do_report(
        &cast.site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false,\"reports\":0,\"needed\":0");
    atomic_store(&shaky.is_next_lost, true);
    do_report(
        &cast.site, &cast.dan, "g1", 1, "bad", 200, "\"revoked\":true,\"reports\":0,\"needed\":0");
    (void)flags_set("delivery.direct", 0);
    cast_end(&cast);
}

TEST(lost_answer, of_a_report_has_no_numbers)
{
    check_reports(0);
}

TEST(lost_answer, of_a_report_has_no_numbers_without_an_actor)
{
    check_reports(FLAG_ALL);
}

/* ---- a stream that waits -------------------------------------------------------------------- */

static http_stream opened;
static _Atomic bool is_opened;

static void open_stream(struct http_request *request)
{
    CHECK_EQ_INT(http_sse_open(request, &(struct http_stream_options){ 0 }, &opened), 0);
    atomic_store(&is_opened, true);
}

TEST(waiting_stream, ends_when_its_conversation_goes)
{
    static const struct http_route route = {
        .method = HTTP_GET, .path = "/stream", .handle = open_stream
    };
    struct web_answer heard = { 0 };
    struct http_server *server;
    struct cast cast;
    struct delivery *delivery;
    struct act *act;
    tr_sender convo;
    char why[256] = "";
    int fd;

    cast_begin(&cast);
    delivery = cast.site.delivery;
    CHECK_MSG(http_server_start(cast.site.system,
                  &(struct http_server_options){
                      .listen = "127.0.0.1:0", .routes = &route, .route_count = 1, .quiet = true },
                  why, sizeof why, &server) == 0,
        "%s", why);
    fd = web_connect(http_server_address(server));
    web_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", 34);
    CHECK(web_receive_until(fd, &heard, "text/event-stream"));
    CHECK(atomic_load(&is_opened));
    hold_reads(true);
    act = act_create(&subscribe_act_type,
        &(struct auth_claims){ .kind = AUTH_SESSION, .issuer = span_of(cast.ada.did) });
    act->convo = SPAN("never read");
    act_subscribe(act)->stream = opened;
    act_subscribe(act)->stream_number = UINT64_MAX;
    CHECK_EQ_INT(
        tr_registry_get(delivery->convos, act->convo.at, act->convo.size, "the test", &convo), 0);
    CHECK_EQ_INT(tr_tell(convo, &(struct act_envelope){ .act = act }, sizeof(struct act_envelope)),
        0); /* it has the job */
    pthread_mutex_lock(&shaky.lock);
    while (shaky.held == 0) /* the case has a limit */
        pthread_cond_wait(&shaky.changed, &shaky.lock);
    pthread_mutex_unlock(&shaky.lock);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(convo)), 0);
    tr_sender_drop(&convo);
    web_answer_free(&heard);
    web_receive(fd, &heard); /* until it is closed */
    hold_reads(false);
    web_answer_free(&heard);
    http_server_stop(&server);
    cast_end(&cast);
}

/* A removed creator may not look at its conversation any more. */
TEST(repeat, of_a_creator_who_was_removed_is_refused)
{
    struct cast cast;

    cast_begin(&cast);
    act(&cast.site, &cast.ada, "createConvo", 200, "\"id\":\"n1\"", CREATE("c1"));
    act(&cast.site, &cast.ada, "addMembers", 200, "",
        "{\"convoId\":\"n1\",\"didList\":[\"%s\"],\"idempotencyKey\":\"a\"}", cast.bob.did);
    act(&cast.site, &cast.ada, "promoteAdmin", 200, "", "{\"convoId\":\"n1\",\"targetDid\":\"%s\"}",
        cast.bob.did);
    act(&cast.site, &cast.bob, "removeMember", 200, "",
        "{\"convoId\":\"n1\",\"targetDid\":\"%s\",\"idempotencyKey\":\"r\"}", cast.ada.did);
    act(&cast.site, &cast.ada, "createConvo", 403, "NotMember", CREATE("c1"));
    cast_end(&cast);
}
