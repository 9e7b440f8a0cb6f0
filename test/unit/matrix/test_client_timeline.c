/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "matrix/client/timeline.h"
#include "mx_sync.h"

enum { NOW = 1000000 };

struct walk {
    struct mx_sync stage;
    struct mxclient_walk_news news;
    struct buffer target; /* of the last request */
    int64_t now_ms;
};

#define LIMITED(token, from, events)                                                               \
    "{\"next_batch\":\"" token "\",\"rooms\":{\"join\":{\"!r:x\":{\"timeline\":{\"limited\":true," \
    "\"prev_batch\":\"" from "\",\"events\":[" events "]}}}}}"

/* A room with a gap between the tokens s1, the older end, and p2. */
static void walk_init(struct walk *walk)
{
    *walk = (struct walk){ .now_ms = NOW };
    mx_sync_init(&walk->stage);
    CHECK_EQ_INT(
        mx_sync_take_text(&walk->stage, "{\"next_batch\":\"s1\"," MX_SYNC_ROOM("", "") "}"), 0);
    CHECK_EQ_INT(
        mx_sync_take_text(&walk->stage, LIMITED("s2", "p2", MX_SYNC_EVENT("$new", "m.x"))), 0);
    CHECK_EQ_U64(walk->stage.client.gaps.count, 1);
}

static void walk_fini(struct walk *walk)
{
    buffer_free(&walk->target);
    mx_sync_fini(&walk->stage);
}

/* Drop the client and load it again. */
static void walk_restart(struct walk *walk)
{
    struct mxclient *client = &walk->stage.client;
    struct sql_unit *unit = sql_unit_create(0);

    mxclient_fini(client);
    *client = (struct mxclient){ 0 };
    mxclient_session_init(&client->session, mx_stage_random(), &mx_client_key);
    mxclient_load_read(unit);
    CHECK_EQ_INT(sql_read_wait(walk->stage.place.sql, unit), 0);
    CHECK_EQ_INT(mxclient_load(client, unit, walk->now_ms), 0);
    sql_unit_destroy(unit);
}

static bool walk_ask(struct walk *walk)
{
    struct mxclient_request request;

    if (!mxclient_timeline_next(&walk->stage.client, walk->now_ms, &request))
        return false;
    CHECK_EQ_INT(mxclient_request_error(&request), 0);
    CHECK(!mxclient_timeline_next(&walk->stage.client, walk->now_ms, &request)); /* one at a time */
    buffer_clear(&walk->target);
    (void)buffer_span(&walk->target, mx_stage_span(&request.target));
    mxclient_request_fini(&request);
    return true;
}

/* Take an answer of this size; NULL: the request was refused. */
static enum mxclient_walk walk_take(struct walk *walk, const char *body, size_t bytes)
{
    struct mxclient_page page = { .verdict = body == NULL ? MXCLIENT_REFUSED : MXCLIENT_DONE,
        .bytes = bytes };
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    if (body != NULL)
        CHECK_EQ_INT(json_parse_copy(&walk->stage.doc, span_of(body), 0), 0);
    page.body = json_root(&walk->stage.doc);
    CHECK_EQ_INT(
        mxclient_timeline_take(&walk->stage.client, &page, walk->now_ms, unit, &walk->news), 0);
    rc = sql_unit_is_empty(unit) ? 0 : sql_write_wait(walk->stage.place.sql, unit);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    sql_unit_destroy(unit);
    return walk->news.state;
}

static enum mxclient_walk walk_page(struct walk *walk, const char *body)
{
    CHECK(walk_ask(walk));
    return walk_take(walk, body, body == NULL ? 0 : strlen(body));
}

/* Check the request that was made last: its query has these values. */
static void check_asked(struct walk *walk, const char *from, const char *to, const char *dir)
{
    char wanted[200];

    snprintf(wanted, sizeof wanted,
        "/_matrix/client/v3/rooms/%%21r%%3Ax/messages?from=%s&to=%s&dir=%s&limit=100", from, to,
        dir);
    mx_stage_check_text(&walk->target, wanted);
}

/* Check the stored gap; NULL: there is none. */
static void check_gap(struct walk *walk, const char *from, const char *until)
{
    struct mxstore_gap gap;
    struct sql_unit *unit = mx_sync_get(&walk->stage, MXSTORE_IS_gap, "!r:x", &gap);
    const struct mxclient_room *room = mxclient_rooms_find(&walk->stage.client.rooms, SPAN("!r:x"));

    CHECK_EQ_INT(unit == NULL, from == NULL);
    CHECK_EQ_INT(mxclient_timeline_is_whole(&walk->stage.client, room), from == NULL);
    if (unit == NULL || from == NULL)
        return;
    CHECK_MSG(span_is(gap.from_token, from) && span_is(gap.until_token, until),
        "the gap is from %.*s until %.*s", (int)gap.from_token.size, gap.from_token.at,
        (int)gap.until_token.size, gap.until_token.at);
    sql_unit_destroy(unit);
}

static int64_t seq_of(struct walk *walk, const char *id)
{
    struct mxstore_event row;
    struct sql_unit *unit = mx_sync_get(&walk->stage, MXSTORE_IS_event, id, &row);

    CHECK_MSG(unit != NULL, "there is no event %s", id);
    sql_unit_destroy(unit);
    return row.seq;
}

#define E(id) MX_SYNC_EVENT(id, "m.x")

/* ---- cases ------------------------------------------------------------------------------------ */

TEST(timeline, a_gap_is_walked_forward_from_its_older_end)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(
        walk_page(&walk, "{\"chunk\":[" E("$1") "," E("$2") "],\"end\":\"m1\"}"), MXCLIENT_WALK_ON);
    check_asked(&walk, "s1", "p2", "f");
    check_gap(&walk, "p2", "m1");
    CHECK_EQ_U64(walk.news.events, 2);
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[" E("$3") "],\"end\":\"m2\"}"), MXCLIENT_WALK_ON);
    check_asked(&walk, "m1", "p2", "f");
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[]}"), MXCLIENT_WALK_CLOSED);
    check_gap(&walk, NULL, NULL);
    CHECK(!walk_ask(&walk));
    CHECK(mxclient_timeline_due_ms(&walk.stage.client) == INT64_MAX);
    /* The order of application: the answer that left the gap, then the gap in the room's order. */
    CHECK(seq_of(&walk, "$new") < seq_of(&walk, "$1"));
    CHECK(seq_of(&walk, "$1") < seq_of(&walk, "$2"));
    CHECK(seq_of(&walk, "$2") < seq_of(&walk, "$3"));
    walk_fini(&walk);
}

TEST(timeline, a_page_that_ends_at_the_newer_end_closes_the_gap)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(
        walk_page(&walk, "{\"chunk\":[" E("$1") "],\"end\":\"p2\"}"), MXCLIENT_WALK_CLOSED);
    mx_sync_check_event(&walk.stage, "$1", MXSTORE_ENQUEUED, 0);
    check_gap(&walk, NULL, NULL);
    walk_fini(&walk);
}

TEST(timeline, a_walk_goes_on_after_a_restart_and_stores_no_event_twice)
{
    struct walk walk;
    int64_t seq;

    walk_init(&walk);
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[" E("$1") "],\"end\":\"m1\"}"), MXCLIENT_WALK_ON);
    seq = seq_of(&walk, "$1");
    CHECK(walk_ask(&walk)); /* and the program ends before the answer */
    walk_restart(&walk);
    check_gap(&walk, "p2", "m1");
    CHECK_EQ_INT(
        walk_page(&walk, "{\"chunk\":[" E("$1") "," E("$new") "," E("$2") "],\"end\":\"m2\"}"),
        MXCLIENT_WALK_ON);
    check_asked(&walk, "m1", "p2", "f");
    CHECK_EQ_INT(seq_of(&walk, "$1"), seq);
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[],\"end\":null}"), MXCLIENT_WALK_CLOSED);
    walk_restart(&walk);
    check_gap(&walk, NULL, NULL);
    CHECK(!walk_ask(&walk));
    walk_fini(&walk);
}

TEST(timeline, an_empty_page_with_another_end_goes_on)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[],\"end\":\"m1\"}"), MXCLIENT_WALK_ON);
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[],\"end\":\"m2\"}"), MXCLIENT_WALK_ON);
    check_asked(&walk, "m1", "p2", "f");
    check_gap(&walk, "p2", "m2");
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[],\"end\":\"m2\"}"), MXCLIENT_WALK_CLOSED);
    walk_fini(&walk);
}

TEST(timeline, a_token_that_stands_still_under_events_stalls_the_walk)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(
        walk_page(&walk, "{\"chunk\":[" E("$1") "],\"end\":\"s1\"}"), MXCLIENT_WALK_STALLED);
    mx_sync_check_event(&walk.stage, "$1", MXSTORE_ENQUEUED, 0);
    check_gap(&walk, "p2", "s1");
    CHECK(!walk_ask(&walk));
    walk.now_ms += MXCLIENT_WALK_STALL_MS - 1;
    CHECK(!walk_ask(&walk));
    walk.now_ms++;
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[]}"), MXCLIENT_WALK_CLOSED);
    check_asked(&walk, "p2", "s1", "b"); /* from the other end */
    walk_fini(&walk);
}

TEST(timeline, a_circle_of_tokens_stalls_the_walk)
{
    for (int length = 2; length < 40; length++) {
        enum mxclient_walk state = MXCLIENT_WALK_ON;
        struct walk walk;
        char body[300];
        int pages = 0;

        walk_init(&walk);
        for (; state == MXCLIENT_WALK_ON && pages < 4 * length + 4; pages++) {
            snprintf(body, sizeof body, "{\"chunk\":[" E("$%d") "],\"end\":\"c%d\"}", pages,
                pages % length);
            state = walk_page(&walk, body);
        }
        CHECK_EQ_INT(state, MXCLIENT_WALK_STALLED);
        CHECK(!walk_ask(&walk));
        walk_fini(&walk);
    }
}

TEST(timeline, a_refusal_turns_the_walk_and_two_let_it_wait)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(walk_page(&walk, NULL), MXCLIENT_WALK_ON);
    CHECK_EQ_INT(
        walk_page(&walk, "{\"chunk\":[" E("$3") "," E("$2") "],\"end\":\"b1\"}"), MXCLIENT_WALK_ON);
    check_asked(&walk, "p2", "s1", "b");
    check_gap(&walk, "b1", "s1");
    CHECK(seq_of(&walk, "$2") < seq_of(&walk, "$3")); /* a page in the room's order */
    CHECK_EQ_INT(walk_page(&walk, NULL), MXCLIENT_WALK_ON);
    check_asked(&walk, "b1", "s1", "b");
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":7}"), MXCLIENT_WALK_STALLED);
    check_asked(&walk, "s1", "b1", "f");
    CHECK(!walk_ask(&walk));
    walk_restart(&walk);
    check_gap(&walk, "b1", "s1");
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[" E("$1") "]}"), MXCLIENT_WALK_CLOSED);
    check_gap(&walk, NULL, NULL);
    walk_fini(&walk);
}

TEST(timeline, a_backward_walk_waits_for_a_gap_with_the_same_end)
{
    struct walk walk;
    struct sql_unit *unit;

    walk_init(&walk);
    CHECK_EQ_INT(mx_sync_take_text(&walk.stage, LIMITED("s3", "p3", "")), 0);
    CHECK_EQ_U64(walk.stage.client.gaps.count, 2);
    CHECK_EQ_INT(walk_page(&walk, NULL), MXCLIENT_WALK_ON); /* the gap of p2 */
    CHECK_EQ_INT(walk_page(&walk, NULL), MXCLIENT_WALK_ON); /* the gap of p3 */
    walk.now_ms++;                                          /* the other one is due first then */
    CHECK_EQ_INT(walk_page(&walk, "{\"chunk\":[],\"end\":\"other\"}"), MXCLIENT_WALK_ON);
    CHECK(walk_ask(&walk));
    check_asked(&walk, "p3", "s2", "b");
    CHECK_EQ_INT(
        walk_take(&walk, "{\"chunk\":[" E("$1") "],\"end\":\"other\"}", 0), MXCLIENT_WALK_STALLED);
    CHECK_EQ_U64(walk.stage.client.gaps.count, 2);
    unit = sql_unit_create(0);
    mxstore_list(unit, MXSTORE_IS_gap);
    CHECK_EQ_INT(sql_read_wait(walk.stage.place.sql, unit), 0);
    CHECK_EQ_U64(sql_unit_rows(unit, 0), 2);
    sql_unit_destroy(unit);
    walk_fini(&walk);
}

TEST(timeline, each_budget_ends_the_round_and_leaves_the_gap)
{
    static const struct {
        size_t bytes;
        int64_t ms;
        const char *chunk;
        int rounds;
        int64_t pause_ms;
    } budgets[] = {
        { 10, 0, "", MXCLIENT_WALK_PAGES, MXCLIENT_WALK_STALL_MS },
        { 10, 0, E("$1") "," E("$2"), MXCLIENT_WALK_PAGES, MXCLIENT_WALK_PAUSE_MS },
        { MXCLIENT_WALK_BYTES / 4, 0, E("$1"), 4, MXCLIENT_WALK_PAUSE_MS },
        { 10, MXCLIENT_WALK_MS / 2, E("$1"), 2, MXCLIENT_WALK_PAUSE_MS },
        { 10, -1, E("$1"), 1, MXCLIENT_WALK_PAUSE_MS }, /* the clock was set back */
        { MXCLIENT_WALK_BYTES, 0, "", 1, MXCLIENT_WALK_STALL_MS },
        { 10, MXCLIENT_WALK_MS, "", 1, MXCLIENT_WALK_PAUSE_MS }, /* a logout held it up */
    };

    for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++) {
        struct walk walk;
        char body[600];

        walk_init(&walk);
        for (int k = 1; k <= budgets[i].rounds; k++) {
            CHECK(walk_ask(&walk));
            walk.now_ms += budgets[i].ms;
            snprintf(body, sizeof body, "{\"chunk\":[%s],\"end\":\"m%d\"}", budgets[i].chunk, k);
            CHECK_EQ_INT(walk_take(&walk, body, budgets[i].bytes),
                k < budgets[i].rounds ? MXCLIENT_WALK_ON : MXCLIENT_WALK_BUDGET);
        }
        CHECK(!walk_ask(&walk));
        CHECK_EQ_INT(
            mxclient_timeline_due_ms(&walk.stage.client), walk.now_ms + budgets[i].pause_ms);
        walk.now_ms += budgets[i].pause_ms;
        CHECK(walk_ask(&walk)); /* and goes on where it was */
        snprintf(body, sizeof body, "m%d", budgets[i].rounds);
        check_asked(&walk, body, "p2", "f");
        walk_fini(&walk);
    }
}

TEST(timeline, the_budget_of_events_counts_over_pages)
{
    struct walk walk;
    struct buffer body = { 0 };
    enum mxclient_walk state = MXCLIENT_WALK_ON;
    int pages = 0, number = 0;

    walk_init(&walk);
    while (state == MXCLIENT_WALK_ON) {
        buffer_clear(&body);
        (void)buffer_text(&body, "{\"chunk\":[");
        for (int i = 0; i < 2500; i++)
            (void)buffer_format(&body, "%s" E("$e%d"), i == 0 ? "" : ",", number++);
        (void)buffer_format(&body, "],\"end\":\"m%d\"}", ++pages);
        (void)buffer_append(&body, "", 1);
        state = walk_page(&walk, body.bytes);
    }
    CHECK_EQ_INT(state, MXCLIENT_WALK_BUDGET);
    CHECK_EQ_INT(pages, 4);
    buffer_free(&body);
    walk_fini(&walk);
}

TEST(timeline, an_unusable_end_stalls_the_walk)
{
    static const char *const ends[] = { "7", "\"\"", "{}", "[\"m1\"]", "true" };

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct walk walk;
        char body[300];

        walk_init(&walk);
        snprintf(body, sizeof body, "{\"chunk\":[" E("$1") "],\"end\":%s}", ends[i]);
        CHECK_EQ_INT(walk_page(&walk, body), MXCLIENT_WALK_STALLED);
        mx_sync_check_event(&walk.stage, "$1", MXSTORE_ENQUEUED, 0);
        check_gap(&walk, "p2", "s1");
        walk_fini(&walk);
    }
}

TEST(timeline, events_of_a_walk_are_judged_like_those_of_a_sync)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(mx_sync_take_text(&walk.stage,
                     "{\"next_batch\":\"s3\"," MX_SYNC_ROOM(MX_SYNC_ENCRYPTION, "") "}"),
        0);
    CHECK_EQ_INT(
        walk_page(&walk,
            "{\"chunk\":[null," E("$1") "," MX_SYNC_CIPHER("$2") "," MX_SYNC_MEMBER(
                "@eve:y", "join") ","
                                  "{\"event_id\":\"$3\",\"type\":\"m.x\",\"sender\":\"@ada:x\","
                                  "\"content\":{},\"unsigned\":{\"transaction_id\":\"m1\"}}]}"),
        MXCLIENT_WALK_CLOSED);
    CHECK_EQ_U64(walk.news.events, 3);
    CHECK_EQ_U64(walk.news.held, 1);
    mx_sync_check_event(&walk.stage, "$1", MXSTORE_ABANDONED, MX_ESIGNATURE);
    mx_sync_check_event(&walk.stage, "$2", MXSTORE_HELD, MX_ESESSION);
    mx_sync_check_event(&walk.stage, "$3", MXSTORE_ABANDONED, MX_ESIGNATURE);
    /* Past state is not the present one. */
    CHECK(mxclient_index_find(&mxclient_rooms_find(&walk.stage.client.rooms, SPAN("!r:x"))->members,
              SPAN("@eve:y")) == NULL);
    CHECK_EQ_U64(walk.stage.client.skipped, 1);
    walk_fini(&walk);
}

TEST(timeline, the_gap_of_a_room_that_we_left_waits)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(mx_sync_take_text(
                     &walk.stage, "{\"next_batch\":\"s3\",\"rooms\":{\"leave\":{\"!r:x\":{}}}}"),
        0);
    CHECK(!walk_ask(&walk));
    CHECK_EQ_INT(
        mx_sync_take_text(&walk.stage, "{\"next_batch\":\"s4\"," MX_SYNC_ROOM("", "") "}"), 0);
    CHECK(walk_ask(&walk));
    CHECK_EQ_INT(walk_take(&walk, "{\"chunk\":[]}", 0), MXCLIENT_WALK_CLOSED);
    walk_fini(&walk);
}

TEST(timeline, the_same_newer_end_again_keeps_the_older_end_that_is_further_back)
{
    struct walk walk;

    walk_init(&walk);
    CHECK_EQ_INT(mx_sync_take_text(&walk.stage, LIMITED("s3", "p2", "")), 0);
    check_gap(&walk, "p2", "s1");
    CHECK_EQ_U64(walk.stage.client.gaps.count, 1);
    walk_fini(&walk);
}
