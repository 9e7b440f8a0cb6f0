/* SPDX-License-Identifier: Apache-2.0 */
/* kill_home.h: the homeserver of test_engine_kill.c with bob's engine, and what is checked at
 * the end of a world. */
#ifndef TEST_UNIT_MATRIX_KILL_HOME_H
#define TEST_UNIT_MATRIX_KILL_HOME_H

#include "kill_ada.h"

/* ---- the homeserver and bob ------------------------------------------------------------------- */

struct flow {
    char id[MXCLIENT_ID_BYTES_MAX + 1];
    enum mxclient_verify_step step; /* the last one that bob heard of */
};

static struct {
    struct mx_home home;
    struct mx_device bob;
    struct mx_server_place since[MX_SERVER_DEVICES];
    int seen[SENDS]; /* ada's events; under the home's lock, like all below */
    struct flow flows[FLOWS_MAX];
    int flow_count;
} there;

/* Return whether this is the last message of ada's first verification, and does not arrive. */
static bool is_held(const struct mx_home *home, const struct mx_server_request *request, int device)
{
    static const char done[] = ".verification.done/", cancel[] = ".verification.cancel/";

    return (world->ending == ENDING_MATCH_HELD || world->ending == ENDING_MISMATCH_HELD) &&
           world->stage != STAGES && request->call == MXCLIENT_TO_DEVICE && device >= 0 &&
           home->server.devices[device].user == 0 &&
           (memmem(request->target.at, request->target.size, done, sizeof done - 1) != NULL ||
               memmem(request->target.at, request->target.size, cancel, sizeof cancel - 1) != NULL);
}

/* See ada's requests. The first /sync of an engine gets some news, so that it does not pause. */
static enum mx_home_fate judge(
    struct mx_home *home, const struct mx_server_request *request, int device)
{
    struct mx_server_place since;

    if (is_held(home, request, device))
        return MX_HOME_RESET;
    if (request->call != MXCLIENT_SYNC || device < 0)
        return MX_HOME_ANSWER;
    since = mx_server_since(request->target);
    CHECK_MSG(since.events >= there.since[device].events &&
                  since.messages >= there.since[device].messages &&
                  since.changes >= there.since[device].changes,
        "token: device %d goes back", device);
    there.since[device] = since;
    if (!mx_home_is_poll(request)) {
        CHECK(home->server.change_count < MX_SERVER_CHANGES);
        home->server.changes[home->server.change_count++] = 2;
    }
    return MX_HOME_ANSWER;
}

/* Count a user's messages of a kind, in a verification. */
static int count_messages(int user, const char *kind, const char *id)
{
    char type[100];
    int count = 0;

    snprintf(
        type, sizeof type, "{\"type\":\"m.key.verification.%s\",\"sender\":\"@u%d:x\"", kind, user);
    for (int i = 0; i < there.home.server.message_count; i++) {
        const struct buffer *json = &there.home.server.messages[i].json;

        count += memmem(json->bytes, json->size, type, strlen(type)) != NULL &&
                 memmem(json->bytes, json->size, id, strlen(id)) != NULL;
    }
    return count;
}

static void *bob_read(void *data)
{
    int64_t cursor = 0;
    char text[200];

    (void)data;
    while (mx_device_next(&there.bob, &cursor, text, sizeof text) == 0) {
        const char *at = strstr(text, "event ");
        int number = at == NULL ? -1 : (int)strtol(at + strlen("event "), NULL, 10);

        CHECK_MSG(number >= 0 && number < SENDS, "%s", text);
        snprintf(text, sizeof text, "answer %d.", number);
        if (mx_device_send(&there.bob, text) != 0)
            break;
        pthread_mutex_lock(&there.home.lock);
        CHECK_MSG(there.seen[number]++ == 0, "once: bob reads event %d twice", number);
        pthread_cond_broadcast(&there.home.changed);
        pthread_mutex_unlock(&there.home.lock);
    }
    return NULL;
}

static void bob_note(const struct mxclient_verify_news *news)
{
    int i;

    pthread_mutex_lock(&there.home.lock);
    for (i = 0; i < there.flow_count; i++)
        if (strcmp(there.flows[i].id, news->transaction_id) == 0)
            break;
    CHECK(i < FLOWS_MAX);
    if (i == there.flow_count)
        there.flow_count++;
    snprintf(there.flows[i].id, sizeof there.flows[i].id, "%s", news->transaction_id);
    there.flows[i].step = news->step;
    pthread_cond_broadcast(&there.home.changed);
    pthread_mutex_unlock(&there.home.lock);
}

/* Ada asks: her MAC comes before bob's answer, or nothing comes any more. */
static void bob_wait_mac(const char *id)
{
    pthread_mutex_lock(&there.home.lock);
    while (!there.home.is_ending && count_messages(0, "mac", id) == 0 &&
           count_messages(0, "cancel", id) == 0)
        pthread_cond_wait(&there.home.changed, &there.home.lock);
    pthread_mutex_unlock(&there.home.lock);
}

/* Bob accepts and confirms all verifications. He may be too late: ada's engine can be gone. */
static void *bob_verify(void *data)
{
    int64_t seq = 0;

    (void)data;
    for (;;) {
        struct mxengine_job *job = mxengine_job_create(MXENGINE_NEWS), *act;
        struct mxclient_verify_news news;
        int rc;

        job->after_seq = seq;
        rc = mx_device_do(&there.bob, job);
        seq = job->seq;
        news = job->news;
        mxengine_job_unref(job);
        if (rc != 0)
            return NULL;
        bob_note(&news);
        if (news.step != MXCLIENT_VERIFY_ASKED && news.step != MXCLIENT_VERIFY_COMPARE)
            continue;
        if (news.step == MXCLIENT_VERIFY_COMPARE && !world->is_asked)
            bob_wait_mac(news.transaction_id);
        act = mxengine_job_create(MXENGINE_ACT);
        mxengine_job_set(act, MXENGINE_TEXT, span_of(news.transaction_id));
        act->act =
            news.step == MXCLIENT_VERIFY_ASKED ? MXCLIENT_VERIFY_ACCEPT : MXCLIENT_VERIFY_MATCH;
        (void)mx_device_do(&there.bob, act);
        mxengine_job_unref(act);
    }
}

static void bob_start(void)
{
    struct mx_device *bob = &there.bob;

    snprintf(bob->place.dir, sizeof bob->place.dir, "%s", world->dir);
    snprintf(bob->place.url, sizeof bob->place.url, "sqlite:%s/bob.db", world->dir);
    mx_device_start(bob);
    CHECK_EQ_INT(mx_device_login(bob, world->url, "@u1:x"), 0);
    while (!mx_device_status(bob).is_settled)
        ;
    CHECK_EQ_INT(mx_device_room(bob, MXENGINE_CREATE, "@u0:x"), 0);
}

/* End ada's access token; the refresh token stays. */
static void end_token(void)
{
    pthread_mutex_lock(&there.home.lock);
    for (int i = 0; i < there.home.server.device_count; i++)
        if (there.home.server.devices[i].user == 0)
            there.home.server.devices[i].token = 0;
    pthread_cond_broadcast(&there.home.changed);
    pthread_mutex_unlock(&there.home.lock);
}

static void bob_ask(void)
{
    struct mxengine_job *job = mxengine_job_create(MXENGINE_VERIFY);

    mxengine_job_set(job, MXENGINE_USER, SPAN("@u0:x"));
    CHECK_EQ_INT(mx_device_do(&there.bob, job), 0);
    mxengine_job_unref(job);
}

/* ---- the end of a world ----------------------------------------------------------------------- */

SQL_STATEMENT(count_bad_events, "SELECT COUNT(*) FROM mx_event WHERE status <> 1");
SQL_STATEMENT(count_events, "SELECT COUNT(*) FROM mx_event WHERE is_own = 0");
SQL_STATEMENT(count_own, "SELECT COUNT(*) FROM mx_event WHERE is_own = 1");
SQL_STATEMENT(count_sent, "SELECT COUNT(*) FROM mx_outbox WHERE sending = 2");
SQL_STATEMENT(ended_ids, "SELECT transaction_id, step FROM mx_verification");

/* Wait until bob has read and answered all that ada has sent. */
static int check_bob(void)
{
    int sent = 0, seen;

    pthread_mutex_lock(&there.home.lock);
    for (int i = 0; i < there.home.server.event_count; i++) {
        int device = there.home.server.events[i].device;

        sent += device >= 0 && there.home.server.devices[device].user == 0 ? 1 : 0;
    }
    do {
        seen = 0;
        for (int i = 0; i < SENDS; i++)
            seen += there.seen[i];
        if (seen < sent)
            pthread_cond_wait(&there.home.changed, &there.home.lock);
    } while (seen < sent);
    for (int i = 0; i < SENDS; i++)
        CHECK_MSG(!world->is_accepted[i] || there.seen[i] == 1, "once: event %d is lost", i);
    pthread_mutex_unlock(&there.home.lock);
    return sent;
}

/* Check the keys that count as published against the server's. */
static void check_keys(const struct mxclient *client)
{
    const struct mx_account *account = client->session.account;
    const struct mx_server_device *device = NULL;
    struct mx_one_time_key key;
    char id[MX_KEY_ID_CHARS + 1], name[64];

    for (int i = 0; i < there.home.server.device_count; i++)
        if (span_is(mxclient_span(&client->session.device_id), there.home.server.devices[i].id))
            device = &there.home.server.devices[i];
    CHECK(device != NULL);
    for (size_t i = 0; mx_account_one_time_key_at(account, i, &key); i++) {
        bool is_there = false;

        mx_key_id_text(key.id, id);
        snprintf(name, sizeof name, "signed_curve25519:%s", id);
        for (int k = 0; k < device->key_count; k++)
            is_there = is_there || span_is(mx_server_text(&device->keys[k].name), name);
        CHECK_MSG(key.is_published == is_there, "published: key %s is %s the server", name,
            is_there ? "on" : "not on");
    }
    CHECK_MSG(device->key_count == MXCLIENT_KEYS_ON_SERVER, "published: %d keys were made",
        device->key_count);
    CHECK(mx_account_fallback_key(account, &key));
    mx_key_id_text(key.id, id);
    snprintf(name, sizeof name, "\"signed_curve25519:%s\"", id);
    CHECK_MSG(key.is_published &&
                  memmem(device->fallback.bytes, device->fallback.size, name, strlen(name)) != NULL,
        "published: the fallback key is not on the server");
}

/* Check how often ada has said the end of a verification. A cancel is never answered. */
static void check_said(struct span step, const char *id)
{
    int done = count_messages(0, "done", id), cancelled = count_messages(0, "cancel", id);

    if (span_is(step, "done"))
        CHECK_MSG(done == 1 && cancelled == 0, "told: ada said done %d times, cancelled %d times",
            done, cancelled);
    else if (count_messages(1, "cancel", id) == 0)
        CHECK_MSG(cancelled == 1, "cancelled: ada says so %d times", cancelled);
}

/* Wait until bob has heard the end of a verification of ada's, if he knows of it. */
static void check_told(struct span step, struct span row_id)
{
    char id[MXCLIENT_ID_BYTES_MAX + 1];

    snprintf(id, sizeof id, "%.*s", (int)row_id.size, row_id.at);
    pthread_mutex_lock(&there.home.lock);
    check_said(step, id);
    for (int i = 0; i < there.flow_count; i++) {
        if (strcmp(there.flows[i].id, id) != 0)
            continue;
        while (there.flows[i].step < MXCLIENT_VERIFY_DONE)
            pthread_cond_wait(&there.home.changed, &there.home.lock);
        CHECK_MSG(!span_is(step, "done") || there.flows[i].step == MXCLIENT_VERIFY_DONE,
            "told: ada's side is done, and bob's is %s",
            mxclient_verify_step_text(there.flows[i].step));
    }
    pthread_mutex_unlock(&there.home.lock);
}

static void check_ada(int sent)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient client = { 0 };
    struct mx_random random = { NULL, NULL };
    struct place place = { 0 };
    struct sql_options options;

    snprintf(place.url, sizeof place.url, "sqlite:%s/ada.db", world->dir);
    place_system(&place);
    options = (struct sql_options){
        .url = place.url, .migrations = mxstore_migrations, .migration_count = MXSTORE_MIGRATIONS
    };
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    CHECK_MSG(
        place_value(&place, &count_sent, 0) == sent && place_value(&place, &count_unsent, 0) == 0,
        "once: %d are in the room, %d sent, %d unsent", sent,
        (int)place_value(&place, &count_sent, 0), (int)place_value(&place, &count_unsent, 0));
    CHECK_MSG(place_value(&place, &count_bad_events, 0) == 0, "once: ada cannot read an event");
    CHECK_MSG(place_value(&place, &count_events, 0) <= sent, "once: ada has an answer twice");
    CHECK_MSG(place_value(&place, &count_own, 0) <= sent, "once: ada has an own event twice");
    mxclient_load_read(unit);
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    mxclient_session_init(&client.session, &random, &mx_client_key);
    CHECK_EQ_INT(mxclient_load(&client, unit, 0), 0);
    check_keys(&client);
    mxclient_fini(&client);
    sql_unit_destroy(unit);
    unit = sql_unit_create(0);
    sql_unit_step(unit, &ended_ids, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++)
        check_told(sql_row_bytes(unit, 0, i, 1), sql_row_bytes(unit, 0, i, 0));
    sql_unit_destroy(unit);
    sql_close(&place.sql);
    tr_system_destroy(&place.system);
}

/* Live from bob's login to the end of the pipe; a byte to `ready_fd` says that ada may come. */
static void there_run(int ready_fd)
{
    pthread_t threads[2];
    char letter;

    close(world->commands[1]);
    mx_home_start(&there.home);
    there.home.judge = judge;
    there.home.server.faults.has_refresh = true;
    snprintf(world->url, sizeof world->url, "%s", fake_server_url(there.home.http, ""));
    bob_start();
    CHECK_EQ_INT(pthread_create(&threads[0], NULL, bob_read, NULL), 0);
    CHECK_EQ_INT(pthread_create(&threads[1], NULL, bob_verify, NULL), 0);
    CHECK_EQ_INT(write(ready_fd, "r", 1), 1);
    while (read(world->commands[0], &letter, 1) == 1)
        (letter == 't' ? end_token : bob_ask)();
    check_ada(check_bob());
    mx_home_stop(&there.home);
    mx_device_close(&there.bob);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    _exit(0);
}

#endif
