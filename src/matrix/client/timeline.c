/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.c: walks through gaps (Matrix specification, Client-Server API,
 * "GET /_matrix/client/v3/rooms/{roomId}/messages"). */
#include "matrix/client/timeline.h"

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "matrix/client/sync.h"

/* ---- gaps ------------------------------------------------------------------------------------- */

void mxclient_gap_fini(void *object)
{
    struct mxclient_gap *gap = object;

    buffer_free(&gap->room_id);
    buffer_free(&gap->from_token);
    buffer_free(&gap->until_token);
    buffer_free(&gap->met);
}

int mxclient_timeline_load(struct mxclient *client, const struct mxstore_gap *row)
{
    struct mxclient_gap *gap =
        mxclient_index_add_pair(&client->gaps, row->room_id, row->from_token, sizeof *gap);
    int rc;

    if (gap == NULL)
        return TR_ENOMEM;
    tr_assert(gap->room_id.size == 0);
    gap->created_ms = row->created_ms;
    gap->is_backward = row->until_token.at == NULL;
    rc = buffer_span(&gap->room_id, row->room_id);
    rc = rc != 0 ? rc : buffer_span(&gap->from_token, row->from_token);
    if (rc == 0 && row->until_token.at != NULL)
        rc = buffer_span(&gap->until_token, row->until_token);
    return rc;
}

/* A gap that is known may have an older end further back, or be smaller by a walk. */
int mxclient_timeline_add(
    struct mxclient *client, const struct mxstore_gap *row, struct sql_unit *unit)
{
    if (mxclient_index_find_pair(&client->gaps, row->room_id, row->from_token) != NULL)
        return 0;
    mxstore_put(unit, MXSTORE_IS_gap, row);
    return mxclient_timeline_load(client, row);
}

static void timeline_put(const struct mxclient_gap *gap, struct sql_unit *unit)
{
    mxstore_put(unit, MXSTORE_IS_gap,
        &(struct mxstore_gap){ .room_id = mxclient_span(&gap->room_id),
            .from_token = mxclient_span(&gap->from_token),
            .until_token = mxclient_span(&gap->until_token),
            .created_ms = gap->created_ms });
}

static struct mxclient_gap *timeline_at(const struct mxclient *client, uint32_t place)
{
    return (struct mxclient_gap *)client->gaps.entries[place];
}

bool mxclient_timeline_is_whole(const struct mxclient *client, const struct mxclient_room *room)
{
    for (uint32_t i = 0; i < client->gaps.count; i++)
        if (span_equal(mxclient_span(&timeline_at(client, i)->room_id), mxclient_id(&room->entry)))
            return false;
    return true;
}

/* ---- requests --------------------------------------------------------------------------------- */

/* Return the gap whose request is due first; NULL without one. */
static struct mxclient_gap *timeline_first(const struct mxclient *client)
{
    struct mxclient_gap *first = NULL;

    for (uint32_t i = 0; i < client->gaps.count; i++) {
        struct mxclient_gap *gap = timeline_at(client, i);
        const struct mxclient_room *room =
            mxclient_rooms_find(&client->rooms, mxclient_span(&gap->room_id));

        if (room != NULL && room->membership == MXCLIENT_JOINED &&
            (first == NULL || gap->next_ms < first->next_ms))
            first = gap;
    }
    return first;
}

int64_t mxclient_timeline_due_ms(const struct mxclient *client)
{
    const struct mxclient_gap *gap = client->walking == NULL ? timeline_first(client) : NULL;

    return gap == NULL ? INT64_MAX : gap->next_ms;
}

/* Return the token that a request starts from. */
static struct buffer *timeline_near(struct mxclient_gap *gap)
{
    return gap->is_backward ? &gap->from_token : &gap->until_token;
}

/* Return the token that the walk ends at. */
static struct span timeline_far(const struct mxclient_gap *gap)
{
    return mxclient_span(gap->is_backward ? &gap->until_token : &gap->from_token);
}

/* A token may need three bytes of the target for each of its own, and so may the room's id. */
enum { TIMELINE_TOKENS_MAX = 2 * MXCLIENT_SYNC_TOKEN_BYTES_MAX };
_Static_assert(3 * (TIMELINE_TOKENS_MAX + MXCLIENT_ID_BYTES_MAX) + 128 <= MXCLIENT_TARGET_BYTES_MAX,
    "every gap can be asked for");

bool mxclient_timeline_next(
    struct mxclient *client, int64_t now_ms, struct mxclient_request *request)
{
    struct mxclient_gap *gap;

    if (now_ms < mxclient_timeline_due_ms(client))
        return false;
    gap = timeline_first(client);
    tr_assert(gap != NULL); /* one is due */
    if (gap->pages == 0)
        gap->started_ms = now_ms;
    client->walking = gap;
    mxclient_request_init(
        request, MXCLIENT_MESSAGES, (struct span[]){ mxclient_span(&gap->room_id) });
    mxclient_request_query(request, "from", mxclient_span(timeline_near(gap)));
    if (timeline_near(gap)->size + timeline_far(gap).size <= TIMELINE_TOKENS_MAX)
        mxclient_request_query(request, "to", timeline_far(gap));
    mxclient_request_query(request, "dir", gap->is_backward ? SPAN("b") : SPAN("f"));
    mxclient_request_query_int(request, "limit", MXCLIENT_WALK_PAGE_EVENTS);
    return true;
}

/* ---- pages ------------------------------------------------------------------------------------ */

/* Take the events from the last to the first: a backward page has the newest first. */
static int timeline_take_reversed(
    struct mxclient_intake *intake, struct mxclient_room *room, const struct json *chunk)
{
    size_t count = json_count(chunk), place = 0;
    const struct json **events = base_calloc((count + 1) * sizeof(void *));
    int rc = 0;

    if (events == NULL)
        return TR_ENOMEM;
    for (struct json_iter it = json_iterate(chunk); json_next(&it);)
        events[place++] = it.value;
    while (rc == 0 && place > 0)
        rc = mxclient_intake_event(intake, room, events[--place]);
    base_free(events);
    return rc;
}

static int timeline_take_events(
    struct mxclient_intake *intake, const struct mxclient_gap *gap, const struct json *chunk)
{
    struct mxclient_room *room =
        mxclient_rooms_find(&intake->client->rooms, mxclient_span(&gap->room_id));
    int rc = 0;

    tr_assert(room != NULL);
    if (gap->is_backward)
        return timeline_take_reversed(intake, room, chunk);
    for (struct json_iter it = json_iterate(chunk); rc == 0 && json_next(&it);)
        rc = mxclient_intake_event(intake, room, it.value);
    return rc;
}

/* Decide where the walk stands after a page with this `end`, by rules 1 and 5. */
static enum mxclient_walk timeline_judge(
    struct mxclient_gap *gap, const struct json *body, struct span *ret_end)
{
    const struct json *end = json_get(body, "end");
    bool is_empty = json_count(json_get(body, "chunk")) == 0;

    if (end == NULL || json_kind(end) == JSON_NULL)
        return MXCLIENT_WALK_CLOSED;
    if (!mxclient_read_token(end, ret_end))
        return MXCLIENT_WALK_STALLED;
    if (span_equal(*ret_end, timeline_far(gap)))
        return MXCLIENT_WALK_CLOSED;
    if (span_equal(*ret_end, mxclient_span(timeline_near(gap))))
        return is_empty ? MXCLIENT_WALK_CLOSED : MXCLIENT_WALK_STALLED;
    return span_equal(*ret_end, mxclient_span(&gap->met)) ? MXCLIENT_WALK_STALLED
                                                          : MXCLIENT_WALK_ON;
}

static int timeline_set(struct buffer *token, struct span text)
{
    buffer_clear(token);
    return buffer_span(token, text);
}

/* Give the newer end another token: the gap has another key then, in the store and in memory.
 * TR_EBUSY: another gap has this end; that one is closed first. */
static int timeline_move_newer(
    struct mxclient *client, struct mxclient_gap *gap, struct span end, struct sql_unit *unit)
{
    struct mxclient_gap *moved;
    struct mxclient_entry entry;

    if (mxclient_index_find_pair(&client->gaps, mxclient_span(&gap->room_id), end) != NULL)
        return TR_EBUSY;
    moved =
        mxclient_index_add_pair(&client->gaps, mxclient_span(&gap->room_id), end, sizeof *moved);
    if (moved == NULL)
        return TR_ENOMEM;
    mxstore_close_gap(unit, mxclient_span(&gap->room_id), mxclient_span(&gap->from_token));
    entry = moved->entry;
    *moved = *gap;
    moved->entry = entry;
    mxclient_index_remove(&client->gaps, mxclient_id(&gap->entry), NULL);
    client->walking = moved;
    return timeline_set(&moved->from_token, end);
}

/* Shrink the gap by a page. Fails like timeline_move_newer. */
static int timeline_shrink(struct mxclient *client, struct span end, struct sql_unit *unit)
{
    struct mxclient_gap *gap = client->walking;
    int rc = gap->is_backward ? timeline_move_newer(client, gap, end, unit)
                              : timeline_set(&gap->until_token, end);

    if (rc != 0)
        return rc;
    gap = client->walking;
    timeline_put(gap, unit);
    gap->walked++;
    return (gap->walked & (gap->walked - 1)) == 0 ? timeline_set(&gap->met, end) : 0;
}

/* Start another round at this time. */
static void timeline_pause(struct mxclient_gap *gap, int64_t next_ms)
{
    gap->next_ms = next_ms;
    gap->pages = 0;
    gap->events = 0;
    gap->bytes = 0;
}

/* Turn to the other end, if there is one. */
static void timeline_turn(struct mxclient_gap *gap)
{
    if (gap->until_token.size > 0)
        gap->is_backward = !gap->is_backward;
    buffer_clear(&gap->met);
    gap->walked = 0;
}

static void timeline_stall(struct mxclient_gap *gap, int64_t now_ms)
{
    timeline_turn(gap);
    timeline_pause(gap, now_ms + MXCLIENT_WALK_STALL_MS);
}

/* A refusal from one end is followed by an attempt from the other. */
static enum mxclient_walk timeline_refused(struct mxclient_gap *gap, int64_t now_ms)
{
    if (gap->is_refused || gap->until_token.size == 0) {
        gap->is_refused = false;
        timeline_stall(gap, now_ms);
        return MXCLIENT_WALK_STALLED;
    }
    gap->is_refused = true;
    timeline_turn(gap);
    gap->next_ms = now_ms;
    return MXCLIENT_WALK_ON;
}

/* Count a page and decide whether the round ends. A clock that was set back ends it too. A round that
 * used up its pages or bytes without an event is followed by the long pause; one that only took long,
 * as a logout makes it, is not. */
static enum mxclient_walk timeline_count(
    struct mxclient_gap *gap, const struct mxclient_page *page, uint32_t events, int64_t now_ms)
{
    bool is_used_up, is_late;

    gap->next_ms = now_ms;
    gap->pages++;
    gap->events += events;
    gap->bytes += page->bytes;
    is_used_up = gap->pages >= MXCLIENT_WALK_PAGES || gap->events >= MXCLIENT_WALK_EVENTS ||
                 gap->bytes >= MXCLIENT_WALK_BYTES;
    is_late = now_ms < gap->started_ms || now_ms - gap->started_ms >= MXCLIENT_WALK_MS;
    if (!is_used_up && !is_late)
        return MXCLIENT_WALK_ON;
    timeline_pause(gap, now_ms + (gap->events == 0 && is_used_up ? MXCLIENT_WALK_STALL_MS
                                                                 : MXCLIENT_WALK_PAUSE_MS));
    return MXCLIENT_WALK_BUDGET;
}

static void timeline_close(struct mxclient *client, struct sql_unit *unit)
{
    struct mxclient_gap *gap = client->walking;

    mxstore_close_gap(unit, mxclient_span(&gap->room_id), mxclient_span(&gap->from_token));
    mxclient_index_remove(&client->gaps, mxclient_id(&gap->entry), mxclient_gap_fini);
}

static int timeline_take_page(struct mxclient *client, const struct mxclient_page *page,
    int64_t now_ms, struct sql_unit *unit, struct mxclient_walk_news *news)
{
    struct mxclient_intake intake = { .client = client, .unit = unit, .now_ms = now_ms };
    struct span end = { NULL, 0 };
    int rc = timeline_take_events(&intake, client->walking, json_get(page->body, "chunk"));

    if (rc != 0)
        return rc;
    client->walking->is_refused = false;
    news->events = intake.news.events;
    news->held = intake.news.held;
    news->state = timeline_judge(client->walking, page->body, &end);
    if (news->state == MXCLIENT_WALK_ON) {
        rc = timeline_shrink(client, end, unit);
        if (rc == TR_EBUSY)
            news->state = MXCLIENT_WALK_STALLED;
        else if (rc != 0)
            return rc;
    }
    if (news->state == MXCLIENT_WALK_ON)
        news->state = timeline_count(client->walking, page, news->events, now_ms);
    else if (news->state == MXCLIENT_WALK_CLOSED)
        timeline_close(client, unit);
    else
        timeline_stall(client->walking, now_ms);
    return 0;
}

int mxclient_timeline_take(struct mxclient *client, const struct mxclient_page *page,
    int64_t now_ms, struct sql_unit *unit, struct mxclient_walk_news *ret_news)
{
    int rc = 0;

    tr_assert(client->walking != NULL);
    tr_assert(page->verdict == MXCLIENT_DONE || page->verdict == MXCLIENT_REFUSED);
    *ret_news = (struct mxclient_walk_news){ 0 };
    if (page->verdict == MXCLIENT_DONE && json_kind(json_get(page->body, "chunk")) == JSON_ARRAY)
        rc = timeline_take_page(client, page, now_ms, unit, ret_news);
    else
        ret_news->state = timeline_refused(client->walking, now_ms);
    client->walking = NULL;
    return rc;
}
