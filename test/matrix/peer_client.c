/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_client.h"

#include <poll.h>
#include <time.h>

#include <troupe/error.h>

#include "matrix/client/body.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/sync.h"

enum { PREPARE_ROUNDS_MAX = 50, SQL_WHY_BYTES = 512 };

static void random_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    crypto_random_fill(bytes, size);
}
const struct mx_random peer_random = { .fill = random_fill };
static const struct mx_pickle_key peer_key = { { 7 } }; /* the secrets of a test */

static int64_t peer_ahead_ms; /* of the real clock */

int64_t peer_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return peer_ahead_ms + (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void peer_pass_ms(int64_t ms)
{
    peer_ahead_ms += ms;
}

static void peer_check(int rc, const char *what)
{
    if (rc != 0)
        peer_fail("%s: %s", what, mx_error_text(rc));
}

/* ---- storage ---------------------------------------------------------------------------------- */

void peer_commit(struct peer_client *peer, struct sql_unit *unit)
{
    int rc = sql_unit_is_empty(unit) ? 0 : sql_write_wait(peer->sql, unit);

    if (rc != 0)
        peer_fail("a unit failed: %s: step %lld: %s", sql_error_text(rc),
            (long long)sql_unit_failed_step(unit), sql_unit_why(unit));
    sql_unit_destroy(unit);
}

static int peer_load(struct peer_client *peer)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    mxclient_session_init(&peer->client.session, &peer_random, &peer_key);
    mxclient_load_read(unit);
    peer_check(sql_read_wait(peer->sql, unit), "reading the database");
    rc = mxclient_load(&peer->client, unit, peer_now_ms());
    sql_unit_destroy(unit);
    return rc;
}

bool peer_client_open(struct peer_client *peer, const char *path)
{
    struct sql_options options = { .migrations = mxstore_migrations,
        .migration_count = MXSTORE_MIGRATIONS };
    struct buffer url = { 0 };
    char why[SQL_WHY_BYTES];
    int rc;

    (void)buffer_format(&url, "sqlite:%s", path);
    (void)buffer_append(&url, "", 1);
    options.url = url.bytes;
    peer_check(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &peer->system),
        "starting actors");
    if (sql_open(peer->system, &options, why, sizeof why, &peer->sql) != 0)
        peer_fail("%s", why);
    buffer_free(&url);
    peer->multi = curl_multi_init();
    peer->client.policy = MXCLIENT_SHARE_ALL;
    peer->is_first_sync = true;
    rc = peer_load(peer);
    if (rc != TR_ENOENT)
        peer_check(rc, "loading the client");
    peer->seq_told = peer->client.seq_next - 1;
    return rc == 0;
}

/* Give up the sync under way: its answer was not taken. */
static void peer_stop_sync(struct peer_client *peer)
{
    if (peer->is_syncing)
        (void)curl_multi_remove_handle(peer->multi, peer->sync.easy);
    if (peer->is_syncing)
        mxclient_request_fini(&peer->sync_request);
    peer->is_syncing = false;
    peer->is_first_sync = true;
}

void peer_client_restart(struct peer_client *peer)
{
    enum mxclient_policy policy = peer->client.policy;

    peer_stop_sync(peer);
    mxclient_fini(&peer->client);
    peer->client = (struct mxclient){ .policy = policy };
    peer_check(peer_load(peer), "loading the client");
}

void peer_client_close(struct peer_client *peer)
{
    peer_stop_sync(peer);
    peer_transfer_fini(&peer->ask);
    peer_transfer_fini(&peer->sync);
    curl_multi_cleanup(peer->multi);
    mxclient_fini(&peer->client);
    json_doc_free(&peer->doc);
    json_doc_free(&peer->sync_doc);
    buffer_free(&peer->user);
    mx_wipe_buffer(&peer->password);
    sql_close(&peer->sql);
    tr_system_destroy(&peer->system);
}

/* ---- session ---------------------------------------------------------------------------------- */

static void peer_sleep(uint64_t ms)
{
    (void)poll(NULL, 0, ms > 60000 ? 60000 : (int)ms);
}

static void peer_put_session(struct peer_client *peer)
{
    struct sql_unit *unit = sql_unit_create(0);

    peer_check(mxclient_session_put(&peer->client.session, unit), "the session's row");
    peer_commit(peer, unit);
}

/* Send a request of the session to its end. */
static int peer_session_ask(struct peer_client *peer, struct mxclient_request *request)
{
    struct mxclient_session *session = &peer->client.session;
    struct mxclient_outcome outcome;
    enum mxclient_state state = session->state;
    int rc;

    for (;;) {
        struct mxclient_answer answer;

        peer_transfer_init(&peer->ask, session, request, "application/json");
        answer = peer_transfer_run(&peer->ask);
        mxclient_request_judge(request, &answer, &peer_random, &peer->doc, &outcome);
        if (outcome.verdict != MXCLIENT_LATER)
            break;
        peer_sleep(outcome.wait_ms);
    }
    rc =
        mxclient_session_answered(session, request, &outcome, json_root(&peer->doc), peer_now_ms());
    mxclient_request_fini(request);
    /* A first login is stored by its caller, once the nouns have started. */
    if (state != MXCLIENT_LOGGING_IN && session->state >= MXCLIENT_ACTIVE) {
        peer_put_session(peer);
        peer->listener.on_session(peer->listener.data, state);
    }
    return rc;
}

static int peer_session_login(struct peer_client *peer)
{
    struct mxclient_login login = { .user = mxclient_span(&peer->user),
        .password = mxclient_span(&peer->password),
        .device_name = SPAN("troupe") };
    struct mxclient_request request;
    int rc = mxclient_session_login(&peer->client.session, &login, &request);

    return rc != 0 ? rc : peer_session_ask(peer, &request);
}

/* Do what the session needs until it waits for its user, or is active. */
static int peer_session_run(struct peer_client *peer)
{
    struct mxclient_session *session = &peer->client.session;
    struct mxclient_request request;
    int rc = 0;

    mxclient_session_tick(session, peer_now_ms());
    while (rc == 0 && mxclient_session_next(session, &request))
        rc = peer_session_ask(peer, &request);
    if (session->state == MXCLIENT_SOFT_OUT)
        rc = peer_session_login(peer);
    return rc;
}

int peer_client_login(struct peer_client *peer, struct span url, struct span user, struct span word)
{
    struct mxclient_session *session = &peer->client.session;
    int rc = mxclient_session_discover(session, url);

    (void)buffer_span(&peer->user, user);
    (void)buffer_span(&peer->password, word);
    if (rc == 0)
        rc = peer_session_run(peer);
    if (rc == 0)
        rc = peer_session_login(peer);
    if (rc != 0)
        return rc;
    mxclient_start(&peer->client);
    peer_put_session(peer);
    return 0;
}

int peer_client_logout(struct peer_client *peer)
{
    int rc;

    peer_stop_sync(peer);
    rc = mxclient_session_logout(&peer->client.session);
    return rc != 0 ? rc : peer_session_run(peer);
}

/* ---- requests --------------------------------------------------------------------------------- */

/* Act on a refused token; false if the session has ended. */
static bool peer_renew(struct peer_client *peer, const struct mxclient_request *request,
    const struct mxclient_outcome *outcome)
{
    enum mxclient_repeat repeat = mxclient_session_refused(&peer->client.session, request, outcome);

    if (repeat == MXCLIENT_REPEAT_NEVER)
        return false;
    (void)peer_session_run(peer); /* a refresh that fails is tried again by the next refusal */
    return peer->client.session.state == MXCLIENT_ACTIVE;
}

struct mxclient_outcome peer_ask(struct peer_client *peer, struct mxclient_request *request)
{
    struct mxclient_outcome outcome;

    peer_check(mxclient_request_error(request), "a request");
    for (;;) {
        struct mxclient_answer answer;

        (void)peer_session_run(peer);
        if (peer->client.session.state != MXCLIENT_ACTIVE)
            peer_fail("%s", mxclient_state_text(peer->client.session.state));
        mxclient_session_stamp(&peer->client.session, request);
        peer_transfer_init(&peer->ask, &peer->client.session, request, "application/json");
        answer = peer_transfer_run(&peer->ask);
        mxclient_request_judge(request, &answer, &peer_random, &peer->doc, &outcome);
        if (outcome.verdict == MXCLIENT_LATER)
            peer_sleep(outcome.wait_ms);
        else if (outcome.verdict != MXCLIENT_TOKEN || !peer_renew(peer, request, &outcome))
            break;
    }
    mxclient_request_fini(request);
    return outcome;
}

struct mxclient_answer peer_ask_raw(
    struct peer_client *peer, struct mxclient_request *request, const char *type)
{
    peer_check(mxclient_request_error(request), "a request");
    (void)peer_session_run(peer);
    peer_transfer_init(&peer->ask, &peer->client.session, request, type);
    return peer_transfer_run(&peer->ask);
}

/* ---- keys and devices ------------------------------------------------------------------------- */

static void peer_upload(struct peer_client *peer)
{
    struct mxclient_keys *keys = &peer->client.keys;
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    struct mxclient_outcome outcome;
    bool is_due = false;

    peer_check(mxclient_keys_plan(keys, peer_now_ms(), unit, &is_due), "planning keys");
    peer_commit(peer, unit);
    if (!is_due)
        return;
    peer_check(mxclient_keys_request(keys, &request), "the upload");
    outcome = peer_ask(peer, &request);
    unit = sql_unit_create(0);
    peer_check(mxclient_keys_uploaded(keys, &outcome, json_root(&peer->doc), peer_now_ms(), unit),
        "the answer to the upload");
    peer_commit(peer, unit);
}

void peer_query(struct peer_client *peer)
{
    struct mxclient_devices *devices = &peer->client.devices;
    struct mxclient_request request;

    while (mxclient_devices_query(devices, peer_now_ms(), &request)) {
        struct mxclient_outcome outcome = peer_ask(peer, &request);
        struct sql_unit *unit = sql_unit_create(0);

        peer_check(mxclient_devices_answered(
                       devices, &outcome, json_root(&peer->doc), peer_now_ms(), unit),
            "the answer to the query");
        peer_commit(peer, unit);
    }
}

static void peer_unwedge(struct peer_client *peer)
{
    struct mxclient_request request;
    enum mxclient_need need;

    for (;;) {
        struct sql_unit *unit = sql_unit_create(0);
        struct mxclient_outcome outcome;

        peer_check(mxclient_unwedge_prepare(&peer->client, peer_now_ms(), unit, &need, &request),
            "replacing sessions");
        peer_commit(peer, unit);
        if (need == MXCLIENT_NEED_NOTHING)
            return;
        outcome = peer_ask(peer, &request);
        if (need == MXCLIENT_NEED_CLAIM)
            peer_check(
                mxclient_unwedge_claimed(&peer->client,
                    outcome.verdict == MXCLIENT_DONE ? json_root(&peer->doc) : NULL, peer_now_ms()),
                "the answer to the claim");
    }
}

/* ---- verification ------------------------------------------------------------------------------ */

void peer_verify(struct peer_client *peer)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_verify_news news;
    struct mxclient_request request;

    peer_check(mxclient_verify_tick(&peer->client, peer_now_ms(), unit), "verifications");
    peer_commit(peer, unit);
    while (mxclient_verify_next(&peer->client, &request))
        (void)peer_ask(peer, &request);
    while (mxclient_verify_news(&peer->client, &news))
        peer->listener.on_verify(peer->listener.data, &news);
}

/* ---- received events -------------------------------------------------------------------------- */

SQL_STATEMENT(peer_new_events,
    "SELECT event_id, seq, room_id, sender, type, origin_ms, status, reason, lease_until_ms, "
    "attempts, body FROM mx_event WHERE seq > $1 ORDER BY seq");

/* Tell of an event with its body opened. */
static void peer_tell(struct peer_client *peer, struct mxstore_event *event)
{
    struct buffer body = { 0 };

    peer_check(
        mxclient_body_open(&peer_key, event->event_id, event->body, &body), "opening a body");
    event->body = mxclient_span(&body);
    peer->listener.on_event(peer->listener.data, event);
    buffer_free(&body);
}

static void peer_tell_events(struct peer_client *peer)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_event event;

    sql_unit_step(unit, &peer_new_events, SQL_ROWS_ANY);
    sql_unit_int(unit, peer->seq_told);
    peer_check(sql_read_wait(peer->sql, unit), "reading events");
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        mxstore_row(unit, 0, i, MXSTORE_IS_event, &event);
        peer->seq_told = event.seq;
        peer_tell(peer, &event);
    }
    sql_unit_destroy(unit);
}

/* Tell of an event that was held, if it is no longer. */
static void peer_tell_released(struct peer_client *peer, struct span event_id)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_event event;

    mxstore_get(unit, MXSTORE_IS_event, event_id);
    peer_check(sql_read_wait(peer->sql, unit), "reading an event");
    mxstore_row(unit, 0, 0, MXSTORE_IS_event, &event);
    if (event.status != MXSTORE_HELD)
        peer_tell(peer, &event);
    sql_unit_destroy(unit);
}

static void peer_release(struct peer_client *peer, struct mxclient_room *room)
{
    struct sql_unit *held = sql_unit_create(0), *unit = sql_unit_create(0);
    struct mxstore_event event;
    int count;

    mxclient_megolm_read_held(room, held);
    peer_check(sql_read_wait(peer->sql, held), "reading held events");
    count = mxclient_megolm_release(&peer->client, room, held, 0, unit);
    if (count < 0)
        peer_check(count, "releasing events");
    peer_commit(peer, unit);
    for (uint32_t i = 0; count > 0 && i < sql_unit_rows(held, 0); i++) {
        mxstore_row(held, 0, i, MXSTORE_IS_event, &event);
        peer_tell_released(peer, event.event_id);
    }
    sql_unit_destroy(held);
}

/* Do all that may be due after an answer. */
static void peer_settle(struct peer_client *peer)
{
    peer_upload(peer);
    peer_query(peer);
    for (uint32_t i = 0; i < peer->client.rooms.rooms.count; i++) {
        struct mxclient_room *room = (struct mxclient_room *)peer->client.rooms.rooms.entries[i];

        while (mxclient_megolm_is_due(&peer->client, room))
            peer_release(peer, room);
    }
    peer_unwedge(peer);
    peer_verify(peer);
}

/* ---- sync ------------------------------------------------------------------------------------- */

static void peer_tell_members(
    struct peer_client *peer, struct span room_id, const struct json *events)
{
    struct mxclient_event event;

    for (struct json_iter it = json_iterate(events); json_next(&it);)
        if (mxclient_event_read(it.value, &event) && span_is(event.type, "m.room.member") &&
            event.state_key.at != NULL)
            peer->listener.on_member(peer->listener.data, room_id, &event);
}

static void peer_tell_rooms(struct peer_client *peer, const struct json *rooms)
{
    static const char *const places[] = { "state", "state_after", "timeline", "invite_state" };

    for (struct json_iter kind = json_iterate(rooms); json_next(&kind);)
        for (struct json_iter it = json_iterate(kind.value); json_next(&it);)
            for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
                peer_tell_members(peer, it.key, json_get(json_get(it.value, places[i]), "events"));
}

static void peer_start_sync(struct peer_client *peer)
{
    if (peer->is_syncing || peer_now_ms() < peer->sync_next_ms ||
        peer->client.session.state != MXCLIENT_ACTIVE)
        return;
    mxclient_sync_request(&peer->client, peer->is_first_sync, &peer->sync_request);
    peer_check(mxclient_request_error(&peer->sync_request), "the sync");
    mxclient_session_stamp(&peer->client.session, &peer->sync_request);
    peer_transfer_init(&peer->sync, &peer->client.session, &peer->sync_request, "application/json");
    peer->sync_sent_ms = peer_now_ms();
    peer->is_syncing = true;
    if (curl_multi_add_handle(peer->multi, peer->sync.easy) != CURLM_OK)
        peer_fail("libcurl does not take the sync");
}

static void peer_take_sync(struct peer_client *peer, const struct json *body)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_sync_news news = { 0 };
    int rc = mxclient_sync_take(&peer->client, body, peer_now_ms(),
        (uint64_t)(peer_now_ms() - peer->sync_sent_ms), unit, &news);

    if (rc == TR_EPROTO)
        peer_fail("an answer without next_batch");
    peer_check(rc, "taking an answer");
    peer_commit(peer, unit);
    peer->is_first_sync = false;
    peer->sync_next_ms = peer_now_ms() + (int64_t)news.pause_ms;
    peer_tell_rooms(peer, json_get(body, "rooms"));
    peer_tell_events(peer);
    peer_settle(peer);
}

static void peer_end_sync(struct peer_client *peer, CURLcode code)
{
    struct mxclient_answer answer = peer_transfer_answer(&peer->sync, code);
    struct mxclient_outcome outcome;

    (void)curl_multi_remove_handle(peer->multi, peer->sync.easy);
    peer->is_syncing = false;
    mxclient_request_judge(&peer->sync_request, &answer, &peer_random, &peer->sync_doc, &outcome);
    if (outcome.verdict == MXCLIENT_DONE)
        peer_take_sync(peer, json_root(&peer->sync_doc));
    else if (outcome.verdict == MXCLIENT_LATER)
        peer->sync_next_ms = peer_now_ms() + (int64_t)outcome.wait_ms;
    else if (outcome.verdict == MXCLIENT_TOKEN)
        (void)peer_renew(peer, &peer->sync_request, &outcome);
    else
        peer_fail("the sync is refused: %u %s", outcome.status, outcome.errcode);
    mxclient_request_fini(&peer->sync_request);
}

bool peer_turn(struct peer_client *peer, int fd, int64_t limit_ms)
{
    struct curl_waitfd input = { .fd = fd, .events = CURL_WAIT_POLLIN };
    struct CURLMsg *message;
    int left = 0;

    (void)peer_session_run(peer);
    peer_start_sync(peer);
    (void)curl_multi_perform(peer->multi, &left);
    (void)curl_multi_poll(peer->multi, &input, fd >= 0 ? 1 : 0, (int)limit_ms, NULL);
    (void)curl_multi_perform(peer->multi, &left);
    message = curl_multi_info_read(peer->multi, &left);
    if (message != NULL && message->msg == CURLMSG_DONE)
        peer_end_sync(peer, message->data.result);
    return fd >= 0 && (input.revents & CURL_WAIT_POLLIN) != 0;
}

/* ---- sending ---------------------------------------------------------------------------------- */

/* Take one step towards a message that can be sent. */
static enum mxclient_need peer_prepare_step(struct peer_client *peer, struct mxclient_room *room)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    struct mxclient_outcome outcome;
    enum mxclient_need need;

    peer_check(mxclient_send_prepare(&peer->client, room, peer_now_ms(), unit, &need, &request),
        "preparing a message");
    peer_commit(peer, unit);
    if (need == MXCLIENT_NEED_MEMBERS)
        mxclient_room_members_request(room, mxclient_span(&peer->client.next_batch), &request);
    if (need == MXCLIENT_NEED_QUERY)
        peer_query(peer);
    if (need != MXCLIENT_NEED_MEMBERS && need != MXCLIENT_NEED_CLAIM && need != MXCLIENT_NEED_SHARE)
        return need;
    outcome = peer_ask(peer, &request);
    unit = sql_unit_create(0);
    if (need == MXCLIENT_NEED_MEMBERS && outcome.verdict == MXCLIENT_DONE) {
        peer_check(mxclient_room_take_members(room, json_root(&peer->doc)), "the members");
        peer_check(mxclient_sync_track(&peer->client, room, unit), "the members' devices");
    } else if (need == MXCLIENT_NEED_CLAIM)
        peer_check(
            mxclient_send_claimed(&peer->client, room,
                outcome.verdict == MXCLIENT_DONE ? json_root(&peer->doc) : NULL, peer_now_ms()),
            "the claim");
    else if (need == MXCLIENT_NEED_SHARE)
        mxclient_send_shared(&peer->client, room, outcome.verdict, unit);
    peer_commit(peer, unit);
    return need;
}

enum mxclient_need peer_prepare(struct peer_client *peer, struct mxclient_room *room)
{
    enum mxclient_need need = MXCLIENT_NEED_ANSWER;

    for (int i = 0; i < PREPARE_ROUNDS_MAX; i++) {
        need = peer_prepare_step(peer, room);
        if (need == MXCLIENT_NEED_NOTHING || need == MXCLIENT_NEED_TRUST)
            break;
    }
    return need;
}

/* Accept and encrypt a message in one unit. */
static int peer_send_unit(struct peer_client *peer, struct mxclient_room *room,
    const struct mxclient_message *message, struct sql_unit *unit, struct mxclient_request *request)
{
    char txn[MXCLIENT_TXN_BYTES];
    int rc = mxclient_send_accept(&peer->client, room, message, peer_now_ms(), unit, txn);

    if (rc != 0)
        return rc;
    return mxclient_send(&peer->client, room,
        &(struct mxstore_outbox){ .txn_id = span_of(txn),
            .room_id = mxclient_id(&room->entry),
            .type = message->type,
            .content = message->content },
        unit, request);
}

int peer_send(
    struct peer_client *peer, struct mxclient_room *room, const struct mxclient_message *message)
{
    struct sql_unit *unit;
    struct mxclient_request request;
    int rc;

    if (peer_prepare(peer, room) != MXCLIENT_NEED_NOTHING)
        return TR_EAGAIN;
    unit = sql_unit_create(0);
    rc = peer_send_unit(peer, room, message, unit, &request);
    if (rc != 0) {
        sql_unit_destroy(unit);
        return rc;
    }
    peer_commit(peer, unit);
    return peer_ask(peer, &request).verdict == MXCLIENT_DONE ? 0 : TR_EACCES;
}
