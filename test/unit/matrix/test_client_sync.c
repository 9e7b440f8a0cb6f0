/* SPDX-License-Identifier: Apache-2.0 */
#include "../sql/place.h"
#include "matrix/client/sync.h"
#include "mx_client.h"

struct sync_stage {
    struct mxclient client;
    struct place place;
    struct json_doc doc;
    struct mxclient_sync_news news;
};

static void sync_stage_init(struct sync_stage *stage)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct sql_options options;

    *stage = (struct sync_stage){ 0 };
    place_init_in_memory(&stage->place);
    place_system(&stage->place);
    options = (struct sql_options){ .url = stage->place.url,
        .migrations = mxstore_migrations,
        .migration_count = MXSTORE_MIGRATIONS };
    CHECK_EQ_INT(place_try_open(&stage->place, &options), 0);
    mx_client_discover(&stage->client.session);
    CHECK_EQ_INT(mx_client_login(&stage->client.session, "@ada:x", "", 0), 0);
    mxclient_start(&stage->client);
    CHECK_EQ_INT(mxclient_session_put(&stage->client.session, unit), 0);
    CHECK_EQ_INT(sql_write_wait(stage->place.sql, unit), 0);
    sql_unit_destroy(unit);
}

static void sync_stage_fini(struct sync_stage *stage)
{
    mxclient_fini(&stage->client);
    json_doc_free(&stage->doc);
    place_finish(&stage->place);
}

/* Take an answer that took `took_ms` and store it. */
static int sync_take(struct sync_stage *stage, struct span body, uint64_t took_ms)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    stage->doc.depth_max = JSON_DEPTH_MAX;
    CHECK_EQ_INT(json_parse_copy(&stage->doc, body, 0), 0);
    rc = mxclient_sync_take(&stage->client, json_root(&stage->doc), 5, took_ms, unit, &stage->news);
    if (rc == 0)
        rc = sql_write_wait(stage->place.sql, unit);
    CHECK_MSG(rc == 0 || rc == TR_EPROTO, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    sql_unit_destroy(unit);
    return rc;
}

static int take(struct sync_stage *stage, const char *body)
{
    return sync_take(stage, span_of(body), 5000);
}

/* Read the first row with this key; the caller destroys the unit. NULL: there is none. */
static struct sql_unit *get(
    struct sync_stage *stage, enum mxstore_kind kind, const char *key, void *ret_row)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_get(unit, kind, span_of(key));
    CHECK_EQ_INT(sql_read_wait(stage->place.sql, unit), 0);
    if (sql_unit_rows(unit, 0) == 0) {
        sql_unit_destroy(unit);
        return NULL;
    }
    mxstore_row(unit, 0, 0, kind, ret_row);
    return unit;
}

static void check_event(
    struct sync_stage *stage, const char *id, enum mxstore_status status, int reason)
{
    struct mxstore_event row;
    struct sql_unit *unit = get(stage, MXSTORE_IS_event, id, &row);

    CHECK_MSG(unit != NULL, "there is no event %s", id);
    CHECK_EQ_INT(row.status, status);
    CHECK_EQ_INT(row.reason, reason);
    sql_unit_destroy(unit);
}

#define EVENT(id, type)                                                                            \
    "{\"event_id\":\"" id "\",\"type\":\"" type                                                    \
    "\",\"sender\":\"@bob:y\",\"origin_server_ts\":7,\"content\":{}}"
#define CIPHER(id)                                                                                 \
    "{\"event_id\":\"" id "\",\"type\":\"m.room.encrypted\",\"sender\":\"@bob:y\","                \
    "\"origin_server_ts\":7,\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\","                  \
    "\"session_id\":\"s\",\"ciphertext\":\"AwgA\"}}"
#define MEMBER(user, membership)                                                                   \
    "{\"event_id\":\"$m" user membership "\",\"type\":\"m.room.member\",\"state_key\":\"" user     \
    "\",\"sender\":\"" user "\",\"content\":{\"membership\":\"" membership "\"}}"
#define ENCRYPTION                                                                                 \
    "{\"event_id\":\"$e\",\"type\":\"m.room.encryption\",\"state_key\":\"\",\"sender\":\"@bob:"    \
    "y\","                                                                                         \
    "\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"rotation_period_msgs\":99999999}}"
#define ROOM(state, timeline)                                                                      \
    "\"rooms\":{\"join\":{\"!r:x\":{\"state\":{\"events\":[" state                                 \
    "]},\"timeline\":{\"events\":[" timeline "]}}}}"

TEST(sync, the_request_carries_the_token)
{
    struct sync_stage stage;
    struct mxclient_request request;

    sync_stage_init(&stage);
    mxclient_sync_request(&stage.client, true, &request);
    mx_stage_check_text(&request.target,
        "/_matrix/client/v3/sync?timeout=0&set_presence=offline&use_state_after=true");
    mxclient_request_fini(&request);
    CHECK_EQ_INT(take(&stage, "{\"next_batch\":\"s&1\"}"), 0);
    mxclient_sync_request(&stage.client, false, &request);
    mx_stage_check_text(&request.target, "/_matrix/client/v3/sync?since=s%261&timeout=30000"
                                         "&set_presence=offline&use_state_after=true");
    mxclient_request_fini(&request);
    sync_stage_fini(&stage);
}

TEST(sync, one_unit_has_the_events_and_the_token)
{
    struct sync_stage stage;
    struct mxstore_token token;
    struct sql_unit *unit;

    sync_stage_init(&stage);
    CHECK_EQ_INT(take(&stage, "{\"next_batch\":\"s1\"," ROOM(MEMBER("@bob:y", "join"),
                                  EVENT("$1", "m.room.message") "," EVENT("$2", "m.x")) "}"),
        0);
    CHECK_EQ_U64(stage.news.events, 2);
    check_event(&stage, "$1", MXSTORE_ENQUEUED, 0);
    check_event(&stage, "$2", MXSTORE_ENQUEUED, 0);
    unit = get(&stage, MXSTORE_IS_token, "", &token);
    CHECK(unit != NULL && span_is(token.next_batch, "s1"));
    sql_unit_destroy(unit);
    /* The same answer once more, as after a crash before the COMMIT of another one. */
    CHECK_EQ_INT(
        take(&stage, "{\"next_batch\":\"s2\"," ROOM("", EVENT("$1", "m.room.message")) "}"), 0);
    check_event(&stage, "$1", MXSTORE_ENQUEUED, 0);
    sync_stage_fini(&stage);
}

TEST(sync, an_answer_without_a_token_adds_no_step)
{
    static const char *const bodies[] = { "{}", "{\"next_batch\":7}", "{\"next_batch\":\"\"}",
        "{\"next_batch\":null," ROOM("", EVENT("$1", "m.x")) "}" };
    struct sync_stage stage;
    struct buffer body = { 0 };
    struct mxstore_event row;

    sync_stage_init(&stage);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        CHECK_EQ_INT(take(&stage, bodies[i]), TR_EPROTO);
    (void)buffer_text(&body, "{\"next_batch\":\"");
    for (int i = 0; i <= MXCLIENT_SYNC_TOKEN_BYTES_MAX; i++)
        (void)buffer_text(&body, "s");
    (void)buffer_text(&body, "\"}");
    CHECK_EQ_INT(sync_take(&stage, mx_stage_span(&body), 5000), TR_EPROTO);
    CHECK(get(&stage, MXSTORE_IS_event, "$1", &row) == NULL);
    CHECK_EQ_U64(stage.client.next_batch.size, 0);
    buffer_free(&body);
    sync_stage_fini(&stage);
}

TEST(sync, ciphertext_is_held_under_the_floor)
{
    struct sync_stage stage;
    struct mxstore_cursor cursor;
    struct sql_unit *unit;

    sync_stage_init(&stage);
    CHECK_EQ_INT(take(&stage, "{\"next_batch\":\"s1\"," ROOM(ENCRYPTION,
                                  CIPHER("$1") "," EVENT("$2", "m.room.encrypted")) "}"),
        0);
    CHECK_EQ_U64(stage.news.held, 1);
    check_event(&stage, "$1", MXSTORE_HELD, MX_ESESSION);
    check_event(&stage, "$2", MXSTORE_ABANDONED, MX_EFORMAT); /* no key will ever help */
    unit = get(&stage, MXSTORE_IS_cursor, "!r:x", &cursor);
    CHECK(unit != NULL);
    CHECK_EQ_INT(cursor.floor_ms, 7);
    CHECK_EQ_INT(cursor.floor_revision, 1);
    sql_unit_destroy(unit);
    sync_stage_fini(&stage);
}

TEST(sync, plaintext_in_an_encrypted_room_is_not_handed_out)
{
    struct sync_stage stage;

    sync_stage_init(&stage);
    CHECK_EQ_INT(take(&stage, "{\"next_batch\":\"s1\"," ROOM(
                                  "", EVENT("$1", "m.room.message") "," ENCRYPTION "," EVENT(
                                          "$2", "m.room.message")) "}"),
        0);
    check_event(&stage, "$1", MXSTORE_ENQUEUED, 0);
    check_event(&stage, "$2", MXSTORE_ABANDONED, MX_ESIGNATURE);
    sync_stage_fini(&stage);
}

TEST(sync, encryption_is_sticky_and_its_rotation_bounded)
{
    struct sync_stage stage;
    struct mxclient_room *room;

    sync_stage_init(&stage);
    CHECK_EQ_INT(take(&stage, "{\"next_batch\":\"s1\"," ROOM(ENCRYPTION, "") "}"), 0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK(room->is_encrypted);
    CHECK_EQ_INT(room->rotation_messages, MXCLIENT_ROTATION_MESSAGES_MAX);
    CHECK_EQ_INT(
        take(&stage, "{\"next_batch\":\"s2\"," ROOM("{\"type\":\"m.room.encryption\",\"state_key\":"
                                                    "\"\",\"sender\":\"@b:y\",\"content\":{"
                                                    "\"rotation_period_ms\":-9223372036854775808}}",
                         "") "}"),
        0);
    CHECK(room->is_encrypted);
    CHECK_EQ_INT(room->rotation_ms, MXCLIENT_ROTATION_MS_MIN);
    sync_stage_fini(&stage);
}

TEST(sync, a_limited_timeline_leaves_a_gap_but_not_the_first)
{
    static const char body[] =
        "{\"next_batch\":\"%s\",\"rooms\":{\"join\":{\"!r:x\":{\"timeline\":{\"limited\":true,"
        "\"prev_batch\":\"p1\",\"events\":[]}}}}}";
    struct sync_stage stage;
    struct mxstore_gap gap;
    struct sql_unit *unit;
    char text[300];

    sync_stage_init(&stage);
    for (int i = 1; i <= 2; i++) {
        snprintf(
            text, sizeof text, "%.15s%s%s", body, i == 1 ? "s1" : "s2", strstr(body, "%s") + 2);
        CHECK_EQ_INT(take(&stage, text), 0);
        CHECK_EQ_U64(stage.news.gaps, i == 1 ? 0 : 1);
    }
    unit = get(&stage, MXSTORE_IS_gap, "!r:x", &gap);
    CHECK(unit != NULL && span_is(gap.from_token, "p1") && span_is(gap.until_token, "s1"));
    sql_unit_destroy(unit);
    sync_stage_fini(&stage);
}

TEST(sync, members_are_tracked_and_a_leave_asks_for_rotation)
{
    struct sync_stage stage;
    struct mxclient_room *room;

    sync_stage_init(&stage);
    CHECK_EQ_INT(take(&stage, "{\"next_batch\":\"s1\"," ROOM(ENCRYPTION
                                  "," MEMBER("@bob:y", "join") "," MEMBER("@eve:y", "ban"),
                                  "") "}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK(room->has_members && !room->must_rotate);
    CHECK(mxclient_devices_user(&stage.client.devices, SPAN("@bob:y")) != NULL);
    CHECK(mxclient_devices_user(&stage.client.devices, SPAN("@eve:y")) == NULL);
    CHECK_EQ_INT(
        take(&stage, "{\"next_batch\":\"s2\"," ROOM("", MEMBER("@bob:y", "leave")) "}"), 0);
    CHECK(room->must_rotate);
    sync_stage_fini(&stage);
}

TEST(sync, state_after_replaces_the_state_of_the_timeline)
{
    struct sync_stage stage;
    struct mxclient_room *room;

    sync_stage_init(&stage);
    CHECK_EQ_INT(
        take(&stage, "{\"next_batch\":\"s1\",\"rooms\":{\"join\":{\"!r:x\":{"
                     "\"state_after\":{\"events\":[" MEMBER("@bob:y",
                         "join") "]},"
                                 "\"timeline\":{\"events\":[" MEMBER("@bob:y", "leave") "]}}}}}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK_EQ_INT(
        ((struct mxclient_member *)mxclient_index_find(&room->members, SPAN("@bob:y")))->membership,
        MXCLIENT_JOINED);
    sync_stage_fini(&stage);
}

TEST(sync, our_own_event_comes_back_and_is_not_received)
{
    struct sync_stage stage;
    struct mxstore_event row;

    sync_stage_init(&stage);
    CHECK_EQ_INT(
        take(&stage,
            "{\"next_batch\":\"s1\"," ROOM("",
                "{\"event_id\":\"$1\",\"type\":\"m.x\",\"sender\":\"@ada:x\",\"content\":{},"
                "\"unsigned\":{\"transaction_id\":\"m1\"}},"
                "{\"event_id\":\"$2\",\"type\":\"m.x\",\"sender\":\"@bob:y\",\"content\":{},"
                "\"unsigned\":{\"transaction_id\":\"m1\"}}") "}"),
        0);
    CHECK(get(&stage, MXSTORE_IS_event, "$1", &row) == NULL);
    check_event(&stage, "$2", MXSTORE_ENQUEUED, 0);
    sync_stage_fini(&stage);
}

TEST(sync, empty_answers_at_once_are_followed_by_growing_pauses)
{
    struct sync_stage stage;
    uint64_t before = 0;
    char body[60];

    sync_stage_init(&stage);
    for (int i = 0; i < 10; i++) {
        snprintf(body, sizeof body, "{\"next_batch\":\"s%d\"}", i);
        CHECK_EQ_INT(sync_take(&stage, span_of(body), 3), 0);
        CHECK(stage.news.pause_ms >= MXCLIENT_SYNC_QUICK_MS && stage.news.pause_ms >= before);
        before = stage.news.pause_ms;
    }
    CHECK_EQ_U64(before, MXCLIENT_SYNC_PAUSE_MAX_MS);
    /* A long poll that ended by its timeout is no reason to wait. */
    CHECK_EQ_INT(sync_take(&stage, SPAN("{\"next_batch\":\"t\"}"), 30000), 0);
    CHECK_EQ_U64(stage.news.pause_ms, 0);
    /* A token that stands still is, whatever the answer has. */
    CHECK_EQ_INT(sync_take(&stage, SPAN("{\"next_batch\":\"t\"," ROOM("", "") "}"), 30000), 0);
    CHECK_EQ_U64(stage.news.pause_ms, MXCLIENT_SYNC_QUICK_MS);
    sync_stage_fini(&stage);
}

TEST(sync, invalid_members_are_skipped_and_the_rest_is_taken)
{
    struct sync_stage stage;
    struct mxstore_event row;
    struct sql_unit *unit;

    sync_stage_init(&stage);
    CHECK_EQ_INT(
        take(&stage,
            "{\"next_batch\":\"s1\",\"device_lists\":[],\"to_device\":7,"
            "\"device_one_time_keys_count\":null,\"rooms\":{\"invite\":3,\"leave\":{\"!q:x\":1},"
            "\"join\":{\"\":{},\"a\\u0000b\":{},\"!r:x\":{\"state\":[],\"timeline\":{\"limited\":"
            "\"yes\","
            "\"events\":[null,{},{\"type\":7},{\"event_id\":\"$a\",\"type\":\"\",\"sender\":\"@b:"
            "y\","
            "\"content\":{}},{\"event_id\":\"$b\",\"type\":\"m.x\",\"sender\":\"@b:y\",\"content\":"
            "[]},"
            "{\"type\":\"m.x\",\"sender\":\"@b:y\",\"content\":{}},"
            "{\"event_id\":\"$1\",\"type\":\"m.x\",\"sender\":\"@b:y\",\"content\":{},"
            "\"origin_server_ts\":99999999999999999999999},"
            "{\"event_id\":\"$2\",\"type\":\"m.x\",\"sender\":\"@b:y\",\"content\":{},"
            "\"origin_server_ts\":-9223372036854775808}]}}}}}"),
        0);
    CHECK_EQ_U64(stage.news.events, 2);
    CHECK_EQ_U64(stage.client.skipped, 9);
    unit = get(&stage, MXSTORE_IS_event, "$1", &row);
    CHECK(unit != NULL && row.origin_ms == ((int64_t)1 << 53) - 1);
    sql_unit_destroy(unit);
    unit = get(&stage, MXSTORE_IS_event, "$2", &row);
    CHECK(unit != NULL && row.origin_ms == 0);
    sql_unit_destroy(unit);
    sync_stage_fini(&stage);
}

/* Append an event whose content has `size` more bytes or `depth` more levels. */
static void put_large(struct buffer *body, const char *id, int size, int depth)
{
    (void)buffer_format(body,
        "{\"event_id\":\"%s\",\"type\":\"m.x\",\"sender\":\"@b:y\",\"content\":{\"a\":\"", id);
    for (int i = 0; i < size; i++)
        (void)buffer_text(body, "x");
    (void)buffer_text(body, "\",\"b\":");
    for (int i = 0; i < depth; i++)
        (void)buffer_text(body, "[");
    for (int i = 0; i < depth; i++)
        (void)buffer_text(body, "]");
    (void)buffer_text(body, depth == 0 ? "0}}" : "}}");
}

TEST(sync, an_event_too_long_or_too_deep_is_stored_without_its_body)
{
    struct sync_stage stage;
    struct buffer body = { 0 };

    sync_stage_init(&stage);
    (void)buffer_text(&body, "{\"next_batch\":\"s1\",\"rooms\":{\"join\":{\"!r:x\":{\"timeline\":{"
                             "\"events\":[");
    put_large(&body, "$1", MXCLIENT_EVENT_BYTES_MAX, 0);
    (void)buffer_text(&body, ",");
    put_large(&body, "$2", 1, 900);
    (void)buffer_text(&body, ",");
    put_large(&body, "$3", 60000, 3);
    (void)buffer_text(&body, "]}}}}}");
    CHECK_EQ_INT(sync_take(&stage, mx_stage_span(&body), 5000), 0);
    check_event(&stage, "$1", MXSTORE_ABANDONED, MX_ETOOBIG);
    check_event(&stage, "$2", MXSTORE_ABANDONED, MX_ETOOBIG);
    check_event(&stage, "$3", MXSTORE_ENQUEUED, 0);
    buffer_free(&body);
    sync_stage_fini(&stage);
}

TEST(sync, a_room_with_ten_thousand_members_is_taken)
{
    struct sync_stage stage;
    struct buffer body = { 0 };

    sync_stage_init(&stage);
    (void)buffer_text(&body, "{\"next_batch\":\"s1\",\"rooms\":{\"join\":{\"!r:x\":{\"state\":{"
                             "\"events\":[" ENCRYPTION);
    for (int i = 0; i < 10000; i++)
        (void)buffer_format(&body,
            ",{\"type\":\"m.room.member\",\"state_key\":\"@u%d:y\",\"sender\":\"@u%d:y\","
            "\"content\":{\"membership\":\"join\"}}",
            i * 7919 % 10000, i);
    (void)buffer_text(&body, "]}}}}}");
    CHECK_EQ_INT(sync_take(&stage, mx_stage_span(&body), 5000), 0);
    CHECK_EQ_U64(mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"))->members.count, 10000);
    CHECK_EQ_U64(stage.client.devices.users.count, 10000);
    buffer_free(&body);
    sync_stage_fini(&stage);
}
