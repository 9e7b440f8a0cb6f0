/* SPDX-License-Identifier: Apache-2.0 */
/* mx_page.c: answers of /messages in a row, separated by zero bytes, to the walk through one gap.
 * Whatever they have, the gap is closed or waits, and its ends stay usable tokens. An empty answer
 * stands for a refusal. */
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/sync.h"
#include "matrix/client/timeline.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static const struct mx_pickle_key key = { { 1 } };
static uint8_t counter;
static const struct mx_random counting = { count_up, &counter };

static void set_up(struct mxclient *client, struct sql_unit *unit)
{
    struct mxstore_gap row = {
        .room_id = SPAN("!r:x"), .from_token = SPAN("p2"), .until_token = SPAN("s1")
    };
    struct mxclient_room *room;
    int rc;

    mxclient_session_init(&client->session, &counting, &key);
    rc = mx_account_create(&counting, &client->session.account);
    rc |= buffer_text(&client->session.user_id, "@ada:x");
    client->session.state = MXCLIENT_ACTIVE;
    mxclient_start(client);
    room = mxclient_rooms_add(&client->rooms, SPAN("!r:x"));
    tr_assert(room != NULL);
    room->membership = MXCLIENT_JOINED;
    rc |= mxclient_timeline_add(client, &row, unit);
    tr_assert(rc == 0);
}

static void take(struct mxclient *client, struct span text, int64_t now_ms, struct sql_unit *unit)
{
    struct mxclient_page page = { .verdict = MXCLIENT_REFUSED, .bytes = text.size };
    struct json_doc doc = { .depth_max = JSON_DEPTH_MAX };
    struct mxclient_walk_news news;
    struct mxclient_request request;
    int64_t seq = client->seq_next;
    int rc;

    if (!mxclient_timeline_next(client, now_ms, &request))
        return;
    tr_assert(mxclient_request_error(&request) == 0);
    mxclient_request_fini(&request);
    if (json_parse_copy(&doc, text, 0) == 0) {
        page.verdict = MXCLIENT_DONE;
        page.body = json_root(&doc);
    }
    rc = mxclient_timeline_take(client, &page, now_ms, unit, &news);
    tr_assert(rc == 0);
    tr_assert(client->walking == NULL);
    tr_assert(client->seq_next == seq + news.events);
    tr_assert((client->gaps.count == 0) == (news.state == MXCLIENT_WALK_CLOSED));
    tr_assert(news.state == MXCLIENT_WALK_ON || mxclient_timeline_due_ms(client) > now_ms);
    json_doc_free(&doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest = { (const char *)data, size }, piece;
    struct sql_unit *unit = sql_unit_create(0);
    struct mxclient client = { 0 };

    set_up(&client, unit);
    for (int64_t now_ms = 0; rest.at != NULL && span_cut(&rest, '\0', &piece); now_ms += 3600000)
        take(&client, piece, now_ms, unit);
    mxclient_fini(&client);
    sql_unit_destroy(unit);
    return 0;
}
