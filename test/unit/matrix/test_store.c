/* SPDX-License-Identifier: Apache-2.0 */
#include "../sql/place.h"
#include "matrix/store/store.h"
#include "postgres.h"

#ifndef STORE_ON_POSTGRES
#define STORE_ON_POSTGRES 0
#endif

static struct test_postgres postgres;

static struct sql_options store_options(const struct place *place, uint32_t version)
{
    return (struct sql_options){ .url = STORE_ON_POSTGRES ? postgres.url : place->url,
        .migrations = mxstore_migrations,
        .migration_count = version };
}

/* Open a database of this version. */
static void store_open_at(struct place *place, uint32_t version)
{
    struct sql_options options;
    int rc;

    if (STORE_ON_POSTGRES)
        test_postgres_open(&postgres, NULL); /* before there are threads */
    place_init_in_memory(place);
    place_system(place);
    options = store_options(place, version);
    rc = place_try_open(place, &options);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), place->why);
}

static void store_open(struct place *place)
{
    store_open_at(place, MXSTORE_MIGRATIONS);
}

static void store_close(struct place *place)
{
    place_finish(place);
    if (STORE_ON_POSTGRES)
        test_postgres_close(&postgres);
}

/* Run a unit and destroy it. */
static int store_write(struct place *place, struct sql_unit *unit)
{
    int rc = sql_write_wait(place->sql, unit);

    CHECK_MSG(rc == 0 || rc == SQL_EROWS, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    sql_unit_destroy(unit);
    return rc;
}

static int put(struct place *place, enum mxstore_kind kind, const void *row)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_put(unit, kind, row);
    return store_write(place, unit);
}

/* Read rows by their key; the caller destroys the unit, which has the bytes. */
static struct sql_unit *get(struct place *place, enum mxstore_kind kind, const char *key)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    mxstore_get(unit, kind, span_of(key));
    rc = sql_read_wait(place->sql, unit);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    return unit;
}

/* ---- every kind of row ----------------------------------------------------------------------- */

static int64_t number;
static char texts[32][16];

static struct span next_text(void)
{
    char *text = texts[++number % 32];

    (void)snprintf(text, sizeof texts[0], "t%d", (int)number);
    return span_of(text);
}

#define FILL_INT(name) row.name = ++number;
#define FILL_TEXT(name) row.name = next_text();
#define FILL_BLOB(name) row.name = next_text();
#define FILL(type, name) FILL_##type(name)
#define SAME_INT(name) CHECK_EQ_INT(row.name, back.name);
#define SAME_TEXT(name) CHECK(span_equal(row.name, back.name));
#define SAME_BLOB(name) CHECK(span_equal(row.name, back.name));
#define SAME(type, name) SAME_##type(name)
#define KEY_FIRST(type, name) row.name
#define KEY_NEXT(type, name)
#define ROUND_TRIP(list, noun)                                                                     \
    {                                                                                              \
        struct mxstore_##noun row, back;                                                           \
        struct sql_unit *unit;                                                                     \
        char key[16];                                                                              \
                                                                                                   \
        list(FILL, FILL);                                                                          \
        for (int i = 0; i < 2; i++) /* a second time it is there already */                        \
            CHECK_EQ_INT(put(&place, MXSTORE_IS_##noun, &row), 0);                                 \
        (void)snprintf(key, sizeof key, "%s", list(KEY_FIRST, KEY_NEXT).at);                       \
        unit = get(&place, MXSTORE_IS_##noun, key);                                                \
        CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);                                                   \
        mxstore_row(unit, 0, 0, MXSTORE_IS_##noun, &back);                                         \
        list(SAME, SAME);                                                                          \
        sql_unit_destroy(unit);                                                                    \
        unit = sql_unit_create(0);                                                                 \
        mxstore_list(unit, MXSTORE_IS_##noun);                                                     \
        CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);                                           \
        CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);                                                   \
        mxstore_row(unit, 0, 0, MXSTORE_IS_##noun, &back);                                         \
        list(SAME, SAME);                                                                          \
        sql_unit_destroy(unit);                                                                    \
    }

TEST(store, every_row_comes_back_as_it_was)
{
    struct place place;

    store_open(&place);
    MXSTORE_ROWS(ROUND_TRIP)
    store_close(&place);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static struct mxstore_session session_of(struct span device)
{
    return (struct mxstore_session){
        .user_id = SPAN("@ada:x"),
        .device_id = device,
        .homeserver = SPAN("https://x"),
        .account = SPAN("pickle"),
    };
}

TEST(store, sent_rows_are_dropped_after_their_time_and_others_never)
{
    struct place place;
    struct sql_unit *unit;

    store_open(&place);
    for (int i = 0; i < 8; i++) {
        char txn[8];
        struct mxstore_outbox row = { .created_ms = i < 4 ? 99 : 100,
            .room_id = SPAN("!r:x"),
            .type = SPAN("m.x"),
            .content = SPAN("{}"),
            .sending = i % 4 };

        snprintf(txn, sizeof txn, "m%d", i);
        row.txn_id = span_of(txn);
        CHECK_EQ_INT(put(&place, MXSTORE_IS_outbox, &row), 0);
    }
    unit = sql_unit_create(0);
    mxstore_prune_outbox(unit, 100);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    sql_unit_destroy(unit);
    unit = sql_unit_create(0);
    mxstore_list(unit, MXSTORE_IS_outbox);
    mxstore_count_unsent(unit);
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 7); /* but m2 */
    CHECK_EQ_INT(sql_row_int(unit, 1, 0, 0), 4);
    sql_unit_destroy(unit);
    store_close(&place);
}

TEST(store, the_session_of_another_device_is_refused)
{
    struct mxstore_session ours = session_of(SPAN("A")), other = session_of(SPAN("B"));
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_session, &ours), 0);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_session, &other), SQL_EROWS);
    ours.login = MXSTORE_SOFT_LOGGED_OUT;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_session, &ours), 0);
    store_close(&place);
}

TEST(store, changed_keys_of_a_known_device_are_refused)
{
    struct mxstore_device device = { .user_id = SPAN("@bob:x"),
        .device_id = SPAN("B"),
        .identity_key = SPAN("curve"),
        .signing_key = SPAN("ed"),
        .body = SPAN("{}") };
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_device, &device), 0);
    device.trust = MXSTORE_VERIFIED;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_device, &device), 0);
    device.identity_key = SPAN("other");
    CHECK_EQ_INT(put(&place, MXSTORE_IS_device, &device), SQL_EROWS);
    device.identity_key = SPAN("curve");
    device.signing_key = SPAN("other");
    CHECK_EQ_INT(put(&place, MXSTORE_IS_device, &device), SQL_EROWS);
    store_close(&place);
}

TEST(store, an_outbound_session_never_goes_back)
{
    struct mxstore_outbound row = {
        .room_id = SPAN("!r:x"), .session_id = SPAN("S"), .pickle = SPAN("p"), .message_count = 7
    };
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_outbound, &row), 0);
    row.message_count = 6;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_outbound, &row), SQL_EROWS);
    row.message_count = 8;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_outbound, &row), 0);
    row.session_id = SPAN("T"); /* rotated */
    row.message_count = 0;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_outbound, &row), 0);
    store_close(&place);
}

TEST(store, encryption_of_a_room_is_sticky)
{
    struct mxstore_room room = { .room_id = SPAN("!r:x"), .membership = SPAN("join") }, back;
    struct sql_unit *unit;
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_room, &room), 0);
    room.is_encrypted = 1;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_room, &room), 0);
    room.is_encrypted = 0;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_room, &room), 0);
    unit = get(&place, MXSTORE_IS_room, "!r:x");
    mxstore_row(unit, 0, 0, MXSTORE_IS_room, &back);
    CHECK_EQ_INT(back.is_encrypted, 1);
    sql_unit_destroy(unit);
    store_close(&place);
}

static struct mxstore_event event_of(struct span id, int64_t seq)
{
    return (struct mxstore_event){ .event_id = id,
        .seq = seq,
        .room_id = SPAN("!r:x"),
        .sender = SPAN("@bob:x"),
        .type = SPAN("m.room.message"),
        .status = MXSTORE_ENQUEUED,
        .body = SPAN("{}") };
}

/* The rule of one unit: if a part of a sync answer cannot be stored, its token is not either. */
TEST(store, a_sync_answer_is_stored_whole_or_not_at_all)
{
    struct mxstore_session session = session_of(SPAN("A"));
    struct mxstore_token back;
    struct mxstore_event event = event_of(SPAN("$1"), 1);
    struct sql_unit *unit;
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_session, &session), 0);
    unit = sql_unit_create(0);
    mxstore_advance_token(unit, (struct span){ NULL, 0 }, SPAN("s1"));
    mxstore_note_index(unit, SPAN("S"), 0, SPAN("$1"));
    mxstore_put(unit, MXSTORE_IS_event, &event);
    CHECK_EQ_INT(store_write(&place, unit), 0);
    unit = sql_unit_create(0); /* the same answer again: the token has moved */
    mxstore_put(unit, MXSTORE_IS_event, &event);
    mxstore_advance_token(unit, (struct span){ NULL, 0 }, SPAN("s1"));
    CHECK_EQ_INT(store_write(&place, unit), SQL_EROWS);
    unit = sql_unit_create(0); /* a replay: index 0 belongs to another event */
    event = event_of(SPAN("$2"), 2);
    mxstore_advance_token(unit, SPAN("s1"), SPAN("s2"));
    mxstore_put(unit, MXSTORE_IS_event, &event);
    mxstore_note_index(unit, SPAN("S"), 0, SPAN("$2"));
    CHECK_EQ_INT(store_write(&place, unit), SQL_EROWS);
    unit = get(&place, MXSTORE_IS_event, "$2");
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 0);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_session, &session), 0); /* takes no token back */
    unit = get(&place, MXSTORE_IS_token, "");
    mxstore_row(unit, 0, 0, MXSTORE_IS_token, &back);
    CHECK(span_is(back.next_batch, "s1"));
    sql_unit_destroy(unit);
    store_close(&place);
}

TEST(store, an_event_is_stored_once)
{
    struct mxstore_event event = event_of(SPAN("$1"), 1), again = event_of(SPAN("$1"), 2), back;
    struct sql_unit *unit;
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_event, &event), 0);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_event, &again), 0);
    unit = get(&place, MXSTORE_IS_event, "$1");
    mxstore_row(unit, 0, 0, MXSTORE_IS_event, &back);
    CHECK_EQ_INT(back.seq, 1);
    sql_unit_destroy(unit);
    store_close(&place);
}

static int claim(struct place *place, int64_t now_ms)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_claim_outbox(unit, SPAN("m1"), now_ms, now_ms + 60);
    return store_write(place, unit);
}

static int sent(struct place *place)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_sent_outbox(unit, SPAN("m1"), SPAN("$1"));
    return store_write(place, unit);
}

TEST(store, an_outbox_row_has_one_sender_at_a_time)
{
    struct mxstore_outbox row = { .txn_id = SPAN("m1"),
        .room_id = SPAN("!r:x"),
        .type = SPAN("m.room.message"),
        .content = SPAN("{}") };
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_outbox, &row), 0);
    CHECK_EQ_INT(sent(&place), SQL_EROWS); /* not claimed */
    CHECK_EQ_INT(claim(&place, 100), 0);
    CHECK_EQ_INT(claim(&place, 159), SQL_EROWS);
    CHECK_EQ_INT(claim(&place, 160), 0); /* the lease ended: its sender is gone */
    CHECK_EQ_INT(sent(&place), 0);
    CHECK_EQ_INT(claim(&place, 1000), SQL_EROWS);
    store_close(&place);
}

static int move(struct place *place, int64_t origin_ms)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_move_marker(unit, SPAN("!r:x"), SPAN("$1"), origin_ms);
    return store_write(place, unit);
}

static int floor_step(struct place *place, int64_t revision, int64_t origin_ms)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (revision < 0)
        mxstore_lower_floor(unit, SPAN("!r:x"), origin_ms);
    else
        mxstore_raise_floor(unit, SPAN("!r:x"), revision, origin_ms);
    return store_write(place, unit);
}

static struct mxstore_cursor read_cursor(struct place *place)
{
    struct sql_unit *unit = get(place, MXSTORE_IS_cursor, "!r:x");
    struct mxstore_cursor cursor;

    mxstore_row(unit, 0, 0, MXSTORE_IS_cursor, &cursor);
    sql_unit_destroy(unit);
    return cursor;
}

TEST(store, the_floor_rises_only_by_a_walk_that_saw_its_revision)
{
    struct mxstore_room room = { .room_id = SPAN("!r:x"), .membership = SPAN("join") };
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_room, &room), 0);
    CHECK(read_cursor(&place).floor_ms == MXSTORE_NO_FLOOR);
    CHECK_EQ_INT(floor_step(&place, -1, 10), 0); /* revision 1 */
    CHECK_EQ_INT(floor_step(&place, -1, 15), 0); /* revision 2; the floor stays at 10 */
    CHECK_EQ_INT(floor_step(&place, 1, 30), 0);
    CHECK_EQ_INT(read_cursor(&place).floor_ms, 10);
    CHECK_EQ_INT(floor_step(&place, 2, 5), 0);
    CHECK_EQ_INT(read_cursor(&place).floor_ms, 10);
    CHECK_EQ_INT(floor_step(&place, 2, 30), 0);
    CHECK_EQ_INT(
        put(&place, MXSTORE_IS_room, &room), 0); /* a room stored whole keeps its cursors */
    CHECK_EQ_INT(read_cursor(&place).floor_ms, 30);
    CHECK_EQ_INT(read_cursor(&place).floor_revision, 2);
    CHECK_EQ_INT(floor_step(&place, 2, MXSTORE_NO_FLOOR), 0);
    CHECK(read_cursor(&place).floor_ms == MXSTORE_NO_FLOOR);
    store_close(&place);
}

TEST(store, the_marker_moves_forward_below_the_floor_and_past_no_gap)
{
    struct mxstore_room room = { .room_id = SPAN("!r:x"), .membership = SPAN("join") };
    struct mxstore_gap gap = { .room_id = SPAN("!r:x"), .from_token = SPAN("p") };
    struct sql_unit *unit = sql_unit_create(0);
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_room, &room), 0);
    CHECK_EQ_INT(move(&place, 20), 0);
    CHECK_EQ_INT(move(&place, 19), 0);
    CHECK_EQ_INT(read_cursor(&place).marker_ms, 20);
    CHECK_EQ_INT(floor_step(&place, -1, 30), 0);
    CHECK_EQ_INT(move(&place, 30), 0);
    CHECK_EQ_INT(read_cursor(&place).marker_ms, 20);
    CHECK_EQ_INT(move(&place, 29), 0);
    CHECK_EQ_INT(read_cursor(&place).marker_ms, 29);
    CHECK_EQ_INT(floor_step(&place, 1, MXSTORE_NO_FLOOR), 0);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_gap, &gap), 0);
    CHECK_EQ_INT(move(&place, 40), 0);
    CHECK_EQ_INT(read_cursor(&place).marker_ms, 29);
    mxstore_close_gap(unit, SPAN("!r:x"), SPAN("p"));
    CHECK_EQ_INT(store_write(&place, unit), 0);
    CHECK_EQ_INT(move(&place, 40), 0);
    CHECK_EQ_INT(read_cursor(&place).marker_ms, 40);
    store_close(&place);
}

/* ---- replays ---------------------------------------------------------------------------------- */

static struct mxstore_event decrypted_event(const char *id, int64_t seq)
{
    return (struct mxstore_event){ .event_id = span_of(id),
        .seq = seq,
        .room_id = SPAN("!r"),
        .sender = SPAN("@bob:x"),
        .type = SPAN("m.x"),
        .status = MXSTORE_ENQUEUED,
        .body = SPAN("secret") };
}

static void check_status(struct place *place, const char *id, int64_t status, const char *body)
{
    struct sql_unit *unit = get(place, MXSTORE_IS_event, id);
    struct mxstore_event row;

    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    mxstore_row(unit, 0, 0, MXSTORE_IS_event, &row);
    CHECK_EQ_INT(row.status, status);
    CHECK(span_is(row.body, body));
    sql_unit_destroy(unit);
}

TEST(store, a_replay_is_abandoned_and_the_rest_of_its_unit_stored)
{
    struct mxstore_event first = decrypted_event("$1", 1), replay = decrypted_event("$2", 2);
    struct mxstore_event other = decrypted_event("$3", 3);
    struct sql_unit *unit = sql_unit_create(0);
    struct place place;

    store_open(&place);
    for (int i = 0; i < 2; i++) { /* the same event again is no replay */
        unit = i == 0 ? unit : sql_unit_create(0);
        mxstore_put(unit, MXSTORE_IS_event, &first);
        mxstore_guard_index(unit, SPAN("s"), 7, SPAN("$1"), -9);
        CHECK_EQ_INT(store_write(&place, unit), 0);
    }
    unit = sql_unit_create(0);
    mxstore_put(unit, MXSTORE_IS_event, &replay);
    mxstore_guard_index(unit, SPAN("s"), 7, SPAN("$2"), -9);
    mxstore_put(unit, MXSTORE_IS_event, &other);
    mxstore_guard_index(unit, SPAN("s"), 8, SPAN("$3"), -9);
    CHECK_EQ_INT(store_write(&place, unit), 0);
    check_status(&place, "$1", MXSTORE_ENQUEUED, "secret");
    check_status(&place, "$2", MXSTORE_ABANDONED, "");
    check_status(&place, "$3", MXSTORE_ENQUEUED, "secret");
    store_close(&place);
}

TEST(store, held_events_are_found_and_released_once)
{
    struct mxstore_event held = decrypted_event("$1", 4), free_event = decrypted_event("$2", 5);
    struct sql_unit *unit = sql_unit_create(0);
    struct place place;

    store_open(&place);
    held.status = MXSTORE_HELD;
    mxstore_put(unit, MXSTORE_IS_event, &held);
    mxstore_put(unit, MXSTORE_IS_event, &free_event);
    CHECK_EQ_INT(store_write(&place, unit), 0);
    for (int i = 0; i < 2; i++) {
        unit = sql_unit_create(0);
        mxstore_get_held(unit, SPAN("!r"), 0, 10);
        mxstore_get_last_seq(unit);
        CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
        CHECK_EQ_U64(sql_unit_rows(unit, 0), i == 0 ? 1 : 0);
        CHECK_EQ_INT(sql_row_int(unit, 1, 0, 0), i == 0 ? 5 : 6);
        sql_unit_destroy(unit);
        unit = sql_unit_create(0);
        mxstore_release_event(unit, &(struct mxstore_event){ .event_id = SPAN("$1"),
                                        .type = SPAN("m.y"),
                                        .body = i == 0 ? SPAN("text") : SPAN("late"),
                                        .seq = 6 + i });
        CHECK_EQ_INT(store_write(&place, unit), 0);
        check_status(&place, "$1", MXSTORE_ENQUEUED, "text");
    }
    store_close(&place);
}

/* ---- authors ---------------------------------------------------------------------------------- */

/* Read the first readable event. Its texts are in the unit, which the caller destroys. */
static struct sql_unit *read_first(struct place *place, bool own, struct mxstore_readable *ret_row)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    mxstore_get_events(unit, 0, 10, own);
    rc = sql_read_wait(place->sql, unit);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    if (sql_unit_rows(unit, 0) > 0)
        mxstore_row(unit, 0, 0, MXSTORE_IS_readable, ret_row);
    return unit;
}

static void check_proof(struct place *place, enum mxstore_proof then, enum mxstore_proof now)
{
    struct mxstore_readable row = { 0 };
    struct sql_unit *unit = read_first(place, false, &row);

    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    CHECK_EQ_STR(mxstore_proof_text(row.proof), mxstore_proof_text(then));
    CHECK_EQ_STR(mxstore_proof_text(row.proof_now), mxstore_proof_text(now));
    sql_unit_destroy(unit);
}

TEST(store, the_proof_of_an_event_follows_its_device)
{
    static const struct {
        int64_t trust, is_deleted;
        const char *device_id, *identity_key;
        enum mxstore_proof now;
    } cases[] = {
        { MXSTORE_UNVERIFIED, 0, "D", "K", MXSTORE_BY_UNVERIFIED },
        { MXSTORE_VERIFIED, 0, "D", "K", MXSTORE_BY_VERIFIED },
        { MXSTORE_BLOCKED, 0, "D", "K", MXSTORE_BY_BLOCKED },
        { MXSTORE_VERIFIED, 1, "D", "K", MXSTORE_BY_GONE },
        { MXSTORE_VERIFIED, 0, "D", "L", MXSTORE_BY_GONE },
        { MXSTORE_VERIFIED, 0, "E", "K", MXSTORE_BY_GONE },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mxstore_event event = decrypted_event("$1", 1);
        struct mxstore_device device = { .user_id = SPAN("@bob:x"),
            .device_id = span_of(cases[i].device_id),
            .identity_key = span_of(cases[i].identity_key),
            .signing_key = SPAN("S"),
            .trust = cases[i].trust,
            .is_deleted = cases[i].is_deleted,
            .body = SPAN("{}") };
        struct place place;

        event.proof = MXSTORE_BY_VERIFIED;
        event.device_id = SPAN("D");
        event.identity_key = SPAN("K");
        store_open(&place);
        CHECK_EQ_INT(put(&place, MXSTORE_IS_event, &event), 0);
        CHECK_EQ_INT(put(&place, MXSTORE_IS_device, &device), 0);
        check_proof(&place, MXSTORE_BY_VERIFIED, cases[i].now);
        store_close(&place);
    }
}

TEST(store, a_proof_that_is_no_devices_stays)
{
    static const enum mxstore_proof proofs[] = { MXSTORE_BY_UNKNOWN, MXSTORE_BY_SERVER,
        MXSTORE_BY_US, MXSTORE_BY_FORWARDED, MXSTORE_BY_IMPORTED };

    for (size_t i = 0; i < sizeof proofs / sizeof proofs[0]; i++) {
        struct mxstore_event event = decrypted_event("$1", 1);
        struct mxstore_device device = { .user_id = SPAN("@bob:x"),
            .device_id = SPAN("D"),
            .identity_key = SPAN("K"),
            .signing_key = SPAN("S"),
            .trust = MXSTORE_VERIFIED,
            .body = SPAN("{}") };
        struct place place;

        event.proof = proofs[i];
        event.device_id = SPAN("D");
        event.identity_key = SPAN("K");
        store_open(&place);
        CHECK_EQ_INT(put(&place, MXSTORE_IS_event, &event), 0);
        CHECK_EQ_INT(put(&place, MXSTORE_IS_device, &device), 0);
        check_proof(&place, proofs[i], proofs[i]);
        store_close(&place);
    }
    CHECK_EQ_STR(mxstore_proof_text(-1), "unknown");
    CHECK_EQ_STR(mxstore_proof_text(MXSTORE_PROOF_COUNT), "unknown");
}

TEST(store, own_events_are_read_on_request_alone)
{
    struct mxstore_event event = decrypted_event("$1", 1);
    struct mxstore_readable row = { 0 };
    struct sql_unit *unit;
    struct place place;

    store_open(&place);
    event.is_own = 1;
    CHECK_EQ_INT(put(&place, MXSTORE_IS_event, &event), 0);
    unit = read_first(&place, false, &row);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 0);
    sql_unit_destroy(unit);
    unit = read_first(&place, true, &row);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    CHECK_EQ_INT(row.is_own, 1);
    sql_unit_destroy(unit);
    store_close(&place);
}

SQL_STATEMENT(put_old_event,
    "INSERT INTO mx_event (event_id, seq, room_id, sender, type, origin_ms, status, reason,"
    " lease_until_ms, attempts, body) VALUES ('$1', 1, '!r', '@bob:x', 'm.x', 0, 1, 0, 0, 0, $1)");

TEST(store, events_of_an_older_version_have_an_unknown_author)
{
    struct sql_options options;
    struct sql_unit *unit = sql_unit_create(0);
    struct place place;

    if (STORE_ON_POSTGRES)
        test_postgres_open(&postgres, NULL);
    place_init_in_memory(&place);
    place_system(&place);
    options = (struct sql_options){ .url = STORE_ON_POSTGRES ? postgres.url : place.url,
        .migrations = mxstore_migrations,
        .migration_count = 4 };
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    sql_unit_step(unit, &put_old_event, 1);
    sql_unit_blob(unit, "{}", 2);
    CHECK_EQ_INT(store_write(&place, unit), 0);
    sql_close(&place.sql);
    options.migration_count = MXSTORE_MIGRATIONS;
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    check_proof(&place, MXSTORE_BY_UNKNOWN, MXSTORE_BY_UNKNOWN);
    store_close(&place);
}

/* The conditions of mxstore_get_held. */
SQL_STATEMENT(explain_held, "EXPLAIN QUERY PLAN SELECT body FROM mx_event WHERE room_id = $1"
                            " AND status = 0 AND seq > $2 ORDER BY seq LIMIT $3");

/* A start reads the held events of each room: it must not pass those of all other rooms. */
TEST(store, held_events_of_a_room_are_found_by_its_id)
{
    struct place place;
    struct sql_unit *unit = sql_unit_create(0);
    struct span plan;

    store_open(&place);
    if (!STORE_ON_POSTGRES) { /* its plan depends on the number of rows */
        sql_unit_step(unit, &explain_held, 1);
        sql_unit_text(unit, SPAN("!room:x"));
        sql_unit_int(unit, 0);
        sql_unit_int(unit, 32);
        CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
        plan = sql_row_bytes(unit, 0, 0, 3);
        CHECK_MSG(memmem(plan.at, plan.size, "mx_event_held (room_id=? AND seq>?)", 35) != NULL,
            "%.*s", (int)plan.size, plan.at);
    }
    sql_unit_destroy(unit);
    store_close(&place);
}

TEST(store, held_events_are_read_in_pages_and_judged)
{
    struct mxstore_event held = decrypted_event("$0", 1);
    struct sql_unit *unit = sql_unit_create(0);
    struct place place;
    char ids[3][4];

    store_open(&place);
    held.status = MXSTORE_HELD;
    for (int i = 0; i < 3; i++) {
        snprintf(ids[i], sizeof ids[i], "$%d", i);
        held.event_id = span_of(ids[i]);
        held.seq = 10 + i;
        mxstore_put(unit, MXSTORE_IS_event, &held);
    }
    mxstore_judge_held(unit, SPAN("$1"), MXSTORE_ABANDONED, -1);
    mxstore_judge_held(unit, SPAN("$2"), MXSTORE_HELD, -2);
    CHECK_EQ_INT(store_write(&place, unit), 0);
    unit = sql_unit_create(0);
    mxstore_get_held(unit, SPAN("!r"), 0, 1);
    mxstore_get_held(unit, SPAN("!r"), 10, 5);
    mxstore_get_held(unit, SPAN("!r"), 12, 5);
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    CHECK_EQ_U64(sql_unit_rows(unit, 1), 1);
    CHECK_EQ_U64(sql_unit_rows(unit, 2), 0);
    mxstore_row(unit, 1, 0, MXSTORE_IS_event, &held);
    CHECK(span_is(held.event_id, "$2"));
    CHECK_EQ_INT(held.reason, -2);
    sql_unit_destroy(unit);
    store_close(&place);
}

TEST(store, events_that_cannot_be_read_are_listed_and_counted_by_reason)
{
    static const struct {
        const char *id;
        int status, reason;
    } events[] = { { "$1", MXSTORE_HELD, -1 }, { "$2", MXSTORE_ENQUEUED, 0 },
        { "$3", MXSTORE_ABANDONED, -2 }, { "$4", MXSTORE_HELD, -1 }, { "$5", MXSTORE_HELD, -3 } };
    struct sql_unit *unit = sql_unit_create(0);
    struct mxstore_unread_count count;
    struct mxstore_unread unread;
    struct place place;

    store_open(&place);
    for (int i = 0; i < 5; i++) {
        struct mxstore_event event = decrypted_event(events[i].id, 10 + i);

        event.status = events[i].status;
        event.reason = events[i].reason;
        mxstore_put(unit, MXSTORE_IS_event, &event);
    }
    CHECK_EQ_INT(store_write(&place, unit), 0);
    unit = sql_unit_create(0);
    mxstore_get_unread(unit, 10, 2);
    mxstore_count_unread(unit);
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 2);
    mxstore_row(unit, 0, 0, MXSTORE_IS_unread, &unread);
    CHECK(span_is(unread.event_id, "$3"));
    CHECK_EQ_INT(unread.seq, 12);
    CHECK_EQ_INT(unread.status, MXSTORE_ABANDONED);
    mxstore_row(unit, 0, 1, MXSTORE_IS_unread, &unread);
    CHECK(span_is(unread.event_id, "$4"));
    CHECK_EQ_U64(sql_unit_rows(unit, 1), 3);
    mxstore_row(unit, 1, 1, MXSTORE_IS_unread_count, &count);
    CHECK_EQ_INT(count.status, MXSTORE_HELD);
    CHECK_EQ_INT(count.reason, -1);
    CHECK_EQ_INT(count.events, 2);
    mxstore_row(unit, 1, 2, MXSTORE_IS_unread_count, &count);
    CHECK_EQ_INT(count.status, MXSTORE_ABANDONED);
    CHECK_EQ_INT(count.events, 1);
    sql_unit_destroy(unit);
    store_close(&place);
}

/* ---- sessions and notices by their sender ----------------------------------------------------- */

SQL_STATEMENT(former_inbound,
    "INSERT INTO mx_inbound (room_id, session_id, sender_key, signing_key, pickle, first_index,"
    " source) VALUES ('!r:x', 'S', 'K', 'E', $1, 3, 0)");
SQL_STATEMENT(former_index, "INSERT INTO mx_index (session_id, message_index, event_id)"
                            " VALUES ('S', 5, '$5'), ('gone', 6, '$6')");
SQL_STATEMENT(former_withheld, "INSERT INTO mx_withheld (room_id, session_id, reason, received_ms)"
                               " VALUES ('!r:x', 'W', -4216, 1)");
SQL_STATEMENT(list_indexes, "SELECT session_id, event_id FROM mx_index ORDER BY message_index");

static void check_index(
    const struct sql_unit *unit, uint32_t row, const char *session, const char *event)
{
    CHECK(span_is(sql_row_bytes(unit, 0, row, 0), session));
    CHECK(span_is(sql_row_bytes(unit, 0, row, 1), event));
}

static struct sql_unit *read_indexes(struct place *place)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, &list_indexes, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_read_wait(place->sql, unit), 0);
    return unit;
}

TEST(store, a_database_of_version_4_keeps_its_sessions_and_replays)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct sql_options options;
    struct mxstore_inbound row;
    struct place place;
    char why[300];

    store_open_at(&place, 4);
    sql_unit_step(unit, &former_inbound, 1);
    sql_unit_blob(unit, "pickle", 6);
    sql_unit_step(unit, &former_index, 2);
    sql_unit_step(unit, &former_withheld, 1);
    CHECK_EQ_INT(store_write(&place, unit), 0);
    sql_close(&place.sql);
    options = store_options(&place, MXSTORE_MIGRATIONS);
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    unit = get(&place, MXSTORE_IS_inbound, "!r:x");
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1);
    mxstore_row(unit, 0, 0, MXSTORE_IS_inbound, &row);
    CHECK(span_is(row.session_id, "S") && span_is(row.sender_key, "K"));
    CHECK(span_is(row.pickle, "pickle") && row.first_index == 3 && row.used > 0);
    sql_unit_destroy(unit);
    unit = read_indexes(&place);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 2);
    check_index(unit, 0, "S K", "$5");
    check_index(unit, 1, "gone ", "$6");
    sql_unit_destroy(unit);
    sql_close(&place.sql);
    CHECK_EQ_INT(sql_migrate(&options, 4, why, sizeof why), 0);
    CHECK_EQ_INT(sql_migrate(&options, MXSTORE_MIGRATIONS, why, sizeof why), 0);
    CHECK_EQ_INT(place_try_open(&place, &options), 0);
    unit = read_indexes(&place);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 1); /* the one whose session is known */
    check_index(unit, 0, "S K", "$5");
    sql_unit_destroy(unit);
    store_close(&place);
}

static uint32_t count_rows(struct place *place, enum mxstore_kind kind, const char *key)
{
    struct sql_unit *unit = get(place, kind, key);
    uint32_t count = sql_unit_rows(unit, 0);

    sql_unit_destroy(unit);
    return count;
}

TEST(store, copies_notices_and_peers_go_one_by_one_or_together)
{
    struct mxstore_inbound inbound = { .room_id = SPAN("!r:x"),
        .session_id = SPAN("S"),
        .sender_key = SPAN("K1"),
        .signing_key = SPAN("E"),
        .pickle = SPAN("p") };
    struct mxstore_withheld withheld = {
        .room_id = SPAN("!r:x"), .session_id = SPAN("S"), .sender = SPAN("@a:x")
    };
    struct mxstore_olm olm = { .identity_key = SPAN("I"), .pickle = SPAN("p") };
    struct sql_unit *unit;
    struct place place;

    store_open(&place);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_inbound, &inbound), 0);
    inbound.sender_key = SPAN("K2");
    CHECK_EQ_INT(put(&place, MXSTORE_IS_inbound, &inbound), 0);
    CHECK_EQ_INT(put(&place, MXSTORE_IS_withheld, &withheld), 0);
    withheld.sender = SPAN("@b:x");
    CHECK_EQ_INT(put(&place, MXSTORE_IS_withheld, &withheld), 0);
    for (int i = 0; i < 3; i++) {
        olm.session_id = next_text();
        CHECK_EQ_INT(put(&place, MXSTORE_IS_olm, &olm), 0);
    }
    unit = sql_unit_create(0);
    mxstore_drop_olm(unit, SPAN("I"), olm.session_id);
    inbound.used = 9;
    mxstore_use_inbound(unit, &inbound);
    mxstore_drop_withheld(unit, SPAN("!r:x"), SPAN("S"), SPAN("@a:x"));
    CHECK_EQ_INT(store_write(&place, unit), 0);
    CHECK_EQ_U64(count_rows(&place, MXSTORE_IS_olm, "I"), 2);
    CHECK_EQ_U64(count_rows(&place, MXSTORE_IS_withheld, "!r:x"), 1);
    unit = get(&place, MXSTORE_IS_inbound, "!r:x");
    mxstore_row(unit, 0, 0, MXSTORE_IS_inbound, &inbound);
    CHECK_EQ_INT(inbound.used, 0);
    mxstore_row(unit, 0, 1, MXSTORE_IS_inbound, &inbound);
    CHECK_EQ_INT(inbound.used, 9);
    sql_unit_destroy(unit);
    unit = sql_unit_create(0);
    inbound.room_id = SPAN("!r:x");
    inbound.session_id = SPAN("S");
    inbound.sender_key = SPAN("K1");
    mxstore_drop_inbound(unit, &inbound);
    mxstore_drop_olm(unit, SPAN("I"), (struct span){ NULL, 0 });
    CHECK_EQ_INT(store_write(&place, unit), 0);
    CHECK_EQ_U64(count_rows(&place, MXSTORE_IS_olm, "I"), 0);
    CHECK_EQ_U64(count_rows(&place, MXSTORE_IS_inbound, "!r:x"), 1);
    store_close(&place);
}
