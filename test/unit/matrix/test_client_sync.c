/* SPDX-License-Identifier: Apache-2.0 */
#include "mx_sync.h"

TEST(sync, the_request_carries_the_token)
{
    struct mx_sync stage;
    struct mxclient_request request;

    mx_sync_init(&stage);
    mxclient_sync_request(&stage.client, true, &request);
    mx_stage_check_text(&request.target,
        "/_matrix/client/v3/sync?timeout=0&set_presence=offline&use_state_after=true");
    mxclient_request_fini(&request);
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s&1\"}"), 0);
    mxclient_sync_request(&stage.client, false, &request);
    mx_stage_check_text(&request.target, "/_matrix/client/v3/sync?since=s%261&timeout=30000"
                                         "&set_presence=offline&use_state_after=true");
    mxclient_request_fini(&request);
    mx_sync_fini(&stage);
}

TEST(sync, one_unit_has_the_events_and_the_token)
{
    struct mx_sync stage;
    struct mxstore_token token;
    struct sql_unit *unit;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(&stage,
                     "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_MEMBER("@bob:y", "join"),
                         MX_SYNC_EVENT("$1", "m.room.message") "," MX_SYNC_EVENT("$2", "m.x")) "}"),
        0);
    CHECK_EQ_U64(stage.news.events, 2);
    mx_sync_check_event(&stage, "$1", MXSTORE_ENQUEUED, 0);
    mx_sync_check_event(&stage, "$2", MXSTORE_ENQUEUED, 0);
    unit = mx_sync_get(&stage, MXSTORE_IS_token, "", &token);
    CHECK(unit != NULL && span_is(token.next_batch, "s1"));
    sql_unit_destroy(unit);
    /* The same answer once more, as after a crash before the COMMIT of another one. */
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s2\"," MX_SYNC_ROOM(
                                               "", MX_SYNC_EVENT("$1", "m.room.message")) "}"),
        0);
    mx_sync_check_event(&stage, "$1", MXSTORE_ENQUEUED, 0);
    mx_sync_fini(&stage);
}

TEST(sync, the_text_of_a_room_is_given_back_once_it_is_stored)
{
    struct buffer body = { 0 };
    struct mx_sync stage;
    char id[16];

    mx_sync_init(&stage);
    (void)buffer_text(&body, "{\"rooms\":{\"join\":{");
    for (int i = 0; i < 50; i++)
        (void)buffer_format(&body,
            "%s\"!r%d:x\":{\"state\":{\"events\":[" MX_SYNC_ENCRYPTION "]},\"timeline\":{"
            "\"events\":[{\"event_id\":\"$%d\",\"type\":\"m.room.encrypted\",\"sender\":\"@bob:y\","
            "\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"session_id\":\"s%d\","
            "\"ciphertext\":\"AwgA\"}}]}}",
            i == 0 ? "" : ",", i, i, i);
    (void)buffer_text(&body, "},\"leave\":{\"!l:x\":{}}},\"next_batch\":\"s1\"}");
    CHECK_EQ_INT(mx_sync_take(&stage, mx_stage_span(&body), 5000), 0);
    CHECK_EQ_U64(stage.forgotten, 49);
    CHECK_EQ_U64(stage.client.rooms.rooms.count, 51);
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "$%d", i);
        mx_sync_check_event(&stage, id, MXSTORE_HELD, MX_ESESSION);
    }
    buffer_free(&body);
    mx_sync_fini(&stage);
}

TEST(sync, an_answer_without_a_token_adds_no_step)
{
    static const char *const bodies[] = { "{}", "{\"next_batch\":7}", "{\"next_batch\":\"\"}",
        "{\"next_batch\":null," MX_SYNC_ROOM("", MX_SYNC_EVENT("$1", "m.x")) "}" };
    struct mx_sync stage;
    struct buffer body = { 0 };
    struct mxstore_event row;

    mx_sync_init(&stage);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        CHECK_EQ_INT(mx_sync_take_text(&stage, bodies[i]), TR_EPROTO);
    (void)buffer_text(&body, "{\"next_batch\":\"");
    for (int i = 0; i <= MXCLIENT_SYNC_TOKEN_BYTES_MAX; i++)
        (void)buffer_text(&body, "s");
    (void)buffer_text(&body, "\"}");
    CHECK_EQ_INT(mx_sync_take(&stage, mx_stage_span(&body), 5000), TR_EPROTO);
    CHECK(mx_sync_get(&stage, MXSTORE_IS_event, "$1", &row) == NULL);
    CHECK_EQ_U64(stage.client.next_batch.size, 0);
    buffer_free(&body);
    mx_sync_fini(&stage);
}

TEST(sync, ciphertext_is_held_under_the_floor)
{
    struct mx_sync stage;
    struct mxstore_cursor cursor;
    struct sql_unit *unit;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(&stage,
                     "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION,
                         MX_SYNC_CIPHER("$1") "," MX_SYNC_EVENT("$2", "m.room.encrypted")) "}"),
        0);
    CHECK_EQ_U64(stage.news.held, 1);
    mx_sync_check_event(&stage, "$1", MXSTORE_HELD, MX_ESESSION);
    mx_sync_check_event(&stage, "$2", MXSTORE_ABANDONED, MX_EFORMAT); /* no key will ever help */
    unit = mx_sync_get(&stage, MXSTORE_IS_cursor, "!r:x", &cursor);
    CHECK(unit != NULL);
    CHECK_EQ_INT(cursor.floor_ms, 7);
    CHECK_EQ_INT(cursor.floor_revision, 1);
    sql_unit_destroy(unit);
    mx_sync_fini(&stage);
}

TEST(sync, an_event_of_an_unknown_algorithm_has_its_own_reason)
{
    struct mx_sync stage;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(&stage,
                     "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION,
                         "{\"event_id\":\"$1\",\"type\":\"m.room.encrypted\",\"sender\":\"@bob:y\","
                         "\"content\":{\"algorithm\":\"m.other.v9\",\"ciphertext\":\"AwgA\"}}"
                         "," MX_SYNC_CIPHER("$2")) "}"),
        0);
    mx_sync_check_event(&stage, "$1", MXSTORE_ABANDONED, MX_EALGORITHM);
    mx_sync_check_event(&stage, "$2", MXSTORE_HELD, MX_ESESSION);
    mx_sync_fini(&stage);
}

TEST(sync, plaintext_in_an_encrypted_room_is_not_handed_out)
{
    struct mx_sync stage;

    mx_sync_init(&stage);
    CHECK_EQ_INT(
        mx_sync_take_text(&stage,
            "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(
                "", MX_SYNC_EVENT("$1", "m.room.message") "," MX_SYNC_ENCRYPTION "," MX_SYNC_EVENT(
                        "$2", "m.room.message")) "}"),
        0);
    mx_sync_check_event(&stage, "$1", MXSTORE_ENQUEUED, 0);
    mx_sync_check_event(&stage, "$2", MXSTORE_ABANDONED, MX_ESIGNATURE);
    mx_sync_fini(&stage);
}

#define STRIPPED(type, key, content)                                                               \
    "{\"type\":\"" type "\",\"state_key\":\"" key "\",\"sender\":\"@bob:y\",\"content\":" content  \
    "}"

TEST(sync, an_invitation_says_what_room_it_is)
{
    struct mx_sync stage;
    struct mxstore_room row;
    struct sql_unit *unit;

    mx_sync_init(&stage);
    CHECK_EQ_INT(
        mx_sync_take_text(&stage,
            "{\"next_batch\":\"s1\",\"rooms\":{\"invite\":{\"!r:x\":{\"invite_state\":{"
            "\"events\":[" STRIPPED("m.lotti.sync_room", "", "{}") "," STRIPPED("m.room.name", "",
                "{\"name\":\"a\\nroom\\u001b[1m\"}") "," STRIPPED("m.room.encryption", "",
                "{\"algorithm\":\"m.megolm.v1.aes-sha2\"}") "," STRIPPED("m.room.member", "@ada:x",
                "{\"membership\":\"invite\"}") "]}}}}}"),
        0);
    unit = mx_sync_get(&stage, MXSTORE_IS_room, "!r:x", &row);
    CHECK(unit != NULL && span_is(row.membership, "invite"));
    CHECK(row.is_sync_room != 0 && row.is_encrypted != 0);
    CHECK(span_is(row.name, "a room [1m")); /* no control character */
    CHECK(span_is(row.inviter, "@bob:y"));
    sql_unit_destroy(unit);
    mx_sync_fini(&stage);
}

TEST(sync, power_levels_are_kept_with_the_defaults_of_the_specification)
{
    static const struct {
        const char *content;
        int own, invite, state;
    } cases[] = {
        { "{}", 0, 0, 50 },
        { "{\"users_default\":5,\"state_default\":7,\"invite\":3}", 5, 3, 7 },
        { "{\"users\":{\"@ada:x\":100,\"@bob:y\":1},\"users_default\":5}", 100, 0, 50 },
        { "{\"users\":{\"@ada:x\":\"100\"},\"invite\":1.5}", 0, 0, 50 },
    };
    struct mx_sync stage;
    char body[400];

    mx_sync_init(&stage);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mxstore_room row;
        struct sql_unit *unit;

        snprintf(body, sizeof body,
            "{\"next_batch\":\"s%zu\"," MX_SYNC_ROOM(
                STRIPPED("m.room.power_levels", "", "%s"), "") "}",
            i, cases[i].content);
        CHECK_EQ_INT(mx_sync_take_text(&stage, body), 0);
        unit = mx_sync_get(&stage, MXSTORE_IS_room, "!r:x", &row);
        CHECK_EQ_INT(row.own_level, cases[i].own);
        CHECK_EQ_INT(row.invite_level, cases[i].invite);
        CHECK_EQ_INT(row.state_level, cases[i].state);
        sql_unit_destroy(unit);
    }
    mx_sync_fini(&stage);
}

TEST(sync, encryption_is_sticky_and_its_rotation_bounded)
{
    struct mx_sync stage;
    struct mxclient_room *room;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(
                     &stage, "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION, "") "}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK(room->encryption != MXCLIENT_PLAIN);
    CHECK_EQ_INT(room->rotation_messages, MXCLIENT_ROTATION_MESSAGES_MAX);
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s2\"," MX_SYNC_ROOM(
                                               "{\"type\":\"m.room.encryption\",\"state_key\":"
                                               "\"\",\"sender\":\"@b:y\",\"content\":{"
                                               "\"rotation_period_ms\":-9223372036854775808}}",
                                               "") "}"),
        0);
    CHECK(room->encryption != MXCLIENT_PLAIN);
    CHECK_EQ_INT(room->rotation_ms, MXCLIENT_ROTATION_MS_MIN);
    mx_sync_fini(&stage);
}

TEST(sync, a_limited_timeline_leaves_a_gap_but_not_the_first)
{
    static const char body[] =
        "{\"next_batch\":\"%s\",\"rooms\":{\"join\":{\"!r:x\":{\"timeline\":{\"limited\":true,"
        "\"prev_batch\":\"p1\",\"events\":[]}}}}}";
    struct mx_sync stage;
    struct mxstore_gap gap;
    struct sql_unit *unit;
    char text[300];

    mx_sync_init(&stage);
    for (int i = 1; i <= 2; i++) {
        snprintf(
            text, sizeof text, "%.15s%s%s", body, i == 1 ? "s1" : "s2", strstr(body, "%s") + 2);
        CHECK_EQ_INT(mx_sync_take_text(&stage, text), 0);
        CHECK_EQ_U64(stage.news.gaps, i == 1 ? 0 : 1);
    }
    unit = mx_sync_get(&stage, MXSTORE_IS_gap, "!r:x", &gap);
    CHECK(unit != NULL && span_is(gap.from_token, "p1") && span_is(gap.until_token, "s1"));
    sql_unit_destroy(unit);
    mx_sync_fini(&stage);
}

TEST(sync, members_are_tracked_and_a_leave_asks_for_rotation)
{
    struct mx_sync stage;
    struct mxclient_room *room;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(&stage,
                     "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION
                         "," MX_SYNC_MEMBER("@bob:y", "join") "," MX_SYNC_MEMBER("@eve:y", "ban"),
                         "") "}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK(room->has_members && room->encryption != MXCLIENT_ROTATING);
    CHECK(mxclient_devices_user(&stage.client.devices, SPAN("@bob:y")) != NULL);
    CHECK(mxclient_devices_user(&stage.client.devices, SPAN("@eve:y")) == NULL);
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s2\"," MX_SYNC_ROOM(
                                               "", MX_SYNC_MEMBER("@bob:y", "leave")) "}"),
        0);
    CHECK_EQ_INT(room->encryption, MXCLIENT_ROTATING);
    mx_sync_fini(&stage);
}

TEST(sync, a_change_of_the_history_visibility_asks_for_rotation)
{
    struct mx_sync stage;
    struct mxclient_room *room;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(
                     &stage, "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION, "") "}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK_EQ_INT(room->encryption, MXCLIENT_ENCRYPTED);
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s2\"," MX_SYNC_ROOM(
                                               STRIPPED("m.room.history_visibility", "",
                                                   "{\"history_visibility\":\"shared\"}"),
                                               "") "}"),
        0);
    CHECK_EQ_INT(room->encryption, MXCLIENT_ROTATING);
    mx_sync_fini(&stage);
}

#define ROOM_AFTER_GAP(state)                                                                      \
    "\"rooms\":{\"join\":{\"!r:x\":{\"state\":{\"events\":[" state                                 \
    "]},\"timeline\":{\"limited\":true,\"prev_batch\":\"p1\",\"events\":[]}}}}"

TEST(sync, with_lazy_members_a_gap_may_hide_a_leave)
{
    const struct mxclient_member *bob;
    struct mx_sync stage;
    struct mxclient_room *room;
    uint32_t changes;

    mx_sync_init(&stage);
    (void)buffer_text(&stage.client.session.filter_id, "f1"); /* it asks for lazy members */
    CHECK_EQ_INT(mx_sync_take_text(
                     &stage, "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION, "") "}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK(!room->has_members);
    CHECK_EQ_INT(
        json_parse_copy(&stage.doc, SPAN("{\"chunk\":[" MX_SYNC_MEMBER("@bob:y", "join") "]}"), 0),
        0);
    CHECK_EQ_INT(mxclient_room_take_members(room, json_root(&stage.doc)), 0);
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s2\"," MX_SYNC_ROOM("", "") "}"), 0);
    CHECK(room->has_members);
    changes = room->member_changes;
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s3\"," ROOM_AFTER_GAP("") "}"), 0);
    CHECK(!room->has_members);              /* bob may have left in the gap */
    CHECK(room->member_changes != changes); /* an answer that was asked for before is too old */
    CHECK_EQ_INT(room->encryption, MXCLIENT_ENCRYPTED);
    json_doc_free(&stage.doc);
    CHECK_EQ_INT(json_parse_copy(&stage.doc, SPAN("{\"chunk\":[]}"), 0), 0);
    CHECK_EQ_INT(mxclient_room_take_members(room, json_root(&stage.doc)), 0);
    CHECK(room->has_members);
    bob = mxclient_index_find(&room->members, SPAN("@bob:y"));
    CHECK_EQ_INT(bob->membership, MXCLIENT_LEFT);
    CHECK_EQ_INT(room->encryption, MXCLIENT_ROTATING);
    mx_sync_fini(&stage);
}

TEST(sync, an_absent_member_who_may_have_come_and_gone_in_a_gap_asks_for_rotation)
{
    struct mx_sync stage;
    struct mxclient_room *room;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(
                     &stage, "{\"next_batch\":\"s1\"," MX_SYNC_ROOM(
                                 MX_SYNC_ENCRYPTION "," MX_SYNC_MEMBER("@eve:y", "leave"), "") "}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s2\"," MX_SYNC_ROOM(
                                               MX_SYNC_MEMBER("@eve:y", "leave"), "") "}"),
        0);
    CHECK_EQ_INT(room->encryption, MXCLIENT_ENCRYPTED); /* she was not here */
    CHECK_EQ_INT(mx_sync_take_text(&stage,
                     "{\"next_batch\":\"s3\"," ROOM_AFTER_GAP(MX_SYNC_MEMBER("@eve:y", "ban")) "}"),
        0);
    CHECK_EQ_INT(room->encryption, MXCLIENT_ROTATING);
    mx_sync_fini(&stage);
}

TEST(sync, state_after_replaces_the_state_of_the_timeline)
{
    struct mx_sync stage;
    struct mxclient_room *room;

    mx_sync_init(&stage);
    CHECK_EQ_INT(mx_sync_take_text(&stage, "{\"next_batch\":\"s1\",\"rooms\":{\"join\":{\"!r:x\":{"
                                           "\"state_after\":{\"events\":[" MX_SYNC_MEMBER("@bob:y",
                                               "join") "]},"
                                                       "\"timeline\":{\"events\":[" MX_SYNC_MEMBER(
                                                           "@bob:y", "leave") "]}}}}}"),
        0);
    room = mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"));
    CHECK_EQ_INT(
        ((struct mxclient_member *)mxclient_index_find(&room->members, SPAN("@bob:y")))->membership,
        MXCLIENT_JOINED);
    mx_sync_fini(&stage);
}

/* Of plaintext the server's word is all there is; another user's transaction id says nothing. */
TEST(sync, our_own_plaintext_event_comes_back_as_our_own)
{
    static const struct {
        const char *id;
        int64_t is_own;
    } cases[] = { { "$1", 1 }, { "$2", 0 }, { "$3", 0 } };
    struct mx_sync stage;
    struct mxstore_event row;

    mx_sync_init(&stage);
    CHECK_EQ_INT(
        mx_sync_take_text(&stage,
            "{\"next_batch\":\"s1\"," MX_SYNC_ROOM("",
                "{\"event_id\":\"$1\",\"type\":\"m.x\",\"sender\":\"@ada:x\",\"content\":{},"
                "\"unsigned\":{\"transaction_id\":\"m1\"}},"
                "{\"event_id\":\"$2\",\"type\":\"m.x\",\"sender\":\"@bob:y\",\"content\":{},"
                "\"unsigned\":{\"transaction_id\":\"m1\"}},"
                "{\"event_id\":\"$3\",\"type\":\"m.x\",\"sender\":\"@ada:x\",\"content\":{}}") "}"),
        0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sql_unit *unit = mx_sync_get(&stage, MXSTORE_IS_event, cases[i].id, &row);

        CHECK_MSG(unit != NULL, "there is no event %s", cases[i].id);
        CHECK_EQ_INT(row.status, MXSTORE_ENQUEUED);
        CHECK_EQ_INT(row.is_own, cases[i].is_own);
        CHECK_EQ_INT(row.proof, MXSTORE_BY_SERVER);
        CHECK(row.device_id.at == NULL);
        sql_unit_destroy(unit);
    }
    mx_sync_fini(&stage);
}

TEST(sync, empty_answers_at_once_are_followed_by_growing_pauses)
{
    struct mx_sync stage;
    uint64_t before = 0;
    char body[60];

    mx_sync_init(&stage);
    for (int i = 0; i < 10; i++) {
        snprintf(body, sizeof body, "{\"next_batch\":\"s%d\"}", i);
        CHECK_EQ_INT(mx_sync_take(&stage, span_of(body), 3), 0);
        CHECK(stage.news.pause_ms >= MXCLIENT_SYNC_QUICK_MS && stage.news.pause_ms >= before);
        before = stage.news.pause_ms;
    }
    CHECK_EQ_U64(before, MXCLIENT_SYNC_PAUSE_MAX_MS);
    /* A long poll that ended by its timeout is no reason to wait. */
    CHECK_EQ_INT(mx_sync_take(&stage, SPAN("{\"next_batch\":\"t\"}"), 30000), 0);
    CHECK_EQ_U64(stage.news.pause_ms, 0);
    /* Nor is the token of such a poll, which may stand still. */
    CHECK_EQ_INT(mx_sync_take(&stage, SPAN("{\"next_batch\":\"t\"}"), 30000), 0);
    CHECK_EQ_U64(stage.news.pause_ms, 0);
    /* An answer at once whose token stands still is, whatever it has. */
    CHECK_EQ_INT(
        mx_sync_take(&stage, SPAN("{\"next_batch\":\"t\"," MX_SYNC_ROOM("", "") "}"), 3), 0);
    CHECK_EQ_U64(stage.news.pause_ms, MXCLIENT_SYNC_QUICK_MS);
    mx_sync_fini(&stage);
}

TEST(sync, invalid_members_are_skipped_and_the_rest_is_taken)
{
    struct mx_sync stage;
    struct mxstore_event row;
    struct sql_unit *unit;

    mx_sync_init(&stage);
    CHECK_EQ_INT(
        mx_sync_take_text(&stage,
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
    unit = mx_sync_get(&stage, MXSTORE_IS_event, "$1", &row);
    CHECK(unit != NULL && row.origin_ms == ((int64_t)1 << 53) - 1);
    sql_unit_destroy(unit);
    unit = mx_sync_get(&stage, MXSTORE_IS_event, "$2", &row);
    CHECK(unit != NULL && row.origin_ms == 0);
    sql_unit_destroy(unit);
    mx_sync_fini(&stage);
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
    struct mx_sync stage;
    struct buffer body = { 0 };

    mx_sync_init(&stage);
    (void)buffer_text(&body, "{\"next_batch\":\"s1\",\"rooms\":{\"join\":{\"!r:x\":{\"timeline\":{"
                             "\"events\":[");
    put_large(&body, "$1", MXCLIENT_EVENT_BYTES_MAX, 0);
    (void)buffer_text(&body, ",");
    put_large(&body, "$2", 1, 900);
    (void)buffer_text(&body, ",");
    put_large(&body, "$3", 60000, 3);
    (void)buffer_text(&body, ",");
    put_large(&body, "$4", 1, MXCLIENT_EVENT_DEPTH_MAX - 2); /* in the content, in the event */
    (void)buffer_text(&body, ",");
    put_large(&body, "$5", 1, MXCLIENT_EVENT_DEPTH_MAX - 1);
    (void)buffer_text(&body, "]}}}}}");
    CHECK_EQ_INT(mx_sync_take(&stage, mx_stage_span(&body), 5000), 0);
    mx_sync_check_event(&stage, "$1", MXSTORE_ABANDONED, MX_ETOOBIG);
    mx_sync_check_event(&stage, "$2", MXSTORE_ABANDONED, MX_ETOOBIG);
    mx_sync_check_event(&stage, "$3", MXSTORE_ENQUEUED, 0);
    mx_sync_check_event(&stage, "$4", MXSTORE_ENQUEUED, 0);
    mx_sync_check_event(&stage, "$5", MXSTORE_ABANDONED, MX_ETOOBIG);
    buffer_free(&body);
    mx_sync_fini(&stage);
}

TEST(sync, a_room_with_ten_thousand_members_is_taken)
{
    struct mx_sync stage;
    struct buffer body = { 0 };

    mx_sync_init(&stage);
    (void)buffer_text(&body, "{\"next_batch\":\"s1\",\"rooms\":{\"join\":{\"!r:x\":{\"state\":{"
                             "\"events\":[" MX_SYNC_ENCRYPTION);
    for (int i = 0; i < 10000; i++)
        (void)buffer_format(&body,
            ",{\"type\":\"m.room.member\",\"state_key\":\"@u%d:y\",\"sender\":\"@u%d:y\","
            "\"content\":{\"membership\":\"join\"}}",
            i * 7919 % 10000, i);
    (void)buffer_text(&body, "]}}}}}");
    CHECK_EQ_INT(mx_sync_take(&stage, mx_stage_span(&body), 5000), 0);
    CHECK_EQ_U64(mxclient_rooms_find(&stage.client.rooms, SPAN("!r:x"))->members.count, 10000);
    CHECK_EQ_U64(stage.client.devices.users.count, 10000);
    buffer_free(&body);
    mx_sync_fini(&stage);
}
