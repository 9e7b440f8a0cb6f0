/* SPDX-License-Identifier: Apache-2.0 */
/* Engines over real HTTP, against a homeserver that vanishes, resets, cuts, is slow or has no address.
 * Every accepted event arrives once and in order; mx_server.h checks the ratchets. */
#include "mx_home.h"

/* A reset is planned twice: libcurl repeats a request that may be repeated by itself if a kept
 * connection ends before the first byte of the answer. */
enum { SENDS = 3, RESETS = 2, SILENT_MS = 10 * 1000 };

/* The calls of ada's that are broken, each at its first requests. */
static struct {
    enum mx_home_fate fate;
    uint32_t calls; /* bits */
    int times;
    int met[MXCLIENT_CALL_COUNT];
} plan;

/* Calls before a login have no device: bob has logged in before the plan is made. */
static enum mx_home_fate judge(
    struct mx_home *home, const struct mx_server_request *request, int device)
{
    bool is_ada = device < 0 || home->server.devices[device].user == 0;

    if (!is_ada || (plan.calls & 1u << request->call) == 0 || plan.met[request->call] == plan.times)
        return MX_HOME_ANSWER;
    plan.met[request->call]++;
    return plan.fate;
}

/* Break the next requests of these calls. */
static void plan_set(struct mx_home *home, enum mx_home_fate fate, uint32_t calls, int times)
{
    pthread_mutex_lock(&home->lock);
    plan.fate = fate;
    plan.calls = calls;
    plan.times = times;
    memset(plan.met, 0, sizeof plan.met);
    home->judge = judge;
    pthread_mutex_unlock(&home->lock);
}

/* ---- two devices ------------------------------------------------------------------------------ */

struct pair {
    struct mx_home home;
    struct mx_device ada, bob;
    int64_t ada_cursor, bob_cursor;
};

static void device_start(struct mx_device *device)
{
    place_init_in_memory(&device->place);
    mx_device_start(device);
}

/* Bob creates the room and invites ada. */
static void pair_start(struct pair *pair)
{
    *pair = (struct pair){ 0 };
    mx_home_start(&pair->home);
    device_start(&pair->bob);
    device_start(&pair->ada);
    CHECK_EQ_INT(mx_device_login(&pair->bob, fake_server_url(pair->home.http, ""), "@u1:x"), 0);
    CHECK_EQ_INT(mx_device_room(&pair->bob, MXENGINE_CREATE, "@u0:x"), 0);
}

static void pair_meet(struct pair *pair)
{
    CHECK_EQ_INT(mx_device_login(&pair->ada, fake_server_url(pair->home.http, ""), "@u0:x"), 0);
    CHECK_EQ_INT(mx_device_room(&pair->ada, MXENGINE_JOIN, NULL), 0);
    while (!mx_device_is_joined(&pair->ada) || !mx_device_is_joined(&pair->bob))
        ;
    while (!mx_device_status(&pair->ada).is_settled || !mx_device_status(&pair->bob).is_settled)
        ;
}

static void pair_stop(struct pair *pair)
{
    mx_device_end_engine(&pair->ada);
    mx_device_end_engine(&pair->bob);
    http_client_stop(&pair->ada.client);
    http_client_stop(&pair->bob.client);
    mx_home_stop(&pair->home);
    place_finish(&pair->ada.place);
    place_finish(&pair->bob.place);
}

static void wait_text(struct mx_device *device, int64_t *cursor, const char *text)
{
    char body[200];

    CHECK_EQ_INT(mx_device_next(device, cursor, body, sizeof body), 0);
    CHECK_MSG(strstr(body, text) != NULL, "%s has no %s", body, text);
}

static void pair_talk(struct pair *pair)
{
    char text[40];

    for (int i = 0; i < SENDS; i++) {
        snprintf(text, sizeof text, "from ada %d.", i);
        CHECK_EQ_INT(mx_device_send(&pair->ada, text), 0);
        wait_text(&pair->bob, &pair->bob_cursor, text);
        snprintf(text, sizeof text, "from bob %d.", i);
        CHECK_EQ_INT(mx_device_send(&pair->bob, text), 0);
        wait_text(&pair->ada, &pair->ada_cursor, text);
    }
}

/* ---- cases ------------------------------------------------------------------------------------ */

/* All calls that the engine repeats by itself. */
#define REPEATED                                                                                   \
    (1u << MXCLIENT_WELL_KNOWN | 1u << MXCLIENT_VERSIONS | 1u << MXCLIENT_FILTER |                 \
        1u << MXCLIENT_SYNC | 1u << MXCLIENT_JOIN | 1u << MXCLIENT_KEYS_UPLOAD |                   \
        1u << MXCLIENT_KEYS_QUERY | 1u << MXCLIENT_KEYS_CLAIM | 1u << MXCLIENT_MEMBERS |           \
        1u << MXCLIENT_TO_DEVICE | 1u << MXCLIENT_SEND)

static void talk_through(enum mx_home_fate fate)
{
    struct pair pair;

    pair_start(&pair);
    plan_set(&pair.home, fate, REPEATED, RESETS);
    pair_meet(&pair);
    pair_talk(&pair);
    for (int i = 0; i < MXCLIENT_CALL_COUNT; i++)
        CHECK_MSG((REPEATED & 1u << i) == 0 || plan.met[i] > 0, "call %d was never broken", i);
    CHECK_EQ_U64(mx_device_status(&pair.ada).undecrypted, 0);
    pair_stop(&pair);
}

TEST_LONG(network, requests_that_are_reset_are_repeated, 60)
{
    talk_through(MX_HOME_RESET);
}

TEST_LONG(network, requests_whose_answer_is_lost_act_once, 60)
{
    talk_through(MX_HOME_ACT_RESET);
}

TEST_LONG(network, answers_that_are_cut_count_as_lost, 60)
{
    talk_through(MX_HOME_CUT);
}

TEST(network, a_login_that_is_reset_says_so_and_can_be_repeated)
{
    struct pair pair;

    pair_start(&pair);
    plan_set(&pair.home, MX_HOME_RESET, 1u << MXCLIENT_LOGIN, 1);
    CHECK_EQ_INT(mx_device_login(&pair.ada, fake_server_url(pair.home.http, ""), "@u0:x"), TR_EIO);
    CHECK_EQ_INT(mx_device_status(&pair.ada).state, MXCLIENT_SIGNED_OUT);
    pair_meet(&pair);
    pair_stop(&pair);
}

/* Neither libcurl nor the engine sends it again: the user decides. */
TEST(network, a_room_whose_answer_is_lost_is_created_once)
{
    struct pair pair = { 0 };
    uint64_t acted;

    mx_home_start(&pair.home);
    device_start(&pair.bob);
    device_start(&pair.ada);
    CHECK_EQ_INT(mx_device_login(&pair.ada, fake_server_url(pair.home.http, ""), "@u0:x"), 0);
    plan_set(&pair.home, MX_HOME_ACT_RESET, 1u << MXCLIENT_CREATE_ROOM, RESETS);
    CHECK_EQ_INT(mx_device_room(&pair.ada, MXENGINE_CREATE, NULL), TR_EIO);
    pthread_mutex_lock(&pair.home.lock);
    acted = pair.home.server.acted[MXCLIENT_CREATE_ROOM];
    pthread_mutex_unlock(&pair.home.lock);
    CHECK_EQ_U64(acted, 1);
    pair_stop(&pair);
}

/* A peer that has vanished holds one request. The others go on, and the event leaves once. */
TEST_LONG(network, a_send_on_a_half_open_connection_stops_no_other_request, 60)
{
    struct pair pair;

    pair_start(&pair);
    pair_meet(&pair);
    pair_talk(&pair);
    plan_set(&pair.home, MX_HOME_SILENT, 1u << MXCLIENT_SEND, 1);
    CHECK_EQ_INT(mx_device_send(&pair.ada, "on a dead connection"), 0);
    mx_home_wait_fate(&pair.home, MX_HOME_SILENT, 1);
    for (int i = 0; i < SENDS; i++) {
        CHECK_EQ_INT(mx_device_send(&pair.bob, "meanwhile"), 0);
        wait_text(&pair.ada, &pair.ada_cursor, "meanwhile");
    }
    if (!check_is_long()) /* else its own time limit ends the request */
        mx_home_hurry(&pair.home);
    wait_text(&pair.bob, &pair.bob_cursor, "on a dead connection");
    CHECK_EQ_INT(mx_device_send(&pair.ada, "the last"), 0);
    wait_text(&pair.bob, &pair.bob_cursor, "the last");
    pair_stop(&pair);
}

/* The shortest time limit of all calls, in real time. */
TEST_LONG(network, a_silent_homeserver_is_given_up_and_asked_again, 60)
{
    struct pair pair;

    CHECK_EQ_U64(mxclient_call_rules[MXCLIENT_WELL_KNOWN].timeout_ms, SILENT_MS);
    pair_start(&pair);
    plan_set(&pair.home, MX_HOME_SILENT, 1u << MXCLIENT_WELL_KNOWN, 1);
    pair_meet(&pair);
    CHECK_EQ_U64(pair.home.fates[MX_HOME_SILENT], 1);
    pair_stop(&pair);
}

TEST_LONG(network, half_an_answer_of_sync_delays_no_other_request, 60)
{
    struct pair pair;

    pair_start(&pair);
    pair_meet(&pair);
    pair_talk(&pair);
    plan_set(&pair.home, MX_HOME_SLOW, 1u << MXCLIENT_SYNC, 1);
    /* A poll that waits already is answered by the first event; then the second meets the slow one. */
    CHECK_EQ_INT(mx_device_send(&pair.bob, "first"), 0);
    CHECK_EQ_INT(mx_device_send(&pair.bob, "second"), 0);
    mx_home_wait_fate(&pair.home, MX_HOME_SLOW, 1);
    for (int i = 0; i < SENDS; i++) {
        CHECK_EQ_INT(mx_device_send(&pair.ada, "meanwhile"), 0);
        wait_text(&pair.bob, &pair.bob_cursor, "meanwhile");
    }
    mx_home_hurry(&pair.home);
    wait_text(&pair.ada, &pair.ada_cursor, "first");
    wait_text(&pair.ada, &pair.ada_cursor, "second");
    pair_stop(&pair);
}

SQL_STATEMENT(set_homeserver, "UPDATE mx_session SET homeserver = $1");

/* Move the homeserver of a stored session while no engine runs. */
static void device_move(struct mx_device *device, const char *url)
{
    struct sql_unit *unit = sql_unit_create(0);

    mx_device_end_engine(device);
    sql_unit_step(unit, &set_homeserver, 1);
    sql_unit_text(unit, span_of(url));
    CHECK_EQ_INT(sql_write_wait(device->place.sql, unit), 0);
    sql_unit_destroy(unit);
    mx_device_spawn(device);
}

static void wait_error(struct mx_device *device)
{
    while (mx_device_status(device).error == 0)
        ;
    CHECK_EQ_INT(mx_device_status(device).error, TR_EIO);
}

TEST_LONG(network, events_wait_while_the_homeserver_has_no_address, 60)
{
    struct pair pair;

    pair_start(&pair);
    pair_meet(&pair);
    pair_talk(&pair);
    device_move(&pair.ada, "http://nobody.invalid");
    wait_error(&pair.ada);
    CHECK_EQ_INT(mx_device_send(&pair.ada, "without a network"), 0);
    CHECK_EQ_INT(mx_device_status(&pair.ada).state, MXCLIENT_ACTIVE);
    CHECK_EQ_INT(mx_device_send(&pair.bob, "to nobody"), 0);
    device_move(&pair.ada, fake_server_url(pair.home.http, ""));
    wait_text(&pair.ada, &pair.ada_cursor, "to nobody");
    wait_text(&pair.bob, &pair.bob_cursor, "without a network");
    pair_stop(&pair);
}

TEST_LONG(network, a_login_without_an_address_can_name_another, 60)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_LOGIN);
    struct mxengine_message message = { job };
    struct tr_future *future;
    struct pair pair;

    pair_start(&pair);
    mxengine_job_set(job, MXENGINE_URL, SPAN("http://nobody.invalid"));
    mxengine_job_set(job, MXENGINE_USER, SPAN("@u0:x"));
    mxengine_job_set(job, MXENGINE_PASSWORD, SPAN("secret"));
    atomic_fetch_add(&job->holders, 1);
    CHECK_EQ_INT(tr_ask_future(pair.ada.engine, &message, sizeof message, 0, &future), 0);
    wait_error(&pair.ada);
    mx_device_end_engine(&pair.ada); /* the user gives up */
    CHECK(tr_future_wait(future, NULL, 0, NULL, TR_SECONDS(10)) != 0);
    tr_future_drop(&future);
    mxengine_job_unref(job);
    mx_device_spawn(&pair.ada);
    pair_meet(&pair);
    pair_stop(&pair);
}
