/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that talk to each other over a homeserver in memory, each with a database of its own. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>

#include "../sql/place.h"
#include "base/alloc.h"
#include "matrix/client/body.h"
#include "matrix/client/key_file.h"
#include "matrix/client/key_request.h"
#include "matrix/client/megolm.h"
#include "matrix/client/olm.h"
#include "matrix/client/send.h"
#include "matrix/client/sync.h"
#include "matrix/client/withheld.h"
#include "mx_client.h"
#include "mx_homeserver.h"

#define ROOM SPAN(MX_HOMESERVER_ROOM)

/* ---- memory that is given back ---------------------------------------------------------------- */

/* A text that no memory may have in it when it is freed; NULL: any may. */
static const char *_Atomic watched;
static _Atomic int freed_unwiped;

/* free and realloc replace libc's. A sanitizer has its own, and calls ours before it is ready. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WATCH_WORKS = false };
#else
enum { WATCH_WORKS = true };

static bool watch_finds(void *memory)
{
    const char *text = atomic_load(&watched);

    return text != NULL && memory != NULL &&
           memmem(memory, malloc_usable_size(memory), text, strlen(text)) != NULL;
}

void free(void *memory)
{
    static void *_Atomic found;
    void (*real)(void *memory);

    if (atomic_load(&found) == NULL)
        atomic_store(&found, dlsym(RTLD_NEXT, "free"));
    *(void **)&real = atomic_load(&found);
    if (watch_finds(memory))
        atomic_fetch_add(&freed_unwiped, 1);
    real(memory);
}

void *realloc(void *memory, size_t size)
{
    static void *_Atomic found;
    void *(*real)(void *memory, size_t size);
    bool is_found = watch_finds(memory);
    uintptr_t former = (uintptr_t)memory;
    void *grown;

    if (atomic_load(&found) == NULL)
        atomic_store(&found, dlsym(RTLD_NEXT, "realloc"));
    *(void **)&real = atomic_load(&found);
    grown = real(memory, size);
    if (is_found && grown != NULL && (uintptr_t)grown != former)
        atomic_fetch_add(&freed_unwiped, 1);
    return grown;
}
#endif

static void watch_need(void)
{
    if (!WATCH_WORKS)
        SKIP("a sanitizer owns the allocator");
}

static void watch(const char *text)
{
    atomic_store(&freed_unwiped, 0);
    atomic_store(&watched, text);
}

static void watch_end(void)
{
    atomic_store(&watched, NULL);
    CHECK_EQ_INT(atomic_load(&freed_unwiped), 0);
}

/* ---- engines ---------------------------------------------------------------------------------- */

struct engine {
    struct mxclient client;
    struct mx_homeserver *server;
    struct mx_homeserver_device *device;
    struct sql *sql;
    struct json_doc doc;
    struct mxclient_sync_news news;
    int64_t now_ms;
};

struct talk {
    struct mx_homeserver server;
    struct place places[2];
    struct engine ada;
    struct engine bob;
};

static void commit(struct engine *engine, struct sql_unit *unit)
{
    int rc = sql_unit_is_empty(unit) ? 0 : sql_write_wait(engine->sql, unit);

    CHECK_MSG(rc == 0, "%s: step %lld: %s", sql_error_text(rc),
        (long long)sql_unit_failed_step(unit), sql_unit_why(unit));
    sql_unit_destroy(unit);
}

/* Send a request and leave its answer in the document. */
static struct mxclient_outcome ask(struct engine *engine, struct mxclient_request *request)
{
    struct mxclient_answer answer = mx_homeserver_answer(engine->server, engine->device, request);
    struct mxclient_outcome outcome;

    mxclient_request_judge(request, &answer, mx_stage_random(), &engine->doc, &outcome);
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_DONE);
    mxclient_request_fini(request);
    return outcome;
}

static void upload(struct engine *engine)
{
    struct mxclient_request request;
    struct mxclient_outcome outcome;
    struct sql_unit *unit = sql_unit_create(0);
    bool is_due = false;

    CHECK_EQ_INT(mxclient_keys_plan(&engine->client.keys, engine->now_ms, unit, &is_due), 0);
    commit(engine, unit);
    if (!is_due)
        return;
    CHECK_EQ_INT(mxclient_keys_request(&engine->client.keys, &request), 0);
    outcome = ask(engine, &request);
    unit = sql_unit_create(0);
    CHECK_EQ_INT(mxclient_keys_uploaded(
                     &engine->client.keys, &outcome, json_root(&engine->doc), engine->now_ms, unit),
        0);
    commit(engine, unit);
}

static void query(struct engine *engine)
{
    struct mxclient_request request;
    struct mxclient_outcome outcome;
    struct sql_unit *unit;

    while (mxclient_devices_query(&engine->client.devices, engine->now_ms, &request)) {
        outcome = ask(engine, &request);
        unit = sql_unit_create(0);
        CHECK_EQ_INT(mxclient_devices_answered(&engine->client.devices, &outcome,
                         json_root(&engine->doc), engine->now_ms, unit),
            0);
        commit(engine, unit);
    }
}

/* Try held events again, if keys have come. */
static int release(struct engine *engine)
{
    struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, ROOM);
    int count = 0;

    do {
        struct sql_unit *held = sql_unit_create(0), *unit = sql_unit_create(0);
        int rc;

        mxclient_megolm_read_held(room, held);
        CHECK_EQ_INT(sql_read_wait(engine->sql, held), 0);
        rc = mxclient_megolm_release(&engine->client, room, held, 0, unit);
        CHECK(rc >= 0);
        count += rc;
        sql_unit_destroy(held);
        commit(engine, unit);
    } while (room->held_seq > 0);
    return count;
}

/* Take an answer and upload keys, without a query for devices. */
static void sync_only(struct engine *engine)
{
    struct mxclient_request request;
    struct sql_unit *unit = sql_unit_create(0);

    engine->now_ms += 1000;
    mxclient_sync_request(&engine->client, false, &request);
    (void)ask(engine, &request);
    CHECK_EQ_INT(mxclient_sync_take(&engine->client, json_root(&engine->doc), engine->now_ms, 5000,
                     unit, &engine->news),
        0);
    commit(engine, unit);
    upload(engine);
}

static void sync_once(struct engine *engine)
{
    sync_only(engine);
    query(engine);
}

/* Do what a message needs, until it can be sent; return the last need. */
static enum mxclient_need prepare(struct engine *engine)
{
    struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, ROOM);
    enum mxclient_need need = MXCLIENT_NEED_QUERY;
    struct mxclient_request request;

    for (int i = 0; i < 10; i++) {
        struct sql_unit *unit = sql_unit_create(0);

        CHECK_EQ_INT(
            mxclient_send_prepare(&engine->client, room, engine->now_ms, unit, &need, &request), 0);
        commit(engine, unit);
        if (need == MXCLIENT_NEED_MEMBERS) {
            mxclient_room_members_request(
                room, mxclient_span(&engine->client.next_batch), &request);
            (void)ask(engine, &request);
            CHECK_EQ_INT(mxclient_room_take_members(room, json_root(&engine->doc)), 0);
        } else if (need == MXCLIENT_NEED_QUERY)
            query(engine);
        else if (need == MXCLIENT_NEED_CLAIM) {
            (void)ask(engine, &request);
            CHECK_EQ_INT(mxclient_send_claimed(
                             &engine->client, room, json_root(&engine->doc), engine->now_ms),
                0);
        } else if (need == MXCLIENT_NEED_SHARE) {
            unit = sql_unit_create(0);
            mxclient_send_shared(&engine->client, room, ask(engine, &request).verdict, unit);
            commit(engine, unit);
        } else
            return need;
    }
    CHECK_MSG(false, "a message never became ready: need %d", need);
    return need;
}

/* Accept and encrypt a message in one unit. */
static void put_message(struct engine *engine, struct mxclient_room *room, const char *content,
    struct sql_unit *unit, struct mxclient_request *request)
{
    struct mxclient_message message = { .type = SPAN("m.room.message"),
        .content = span_of(content) };
    char txn[MXCLIENT_TXN_BYTES];

    CHECK_EQ_INT(
        mxclient_send_accept(&engine->client, room, &message, engine->now_ms, unit, txn), 0);
    CHECK_EQ_INT(mxclient_send(&engine->client, room,
                     &(struct mxstore_outbox){ .txn_id = span_of(txn),
                         .room_id = ROOM,
                         .type = message.type,
                         .content = message.content },
                     unit, request),
        0);
}

/* Send a content; `secret` is not in the request. */
static void send_content(struct engine *engine, const char *content, const char *secret)
{
    struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, ROOM);
    struct sql_unit *unit;
    struct mxclient_request request;

    CHECK_EQ_INT(prepare(engine), MXCLIENT_NEED_NOTHING);
    unit = sql_unit_create(0);
    put_message(engine, room, content, unit, &request);
    CHECK(memmem(request.body.bytes, request.body.size, secret, strlen(secret)) == NULL);
    commit(engine, unit);
    (void)ask(engine, &request);
}

static void send_text(struct engine *engine, const char *text)
{
    char content[100];

    snprintf(content, sizeof content, "{\"msgtype\":\"m.text\",\"body\":\"%s\"}", text);
    send_content(engine, content, text);
}

/* Read the event with this number; false if it is not stored. */
static bool read_event(
    struct engine *engine, int number, int64_t *ret_status, int64_t *ret_reason, const char *text)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_event row;
    struct buffer body = { 0 };
    char id[16];
    bool has_text = false;

    snprintf(id, sizeof id, "$%d", number);
    mxstore_get(unit, MXSTORE_IS_event, span_of(id));
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    CHECK_MSG(sql_unit_rows(unit, 0) == 1, "%s is not stored", id);
    mxstore_row(unit, 0, 0, MXSTORE_IS_event, &row);
    *ret_status = row.status;
    *ret_reason = row.reason;
    CHECK(row.body.size == 0 || strlen(text) == 0 ||
          memmem(row.body.at, row.body.size, text, strlen(text)) == NULL); /* nothing to see */
    CHECK_EQ_INT(mxclient_body_open(&mx_client_key, row.event_id, row.body, &body), 0);
    has_text = body.size > 0 && memmem(body.bytes, body.size, text, strlen(text)) != NULL;
    mx_wipe_buffer(&body);
    sql_unit_destroy(unit);
    return has_text;
}

static void check_got(struct engine *engine, int number, const char *text)
{
    int64_t status, reason;
    bool has_text = read_event(engine, number, &status, &reason, text);

    CHECK_EQ_INT(reason, 0);
    CHECK_EQ_INT(status, MXSTORE_ENQUEUED);
    CHECK(has_text);
}

/* Check what is stored about the author of an event: `then` when it was decrypted, and `now`. */
static void check_author(struct engine *engine, int number, const struct engine *author,
    enum mxstore_proof then, enum mxstore_proof now)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_readable row = { 0 };
    char id[16], identity[MX_KEY_CHARS + 1];

    snprintf(id, sizeof id, "$%d", number);
    mxstore_get_events(unit, 0, 1000, true);
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0) && !span_is(row.event_id, id); i++)
        mxstore_row(unit, 0, i, MXSTORE_IS_readable, &row);
    CHECK_MSG(span_is(row.event_id, id), "%s cannot be read", id);
    CHECK_EQ_STR(mxstore_proof_text(row.proof), mxstore_proof_text(then));
    CHECK_EQ_STR(mxstore_proof_text(row.proof_now), mxstore_proof_text(now));
    CHECK_EQ_INT(row.is_own, author == engine);
    mx_key_text(mx_account_identity_key(author->client.session.account), identity);
    CHECK(span_is(row.identity_key, identity));
    CHECK(span_equal(row.device_id, mxclient_span(&author->client.session.device_id)));
    sql_unit_destroy(unit);
}

static void check_not_got(struct engine *engine, int number, enum mxstore_status status, int reason)
{
    int64_t is_status, is_reason;

    (void)read_event(engine, number, &is_status, &is_reason, "");
    CHECK_EQ_INT(is_reason, reason);
    CHECK_EQ_INT(is_status, status);
}

static void engine_init(
    struct engine *engine, struct mx_homeserver *server, struct place *place, const char *user)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct sql_options options;

    place_init_in_memory(place);
    place_system(place);
    options = (struct sql_options){
        .url = place->url, .migrations = mxstore_migrations, .migration_count = MXSTORE_MIGRATIONS
    };
    CHECK_EQ_INT(place_try_open(place, &options), 0);
    *engine = (struct engine){ .server = server, .sql = place->sql, .now_ms = 10000000 };
    mx_client_discover(&engine->client.session);
    CHECK_EQ_INT(mx_client_login(&engine->client.session, user, "", 0), 0);
    mxclient_start(&engine->client);
    engine->client.policy = MXCLIENT_SHARE_ALL;
    CHECK_EQ_INT(mxclient_session_put(&engine->client.session, unit), 0);
    commit(engine, unit);
    engine->device =
        mx_homeserver_add(server, user, mxclient_span(&engine->client.session.device_id));
}

static void talk_init(struct talk *talk)
{
    *talk = (struct talk){ 0 };
    engine_init(&talk->ada, &talk->server, &talk->places[0], "@ada:x");
    engine_init(&talk->bob, &talk->server, &talk->places[1], "@bob:y");
    for (int i = 0; i < 2; i++) { /* the second sync sees the other's keys */
        sync_once(&talk->ada);
        sync_once(&talk->bob);
        talk->ada.device->is_news = true;
        talk->bob.device->is_news = true;
    }
    sync_once(&talk->ada);
    sync_once(&talk->bob);
}

static void talk_fini(struct talk *talk)
{
    struct engine *engines[] = { &talk->ada, &talk->bob };

    for (int i = 0; i < 2; i++) {
        mxclient_fini(&engines[i]->client);
        json_doc_free(&engines[i]->doc);
        place_finish(&talk->places[i]);
    }
    mx_homeserver_fini(&talk->server);
}

static struct mxclient_device *device_of(struct engine *engine, struct engine *other)
{
    return mxclient_devices_find(&engine->client.devices,
        (struct mxclient_place){ mxclient_span(&other->client.session.user_id),
            mxclient_span(&other->client.session.device_id) });
}

/* Drop the client and load it again. */
static void restart(struct engine *engine)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxclient_fini(&engine->client);
    engine->client = (struct mxclient){ .policy = MXCLIENT_SHARE_ALL };
    mxclient_session_init(&engine->client.session, mx_stage_random(), &mx_client_key);
    mxclient_load_read(unit);
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    CHECK_EQ_INT(mxclient_load(&engine->client, unit, engine->now_ms), 0);
    sql_unit_destroy(unit);
}

/* ---- cases ------------------------------------------------------------------------------------ */

TEST(talk, a_first_encrypted_message_arrives_both_ways)
{
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "hello bob");
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "hello bob");
    send_text(&talk.bob, "hello ada");
    sync_once(&talk.ada);
    check_got(&talk.ada, 2, "hello ada");
    CHECK_EQ_U64(talk.ada.client.undecrypted + talk.bob.client.undecrypted, 0);
    talk_fini(&talk);
}

TEST(talk, many_messages_share_the_key_once_and_rotate_by_count)
{
    struct talk talk;
    int claims;
    char text[20];

    talk_init(&talk);
    claims = talk.bob.device->one_time_count;
    for (int i = 1; i <= 150; i++) {
        snprintf(text, sizeof text, "message %d", i);
        send_text(&talk.ada, text);
    }
    CHECK_EQ_INT(claims - talk.bob.device->one_time_count, 1); /* one Olm session */
    sync_once(&talk.bob);
    for (int i = 1; i <= 150; i++) {
        snprintf(text, sizeof text, "message %d", i);
        check_got(&talk.bob, i, text);
    }
    CHECK_EQ_U64(talk.bob.client.inbounds.count, 2); /* rotated after 100 */
    talk_fini(&talk);
}

/* Send a message and return whether its session is another one than that of the message before. */
static bool sends_in_new_session(struct engine *engine)
{
    static const char key[] = "\"session_id\":\"";
    char ids[2][MX_SESSION_ID_CHARS];

    send_text(engine, "next");
    for (int i = 0; i < 2; i++) {
        const struct buffer *event = &engine->server->events[engine->server->event_count - 1 - i];
        const char *at = memmem(event->bytes, event->size, key, strlen(key));

        CHECK(at != NULL);
        memcpy(ids[i], at + strlen(key), sizeof ids[i]);
    }
    return memcmp(ids[0], ids[1], sizeof ids[0]) != 0;
}

TEST(talk, a_session_ends_with_its_period_and_when_the_clock_goes_back)
{
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "first");
    talk.ada.now_ms += MXCLIENT_ROTATION_MS - 1;
    CHECK(!sends_in_new_session(&talk.ada));
    talk.ada.now_ms += 1;
    CHECK(sends_in_new_session(&talk.ada));
    CHECK(!sends_in_new_session(&talk.ada));
    /* Time in suspend counts: only the wall clock goes on. */
    talk.ada.client.wall_ahead_ms += MXCLIENT_ROTATION_MS;
    CHECK(sends_in_new_session(&talk.ada));
    /* A clock before the session's start says nothing about its age. */
    talk.ada.client.wall_ahead_ms -= 1;
    CHECK(sends_in_new_session(&talk.ada));
    sync_once(&talk.bob);
    check_got(&talk.bob, talk.server.event_count, "next");
    talk_fini(&talk);
}

TEST(talk, ciphertext_before_its_key_is_held_and_released)
{
    struct talk talk;
    struct buffer late;

    talk_init(&talk);
    send_text(&talk.ada, "early");
    late = talk.bob.device->inbox; /* the key is late */
    talk.bob.device->inbox = (struct buffer){ 0 };
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_ESESSION);
    CHECK_EQ_INT(release(&talk.bob), 0);
    talk.bob.device->inbox = late;
    sync_once(&talk.bob);
    CHECK(mxclient_rooms_find(&talk.bob.client.rooms, ROOM)->has_new_keys);
    CHECK_EQ_INT(release(&talk.bob), 1);
    check_got(&talk.bob, 1, "early");
    check_author(&talk.bob, 1, &talk.ada, MXSTORE_BY_UNVERIFIED, MXSTORE_BY_UNVERIFIED);
    talk_fini(&talk);
}

/* ---- texts leave no copies -------------------------------------------------------------------- */

#define SECRET "a text that nobody finds in freed memory"

TEST(wipe, a_text_that_is_sent_stays_in_no_freed_memory)
{
    struct talk talk;

    watch_need();
    talk_init(&talk);
    CHECK_EQ_INT(prepare(&talk.ada), MXCLIENT_NEED_NOTHING);
    watch(SECRET);
    send_text(&talk.ada, SECRET);
    watch_end();
    talk_fini(&talk);
}

TEST(wipe, a_text_that_is_received_stays_in_no_freed_memory)
{
    struct talk talk;

    watch_need();
    talk_init(&talk);
    send_text(&talk.ada, SECRET);
    watch(SECRET);
    sync_once(&talk.bob);
    watch_end();
    check_got(&talk.bob, 1, SECRET);
    talk_fini(&talk);
}

TEST(wipe, a_text_that_is_released_stays_in_no_freed_memory)
{
    struct talk talk;
    struct buffer late;

    watch_need();
    talk_init(&talk);
    send_text(&talk.ada, SECRET);
    late = talk.bob.device->inbox;
    talk.bob.device->inbox = (struct buffer){ 0 };
    sync_once(&talk.bob);
    talk.bob.device->inbox = late;
    sync_once(&talk.bob);
    watch(SECRET);
    CHECK_EQ_INT(release(&talk.bob), 1);
    watch_end();
    check_got(&talk.bob, 1, SECRET);
    talk_fini(&talk);
}

/* Accept and encrypt a text while the allocation of this number fails. */
static int send_with_fault(struct engine *engine, uint64_t countdown)
{
    struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, ROOM);
    struct mxclient_message message = { .type = SPAN("m.room.message"),
        .content = SPAN("{\"body\":\"" SECRET "\"}") };
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request = { 0 };
    char txn[MXCLIENT_TXN_BYTES] = "m0";
    int rc;

    (void)base_fault_countdown(countdown, 1);
    rc = mxclient_send_accept(&engine->client, room, &message, engine->now_ms, unit, txn);
    if (rc == 0)
        rc = mxclient_send(&engine->client, room,
            &(struct mxstore_outbox){ .txn_id = span_of(txn),
                .room_id = ROOM,
                .type = message.type,
                .content = message.content },
            unit, &request);
    (void)base_fault_countdown(0, 0);
    mxclient_request_fini(&request);
    sql_unit_destroy(unit);
    return rc;
}

TEST(wipe, a_send_without_memory_leaves_no_copy)
{
    struct talk talk;
    uint64_t countdown = 1;

    watch_need();
    talk_init(&talk);
    CHECK_EQ_INT(prepare(&talk.ada), MXCLIENT_NEED_NOTHING);
    watch(SECRET);
    while (send_with_fault(&talk.ada, countdown) != 0)
        countdown++;
    CHECK(countdown > 3);
    watch_end();
    talk_fini(&talk);
}

TEST(wipe, a_sync_without_memory_leaves_no_copy)
{
    struct mxclient_request request;
    struct talk talk;
    int rc = TR_ENOMEM;

    watch_need();
    talk_init(&talk);
    send_text(&talk.ada, SECRET);
    mxclient_sync_request(&talk.bob.client, false, &request);
    (void)ask(&talk.bob, &request);
    watch(SECRET);
    for (uint64_t countdown = 1; rc != 0; countdown++) {
        struct sql_unit *unit = sql_unit_create(0);

        (void)base_fault_countdown(countdown, 1);
        rc = mxclient_sync_take(&talk.bob.client, json_root(&talk.bob.doc), talk.bob.now_ms, 5000,
            unit, &talk.bob.news);
        (void)base_fault_countdown(0, 0);
        sql_unit_destroy(unit);
        if (rc != 0)
            restart(&talk.bob);
    }
    watch_end();
    talk_fini(&talk);
}

/* ---- held events ------------------------------------------------------------------------------ */

static struct mxstore_cursor read_cursor(struct engine *engine)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_cursor cursor;

    mxstore_get(unit, MXSTORE_IS_cursor, ROOM);
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    mxstore_row(unit, 0, 0, MXSTORE_IS_cursor, &cursor);
    sql_unit_destroy(unit);
    return cursor;
}

static int64_t read_seq(struct engine *engine, const char *event_id)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_event row;

    mxstore_get(unit, MXSTORE_IS_event, span_of(event_id));
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    mxstore_row(unit, 0, 0, MXSTORE_IS_event, &row);
    sql_unit_destroy(unit);
    return row.seq;
}

/* Send messages under a new key and keep the key away from the peer. */
static struct buffer send_without_key(struct talk *talk, int count)
{
    struct buffer late;

    mxclient_rooms_find(&talk->ada.client.rooms, ROOM)->encryption = MXCLIENT_ROTATING;
    for (int i = 0; i < count; i++)
        send_text(&talk->ada, "late");
    late = talk->bob.device->inbox;
    talk->bob.device->inbox = (struct buffer){ 0 };
    return late;
}

static void deliver(struct engine *engine, struct buffer inbox)
{
    buffer_free(&engine->device->inbox);
    engine->device->inbox = inbox;
}

/* The fake's events have the times 1001, 1002 and so on. */
TEST(talk, the_floor_follows_the_earliest_event_that_waits)
{
    struct talk talk;
    struct buffer first, second;

    talk_init(&talk);
    first = send_without_key(&talk, 70); /* more than two pages */
    second = send_without_key(&talk, 40);
    sync_once(&talk.bob);
    CHECK_EQ_INT(read_cursor(&talk.bob).floor_ms, 1001);
    CHECK_EQ_INT(release(&talk.bob), 0);
    CHECK_EQ_INT(read_cursor(&talk.bob).floor_ms, 1001);
    deliver(&talk.bob, first);
    sync_once(&talk.bob);
    restart(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 70);
    CHECK_EQ_INT(read_cursor(&talk.bob).floor_ms, 1071);
    check_got(&talk.bob, 70, "late");
    /* Released events are applied after all that came before, in their order. */
    CHECK(read_seq(&talk.bob, "$1") > read_seq(&talk.bob, "$110"));
    CHECK(read_seq(&talk.bob, "$2") > read_seq(&talk.bob, "$1"));
    deliver(&talk.bob, second);
    sync_once(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 40);
    CHECK(read_cursor(&talk.bob).floor_ms == MXSTORE_NO_FLOOR);
    talk_fini(&talk);
}

TEST(talk, a_walk_that_missed_a_held_event_does_not_raise_the_floor)
{
    struct sql_unit *held = sql_unit_create(0), *unit = sql_unit_create(0);
    struct mxclient_room *room;
    struct talk talk;
    struct buffer first, second;

    talk_init(&talk);
    first = send_without_key(&talk, 1);
    sync_once(&talk.bob);
    deliver(&talk.bob, first);
    sync_once(&talk.bob);
    room = mxclient_rooms_find(&talk.bob.client.rooms, ROOM);
    mxclient_megolm_read_held(room, held);
    CHECK_EQ_INT(sql_read_wait(talk.bob.sql, held), 0);
    second = send_without_key(&talk, 1); /* held while the walk goes on */
    sync_once(&talk.bob);
    CHECK_EQ_INT(mxclient_megolm_release(&talk.bob.client, room, held, 0, unit), 1);
    commit(&talk.bob, unit);
    sql_unit_destroy(held);
    CHECK_EQ_INT(read_cursor(&talk.bob).floor_ms, 1001); /* too low, never too high */
    check_got(&talk.bob, 1, "late");
    CHECK_EQ_INT(release(&talk.bob), 0);
    CHECK_EQ_INT(read_cursor(&talk.bob).floor_ms, 1002);
    buffer_free(&second);
    talk_fini(&talk);
}

TEST(talk, a_held_event_that_no_key_can_read_is_abandoned)
{
    struct talk talk;
    struct buffer late;
    char *at;

    talk_init(&talk);
    late = send_without_key(&talk, 1);
    at = memmem(talk.server.events[0].bytes, talk.server.events[0].size, "\"ciphertext\":\"", 14);
    CHECK(at != NULL);
    at[60] = at[60] == 'A' ? 'B' : 'A';
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_ESESSION);
    deliver(&talk.bob, late);
    sync_once(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 0);
    check_not_got(&talk.bob, 1, MXSTORE_ABANDONED, MX_ESIGNATURE);
    CHECK(read_cursor(&talk.bob).floor_ms == MXSTORE_NO_FLOOR);
    talk_fini(&talk);
}

TEST(talk, an_event_of_an_unknown_device_is_read_once_the_device_is_known)
{
    struct talk talk = { 0 };
    struct mxclient_room *room;

    engine_init(&talk.ada, &talk.server, &talk.places[0], "@ada:x");
    engine_init(&talk.bob, &talk.server, &talk.places[1], "@bob:y");
    sync_only(&talk.bob);
    sync_only(&talk.bob); /* the second one uploads one-time keys */
    sync_once(&talk.ada);
    send_text(&talk.ada, "we have not met");
    sync_only(&talk.bob);
    room = mxclient_rooms_find(&talk.bob.client.rooms, ROOM);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EDEVICE);
    CHECK(mxclient_megolm_is_due(&talk.bob.client, room));
    CHECK_EQ_INT(release(&talk.bob), 0);
    CHECK(!mxclient_megolm_is_due(&talk.bob.client, room));
    query(&talk.bob);
    CHECK(mxclient_megolm_is_due(&talk.bob.client, room));
    CHECK_EQ_INT(release(&talk.bob), 1);
    check_got(&talk.bob, 1, "we have not met");
    talk_fini(&talk);
}

/* Change the trust in a device, as a verification does. */
static void set_trust(struct engine *engine, struct engine *other, enum mxstore_trust trust)
{
    const struct mxclient_user *user = mxclient_devices_user(
        &engine->client.devices, mxclient_span(&other->client.session.user_id));
    struct sql_unit *unit = sql_unit_create(0);

    device_of(engine, other)->trust = trust;
    mxclient_devices_put(user, device_of(engine, other), unit);
    commit(engine, unit);
}

TEST(talk, an_event_says_which_device_wrote_it_and_what_is_known_of_it)
{
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "before the verification");
    sync_once(&talk.bob);
    check_author(&talk.bob, 1, &talk.ada, MXSTORE_BY_UNVERIFIED, MXSTORE_BY_UNVERIFIED);
    set_trust(&talk.bob, &talk.ada, MXSTORE_VERIFIED);
    check_author(&talk.bob, 1, &talk.ada, MXSTORE_BY_UNVERIFIED, MXSTORE_BY_VERIFIED);
    send_text(&talk.ada, "after it");
    sync_once(&talk.bob);
    check_author(&talk.bob, 2, &talk.ada, MXSTORE_BY_VERIFIED, MXSTORE_BY_VERIFIED);
    set_trust(&talk.bob, &talk.ada, MXSTORE_BLOCKED);
    send_text(&talk.ada, "blocked");
    sync_once(&talk.bob);
    check_author(&talk.bob, 2, &talk.ada, MXSTORE_BY_VERIFIED, MXSTORE_BY_BLOCKED);
    check_author(&talk.bob, 3, &talk.ada, MXSTORE_BY_BLOCKED, MXSTORE_BY_BLOCKED);
    talk_fini(&talk);
}

/* The server deletes the device, or lists it with other keys, which the list ignores. */
TEST(talk, an_event_of_a_verified_device_that_the_server_drops_shows_it)
{
    struct talk talk;
    struct sql_unit *unit;

    talk_init(&talk);
    set_trust(&talk.bob, &talk.ada, MXSTORE_VERIFIED);
    send_text(&talk.ada, "listed");
    sync_once(&talk.bob);
    send_text(&talk.ada, "not listed any more");
    unit = sql_unit_create(0);
    device_of(&talk.bob, &talk.ada)->is_deleted = true;
    mxclient_devices_put(mxclient_devices_user(&talk.bob.client.devices, SPAN("@ada:x")),
        device_of(&talk.bob, &talk.ada), unit);
    commit(&talk.bob, unit);
    sync_only(&talk.bob);
    check_author(&talk.bob, 1, &talk.ada, MXSTORE_BY_VERIFIED, MXSTORE_BY_GONE);
    check_author(&talk.bob, 2, &talk.ada, MXSTORE_BY_GONE, MXSTORE_BY_GONE);
    talk_fini(&talk);
}

TEST(talk, a_replay_under_another_event_id_is_refused)
{
    struct talk talk;
    struct json_doc doc = { 0 };
    struct buffer content = { 0 };

    talk_init(&talk);
    send_text(&talk.ada, "pay bob 5");
    sync_once(&talk.bob);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_homeserver_text(&talk.server.events[0]), 0), 0);
    mx_homeserver_value(&content, json_get(json_root(&doc), "content"));
    mx_homeserver_post(&talk.server, "@ada:x", "m.room.encrypted", mx_homeserver_text(&content));
    send_text(&talk.ada, "and no more");
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "pay bob 5");
    check_not_got(&talk.bob, 2, MXSTORE_ABANDONED, MX_EINDEX);
    check_got(&talk.bob, 3, "and no more"); /* the answer was stored as a whole */
    json_doc_free(&doc);
    buffer_free(&content);
    talk_fini(&talk);
}

TEST(talk, an_event_that_names_another_sender_is_not_believed)
{
    struct talk talk;
    char *at;

    talk_init(&talk);
    send_text(&talk.ada, "I am ada");
    at = memmem(talk.server.events[0].bytes, talk.server.events[0].size, "@ada:x", 6);
    CHECK(at != NULL);
    memcpy(at, "@bob:y", 6);
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EDEVICE);
    talk_fini(&talk);
}

/* Write nested arrays as the value of a text's member. */
static void put_nested(char out[300], int depth)
{
    char open[100] = "", close[100] = "";

    memset(open, '[', (size_t)depth);
    memset(close, ']', (size_t)depth);
    snprintf(out, 300, "{\"body\":%s%s}", open, close);
}

TEST(talk, a_plaintext_that_nests_too_deep_is_abandoned_and_the_next_one_read)
{
    char content[300];
    struct talk talk;

    talk_init(&talk);
    put_nested(content, MXCLIENT_EVENT_DEPTH_MAX - 1);
    send_content(&talk.ada, content, "[[[");
    put_nested(content, MXCLIENT_EVENT_DEPTH_MAX - 2);
    send_content(&talk.ada, content, "[[[");
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 1, MXSTORE_ABANDONED, MX_ETOOBIG);
    check_got(&talk.bob, 2, "[[[");
    talk_fini(&talk);
}

TEST(talk, a_changed_ciphertext_is_refused_and_the_next_one_read)
{
    struct talk talk;
    char *at;

    talk_init(&talk);
    send_text(&talk.ada, "first");
    at = memmem(talk.server.events[0].bytes, talk.server.events[0].size, "\"ciphertext\":\"", 14);
    CHECK(at != NULL);
    at[60] = at[60] == 'A' ? 'B' : 'A';
    send_text(&talk.ada, "second");
    sync_once(&talk.bob);
    check_got(&talk.bob, 2, "second");
    talk_fini(&talk);
}

TEST(talk, excluded_devices_get_no_key_and_do_not_stop_the_send)
{
    struct talk talk;

    talk_init(&talk);
    talk.ada.client.policy = MXCLIENT_SHARE_EXCLUDE;
    send_text(&talk.ada, "not for bob");
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EUNVERIFIED);
    device_of(&talk.ada, &talk.bob)->trust = MXSTORE_VERIFIED;
    send_text(&talk.ada, "for bob");
    sync_once(&talk.bob);
    check_got(&talk.bob, 2, "for bob");
    CHECK_EQ_INT(release(&talk.bob), 0); /* the key begins after the first message */
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EINDEX);
    /* Blocked now: the next message has another session. */
    device_of(&talk.ada, &talk.bob)->trust = MXSTORE_BLOCKED;
    send_text(&talk.ada, "again not for bob");
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 3, MXSTORE_HELD, MX_EBLOCKED);
    talk_fini(&talk);
}

TEST(talk, a_blocked_device_gets_no_key_by_any_policy)
{
    static const enum mxclient_policy policies[] = { MXCLIENT_SHARE_EXCLUDE, MXCLIENT_SHARE_HALT,
        MXCLIENT_SHARE_ALL };

    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        struct talk talk;

        talk_init(&talk);
        talk.ada.client.policy = policies[i];
        device_of(&talk.ada, &talk.bob)->trust = MXSTORE_BLOCKED;
        send_text(&talk.ada, "not for bob");
        CHECK(memmem(talk.bob.device->inbox.bytes, talk.bob.device->inbox.size, "m.room.encrypted",
                  16) == NULL);
        sync_once(&talk.bob);
        check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EBLOCKED);
        talk_fini(&talk);
    }
}

TEST(talk, an_excluded_device_is_told_once_why_it_gets_no_key)
{
    struct talk talk;
    struct buffer notice;

    talk_init(&talk);
    talk.ada.client.policy = MXCLIENT_SHARE_EXCLUDE;
    send_text(&talk.ada, "first");
    notice = talk.bob.device->inbox; /* it comes after the event */
    talk.bob.device->inbox = (struct buffer){ 0 };
    send_text(&talk.ada, "second");
    CHECK_EQ_U64(talk.bob.device->inbox.size, 0);
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_ESESSION);
    deliver(&talk.bob, notice);
    sync_once(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.notices, 1);
    CHECK_EQ_INT(release(&talk.bob), 0);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EUNVERIFIED);
    restart(&talk.bob);
    send_text(&talk.ada, "third");
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 3, MXSTORE_HELD, MX_EUNVERIFIED);
    /* The key comes at last; the notice is forgotten. */
    device_of(&talk.ada, &talk.bob)->trust = MXSTORE_VERIFIED;
    send_text(&talk.ada, "fourth");
    sync_once(&talk.bob);
    check_got(&talk.bob, 4, "fourth");
    CHECK_EQ_U64(talk.bob.client.withheld.count, 0);
    restart(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.withheld.count, 0);
    CHECK_EQ_INT(release(&talk.bob), 0);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EINDEX); /* it begins with the fourth */
    talk_fini(&talk);
}

TEST(talk, notices_that_are_not_valid_or_name_no_room_are_only_counted)
{
    static const char *const notices[] = { "{}", "{\"room_id\":\"!r:x\"}",
        "{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"!other:x\",\"session_id\":\"s\","
        "\"code\":\"m.unverified\"}",
        "{\"algorithm\":\"m.other\",\"room_id\":\"!r:x\",\"session_id\":\"s\","
        "\"code\":\"m.unverified\"}",
        "{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"code\":\"m.no_olm\"}" };
    struct talk talk;

    talk_init(&talk);
    for (size_t i = 0; i < sizeof notices / sizeof notices[0]; i++)
        (void)buffer_format(&talk.bob.device->inbox,
            "%s{\"type\":\"m.room_key.withheld\",\"sender\":\"@eve:z\",\"content\":%s}",
            i == 0 ? "" : ",", notices[i]);
    sync_once(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.notices, 5);
    CHECK_EQ_U64(talk.bob.client.withheld.count, 0);
    talk_fini(&talk);
}

#define NOTICE(sender, session)                                                                    \
    "{\"type\":\"m.room_key.withheld\",\"sender\":\"" sender "\",\"content\":{\"algorithm\":"      \
    "\"m.megolm.v1.aes-sha2\",\"room_id\":\"!r:x\",\"session_id\":\"" session                      \
    "\",\"code\":\"m.blacklisted\"}}"

/* A notice of a user who is not in the room, or who did not send the event, explains no event. */
TEST(talk, notices_of_strangers_are_not_believed)
{
    struct mxclient_room *room;
    char session[MX_SESSION_ID_CHARS + 1];
    struct buffer late;
    struct talk talk;

    talk_init(&talk);
    late = send_without_key(&talk, 1);
    mx_outbound_id(
        ((struct mxclient_outbound *)talk.ada.client.outbounds.entries[0])->outbound, session);
    (void)buffer_format(&talk.bob.device->inbox, NOTICE("@eve:z", "%s"), session);
    sync_once(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.withheld.count, 0);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_ESESSION);
    /* With lazy members she may be one. */
    room = mxclient_rooms_find(&talk.bob.client.rooms, ROOM);
    room->has_members = false;
    (void)buffer_format(&talk.bob.device->inbox, NOTICE("@eve:z", "%s"), session);
    sync_once(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.withheld.count, 1);
    CHECK_EQ_INT(release(&talk.bob), 0);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_ESESSION);
    (void)buffer_format(&talk.bob.device->inbox, NOTICE("@ada:x", "%s"), session);
    sync_once(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 0);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EBLOCKED);
    deliver(&talk.bob, late); /* the key forgets ada's notice */
    sync_once(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 1);
    CHECK_EQ_U64(talk.bob.client.withheld.count, 1);
    talk_fini(&talk);
}

TEST(talk, a_users_oldest_notice_goes_when_there_are_too_many)
{
    struct talk talk;

    talk_init(&talk);
    for (int i = 0; i < MXCLIENT_WITHHELD_PER_USER_MAX + 3; i++) {
        (void)buffer_format(&talk.bob.device->inbox, NOTICE("@ada:x", "s%d"), i);
        talk.bob.now_ms++;
        sync_only(&talk.bob);
    }
    CHECK_EQ_U64(talk.bob.client.withheld.count, MXCLIENT_WITHHELD_PER_USER_MAX);
    restart(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.withheld.count, MXCLIENT_WITHHELD_PER_USER_MAX);
    CHECK_EQ_INT(
        mxclient_withheld_reason(&talk.bob.client, ROOM, SPAN("s2"), SPAN("@ada:x")), MX_ESESSION);
    CHECK_EQ_INT(
        mxclient_withheld_reason(&talk.bob.client, ROOM, SPAN("s3"), SPAN("@ada:x")), MX_EBLOCKED);
    talk_fini(&talk);
}

/* ---- sessions that another member passes on --------------------------------------------------- */

/* Give bob ada's session in the name of another device, as a member can who has its key. */
static void squat(struct talk *talk, const struct mxclient_room_key *from)
{
    const struct mx_outbound *outbound =
        ((struct mxclient_outbound *)talk->ada.client.outbounds.entries[0])->outbound;
    struct sql_unit *unit = sql_unit_create(0);
    struct buffer session_key = { 0 }, content = { 0 };
    char session[MX_SESSION_ID_CHARS + 1];
    struct json_doc doc = { 0 };

    mx_outbound_id(outbound, session);
    CHECK_EQ_INT(mx_outbound_key(outbound, &session_key), 0);
    (void)buffer_format(&content,
        "{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"!r:x\",\"session_id\":\"%s\","
        "\"session_key\":\"%.*s\"}",
        session, (int)session_key.size, session_key.bytes);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&content), 0), 0);
    CHECK_EQ_INT(mxclient_megolm_add_key(&talk->bob.client, from, json_root(&doc), unit), 0);
    commit(&talk->bob, unit);
    json_doc_free(&doc);
    buffer_free(&session_key);
    buffer_free(&content);
}

TEST(talk, a_member_who_passes_a_session_on_first_takes_nothing_from_its_owner)
{
    struct mxclient_room_key eve = { .source = MXSTORE_FROM_OWNER };
    struct buffer late;
    struct talk talk;

    talk_init(&talk);
    memset(eve.sender_key.bytes, 'e', sizeof eve.sender_key.bytes);
    memset(eve.signing_key.bytes, 'f', sizeof eve.signing_key.bytes);
    late = send_without_key(&talk, 1);
    squat(&talk, &eve);
    sync_once(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 0);
    check_not_got(&talk.bob, 1, MXSTORE_HELD, MX_EDEVICE);
    deliver(&talk.bob, late);
    sync_once(&talk.bob);
    CHECK_EQ_INT(release(&talk.bob), 1);
    check_got(&talk.bob, 1, "late");
    restart(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.inbounds.count, 2);
    send_text(&talk.ada, "second");
    sync_once(&talk.bob);
    check_got(&talk.bob, 2, "second");
    talk_fini(&talk);
}

/* The copy of another device has indexes of its own: an event that repeats a ciphertext under it takes
 * no index from the owner's event. */
TEST(talk, an_index_of_another_copy_is_not_the_owners)
{
    struct mxclient_room_key eve = { .source = MXSTORE_FROM_OWNER };
    struct mxclient_cleartext forged = { .message_index = 0 };
    struct sql_unit *unit;
    struct buffer late;
    struct talk talk;

    talk_init(&talk);
    memset(eve.sender_key.bytes, 'e', sizeof eve.sender_key.bytes);
    late = send_without_key(&talk, 1);
    squat(&talk, &eve);
    forged.session = (struct mxclient_inbound *)talk.bob.client.inbounds.entries[0];
    unit = sql_unit_create(0);
    mxclient_megolm_guard(&talk.bob.client, &forged, SPAN("$forged"), unit);
    commit(&talk.bob, unit);
    deliver(&talk.bob, late);
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "late");
    talk_fini(&talk);
}

/* ---- keys of our other devices ---------------------------------------------------------------- */

/* Ada's second device, which logs in after bob has sent a message, and which verifies the first and is
 * verified by it. */
struct family {
    struct talk talk;
    struct place place;
    struct engine second;
};

static void see_each_other(struct family *family)
{
    struct engine *engines[] = { &family->talk.ada, &family->talk.bob, &family->second };

    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            engines[i]->device->is_news = true;
            sync_once(engines[i]);
        }
}

static void family_init(struct family *family, const char *text)
{
    *family = (struct family){ 0 };
    talk_init(&family->talk);
    send_text(&family->talk.bob, text);
    sync_once(&family->talk.ada);
    engine_init(&family->second, &family->talk.server, &family->place, "@ada:x");
    see_each_other(family);
    device_of(&family->talk.ada, &family->second)->trust = MXSTORE_VERIFIED;
    device_of(&family->second, &family->talk.ada)->trust = MXSTORE_VERIFIED;
}

static void family_fini(struct family *family)
{
    mxclient_fini(&family->second.client);
    json_doc_free(&family->second.doc);
    place_finish(&family->place);
    talk_fini(&family->talk);
}

/* Send what key requests need; return the number of requests. */
static int exchange_keys(struct engine *engine)
{
    struct mxclient_request request;
    enum mxclient_need need;

    for (int i = 0; i < 20; i++) {
        struct sql_unit *unit = sql_unit_create(0);
        enum mxclient_verdict verdict;
        bool is_due =
            mxclient_key_request_due_ms(&engine->client, engine->now_ms) <= engine->now_ms;

        CHECK_EQ_INT(
            mxclient_key_request_prepare(&engine->client, engine->now_ms, unit, &need, &request),
            0);
        CHECK(is_due || (need == MXCLIENT_NEED_NOTHING && sql_unit_is_empty(unit)));
        commit(engine, unit);
        if (need == MXCLIENT_NEED_NOTHING) {
            CHECK(mxclient_key_request_due_ms(&engine->client, engine->now_ms) > engine->now_ms);
            return i;
        }
        verdict = ask(engine, &request).verdict;
        unit = sql_unit_create(0);
        CHECK_EQ_INT(mxclient_key_request_answered(
                         &engine->client, verdict, json_root(&engine->doc), engine->now_ms, unit),
            0);
        commit(engine, unit);
    }
    CHECK_MSG(false, "key requests never end: need %d", need);
    return -1;
}

TEST(talk, a_new_device_gets_a_key_from_our_verified_one)
{
    struct family family;
    struct engine *first = &family.talk.ada, *second = &family.second;

    family_init(&family, "before the second device");
    check_not_got(second, 1, MXSTORE_HELD, MX_ESESSION);
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 1);
    restart(second);
    CHECK_EQ_INT(exchange_keys(second), 0); /* once, also after a restart */
    device_of(second, first)->trust = MXSTORE_VERIFIED;
    sync_once(first);
    CHECK_EQ_INT(exchange_keys(first), 2); /* a claim and the key */
    sync_once(second);
    CHECK_EQ_INT(release(second), 1);
    check_got(second, 1, "before the second device");
    check_author(second, 1, &family.talk.bob, MXSTORE_BY_FORWARDED, MXSTORE_BY_FORWARDED);
    CHECK_EQ_INT(exchange_keys(second), 1); /* the cancellation */
    CHECK_EQ_U64(second->client.key_requests.asks.count, 0);
    sync_once(first);
    CHECK_EQ_INT(exchange_keys(first), 0);
    family_fini(&family);
}

TEST(talk, a_key_is_due_some_seconds_after_it_was_missed)
{
    struct family family;
    struct mxclient *client = &family.second.client;
    int64_t now_ms;

    family_init(&family, "before the second device");
    now_ms = ((struct mxclient_ask *)client->key_requests.asks.entries[0])->created_ms;
    CHECK_EQ_INT(mxclient_key_request_due_ms(client, now_ms), now_ms + MXCLIENT_ASK_AFTER_MS);
    /* A clock that was set back delays nothing. */
    CHECK_EQ_INT(mxclient_key_request_due_ms(client, now_ms - 60000), now_ms - 60000);
    device_of(&family.second, &family.talk.ada)->trust = MXSTORE_UNVERIFIED;
    CHECK_EQ_INT(mxclient_key_request_due_ms(client, now_ms), INT64_MAX); /* nobody to ask */
    family_fini(&family);
}

TEST(talk, a_claim_of_another_activity_ends_before_a_key_is_given)
{
    struct family family;
    struct engine *first = &family.talk.ada, *second = &family.second;
    struct mxclient_peer *peer;

    family_init(&family, "before the second device");
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 1);
    sync_once(first);
    peer = mxclient_olm_peer(&first->client, device_of(first, second));
    peer->claiming = MXCLIENT_CLAIMING_TO_SEND;
    CHECK_EQ_INT(exchange_keys(first), 0);
    peer->claiming = MXCLIENT_NOT_CLAIMING;
    CHECK_EQ_INT(exchange_keys(first), 2); /* a claim and the key */
    CHECK_EQ_INT(peer->claiming, MXCLIENT_NOT_CLAIMING);
    family_fini(&family);
}

TEST(talk, a_new_device_reads_what_our_first_one_sent)
{
    struct family family;
    struct engine *first, *second;

    family_init(&family, "before the second device");
    first = &family.talk.ada;
    second = &family.second;
    first->client.policy = MXCLIENT_SHARE_EXCLUDE;
    device_of(first, second)->trust = MXSTORE_UNVERIFIED;
    send_text(first, "from the first device");
    sync_once(first); /* its own event is an echo */
    sync_once(second);
    check_not_got(second, 2, MXSTORE_HELD, MX_EUNVERIFIED);
    device_of(first, second)->trust = MXSTORE_VERIFIED;
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 2);
    sync_once(first);
    CHECK_EQ_INT(exchange_keys(first), 3); /* a claim and both keys */
    sync_once(second);
    CHECK_EQ_INT(release(second), 2);
    check_got(second, 2, "from the first device");
    family_fini(&family);
}

/* The invented device of a verified user is the case: its events are not those of the verified one. */
TEST(talk, another_device_of_a_verified_user_is_another_author)
{
    struct family family;
    struct engine *bob = &family.talk.bob;

    family_init(&family, "hello");
    sync_once(bob);
    set_trust(bob, &family.talk.ada, MXSTORE_VERIFIED);
    send_text(&family.second, "I am ada, too");
    sync_once(bob);
    check_author(bob, 2, &family.second, MXSTORE_BY_UNVERIFIED, MXSTORE_BY_UNVERIFIED);
    family_fini(&family);
}

SQL_STATEMENT(count_stored, "SELECT COUNT(*) FROM mx_event");

static int64_t count_events(struct engine *engine)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t count;

    sql_unit_step(unit, &count_stored, 1);
    CHECK_EQ_INT(sql_read_wait(engine->sql, unit), 0);
    count = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return count;
}

/* The fake gives no transaction id: the session alone says that the event is ours. */
TEST(talk, our_own_event_comes_back_as_our_own_and_once)
{
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "an echo");
    for (int i = 0; i < 3; i++) { /* again, and after a restart */
        sync_once(&talk.ada);
        CHECK_EQ_INT(count_events(&talk.ada), 1);
        check_got(&talk.ada, 1, "an echo");
        check_author(&talk.ada, 1, &talk.ada, MXSTORE_BY_US, MXSTORE_BY_US);
        if (i == 1)
            restart(&talk.ada);
        talk.ada.device->seen = 0;
    }
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "an echo");
    talk_fini(&talk);
}

TEST(talk, only_verified_devices_are_asked_and_answered)
{
    struct family family;
    struct engine *first = &family.talk.ada, *second = &family.second;

    family_init(&family, "a secret");
    device_of(second, first)->trust = MXSTORE_UNVERIFIED;
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 0);
    device_of(second, first)->trust = MXSTORE_VERIFIED;
    CHECK_EQ_INT(exchange_keys(second), 1);
    device_of(first, second)->trust = MXSTORE_UNVERIFIED;
    sync_once(first);
    CHECK_EQ_INT(exchange_keys(first), 0);
    /* It waits: our side of the verification may end later than theirs. */
    CHECK_EQ_U64(first->client.key_requests.forwards.count, 1);
    device_of(first, second)->trust = MXSTORE_VERIFIED;
    CHECK_EQ_INT(exchange_keys(first), 2);
    sync_once(second);
    CHECK_EQ_INT(release(second), 1);
    family_fini(&family);
}

TEST(talk, a_device_that_lost_our_trust_before_the_answer_gets_none)
{
    struct family family;
    struct engine *first = &family.talk.ada, *second = &family.second;

    family_init(&family, "a secret");
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 1);
    sync_once(first);
    CHECK_EQ_U64(first->client.key_requests.forwards.count, 1);
    device_of(first, second)->trust = MXSTORE_BLOCKED;
    CHECK_EQ_INT(exchange_keys(first), 0);
    family_fini(&family);
}

TEST(talk, a_forwarded_key_counts_only_if_asked_for_and_from_a_verified_device)
{
    for (int i = 0; i < 2; i++) {
        struct family family;
        struct engine *first = &family.talk.ada, *second = &family.second;

        family_init(&family, "a secret");
        second->now_ms += MXCLIENT_ASK_AFTER_MS;
        CHECK_EQ_INT(exchange_keys(second), 1);
        sync_once(first);
        CHECK_EQ_INT(exchange_keys(first), 2);
        if (i == 0)
            mxclient_key_requests_fini(&second->client.key_requests);
        else
            device_of(second, first)->trust = MXSTORE_UNVERIFIED;
        sync_once(second);
        CHECK_EQ_INT(release(second), 0);
        check_not_got(second, 1, MXSTORE_HELD, MX_ESESSION);
        family_fini(&family);
    }
}

TEST(talk, a_key_that_is_only_late_is_not_asked_for)
{
    struct family family;
    struct engine *second = &family.second;
    struct buffer late;

    family_init(&family, "before the second device");
    mxclient_key_requests_fini(&second->client.key_requests);
    mxclient_rooms_find(&family.talk.bob.client.rooms, ROOM)->encryption = MXCLIENT_ROTATING;
    send_text(&family.talk.bob, "its key is late");
    late = second->device->inbox;
    second->device->inbox = (struct buffer){ 0 };
    sync_once(second);
    CHECK_EQ_U64(second->client.key_requests.asks.count, 1);
    CHECK_EQ_INT(exchange_keys(second), 0); /* not within the first seconds */
    deliver(second, late);
    sync_once(second);
    CHECK_EQ_U64(second->client.key_requests.asks.count, 0);
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 0);
    family_fini(&family);
}

TEST(talk, the_same_request_again_is_answered_after_minutes)
{
    struct family family;
    struct engine *first = &family.talk.ada, *second = &family.second;
    struct buffer request = { 0 };

    family_init(&family, "before the second device");
    second->now_ms += MXCLIENT_ASK_AFTER_MS;
    CHECK_EQ_INT(exchange_keys(second), 1);
    (void)buffer_span(&request, mx_homeserver_text(&first->device->inbox));
    sync_once(first);
    CHECK_EQ_INT(exchange_keys(first), 2);
    for (int i = 0; i < 2; i++) {
        (void)buffer_span(&first->device->inbox, mx_homeserver_text(&request));
        sync_once(first);
        CHECK_EQ_INT(exchange_keys(first), i);
        first->now_ms += MXCLIENT_FORWARD_AGAIN_MS;
    }
    buffer_free(&request);
    family_fini(&family);
}

TEST(talk, the_number_of_requests_is_bounded)
{
    struct mxclient_event event = { 0 };
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_key_requests *requests;
    struct mxclient_room *room;
    struct json_doc doc = { 0 };
    struct talk talk;
    char content[60];

    talk_init(&talk);
    requests = &talk.ada.client.key_requests;
    room = mxclient_rooms_find(&talk.ada.client.rooms, ROOM);
    for (int i = 0; i < MXCLIENT_ASKS_MAX + 10; i++) {
        snprintf(content, sizeof content, "{\"session_id\":\"s%d\"}", i);
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(content), 0), 0);
        event.content = json_root(&doc);
        CHECK_EQ_INT(
            mxclient_key_request_note(&talk.ada.client, room, &event, MX_ESESSION, 5, unit), 0);
    }
    CHECK_EQ_U64(requests->asks.count, MXCLIENT_ASKS_MAX);
    /* A request without an answer for a day gives its place away. */
    ((struct mxclient_ask *)requests->asks.entries[0])->asking = MXSTORE_ASKED;
    CHECK_EQ_INT(mxclient_key_request_note(
                     &talk.ada.client, room, &event, MX_ESESSION, MXCLIENT_ASK_LIFE_MS + 4, unit),
        0);
    CHECK(mxclient_index_find_pair(&requests->asks, ROOM, SPAN("s265")) == NULL);
    CHECK_EQ_INT(mxclient_key_request_note(
                     &talk.ada.client, room, &event, MX_ESESSION, MXCLIENT_ASK_LIFE_MS + 5, unit),
        0);
    CHECK(mxclient_index_find_pair(&requests->asks, ROOM, SPAN("s265")) != NULL);
    CHECK_EQ_U64(requests->asks.count, MXCLIENT_ASKS_MAX);
    commit(&talk.ada, unit);
    json_doc_free(&doc);
    talk_fini(&talk);
}

TEST(talk, the_policy_halt_waits_for_verification)
{
    struct talk talk;

    talk_init(&talk);
    talk.ada.client.policy = MXCLIENT_SHARE_HALT;
    CHECK_EQ_INT(prepare(&talk.ada), MXCLIENT_NEED_TRUST);
    device_of(&talk.ada, &talk.bob)->trust = MXSTORE_VERIFIED;
    send_text(&talk.ada, "verified");
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "verified");
    talk_fini(&talk);
}

TEST(talk, who_left_cannot_read_on)
{
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "with bob");
    talk.bob.device->has_left = true;
    sync_once(&talk.ada);
    send_text(&talk.ada, "without bob");
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "with bob");
    check_not_got(&talk.bob, 2, MXSTORE_HELD, MX_ESESSION);
    talk_fini(&talk);
}

TEST(talk, a_device_without_keys_to_claim_does_not_stop_the_send)
{
    struct talk talk;

    talk_init(&talk);
    while (talk.bob.device->one_time_count > 0)
        buffer_free(&talk.bob.device->one_time[--talk.bob.device->one_time_count]);
    send_text(&talk.ada, "nobody reads this");
    sync_once(&talk.bob); /* and uploads new keys, a minute later */
    talk.bob.now_ms += MXCLIENT_KEYS_PAUSE_MS;
    sync_once(&talk.bob);
    CHECK(talk.bob.device->one_time_count > 0);
    send_text(&talk.ada, "nor this");
    talk.ada.now_ms += MXCLIENT_CLAIM_PAUSE_MS;
    send_text(&talk.ada, "but this");
    sync_once(&talk.bob);
    check_not_got(&talk.bob, 2, MXSTORE_HELD, MX_EINDEX); /* before the index of the key */
    check_got(&talk.bob, 3, "but this");
    talk_fini(&talk);
}

TEST(talk, a_member_whose_devices_left_by_mistake_is_asked_about_again)
{
    struct talk talk;
    struct sql_unit *unit = sql_unit_create(0);

    talk_init(&talk);
    CHECK_EQ_INT(json_parse_copy(&talk.ada.doc, SPAN("{\"left\":[\"@bob:y\"]}"), 0), 0);
    mxclient_devices_changed(&talk.ada.client.devices, json_root(&talk.ada.doc), unit);
    commit(&talk.ada, unit);
    send_text(&talk.ada, "still here");
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "still here");
    talk_fini(&talk);
}

TEST(talk, an_unreached_server_does_not_stop_the_room)
{
    struct mxclient_outcome done = { .verdict = MXCLIENT_DONE };
    struct mxclient_request request;
    struct sql_unit *unit = sql_unit_create(0);
    struct talk talk;

    talk_init(&talk);
    mxclient_devices_user(&talk.ada.client.devices, SPAN("@bob:y"))->is_outdated = true;
    CHECK(mxclient_devices_query(&talk.ada.client.devices, talk.ada.now_ms, &request));
    mxclient_request_fini(&request);
    CHECK_EQ_INT(json_parse_copy(&talk.ada.doc, SPAN("{\"failures\":{\"y\":{}}}"), 0), 0);
    CHECK_EQ_INT(mxclient_devices_answered(&talk.ada.client.devices, &done,
                     json_root(&talk.ada.doc), talk.ada.now_ms, unit),
        0);
    commit(&talk.ada, unit);
    send_text(&talk.ada, "to known devices");
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "to known devices");
    talk_fini(&talk);
}

TEST(talk, no_plaintext_goes_to_an_encrypted_room_also_after_a_restart)
{
    struct mxclient_request request;
    enum mxclient_need need;
    struct mxclient_room *room;
    struct sql_unit *unit = sql_unit_create(0);
    struct talk talk;

    talk_init(&talk);
    restart(&talk.ada);
    room = mxclient_rooms_find(&talk.ada.client.rooms, ROOM);
    CHECK(room->encryption != MXCLIENT_PLAIN);
    CHECK_EQ_INT(
        mxclient_send_prepare(&talk.ada.client, room, talk.ada.now_ms, unit, &need, &request), 0);
    CHECK_EQ_INT(need, MXCLIENT_NEED_MEMBERS);
    sql_unit_destroy(unit);
    room->membership = MXCLIENT_INVITED;
    CHECK_EQ_INT(
        mxclient_send_prepare(&talk.ada.client, room, talk.ada.now_ms, NULL, &need, &request),
        TR_EACCES);
    talk_fini(&talk);
}

/* ---- wedged sessions -------------------------------------------------------------------------- */

/* Replace wedged sessions; return the number of requests. */
static int unwedge(struct engine *engine)
{
    struct mxclient_request request;
    enum mxclient_need need;

    for (int i = 0; i < 10; i++) {
        struct sql_unit *unit = sql_unit_create(0);

        CHECK_EQ_INT(
            mxclient_unwedge_prepare(&engine->client, engine->now_ms, unit, &need, &request), 0);
        commit(engine, unit);
        if (need == MXCLIENT_NEED_NOTHING)
            return i;
        (void)ask(engine, &request);
        if (need == MXCLIENT_NEED_CLAIM)
            CHECK_EQ_INT(
                mxclient_unwedge_claimed(&engine->client, json_root(&engine->doc), engine->now_ms),
                0);
    }
    CHECK_MSG(false, "a session stays wedged: need %d", need);
    return -1;
}

TEST(talk, a_lost_olm_session_is_replaced_and_the_key_shared_again)
{
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "first");
    sync_once(&talk.bob);
    /* Bob loses his sessions, and ada starts another room session. */
    mxclient_index_fini(&talk.bob.client.peers, mxclient_peer_fini);
    mxclient_rooms_find(&talk.ada.client.rooms, ROOM)->encryption = MXCLIENT_ROTATING;
    send_text(&talk.ada, "lost");
    sync_once(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.undecrypted, 1);
    check_not_got(&talk.bob, 2, MXSTORE_HELD, MX_ESESSION);
    CHECK_EQ_INT(unwedge(&talk.bob), 2); /* a claim and a dummy */
    CHECK_EQ_INT(unwedge(&talk.bob), 0);
    sync_once(&talk.ada);
    CHECK_EQ_U64(talk.ada.client.undecrypted, 0);
    send_text(&talk.ada, "found");
    sync_once(&talk.bob);
    CHECK_EQ_U64(talk.bob.client.undecrypted, 1);
    check_got(&talk.bob, 3, "found");
    talk_fini(&talk);
}

TEST(talk, a_device_is_unwedged_once_an_hour)
{
    struct talk talk;

    talk_init(&talk);
    for (int i = 0; i < 3; i++) {
        int wanted = i == 1 ? 0 : 2;

        mxclient_rooms_find(&talk.ada.client.rooms, ROOM)->encryption = MXCLIENT_ROTATING;
        mxclient_index_fini(&talk.ada.client.peers, mxclient_peer_fini);
        send_text(&talk.ada, "a secret");
        if (talk.bob.device->inbox.size > 0) { /* break the message */
            char *at =
                memmem(talk.bob.device->inbox.bytes, talk.bob.device->inbox.size, "\"body\":\"", 8);

            CHECK(at != NULL);
            memcpy(at + 100, "AAAAAAAAAAAAAAAA", 16);
        }
        talk.bob.now_ms += i == 2 ? MXCLIENT_UNWEDGE_MS : 0;
        sync_once(&talk.bob);
        CHECK_EQ_U64(talk.bob.client.undecrypted, i + 1);
        CHECK_EQ_INT(unwedge(&talk.bob), wanted);
    }
    talk_fini(&talk);
}

/* ---- restart ---------------------------------------------------------------------------------- */

TEST(talk, both_restart_between_all_steps_and_lose_nothing)
{
    struct talk talk;
    char text[20];
    size_t count;

    talk_init(&talk);
    for (int i = 1; i <= 12; i++) {
        struct engine *from = i % 2 == 0 ? &talk.ada : &talk.bob;
        struct engine *to = i % 2 == 0 ? &talk.bob : &talk.ada;

        restart(from);
        snprintf(text, sizeof text, "message %d", i);
        send_text(from, text);
        restart(to);
        sync_once(to);
        check_got(to, i, text);
        /* The one-time key of a first message is gone from the stored account too. */
        count = mx_account_one_time_key_count(to->client.session.account);
        restart(to);
        CHECK_EQ_U64(mx_account_one_time_key_count(to->client.session.account), count);
    }
    CHECK_EQ_U64(talk.ada.client.undecrypted + talk.bob.client.undecrypted, 0);
    talk_fini(&talk);
}

TEST(talk, an_answer_taken_again_after_a_crash_loses_no_key)
{
    struct talk talk;
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    struct buffer inbox = { 0 };

    talk_init(&talk);
    send_text(&talk.ada, "hello");
    (void)buffer_span(&inbox, mx_homeserver_text(&talk.bob.device->inbox));
    /* Bob takes the answer and dies before the COMMIT; the server sends the same again. */
    mxclient_sync_request(&talk.bob.client, false, &request);
    (void)ask(&talk.bob, &request);
    CHECK_EQ_INT(mxclient_sync_take(&talk.bob.client, json_root(&talk.bob.doc), talk.bob.now_ms,
                     5000, unit, &talk.bob.news),
        0);
    sql_unit_destroy(unit);
    restart(&talk.bob);
    buffer_free(&talk.bob.device->inbox);
    talk.bob.device->inbox = inbox;
    talk.bob.device->seen = 0;
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "hello");
    talk_fini(&talk);
}

TEST(talk, what_a_sync_or_a_plan_changes_in_the_account_is_stored)
{
    struct talk talk;
    struct sql_unit *unit = sql_unit_create(0);
    bool is_due = false;
    size_t count;

    talk_init(&talk);
    count = mx_account_one_time_key_count(talk.bob.client.session.account);
    send_text(&talk.ada, "the first message uses up a key");
    sync_once(&talk.bob);
    restart(&talk.bob);
    CHECK_EQ_U64(mx_account_one_time_key_count(talk.bob.client.session.account), count - 1);
    /* New keys are stored before they are uploaded. */
    talk.bob.client.keys.count = 0;
    CHECK_EQ_INT(mxclient_keys_plan(&talk.bob.client.keys, talk.bob.now_ms, unit, &is_due), 0);
    CHECK(is_due);
    commit(&talk.bob, unit);
    restart(&talk.bob);
    CHECK_EQ_U64(mx_account_one_time_key_count(talk.bob.client.session.account), count + 49);
    talk_fini(&talk);
}

TEST(talk, the_ratchet_and_the_encrypted_body_are_stored_before_they_leave)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_outbound ratchet;
    struct mxclient_room *room;
    struct mxclient_request request;
    struct mxstore_outbox row;
    struct talk talk;
    const char *txn;

    talk_init(&talk);
    send_text(&talk.ada, "first");
    CHECK_EQ_INT(prepare(&talk.ada), MXCLIENT_NEED_NOTHING);
    room = mxclient_rooms_find(&talk.ada.client.rooms, ROOM);
    put_message(&talk.ada, room, "{}", unit, &request);
    commit(&talk.ada, unit);
    unit = sql_unit_create(0);
    txn = (const char *)memrchr(request.target.bytes, '/', request.target.size) + 1;
    mxstore_get(unit, MXSTORE_IS_outbox,
        (struct span){ txn, (size_t)(request.target.bytes + request.target.size - txn) });
    mxstore_get(unit, MXSTORE_IS_outbound, ROOM);
    CHECK_EQ_INT(sql_read_wait(talk.ada.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    mxstore_row(unit, 0, 0, MXSTORE_IS_outbox, &row);
    CHECK(span_equal(row.body, mx_stage_span(&request.body)));
    CHECK(span_is(row.type, "m.room.encrypted"));
    CHECK(memmem(row.content.at, row.content.size, "{}", 2) == NULL); /* sealed */
    mxstore_row(unit, 1, 0, MXSTORE_IS_outbound, &ratchet);
    CHECK_EQ_INT(ratchet.message_count, 2);
    sql_unit_destroy(unit);
    mxclient_request_fini(&request);
    talk_fini(&talk);
}

TEST(talk, a_relation_stays_in_the_clear_beside_the_ciphertext)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    struct json_doc doc = { 0 };
    struct span event_id, cipher;
    struct talk talk;

    talk_init(&talk);
    CHECK_EQ_INT(prepare(&talk.ada), MXCLIENT_NEED_NOTHING);
    put_message(&talk.ada, mxclient_rooms_find(&talk.ada.client.rooms, ROOM),
        "{\"body\":\"an answer\",\"m.relates_to\":{\"rel_type\":\"m.thread\",\"event_id\":\"$7\"}}",
        unit, &request);
    commit(&talk.ada, unit);
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&request.body), JSON_UNIQUE_KEYS), 0);
    CHECK(json_string(json_get(json_get(json_root(&doc), "m.relates_to"), "event_id"), &event_id));
    CHECK(span_is(event_id, "$7"));
    CHECK(json_string(json_get(json_root(&doc), "ciphertext"), &cipher));
    CHECK(json_get(json_root(&doc), "body") == NULL); /* and the text does not */
    (void)ask(&talk.ada, &request);
    sync_once(&talk.bob);
    check_got(&talk.bob, 1, "$7"); /* the plaintext has the relation too */
    json_doc_free(&doc);
    talk_fini(&talk);
}

TEST(talk, a_share_that_was_refused_is_made_again)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient_request request;
    enum mxclient_need need;
    struct mxclient_room *room;
    struct talk talk;

    talk_init(&talk);
    send_text(&talk.ada, "bob has a session");
    room = mxclient_rooms_find(&talk.ada.client.rooms, ROOM);
    room->encryption = MXCLIENT_ROTATING;
    CHECK_EQ_INT(
        mxclient_send_prepare(&talk.ada.client, room, talk.ada.now_ms, unit, &need, &request), 0);
    CHECK_EQ_INT(need, MXCLIENT_NEED_SHARE);
    commit(&talk.ada, unit);
    mxclient_request_fini(&request);
    unit = sql_unit_create(0);
    mxclient_send_shared(&talk.ada.client, room, MXCLIENT_REFUSED, unit);
    commit(&talk.ada, unit);
    send_text(&talk.ada, "shared again");
    sync_once(&talk.bob);
    check_got(&talk.bob, 2, "shared again");
    talk_fini(&talk);
}

/* ---- key files -------------------------------------------------------------------------------- */

static int import(struct engine *engine, struct span sessions, struct mxclient_import *ret_import)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_key_file_take(&engine->client, sessions, unit, ret_import);

    if (rc != 0) {
        CHECK(sql_unit_is_empty(unit));
        sql_unit_destroy(unit);
    } else
        commit(engine, unit);
    return rc;
}

TEST(talk, a_key_file_carries_all_sessions_to_a_new_device)
{
    const struct mx_key_file_options options = { .passphrase = SPAN("a b c"), .rounds = 1000 };
    struct buffer sessions = { 0 }, file = { 0 }, read = { 0 };
    struct mxclient_import result;
    struct family family;
    struct engine *first = &family.talk.ada, *second = &family.second;

    family_init(&family, "from bob, before");
    first->client.policy = MXCLIENT_SHARE_EXCLUDE;
    device_of(first, second)->trust = MXSTORE_UNVERIFIED;
    send_text(first, "from ada, before");
    sync_once(second);
    CHECK_EQ_INT(mxclient_key_file_write(&first->client, &sessions), 0);
    CHECK_EQ_INT(
        mx_key_file_encrypt(&options, mx_stage_span(&sessions), mx_stage_random(), &file), 0);
    CHECK_EQ_INT(mx_key_file_decrypt(&options, mx_stage_span(&file), &read), 0);
    CHECK_EQ_INT(import(second, mx_stage_span(&read), &result), 0);
    CHECK_EQ_U64(result.sessions, 2);
    CHECK_EQ_U64(result.taken, 2);
    restart(second);
    CHECK_EQ_INT(release(second), 2);
    check_got(second, 1, "from bob, before");
    check_got(second, 2, "from ada, before");
    check_author(second, 1, &family.talk.bob, MXSTORE_BY_IMPORTED, MXSTORE_BY_IMPORTED);
    check_author(second, 2, first, MXSTORE_BY_IMPORTED, MXSTORE_BY_IMPORTED);
    /* A second time it brings nothing. */
    CHECK_EQ_INT(import(second, mx_stage_span(&read), &result), 0);
    CHECK_EQ_U64(result.known, 2);
    CHECK_EQ_U64(result.taken + result.invalid, 0);
    mx_wipe_buffer(&sessions);
    buffer_free(&file);
    mx_wipe_buffer(&read);
    family_fini(&family);
}

TEST(talk, a_key_file_that_is_not_valid_changes_nothing)
{
    static const char *const files[] = { "", "{}", "7", "[", "[{}]x" };
    struct mxclient_import result;
    struct buffer large = { 0 }, sessions = { 0 }, mixed = { 0 };
    struct talk talk;

    talk_init(&talk);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        CHECK_EQ_INT(import(&talk.ada, span_of(files[i]), &result), MX_EFORMAT);
    (void)buffer_text(&large, "[0");
    for (int i = 0; i < MXCLIENT_IMPORT_MAX; i++)
        (void)buffer_text(&large, ",0");
    (void)buffer_text(&large, "]");
    CHECK_EQ_INT(import(&talk.ada, mx_stage_span(&large), &result), MX_ETOOBIG);
    /* Entries that are not valid are skipped, and the others taken. */
    send_text(&talk.bob, "a secret");
    CHECK_EQ_INT(mxclient_key_file_write(&talk.bob.client, &sessions), 0);
    (void)buffer_text(&mixed, "[7,{},{\"algorithm\":\"m.megolm.v1.aes-sha2\"},");
    (void)buffer_append(&mixed, sessions.bytes + 1, sessions.size - 1);
    CHECK_EQ_INT(import(&talk.ada, mx_stage_span(&mixed), &result), 0);
    CHECK_EQ_U64(result.invalid, 3);
    CHECK_EQ_U64(result.taken, 1);
    buffer_free(&large);
    mx_wipe_buffer(&sessions);
    mx_wipe_buffer(&mixed);
    talk_fini(&talk);
}

/* ---- random conversations --------------------------------------------------------------------- */

static struct base_random dice;

static bool happens(unsigned percent)
{
    return base_random_below(&dice, 100) < percent;
}

/* Send what the outbox still has, and note the answers. May die on the way. */
static void drain(struct engine *engine, unsigned crash_percent)
{
    struct sql_unit *list = sql_unit_create(0);
    struct mxclient_request request;
    struct mxstore_outbox row;

    mxstore_list(list, MXSTORE_IS_outbox);
    CHECK_EQ_INT(sql_read_wait(engine->sql, list), 0);
    for (uint32_t i = 0; i < sql_unit_rows(list, 0); i++) {
        struct sql_unit *unit;

        mxstore_row(list, 0, i, MXSTORE_IS_outbox, &row);
        if (row.sending != MXSTORE_PENDING)
            continue;
        CHECK_EQ_INT(mxclient_send_again(&row, &request), 0);
        (void)ask(engine, &request);
        if (happens(crash_percent)) { /* the server has it, and we do not know */
            restart(engine);
            break;
        }
        unit = sql_unit_create(0);
        mxstore_claim_outbox(unit, row.txn_id, engine->now_ms, engine->now_ms + 1);
        mxstore_sent_outbox(unit, row.txn_id, SPAN("$sent"));
        commit(engine, unit);
    }
    sql_unit_destroy(list);
}

/* Encrypt a message into the outbox. */
static void enqueue(struct engine *engine, int number)
{
    struct mxclient_room *room;
    struct mxclient_request request;
    struct sql_unit *unit;
    char content[60];

    CHECK_EQ_INT(prepare(engine), MXCLIENT_NEED_NOTHING);
    room = mxclient_rooms_find(&engine->client.rooms, ROOM);
    unit = sql_unit_create(0);
    snprintf(content, sizeof content, "{\"body\":\"message <%d>\"}", number);
    put_message(engine, room, content, unit, &request);
    mxclient_request_fini(&request);
    if (happens(10)) { /* dies before the COMMIT: no byte has left */
        sql_unit_destroy(unit);
        restart(engine);
        enqueue(engine, number);
        return;
    }
    commit(engine, unit);
    if (happens(10))
        restart(engine);
}

/* Read the session id and the message index of an event. */
static void read_index(struct mx_homeserver *server, int event, char name[80])
{
    struct json_doc doc = { 0 };
    const struct json *content;
    uint8_t bytes[16];
    struct span id, text;
    uint32_t index = 0;
    size_t size;

    CHECK_EQ_INT(json_parse_copy(&doc, mx_homeserver_text(&server->events[event]), 0), 0);
    content = json_get(json_root(&doc), "content");
    CHECK(json_string(json_get(content, "session_id"), &id));
    CHECK(json_string(json_get(content, "ciphertext"), &text));
    text.size = 16;
    CHECK_EQ_INT(mx_base64_decode(text, bytes, sizeof bytes, &size), 0);
    CHECK(bytes[0] == 3 && bytes[1] == 8);
    for (int i = 0; i < 4; i++) {
        index |= (uint32_t)(bytes[2 + i] & 0x7f) << (7 * i);
        if ((bytes[2 + i] & 0x80) == 0)
            break;
    }
    snprintf(name, 80, "%.*s %u", (int)id.size, id.at, index);
    json_doc_free(&doc);
}

static void check_indexes_differ(struct mx_homeserver *server)
{
    static char names[MX_HOMESERVER_EVENTS][80];

    for (int i = 0; i < server->event_count; i++) {
        read_index(server, i, names[i]);
        for (int k = 0; k < i; k++)
            CHECK_MSG(strcmp(names[i], names[k]) != 0, "%s was used twice", names[i]);
    }
}

static void converse(struct talk *talk)
{
    int number = 0;

    for (int i = 0; i < 40; i++) {
        struct engine *engine = happens(50) ? &talk->ada : &talk->bob;

        talk->server.drops_to_device = happens(10);
        if (happens(40))
            enqueue(engine, ++number);
        else if (happens(40))
            drain(engine, 20);
        else if (happens(60))
            sync_once(engine);
        else if (happens(50))
            restart(engine);
        else
            mxclient_rooms_find(&engine->client.rooms, ROOM)->encryption = MXCLIENT_ROTATING;
        if (happens(20)) {
            (void)unwedge(engine);
            (void)release(engine);
        }
    }
    talk->server.drops_to_device = false;
    drain(&talk->ada, 0);
    drain(&talk->bob, 0);
    CHECK_EQ_INT(talk->server.event_count, number); /* each once */
}

/* Every event is stored: our own are read, and those of the other too, or held for a key that got lost. */
static void check_complete(struct engine *engine, struct mx_homeserver *server)
{
    for (int i = 1; i <= server->event_count; i++) {
        const struct buffer *event = &server->events[i - 1];
        const char *user = engine->device->user;
        bool is_own = memmem(event->bytes, event->size, user, strlen(user)) != NULL;
        int64_t status, reason;

        (void)read_event(engine, i, &status, &reason, "");
        CHECK(status == MXSTORE_ENQUEUED || !is_own);
        CHECK(status == MXSTORE_ENQUEUED ||
              (status == MXSTORE_HELD && (reason == MX_ESESSION || reason == MX_EINDEX)));
    }
}

TEST_LONG(talk, random_conversations_with_crashes_and_losses_end_well, 120)
{
    for (uint64_t seed; check_each_seed(&seed, check_rounds(8, 400));) {
        struct talk talk;

        base_random_init(&dice, seed);
        talk_init(&talk);
        converse(&talk);
        for (int i = 0; i < 2; i++) {
            talk.ada.now_ms += 2 * (int64_t)MXCLIENT_UNWEDGE_MS;
            talk.bob.now_ms += 2 * (int64_t)MXCLIENT_UNWEDGE_MS;
            sync_once(&talk.ada);
            sync_once(&talk.bob);
            (void)unwedge(&talk.ada);
            (void)unwedge(&talk.bob);
        }
        sync_once(&talk.ada);
        sync_once(&talk.bob);
        check_complete(&talk.ada, &talk.server);
        check_complete(&talk.bob, &talk.server);
        check_indexes_differ(&talk.server);
        /* After all that, both understand each other. */
        send_text(&talk.ada, "at last");
        sync_once(&talk.bob);
        send_text(&talk.bob, "indeed");
        sync_once(&talk.ada);
        mxclient_rooms_find(&talk.ada.client.rooms, ROOM)->encryption = MXCLIENT_ROTATING;
        send_text(&talk.ada, "good");
        sync_once(&talk.bob);
        check_got(&talk.bob, talk.server.event_count, "good");
        talk_fini(&talk);
    }
}
